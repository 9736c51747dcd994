"""Values of fields: what is read, what types they have, and how large they may be."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping, Sized
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, Strict, WrapValidator

from attnphase.errors import ProblemError

__all__ = [
    "CONFIG",
    "DEEPEST",
    "ENTRIES",
    "MAX_ATOMS",
    "MAX_CLUSTERS",
    "MAX_COLUMNS",
    "MAX_LENGTH",
    "MAX_MEAN_DIRECTIONS",
    "MAX_RANK",
    "MAX_SITES",
    "MAX_TABLE",
    "OR_FUNCTION",
    "PLAIN",
    "TABLE",
    "Coordinate",
    "Entry",
    "Flag",
    "Formula",
    "Level",
    "Name",
    "Named",
    "Noise",
    "PointKey",
    "Probability",
    "Rank",
    "Score",
    "Sigma",
    "Table",
    "Temperature",
    "TooLongError",
    "Variance",
    "is_nested",
    "lists",
    "plain",
    "read_named",
    "read_table",
]

MAX_ATOMS = 65536
"""Limit of the atoms of a spectrum."""

MAX_LENGTH = 16  # tokens
MAX_RANK = 8
MAX_MEAN_DIRECTIONS = 64
MAX_CLUSTERS = 64
MAX_SITES = MAX_LENGTH * MAX_CLUSTERS
MAX_COLUMNS = 2 * MAX_RANK  # of the teacher, the value matrix's included
MAX_TABLE = 2**18  # entries of a law's table, zeros included: 64 clusters for each of three tokens


DEEPEST = MAX_LENGTH  # levels of lists in lists that a value may have


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """Turn lists and NumPy values into tuples and Python numbers, and -0.0 into 0.0.

    Lists nested deeper than `depth` stay as they are, and are refused where a number must be.
    """
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim > depth:
            return value
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(plain(item, depth - 1) for item in value) if depth else value
    return value + 0.0 if isinstance(value, float) else value


TABLE = BeforeValidator(lambda value: dict(value) if isinstance(value, Mapping) else value)
"""Before a table is read: it may be any mapping, and pydantic takes dicts alone."""


class TooLongError(ValueError):
    """A list that is too long, whatever is in it; the text is the end of a sentence."""


def lists(*most: int) -> BeforeValidator:
    """Check how long lists in lists are, level by level, before anything in them is looked at; then `plain`."""

    def validate(value: Any) -> Any:
        _check_lengths(value, most)
        return plain(value, len(most))

    return BeforeValidator(validate)


def _check_lengths(value: Any, most: tuple[int, ...], inner: bool = False) -> None:
    if hasattr(value, "ndim"):
        shape = value.shape
    else:
        shape = (len(value),) if isinstance(value, Sized) and not isinstance(value, str | Mapping) else ()
    for level, (length, limit) in enumerate(zip(shape, most, strict=False)):
        if length > limit:
            what = f"has a list of {length}" if inner or level else f"has {length}"
            raise TooLongError(f"{what} entries, more than {limit}")
    if isinstance(value, list | tuple) and len(most) > 1:
        for item in value:
            _check_lengths(item, most[1:], True)


def read_table(value: Any) -> Any:
    """Check how large a law's table is before anything is made of it."""
    level = [value]
    for _ in range(DEEPEST):
        parts = [item for item in level if isinstance(item, list | tuple | np.ndarray)]
        if sum(item.size if isinstance(item, np.ndarray) else len(item) for item in parts) > MAX_TABLE:
            raise TooLongError(f"has more than {MAX_TABLE} entries")
        level = [item for part in parts if not isinstance(part, np.ndarray) for item in part]
    if any(isinstance(item, list | tuple) for item in level):
        raise TooLongError(f"has more than {DEEPEST} lists in one another")
    return _with_floats(plain(value))


def _with_floats(value: Any) -> Any:
    """Turn the whole numbers of a nested table into floats, as pydantic does for typed fields."""
    if isinstance(value, tuple):
        return tuple(_with_floats(item) for item in value)
    return float(value) if isinstance(value, int) and value in (0, 1) and not isinstance(value, bool) else value


def is_nested(value: Any) -> bool:
    """Tell a list of lists from a list."""
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


_V = TypeVar("_V")


