"""Where torch computes: names of devices, and what is there."""

from __future__ import annotations

import torch

from attnphase.arguments import device_name
from attnphase.errors import ExperimentError
from attnphase.extras import require_cuda

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
    require_cuda()
    device, count = torch.device(name), torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ExperimentError(f'there is no CUDA device {device.index}: the last one here is "cuda:{count - 1}".')
    return device
