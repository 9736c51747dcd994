"""The paper's experiments, run and written."""
