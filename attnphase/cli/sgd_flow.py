"""Commands about the way to a minimum: trajectories, stationary points, basins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnphase import arguments
from attnphase.cli.inputs import checked_checkpoint, problem_of
from attnphase.cli.options import (
    allow_unconverged_option,
    problem_options,
    result_options,
)
from attnphase.cli.outcomes import Result, ended, interruption_told, kept_file
from attnphase.cli.values import NUMBERS
from attnphase.errors import ProblemError
from attnphase.files.checkpoints import BASINS
from attnphase.files.writing import check_data, check_figure
from attnphase.fixed_points.settings import check_affordable, omegas
from attnphase.lazy import loaded_on_use
from attnphase.theories.sgd_flow.noise import of_fields
from attnphase.theories.sgd_flow.settings import FlowSettings, FlowStatus

with loaded_on_use(__name__):
    from attnphase import figures
    from attnphase.data import files as netcdf
    from attnphase.figures import sgd_flow as drawn
    from attnphase.theories.sgd_flow import run, text

if TYPE_CHECKING:
    from attnphase.problem import Problem

__all__ = ["basins", "sgd_flow", "stationary"]

_rate_option = click.option(
    "--learning-rate",
    default=FlowSettings.learning_rate,
    show_default=True,
    help="Of one-pass SGD; 0 is gradient flow.",
)
_batch_option = click.option("--batch", default=FlowSettings.batch, show_default=True, help="Fresh samples of a step.")


@click.command("sgd-flow")
@problem_options
@click.option(
    "--start",
    multiple=True,
    default=("semantic",),
    show_default=True,
    help="Sizes as semantic=0.3,positional=0.3,noise=0.6; may be given several times.",
)
@_rate_option
@_batch_option
@click.option("--until", default=FlowSettings.until, show_default=True, help="Time: steps over d, times eta of flow.")
@click.option("--records", default=FlowSettings.records, show_default=True, help="Times in the result.")
@click.option("--tolerance", default=FlowSettings.tolerance, show_default=True, help="Of the integration in time.")
@result_options
def sgd_flow(
    problem_file: Path | None,
    changes: tuple[str, ...],
    start: tuple[str, ...],
    learning_rate: float,
    batch: int,
    until: float,
    records: int,
    tolerance: float,
    result: Result,
) -> int:
    """Follow the weights under one-pass SGD or gradient flow, in the limit of high dimension.

    Exit code 1 if the weights run away. A start that ends at a saddle has the status at_saddle, and is named.
    """
    settings = FlowSettings(learning_rate, batch, until, records, tolerance)
    starts = run.starts_of(start)
    result.check()
    problem = _moving(settings, problem_file, changes)
    ds = run.sgd_flow(
        problem,
        starts[0] if len(starts) == 1 else starts,
        learning_rate,
        until,
        batch=batch,
        records=records,
        tolerance=tolerance,
        progress=not result.quiet,
    )
    result.deliver(ds, text.flow_table)
    for _, sentence in text.of_flow(ds):
        click.echo(f"attnphase: {sentence}", err=True)
    return int(bool((ds["status"] == FlowStatus.diverged).any()))


@click.command()
@problem_options
@_rate_option
@_batch_option
@click.option("--starts", type=int, default=12, show_default=True, help="Random starts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random starts.")
@result_options
def stationary(
    problem_file: Path | None,
    changes: tuple[str, ...],
    learning_rate: float,
    batch: int,
    starts: int,
    seed: int,
    result: Result,
) -> int:
    """Find the stationary points of the dynamics, stable or not, with their eigenvalues.

    Exit code 1 if none is found.
    """
    settings = FlowSettings(learning_rate, batch)
    run.starts_count(starts)
    arguments.whole("seed", seed, 0)
    result.check()
    problem = _moving(settings, problem_file, changes)
    ds = run.stationary(problem, learning_rate, batch=batch, starts=starts, seed=seed, progress=not result.quiet)
    result.deliver(ds, text.stationary_table)
    return 0


@click.command()
@problem_options
@click.option("--omega", type=NUMBERS, default="0:0.5:6", show_default=True, help="START:STOP:COUNT, or numbers.")
@click.option("--scale", type=NUMBERS, default="0.1,0.2,0.4,0.8", show_default=True, help="Sizes of the starts.")
@click.option("--angle", type=NUMBERS, default="0:90:5", show_default=True, help="Directions in degrees.")
@click.option("--noise", type=float, default=0.0, show_default=True, help="Standard deviation of the start's entries.")
@_rate_option
@_batch_option
@click.option("--until", type=float, default=20_000.0, show_default=True, help="Time at which all ends.")
@click.option(
    "--figure",
    "figure_file",
    type=click.Path(path_type=Path),
    help="Draw the boundaries: .png, .pdf or what else matplotlib writes.",
)
@click.option("--runs", type=click.Path(path_type=Path), help="netCDF file of SGD runs, drawn with the boundaries.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where every end found is kept; beside the output by default.",
)
@allow_unconverged_option
@result_options
def basins(
    problem_file: Path | None,
    changes: tuple[str, ...],
    omega: tuple[float, ...],
    scale: tuple[float, ...],
    angle: tuple[float, ...],
    noise: float,
    learning_rate: float,
    batch: int,
    until: float,
    figure_file: Path | None,
    runs: Path | None,
    checkpoint: Path | None,
    result: Result,
    allow_unconverged: bool,
) -> int:
    """Find which stationary point starts between encodings (0 degrees) and teacher (90) lead to, and when.

    An interrupted command goes on where it stopped when it is given again, with the same numbers. Exit code 1 if a
    start is not at rest when the time is over, or runs away.
    """
    settings = FlowSettings(learning_rate, batch, until)
    omega, scale, angle, noise = omegas("omega", omega), run.scales_of(scale), run.angles_of(angle), run.noise_of(noise)
    if runs is not None and figure_file is None:
        raise ProblemError("runs", "--runs are drawn in the figure of the boundaries: name a --figure.")
    if any(change.partition("=")[0].strip() == "teacher.omega" for change in changes):
        raise ProblemError("set", "basins varies teacher.omega: give its values with --omega, not with --set.")
    if figure_file is not None:
        check_figure(figure_file, result.force)
        if result.output is not None and figure_file.absolute() == result.output.absolute():
            raise ProblemError("figure", "--figure and --output name one file: name two.")
    if runs is not None:
        check_data(runs)
    checkpoint = checked_checkpoint(BASINS, checkpoint, result.output, result.force, figure_file)
    problem = _moving(settings, problem_file, changes)
    beside = None
    if runs is not None:
        beside = netcdf.load_dataset(runs)
        drawn.starts_of(beside)  # refused before anything is followed
    asked: dict[str, Any] = {"noise": noise, "learning_rate": learning_rate, "batch": batch, "until": until}
    with interruption_told(lambda: kept_file(checkpoint)):
        ds = run.basins(problem, omega, scale, angle, checkpoint=checkpoint, progress=not result.quiet, **asked)
    result.deliver(ds, text.basins_table)  # first: nothing that drawing meets loses the data
    if checkpoint is not None and result.output is not None:
        checkpoint.unlink(missing_ok=True)
    if figure_file is not None:
        figures.save_figure(figures.basins_figure(ds, beside), figure_file)
    return ended(text.of_basins(ds), allow_unconverged)


def _moving(settings: FlowSettings, problem_file: Path | None, changes: tuple[str, ...]) -> Problem:
    """The problem, if it has a dynamics."""
    problem = problem_of(problem_file, changes)
    settings.check(problem)
    check_affordable(of_fields(problem))
    return problem
