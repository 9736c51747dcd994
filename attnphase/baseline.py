"""The linear baseline (17): the best linear map ``f_W(x) = W x``, equations (19)-(20)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from attnphase.compiled import kernels_for
from attnphase.gaussian import Rule, gauss_hermite, sobol
from attnphase.prior import Spectrum
from attnphase.problem import Problem

__all__ = ["linear_test_error"]


@lru_cache(maxsize=64)
def linear_test_error(problem: Problem) -> tuple[float, float]:
    """Test error of the linear baseline, and its integration error.

    ``W = E[T(h_star)]`` and ``(1/L) {E Tr[T D T^T] - Tr[W D W^T]}``, for infinitely many samples.

    Returns
    -------
    value, standard_error : float
    """
    dimensions = problem.tokens.length * problem.teacher.rank
    if dimensions <= 4:
        order = {1: 64, 2: 48, 3: 24, 4: 14}[dimensions]
        values = [_error(problem, gauss_hermite(dimensions, 0, False, n)).item() for n in (order, order - 4)]
        return values[0], abs(values[1] - values[0])
    replicates = _error(problem, sobol(dimensions, 0, False, 4096, 16, problem.integration.seed))
    return float(replicates.mean()), float(replicates.std(ddof=1) / np.sqrt(len(replicates)))


def _error(problem: Problem, rule: Rule) -> NDArray[np.float64]:
    """Baseline error per replicate, (S,)."""
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    length, rank = kernels.length, kernels.teacher_rank
    values, vectors = np.linalg.eigh(spectrum.rho)
    root = (vectors * np.sqrt(values)[:, None, :]) @ vectors.mT
    k = np.einsum("lij,snlj->snli", root, rule.nodes.reshape(*rule.nodes.shape[:2], length, rank))
    targets = np.empty((k.shape[0] * k.shape[1], length, length))
    mixing = np.ascontiguousarray(problem.mixing_matrix, dtype=float)
    kernels.targets_at(np.ascontiguousarray(k.reshape(-1, length, rank)), mixing, float(problem.teacher.omega), targets)
    targets = targets.reshape(*k.shape[:2], length, length)
    variance = spectrum.token_variances
    mean = np.einsum("n,snab->sab", rule.weights, targets)
    second = np.einsum("n,snab,b->s", rule.weights, targets**2, variance)
    return (second - np.einsum("sab,b->s", mean**2, variance)) / length
