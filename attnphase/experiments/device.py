"""Where torch computes: names of devices, and what is there."""

from __future__ import annotations

import torch

from attnphase.errors import ExperimentError
from attnphase.experiments.settings import device_name

__all__ = ["device_of"]


def device_of(name: str) -> torch.device:
    """The device of a name: "cpu", "cuda", or one of several GPUs as "cuda:1".

    Raises
    ------
    ProblemError
        There is no device of such a name.
    ExperimentError
        This machine does not have it.
    """
    device_name(name)
    if name == "cpu":
        return torch.device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise ExperimentError(
            'no CUDA device is available: use the device "cpu" (in a solve, the backend "torch" or "numba").'
        )
    device = torch.device(name)
    if device.index is not None and device.index >= count:
        raise ExperimentError(f'there is no CUDA device {device.index}: the last one here is "cuda:{count - 1}".')
    return device
