"""Optional dependencies: what to install for a command that needs one."""

from __future__ import annotations

import importlib.util

__all__ = ["MissingExtraError", "require_torch"]


class MissingExtraError(ImportError):
    """A package is missing that only some commands need; the sentence says how to get it."""


def require_torch() -> None:
    """Refuse to go on without PyTorch.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            'finite-size experiments need PyTorch: pip install ".[torch]" in a clone, or pip install torch.'
        )
