"""New values of fields, and what they displace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnphase.errors import ProblemError
from attnphase.problem.entries import changed, entry_of, is_share, same_list
from attnphase.problem.messages import unknown_key
from attnphase.problem.positions import IN_ATOMS
from attnphase.problem.schema import default, keys, notes_of, ready_made, root, sections
from attnphase.problem.values import MAX_TABLE

__all__ = ["change"]


def change(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Give fields of a problem new values, in place; see `attnphase.problem.problem.Problem.with_fields`.

    Parameters
    ----------
    data
        As `Problem.to_dict` returns it, without the fields that follow from others.
    changes
        New values by the fields' names; None takes a field back to its default.

    Raises
    ------
    ProblemError
        A field is unknown, or is one entry of what has no entries.
    """
    _check_shares(changes)
    for name, value in changes.items():
        whole, steps = entry_of(name)
        section, key, inner = _split_name(whole)
        entries = data.setdefault(section, {})
        if steps:
            values = changed(name, _list_of(section, entries, key, inner), value)
            entries |= {key: {**entries.get(key, {}), inner: values}} if inner else {key: values}
            continue
        if not _same(entries.get(key), value) or inner:
            _displace(data, (section, key), None if inner else value, changes)
        if inner:
            entries = entries.setdefault(key, {})
            own, key = key, inner
            if not isinstance(entries, dict):
                raise ProblemError(
                    name,
                    f"{name} cannot be set, since the present {section}.{key} is no ready-made law:"
                    f" give {section}.{key} as a table with a kind.",
                )
            table = None if _is_named(section, own) else ready_made(name.rpartition(".")[0])
            if table is not None:
                _forget(entries, name.rpartition(".")[0], notes_of(table).idle(inner, value), changes)
        if value is None:
            entries.pop(key, None)
        else:
            entries[key] = dict(value) if isinstance(value, Mapping) else value  # a later change enters it


def _check_shares(changes: Mapping[str, Any]) -> None:
    """Refuse two probabilities of one list, since each changes the other."""
    shares = [name for name in changes if is_share(name)]
    for name in shares:
        if other := next((one for one in shares if one != name and same_list(one, name)), None):
            raise ProblemError(
                name,
                f"{name} and {other} change each other, so that all sum to 1: change the whole {entry_of(name)[0]}.",
            )


def _list_of(section: str, entries: Mapping[str, Any], key: str, inner: str) -> Any:
    """What a name has steps into; of a law's weights, which are left out where they are equal, too."""
    table = entries.get(key) if inner else entries
    given = table.get(inner or key) if isinstance(table, dict) else None
    if given is None and (section, key, inner) == ("tokens", "law", "weights"):
        return sections()[section](**entries).law_weights
    return given


def _same(kept: Any, value: Any) -> bool:
    """Whether a field's new value is its old one; no more of it is looked at than the old one has."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.size <= 2 * MAX_TABLE else None
    if isinstance(kept, list) and isinstance(value, list | tuple):
        return len(kept) == len(value) and all(_same(*pair) for pair in zip(kept, value, strict=True))
    return bool(kept == value)


def _displace(data: dict[str, Any], place: tuple[str, str], value: Any, changes: Mapping[str, Any]) -> None:
    """Forget what a new value of a field excludes, unless that is given anew as well."""
    section, key = place
    owner = sections()[section]
    notes = notes_of(owner)
    kind = default(owner, key) if value is None else value
    left = {one for one, its in data[section].items() if changes.get(f"{section}.{one}", its) is not None} - {key}
    gone = [one for one, needs in notes.without.items() if value is None and key in needs and not left & {*needs}]
    _forget(data[section], section, {*notes.displaces.get(key, ()), *gone, *notes.idle(key, kind)}, changes)
    if section == "tokens" and key in ("kind", "sigma", "spectrum"):
        if data["positions"].get("kind") == IN_ATOMS:
            data["positions"].pop("kind")
        if key == "spectrum" and value is not None and "tokens.clusters" not in changes:
            _forget_sigma(data["tokens"].get("clusters", ()))


def _forget(entries: dict[str, Any], place: str, keys: Iterable[str], changes: Mapping[str, Any]) -> None:
    """Take keys of a table back to their defaults, unless they are given anew."""
    for key in keys:
        if f"{place}.{key}" not in changes:
            entries.pop(key, None)


def _forget_sigma(clusters: Sequence[Any]) -> None:
    for item in clusters:
        if isinstance(item, dict):
            item.pop("sigma", None)
        else:
            _forget_sigma(item)


def _is_named(section: str, key: str) -> bool:
    """Whether a field is a table whose names are the user's own."""
    return key in notes_of(sections()[section]).named if key in keys(sections()[section]) else False


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a field's name into section, key and, for one entry of a ready-made law, the key in it."""
    section, _, key = name.partition(".")
    owner = sections().get(section)
    if owner is None:
        raise unknown_key(root(), "", name)
    if not key:
        example = f"{section}.{next(iter(keys(owner)), 'error')}"
        raise ProblemError(name, f'"{section}" is a section: set one of its keys, such as "{example}".')
    if key in keys(owner) or notes_of(owner).own_keys:
        return section, key, ""
    outer, _, inner = key.partition(".")
    if _is_named(section, outer) and inner:
        return section, outer, inner
    table = ready_made(f"{section}.{outer}")
    if table is None or not inner:
        raise unknown_key(owner, section, key)
    if inner not in keys(table):
        raise unknown_key(table, f"{section}.{outer}", inner)
    return section, outer, inner
