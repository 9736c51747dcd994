"""Every rewrite of the replica calculation, by its numerical check on a toy.

What is evaluated are the terms of the steps themselves: their nodes hold the integrals, and
`derivations.replica.quadrature` does them, n replicas at once by a rule in n + 1 dimensions, factorised ones level by
level; so two routes meet.

Not public: the steps' nodes, and the numbers of replicas and temperatures that only the chain has.
"""

import math
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from explicit import Explicit, RationalDraw
from sympy import Matrix, Rational, eye, tanh
from toys import ATOMS, LOG_COSH, TANH_SQUARE, richardson

import attnphase as ap
from derivations.algebra import symbols as sym
from derivations.algebra.minima import QuadraticMinimum
from derivations.algebra.tokens import TokenMatrix
from derivations.models.scalar import ScalarModel
from derivations.replica.ansatz import ReplicaSum
from derivations.replica.chain import derive_free_entropy
from derivations.replica.quadrature import Toy, evaluate

FREE_ENTROPY = ap.derive().free_entropy
MOMENTS, ANSATZ, NO_REPLICAS, ZERO_TEMPERATURE, RIDGE = FREE_ENTROPY.steps
COUPLINGS = ("mean", "teacher", "overlap")
DOUBLE_WELL = ScalarModel(
    "double well", lambda h, k: (tanh(1.2 * h[0][0] ** 2) - tanh(0.6 * k[0][0] ** 2 + 0.3)) ** 2 / 2
)
LOSSES = pytest.mark.parametrize("model", [LOG_COSH, TANH_SQUARE], ids=lambda model: model.name)
SIZES = pytest.mark.parametrize(("L", "r", "t"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
VALUES = {
    **{"q": 0.83, "v": 0.47, "m": -0.36, "theta": 0.52, "rho": 1.17, "beta": 1.6, "alpha": 0.71, "ridges": 0.43},
    **{"q_hat": 0.29, "v_hat": 0.61, "m_hat": 0.38, "theta_hat": -0.57},
}
TOY = Toy(VALUES, ATOMS)


def with_replicas(toy, n):
    """The toy with the replica-symmetric ansatz written out as replica matrices."""
    v, equal = toy.values, np.eye(n, dtype=bool)
    overlap = {"q": np.where(equal, v["q"] + v["v"], v["q"])}
    overlap["q_hat"] = np.where(equal, v["v_hat"] - v["q_hat"], v["q_hat"])
    single = {name: np.full(n, v[name]) for name in ("m", "theta", "m_hat", "theta_hat")}
    return replace(toy.given(n=n), replicas=overlap | single)


@LOSSES
@pytest.mark.parametrize("n", [1, 2])
def test_replicas_factorise(model, n):
    """Step 2 is step 1 at integer n: all terms, moments included."""
    first, second, *_ = derive_free_entropy(model).steps
    toy = replace(with_replicas(TOY, n), step=0.3, reach=10.0 * n)
    for name, term in first.terms.items():
        assert evaluate(term, toy) == pytest.approx(evaluate(second.terms[name], toy), rel=1e-8), name


@LOSSES
@pytest.mark.parametrize("name", ANSATZ.terms)
def test_step_three_is_the_coefficient_of_n(model, name):
    _, second, third, *_ = derive_free_entropy(model).steps
    limit = richardson(lambda n: evaluate(second.terms[name], TOY.given(n=n)) / n, 0.4)
    assert limit == pytest.approx(evaluate(third.terms[name], TOY), rel=1e-8)
    assert not third.terms[name].has(sym.n)


FINE = {"step": 0.75, "points": 5601}  # spacing .005, against a peak of width (V/beta)^1/2 > .03
POWERS = {"v": -1, "v_hat": 1, "q_hat": 2, "m_hat": 1, "theta_hat": 1}


def cold(toy):
    """The toy's numbers as those of the scaled order parameters: what was v and v_hat is V and V_hat."""
    return toy.given(V=toy.values["v"], V_hat=toy.values["v_hat"])


def scaled(toy, beta):
    """Order parameters at inverse temperature beta under the scalings of step 4."""
    return toy.given(beta=beta, **{name: toy.values[name] * beta**power for name, power in POWERS.items()})


def excess_energies(model, toy, betas):
    """``-E log Z_y / beta - E[M]`` times alpha, at each beta, from the terms of steps 3 and 4."""
    _, _, third, fourth, *_ = derive_free_entropy(model).steps
    limit = evaluate(fourth.terms["energy"], cold(toy))
    return [-evaluate(third.terms["energy"], scaled(toy, b)) / b - limit for b in betas]


def common_fields(toy, axes):
    """omega, k and weights over the Gaussian common to the replicas."""
    (x, first), (z, second) = (toy.gaussian(axis, axes) for axis in (0, 1))
    q, theta, rho = (toy.values[name] for name in ("q", "theta", "rho"))
    omega = toy.values["m"] + math.sqrt(q) * x
    return omega, theta / math.sqrt(q) * x + math.sqrt(rho - theta**2 / q) * z, first * second


def test_log_partition_tends_to_the_moreau_envelope_at_the_laplace_rate():
    """``-E log Z / beta = E[M] + E log(1 + V loss''(prox)) / (2 beta)`` and O(beta^-2)."""
    V = 0.9
    toy = replace(TOY, **FINE).given(v=V)
    omega, k, weights = common_fields(toy, 2)
    prox = omega + 0 * k
    for _ in range(60):  # Newton's method on a convex problem
        angle = 1.3 * prox - 0.8 * k + 0.2
        prox = prox - ((prox - omega) / V + 1.3 * np.tanh(angle)) / (1 / V + 1.3**2 / np.cosh(angle) ** 2)
    curvature = 1.3**2 / np.cosh(1.3 * prox - 0.8 * k + 0.2) ** 2
    predicted = VALUES["alpha"] * (weights * np.log(1 + V * curvature)).sum() / 2
    first, second = excess_energies(LOG_COSH, toy, (100.0, 400.0))
    # the next order is 1/beta: about 1/100, then 1/400
    assert 100 * first == pytest.approx(predicted, rel=2e-2)
    assert 400 * second == pytest.approx(predicted, rel=5e-3)


def test_log_partition_tends_to_the_global_minimum_where_the_proximal_point_jumps():
    """Two minima compete at large V; the mean still converges like 1/beta."""
    toy = replace(TOY, **FINE | {"step": 1.0}).given(v=12.0)
    omega, k, weights = common_fields(toy, 3)
    h = toy.grid
    energy = (h - omega) ** 2 / 24 + (np.tanh(1.2 * h * h) - np.tanh(0.6 * k * k + 0.3)) ** 2 / 2
    interior = energy[..., 1:-1]
    minima = ((interior < energy[..., :-2]) & (interior < energy[..., 2:])).sum(axis=-1, keepdims=True)
    assert (weights * (minima > 1)).sum() > 0.05  # otherwise nothing is tested
    for coarse, fine in pairwise(excess_energies(DOUBLE_WELL, toy, (250.0, 500.0, 1000.0, 2000.0))):
        assert fine / coarse == pytest.approx(0.5, abs=0.05)


def test_prior_log_partition_tends_to_the_completed_square():
    """``-E log Z_w / beta`` is the last prior term minus ``log(2 pi / A) / (2 beta)`` exactly."""
    final, minimum = (evaluate(step.terms["prior"], cold(TOY)) for step in (RIDGE, ZERO_TEMPERATURE))
    assert minimum == pytest.approx(final, rel=1e-12)
    for beta in (7.0, 60.0):
        curvatures = [(w, beta * (VALUES["ridges"] + a["gamma"] * VALUES["v_hat"])) for w, a in ATOMS]
        volume = sum(w * math.log(2 * math.pi / A) / 2 for w, A in curvatures)
        log_mean = evaluate(NO_REPLICAS.terms["prior"], scaled(TOY, beta))
        assert -log_mean / beta == pytest.approx(final - volume / beta, rel=1e-9)


@pytest.mark.parametrize("r", [1, 2, 3])
def test_completed_square_is_the_mean_minimum(r):
    """`QuadraticMinimum.doit` against an explicit minimiser for z on a cube, exactly."""
    draw = RationalDraw(r)
    A, b, S_root = draw.positive(r), draw.matrix(r, 1), draw.positive(r)
    node = QuadraticMinimum(*(TokenMatrix(name, sym.r, c, None) for name, c in (("A", sym.r), ("b", 1), ("S", sym.r))))
    at = Explicit(1, {"r": r}, {"A": A, "b": b, "S": S_root * S_root}, roots={node.args[2]: S_root})
    mean = 0
    for signs in product((-1, 1), repeat=r):
        z: Any = Matrix(signs)
        w = A.LUsolve(b + S_root * z)
        lowest = at.given(w=w, z=z)(node.objective)[0, 0]
        mean += lowest / 2**r
        for i, step in product(range(r), (-1, 1)):
            assert at.given(w=w + step * eye(r)[:, i], z=z)(node.objective)[0, 0] > lowest
    assert at(node.doit()) == mean


NAMES = {"q": ("r", "r"), "v": ("r", "r"), "q_hat": ("r", "r"), "v_hat": ("r", "r")}
NAMES |= {"m": ("r", 1), "m_hat": ("r", 1), "theta": ("r", "t"), "theta_hat": ("r", "t")}


def general_values(seed, L, r, t):
    draw, size = RationalDraw(seed), {"r": r, "t": t, 1: 1}
    return {name: draw.per_token(L, size[a], size[b], symmetric=(a, b) == ("r", "r")) for name, (a, b) in NAMES.items()}


def replica_sums(replicas):
    """A handler: ``replicas[name][a][b]`` (or ``[a]``) is what replica indices stand for."""

    def handler(node, at, bound):
        body, pairs = node.args
        total = 0
        for a, b in product(range(len(replicas["m"])), repeat=2):
            if (a != b) == bool(pairs):
                where = "ab" if pairs else "aa"
                values = {f"{name}^{where}": replicas[name][a][b] for name in ("q", "q_hat")}
                values |= {f"{name}^a": replicas[name][a] for name in ("m", "theta", "m_hat", "theta_hat")}
                total = total + at.given(**values)(body, bound)
        return total

    return {ReplicaSum: handler}


@pytest.mark.parametrize("n", [2, 3])
@SIZES
def test_couplings_count_replicas_and_their_pairs(L, r, t, n):
    """Sums over explicit replica matrices equal the counts n and n(n-1) of step 2."""
    v = general_values(3, L, r, t)
    total = [a + b for a, b in zip(v["q"], v["v"], strict=True)]
    conjugate = [b - a for a, b in zip(v["q_hat"], v["v_hat"], strict=True)]
    replicas = {
        "q": [[total if a == b else v["q"] for b in range(n)] for a in range(n)],
        "q_hat": [[conjugate if a == b else v["q_hat"] for b in range(n)] for a in range(n)],
        **{name: [v[name]] * n for name in ("m", "theta", "m_hat", "theta_hat")},
    }
    at = Explicit(L, {"r": r, "t": t, "L": L, "n": n}, v, handlers=replica_sums(replicas))
    for name in COUPLINGS:
        assert at(MOMENTS.terms[name]) == at(ANSATZ.terms[name])


@SIZES
def test_couplings_of_step_three_are_the_linear_coefficient(L, r, t):
    """Of second degree in n: three values fix it."""
    values = general_values(5, L, r, t)
    for name in COUPLINGS:
        none, one, two = (Explicit(L, {"n": n}, values)(ANSATZ.terms[name]) for n in (0, 1, 2))
        assert none == 0
        assert Explicit(L, {}, values)(NO_REPLICAS.terms[name]) == 2 * one - two / 2


@SIZES
def test_scaled_couplings_are_those_of_the_free_entropy(L, r, t):
    """``-1/beta`` times step 3 at scaled values is step 4 minus ``sum Tr[V_hat V] / (2 beta)``."""
    values, beta = general_values(9, L, r, t), Rational(400, 3)
    V, V_hat = values.pop("v"), values.pop("v_hat")
    powers = {"q": 0, "m": 0, "theta": 0, "q_hat": 2, "m_hat": 1, "theta_hat": 1}
    hot = {name: [beta ** powers[name] * x for x in values[name]] for name in powers}
    hot |= {"v": [x / beta for x in V], "v_hat": [beta * x for x in V_hat]}
    before, after = Explicit(L, {}, hot), Explicit(L, {}, values | {"V": V, "V_hat": V_hat})
    for name in ("mean", "teacher"):
        assert -before(NO_REPLICAS.terms[name]) / beta == after(FREE_ENTROPY.terms[name])
    remainder = sum((a * b).trace() for a, b in zip(V, V_hat, strict=True)) / (2 * beta)
    final = after(FREE_ENTROPY.terms["variance"]) + after(FREE_ENTROPY.terms["overlap"])
    assert -before(NO_REPLICAS.terms["overlap"]) / beta == final - remainder
