"""A ridge for each column: exact identities, symmetries, what varies one of them, training, names and refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import xarray as xr

import attnphase as ap
from attnphase.checks.matching import at_problem
from attnphase.errors import CompareError, ProblemError
from attnphase.fixed_points.deflation import solutions_of
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.state_evolution.assignments import informed_starts
from attnphase.state_evolution.system import System
from tests.numeric.test_losses_of_q import two_columns

SETTINGS = SolverSettings(threads=1, stability=False)
LINES = {"integration.rule": "lines", "integration.standard_error": 3e-3}
UNTIED = Problem().with_fields({"student.tied": False, **LINES})
UNITS = Problem.from_dict(
    {
        "tokens": {"length": 1, "sigma": 0.8},
        "teacher": {"rank": 2},
        "student": {"rank": 2},
        "regularizer": {"strength": [0.02, 0.3]},
        "loss": {
            "kind": "expression",
            "expression": "(tanh(h0_0) + 0.7*tanh(h0_1) - k0_0 - 0.3*tanh(k0_1))**2/2",
        },
    }
)
"""Two hidden units, the second of which pays more."""


def of(problem: Problem, first: float, *others: float) -> Problem:
    """The problem with these ridges; with one alone it is that of all columns."""
    return problem.with_fields({"regularizer.strength": (first, *others) if others else first})


# --- state evolution --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def untied():
    """Query and key with ridges of their own, and with the geometric mean of these."""
    unlike, factor = (0.031, 0.0052), (0.0052 / 0.031) ** 0.25
    points = [solve_point(of(UNTIED, *one), 1.6, "semantic", settings=SETTINGS) for one in (unlike, [0.0126965349])]
    return *points, np.array([factor, 1 / factor])


def test_of_query_and_key_the_product_counts(untied):
    """The scores know ``Q K^T`` alone, so that Q times s and K over s are the same student."""
    unlike, alike, size = untied
    scale = size[:, None] * size
    assert unlike.status == alike.status == 0
    for name, factor in (("q", scale), ("V", scale), ("theta", size[:, None]), ("training_loss", 1), ("test_error", 1)):
        expected = factor * alike.values[name]
        error = np.hypot(unlike.errors[name], factor * alike.errors[name])
        assert np.all(np.abs(unlike.values[name] - expected) <= 3 * error + 1e-12), name
        np.testing.assert_allclose(unlike.values[name], expected, rtol=1e-3)
    norms = np.diag(unlike.values["q"][0]) / 0.25
    np.testing.assert_allclose(norms * (0.031, 0.0052), np.full(2, norms[0] * 0.031), rtol=1e-9)  # least norm
    assert unlike.values["weight_norm"] == pytest.approx(norms.sum(), rel=1e-7)


def test_like_ridges_are_one():
    for problem, one in ((UNTIED, 0.0126965349), (UNITS, 0.07)):
        several, alone = (
            solve_point(of(problem, *ridges), 1.6, "semantic", settings=SETTINGS) for ridges in ((one, one), (one,))
        )
        for name in ("q", "V", "theta", "V_hat", "training_loss", "test_error", "weight_norm"):
            np.testing.assert_allclose(several.values[name], alone.values[name], rtol=1e-7, atol=1e-12)


def test_the_objective_moves_by_half_the_norm_of_a_column():
    """``d eps_t / d lambda_i = |W_i|^2 / (2 d)``, and the total derivative in all of them is violation_ridge's."""
    norms = []
    for column in (0, 1):
        ds = ap.sensitivity(UNITS, 1.7, field=f"regularizer.strength[{column}]", settings=SETTINGS)
        norms.append(ds.q.values[0, column, column] / 0.64)
        error = float(ds.d_training_loss_stderr) + 1e-6
        assert abs(float(ds.d_training_loss) - norms[column] / 2) < 4 * error
        assert error < 1e-3 * norms[column]
    assert norms[0] > 5 * norms[1]
    assert ds.weight_norm.item() == pytest.approx(sum(norms), rel=1e-7)


