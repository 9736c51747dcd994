"""How a branch is followed along alpha, what a finished line is known by, and what ``branch="all"`` solves.

Not public: a line shows its starts by its speed alone; here a made-up solver notes them.
"""

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run
from models import model
from solving import settings

import attnphase as ap
from attnphase.fixed_points import branches
from attnphase.fixed_points.branches import follow
from attnphase.fixed_points.point import BranchPoint, Restart
from attnphase.kernels.local.constants import Starts
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.sweeps.line import Line

PAPER = ap.Problem.paper(omega=0.28)
FEW = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
LINE = Line(PAPER, "semantic", (0.7, 1.3), ap.SolverSettings(), "semantic")

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


@pytest.mark.parametrize(
    "change",
    [
        {"alphas": (0.7, 1.3000001)},
        {"alphas": (0.7,)},
        {"branch": "positional"},
        {"problem": PAPER.with_fields({"integration.seed": 1})},
        {"problem": PAPER.with_fields({"teacher.omega": 0.29})},
        {"settings": ap.SolverSettings(tolerance=1e-6)},
        {"settings": ap.SolverSettings(method="anderson")},
        {"settings": ap.SolverSettings(max_nodes=2**14)},
    ],
    ids=["alpha", "alphas", "branch", "seed", "omega", "tolerance", "method", "nodes"],
)
def test_a_line_is_known_by_all_that_its_numbers_depend_on(change: dict[str, Any]):
    assert replace(LINE, **change).key != LINE.key
    assert replace(LINE, settings=ap.SolverSettings(threads=1), label="another").key == LINE.key


def test_a_line_is_known_by_the_code_that_makes_it(monkeypatch):
    before = LINE.key
    monkeypatch.setattr(import_module("attnphase.sweeps.line"), "source_hash", lambda: "of other files")
    assert replace(LINE).key != before


@pytest.mark.parametrize(("alpha", "fields"), [([0.5, 1.0, 0.5], {}), ([0.5], {"tokens.sigma": [0.3, 0.4, 0.3]})])
def test_a_value_that_is_swept_twice_is_refused(alpha, fields):
    with pytest.raises(ap.errors.ProblemError, match="twice"):
        ap.sweep(PAPER, alpha, fields=fields, workers=1)


class Solver:
    """In the place of `solve_point`: overlaps that are quadratic in alpha, and what it was asked.

    A solve at `lost` does not converge; at `outside` one from beside leaves the domain, at `hopeless` each does.
    """

    def __init__(self, lost=(), collapsed=(), outside=(), hopeless=()) -> None:
        self.asked: list[tuple[float, Any]] = []
        self.lost, self.collapsed, self.outside, self.hopeless = lost, collapsed, outside, hopeless

    def overlaps(self, alpha: float) -> Overlaps:
        start = initial_overlaps(PAPER, "semantic")
        share = 1e-4 if alpha in self.collapsed else 0.5 + 0.2 * alpha - 0.03 * alpha**2
        return replace(start, q=(0.8 + 0.1 * alpha + 0.02 * alpha**2) * start.q, theta=share * start.theta)

    def __call__(self, problem, alpha: float, branch: str, *, start: Any = None, **_: Any) -> BranchPoint:
        self.asked.append((alpha, start))
        status, residual = (Status.iteration_limit, 1.0) if alpha in self.lost else (Status.converged, 1e-9)
        if alpha in self.hopeless or (alpha in self.outside and start is not None):
            status, residual = Status.left_domain, np.inf
        restart = Restart(self.overlaps(alpha))
        return BranchPoint(problem, alpha, branch, {}, {}, status, residual, 5, "sobol", 64, restart)


def followed(monkeypatch: pytest.MonkeyPatch, alphas: list[float], branch: Any = "semantic", **places: Any) -> Solver:
    solver = Solver(**places)
    monkeypatch.setattr(branches, "solve_point", solver)
    assert [point.alpha for point in follow(PAPER, alphas, branch)] == alphas
    return solver


def test_a_line_begins_at_the_largest_alpha_and_is_extrapolated(monkeypatch):
    """Points come back in the order asked for; each is started where the parabola through the last three leads."""
    solver = followed(monkeypatch, [1.1, 2.0, 0.5, 1.5, 0.3])
    assert [alpha for alpha, _ in solver.asked] == [2.0, 1.5, 1.1, 0.5, 0.3]
    starts = [start for _, start in solver.asked]
    assert starts[0] is None
    np.testing.assert_allclose(starts[1].restart.overlaps.q, solver.overlaps(2.0).q)
    line = 1.8 * solver.overlaps(1.5).q - 0.8 * solver.overlaps(2.0).q
    np.testing.assert_allclose(starts[2].restart.overlaps.q, line, rtol=1e-12)
    for alpha, start in solver.asked[3:]:
        np.testing.assert_allclose(start.restart.overlaps.q, solver.overlaps(alpha).q, rtol=1e-12)
        np.testing.assert_allclose(start.restart.overlaps.theta, solver.overlaps(alpha).theta, rtol=1e-12)


