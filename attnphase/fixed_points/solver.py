"""One problem, one sample complexity, one branch: a fixed point with everything measured at it.

A solve starts on few nodes, where maps are cheap, and ends on as many as the requested standard error needs:

1. find the fixed point on a coarse rule (damped steps, then Anderson) and its Jacobian by differences;
2. on each finer rule, Newton's method with that Jacobian, kept up to date by Broyden's formula;
3. search every node's local problem again from all starts; go on if a lower minimum turned up;
4. measure, and propagate the replicates' scatter through ``(I - J)^-1`` to every reported quantity.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError, SolverError
from attnphase.fixed_points.iteration import METHODS, Anderson, Damped, FixedPoint, Method, Newton, Status, iterate
from attnphase.fixed_points.settings import BRANCHES, SolverSettings, sample_complexity
from attnphase.integration.ladder import Refinement, check_affordable
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import Kernels, kernels_for, tell_if_compiling
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, progress_line, silent, within
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import Response, StateEvolution, flatten, response_at, restore, standard_errors
from attnphase.state_evolution.overlaps import Overlaps, Sector
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.starts import branches_of, informed_signal, initial_overlaps
from attnphase.state_evolution.symmetries import is_sign_symmetric, problem_symmetries

if TYPE_CHECKING:
    import torch
    import xarray as xr

__all__ = ["BranchPoint", "Restart", "check_start", "probe", "solve", "solve_point"]

SMALL_SIGNAL = 0.25  # share of the start's order parameter below which a shrinking one is taken to vanish
FEW_MAPS = 9  # maps within which Newton's method ends if its Jacobian is good


def _device(backend: str) -> torch.device:
    """The device of a torch backend; imports torch."""
    from attnphase.kernels.device import device_of

    return device_of("cpu" if backend == "torch" else backend)


@lru_cache(maxsize=32)
def _torch_kernels(problem: Problem, backend: str, threads: int) -> Kernels:
    """Kernels whose local problems torch solves; always the same object, by which others are cached."""
    from attnphase.kernels.torch_minimiser import node_minimiser

    return replace(kernels_for(problem), minimise=node_minimiser(problem, _device(backend), threads))


def _kernels(problem: Problem, settings: SolverSettings, tell: Tell = silent) -> Kernels:
    tell_if_compiling(problem, tell)
    if settings.backend == "numba":
        return kernels_for(problem)
    return _torch_kernels(problem, settings.backend, settings.threads or os.cpu_count() or 1)


@dataclass(frozen=True, eq=False)
class Restart:
    """What the next point of a line can start from.

    Attributes
    ----------
    overlaps : Overlaps
    response : Response or None
        Derivatives of the map, for Newton's method and the errors.
    rule : Rule or None
        The rule that `minima` belong to.
    minima : Minima or None
        Local minima of the rule's nodes; they take memory, so `branches.follow` drops them when it is past a point.
    """

    overlaps: Overlaps
    response: Response | None = None
    rule: Rule | None = None
    minima: Minima | None = None


@dataclass(frozen=True, eq=False)
class BranchPoint:
    """A solved point of a branch.

    Attributes
    ----------
    problem : Problem
    alpha : float
    branch : str
    values, errors : dict of str to array or float
        Every variable of the dataset schema and its standard error.
    status : Status
    residual : float
        Undamped and relative.
    iterations : int
        Maps, all rules together.
    rule : str
    nodes : int
        Distinct nodes of the last rule.
    restart : Restart
    """

    problem: Problem
    alpha: float
    branch: str
    values: dict[str, Any]
    errors: dict[str, Any]
    status: Status
    residual: float
    iterations: int
    rule: str
    nodes: int
    restart: Restart = field(repr=False)


@dataclass
class _Run:
    """State of one solve: maps used so far and where it stands."""

    problem: Problem
    alpha: float
    settings: SolverSettings
    kernels: Kernels
    spectrum: Spectrum
    sector: Sector
    tell: Tell = silent
    maps: int = 0

    @property
    def threads(self) -> int:
        """Parts that share the nodes of a pass; torch wants them all and has threads of its own."""
        return (self.settings.threads or os.cpu_count() or 1) if self.settings.backend == "numba" else 1

    def map(self, rule: Rule) -> StateEvolution:
        channel = Channel(self.problem, self.kernels, self.spectrum, rule, self.threads)
        return StateEvolution(channel, self.alpha, self.sector)

    def iterate(self, map_: StateEvolution, x: Array, method: Method, limit: int | None = None) -> FixedPoint:
        left = max(self.settings.max_maps - self.maps, 1)
        budget = left if limit is None else min(limit, left)
        nodes = map_.channel.rule.size

        def report(maps: int, residual: float) -> None:
            self.tell(f"{self.maps + maps} maps, residual {residual:.0e}, {nodes} nodes")

        tolerance = self.settings.tolerance
        found = iterate(map_, x, map_.scales, method, tolerance=tolerance, max_maps=budget, report=report)
        self.maps += found.maps
        return found

    def verified(self, map_: StateEvolution, found: FixedPoint, again: Callable[[Array], FixedPoint]) -> FixedPoint:
        """Search all local problems afresh, and go on iterating as long as that changes the map."""
        for _ in range(6):
            if found.status is not Status.converged or map_.channel.rule.name == "published":
                break
            if map_.spot_check(found.point):
                break
            self.tell("searching all minima again")
            image = map_(found.point, refresh=True)
            self.maps += 1
            if image is None:
                return replace(found, status=Status.left_domain)
            residual = float(np.max(np.abs(image - found.point) / map_.scales(found.point)))
            if residual <= self.settings.tolerance:
                return replace(found, image=image, residual=residual)
            found = again(found.point)
        return found

    def coarse(self, map_: StateEvolution, x: Array) -> FixedPoint:
        """Into the basin by damped steps, then Anderson; damped steps again where Anderson fails."""
        map_.lift = True
        # the positional point has an eigenvalue of the map near -1.5 alpha: steps must shrink with alpha
        slowdown = max(1.0, self.alpha / 2)
        first = self.iterate(map_, x, Damped(1 - 0.2 / slowdown), min(round(15 * slowdown), 120))
        map_.lift = False
        found = self.iterate(map_, first.point, Anderson(), 40)
        if found.status is Status.converged:
            return found
        # near a transition a few nodes decide: no use in converging them on this rule
        slow = self.iterate(map_, first.point, Damped(0.9), 20)
        return slow if slow.residual < found.residual else found

    def newton(self, map_: StateEvolution, x: Array, jacobian: Array) -> FixedPoint:
        """Newton from a good start; Anderson where that fails."""
        found = self.iterate(map_, x, Newton(jacobian.copy()), 15)
        if found.status is Status.converged:
            return found
        retry = self.iterate(map_, x, Anderson(), 50)
        return retry if retry.residual < found.residual else found


def solve_point(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    start: Overlaps | BranchPoint | None = None,
    settings: SolverSettings | None = None,
    tell: Tell = silent,
) -> BranchPoint:
    """Solve one branch at one sample complexity.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity n/d, positive.
    branch : {"semantic", "positional", "uninformed", "mixed"}
        Names the result and, without `start`, chooses the starting point.
    start : Overlaps or BranchPoint, optional
        Where to start from; a neighbouring point of the branch also lends its Jacobian.
    settings : SolverSettings, optional
    tell : callable, optional
        Is told how far the iteration is.

    Returns
    -------
    BranchPoint
        Also if the iteration did not converge: look at its status.

    Raises
    ------
    ProblemError
        A value is out of range; the message names it.
    SolverError
        The numbers are too extreme for double precision.
    """
    arguments.instance("problem", problem, Problem)
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, BRANCHES)
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    informed = initial_overlaps(problem, branch)
    check_start(problem, start, informed)
    check_affordable(problem)
    tell = within(f"{branch}, alpha = {alpha:g}", tell)
    try:
        # what overflows leaves the domain, which the status says
        with np.errstate(all="ignore"):
            return _solve_point(problem, alpha, branch, start, settings, informed, tell)
    except SolverError:
        raise
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise SolverError(
            f"the {branch} branch at alpha = {alpha:g} cannot be evaluated in double precision: "
            "bring tokens.sigma, regularizer.strength, teacher.mixing and alpha closer to one."
        ) from error


def check_start(problem: Problem, start: object, like: Overlaps) -> None:
    """Refuse a starting point that is none, or not one of this problem; `like` has the shapes.

    Raises
    ------
    ProblemError
        Naming ``start``.
    """
    if start is None:
        return
    if not isinstance(start, (Overlaps, BranchPoint)):
        raise ProblemError("start", f"start must be Overlaps or a BranchPoint, not {arguments.shown(start)}.")
    overlaps = start.restart.overlaps if isinstance(start, BranchPoint) else start
    for name in ("q", "V", "m", "theta"):
        shape, needed = np.shape(getattr(overlaps, name)), getattr(like, name).shape
        if shape != needed:
            raise ProblemError("start", f"start.{name} has shape {shape}, but this problem needs {needed}.")
    if not overlaps.feasible(Spectrum.of(problem).rho):
        raise ProblemError(
            "start",
            "start needs a positive definite V and a positive semidefinite joint covariance (q, theta; theta^T, rho).",
        )


def _solve_point(
    problem: Problem,
    alpha: float,
    branch: str,
    start: Overlaps | BranchPoint | None,
    settings: SolverSettings,
    informed: Overlaps,
    tell: Tell,
) -> BranchPoint:
    kernels, spectrum = _kernels(problem, settings, tell), Spectrum.of(problem)
    previous = start.restart if isinstance(start, BranchPoint) else None
    beginning = previous.overlaps if previous else start if isinstance(start, Overlaps) else informed
    # a neighbour counts as informed even where its order parameter is small, unless it is exactly uninformed
    exact = isinstance(start, Overlaps) or (previous is not None and not (beginning.m.any() or beginning.theta.any()))
    symmetric_point = beginning if exact else informed
    sector = sector_of(symmetric_point, problem, kernels, spectrum)
    run = _Run(problem, alpha, settings, kernels, spectrum, sector, tell)
    rules = Refinement(problem, kernels, spectrum, settings.max_nodes)

    refine = settings.method == "newton" and problem.integration.rule != "published"
    # a neighbour's derivatives serve again unless Newton's method has trouble with them
    response = previous.response if previous and refine else None
    if response is not None and len(response.jacobian) != sector.basis.shape[1]:
        response = None
    rule = rules.single() if not refine else rules.first() if response is None else rules.medium()
    jacobian = response.jacobian if response else None
    method = METHODS["anderson" if settings.method == "newton" else settings.method]
    point, second_minima = beginning, 0.0
    while True:
        map_ = run.map(rule)
        if previous is not None and previous.rule is rule:
            map_.adopt(previous.minima)
        x = map_.pack(point)
        if not refine:
            found = run.iterate(map_, x, method())
        elif jacobian is None:
            found = run.coarse(map_, x)
        else:
            found = run.newton(map_, x, jacobian)
            if found.maps > FEW_MAPS and response is not None and response.order <= rule.order:
                response = None
        # a point that was left behind outside the domain is measured on the lifted map; its status says so
        map_.lift = found.status is Status.left_domain
        map_.at = None if map_.lift else map_.at
        final = not rule.randomised or rule.order >= rules.medium().order  # not just a first look on few nodes
        if final and _decays(map_, found, informed, branch):
            zeroed = map_.unpack(found.point)
            zeroed = replace(zeroed, m=0 * zeroed.m, theta=0 * zeroed.theta)
            left = replace(settings, max_maps=max(settings.max_maps - run.maps, 50))
            end = _solve_point(problem, alpha, branch, zeroed, left, informed, tell)
            return replace(end, iterations=end.iterations + run.maps)
        if response is None or response.order < rules.medium().order:
            tell("derivatives of the map")
            response = response_at(map_, found.point, rules.medium())
        tell(f"measuring on {rule.size} nodes")
        measured = _measured(run, rules, map_, found, response)
        # never back to a Gauss-Hermite rule once a rule has seen the minimiser jump
        second_minima = max(second_minima, float(map_.second_minimum_share(np.inf).mean()))
        finer = rules.next(rule, measured.relative_error, second_minima) if refine else None
        failed = found.status is Status.left_domain or (final and found.status is not Status.converged)
        if finer is None or failed:
            break
        rule, point, jacobian = finer, map_.unpack(found.point), response.jacobian
    newton = response.jacobian if refine else None

    def again(x: Array) -> FixedPoint:
        return run.iterate(map_, x, method()) if newton is None else run.newton(map_, x, newton)

    checked = run.verified(map_, found, again)
    if checked is not found:
        found, measured = checked, _measured(run, rules, map_, checked, response)
    return _branch_point(run, branch, map_, found, measured, response)


def sector_of(start: Overlaps, problem: Problem, kernels: Kernels, spectrum: Spectrum) -> Sector:
    """The sector of a starting point under the problem's symmetries."""
    even = Prior.of(problem, kernels, spectrum).even
    return Sector.of(start, problem_symmetries(problem, kernels, spectrum, even=even))


