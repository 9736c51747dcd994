"""Exact identities at a fixed point: each has two sides that the program finds in different ways.

- The training loss is stationary in everything but alpha and the ridge, so that its total derivatives are ``E[M]`` and
  half the weights' squared norm.  The left sides follow from the implicit function theorem, with the derivatives of the
  map and of what is measured: a wrong equation, or a wrong derivative, breaks them.
- V_hat and theta_hat, means of g with normals by Stein's lemma, are ``-alpha E[dg/domega]`` and, for Gaussian k,
  ``alpha E[dg/dk]``, with the jumps of the proximal point and of the labels: a rule of integration that does not
  resolve the fields breaks them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.verdict import LEMMAS, SLOPES
from attnphase.integration.refinement import SINGLE_POINTS, SMOOTH
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import Response, parts_of, propagate
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.replicates import Variations, flatten, packed_images, restore, restore_all
from attnphase.state_evolution.replicon import mean_slopes, slope_sums
from attnphase.state_evolution.teacher_slopes import teacher_slopes

__all__ = ["slope_violations", "stein_violations"]

_STEP = np.finfo(float).eps ** (1 / 2)  # of differences of the prior, which is exact to rounding


def slope_violations(
    map_: StateEvolution, x: Array, response: Response, moved: Variations, errors: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Relative differences of the training loss's total derivatives from what they are, with their errors.

    Parameters
    ----------
    map_ : StateEvolution
        Just evaluated at ``x``.
    x : (D,) array
        The fixed point.
    response : Response
        Derivatives there, or nearby.
    moved : Variations
        What the errors of integration are made of.
    errors : dict
        Of what is measured, by name.
    """
    measured, last = map_.quantities(x, pooled=True), map_.last
    assert measured is not None
    assert last is not None
    norm = measured["weight_norm"][0] / 2, errors["weight_norm"] / 2
    sides = {"violation_alpha": (last.envelope.mean(), _envelope_error(map_, x, response, moved))}
    # the ridge stands beside V_hat: a step of a small one alone would be lost in rounding
    stiffness = map_.system.spectrum.gamma.min() * np.linalg.eigvalsh(last.conjugates.mean().V_hat).min()
    ridge = map_.prior.least_ridge + max(float(stiffness), 0.0)
    steps = {"violation_alpha": (_STEP * map_.alpha, 0.0), "violation_ridge": (0.0, _STEP * ridge)}
    if map_.prior.rows is None:
        sides["violation_ridge"] = norm
    found = dict.fromkeys(SLOPES, (math.nan, math.nan))
    for name, (right, error) in sides.items():
        if right != 0:
            slope, unknown = _total_slope(map_, x, response, steps[name])
            # nodes that move with the point leave the left side the error of integration too
            found[name] = float((slope - right) / abs(right)), float((2 * error + unknown) / abs(right))
    return found


def _total_slope(map_: StateEvolution, x: Array, response: Response, step: tuple[float, float]) -> tuple[float, float]:
    """Total derivative of the training loss along a step of alpha and the ridge, and what differences leave unknown."""
    like, beside = map_.quantities(x, pooled=True), map_.beside(map_.alpha + step[0], map_.prior.strength + step[1])
    assert like is not None
    there = beside.quantities(x, pooled=True)
    if there is None:
        return np.nan, np.nan
    image = (packed_images(there, beside) - packed_images(like, map_)) / sum(step)
    dx, change = propagate(image, (flatten(there) - flatten(like)) / sum(step), response)
    tangent, slope = dx[0], restore(change[0], like)["training_loss"]
    loss, scales = float(like["training_loss"][0]), map_.scales(x)
    gradient = np.array([restore(column, like)["training_loss"] for column in response.measured.T])
    answers, _ = propagate(np.eye(len(x)), np.zeros((len(x), len(response.measured))), response)
    answer = gradient @ answers.T  # of the loss to a displacement of the map
    # a derivative of what has the size s by a coordinate of the size c is known to a share of s / c, and of itself
    share, ways = response.inexact_at(x, scales), np.abs(tangent)
    of_map = (np.abs(response.jacobian) + scales[:, None] / scales) * np.abs(answer)[:, None] * ways
    of_loss = (np.abs(gradient) + abs(loss) / scales) * ways
    by_chance = [answer @ rows @ tangent for rows in response.noise]
    rounding = np.finfo(float).eps * abs(loss) / sum(step)
    unknown = np.linalg.norm([*by_chance, share * np.linalg.norm(of_map), share * np.linalg.norm(of_loss), rounding])
    return float(slope), float(unknown)


def _envelope_error(map_: StateEvolution, x: Array, response: Response, moved: Variations) -> float:
    """Standard error of ``E[M]``, of which the conjugates and the slopes are the derivatives in the overlaps."""
    assert map_.last is not None
    hats = map_.last.conjugates.mean()
    dx, _ = propagate(moved.images, np.zeros((len(moved.images), len(response.measured))), response)
    steps: Overlaps = map_.sector.unpack_all(dx)
    pairs = (
        (hats.V_hat, steps.q, 0.5),
        (hats.q_hat, steps.V, -0.5),
        (hats.m_hat, steps.m, -1),
        (hats.theta_hat, steps.theta, -1),
    )
    change = sum(factor * np.einsum("lij,nlij->n", hat[:, 0], step) for hat, step, factor in pairs)
    change = change + map_.alpha * steps.trained @ map_.last.slopes.mean(axis=0)
    return float(np.linalg.norm(moved.energy + change)) / map_.alpha


