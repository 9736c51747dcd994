"""Commands that train students at finite dimension, and compare them with theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase.cli.inputs import checked_checkpoint, problem_of
from attnphase.cli.options import (
    allow_unconverged_option,
    alphas_option,
    device_option,
    force_option,
    json_option,
    problem_options,
    quiet_option,
    result_options,
)
from attnphase.cli.outcomes import Result, ended, files_named, interruption_told
from attnphase.cli.values import NUMBERS, WHOLE_NUMBERS
from attnphase.data.text import runs_table, terminal_width
from attnphase.experiments.optimizers.kinds import OPTIMIZERS, suited
from attnphase.files.checkpoints import RUNS
from attnphase.files.writing import check_data, check_figure
from attnphase.lazy import loaded_on_use
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import BRANCHES

with loaded_on_use(__name__):
    from attnphase import figures as plots
    from attnphase.checks import comparison as comparing
    from attnphase.data import files as netcdf
    from attnphase.data import outcomes
    from attnphase.experiments import plan as plans
    from attnphase.experiments import simulate as simulation
    from attnphase.paper import catalogue, run
    from attnphase.theories.bayes_optimal import text as posterior_text

__all__ = ["compare", "experiment", "simulate"]

# they train students on a training set
_FOR_SAMPLES = tuple(name for name, kind in OPTIMIZERS.items() if not (kind.one_pass or kind.posterior))


@click.command()
@problem_options
@alphas_option
@click.option(
    "--start",
    "starts",
    multiple=True,
    help=f"{', '.join(BRANCHES)} (semantic), or sizes as semantic=0.3,noise=0.6; of bayes-gamp uninformed or informed"
    " (uninformed); may be given several times.",
)
@click.option("--dimension", type=WHOLE_NUMBERS, default="1000", show_default=True, help="One or more, with commas.")
@click.option("--seeds", type=int, default=8, show_default=True, help="Random instances at every point.")
@click.option(
    "--optimizer",
    type=click.Choice(tuple(OPTIMIZERS)),
    help="lbfgs by default; fista where the regulariser is not a ridge.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--steps", type=int, help="Largest number of steps; gd makes 5000 and adam 2500, as in the paper.")
@click.option(
    "--tolerance",
    type=float,
    help="On the gradient over its natural size; 1e-8 for lbfgs, fista, gamp; of bayes-gamp's step, 1e-6.",
)
@click.option("--learning-rate", type=float, help="Of gd (0.15), adam (0.01), fista and sgd (1).")
@click.option("--batch", type=int, help="Fresh samples of a step of sgd (1).")
@click.option("--damping", type=float, help="Share of the old iterate that gamp and bayes-gamp keep (0.5).")
@click.option(
    "--channel",
    help="What bayes-gamp observes of one token: sign, absolute, linear, a formula of k, or one of k and y, the"
    " likelihood of a label y = 1 or -1.",
)
@click.option("--trajectory", type=int, default=0, help="Steps between two records of the trajectory; 0 for none.")
@click.option("--test-samples", type=int, default=1000, show_default=True, help="Fresh samples for the test error.")
@device_option
@click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64", show_default=True)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where finished runs and the state of the running ones are kept; beside the output by default.",
)
@allow_unconverged_option
@result_options
def simulate(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    starts: tuple[str, ...],
    dimension: tuple[int, ...],
    optimizer: str | None,
    checkpoint: Path | None,
    result: Result,
    allow_unconverged: bool,
    **settings: Any,
) -> int:
    """Train students at finite dimension, or run Bayes-optimal message passing (bayes-gamp).

    An interrupted command goes on where it stopped when it is given again, with the same numbers. Exit code 1 if a run
    diverged or did not reach its tolerance.
    """
    asked: dict[str, Any] = {"alpha": alpha, "start": starts or None, "dimension": dimension}
    asked |= settings | {"optimizer": optimizer}
    plan = plans.Plan.of(**asked)
    checkpoint = checked_checkpoint(RUNS, checkpoint, result.output, result.force)
    problem = problem_of(problem_file, changes)
    if optimizer is None:
        asked["optimizer"] = suited("lbfgs", problem)
        plan = plans.Plan.of(**asked)
    plan.check(problem)
    with interruption_told(lambda: _kept_runs(checkpoint)):
        ds = simulation.simulate(problem=problem, checkpoint=checkpoint, progress=not result.quiet, **asked)
    result.deliver(ds, posterior_text.posterior_table if plan.settings.kind.posterior else runs_table)
    if checkpoint is not None and result.output is not None:
        checkpoint.unlink(missing_ok=True)
    return ended(outcomes.of_runs(ds), allow_unconverged)


def _kept_runs(checkpoint: Path | None) -> str:
    if checkpoint is None:
        return "nothing is kept; name a --checkpoint to keep it"
    return f"what was computed is kept in {checkpoint}; run the same command again to go on"


@click.command()
@click.argument("name")
@click.option("--size", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--alpha", type=NUMBERS, help="Other sample complexities than the size's.")
@click.option("--dimension", type=WHOLE_NUMBERS, help="Other dimensions, with commas.")
@click.option("--seeds", type=int, help="Another number of instances.")
@click.option("--optimizer", type=click.Choice(_FOR_SAMPLES), help="Another optimiser.")
@click.option("--steps", type=int, help="Another number of steps.")
@click.option("--device", help="cpu or cuda.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the results."
)
@force_option
@quiet_option
def experiment(name: str, size: str, seed: int, output: Path, force: bool, quiet: bool, **overrides: Any) -> int:
    """Run an experiment of the paper, and compare it with the theory.

    NAME is fig2, fig3, fig7, correlated, rank2, untied, values, adam, agreement, agreement-rank2 or agreement-lasso.
    Writes two datasets, a figure and a text. An interrupted command goes on when it is given again. docs/experiments.md
    says what each takes.
    """
    given = {key: value for key, value in overrides.items() if value is not None}
    asked = catalogue.planned(name, size, seed=seed, overrides=given)
    catalogue.check_results(asked.experiment, output, force)
    with interruption_told(lambda: f"finished runs are kept in {output}; run the same command again to go on"):
        run.run_experiment(
            asked,
            output,
            force=force,
            progress=not quiet,
            say=lambda text: None if quiet else click.echo(text),
            width=terminal_width(),
        )
    return 0


@click.command()
@click.argument("theory", type=click.Path(path_type=Path))
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    help="The experiment's problem, where it names a function of a module.",
)
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of that problem.")
@click.option(
    "--figure",
    "figure_file",
    type=click.Path(path_type=Path),
    help="Draw the comparison: .png, .pdf or what else matplotlib writes.",
)
@force_option
@json_option
@quiet_option
def compare(
    theory: Path,
    experiment: Path,
    problem_file: Path | None,
    changes: tuple[str, ...],
    figure_file: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Compare experiments with theory, in standard errors.

    With several dimensions in the experiment, a correction b/d is fitted and its limit compared.
    """
    if figure_file is not None:
        check_figure(figure_file, force)
    for path in (theory, experiment):
        check_data(path)
    problem = problem_of(problem_file, changes) if problem_file is not None or changes else None
    datasets = netcdf.load_dataset(theory), netcdf.load_dataset(experiment)
    with files_named(theory=[theory], experiment=[experiment]):
        comparison = comparing.compare(*datasets, problem=problem, progress=not quiet)
    if figure_file is not None:
        with progress_line(not quiet, "drawing"):
            whole = isinstance(comparison, comparing.Comparison)
            plots.save_figure(
                plots.comparison_figure(comparison) if whole else plots.trajectory_figure(comparison), figure_file
            )
    if as_json:
        click.echo(comparison.to_json())
    elif not quiet:
        click.echo(comparison.text(terminal_width()))
    return 0
