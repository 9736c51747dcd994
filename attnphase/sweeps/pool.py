"""Lines in processes of their own, which end with this one: interrupted without loss, tried again where one died."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

import xarray as xr

from attnphase.errors import ProblemError, SolverError, SpectrumError, SweepError
from attnphase.fixed_points.point import BranchPoint
from attnphase.processes.interruption import interruptions_deferred, interruptions_kept_from_children
from attnphase.processes.progress import ProgressLine
from attnphase.sweeps.cost import GOLDEN
from attnphase.sweeps.line import Line
from attnphase.sweeps.store import Store
from attnphase.sweeps.worker import line_points, prepare

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["STARTED_AGAIN", "Work"]

STARTED_AGAIN = 77
"""Exit status of a worker whose import of the user's script starts the sweep again; no other exit has this number."""

_UNGUARDED = (
    "every worker process runs the script again, and the sweep in it: write the script's calls under"
    ' if __name__ == "__main__":, or give workers=1.'
)
_RETRIES = 2
_GRACE = 3.0  # seconds that workers have to end by themselves after an interruption
_POLL = 0.2  # seconds between two looks at the workers' counters
_WINDOW = (
    4  # lines that wait in the pool, for each worker: a look at all of a large grid's would take longer than a line
)


@dataclass
class Work:
    """The lines of a sweep, and what became of them.

    Attributes
    ----------
    lines : sequence of Line
    store : Store
        Keeps every finished line at once.
    finished : dict of int to xarray.Dataset
        Results by the line's number; those there already are not computed again.
    failures : dict of int to BaseException
    """

    lines: Sequence[Line]
    store: Store
    finished: dict[int, xr.Dataset]
    failures: dict[int, BaseException] = field(default_factory=dict)

    @property
    def todo(self) -> list[int]:
        """Numbers of the lines that are neither finished nor failed."""
        return [i for i in range(len(self.lines)) if i not in self.finished and i not in self.failures]

    @property
    def mixed(self) -> list[int]:
        """Those to do in an order in which any few are of all kinds, so that their rate is that of the rest.

        Lines of one branch, or of similar fields, stand side by side and cost much the same: steps of the golden ratio
        through the sweep come to all of it evenly.
        """
        return sorted(self.todo, key=lambda i: (i * GOLDEN) % 1)

    @property
    def points(self) -> int:
        """Sample complexities of all lines together."""
        return sum(len(line.alphas) for line in self.lines)

    @property
    def points_done(self) -> int:
        """Those of the finished lines."""
        return sum(len(self.lines[i].alphas) for i in self.finished)

    def solve(self, workers: int, shown: ProgressLine) -> None:
        """Solve what is to do.

        Parameters
        ----------
        workers : int
            Processes; with one, all runs in this process.
        shown : ProgressLine
            Counts points.

        Raises
        ------
        SweepError
            A line failed, or workers died again and again.
        """
        workers = min(workers, len(self.todo))
        self.expect(workers, shown)
        if workers <= 1:
            self._solve_here(shown)
        else:
            self._solve_in_pools(workers, shown)
        self.raise_failures()

    def expect(self, workers: int, shown: ProgressLine) -> None:
        """Say from when on the rate of so many workers is that of the rest.

        The points of a line do not cost the same: that is so once every worker has been through one.
        """
        whole = max((len(self.lines[i].alphas) for i in self.todo), default=0)
        shown.enough, shown.at_once = min(workers * whole, (self.points - self.points_done) / 4), max(workers, 1)

    def done(self, i: int, ds: xr.Dataset) -> None:
        """Take the result of a line, and keep it."""
        self.finished[i] = ds
        self.store.save(self.lines[i], ds)

    def _solve_here(self, shown: ProgressLine) -> None:
        for i in self.mixed:
            try:
                ds = self.lines[i].solve(lambda _: shown.reach(shown.done + 1))
            except Exception as error:
                self.failures[i] = error
            else:
                self.done(i, ds)

    def _solve_in_pools(self, workers: int, shown: ProgressLine) -> None:
        for attempt in range(_RETRIES + 1):
            try:
                self._solve_in_pool(workers, shown)
                return
            except BrokenProcessPool:
                # the usual reason is that memory ran out, so that fewer workers may do
                workers = max(1, workers // 2)
                if attempt < _RETRIES:
                    left = len(self.todo)
                    lines, hands = ("line is" if left == 1 else "lines are"), ("worker" if workers == 1 else "workers")
                    sentence = f"a worker process died; {left} {lines} tried again by {workers} {hands}."
                    print(f"attnphase: warning: {sentence}", file=sys.stderr)
        remaining = self.todo
        raise SweepError(
            f"worker processes died {_RETRIES + 1} times, perhaps because memory ran out;"
            f" {len(remaining)} of {len(self.lines)} lines are unfinished, the first is"
            f" {self.lines[remaining[0]].label}{self.store.kept()}."
        )

    def _solve_in_pool(self, workers: int, shown: ProgressLine) -> None:
        context = multiprocessing.get_context("spawn")
        # Nothing is ever sent through this pipe.  It closes when this process closes it, or dies of whatever cause, and
        # then the workers end: no orphans, and no wait for running lines after Ctrl-C.
        reader, writer = context.Pipe(duplex=False)
        # points done in each line; no lock that a dying worker could hold
        counters = context.RawArray("q", len(self.lines))
        others = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(workers, context, prepare, (reader, counters))
        base = self.points_done
        begun: set[BaseProcess] = set()
        try:
            with interruptions_deferred() as interrupted:
                for futures in self._submitted(pool, workers):
                    begun |= set(multiprocessing.active_children()) - others
                    done, _ = wait(futures, _POLL, FIRST_COMPLETED)
                    if interruption := interrupted():
                        raise interruption
                    shown.reach(base + sum(counters))
                    for future in done:
                        self._taken(futures.pop(future), future)
            shown.reach(base + sum(counters))
            pool.shutdown()
        except BaseException as error:
            writer.close()
            pool.shutdown(wait=False, cancel_futures=True)
            _end(set(multiprocessing.active_children()) - others)
            shown.reach(self.points_done)  # points of unfinished lines are lost
            if isinstance(error, BrokenProcessPool) and any(worker.exitcode == STARTED_AGAIN for worker in begun):
                raise SweepError(_UNGUARDED) from None
            raise
        finally:
            writer.close()
            reader.close()

    def _submitted(self, pool: ProcessPoolExecutor, workers: int) -> Iterator[dict[Future[list[BranchPoint]], int]]:
        """What is in the pool, filled up again and again until nothing is left."""
        waiting = iter(self.mixed)
        futures: dict[Future[list[BranchPoint]], int] = {}
        while True:
            with interruptions_kept_from_children():  # the first task begins them
                for i in islice(waiting, _WINDOW * workers - len(futures)):
                    futures[pool.submit(line_points, i, _on_one_core(self.lines[i]))] = i
            if not futures:
                return
            yield futures

    def _taken(self, i: int, future: Future[list[BranchPoint]]) -> None:
        """Take what a worker returned; that it died is passed on."""
        try:
            ds = self.lines[i].dataset(future.result())
        except BrokenProcessPool:
            raise
        except Exception as error:
            self.failures[i] = error
        else:
            self.done(i, ds)

    def raise_failures(self) -> None:
        """Raise what the first line that failed has failed with.

        Raises
        ------
        SweepError
            Naming the line.
        """
        if not self.failures:
            return
        first = min(self.failures)
        others = f" ({len(self.failures)} lines failed)" if len(self.failures) > 1 else ""
        cause = self.failures[first]
        reason = str(cause).rstrip(".") or type(cause).__name__
        # the same numbers fail again
        errors = (ProblemError, SolverError, SpectrumError)
        for_good = any(isinstance(error, errors) for error in self.failures.values())
        kept = self.store.kept(for_good)
        raise SweepError(f"the line {self.lines[first].label} failed: {reason}{others}{kept}.") from cause


def _end(workers: set[BaseProcess]) -> None:
    """Wait a moment for workers that saw the pipe close; one that was still starting up is terminated."""
    deadline = time.monotonic() + _GRACE
    for worker in workers:
        worker.join(max(deadline - time.monotonic(), 0))
        if worker.is_alive():
            worker.terminate()
            worker.join()


def _on_one_core(line: Line) -> Line:
    return replace(line, settings=replace(line.settings, threads=1))
