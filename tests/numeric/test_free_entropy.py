"""The free entropy is stationary where the state-evolution equations hold, and reduces to what is known exactly.

Most checks are made at random order parameters and conjugates: ``-Phi`` is stationary in the order parameters wherever
the conjugates are their image under the channel, and in the conjugates wherever the order parameters are the image of
the conjugates under the spectral measure. A fixed point is where both hold.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import cast

import numpy as np
import pytest
from scipy.optimize import root_scalar
from scipy.stats import ortho_group

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import Rule, gauss_hermite, sobol
from attnphase.kernels.compiler import Kernels, kernels_for
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Damped, Status, iterate
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.channel import Channel, ChannelPass
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.symmetries import is_sign_symmetric
from attnphase.state_evolution.system import System

TIGHT = SolverSettings(threads=1, tolerance=1e-10)

ONE_TOKEN = Problem().with_fields(
    {
        "tokens.length": 1,
        "tokens.sigma": 0.45,
        "positions.gram": [[0.7]],
        "teacher.score": "linear",
        "teacher.omega": 0.37,
        "teacher.mixing": [[0.58]],
        "student.score": "linear",
        "regularizer.strength": 0.06,
    }
)
TWO_TOKENS = Problem().with_fields(
    {
        "tokens.sigma": [0.41, 0.36],
        "positions.gram": [[1.2, -0.9], [-0.9, 0.8]],
        "teacher.omega": 0.28,
        "teacher.mixing": [[0.66, 0.31], [0.42, 0.56]],
        "regularizer.strength": 0.02,
    }
)
LINEAR = {"teacher.score": "linear", "student.score": "linear"}

# at small V, that is with many samples, the local problem is convex and Gauss-Hermite rules converge
SMOOTH: dict[str, tuple[Problem, int]] = {
    "one token, linear": (ONE_TOKEN, 28),
    "one token, linear, rank two": (ONE_TOKEN.with_fields({"student.rank": 2, "teacher.rank": 2}), 12),
    "two tokens, softmax": (TWO_TOKENS, 14),
    "two tokens, linear": (TWO_TOKENS.with_fields(LINEAR), 12),
}
QUADRATURE = 1e-6
"""Error left to these rules, relative to the largest term of the free entropy."""
# large V: the local problem is not convex, and its minimiser jumps
ROUGH = TWO_TOKENS.with_fields({"tokens.sigma": [0.61, 0.54], "regularizer.strength": 0.009})
ROUGH_UNTIED = ROUGH.with_fields({"student.tied": False})


@dataclass(frozen=True)
class Setting:
    """A problem with its kernels and a rule."""

    system: System
    rule: Rule
    alpha: float

    @property
    def problem(self) -> Problem:
        return self.system.problem

    @property
    def kernels(self) -> Kernels:
        return self.system.kernels

    @property
    def spectrum(self) -> Spectrum:
        return self.system.spectrum

    @property
    def channel(self) -> Channel:
        return Channel(self.system, self.rule)

    def evaluate(self, x: Overlaps) -> ChannelPass:
        return self.channel.evaluate(self.alpha, x, Starts.COLD)

    def prior(self, conjugates: Conjugates) -> Overlaps:
        image = self.system.prior.overlaps(conjugates)
        assert image is not None
        return image

    def arguments(self, ridge: float | None = None) -> dict:
        strength = cast("float", self.problem.regularizer.strength) if ridge is None else ridge
        prior = Prior(self.kernels, self.spectrum, strength)
        points = prior.arguments(Conjugates(*(np.zeros((1, 1, 1, 1)) for _ in range(4))))
        return {"alpha": self.alpha, **points, "field_mean": lambda values: values}

    def terms(
        self, x: Overlaps, c: Conjugates, envelope: np.ndarray, ridge: float | None = None
    ) -> dict[str, np.ndarray]:
        """Terms of ``-Phi`` per replicate (S,), given ``E[M]`` per replicate."""
        terms = self.kernels.ridge.free_entropy_terms(
            **self.arguments(ridge), envelope=envelope[:, None, None], **with_replicates(x), **c.by_name
        )
        return {name: np.broadcast_to(np.squeeze(term), envelope.shape) for name, term in terms.items()}

    def minus_phi(self, x: Overlaps, c: Conjugates) -> np.ndarray:
        """``-Phi`` per replicate (S,)."""
        return np.sum(list(self.terms(x, c, self.evaluate(x).envelope).values()), axis=0)

    def observables(self, x: Overlaps) -> dict[str, float]:
        passed = self.evaluate(x)
        c = passed.conjugates.mean()
        values = self.kernels.ridge.observables(
            **self.arguments(),
            envelope=passed.envelope.mean().reshape(1, 1, 1),
            loss_at_prox=passed.loss_at_prox.mean().reshape(1, 1, 1),
            loss_at_omega=self.channel.loss_at_omega(x).mean().reshape(1, 1, 1),
            length=self.problem.tokens.length,
            q=x.q[:, None],
            V=x.V[:, None],
            **c.by_name,
        )
        return {name: float(np.squeeze(value)) for name, value in values.items()}


def with_replicates(x: Overlaps) -> dict[str, np.ndarray]:
    return {name: value[:, None] for name, value in x.by_name.items()}


def setting(problem: Problem, alpha: float, rule: Callable[[int, int], Rule]) -> Setting:
    length = problem.tokens.length
    student = length * problem.columns
    return Setting(System.of(problem), rule(student + length * problem.teacher.rank, student), alpha)


def smooth(name: str, alpha: float) -> Setting:
    problem, order = SMOOTH[name]
    return setting(problem, alpha, lambda total, student: gauss_hermite(total, student, True, order))


def random_overlaps(at: Setting, seed: int, size: float) -> Overlaps:
    """Feasible overlaps without any symmetry; `size` sets V."""
    rng = np.random.default_rng(seed)
    length, columns, rank = at.problem.tokens.length, at.problem.columns, at.problem.teacher.rank
    rho = at.spectrum.rho
    fields = rng.normal(size=(length, columns + rank, columns + rank + 3))
    joint = fields @ fields.mT / (columns + rank + 3)
    to_rho = np.linalg.cholesky(rho) @ np.linalg.inv(np.linalg.cholesky(joint[:, columns:, columns:]))
    scale = np.sqrt(rho.mean())
    width = rng.normal(size=(length, columns, columns + 3))
    return Overlaps(
        q=scale**2 * joint[:, :columns, :columns],
        V=size * (width @ width.mT / (columns + 3) + 0.3 * np.eye(columns)),
        m=0.3 * rng.normal(size=(length, columns, 1)),
        theta=scale * joint[:, :columns, columns:] @ to_rho.mT,
    )


def pack_conjugates(c: Conjugates) -> np.ndarray:
    """As `Overlaps.pack`: off-diagonal entries of a symmetric matrix move together."""
    return Overlaps(*(value[:, 0] for value in (c.q_hat, c.V_hat, c.m_hat, c.theta_hat))).pack()


def unpack_conjugates(vector: np.ndarray, like: Conjugates) -> Conjugates:
    length, _, columns, rank = like.theta_hat.shape
    return Conjugates(*(value[:, None] for value in Overlaps.unpack(vector, length, columns, rank).by_name.values()))


def symmetrised(c: Conjugates) -> Conjugates:
    """The Stein form of V_hat is symmetric up to the rule's error only."""
    return replace(c, V_hat=(c.V_hat + c.V_hat.mT) / 2)


