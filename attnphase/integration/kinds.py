"""Every rule that ``integration.rule`` may name: which nodes it starts with, and which come next."""

from __future__ import annotations

from dataclasses import fields, replace
from math import prod
from typing import ClassVar

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.integration.lines import LineOrders
from attnphase.integration.refinement import (
    GAUGE_POINTS,
    GAUSS_HERMITE_ORDERS,
    LOW_ORDERS,
    MAX_TENSOR_NODES,
    SINGLE_POINTS,
    SMOOTH,
    TENSOR_OF_DERIVATIVES,
    Asked,
    Refinement,
)
from attnphase.integration.rules import Rule, lines, published_rule

__all__ = ["RULES"]

_NODES = "integration.nodes"
FIRST_LATENT, FIRST_ACROSS = 12, 3  # nodes of each of the teacher's fields and of the noise, and across lines
_POINTS_OF_A_NODE = 4  # measured: a node of a line takes the time of two to eight Sobol points whose minima are known
_MOST_OF_LINES = 4  # times as many nodes as Sobol points may be: who names lines asks for small errors
_MOST_PER_DIMENSION = 256
# relative to the error asked for: the defect of lines, and what nodes that are left out have of the variance
_DEFECT, _DROPPED = 0.01, 0.1
_LESS = 0.1  # of both, from a rule to the next
_MOST_DEFECT = 1e-6  # measured: with it maps jump by less than 1e-7, which is what solves converge to
_TENSOR_DIMENSIONS = 4  # up to which tensor rules are tried before more Sobol points
_LOW_ORDER_DIMENSIONS = 6  # up to which those of low order are


class Sobol(Refinement):
    """``"sobol"``: scrambled points, which know their error."""

    name = "sobol"

    @classmethod
    def check_nodes(cls, nodes: int) -> None:
        """See `Refinement`."""
        if nodes & (nodes - 1):
            raise ProblemError(
                _NODES,
                f'integration.nodes must be a power of two for integration.rule = "sobol", but it is {nodes}.',
            )

    def first(self) -> Rule:
        """See `Refinement`."""
        return self.sobol(min(self.medium_points, self.asked.nodes or self.medium_points))

    def single(self) -> Rule:
        """See `Refinement`."""
        return self.sobol(self.asked.nodes or SINGLE_POINTS)

    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        """See `Refinement`."""
        fixed = self.asked.nodes
        if fixed is not None:
            return None if rule.order == fixed else self.sobol(fixed)
        return None if error <= self.asked.standard_error else self.finer_sobol(rule, error)


class GaussHermite(Refinement):
    """``"gauss-hermite"``: tensor rules of growing order."""

    name = kept_beside = "gauss-hermite"

    @classmethod
    def check_nodes(cls, nodes: int) -> None:
        """See `Refinement`."""
        if nodes > _MOST_PER_DIMENSION:
            raise ProblemError(
                _NODES,
                f"integration.nodes must be at most {_MOST_PER_DIMENSION} nodes per dimension for"
                f' integration.rule = "gauss-hermite", but it is {nodes}.',
            )

    @classmethod
    def first_order(cls, asked: Asked) -> int:
        """See `Refinement`."""
        return asked.nodes or GAUSS_HERMITE_ORDERS[0]

    def first(self) -> Rule:
        """See `Refinement`."""
        return self.gauss_hermite(self.first_order(self.asked))

    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        """See `Refinement`."""
        if self.asked.nodes is not None or error <= self.asked.standard_error:
            return None
        return self.finer_gauss_hermite(rule.order)


