"""The command that looks for the best value of a field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase import arguments
from attnphase.cli.inputs import named, problem_of, solvable
from attnphase.cli.options import (
    allow_unconverged_option,
    alphas_option,
    iteration_options,
    problem_options,
    result_options,
    single_branch_option,
)
from attnphase.cli.outcomes import Result, ended
from attnphase.fixed_points.optimum import LOWEST, METRICS
from attnphase.fixed_points.settings import SolverSettings, sample_complexities
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from attnphase.data import derivatives, outcomes
    from attnphase.fixed_points import setting
    from attnphase.sweeps import tuning

__all__ = ["tune"]


@click.command()
@problem_options
@alphas_option
@click.option("--field", default="regularizer.strength", show_default=True, help="A field that is a number.")
@click.option("--metric", default="test_error", show_default=True, help=f"{', '.join(METRICS)}, or one of [metrics].")
@single_branch_option(LOWEST)
@click.option(
    "--between",
    type=(float, float),
    metavar="LOW HIGH",
    help="Range of the field; from a hundredth of its value to a hundredfold by default.",
)
@iteration_options
@allow_unconverged_option
@result_options
def tune(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    field: str,
    metric: str,
    branch: Any,
    between: tuple[float, float] | None,
    result: Result,
    allow_unconverged: bool,
    **solver: Any,
) -> int:
    """Find the value of a field that minimises a metric of a branch, along alpha."""
    alpha, settings = sample_complexities("alpha", alpha), SolverSettings(**solver)
    result.check()
    problem = solvable(problem_of(problem_file, changes), () if branch == LOWEST else named(branch))
    arguments.word("metric", metric, (*METRICS, *problem.metrics))
    setting.tuned_range(problem, field, between, alpha[0])
    ds = tuning.tune(
        problem, alpha, field, metric, branch, between=between, settings=settings, progress=not result.quiet
    )
    result.deliver(ds, derivatives.tuned_table)
    return ended(outcomes.of_optima(ds, problem), allow_unconverged)
