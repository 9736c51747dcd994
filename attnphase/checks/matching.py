"""What is compared: the part of a theory that belongs to an experiment, and the runs that count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.data.reading import counted, problem_of, whole_dict
from attnphase.data.variables import NOT_COMPUTED, RunStatus
from attnphase.errors import CompareError
from attnphase.problem.canonical import with_formulas
from attnphase.problem.entries import get, put, with_shares
from attnphase.problem.problem import Problem
from attnphase.problem.tables import RELATIVE_TOLERANCE

__all__ = ["at_problem", "left_out", "point_at", "problem_of_runs"]


def problem_of_runs(experiment: xr.Dataset, given: Problem | None) -> Problem:
    """The experiment's problem, with functions that may be looked up."""
    recorded = problem_of(experiment)
    if given is None:
        for name, value in recorded.imports.items():
            raise CompareError(
                f'the experiment\'s {name} is "{value}", a function of a module, which is not imported because a'
                " dataset names it: give the problem yourself, with problem=... (--problem problem.toml)."
            )
        return recorded
    if arguments.instance("problem", given, Problem).hash != recorded.hash:
        name, own, theirs = next(
            _differences(_as_read(given), _as_read(recorded)), ("its hash", given.hash, recorded.hash)
        )
        raise CompareError(
            f"the problem given is not the experiment's: {name} is {arguments.shown(own)} in it and"
            f" {arguments.shown(theirs)} in the experiment."
        )
    given.require_functions()
    return given


def at_problem(theory: xr.Dataset, problem: Problem) -> xr.Dataset:
    """The theory at the experiment's problem; what only the quadrature depends on may differ."""
    base, own, whole = _as_read(problem_of(theory)), _as_read(problem), whole_dict(problem)
    for name in [str(name) for name in theory["status"].dims if name not in ("branch", "start", "alpha")]:
        field = str(theory[name].attrs.get("field", ""))
        wanted = get(whole, field)
        if wanted is None:
            raise CompareError(
                f"the theory varies {name}, which is not a field of the problem: select one value of it."
            )
        number = float(wanted) if isinstance(wanted, int | float) else wanted
        at = [i for i, value in enumerate(theory[name].to_numpy().tolist()) if _equal(value, number) or value == wanted]
        if not at:
            raise CompareError(f"the theory has no {name} = {wanted}, which the experiment has: solve there.")
        theory = theory.isel({name: at[0]})
        for one in (base, own):  # neither says what a problem file need not say
            put(one, field, wanted)
    for one in (base, own):  # what is measured besides is no part of the model
        one.pop("integration", None)
        one.pop("metrics", None)
    for name, left, right in _differences(base, own):
        raise CompareError(
            f"theory and experiment are of different problems: {name} is {left!r} in the theory and {right!r} in the"
            " experiment."
        )
    return theory


def point_at(theory: xr.Dataset, start: str, alpha: float) -> xr.Dataset:
    """The theory's point of a start and an alpha."""
    if "branch" in theory.dims:
        if start in theory["branch"].to_numpy().tolist():
            theory = theory.sel(branch=start)
        elif theory.sizes["branch"] == 1:
            theory = theory.isel(branch=0)
    branch = theory["branch"].to_numpy().tolist()
    if branch != start and not (isinstance(branch, str) and start == "given"):
        raise CompareError(f'the theory has no branch "{start}", where the experiment starts: solve it too.')
    alphas = np.atleast_1d(theory["alpha"].to_numpy())
    at = np.flatnonzero(np.isclose(alphas, alpha, rtol=1e-9, atol=0))
    if not at.size:
        raise CompareError(f"the theory has no alpha = {alpha:g}, which the experiment has: solve there.")
    point = theory.isel(alpha=int(at[0])) if "alpha" in theory.dims else theory
    if int(point["status"]) == NOT_COMPUTED:
        raise CompareError(f"the theory was not computed at {start}, alpha = {alpha:g}.")
    return point


def _as_read(problem: Problem) -> dict[str, dict[str, Any]]:
    return with_formulas(problem, with_shares(problem, problem.to_dict()))


def _differences(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two problems differ, with their values."""
    for section in sorted({*a, *b}):
        left, right = a.get(section, {}), b.get(section, {})
        for key in sorted({*left, *right}):
            if not _equal(left.get(key), right.get(key)):
                yield f"{section}.{key}", left.get(key), right.get(key)


def _equal(a: object, b: object) -> bool:
    """Whether values are the same; numbers up to rounding, since one probability of a list changes the others."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(value, b[key]) for key, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=RELATIVE_TOLERANCE)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return a == b


def left_out(runs: xr.Dataset, start: str, alpha: float) -> Iterator[str]:
    """Sentences about runs of one start and alpha that are not counted, or have not converged."""
    for d in runs["dimension"].to_numpy().tolist():
        here = runs.sel(dimension=d)
        status, kept = (one.to_numpy().tolist() for one in (here["status"], counted(here)))
        lost = [RunStatus(s).name for s, own in zip(status, kept, strict=True) if not own]
        late = [RunStatus(s).name for s in status if s in (RunStatus.step_limit, RunStatus.unsettled)]
        for names, verb in ((lost, "not counted"), (late, "counted, though not converged")):
            if names:
                kinds = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
                yield f"{start}, alpha = {alpha:g}, d = {d}: of {len(status)} runs {kinds}: {verb}."
