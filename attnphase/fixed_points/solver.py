"""One problem, one sample complexity, one branch: a fixed point with everything measured at it.

A solve ends on as many nodes as the requested standard error needs:

1. find the fixed point on the first rule (damped steps, then Anderson) and its Jacobian by differences;
2. on each finer rule, Newton's method with that Jacobian, kept up to date by Broyden's formula;
3. search every node's local problem again from all starts; go on if a lower minimum turned up;
4. measure, and propagate the replicates' scatter through ``(I - J)^-1`` to every reported quantity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.fixed_points.assumptions import witnesses_at
from attnphase.fixed_points.basin import found_on_first
from attnphase.fixed_points.classification import classified, has_curve
from attnphase.fixed_points.deadline import NEVER, Deadline
from attnphase.fixed_points.derivatives import by_enough_points, derivatives_at, still_known
from attnphase.fixed_points.measuring import SolvedPoint, branch_point, measured_at, unevaluated
from attnphase.fixed_points.other_rules import instead_of_lines, is_contradicted, more_points
from attnphase.fixed_points.point import BranchPoint, Restart
from attnphase.fixed_points.run import FEW_MAPS, FIRST_ROUND, LATER_ROUNDS, MISSED, Run, system_of
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexity
from attnphase.fixed_points.weightless import weightless
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent, within
from attnphase.solvers.iteration import Damped, FixedPoint, Newton, Status
from attnphase.state_evolution.assignments import informed_starts, nearest_start
from attnphase.state_evolution.branches import BRANCHES, ERRORS, Branch, Identity
from attnphase.state_evolution.errors import Response, way_left
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.rest import rests
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import (
    SMALL_SIGNAL,
    check_start,
    informed_signal,
    initial_overlaps,
    surviving,
    vanishes,
    without_signal,
)
from attnphase.state_evolution.system import System

__all__ = ["SMALL_SIGNAL", "merged_point", "solve_point"]

_DECISIVE = 0.1  # of the error asked for, where that leaves open whether there is a branch


@dataclass(frozen=True)
class _Asked:
    """How a point is solved; `only_merged` and `compares` as in `Run`.

    `decisive` if the error has been made small to decide, `beyond` if few nodes have led to the start already.
    """

    settings: SolverSettings
    callback: Callback
    deadline: Deadline
    only_merged: bool = False
    decisive: bool = False
    compares: bool = False
    beyond: bool = False


def solve_point(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    start: Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
    callback: Callback = silent,
    deadline: Deadline | None = None,
) -> BranchPoint:
    """Solve one branch at one sample complexity.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d, positive.
    branch : {"semantic", "positional", "uninformed", "mixed"}
        Names the result and, without `start`, chooses the starting point: of several, where the loss does not treat
        its columns alike, the one that leads to the stable point of lowest training loss.
    start : Overlaps or BranchPoint, optional
        Where to start from; a neighbouring point of the branch also lends its Jacobian.
    settings : SolverSettings, optional
    callback : callable, optional
        Is called with how far the iteration is.
    deadline : Deadline, optional
        By default the solve has all the time of the settings.

    Returns
    -------
    BranchPoint
        Also if the iteration did not converge: look at its status. Where nothing can be evaluated it has no numbers.

    Raises
    ------
    ProblemError
        A value is out of range; the message names it.
    SolverError
        The loss is no number on ordinary fields.
    """
    arguments.instance("problem", problem, Problem)
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, BRANCHES)
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    point = _point(problem, alpha, branch, start, _Asked(settings, callback, deadline or Deadline.of(settings)))
    assert point is not None
    return point


def merged_point(
    problem: Problem,
    alpha: float,
    branch: str,
    start: BranchPoint,
    settings: SolverSettings,
    callback: Callback = silent,
    end: Deadline = NEVER,
) -> BranchPoint | None:
    """What `solve_point` gives if that has merged; None, with nothing more measured, if it has not."""
    return _point(problem, alpha, branch, start, _Asked(settings, callback, end, only_merged=True))


def _point(
    problem: Problem, alpha: float, branch: str, start: Overlaps | BranchPoint | None, asked: _Asked
) -> BranchPoint | None:
    check_affordable(problem)
    informed = initial_overlaps(problem, branch)
    if start is not None:
        check_start(problem, _overlaps_of(start), informed)
    asked = replace(asked, callback=within(f"{branch}, alpha = {alpha:g}", asked.callback))
    # what overflows leaves the domain, which the status says
    with np.errstate(all="ignore"):
        system = system_of(problem, asked.settings, asked.callback)
        starts = informed_starts(system, branch)
        informed = starts[0] if start is None else nearest_start(starts, _overlaps_of(start))
        if start is None and len(starts) > 1:
            return _lowest_of(system, alpha, branch, starts, asked)
        return _solve_point(system, alpha, branch, start, informed, asked)


def _lowest_of(system: System, alpha: float, branch: str, starts: list[Overlaps], asked: _Asked) -> BranchPoint | None:
    """The point of lowest training loss among those of several starts: on a branch and stable, in this order.

    Few nodes tell them apart, without metrics or errors of integration; each start has the maps of the settings. A
    point is stable if no eigenvalue of the map's Jacobian exceeds one. What has not converged on few nodes may on more;
    if it does not, the lowest of those that have takes its place.
    """
    settings, deadline = asked.settings, asked.deadline
    problem = system.problem  # a changed one is checked anew, which takes long for a loss of one's own
    bare = System.of(replace(problem, metrics={}), system.threads) if problem.metrics else system
    few = min(settings.max_nodes, system.refinement(settings.max_nodes).first().size)  # enough to tell losses apart
    quick = replace(settings, stability=False, identity=False, max_nodes=few)
    found: list[tuple[tuple[bool, bool, float], BranchPoint, Overlaps]] = []
    for number, informed in enumerate(starts, 1):
        if found and deadline.passed:
            break
        own = _Asked(quick, within(f"start {number} of {len(starts)}", asked.callback), deadline, compares=True)
        point = _solve_point(bare, alpha, branch, None, informed, own)
        assert point is not None
        gone = informed_signal(point.restart.overlaps, branch) < SMALL_SIGNAL * informed_signal(informed, branch)
        unstable = bool((point.values["map_eigenvalue"] > 1).any())
        if point.status is not Status.left_domain:
            found.append(((gone, unstable, float(point.values["training_loss"])), point, informed))
    if not found:  # the plain start decides where none leads anywhere
        return _solve_point(system, alpha, branch, None, starts[0], asked)
    found.sort(key=lambda one: one[0])
    settled = [one for one in found if one[1].status is Status.converged]
    tried = found[:1] if found[0][1].status is Status.converged else [found[0], *settled[:1]]
    first: BranchPoint | None = None
    for _, best, informed in tried:
        end = _solve_point(system, alpha, branch, best, informed, replace(asked, beyond=True))
        if end is None:
            return None
        end = replace(end, iterations=end.iterations + best.iterations)
        if end.status is Status.converged or deadline.passed:
            return end
        first = first or end
    return first


def _overlaps_of(start: object) -> Overlaps:
    if isinstance(start, BranchPoint):
        return start.restart.overlaps
    if isinstance(start, Overlaps):
        return start
    raise ProblemError("start", f"start must be a dataset of solve, not {arguments.shown(start)}.")


def _solve_point(
    system: System,
    alpha: float,
    branch: str,
    start: Overlaps | BranchPoint | None,
    informed: Overlaps,
    asked: _Asked,
) -> BranchPoint | None:
    previous, point, sector = _beginning(system, start, informed)
    run = Run(system, alpha, asked.settings, sector, asked.callback, asked.deadline)
    run = replace(run, only_merged=asked.only_merged, compares=asked.compares)
    try:
        found = _iterated(run, branch, previous, point, informed, asked)
    except (ArithmeticError, np.linalg.LinAlgError):
        found = None if asked.only_merged else unevaluated(run, branch, point)
    if found is None or asked.decisive:
        return found
    zero = weightless(run, found, informed, lambda run, x: _iterated(run, branch, None, x, informed, asked))
    return zero or _decided(run, branch, found, informed, asked)


def _decided(run: Run, branch: str, found: BranchPoint, informed: Overlaps, asked: _Asked) -> BranchPoint:
    """A point by lines that leaves open whether there is a branch; to a tenth of the error if that decides it.

    Beside the end of a branch few nodes may have no fixed point, and an iteration that leads nowhere.
    """
    rule, settings, integration = found.restart.rule, run.settings, run.system.problem.integration
    open_ = found.status is not Status.left_domain and found.on_branch is Identity.not_decided
    by_lines = rule is not None and rule.lines is not None and integration.nodes is None
    if not (open_ and settings.identity and by_lines) or run.spent:
        return found
    finer = {"integration.standard_error": _DECISIVE * integration.standard_error}
    left = replace(settings, max_maps=settings.max_maps - run.maps)
    system = system_of(run.system.problem.with_fields(finer), left)
    end = _solve_point(system, run.alpha, branch, found, informed, replace(asked, settings=left, decisive=True))
    if end is None or end.status is not Status.converged or end.on_branch is Identity.not_decided:
        return replace(found, iterations=found.iterations + (0 if end is None else end.iterations))
    return replace(end, problem=found.problem, iterations=found.iterations + end.iterations)


def _iterated(
    run: Run, branch: str, previous: Restart | None, point: Overlaps, informed: Overlaps, asked: _Asked
) -> BranchPoint | None:
    """Where the iteration leads from a point, beside a neighbour or not."""
    settings, callback = run.settings, run.callback
    run.gap = run.gap if previous is None else previous.gap
    rules = run.system.refinement_of_solve(settings.max_nodes)
    refine = settings.method == "newton" and rules.refines
    response, jacobian = _lent(previous, run.sector) if previous and refine else (None, None)
    second_minima = float(run.system.problem.loss.form.is_rough)  # there no tensor rule knows its error
    rule = rules.single() if not refine else _first_rule(rules, previous, response, asked)
    spent = 0  # nodes of all rules together
    solved: SolvedPoint | None = None  # at rest on the rule before

    def decays(x: Array, image: Array) -> bool:
        return _decays(map_, FixedPoint(x, image, np.inf, 0, Status.iteration_limit), informed, branch)

    while True:
        map_, began = run.map(rule), point
        if previous is not None and previous.rule is map_.channel.rule:
            map_.adopt(previous.minima)
        x = map_.pack(point)
        if not refine:
            found = _on_one_rule(run, map_, x)
        elif jacobian is None:
            found, response = found_on_first(run, rules, map_, x)
        else:
            found = run.newton(map_, x, jacobian)
            if solved is not None and run.cuts(found):
                break
            response = None if response is None else still_known(run, map_, found, response)
        map_.lift = found.status is Status.left_domain  # measured where it was left behind; its status says so
        if not run.late and _decays(map_, found, informed, branch):
            return _without_signal(run, surviving(map_.unpack(found.point), informed, branch), informed, branch)
        if response is None:
            response = derivatives_at(run, rules, map_, found.point)
            if found.status is Status.converged and not response.known:
                found = replace(found, status=Status.left_domain)
        callback(f"measuring on {map_.channel.rule.size} nodes")
        measured = measured_at(run, rules, map_, found, response)
        solved = SolvedPoint(map_, found, measured, response)
        # never back to a Gauss-Hermite rule once a rule has seen the minimiser jump
        second_minima = max(second_minima, map_.rough_share)
        if found.status is not Status.converged:
            if (instead := more_points(run, rules, map_) if refine else None) is not None:
                point = map_.unpack(found.point) if np.isfinite(found.residual) else began
                rule, jacobian, response, second_minima, solved = instead, None, None, 1.0, None
                continue
            found = _accepted(run, rules, solved, found) if refine else found
            solved = replace(solved, found=found)
        if found.status is not Status.converged:
            insists = asked.decisive or rule.lines is None or not has_curve(run, branch)
            insists &= refine and not (run.compares and _is_within_errors(run, solved, found))
            insists &= not rests(run.system, map_.unpack(found.point))  # then zero weights are where it ends
            last = run.insisting(map_, found, decays) if insists else found
            if last is found:
                break
            point, jacobian, response, solved = map_.unpack(last.point), response.jacobian, None, None  # of far away
            continue
        going = refine and not run.spent
        finer = rules.next(rule, measured.relative_error, second_minima, measured.parts) if going else None
        spent += map_.channel.rule.size
        if going and measured.relative_error > rules.asked.standard_error:
            finer = instead_of_lines(run, rules, solved, None if finer is None else spent) or finer
        if finer is None and is_contradicted(run, rules, solved):
            measured, second_minima = measured_at(run, rules, map_, found, response), 1.0
            solved = replace(solved, measured=measured)
            finer = more_points(run, rules, map_) if refine else None
        if finer is None:
            break
        point, jacobian = map_.unpack(found.point), response.jacobian
        if not (rule.randomised and finer.randomised):
            response = None  # a few nodes of a rule without chance tell it better
        rule = finer
    return _finished(run, rules, solved, informed, branch, newton=refine)


def _merged(run: Run, rules: Refinement, solved: SolvedPoint, informed: Overlaps, branch: str) -> BranchPoint | None:
    """The uninformed point where nodes may have made a point without a branch, which only that one can tell."""
    asked = run.settings.identity and not run.late and solved.identity is Identity.not_decided
    if not (asked and solved.overlaps.has_signal and has_curve(run, branch)):
        return None
    uninformed, few = without_signal(solved.overlaps), min(run.settings.max_nodes, rules.first().size)
    bare = replace(run, settings=replace(run.settings, stability=False, identity=False, max_nodes=few))
    rough = _without_signal(bare, uninformed, informed, branch)
    if rough is not None and _is_lower(solved, rough):
        return None
    # a point that does not settle among its lowest minima is none
    point = _without_signal(run, uninformed, informed, branch, only_merged=not run.unsettled)
    return None if point is None or point.status is not Status.converged or _is_lower(solved, point) else point


def _is_lower(solved: SolvedPoint, other: BranchPoint) -> bool:
    """Whether a point has a smaller training loss than an uninformed one with which it is not known to have merged."""
    if other.status is not Status.converged or other.on_branch is Identity.merged:
        return False
    (own, error), (its, its_error) = (
        (float(values["training_loss"]), float(errors["training_loss"]))
        for values, errors in ((solved.measured.values, solved.measured.errors), (other.values, other.errors))
    )
    return its - own > ERRORS * np.hypot(error, its_error)


def _without_signal(
    run: Run, point: Overlaps, informed: Overlaps, branch: str, *, only_merged: bool = False
) -> BranchPoint | None:
    """The fixed point beside one without an order parameter, to which an iteration is on its slow way."""
    left = replace(run.settings, max_maps=max(run.settings.max_maps - run.maps, 50))
    only_merged |= run.only_merged  # whoever asks decides
    asked = _Asked(left, run.callback, run.deadline, only_merged, decisive=True)
    end = _solve_point(run.system, run.alpha, branch, point, informed, asked)
    return None if end is None else replace(end, iterations=end.iterations + run.maps)


def _beginning(
    system: System, start: Overlaps | BranchPoint | None, informed: Overlaps
) -> tuple[Restart | None, Overlaps, Sector]:
    """What a neighbouring point lends, where the iteration begins, and the sector that it stays in."""
    previous = start.restart if isinstance(start, BranchPoint) else None
    point = previous.overlaps if previous else informed
    if isinstance(start, Overlaps):
        point = system.in_gauge(start, informed)
    # a neighbour counts as informed even where its order parameter is small, unless it is exactly uninformed
    exact = isinstance(start, Overlaps) or (previous is not None and not point.has_signal)
    return previous, point, system.sector_of(point if exact else informed)


def _lent(previous: Restart, sector: Sector) -> tuple[Response | None, Array | None]:
    """A neighbour's derivatives, which serve again until Newton's method has trouble with them, and its learnt ones."""
    response, learnt = previous.response, previous.jacobian
    if response is None or len(response.jacobian) != sector.basis.shape[1] or not response.known:
        return None, None
    return response, learnt if learnt is not None and learnt.shape == response.jacobian.shape else response.jacobian


def _finished(
    run: Run, rules: Refinement, solved: SolvedPoint, informed: Overlaps, branch: str, *, newton: bool
) -> BranchPoint | None:
    """A fixed point in its lowest minima with its identity and all that is measured."""
    map_, response = solved.map_, solved.response
    jacobian = learnt = response.jacobian
    if run.jacobian is not None and run.jacobian.shape == jacobian.shape:
        learnt = run.jacobian

    def again(x: Array) -> FixedPoint:
        return _accepted(run, rules, solved, run.newton(map_, x, jacobian)) if newton else _on_one_rule(run, map_, x)

    def with_identity(solved: SolvedPoint) -> SolvedPoint:
        return classified(run, rules, by_enough_points(run, rules, solved), informed, branch)

    solved = _at_rest(run, rules, _verified(run, rules, solved, again, FIRST_ROUND))
    if not run.compares and (seen := witnesses_at(solved)):
        system = replace(run.system, witnesses=(*run.system.witnesses, *seen))
        return _without_signal(replace(run, system=system), solved.overlaps, informed, branch)
    if not run.late and _decays(solved.map_, solved.found, informed, branch):
        return _without_signal(run, surviving(solved.overlaps, informed, branch), informed, branch)
    solved = with_identity(solved)
    if (merged := _merged(run, rules, solved, informed, branch)) is not None:
        return merged
    if run.unsettled and not run.compares:
        solved = with_identity(_verified(run, rules, solved, again, LATER_ROUNDS))
    if run.only_merged and (solved.identity is not Identity.merged or solved.found.status is not Status.converged):
        return None
    left = learnt if newton and solved.response is response else None
    return branch_point(run, branch, solved.map_, solved.found, solved.measured, solved.response, solved.identity, left)


def _on_one_rule(run: Run, map_: StateEvolution, x: Array) -> FixedPoint:
    """Where a method leads that does not refine; Newton's has no coarse solution to start from there."""
    return run.iterate(map_, x, Damped()) if run.settings.method == "damped" else run.persistent(map_, x)


