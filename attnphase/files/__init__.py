"""Files: what may be read, and how results are written."""
