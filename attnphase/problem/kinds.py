"""Fields that name one of several kinds: what they may be, and which other keys go with each.

A kind is one class in one file, with its flags; `REGULARIZERS`, `LOSSES` and their like hold an instance of each by
name.  Nobody else asks for a kind by its name: what is wanted of it is a flag or a method of the class.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pydantic import AfterValidator

from attnphase.errors import ProblemError
from attnphase.problem.messages import listed
from attnphase.problem.schema import Kind, keys

__all__ = ["alternatives", "check_keys", "check_law_keys", "one_of"]


def alternatives(names: Iterable[str]) -> str:
    """Names as what a field must be: ``"a", "b" or "c"``."""
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def one_of(names: Collection[str]) -> AfterValidator:
    """A validator that refuses other texts than these names."""

    def validate(value: str) -> str:
        if value not in names:
            raise ValueError
        return value

    return AfterValidator(validate)


def check_keys(
    section: str, table: Any, kinds: Mapping[str, Kind], optional: Iterable[str], named: str = "kind"
) -> None:
    """Check that the optional keys of a section come with a kind that they belong to, and all that it needs.

    The key `named` has the kind's name.

    Raises
    ------
    ProblemError
        Naming the key.
    """
    kind = kinds[getattr(table, named)]
    for key in optional:
        given = getattr(table, key) is not None
        if not given and key in kind.needs:
            raise ProblemError(f"{section}.{key}", f'{section}.{named} = "{kind.name}" needs {section}.{key}: give it.')
        if given and key not in kind.keys:
            owner = next(name for name, other in kinds.items() if key in other.keys)
            raise ProblemError(
                f"{section}.{key}",
                f'{section}.{key} does not go with {section}.{named} = "{kind.name}": set'
                f' {section}.{named} = "{owner}", or remove it.',
            )


def check_law_keys(place: str, law: Any, kinds: Mapping[str, Kind]) -> None:
    """Check the keys of a ready-made law, whose table is ``place``; see `check_keys`.

    Raises
    ------
    ProblemError
        Naming the table.
    """
    kind = kinds[law.kind]
    for key in keys(type(law)):
        given = getattr(law, key) is not None
        if given and key not in ("kind", *kind.keys):
            word = place.rpartition(".")[2]
            raise ProblemError(
                place,
                f'{place}.{key} does not go with the {word} kind "{kind.name}", which has {listed(kind.keys)}:'
                " remove it.",
            )
        if not given and key in kind.needs:
            raise ProblemError(place, f'{place} of kind "{kind.name}" needs {key}: give it.')
