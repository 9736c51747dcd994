"""Overlaps to conjugates: the mean over the local fields of one sample, equation (8)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnphase.compiled import Kernels
from attnphase.gaussian import Rule
from attnphase.overlaps import Conjugates, Overlaps
from attnphase.prior import Spectrum
from attnphase.problem import Problem
from attnphase.proximal import Minima, ProximalProblem, Starts

__all__ = ["Channel", "ChannelPass"]

Array = NDArray[np.float64]

# Directions of W with no overlap (the trivial point; Q - K of an untied student) have q = 0, where Stein's form of
# V_hat is 0/0. A variance of this share of rho is added in the channel: V_hat becomes a finite difference of E[g].
_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, eq=False)
class ChannelPass:
    """One evaluation of the channel: conjugates per replicate and the means that observables need.

    Attributes
    ----------
    conjugates : Conjugates
        With replicate axis.
    envelope, loss_at_prox : (S,) arrays
        ``E[M]`` and ``E[loss(prox, k)]`` per replicate.
    minima : Minima
        Local minima of all nodes, for the next pass.
    """

    conjugates: Conjugates
    envelope: Array
    loss_at_prox: Array
    minima: Minima


@dataclass(frozen=True, eq=False)
class Channel:
    """The channel of a problem under an integration rule."""

    problem: Problem
    kernels: Kernels
    spectrum: Spectrum
    rule: Rule
    threads: int = 1
    proximal: ProximalProblem = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "proximal", ProximalProblem(self.problem, self.kernels, self.spectrum, self.threads))

    def field_mean(self, values: Array) -> Array:
        """Mean over the nodes: (..., signs, S, n, rows, columns) to (..., S, rows, columns).

        Each sign is averaged by itself and the signs are added last, largest with smallest, so that opposite values
        cancel exactly.
        """
        means = np.sort(np.einsum("n,...snij->...sij", self.rule.weights, values), axis=-4)
        return ((means + np.flip(means, axis=-4)) / 2).mean(axis=-4)

    def fields(self, overlaps: Overlaps) -> tuple[Array, Array, Array, Overlaps]:
        """Local fields of all nodes.

        Returns
        -------
        omega, k, xi : (signs, S, n, L, r), (..., t) and (..., r) arrays
            Centres, teacher's fields and the student's normals.
        overlaps : Overlaps
            With the variance floor.
        """
        length, columns = self.kernels.length, self.kernels.columns
        rank, rho = self.kernels.teacher_rank, self.spectrum.rho
        floor = _VARIANCE_FLOOR * np.trace(rho, axis1=-2, axis2=-1).mean() / rank
        q = overlaps.q + floor * np.eye(columns)
        root = matrix_root(q)
        correlation = np.linalg.solve(root, overlaps.theta)  # q^-1/2 theta
        remainder = matrix_root(rho - correlation.mT @ correlation)
        nodes = self.rule.nodes
        normal_xi = nodes[..., : length * columns].reshape(*nodes.shape[:2], length, columns)
        normal_zeta = nodes[..., length * columns :].reshape(*nodes.shape[:2], length, rank)
        signs = np.array(self.rule.signs, dtype=float)
        sign_xi, sign_zeta = signs[:, 0, None, None, None, None], signs[:, 1, None, None, None, None]
        omega = sign_xi * np.einsum("lij,snlj->snli", root, normal_xi) + overlaps.m[:, :, 0]
        from_student = np.einsum("lij,snli->snlj", correlation, normal_xi)
        from_noise = np.einsum("lij,snlj->snli", remainder, normal_zeta)
        k = sign_xi * from_student + sign_zeta * from_noise
        xi = sign_xi * normal_xi
        return omega, k, np.broadcast_to(xi, omega.shape), Overlaps(q, overlaps.V, overlaps.m, overlaps.theta)

    def evaluate(self, alpha: float, overlaps: Overlaps, starts: Starts, previous: Minima | None = None) -> ChannelPass:
        """Equation (8) at given overlaps.

        Parameters
        ----------
        alpha : float
            Sample complexity n/d.
        starts : Starts
            Starting points of the local minimisation; WARM needs `previous`.
        """
        omega, k, xi, floored = self.fields(overlaps)
        orbit = self.representatives(overlaps)
        solution, minima = self.proximal.minimise(omega, k, overlaps.V, orbit, starts, previous)
        arguments = {
            "g": columns_first(solution.residual),
            "xi": columns_first(xi),
            "k": columns_first(k),
        }
        q_hat, V_hat, m_hat, theta_hat = self.kernels.conjugates_from_overlaps(
            alpha=alpha,
            rho=self.spectrum.rho[:, None],
            field_mean=self.field_mean,
            q=floored.q[:, None],
            V=floored.V[:, None],
            m=floored.m[:, None],
            theta=floored.theta[:, None],
            **arguments,
        )
        mean = self.scalar_mean
        return ChannelPass(
            Conjugates(q_hat, V_hat, m_hat, theta_hat), mean(solution.envelope), mean(solution.loss), minima
        )

    def scalar_mean(self, values: Array) -> Array:
        """Mean over the nodes of one number a node, (signs, S, n) to (S,)."""
        return (values @ self.rule.weights).mean(axis=0)

    def loss_at_omega(self, overlaps: Overlaps) -> Array:
        """``E[loss(omega, k)]`` per replicate: half of L times the test error."""
        omega, k, _, _ = self.fields(overlaps)
        return self.scalar_mean(self.proximal.losses(omega, k))

    def representatives(self, overlaps: Overlaps) -> tuple[tuple[int, int], ...]:
        """For every sign change, the sign change it takes its minimiser from and the sign that it then carries.

        ``prox(-omega, k) = -prox(omega, k)`` and ``prox(omega, -k) = prox(omega, k)``. With m = 0 a joint reflection
        maps a node on its mirror image, with theta = 0 a reflection of zeta does.
        """
        if not self.rule.symmetric:
            return ((0, 1),)
        centred, uncorrelated = not overlaps.m.any(), not overlaps.theta.any()
        if centred and uncorrelated:
            return ((0, 1), (0, 1), (0, -1), (0, -1))
        if centred:
            return ((0, 1), (1, 1), (1, -1), (0, -1))
        if uncorrelated:
            return ((0, 1), (0, 1), (2, 1), (2, 1))
        return ((0, 1), (1, 1), (2, 1), (3, 1))


def columns_first(fields: Array) -> Array:
    """(signs, S, n, L, r) to (L, signs, S, n, r, 1), the layout of the generated maps."""
    return np.moveaxis(fields, -2, 0)[..., None]


def matrix_root(matrix: Array) -> Array:
    """Symmetric square root of positive semidefinite matrices (..., r, r); rounding below zero is cut off."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0.0, None))[..., None, :]) @ vectors.mT
