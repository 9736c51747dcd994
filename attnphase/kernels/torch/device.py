"""Where torch computes: names of devices, what is there, and what of the caller's own settings is set aside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from attnphase.arguments import device_name
from attnphase.errors import ExperimentError

__all__ = ["callers_torch_set_aside", "device_of"]


@contextmanager
def callers_torch_set_aside() -> Iterator[None]:
    """Compute as if the caller had set no default device, and were not in inference mode.

    Tensors whose device is not named lie on the CPU, and optimisers change tensors in place.
    """
    with ExitStack() as stack:
        if torch.get_default_device().type != "cpu":  # a device as a context costs a look at every call
            stack.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        yield


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
    if not torch.cuda.is_available():
        raise ExperimentError('no CUDA device is available: use the device "cpu".')
    device, count = torch.device(name), torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise ExperimentError(f'there is no CUDA device {device.index}: the last one here is "cuda:{count - 1}".')
    return device
