"""Standard errors near an onset, where a small error of the map moves the fixed point far.

The replicates' curves (`reduced`) are averaged over balanced halves of the replicates. A half of them misses the mean
of all by as much, in the mean square, as that mean misses the truth; so does the zero of its curve, however bent the
curve is and whether or not there is a zero, and so does everything that is measured along it. The error is what the
share of a normal law stays within: where some halves have no zero, their distance is not that of one standard error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.fixed_points.reduced import Level, at_rest, level_at, with_displacements
from attnphase.fixed_points.run import Run
from attnphase.state_evolution.errors import Response
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.replicates import flatten, restore

__all__ = ["spread"]

_DOWN, _UP = (0, 1, 2, 4, 7), (1, 2, 4, 8, 12)  # powers of 1 - step and of 1 + step
_CLOSE, _WIDE = 0.05, 0.2  # smallest and largest step, as a share of the point's amplitude
_SMALL = 0.1  # share of the start's amplitude from which on the steps are shares of the point's own
_ROOM = 3.0  # standard errors by which the growth differs from zero where the levels end
_BOUND = 4.0  # likewise, where an amplitude is excluded
_WITHIN = 0.6827  # share of a normal law within one standard error: where the curve ends, the tails are other ones
_BENDS = 3  # powers of the square of the amplitude by which the growth is described
_BY_CHANCE = 3.0  # standard errors
_FLOOR = 0.1  # of the largest error of a level: weights do not differ by more
_BEYOND = 1.25  # of the last level: no line is drawn on further


@dataclass(frozen=True, eq=False)
class _Row:
    """A level, and what the replicates have there: (S, D) coordinates and (S, E) of everything measured."""

    level: Level
    points: Array
    values: Array


def spread(
    run: Run,
    map_: StateEvolution,
    x: Array,
    start: Array,
    response: Response,
    relative: float,
    open_within: float | None,
) -> dict[str, Any]:
    """Standard errors of everything but the training loss, which is stationary, at a point near an onset.

    Parameters
    ----------
    run : Run
        Of the map's sector, in which the order parameter may differ from zero.
    map_ : StateEvolution
        Under a randomised rule.
    x : (D,) array
        The point.
    start : (D,) array
        With odd coordinates of the informed start's size.
    response : Response
        At ``x``, in the same sector.
    relative : float
        Error of the order parameter by derivatives, in units of its size.
    open_within : float or None
        How many errors reach the uninformed point where it is not decided whether there is a branch; four reach to
        where it is excluded then.

    Returns
    -------
    dict
        By the names of the dataset; empty where the map has no curve about the point.
    """
    from scipy.linalg import hadamard  # a quarter of a second to import, for points near an onset alone

    if not response.known:
        return {}
    odd, rule = map_.sector.odd, map_.channel.rule
    here, full = float(np.linalg.norm(x[odd])), float(np.linalg.norm(start[odd]))
    step = float(np.clip(2.5 * relative, _CLOSE, _WIDE)) if here > _SMALL * full else _WIDE
    unit = max(here, _SMALL * full)
    down, up = ([unit * factor**k for k in powers] for factor, powers in ((1 - step, _DOWN), (1 + step, _UP)))
    beside = run.map(rule)
    beside.adopt(map_.minima)
    rows = _rows(beside, x if here > 0 else start, (down, up), response, here)
    if len(rows) < 2:
        return {}
    amplitudes = np.array([row.level.amplitude for row in rows])
    growth = _straightened(amplitudes, np.stack([row.level.growth for row in rows]), here)
    points, values = (np.stack([getattr(row, name) for row in rows]) for name in ("points", "values"))
    signs = hadamard(rule.replicates)[1:]
    changes = []
    for half in np.concatenate([signs, -signs]) > 0:
        zero = _zero(amplitudes, growth[:, half].mean(axis=1))
        changes.append(_between(amplitudes, points[:, half].mean(axis=1), values[:, half].mean(axis=1), zero))
    middle = _between(amplitudes, points.mean(axis=1), values.mean(axis=1), here)
    squares = np.quantile([(change - middle) ** 2 for change in changes], _WITHIN, axis=0)
    there = _between(amplitudes, points.mean(axis=1), values.mean(axis=1), _excluded(rows, here))
    squares = np.maximum(squares, ((there - middle) / _ROOM) ** 2)
    if open_within is not None:
        open_ = [row.level.amplitude for row in rows if not row.level.falls_short(_BOUND)]
        for end, within in ((0.0, open_within), (max(open_, default=here), _BOUND)):
            there = _between(amplitudes, points.mean(axis=1), values.mean(axis=1), end)
            squares = np.maximum(squares, ((there - middle) / within) ** 2)
    pattern = map_.quantities(x, pooled=False) if map_.measure(x) is not None else None
    assert pattern is not None
    errors = restore(np.sqrt(squares[len(x) :]), pattern)
    overlaps = map_.sector.errors(np.sqrt(squares[: len(x)]))
    del errors["training_loss"]
    return errors | {"q": overlaps.q, "V": overlaps.V, "m": overlaps.m[..., 0], "theta": overlaps.theta}


def _rows(
    map_: StateEvolution, x: Array, amplitudes: tuple[list[float], list[float]], response: Response, here: float
) -> list[_Row]:
    """Rows of growing amplitude, from where the growth is positive beyond doubt, or zero, to where it is negative."""
    odd = map_.sector.odd
    rows: list[_Row] = []
    for direction, enough in zip(amplitudes, (Level.exceeds, Level.falls_short), strict=True):
        previous, jacobian = x, response.jacobian
        for amplitude in direction:
            level = level_at(map_, previous, amplitude, jacobian)
            if level is None or np.isnan(level.value):
                break
            rows.append(_row(map_, level, response, odd, here))
            previous, jacobian = level.point, jacobian if level.jacobian is None else level.jacobian
            if enough(rows[-1].level, _ROOM):
                break
    rows.sort(key=lambda row: row.level.amplitude)
    if not rows or not rows[0].level.exceeds(_ROOM):
        rest = StateEvolution(map_.channel, map_.alpha, map_.sector)
        level = at_rest(rest, rows[0].level.point if rows else x, rows[0].level.jacobian if rows else response.jacobian)
        if level is not None:
            rows.insert(0, _row(rest, level, response, odd, here))
    return rows


def _row(map_: StateEvolution, level: Level, response: Response, odd: NDArray[np.int64], here: float) -> _Row:
    """What the map that has just made a level tells of it."""
    share = level.amplitude / here if here > 0 else 1.0
    jacobian = response.jacobian.copy()
    even = np.setdiff1d(np.arange(len(jacobian)), odd)
    # across the parities derivatives are odd functions of the amplitude
    jacobian[np.ix_(even, odd)] *= share
    jacobian[np.ix_(odd, even)] *= share
    level, moved = with_displacements(level, jacobian, odd)
    values, pooled = (map_.quantities(level.point, pooled=one) for one in (False, True))
    assert values is not None
    assert pooled is not None
    table = flatten(values)
    table = flatten(pooled) + table - table.mean(axis=0) + moved @ response.measured.T
    return _Row(level, level.point + moved, table)


def _straightened(amplitudes: Array, growth: Array, here: float) -> Array:
    """The replicates' growth (A, S) about a curve without the bends that chance makes, of which the point is a zero.

    The curve is even in the amplitude, with as few powers as three standard errors of every level allow. The halves of
    a curve that chance has made flat would otherwise cross zero far away.
    """
    count = growth.shape[1]
    value, error = growth.mean(axis=1), growth.std(axis=1, ddof=1) / np.sqrt(count)
    known = np.abs(amplitudes - here) > 1e-9 * here
    if not 0 < error[known].max() < np.inf:  # replicates that agree bit for bit, as where all weights are zero
        return growth
    even = (amplitudes / max(here, amplitudes.max())) ** 2 - (here / max(here, amplitudes.max())) ** 2
    weight = 1 / np.maximum(error[known], _FLOOR * error[known].max())
    for powers in range(1, min(known.sum(), _BENDS + 1)):
        table = even[:, None] ** np.arange(1 if here > 0 else 0, powers + 1)
        fitted = table @ np.linalg.lstsq(table[known] * weight[:, None], value[known] * weight, rcond=None)[0]
        if (np.abs(fitted - value)[known] <= _BY_CHANCE * error[known]).all():
            return growth - value[:, None] + fitted[:, None]
    return growth


def _excluded(rows: list[_Row], here: float) -> float:
    """Amplitude above ``here`` at which the growth is as many standard errors below zero as levels go to.

    Over so many errors the point may lie further up, whatever chance has made of the curve between.
    """
    before, doubt = here, 0.0
    for level in (row.level for row in rows if row.level.amplitude > here):
        errors = level.value / level.stderr
        if errors <= -_ROOM:
            return before + (level.amplitude - before) * (doubt + _ROOM) / (doubt - errors)
        before, doubt = level.amplitude, min(errors, 0.0)
    return before


def _zero(amplitudes: Array, growth: Array) -> float:
    """Where the growth changes its sign at the largest amplitude; zero if it is negative everywhere."""
    positive = np.flatnonzero(growth > 0)
    if not len(positive):
        return 0.0
    i = min(int(positive[-1]), len(growth) - 2)
    slope = (growth[i + 1] - growth[i]) / (amplitudes[i + 1] - amplitudes[i])
    return float(np.clip(amplitudes[i] - growth[i] / slope, 0.0, _BEYOND * amplitudes[-1]))


def _between(amplitudes: Array, points: Array, values: Array, at: float) -> Array:
    """Coordinates and everything measured at an amplitude, by linear interpolation."""
    table = np.concatenate([points, values], axis=1)
    i = int(np.clip(np.searchsorted(amplitudes, at) - 1, 0, max(len(amplitudes) - 2, 0)))
    if len(amplitudes) == 1:
        return table[0]
    share = (at - amplitudes[i]) / (amplitudes[i + 1] - amplitudes[i])
    return table[i] + share * (table[i + 1] - table[i])
