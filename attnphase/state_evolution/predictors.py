"""How well the best constant, linear or positional predictor knows a scalar label, from infinitely many samples.

``E[y x]`` lies in the span of the means and of the covariances times the teacher's columns.  Least squares on all
tokens is therefore least squares on as many of their coordinates, `_Coordinates`, whose law given k is Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.integration.refinement import REPLICATES
from attnphase.integration.rules import sobol
from attnphase.lazy import loaded_on_use
from attnphase.problem.own_functions import label_formula
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum, measure_of
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.sample_law import SampleLaw

with loaded_on_use(__name__):
    from derivations.models import metrics

__all__ = ["FEWEST", "BestPredictor", "PredictorKind", "best_predictor"]

PredictorKind = Literal["constant", "pooled", "positional", "linear"]
"""A kind of predictor."""

_KINDS: tuple[PredictorKind, ...] = get_args(PredictorKind)
FEWEST, _MOST = 2**14, 2**24  # nodes: coefficients may fit a small share of them alone
_STREAM = 2  # of a seed's random numbers; the first is that of metrics
_DEPENDENT = 1e-12  # variance below which a combination of coordinates, in units of their sizes, is rounding


@dataclass(frozen=True)
class BestPredictor:
    """The mean squared error of the best predictor of a kind.

    Attributes
    ----------
    error : float
        ``E (y - f)^2``.
    standard_error : float
        By integration: the scatter of the replicates, and what one point counts where the label jumps.
    """

    error: float
    standard_error: float

    def r_squared(self, error: Any, standard_error: Any = 0.0) -> tuple[Any, Any]:
        """Return R² of another predictor, 1 - its error / this one's error; this one is the best constant.

        Parameters
        ----------
        error, standard_error : float or array
            Mean squared error of the other predictor and its standard error, independent of this one's.

        Returns
        -------
        value, standard_error : float or array
        """
        share = error / self.error
        return 1 - share, np.hypot(standard_error, share * self.standard_error) / self.error


def best_predictor(
    problem: Problem, label: str | Callable[..., Any], kind: PredictorKind, *, nodes: int = 2**16
) -> BestPredictor:
    """Return the mean squared error of the best predictor of a scalar label, for infinitely many samples.

    Parameters
    ----------
    problem : Problem
        Its law of the tokens and of the noise; its student does not matter.
    label : str or callable
        A formula of ``k``, ``noise``, ``c`` and the parameters of the loss that are not trained, as in ``metrics``; or
        a function of these.
    kind : {"constant", "pooled", "positional", "linear"}
        The predictors f: b; b + v · Σ_l x_l; b + v · Σ_l a_l x_l; b + Σ_l v_l · x_l. Encodings do not change the
        errors, since they only add to b. "positional" is a formula only for Gaussian tokens that have one covariance.
    nodes : int
        Number of Sobol points, from 2**14 to 2**24, rounded down to a power of two.

    Returns
    -------
    BestPredictor

    Raises
    ------
    ProblemError
        An argument is wrong, or "positional" is no formula for these tokens.

    Examples
    --------
    >>> round(best_predictor(Problem(), "2*k[0, 0] + 3*k[1, 0]*k[0, 0]", "linear").error, 2)
    0.56
    """
    arguments.instance("problem", problem, Problem)
    if not callable(label):
        arguments.text("label", label, "a formula of k, noise and c, or a function of these")
    arguments.word("kind", kind, _KINDS)
    arguments.whole("nodes", nodes, FEWEST, _MOST)
    spectrum, text = measure_of(problem), label_formula(problem, label)
    law, tokens = SampleLaw.of(problem, spectrum), range(problem.tokens.length)
    root = None
    if kind == "positional":
        if problem.tokens.has_clusters or not law.gaussian or (spectrum.gamma != spectrum.gamma[0]).any():
            raise ProblemError(
                "kind",
                'kind = "positional" needs Gaussian tokens that have one covariance, no tokens.sampler and no'
                ' tokens.density: take "pooled" and "linear", between whose errors its error lies.',
            )
        root = matrix_root(spectrum.rho[0])
    groups = {"constant": [], "pooled": [tokens]}.get(kind, [[token] for token in tokens])
    points = 2 ** int(np.log2(nodes // REPLICATES))
    moments, jumps = _moments(problem, law, _Coordinates.of(spectrum, law, groups), text, points)
    every = moments.mean(axis=0)
    one_less = every + (every - moments) / (REPLICATES - 1)
    error = _error(every, root)
    # the jackknife: coefficients that fit the nodes make the error at these too small, by a share of 1/nodes
    values = REPLICATES * error - (REPLICATES - 1) * _error(one_less, root)
    jump = (jumps + 2 * np.sqrt(jumps * max(error, 0.0))) / (2 * points)  # of (y - f)^2, by Cauchy-Schwarz
    own = np.hypot(values.std(ddof=1), jump) / np.sqrt(REPLICATES)
    return BestPredictor(max(float(values.mean()), 0.0), float(own))


@dataclass(frozen=True, eq=False)
class _Coordinates:
    """Coordinates (F) of tokens, and what each site (P) adds to them given ``zeta = rho^-1/2 (k - kbar)``.

    Attributes
    ----------
    means, lifts, rest : (P, F), (P, F, t) and (P, F, F) arrays
        Gaussian ones of mean ``means + lifts zeta`` and covariance ``rest``.
    """

    means: Array
    lifts: Array
    rest: Array

    @classmethod
    def of(cls, spectrum: Spectrum, law: SampleLaw, groups: Sequence[Sequence[int]]) -> _Coordinates:
        """Those that least squares on the sums of the tokens of each group needs.

        With S the mean covariance of such a sum they are along ``S^-1 Sigma_s Q_star`` and, in clusters, along
        ``S^-1 (mu_s + p_l)``, for every site s of the group.
        """
        count, of_sites, chances = spectrum.sites, spectrum.gamma.T, law.holding @ law.probabilities
        units, directions, groups_of = np.eye(spectrum.second_moments.shape[-1]), [], [np.empty(0, dtype=int)]
        for number, group in enumerate(groups):
            sites = np.flatnonzero(np.isin(law.tokens, group) & (chances > 0))
            variances = of_sites[:, sites] @ chances[sites]
            inverse = np.divide(1.0, variances, out=np.zeros_like(variances), where=variances > 0)
            along = [np.einsum("as,jx->asjx", of_sites[:, sites] * inverse[:, None], units[count:])]
            if law.configurations.shape[0] > 1:
                still = (variances == 0).astype(float)  # where the means alone vary
                along += [np.einsum("a,sx->asx", one, units[sites]) for one in (inverse, still) if one.any()]
            found = [one.reshape(len(variances), -1, len(units)) for one in along]
            directions += found
            groups_of.append(np.full(sum(one.shape[1] for one in found), number))
        along = np.concatenate([np.zeros((len(of_sites), 0, len(units))), *directions], axis=1)
        weighted = spectrum.weights[:, None, None] * along @ spectrum.second_moments  # sums over the atoms follow
        numbers = np.concatenate(groups_of)
        member = np.array([[token in groups[number] for number in numbers] for token in law.tokens]).reshape(count, -1)
        means = np.einsum("afs->sf", weighted[..., :count]) * member
        with_k = np.einsum("sa,afj->sfj", spectrum.gamma, weighted[..., count:]) * member[..., None]
        covariance = np.einsum("sa,afx,agx->sfg", spectrum.gamma, weighted, along, optimize=True)
        covariance *= member[:, :, None] * member[:, None, :]
        lifts = np.linalg.solve(matrix_root(law.clean_rho), with_k.mT).mT
        return cls(means, lifts, covariance - lifts @ lifts.mT)


def _moments(
    problem: Problem, law: SampleLaw, coordinates: _Coordinates, label: str, points: int
) -> tuple[Array, float]:
    """Second moments of 1, the coordinates and the label per replicate, (S, 2 + F, 2 + F); mean square of its jumps."""
    length, rank, numbers = problem.tokens.length, problem.teacher_columns, problem.numbers
    function = metrics.metric_function((label,), length, 1, rank, tuple(numbers))
    deviation = np.sqrt(problem.teacher.noise) if function.noisy else 0.0
    fields, size = length * rank, 2 + coordinates.means.shape[1]
    dimensions = fields + (length**2 if deviation else 0)
    rule = sobol(dimensions, 0, False, points, REPLICATES, (problem.integration.seed, _STREAM))
    root, clusters = matrix_root(law.clean_rho), np.array([c for _, c in problem.sites], dtype=float)
    moments, jumps = np.zeros((REPLICATES, size, size)), 0.0
    for own, nodes in zip(moments, rule.nodes, strict=True):
        noise = deviation * nodes[:, fields:].T if deviation else np.zeros((length**2, points))
        for c, (sites, probability) in enumerate(zip(law.configurations, law.probabilities, strict=True)):
            zeta, shares = law.sampled(c, nodes[:, :fields].reshape(points, length, rank))
            k = law.means[c, :, :rank, None] + root[sites] @ zeta.transpose(1, 2, 0)
            arrays = np.zeros((length, 1, points)), np.ascontiguousarray(k), noise
            (y,), (jump,) = function(*arrays, clusters[sites], np.array([*numbers.values()]))
            known = coordinates.means[sites].sum(axis=0) + np.einsum("lfj,nlj->nf", coordinates.lifts[sites], zeta)
            weights, rows = probability * rule.weights * shares, np.column_stack([np.ones(points), known, y])
            own += rows.T @ (weights[:, None] * rows)
            own[1:-1, 1:-1] += weights.sum() * coordinates.rest[sites].sum(axis=0)
            jumps += weights @ jump**2 / REPLICATES
    return moments, float(jumps)


def _error(moments: Array, root: Array | None) -> Array:
    """The error of the best predictor (...) under moments (..., 2 + F, 2 + F), of rank one over tokens with a root.

    This is the root (t, t) of the covariance of every token's coordinates.
    """
    moments = moments / moments[..., :1, :1]  # the mean of a density over the nodes is not quite one
    means = moments[..., 0, 1:]
    covariance = moments[..., 1:, 1:] - means[..., :, None] * means[..., None, :]
    units = np.sqrt(np.diagonal(moments, axis1=-2, axis2=-1)[..., 1:-1])
    units = np.where(units > 0, units, 1.0)
    scaled = covariance[..., :-1, :-1] / units[..., :, None] / units[..., None, :]
    inverse = np.linalg.pinv(scaled, rcond=_DEPENDENT, hermitian=True)
    slopes = (inverse @ (covariance[..., :-1, -1:] / units[..., None]))[..., 0] / units
    if root is not None:
        left, values, right = np.linalg.svd(slopes.reshape(*slopes.shape[:-1], -1, len(root)) @ root)
        kept = values[..., :1, None] * left[..., :1] * (right[..., :1, :] @ np.linalg.pinv(root))
        slopes = kept.reshape(slopes.shape)
    signed = np.concatenate([-slopes, np.ones((*slopes.shape[:-1], 1))], axis=-1)
    return np.asarray(np.einsum("...i,...ij,...j->...", signed, covariance, signed))
