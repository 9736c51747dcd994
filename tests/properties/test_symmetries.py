"""Symmetries of the replica-symmetric theory, and exact relations between problems.

Where the integration nodes are transformed together with the order parameters, both sides see the same samples and
agree to rounding.  Where they see different samples, as solved points do, they agree in standard errors.

Not public: one map at overlaps without any symmetry; a fixed point keeps those of its start.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import model
from scipy.stats import ortho_group

import attnphase as ap
from attnphase.integration.rules import Rule, gauss_hermite, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.system import System

ONE_THREAD = ap.SolverSettings(threads=1)
COMMON = {
    "tokens.sigma": [0.47, 0.58],
    "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
    "teacher.omega": 0.34,
    "teacher.mixing": [[0.64, 0.31], [0.43, 0.58]],
    "regularizer.strength": 0.013,
    "integration.rule": "sobol",
    "integration.nodes": 256,
}
THREE = {
    "tokens.sigma": [0.45, 0.62, 0.53],
    "positions.gram": [[1.1, -0.4, 0.1], [-0.4, 0.8, -0.2], [0.1, -0.2, 0.9]],
    "teacher.mixing": [[0.6, 0.3, 0.1], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]],
}
PAIR, RANK_TWO, UNTIED, LINEAR = (model(name, COMMON) for name in ("paper", "rank 2", "untied", "linear"))
TRIPLE = model("three tokens", COMMON | THREE)


def random_overlaps(problem: ap.Problem, seed: int, size: float = 3.0) -> Overlaps:
    """Feasible overlaps without any symmetry; `size` sets V."""
    rng = np.random.default_rng(seed)
    length, columns, rank = problem.tokens.length, problem.columns, problem.teacher.rank
    rho = Spectrum.of(problem).rho
    fields = rng.normal(size=(length, columns + rank, columns + rank + 3))
    joint, scale = fields @ fields.mT / (columns + rank + 3), np.sqrt(rho.mean())
    to_rho = np.linalg.cholesky(rho) @ np.linalg.inv(np.linalg.cholesky(joint[:, columns:, columns:]))
    width = rng.normal(size=(length, columns, columns + 3))
    return Overlaps(
        q=scale**2 * joint[:, :columns, :columns],
        V=size * (width @ width.mT / (columns + 3) + 0.3 * np.eye(columns)),
        m=0.3 * rng.normal(size=(length, columns, 1)),
        theta=scale * joint[:, :columns, columns:] @ to_rho.mT,
    )


def random_conjugates(problem: ap.Problem, seed: int) -> Conjugates:
    """Conjugates with one replicate, within the domain."""
    rng = np.random.default_rng(seed)
    length, columns, rank = problem.tokens.length, problem.columns, problem.teacher.rank
    factors = rng.normal(size=(2, length, 1, columns, columns + 2))
    q_hat, V_hat = factors @ factors.mT / columns
    m_hat, theta_hat = (rng.normal(size=(length, 1, columns, last)) for last in (1, rank))
    return Conjugates(q_hat, V_hat, m_hat, theta_hat)


def sampled(problem: ap.Problem) -> Rule:
    student = problem.tokens.length * problem.columns
    return sobol(student + problem.tokens.length * problem.teacher.rank, student, True, 64, 4, 5)


def evaluated(system: System, x: Overlaps, rule: Rule) -> tuple[Conjugates, dict[str, np.ndarray]]:
    """Conjugates, and means over the nodes: the envelope, the loss at the minimum, and the loss at omega."""
    channel = Channel(system, rule)
    found = channel.evaluate(1.7, x, Starts.COLD)
    means = {"envelope": found.envelope, "loss": found.loss_at_prox, "at omega": channel.loss_at_omega(x)}
    return found.conjugates, means


class Change(NamedTuple):
    """Columns multiplied by G, tokens renamed, nodes changed along, and energies in another unit."""

    G: np.ndarray
    order: tuple[int, ...] = (0, 1)
    nodes: np.ndarray | None = None  # of the student's normals, (L, columns, columns)
    c: float = 1.0  # tokens and encodings

    def of_overlaps(self, x: Overlaps) -> Overlaps:
        x = Overlaps(*(value[list(self.order)] for value in x.by_name.values()))
        G, V = self.G, x.V / self.c**2
        return Overlaps(G @ x.q @ G.T, G @ V @ G.T, G @ x.m, G @ x.theta)

    def of_conjugates(self, x: Conjugates) -> Conjugates:
        """They move with the inverse transpose, so that ``Tr[q_hat q]`` and the rest stay, times an energy c^2."""
        x, A = Conjugates(*(value[list(self.order)] for value in x.by_name.values())), np.linalg.inv(self.G).T
        energy = self.c**2
        return Conjugates(
            energy**2 * A @ x.q_hat @ A.T, energy * A @ x.V_hat @ A.T, energy * A @ x.m_hat, energy * A @ x.theta_hat
        )

    def of_rule(self, rule: Rule, problem: ap.Problem) -> Rule:
        length, columns = problem.tokens.length, problem.columns
        shape, split = rule.nodes.shape[:2], length * columns
        xi = rule.nodes[..., :split].reshape(*shape, length, columns)[:, :, list(self.order)]
        zeta = rule.nodes[..., split:].reshape(*shape, length, -1)[:, :, list(self.order)]
        if self.nodes is not None:
            xi = np.einsum("lij,snlj->snli", self.nodes, xi)
        return replace(rule, nodes=np.concatenate([xi.reshape(*shape, -1), zeta.reshape(*shape, -1)], axis=-1))

    def of_problem(self, problem: ap.Problem) -> ap.Problem:
        order = list(self.order)
        sigma, gram = self.c * np.array(problem.tokens.sigma), self.c**2 * problem.positions_gram
        return problem.with_fields(
            {
                "tokens.sigma": sigma[order].tolist(),
                "positions.gram": gram[np.ix_(order, order)].tolist(),
                "teacher.mixing": problem.mixing_matrix[np.ix_(order, order)].tolist(),
                "regularizer.strength": self.c**4 * cast("float", problem.regularizer.strength),
            }
        )

    def of_system(self, problem: ap.Problem) -> System:
        """With teachers whose fields stay: no field of a problem holds the teacher's scale."""
        system = System.of(self.of_problem(problem))
        to_unit = np.eye(system.spectrum.mean.shape[1])
        to_unit[system.spectrum.sites :] /= self.c
        return replace(
            system, spectrum=replace(system.spectrum, covariance=to_unit @ system.spectrum.covariance @ to_unit.T)
        )


