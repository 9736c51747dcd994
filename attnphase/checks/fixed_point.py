"""A solved point by itself: its convergence, its training loss in three ways, its standard errors."""

from __future__ import annotations

import numpy as np

from attnphase.checks.case import Case
from attnphase.checks.report import Check
from attnphase.kernels.local.constants import Starts
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import ERRORS
from attnphase.state_evolution.errors import standard_errors
from attnphase.state_evolution.replicates import variations

__all__ = ["RATE", "STATED", "convergence", "expressions", "rate", "stated_errors"]

RATE, STATED = "rate of the standard errors", "stated errors"
"""Names of the checks of errors that replicates tell, and of all others."""

_COUNTED = {"second_minimum_share"}  # on points of its own
_OUTSIDE = "the map leaves its domain at the fixed point"
_POINTS = (64, 256, 1024)  # Sobol points per replicate, for the rate of the standard errors
# fastest and slowest decay of a standard error with the number of nodes that is believed: scrambled points reach -1.5
# on smooth integrands and come down to it from faster ones, more than -3 among them; replicates that are the same have
# no error at all
_RATES = (-6.0, -0.35)
_RATE_OF_MONTE_CARLO = -0.5


def convergence(case: Case) -> Check:
    """Whether the iteration reached a fixed point."""
    point = case.point
    detail = f"status {point.status.name} after {point.iterations} maps on {point.nodes} nodes"
    if point.status is not Status.converged:
        detail += case.problem.loss.trained_remedy
    return Check("fixed point", point.status is Status.converged, point.residual, case.settings.tolerance, detail)


def expressions(case: Case) -> Check:
    """Training loss by (14), by (121) and as minus the free entropy (104): the same at a fixed point, on any nodes."""
    point = case.point
    map_ = case.map(case.solved_with)
    map_.adopt(point.restart.minima)
    x = map_.pack(point.restart.overlaps)
    measured = map_.measure(x, pooled=True)
    name = "expressions of the training loss"
    if measured is None:
        return Check.left_out(name, _OUTSIDE)
    values = [float(point.values["training_loss"]), float(measured["training_loss_direct"][0]), map_.free_entropy(x)]
    limit = 100 * max(case.settings.tolerance, 1e-9) * max(abs(values[0]), 1e-12)
    return Check.below(name, max(values) - min(values), limit, "(14), (121) and minus the free entropy (104)")


def rate(case: Case) -> Check:
    """How the standard error of the map falls with the number of nodes, where replicates tell it."""
    at, errors = case.point.restart.overlaps, []
    for points in _POINTS:
        hats = case.channel_at(at, case.rules.sobol(points)).evaluate(case.point.alpha, at, Starts.COLD)
        scatter = []
        # entries that vanish by symmetry say nothing by themselves: each quantity is taken as a whole
        for values in (np.moveaxis(hats.conjugates.q_hat, 1, 0), hats.envelope[:, None]):
            flat = values.reshape(len(values), -1)
            scatter.append(np.linalg.norm(flat.std(axis=0, ddof=1)) / max(np.linalg.norm(flat.mean(axis=0)), 1e-300))
        errors.append(float(np.exp(np.mean(np.log(np.clip(scatter, 1e-300, None))))))
    if errors[0] < 1e-12:
        return Check.left_out(RATE, "the integrand is exact on every rule")
    slope = float(np.polyfit(np.log(_POINTS), np.log(errors), 1)[0])
    fine = _RATES[0] <= slope <= _RATES[1]
    detail = f"errors fall like N^{slope:.2f} (Monte Carlo: N^{_RATE_OF_MONTE_CARLO}), from {errors[0]:.1e} relative"
    return Check(RATE, fine, slope, _RATES[1], detail)


def stated_errors(case: Case) -> Check:
    """By how much a finer rule moves the point and what is measured there, in stated errors."""
    point, rule = case.point, case.solved_with
    finer, response = case.rules.finer(rule), point.restart.response
    if finer is None:
        return Check.left_out(STATED, f"there is no finer rule than these {rule.name}")
    if response is None or not response.known:
        return Check.left_out(STATED, "not tried: no derivatives of the map are known at the point")
    map_, fine = case.map(rule), case.map(finer)
    x = map_.pack(point.restart.overlaps)
    measured = map_.measure(x)
    if measured is None:
        return Check.left_out(STATED, _OUTSIDE)
    moved = standard_errors(map_, measured, response, variations(map_, x, (fine,), measured))
    ratios = {}
    for name in moved.keys() & point.errors.keys() - _COUNTED:
        # beside zeros of symmetry, as far as the iteration goes
        allowed = point.errors[name] + case.settings.tolerance * np.abs(point.values[name]).max()
        ratios[name] = float(np.max(moved[name] / np.maximum(allowed, 1e-300)))
    where = max(ratios, key=lambda name: ratios[name])
    detail = f"change from {point.nodes} to {fine.channel.rule.size} nodes in stated errors, largest for {where}"
    return Check.below(STATED, ratios[where], ERRORS, detail)
