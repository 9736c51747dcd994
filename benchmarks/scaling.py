"""How compilation and the local problem scale with the number of tokens.

For L = 2, 3, 4, 8 (paper's scores, rank 1): time to derive, generate and compile a kernel into an empty cache, time to
load it from the cache in a new process, and time per proximal point of a warm and of a cold pass, with the exponent
between neighbouring lengths.  The goal is a growth no faster than L^3 and, at L = 8, under 60 s and under 1 s.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time

import numpy as np

LENGTHS = (2, 3, 4, 8)
NODES = 2048

_LOAD = """
import time
start = time.perf_counter()
from attnphase.kernels.compiler import kernels_for
from attnphase.problem.problem import Problem
problem = Problem().with_fields({"tokens.length": LENGTH})
imported = time.perf_counter()
kernels_for(problem)
print(time.perf_counter() - imported)
"""


def loading_time(length: int) -> float:
    """Seconds to get a kernel in a new process, imports of the package not counted."""
    code = _LOAD.replace("LENGTH", str(length))
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def time_per_point(length: int) -> tuple[float, float]:
    """Seconds per node of a warm and of a cold pass on one thread, at overlaps of the semantic start's size."""
    from attnphase.integration.rules import sobol
    from attnphase.kernels.local.constants import Starts
    from attnphase.problem.problem import Problem
    from attnphase.state_evolution.channel import Channel
    from attnphase.state_evolution.starts import initial_overlaps
    from attnphase.state_evolution.system import System

    problem = Problem().with_fields({"tokens.length": length})
    rule = sobol(2 * length, length, False, NODES, 1, 0)
    channel = Channel(System.of(problem), rule)
    overlaps = initial_overlaps(problem, "semantic")
    minima = channel.evaluate(2.0, overlaps, Starts.COLD).minima
    times = []
    for starts in (Starts.WARM, Starts.COLD):
        runs = []
        for _ in range(3):
            start = time.perf_counter()
            channel.evaluate(2.0, overlaps, starts, minima)
            runs.append(time.perf_counter() - start)
        times.append(min(runs) / NODES)
    return times[0], times[1]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ATTNPHASE_CACHE_DIR"] = cache
        print("  L   compile     cached    warm/point   cold/point   exponent (warm, cold)")
        before: tuple[int, np.ndarray] | None = None
        for length in LENGTHS:
            first, again = loading_time(length), loading_time(length)
            times = np.array(time_per_point(length))
            exponent = ""
            if before is not None:
                rates = np.log(times / before[1]) / math.log(length / before[0])
                exponent = f"{rates[0]:.2f}, {rates[1]:.2f}"
            warm, cold = times * 1e6
            print(
                f"{length:3d}  {first:6.1f} s   {again:6.2f} s   {warm:7.2f} us   {cold:7.2f} us   {exponent}",
                flush=True,
            )
            before = (length, times)


if __name__ == "__main__":
    main()
