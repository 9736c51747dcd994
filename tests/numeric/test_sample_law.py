"""A law of latent variables that is not Gaussian: every rule takes it as it is, against closed forms and quadrature."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import numpy as np
import pytest

from attnphase.errors import ProblemError
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Rule, lines, sobol
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.system import System


@dataclass(frozen=True, eq=False)
class Tilted(SampleLaw):
    """``rho^-1/2 (k - kbar) = z + bend (z^2 - 1)`` z weighted by ``(1 + tilt z_0)^2 / (1 + tilt^2)``."""

    gaussian: ClassVar[bool] = False
    tilts: tuple[float, ...] = ()
    bend: float = 0.0

    def drawn(self, configuration: int, zeta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tilt = self.tilts[configuration]
        return zeta + self.bend * (zeta**2 - 1), (1 + tilt * zeta[:, 0, 0]) ** 2 / (1 + tilt**2)

    def unchanged(self, order: Sequence[int], turn: np.ndarray) -> bool:
        return list(order) == list(range(len(order))) and np.array_equal(turn, np.eye(len(turn)))

    def mean(self, configuration: int, power: int) -> float:
        """Of a power of the first of the scaled fields, by Gauss-Hermite nodes, which have polynomials exactly."""
        z, w = np.polynomial.hermite_e.hermegauss(12)
        scaled, shares = self.drawn(configuration, z[:, None, None])
        return float((w / w.sum() * shares) @ scaled[:, 0, 0] ** power)


def tilted(problem: Problem, tilts: tuple[float, ...], bend: float) -> tuple[System, Tilted]:
    system = System.of(problem)
    known = {one.name: getattr(system.sample_law, one.name) for one in fields(SampleLaw)}
    law = Tilted(**known, tilts=tilts, bend=bend)
    return replace(system, own_law=law), law


def rule_of(name: str, system: System, latent: int, points: int, across: int = 4) -> Rule:
    length, kernels = system.kernels.length, system.kernels
    student = length * kernels.columns
    dimensions = student + length * kernels.label_normals
    if name == "lines":
        return lines(dimensions, student, LineOrders((latent,) * length, (across,) * (length - 1), defect=1e-7))
    return sobol(dimensions, student, system.reflects, points, 4, 3)


def evaluated(system: System, rule: Rule, alpha: float, overlaps: Overlaps) -> dict[str, np.ndarray]:
    map_ = StateEvolution(Channel(system, rule), alpha, system.sector_of(overlaps))
    map_.lift = True
    assert map_(map_.pack(overlaps)) is not None
    assert map_.last is not None
    hats, loss = map_.last.conjugates.mean(), map_.channel.loss_at_omega(overlaps)
    found = {name: np.ravel(getattr(hats, name)) for name in ("q_hat", "V_hat", "m_hat", "theta_hat")}
    return found | {"envelope": np.ravel(map_.last.envelope.mean()), "loss": np.ravel(loss.mean())}


def columns(*values: Sequence[float]) -> Overlaps:
    return Overlaps(*(np.array(one, dtype=float).reshape(-1, 1, 1) for one in values))


@pytest.mark.parametrize(("name", "accuracy"), [("lines", 1e-6), ("sobol", 6e-3)])
def test_ridge_regression_of_fields_with_another_law(name: str, accuracy: float):
    """With two clusters, tilted apart: ``g = (k - omega)/(1 + V)`` needs two moments of k, and V_hat none."""
    clusters = [{"mean": [0.9], "sigma": 0.7}, {"mean": [-0.4], "sigma": 1.3}]
    tokens = {"length": 1, "kind": "mixture", "clusters": clusters, "mean_teacher": [[0.3]]}
    tokens["law"] = {"kind": "independent", "weights": [0.35, 0.65]}
    system, law = tilted(Problem.from_dict({"tokens": tokens, "loss": {"kind": "square"}}), (0.4, -0.25), 0.12)
    alpha, overlaps = 1.7, columns([0.6, 1.9], [1.4, 2.3], [0.25, -0.1], [0.3, 0.8])
    q, V, m, theta = (x.ravel() for x in (overlaps.q, overlaps.V, overlaps.m, overlaps.theta))
    rho, apart = law.rho.ravel(), law.means.ravel() - m
    assert np.abs(law.means).min() > 0.1
    first, second = (np.array([law.mean(c, power) for c in (0, 1)]) * rho ** (power / 2) for power in (1, 2))
    left = 1 - theta / rho
    square = apart**2 + 2 * apart * left * first + left**2 * second + q - theta**2 / rho
    of_site = alpha * law.probabilities / (1 + V)
    expected = {
        "q_hat": of_site * square / (1 + V),
        "V_hat": of_site,
        "m_hat": of_site * (apart + left * first),
        "theta_hat": of_site * (apart * first + left * second + theta) / rho,
        "envelope": law.probabilities @ (square / (1 + V) / 2),
        "loss": law.probabilities @ square / 2,
    }
    found = evaluated(system, rule_of(name, system, 40, 2048), alpha, overlaps)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=accuracy, atol=accuracy * np.abs(value).max(), err_msg=key)
    gaussian = evaluated(replace(system, own_law=None), rule_of("lines", system, 40, 2048), alpha, overlaps)
    assert np.abs(gaussian["theta_hat"] / expected["theta_hat"] - 1).min() > 0.02


@pytest.mark.parametrize(("name", "accuracy"), [("lines", 1e-5), ("sobol", 3e-2)])
def test_labels_of_fields_with_another_law(name: str, accuracy: float):
    """Logistic regression: the label's sign jumps in k, where its rule is split and Sobol points draw labels."""
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": 1.1}, "loss": {"kind": "logistic"}})
    system, law = tilted(problem, (0.45,), 0.0)
    alpha, (q, V, m, theta) = 3.1, (2.9, 1.7, 0.2, 1.1)
    rho, (z, w), (x, v) = law.rho.item(), np.polynomial.legendre.leggauss(120), np.polynomial.hermite_e.hermegauss(80)
    zeta = np.concatenate([-4.5 * (1 + z), 4.5 * (1 + z)])
    weights = np.tile(4.5 * w, 2) * np.exp(-(zeta**2) / 2) / np.sqrt(2 * np.pi) * law.drawn(0, zeta[:, None, None])[1]
    weights = weights[:, None] * v / v.sum()
    k, spread, label = np.sqrt(rho) * zeta[:, None], np.sqrt(q - theta**2 / rho), np.sign(zeta)[:, None]
    omega = m + theta / rho * k + spread * x
    h = omega.copy()
    for _ in range(60):
        falls = 1 / (1 + np.exp(label * h))
        h -= (h - omega - V * label * falls) / (1 + V * falls * (1 - falls))
    g = (h - omega) / V
    V_hat = -alpha * (weights * g * x).sum() / spread
    loss = np.log1p(np.exp(-label * h))
    expected = {
        "q_hat": alpha * (weights * g**2).sum(),
        "V_hat": V_hat,
        "m_hat": alpha * (weights * g).sum(),
        "theta_hat": alpha * (weights * g * k).sum() / rho + V_hat * theta / rho,
        "envelope": (weights * (V * g**2 / 2 + loss)).sum(),
        "loss": (weights * np.log1p(np.exp(-label * omega))).sum(),
    }
    rule = rule_of(name, system, 24, 4096)
    found = evaluated(system, rule, alpha, columns([q], [V], [m], [theta]))
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=accuracy, err_msg=key)
    assert not Channel(system, rule).labelled


