"""The fixed-point equations with the size of m or theta held at a trial amplitude: by what share one map enlarges it.

Under the symmetry ``W -> -W`` m and theta are odd, q and V even. With the amplitude ``a`` of the odd coordinates held,
all others settle; ``growth(a)`` is by what share one map then enlarges the odd ones. A branch is a zero of it, the
uninformed point has ``growth(0)``, the multiplier less one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.solvers.differences import finite_difference_jacobian, response_to
from attnphase.solvers.iteration import Anderson, Newton, Status, iterate
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import growth_within
from attnphase.state_evolution.replicates import rows_against, rows_of, variations

__all__ = ["Sweep", "Trial", "beside_held", "growth_of", "growth_with_error", "trials_of", "zero_of"]

_STEP = 2**-0.25  # from an amplitude to the next
_TRIALS = 6  # of amplitudes down to .4 of the informed start's, below which the multiplier tells
_TOPS = 8  # trials at most beyond the largest amplitude, and beside tops
MAPS_OF_NEWTON, MAPS_OF_ANDERSON = 10, 40
_SHORT = 0.1  # mixing where the map turns far over, as a sparse student's does


@dataclass(frozen=True, eq=False)
class Trial:
    """A trial amplitude.

    Attributes
    ----------
    amplitude : float
        Norm of the odd coordinates.
    point : (D,) array
        With all others settled.
    growth : float
    """

    amplitude: float
    point: Array
    growth: float


def growth_of(map_: StateEvolution, x: Array) -> Array | None:
    """Growth of the odd coordinates in one map per replicate (S,), at zero amplitude by the weights' derivatives.

    None outside the domain, and where there is no multiplier.
    """
    odd = map_.sector.odd
    if not x[odd].any():
        found = growth_within(map_, x)
        return None if found is None else found.replicates - 1
    image = map_(x)
    if image is None:
        return None
    along = x[odd] / (x[odd] @ x[odd])
    growth = np.array([image[odd] @ along - 1])
    if not map_.channel.rule.randomised:
        return growth
    images = map_.images()[:, odd] @ along
    return growth + images - images.mean()


def growth_with_error(map_: StateEvolution, x: Array, gauges: Sequence[StateEvolution]) -> tuple[float, float] | None:
    """The growth at a settled point and its standard error; None outside the domain.

    Replicates, or gauges, change the growth at the point, and let the others settle elsewhere, by ``(I - J)^-1 dF``.
    """
    odd, free = map_.sector.odd, _free(map_, x)
    known = [growth_of(one, x) for one in (map_, *gauges)]
    own, others = known[0], known[1:]
    theirs = [one for one in others if one is not None]
    if own is None or len(theirs) < len(others):
        return None
    scatter = [gauge.channel.rule.randomised for gauge in gauges]
    direct = rows_against(own, theirs, scatter) if gauges else rows_of(own)

    def both(settled: Array) -> Array | None:
        point = x.copy()
        point[free] = settled
        growth, image = growth_of(map_, point), map_(point)
        return None if growth is None or image is None else np.append(_held(image, odd, point)[free], growth.mean())

    scales = map_.scales(x)[free]
    joint = finite_difference_jacobian(both, x[free], scales)
    here = both(x[free])
    assert here is not None
    along = x[odd] / (np.linalg.norm(x[odd]) or 1.0)
    rows = variations(map_, x, gauges).images
    rows[:, odd] -= np.outer(rows[:, odd] @ along, along)
    # first what is left of the way to where the others settle
    changes = np.vstack([here[:-1] - x[free], rows[:, free]])
    left, *by_rows = response_to(changes, joint[:-1], scales) @ joint[-1]
    return float(own.mean() + left), float(np.linalg.norm(direct + by_rows))


@dataclass(eq=False)
class Sweep:
    """Trials from one amplitude to the next, each from those before, until nothing settles inside the domain.

    Attributes
    ----------
    map_ : StateEvolution
    jacobian : (D, D) array
        Of what settles, as Newton's method left it.
    tolerances : (float, float)
        Relative ones of what settles, at all amplitudes and beside the highest growth.
    late : callable
        Whether no more is asked for.
    trials : list of Trial
    whole : bool
        Whether all amplitudes asked for have a trial.
    open : bool
        Whether something neither settled nor left the domain.
    """

    map_: StateEvolution
    jacobian: Array
    tolerances: tuple[float, float]
    late: Callable[[], bool]
    trials: list[Trial] = field(default_factory=list)
    whole: bool = False
    open: bool = False

    def at(self, x: Array) -> Array | None:
        """The point that settles at the amplitude of another, from there; None if nothing does."""
        settled = self.take(x, float(np.linalg.norm(x[self.map_.sector.odd])))
        return self.trials.pop().point if settled else None

    def along(self, x: Array, amplitudes: Sequence[float], at_rest: float) -> None:
        """Trials at the amplitudes, the first one from ``x``, and where the growth has a top, its multiplier known."""
        for amplitude in amplitudes:
            if self.late() or not self.take(_near(self.trials, amplitude) if self.trials else x, amplitude):
                break
        self.whole = len(self.trials) == len(amplitudes)
        if at_rest > 0:
            return  # where it grows nothing more is asked for
        for _ in range(_TOPS):
            beyond = _beyond(self.trials)
            if beyond is None or self.late() or not self.take(_near(self.trials, beyond), beyond):
                break
        for _ in range(_TOPS):
            top = None if self.late() else _top(self.trials, at_rest, self.tolerances[0])
            if top is None or not self.take(_near(self.trials, top), top, fine=True):
                break

    def take(self, x: Array, amplitude: float, *, fine: bool = False) -> bool:
        """A trial from a point nearby; False if nothing settles there."""
        map_, odd = self.map_, self.map_.sector.odd
        x = _scaled(x, odd, amplitude)

        def settling(point: Array) -> Array | None:
            image = map_(point)
            return None if image is None else _held(image, odd, point)

        newton, goal = Newton(self.jacobian), self.tolerances[fine]
        found = iterate(settling, x, map_.scales, newton, tolerance=goal, max_maps=MAPS_OF_NEWTON)
        if found.residual <= self.tolerances[0]:
            self.jacobian = self.jacobian if newton.jacobian is None else newton.jacobian
        else:
            found = iterate(
                settling, x, map_.scales, Anderson(mixing=_SHORT), tolerance=goal, max_maps=MAPS_OF_ANDERSON
            )
        growth = growth_of(map_, found.point) if found.residual <= self.tolerances[0] else None
        if growth is not None:
            self.trials.append(Trial(amplitude, found.point, float(growth.mean())))
            return True
        beyond = map_.unpack(_scaled(found.point, odd, amplitude / _STEP))
        self.open |= found.status is Status.iteration_limit and beyond.feasible(map_.system.spectrum.rho)
        return False


def trials_of(sweep: Sweep, informed: Array, rest: Array, at_rest: float) -> list[Trial] | None:
    """Trials from the uninformed point upwards and, if these end, from an informed start downwards.

    None where on the way up something neither settles nor leaves the domain, unless the way down leads past it; and if
    it is late.

    Parameters
    ----------
    sweep : Sweep
        Without trials.
    informed, rest : (D,) arrays
        The informed start and the uninformed point.
    at_rest : float
        Growth at zero amplitude.
    """
    odd = sweep.map_.sector.odd
    amplitudes = [float(share * np.linalg.norm(informed[odd])) for share in _STEP ** np.arange(_TRIALS)]
    up, down = (replace(sweep, trials=[]) for _ in range(2))
    slightly = rest.copy()
    slightly[odd] = informed[odd]
    up.along(slightly, amplitudes[::-1], at_rest)
    if not up.whole:
        down.along(informed, amplitudes, at_rest)
    return None if sweep.late() or (up.open and not up.whole and not down.whole) else up.trials + down.trials


def beside_held(jacobian: Array, odd: NDArray[np.int64]) -> Array:
    """A Jacobian of what settles beside odd coordinates that are held."""
    found = jacobian.copy()
    found[odd], found[:, odd] = 0.0, 0.0
    return found


def zero_of(trials: Sequence[Trial], odd: NDArray[np.int64], at_rest: float) -> Array:
    """A point near the largest amplitude at which the growth ends; the highest trial where it ends nowhere."""
    curve = sorted([(0.0, at_rest), *((trial.amplitude**2, trial.growth) for trial in trials)], reverse=True)
    for (b, g), (a, f) in pairwise(curve):
        if g <= 0 < f:
            amplitude = float(np.sqrt(a + (b - a) * f / (f - g)))
            return _scaled(_near(trials, amplitude), odd, amplitude)
    return max(trials, key=lambda trial: trial.growth).point


def _near(trials: Sequence[Trial], amplitude: float) -> Array:
    """On the line through the nearest two trials, in the squared amplitude; the nearest if it is alone."""
    nearest, *others = sorted(trials, key=lambda trial: abs(trial.amplitude - amplitude))
    if not others:
        return nearest.point
    share = (amplitude**2 - nearest.amplitude**2) / (others[0].amplitude ** 2 - nearest.amplitude**2)
    return nearest.point + share * (others[0].point - nearest.point)


def _beyond(trials: Sequence[Trial]) -> float | None:
    """The next amplitude beyond the largest, if the growth rises to there and is not seen to exceed zero."""
    *_, before, last = sorted(trials, key=lambda trial: trial.amplitude) if len(trials) > 1 else (None, None)
    if before is None or last is None or not before.growth < last.growth <= 0:
        return None
    return last.amplitude / _STEP


def _top(trials: Sequence[Trial], at_rest: float, tolerance: float) -> float | None:
    """The amplitude of the highest top of parabolas, in the squared amplitude, through a trial and two lower ones.

    None where there is none, where all are hardly higher than the trials, and where the growth exceeds zero.
    """
    curve = sorted([(0.0, at_rest), *((trial.amplitude**2, trial.growth) for trial in trials)])
    tops = []
    for (a, f), (b, g), (c, h) in zip(curve, curve[1:], curve[2:], strict=False):
        if g > 0:
            return None
        if g > max(f, h):
            upper, lower = (b - a) ** 2 * (g - h) - (b - c) ** 2 * (g - f), (b - a) * (g - h) - (b - c) * (g - f)
            square, bend = b - upper / (2 * lower), lower / ((b - a) * (b - c) * (c - a))
            gain = abs(bend) * (square - b) ** 2
            tops += [(g + gain, square)] if gain > tolerance * abs(g) else []
    return float(np.sqrt(max(tops)[1])) if tops else None


def _free(map_: StateEvolution, x: Array) -> NDArray[np.int64]:
    """What settles: all but a single odd coordinate, which is held, and all but the odd ones at zero amplitude."""
    odd = map_.sector.odd
    everything = np.arange(len(x))
    return everything if len(odd) > 1 and x[odd].any() else np.setdiff1d(everything, odd)


def _scaled(x: Array, odd: NDArray[np.int64], amplitude: float) -> Array:
    scaled = x.copy()
    scaled[odd] *= amplitude / float(np.linalg.norm(x[odd]))
    return scaled


def _held(image: Array, odd: NDArray[np.int64], point: Array) -> Array:
    """An image with its odd coordinates at the point's amplitude, on the point's side."""
    size, before = float(np.linalg.norm(image[odd])), point[odd]
    held = image.copy()
    held[odd] = image[odd] * np.copysign(np.linalg.norm(before) / size, image[odd] @ before) if size else before
    return held
