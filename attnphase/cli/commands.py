"""The command line.  Everything heavy is imported inside the commands, so that ``--help`` is quick.

Results go to standard output or a file, everything else to standard error.  Exit codes: 0 done, 1 not converged, 2 bad
input or a result that cannot be written, 130 interrupted; how the process ends otherwise, `attnphase.__main__` says.

Every command checks in one order, so that a refusal is quick: options, then the output, then the problem, and only then
imports what takes long.
"""

from __future__ import annotations

import functools
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from attnphase import arguments
from attnphase.data.text import (
    Table,
    format_value,
    pairs_text,
    points_table,
    runs_table,
    terminal_width,
    thresholds_table,
    wrapped,
)
from attnphase.errors import AttnphaseError, ProblemError
from attnphase.files.writing import check_data, check_figure, check_folder, check_output, write_file
from attnphase.fixed_points.settings import (
    OPTIMIZERS,
    SolverSettings,
    omegas,
    sample_complexities,
    sample_complexity,
)
from attnphase.processes.progress import progress_line
from attnphase.state_evolution.branches import BRANCHES

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.problem.problem import Problem

__all__ = ["main"]

_LOSSES = ("attention", "values", "square", "logistic", "hinge", "expression")
_REGULARIZERS = ("ridge", "lasso", "elastic-net", "group-lasso", "expression")  # a prox is a function of one's own
_SPECTRA = ("isotropic", "power-law", "two-level", "atoms")
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
    """START:STOP:COUNT or START:STOP:COUNT:log, or numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            if ":" not in value:
                return tuple(float(part) for part in value.split(","))
            start, stop, count, *rest = value.split(":")
            limits, size = (float(start), float(stop)), int(count)
        except ValueError:
            self.fail(f"{value!r} is neither START:STOP:COUNT[:log] nor numbers with commas between them.", param, ctx)
        if rest not in ([], ["log"]):
            self.fail(f"{value!r} has something behind START:STOP:COUNT; only :log may stand there.", param, ctx)
        if not all(map(math.isfinite, limits)) or not 1 <= size <= 10**6:
            self.fail(f"{value!r} needs finite START and STOP, and a COUNT from 1 to 1000000.", param, ctx)
        if rest and min(limits) <= 0:
            self.fail(f"{value!r} needs a positive START and STOP to be spaced evenly in the logarithm.", param, ctx)
        import numpy as np

        return tuple((np.geomspace if rest else np.linspace)(*limits, size).tolist())

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
_alphas = click.option(
    "--alpha", type=_NUMBERS, required=True, help="START:STOP:COUNT[:log], or numbers with commas between them."
)
_force = click.option("--force", is_flag=True, help="Replace an existing output file.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_quiet = click.option("--quiet", is_flag=True, help="No progress and no table.")
_workers = click.option("--workers", type=int, help="Processes; as many as cores by default.")


def _output(**settings: Any) -> Callable[[Any], Any]:
    return click.option("-o", "--output", type=click.Path(path_type=Path), **settings)


def _problem(problem_file: Path | None, changes: Sequence[str]) -> Problem:
    from attnphase.problem.problem import Problem, load_problem, parse_setting

    problem = Problem() if problem_file is None else load_problem(problem_file)
    return problem.with_fields(dict(map(parse_setting, changes))) if changes else problem


def _varied(options: Sequence[str], changes: Sequence[str], omega: object) -> dict[str, tuple[Any, ...]]:
    """The fields that a sweep varies, with their values, from FIELD=START:STOP:COUNT[:log] and FIELD=VALUE,VALUE."""
    from attnphase.problem.problem import parse_setting

    given = {parse_setting(change)[0]: "--set" for change in changes}
    if omega is not None:
        given["teacher.omega"] = "--omega"
    found: dict[str, tuple[Any, ...]] = {}
    for option in options:
        name, equals, text = (part.strip() for part in option.partition("="))
        if not (equals and name):
            raise ProblemError(
                "vary", f"--vary must read FIELD=VALUES, such as tokens.sigma=0.3:0.7:5, not {option!r}."
            )
        if name in ("alpha", "branch"):
            raise ProblemError(name, f"{name} is not a field of the problem: use --{name}.")
        if name in given:
            where = "by --vary" if name in found else f"by {given[name]} and by --vary"
            raise ProblemError(name, f"{name} is given twice {where}: leave one out.")
        given[name] = "--vary"
        found[name] = _values(name, text)
    return found


def _values(name: str, text: str) -> tuple[Any, ...]:
    """The values that an option gives a field, each as --set reads it."""
    from attnphase.problem.problem import parse_setting

    if not text:
        raise ProblemError(name, f"{name} has no values: write {name}=START:STOP:COUNT or values with commas between.")
    if text.startswith(("[", "{")):
        raise ProblemError(
            name,
            f"{name} cannot be swept over lists or tables: only numbers, words and truth values can, with commas"
            " between them and without brackets.",
        )
    if ":" in text and _NUMBERS.fits(text):
        try:
            numbers = _NUMBERS.convert(text, None, None)
        except click.BadParameter as error:
            raise ProblemError(name, f"{name} cannot be swept: {error.message}") from None
        whole = [round(number) for number in numbers]
        near = all(abs(number - n) <= 1e-9 * abs(n) for number, n in zip(numbers, whole, strict=True))
        return tuple(whole) if near else numbers  # a field of whole numbers takes no others
    parts = text.split(",")
    if not {'"', "'"}.isdisjoint(text):  # a comma in quotation marks is part of a value
        lexer = shlex.shlex(text, posix=False)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
        try:
            parts = list(lexer)
        except ValueError:
            raise ProblemError(name, f"{name} has a quotation mark that is not closed: {text}.") from None
    return tuple(parse_setting(f"{name}={part}")[1] for part in parts)


def _solvable(problem: Problem, branches: Sequence[str]) -> Problem:
    """The problem, if it has these branches and its integration is affordable."""
    from attnphase.integration.ladder import check_affordable
    from attnphase.state_evolution.starts import initial_overlaps

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
@click.option("--mixture", is_flag=True, help="Tokens in two clusters, which they often share.")
@click.option("--spectrum", type=click.Choice(_SPECTRA), help="Covariances with more than one eigenvalue.")
@click.option("--length", type=int, help="Number of tokens L.")
@click.option("--rank", type=int, help="Columns r of the student's weights.")
@click.option("--untied", is_flag=True, help="Weights Q and K of their own.")
@click.option("--loss", type=click.Choice(_LOSSES), help="Another loss; the last four have one token by default.")
@click.option("--values", "width", type=int, help="Value matrices with so many columns.")
@click.option("--regularizer", type=click.Choice(_REGULARIZERS), help="Another regulariser.")
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of the problem.")
@_output(help="File to write; standard output by default.")
@_force
@click.option("--quiet", is_flag=True, help="Do not print the file's name.")
def init(changes: tuple[str, ...], output: Path | None, force: bool, quiet: bool, **wanted: Any) -> int:
    """Write a problem file to begin with.

    Every field has a comment; without options the problem is the paper's.
    """
    if output is not None:
        check_output(output, force)
    from attnphase.problem.problem import Problem, parse_setting
    from attnphase.problem.template import changes_for, template

    problem = Problem().with_fields(changes_for(**wanted) | dict(map(parse_setting, changes)))
    text = template(problem)
    if output is None:
        click.echo(text, nl=False)
        return 0
    write_file(output, text.encode())
    if not quiet:
        click.echo(str(output))
    return 0


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
    from attnphase.data.absence import absences
    from attnphase.data.dataset import save_dataset, to_json
    from attnphase.sweeps.points import solve as solve_problem

    ds = solve_problem(problem, alpha, branch, **asdict(settings), progress=not quiet)
    if output is not None:
        save_dataset(_with_command(ds), output, force)
    if as_json:
        click.echo(to_json(ds))
    missing = {} if quiet else absences(ds, problem)
    if not (as_json or quiet):
        _print(points_table(ds, missing))
    for sentence in missing.values():
        click.echo(f"attnphase: {sentence}", err=True)
    return _convergence(ds, allow_unconverged)


@main.command()
@_problem_options
@_alphas
@click.option("--omega", type=_NUMBERS, help="Likewise; the problem's own by default.")
@click.option(
    "--vary",
    metavar="FIELD=VALUES",
    multiple=True,
    help="Sweep a field of the problem, as tokens.sigma=0.3:0.7:5 or teacher.score=softmax,linear; may be given several"
    " times.",
)
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
@click.option("--resume", is_flag=True, help="Take up the finished lines of this sweep, which was interrupted.")
@click.option(
    "--resume-fitting", is_flag=True, help="Take up those of another sweep too that fit, and leave the others."
)
@_allow_unconverged
@_quiet
def sweep(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: tuple[float, ...],
    omega: tuple[float, ...] | None,
    vary: tuple[str, ...],
    branches: tuple[str, ...],
    method: str,
    tolerance: float | None,
    max_maps: int | None,
    backend: str,
    output: Path,
    force: bool,
    workers: int | None,
    resume: bool,
    resume_fitting: bool,
    allow_unconverged: bool,
    quiet: bool,
) -> int:
    """Solve a problem on a grid, on all cores.

    Finished lines are kept beside the output until it is written: after Ctrl-C or a crash, --resume takes them up.
    --force without it discards them.
    """
    alpha, settings = sample_complexities("alpha", alpha), _settings(method, tolerance, max_maps, backend)
    omega = None if omega is None else omegas("omega", omega)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    if not (resume or resume_fitting):  # what is there may be the finished sweep
        check_output(output, force)
    fields = _varied(vary, changes, omega)
    problem = _problem(problem_file, changes)
    if not fields:
        _solvable(problem, branches)
    ds = _sweep(
        "run the same command again with --resume",
        problem=problem,
        alpha=alpha,
        omega=omega,
        branches=branches,
        fields=fields,
        settings=settings,
        workers=workers,
        output=output,
        resume="fitting" if resume_fitting else resume,
        force=force,
        progress=not quiet,
    )
    if not quiet:
        click.echo(f"{output}: {_status_counts(ds, problem)}")
    return _convergence(ds, allow_unconverged)


@main.command()
@_problem_options
@_alphas
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
    from attnphase.data.dataset import save_dataset, to_json

    ds = _simulate(problem=problem, checkpoint=checkpoint, progress=not quiet, **asked)
    if output is not None:
        save_dataset(_with_command(ds), output, force)
        if checkpoint is not None:
            checkpoint.unlink(missing_ok=True)
    if as_json:
        click.echo(to_json(ds))
    elif not quiet:
        _print(runs_table(ds))
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
    from attnphase.paper.catalogue import check_results, planned

    given = {key: value for key, value in overrides.items() if value is not None}
    check_results(planned(name, size, seed=seed, overrides=given)[0], output, force)
    from attnphase.paper.run import run_experiment

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
            width=terminal_width(),
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
@click.option(
    "--problem",
    "problem_file",
    type=click.Path(path_type=Path),
    help="The experiment's problem, where it names a function of a module.",
)
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of that problem.")
@click.option("--figure", "figure_file", type=click.Path(path_type=Path), help="Draw the comparison, .png or .pdf.")
@_force
@_json
@_quiet
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
    """Hold experiments against theory, in standard errors.

    With several dimensions in the experiment, a correction b/d is fitted and its limit compared.
    """
    if figure_file is not None:
        check_figure(figure_file, force)
    for path in (theory, experiment):
        check_data(path)
    from attnphase.checks.comparison import compare as compare_datasets
    from attnphase.data.dataset import load_dataset

    problem = _problem(problem_file, changes) if problem_file is not None or changes else None
    datasets = load_dataset(theory), load_dataset(experiment)
    comparison = compare_datasets(*datasets, problem=problem, progress=not quiet)
    if figure_file is not None:
        from attnphase.figures.drawing import comparison_figure, save_figure

        with progress_line(not quiet, "drawing"):
            save_figure(comparison_figure(comparison), figure_file)
    if as_json:
        click.echo(comparison.to_json())
    elif not quiet:
        click.echo(comparison.text(terminal_width()))
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
    from attnphase.checks.report import check as check_problem

    report = check_problem(problem, alpha, branch, experiment=experiment, progress=not quiet)
    if as_json:
        click.echo(report.to_json())
    elif not quiet:
        click.echo(report.text(terminal_width()))
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
    from attnphase.data.dataset import save_dataset
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text
    from attnphase.figures.drawing import attention_figure, learning_figure, save_figure

    with progress_line(not quiet, "measuring"):
        ds = _with_command(histogram_dataset(folder, sequences or None))
    if not 0 <= run < ds.sizes["run"]:
        raise ProblemError("run", f"run must lie between 0 and {ds.sizes['run'] - 1}, not {run}.")
    output.mkdir(parents=True, exist_ok=True)
    data, text, attention, learning = (check_output(output / name, force) for name in names)
    save_dataset(ds, data, force)
    write_file(text, f"{histogram_text(ds)}\n".encode())
    with progress_line(not quiet, "drawing"):
        save_figure(attention_figure(ds, run), attention)
        save_figure(learning_figure(ds), learning)
    if not quiet:
        files = wrapped(", ".join(str(output / name) for name in names), terminal_width())
        click.echo(f"{histogram_text(ds, terminal_width())}\n\n{files}")
    return 0


def _print_histogram(folder: Path, quiet: bool) -> int:
    """The table of what a folder holds; exit code 1 if a run diverged."""
    from attnphase.data.dataset import RunStatus
    from attnphase.experiments.histogram.report import histogram_dataset, histogram_text

    with progress_line(not quiet, "measuring"):
        ds = histogram_dataset(folder)
    if not quiet:
        click.echo(histogram_text(ds, terminal_width()))
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
@_quiet
def thresholds(
    problem_file: Path | None,
    changes: tuple[str, ...],
    omega: tuple[tuple[float, ...], ...],
    output: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Find alpha_c and alpha_l.

    alpha_c is the sample complexity above which the semantic branch has the lower training loss, alpha_l that above
    which it has a lower test error than the linear predictor.
    """
    wanted = omegas("omega", [value for values in omega for value in values])
    if output is not None:
        check_output(output, force)
    problem = _solvable(_problem(problem_file, changes), ("semantic", "positional"))
    from attnphase.data.dataset import save_dataset, to_json
    from attnphase.sweeps.critical import thresholds as find_thresholds

    ds = find_thresholds(problem, wanted, progress=not quiet)
    if output is not None:
        save_dataset(_with_command(ds), output, force)
    if as_json:
        click.echo(to_json(ds))
    elif not quiet:
        _print(thresholds_table(ds))
    return 0


