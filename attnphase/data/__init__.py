"""Labelled datasets: variables, validation, files, text."""
