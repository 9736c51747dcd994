"""The free entropy is stationary where the state-evolution equations hold, and reduces to what is known exactly.

At random order parameters and conjugates: ``-Phi`` is stationary in the order parameters wherever the conjugates are
their image under the channel, and in the conjugates wherever the order parameters are theirs under the spectral
measure.  A fixed point is where both hold.

Not public: the two halves of the map and the terms of ``-Phi``, which ``solve`` does not show one by one.
"""

from dataclasses import replace

import numpy as np
import pytest
from models import model
from ridge import ridge_regression

import attnphase as ap
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.system import System

TWO_TOKENS = {
    "tokens.sigma": [0.41, 0.36],
    "positions.gram": [[1.2, -0.9], [-0.9, 0.8]],
    "teacher.omega": 0.28,
    "teacher.mixing": [[0.66, 0.31], [0.42, 0.56]],
    "regularizer.strength": 0.02,
}
# at small V, that is with many samples, the local problem is convex and Gauss-Hermite rules converge
SMOOTH = {"softmax": model("paper", TWO_TOKENS), "linear": model("linear", TWO_TOKENS)}
ORDER = {"softmax": 14, "linear": 12}
QUADRATURE = 1e-6  # error left to these, relative to the largest term
# at large V its minimiser jumps
ROUGH = TWO_TOKENS | {"tokens.sigma": [0.61, 0.54], "regularizer.strength": 0.009}
ATOMS = [{"weight": 0.35, "variances": [0.2, 0.3]}, {"weight": 0.65, "variances": [0.9, 0.4]}]
SPECTRA = {
    "paper": SMOOTH["softmax"],
    "untied": model("untied", ROUGH),
    "rank 2": model("rank 2", ROUGH),
    "two variances": model("paper", ROUGH | {"tokens.sigma": None, "tokens.spectrum": ATOMS}),
}
STEP = 2e-5  # relative; sampled nodes change their minimum, and nearly perfect recovery is near the domain's edge


def with_rule(problem, rule, nodes, seed=0):
    return problem.with_fields({"integration.rule": rule, "integration.nodes": nodes, "integration.seed": seed})


class FreeEntropy:
    """``-Phi`` of a problem under its rule, and the two halves of the map."""

    def __init__(self, problem, alpha):
        self.problem, self.alpha, self.system = problem, alpha, System.of(problem)
        self.channel = Channel(self.system, self.system.refinement(2**20).first())
        self.rho = self.system.spectrum.rho

    def passed(self, x):
        """Conjugates (with V_hat symmetric, as it is up to the rule's error), energies E[M], and the channel's pass."""
        found = self.channel.evaluate(self.alpha, x, Starts.COLD)
        c = found.conjugates
        return replace(c, V_hat=(c.V_hat + c.V_hat.mT) / 2), found.envelope, found

    def terms(self, x, c, energy, strength=None):
        """Every term, per replicate."""
        prior = Prior(self.system.kernels, self.system.spectrum, strength or self.problem.regularizer.strength)
        given = prior.arguments(Conjugates(*(np.zeros((1, 1, 1, 1)) for _ in range(4))))
        own = {name: value[:, None] for name, value in x.by_name.items()} | c.by_name
        function = self.system.kernels.ridge.free_entropy_terms
        found = function(alpha=self.alpha, field_mean=lambda v: v, **given, envelope=energy[:, None, None], **own)
        return np.stack([np.broadcast_to(np.squeeze(term), energy.shape) for term in found.values()])

    def gradient_in_overlaps(self, x, c):
        """By every independent entry, in its own size, per replicate."""
        shape, size, zero = x.theta.shape, x.scales(self.rho), np.zeros(len(self.passed(x)[1]))

        def energy(v):
            return self.alpha * self.passed(Overlaps.unpack(v, *shape))[1]

        def rest(v):  # linear in the order parameters
            return self.terms(Overlaps.unpack(v, *shape), c, zero).sum(axis=0)

        return central(energy, x.pack(), size, STEP) + derivatives(rest, x.pack(), size)

    def gradient_in_conjugates(self, x, c):
        """By every independent entry, in its own size."""
        blocks = Overlaps(*(value[:, 0] for value in (c.q_hat, c.V_hat, c.m_hat, c.theta_hat)))
        shape, eye = blocks.theta.shape, np.eye(blocks.theta.shape[-1])

        def value(v):
            moved = Conjugates(*(part[:, None] for part in Overlaps.unpack(v, *shape).by_name.values()))
            return self.terms(x, moved, np.zeros(1)).sum(axis=0)

        return derivatives(value, blocks.pack(), blocks.scales(np.broadcast_to(eye, (len(blocks.q), *eye.shape))))