def _decays(map_: StateEvolution, found: FixedPoint, informed: Overlaps, branch: str) -> bool:
    """Whether an iteration that did not converge is on its slow way to the uninformed point.

    Near a spinodal the order parameter shrinks by a few per cent a map. Where it is small already and its image is
    smaller still, the branch has no fixed point of its own here.
    """
    if found.status is Status.converged or branch == "uninformed" or not is_sign_symmetric(map_.kernels):
        return False
    small = informed_signal(map_.unpack(found.point), branch)
    if not 0 < small < SMALL_SIGNAL * informed_signal(informed, branch):
        return False
    return informed_signal(map_.unpack(found.image), branch) < small


def probe(problem: Problem, alpha: float, branch: str, settings: SolverSettings) -> Overlaps | None:
    """A cheap look whether the branch exists: where its informed start leads on the coarse rule, None if nowhere."""
    informed = initial_overlaps(problem, branch)
    kernels, spectrum = _kernels(problem, settings), Spectrum.of(problem)
    rough = replace(settings, tolerance=1e-3, max_maps=75)
    run = _Run(problem, alpha, rough, kernels, spectrum, sector_of(informed, problem, kernels, spectrum))
    map_ = run.map(Refinement(problem, kernels, spectrum, settings.max_nodes).first())
    found = run.coarse(map_, map_.pack(informed))
    overlaps = map_.unpack(found.point)
    present = informed_signal(overlaps, branch) > SMALL_SIGNAL * informed_signal(informed, branch)
    return overlaps if found.status is Status.converged and present else None


