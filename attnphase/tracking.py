"""State evolution as a dynamics: the overlaps that the iterates of undamped GAMP have, one iteration after another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnphase.channel import Channel
from attnphase.compiled import kernels_for
from attnphase.overlaps import Overlaps
from attnphase.prior import Prior
from attnphase.problem import Problem
from attnphase.proximal import Minima, Starts
from attnphase.refinement import Refinement
from attnphase.spectrum import Spectrum

__all__ = ["iterates"]


def iterates(problem: Problem, alpha: float, start: Overlaps, steps: int, *, points: int = 1024) -> Iterator[Overlaps]:
    """Overlaps before every iteration of GAMP, in the limit of high dimension.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity.
    start : Overlaps
        Of the weights from which GAMP starts, which must not depend on the samples, with the variances V it starts
        with.
    steps : int
        Number of iterations.
    points : int
        Sobol points per replicate.

    Yields
    ------
    Overlaps
        `steps` + 1 of them, unless an image leaves the domain.
    """
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    rules = Refinement(problem, kernels, spectrum, 2**24)
    channel = Channel(problem, kernels, spectrum, rules.sobol(points))
    prior = Prior.of(problem, kernels, spectrum)
    overlaps, minima = start, None
    yield overlaps
    for _ in range(steps):
        # every iteration searches afresh, as GAMP does; the last minima are further starts
        known = _same_nodes(minima, channel, overlaps)
        passed = channel.evaluate(alpha, overlaps, Starts.COLD if known is None else Starts.REFRESH, known)
        image = prior.overlaps(passed.conjugates.mean())
        if image is None or not image.feasible(spectrum.rho):
            return
        overlaps, minima = image, passed.minima
        yield overlaps


def _same_nodes(minima: Minima | None, channel: Channel, overlaps: Overlaps) -> Minima | None:
    """Minima of the last iteration, if they belong to the nodes of this one."""
    sources = len({source for source, _ in channel.representatives(overlaps)})
    count = sources * len(channel.probabilities) * int(np.prod(channel.rule.nodes.shape[:2]))
    return minima if minima is not None and len(minima.energies) == count else None
