"""The dynamics of SGD: what fresh samples do to a row, Ito's formula, and the printed functions, all exactly.

Not public: the expressions of the dynamics page, whose printed code has but the rates.
"""

from dataclasses import replace

import numpy as np
import pytest
from explicit import Explicit, RationalDraw, jacobian_values
from sympy import Rational, diag, expand, eye, sqrt, zeros
from toys import executed

import attnphase as ap
from attnphase.kernels.key import ModelKey
from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import FieldHessian
from derivations.algebra.tokens import SampleSum
from derivations.models.noise import is_quadratic
from derivations.replica.amp import concentrated
from derivations.replica.saddle_point import NOISE, SOURCE
from derivations.replica.sgd_flow import SCATTER, STIFFNESS, VELOCITY, derive_flow, names

FLOW, NAMES = derive_flow(), names()
ETA, BATCH, RIDGES, DIMENSION = Rational(7, 5), Rational(3), (Rational(11, 13), Rational(5, 7)), Rational(17)
SIZES = [(1, 1, 1), (2, 2, 1), (3, 2, 2)]


@pytest.fixture(params=SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))
def at(request):
    return world(*request.param)


def world(L, r, t):
    """Two samples of residuals, one direction, the conjugates that the samples have, and its b, S, A and u."""
    draw = RationalDraw(31)
    samples = draw.residuals(L, r, t, Rational(3, 7), Rational(4, 7))
    values = {"w": draw.matrix(r, 1), "pi": draw.matrix(t, 1), "C": draw.positive(r), "ridges": diag(*RIDGES[:r])}
    values |= {name: [abs(draw.number()) for _ in range(L)] for name in ("gamma", "tau")}
    values["xbar"] = [draw.number() for _ in range(L)]
    sizes = {"L": L, "r": r, "t": t, "alpha": Rational(1), "eta": ETA, "s": BATCH, "d": DIMENSION}
    total = {SampleSum: lambda node, evaluate, bound: evaluate.mean(node.body, evaluate.samples, bound)}
    evaluate = Explicit(L, sizes, values, samples=samples, handlers={FieldHessian: jacobian_values} | total)
    g = sym.g_field
    means = {"m_hat": FieldMean.of(g), "q_hat": FieldMean.of(g * g.T)}
    means |= {"V_hat": -1 * FieldMean.of(FieldHessian(g, sym.omega_field))}
    means |= {"theta_hat": FieldMean.of(FieldHessian(g, sym.k_field))}
    evaluate = evaluate.given(**{n: [evaluate(v, {sym.ell: l}) for l in range(L)] for n, v in means.items()})
    for name, value in NAMES.items():
        evaluate = evaluate.given(**{name.name: evaluate(value)})
    return evaluate


def test_rows_see_what_state_evolution_says_of_fresh_samples(at):
    """At one sample a direction, without Onsager's term, which stands for samples that are seen again."""
    row = concentrated()
    assert at(NAMES[SOURCE]) == at(row.source) != zeros(*at(row.source).shape)
    assert at(NAMES[NOISE]) == at(row.noise)
    assert at(NAMES[STIFFNESS]) == at.values["ridges"] + at(row.curvature)


def test_a_row_moves_by_the_mean_of_a_step(at):
    """d steps, in which `s` samples pull with ``(b - Lambda w)/d`` each on average, and the weights decay."""
    w, row = at.values["w"], concentrated()
    pull = (at(row.source) - at(row.curvature) * w) / DIMENSION
    # the sum over the samples of one step, at its mean
    stepped = replace(at, handlers={**at.handlers, SampleSum: lambda node, inner, bound: BATCH * pull})
    assert DIMENSION * (stepped(FLOW.step.value) - w) == at(FLOW.mean.value) == ETA * at(VELOCITY)


def test_overlaps_follow_itos_formula(at):
    """A step forwards and its noise, once with either sign, change ``w w^T`` by the rate and a term of second order."""
    w, u, S = (at.values[name] for name in ("w", "u", "S"))
    step = Rational(1, 23)
    mean = w + ETA * u * step
    square = mean * mean.T + ETA**2 / BATCH * S * step
    q, m, theta = (named.value for named in FLOW.rates)
    at = replace(at, atoms=((Rational(1), {}),))
    for l in range(at.length):
        gamma, tau = at.values["gamma"][l], at.values["tau"][l]
        assert gamma * (square - w * w.T) / step - gamma * ETA**2 * u * u.T * step == at(q, {sym.ell: l})
        assert tau * (mean - w) / step == at(m, {sym.ell: l})
        assert gamma * (mean - w) * at.values["pi"].T / step == at(theta, {sym.ell: l})


def test_the_scatter_of_rows_shrinks_by_the_stiffness(at):
    A, C, S = (at.values[name] for name in ("A", SCATTER.name, "S"))
    assert at(FLOW.scatter.value) == -ETA * (A * C + C * A) + ETA**2 / BATCH * S


