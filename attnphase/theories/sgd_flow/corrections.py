"""A way under one rule as a correction of the way under another: their rates differ by little, which is smooth in time.

What the rates of the second rule are beyond those of a way x(t), ``r(t) = f(x(t)) - x'(t)``, moves it by y, with
``y' = J y + r`` to first order and the Jacobian J of a coarse rule.  So f is asked for at a few knots in time, and at
fewer of ``x + y`` again, until nothing moves; an integration in time asks for it six times a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.theories.sgd_flow.directions import STEP, kicks
from attnphase.theories.sgd_flow.rates import Dynamics

__all__ = ["KnownWay", "Moved", "corrected", "known_way", "of_replicates"]

_FEWEST, _MOST = 16, 400  # knots
_EACH = (4, 2, 1)  # which of them are asked, as long as half as many do not say the same
_HALVINGS = 2  # of their distances, where all do not
_DEGREE, _GAIN = 3, 15.0  # of the polynomials between them, and how much more half as many miss
_LARGEST = 32  # numbers of a state: each takes a rate of its own at every knot
_SWEEPS, _SLOWEST = 8, 0.3  # and how much of a correction the next one may be
_FAR = 0.3  # of the state's size, beyond which a replicate's displacement is not of first order
_APART = 1.0  # likewise, beyond which another rule's way is no correction of this one
_EXACT = 1e-6  # relative tolerance in time of a displacement


@dataclass(frozen=True, eq=False)
class KnownWay:
    """A way at knots in time, and what a small displacement changes there.

    Attributes
    ----------
    path : callable
        Times (T,) to states (T, D).
    dynamics, coarse : Dynamics
        With the rule of the way, and with one for derivatives.
    knots : (K,) array
    states : (K, D) array
    values : (K, S, D + 2) array
        Rates and `Dynamics.numbers` under every replicate of the rule.
    slopes : (K, D + 2, D) array
        Their derivatives.
    """

    path: Callable[[Array], Array]
    dynamics: Dynamics
    coarse: Dynamics
    knots: Array
    states: Array = field(init=False)
    values: Array = field(init=False)
    slopes: Array = field(init=False)

    def __post_init__(self) -> None:
        states = self.path(self.knots)
        object.__setattr__(self, "states", states)
        object.__setattr__(self, "values", np.stack([rows_asked(self.dynamics, state) for state in states]))
        object.__setattr__(self, "slopes", np.stack([_slopes(self.coarse, state) for state in states]))

    @property
    def finite(self) -> bool:
        """Whether all that is known of it is."""
        return all(bool(np.isfinite(known).all()) for known in (self.states, self.values, self.slopes))

    def finer(self) -> KnownWay:
        """With a knot between any two."""
        return replace(self, knots=_halved(self.knots))

    def sizes(self) -> Array:
        """Natural sizes of a state's numbers, (D,): the largest on the way."""
        return np.max([self.dynamics.sizes(state) for state in self.states], axis=0)

    def displaced(self, chosen: NDArray[np.intp], forces: Array) -> Callable[[Array], Array]:
        """Displacements (T, ..., D) at times by forces (K', ..., D) at some of the knots; NaN where they run away."""
        from scipy.integrate import solve_ivp

        shape, clock = forces.shape[1:], self.dynamics.clock(self.states[0])
        knots = self.knots * clock
        force, slope = between(knots[chosen], forces), between(knots, self.slopes[:, : shape[-1]])
        found: Any = solve_ivp(
            lambda t, y: (y.reshape(shape) @ slope(t).T + force(t)).ravel() / clock,
            (knots[0], knots[-1]),
            np.zeros(math.prod(shape)),
            dense_output=True,
            rtol=_EXACT,
            atol=1e-3 * _EXACT * np.broadcast_to(self.sizes(), shape).ravel(),
        )
        if not found.success:
            return lambda times: np.full((len(times), *shape), np.nan)
        return lambda times: found.sol(times * clock).T.reshape(-1, *shape)


class Moved(NamedTuple):
    """A way that another one was corrected to.

    Attributes
    ----------
    states : (T, D) array
        At the times asked for.
    shifts : (T, 2) array
        What its `Dynamics.numbers` are beyond those of the known way.
    known : KnownWay
    chosen : (K',) array of int
        Knots of the known way at which this rule was asked.
    values : (K', S, D + 2) array
        What it said under every replicate.
    """

    states: Array
    shifts: Array
    known: KnownWay
    chosen: NDArray[np.intp]
    values: Array

    @classmethod
    def nowhere(cls, known: KnownWay, times: Array) -> Moved:
        """The known way itself."""
        return cls(known.path(times), np.zeros((len(times), 2)), known, np.arange(len(known.knots)), known.values)


def known_way(
    path: Callable[[Array], Array] | None, steps: Array, dynamics: Dynamics, coarse: Dynamics
) -> KnownWay | None:
    """A way to be corrected, with the steps of its integration as knots; None if it has too many numbers, or none."""
    if path is None or len(steps) > _MOST or path(steps[:1]).shape[1] > _LARGEST:
        return None
    while len(steps) < _FEWEST:
        steps = _halved(steps)
    known = KnownWay(path, dynamics, coarse, steps)
    return known if known.finite else None


