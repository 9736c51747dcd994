"""What is measured at a fixed point, with its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.identities import slope_violations
from attnphase.fixed_points.optimum import METRICS
from attnphase.fixed_points.point import BranchPoint, Restart
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.stability import NOT_COMPUTED, leading_eigenvalues, minimises, stability_at
from attnphase.fixed_points.verdict import SLOPES
from attnphase.integration.refinement import COARSE_POINTS, Refinement
from attnphase.solvers.iteration import FixedPoint, Status
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import (
    Response,
    parts_of,
    relative_error,
    residual_errors,
    response_at,
    standard_errors,
)
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.metrics import metrics_at
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import Variations, flatten, restore, variations
from attnphase.state_evolution.starts import vanishes

__all__ = ["Measured", "SolvedPoint", "branch_point", "gauges_at", "measured_at", "unevaluated"]

_NEARBY = 1.25  # factor by which the distance of derivatives to the point may raise their error


@dataclass(frozen=True, eq=False)
class Measured:
    """Everything measured at a fixed point under one rule, with its errors.

    Attributes
    ----------
    values, errors : dict of str to array or float
    relative_error : float
        Of q, by integration: without what the iteration has left.
    moved : Variations
        What the errors of integration are made of.
    parts : (n,) array
        Relative error of q by each row of these.
    """

    values: dict[str, Any]
    errors: dict[str, Any]
    relative_error: float
    moved: Variations
    parts: Array


@dataclass(frozen=True, eq=False)
class SolvedPoint:
    """A fixed point with everything known of it.

    Attributes
    ----------
    map_ : StateEvolution
    found : FixedPoint
    measured : Measured
    response : Response
    identity : Identity
    """

    map_: StateEvolution
    found: FixedPoint
    measured: Measured
    response: Response
    identity: Identity = Identity.on_branch

    @property
    def overlaps(self) -> Overlaps:
        """The point's."""
        return self.map_.unpack(self.found.point)


def gauges_at(run: Run, rules: Refinement, map_: StateEvolution) -> list[StateEvolution]:
    """The map under the rules that tell its error, where it was just evaluated; none where its replicates do.

    They are the last ones if these are of the same rules: they know the minima of their nodes nearby.
    """
    if run.compares:
        return []
    asked = rules.gauges(map_.channel.rule, 1.0 if run.contradicted else map_.rough_share), map_.sector
    if run.gauges is None or run.gauges[0] != asked:
        gauges = [StateEvolution(Channel(run.system, gauge), map_.alpha, map_.sector) for gauge in asked[0]]
        run.gauges = asked, gauges
    for gauge in run.gauges[1]:
        gauge.lift = False
    return run.gauges[1]


def measured_at(run: Run, rules: Refinement, map_: StateEvolution, found: FixedPoint, response: Response) -> Measured:
    """Measure at the point found, with errors of integration and of the iteration.

    Raises
    ------
    ArithmeticError
        The point lies outside the domain of the map, though the iteration converged or the map is lifted.
    """
    measured = map_.measure(found.point)
    if measured is None and found.status is not Status.converged:
        # at the edge of the domain a descent that ends elsewhere is enough to leave it
        map_.lift = True
        measured = map_.measure(found.point)
    if measured is None:
        raise ArithmeticError("the starting point lies outside the domain of the state-evolution map")
    moved = variations(map_, found.point, gauges_at(run, rules, map_), measured)
    errors = standard_errors(map_, measured, response, moved)
    overlaps = map_.unpack(found.point).possible(run.system.spectrum.rho)
    of_integration = relative_error(errors["q"], overlaps.q, run.system.spectrum.rho)
    image, floored = map_(found.point), map_.pack(map_.channel.floored(map_.unpack(found.point)))
    assert image is not None
    left = residual_errors(map_, measured, response, image - found.point, floored - found.point)
    errors = {name: error + left[name] for name, error in errors.items()}
    pooled = map_.quantities(found.point, pooled=True)
    assert pooled is not None
    values = restore(flatten(pooled)[0], pooled)
    V = 0 * overlaps.V if map_.prior.at_rest else overlaps.V
    values |= {"q": overlaps.q, "V": V, "m": overlaps.m[..., 0], "theta": overlaps.theta}
    values |= {"trained": overlaps.trained} if len(overlaps.trained) else {}
    parts = parts_of(map_, found.point, response, moved)
    return Measured(values, errors, of_integration, moved, parts)


