"""What people and programs read: numbers with their errors, tables, paragraphs, as wide as the terminal allows.

A value is never cut.  A table that does not fit is split into blocks of columns, each with the labels of its rows;
where that would leave hardly more than a column in each, every value has a line of its own.
"""

from __future__ import annotations

import html
import json
import math
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import numpy as np

    from attnphase.data import build, reading, variables
    from attnphase.fixed_points import verdict

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.arrays import Array
    from attnphase.data.variable import Variable
    from attnphase.fixed_points.point import BranchPoint
    from attnphase.problem.problem import Problem

__all__ = [
    "Table",
    "curve_table",
    "entries_of",
    "format_largest",
    "format_mean",
    "format_value",
    "json_text",
    "pairs_text",
    "points_json",
    "points_table",
    "runs_table",
    "solutions_table",
    "terminal_width",
    "thresholds_absences",
    "thresholds_table",
    "wrapped",
]

_GAP = "  "  # between two columns
_READABLE = 30  # characters that lines of a paragraph have at least, if they can
_BELOW = 8  # blanks before a text below its name
_MARK = "*"  # at a branch that does not exist
_DOUBT = "?"  # at one of which that is not decided


def terminal_width() -> int | None:
    """Columns of the terminal that standard output goes to.

    Returns
    -------
    int or None
        None where it is no terminal, unless the environment variable COLUMNS says how wide it is to be taken.
    """
    given = os.environ.get("COLUMNS", "")
    told = given.isdecimal() and int(given) > 0
    if not told and (sys.stdout is None or not sys.stdout.isatty()):
        return None
    return shutil.get_terminal_size().columns


# ------------------------------------------------------------------------------------------------------------ numbers


def format_mean(values: Array) -> str:
    """The mean of some runs with its standard error, as `format_value` has it; a dash for none."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return format_value(float(values.mean()), error) if len(values) else "–"


def format_largest(values: Array) -> str:
    """The largest of some runs' numbers, to two digits; a dash for none."""
    return f"{float(values.max()):.1e}" if len(values) else "–"


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


