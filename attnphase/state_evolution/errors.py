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
from attnphase.state_evolution.overlaps import Overlaps

__all__ = [
    "Response",
    "error_near",
    "flatten",
    "packed_images",
    "relative_error",
    "response_at",
    "restore",
    "standard_errors",
]


def flatten(measured: dict[str, Array]) -> Array:
    """(S, everything), in the order of the dictionary."""
    return np.concatenate([v.reshape(len(v), -1) for v in measured.values()], axis=1)


def restore(vector: Array, like: dict[str, Array]) -> dict[str, Any]:
    """The dictionary that `flatten` made a vector of, shaped like the replicates of ``like``."""
    result: dict[str, Any] = {}
    position = 0
    for name, values in like.items():
        size = values[0].size
        part = vector[position : position + size].reshape(values.shape[1:])
        result[name] = float(part) if part.ndim == 0 else part
        position += size
    return result


@dataclass(frozen=True, eq=False)
class Response:
    """Derivatives at a fixed point.

    Attributes
    ----------
    jacobian : (D, D) array
        Of the map.
    measured : (E, D) array
        Of every measured quantity.
    order : int
        Order of the rule they were taken under.
    """

    jacobian: Array
    measured: Array
    order: int


def response_at(map_: StateEvolution, x: Array, enough: Rule) -> Response:
    """Derivatives by finite differences, 2 D evaluations, under the map's rule or, if that is finer, `enough`."""
    rule = map_.channel.rule
    if rule.randomised and rule.order > enough.order:
        channel = replace(map_.channel, rule=enough)
        medium = StateEvolution(channel, map_.alpha, map_.sector)
        medium.lift = map_.lift
        return response_at(medium, x, enough)

    def both(point: Array) -> Array | None:
        measured = map_.measure(point, pooled=True)
        return None if measured is None else np.concatenate([packed_images(measured, map_)[0], flatten(measured)[0]])

    # a difference may reach over the edge of the domain, where the lifted map goes on
    lift, map_.lift = map_.lift, True
    joint = finite_difference_jacobian(both, x, map_.scales(x))
    map_.lift = lift
    order = rule.order if rule.randomised else enough.order
    return Response(joint[: len(x)], joint[len(x) :], order)


def packed_images(measured: dict[str, Array], map_: StateEvolution) -> Array:
    """Images per replicate as packed vectors, (S, P)."""
    packed = [
        map_.pack(Overlaps(q, V, m[..., None], theta))
        for q, V, m, theta in zip(measured["q"], measured["V"], measured["m"], measured["theta"], strict=True)
    ]
    return np.stack(packed)


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
    values, images, energy = flatten(measured), packed_images(measured, map_), _energy(map_)
    if gauge_rule is None:
        squares = _scatter(images, values, energy, response)
    else:
        other = gauge_rule.measure(x)
        if other is None:
            raise ArithmeticError("the second rule leaves the domain at the fixed point of the first")
        others = packed_images(other, gauge_rule), flatten(other), _energy(gauge_rule)
        shifts = [b.mean(axis=0) - a.mean(axis=0) for a, b in zip((images, values, energy), others, strict=True)]
        dx, change = _propagate(shifts[0][None], shifts[1][None], response)
        squares = [dx[0] ** 2, change[0] ** 2, shifts[2] ** 2]
        if gauge_rule.channel.rule.randomised:
            squares = [a + b for a, b in zip(squares, _scatter(*others, response), strict=True)]
    error_x, error, error_energy = (np.sqrt(square) for square in squares)
    errors = restore(error, measured)
    point = map_.sector.errors(error_x)
    errors |= {"q": point.q, "V": point.V, "m": point.m[..., 0], "theta": point.theta}
    # -Phi is stationary, so that to first order only the explicit change of its energy term is left
    errors["training_loss"] = float(error_energy)
    return errors


def relative_error(error: Array, q: Array, rho: Array) -> float:
    """Largest standard error of q relative to its largest entry, or to a millionth of the teacher's variance."""
    floor = 1e-6 * np.trace(rho, axis1=-2, axis2=-1).mean()
    return float(np.abs(error).max() / max(np.abs(q).max(), floor))


def error_near(map_: StateEvolution, x: Array, response: Response) -> float:
    """Relative standard error that q will have at the fixed point near ``x``, where the map was evaluated last.

    Replicates scatter at ``x`` much as they do at the fixed point. Infinite where one of them has no image.
    """
    assert map_.last is not None
    images = map_.prior.of_replicates(map_.last.conjugates, lift=True)
    if images is None:
        return np.inf
    packed = np.stack([map_.pack(image) for image in images])
    squares = _scatter(packed, np.zeros((len(packed), len(response.measured))), np.zeros(len(packed)), response)
    error = map_.sector.errors(np.sqrt(squares[0]))
    return relative_error(error.q, map_.unpack(x).q, map_.system.spectrum.rho)


def _scatter(images: Array, values: Array, energy: Array, response: Response) -> list[Array]:
    """Squared standard errors of fixed point, measured quantities and energy, from replicates (S, ...)."""
    dx, change = _propagate(images - images.mean(axis=0), values - values.mean(axis=0), response)
    pairs = len(values) * (len(values) - 1)
    return [(x**2).sum(axis=0) / pairs for x in (dx, change, energy - energy.mean())]


def _energy(map_: StateEvolution) -> Array:
    """``alpha E[M]`` of the last evaluation, per replicate for randomised rules, else pooled."""
    assert map_.last is not None
    energy = map_.alpha * map_.last.envelope
    return energy if map_.channel.rule.randomised else energy.mean(keepdims=True)