@dataclass(frozen=True, eq=False)
class _Measured:
    """Everything measured at a fixed point under one rule, with its errors."""

    values: dict[str, Any]
    errors: dict[str, Any]
    relative_error: float


def _measured(run: _Run, rules: Refinement, map_: StateEvolution, found: FixedPoint, response: Response) -> _Measured:
    """Measure at the point found."""
    measured = map_.measure(found.point)
    if measured is None and found.status is not Status.converged:
        # at the edge of the domain a descent that ends elsewhere is enough to leave it
        map_.lift = True
        measured = map_.measure(found.point)
    if measured is None:
        raise ArithmeticError("the starting point lies outside the domain of the state-evolution map")
    gauge = rules.gauge(map_.channel.rule, float(map_.second_minimum_share(np.inf).mean()))
    errors = standard_errors(map_, measured, response, None if gauge is None else run.map(gauge), found.point)
    overlaps = map_.unpack(found.point)
    pooled = map_.quantities(found.point, pooled=True)
    assert pooled is not None
    values = restore(flatten(pooled)[0], pooled)
    values |= {"q": overlaps.q, "V": overlaps.V, "m": overlaps.m[..., 0], "theta": overlaps.theta}
    floor = 1e-6 * np.trace(run.spectrum.rho, axis1=-2, axis2=-1).mean()
    relative = float(np.abs(errors["q"]).max() / max(np.abs(overlaps.q).max(), floor))
    return _Measured(values, errors, relative)


