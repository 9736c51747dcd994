"""The point of zero weights, where an iteration has found no others and zero weights rest, see `rest`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.run import Run
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.rest import at_zero, rests

__all__ = ["weightless"]


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
