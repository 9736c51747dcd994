"""The point of zero weights, where an iteration has found no others and zero weights rest, see `rest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnphase.arrays import Array
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run
from attnphase.integration.rules import Rule
from attnphase.solvers.iteration import Anderson, Status, iterate
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.rest import at_zero, rests
from attnphase.state_evolution.system import System

__all__ = ["map_at_rest", "weightless"]

_MOST = 100  # maps in which trained parameters settle beside weights that do not move


def weightless(
    run: Run, found: BranchPoint, informed: Overlaps, solve: Callable[[Run, Overlaps], BranchPoint | None]
) -> BranchPoint | None:
    """The point of weights that rest at zero; None where they do not, or where others have been found.

    Whether the branch ends there its trial amplitudes tell, under the map of weights that move.

    Parameters
    ----------
    run : Run
        That has led to ``found``.
    informed : Overlaps
        The branch's informed start.
    solve : callable
        Where an iteration leads in a run from a point.
    """
    rows, trained = run.system.prior.rows, len(informed.trained) > 0
    if (found.status is Status.converged and not found.zero_weights) or rows is None or not rows.holds_zero:
        return None
    if not trained and not rests(run.system, informed):
        return None
    held = Run(
        run.system.at_rest(), run.alpha, run.settings, run.sector, run.callback, run.deadline, compares=run.compares
    )
    try:
        point = solve(held, at_zero(run.system, informed))
    except (ArithmeticError, np.linalg.LinAlgError):  # the losses are no numbers there
        return None
    if point is None or point.status is not Status.converged:
        return None
    if trained and point.zero_weights and not rests(run.system, point.restart.overlaps):
        return None  # the loss's slope at h = 0 depends on what is trained
    return replace(point, iterations=point.iterations + run.maps)


def map_at_rest(
    system: System, rule: Rule, alpha: float, start: Overlaps, tolerance: float
) -> tuple[StateEvolution, Array] | None:
    """The map of zero weights at its fixed point, and this; None where they do not rest.

    Parameters
    ----------
    system : System
        Whose weights move.
    rule : Rule
    alpha : float
    start : Overlaps
        From which the trained parameters are sought.
    tolerance : float
        Of these.
    """
    held = StateEvolution(Channel(system.at_rest(), rule), alpha, system.sector_of(start))
    x = held.pack(at_zero(system, start))
    found = iterate(held, x, held.scales, Anderson(), tolerance=tolerance, max_maps=_MOST)
    settled = found.status is Status.converged and held(found.point) is not None
    return (held, found.point) if settled and rests(system, held.unpack(found.point)) else None
