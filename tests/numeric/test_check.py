"""The consistency report passes where all is right, whatever the seed, and sees one per cent in any one equation.

The wrong factors are put into the derived maps and the compiled kernels, behind the report's back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from attnphase.checks import equations, limits, local_code
from attnphase.checks.case import Case, Means
from attnphase.checks.fixed_point import expressions, rate, stated_errors
from attnphase.checks.report import Check, Report
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.refinement import Refinement
from attnphase.integration.rules import Rule, sobol
from attnphase.kernels.compiler import Kernels, kernels_for
from attnphase.problem.problem import Problem
from attnphase.processes.progress import silent
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.system import System

ONE_THREAD = SolverSettings(threads=1, max_nodes=2**16)
FEW_NODES = {"integration.rule": "sobol", "integration.nodes": 64}
LINES = Problem.paper(omega=0.37)
PAPER = LINES.with_fields(FEW_NODES)
ONE_TOKEN = {"tokens.length": 1, "tokens.sigma": 0.6, "positions.kind": "none", "teacher.mixing": None}
LABELS = Problem().with_fields({**FEW_NODES, **ONE_TOKEN, "loss.kind": "logistic", "regularizer.strength": 0.13})
LABELS_BY_LINES = LABELS.with_fields({"integration.rule": "auto", "integration.nodes": None})
TENSOR = LABELS_BY_LINES.with_fields({"loss.kind": "square", "integration.rule": "gauss-hermite"})
ELASTIC = PAPER.with_fields({"regularizer.kind": "elastic-net", "regularizer.ridge": 0.003})
TEACHER_MEANS = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.8]}],
        "tokens.law": {"kind": "same", "probability": 0.7},
        "tokens.mean_teacher": [[0.5]],
    }
)
EQUATIONS = {"conjugates": ("q_hat", "V_hat", "m_hat", "theta_hat"), "overlaps": ("q", "V", "m", "theta")}


@cache
def solved(problem: Problem, alpha: float = 1.7, branch: str = "semantic") -> BranchPoint:
    point = solve_point(problem, alpha, branch, settings=ONE_THREAD)
    assert point.status is Status.converged
    return point


def case_of(problem: Problem, point: BranchPoint) -> Case:
    return Case.of(problem, point, ONE_THREAD)


def checks(problem: Problem, point: BranchPoint) -> Iterator[Check]:
    """Those of the equations and observables at a fixed point."""
    case = case_of(problem, point)
    yield expressions(case)
    yield from equations.equations(case, silent)


def failed(problem: Problem, point: BranchPoint) -> set[str]:
    return {one.name for one in checks(problem, point) if one.passed is False}


def with_kernels(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    monkeypatch.setattr("attnphase.state_evolution.system.kernels_for", lambda problem: kernels)


def with_factor(problem: Problem, function: str, part: int | str, factor: float) -> Kernels:
    """Kernels in which one of the results of a derived function is multiplied."""
    kernels = kernels_for(problem)
    # the conjugates' equations do not depend on the regulariser and are always taken from the ridge's
    general = problem.regularizer.kind != "ridge" and function != "conjugates_from_moments"
    maps = kernels.separable if general else kernels.ridge
    right = getattr(maps, function)

    def wrong(**arguments: Any) -> Any:
        results = right(**arguments)
        if isinstance(part, str):
            return results | {part: factor * results[part]}
        return tuple(factor * value if i == part else value for i, value in enumerate(results))

    changed = replace(maps, **{function: wrong})
    return replace(kernels, **{"separable" if general else "ridge": changed})


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    """They are most of the time, and few tests need all of them."""
    monkeypatch.setattr(equations, "SAMPLES", 2**16)


@pytest.mark.parametrize("seed", [5])
@pytest.mark.parametrize(
    ("problem", "branch"),
    [
        (PAPER, "semantic"),
        (PAPER, "positional"),
        (PAPER.with_fields({"student.tied": False}), "positional"),  # whose gauge changes V_hat
        (LABELS, "semantic"),
        (ELASTIC, "semantic"),
        (TEACHER_MEANS, "semantic"),
        (TEACHER_MEANS.with_fields({"teacher.noise": 0.009}), "semantic"),
        (LABELS.with_fields({"teacher.noise": 0.4}), "semantic"),
        (LINES, "positional"),
        (LINES.with_fields({"teacher.noise": 0.02}), "semantic"),
        (LABELS_BY_LINES.with_fields({"teacher.noise": 0.4}), "semantic"),
        (TENSOR, "semantic"),
    ],
    ids=[
        *("semantic", "positional", "untied", "labels", "elastic net", "teacher means", "noise", "labels with noise"),
        *("lines", "lines with noise", "labels by lines", "tensor"),
    ],
)
def test_right_equations_pass(problem, branch, seed):
    problem = problem.with_fields({"integration.seed": seed})
    found = list(checks(problem, solved(problem, 1.7, branch)))
    assert [one.name for one in found if one.passed is not True] == []
    assert len(found) == 7


PROBLEMS = {"paper": PAPER, "labels": LABELS, "elastic net": ELASTIC, "lines": LINES}
# without encodings m is zero by its equation, and a factor changes nothing
CASES = [
    pytest.param(problem, side, i, id=f"{name}, {equation}")
    for name, problem in PROBLEMS.items()
    for side, equations in EQUATIONS.items()
    for i, equation in enumerate(equations)
    if (name, equation) != ("labels", "m")
]


@pytest.mark.parametrize(("problem", "side", "part"), CASES)
def test_one_per_cent_in_an_equation_is_seen(monkeypatch, problem, side, part):
    """Also where the order parameter vanishes at the fixed point, as m does on the semantic branch."""
    point = solved(problem)
    function = {"overlaps": "overlaps_from_conjugates", "conjugates": "conjugates_from_moments"}[side]
    with_kernels(monkeypatch, with_factor(problem, function, part, 1.01))
    case = case_of(problem, point)
    generic = equations._Generic.near(case)
    assert generic is not None
    # stationary in the partners
    if side == "overlaps":
        assert not equations._in_conjugates(generic).passed
    else:
        assert not equations._in_overlaps(generic, case.means_at(generic.at)).passed


@pytest.mark.parametrize("term", ["energy", "variance", "overlap", "mean", "teacher", "prior"])
def test_one_per_cent_in_a_term_of_the_free_entropy_is_seen(monkeypatch, term):
    point = solved(PAPER)
    with_kernels(monkeypatch, with_factor(PAPER, "free_entropy_terms", term, 0.99))
    names = failed(PAPER, point)
    assert any(name.startswith("gradient of the free entropy") for name in names)


@pytest.mark.parametrize(
    ("observable", "check"),
    [
        ("training_loss_direct", "expressions of the training loss"),
        ("weight_norm", "norm of the weights"),
        ("test_error", "test error"),
    ],
)
def test_one_per_cent_in_an_observable_is_seen(monkeypatch, observable, check):
    monkeypatch.setattr(equations, "SAMPLES", 2**21 if observable == "test_error" else 2**16)
    point = solved(PAPER)
    with_kernels(monkeypatch, with_factor(PAPER, "observables", observable, 1.01))
    assert failed(PAPER, point) == {check}


def test_one_per_cent_in_the_training_loss_is_seen():
    point = solved(PAPER)
    wrong = replace(point, values=point.values | {"training_loss": 1.01 * point.values["training_loss"]})
    assert not expressions(case_of(PAPER, wrong)).passed


@pytest.mark.parametrize("wrong", ["energies", "residuals", "fields"])
def test_a_wrong_local_minimiser_is_seen(monkeypatch, wrong):
    """Its energy, its residual g, or a place that is not the minimum."""
    point, kernels = solved(PAPER), kernels_for(PAPER)

    def minimise(nodes, starts, solution):
        kernels.minimise(nodes, starts, solution)
        {"energies": solution.energies, "residuals": solution.residuals, "fields": solution.minima}[wrong][:] *= 1.001

    with_kernels(monkeypatch, replace(kernels, minimise=minimise))
    assert failed(PAPER, point) & {"mean envelope", "gradient of the free entropy, overlaps"}


@pytest.mark.parametrize(
    ("problem", "part"),
    [(PAPER, 0), (PAPER, 1), (LABELS, 0), (LINES, 0), (LINES, 1)],
    ids=["omega", "k", "omega with labels", "omega of lines", "k of lines"],
)
def test_fields_of_a_wrong_law_are_seen(monkeypatch, problem, part):
    point, right = solved(problem), Channel.nodes_at

    def nodes_at(self, overlaps):
        omega, k, *others = right(self, overlaps)
        mean = overlaps.m[self.configurations, :, 0][:, None, None, None]
        return (mean + 1.01 * (omega - mean), k, *others) if part == 0 else (omega, 1.01 * k, *others)

    monkeypatch.setattr(Channel, "nodes_at", nodes_at)
    assert "law of the fields" in failed(problem, point)


@pytest.mark.parametrize(
    ("what", "check"), [("loss", "back ends: compiled and numpy"), ("gradient", "gradient of the loss")]
)
def test_a_small_error_of_the_local_loss_is_seen(monkeypatch, what, check):
    """A millionth of the loss; of its gradient, which is held against differences, ten times as much."""
    kernels, reference = kernels_for(PAPER), local_code.reference_backend

    def losses_at(fields, teacher, mixing, parameters, variance, losses):
        kernels.losses_at(fields, teacher, mixing, parameters, variance, losses)
        losses *= 1 + 1e-6

    class Wrong:
        def __init__(self, right):
            self.losses, self._right = right.losses, right

        def gradients(self, *arguments):
            return (1 + 1e-5) * self._right.gradients(*arguments)

    if what == "loss":
        with_kernels(monkeypatch, replace(kernels, losses_at=losses_at))
    else:
        monkeypatch.setattr(
            local_code, "reference_backend", lambda problem, backend: Wrong(reference(problem, backend))
        )
    found = {one.name: one.passed for one in local_code.backends(case_of(PAPER, solved(PAPER)))}
    assert not found[check]


@pytest.mark.parametrize("problem", [PAPER, LINES], ids=["points", "lines"])
def test_sampled_checks_say_what_they_can_see(monkeypatch, problem):
    """Every sampled check of the paper's problem sees one per cent, and says so."""
    monkeypatch.setattr(equations, "SAMPLES", 2**21)
    sampled = [one for one in checks(problem, solved(problem)) if "would be seen" in one.detail]
    assert [one.name for one in sampled] == ["law of the fields", "test error"]
    for one in sampled:
        assert float(one.detail.split("error of ")[1].split(" %")[0]) < 1.0


