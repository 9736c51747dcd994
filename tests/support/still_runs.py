"""Training runs that stay where they start, whose risk and errors are means over fields of known overlaps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import expit, softmax
from scipy.stats import norm, qmc

import attnphase as ap


def still(problem: ap.Problem, start: Any, dimension: int, seeds: int = 3, alpha: float = 100.0, **options: Any) -> Any:
    """Runs that stay where they start, by one step of a rate that moves nothing."""
    options = {"test_samples": 0, "seed": 11, "steps": 1, "learning_rate": 1e-12} | options
    return ap.simulate(problem, alpha, start, dimension, seeds, "gd", **options).squeeze(["dimension", "alpha"])


def weights_for(problem: ap.Problem, dimension: int, seeds: int | None = None) -> Any:
    """Drawn weights that are no minimum of anything."""
    shape = (dimension, problem.columns) if seeds is None else (seeds, dimension, problem.columns)
    return 0.3 + 0.6 * np.random.default_rng(5).standard_normal(shape)


def fitted(problem: ap.Problem, runs: Any, alpha: float = 100.0) -> Any:
    """The mean loss of a training sample."""
    penalty = problem.regularizer.strength / 2 * runs["weight_norm"]  # pyright: ignore[reportOperatorIssue]
    return ((runs["training_loss"] - penalty) / alpha).to_numpy().ravel()


def attention(problem: ap.Problem) -> Any:
    """Half the squared distance of outputs in the limit, from fields and the tokens' variances, or a value matrix."""
    rank, share = problem.student.rank, problem.teacher.omega

    def scores(logits: Any, side: Any) -> Any:
        logits = logits / side.temperature
        if side.causal:
            logits = logits + np.triu(np.full(logits.shape[-2:], -np.inf), 1)
        return expit(logits) if side.score == "sigmoid" else softmax(logits, axis=-1)

    def loss(h: Any, k: Any, _c: Any, variances: Any) -> Any:
        right = h[..., :rank] if problem.student.tied else h[..., rank:]
        seen = k[..., : problem.teacher.rank]
        T = (1 - share) * scores(seen @ seen.mT, problem.teacher) + share * np.array(problem.mixing_matrix)
        S = scores(h[..., :rank] @ right.mT, problem.student)
        if problem.loss.kind == "values":
            return ((T @ k[..., problem.teacher.rank :] - S @ h[..., rank:]) ** 2).sum(axis=(1, 2)) / 2
        return ((T - S) ** 2 * variances).sum(axis=(1, 2)) / 2

    return loss


def quadrature(
    problem: ap.Problem, of: Any, run: Any, teacher: Any, law: Mapping[Any, float], own: Any = None
) -> float:
    """The mean of a function over fields that have a run's overlaps, and its teacher's; by Sobol points.

    ``own`` makes fields of Gaussian ones, and their density; a student's field moves along with its teacher's.
    """
    length, r, t, total = problem.tokens.length, problem.columns, problem.teacher_columns, 0.0
    uniform = qmc.Sobol(length * (r + t), rng=np.random.default_rng(2)).random_base2(15)
    normals = norm.ppf(uniform).reshape(-1, length, r + t)
    for clusters, probability in law.items():

        def at(ds: Any, name: str, where: Any = clusters) -> Any:
            values = ds[name].to_numpy()
            return np.stack([values[l, c] if "cluster" in ds[name].dims else values[l] for l, c in enumerate(where)])

        q, theta, rho = at(run, "q"), at(run, "theta"), at(teacher, "theta")[:, :t]
        root = np.linalg.cholesky(np.block([[q, theta], [theta.mT, rho]]))
        fields = np.einsum("lij,nlj->nli", root, normals)
        k = fields[..., r:] + (at(teacher, "m")[:, :t] if problem.positions.kind == "none" else 0.0)
        made, density = own(k, clusters) if own else (k, np.ones(len(k)))
        h = fields[..., :r] + at(run, "m") + np.einsum("lij,nlj->nli", np.linalg.solve(rho, theta.mT).mT, made - k)
        weights, variances = problem.spectrum_atoms()
        sites = [problem.sites.index(site) for site in enumerate(clusters)]
        values = of(h, made, clusters, (weights @ variances)[sites])
        total += probability * (values * density).mean() / density.mean()
    return total
