"""Matrix differentiation against entry-by-entry SymPy and against finite differences, exactly.

Not public: `derivations.algebra`, of which every equation is made.
"""
# SymPy's annotations do not know its own matrices
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

from dataclasses import replace
from typing import Any

import pytest
from explicit import Explicit, RationalDraw
from sympy import Matrix, Rational, Symbol, sympify
from sympy.matrices.expressions import Identity, Inverse, MatMul, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import derivative, gradient, transposed
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope
from derivations.algebra.tokens import TokenMatrix, TokenSum

r, t, ell, kappa = sym.r, sym.t, sym.ell, sym.kappa
eta = Symbol("eta", integer=True)  # a third token index
A, B = TokenMatrix("A", r, r, ell), TokenMatrix("B", r, r, ell)  # constants
C = TokenMatrix("C", r, t, ell)
K = TokenMatrix("K", r, r, None)  # carried by no token
X = TokenMatrix("X", r, r, ell)  # variables
S = TokenMatrix("S", r, r, ell, symmetric=True)
Y = TokenMatrix("Y", r, t, ell)
gamma, tau, pi = sym.gamma, sym.tau, sym.pi


def at(matrix, index):
    return matrix.xreplace({matrix.index: index})


def over_tokens(body, index=ell):
    return TokenSum.of(body, index)


def resolvent(variable):
    """``(3/7 K + sum gamma X)^-1``, the shape of the theory's R."""
    return Inverse(Rational(3, 7) * K + over_tokens(gamma[kappa] * at(variable, kappa), kappa))


def compositions(x):
    """Scalars made of every node with a rule, for a square variable."""
    b = over_tokens(tau[kappa] * at(C, kappa) * pi + gamma[kappa] * at(x, kappa) * at(C, kappa) * pi, kappa)
    return {
        "transposed": over_tokens(Trace(A * Transpose(x) * B)),
        "quadratic": over_tokens(Trace(x * A * Transpose(x) * B)),
        "repeated": over_tokens(Trace(MatMul(x, x, evaluate=False))),
        "sum of traces": 3 * sym.alpha * over_tokens(Trace(A * x) - Trace(x * B * x) / 2),
        "inverse of the transpose": over_tokens(Trace(Inverse(A + Transpose(x)) * B)),
        "nested inverse": over_tokens(Trace(Inverse(A + Inverse(x)) * B)),
        "inverse of a product": over_tokens(Trace(A * Inverse(A * x * B + K) * x)),
        "product of sums": Trace(
            over_tokens(gamma[kappa] * at(x, kappa), kappa) * over_tokens(at(A, eta) * at(x, eta), eta)
        ),
        "scalar factor": over_tokens(gamma[ell] * Trace(x) * Trace(A * x)),
        "resolvent": SpectralMean.of(Trace(resolvent(x) * over_tokens(gamma[kappa] * at(A, kappa), kappa))),
        "resolvent and source": SpectralMean.of(Trace(resolvent(x) * (K + b * Transpose(b)))),
        "resolvent twice": SpectralMean.of(Trace(resolvent(x) * K * resolvent(x) * b * Transpose(b))),
    }


_SOURCE = over_tokens(gamma[kappa] * at(Y, kappa) * pi, kappa)
_FIRST_A = A.xreplace({ell: sympify(0)})
CASES = {
    **{f"general {name}": (X, f) for name, f in compositions(X).items()},
    **{f"symmetric {name}": (S, f) for name, f in compositions(S).items()},
    "rectangular quadratic": (Y, over_tokens(Trace(Transpose(Y) * A * Y))),
    "rectangular source": (Y, SpectralMean.of(Trace(Inverse(K) * (_FIRST_A + _SOURCE * Transpose(_SOURCE))))),
    "rectangular inverse": (Y, over_tokens(Trace(Inverse(K + Y * Transpose(Y)) * A))),
    # bound indices: sums within sums, whose indices must not be captured
    "inner index of another token": (X, over_tokens(over_tokens(Trace(at(A, kappa) * X), kappa))),
    "outer index in a product": (X, Trace(over_tokens(at(A, kappa) * over_tokens(at(X, eta), eta), kappa))),
    "same index twice": (X, Trace(over_tokens(at(A, kappa) * over_tokens(at(B, kappa) * at(X, kappa), kappa), kappa))),
    "resolvent in a sum": (X, over_tokens(Trace(resolvent(X) * A))),
    "inner sum over the free index": (X, over_tokens(Trace(at(A, kappa) * over_tokens(B * X)), kappa)),
    "inner constant sum over the free index": (X, over_tokens(Trace(over_tokens(A) * at(X, kappa)), kappa)),
    "constant sum with the same index": (X, over_tokens(Trace(over_tokens(at(A, kappa), kappa) * at(X, kappa)), kappa)),
    "square of one sum": (
        X,
        Trace(over_tokens(at(A, kappa) * at(X, kappa), kappa) * Transpose(over_tokens(at(X, kappa), kappa))),
    ),
    "trace as a factor of a matrix": (X, over_tokens(Trace(Trace(X) * A))),
}


