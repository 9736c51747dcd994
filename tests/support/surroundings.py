"""What a program finds around it: free memory, threads and settings of torch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch


@contextmanager
def free_memory(size: float) -> Iterator[None]:
    """The system says that so many bytes are free."""
    read, known = Path.read_text, os.sysconf
    with pytest.MonkeyPatch.context() as patch:
        said = f"MemAvailable: {int(size) >> 10} kB\n"
        patch.setattr(Path, "read_text", lambda self, **how: said if self.name == "meminfo" else read(self, **how))
        patch.setattr(os, "sysconf", lambda name: 0 if name == "SC_AVPHYS_PAGES" else known(name))
        yield


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    """Torch says that it has so many threads."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: count)
        yield
    torch.set_num_threads(before)


@contextmanager
def callers_settings(of: str) -> Iterator[None]:
    """Results that land on this default device have no numbers."""
    with torch.inference_mode(of == "inference mode"):
        torch.set_default_device("meta" if of == "default device" else None)
        before = torch.get_default_device(), torch.is_inference_mode_enabled()
        try:
            yield
            assert (torch.get_default_device(), torch.is_inference_mode_enabled()) == before
        finally:
            torch.set_default_device(None)
