"""Symmetries of the theory, and exact relations between problems.

Two kinds of statements.  Where the integration nodes can be transformed together with the order parameters, both sides
see the same samples and agree to rounding.  Where they see different samples, they agree in standard errors.
"""

import itertools
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, ortho_group

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import Rule, gauss_hermite, sobol
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.channel import Channel, ChannelPass
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import ProximalProblem
from attnphase.state_evolution.system import System

FEW = settings(deadline=None, max_examples=6)
SEEDS = st.integers(0, 10**6)
ONE_THREAD = SolverSettings(threads=1)
COARSE = {"integration.rule": "sobol", "integration.nodes": 256}

# no parameter at 0, 1 or a symmetric value
PAIR = Problem().with_fields(
    {
        "tokens.sigma": [0.47, 0.58],
        "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
        "teacher.omega": 0.34,
        "teacher.mixing": [[0.64, 0.31], [0.43, 0.58]],
        "regularizer.strength": 0.013,
        **COARSE,
    }
)
TRIPLE = Problem().with_fields(
    {
        "tokens.length": 3,
        "tokens.sigma": [0.45, 0.62, 0.53],
        "positions.gram": [[1.1, -0.4, 0.1], [-0.4, 0.8, -0.2], [0.1, -0.2, 0.9]],
        "teacher.omega": 0.27,
        "teacher.mixing": [[0.6, 0.3, 0.1], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]],
        "regularizer.strength": 0.017,
        **COARSE,
    }
)
RANK_TWO = PAIR.with_fields({"student.rank": 2, "teacher.rank": 2})
UNTIED = PAIR.with_fields({"student.tied": False})
UNTIED_RANK_TWO = RANK_TWO.with_fields({"student.tied": False})
LINEAR = PAIR.with_fields({"student.score": "linear", "teacher.score": "linear"})


# --- one evaluation of the state-evolution map ------------------------------------------------------------------------


def normals(problem: Problem) -> tuple[int, int]:
    """Dimensions of all local fields and of the student's."""
    length = problem.tokens.length
    return length * (problem.columns + problem.teacher.rank), length * problem.columns


def sampled(problem: Problem, seed: int = 5, points: int = 64, replicates: int = 4) -> Rule:
    return sobol(*normals(problem), True, points, replicates, seed)


def random_overlaps(problem: Problem, seed: int, size: float = 3.0) -> Overlaps:
    """Feasible overlaps without any symmetry; `size` sets V."""
    rng = np.random.default_rng(seed)
    length, columns, rank = problem.tokens.length, problem.columns, problem.teacher.rank
    rho = Spectrum.of(problem).rho
    fields = rng.normal(size=(length, columns + rank, columns + rank + 3))
    joint = fields @ fields.mT / (columns + rank + 3)
    scale = np.sqrt(rho.mean())
    # theta and q of a joint law whose teacher's block is rho
    to_rho = np.linalg.cholesky(rho) @ np.linalg.inv(np.linalg.cholesky(joint[:, columns:, columns:]))
    width = rng.normal(size=(length, columns, columns + 3))
    return Overlaps(
        q=scale**2 * joint[:, :columns, :columns],
        V=size * (width @ width.mT / (columns + 3) + 0.3 * np.eye(columns)),
        m=0.3 * rng.normal(size=(length, columns, 1)),
        theta=scale * joint[:, :columns, columns:] @ to_rho.mT,
    )


def random_conjugates(problem: Problem, seed: int) -> Conjugates:
    """Conjugates with one replicate, within the domain."""
    rng = np.random.default_rng(seed)
    length, columns, rank = problem.tokens.length, problem.columns, problem.teacher.rank
    factors = rng.normal(size=(2, length, 1, columns, columns + 2))
    q_hat, V_hat = factors @ factors.mT / columns
    return Conjugates(
        q_hat, V_hat, rng.normal(size=(length, 1, columns, 1)), rng.normal(size=(length, 1, columns, rank))
    )


def system_of(problem: Problem, spectrum: Spectrum | None = None) -> System:
    """The system of a problem, perhaps with another measure."""
    system = System.of(problem)
    return system if spectrum is None else replace(system, spectrum=spectrum)


def evaluated(
    problem: Problem, overlaps: Overlaps, rule: Rule, alpha: float = 1.7, spectrum: Spectrum | None = None
) -> tuple[ChannelPass, np.ndarray]:
    """The channel's pass and the test error's loss per replicate."""
    channel = Channel(system_of(problem, spectrum), rule)
    return channel.evaluate(alpha, overlaps, Starts.COLD), channel.loss_at_omega(overlaps)


