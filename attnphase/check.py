"""Consistency report: whether everything that must agree for a problem agrees.

Every check compares two independent ways to one number, at a solved fixed point or on random fields, so that a user's
own model is tested as the shipped ones are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase import arguments
from attnphase.channel import Channel
from attnphase.compiled import kernels_for, reference_backend
from attnphase.errors import ProblemError
from attnphase.fixed_point import Status
from attnphase.overlaps import Conjugates, Overlaps
from attnphase.prior import Prior
from attnphase.problem import Problem
from attnphase.progress import Tell, progress_line, within
from attnphase.proximal import Starts
from attnphase.refinement import Refinement
from attnphase.row_problem import row_regularizer
from attnphase.settings import BRANCHES, SolverSettings, sample_complexity
from attnphase.solve import BranchPoint, solve_point
from attnphase.spectrum import Spectrum
from attnphase.state_evolution import StateEvolution
from attnphase.symmetries import loss_symmetries, problem_symmetries
from attnphase.text import pairs_text, wrapped

__all__ = ["Check", "Report", "check"]

Array = NDArray[np.float64]

_SIGMAS = 5.0  # standard errors within which sampled quantities must agree
_POINTS = (64, 256, 1024)  # Sobol points per replicate, for the rate of the standard errors
_RATES = (-1.6, -0.35)  # slowest and fastest decay of a standard error with the number of nodes that is believed
_RATE_OF_MONTE_CARLO = -0.5
_DIMENSIONS, _SEEDS = (60, 120, 240), 12  # of the small experiment
_TRAINED = 1e-6  # norm of its gradient / sqrt(d)
_COMPARED = ("training_loss", "test_error", "weight_norm")


@dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes
    ----------
    name : str
    passed : bool or None
        None if it does not apply; `detail` says why.
    value, limit : float
        What was measured, and the largest that passes; NaN where there is no single number.
    detail : str
        One sentence.
    """

    name: str
    passed: bool | None
    value: float
    limit: float
    detail: str


@dataclass(frozen=True)
class Report:
    """All checks of one problem at one point.

    Attributes
    ----------
    problem : Problem
    alpha : float
    branch : str
    checks : tuple of Check
    """

    problem: Problem
    alpha: float
    branch: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(one.passed is not False for one in self.checks)

    def text(self, width: int | None = None) -> str:
        """A line for each check.

        Parameters
        ----------
        width : int or None
            Columns of the terminal; None for no limit.
        """
        marks = {True: "ok", False: "FAILED", None: "-"}
        pairs = []
        for one in self.checks:
            number = "" if math.isnan(one.value) else f"{one.value:.1e} (limit {one.limit:.1e}); "
            pairs.append((f"{marks[one.passed]:>6}  {one.name}", f"{number}{one.detail}"))
        failed = sum(one.passed is False for one in self.checks)
        end = "all checks passed" if not failed else f"{failed} of {len(self.checks)} checks failed"
        begin = f"{self.branch} branch, alpha = {self.alpha:g}"
        return "\n".join([wrapped(begin, width), pairs_text(pairs, width), wrapped(end, width)])

    def to_json(self) -> str:
        """One JSON object; numbers that are not finite are null."""
        checks = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(one).items()}
            for one in self.checks
        ]
        whole = {"alpha": self.alpha, "branch": self.branch, "passed": self.passed, "checks": checks}
        return json.dumps(whole, allow_nan=False)

    def __str__(self) -> str:
        return self.text()


