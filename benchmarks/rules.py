"""Error of one map against the local problems that it solves, for every rule and order, at points of all kinds.

    python benchmarks/rules.py [--only NAME ...] [--rules NAME ...] [--summary] [--seeds N]

The error is the largest difference of q_hat, V_hat, m_hat and theta_hat from a much finer rule, relative to the largest
entry of each, without those that vanish by symmetry.  "plain" are one scrambled net in all fields, in normals of the
teacher's fields first, which also draw the labels.  "averaged" are the same points, with means averaged over the
symmetries of the point, as they are under all other rules.  "points" are one scrambled net in normals of the student's
fields first.  The errors of rules with scramblings are root mean squares over these.  The reference is a rule of lines
where there are lines, and else the mean of four scramblings of `REFERENCE` points; its own error is printed above each
table.

The last table, alone with ``--summary``, has one row for each point: how many local problems each rule needs for the
error asked for, and ratios of these.  The number is that of a power law, for lines between two orders, for all others
through the four sizes next to the error (least squares).  All these rules search from the same starts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from math import inf
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Rule, lines, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System

__all__ = ["CASES", "SEPARABLE", "Case", "Measurement", "measured", "needed"]

RULES = "plain", "averaged", "points", "lines"
SEEDS = 16
_MOST_POINTS = 21  # exponent of two
REFERENCE, _REFERENCES = 2**21, 4
_VANISHES = 1e-9  # share of the largest moment below which others are rounding
_BANDED = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]
_PAPER = Problem.paper(omega=0.3)
_THREE = Problem.from_dict({"tokens": {"length": 3}, "teacher": {"omega": 0.5, "mixing": _BANDED}})
_RANK_TWO = _PAPER.with_fields({"teacher.rank": 2, "student.rank": 2})


def _one_token(loss: str, ridge: float = 0.01, sigma: float = 0.5) -> Problem:
    tokens = {"length": 1, "sigma": sigma}
    return Problem.from_dict({"tokens": tokens, "loss": {"kind": loss}, "regularizer": {"strength": ridge}})


class Case(NamedTuple):
    """A point, and what is tried there.

    Attributes
    ----------
    problem : Problem
    branch : str
    alpha : float
    across : tuple of tuples of int
        Orders across lines; none where there are no lines.
    shares : tuple of float
        Nodes of lines in all directions of the teacher's fields but the first, as shares of those in this one.
    latent : tuple of int
        Nodes of lines in the first direction.
    asked : float
        Error at which rules are compared.
    defect : float
        Of lines, relative to the error asked for.
    finest : (int, int)
        Nodes in the first direction of the reference, and of the other one that tells its error.
    """

    problem: Problem
    branch: str
    alpha: float
    across: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...] = (0.5,)
    latent: tuple[int, ...] = tuple(range(6, 25, 2))
    asked: float = 1e-3
    defect: float = 0.1
    finest: tuple[int, int] = (44, 36)


CASES = {
    "paper, positional": Case(_PAPER, "positional", 1.24, ((3,), (4,))),
    "paper, semantic": Case(_PAPER, "semantic", 2.0, ((3,), (4,))),
    "paper, semantic, few samples": Case(_PAPER, "semantic", 0.8, ((3,), (4,))),
    "untied, semantic": Case(_PAPER.with_fields({"student.tied": False}), "semantic", 2.0, ((3, 3, 2),)),
    "untied, positional": Case(
        _PAPER.with_fields({"student.tied": False}), "positional", 2.0, ((4, 4, 2), (4, 4, 3)), (0.6,)
    ),
    "three tokens, semantic, jumps": Case(
        _THREE, "semantic", 1.24, ((5, 3), (6, 3)), (0.85, 0.65), (8, 10, 12, 14), finest=(22, 18)
    ),
    "three tokens, positional": Case(
        _THREE, "positional", 1.24, ((6, 4), (8, 4)), (0.85, 0.65), (6, 8, 10, 12), finest=(20, 16)
    ),
    "three tokens, equal, semantic": Case(
        Problem.from_dict({"tokens": {"length": 3}}),
        "semantic",
        2.0,
        ((2, 2), (3, 2), (4, 3)),
        (1.0, 0.65),
        (8, 10, 12, 14),
        finest=(24, 20),
    ),
    "rank two, semantic": Case(_RANK_TWO, "semantic", 2.0, (), asked=5e-3),
    "rank two, positional": Case(_RANK_TWO, "positional", 2.0, (), asked=5e-3),
    "four tokens, semantic": Case(Problem.from_dict({"tokens": {"length": 4}}), "semantic", 2.0, ()),
    "causal, semantic": Case(
        _PAPER.with_fields({"teacher.causal": True, "student.causal": True}),
        "semantic",
        2.0,
        ((3,), (4,)),
        (0.6,),
        defect=0.01,
    ),
    "hinge": Case(_one_token("hinge"), "semantic", 3.0, ((),), ()),
    "logistic": Case(_one_token("logistic"), "semantic", 8.0, ((),), ()),
    "logistic, weak ridge": Case(_one_token("logistic", 0.001), "semantic", 8.0, ((),), ()),
}

SEPARABLE = {
    f"{loss}, {alpha:g}, {ridge:g}, {sigma:g}": Case(_one_token(loss, ridge, sigma), "semantic", alpha, ((),), ())
    for loss in ("hinge", "logistic")
    for alpha, sigma in ((3.0, 1.0), (8.0, 1.0), (10.0, 2.0))
    for ridge in (0.01, 0.001)
}
"""One token, whose label jumps: loss, alpha, ridge and standard deviation of the token."""


@dataclass(frozen=True)
class Measurement:
    """One rule at a point.

    Attributes
    ----------
    rule, orders : str
    family : str
        Those of its orders that stay the same in the sequence of rules that it belongs to.
    problems : int
        Local problems that one map solves.
    error : float
    milliseconds : float
        Of one map, of the processor.
    """

    rule: str
    orders: str
    family: str
    problems: int
    error: float
    milliseconds: float


@dataclass(frozen=True, eq=False)
class _Plain(Rule):
    """Points that are normals of the teacher's fields and of the student's given these."""

    @property
    def latent_first(self) -> bool:
        """As for rules that take the teacher's fields first."""
        return True


