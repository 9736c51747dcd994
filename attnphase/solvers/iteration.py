"""Fixed points of a map with a domain: damped, Anderson and Newton iteration.

Every method proposes the next point from the last one and its image (`step`); one driver evaluates the map, guards the
domain and decides when to stop.  The stopping rule is the *undamped* residual ``|F(x) - x|``, relative to the size of
each block of parameters, so that damping cannot loosen it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.solvers.differences import Map, finite_difference_jacobian

__all__ = [
    "Anderson",
    "Damped",
    "FixedPoint",
    "Method",
    "Newton",
    "Plain",
    "Status",
    "iterate",
]


_TELLING = 5e-4  # relative step: jumps of single nodes, 5e-5 of the residual each, change derivatives along it little


class Status(IntEnum):
    """How an iteration ended; the values are the CF flags of the dataset's ``status``."""

    converged = 0
    iteration_limit = 1
    left_domain = 2


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """Where an iteration ended.

    Attributes
    ----------
    point, image : (P,) arrays
        The point with the smallest residual met, and its image.
    residual : float
        Undamped, ``max_i |F(x)_i - x_i| / scale_i``.
    maps : int
        Evaluations of the map.
    status : Status
    history : tuple of float
        Residuals in the order met.
    """

    point: Array
    image: Array
    residual: float
    maps: int
    status: Status
    history: tuple[float, ...] = ()


class Method(Protocol):
    """Proposes points.  A method holds the state of one iteration: make a new one for each."""

    def step(self, point: Array, image: Array, scale: Array, evaluate: Map) -> Array:
        """The next point, from a point, its image, the size of every entry, and the map for methods that probe it."""
        ...


@dataclass
class Damped:
    """``x + (1 - damping) (F(x) - x)``, or a shorter step that moves no `bounded` entry by more than its size.

    A longer step would leave the iteration many times that size away, at a point that tells nothing of the start.
    """

    damping: float = 0.8
    bounded: Sequence[int] | NDArray[np.int64] = ()

    def step(self, point: Array, image: Array, scale: Array, evaluate: Map) -> Array:
        """The next point, see `Method`."""
        places = np.asarray(self.bounded, dtype=int)
        farthest = np.abs((image - point) / scale)[places].max(initial=0.0)
        return point + min(1 - self.damping, 1 / max(farthest, 1.0)) * (image - point)


@dataclass
class Plain:
    """``x + share (F(x) - x)`` with the largest share, up to one, at which the residual does not turn round."""

    share: float = 0.2
    _last: Array | None = None

    def step(self, point: Array, image: Array, scale: Array, evaluate: Map) -> Array:
        """The next point, see `Method`."""
        residual = (image - point) / scale
        if self._last is not None:
            self.share = min(1.0, 2 * self.share) if self._last @ residual > 0 else self.share / 2
        self._last = residual
        return point + self.share * (image - point)


@dataclass
class Anderson:
    """Anderson mixing with a short memory, in variables scaled to order one.

    Attributes
    ----------
    memory : int
        Differences kept.
    mixing : float
        Share of the residual added to the extrapolated point; 1 is undamped.
    """

    memory: int = 6
    mixing: float = 0.3
    _points: list[Array] = field(default_factory=list)
    _residuals: list[Array] = field(default_factory=list)

    def step(self, point: Array, image: Array, scale: Array, evaluate: Map) -> Array:
        """The next point, see `Method`."""
        self._points.append(point)
        self._residuals.append(image - point)
        del self._points[: -self.memory - 1], self._residuals[: -self.memory - 1]
        residual = self._residuals[-1]
        if len(self._points) == 1:
            return point + self.mixing * residual
        dx = np.stack([b - a for a, b in zip(self._points[:-1], self._points[1:], strict=True)], axis=1)
        df = np.stack([b - a for a, b in zip(self._residuals[:-1], self._residuals[1:], strict=True)], axis=1)
        if not np.isfinite(df / scale[:, None]).all():  # LAPACK would print a complaint
            return point + self.mixing * residual
        # relative cut-off: nearly parallel differences carry only noise
        weights = np.linalg.lstsq(df / scale[:, None], residual / scale, rcond=1e-8)[0]
        return point + self.mixing * residual - (dx + self.mixing * df) @ weights