def test_scattered_means_are_judged_by_student_t():
    """The share of false alarms is the stated one: 20000 families of eight means over sixteen replicates."""
    generator = np.random.default_rng(3)
    means = Means(Channel(System.of(PAPER), sobol(4, 2, True, 1, 16, 0)), ())

    def passed(differences: np.ndarray) -> bool | None:
        return equations._within("", means, lambda _: differences, "").passed

    false = sum(not passed(generator.standard_t(30, (16, 8))) for _ in range(4000))
    assert false <= 2  # 0.04 expected
    shifted = generator.normal(size=(16, 8))
    shifted[:, 3] += (8.2 + 3) / 4  # limit and margin in standard errors
    assert not passed(shifted)


@pytest.mark.parametrize("seed", range(8))
def test_the_rate_of_smooth_integrands_is_believed(seed):
    """One token and a smooth loss: errors fall by two or three orders of magnitude from 64 points to 1024."""
    problem = LABELS.with_fields({"integration.seed": seed})
    found = rate(case_of(problem, solved(LABELS)))
    assert found.passed
    assert found.value < -0.5  # faster than independent points


def test_replicates_that_are_not_independent_are_seen(monkeypatch):
    """Sixteen times the same points: no scatter on many of them."""
    right = Refinement.sobol

    def same(self: Refinement, points: int) -> Rule:
        rule = right(self, points)
        return rule if points < 1024 else replace(rule, nodes=np.repeat(rule.nodes[:1], 16, axis=0))

    monkeypatch.setattr(Refinement, "sobol", same)
    assert not rate(case_of(PAPER, solved(PAPER))).passed


