"""Optimisers reach one minimum, make the steps that they name, keep runs of a batch apart, and end each by itself."""

from typing import Any

import numpy as np
import pytest
from models import model
from solving import endings

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.functions import softmax, tanh

pytestmark = pytest.mark.filterwarnings("ignore:.*not converged")

PAPER = ap.Problem.paper(omega=0.3)
ELASTIC = PAPER.with_fields(
    {"regularizer.kind": "elastic-net", "regularizer.strength": 0.004, "regularizer.ridge": 0.008}
)
FLAT = PAPER.with_fields(
    {"student.rank": 2, "teacher.rank": 2, "tokens.sigma": 1.0, "loss.kind": "expression"}
    | {"loss.expression": "sum(h**2)/1e12"}
)
WEIGHTS = 0.4 + 0.8 * np.random.default_rng(5).standard_normal((24, 2))
GAMP, GD = ("gamp", 3.0, {"damping": 0.6}), ("gd", 5.0, {"steps": 3500})


@pytest.mark.parametrize(
    ("problem", "first", "others"),
    [
        (PAPER, "lbfgs", (GAMP, ("adam", 5.0, {}))),
        (PAPER.with_fields({"student.tied": False}), "lbfgs", (GAMP,)),
        pytest.param(PAPER.with_fields({"student.tied": False}), "lbfgs", (GD,), marks=pytest.mark.long),
        (ELASTIC, "fista", (GAMP, GD)),
    ],
    ids=["tied", "untied", "untied, descent", "elastic net"],
)
def test_optimisers_find_one_minimum_with_the_same_zeros(problem, first, others):
    """From the teacher, at a sample complexity where none of them leaves its minimum."""
    shape: dict[str, Any] = {"dimension": 60, "seeds": 2, "seed": 7, "test_samples": 0}
    for name, alpha, options in others:
        one = ap.simulate(problem, alpha, "semantic", **shape)
        assert one.attrs["rule"].startswith(first)  # by default
        other = ap.simulate(problem, alpha, "semantic", optimizer=name, **options, **shape)
        exact = name == "gamp"
        assert (endings(one) == "converged").all()
        assert (endings(other) == ("converged" if exact else "completed")).all()
        np.testing.assert_allclose(other["training_loss"], one["training_loss"], rtol=1e-9 if exact else 1e-6)
        np.testing.assert_array_equal(other["density"], one["density"])
        for quantity in ("q", "theta", "weight_norm"):
            np.testing.assert_allclose(other[quantity], one[quantity], rtol=1e-6 if exact else 2e-3, err_msg=name)
        assert problem is not ELASTIC or (one["density"] < 0.99).all()


def test_the_first_step_of_adam_moves_every_weight_by_the_rate():
    runs = ap.simulate(model("square"), 2.0, np.zeros((30, 1)), 30, 2, "adam", steps=1, test_samples=0)
    np.testing.assert_allclose(runs["weight_norm"], 0.01**2, rtol=1e-5)


@pytest.mark.parametrize("kind", ["lasso", "group-lasso"])
def test_proximal_steps_shrink_entries_or_whole_rows(kind):
    """Of a loss that pulls at nothing, by the rate times the strength."""
    problem, weights = FLAT.with_fields({"regularizer.kind": kind, "regularizer.strength": 0.3}), WEIGHTS
    runs = ap.simulate(problem, 2.0, weights, 24, 1, "gd", steps=1, learning_rate=0.7)
    size = np.abs(weights) if kind == "lasso" else np.linalg.norm(weights, axis=1, keepdims=True)
    left = weights * np.maximum(1 - 0.21 / size, 0)
    np.testing.assert_allclose(runs["q"].squeeze()[0], left.T @ left / 24, rtol=1e-9)
    assert runs["density"].item() == pytest.approx((left != 0).mean(), rel=1e-6)
    assert (left == 0).any()


