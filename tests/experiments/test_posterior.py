"""Bayes-optimal message passing as an optimiser: its theory, closed forms, resumption, refusals, the command."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

from click.testing import CliRunner

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.variables import RunStatus
from attnphase.errors import CompareError, ProblemError
from attnphase.files.writing import write_file
from attnphase.problem.problem import Problem
from attnphase.theories.bayes_optimal.importance import Noisy
from attnphase.theories.bayes_optimal.message_passing import Labelled, frame, read_labels, refresh_rows
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.row_mixtures import RowMixture
from attnphase.theories.bayes_optimal.symmetries import turns

PAPER = Problem.paper(omega=0.3)
SIGNS: dict[str, Any] = {"teacher.prior": "rademacher"}
SPARSE: dict[str, Any] = {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.25}
SKEWED: dict[str, Any] = {
    "teacher.prior": "atoms",
    "teacher.prior_values": [0.0, 1.5],
    "teacher.prior_probabilities": [0.7, 0.3],
}


def one_token(**fields):
    tokens = {"length": 1, "sigma": 0.7}
    return Problem.from_dict({"tokens": tokens, "loss": {"kind": "square"}}).with_fields(fields)


def z_score(values, expected):
    return abs(np.mean(values) - expected) / (np.std(values, ddof=1) / math.sqrt(np.size(values)))


def test_runs_follow_the_theory_of_the_paper_s_teacher():
    """Overlap and test error at alpha = .4, where both starts agree, by Gauss rules and of many nodes."""
    ds = ap.simulate(PAPER, 0.4, ["uninformed", "informed"], 400, 10, "bayes-gamp", seed=3, steps=80, tolerance=1e-4)
    ap.validate_dataset(ds)
    assert not (ds["status"] == RunStatus.diverged).any()
    for start in ("uninformed", "informed"):
        runs = ds.sel(start=start).squeeze()
        assert z_score(runs["overlap"].to_numpy(), 0.592012) < 4, (
            start
        )  # by Gauss rules, tests/numeric/test_bayes_optimal.py
        assert z_score(runs["test_error"].to_numpy(), 0.001296) < 4, start
        # Nishimori: what the learner takes to be unknown is so, and its overlaps with itself and the teacher agree
        size = runs["q"].mean("token").to_numpy()
        known = runs["theta"].mean("token").to_numpy()
        unknown = runs["V"].mean("token").to_numpy()
        assert z_score(size - known, 0) < 4
        assert z_score(size + unknown, 0.25) < 4


def test_runs_that_go_round_come_to_rest():
    """Of these eight, three go on for ever with steps of a tenth or more if damping stays as it is."""
    ds = ap.simulate(PAPER, 0.4, "uninformed", 200, 8, "bayes-gamp", seed=3)
    assert int((ds["status"] == RunStatus.converged).sum()) >= 5
    assert float(ds["change"].max()) < 2e-3


def test_a_run_that_is_cut_says_whether_its_overlaps_had_settled():
    """Cut on the way up, where none has; and later, where two of four have and single weights still move."""
    arguments = {"seed": 5, "tolerance": 1e-13, "trajectory": 1}
    early = ap.simulate(PAPER, 0.45, "uninformed", 150, 4, "bayes-gamp", steps=7, **arguments).squeeze()
    assert (early["status"] == RunStatus.step_limit).all()
    late = ap.simulate(PAPER, 0.45, "uninformed", 150, 4, "bayes-gamp", steps=100, **arguments).squeeze()
    last = late["trajectory_overlap"].to_numpy()[:, -21:]  # between two looks at the sizes
    still = np.ptp(last, axis=1) < 0.1 * last.mean(axis=1)
    assert still.sum() == 2
    expected = np.where(still, RunStatus.unsettled, RunStatus.step_limit)
    np.testing.assert_array_equal(late["status"], expected)
    assert (late["change"][still] > 1e-3).all()


def test_a_dimension_that_is_too_small_is_refused_before_anything_is_generated(monkeypatch):
    from attnphase.errors import ExperimentError
    from attnphase.experiments import runs

    monkeypatch.setattr(runs, "LocalLoss", lambda *_: pytest.fail("generated"))
    with pytest.raises(ExperimentError, match=r"dimension must be at least 3 here, .*, not 2\.$"):
        ap.simulate(PAPER, 0.4, "uninformed", 2, 1, "bayes-gamp")


def test_linear_labels_with_noise_lead_to_the_ridge_estimate():
    """For ``y = k + noise`` and a normal prior the posterior's mean is ridge regression, which NumPy solves."""
    noise, d, alpha = 0.15, 150, 1.4
    problem = one_token(**{"teacher.noise": noise})
    ds = ap.simulate(problem, alpha, dimension=d, seeds=8, optimizer="bayes-gamp", seed=5)
    assert (ds["status"] == RunStatus.converged).all()
    rho = 0.49
    V = next(v for v in np.linspace(1e-4, rho, 40000) if v * (1 / rho + alpha / (noise + v)) >= 1)
    assert float(ds["V"].mean()) == pytest.approx(V, rel=0.02)
    assert z_score(ds["theta"].to_numpy(), rho - V) < 4
    # a fresh label's error is what is left of the field
    assert z_score(ds["test_error"].to_numpy(), V) < 4