@pytest.mark.parametrize(
    ("alphas", "places", "asked"),
    [
        # a lost point is tried again by itself, and not continued
        ([2.0, 1.5, 1.0], {"lost": (1.5,)}, "2 1.5< 1.5 1"),
        ([2.0, 1.5, 1.0], {"collapsed": (1.5,)}, "2 1.5< 1"),
        # a start that leads out of the domain is given up for a fresh one
        ([2.0, 1.7, 1.5, 1.0], {"outside": (1.5,)}, "2 1.7< 1.5< 1.5 1<"),
        # where the fresh start has failed too, the next point does not begin at its overlaps
        ([2.0, 1.7, 1.5, 1.0], {"collapsed": (1.7,), "hopeless": (1.5,)}, "2 1.7< 1.5 1"),
        ([2.0, 1.7, 1.5, 1.0], {"hopeless": (1.5,), "branch": "uninformed"}, "2 1.7< 1.5< 1.5 1"),
    ],
    ids=["lost", "collapsed", "out of the domain", "out of it from everywhere", "uninformed"],
)
def test_what_leads_nowhere_is_not_continued(monkeypatch, alphas, places, asked):
    """Solves in their order, with < those that begin at a neighbour."""
    solver = followed(monkeypatch, alphas, **places)
    assert " ".join(f"{alpha:g}{'' if start is None else '<'}" for alpha, start in solver.asked) == asked


def test_every_tracked_iteration_searches_afresh(monkeypatch):
    """As GAMP does; the last minima are further starts, so that only lower ones are found."""
    seen: list[Starts] = []
    evaluate = Channel.evaluate

    def watched(self: Channel, alpha: float, overlaps: Overlaps, starts: Starts, previous: Any = None) -> Any:
        seen.append(starts)
        return evaluate(self, alpha, overlaps, starts, previous)

    monkeypatch.setattr(Channel, "evaluate", watched)
    assert len(list(ap.tracking.iterates(PAPER, 1.6, initial_overlaps(PAPER, "semantic"), 3, points=16))) == 4
    assert seen == [Starts.COLD, Starts.REFRESH, Starts.REFRESH]


QUICK: dict[str, Any] = {"outer": 8, "inner": 8, "settings": ap.SolverSettings(tolerance=1e-2, threads=1)}
OF_BRANCHES = {
    "solve": lambda branch: ap.solve(FEW, 1.5, branch, settings=settings()),
    "sweep": lambda branch: ap.sweep(FEW, [1.5], branch=branch, settings=settings(), workers=1),
    "sensitivity": lambda branch: ap.sensitivity(FEW, 1.5, "tokens.sigma", branch, settings=settings()),
    "follow": lambda branch: ap.follow(FEW, between=(1.45, 1.5), branch=branch, settings=settings(identity=False)),
    "tune": lambda branch: ap.tune(FEW, [1.5], between=(0.005, 0.02), branch=branch, settings=settings()),
    "one_rsb": lambda branch: ap.one_rsb(FEW, 0.5, branch, y=[5.0], start="informed", **QUICK),
}


@pytest.mark.parametrize("name", OF_BRANCHES)
def test_every_branch_is_that_of_its_own_call(name, tmp_path):
    ds, alone = OF_BRANCHES[name]("all"), OF_BRANCHES[name]("positional")
    alone = alone.isel(branch=0) if "branch" in alone.dims else alone
    assert ds["branch"].values.tolist() == ["semantic", "positional", "uninformed"]
    assert ds["status"].dims[0] == "branch"
    own = ds.sel(branch="positional")
    if name == "follow":  # curves end in points that are missing
        missing = (ds["status"] == 3).values
        assert not missing[:, 0].any()
        assert (np.diff(missing.astype(int), axis=1) >= 0).all()
        np.testing.assert_array_equal(np.isnan(ds["field_value"].values), missing)
        own = own.isel(point=slice(alone.sizes["arclength"]))
    for variable in ("test_error", "q", "optimum", "metric", "y", "field_value"):
        if variable in alone:
            np.testing.assert_allclose(own[variable].values, alone[variable].values, rtol=1e-12, err_msg=variable)
    ap.save_dataset(ds, tmp_path / "all.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "all.nc"), ds)


def test_a_problem_has_the_branches_of_its_rank_and_encodings():
    for name, fields, expected in (
        ("paper", {}, ["semantic", "positional", "uninformed"]),
        ("rank 2", {}, ["semantic", "positional", "uninformed", "mixed"]),
        ("rank 2", {"positions.kind": "none"}, ["semantic", "uninformed"]),
    ):
        problem = model(name, {"integration.rule": "sobol", "integration.nodes": 16, **fields})
        ds = ap.solve(problem, 1.5, "all", settings=settings(identity=False, max_seconds=1e-9))
        assert ds["branch"].values.tolist() == expected


@pytest.mark.parametrize("command", ["solve", "follow", "tune", "check", "one-rsb"])
def test_none_of_two_branches_is_dropped(command):
    several = run(command, "--branch", "semantic", "--branch", "positional", code=2)
    assert "Invalid value for '--branch': give one branch, or all." in several.stderr