def central(function, point, size, step):
    return np.stack([function(point + unit) - function(point - unit) for unit in np.diag(step * size)]) / (2 * step)


def derivatives(function, point, size):
    coarse, fine = (central(function, point, size, step) for step in (STEP, STEP / 2))
    return (4 * fine - coarse) / 3


def random_overlaps(at, seed, size):
    """Feasible overlaps without any symmetry; `size` sets V."""
    rng, problem = np.random.default_rng(seed), at.problem
    length, r, t = problem.tokens.length, problem.columns, problem.teacher.rank
    fields, width = rng.normal(size=(length, r + t, r + t + 3)), rng.normal(size=(length, r, r + 3))
    joint = fields @ fields.mT / (r + t + 3)
    to_rho = np.linalg.cholesky(at.rho) @ np.linalg.inv(np.linalg.cholesky(joint[:, r:, r:]))
    return Overlaps(
        q=at.rho.mean() * joint[:, :r, :r],
        V=size * (width @ width.mT / (r + 3) + 0.3 * np.eye(r)),
        m=0.3 * rng.normal(size=(length, r, 1)),
        theta=np.sqrt(at.rho.mean()) * joint[:, :r, r:] @ to_rho.mT,
    )


@pytest.mark.parametrize(("name", "seed"), [("softmax", 2), ("linear", 1)])
def test_channel_makes_the_free_entropy_stationary_in_the_overlaps(name, seed):
    """At any overlaps with their conjugates: every independent entry, off-diagonal ones included."""
    at = FreeEntropy(with_rule(SMOOTH[name], "gauss-hermite", ORDER[name]), 1.9)
    x = random_overlaps(at, seed, size=0.1)
    c, energy, passed = at.passed(x)
    assert not np.isfinite(passed.minima.gap).any()
    size = np.abs(at.terms(x, c, energy)).max()
    right = at.gradient_in_overlaps(x, c)
    assert np.abs(right).max() < QUADRATURE * size
    assert np.abs(at.gradient_in_overlaps(x, replace(c, q_hat=1.01 * c.q_hat))).max() > 20 * QUADRATURE * size


@pytest.mark.parametrize("name", SPECTRA)
def test_spectral_mean_makes_the_free_entropy_stationary_in_the_conjugates(name):
    at, rng = FreeEntropy(with_rule(SPECTRA[name], "sobol", 16), 1.9), np.random.default_rng(3)
    length, r, t = at.problem.tokens.length, at.problem.columns, at.problem.teacher.rank
    q_hat, V_hat = (f @ f.mT / r for f in rng.normal(size=(2, length, 1, r, r + 2)))
    c = Conjugates(q_hat, V_hat, rng.normal(size=(length, 1, r, 1)), rng.normal(size=(length, 1, r, t)))
    x = at.system.prior.overlaps(c)
    assert x is not None
    size = np.abs(at.terms(x, c, np.zeros(1))).max()
    assert np.abs(at.gradient_in_conjugates(x, c)).max() < 1e-9 * size
    assert np.abs(at.gradient_in_conjugates(replace(x, q=1.01 * x.q), c)).max() > 1e-4 * size


@pytest.mark.parametrize("name", ["paper", "untied", "rank 2"])
def test_sampled_channel_makes_the_free_entropy_stationary_in_standard_errors(name):
    """Where the minimiser jumps, which the Stein form of V_hat sees.

    In V and m it is the envelope theorem and holds for every sample; in q and theta it is Stein's lemma and holds for
    the mean. The scatter of the replicates' gradients is the standard error of the mean.
    """
    at = FreeEntropy(with_rule(model(name, ROUGH), "sobol", 128, 5), 1.9)
    x = random_overlaps(at, 6, size=30.0)
    c, energy, passed = at.passed(x)
    assert np.isfinite(passed.minima.gap).mean() > 0.005
    length, r = x.q.shape[:2]
    triangle = length * r * (r + 1) // 2
    gradient, size = at.gradient_in_overlaps(x, c), np.abs(at.terms(x, c, energy)).max()
    in_q, in_V, in_m, in_theta = np.split(gradient, np.cumsum([triangle, triangle, length * r]))
    assert np.abs(in_V).max() < 1e-6 * size
    assert np.abs(in_m).max() < 1e-6 * size
    noisy = np.concatenate([in_q, in_theta])
    assert np.abs(noisy.mean(axis=1) / (noisy.std(axis=1, ddof=1) / np.sqrt(noisy.shape[1]))).max() < 4
    assert np.abs(noisy.mean(axis=1)).max() < 0.05 * size  # and the errors are small enough to mean something


