"""What can go wrong in an experiment."""

__all__ = ["ExperimentError"]


class ExperimentError(RuntimeError):
    """An experiment that cannot be run or resumed; the sentence says why and what to do."""