@dataclass
class Newton:
    """Newton's method on ``F(x) - x`` with a Jacobian by finite differences, kept up to date by Broyden's formula.

    Attributes
    ----------
    jacobian : (P, P) array or None
        ``dF/dx`` to begin with; computed on the first step if None, at the cost of 2 P maps.
    learnt : (P, P) array or None
        The same after the last step that was not so small that jumps of single nodes decide about it.
    """

    jacobian: Array | None = None
    learnt: Array | None = None
    _last: tuple[Array, Array] | None = None

    def step(self, point: Array, image: Array, scale: Array, evaluate: Map) -> Array:
        """The next point, see `Method`."""
        residual = image - point
        if self.jacobian is None:
            self.jacobian = finite_difference_jacobian(evaluate, point, scale)
        elif self._last is not None:
            dx = (point - self._last[0]) / scale
            df = (residual - self._last[1]) / scale
            predicted = ((self.jacobian - np.eye(len(point))) @ (dx * scale)) / scale
            if dx @ dx > 0:
                correction = np.outer(df - predicted, dx) / (dx @ dx)
                self.jacobian = self.jacobian + scale[:, None] * correction / scale[None, :]
            if np.abs(dx).max() > _TELLING:
                self.learnt = self.jacobian
        self._last = (point, residual)
        system = (np.eye(len(point)) - self.jacobian) * scale[None, :] / scale[:, None]
        if not np.isfinite(system).all():  # unknown derivatives, of which LAPACK would print a complaint
            return Damped().step(point, image, scale, evaluate)
        return point + scale * np.linalg.lstsq(system, residual / scale, rcond=1e-10)[0]


def iterate(
    evaluate: Map,
    start: Array,
    scales: Callable[[Array], Array],
    method: Method,
    *,
    tolerance: float,
    max_maps: int,
    report: Callable[[int, float], bool | None] | None = None,
    until: Callable[[Array, Array], bool] | None = None,
) -> FixedPoint:
    """Iterate until the undamped residual is below ``tolerance``.

    Parameters
    ----------
    evaluate : callable
        The map; None outside the domain.
    start : (P,) array
    scales : callable
        Size of every entry at a point, for relative residuals.
    method : Method
    tolerance : float
        On ``max |F(x) - x| / scale``.
    max_maps : int
        Evaluations after which the status is ``iteration_limit``.
    report : callable, optional
        Called with (maps, residual) after every map; True ends the iteration as `max_maps` does.
    until : callable, optional
        Asked with every point and its image whether no more is wanted than what has been seen: the iteration ends
        there, not converged.

    Returns
    -------
    FixedPoint
        The best point met, also if the iteration did not converge; the last one where `until` has ended it.
    """
    maps = 0

    def counted(x: Array) -> Array | None:
        nonlocal maps
        maps += 1
        return evaluate(x)

    point, image = start, counted(start)
    if image is None:
        return FixedPoint(start, start, np.inf, maps, Status.left_domain)
    best: tuple[float, Array, Array] | None = None
    history: list[float] = []
    while True:
        scale = scales(point)
        residual = float(np.max(np.abs(image - point) / scale))
        history.append(residual)
        over = report is not None and report(maps, residual)
        if best is None or residual < best[0]:
            best = (residual, point, image)
        if residual <= tolerance:
            return FixedPoint(point, image, residual, maps, Status.converged, tuple(history))
        if until is not None and until(point, image):
            return FixedPoint(point, image, residual, maps, Status.iteration_limit, tuple(history))
        if maps >= max_maps or over:
            return FixedPoint(best[1], best[2], best[0], maps, Status.iteration_limit, tuple(history))
        candidate = method.step(point, image, scale, counted)
        moved = _into_domain(counted, point, image, candidate)
        if moved is None:
            return FixedPoint(best[1], best[2], best[0], maps, Status.left_domain, tuple(history))
        point, image = moved


def _into_domain(evaluate: Map, point: Array, image: Array, candidate: Array) -> tuple[Array, Array] | None:
    """The candidate, or a shorter step, or a short damped step, whichever first lies in the domain."""
    for fraction in (1.0, 0.3, 0.1):
        trial = point + fraction * (candidate - point)
        value = evaluate(trial)
        if value is not None:
            return trial, value
    for fraction in (0.2, 0.02, 0.002):
        trial = point + fraction * (image - point)
        value = evaluate(trial)
        if value is not None:
            return trial, value
    return None