class Named(Mapping[str, _V], Generic[_V]):
    """A mapping that does not change and has a hash: values by names that the user chooses.

    The order is that in which they are given, and equal mappings have the same order.
    """

    def __init__(self, values: Mapping[str, _V]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> _V:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and tuple(self.items()) == tuple(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def __getattr__(self, name: str) -> _V:
        """A value as an attribute, so that ``problem.loss.parameters.beta`` is one."""
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(name) from None


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_MOST_NAMED = 64


def read_named(place: str, value: Any, kind: type[float | str]) -> Named[Any] | None:
    """A table of numbers, or of texts and functions, by names of the user's own.

    Raises
    ------
    ProblemError
        It is none, or a name or a value cannot be used; the sentence names it as it stands in the TOML.
    """
    if value is None or (isinstance(value, Mapping) and not value):
        return None
    if not isinstance(value, Mapping):
        raise ProblemError(place, f"{place} must be a table of names and values, but it is {value!r:.60}.")
    if len(value) > _MOST_NAMED:
        raise ProblemError(place, f"{place} has {len(value)} entries: give at most {_MOST_NAMED}.")
    found: dict[str, Any] = {}
    for name, one in value.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or hasattr(Named, name) or keyword.iskeyword(name):
            raise ProblemError(
                place,
                f'{place} has the name "{name!s:.40}", but a name has up to 32 ASCII letters, digits and underscores,'
                " begins with a letter, and is no keyword of Python or method of a mapping: choose another name.",
            )
        own = plain(one, 0)
        if kind is float and not isinstance(own, bool) and isinstance(own, int | float):
            own = float(own)
        if kind is str and callable(own):
            found[name] = own
            continue
        if not isinstance(own, kind) or (isinstance(own, float) and not abs(own) <= 1e12):
            wanted = "a number of at most 1e12" if kind is float else "a formula as a text, or a function"
            raise ProblemError(f"{place}.{name}", f"{place}.{name} must be {wanted}, but it is {one!r:.60}.")
        found[name] = own
    return Named(found)


# The description of a field is what its error message says the field must be.
PLAIN = BeforeValidator(lambda value: plain(value, 0))
# a function is no text only until a problem has called it
OR_FUNCTION = WrapValidator(lambda value, check: value if callable(value) else check(value))
Sigma = Annotated[float, Strict(), Field(ge=1e-6, le=1e6, allow_inf_nan=False), PLAIN]
Variance = Annotated[float, Strict(), Field(ge=0, le=1e12, allow_inf_nan=False), PLAIN]
Rank = Annotated[int, Strict(), Field(ge=1, le=8, description="a whole number from 1 to 8"), PLAIN]
Noise = Annotated[
    float,
    Strict(),
    Field(ge=0, le=1e6, allow_inf_nan=False, description="a number from 0 to 1e6"),
    PLAIN,
]
Level = Annotated[float, Strict(), Field(ge=1e-12, le=1e12, allow_inf_nan=False), PLAIN]
Coordinate = Annotated[float, Strict(), Field(ge=-1e12, le=1e12, allow_inf_nan=False), PLAIN]
Probability = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False), PLAIN]
Name = Annotated[str, Strict(), Field(min_length=1, max_length=4000)]
Formula = Annotated[str, Strict(), Field(min_length=1, max_length=20_000)]
Score = Annotated[
    Name,
    OR_FUNCTION,
    Field(description='the name of a score, a formula in z, a function of a row, or "module:attribute"'),
]
Temperature = Annotated[
    float,
    Strict(),
    # tokens in units of 2^10 more, or less, have temperatures 2^20 times as large
    Field(ge=2.0**-20, le=2.0**20, allow_inf_nan=False, description="a number from 2^-20 to 2^20 (about 1e-6 to 1e6)"),
    PLAIN,
]
Flag = Annotated[bool, Strict(), Field(description="true or false"), PLAIN]
# of products of coordinates; products of these do not overflow
Entry = Annotated[float, Strict(), Field(ge=-1e24, le=1e24, allow_inf_nan=False), PLAIN]
ENTRIES = "numbers from -1e24 to 1e24"
Table = tuple[tuple[Entry, ...], ...]

PointKey = Literal["positions", "means", "teacher"]  # optional keys of an atom

CONFIG = ConfigDict(extra="forbid")
