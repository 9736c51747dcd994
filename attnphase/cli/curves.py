"""Commands that follow a branch, and that look for all fixed points at one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase import arguments
from attnphase.cli.inputs import named, problem_of, solvable
from attnphase.cli.options import (
    allow_unconverged_option,
    branch_option,
    problem_options,
    result_options,
    solver_options,
    start_option,
)
from attnphase.cli.outcomes import Result, ended, tell
from attnphase.data.text import curve_table, solutions_table
from attnphase.fixed_points.settings import SolverSettings, sample_complexity
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from attnphase.data import files as netcdf
    from attnphase.data import outcomes
    from attnphase.fixed_points import setting
    from attnphase.sweeps import curves

__all__ = ["follow", "solutions"]


@click.command()
@problem_options
@click.option("--field", default="alpha", show_default=True, help="alpha, or a field of the problem that is a number.")
@click.option("--between", type=(float, float), required=True, metavar="LOW HIGH", help="Range of the field.")
@click.option("--alpha", type=float, help="Sample complexity n/d, where another field is followed.")
@click.option("--at", type=float, help="The field's value where the curve starts.")
@start_option
@branch_option
@solver_options
@allow_unconverged_option
@result_options
def follow(
    problem_file: Path | None,
    changes: tuple[str, ...],
    field: str,
    between: tuple[float, float],
    alpha: float | None,
    at: float | None,
    start: Path | None,
    branch: Any,
    result: Result,
    allow_unconverged: bool,
    **solver: Any,
) -> int:
    """Follow a branch along alpha or a field of the problem, through folds onto its unstable part.

    The curve starts at the upper end of alpha's range, or at the field's own value, or where --at says.
    """
    settings, between = SolverSettings(**solver), setting.range_of(field, between)
    at = None if at is None else setting.start_value(at, field, between)
    result.check()
    problem = solvable(problem_of(problem_file, changes), named(branch))
    setting.start_of(problem, field, alpha, between, at)
    begun = None if start is None else netcdf.load_dataset(start)
    ds = curves.follow(
        problem, alpha, field, between, branch, at=at, start=begun, settings=settings, progress=not result.quiet
    )
    if not result.quiet:
        for curve in ds.attrs["ends"].split("; "):
            name, _, sides = curve.rpartition(": ")
            ends = dict.fromkeys(sides.split(", "))
            where = " and ".join(ends) + (" on both sides" if len(ends) == 1 else "")
            click.echo(f"attnphase: the {name and f'{name} '}curve ends {where}.", err=True)
    result.deliver(ds, curve_table)
    tell(result, outcomes.of_left_out(ds))
    return ended(outcomes.of_points(ds), allow_unconverged)


@click.command()
@problem_options
@click.option("--alpha", type=float, required=True, help="Sample complexity n/d.")
@click.option("--starts", type=int, default=12, show_default=True, help="Random starts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random starts.")
@solver_options
@allow_unconverged_option
@result_options
def solutions(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    starts: int,
    seed: int,
    result: Result,
    allow_unconverged: bool,
    **solver: Any,
) -> int:
    """Find all fixed points at one sample complexity, stable or not, ranked by training loss."""
    alpha, settings = sample_complexity("alpha", alpha), SolverSettings(**solver)
    starts, seed = arguments.whole("starts", starts, 0), arguments.whole("seed", seed, 0)
    result.check()
    problem = solvable(problem_of(problem_file, changes), ())
    ds = curves.solutions(problem, alpha, starts=starts, seed=seed, settings=settings, progress=not result.quiet)
    result.deliver(ds, solutions_table)
    return ended(outcomes.of_points(ds), allow_unconverged)