def json_text(value: Any) -> str:
    """Return what a program reads: one JSON object, in which numbers that are not finite are null."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ------------------------------------------------------------------------------------------------------------- layout


def wrapped(text: str, width: int | None, indent: str = "    ") -> str:
    """A text broken between words where it is longer than `width`; a longer word stays whole.

    Parameters
    ----------
    text : str
        Lines that fit are left as they are.
    width : int or None
        None for no limit.
    indent : str
        Before every line but the first of those that a line is broken into.
    """
    if width is None:
        return text
    lines = []
    for line in text.split("\n"):
        begin = line[: len(line) - len(line.lstrip())]
        parts = textwrap.wrap(
            line.strip(),
            width,
            initial_indent=begin,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += parts if len(line) > width else [line]
    return "\n".join(lines)


def pairs_text(pairs: Iterable[tuple[str, str]], width: int | None = None) -> str:
    """Names with a text each, in two columns; a long text is broken between words and goes on below its beginning.

    Parameters
    ----------
    pairs : iterable of (str, str)
    width : int or None
        Of the terminal; None for no limit.  Where it leaves little room beside the names, texts stand below them.
    """
    pairs = list(pairs)
    column = max(len(name) for name, _ in pairs)
    lines = [f"{name:<{column}}{_GAP}{text}" for name, text in pairs]
    if width is None or max(map(len, lines)) <= width:
        return "\n".join(lines)
    if width - column - len(_GAP) >= _READABLE:
        return "\n".join(wrapped(line, width, " " * (column + len(_GAP))) for line in lines)
    indent = " " * _BELOW
    return "\n".join(wrapped(f"{name}\n{indent}{text}", width, indent) for name, text in pairs)


@dataclass(frozen=True)
class Table:
    """Cells under heads.

    Attributes
    ----------
    heads : tuple of str
    rows : tuple of tuples of str
    labels : int
        How many leading columns say what a row is.
    left : tuple of int
        Columns that are aligned to the left.
    joined : tuple of int
        Columns that mean nothing without the one before.
    by_column : bool
        Whether it is the columns, not the rows, that describe one thing each.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: int = 1
    left: tuple[int, ...] = (0,)
    joined: tuple[int, ...] = ()
    by_column: bool = False

    def html(self) -> str:
        """The table for a notebook."""

        def line(tag: str, cells: Sequence[str]) -> str:
            sides = ("left" if i in self.left else "right" for i in range(len(cells)))
            each = zip(cells, sides, strict=True)
            return "".join(
                f'<{tag} style="text-align:{side};padding:0 .6em">{html.escape(cell)}</{tag}>' for cell, side in each
            )

        rows = "".join(f"<tr>{line('td', row)}</tr>" for row in self.rows)
        return f"<table><thead><tr>{line('th', self.heads)}</tr></thead><tbody>{rows}</tbody></table>"

    def text(self, width: int | None = None) -> str:
        """The table in a terminal of so many columns; None for no limit."""
        whole = self._block(range(len(self.heads)))
        if width is None or _longest(whole) <= width:
            return "\n".join(whole)
        groups = self._groups()
        blocks: list[list[int]] = []
        for group in groups:
            if blocks and _longest(self._block([*range(self.labels), *blocks[-1], *group])) <= width:
                blocks[-1] += group
            else:
                blocks.append([*group])
        texts = [self._block([*range(self.labels), *block]) for block in blocks]
        # with hardly more than a column in each, blocks are harder to read than a list
        if 2 * len(blocks) <= len(groups) + 1 and max(map(_longest, texts)) <= width:
            return "\n\n".join("\n".join(text) for text in texts)
        return "\n\n".join("\n".join(lines) for lines in self._lists(groups, width))

    def _groups(self) -> list[list[int]]:
        """Columns that stay together."""
        groups: list[list[int]] = []
        for column in range(self.labels, len(self.heads)):
            if column in self.joined:
                groups[-1].append(column)
            else:
                groups.append([column])
        return groups

    def _block(self, columns: Sequence[int]) -> list[str]:
        """Lines of an aligned table of some of the columns."""
        rows = [self.heads, *self.rows]
        widths = {column: max(len(row[column]) for row in rows) for column in columns}
        lines = []
        for row in rows:
            cells = [
                row[column].ljust(widths[column]) if column in self.left else row[column].rjust(widths[column])
                for column in columns
            ]
            lines.append(_GAP.join(cells).rstrip())
        return lines

    def _lists(self, groups: list[list[int]], width: int) -> Iterator[list[str]]:
        """For everything that is described: what it is, and a line for every value."""
        if self.by_column:
            for first, *others in groups:
                name = ", ".join(filter(None, (self.heads[0], self.heads[first])))
                values = [
                    [f"{row[0]} = {row[first]}", *(f"{self.heads[column]} = {row[column]}" for column in others)]
                    for row in self.rows
                ]
                yield [wrapped(name, width, _GAP), *(_value_line(parts, width) for parts in values)]
            return
        for row in self.rows:
            # a word says by itself what it is, a number does not
            names = [row[i] if i in self.left else f"{self.heads[i]} = {row[i]}" for i in range(self.labels)]
            values = [[f"{self.heads[column]} = {row[column]}" for column in group] for group in groups]
            yield [wrapped(", ".join(names), width, _GAP), *(_value_line(parts, width) for parts in values)]


def _value_line(parts: list[str], width: int) -> str:
    """A value and what belongs to it, on one line if that fits."""
    line = ", ".join(parts)
    return line if len(line) <= width else wrapped(f"\n{_GAP}".join(parts), width, _GAP)


def _longest(lines: Iterable[str]) -> int:
    return max(map(len, lines))


# ----------------------------------------------------------------------------------------------------------- datasets


