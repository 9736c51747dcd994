"""Optional dependencies: what to install for a command that needs one."""

from __future__ import annotations

import importlib.util

from attnphase.errors import MissingExtraError

__all__ = ["require_torch"]


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
