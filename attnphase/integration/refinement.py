"""Which integration rule a solve uses next: from a few nodes to as many as the standard error needs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.integration.rules import Rule, gauss_hermite, sobol

__all__ = ["Asked", "Refinement"]

REPLICATES = 16
COARSE_POINTS = 64
MEDIUM_POINTS = 256  # derivatives of the map: fewer would be ruled by the jumps of single nodes
SINGLE_POINTS = 1024
GAUSS_HERMITE_ORDERS = (12, 16, 20, 26, 36, 48)
GAUGE_POINTS = 1024
LARGEST_STEP = 8  # from one Sobol rule to the next: the error of few nodes foretells that of many badly
MAX_TENSOR_NODES = 2**22
TENSOR_OF_DERIVATIVES = 8
LOW_ORDERS = (6, 7, 8)  # whose nodes in six dimensions are about as many as Sobol points for an error of 1e-3
SMOOTH = 1e-7  # share of nodes with a second minimum that a Gauss-Hermite rule may have
FALLS = 0.85  # the error falls about like N^-0.85


class Asked(Protocol):
    """The fields of ``[integration]``."""

    @property
    def standard_error(self) -> float:
        """Relative, asked for on q."""
        ...

    @property
    def seed(self) -> int:
        """Of the scrambled points."""
        ...

    @property
    def nodes(self) -> int | None:
        """Points in each replicate, or nodes in each dimension, if the user chose them."""
        ...


@dataclass(frozen=True, eq=False)
class Refinement(ABC):
    """The sequence of integration rules of a solve, each finer than the one before.

    A rule that ``integration.rule`` may name is a subclass; all stand in `attnphase.integration.kinds.RULES`.

    Attributes
    ----------
    asked : Asked
        What the user asks for.
    dimensions : (int, int)
        Of all local fields and the labels' noise together, and of the student's.
    symmetric : bool
        Whether fields may be averaged over the four sign changes of student and teacher.
    max_nodes : int
        Largest number of Sobol points, all replicates together.
    noise_dimensions : int
        How many of the dimensions are noise of the labels, which sign changes leave as it is.
    seen_noise : int
        How many directions of the noise the student's fields depend on.
    otherwise : Refinement, optional
        Whose points take over where the rules here have cost as much as these will.
    name : str
        What ``integration.rule`` calls it.
    refines : bool
        Whether there can be a finer rule.
    requires : mapping
        Fields of the problem and the values that it is made for.
    needs_planes : bool
        Whether labels may only jump on parallel planes of the teacher's fields.
    of_solves_alone : bool
        Whether only solves know its nodes, which it has none of before it is used at a point.
    kept_beside : str or None
        Name of the rules that a solve begins with again where they did for a neighbour.
    """

    asked: Asked
    dimensions: tuple[int, int]
    symmetric: bool
    max_nodes: int
    noise_dimensions: int = 0
    seen_noise: int = 0
    otherwise: Refinement | None = None

    name: ClassVar[str]
    refines: ClassVar[bool] = True
    requires: ClassVar[Mapping[str, Any]] = {}
    needs_planes: ClassVar[bool] = False
    of_solves_alone: ClassVar[bool] = False
    kept_beside: ClassVar[str | None] = None

    @classmethod
    @abstractmethod
    def check_nodes(cls, nodes: int) -> None:
        """Refuse a number of nodes that the user chose.

        Raises
        ------
        ProblemError
            Naming ``integration.nodes``.
        """

    @classmethod
    def check_affordable(cls, asked: Asked, dimensions: int) -> None:
        """Refuse a rule with too many nodes before anything is compiled for it.

        Raises
        ------
        ProblemError
            Naming ``integration.rule``.
        """
        order = cls.first_order(asked)
        if order is not None:
            check_tensor(order, dimensions)

    @classmethod
    def first_order(cls, asked: Asked) -> int | None:
        """Of the tensor rule that a solve starts with; None if it starts with another."""
        return None

    @abstractmethod
    def first(self) -> Rule:
        """Where a solve starts: few nodes."""

    def beside(self, rule: Rule) -> Rule:
        """Where a solve begins beside a point that `rule` was fine enough for."""
        return rule if rule.name == self.kept_beside and self.asked.nodes is None else self.first()

    def of_derivatives(self, rule: Rule) -> Rule:
        """Under which derivatives near a point found with `rule` are taken: single nodes' jumps rule those of fewer."""
        return self.sobol(self.medium_points) if rule.randomised else rule

    def is_few(self, rule: Rule) -> bool:
        """Whether a rule has so few Sobol points that their error is not believed."""
        return rule.randomised and rule.order < self.medium_points

    def single(self) -> Rule:
        """The only rule of a method that does not refine."""
        return self.first()

    @abstractmethod
    def next(self, rule: Rule, error: float, second_minima: float, parts: Array | None = None) -> Rule | None:
        """The next rule, or None if the last one is good enough or cannot be refined.

        Parameters
        ----------
        error : float
            Relative standard error of q under `rule`.
        second_minima : float
            Share of nodes with a second minimum. Where there are any the minimiser jumps, and a Gauss-Hermite rule
            neither converges fast nor knows its error.
        parts : (n,) array, optional
            The error by what each of the `gauges` says.
        """

    def gauge(self, rule: Rule, second_minima: float) -> Rule | None:
        """The rule a deterministic one is compared with; None for a randomised one, whose replicates are.

        A lower order of the same kind tells the error of a smooth integrand only; with a share ``second_minima`` of
        nodes where the minimiser may jump, a Gauss-Hermite rule is held against Sobol points.
        """
        return next(iter(self.gauges(rule, second_minima)), None)

    def gauges(self, rule: Rule, second_minima: float) -> tuple[Rule, ...]:
        """All rules that a deterministic one is compared with; none for a randomised one.

        The second Gauss-Hermite rule has an order of the other parity. A narrow peak of the integrand, or a pole beside
        the real axis, gives errors of one sign in even orders and of the other sign in odd ones: two even orders agree
        long before they are right.
        """
        if rule.randomised:
            return ()
        lower = [rule.order - 4, rule.order - 3]
        if second_minima > SMOOTH or lower[0] < 1:
            return (self.sobol(GAUGE_POINTS),)
        return tuple(self.gauss_hermite(order) for order in lower)

    def finer(self, rule: Rule) -> Rule | None:
        """A deterministic rule that is finer in every direction, which the errors of one must cover; None if none is.

        Whatever number of nodes the user chose.
        """
        return self.finer_gauss_hermite(rule.order)

    def comparison(self, rule: Rule) -> Rule | None:
        """The rule of another kind that an accepted tensor rule is compared with once; None for any other rule."""
        return None if rule.randomised else self.sobol(GAUGE_POINTS)

    def low_order(self, above: int = 0) -> Rule | None:
        """The next tensor rule of low order, in dimensions of which larger ones have too many nodes; None if none is.

        For integrands that are known to be smooth.
        """
        return None

    def of_solve(self, *, has_lines: bool) -> Refinement:
        """The rules of a solve; it is told whether there are lines for the problem."""
        return self

    # ---------------------------------------------------------------------------------------------- what they are of

    def sobol(self, points: int) -> Rule:
        """Sobol rule with so many points per replicate."""
        return sobol(*self.dimensions, self.symmetric, points, REPLICATES, self.asked.seed)

    def gauss_hermite(self, order: int) -> Rule:
        """Tensor rule, if it is not too large."""
        check_tensor(order, self.dimensions[0])
        return gauss_hermite(*self.dimensions, self.symmetric, order, self.noise_dimensions)

    def finer_gauss_hermite(self, above: int) -> Rule | None:
        """The next tensor rule of an order above one, if it is not too large."""
        finer = [order for order in GAUSS_HERMITE_ORDERS if order > above]
        affordable = [order for order in finer if order ** self.dimensions[0] <= MAX_TENSOR_NODES]
        return self.gauss_hermite(affordable[0]) if affordable else None

    @property
    def most_points(self) -> int:
        """Largest number of Sobol points per replicate."""
        return 2 ** int(math.log2(max(self.max_nodes // REPLICATES, 2)))

    @property
    def medium_points(self) -> int:
        """The Sobol points per replicate from which on their error is believed."""
        return min(MEDIUM_POINTS, self.most_points)

    def finer_sobol(self, rule: Rule, error: float) -> Rule | None:
        """The Sobol rule whose error is likely as small as it should be; the largest step where none is known."""
        points = min(rule.order * self.growth(error), self.most_points)
        return self.sobol(points) if points > rule.order else None

    def as_many(self, rule: Rule) -> Rule:
        """Sobol points that are about as many as a rule's nodes, at least so many that their error is believed."""
        return self.sobol(min(max(2 ** int(math.log2(rule.size / REPLICATES)), self.medium_points), self.most_points))

    def enough(self, rule: Rule, error: float) -> Rule | None:
        """The Sobol rule whose error is likely small enough, unless it is too large; ``error`` is that of `rule`."""
        points = rule.order * (self.growth(error) if error > self.asked.standard_error else 1)
        return self.sobol(points) if points <= self.most_points else None

    def most(self, rule: Rule, error: float) -> tuple[Rule, float]:
        """The largest Sobol rule, and about the error that it leaves; ``error`` is that of `rule`."""
        return self.sobol(self.most_points), error * (rule.order / self.most_points) ** FALLS

    def growth(self, error: float) -> int:
        """By what the number of points must grow, so that their error becomes small enough: a power of two."""
        excess = 1.15 * error / self.asked.standard_error
        least = min(max(excess ** (1 / FALLS), 2.0), LARGEST_STEP) if excess < LARGEST_STEP else LARGEST_STEP
        return 2 ** math.ceil(math.log2(least))


def check_tensor(order: int, dimensions: int) -> None:
    """Refuse a tensor rule of too many nodes.

    Raises
    ------
    ProblemError
        Naming ``integration.rule``.
    """
    if order**dimensions > MAX_TENSOR_NODES:
        raise ProblemError(
            "integration.rule",
            f"a Gauss-Hermite rule of order {order} in {dimensions} dimensions has more than {MAX_TENSOR_NODES} nodes: "
            'use integration.rule = "sobol" or fewer integration.nodes.',
        )