def corrected(known: KnownWay, dynamics: Dynamics, times: Array, tolerance: float) -> Moved | None:
    """The way under another rule, to a relative tolerance.

    None where it is not that near, does not resolve what is between the knots, or comes to rest or runs away under
    this rule: it must be followed by itself then.
    """
    said: dict[bytes, Array] = {}
    for _ in range(_HALVINGS):
        found = _swept(known, dynamics, times, tolerance, said)
        if not isinstance(found, _Unresolved):
            return found
        known = known.finer()
        if not known.finite:
            return None
    found = _swept(known, dynamics, times, tolerance, said)
    return None if isinstance(found, _Unresolved) else found


class _Unresolved:
    """There is more between the knots than they tell."""


def _swept(
    known: KnownWay, dynamics: Dynamics, times: Array, tolerance: float, said: dict[bytes, Array]
) -> Moved | _Unresolved | None:
    size, sizes, before = known.states.shape[1], known.sizes(), math.inf
    states, expected = known.states, known.values.mean(axis=1)
    at_times, shifts = known.path(times), np.zeros((len(times), 2))
    first: tuple[NDArray[np.intp], Array] | None = None
    for _ in range(_SWEEPS):
        found = _resolved(known, dynamics, states, expected, tolerance * sizes, said)
        if found is None or isinstance(found, _Unresolved):
            return found
        chosen, values, moves = found
        first = first or (chosen, values)
        missed = between(known.knots[chosen], values.mean(axis=1) - expected[chosen])
        moved = moves(known.knots)
        change = float(np.abs(moved / sizes).max())
        if not change <= min(_SLOWEST * before, _APART):
            return None
        told = np.einsum("kij,kj->ki", known.slopes, moved)
        at_times = at_times + moves(times)
        shifts = shifts + missed(times)[:, size:] + between(known.knots, told[:, size:])(times)
        states, expected = states + moved, expected + missed(known.knots) + told
        if change * (change / before if math.isfinite(before) else _SLOWEST) <= tolerance:
            return Moved(at_times, shifts, known, *first)
        before = change
    return None


def _resolved(
    known: KnownWay, dynamics: Dynamics, states: Array, expected: Array, least: Array, said: dict[bytes, Array]
) -> tuple[NDArray[np.intp], Array, Callable[[Array], Array]] | _Unresolved | None:
    """Knots that suffice, what the rule says there of the states, and the displacement; None where the way ends."""
    size = states.shape[1]
    for each in _EACH:
        chosen = _some(len(states), each)
        if len(_some(len(chosen), 2)) <= _DEGREE:
            continue
        for state in states[chosen]:
            if state.tobytes() not in said:
                said[state.tobytes()] = rows_asked(dynamics, state)
                if dynamics.speed(state) <= dynamics.settings.at_rest or dynamics.is_lost(state):
                    return None
        values, fewer = np.stack([said[state.tobytes()] for state in states[chosen]]), _some(len(chosen), 2)
        if not np.isfinite(values).all():
            return None
        forces = values.mean(axis=1)[:, :size] - expected[chosen, :size]
        moves = known.displaced(chosen, forces)
        half = known.displaced(chosen[fewer], forces[fewer])
        if (np.abs(moves(known.knots) - half(known.knots)) <= _GAIN * least).all():
            return chosen, values, moves
    return _Unresolved()


def of_replicates(moved: Moved, times: Array) -> tuple[Array, Array] | None:
    """States (S, T, D) of every replicate, and by what their numbers (S, T, 2) differ from those of the way.

    To first order; None where one is too far for that.
    """
    known, size = moved.known, moved.states.shape[1]
    apart = moved.values - moved.values.mean(axis=1, keepdims=True)
    moves = known.displaced(moved.chosen, apart[..., :size])
    at_knots = moves(known.knots)
    if not np.abs(at_knots / known.sizes()).max() <= _FAR:  # nor where it is not a number
        return None
    told = between(known.knots, np.einsum("knd,ksd->ksn", known.slopes[:, size:], at_knots))(times)
    numbers = between(known.knots[moved.chosen], apart[..., size:])(times) + told
    return (moved.states[:, None] + moves(times)).swapaxes(0, 1), numbers.swapaxes(0, 1)


def between(knots: Array, values: Array) -> Callable[[Any], Array]:
    """Values (K, ...) at knots as those at other times."""
    from scipy.interpolate import make_interp_spline

    return make_interp_spline(knots, values, k=_DEGREE)


def rows_asked(dynamics: Dynamics, state: Array) -> Array:
    """Rates and numbers under every replicate, (S, D + 2)."""
    return np.concatenate(dynamics.of_replicates(state), axis=-1)


def _some(count: int, each: int) -> NDArray[np.intp]:
    """Every so manieth of a count, and the last."""
    return np.unique(np.append(np.arange(0, count, each), count - 1))


def _halved(knots: Array) -> Array:
    return np.sort(np.concatenate([knots, (knots[1:] + knots[:-1]) / 2]))


def _slopes(dynamics: Dynamics, state: Array) -> Array:
    """Derivatives of rates and numbers by differences, (D + 2, D); covariances are made larger."""
    ways = STEP * kicks(dynamics, state)

    def all_of(place: Array) -> Array:
        return np.concatenate([dynamics.rate(place), dynamics.numbers(place)])

    here = all_of(state)
    slopes: Array = np.stack([all_of(state + way) - here for way in ways.T], axis=1) @ np.linalg.inv(ways)
    return slopes
