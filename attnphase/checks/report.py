"""Consistency report: whether everything that must agree for a problem agrees.

Every check compares two independent ways to one number, at a solved fixed point or on random fields, so that a user's
own model is tested as the shipped ones are.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.data.text import pairs_text, wrapped
from attnphase.errors import ProblemError
from attnphase.fixed_points.iteration import Status
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings, sample_complexity
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import reference_backend
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Tell, progress_line, within
from attnphase.rows.row_problem import row_regularizer
from attnphase.state_evolution.branches import BRANCHES
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.proximal import Starts
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System

__all__ = ["Check", "Report", "check"]

_SIGMAS = 5.0  # standard errors within which sampled quantities must agree
_FALSE_ALARM = 1e-5  # probability with which a sampled check fails though all is right
_MARGIN = 3.0  # standard errors beyond the limit by which an error must stand out to be seen surely
_FEW = 64  # Sobol points per replicate for what is exact on any
_LABELS = 4096  # for the gradient of losses that know the teacher's sign only
_MOST = 2**19  # nodes in all, sign changes and clusters included, for means that need no search
_STEP = 1e-5  # of differences, relative
_SAMPLES, _BATCH = 2**21, 2**17  # of the test error's own sample
_POINTS = (64, 256, 1024)  # Sobol points per replicate, for the rate of the standard errors
# fastest and slowest decay of a standard error with the number of nodes that is believed: scrambled points reach -1.5
# on smooth integrands and come down to it from faster ones, more than -3 among them; replicates that are the same have
# no error at all
_RATES = (-6.0, -0.35)
_RATE_OF_MONTE_CARLO = -0.5
_DIMENSIONS, _SEEDS = (60, 120, 240), 12  # of the small experiment
_TRAINED = 1e-6  # norm of its gradient / sqrt(d)
_COMPARED = ("training_loss", "test_error", "weight_norm")
_NOT_REACHED = "not tried: the fixed point was not reached"


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
        tell("comparing expressions of the training loss")
        yield _expressions(problem, point, settings)
        yield from _equations(problem, point, settings, tell)
        tell("the standard errors on more and more nodes")
        yield _rate(problem, point, settings)
    else:
        names = ("expressions of the training loss", "gradient of the free entropy", "rate of the standard errors")
        for name in names:
            yield Check(name, None, math.nan, math.nan, _NOT_REACHED)
    yield from _reductions(problem, point, settings, tell)


# ------------------------------------------------------------------------------------------------------- the local code


def _backends(problem: Problem) -> Iterator[Check]:
    """Compiled against NumPy and mpmath prints of the same expressions, and derivatives against differences."""
    system = System.of(problem)
    kernels, spectrum = system.kernels, system.spectrum
    generator = np.random.default_rng(7)
    h = generator.normal(0.1, 0.9, (40, kernels.length, kernels.columns))
    k = generator.normal(-0.1, 0.8, (40, kernels.length, kernels.teacher_rank))
    mixing, parameters = system.parameters
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


def _symmetries(problem: Problem) -> Iterator[Check]:
    """The loss's symmetries on fields other than those they were found on."""
    system = System.of(problem)
    kernels, spectrum = system.kernels, system.spectrum
    found, whole = loss_symmetries(kernels), system.symmetries
    generator = np.random.default_rng(91)
    h = generator.normal(-0.2, 1.1, (50, kernels.length, kernels.columns))
    k = generator.normal(0.3, 1.0, (50, kernels.length, kernels.teacher_rank))
    mixing, parameters = system.parameters
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


def _map_at(problem: Problem, point: BranchPoint, rule: int | Rule, settings: SolverSettings) -> StateEvolution:
    """The map at a point, under a rule or under Sobol points, so many per replicate."""
    system = System.of(problem, threads=settings.threads or os.cpu_count() or 1)
    if isinstance(rule, int):
        rule = system.refinement(_MOST).sobol(rule)
    sector = Sector.of(initial_overlaps(problem, point.branch), system.symmetries)
    return StateEvolution(Channel(system, rule), point.alpha, sector)


