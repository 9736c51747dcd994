"""The means over one sample's fields that make the conjugates, at points of one's own: by quadrature, and by chance.

Not public: results are fixed points of the map, where two wrong means may make up for each other.
"""

from itertools import product

import numpy as np
import pytest
from local_problems import Starts, minimised, nodes_of
from models import model
from one_map import CLUSTERS, label_channel, logistic_pull, one_map

import attnphase as ap

CONJUGATES = ("q_hat", "V_hat", "m_hat", "theta_hat")
HINGE = ap.Problem().with_fields(
    {"tokens.length": 1, "tokens.sigma": 1.1, "loss.kind": "hinge", "positions.kind": "none"}
)
# the pull, and the loss, as functions of the margin
LOGISTIC = logistic_pull, lambda margin: np.logaddexp(0.0, -margin)
OF_HINGE = lambda margin, V: np.clip((1 - margin) / V, 0.0, 1.0), lambda margin: np.maximum(1 - margin, 0.0)
LABELS = {
    "logistic": (model("logistic", {"tokens.sigma": 1.1}), LOGISTIC, [(1.0, 1.21, 0.0)]),
    "noisy": (model("logistic", {"tokens.sigma": 1.1, "teacher.noise": 0.27}), LOGISTIC, [(1.0, 1.21, 0.0)]),
    "clusters": (
        model("logistic", CLUSTERS | {"tokens.mean_teacher": [[0.3]], "teacher.noise": 0.27}),
        LOGISTIC,
        [(0.35, 0.49, 0.27), (0.65, 1.69, -0.12)],
    ),
    "hinge": (HINGE, OF_HINGE, [(1.0, 1.21, 0.0)]),
}
"""Problem, pull and loss; of every cluster the weight, the variance of k and its mean."""
POINTS = [(3.1, 2.3, 0.0, 1.2), (4.4, 5.1, -0.3, 1.9)]


@pytest.mark.parametrize(
    ("name", "rule"), [*product(("logistic", "noisy", "clusters"), ("lines", "sobol")), ("hinge", "lines")]
)
def test_conjugates_of_labels_are_those_of_own_quadrature(name, rule):
    """One token, whose label's probability given the student's field is known."""
    problem, (pull, loss), sites = LABELS[name]
    mean, noise = 0.0 if len(sites) == 1 else -0.2, problem.teacher.noise
    points = [(q, V, m + mean, theta) for q, V, m, theta in POINTS[: len(sites)]]
    own = [
        label_channel(2.7 * weight, pull, loss, point, rho, k, noise)
        for point, (weight, rho, k) in zip(points, sites, strict=True)
    ]
    expected = {key: np.array([one[key] for one in own]) for key in CONJUGATES}
    expected["test_error"] = np.array([2 * sum(w * one["loss"] for (w, _, _), one in zip(sites, own, strict=True))])
    seeds = range(6 if rule == "sobol" else 1)
    chosen = {"integration.rule": rule, "integration.nodes": 24 if rule == "lines" else 512}
    problems = [problem.with_fields({**chosen, "integration.seed": seed}) for seed in seeds]
    found = [one_map(each, 2.7, *np.transpose(points)) for each in problems]
    for key, right in expected.items():
        values = np.array([one[key].values.ravel() for one in found])
        scatter = values.std(axis=0, ddof=1) / np.sqrt(len(seeds)) if len(seeds) > 1 else 0.0
        allowed = 6 * scatter + 2e-6 * (1 + np.abs(right))
        assert (allowed <= 0.01 * (0.1 + np.abs(right))).all(), key
        assert (np.abs(values.mean(axis=0) - right) <= allowed).all(), key


@pytest.mark.parametrize("q", [0.0, 1e-9, 1e-5])
def test_weights_that_vanish_have_the_response_of_small_ones(q):
    """V_hat is a finite difference there, over a variance floor that counts once."""
    problem = model("paper", {"tokens.sigma": 0.27, "integration.rule": "lines", "integration.nodes": 16})
    small, other = (one_map(problem, 1.4, [size] * 2, [0.9] * 2, [0.0] * 2, [0.0] * 2)["V_hat"] for size in (q, 3e-5))
    np.testing.assert_allclose(small, other, rtol=1e-3)


