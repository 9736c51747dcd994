"""Conjugates to overlaps: the mean over the spectral measure, equation (7), or (100)-(106) beyond the ridge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.compiler import Kernels, Maps
from attnphase.problem.problem import Problem
from attnphase.rows.quadrature import gaussian_nodes
from attnphase.rows.regularizer import RowRegularizer
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import Conjugates, Overlaps

__all__ = ["Prior"]

# where a row has neither noise nor source, its response is a difference over fields of this relative size
_NOISE_FLOOR = 1e-7
# where all weights are zero V vanishes, and the local problem needs a positive one
_VARIANCE_FLOOR = 1e-10


@dataclass(frozen=True, eq=False)
class Prior:
    """The rows' problems under the spectral measure.

    Attributes
    ----------
    kernels : Kernels
    spectrum : Spectrum
    strength : float
        lambda, if the regulariser is the ridge.
    rows : RowRegularizer or None
        Any other regulariser.
    """

    kernels: Kernels
    spectrum: Spectrum
    strength: float
    rows: RowRegularizer | None = None

    @classmethod
    def of(cls, problem: Problem, kernels: Kernels, spectrum: Spectrum | None = None) -> Prior:
        """The prior of a problem; `spectrum` replaces the problem's own."""
        regularizer = problem.regularizer
        ridge = regularizer.form.quadratic
        rows = None if ridge else problem.rows
        strength = float(regularizer.strength) if ridge else rows.ridge if rows else 0.0
        return cls(kernels, spectrum or Spectrum.of(problem), strength, rows)

    @property
    def maps(self) -> Maps:
        """The derived equations that go with the regulariser."""
        return self.kernels.ridge if self.rows is None else self.kernels.separable

    @property
    def even(self) -> bool:
        """Whether the regulariser is unchanged by the weights' signs."""
        return self.rows is None or self.rows.even

    def overlaps(self, conjugates: Conjugates, *, lift: bool = False) -> Overlaps | None:
        """Equation (7); None where a row's problem has no minimum on some atom.

        Parameters
        ----------
        conjugates : Conjugates
            With replicate axis of length one.
        lift : bool
            Outside the domain, add to V_hat what brings the smallest curvature to a tenth of lambda. Not the map any
            more, but it leads poor starts, where the loss is concave, towards larger overlaps and so into the domain.
        """
        curvature = self._curvature(conjugates)
        if not np.isfinite(curvature).all():
            return None
        lowest = self._margin(curvature)
        if lowest <= 0:
            if not lift:
                return None
            target = 0.1 * self.strength if self.strength > 0 else max(1e-3 * float(np.abs(curvature).max()), 1e-6)
            shift = (target - lowest) / self.spectrum.gamma.sum(axis=0).min()
            conjugates = replace(conjugates, V_hat=conjugates.V_hat + shift * np.eye(self.kernels.columns))
        q, V, m, theta = self.maps.overlaps_from_conjugates(
            **self.atoms(conjugates),
            q_hat=conjugates.q_hat,
            V_hat=conjugates.V_hat,
            m_hat=conjugates.m_hat,
            theta_hat=conjugates.theta_hat,
        )
        V = symmetric(V[:, 0])
        if self.rows is not None:
            V = V + _VARIANCE_FLOOR * self.spectrum.site_variances[:, None, None] * np.eye(self.kernels.columns)
        return Overlaps(symmetric(q[:, 0]), V, m[:, 0], theta[:, 0])

    def _curvature(self, conjugates: Conjugates) -> Array:
        """``sum_s gamma_s V_hat_s`` on every atom, (A, S, r, r)."""
        return np.einsum("la,lsij->asij", self.spectrum.gamma, conjugates.V_hat)

    def _margin(self, curvature: Array) -> float:
        if self.rows is not None:
            return self.rows.margin(curvature)
        return float(np.linalg.eigvalsh(curvature).min()) + self.strength

    def atoms(self, conjugates: Conjugates) -> dict[str, Any]:
        """The spectral atoms under the names of `overlaps_from_conjugates`, with axes (P,) A, replicate, row, column.

        Beyond the ridge the atoms are also nodes of the rows' effective noise, and hold their minimisers.
        """
        if self.rows is None:
            return self._points
        solved = self._rows(conjugates)
        return {name: solved[name] for name in ("gamma", "tau", "pi", "w", "chi", "spectral_mean")}

    def arguments(self, conjugates: Conjugates) -> dict[str, Any]:
        """The same under the names of `free_entropy_terms` and `observables`."""
        if self.rows is None:
            return self._points
        return {name: value for name, value in self._rows(conjugates).items() if name != "density"}

    def density(self, conjugates: Conjugates) -> Array:
        """Share of the weights that are not zero, per replicate."""
        if self.rows is None:
            return np.ones(conjugates.q_hat.shape[1])
        return self._rows(conjugates)["density"]

    @cached_property
    def _points(self) -> dict[str, Any]:
        weights, gamma, tau, pi = self.spectrum.points()
        return {
            "ridge": self.strength,
            "gamma": gamma[:, :, None, None, None],
            "tau": tau[:, :, None, None, None],
            "pi": pi[:, None, :, None],
            "spectral_mean": lambda values: np.tensordot(weights, values, axes=1),
        }

    def _rows(self, conjugates: Conjugates) -> dict[str, Any]:
        """Solve the rows' problems on nodes of their sources, replicate by replicate."""
        replicates = [self._replicate(conjugates.replicate(s)) for s in range(conjugates.q_hat.shape[1])]
        joined: dict[str, Any] = {
            name: np.stack([one[name] for one in replicates], axis=1) for name in ("w", "chi", "pi")
        }
        joined |= {name: np.stack([one[name] for one in replicates], axis=2) for name in ("gamma", "tau")}
        joined |= {name: np.stack([one[name] for one in replicates], axis=1) for name in ("penalty", "row_minimum")}
        weights = np.stack([one["weights"] for one in replicates], axis=1)
        joined["density"] = np.array([one["density"] for one in replicates])
        joined["spectral_mean"] = lambda values: np.einsum("as,as...->s...", weights, values)
        return joined

    def _replicate(self, conjugates: Conjugates) -> dict[str, Any]:
        rows, spectrum, r = self.rows, self.spectrum, self.kernels.columns
        assert rows is not None
        q_hat, m_hat, theta_hat = (x[:, 0] for x in (conjugates.q_hat, conjugates.m_hat, conjugates.theta_hat))
        count, atoms = spectrum.gamma.shape
        curvature = self._curvature(conjugates)[:, 0]
        # the source b is linear in (tau, pi), which is Gaussian on an atom
        from_pi = np.einsum("la,lij->aij", spectrum.gamma, theta_hat)
        from_tau = np.broadcast_to(m_hat[:, :, 0].T, (atoms, r, count))
        linear = np.concatenate([from_tau, from_pi], axis=2)
        mean = np.einsum("aij,aj->ai", linear, spectrum.mean)
        covariance = np.einsum("la,lij->aij", spectrum.gamma, q_hat)
        covariance = covariance + linear @ spectrum.covariance @ linear.mT
        natural = np.abs(covariance).max() + np.abs(mean).max() ** 2 + np.abs(curvature).max() ** 2
        values, vectors = np.linalg.eigh(symmetric(covariance))
        scale = np.sqrt(np.maximum(values, _NOISE_FLOOR**2 * (natural + 1e-12)))
        root, inverse_root = ((vectors * x[:, None, :]) @ vectors.mT for x in (scale, 1 / scale))
        z, node_weights = gaussian_nodes(rows, mean, root, curvature)
        source = mean[:, None] + np.einsum("aij,anj->ani", root, z)
        w = rows.minimise(curvature[:, None], source)
        unit = np.einsum("aij,anj->ani", inverse_root, z)
        # given the source, (tau, pi) is Gaussian about a linear function of it
        gain = spectrum.covariance @ linear.mT
        conditional = spectrum.mean[:, None] + np.einsum("aij,anj->ani", gain, unit)
        penalty = rows.penalty(w)
        quadratic = 0.5 * np.einsum("ani,aij,anj->an", w, curvature, w) - (source * w).sum(axis=-1)
        weights = (spectrum.weights[:, None] * node_weights).ravel()
        nodes = z.shape[1]

        def flat(values: NDArray[Any]) -> Array:
            return values.reshape(-1, *values.shape[2:])

        nonzero = flat(1.0 - rows.zeros(w)).mean(axis=-1)
        return {
            "weights": weights,
            "gamma": np.repeat(spectrum.gamma, nodes, axis=1)[:, :, None, None],
            "tau": flat(conditional)[:, :count].T[:, :, None, None],
            "pi": flat(conditional)[:, count:, None],
            "w": flat(w)[..., None],
            "chi": flat(w[..., :, None] * unit[..., None, :]),
            "penalty": flat(penalty),
            "row_minimum": flat(penalty + quadratic),
            "density": float(weights @ nonzero),
        }


def symmetric(matrix: Array) -> Array:
    """Remove the rounding errors' antisymmetric part."""
    return (matrix + matrix.mT) / 2