def _expressions(problem: Problem, point: BranchPoint, settings: SolverSettings) -> Check:
    """Training loss by (14), by (121) and as minus the free entropy (104): the same at a fixed point, on any nodes."""
    assert point.restart.rule is not None
    map_ = _map_at(problem, point, point.restart.rule, settings)
    map_.adopt(point.restart.minima)
    x = map_.pack(point.restart.overlaps)
    measured = map_.measure(x, pooled=True)
    name = "expressions of the training loss"
    if measured is None:
        return Check(name, None, math.nan, math.nan, "the map leaves its domain at the fixed point")
    values = [float(point.values["training_loss"]), float(measured["training_loss_direct"][0]), map_.free_entropy(x)]
    limit = 100 * max(settings.tolerance, 1e-9) * max(abs(values[0]), 1e-12)
    return _below(name, max(values) - min(values), limit, "(14), (121) and minus the free entropy (104)")


# -------------------------------------------------------------------------------------------------------- equations


@dataclass(frozen=True, eq=False)
class _Generic:
    """Order parameters near a fixed point that no symmetry makes vanish, their conjugates, and the image of these.

    The equations state that minus the free entropy is stationary: in the overlaps wherever the conjugates are theirs,
    in the conjugates wherever the overlaps are theirs. Both hold away from the fixed point, where m and theta may be
    zero and a wrong factor in their equations would not show.
    """

    alpha: float
    prior: Prior
    at: Overlaps
    conjugates: Conjugates
    image: Overlaps

    @classmethod
    def near(cls, problem: Problem, point: BranchPoint, settings: SolverSettings) -> _Generic | None:
        """The furthest of a few points whose conjugates have an image; None if there is none."""
        map_ = _map_at(problem, point, _FEW, settings)
        for size in (1.0, 0.5, 0.25, 0.1, 0.03, 0.01):
            at = _displaced(point.restart.overlaps, map_.channel.system.spectrum.rho, size)
            hats = map_.channel.evaluate(point.alpha, at, Starts.COLD).conjugates.mean()
            image = map_.prior.overlaps(hats)
            if image is not None:
                return cls(point.alpha, map_.prior, at, hats, image)
        return None

    @property
    def exactness(self) -> float:
        """How well equation (7) must hold: beyond the ridge the mean over a row of several weights is a quadrature."""
        if self.prior.rows is None or self.prior.kernels.columns == 1:
            return 1e-5
        return 1e-4 if self.prior.kernels.columns == 2 else 5e-3

    def minus_phi(
        self, at: Overlaps, envelope: Array, conjugates: Conjugates, of_prior: Mapping[str, Any] | None = None
    ) -> Array:
        """Minus the free entropy per replicate (S,); `of_prior`: the prior's arguments, if known already."""
        terms = self.prior.maps.free_entropy_terms(
            alpha=self.alpha,
            **(of_prior or self.prior.arguments(conjugates)),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            q=at.q[:, None],
            V=at.V[:, None],
            m=at.m[:, None],
            theta=at.theta[:, None],
            **vars(conjugates),
        )
        total = np.zeros(len(envelope))
        for term in terms.values():
            total = total + np.squeeze(term)
        return total

    def at_image(self, conjugates: Conjugates) -> float:
        """Minus the free entropy at the image, without the energy, which does not depend on the conjugates."""
        return float(self.minus_phi(self.image, np.zeros(1), conjugates)[0])


