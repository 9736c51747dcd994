"""One-step replica-symmetry breaking: its free entropy and saddle point, on a toy and on matrices.

What is evaluated are the nodes that the chain and the differentiation produced; the replica matrices, with groups of x
replicas, are written out by hand.

Not public: the steps' nodes, and the generated equations, which `attnphase one-rsb` solves and no page prints.
"""
# SymPy's annotations do not know its own matrices
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import math
from dataclasses import replace

import numpy as np
import pytest
from toys import ATOMS, LOG_COSH, TANH_SQUARE, richardson

from attnphase.theories.one_rsb.equations import one_rsb_equations
from derivations.algebra import symbols as sym
from derivations.replica.ansatz import ONE_RSB, REPLICA_SYMMETRIC
from derivations.replica.chain import derive_free_entropy
from derivations.replica.moments import SampleLoss
from derivations.replica.one_rsb import derive_one_rsb_saddle_point
from derivations.replica.quadrature import Toy, evaluate
from derivations.replica.saddle_point import derive_saddle_point

FREE_ENTROPY = derive_free_entropy(LOG_COSH, ONE_RSB)
MOMENTS, GROUPED, NO_REPLICAS, ZERO_TEMPERATURE, RIDGE = FREE_ENTROPY.steps
SADDLE_POINT = {e.unknown.name: e for e in derive_one_rsb_saddle_point(FREE_ENTROPY)}
SYMMETRIC = derive_free_entropy(LOG_COSH)
VALUES = {
    **{"q_0": 0.53, "q_1": 0.83, "v": 0.47, "m": -0.36, "theta": 0.52, "rho": 1.17, "alpha": 0.71, "ridges": 0.43},
    **{"q_hat_0": 0.19, "q_hat_1": 0.31, "v_hat": 0.61, "m_hat": 0.38, "theta_hat": -0.57, "beta": 1.6, "y": 1.4},
}
Y = VALUES["y"]
TOY = Toy(VALUES | {"V": VALUES["v"], "V_hat": VALUES["v_hat"]}, ATOMS, loss=SampleLoss(LOG_COSH), step=0.6, reach=7.2)
# derivative of F in a variable: a factor times the value of its partner minus the equation's right-hand side
OVERLAPS = {"V": ("q_hat_1", 0.5), "q_0": ("q_hat_0", -Y / 2), "q_1": ("V_hat", -0.5)}
OVERLAPS |= {"m": ("m_hat", 1.0), "theta": ("theta_hat", 1.0)}


def with_groups(toy, n, x):
    """The toy with n replicas in groups of x, written out."""
    v, group = toy.values, np.arange(n) // x
    together = group[:, None] == group[None, :]
    overlap = np.where(together, v["q_1"], v["q_0"]) + v["v"] * np.eye(n)
    conjugate = np.where(together, v["q_hat_1"], v["q_hat_0"])
    np.fill_diagonal(conjugate, v["v_hat"] - v["q_hat_1"])
    singles = {name: np.full(n, v[name]) for name in ("m", "theta", "m_hat", "theta_hat")}
    return replace(toy.given(n=n, x=x), replicas={"q": overlap, "q_hat": conjugate, **singles})


@pytest.mark.parametrize("ansatz", [REPLICA_SYMMETRIC, ONE_RSB], ids=lambda ansatz: ansatz.name)
def test_the_classes_of_replicas_hold_every_pair_once(ansatz):
    assert sum(c.count for c in ansatz.classes).expand() == sym.n**2
    assert math.prod(ansatz.powers) == sym.n


@pytest.mark.parametrize(("n", "x"), [(4, 2), (6, 3), (6, 2), (3, 1)])
def test_couplings_count_pairs_in_groups(n, x):
    toy = with_groups(TOY, n, x)
    for name in ("overlap", "mean", "teacher"):
        assert evaluate(MOMENTS.terms[name], toy) == pytest.approx(evaluate(GROUPED.terms[name], toy), rel=1e-13)


