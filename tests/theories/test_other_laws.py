"""Theories of samples whose teacher's fields are not Gaussian, against quadrature and draws of their own.

Not public: quadrature at given overlaps needs the law's own points and weights, and a law that no problem has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest
from models import model
from scipy.special import expit

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.integration.refinement import REPLICATES
from attnphase.integration.rules import gauss_hermite, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.onset import growth_at
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.replicon import slope_sums
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.spread import Spread
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.equations import one_rsb_equations
from attnphase.theories.one_rsb.map import OneRsbMap, OneRsbOverlaps
from attnphase.theories.one_rsb.nodes import OneRsbNodes
from attnphase.theories.sgd_flow.rates import Dynamics
from attnphase.theories.sgd_flow.settings import FlowSettings
from attnphase.theories.sgd_flow.slopes import system_of

PAPER = ap.Problem.paper(omega=0.3)


@dataclass(frozen=True, eq=False)
class Tilted(SampleLaw):
    """``rho^-1/2 (k - kbar) = z + bend (z^2 - 1)``, z weighted by ``(1 + tilt z_0)^2 / (1 + tilt^2)``, or evenly."""

    gaussian: ClassVar[bool] = False
    tilts: tuple[float, ...] = ()
    bend: float = 0.0
    even: bool = False

    def drawn(self, configuration: int, zeta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tilt, z = self.tilts[configuration], zeta[:, 0, 0]
        shares = (1 + tilt * z**2) / (1 + tilt) if self.even else (1 + tilt * z) ** 2 / (1 + tilt**2)
        return zeta + self.bend * (zeta**2 - 1), shares

    def unchanged(self, order: Sequence[int], turn: np.ndarray) -> bool:
        signs = np.abs(turn) if self.even else turn
        return list(order) == list(range(len(order))) and np.array_equal(signs, np.eye(len(turn)))


def as_other(law: SampleLaw, tilts: tuple[float, ...], bend: float = 0.0, even: bool = False) -> Tilted:
    known = {one.name: getattr(law, one.name) for one in fields(SampleLaw)}
    return Tilted(**known, tilts=tilts, bend=bend, even=even)


def tilted(problem: ap.Problem, tilts: tuple[float, ...], bend: float) -> tuple[System, Tilted]:
    system = System.of(problem)
    law = as_other(system.sample_law, tilts, bend)
    return replace(system, own_law=law), law


def columns(*values: Sequence[float]) -> Overlaps:
    return Overlaps(*(np.array(one, dtype=float).reshape(-1, 1, 1) for one in values))


def hermite(count: int) -> tuple[np.ndarray, np.ndarray]:
    z, w = np.polynomial.hermite_e.hermegauss(count)
    return z, w / w.sum()


@pytest.fixture
def every_problem_is_tilted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of problems have a law that is not Gaussian."""
    plain = SampleLaw.of

    def of(problem: ap.Problem, spectrum: Spectrum, **noisy: bool) -> Tilted:
        law = plain(problem, spectrum, **noisy)
        return as_other(law, (0.9,) * len(law.probabilities), 0.12)

    monkeypatch.setattr(SampleLaw, "of", of)


@pytest.mark.usefixtures("every_problem_is_tilted")
def test_what_needs_a_density_refuses_the_law():
    with pytest.raises(ProblemError, match=r"^tokens have a law .* the Bayes-optimal error needs the density of k"):
        ap.bayes_optimal(ap.Problem.paper(omega=0.3125), 0.7)
    with pytest.raises(ProblemError, match=r"^tokens have a law .* set teacher\.noise to 0\.$"):
        ap.solve(model("square", {"teacher.noise": 0.0625}), 1.0)


