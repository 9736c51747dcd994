"""From expressions to pages."""
