"""Symbolic derivations: what is true of a model, as SymPy expressions and as generated source."""
