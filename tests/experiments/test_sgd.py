"""One-pass SGD: its samples, the noise of its labels, and its trajectories beside the closed equations.

Not public: which samples a run has seen.
"""

from typing import Any

import numpy as np
import pytest
from models import MIXTURE, model
from scipy.special import ndtr

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.experiments import one_pass

PAPER = ap.Problem.paper(omega=0.3)
START = "semantic=0.4,positional=0.3,noise=0.5"
COARSE = {"integration.rule": "sobol", "integration.nodes": 64}
TWO_LEVEL = {"tokens.spectrum": {"kind": "two-level", "variances": [0.15, 0.6], "fraction": 0.4}}
KINDS: dict[str, tuple[ap.Problem, int]] = {
    "the paper's problem, under a strong ridge": (model("paper", {"regularizer.strength": 0.3}), 1),
    "steps of three samples": (model("paper", {"teacher.omega": 0.2}), 3),
    "two variances": (model("paper", TWO_LEVEL), 1),
    "untied weights": (model("untied"), 1),
    "noise on labels": (model("noisy", {"teacher.noise": 0.63}), 1),
    "two columns": (model("rank 2"), 1),
    "a mixture": (model("paper", {**MIXTURE, "teacher.omega": 0.3}), 1),
}


def run(problem: ap.Problem, **changes: Any) -> Any:
    options: dict[str, Any] = {"alpha": 0.5, "start": START, "dimension": 30, "seeds": 3, "learning_rate": 1.3}
    options |= {"test_samples": 0, **changes}
    return ap.simulate(problem, **options, optimizer="sgd")


def test_runs_make_steps_of_batches_and_report_the_risk_of_fresh_samples():
    whole = run(PAPER, alpha=5.0, trajectory=60)
    assert whole.steps.to_numpy().ravel().tolist() == [150] * 3
    assert whole.step.to_numpy().tolist() == [0, 60, 120]
    assert run(PAPER, alpha=5.0, batch=4).steps.to_numpy().ravel().tolist() == [37] * 3
    assert np.isnan(whole.linear_test_error).all()
    # without a constant: half of L times the test error, and the decay
    np.testing.assert_allclose(whole.training_loss, whole.test_error + 0.01 / 2 * whole.weight_norm, rtol=1e-12)


def test_no_sample_is_seen_twice(monkeypatch):
    """Not of a run, whose 900 samples are drawn in four blocks, and not of three runs."""
    right, drawn = one_pass.draw_samples, []

    def noted(*arguments: Any) -> Any:
        samples = right(*arguments)
        drawn.append(samples.tokens.numpy().reshape(3, -1, 60).copy())  # of runs, the two tokens of samples
        return samples

    monkeypatch.setattr(one_pass, "draw_samples", noted)
    run(PAPER, alpha=30.0)
    assert len(drawn) == 4
    seen = np.concatenate(drawn, axis=1).reshape(-1, 60)
    assert len(np.unique(seen, axis=0)) == len(seen) >= 3 * 900


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
def test_trajectories_follow_the_closed_equations_for(kind):
    """From every run's own start the rest is the noise of samples, and 1/d: 5 % are allowed for it."""
    problem, batch = KINDS[kind][0].with_fields(COARSE), KINDS[kind][1]
    runs = run(problem, alpha=4.0 * batch, dimension=150, seeds=6, trajectory=150, batch=batch)
    theory = ap.sgd_flow(problem, START, 1.3, 4.0, batch=batch, records=9)
    moved = 0
    found: Any = ap.compare(theory, runs)
    for q in found.quantities:
        own, error, value = map(np.array, (q.own, q.own_stderr, q.value))
        scale = np.abs(value - own)[1:].max()
        assert abs(own[0]) < 1e-6 * scale or q.name[0] not in "qmt" or q.name == "test_error", q.name
        assert (np.abs(own[1:]) < 5 * error[1:] + 0.05 * scale).all(), q.name
        moved += q.name[0] in "qt" and abs(value[-1] - value[0]) > 0.1 * scale
    assert moved > 1  # else agreement would mean nothing


def test_trajectories_are_compared_at_all_times_in_standard_errors_of_both():
    """By hand; then with errors of the theory as large as the runs' or larger."""
    problem = PAPER.with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 6})
    theory = ap.sgd_flow(problem, START, 1.3, 6.0, records=31)
    runs = run(problem, alpha=6.0, dimension=[60, 120], seeds=5, trajectory=60)
    found: Any = ap.compare(theory, runs)
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
    assert q.shift == pytest.approx((120 * q.own[-1], 120 * q.own_stderr[-1]))

    error = 0.08 * np.linspace(0.4, 2.5, theory.sizes["time"]) * theory["q"][:, 0, 0, 0].to_numpy()
    found = ap.compare(theory.assign(q_stderr=theory["q_stderr"] * 0 + error[:, None, None, None]), runs)
    (q,) = (one for one in found.quantities if (one.name, one.dimension) == ("q[1,1,1]", 120))
    both, error = slice(2, None, 2), error[5::5]  # of the runs' records: whole times, which the theory has too
    expected = (mean[both] - theory["q"][5::5, 0, 0, 0]) / np.hypot(own[both], error)
    np.testing.assert_allclose(q.z[both], expected, rtol=1e-3)
    assert (error > 0.3 * own[both]).all()  # else it would not matter
