"""State evolution as a dynamics: the overlaps that the iterates of undamped GAMP have, one iteration after another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.fixed_points.settings import sample_complexity
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.starts import check_start, initial_overlaps
from attnphase.state_evolution.system import System

__all__ = ["iterates"]

_MOST_POINTS = 2**24


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

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alpha = sample_complexity("alpha", alpha)
    check_start(problem, arguments.instance("start", start, Overlaps), initial_overlaps(problem, "uninformed"))
    steps = arguments.whole("steps", steps, 0)
    points = arguments.whole("points", points, 1, _MOST_POINTS)
    if points & (points - 1):
        raise ProblemError("points", f"points must be a power of two, not {points}.")
    return _iterates(System.of(problem), alpha, start, steps, points)


def _iterates(system: System, alpha: float, start: Overlaps, steps: int, points: int) -> Iterator[Overlaps]:
    channel = Channel(system, system.refinement(_MOST_POINTS).sobol(points))
    overlaps, minima = start, None
    yield overlaps
    for _ in range(steps):
        # every iteration searches afresh, as GAMP does; the last minima are further starts
        known = _same_nodes(minima, channel, overlaps)
        passed = channel.evaluate(alpha, overlaps, Starts.COLD if known is None else Starts.REFRESH, known)
        image = system.prior.overlaps(passed.conjugates.mean())
        if image is None or not image.feasible(system.spectrum.rho):
            return
        overlaps, minima = image, passed.minima
        yield overlaps


def _same_nodes(minima: Minima | None, channel: Channel, overlaps: Overlaps) -> Minima | None:
    """Minima of the last iteration, if they belong to the nodes of this one."""
    sources = len({source for source, _ in channel.representatives(overlaps)})
    count = sources * len(channel.probabilities) * int(np.prod(channel.rule.nodes.shape[:2]))
    return minima if minima is not None and len(minima.energies) == count else None