# small, because sampled nodes change their minimum and nearly perfect recovery is near the edge of the domain
RELATIVE_STEP = 2e-5


def central(
    function: Callable[[np.ndarray], np.ndarray], point: np.ndarray, size: np.ndarray, step: float
) -> np.ndarray:
    """``size d/dx`` for every variable, by central differences: off by the square of the step."""
    units = np.diag(step * size)
    return np.stack([function(point + unit) - function(point - unit) for unit in units]) / (2 * step)


def derivatives(function: Callable[[np.ndarray], np.ndarray], point: np.ndarray, size: np.ndarray) -> np.ndarray:
    """The same with the leading error taken out, for functions that cost nothing."""
    coarse, fine = (central(function, point, size, step) for step in (RELATIVE_STEP, RELATIVE_STEP / 2))
    return (4 * fine - coarse) / 3


def energy_gradient(at: Setting, x: Overlaps) -> np.ndarray:
    """The channel's part of ``size dPhi/dx``, ``size d(alpha E[M])/dx``, (P, S): what takes time."""
    shape = x.theta.shape
    return central(
        lambda v: at.alpha * at.evaluate(Overlaps.unpack(v, *shape)).envelope,
        x.pack(),
        x.scales(at.spectrum.rho),
        RELATIVE_STEP,
    )