class _Point:
    """A problem's map at one point under any rule, whose local problems are counted."""

    def __init__(self, case: Case, threads: int) -> None:
        settings = SolverSettings(threads=threads, stability=False, identity=False)
        self.case, self.count = case, 0
        self.overlaps: Overlaps = solve_point(case.problem, case.alpha, case.branch, settings=settings).restart.overlaps
        system = System.of(case.problem, threads)

        def counted(nodes: Nodes, starts: Starts, solution: Solution) -> None:
            self.count += len(nodes.centers)
            system.kernels.minimise(nodes, starts, solution)

        self.system = replace(system, kernels=replace(system.kernels, minimise=counted))
        self.sector = system.sector_of(self.overlaps)
        kernels = system.kernels
        counts = kernels.columns, kernels.label_fields
        self.student, labels = (kernels.length * count for count in counts)
        self.dimensions = self.student + labels, self.student

    def moments(self, rule: Rule, averaged: bool = True) -> tuple[list[Array], int, float]:
        """Their means, averaged over the point's symmetries or not; local problems, and milliseconds."""
        sector = self.sector if averaged else replace(self.sector, group=self.sector.group[:1])
        map_ = StateEvolution(Channel(self.system, rule), self.case.alpha, sector)
        x = map_.pack(self.overlaps)
        map_(x)  # finds the problem's directions and draws the nodes
        map_.adopt(None)
        self.count, begin = 0, time.process_time()
        map_(x)
        spent = 1e3 * (time.process_time() - begin)
        assert map_.last is not None
        found = map_.last.conjugates
        every = [x.mean(axis=1) for x in (found.q_hat, found.V_hat, found.m_hat, found.theta_hat)]
        return every, self.count, spent

    def of_lines(self, latent: int, across: tuple[int, ...], panels: int = 2, cut_off: float | None = None) -> Rule:
        """Most nodes along the first direction of the teacher's fields, in which most happens.

        What is cut off of the latent variables is a tenth of the error asked for, or given as the defect is.
        """
        defect, dropped = self.case.defect * self.case.asked, self.case.asked / 10
        if cut_off is not None:
            defect = dropped = cut_off
        return lines(*self.dimensions, LineOrders(self.orders(latent), across, panels, defect, dropped))

    def orders(self, latent: int) -> tuple[int, ...]:
        """Nodes in every direction of the teacher's fields, even numbers: symmetries spare half of them."""
        return (latent, *(2 * round(share * latent / 2) for share in self.case.shares))

    def of_points(self, points: int, seed: int) -> Rule:
        """One net in all fields."""
        return sobol(*self.dimensions, False, points, 1, seed)

    def of_plain(self, points: int, seed: int) -> Rule:
        """The same points as normals of the teacher's fields first."""
        rule = self.of_points(points, seed)
        return _Plain(**{item.name: getattr(rule, item.name) for item in fields(rule)})

    def reference(self) -> tuple[list[Array], float]:
        """The right moments, and how far another rule's are off."""
        if self.case.across:
            most = self.case.across[-1]
            rules = [(self.case.finest[0], 2), (self.case.finest[1], 1)]
            more, less = (self.of_lines(n, tuple(m + extra for m in most), 4, 1e-8) for n, extra in rules)
            right, other = (self.moments(rule)[0] for rule in (more, less))
            return right, _difference(right, other)
        several = [self.moments(self.of_points(REFERENCE, SEEDS + seed))[0] for seed in range(_REFERENCES)]
        right = [np.mean(x, axis=0) for x in zip(*several, strict=True)]
        spread = np.sqrt(np.mean([_difference(right, one) ** 2 for one in several]))
        return right, float(spread / np.sqrt(_REFERENCES - 1))