@pytest.mark.parametrize("problem", [LINES, TENSOR], ids=["lines", "tensor"])
def test_stated_errors_cover_a_finer_rule(problem):
    """Those of the solver do; a hundredth of them does not, where there are any."""
    point = solved(problem)
    found = stated_errors(case_of(problem, point))
    assert found.passed
    smaller = replace(point, errors={name: 0.01 * error for name, error in point.errors.items()})
    assert stated_errors(case_of(problem, smaller)).passed is (problem is TENSOR)


def test_a_point_without_its_branch_has_the_errors_of_its_own_sector():
    point = solved(LINES, 0.5)
    assert not point.restart.overlaps.has_signal
    assert stated_errors(case_of(LINES, point)).passed


def test_the_change_to_a_finer_rule_is_that_of_another_computation():
    """Of the point of few lines, far off, to that of Sobol points: the check says how far in its errors, for q."""
    few = LINES.with_fields({"integration.rule": "lines", "integration.nodes": 8})
    point = solved(few)
    # errors of one number alone, as large as the distance to a solve of another kind
    other = solved(LINES.with_fields({"integration.rule": "sobol", "integration.nodes": 4096}))
    away = np.abs(point.values["q"] - other.values["q"]).max()
    assert away > 4 * other.errors["q"].max()
    found = stated_errors(case_of(few, replace(point, errors={"q": away + 0 * point.errors["q"]})))
    assert found.value == pytest.approx(1, abs=0.2)
    assert stated_errors(case_of(few, point)).passed


