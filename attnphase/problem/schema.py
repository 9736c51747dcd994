"""Which class describes which table of the TOML, and what of it is written out."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

__all__ = [
    "as_lists",
    "as_plain_dict",
    "described_by",
    "is_nested_table",
    "keys",
    "ready_made",
    "register",
    "root",
    "sections",
]

_TABLES: dict[tuple[str, ...], type] = {}  # by place; of a place with several types, by place and tag
_QUIET: dict[type, tuple[str, ...]] = {}  # keys that are left out at their defaults


def register(cls: type, place: str, tags: tuple[str, ...], quiet: tuple[str, ...]) -> None:
    """Make a class the description of a table; see `attnphase.problem.messages.toml_table`."""
    _TABLES.update({(place, *tag): cls for tag in ([(tag,) for tag in tags] or [()])})
    _QUIET[cls] = quiet


def described_by(place: str, *tag: str) -> type | None:
    """The class of the table at a place, if there is one."""
    return _TABLES.get((place, *tag))


def is_nested_table(cls: type) -> bool:
    """Whether a class is that of a table in a field, and not of a section."""
    return any("." in place for (place, *_), owner in _TABLES.items() if owner is cls)


def ready_made(place: str) -> type | None:
    """The class of the ready-made laws that a field may be, whose keys can be set one by one."""
    return next((cls for (home, *_), cls in _TABLES.items() if home == place and "kind" in keys(cls)), None)


def keys(cls: type) -> list[str]:
    """The keys of a class's table."""
    return [item.name for item in fields(cls) if not item.name.startswith("_")]


def root() -> type:
    """The class of a whole problem."""
    return _TABLES[("",)]


def sections() -> dict[str, type]:
    """The classes of the sections by name, in the order of the TOML."""
    return {name: _TABLES[(name,)] for name in keys(root())}


def as_plain_dict(table: Any) -> dict[str, Any]:
    """A table as plain dicts, lists and scalars, without what has no value or need not be said."""
    quiet = {*_QUIET.get(type(table), ()), *getattr(table, "_idle", ())}
    data = {}
    for item in fields(table):
        value = getattr(table, item.name)
        if value is not None and not (item.name in quiet and value == item.default):
            data[item.name] = as_lists(value)
    return data


def as_lists(value: Any) -> Any:
    """Tables as dicts and tuples as lists, also within one another."""
    if is_dataclass(value):
        return as_plain_dict(value)
    return [as_lists(item) for item in value] if isinstance(value, tuple) else value
