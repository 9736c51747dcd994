"""One-pass SGD: its step, its blocks, and its trajectories beside the closed equations for five kinds of problem."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import xarray as xr
from scipy.special import ndtr

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

import attnphase as ap
from attnphase.checks.trajectories import TrajectoryComparison
from attnphase.errors import CompareError, ProblemError
from attnphase.experiments import one_pass
from attnphase.experiments.data import Stream, draw_instance, draw_samples
from attnphase.experiments.own_theory import own_trajectory
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem import Problem
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.settings import FlowSettings

PAPER = Problem.paper(omega=0.3)
START = "semantic=0.4,positional=0.3,noise=0.5"
KINDS = {
    "paper": {"teacher.omega": 0.2},
    "spectrum": {"tokens.spectrum": {"kind": "two-level", "variances": [0.15, 0.6], "fraction": 0.4}},
    "untied": {"student.tied": False},
    "noise": {"teacher.noise": 0.63},
    "rank": {"student.rank": 2, "teacher.rank": 2},
    "mixture": {"tokens.kind": "mixture"},
}


def problem_of(kind):
    coarse = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    if kind != "mixture":
        return coarse.with_fields(KINDS[kind])
    clusters = [{"sigma": 0.5, "mean": [0.9]}, {"sigma": 0.4, "mean": [-0.7]}]
    law = {"kind": "same", "probability": 0.8}
    tokens = {"kind": "mixture", "length": 2, "clusters": clusters, "law": law}
    return Problem.from_dict(coarse.to_dict() | {"tokens": tokens})


def run(problem, **changes):
    asked = {"alpha": 0.5, "start": START, "dimension": 30, "seeds": 3, "learning_rate": 1.3, "test_samples": 0}
    return ap.simulate(problem, **(asked | changes), optimizer="sgd")


def test_a_step_is_the_gradient_of_its_own_samples():
    """Of the risk of the step's samples alone, which other tests hold against finite differences."""
    instance = draw_instance(PAPER, 40, 1, 5, (0, 1), LocalLoss(PAPER))
    weights = initial_weights(instance, START)
    rate, batch = 1.7, 3
    trained = one_pass.descend(instance, weights, TrainingSettings("sgd", learning_rate=rate, batch=batch), batch)
    streams = one_pass._FIRST_FRESH + Stream.CLUSTERS, one_pass._FIRST_FRESH + Stream.TOKENS
    count = one_pass.BLOCK // batch * batch
    block = draw_samples(PAPER, instance.geometries, count, 5, (0, 1), instance.loss, streams)
    parts = {name: getattr(block, name)[:, :batch] for name in ("targets", "grams", "offsets", "teacher_fields")}
    few = replace(block, tokens=block.tokens[:, : 2 * batch], sites=block.sites[:, :batch], **parts)
    _, gradient = Risk(few, instance.loss).smooth(weights)
    ridge = cast("float", PAPER.regularizer.strength) * weights
    # per sample without the ridge, and with lambda / d of it
    expected = weights - rate * ((gradient - ridge) / batch + ridge / 40)
    assert torch.allclose(trained.weights, expected, rtol=1e-12, atol=1e-14)
    assert trained.steps.tolist() == [1, 1]


def test_runs_do_not_depend_on_their_batch_or_on_blocks(monkeypatch):
    whole = run(PAPER, alpha=5.0, trajectory=60)
    alone = run(PAPER, alpha=5.0, trajectory=60, seeds=1)
    assert np.allclose(whole.q.isel(seed=0), alone.q.isel(seed=0), rtol=1e-10, atol=0)
    assert whole.steps.to_numpy().ravel().tolist() == [150] * 3
    assert whole.step.to_numpy().tolist() == [0, 60, 120]
    assert np.isfinite(whole.trajectory_test_error).all()
    assert np.isnan(whole.linear_test_error).all()
    # the risk of fresh samples: without a constant, half of L times the test error and the decay
    decay = cast("float", PAPER.regularizer.strength) / 2 * whole.weight_norm
    assert np.allclose(whole.training_loss, whole.test_error + decay, rtol=1e-12)
    ap.validate_dataset(whole)