class Automatic(Sobol):
    """``"auto"``: lines; where there are none, tensor rules for few smooth fields, and else Sobol points."""

    name, kept_beside = "auto", "gauss-hermite"

    @classmethod
    def check_nodes(cls, nodes: int) -> None:
        """See `Refinement`."""
        raise ProblemError(
            _NODES,
            'integration.nodes does not go with integration.rule = "auto", which chooses them:'
            ' choose another rule than "auto", or remove it.',
        )

    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        """See `Refinement`."""
        if not rule.randomised and second_minima > SMOOTH:
            return self.sobol(self.medium_points)
        good = error <= self.asked.standard_error
        if not rule.randomised:
            # more than the medium points, after which tensor rules are tried
            points = self.sobol(self.medium_points)
            return None if good else self.finer_gauss_hermite(rule.order) or self.finer_sobol(points, error)
        smooth = second_minima == 0 and rule.order <= self.medium_points
        if smooth and not good and self.dimensions[0] <= _TENSOR_DIMENSIONS:
            return self.finer_gauss_hermite(0)
        return super().next(rule, error, second_minima)

    def of_derivatives(self, rule: Rule) -> Rule:
        """See `Refinement`."""
        medium = self.sobol(self.medium_points)
        if rule.randomised or rule.size <= medium.size:
            return super().of_derivatives(rule)
        # where the first tensor rule does, a lower order does for derivatives; it does not where a higher one is needed
        return self.gauss_hermite(TENSOR_OF_DERIVATIVES) if rule.order == GAUSS_HERMITE_ORDERS[0] else medium

    def of_solve(self, *, has_lines: bool) -> Refinement:
        """See `Refinement`: lines, where they have few nodes."""
        own = [getattr(self, item.name) for item in fields(self) if item.name != "otherwise"]
        by_lines = Lines(*own, otherwise=self)
        return by_lines if has_lines and by_lines.is_affordable else self

    def low_order(self, above: int = 0) -> Rule | None:
        """See `Refinement`."""
        if not _TENSOR_DIMENSIONS < self.dimensions[0] <= _LOW_ORDER_DIMENSIONS:
            return None
        return next((self.gauss_hermite(order) for order in LOW_ORDERS if order > above), None)