def points_table(points: Sequence[BranchPoint], missing: Collection[str] = (), doubtful: Collection[str] = ()) -> Table:
    """Points at one sample complexity: a row for each quantity, a column for each branch.

    Parameters
    ----------
    points : sequence of BranchPoint
        Of different branches.
    missing : collection of str
        Branches that do not exist there, which get a mark behind their names; see
        `attnphase.data.absence.absences`.
    doubtful : collection of str
        Branches of which that is not decided, which get another mark.
    """
    names, problem = [point.branch for point in points], points[0].problem
    columns = build.point_columns(points, {"branch": names})
    rows = []
    for variable in variables.with_own(variables.POINT_VARIABLES, problem):
        if variable.name.endswith("_hat") or variable.name in verdict.IDENTITIES:
            continue
        for label, index in entries_of(variable, problem, columns[variable.name].shape[1:]):
            values = [column[index] for column in columns[variable.name]]
            if variable.meanings:
                cells = [variable.meanings[int(value)] for value in values]
            elif variable.has_stderr:
                errors = (column[index] for column in columns[variable.stderr])
                cells = [format_value(float(value), float(error)) for value, error in zip(values, errors, strict=True)]
            elif variable.dtype == "float64":
                cells = [_short(float(value)) for value in values]
            else:
                cells = [str(value) for value in values]
            rows.append((label, *cells))
    marks = {**dict.fromkeys(doubtful, _DOUBT), **dict.fromkeys(missing, _MARK)}
    heads = (f"{name}{marks.get(name, '')}" for name in names)
    return Table((f"alpha = {points[0].alpha:g}", *heads), tuple(rows), by_column=True)


def _short(value: float) -> str:
    return f"{value:.1e}" if math.isfinite(value) else "–"


