"""How wrong a fixed point and what is measured there are: derivatives of the map, and standard errors.

A replicate (or a second rule) gives a slightly different map, whose fixed point is displaced by ``(I - J)^-1 dF``. The
derivatives of everything measured carry the displacement on to every reported quantity.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.solvers.differences import STEP, Map, finite_difference_jacobian, response_to
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.replicates import Variations, flatten, packed_images, restore, restore_all, rows_of

__all__ = [
    "SAMPLED_STEP",
    "SMOOTH_STEP",
    "Displaced",
    "Displacements",
    "Response",
    "contradicted",
    "order_of",
    "parts_of",
    "propagate",
    "relative_error",
    "residual_errors",
    "response_at",
    "standard_errors",
    "way_left",
]

_CONTRADICTED = 3.0  # standard errors
SMOOTH_STEP = 1e-4  # of differences of a map that is smooth to 1e-8: both their errors are about 1e-4
SAMPLED_STEP = 0.05  # of one of N nodes that jump: they leave an error of 1 / sqrt(h N), the map's bend one of h^2


@dataclass(frozen=True, eq=False)
class Response:
    """Derivatives at a fixed point.

    Attributes
    ----------
    jacobian : (D, D) array
        Of the map.
    measured : (E, D) array
        Of every measured quantity.
    scales : (D,) array
        Sizes of the coordinates.
    order : float
        Points per replicate of the rule they were taken under; infinite for a deterministic one, in which is no chance.
    noise : (n, D, D) array
        Displacements of the map's derivatives by the replicates, whose squares add up to the variance; none of a
        deterministic rule.
    point : (D,) array or None
        Where they were taken; None if they are the same everywhere.
    inexact : float
        Relative error that differences leave: by the bend of the map, and by nodes that jump where no replicates tell.
    """

    jacobian: Array
    measured: Array
    scales: Array
    order: float
    noise: Array = field(default_factory=lambda: np.zeros((0, 1, 1)))
    point: Array | None = None
    inexact: float = 0.0

    @classmethod
    def unknown(cls, map_: StateEvolution, x: Array) -> Response:
        """Of a point at which no derivatives can be had: not numbers."""
        lift, map_.lift = map_.lift, True
        measured = map_.measure(x, pooled=True)
        map_.lift = lift
        count = 0 if measured is None else flatten(measured).shape[1]
        return cls(np.full((len(x), len(x)), np.nan), np.full((count, len(x)), np.nan), np.ones(len(x)), np.inf)

    @property
    def known(self) -> bool:
        """Whether the derivatives are numbers."""
        return bool(np.isfinite(self.jacobian).all())

    def inexact_at(self, x: Array, scales: Array) -> float:
        """Relative error of the derivatives at a point nearby, but for `noise`: it grows as the distance does."""
        away = 0.0 if self.point is None else float(np.abs((x - self.point) / scales).max())
        return self.inexact + away


def response_at(map_: StateEvolution, x: Array, rule: Rule) -> Response:
    """Derivatives by finite differences, 2 D evaluations, or D along lines, under the map's rule or another."""
    beside = StateEvolution(replace(map_.channel, rule=rule), map_.alpha, map_.sector)
    if rule is map_.channel.rule:
        beside.adopt(map_.minima)

    def all_at(point: Array, evaluated: StateEvolution = beside) -> Array | None:
        measured = evaluated.measure(point, pooled=True)
        if measured is None:
            return None
        alone = evaluated.images().ravel() if rule.randomised else np.zeros(0)
        return np.concatenate([packed_images(measured, evaluated)[0], flatten(measured)[0], alone])

    # a difference may reach over the edge of the domain, where the lifted map goes on
    beside.lift = True
    sampled, centre = rule.randomised and not map_.system.problem.loss.form.has_kink, None
    share, scales, untold = SAMPLED_STEP if sampled else STEP, map_.scales(x), map_.untold(x)
    # a step changes the variance that remains by a share, not that of the fields; under tensor rules too few nodes
    # would jump in a smaller one
    step, inexact = share * (untold if rule.randomised else 1.0), share**2
    if rule.lines is not None:
        step, inexact = SMOOTH_STEP, SMOOTH_STEP / untold
        centre = all_at(x, map_ if rule is map_.channel.rule and not map_.lift else beside)
    sizes = map_.steps(x) if rule.randomised else scales
    if map_.prior.at_rest:  # no image and no loss depends on overlaps, which are zero
        joint = _by_trained(all_at, x, map_.sector.parameters, sizes, step)
    else:
        joint = finite_difference_jacobian(all_at, x, sizes, step, centre)
    if not rule.randomised:
        if rule.lines is None:
            # of N nodes, a share p of which has a second minimum, h p N jump, and each moves a mean by 1 / N; which of
            # them a map knows depends on the way to the point, and a fresh one searches them all
            fresh = StateEvolution(replace(map_.channel, rule=rule), map_.alpha, map_.sector)
            fresh.lift = True
            fresh(x)
            share = 0.0 if fresh.minima is None else float(fresh.second_minimum_share(np.inf).mean())
            inexact += float(np.sqrt(share / (step * rule.size)))
        return Response(joint[: len(x)], joint[len(x) :], scales, order_of(rule), point=x, inexact=inexact)
    measured, alone = np.split(joint[len(x) :], [len(joint) - (1 + rule.replicates) * len(x)])
    noise = rows_of(alone.reshape(rule.replicates, len(x), len(x)))
    return Response(joint[: len(x)], measured, scales, order_of(rule), noise, x, inexact)


