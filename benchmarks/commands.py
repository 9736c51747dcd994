"""What a user waits for: new processes, from ``--help`` to the main job."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from attnphase.kernels.cache import cache_directory
from attnphase.kernels.ownership import own_folder
from attnphase.kernels.shared import MINIMISERS, prepare
from attnphase.problem.problem import Problem
from benchmarks.local_problem import MODELS
from benchmarks.measuring import Options, Row, clock_named, python, timed
from benchmarks.record import Clocks

__all__ = ["compiling", "start_rows", "sweep_rows"]

_COMPILE = """
from attnphase.kernels.compiler import kernels_for
from attnphase.problem.problem import Problem
from benchmarks.measuring import clock_named, timed
problem = Problem.from_dict({declaration!r})
print(timed(clock_named({clock!r}), lambda: kernels_for(problem)))
"""

_SHIPPED = ("-m", "attnphase", "solve", "--alpha", "2", "--quiet")


def start_rows(options: Options) -> Iterator[Row]:
    """New processes, with kernels in the cache and without."""
    clock = clock_named(options.clock)

    def whole(*arguments: str) -> float:
        return timed(clock, lambda: python(*arguments))

    yield Row("start: import attnphase", "s", lambda: whole("-c", "import attnphase"))
    yield Row("start: attnphase --help", "s", lambda: whole("-m", "attnphase", "--help"))
    if options.quick:
        return
    python(*_SHIPPED)
    yield Row("start: solve --alpha 2", "s", lambda: whole(*_SHIPPED), detail="a new process, kernels kept")
    yield Row(
        "start: solve --alpha 2, first",
        "s",
        lambda: in_empty_cache(lambda kept: timed(clock, lambda: python(*_SHIPPED, environment=kept))),
        most=3,
        detail="a new process, nothing compiled",
    )
    yield Row(
        "start: solve --alpha 2, a new model",
        "s",
        without_models(lambda kept: timed(clock, lambda: python(*_SHIPPED, environment=kept))),
        most=3,
        detail="a new process, the solver compiled",
    )
    for name, most in (("(2,1)", 3), ("(8,1)", 1)):
        yield compile_row(name, most, options.clock)


def compile_row(name: str, most: int, clock: Clocks) -> Row:
    """Seconds to derive, generate and compile the kernels of a model, where the solver is there."""
    return Row(
        f"start: compile {name}",
        "s",
        compiling(Problem().with_fields(MODELS[name]), clock),
        most=most,
        detail="derived, generated and compiled; imports are not counted",
    )


def compiling(problem: Problem, clock: Clocks) -> Callable[[], float]:
    """Seconds to derive, generate and compile the kernels of a problem, in a process of its own."""
    code = _COMPILE.format(declaration=problem.to_dict(), clock=clock)
    return without_models(lambda kept: float(python("-c", code, environment=kept)))


def in_empty_cache(run: Callable[[dict[str, str]], float]) -> float:
    """What a function of an environment gives for one with an empty cache of kernels."""
    with tempfile.TemporaryDirectory() as folder:
        return run({**os.environ, "ATTNPHASE_CACHE_DIR": folder})


def without_models(run: Callable[[dict[str, str]], float]) -> Callable[[], float]:
    """What a function of an environment gives for one whose cache has the solver, but no model."""

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            kept = {**os.environ, "ATTNPHASE_CACHE_DIR": folder}
            shared = own_folder(Path(folder) / "kernels")
            for path in _solver():
                shutil.copy2(path, shared)
            return run(kept)

    return once


@cache
def _solver() -> list[Path]:
    """The files of what is compiled for all models."""
    prepare((*MINIMISERS, "around"))
    return [*cache_directory().glob("shared-*")]


def sweep_rows(options: Options) -> Iterator[Row]:
    """The main job on a small grid, and where it is asked for itself and two thresholds."""
    workers = () if options.threads is None else ("--workers", str(options.threads))
    sizes = ("--alphas", "2", "--omegas", "2", "--nodes", "16") if options.quick else ("--alphas", "5", "--omegas", "6")
    yield diagram_row("sweep: small phase-diagram", (*sizes, *workers), None, options)
    if options.full:
        clock = clock_named(options.clock)
        yield diagram_row("sweep: phase-diagram", workers, options.full, options)
        plain = ("--no-identity", "--no-stability", *workers)
        yield diagram_row("sweep: phase-diagram, points alone", plain, options.full, options)
        found = ("-m", "attnphase", "thresholds", "--omega", "0.2,0.4", "--quiet")
        yield Row(
            "sweep: thresholds --omega 0.2,0.4",
            "s",
            lambda: timed(clock, lambda: python(*found)),
            most=options.full,
        )


def diagram_row(name: str, arguments: tuple[str, ...], most: int | None, options: Options) -> Row:
    """The command with its start and its figures."""
    clock = clock_named(options.clock)

    def once() -> float:
        with tempfile.TemporaryDirectory() as folder:
            command = ("-m", "attnphase", "phase-diagram", "--output", folder, "--quiet", *arguments)
            return timed(clock, lambda: python(*command))

    said = " ".join(arguments) if "--alphas" in arguments else " ".join(("25 x 26 x 2 points", *arguments))
    return Row(name, "s", once, most=most, detail=f"{said}; start and figures included")