@pytest.mark.parametrize(("model", "n", "x"), [(LOG_COSH, 2, 1), (TANH_SQUARE, 2, 2), (LOG_COSH, 4, 2)])
def test_replicas_in_groups_factorise(model, n, x):
    """n replicas at once against the means in each other; four in two groups have all three kinds of pairs."""
    first, second, *_ = derive_free_entropy(model, ONE_RSB).steps
    for name, rule in {"energy": {"step": 0.55, "reach": 6.6}, "prior": {"step": 0.7, "reach": 11.2}}.items():
        if n == 2:
            rule = {"step": 0.4, "reach": 18.0 if name == "prior" else 7.7}
        toy = replace(with_groups(TOY, n, x), **rule)
        # the row's weight moves what four replicas share by nine of its standard deviations, and widens it
        expected = evaluate(second.terms[name], replace(toy, step=0.35, reach=28.0) if name == "prior" else toy)
        accuracy = 1e-8 if n == 2 else 1e-6
        assert evaluate(first.terms[name], toy) == pytest.approx(expected, rel=accuracy), name


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
    limit, differences = evaluate(FREE_ENTROPY.total, toy), []
    for beta in (50.0, 200.0, 800.0):
        scaled = {name: VALUES[name] * beta**power for name, power in powers.items()}
        hot = toy.given(beta=beta, x=Y / beta, **scaled)
        differences.append(abs(-evaluate(NO_REPLICAS.total, hot) / beta - limit))
    assert differences[2] < differences[1] < differences[0]
    assert differences[2] * 800 < 3 * differences[0] * 50


def test_the_integral_of_a_ridge_is_the_gaussian_one():
    """The last step against the integral over the sources that the step before holds."""
    toy = replace(TOY, step=0.3, reach=12.0)
    expected = evaluate(ZERO_TEMPERATURE.terms["prior"], toy)
    assert evaluate(RIDGE.terms["prior"], toy) == pytest.approx(expected, rel=1e-10)


def slope(name, toy, step=2e-3):
    """Derivative of F by a difference of sixth order of the evaluated nodes."""

    def shifted(j):
        return evaluate(FREE_ENTROPY.total, toy.given(**{name: toy.values[name] + j * step}))

    return sum(c * (shifted(j) - shifted(-j)) for j, c in {1: 3 / 4, 2: -3 / 20, 3: 1 / 60}.items()) / step


@pytest.mark.parametrize("variable", OVERLAPS)
def test_free_entropy_is_stationary_in_the_overlaps(variable):
    toy, (partner, factor) = replace(TOY, points=141), OVERLAPS[variable]
    right = evaluate(SADDLE_POINT[partner].right_hand_side, toy)
    assert SADDLE_POINT[partner].stationary_in.name == variable
    assert slope(variable, toy) == pytest.approx(factor * (toy.values[partner] - right), rel=1e-7)


def test_free_entropy_is_stationary_in_the_conjugates():
    right = {name: evaluate(SADDLE_POINT[name].right_hand_side, TOY) for name in ("q_0", "V", "m", "theta")}
    right["q_1"] = evaluate(SADDLE_POINT["q_1"].right_hand_side, TOY.given(q_0=right["q_0"]))
    off = {name: TOY.values[name] - value for name, value in right.items()}
    toy = replace(TOY, step=0.8, points=101)  # the energy does not depend on the conjugates
    assert slope("q_hat_0", toy) == pytest.approx(-Y / 2 * off["q_0"], rel=1e-7)
    assert slope("V_hat", toy) == pytest.approx(-off["q_1"] / 2, rel=1e-7)
    assert slope("q_hat_1", toy) + Y * slope("V_hat", toy) == pytest.approx(off["V"] / 2, rel=1e-7)
    assert slope("m_hat", toy) == pytest.approx(off["m"], rel=1e-7)
    assert slope("theta_hat", toy) == pytest.approx(off["theta"], rel=1e-7)


ONE = {"q": 0.83, "q_0": 0.83, "q_1": 0.83, "q_hat": 0.31, "q_hat_0": 0.31, "q_hat_1": 0.31}


@pytest.mark.parametrize("y", [0.3, 1.4, 6.0])
def test_equal_overlaps_give_the_free_entropy_of_replica_symmetry(y):
    toy = replace(TOY.given(y=y, **ONE), step=0.6, points=141)
    for name, term in FREE_ENTROPY.terms.items():
        assert evaluate(term, toy) == pytest.approx(evaluate(SYMMETRIC.terms[name], toy), rel=1e-12), name