def gradient_in_overlaps(at: Setting, x: Overlaps, c: Conjugates, energy: np.ndarray | None = None) -> np.ndarray:
    """``size dPhi/dx`` for every packed order parameter, (P, S); with its `energy_gradient` if that is known."""
    energy = energy_gradient(at, x) if energy is None else energy
    shape, zero = x.theta.shape, np.zeros(energy.shape[1])
    # the energy apart, the free entropy is linear in the order parameters
    rest = derivatives(
        lambda v: np.sum(list(at.terms(Overlaps.unpack(v, *shape), c, zero).values()), axis=0),
        x.pack(),
        x.scales(at.spectrum.rho),
    )
    return energy + rest


def gradient_in_conjugates(at: Setting, x: Overlaps, c: Conjugates) -> np.ndarray:
    """``size dPhi/dx_hat`` for every packed conjugate, (P, 1); the energy term does not depend on them."""
    vector = pack_conjugates(c)
    blocks = Overlaps(*(value[:, 0] for value in (c.q_hat, c.V_hat, c.m_hat, c.theta_hat)))
    sites, rank = len(blocks.q), blocks.theta.shape[-1]
    size = blocks.scales(np.broadcast_to(np.eye(rank), (sites, rank, rank)))
    zero = np.zeros(1)
    return derivatives(
        lambda v: np.sum(list(at.terms(x, unpack_conjugates(v, c), zero).values()), axis=0), vector, size
    )


# --- stationarity at random points ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), list(zip(SMOOTH, (1, 1, 2, 1), strict=True)))
def test_channel_makes_the_free_entropy_stationary_in_the_overlaps(name, seed):
    """At any overlaps with their conjugates: every independent entry, off-diagonal ones included."""
    at = smooth(name, alpha=1.9)
    x = random_overlaps(at, seed, size=0.1)
    passed = at.evaluate(x)
    assert not np.isfinite(passed.minima.gap).any()
    c = symmetrised(passed.conjugates)
    energy = energy_gradient(at, x)
    size = max(np.abs(term).max() for term in at.terms(x, c, passed.envelope).values())
    assert np.abs(gradient_in_overlaps(at, x, c, energy)).max() < QUADRATURE * size
    # one per cent off in one conjugate is seen, whichever it is
    for conjugate, value in c.by_name.items():
        wrong = gradient_in_overlaps(at, x, replace(c, **{conjugate: 1.01 * value}), energy)
        assert np.abs(wrong).max() > 20 * QUADRATURE * size, conjugate


@pytest.mark.parametrize("name", [*SMOOTH, "untied"])
@pytest.mark.parametrize("seed", [3, 4])
def test_spectral_mean_makes_the_free_entropy_stationary_in_the_conjugates(name, seed):
    problem = ROUGH_UNTIED if name == "untied" else SMOOTH[name][0]
    at = setting(problem, 1.9, lambda total, student: sobol(total, student, True, 16, 1, 0))
    rng = np.random.default_rng(seed)
    length, columns, rank = problem.tokens.length, problem.columns, problem.teacher.rank
    q_hat, V_hat = (f @ f.mT / columns for f in rng.normal(size=(2, length, 1, columns, columns + 2)))
    c = Conjugates(q_hat, V_hat, rng.normal(size=(length, 1, columns, 1)), rng.normal(size=(length, 1, columns, rank)))
    x = at.prior(c)
    gradient = gradient_in_conjugates(at, x, c)
    size = max(np.abs(term).max() for term in at.terms(x, c, np.zeros(1)).values())
    assert np.abs(gradient).max() < 1e-9 * size
    wrong = gradient_in_conjugates(at, replace(x, q=1.01 * x.q), c)
    assert np.abs(wrong).max() > 1e-4 * size


