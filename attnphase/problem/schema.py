"""Which class describes which table of the TOML, and what of it is written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Protocol

__all__ = [
    "Kind",
    "Notes",
    "as_lists",
    "as_plain_dict",
    "as_whole_dict",
    "default",
    "described_by",
    "is_nested_table",
    "keys",
    "notes_of",
    "ready_made",
    "register",
    "root",
    "sections",
]


class Kind(Protocol):
    """What all kinds have.

    Attributes
    ----------
    name : str
        What the TOML calls it.
    keys, needs : tuple of str
        The keys of its table that go with it, and those of them that have no default.

    It may have ``also``, a tuple of what others call it, for suggestions.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]]


@dataclass(frozen=True)
class Notes:
    """What is said of a table beside its fields.

    Attributes
    ----------
    quiet : tuple of str
        Keys that are not written out at their defaults.
    kinds : mapping
        For a key that names a kind: all kinds by name.
    displaces : mapping
        For a key: others that a new value of it takes back to their defaults.  Those that do not go with a new kind are
        not named.
    without : mapping
        For a key: others of which it needs one. It goes with the last.
    named : tuple of str
        Keys whose values are tables with names of the user's own.
    also : mapping
        For a key: what others call it, for suggestions.
    own_keys : bool
        Whether the keys are names of the user's own; the table is then a mapping.
    """

    quiet: tuple[str, ...] = ()
    kinds: Mapping[str, Mapping[str, Kind]] = field(default_factory=dict)
    displaces: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    named: tuple[str, ...] = ()
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_keys: bool = False

    def idle(self, key: str, name: Any) -> set[str]:
        """The keys that belong to other kinds than the one of this name; none if there is no such kind."""
        kinds = self.kinds.get(key, {})
        if not isinstance(name, str) or name not in kinds:
            return set()
        return {other for kind in kinds.values() for other in kind.keys} - {*kinds[name].keys}


_TABLES: dict[tuple[str, ...], type] = {}  # by place; of a place with several types, by place and tag
_NOTES: dict[type, Notes] = {}


def register(cls: type, place: str, tags: tuple[str, ...], notes: Notes) -> None:
    """Make a class the description of a table; see `attnphase.problem.messages.toml_table`."""
    _TABLES.update({(place, *tag): cls for tag in ([(tag,) for tag in tags] or [()])})
    _NOTES[cls] = notes


def notes_of(cls: type) -> Notes:
    """What was said of a table when its class was made."""
    return _NOTES[cls]


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


def default(cls: type, key: str) -> Any:
    """A key's default; None if it has none."""
    return next((item.default for item in fields(cls) if item.name == key and item.default is not MISSING), None)


def sections() -> dict[str, type]:
    """The classes of the sections by name, in the order of the TOML."""
    return {name: _TABLES[(name,)] for name in keys(root())}


def as_plain_dict(table: Any) -> dict[str, Any]:
    """A table as plain dicts, lists and scalars, without what has no value or need not be said."""
    if isinstance(table, Mapping):
        return dict(table)
    notes = _NOTES[type(table)]
    quiet = {*notes.quiet}.union(*(notes.idle(key, getattr(table, key)) for key in notes.kinds))
    data = {}
    for item in fields(table):
        value = getattr(table, item.name)
        if value is not None and not (item.name in quiet and value == item.default):
            data[item.name] = as_lists(value)
    return data


def as_whole_dict(table: Any) -> dict[str, Any]:
    """A table as plain dicts, lists and scalars, with what a problem file need not say."""
    if isinstance(table, Mapping):
        return dict(table)
    return {item.name: as_lists(getattr(table, item.name)) for item in fields(table)}


def as_lists(value: Any) -> Any:
    """Tables as dicts and tuples as lists, also within one another."""
    if is_dataclass(value):
        return as_plain_dict(value)
    if isinstance(value, Mapping):
        return dict(value)
    return [as_lists(item) for item in value] if isinstance(value, tuple) else value
