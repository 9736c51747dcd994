"""Numbers of fields that are lists, by names such as ``regularizer.strength[1]``."""

from __future__ import annotations

import operator
import re
from typing import Any

from attnphase.errors import ProblemError

__all__ = ["changed", "entry_of", "get", "put", "value_of"]

_ENTRY = re.compile(r"([^\[\]]+)\[(\d{1,4})\]")


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
    value = operator.attrgetter(field)(problem)
    return value if index is None else _numbers(name, value)[index]


def changed(name: str, values: Any, value: Any) -> list[Any]:
    """A list of numbers with another value of the entry that a name has the index of.

    Raises
    ------
    ProblemError
        There is no such entry, or no value.
    """
    found, (_, index) = _numbers(name, values), entry_of(name)
    if value is None:
        raise ProblemError(name, f"{name} has no default: give it a number, or change the whole list.")
    return [value if i == index else one for i, one in enumerate(found)]


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
        entries[key] = [value if i == index else one for i, one in enumerate(entries.get(key) or [])]


def get(data: dict[str, Any], name: str) -> Any:
    """The value of a field of plain sections, or of an entry of one that is a list; None if there is none."""
    (whole, index), value = entry_of(name), data
    for part in whole.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if index is None else value[index] if isinstance(value, list) and index < len(value) else None


def _numbers(name: str, values: Any) -> list[Any]:
    """The list that a name has an index in."""
    field, index = entry_of(name)
    numbers = list(values) if isinstance(values, list | tuple) else []
    if index is None or index >= len(numbers) or any(isinstance(one, list | tuple | dict) for one in numbers):
        size = f"a list of {len(numbers)} entries, numbered from 0" if numbers else "no list of numbers"
        raise ProblemError(name, f"{name} is no number of this problem, whose {field} is {size}.")
    return numbers