def assert_stationary_in_standard_errors(at: Setting, x: Overlaps) -> None:
    """Stationarity of a sampled free entropy in the overlaps.

    In V and m it is the envelope theorem and holds for every sample; in q and theta it is Stein's lemma and holds for
    the mean. Per replicate ``-Phi`` is linear in that replicate's conjugates and energy, so the scatter of the
    replicates' gradients is the standard error of the mean.
    """
    passed = at.evaluate(x)
    length, columns = x.q.shape[:2]
    triangle = length * columns * (columns + 1) // 2
    gradient = gradient_in_overlaps(at, x, symmetrised(passed.conjugates))
    in_q, in_V, in_m, in_theta = np.split(gradient, np.cumsum([triangle, triangle, length * columns]))
    terms = at.terms(x, passed.conjugates.mean(), passed.envelope.mean(keepdims=True))
    size = max(np.abs(term).max() for term in terms.values())
    assert np.abs(in_V).max() < 1e-6 * size
    assert np.abs(in_m).max() < 1e-6 * size
    noisy = np.concatenate([in_q, in_theta])
    scores = noisy.mean(axis=1) / (noisy.std(axis=1, ddof=1) / np.sqrt(noisy.shape[1]))
    assert np.abs(scores).max() < 4
    assert np.abs(noisy.mean(axis=1)).max() < 0.05 * size  # and the errors are small enough to mean something


@pytest.mark.slow
@pytest.mark.parametrize("problem", [ROUGH_UNTIED, ROUGH], ids=["untied", "tied"])
def test_sampled_channel_makes_the_free_entropy_stationary_in_standard_errors(problem):
    """Where the local problem is not convex and its minimiser jumps: the Stein form of V_hat sees the jumps."""
    at = setting(problem, 1.9, lambda total, student: sobol(total, student, True, 128, 16, 5))
    x = random_overlaps(at, 6, size=30.0)
    assert np.isfinite(at.evaluate(x).minima.gap).mean() > 0.005
    assert_stationary_in_standard_errors(at, x)


# --- at solved fixed points -------------------------------------------------------------------------------------------


def on_grid(problem: Problem, order: int) -> Problem:
    return problem.with_fields({"integration.rule": "gauss-hermite", "integration.nodes": order})


@cache
def solved_smooth(name: str, alpha: float, branch: str) -> BranchPoint:
    """On a fine grid, from a solution on a coarse one."""
    problem, order = SMOOTH[name]
    start = solve_point(on_grid(problem, 5), alpha, branch, settings=TIGHT)
    return checked(solve_point(on_grid(problem, order), alpha, branch, start=start, settings=TIGHT))


def checked(point: BranchPoint) -> BranchPoint:
    assert point.status is Status.converged
    assert point.values["second_minimum_share"] == 0
    return point


def reached(point: BranchPoint, name: str) -> tuple[Setting, Overlaps, Conjugates]:
    """The setting of a solved point, its overlaps and the conjugates there."""
    at = smooth(name, point.alpha)
    at = replace(at, system=replace(at.system, problem=point.problem))
    x = point.restart.overlaps
    return at, x, symmetrised(at.evaluate(x).conjugates)


FIXED_POINTS = [
    ("one token, linear", 33.0, "semantic"),
    ("one token, linear, rank two", 70.0, "semantic"),
    ("two tokens, softmax", 11.0, "semantic"),
    ("two tokens, softmax", 9.0, "positional"),
    ("two tokens, linear", 24.0, "semantic"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "alpha", "branch"), FIXED_POINTS)
