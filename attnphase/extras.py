"""Optional dependencies: what to install where one is missing."""

from __future__ import annotations

import importlib.util

from attnphase.errors import MissingExtraError

__all__ = ["require_distributed", "require_plotly", "require_torch"]


def require_torch() -> None:
    """Refuse to go on without PyTorch.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError(
            'finite-size experiments need PyTorch: pip install "attnphase[torch]", or pip install torch.'
        )


def require_distributed() -> None:
    """Refuse to go on without dask.distributed.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    if importlib.util.find_spec("distributed") is None:
        raise MissingExtraError(
            'a sweep on a Dask cluster needs dask.distributed: pip install "attnphase[distributed]", or pip install'
            " distributed."
        )


def require_plotly() -> None:
    """Refuse to go on without Plotly.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    if importlib.util.find_spec("plotly") is None:
        raise MissingExtraError(
            'an interactive page needs Plotly: pip install "attnphase[explore]", or pip install plotly.'
        )
