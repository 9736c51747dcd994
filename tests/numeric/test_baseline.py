"""The linear baseline against closed forms: linear scores make its target a product of two Gaussian fields.

With ``T = (1 - omega) k k^T + omega A`` and independent ``k_l ~ N(mu_l, rho_l)`` the moments of T are polynomials, and
(19)-(20) can be written down. No kernel is compiled: the target is a NumPy function here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from attnphase.integration.rules import sobol
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution import baseline
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.system import System
from derivations.codegen.arrays import state_evolution_source
from derivations.models.symbolic import GENERIC
from derivations.replica.chain import derive_free_entropy
from derivations.replica.saddle_point import derive_saddle_point

LINEAR = {"teacher.score": "linear", "student.score": "linear"}
PAIR = Problem().with_fields({**LINEAR, "tokens.sigma": [0.62, 0.41], "teacher.omega": 0.34})
# six dimensions: more than a tensor rule is used for
TRIPLE = Problem().with_fields(
    {**LINEAR, "tokens.length": 3, "tokens.sigma": [0.62, 0.41, 0.5], "teacher.omega": 0.34, "teacher.rank": 2}
)
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


@cache
def equations() -> SimpleNamespace:
    """The generated module of derived equations."""
    free_entropy = derive_free_entropy(GENERIC)
    namespace: dict[str, Any] = {}
    exec(state_evolution_source(derive_saddle_point(free_entropy), free_entropy), namespace)
    return SimpleNamespace(**namespace)


def linear_teacher(k: NDArray[Any], mixing: NDArray[Any], parameters: NDArray[Any], targets: NDArray[Any]) -> None:
    """In NumPy, in the place of the compiled kernel."""
    omega = parameters[0]
    targets[:] = (1 - omega) * k @ k.mT + omega * mixing


def error_of(
    problem: Problem, targets_at: Callable[..., None] = linear_teacher, law: SampleLaw | None = None
) -> tuple[float, float]:
    """The baseline's error with a teacher that nothing is compiled for."""
    sizes = {"length": problem.tokens.length, "teacher_rank": problem.teacher.rank, "noise_columns": 0}
    kernels: Any = SimpleNamespace(**sizes, targets_at=targets_at, ridge=equations())
    return linear_test_error(System(problem, kernels, Spectrum.of(problem), own_law=law))


def exact(problem: Problem) -> float:
    """(19)-(20) from the moments of independent Gaussian fields; every token's fields have one variance."""
    spectrum, length, rank = Spectrum.of(problem), problem.tokens.length, problem.teacher.rank
    configurations, probabilities = problem.cluster_law
    omega, A = problem.teacher.omega, problem.mixing_matrix
    second, weighted, mean = 0.0, np.zeros((length, length)), np.zeros(length)
    for sites, p in zip(configurations, probabilities, strict=True):
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
def test_quadrature_against_the_closed_form(problem):
    """With clusters ``W = E[T D] E[D]^-1``, and the teacher's fields have a mean of their own in every cluster."""
    assert error_of(problem)[0] == pytest.approx(exact(problem), rel=1e-12)


def test_error_of_the_quadrature_is_that_of_a_kink():
    """A target with a kink, ``T_ab = |k_a|``: the rule is wrong by about what it says, and says so."""

    def targets_at(k: NDArray[Any], mixing: Any, parameters: Any, targets: NDArray[Any]) -> None:
        targets[:] = np.abs(k)

    value, error = error_of(PAIR, targets_at)
    rho, D = Spectrum.of(PAIR).rho[:, 0, 0], Spectrum.of(PAIR).site_variances
    true = ((1 - 2 / np.pi) * rho.sum()) * D.sum() / 2
    assert abs(value - true) / 20 < error < 20 * abs(value - true)


def test_sampled_baseline_and_its_error(monkeypatch):
    """Against the closed form: 64 seeds with few points deviate by as much as they say."""
    value, error = error_of(TRIPLE)
    true = exact(TRIPLE)
    assert abs(value - true) < 4 * error
    assert error < 2e-3 * true
    monkeypatch.setattr(baseline, "sobol", lambda d, s, symmetric, _, r, seed: sobol(d, s, symmetric, 32, r, seed))
    results = [error_of(TRIPLE.with_fields({"integration.seed": seed})) for seed in range(64)]
    values, errors = np.array(results).T
    # squares of 64 deviations over the squared errors of 16 replicates each
    ratio = np.mean((values - true) ** 2) / np.mean(errors**2)
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], 64, 64 * 15)
    assert low < ratio < high