def from_conjugates(problem: Problem, conjugates: Conjugates, spectrum: Spectrum | None = None) -> Overlaps | None:
    return system_of(problem, spectrum).prior.overlaps(conjugates.mean())


def with_student_normals(rule: Rule, problem: Problem, matrices: np.ndarray) -> Rule:
    """The rule with ``xi_l`` replaced by ``matrices[l] xi_l``."""
    length, columns = problem.tokens.length, problem.columns
    nodes = rule.nodes.copy()
    xi = nodes[..., : length * columns].reshape(*nodes.shape[:2], length, columns)
    nodes[..., : length * columns] = np.einsum("lij,snlj->snli", matrices, xi).reshape(*nodes.shape[:2], -1)
    return replace(rule, nodes=nodes)


def moved(x: Overlaps, G: np.ndarray) -> Overlaps:
    """Overlaps of ``W G^T``: every student column becomes a combination of columns."""
    return Overlaps(G @ x.q @ G.T, G @ x.V @ G.T, G @ x.m, G @ x.theta)


def moved_conjugates(c: Conjugates, G: np.ndarray) -> Conjugates:
    """Conjugates move with the inverse transpose, so that ``Tr[q_hat q]`` and the rest stay."""
    A = np.linalg.inv(G).T
    return Conjugates(A @ c.q_hat @ A.T, A @ c.V_hat @ A.T, A @ c.m_hat, A @ c.theta_hat)


def permuted(problem: Problem, order: list[int]) -> Problem:
    """The same problem with its tokens renamed."""
    sigma = np.array(problem.tokens.sigma)
    return problem.with_fields(
        {
            "tokens.sigma": sigma[order].tolist(),
            "positions.gram": problem.positions_gram[np.ix_(order, order)].tolist(),
            "teacher.mixing": problem.mixing_matrix[np.ix_(order, order)].tolist(),
        }
    )


def permuted_nodes(rule: Rule, problem: Problem, order: list[int]) -> Rule:
    length, columns = problem.tokens.length, problem.columns
    replicates, points = rule.nodes.shape[:2]
    xi = rule.nodes[..., : length * columns].reshape(replicates, points, length, columns)
    zeta = rule.nodes[..., length * columns :].reshape(replicates, points, length, problem.teacher.rank)
    halves = [half[:, :, order].reshape(replicates, points, -1) for half in (xi, zeta)]
    return replace(rule, nodes=np.concatenate(halves, axis=-1))


def assert_same(
    actual: Overlaps | Conjugates | None, expected: Overlaps | Conjugates, tolerance: float = 1e-10
) -> None:
    """Every array field agrees, relative to its largest entry."""
    assert actual is not None
    for name in expected.by_name:
        a, b = actual.by_name[name], expected.by_name[name]
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * np.abs(b).max(), err_msg=name)


def assert_same_pass(
    actual: tuple[ChannelPass, np.ndarray], expected: tuple[ChannelPass, np.ndarray], tolerance: float = 1e-10
) -> None:
    """Two passes have the same means, conjugates aside."""
    np.testing.assert_allclose(actual[0].envelope, expected[0].envelope, rtol=tolerance)
    np.testing.assert_allclose(actual[0].loss_at_prox, expected[0].loss_at_prox, rtol=tolerance)
    np.testing.assert_allclose(actual[1], expected[1], rtol=tolerance)


def z_scores(a: Conjugates, b: Conjugates) -> np.ndarray:
    """Differences of two independent sampled means in standard errors, all entries."""
    scores = []
    for name in ("q_hat", "V_hat", "m_hat", "theta_hat"):
        x, y = getattr(a, name), getattr(b, name)
        variance = x.var(axis=1, ddof=1) / x.shape[1] + y.var(axis=1, ddof=1) / y.shape[1]
        scores.append(((x.mean(axis=1) - y.mean(axis=1)) / np.sqrt(variance)).ravel())
    return np.concatenate(scores)


def solved(problem: Problem, alpha: float, branch: str, solver: SolverSettings = ONE_THREAD) -> BranchPoint:
    point = solve_point(problem, alpha, branch, settings=solver)
    assert point.status.name == "converged"
    assert point.values["unsolved_nodes"] == 0
    return point


# --- permutations of the tokens ---------------------------------------------------------------------------------------