def _branch_point(
    run: _Run, branch: str, map_: StateEvolution, found: FixedPoint, result: _Measured, response: Response
) -> BranchPoint:
    values, errors = dict(result.values), dict(result.errors)
    direct = values.pop("training_loss_direct")
    errors.pop("training_loss_direct")
    values["free_energy_gap"] = abs(direct - map_.free_entropy(found.point))
    values["linear_test_error"], errors["linear_test_error"] = linear_test_error(run.problem)
    values["unsolved_nodes"] = map_.unsolved
    # where a local problem has no minimum, V lies outside the domain, wherever the iteration ended
    status = Status.left_domain if map_.bottomless else found.status
    rule = map_.channel.rule
    return BranchPoint(
        problem=run.problem,
        alpha=run.alpha,
        branch=branch,
        values=values,
        errors=errors,
        status=status,
        residual=found.residual,
        iterations=run.maps,
        rule=rule.name,
        nodes=rule.size,
        restart=Restart(map_.unpack(found.point), response, rule, map_.minima),
    )


def solve(
    problem: Problem,
    alpha: float,
    branch: str = "semantic",
    *,
    start: Overlaps | BranchPoint | None = None,
    method: str = "newton",
    tolerance: float = 1e-7,
    max_maps: int = 400,
    max_nodes: int = 2**18,
    threads: int | None = None,
    backend: str = "numba",
    progress: bool = False,
) -> xr.Dataset:
    """Solve a problem at one sample complexity; see `solve_point` and `SolverSettings` for the arguments.

    ``branch="all"`` solves every branch the problem has. With ``progress`` a solve that takes longer than a second says
    on standard error how far it is.

    Returns
    -------
    xarray.Dataset
        As documented in ``docs/schema.md``.

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    SolverError
        The numbers are too extreme for double precision.
    """
    from attnphase.data.build import from_points

    arguments.instance("problem", problem, Problem)
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, (*BRANCHES, "all"))
    settings = SolverSettings(method, tolerance, max_maps, max_nodes, threads, backend)
    names = branches_of(problem) if branch == "all" else [branch]
    with progress_line(progress, "solving") as line:
        points = [solve_point(problem, alpha, name, start=start, settings=settings, tell=line.tell) for name in names]
    return from_points(points, {"branch": names} if branch == "all" else {})
