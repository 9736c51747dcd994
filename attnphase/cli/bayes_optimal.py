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
    force_option,
    json_option,
    output_option,
    problem_options,
    quiet_option,
)
from attnphase.cli.outcomes import convergence, deliver, interruption_told, kept_file
from attnphase.files.checkpoints import LIMITS
from attnphase.fixed_points.settings import sample_complexities
from attnphase.lazy import loaded_on_use
from attnphase.theories.bayes_optimal.request import channel_of, check_varied

with loaded_on_use(__name__):
    from attnphase.theories.bayes_optimal import run, text

__all__ = ["optimal"]


@click.command()
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
    help="What is observed of one token: sign, absolute, linear, a formula of k, or one of k and y, the likelihood of a"
    " label y = 1 or -1.",
)
@click.option(
    "--start",
    "starts",
    type=click.Choice(["uninformed", "informed"]),
    multiple=True,
    default=("uninformed", "informed"),
    show_default=True,
)
@click.option("--thresholds", is_flag=True, help="Locate weak recovery, jumps and perfect recovery as well.")
@click.option("--max-nodes", type=int, help="Of an integration rule, at most.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where every point found is kept; beside the output by default.",
)
@output_option(help="Write a netCDF file.")
@force_option
@json_option
@allow_unconverged_option
@quiet_option
def optimal(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    vary: tuple[str, ...],
    channel: str | None,
    starts: tuple[str, ...],
    thresholds: bool,
    max_nodes: int | None,
    checkpoint: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    allow_unconverged: bool,
    quiet: bool,
) -> int:
    """Compute the Bayes-optimal error: of a learner who knows all but the teacher's weights.

    An interrupted command goes on where it stopped when it is given again, with the same numbers.
    """
    alpha = sample_complexities("alpha", alpha)
    if max_nodes is not None:
        arguments.whole("max_nodes", max_nodes, 2**5)
    checkpoint = checked_checkpoint(LIMITS, checkpoint, output, force)
    problem = problem_of(problem_file, changes)
    fields = varied(vary, changes, None)
    channel_of(problem, channel)
    check_varied(fields)
    asked: dict[str, Any] = {"fields": fields, "channel": channel, "start": starts, "thresholds": thresholds}
    with interruption_told(lambda: kept_file(checkpoint)):
        ds = run.optimal(problem, alpha, max_nodes=max_nodes, checkpoint=checkpoint, progress=not quiet, **asked)
    deliver(ds, text.optimal_table, output, force, as_json, quiet)
    if checkpoint is not None and output is not None:
        checkpoint.unlink(missing_ok=True)
    if not (as_json or quiet):
        for line in text.thresholds_lines(ds):
            click.echo(line)
    return convergence(ds, allow_unconverged)
