"""One-pass SGD: its step, the noise of its labels, and its trajectories beside the closed equations.

Not public: single steps and samples, and the equations from each run's own start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from instances import instance_of
from models import model

import attnphase as ap
from attnphase.experiments import one_pass
from attnphase.experiments.data import Stream, draw_samples
from attnphase.experiments.own_theory import own_trajectory
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.settings import FlowSettings

PAPER = ap.Problem.paper(omega=0.3)
START = "semantic=0.4,positional=0.3,noise=0.5"
COARSE = {"integration.rule": "sobol", "integration.nodes": 64}
CLUSTERS = [[{"sigma": 0.5, "mean": [0.9]}, {"sigma": 0.4, "mean": [-0.7]}]] * 2
KINDS = {
    "paper": model("paper", {"teacher.omega": 0.2}),
    "spectrum": model("paper", {"tokens.spectrum": {"kind": "two-level", "variances": [0.15, 0.6], "fraction": 0.4}}),
    "untied": model("untied"),
    "noise": model("noisy", {"teacher.noise": 0.63}),
    "rank": model("rank 2"),
    "mixture": model(
        "paper",
        {
            "tokens.kind": "mixture",
            "tokens.clusters": CLUSTERS,
            "tokens.law": {"kind": "same", "probability": 0.8},
            "teacher.omega": 0.3,
        },
    ),
}


def run(problem: ap.Problem, **changes: Any) -> Any:
    options: dict[str, Any] = {"alpha": 0.5, "start": START, "dimension": 30, "seeds": 3, "learning_rate": 1.3}
    return ap.simulate(problem, **(options | {"test_samples": 0} | changes), optimizer="sgd")


def test_a_step_is_the_gradient_of_its_own_samples():
    """Of the risk of the step's samples alone, per sample, with lambda / d of the ridge."""
    instance = instance_of(PAPER, 40, 1, (0, 1), 5)
    weights, rate, batch = initial_weights(instance, START), 1.7, 3
    trained = one_pass.descend(instance, weights, TrainingSettings("sgd", learning_rate=rate, batch=batch), batch)
    streams = one_pass._FIRST_FRESH + Stream.CLUSTERS, one_pass._FIRST_FRESH + Stream.TOKENS
    count = one_pass.BLOCK // batch * batch
    block = draw_samples(PAPER, instance.geometries, count, 5, (0, 1), instance.loss, streams)
    parts = {name: getattr(block, name)[:, :batch] for name in ("targets", "grams", "offsets", "teacher_fields")}
    few = replace(block, tokens=block.tokens[:, : 2 * batch], sites=block.sites[:, :batch], **parts)
    ridge = 0.01 * weights
    expected = weights - rate * ((Risk(few, instance.loss).smooth(weights)[1] - ridge) / batch + ridge / 40)
    torch.testing.assert_close(trained.weights, expected, rtol=1e-12, atol=1e-14)
    assert trained.steps.tolist() == [1, 1]


def test_runs_depend_on_no_other_run_and_report_the_risk_of_fresh_samples():
    whole = run(PAPER, alpha=5.0, trajectory=60)
    alone = run(PAPER, alpha=5.0, trajectory=60, seeds=1)
    np.testing.assert_allclose(whole.q.isel(seed=0), alone.q.isel(seed=0), rtol=1e-10)
    assert whole.steps.to_numpy().ravel().tolist() == [150] * 3
    assert whole.step.to_numpy().tolist() == [0, 60, 120]
    assert np.isnan(whole.linear_test_error).all()
    # without a constant: half of L times the test error, and the decay
    np.testing.assert_allclose(whole.training_loss, whole.test_error + 0.01 / 2 * whole.weight_norm, rtol=1e-12)


def test_steps_see_the_noise_of_labels_and_test_errors_do_not():
    """Weights that hardly move have the risk of any others: Delta L Tr D / 2 more, whatever d is."""
    clean, noisy = (run(PAPER.with_fields({"teacher.noise": x}), trajectory=15, learning_rate=1e-9) for x in (0.0, 0.3))
    assert (clean.q != noisy.q).all()
    np.testing.assert_allclose(clean.test_error, noisy.test_error, rtol=1e-6)
    for name in ("training_loss", "trajectory_training_loss"):
        np.testing.assert_allclose(noisy[name] - clean[name], 0.3 * 2 * (0.25 + 0.25) / 2, rtol=1e-4, err_msg=name)