def rotated(O: np.ndarray, length: int = 2) -> Change:
    return Change(O, tuple(range(length)), np.stack([O] * length))


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-10) -> None:
    """Every array agrees, relative to its largest entry."""
    assert actual is not None
    for name, b in expected.by_name.items():
        bound = tolerance * np.abs(b).max()
        np.testing.assert_allclose(actual.by_name[name], b, rtol=0, atol=bound, err_msg=name)


SIGNED = [np.diag(sign)[list(order)] for sign in itertools.product((1.0, -1.0), repeat=2) for order in ((0, 1), (1, 0))]
CASES: dict[str, tuple[ap.Problem, Any, bool]] = {
    "tokens are renamed": (TRIPLE, lambda rng: Change(np.eye(1), tuple(rng.permutation(3).tolist())), True),
    "tokens of two columns are renamed": (RANK_TWO, lambda rng: Change(np.eye(2), (1, 0)), True),
    "columns are rotated": (RANK_TWO, lambda rng: rotated(ortho_group.rvs(2, random_state=rng)), True),
    "weights change their sign": (PAIR, lambda rng: Change(-np.eye(1)), True),
    "untied weights change their sign": (UNTIED, lambda rng: Change(-np.eye(2)), True),
    "columns are exchanged and reflected": (RANK_TWO, lambda rng: Change(SIGNED[rng.integers(8)]), False),
    "tokens are multiplied": (PAIR, lambda rng: Change(np.eye(1), c=rng.uniform(1.1, 1.7)), True),
    "tokens of untied weights are multiplied": (UNTIED, lambda rng: Change(np.eye(2), c=rng.uniform(0.6, 0.9)), True),
    "tokens of linear scores are multiplied": (LINEAR, lambda rng: Change(np.eye(1), c=rng.uniform(1.1, 1.7)), True),
}


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4)
@given(seed=st.integers(0, 10**6))
def test_the_map_commutes_with_its_symmetries(name, seed):
    """``F(g x) = g F(x)``, channel and prior; reflections and exchanges under a tensor rule, whose nodes stay a set.

    Of tokens and encodings times c, with teachers times 1/c: ``W = W'/c`` has the old fields, losses are c^2 times what
    they were through ``D = diag(tr Sigma/d)``, and the penalty is if lambda is c^4 times as large. So q, m and theta
    stay, ``V -> V/c^2``, ``q_hat -> c^4 q_hat``, and the other conjugates are c^2 times what they were.
    """
    problem, draw, randomised = CASES[name]
    change: Change = draw(np.random.default_rng(seed))
    x, student = random_overlaps(problem, seed), problem.tokens.length * problem.columns
    rule = sampled(problem) if randomised else gauss_hermite(student + 4, student, True, 3)
    other = change.of_system(problem)
    np.testing.assert_allclose(other.spectrum.rho, Spectrum.of(problem).rho[list(change.order)], rtol=1e-12)
    before, means = evaluated(System.of(problem), x, rule)
    after, found = evaluated(other, change.of_overlaps(x), change.of_rule(rule, problem) if randomised else rule)
    for key, value in means.items():
        np.testing.assert_allclose(found[key], change.c**2 * value, rtol=1e-10, err_msg=key)
    assert_same(after, change.of_conjugates(before))
    conjugates = random_conjugates(problem, seed)
    image = System.of(problem).prior.overlaps(conjugates.mean())
    assert image is not None
    assert_same(other.prior.overlaps(change.of_conjugates(conjugates).mean()), change.of_overlaps(image))