def test_equal_overlaps_give_the_saddle_point_of_replica_symmetry():
    toy = replace(TOY.given(**ONE), points=141)
    partners = {"q_0": "q", "q_1": "q", "q_hat_0": "q_hat", "q_hat_1": "q_hat"}
    expected = {e.unknown.name: evaluate(e.right_hand_side, toy) for e in derive_saddle_point(SYMMETRIC)}
    for name, equation in SADDLE_POINT.items():
        if name == "V_hat":  # a mean over the group's Gaussian divided by its width: a limit
            continue
        own = toy.given(q_0=expected["q"]) if name == "q_1" else toy  # it is written as q_0 and the rest
        right = evaluate(equation.right_hand_side, own)
        assert right == pytest.approx(expected[partners.get(name, name)], rel=1e-10), name

    def of_width(gap):
        # Stein's lemma needs y q_hat_1 at its own value
        near = toy.given(q_1=ONE["q"] + gap, q_0=ONE["q"])
        near = near.given(q_hat_1=evaluate(SADDLE_POINT["q_hat_1"].right_hand_side, near))
        return evaluate(SADDLE_POINT["V_hat"].right_hand_side, near)

    assert richardson(of_width, 0.02, 4) == pytest.approx(expected["V_hat"], rel=1e-6)


EQUATIONS = one_rsb_equations()
HATS = ("q_hat_0", "q_hat_1", "V_hat", "m_hat", "theta_hat")


def test_generated_overlaps_are_theory_section_13_for_matrices_that_do_not_commute():
    rng, (L, A, r, t), y = np.random.default_rng(3), (2, 3, 2, 1), 0.37
    q_hat_0, rest, V_hat = (x @ x.mT + 0.3 * np.eye(r) for x in rng.normal(size=(3, L, r, r)))
    q_hat_0, q_hat_1, ridge = q_hat_0 / 30, (q_hat_0 + rest) / 30, np.array([0.6, 0.9])
    m_hat, theta_hat = rng.normal(size=(L, r, 1)), rng.normal(size=(L, r, t))
    gamma, tau, pi = rng.uniform(0.5, 1.5, (L, A, 1, 1)), rng.normal(size=(L, A, 1, 1)), rng.normal(size=(A, t, 1))
    expected = [np.zeros((L, r, columns)) for columns in (r, r, r, 1, t)]
    for a, weight in enumerate((0.2, 0.5, 0.3)):
        of = gamma[:, a]
        precision, S_0, S_1 = np.diag(ridge) + (of * V_hat).sum(0), (of * q_hat_0).sum(0), (of * q_hat_1).sum(0)
        R, inverse = np.linalg.inv(precision), np.linalg.inv(precision - y * (S_1 - S_0))
        b = (tau[:, a] * m_hat + of * (theta_hat @ pi[a])).sum(0)
        q_0 = inverse @ (b @ b.T + S_0) @ inverse
        values = q_0, q_0 + R @ (S_1 - S_0) @ inverse, R, inverse @ b, inverse @ b @ pi[a].T
        for total, factor, value in zip(expected, (of, of, of, tau[:, a], of), values, strict=True):
            total += weight * factor * value
    world = {"ridge": ridge, "gamma": gamma, "tau": tau, "pi": pi}
    world["spectral_mean"] = lambda x: np.tensordot([0.2, 0.5, 0.3], x, 1)
    found = EQUATIONS.overlaps_from_conjugates(
        y=y, **world, q_hat_0=q_hat_0, q_hat_1=q_hat_1, V_hat=V_hat, m_hat=m_hat, theta_hat=theta_hat
    )
    for value, one in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, one, rtol=1e-12, atol=1e-13)
    # and F, which knows of no inverse but its determinants, is stationary there
    hats = {"q_hat_0": q_hat_0, "q_hat_1": q_hat_1, "V_hat": V_hat}
    move = rng.normal(size=(L, r, r))
    for name, gradient in (("q_hat_0", y * found[0]), ("V_hat", found[1]), ("q_hat_1", -found[2] - y * found[1])):
        ends = [hats | {name: hats[name] + side * 1e-6 * (move + move.mT)} for side in (1, -1)]
        given = {"alpha": 1.0, "y": y, "tilted_envelope": lambda y: 0.0, "m_hat": m_hat, "theta_hat": theta_hat}
        given |= {"q_0": V_hat, "q_1": V_hat, "V": V_hat, "m": m_hat, "theta": theta_hat}
        up, down = (EQUATIONS.free_entropy_terms(**world, **given, **end)["prior"] for end in ends)
        assert (up - down) / 2e-6 == pytest.approx(np.vdot(gradient, move), rel=1e-6), name


