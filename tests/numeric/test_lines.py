"""What a finished line of a sweep is known by, and how a branch is followed along alpha: no point is solved here."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from attnphase.errors import ProblemError
from attnphase.fixed_points import branches
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.point import BranchPoint, Restart
from attnphase.fixed_points.settings import SolverSettings
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import branches_of, initial_overlaps
from attnphase.sweeps.grid import sweep
from attnphase.sweeps.line import Line
from attnphase.tracking import iterates

module = import_module("attnphase.sweeps.line")

PAPER = Problem.paper(omega=0.28)
LINE = Line(PAPER, "semantic", (0.7, 1.3), SolverSettings(), "semantic")


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"alphas": (0.7, 1.3000001)},
        {"alphas": (0.7,)},
        {"branch": "positional"},
        {"problem": PAPER.with_fields({"integration.seed": 1})},
        {"problem": PAPER.with_fields({"teacher.omega": 0.29})},
        {"settings": SolverSettings(tolerance=1e-6)},
        {"settings": SolverSettings(method="anderson")},
        {"settings": SolverSettings(max_nodes=2**14)},
    ],
    ids=["alpha", "alphas", "branch", "seed", "omega", "tolerance", "method", "nodes"],
)
def test_a_line_is_known_by_all_that_its_numbers_depend_on(change: dict[str, Any]):
    assert replace(LINE, **change).key != LINE.key


def test_a_line_is_not_known_by_what_its_numbers_do_not_depend_on():
    assert replace(LINE, settings=SolverSettings(threads=1), label="another").key == LINE.key


def test_a_line_is_known_by_the_code_that_makes_it(monkeypatch):
    before = LINE.key
    monkeypatch.setattr(module, "source_hash", lambda: "of other files")
    assert replace(LINE).key != before


@pytest.mark.parametrize(
    ("alpha", "fields"), [([0.5, 1.0, 0.5], {}), ([0.5], {"tokens.sigma": [0.3, 0.4, 0.3]})], ids=["alpha", "field"]
)
def test_a_value_that_is_swept_twice_is_refused(alpha: list[float], fields: dict[str, list[float]]):
    with pytest.raises(ProblemError, match="twice"):
        sweep(PAPER, alpha, fields=fields, workers=1)


# --- following a branch -----------------------------------------------------------------------------------------------


class Solver:
    """In the place of `solve_point`: overlaps that are quadratic in alpha, and what it was asked."""

    def __init__(
        self, lost: tuple[float, ...] = (), collapsed: tuple[float, ...] = (), outside: tuple[float, ...] = ()
    ) -> None:
        self.asked: list[tuple[float, Any]] = []
        self.lost, self.collapsed, self.outside = lost, collapsed, outside

    def overlaps(self, alpha: float) -> Overlaps:
        start = initial_overlaps(PAPER, "semantic")
        share = 1e-4 if alpha in self.collapsed else 0.5 + 0.2 * alpha - 0.03 * alpha**2
        return replace(start, q=(0.8 + 0.1 * alpha + 0.02 * alpha**2) * start.q, theta=share * start.theta)

    def __call__(self, problem: Problem, alpha: float, branch: str, *, start: Any = None, **_: Any) -> BranchPoint:
        self.asked.append((alpha, start))
        status = Status.iteration_limit if alpha in self.lost else Status.converged
        residual = 1.0 if alpha in self.lost else 1e-9
        if alpha in self.outside and start is not None:  # from beside it
            status, residual = Status.left_domain, np.inf
        restart = Restart(self.overlaps(alpha))
        return BranchPoint(problem, alpha, branch, {}, {}, status, residual, 5, "sobol", 64, restart)


def followed(monkeypatch: pytest.MonkeyPatch, solver: Solver, alphas: list[float]) -> list[BranchPoint]:
    monkeypatch.setattr(branches, "solve_point", solver)
    return follow(PAPER, alphas, "semantic")


def test_a_line_begins_at_the_largest_alpha_and_is_extrapolated(monkeypatch):
    """Points come back in the order asked for; each is started where the parabola through the last three leads."""
    solver = Solver()
    points = followed(monkeypatch, solver, [1.1, 2.0, 0.5, 1.5, 0.3])
    assert [point.alpha for point in points] == [1.1, 2.0, 0.5, 1.5, 0.3]
    assert [alpha for alpha, _ in solver.asked] == [2.0, 1.5, 1.1, 0.5, 0.3]
    starts = [start for _, start in solver.asked]
    assert starts[0] is None
    np.testing.assert_allclose(starts[1].restart.overlaps.q, solver.overlaps(2.0).q)
    line = 1.8 * solver.overlaps(1.5).q - 0.8 * solver.overlaps(2.0).q
    np.testing.assert_allclose(starts[2].restart.overlaps.q, line, rtol=1e-12)
    for alpha, start in solver.asked[3:]:
        np.testing.assert_allclose(start.restart.overlaps.q, solver.overlaps(alpha).q, rtol=1e-12)
        np.testing.assert_allclose(start.restart.overlaps.theta, solver.overlaps(alpha).theta, rtol=1e-12)


def test_a_point_that_did_not_converge_is_not_continued(monkeypatch):
    """The next one starts afresh, from the branch's own start."""
    solver = Solver(lost=(1.5,))
    followed(monkeypatch, solver, [2.0, 1.5, 1.0])
    # the lost point is tried again by itself
    assert [alpha for alpha, _ in solver.asked] == [2.0, 1.5, 1.5, 1.0]
    assert solver.asked[2][1] is None
    assert solver.asked[3][1] is None