def test_attention_with_clusters_and_teachers_means_is_that_of_plain_samples():
    """At a small V, where the residual is minus the gradient at omega: q_hat and m_hat, and the test error."""
    fields = {
        "tokens.kind": "mixture",
        "tokens.sigma": None,
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.9]}],
        "tokens.law": {"kind": "table", "table": [[0.42, 0.13], [0.07, 0.38]]},
        "tokens.mean_teacher": [[0.8]],
        "teacher.omega": 0.22,
        "integration.rule": "sobol",
        "integration.nodes": 1024,
    }
    problem = model("paper", fields)
    sites, chance = problem.cluster_law
    rho = np.tile([0.25, 0.16], 2)  # of both tokens, in either cluster
    q, m = 0.12 + 0.03 * np.arange(4), 0.2 - 0.13 * np.arange(4)
    theta = 0.5 * np.sqrt(rho * q)
    found = one_map(problem, 1.6, q, [1e-5] * 4, m, theta)
    rng, count = np.random.default_rng(4), 400_000
    here = np.array(sites)[rng.choice(len(chance), count, p=chance)]
    x, z = rng.normal(size=(2, count, 2))
    h = m[here] + np.sqrt(q[here]) * x
    k = (theta / np.sqrt(q))[here] * x + np.sqrt(rho - theta**2 / q)[here] * z
    k += np.tile([1.3 * 0.8, -0.9 * 0.8], 2)[here]
    omega, mixing, variance = 0.22, problem.mixing_matrix, rho[here]

    def losses(h):
        """``1/2 Tr[(S - T) D (S - T)^T]``, as it is written in the paper."""

        def scores(fields):
            weights = np.exp(fields[..., :, None] * fields[..., None, :])
            return weights / weights.sum(axis=-1, keepdims=True)

        rest = scores(h) - (1 - omega) * scores(k) - omega * mixing
        return 0.5 * np.einsum("nab,nab,nb->n", rest, rest, variance)

    residuals = -np.stack([(losses(h + e) - losses(h - e)) / 2e-5 for e in 1e-5 * np.eye(2)], axis=1)
    samples = {("test_error", 0): losses(h)}
    for site in range(4):
        samples["q_hat", site] = 1.6 * (residuals**2 * (here == site)).sum(axis=1)
        samples["m_hat", site] = 1.6 * (residuals * (here == site)).sum(axis=1)
    for (name, site), values in samples.items():
        error = 1.2 * values.std() / np.sqrt(count)
        assert np.ravel(found[name])[site] == pytest.approx(values.mean(), abs=4 * error), (name, site)


@pytest.mark.parametrize(("m", "theta"), [(0.0, 0.09), (0.21, 0.0), (0.2, 0.1)])
def test_second_minima_are_counted_within_their_distance(m, theta):
    """A thousandth of the unit of energy, ``(2 sigma)^2``; against fields drawn here."""
    fields = {"integration.rule": "sobol", "integration.nodes": 256, "teacher.omega": 0.31}
    q, V, rho, seeds = 0.15, 40.0, 0.25, 4
    problems = [model("paper", {**fields, "integration.seed": seed}) for seed in range(seeds)]
    found = [one_map(each, 1.6, [q] * 2, [V] * 2, [m, -m], [theta] * 2)["second_minimum_share"] for each in problems]
    rng, count = np.random.default_rng(9), 40_000
    x, z = rng.normal(size=(2, count, 2, 1))
    omega = np.array([[m], [-m]]) + np.sqrt(q) * x
    k = theta / np.sqrt(q) * x + np.sqrt(rho - theta**2 / q) * z
    nodes = nodes_of(problems[0], omega, k, np.full((2, 1, 1), V))
    gaps = np.diff(minimised(problems[0], nodes, Starts.COLD).energies)[:, 0]
    share = ((gaps > 0) & (gaps < 1e-3)).mean()
    variants = 4 if m and theta else 2  # sign changes of each point that are searched
    spread = np.sqrt(share / count + share / (16 * 256 * variants * seeds))
    assert spread < 0.1 * share
    assert np.mean(found) == pytest.approx(share, abs=4 * spread)
