"""Whether a point is on the branch whose name it bears, has merged with the uninformed point, or is left open.

Not public: a map with a closed form, and errors of derivatives that are made up, are given to no public function.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import model
from solving import settings, size, solved, word

import attnphase as ap
from attnphase.fixed_points import classification
from attnphase.fixed_points.measuring import SolvedPoint, measured_at
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.trial_amplitudes import Sweep, beside_held, growth_with_error
from attnphase.state_evolution.errors import response_at
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

LASSO = {"regularizer.kind": "lasso", "regularizer.strength": 0.011}
NEARLY = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 1e-4}
ELASTIC = {"regularizer.kind": "elastic-net", "regularizer.strength": 0.01, "regularizer.ridge": 0.005}
ON, MERGED, OPEN = "on_branch", "merged_with_uninformed", "not_decided"

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


def paper(omega: float, nodes: int = 0, seed: int = 0, /, **fields: Any) -> ap.Problem:
    """The paper's, by its default rule or by Sobol points."""
    integration = {"integration.rule": "sobol", "integration.nodes": nodes, "integration.seed": seed} if nodes else {}
    return ap.Problem.paper(omega=omega).with_fields(integration | fields)


def order(branch: str) -> str:
    return "m" if branch == "positional" else "theta"


SIX, FIVE = {"tokens.sigma": 0.6}, {"tokens.sigma": 0.55}


@pytest.mark.parametrize(
    ("problem", "alpha", "branch", "expected"),
    [
        # at omega = .3 theta begins to grow at .7200(6), m at .05746(5)
        (paper(0.3), 0.71, "semantic", MERGED),
        (paper(0.3), 0.7192, "semantic", OPEN),
        (paper(0.3), 0.72, "semantic", ON),  # by a tenth of the error, which alone leaves it open
        (paper(0.3), 0.05, "positional", MERGED),
        (paper(0.3), 0.065, "positional", ON),
        (paper(0.3), 0.2, "semantic", MERGED),  # most trial amplitudes lie outside the domain
        # m vanishes between these two
        (paper(0.1), 1.25, "positional", ON),
        (paper(0.1), 1.3, "positional", MERGED),
        # between these the branch begins at a fold, with m = .255
        (paper(0.3, **SIX), 7.25, "positional", MERGED),
        (paper(0.3, **SIX), 7.35, "positional", ON),
        # it ends between 1.92 and 1.935, where coarse rules move its fold by .04
        (paper(0.22, **{"integration.standard_error": 1e-2}), 1.9, "positional", ON),
        (paper(0.22, **{"integration.standard_error": 1e-2}), 1.95, "positional", MERGED),
        # a sparse student's: met from its start, seen where its curve is bent, and gone
        (paper(0.31, 256, **LASSO), 3.4, "positional", ON),
        (paper(0.85, 256, **LASSO), 2.9, "positional", ON),
        (paper(0.31, 256, **NEARLY), 3.4, "positional", ON),
        (paper(0.3, **LASSO | {"regularizer.strength": 0.0058}), 3.37, "positional", ON),
        (paper(0.31, **LASSO | {"regularizer.strength": 0.014}), 1.72, "positional", MERGED),
        # next to exact recovery q is hardly more than theta^2 / rho
        (model("square", {"tokens.sigma": 2.4, "regularizer.strength": 1.2e-4}), 4.2, "semantic", ON),
        # an uninformed point of more symmetries than the branch has fewer nodes
        (paper(0.33, 64), 1.7, "semantic", ON),
        (paper(0.33, 64), 0.3, "semantic", MERGED),
        (paper(0.33, 64), 0.3, "uninformed", ON),
    ],
)
def test_a_branch_is_there_from_its_onset_or_fold_on(problem, alpha, branch, expected):
    ds = solved(problem, alpha, branch, tolerance=1e-6)
    assert word(ds) == "converged"
    assert word(ds, "on_branch") == expected
    if expected != OPEN and branch != "uninformed":
        assert (size(ds, order(branch)) > 0) == (expected == ON)


@pytest.mark.parametrize(
    ("omega", "nodes", "alpha", "branch", "truth", "seeds"),
    [
        (0.44, 256, 0.8625, "semantic", 0.0, [0, 2, 4]),
        (0.1, 64, 1.2, "positional", 0.1181, [5, 10, 11, 15, 14013]),
        (0.0, 256, 0.944, "positional", 0.0, [0, 21]),
        (0.3, 64, 0.7688, "semantic", 0.0495, [1, 26]),
    ],
)
def test_nodes_of_no_seed_claim_what_is_not_there(omega, nodes, alpha, branch, truth, seeds):
    """The truth is from lines: what is not decided claims nothing, and else holds within four errors."""
    for seed in seeds:
        ds = solved(paper(omega, nodes, seed), alpha, branch)
        assert word(ds) == "converged"
        if word(ds, "on_branch") != OPEN:
            assert word(ds, "on_branch") == (ON if truth else MERGED)
            assert abs(size(ds, order(branch)) - truth) <= 4 * size(ds, f"{order(branch)}_stderr")