def check(
    problem: Problem,
    alpha: float = 1.5,
    branch: str = "semantic",
    *,
    settings: SolverSettings | None = None,
    experiment: bool = True,
    on_check: Callable[[Check], None] | None = None,
    progress: bool = False,
) -> Report:
    """Check a problem's equations, code and numbers against each other.

    Parameters
    ----------
    problem : Problem
    alpha : float
        Sample complexity of the fixed point at which the checks are made.
    branch : str
        Its branch.
    settings : SolverSettings, optional
    experiment : bool
        Whether small instances at finite d are trained, which needs PyTorch and takes a few seconds.
    on_check : callable, optional
        Called with every check as it is made.
    progress : bool
        Say on standard error what is being checked.

    Returns
    -------
    Report

    Raises
    ------
    ProblemError
        An argument is wrong; the message names it.
    """
    arguments.instance("problem", problem, Problem)
    alpha, branch = sample_complexity("alpha", alpha), arguments.word("branch", branch, BRANCHES)
    settings = SolverSettings() if settings is None else arguments.instance("settings", settings, SolverSettings)
    arguments.flag("experiment", experiment)
    if on_check is not None:
        arguments.function("on_check", on_check)
    checks: list[Check] = []

    def note(one: Check) -> None:
        checks.append(one)
        if on_check is not None:
            on_check(one)

    with progress_line(progress, "solving") as line:
        point = solve_point(problem, alpha, branch, settings=settings, tell=line.tell)
        for one in _checks(problem, point, settings, line.tell):
            note(one)
    if experiment:
        note(_experiment(problem, point, progress))
    return Report(problem, alpha, branch, tuple(checks))


def _below(name: str, value: float, limit: float, detail: str) -> Check:
    return Check(name, bool(value <= limit), float(value), limit, detail)


def _checks(problem: Problem, point: BranchPoint, settings: SolverSettings, tell: Tell) -> Iterator[Check]:
    """All but the experiment."""
    converged = point.status is Status.converged
    yield Check(
        "fixed point",
        converged,
        point.residual,
        settings.tolerance,
        f"status {point.status.name} after {point.iterations} maps on {point.nodes} nodes",
    )
    tell("comparing the back ends")
    yield from _backends(problem)
    tell("comparing losses under the symmetries")
    yield from _symmetries(problem)
    if converged:
        gap, size = float(point.values["free_energy_gap"]), abs(float(point.values["training_loss"]))
        limit = 100 * max(settings.tolerance, 1e-9) * max(size, 1e-12)
        yield _below("two expressions of the training loss", gap, limit, "(14) and minus the free entropy (104)")
        yield from _gradients(problem, point, tell)
        tell("the standard errors on more and more nodes")
        yield _rate(problem, point, settings)
    else:
        names = ("two expressions of the training loss", "gradient of the free entropy", "rate of the standard errors")
        for name in names:
            yield Check(name, None, math.nan, math.nan, "not tried: the fixed point was not reached")
    yield from _reductions(problem, point.alpha, point.branch, settings, tell)


# ------------------------------------------------------------------------------------------------------- the local code


def _backends(problem: Problem) -> Iterator[Check]:
    """Compiled against NumPy and mpmath prints of the same expressions, and derivatives against differences."""
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    generator = np.random.default_rng(7)
    h = generator.normal(0.1, 0.9, (40, kernels.length, kernels.columns))
    k = generator.normal(-0.1, 0.8, (40, kernels.length, kernels.teacher_rank))
    mixing, parameters = _local(problem, spectrum)
    variance = np.ascontiguousarray(spectrum.site_variances[problem.cluster_law[0][0]])
    compiled = np.empty(len(h))
    kernels.losses_at(h, k, mixing, parameters, variance, compiled)
    size = np.abs(compiled).max()
    for backend, count in (("numpy", len(h)), ("mpmath", 3)):
        reference = reference_backend(problem, backend)
        losses = reference.losses(h[:count], k[:count], mixing, parameters, variance)
        difference = np.abs(losses - compiled[:count]).max() / size
        yield _below(f"back ends: compiled and {backend}", difference, 1e-10, "loss on random fields, relative")
    reference = reference_backend(problem, "numpy")
    step = 1e-6
    worst = 0.0
    gradient = reference.gradients(h, k, mixing, parameters, variance)
    for token in range(kernels.length):
        for column in range(kernels.columns):
            shift = np.zeros((kernels.length, kernels.columns))
            shift[token, column] = step
            ends = [reference.losses(h + s * shift, k, mixing, parameters, variance) for s in (1, -1)]
            slope = (ends[0] - ends[1]) / (2 * step)
            # a kink between the two ends makes single differences wrong: the median sample is compared
            worst = max(worst, float(np.median(np.abs(slope - gradient[:, token, column]))))
    scale = max(np.abs(gradient).max(), 1e-300)
    yield _below("gradient of the loss", worst / scale, 1e-6, "against central differences, relative")


