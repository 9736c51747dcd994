"""Gaussian expectations: rules, and which one comes next."""
