"""The dynamics of the weights as datasets."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.errors import NotFoundError, ProblemError
from attnphase.files.checkpoints import BASINS
from attnphase.fixed_points.settings import omegas
from attnphase.problem.problem import Problem
from attnphase.processes.progress import ProgressLine, progress_line, within
from attnphase.state_evolution.sizes import Sizes
from attnphase.sweeps.kept import checkpoint_for_us
from attnphase.theories.sgd_flow.settings import FlowSettings

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.theories.sgd_flow.planes import Arrival, Memory
    from attnphase.theories.sgd_flow.trajectory import Trajectory

__all__ = [
    "angles_of",
    "basins",
    "flow",
    "noise_of",
    "random_starts",
    "scales_of",
    "starts_count",
    "starts_of",
    "stationary",
]


def starts_of(start: Any) -> tuple[Sizes, ...]:
    """One or several starts.

    Raises
    ------
    ProblemError
        One is none, or is given twice.
    """
    several = not isinstance(start, str | Sizes | Mapping)
    values = [Sizes.of(one) for one in (arguments.items("start", start) if several else (start,))]
    arguments.words("start", [one.text for one in values], [one.text for one in values])
    return tuple(values)


def flow(
    problem: Problem,
    start: str | Sizes | Mapping[str, float] | Sequence[Any] = "semantic",
    learning_rate: float = 0.0,
    until: float = 100.0,
    *,
    batch: int = 1,
    records: int = 101,
    tolerance: float = 1e-6,
    progress: bool = False,
) -> xr.Dataset:
    """Follow the weights under one-pass SGD or gradient flow, in the limit of high dimension.

    Equations (R1)-(R5), (Q4)-(Q6), (F1)-(F6) of the dynamics page.

    A step takes `batch` fresh samples: ``W <- W - eta (gradient of their mean loss) d / sqrt(d) - eta lambda W / d``,
    with the strength lambda of the problem's ridge as weight decay; docs/sgd_flow.md has the equations.

    Parameters
    ----------
    problem : Problem
        With a ridge as regulariser.
    start : str, Sizes, mapping, or several of them
        Sizes of the weights' parts along the teacher and the encodings, and of their noise, as
        ``"semantic=0.3,positional=0.3,noise=0.6"``; "semantic" is the teacher itself.
    learning_rate : float
        eta; 0, the default, is gradient flow on the population risk, with ``eta tau`` as its time.
    until : float
        Time at the end: steps over d, of gradient flow ``eta tau``.
    batch : int
        Fresh samples of a step.
    records : int
        Times from 0 to `until` in the result.
    tolerance : float
        Relative, of the integration in time.
    progress : bool
        Show on standard error what is being done.

    Returns
    -------
    xarray.Dataset
        Kind ``flow``, over ``time``; with several starts over ``start`` too.

    Raises
    ------
    ProblemError
        An argument is wrong, or the problem has no such dynamics; the message names it.
    SolverError
        The integration in time failed.
    """
    settings = FlowSettings(learning_rate, batch, until, records, tolerance)
    starts = starts_of(start)
    arguments.instance("problem", problem, Problem)
    arguments.flag("progress", progress)
    settings.check(problem)
    from attnphase.theories.sgd_flow.dataset import from_trajectories
    from attnphase.theories.sgd_flow.trajectory import follow_flow

    found: list[Trajectory] = []
    with progress_line(progress, "following", len(starts), before=_BEFORE) as line:

        def advance(share: float) -> None:
            line.reach(max(line.done, len(found) + share))  # a step may be tried again, and a shorter one

        for one in starts:
            found.append(follow_flow(problem, one, settings, within(one.text, line.callback), advance))
    return from_trajectories(found, single=isinstance(start, str | Sizes | Mapping))


_BEFORE = "where the steps in time grow, or the weights come to rest"  # what makes a flow take less than it began with
_MOST_STARTS, _LARGEST_SIZE = 1000, 1e3


def starts_count(starts: Any) -> int:
    """A number of random starts.

    Raises
    ------
    ProblemError
        It is no whole number from 0 to 1000.
    """
    return arguments.whole("starts", starts, 0, _MOST_STARTS)


def random_starts(count: int, seed: int) -> tuple[Sizes, ...]:
    """Along the teacher, along the encodings and noise alone, and random mixtures of these."""
    import numpy as np

    random = np.random.default_rng(seed)
    known = (Sizes(semantic=0.7, noise=0.1), Sizes(positional=0.3, noise=0.1), Sizes(noise=0.1), Sizes(noise=0.7))
    return known + tuple(
        Sizes(random.uniform(0, 1), random.uniform(0, 1), random.uniform(0, 0.7)) for _ in range(count)
    )


def stationary(
    problem: Problem,
    learning_rate: float = 0.0,
    *,
    batch: int = 1,
    starts: int = 12,
    seed: int = 0,
    progress: bool = False,
) -> xr.Dataset:
    """All stationary points of the dynamics that can be found, stable or not, by rising population risk.

    Equations (R1)-(R5), (Q4)-(Q6), (F1)-(F6) of the dynamics page.

    Parameters
    ----------
    problem : Problem
        With a ridge as regulariser.
    learning_rate, batch : float, int
        As in `flow`.
    starts : int
        Random ones, besides those along the teacher and along the encodings.
    seed : int
        From which they follow.
    progress : bool
        Show on standard error what is being done.

    Returns
    -------
    xarray.Dataset
        Kind ``stationary``, over ``solution``.  Points that differ by an exact symmetry of the problem are one.

    Raises
    ------
    ProblemError
        An argument is wrong, or the problem has no such dynamics; the message names it.
    NotFoundError
        No point was found.
    """
    settings = FlowSettings(learning_rate, batch)
    starts = starts_count(starts)
    seed = arguments.whole("seed", seed, 0)
    arguments.instance("problem", problem, Problem)
    arguments.flag("progress", progress)
    settings.check(problem)
    from attnphase.state_evolution.starts import has_directions
    from attnphase.theories.sgd_flow.dataset import from_stationary
    from attnphase.theories.sgd_flow.roots import stationary_points

    encoded = has_directions(problem)
    sizes = [one if encoded else Sizes(one.semantic, 0.0, one.noise) for one in random_starts(starts, seed)]
    with progress_line(progress, "searching", len(sizes), unit="starts") as line:
        found = stationary_points(problem, settings, sizes, line.callback, line.reach)
    if not found:
        rate = f"learning_rate = {settings.learning_rate:g}" if learning_rate else "gradient flow"
        cure = "lower the learning rate, or give" if learning_rate else "give"
        raise NotFoundError(f"no stationary point was found for {rate} from {len(sizes)} starts: {cure} more starts.")
    return from_stationary(found, problem, settings)


def scales_of(scale: Any) -> tuple[float, ...]:
    """Sizes of starts.

    Raises
    ------
    ProblemError
        One is not positive, or is given twice.
    """
    span = f"a positive number up to {_LARGEST_SIZE:g}, or a list of them"
    return arguments.numbers("scale", scale, lambda x: 0 < x <= _LARGEST_SIZE, span)


def angles_of(angle: Any) -> tuple[float, ...]:
    """Directions of starts.

    Raises
    ------
    ProblemError
        One is not from 0 to 90, they are not in order, or one is given twice.
    """
    angles = arguments.numbers("angle", angle, lambda x: 0 <= x <= 90, "a number from 0 to 90, or a list of them")
    if list(angles) != sorted(angles):
        raise ProblemError("angle", "angle must be in increasing order, from 0 to 90 degrees.")
    return angles


def noise_of(noise: Any) -> float:
    """Standard deviation of a start's entries.

    Raises
    ------
    ProblemError
        It is no number from 0 to 1000.
    """
    span = f"a standard deviation, a number from 0 to {_LARGEST_SIZE:g}"
    return arguments.number("noise", noise, lambda x: 0 <= x <= _LARGEST_SIZE, span)


def _counted(ends: Memory, line: ProgressLine, angles: int) -> Memory:
    """The ends of a plane's starts, counted as parts of the plane: one for every angle, as many for the boundary."""
    begun = line.done

    def remembered(rule: str, angle: float, follow: Callable[[], Arrival]) -> Arrival:
        found = ends(rule, angle, follow)
        line.reach(min(line.done + 0.5 / angles, begun + 1))
        return found

    return remembered


