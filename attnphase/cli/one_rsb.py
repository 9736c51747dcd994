"""The command that solves the equations of one-step replica-symmetry breaking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase.cli.inputs import named, problem_of, solvable
from attnphase.cli.options import (
    allow_unconverged_option,
    branch_option,
    problem_options,
    result_options,
)
from attnphase.cli.outcomes import Result, ended, tell
from attnphase.cli.values import NUMBERS
from attnphase.fixed_points.settings import SolverSettings, sample_complexity
from attnphase.lazy import loaded_on_use
from attnphase.theories.one_rsb.settings import STARTS, check_covered, one_rsb_sizes, parisi_parameters

with loaded_on_use(__name__):
    from attnphase.data import outcomes
    from attnphase.theories.one_rsb import run, text

__all__ = ["one_rsb"]


@click.command("one-rsb")
@problem_options
@click.option("--alpha", type=float, required=True, help="Sample complexity n/d.")
@click.option("--y", "tilts", type=NUMBERS, help="Parisi parameters; without, where F(y) is largest.")
@branch_option
@click.option(
    "--start",
    type=click.Choice(STARTS),
    default=STARTS[0],
    show_default=True,
    help="The branch's solution without breaking, or its informed start.",
)
@click.option("--outer", type=int, default=128, show_default=True, help="Sobol points of what all replicas share.")
@click.option("--inner", type=int, default=64, show_default=True, help="Sobol points of what a group shares.")
@click.option("--tolerance", type=float, default=1e-5, show_default=True, help="On the undamped relative residual.")
@click.option("--max-maps", type=int, default=1000, show_default=True, help="Evaluations of the map for each y.")
@allow_unconverged_option
@result_options
def one_rsb(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    tilts: tuple[float, ...] | None,
    branch: Any,
    start: Any,
    outer: int,
    inner: int,
    tolerance: float,
    max_maps: int,
    result: Result,
    allow_unconverged: bool,
) -> int:
    """Solve the equations of one-step replica-symmetry breaking, where the replica-symmetric ones fail.

    Without --y the static solution, at the maximum of F; with it metastable states, with their energy and complexity.
    """
    alpha, settings = sample_complexity("alpha", alpha), SolverSettings(tolerance=tolerance, max_maps=max_maps)
    tilts = parisi_parameters(tilts)
    result.check()
    problem = solvable(problem_of(problem_file, changes), named(branch))
    outer, inner = one_rsb_sizes(problem, outer, inner)
    check_covered(problem)
    ds = run.one_rsb(
        problem,
        alpha,
        branch,
        y=tilts or None,
        start=start,
        outer=outer,
        inner=inner,
        settings=settings,
        progress=not result.quiet,
    )
    result.deliver(ds, text.one_rsb_table)
    tell(result, outcomes.of_left_out(ds))
    return ended(outcomes.of_points(ds), allow_unconverged)