def test_noise_that_a_loss_is_not_quadratic_in_is_drawn_too():
    """Of the label, a sign: the mean cost of weights that are twice the teacher's, by another quadrature."""
    problem = model("logistic", {"teacher.noise": 1.7, "tokens.sigma": 1.0, "regularizer.strength": 1e-8})
    found = run(problem, alpha=5.0, start="semantic=2.0", learning_rate=1e-9, dimension=200, seeds=2)
    normal, weights = np.polynomial.hermite_e.hermegauss(80)
    for q, risk in zip(found.q.to_numpy().ravel(), found.training_loss.to_numpy().ravel(), strict=True):
        k = np.abs(normal) * (q / 4) ** 0.5  # of this run's own teacher
        wrong = ndtr(-k / 1.7**0.5)
        costs = (1 - wrong) * np.logaddexp(0, -2 * k) + wrong * np.logaddexp(0, 2 * k)
        # four standard errors of the mean over 8 times 2048 labels
        assert risk == pytest.approx(weights @ costs / weights.sum(), abs=7e-3)
        assert risk > found.test_error.max() / 2 + 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_follow_the_closed_equations(kind):
    """From every run's own start the rest is the noise of samples, and 1/d: 5 % are allowed for it."""
    problem = KINDS[kind].with_fields(COARSE)
    runs = run(problem, alpha=4.0, dimension=150, seeds=6, trajectory=150)
    settings, times, moved = FlowSettings(1.3, until=4.0, at_rest=0.0), runs.step.to_numpy() / 150, 0
    own = [own_trajectory(problem, Sizes.of(START), settings, times, 150, 0, s) for s in range(6)]
    for name in ("q", "theta"):
        values = runs[f"trajectory_{name}"].isel(start=0, dimension=0, alpha=0).to_numpy()
        if kind == "mixture":
            values = values.reshape(6, len(times), -1, *values.shape[4:])
        theory = np.stack([one[name] for one in own])
        np.testing.assert_allclose(values[:, 0], theory[:, 0], rtol=1e-8)
        rest, scale = (values - theory)[:, 1:], np.abs(theory[:, 1:]).max()
        error = rest.std(axis=0, ddof=1) / 6**0.5
        assert (np.abs(rest.mean(axis=0)) < 5 * error + 0.05 * scale).all(), name
        moved += np.abs(theory[:, -1] - theory[:, 0]).max() > 0.1 * scale
    assert moved  # else agreement would mean nothing


def test_trajectories_are_compared_at_all_times_in_standard_errors_of_both():
    """By hand; then with errors of the theory as large as the runs' or larger."""
    problem = PAPER.with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 6})
    theory = ap.sgd_flow(problem, START, 1.3, 6.0, records=31)
    runs = run(problem, alpha=6.0, dimension=[60, 120], seeds=5, trajectory=60)
    found = ap.compare(theory, runs)
    assert found.within(5.0)
    by_name = {(q.name, q.dimension): q for q in found.quantities}
    assert {name for name, _ in by_name} >= {"q[1,1,1]", "m[2,1]", "theta[1,1,1]", "population_risk", "test_error"}
    assert set(found.fits) == {(START, name) for name, _ in by_name}
    q = by_name["q[1,1,1]", 120]
    assert q.times == tuple(np.arange(13) / 2)
    values = runs.trajectory_q.isel(start=0, dimension=1, alpha=0, token=0, row=0, col=0).to_numpy()[:, :13]
    mean, own = values.mean(axis=0), values.std(axis=0, ddof=1) / 5**0.5
    np.testing.assert_allclose(q.value, mean)
    np.testing.assert_allclose(q.stderr, own, rtol=1e-9)
    assert q.theory[-1] == pytest.approx(float(theory.q[-1, 0, 0, 0]), rel=1e-6)
    assert q.own_stderr[-1] < q.stderr[-1]  # the starts' scatter is gone

    error = 0.08 * np.linspace(0.4, 2.5, theory.sizes["time"]) * theory["q"][:, 0, 0, 0].to_numpy()
    found = ap.compare(theory.assign(q_stderr=theory["q_stderr"] * 0 + error[:, None, None, None]), runs)
    (q,) = (one for one in found.quantities if (one.name, one.dimension) == ("q[1,1,1]", 120))
    both, error = slice(2, None, 2), error[5::5]  # of the runs' records: whole times, which the theory has too
    expected = (mean[both] - theory["q"][5::5, 0, 0, 0]) / np.hypot(own[both], error)
    np.testing.assert_allclose(q.z[both], expected, rtol=1e-3)
    assert (error > 0.3 * own[both]).all()  # else it would not matter
