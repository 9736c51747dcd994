"""Conjugates to overlaps: the mean over the spectral measure, equation (7), or (100)-(106) beyond the ridge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.compiler import Kernels
from attnphase.kernels.equations import Maps
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.rows.means import row_moments
from attnphase.rows.moments import RowMoments
from attnphase.rows.regularizer import RowRegularizer
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.gauge import ROUNDING, ROUNDS, Gauge
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, norm_entries

__all__ = ["Prior"]

# where a row has neither noise nor source, its response is a difference over fields of this relative size
_NOISE_FLOOR = 1e-7
# where all weights are zero V vanishes, and the local problem needs a positive one
_VARIANCE_FLOOR = 1e-10


@dataclass(frozen=True, eq=False)
class _Sources:
    """Sources ``B`` of the rows' problems, Gaussian together with tau and pi: N for all atoms and replicates.

    Attributes
    ----------
    mean : (N, r) array
    root, curvature : (N, r, r) arrays
        Root of the covariance; Lambda.
    average : (N, P + t) array
        Of (tau, pi).
    gain : (N, P + t, r) array
        Their covariance with B.
    """

    mean: Array
    root: Array
    curvature: Array
    average: Array
    gain: Array


@dataclass(frozen=True, eq=False)
class Prior:
    """The rows' problems under the spectral measure.

    Attributes
    ----------
    kernels : Kernels
    spectrum : Spectrum
    strength : float or (r,) array
        lambda of all columns or of each, if the regulariser is the ridge.
    rows : RowRegularizer or None
        Any other regulariser.
    units : Units or None
        The problem's; None for ones.
    at_rest : bool
        Whether all weights stay zero, at a kink of the regulariser; see `rest`.
    """

    kernels: Kernels
    spectrum: Spectrum
    strength: float | Array
    rows: RowRegularizer | None = None
    units: Units | None = None
    at_rest: bool = False

    @classmethod
    def of(cls, problem: Problem, kernels: Kernels, spectrum: Spectrum | None = None) -> Prior:
        """The prior of a problem; `spectrum` replaces the problem's own."""
        rows, measure = problem.rows, spectrum or Spectrum.of(problem)
        # second moments of pi are all that the ridge asks for
        quadratic, own = (None, measure) if rows.quadratic else (rows, measure.gaussian)
        return cls(kernels, own, rows.ridge, quadratic, Units.of(problem))

    @property
    def maps(self) -> Maps:
        """The derived equations that go with the regulariser."""
        return self.kernels.ridge if self.rows is None else self.kernels.separable

    @property
    def even(self) -> bool:
        """Whether the regulariser is unchanged by the weights' signs."""
        return self.rows is None or self.rows.even

    def unchanged(self, A: Array) -> bool:
        """Whether the regulariser is unchanged by a signed permutation (r, r) of the columns."""
        ridges = self.strength * np.eye(len(A))
        return (self.even or A.min() >= 0) and np.array_equal(A @ ridges @ A.T, ridges)

    @property
    def least_ridge(self) -> float:
        """The smallest lambda of a column."""
        return float(np.min(self.strength))

    def overlaps(self, conjugates: Conjugates, *, lift: bool = False) -> Overlaps | None:
        """Equation (7); None where a row's problem has no minimum on some atom.

        Equations (S1)-(S4) of the replica-symmetric page.

        Parameters
        ----------
        conjugates : Conjugates
            With replicate axis of length one.
        lift : bool
            Outside the domain, add to V_hat what brings the smallest curvature to a tenth of lambda. Not the map any
            more, but it leads poor starts, where the loss is concave, towards larger overlaps and so into the domain.
        """
        curvature = self.curvature(conjugates)
        if not np.isfinite(curvature).all():
            return None
        lowest = self._margin(curvature)
        if lowest <= 0 and not self.at_rest:
            if not lift:
                return None
            target = (
                0.1 * self.least_ridge
                if self.least_ridge > 0
                else max(1e-3 * float(np.abs(curvature).max()), 1e-6 * self._stiffness)
            )
            shift = (target - lowest) / self._stiff_gamma(conjugates).sum(axis=0).min()
            conjugates = replace(conjugates, V_hat=conjugates.V_hat + shift * np.eye(self.kernels.columns))
        return self._images(conjugates).replicate(0)

    def of_replicates(self, conjugates: Conjugates, *, lift: bool = False) -> Overlaps | None:
        """`overlaps` of every replicate by itself, (S, P, ...); None where one has none."""
        if self.has_image(conjugates):
            images = self._images(conjugates)
            parts = (images.q, images.V, images.m, images.theta)
            return Overlaps(*(x.swapaxes(0, 1) for x in parts), trained=images.trained, norms=images.norms)
        count = conjugates.q_hat.shape[1]
        each = [self.overlaps(conjugates.replicate(s), lift=lift) for s in range(count)]
        inside = [image for image in each if image is not None]
        return Overlaps.stacked(inside) if len(inside) == len(each) else None

    def has_image(self, conjugates: Conjugates) -> bool:
        """Whether the rows' problems have minima on all atoms."""
        curvature = self.curvature(conjugates)
        return bool(np.isfinite(curvature).all() and (self.at_rest or self._margin(curvature) > 0))

    def _images(self, conjugates: Conjugates) -> Overlaps:
        """Equation (7) inside its domain, with the replicates behind the sites."""
        q, V, m, theta = self.maps.overlaps_from_conjugates(**self.atoms(conjugates), **conjugates.by_name)
        trained, count = conjugates.trained[0], 0
        if conjugates.Q_hat.size:
            norms = conjugates.norms[0] if conjugates.norms.size else norm_entries(symmetric(q[-1]))
            trained = np.concatenate([np.broadcast_to(trained, (len(norms), trained.shape[1])), norms], axis=-1)
            q, V, m, theta, count = q[:-1], V[:-1], m[:-1], theta[:-1], norms.shape[1]
        V = symmetric(V)
        if self.rows is not None:
            least = self.least_variance[:, None]  # no more than is missing: its unit does not know that of the loss
            lacking = np.maximum(least[..., 0, 0] - np.linalg.eigvalsh(V)[..., 0], 0.0)
            V = V + lacking[..., None, None] * np.eye(V.shape[-1])
        return Overlaps(symmetric(q), V, m, theta, trained, norms=count)

    @property
    def least_variance(self) -> Array:
        """V of every site where all weights are zero, (P, r, r)."""
        floor = _VARIANCE_FLOOR / self._stiffness * self.spectrum.site_variances[:, None, None]
        return floor * np.eye(self.kernels.columns)

    def norms(self, conjugates: Conjugates) -> Array:
        """``W^T W / d`` of the ridge, (S, r, r), inside the domain."""
        return _mean(self.spectrum.weights, self._squares(conjugates, self.resolvent(conjugates)))

    def balanced(self, conjugates: Conjugates, gauge: Gauge) -> Conjugates:
        """Conjugates whose image has ridges that are stationary along the stretches of their gauge.

        Multipliers of the stretches are added to V_hat, by Newton's method. The norms fall with their multipliers, so
        that there is one solution; at a fixed point of the exact map it is zero. Conjugates without an image stay.
        """
        curvature = self.curvature(conjugates)
        if not len(gauge.stretches) or not np.isfinite(curvature).all() or self._margin(curvature) <= 0:
            return conjugates
        weights, stretches = self.spectrum.weights, gauge.pulls
        share = self.spectrum.site_shares
        atoms = share @ self.spectrum.gamma
        shift = np.zeros_like(curvature[0])
        for _ in range(ROUNDS):
            resolvent = self._resolvent(curvature + atoms[:, None, None, None] * shift)
            squares = self._squares(conjugates, resolvent)
            norms = _mean(weights, squares)
            slope = np.einsum("iab,sba->si", stretches, norms)
            size = np.trace(norms, axis1=-2, axis2=-1)[:, None]
            if (np.abs(slope) <= ROUNDING * size).all():
                break
            bend = 2 * np.einsum("n,iab,nsbc,jcd,nsda->sij", weights * atoms, stretches, resolvent, stretches, squares)
            bend = (bend + bend.mT) / 2
            largest = np.abs(bend).max(axis=(1, 2), keepdims=True)
            bend += (1e-12 * largest + np.finfo(float).tiny) * np.eye(len(stretches))
            step = np.einsum("si,iab->sab", np.linalg.solve(bend, slope[..., None])[..., 0], stretches)
            while self._margin(curvature + atoms[:, None, None, None] * (shift + step)) <= 0:
                step = step / 2
            shift = shift + step
        return replace(conjugates, V_hat=conjugates.V_hat + share[:, None, None, None] * shift)

    def resolvent(self, conjugates: Conjugates) -> Array:
        """``R`` of the ridge on every atom, (A, S, r, r)."""
        return self._resolvent(self.curvature(conjugates))

    def _resolvent(self, curvature: Array) -> Array:
        found: Array = np.linalg.inv(curvature + self.strength * np.eye(curvature.shape[-1])).astype(float, copy=False)
        return found

    def _squares(self, conjugates: Conjugates, resolvent: Array) -> Array:
        """``E w w^T`` of the ridge on every atom, (A, S, r, r)."""
        squares: Array = resolvent @ self.source_squares(conjugates) @ resolvent
        return symmetric(squares)

    def source_squares(self, conjugates: Conjugates) -> Array:
        """Second moments of the sources b on every atom, (A, S, r, r)."""
        linear: Any = self._linear(conjugates)
        found: Array = self._over_sites(conjugates.q_hat) + linear @ self.spectrum.second_moments[:, None] @ linear.mT
        return found

    def _linear(self, conjugates: Conjugates) -> Array:
        """The part of the source b that is linear in (tau, pi), (A, S, r, P + t)."""
        count, atoms = self.spectrum.gamma.shape
        replicates, r = conjugates.q_hat.shape[1], self.kernels.columns
        from_tau = np.broadcast_to(np.moveaxis(conjugates.m_hat[..., 0], 0, -1), (atoms, replicates, r, count))
        return np.concatenate([from_tau, self._over_sites(conjugates.theta_hat)], axis=3)

    @property
    def _stiffness(self) -> float:
        """Unit of the penalty's curvature."""
        return 1.0 if self.units is None else self.units.curvature

    def curvature(self, conjugates: Conjugates) -> Array:
        """``sum_s gamma_s V_hat_s + Q_hat`` on every atom, (A, S, r, r); a mean one on `_unseen` atoms."""
        curvature = self._over_sites(conjugates.V_hat, self._stiff_gamma(conjugates))
        return curvature + conjugates.Q_hat if conjugates.Q_hat.size else curvature

    def _unseen(self, conjugates: Conjugates) -> NDArray[np.bool_]:
        """Atoms without variance and ``m_hat tau``, (A,): only an even penalty acts there, so that weights are zero."""
        flat, encoded = self._flat
        return flat & ~encoded if flat.any() and conjugates.m_hat.any() else flat

    @cached_property
    def _flat(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Atoms without variance under an even penalty, and atoms with encodings: both (A,)."""
        count = self.spectrum.sites
        even = self.rows is not None and self.rows.even
        tau = self.spectrum.second_moments[:, :count, :count]
        return even & (self.spectrum.gamma == 0).all(axis=0), (tau != 0).any(axis=(1, 2))

    def _stiff_gamma(self, conjugates: Conjugates) -> Array:
        """Eigenvalues that give curvatures, (P, A): the means on atoms where every curvature gives zero weights.

        A curvature of mean eigenvalues is positive where those of all other atoms are.
        """
        unseen = self._unseen(conjugates)
        if not unseen.any():
            return self.spectrum.gamma
        return np.where(unseen, self.spectrum.site_variances[:, None], self.spectrum.gamma)

    def _over_sites(self, values: Array, gamma: Array | None = None) -> Array:
        """``sum_s gamma_s x_s`` of (P, S, i, j) on every atom, (A, S, i, j); `gamma` replaces the spectrum's own."""
        gamma = self.spectrum.gamma if gamma is None else gamma
        return (gamma.T @ values.reshape(len(gamma), -1)).reshape(-1, *values.shape[1:])

    def _margin(self, curvature: Array) -> float:
        if self.rows is not None:
            return self.rows.margin(curvature)
        whole = curvature + self.strength * np.eye(curvature.shape[-1])
        return float((whole if whole.shape[-1] == 1 else np.linalg.eigvalsh(whole)).min())

    def atoms(self, conjugates: Conjugates) -> dict[str, Any]:
        """The spectral atoms under the names of `overlaps_from_conjugates`, with axes (P,) A, replicate, row, column.

        Beyond the ridge too these equations ask for second moments only: each atom becomes r points that have those of
        the rows' minimisers with tau and pi, and their response.
        """
        if self.rows is None:
            return self.arguments(conjugates)
        solved = self._rows(conjugates)
        return {name: solved[name] for name in ("gamma", "tau", "pi", "w", "chi", "spectral_mean")}

    def arguments(self, conjugates: Conjugates) -> dict[str, Any]:
        """The same under the names of `free_entropy_terms` and `observables`."""
        if self.rows is not None:
            return self._rows(conjugates)
        return self._points_with_norms if conjugates.Q_hat.size else self._points

    def density(self, conjugates: Conjugates) -> Array:
        """Share of the weights that are not zero, per replicate."""
        if self.rows is None:
            return np.ones(conjugates.q_hat.shape[1])
        # outside the domain, where a row has no minimum, its pieces overlap
        density = np.minimum(_solved(self, conjugates)[1].density, 1.0)
        seen: Array = np.where(self._unseen(conjugates), 0.0, self.spectrum.weights)
        return seen @ density.reshape(len(seen), -1)

    @cached_property
    def _points(self) -> dict[str, Any]:
        weights, gamma, tau, pi = self.spectrum.points()
        return {
            "ridge": self.strength,
            "gamma": gamma[:, :, None, None, None],
            "tau": tau[:, :, None, None, None],
            "pi": pi[:, None, :, None],
            "spectral_mean": _mean_over(weights),
        }

    @cached_property
    def _points_with_norms(self) -> dict[str, Any]:
        """With a site of variance one and without encodings behind the others, whose q is ``W^T W / d``."""
        gamma, tau = (self._points[name] for name in ("gamma", "tau"))
        one, none = np.ones_like(gamma[:1]), np.zeros_like(tau[:1])
        return self._points | {"gamma": np.concatenate([gamma, one]), "tau": np.concatenate([tau, none])}

    def _rows(self, conjugates: Conjugates) -> dict[str, Any]:
        """The rows' problems as points, replicate by replicate."""
        spectrum, (sources, moments) = self.spectrum, _solved(self, conjugates)
        count, atoms, r = spectrum.sites, len(spectrum.weights), self.kernels.columns
        # E w (tau, pi)^T, as (tau, pi) and the source are jointly Gaussian
        joint: Any = moments.first[:, :, None] * sources.average[:, None] + moments.response @ sources.gain.mT
        # outside the domain a descent may have run away
        values, vectors = np.linalg.eigh(np.where(np.isfinite(moments.second), moments.second, 0.0))
        sizes = np.sqrt(np.maximum(values, 0.0) * r)
        inverse = np.divide(r, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        others = (vectors * inverse[:, None]).mT @ joint

        def points(values: Array) -> Array:
            """(A S, r, ...) with the replicates behind the points."""
            parts = values.reshape(atoms, -1, *values.shape[1:])
            return np.moveaxis(parts, 1, 2).reshape(atoms * r, -1, *values.shape[2:])

        def repeated(values: Array) -> Array:
            return np.repeat(values.reshape(atoms, -1, *values.shape[1:]), r, axis=0)

        placed: Any = points(others)
        return {
            "gamma": np.repeat(spectrum.gamma, r, axis=1)[:, :, None, None, None],
            "tau": np.moveaxis(placed[..., :count], -1, 0)[..., None, None],
            "pi": placed[..., count:, None],
            "w": points((vectors * sizes[:, None]).mT)[..., None],
            "chi": repeated(moments.response),
            "penalty": repeated(moments.penalty),
            "row_minimum": repeated(moments.minimum(sources.mean, sources.root @ sources.root, sources.curvature)),
            "spectral_mean": _mean_over(np.repeat(spectrum.weights / r, r)),
        }

    def sources(self, conjugates: Conjugates) -> _Sources:
        """The rows' effective sources on every atom and replicate."""
        spectrum, atoms = self.spectrum, self.spectrum.gamma.shape[1]
        replicates = conjugates.q_hat.shape[1]
        curvature = self.curvature(conjugates)
        # the source b is linear in (tau, pi), which is Gaussian on an atom
        linear: Any = self._linear(conjugates)
        mean = (linear @ spectrum.mean[:, None, :, None])[..., 0]
        gain = spectrum.covariance[:, None] @ linear.mT
        covariance = symmetric(self._over_sites(conjugates.q_hat) + linear @ gain)
        largest = [np.abs(x).max(axis=(0, 2, 3)) for x in (covariance, mean[..., None], curvature)]
        # in the unit of a source, that of the curvature times the weights' one
        weight = 1.0 if self.units is None else float(self.units.weights[0])
        natural = largest[0] + largest[1] ** 2 + (weight * largest[2]) ** 2
        values, vectors = np.linalg.eigh(covariance)
        values = np.maximum(values, _NOISE_FLOOR**2 * (natural + 1e-12 * (weight * self._stiffness) ** 2)[:, None])
        root = (vectors * np.sqrt(values)[..., None, :]) @ vectors.mT
        average = np.broadcast_to(spectrum.mean[:, None], (atoms, replicates, spectrum.mean.shape[1]))
        every = (mean, root, curvature, average, gain)
        return _Sources(*(x.reshape(-1, *x.shape[2:]) for x in every))


@lru_cache(maxsize=1)
def _solved(prior: Prior, conjugates: Conjugates) -> tuple[_Sources, RowMoments]:
    """The rows' problems at these conjugates: whoever measures asks twice."""
    assert prior.rows is not None
    sources = prior.sources(conjugates)
    if prior.at_rest:
        return sources, RowMoments.of_zero(*sources.mean.shape)
    return sources, row_moments(prior.rows, sources.mean, sources.root, sources.curvature)


def _mean_over(weights: Array) -> Callable[[Array], Array]:
    """The mean over the first axis."""
    if len(weights) == 1 and weights[0] == 1.0:
        return lambda values: values[0]
    return lambda values: (weights @ values.reshape(len(weights), -1)).reshape(values.shape[1:])


def _mean(weights: Array, values: Array) -> Array:
    """Over the atoms."""
    result: Array = np.einsum("n,nsab->sab", weights, values)
    return result


def symmetric(matrix: Array) -> Array:
    """Remove the rounding errors' antisymmetric part."""
    return (matrix + matrix.mT) / 2