@FEW
@given(seed=SEEDS, case=st.sampled_from([(TRIPLE, p) for p in itertools.permutations(range(3))] + [(RANK_TWO, (1, 0))]))
def test_map_commutes_with_permutations_of_the_tokens(seed, case):
    """Tokens, encodings, sigma, mixing and nodes permuted together: the same samples under other names."""
    problem, order = case[0], list(case[1])
    x, rule = random_overlaps(problem, seed), sampled(problem)
    other, y = permuted(problem, order), Overlaps(*(v[order] for v in x.by_name.values()))
    before, after = evaluated(problem, x, rule), evaluated(other, y, permuted_nodes(rule, problem, order))
    assert_same_pass(after, before)
    assert_same(after[0].conjugates, Conjugates(*(v[order] for v in before[0].conjugates.by_name.values())))

    conjugates = random_conjugates(problem, seed)
    image = from_conjugates(problem, conjugates)
    renamed = from_conjugates(other, Conjugates(*(v[order] for v in conjugates.by_name.values())))
    assert image is not None
    assert_same(renamed, Overlaps(*(v[order] for v in image.by_name.values())))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "alpha", "branch", "order"),
    [(PAIR, 1.8, "semantic", [1, 0]), (PAIR, 1.8, "positional", [1, 0]), (TRIPLE, 2.5, "semantic", [2, 0, 1])],
)
def test_permuted_problems_have_permuted_fixed_points(problem, alpha, branch, order):
    """The solver integrates over the same nodes for both, which are other samples after renaming the tokens."""
    a, b = solved(problem, alpha, branch), solved(permuted(problem, order), alpha, branch)
    scores = []
    for name in ("q", "V", "m", "theta", "training_loss", "test_error", "weight_norm"):
        x, y = a.values[name], b.values[name]
        if np.ndim(x):
            x = np.array(x)[order]
        if name == "m":  # the gauge: the sign of W
            x, y = np.abs(x), np.abs(y)
        dx = np.array(a.errors[name])[order] if np.ndim(x) else a.errors[name]
        error = np.hypot(dx, b.errors[name])
        zero = error == 0
        assert np.all(np.abs(x - y)[zero] == 0) if np.ndim(x) else not zero
        scores.append(np.ravel((x - y) / np.where(zero, 1.0, error)))
    assert np.abs(np.concatenate(scores)).max() < 3.5


def test_exact_symmetries_of_the_paper_setting_stay_exact():
    """Equal tokens, m = 0 on the semantic and theta = 0 on the positional branch, not only within errors."""
    problem = Problem.paper(omega=0.34).with_fields(COARSE)
    semantic, positional = solved(problem, 1.7, "semantic").values, solved(problem, 1.7, "positional").values
    for values in (semantic, positional):
        assert np.array_equal(values["q"][0], values["q"][1])
        assert np.array_equal(values["V"][0], values["V"][1])
    assert np.array_equal(semantic["theta"][0], semantic["theta"][1])
    assert not semantic["m"].any()
    assert np.array_equal(positional["m"][0], -positional["m"][1])
    assert not positional["theta"].any()


# --- gauge: rotations of the student's columns ------------------------------------------------------------------------


