"""A dataset as one file of HTML, in which a map, curves and values answer to the mouse and the keyboard.

The page holds everything: the numbers in single precision, packed, and Plotly's JavaScript from the installed package,
packed likewise. It asks the network for nothing, and forbids itself to.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.data.reading import whole_problem
from attnphase.data.validate import validate_dataset, validate_kind
from attnphase.errors import DatasetError
from attnphase.explorer.payload import Line, Quantity, Table, lines_of, table_of
from attnphase.extras import require_plotly
from attnphase.files.writing import check_output, write_file
from attnphase.lazy import loaded_on_use
from attnphase.problem.entries import get, put

with loaded_on_use(__name__):
    from plotly import offline

__all__ = ["ExplorePage", "explore"]

_KINDS = ("points", "experiments", "histogram")
_INSTEAD = {
    "bayes_optimal": ": draw it beside a sweep with attnphase figure limits --limit.",
    "thresholds": ": give it with --thresholds (thresholds=) beside a sweep.",
}
_DIGITS_OF_VALUES, _DIGITS_OF_ERRORS = 20, 10  # bits of a number's mantissa: six decimal digits, and three


@dataclass(frozen=True, eq=False)
class ExplorePage:
    """An interactive page. Notebooks show it in a frame.

    Attributes
    ----------
    html : str
        All of it.
    title : str
    """

    html: str
    title: str

    def __repr__(self) -> str:
        """One line."""
        return f"<ExplorePage {self.title!r}, {len(self.html) / 1e6:.1f} MB>"

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts" style="width:100%;height:820px;border:0"'
        return f'<iframe {frame} title="{html.escape(self.title)}" srcdoc="{html.escape(self.html)}"></iframe>'

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the page whole or not at all.

        Parameters
        ----------
        path : path-like
            Ends in .html.
        force : bool
            Replace an existing file.

        Raises
        ------
        DatasetError
            The file exists, cannot be written, or has another ending.
        """
        path = check_output(arguments.path("path", path), arguments.flag("force", force))
        if path.suffix.lower() not in (".html", ".htm"):
            raise DatasetError(f"{path}: a page is a file of HTML; let its name end in .html.")
        write_file(path, self.html.encode())


def explore(
    dataset: xr.Dataset, *, runs: xr.Dataset | None = None, thresholds: xr.Dataset | None = None
) -> ExplorePage:
    """Make an interactive page: a map of any variable over any two axes, and the curves through a chosen point.

    Parameters
    ----------
    dataset : xarray.Dataset
        A sweep, training runs, or the histogram task.
    runs : xarray.Dataset, optional
        Training runs of the same problem, drawn with the curves of a sweep; not of bayes-gamp, which trains no student.
    thresholds : xarray.Dataset, optional
        Thresholds of the same problem, drawn over the map of a sweep.

    Returns
    -------
    ExplorePage
        ``save(path)`` writes one HTML file; a notebook shows the page.

    Raises
    ------
    DatasetError
        A dataset does not follow the schema, is of a kind without axes, or has a single point; or runs or thresholds
        belong to another problem than the sweep.
    ProblemError
        An argument is of the wrong type.
    MissingExtraError
        Plotly is not installed.
    """
    require_plotly()
    arguments.instance("dataset", dataset, xr.Dataset)
    validate_dataset(dataset)
    if dataset.attrs["schema"] not in _KINDS:
        kind = dataset.attrs["schema"]
        raise DatasetError(
            f'a page shows a sweep, training runs or the histogram task, but the dataset is of kind "{kind}"'
            f"{_INSTEAD.get(kind, '.')}"
        )
    for name, kind, other in (("runs", "experiments", runs), ("thresholds", "thresholds", thresholds)):
        if other is None:
            continue
        if dataset.attrs["schema"] != "points":
            raise DatasetError(f"{name} are drawn beside a sweep, but the dataset holds {dataset.attrs['schema']}.")
        arguments.instance(name, other, xr.Dataset)
        if name == "runs" and other.attrs.get("schema") == "posterior":
            raise DatasetError(
                "runs must be training runs, as of simulate with lbfgs or gd, but are of bayes-gamp, which trains no"
                " student: compare them with a dataset of bayes_optimal."
            )
        validate_kind(name, other, kind)
        _check_problem(name, other, dataset)
    table = table_of(dataset)
    places = [axis for axis in table.axes if axis.role == "field" and not isinstance(axis.values[0], str)]
    if not any(len(axis.values) > 1 for axis in places):
        raise DatasetError("the dataset has one value of alpha and of every field: there is nothing to explore.")
    title = str(dataset.attrs.get("title", "attnphase"))
    beside = None if runs is None else table_of(runs)
    lines = () if thresholds is None else lines_of(thresholds)
    places = [{} if other is None else _places(other, dataset) for other in (runs, thresholds)]
    return ExplorePage(_page(title, dataset, table, beside, lines, places), title)


