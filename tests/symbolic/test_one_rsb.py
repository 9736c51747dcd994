"""One-step replica-symmetry breaking: its free entropy and saddle point, checked on a toy.

The toy of ``test_replica.py`` with two overlaps.  What is evaluated are the nodes that the chain and the
differentiation produced; the replica matrices, with groups of x replicas, are written out by hand.
"""
# SymPy's annotations do not know explicit matrices
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sympy import Float, Rational, cosh, diag, log, tanh

from derivations.algebra import symbols as sym
from derivations.algebra.means import SpectralMean
from derivations.algebra.tokens import TokenMatrix
from derivations.models.scalar import ScalarModel
from derivations.models.symbolic import GENERIC
from derivations.printing.one_rsb import one_rsb_document, one_rsb_page
from derivations.replica.ansatz import ONE_RSB, REPLICA_SYMMETRIC
from derivations.replica.chain import derive_free_entropy
from derivations.replica.moments import SampleLoss
from derivations.replica.one_rsb import derive_one_rsb_saddle_point
from derivations.replica.one_rsb_nodes import LogDeterminant, TiltedQuadratic
from derivations.replica.quadrature import Toy, evaluate
from derivations.replica.rewriting import difference, pulled, substituted
from derivations.replica.saddle_point import derive_saddle_point

ROOT = Path(__file__).parents[2]

LOG_COSH = ScalarModel("log cosh", lambda h, k: log(cosh(1.3 * h[0][0] - 0.8 * k[0][0] + 0.2)))
TANH_SQUARE = ScalarModel("tanh", lambda h, k: (tanh(0.6 * h[0][0]) - tanh(0.45 * k[0][0] + 0.3)) ** 2 / 2)

FREE_ENTROPY = derive_free_entropy(LOG_COSH, ONE_RSB)
MOMENTS, GROUPED, NO_REPLICAS, ZERO_TEMPERATURE, RIDGE = FREE_ENTROPY.steps
SADDLE_POINT = derive_one_rsb_saddle_point(FREE_ENTROPY)
BY_NAME = {equation.unknown.name: equation for equation in SADDLE_POINT}

VALUES = {
    **{"q_0": 0.53, "q_1": 0.83, "v": 0.47, "m": -0.36, "theta": 0.52, "rho": 1.17, "alpha": 0.71, "ridges": 0.43},
    **{"q_hat_0": 0.19, "q_hat_1": 0.31, "v_hat": 0.61, "m_hat": 0.38, "theta_hat": -0.57, "beta": 1.6, "y": 1.4},
}
ATOMS = ((0.35, {"gamma": 0.7, "tau": 0.9, "pi": -1.2}), (0.65, {"gamma": 1.3, "tau": -0.6, "pi": 0.8}))
TOY = Toy(VALUES | {"V": VALUES["v"], "V_hat": VALUES["v_hat"]}, ATOMS, loss=SampleLoss(LOG_COSH), step=0.4, reach=8.0)


def with_groups(toy, n, x):
    """The toy with n replicas in groups of x, written out."""
    values = toy.values
    group = np.arange(n) // x
    together = group[:, None] == group[None, :]
    overlap = np.where(together, values["q_1"], values["q_0"]) + values["v"] * np.eye(n)
    conjugate = np.where(together, values["q_hat_1"], values["q_hat_0"])
    np.fill_diagonal(conjugate, values["v_hat"] - values["q_hat_1"])
    singles = {name: np.full(n, values[name]) for name in ("m", "theta", "m_hat", "theta_hat")}
    return replace(toy.given(n=n, x=x), replicas={"q": overlap, "q_hat": conjugate, **singles})


# --- the ansatz -------------------------------------------------------------------------------


@pytest.mark.parametrize("ansatz", [REPLICA_SYMMETRIC, ONE_RSB], ids=lambda ansatz: ansatz.name)
def test_the_classes_hold_every_pair_once(ansatz):
    assert sum(c.count for c in ansatz.classes).expand() == sym.n**2
    assert math.prod(ansatz.powers) == sym.n


