"""What is timed, and how: ``python -m benchmarks --help``."""