def _local(problem: Problem, spectrum: Spectrum) -> tuple[Array, Array]:
    from attnphase.proximal import ProximalProblem

    return ProximalProblem(problem, kernels_for(problem), spectrum).parameters


def _symmetries(problem: Problem) -> Iterator[Check]:
    """The loss's symmetries on fields other than those they were found on."""
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    found = loss_symmetries(kernels)
    whole = problem_symmetries(problem, kernels, spectrum, even=Prior.of(problem, kernels, spectrum).even)
    generator = np.random.default_rng(91)
    h = generator.normal(-0.2, 1.1, (50, kernels.length, kernels.columns))
    k = generator.normal(0.3, 1.0, (50, kernels.length, kernels.teacher_rank))
    mixing, parameters = _local(problem, spectrum)
    variance = np.ascontiguousarray(spectrum.site_variances[problem.cluster_law[0][0]])

    def losses(fields: Array, teacher: Array) -> Array:
        values = np.empty(len(fields))
        flat = np.ascontiguousarray(fields), np.ascontiguousarray(teacher)
        kernels.losses_at(*flat, mixing, parameters, variance, values)
        return values

    reference = losses(h, k)
    worst = max(np.abs(losses(h @ A.T, k @ B.T) - reference).max() for A, B in found) / np.abs(reference).max()
    orders = len({order for order, _, _ in whole})
    detail = f"{len(found)} of the loss (signs and exchanges of columns), {orders} of the tokens, {len(whole)} in all"
    yield _below("symmetries", float(worst), 1e-9, detail)


# ---------------------------------------------------------------------------------------------------- the fixed point


def _map_at(problem: Problem, point: BranchPoint, order: int) -> StateEvolution:
    from attnphase.solve import sector_of
    from attnphase.starts import initial_overlaps

    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    rules = Refinement(problem, kernels, spectrum, 2**24)
    sector = sector_of(initial_overlaps(problem, point.branch), problem, kernels, spectrum)
    return StateEvolution(Channel(problem, kernels, spectrum, rules.sobol(order)), point.alpha, sector)


