"""One-step replica-symmetry breaking at one sample complexity, as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Number, Numbers
from attnphase.data.outcomes import of_left_out, of_points, told_of, warned
from attnphase.data.starts import overlaps_of, start_for
from attnphase.errors import SolverError
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings, check_affordable, sample_complexity, solver_settings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.refinement import REPLICATES
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, ProgressLine, progress_line
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.branches import Branches
from attnphase.state_evolution.copies import RESOLVED
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import branches_named, check_start, initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.dataset import from_one_rsb
from attnphase.theories.one_rsb.map import OneRsbMap, OneRsbOverlaps
from attnphase.theories.one_rsb.nodes import OneRsbNodes
from attnphase.theories.one_rsb.settings import STARTS, OneRsbStart, check_covered, one_rsb_sizes, parisi_parameters
from attnphase.theories.one_rsb.solving import OneRsbPoint, OneRsbSolver, apart_by

__all__ = ["one_rsb"]

_REMEDY = "; give values of y, the small ones first, or more points (outer, inner)"
_RULE = "sobol, {} outer and {} inner points"
_APART = 0.5  # share of a start's free overlap that groups do not have in common
_LEAST_APART = 0.05
_GUESS = 0.5  # of the y at which the training loss of one sample over the lowest, times y, is one
_TOLERANCE, _MOST_MAPS = 1e-5, 1000


def one_rsb(
    problem: Problem,
    alpha: Number,
    branch: Branches = "semantic",
    *,
    y: Numbers | None = None,
    start: OneRsbStart | xr.Dataset | Overlaps | BranchPoint = "replica-symmetric",
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
    branch : {"semantic", "positional", "uninformed", "mixed", "all"}
        Branch of the start. "all": every branch of the problem that has a solution.
    y : float or sequence of float, optional
        Parisi parameters, solved in this order, each from the previous one. By default the y that maximises F, which
        is the static solution.
    start : {"replica-symmetric", "informed"}, xarray.Dataset, Overlaps or BranchPoint
        The branch's replica-symmetric solution; a student close to the teacher or the encodings, for branches whose
        replica-symmetric solution has m = theta = 0; or where the iteration starts, as for `solve`. At first groups
        share half of the free part of q.
    outer, inner : int
        Powers of two. Number of Sobol points for the fields that all replicas share, in each of 16 replicates, and, at
        each of these points, for the fields that a group shares.
    settings : SolverSettings, optional
        ``tolerance``, ``max_maps`` (for each y) and ``threads`` are 1e-5, 1000 and all cores by default. The other
        settings are those of the replica-symmetric start alone.
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Over ``state``, in the order of solution, with "all" over ``branch`` too: the order parameters, F, energy and
        complexity of metastable states, and the test error. Standard errors: scatter of the replicates, and change with
        half of the inner points.

    Raises
    ------
    ProblemError
        An argument is wrong, or the loss or the regulariser is not covered; the message names it.
    SolverError
        The iteration finds no solution from this start, or no maximum of F; the message gives a remedy.
    """
    arguments.instance("problem", problem, Problem)
    alpha, (names, several) = sample_complexity("alpha", alpha), branches_named(problem, branch)
    tilts, (outer, inner) = parisi_parameters(y), one_rsb_sizes(problem, outer, inner)
    settings = solver_settings(settings, SolverSettings(tolerance=_TOLERANCE, max_maps=_MOST_MAPS))
    check_covered(problem)
    check_affordable(problem)
    starts = {name: _checked(start, problem, name) for name in names}
    found, left_out = dict[str, list[OneRsbPoint]](), list[SolverError]()
    count = len(names) * len(tilts) or None
    with (
        progress_line(progress, "1RSB", count, unit="values of y") as line,
        np.errstate(over="ignore", invalid="ignore"),
    ):
        system = System.of(problem, settings.threads or available_cores(), line.callback)
        for name, beginning in starts.items():
            try:
                found[name] = _from_start(system, alpha, name, tilts, (outer, inner), beginning, settings, line)
            except SolverError as error:
                if not several:
                    raise
                left_out.append(SolverError(f"{name}: {error}"))
    if not found:
        raise left_out[-1]
    ds = from_one_rsb(found, problem, alpha, _RULE.format(outer, inner), several=several)
    return warned(ds.assign_attrs(told_of(left_out)), lambda ds: [*of_left_out(ds), *of_points(ds)])


def _checked(start: Any, problem: Problem, branch: str) -> Overlaps | None:
    """Where the iteration of a branch starts; None for its replica-symmetric solution."""
    informed = initial_overlaps(problem, branch)
    if isinstance(start, str) or start is None:
        return informed if arguments.word("start", start, STARTS) == "informed" else None
    overlaps = overlaps_of(start_for(start, problem, branch))
    if overlaps is not None:
        check_start(problem, overlaps, informed)
    return overlaps


def _from_start(
    system: System,
    alpha: float,
    branch: str,
    tilts: Sequence[float],
    sizes: tuple[int, int],
    start: Overlaps | None,
    settings: SolverSettings,
    line: ProgressLine,
) -> list[OneRsbPoint]:
    """The solutions of one branch; see `one_rsb`."""
    beginning, share = start, _APART
    if beginning is None:
        beginning, share = _without_breaking(system.problem, alpha, branch, settings, line.callback)
    begun = apart_by(beginning, system.spectrum.rho, share)
    try:
        return _solved(system, alpha, tilts, system.sector_of(beginning), sizes, begun, settings, line)
    except SolverError:
        raise
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise SolverError(f"the 1RSB equations cannot be solved from this start: {error}{_REMEDY}.") from error


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
    for done, tilt in enumerate(tilts, int(line.done)):
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
