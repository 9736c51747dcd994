"""What a running program owes its user: interruptions, progress, checkpoints."""
