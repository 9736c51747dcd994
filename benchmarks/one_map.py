"""Seconds of one map by lines with every moment to a thousandth, on one thread, for each kind of model.

The orders are the cheapest of those tried whose moments (q_hat, V_hat, and m_hat or theta_hat) differ by less than .1 %
from those of a much finer rule, at the sample complexity of the row and on both sides of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import lines
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.system import System
from benchmarks.fixed_points import SETTINGS, one_map
from benchmarks.measuring import Options, Row, clock_named, filled
from benchmarks.record import YARDSTICK

__all__ = ["rows"]

_PAPER = Problem.paper(omega=0.3)
_BANDED = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]
_ASKED = 1e-3  # of every moment
_MOVED = 1 + 1e-6  # a map that is evaluated where it was last does nothing
_VANISHES = 1e-9  # share of the largest moment below which others are rounding


def _one_token(loss: str) -> Problem:
    return Problem.from_dict({"tokens": {"length": 1}, "loss": {"kind": loss}})


class Kind(NamedTuple):
    """A kind of model at one of its points, and the orders that its moments need; see `LineOrders`."""

    problem: Problem
    alpha: float
    branch: str
    latent: tuple[int, ...]
    across: tuple[int, ...]


KINDS = {
    "the paper's, semantic": Kind(_PAPER, SETTINGS["semantic"], "semantic", (16, 8), (3,)),
    "the paper's, positional": Kind(_PAPER, SETTINGS["positional"], "positional", (18, 7), (3,)),
    "untied": Kind(_PAPER.with_fields({"student.tied": False}), 2.0, "semantic", (16, 10), (3, 3, 2)),
    "lasso": Kind(
        _PAPER.with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.003}),
        2.0,
        "semantic",
        (16, 8),
        (3,),
    ),
    "causal": Kind(
        _PAPER.with_fields({"teacher.causal": True, "student.causal": True}), 2.0, "semantic", (11, 9), (3,)
    ),
    "three tokens, banded A": Kind(
        _PAPER.with_fields({"tokens.length": 3, "teacher.mixing": _BANDED, "integration.rule": "lines"}),
        2.0,
        "semantic",
        (12, 10, 8),
        (3, 3),
    ),
    "one token, square": Kind(_one_token("square"), 2.0, "semantic", (8,), ()),
    "one token, logistic": Kind(_one_token("logistic"), 8.0, "semantic", (12,), ()),
    "one token, hinge": Kind(_one_token("hinge"), 3.0, "semantic", (10,), ()),
}


def rows(options: Options) -> Iterator[Row]:
    """One row a kind, and one of the recipe's map at the positional point."""
    clock = clock_named(options.clock)
    positional = "recipe: one map, positional"
    yield Row(positional, "s", lambda: one_map(clock, "positional"))
    settings = SolverSettings(threads=1)
    for name, kind in list(KINDS.items())[: 1 if options.quick else None]:
        orders = LineOrders(kind.latent, kind.across, defect=0.3 * _ASKED, dropped=_ASKED / 10)
        overlaps = solve_point(kind.problem, kind.alpha, kind.branch, settings=settings).restart.overlaps
        map_ = _map_of(kind, System.of(kind.problem), overlaps, orders)
        x = map_.pack(overlaps)
        points = cycle([_MOVED * x, x])
        error = _difference(_moments(map_, x), _moments(_map_of(kind, map_.system, overlaps, _finer(orders)), x))

        def once(map_: StateEvolution = map_, points: Iterator[Array] = points) -> float:
            filled(clock, lambda: map_(next(points)))  # in a solve a map follows others
            return filled(clock, lambda: map_(next(points)))

        yield Row(
            f"map: {name}",
            "s",
            once,
            detail=f"{_solved(kind, overlaps, orders)} local problems, moments to {error:.2%}",
            beside=positional if kind.branch == "positional" else YARDSTICK,
        )


def _map_of(kind: Kind, system: System, overlaps: Overlaps, orders: LineOrders) -> StateEvolution:
    kernels = system.kernels
    student, teacher = (kernels.length * count for count in (kernels.columns, kernels.label_fields))
    channel = Channel(system, lines(student + teacher, student, orders))
    return StateEvolution(channel, kind.alpha, system.sector_of(overlaps))


def _finer(orders: LineOrders) -> LineOrders:
    """Twice as many nodes of the teacher's fields, one more across lines, and a hundredth of what is cut off."""
    latent, across = tuple(2 * n for n in orders.latent), tuple(n + 1 for n in orders.across)
    return LineOrders(latent, across, orders.panels, orders.defect / 100, orders.dropped / 100)


def _moments(map_: StateEvolution, x: Array) -> list[Array]:
    """Those of a map at a point, without those that vanish."""
    map_(x)
    assert map_.last is not None
    hats = map_.last.conjugates
    moments = [hats.q_hat, hats.V_hat, hats.m_hat, hats.theta_hat]
    largest = max(np.abs(values).max() for values in moments)
    return [values for values in moments if np.abs(values).max() > _VANISHES * largest]


def _difference(moments: list[Array], others: list[Array]) -> float:
    """The largest between moments and others, relative to the largest entry of each."""
    pairs = zip(moments, others, strict=True)
    return max(float(np.abs(mine - other).max() / np.abs(other).max()) for mine, other in pairs)


def _solved(kind: Kind, overlaps: Overlaps, orders: LineOrders) -> int:
    """Local problems that one map solves: those at ends and for crossings too."""
    system, count = System.of(kind.problem), 0

    def counted(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        nonlocal count
        count += len(nodes.centers)
        system.kernels.minimise(nodes, starts, solution)

    map_ = _map_of(kind, replace(system, kernels=replace(system.kernels, minimise=counted)), overlaps, orders)
    map_(map_.pack(overlaps))  # which finds the problem's directions too
    count = 0
    map_.adopt(None)
    map_(map_.pack(overlaps))
    return count