def _by_trained(function: Map, x: Array, trained: NDArray[np.int64], sizes: Array, step: float) -> Array:
    """Derivatives in trained parameters; zero in all other coordinates."""
    here = function(x)
    if here is None:
        raise ArithmeticError("zero weights lie outside the domain")
    found = np.zeros((len(here), len(x)))

    def at(values: Array) -> Array | None:
        point = x.copy()
        point[trained] = values
        return function(point)

    if len(trained):
        found[:, trained] = finite_difference_jacobian(at, x[trained], sizes[trained], step)
    return found


def order_of(rule: Rule) -> float:
    """Of derivatives that are taken under a rule, see `Response`."""
    return rule.order if rule.randomised else np.inf


def propagate(image_change: Array, measured_change: Array, response: Response) -> tuple[NDArray[Any], Array]:
    """Changes of the fixed point and of everything measured at it, when map and measurement change by so much.

    ``dx = (I - J)^-1 dF`` and ``dE = dE|_x + (dE/dx) dx``; rows are replicates.
    """
    if not (response.known and np.isfinite(image_change).all()):
        # far from any fixed point the differences may overflow: errors are then unknown
        return np.full(image_change.shape, np.nan), np.full(measured_change.shape, np.nan)
    dx = response_to(image_change, response.jacobian, response.scales)
    return dx, measured_change + dx @ response.measured.T


def standard_errors(
    map_: StateEvolution, measured: dict[str, Array], response: Response, moved: Variations
) -> dict[str, Any]:
    """Standard errors of integration: scatter of replicates, or the distances to other rules for deterministic ones.

    The distances are added in quadrature, and with them the scatter of a rule that is itself randomised: two rules may
    agree by chance.
    """
    dx, change = propagate(moved.images, moved.values, response)
    error_x, error, error_energy = (np.sqrt((rows**2).sum(axis=0)) for rows in (dx, change, moved.energy))
    # -Phi is stationary, so that to first order only the explicit change of its energy term is left
    return _labelled(map_, measured, error_x, error) | {"training_loss": float(error_energy)}


def residual_errors(
    map_: StateEvolution, measured: dict[str, Array], response: Response, residual: Array, floor: Array
) -> dict[str, Any]:
    """How far the fixed point, and everything measured there, lies from a point that leaves a residual ``F(x) - x``.

    ``|(I - J)^-1 (F(x) - x)|``: near a transition, or an interpolation peak, many times the residual. The channel is
    evaluated at a point that differs from x by the ``floor``, ``F(x) = F_0(x + f)``, which moves the fixed point too.
    """
    by_floor = response.jacobian @ floor, response.measured @ floor
    images = np.stack([residual, by_floor[0]])
    dx, change = propagate(images, np.stack([np.zeros_like(by_floor[1]), by_floor[1]]), response)
    return _labelled(map_, measured, np.abs(dx).sum(axis=0), np.abs(change).sum(axis=0))