def _is_within_errors(run: Run, solved: SolvedPoint, found: FixedPoint) -> bool:
    """Whether an iteration near a solved point has less of its way left than the errors of integration by points.

    On the way to the tolerance single nodes jump; of more nodes each jumps by less.
    """
    map_, moved = solved.map_, solved.measured.moved
    if not map_.channel.rule.randomised or found.status is not Status.iteration_limit:
        return False
    left = found.image - found.point
    return way_left(map_, found.point, left, solved.response, moved, run.settings.tolerance) <= 1


def _accepted(run: Run, rules: Refinement, solved: SolvedPoint, found: FixedPoint) -> FixedPoint:
    """A point as converged if nodes that jump may be all that it lacks: as many as may be in wrong minima."""
    few = found.residual <= MISSED * rules.asked.standard_error and not (run.compares or run.spent)
    return replace(found, status=Status.converged) if few and _is_within_errors(run, solved, found) else found


def _verified(
    run: Run, rules: Refinement, solved: SolvedPoint, again: Callable[[Array], FixedPoint], rounds: range
) -> SolvedPoint:
    """A point after some rounds of search for lower minima."""
    if run.compares:  # by the losses of the lowest minima where they are
        solved.map_(solved.found.point, refresh=True)
        return replace(solved, measured=measured_at(run, rules, solved.map_, solved.found, solved.response))
    found = run.verified(solved.map_, solved.found, solved.measured.relative_error, again, rounds)
    if found is solved.found or (run.late and found.image is solved.found.image):
        return replace(solved, found=found)
    there = derivatives_at(run, rules, solved.map_, found.point)
    response = there if there.known else solved.response
    measured = measured_at(run, rules, solved.map_, found, response)
    return replace(solved, found=found, measured=measured, response=response)


