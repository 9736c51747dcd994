"""Numbers within fields, by names such as ``regularizer.strength[1]`` and ``tokens.clusters[1].mean[0]``."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from attnphase.errors import ProblemError

__all__ = ["changed", "entry_of", "get", "is_share", "put", "same_list", "value_of", "with_shares"]

_ENTRY = re.compile(r"([^\[\]]+)((?:\[\d{1,4}\](?:\.\w+)?)+)")
_STEP = re.compile(r"\[(\d+)\]|\.(\w+)")
_SHARES = {
    "tokens.law.weights": "tokens.law_weights",
    "tokens.law.transition": None,
    "teacher.prior_probabilities": "teacher.prior_probabilities",
}
"""Lists of probabilities, or tables of such rows, and where a problem has them if they need not be given; one
probability changes the others of its list in proportion."""
_SYMMETRIC = ("positions.gram",)
"""Tables of which one entry changes its mirror image too."""

Steps = tuple[int | str, ...]


def entry_of(name: str) -> tuple[str, Steps]:
    """A field's name, and the steps from it to a number within it, indices from 0 and keys; of a field, none."""
    found = _ENTRY.fullmatch(name)
    if not found:
        return name, ()
    return found[1], tuple(int(index) if index else key for index, key in _STEP.findall(found[2]))


def value_of(problem: Any, name: str) -> Any:
    """The value of a field by its name, or of a number within it.

    Raises
    ------
    AttributeError
        There is no such field.
    ProblemError
        It has no such entry.
    """
    field, steps = entry_of(name)
    if not steps:
        return operator.attrgetter(field)(problem)
    values = _at(problem, tuple(field.split(".")))
    if values is None and (place := _SHARES.get(field)) is not None:
        values = operator.attrgetter(place)(problem)
    return _number(name, values)


def is_share(name: str) -> bool:
    """Whether a name is that of one of the probabilities of a list, which sum to 1."""
    field, steps = entry_of(name)
    return bool(steps) and field in _SHARES


def same_list(one: str, other: str) -> bool:
    """Whether two names are of numbers in the same list."""
    (field, steps), (its, theirs) = entry_of(one), entry_of(other)
    return field == its and steps[:-1] == theirs[:-1]


def changed(name: str, values: Any, value: Any) -> Any:
    """A field's plain lists and tables with another value of the number that a name is the name of.

    Other probabilities of a list change by a common factor, so that their sum stays 1.

    Raises
    ------
    ProblemError
        There is no such entry, or no value.
    """
    _number(name, values)
    field, steps = entry_of(name)
    if value is None:
        raise ProblemError(name, f"{name} has no default: give it a number, or change the whole list.")
    if is_share(name) and isinstance(value, int | float):
        found = _at(values, steps[:-1])
        factor = _factor(name, [one for i, one in enumerate(found) if i != steps[-1]], value)
        row = [value if i == steps[-1] else one * factor for i, one in enumerate(found)]
        return _replaced(values, steps[:-1], row)
    if field in _SYMMETRIC:
        values = _replaced(values, steps[::-1], value)
    return _replaced(values, steps, value)


def _factor(name: str, others: Sequence[float], value: float) -> float:
    """By what the other probabilities of a list change."""
    if not 0 <= value <= 1:
        raise ProblemError(name, f"{name} must be a probability, a number from 0 to 1, but is {value:.6g}.")
    rest = sum(others)
    if rest == 0 and value != 1:
        raise ProblemError(name, f"{name} is 1, and its change leaves open which others grow: change the whole list.")
    return (1 - value) / rest if rest else 1.0


def put(data: dict[str, Any], name: str, value: Any) -> None:
    """Give a field of plain sections a value, or a number within it; None where it varies."""
    (whole, steps), entries = entry_of(name), data
    *tables, key = whole.split(".")
    for table in tables:
        entries = entries.setdefault(table, {})
        if not isinstance(entries, dict):  # another law than the ready-made one whose number it is
            return
    if not steps:
        entries[key] = value
        return
    given = entries.get(key) or []
    row = _at(given, steps[:-1])
    if row is None or (isinstance(steps[-1], int) and not isinstance(row, list)):
        return
    if is_share(name) and row:
        row = [None] * len(row) if value is None else _at(changed(name, given, value), steps[:-1])
    else:
        row = _replaced(row, steps[-1:], value)
    given = _replaced(given, steps[:-1], row)
    entries[key] = _replaced(given, steps[::-1], value) if whole in _SYMMETRIC else given


def get(data: dict[str, Any], name: str) -> Any:
    """The value of a field of plain sections, or of a number within it; None if there is none."""
    (whole, steps), value = entry_of(name), data
    for part in whole.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return _at(value, steps)


def with_shares(problem: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Plain sections of a problem with the lists of probabilities that it need not say, because they are equal."""
    for name, place in _SHARES.items():
        values = None if place is None else operator.attrgetter(place)(problem)
        if values is not None and get(data, name) is None:
            put(data, name, list(values))
    return data


def _at(values: Any, steps: Steps) -> Any:
    """What stands at the end of steps through lists and tables; None if nothing does."""
    for step in steps:
        if isinstance(step, int):
            values = values[step] if isinstance(values, list | tuple) and step < len(values) else None
        else:
            values = values.get(step) if isinstance(values, dict) else getattr(values, step, None)
    return values


def _replaced(values: Any, steps: Steps, value: Any) -> Any:
    """A copy of lists and tables with another value at the end of steps."""
    if not steps:
        return value
    first, *rest = steps
    if isinstance(first, str):
        return {**values, first: _replaced(values.get(first), tuple(rest), value)}
    return [_replaced(one, tuple(rest), value) if i == first else one for i, one in enumerate(values)]


def _number(name: str, values: Any) -> Any:
    """The number that a name is the name of.

    Raises
    ------
    ProblemError
        There is none, or what is there is no number but a list or a table.
    """
    place, steps = entry_of(name)
    for step in steps:
        below = _at(values, (step,))
        if below is None:
            break
        values, place = below, place + (f"[{step}]" if isinstance(step, int) else f".{step}")
    else:
        if isinstance(values, int | float | str):
            return values
    what = _described(values, place, name.removeprefix(place).strip("."))
    raise ProblemError(name, f"{name} is no number of this problem, whose {place} is {what}")


def _described(values: Any, place: str, word: str) -> str:
    """What a value at a place is, whose entries are not what a word was taken for."""
    if isinstance(values, list | tuple) and values:
        each = "" if word else f": name one, as {place}[0]"
        return f"a list of {len(values)} entries, numbered from 0{each}."
    if values is None or isinstance(values, int | float | str | list | tuple):
        return "no list of numbers."
    keys = [*values] if isinstance(values, dict) else [item.name for item in fields(values)]
    nearest = difflib.get_close_matches(word, keys, 1)
    return f"a table with {', '.join(keys)}" + (f": did you mean {place}.{nearest[0]}?" if nearest else ".")