def rotation(problem: Problem, seed: int) -> np.ndarray:
    """A random orthogonal matrix, acting on Q and K together if they are untied."""
    O = ortho_group.rvs(problem.student.rank, random_state=seed)
    return np.kron(np.eye(problem.columns // problem.student.rank), O)


@FEW
@given(seed=SEEDS, problem=st.sampled_from([RANK_TWO, UNTIED_RANK_TWO]))
def test_map_commutes_with_rotations(seed, problem):
    """``F(x o O) = F(x) o O`` to rounding, when the student's normals are rotated along."""
    x, rule, O = random_overlaps(problem, seed), sampled(problem), rotation(problem, seed)
    rotated = with_student_normals(rule, problem, np.stack([O] * problem.tokens.length))
    before, after = evaluated(problem, x, rule), evaluated(problem, moved(x, O), rotated)
    assert_same_pass(after, before)
    assert_same(after[0].conjugates, moved_conjugates(before[0].conjugates, O))

    conjugates = random_conjugates(problem, seed)
    image = from_conjugates(problem, conjugates)
    assert image is not None
    assert_same(from_conjugates(problem, moved_conjugates(conjugates, O)), moved(image, O))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [RANK_TWO, UNTIED_RANK_TWO], ids=["tied", "untied"])
@pytest.mark.parametrize("seed", [11, 12])
def test_sampled_map_commutes_with_rotations_in_standard_errors(problem, seed):
    """The same with independent nodes on both sides."""
    x, O = random_overlaps(problem, seed), rotation(problem, seed)
    a = evaluated(problem, x, sampled(problem, 2 * seed, 256, 16))[0].conjugates
    b = evaluated(problem, moved(x, O), sampled(problem, 2 * seed + 1, 256, 16))[0].conjugates
    scores = z_scores(moved_conjugates(a, O), b)
    assert np.abs(scores).max() < 4.5
    assert np.mean(scores**2) < 2


SIGNED_PERMUTATIONS = [
    np.diag(sign)[list(order)] for sign in itertools.product((1.0, -1.0), repeat=2) for order in ((0, 1), (1, 0))
]


@FEW
@given(seed=SEEDS, O=st.sampled_from(SIGNED_PERMUTATIONS))
def test_symmetric_rule_commutes_with_reflections_and_exchanges_of_columns(seed, O):
    """Gauss-Hermite nodes are a set that reflections and exchanges leave unchanged: nothing has to be moved along.

    The square root of q commutes with them as well, so the images agree node by node.
    """
    x = random_overlaps(RANK_TWO, seed)
    rule = gauss_hermite(*normals(RANK_TWO), True, 3)
    before, after = evaluated(RANK_TWO, x, rule), evaluated(RANK_TWO, moved(x, O), rule)
    assert_same_pass(after, before)
    assert_same(after[0].conjugates, moved_conjugates(before[0].conjugates, O))


@FEW
@given(seed=SEEDS, problem=st.sampled_from([PAIR, UNTIED]))
def test_map_commutes_with_the_sign_of_the_weights(seed, problem):
    """``Q -> -Q`` (and ``K -> -K``): sampled rules are symmetrised, so this holds to rounding without moving nodes."""
    x, rule = random_overlaps(problem, seed), sampled(problem)
    flip = -np.eye(problem.columns)
    before, after = evaluated(problem, x, rule), evaluated(problem, moved(x, flip), rule)
    assert_same_pass(after, before)
    assert_same(after[0].conjugates, moved_conjugates(before[0].conjugates, flip))


def untied_gauge(seed: int, rank: int) -> np.ndarray:
    """``Q -> Q M``, ``K -> K M^-T`` as one matrix acting on the columns of (Q|K)."""
    M = np.random.default_rng(seed).normal(size=(rank, rank)) * 0.4 + np.diag(np.linspace(1.3, 0.7, rank))
    G = np.zeros((2 * rank, 2 * rank))
    G[:rank, :rank], G[rank:, rank:] = M.T, np.linalg.inv(M)
    return G


@FEW
@given(seed=SEEDS, problem=st.sampled_from([UNTIED, UNTIED_RANK_TWO]))
def test_untied_loss_has_the_gauge_freedom_of_its_logits(seed, problem):
    """The loss depends on (Q, K) through ``Q K^T`` alone; for rank one this is ``Q -> c Q``, ``K -> K/c``."""
    G = untied_gauge(seed, problem.student.rank)
    assume(np.linalg.cond(G) < 30)
    h, k = random_fields(problem, seed)
    np.testing.assert_allclose(losses(problem, h @ G.T, k), losses(problem, h, k), rtol=1e-10)


@FEW
@given(seed=SEEDS, problem=st.sampled_from([UNTIED, UNTIED_RANK_TWO]))
def test_untied_channel_has_the_gauge_freedom_of_its_logits(seed, problem):
    """The whole channel is covariant under it, V included; only the ridge chooses a gauge.

    With ``omega = q^1/2 xi`` the normals turn by the orthogonal matrix ``(G q G^T)^-1/2 G q^1/2``, token by token.
    """
    G = untied_gauge(seed, problem.student.rank)
    assume(np.linalg.cond(G) < 10)
    x, rule = random_overlaps(problem, seed), sampled(problem)
    y = moved(x, G)
    # as the channel does, which adds a millionth of a percent of rho to q: not covariant, and left out here
    turns = np.linalg.solve(matrix_root(y.q), G @ matrix_root(x.q))
    before, after = evaluated(problem, x, rule), evaluated(problem, y, with_student_normals(rule, problem, turns))
    np.testing.assert_allclose(after[0].envelope, before[0].envelope, rtol=1e-5)
    found, expected = after[0].conjugates, moved_conjugates(before[0].conjugates, G)
    # V_hat is corrected by its integration error so that one gauge is balanced: by so much it may depend on the gauge
    error = expected.V_hat.std(axis=1, ddof=1) / np.sqrt(expected.V_hat.shape[1])
    apart = np.abs(found.V_hat - expected.V_hat).mean(axis=1)
    assert (apart <= 4 * error + 1e-5 * np.abs(expected.V_hat).max()).all()
    assert_same(replace(found, V_hat=expected.V_hat), expected, 1e-5)


def random_fields(problem: Problem, seed: int, samples: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    length = problem.tokens.length
    h = rng.normal(0.1, 1.2, (samples, length, problem.columns))
    return h, rng.normal(0.2, 0.8, (samples, length, problem.teacher.rank))


def losses(problem: Problem, h: np.ndarray, k: np.ndarray) -> np.ndarray:
    return ProximalProblem(System.of(problem)).losses(h, k)


# --- multiplying the tokens by a number -------------------------------------------------------------------------------

SCALES = st.floats(0.6, 1.7).filter(lambda c: abs(c - 1) > 0.05)


def scaled_overlaps(x: Overlaps, c: float) -> Overlaps:
    return replace(x, V=x.V / c**2)


@FEW
@given(seed=SEEDS, c=SCALES, problem=st.sampled_from([PAIR, UNTIED_RANK_TWO, LINEAR]))
def test_scaling_law_with_the_teacher_scaled_back(seed, c, problem):
    """What multiplying tokens and encodings by c does, for any scores, if the teacher sees the same fields.

    Let ``x -> c x``, ``p -> c p``, that is ``gamma -> c^2 gamma`` and ``tau -> c tau``, and write ``W = W'/c``.

    - The student's fields ``h = W^T (x+p)/sqrt(d)`` are those of ``W'`` at the old tokens.
    - The teacher's fields are multiplied by c, unless ``Q_star -> Q_star / c``, that is ``pi -> pi/c``. No field of a
      problem holds the teacher's scale, so that the law is one of the channel and the spectral measure; then
      ``rho = Q_star^T Sigma Q_star / d`` is the old one.
    - The loss ``1/2 Tr[(S - T) D (S - T)^T]`` has ``D = diag(tr Sigma / d) -> c^2 D``: it is multiplied by ``c^2``.
    - The penalty ``lambda/2 |W'|^2/c^2`` is too if ``lambda -> c^4 lambda``.

    The risk is therefore ``c^2`` times the old one in ``W'``, at the same number of samples:

    - ``q = W^T Sigma W/d``, ``m = W^T p/sqrt(d)`` and ``theta = W^T Sigma Q_star/d`` stay (each carries as many
      factors c as factors 1/c);
    - ``V -> V/c^2``, because ``(h-omega)^T V^-1 (h-omega)`` must grow like the loss, and the proximal points stay;
    - ``g = V^-1 (prox - omega) -> c^2 g``, hence ``q_hat -> c^4 q_hat`` and ``m_hat, theta_hat, V_hat -> c^2`` times
      the old ones (check: ``R^-1 = lambda + sum gamma V_hat -> c^4 R^-1``, ``b -> c^3 b``, and (7) gives q, V, m and
      theta as stated);
    - training loss, test error and envelope are multiplied by ``c^2``, and ``|W|^2/d`` by ``1/c^2``.
    """
    bigger = scaled_problem(problem, c)
    spectrum = Spectrum.of(bigger)
    to_unit = np.eye(spectrum.mean.shape[1])
    to_unit[spectrum.sites :] /= c
    spectrum = replace(spectrum, covariance=to_unit @ spectrum.covariance @ to_unit.T)
    np.testing.assert_allclose(spectrum.rho, Spectrum.of(problem).rho, rtol=1e-12)
    x, rule = random_overlaps(problem, seed), sampled(problem)
    before, after = evaluated(problem, x, rule), evaluated(bigger, scaled_overlaps(x, c), rule, spectrum=spectrum)
    np.testing.assert_allclose(after[0].envelope, c**2 * before[0].envelope, rtol=1e-10)
    np.testing.assert_allclose(after[0].loss_at_prox, c**2 * before[0].loss_at_prox, rtol=1e-10)
    np.testing.assert_allclose(after[1], c**2 * before[1], rtol=1e-10)
    assert_same(after[0].conjugates, scaled_conjugates(before[0].conjugates, c))

    conjugates = random_conjugates(problem, seed)
    image = from_conjugates(problem, conjugates)
    assert image is not None
    assert_same(from_conjugates(bigger, scaled_conjugates(conjugates, c), spectrum), scaled_overlaps(image, c))


def scaled_problem(problem: Problem, c: float) -> Problem:
    return problem.with_fields(
        {
            "tokens.sigma": (c * np.array(problem.tokens.sigma)).tolist(),
            "positions.gram": (c**2 * problem.positions_gram).tolist(),
            "regularizer.strength": c**4 * cast("float", problem.regularizer.strength),
        }
    )


def scaled_conjugates(x: Conjugates, c: float) -> Conjugates:
    return Conjugates(c**4 * x.q_hat, c**2 * x.V_hat, c**2 * x.m_hat, c**2 * x.theta_hat)


def assert_scaled(a: BranchPoint, b: BranchPoint, powers: dict[str, int], c: float, tolerance: float) -> None:
    for name, power in powers.items():
        expected = c**power * np.array(a.values[name])
        bound = tolerance * np.abs(expected).max()
        np.testing.assert_allclose(b.values[name], expected, rtol=0, atol=bound, err_msg=name)


TIGHT = SolverSettings(threads=1, tolerance=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "c"), [("positional", 1.37), ("uninformed", 0.71)])
def test_scaling_law_of_a_positional_target(branch, c):
    """At omega = 1 the teacher is the constant A and has no scale: the law holds between two problems, fields and all.

    Not to rounding: the channel adds 1e-8 of rho to q, and rho, which means nothing here, is multiplied by ``c^2``.
    """
    problem = PAIR.with_fields({"teacher.omega": 1.0})
    a, b = solved(problem, 1.6, branch, TIGHT), solved(scaled_problem(problem, c), 1.6, branch, TIGHT)
    assert np.abs(a.values["q"]).max() > 1e-3
    powers = {"q": 0, "V": -2, "m": 0, "q_hat": 4, "V_hat": 2, "m_hat": 2}
    powers |= {"training_loss": 2, "test_error": 2, "weight_norm": -2}
    assert_scaled(a, b, powers, c, 1e-6)


@pytest.mark.slow
def test_scaling_law_of_linear_scores():
    """Linear scores are homogeneous, so that the teacher's scale can be moved into the mixing matrix.

    With ``x -> c x``, ``p -> c p`` at the same W and Q_star all fields, and all logits ``h h^T``, ``k k^T`` by their
    square, are multiplied. With ``A -> c^2 A`` the loss is multiplied by ``c^2`` (from D) times ``c^4``, and the risk
    as a whole if ``lambda -> c^6 lambda``. So W stays, ``q, theta -> c^2``, ``m -> c``, ``V -> V/c^4``, losses ``c^6``.
    """
    c = 1.23
    bigger = scaled_problem(LINEAR, c).with_fields(
        {
            "regularizer.strength": c**6 * cast("float", LINEAR.regularizer.strength),
            "teacher.mixing": (c**2 * LINEAR.mixing_matrix).tolist(),
        }
    )
    powers = {"q": 2, "V": -4, "theta": 2, "q_hat": 10, "V_hat": 4, "m_hat": 5, "theta_hat": 4}
    powers |= {"training_loss": 6, "test_error": 6, "linear_test_error": 6, "weight_norm": 0}
    a, b = solved(LINEAR, 1.9, "semantic", TIGHT), solved(bigger, 1.9, "semantic", TIGHT)
    assert np.abs(a.values["theta"]).max() > 1e-2
    assert_scaled(a, b, powers, c, 1e-8)


# --- untied weights restricted to Q = K -------------------------------------------------------------------------------


@FEW
@given(seed=SEEDS, pair=st.sampled_from([(PAIR, UNTIED), (RANK_TWO, UNTIED_RANK_TWO)]))
def test_untied_loss_at_equal_weights_is_the_tied_loss(seed, pair):
    tied, untied = pair
    h, k = random_fields(tied, seed)
    both = np.concatenate([h, h], axis=-1)
    np.testing.assert_allclose(losses(untied, both, k), losses(tied, h, k), rtol=1e-12)


def split(plus: np.ndarray, minus: np.ndarray) -> np.ndarray:
    """A matrix on (Q|K) from its parts along ``Q = K`` and ``Q = -K``."""
    return np.kron(np.ones((2, 2)), plus) + np.kron(np.array([[1.0, -1.0], [-1.0, 1.0]]), minus)


@FEW
@given(seed=SEEDS, pair=st.sampled_from([(PAIR, UNTIED), (RANK_TWO, UNTIED_RANK_TWO)]))
def test_untied_local_problem_at_equal_fields_is_the_tied_one(seed, pair):
    """Energies of the local problem, with ``h_Q = a + b`` and ``h_K = a - b``.

    With ``V = (1,1)^T(1,1) V_+ + (1,-1)^T(1,-1) V_-`` the quadratic part is ``1/2 (a-omega)^T V_+^-1 (a-omega) + 1/2
    b^T V_-^-1 b``. At b = 0 the energy is the tied one with ``V_+``; the minimum over b as well lies below, and comes
    back to the tied one as V_- vanishes. Without data ``V = gamma/lambda``, so ``V_+ = gamma/(2 lambda)``: the tied
    problem's with twice the strength.
    """
    tied, untied = pair
    x = random_overlaps(tied, seed, size=2.0)
    omega, k = random_fields(tied, seed)
    omega, k = 0.5 * omega[None, None, None], 0.5 * k[None, None, None]
    both = np.concatenate([omega, omega], axis=-1)

    def minimised(problem, centers, V):
        local = ProximalProblem(System.of(problem))
        return local.minimise(centers, k, V, ((0, 1),), Starts.COLD, None)[0]

    reference = minimised(tied, omega, x.V)
    free = minimised(untied, both, np.stack([split(V, 0.8 * V) for V in x.V]))
    frozen = minimised(untied, both, np.stack([split(V, 1e-11 * V) for V in x.V]))
    assert np.all(free.envelope <= reference.envelope * (1 + 1e-12))
    np.testing.assert_allclose(frozen.envelope, reference.envelope, rtol=1e-8)
    np.testing.assert_allclose(frozen.loss, reference.loss, rtol=1e-8)
    # minus the gradient in a is the sum of those in h_Q and h_K
    summed = frozen.residual[..., : tied.columns] + frozen.residual[..., tied.columns :]
    np.testing.assert_allclose(summed, reference.residual, rtol=0, atol=1e-7 * np.abs(reference.residual).max())


@FEW
@given(seed=SEEDS, pair=st.sampled_from([(PAIR, UNTIED), (RANK_TWO, UNTIED_RANK_TWO)]))
def test_untied_prior_at_equal_weights_is_the_tied_one_with_twice_the_strength(seed, pair):
    """``lambda/2 (|Q|^2 + |K|^2) = 2 lambda/2 |Q|^2`` at Q = K; the other direction keeps its free variance."""
    tied, untied = pair
    doubled = tied.with_fields({"regularizer.strength": 2 * untied.regularizer.strength})
    c = random_conjugates(tied, seed)
    zero = np.zeros_like(c.V_hat[0, 0])
    stacked = Conjugates(
        *(np.stack([split(v / 4, zero) for v in values[:, 0]])[:, None] for values in (c.q_hat, c.V_hat)),
        *(np.tile(values / 2, (1, 1, 2, 1)) for values in (c.m_hat, c.theta_hat)),
    )
    image, both = from_conjugates(doubled, c), from_conjugates(untied, stacked)
    assert image is not None
    assert both is not None
    gamma = Spectrum.of(untied).site_variances / doubled.regularizer.strength
    identity = np.eye(tied.columns)
    expected = Overlaps(
        q=np.stack([split(q, zero) for q in image.q]),
        V=np.stack([split(V, free * identity) for V, free in zip(image.V, gamma, strict=True)]),
        m=np.tile(image.m, (1, 2, 1)),
        theta=np.tile(image.theta, (1, 2, 1)),
    )
    assert_same(both, expected)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_untying_lowers_the_training_loss(branch):
    """The tied weights with twice the strength are one point of the untied problem."""
    tied = PAIR.with_fields({"regularizer.strength": 2 * UNTIED.regularizer.strength})
    a, b = solved(tied, 2.1, branch), solved(UNTIED, 2.1, branch)
    error = np.hypot(a.errors["training_loss"], b.errors["training_loss"])
    assert b.values["training_loss"] < a.values["training_loss"] + 3 * error
    # and Q stays near K: the solution is a neighbour of the tied one
    assert b.values["training_loss"] == pytest.approx(a.values["training_loss"], rel=0.1)


# --- targets of one kind alone ----------------------------------------------------------------------------------------


@FEW
@given(seed=SEEDS, problem=st.sampled_from([PAIR, RANK_TWO, UNTIED]))
def test_one_map_with_a_positional_target_removes_the_semantic_overlap(seed, problem):
    """At omega = 1 the target is A x, independent of k: theta_hat = 0 wherever one starts."""
    problem = problem.with_fields({"teacher.omega": 1.0})
    x, rule = random_overlaps(problem, seed), sampled(problem)
    conjugates = evaluated(problem, x, rule)[0].conjugates
    assert np.abs(x.theta).max() > 1e-3
    assert np.abs(conjugates.theta_hat).max() < 1e-12 * np.abs(conjugates.m_hat).max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "branch"),
    [(PAIR, "semantic"), (PAIR, "positional"), (PAIR, "uninformed"), (RANK_TWO, "semantic")],
)
def test_positional_target_leaves_no_semantic_overlap(problem, branch):
    """So theta = 0 on every branch, also on the one that starts at Q_star."""
    values = solved(problem.with_fields({"teacher.omega": 1.0}), 1.9, branch).values
    assert np.abs(values["q"]).max() > 1e-3
    assert np.abs(values["theta"]).max() < 1e-12
    assert np.abs(values["theta_hat"]).max() < 1e-12


