"""One-step replica-symmetry breaking solved: at a given y, or where F(y) is stationary, with standard errors.

Replicates, and half of the inner points against all of them, displace the solution by what is left of the equations
under them; ``ln y`` is one coordinate more where ``dF/dy = 0`` is one equation more, of y in a unit of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import SolverError
from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.units import power_of_two
from attnphase.processes.progress import Callback, silent
from attnphase.solvers.differences import finite_difference_jacobian
from attnphase.solvers.iteration import Anderson, Damped, FixedPoint, Method, Newton, Status, iterate
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.theories.one_rsb.map import OneRsbMap, OneRsbOverlaps

__all__ = ["OneRsbPoint", "OneRsbSolver", "apart_by"]

_ROUNDS = 6  # of iteration between searches of all minima
_ROUGH, _FEW = 3e-2, 40  # residual to which damped steps lead, and how many they may be
_FACTOR, _STEPS = 1.35, 9  # of y, and how many, on the way to the maximum of F
_UNRESOLVED = 3  # steps in a row on which half of the inner points give another slope by more than its size
_TOGETHER = 1e-3  # share of q_1 below which groups have merged
_MEASURED = ("free_entropy", "energy", "complexity", "test_error")


@dataclass(frozen=True, eq=False)
class OneRsbPoint:
    """A solution at one y.

    Attributes
    ----------
    values, errors : dict of str to array or float
        By the names of the dataset.
    status : Status
    residual : float
    iterations : int
        Maps.
    nodes, unsolved_nodes : int
    overlaps : OneRsbOverlaps
        What a neighbour can start from.
    """

    values: dict[str, Any]
    errors: dict[str, Any]
    status: Status
    residual: float
    iterations: int
    nodes: int
    unsolved_nodes: int
    overlaps: OneRsbOverlaps

    def without_solution(self, y: float, maps: int) -> OneRsbPoint:
        """A place of the same shapes at which nothing was found with so many maps: NaN, outside the domain."""
        values, errors = (
            {name: np.nan * np.asarray(one) for name, one in some.items()} for some in (self.values, self.errors)
        )
        values |= {"y": y}
        status = Status.left_domain
        return replace(self, values=values, errors=errors, status=status, residual=np.nan, iterations=maps)


def apart_by(overlaps: Overlaps, rho: Array, share: float) -> OneRsbOverlaps:
    """Overlaps whose groups do not have so much in common of what does not follow from the teacher."""
    free = overlaps.q - overlaps.theta @ np.linalg.solve(rho, overlaps.theta.mT)
    return OneRsbOverlaps(overlaps.q - share * free, overlaps.q, overlaps.V, overlaps.m, overlaps.theta)


@dataclass
class OneRsbSolver:
    """State of one solve.

    Attributes
    ----------
    map_ : OneRsbMap
        Its y is that of the last point.
    settings : SolverSettings
    callback : callable
        Is called with how far it is.
    maps : int
        Evaluations since the last point.
    """

    map_: OneRsbMap
    settings: SolverSettings
    callback: Callback = silent
    maps: int = 0

    # ------------------------------------------------------------------------------------------------ at one y

    def _iterate(self, x: Array, method: Method, tolerance: float, limit: int) -> FixedPoint:
        left = max(min(self.settings.max_maps - self.maps, limit), 1)

        def report(maps: int, residual: float) -> None:
            done = self.maps + maps
            self.callback(f"y = {self.map_.y:.4g}: {done} maps, residual {residual:.0e}", done, self.settings.max_maps)

        scales: Callable[[Array], Array] = self.map_.scales
        found = iterate(self.map_, x, scales, method, tolerance=tolerance, max_maps=left, report=report)
        self.maps += found.maps
        return found

    def settled(self, x: Array, *, fresh: bool = True) -> FixedPoint:
        """The fixed point at the map's y, all of whose local minima have been searched again.

        Parameters
        ----------
        fresh : bool
            Whether ``x`` is far from it.
        """
        map_, tolerance = self.map_, self.settings.tolerance
        map_.thorough = False
        if fresh:
            map_.lift = True
            x = self._iterate(x, Damped(0.7), _ROUGH, _FEW).point
            map_.lift = False
        self._aim(x)
        found = self._iterate(x, Damped(0.7), _ROUGH, 2 * _FEW)
        for number in range(_ROUNDS):
            if found.status is Status.left_domain:
                return found
            found = self._iterate(found.point, Anderson(), tolerance, 2 * _FEW)
            if number == 0:
                # once where the weights are; from here on the nodes stay as they are
                self._aim(found.point)
                continue
            checked = self._checked(found)
            if checked.status is not Status.iteration_limit or self.maps >= self.settings.max_maps:
                return checked
            # what a warm pass does not see it would keep from round to round
            found, map_.thorough = checked, True
        return found

    def _aim(self, x: Array) -> None:
        """Draw inner points from where their weights lie at a point."""
        self.maps += 1
        if self.map_(x) is not None:
            self.map_.propose()
            self.map_.minima = None

    def _checked(self, found: FixedPoint) -> FixedPoint:
        """A point after a search of all its minima: converged only if that changes nothing."""
        if found.status is not Status.converged:
            return found
        self.callback(f"y = {self.map_.y:.4g}: searching all minima again")
        self.maps += 1
        image = self.map_(found.point, refresh=True)
        if image is None:
            return replace(found, status=Status.left_domain)
        residual = float(np.max(np.abs(image - found.point) / self.map_.scales(found.point)))
        status = Status.converged if residual <= self.settings.tolerance else Status.iteration_limit
        return replace(found, image=image, residual=residual, status=status)

    # ---------------------------------------------------------------------------------- where F is stationary

    def stationary(self, x: Array) -> FixedPoint:
        """The point at which dF/dy = 0 too; the map's y is then that of it.

        Raises
        ------
        SolverError
            F has no maximum over y within reach, the inner points do not resolve it, or the groups merge.
        """
        map_, first = self.map_, self.map_.y
        found, slope = self._sloped(x, fresh=True)
        unresolved = 0
        for _ in range(_STEPS):
            # too few inner points miss where the weights are, and F grows with y for ever
            lost = slope > 0 and map_.slope(halved=True).mean() > 2 * map_.slope().mean()
            unresolved = unresolved + 1 if lost else 0
            if unresolved == _UNRESOLVED:
                raise SolverError(
                    f"the inner points do not resolve dF/dy at y = {map_.y:.4g}: give more of them, or y."
                )
            before = map_.y, found.point, slope
            map_.y *= _FACTOR if slope > 0 else 1 / _FACTOR
            found, slope = self._sloped(found.point, fresh=False)
            if slope * before[2] <= 0:
                return self._between(before, (map_.y, found.point, slope))
        raise SolverError(
            f"F(y) has no maximum between y = {min(first, map_.y):.4g} and {max(first, map_.y):.4g}: give y."
        )

    def _sloped(self, x: Array, *, fresh: bool) -> tuple[FixedPoint, float]:
        found = self.settled(x, fresh=fresh)
        merged = self.merged(found.point)
        if found.status is Status.left_domain and not merged:
            raise SolverError(f"the 1RSB equations have no solution here at y = {self.map_.y:.4g}: give y.")
        if merged:
            raise SolverError(
                f"at y = {self.map_.y:.4g} the groups merge into the replica-symmetric solution, where F does not "
                "depend on y: there is nothing to break here, or start elsewhere."
            )
        return found, self.map_.y**2 * float(self.map_.slope().mean())

    def merged(self, x: Array) -> bool:
        """Whether replicas of different groups are as close as those of one."""
        overlaps = self.map_.unpack(x)
        gap, whole = (np.trace(q, axis1=-2, axis2=-1).sum() for q in (overlaps.q_1 - overlaps.q_0, overlaps.q_1))
        return bool(gap < _TOGETHER * whole)

    def _between(self, before: tuple[float, Array, float], after: tuple[float, Array, float]) -> FixedPoint:
        """Newton's method in the point and ln y, from a secant between two y with slopes of different signs."""
        map_, share = self.map_, before[2] / (before[2] - after[2])
        map_.y = float(before[0] * (after[0] / before[0]) ** share)
        found = self.settled((1 - share) * before[1] + share * after[1], fresh=False)
        size, unit = len(found.point), float(power_of_two(np.array(map_.y)))

        def extended(z: Array) -> Array | None:
            map_.y = unit * float(np.exp(z[size]))
            image = map_(z[:size])
            return None if image is None else np.append(image, z[size] + map_.y**2 * map_.slope().mean())

        def scales(z: Array) -> Array:
            return np.append(map_.scales(z[:size]), 1.0)

        for _ in range(_ROUNDS):
            start = np.append(found.point, np.log(map_.y / unit))
            left = max(self.settings.max_maps - self.maps, 1)
            ended = iterate(extended, start, scales, Newton(), tolerance=self.settings.tolerance, max_maps=left)
            self.maps += ended.maps
            map_.y = unit * float(np.exp(ended.point[size]))
            found = replace(ended, point=ended.point[:size], image=ended.image[:size])
            if ended.status is not Status.converged:
                map_(found.point)
                return found
            checked = self._checked(found)
            shift = map_.y**2 * abs(float(map_.slope().mean()))
            if checked.status is Status.converged and shift <= self.settings.tolerance:
                return checked
            map_.thorough = True
        return replace(found, status=Status.iteration_limit)

    # ----------------------------------------------------------------------------------------------- measures

    def point(self, found: FixedPoint, *, stationary: bool = False) -> OneRsbPoint:
        """Everything at a fixed point of the map's y, with errors; `stationary` if y was found there."""
        map_, x, y = self.map_, found.point, self.map_.y
        self.maps += 1
        image = map_(x)
        if image is None:
            raise SolverError(f"the 1RSB equations have no solution here at y = {y:.4g}: start elsewhere.")
        measured, slope = self._measured(), map_.slope()
        images = map_.images()
        rows = [images - images.mean(axis=0), slope[:, None] - slope.mean(), measured - measured.mean(axis=0)]
        half = map_.free_entropy(halved=True).mean(), map_.slope(halved=True).mean()
        energies = half[0] - measured[:, 0].mean(), half[1] - slope.mean()
        coarse = [energies[0], energies[0] + y * energies[1], y**2 * energies[1], 0.0]
        halves = [map_.images(halved=True) - image, np.array([[energies[1]]]), np.array([coarse])]
        displaced = [np.concatenate(parts) for parts in zip(rows, halves, strict=True)]
        count = len(rows[0])
        shares = np.append(np.full(count, 1 / (count * (count - 1))), 1.0)
        self.callback(f"y = {y:.4g}: derivatives of the map")
        step, change = self._displacements(x, displaced, stationary)
        map_.y = y
        map_(x)
        error = np.sqrt(shares @ step**2)
        overlaps, spread = map_.unpack(x), map_.errors(error[: len(x)])
        values = _named(overlaps) | {"y": y} | dict(zip(_MEASURED, measured.mean(axis=0).tolist(), strict=True))
        errors = _named(spread) | {"y": y * float(error[len(x)])}
        errors |= dict(zip(_MEASURED, np.sqrt(shares @ change**2).tolist(), strict=True))
        iterations, self.maps = self.maps, 0
        nodes, unsolved = map_.nodes.size, map_.unsolved
        return OneRsbPoint(values, errors, found.status, found.residual, iterations, nodes, unsolved, overlaps)

    def _measured(self) -> Array:
        """F, energy, complexity and test error of every replicate at the last point, (S, 4)."""
        map_ = self.map_
        free, slope = map_.free_entropy(), map_.slope()
        return np.stack([free, free + map_.y * slope, map_.y**2 * slope, map_.test_error()], axis=1)

    def _displacements(self, x: Array, rows: list[Array], stationary: bool) -> tuple[Array, Array]:
        """By what point, ln y and measured quantities move under each row, (rows, D + 1) and (rows, 4)."""
        map_, size, unit = self.map_, len(x), float(power_of_two(np.array(self.map_.y)))

        def everything(z: Array) -> Array | None:
            map_.y = unit * float(np.exp(z[size]))
            image = map_(z[:size])
            if image is None:
                return None
            return np.concatenate([image, [map_.slope().mean()], self._measured().mean(axis=0)])

        z, scale = np.append(x, np.log(map_.y / unit)), np.append(map_.scales(x), 1.0)
        joint = finite_difference_jacobian(everything, z, scale)
        images, slopes, measured = rows
        system, sides = np.eye(size) - joint[:size, :size], images
        if stationary:
            system = np.block([[system, -joint[:size, size:]], [joint[size : size + 1]]])
            sides = np.concatenate([images, -slopes], axis=1)
        # rows and columns in units of their own: slopes are small
        size_of_rows = np.abs(system).max(axis=1)
        step = np.linalg.lstsq(system / size_of_rows[:, None], (sides / size_of_rows).T, rcond=1e-12)[0].T
        if not stationary:
            step = np.concatenate([step, np.zeros((len(step), 1))], axis=1)
        # F is stationary in the point; in y it is so only where that was asked for
        change = measured + step @ joint[size + 1 :].T
        change[:, 0] = measured[:, 0]
        return step, change


def _named(overlaps: OneRsbOverlaps) -> dict[str, Any]:
    """Arrays by the names of the dataset."""
    return {
        "q_0": overlaps.q_0,
        "q_1": overlaps.q_1,
        "V": overlaps.V,
        "m": overlaps.m[..., 0],
        "theta": overlaps.theta,
    }
