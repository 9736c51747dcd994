"""The command that computes the Bayes-optimal error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase import arguments
from attnphase.cli.inputs import checked_checkpoint, problem_of, varied
from attnphase.cli.options import (
    allow_unconverged_option,
    alphas_option,
    problem_options,
    result_options,
)
from attnphase.cli.outcomes import Result, ended, interruption_told, kept_file
from attnphase.files.checkpoints import LIMITS
from attnphase.fixed_points.settings import SolverSettings, sample_complexities
from attnphase.lazy import loaded_on_use
from attnphase.theories.bayes_optimal.request import STARTS, channel_of, check_varied

with loaded_on_use(__name__):
    from attnphase.data import outcomes
    from attnphase.theories.bayes_optimal import run, text

__all__ = ["bayes_optimal"]


@click.command("bayes-optimal")
@problem_options
@alphas_option
@click.option(
    "--vary",
    metavar="FIELD=VALUES",
    multiple=True,
    help="Vary a field of the problem, as teacher.omega=0:0.5:6; may be given several times.",
)
@click.option(
    "--channel",
    help="What is observed: of one token sign, absolute or linear; of up to three a formula of k, or one of k and y,"
    " the likelihood of a label y = 1 or -1.",
)
@click.option(
    "--start",
    "starts",
    type=click.Choice(STARTS),
    multiple=True,
    default=("uninformed", "informed"),
    show_default=True,
)
@click.option(
    "--thresholds", is_flag=True, help="Locate weak recovery, specialisation, jumps and perfect recovery as well."
)
@click.option("--max-nodes", type=int, help="Largest number of nodes of an integration rule.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where every point found is kept; beside the output by default.",
)
@allow_unconverged_option
@result_options
def bayes_optimal(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    vary: tuple[str, ...],
    channel: str | None,
    starts: tuple[str, ...],
    thresholds: bool,
    max_nodes: int | None,
    checkpoint: Path | None,
    result: Result,
    allow_unconverged: bool,
) -> int:
    """Compute the Bayes-optimal error: of a learner who knows all but the teacher's weights.

    An interrupted command goes on where it stopped when it is given again, with the same numbers.
    """
    alpha = sample_complexities("alpha", alpha)
    settings = None
    if max_nodes is not None:
        settings = SolverSettings(max_nodes=arguments.whole("max_nodes", max_nodes, 2**5))
    checkpoint = checked_checkpoint(LIMITS, checkpoint, result.output, result.force)
    problem = problem_of(problem_file, changes)
    fields = varied(vary, changes, None)
    channel_of(problem, channel)
    check_varied(fields)
    asked: dict[str, Any] = {"fields": fields, "channel": channel, "start": starts, "thresholds": thresholds}
    with interruption_told(lambda: kept_file(checkpoint)):
        ds = run.bayes_optimal(
            problem, alpha, settings=settings, checkpoint=checkpoint, progress=not result.quiet, **asked
        )
    result.deliver(ds, text.optimal_table)
    if checkpoint is not None and result.output is not None:
        checkpoint.unlink(missing_ok=True)
    if not (result.as_json or result.quiet):
        for line in text.thresholds_lines(ds):
            click.echo(line)
    return ended(outcomes.of_points(ds), allow_unconverged)