def test_noise_adds_what_a_mean_over_its_points_has(at):
    """Of affine residuals and a quadratic loss: points that have the moments of the noise up to the second."""
    L, r, draw, delta = at.length, at.sizes["r"], RationalDraw(5), Rational(9, 4)
    g, slopes = draw.per_token(L, r, 1), [draw.per_token(L, r, L) for _ in range(L)]
    curvature = draw.per_token(L, L, L, symmetric=True)
    slope = {FieldHessian: lambda node, inner, bound: slopes[bound[sym.ell]][bound[sym.kappa]]}
    sizes, samples = {**at.sizes, "Delta": delta}, ((Rational(1), {}),)
    at = replace(at.given(g=g, K=curvature), samples=samples, sizes=sizes, handlers={**at.handlers, **slope})
    # the points of one row after another: either sign of every entry, so far out that its variance is Delta
    far = sqrt(L * delta)
    points = [(kappa, sign * far * eye(L)[:, b]) for kappa in range(L) for b in range(L) for sign in (1, -1)]
    for ell in range(L):
        moved = [g[ell] + slopes[ell][kappa] * z for kappa, z in points]
        square = sum((v * v.T for v in moved), zeros(r, r)) / (2 * L) - L * g[ell] * g[ell].T
        assert (square - at(FLOW.square_gain, {sym.ell: ell})).expand() == zeros(r, r)
    loss = sum((z.T * curvature[kappa] * z)[0] / 2 for kappa, z in points) / (2 * L)
    assert expand(loss - at(FLOW.loss_gain)) == 0 != loss


def own(text):
    return {"tokens.length": 1, "positions.kind": "none", "loss.kind": "expression", "loss.expression": text}


NOISY = {
    "attention": ({}, True),
    "untied, causal attention": ({"tokens.length": 3, "student.tied": False, "student.causal": True}, True),
    "values": ({"loss.kind": "values", "loss.width": 2}, True),
    "square": ({"tokens.length": 1, "loss.kind": "square"}, True),
    "linear": (own("(h - k)**2 + 3*noise*h"), True),
    "its square scales the loss": (own("(h - k)**2*(1 + noise**2)"), False),
    "a root": (own("sqrt(1 + (h - k - noise)**2)"), False),
    "a fourth power": (own("(h - k)**2 + noise**4"), False),
}


@pytest.mark.parametrize("name", NOISY)
def test_which_losses_are_quadratic_in_the_noise(name):
    """Then noise adds means in closed form; kinds of losses say so by a flag, which the expression must bear out."""
    fields, quadratic = NOISY[name]
    problem = ap.Problem().with_fields(fields | {"teacher.noise": 0.1})
    assert is_quadratic(ModelKey.of(problem).model()) is quadratic
    assert quadratic or not problem.loss.form.noise_is_quadratic


def test_printed_functions_are_the_equations():
    """On one atom, where the mean over the spectrum is the value itself."""
    at, printed = world(3, 2, 2), executed(ap.derive(limit="sgd_flow").python)

    def array(name, *shape):
        return np.array(at.values[name], dtype=float).reshape(shape)

    hats = {name: array(name, 3, 2, columns) for name, columns in (("q_hat", 2), ("V_hat", 2), ("theta_hat", 2))}
    hats["m_hat"] = array("m_hat", 3, 2, 1)
    atoms = {"gamma": array("gamma", 3, 1, 1, 1), "tau": array("tau", 3, 1, 1, 1), "pi": array("pi", 1, 2, 1)}
    w, C, ridges = array("w", 1, 2, 1), array("C", 1, 2, 2), np.array(RIDGES, dtype=float)
    numbers = {"eta": float(ETA), "ridge": ridges}
    moved = printed.mean_rate(**numbers, **atoms, w=w, **{name: hats[name] for name in hats if name != "q_hat"})
    np.testing.assert_allclose(moved[0], np.array(at(FLOW.mean.value), dtype=float), rtol=1e-12)
    of_scatter = {"C": C, "gamma": atoms["gamma"], "q_hat": hats["q_hat"], "V_hat": hats["V_hat"]}
    spread = printed.scatter_rate(**numbers, s=float(BATCH), **of_scatter)
    np.testing.assert_allclose(spread[0], np.array(at(FLOW.scatter.value), dtype=float), rtol=1e-12)
    q, m, theta, norm, penalty = printed.overlaps(ridges, lambda values: values[0], **atoms, w=w, C=C)
    square = w[0] @ w[0].T + C[0]
    for l in range(3):
        gamma = atoms["gamma"][l, 0]
        np.testing.assert_allclose(q[l], gamma * square)
        np.testing.assert_allclose(m[l], atoms["tau"][l, 0] * w[0])
        np.testing.assert_allclose(theta[l], gamma * w[0] @ atoms["pi"][0].T)
    assert [norm, penalty] == pytest.approx([np.trace(square), ridges @ np.diag(square) / 2])
