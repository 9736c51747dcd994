"""The dynamics of SGD: what fresh samples do to a row, Ito's formula, and the generated functions, all exactly."""

import numpy as np
import pytest
from sympy import Rational, diag, expand, eye, sqrt, zeros

from attnphase.kernels.key import ModelKey
from attnphase.problem.losses import LOSSES
from attnphase.problem.problem import Problem
from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import FieldHessian
from derivations.algebra.tokens import SampleSum
from derivations.codegen.sgd_flow import flow_source
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.noise import is_quadratic
from derivations.models.scalar import formula_loss
from derivations.models.scores import linear, softmax
from derivations.printing.document import Formula
from derivations.printing.sgd_flow import flow_document
from derivations.replica.amp import concentrated
from derivations.replica.saddle_point import NOISE, SOURCE
from derivations.replica.sgd_flow import SCATTER, STIFFNESS, VELOCITY, derive_flow, names

FLOW, NAMES = derive_flow(), names()
SIZES = [(1, 1, 1), (2, 2, 1), (3, 2, 2)]
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))
ETA, BATCH, RIDGES, DIMENSION = Rational(7, 5), Rational(3), (Rational(11, 13), Rational(5, 7)), Rational(17)


@pytest.fixture
def world(explicit, rational):
    """Makes an evaluator with two samples of residuals, one direction, and the conjugates that the samples have."""

    def make(L, r, t):
        draw = rational(31)
        samples = tuple(
            (
                Rational(weight, 7),
                {
                    "g": draw.per_token(L, r, 1),
                    "by_omega": draw.per_token(L, r, r, symmetric=True),
                    "by_k": draw.per_token(L, r, t),
                },
            )
            for weight in (3, 4)
        )
        values = {"w": draw.matrix(r, 1), "pi": draw.matrix(t, 1), "C": draw.positive(r)}
        values |= {name: [abs(draw.number()) for _ in range(L)] for name in ("gamma", "tau")}
        values["ridges"] = ridges_of(r)
        values["xbar"] = [draw.number() for _ in range(L)]
        sizes = {"L": L, "r": r, "t": t, "alpha": Rational(1), "eta": ETA, "s": BATCH, "d": DIMENSION}
        handlers = {
            FieldHessian: lambda node, evaluate, bound: evaluate.values[f"by_{node.args[1].name}"][
                bound[sym.ell] if sym.ell in bound else bound[sym.kappa]
            ],
            SampleSum: lambda node, evaluate, bound: evaluate.mean(node.body, evaluate.samples, bound),
        }
        evaluate = explicit(L, sizes, values, samples=samples, handlers=handlers)
        g = sym.g_field
        means = {
            "m_hat": FieldMean.of(g),
            "q_hat": FieldMean.of(g * g.T),
            "V_hat": -1 * FieldMean.of(FieldHessian(g, sym.omega_field)),
            "theta_hat": FieldMean.of(FieldHessian(g, sym.k_field)),
        }
        hats = {name: [evaluate(value, {sym.ell: l}) for l in range(L)] for name, value in means.items()}
        return evaluate.given(**hats)

    return make


def ridges_of(r):
    return diag(*RIDGES[:r])


def of_direction(evaluate):
    """The evaluator with b, S, A and u of its direction."""
    for name, value in NAMES.items():
        evaluate = evaluate.given(**{name.name: evaluate(value)})
    return evaluate


@every_size
def test_rows_see_what_state_evolution_says_of_fresh_samples(world, size):
    """At one sample a direction, without Onsager's term, which stands for samples that are seen again."""
    evaluate = world(*size)
    row = concentrated()
    assert evaluate(NAMES[SOURCE]) == evaluate(row.source) != zeros(size[1], 1)
    assert evaluate(NAMES[NOISE]) == evaluate(row.noise)
    assert evaluate(NAMES[STIFFNESS]) == ridges_of(size[1]) + evaluate(row.curvature)


