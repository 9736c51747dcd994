"""The command line.  Everything heavy is imported inside the commands, so that ``--help`` is quick.

Results go to standard output or a file, everything else to standard error.  Exit codes: 0 done, 1 not converged, 2 bad
input or a result that cannot be written, 130 interrupted; how the process ends otherwise, `attnphase.__main__` says.

Every command checks in one order, so that a refusal is quick: options, then the output, then the problem, and only then
imports what takes long.
"""

from __future__ import annotations

import functools
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from attnphase import arguments
from attnphase.errors import AttnphaseError, ProblemError
from attnphase.files import check_figure, check_folder, check_input, check_output
from attnphase.settings import (
    BRANCHES,
    OPTIMIZERS,
    SolverSettings,
    omegas,
    sample_complexities,
    sample_complexity,
)

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.problem import Problem

__all__ = ["format_value", "main"]

_LONGEST = 600  # characters of a sentence
_OMEGA_OF_FIG2 = 0.3
_OMEGAS_SHOWN = (0.2, 0.3, 0.4)


class _Program(click.Group):
    """A group whose every expected error is one sentence on standard error."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and end the process unless `standalone_mode` is false."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        warnings.showwarning = _show_warning
        try:
            sys.exit(super().main(*args, standalone_mode=False, **extra) or 0)
        except click.ClickException as error:
            if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(error.exit_code)
            _end(error.format_message())
        except click.Abort as abort:  # what click makes of Ctrl-C, and of the end of a file
            if isinstance(abort.__cause__, EOFError):
                raise abort.__cause__ from None
            click.echo("attnphase: interrupted.", err=True)
            sys.exit(130)
        except OSError as error:
            _end(f"{error.filename}: {error.strerror}." if error.filename else str(error))
        except AttnphaseError as error:
            _end(str(error))


def _end(sentence: str) -> NoReturn:
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(sentence.split()))
    if len(text) > _LONGEST:  # of somebody's input
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    click.echo(f"attnphase: error: {text}{'' if text.endswith(('.', '?', '!')) else '.'}", err=True)
    sys.exit(2)


def _show_warning(message: Warning | str, *_: Any) -> None:
    click.echo(f"attnphase: warning: {message}", err=True)


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        from attnphase import __version__

        click.echo(f"attnphase {__version__}")
        ctx.exit()


class _ManyValues(click.Command):
    """A command whose option ``--omega`` takes all the numbers that follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option's name before each of its values."""
        spelt: list[str] = []
        open_ = False
        for arg in args:
            if open_ and spelt[-1] != "--omega" and _NUMBERS.fits(arg):
                spelt.append("--omega")
            open_ = arg.startswith("--omega") or (open_ and _NUMBERS.fits(arg))
            spelt.append(arg)
        return super().parse_args(ctx, spelt)


class _Numbers(click.ParamType):
    """START:STOP:COUNT, or numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            if ":" not in value:
                return tuple(float(part) for part in value.split(","))
            start, stop, count = value.split(":")
            limits, size = (float(start), float(stop)), int(count)
        except ValueError:
            self.fail(f"{value!r} is neither START:STOP:COUNT nor numbers with commas between them.", param, ctx)
        if not all(map(math.isfinite, limits)) or not 1 <= size <= 10**6:
            self.fail(f"{value!r} needs finite START and STOP, and a COUNT from 1 to 1000000.", param, ctx)
        import numpy as np

        return tuple(np.linspace(*limits, size).tolist())

    def fits(self, value: str) -> bool:
        """Whether it begins like numbers."""
        try:
            float(value.replace(":", ",").split(",")[0])
        except ValueError:
            return False
        return True


_NUMBERS = _Numbers()


class _WholeNumbers(click.ParamType):
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a whole number, nor several with commas between them.", param, ctx)


_WHOLE_NUMBERS = _WholeNumbers()


class _Sequence(_WholeNumbers):
    """Symbols as letters, A for the first, or as whole numbers from 0 with commas between them."""

    name = "symbols"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers of the symbols."""
        if isinstance(value, str) and value.isascii() and value.isalpha():
            return tuple(ord(letter) - ord("A") for letter in value.upper())
        return super().convert(value, param, ctx)


# ------------------------------------------------------------------------------------------------------------ options


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


_problem_options = _options(
    click.argument("problem_file", metavar="[PROBLEM.TOML]", required=False, type=click.Path(path_type=Path)),
    click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of the problem."),
)