def _displaced(x: Overlaps, rho: Array, size: float) -> Overlaps:
    """Overlaps moved by a share of their own size, in all entries; the teacher's fields stay well undetermined."""
    generator = np.random.default_rng(5)
    length, columns, rank = x.theta.shape
    natural = np.trace(rho, axis1=-2, axis2=-1).mean() / rank
    spread = np.maximum(np.trace(x.q, axis1=-2, axis2=-1).mean() / columns, 1e-3 * natural)

    def positive(scale: float) -> Array:
        factors = generator.normal(size=(length, columns, columns + 2))
        return scale * factors @ factors.mT / (columns + 2)

    q = x.q + size * positive(0.3 * spread)
    V = x.V + size * positive(0.3 * np.trace(x.V, axis1=-2, axis2=-1).mean() / columns)
    m = x.m + size * 0.5 * np.sqrt(spread) * generator.uniform(0.5, 1.0, x.m.shape)
    theta = x.theta + size * 0.3 * np.sqrt(spread * natural) * generator.uniform(-1.0, 1.0, x.theta.shape)
    margin = 0.3 * size * np.linalg.eigvalsh(rho).min()
    while np.linalg.eigvalsh(rho - theta.mT @ np.linalg.solve(q, theta)).min() < margin:
        theta = 0.9 * theta
    return Overlaps(q, V, m, theta)


def _equations(problem: Problem, point: BranchPoint, settings: SolverSettings, tell: Tell) -> Iterator[Check]:
    """Every equation against a derivative of the free entropy, and the observables against other ways to them."""
    generic = _Generic.near(problem, point, settings)
    if generic is None:
        detail = "not tried: no conjugates near the fixed point have an image"
        yield Check("gradient of the free entropy", None, math.nan, math.nan, detail)
        return
    tell("gradient of the free entropy in the conjugates")
    yield _in_conjugates(generic)
    tell("moments of the fields")
    yield _law(problem, point, generic, settings)
    tell("energies at the proximal points")
    yield _envelopes(problem, point, generic, settings)
    tell("gradient of the free entropy in the overlaps")
    yield _in_overlaps(problem, point, generic, settings)
    yield _weight_norm(generic)
    tell("sampling the test error")
    yield _test_error(problem, point, generic, settings)


def _in_conjugates(generic: _Generic) -> Check:
    """Equation (7): at the image of the conjugates the free entropy is stationary in them, exactly."""
    c, image = generic.conjugates, generic.image
    size = abs(generic.at_image(c))
    worst = 0.0
    for name, overlap in (("q_hat", image.V), ("V_hat", image.q), ("m_hat", image.m), ("theta_hat", image.theta)):
        value = getattr(c, name)
        unit = np.abs(value).max()
        whole = max(unit * np.abs(overlap).max(), 1e-3 * size)  # what the two couple by
        for index in np.ndindex(value.shape):
            shift = np.zeros_like(value)
            shift[index] = _STEP * unit
            if name in ("q_hat", "V_hat"):
                shift = (shift + shift.mT) / 2
            ends = [generic.at_image(replace(c, **{name: value + side * shift})) for side in (1, -1)]
            worst = max(worst, abs(ends[0] - ends[1]) / (2 * _STEP * whole))
    detail = "(7), by central differences, relative to the term of each"
    return _below("gradient of the free entropy, conjugates", worst, generic.exactness, detail)


