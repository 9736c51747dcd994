"""Where branches begin: at a fold, their spinodal, or continuously from a point without their order parameter.

Near such a point the curve ``alpha(a)`` over the size a of the order parameter is smooth while ``a(alpha)`` is not.  So
the overlaps and alpha are solved for at given a, where nothing is singular, and alpha is fitted by a polynomial in a^2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.arclength import CurvePoint, corrected, trace
from attnphase.fixed_points.continuation import family_of, started, steps_of, system_of
from attnphase.fixed_points.family import Family
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.setting import Setting
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import SMALL_SIGNAL, solve_point, without_signal
from attnphase.fixed_points.threshold import Outcome, Threshold
from attnphase.integration.refinement import REPLICATES
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, silent
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.branches import Branch, Identity
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import Growth, growth_at, has_symmetric_point
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicates import variations
from attnphase.state_evolution.starts import informed_signal, initial_overlaps

__all__ = ["TRANSITIONS", "onset_of", "spinodal_of", "transitions_of", "usual_transitions_cost"]

TRANSITIONS = ("spinodal_semantic", "spinodal_positional", "onset_theta", "onset_m")
"""What `transitions_of` locates."""

_TRACE_POINTS = 256  # Sobol points per replicate of the curve that is followed down to its end
_FIT_POINTS = 4096  # of the places between which alpha is fitted
_GROWTH_POINTS = 8192  # of the growth of m and theta
_AMPLITUDES = 10
_LOWEST = 0.15  # share of the window's largest amplitude: below, single nodes that jump decide
_WINDOW = 0.25  # by how much alpha may exceed its lowest value in the window
_DEGREE = 3  # in a^2
_CLEARLY = 2.0  # standard errors by which a fold must lie below the onset to be one
_SCAN = 12  # sample complexities at which the growth is looked at
_FOLD_COST, _ONSET_COST = 60.0, 40.0  # in solves of the scan; for the progress only
_SETTLED = 1e-3  # relative distance of the last secant step, whose end is not looked at any more
_SECANTS = 6
_FEW_PLACES = "too few points of the curve are known near its lowest alpha"


def usual_transitions_cost() -> float:
    """What `transitions_of` advances by, as a rule."""
    return 2.0 * (_SCAN + _FOLD_COST) + 2.0 * (_SCAN + _ONSET_COST)


@np.errstate(all="ignore")  # what overflows leaves the domain
def transitions_of(
    problem: Problem,
    between: tuple[float, float],
    settings: SolverSettings,
    advance: Callable[[float], None] = lambda _: None,
    tell: Tell = silent,
) -> dict[str, Threshold]:
    """Where the semantic and the positional branch begin, by a fold or continuously.

    Parameters
    ----------
    between : (float, float)
        Range of sample complexities searched.
    advance : callable, optional
        Is told how much more is done, see `usual_transitions_cost`.

    Returns
    -------
    dict
        A threshold for each of `TRANSITIONS`.
    """
    if not problem.integration.form.refines:
        reason = f"the rule {problem.integration.rule} has no replicates to take an error from"
        return dict.fromkeys(TRANSITIONS, Threshold.absent(Outcome.no_replicates, reason))
    problem = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _TRACE_POINTS})
    found = {}
    for branch in ("semantic", "positional"):
        tell(f"fold of the {branch} branch")
        found[f"spinodal_{branch}"] = _searched_spinodal(problem, branch, between, settings, advance)
        advance(_FOLD_COST)
    for name in ("theta", "m"):
        tell(f"onset of {name}")
        found[f"onset_{name}"] = onset_of(problem, name, between, settings, lambda: advance(1.0))
        advance(_ONSET_COST)
    return found


def _searched_spinodal(
    problem: Problem,
    branch: str,
    between: tuple[float, float],
    settings: SolverSettings,
    advance: Callable[[float], None],
) -> Threshold:
    """The spinodal of a branch that is looked for from the lowest alpha upwards."""
    informed = informed_signal(initial_overlaps(problem, branch), branch)
    quick = replace(settings, tolerance=max(settings.tolerance, 1e-6), max_maps=100)
    for i, alpha in enumerate(np.geomspace(*between, _SCAN).tolist()):
        point = solve_point(problem, alpha, branch, settings=quick)
        advance(1.0)
        overlaps = point.restart.overlaps
        if point.status is Status.converged and informed_signal(overlaps, branch) > SMALL_SIGNAL * informed:
            if i == 0:
                reason = f"the {branch} branch is there at alpha = {alpha:.4g} already, where the range begins"
                return Threshold.absent(Outcome.outside_range, reason)
            return spinodal_of(problem, branch, (alpha, overlaps), between[0], settings)
    where = "from alpha = {:.4g} to {:.4g}".format(*between)
    return Threshold.absent(Outcome.no_branch, f"the {branch} branch was found nowhere {where}")


def spinodal_of(
    problem: Problem, branch: str, start: tuple[float, Overlaps], lowest: float, settings: SolverSettings
) -> Threshold:
    """The sample complexity below which a branch does not exist, where it ends at a fold.

    Parameters
    ----------
    start : (float, Overlaps)
        A sample complexity and overlaps of the branch there.
    lowest : float
        Where the search ends.

    Returns
    -------
    Threshold
        ``continuous`` where the order parameter vanishes before the branch turns back: then it ends at its onset.
        ``unsettled`` also where the branch has merged just above a fold that was found: where the order parameter is
        small single nodes that jump bend the curve.
    """
    alpha, overlaps = start
    setting = Setting(problem, alpha)
    coarse = family_of(setting, branch, overlaps, (lowest, alpha), settings, _TRACE_POINTS)
    coarse.measuring = False
    steps = steps_of(coarse, settings, 200)
    place, size = started(coarse, overlaps, alpha, steps.tolerance)
    if size > steps.loose:
        reason = f"the {branch} branch at alpha = {alpha:.4g} was not found again on {_TRACE_POINTS} points"
        return Threshold.absent(Outcome.unsettled, reason)
    amplitude = _amplitude_index(coarse, branch, overlaps)
    points: list[CurvePoint] = []
    turned = False
    for point in trace(coarse, place, -np.eye(len(place))[-1], steps):
        if point.place[-1] * coarse.span < lowest:
            reason = f"the {branch} branch goes on below alpha = {lowest:.4g}, where the range begins"
            return Threshold.absent(Outcome.outside_range, reason)
        if point.place[amplitude] * place[amplitude] <= 0:
            break
        points.append(point)
        turned = point.place[-1] > (1 + 0.5 * _WINDOW) * min(one.place[-1] for one in points)
        if turned:
            break
    values = np.array([one.place[-1] for one in points])
    first = points[int(np.flatnonzero(values <= (1 + _WINDOW) * values.min())[0])]
    share = float(points[-1].place[amplitude] / first.place[amplitude]) if turned else 0.0
    x, value = coarse.split(first.place)
    near = coarse.sector.unpack(x)
    fine = family_of(setting, branch, near, (lowest, alpha), settings, _affordable(_FIT_POINTS, settings))
    fine.measuring = False
    found = _fold(fine, fine.place(near, value), amplitude, share)
    if found.outcome is Outcome.located:
        above = solve_point(problem, (1 + 0.5 * _WINDOW) * found.alpha, branch, settings=settings)
        if above.on_branch is Identity.merged:
            reason = f"at alpha = {above.alpha:.4g}, above the fold that was found, there is no {branch} branch"
            return Threshold.absent(Outcome.unsettled, reason)
    return found


def _affordable(points: int, settings: SolverSettings) -> int:
    """So many Sobol points per replicate, or as many as the settings allow."""
    return min(points, 2 ** int(np.log2(max(settings.max_nodes // REPLICATES, 2))))


def _amplitude_index(family: Family, branch: str, overlaps: Overlaps) -> int:
    """The coordinate of the branch's order parameters that the informed start next to some overlaps has most of."""
    informed = nearest_start(informed_starts(system_of(family.setting, family.settings), branch), overlaps)
    names = Branch.named(branch).order_parameters
    signal = replace(informed, q=0 * informed.q, V=0 * informed.V)
    for name in {"m", "theta"} - {names[0]}:
        signal = replace(signal, **{name: 0 * getattr(signal, name)})
    return int(np.abs(family.sector.pack(signal)).argmax())