@every_size
def test_a_row_moves_by_the_mean_of_a_step(world, size):
    """d steps, in which `s` samples pull with ``(b - Lambda w)/d`` each on average, and the weights decay."""
    evaluate = of_direction(world(*size))
    w, row = evaluate.values["w"], concentrated()
    pull = (evaluate(row.source) - evaluate(row.curvature) * w) / DIMENSION
    # the sum over the samples of one step, at its mean
    stepped = evaluate.given()
    stepped.handlers[SampleSum] = lambda node, inner, bound: BATCH * pull
    change = stepped(FLOW.step.value) - w
    assert DIMENSION * change == evaluate(FLOW.mean.value)
    assert evaluate(FLOW.mean.value) == ETA * evaluate(VELOCITY)


@every_size
def test_overlaps_follow_itos_formula(world, size):
    """A step forwards and its noise, once with either sign, change ``w w^T`` by the rate and a term of second order."""
    evaluate = of_direction(world(*size))
    w, u, S = (evaluate.values[name] for name in ("w", "u", "S"))
    step = Rational(1, 23)
    mean = w + ETA * u * step
    square = mean * mean.T + ETA**2 / BATCH * S * step
    q, m, theta = (named.value for named in FLOW.rates)
    evaluate = evaluate.__class__(**{**vars(evaluate), "atoms": ((Rational(1), {}),)})
    for l in range(size[0]):
        gamma, tau = evaluate.values["gamma"][l], evaluate.values["tau"][l]
        second_order = gamma * ETA**2 * u * u.T * step
        assert gamma * (square - w * w.T) / step - second_order == evaluate(q, {sym.ell: l})
        assert tau * (mean - w) / step == evaluate(m, {sym.ell: l})
        assert gamma * (mean - w) * evaluate.values["pi"].T / step == evaluate(theta, {sym.ell: l})


@every_size
def test_the_scatter_of_rows_shrinks_by_the_stiffness(world, size):
    evaluate = of_direction(world(*size))
    A, C, S = (evaluate.values[name] for name in ("A", SCATTER.name, "S"))
    assert evaluate(FLOW.scatter.value) == -ETA * (A * C + C * A) + ETA**2 / BATCH * S


@every_size
def test_noise_adds_what_a_mean_over_its_points_has(world, rational, size):
    """Of affine residuals and a quadratic loss: points that have the moments of the noise up to the second."""
    L, r, _ = size
    evaluate, draw, delta = world(*size), rational(5), Rational(9, 4)
    g = draw.per_token(L, r, 1)
    slopes = [draw.per_token(L, r, L) for _ in range(L)]  # of every token, in the rows of noise
    curvature = draw.per_token(L, L, L, symmetric=True)
    evaluate = evaluate.given(g=g, K=curvature)
    evaluate.handlers[FieldHessian] = lambda node, inner, bound: slopes[bound[sym.ell]][bound[sym.kappa]]
    evaluate = evaluate.__class__(
        **{**vars(evaluate), "samples": ((Rational(1), {}),), "sizes": {**evaluate.sizes, "Delta": delta}}
    )
    # the points of one row after another: either sign of every entry, so far out that its variance is Delta
    far = sqrt(L * delta)
    points = [(kappa, sign * far * eye(L)[:, b]) for kappa in range(L) for b in range(L) for sign in (1, -1)]
    for ell in range(L):
        moved = [slopes[ell][kappa] * z for kappa, z in points]
        square = sum(((g[ell] + v) * (g[ell] + v).T for v in moved), zeros(r, r)) / (2 * L) - L * g[ell] * g[ell].T
        assert (square - evaluate(FLOW.square_gain, {sym.ell: ell})).expand() == zeros(r, r)
    loss = sum((z.T * curvature[kappa] * z)[0] / 2 for kappa, z in points) / (2 * L)
    assert expand(loss - evaluate(FLOW.loss_gain)) == 0 != loss