@main.command()
@_problem_options
@click.option(
    "--format", "form", type=click.Choice(["latex", "markdown", "python"]), default="latex", show_default=True
)
@click.option("--concrete", is_flag=True, help="Write the sums out for the problem's own sizes.")
@click.option("--quiet", is_flag=True, help="No progress.")
def derive(problem_file: Path | None, changes: tuple[str, ...], form: str, concrete: bool, quiet: bool) -> int:
    """Print the model's equations, or the source generated from them."""
    problem = _problem(problem_file, changes)
    from attnphase.pages.page import derive as derive_equations

    click.echo(getattr(derive_equations(problem, concrete=concrete, progress=not quiet), form))
    return 0


@main.command()
@click.argument("name", type=click.Choice(["fig2", "fig3"]))
@click.option("--data", type=click.Path(path_type=Path), help="netCDF file to draw; computed if left out.")
@click.option(
    "--at",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Draw one value of a field that the data varies too, as tokens.sigma=0.5; may be given several times.",
)
@_output(help="File of the figure, .png or .pdf; NAME.png by default.")
@_force
@_workers
@_quiet
def figure(
    name: str,
    data: Path | None,
    at: tuple[str, ...],
    output: Path | None,
    force: bool,
    workers: int | None,
    quiet: bool,
) -> int:
    """Draw a figure of the paper, from data or from scratch.

    fig2 has curves over alpha, fig3 maps over alpha and omega; of data that varies another field, over that one.
    """
    from attnphase.problem.problem import Problem, parse_setting

    chosen = dict(map(parse_setting, at))
    if len(chosen) < len(at):
        raise ProblemError("at", "--at names a field twice: select one value of it.")
    if at and data is None:
        raise ProblemError("at", "--at selects from a dataset: name one with --data.")
    if workers is not None:
        arguments.whole("workers", workers, 1)
    output = check_figure(output or Path(f"{name}.png"), force)
    if data is not None:
        check_data(data)
    from attnphase.data.dataset import load_dataset
    from attnphase.figures.drawing import FIGURES, save_figure

    if data is not None:
        ds = load_dataset(data)
    else:
        alphas, omegas = _paper_grid(25, 26)
        grid = {"alpha": alphas, "omega": (_OMEGA_OF_FIG2,) if name == "fig2" else omegas}
        ds = _sweep("run the same command again", problem=Problem(), workers=workers, progress=not quiet, **grid)
    with progress_line(not quiet, "drawing"):
        save_figure(FIGURES[name](ds, at=chosen), output)
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
    from attnphase.problem.problem import Problem

    problem = Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": nodes})
    from attnphase.figures.drawing import fig2, fig3, loss_crossing, save_figure

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
        resume="fitting",  # lines of another grid, or of other nodes, stay for the command that made them
        force=True,
        progress=not quiet,
    )
    figures = {"fig2.png": fig2, "fig3.png": fig3}
    with progress_line(not quiet, "drawing"):
        for name, draw in figures.items():
            save_figure(draw(ds), output / name)
    if quiet:
        return 0
    pairs = [("points", _status_counts(ds, problem))]
    for value in _OMEGAS_SHOWN:
        line = ds.sel(omega=value, method="nearest")
        alpha_c = loss_crossing(line)
        pairs.append(
            (f"alpha_c at omega = {float(line['omega']):g}", format_value(alpha_c.alpha, alpha_c.standard_error))
        )
    pairs.append(("time", f"{time.monotonic() - begin:.0f} s"))
    pairs.append(("files", ", ".join(str(output / name) for name in (data.name, *figures))))
    click.echo(pairs_text(pairs, terminal_width()))
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
    from attnphase.sweeps.grid import parts_folder
    from attnphase.sweeps.grid import sweep as sweep_problem

    try:
        return sweep_problem(**arguments)
    except KeyboardInterrupt:
        output = arguments.get("output")
        kept = f"nothing is kept; {how_to_go_on}"
        if output is not None:
            some = any(parts_folder(output).glob("line-*.nc"))
            kept = f"finished lines are kept; {how_to_go_on}" if some else "no line was finished yet"
        click.echo(f"attnphase: interrupted: {kept}.", err=True)
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


def _print(table: Table) -> None:
    click.echo(table.text(terminal_width()))


def _ended(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the runs that did not end well."""
    from attnphase.data.dataset import RunStatus

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


def _status_counts(ds: xr.Dataset, problem: Problem) -> str:
    from attnphase.data.absence import absent
    from attnphase.data.dataset import STATUS_MEANINGS

    status = ds["status"].to_numpy().ravel().tolist()
    counts = [f"{status.count(value)} {name}" for value, name in enumerate(STATUS_MEANINGS) if value in status]
    missing = absent(ds, problem)
    lost = [(str(name), int(missing.sel(branch=name).sum())) for name in ds["branch"].to_numpy()]
    places = [f"no {name} branch at {count} point{'s' if count > 1 else ''}" for name, count in lost if count]
    return "; ".join([", ".join(counts), *places])


def _convergence(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the points that did not converge."""
    import numpy as np

    from attnphase.data.dataset import STATUS_MEANINGS

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
    history = f"{ds.attrs['history']}\n{ds.attrs['created']}: attnphase {shlex.join(sys.argv[1:])}"
    return ds.assign_attrs(history=history)


if __name__ == "__main__":
    main(prog_name="attnphase")