@dataclass(frozen=True, eq=False)
class _Held:
    """Proximal points of all nodes at some overlaps, held while the overlaps move.

    The energies are stationary in the proximal points, so that the mean envelope has the derivatives of the mean energy
    at points that are held: no node needs a second search.

    The mean is over the joint law of the centres omega and the teacher's fields k. As the overlaps move the teacher's
    fields stay, and the centres are carried along by the linear map that keeps the law right to first order: slopes of
    the mean envelope are then those of equation (8) on every sample, not in expectation alone, and need few nodes.
    """

    channel: Channel
    at: Overlaps
    conjugates: Conjugates
    envelope: Array
    fields: Array

    @classmethod
    def of(cls, channel: Channel, alpha: float, at: Overlaps) -> _Held:
        passed = channel.evaluate(alpha, at, Starts.COLD)
        shape = channel.nodes_at(at)[0].shape
        return cls(channel, at, passed.conjugates, passed.envelope, passed.minima.fields[:, 0].reshape(shape))

    def energy(self, moved: Overlaps) -> Array:
        """Mean energy of the held points at other overlaps, per replicate (S,)."""
        channel = self.channel
        omega, k, shares = self.carried(moved)
        away = self.fields - omega
        inverse = np.linalg.inv(moved.V)[channel.configurations]
        quadratic = 0.5 * np.einsum("csnmli,clij,csnmlj->csnm", away, inverse, away, optimize=True)
        return channel.scalar_mean(quadratic + channel.proximal.losses(self.fields, k), shares)

    def searched(self, moved: Overlaps) -> Array:
        """Mean envelope at other overlaps by a new search of all nodes, per replicate (S,)."""
        omega, k, shares = self.carried(moved)
        orbit = tuple((sign, 1) for sign in range(omega.shape[1]))
        solution, _ = self.channel.proximal.minimise(omega, k, moved.V, orbit, Starts.COLD, None)
        return self.channel.scalar_mean(solution.envelope, shares)

    def carried(self, moved: Overlaps) -> tuple[Array, Array, Array | None]:
        """Centres, teacher's fields with their mean, and the nodes' shares at other overlaps."""
        means = self.channel.system.spectrum.teacher_means[self.channel.configurations][:, None, None, None]
        if self.channel.labelled:  # the labels' probabilities move too
            omega, k, _, _, shares = self.channel.nodes_at(moved)
            return omega, k + means, shares
        sites = self.channel.configurations
        omega, k, _, floored, _ = self.channel.nodes_at(self.at)
        # omega - m is theta rho^-1 k and a rest u that is independent of k, of covariance C
        back = self.at.theta @ np.linalg.inv(self.channel.system.spectrum.rho)
        rest = floored.q - back @ self.at.theta.mT
        dq, dtheta = moved.q - self.at.q, moved.theta - self.at.theta
        on_rest = (dq / 2 - dtheta @ back.mT) @ np.linalg.inv(rest)
        on_k = dtheta @ np.linalg.inv(self.channel.system.spectrum.rho) - on_rest @ back
        dm = (moved.m - self.at.m)[sites, :, 0][:, None, None, None]
        centred = omega - self.at.m[sites, :, 0][:, None, None, None]
        change = np.einsum("clij,csnmlj->csnmli", on_rest[sites], centred)
        change = change + np.einsum("clij,csnmlj->csnmli", on_k[sites], k)
        return omega + dm + change, k + means, None


def _law(problem: Problem, point: BranchPoint, generic: _Generic, settings: SolverSettings) -> Check:
    """Moments of all nodes' fields against the order parameters: means, q, theta and, but for labels, rho."""
    channel, at = _many(problem, point, settings), generic.at
    rho = channel.system.spectrum.rho
    omega, k, _, _, shares = channel.nodes_at(at)
    sites, columns, rank = channel.configurations, at.q.shape[-1], rho.shape[-1]
    fields = np.concatenate([omega - at.m[sites, :, 0][:, None, None, None], k], axis=-1)
    flat = np.concatenate([np.ones((*fields.shape[:-2], 1)), fields.reshape(*fields.shape[:-2], -1)], axis=-1)
    weighted = flat * channel.rule.weights[:, None] * (1.0 if shares is None else shares[..., None])
    moments = (weighted.mT @ flat).mean(axis=1)
    joint = np.block([[at.q, at.theta], [at.theta.mT, rho]])
    expected = np.zeros_like(moments)
    expected[..., 0, 0] = 1.0
    known = np.ones(expected.shape[-2:], dtype=bool)
    for token in range(sites.shape[1]):
        part = slice(1 + token * (columns + rank), 1 + (token + 1) * (columns + rank))
        expected[:, :, part, part] = joint[sites[:, token]][:, None]
        if channel.labelled:  # a node has the mean of k under its label
            known[part.start + columns : part.stop, part.start + columns : part.stop] = False
    size = np.sqrt(np.diagonal(expected, axis1=-2, axis2=-1))
    differences = ((moments - expected) / (size[..., :, None] * size[..., None, :]))[..., known]
    return _scattered("law of the fields", np.moveaxis(differences, 1, 0), "moments of the nodes")