class Lines(Refinement):
    """``"lines"``: the teacher's fields first; one direction of the student's along lines, jumps located.

    Its rules have an error of its own for every direction, told by two gauges, of which one may agree by chance, and
    one for the lines.  The next rule has more nodes in those directions whose error is too large, until points in all
    fields take over.
    """

    name = kept_beside = "lines"
    needs_planes = of_solves_alone = True

    @classmethod
    def check_nodes(cls, nodes: int) -> None:
        """See `Refinement`."""
        if not 4 <= nodes <= _MOST_PER_DIMENSION:
            raise ProblemError(
                _NODES,
                f"integration.nodes must be from 4 to {_MOST_PER_DIMENSION} nodes for each of the teacher's fields for"
                f' integration.rule = "lines", but it is {nodes}.',
            )

    def _of(self, orders: LineOrders) -> Rule:
        return lines(*self.dimensions, orders)

    def first(self) -> Rule:
        """See `Refinement`.

        Raises
        ------
        ProblemError
            Naming ``integration.rule``: there would be too many lines.
        """
        orders = self._first_orders
        if prod(orders.latent) * prod(orders.across) > MAX_TENSOR_NODES:
            raise ProblemError(
                "integration.rule",
                f'integration.rule = "lines" would take more than {MAX_TENSOR_NODES} lines for {len(orders.latent)}'
                f" fields of the teacher and {len(orders.across) + 1} of the student: choose"
                ' "auto" or "sobol", or fewer integration.nodes.',
            )
        return self._of(orders)

    @property
    def _first_orders(self) -> LineOrders:
        total, student = self.dimensions
        latent = (self.asked.nodes or FIRST_LATENT,) * (total - student - self.noise_dimensions + self.seen_noise)
        across = (FIRST_ACROSS,) * (student - 1)
        defect = min(_MOST_DEFECT, _DEFECT * self.asked.standard_error)
        return LineOrders(latent, across, defect=defect, dropped=_DROPPED * self.asked.standard_error)

    @property
    def is_affordable(self) -> bool:
        """Whether the first rule takes no longer than as many Sobol points as there may be."""
        return _POINTS_OF_A_NODE * self._first_orders.size <= self.max_nodes

    def gauges(self, rule: Rule, second_minima: float) -> tuple[Rule, ...]:
        """See `Refinement`: of every direction another rule, as accurate."""
        orders = rule.lines
        if orders is None:
            return super().gauges(rule, second_minima)
        # nodes half a spacing further have the opposite error, unless it vanishes by chance: then another order tells
        latent = [
            gauge
            for i in range(len(orders.latent))
            for gauge in (replace(orders, shifted=i), replace(orders, latent=_with(orders.latent, i, 1)))
        ]
        across = [replace(orders, across=_with(orders.across, i, n)) for i in range(len(orders.across)) for n in (1, 2)]
        along = [replace(orders, panels=orders.panels + 2, **_cut_off_less(orders))]
        return tuple(self._of(one) for one in latent + across + along)

    def finer(self, rule: Rule) -> Rule | None:
        """See `Refinement`."""
        orders = rule.lines
        if orders is None:
            return super().finer(rule)
        for direction in range(len(orders.latent) + len(orders.across) + 1):
            orders = _refined(orders, direction)
        return self._of(orders)

    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        """See `Refinement`."""
        if rule.randomised and self.otherwise is not None:
            return self.otherwise.next(rule, error, second_minima)
        return None if error <= self.asked.standard_error or parts is None else self._finer(rule, parts)

    def comparison(self, rule: Rule) -> None:
        """See `Refinement`."""
        return

    def _finer(self, rule: Rule, parts: Array) -> Rule | None:
        orders = rule.lines
        if self.asked.nodes is not None or orders is None:
            return None
        wanted, most = self.asked.standard_error / np.sqrt(len(parts)), _MOST_OF_LINES * self.max_nodes
        # the largest error first, for there may not be nodes enough for all; directions have two gauges each
        gauges = np.argsort(-np.nan_to_num(parts, nan=np.inf), kind="stable")
        finer = orders
        for direction in dict.fromkeys(int(gauge) // 2 for gauge in gauges if not parts[gauge] <= wanted):
            one = _refined(finer, direction)
            finer = one if one.size <= most else finer
        return None if finer is orders else self._of(finer)


def _refined(orders: LineOrders, direction: int) -> LineOrders:
    """Finer in one direction, of the teacher's fields and the noise, then across lines; behind them are the lines."""
    latent, across, place = orders.latent, orders.across, direction - len(orders.latent)
    if place < 0:
        return replace(orders, latent=_with(latent, direction, 2 * max(1, round(latent[direction] / 4))))
    if place < len(across):
        return replace(orders, across=_with(across, place, 1))
    return replace(orders, **_cut_off_less(orders))


def _cut_off_less(orders: LineOrders) -> dict[str, float]:
    """What is cut off of lines and of the latent variables, under a finer rule."""
    return {"defect": _LESS * orders.defect, "dropped": _LESS * orders.dropped}


def _with(numbers: tuple[int, ...], place: int, more: int) -> tuple[int, ...]:
    """The same numbers, one of them larger."""
    return (*numbers[:place], numbers[place] + more, *numbers[place + 1 :])


class Published(Refinement):
    """``"published"``: the 144 nodes behind the paper's figures."""

    name = "published"
    refines = False
    requires: ClassVar = {
        "tokens.length": 2,
        "tokens.kind": "gaussian",
        "teacher.rank": 1,
        "teacher.noise": 0.0,
        "student.rank": 1,
        "student.tied": True,
        "loss.kind": "attention",
    }

    @classmethod
    def check_nodes(cls, nodes: int) -> None:
        """See `Refinement`."""
        raise ProblemError(
            _NODES,
            'integration.nodes does not go with integration.rule = "published", whose nodes'
            " are fixed: remove it, or choose another rule.",
        )

    def first(self) -> Rule:
        """See `Refinement`."""
        return published_rule(self.symmetric)

    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> None:
        """See `Refinement`."""
        return

    def gauges(self, rule: Rule, second_minima: float) -> tuple[Rule, ...]:
        """See `Refinement`."""
        return (self.sobol(GAUGE_POINTS),)

    def comparison(self, rule: Rule) -> None:
        """See `Refinement`."""
        return


RULES: dict[str, type[Refinement]] = {rule.name: rule for rule in (Automatic, GaussHermite, Sobol, Lines, Published)}
"""By name; to add one, write a subclass of `Refinement` and put it here."""