def basins(
    problem: Problem,
    omega: float | Sequence[float] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    scale: float | Sequence[float] = (0.1, 0.2, 0.4, 0.8),
    angle: float | Sequence[float] = (0.0, 22.5, 45.0, 67.5, 90.0),
    *,
    noise: float = 0.0,
    learning_rate: float = 0.0,
    batch: int = 1,
    until: float = 20_000.0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """Which stationary point starts ``scale (cos(angle) a + sin(angle) Q_star) + noise z`` lead to.

    Parameters
    ----------
    problem : Problem
        With encodings, and a ridge as regulariser.
    omega : float or sequence of float
        Weights of the teacher's positional part.
    scale : float or sequence of float
        Sizes of the start's part in the plane of the encodings' direction a and the teacher.  A random start at
        dimension d with entries of standard deviation `noise` has one of about ``noise / sqrt(d)``.
    angle : float or sequence of float
        In degrees, increasing.  Between neighbours with different ends the boundary is bisected.
    noise : float
        Standard deviation of the entries' independent part.
    learning_rate, batch, until : float, int, float
        As in `flow`; what is not at rest at the end is ``under_way``.
    checkpoint : path-like, optional
        File in which every end is kept that was found; one that is there is gone on from, with the numbers that an
        uninterrupted call has.
    progress : bool
        Show on standard error how far it is.

    Returns
    -------
    xarray.Dataset
        Kind ``basins``, over ``omega``, ``scale`` and ``angle``.

    Raises
    ------
    ProblemError
        An argument is wrong, or the problem has no such dynamics; the message names it.
    DatasetError
        The checkpoint is that of other basins, in use by another process, damaged, or cannot be written.
    SolverError
        The integration in time failed.
    """
    # looser than a trajectory: where it ends matters, and not where it is at every time
    settings = FlowSettings(learning_rate, batch, until, tolerance=1e-5, at_rest=1e-5)
    wanted, scales, angles, noise = omegas("omega", omega), scales_of(scale), angles_of(angle), noise_of(noise)
    arguments.instance("problem", problem, Problem)
    arguments.flag("progress", progress)
    settings.check(problem)
    place = None if checkpoint is None else BASINS.check(checkpoint)
    from attnphase.theories.sgd_flow.arrivals import KeptArrivals
    from attnphase.theories.sgd_flow.dataset import from_planes
    from attnphase.theories.sgd_flow.planes import Plane, follow_plane

    planes: dict[tuple[float, float], Plane] = {}
    count = len(wanted) * len(scales)
    with checkpoint_for_us(place, BASINS), progress_line(progress, "following", count, unit="planes") as line:
        kept = KeptArrivals.of(place, problem, settings, noise, product(wanted, scales))
        for value in wanted:
            at = problem.with_fields({"teacher.omega": value})
            for size in scales:
                told = within(f"omega = {value:g}, scale = {size:g}", line.callback)
                start, ends = Sizes(semantic=size, noise=noise), _counted(kept.plane(value, size), line, len(angles))
                planes[value, size] = found = follow_plane(at, settings, start, angles, ends, told)
                if found.without:
                    sentence = f"omega = {value:g}, scale = {size:g}: there is no boundary, as {found.without}."
                    warnings.warn(sentence, stacklevel=2)
                line.reach(len(planes))
    return from_planes(planes, angles, problem, settings, noise)