_solver_options = _options(
    click.option("--method", default="newton", help="newton (default), anderson or damped."),
    click.option("--tolerance", type=float, help="On the undamped relative residual."),
    click.option("--max-maps", type=int, help="Evaluations of the state-evolution map, at most."),
    click.option("--backend", default="numba", help="Of the local problem: numba (default), torch or cuda."),
)

_allow_unconverged = click.option(
    "--allow-unconverged", is_flag=True, help="Exit with 0 also if a point did not converge."
)
_force = click.option("--force", is_flag=True, help="Replace an existing output file.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_quiet = click.option("--quiet", is_flag=True, help="No progress and no table.")
_workers = click.option("--workers", type=int, help="Processes; as many as cores by default.")


def _output(**settings: Any) -> Callable[[Any], Any]:
    return click.option("-o", "--output", type=click.Path(path_type=Path), **settings)


def _problem(problem_file: Path | None, changes: Sequence[str]) -> Problem:
    from attnphase.problem import Problem, load_problem, parse_setting

    problem = Problem() if problem_file is None else load_problem(problem_file)
    return problem.with_fields(dict(map(parse_setting, changes))) if changes else problem


def _solvable(problem: Problem, branches: Sequence[str]) -> Problem:
    """The problem, if it has these branches and its integration is affordable."""
    from attnphase.refinement import check_affordable
    from attnphase.starts import initial_overlaps

    check_affordable(problem)
    for branch in branches:
        initial_overlaps(problem, branch)
    return problem


def _settings(method: str, tolerance: float | None, max_maps: int | None, backend: str) -> SolverSettings:
    given = {"method": method, "tolerance": tolerance, "max_maps": max_maps, "backend": backend}
    return SolverSettings(**{name: value for name, value in given.items() if value is not None})


# ----------------------------------------------------------------------------------------------------------- commands


@click.group(cls=_Program, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it and exit."
)
def main() -> None:
    """Phase diagrams of solvable attention models.

    Without a PROBLEM.TOML the problem is the paper's (arXiv:2402.03902).
    """


@main.command()
@_problem_options
@click.option("--alpha", type=float, required=True, help="Sample complexity n/d.")
@click.option("--branch", type=click.Choice([*BRANCHES, "all"]), default="semantic", show_default=True)
@_solver_options
@_output(help="Write a netCDF file.")
@_force
@_json
@_allow_unconverged
@_quiet
def solve(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    branch: str,
    method: str,
    tolerance: float | None,
    max_maps: int | None,
    backend: str,
    output: Path | None,
    force: bool,
    as_json: bool,
    allow_unconverged: bool,
    quiet: bool,
) -> int:
    """Solve one problem at one sample complexity."""
    from dataclasses import asdict

    alpha, settings = sample_complexity("alpha", alpha), _settings(method, tolerance, max_maps, backend)
    if output is not None:
        check_output(output, force)
    problem = _solvable(_problem(problem_file, changes), () if branch == "all" else (branch,))
    from attnphase.dataset import save_dataset, to_json
    from attnphase.solve import solve as solve_problem

    ds = solve_problem(problem, alpha, branch, **asdict(settings))
    if output is not None:
        save_dataset(_with_command(ds), output, force)
    if as_json:
        click.echo(to_json(ds))
    elif not quiet:
        _print_points(ds)
    return _convergence(ds, allow_unconverged)


@main.command()
@_problem_options
@click.option("--alpha", type=_NUMBERS, required=True, help="START:STOP:COUNT, or numbers with commas between them.")
@click.option("--omega", type=_NUMBERS, help="Likewise; the problem's own by default.")
@click.option(
    "--branch",
    "branches",
    type=click.Choice(BRANCHES),
    multiple=True,
    default=("semantic", "positional"),
    show_default=True,
)
@_solver_options
@_output(required=True, help="netCDF file for the result.")
@_force
@_workers
@click.option("--resume", is_flag=True, help="Take up the finished lines of an interrupted sweep.")
@_allow_unconverged
@_quiet
def sweep(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    omega: tuple[float, ...] | None,
    branches: tuple[str, ...],
    method: str,
    tolerance: float | None,
    max_maps: int | None,
    backend: str,
    output: Path,
    force: bool,
    workers: int | None,
    resume: bool,
    allow_unconverged: bool,
    quiet: bool,
) -> int:
    """Solve a problem on a grid, on all cores.

    Finished lines are kept beside the output until it is written: after Ctrl-C or a crash, --resume takes them up.
    """
    alpha, settings = sample_complexities("alpha", alpha), _settings(method, tolerance, max_maps, backend)
    omega = None if omega is None else omegas("omega", omega)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    check_output(output, force)
    problem = _solvable(_problem(problem_file, changes), branches)
    ds = _sweep(
        "run the same command again with --resume",
        problem=problem,
        alpha=alpha,
        omega=omega,
        branches=branches,
        settings=settings,
        workers=workers,
        output=output,
        resume=resume,
        force=force,
        progress=not quiet,
    )
    if not quiet:
        click.echo(f"{output}: {_status_counts(ds)}")
    return _convergence(ds, allow_unconverged)


@main.command()
@_problem_options
@click.option("--alpha", type=_NUMBERS, required=True, help="START:STOP:COUNT, or numbers with commas between them.")
@click.option(
    "--start",
    "starts",
    type=click.Choice(BRANCHES),
    multiple=True,
    default=("semantic",),
    show_default=True,
    help="Where training starts; may be given several times.",
)
@click.option("--dimension", type=_WHOLE_NUMBERS, default="1000", show_default=True, help="One or more, with commas.")
@click.option("--seeds", type=int, default=8, show_default=True, help="Random instances at every point.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="lbfgs", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--steps", type=int, help="Largest number of steps; gd makes 5000 and adam 2500, as in the paper.")
@click.option("--tolerance", type=float, help="On the gradient's norm / sqrt(d); 1e-8 for lbfgs, fista, gamp.")
@click.option("--learning-rate", type=float, help="Of gd (0.15), adam (0.01) and fista.")
@click.option("--damping", type=float, help="Share of the old iterate that gamp keeps (0.5).")
@click.option("--trajectory", type=int, default=0, help="Steps between two records of the trajectory; 0 for none.")
@click.option("--test-samples", type=int, default=1000, show_default=True, help="Fresh samples for the test error.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--dtype", type=click.Choice(["float64", "float32"]), default="float64", show_default=True)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where finished runs and the state of the running ones are kept; beside the output by default.",
)
@_output(help="Write a netCDF file.")
@_force
@_json
@_allow_unconverged
@_quiet
def simulate(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    starts: tuple[str, ...],
    dimension: tuple[int, ...],
    optimizer: str,
    checkpoint: Path | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    allow_unconverged: bool,
    quiet: bool,
    **settings: Any,
) -> int:
    """Train students at finite dimension.

    An interrupted command goes on where it stopped when it is given again, with the same numbers. Exit code 1 if a run
    diverged or did not reach its tolerance.
    """
    from attnphase.experiments.plan import Plan

    asked: dict[str, Any] = {"alpha": alpha, "start": starts, "dimension": dimension, "optimizer": optimizer}
    asked |= settings
    plan = Plan.of(**asked)
    if output is not None:
        check_output(output, force)
        checkpoint = checkpoint or output.with_name(f"{output.name}.checkpoint")
    if checkpoint is not None and not checkpoint.exists():
        check_output(checkpoint)
    problem = _problem(problem_file, changes)
    plan.check(problem)
    from attnphase.dataset import save_dataset, to_json

    ds = _simulate(problem=problem, checkpoint=checkpoint, progress=not quiet, **asked)
    if output is not None:
        save_dataset(_with_command(ds), output, force)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
    if as_json:
        click.echo(to_json(ds))
    elif not quiet:
        _print_runs(ds)
    return _ended(ds, allow_unconverged)


