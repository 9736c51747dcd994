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
from attnphase.data.validate import validate_dataset, validate_kind
from attnphase.errors import DatasetError
from attnphase.explorer.payload import Line, Quantity, Table, lines_of, table_of
from attnphase.extras import require_plotly
from attnphase.files.writing import check_output, write_file

__all__ = ["ExplorePage", "explore"]

_KINDS = ("points", "experiments", "histogram")
_DIGITS_OF_VALUES, _DIGITS_OF_ERRORS = 20, 10  # bits of a number's mantissa: six decimal digits, and three


@dataclass(frozen=True, eq=False)
class ExplorePage:
    """A page that moves. Notebooks show it in a frame.

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
    """A page with a map of any variable over any two axes, and the curves through the point that is chosen.

    Parameters
    ----------
    dataset : xarray.Dataset
        A sweep, training runs, or the histogram task.
    runs : xarray.Dataset, optional
        Training runs to be drawn beside the curves of a sweep, where these have the same fields.
    thresholds : xarray.Dataset, optional
        To be drawn over the map of a sweep.

    Returns
    -------
    ExplorePage
        With `save`; the last value of a notebook's cell is shown.

    Raises
    ------
    DatasetError
        A dataset does not follow the schema, is of a kind without axes, or has a single point.
    ProblemError
        An argument is of the wrong type.
    MissingExtraError
        Plotly is not installed.
    """
    require_plotly()
    arguments.instance("dataset", dataset, xr.Dataset)
    validate_dataset(dataset)
    if dataset.attrs["schema"] not in _KINDS:
        raise DatasetError(f"a page shows {', '.join(_KINDS)}, but the dataset holds {dataset.attrs['schema']}.")
    for name, kind, other in (("runs", "experiments", runs), ("thresholds", "thresholds", thresholds)):
        if other is None:
            continue
        if dataset.attrs["schema"] != "points":
            raise DatasetError(f"{name} are drawn beside a sweep, but the dataset holds {dataset.attrs['schema']}.")
        validate_kind(name, arguments.instance(name, other, xr.Dataset), kind)
    table = table_of(dataset)
    places = [axis for axis in table.axes if axis.role == "field" and not isinstance(axis.values[0], str)]
    if not any(len(axis.values) > 1 for axis in places):
        raise DatasetError("the dataset has one value of alpha and of every field: there is nothing to explore.")
    title = str(dataset.attrs.get("title", "attnphase"))
    beside = None if runs is None else table_of(runs)
    lines = () if thresholds is None else lines_of(thresholds)
    return ExplorePage(_page(title, dataset, table, beside, lines, runs), title)


def _page(
    title: str, ds: xr.Dataset, table: Table, runs: Table | None, lines: Sequence[Line], runs_ds: xr.Dataset | None
) -> str:
    numbers: list[Array] = []
    what: dict[str, Any] = {
        "title": title,
        "problem": str(ds.attrs.get("problem", "")),
        "made": f"attnphase {ds.attrs.get('attnphase_version', '?')}, {ds.attrs.get('created', '')}",
        "table": _described(table, numbers),
        "runs": None if runs is None else _described(runs, numbers),
        "runs_at": {} if runs_ds is None else _scalars(runs_ds),
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


def _scalars(ds: xr.Dataset) -> dict[str, Any]:
    """Fields of which runs have one value, as a coordinate."""
    return {str(name): ds[name].item() for name in ds.coords if ds[name].ndim == 0}


def _packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def _asset(name: str) -> str:
    return resources.files("attnphase.explorer").joinpath(name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return _packed(get_plotlyjs().encode())
