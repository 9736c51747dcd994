"""Where a sweep is done: the folder of its plan, the address of its scheduler.

Nothing heavy is imported, so that a wrong place is refused at once.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from attnphase import arguments
from attnphase.errors import DatasetError, ProblemError
from attnphase.files.reading import LARGEST_TEXT, check_input

__all__ = ["MOST_SHARES", "PLANNING", "check_plan", "check_scheduler", "check_shard", "plan_file"]

PLANNING = "attnphase sweep ... --plan N -o FOLDER (plan_sweep)"
"""How a folder gets a plan."""

MOST_SHARES = 10**5
"""Of a sweep, at most."""

_SHARD = re.compile(r"0*([1-9]\d{0,5})/0*([1-9]\d{0,5})")
_ADDRESS = re.compile(r"[a-z]+://\S+")


def plan_file(folder: Path) -> Path:
    """The plan of a folder."""
    return folder / "plan.json"


def check_plan(folder: Any) -> Path:
    """Refuse a folder that has no plan.

    Parameters
    ----------
    folder : path-like
        As the user named it.

    Returns
    -------
    pathlib.Path
        The folder.

    Raises
    ------
    DatasetError
        It is no folder, or there is no plan in it that may be read.
    ProblemError
        `folder` is no path.
    """
    folder = arguments.path("folder", folder)
    if not folder.is_dir():
        what = "this is not a folder" if folder.exists() else "there is no such folder"
        raise DatasetError(f"{folder}: {what}; name that of a plan, which is made by {PLANNING}.")
    if not plan_file(folder).exists():
        raise DatasetError(f"{folder}: there is no plan in this folder; make one by {PLANNING}.")
    check_input(plan_file(folder), "plan", LARGEST_TEXT, lambda fault: DatasetError(f"{plan_file(folder)}: {fault}"))
    return folder


def check_scheduler(address: Any, workers: Any = None) -> str | None:
    """Refuse what is no address of a scheduler; nobody is asked yet.

    Parameters
    ----------
    address : str or None
        None for no scheduler.
    workers : int or None
        How many processes were asked for besides.

    Returns
    -------
    str or None
        The address.

    Raises
    ------
    ProblemError
        It is none, or there is one and workers are given too.
    """
    if address is None:
        return None
    if not (isinstance(address, str) and _ADDRESS.fullmatch(address)):
        shown = arguments.shown(address)
        raise ProblemError(
            "scheduler", f'scheduler must be the address of a Dask scheduler, as "tcp://10.0.0.1:8786", not {shown}.'
        )
    if workers is not None:
        raise ProblemError("workers", "workers are those of the scheduler: give workers or scheduler, not both.")
    return address


def check_shard(shard: Any) -> tuple[int, int] | None:
    """Which share of how many is asked for.

    Parameters
    ----------
    shard : str or None
        Such as "3/16"; None for the whole.

    Returns
    -------
    tuple of int or None
        Its number, from 1 on, and how many there are.

    Raises
    ------
    ProblemError
        It is something else.
    """
    if shard is None:
        return None
    found = _SHARD.fullmatch(shard) if isinstance(shard, str) else None
    number, count = map(int, found.groups()) if found else (1, 0)
    if not number <= count <= MOST_SHARES:
        what = f'K/N, share K from 1 to N of N shares, at most {MOST_SHARES} in all, as "3/16"'
        raise ProblemError("shard", f"shard must be {what}, not {arguments.shown(shard)}.")
    return number, count