@pytest.mark.usefixtures("every_problem_is_tilted")
def test_checks_ask_the_law_or_say_why_not():
    """Those that hold for any law pass; those of Gaussian fields alone are left out."""
    problem = PAPER.with_fields({"tokens.sigma": 0.707})  # of its own: systems are kept by their problem
    report = ap.check(problem, 2.0, settings=ap.SolverSettings(threads=1))
    assert {one.name for one in report.checks if one.passed is None and "Gaussian fields" in one.detail} == {
        "law of the fields",
        "reduction: one cluster is a Gaussian",
        "reduction: equal clusters are a Gaussian",
        "experiment at finite d",
    }
    assert report.passed
    assert {"test error", "stated errors", "gradient of the free entropy, overlaps"} <= {
        one.name for one in report.checks if one.passed
    }


def test_1rsb_of_one_token_against_quadrature():
    """Ridge regression with two clusters, tilted apart: all integrals over xi_1, xi_0 and k by Gauss-Hermite nodes."""
    clusters = [{"mean": [0.9], "sigma": 0.7}, {"mean": [-0.4], "sigma": 1.3}]
    tokens = {"length": 1, "kind": "mixture", "clusters": clusters, "mean_teacher": [[0.3]]}
    tokens["law"] = {"kind": "independent", "weights": [0.35, 0.65]}
    problem = ap.Problem.from_dict({"tokens": tokens, "positions": {"kind": "none"}, "loss": {"kind": "square"}})
    system, law = tilted(problem, (0.9, 0.6), 0.12)
    alpha, y = 1.7, 0.8
    at = OneRsbOverlaps(*(np.array(x).reshape(2, 1, 1) for x in
                          ([0.35, 1.1], [0.6, 1.9], [1.4, 2.3], [0.25, -0.1], [0.3, 0.8])))  # fmt: skip
    map_ = OneRsbMap(OneRsbNodes(system, 256, 64, 16), alpha, y, system.sector_of(at.near))
    map_.lift = True
    assert map_(map_.pack(at)) is not None
    (z, of_z), (x, of_x) = hermite(40), hermite(40)
    expected: dict[str, list[float]] = {name: [] for name in ("q_hat_0", "q_hat_1", "V_hat", "m_hat", "theta_hat")}
    logs, envelope = 0.0, 0.0
    for c, probability in enumerate(law.probabilities):
        q_0, q_1, V, m, theta = (float(value[c, 0, 0]) for value in vars(at).values())
        scaled, shares = law.drawn(c, z[:, None, None])
        rho, weights = float(law.rho[c, 0, 0]), probability * of_z * shares
        k = np.sqrt(rho) * scaled[:, 0, 0, None, None]
        spread = np.sqrt(q_0 - theta**2 / rho)
        omega = m + theta / rho * k + spread * x[:, None] + np.sqrt(q_1 - q_0) * x
        apart = k + law.means[c, 0, 0] - omega
        g, M = apart / (1 + V), apart**2 / (2 * (1 + V))
        group = of_x * np.exp(-y * M)
        total = group.sum(axis=-1)

        def tilt(values: np.ndarray, group: np.ndarray = group, total: np.ndarray = total) -> np.ndarray:
            return (group * values).sum(axis=-1) / total

        def mean(values: np.ndarray, weights: np.ndarray = weights) -> float:
            return float(alpha * weights @ values @ of_x)

        q_hat = mean(tilt(g**2))
        expected["q_hat_1"].append(q_hat)
        expected["q_hat_0"].append(mean(tilt(g) ** 2))
        expected["m_hat"].append(mean(tilt(g)))
        of_shared = mean(tilt(g) * x) / spread
        expected["theta_hat"].append((mean(tilt(g) * k[..., 0]) - of_shared * theta) / rho)
        expected["V_hat"].append(y * q_hat - mean(tilt(g * x)) / np.sqrt(q_1 - q_0))
        logs += float(weights @ np.log(total) @ of_x)
        envelope += float(weights @ (M @ of_x) @ of_x)
    assert map_.last is not None
    for name, values in expected.items():
        found = map_.last.arrays[name][..., 0, 0]
        error = found.std(axis=1, ddof=1) / 4
        np.testing.assert_array_less(np.abs(found.mean(axis=1) - values), 4 * error, err_msg=name)
        assert (error < 0.015 * np.abs(values).max()).all(), name
    hats = map_.last.mean().arrays
    terms = one_rsb_equations().free_entropy_terms(
        alpha=alpha, y=y, **map_._atoms, tilted_envelope=lambda y: logs, **at.arrays, **hats
    )
    free = map_.free_entropy()
    error = free.std(ddof=1) / 4
    assert abs(free.mean() - sum(terms.values())) < 4 * error + 1e-7  # of the variance floor
    assert error < 0.01 * abs(alpha / y * logs)
    assert map_.mean_envelope() == pytest.approx(envelope, rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 2.3])
