"""A sweep that solves points where a boundary passes, and a coarse lattice of the others, round after round.

What a round solves follows from the points of those before alone. Its lines are as those of any sweep, so that finished
ones are taken up after an interruption, and the next round is the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from attnphase.data.boundaries import COMPARED, classes, compared_branches
from attnphase.data.variables import POINT_VARIABLES
from attnphase.errors import ProblemError
from attnphase.sweeps.lattice import points_at_boundaries
from attnphase.sweeps.line import Line

__all__ = ["SolveRound", "check_refinable", "line_of_parts", "solved_at_boundaries"]

SolveRound = Callable[[Sequence[Line], str], Sequence[xr.Dataset]]
"""Solves lines, after a few words on which they are."""

_MISSING = {name: variable.missing for variable in POINT_VARIABLES for name in variable.names}


def check_refinable(swept: Mapping[str, Sequence[Any]]) -> None:
    """Refuse a grid on which no boundary can be followed.

    Raises
    ------
    ProblemError
        Naming ``refine``.
    """
    if not any(_divided(values) for values in swept.values()):
        raise ProblemError(
            "refine", "refine needs three or more values of alpha or of a field of real numbers, as --alpha 0.1:2:200."
        )


def _divided(values: Sequence[Any]) -> bool:
    return len(values) > 2 and all(isinstance(value, float) for value in values)


def solved_at_boundaries(
    lines: Sequence[Line], swept: Mapping[str, Sequence[Any]], solve: SolveRound
) -> tuple[list[Line], list[xr.Dataset]]:
    """Solve the points of a grid between which a boundary passes, and a coarse lattice of the others.

    Parameters
    ----------
    lines : sequence of Line
        Of the whole grid.
    swept : mapping
        Its values along branch, fields and alpha.
    solve : callable

    Returns
    -------
    list of Line, list of xarray.Dataset
        The parts of lines that were solved; and a dataset for each of `lines`, in which the other points are
        ``not_computed``.
    """
    axes = [np.asarray(values) for name, values in swept.items() if name not in ("branch", "alpha")]
    axes.append(np.asarray(swept["alpha"]))
    divided = [_divided(values.tolist()) for values in axes]
    orders = [np.argsort(values) if one else np.arange(len(values)) for values, one in zip(axes, divided, strict=True)]
    grid = _Grid(tuple(lines), tuple(swept["branch"]), tuple(map(len, axes)), np.ix_(*orders), solve)
    points_at_boundaries(grid.sizes, divided, compared_branches(grid.branches), grid.classes_of)
    return grid.parts, [grid.whole(i) for i in range(len(lines))]


@dataclass
class _Grid:
    """The points of a grid, as they come.

    Attributes
    ----------
    lines : tuple of Line
        Of the whole grid, branch by branch.
    branches : tuple of str
    sizes : tuple of int
        Without that of the branches; alpha is last.
    sorted : tuple of arrays
        Index that puts every axis into its natural order.
    solve : callable
    """

    lines: tuple[Line, ...]
    branches: tuple[str, ...]
    sizes: tuple[int, ...]
    sorted: tuple[NDArray[np.intp], ...]
    solve: SolveRound
    parts: list[Line] = field(default_factory=list)
    _solved: dict[int, list[tuple[NDArray[np.intp], xr.Dataset]]] = field(default_factory=dict)
    _columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    _rounds: int = 0

    def __post_init__(self) -> None:
        shape = (len(self.lines), self.sizes[-1])
        self._columns = {name: np.full(shape, _MISSING[name]) for name in COMPARED}

    def classes_of(self, wanted: NDArray[np.bool_]) -> NDArray[np.int8]:
        """Solve points of branches, over the sorted axes, and say on which side of every boundary all are."""
        here = np.zeros((len(self.branches), *self.sizes), dtype=bool)
        here[(slice(None), *self.sorted)] = wanted
        rows = here.reshape(-1, self.sizes[-1])
        todo = {i: np.flatnonzero(row) for i, row in enumerate(rows) if row.any()}
        parts = [replace(self.lines[i], alphas=tuple(self.lines[i].alphas[k] for k in at)) for i, at in todo.items()]
        self._rounds += 1
        found = self.solve(parts, "a coarse lattice" if self._rounds == 1 else f"boundaries, round {self._rounds - 1}")
        self.parts += parts
        for (i, at), ds in zip(todo.items(), found, strict=True):
            self._solved.setdefault(i, []).append((at, ds))
            for name, column in self._columns.items():
                column[i, at] = ds[name].to_numpy()
        by_branch = {name: column.reshape(-1, *self.sizes) for name, column in self._columns.items()}
        return classes(by_branch, self.branches)[(slice(None), *self.sorted)]

    def whole(self, i: int) -> xr.Dataset:
        """A line over all alpha, from its parts."""
        pattern = next(iter(self._solved.values()))[0][1]
        return line_of_parts(self._solved.get(i, []), self.sizes[-1], pattern)


def line_of_parts(parts: Sequence[tuple[NDArray[np.intp], xr.Dataset]], size: int, pattern: xr.Dataset) -> xr.Dataset:
    """A line of so many alpha from parts of it, with their places; the rest is ``not_computed``, as of `pattern`."""
    variables = {}
    for name, array in pattern.data_vars.items():
        missing = _MISSING.get(str(name), np.nan)  # of a test metric, or a trained parameter
        column = np.full((size, *array.shape[1:]), missing, dtype=array.dtype)
        for at, ds in parts:
            column[at] = ds[name].to_numpy()
        variables[name] = (array.dims, column)
    rules = {rule for _, ds in parts for rule in ds.attrs["rule"].split(", ")} or {pattern.attrs["rule"]}
    return xr.Dataset(variables, attrs={"rule": ", ".join(sorted(rules))})