def test_free_entropy_is_stationary_at_solved_fixed_points(name, alpha, branch):
    """In all order parameters and all conjugates, in any gauge; its value is the training loss, by all expressions."""
    point = solved_smooth(name, alpha, branch)
    at, x, c = reached(point, name)
    assert np.abs(x.q).max() > 1e-3
    terms = at.terms(x, c, at.evaluate(x).envelope)
    value = np.sum(list(terms.values()), axis=0).item()
    observed = at.observables(x)
    assert value == pytest.approx(point.values["training_loss"], abs=1e-9)
    assert observed["training_loss"] == pytest.approx(value, abs=1e-9)
    assert observed["training_loss_direct"] == pytest.approx(value, abs=1e-9)
    assert point.values["free_energy_gap"] < 1e-9

    columns = at.problem.columns
    O = ortho_group.rvs(columns, random_state=2) if columns > 1 else -np.eye(1)
    x = Overlaps(O @ x.q @ O.T, O @ x.V @ O.T, O @ x.m, O @ x.theta)
    c = Conjugates(O @ c.q_hat @ O.T, O @ c.V_hat @ O.T, O @ c.m_hat, O @ c.theta_hat)
    size = max(np.abs(term).max() for term in terms.values())
    assert np.abs(gradient_in_overlaps(at, x, c)).max() < QUADRATURE * size
    assert np.abs(gradient_in_conjugates(at, x, c)).max() < 1e-9 * size


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_free_entropy_of_untied_weights_is_stationary_at_solved_fixed_points(branch):
    """Two by two order parameters without any symmetry, by sampling, under the nodes that the solver used."""
    sampling = {"integration.rule": "sobol", "integration.nodes": 128, "integration.seed": 4}
    problem = ROUGH_UNTIED.with_fields({"tokens.sigma": [0.52, 0.49], **sampling})
    point = solve_point(problem, 2.1, branch, settings=TIGHT)
    assert point.status is Status.converged
    at = setting(problem, 2.1, lambda total, student: sobol(total, student, True, 128, 16, 4))
    x = point.restart.overlaps
    c = symmetrised(at.evaluate(x).conjugates.mean())
    assert np.abs(x.q).max() > 1e-3
    assert at.minus_phi(x, c).mean() == pytest.approx(point.values["training_loss"], abs=1e-9)
    gradient = gradient_in_conjugates(at, x, c)
    assert np.abs(gradient).max() < 1e-7 * max(np.abs(t).max() for t in at.terms(x, c, np.zeros(1)).values())
    assert_stationary_in_standard_errors(at, x)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_expressions_of_the_training_loss_agree(seed):
    """`free_energy_gap` on random problems, jumps and sampling notwithstanding: it measures the iteration alone."""
    rng = np.random.default_rng(100 + seed)
    axis = rng.normal(size=(2, 2)) * 0.3 + np.array([[1.0, 0.0], [-1.0, 0.1]])
    problem = [ROUGH, ROUGH_UNTIED][seed % 2].with_fields(
        {
            "tokens.sigma": rng.uniform(0.42, 0.56, 2).tolist(),
            "positions.gram": (axis @ axis.T).tolist(),
            "teacher.omega": rng.uniform(0.1, 0.5),
            "teacher.mixing": rng.uniform(0.2, 0.8, (2, 2)).tolist(),
            "regularizer.strength": rng.uniform(0.008, 0.02),
            "integration.rule": "sobol",
            "integration.nodes": 256,
            "integration.seed": seed,
        }
    )
    branch = ["semantic", "positional"][seed // 3]
    point = solve_point(problem, rng.uniform(1.4, 2.4), branch, settings=SolverSettings(threads=1))
    assert point.status is Status.converged
    assert point.values["training_loss"] > 1e-4
    assert point.values["free_energy_gap"] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("name", "alpha", "branch"), [FIXED_POINTS[0], FIXED_POINTS[2], FIXED_POINTS[3]])
def test_derivatives_of_the_training_loss(name, alpha, branch):
    """``d eps_t/d lambda = |W|^2/(2d)`` and ``d eps_t/d alpha = E[M]``: by stationarity, explicit parts alone count."""
    point = solved_smooth(name, alpha, branch)
    at, x, c = reached(point, name)
    ridge, half = cast("float", point.problem.regularizer.strength), 0.5e-2
    energy = at.evaluate(x).envelope

    def explicit(change):
        return np.sum(list(at.terms(x, c, energy, ridge=ridge * (1 + change)).values()))

    partial = (8 * (explicit(half) - explicit(-half)) - (explicit(2 * half) - explicit(-2 * half))) / (
        12 * half * ridge
    )
    assert 2 * partial == pytest.approx(point.values["weight_norm"], rel=1e-6)

    def loss(factor_ridge=1.0, factor_alpha=1.0):
        moved = point.problem.with_fields({"regularizer.strength": ridge * factor_ridge})
        return checked(solve_point(moved, alpha * factor_alpha, branch, start=point, settings=TIGHT)).values[
            "training_loss"
        ]

    by_ridge = (loss(1 + half) - loss(1 - half)) / (2 * half * ridge)
    assert 2 * by_ridge == pytest.approx(point.values["weight_norm"], rel=1e-4)
    by_alpha = (loss(1, 1 + half) - loss(1, 1 - half)) / (2 * half * alpha)
    assert by_alpha == pytest.approx(energy.item(), rel=1e-4)