def measured(
    case: Case, threads: int = 1, seeds: int = SEEDS, rules: Collection[str] = RULES
) -> tuple[float, Iterator[Measurement]]:
    """The error of the reference, and every rule that is tried at a point."""
    point = _Point(case, threads)
    right, error = point.reference()
    return error, _every(point, right, seeds, rules)


def _every(point: _Point, right: list[Array], seeds: int, rules: Collection[str]) -> Iterator[Measurement]:
    case = point.case
    for rule, made in (("plain", point.of_plain), ("averaged", point.of_plain), ("points", point.of_points)):
        sizes = ((str(2**n), lambda seed, n=n, made=made: made(2**n, seed)) for n in range(10, _MOST_POINTS + 1))
        if rule in rules:
            yield from _of_sizes(rule, "", sizes, point, right, seeds)
    for across in case.across if "lines" in rules else ():
        for latent in case.latent:
            found, problems, spent = point.moments(point.of_lines(latent, across))
            error, family = _difference(right, found), _text(across)
            yield Measurement("lines", f"{_text(point.orders(latent))}; {family}", family, problems, error, spent)


def _text(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _of_sizes(
    rule: str,
    family: str,
    sizes: Iterable[tuple[str, Callable[[int], Rule]]],
    point: _Point,
    right: list[Array],
    seeds: int,
) -> Iterator[Measurement]:
    """Rules of growing size by the root mean square over seeds, until two in a row are as accurate as asked."""
    accurate = 0
    for orders, made in sizes:
        several = [point.moments(made(seed), rule != "plain") for seed in range(seeds)]
        off = [_difference(right, found) for found, *_ in several]
        _, problems, spent = several[0]
        one = Measurement(rule, orders, family, problems, float(np.sqrt(np.mean(np.square(off)))), spent)
        yield one
        accurate = accurate + 1 if one.error <= point.case.asked else 0
        if accurate == 2:
            return


def _difference(right: list[Array], others: list[Array]) -> float:
    """The largest between moments that do not vanish, relative to the largest entry of each."""
    sizes = [np.abs(mine).max() for mine in right]
    every = zip(right, others, sizes, strict=True)
    return max(float(np.abs(mine - other).max() / size) for mine, other, size in every if size > _VANISHES * max(sizes))


def needed(found: list[Measurement], asked: float, of: Callable[[Measurement], float]) -> float:
    """What the best sequence of rules needs for an error; infinite where none is accurate enough."""
    families = {one.family for one in found}
    every = [_of_family([one for one in found if one.family == family], asked, of) for family in families]
    return min(every, default=inf)


def _of_family(found: list[Measurement], asked: float, of: Callable[[Measurement], float]) -> float:
    """What a sequence needs, from where on no larger rule leaves more, by a power law."""
    by_cost = sorted(found, key=of)
    for place, one in enumerate(by_cost):
        if all(other.error <= asked for other in by_cost[place:]):
            if place == 0:
                return of(one)
            more = 1 if one.rule == "lines" else 2  # on each side: errors of scramblings are statistics
            near = by_cost[max(place - more, 0) : place + more]
            errors, costs = (np.log([f(each) for each in near]) for f in (lambda each: each.error, of))
            slope, constant = np.polyfit(errors, costs, 1)
            return float(np.exp(constant + slope * np.log(asked)))
    return inf


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Error of one map against the local problems that it solves.")
    every = CASES | SEPARABLE
    parser.add_argument("--only", nargs="+", choices=every, default=list(CASES), metavar="NAME", help="these points")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES, metavar="NAME", help="these rules")
    parser.add_argument("--summary", action="store_true", help="one row for each point")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="scramblings (default: %(default)s)")
    options = parser.parse_args()
    rows = []
    for name in options.only:
        case = every[name]
        error, found_by = measured(case, seeds=options.seeds, rules=options.rules)
        found = list(found_by)
        rows.append(_summary(name, case, found))
        if not options.summary:
            print(f"\n{name}, alpha = {case.alpha:g} (reference to {error:.0e})\n")
            _header("rule", "orders", "local problems", "error", "ms")
            for one in found:
                cells = one.rule, one.orders, str(one.problems), f"{one.error:.1e}", f"{one.milliseconds:.2f}"
                print(f"| {' | '.join(cells)} |", flush=True)
    print()
    ratios = [f"{rule}/{other}" for rule in RULES[:3] for other in RULES[3:]]
    _header("point", "error asked", *RULES, *ratios, "quicker")
    print("\n".join(rows))


def _header(*names: str) -> None:
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")


def _summary(name: str, case: Case, found: list[Measurement]) -> str:
    by_rule = {rule: [one for one in found if one.rule == rule] for rule in RULES}
    problems, spent = (
        {rule: needed(few, case.asked, of) for rule, few in by_rule.items()}
        for of in (
            lambda one: one.problems,
            lambda one: one.milliseconds,
        )
    )
    cells = [f"{case.asked:.1%}", *(_number(count, 0) for count in problems.values())]
    cells += [_ratio(problems[rule], problems[other]) for rule in RULES[:3] for other in RULES[3:]]
    cells.append(_ratio(spent["points"], spent["lines"]))
    return f"| {name} | " + " | ".join(cells) + " |"


def _ratio(more: float, fewer: float) -> str:
    return _number(more / fewer, 1) if max(more, fewer) < inf else "-"


def _number(value: float, digits: int) -> str:
    """A dash where one of the rules is not accurate enough."""
    return f"{value:.{digits}f}" if 0 < value < inf else "-"


if __name__ == "__main__":
    main()
