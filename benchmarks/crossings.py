"""Sixty drawn problems, three ranges each: whether thresholds lie where swept curves cross.

    python benchmarks/crossings.py [--problems 3 17] [--processes 2]
    python benchmarks/crossings.py --references [--problems 3 17] [--processes 2]

The second form computes the crossings that `benchmarks/crossings.json` lacks. It uses no search of the package: `solve`
gives every point from its informed start, on a grid of α and where the curves are divided further.

**Drawn.** Problem number i and its ranges come from the seed (39, i): ω, σ and λ are log-uniform within .05 to .4,
.35 to .7 and .003 to .03; of every six problems one has another mixing, one causal masks, one tokens, encodings,
temperatures and λ in another unit. The first range is .2 to 8. The other two contain the crossing of losses, or else
that of the baseline, or else they are drawn within the first.

**Crossing.** A crossing is the largest α at which the difference of two curves falls through zero, between two α at
which both curves are converged and on their branches. Where the points leave it undecided whether the curves cross, the
interval is open.

**Counted.** A threshold is *wrong* if it is off by more than four errors, or located where no curves cross, or denied
in a range in which they do; it is *flagged* if its search did not end, and *missed* if the curves cross there. Ranges
with an end within a hundredth of the crossing, and ranges that an open interval leaves undecided, are left out. The
test passes if, of each kind, none is wrong or missed and at most five of 180 are flagged.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import attnphase as ap
from attnphase.fixed_points.threshold import Outcome
from attnphase.state_evolution.branches import BranchName, Identity

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["KINDS", "Crossing", "Curves", "Drawn", "crossing", "drawn", "judged", "passes"]

SEED = 39
COUNT = 60
WHOLE = (0.2, 8.0)
REFERENCES = Path(__file__).with_suffix(".json")
MOST_FLAGGED = 5
LARGEST = 4.0
KINDS = {"alpha_c": ("semantic", "positional"), "alpha_l": ("semantic",)}
"""Kinds of crossings, and the branches whose curves they are."""

_GRIDS = {"alpha_c": 13, "alpha_l": 25}  # points; where there is no branch, a positional one costs the most
_SECONDS = 20.0  # a point that takes longer is undecided: one of a branch takes less than five
_ROUGH, _MEDIUM, _FINE = 1e-2, 1e-3, 1e-4  # standard errors: of the grid, of what that leaves undecided, of the root
_END = 2e-3  # relative width to which the end of a branch is located, where a crossing may be beside it
_STEEPER = 3.0  # factor by which the slope of a difference may grow towards the end of a branch
_CLOSE = 2e-5  # relative width at which an interval is not divided any more
_NEAR_AN_END = 0.01
_OTHER_MIXING = [[0.3, 0.7], [0.8, 0.2]]


@dataclass(frozen=True)
class Drawn:
    """A problem and the ranges of α that are searched."""

    number: int
    fields: dict[str, Any]

    @property
    def problem(self) -> ap.Problem:
        """As the package takes it."""
        return ap.Problem.from_dict(self.fields)

    def ranges(self, at: float) -> list[tuple[float, float]]:
        """Three, around a crossing; of those without one anywhere."""
        generator = np.random.default_rng([SEED, self.number, 1])
        found = [WHOLE]
        for _ in range(2):
            if isnan(at):
                low, high = np.sort(np.exp(generator.uniform(np.log(WHOLE[0]), np.log(WHOLE[1]), 2)))
                high = max(high, 1.5 * low)
            else:
                low, high = at * np.exp(np.array([-1, 1]) * generator.uniform(0.05, 1.5, 2))
            found.append((max(float(low), WHOLE[0]), min(float(high), WHOLE[1])))
        return found


@dataclass(frozen=True)
class Crossing:
    """Where swept curves cross last.

    Attributes
    ----------
    alpha, error : float
        NaN if they do not.
    open : list of (float, float)
        Intervals of α in which the points leave it undecided.
    """

    alpha: float
    error: float
    open: list[tuple[float, float]]

    @classmethod
    def of(cls, line: dict[str, Any]) -> Crossing:
        """As it is saved, with null for NaN."""
        alpha, error = (nan if line[name] is None else line[name] for name in ("alpha", "error"))
        return cls(alpha, error, [(low, high) for low, high in line["open"]])

    def line(self) -> dict[str, Any]:
        """As it is saved."""
        numbers = {name: None if isnan(x) else float(f"{x:.9g}") for name, x in vars(self).items() if name != "open"}
        return numbers | {"open": [[float(f"{end:.6g}") for end in one] for one in self.open]}


def drawn() -> list[Drawn]:
    """The sixty problems."""
    found = []
    for number in range(COUNT):
        generator = np.random.default_rng([SEED, number])
        omega, sigma, ridge = (
            float(f"{np.exp(generator.uniform(*np.log(ends))):.4g}")
            for ends in ((0.05, 0.4), (0.35, 0.7), (0.003, 0.03))
        )
        turn, c = number % 6, 1.0
        if turn == 2:
            c = float(f"{np.exp(generator.uniform(*np.log([0.1, 10]))):.4g}")
        fields: dict[str, Any] = {
            "tokens": {"sigma": c * sigma},
            "regularizer": {"strength": c**2 * ridge},
            "teacher": {"omega": omega, "temperature": c**2},
            "student": {"temperature": c**2},
            "positions": {"kind": "gram", "gram": [[c**2, -(c**2)], [-(c**2), c**2]]},
        }
        if turn == 0:
            fields["teacher"]["mixing"] = _OTHER_MIXING
        if turn == 1:
            fields["teacher"]["causal"] = fields["student"]["causal"] = True
        found.append(Drawn(number, fields))
    return found


@dataclass(frozen=True)
class Sample:
    """The difference of two curves at one α.

    Attributes
    ----------
    alpha : float
    exists : tuple of (bool or None)
        Whether there is a branch, of each that the difference needs; None where its point leaves that undecided.
    value, error : float
        Of the difference; NaN where not all branches exist.
    """

    alpha: float
    exists: tuple[bool | None, ...]
    value: float = nan
    error: float = nan

    @property
    def exists_all(self) -> bool:
        """Whether there are all branches."""
        return all(self.exists)

    @property
    def known(self) -> bool:
        """Whether all points, and the sign of the difference, are decided."""
        return None not in self.exists and not abs(self.value) < LARGEST * self.error

    @property
    def sign(self) -> int:
        """Of the difference, zero where not all branches exist."""
        return int(np.sign(self.value)) if self.exists_all else 0


class Curves:
    """The branches of a problem, each point solved once, from its informed start."""

    def __init__(self, problem: ap.Problem) -> None:
        self.problem = problem
        self._solved: dict[tuple[str, float, float], xr.Dataset] = {}

    def point(self, branch: BranchName, alpha: float, error: float) -> xr.Dataset:
        """Of a branch, to a relative standard error."""
        key = branch, alpha, error
        if key not in self._solved:
            asked = self.problem.with_fields({"integration.standard_error": error})
            self._solved[key] = ap.solve(
                asked, alpha, branch, settings=ap.SolverSettings(threads=1, stability=False, max_seconds=_SECONDS)
            )
        return self._solved[key]

    def sample(self, kind: str, alpha: float, *errors: float) -> Sample:
        """The difference of a kind at an α, to the first of some errors that decides it."""
        here = Sample(alpha, (None,))
        for error in errors:
            points = [self.point(branch, alpha, error) for branch in KINDS[kind]]
            here = Sample(alpha, tuple(map(_exists, points)))
            if here.exists_all:
                here = Sample(alpha, here.exists, *_difference(kind, points))
            if here.known:
                break
        return here


def _exists(point: xr.Dataset) -> bool | None:
    identity = int(point["on_branch"])
    if identity == Identity.merged:  # known of the curve of the order parameter, whatever the iteration's end
        return False
    return True if identity == Identity.on_branch and not int(point["status"]) else None


def _difference(kind: str, points: Sequence[xr.Dataset]) -> tuple[float, float]:
    if kind == "alpha_c":
        one, other = (float(point["training_loss"]) for point in points)
        first, second = (float(point["training_loss_stderr"]) for point in points)
        return one - other, float(np.hypot(first, second))
    (point,) = points
    return float(point["test_error"] - point["linear_test_error"]), float(point["test_error_stderr"])


def crossing(curves: Curves, kind: str) -> Crossing:
    """The last crossing of swept curves."""
    grid = [curves.sample(kind, float(alpha), _ROUGH) for alpha in np.geomspace(*WHOLE, _GRIDS[kind])]
    grid = [one for one in grid if one.known]
    samples = grid[:1]
    for i, (low, high) in enumerate(pairwise(grid)):
        beyond = grid[i - 1 : i] if low.sign else grid[i + 2 : i + 3]
        samples += [*_between(curves, kind, (low, high), *beyond), high]
    falls, opened = _falls([one for one in samples if one.known])
    if not falls:
        return Crossing(nan, nan, opened)
    *earlier, last = falls
    root = _root(curves, kind, *last)
    opened += [(low.alpha, high.alpha) for low, high in (earlier if root else falls)]
    return Crossing(*(root or (nan, nan)), opened)


def _may_hide(low: Sample, high: Sample, beyond: Sample | None = None) -> bool:
    """Whether the difference may fall through zero beside the end of a branch, between two samples.

    Not if its line through the sample at which the curves exist, and the one beyond, is clear of zero to the other.
    """
    if low.sign and high.sign:
        return False
    if not (low.sign or high.sign):
        ends = zip(low.exists, high.exists, strict=True)
        return low.exists != high.exists and all(one or other for one, other in ends)
    last, end = (low, high) if low.sign else (high, low)
    if beyond is not None and beyond.sign:
        slope = abs((last.value - beyond.value) / (last.alpha - beyond.alpha))
        if abs(last.value) > _STEEPER * slope * abs(end.alpha - last.alpha) + LARGEST * last.error:
            return False
    return low.sign > 0 or high.sign < 0


def _between(curves: Curves, kind: str, ends: tuple[Sample, Sample], beyond: Sample | None = None) -> list[Sample]:
    """Samples between two, in rising order, down to the ends of branches beside which a fall may hide."""
    low, high = ends
    if high.alpha - low.alpha < _END * low.alpha or not _may_hide(low, high, beyond):
        return []
    middle = curves.sample(kind, float(np.sqrt(low.alpha * high.alpha)), _ROUGH, _MEDIUM)
    # from a sample that decides nothing, only towards the curves
    below = middle.known or low.sign
    above = middle.known or high.sign
    return [
        *(_between(curves, kind, (low, middle), high if middle.sign else beyond) if below else []),
        middle,
        *(_between(curves, kind, (middle, high), low if middle.sign else beyond) if above else []),
    ]


def _falls(known: Sequence[Sample]) -> tuple[list[tuple[Sample, Sample]], list[tuple[float, float]]]:
    """Pairs of decided samples between which the difference falls through zero, and intervals in which it may."""
    pairs = list(pairwise(known))
    falls = [(low, high) for low, high in pairs if low.sign > 0 > high.sign]
    opened = []
    for i, (low, high) in enumerate(pairs):
        beyond = (known[i - 1 : i] if low.sign else known[i + 2 : i + 3]) or [None]
        if _may_hide(low, high, beyond[0]):
            opened.append((low.alpha, high.alpha))
    return falls, opened


def _root(curves: Curves, kind: str, low: Sample, high: Sample) -> tuple[float, float] | None:
    """Where the difference is zero between two samples, and its error; None if points between are undecided.

    Chords, kept off both ends so that both close, until the difference is within its error or the interval is short.
    """
    fine = (curves.sample(kind, end.alpha, _FINE) for end in (low, high))
    # an end that smaller errors leave undecided serves as it is
    low, high = (other if other.exists_all else end for end, other in zip((low, high), fine, strict=True))
    if not low.sign > 0 > high.sign:
        return None
    while True:
        width = high.alpha - low.alpha
        slope = (low.value - high.value) / width
        if width <= _CLOSE * low.alpha:
            return low.alpha + width / 2, width / 2 + max(low.error, high.error) / slope
        root = low.alpha + low.value / slope
        middle = min(max(root, low.alpha + 0.02 * width), high.alpha - 0.02 * width)
        here = curves.sample(kind, middle, _FINE)
        if not here.sign:
            return None
        if abs(here.value) < here.error:
            return middle + here.value / slope, here.error / slope
        low, high = (here, high) if here.sign > 0 else (low, here)


def judged(reference: Crossing, between: tuple[float, float], alpha: float, error: float, outcome: int) -> str:
    """One of `VERDICTS`, for a threshold that was looked for in a range."""
    low, high = between
    inside = low < reference.alpha < high  # false of NaN
    if any(abs(reference.alpha / end - 1) < _NEAR_AN_END for end in between):
        return "open"
    # an interval below the crossing leaves the last one as it is
    if any(one < high and other > (reference.alpha if inside else low) for one, other in reference.open):
        return "open"
    if outcome == Outcome.unsettled:
        return "missed" if inside else "flagged"
    if isnan(alpha):
        return "wrong" if inside else "right"
    off = abs(alpha - reference.alpha)
    return "right" if inside and off <= LARGEST * np.hypot(error, reference.error) else "wrong"


VERDICTS = ("right", "wrong", "missed", "flagged", "open")


def passes(verdicts: Sequence[str]) -> bool:
    """Whether those of one kind pass the test."""
    most = MOST_FLAGGED * len(verdicts) / (3 * COUNT)
    return not {"wrong", "missed"} & {*verdicts} and verdicts.count("flagged") <= most


def reference_of(one: Drawn) -> dict[str, Any]:
    begin, curves = time.perf_counter(), Curves(one.problem)
    found = {kind: crossing(curves, kind).line() for kind in KINDS}
    return {"number": one.number, **found, "seconds": round(time.perf_counter() - begin, 1)}


def _searched(one: Drawn, references: dict[str, Crossing]) -> list[tuple[int, str, tuple[float, float], Any, str]]:
    found = []
    at = next((references[kind].alpha for kind in KINDS if not isnan(references[kind].alpha)), nan)
    for between in one.ranges(at):
        ds = ap.thresholds(one.problem, alpha=between, settings=ap.SolverSettings(threads=1))
        for kind in KINDS:
            told = float(ds[kind][0]), float(ds[f"{kind}_stderr"][0]), int(ds[f"{kind}_status"][0])
            found.append((one.number, kind, between, told, judged(references[kind], between, *told)))
    return found


def saved() -> dict[int, dict[str, Crossing]]:
    """The references, by the problem's number."""
    return {number: {kind: Crossing.of(line[kind]) for kind in KINDS} for number, line in _lines().items()}


