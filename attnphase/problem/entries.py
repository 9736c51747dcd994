"""Numbers of fields that are lists, by names such as ``regularizer.strength[1]``."""

from __future__ import annotations

import operator
import re
from typing import Any

from attnphase.errors import ProblemError

__all__ = ["changed", "entry_of", "get", "is_share", "put", "value_of", "with_shares"]

_ENTRY = re.compile(r"([^\[\]]+)\[(\d{1,4})\]")
_SHARES = {"tokens.law.weights": "tokens.law_weights", "teacher.prior_probabilities": "teacher.prior_probabilities"}
"""Lists of probabilities, and where a problem has them if they are not given; one changes the others in proportion."""


def entry_of(name: str) -> tuple[str, int | None]:
    """A name without its index, and the index from 0; None where it has none."""
    found = _ENTRY.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, None)


def value_of(problem: Any, name: str) -> Any:
    """The value of a field by its name.

    Raises
    ------
    AttributeError
        There is no such field.
    ProblemError
        It has no such entry.
    """
    field, index = entry_of(name)
    if index is None:
        return operator.attrgetter(field)(problem)
    return _numbers(name, operator.attrgetter(_SHARES.get(field, field))(problem))[index]


def is_share(name: str) -> bool:
    """Whether a name is that of one of the probabilities of a list, which sum to 1."""
    field, index = entry_of(name)
    return index is not None and field in _SHARES


def changed(name: str, values: Any, value: Any) -> list[Any]:
    """A list of numbers with another value of the entry that a name has the index of.

    Other probabilities of a list change by a common factor, so that their sum stays 1.

    Raises
    ------
    ProblemError
        There is no such entry, or no value.
    """
    found, (_, index) = _numbers(name, values), entry_of(name)
    if value is None:
        raise ProblemError(name, f"{name} has no default: give it a number, or change the whole list.")
    factor = 1.0
    if is_share(name) and isinstance(value, int | float):
        if not 0 <= value <= 1:
            raise ProblemError(name, f"{name} must be a probability, a number from 0 to 1, but is {value:.6g}.")
        rest = sum(one for i, one in enumerate(found) if i != index)
        if rest == 0 and value != 1:
            raise ProblemError(
                name, f"{name} is 1, and its change leaves open which others grow: change the whole list."
            )
        factor = (1 - value) / rest if rest else 1.0
    return [value if i == index else one * factor for i, one in enumerate(found)]


def put(data: dict[str, Any], name: str, value: Any) -> None:
    """Give a field of plain sections a value, or an entry of one that is a list; None where it varies."""
    (whole, index), entries = entry_of(name), data
    *tables, key = whole.split(".")
    for table in tables:
        entries = entries.setdefault(table, {})
        if not isinstance(entries, dict):  # another law than the ready-made one whose number it is
            return
    if index is None:
        entries[key] = value
    else:
        given = entries.get(key) or []
        if is_share(name) and given:
            entries[key] = [None] * len(given) if value is None else changed(name, given, value)
        else:
            entries[key] = [value if i == index else one for i, one in enumerate(given)]


def get(data: dict[str, Any], name: str) -> Any:
    """The value of a field of plain sections, or of an entry of one that is a list; None if there is none."""
    (whole, index), value = entry_of(name), data
    for part in whole.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if index is None else value[index] if isinstance(value, list) and index < len(value) else None


def with_shares(problem: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Plain sections of a problem with the lists of probabilities that it need not say, because they are equal."""
    for name, place in _SHARES.items():
        values = operator.attrgetter(place)(problem)
        if values is not None and get(data, name) is None:
            put(data, name, list(values))
    return data


def _numbers(name: str, values: Any) -> list[Any]:
    """The list that a name has an index in."""
    field, index = entry_of(name)
    numbers = list(values) if isinstance(values, list | tuple) else []
    if index is None or index >= len(numbers) or any(isinstance(one, list | tuple | dict) for one in numbers):
        size = f"a list of {len(numbers)} entries, numbered from 0" if numbers else "no list of numbers"
        raise ProblemError(name, f"{name} is no number of this problem, whose {field} is {size}.")
    return numbers