def stein_violations(
    map_: StateEvolution,
    x: Array,
    response: Response,
    moved: Variations,
    channel: Channel,
    minima: Minima,
    slopes: Array,
    gauges: Callable[[], Sequence[StateEvolution]],
) -> dict[str, tuple[float, float]]:
    """Largest differences of V_hat and theta_hat from the residual's mean derivatives, relative, with their errors.

    Not numbers where the proximal point jumps at places that are not known, where the conjugate vanishes, and by tensor
    rules where q does not depend on it.

    Parameters
    ----------
    map_ : StateEvolution
        Just evaluated at ``x``, the fixed point.
    response, moved
        See `slope_violations`.
    channel, minima : Channel, Minima
        With all of the map's nodes, see `StateEvolution.all_nodes`.
    slopes : array
        Their second `slope_sums`.
    gauges : callable
        The map under rules that tell its error.
    """
    found, rule = dict.fromkeys(LEMMAS, (math.nan, math.nan)), map_.channel.rule
    if rule.from_zero or _jumps_unseen(map_, x):
        return found
    measured = map_.quantities(x, pooled=True)
    assert measured is not None
    whole, scatters, unresolved = _by_slopes(map_, channel, map_.unpack(x), minima, slopes)
    errors = restore_all(moved.values, measured)
    for name, scatter in scatters.items():
        own = measured[name][0]
        size, away = np.abs(own).max(), getattr(whole, name)[:, 0] - own
        if size == 0:
            continue
        error = np.linalg.norm(errors[name], axis=0)
        # what is unresolved is a bound, no standard error
        error = np.hypot(error, scatter if rule.randomised else error) + unresolved[name] / ERRORS
        if not (rule.randomised or rule.latent_first) and away.any():
            # the gauges of a tensor rule are tensor rules, which miss the same fields: this side is to serve q's error
            assert map_.last is not None
            hats, far = map_.last.conjugates.mean(), max(_STEP * size / np.abs(away).max(), 1.0)  # beyond rounding
            shifted = replace(hats, **{name: getattr(hats, name) + far * away[:, None]})
            if (shift := _errors_of_q(map_, x, response, moved, shifted)) == 0:  # q does not know of it
                continue
            error = far * np.abs(away) / shift
        if not rule.randomised and (np.abs(away) > error).any():
            # derivatives are less smooth than what they are derived from, and a rule may be less precise for them
            others = [_of_gauge(gauge, x, name) for gauge in gauges() if gauge(x) is not None]
            error = np.linalg.norm([error, *(other - getattr(whole, name)[:, 0] for other in others)], axis=0)
        worst = np.unravel_index(np.abs(away).argmax(), away.shape)
        found[f"violation_{name}"] = float(away[worst] / size), float(error[worst] / size)
    return found


def _jumps_unseen(map_: StateEvolution, x: Array) -> bool:
    """Whether the proximal point jumps at places that the rule does not locate: local problems have second minima.

    All are searched afresh: which second minima a map knows of depends on the way to the point. Few nodes meet none
    where the jumps still decide the mean derivative, so that Sobol points are searched too.
    """
    own = map_.channel.rule
    # behind a jump that lines have located no node has a second minimum; they search at every point
    if own.lines is not None:
        return bool(map_.second_minimum_share(np.inf).max() > SMOOTH)
    rules = map_.system.refinement_of_solve(own.size)
    for rule in sorted((own, rules.sobol(SINGLE_POINTS)), key=lambda rule: rule.size):
        fresh = StateEvolution(Channel(map_.system, rule), map_.alpha, map_.sector)
        fresh.lift = map_.lift
        fresh(x)
        if fresh.minima is not None and fresh.second_minimum_share(np.inf).max() > SMOOTH:
            return True
    return False


def _of_gauge(map_: StateEvolution, x: Array, name: str) -> Array:
    channel, minima = map_.all_nodes(x)
    slopes = slope_sums(channel, map_.unpack(x), minima)[1]
    found: Array = getattr(_by_slopes(map_, channel, map_.unpack(x), minima, slopes)[0], name)
    return found[:, 0]


def _by_slopes(
    map_: StateEvolution, channel: Channel, overlaps: Overlaps, minima: Minima, sums: Array
) -> tuple[Conjugates, dict[str, Array], dict[str, Array]]:
    """Conjugates by the residual's mean derivatives, their scatter, and what of the jumps is not resolved.

    The scatter of those alone whose derivatives are known.
    """
    assert map_.last is not None
    hats = map_.last.conjugates.mean()
    sides = {"V_hat": mean_slopes(channel, sums)}
    if hats.theta_hat.any() and (of_teacher := teacher_slopes(channel, overlaps, minima)) is not None:
        sides["theta_hat"] = of_teacher
    changed, scatters, unresolved = {}, {}, {}
    for name, side in sides.items():
        slopes, unresolved[name] = (map_.alpha * each for each in side)
        count = slopes.shape[1]
        scatters[name] = slopes.std(axis=1, ddof=min(count - 1, 1)) / np.sqrt(count)
        changed[name] = slopes.mean(axis=1, keepdims=True)
    return map_.sector.symmetrized(replace(hats, **changed)), scatters, unresolved


def _errors_of_q(
    map_: StateEvolution, x: Array, response: Response, moved: Variations, conjugates: Conjugates
) -> float:
    """How many of its errors q moves by under other conjugates, or of the error asked for if that is larger."""
    other = map_.under(conjugates)
    there, here = other.quantities(x, pooled=True), map_.quantities(x, pooled=True)
    assert here is not None
    if there is None:
        return np.inf
    shift = Variations(packed_images(there, other) - packed_images(here, map_), moved.values[:1], moved.energy[:1])
    away, error = (np.linalg.norm(parts_of(map_, x, response, each)) for each in (shift, moved))
    return float(away / max(error, map_.system.problem.integration.standard_error))