def test_a_ridge_stands_beside_what_a_loss_of_q_adds():
    """A loss with ``+ c Q11`` is one without whose first column has ``2 alpha c`` more."""
    nodes = {"integration.rule": "sobol", "integration.nodes": 256}
    fields = two_columns(part=0.2, rest=0.1) | {"tokens.sigma": 0.9} | nodes
    plain = of(UNITS.with_fields(fields), 0.7 + 2 * 1.4 * 0.05, 1.3)
    given = of(plain.with_fields({"loss.parameters.first": 0.05}), 0.7, 1.3)
    settings = replace(SETTINGS, tolerance=1e-10)
    a, b = (solve_point(one, 1.4, "semantic", settings=settings) for one in (given, plain))
    for name in ("trained", "q", "theta", "training_loss", "weight_norm"):
        np.testing.assert_allclose(a.values[name], b.values[name], rtol=1e-6, atol=1e-9)
    assert a.values["trained"][0] > 1.2 * a.values["trained"][2]


# --- symmetries -------------------------------------------------------------------------------------------------------

HEADS = UNITS.with_fields(
    {
        "loss.expression": "(tanh(h0_0) + tanh(h0_1) - tanh(k0_0) - tanh(k0_1))**2/2",
        "regularizer.strength": 0.1,
    }
)


def test_unlike_columns_are_not_exchanged(uncompiled: None):
    """A sector that exchanged them would have one size for both; their starts are several."""
    alike, unlike = (System.of(of(HEADS, *ridges)) for ridges in ((0.1, 0.1), (0.1, 0.2)))
    assert len(alike.symmetries) == 2 * len(unlike.symmetries)
    assert all(np.array_equal(np.abs(A), np.eye(2)) for _, A, *_ in unlike.symmetries)
    mixed = HEADS.with_fields({"loss.expression": "(tanh(h0_0) + tanh(h0_1) - k0_0 - 0.5*k0_1)**2/2"})
    counts = [len(informed_starts(System.of(of(mixed, *ridges)), "semantic")) for ridges in ((0.1, 0.1), (0.1, 0.2))]
    assert counts == [1, 4]


@pytest.mark.parametrize(
    ("ridges", "turns", "stretches"),
    [
        ((0.1,), 1, 3),
        ((0.1, 0.1, 0.3, 0.3), 1, 3),
        ((0.1, 0.2, 0.6, 0.3), 1, 3),  # the product of query's and key's is the same for both columns
        ((0.1, 0.2, 0.3, 0.3), 0, 2),
    ],
)
def test_changes_of_columns_that_ridges_leave(ridges, turns, stretches, uncompiled):
    """Turns keep the penalty of any weights, stretches are all that the balanced weights obey."""
    rank_two = {"student.rank": 2}
    gauge = System.of(of(UNTIED.with_fields(rank_two), *ridges)).gauge
    assert (len(gauge.turns), len(gauge.stretches)) == (turns, stretches)
    penalty = np.diag(np.broadcast_to(ridges, 4))
    for X in gauge.free:
        np.testing.assert_allclose(penalty @ X + X.T @ penalty, np.zeros((4, 4)), atol=1e-9)
    scores = [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]  # h_Q h_K^T
    for X in (*gauge.free, *gauge.changes):
        np.testing.assert_allclose(X.T @ scores + scores @ X, np.zeros((4, 4)), atol=1e-7)
    root = np.random.default_rng(3).normal(size=(4, 4))
    change = gauge.balancing(root @ root.T)
    balanced = change @ root @ root.T @ change.T
    slopes = [np.trace(penalty @ X @ balanced) for X in gauge.changes]
    np.testing.assert_allclose(slopes, np.zeros(stretches), atol=1e-10)


def test_random_starts_lead_to_known_solutions():
    """What they find between columns differs from the informed solution's zero by nodes alone, and is the same."""
    fields = {"integration.rule": "sobol", "integration.nodes": 256, "regularizer.strength": [0.1, 0.2]}
    found = solutions_of(HEADS.with_fields(fields), 2.0, starts=2, settings=SETTINGS)
    assert found[0].found >= 3