@pytest.mark.parametrize(("n", "x"), [(4, 2), (6, 3), (6, 2), (3, 1)])
def test_couplings_count_pairs_in_groups(n, x):
    toy = with_groups(TOY, n, x)
    for name in ("overlap", "mean", "teacher"):
        assert evaluate(MOMENTS.terms[name], toy) == pytest.approx(evaluate(GROUPED.terms[name], toy), rel=1e-13)


# --- the steps --------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "x"), [(2, 1), (2, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("model", [LOG_COSH, TANH_SQUARE], ids=lambda model: model.name)
def test_replicas_in_groups_factorise(model, n, x):
    """n replicas at once against the means in each other; four in two groups have all three kinds of pairs."""
    first, second, *_ = derive_free_entropy(model, ONE_RSB).steps
    for name, rule in {"energy": {"step": 0.55, "reach": 6.6}, "prior": {"step": 0.7, "reach": 11.2}}.items():
        if n == 2:
            rule = {"step": 0.35, "reach": 18.0 if name == "prior" else 7.7}
        toy = replace(with_groups(TOY, n, x), **rule)
        accuracy = 1e-8 if n == 2 else 1e-6
        # the row's weight moves what four replicas share by nine of its standard deviations, and widens it
        expected = evaluate(second.terms[name], replace(toy, step=0.35, reach=28.0) if name == "prior" else toy)
        assert evaluate(first.terms[name], toy) == pytest.approx(expected, rel=accuracy), name


def richardson(function, first, levels=6):
    """Limit of a smooth function at 0 from its values at ``first / 2^j``."""
    row = [function(first / 2**j) for j in range(levels)]
    for order in range(1, levels):
        row = [b + (b - a) / (2**order - 1) for a, b in pairwise(row)]
    return row[0]


@pytest.mark.parametrize("name", GROUPED.terms)
def test_step_three_is_the_coefficient_of_n(name):
    toy = TOY.given(x=0.6)
    limit = richardson(lambda n: evaluate(GROUPED.terms[name], toy.given(n=n)) / n, 0.4)
    assert limit == pytest.approx(evaluate(NO_REPLICAS.terms[name], toy), rel=1e-7)
    assert not NO_REPLICAS.terms[name].has(sym.n)


def test_the_free_entropy_is_the_limit_of_step_three():
    """At ``x = y/beta`` the difference falls like log(beta)/beta, for the sample's and the row's terms together."""
    toy = replace(TOY, step=1.0, points=3501)
    powers = {"v": -1, "v_hat": 1, "q_hat_0": 2, "q_hat_1": 2, "m_hat": 1, "theta_hat": 1}
    limit = evaluate(FREE_ENTROPY.total, toy)
    differences = []
    for beta in (50.0, 200.0, 800.0):
        scaled = {name: VALUES[name] * beta**power for name, power in powers.items()}
        hot = toy.given(beta=beta, x=VALUES["y"] / beta, **scaled)
        differences.append(abs(-evaluate(NO_REPLICAS.total, hot) / beta - limit))
    assert differences[2] < differences[1] < differences[0]
    assert differences[2] * 800 < 3 * differences[0] * 50


def test_ridge_integral_is_the_gaussian_one():
    """The last step against the integral over the sources that the step before holds."""
    toy = replace(TOY, step=0.3, reach=12.0)
    expected = evaluate(ZERO_TEMPERATURE.terms["prior"], toy)
    assert evaluate(RIDGE.terms["prior"], toy) == pytest.approx(expected, rel=1e-10)


# --- the saddle point -------------------------------------------------------------------------


def slope(name, toy, step=2e-3):
    """Derivative of F by a difference of sixth order of the evaluated nodes."""
    weights = {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}

    def shifted(j):
        return evaluate(FREE_ENTROPY.total, toy.given(**{name: toy.values[name] + j * step}))

    return sum(c * (shifted(j) - shifted(-j)) for j, c in weights.items()) / step


Y = VALUES["y"]
# derivative of F in a variable: a factor times the value of its partner minus the equation's right-hand side
CHANNEL = {"V": ("q_hat_1", 0.5), "q_0": ("q_hat_0", -Y / 2), "q_1": ("V_hat", -0.5)}
CHANNEL |= {"m": ("m_hat", 1.0), "theta": ("theta_hat", 1.0)}