def test_steps_see_the_noise_of_labels_and_test_errors_do_not():
    """Weights that hardly move have the risk of any others: Delta L Tr D / 2 more, whatever d is."""
    clean, noisy = (run(PAPER.with_fields({"teacher.noise": x}), trajectory=15, learning_rate=1e-9) for x in (0.0, 0.3))
    assert (clean.q != noisy.q).all()
    assert np.allclose(clean.test_error, noisy.test_error, rtol=1e-6)
    for name in ("training_loss", "trajectory_training_loss"):
        gain = 0.3 * 2 * (0.25 + 0.25) / 2
        assert np.allclose(noisy[name] - clean[name], gain, rtol=1e-4), name  # of the quadrature over the fields


def test_noise_that_a_loss_is_not_quadratic_in_is_drawn_too():
    """Of the label, a sign: the mean cost of weights that are twice the teacher's, by another quadrature."""
    fields = {"tokens.length": 1, "loss.kind": "logistic", "positions.kind": "none", "teacher.mixing": [[1.0]]}
    problem = Problem().with_fields(fields | {"teacher.noise": 1.7, "tokens.sigma": 1.0, "regularizer.strength": 1e-8})
    found = run(problem, alpha=5.0, start="semantic=2.0", learning_rate=1e-9, dimension=200, seeds=2)
    normal, weights = np.polynomial.hermite_e.hermegauss(80)
    for q, risk in zip(found.q.to_numpy().ravel(), found.training_loss.to_numpy().ravel(), strict=True):
        k = np.abs(normal) * (q / 4) ** 0.5  # of this run's own teacher
        wrong = ndtr(-k / 1.7**0.5)
        costs = (1 - wrong) * np.logaddexp(0, -2 * k) + wrong * np.logaddexp(0, 2 * k)
        # four standard errors of the mean over 8 times 2048 labels
        assert risk == pytest.approx(weights @ costs / weights.sum(), abs=7e-3)
        assert risk > found.test_error.max() / 2 + 0.1


def test_an_interrupted_descent_goes_on_with_the_same_numbers(monkeypatch):
    monkeypatch.setattr(one_pass, "BLOCK", 16)
    instance = draw_instance(PAPER, 24, 1, 3, (0, 1), LocalLoss(PAPER))
    weights, settings = initial_weights(instance, START), TrainingSettings("sgd", learning_rate=0.9, trajectory=20)
    kept = []
    whole = one_pass.descend(instance, weights, settings, 70, keep=lambda state: kept.append(state()))
    assert len(kept) == 5
    resumed = one_pass.descend(instance, weights, settings, 70, resume=kept[1])
    assert torch.equal(whole.weights, resumed.weights)
    for name, records in whole.trajectory.items():
        assert np.array_equal(records, resumed.trajectory[name], equal_nan=True), name


@pytest.mark.parametrize("kind", KINDS)
def test_trajectories_follow_the_closed_equations(kind):
    """From every run's own start what is left is the noise of samples, and 1/d: 5 % are allowed for it."""
    problem = problem_of(kind)
    runs = run(problem, alpha=4.0, dimension=150, seeds=6, trajectory=150)
    settings = FlowSettings(1.3, until=4.0, at_rest=0.0)
    times = runs.step.to_numpy() / 150
    own = [own_trajectory(problem, Sizes.of(START), settings, times, 150, 0, s) for s in range(6)]
    moved = 0
    for name in ("q", "theta"):
        values = runs[f"trajectory_{name}"].isel(start=0, dimension=0, alpha=0).to_numpy()
        if kind == "mixture":
            values = values.reshape(6, len(times), -1, *values.shape[4:])
        theory = np.stack([one[name] for one in own])
        assert np.allclose(values[:, 0], theory[:, 0], rtol=1e-8)
        rest = (values - theory)[:, 1:]
        error = rest.std(axis=0, ddof=1) / 6**0.5
        scale = np.abs(theory[:, 1:]).max()
        assert (np.abs(rest.mean(axis=0)) < 5 * error + 0.05 * scale).all(), name
        moved += np.abs(theory[:, -1] - theory[:, 0]).max() > 0.1 * scale
    assert moved  # else agreement would mean nothing