def entries_of(variable: Variable, problem: Problem, sizes: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Labels and indices of a variable's entries; the upper triangle of a symmetric matrix."""
    dims = variable.dims_of(problem)
    for index in np.ndindex(*sizes):
        if tuple(dims[-2:]) == ("row", "col") and index[-1] < index[-2]:
            continue
        shown = [str(i + 1) for i, dim, size in zip(index, dims, sizes, strict=True) if dim == "token" or size > 1]
        shown = [problem.loss.fitted[i] for i in index] if "parameter" in dims else shown
        yield (f"{variable.name}[{','.join(shown)}]" if shown else variable.name), index


def points_json(points: Sequence[BranchPoint], branch: str) -> str:
    """Return the points of a branch, or of ``"all"``, as `attnphase.data.files.to_json` does their dataset."""
    names = [point.branch for point in points]
    columns = build.point_columns(points, {"branch": names} if branch == "all" else {})
    place = {"branch": names if branch == "all" else names[0], "alpha": points[0].alpha}
    return json_text(place | {name: column.tolist() for name, column in columns.items()})


def runs_table(ds: xr.Dataset) -> Table:
    """Experiments: a row for each point of the grid, with means over the seeds and their standard errors."""
    scalars = ("training_loss", "test_error", "linear_test_error", "weight_norm", "density")
    metrics = [
        str(name) for name in ds.data_vars if str(name).startswith("metric_") and not str(name).endswith("_stderr")
    ]
    columns = {name: ds[name] for name in (*scalars[:2], *metrics, *scalars[2:])}
    for name in ("m", "theta"):  # their size is the same in every frame of the weights
        size = reading.overlap_size(ds, name)
        columns[f"|{name}[1]|"] = (size**2).sum("cluster") ** 0.5 if "cluster" in size.dims else size
    if bool((columns["density"] == 1).all()):
        del columns["density"]
    for name in ("linear_test_error", "replicon"):
        if bool(ds[name].isnull().all()):
            columns.pop(name, None)
        elif name not in columns:
            columns[name] = ds[name]
    heads = ("start", "d", "alpha", *columns, "gradient", "status")
    rows = []
    for index in np.ndindex(*(ds.sizes[name] for name in ("start", "dimension", "alpha"))):
        place = dict(zip(("start", "dimension", "alpha"), index, strict=True))
        here = ds.isel(place)
        statuses = here["status"].to_numpy().tolist()
        counts = ", ".join(f"{statuses.count(s)} {s.name}" for s in variables.RunStatus if s in statuses)
        row = [str(here["start"].item()), str(here["dimension"].item()), f"{here['alpha'].item():g}"]
        kept = reading.counted(here).to_numpy()
        row += [format_mean(column.isel(place).to_numpy()[kept]) for column in columns.values()]
        rows.append((*row, format_largest(here["gradient_norm"].to_numpy()[kept]), counts))
    return Table(heads, tuple(rows), labels=3, left=(0, len(heads) - 1))


def thresholds_table(ds: xr.Dataset) -> Table:
    """Thresholds: a row for each omega, or value of another field; where there is none, why."""
    (along,) = map(str, ds["alpha_c"].dims)
    names = [name for name in map(str, ds.data_vars) if not name.endswith(("_stderr", "_status"))]
    rows = []
    for here in (ds.isel({along: i}) for i in range(ds.sizes[along])):
        cells = [format_value(float(here[name]), float(here[f"{name}_stderr"])) for name in names]
        for i, name in enumerate(names):
            if int(here.get(f"{name}_status", 0)):
                meanings = here[f"{name}_status"].attrs["flag_meanings"].split()
                cells[i] = meanings[int(here[f"{name}_status"])].replace("_", " ")
        rows.append((f"{float(here[along]):g}", *cells))
    return Table((along, *names), tuple(rows), left=())


def thresholds_absences(ds: xr.Dataset) -> list[str]:
    """A sentence for each threshold of which more is known than the flag: why there is none."""
    said = {name.removesuffix("_status"): ds[name].attrs.get("comment", "") for name in map(str, ds.data_vars)}
    return [f"{name} at {clause}." for name, clauses in said.items() for clause in clauses.splitlines()]


def curve_table(ds: xr.Dataset) -> Table:
    """Followed branches: a row for each point, in the order of the curve."""
    dims = ds["status"].dims
    (name,) = (str(c) for c in ds.coords if ds[c].dims == dims and c != "arclength")
    several, rows = "branch" in dims, []
    for here in (ds.isel(dict(zip(dims, place, strict=True))) for place in np.ndindex(ds["status"].shape)):
        if int(here["status"]) == variables.NOT_COMPUTED:
            continue
        rows.append(
            (
                *([str(here["branch"].item())] if several else []),
                format_value(float(here["field_value"]), float(here["field_value_stderr"])),
                *_sizes(here),
                format_value(float(here["training_loss"]), float(here["training_loss_stderr"])),
                f"{float(here['leading_eigenvalue']):.3f}",
                "unstable" if int(here["unstable_directions"]) else "stable",
                "fold" if int(here["turn"]) else "",
                variables.STATUS_MEANINGS[int(here["status"])],
            )
        )
    heads = (name, "|m[1]|", "|theta[1]|", "training_loss", "eigenvalue", "", "turn", "status")
    if several:
        return Table(("branch", *heads), tuple(rows), labels=2, left=(0, 6, 7, 8))
    return Table(heads, tuple(rows), left=(5, 6, 7))


def solutions_table(ds: xr.Dataset) -> Table:
    """Fixed points at one place: a row for each, by rising training loss."""
    rows = []
    for i in range(ds.sizes["solution"]):
        here = ds.isel(solution=i)
        errors = (format_value(float(here[n]), float(here[f"{n}_stderr"])) for n in ("training_loss", "test_error"))
        rows.append(
            (
                str(int(here["solution"])),
                str(here["branch"].item()),
                *errors,
                *_sizes(here),
                f"{float(here['leading_eigenvalue']):.3f}",
                str(int(here["unstable_directions"])),
                str(int(here["found"])),
                variables.STATUS_MEANINGS[int(here["status"])],
            )
        )
    heads = ("", "branch", "training_loss", "test_error", "|m[1]|", "|theta[1]|", "eigenvalue", "unstable", "found")
    return Table((*heads, "status"), tuple(rows), labels=2, left=(1, 9))


def _sizes(here: xr.Dataset) -> list[str]:
    """Sizes of m and theta of the first token, with errors."""
    cells = []
    for name in ("m", "theta"):
        size = reading.overlap_size(here, name)
        error = here[f"{name}_stderr"].isel(token=0)
        if "cluster" in size.dims:
            size = (size**2).sum("cluster") ** 0.5
        cells.append(format_value(float(size), float((error**2).sum() ** 0.5)))
    return cells