@pytest.mark.parametrize("variable", CHANNEL)
def test_free_entropy_is_stationary_in_the_overlaps(variable):
    toy = replace(TOY, points=141)
    partner, factor = CHANNEL[variable]
    right = evaluate(BY_NAME[partner].right_hand_side, toy)
    assert BY_NAME[partner].stationary_in.name == variable
    assert slope(variable, toy) == pytest.approx(factor * (toy.values[partner] - right), rel=1e-7)


def test_free_entropy_is_stationary_in_the_conjugates():
    right = {name: evaluate(BY_NAME[name].right_hand_side, TOY) for name in ("q_0", "V", "m", "theta")}
    right["q_1"] = evaluate(BY_NAME["q_1"].right_hand_side, TOY.given(q_0=right["q_0"]))
    off = {name: TOY.values[name] - value for name, value in right.items()}
    toy = replace(TOY, step=0.8, points=101)  # the energy does not depend on the conjugates
    assert slope("q_hat_0", toy) == pytest.approx(-Y / 2 * off["q_0"], rel=1e-7)
    assert slope("V_hat", toy) == pytest.approx(-off["q_1"] / 2, rel=1e-7)
    assert slope("q_hat_1", toy) + Y * slope("V_hat", toy) == pytest.approx(off["V"] / 2, rel=1e-7)
    assert slope("m_hat", toy) == pytest.approx(off["m"], rel=1e-7)
    assert slope("theta_hat", toy) == pytest.approx(off["theta"], rel=1e-7)


# --- matrices ---------------------------------------------------------------------------------


def matrices(rational, L, r, t):
    draw = rational(17)
    sizes = {"m_hat": (r, 1), "theta_hat": (r, t), "q_0": (r, r), "q_1": (r, r)}
    values = {name: draw.per_token(L, *size, symmetric=size == (r, r)) for name, size in sizes.items()}
    small = {name: [draw.positive(r) / 9 for _ in range(L)] for name in ("q_hat_0", "rest")}
    values["q_hat_0"] = small["q_hat_0"]
    values["q_hat_1"] = [a + b for a, b in zip(small["q_hat_0"], small["rest"], strict=True)]
    values["V_hat"] = [draw.positive(r) for _ in range(L)]
    atoms = tuple(
        (
            Rational(1, 2),
            {"gamma": [draw.number() ** 2 for _ in range(L)], "tau": [draw.number() for _ in range(L)]}
            | {"pi": draw.matrix(t, 1)},
        )
        for _ in range(2)
    )
    return values, atoms


def test_equations_of_matrices_that_do_not_commute(explicit, rational):
    """The prior's part of F at r = 2, varied in every entry of a conjugate, gives the equations of the overlaps."""
    L, r, t = 2, 2, 2
    values, atoms = matrices(rational, L, r, t)
    y = Rational(3, 7)
    sizes = {"r": r, "t": t, "L": L, "y": y}
    values["ridges"] = diag(Rational(9, 5), Rational(13, 7))
    logs = {LogDeterminant: lambda node, evaluate, bound: log(Float(evaluate(node.args[0], bound).det(), 40))}
    world = explicit(L, sizes, values, atoms, handlers=logs)
    prior = FREE_ENTROPY.terms["prior"]

    step = Float("1e-12", 40)

    def gradient(name, token, a, b):
        total = 0
        for sign in (1, -1):
            moved = [x.copy() for x in values[name]]
            for i, j in {(a, b), (b, a)} if moved[0].shape == (r, r) and "theta" not in name else {(a, b)}:
                moved[token][i, j] += sign * step
            total += sign * Float(world.given(**{name: moved})(prior), 40)
        # off-diagonal entries of symmetric matrices were varied with their mirror images
        return total / (2 * step) / (2 if a != b and name in {"V_hat", "q_hat_0", "q_hat_1"} else 1)

    for token, a, b in ((0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 1, 1)):
        bound = {sym.ell: token}
        right = {name: world(BY_NAME[name].right_hand_side, bound) for name in ("q_0", "V", "m", "theta")}
        overlaps = [right["q_0"] if token == i else x for i, x in enumerate(values["q_0"])]
        right["q_1"] = world.given(q_0=overlaps)(BY_NAME["q_1"].right_hand_side, bound)
        assert right["q_1"] == right["q_1"].T
        change = {name: gradient(name, token, a, b) for name in ("V_hat", "q_hat_0", "q_hat_1", "theta_hat")}
        assert float(2 * change["V_hat"] - right["q_1"][a, b]) == pytest.approx(0, abs=1e-12)
        assert float(2 * change["q_hat_0"] / y - right["q_0"][a, b]) == pytest.approx(0, abs=1e-12)
        combined = -2 * (change["q_hat_1"] + y * change["V_hat"])
        assert float(combined - right["V"][a, b]) == pytest.approx(0, abs=1e-12)
        assert float(change["theta_hat"] + right["theta"][a, b]) == pytest.approx(0, abs=1e-12)
        assert float(gradient("m_hat", token, a, 0) + right["m"][a, 0]) == pytest.approx(0, abs=1e-12)


