"""A solved point by itself: its convergence, its training loss in three ways, its standard errors."""

from __future__ import annotations

import numpy as np

from attnphase.checks.case import Case
from attnphase.checks.report import Check
from attnphase.kernels.local.constants import Starts
from attnphase.solvers.iteration import Status

__all__ = ["convergence", "expressions", "rate"]

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
    return Check("fixed point", point.status is Status.converged, point.residual, case.settings.tolerance, detail)


def expressions(case: Case) -> Check:
    """Training loss by (14), by (121) and as minus the free entropy (104): the same at a fixed point, on any nodes."""
    point = case.point
    assert point.restart.rule is not None
    map_ = case.map(point.restart.rule)
    map_.adopt(point.restart.minima)
    x = map_.pack(point.restart.overlaps)
    measured = map_.measure(x, pooled=True)
    name = "expressions of the training loss"
    if measured is None:
        return Check.left_out(name, "the map leaves its domain at the fixed point")
    values = [float(point.values["training_loss"]), float(measured["training_loss_direct"][0]), map_.free_entropy(x)]
    limit = 100 * max(case.settings.tolerance, 1e-9) * max(abs(values[0]), 1e-12)
    return Check.below(name, max(values) - min(values), limit, "(14), (121) and minus the free entropy (104)")


def rate(case: Case) -> Check:
    """How the standard error of the map falls with the number of nodes."""
    name = "rate of the standard errors"
    integration = case.problem.integration
    if not integration.form.has_replicates:
        return Check.left_out(name, f"{integration.rule} nodes have no replicates")
    errors = []
    for points in _POINTS:
        hats = case.channel(points).evaluate(case.point.alpha, case.point.restart.overlaps, Starts.COLD)
        scatter = []
        # entries that vanish by symmetry say nothing by themselves: each quantity is taken as a whole
        for values in (np.moveaxis(hats.conjugates.q_hat, 1, 0), hats.envelope[:, None]):
            flat = values.reshape(len(values), -1)
            scatter.append(np.linalg.norm(flat.std(axis=0, ddof=1)) / max(np.linalg.norm(flat.mean(axis=0)), 1e-300))
        errors.append(float(np.exp(np.mean(np.log(np.clip(scatter, 1e-300, None))))))
    if errors[0] < 1e-12:
        return Check.left_out(name, "the integrand is exact on every rule")
    slope = float(np.polyfit(np.log(_POINTS), np.log(errors), 1)[0])
    fine = _RATES[0] <= slope <= _RATES[1]
    detail = f"errors fall like N^{slope:.2f} (Monte Carlo: N^{_RATE_OF_MONTE_CARLO}), from {errors[0]:.1e} relative"
    return Check(name, fine, slope, _RATES[1], detail)
