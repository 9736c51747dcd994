"""Optional dependencies and devices: what to install, or to choose, where one is missing."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from attnphase import arguments
from attnphase.errors import ExperimentError, MissingExtraError, ProblemError

__all__ = ["device_name", "require_cuda", "require_torch"]


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


def device_name(name: Any) -> str:
    """The name of a device; whether this machine has it, `attnphase.kernels.torch.device.device_of` says.

    Raises
    ------
    ProblemError
        There is no device of such a name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        given = arguments.shown(name)
        raise ProblemError("device", f'device must be "cpu", "cuda" or one of several as "cuda:0", not {given}.')
    return name
