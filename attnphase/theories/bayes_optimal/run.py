"""What a learner who knows the model reaches, as a dataset."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.arrays import Numbers
from attnphase.data.outcomes import of_points, warned
from attnphase.errors import ProblemError
from attnphase.files.checkpoints import LIMITS
from attnphase.fixed_points.settings import SolverSettings, sample_complexities, solver_settings
from attnphase.kernels.compiler import tell_if_compiling
from attnphase.problem.problem import Problem
from attnphase.processes.progress import progress_line, within
from attnphase.state_evolution.baseline import linear_test_error
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.system import System
from attnphase.sweeps.grid import axes_of
from attnphase.sweeps.kept import checkpoint_for_us
from attnphase.theories.bayes_optimal.dataset import from_bayes_optimal_points
from attnphase.theories.bayes_optimal.model import PosteriorModel, model_of
from attnphase.theories.bayes_optimal.points import KeptPoints
from attnphase.theories.bayes_optimal.request import FORMULAS, STARTS, BayesOptimalStart, check_varied
from attnphase.theories.bayes_optimal.solving import BayesOptimalPoint, Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.thresholds import bayes_optimal_thresholds

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["bayes_optimal"]

_WHAT = f"sign, absolute, linear, {FORMULAS}"


def bayes_optimal(
    problem: Problem,
    alpha: Numbers,
    *,
    fields: Mapping[str, Any] | None = None,
    channel: str | None = None,
    start: BayesOptimalStart | Sequence[BayesOptimalStart] = ("uninformed", "informed"),
    thresholds: bool = False,
    settings: SolverSettings | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> xr.Dataset:
    """Compute the Bayes-optimal error: that of a learner who knows the problem, but not the teacher's weights.

    Equations (S1)-(S5) of the Bayes-optimal page.

    The student and the regulariser have no effect, nor have encodings, unless they are correlated with the teacher.
    Test errors are for labels without noise.

    Parameters
    ----------
    problem : Problem
    alpha : float or sequence of float
        Sample complexities n/d.
    fields : mapping, optional
        Values of fields of the problem, by their name in the TOML: dimensions of the result, as in `sweep`.
    channel : str, optional
        The label. For one token ``"sign"``, ``"absolute"`` or ``"linear"`` of the field k. For up to three tokens a
        formula in ``k`` (L, t) or its entries ``k0_1``: the label itself, a number or an array, or, if it contains
        ``y``, the likelihood of a label y = 1 or -1. By default the score matrix, ``"linear"`` for square,
        ``"sign"`` for logistic and hinge losses, and for a formula its parts that contain only teacher fields.
    start : str or sequence of str
        ``"uninformed"`` (nothing is known) ends where message passing does; ``"informed"``: all is known. Where they
        differ, the higher free entropy is Bayes-optimal. ``"asymmetric"``: known shares differ between the columns.
    thresholds : bool
        Locate weak recovery, jumps and perfect recovery too, as scalar coordinates of the result.
    settings : SolverSettings, optional
        Only ``max_nodes`` has a part: the largest number of nodes, in place of ``integration.nodes``. Thresholds use
        all of them, points as many as the relative error ``integration.standard_error`` of the overlap needs. By
        default 2**20 for the sign of one field, 2**13 for sums over one variable, 2**14 for lattices (rank 2: 2**7),
        2**15 for integrals (rank 2: 2**12).
    checkpoint : path-like, optional
        File that saves finished points; if it exists, the call continues from it, with the same numbers.
    progress : bool, optional
        Show the progress on standard error, if the call takes longer than a second. By default only compiling is shown.

    Returns
    -------
    xarray.Dataset
        ``overlap`` (known share of the fields' variance), ``test_error`` and others over start, fields and alpha.

    Raises
    ------
    ProblemError
        An argument is wrong, or the theory does not cover the problem; the message names the field.
    DatasetError
        The checkpoint belongs to another call, is damaged, or cannot be written.
    """
    arguments.instance("problem", problem, Problem)
    values = sample_complexities("alpha", alpha)
    wanted = arguments.words("start", start, STARTS)
    channel = None if channel is None else arguments.text("channel", channel, _WHAT)
    arguments.flag("thresholds", thresholds)
    arguments.flag_or_none("progress", progress)
    max_nodes = _most_nodes(settings)
    path, swept = None if checkpoint is None else LIMITS.check(checkpoint), _fields(problem, fields, thresholds)
    grid = [dict(zip(swept, one, strict=True)) for one in product(*swept.values())]
    with progress_line(progress, "loading the kernels") as line:
        tell_if_compiling(problem.with_fields({"teacher.noise": 0.0}), line.callback)
        models = _models(problem, grid, channel)
    places = [at | {"alpha": value, "start": name} for at, value, name in product(grid, values, wanted)]
    with checkpoint_for_us(path, LIMITS):
        kept = KeptPoints.of(path, problem, channel, max_nodes, places)
        points = _points(kept, list(product(models, values, wanted)), places, max_nodes, progress)
        with progress_line(progress and thresholds, "thresholds") as line:
            search = partial(bayes_optimal_thresholds, models[0], max_nodes=max_nodes, callback=line.callback)
            found = kept.thresholds(search) if thresholds else None
    linear, rule = [_linear(one, channel) for one in models], " or ".join(sorted({one.rule for one in models}))
    ds = from_bayes_optimal_points(problem, {**swept, "alpha": list(values)}, points, linear, found, channel, rule)
    return warned(ds, of_points)


def _most_nodes(settings: Any) -> int | None:
    """The largest number of nodes, if settings have it."""
    if settings is None:
        return None
    return arguments.whole("max_nodes", solver_settings(settings, used=("max_nodes",)).max_nodes, 2**5)


def _points(
    kept: KeptPoints,
    asked: Sequence[tuple[PosteriorModel, float, str]],
    places: Sequence[dict[str, Any]],
    max_nodes: int | None,
    progress: bool | None,
) -> dict[str, list[BayesOptimalPoint]]:
    """The points of every start, where models, sample complexities and starts ask for them."""
    points: dict[str, list[BayesOptimalPoint]] = {name: [] for _, _, name in asked}
    with progress_line(progress, "solving", total=len(places), unit="points") as line:
        for (model, value, name), place in zip(asked, places, strict=True):
            say = within(f"{name}, alpha = {value:g}", line.callback)
            solve = partial(solve_bayes_optimal, model, value, Start[name], max_nodes=max_nodes, callback=say)
            points[name].append(kept.point(place, solve))
            line.reach(line.done + 1)
    return points


def _models(problem: Problem, grid: Sequence[Mapping[str, Any]], channel: str | None) -> list[PosteriorModel]:
    """Those of a grid of fields: what is not covered is refused before the work begins."""
    if problem.integration.nodes is not None:
        bound = "settings.max_nodes (--max-nodes) bounds the nodes"
        warnings.warn(f"integration.nodes has no part in this: {bound}.", stacklevel=3)
    models = [model_of(problem.with_fields(dict(one)), channel) for one in grid]
    if len({model.prior.rho.shape for model in models}) > 1:
        raise ProblemError(
            next(iter(grid[0])), "the fields that vary cannot change the overlaps' sizes: vary each alone."
        )
    return models


def _fields(problem: Problem, fields: Mapping[str, Any] | None, thresholds: bool) -> dict[str, list[Any]]:
    """Fields of a grid with their values."""
    axes = axes_of(problem, 1.0, None, BRANCHES[0], fields)
    swept = {name: values for name, values in axes.items() if name not in ("branch", "alpha")}
    check_varied(swept)
    if swept and thresholds:
        raise ProblemError("thresholds", "thresholds are of one problem: leave them out, or the fields that vary.")
    return swept


def _linear(model: PosteriorModel, channel: str | None) -> tuple[float, float]:
    """Test error of the linear predictor; NaN for labels of one token."""
    if channel is not None or not model.problem.loss.has_attention:
        return float("nan"), float("nan")
    return linear_test_error(System.of(model.problem.with_fields({"teacher.noise": 0.0})))
