"""One-step replica-symmetry breaking at one sample complexity, as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.outcomes import of_points, warned
from attnphase.errors import SolverError
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexity
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.refinement import REPLICATES
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, ProgressLine, progress_line
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.copies import RESOLVED
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import check_start, initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.dataset import from_one_rsb
from attnphase.theories.one_rsb.map import OneRsbMap, OneRsbOverlaps
from attnphase.theories.one_rsb.nodes import OneRsbNodes
from attnphase.theories.one_rsb.settings import STARTS, check_covered, one_rsb_sizes, parisi_parameters
from attnphase.theories.one_rsb.solving import OneRsbPoint, OneRsbSolver, apart_by

__all__ = ["one_rsb", "one_step"]

_REMEDY = "; give values of y, the small ones first, or more points (outer, inner)"
_RULE = "sobol, {} outer and {} inner points"
_APART = 0.5  # share of a start's free overlap that groups do not have in common
_LEAST_APART = 0.05
_GUESS = 0.5  # of the y at which the training loss of one sample over the lowest, times y, is one
_TOLERANCE, _MOST_MAPS = 1e-5, 1000


def one_rsb(
    problem: Problem,
    alpha: float,
    *,
    y: float | Sequence[float] | None = None,
    branch: str = "semantic",
    start: str | Overlaps = "replica-symmetric",
    outer: int = 128,
    inner: int = 64,
    settings: SolverSettings | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Solve the equations of one-step replica-symmetry breaking (1RSB, docs/one_rsb.md), for a ridge.

    Equations (S1)-(S10), (F1) of the 1RSB page.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d.
    y : float or sequence of float, optional
        Parisi parameters, solved in this order, each from the previous one. By default the y that maximises F, which
        is the static solution.
    branch : {"semantic", "positional", "uninformed", "mixed"}
        Branch of the start.
    start : {"replica-symmetric", "informed"} or Overlaps
        The branch's replica-symmetric solution; a student close to the teacher or the encodings, for branches whose
        replica-symmetric solution has m = theta = 0; or overlaps. At first groups share half of the free part of q.
    outer, inner : int
        Powers of two. Number of Sobol points for the fields that all replicas share, in each of 16 replicates, and, at
        each of these points, for the fields that a group shares.
    settings : SolverSettings, optional
        Only ``tolerance``, ``max_maps`` (for each y) and ``threads`` are used, by default 1e-5, 1000 and all cores.
    progress : bool, optional
        Show the progress on standard error.

    Returns
    -------
    xarray.Dataset
        Over ``state``, in the order of solution: the order parameters, F, energy and complexity of metastable states,
        and the test error. Standard errors: scatter of the replicates, and change with half of the inner points.

    Raises
    ------
    ProblemError
        An argument is wrong, or the loss or the regulariser is not covered; the message names it.
    SolverError
        The iteration finds no solution from this start, or no maximum of F; the message gives a remedy.
    """
    arguments.instance("problem", problem, Problem)
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, BRANCHES)
    if not isinstance(start, Overlaps):
        start = arguments.word("start", start, STARTS)
    tilts, (outer, inner) = parisi_parameters(y), one_rsb_sizes(problem, outer, inner)
    default = SolverSettings(tolerance=_TOLERANCE, max_maps=_MOST_MAPS)
    settings = default if settings is None else arguments.instance("settings", settings, SolverSettings)
    check_covered(problem)
    check_affordable(problem)
    informed = initial_overlaps(problem, branch)
    if isinstance(start, Overlaps):
        check_start(problem, start, informed)
    count = len(tilts) or None
    with (
        progress_line(progress, "1RSB", count, unit="values of y") as line,
        np.errstate(over="ignore", invalid="ignore"),
    ):
        system = System.of(problem, settings.threads or available_cores(), line.callback)
        beginning, share = start if isinstance(start, Overlaps) else informed, _APART
        if start == "replica-symmetric":
            beginning, share = _without_breaking(problem, alpha, branch, settings, line.callback)
        begun = apart_by(beginning, system.spectrum.rho, share)
        sector = system.sector_of(beginning)
        try:
            points = _solved(system, alpha, tilts, sector, (outer, inner), begun, settings, line)
        except SolverError:
            raise
        except (ArithmeticError, np.linalg.LinAlgError) as error:
            raise SolverError(f"the 1RSB equations cannot be solved from this start: {error}{_REMEDY}.") from error
    return warned(from_one_rsb(points, problem, alpha, branch, _RULE.format(outer, inner)), of_points)


def _without_breaking(
    problem: Problem, alpha: float, branch: str, settings: SolverSettings, callback: Callback
) -> tuple[Overlaps, float]:
    """The replica-symmetric solution, and the share of its q to begin with that groups do not have in common.

    Raises
    ------
    SolverError
        Two solutions on the same samples are one.
    """
    point = solve_point(problem, alpha, branch, settings=replace(settings, tolerance=1e-6), callback=callback)
    gap = point.values["overlap_gap"]
    if gap <= RESOLVED:
        raise SolverError(
            f"the {branch} branch has overlap_gap = 0 at alpha = {alpha:g}: all solutions are one and there is nothing "
            "to break; start informed to look for another."
        )
    return point.restart.overlaps, _APART if np.isnan(gap) else float(np.clip(gap, _LEAST_APART, _APART))


def _solved(
    system: System,
    alpha: float,
    tilts: Sequence[float],
    sector: Sector,
    sizes: tuple[int, int],
    begun: OneRsbOverlaps,
    settings: SolverSettings,
    line: ProgressLine,
) -> list[OneRsbPoint]:
    nodes = OneRsbNodes(system, *sizes, REPLICATES)
    first = tilts[0] if tilts else _first_tilt(system, alpha, begun)
    solving = OneRsbSolver(OneRsbMap(nodes, alpha, first, sector), settings, line.callback)
    x = solving.map_.pack(begun)
    if not tilts:
        return [solving.point(solving.stationary(x), stationary=True)]
    points: list[OneRsbPoint] = []
    for done, tilt in enumerate(tilts):
        line.reach(done)
        solving.map_.y = tilt
        try:
            found = solving.settled(x, fresh=not points)
            point = solving.point(found)
        except (SolverError, ArithmeticError, np.linalg.LinAlgError):
            if not points:
                raise
            # what was found at other y stays, and the next one begins there
            points.append(points[-1].without_solution(tilt, solving.maps))
            solving.maps = 0
            continue
        points.append(point)
        x = found.point
    return points


def _first_tilt(system: System, alpha: float, begun: OneRsbOverlaps) -> float:
    """Where the search for the maximum of F begins: the weights ``exp(-y M)`` differ by factors of order one."""
    nodes = OneRsbNodes(system, 32, 4, REPLICATES)
    probe = OneRsbMap(nodes, alpha, 1.0, system.sector_of(begun.near))
    probe(probe.pack(begun))
    return _GUESS / probe.mean_envelope()


one_step = one_rsb
"""The name that it had before."""