def _fold(family: Family, place: Array, amplitude: int, share: float) -> Threshold:
    """The lowest alpha of the curve from a place downwards in the order parameter, to a share of it."""
    across = np.eye(len(place))[amplitude]
    steps = steps_of(family, family.settings, 1)
    # derivatives need fewer nodes than places do
    rule = family.rule
    if rule.randomised:
        rule = system_of(family.setting, family.settings).refinement(family.settings.max_nodes).sobol(_TRACE_POINTS)
    slopes = replace(family, rule=rule, minima=None)
    if slopes.careful(place) is None or (jacobian := slopes.derivative(place)) is None:
        return Threshold.absent(Outcome.unsettled, _FEW_PLACES)
    sizes, alphas, rows = [], [], []
    for size in place[amplitude] * np.linspace(1.0, max(share, _LOWEST), _AMPLITUDES):
        there, residual = _at_size(family, place, across, jacobian, size)
        # where few nodes have led astray, all of them say which way the curve goes
        if residual > steps.loose and (finer := family.derivative(place)) is not None:
            there, residual = _at_size(family, place, across, finer, size)
        if residual > steps.loose or slopes.careful(there) is None or (slope := slopes.derivative(there)) is None:
            continue
        place, jacobian = there, slope
        sizes.append(float(size))
        alphas.append(family.split(place)[1])
        rows.append(_displaced(family, place, np.vstack([jacobian, across])))
    return _lowest(np.array(sizes), np.array(alphas), np.array(rows), to_zero=share <= _LOWEST)