@pytest.mark.parametrize("channel", ["sign", "1/(1 + exp(-80*y*k))"])
def test_signs_are_learned_as_fast_as_they_can_be(channel):
    """The published error of the sign channel at alpha = 3, and of a likelihood that is nearly one."""
    ds = ap.simulate(
        one_token(), 3.0, dimension=120, seeds=10, optimizer="bayes-gamp", channel=channel, steps=30, seed=1
    )
    assert ds.attrs["channel"] == channel
    assert z_score(ds["test_error"].to_numpy(), 0.12985) < 4


@pytest.mark.parametrize("prior", [SIGNS, SPARSE, SKEWED], ids=["signs", "sparse", "skewed"])
def test_runs_know_the_law_of_the_weights(prior):
    """Linear labels with noise; the mean and the spread of the learner's posterior by a theory of its own law."""
    problem = one_token(**{"teacher.noise": 0.2}, **prior)
    theory = ap.bayes_optimal(problem, 0.7, start="uninformed")
    runs = ap.simulate(problem, 0.7, "uninformed", 800, 16, "bayes-gamp", seed=5)
    assert not (runs["status"] == RunStatus.diverged).any()
    assert ap.compare(theory, runs).within(4.0)
    # a learner who takes them for Gaussian knows less, by more than that
    gauss = ap.bayes_optimal(problem.with_fields({"teacher.prior": "gaussian"}), 0.7, start="uninformed")
    assert z_score(runs["overlap"].to_numpy(), gauss["overlap"].item()) > 6


def test_a_row_of_signs_by_hand():
    gamma, weights, pulled = np.array([[0.4, 0.9]]), np.array([[0.3], [-0.7]]), np.array([[0.2], [0.8]])
    mixture = RowMixture.of(one_token(**SIGNS).teacher.law, 1)
    means, c = refresh_rows(np.eye(1), gamma, np.full((1, 1, 1), 3.1), pulled, weights, mixture)
    expected = np.tanh(pulled.ravel() + gamma[0] * 3.1 / 2 * weights.ravel())
    assert means.ravel() == pytest.approx(expected)
    assert c.ravel() == pytest.approx(1 - expected**2)


def test_signs_that_are_known_end_a_run():
    """Where V is zero in all digits: noiseless signs above 1.49."""
    problem = Problem.from_dict({"tokens": {"length": 1}, "loss": {"kind": "logistic"}}).with_fields(SIGNS)
    runs = ap.simulate(problem, 2.6, "uninformed", 300, 3, "bayes-gamp", seed=1)
    assert (runs["status"] == RunStatus.converged).all()
    assert runs["overlap"].to_numpy() == pytest.approx(1)
    assert runs["test_error"].to_numpy() == pytest.approx(0, abs=1e-6)


