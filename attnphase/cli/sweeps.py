"""Sweeps beyond one machine: the options of `sweep` for plans, blocks and schedulers, and what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from attnphase import arguments
from attnphase.cli.outcomes import ended, interruption_told
from attnphase.errors import ProblemError
from attnphase.files.writing import check_dataset
from attnphase.lazy import loaded_on_use
from attnphase.sweeps.places import check_plan

with loaded_on_use(__name__):
    from attnphase.data import counts, outcomes, reading
    from attnphase.sweeps import blocks as divided

__all__ = ["distribution_options", "in_blocks", "make_plan", "merge_plan", "needed", "solve_block"]

_T = TypeVar("_T")

# what each way of calling takes besides the option that names it
_TAKES = {
    "block": {"problem_file", "workers", "allow_unconverged", "quiet"},
    "merge": {"problem_file", "output", "force", "allow_unconverged", "quiet"},
    "plan": {
        *("problem_file", "changes", "alpha", "omega", "vary", "branch", "output", "force", "quiet"),
        *("method", "tolerance", "max_maps", "max_nodes", "max_seconds", "stability", "identity"),
    },
}


def distribution_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of a sweep that is done elsewhere, or in parts."""
    options = (
        click.option("--scheduler", metavar="ADDRESS", help="Solve on a live Dask cluster, as tcp://10.0.0.1:8786."),
        click.option("--shard", metavar="K/N", help="Solve share K of N; then, without it, --resume writes OUTPUT."),
        click.option("--plan", type=int, metavar="N", help="Write a plan of N blocks into the folder OUTPUT."),
        click.option("--block", type=int, metavar="K", help="Solve block K, from 1 on, of the plan in FOLDER."),
        click.option("--merge", is_flag=True, help="Write the result of all blocks of the plan in FOLDER."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def in_blocks(context: click.Context) -> str | None:
    """Which of plan, block and merge a call asks for, if any; options that do not belong to it are refused."""
    given = [p for p in context.command.params if p.name and _given(context, p.name)]
    asked = [name for name in _TAKES if any(p.name == name for p in given)]
    if not asked:
        return None
    if len(asked) > 1:
        raise click.UsageError(f"--{asked[0]} and --{asked[1]} exclude each other: give one.")
    strange = [p for p in given if p.name not in {*_TAKES[asked[0]], asked[0]}]
    if strange:
        what = "belongs to a sweep in one go" if asked[0] == "plan" else "belongs to the plan or to another command"
        raise click.UsageError(f"{strange[0].opts[-1]} {what}: leave it out with --{asked[0]}.")
    return asked[0]


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None)


def needed(context: click.Context, name: str, value: _T | None) -> _T:
    """An option that only some calls need."""
    if value is None:
        (option,) = (p for p in context.command.params if p.name == name)
        raise click.MissingParameter(ctx=context, param=option)
    return value


def _folder(folder: Path | None, call: str) -> Path:
    if folder is None:
        raise ProblemError("folder", f"{call} needs the folder of a plan: attnphase sweep {call} FOLDER.")
    return check_plan(folder)


def make_plan(grid: dict[str, Any], blocks: int, folder: Path, force: bool, quiet: bool) -> int:
    """Write the plan of a sweep into a folder."""
    plan = divided.plan_sweep(**grid, blocks=blocks, folder=folder, force=force)
    if not quiet:
        lines, points = len(plan.lines), sum(len(line.alphas) for line in plan.lines)
        least, most = _duration(min(plan.seconds)), _duration(max(plan.seconds))
        each = most if least == most else f"{least} to {most}"
        click.echo(f"{folder}: {points} points in {lines} lines, {blocks} blocks of about {each} of one core each")
    return 0


def solve_block(folder: Path | None, block: int, workers: int | None, allowed: bool, quiet: bool) -> int:
    """Solve a block of a plan."""
    arguments.whole("block", block, 1)
    if workers is not None:
        arguments.whole("workers", workers, 1)
    folder = _folder(folder, "--block K")

    with interruption_told(lambda: "finished lines are kept; run the same command again"):
        lines = divided.run_block(folder, block, workers=workers, progress=not quiet)
    joined = outcomes.joined_lines(lines)
    if not quiet:
        count = f"{len(lines)} line{'' if len(lines) == 1 else 's'}"
        click.echo(f"{folder}: block {block}, {count}: {counts.counted(joined.status)}")
    return ended(outcomes.of_points(joined), allowed)


def merge_plan(folder: Path | None, output: Path, force: bool, allowed: bool, quiet: bool) -> int:
    """Write the result of a plan."""
    check_dataset(output, force)
    folder = _folder(folder, "--merge")
    ds = divided.merge_blocks(folder, output, force=force)
    if not quiet:
        click.echo(f"{output}: {counts.status_counts(ds, reading.problem_of(ds))}")
    return ended(outcomes.of_points(ds), allowed)


def _duration(seconds: float) -> str:
    """Processor time, roughly."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} s"
