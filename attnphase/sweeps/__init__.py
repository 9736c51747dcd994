"""Grids of lines on processes, resumable."""
