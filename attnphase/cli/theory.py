"""Commands that solve: one point, a grid, thresholds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnphase import arguments
from attnphase.cli.inputs import named, problem_of, solvable, varied
from attnphase.cli.options import (
    allow_unconverged_option,
    branch_option,
    force_option,
    output_option,
    problem_options,
    quiet_option,
    result_options,
    solver_options,
    start_option,
    workers_option,
)
from attnphase.cli.outcomes import Result, ended, interruption_told, kept_lines, print_table, tell
from attnphase.cli.sweeps import distribution_options, in_blocks, make_plan, merge_plan, needed, solve_block
from attnphase.cli.values import NUMBERS, ManyValues
from attnphase.data.text import points_json, points_table, thresholds_table
from attnphase.errors import ProblemError
from attnphase.files.writing import check_dataset, check_folder
from attnphase.fixed_points.settings import SolverSettings, omegas, sample_complexities, sample_complexity
from attnphase.fixed_points.verdict import Verdict
from attnphase.lazy import loaded_on_use
from attnphase.state_evolution.branches import BRANCHES
from attnphase.sweeps.places import check_scheduler, check_shard

with loaded_on_use(__name__):
    from attnphase.data import absence, counts, derivatives, outcomes
    from attnphase.data import files as netcdf
    from attnphase.fixed_points import sensitivity, setting
    from attnphase.sweeps import critical
    from attnphase.sweeps import grid as grids
    from attnphase.sweeps import points as single

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.fixed_points.point import BranchPoint

__all__ = ["solve", "sweep", "thresholds"]


@click.command()
@problem_options
@click.option("--alpha", type=float, required=True, help="Sample complexity n/d.")
@branch_option
@click.option("--sensitivity", "field", metavar="FIELD", help="Derivatives in alpha, or a field as tokens.sigma.")
@start_option
@solver_options
@allow_unconverged_option
@result_options
def solve(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    branch: str,
    field: str | None,
    start: Path | None,
    result: Result,
    allow_unconverged: bool,
    **solver: Any,
) -> int:
    """Solve one problem at one sample complexity."""
    alpha, settings = sample_complexity("alpha", alpha), SolverSettings(**solver)
    result.check()
    problem = solvable(problem_of(problem_file, changes), named(branch))
    if field is not None:
        setting.setting_of("--sensitivity", problem, field, alpha)
    begun = None
    if start is not None:
        begun = netcdf.load_dataset(start)
    points = single.solved(problem, alpha, branch, settings, start=begun, progress=not result.quiet)
    slopes = None if field is None else _differentiated(points, field, settings, branch)
    if result.output is not None:
        result.save(single.labelled(points, branch) if slopes is None else slopes)
    if result.as_json and slopes is None:
        click.echo(points_json(points, branch))
    missing, doubtful = ({}, {}) if result.quiet else (absence.absences(points), absence.doubts(points))
    if not (result.as_json or result.quiet):
        print_table(points_table(points, missing, doubtful))
    if slopes is not None:
        if not (result.as_json or result.quiet):
            click.echo()  # below the table of the points
        result.print(slopes, derivatives.sensitivity_table)
    tell(result, outcomes.of_branches(points))
    if all(point.status == 0 and point.identities != Verdict.violated for point in points):
        return 0
    return ended(outcomes.of_points(single.labelled(points, branch)), allow_unconverged)


def _differentiated(points: list[BranchPoint], field: str, settings: SolverSettings, branch: str) -> xr.Dataset:
    """The dataset of points with their derivatives, for which more must be imported than for the points."""
    slopes = [sensitivity.sensitivity_at(point, field, settings) for point in points]
    return derivatives.from_sensitivities(slopes, branch)


@click.command()
@problem_options
@click.option("--alpha", type=NUMBERS, help="START:STOP:COUNT[:log], or numbers with commas between them.")
@click.option("--omega", type=NUMBERS, help="As for --alpha; the problem's own by default.")
@click.option(
    "--vary",
    metavar="FIELD=VALUES",
    multiple=True,
    help="Sweep a field of the problem, as tokens.sigma=0.3:0.7:5 or teacher.score=softmax,linear; may be given several"
    " times.",
)
@click.option(
    "--branch",
    type=click.Choice([*BRANCHES, "all"]),
    multiple=True,
    default=("semantic", "positional"),
    show_default=True,
    help="One, or each of them; may be given several times.",
)
@solver_options
@output_option(help="netCDF file for the result, or with --plan the folder; needed but with --block.")
@force_option
@workers_option
@distribution_options
@click.option("--refine", is_flag=True, help="Solve only where a boundary passes, and a coarse lattice of the rest.")
@click.option("--resume", is_flag=True, help="Use the finished lines of this sweep, which was interrupted.")
@click.option("--resume-fitting", is_flag=True, help="Use finished lines of another sweep too, where they fit.")
@allow_unconverged_option
@quiet_option
@click.pass_context
def sweep(
    context: click.Context,
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...] | None,
    omega: tuple[float, ...] | None,
    vary: tuple[str, ...],
    branch: tuple[str, ...],
    output: Path | None,
    force: bool,
    workers: int | None,
    scheduler: str | None,
    shard: str | None,
    plan: int | None,
    block: int | None,
    merge: bool,
    refine: bool,
    resume: bool,
    resume_fitting: bool,
    allow_unconverged: bool,
    quiet: bool,
    **solver: Any,
) -> int:
    """Solve a problem on a grid, on all cores.

    Finished lines are kept in a folder next to the output until it is written: after Ctrl-C or a crash, --resume uses
    them. --force without --resume discards them.

    On a cluster with a batch system: "sweep ... -o OUTPUT --shard K/N" for every K, as a job array, then
    "sweep ... -o OUTPUT --resume". Or "sweep ... --plan N -o FOLDER" once, "sweep --block K FOLDER" for every block,
    then "sweep --merge FOLDER -o OUTPUT". A sweep that is neither a block nor a merge needs --alpha.
    """
    part = in_blocks(context)
    if part == "block":
        return solve_block(problem_file, needed(context, "block", block), workers, allow_unconverged, quiet)
    output = needed(context, "output", output)
    if part == "merge":
        return merge_plan(problem_file, output, force, allow_unconverged, quiet)
    alpha, settings = sample_complexities("alpha", needed(context, "alpha", alpha)), SolverSettings(**solver)
    omega = None if omega is None else omegas("omega", omega)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    check_scheduler(scheduler, workers)
    check_shard(shard)
    if plan is not None:
        arguments.whole("plan", plan, 1)
        check_folder(output)
    elif not (resume or resume_fitting):  # what is there may be the finished sweep
        check_dataset(output, force)
    fields = varied(vary, changes, omega)
    problem = problem_of(problem_file, changes)
    if not fields:
        solvable(problem, () if "all" in branch else branch)
    grid: dict[str, Any] = {"problem": problem, "alpha": alpha, "omega": omega, "branch": branch}
    grid |= {"fields": fields, "settings": settings}
    if plan is not None:
        return make_plan(grid, plan, output, force, quiet)
    again = "run the same command again" + (" with --resume" if shard is None else "")
    with interruption_told(lambda: kept_lines(output, again)):
        ds = grids.sweep(
            **grid,
            refine=refine,
            workers=workers,
            scheduler=scheduler,
            shard=shard,
            output=output,
            resume="fitting" if resume_fitting else resume,
            force=force,
            progress=not quiet,
        )
    if not quiet:
        share = "" if shard is None else f"share {shard}: "
        click.echo(f"{output}: {share}{counts.status_counts(ds, problem)}")
    return ended(outcomes.of_points(ds), allow_unconverged)


@click.command(cls=ManyValues)
@problem_options
@click.option(
    "--omega", type=NUMBERS, multiple=True, help="Weights of the positional part; the problem's own by default."
)
@click.option(
    "--vary",
    metavar="FIELD=VALUES",
    multiple=True,
    help="Instead: values of another field, as tokens.sigma=0.3:0.7:5; one field only.",
)
@click.option("--alpha", type=(float, float), metavar="LOW HIGH", help="Range searched.")
@click.option("--transitions", is_flag=True, help="Locate spinodals and the onsets of theta and m as well.")
@result_options
def thresholds(
    problem_file: Path | None,
    changes: tuple[str, ...],
    omega: tuple[tuple[float, ...], ...],
    vary: tuple[str, ...],
    alpha: tuple[float, float] | None,
    transitions: bool,
    result: Result,
) -> int:
    """Find alpha_c and alpha_l, and with --transitions where the branches begin.

    alpha_c is the sample complexity above which the semantic branch has the lower training loss, alpha_l that above
    which it has a lower test error than the linear predictor.
    """
    fields = varied(vary, changes, omega or None)
    if len(fields) > 1:
        raise ProblemError(
            "vary",
            f"--vary names {len(fields)} fields, {', '.join(fields)}: thresholds vary along one field, give one.",
        )
    wanted = omegas("omega", [value for values in omega for value in values]) if omega else None
    if wanted is not None and fields:
        raise ProblemError("vary", "--omega and --vary cannot both be given: thresholds vary along one field.")
    result.check()
    problem = solvable(problem_of(problem_file, changes), ("semantic", "positional"))
    ds = critical.thresholds(
        problem, alpha, wanted, fields=fields or None, transitions=transitions, progress=not result.quiet
    )
    result.deliver(ds, thresholds_table)
    tell(result, outcomes.of_thresholds(ds))
    return 0
