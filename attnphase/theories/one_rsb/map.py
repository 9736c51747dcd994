"""One-step replica-symmetry breaking as a map: overlaps of replicas in groups to their images, docs/one_rsb.md.

The equations are those that `derivations.replica.one_rsb` derives; the local problems are the replica-symmetric
theory's, at the nested nodes of `attnphase.theories.one_rsb.nodes`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, without_each
from attnphase.state_evolution.prior import symmetric
from attnphase.state_evolution.proximal import Minima, ProximalPoints
from attnphase.state_evolution.sector import Sector
from attnphase.theories.one_rsb.equations import one_rsb_equations
from attnphase.theories.one_rsb.nodes import OneRsbNodes, Proposal

__all__ = ["OneRsbConjugates", "OneRsbMap", "OneRsbOverlaps"]

_LEAST_GAP = 1e-7  # share of q_1 below which replicas of different groups are those of one
_PROBE = 1e-30  # imaginary part of y, relative: F is analytic in y, and no digit of its derivative is lost
_LIFTED = 0.1  # of the ridge: smallest precision of a group that the lifted map leaves


@dataclass(frozen=True, eq=False)
class OneRsbOverlaps:
    """Order parameters of replicas in groups.

    Attributes
    ----------
    q_0, q_1, V : (P, r, r) arrays
        Overlap of two replicas of different groups, of two of one group, and the rescaled variance.
    m : (P, r, 1) array
    theta : (P, r, t) array
    """

    q_0: Array
    q_1: Array
    V: Array
    m: Array
    theta: Array

    @property
    def near(self) -> Overlaps:
        """Those of one replica."""
        return Overlaps(self.q_1, self.V, self.m, self.theta)

    @property
    def apart(self) -> Overlaps:
        """Those of what all replicas share."""
        return Overlaps(self.q_0, self.V, self.m, self.theta)

    @property
    def arrays(self) -> dict[str, Array]:
        """By name, with an axis for replicates."""
        return {f.name: getattr(self, f.name)[:, None] for f in fields(self)}


@dataclass(frozen=True, eq=False)
class OneRsbConjugates:
    """Conjugates of `OneRsbOverlaps`, (P, S, ...) with the replicate axis S behind the sites."""

    q_hat_0: Array
    q_hat_1: Array
    V_hat: Array
    m_hat: Array
    theta_hat: Array

    @property
    def arrays(self) -> dict[str, Array]:
        """By name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def mean(self) -> Self:
        """Mean over the replicates, axis kept."""
        return type(self)(**{name: x.mean(axis=1, keepdims=True) for name, x in self.arrays.items()})

    def replicate(self, s: int) -> Self:
        """One replicate, axis kept."""
        return type(self)(**{name: x[:, s : s + 1] for name, x in self.arrays.items()})

    def without_each(self) -> Self:
        """Means over all replicates but one, for every one of them; themselves where there is one alone."""
        return type(self)(**{name: without_each(x, 1) for name, x in self.arrays.items()})

    def symmetrized(self, sector: Sector) -> Self:
        """Mean over a sector's symmetries."""
        near = sector.symmetrized(Conjugates(self.q_hat_1, self.V_hat, self.m_hat, self.theta_hat))
        apart = sector.symmetrized(Conjugates(self.q_hat_0, self.V_hat, self.m_hat, self.theta_hat))
        return type(self)(apart.q_hat, near.q_hat, near.V_hat, near.m_hat, near.theta_hat)


@dataclass(frozen=True, eq=False)
class _Pass:
    """What the nodes gave at one point, mirror images of solved nodes among them.

    Attributes
    ----------
    overlaps : OneRsbOverlaps
        With the variance floor.
    residual, normals : (C, signs, S, N, N1, L, r) arrays
        ``g`` and ``xi_1``.
    envelope, shares : (C, signs, S, N, N1) arrays
        ``M``, and the inner points' shares of the Gaussian.
    shared, teacher : (C, signs, S, N, L, r) and (..., t + noise) arrays
        ``xi_0``, and k about its mean with the labels' noise behind it.
    outer : (C, signs, S, N) array
        By what the law of the samples multiplies the weights of the outer nodes.
    """

    overlaps: OneRsbOverlaps
    residual: Array
    normals: Array
    envelope: Array
    shares: Array
    shared: Array
    teacher: Array
    outer: Array

    def part(self, *inner: slice) -> _Pass:
        """Some of the inner points."""

        def chosen(values: Array, axis: int) -> Array:
            taken = [values[(slice(None),) * axis + (here,)] for here in inner]
            return np.concatenate(taken, axis=axis)

        shares = chosen(self.shares, 4)
        return replace(
            self,
            residual=chosen(self.residual, 4),
            normals=chosen(self.normals, 4),
            envelope=chosen(self.envelope, 4),
            shares=shares / shares.sum(axis=-1, keepdims=True),
        )

    def weights(self, y: float) -> Array:
        """Shares of the inner points under ``exp(-y M)``."""
        weights = self.shares * np.exp(-y * (self.envelope - self.envelope.min(axis=-1, keepdims=True)))
        return weights / weights.sum(axis=-1, keepdims=True)