def _check_problem(name: str, other: xr.Dataset, sweep: xr.Dataset) -> None:
    """Refuse what is not of the sweep's problem, but for the fields that either of them varies."""
    here, there = whole_problem(sweep), whole_problem(other)
    varied = {str(ds[dim].attrs.get("field", "")) for ds in (sweep, other) for dim in ds.coords if ds[dim].ndim}
    for field in (one for one in varied if "." in one):
        for problem in (here, there):
            put(problem, field, None)
    for section in sorted({*here, *there}):
        ours, theirs = here.get(section, {}), there.get(section, {})
        for key in sorted({*ours, *theirs}):
            if ours.get(key) != theirs.get(key):
                raise DatasetError(
                    f"the {name} are of another problem than the sweep: {section}.{key} is"
                    f" {arguments.shown(theirs.get(key))} in them and {arguments.shown(ours.get(key))} in the sweep."
                )


def _places(other: xr.Dataset, sweep: xr.Dataset) -> dict[str, Any]:
    """At which value of every axis of the sweep something stands that does not vary it, as far as it says."""
    problem = whole_problem(other)
    places = {str(name): other[name].item() for name in other.coords if other[name].size == 1}
    for dim in map(str, sweep.dims):
        field = str(sweep[dim].attrs.get("field", "")) if dim in sweep.coords else ""
        if "." in field and dim not in other.coords:
            places[dim] = get(problem, field)
    return places


def _page(
    title: str,
    ds: xr.Dataset,
    table: Table,
    runs: Table | None,
    lines: Sequence[Line],
    places: Sequence[dict[str, Any]],
) -> str:
    numbers: list[Array] = []
    what: dict[str, Any] = {
        "title": title,
        "problem": str(ds.attrs.get("problem", "")),
        "made": f"attnphase {ds.attrs.get('attnphase_version', '?')}, {ds.attrs.get('created', '')}",
        "table": _described(table, numbers),
        "runs": None if runs is None else _described(runs, numbers),
        "runs_at": places[0],
        "lines_at": places[1],
        "lines": [
            {"name": line.name, "label": line.label, "along": line.along, "at": line.at.tolist()}
            | {"values": _plain(line.values), "errors": _plain(line.errors)}
            for line in lines
        ],
    }
    flat = np.concatenate([array.ravel() for array in numbers]).astype("<f4")
    # bytes of one rank together: exponents are alike
    planes = np.ascontiguousarray(flat.view(np.uint8).reshape(-1, 4).T)
    parts = {
        "title": html.escape(title),
        "style": _asset("page.css"),
        # a closing tag within a string would end the element
        "what": json.dumps(what, allow_nan=False).replace("<", "\\u003c"),
        "numbers": _packed(planes.tobytes()),
        "plotly": _plotly(),
        "script": _asset("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _described(table: Table, numbers: list[Array]) -> dict[str, Any]:
    """A table without its numbers, which are appended to `numbers` in the order of its quantities."""
    return {
        "kind": table.kind,
        "axes": [
            {"name": axis.name, "label": axis.label, "values": list(axis.values), "role": axis.role}
            for axis in table.axes
        ],
        "quantities": [_described_one(quantity, numbers) for quantity in table.quantities],
    }


def _described_one(quantity: Quantity, numbers: list[Array]) -> dict[str, Any]:
    numbers.append(_rounded(quantity.values, _DIGITS_OF_VALUES))
    if quantity.errors is not None:
        numbers.append(_rounded(quantity.errors, _DIGITS_OF_ERRORS))
    return {
        "name": quantity.name,
        "label": quantity.label,
        "axes": list(quantity.axes),
        "size": int(quantity.values.size),
        "errors": quantity.errors is not None,
        "meanings": list(quantity.meanings),
    }


def _rounded(values: Array, bits: int) -> Array:
    """Numbers with so many bits of mantissa: what is not needed compresses to nothing."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)


def _plain(values: Array) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("attnphase.explorer").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return _packed(offline.get_plotlyjs().encode())
