"""Checks of the arguments of public functions.

A scalar counts as a list of one value, and NumPy's numbers count as numbers. Any other value that does not fit raises a
`ProblemError`, one sentence that names the argument.  Nothing heavy is imported, so that this takes no time.
"""

from __future__ import annotations

import difflib
import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from attnphase.errors import ProblemError

__all__ = [
    "device_name",
    "flag",
    "flag_or_none",
    "function",
    "instance",
    "items",
    "mapping",
    "number",
    "numbers",
    "path",
    "shown",
    "text",
    "whole",
    "wholes",
    "word",
    "words",
]

_T = TypeVar("_T")
_Word = TypeVar("_Word", bound=str)
_LARGEST = 2**63 - 1
_LONGEST = 60  # characters of a value in a message
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _LONGEST


def shown(value: Any) -> str:
    """Return a value as a message shows it: one line of at most 60 characters."""
    try:
        text = " ".join(_SHORT.repr(_scalar(value)).split())
    except ValueError:  # a whole number of more digits than Python prints
        return "a whole number of thousands of digits"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _scalar(value: Any) -> Any:
    """Return the only entry of an array without dimensions, NumPy's or xarray's; any other value as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value


def items(name: str, value: Any) -> tuple[Any, ...]:
    """Return the entries of a list, tuple, range or one-dimensional array; a scalar or a text is one entry.

    Raises
    ------
    ProblemError
        The list is empty, or the value is no list: a mapping, a set, an array of more dimensions, or None.
    """
    value = _scalar(value)
    if isinstance(value, str | bytes | Real):
        return (value,)
    listed = isinstance(value, Sequence) or getattr(value, "ndim", None) == 1
    if not listed:
        raise ProblemError(name, f"{name} must be a value or a list of values, not {shown(value)}.")
    values = tuple(_scalar(item) for item in value)
    if not values:
        raise ProblemError(name, f"{name} must hold at least one value.")
    return values


def number(name: str, value: Any, accept: Callable[[float], bool], what: str) -> float:
    """Return a value as a float, if it is a finite real number in range; a boolean is no number.

    Parameters
    ----------
    accept
        Returns whether a number is in range; called with finite numbers only.
    what
        What the argument must be, for the message: "a positive number".

    Raises
    ------
    ProblemError
        The value is no such number.
    """
    single = _scalar(value)
    real = isinstance(single, Real) and not isinstance(single, bool)
    try:
        plain = float(single) if real else float("nan")
    except OverflowError:  # an integer beyond double precision
        plain = float("nan")
    if not (abs(plain) < float("inf") and accept(plain)):
        raise ProblemError(name, f"{name} must be {what}, not {shown(single)}.")
    return plain + 0.0  # zero has no sign


def numbers(name: str, value: Any, accept: Callable[[float], bool], what: str) -> tuple[float, ...]:
    """Return one or several distinct real numbers; see `number`.

    Raises
    ------
    ProblemError
        A value is not in range, is given twice, or there is none.
    """
    return _distinct(name, [number(name, item, accept, what) for item in items(name, value)])


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return a value as an int, if it is a whole number from `least` to `most`, by default 2**63 - 1.

    Raises
    ------
    ProblemError
        The value is no such number.
    """
    single = _scalar(value)
    known = isinstance(single, Integral) and not isinstance(single, bool)
    if not known or not least <= int(single) <= (_LARGEST if most is None else most):
        small = most is None and not (known and int(single) > _LARGEST)
        span = f"of at least {least}" if small else f"from {least} to {_LARGEST if most is None else most}"
        raise ProblemError(name, f"{name} must be a whole number {span}, not {shown(single)}.")
    return int(single)


def wholes(name: str, value: Any, least: int, most: int | None = None) -> tuple[int, ...]:
    """Return one or several distinct whole numbers; see `whole`.

    Raises
    ------
    ProblemError
        A value is not in range, is given twice, or there is none.
    """
    return _distinct(name, [whole(name, item, least, most) for item in items(name, value)])


