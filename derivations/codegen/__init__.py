"""From expressions to source."""
