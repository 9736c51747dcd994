"""The linear baseline (17): the best linear map ``f_W(x) = W x``, equations (19)-(20)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.rules import Rule, gauss_hermite, sobol
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.system import System

__all__ = ["linear_test_error"]


@lru_cache(maxsize=64)
def linear_test_error(system: System) -> tuple[float, float]:
    """Test error of the linear baseline, and its integration error; the same with noise on the labels or without.

    Equation (B2) of the replica-symmetric page.

    ``W = E[T(h_star)]`` and ``(1/L) {E Tr[T D T^T] - Tr[W D W^T]}``, for infinitely many samples; with mixture tokens
    ``W = E[T D] E[D]^-1``. Only losses between attention outputs have it.

    Returns
    -------
    value, standard_error : float
        NaN for any other loss.
    """
    problem = system.problem
    if not problem.loss.form.has_grams:
        return float("nan"), float("nan")
    dimensions = problem.tokens.length * problem.teacher.rank
    if dimensions <= 4:
        order = {1: 64, 2: 48, 3: 24, 4: 14}[dimensions]
        values = [_error(system, gauss_hermite(dimensions, 0, False, n)).item() for n in (order, order - 4)]
        return values[0], abs(values[1] - values[0])
    replicates = _error(system, sobol(dimensions, 0, False, 4096, 16, problem.integration.seed))
    return float(replicates.mean()), float(replicates.std(ddof=1) / np.sqrt(len(replicates)))


def _error(system: System, rule: Rule) -> Array:
    """Baseline error per replicate, (S,)."""
    kernels, law = system.kernels, system.sample_law
    length, rank = kernels.length, kernels.teacher_rank
    root = matrix_root(law.clean_rho)
    normal = rule.nodes.reshape(-1, length, rank)

    def targets_of(configuration: int) -> tuple[Array, Array]:
        """Score matrices of the teacher at the nodes, (S, N, L, L), and the weights of these, (S, N)."""
        zeta, shares = law.drawn(configuration, normal)
        k = np.einsum("lij,nlj->nli", root[law.configurations[configuration]], zeta)
        clean = law.labels_of(k) + law.means[configuration]
        targets = np.empty((len(clean), length, length))
        kernels.targets_at(np.ascontiguousarray(clean), *system.parameters, targets)
        points = rule.nodes.shape[:2]
        return targets.reshape(*points, length, length), rule.weights * shares.reshape(points)

    def sample_mean(integrand: Callable[[Array, Array], Array]) -> Array:
        """Mean of a function of targets and token variances over clusters and nodes, (S, ...)."""
        total = np.zeros(())
        for configuration, probability in enumerate(law.probabilities):
            targets, weights = targets_of(configuration)
            values = integrand(targets, np.diag(system.token_variances[configuration])[None, None])
            total = total + probability * np.einsum("sn,sn...->s...", weights, values)
        return total

    return kernels.ridge.linear_test_error(sample_mean, length)
