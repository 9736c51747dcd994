"""A problem's equations and numbers as a page."""