def _lines() -> dict[int, dict[str, Any]]:
    if not REFERENCES.exists():
        return {}
    lines = json.loads(REFERENCES.read_text(encoding="utf-8"))["references"]
    return {line["number"]: line for line in lines}


def _save(lines: dict[int, dict[str, Any]]) -> None:
    text = ",\n".join(json.dumps(lines[number]) for number in sorted(lines))
    REFERENCES.write_text('{"references": [\n' + text + "\n]}\n", encoding="utf-8")


def _done(processes: int, work: Any, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Results as they come."""
    if processes == 1:
        yield from (work(*task) for task in tasks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for one in as_completed([pool.submit(work, *task) for task in tasks]):
            yield one.result()


def _find(chosen: Sequence[Drawn], processes: int) -> None:
    lines = _lines()
    for line in _done(processes, reference_of, [(one,) for one in chosen if one.number not in lines]):
        lines[line["number"]] = line
        _save(lines)
        print(json.dumps(line), flush=True)


def _compare(chosen: Sequence[Drawn], processes: int) -> bool:
    references = saved()
    missing = [one.number for one in chosen if one.number not in references]
    if missing:
        print(f"left out, without a reference: the problems {missing}; compute them with --references", flush=True)
    verdicts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    tasks = [(one, references[one.number]) for one in chosen if one.number in references]
    print("problem | kind | from | to | threshold | error | crossing | error | status | verdict")
    for each in _done(processes, _searched, tasks):
        for number, kind, between, told, verdict in each:
            verdicts[kind].append(verdict)
            shown = references[number][kind]
            numbers = [f"{x:.6g}" for x in (*between, *told[:2], shown.alpha, shown.error)]
            print(number, kind, *numbers, Outcome(told[2]).name, verdict, sep=" | ", flush=True)
    for kind, ones in verdicts.items():
        print(kind, {verdict: ones.count(verdict) for verdict in VERDICTS})
    passed = bool(tasks) and all(map(passes, verdicts.values()))
    print("passed" if passed else "failed")
    return passed


def main() -> None:
    """Find references, or search and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", type=int, nargs="+", metavar="NUMBER", help="these problems alone, from 0 to 59")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--references", action="store_true", help="find the crossings that the file lacks and save them"
    )
    asked = parser.parse_args()
    chosen = [one for one in drawn() if asked.problems is None or one.number in asked.problems]
    if asked.references:
        _find(chosen, asked.processes)
    elif not _compare(chosen, asked.processes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
