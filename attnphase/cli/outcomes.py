"""How a command ends: its table, its exit code, what an interruption keeps, the history of what it writes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnphase.data.text import Table, terminal_width
from attnphase.errors import CompareError, DatasetError
from attnphase.files.writing import check_dataset
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import exit_code

with loaded_on_use(__name__):
    import numpy as np

    from attnphase.data import absence, reading, schemas, variables
    from attnphase.data import files as netcdf
    from attnphase.solvers import iteration
    from attnphase.sweeps import store

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Result",
    "convergence",
    "ended",
    "files_named",
    "interruption_told",
    "kept_file",
    "kept_lines",
    "print_table",
    "with_command",
]


@dataclass(frozen=True)
class Result:
    """Where a command's result goes.

    Attributes
    ----------
    output : Path or None
        The netCDF file.
    force : bool
        Whether one that is there is replaced.
    as_json : bool
        Whether the result is printed as one JSON object.
    quiet : bool
        Whether there is neither a progress line nor a table.
    """

    output: Path | None
    force: bool
    as_json: bool
    quiet: bool

    def check(self) -> None:
        """Refuse a file that cannot be written."""
        if self.output is not None:
            check_dataset(self.output, self.force)

    def save(self, ds: xr.Dataset) -> None:
        """Write the file, if there is to be one."""
        if self.output is not None:
            netcdf.save_dataset(with_command(ds), self.output, self.force)

    def print(self, ds: xr.Dataset, table: Callable[[xr.Dataset], Table]) -> None:
        """Print one JSON object, or a table unless all is to be quiet."""
        if self.as_json:
            click.echo(netcdf.to_json(ds))
        elif not self.quiet:
            print_table(table(ds))

    def deliver(self, ds: xr.Dataset, table: Callable[[xr.Dataset], Table]) -> None:
        """Write the file, and print."""
        self.save(ds)
        self.print(ds, table)


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal."""
    click.echo(table.text(terminal_width()))


@contextmanager
def interruption_told(kept: Callable[[], str]) -> Iterator[None]:
    """An interruption ends in a sentence that says what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        click.echo(f"attnphase: interrupted: {kept()}.", err=True)
        raise click.exceptions.Exit(exit_code(interruption)) from None


@contextmanager
def files_named(**files: Sequence[Path]) -> Iterator[None]:
    """Sentences on datasets name the files that these came from.

    Parameters
    ----------
    **files
        By what the sentences call the datasets: "the limit has no ..." becomes "the limit (limit.nc) has no ...". One
        that calls none of them begins with all files.
    """
    try:
        yield
    except (CompareError, DatasetError) as error:
        told = str(error)
        for called, paths in files.items():
            place = re.search(rf"(?:^|\bthe ){called}\b", told) if paths else None
            if place is not None:
                told = f"{told[: place.end()]} ({_listed(paths)}){told[place.end() :]}"
        if told == str(error) and any(files.values()):
            told = f"{_listed(list(dict.fromkeys(path for paths in files.values() for path in paths)))}: {told}"
        raise type(error)(told) from None


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def kept_file(checkpoint: Path | None) -> str:
    """What is kept of an interrupted command that has a checkpoint of one file."""
    if checkpoint is None:
        return "nothing is kept; name an --output or a --checkpoint to keep it"
    if not checkpoint.exists():
        return "nothing was found yet; run the same command again"
    return f"what was found is kept in {checkpoint}; run the same command again to go on"


def kept_lines(output: Path | None, how_to_go_on: str) -> str:
    """What is kept of an interrupted sweep."""
    if output is None:
        return f"nothing is kept; {how_to_go_on}"
    some = any(store.parts_folder(output).glob("line-*.nc"))
    return f"finished lines are kept; {how_to_go_on}" if some else "no line was finished yet"


def ended(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the runs that did not end well."""
    status = ds["status"]
    fine = status.isin([variables.RunStatus.converged, variables.RunStatus.completed])
    failed = int((~fine).sum())
    if not failed:
        return 0
    first = status.where(~fine).stack(run=status.dims).dropna("run")[0]
    place = ", ".join(f"{name} = {_plain(first[name].item())}" for name in map(str, status.dims))
    name = variables.RunStatus(int(first)).name
    diverged = bool((status == variables.RunStatus.diverged).any())
    hint = reading.problem_of(ds).loss.trained_remedy if diverged else ""
    hint += "" if allowed else "; --allow-unconverged accepts this"
    click.echo(f"attnphase: {failed} of {status.size} runs not converged, the first {place} ({name}){hint}.", err=True)
    return 0 if allowed else 1


_REMEDY = (
    "; a point without numbers cannot be evaluated in double precision: bring tokens.sigma,"
    " regularizer.strength, teacher.mixing and alpha closer to one"
)
_BOTTOMLESS = (
    "; local problems of unsolved_nodes have no minimum: bound loss.expression from below, or raise"
    " regularizer.strength"
)


def _remedy(ds: xr.Dataset, failed: xr.DataArray) -> str:
    """What helps points that did not converge, as far as they tell why."""
    if ds.attrs["schema"] == "optimal":  # its left_domain is of another kind
        return ""
    left = failed & (ds["status"] == iteration.Status.left_domain)
    if "unsolved_nodes" in ds and bool((left & (ds["unsolved_nodes"] > 0)).any()):
        return _BOTTOMLESS
    known = reading.problem_of(ds).loss.trained_remedy if bool(left.any()) else ""
    return known or (_REMEDY if ds.attrs["schema"] == "points" and bool(absence.unevaluated(ds).any()) else "")


def convergence(ds: xr.Dataset, allowed: bool) -> int:
    """The exit code, after naming the points that did not converge, and what helps those that cannot be evaluated."""
    status = ds["status"]
    unfinished = ~status.isin((0, variables.NOT_COMPUTED))
    failed = np.argwhere(unfinished.to_numpy())
    if not len(failed):
        return 0
    names = []
    for index in failed[:3]:
        point = status[tuple(index)]
        place = ", ".join(f"{name} = {_plain(point[name].item())}" for name in _places(ds, point))
        residual = float(ds["residual"][tuple(index)])
        known = "no numbers" if np.isnan(residual) else f"residual {residual:.1e}"
        names.append(f"{place} ({variables.STATUS_MEANINGS[int(point)]}, {known})")
    more = f" and {len(failed) - 3} more" if len(failed) > 3 else ""
    hint = _remedy(ds, unfinished)
    hint += "" if allowed else "; --allow-unconverged accepts this"
    click.echo(f"attnphase: not converged: {'; '.join(names)}{more}{hint}.", err=True)
    return 0 if allowed else 1


def _places(ds: xr.Dataset, point: xr.DataArray) -> list[str]:
    """Coordinates that say where a point is, as the schema has them: not thresholds, which are no place."""
    known = schemas.COORDINATES_OF[ds.attrs["schema"]]
    return [name for name in map(str, point.coords) if name in ds["status"].dims or name in known]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def with_command(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with the command line in its history."""
    called = shlex.join(sys.argv[1:]).encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
    history = f"{ds.attrs['history']}\n{ds.attrs['created']}: attnphase {called}"
    return ds.assign_attrs(history=history)