@pytest.fixture(scope="module")
def trajectories() -> tuple[xr.Dataset, xr.Dataset]:
    problem = PAPER.with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 6})
    theory = ap.sgd_flow(problem, START, 1.3, 6.0, records=31)
    return theory, run(problem, alpha=6.0, dimension=[60, 120], seeds=5, trajectory=60)


def test_trajectories_are_compared_at_all_times(trajectories):
    theory, runs = trajectories
    found = ap.compare(theory, runs)
    assert isinstance(found, TrajectoryComparison)
    assert found.within(5.0)
    by_name = {(q.name, q.dimension): q for q in found.quantities}
    assert {name for name, _ in by_name} >= {"q[1,1,1]", "m[2,1]", "theta[1,1,1]", "population_risk", "test_error"}
    q = by_name["q[1,1,1]", 120]
    assert q.times == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0)
    values = runs.trajectory_q.isel(start=0, dimension=1, alpha=0, token=0, row=0, col=0).to_numpy()[:, :13]
    assert q.value == pytest.approx(values.mean(axis=0).tolist())
    assert q.stderr[-1] == pytest.approx(values[:, -1].std(ddof=1) / 5**0.5)
    assert q.theory[-1] == pytest.approx(float(theory.q[-1, 0, 0, 0]), rel=1e-6)
    assert q.own_stderr[-1] < q.stderr[-1]  # the starts' scatter is gone
    assert set(found.fits) == {(START, name) for name, _ in by_name}
    assert "a + b/d" in found.text()


def test_the_theorys_error_counts_beside_the_runs(trajectories):
    """By hand, where it is as large as the runs' or larger: 16 nodes a replicate could leave so much."""
    theory, runs = trajectories
    share = np.linspace(0.4, 2.5, theory.sizes["time"])
    error = 0.08 * share * theory["q"][:, 0, 0, 0].to_numpy()
    found = ap.compare(theory.assign(q_stderr=theory["q_stderr"] * 0 + error[:, None, None, None]), runs)
    assert isinstance(found, TrajectoryComparison)
    (q,) = (one for one in found.quantities if (one.name, one.dimension) == ("q[1,1,1]", 120))
    values = runs.trajectory_q.isel(start=0, dimension=1, alpha=0, token=0, row=0, col=0).to_numpy()[:, :13]
    both = slice(2, None, 2)  # of the runs' records: whole times, which the theory has too
    error = error[5::5]
    np.testing.assert_allclose(theory["time"][5::5], np.array(q.times)[both])
    mean, own = values.mean(axis=0)[both], values.std(axis=0, ddof=1)[both] / 5**0.5
    np.testing.assert_allclose(q.z[both], (mean - theory["q"][5::5, 0, 0, 0]) / np.sqrt(own**2 + error**2), rtol=1e-3)
    assert (error > 0.3 * own).all()  # else it would not matter


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t, r: (t.assign_coords(learning_rate=0.7), r), "the theory has learning_rate = 0.7"),
        (lambda t, r: (t.assign_coords(start="noise=0.1"), r), "the theory has no start"),
        (lambda t, r: (t, r.drop_vars("trajectory_test_error")), "no trajectory of sgd"),
    ],
)
def test_what_does_not_belong_together_is_refused(trajectories, change, words):
    theory, runs = trajectories
    theory, runs = change(theory, runs)
    for name in ("learning_rate", "start"):
        theory[name].attrs = trajectories[0][name].attrs
    with pytest.raises(CompareError, match=words):
        ap.compare(theory, runs)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"steps": 5}, "steps does not go with sgd"),
        ({"tolerance": 1e-3}, "tolerance does not go with sgd"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"start": "semantic=0.1,other=2"}, "start must be one of semantic, positional, noise"),
    ],
)
def test_wrong_settings_are_refused(changed, words):
    with pytest.raises(ProblemError, match=words):
        run(PAPER, **changed)


def test_batches_belong_to_sgd():
    with pytest.raises(ProblemError, match="batch belongs to sgd, not to gd"):
        ap.simulate(PAPER, 1.0, dimension=20, optimizer="gd", batch=2)
