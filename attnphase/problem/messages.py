"""Errors of values as sentences that name the field as it stands in the TOML."""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.problem.schema import (
    Kind,
    Notes,
    as_lists,
    described_by,
    is_nested_table,
    keys,
    notes_of,
    register,
    sections,
)
from attnphase.problem.values import TooLongError, plain

__all__ = ["listed", "nearest_keys", "shown", "toml_table", "unknown_key"]

_T = TypeVar("_T")
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


def toml_table(place: str, *tags: str, **notes: Any) -> Callable[[type[_T]], type[_T]]:
    """Make a pydantic dataclass the description of a table of the TOML, whose errors are `ProblemError`.

    Parameters
    ----------
    place
        Where the table stands, such as ``tokens.law``.
    tags
        Those of the types of this field that the class stands for, where the field has several.
    **notes
        Fields of `Notes`.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        target: Any = cls
        register(cls, place, tags, Notes(**notes))
        validate = target.__init__

        @functools.wraps(validate)
        def construct(self: _T, /, *args: Any, **kwargs: Any) -> None:
            try:
                validate(self, *args, **kwargs)
            except ValidationError as error:
                raise _as_problem_error(place, cls, error) from None

        target.__init__ = construct
        return cls

    return decorate


def listed(items: Sequence[Any]) -> str:
    """Return ``a, b and c``."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def nearest_keys(owner: type, place: str, key: str) -> list[str]:
    """Return what a key that its table does not have may mean, the likeliest first: in the table, or elsewhere."""
    prefix, last = f"{place}." if place else "", key.rpartition(".")[2]
    elsewhere = [meant for home, section in sections().items() if (meant := _meant(home, section, last))]
    nearest = [meant for meant in [_meant(place, owner, last) if place else next(iter(elsewhere), None)] if meant]
    nearest += [f'"{prefix}{close}"' for close in difflib.get_close_matches(key, keys(owner), 1)]
    if not nearest:  # perhaps the right key in the wrong section
        nearest = elsewhere
        homes = {item: f'"{home}.{item}"' for home, section in sections().items() for item in keys(section)}
        nearest += [homes[close] for close in difflib.get_close_matches(last, homes, 1)]
    return nearest


def unknown_key(owner: type, place: str, key: str) -> ProblemError:
    """Return the error for a key that its table does not have, with the nearest one that exists."""
    name = f"{place}.{key}" if place else key
    siblings = keys(owner)
    field = ".".join(re.split(r"[.\[]", name)[:2]) if is_nested_table(owner) else name
    if is_nested_table(owner):
        nearest = difflib.get_close_matches(key, siblings, 1)
        instead = f'did you mean "{nearest[0]}"?' if nearest else f"it may have {listed(siblings)}."
        return ProblemError(field, f'unknown key "{name}": {instead}')
    if nearest := nearest_keys(owner, place, key):
        return ProblemError(field, f'unknown key "{name}": did you mean {nearest[0]}?')
    where = f'"{place}" has the keys' if place else "a problem has the sections"
    return ProblemError(field, f'unknown key "{name}": {where} {", ".join(siblings)}.')


def _meant(place: str, owner: type, word: str) -> str | None:
    """The key of a table, or its kind, that others call by a word, or that has the word's name as a kind."""
    notes = notes_of(owner)
    keys_meant = (f'"{place}.{key}"' for key, names in notes.also.items() if _bare(word) in map(_bare, names))
    kinds_meant = (
        f"{place}.{key} = {shown(found)}" for key, kinds in notes.kinds.items() if (found := _kind_meant(word, kinds))
    )
    return next(keys_meant, next(kinds_meant, None))


def _kind_meant(word: str, kinds: Mapping[str, Kind]) -> str | None:
    """The kind that has a word for its name, or is called so by others."""
    called = {_bare(name): kind.name for kind in kinds.values() for name in (kind.name, *getattr(kind, "also", ()))}
    return called.get(_bare(word))


def _nearest(word: str, kinds: Mapping[str, Kind]) -> str | None:
    """The kind whose name differs least from a word; None if none is near."""
    return next(iter(difflib.get_close_matches(word, kinds, 1)), None)


def _bare(word: str) -> str:
    """A word without capitals and what stands between its parts."""
    return re.sub(r"[\W_]", "", word).lower()


def shown(value: Any) -> str:
    """Return a value as TOML would have it, short enough for a message."""
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0):
        value = value[:20]  # more than are shown
    return arguments.shown(as_lists(plain(value, 2)))


def _as_problem_error(section: str, cls: type, error: ValidationError) -> ProblemError:
    """Turn the first of pydantic's errors into a sentence made of the field's description."""
    found = error.errors(include_url=False)
    first = next((item for item in found if item["type"] in _UNKNOWN), found[0])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ProblemError):
        return cause
    if first["type"] == "unexpected_positional_argument":
        place = section or "problem"
        return ProblemError(place, f"{place} was given too many values: give them by name.")

    steps = list(first["loc"])
    if steps and isinstance(steps[0], int):  # an argument without a name
        steps[0] = list(cls.__pydantic_fields__)[steps[0]]  # pyright: ignore[reportAttributeAccessIssue]
    unknown = str(steps.pop()) if first["type"] in _UNKNOWN else None
    owner, location, description = _follow(cls, section, steps)
    if unknown is not None:
        return unknown_key(owner, _dotted(location), unknown)
    end = max(index for index, step in enumerate(location) if isinstance(step, str)) + 1
    name, entry = _dotted(location[:end]), _dotted(location[end:])
    field = ".".join([step for step in location if isinstance(step, str)][:2])
    if first["type"] in ("missing", "missing_argument"):
        return ProblemError(field, f"{name} is missing: give {description}.")
    subject = f"its entry {entry}" if entry else "it"
    tail = f"{cause}" if isinstance(cause, TooLongError) else f"is {shown(first['input'])}"
    kinds, given = notes_of(owner).kinds.get(str(location[-1]), {}), first["input"]
    meant = _kind_meant(given, kinds) or _nearest(given, kinds) if isinstance(given, str) else None
    hint = f": did you mean {shown(meant)}?" if meant else "."
    return ProblemError(field, f"{name} must be {description}, but {subject} {tail}{hint}")


def _follow(cls: type, section: str, steps: list[int | str]) -> tuple[type, list[int | str], str | None]:
    """Follow pydantic's location to the table that holds it.

    Returns
    -------
    owner
        The class of the innermost table.
    location
        Names and indices from the problem on.
    description
        What the last field must be.
    """
    owner, description = cls, None
    location: list[int | str] = [*section.split(".")] if section else []
    for step in steps:
        place = ".".join(item for item in location if isinstance(item, str))
        if isinstance(step, int):
            location.append(step)
        elif step.startswith("#"):  # the type chosen among a field's
            owner = described_by(place, step) or owner
        elif step in keys(owner):
            description = owner.__pydantic_fields__[step].description  # pyright: ignore[reportAttributeAccessIssue]
            location.append(step)
            inner = f"{place}.{step}" if place else step
            owner = described_by(inner) or owner
        # other names are branches of a union, and stand for no field
    return owner, location, description


def _dotted(location: list[int | str]) -> str:
    """Return a place as one writes it: ``tokens.spectrum[0].weight``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