def test_what_has_left_the_domain_leads_nowhere(monkeypatch):
    """A start that leads out of it is given up for a fresh one."""
    solver = Solver(outside=(1.5, 1.0))
    points = followed(monkeypatch, solver, [2.0, 1.7, 1.5, 1.0, 0.7])
    assert {point.status for point in points} == {Status.converged}
    tried = [(alpha, start is None) for alpha, start in solver.asked]
    assert tried[:2] == [(2.0, True), (1.7, False)]
    assert tried[2:] == [(1.5, False), (1.5, True), (1.0, False), (1.0, True), (0.7, False)]


def test_nothing_begins_where_the_domain_was_left(monkeypatch):
    """Where the fresh start has failed too, the next point does not begin at its overlaps."""
    solver = Solver(collapsed=(1.7,))
    monkeypatch.setattr(Solver, "__call__", _left_at(1.5, Solver.__call__))
    followed(monkeypatch, solver, [2.0, 1.7, 1.5, 1.0])
    assert [(alpha, start is None) for alpha, start in solver.asked][-1] == (1.0, True)


def _left_at(place, solve):
    def solved(self, problem, alpha, branch, **options):
        point = solve(self, problem, alpha, branch, **options)
        return replace(point, status=Status.left_domain, residual=np.inf) if alpha == place else point

    return solved


def test_a_parabola_does_not_reach_over_a_point_that_was_lost(monkeypatch):
    """Points before it lie on another piece of the branch: behind it are one, then two, that belong together."""
    solver = Solver(lost=(1.5,))
    followed(monkeypatch, solver, [2.0, 1.5, 1.0, 0.7, 0.5])
    starts = dict(solver.asked)
    np.testing.assert_allclose(starts[0.7].restart.overlaps.q, solver.overlaps(1.0).q)
    line = solver.overlaps(0.7).q + (0.2 / 0.3) * (solver.overlaps(0.7).q - solver.overlaps(1.0).q)
    np.testing.assert_allclose(starts[0.5].restart.overlaps.q, line, rtol=1e-12)


def test_behind_a_collapsed_point_the_branch_begins_afresh(monkeypatch):
    """It may exist again below, so that the next point has the branch's own start."""
    solver = Solver(collapsed=(1.5,))
    followed(monkeypatch, solver, [2.0, 1.5, 1.0])
    assert [start is None for _, start in solver.asked] == [True, False, True]


# --- GAMP's dynamics --------------------------------------------------------------------------------------------------


def test_every_tracked_iteration_searches_afresh(monkeypatch):
    """As GAMP does; the last minima are further starts, so that only lower ones are found."""
    seen: list[Starts] = []
    evaluate = Channel.evaluate

    def watched(self: Channel, alpha: float, overlaps: Overlaps, starts: Starts, previous: Any = None) -> Any:
        seen.append(starts)
        return evaluate(self, alpha, overlaps, starts, previous)

    monkeypatch.setattr(Channel, "evaluate", watched)
    found = list(iterates(PAPER, 1.6, initial_overlaps(PAPER, "semantic"), 3, points=16))
    assert len(found) == 4
    assert seen == [Starts.COLD, Starts.REFRESH, Starts.REFRESH]


# --- branches ---------------------------------------------------------------------------------------------------------


def test_branches_that_a_problem_has():
    assert branches_of(PAPER) == ["semantic", "positional", "uninformed"]
    assert branches_of(PAPER.with_fields({"student.rank": 2})) == ["semantic", "positional", "uninformed", "mixed"]
    assert branches_of(PAPER.with_fields({"positions.kind": "none", "student.rank": 2})) == ["semantic", "uninformed"]


@pytest.mark.parametrize("norm", [0.4, 1.0, 2.5])
def test_the_positional_start_has_one_size_whatever_the_encodings(norm):
    """``W`` is 0.2 times the unit vector along p: ``m_l = 0.2 |p_l|``, up to the sign of the direction."""
    gram = [[norm**2, -(norm**2)], [-(norm**2), norm**2]]
    start = initial_overlaps(PAPER.with_fields({"positions.gram": gram}), "positional")
    # the principal direction of (p, -p) is that of p, with eigenvalue 2 |p|^2
    np.testing.assert_allclose(np.abs(start.m.ravel()), 0.2 * norm, rtol=1e-9)