def test_ridge_integral_of_matrices(explicit, rational):
    """`TiltedQuadratic.doit` at r = 2 against the integral over ``z_1``, for noises that do not commute."""
    draw = rational(5)
    P, b, S_0, rest = draw.positive(2), draw.matrix(2, 1), draw.positive(2) / 8, draw.positive(2) / 8
    y = 0.7
    shapes = {"P": sym.r, "b": 1, "S_0": sym.r, "S_1": sym.r}
    node = TiltedQuadratic(*(TokenMatrix(name, sym.r, c, None) for name, c in shapes.items()), sym.y)
    logs = {LogDeterminant: lambda inner, evaluate, bound: log(evaluate(inner.args[0], bound).det())}
    values = {"P": P, "b": b, "S_0": S_0, "S_1": S_0 + rest}
    closed = explicit(1, {"r": 2, "y": Rational(7, 10)}, values, handlers=logs)(node.doit())
    x = np.arange(-9, 9.01, 0.3)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = 0.09 / (2 * math.pi) * np.exp(-(grid**2).sum(axis=-1) / 2)
    roots = [np.linalg.cholesky(np.array(S.tolist(), dtype=float)) for S in (S_0, rest)]
    inverse, source = (np.array(a.tolist(), dtype=float) for a in (P.inv(), b))
    common = source.ravel() + grid[weights > 1e-17] @ roots[0].T
    field = common[:, None, :] + (grid @ roots[1].T)[None]
    square = np.einsum("abi,ij,abj->ab", field, inverse, field)
    logarithms = np.log(np.exp(y / 2 * square) @ weights)
    assert float(closed) == pytest.approx(weights[weights > 1e-17] @ logarithms, rel=1e-9)


# --- the limit of one overlap -----------------------------------------------------------------

EQUAL = {sym.q_0: sym.q, sym.q_1: sym.q, sym.q_hat_0: sym.q_hat, sym.q_hat_1: sym.q_hat}


def test_equal_overlaps_give_the_couplings_of_replica_symmetry():
    """Symbolically: what holds no integral over a group."""
    symmetric = derive_free_entropy(LOG_COSH)
    for name in ("variance", "overlap", "mean", "teacher"):
        assert substituted(FREE_ENTROPY.terms[name], EQUAL) == symmetric.terms[name], name


def test_equal_overlaps_give_the_prior_of_replica_symmetry():
    """Symbolically: with ``S_1 = S_0`` the logarithms of determinants cancel."""
    (node,) = ZERO_TEMPERATURE.terms["prior"].atoms(TiltedQuadratic)
    precision, source, apart, near, y = (substituted(a, EQUAL) for a in node.args)
    assert apart == near
    assert difference(near, apart).is_ZeroMatrix
    symmetric = TiltedQuadratic(precision, source, apart, near, y).doit()
    expected = derive_free_entropy(LOG_COSH).terms["prior"]
    assert pulled(SpectralMean.of(-symmetric / y)) == pulled(expected)


SYMMETRIC = {"q": 0.83, "q_0": 0.83, "q_1": 0.83, "q_hat": 0.31, "q_hat_0": 0.31, "q_hat_1": 0.31}


