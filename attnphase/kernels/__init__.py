"""From a problem to machine code: what it is generated from, where it is kept, what it minimises."""