@pytest.mark.slow
def test_semantic_target_is_learnt_completely():
    """At omega = 0 the student can represent the target: the test error of the semantic branch falls to zero.

    Nothing but the ridge keeps W from Q_star.  Its share of the risk falls like lambda/alpha, so the bias of W does,
    and the test error like alpha^-2.
    """
    problem = PAIR.with_fields({"teacher.omega": 0.0})
    alphas = np.array([1.3, 2.1, 3.4, 5.5, 8.7, 14.0, 22.0])
    points = [solved(problem, a, "semantic") for a in alphas]
    error = np.array([p.values["test_error"] for p in points])
    spread = np.array([p.errors["test_error"] for p in points])
    drop = error[:-1] - error[1:]
    assert np.all(drop > 5 * np.hypot(spread[:-1], spread[1:]))
    # local exponents come down to -2 from the steeper side
    slope = np.diff(np.log(error)) / np.diff(np.log(alphas))
    uncertain = np.hypot(spread[:-1] / error[:-1], spread[1:] / error[1:]) / np.diff(np.log(alphas))
    assert np.all(slope[-3:] + 4 * uncertain[-3:] < -2)
    assert slope[-1] > -2.4
    # the tail is a + b/alpha^2 + c/alpha^3 with a = 0: what is left at infinity, in standard errors and in size
    tail, weights = alphas[-4:, None] ** np.array([0.0, -2.0, -3.0]), 1 / spread[-4:]
    design = tail * weights[:, None]
    covariance = np.linalg.inv(design.T @ design)
    left = (covariance @ design.T @ (error[-4:] * weights))[0]
    assert abs(left) < 3 * np.sqrt(covariance[0, 0])
    assert abs(left) + 3 * np.sqrt(covariance[0, 0]) < 0.1 * error[-1]
    assert error[-1] < 2e-3 * points[0].values["linear_test_error"]