def test_generated_conjugates_are_theory_section_13():
    """On samples of any fields, with any weights of the points of a group."""
    rng, alpha, y, r, t = np.random.default_rng(4), 0.7, 0.37, 2, 1
    names, columns = ("q_0", "gap", "V", "m", "theta", "g", "xi_0", "xi_1", "k"), (r, r, r, 1, t, 1, 1, 1, t)
    shapes = [(1, r, n) for n in columns[:5]] + [(5, 6, r, 1), (5, r, 1), (5, 6, r, 1), (5, t, 1)]
    f = dict(zip(names, (rng.normal(size=shape) for shape in shapes), strict=True))
    f["gap"] = f["gap"] @ f["gap"].mT + 0.3 * np.eye(r)
    rho = np.full((1, t, t), 1.3)
    f["q_0"] = f["q_0"] @ f["q_0"].mT + f["theta"] @ f["theta"].mT / 1.3 + 0.2 * np.eye(r)
    weights = rng.dirichlet(np.ones(6), 5)

    def tilted(values):
        return np.einsum("sp,...spij->...sij", weights, values)

    def root(matrix):
        values, vectors = np.linalg.eigh(matrix)
        return vectors @ np.diag(values**-0.5) @ vectors.T

    found = EQUATIONS.conjugates_from_overlaps(
        alpha=alpha, y=y, rho=rho, tilted=tilted, site_mean=lambda values: values.mean(axis=-3),
        q_1=f["q_0"] + f["gap"], **{name: f[name] for name in ("q_0", "V", "m", "theta")},
        **{name: f[name][None] for name in ("g", "xi_0", "xi_1", "k")},
    )  # fmt: skip
    mean, back = tilted(f["g"]), f["theta"][0] / 1.3
    q_hat_1, q_hat_0 = (alpha * x.mean(axis=0) for x in (tilted(f["g"] @ f["g"].mT), mean @ mean.mT))
    V_hat = y * q_hat_1 - alpha * tilted(f["g"] @ f["xi_1"].mT).mean(axis=0) @ root(f["gap"][0])
    along = (mean @ f["xi_0"].mT).mean(axis=0) @ root(f["q_0"][0] - back @ f["theta"][0].T)
    theta_hat = alpha * ((mean @ f["k"].mT).mean(axis=0) / 1.3 - along @ back)
    expected = q_hat_0, q_hat_1, (V_hat + V_hat.T) / 2, alpha * mean.mean(axis=0), theta_hat
    for value, one in zip(found, expected, strict=True):
        np.testing.assert_allclose(value[0], one, rtol=1e-12, atol=1e-13)


def test_generated_free_entropy_is_that_of_the_nodes():
    values = {name: np.full((1, 1, 1), value) for name, value in TOY.values.items()}
    gamma, tau, pi = (np.array([a[name] for _, a in ATOMS])[:, None, None] for name in ("gamma", "tau", "pi"))
    terms = EQUATIONS.free_entropy_terms(
        alpha=VALUES["alpha"], y=Y, ridge=VALUES["ridges"], gamma=gamma[None], tau=tau[None], pi=pi,
        spectral_mean=lambda x: np.tensordot([w for w, _ in ATOMS], x, 1), tilted_envelope=lambda y: 0.3,
        **{name: values[name] for name in (*HATS, "q_0", "q_1", "V", "m", "theta")},
    )  # fmt: skip
    assert np.squeeze(terms.pop("energy")) == pytest.approx(-VALUES["alpha"] / Y * 0.3)
    for name, term in terms.items():
        assert np.squeeze(term) == pytest.approx(evaluate(FREE_ENTROPY.terms[name], TOY), rel=1e-9), name
