"""How wrong a fixed point and what is measured there are: derivatives of the map, and standard errors.

A replicate (or a second rule) gives a slightly different map, whose fixed point is displaced by ``(I - J)^-1 dF``. The
derivatives of everything measured carry the displacement on to every reported quantity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.state_evolution.differences import finite_difference_jacobian
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.replicates import flatten, packed_images, restore, restore_all, rows_of, variations

__all__ = [
    "Displaced",
    "Displacements",
    "Response",
    "error_near",
    "relative_error",
    "response_at",
    "standard_errors",
]


@dataclass(frozen=True, eq=False)
class Response:
    """Derivatives at a fixed point.

    Attributes
    ----------
    jacobian : (D, D) array
        Of the map.
    measured : (E, D) array
        Of every measured quantity.
    order : float
        Points per replicate of the rule they were taken under; infinite for a deterministic one, in which is no chance.
    """

    jacobian: Array
    measured: Array
    order: float


def response_at(map_: StateEvolution, x: Array, rule: Rule) -> Response:
    """Derivatives by finite differences, 2 D evaluations, under the map's rule or another."""
    if rule is not map_.channel.rule:
        other = StateEvolution(replace(map_.channel, rule=rule), map_.alpha, map_.sector)
        other.lift, other.first = map_.lift, map_.first
        return response_at(other, x, rule)

    def both(point: Array) -> Array | None:
        measured = map_.measure(point, pooled=True)
        return None if measured is None else np.concatenate([packed_images(measured, map_)[0], flatten(measured)[0]])

    # a difference may reach over the edge of the domain, where the lifted map goes on
    lift, map_.lift = map_.lift, True
    joint = finite_difference_jacobian(both, x, map_.scales(x))
    map_.lift = lift
    order = rule.order if rule.randomised else np.inf
    return Response(joint[: len(x)], joint[len(x) :], order)


def _propagate(image_change: Array, measured_change: Array, response: Response) -> tuple[NDArray[Any], Array]:
    """Changes of the fixed point and of everything measured at it, when map and measurement change by so much.

    ``dx = (I - J)^-1 dF`` and ``dE = dE|_x + (dE/dx) dx``; rows are replicates.
    """
    system = np.eye(len(response.jacobian)) - response.jacobian
    if not (np.isfinite(system).all() and np.isfinite(image_change).all()):
        # far from any fixed point the differences may overflow: errors are then unknown
        return np.full(image_change.shape, np.nan), np.full(measured_change.shape, np.nan)
    dx = np.linalg.lstsq(system, image_change.T, rcond=1e-12)[0].T
    return dx, measured_change + dx @ response.measured.T


def standard_errors(
    map_: StateEvolution, measured: dict[str, Array], response: Response, gauge_rule: StateEvolution | None, x: Array
) -> dict[str, Any]:
    """Standard errors: scatter of independent replicates, or the distance to a second rule for deterministic ones.

    Where the second rule is itself randomised, its own scatter is added in quadrature: two rules may agree by chance.
    """
    moved = variations(map_, x, gauge_rule, measured)
    dx, change = _propagate(moved.images, moved.values, response)
    error_x, error, error_energy = (np.sqrt((rows**2).sum(axis=0)) for rows in (dx, change, moved.energy))
    errors = restore(error, measured)
    point = map_.sector.errors(error_x)
    errors |= {"q": point.q, "V": point.V, "m": point.m[..., 0], "theta": point.theta}
    # -Phi is stationary, so that to first order only the explicit change of its energy term is left
    errors["training_loss"] = float(error_energy)
    return errors


@dataclass(frozen=True, eq=False)
class Displaced:
    """Fixed points nearby, N of them.

    Attributes
    ----------
    overlaps : Overlaps
        Their number stands before the site axis.
    conjugates : Conjugates
        Theirs, as replicates.
    """

    overlaps: Overlaps
    conjugates: Conjugates


@dataclass(frozen=True, eq=False)
class Displacements:
    """The ways from a fixed point of all replicates to those of each, to first order.

    Attributes
    ----------
    map_ : StateEvolution
    point : (D,) array
        The fixed point.
    steps : (S, D) array
    hats : dict of str to (1 + S, ...) array
        Conjugates of all replicates together, and by how much those of each differ.
    """

    map_: StateEvolution
    point: Array
    steps: Array
    hats: dict[str, Array]

    @classmethod
    def of(cls, map_: StateEvolution, x: Array, response: Response) -> Displacements | None:
        """Those from ``x``, by derivatives there, of a randomised rule's replicates; None where they are not known."""
        measured = map_.measure(x)
        if measured is None:
            return None
        images, values = packed_images(measured, map_), flatten(measured)
        mean = values.mean(axis=0)
        steps, change = _propagate(images - images.mean(axis=0), values - mean, response)
        restored = restore_all(np.vstack([mean, change]), measured)
        return cls(map_, x, steps, {name: restored[name] for name in ("q_hat", "V_hat", "m_hat", "theta_hat")})

    def at(self, share: float = 1.0) -> Displaced | None:
        """The points at a share of the ways; -1 / (S - 1) is to those of all replicates but one.

        None where one lies outside the domain.
        """
        overlaps = self.map_.sector.unpack_all(self.point + share * self.steps)
        if not overlaps.feasible(self.map_.system.spectrum.rho):
            return None
        q_hat, V_hat, m_hat, theta_hat = ((x[0] + share * x[1:]).swapaxes(0, 1) for x in self.hats.values())
        return Displaced(overlaps, Conjugates(q_hat, V_hat, m_hat[..., None], theta_hat))


def relative_error(error: Array, q: Array, rho: Array) -> float:
    """Largest standard error of q relative to its largest entry, or to a millionth of the teacher's variance."""
    floor = 1e-6 * np.trace(rho, axis1=-2, axis2=-1).mean()
    return float(np.abs(error).max() / max(np.abs(q).max(), floor))


def error_near(map_: StateEvolution, x: Array, response: Response) -> float:
    """Relative standard error that q will have at the fixed point near ``x``, where the map was evaluated last.

    Replicates scatter at ``x`` much as they do at the fixed point. Infinite where one of them has no image.
    """
    images = map_.images()
    if not np.isfinite(images).all():
        return np.inf
    dx, _ = _propagate(rows_of(images), np.zeros((len(images), len(response.measured))), response)
    error = map_.sector.errors(np.sqrt((dx**2).sum(axis=0)))
    return relative_error(error.q, map_.unpack(x).q, map_.system.spectrum.rho)
