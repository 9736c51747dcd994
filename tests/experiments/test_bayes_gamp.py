"""Bayes-optimal message passing as an optimiser, against its theory, ridge regression and published errors.

Not public: the table that `simulate` prints.
"""

import math
from typing import Any

import numpy as np
import pytest
from solving import endings

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.data.text import format_mean
from attnphase.theories.bayes_optimal.text import posterior_table

PAPER = ap.Problem.paper(omega=0.3)
PRIORS: dict[str, dict[str, Any]] = {
    "signs": {"teacher.prior": "rademacher"},
    "sparse": {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.25},
    "skewed": {"teacher.prior": "atoms", "teacher.prior_values": [0.0, 1.5], "teacher.prior_probabilities": [0.7, 0.3]},
}


def one_token(**fields: Any) -> ap.Problem:
    tokens = {"length": 1, "sigma": 0.7}
    return ap.Problem.from_dict({"tokens": tokens, "loss": {"kind": "square"}}).with_fields(fields)


def passed(
    problem: ap.Problem, alpha: float, start: Any = "uninformed", d: Any = 200, seeds: int = 8, **options: Any
) -> Any:
    return ap.simulate(problem, alpha, start, d, seeds, "bayes-gamp", **options)


def z_score(values: Any, expected: float) -> float:
    values = np.asarray(values)
    return abs(np.mean(values) - expected) / (np.std(values, ddof=1) / math.sqrt(values.size))


def test_runs_follow_the_theory_of_the_paper_s_teacher():
    """Overlap and test error at alpha = .4, where both starts agree, by Gauss rules and of many nodes."""
    ds = passed(PAPER, 0.4, ["uninformed", "informed"], 400, 10, seed=3, steps=80, tolerance=1e-4)
    assert (endings(ds) != "diverged").all()
    for start in ("uninformed", "informed"):
        runs = ds.sel(start=start).squeeze()
        assert z_score(runs["overlap"], 0.592012) < 4, start
        assert z_score(runs["test_error"], 0.001296) < 4, start
        # Nishimori: what the learner takes to be unknown is so, and its overlaps with itself and the teacher agree
        size, known, unknown = (runs[name].mean("token").to_numpy() for name in ("q", "theta", "V"))
        assert z_score(size - known, 0) < 4
        assert z_score(size + unknown, 0.25) < 4


def test_linear_labels_with_noise_lead_to_the_ridge_estimate():
    """For ``y = k + noise`` and a normal prior V solves a quadratic equation, and is the error of a fresh label."""
    ds = passed(one_token(**{"teacher.noise": 0.15}), 1.4, d=150, seed=5)
    assert (endings(ds) == "converged").all()
    # V (1/rho + alpha / (noise + V)) = 1
    rho, alpha, noise = 0.49, 1.4, 0.15
    V = max(np.roots([1 / rho, noise / rho + alpha - 1, -noise]).real)
    assert float(ds["V"].mean()) == pytest.approx(V, rel=0.02)
    assert z_score(ds["theta"], rho - V) < 4
    assert z_score(ds["test_error"], V) < 4


@pytest.mark.parametrize("channel", ["sign", "1/(1 + exp(-80*y*k))"])
def test_signs_are_learned_with_the_published_error(channel):
    """At alpha = 3, and of a likelihood that is nearly the sign's."""
    ds = passed(one_token(), 3.0, d=120, seeds=10, channel=channel, steps=30, seed=1)
    assert ds.attrs["channel"] == channel
    assert z_score(ds["test_error"], 0.12985) < 4


def test_the_stated_error_of_a_test_error_is_its_distance_from_the_closed_form():
    """Signs as weights have a known length, so that a sign is guessed wrongly with probability angle over pi."""
    runs = passed(one_token(**PRIORS["signs"]), 0.8, d=100, seeds=24, seed=5, steps=8, channel="sign").squeeze()
    exact = np.arccos(runs["theta"] / np.sqrt(0.49 * runs["q"])).squeeze() / np.pi
    assert 0.6 < np.sqrt((((runs["test_error"] - exact) / runs["test_error_stderr"]) ** 2).mean()) < 1.7


@pytest.mark.parametrize("prior", PRIORS)
def test_runs_know_the_law_of_the_weights(prior):
    """A learner who takes them for Gaussian knows less, by more than the errors."""
    problem = one_token(**{"teacher.noise": 0.2}, **PRIORS[prior])
    theory = ap.bayes_optimal(problem, 0.7, start="uninformed")
    runs = passed(problem, 0.7, d=800, seeds=16, seed=5)
    assert (endings(runs) != "diverged").all()
    assert ap.compare(theory, runs).within(4.0)
    gauss = ap.bayes_optimal(problem.with_fields({"teacher.prior": "gaussian"}), 0.7, start="uninformed")
    assert z_score(runs["overlap"], gauss["overlap"].item()) > 6