def _at_size(family: Family, place: Array, across: Array, jacobian: Array, size: float) -> tuple[Array, float]:
    """The place of the curve with an order parameter of this size, from one nearby, and its residual."""
    along = np.linalg.lstsq(np.vstack([jacobian, across]), np.eye(len(place))[-1], rcond=None)[0]
    guess = place + (size - across @ place) * along
    found, residual, _ = corrected(family, guess, across, jacobian, steps_of(family, family.settings, 1).tolerance)
    return found, residual


def _displaced(family: Family, place: Array, matrix: Array) -> Array:
    """Displacements of the field's value at a given order parameter, one by each replicate."""
    x, value = family.split(place)
    map_ = family.map_at(value)
    assert map_ is not None
    moved = variations(map_, x, _gauges(family, map_)).images / family.scale
    right = np.vstack([-moved.T, np.zeros(len(moved))])
    return family.span * np.linalg.lstsq(matrix, right, rcond=None)[0][-1]


def _gauges(family: Family, map_: StateEvolution) -> list[StateEvolution]:
    """The map under the rules that one without replicates is held against."""
    rules = map_.system.refinement(family.settings.max_nodes).gauges(family.rule, 1.0)
    found = []
    for rule in rules:
        other = replace(family, rule=rule, minima=None).map_at(map_.alpha)
        assert other is not None  # as the map itself, at the same value
        found.append(other)
    return found


def _lowest(sizes: Array, alphas: Array, rows: Array, *, to_zero: bool) -> Threshold:
    """The minimum of a polynomial in ``a^2`` through ``alpha(a)``, if it lies clearly below the curve's lower end."""
    near = alphas <= (1 + _WINDOW) * alphas.min() if len(alphas) else np.zeros(0, dtype=bool)
    sizes, alphas, rows = sizes[near], alphas[near], rows[near]
    if len(alphas) < _DEGREE + 2:
        return Threshold.absent(Outcome.unsettled, _FEW_PLACES)
    squares = (sizes / sizes.max()) ** 2
    errors = np.sqrt((rows**2).sum(axis=1))
    weights = 1 / np.maximum(errors, 0.1 * float(np.median(errors)) + 1e-300)
    solve = np.linalg.pinv(np.vander(squares, _DEGREE + 1, increasing=True) * weights[:, None]) * weights
    end = 0.0 if to_zero else float(squares.min())

    def ends(values: Array) -> tuple[float, float, bool]:
        """Value at the lower end, the lowest one, and whether that is a minimum."""
        polynomial = np.polynomial.Polynomial(solve @ values)
        flat = polynomial.deriv().roots()
        places = [float(r.real) for r in flat if abs(r.imag) < 1e-9 and end < r.real < 1]
        where = min([end, *places], key=lambda u: float(polynomial(u)))
        return float(polynomial(end)), float(polynomial(where)), where > end

    last, lowest, inside = ends(alphas)
    moved = np.array([ends(alphas + row)[:2] for row in rows.T]) - (last, lowest)
    depth = float(np.sqrt(((moved[:, 0] - moved[:, 1]) ** 2).sum()))
    if not inside or last - lowest < _CLEARLY * depth:
        return Threshold.absent(Outcome.continuous, "the order parameter vanishes where the branch begins")
    return Threshold(lowest, float(np.sqrt((moved[:, 1] ** 2).sum())))


# ------------------------------------------------------------------------------------------------------------- onsets


