"""What a learner who knows the model reaches, as a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnphase import arguments
from attnphase.bayes.setting import Setting, setting_of
from attnphase.bayes.solving import BayesPoint, Start, solve_bayes
from attnphase.bayes.thresholds import bayes_thresholds
from attnphase.data.bayes import from_bayes_points
from attnphase.fixed_points.settings import sample_complexities
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.system import System

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["optimal"]

_WHAT = "sign, absolute, linear or a formula of k"
_STARTS = tuple(start.name for start in Start)


def optimal(
    problem: Problem,
    alpha: float | Sequence[float],
    *,
    channel: str | None = None,
    start: str | Sequence[str] = _STARTS,
    thresholds: bool = False,
    max_nodes: int | None = None,
    progress: bool = False,
) -> xr.Dataset:
    """What any learner can reach who knows all of a problem but the teacher's weights: the Bayes-optimal limit.

    Equations (S1)-(S5) of the Bayes-optimal page.

    The student, the regulariser and the encodings have no part in it. Labels have the noise of ``teacher.noise``; test
    errors are against labels without noise.

    Parameters
    ----------
    problem : Problem
    alpha : float or sequence of float
        Sample complexities n/d.
    channel : str, optional
        What is observed of one token, where the loss does not say it: ``"sign"`` of k, its value ``"absolute"`` or as
        it is, ``"linear"``, or a formula: of the label, in ``k`` or ``k0_0`` and ``k0_1``; with ``y`` in it, of the
        likelihood of the label y, which is 1 or -1. By default the teacher's score matrix, ``"linear"`` for the square
        loss and ``"sign"`` for the logistic loss and the hinge.
    start : str or sequence of str
        ``"uninformed"``: from nothing known, what algorithms reach; ``"informed"``: from all known. Where they differ,
        the one with the higher free entropy is what is possible at any cost.
    thresholds : bool
        Locate weak recovery, jumps and perfect recovery too: scalar coordinates of the result.
    max_nodes : int, optional
        Of an integration rule; a point has more nodes until its overlap has the relative standard error
        ``integration.standard_error``. By default 2**20 where the posterior of a sample is a formula, and 2**15 where
        it is an integral itself, as with noise.
    progress : bool
        Say on standard error what is being done, if it takes longer than a second.

    Returns
    -------
    xarray.Dataset
        Over start and alpha, as documented in ``docs/schema.md``.

    Raises
    ------
    ProblemError
        An argument is wrong, or the theory does not cover the problem; the message names the field.
    """
    arguments.instance("problem", problem, Problem)
    values = sample_complexities("alpha", alpha)
    wanted = arguments.words("start", (start,) if isinstance(start, str) else start, _STARTS)
    channel = None if channel is None else arguments.text("channel", channel, _WHAT)
    arguments.flag("thresholds", thresholds)
    arguments.flag("progress", progress)
    max_nodes = None if max_nodes is None else arguments.whole("max_nodes", max_nodes, 2**11)
    setting = setting_of(problem, channel)
    with progress_line(progress, "solving", total=len(values) * len(wanted)) as line:
        points: dict[str, list[BayesPoint]] = {name: [] for name in wanted}
        for value in values:
            for name in wanted:
                tell = within(f"{name}, alpha = {value:g}", line.tell)
                points[name].append(solve_bayes(setting, value, Start[name], max_nodes=max_nodes, tell=tell))
                line.reach(line.done + 1)
        found = bayes_thresholds(setting, tell=line.tell) if thresholds else None
    return from_bayes_points(problem, values, points, _linear(setting, channel), found, channel)


def _linear(setting: Setting, channel: str | None) -> tuple[float, float]:
    """Test error of the linear predictor; NaN for labels of one token."""
    if channel is not None or not setting.problem.loss.has_attention:
        return float("nan"), float("nan")
    return linear_test_error(System.of(setting.problem.with_fields({"teacher.noise": 0.0})))