@pytest.mark.parametrize("randomised", [False, True])
def test_rates_of_sgd_are_means_of_single_steps(noise: float, randomised: bool):
    """With tokens of covariance ``s I`` a step moves ``W^T Q_star/d`` by k times the gradient, ``|W|^2/d`` by 2 h."""
    problem = PAPER.with_fields({"teacher.noise": noise})
    plain = system_of(problem)
    law = as_other(plain.sample_law, (0.9,), 0.07)
    system = replace(plain, own_law=law)
    rule = sobol(4, 2, False, 2**10, 8, 3) if randomised else gauss_hermite(4, 2, False, 14)
    eta, batch = 2.9, 1
    dynamics = Dynamics.of(system, rule, FlowSettings(eta, batch))
    rows = dynamics.rows
    state = rows.start(np.array([[0.5, -0.4, 1.7]]), np.array([[0.3]]))
    overlaps, each = rows.overlaps(state)[0], dynamics.of_replicates(state)[0]
    rates = [rows.moved(state, rate) for rate in (*each, dynamics.rate(state))]
    # draws of their own, and differences of the loss with its noise
    random, count, kernels = np.random.default_rng(11), 2**19, System.of(problem).kernels
    scaled, shares = law.drawn(0, random.normal(size=(count, 2, 1)))
    rho, s = law.rho[:, 0, 0], float(system.spectrum.site_variances[0])
    k = np.sqrt(rho) * scaled[..., 0]
    q, m, theta = (getattr(overlaps, name)[:, 0, 0] for name in ("q", "m", "theta"))
    h = m + theta / rho * k + np.sqrt(q - theta**2 / rho) * random.normal(size=k.shape)
    z = np.sqrt(noise) * random.normal(size=(count, 2, kernels.noise_columns))
    labels = np.concatenate([k[..., None], z], axis=-1)

    def loss(fields_of: np.ndarray) -> np.ndarray:
        found = np.empty(count)
        kernels.losses_at(fields_of[..., None], labels, *system.parameters, system.token_variances[0], found)
        return found

    step = 1e-5 * np.eye(2)
    slopes = np.stack([(loss(h + one) - loss(h - one)) / 2e-5 for one in step], axis=1)
    ridge = 2 * rows.ridge * q[0] * eta
    draws = {
        "q": shares * (s * (slopes * -2 * eta * h).sum(axis=1) + eta**2 / batch * s**2 * (slopes**2).sum(axis=1)),
        "theta": shares * s * (slopes * -eta * k).sum(axis=1),
    }
    left = {"q": -ridge, "theta": -eta * rows.ridge * theta[0]}
    for name, values in draws.items():
        *replicates, rate = (getattr(one, name)[0, 0, 0] for one in rates)
        error = np.hypot(values.std() / np.sqrt(count), np.std(replicates) / np.sqrt(max(len(replicates) - 1, 1)))
        assert abs(values.mean() + left[name] - rate) < 4 * error, name
        assert error < 0.012 * abs(rate), name
    assert abs((draws["theta"] / shares).mean() - draws["theta"].mean()) > 10 * draws["theta"].std() / np.sqrt(count)
    losses, (*replicates,) = shares * loss(h), dynamics.of_replicates(state)[1][:, 0]
    error = np.hypot(losses.std() / np.sqrt(count), np.std(replicates) / np.sqrt(max(len(replicates) - 1, 1)))
    assert abs(losses.mean() - dynamics.loss(state)) < 4 * error