def world(seed, *, r, t, L):
    """Random values for everything, and the random source."""
    draw = RationalDraw(seed)
    atoms = draw.atoms(L, t, Rational(5, 17), Rational(12, 17))
    values: dict[str, Any] = {name: draw.per_token(L, r, r) for name in "ABX"}
    values |= {"S": [draw.positive(r) for _ in range(L)], "K": draw.positive(r), "pi": draw.matrix(t, 1)}
    values |= {name: draw.per_token(L, r, t) for name in "CY"}
    values |= {"gamma": [abs(draw.number()) for _ in range(L)], "tau": [draw.number() for _ in range(L)]}
    return Explicit(L, {"r": r, "t": t, "L": L, "alpha": abs(draw.number())}, values, atoms), draw


def entry_derivatives(f, family, evaluate, token):
    """d f / d entry by SymPy's scalar derivative; both entries of a symmetric pair move.

    One entry is a symbol at a time and the others are numbers: rational functions of one variable stay small.
    """
    x, values = Symbol("x"), evaluate.values[family.name]

    def derivative_in(i, j):
        moved = values[token].copy()
        moved[i, j] = x
        if family.symmetric:
            moved[j, i] = x
        scalar = evaluate.given(**{family.name: [*values[:token], moved, *values[token + 1 :]]})(f)
        return scalar.diff(x).subs(x, values[token][i, j])

    return Matrix(*values[token].shape, derivative_in)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_gradient_is_the_derivative_in_every_entry(case, size):
    family, f = CASES[case]
    evaluate, _ = world(len(case) * 31 + size, r=size, t=size, L=size)
    token = size - 1
    found: Any = evaluate(gradient(f, family), {ell: token})
    if family.symmetric:  # an off-diagonal entry moves its mirror image too
        assert found == found.T
        found = Matrix(size, size, lambda i, j: found[i, j] * (1 if i == j else 2))
    assert found == entry_derivatives(f, family, evaluate, token)


def test_transposes_go_through_sums_and_means():
    evaluate, _ = world(2, r=2, t=2, L=2)
    row = over_tokens(gamma[kappa] * at(A, kappa) * at(C, kappa) * pi * Transpose(sym.pi), kappa)
    for matrix in (row, SpectralMean.of(row), over_tokens(A * B + Inverse(K + B))):
        assert evaluate(transposed(matrix)) == evaluate(matrix).T


SLOPE = Symbol("u", positive=True)
_SHIFTED = Inverse(SLOPE * Identity(r) + over_tokens(gamma[kappa] * at(S, kappa), kappa))
IN_A_PARAMETER = {
    "factor": SLOPE * over_tokens(Trace(A * S)),
    "factor inside": over_tokens(Trace(A * MatMul(SLOPE, S) * B)) + Trace(K),
    "resolvent": Trace(_SHIFTED * K),
    "resolvents": SpectralMean.of(SLOPE * Trace(_SHIFTED * K * _SHIFTED * K)),
    "source": SpectralMean.of(Trace(Transpose(SLOPE * C.xreplace({ell: sympify(0)}) * pi) * K * (C * pi))),
}


@pytest.mark.parametrize("case", IN_A_PARAMETER)
def test_derivative_in_a_scalar_parameter(case):
    """Against SymPy's derivative of the explicit expression."""
    f, (evaluate, _) = IN_A_PARAMETER[case], world(len(case), r=2, t=1, L=2)
    at_point = replace(evaluate, sizes={**evaluate.sizes, "u": Rational(3, 5)})
    expected = sympify(evaluate(f, {ell: 1})).diff(SLOPE).subs(SLOPE, Rational(3, 5))
    assert at_point(derivative(f, SLOPE), {ell: 1}) == expected != 0


def test_derivative_of_an_envelope_in_the_scale_of_its_loss():
    envelope = MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field)
    assert derivative(envelope.scaled(SLOPE), SLOPE) == FieldLoss(sym.prox_field, sym.k_field)
    assert derivative(FieldMean.of(envelope), SLOPE) == derivative(Trace(S), Symbol("S")) == 0
    for changed in (sym.omega_field, sym.V):
        with pytest.raises(TypeError, match="MoreauEnvelope but in the scale of the loss"):
            derivative(envelope.xreplace({changed: SLOPE * changed}), SLOPE)