def _labelled(map_: StateEvolution, measured: dict[str, Array], of_point: Array, of_measured: Array) -> dict[str, Any]:
    """Errors by the names of what was measured, those of the overlaps by the coordinates of the point."""
    point = map_.sector.errors(of_point)
    overlaps = {"q": point.q, "V": point.V, "m": point.m[..., 0], "theta": point.theta}
    trained = {"trained": point.trained} if len(point.trained) else {}
    return restore(of_measured, measured) | overlaps | trained


def way_left(
    map_: StateEvolution, x: Array, residual: Array, response: Response, moved: Variations, tolerance: float
) -> float:
    """How far the fixed point lies from ``x``, in units of what is known of it.

    These are the errors of integration, or the tolerance where it is larger; of all coordinates the worst one's.
    """
    rows = np.vstack([residual, moved.images])
    dx, _ = propagate(rows, np.zeros((len(rows), len(response.measured))), response)
    known = np.maximum(np.sqrt((dx[1:] ** 2).sum(axis=0)), tolerance * map_.scales(x))
    return float(np.max(np.abs(dx[0]) / known))


def contradicted(own: Variations, other: Variations, response: Response) -> bool:
    """Whether a randomised rule puts the fixed point, or anything measured there, elsewhere than a deterministic one.

    By more than `_CONTRADICTED` combined errors.

    Parameters
    ----------
    own : Variations
        The deterministic rule's distances to others of its kind.
    other : Variations
        Its distance to the randomised rule, the first row, and the scatter of that.
    """
    mine, others = (
        np.concatenate([*propagate(moved.images, moved.values, response), moved.energy[:, None]], axis=1)
        for moved in (own, other)
    )
    combined = np.sqrt((mine**2).sum(axis=0) + (others[1:] ** 2).sum(axis=0))
    return bool((np.abs(others[0]) > _CONTRADICTED * combined).any())


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
        steps, change = propagate(images - images.mean(axis=0), values - mean, response)
        restored = restore_all(np.vstack([mean, change]), measured)
        names = ("q_hat", "V_hat", "m_hat", "theta_hat", *({"Q_hat"} & measured.keys()))
        return cls(map_, x, steps, {name: restored[name] for name in names})

    def at(self, share: float = 1.0) -> Displaced | None:
        """The points at a share of the ways; -1 / (S - 1) is to those of all replicates but one.

        None where one lies outside the domain.
        """
        overlaps = self.map_.sector.unpack_all(self.point + share * self.steps)
        if not overlaps.feasible(self.map_.system.spectrum.rho):
            return None
        hats = {name: x[0] + share * x[1:] for name, x in self.hats.items()}
        q_hat, V_hat, m_hat, theta_hat = (
            hats[name].swapaxes(0, 1) for name in ("q_hat", "V_hat", "m_hat", "theta_hat")
        )
        own = {"Q_hat": hats["Q_hat"][None]} if "Q_hat" in hats else {}
        return Displaced(overlaps, Conjugates(q_hat, V_hat, m_hat[..., None], theta_hat, **own))


def relative_error(error: Array, q: Array, rho: Array) -> float:
    """Largest standard error of q relative to its largest entry, or to a millionth of the teacher's variance."""
    floor = 1e-6 * np.trace(rho, axis1=-2, axis2=-1).mean()
    return float(np.abs(error).max() / max(np.abs(q).max(), floor))


def parts_of(map_: StateEvolution, x: Array, response: Response, moved: Variations) -> Array:
    """Relative error of q by each row of what moves a point, (n,)."""
    dx, _ = propagate(moved.images, np.zeros((len(moved.images), len(response.measured))), response)
    q, rho = map_.unpack(x).q, map_.system.spectrum.rho
    return np.array([relative_error(map_.sector.errors(np.abs(row)).q, q, rho) for row in dx])
