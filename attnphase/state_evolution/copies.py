"""Two copies of a solution on the same samples: how far apart they come to lie, docs/stability.md.

Copies share the samples and a part of their noise.  Their fields ``omega`` and ``omega'`` have the covariance ``q - D``
and the same teacher's field; what their residuals make of that are sources with ``C_hat = alpha/2 E (g-g')(g-g')^T`` of
their noise apart, and these give weights with a new ``D``.  These are the 1RSB equations at y = 0
(`derivations.replica.stability`).  The linear part at D = 0 is the replicon.  Jumps of the proximal point
add a part like the root of D: a copy crosses a surface on which two minima are equally deep with a probability
proportional to its distance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.refinement import REPLICATES
from attnphase.integration.rules import Rule, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.errors import Displaced
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import symmetric
from attnphase.state_evolution.proximal import Minima, ProximalPoints
from attnphase.state_evolution.spread import Spread, at_most
from attnphase.state_evolution.system import System

__all__ = ["RESOLVED", "Copies", "Gap"]

RESOLVED = 1e-4  # share of q below which two copies count as one: too few nodes jump to say more
_PASSES = 20  # at the most, to where the gap is its own image
_FEW = 256  # points of each replicate on which the end is looked for first
_WIDER, _WIDE = 3.0, 0.05  # beside a known gap: times that, and share of q, from which the end is looked for
_ACCURATE, _NEAR = 1e-2, 0.15  # relative: there, and where a last step along the secant is good enough


@dataclass(frozen=True, eq=False)
class Gap:
    """Where the copies end.

    Attributes
    ----------
    covariance : (P, r, r) array
        ``D``: the part of q that they do not have in common.
    share, error : float
        ``tr D / tr q`` over all sites, and its standard error.
    """

    covariance: Array
    share: float
    error: float


@dataclass(frozen=True, eq=False)
class Copies:
    """Copies at a fixed point.

    Attributes
    ----------
    system : System
    alpha : float
    overlaps : Overlaps
        Of all replicates together, or of each, (S, P, ...).
    conjugates : Conjugates
        Of all together, or of each, as replicates.
    rule : Rule
        Nodes of the first copy, of the teacher's fields, of the labels' noise and, behind these, of what moves the
        second copy.
    known : tuple of Minima or None
        Of both copies, where they are known from a neighbouring point.
    """

    system: System
    alpha: float
    overlaps: Overlaps
    conjugates: Conjugates
    rule: Rule
    known: tuple[Minima | None, Minima | None] = (None, None)

    @classmethod
    def of(cls, system: System, alpha: float, overlaps: Overlaps, conjugates: Conjugates, points: int = 512) -> Copies:
        """Copies on so many Sobol points, a power of two, in each of 16 replicates."""
        student, labels = (system.kernels.length * n for n in (system.kernels.columns, system.kernels.label_normals))
        dimensions, seed = 2 * student + labels, system.problem.integration.seed
        return cls(system, alpha, overlaps, conjugates, sobol(dimensions, student, False, points, REPLICATES, seed))

    @cached_property
    def _spread(self) -> Spread:
        return Spread(self.system, self.conjugates)

    @cached_property
    def _channel(self) -> Channel:
        return Channel(self.system, self.rule)

    def _of_tokens(self, values: Array, axes: int = 3) -> Array:
        """What belongs to sites, (P, ...) of so many axes, or (S, P, ...), for every token: (C, S, L, ...)."""
        stacked = values.reshape(-1, *values.shape[-axes:])
        whole = np.broadcast_to(stacked, (self.rule.replicates, *stacked.shape[1:]))
        return np.moveaxis(whole[:, self._channel.configurations], 0, 1)

    @cached_property
    def _fields(self) -> tuple[Array, Array, Array]:
        """The first copy's fields and the teacher's about its mean with the noise, (C, 1, S, n, L, r) and (..., t).

        With the nodes' shares, (C, 1, S, n).
        """
        law, (*normals, noise, _) = self._channel.law(self.overlaps), self._normals
        turned = _product(self._of_tokens(law.turns), np.concatenate(normals, axis=-1))
        xi, zeta = np.split(turned, [law.lifts.shape[-2]], axis=-1)
        flat = zeta.reshape(len(zeta), -1, *zeta.shape[-2:])
        drawn = [self.system.sample_law.drawn(c, own) for c, own in enumerate(flat)]
        zeta, shares = (np.stack(x).reshape(*zeta.shape[:3], *x[0].shape[1:]) for x in zip(*drawn, strict=True))
        omega = _product(self._of_tokens(law.roots), xi) + _product(self._of_tokens(law.lifts), zeta)
        omega = omega + self._of_tokens(law.means, 2)[:, :, None]
        k = _product(self._of_tokens(law.teacher_roots), zeta)
        scaled = np.einsum("cl,snlb->csnlb", law.noise[self._channel.configurations], noise)
        k = self.system.sample_law.labels_of(k, scaled)
        return omega[:, None], k[:, None], shares[:, None]

    @cached_property
    def _normals(self) -> tuple[Array, Array, Array, Array]:
        """Of the student, of the teacher, of the noise and of the second copy: (S, n, L, r or t or L)."""
        kernels, nodes = self.system.kernels, self.rule.nodes
        counts = kernels.columns, kernels.teacher_rank, kernels.noise_columns
        parts = np.split(nodes, np.cumsum([kernels.length * count for count in counts]), axis=-1)
        return tuple(part.reshape(*part.shape[:2], kernels.length, -1) for part in parts)  # pyright: ignore[reportReturnType]

    @cached_property
    def _first(self) -> tuple[ProximalPoints, Minima]:
        """The first copy's proximal points."""
        return self._searched(self._fields[0], self.known[0])

    def _searched(self, omega: Array, known: Minima | None) -> tuple[ProximalPoints, Minima]:
        """From all starts, or from minima that are known at a neighbouring point."""
        starts = Starts.COLD if known is None else Starts.WARM
        k, V = self._with_means, self.overlaps.V
        return self._channel.proximal.minimise(omega, k, V, ((0, 1),), starts, known)

    @cached_property
    def _with_means(self) -> Array:
        """The teacher's fields with their means, and the noise, as in `_fields`."""
        return self._fields[1] + self.system.sample_law.means[:, None, None, None]

    # ------------------------------------------------------------------------------------------------- far apart

    @cached_property
    def _free(self) -> Array:
        """``q - theta rho^-1 theta^T``: what copies do not share that have the teacher in common and no more."""
        return self._unexplained(self.system.spectrum.rho)

    def _unexplained(self, rho: Array) -> Array:
        """``q - theta rho^-1 theta^T``: of the weights what teacher's fields of this covariance do not tell."""
        theta = self.overlaps.theta
        return symmetric(self._channel.floored(self.overlaps).q - theta @ np.linalg.pinv(rho) @ theta.mT)

    def images(self, covariance: Array) -> Array:
        """The gap that copies with this one are taken to, replicate by replicate: (P, r, r) to (P, S, r, r).

        Equations (C1)-(C2) of the stability page.
        """
        return self._images(covariance)[0]

    def _images(self, covariance: Array) -> tuple[Array, Minima]:
        about, inverse = self._about_teacher
        pulled = covariance @ inverse
        spread = matrix_root(symmetric(2 * covariance - pulled @ covariance))
        moved = _product(self._of_tokens(spread), self._normals[3]) - _product(self._of_tokens(pulled), about)
        other = self._fields[0][:, 0] + moved
        points, minima = self._searched(other[:, None], self.known[1])
        step = points.residual - self._first[0].residual
        weighted = step * self._fields[2][..., None, None]
        moments = np.einsum("cxsnla,cxsnlb->cxslab", weighted, step) / self.rule.order
        noise = self.system.averaged(self._channel.site_means(moments))
        return self._spread.of_noise(self.alpha / 2 * noise), minima

    @cached_property
    def _about_teacher(self) -> tuple[Array, Array]:
        """The first copy's fields about their means given the teacher's, (C, S, n, L, r), and their inverse covariance.

        The labels' noise is part of the teacher's fields here.
        """
        omega, k = (fields[:, 0] for fields in self._fields[:2])
        theta, rho = self.overlaps.theta, self.system.sample_law.rho
        told = _product(self._of_tokens(theta @ np.linalg.pinv(rho)), k[..., : rho.shape[-1]])
        about = omega - self._of_tokens(self.overlaps.m[..., 0], 2)[:, :, None] - told
        return about, np.linalg.pinv(self._unexplained(rho), hermitian=True).astype(float, copy=False)

    def gap(self, displaced: Displaced | None = None, share: float | None = None) -> Gap:
        """Where copies end that begin with nothing but the teacher in common: on few nodes first, then on all.

        Parameters
        ----------
        displaced : Displaced, optional
            The fixed points of the replicates, whose scatter is that of the point; without, it has no error.
        share : float, optional
            Of a neighbouring point's gap, a few times which is wide enough to begin with. Not below: few nodes jump at
            small gaps, so that a sample of them may grow too slowly there and yet end further above.
        """
        few = min(_FEW, self.rule.order)
        nodes, weights = self.rule.nodes[:, :few], np.full(few, 1 / few)
        coarse = replace(self, rule=replace(self.rule, nodes=nodes, weights=weights, order=few))
        size = _trace(self.overlaps.q).sum() / _trace(self._free).sum()
        begin = self._free if share is None else min(max(_WIDER * share, _WIDE) * size, 1.0) * self._free
        found = coarse._end(begin, -0.5, _ACCURATE)
        if found is not None and few < self.rule.order:
            found = self._end(found.covariance, found.slope, _NEAR)
        if found is None:
            return Gap(np.zeros_like(self._free), 0.0, 0.0)
        growth = found.growth
        # what is left to the end is a step along the secant
        size = _trace(found.covariance).sum() * np.exp(-np.log(growth.mean()) / found.slope)
        covariance = at_most(found.covariance * size / _trace(found.covariance).sum(), self._free)
        share = float(_trace(covariance).sum() / _trace(self.overlaps.q).sum())
        if displaced is not None and len(displaced.overlaps.q) == len(growth):
            growth = self._moved(displaced, found.minima).growth_of(found.covariance)
        scatter = growth / growth.mean() / found.slope
        return Gap(covariance, share, float(share * scatter.std(ddof=1) / np.sqrt(len(growth))))

    def _end(self, covariance: Array, slope: float, accurate: float) -> _End | None:
        """Where a gap ends on these nodes, None if at nothing.

        What copies make of their gap grows slower than the gap itself, so that there is one end, and it is reached
        from above.  With ``x`` the logarithm of the gap's share of q, that of its image is ``x + f(x)``: the zero
        of the decreasing f is found by secants, in the direction of the last image.
        """
        total = _trace(self.overlaps.q).sum()
        widest = np.log(_trace(self._free).sum() / total)
        before: tuple[float, float] | None = None
        passes = 0
        while True:
            images, minima = self._images(covariance)
            mean, size = images.mean(axis=1), _trace(covariance).sum()
            growth = _trace(images).sum(axis=0) / size
            if _trace(mean).sum() <= RESOLVED * total:
                return None
            x, f = float(np.log(size / total)), float(np.log(growth.mean()))
            if before is not None and x != before[0]:
                slope = float(np.clip((f - before[1]) / (x - before[0]), -1.0, -0.05))
            before = x, f
            passes += 1
            if abs(f) < -accurate * slope or (x >= widest and f > 0) or passes == _PASSES:
                return _End(covariance, slope, growth, minima)
            # never above where nothing is shared, and towards zero no more than a hundredfold at once
            wanted = min(max(x - f / slope, x - np.log(100.0)), widest)
            covariance = at_most(np.exp(wanted) * (total / _trace(mean).sum()) * mean, self._free)

    def growth_of(self, covariance: Array) -> Array:
        """Size of the image of a gap, relative to the gap's, of every replicate (S,)."""
        return _trace(self.images(at_most(covariance, self._free))).sum(axis=0) / _trace(covariance).sum()

    def _moved(self, points: Displaced, second: Minima) -> Copies:
        """The copies of every replicate at a point of its own, near the minima that both copies have here."""
        known = self._first[1], second
        return replace(self, overlaps=points.overlaps, conjugates=points.conjugates, known=known)


@dataclass(frozen=True, eq=False)
class _End:
    """A gap that is nearly its own image.

    Attributes
    ----------
    covariance : (P, r, r) array
    slope : float
        Of the logarithm of its growth in that of its size.
    growth : (S,) array
        Of every replicate.
    minima : Minima
        Of the second copy.
    """

    covariance: Array
    slope: float
    growth: Array
    minima: Minima


def _trace(matrices: Array) -> Array:
    return np.trace(matrices, axis1=-2, axis2=-1)


def _product(matrices: Array, vectors: Array) -> Array:
    """Every token's matrix (C, S, L, a, b) times its vectors (S, n, L, b): (C, S, n, L, a)."""
    return np.einsum("cslab,snlb->csnla" if vectors.ndim == 4 else "cslab,csnlb->csnla", matrices, vectors)
