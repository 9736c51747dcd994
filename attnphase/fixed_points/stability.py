"""Whether a fixed point is one that training reaches: its stability, docs/stability.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.identities import stein_violations
from attnphase.fixed_points.verdict import LEMMAS
from attnphase.solvers.differences import response_to
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.errors import Displacements, Response
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.replicates import Variations
from attnphase.state_evolution.replicon import replicon, slope_sums

__all__ = ["EIGENVALUES", "NOT_COMPUTED", "Stability", "leading_eigenvalues", "minimises", "stability_at"]

EIGENVALUES = 3
"""Of the map, as many as are reported."""

_FEWEST, _MOST = 256, 512  # Sobol points of the copies in each of 16 replicates


@dataclass(frozen=True, eq=False)
class Stability:
    """What is known of a point's stability, by the names of the dataset; NaN where it was not computed.

    Attributes
    ----------
    values, errors : dict of str to array or float
    """

    values: dict[str, Any]
    errors: dict[str, Any]


NOT_COMPUTED = Stability(dict.fromkeys(("replicon", "overlap_gap", *LEMMAS), np.nan), {})


def minimises(map_: StateEvolution, response: Response) -> bool:
    """Whether the objective may have a minimum in the trained parameters, where the weights follow them.

    Its second derivatives are the positive ones that the map's step divides by, times the inverse of the block of
    ``(I - J)^-1`` that belongs to these parameters. A negative eigenvalue of this inverse shows a maximum, or a saddle,
    if it exceeds four of its errors.
    """
    own = map_.sector.parameters
    if not len(own):
        return True
    pushed = np.eye(len(response.scales))[own]

    def lowest(jacobian: Array) -> float:
        followed = response_to(pushed, jacobian, response.scales)[:, own]
        return float((1 / np.linalg.eigvals(followed)).real.min())

    value = lowest(response.jacobian)
    spread = np.linalg.norm([lowest(response.jacobian + one) - value for one in response.noise])
    return bool(value + ERRORS * spread > 0)


def stability_at(
    map_: StateEvolution,
    found: FixedPoint,
    measured: dict[str, Any],
    response: Response,
    moved: Variations,
    gauges: Callable[[], Sequence[StateEvolution]],
    gap: float | None = None,
) -> Stability:
    """The replicon and the copies' gap of a fixed point, and the identity that the same derivatives check.

    Parameters
    ----------
    map_ : StateEvolution
        Just evaluated there.
    found : FixedPoint
    measured : dict
        Its conjugates by name.
    response : Response
        Its derivatives.
    moved : Variations
        What its errors of integration are made of.
    gauges : callable
        The map under the rules that these come from.
    gap : float, optional
        A neighbouring point's.
    """
    values, errors = dict(NOT_COMPUTED.values), dict(NOT_COMPUTED.errors)
    # only where the iteration has ended in the domain there is something to be stable
    if found.status is not Status.converged or map_.bottomless or map_.minima is None:
        return NOT_COMPUTED
    if map_.prior.at_rest:  # no change of the samples moves a weight
        radius = values["replicon"] if map_.system.problem.loss.form.has_kink else 0.0
        return Stability(values | {"replicon": radius, "overlap_gap": 0.0}, errors)
    overlaps = map_.unpack(found.point)
    conjugates, rule = Conjugates.of_values(measured), map_.channel.rule
    ways = Displacements.of(map_, found.point, response) if rule.randomised else None
    if not map_.system.problem.loss.form.has_kink:
        without = None if ways is None else ways.at(-1 / (rule.replicates - 1))
        channel, minima = map_.all_nodes(found.point)
        squares, slopes = slope_sums(channel, overlaps, minima)
        radii = replicon(channel, map_.alpha, overlaps, conjugates, minima, without, squares)
        values["replicon"] = float(radii[0])
        if rule.randomised:
            errors["replicon"] = float(radii[1:].std(ddof=1) / np.sqrt(rule.replicates))
        violations = stein_violations(map_, found.point, response, moved, channel, minima, slopes, gauges)
        for name, violation in violations.items():
            if np.isfinite(violation[0]):
                values[name], errors[name] = violation
    points = int(np.clip(rule.order, _FEWEST, _MOST)) if rule.randomised else _MOST
    end = Copies.of(map_.channel.system, map_.alpha, overlaps, conjugates, points).gap(
        None if ways is None else ways.at(), gap
    )
    values["overlap_gap"], errors["overlap_gap"] = end.share, end.error
    return Stability(values, errors)


def leading_eigenvalues(jacobian: Array) -> dict[str, Any]:
    """Of the map: the largest by their size, real and imaginary parts; what there is fewer is NaN."""
    real, imaginary = np.full((2, EIGENVALUES), np.nan)
    if np.isfinite(jacobian).all():
        found: Any = np.linalg.eigvals(jacobian)
        leading = found[np.lexsort((-found.imag, -np.abs(found)))][:EIGENVALUES]
        real[: len(leading)], imaginary[: len(leading)] = leading.real, leading.imag
    return {"map_eigenvalue": real, "map_eigenvalue_imag": imaginary}
