"""Lines on a live Dask cluster: its workers solve them, this process keeps each as soon as it is solved.

The scheduler knows a task by the key of its line: one that two clients ask for at once is solved once. When a worker
dies its line is given to another one; when this process dies, what it kept is taken up by the next.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import xarray as xr

from attnphase.errors import SweepError
from attnphase.extras import require_distributed
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import interruptions_deferred
from attnphase.processes.progress import ProgressLine
from attnphase.sweeps.line import Line
from attnphase.sweeps.pool import Work

with loaded_on_use(__name__):
    import distributed

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["cluster_at"]

PATIENCE = 10.0  # seconds in which a scheduler must answer
_POLL = 0.05  # seconds between two looks at what has come back
_WINDOW = 2000  # lines that the scheduler knows of at a time
_ONE_AT_A_TIME = threading.Lock()  # of a worker with several threads, which a line uses all


@contextmanager
def cluster_at(address: str) -> Iterator[Callable[[Work, ProgressLine], None]]:
    """What solves lines on the cluster of a scheduler; connected to it until the block ends.

    Parameters
    ----------
    address : str
        Such as "tcp://10.0.0.1:8786".

    Raises
    ------
    SweepError
        No scheduler answers there in ten seconds.
    MissingExtraError
        dask.distributed is not installed.
    """
    require_distributed()
    _find_scheduler(address)
    with _unlogged(), distributed.Client(address, timeout=PATIENCE, set_as_default=False) as client:
        yield lambda work, shown: _solve(client, address, work, shown)


@contextmanager
def _unlogged() -> Iterator[None]:
    """Of what a client logs, that the connection is lost, an error says all."""
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _find_scheduler(address: str) -> None:
    """Refuse an address where no scheduler answers in time; a client alone would wait for one that says nothing."""

    def ask() -> dict[str, Any]:
        return asyncio.run(asyncio.wait_for(_identity(address), PATIENCE))

    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has a loop of its own in this one
            found = thread.submit(ask).result()
    except TimeoutError:
        raise SweepError(
            f"no Dask scheduler answers at {address} within {PATIENCE:g} seconds: check the address, and that it runs."
        ) from None
    except Exception as error:  # what answers there may be anything, of which every byte is believed
        reason = str(error).rstrip(".") or type(error).__name__
        raise SweepError(f"{address} is not the address of a Dask scheduler that can be used: {reason}.") from error
    if found.get("type") != "Scheduler":
        raise SweepError(f"{address} is the address of a {found.get('type', 'stranger')}: give that of the scheduler.")
    if not found.get("workers"):
        print(f"attnphase: warning: {address} has no workers yet; the sweep waits for them.", file=sys.stderr)


async def _identity(address: str) -> dict[str, Any]:
    scheduler: Any = distributed.rpc(address)  # whose methods are those of what answers
    try:
        return await scheduler.identity()
    finally:
        await scheduler.close_rpc()


def _solve(client: Client, address: str, work: Work, shown: ProgressLine) -> None:
    """Solve what is to do.

    Raises
    ------
    SweepError
        A line failed, or the scheduler went away.
    """
    workers: Any = client.nthreads()  # by their addresses; typed for clients that wait too
    work.expect(max(1, len(workers)), shown)
    waiting = iter(work.mixed)
    numbers: dict[Any, int] = {}
    ended = distributed.as_completed(loop=client.loop)
    with interruptions_deferred() as interrupted:
        while True:
            for i in islice(waiting, _WINDOW - len(numbers)):
                line = work.lines[i]
                future = client.submit(_solve_line, line, line.key, key=f"attnphase-{line.key}")
                numbers[future.key] = i
                ended.add(future)
            if not numbers:
                break
            if not ended.has_ready():
                time.sleep(_POLL)
            for future in ended.next_batch(block=False):
                if interrupted():
                    break
                if _taken(future, numbers[future.key], work, address):
                    del numbers[future.key]
                else:
                    ended.add(future)
            if interruption := interrupted():
                raise interruption
            shown.reach(work.points_done)
    work.raise_failures()


def _taken(future: Future, i: int, work: Work, address: str) -> bool:
    """Take what became of a line; False where its worker died with the result, and another solves it again.

    Raises
    ------
    SweepError
        The scheduler went away.
    """
    try:
        result = future.result(timeout=PATIENCE)
    except TimeoutError:
        return False
    except distributed.CancelledError:
        raise SweepError(
            f"the connection to {address} was lost; {len(work.todo)} of {len(work.lines)} lines are"
            f" unfinished{work.store.kept()}."
        ) from None
    except distributed.KilledWorker:
        reason = "the workers that solved it died, perhaps because memory ran out"
        work.failures[i] = SweepError(f"{reason}: see what they logged, or give them more memory")
    except Exception as error:
        work.failures[i] = error
    else:
        work.done(i, result)
    return True


def _solve_line(line: Line, key: str) -> xr.Dataset:
    """Solve a line on a worker, if its program is that of the client."""
    here = replace(line)  # without what the client has worked out of its own program
    if here.key != key:
        raise SweepError(
            "a worker has another version of attnphase, or of functions of your own, than this program:"
            " install the same there"
        )
    with _ONE_AT_A_TIME:
        return replace(here, settings=replace(line.settings, threads=distributed.get_worker().state.nthreads)).solve()