def _gradients(problem: Problem, point: BranchPoint, tell: Tell) -> Iterator[Check]:
    """Central differences of minus the free entropy at the fixed point, which must vanish.

    In the conjugates they are exact. In the overlaps the mean envelope is sampled, and its derivative agrees with the
    Stein forms in expectation only: it is judged by the scatter of the replicates.
    """
    map_ = _map_at(problem, point, 1024)
    overlaps = point.restart.overlaps
    x = overlaps.pack()
    channel = map_.channel
    passed = channel.evaluate(point.alpha, overlaps, Starts.COLD)
    hats = passed.conjugates
    mean = hats.mean()
    image = map_.prior.overlaps(mean)
    if image is None:
        yield Check("gradient of the free entropy", None, math.nan, math.nan, "no image on the checking nodes")
        return
    scales = overlaps.scales(channel.spectrum.rho)

    def minus_phi(at: Overlaps, envelope: Array, c: Conjugates) -> Array:
        terms = map_.prior.maps.free_entropy_terms(
            alpha=point.alpha,
            **map_.prior.arguments(c),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            q=at.q[:, None],
            V=at.V[:, None],
            m=at.m[:, None],
            theta=at.theta[:, None],
            q_hat=c.q_hat,
            V_hat=c.V_hat,
            m_hat=c.m_hat,
            theta_hat=c.theta_hat,
        )
        total = np.zeros(len(envelope))
        for term in terms.values():
            total = total + np.squeeze(term)
        return total

    # in the conjugates, at their own image
    tell("gradient of the free entropy in the conjugates")
    worst = 0.0
    pooled = passed.envelope.mean(keepdims=True)
    size = abs(float(minus_phi(image, pooled, mean)[0]))
    names = ("q_hat", "V_hat", "m_hat", "theta_hat")
    for name in names:
        value = getattr(mean, name)
        unit = max(np.abs(value).max(), 1e-6)
        for index in np.ndindex(value.shape):
            shift = np.zeros_like(value)
            shift[index] = 1e-4 * unit
            if name in ("q_hat", "V_hat"):
                shift = (shift + shift.mT) / 2
            ends = [minus_phi(image, pooled, replace(mean, **{name: value + s * shift}))[0] for s in (1, -1)]
            worst = max(worst, abs(ends[0] - ends[1]) / 2e-4)
    yield _below(
        "gradient of the free entropy, conjugates", worst / size, 1e-5, "central differences, relative to its size"
    )

    # in the overlaps, at their own conjugates: per replicate
    deviations = []
    for i in range(len(x)):
        tell(f"gradient of the free entropy in the overlaps, {i + 1} of {len(x)}")
        step = 1e-3 * scales[i]
        ends = []
        for side in (1, -1):
            moved = x.copy()
            moved[i] += side * step
            at = Overlaps.unpack(moved, *overlaps.theta.shape)
            if not at.feasible(channel.spectrum.rho):
                break
            ends.append(minus_phi(at, channel.evaluate(point.alpha, at, Starts.COLD).envelope, mean))
        if len(ends) == 2:
            # explicit derivative of E[M] per replicate, the Stein forms of all together
            slopes = (ends[0] - ends[1]) / (2 * step)
            deviations.append((slopes.mean(), slopes.std(ddof=1) / math.sqrt(len(slopes)), step, size / scales[i]))
    # two sampled means differ: the conjugates have an error of the same size
    floor = 1e-7
    z = [abs(mean_) / (2 * error + floor * natural) for mean_, error, _, natural in deviations]
    yield _below(
        "gradient of the free entropy, overlaps",
        max(z),
        _SIGMAS,
        f"{len(z)} directions, in standard errors of the sampled derivative",
    )


def _rate(problem: Problem, point: BranchPoint, settings: SolverSettings) -> Check:
    """How the standard error of the map falls with the number of nodes."""
    name = "rate of the standard errors"
    if problem.integration.rule in ("published", "gauss-hermite"):
        return Check(name, None, math.nan, math.nan, f"{problem.integration.rule} nodes have no replicates")
    errors = []
    for points in _POINTS:
        hats = _map_at(problem, point, points).channel.evaluate(point.alpha, point.restart.overlaps, Starts.COLD)
        scatter = []
        # entries that vanish by symmetry say nothing by themselves: each quantity is taken as a whole
        for values in (np.moveaxis(hats.conjugates.q_hat, 1, 0), hats.envelope[:, None]):
            flat = values.reshape(len(values), -1)
            scatter.append(np.linalg.norm(flat.std(axis=0, ddof=1)) / max(np.linalg.norm(flat.mean(axis=0)), 1e-300))
        errors.append(float(np.exp(np.mean(np.log(np.clip(scatter, 1e-300, None))))))
    if errors[0] < 1e-12:
        return Check(name, None, math.nan, math.nan, "the integrand is exact on every rule")
    slope = float(np.polyfit(np.log(_POINTS), np.log(errors), 1)[0])
    fine = _RATES[0] <= slope <= _RATES[1]
    detail = f"errors fall like N^{slope:.2f} (Monte Carlo: N^{_RATE_OF_MONTE_CARLO}), from {errors[0]:.1e} relative"
    return Check(name, fine, slope, _RATES[1], detail)


# --------------------------------------------------------------------------------------------------------- reductions


