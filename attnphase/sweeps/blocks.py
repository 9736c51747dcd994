"""A sweep in blocks: planned once, solved block by block on as many machines as there are, merged in the end.

The folder of a run is all that they share. It has

    plan.json           what is swept, and into how many blocks
    line-KEY.nc         a finished line, under a hash of all that decides about it
    block-K.lock        while a process solves block K
    door                while a process begins or ends; see `attnphase.sweeps.locks`

Which lines a block has follows from the plan alone. A line is in one block, and a block is solved by one process at a
time: a second one waits, and then finds the lines finished. A killed process leaves its finished lines, and no lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import xarray as xr

from attnphase import arguments
from attnphase.arrays import Numbers
from attnphase.data.files import save_dataset
from attnphase.data.outcomes import of_lines, of_sweep, warned
from attnphase.errors import AttnphaseError, DatasetError, ProblemError
from attnphase.files.reading import LARGEST_TEXT, read_input
from attnphase.files.writing import check_dataset, check_folder, write_file
from attnphase.fixed_points.settings import SolverSettings, solver_settings
from attnphase.problem.problem import Problem
from attnphase.state_evolution.branches import Branches, BranchName
from attnphase.sweeps.cost import seconds_of
from attnphase.sweeps.description import Description, listed
from attnphase.sweeps.grid import (
    axes_of,
    check_caller,
    joined,
    lines_of,
    number_of_workers,
    on_processes,
    solved_lines,
)
from attnphase.sweeps.line import Line
from attnphase.sweeps.locks import at_the_door, writing
from attnphase.sweeps.places import MOST_SHARES, PLANNING, check_plan, plan_file
from attnphase.sweeps.shares import share_for_us, shares_of
from attnphase.sweeps.store import BLOCKS, Store

__all__ = ["Plan", "merge_blocks", "plan_sweep", "run_block"]

_NAMED = 8  # blocks in a refusal
_ANEW = f"{PLANNING} --force"


@dataclass(frozen=True)
class Plan:
    """A sweep that is divided into blocks.

    Attributes
    ----------
    problem : Problem
        What the sweep does not vary.
    swept : mapping
        Values along each dimension.
    lines : tuple of Line
        All of them.
    blocks : tuple of tuple of int
        The numbers of the lines of each block; the first block is number 1.
    description : Description
        What the sweep is.
    """

    problem: Problem
    swept: Mapping[str, list[Any]]
    lines: tuple[Line, ...]
    blocks: tuple[tuple[int, ...], ...]
    description: Description

    @classmethod
    def of(cls, problem: Problem, swept: Mapping[str, list[Any]], settings: SolverSettings, blocks: int) -> Self:
        """Divide the lines of a grid.

        Raises
        ------
        ProblemError
            There are fewer lines than blocks.
        """
        lines, taken = lines_of(problem, swept, settings)
        parts = shares_of(lines, blocks, "blocks")
        return cls(problem, taken, tuple(lines), parts, Description.of(problem, taken, lines))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The plan of a folder, if this program would make the same.

        Raises
        ------
        DatasetError
            It is damaged, or was made by another version.
        """
        path = plan_file(folder)
        text = read_input(path, "plan", LARGEST_TEXT, lambda fault: DatasetError(f"{path}: {fault}"))
        try:
            kept = json.loads(text)
            problem, settings = Problem.from_toml(kept["problem"]), SolverSettings(**kept["settings"])
            swept = {str(name): list(values) for name, values in kept["swept"].items()}
            before, blocks = Description(dict(kept["sweep"])), arguments.whole("blocks", kept["blocks"], 1, MOST_SHARES)
            plan = cls.of(problem, swept, settings, blocks)
        except (AttnphaseError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            what = str(error).rstrip(".") if isinstance(error, AttnphaseError) else "it is damaged"
            raise DatasetError(f"{path}: the plan cannot be read: {what}; make it again by {_ANEW}.") from error
        differences = plan.description.differences(before)
        if differences:
            raise DatasetError(
                f"{path}: the plan is not one of this program: {listed(differences)}; make it again by {_ANEW}."
            )
        return plan

    @property
    def text(self) -> str:
        """As JSON."""
        kept = {
            "blocks": len(self.blocks),
            "problem": self.problem.to_toml(),
            "swept": {name: list(values) for name, values in self.swept.items()},
            "settings": asdict(self.lines[0].settings),
            "sweep": self.description.entries,
        }
        return json.dumps(kept, indent=1) + "\n"

    @property
    def seconds(self) -> tuple[float, ...]:
        """Estimated processor seconds of each block; see `attnphase.sweeps.cost`."""
        return tuple(sum(seconds_of(self.lines[i]) for i in block) for block in self.blocks)

    def block(self, number: int) -> list[Line]:
        """The lines of a block.

        Raises
        ------
        ProblemError
            There is no such block.
        """
        last = len(self.blocks)
        if not 1 <= number <= last:
            which = "block 1 alone" if last == 1 else f"blocks 1 to {last}"
            raise ProblemError("block", f"there is no block {number}: this plan has {which}.")
        return [self.lines[i] for i in self.blocks[number - 1]]


def plan_sweep(
    problem: Problem,
    alpha: Numbers,
    omega: Numbers | None = None,
    branch: Branches | Sequence[BranchName] = ("semantic", "positional"),
    *,
    blocks: int,
    folder: str | os.PathLike[str],
    fields: Mapping[str, Any] | None = None,
    settings: SolverSettings | None = None,
    force: bool = False,
) -> Plan:
    """Divide a sweep into blocks of branch lines of equal estimated cost, and write the plan into a folder.

    Parameters
    ----------
    problem : Problem
        Gives all fields that the grid does not vary.
    alpha, omega, branch, fields, settings : optional except alpha
        As for `sweep`.
    blocks : int
        Number of blocks, at most the number of lines.
    folder : path-like
        Folder of the plan, created if it does not exist.  Finished lines in it stay, and fitting ones are used.
    force : bool
        Replace another plan in the folder.

    Returns
    -------
    Plan
        ``blocks``, the lines of each block, and ``seconds``, the estimated processor time of each.

    Raises
    ------
    ProblemError
        An argument or a swept value is wrong, or there are fewer lines than blocks.
    DatasetError
        The folder has another plan, or cannot be written to.
    """
    problem = arguments.instance("problem", problem, Problem)
    settings = solver_settings(settings)
    number = arguments.whole("blocks", blocks, 1, MOST_SHARES)
    path, force = check_folder(folder), arguments.flag("force", force)
    plan = Plan.of(problem, axes_of(problem, alpha, omega, branch, fields), settings, number)
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    with at_the_door(path):
        another = plan_file(path).exists() and plan_file(path).read_bytes() != plan.text.encode()
        if another and not force:
            raise DatasetError(
                f"{plan_file(path)}: another plan is there; use --force (force=True) to replace it, which keeps all"
                " finished lines, or choose another folder."
            )
        write_file(plan_file(path), plan.text.encode())
    return plan


def run_block(
    folder: str | os.PathLike[str], block: int, *, workers: int | None = None, progress: bool | None = None
) -> dict[str, xr.Dataset]:
    """Solve the lines of a block of a plan that are not finished yet.

    If another process is solving the same block, this one waits for it.

    Parameters
    ----------
    folder : path-like
        Folder of the plan.
    block : int
        Number of the block, from 1.
    workers : int, optional
        Number of processes; by default one for each core.  With 1, everything runs in this process.
    progress : bool, optional
        Show a bar with rate and remaining time on standard error. By default only compiling is shown.

    Returns
    -------
    dict of str to xarray.Dataset
        Lines of the block over alpha; a key names branch and field values, such as "semantic, teacher.omega = 0.3".

    Raises
    ------
    ProblemError
        An argument is wrong, or there is no such block.
    DatasetError
        There is no plan of this program, or a finished line cannot be written.
    SweepError
        A line failed, or workers died three times.

    Notes
    -----
    In a script, call this under ``if __name__ == "__main__":``, as `sweep`.
    """
    check_caller(workers)
    number, processes = arguments.whole("block", block, 1), number_of_workers(workers)
    shown, path = arguments.flag_or_none("progress", progress), check_plan(folder)
    lines = Plan.read(path).block(number)
    with share_for_us(path, f"block-{number}", lines, BLOCKS) as store:
        found = solved_lines(lines, store, on_processes(processes), shown)
    return warned(dict(zip((line.label for line in lines), found, strict=True)), of_lines)


def merge_blocks(
    folder: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> xr.Dataset:
    """Merge the finished blocks of a plan into the dataset that one sweep would give, bit for bit.

    Parameters
    ----------
    folder : path-like
        Folder of the plan and the finished lines; it is not changed.
    output : path-like, optional
        netCDF file for the result.
    force : bool
        Replace an existing output.

    Returns
    -------
    xarray.Dataset
        As from `sweep`.

    Raises
    ------
    ProblemError
        An argument is wrong.
    DatasetError
        The folder has no plan of this version; a block is missing, unfinished, damaged or of another plan (the message
        names it); or the output cannot be written.
    """
    force, target = arguments.flag("force", force), None if output is None else arguments.path("output", output)
    path = check_plan(folder)
    if target is not None:
        check_dataset(target, force)
    plan = Plan.read(path)
    store = Store(path, BLOCKS)
    found: dict[int, xr.Dataset] = {}
    faults: dict[int, str] = {}  # the first of each block
    for number, i in ((number, i) for number, numbers in enumerate(plan.blocks, 1) for i in numbers):
        try:
            found[i] = store.read(plan.lines[i])
        except DatasetError as error:
            faults.setdefault(number, str(error).rstrip("."))
    if faults:
        which = ", ".join(map(str, [*faults][:_NAMED])) + (" and more" if len(faults) > _NAMED else "")
        word = "block" if len(faults) == 1 else "blocks"
        what = f"{word} {which} of {len(plan.blocks)} cannot be used, the first since {next(iter(faults.values()))}"
        raise DatasetError(f"{path}: {what}: run attnphase sweep --block K {path} (run_block) for each.")
    ds = joined(plan.problem, plan.swept, plan.description, [found[i] for i in range(len(plan.lines))])
    if target is not None:
        save_dataset(ds, target, force=force)
    return warned(ds, lambda ds: of_sweep(ds, plan.problem))
