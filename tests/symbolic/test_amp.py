"""GAMP: responses of the proximal problem, fixed points of the iteration, and its state evolution, all exactly.

Not public: the iteration's expressions, which stand on every page and have no other value.
"""

import pytest
from explicit import Explicit, RationalDraw, jacobian_values
from sympy import Rational, diag, eye, zeros

import attnphase as ap
from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient, solve_linear
from derivations.algebra.minima import FieldHessian
from derivations.algebra.tokens import SampleSum
from derivations.replica.amp import concentrated, derive_iteration, overlaps, response

DERIVED = ap.derive()
ITERATION = {named.unknown.name: named.value for named in derive_iteration()}
SIZES = [(1, 1, 1), (2, 1, 1), (2, 2, 1), (2, 2, 2)]
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))


@every_size
def test_response_of_the_proximal_point_is_its_jacobian(size):
    """For ``loss = h^T H h/2 - s^T h`` the residual is linear in the field: differences are derivatives."""
    n, draw = size[0] * size[1], RationalDraw(5)
    V, H, s = draw.positive(n), draw.matrix(n, n, symmetric=True), draw.matrix(n, 1)

    def residual(omega):
        prox = (V.inv() + H).inv() * (V.inv() * omega + s)
        return V.inv() * (prox - omega)

    field, kick = draw.matrix(n, 1), draw.matrix(n, 1)
    found = Explicit(size[0], {"L": size[0], "r": size[1]}, {"V_stacked": V, "H": H})(response())
    assert found * kick == residual(field + kick) - residual(field)
    assert found == -H * (eye(n) + V * H).inv()  # as the experiments compute it


@every_size
def test_fixed_points_are_critical_points_of_the_risk(size):
    """``(Lambda + A) w = B`` is ``Lambda w = sum xbar g``; ``omega + V g`` is the proximal point."""
    (L, r, _), draw = size, RationalDraw(11)
    values = {"w": draw.matrix(r, 1), "A": draw.positive(r), "V": [draw.positive(r) for _ in range(L)]}
    values |= {name: draw.per_token(L, r, 1) for name in ("omega", "prox", "g_before")}
    values |= {"xbar": [draw.number() for _ in range(L)]}
    force = draw.matrix(r, 1)  # whatever the sum over samples gives
    values["ridges"] = ridges = diag(*(abs(draw.number()) for _ in range(r)))
    at = Explicit(L, {"L": L, "r": r}, values, handlers={SampleSum: lambda node, evaluate, bound: force})
    w = at.given(B=at(ITERATION["B"]))(ITERATION["w"])
    # the step is zero where the force of the samples and the ridge cancel, and only there
    assert (ridges + values["A"]) * (w - values["w"]) == force - ridges * values["w"]
    for l in range(L):
        g = at(ITERATION["g"], {sym.ell: l})
        assert values["omega"][l] + values["V"][l] * g == values["prox"][l]


def conjugates_of(at):
    """Conjugates at the saddle point, before Stein's lemma takes the derivatives of the residual away."""
    pairs = {sym.V_hat: sym.q, sym.q_hat: sym.V, sym.m_hat: sym.m, sym.theta_hat: sym.theta}
    total = DERIVED.free_entropy.total
    solved = {hat.name: solve_linear(gradient(total, partner), hat) for hat, partner in pairs.items()}
    return {name: [at(value, {sym.ell: l}) for l in range(at.length)] for name, value in solved.items()}


@every_size
def test_state_evolution_of_the_iteration_is_the_saddle_point(size):
    """The overlaps of the iteration's weights are (7) at the conjugates (8)."""
    (L, r, t), draw = size, RationalDraw(29)
    samples = draw.residuals(L, r, t, Rational(3, 7), Rational(4, 7))
    at = Explicit(
        L,
        {"L": L, "r": r, "t": t, "alpha": Rational(3, 7)},
        {"w": draw.matrix(r, 1), "ridges": diag(*(Rational(40 + i, 3) for i in range(r)))},
        draw.atoms(L, t, Rational(2, 5), Rational(3, 5)),
        samples,
        handlers={FieldHessian: jacobian_values},
    )
    at_saddle_point, found = at.given(**conjugates_of(at)), overlaps(concentrated())
    for equation in DERIVED.saddle_point.overlaps:
        for l in range(L):
            expected = at_saddle_point(equation.right_hand_side, {sym.ell: l})
            assert expected != zeros(*expected.shape)
            assert at(found[equation.unknown.name], {sym.ell: l}) == expected, equation.unknown.name
