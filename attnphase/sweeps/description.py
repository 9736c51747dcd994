"""What a sweep is, so that another one can say what differs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from attnphase import arguments
from attnphase.data.reading import spacing
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.sweeps.line import Line

with loaded_on_use(__name__):
    from attnphase import version

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Description", "listed"]

_DIFFERENCES = 4  # named in a message


@dataclass(frozen=True)
class Description:
    """What a sweep is, in entries that can be compared: the values along every dimension, all else that decides.

    Attributes
    ----------
    entries : mapping
        What JSON can hold.
    """

    entries: Mapping[str, Any]

    @classmethod
    def of(cls, problem: Problem, swept: Mapping[str, list[Any]], lines: Sequence[Line], refine: bool = False) -> Self:
        """The description of a sweep whose lines are made."""
        settings = {name: value for name, value in asdict(lines[0].settings).items() if name != "threads"}
        program = {"attnphase": version.__version__, "source code": lines[0].source[:16]}
        functions = "\n".join(sorted({line.functions for line in lines}))
        if functions:
            program["functions of your own"] = hashlib.sha256(functions.encode()).hexdigest()[:16]
        chosen = {"refine": True} if refine else {}
        return cls({**dict(_flat(problem.to_dict())), **swept, **settings, **chosen, **program})

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """A description that was written; None for one that is damaged."""
        try:
            found = cls.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (OSError, ValueError):
            return None
        return found if found is not None and found.name == path.name else None

    @classmethod
    def parse(cls, text: Any) -> Self | None:
        """A description from its text; None for what is none."""
        try:
            entries = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            return None
        return cls(entries) if isinstance(entries, dict) else None

    def at(self, ds: xr.Dataset) -> Description:
        """The same sweep over the values that the coordinates of a dataset have."""
        swept = {ds[dim].attrs.get("field", dim): ds[dim].to_numpy().tolist() for dim in map(str, ds.coords)}
        return Description({**self.entries, **swept})

    @cached_property
    def text(self) -> str:
        """As JSON, a line for each entry."""
        entries = sorted(self.entries.items())
        return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in entries) + "\n}\n"

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The file's name."""
        return f"sweep-{self.hash}.json"

    def differences(self, before: Description) -> list[str]:
        """What was different, with both values."""
        names = [*self.entries, *(name for name in before.entries if name not in self.entries)]
        both = ((name, _single(before.entries.get(name)), _single(self.entries.get(name))) for name in names)
        return [f"{name} {_difference(was, now)}" for name, was, now in both if was != now]


def _flat(table: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """The fields of nested tables by their dotted names."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{place}{key}.")
        else:
            yield place + key, value


def _single(value: Any) -> Any:
    """A value that a sweep has one of, as if it were the problem's own."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _difference(was: Any, now: Any) -> str:
    before, after = _short(was), _short(now)
    if before != after:
        return f"was {before} and is {after} now"
    pairs = zip(was, now, strict=False) if isinstance(was, list) and isinstance(now, list) else ()
    changed = (f"has {_short(new)} instead of {_short(old)}" for old, new in pairs if old != new)
    return next(changed, "was another")


def _short(value: Any) -> str:
    """One value, or several as the command line takes them, in few characters."""
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value if len(value) <= 40 else f"{value[:37]}..."
    if not isinstance(value, list) or any(isinstance(item, list | dict) for item in value):
        return arguments.shown(value)
    kind = spacing(value)
    if kind:
        return f"{value[0]!r}:{value[-1]!r}:{len(value)}" + (":log" if kind == "log" else "")
    if len(value) <= 6:
        return ", ".join(map(str, value))
    return f"{value[0]}, {value[1]}, ..., {value[-1]} ({len(value)} values)"


def listed(differences: Sequence[str]) -> str:
    """The first differences, and how many more there are."""
    more = len(differences) - _DIFFERENCES
    return "; ".join(differences[:_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
