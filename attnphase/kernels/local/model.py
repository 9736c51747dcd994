"""What the minimiser is told of a model: sizes, where its rows are, and the addresses of its functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["FUNCTIONS", "NUMBERS", "PLACES", "Model", "Record", "model_of"]

_SIZES = ("LENGTH", "COLUMNS", "LABEL_FIELDS", "TARGET_COLUMNS", "KINKS", "LANES", "TARGETS")
# rows of a block, by the place of their first number
_ROWS = ("CENTER", "TARGET", "POINT", "GRADIENT", "SLOPE", "CURVATURE", "STEP", "BEST", "OTHER", "ENERGY", "LOSS")
_ROWS = (
    *_ROWS,
    "SHIFT",
    "STEPS",
    "TRIES",
    "EXPECTED",
    "DEFINITE",
    "WIDEST",
    "DEEPEST",
    "EVENT",
    "FACTOR",
    "VARIANCE",
    "ROWS",
)
FUNCTIONS = (
    "newton_trial",
    "newton_step",
    "teacher_targets",
    "lane_losses",
    "teacher_target",
    "loss",
    "loss_gradient",
    "loss_derivatives",
    "kinked_derivatives",
    "trained_derivatives",
    "closed_form",
)
"""Of a model; those that it has not have the address zero."""

NUMBERS = np.dtype(
    [(name.lower(), np.uint64) for name in (*_SIZES, "FIELDS", "OWN", *_ROWS)]
    + [(f"{name}_at", np.int64) for name in FUNCTIONS],
    align=True,
)
"""A model's numbers, of names that no array has for anything else; without a sign, no index counts from the end."""


def _sizes(length: int, columns: int, kinks: int, targets: int, numbers: int) -> dict[str, int]:
    """How many numbers of one sample the descents write, one quantity after another; see `along_kinks` and `search`."""
    fields = length * columns
    vectors = ("center", "u", "h", "gradient", "slope", "trial", "best", "other", "origin", "step")
    of_kinks = ("multipliers", "arguments", "signs", "weights", "offsets", "uncorrected", "change", "kept")
    return {
        **dict.fromkeys(vectors, fields),
        **dict.fromkeys(("hessian", "curvature", "lower"), fields**2),
        **dict.fromkeys(of_kinks, kinks),
        **dict.fromkeys(("normals", "slopes", "scaled", "last"), kinks * fields),
        "bounds": kinks**2,
        "factor": fields * columns,
        "target": length * targets,
        "variance": length**2,
        "parameters": numbers,
        "end": 0,
    }


PLACES = np.dtype([(name, np.uint64) for name in _sizes(1, 1, 1, 1, 1)], align=True)
"""Where numbers of one sample are in the array of its descents."""


class Record(Protocol):
    """Numbers without a sign by their names, as one entry of `NUMBERS` or `PLACES`."""

    def __getattr__(self, name: str, /) -> int: ...


class Model(NamedTuple):
    """A model as the minimiser takes it.

    Attributes
    ----------
    numbers, places : (1,) arrays of `NUMBERS` and `PLACES`
    columns, lift : (L r,) arrays of int
        Column of each of the student's fields, and place of that of the teacher's from which it may start.
    """

    numbers: NDArray[Any]
    places: NDArray[Any]
    columns: NDArray[np.uint64]
    lift: NDArray[np.uint64]


def model_of(constants: Mapping[str, Any], addresses: Mapping[str, int]) -> Model:
    """A model of the constants of its generated modules and the addresses of its functions.

    Parameters
    ----------
    constants : mapping
        By the names that the generated modules have; rows are there where the model has lanes.
    addresses : mapping
        By the names in `FUNCTIONS`.
    """
    numbers, lanes = np.zeros(1, NUMBERS), constants.get("LANES", 0)
    for name in _SIZES:
        numbers[name.lower()] = constants.get(name, 0)
    for name in _ROWS:
        numbers[name.lower()] = constants.get(name, 0) * lanes
    for name in FUNCTIONS:
        numbers[f"{name}_at"] = addresses.get(name, 0)
    numbers["fields"] = constants["LENGTH"] * constants["COLUMNS"]
    numbers["own"] = "FACTOR" in constants
    sizes = ("LENGTH", "COLUMNS", "KINKS", "TARGET_COLUMNS")
    known = _sizes(*(constants[name] for name in sizes), numbers=4 + constants["COLUMNS"] + constants["PARAMETERS"])
    places = np.array([(0, *np.cumsum([*known.values()][:-1]))], PLACES)
    token, column = np.divmod(np.arange(constants["LENGTH"] * constants["COLUMNS"]), constants["COLUMNS"])
    lift = token * constants["LABEL_FIELDS"] + np.take(constants["LIFT"], column)
    return Model(numbers, places, column.astype(np.uint64), lift.astype(np.uint64))
