"""Overlaps to conjugates: the mean over the local fields of one sample, equation (8).

With mixture tokens the mean is over the configurations of clusters too: fields are computed for every configuration,
and the conjugates of a site, a token in one of its clusters, collect the configurations that hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.rules import Rule
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Solution
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.fields import Draws, FieldLaw
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima, Part, ProximalProblem, for_all, lower_factors
from attnphase.state_evolution.system import System

__all__ = ["Channel", "ChannelPass"]

# Where the student's fields have no variance C given the teacher's (the trivial point; Q - K of an untied student)
# Stein's form of V_hat is 0/0. There the channel adds a variance f, this share of rho as a teacher with the student's
# logits would have it: V_hat becomes a finite difference of E[g]. Variance acts like noise of the labels, so that it is
# added only where needed: f / (1 + (C/f)^2) grows with C and has at C = 0 the slope of C.
_VARIANCE_FLOOR = 1e-8


@dataclass(frozen=True, eq=False)
class ChannelPass:
    """One evaluation of the channel: conjugates per replicate and the means that observables need.

    Attributes
    ----------
    conjugates : Conjugates
        With replicate axis.
    sampled : Conjugates
        Without what the gauge makes of them, see `Channel._invariant`: the envelope's derivatives on any nodes.
    envelope, loss_at_prox : (S,) arrays
        ``E[M]`` and ``E[loss(prox, k)]`` per replicate.
    minima : Minima
        Local minima of all nodes, for the next pass.
    slopes, curvatures : (S, p) and (S, p, p) arrays
        ``E[dM/db]`` and ``E[d2M/db2]`` in the trained parameters b and the entries of Q, see `trained_slopes_of`.
    """

    conjugates: Conjugates
    sampled: Conjugates
    envelope: Array
    loss_at_prox: Array
    minima: Minima
    slopes: Array
    curvatures: Array


@dataclass(frozen=True, eq=False)
class Channel:
    """The channel of a problem under an integration rule."""

    system: System
    rule: Rule
    proximal: ProximalProblem = field(init=False)

    configurations: NDArray[np.int64] = field(init=False)
    probabilities: Array = field(init=False)
    labelled: bool = field(init=False)  # whether each node stands for both labels, see `_with_label`
    turned: bool = field(init=False)  # whether the nodes are those of the student's fields first, see `_turn`

    def __post_init__(self) -> None:
        kernels = self.system.kernels
        if self.rule.nodes.shape[-1] < kernels.length * (kernels.columns + kernels.label_normals):
            raise ValueError("the rule has fewer dimensions than the fields of this problem")
        object.__setattr__(self, "proximal", ProximalProblem(self.system))
        law, points = self.system.sample_law, not self.rule.latent_first
        object.__setattr__(self, "configurations", law.configurations)
        object.__setattr__(self, "probabilities", law.probabilities)
        object.__setattr__(self, "labelled", points and law.gaussian and law.labels.has_labels)
        object.__setattr__(self, "turned", points and law.gaussian and not law.labels.label_jumps)

    def site_means(self, moments: Array) -> Array:
        """Means over the signs and the configurations that hold a site, (C, signs, S, L, ...) to (P, S, ...).

        The signs are added largest with smallest, so that opposite values cancel exactly.
        """
        ordered = np.sort(moments, axis=1)
        means = (ordered + ordered[:, ::-1]).sum(axis=1) / (2 * ordered.shape[1])
        law = self.system.sample_law
        if len(law.tokens) == means.shape[2]:  # sites are the tokens in their order
            return means[0].swapaxes(0, 1)
        weights = np.where(law.holding, self.probabilities, 0.0)
        return np.stack(
            [np.einsum("c,c...->...", w, means[:, :, token]) for w, token in zip(weights, law.tokens, strict=True)]
        )

    def law(self, overlaps: Overlaps, *, clean: bool = False) -> FieldLaw:
        """How every site's fields are made of normals, with the variance floor; the means are its overlaps' m.

        Equation (L1) of the replica-symmetric page.

        The noise of the labels belongs to it, unless they are to be `clean`.
        """
        sample = self.system.sample_law
        rho, q = (sample.clean_rho if clean else sample.rho), self.floored(overlaps, clean=clean).q
        noise = np.full(len(rho), 0.0 if clean else sample.noise)
        means = np.ascontiguousarray(overlaps.m[..., 0])
        teacher_root = matrix_root(rho)
        lift = np.ascontiguousarray(_solved(teacher_root, overlaps.theta.mT).mT)  # theta rho^-1/2
        root = matrix_root(q - lift @ lift.mT)
        turns = _turn(q, root, lift) if self.turned else _no_turns(lift.shape)
        return FieldLaw(root, lift, teacher_root, turns, means, noise)

    def floored(self, overlaps: Overlaps, *, clean: bool = False) -> Overlaps:
        """The overlaps with the variance floor, which the law of the fields has."""
        sample, theta, floor = self.system.sample_law, overlaps.theta, self._floor
        spread = (overlaps.q - theta @ _solved(sample.clean_rho if clean else sample.rho, theta.mT)) / floor
        return replace(overlaps, q=overlaps.q + floor * _needed(spread))

    @cached_property
    def _floor(self) -> Array:
        """What is added to q where fields have no variance given the teacher's, (r, r): at rest only rounding."""
        rho, units = self.system.sample_law.clean_rho, self.system.units.matched
        natural = np.trace(rho, axis1=-2, axis2=-1).mean() / rho.shape[-1]
        power = 1 if not self.system.prior.at_rest else 4 if self.system.problem.loss.form.has_kink else 2
        return np.asarray(_VARIANCE_FLOOR**power * natural * np.outer(units, units))

    def at(self, overlaps: Overlaps) -> Channel:
        """The channel with the trained parameters and the Q of these overlaps."""
        return self if len(overlaps.trained) == 0 else replace(self, system=self.system.at(overlaps.trained))

    @cached_property
    def signs(self) -> tuple[tuple[int, int], ...]:
        """Of the student's and the teacher's normals in every variant of a node: a sign change, or a label."""
        return ((1, 1), (1, 1)) if self.labelled else self.rule.signs

    def _draws(self, part: Part) -> Draws:
        """Nodes of the rule in a configuration under a sign change, replicate after replicate."""
        nodes = self.rule.of(part.configuration).nodes
        return Draws(nodes.reshape(-1, nodes.shape[-1])[part.nodes], self.signs[part.variant], np.empty(0))

    def nodes_at(self, overlaps: Overlaps) -> tuple[Array, Array, Array, Overlaps, Array]:
        """Local fields of all nodes.

        Returns
        -------
        omega, k, xi : (C, variants, S, n, L, r), (..., t) and (..., r) arrays
            Centres, teacher's fields about their mean (with the noise of the labels behind them) and the student's
            normals, for every configuration of clusters.
        overlaps : Overlaps
            With the variance floor.
        shares : (C, variants, S, n) array
            By which the weights are multiplied.
        """
        kernels, law = self.system.kernels, self.law(overlaps)
        shape = (len(self.configurations), len(self.signs), *self.rule.nodes.shape[:2])
        omega = np.empty((*shape, kernels.length, kernels.columns))
        k, shares = np.empty((*shape, kernels.length, kernels.label_fields)), np.ones(shape)
        for c, variant in np.ndindex(shape[:2]):
            draws, *fields = self.nodes_of(law, Part(c, variant, slice(0, self.rule.size)))
            for whole, values in zip((omega, k), fields, strict=True):
                whole[c, variant] = values.reshape(whole.shape[2:])
            if len(draws.shares):
                shares[c, variant] = draws.shares.reshape(shape[2:])
        roots, lifts, teacher_roots, _, means, _ = (x[self.configurations][:, None, None, None] for x in law)
        zeta = _solved(teacher_roots, k[..., : kernels.teacher_rank, None])
        xi = _solved(roots, (omega - means)[..., None] - lifts @ zeta)[..., 0]
        return omega, k, xi, self.floored(overlaps), shares

    def nodes_of(self, law: FieldLaw, part: Part) -> tuple[Draws, Array, Array]:
        """Normals of some nodes, their centres and the teacher's fields about their mean."""
        here, draws = self._of_tokens(law, part.configuration), self._draws(part)
        if self.labelled:
            means = self.system.sample_law.means[part.configuration]
            draws = _with_label(draws, here, means, (1.0, -1.0)[part.variant])
        elif not (self.system.sample_law.gaussian or self.rule.lines):  # lines have the law in their nodes
            draws = self._of_law(draws, part.configuration)
        return draws, *draws.fields(here, self.system.kernels.label_fields)

    def _of_law(self, draws: Draws, configuration: int) -> Draws:
        """Nodes whose standard normals become those of the sample's law."""
        normals, kernels, sign = draws.normals.copy(), self.system.kernels, draws.signs[1]
        first = kernels.length * kernels.columns
        teacher = slice(first, first + kernels.length * kernels.teacher_rank)
        zeta = sign * normals[:, teacher].reshape(len(normals), kernels.length, -1)
        scaled, shares = self.system.sample_law.drawn(configuration, zeta)
        normals[:, teacher] = sign * scaled.reshape(len(normals), -1)
        return draws._replace(normals=normals, shares=shares)

    def _of_tokens(self, law: FieldLaw, configuration: int) -> FieldLaw:
        """The law of the tokens in a configuration; as many sites as tokens are the tokens in their order."""
        sites = self.configurations[configuration]
        plain = len(law.roots) == len(sites)
        return law if plain else FieldLaw(*(values[sites] for values in law))

    def evaluate(
        self,
        alpha: float,
        overlaps: Overlaps,
        starts: Starts,
        previous: Minima | None = None,
        solved: Solution | None = None,
        law: FieldLaw | None = None,
    ) -> ChannelPass:
        """Equation (8) at given overlaps.

        Equations (S5)-(S8) of the replica-symmetric page.

        Parameters
        ----------
        alpha : float
            Sample complexity n/d.
        starts : Starts
            Starting points of the local minimisation; WARM needs `previous`.
        solved, law : Solution and FieldLaw, optional
            Of all nodes and at these overlaps, where they are known already.
        """
        orbit, columns, floored = self.representatives(overlaps), self.system.kernels.columns, self.floored(overlaps)
        chosen, index = _sources(orbit)
        law = self.law(overlaps) if law is None else law
        moments, energies, slopes, minima = self._integrated(law, overlaps.V, chosen, starts, previous, solved)
        moments = moments[:, index] * _parities(orbit, self.signs, columns, self.system.kernels.teacher_rank)
        means = self.site_means(moments)
        edges = 0, 1, 1 + columns, 1 + 2 * columns, means.shape[-1]
        g, g_g, g_xi, g_k = (means[..., i:j] for i, j in pairwise(edges))
        hats = self.system.kernels.ridge.conjugates_from_moments(
            alpha=alpha,
            rho=self.system.sample_law.rho[:, None],
            g=g,
            g_g=g_g,
            g_xi=g_xi,
            g_k=g_k,
            q=floored.q[:, None],
            V=floored.V[:, None],
            m=floored.m[:, None],
            theta=floored.theta[:, None],
        )
        envelope, loss = (self.probabilities @ energies[:, index].mean(axis=1).swapaxes(0, 1)).T
        sampled = Conjugates(*hats)
        count = self.system.trained
        of_trained: Array = np.einsum("c,csp->sp", self.probabilities, slopes[:, index].mean(axis=1))
        slopes, curvatures = of_trained[:, :count], of_trained[:, count:].reshape(len(of_trained), count, count)
        return ChannelPass(self._invariant(sampled, floored), sampled, envelope, loss, minima, slopes, curvatures)

    def _invariant(self, hats: Conjugates, overlaps: Overlaps) -> Conjugates:
        """Sampled conjugates as derivatives of what the gauge's stretches leave unchanged.

        ``E[M]`` does not change with all overlaps stretched, so that
        ``sum_l Tr X (q V_hat - V q_hat - m m_hat^T - theta theta_hat^T) = 0``, but for the integration error, nearly
        all of which is that of Stein's form: V_hat takes it back. The variance floor keeps it from 0/0.
        """
        changes, pulls = self.system.gauge.changes, self.system.gauge.pulls
        if not len(changes):
            return hats
        q, V, m, theta = (x[:, None] for x in (overlaps.q, overlaps.V, overlaps.m, overlaps.theta))
        change = q @ hats.V_hat - V @ hats.q_hat - m @ hats.m_hat.mT - theta @ hats.theta_hat.mT
        share = self.system.spectrum.site_shares
        change = np.einsum("iab,lsba->is", changes, change)
        answer = np.einsum("l,iab,lbc,jca->ij", share, changes, overlaps.q, pulls)
        multipliers = np.linalg.solve((answer + answer.T) / 2, change)
        shift = np.einsum("is,iab->sab", multipliers, pulls)
        return replace(hats, V_hat=hats.V_hat - share[:, None, None, None] * shift)

    def minima_at(self, overlaps: Overlaps, starts: Starts, previous: Minima | None) -> Minima:
        """The nodes' minima, of which a pass at given overlaps makes its conjugates."""
        chosen, _ = _sources(self.representatives(overlaps))
        return self._integrated(self.law(overlaps), overlaps.V, chosen, starts, previous)[-1]

    def _integrated(
        self,
        law: FieldLaw,
        variances: Array,
        chosen: list[int],
        starts: Starts,
        previous: Minima | None,
        solved: Solution | None = None,
    ) -> tuple[Array, Array, Array, Minima]:
        """Moments (C, chosen signs, S, L, r, 1 + 2 r + t), energies (..., 2), slopes (..., p + p^2), and the minima."""
        kernels = self.system.kernels
        parts = self.proximal.parts(len(self.configurations), chosen, self.rule.size)
        count = len(self.configurations) * len(chosen) * self.rule.size
        if solved is None:
            minima = self.proximal.begun(starts, previous, count)
        else:
            minima = Minima(solved.minima, solved.energies, solved.flags)
        factors = lower_factors(variances)
        shape = (len(self.configurations), len(chosen), self.rule.replicates)
        width = 1 + 2 * kernels.columns + kernels.teacher_rank
        label_means = self.system.sample_law.means
        shifts = [bool(means.any()) for means in label_means]

        trained = self.system.trained

        def pass_over(part: Part) -> tuple[Array, Array, Array]:
            draws, omega, k = self.nodes_of(law, part)
            shifted = k + label_means[part.configuration] if shifts[part.configuration] else k
            block = part.configuration * len(chosen) + chosen.index(part.variant)
            start = block * self.rule.size + part.nodes.start
            here, at = slice(start, start + len(omega)), (part.configuration, omega, shifted, factors)
            if solved is None:
                losses, residuals = np.empty(len(omega)), np.empty_like(omega)
                minima.begin(here, previous)
                solution = Solution(minima.fields[here], minima.energies[here], losses, residuals, minima.steps[here])
                self.proximal.search(*at, starts, solution)
            else:
                solution = solved.part(here)
            sums = np.zeros((self.rule.replicates, kernels.length, kernels.columns, width))
            own = self._of_tokens(law, part.configuration)
            for s, some, weights in self._weighted(part, draws):
                sums[s] = draws.moments(own, k, solution.residuals, weights, some)
            values = [solution.energies[:, 0], solution.losses]
            if trained:
                slopes, curvatures = self.proximal.trained_slopes_of(*at, solution.minima[:, 0])
                values += [*slopes.T, *curvatures.reshape(len(slopes), -1).T]
            of_samples = self._summed(part, draws, np.stack(values, axis=-1))
            return sums, of_samples[:, :2], of_samples[:, 2:]

        moments = np.zeros((*shape, kernels.length, kernels.columns, width))
        constants = np.array([self.rule.of(c).constant for c in range(len(self.configurations))])
        energies = np.tile(constants[:, None, None, None], (*shape[1:], 2))
        slopes = np.zeros((*shape, trained + trained**2))
        # in the order of the parts, whichever ends first
        for part, found in zip(parts, for_all(parts, pass_over, self.system.threads), strict=True):
            place = part.configuration, chosen.index(part.variant)
            moments[place] += found[0]
            energies[place] += found[1]
            slopes[place] += found[2]
        return moments, energies, slopes, minima

    def _summed(self, part: Part, draws: Draws, values: Array) -> Array:
        """Sums over the nodes of a part, with their weights, of values (N, ...) of each: (S, ...)."""
        sums = np.zeros((self.rule.replicates, *values.shape[1:]))
        for s, some, weights in self._weighted(part, draws):
            of_nodes = values[some].reshape(*weights.shape, -1)
            sums[s] = (weights[:, None] @ of_nodes).reshape(len(weights), *values.shape[1:])
        return sums

    def _weighted(self, part: Part, draws: Draws) -> Iterator[tuple[slice, slice, Array]]:
        """Replicates of a part, the places of their nodes among its own, and the weights of these, (S, n)."""
        weights = self.rule.of(part.configuration).weights
        for s, of_replicate, some in _replicates_in(part.nodes, self.rule.nodes.shape[1]):
            own = np.tile(weights[of_replicate], (s.stop - s.start, 1))
            yield s, some, own * draws.shares[some].reshape(own.shape) if len(draws.shares) else own

    def scalar_mean(self, values: Array) -> Array:
        """Mean over configurations and nodes of one number a node, (C, signs, S, n) to (S,)."""
        weights = np.stack([rule.weights for rule in self.rule.own or (self.rule,)])
        return self.probabilities @ np.einsum("cvsn,cn->cvs", values, weights).mean(axis=1)

    def loss_at_omega(self, overlaps: Overlaps, *, clean: bool = True) -> Array:
        """``E[loss(omega, k)]`` per replicate; of ``clean`` labels, without noise, half of L times the test error.

        Equation (O4) of the replica-symmetric page.
        """
        law, orbit = self.law(overlaps, clean=clean), self.representatives(overlaps)
        variants, index = _sources(orbit)
        count, replicates = len(self.configurations), self.rule.replicates

        def pass_over(part: Part) -> Array:
            draws, omega, k = self.nodes_of(law, part)
            means = self.system.sample_law.means[part.configuration]
            losses = self.proximal.losses_of(part.configuration, omega, k + means if means.any() else k)
            return self._summed(part, draws, losses)

        parts = self.proximal.parts(count, variants, self.rule.size)
        means = np.zeros((count, len(variants), replicates))
        for part, found in zip(parts, for_all(parts, pass_over, self.system.threads), strict=True):
            means[part.configuration, variants.index(part.variant)] += found
        return self.probabilities @ means[:, index].mean(axis=1)

    def representatives(self, overlaps: Overlaps) -> tuple[tuple[int, int], ...]:
        """For every sign change, the sign change it takes its minimiser from and the sign that it then carries.

        ``prox(-omega, k) = -prox(omega, k)`` and ``prox(omega, -k) = prox(omega, k)``. With m = 0 a joint reflection
        maps a node on its mirror image, with theta = 0 a reflection of zeta does.
        """
        if self.labelled or not self.rule.symmetric or not self.system.sample_law.is_even:
            return tuple((variant, 1) for variant in range(len(self.signs)))
        centred, uncorrelated = not overlaps.m.any(), not overlaps.theta.any()
        if centred and uncorrelated:
            return ((0, 1), (0, 1), (0, -1), (0, -1))
        if centred:
            return ((0, 1), (1, 1), (1, -1), (0, -1))
        if uncorrelated:
            return ((0, 1), (0, 1), (2, 1), (2, 1))
        return ((0, 1), (1, 1), (2, 1), (3, 1))