def _reductions(problem: Problem, alpha: float, branch: str, settings: SolverSettings, tell: Tell) -> Iterator[Check]:
    from derivations.limits import Facts, reductions_of

    weights, _ = problem.spectrum_atoms()
    spectrum = Spectrum.of(problem)
    count = spectrum.sites
    facts = Facts(
        length=problem.tokens.length,
        loss=problem.loss.kind,
        regularizer=problem.regularizer.kind,
        temperature=problem.student.temperature,
        mixture=problem.tokens.kind == "mixture",
        isotropic=len(weights) == 1 and not spectrum.mean.any() and problem.tokens.spectrum is None,
        teacher_mean=bool(spectrum.teacher_means.any()),
        correlated=bool(spectrum.second_moments[:, :count, count:].any()),
    )
    found = reductions_of(facts)
    if not found:
        yield Check("reductions", None, math.nan, math.nan, "no limit with a known answer applies")
    for reduction in found:
        place = f"reduction: {reduction.name}"
        tell(place)
        yield _REDUCTIONS[reduction.name](problem, alpha, branch, settings, within(place, tell))


def _ridge_regression(problem: Problem, alpha: float, branch: str, settings: SolverSettings, tell: Tell) -> Check:
    from derivations.limits import ridge_regression

    point = solve_point(problem, alpha, branch, settings=settings, tell=tell)
    values = {"alpha": alpha, "lambda": problem.regularizer.strength, "gamma": float(problem.site_variances[0])}
    worst = 0.0
    for name, expression in ridge_regression().items():
        exact = float(expression.subs({s: values[str(s)] for s in expression.free_symbols}))
        error = float(np.max(point.errors.get(name, 0.0)))
        worst = max(worst, abs(float(np.ravel(point.values[name])[0]) - exact) / (5 * error + 1e-6 * abs(exact)))
    return _below("reduction: ridge regression", worst, 1.0, "closed form, in units of 5 standard errors + 1e-6")


def _general_route(problem: Problem, alpha: float, branch: str, settings: SolverSettings, tell: Tell) -> Check:
    kernels, spectrum = kernels_for(problem), Spectrum.of(problem)
    point = solve_point(problem, alpha, branch, settings=settings, tell=tell)
    map_ = _map_at(problem, point, 64)
    hats = map_.channel.evaluate(alpha, point.restart.overlaps, Starts.COLD).conjugates.mean()
    closed = map_.prior.overlaps(hats, lift=True)
    general = replace(map_.prior, rows=row_regularizer(problem.regularizer, problem.columns)).overlaps(hats, lift=True)
    limit = 1e-8 if problem.columns == 1 else 1e-5 if problem.columns == 2 else 2e-2
    name = "reduction: ridge as a general regulariser"
    if closed is None or general is None:
        return Check(name, None, math.nan, math.nan, "no image on the checking nodes")
    scale = closed.scales(spectrum.rho)
    worst = float(np.max(np.abs(closed.pack() - general.pack()) / scale))
    return _below(name, worst, limit, f"overlaps of one map, relative; {kernels.columns} columns")


def _same_solution(name: str, changes: dict[str, Any], limit: float, detail: str) -> Callable[..., Check]:
    def compare(problem: Problem, alpha: float, branch: str, settings: SolverSettings, tell: Tell) -> Check:
        fields = {key: value(problem) if callable(value) else value for key, value in changes.items()}
        try:
            other = problem.with_fields(fields)
        except ProblemError as error:
            return Check(name, None, math.nan, math.nan, f"not tried: {error}")
        # few nodes: the two must agree on any
        coarse = {"integration.rule": "sobol", "integration.nodes": 64}
        a, b = (
            solve_point(p.with_fields(coarse), alpha, branch, settings=settings, tell=tell) for p in (problem, other)
        )
        worst = 0.0
        for quantity in ("weight_norm", "test_error", "training_loss"):
            size = max(abs(float(a.values[quantity])), 1e-12)
            worst = max(worst, abs(float(a.values[quantity]) - float(b.values[quantity])) / size)
        return _below(name, worst, limit, detail)

    return compare