def solved(problem: ap.Problem, alpha: float, branch: Any = "semantic", **settings: Any) -> Any:
    point = ap.solve(problem, alpha, branch, settings=ap.SolverSettings(threads=1, **settings))
    assert (int(point.status), int(point.unsolved_nodes)) == (0, 0)
    return point


@pytest.mark.parametrize(
    ("problem", "alpha", "branch", "order"),
    [(PAIR, 1.8, "semantic", [1, 0]), (PAIR, 1.8, "positional", [1, 0]), (TRIPLE, 2.5, "semantic", [2, 0, 1])],
)
def test_permuted_problems_have_permuted_fixed_points(problem, alpha, branch, order):
    """The solver integrates over the same nodes for both, which are other samples after renaming the tokens."""
    permuted = Change(np.eye(1), tuple(order)).of_problem(problem)
    a, b = solved(problem, alpha, branch), solved(permuted, alpha, branch)
    for name in ("q", "V", "m", "theta", "training_loss", "test_error", "weight_norm"):
        (x, dx), (y, dy) = ((one[name].to_numpy(), one[f"{name}_stderr"].to_numpy()) for one in (a, b))
        if x.ndim:
            x, dx = x[order], dx[order]
        if name == "m":  # the gauge: the sign of W
            x, y = np.abs(x), np.abs(y)
        assert (np.abs(x - y) <= 3.5 * np.hypot(dx, dy)).all(), name


def test_exact_symmetries_of_the_paper_setting_stay_exact():
    """Equal tokens, m = 0 on the semantic and theta = 0 on the positional branch, not only within errors."""
    problem = ap.Problem.paper(omega=0.34).with_fields({"integration.rule": "sobol", "integration.nodes": 256})
    semantic, positional = solved(problem, 1.7), solved(problem, 1.7, "positional")
    for point in (semantic, positional):
        assert np.array_equal(point.q[0], point.q[1])
        assert np.array_equal(point.V[0], point.V[1])
    assert np.array_equal(semantic.theta[0], semantic.theta[1])
    assert np.array_equal(positional.m[0], -positional.m[1])
    assert not semantic.m.any()
    assert not positional.theta.any()


LOSSES = ("training_loss", "test_error")


