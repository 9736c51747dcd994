"""Optional dependencies and devices: what to install, or to choose, where one is missing."""

from __future__ import annotations

import importlib.util

from attnphase.errors import ExperimentError, MissingExtraError

__all__ = ["require_cuda", "require_distributed", "require_plotly", "require_torch"]


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


def require_cuda() -> None:
    """Refuse to go on without a GPU; imports PyTorch, which alone knows.

    Raises
    ------
    MissingExtraError
        PyTorch is not installed.
    ExperimentError
        It sees no GPU.
    """
    require_torch()
    import torch

    if not torch.cuda.is_available():
        raise ExperimentError(
            'no CUDA device is available: use the device "cpu" (in a solve, the backend "torch" or "numba").'
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
            'a sweep on a Dask cluster needs dask.distributed: pip install ".[distributed]" in a clone, or pip install'
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
            'a page that moves needs Plotly: pip install ".[explore]" in a clone, or pip install plotly.'
        )
