"""What trains a student: descents, and message passing; an optimiser is a file here and an entry in `kinds`."""