@pytest.mark.parametrize(
    ("problem", "branch", "c", "powers", "accuracy"),
    [
        pytest.param(
            PAIR.with_fields({"teacher.omega": 1.0}), "positional", 1.37,
            {"q": 0, "V": -2, "m": 0, "q_hat": 4, "V_hat": 2, "m_hat": 2, "weight_norm": -2} | dict.fromkeys(LOSSES, 2),
            1e-6, id="a positional target",  # the channel adds 1e-8 of rho to q, and rho means nothing here
        ),
        pytest.param(
            LINEAR, "semantic", 1.23,
            {"q": 2, "V": -4, "theta": 2, "q_hat": 10, "V_hat": 4, "m_hat": 5, "theta_hat": 4, "weight_norm": 0,
             "linear_test_error": 6, **dict.fromkeys(LOSSES, 6)},
            1e-8, id="linear scores",
        ),
    ],
)  # fmt: skip
def test_solved_points_obey_the_scaling_law_of_tokens(problem, branch, c, powers, accuracy):
    """At omega = 1 the teacher has no scale; linear scores let it be moved into the mixing matrix, as ``A -> c^2 A``.

    All fields are multiplied by c then, logits by c^2, and the loss by c^2 times c^4, so that ``lambda -> c^6 lambda``.
    """
    bigger = Change(np.eye(1), c=c).of_problem(problem)
    if problem is LINEAR:
        strength = c**6 * cast("float", LINEAR.regularizer.strength)
        mixing = (c**2 * LINEAR.mixing_matrix).tolist()
        bigger = bigger.with_fields({"regularizer.strength": strength, "teacher.mixing": mixing})
    a, b = (solved(one, 1.6, branch, tolerance=1e-11) for one in (problem, bigger))
    assert float(np.abs(a.q).max()) > 1e-3
    for name, power in powers.items():
        expected = c**power * a[name].to_numpy()
        bound = accuracy * np.abs(expected).max()
        np.testing.assert_allclose(b[name], expected, rtol=0, atol=bound, err_msg=name)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_untying_lowers_the_training_loss(branch):
    """The tied weights with twice the strength are one point of the untied problem, and a neighbour of its solution."""
    tied = PAIR.with_fields({"regularizer.strength": 2 * cast("float", UNTIED.regularizer.strength)})
    a, b = solved(tied, 2.1, branch), solved(UNTIED, 2.1, branch)
    error = np.hypot(float(a.training_loss_stderr), float(b.training_loss_stderr))
    assert float(b.training_loss) < float(a.training_loss) + 3 * error
    assert float(b.training_loss) == pytest.approx(float(a.training_loss), rel=0.1)


@pytest.mark.parametrize(("problem", "branch"), [(PAIR, "semantic"), (PAIR, "positional"), (RANK_TWO, "semantic")])
def test_a_positional_target_leaves_no_semantic_overlap(problem, branch):
    """So theta = 0 on every branch, also on the one that starts at Q_star."""
    point = solved(problem.with_fields({"teacher.omega": 1.0}), 1.9, branch)
    assert float(np.abs(point.q).max()) > 1e-3
    assert float(np.abs(point.theta).max()) < 1e-12
    assert float(np.abs(point.theta_hat).max()) < 1e-12


def test_a_semantic_target_is_learnt_completely():
    """At omega = 0 nothing but the ridge keeps W from Q_star: the test error falls like alpha^-2.

    The tail is a + b/alpha^2 + c/alpha^3 with a = 0: what is left at infinity, in standard errors and in size.
    """
    alphas = np.array([1.3, 5.5, 8.7, 14.0, 22.0])
    points = [solved(PAIR.with_fields({"teacher.omega": 0.0}), alpha) for alpha in alphas]
    error, spread = (np.array([float(p[name]) for p in points]) for name in ("test_error", "test_error_stderr"))
    assert np.all(error[:-1] - error[1:] > 5 * np.hypot(spread[:-1], spread[1:]))
    slope = np.diff(np.log(error)) / np.diff(np.log(alphas))
    assert -2.4 < slope[-1] < -2
    weights = 1 / spread[-4:]
    design = alphas[-4:, None] ** np.array([0.0, -2.0, -3.0]) * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    left = (covariance @ design.T @ (error[-4:] * weights))[0]
    assert abs(left) < 3 * np.sqrt(covariance[0, 0]) < 0.1 * error[-1]
    assert error[-1] < 2e-3 * float(points[0].linear_test_error)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_the_same_seed_has_the_same_numbers_whatever_the_threads(branch):
    problem = PAIR.with_fields({"integration.seed": 7})
    reference = solved(problem, 1.6, branch)
    sobol.cache_clear()
    for threads in (1, 2):
        again = ap.solve(problem, 1.6, branch, settings=ap.SolverSettings(threads=threads))
        for name, value in reference.data_vars.items():
            np.testing.assert_array_equal(again[name], value, err_msg=str(name))