def test_signs_that_are_known_end_a_run():
    """Where V is zero in all digits: noiseless signs above 1.49."""
    runs = passed(one_token(**PRIORS["signs"]).with_fields({"loss.kind": "logistic"}), 2.6, d=300, seeds=3, seed=1)
    assert (endings(runs) == "converged").all()
    np.testing.assert_allclose(runs["overlap"], 1, rtol=1e-6)
    np.testing.assert_allclose(runs["test_error"], 0, atol=1e-6)


def test_a_table_of_runs_is_of_those_that_did_not_diverge():
    runs = passed(one_token(), 1.2, d=40, seeds=4, steps=3)
    runs["overlap"][{"seed": 2}], runs["change"][{"seed": 2}], runs["status"][{"seed": 2}] = 1e6, 9e9, 4
    runs["steps"][{"seed": 2}] = 77
    left = runs["overlap"].squeeze().drop_isel(seed=2).to_numpy()
    cells = posterior_table(runs).text().split()
    assert format_mean(left) in cells
    assert float(format_mean(left).split("(")[0]) == pytest.approx(left.mean(), abs=left.std())
    assert not {"9.0e+09", "77"} & {*cells}


def test_runs_come_to_rest_or_say_whether_their_overlaps_have():
    """Of eight that end, three would go on for ever if damping stayed as it is; four are cut on the way, then later."""
    ds = passed(PAPER, 0.4, seed=3)
    assert (endings(ds) == "converged").sum() >= 5
    assert float(ds["change"].max()) < 2e-3
    cut: dict[str, Any] = {"d": 150, "seeds": 4, "seed": 5, "tolerance": 1e-13, "trajectory": 1}
    assert (endings(passed(PAPER, 0.45, steps=7, **cut)) == "step_limit").all()
    late = passed(PAPER, 0.45, steps=100, **cut).squeeze()
    last = late["trajectory_overlap"].to_numpy()[:, -21:]  # between two looks at the sizes
    still = np.ptp(last, axis=1) < 0.1 * last.mean(axis=1)
    assert still.sum() == 2
    np.testing.assert_array_equal(endings(late), np.where(still, "unsettled", "step_limit"))
    assert (late["change"][still] > 1e-3).all()


def test_what_a_learner_knows_does_not_depend_on_encodings_or_clusters_of_its_tokens():
    """Encodings are in the tokens that are drawn; labels without noise do not depend on the scale of the fields."""
    gram = [
        PAPER.with_fields({"positions.kind": "gram", "positions.gram": [[size, 0], [0, size]]}) for size in (0.01, 90.0)
    ]
    near, far = (passed(problem, 0.4, d=60, seeds=2, steps=12) for problem in gram)
    np.testing.assert_allclose(near["overlap"], far["overlap"], rtol=1e-6)
    clusters = {"tokens.kind": "mixture", "tokens.clusters": [[{"sigma": 0.5}, {"sigma": 0.3}]] * 2}
    ds = passed(ap.Problem().with_fields(clusters), 0.45, seeds=6, steps=60, tolerance=1e-4)
    assert z_score(ds["overlap"], 0.786182) < 4
    assert ds["q"].dims[-4:] == ("token", "cluster", "teacher", "teacher_column")


EXCHANGES = (np.eye(2), np.eye(2)[::-1])
FRAMES: dict[str, tuple[dict[str, Any], Any]] = {
    "exchanges and signs of even columns": (
        PRIORS["signs"],
        [one * [[a], [b]] for one in EXCHANGES for a in (1, -1) for b in (1, -1)],
    ),
    "exchanges alone of skewed ones": (
        PRIORS["skewed"] | {"teacher.prior_values": [-0.5, 1.0], "teacher.prior_probabilities": [2 / 3, 1 / 3]},
        EXCHANGES,
    ),
}


@pytest.mark.parametrize("group", FRAMES)
def test_runs_are_measured_in_the_frame_that_is_open_to(group):
    """Weights that know nothing have normal overlaps with two columns: the mean of the largest trace is the group's."""
    prior, frames = FRAMES[group]
    problem = ap.Problem().with_fields({"tokens.sigma": 1.0, "positions.kind": "none", "teacher.noise": 0.3, **prior})
    problem = problem.with_fields({"teacher.rank": 2, "student.rank": 2})
    runs = passed(problem, 0.1, seeds=40, steps=1, trajectory=1, seed=2)
    trace = runs["trajectory_overlap"].isel(step=0) * 2 * math.sqrt(200) / 0.01
    normal = np.random.default_rng(0).standard_normal((100_000, 2, 2))
    largest = np.max([(normal * frame).sum(axis=(1, 2)) for frame in frames], axis=0)
    assert z_score(trace, largest.mean()) < 4


def test_only_labels_that_do_not_show_a_sign_leave_it_open():
    """Of attention it is chosen, of a linear label it is not."""
    for problem, chosen in ((PAPER, True), (one_token(), False)):
        overlap = passed(problem, 0.3, d=100, seeds=40, steps=1, trajectory=1)["trajectory_overlap"].isel(step=0)
        assert bool((overlap > 0).all()) == chosen
        assert (overlap > 0).sum() > 8
