"""Two copies of a solution on the same samples: how far apart they come to lie, docs/stability.md.

Copies share the samples and a part of their noise.  Their fields ``omega`` and ``omega'`` have the covariance ``q - D``
and the same teacher's field; what their residuals make of that are sources with ``C_hat = alpha/2 E (g-g')(g-g')^T`` of
their noise apart, and these give weights with a new ``D``.  These are the equations of one step of symmetry breaking at
y = 0 (`derivations.replica.stability`).  The linear part at D = 0 is the replicon.  Jumps of the proximal point
add a part like the root of D: a copy crosses a surface on which two minima are equally deep with a probability
proportional to its distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.refinement import REPLICATES
from attnphase.integration.rules import Rule, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel, matrix_root
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import symmetric
from attnphase.state_evolution.proximal import ProximalPoints
from attnphase.state_evolution.spread import Spread, at_most
from attnphase.state_evolution.system import System

__all__ = ["RESOLVED", "Copies", "Gap"]

RESOLVED = 1e-4  # share of q below which two copies count as one: too few nodes jump to say more
_PASSES = 20  # at the most, to where the gap is its own image
_ACCURATE = 1e-2  # relative


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
    conjugates : Conjugates
        With a replicate axis of length one.
    rule : Rule
        Nodes of the first copy, of the teacher's fields and, behind these, of what moves the second copy.
    """

    system: System
    alpha: float
    overlaps: Overlaps
    conjugates: Conjugates
    rule: Rule

    @classmethod
    def of(cls, system: System, alpha: float, overlaps: Overlaps, conjugates: Conjugates, points: int = 1024) -> Copies:
        """Copies on so many Sobol points, a power of two, in each of 16 replicates."""
        student, teacher = (system.kernels.length * n for n in (system.kernels.columns, system.kernels.teacher_rank))
        dimensions, seed = 2 * student + teacher, system.problem.integration.seed
        return cls(system, alpha, overlaps, conjugates, sobol(dimensions, student, False, points, REPLICATES, seed))

    @cached_property
    def _spread(self) -> Spread:
        return Spread(self.system, self.conjugates)

    @cached_property
    def _channel(self) -> Channel:
        return Channel(self.system, self.rule)

    @cached_property
    def _fields(self) -> tuple[Array, Array]:
        """The first copy's fields and the teacher's about its mean, (C, 1, S, n, L, r) and (..., t)."""
        law, sites = self._channel.law(self.overlaps), self._channel.configurations
        xi, zeta, _ = self._normals
        omega = np.einsum("claj,snlj->csnla", law.roots[sites], xi) + law.means[sites][:, None, None]
        k = np.einsum("cljb,snlj->csnlb", law.correlations[sites], xi)
        k += np.einsum("clbj,snlj->csnlb", law.remainders[sites], zeta)
        return omega[:, None], k[:, None]

    @cached_property
    def _normals(self) -> tuple[Array, Array, Array]:
        """Of the student, of the teacher and of the second copy: (S, n, L, r or t)."""
        kernels, nodes = self.system.kernels, self.rule.nodes
        student, teacher = (kernels.length * count for count in (kernels.columns, kernels.teacher_rank))
        parts = np.split(nodes, [student, student + teacher], axis=-1)
        return tuple(part.reshape(*part.shape[:2], kernels.length, -1) for part in parts)  # pyright: ignore[reportReturnType]

    @cached_property
    def _first(self) -> tuple[ProximalPoints, Array]:
        """The first copy's proximal points and their fields."""
        omega, k = self._fields
        points, minima = self._channel.proximal.minimise(
            omega, self._with_mean(k), self.overlaps.V, ((0, 1),), Starts.COLD, None
        )
        return points, minima.fields[:, 0].reshape(omega.shape)

    def _with_mean(self, k: Array) -> Array:
        means = self.system.spectrum.teacher_means[self._channel.configurations]
        return k + means[:, None, None, None]

    # ------------------------------------------------------------------------------------------------- far apart

    @cached_property
    def _free(self) -> Array:
        """``q - theta rho^-1 theta^T``: what copies do not share that have the teacher in common and no more."""
        theta, rho = self.overlaps.theta, self.system.spectrum.rho
        return symmetric(self._channel.floored(self.overlaps).q - theta @ np.linalg.pinv(rho) @ theta.mT)

    def images(self, covariance: Array) -> Array:
        """The gap that copies with this one are taken to, replicate by replicate: (P, r, r) to (P, S, r, r)."""
        omega, k = self._fields
        sites, theta, rho = self._channel.configurations, self.overlaps.theta, self.system.spectrum.rho
        inverse = np.linalg.pinv(self._free, hermitian=True)
        pulled = covariance @ inverse
        spread = matrix_root(symmetric(2 * covariance - pulled @ covariance))
        about = omega - self.overlaps.m[sites][:, None, None, None, :, :, 0]
        about = about - np.einsum("clab,cxsnlb->cxsnla", (theta @ np.linalg.pinv(rho))[sites], k)
        other = omega - np.einsum("clab,cxsnlb->cxsnla", pulled[sites], about)
        other += np.einsum("clab,snlb->csnla", spread[sites], self._normals[2])[:, None]
        points, _ = self._channel.proximal.minimise(
            other, self._with_mean(k), self.overlaps.V, ((0, 1),), Starts.COLD, None
        )
        step = points.residual - self._first[0].residual
        moments = np.einsum("cxsnla,cxsnlb->cxslab", step, step) / self.rule.order
        return self._spread.of_noise(self.alpha / 2 * self._channel.site_means(moments))

    def gap(self, displaced: Sequence[tuple[Overlaps, Conjugates]] = ()) -> Gap:
        """Where copies end that begin with nothing but the teacher in common.

        What copies make of their gap grows slower than the gap itself, so that there is one end, and it is reached
        from above.  With ``x`` the logarithm of the gap's size, that of its image is ``x + f(x)``: the zero of the
        decreasing f is found by secants, in the direction of the last image.

        Parameters
        ----------
        displaced : sequence of (Overlaps, Conjugates)
            The fixed points of as many replicates, whose scatter is that of the point; without, it has no error.
        """
        covariance, slope = self._free, -0.5
        total = _trace(self.overlaps.q).sum()
        widest = np.log(_trace(covariance).sum())
        before: tuple[float, float] | None = None
        for _ in range(_PASSES):
            images = self.images(covariance)
            mean, size = images.mean(axis=1), _trace(covariance).sum()
            growth = _trace(images).sum(axis=0) / size
            if not _trace(mean).sum() > RESOLVED * total:
                return Gap(np.zeros_like(covariance), 0.0, 0.0)
            x, f = float(np.log(size)), float(np.log(growth.mean()))
            if before is not None and x != before[0]:
                slope = float(np.clip((f - before[1]) / (x - before[0]), -1.0, -0.05))
            before = x, f
            if abs(f) < -_ACCURATE * slope or (x >= widest and f > 0):
                break
            # never above where nothing is shared, and towards zero no more than a hundredfold at once
            wanted = min(max(x - f / slope, x - np.log(100.0)), widest)
            covariance = at_most(np.exp(wanted) / _trace(mean).sum() * mean, self._free)
        share = float(size / total)
        if len(displaced) == len(growth):
            growth = np.array([self._moved(s, *point).growth_of(covariance) for s, point in enumerate(displaced)])
        scatter = growth / growth.mean() / slope
        return Gap(covariance, share, float(share * scatter.std(ddof=1) / np.sqrt(len(growth))))

    def growth_of(self, covariance: Array) -> float:
        """Size of the image of a gap, relative to the gap's."""
        return float(_trace(self.images(at_most(covariance, self._free))).mean(axis=1).sum() / _trace(covariance).sum())

    def _moved(self, s: int, overlaps: Overlaps, conjugates: Conjugates) -> Copies:
        """The copies of one replicate at another point."""
        some = replace(self.rule, nodes=self.rule.nodes[s : s + 1])
        return Copies(self.system, self.alpha, overlaps, conjugates, some)


def _trace(matrices: Array) -> Array:
    return np.trace(matrices, axis1=-2, axis2=-1)