class Form:
    """A map of one odd coordinate, in place of a state evolution's."""

    def __init__(self, form: str, mu: float) -> None:
        self.form, self.mu, self.alpha = form, mu, 1.0
        self.channel = SimpleNamespace(rule=SimpleNamespace(lines=True))
        self.sector = SimpleNamespace(odd=np.array([0]))

    def __call__(self, x, **_: Any):
        return x * (1 + self.mu - x**2) if self.form == "onset" else x + self.mu - (x - 1) ** 2

    def scales(self, x):
        return np.ones_like(x)

    def adopt_from(self, other: Any) -> None: ...

    def unpack(self, x) -> Any:
        return SimpleNamespace(feasible=lambda rho: True)


@pytest.mark.parametrize(("errors", "expected"), [(3.9, False), (4.1, True)])
@pytest.mark.parametrize("form", ["onset", "fold"])
def test_a_point_stands_where_four_errors_leave_it(form, errors, expected, monkeypatch):
    """At an onset, a (1 + mu - a^2), and at a fold, a + mu - (a - 1)^2, there is a branch for positive mu."""
    error, mu = 1e-3, errors * 1e-3
    a, slope = (np.sqrt(mu), -2 * mu) if form == "onset" else (1 + np.sqrt(mu), -2 * np.sqrt(mu))
    map_ = Form(form, mu)
    monkeypatch.setattr(classification, "StateEvolution", lambda *_: map_)
    monkeypatch.setattr(classification, "Channel", lambda *_: None)
    prior, spectrum = SimpleNamespace(even=True), SimpleNamespace(rho=None)
    system = SimpleNamespace(reflects=form == "onset", prior=prior, spectrum=spectrum)
    run: Any = SimpleNamespace(system=system, settings=SimpleNamespace(tolerance=1e-12))
    moved = SimpleNamespace(images=np.array([[error * (a if form == "onset" else 1.0)]]))
    found, measured = SimpleNamespace(point=np.array([a])), SimpleNamespace(moved=moved)
    place: Any = SimpleNamespace(map_=map_, found=found, measured=measured)
    rules: Any = SimpleNamespace(is_few=lambda rule: False)
    inverse, along = np.array([[-1 / slope]]), np.array([1 / a])
    assert classification._is_bracketed(run, rules, place, inverse, along) is expected


@pytest.mark.parametrize(("errors", "expected"), [(3.8, False), (4.2, True)])
def test_derivatives_whose_errors_reach_a_singular_map_leave_it_open(errors, expected):
    """An eigenvalue may not be one within four errors of the derivatives, which the replicates tell."""
    problem = paper(0.27, **FIVE)
    system = System.of(problem, 1)
    run = Run(system, 1.4, settings(tolerance=1e-6), system.sector_of(initial_overlaps(problem, "semantic")))
    rules = system.refinement_of_solve(2**18)
    map_ = run.map(rules.first())
    x = map_.pack(solve_point(problem, 1.4, "semantic", settings=settings()).restart.overlaps)
    found = run.newton(map_, x, response_at(map_, x, map_.channel.rule).jacobian)
    response = response_at(map_, found.point, rules.of_derivatives(map_.channel.rule))
    place = SolvedPoint(map_, found, measured_at(run, rules, map_, found, response), response)
    singular = np.eye(len(found.point)) - response.jacobian
    judged = replace(place, response=replace(response, noise=singular[None] / len(singular) / errors))
    assert classification._stands(run, rules, judged, ("theta",)) is expected


@pytest.mark.parametrize(("branch", "omega", "alpha"), [("positional", 0.6, 2.1), ("semantic", 0.2, 2.6)])
def test_the_growths_error_is_that_of_the_amplitude_over_the_slope(branch, omega, alpha):
    """Along a branch it moves the order parameter as derivatives say; with q and V held it is several times as much."""
    problem, name = paper(omega, 1024, **ELASTIC), order(branch)
    point = solve_point(problem, alpha, branch, settings=settings(tolerance=1e-6))
    system = System.of(problem, 1)
    run = Run(system, alpha, settings(tolerance=1e-6), system.sector_of(initial_overlaps(problem, branch)))
    map_ = run.map(system.refinement(2**18).sobol(1024))
    x = map_.pack(point.restart.overlaps)
    map_(x, refresh=True)
    here = growth_with_error(map_, x, [])
    amplitude = float(np.linalg.norm(x[map_.sector.odd]))
    jacobian = beside_held(response_at(map_, x, map_.channel.rule).jacobian, map_.sector.odd)
    sweep = Sweep(map_, jacobian, (1e-3, 1e-6), lambda: False)
    sweep.along(x, [0.93 * amplitude, 1.07 * amplitude], 1.0)
    below, above = sweep.trials
    assert here is not None
    assert abs(here[0]) < 1e-3
    relative = float(np.max(point.errors[name]) / np.max(np.abs(point.values[name])))
    assert here[1] * 0.14 / (below.growth - above.growth) == pytest.approx(relative, rel=0.35)