def _at_rest(run: Run, rules: Refinement, solved: SolvedPoint) -> SolvedPoint:
    """A point that is iterated further where the iteration has left more of the way than its tolerance and its errors.

    A residual r leaves ``(I - J)^-1 r``: where an eigenvalue of the map is near 1, many times the tolerance, and the
    more of it the nearer the point comes.
    """
    while solved.found.status is Status.converged and not (run.late or run.compares):
        map_, found, response = solved.map_, solved.found, solved.response
        image = map_(found.point)
        if image is None:
            return solved
        left = way_left(map_, found.point, image - found.point, response, solved.measured.moved, run.settings.tolerance)
        if not left > 1:
            return solved
        further = run.iterate(map_, found.point, Newton(response.jacobian.copy()), FEW_MAPS, found.residual / left)
        if not further.residual < found.residual:
            return solved
        response = derivatives_at(run, rules, map_, further.point)
        if not response.known:
            return solved
        # it had converged before
        found = replace(further, status=Status.converged)
        measured = measured_at(run, rules, map_, found, response)
        solved = replace(solved, found=found, response=response, measured=measured)
    return solved


def _first_rule(rules: Refinement, previous: Restart | None, response: Response | None, asked: _Asked) -> Rule:
    """The first one of all, or where a neighbour's derivatives are known the one to begin with beside it."""
    if response is None or previous is None or previous.rule is None:
        return rules.first()
    if asked.beyond and previous.rule.randomised:
        return rules.next(previous.rule, np.inf, 1.0) or rules.first()
    return rules.beside(previous.rule)


def _decays(map_: StateEvolution, found: FixedPoint, informed: Overlaps, branch: str) -> bool:
    """Whether an iteration is on its way to the uninformed point, or as near as it comes.

    Near a spinodal the order parameter shrinks by a few per cent a map. Where it is small already and its image is
    smaller still, the branch has no fixed point of its own here, unless something else still moves by a larger share.
    """
    if not Branch.named(branch).is_informed or not map_.system.has_even_loss:
        return False
    overlaps = map_.unpack(found.point)
    small = informed_signal(overlaps, branch)
    if found.status is Status.converged:
        return small > 0 and vanishes(map_.system.problem, overlaps, branch)
    if not 0 < small < SMALL_SIGNAL * informed_signal(informed, branch):
        return False
    moved = np.abs(found.image - found.point) / map_.scales(found.point)
    return informed_signal(map_.unpack(found.image), branch) < small and moved[map_.sector.odd].max() == moved.max()
