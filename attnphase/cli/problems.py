"""Commands about a problem itself: a file to begin with, its equations, its checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from attnphase.cli.inputs import named, problem_of, solvable
from attnphase.cli.options import (
    branch_option,
    force_option,
    iteration_options,
    json_option,
    output_option,
    problem_options,
    quiet_option,
)
from attnphase.cli.values import Words
from attnphase.data.text import terminal_width
from attnphase.errors import ProblemError
from attnphase.files.writing import check_output, write_file
from attnphase.fixed_points.settings import SolverSettings, sample_complexity
from attnphase.lazy import loaded_on_use
from attnphase.pages.limits import LIMITS, LimitName

with loaded_on_use(__name__):
    from attnphase.checks import consistency
    from attnphase.pages import page
    from attnphase.problem import problem as problems
    from attnphase.problem import template as templates
    from attnphase.problem import toml

__all__ = ["check", "derive", "init"]


def _offered(what: str) -> Words:
    """The kinds that the template has an example of."""

    def read() -> tuple[str, ...]:
        return templates.OFFERED[what]

    return Words(read)


@click.command()
@click.option("--mixture", is_flag=True, help="Tokens in two clusters, which they often share.")
@click.option("--spectrum", type=_offered("spectrum"), help="Covariances with more than one eigenvalue.")
@click.option("--length", type=int, help="Number of tokens L.")
@click.option("--rank", type=int, help="Columns r of the student's weights.")
@click.option("--untied", is_flag=True, help="Weights Q and K of their own.")
@click.option("--loss", type=_offered("loss"), help="Another loss; the last four have one token by default.")
@click.option("--values", "width", type=int, help="Value matrices with so many columns.")
@click.option("--regularizer", type=_offered("regularizer"), help="Another regulariser.")
@click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of the problem.")
@output_option(help="File to write; standard output by default.")
@force_option
@click.option("--quiet", is_flag=True, help="Do not print the file's name.")
def init(changes: tuple[str, ...], output: Path | None, force: bool, quiet: bool, **wanted: Any) -> int:
    """Write a problem file to begin with.

    Every field has a comment; without options the problem is the paper's.
    """
    if output is not None:
        check_output(output, force)
    problem = problems.Problem().with_fields(templates.changes_for(**wanted) | dict(map(toml.parse_setting, changes)))
    text = templates.template(problem)
    if output is None:
        click.echo(text, nl=False)
        return 0
    write_file(output, text.encode())
    if not quiet:
        click.echo(str(output))
    return 0


@click.command()
@problem_options
@click.option(
    "--format", "form", type=click.Choice(["latex", "markdown", "python"]), default="latex", show_default=True
)
@click.option("--concrete", is_flag=True, help="Write the sums out for the problem's own sizes.")
@click.option(
    "--limit",
    type=click.Choice(LIMITS),
    default="trained",
    show_default=True,
    help="Equations of the trained student, of its way there, or of a learner who knows the model.",
)
@click.option("--quiet", is_flag=True, help="No progress.")
def derive(
    problem_file: Path | None, changes: tuple[str, ...], form: str, concrete: bool, limit: LimitName, quiet: bool
) -> int:
    """Print the model's equations, or the source generated from them."""
    if concrete and form == "python":
        raise ProblemError("concrete", "--concrete is for pages: the source has the problem's sizes; leave it out.")
    if concrete and limit != "trained":
        raise ProblemError("concrete", f"--concrete does not go with --limit {limit}, whose sizes are symbols.")
    problem = problem_of(problem_file, changes)
    click.echo(getattr(page.derive(problem, concrete=concrete, limit=limit, progress=not quiet), form))
    return 0


@click.command()
@problem_options
@click.option("--alpha", type=float, default=1.5, show_default=True, help="Sample complexity of the point checked.")
@branch_option
@iteration_options
@click.option("--experiment/--no-experiment", default=True, help="Train small instances too, if PyTorch is there.")
@json_option
@quiet_option
def check(
    problem_file: Path | None,
    changes: tuple[str, ...],
    alpha: float,
    branch: Any,
    experiment: bool,
    as_json: bool,
    quiet: bool,
    **solver: Any,
) -> int:
    """Check a problem's equations, code and numbers against each other.

    Exit code 1 if a check fails.
    """
    alpha, settings = sample_complexity("alpha", alpha), SolverSettings(**solver)
    problem = solvable(problem_of(problem_file, changes), named(branch))
    report = consistency.check(problem, alpha, branch, settings=settings, experiment=experiment, progress=not quiet)
    if as_json:
        click.echo(report.to_json())
    elif not quiet:
        click.echo(report.text(terminal_width()))
    return 0 if report.passed else 1
