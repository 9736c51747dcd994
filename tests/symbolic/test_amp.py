"""GAMP: responses of the proximal problem, fixed points of the iteration, and its state evolution, all exactly."""

from types import SimpleNamespace

import pytest
from sympy import Rational, diag, eye, zeros

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient, jacobian, solve_linear
from derivations.algebra.minima import FieldHessian, LossSlope
from derivations.algebra.tokens import SampleSum, TokenMatrix
from derivations.models.symbolic import GENERIC
from derivations.replica import amp
from derivations.replica.amp import concentrated, derive_iteration, overlaps, response
from derivations.replica.chain import derive_free_entropy
from derivations.replica.saddle_point import derive_saddle_point

FREE_ENTROPY = derive_free_entropy(GENERIC)
SADDLE_POINT = derive_saddle_point(FREE_ENTROPY)
ITERATION = {named.unknown.name: named.value for named in derive_iteration()}
SIZES = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)]
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))


# --- the proximal problem ---------------------------------------------------------------------


@every_size
def test_response_of_the_proximal_point(explicit, rational, size):
    """For ``loss = h^T H h/2 - s^T h`` the residual is linear in the field: differences are derivatives."""
    L, r, _ = size
    draw = rational(5)
    V, H, s = draw.positive(L * r), draw.matrix(L * r, L * r, symmetric=True), draw.matrix(L * r, 1)
    evaluate = explicit(L, {"L": L, "r": r}, {"V_stacked": V, "H": H})

    def residual(omega):
        prox = (V.inv() + H).inv() * (V.inv() * omega + s)
        return V.inv() * (prox - omega)

    field, kick = draw.matrix(L * r, 1), draw.matrix(L * r, 1)
    found = evaluate(response())
    assert found * kick == residual(field + kick) - residual(field)
    assert found == -H * (eye(L * r) + V * H).inv()  # as the experiments compute it


def test_jacobian_that_cannot_be_read_off_raises():
    h, H = (TokenMatrix(name, sym.r, columns, None) for name, columns in (("h", 1), ("H", sym.r)))
    with pytest.raises(TypeError, match="cannot read a Jacobian off"):
        jacobian(h * h.T * h, h)
    with pytest.raises(TypeError, match="LossSlope in the loss's Hessian"):
        jacobian(LossSlope(h, H), H)


# --- fixed points -----------------------------------------------------------------------------


@every_size
def test_fixed_points_are_critical_points_of_the_risk(explicit, rational, size):
    """``(Lambda + A) w = B`` is ``Lambda w = sum xbar g``; ``omega + V g`` is the proximal point."""
    L, r, _ = size
    draw = rational(11)
    values = {"w": draw.matrix(r, 1), "A": draw.positive(r), "V": [draw.positive(r) for _ in range(L)]}
    values |= {name: draw.per_token(L, r, 1) for name in ("omega", "prox", "g_before")}
    values |= {"xbar": [draw.number() for _ in range(L)]}
    force = draw.matrix(r, 1)
    values["ridges"] = ridges = diag(*(abs(draw.number()) for _ in range(r)))
    handlers = {SampleSum: lambda node, evaluate, bound: force}  # whatever the sum over samples gives
    evaluate = explicit(L, {"L": L, "r": r}, values, handlers=handlers)
    B = evaluate(ITERATION["B"])
    w = evaluate.given(B=B)(ITERATION["w"])
    # the step is zero where the force of the samples and the ridge cancel, and only there
    assert (ridges + values["A"]) * (w - values["w"]) == force - ridges * values["w"]
    for l in range(L):
        g = evaluate(ITERATION["g"], {sym.ell: l})
        assert values["omega"][l] + values["V"][l] * g == values["prox"][l]


# --- state evolution --------------------------------------------------------------------------


@pytest.fixture
def world(explicit, rational):
    """Makes an evaluator with samples of residuals and their Jacobians, and spectral atoms."""

    def make(L, r, t):
        draw = rational(29)

        def sample():
            return {
                "g": draw.per_token(L, r, 1),
                "by_omega": draw.per_token(L, r, r, symmetric=True),
                "by_k": draw.per_token(L, r, t),
            }

        def atom():
            numbers = {name: [abs(draw.number()) for _ in range(L)] for name in ("gamma", "tau")}
            return numbers | {"pi": draw.matrix(t, 1)}

        return explicit(
            L,
            {"L": L, "r": r, "t": t, "alpha": Rational(3, 7)},
            {"w": draw.matrix(r, 1), "ridges": diag(*(Rational(40 + i, 3) for i in range(r)))},
            atoms=tuple((Rational(weight, 5), atom()) for weight in (2, 3)),
            samples=tuple((Rational(weight, 7), sample()) for weight in (3, 4)),
            handlers={
                FieldHessian: lambda node, evaluate, bound: evaluate.values[f"by_{node.args[1].name}"][
                    bound[sym.ell] if sym.ell in bound else bound[sym.kappa]
                ]
            },
        )

    return make


def conjugates_of(evaluate):
    """Conjugates at the saddle point, before Stein's lemma takes the derivatives of the residual away."""
    partners = {"V_hat": sym.q, "q_hat": sym.V, "m_hat": sym.m, "theta_hat": sym.theta}
    conjugates = {"V_hat": sym.V_hat, "q_hat": sym.q_hat, "m_hat": sym.m_hat, "theta_hat": sym.theta_hat}
    total = FREE_ENTROPY.total
    solved = {name: solve_linear(gradient(total, partner), conjugates[name]) for name, partner in partners.items()}
    return {name: [evaluate(value, {sym.ell: l}) for l in range(evaluate.length)] for name, value in solved.items()}


@every_size
def test_state_evolution_is_the_saddle_point(world, size):
    """The overlaps of the iteration's weights are (7) at the conjugates (8)."""
    evaluate = world(*size)
    at_saddle_point = evaluate.given(**conjugates_of(evaluate))
    found = overlaps(concentrated())
    for equation in SADDLE_POINT.overlaps:
        for l in range(evaluate.length):
            expected = at_saddle_point(equation.right_hand_side, {sym.ell: l})
            assert expected != zeros(*expected.shape)
            assert evaluate(found[equation.unknown.name], {sym.ell: l}) == expected, equation.unknown.name


def test_rows_own_weights_are_taken_out_of_their_source():
    """Onsager's correction: what a row pulls at itself through the fields is gone from its source."""
    assert not concentrated().source.has(sym.w)
    assert SimpleNamespace(**ITERATION).B.has(sym.w)
    assert amp.g_before in ITERATION["omega"].atoms(TokenMatrix)