def test_a_step_by_hand():
    """Two samples of one token with the label k + noise: residual, response and rows, written out."""
    model = model_of(one_token(**{"teacher.noise": 0.3}), None)
    k, omega, z, V = np.array([0.4, -1.1]), np.array([0.1, -0.2]), np.array([0.5, -1.4]), 0.23
    samples = Labelled(k[:, None, None], z[:, None], np.zeros((2, 1), int))
    residuals, responses = read_labels(model, samples, omega[:, None, None], np.full((1, 1, 1), V))
    labels = k + math.sqrt(0.3) * z
    assert residuals.ravel() == pytest.approx((labels - omega) / (V + 0.3), rel=0.02)
    assert responses.item() == pytest.approx(2 / (V + 0.3), rel=0.02)
    gamma, weights, pulled = np.array([[0.4, 0.9]]), np.array([[0.3], [-0.7]]), np.array([[0.2], [0.8]])
    means, c = refresh_rows(np.eye(1), gamma, np.full((1, 1, 1), 3.1), pulled, weights)
    curvature = gamma[0] * 3.1 / 2
    assert c.ravel() == pytest.approx(1 / (1 + curvature))
    assert means.ravel() == pytest.approx((pulled.ravel() + curvature * weights.ravel()) / (1 + curvature))


def test_what_a_learner_is_told_does_not_depend_on_encodings():
    """The student's encodings are in the tokens that are drawn; of two sizes of them the overlaps are the same."""
    near, far = (
        ap.simulate(
            Problem.paper(omega=0.3).with_fields({"positions.kind": "gram", "positions.gram": [[size, 0], [0, size]]}),
            0.4, dimension=60, seeds=2, optimizer="bayes-gamp", steps=12,
        )
        for size in (0.01, 90.0)
    )  # fmt: skip
    np.testing.assert_allclose(near["overlap"], far["overlap"], rtol=1e-6)


def test_the_frame_is_a_sign_where_labels_leave_one_only():
    theta = np.array([[[-0.3]], [[-0.2]]])
    assert frame(model_of(PAPER), theta).item() == -1
    assert frame(model_of(one_token()), theta[:1]).item() == 1
    turned = np.array([[0.6, -0.8], [0.8, 0.6]])
    channel = Noisy(lambda k: k, 4, 2, 2, 0.1, turns(2, 8))
    prior = SimpleNamespace(mixture=None)
    rank_two: Any = SimpleNamespace(channel=channel, prior=prior)  # a model of rank two is dear to compile
    assert frame(rank_two, np.stack([0.3 * turned, 0.1 * turned])) == pytest.approx(turned)
    # the law of independent entries that are no Gaussian knows exchanges and signs, or exchanges alone
    prior.mixture = RowMixture.of(model_of(one_token(**SIGNS)).problem.teacher.law, 2)
    assert frame(rank_two, np.stack([0.3 * turned, 0.1 * turned])) == pytest.approx(np.array([[0, -1], [1, 0]]))
    prior.mixture = RowMixture.of(model_of(one_token(**SKEWED)).problem.teacher.law, 2)
    assert frame(rank_two, np.stack([0.3 * turned, 0.1 * turned])) == pytest.approx(np.eye(2))


def test_clusters_need_no_other_run_than_tokens_that_are_alike(tmp_path):
    clusters = [[{"sigma": 0.5}, {"sigma": 0.3}]] * 2
    problem = Problem.from_dict({"tokens": {"kind": "mixture", "length": 2, "clusters": clusters}})
    ds = ap.simulate(problem, 0.45, dimension=200, seeds=6, optimizer="bayes-gamp", steps=60, tolerance=1e-4)
    # labels without noise do not depend on the scale of the fields
    assert z_score(ds["overlap"].to_numpy(), 0.786182) < 4
    assert ds["q"].dims[-4:] == ("token", "cluster", "teacher", "teacher_column")
    ap.save_dataset(ds, tmp_path / "runs.nc")
    assert ap.load_dataset(tmp_path / "runs.nc").identical(ds)


