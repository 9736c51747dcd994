"""What there is to say of a result: the command line prints these sentences, and functions warn of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attnphase.data.text import format_value
from attnphase.errors import (
    AttnphaseWarning,
    MergedWarning,
    NotConvergedWarning,
    NotFoundWarning,
    ReplicaSymmetryWarning,
    UndecidedWarning,
    ViolatedWarning,
)
from attnphase.fixed_points.optimum import OptimumStatus
from attnphase.fixed_points.verdict import IDENTITIES
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import xarray as xr

    from attnphase.data import absence, counts, reading, schemas, text, trust, variables
    from attnphase.solvers import iteration

if TYPE_CHECKING:
    from attnphase.fixed_points.point import BranchPoint
    from attnphase.problem.problem import Problem

__all__ = [
    "Said",
    "joined_lines",
    "of_branches",
    "of_left_out",
    "of_lines",
    "of_optima",
    "of_points",
    "of_runs",
    "of_sweep",
    "of_thresholds",
    "told_of",
    "warned",
]

Said = tuple[type[AttnphaseWarning], str]
"""A sentence, and the class of warnings that it belongs to."""

_Result = TypeVar("_Result")
_NAMED = 3  # points that a sentence names

_REMEDY = (
    "; a point without numbers cannot be evaluated in double precision: bring tokens.sigma,"
    " regularizer.strength, teacher.mixing and alpha closer to one"
)
_BOTTOMLESS = (
    "; local problems of unsolved_nodes have no minimum: bound loss.expression from below, or raise"
    " regularizer.strength"
)


def warned(result: _Result, said: Callable[[_Result], Iterable[Said]]) -> _Result:
    """Return the result of a public function, which calls this last: its caller is warned once for each class."""
    sentences: dict[type[AttnphaseWarning], list[str]] = {}
    for category, sentence in said(result):
        sentences.setdefault(category, []).append(sentence)
    for category, own in sentences.items():
        warnings.warn(" ".join(own), category, stacklevel=3)
    return result


def of_branches(points: Sequence[BranchPoint]) -> list[Said]:
    """What there is to say of branches at one sample complexity: they do not exist, may not, or are not to be trusted.

    Of a branch that does not exist enough is said.
    """
    missing, doubtful, distrusted = absence.absences(points), absence.doubts(points), trust.distrusts(points)
    return [
        *((MergedWarning, sentence) for sentence in missing.values()),
        *((UndecidedWarning, sentence) for sentence in doubtful.values()),
        *((ReplicaSymmetryWarning, sentence) for name, sentence in distrusted.items() if name not in missing),
    ]


def told_of(left_out: Sequence[Exception]) -> dict[str, str]:
    """The global attribute that says why branches are missing in a result of all."""
    return {"left_out": "\n".join(map(str, left_out))} if left_out else {}


def of_left_out(ds: xr.Dataset) -> list[Said]:
    """Branches that are missing in a result of all, and why; see `told_of`."""
    return [(NotFoundWarning, sentence) for sentence in str(ds.attrs.get("left_out", "")).splitlines()]


def of_sweep(ds: xr.Dataset, problem: Problem) -> list[Said]:
    """What there is to say of a sweep of a problem: how many points are no good, and where they are."""
    clauses = {category: f"{clause}." for category, clause in counts.places(ds, problem).items()}
    return [*(clauses | dict(of_points(ds))).items()]


def of_points(ds: xr.Dataset) -> list[Said]:
    """Points that did not converge, and what helps those that cannot be evaluated; points that violate identities."""
    return [*_unconverged(ds), *_violated(ds)]


def _unconverged(ds: xr.Dataset) -> list[Said]:
    unfinished = ~ds["status"].isin((0, variables.NOT_COMPUTED))
    if not bool(unfinished.any()):
        return []

    def known(point: xr.Dataset) -> str:
        residual = float(point["residual"])
        met = "no numbers" if np.isnan(residual) else f"residual {residual:.1e}"
        return f"{variables.STATUS_MEANINGS[int(point['status'])]}, {met}"

    sentence = f"not converged: {_listed(ds, unfinished, known)}{_remedy(ds, unfinished)}."
    return [(NotConvergedWarning, sentence)]


def _violated(ds: xr.Dataset) -> list[Said]:
    where = trust.violated(ds)
    if not bool(where.any()):
        return []

    def known(point: xr.Dataset) -> str:
        sides = {name: (float(point[name]), float(point[f"{name}_stderr"])) for name in IDENTITIES if name in point}
        with np.errstate(divide="ignore", invalid="ignore"):  # an error may be zero
            told = {name: abs(np.divide(*side)) for name, side in sides.items()}
        worst = max((name for name in told if not np.isnan(told[name])), key=lambda name: told[name])
        return f"{worst} = {format_value(*sides[worst])}"

    remedy = "do not use such a point, solve it by another integration.rule or with more integration.nodes"
    return [(ViolatedWarning, f"exact identities are violated: {_listed(ds, where, known)}; {remedy}.")]


def _listed(ds: xr.Dataset, where: xr.DataArray, known: Any) -> str:
    """The first few points of some, with what is known of each."""
    dims, chosen, names = ds["status"].dims, np.argwhere(where.transpose(*ds["status"].dims).to_numpy()), []
    for index in chosen[:_NAMED]:
        point = ds.isel(dict(zip(dims, index.tolist(), strict=True)))
        place = ", ".join(f"{name} = {_plain(point[name].item())}" for name in _places(ds, point["status"]))
        names.append(f"{place} ({known(point)})")
    return "; ".join(names) + (f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else "")


def _remedy(ds: xr.Dataset, failed: xr.DataArray) -> str:
    """What helps points that did not converge, as far as they tell why."""
    if ds.attrs["schema"] == "bayes_optimal":  # its left_domain is of another kind
        return ""
    left = failed & (ds["status"] == iteration.Status.left_domain)
    if "unsolved_nodes" in ds and bool((left & (ds["unsolved_nodes"] > 0)).any()):
        return _BOTTOMLESS
    known = reading.problem_of(ds).loss.trained_remedy if bool(left.any()) else ""
    return known or (_REMEDY if ds.attrs["schema"] == "points" and bool(absence.unevaluated(ds).any()) else "")


def _places(ds: xr.Dataset, point: xr.DataArray) -> list[str]:
    """Coordinates that say where a point is, as the schema has them: not thresholds, which are no place."""
    known = schemas.COORDINATES_OF[ds.attrs["schema"]]
    return [name for name in map(str, point.coords) if name in ds["status"].dims or name in known]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def of_lines(lines: Mapping[str, xr.Dataset]) -> list[Said]:
    """The same of points of several lines of a sweep."""
    return of_points(joined_lines(lines))


def joined_lines(lines: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """What `of_points` asks of lines of a sweep, over ``line``, the names of these."""
    asked = ("status", "residual", "identities", *IDENTITIES, *(f"{name}_stderr" for name in IDENTITIES))
    plain = [
        ds[[name for name in asked if name in ds]].drop_vars("branch").expand_dims(line=[label])
        for label, ds in lines.items()
    ]
    return xr.concat(plain, "line")


def of_thresholds(ds: xr.Dataset) -> list[Said]:
    """Thresholds that there are not, and why."""
    return [(NotFoundWarning, sentence) for sentence in text.thresholds_absences(ds)]


def of_optima(ds: xr.Dataset, problem: Problem) -> list[Said]:
    """Sample complexities at which points did not converge, so that no optimum is known."""
    failed = (ds["status"] == OptimumStatus.not_converged).transpose(..., "alpha").to_numpy()
    lost = ds["alpha"].to_numpy()[failed.reshape(-1, failed.shape[-1]).any(axis=0)].tolist()
    if not lost:
        return []
    where = ", ".join(f"{one:g}" for one in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
    known = f"no optimum is known at alpha = {where}, since points did not converge"
    return [(NotConvergedWarning, f"{known}{problem.loss.trained_remedy}.")]


def of_runs(ds: xr.Dataset) -> list[Said]:
    """Runs of an experiment that did not end well."""
    status = ds["status"]
    fine = status.isin([variables.RunStatus.converged, variables.RunStatus.completed])
    failed = int((~fine).sum())
    if not failed:
        return []
    first = status.where(~fine).stack(run=status.dims).dropna("run")[0]
    place = ", ".join(f"{name} = {_plain(first[name].item())}" for name in map(str, status.dims))
    name = variables.RunStatus(int(first)).name
    diverged = bool((status == variables.RunStatus.diverged).any())
    hint = reading.problem_of(ds).loss.trained_remedy if diverged else ""
    known = f"{failed} of {status.size} runs not converged, the first {place} ({name}){hint}."
    return [(NotConvergedWarning, known)]