@dataclass(eq=False)
class _SymmetricPoints:
    """Points without order parameters, each started from the one before, and by what the map multiplies a small one.

    Attributes
    ----------
    problem : Problem
    name : {"m", "theta"}
    settings : SolverSettings
    points : int
        Sobol points per replicate.
    overlaps : Overlaps or None
        Of the last one.
    """

    problem: Problem
    name: str
    settings: SolverSettings
    points: int
    overlaps: Overlaps | None = None

    def _at(self, alpha: float) -> tuple[Family, StateEvolution, Array] | None:
        """The maps about the point at alpha, the one there, evaluated, and the point; None if there is none."""
        if self.overlaps is None:
            nodes = {"integration.rule": "sobol", "integration.nodes": _TRACE_POINTS}
            start = solve_point(self.problem.with_fields(nodes), alpha, "uninformed", settings=self.settings)
            self.overlaps = without_signal(start.restart.overlaps)
        around = (0.5 * alpha, 1.5 * alpha)
        family = family_of(
            Setting(self.problem, alpha), "uninformed", self.overlaps, around, self.settings, self.points
        )
        family.measuring = False
        try:
            place, size = started(family, self.overlaps, alpha, 0.1 * self.settings.tolerance)
        except ArithmeticError:
            return None
        x, map_ = family.split(place)[0], family.map_at(alpha)
        if size > steps_of(family, self.settings, 1).loose or map_ is None or map_(x, refresh=True) is None:
            return None
        self.overlaps = family.sector.unpack(x)
        return family, map_, x

    def symmetric(self, alpha: float) -> bool:
        """Whether m and theta vanish there by symmetry."""
        found = self._at(alpha)
        return found is not None and has_symmetric_point(found[1])

    def excess(self, alpha: float) -> float:
        """The growth minus one; NaN where the point was not found."""
        found = self._at(alpha)
        return float("nan") if found is None else growth_at(found[1], found[2])[self.name].factor - 1.0

    def error(self, alpha: float) -> float:
        """Standard error of the growth: by the means it is made of, and by the point at which they are taken."""
        found = self._at(alpha)
        if found is None:
            return float("nan")
        family, map_, x = found
        growth = growth_at(map_, x)[self.name]
        moved = variations(map_, x, ()).images / family.scale
        jacobian = family.derivative(family.place(map_.unpack(x), alpha))
        if jacobian is None:
            return float("nan")
        displaced = np.linalg.lstsq(jacobian[:, :-1], -moved.T, rcond=None)[0]
        return float(np.sqrt(((growth.rows + self._by_overlaps(family, map_, x, growth) @ displaced) ** 2).sum()))

    def _by_overlaps(self, family: Family, map_: StateEvolution, x: Array, growth: Growth) -> Array:
        """Derivatives of the growth by the coordinates, in units of their scale."""

        def factor(at: Array) -> float | None:
            # minima that are tracked over the step would hide the jumps
            return None if map_(at, refresh=True) is None else growth_at(map_, at)[self.name].factor

        found = []
        for direction in np.diag(0.01 * family.scale):
            # where all weights vanish, q can only grow
            ends = [(side, factor(x + side * direction)) for side in (1, -1)]
            inside = [(side, value) for side, value in ends if value is not None]
            if not inside:
                return np.full(len(x), np.nan)
            (right, upper), (left, lower) = inside if len(inside) == 2 else [*inside, (0, growth.factor)]
            found.append((upper - lower) / (0.01 * (right - left)))
        return np.array(found)


def onset_of(
    problem: Problem,
    name: str,
    between: tuple[float, float],
    settings: SolverSettings,
    advance: Callable[[], None] = lambda: None,
) -> Threshold:
    """The lowest alpha above which a small order parameter grows under the map, at the point without one.

    Parameters
    ----------
    name : {"m", "theta"}
    between : (float, float)
        Range of sample complexities searched.
    """
    scan = _SymmetricPoints(problem, name, settings, _TRACE_POINTS)
    alphas = np.geomspace(*between, _SCAN).tolist()
    if not scan.symmetric(alphas[0]):
        reason = f"m and theta do not vanish by symmetry at alpha = {alphas[0]:.4g}"
        return Threshold.absent(Outcome.no_symmetry, reason)
    before: tuple[float, float] | None = None
    for alpha in alphas:
        excess = scan.excess(alpha)
        advance()
        if before is not None and before[1] <= 0 < excess:
            slope = (excess - before[1]) / (alpha - before[0])
            fine = replace(scan, points=_affordable(_GROWTH_POINTS, settings))
            return _refined_onset(fine, alpha - excess / slope, slope, (before[0], alpha))
        before = alpha, excess
    where = "from alpha = {:.4g} to {:.4g}".format(*between)
    return Threshold.absent(Outcome.outside_range, f"a small {name} begins to grow nowhere {where}")


def _refined_onset(fine: _SymmetricPoints, alpha: float, slope: float, bracket: tuple[float, float]) -> Threshold:
    """The root by secant steps with many fixed nodes; none where it lies outside the scan's bracket."""
    low, high = 0.5 * bracket[0], 2 * bracket[1]
    before: tuple[float, float] | None = None
    for _ in range(_SECANTS):
        excess = fine.excess(alpha)
        if before is not None and alpha != before[0]:
            slope = (excess - before[1]) / (alpha - before[0])
        if not (slope > 0 and low < alpha < high):
            break
        root = alpha - excess / slope
        if abs(excess) <= _SETTLED * slope * alpha:
            if bracket[0] <= root <= bracket[1]:
                return Threshold(root, fine.error(alpha) / slope)
            break
        before, alpha = (alpha, excess), root
    inside = "between alpha = {:.4g} and {:.4g}".format(*bracket)
    reason = f"the growth passes one {inside} on few nodes, but was not found there on many"
    return Threshold.absent(Outcome.unsettled, reason)
