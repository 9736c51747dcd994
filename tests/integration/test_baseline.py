"""The linear baseline against closed forms: with linear scores its target is a product of two Gaussian fields.

With ``T = (1 - omega) k k^T + omega A`` and independent ``k_l ~ N(mu_l, rho_l)`` the moments of T are polynomials, and
the paper's (19)-(20) can be written down.

Not public: `linear_test_error` with a teacher in NumPy, for more dimensions than models that are compiled have.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calibration import assert_calibrated
from models import model
from one_map import QUICK

import attnphase as ap
from attnphase.kernels.compiler import kernels_for
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution import baseline
from attnphase.state_evolution.system import System

PAIR = model("linear", {"tokens.sigma": [0.62, 0.41], "teacher.omega": 0.34})
MIXTURE = PAIR.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.sigma": None,
        "tokens.clusters": [
            [{"sigma": 0.6, "mean": [0.9]}, {"sigma": 0.35, "mean": [-0.7]}],
            [{"sigma": 0.45, "mean": [-0.8]}, {"sigma": 0.7, "mean": [1.1]}],
        ],
        "tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.15, 0.35]]},
        "tokens.mean_teacher": [[0.6]],
    }
)
# six dimensions: more than a tensor rule is used for
TRIPLE = PAIR.with_fields({"tokens.length": 3, "tokens.sigma": [0.62, 0.41, 0.5], "teacher.rank": 2})


def exact(problem):
    """From the moments of independent Gaussian fields; every token's fields have one variance."""
    spectrum, length, rank = Spectrum.of(problem), problem.tokens.length, problem.teacher.rank
    omega, A = problem.teacher.omega, problem.mixing_matrix
    second, weighted, mean = 0.0, np.zeros((length, length)), np.zeros(length)
    for sites, p in zip(*problem.cluster_law, strict=True):
        mu = spectrum.teacher_means[sites][:, 0] if rank == 1 else np.zeros(length)
        rho, D = spectrum.rho[sites][:, 0, 0], spectrum.site_variances[sites]
        # E[k_a . k_b] and E[(k_a . k_b)^2]
        first = np.outer(mu, mu) + rank * np.diag(rho)
        square = np.outer(mu**2 + rho, mu**2 + rho) + (rank - 1) * np.outer(rho, rho)
        np.fill_diagonal(square, mu**4 + 6 * mu**2 * rho + rank * (rank + 2) * rho**2)
        T1 = (1 - omega) * first + omega * A
        T2 = (1 - omega) ** 2 * square + 2 * omega * (1 - omega) * A * first + omega**2 * A**2
        second += p * (T2 @ D).sum()
        weighted += p * T1 * D
        mean += p * D
    return (second - (weighted**2 / mean).sum()) / length


@pytest.mark.parametrize("problem", [PAIR, MIXTURE], ids=["unequal variances", "teacher means"])
def test_quadrature_is_the_closed_form(problem):
    """With clusters ``W = E[T D] E[D]^-1``, and the teacher's fields have a mean of their own in every cluster."""
    few = problem.with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    point = ap.solve(few, 1.0, branch="uninformed", settings=ap.SolverSettings(**QUICK, max_maps=1))
    assert float(point["linear_test_error"]) == pytest.approx(exact(problem), rel=1e-12)


def error_of(problem, target):
    """The baseline, and its error, with targets (N, L, L) of the teacher's fields."""

    def targets_at(k, mixing, parameters, targets):
        targets[:] = target(k)

    maps = kernels_for(PAIR).ridge
    sizes = {"length": problem.tokens.length, "teacher_rank": problem.teacher.rank, "noise_columns": 0}
    kernels: Any = SimpleNamespace(**sizes, targets_at=targets_at, ridge=maps)
    return baseline.linear_test_error(System(problem, kernels, Spectrum.of(problem)))


def test_error_of_the_quadrature_is_that_of_a_kink():
    """A target with a kink, ``T_ab = |k_a|``: the rule is wrong by about what it says, and says so."""
    value, error = error_of(PAIR, np.abs)
    rho, D = Spectrum.of(PAIR).rho[:, 0, 0], Spectrum.of(PAIR).site_variances
    true = ((1 - 2 / np.pi) * rho.sum()) * D.sum() / 2
    assert abs(value - true) / 20 < error < 20 * abs(value - true)


def test_sampled_baseline_and_its_error(monkeypatch):
    """Against the closed form: 64 seeds with few points deviate by as much as they say."""

    def target(k):
        return 0.66 * k @ k.mT + 0.34 * TRIPLE.mixing_matrix

    (value, error), true, sobol = error_of(TRIPLE, target), exact(TRIPLE), baseline.sobol
    assert abs(value - true) < 4 * error
    assert error < 2e-3 * true
    monkeypatch.setattr(baseline, "sobol", lambda d, s, symmetric, _, r, seed: sobol(d, s, symmetric, 32, r, seed))
    found = [error_of(TRIPLE.with_fields({"integration.seed": seed}), target) for seed in range(64)]
    values, errors = np.array(found).T
    assert_calibrated(values - true, errors, 16)