def test_a_run_that_was_interrupted_goes_on_with_the_same_numbers(tmp_path, monkeypatch):
    path, written = tmp_path / "runs.checkpoint", []

    def kept(path, content):
        written.append(content)
        write_file(path, content)

    grid = (PAPER, 0.65, ["uninformed", "informed"], 50, 2, "bayes-gamp")
    options = {"steps": 45, "tolerance": 1e-2, "trajectory": 10}
    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.checkpoints.write_file", kept)
        whole = ap.simulate(*grid, **options, checkpoint=path, checkpoint_interval=0)
    assert len(set(whole["steps"].sel(start="uninformed").to_numpy().ravel())) == 2  # one run ends before the other
    first = int(whole["steps"].sel(start="uninformed").min())
    for content in (written[first - 2], written[first + 1], written[-3]):
        path.write_bytes(content)
        with pytest.warns(UserWarning, match="going on from this checkpoint"):
            resumed = ap.simulate(*grid, **options, checkpoint=path)
        assert whole.drop_attrs().identical(resumed.drop_attrs())
    assert whole["step"].to_numpy().tolist()[:2] == [0, 10]


def test_comparison_with_the_limit(tmp_path):
    theory = ap.bayes_optimal(PAPER, [0.45], settings=ap.SolverSettings(max_nodes=2**14))
    runs = ap.simulate(PAPER, 0.45, "uninformed", [200, 400], 8, "bayes-gamp", steps=80, tolerance=1e-4)
    found = ap.compare(theory, runs)
    assert {"overlap", "test_error", "q[1,1,1]", "theta[1,1,1]", "V[1,1,1]"} <= {q.name for q in found.quantities}
    assert found.within(4.0)
    assert all(q.limit is not None for q in found.quantities)
    with pytest.raises(CompareError, match='no branch "informed"'):
        ap.compare(
            theory.sel(start=["uninformed"]), runs.assign_coords(start=("start", ["informed"], runs.start.attrs))
        )
    with pytest.raises(CompareError, match="different channels: what the problem says in the theory and sign"):
        ap.compare(theory, runs.assign_attrs(channel="sign"))
    with pytest.raises(CompareError, match='must be a dataset of kind "posterior"'):
        ap.compare(theory, theory)
    (tmp_path / "x").mkdir()
    from attnphase.figures import comparison_figure, save_figure

    save_figure(comparison_figure(found), tmp_path / "x" / "c.png")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--start", "semantic"], "start must be"),
        (["--learning-rate", "0.1"], "learning_rate belongs to gd, adam, fista, sgd, not to bayes-gamp"),
        (["--set", "teacher.rank=3"], "teacher.rank must be 1 or 2"),
        (["--channel", "sign"], 'channel = "sign" is for one token'),
        (["--optimizer", "gd", "--channel", "sign"], "channel belongs to bayes-gamp, not to gd"),
    ],
)
def test_what_is_not_covered_is_refused_in_one_sentence(options, sentence):
    result = CliRunner().invoke(main, ["simulate", "--optimizer", "bayes-gamp", "--alpha", "0.4", *options])
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_known_means_are_refused():
    clusters = [[{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.5, "mean": [-1.5]}]] * 2
    tokens = {"kind": "mixture", "length": 2, "clusters": clusters, "mean_teacher": [[0.6]]}
    with pytest.raises(ProblemError, match=r"tokens\.mean_teacher"):
        ap.simulate(Problem.from_dict({"tokens": tokens}), 0.4, dimension=30, seeds=1, optimizer="bayes-gamp")


def test_the_command_prints_runs_and_says_which_did_not_come_to_rest():
    given = ["simulate", "--optimizer", "bayes-gamp", "--alpha", "0.6", "--dimension", "100", "--seeds", "2"]
    result = CliRunner().invoke(main, [*given, "--steps", "3"])
    assert result.exit_code == 1
    assert "2 of 2 runs not converged" in result.stderr
    assert "uninformed" in result.stdout
    result = CliRunner().invoke(main, [*given, "--start", "informed", "--json"])
    assert result.exit_code == 0
    assert np.ravel(json.loads(result.stdout)["overlap"]) == pytest.approx([1, 1])
