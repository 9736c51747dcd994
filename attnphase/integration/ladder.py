"""Which integration rule a solve uses next: from a few nodes to as many as the standard error needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnphase.errors import ProblemError
from attnphase.integration.rules import Rule, gauss_hermite, published_rule, sobol
from attnphase.problem import Integration, Problem

__all__ = ["Refinement", "check_affordable"]

REPLICATES = 16
COARSE_POINTS = 64
MEDIUM_POINTS = 256  # derivatives of the map: fewer would be ruled by the jumps of single nodes
GAUSS_HERMITE_ORDERS = (12, 16, 20, 26, 36, 48)
GAUGE_POINTS = 1024
MAX_TENSOR_NODES = 2**22
SMOOTH = 1e-7  # share of nodes with a second minimum that a Gauss-Hermite rule may have


def check_affordable(problem: Problem) -> None:
    """Refuse a tensor rule with too many nodes before anything is compiled for it.

    Raises
    ------
    ProblemError
        Naming ``integration.rule``.
    """
    if problem.integration.rule == "gauss-hermite":
        dimensions = problem.tokens.length * (problem.columns + problem.teacher_columns)
        _check_tensor(problem.integration.nodes or GAUSS_HERMITE_ORDERS[0], dimensions)


def _check_tensor(order: int, dimensions: int) -> None:
    if order**dimensions > MAX_TENSOR_NODES:
        raise ProblemError(
            "integration.rule",
            f"a Gauss-Hermite rule of order {order} in {dimensions} dimensions has more than {MAX_TENSOR_NODES} nodes: "
            'use integration.rule = "sobol" or fewer integration.nodes.',
        )


@dataclass(frozen=True, eq=False)
class Refinement:
    """The sequence of integration rules of a solve, each finer than the one before.

    Attributes
    ----------
    integration : Integration
        What the user asks for.
    dimensions : (int, int)
        Of all local fields together, and of the student's.
    symmetric : bool
        Whether fields may be averaged over the four sign changes of student and teacher.
    max_nodes : int
        Largest number of Sobol points, all replicates together.
    """

    integration: Integration
    dimensions: tuple[int, int]
    symmetric: bool
    max_nodes: int

    @property
    def refines(self) -> bool:
        """Whether there can be a finer rule; the published one is what it is."""
        return self.integration.rule != "published"

    def sobol(self, points: int) -> Rule:
        """Sobol rule with so many points per replicate."""
        return sobol(*self.dimensions, self.symmetric, points, REPLICATES, self.integration.seed)

    def gauss_hermite(self, order: int) -> Rule:
        """Tensor rule, if it is not too large."""
        _check_tensor(order, self.dimensions[0])
        return gauss_hermite(*self.dimensions, self.symmetric, order)

    def first(self) -> Rule:
        """Where a solve starts: few nodes."""
        integration = self.integration
        if integration.rule == "published":
            return published_rule(self.symmetric)
        if integration.rule == "gauss-hermite":
            return self.gauss_hermite(integration.nodes or GAUSS_HERMITE_ORDERS[0])
        return self.sobol(COARSE_POINTS)

    def medium(self) -> Rule:
        """Where a continued line starts, and the rule for derivatives."""
        first = self.first()
        return self.sobol(MEDIUM_POINTS) if first.randomised else first

    def single(self) -> Rule:
        """The only rule of a method that does not refine."""
        integration = self.integration
        if integration.rule in ("published", "gauss-hermite"):
            return self.first()
        return self.sobol(integration.nodes or 1024)

    def next(self, rule: Rule, error: float, second_minima: float) -> Rule | None:
        """The next rule, or None if the last one is good enough or cannot be refined.

        Parameters
        ----------
        error : float
            Relative standard error of q under `rule`.
        second_minima : float
            Share of nodes with a second minimum. Where there are any the minimiser jumps, and a Gauss-Hermite rule
            neither converges fast nor knows its error.
        """
        integration = self.integration
        fixed, target = integration.nodes, integration.standard_error
        if not self.refines:
            return None
        if fixed is not None:
            return None if rule.order == fixed else self.sobol(fixed)
        largest = 2 ** int(math.log2(max(self.max_nodes // REPLICATES, 2)))
        medium = min(MEDIUM_POINTS, largest)
        automatic = integration.rule == "auto" and self.dimensions[0] <= 4
        if rule.name == "gauss-hermite" and automatic and second_minima > SMOOTH:
            return self.sobol(medium)
        if rule.name == "sobol" and rule.order < medium:
            return self.sobol(medium)
        if error <= target:
            return None
        if rule.name == "gauss-hermite" or (automatic and second_minima == 0 and rule.order == medium):
            finer = [o for o in GAUSS_HERMITE_ORDERS if rule.name != "gauss-hermite" or o > rule.order]
            affordable = [o for o in finer if o ** self.dimensions[0] <= MAX_TENSOR_NODES]
            return self.gauss_hermite(affordable[0]) if affordable else None
        # the error falls about like N^-0.85
        factor = 2 ** math.ceil(math.log2(max((1.15 * error / target) ** (1 / 0.85), 2.0)))
        points = min(rule.order * min(factor, 64), largest)
        return self.sobol(points) if points > rule.order else None

    def gauge(self, rule: Rule, second_minima: float) -> Rule | None:
        """The rule a deterministic one is compared with; None for a randomised one, whose replicates are.

        A lower order of the same kind tells the error of a smooth integrand only; with a share ``second_minima`` of
        nodes where the minimiser may jump, a Gauss-Hermite rule is held against Sobol points like the published one.
        """
        if rule.randomised:
            return None
        if rule.name == "published" or second_minima > SMOOTH:
            return self.sobol(GAUGE_POINTS)
        return self.gauss_hermite(max(rule.order - 4, 2))