# --- training ---------------------------------------------------------------------------------------------------------


def test_training_at_finite_d_agrees():
    pytest.importorskip("torch")
    point = solve_point(UNITS, 1.7, "semantic", settings=SETTINGS)
    given: dict[str, Any] = {"alpha": 1.7, "start": "semantic", "dimension": 300, "seeds": 12}
    runs = {name: ap.simulate(UNITS, optimizer=name, **given) for name in ("lbfgs", "gamp")}
    for name in ("q", "theta", "training_loss", "test_error", "weight_norm"):
        own = {key: ds[name].values.reshape(12, *np.shape(point.values[name])) for key, ds in runs.items()}
        np.testing.assert_allclose(own["gamp"], own["lbfgs"], rtol=1e-4, atol=1e-5)
        error = own["lbfgs"].std(axis=0, ddof=1) / np.sqrt(12)
        assert np.all(np.abs(own["lbfgs"].mean(axis=0) - point.values[name]) < 4 * error), name
    # the ridges' geometric mean for both is far away
    other = solve_point(of(UNITS, 0.0775), 1.7, "semantic", settings=SETTINGS)
    away = np.abs(own["lbfgs"].mean(axis=0) - other.values["weight_norm"])
    assert away > 10 * error


def test_the_risk_and_steps_of_sgd_know_the_columns():
    torch = pytest.importorskip("torch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.one_pass import _Descent
    from attnphase.experiments.risk import Risk
    from attnphase.experiments.settings import TrainingSettings
    from attnphase.kernels.torch.loss import LocalLoss

    generator = np.random.default_rng(5)
    weights = torch.tensor(generator.normal(size=(2, 30, 2)))
    ridges, values, gradients, stepped = [(0.02, 0.3), (0.05, 0.11)], [], [], []
    for one in ridges:
        problem = of(UNITS, *one)
        instance = draw_instance(problem, 30, 45, 7, (0, 1), LocalLoss(problem))
        value, gradient = Risk.of(instance).smooth(weights)
        assert torch.allclose(Risk.of(instance).value(weights), value)
        values.append(value.numpy())
        gradients.append(gradient.numpy())
        descent = _Descent(instance, TrainingSettings(optimizer="sgd", learning_rate=0.4), 3)
        moved = weights.clone()
        descent.step(moved, descent.block(0), 0)
        stepped.append(moved.numpy())
    change, w = np.subtract(*np.array(ridges)), weights.numpy()
    np.testing.assert_allclose(values[0] - values[1], (w**2 @ change).sum(axis=1) / 2, rtol=1e-9)
    np.testing.assert_allclose(gradients[0] - gradients[1], w * change, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(stepped[0] - stepped[1], -0.4 / 30 * change * w, rtol=1e-6, atol=1e-12)


# --- what varies one of them ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept() -> xr.Dataset:
    fields = {"regularizer.strength[1]": [0.1, 0.3]}
    return ap.sweep(UNITS, alpha=[1.7, 2.2], fields=fields, branch="semantic", workers=1, settings=SETTINGS)


def test_a_sweep_over_one_ridge(swept, tmp_path):
    assert swept.strength_1.attrs["field"] == "regularizer.strength[1]"
    assert swept.strength_1.values.tolist() == [0.1, 0.3]
    for i, strength in enumerate((0.1, 0.3)):
        point = solve_point(of(UNITS, 0.02, strength), 2.2, "semantic", settings=SETTINGS)
        assert swept.training_loss.values[0, i, 1] == pytest.approx(point.values["training_loss"], rel=1e-6)
    ap.save_dataset(swept, tmp_path / "sweep.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "sweep.nc"), swept)
    there = at_problem(swept, of(UNITS, 0.02, 0.1))
    assert there.strength_1.item() == 0.1
    with pytest.raises(CompareError, match=r"no strength_1 = 0\.2, which the experiment has"):
        at_problem(swept, of(UNITS, 0.02, 0.2))
    with pytest.raises(CompareError):
        at_problem(swept, of(UNITS, 0.03, 0.1))


def test_the_best_of_one_ridge():
    """Test errors on both sides of it are larger."""
    ds = ap.tune(UNITS, field="regularizer.strength[0]", alpha=1.7, between=(0.002, 0.2), settings=SETTINGS).squeeze()
    best, status = ds.optimum.item(), int(ds.status)
    assert status == 0
    errors = [
        solve_point(of(UNITS, ridge, 0.3), 1.7, "semantic", settings=SETTINGS).values["test_error"]
        for ridge in (best / 1.4, best, 1.4 * best)
    ]
    assert ds.metric.item() == pytest.approx(errors[1], abs=3 * ds.metric_stderr.item())
    (a, b), (c, d) = pairwise(errors)
    assert a > b == c < d


# --- names and refusals -----------------------------------------------------------------------------------------------


def test_names_of_entries():
    changed = UNITS.with_fields({"regularizer.strength[1]": 0.07})
    assert changed.regularizer.strength == (0.02, 0.07)
    assert Problem.from_toml(changed.to_toml()) == changed
    assert changed.hash != UNITS.hash
    spread = Problem().with_fields({"tokens.sigma": [0.4, 0.5], "tokens.sigma[0]": 0.6})
    assert spread.tokens.sigma == (0.6, 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regularizer.strength": [0.1]}, "regularizer.strength has 1 numbers, but the student's weights have 2"),
        ({"regularizer.kind": "lasso", "regularizer.strength": [0.1, 0.2]}, 'not go with regularizer.kind = "lasso"'),
        ({"regularizer.strength": [0.1, -0.2]}, "or for a ridge a list with one for each column of the weights, but"),
        ({"regularizer.strength[2]": 0.1}, "strength is a list of 2 entries, numbered from 0"),
        ({"regularizer.strength[1]": None}, "has no default: give it a number, or change the whole list"),
        ({"tokens.sigma[0]": 0.1}, "whose tokens.sigma is no list of numbers"),
        ({"regularizer.strengh[0]": 0.1}, 'unknown key "regularizer.strengh": did you mean "regularizer.strength"'),
    ],
)
def test_refusals(fields, message):
    with pytest.raises(ProblemError) as error:
        UNITS.with_fields(fields)
    assert message in str(error.value)
    assert error.value.field.startswith(("regularizer.stren", "tokens.sigma"))


def test_turns_that_one_value_leaves_free_have_no_derivative():
    """At like ridges all turns of these columns are solutions; beside them the ridges choose."""
    loss = "(h0_0**2 + h0_1**2 - k0_0**2 - k0_1**2)**2/8"
    fields = {"loss.expression": loss, "integration.standard_error": 1e-2}
    problem = of(UNITS.with_fields(fields), 0.1, 0.1)
    with pytest.raises(ProblemError, match=r"strength\[1\] = 0\.1 leaves turns of the student's columns free"):
        ap.sensitivity(problem, 3.0, field="regularizer.strength[1]", settings=SETTINGS)


def test_pages_have_the_ridges():
    text = ap.derive(UNITS).markdown
    assert r"R = \left(\sum_{\kappa} \gamma_{\kappa} \hat V_{\kappa} + \operatorname{diag}(\lambda)\right)^{-1}" in text
    assert r"\operatorname{Tr}\left[R \operatorname{diag}(\lambda) R \left(b b^{\top} + S\right)\right]" in text
    assert r"\lambda_1 = 0.02, \quad \lambda_2 = 0.3" in text
    assert r"\tfrac12 \sum_i \lambda_i \left\lVert W_{\cdot i} \right\rVert^2" in text
    alike = ap.derive(of(UNITS, 0.02)).markdown
    assert r"\operatorname{diag}(\lambda)" not in alike
    assert r"R = \left(\lambda I + \sum_{\kappa}" in alike
