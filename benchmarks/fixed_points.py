"""Seconds of fixed points in a warm process beside the published recipe's, and the memory that one takes.

The recipe in ``published_recipe.py`` does one local search per node and conjugate. Its maps to a point take the same
time but for a tenth, so one is timed at the point and multiplied by their number, unless the whole recipe is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference
from benchmarks import published_recipe
from benchmarks.measuring import Clock, Options, Row, clock_named, python, timed
from benchmarks.record import YARDSTICK

__all__ = ["SETTINGS", "memory_rows", "one_map", "point_rows", "recipe_rows"]

SETTINGS = {"semantic": 2.0, "positional": 1.24}
"""Sample complexities by branch; omega is 0.3."""

MAPS = {"semantic": 51, "positional": 29}
"""Of the recipe to its own stopping rule: what ``published_recipe.py --alpha ALPHA --branch BRANCH`` prints."""

STANDARD_ERROR = 1e-3

_MEMORY_NODES = 2**17

# A process begins with the peak of the one that it was forked from, which here is large: so a bare interpreter between.
_PEAK = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1]], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak if sys.platform == "darwin" else 1024 * peak)
"""

_SOLVE = """
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
problem = Problem.paper(omega=0.3).with_fields({{"integration.rule": "sobol", "integration.standard_error": 1e-9}})
settings = SolverSettings(threads={threads}, max_nodes={nodes})
point = solve_point(problem, {alpha}, "{branch}", settings=settings)
assert point.nodes == {nodes}, point.nodes
"""


def recipe_rows(options: Options) -> Iterator[Row]:
    """One map of the recipe, which is the yardstick, and the recipe to its own stopping rule."""
    clock = clock_named(options.clock)

    def whole(branch: str, alpha: float) -> float:
        maps = MAPS[branch]
        if not options.recipe:
            return maps * one_map(clock, branch)
        found: list[int] = []
        seconds = timed(clock, lambda: found.append(published_recipe.run(alpha, branch)[0]))
        if found != [maps]:
            raise SystemExit(f"the recipe took {found[0]} maps to the {branch} point, not {maps}: mend MAPS.")
        return seconds

    one_map(clock, "semantic")
    yield Row(YARDSTICK, "s", lambda: one_map(clock, "semantic"))
    for branch, alpha in SETTINGS.items():
        yield Row(
            recipe_name(branch),
            "s",
            lambda branch=branch, alpha=alpha: whole(branch, alpha),
            most=1 if options.recipe or options.quick else None,
            detail=f"{MAPS[branch]} maps, {'all run' if options.recipe else 'of which one was timed'}",
        )


def one_map(clock: Clock, branch: str) -> float:
    """Seconds of one map of the recipe at the point of a setting."""
    start = converged(branch, "q", "V", "m", "theta")
    return timed(clock, lambda: published_recipe.state_evolution_map(SETTINGS[branch], *start))


def recipe_name(branch: str) -> str:
    """The row of the recipe's whole run."""
    return f"recipe: to the {branch} point"


def converged(branch: str, *names: str) -> list[float]:
    """Converged values at a setting."""
    table = read_reference("converged")
    row = table[(table["alpha"] == SETTINGS[branch]) & (table["branch"] == branch)][0]
    return [float(row[name]) for name in names]


def point_rows(options: Options) -> Iterator[Row]:
    """A fixed point of either branch, in a process that has solved one before, and with its stability."""
    clock = clock_named(options.clock)
    rough = {"integration.rule": "sobol", "integration.nodes": 16}
    asked = rough if options.quick else {"integration.standard_error": STANDARD_ERROR}
    problem = Problem.paper(omega=0.3).with_fields(asked)
    for stability, (branch, alpha) in product((False, True), SETTINGS.items()):
        settings, last = SolverSettings(threads=options.threads, stability=stability), []

        def solve(
            branch: str = branch,
            alpha: float = alpha,
            settings: SolverSettings = settings,
            last: list[BranchPoint] = last,
        ) -> None:
            last[:] = [solve_point(problem, alpha, branch, settings=settings)]

        solve()
        yield Row(
            f"point: {branch}, alpha = {alpha:g}{', with stability' if stability else ''}",
            "s",
            lambda solve=solve: timed(clock, solve),
            outcome=lambda last=last: how_good(last[0]),
            beside=recipe_name(branch),
        )


def how_good(point: BranchPoint) -> str:
    """Standard error and bias of q, and what they took."""
    q, error = (float(np.ravel(values["q"])[0]) for values in (point.values, point.errors))
    (truth,) = converged(point.branch, "q")
    return (
        f"SE(q) {error / q:.2%}, {abs(q / truth - 1):.2%} from the converged q, "
        f"{point.nodes} nodes, {point.iterations} maps, {point.status.name}"
    )


def memory_rows(options: Options) -> Iterator[Row]:
    """Peak memory of a process that solves one fixed point with many nodes."""
    nodes = 2**12 if options.quick else _MEMORY_NODES
    branch = "positional"
    code = _SOLVE.format(threads=options.threads, nodes=nodes, alpha=SETTINGS[branch], branch=branch)
    yield Row(
        f"memory: {branch} point",
        "MB",
        lambda: int(python("-c", _PEAK, code)) / 1e6,
        most=3,
        detail=f"peak of a process, {nodes} nodes",
    )