# --- ridge regression -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ridge:
    """Proportional asymptotics of ridge regression, ``n = alpha d``, ``y = w_star.x/sqrt(d)``, no noise.

    Risk ``sum_mu (y - w.x/sqrt(d))^2/2 + lambda/2 |w|^2``, covariates with variances gamma (weights nu), ``w_star`` of
    unit variance. The proximal point is linear, ``prox = (omega + V k)/(1+V)``: so ``V_hat = theta_hat = alpha/(1+V)``
    and ``q_hat = alpha e/(1+V)^2``, with the test error ``e = rho - 2 theta + q``. Then

        V = int dnu gamma/(lambda + gamma alpha/(1+V))

    which for one variance s is ``lambda V^2 + (lambda + s alpha - s) V - s = 0``, and q is linear in e. What the
    channel adds to q adds to e.
    """

    alpha: float
    strength: float
    weights: tuple[float, ...]
    gamma: tuple[float, ...]

    def _excess(self, V: float) -> float:
        gamma = np.array(self.gamma)
        return V - float(np.array(self.weights) @ (gamma / (self.strength + gamma * self.alpha / (1 + V))))

    def solution(self) -> dict[str, float]:
        weights, gamma = np.array(self.weights), np.array(self.gamma)
        rho = weights @ gamma
        if len(gamma) == 1:
            b = self.strength + rho * self.alpha - rho
            V = (-b + np.sqrt(b**2 + 4 * self.strength * rho)) / (2 * self.strength)
        else:
            V = float(root_scalar(self._excess, bracket=(1e-9, 1e9), xtol=1e-14).root)
        hat = self.alpha / (1 + V)
        R = 1 / (self.strength + gamma * hat)
        theta = weights @ (gamma**2 * hat * R)
        signal, noise = weights @ (gamma**3 * hat**2 * R**2), weights @ (gamma**2 * R**2)
        e = (rho - 2 * theta + signal) / (1 - noise * self.alpha / (1 + V) ** 2)
        q_hat = self.alpha * e / (1 + V) ** 2
        norm = weights @ (R**2 * (gamma * q_hat + gamma**2 * hat**2))
        values = {
            "V": V,
            "q": signal + noise * q_hat,
            "theta": theta,
            "m": 0.0,
            "test_error": e,
            "weight_norm": norm,
            "training_loss": self.alpha * e / (2 * (1 + V) ** 2) + self.strength * norm / 2,
        }
        return {name: float(value) for name, value in values.items()}


RIDGES = {
    "more samples than dimensions": Ridge(1.73, 0.23, (1.0,), (0.56,)),
    "fewer samples than dimensions": Ridge(0.61, 0.047, (1.0,), (1.9,)),
    "two variances": Ridge(1.31, 0.34, (0.35, 0.65), (0.4, 1.7)),
}


def ridge_problem(ridge: Ridge) -> Problem:
    atoms = [{"weight": w, "variances": [g]} for w, g in zip(ridge.weights, ridge.gamma, strict=True)]
    spectrum: dict = {"tokens.sigma": float(np.sqrt(ridge.gamma[0]))}
    if len(atoms) > 1:
        spectrum = {"tokens.spectrum": atoms}
    return Problem().with_fields(
        {
            "tokens.length": 1,
            "positions.gram": [[0.7]],
            "teacher.omega": 0.41,
            "teacher.mixing": [[0.38]],
            "regularizer.strength": ridge.strength,
            **spectrum,
        }
    )