@pytest.mark.parametrize("y", [0.3, 1.4, 6.0])
def test_equal_overlaps_give_the_free_entropy_of_replica_symmetry(y):
    toy = replace(TOY.given(y=y, **SYMMETRIC), step=0.6, points=141)
    symmetric = derive_free_entropy(LOG_COSH)
    for name, term in FREE_ENTROPY.terms.items():
        assert evaluate(term, toy) == pytest.approx(evaluate(symmetric.terms[name], toy), rel=1e-12), name


def test_equal_overlaps_give_the_saddle_point_of_replica_symmetry():
    toy = replace(TOY.given(**SYMMETRIC), points=141)
    partners = {"q_0": "q", "q_1": "q", "q_hat_0": "q_hat", "q_hat_1": "q_hat"}
    symmetric = {e.unknown.name: e.right_hand_side for e in derive_saddle_point(derive_free_entropy(LOG_COSH))}
    expected = {name: evaluate(value, toy) for name, value in symmetric.items()}
    for equation in SADDLE_POINT:
        name = equation.unknown.name
        if name == "V_hat":  # a mean over the group's Gaussian divided by its width: a limit
            continue
        own = toy.given(q_0=expected["q"]) if name == "q_1" else toy  # it is written as q_0 and the rest
        right = evaluate(equation.right_hand_side, own)
        assert right == pytest.approx(expected[partners.get(name, name)], rel=1e-10), name

    def of_width(gap):
        # Stein's lemma needs y q_hat_1 at its own value
        near = toy.given(q_1=SYMMETRIC["q"] + gap, q_0=SYMMETRIC["q"])
        near = near.given(q_hat_1=evaluate(BY_NAME["q_hat_1"].right_hand_side, near))
        return evaluate(BY_NAME["V_hat"].right_hand_side, near)

    assert richardson(of_width, 0.02, 4) == pytest.approx(expected["V_hat"], rel=1e-6)


@pytest.mark.parametrize("separable", [False, True])
def test_general_equations_have_no_derivative_of_the_proximal_point(separable):
    """Printed results hold means of the residual, which jumps, and none of its derivatives."""
    saddle_point = derive_one_rsb_saddle_point(derive_free_entropy(GENERIC, ONE_RSB, separable=separable))
    assert len(list(saddle_point)) == 10
    for equation in saddle_point:
        kinds = {type(node).__name__ for node in equation.right_hand_side.atoms(TokenMatrix)}
        assert kinds == {"TokenMatrix"}
        assert "Hessian" not in str(equation.right_hand_side)


def test_the_page_is_fresh():
    """``docs/one_rsb.md`` is what the derivation prints today."""
    assert (ROOT / "docs" / "one_rsb.md").read_text(encoding="utf-8") == one_rsb_page()


@pytest.mark.parametrize("separable", [False, True])
def test_known_formulas_of_the_page(separable):
    """Section 13 of the theory as it should read, spelt out once."""
    text = re.sub(r"\\,|&|\\\\|\{\}|\\quad|\s", "", one_rsb_document(separable=separable).latex())
    formulas = [
        r"-\frac{\alpha}{y}\mathbb{E}_{\omega_0,k}\log\mathbb{E}_{\omega_1}\exp\left[-y\mathcal{M}(\omega_0+\omega_1,k)\right]",
        r"\hat q_{0, \ell} = \alpha \mathbb{E}\left[\left\langle g_{\ell} \right\rangle"
        r" \left\langle g_{\ell}^{\top} \right\rangle\right]",
        r"\operatorname{sym}\left[y \hat q_{1, \ell} - \alpha \mathbb{E}\left[\left\langle g_{\ell}"
        r" \xi_{1, \ell}^{\top} \right\rangle\right] \left(q_{1, \ell} - q_{0, \ell}\right)^{-1/2}\right]",
    ]
    if not separable:
        formulas += [
            r"\gamma_{\ell} R \left(S_1 - S_0\right) A^{-1}",
            r"\gamma_{\ell} A^{-1} \left(b b^{\top} + S_0\right)",
        ]
    for formula in formulas:
        assert re.sub(r"\s", "", formula) in text
