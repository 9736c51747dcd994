"""The consistency report passes where all is right, whatever the seed, and sees one per cent in any one equation.

Not public: wrong factors are put into the compiled kernels and the nodes, behind the report's back.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.checks import consistency, equations, limits
from attnphase.integration.refinement import Refinement
from attnphase.kernels.compiler import Kernels, kernels_for
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel

POINTS = {"integration.rule": "sobol", "integration.nodes": 64}
LINES = {"teacher.omega": 0.37, "integration.standard_error": 3e-3}
MEANS = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.8]}],
    "tokens.law": {"kind": "same", "probability": 0.7},
    "tokens.mean_teacher": [[0.5]],
}
NET = {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.003}
LABELS = {"tokens.sigma": 0.6, "regularizer.strength": 0.13}
PROBLEMS = {
    "paper": model("paper", POINTS | {"teacher.omega": 0.37}),
    "untied": model("untied", POINTS | {"teacher.omega": 0.37}),
    "labels": model("logistic", POINTS | LABELS),
    "elastic net": model("paper", POINTS | NET),
    "teacher means": model("paper", POINTS | MEANS),
    "noise": model("noisy", POINTS | MEANS | {"teacher.noise": 0.009}),
    "noisy labels": model("logistic", POINTS | LABELS | {"teacher.noise": 0.4}),
    "lines": model("paper", LINES),
    "lines with noise": model("noisy", LINES | {"teacher.noise": 0.02}),
    "labels by lines": model("logistic", LABELS | {"teacher.noise": 0.4}),
    "tensor": model("square", LABELS | {"integration.rule": "gauss-hermite"}),
    "trained": model("trained", POINTS),
    "warm": model("paper", POINTS | {"student.temperature": 0.7}),
    "rank 2": model("rank 2", POINTS | {"teacher.omega": 0.37}),
}
SETTINGS = ap.SolverSettings(threads=1, max_nodes=2**16, stability=False, identity=False)


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(equations, "SAMPLES", 2**16)  # they are most of the time, and few tests need all of them


def report(name: str, branch: Any = "semantic", **fields: Any) -> dict[str, ap.interface.Check]:
    problem = PROBLEMS[name].with_fields({f"integration.{key}": value for key, value in fields.items()})
    found = ap.check(problem, 1.7, branch, settings=SETTINGS, experiment=False, progress=False)
    return {one.name: one for one in found.checks}


def failed(name: str) -> set[str]:
    return {one.name for one in report(name).values() if one.passed is False}


@pytest.mark.parametrize(
    ("name", "branch"),
    [
        ("paper", "positional"),
        ("untied", "positional"),
        ("lines", "positional"),
        *((name, "semantic") for name in PROBLEMS if name != "rank 2"),
    ],
)
def test_right_equations_pass(name, branch):
    found = report(name, branch, seed=5)
    assert [one.name for one in found.values() if one.passed is False] == []
    assert len([one for one in found.values() if one.passed]) >= 12
    assert found.keys() >= {"law of the fields", "mean envelope", "norm of the weights", "test error"}


def with_kernels(monkeypatch: pytest.MonkeyPatch, changed: Any) -> None:
    """Kernels that something is wrong with."""
    monkeypatch.setattr("attnphase.state_evolution.system.kernels_for", lambda problem: changed(kernels_for(problem)))


def with_factor(monkeypatch: pytest.MonkeyPatch, function: str, part: Any, factor: float) -> None:
    """One of the results of a derived function is multiplied, for the ridge and beyond it."""

    def wrong_in(maps: Any) -> Any:
        def wrong(**arguments: Any) -> Any:
            results = getattr(maps, function)(**arguments)
            if isinstance(part, str):
                return results | {part: factor * results[part]}
            return tuple(factor * value if i == part else value for i, value in enumerate(results))

        return replace(maps, **{function: wrong}) if hasattr(maps, function) else maps

    with_kernels(
        monkeypatch, lambda right: replace(right, ridge=wrong_in(right.ridge), separable=wrong_in(right.separable))
    )


EQUATIONS = {
    "overlaps_from_conjugates": ("q", "V", "m", "theta"),
    "conjugates_from_moments": ("q_hat", "V_hat", "m_hat", "theta_hat"),
}


@pytest.mark.parametrize(
    ("name", "function", "part"),
    [
        pytest.param(name, function, part, id=f"{name}, {equation}")
        for name, functions in {
            "paper": EQUATIONS, "labels": ["conjugates_from_moments"], "lines": ["conjugates_from_moments"],
            "elastic net": ["overlaps_from_conjugates"],
        }.items()
        for function in functions
        for part, equation in enumerate(EQUATIONS[function])
    ],
)  # fmt: skip
def test_one_per_cent_in_an_equation_is_seen(monkeypatch, name, function, part):
    """Also where the order parameter vanishes at the fixed point, as m does on the semantic branch."""
    with_factor(monkeypatch, function, part, 1.01)
    side = "conjugates" if function == "overlaps_from_conjugates" else "overlaps"  # it is stationary in the partners
    assert f"gradient of the free entropy, {side}" in failed(name)


@pytest.mark.parametrize(
    ("function", "part", "seen"),
    [
        *(
            ("free_entropy_terms", term, "gradient of")
            for term in ("energy", "variance", "overlap", "mean", "teacher", "prior")
        ),
        ("observables", "training_loss_direct", "expressions of the training loss"),
        ("observables", "weight_norm", "norm of the weights"),
        ("observables", "test_error", "test error"),
    ],
)
def test_one_per_cent_in_a_term_or_an_observable_is_seen(monkeypatch, function, part, seen):
    monkeypatch.setattr(equations, "SAMPLES", 2**21 if part == "test_error" else 2**16)
    with_factor(monkeypatch, function, part, 0.99)
    found = failed("paper")
    assert any(name.startswith(seen) for name in found)
    assert function != "observables" or found == {seen}


@pytest.mark.parametrize("wrong", ["energies", "residuals", "minima"])
def test_a_wrong_local_minimiser_is_seen(monkeypatch, wrong):
    """Its energy, its residual g, or a place that is not the minimum."""

    def changed(right: Kernels) -> Kernels:
        def minimise(nodes, starts, solution):
            right.minimise(nodes, starts, solution)
            getattr(solution, wrong)[:] *= 1.001

        return replace(right, minimise=minimise)

    with_kernels(monkeypatch, changed)
    assert failed("paper") & {"mean envelope", "gradient of the free entropy, overlaps"}


@pytest.mark.parametrize(("name", "part"), [("paper", 0), ("paper", 1), ("labels", 0), ("lines", 1)])
def test_fields_of_a_wrong_law_are_seen(monkeypatch, name, part):
    right = Channel.nodes_at

    def nodes_at(self, overlaps):
        omega, k, *others = right(self, overlaps)
        mean = overlaps.m[self.configurations, :, 0][:, None, None, None]
        return (mean + 1.01 * (omega - mean), k, *others) if part == 0 else (omega, 1.01 * k, *others)

    monkeypatch.setattr(Channel, "nodes_at", nodes_at)
    assert "law of the fields" in failed(name)


def test_a_millionth_of_the_compiled_loss_is_seen(monkeypatch):
    def changed(right: Kernels) -> Kernels:
        def losses_at(fields, teacher, mixing, parameters, variance, losses):
            right.losses_at(fields, teacher, mixing, parameters, variance, losses)
            losses *= 1 + 1e-6

        return replace(right, losses_at=losses_at)

    with_kernels(monkeypatch, changed)
    assert "back ends: compiled and numpy" in failed("paper")


def test_the_rate_of_the_errors_is_believed_and_replicates_that_are_not_independent_are_seen(monkeypatch):
    """One token and a smooth loss: faster than independent points.  Sixteen times the same points: no scatter.

    Points of which there are no more than before: errors that do not fall.
    """
    found = report("labels")["rate of the standard errors"]
    assert found.passed
    assert found.value < -0.5
    right = Refinement.sobol

    def same(self: Refinement, points: int) -> Any:
        rule = right(self, points)
        return rule if points < 1024 else replace(rule, nodes=np.repeat(rule.nodes[:1], 16, axis=0))

    for wrong in (same, lambda self, points: right(self, min(points, 256))):
        monkeypatch.setattr(Refinement, "sobol", wrong)
        assert "rate of the standard errors" in failed("paper")


@pytest.mark.parametrize(("loss", "error", "passed"), [(0.4, -9.0, False), (0.4, 9.0, False), (-9.0, 0.1, None)])
def test_an_experiment_above_or_below_the_theory_is_seen_and_a_lower_minimum_told(monkeypatch, loss, error, passed):
    pytest.importorskip("torch", reason="experiments need PyTorch")
    found = [SimpleNamespace(name=name, z=z) for name, z in (("training_loss", loss), ("test_error", error))]
    for name, value in (("simulate", None), ("from_points", None), ("compare", SimpleNamespace(quantities=found))):
        monkeypatch.setattr(consistency, name, lambda *_, value=value, **__: value)
    point = SimpleNamespace(status=Status.converged, alpha=1.7, branch="semantic")
    law = SimpleNamespace(sample_law=SimpleNamespace(gaussian=True))
    case: Any = SimpleNamespace(problem=ap.Problem(), point=point, system=law)
    assert consistency._experiment(case, False).passed is passed


@pytest.mark.parametrize(("name", "exact"), [("lines", False), ("tensor", True)])
def test_stated_errors_cover_a_finer_rule_and_a_hundredth_of_them_does_not(monkeypatch, name, exact):
    assert report(name)["stated errors"].passed
    right = consistency.solve_point

    def surer(*args, **kwargs):
        point = right(*args, **kwargs)
        return replace(point, errors={key: 0.01 * error for key, error in point.errors.items()})

    monkeypatch.setattr(consistency, "solve_point", surer)
    assert report(name)["stated errors"].passed is exact


def test_a_mixture_that_is_none_has_the_same_map_and_half_a_per_cent_in_its_variance_is_seen(monkeypatch):
    def values():
        return [one.value for name, one in report("rank 2").items() if "cluster" in name]

    assert max(values()) < 1e-12
    applied = limits.applied

    def off(case, overlaps, rule):
        if case.problem.tokens.kind == "mixture":
            table = [[{"sigma": one.sigma} for one in token] for token in case.problem.tokens.clusters]
            table[0][0]["sigma"] *= 1.005
            case = case.turned(case.problem.with_fields({"tokens.clusters": table}))
        return applied(case, overlaps, rule)

    monkeypatch.setattr(limits, "applied", off)
    first, second = values()
    assert min(first, second) > 1e-5