NOISY = {
    "tied": AttentionModel(2, noisy=True),
    "untied, causal": AttentionModel(3, Student(softmax, 2, tied=False, causal=True), Teacher(linear, 2), noisy=True),
    "values": AttentionModel(2, values=2, noisy=True),
    "square": formula_loss("(h - k - noise)**2/2", 1, 1, 1, noisy=True),
    "linear": formula_loss("(h - k)**2 + 3*noise*h", 1, 1, 1, noisy=True),
    "not: its square scales the loss": formula_loss("(h - k)**2*(1 + noise**2)", 1, 1, 1, noisy=True),
    "not: a root": formula_loss("sqrt(1 + (h - k - noise)**2)", 1, 1, 1, noisy=True),
    "not: a fourth power": formula_loss("(h - k)**2 + noise**4", 1, 1, 1, noisy=True),
}


@pytest.mark.parametrize("name", NOISY)
def test_which_losses_are_quadratic_in_the_noise(name):
    assert is_quadratic(NOISY[name]) is not name.startswith("not")


def test_kinds_that_say_so_are_quadratic_in_the_noise():
    problem = Problem.paper(omega=0.3).with_fields({"teacher.noise": 0.1})
    for kind, form in LOSSES.items():
        if not form.noise_is_quadratic:
            continue
        fields = {"loss": {"kind": kind, "width": 2}} if "width" in form.keys else {}
        model = form.model(ModelKey.of(Problem.from_dict(problem.to_dict() | fields)))
        assert model.noise_columns == 2
        assert is_quadratic(model), kind


def test_generated_functions_are_the_equations(world):
    """On one atom, where the mean over the spectrum is the value itself."""
    evaluate = of_direction(world(3, 2, 2))
    namespace: dict = {}
    exec(flow_source(), namespace)

    def array(name, *shape):
        return np.array(evaluate.values[name], dtype=float).reshape(shape)

    hats = {name: array(name, 3, 2, columns) for name, columns in (("q_hat", 2), ("V_hat", 2), ("theta_hat", 2))}
    hats["m_hat"] = array("m_hat", 3, 2, 1)
    atoms = {"gamma": array("gamma", 3, 1, 1, 1), "tau": array("tau", 3, 1, 1, 1), "pi": array("pi", 1, 2, 1)}
    w, C = array("w", 1, 2, 1), array("C", 1, 2, 2)
    numbers = {"eta": float(ETA), "ridge": np.array(RIDGES, dtype=float)}
    shared = {name: hats[name] for name in ("V_hat", "m_hat", "theta_hat")}
    moved = namespace["mean_rate"](**numbers, **atoms, w=w, **shared)
    assert np.allclose(moved[0], np.array(evaluate(FLOW.mean.value), dtype=float), rtol=1e-12)
    spread = namespace["scatter_rate"](
        **numbers, s=float(BATCH), gamma=atoms["gamma"], C=C, q_hat=hats["q_hat"], V_hat=hats["V_hat"]
    )
    assert np.allclose(spread[0], np.array(evaluate(FLOW.scatter.value), dtype=float), rtol=1e-12)
    ridges = numbers["ridge"]
    q, m, theta, norm, penalty = namespace["overlaps"](ridges, lambda values: values[0], **atoms, w=w, C=C)
    for l in range(3):
        gamma, square = atoms["gamma"][l, 0], w[0] @ w[0].T + C[0]
        assert np.allclose(q[l], gamma * square)
        assert np.allclose(m[l], atoms["tau"][l, 0] * w[0])
        assert np.allclose(theta[l], gamma * w[0] @ atoms["pi"][0].T)
    assert norm == pytest.approx(np.trace(w[0] @ w[0].T + C[0]))
    assert penalty == pytest.approx(ridges @ np.diag(w[0] @ w[0].T + C[0]) / 2)


def test_the_page_has_every_equation():
    page = flow_document()
    text = page.markdown()
    for part in ("One step", "Rows", "Overlaps", "Fresh samples", "Labels with noise"):
        assert f"## {part}" in text
    tags = [block.tag for block in page.blocks if isinstance(block, Formula)]
    assert tags == ["S1", "R1", "R2", "R3", "R4", "R5", "Q1", "Q2", "Q3", "Q4", "Q5", "Q6", "F1", "F2", "F3", "F4",
                    "F5", "F6", "N1", "N2"]  # fmt: skip
    assert page.latex().startswith(r"\documentclass")