@main.command()
@click.argument("name")
@click.option("--size", type=click.Choice(["quick", "full"]), default="quick", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--alpha", type=_NUMBERS, help="Other sample complexities than the size's.")
@click.option("--dimension", type=_WHOLE_NUMBERS, help="Other dimensions, with commas.")
@click.option("--seeds", type=int, help="Another number of instances.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="Another optimiser.")
@click.option("--steps", type=int, help="Another number of steps.")
@click.option("--device", help="cpu or cuda.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the results."
)
@_force
@_quiet
def experiment(name: str, size: str, seed: int, output: Path, force: bool, quiet: bool, **overrides: Any) -> int:
    """Run an experiment of the paper, with theory beside it.

    NAME is fig2, fig3, fig7, correlated, rank2, untied, values, adam, agreement, agreement-rank2 or agreement-lasso.
    Writes two datasets, a figure and a text. An interrupted command goes on when it is given again. docs/experiments.md
    says what each takes.
    """
    from attnphase.experiments.catalogue import check_results, planned

    given = {key: value for key, value in overrides.items() if value is not None}
    check_results(planned(name, size, seed=seed, overrides=given)[0], output, force)
    from attnphase.experiments.paper import run_experiment

    try:
        run_experiment(
            name,
            output,
            size,
            seed=seed,
            overrides=given,
            force=force,
            progress=not quiet,
            say=lambda text: None if quiet else click.echo(text),
        )
    except KeyboardInterrupt:
        click.echo(
            f"attnphase: interrupted: finished runs are kept in {output}; run the same command again to go on.",
            err=True,
        )
        raise click.exceptions.Exit(130) from None
    return 0


@main.command()
@click.argument("theory", type=click.Path(path_type=Path))
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("--figure", "figure_file", type=click.Path(path_type=Path), help="Draw the comparison, .png or .pdf.")
@_force
@_json
@_quiet
def compare(theory: Path, experiment: Path, figure_file: Path | None, force: bool, as_json: bool, quiet: bool) -> int:
    """Hold experiments against theory, in standard errors.

    With several dimensions in the experiment, a correction b/d is fitted and its limit compared.
    """
    if figure_file is not None:
        check_figure(figure_file, force)
    for path in (theory, experiment):
        check_input(path)
    from attnphase.compare import compare as compare_datasets
    from attnphase.dataset import load_dataset

    comparison = compare_datasets(load_dataset(theory), load_dataset(experiment))
    if figure_file is not None:
        from attnphase.figures import comparison_figure, save_figure

        save_figure(comparison_figure(comparison), figure_file)
    if as_json:
        click.echo(comparison.to_json())
    elif not quiet:
        click.echo(comparison.text())
    return 0


@main.command()
@_problem_options
@click.option("--alpha", type=float, default=1.5, show_default=True, help="Sample complexity of the point checked.")
@click.option("--branch", type=click.Choice(BRANCHES), default="semantic", show_default=True)
@click.option("--experiment/--no-experiment", default=True, help="Train small instances too, if PyTorch is there.")
@_json
@_quiet
def check(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    branch: str,
    experiment: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Check a problem's equations, code and numbers against each other.

    Exit code 1 if a check fails.
    """
    alpha = sample_complexity("alpha", alpha)
    problem = _solvable(_problem(problem_file, changes), (branch,))
    from rich.console import Console

    from attnphase.check import check as check_problem

    with Console(stderr=True, quiet=quiet).status("solving") as status:
        report = check_problem(
            problem,
            alpha,
            branch,
            experiment=experiment,
            on_check=lambda one: status.update(f"done: {one.name}"),
        )
    if as_json:
        click.echo(report.to_json())
    elif not quiet:
        click.echo(report.text())
    return 0 if report.passed else 1


_mechanism = click.option(
    "--mechanism",
    type=click.Choice(["positional", "semantic", "both"]),
    default="both",
    show_default=True,
    help="What attention sees while it is frozen.",
)
_device = click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")


@main.group(no_args_is_help=True)
def histogram() -> None:
    """Train a small transformer to count, with positional or semantic attention.

    First train, then unfreeze, then report. An interrupted command goes on when it is given again. docs/histogram.md
    tells the story.
    """


@histogram.command("train")
@_mechanism
@click.option(
    "--runs",
    type=int,
    default=3,
    show_default=True,
    help="Of each mechanism; each has its own random data and initial weights.",
)
@click.option("--epochs", type=int, default=200, show_default=True, help="In all, those made before included.")
@click.option("--seed", type=int, default=0, show_default=True, help="All random numbers follow from it.")
@click.option("--length", type=int, default=10, show_default=True, help="L, symbols of a sequence.")
@click.option("--alphabet", type=int, default=15, show_default=True, help="T, symbols to choose from.")
@click.option("--model-dimension", type=int, default=64, show_default=True, help="Length of an embedding; even.")
@click.option("--hidden", type=int, default=128, show_default=True, help="Units of the hidden layer.")
@click.option("--sequences", type=int, default=50_000, show_default=True, help="Drawn in all.")
@click.option("--training-share", type=float, default=0.7, show_default=True, help="Share of them to train on.")
@click.option("--batch", type=int, default=32, show_default=True, help="Sequences of a step.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of Adam.")
@_device
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32", show_default=True, help="Of all weights."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the runs."
)
@_quiet
def histogram_train(
    mechanism: str,
    runs: int,
    epochs: int,
    seed: int,
    batch: int,
    learning_rate: float,
    device: str,
    dtype: str,
    output: Path,
    quiet: bool,
    **sizes: Any,
) -> int:
    """Train runs whose attention sees one half of the embeddings.

    The state is written after every epoch, to one checkpoint for each mechanism.
    """
    from attnphase.experiments.histogram.settings import FrozenPlan, HistogramSizes

    asked: dict[str, Any] = {"mechanism": mechanism, "runs": runs, "epochs": epochs, "seed": seed}
    asked |= {"sizes": HistogramSizes(**sizes), "batch": batch, "learning_rate": learning_rate}
    asked |= {"device": device, "dtype": dtype}
    FrozenPlan.of(check_folder(output), **asked)
    from attnphase.experiments.histogram.stages import train_histogram

    with _kept_in(output):
        train_histogram(output, **asked, progress=not quiet)
    return _print_histogram(output, quiet)


@histogram.command("unfreeze")
@click.argument("folder", type=click.Path(path_type=Path))
@_mechanism
@click.option("--epochs", type=int, default=100, show_default=True, help="In all, those made before included.")
@click.option("--noise", type=float, default=1e-3, show_default=True, help="Standard deviation, before training.")
@click.option("--learning-rate", type=float, default=1e-3, show_default=True, help="Of plain gradient descent.")
@_device
@click.option("--force", is_flag=True, help="Unfreeze anew runs that were unfrozen with other settings, or longer.")
@_quiet
def histogram_unfreeze(folder: Path, quiet: bool, **settings: Any) -> int:
    """Free all weights of trained runs, add noise, and train on.

    FOLDER is that of attnphase histogram train.
    """
    from attnphase.experiments.histogram.settings import UnfrozenPlan

    UnfrozenPlan.of(folder, **settings)
    from attnphase.experiments.histogram.stages import unfreeze_histogram

    with _kept_in(folder):
        unfreeze_histogram(folder, progress=not quiet, **settings)
    return _print_histogram(folder, quiet)


@histogram.command("report")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--sequence",
    "sequences",
    type=_Sequence(),
    multiple=True,
    help="Whose attention matrix is drawn, as BAAC or 1,0,0,2; may be given several times. Three random ones by"
    " default.",
)
@click.option("--run", type=int, default=0, show_default=True, help="Whose attention matrices are drawn.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), help="Folder; FOLDER by default.")
@_force
@_quiet
def histogram_report(
    folder: Path, sequences: tuple[tuple[int, ...], ...], run: int, output: Path | None, force: bool, quiet: bool
) -> int:
    """Write what trained runs have learnt.

    FOLDER is that of attnphase histogram train. Writes report.nc, report.txt, attention.png and learning.png.
    """
    from attnphase.experiments.histogram.settings import MECHANISMS, present_checkpoints

    present_checkpoints(folder, MECHANISMS)
    output = check_folder(output or folder)
    names = ("report.nc", "report.txt", "attention.png", "learning.png")
    if output.exists():
        for name in names:
            check_output(output / name, force)
    from attnphase.dataset import save_dataset
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text
    from attnphase.figures import attention_figure, learning_figure, save_figure
    from attnphase.files import write_file

    ds = _with_command(histogram_dataset(folder, sequences or None))
    if not 0 <= run < ds.sizes["run"]:
        raise ProblemError("run", f"run must lie between 0 and {ds.sizes['run'] - 1}, not {run}.")
    output.mkdir(parents=True, exist_ok=True)
    data, text, attention, learning = (check_output(output / name, force) for name in names)
    save_dataset(ds, data, force)
    write_file(text, f"{histogram_text(ds)}\n".encode())
    save_figure(attention_figure(ds, run), attention)
    save_figure(learning_figure(ds), learning)
    if not quiet:
        click.echo(f"{histogram_text(ds)}\n\n{', '.join(str(output / name) for name in names)}")
    return 0


def _print_histogram(folder: Path, quiet: bool) -> int:
    """The table of what a folder holds; exit code 1 if a run diverged."""
    from attnphase.dataset import RunStatus
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text

    ds = histogram_dataset(folder)
    if not quiet:
        click.echo(histogram_text(ds))
    diverged = int((ds["status"] == RunStatus.diverged).any("stage").sum())
    if diverged:
        click.echo(f"attnphase: {diverged} runs diverged; lower the learning rate, or the noise.", err=True)
    return 1 if diverged else 0


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """An interruption of what is kept in a folder ends in a sentence."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(
            f"attnphase: interrupted: finished epochs are kept in {folder}; run the same command again to go on.",
            err=True,
        )
        raise click.exceptions.Exit(130) from None


@main.command(cls=_ManyValues)
@_problem_options
@click.option(
    "--omega", type=_NUMBERS, multiple=True, required=True, help="One or more weights of the positional part."
)
@_output(help="Write a netCDF file.")
@_force
@_json
def thresholds(
    problem_file: Path | None,
    changes: tuple[str, ...],
    omega: tuple[tuple[float, ...], ...],
    output: Path | None,
    force: bool,
    as_json: bool,
) -> int:
    """Find alpha_c and alpha_l.

    alpha_c is the sample complexity above which the semantic branch has the lower training loss, alpha_l that above
    which it has a lower test error than the linear predictor.
    """
    wanted = omegas("omega", [value for values in omega for value in values])
    if output is not None:
        check_output(output, force)
    problem = _solvable(_problem(problem_file, changes), ("semantic", "positional"))
    from attnphase.branches import thresholds as find_thresholds
    from attnphase.dataset import save_dataset, to_json

    ds = find_thresholds(problem, wanted)
    if output is not None:
        save_dataset(_with_command(ds), output, force)
    if as_json:
        click.echo(to_json(ds))
    else:
        _print_thresholds(ds)
    return 0


@main.command()
@_problem_options
@click.option(
    "--format", "form", type=click.Choice(["latex", "markdown", "python"]), default="latex", show_default=True
)
@click.option("--concrete", is_flag=True, help="Write the sums out for the problem's own sizes.")
def derive(problem_file: Path | None, changes: tuple[str, ...], form: str, concrete: bool) -> int:
    """Print the model's equations, or the source generated from them."""
    problem = _problem(problem_file, changes)
    from attnphase.derive import derive as derive_equations

    click.echo(getattr(derive_equations(problem, concrete=concrete), form))
    return 0


@main.command()
@click.argument("name", type=click.Choice(["fig2", "fig3"]))
@click.option("--data", type=click.Path(path_type=Path), help="netCDF file to draw; computed if left out.")
@_output(help="File of the figure, .png or .pdf; NAME.png by default.")
@_force
@_workers
@_quiet
def figure(name: str, data: Path | None, output: Path | None, force: bool, workers: int | None, quiet: bool) -> int:
    """Draw a figure of the paper, from data or from scratch."""
    output = check_figure(output or Path(f"{name}.png"), force)
    if data is not None:
        check_input(data)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    from attnphase.dataset import load_dataset
    from attnphase.figures import FIGURES, save_figure
    from attnphase.problem import Problem

    if data is not None:
        ds = load_dataset(data)
    else:
        alphas, omegas = _paper_grid(25, 26)
        grid = {"alpha": alphas, "omega": (_OMEGA_OF_FIG2,) if name == "fig2" else omegas}
        ds = _sweep("run the same command again", problem=Problem(), workers=workers, progress=not quiet, **grid)
    save_figure(FIGURES[name](ds), output)
    if not quiet:
        click.echo(str(output))
    return 0


@main.command("phase-diagram")
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the results."
)
@click.option("--alphas", type=click.IntRange(2, 1000), default=25, show_default=True, help="Sample complexities.")
@click.option(
    "--omegas", type=click.IntRange(2, 1000), default=26, show_default=True, help="Weights of the positional part."
)
@click.option(
    "--nodes",
    type=click.IntRange(16),
    default=256,
    show_default=True,
    help="Sobol points per replicate, a power of two.",
)
@_workers
@_quiet
def phase_diagram(output: Path, alphas: int, omegas: int, nodes: int, workers: int | None, quiet: bool) -> int:
    """Compute and draw the paper's phase diagram.

    Writes phase_diagram.nc, fig2.png and fig3.png. If interrupted, the same command goes on where it stopped.
    """
    begin = time.monotonic()
    check_folder(output)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    from attnphase.problem import Problem

    problem = Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": nodes})
    from attnphase.figures import fig2, fig3, loss_crossing, save_figure

    output.mkdir(parents=True, exist_ok=True)
    alpha, omega = _paper_grid(alphas, omegas)
    data = output / "phase_diagram.nc"
    ds = _sweep(
        "run the same command again to go on",
        problem=problem,
        alpha=alpha,
        omega=omega,
        settings=SolverSettings(tolerance=1e-6, max_maps=100),
        workers=workers,
        output=data,
        resume=True,
        force=True,
        progress=not quiet,
    )
    figures = {"fig2.png": fig2, "fig3.png": fig3}
    for name, draw in figures.items():
        save_figure(draw(ds), output / name)
    if quiet:
        return 0
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_row("points", _status_counts(ds))
    for value in _OMEGAS_SHOWN:
        line = ds.sel(omega=value, method="nearest")
        alpha_c = loss_crossing(line)
        table.add_row(
            f"alpha_c at omega = {float(line['omega']):g}", format_value(alpha_c.alpha, alpha_c.standard_error)
        )
    table.add_row("time", f"{time.monotonic() - begin:.0f} s")
    table.add_row("files", ", ".join(str(output / name) for name in (data.name, *figures)))
    _print_table(table)
    return 0


def _paper_grid(alphas: int, omegas: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The grid of Figure 3; the omega of Figure 2 is on it in any case."""
    import numpy as np

    omega = np.linspace(0, 0.5, omegas)
    nearest = np.abs(omega - _OMEGA_OF_FIG2).argmin()
    if np.isclose(omega[nearest], _OMEGA_OF_FIG2):
        omega[nearest] = _OMEGA_OF_FIG2
    else:
        omega = np.union1d(omega, _OMEGA_OF_FIG2)
    return tuple(np.linspace(0.05, 2, alphas).tolist()), tuple(omega.tolist())


def _sweep(how_to_go_on: str, **arguments: Any) -> xr.Dataset:
    """A sweep whose interruption ends in a sentence."""
    from attnphase.sweep import sweep as sweep_problem

    try:
        return sweep_problem(**arguments)
    except KeyboardInterrupt:
        kept = "finished lines are kept" if "output" in arguments else "nothing is kept"
        click.echo(f"attnphase: interrupted: {kept}; {how_to_go_on}.", err=True)
        raise click.exceptions.Exit(130) from None


def _simulate(**arguments: Any) -> xr.Dataset:
    """An experiment whose interruption ends in a sentence."""
    import attnphase

    try:
        return attnphase.simulate(**arguments)
    except KeyboardInterrupt:
        kept = "nothing is kept; name a --checkpoint to keep it"
        if arguments["checkpoint"] is not None:
            kept = f"what was computed is kept in {arguments['checkpoint']}; run the same command again to go on"
        click.echo(f"attnphase: interrupted: {kept}.", err=True)
        raise click.exceptions.Exit(130) from None


# ------------------------------------------------------------------------------------------------------------- output


def format_value(value: float, error: float) -> str:
    """Return a number with its standard error in brackets, in units of the last digit: 0.11481(5).

    Parameters
    ----------
    value, error : float
        An error of zero, or one that only rounding made, leaves the number alone; so does an unknown one, NaN.

    Returns
    -------
    str
        The error has one digit, or two if the first is a 1.
    """
    if not math.isfinite(value):
        return "–"
    if abs(value) < 1e-12 and not error > 1e-12:
        return "0"
    if not (math.isfinite(error) and error > 1e-12 * abs(value)):
        return f"{value:.6g}"
    exponent = math.floor(math.log10(error))
    digits = round(error / 10**exponent, 1)
    places = -exponent + (1 if digits < 2 else 0)
    if max(abs(value), error) < 1e-4:
        power = math.floor(math.log10(max(abs(value), error)))
        return f"{format_value(value / 10.0**power, error / 10.0**power)}e{power:d}"
    if places <= 0:
        return f"{round(value, places):.0f}({round(error, places):.0f})"
    return f"{value:.{places}f}({round(error * 10**places)})"


def _print_table(table: Any) -> None:
    from rich.console import Console

    # a table is never broken to fit a pipe
    width = None if sys.stdout.isatty() else 200
    Console(highlight=False, width=width).print(table, soft_wrap=True)


def _print_points(ds: xr.Dataset) -> None:
    """An aligned table: a row for each quantity, a column for each branch."""
    from rich.table import Table

    from attnphase.dataset import POINT_VARIABLES, STATUS_MEANINGS

    columns = [ds.isel(branch=i) for i in range(ds.sizes["branch"])] if "branch" in ds.dims else [ds]
    table = Table(box=None, pad_edge=False)
    table.add_column(f"alpha = {float(ds['alpha']):g}")
    for column in columns:
        table.add_column(str(column["branch"].item()), justify="right")
    for variable in POINT_VARIABLES:
        if variable.name.endswith("_hat"):
            continue
        for label, index in _entries(variable.name, ds):
            if variable.name == "status":
                cells = [STATUS_MEANINGS[int(column["status"])] for column in columns]
            elif variable.has_stderr:
                pairs = ((column[variable.name][index], column[variable.stderr][index]) for column in columns)
                cells = [format_value(float(value), float(error)) for value, error in pairs]
            elif variable.dtype == "float64":
                cells = [f"{float(column[variable.name]):.1e}" for column in columns]
            else:
                cells = [str(int(column[variable.name])) for column in columns]
            table.add_row(label, *cells)
    _print_table(table)


def _print_runs(ds: xr.Dataset) -> None:
    """A row for each point of the grid: means over the seeds with their standard errors."""
    import numpy as np
    from rich.table import Table

    from attnphase.dataset import RunStatus, overlap_size

    scalars = ("training_loss", "test_error", "linear_test_error", "weight_norm", "density")
    columns = {name: ds[name] for name in scalars}
    for name in ("m", "theta"):  # their size is the same in every frame of the weights
        size = overlap_size(ds, name)
        columns[f"|{name}[1]|"] = (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size
    if bool((columns["density"] == 1).all()):
        del columns["density"]
    for name in ("linear_test_error", "replicon"):
        if bool(ds[name].isnull().all()):
            columns.pop(name, None)
        elif name not in columns:
            columns[name] = ds[name]
    table = Table(box=None, pad_edge=False)
    for name in ("start", "d", "alpha", *columns, "gradient"):
        table.add_column(name, justify="left" if name == "start" else "right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for index in np.ndindex(*(ds.sizes[name] for name in ("start", "dimension", "alpha"))):
        place = dict(zip(("start", "dimension", "alpha"), index, strict=True))
        here = ds.isel(place)
        statuses = here["status"].to_numpy().tolist()
        counts = ", ".join(f"{statuses.count(s)} {s.name}" for s in RunStatus if s in statuses)
        row = [str(here["start"].item()), str(here["dimension"].item()), f"{here['alpha'].item():g}"]
        for values in (column.isel(place).to_numpy() for column in columns.values()):
            values = values[here["status"].to_numpy() != RunStatus.diverged]
            error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
            row.append(format_value(float(values.mean()), float(error)) if len(values) else "–")
        table.add_row(*row, f"{float(here['gradient_norm'].max()):.1e}", counts)
    _print_table(table)


def _ended(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the runs that did not end well."""
    from attnphase.dataset import RunStatus

    status = ds["status"]
    fine = status.isin([RunStatus.converged, RunStatus.completed])
    failed = int((~fine).sum())
    if not failed:
        return 0
    first = status.where(~fine).stack(run=status.dims).dropna("run")[0]
    place = ", ".join(f"{name} = {_plain(first[name].item())}" for name in map(str, status.dims))
    name = RunStatus(int(first)).name
    hint = "" if allowed else "; --allow-unconverged accepts this"
    click.echo(f"attnphase: {failed} of {status.size} runs not converged, the first {place} ({name}){hint}.", err=True)
    return 0 if allowed else 1


def _entries(name: str, ds: xr.Dataset) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Labels and indices of a variable's entries; the upper triangle of a symmetric matrix."""
    import numpy as np

    inner = [dim for dim in ds[name].dims if dim in ("token", "cluster", "row", "col", "teacher")]
    for index in np.ndindex(*(ds.sizes[dim] for dim in inner)):
        if inner[-2:] == ["row", "col"] and index[-1] < index[-2]:
            continue
        shown = [str(i + 1) for i, dim in zip(index, inner, strict=True) if dim == "token" or ds.sizes[dim] > 1]
        yield (f"{name}[{','.join(shown)}]" if shown else name), index


def _print_thresholds(ds: xr.Dataset) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("omega", "alpha_c", "alpha_l"):
        table.add_column(name, justify="right")
    for i in range(ds.sizes["omega"]):
        cells = [format_value(float(ds[name][i]), float(ds[f"{name}_stderr"][i])) for name in ("alpha_c", "alpha_l")]
        table.add_row(f"{float(ds['omega'][i]):g}", *cells)
    _print_table(table)


def _status_counts(ds: xr.Dataset) -> str:
    from attnphase.dataset import STATUS_MEANINGS

    status = ds["status"].to_numpy().ravel().tolist()
    counts = [f"{status.count(value)} {name}" for value, name in enumerate(STATUS_MEANINGS) if value in status]
    return ", ".join(counts)


def _convergence(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the points that did not converge."""
    import numpy as np

    from attnphase.dataset import STATUS_MEANINGS

    status = ds["status"]
    failed = np.argwhere(status.to_numpy() != 0)
    if not len(failed):
        return 0
    names = []
    for index in failed[:3]:
        point = status[tuple(index)]
        place = ", ".join(f"{name} = {_plain(point[name].item())}" for name in map(str, point.coords))
        names.append(f"{place} ({STATUS_MEANINGS[int(point)]}, residual {float(ds['residual'][tuple(index)]):.1e})")
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    hint = "" if allowed else "; --allow-unconverged accepts this"
    click.echo(f"attnphase: not converged: {'; '.join(names)}{more}{hint}.", err=True)
    return 0 if allowed else 1


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _with_command(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with the command line in its history."""
    import shlex

    history = f"{ds.attrs['history']}\n{ds.attrs['created']}: attnphase {shlex.join(sys.argv[1:])}"
    return ds.assign_attrs(history=history)


if __name__ == "__main__":
    from attnphase.__main__ import main as process

    process()