def test_accelerated_descent_grows_and_halves_its_steps_and_forgets_its_momentum_uphill():
    """Of ridges alone, as one would write it, from a step of the rate over the curvature, as a power of two."""
    ridges, weights = np.array([0.01, 1.0]), WEIGHTS
    options: dict[str, Any] = {"steps": 100, "trajectory": 1, "tolerance": 1e-13, "learning_rate": 0.12}
    problem = FLAT.with_fields({"regularizer.strength": ridges.tolist()})
    runs = ap.simulate(problem, 2.0, weights, 24, 1, "fista", **options).squeeze()
    point, momentum, step, forgot = weights, 1.0, 0.12 / 2, 0
    for q in runs["trajectory_q"].isel(token=0).to_numpy():
        while True:
            new = point - step * ridges * point
            bound = (ridges * point**2 / 2 + ridges * point * (new - point) + (new - point) ** 2 / (2 * step)).sum()
            if (ridges * new**2 / 2).sum() <= bound * (1 + 1e-12):
                break
            step /= 2
        uphill, larger = ((point - new) * (new - weights)).sum() > 0, (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        forgot += uphill
        point = new + (0 if uphill else (momentum - 1) / larger) * (new - weights)
        weights, momentum, step = new, 1.0 if uphill else larger, 1.05 * step
        np.testing.assert_allclose(np.diagonal(q), (weights**2).sum(axis=0) / 24, rtol=1e-5)
    assert forgot > 1


def units(h, gain):
    return tanh(gain * softmax(h[:, :1] @ h[:, 1:2].T) @ h[:, 2:])


def of_units(h, k, noise, a0=1.5, a1=-1.25, a2=1.0):
    label = units(k, 3) @ np.array([1.5, -1.25, 1.0]) + noise[:, 0]
    return ((label - units(h, 1) @ np.array([a0, a1, a2])) ** 2).sum() / 4


STEEP = {"teacher.rank": 5, "teacher.noise": 0.1, "student.rank": 5, "regularizer.strength": 0.2, "tokens.sigma": 1.0}
STEEP |= {"positions.kind": "none", "teacher.mixing": None, "loss.kind": "expression", "loss.expression": of_units}
STEEP |= {"loss.trained": {a: f"0.1*{a}**2" for a in ("a0", "a1", "a2")}}
HARD = {
    "rounding hides differences of the risk": (PAPER, 2.0, 1e-9, 300),
    "columns of attention are steeper than others": (ap.Problem().with_fields(STEEP), 7.0, 1e-8, 400),
}


@pytest.mark.parametrize("why", HARD)
def test_lbfgs_reaches_its_tolerance_in_few_steps_where(why):
    """Line searches by values, or a unit for each column, took thousands of steps here or never ended."""
    problem, alpha, tolerance, most = HARD[why]
    runs = ap.simulate(problem, alpha, "semantic", 60, 2, "lbfgs", test_samples=0, tolerance=tolerance)
    assert (endings(runs) == "converged").all()
    assert runs["steps"].max() < most


def test_a_tolerance_is_of_the_gradients_size_where_a_run_is_and_not_where_it_began():
    problem = PAPER.with_fields({"regularizer.strength": 0.05})
    options = {"learning_rate": 0.1, "tolerance": 1e-3, "test_samples": 0}
    start = np.random.default_rng(3).normal(size=(60, 1))
    near, far = (ap.simulate(problem, 2.0, far * start, 60, 1, "gd", **options) for far in (1.0, 30.0))
    assert endings(near).item() == endings(far).item() == "converged"
    assert far["gradient_norm"].item() == pytest.approx(near["gradient_norm"].item(), rel=0.2)


@pytest.mark.parametrize("name", ["gd", "adam", "lbfgs", "fista", "gamp", "sgd", "bayes-gamp"])
def test_runs_of_a_batch_do_not_mix(name):
    options: dict[str, Any] = {} if name == "sgd" else {"steps": 8 if name == "bayes-gamp" else 40}
    together, alone = (
        ap.simulate(PAPER, 2.0, None if name == "bayes-gamp" else "semantic=0.9,noise=0.1", 40, seeds, name, **options)
        for seeds in (3, 1)
    )
    for quantity in ("q", "theta", "test_error", "steps", "status"):
        np.testing.assert_allclose(together[quantity].isel(seed=0), alone[quantity].isel(seed=0), rtol=1e-9)


@pytest.mark.filterwarnings("ignore:overflow")
def test_one_diverging_run_stops_alone_with_its_last_finite_weights():
    start = np.stack([size * np.random.default_rng(3).standard_normal((40, 1)) for size in (0.1, 1e199)])
    with pytest.warns(UserWarning, match="seed 1: diverged at step 0"):
        runs = ap.simulate(PAPER, 2.0, start, 40, 2, "gd", steps=30, test_samples=0)
    assert endings(runs).ravel().tolist() == ["completed", "diverged"]
    assert runs["steps"].to_numpy().ravel().tolist() == [30, 0]
    with pytest.warns(
        UserWarning, match=r"^semantic, d = 30, alpha = 2, seed 0: diverged at step \d+; its last finite"
    ):
        runs = ap.simulate(PAPER, 2.0, "semantic", 30, 1, "gd", learning_rate=900.0, test_samples=0)
    assert endings(runs).item() == "diverged"
    assert 1 < runs["steps"].item() < 5000
    assert np.isfinite(runs["weight_norm"].item())


@pytest.mark.parametrize("name", ["gd", "adam"])
def test_a_trajectory_is_what_shorter_runs_end_with(name):
    def runs(steps: int, **options: Any) -> Any:
        return ap.simulate(PAPER, 2.0, "semantic", 30, 2, name, steps=steps, test_samples=0, **options).squeeze()

    whole = runs(50, trajectory=20)
    assert whole["step"].to_numpy().tolist() == [0, 20, 40]
    assert (whole["trajectory_training_loss"].diff("step") < 0).all()
    for index, steps in ((1, 20), (2, 40)):
        shorter = runs(steps)
        for quantity in ("training_loss", "q", "theta", "m"):
            record = whole[f"trajectory_{quantity}"].isel(step=index)
            np.testing.assert_allclose(shorter[quantity], record, rtol=1e-12, err_msg=quantity)