def branch_point(
    run: Run,
    branch: str,
    map_: StateEvolution,
    found: FixedPoint,
    result: Measured,
    response: Response,
    identity: Identity = Identity.on_branch,
    jacobian: Array | None = None,
) -> BranchPoint:
    """The point with everything that its dataset holds.

    It is on no branch where it has not converged, or an order parameter of the branch vanishes.
    """
    values, errors = dict(result.values), dict(result.errors)
    direct = values.pop("training_loss_direct")
    errors.pop("training_loss_direct")
    values["free_energy_gap"] = abs(direct - map_.free_entropy(found.point))
    values["linear_test_error"], errors["linear_test_error"] = linear_test_error(run.system)
    metrics = metrics_at(map_, found.point, response, result.moved, run.settings.max_nodes)
    values, errors = values | metrics[0], errors | metrics[1]
    values["unsolved_nodes"] = map_.unsolved
    if map_.channel.rule.lines is not None:
        counted = _second_minima(run, map_, found.point)
        values["second_minimum_share"], errors["second_minimum_share"] = counted
    asked = run.settings.stability and not run.late

    def gauges() -> list[StateEvolution]:
        return gauges_at(run, run.system.refinement_of_solve(run.settings.max_nodes), map_)

    here = _derivatives_here(run, map_, found, response)
    stability = stability_at(map_, found, values, here, result.moved, gauges, run.gap) if asked else NOT_COMPUTED
    values, errors = values | leading_eigenvalues(response.jacobian) | stability.values, errors | stability.errors
    if found.status is Status.converged and here.known:
        slopes = slope_violations(map_, found.point, here, result.moved, result.errors)
    else:
        slopes = dict.fromkeys(SLOPES, (np.nan, np.nan))
    values |= {name: violation for name, (violation, _) in slopes.items()}
    errors |= {name: error for name, (_, error) in slopes.items()}
    # where a local problem has no minimum, V lies outside the domain, wherever the iteration ended; and a point that is
    # stationary in a trained parameter may be a maximum, as the response says if it is known
    gap = float(stability.values["overlap_gap"])
    knows = found.status is Status.converged and response.known
    lowest = minimises(map_, response) if knows else map_.curves_upwards(found.point)
    status = found.status if lowest and not map_.bottomless else Status.left_domain
    overlaps = map_.unpack(found.point)
    if status is not Status.converged or vanishes(run.system.problem, overlaps, branch):
        identity = Identity.not_decided if identity is Identity.on_branch else identity
    rule = map_.channel.rule
    return BranchPoint(
        problem=run.system.problem,
        alpha=run.alpha,
        branch=branch,
        values=values,
        errors=errors,
        status=status,
        residual=found.residual,
        iterations=run.maps,
        rule=rule.name,
        nodes=rule.size,
        restart=Restart(
            overlaps=overlaps,
            response=response,
            rule=rule,
            minima=map_.minima,
            gap=None if np.isnan(gap) else gap,
            jacobian=jacobian,
        ),
        on_branch=identity,
        zero_weights=map_.unpack(found.point).vanish(run.system.spectrum.rho, run.system.units.weights),
        replicates=rule.replicates,
    )


def _derivatives_here(run: Run, map_: StateEvolution, found: FixedPoint, known: Response) -> Response:
    """Derivatives at the point, for identities that must not depend on the way there; known ones may be of nearby."""
    # of nearby too, if the distance adds little to the error that the differences have themselves
    there = known.inexact_at(found.point, map_.scales(found.point)) <= _NEARBY * known.inexact
    if there or found.status is not Status.converged or run.late:
        return known
    rules = run.system.refinement_of_solve(run.settings.max_nodes)
    try:
        return response_at(map_, found.point, rules.of_derivatives(map_.channel.rule))
    except ArithmeticError:
        return known


def _second_minima(run: Run, map_: StateEvolution, x: Array) -> tuple[float, float]:
    """The share of samples with a second minimum nearly as low, and its error.

    By Sobol points: few nodes of lines lie so near to the jumps.
    """
    rule = run.system.refinement_of_solve(run.settings.max_nodes).sobol(COARSE_POINTS)
    points = StateEvolution(Channel(run.system, rule), map_.alpha, map_.sector)
    points.lift = True
    points(x)
    if points.minima is None:
        return np.nan, np.nan
    shares = points.nearly_degenerate_share()
    return float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(len(shares)))


def unevaluated(run: Run, branch: str, start: Overlaps) -> BranchPoint:
    """The point of a solve that cannot be evaluated where it starts: without numbers, outside the domain.

    The linear predictor has its test error all the same. A dataset fills in what is missing.
    """
    overlaps = {"q": start.q, "V": start.V, "m": start.m[..., 0], "theta": start.theta}
    arrays = {name: np.full(entries.shape, np.nan) for name, entries in overlaps.items()}
    values: dict[str, Any] = arrays | {f"{name}_hat": entries for name, entries in arrays.items()}
    values |= {"trained": np.full(len(start.trained), np.nan)} if len(start.trained) else {}
    metrics = (*METRICS, *(f"metric_{name}" for name in run.system.problem.metrics))
    values |= dict.fromkeys(metrics, np.nan) | NOT_COMPUTED.values
    errors = dict(values)
    values["linear_test_error"], errors["linear_test_error"] = linear_test_error(run.system)
    values |= leading_eigenvalues(np.array([[np.nan]]))
    rule = run.system.refinement_of_solve(run.settings.max_nodes).first()
    return BranchPoint(
        problem=run.system.problem,
        alpha=run.alpha,
        branch=branch,
        values=values,
        errors=errors,
        status=Status.left_domain,
        residual=np.nan,
        iterations=run.maps,
        rule=rule.name,
        nodes=rule.size,
        restart=Restart(overlaps=start),
        on_branch=Identity.not_decided,
    )
