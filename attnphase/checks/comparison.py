"""Theory against experiment: differences in standard errors, and the finite-size correction in d.

Overlaps are compared in the theory's frame: each run is brought there by the symmetry of the model that takes its m and
theta closest to the theory's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.data.dataset import NOT_COMPUTED, RunStatus, by_cluster, problem_of, validate_dataset
from attnphase.data.text import Table, format_value, wrapped
from attnphase.errors import CompareError
from attnphase.fixed_points.iteration import Status
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, progress_line, silent
from attnphase.state_evolution.symmetries import ProblemSymmetry
from attnphase.state_evolution.system import System

__all__ = ["Comparison", "Limit", "Measured", "Quantity", "compare"]

_SCALARS = ("training_loss", "test_error", "test_error_sampled", "linear_test_error", "weight_norm", "density")
_OVERLAPS = ("q", "V", "m", "theta")
_LARGEST = 1e100
_COUNTED = (RunStatus.converged, RunStatus.completed, RunStatus.step_limit, RunStatus.unsettled)


@dataclass(frozen=True)
class Measured:
    """Mean of one quantity over the runs at one dimension.

    Attributes
    ----------
    dimension : int
    runs : int
        That were counted.
    value, stderr : float
        Mean over the runs and its standard error; NaN for a single run.
    difference : float
        From the theory.
    z : float
        Difference in standard errors, of runs and quadrature together; NaN where there is none.
    """

    dimension: int
    runs: int
    value: float
    stderr: float
    difference: float
    z: float


@dataclass(frozen=True)
class Limit:
    """Weighted fit of ``a + b / d`` to the means at several dimensions.

    Attributes
    ----------
    value, stderr : float
        a.
    slope, slope_stderr : float
        b.
    difference, z : float
        Of a from the theory.
    chi2 : float
        Of the fit.
    degrees_of_freedom : int
    """

    value: float
    stderr: float
    slope: float
    slope_stderr: float
    difference: float
    z: float
    chi2: float
    degrees_of_freedom: int


@dataclass(frozen=True)
class Quantity:
    """One number of the theory and what experiments say about it.

    Attributes
    ----------
    start : str
        Branch of the theory, and start of the runs.
    alpha : float
    name : str
        With indices from 1: ``m[2,1]`` is token 2, column 1.
    theory, theory_stderr : float
    theory_status : str
    measured : tuple of Measured
        By dimension.
    limit : Limit or None
        None with one dimension, or without standard errors.
    """

    start: str
    alpha: float
    name: str
    theory: float
    theory_stderr: float
    theory_status: str
    measured: tuple[Measured, ...]
    limit: Limit | None

    @property
    def z(self) -> float:
        """Deviation in standard errors: of the limit where there is one, otherwise of the largest dimension."""
        return self.limit.z if self.limit is not None else self.measured[-1].z


@dataclass(frozen=True)
class Comparison:
    """All quantities of an experiment beside the theory's.

    Attributes
    ----------
    problem : Problem
    quantities : tuple of Quantity
    excluded : tuple of str
        Runs that were not counted and quantities that were left out, one sentence each.
    theory, experiment : xarray.Dataset
        What was compared; of the theory, the part that belongs to the experiment.
    """

    problem: Problem
    quantities: tuple[Quantity, ...]
    excluded: tuple[str, ...]
    theory: xr.Dataset
    experiment: xr.Dataset

    @property
    def worst(self) -> float:
        """Largest deviation in standard errors; NaN if nothing has one."""
        known = [abs(quantity.z) for quantity in self.quantities if math.isfinite(quantity.z)]
        return max(known, default=math.nan)

    def within(self, limit: float = 3.0) -> bool:
        """Whether every deviation that is known is at most `limit` standard errors, and at least one is known."""
        limit = arguments.number("limit", limit, lambda x: x > 0, "a positive number")
        return self.worst <= limit

    def text(self, width: int | None = None) -> str:
        """A table for every start and alpha.

        Parameters
        ----------
        width : int or None
            Columns of the terminal; None for no limit.
        """
        lines: list[str] = []
        for key in dict.fromkeys((q.start, q.alpha) for q in self.quantities):
            block = [q for q in self.quantities if (q.start, q.alpha) == key]
            note = "" if block[0].theory_status == Status.converged.name else f" (theory: {block[0].theory_status})"
            lines += ["", wrapped(f"{key[0]}, alpha = {key[1]:g}{note}", width), _table(block).text(width)]
        lines += ["", *(wrapped(sentence, width) for sentence in self.excluded)] if self.excluded else [""]
        known = [q for q in self.quantities if math.isfinite(q.z)]
        far = sum(abs(q.z) > 3 for q in known)
        end = (
            f"{len(known)} quantities compared, {far} further than 3 standard errors; the worst deviates by"
            f" {self.worst:.1f}."
            if known
            else "no quantity has a standard error: run more than one seed."
            if self.quantities
            else "there is no run to compare."
        )
        lines.append(wrapped(end, width))
        return "\n".join(lines).strip("\n")

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        whole = {
            "problem_hash": self.problem.hash,
            "worst": self.worst,
            "excluded": list(self.excluded),
            "quantities": [{**asdict(quantity), "z": quantity.z} for quantity in self.quantities],
        }
        return json.dumps(_plain(whole), allow_nan=False)

    def __str__(self) -> str:
        return self.text()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _table(block: Sequence[Quantity]) -> Table:
    heads, joined = ["", "theory"], []
    for one in block[0].measured:
        heads += [f"d = {one.dimension}", "z"]
        joined.append(len(heads) - 1)
    fitted = any(q.limit is not None for q in block)
    if fitted:
        heads += ["a of a + b/d", "z", "b"]
        joined += [len(heads) - 2, len(heads) - 1]
    rows = []
    for q in block:
        row = [q.name, format_value(q.theory, q.theory_stderr)]
        for one in q.measured:
            row += [format_value(one.value, one.stderr), _z(one.z)]
        if q.limit is not None:
            row += [format_value(q.limit.value, q.limit.stderr), _z(q.limit.z)]
            row += [format_value(q.limit.slope, q.limit.slope_stderr)]
        elif fitted:
            row += ["–", "–", "–"]
        rows.append(tuple(row))
    return Table(tuple(heads), tuple(rows), joined=tuple(joined), by_column=True)


def _z(value: float) -> str:
    return f"{value:+.1f}" if math.isfinite(value) else "–"


def compare(
    theory: xr.Dataset, experiment: xr.Dataset, *, problem: Problem | None = None, progress: bool = False
) -> Comparison:
    """Hold experiments against theory.

    Parameters
    ----------
    theory : xarray.Dataset
        Schema ``points``, from `attnphase.solve` or `attnphase.sweep`, with the experiment's starts among its branches
        and the experiment's sample complexities on its grid.
    experiment : xarray.Dataset
        Schema ``experiments``, from `attnphase.simulate`.
    problem : Problem, optional
        The experiment's problem.  It is needed where a score or a proximal operator is a function of a module, which is
        not imported because a dataset names it.
    progress : bool
        Say on standard error what is being done, if it takes longer than a second.

    Returns
    -------
    Comparison
        Quantities whose theory is not a number, or which the experiment does not have, are left out.

    Raises
    ------
    CompareError
        The two belong to different problems, or the theory lacks a branch or a sample complexity; `problem` is another
        than the experiment's, or it is needed and was not given.
    DatasetError
        One of them does not follow its schema.
    ProblemError
        `progress` is neither true nor false.
    """
    arguments.flag("progress", progress)
    for ds, kind, what in ((theory, "points", "theory"), (experiment, "experiments", "experiment")):
        if not isinstance(ds, xr.Dataset):
            raise CompareError(f"the {what} must be an xarray.Dataset, not {arguments.shown(ds)}: load it first.")
        validate_dataset(ds)
        if ds.attrs["schema"] != kind:
            raise CompareError(f'the {what} must be a dataset of kind "{kind}", but is "{ds.attrs["schema"]}".')
    problem = _problem(experiment, problem)
    missing = [name for name in ("start", "dimension", "alpha", "seed") if name not in experiment["status"].dims]
    if missing:
        experiment = experiment.expand_dims(missing)
    theory = _same_problem(theory, problem)
    with progress_line(progress, "loading the kernels") as line:
        frame = _Frame.of(problem, line.tell)
    quantities: list[Quantity] = []
    excluded: list[str] = []
    for start in map(str, experiment["start"].to_numpy()):
        for alpha in experiment["alpha"].to_numpy().tolist():
            point = _point(theory, start, alpha)
            runs = experiment.sel(start=start, alpha=alpha)
            excluded += _excluded(runs, start, alpha)
            quantities += _quantities(point, runs, frame, start, alpha, excluded)
    return Comparison(problem, tuple(quantities), tuple(excluded), theory, experiment)


def _problem(experiment: xr.Dataset, given: Problem | None) -> Problem:
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
            _differences(given.to_dict(), recorded.to_dict()), ("its hash", given.hash, recorded.hash)
        )
        raise CompareError(
            f"the problem given is not the experiment's: {name} is {arguments.shown(own)} in it and"
            f" {arguments.shown(theirs)} in the experiment."
        )
    given.require_functions()
    return given


def _differences(a: dict[str, dict[str, Any]], b: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any, Any]]:
    """Fields in which two problems differ, with their values."""
    for section in sorted({*a, *b}):
        left, right = a.get(section, {}), b.get(section, {})
        for key in sorted({*left, *right}):
            if not _equal(left.get(key), right.get(key)):
                yield f"{section}.{key}", left.get(key), right.get(key)


def _same_problem(theory: xr.Dataset, problem: Problem) -> xr.Dataset:
    """The theory at the experiment's problem; what only the quadrature depends on may differ."""
    base = problem_of(theory).to_dict()
    own = problem.to_dict()
    for name in [str(name) for name in theory["status"].dims if name not in ("branch", "alpha")]:
        section, _, key = str(theory[name].attrs.get("field", "")).partition(".")
        if section not in own or key not in own[section]:
            raise CompareError(
                f"the theory varies {name}, which is not a field of the problem: select one value of it."
            )
        values, wanted = theory[name].to_numpy(), own[section][key]
        at = [i for i, v in enumerate(values) if v == wanted or (values.dtype.kind == "f" and np.isclose(v, wanted))]
        if not at:
            raise CompareError(f"the theory has no {name} = {wanted}, which the experiment has: solve there.")
        theory = theory.isel({name: at[0]})
        base[section][key] = wanted
    base.pop("integration", None)
    own.pop("integration", None)
    for name, left, right in _differences(base, own):
        raise CompareError(
            f"theory and experiment are of different problems: {name} is {left!r} in the theory and {right!r} in the"
            " experiment."
        )
    return theory