def _many(problem: Problem, point: BranchPoint, settings: SolverSettings) -> Channel:
    """The channel on many nodes, for means that need no search."""
    channel = _map_at(problem, point, _FEW, settings).channel
    return _map_at(problem, point, _affordable(channel), settings).channel


def _scattered(name: str, differences: Array, detail: str) -> Check:
    """Whether means over replicates (S, ...) of relative differences vanish within their own scatter."""
    replicates = len(differences)
    flat = differences.reshape(replicates, -1)
    errors = flat.std(axis=0, ddof=1) / math.sqrt(replicates) + 1e-6
    limit = float(stats.t.isf(_FALSE_ALARM / (2 * flat.shape[1]), replicates - 1))
    seen = 100 * (limit + _MARGIN) * float(errors.max())
    detail = f"{detail}, in standard errors (Student's t); an error of {seen:.2g} % would be seen"
    return _below(name, float(np.max(np.abs(flat.mean(axis=0)) / errors)), limit, detail)


def _envelopes(problem: Problem, point: BranchPoint, generic: _Generic, settings: SolverSettings) -> Check:
    """The compiled envelope against the energy at its minimiser, and its slopes with a new search on either side."""
    channel, at = _map_at(problem, point, _FEW, settings).channel, generic.at
    held = _Held.of(channel, point.alpha, at)
    worst = np.abs(held.envelope - held.energy(at)).max()
    x, scales = at.pack(), at.scales(channel.system.spectrum.rho)
    signs = np.random.default_rng(6).choice([-1.0, 1.0], len(x))
    for block in _blocks(at):
        step = np.zeros(len(x))
        step[block] = _STEP * scales[block] * signs[block]
        ends = [Overlaps.unpack(x + side * step, *at.theta.shape) for side in (1, -1)]
        changes = [upper - lower for upper, lower in (map(way, ends) for way in (held.searched, held.energy))]
        # a node that changes its minimum between the ends spoils its replicate: the median one is compared
        worst = max(worst, float(np.median(np.abs(changes[0] - changes[1]))) / (2 * _STEP))
    size = max(np.abs(held.envelope).max(), 1e-300)
    return _below("mean envelope", float(worst / size), 1e-5, "energy at the proximal points, and its slopes, relative")


