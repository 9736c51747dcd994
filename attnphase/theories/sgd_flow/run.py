"""The dynamics of the weights as datasets."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.arrays import Numbers
from attnphase.errors import AttnphaseWarning, NotFoundError, ProblemError
from attnphase.files.checkpoints import BASINS
from attnphase.fixed_points.settings import omegas
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.processes.progress import ProgressLine, progress_line, within
from attnphase.state_evolution.sizes import Sizes, SizesLike
from attnphase.sweeps.kept import checkpoint_for_us
from attnphase.theories.sgd_flow.settings import FlowSettings

with loaded_on_use(__name__):
    from attnphase.data import outcomes
    from attnphase.theories.sgd_flow import text

if TYPE_CHECKING:
    import xarray as xr

    from attnphase.theories.sgd_flow.planes import Arrival, Memory
    from attnphase.theories.sgd_flow.trajectory import Trajectory

__all__ = [
    "angles_of",
    "basins",
    "noise_of",
    "random_starts",
    "scales_of",
    "sgd_flow",
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


def sgd_flow(
    problem: Problem,
    start: SizesLike | Sequence[SizesLike] = "semantic",
    learning_rate: float = 0.0,
    until: float = 100.0,
    *,
    batch: int = 1,
    records: int = 101,
    tolerance: float = 1e-6,
    progress: bool | None = None,
) -> xr.Dataset:
    """Follow the weights under one-pass SGD or gradient flow, in the limit of high dimension.

    Equations (R1)-(R5), (Q4)-(Q6), (F1)-(F6) of the dynamics page.

    A step uses `batch` fresh samples. With the strength lambda of the ridge as weight decay,
    ``W <- W - eta / batch * sum_mu sum_l (x_l + p_l) / sqrt(d) dloss/dh_l - eta lambda W / d``; see docs/sgd_flow.md.

    Parameters
    ----------
    problem : Problem
        With a ridge as regulariser.
    start : str, Sizes, mapping, or several of them
        Sizes of the parts of the weights along the teacher and the encodings, and of their noise, as in
        ``"semantic=0.3,positional=0.3,noise=0.6"``; "semantic" is the teacher itself.
    learning_rate : float
        eta; 0 is gradient flow on the population risk.
    until : float
        End of the time T = steps/d, or eta T for gradient flow.
    batch : int
        Fresh samples in each step.
    records : int
        Number of recorded times from 0 to `until`.
    tolerance : float
        Relative tolerance of the integration in time.
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Kind ``sgd_flow``: overlaps, ``population_risk``, ``test_error`` and ``status`` over ``time``, and over
        ``start`` if there are several.

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
    arguments.flag_or_none("progress", progress)
    settings.check(problem)
    from attnphase.theories.sgd_flow.dataset import from_trajectories
    from attnphase.theories.sgd_flow.trajectory import follow_flow

    found: list[Trajectory] = []
    with progress_line(progress, "following", len(starts), before=_BEFORE) as line:

        def advance(share: float) -> None:
            line.reach(max(line.done, len(found) + share))  # a step may be tried again, and a shorter one

        for one in starts:
            found.append(follow_flow(problem, one, settings, within(one.text, line.callback), advance))
    ds = from_trajectories(found, single=isinstance(start, str | Sizes | Mapping))
    return outcomes.warned(ds, text.of_flow)


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
    progress: bool | None = None,
) -> xr.Dataset:
    """Find all stationary points of the dynamics, stable or not, in order of increasing population risk.

    Equations (R1)-(R5), (Q4)-(Q6), (F1)-(F6) of the dynamics page.

    Parameters
    ----------
    problem : Problem
        With a ridge as regulariser.
    learning_rate, batch : float, int
        As in `sgd_flow`.
    starts : int
        Number of random starts, in addition to those along the teacher and the encodings.
    seed : int
        Seed of the random starts.
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Kind ``stationary``, over ``solution``.  Points that differ by an exact symmetry of the problem count once.

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
    arguments.flag_or_none("progress", progress)
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
    omega: Numbers = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
    scale: Numbers = (0.1, 0.2, 0.4, 0.8),
    angle: Numbers = (0.0, 22.5, 45.0, 67.5, 90.0),
    *,
    noise: float = 0.0,
    learning_rate: float = 0.0,
    batch: int = 1,
    until: float = 20_000.0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Find where starts ``scale (cos(angle) a + sin(angle) Q_star) + noise z`` end, and the boundaries of the basins.

    Parameters
    ----------
    problem : Problem
        With encodings, and a ridge as regulariser.
    omega : float or sequence of float
        Weights of the teacher's positional part.
    scale : float or sequence of float
        Sizes of the part of the start in the plane of the encodings' direction a (norm sqrt(d)) and the teacher.
        Random entries of standard deviation `noise` in dimension d have such a part of about ``noise / sqrt(d)``.
    angle : float or sequence of float
        Angles in degrees, increasing.  Between neighbours with different ends the boundary is bisected.
    noise : float
        Standard deviation of the independent part z of the entries.
    learning_rate, batch, until : float, int, float
        As in `sgd_flow`; starts that are not at rest at the end are ``under_way``.
    checkpoint : path-like, optional
        File that saves the end of every start; if it exists, the call continues from it, with the same numbers.
    progress : bool, optional
        Show the progress on standard error. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        Kind ``basins``: ``basin``, ``status`` and ``plateau`` over ``omega``, ``scale`` and ``angle``, and the
        boundaries over ``omega`` and ``scale``.

    Raises
    ------
    ProblemError
        An argument is wrong, or the problem has no such dynamics; the message names it.
    DatasetError
        The checkpoint belongs to another call, is in use by another process, is damaged, or cannot be written.
    SolverError
        The integration in time failed.
    """
    # looser than a trajectory: where it ends matters, and not where it is at every time
    settings = FlowSettings(learning_rate, batch, until, tolerance=1e-5, at_rest=1e-4)
    wanted, scales, angles, noise = omegas("omega", omega), scales_of(scale), angles_of(angle), noise_of(noise)
    arguments.instance("problem", problem, Problem)
    arguments.flag_or_none("progress", progress)
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
                planes[value, size] = follow_plane(at, settings, start, angles, ends, told)
                line.reach(len(planes))
    ds = from_planes(planes, angles, problem, settings, noise)
    without = [
        (AttnphaseWarning, f"omega = {value:g}, scale = {size:g}: there is no boundary, as {found.without}.")
        for (value, size), found in planes.items()
        if found.without
    ]
    return outcomes.warned(ds, lambda ds: [*without, *text.of_basins(ds)])