def word(name: str, value: Any, choices: Sequence[_Word]) -> _Word:
    """Return a word that is one of the choices.

    Raises
    ------
    ProblemError
        The value is none of them; the message proposes the most similar one.
    """
    if isinstance(value, str) and value in choices:
        return choices[choices.index(value)]
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    hint = f': did you mean "{near[0]}"?' if near else "."
    given = f'"{value}"' if isinstance(value, str) and len(value) <= _LONGEST else shown(value)
    raise ProblemError(name, f"{name} must be one of {', '.join(choices)}, not {given}{hint}")


def words(name: str, value: Any, choices: Sequence[_Word]) -> tuple[_Word, ...]:
    """Return one or several distinct choices; see `word`.

    Raises
    ------
    ProblemError
        A value is no choice, is given twice, or there is none.
    """
    return _distinct(name, [word(name, item, choices) for item in items(name, value)])


def _distinct(name: str, values: list[_T]) -> tuple[_T, ...]:
    met: set[_T] = set()
    for value in values:
        if value in met:
            raise ProblemError(name, f"{name} has {shown(value)} twice: give every value once.")
        met.add(value)
    return tuple(values)


def flag(name: str, value: Any) -> bool:
    """Return True or False, also from NumPy's booleans.

    Raises
    ------
    ProblemError
        The value is neither.
    """
    single = _scalar(value)
    if not isinstance(single, bool):
        raise ProblemError(name, f"{name} must be True or False, not {shown(value)}.")
    return single


def flag_or_none(name: str, value: Any) -> bool | None:
    """Return True, False or None.

    Raises
    ------
    ProblemError
        The value is none of them.
    """
    return None if value is None else flag(name, value)


def text(name: str, value: Any, what: str) -> str:
    """Return a value that is a text.

    Parameters
    ----------
    what
        What the argument must be, for the message: "TOML as a text".

    Raises
    ------
    ProblemError
        The value is no text.
    """
    if not isinstance(value, str):
        raise ProblemError(name, f"{name} must be {what}, not {shown(value)}.")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    """Return a value that can be called.

    Raises
    ------
    ProblemError
        The value cannot be called.
    """
    if not callable(value):
        raise ProblemError(name, f"{name} must be a function, not {shown(value)}.")
    return value


def path(name: str, value: Any) -> Path:
    """Return the path that a text or a path-like object gives.

    Raises
    ------
    ProblemError
        The value is neither, is empty, or contains a null character.
    """
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ProblemError(name, f"{name} must be the path of a file, not {shown(value)}.")
    return Path(text)


def instance(name: str, value: Any, kind: type[_T], how: str = "") -> _T:
    """Return a value that is an object of a class.

    Parameters
    ----------
    how
        How to get such an object, for the message: "read it by load_problem"; by default what the class says of
        itself by ``MADE_BY``.

    Raises
    ------
    ProblemError
        The value is of another class.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        how = how or getattr(kind, "MADE_BY", "")
        hint = f": {how}" if how else ""
        raise ProblemError(name, f"{name} must be {article} {kind.__name__}, not {shown(value)}{hint}.")
    return value


def mapping(name: str, value: Any, what: str) -> dict[str, Any]:
    """Return a mapping whose keys are texts, as a dict.

    Parameters
    ----------
    what
        What the argument must be, for the message: "a mapping from fields of the problem to values".

    Raises
    ------
    ProblemError
        The value is no such mapping.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ProblemError(name, f"{name} must be {what}, not {shown(value)}.")
    return dict(value)


def device_name(name: Any) -> str:
    """Return the name of a device, "cpu", "cuda" or "cuda:0"; `kernels.torch.device` checks whether it exists here.

    Raises
    ------
    ProblemError
        The value is no such name.
    """
    if not isinstance(name, str) or not re.fullmatch(r"cpu|cuda(:\d{1,3})?", name):
        given = shown(name)
        rule = 'device must be "cpu", "cuda" or, with several GPUs, a name such as "cuda:0"'
        raise ProblemError("device", f"{rule}, not {given}.")
    return name