def _affordable(channel: Channel) -> int:
    """Sobol points per replicate that make up the largest number of nodes, sign changes and clusters included."""
    rule = channel.rule
    return 2 ** int(math.log2(max(_MOST // (rule.replicates * len(rule.signs) * len(channel.probabilities)), _FEW)))


def _blocks(x: Overlaps) -> list[slice]:
    """Where q, V, m and theta lie in the packed vector."""
    triangle = x.q.shape[0] * len(np.triu_indices(x.q.shape[-1])[0])
    edges = np.cumsum([0, triangle, triangle, x.m.size, x.theta.size]).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def _in_overlaps(problem: Problem, point: BranchPoint, generic: _Generic, settings: SolverSettings) -> Check:
    """Equation (8): at the conjugates of the overlaps the free entropy is stationary in these.

    Every replicate's slope of the mean envelope is held against its own conjugates. The two are equal on any nodes,
    except for losses that know the teacher's sign only: there they are so in expectation, and the mean of their
    differences is judged by its own scatter.
    """
    name = "gradient of the free entropy, overlaps"
    channel = _map_at(problem, point, _FEW, settings).channel
    if channel.labelled:
        channel = _map_at(problem, point, _LABELS, settings).channel
    differences = _gradients(generic, _Held.of(channel, point.alpha, generic.at))
    detail = f"(8), {differences.shape[1]} entries on {channel.rule.size} nodes"
    if channel.labelled:
        return _scattered(name, differences, detail)
    worst = float(np.abs(differences).max())
    return _below(name, worst, 1e-5, f"{detail}, by central differences, relative to the term of each")


def _gradients(generic: _Generic, held: _Held) -> Array:
    """Slopes of minus the free entropy in the overlaps, relative to the couplings to the conjugates, (S, P)."""
    at, hats = generic.at, held.conjugates
    x, scales = at.pack(), at.scales(held.channel.system.spectrum.rho)
    of_prior = generic.prior.arguments(generic.conjugates)  # of a term that cancels
    changes, couplings = np.empty((2, len(x), len(held.envelope)))
    for i in range(len(x)):
        step = np.zeros(len(x))
        step[i] = _STEP * scales[i]
        ends = [Overlaps.unpack(x + side * step, *at.theta.shape) for side in (1, -1)]
        for result, way in ((changes, held.energy), (couplings, lambda _: 0 * held.envelope)):
            upper, lower = (generic.minus_phi(end, way(end), hats, of_prior) for end in ends)
            result[i] = upper - lower
    for block in _blocks(at):
        changes[block] /= max(np.abs(couplings[block].mean(axis=1)).max(), 1e-300)
    return changes.T


def _weight_norm(generic: _Generic) -> Check:
    """Half the squared norm is the derivative of minus the free entropy in the ridge."""
    prior, hats = generic.prior, generic.conjugates
    norm = float(np.squeeze(_observables(generic, np.ones((3, 1)))["weight_norm"]))
    ridge = prior.strength if prior.rows is None else prior.rows.ridge
    step = _STEP * (ridge or 1e-3)

    def moved(change: float) -> _Generic:
        if prior.rows is None:
            return replace(generic, prior=replace(prior, strength=ridge + change))
        return replace(generic, prior=replace(prior, rows=replace(prior.rows, ridge=ridge + change)))

    ends = [moved(side * step).at_image(hats) for side in (1, -1)]
    difference = abs((ends[0] - ends[1]) / step - norm) / max(abs(norm), 1e-300)
    detail = "derivative of minus the free entropy in the ridge, relative"
    return _below("norm of the weights", difference, generic.exactness, detail)


def _observables(generic: _Generic, means: Array) -> dict[str, Array]:
    """Observables at generic conjugates; `means` (3, S) are those of the envelope and of the two losses."""
    envelope, at_prox, at_omega = means[:, :, None, None]
    return generic.prior.maps.observables(
        alpha=generic.alpha,
        **generic.prior.arguments(generic.conjugates),
        field_mean=lambda values: values,
        envelope=envelope,
        loss_at_prox=at_prox,
        loss_at_omega=at_omega,
        length=generic.prior.kernels.length,
        q=generic.at.q[:, None],
        V=generic.at.V[:, None],
        **vars(generic.conjugates),
    )


def _test_error(problem: Problem, point: BranchPoint, generic: _Generic, settings: SolverSettings) -> Check:
    """The test error by quadrature against a sample of its own: fields of student and teacher drawn together."""
    channel, at = _many(problem, point, settings), generic.at
    spectrum, kernels = channel.system.spectrum, channel.system.kernels
    means = np.ones((3, channel.rule.replicates))
    means[2] = channel.loss_at_omega(at)
    values = np.broadcast_to(np.squeeze(_observables(generic, means)["test_error"]), channel.rule.replicates)
    generator = np.random.default_rng([problem.integration.seed, 8])
    joint = np.block([[at.q, at.theta], [at.theta.mT, spectrum.rho]])
    factors = np.linalg.cholesky(joint)
    centres = np.concatenate([at.m[..., 0], spectrum.teacher_means], axis=1)
    mixing, parameters = channel.system.parameters
    losses = np.empty(_SAMPLES)
    counts = generator.multinomial(_SAMPLES, channel.probabilities)
    edges = np.concatenate([[0], np.cumsum(counts)])
    for sites, (start, stop) in zip(channel.configurations, pairwise(edges), strict=True):
        for begin in range(start, stop, _BATCH):
            part = losses[begin : min(begin + _BATCH, stop)]
            z = generator.normal(size=(len(part), kernels.length, factors.shape[-1]))
            fields = np.einsum("lij,nlj->nli", factors[sites], z) + centres[sites]
            h, k = (np.ascontiguousarray(f) for f in np.split(fields, [kernels.columns], axis=2))
            kernels.losses_at(h, k, mixing, parameters, np.ascontiguousarray(spectrum.site_variances[sites]), part)
    sampled, error = 2 * losses.mean() / kernels.length, 2 * losses.std() / kernels.length / math.sqrt(_SAMPLES)
    total = math.hypot(error, float(values.std(ddof=1)) / math.sqrt(len(values)))
    z = abs(float(values.mean()) - sampled) / max(total, 1e-9 * abs(sampled) + 1e-300)
    seen = (_SIGMAS + _MARGIN) * total / max(abs(sampled), 1e-300)
    detail = f"against {_SAMPLES} samples, in standard errors; an error of {100 * seen:.2g} % would be seen"
    return _below("test error", z, _SIGMAS, detail)


def _rate(problem: Problem, point: BranchPoint, settings: SolverSettings) -> Check:
    """How the standard error of the map falls with the number of nodes."""
    name = "rate of the standard errors"
    if problem.integration.rule in ("published", "gauss-hermite"):
        return Check(name, None, math.nan, math.nan, f"{problem.integration.rule} nodes have no replicates")
    errors = []
    for points in _POINTS:
        channel = _map_at(problem, point, points, settings).channel
        hats = channel.evaluate(point.alpha, point.restart.overlaps, Starts.COLD)
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


def _reductions(problem: Problem, point: BranchPoint, settings: SolverSettings, tell: Tell) -> Iterator[Check]:
    from derivations.replica.limits import Facts, reductions_of

    weights, _ = problem.spectrum_atoms()
    spectrum = System.of(problem).spectrum
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
        yield _REDUCTIONS[reduction.name](problem, point, settings, within(place, tell))


def _ridge_regression(problem: Problem, point: BranchPoint, *_: Any) -> Check:
    from derivations.replica.limits import ridge_regression

    values = {"alpha": point.alpha, "lambda": problem.regularizer.strength, "gamma": float(problem.site_variances[0])}
    worst = 0.0
    for name, expression in ridge_regression().items():
        exact = float(expression.subs({s: values[str(s)] for s in expression.free_symbols}))
        error = float(np.max(point.errors.get(name, 0.0)))
        worst = max(worst, abs(float(np.ravel(point.values[name])[0]) - exact) / (5 * error + 1e-6 * abs(exact)))
    return _below("reduction: ridge regression", worst, 1.0, "closed form, in units of 5 standard errors + 1e-6")


def _general_route(problem: Problem, point: BranchPoint, settings: SolverSettings, _: Tell) -> Check:
    map_ = _map_at(problem, point, _FEW, settings)
    hats = map_.channel.evaluate(point.alpha, point.restart.overlaps, Starts.COLD).conjugates.mean()
    closed = map_.prior.overlaps(hats, lift=True)
    general = replace(map_.prior, rows=row_regularizer(problem.regularizer, problem.columns)).overlaps(hats, lift=True)
    limit = 1e-8 if problem.columns == 1 else 1e-5 if problem.columns == 2 else 2e-2
    name = "reduction: ridge as a general regulariser"
    if closed is None or general is None:
        return Check(name, None, math.nan, math.nan, "no image on the checking nodes")
    scale = closed.scales(map_.system.spectrum.rho)
    worst = float(np.max(np.abs(closed.pack() - general.pack()) / scale))
    return _below(name, worst, limit, f"overlaps of one map, relative; {problem.columns} columns")


def _same_map(name: str, changes: dict[str, Any], detail: str) -> Callable[..., Check]:
    """Two problems that are one: the same image of the same overlaps, and the same losses.

    Not their solutions: from different starts two iterations on few nodes may settle beside each other.
    """

    def compare(problem: Problem, point: BranchPoint, settings: SolverSettings, _: Tell) -> Check:
        fields = {key: value(problem) if callable(value) else value for key, value in changes.items()}
        try:
            other = problem.with_fields(fields)
        except ProblemError as error:
            return Check(name, None, math.nan, math.nan, f"not tried: {error}")
        clusters = len(other.sites) // len(problem.sites)
        ours = _applied(problem, point, point.restart.overlaps, settings)
        theirs = _applied(other, point, _repeated(point.restart.overlaps, clusters), settings)
        if ours is None or theirs is None:
            return Check(name, None, math.nan, math.nan, "no image on the checking nodes")
        expected = _repeated(ours[0], clusters)
        moved = np.abs(expected.pack() - theirs[0].pack()) / expected.scales(System.of(other).spectrum.rho)
        losses = np.abs(ours[1] - theirs[1]) / np.maximum(np.abs(ours[1]), 1e-12)
        return _below(name, float(max(moved.max(), losses.max())), 1e-9, detail)

    return compare


def _repeated(x: Overlaps, clusters: int) -> Overlaps:
    """The overlaps of every token as those of each of its clusters."""
    return Overlaps(*(np.repeat(values, clusters, axis=0) for values in (x.q, x.V, x.m, x.theta)))


def _applied(
    problem: Problem, point: BranchPoint, x: Overlaps, settings: SolverSettings
) -> tuple[Overlaps, Array] | None:
    """Image of overlaps under a problem's map on few nodes, with the mean envelope and the mean loss at omega."""
    map_ = _map_at(problem, point, _FEW, settings)
    passed = map_.channel.evaluate(point.alpha, x, Starts.COLD)
    image = map_.prior.overlaps(passed.conjugates.mean(), lift=True)
    if image is None:
        return None
    return image, np.array([passed.envelope.mean(), map_.channel.loss_at_omega(x).mean()])


def _solved(problem: Problem, point: BranchPoint, settings: SolverSettings, tell: Tell) -> BranchPoint:
    """Another problem at a point's alpha and branch, on few nodes: what must agree must do so on any."""
    coarse = problem.with_fields({"integration.rule": "sobol", "integration.nodes": _FEW})
    return solve_point(coarse, point.alpha, point.branch, settings=settings, tell=tell)


def _clusters(count: int) -> Callable[[Problem], list[list[dict[str, float]]]]:
    def of(problem: Problem) -> list[list[dict[str, float]]]:
        sigmas = np.sqrt(problem.site_variances)
        return [[{"sigma": float(s)}] * count for s in sigmas]

    return of


def _cooled(problem: Problem, point: BranchPoint, settings: SolverSettings, tell: Tell) -> Check:
    T = problem.student.temperature
    name = "reduction: temperature"
    other = problem.with_fields({"student.temperature": 1.0, "regularizer.strength": problem.regularizer.strength * T})
    a, b = (_solved(p, point, settings, tell) for p in (problem, other))
    if not a.status is b.status is Status.converged:
        return Check(name, None, math.nan, math.nan, _NOT_REACHED)
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
    "one cluster is a Gaussian": _same_map(
        "reduction: one cluster is a Gaussian",
        {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": _clusters(1)},
        "the same map as a mixture's, relative",
    ),
    "equal clusters are a Gaussian": _same_map(
        "reduction: equal clusters are a Gaussian",
        {
            "tokens.kind": "mixture",
            "tokens.sigma": None,
            "tokens.clusters": _clusters(2),
            "tokens.law": {"kind": "independent", "weights": [0.3, 0.7]},
        },
        "the same map with two clusters of the token's own law, relative",
    ),
    "temperature": _cooled,
}


# --------------------------------------------------------------------------------------------------------- experiment


def _experiment(problem: Problem, point: BranchPoint, progress: bool) -> Check:
    """Small instances, trained from the branch's start, against the theory after a correction in 1/d."""
    from attnphase.checks.comparison import compare
    from attnphase.data.dataset import from_points
    from attnphase.errors import MissingExtraError
    from attnphase.extras import require_torch

    name = "experiment at finite d"
    try:
        require_torch()
    except MissingExtraError as error:
        return Check(name, None, math.nan, math.nan, f"not tried: {error}")
    if point.status is not Status.converged:
        return Check(name, None, math.nan, math.nan, _NOT_REACHED)
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