def test_a_law_that_bends_the_normals_must_tell_where_labels_jump():
    """Lines would be split where they jump under the Gaussian law; points need no place."""
    problem = Problem.from_dict({"tokens": {"length": 1, "sigma": 1.1}, "loss": {"kind": "logistic"}})
    system, _ = tilted(problem, (0.45,), 0.12)
    at = columns([2.9], [1.7], [0.2], [1.1])
    with pytest.raises(ProblemError, match=r"give it a method split, or set integration\.rule = \"sobol\""):
        evaluated(system, rule_of("lines", system, 24, 4096), 3.1, at)
    assert np.isfinite(evaluated(system, rule_of("sobol", system, 24, 256), 3.1, at)["q_hat"]).all()


def test_a_law_with_fewer_symmetries_leaves_the_problem_fewer():
    """A tilt of one of two tokens: no node stands for its image, and lines and points agree."""
    problem = Problem.paper(omega=0.3)
    system, _ = tilted(problem, (0.5,), 0.05)
    assert len(System.of(problem).symmetries) > 1
    assert [order for order, _, B, _ in system.symmetries if B.item() == 1] == [(0, 1)] * len(system.symmetries)
    assert not system.reflects
    alpha, overlaps = 2.1, columns([0.12, 0.12], [12.0, 12.0], [0.0, 0.0], [0.17, 0.17])
    fine, points = (
        evaluated(system, rule_of(name, system, 12, size), alpha, overlaps)
        for name, size in (("lines", 0), ("sobol", 2**12))
    )
    assert abs(fine["theta_hat"][0] / fine["theta_hat"][1] - 1) > 0.1
    for key in ("q_hat", "theta_hat", "envelope", "loss"):
        np.testing.assert_allclose(points[key], fine[key], rtol=2e-2, err_msg=key)
