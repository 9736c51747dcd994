"""How a command ends: its table, its exit code, what an interruption keeps, the history of what it writes."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnphase.data.text import Table, terminal_width
from attnphase.errors import CompareError, DatasetError
from attnphase.files.writing import check_dataset
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import exit_code

with loaded_on_use(__name__):
    from attnphase.data import files as netcdf
    from attnphase.sweeps import store

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.data.outcomes import Said

__all__ = [
    "Result",
    "ended",
    "files_named",
    "interruption_told",
    "kept_file",
    "kept_lines",
    "print_table",
    "tell",
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
            netcdf.save_dataset(with_command(ds), self.output, force=self.force)

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


def ended(said: Sequence[Said], allowed: bool) -> int:
    """The exit code, after naming the points or runs that did not end well, or are not to be used."""
    hint = "" if allowed else "; --allow-unconverged accepts this"
    for _, sentence in said:
        click.echo(f"attnphase: {sentence.removesuffix('.')}{hint}.", err=True)
    return int(bool(said) and not allowed)


def tell(result: Result, said: Sequence[Said]) -> None:
    """Say what does not change the exit code, unless all is to be quiet."""
    for _, sentence in [] if result.quiet else said:
        click.echo(f"attnphase: {sentence}", err=True)


def with_command(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with the command line in its history."""
    called = shlex.join(sys.argv[1:]).encode(errors="backslashreplace").decode()  # names of files may be no UTF-8
    history = f"{ds.attrs['history']}\n{ds.attrs['created']}: attnphase {called}"
    return ds.assign_attrs(history=history)
