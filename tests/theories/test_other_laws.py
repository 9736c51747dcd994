"""Theories under a law of the teacher's fields that is said by a sampler and a density, and is Gaussian all the same.

``k' = s k`` is Gaussian under the density ``N(k')/N(k)``: whatever forgets the density, or takes k for Gaussian in its
normals, has other numbers than the problem that says nothing.

Not public: ends of copies and searches hide what a law changes, and a run with noise and two columns takes minutes.
"""

from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.errors import MissingExtraError, ProblemError
from attnphase.integration.rules import gauss_hermite, sobol
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import growth_at
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import FlowSettings
from attnphase.theories.sgd_flow.slopes import system_of

PAPER = ap.Problem.paper(omega=0.3)
WIDE = PAPER.with_fields({"tokens.sigma": 0.7})
ONE_THREAD = ap.SolverSettings(tolerance=1e-5, threads=1)
TENSOR = {"integration.rule": "gauss-hermite", "integration.nodes": 14}
SAMPLED = {"integration.rule": "sobol", "integration.nodes": 256}
BREAKING: dict[str, Any] = {"branch": "uninformed", "start": "informed", "settings": ONE_THREAD}


def said(problem: ap.Problem, s: float = 1.25) -> ap.Problem:
    """The same law of tokens of mean zero and one variance, by a sampler and a density."""
    density = f"s**{problem.tokens.length}*exp(-(1 - 1/s**2)*sum(k**2)/(2*rho))"
    numbers = {"s": s, "rho": float(np.max(np.array(problem.tokens.sigma))) ** 2}
    return problem.with_fields({"tokens.sampler": "s*k", "tokens.density": density, "tokens.parameters": numbers})


def uninformed(alpha: float) -> Any:
    return lambda problem: ap.solve(problem, alpha, "uninformed", settings=ONE_THREAD)


def of_sgd(problem: ap.Problem) -> Any:
    return ap.sgd_flow(problem, "semantic=0.3,positional=0.3,noise=0.6", 1.5, 15.0, records=3).isel(time=-1)


def of_one_rsb(problem: ap.Problem) -> Any:
    return ap.one_rsb(problem, 1.0, y=200, outer=32, inner=16, **BREAKING).isel(state=0)


CASES: dict[str, tuple[Any, ap.Problem, str]] = {
    "the gap of two copies": (uninformed(1.0), WIDE.with_fields(SAMPLED), "q V training_loss overlap_gap"),
    "the linear baseline": (uninformed(1.3), model("linear", {"tokens.sigma": 0.6}), "linear_test_error"),
    "SGD by a tensor rule": (of_sgd, PAPER.with_fields({"teacher.noise": 0.2, **TENSOR}), "q m theta population_risk"),
    "SGD by points": (of_sgd, PAPER.with_fields({"teacher.noise": 2.3, **SAMPLED}), "q m theta test_error"),
    "one-step replica-symmetry breaking": (of_one_rsb, WIDE, "free_entropy energy q_0 q_1 V"),
}


@pytest.mark.filterwarnings("ignore::attnphase.errors.ReplicaSymmetryWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_gaussian_said_as_another_law_changes_no_result(name):
    call, problem, names = CASES[name]
    plain, other = (call(one).squeeze() for one in (problem, said(problem)))
    assert plain.status == other.status
    for key in names.split():
        a, b = (one[key].to_numpy() for one in (plain, other))
        errors = [one[f"{key}_stderr"].to_numpy() for one in (plain, other)]
        bound = 4 * np.hypot(*errors) + 2e-5 * np.abs(a).max()
        assert (np.abs(a - b) <= bound).all(), (key, a, b)


def test_copies_that_are_not_far_apart_go_equally_far():
    """The end of two copies is nearly all of q, whatever the law."""
    at = Overlaps(*(np.full((1, 1, 1), value) for value in (2.9, 1.7, 0.2, 1.1)))
    hats = Conjugates(*(np.full((1, 1, 1, 1), value) for value in (0.3, 0.5, 0.1, 0.2)))
    plain, other = (
        Copies.of(System.of(one), 3.1, at, hats, 1024).images(np.full((1, 1, 1), 0.4))
        for one in (model("logistic", {"tokens.sigma": 1.1}), said(model("logistic", {"tokens.sigma": 1.1})))
    )
    assert other.mean() == pytest.approx(plain.mean(), rel=0.01)


def test_small_overlaps_grow_equally_fast():
    """At the uninformed point, with so small a V that minimisers do not jump."""
    start = initial_overlaps(PAPER, "uninformed")
    start = Overlaps(start.q, 0.2 * start.V, start.m, start.theta)
    found = []
    for system in (System.of(PAPER), System.of(said(PAPER))):
        rule = sobol(4, 2, True, 2**13, 8, 3)
        map_ = StateEvolution(Channel(system, rule), 1.3, system.sector_of(start))
        found.append(growth_at(map_, map_.pack(start)))
    for name in ("m", "theta"):
        plain, other = (one[name] for one in found)
        error = np.sqrt((plain.rows**2).sum() + (other.rows**2).sum())
        assert abs(plain.factor - other.factor) < 4 * error < 0.1 * abs(plain.factor), name


def test_what_needs_the_density_of_k_refuses_the_law():
    with pytest.raises(ProblemError, match="the Bayes-optimal error needs the density of k"):
        ap.bayes_optimal(said(PAPER), 0.7)
    with pytest.raises(ProblemError, match=r"set teacher\.noise to 0\.$"):
        ap.solve(said(model("square", {"teacher.noise": 0.0625})), 1.0)


def _without_torch():
    raise MissingExtraError("no instances")


def test_checks_ask_the_law_or_say_why_not(monkeypatch):
    """Those that hold for any law pass; those of Gaussian fields alone are left out. No instance is trained here."""
    monkeypatch.setattr("attnphase.checks.consistency.require_torch", _without_torch)
    report = ap.check(said(model("square", {"tokens.sigma": 0.9})), 2.3, settings=ap.SolverSettings(threads=1))
    left_out = {one.name for one in report.checks if one.passed is None and "Gaussian fields" in one.detail}
    assert {"law of the fields", "reduction: ridge regression"} <= left_out
    assert report.passed, report
    assert {"test error", "stated errors"} <= {one.name for one in report.checks if one.passed}


def test_teachers_of_two_columns_have_noise_in_closed_form_too():
    """The samples of the flow have no noise: their fields are as wide as the kernel's."""
    settings, rule = FlowSettings(0.4), gauss_hermite(8, 4, False, 2)
    system, clean = (system_of(model("rank 2", {"teacher.noise": x})) for x in (0.2, 0.0))
    assert system.sample_law.means.shape == (1, 2, system.kernels.label_fields)
    dynamics, other = (Dynamics.of(one, rule, settings) for one in (system, clean))
    state = dynamics.rows.start(np.full((2, 4), 0.2), 0.3 * np.eye(2))
    assert dynamics.loss(state) - other.loss(state) == pytest.approx(0.2 * 2 * 2 * 0.25 / 2, rel=1e-9)
