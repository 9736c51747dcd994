"""The means over one sample's fields where the teacher's have a mean: against plain samples and closed forms."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from attnphase.integration.rules import published_rule, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.symmetries import is_sign_symmetric
from attnphase.state_evolution.system import System

Array = NDArray[np.float64]

TEACHER_MEANS = Problem.paper(omega=0.22).with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.9]}],
        "tokens.law": {"kind": "table", "table": [[0.42, 0.13], [0.07, 0.38]]},
        "tokens.mean_teacher": [[0.8]],
    }
)
LABELS = Problem().with_fields(
    {
        "tokens.length": 1,
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.7, "mean": [0.6]}],
        "tokens.mean_teacher": [[0.75]],
        "positions.kind": "none",
        "teacher.mixing": None,
        "loss.kind": "logistic",
    }
)


def channel_of(problem: Problem, points: int) -> Channel:
    system = System.of(problem)
    return Channel(system, system.refinement(2**20).sobol(points))


def overlaps_for(channel: Channel, V: float) -> Overlaps:
    """Of a different size at every site; theta as large as half of what q allows."""
    rho = channel.system.spectrum.rho
    site = np.arange(len(rho), dtype=np.float64)[:, None, None]
    q: Array = 0.12 + 0.03 * site
    m: Array = 0.2 - 0.13 * site
    return Overlaps(q, np.full(q.shape, V), m, 0.5 * np.sqrt(q * rho))


def softmax_loss(h: Array, k: Array, problem: Problem, variance: Array) -> Array:
    """``1/2 Tr[(S - T) D (S - T)^T]`` of tied rank-one attention, as it is written in the paper."""

    def scores(fields: Array) -> Array:
        weights = np.exp(fields[..., :, None] * fields[..., None, :])
        return weights / weights.sum(axis=-1, keepdims=True)

    omega, A = problem.teacher.omega, problem.mixing_matrix
    rest = scores(h) - (1 - omega) * scores(k) - omega * A
    return 0.5 * np.einsum("...ab,...ab,...b->...", rest, rest, variance)


def test_test_error_of_tokens_with_a_teacher_mean():
    """Fields of student and teacher drawn with their clusters, in NumPy."""
    channel = channel_of(TEACHER_MEANS, 1024)
    at, spectrum = overlaps_for(channel, 3.0), channel.system.spectrum
    assert spectrum.teacher_means.min() < -0.5
    replicates = channel.loss_at_omega(at)
    generator, count = np.random.default_rng(4), 400_000
    chosen = generator.choice(len(channel.probabilities), count, p=channel.probabilities)
    sites = channel.configurations[chosen]
    joint = np.block([[at.q, at.theta], [at.theta.mT, spectrum.rho]])
    fields = np.einsum("nlij,nlj->nli", np.linalg.cholesky(joint)[sites], generator.normal(size=(count, 2, 2)))
    h, k = fields[..., 0] + at.m[sites, 0, 0], fields[..., 1] + spectrum.teacher_means[sites][..., 0]
    losses = softmax_loss(h, k, TEACHER_MEANS, spectrum.site_variances[sites])
    error = np.hypot(losses.std() / np.sqrt(count), replicates.std(ddof=1) / 4)
    assert abs(replicates.mean() - losses.mean()) < 4 * error
    assert error < 5e-3 * losses.mean()


def test_local_problems_of_tokens_with_a_teacher_mean():
    """Proximal points are stationary for the loss as it is written, with the teacher's mean in its field."""
    channel = channel_of(TEACHER_MEANS, 16)
    at = overlaps_for(channel, 6.0)
    omega, k, *_ = channel.nodes_at(at)
    passed = channel.evaluate(1.6, at, Starts.COLD)
    h = passed.minima.fields[:, 0].reshape(omega.shape)[..., 0]
    sites = channel.configurations
    shape = (len(sites), *(1,) * (omega.ndim - 3), 2)
    k = k[..., 0] + channel.system.spectrum.teacher_means[sites][..., 0].reshape(shape)
    variance = channel.system.spectrum.site_variances[sites].reshape(shape)
    step = 1e-5
    for token in range(2):
        unit = step * np.eye(2)[token]
        ends = [softmax_loss(h + side * unit, k, TEACHER_MEANS, variance) for side in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(slope, -(h - omega[..., 0])[..., token] / 6.0, atol=1e-8)


def test_labels_of_tokens_with_a_teacher_mean():
    """``P(k + m* > 0) = Phi(m*/s)`` and ``E[sign(k + m*) k] = 2 s phi(m*/s)``, whatever the student knows."""
    channel = channel_of(LABELS, 1024)
    at = overlaps_for(channel, 3.0)
    at = Overlaps(at.q, at.V, 0 * at.m, at.theta)
    omega, k, _, _, shares = channel.nodes_at(at)
    spread, mean = np.sqrt(channel.system.spectrum.rho.item()), channel.system.spectrum.teacher_means.item()
    assert mean == pytest.approx(0.45)
    weights = shares[0] / shares.shape[1] * channel.rule.weights  # (labels, S, n)
    known = {
        "probability": (weights[0].sum(axis=-1), norm.cdf(mean / spread)),
        "everything": (weights.sum(axis=(0, 2)), 1.0),
        "k": ((weights * k[0, ..., 0, 0]).sum(axis=(0, 2)), 0.0),
        "label k": (
            (weights * k[0, ..., 0, 0] * np.array([1, -1])[:, None, None]).sum(axis=(0, 2)),
            2 * spread * norm.pdf(mean / spread),
        ),
        "k omega": ((weights * (k * omega)[0, ..., 0, 0]).sum(axis=(0, 2)), at.theta.item()),
    }
    for name, (replicates, expected) in known.items():
        error = replicates.std(ddof=1) / 4
        assert abs(replicates.mean() - expected) < 5 * error + 1e-12, name
        assert error < 2e-3, name


@pytest.mark.parametrize("problem", [TEACHER_MEANS, Problem.paper(omega=0.31)], ids=["clusters", "signs"])
def test_shares_of_second_minima_are_counted_by_their_distance(problem):
    """Weights of the nodes whose second minimum lies within a distance, cluster by cluster and sign by sign."""
    channel = channel_of(problem, 64)
    at = overlaps_for(channel, 40.0)
    map_ = StateEvolution(channel, 1.6, channel.system.sector_of(at))
    map_.minima = channel.evaluate(1.6, at, Starts.COLD).minima
    energies = map_.minima.energies.reshape(len(channel.probabilities), -1, *channel.rule.nodes.shape[:2], 2)
    gap = energies[..., 1] - energies[..., 0]
    assert (gap > 0).sum() > 20
    for within in (1e-3, 1e-2, np.inf):
        near = ((gap > 0) & (gap < within)).mean(axis=(1, 3))  # signs and equal nodes
        expected = channel.probabilities @ near
        np.testing.assert_allclose(map_.second_minimum_share(within), expected, rtol=1e-12)
    assert map_.second_minimum_share(1e-2).mean() > map_.second_minimum_share(5e-3).mean() > 0


def test_fields_are_not_reflected_where_the_teacher_has_a_mean():
    """The loss is even in k, but its law is not."""
    system, paper = System.of(TEACHER_MEANS), System.of(Problem.paper())
    assert is_sign_symmetric(system.loss)
    assert system.kernels is paper.kernels
    assert not system.refinement(2**20).symmetric
    assert paper.refinement(2**20).symmetric


@pytest.mark.parametrize("zero", ["m", "theta", "both", "neither"])
def test_mirror_images_of_nodes_have_mirrored_minimisers(zero):
    """Sign changes that are not solved anew give what a rule that holds them all as nodes of its own gives."""
    problem = Problem.paper(omega=0.31)
    folded = sobol(4, 2, True, 16, 4, 3)
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    nodes = np.concatenate([folded.nodes * np.repeat(s, 2) for s in signs], axis=1)
    whole = sobol(4, 2, False, 64, 4, 3)
    whole = type(whole)(whole.name, nodes, whole.weights, False, 2, 64, True)
    keep = {"m": (0, 1), "theta": (1, 0), "both": (0, 0), "neither": (1, 1)}[zero]
    at = Overlaps(
        np.array([[[0.11]], [[0.14]]]),
        np.array([[[9.0]], [[12.0]]]),
        keep[0] * np.array([[[0.21]], [[-0.16]]]),
        keep[1] * np.array([[[0.09]], [[0.12]]]),
    )
    passes = [Channel(System.of(problem), rule).evaluate(1.8, at, Starts.COLD) for rule in (folded, whole)]
    for name in ("q_hat", "V_hat", "m_hat", "theta_hat"):
        a, b = (getattr(one.conjugates, name) for one in passes)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(passes[0].envelope, passes[1].envelope, rtol=1e-12)


def test_points_in_all_fields_are_those_of_the_students_fields_first():
    """``omega = m + q^1/2 xi`` and k given omega at the rule's own nodes; the moments' normals make omega given k."""
    channel, one = Channel(System.of(Problem.paper(omega=0.31)), published_rule()), np.ones((2, 1, 1))
    m, theta = np.array([[0.21, -0.16], [0.09, -0.12]])[..., None, None]
    at = Overlaps(0.13 * one, 9.0 * one, m, theta)
    omega, k, xi, floored, shares = channel.nodes_at(at)
    rho, q, theta, m = (x[:, 0] for x in (channel.system.sample_law.rho, floored.q, at.theta, at.m))
    signs = np.array(channel.rule.signs, dtype=float)[:, None, None]
    raw, zeta = (signs[..., i] * channel.rule.nodes[0, :, 2 * i : 2 * i + 2] for i in range(2))
    raw, zeta = (x[None, :, None, ..., None] for x in (raw, zeta))
    np.testing.assert_allclose(omega, m + np.sqrt(q) * raw, atol=1e-12)
    np.testing.assert_allclose(k, theta / np.sqrt(q) * raw + np.sqrt(rho - theta**2 / q) * zeta, atol=1e-12)
    np.testing.assert_allclose(omega, m + theta / rho * k + np.sqrt(q - theta**2 / rho) * xi, atol=1e-12)
    assert (shares == 1).all()


@pytest.mark.parametrize("problem", [LABELS, Problem.paper(omega=0.31)], ids=["labels", "attention"])
def test_conjugates_are_finite_where_the_teacher_is_known(problem):
    """Up to the edge of the domain, ``q = theta rho^-1 theta^T``, where the variance floor is all that is left."""
    channel = channel_of(problem, 64)
    rho = channel.system.spectrum.rho
    for share in (1e-4, 1e-8, 1e-12, 0.0, -1e-12):
        at = Overlaps(1.3 * rho * (1 + share), 2.0 + 0 * rho, 0.1 + 0 * rho, np.sqrt(1.3) * rho)
        passed = channel.evaluate(1.6, at, Starts.COLD)
        for values in passed.conjugates.by_name.values():
            assert np.isfinite(values).all()
        assert np.isfinite(channel.loss_at_omega(at)).all()


def test_local_searches_start_where_they_are_said_to(monkeypatch):
    """omega, the teacher's field with both signs, zero, the reflected omega, and omega with each token reflected.

    The teacher's field is multiplied by the last of the parameters, here by 2: to the student's units.
    """
    search: Any = importlib.import_module("attnphase.kernels.local.search")
    # what Numba compiles, run by Python
    for name, value in {"LENGTH": 2, "COLUMNS": 1, "LIFT": (0,), "copy": lambda a, b: np.copyto(b, a)}.items():
        monkeypatch.setattr(search, name, value)
    center, k = (np.array(x)[:, None] for x in ([0.3, -0.7], [1.1, 0.4]))
    known, parameters = np.array([[0.2, 0.9], [-0.5, 0.6]])[:, :, None], np.array([0.3, 4.0, 1.0, 1.0, 2.0])

    def starts(mode: Starts) -> list[list[float]]:
        found, start = [], np.empty((2, 1))
        for s in range(99):
            if not search.start_field.py_func(s, center, k, known, parameters, int(mode), start):
                break
            found.append(start[:, 0].tolist())
        return found

    cold = [[0.3, -0.7], [2.2, 0.8], [-2.2, -0.8], [0.0, 0.0], [-0.3, 0.7], [-0.3, -0.7], [0.3, 0.7]]
    assert starts(Starts.COLD) == cold
    assert starts(Starts.WARM) == known[..., 0].tolist()
    assert starts(Starts.REFRESH) == known[..., 0].tolist() + cold
    assert starts(Starts.FROM_ZERO) == [[0.0, 0.0]]


def test_no_search_ends_before_its_own_minimum():
    """A cold pass finds what single descents from its starts find: none is taken to end at another's minimum."""
    problem = Problem.paper(omega=0.31)
    channel = Channel(System.of(problem), sobol(4, 2, False, 256, 4, 3))
    one = np.ones((2, 1, 1))
    at = Overlaps(0.15 * one, 40.0 * one, 0.1 * one, 0.12 * one)
    omega, k, *_ = channel.nodes_at(at)
    w, t = omega.reshape(-1, 2, 1), k.reshape(-1, 2, 1)

    def descended(starts: Array) -> Array:
        energies = np.tile([0.0, 1.0], (len(w), 1))  # unequal, so that both are tried; they are the same
        known = Minima(np.stack([starts, starts], axis=1), energies, np.zeros(len(w), dtype=np.int64))
        return channel.proximal.minimise(omega, k, at.V, ((0, 1),), Starts.WARM, known)[1].energies[:, 0]

    flips = [np.array(sign)[:, None] for sign in ((-1.0, 1.0), (1.0, -1.0))]
    single = np.stack([descended(x) for x in (w, t, -t, 0 * w, -w, *(w * flip for flip in flips))])
    found = channel.evaluate(1.5, at, Starts.COLD).minima
    np.testing.assert_allclose(found.energies[:, 0], single.min(axis=0), rtol=1e-9, atol=1e-12)
    # and the second minimum, wherever the descents end in two
    apart = np.sort(single, axis=0)
    several = (apart[-1] - apart[0]) > 1e-6
    assert several.sum() > 50
    assert np.isfinite(found.gap[several]).all()


def test_hinge_points_are_minimisers():
    """In closed form in the kernel: against the energy on a fine grid, and with the residual that belongs to them."""
    fields = {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None, "loss.kind": "hinge"}
    problem = Problem().with_fields(fields)
    channel = Channel(System.of(problem), sobol(2, 1, False, 64, 4, 5))
    for V in (0.3, 1.0, 4.0):
        generator = np.random.default_rng(2)
        omega, k = generator.normal(0.2, 1.5, (2, 1, 1, 4, 64, 1, 1))
        found, minima = channel.proximal.minimise(omega, k, np.full((1, 1, 1), V), ((0, 1),), Starts.COLD, None)
        h = minima.fields[:, 0].reshape(omega.shape)
        np.testing.assert_allclose(V * found.residual, h - omega, atol=1e-12)
        grid = np.linspace(-9, 9, 36001)
        energy = (grid - omega) ** 2 / (2 * V) + np.maximum(0, 1 - np.sign(k) * grid)
        best = energy.min(axis=-1)
        own = (h - omega)[..., 0, 0] ** 2 / (2 * V) + np.maximum(0, 1 - np.sign(k) * h)[..., 0, 0]
        np.testing.assert_allclose(own, best[..., 0], atol=1e-5)
        np.testing.assert_allclose(found.envelope, own, rtol=1e-12, atol=1e-14)