def _replicates_in(nodes: slice, points: int) -> Iterator[tuple[slice, slice, slice]]:
    """Replicates of some nodes, all that are whole at once, with the places of their points, and among the nodes."""
    rest = nodes.start % points
    step = points if rest or nodes.stop % points else nodes.stop - nodes.start
    for first in range(nodes.start - rest, nodes.stop, step):
        start, stop = max(first, nodes.start), min(first + step, nodes.stop)
        s = slice(first // points, -(-stop // points))
        yield s, slice(start - first, min(stop - first, points)), slice(start - nodes.start, stop - nodes.start)


def _turn(q: Array, root: Array, lift: Array) -> Array:
    """What makes the normals of a law of the ``(xi, zeta)`` of ``omega = m + q^1/2 xi`` and k given omega.

    Points in all fields at once are nodes of these: what depends on k is narrower given omega.  On the semantic branch
    the same Sobol points, not turned, have errors of V that are 1.4 to 2.2 times as large.
    """
    whole = matrix_root(q)
    correlation = _solved(whole, lift)  # q^-1/2 theta rho^-1/2
    spread = matrix_root(np.eye(lift.shape[-1]) - correlation.mT @ correlation)
    teacher = np.concatenate([correlation.mT, spread], axis=-1)
    student = np.concatenate([whole, 0 * lift], axis=-1) - lift @ teacher
    return np.concatenate([_solved(root, student), teacher], axis=-2)


@cache
def _no_turns(shape: tuple[int, ...]) -> Array:
    """The identity of all fields at every site, for normals that are not turned; of the shape (..., r, t) of lifts."""
    return np.tile(np.eye(sum(shape[-2:])), (*shape[:-2], 1, 1))


def _with_label(draws: Draws, law: FieldLaw, means: Array, label: float) -> Draws:
    """Nodes with the mean of zeta under the label 1 or -1, given omega, and the label's probability as their share.

    A loss may know the teacher's field by its sign only.  Given omega both are known and smooth, so that every node
    stands for both labels.  Where nodes draw their labels, 1024 Sobol points err by 3e-3 instead of 1e-4 (logistic,
    alpha = 3 and 8).

    Parameters
    ----------
    draws : Draws
    law : FieldLaw
        Of one token with one teacher's field.
    means : (1, 1) array
        Of the teacher's field.
    label : float
    """
    from scipy.special import log_ndtr, ndtr  # a quarter of a second to import, for labels alone

    normals, columns = draws.normals.copy(), law.roots.shape[-1]
    correlation, spread = law.turns[0, columns, :columns], law.turns[0, columns, columns]
    z = label * (normals[:, :columns] @ correlation + means.item() / law.teacher_roots.item()) / spread
    # phi(z)/Phi(z), safely in the tails
    normals[:, columns] = label * np.exp(-(z**2) / 2 - log_ndtr(z)) / np.sqrt(2 * np.pi)
    return draws._replace(normals=normals, shares=2 * ndtr(z))


@cache
def _sources(orbit: tuple[tuple[int, int], ...]) -> tuple[list[int], list[int]]:
    """The sign changes that others are taken from, and for every one its place among these."""
    chosen = sorted({source for source, _ in orbit})
    return chosen, [chosen.index(source) for source, _ in orbit]


@cache
def _parities(orbit: tuple[tuple[int, int], ...], signs: tuple[tuple[int, int], ...], columns: int, rank: int) -> Array:
    """By what the moments of a sign change differ from those of the one they are taken from, (signs, ..., columns).

    A copy has the residual times its factor, and its own xi and k, of which the one whose sign changes is turned.
    """
    rows = []
    for (source, factor), (student, teacher) in zip(orbit, signs, strict=True):
        xi, zeta = factor * student * signs[source][0], factor * teacher * signs[source][1]
        rows.append([factor] + [1.0] * columns + [xi] * columns + [zeta] * rank)
    return np.array(rows, dtype=float)[:, None, None, None, :]


def _needed(spread: Array) -> Array:
    """``(1 + X^2)^-1`` of positive semidefinite X (..., r, r), which may have rounding errors below zero."""
    if spread.shape[-1] == 1:
        return 1 / (1 + np.square(np.maximum(spread, 0.0)))
    values, vectors = np.linalg.eigh(spread)
    share: Array = (vectors / (1 + np.square(np.maximum(values, 0.0)))[..., None, :]) @ vectors.mT
    return share


def _solved(matrices: Array, right: Array) -> Array:
    """``matrices^-1 right``, for which LAPACK takes long where it is a division."""
    if matrices.shape[-1] == 1:
        return right / matrices
    found: Array = np.linalg.solve(matrices, right).astype(float, copy=False)
    return found
