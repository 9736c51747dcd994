"""How much memory runs need, before anything is drawn."""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnphase.errors import ExperimentError
from attnphase.experiments.optimizers.kinds import OPTIMIZERS, OptimizerName
from attnphase.problem import Problem

__all__ = ["MemoryNeed", "available_memory", "check_fits", "check_results", "runs_that_fit"]

_SHARE = 0.6  # of the free memory that runs may take
OVERHEAD = 300 << 20  # blocks of normals, generated code, libraries
_PER_SAMPLE = 24  # arrays of the size of a sample's fields that a step makes
_PER_COORDINATE = 60  # columns of d numbers: the optimiser's memory, geometry
_LOCAL_MATRICES = 6  # matrices of a sample's local problem that GAMP makes
_PER_RUN = 30_000  # bytes of a finished run's tensors, and of their copy in a checkpoint
_PER_NUMBER = 32  # bytes of each number of a result: kept, stacked, spread over the dataset


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of one run.

    Attributes
    ----------
    tokens : int
        That grow like n L d.
    rest : int
        That grow like n, or like d.
    """

    tokens: int
    rest: int

    @classmethod
    def of(
        cls, problem: Problem, dimension: int, count: int, optimizer: OptimizerName, test_samples: int, itemsize: int
    ) -> MemoryNeed:
        """Estimate the need of a run of n = `count` samples at d = `dimension`."""
        length, columns = problem.tokens.length, problem.columns
        size = length * columns
        # message passing keeps the tokens' squares in single precision, and makes them through a copy
        passing = OPTIMIZERS[optimizer].message_passing
        each = itemsize + (8 if passing else 0)
        local = _LOCAL_MATRICES * size**2 if passing else 0
        tokens = length * dimension * (each * count + itemsize * test_samples)
        rest = itemsize * (count * (_PER_SAMPLE * size + 2 * length**2 + local) + _PER_COORDINATE * columns * dimension)
        return cls(tokens, rest)

    @property
    def total(self) -> int:
        """All of it."""
        return self.tokens + self.rest


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = _free_on_windows() if sys.platform == "win32" else _free_on_posix()
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text(encoding="ascii").strip()).isdigit():
        free = min(free, int(text) - int(used.read_text(encoding="ascii")))
    return max(free, 0)


def _free_on_posix() -> int:
    known = os.sysconf_names
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in known else "SC_PHYS_PAGES")
    info = Path("/proc/meminfo")
    if info.exists():  # pages of the file cache are free too
        rows = dict(line.split(":", 1) for line in info.read_text(encoding="ascii").splitlines())
        free = max(free, 1024 * int(rows["MemAvailable"].split()[0]))
    return free


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of the Windows API."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("free_physical", ctypes.c_uint64),
        ("page_file", ctypes.c_uint64),
        ("free_page_file", ctypes.c_uint64),
        ("virtual", ctypes.c_uint64),
        ("free_virtual", ctypes.c_uint64),
        ("free_extended_virtual", ctypes.c_uint64),
    )


def _free_on_windows() -> int:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    windows: Any = ctypes
    if not windows.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        raise ExperimentError("Windows does not say how much memory is free.")
    return int(status.free_physical)


def runs_that_fit(
    need: MemoryNeed, runs: int, free: int, *, dimension: int, count: int, length: int, tests: int = 0
) -> int:
    """How many of some runs may be held at once.

    Parameters
    ----------
    need : MemoryNeed
        Of one.
    runs : int
        At most.
    free : int
        Bytes.
    dimension, count, length, tests : int
        d, n, L and the fresh samples, for the message.

    Raises
    ------
    ExperimentError
        Not even one; the sentence names the largest n L d that fits.
    """
    budget = _SHARE * free - OVERHEAD
    fit = int(budget // need.total)
    if fit < 1:
        size = count * length * dimension
        largest = max(budget, 0) / need.total * size
        others = ", or test_samples" if tests > count else ""
        raise ExperimentError(
            f"a run at d = {dimension} with n = {count} samples of {length} tokens (n L d = {size:.2g}) needs"
            f" {_readable(need.total)}, but {_readable(free)} are free, of which {_SHARE:.0%} are used: the largest"
            f' n L d that fits is about {largest:.1e}; lower the dimension or alpha{others}, or use dtype "float32".'
        )
    return min(fit, runs)


def check_results(problem: Problem, runs: int, records: int, free: int) -> None:
    """Refuse runs whose results alone do not fit, however few of them are trained at once.

    Parameters
    ----------
    runs : int
        In all.
    records : int
        Of each run's trajectory, at most.
    free : int
        Bytes.

    Raises
    ------
    ExperimentError
        The sentence says what they need.
    """
    r, t = problem.columns, problem.teacher_columns
    numbers = 20 + len(problem.sites) * (2 * r * r + r + r * t)  # scalars; q, V, m and theta
    need = runs * (_PER_RUN + _PER_NUMBER * (1 + records) * numbers)
    each = f" with {records} records of the trajectory each" if records else ""
    less = "steps or seeds, or raise trajectory" if records else "seeds, or take fewer alphas or dimensions"
    check_fits(f"the results of {runs} runs{each}", need, free, f": lower {less}")


def check_fits(what: str, need: float, free: int, advice: str) -> None:
    """Refuse what needs more bytes than may be used of those that are free.

    Raises
    ------
    ExperimentError
        The sentence ends in the advice.
    """
    if need > _SHARE * free:
        raise ExperimentError(
            f"{what} need about {_readable(need)}, but {_readable(free)} are free, of which {_SHARE:.0%} are"
            f" used{advice}."
        )


def _readable(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"