def test_teachers_of_two_columns_have_noise_in_closed_form_too(uncompiled):
    """The samples of the flow have no noise: their fields are as wide as the kernel's."""
    problem = PAPER.with_fields({"teacher.rank": 2, "student.rank": 2, "teacher.noise": 0.2})
    system = system_of(problem)
    assert system.sample_law.means.shape == (1, 2, system.kernels.label_fields)
    dynamics = Dynamics.of(system, gauss_hermite(8, 4, False, 2), FlowSettings(0.4))
    state = dynamics.rows.start(np.full((2, 4), 0.2), 0.3 * np.eye(2))
    clean = Dynamics.of(
        system_of(problem.with_fields({"teacher.noise": 0.0})), dynamics.channel.rule, FlowSettings(0.4)
    )
    assert dynamics.loss(state) - clean.loss(state) == pytest.approx(0.2 * 2 * 2 * 0.25 / 2, rel=1e-9)
    # at finite d an instance has a measure of its own
    own = Spectrum.of(problem.with_fields({"tokens.sigma": 0.83}))
    assert replace(system, spectrum=own).sample_law.rho == pytest.approx(own.rho)


MIXTURE = model(
    "linear",
    {
        "teacher.omega": 0.34,
        "tokens.kind": "mixture",
        "tokens.sigma": None,
        "tokens.clusters": [
            [{"sigma": 0.6, "mean": [0.9]}, {"sigma": 0.35, "mean": [-0.7]}],
            [{"sigma": 0.45, "mean": [-0.8]}, {"sigma": 0.7, "mean": [1.1]}],
        ],
        "tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.15, 0.35]]},
        "tokens.mean_teacher": [[0.6]],
    },
)


def test_baseline_of_linear_scores_is_that_of_moments_of_single_fields():
    """``T = (1 - omega) k k^T + omega A``: tokens are independent in a configuration, their powers by quadrature."""
    spectrum = Spectrum.of(MIXTURE)
    law = as_other(SampleLaw.of(MIXTURE, spectrum), (0.4, -0.3, 0.2, 0.6), 0.07)
    (z, w), omega, A = hermite(20), MIXTURE.teacher.omega, MIXTURE.mixing_matrix
    second, weighted, mean = 0.0, np.zeros((2, 2)), np.zeros(2)
    for c, p in enumerate(law.probabilities):
        sites = law.configurations[c]
        scaled, shares = law.drawn(c, z[:, None, None])
        k = np.sqrt(law.rho[sites, 0, 0])[:, None] * scaled[:, 0, 0] + law.means[c, :, :1]
        powers = {n: (np.stack([w * shares, w]) * k**n).sum(axis=1) for n in (1, 2, 4)}
        first, square = (np.outer(powers[n], powers[n]) for n in (1, 2))
        np.fill_diagonal(first, powers[2])
        np.fill_diagonal(square, powers[4])
        D = spectrum.site_variances[sites]
        second += p * (((1 - omega) ** 2 * square + 2 * omega * (1 - omega) * A * first + omega**2 * A**2) @ D).sum()
        weighted += p * ((1 - omega) * first + omega * A) * D
        mean += p * D
    expected = (second - (weighted**2 / mean).sum()) / 2
    system = System.of(MIXTURE)
    assert linear_test_error(replace(system, own_law=law))[0] == pytest.approx(expected, rel=1e-11)
    assert abs(linear_test_error(system)[0] / expected - 1) > 0.05


