"""Options that several commands have, as decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from attnphase.cli.outcomes import Result
from attnphase.cli.values import NUMBERS
from attnphase.fixed_points.settings import METHODS, SolverSettings
from attnphase.state_evolution.branches import BRANCHES

__all__ = [
    "allow_unconverged_option",
    "alphas_option",
    "asked_options",
    "branch_option",
    "device_option",
    "force_option",
    "iteration_options",
    "json_option",
    "output_option",
    "problem_options",
    "quiet_option",
    "result_options",
    "single_branch_option",
    "solver_options",
    "start_option",
    "workers_option",
]


_option = functools.partial(click.option, show_default=True)


def _options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


problem_options = _options(
    click.argument("problem_file", metavar="[PROBLEM.TOML]", required=False, type=click.Path(path_type=Path)),
    click.option("--set", "changes", metavar="FIELD=VALUE", multiple=True, help="Change a field of the problem."),
)

asked_options = _options(
    _option(
        "--stability/--no-stability", default=SolverSettings.stability, help="Compute the replicon and the overlap gap."
    ),
    _option("--identity/--no-identity", default=SolverSettings.identity, help="Decide which branch a point is on."),
)

iteration_options = _options(
    _option("--method", default=SolverSettings.method, help=f"{', '.join(METHODS)}."),
    _option("--tolerance", default=SolverSettings.tolerance, help="On the undamped relative residual."),
    _option("--max-maps", default=SolverSettings.max_maps, help="Evaluations of the state-evolution map, at most."),
    _option("--max-nodes", default=SolverSettings.max_nodes, help="Sobol points of a rule, at most."),
    click.option("--max-seconds", type=float, help="Wall-clock seconds for each point, after which it is returned."),
)

solver_options = _options(iteration_options, asked_options)

allow_unconverged_option = click.option(
    "--allow-unconverged",
    is_flag=True,
    help="Exit with 0 also if a point did not converge, or violates exact identities.",
)
alphas_option = click.option(
    "--alpha", type=NUMBERS, required=True, help="START:STOP:COUNT[:log], or numbers with commas between them."
)


def _one(_: click.Context, __: click.Parameter, given: Sequence[str]) -> str:
    if len(given) > 1:
        raise click.BadParameter("give one branch, or all.")
    return given[0]


def single_branch_option(*others: str) -> Callable[[Any], Any]:
    """One branch, all of them, or another word."""
    return click.option(
        "--branch",
        type=click.Choice([*BRANCHES, "all", *others]),
        multiple=True,
        default=("semantic",),
        callback=_one,
        show_default=True,
        help="One, or each of them.",
    )


branch_option = single_branch_option()
device_option = click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
force_option = click.option("--force", is_flag=True, help="Replace an existing output file.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress and no table.")
start_option = click.option(
    "--start", type=click.Path(path_type=Path), metavar="FILE", help="Go on from the point in a file of solve."
)
workers_option = click.option("--workers", type=int, help="Processes; as many as cores by default.")


def output_option(**settings: Any) -> Callable[[Any], Any]:
    """Where the result is written."""
    return click.option("-o", "--output", type=click.Path(path_type=Path), **settings)


def result_options(command: Callable[..., int]) -> Callable[..., Any]:
    """Where the result is written, and what is printed: one argument of the command, `result`."""

    @functools.wraps(command)
    def call(output: Path | None, force: bool, as_json: bool, quiet: bool, **rest: Any) -> int:
        return command(result=Result(output, force, as_json, quiet), **rest)

    return _options(output_option(help="Write a netCDF file."), force_option, json_option, quiet_option)(call)