def test_reductions_that_did_not_converge_are_not_compared(monkeypatch):
    """Two iterations that stopped anywhere need not agree."""
    warm = PAPER.with_fields({"student.temperature": 0.7})
    point = solved(warm)
    monkeypatch.setattr(limits, "solved_side", lambda *_: replace(point, status=Status.iteration_limit))
    found = [one for one in limits.reductions(case_of(warm, point), silent) if "temperature" in one.name]
    assert [one.passed for one in found] == [None]
    assert Report(warm, 1.7, "semantic", tuple(found)).passed


def test_a_trained_temperature_passes_as_a_mixture_and_without_weights():
    """Clusters have the trained parameter of the tokens; terms that are rounding are compared with nothing."""
    problem = Problem.from_dict(
        {
            "tokens": {"length": 2, "sigma": [0.34, 0.89]},
            "positions": {"kind": "none"},
            "regularizer": {"strength": 0.2},
            "loss": {
                "kind": "expression",
                "expression": "sum((softmax(beta*h @ h.T) - softmax(k @ k.T))**2)/2",
                "parameters": {"beta": 0.93},
                "trained": {"beta": "0.047*beta**2"},
            },
        }
    )
    learned, nothing = (solved(problem, alpha) for alpha in (2.7, 0.4))
    assert abs(learned.values["trained"][0]) > 0.1
    found = [one for one in limits.reductions(case_of(problem, learned), silent) if "cluster" in one.name]
    assert [one.passed for one in found] == [True, True]
    assert np.abs(nothing.values["q"]).max() < 1e-15
    assert not failed(problem, nothing)


@pytest.mark.parametrize("clusters", [1, 2])
def test_a_mixture_that_is_none_has_the_same_map(monkeypatch, clusters):
    """To rounding; and a variance of one cluster that is one per cent off is seen."""
    rank_two = PAPER.with_fields({"student.rank": 2})
    word = {1: "one cluster", 2: "equal clusters"}[clusters]

    def reduction():
        found = limits.reductions(case_of(rank_two, solved(rank_two)), silent)
        return next(one for one in found if word in one.name)

    assert reduction().passed
    assert reduction().value < 1e-12
    applied = limits.applied

    def off(case, overlaps, rule):
        if case.problem.tokens.kind == "mixture":
            table = [[{"sigma": one.sigma} for one in token] for token in case.problem.tokens.clusters]
            table[0][0]["sigma"] *= 1.005
            case = case.turned(case.problem.with_fields({"tokens.clusters": table}))
        return applied(case, overlaps, rule)

    monkeypatch.setattr(limits, "applied", off)
    assert not reduction().passed
