"""What trains a student: descents, and message passing."""
