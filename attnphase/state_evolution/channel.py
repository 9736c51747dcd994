"""Overlaps to conjugates: the mean over the local fields of one sample, equation (8).

With mixture tokens the mean is over the configurations of clusters too: fields are computed for every configuration,
and the conjugates of a site, a token in one of its clusters, collect the configurations that hold it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima, ProximalProblem
from attnphase.state_evolution.system import System

__all__ = ["Channel", "ChannelPass"]

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

    system: System
    rule: Rule
    proximal: ProximalProblem = field(init=False)

    configurations: NDArray[np.int64] = field(init=False)
    probabilities: Array = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "proximal", ProximalProblem(self.system))
        configurations, probabilities = self.system.problem.cluster_law
        object.__setattr__(self, "configurations", configurations)
        object.__setattr__(self, "probabilities", probabilities)

    def field_mean(self, values: Array, shares: Array | None = None) -> Array:
        """Mean over the nodes: (..., signs, S, n, rows, columns) to (..., S, rows, columns).

        Each sign is averaged by itself and the signs are added last, largest with smallest, so that opposite values
        cancel exactly. `shares`, (..., signs, S, n), multiplies every node's weight.
        """
        if shares is not None:
            values = values * shares[..., None, None]
        means = np.sort(np.einsum("n,...snij->...sij", self.rule.weights, values), axis=-4)
        return ((means + np.flip(means, axis=-4)) / 2).mean(axis=-4)

    def site_mean(self, values: Array, site: int, shares: Array | None = None) -> Array:
        """Mean over the nodes and over the configurations that hold a site, (C_s, signs, S, n, rows, columns)."""
        held = self._holding(site)
        means = self.field_mean(values, None if shares is None else shares[held])
        return np.tensordot(self.probabilities[held], means, axes=1)

    def _holding(self, site: int) -> NDArray[np.bool_]:
        """Which configurations hold a site."""
        return (self.configurations == site).any(axis=1)

    def _by_site(self, fields: Array) -> list[Array]:
        """(C, signs, S, n, L, x) to an array (C_s, signs, S, n, x, 1) per site, as in the generated maps."""
        tokens = [token for token, _ in self.system.problem.sites]
        return [fields[self._holding(s), ..., token, :, None] for s, token in enumerate(tokens)]

    def fields(self, overlaps: Overlaps) -> tuple[Array, Array, Array, Overlaps]:
        """Local fields of all nodes.

        Returns
        -------
        omega, k, xi : (C, signs, S, n, L, r), (..., t) and (..., r) arrays
            Centres, teacher's fields about their mean and the student's normals, for every configuration of clusters.
        overlaps : Overlaps
            With the variance floor.
        """
        length, columns = self.system.kernels.length, self.system.kernels.columns
        rank, rho = self.system.kernels.teacher_rank, self.system.spectrum.rho
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
        omega, k = [], []
        for sites in self.configurations:
            mean = overlaps.m[sites, :, 0]
            omega.append(sign_xi * np.einsum("lij,snlj->snli", root[sites], normal_xi) + mean)
            from_student = np.einsum("lij,snli->snlj", correlation[sites], normal_xi)
            from_noise = np.einsum("lij,snlj->snli", remainder[sites], normal_zeta)
            k.append(sign_xi * from_student + sign_zeta * from_noise)
        omega, k = np.stack(omega), np.stack(k)
        xi = np.broadcast_to(sign_xi * normal_xi, omega.shape)
        return omega, k, xi, Overlaps(q, overlaps.V, overlaps.m, overlaps.theta)

    @property
    def labelled(self) -> bool:
        """Whether the loss knows the teacher's field by its sign only."""
        return self.system.problem.loss.form.has_labels

    def nodes_at(self, overlaps: Overlaps) -> tuple[Array, Array, Array, Overlaps, Array | None]:
        """`fields`, and the share of every node: with labels each node stands for both, integrated over k.

        A node's label jumps as theta moves, and so would every sampled mean. Given omega, the label's probability and
        the mean of k under it are known instead, and both are smooth.
        """
        omega, k, xi, floored = self.fields(overlaps)
        if not self.labelled:
            return omega, k, xi, floored, None
        root = matrix_root(floored.q)
        correlation = np.linalg.solve(root, overlaps.theta)
        spread = np.sqrt((self.system.spectrum.rho - correlation.mT @ correlation)[self.configurations])  # (C, L, 1, 1)
        spread = spread[:, None, None, None, :, 0]
        about = np.einsum("clij,csnmli->csnmlj", correlation[self.configurations], xi)
        total = about + self._teacher_means()
        labels = np.array([1.0, -1.0])[None, :, None, None, None, None]
        omega, xi, about, z = (np.repeat(x, 2, axis=1) for x in (omega, xi, about, total / spread))
        probability = ndtr(labels * z)
        # mean of k about its own mean under the label, phi(z)/Phi(s z), safely in the tails
        hazard = np.exp(-(z**2) / 2 - log_ndtr(labels * z)) / np.sqrt(2 * np.pi)
        return omega, about + labels * spread * hazard, xi, floored, 2 * probability[..., 0, 0]

    def evaluate(self, alpha: float, overlaps: Overlaps, starts: Starts, previous: Minima | None = None) -> ChannelPass:
        """Equation (8) at given overlaps.

        Parameters
        ----------
        alpha : float
            Sample complexity n/d.
        starts : Starts
            Starting points of the local minimisation; WARM needs `previous`.
        """
        omega, k, xi, floored, shares = self.nodes_at(overlaps)
        orbit = self.representatives(overlaps)
        solution, minima = self.proximal.minimise(omega, k + self._teacher_means(), overlaps.V, orbit, starts, previous)
        q_hat, V_hat, m_hat, theta_hat = self.system.kernels.ridge.conjugates_from_overlaps(
            alpha=alpha,
            rho=self.system.spectrum.rho[:, None],
            site_mean=lambda values, site: self.site_mean(values, site, shares),
            g=self._by_site(solution.residual),
            xi=self._by_site(xi),
            k=self._by_site(k),
            q=floored.q[:, None],
            V=floored.V[:, None],
            m=floored.m[:, None],
            theta=floored.theta[:, None],
        )
        envelope, loss = (self.scalar_mean(x, shares) for x in (solution.envelope, solution.loss))
        return ChannelPass(Conjugates(q_hat, V_hat, m_hat, theta_hat), envelope, loss, minima)

    def _teacher_means(self) -> Array:
        """``m_star`` of every configuration, to be added to the teacher's fields inside the loss."""
        return self.system.spectrum.teacher_means[self.configurations][:, None, None, None]

    def scalar_mean(self, values: Array, shares: Array | None = None) -> Array:
        """Mean over configurations and nodes of one number a node, (C, signs, S, n) to (S,)."""
        values = values if shares is None else values * shares
        return self.probabilities @ (values @ self.rule.weights).mean(axis=1)

    def loss_at_omega(self, overlaps: Overlaps) -> Array:
        """``E[loss(omega, k)]`` per replicate: half of L times the test error."""
        omega, k, _, _, shares = self.nodes_at(overlaps)
        return self.scalar_mean(self.proximal.losses(omega, k + self._teacher_means()), shares)

    def representatives(self, overlaps: Overlaps) -> tuple[tuple[int, int], ...]:
        """For every sign change, the sign change it takes its minimiser from and the sign that it then carries.

        ``prox(-omega, k) = -prox(omega, k)`` and ``prox(omega, -k) = prox(omega, k)``. With m = 0 a joint reflection
        maps a node on its mirror image, with theta = 0 a reflection of zeta does.
        """
        if self.labelled:
            return ((0, 1), (1, 1))
        if not self.rule.symmetric or self.system.spectrum.teacher_means.any():
            return tuple((sign, 1) for sign in range(len(self.rule.signs)))
        centred, uncorrelated = not overlaps.m.any(), not overlaps.theta.any()
        if centred and uncorrelated:
            return ((0, 1), (0, 1), (0, -1), (0, -1))
        if centred:
            return ((0, 1), (1, 1), (1, -1), (0, -1))
        if uncorrelated:
            return ((0, 1), (0, 1), (2, 1), (2, 1))
        return ((0, 1), (1, 1), (2, 1), (3, 1))


def matrix_root(matrix: Array) -> Array:
    """Symmetric square root of positive semidefinite matrices (..., r, r); rounding below zero is cut off."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0.0, None))[..., None, :]) @ vectors.mT