def solved_ridge(ridge: Ridge, rule: Rule) -> tuple[Setting, Overlaps, dict[str, float]]:
    """The square loss of one token through the package's channel, spectral measure and iteration.

    The start is away from the solution in every order parameter, m included, which the data must bring to zero.
    """
    kernels = kernels_for(Problem().with_fields({"tokens.length": 1, "loss.kind": "square"}))
    problem = ridge_problem(ridge)
    system = System(problem, kernels, Spectrum.of(problem))
    assert not is_sign_symmetric(system.loss)
    at = Setting(system, rule, ridge.alpha)
    rho = at.spectrum.rho

    def evaluate(vector):
        x = Overlaps.unpack(vector, 1, 1, 1)
        return at.prior(at.evaluate(x).conjugates.mean()).pack() if x.feasible(rho) else None

    def scales(vector):
        return Overlaps.unpack(vector, 1, 1, 1).scales(rho)

    start = Overlaps(*(np.full((1, 1, 1), v) for v in (0.31, 0.87, -0.19, 0.22)))
    found = iterate(evaluate, start.pack(), scales, Damped(0.6), tolerance=1e-11, max_maps=4000)
    assert found.status is Status.converged
    x = Overlaps.unpack(found.point, 1, 1, 1)
    return at, x, {name: value.item() for name, value in x.by_name.items()} | at.observables(x)


@pytest.mark.parametrize("name", RIDGES)
def test_square_loss_is_ridge_regression(name):
    """A Gauss-Hermite rule of three nodes is exact for a quadratic loss: the iteration's tolerance alone is left."""
    at, x, values = solved_ridge(RIDGES[name], gauss_hermite(2, 1, False, 3))
    for key, expected in RIDGES[name].solution().items():
        assert values[key] == pytest.approx(expected, rel=1e-9, abs=1e-12), key
    assert values["training_loss_direct"] == pytest.approx(values["training_loss"], rel=1e-10)
    c = at.evaluate(x).conjugates
    assert at.minus_phi(x, c).item() == pytest.approx(values["training_loss"], rel=1e-9)
    assert np.abs(gradient_in_overlaps(at, x, c)).max() < 1e-7
    assert np.abs(gradient_in_conjugates(at, x, c)).max() < 1e-7


@pytest.mark.slow
def test_sampled_square_loss_is_ridge_regression_in_standard_errors():
    """Twelve seeds of scrambled points about the closed form."""
    ridge = RIDGES["more samples than dimensions"]
    found = [solved_ridge(ridge, sobol(2, 1, False, 64, 4, seed))[2] for seed in range(12)]
    for key, expected in ridge.solution().items():
        values = np.array([one[key] for one in found])
        error = values.std(ddof=1) / np.sqrt(len(values))
        assert abs(values.mean() - expected) < 4 * error, key
        assert error < (0.02 * expected if expected else 1e-3), key


@pytest.mark.slow
@pytest.mark.parametrize("name", RIDGES)
def test_ridge_formulas_against_finite_regressions(name):
    """The closed form itself, against 40 fits at d = 200, in standard errors; the finite-size shift is of order 1/d."""
    ridge, d, fits = RIDGES[name], 200, 40
    exact = ridge.solution()
    rng = np.random.default_rng(17)
    gamma = np.repeat(ridge.gamma, [round(w * d) for w in ridge.weights])
    n = round(ridge.alpha * d)
    found: dict[str, list[float]] = {key: [] for key in ("q", "theta", "test_error", "weight_norm", "training_loss")}
    for _ in range(fits):
        x = rng.normal(size=(n, d)) * np.sqrt(gamma / d)
        teacher = rng.normal(size=d)
        y = x @ teacher
        w = np.linalg.solve(x.T @ x + ridge.strength * np.eye(d), x.T @ y)
        found["q"].append(float(gamma @ w**2) / d)
        found["theta"].append(float(gamma @ (w * teacher)) / d)
        found["test_error"].append(float(gamma @ (w - teacher) ** 2) / d)
        found["weight_norm"].append(float(w @ w) / d)
        found["training_loss"].append(float(np.sum((y - x @ w) ** 2) + ridge.strength * w @ w) / (2 * d))
    for key, samples in found.items():
        error = np.std(samples, ddof=1) / np.sqrt(fits)
        assert abs(np.mean(samples) - exact[key]) < 3.5 * error, key
        assert error < 0.03 * exact[key]
