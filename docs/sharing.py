"""How a build shares its work: pages that take long are read side by side, by processes with cores of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

__all__ = ["LONG", "evenly", "share_work", "shares"]

LONG = {
    "choosing": 5,
    "commands": 18,
    "figures": 6,
    "sgd_flow": 25,
    "index": 6,
    "large-sweeps": 4,
    "bayes_optimal_numbers": 3,
    "literature/autoencoder": 25,
    "literature/gaussian_mixture": 12,
    "literature/hidden_units": 60,
    "literature/rotary": 30,
    "literature/single_location": 35,
    "literature/sparse_token": 30,
    "literature/two_heads": 35,
    "literature/two_layers": 50,
    "python": 18,
    "reference/api": 3,
    "reference/code": 3,
    "trust": 7,
    "tutorials/cluster": 7,
    "tutorials/derivation": 20,
    "tutorials/new_score": 18,
    "tutorials/phase_diagram": 30,
    "tutorials/possible": 16,
    "tutorials/thresholds": 28,
    "tutorials/training": 13,
}
"""Seconds of one core that pages take, most of them for what they run; they need not be right, for they only share."""
_OTHERS = 0.2  # of pages that run nothing

_MAIN = os.getpid()
_held: list[TextIO] = []


def evenly(pages: Sequence[str], sizes: Sequence[int]) -> list[str]:
    """An order of pages in which parts of these sizes take equally long, as far as `LONG` knows.

    Parameters
    ----------
    pages : sequence of str
    sizes : sequence of int
        Numbers of pages of the parts, one behind the other.
    """
    parts: list[list[str]] = [[] for _ in sizes]
    for page in sorted(pages, key=lambda name: (-LONG.get(name, _OTHERS), name)):
        room = [part for part, size in zip(parts, sizes, strict=True) if len(part) < size]
        min(room, key=lambda part: sum(LONG.get(name, _OTHERS) for name in part)).append(page)
    return [page for part in parts for page in part]


def shares(cores: Sequence[int], processes: int) -> list[set[int]]:
    """The cores of each of several processes; of as many as there are cores, if these are fewer."""
    count = min(len(cores), processes)
    return [set(cores[i::count]) for i in range(count)]


def _reorder(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Sphinx cuts its list into parts, for a process each."""
    del env
    from sphinx.util.parallel import make_chunks

    docnames[:] = evenly(docnames, [len(part) for part in make_chunks(docnames, app.parallel)])


def _own_cores(app: Sphinx, docname: str, content: list[str]) -> None:
    """Keep this process and what it starts, such as a notebook's kernel, to a share of the cores that no other has.

    A sweep on all cores would else start processes for each of them in each of the processes that read.
    """
    del docname, content
    if _held or os.getpid() == _MAIN or not hasattr(os, "sched_setaffinity"):
        return
    import fcntl

    for i, share in enumerate(shares(sorted(os.sched_getaffinity(0)), app.parallel)):
        # a lock ends with its process, whatever becomes of that
        place = (Path(app.doctreedir) / f"share-{i}.lock").open("w")
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            place.close()
            continue
        _held.append(place)
        os.sched_setaffinity(0, share)
        return


def share_work(app: Sphinx) -> None:
    """Called with the site's settings."""
    app.connect("env-before-read-docs", _reorder)
    app.connect("source-read", _own_cores, priority=1)
