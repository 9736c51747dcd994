"""The dynamics of the weights as datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.flow.settings import FlowSettings
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within
from attnphase.state_evolution.sizes import Sizes

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["flow", "starts_of"]


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

    A step takes `batch` fresh samples: ``W <- W - eta (gradient of their mean loss) d / sqrt(d) - eta lambda W / d``,
    with the strength lambda of the problem's ridge as weight decay; docs/flow.md has the equations.

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
    from attnphase.data.flows import from_trajectories
    from attnphase.flow.trajectory import follow_flow

    with progress_line(progress, "following") as line:
        found = [follow_flow(problem, one, settings, within(one.text, line.tell)) for one in starts]
    return from_trajectories(found, single=isinstance(start, str | Sizes | Mapping))