class OneRsbMap:
    """``x -> F(x)`` at one y; keeps the nodes' minima from one evaluation to the next.

    Points are coordinates (D,): those of ``(q_1, V, m, theta)`` in a sector, and of ``q_0``.

    Attributes
    ----------
    y : float
        May be changed from one evaluation to the next.
    lift : bool
        Extend the map to where a group has no mean, by adding to V_hat.
    thorough : bool
        Search every local problem afresh at every evaluation.
    last : OneRsbConjugates or None
        Of the last evaluation, with replicates.
    minima : Minima or None
    """

    def __init__(self, nodes: OneRsbNodes, alpha: float, y: float, sector: Sector) -> None:
        self.nodes, self.alpha, self.y, self.sector = nodes, alpha, y, sector
        self.system, self.lift, self.thorough = nodes.system, False, False
        self.minima: Minima | None = None
        self.last: OneRsbConjugates | None = None
        self._proposal: Proposal | None = None
        self._pass: _Pass | None = None

    # ------------------------------------------------------------------------------------------------ coordinates

    @cached_property
    def _of_q(self) -> NDArray[np.intp]:
        """The sector's coordinates that are entries of q."""
        entries = self.sector.length * self.sector.columns * (self.sector.columns + 1) // 2
        return np.flatnonzero(np.abs(self.sector.basis[:entries]).any(axis=0))

    def pack(self, overlaps: OneRsbOverlaps) -> Array:
        """Coordinates of overlaps."""
        return np.concatenate([self.sector.pack(overlaps.near), self.sector.pack(overlaps.apart)[self._of_q]])

    def unpack(self, x: Array) -> OneRsbOverlaps:
        """Overlaps at a point."""
        size = self.sector.basis.shape[1]
        near, apart = self.sector.unpack(x[:size]), np.zeros(size)
        apart[self._of_q] = x[size:]
        return OneRsbOverlaps(self.sector.unpack(apart).q, near.q, near.V, near.m, near.theta)

    def scales(self, x: Array) -> Array:
        """Size of every coordinate, for relative residuals; that of q_0 is q_1's."""
        near = self.sector.scales(x[: self.sector.basis.shape[1]], self.system.spectrum.rho)
        return np.concatenate([near, near[self._of_q]])

    def errors(self, x: Array) -> OneRsbOverlaps:
        """Standard errors of the coordinates as those of the entries."""
        size = self.sector.basis.shape[1]
        near, apart = self.sector.errors(x[:size]), np.zeros(size)
        apart[self._of_q] = x[size:]
        return OneRsbOverlaps(self.sector.errors(apart).q, near.q, near.V, near.m, near.theta)

    # ---------------------------------------------------------------------------------------------------- the map

    def __call__(self, x: Array, *, refresh: bool = False) -> Array | None:
        """The image of a point; None outside the domain. With `refresh` all local problems are searched afresh."""
        overlaps = self.unpack(x)
        if not self._feasible(overlaps):
            return None
        self._pass = self._evaluated(overlaps, refresh)
        self.last = self._conjugates(self._pass)
        image = self.image(self.last.mean())
        return None if image is None else self.pack(image)

    def images(self, *, halved: bool = False) -> Array:
        """Images of the last point, (S, D), one for each replicate; `halved` by half of the inner points, (1, D).

        Equations (S1)-(S10) of the 1RSB page.

        By what the image of all replicates changes without one: a single one lies far from the others, and often beyond
        the edge of the domain. Their mean differs from the image by the jackknife's bias.

        Raises
        ------
        ArithmeticError
            All replicates but one have no finite conjugates.
        """
        assert self.last is not None
        assert self._pass is not None
        if halved:
            return self._lifted_images(self._conjugates(self._pass.part(*self.nodes.halved())).mean())
        count, without = self.nodes.replicates, self._lifted_images(self.last.without_each())
        whole = self._lifted_images(self.last.mean())
        return whole + (count - 1) * (whole - without)

    def _lifted_images(self, conjugates: OneRsbConjugates) -> Array:
        """Images of every replicate's conjugates, (S, D), by the map that goes on beyond the edge of the domain."""
        lift, self.lift = self.lift, True
        images = [self.image(conjugates.replicate(s)) for s in range(conjugates.q_hat_0.shape[1])]
        self.lift = lift
        if any(image is None for image in images):
            raise ArithmeticError("a replicate has no image")
        return np.stack([self.pack(image) for image in images if image is not None])

    def _feasible(self, overlaps: OneRsbOverlaps) -> bool:
        if not np.isfinite(overlaps.q_0 + overlaps.q_1).all():
            return False
        gap = np.linalg.eigvalsh(overlaps.q_1 - overlaps.q_0).min()
        return bool(gap > _LEAST_GAP * np.abs(overlaps.q_1).max()) and overlaps.apart.feasible(self.system.spectrum.rho)

    def image(self, conjugates: OneRsbConjugates) -> OneRsbOverlaps | None:
        """Overlaps of conjugates without replicates; None where the mean over a group does not exist.

        Equations (S1)-(S5) of the 1RSB page.
        """
        gamma, strength = self.system.spectrum.gamma, self.system.prior.strength
        precision = strength * np.eye(self.sector.columns) + np.einsum("pa,pxij->axij", gamma, conjugates.V_hat)
        apart = np.einsum("pa,pxij->axij", gamma, conjugates.q_hat_1 - conjugates.q_hat_0)
        grouped = precision - self.y * apart
        if not np.isfinite(grouped).all():
            return None
        # S_1 - S_0 is positive semidefinite, so that the precision itself is the larger
        lowest = float(np.linalg.eigvalsh(grouped).min())
        if lowest <= 0:
            if not self.lift:
                return None
            shift = (_LIFTED * self.system.prior.least_ridge - lowest) / gamma.sum(axis=0).min()
            conjugates = replace(conjugates, V_hat=conjugates.V_hat + shift * np.eye(self.sector.columns))
        arrays = one_rsb_equations().overlaps_from_conjugates(y=self.y, **self._atoms, **conjugates.arrays)
        q_0, q_1, V, m, theta = (array[:, 0] for array in arrays)
        return OneRsbOverlaps(symmetric(q_0), symmetric(q_1), symmetric(V), m, theta)

    @cached_property
    def _atoms(self) -> dict[str, Any]:
        nothing = np.zeros((0, 1, 0, 0))  # a ridge's atoms do not depend on the conjugates
        return self.system.prior.atoms(Conjugates(nothing, nothing, nothing, nothing))

    def _evaluated(self, overlaps: OneRsbOverlaps, refresh: bool) -> _Pass:
        """The local problems of all nodes at some overlaps."""
        channel = self.nodes.channel
        omega, k, xi_0, near, outer = channel.nodes_at(overlaps.apart)
        floored = replace(overlaps, q_0=near.q)
        orbit = channel.representatives(overlaps.apart)
        chosen = sorted({source for source, _ in orbit})
        index, turned = [chosen.index(source) for source, _ in orbit], [factor for _, factor in orbit]
        normals, shares = self.nodes.inner_points(self._proposal_for(len(chosen)))
        roots = matrix_root(symmetric(floored.q_1 - floored.q_0))[channel.configurations]
        own = np.einsum("clab,cxsnjlb->cxsnjla", roots, np.broadcast_to(normals, (len(roots), *normals.shape[1:])))
        points = self._minimised(omega[:, chosen, ..., None, :, :] + own, k[:, chosen], overlaps.V, refresh)
        signs = np.array(turned, dtype=float)[:, None, None, None, None, None]

        def of_all(values: Array) -> Array:
            return np.broadcast_to(values, (len(roots), len(chosen), *values.shape[2:]))[:, index]

        return _Pass(
            overlaps=floored,
            residual=signs * of_all(points.residual),
            normals=signs * of_all(normals),
            envelope=of_all(points.envelope),
            shares=of_all(shares),
            shared=xi_0,
            teacher=k,
            outer=outer,
        )

    def _proposal_for(self, variants: int) -> Proposal | None:
        """The proposal, if it was made for as many sign changes."""
        known = self._proposal
        return known if known is not None and known.means.shape[1] == variants else None

    def propose(self) -> None:
        """Draw half of the inner points from where the weights of the last point lie, from now on."""
        assert self._pass is not None
        last = self._pass
        orbit = self.nodes.channel.representatives(last.overlaps.apart)
        chosen = sorted({source for source, _ in orbit})
        self._proposal = Proposal.of_weighted(last.normals[:, chosen], last.weights(self.y)[:, chosen])

    def _minimised(self, omega: Array, k: Array, variance: Array, refresh: bool) -> ProximalPoints:
        """Proximal points at centres (C, signs, S, N, N1, L, r) and the outer nodes' teacher fields."""
        shape, channel = omega.shape, self.nodes.channel
        shifted = (k + self.system.sample_law.means[:, None, None, None])[..., None, :, :]
        teacher = np.broadcast_to(shifted, (*shape[:-1], k.shape[-1]))
        flat = [values.reshape(*shape[:3], -1, *values.shape[-2:]) for values in (omega, teacher)]
        known = self.minima if self.minima is not None and len(self.minima.energies) == omega[..., 0, 0].size else None
        starts = Starts.COLD if known is None else Starts.REFRESH if refresh or self.thorough else Starts.WARM
        orbit = tuple((variant, 1) for variant in range(shape[1]))
        points, self.minima = channel.proximal.minimise(flat[0], flat[1], variance, orbit, starts, known)
        return ProximalPoints(
            points.residual.reshape(shape), points.envelope.reshape(shape[:-2]), points.loss.reshape(shape[:-2])
        )

    def _conjugates(self, nodes: _Pass) -> OneRsbConjugates:
        """The channel's half of the equations."""
        channel = self.nodes.channel
        weights = nodes.weights(self.y)
        tokens, holding = self.system.sample_law.tokens, self.system.sample_law.holding

        def of_tokens(values: Array) -> Array:
            return np.moveaxis(values[..., tokens, :], -2, 0)[..., None]

        hats = one_rsb_equations().conjugates_from_overlaps(
            alpha=self.alpha,
            y=self.y,
            rho=self.system.sample_law.rho[:, None],
            site_mean=lambda values: _site_mean(values * nodes.outer[..., None, None], channel.probabilities),
            tilted=lambda values: np.einsum("...j,...jab->...ab", weights, values),
            # a sample whose token is in another cluster counts as zero
            g=of_tokens(nodes.residual) * holding.reshape(*holding.shape, *(1,) * 6),
            xi_0=of_tokens(nodes.shared),
            xi_1=of_tokens(nodes.normals),
            k=of_tokens(nodes.teacher[..., : self.system.kernels.teacher_rank]),
            **nodes.overlaps.arrays,
        )
        return OneRsbConjugates(*hats).symmetrized(self.sector)

    # --------------------------------------------------------------------------------------------------- measures

    def free_entropy(self, y: complex | None = None, *, halved: bool = False) -> Array:
        """``F`` at the last point and its conjugates, (S,); at another y that of the same point.

        Equation (F1) of the 1RSB page.

        Parameters
        ----------
        halved : bool
            By half of the inner points.
        """
        assert self._pass is not None
        assert self.last is not None
        nodes = self._pass.part(*self.nodes.halved()) if halved else self._pass
        probabilities = self.nodes.channel.probabilities

        def tilted_envelope(y: complex) -> Array:
            lowest = nodes.envelope.min(axis=-1, keepdims=True)
            means = (nodes.shares * np.exp(-y * (nodes.envelope - lowest))).sum(axis=-1)
            logs = np.log(means) - y * lowest[..., 0]
            logs *= nodes.outer
            return np.einsum("c,cxsn->s", probabilities, logs) / (logs.shape[1] * logs.shape[3])

        terms = one_rsb_equations().free_entropy_terms(
            alpha=self.alpha,
            y=self.y if y is None else y,
            **self._atoms,
            tilted_envelope=tilted_envelope,
            **nodes.overlaps.arrays,
            **self.last.mean().arrays,
        )
        return np.asarray(sum(terms.values()))

    def slope(self, *, halved: bool = False) -> Array:
        """``dF/dy`` at the last point (S,), all else held: where F is stationary in it, that is the whole."""
        step = _PROBE * self.y
        return self.free_entropy(complex(self.y, step), halved=halved).imag / step

    def mean_envelope(self) -> float:
        """``E[M]`` at the last point over the lowest M, which no constant in the loss changes, without a tilt."""
        assert self._pass is not None
        envelope = self._pass.envelope - self._pass.envelope.min()
        means = self._pass.outer * (self._pass.shares * envelope).sum(axis=-1)
        return float(self.nodes.channel.probabilities @ means.mean(axis=(1, 2, 3)))

    def test_error(self) -> Array:
        """Test error of one replica at the last point, (S,)."""
        assert self._pass is not None
        return 2 / self.system.kernels.length * self.nodes.channel.loss_at_omega(self._pass.overlaps.near)

    @property
    def unsolved(self) -> int:
        """Nodes whose minimisation did not converge in the last evaluation."""
        return 0 if self.minima is None else self.minima.unsolved


def _site_mean(values: Array, probabilities: Array) -> Array:
    """Mean over outer nodes, signs and configurations of clusters, (P, C, signs, S, N, i, j) to (P, S, i, j).

    The signs are added largest with smallest, so that opposite values cancel exactly.
    """
    ordered = np.sort(values.mean(axis=4), axis=2)
    means = (ordered + ordered[:, :, ::-1]).sum(axis=2) / (2 * ordered.shape[2])
    return np.einsum("c,pcsij->psij", probabilities, means)