def test_copies_and_slopes_against_quadrature():
    """Logistic regression: ``E (g - g')^2`` of fields with the covariance ``q - D``, and ``E (dg/domega)^2``."""
    problem = model("logistic", {"tokens.sigma": 1.1})
    system, law = tilted(problem, (0.7,), 0.0)
    alpha, (q, V, m, theta), D = 3.1, (2.9, 1.7, 0.2, 1.1), 0.4
    overlaps = columns([q], [V], [m], [theta])
    rho, (z, w), (x, v) = law.rho.item(), np.polynomial.legendre.leggauss(60), hermite(48)
    zeta = np.concatenate([-4.5 * (1 + z), 4.5 * (1 + z)])
    weights = np.tile(4.5 * w, 2) * np.exp(-(zeta**2) / 2) / np.sqrt(2 * np.pi) * law.drawn(0, zeta[:, None, None])[1]
    label, free = np.sign(zeta)[:, None], q - theta**2 / rho

    def residual(omega: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sign, h = label.reshape(-1, *(1,) * (omega.ndim - 1)), omega.copy()
        for _ in range(60):
            falls = expit(-sign * h)
            h -= (h - omega - V * sign * falls) / (1 + V * falls * (1 - falls))
        bend = expit(h) * expit(-h)
        return (h - omega) / V, bend / (1 + V * bend)

    shared = m + theta / np.sqrt(rho) * zeta[:, None] + np.sqrt(free - D) * x
    g, _ = residual(shared[..., None] + np.sqrt(D) * x)
    # of the part that copies share, the mean square of their difference is twice the variance
    apart = 2 * weights @ ((g**2 @ v) - (g @ v) ** 2) @ v
    _, slopes = residual(m + theta / np.sqrt(rho) * zeta[:, None] + np.sqrt(free) * x)
    rule = sobol(2, 1, False, 4096, 4, 3)
    channel = Channel(system, rule)
    squares, answers = slope_sums(channel, overlaps, channel.evaluate(alpha, overlaps, Starts.COLD).minima)
    assert squares.mean() == pytest.approx(weights @ slopes**2 @ v, rel=5e-3)
    assert answers.mean() == pytest.approx(weights @ slopes @ v, rel=5e-3)
    hats = Conjugates(*(np.array(value).reshape(1, 1, 1, 1) for value in (0.3, 0.5, 0.1, 0.2)))
    images = Copies.of(system, alpha, overlaps, hats, 1024).images(np.array([[[D]]]))
    expected = Spread(system, hats).of_noise(np.array(alpha / 2 * apart).reshape(1, 1, 1, 1))
    assert images.mean() == pytest.approx(float(expected.item()), rel=1e-2)
    plain = Copies.of(replace(system, own_law=None), alpha, overlaps, hats, 1024).images(np.array([[[D]]]))
    assert abs(plain.mean() / images.mean() - 1) > 0.05
    parts = overlaps.q, overlaps.V, overlaps.m, overlaps.theta
    each = Overlaps(*(np.tile(value, (REPLICATES, 1, 1, 1)) for value in parts))
    np.testing.assert_array_equal(Copies.of(system, alpha, each, hats, 1024).images(np.array([[[D]]])), images)


def test_growth_is_the_derivative_of_the_map():
    """An even law, at the uninformed point of a loss whose minimisers do not jump."""
    plain = System.of(PAPER)
    system = replace(plain, own_law=as_other(plain.sample_law, (0.8,), even=True))
    assert system.reflects
    start = initial_overlaps(PAPER, "uninformed")
    start = Overlaps(start.q, 0.2 * start.V, start.m, start.theta)
    sector = system.sector_of(start)
    sampled = StateEvolution(Channel(system, sobol(4, 2, True, 2**13, 8, 3)), 1.3, sector)
    growth = growth_at(sampled, sampled.pack(start))
    smooth = StateEvolution(Channel(system, gauss_hermite(4, 2, False, 20)), 1.3, sector)
    for name in ("m", "theta"):
        derivatives, step = np.empty((2, 2)), 1e-3
        for j, way in enumerate(np.eye(2)):
            ends = [replace(start, **{name: side * step * way.reshape(2, 1, 1)}) for side in (1, -1)]
            conjugates = [smooth.channel.evaluate(1.3, end, Starts.COLD).conjugates.mean() for end in ends]
            images = [smooth.prior.overlaps(one) for one in conjugates]
            derivatives[:, j] = np.subtract(*(getattr(image, name)[:, 0, 0] for image in images)) / (2 * step)
        expected = float(np.linalg.eigvals(derivatives).real.max())
        error = np.sqrt((growth[name].rows ** 2).sum())
        assert abs(growth[name].factor - expected) < 4 * error, name
        assert error < 0.02 * expected