TIGHT = ap.SolverSettings(threads=1, tolerance=1e-10, stability=False, identity=False)


def solved(problem, alpha, branch, start=None):
    point = ap.solve(problem, alpha, branch=branch, start=start, settings=TIGHT)
    assert int(point["status"]) == 0
    assert point["free_energy_gap"] < 1e-9
    return point


@pytest.mark.parametrize(("name", "alpha", "branch"), [("softmax", 9.0, "positional"), ("linear", 24.0, "semantic")])
def test_free_entropy_is_stationary_at_solved_fixed_points(name, alpha, branch):
    """In all order parameters and conjugates, in any gauge; the training loss is its value.

    By stationarity ``d eps_t/d lambda = |W|^2/(2d)`` and ``d eps_t/d alpha = E[M]``.
    """
    problem = with_rule(SMOOTH[name], "gauss-hermite", ORDER[name])
    point = solved(problem, alpha, branch, solved(with_rule(problem, "gauss-hermite", 5), alpha, branch))
    assert point["second_minimum_share"] == 0
    x = Overlaps(point["q"].values, point["V"].values, point["m"].values[..., None], point["theta"].values)
    at = FreeEntropy(problem, alpha)
    c, energy, _ = at.passed(x)
    assert np.abs(x.q).max() > 1e-3
    terms = at.terms(x, c, energy)
    assert terms.sum() == pytest.approx(float(point["training_loss"]), abs=1e-9)
    x = Overlaps(x.q, x.V, -x.m, -x.theta)
    c = Conjugates(c.q_hat, c.V_hat, -c.m_hat, -c.theta_hat)
    assert np.abs(at.gradient_in_overlaps(x, c)).max() < QUADRATURE * np.abs(terms).max()
    assert np.abs(at.gradient_in_conjugates(x, c)).max() < 1e-9 * np.abs(terms).max()
    ridge, half = np.array(problem.regularizer.strength).item(), 0.5e-2

    def loss(by_ridge=1.0, by_alpha=1.0):
        moved = problem.with_fields({"regularizer.strength": ridge * by_ridge})
        return float(solved(moved, alpha * by_alpha, branch, point)["training_loss"])

    norm = float(point["weight_norm"])
    assert (loss(1 + half) - loss(1 - half)) / (half * ridge) == pytest.approx(norm, rel=1e-4)
    assert (loss(1, 1 + half) - loss(1, 1 - half)) / (2 * half * alpha) == pytest.approx(energy.item(), rel=1e-4)


@pytest.mark.parametrize(
    ("alpha", "strength", "gamma", "weights"),
    [(1.73, 0.23, (0.56,), (1.0,)), (0.61, 0.047, (1.9,), (1.0,)), (1.31, 0.34, (0.4, 1.7), (0.35, 0.65))],
    ids=["more samples than dimensions", "fewer samples than dimensions", "two variances"],
)
def test_square_loss_is_ridge_regression(alpha, strength, gamma, weights):
    """Three Gauss-Hermite nodes are exact for a quadratic loss: the iteration's tolerance alone is left."""
    atoms = [{"weight": w, "variances": [g]} for w, g in zip(weights, gamma, strict=True)]
    fields = {"tokens.sigma": None, "tokens.spectrum": atoms, "regularizer.strength": strength}
    problem = with_rule(model("square", fields), "gauss-hermite", 3)
    point = solved(problem, alpha, "semantic")
    exact = ridge_regression(alpha, strength, 0.0, gamma, weights)
    for name, expected in exact.items():
        assert np.ravel(point[name])[0] == pytest.approx(expected, rel=1e-8), name
    at = FreeEntropy(problem, alpha)
    x = Overlaps(*(np.full((1, 1, 1), value) for value in (exact["q"], exact["V"], 0.0, exact["theta"])))
    c, energy, _ = at.passed(x)
    assert at.terms(x, c, energy).sum() == pytest.approx(exact["training_loss"], rel=1e-9)
    assert np.abs(at.gradient_in_overlaps(x, c)).max() < 1e-7
    assert np.abs(at.gradient_in_conjugates(x, c)).max() < 1e-7
