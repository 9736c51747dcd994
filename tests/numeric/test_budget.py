"""A solve that ends with its time or its maps: its best point, with honest errors, from which another solve goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnphase as ap
from attnphase.data.build import from_points
from attnphase.data.validate import validate_dataset
from attnphase.fixed_points import branches, measuring, trial_amplitudes
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.deadline import Deadline
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity
from tests.numeric.test_assignments import modulated

SETTINGS = SolverSettings(threads=1)
AT_ONCE = 1e-9
FEW = {"integration.rule": "sobol", "integration.nodes": 64}
MIXTURE = {
    "tokens.kind": "mixture",
    "tokens.sigma": None,
    "tokens.clusters": [[{"sigma": 0.52}, {"sigma": 0.61}], [{"sigma": 0.57}]],
    "tokens.law": {"kind": "table", "table": [[0.58], [0.42]]},
}


@dataclass
class Ticks:
    """A clock that goes on by one whenever it is read."""

    read: int = 0

    def __call__(self) -> float:
        self.read += 1
        return float(self.read)


def paper(**fields: Any) -> Problem:
    return Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55, **fields})


def cut(problem: Problem, alpha: float, branch: str, at: float, **settings: Any) -> tuple[Any, Ticks]:
    """What a solve returns whose clock is read so many times before its time is over, and the clock."""
    clock = Ticks()
    point = solve_point(
        problem, alpha, branch, settings=replace(SETTINGS, **settings), deadline=Deadline(at=at, clock=clock)
    )
    return point, clock


# --- where a solve ends -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("branch", "alpha"), [("semantic", 1.63), ("positional", 0.87), ("uninformed", 1.63)])
def test_a_solve_without_time_returns_a_point_of_its_first_map(branch, alpha):
    point = solve_point(paper(), alpha, branch, settings=replace(SETTINGS, max_seconds=AT_ONCE))
    assert point.status is Status.iteration_limit
    assert point.on_branch is Identity.not_decided
    assert 0 < point.iterations <= 2
    assert np.isnan([point.values["overlap_gap"], point.values["replicon"]]).all()
    whole = solve_point(paper(), alpha, branch, settings=SETTINGS)
    for name in ("q", "m", "theta"):
        assert (np.abs(point.values[name] - whole.values[name]) <= 4 * point.errors[name]).all(), name
    validate_dataset(from_points([point]))


@pytest.mark.parametrize(("rule", "alpha", "branch"), [("auto", 0.87, "positional"), ("sobol", 1.63, "semantic")])
def test_wherever_its_time_ends_a_solve_returns_what_it_knows(rule, alpha, branch):
    """A point at rest keeps its status on the rule that it has reached; its error is that of this rule, and true."""
    problem, names = paper(**{"integration.rule": rule}), ("q", "m" if branch == "positional" else "theta")
    whole, clock = cut(problem, alpha, branch, np.inf)
    assert whole.status is Status.converged
    coarser = 0
    for at in range(1, clock.read + 1, 3):
        point, _ = cut(problem, alpha, branch, at)
        assert point.iterations <= whole.iterations
        assert point.status in (Status.converged, Status.iteration_limit)
        if point.status is Status.iteration_limit:
            assert point.on_branch is Identity.not_decided
            continue
        for name in names:
            off, error = np.abs(point.values[name] - whole.values[name]), point.errors[name] + whole.errors[name]
            assert (off <= 4 * error).all(), (at, name)
        if point.nodes < whole.nodes:
            coarser += 1
            assert point.errors["q"].max() > 3 * whole.errors["q"].max()
            assert point.residual <= SETTINGS.tolerance
    assert coarser


def test_no_finer_rule_is_begun_once_all_maps_are_spent():
    problem = paper(**{"integration.rule": "sobol"})
    whole = solve_point(problem, 1.63, settings=SETTINGS)
    first = solve_point(problem, 1.63, settings=replace(SETTINGS, max_nodes=4096))
    cut_off = solve_point(problem, 1.63, settings=replace(SETTINGS, max_maps=first.iterations))
    assert cut_off.status is Status.converged
    assert cut_off.nodes == 4096 < whole.nodes
    assert cut_off.errors["q"].max() > 3 * whole.errors["q"].max()


def test_a_finer_rule_that_the_limit_cuts_off_leaves_the_point_before():
    problem = paper(**{"integration.rule": "sobol"})
    first = solve_point(problem, 1.63, settings=replace(SETTINGS, max_nodes=4096))
    cut_off = solve_point(problem, 1.63, settings=replace(SETTINGS, max_maps=first.iterations + 1))
    assert cut_off.status is Status.converged
    assert cut_off.nodes == 4096
    assert_allclose(cut_off.values["q"], first.values["q"], rtol=1e-12)


def test_minima_that_no_time_is_left_to_look_for_again_are_not_known(monkeypatch):
    monkeypatch.setattr("attnphase.state_evolution.map.StateEvolution.spot_check", lambda *_: False)
    _, clock = cut(paper(**FEW), 1.63, "semantic", np.inf, identity=False, stability=False, max_maps=25)
    points = [cut(paper(**FEW), 1.63, "semantic", at)[0] for at in range(1, clock.read, 3)]
    assert all(point.status is Status.iteration_limit for point in points)


def test_no_stability_is_begun_once_the_time_is_over(monkeypatch):
    begun = []
    monkeypatch.setattr(measuring, "stability_at", lambda *_: begun.append(True))
    point, _ = cut(paper(**FEW), 1.63, "semantic", 1)
    assert begun == []
    assert np.isnan(point.values["overlap_gap"])


def test_no_trial_amplitude_is_begun_once_the_time_is_over(monkeypatch):
    """Below the onset, where several are looked at."""
    clock, begun = Ticks(), []
    take = trial_amplitudes.Sweep.take

    def watched(*given: Any, **how: Any) -> Any:
        begun.append(clock.read)
        return take(*given, **how)

    monkeypatch.setattr(trial_amplitudes.Sweep, "take", watched)
    problem, alpha = paper(), 0.51
    whole = solve_point(problem, alpha, settings=SETTINGS, deadline=Deadline(np.inf, clock))
    assert whole.on_branch is Identity.merged
    assert len(begun) > 3
    end, clock.read = float(begun[2]), 0
    del begun[:]
    point = solve_point(problem, alpha, settings=SETTINGS, deadline=Deadline(end + 0.5, clock))
    assert len(begun) == 3
    assert point.on_branch is Identity.not_decided


def test_of_several_starts_those_are_tried_that_the_time_allows():
    """Two columns that cannot be exchanged have four starts, each of which takes maps."""
    problem = modulated(0, 1).with_fields(FEW)
    point, _ = cut(problem, 4.3, "semantic", 1)
    assert point.status is Status.iteration_limit
    assert point.iterations <= 4


def test_each_point_of_a_line_has_its_own_time_and_is_not_solved_afresh(monkeypatch):
    solved = []

    def watched(*given: Any, **how: Any) -> Any:
        solved.append(how["deadline"].at)
        return solve_point(*given, **how)

    monkeypatch.setattr(branches, "solve_point", watched)
    points = follow(paper(**FEW), [1.1, 1.4, 1.7], "semantic", settings=replace(SETTINGS, max_seconds=AT_ONCE))
    assert [point.status for point in points] == 3 * [Status.iteration_limit]
    assert len(set(solved)) == len(solved) == 3


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "alpha", "branch", "limit"),
    [
        ({}, 1.37, "semantic", {"max_seconds": AT_ONCE}),
        ({}, 1.13, "positional", {"max_maps": 17}),
        ({}, 0.55, "semantic", {"max_maps": 11}),
        ({"integration.rule": "sobol"}, 0.81, "semantic", {"max_maps": 9}),
        ({**FEW, "student.tied": False}, 1.72, "semantic", {"max_maps": 7}),
        ({**FEW, **MIXTURE}, 1.72, "semantic", {"max_maps": 7}),
    ],
)
def test_a_solve_goes_on_from_where_another_was_ended(fields, alpha, branch, limit):
    problem = paper(**fields)
    early = ap.solve(problem, alpha, branch, settings=SolverSettings(threads=1, **limit))
    whole = ap.solve(problem, alpha, branch, settings=SolverSettings(threads=1))
    on = ap.solve(problem, alpha, branch, settings=SolverSettings(threads=1), start=early)
    assert early.iterations < whole.iterations
    assert on.status == whole.status == Status.converged
    assert on.on_branch == whole.on_branch
    for name in ("q", "V", "m", "theta", "test_error", "training_loss"):
        assert_allclose(on[name], whole[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert_allclose(on[f"{name}_stderr"], whole[f"{name}_stderr"], rtol=0.05, atol=1e-9, err_msg=name)


def test_a_point_that_lent_its_derivatives_goes_on_too():
    problem = paper(**{"integration.rule": "sobol"})
    early = solve_point(problem, 1.63, settings=replace(SETTINGS, max_maps=19))
    whole, on = (solve_point(problem, 1.63, start=start, settings=SETTINGS) for start in (None, early))
    assert_allclose(on.values["q"], whole.values["q"], rtol=1e-6)
    assert on.nodes == whole.nodes


def test_every_branch_goes_on_from_its_own_point():
    problem = paper()
    early = ap.solve(problem, 1.63, "all", settings=SolverSettings(threads=1, max_maps=5))
    on, whole = (
        ap.solve(problem, 1.63, "all", settings=SolverSettings(threads=1), start=start) for start in (early, None)
    )
    assert_allclose(on.q, whole.q, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda ds: ds.expand_dims("alpha"), "start must hold one point, but is swept over alpha: take one of them."),
        (
            lambda ds: ds.assign_coords(branch=ds.branch.copy(data="positional")),
            "start has the branch positional, not semantic: solve what it has.",
        ),
    ],
)
def test_a_dataset_without_the_point_is_refused(change, sentence):
    problem = paper(**FEW)
    early = change(ap.solve(problem, 1.63, settings=SolverSettings(threads=1, max_seconds=AT_ONCE)))
    with pytest.raises(ap.errors.ProblemError) as caught:
        ap.solve(problem, 1.7, settings=SolverSettings(threads=1), start=early)
    assert str(caught.value) == sentence
    assert caught.value.field == "start"


def test_a_point_of_another_size_is_refused():
    early = ap.solve(paper(**FEW), 1.63, settings=SolverSettings(threads=1, max_seconds=AT_ONCE))
    with pytest.raises(
        ap.errors.ProblemError, match=r"^start\.q has shape \(2, 1, 1\), but this problem needs \(2, 2, 2\)"
    ):
        ap.solve(paper(**FEW, **{"student.tied": False}), 1.63, settings=SolverSettings(threads=1), start=early)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -0.5, float("nan"), float("inf"), "5", True])
def test_a_time_is_positive(wrong):
    with pytest.raises(
        ap.errors.ProblemError, match=r"^max_seconds must be a positive number of seconds, not "
    ) as caught:
        ap.solve(paper(**FEW), 1.63, settings=SolverSettings(max_seconds=wrong))
    assert caught.value.field == "max_seconds"


def test_a_point_with_derivatives_is_a_start_too():
    problem = ap.Problem.paper(omega=0.3)
    cut = ap.sensitivity(problem, 1.9, field="alpha", settings=ap.SolverSettings(max_maps=30))
    right = ap.solve(problem, 1.9)
    further = ap.solve(problem, 1.9, start=cut)
    assert int(further["iterations"]) < int(right["iterations"])
    np.testing.assert_allclose(further["q"], right["q"], rtol=1e-6)
