"""Symbols, matrix nodes, and differentiation."""