# --- seeds and threads ------------------------------------------------------------------------------------------------


def numbers(point: BranchPoint) -> np.ndarray:
    return np.concatenate([np.ravel(v) for v in (*point.values.values(), *point.errors.values())])


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_same_seed_same_numbers_whatever_the_threads(branch):
    problem = PAIR.with_fields({"integration.seed": 7})
    reference = numbers(solved(problem, 1.6, branch))
    sobol.cache_clear()
    again = solved(problem, 1.6, branch)
    np.testing.assert_array_equal(numbers(again), reference)
    np.testing.assert_array_equal(numbers(solved(problem, 1.6, branch, replace(ONE_THREAD, threads=2))), reference)


@pytest.mark.slow
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_seeds_scatter_as_the_standard_errors_say(branch):
    """Chi-square of ten seeds about their mean, for every quantity: 0.01 % on either side."""
    points = [solved(PAIR.with_fields({"integration.seed": seed}), 1.6, branch) for seed in range(21, 31)]
    low, high = chi2.ppf([1e-4, 1 - 1e-4], len(points) - 1)
    names = ("q", "V", "theta" if branch == "semantic" else "m", "training_loss", "test_error", "weight_norm")
    for name in names:
        values = np.stack([np.ravel(p.values[name]) for p in points])
        errors = np.stack([np.ravel(p.errors[name]) for p in points])
        squares = (((values - values.mean(axis=0)) / np.sqrt((errors**2).mean(axis=0))) ** 2).sum(axis=0)
        assert np.all((low < squares) & (squares < high)), (name, squares)