def _equal(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(np.asarray(a), np.asarray(b))
    return a == b


def _point(theory: xr.Dataset, start: str, alpha: float) -> xr.Dataset:
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


def _excluded(runs: xr.Dataset, start: str, alpha: float) -> Iterator[str]:
    for d in runs["dimension"].to_numpy().tolist():
        status = runs["status"].sel(dimension=d).to_numpy().tolist()
        lost = [RunStatus(s).name for s in status if s not in _COUNTED]
        late = [RunStatus(s).name for s in status if s in (RunStatus.step_limit, RunStatus.unsettled)]
        for names, verb in ((lost, "not counted"), (late, "counted, though not converged")):
            if names:
                kinds = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
                yield f"{start}, alpha = {alpha:g}, d = {d}: of {len(status)} runs {kinds}: {verb}."


def _quantities(
    point: xr.Dataset, runs: xr.Dataset, frame: _Frame, start: str, alpha: float, excluded: list[str]
) -> Iterator[Quantity]:
    """What can be compared; sentences about what cannot go to `excluded`."""
    dimensions = [int(d) for d in runs["dimension"].to_numpy()]
    known = [name for name in (*_SCALARS, *_OVERLAPS) if name in point]
    _check_sizes(point, [*known, *(f"{name}_stderr" for name in known)], f"the theory at {start}, alpha = {alpha:g}")
    samples: list[dict[str, Array]] = []
    for d in dimensions:
        here = runs.sel(dimension=d).transpose("seed", ...)
        here = here.isel(seed=np.flatnonzero(here["status"].isin(_COUNTED).to_numpy()))
        _check_sizes(here, (*_SCALARS, *_OVERLAPS), f"the runs of {start}, alpha = {alpha:g}, d = {d}")
        samples.append({name: here[name].to_numpy() for name in _SCALARS} | frame.aligned(point, here))
    status = Status(int(point["status"])).name
    for name in (*_SCALARS, *_OVERLAPS):
        source = "test_error" if name == "test_error_sampled" else name
        theory, error = point[source].to_numpy(), point[f"{source}_stderr"].to_numpy()
        for index in _entries(name, np.shape(theory)):
            values = [sample[name][(slice(None), *index)] for sample in samples]
            if not np.isfinite(theory[index]) or all(np.isnan(v).all() for v in values):
                continue  # the problem, or the optimiser, does not have it
            if not all(np.isfinite(v).all() for v in values):
                excluded.append(f"{start}, alpha = {alpha:g}: {name} is not a number in some runs: left out.")
                break
            if name == "density" and theory[index] == 1:
                continue  # a ridge has no zeros
            label = f"{name}[{','.join(str(i + 1) for i in index)}]" if index else name
            exact, error_ = float(theory[index]), float(np.nan_to_num(error[index]))
            measured = tuple(_measured(d, v, exact, error_) for d, v in zip(dimensions, values, strict=True) if len(v))
            if measured:
                yield Quantity(start, alpha, label, exact, error_, status, measured, _limit(measured, exact, error_))


def _check_sizes(ds: xr.Dataset, names: Sequence[str], what: str) -> None:
    """Refuse numbers that nobody computed, and whose squares are none."""
    for name in names:
        values = np.abs(ds[name].to_numpy()) if name in ds else np.zeros(0)
        if bool((values > _LARGEST).any()):
            raise CompareError(f"{what} cannot be compared: {name} is {np.nanmax(values):.1g} there.")


def _entries(name: str, shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for index in np.ndindex(*shape):
        if name in ("q", "V") and index[-1] < index[-2]:
            continue  # symmetric
        yield index


def _measured(dimension: int, values: Array, theory: float, error: float) -> Measured:
    mean, runs = float(values.mean()), len(values)
    stderr = float(values.std(ddof=1)) / math.sqrt(runs) if runs > 1 else math.nan
    difference = mean - theory
    return Measured(dimension, runs, mean, stderr, difference, _deviation(difference, stderr, error))


def _deviation(difference: float, stderr: float, error: float) -> float:
    total = math.hypot(stderr, error)
    if not total > 0:  # both exact, or unknown
        return 0.0 if difference == 0 and total == 0 else math.nan
    return difference / total


def _limit(measured: Sequence[Measured], theory: float, error: float) -> Limit | None:
    if len(measured) < 2 or not all(one.stderr > 0 for one in measured):
        return None
    weights = np.array([one.stderr for one in measured]) ** -2.0
    design = np.stack([np.ones(len(measured)), [1 / one.dimension for one in measured]], axis=1)
    values = np.array([one.value for one in measured])
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
    a, b = (covariance @ design.T @ (weights * values)).tolist()
    rest = values - design @ [a, b]
    stderr, slope_stderr = np.sqrt(np.diag(covariance)).tolist()
    return Limit(
        value=a,
        stderr=stderr,
        slope=b,
        slope_stderr=slope_stderr,
        difference=a - theory,
        z=_deviation(a - theory, stderr, error),
        chi2=float((weights * rest**2).sum()),
        degrees_of_freedom=len(measured) - 2,
    )


# -------------------------------------------------------------------------------------------------------- symmetries


@dataclass(frozen=True, eq=False)
class _Frame:
    """The symmetries of a problem: finitely many, and the rotations of the columns of an attention's weights."""

    problem: Problem
    elements: tuple[ProblemSymmetry, ...]
    rotates: bool

    @classmethod
    def of(cls, problem: Problem, tell: Tell = silent) -> _Frame:
        # scores depend on h h^T or h_Q h_K^T alone, which a common rotation of the columns does not change
        rotates = problem.tokens.length > 1 and problem.regularizer.kind in ("ridge", "group-lasso")
        return cls(problem, System.of(problem, tell=tell).symmetries, rotates and problem.student.rank > 1)

    def aligned(self, point: xr.Dataset, runs: xr.Dataset) -> dict[str, Array]:
        """Overlaps of every run, (S, ...) like the dataset's, in the frame that fits the theory's best."""
        wanted = {name: self._by_site(point[name].to_numpy()) for name in _OVERLAPS}
        found: dict[str, list[Array]] = {name: [] for name in _OVERLAPS}
        for s in range(runs.sizes["seed"]):
            own = {name: self._by_site(runs[name].to_numpy()[s]) for name in _OVERLAPS}
            best = min((self._moved(own, wanted, element) for element in self.elements), key=lambda moved: moved[0])
            for name in _OVERLAPS:
                found[name].append(by_cluster(self.problem, name, best[1][name]))
        shapes = {name: point[name].shape for name in _OVERLAPS}
        return {name: np.array(rows).reshape(-1, *shapes[name]) for name, rows in found.items()}

    def _moved(
        self, own: dict[str, Array], wanted: dict[str, Array], element: ProblemSymmetry
    ) -> tuple[float, dict[str, Array]]:
        """A run under one symmetry, and how far it is from the theory."""
        order, A, B = element
        order = list(order)
        if self.rotates:
            A = self._rotation(own, wanted, order, A, B) @ A
        moved = {
            "q": A @ own["q"][order] @ A.T,
            "V": A @ own["V"][order] @ A.T,
            "m": own["m"][order] @ A.T,
            "theta": A @ own["theta"][order] @ B.T,
        }
        # rounded, so that of elements that fit alike the first is taken
        distance = sum(float(((moved[name] - wanted[name]) ** 2).sum()) for name in ("m", "theta", "q"))
        return round(distance, 12), moved

    def _rotation(self, own: dict[str, Array], wanted: dict[str, Array], order: list[int], A: Array, B: Array) -> Array:
        """The rotation of the attention's columns behind A that fits best, by Procrustes."""
        rank = self.problem.student.rank
        copies = (self.problem.columns - self.problem.loss.value_columns) // rank
        fields = np.concatenate([own["m"][order][:, None] @ A.T, (A @ own["theta"][order] @ B.T).mT], axis=1)
        target = np.concatenate([wanted["m"][:, None], wanted["theta"].mT], axis=1)
        product = np.zeros((rank, rank))
        for copy in range(copies):
            part = slice(copy * rank, (copy + 1) * rank)
            product += np.einsum("sfi,sfj->ij", target[..., part], fields[..., part])
        left, _, right = np.linalg.svd(product)
        whole = np.eye(len(A))
        for copy in range(copies):
            part = slice(copy * rank, (copy + 1) * rank)
            whole[part, part] = left @ right
        return whole

    def _by_site(self, values: Array) -> Array:
        if self.problem.tokens.kind != "mixture":
            return values
        return np.stack([values[token, cluster] for token, cluster in self.problem.sites])
