"""A solved point of a branch, and what the next one can start from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnphase.arrays import Array
from attnphase.fixed_points.verdict import Verdict, verdict
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.errors import Response
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima

__all__ = ["BranchPoint", "Restart"]


@dataclass(frozen=True, eq=False)
class Restart:
    """What the next point of a line can start from.

    Attributes
    ----------
    overlaps : Overlaps
    response : Response or None
        Derivatives of the map, for Newton's method and the errors.
    rule : Rule or None
        The rule that `minima` belong to.
    minima : Minima or None
        Local minima of the rule's nodes; they take memory, so `branches.follow` drops them when it is past a point.
    gap : float or None
        Of two copies; None where it is not known.
    jacobian : (D, D) array or None
        Of the map, as Newton's method left it: nearer to that of the next point than the derivatives in `response`.
    """

    overlaps: Overlaps
    response: Response | None = None
    rule: Rule | None = None
    minima: Minima | None = None
    gap: float | None = None
    jacobian: Array | None = None


@dataclass(frozen=True, eq=False)
class BranchPoint:
    """A solved point of a branch.

    Attributes
    ----------
    problem : Problem
    alpha : float
    branch : str
    values, errors : dict of str to array or float
        Every variable of the dataset schema and its standard error; of a point that was not evaluated, those whose
        shape is its own, and those that are compared.
    status : Status
    residual : float
        Undamped and relative.
    iterations : int
        Maps, all rules together.
    rule : str
    nodes : int
        Distinct nodes of the last rule.
    restart : Restart
    on_branch : Identity
        Whether it is on the branch whose name it bears.
    zero_weights : bool
        Whether all weights are zero, as far as residuals tell.
    replicates : int
        Whose scatter the errors are; 1 where a rule has none.
    """

    problem: Problem
    alpha: float
    branch: str
    values: dict[str, Any]
    errors: dict[str, Any]
    status: Status
    residual: float
    iterations: int
    rule: str
    nodes: int
    restart: Restart = field(repr=False)
    on_branch: Identity = Identity.on_branch
    zero_weights: bool = False
    replicates: int = 1

    @property
    def identities(self) -> Verdict:
        """Whether exact identities hold here, as far as they are known."""
        return verdict(self.values, self.errors, self.replicates)