def _clusters(count: int) -> Callable[[Problem], list[list[dict[str, float]]]]:
    def of(problem: Problem) -> list[list[dict[str, float]]]:
        sigmas = np.sqrt(problem.site_variances)
        return [[{"sigma": float(s)}] * count for s in sigmas]

    return of


def _cooled(problem: Problem, alpha: float, branch: str, settings: SolverSettings, tell: Tell) -> Check:
    T = problem.student.temperature
    name = "reduction: temperature"
    other = problem.with_fields({"student.temperature": 1.0, "regularizer.strength": problem.regularizer.strength * T})
    coarse = {"integration.rule": "sobol", "integration.nodes": 64}
    a, b = (solve_point(p.with_fields(coarse), alpha, branch, settings=settings, tell=tell) for p in (problem, other))
    pairs = (
        (a.values["training_loss"], b.values["training_loss"]),
        (a.values["weight_norm"], T * b.values["weight_norm"]),
    )
    worst = max(abs(float(x) - float(y)) / abs(float(x)) for x, y in pairs)
    # the two iterations start at different points and stop at the tolerance
    return _below(name, worst, 1e3 * settings.tolerance, "temperature 1 and ridge lambda T, relative")


_REDUCTIONS: dict[str, Callable[..., Check]] = {
    "ridge regression": _ridge_regression,
    "ridge as a general regulariser": _general_route,
    "one cluster is a Gaussian": _same_solution(
        "reduction: one cluster is a Gaussian",
        {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": _clusters(1)},
        1e-10,
        "the same problem as a mixture, relative",
    ),
    "equal clusters are a Gaussian": _same_solution(
        "reduction: equal clusters are a Gaussian",
        {
            "tokens.kind": "mixture",
            "tokens.sigma": None,
            "tokens.clusters": _clusters(2),
            "tokens.law": {"kind": "independent", "weights": [0.3, 0.7]},
        },
        1e-6,
        "two clusters with the token's own law, relative",
    ),
    "temperature": _cooled,
}


# --------------------------------------------------------------------------------------------------------- experiment


def _experiment(problem: Problem, point: BranchPoint, progress: bool) -> Check:
    """Small instances, trained from the branch's start, against the theory after a correction in 1/d."""
    from attnphase.compare import compare
    from attnphase.dataset import from_points
    from attnphase.errors import MissingExtraError
    from attnphase.extras import require_torch

    name = "experiment at finite d"
    try:
        require_torch()
    except MissingExtraError as error:
        return Check(name, None, math.nan, math.nan, f"not tried: {error}")
    if point.status is not Status.converged:
        return Check(name, None, math.nan, math.nan, "not tried: the fixed point was not reached")
    import attnphase
    from attnphase.errors import ExperimentError

    optimizer = "lbfgs" if problem.regularizer.kind == "ridge" else "fista"
    options: dict[str, Any] = {"tolerance": _TRAINED, "steps": 1000, "test_samples": 0, "seed": 1, "progress": progress}
    try:
        runs = attnphase.simulate(problem, point.alpha, point.branch, _DIMENSIONS, _SEEDS, optimizer, **options)
    except (ProblemError, ExperimentError) as error:
        return Check(name, None, math.nan, math.nan, f"not tried: {error}")
    quantities = [q for q in compare(from_points([point]), runs).quantities if q.name in _COMPARED]
    known = [q for q in quantities if math.isfinite(q.z)]
    if not known:
        return Check(name, None, math.nan, math.nan, "no quantity has a standard error")
    detail = f"{optimizer} at d = {', '.join(map(str, _DIMENSIONS))}, {_SEEDS} instances each: " + ", ".join(
        f"{q.name} {q.z:+.1f}" for q in known
    )
    loss = next((q for q in known if q.name == "training_loss"), None)
    if loss is not None and loss.z < -_SIGMAS:
        left = f"the runs left this branch for a lower minimum (training loss {loss.z:+.1f} standard errors)"
        return Check(name, None, math.nan, math.nan, left)
    return _below(name, max(abs(q.z) for q in known), _SIGMAS, f"{detail} standard errors of the limit")
