"""A solve that ends with its time or its maps: its best point, with honest errors, from which another solve goes on.

Not public: a clock that ticks at every look is given to no public function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from solving import settings, size, solved, word

import attnphase as ap
from attnphase.fixed_points import branches, measuring, trial_amplitudes
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.deadline import Deadline
from attnphase.fixed_points.solver import solve_point

AT_ONCE = 1e-9
FEW = {"integration.rule": "sobol", "integration.nodes": 64}
SOBOL = {"integration.rule": "sobol"}
MIXTURE = {
    "tokens.kind": "mixture",
    "tokens.sigma": None,
    "tokens.clusters": [[{"sigma": 0.52}, {"sigma": 0.61}], [{"sigma": 0.57}]],
    "tokens.law": {"kind": "table", "table": [[0.58], [0.42]]},
}

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


@dataclass
class Ticks:
    """A clock that goes on by one whenever it is read."""

    read: int = 0

    def __call__(self) -> float:
        self.read += 1
        return float(self.read)


def paper(**fields: Any) -> ap.Problem:
    return ap.Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55, **fields})


def cut(problem: ap.Problem, alpha: float, branch: str, at: float, clock: Ticks | None = None, **changes: Any) -> Any:
    """What a solve returns whose clock is read so many times before its time is over."""
    deadline = Deadline(at=at, clock=clock or Ticks())
    return solve_point(problem, alpha, branch, settings=settings(stability=True, **changes), deadline=deadline)


@pytest.mark.parametrize(("branch", "alpha"), [("semantic", 1.63), ("positional", 0.87), ("uninformed", 1.63)])
def test_a_solve_without_time_returns_a_point_of_its_first_map(branch, alpha):
    ds, whole = (solved(paper(), alpha, branch, max_seconds=s, stability=True) for s in (AT_ONCE, None))
    assert (word(ds), word(ds, "on_branch")) == ("iteration_limit", "not_decided")
    assert 0 < int(ds.iterations) <= 2
    assert np.isnan([float(ds.overlap_gap), float(ds.replicon)]).all()
    for name in ("q", "m", "theta"):
        assert (np.abs(ds[name] - whole[name]) <= 4 * ds[f"{name}_stderr"]).all(), name


@pytest.mark.parametrize(("rule", "alpha", "branch"), [("auto", 0.87, "positional"), ("sobol", 1.63, "semantic")])
def test_wherever_its_time_ends_a_solve_returns_what_it_knows(rule, alpha, branch):
    """A point at rest keeps its status on the rule that it has reached; its error is that of this rule, and true."""
    problem, clock, coarser = paper(**{"integration.rule": rule}), Ticks(), 0
    whole = cut(problem, alpha, branch, np.inf, clock)
    assert whole.status.name == "converged"
    for at in range(1, clock.read + 1, 5):
        point = cut(problem, alpha, branch, at)
        assert point.iterations <= whole.iterations
        if point.status.name == "iteration_limit":
            assert point.on_branch.name == "not_decided"
            continue
        for name in ("q", "m", "theta"):
            off, error = np.abs(point.values[name] - whole.values[name]), point.errors[name] + whole.errors[name]
            assert (off <= 4 * error).all(), (at, name)
        if point.nodes < whole.nodes:
            coarser += 1
            assert point.errors["q"].max() > 3 * whole.errors["q"].max()
    assert coarser


def test_no_finer_rule_is_begun_once_all_maps_are_spent():
    """One that the limit cuts off leaves the point before."""
    whole, first = solved(paper(**SOBOL), 1.63), solved(paper(**SOBOL), 1.63, max_nodes=4096)
    for more in (0, 1):
        ds = solved(paper(**SOBOL), 1.63, max_maps=int(first.iterations) + more)
        assert word(ds) == "converged"
        assert int(ds.nodes) == 4096 < int(whole.nodes)
        assert size(ds, "q_stderr") > 3 * size(whole, "q_stderr")
        assert_allclose(ds.q, first.q, rtol=1e-12)


def test_nothing_is_begun_once_the_time_is_over(monkeypatch):
    """No stability, and no trial amplitude below the onset, where several are looked at."""
    begun: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(measuring, "stability_at", lambda *_: begun.append(True))
        assert np.isnan(cut(paper(**FEW), 1.63, "semantic", 1).values["overlap_gap"])
    assert begun == []
    clock, take = Ticks(), trial_amplitudes.Sweep.take

    def watched(*given: Any, **how: Any) -> Any:
        begun.append(clock.read)
        return take(*given, **how)

    monkeypatch.setattr(trial_amplitudes.Sweep, "take", watched)
    assert cut(paper(), 0.51, "semantic", np.inf, clock).on_branch.name == "merged"
    assert len(begun) > 3
    end, clock.read = float(begun[2]), 0
    del begun[:]
    assert cut(paper(), 0.51, "semantic", end + 0.5, clock).on_branch.name == "not_decided"
    assert len(begun) == 3


def test_each_point_of_a_line_has_its_own_time_and_is_not_solved_afresh(monkeypatch):
    deadlines = []

    def watched(*given: Any, **how: Any) -> Any:
        deadlines.append(how["deadline"].at)
        return solve_point(*given, **how)

    monkeypatch.setattr(branches, "solve_point", watched)
    points = follow(paper(**FEW), [1.1, 1.4, 1.7], "semantic", settings=settings(max_seconds=AT_ONCE))
    assert [point.status.name for point in points] == 3 * ["iteration_limit"]
    assert len(set(deadlines)) == len(deadlines) == 3


@pytest.mark.parametrize(
    ("fields", "alpha", "branch", "limit"),
    [
        ({}, 1.37, "semantic", {"max_seconds": AT_ONCE}),
        ({}, 1.13, "positional", {"max_maps": 17}),
        (SOBOL, 0.81, "semantic", {"max_maps": 9}),
        (SOBOL, 1.63, "semantic", {"max_maps": 19}),  # it has lent its derivatives
        ({**FEW, "student.tied": False}, 1.72, "semantic", {"max_maps": 7}),
        ({**FEW, **MIXTURE}, 1.72, "semantic", {"max_maps": 7}),
        ({"integration.standard_error": 1e-2}, 1.63, "all", {"max_maps": 5}),
    ],
    ids=["a first map", "positional", "sobol", "derivatives", "untied", "mixture", "all branches"],
)
def test_a_solve_goes_on_from_where_another_was_ended(fields, alpha, branch, limit):
    problem = paper(**fields)
    early, whole = (solved(problem, alpha, branch, stability=True, **some) for some in (limit, {}))
    on = solved(problem, alpha, branch, early, stability=True)
    assert (early.iterations < whole.iterations).all()
    assert (on.status == 0).all()
    assert (on.on_branch == whole.on_branch).all()
    for name in ("q", "V", "m", "theta", "test_error", "training_loss"):
        assert_allclose(on[name], whole[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert_allclose(on[f"{name}_stderr"], whole[f"{name}_stderr"], rtol=0.05, atol=1e-8, err_msg=name)


def test_a_point_with_derivatives_is_a_start_too():
    early = ap.sensitivity(paper(**SOBOL), 1.9, "alpha", settings=settings(max_maps=19))
    whole, on = (solved(paper(**SOBOL), 1.9, "semantic", start) for start in (None, early))
    assert int(on.iterations) < int(whole.iterations)
    assert_allclose(on.q, whole.q, rtol=1e-6)
