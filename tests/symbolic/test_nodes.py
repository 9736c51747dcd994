"""Matrix differentiation against entry-by-entry SymPy and against finite differences, exactly."""
# SymPy's annotations do not know explicit matrices
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import Determinant, HadamardProduct, Matrix, Rational, Symbol, log, sin, sympify
from sympy.matrices.exceptions import NonInvertibleMatrixError
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, Trace, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import derivative, differential, gradient, solve_linear, symmetrized, transposed
from derivations.algebra.means import FieldMean, SpectralMean, WeightMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, QuadraticMinimum
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum
from derivations.codegen.arrays import ArrayPrinter
from derivations.models.symbolic import GENERIC
from derivations.replica.moments import (
    CommonGaussianMoment,
    LogPartitionMean,
    ReplicatedMoment,
    SampleIntegral,
    SampleLoss,
)

r, t, ell, kappa = sym.r, sym.t, sym.ell, sym.kappa
eta = Symbol("eta", integer=True)  # a third token index

A, B = TokenMatrix("A", r, r, ell), TokenMatrix("B", r, r, ell)  # constants
C = TokenMatrix("C", r, t, ell)
K = TokenMatrix("K", r, r, None)  # carried by no token
X = TokenMatrix("X", r, r, ell)  # variables
S = TokenMatrix("S", r, r, ell, symmetric=True)
Y = TokenMatrix("Y", r, t, ell)
gamma, tau, pi = sym.gamma, sym.tau, sym.pi

# gradients are expressions in symbolic sizes: numbers and matrices alike
SIZES = [{"r": a, "t": b, "L": c} for a, b, c in ((1, 1, 1), (2, 2, 2))]


def at(matrix, index):
    return matrix.xreplace({matrix.index: index})


def over_tokens(body, index=ell):
    return TokenSum.of(body, index)


def resolvent(variable):
    """``(3/7 K + sum gamma X)^-1``, the shape of the theory's R."""
    return Inverse(Rational(3, 7) * K + over_tokens(gamma[kappa] * at(variable, kappa), kappa))


def compositions(variable):
    """Scalars made of every node with a rule, for a square variable."""
    x = variable
    b = over_tokens(tau[kappa] * at(C, kappa) * pi + gamma[kappa] * at(x, kappa) * at(C, kappa) * pi, kappa)
    return {
        "linear": over_tokens(Trace(A * x)),
        "transposed": over_tokens(Trace(A * Transpose(x) * B)),
        "quadratic": over_tokens(Trace(x * A * Transpose(x) * B)),
        "two factors": over_tokens(Trace(A * x * B * x)),
        "repeated": over_tokens(Trace(MatMul(x, x, evaluate=False))),
        "sum of traces": 3 * sym.alpha * over_tokens(Trace(A * x) - Trace(x * B * x) / 2),
        "inverse": over_tokens(Trace(Inverse(A + x) * B)),
        "inverse alone": over_tokens(Trace(Inverse(x))),
        "inverse of the transpose": over_tokens(Trace(Inverse(A + Transpose(x)) * B)),
        "nested inverse": over_tokens(Trace(Inverse(A + Inverse(x)) * B)),
        "inverse of a product": over_tokens(Trace(A * Inverse(A * x * B + K) * x)),
        "product of sums": Trace(
            over_tokens(gamma[kappa] * at(x, kappa), kappa) * over_tokens(at(A, eta) * at(x, eta), eta)
        ),
        "scalar factor": over_tokens(gamma[ell] * Trace(x) * Trace(A * x)),
        "spectral mean": SpectralMean.of(over_tokens(gamma[ell] * tau[ell] * Trace(A * x))),
        "resolvent": SpectralMean.of(Trace(resolvent(x) * over_tokens(gamma[kappa] * at(A, kappa), kappa))),
        "resolvent and source": SpectralMean.of(Trace(resolvent(x) * (K + b * Transpose(b)))),
        "resolvent twice": SpectralMean.of(Trace(resolvent(x) * K * resolvent(x) * b * Transpose(b))),
    }


def rectangular_compositions():
    b = over_tokens(gamma[kappa] * at(Y, kappa) * pi, kappa)
    return {
        "linear": over_tokens(Trace(Transpose(C) * Y)),
        "quadratic": over_tokens(Trace(Transpose(Y) * A * Y)),
        "source": SpectralMean.of(Trace(Inverse(K) * (A.xreplace({ell: sympify(0)}) + b * Transpose(b)))),
        "inverse": over_tokens(Trace(Inverse(K + Y * Transpose(Y)) * A)),
    }


CASES = {
    **{f"general {name}": (X, f) for name, f in compositions(X).items()},
    **{f"symmetric {name}": (S, f) for name, f in compositions(S).items()},
    **{f"rectangular {name}": (Y, f) for name, f in rectangular_compositions().items()},
}


@pytest.fixture(scope="module")
def world(explicit, rational):
    """Makes an evaluator with random values for everything, and the random source."""

    def make(seed, *, r, t, L):
        draw = rational(seed)
        atoms = tuple(
            (
                Rational(weight, 17),
                {
                    "gamma": [abs(draw.number()) for _ in range(L)],
                    "tau": [draw.number() for _ in range(L)],
                    "pi": draw.matrix(t, 1),
                },
            )
            for weight in (5, 12)
        )
        values = {name: draw.per_token(L, r, r) for name in "ABX"} | {
            "S": [draw.positive(r) for _ in range(L)],
            "C": draw.per_token(L, r, t),
            "Y": draw.per_token(L, r, t),
            "K": draw.positive(r),
            "gamma": [abs(draw.number()) for _ in range(L)],
            "tau": [draw.number() for _ in range(L)],
            "pi": draw.matrix(t, 1),
        }
        sizes = {"r": r, "t": t, "L": L, "alpha": abs(draw.number())}
        return explicit(L, sizes, values, atoms), draw

    return make


def entry_derivatives(f, family, evaluate):
    """d f / d entry for every entry, by SymPy's scalar derivative; both entries of a symmetric pair move.

    One entry is a symbol at a time and the others are numbers: rational functions of one variable stay small.
    """
    x = Symbol("x")
    values = evaluate.values[family.name]

    def derivative(token, i, j):
        moved = values[token].copy()
        moved[i, j] = x
        if family.symmetric:
            moved[j, i] = x
        scalar = evaluate.given(**{family.name: [*values[:token], moved, *values[token + 1 :]]})(f)
        return scalar.diff(x).subs(x, values[token][i, j])

    return [
        [[derivative(token, i, j) for j in range(value.cols)] for i in range(value.rows)]
        for token, value in enumerate(values)
    ]


@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "-".join(f"{k}{v}" for k, v in s.items()))
@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_entry_by_entry_sympy(case, sizes, world):
    family, f = CASES[case]
    evaluate, _ = world(len(case) * 31 + sizes["r"], **sizes)
    G = gradient(f, family)
    expected = entry_derivatives(f, family, evaluate)
    for token in range(sizes["L"]):
        value = evaluate(G, {ell: token})
        for i, j in product(range(value.rows), range(value.cols)):
            # an off-diagonal entry of a symmetric matrix moves its mirror image too
            count = 2 if family.symmetric and i != j else 1
            assert count * value[i, j] == expected[token][i][j]


def directional(f, family, evaluate, directions):
    """Central difference in exact arithmetic: the error is the truncation, step squared."""
    step = Rational(1, 10**12)
    values = evaluate.values[family.name]

    def shifted(sign):
        return evaluate.given(**{family.name: [v + sign * step * d for v, d in zip(values, directions, strict=True)]})(
            f
        )

    return (shifted(1) - shifted(-1)) / (2 * step)


@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_finite_differences_at_rank_three(case, world):
    family, f = CASES[case]
    evaluate, draw = world(len(case), r=3, t=2, L=3)
    directions = [draw.matrix(*v.shape, symmetric=family.symmetric) for v in evaluate.values[family.name]]
    G = gradient(f, family)
    predicted = sum((evaluate(G, {ell: token}).T * directions[token]).trace() for token in range(3))
    measured = directional(f, family, evaluate, directions)
    assert abs(measured - predicted) <= abs(predicted) * Rational(1, 10**12)


def matrices(variable, index):
    """Random square expressions in ``variable`` carried by ``index``."""
    leaf = st.sampled_from([at(A, index), at(B, index), K, at(variable, index), Transpose(at(variable, index))])

    def grow(inner):
        return st.one_of(
            # a constant between the factors: x*x becomes a power, which has no rule (and raises)
            st.tuples(inner, inner).map(lambda p: p[0] * at(B, index) * p[1]),
            st.tuples(inner, inner).map(lambda p: p[0] + Rational(5, 3) * p[1]),
            inner.map(lambda m: Inverse(Rational(7, 2) * K + m)),
            inner.map(lambda m: gamma[index] * m),
        )

    return st.recursive(leaf, grow, max_leaves=4)


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(0, 10**6), st.booleans())
def test_random_compositions_match_finite_differences(world, data, seed, symmetric):
    variable = S if symmetric else X
    f = over_tokens(Trace(data.draw(matrices(variable, kappa)) * at(A, kappa)), kappa)
    evaluate, draw = world(seed, r=2, t=1, L=2)
    directions = [draw.matrix(2, 2, symmetric=symmetric) for _ in range(2)]
    G = gradient(f, variable)
    try:
        predicted = sum((evaluate(G, {ell: token}).T * directions[token]).trace() for token in range(2))
        measured = directional(f, variable, evaluate, directions)
    except NonInvertibleMatrixError:
        assume(False)
    assert abs(measured - predicted) <= Rational(1, 10**10) * (1 + abs(predicted))


# --- symmetric matrices -----------------------------------------------------------------------


def test_off_diagonal_entry_of_a_symmetric_matrix_counts_twice(world):
    evaluate, _ = world(5, r=2, t=1, L=1)
    f = over_tokens(Trace(A * S))
    G = evaluate(gradient(f, S), {ell: 0})
    a = evaluate.values["A"][0]
    assert (a + a.T) / 2 == G
    assert entry_derivatives(f, S, evaluate)[0][0][1] == a[0, 1] + a[1, 0] == 2 * G[0, 1]


def test_gradient_in_a_symmetric_matrix_is_symmetric(world):
    evaluate, _ = world(6, r=2, t=2, L=2)
    for name, f in compositions(S).items():
        value = evaluate(gradient(f, S), {ell: 1})
        assert value == value.T, name


# --- nodes without a rule ---------------------------------------------------------------------

ENVELOPE = FieldMean.of(MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field))
SAMPLE = SampleIntegral(sym.m, sym.theta, sym.rho, SampleLoss(GENERIC), sym.beta)

WITHOUT_RULE = {
    "log-determinant": (log(Determinant(X)), X, "for the node log$"),
    "determinant": (Determinant(A + X), X, "for the node Determinant$"),
    "square root": (Trace(MatrixSqrt(S) * A), S, "for the node MatrixSqrt$"),
    "matrix power": (Trace(X * X * X), X, "for the node MatPow$"),
    "square of a trace": (Trace(X) ** 2, X, "for the node Pow$"),
    "function of a trace": (sin(Trace(A * X)), X, "for the node sin$"),
    "entrywise product": (Trace(HadamardProduct(A, X)), X, "for the node HadamardProduct$"),
    "quadratic minimum": (QuadraticMinimum(X, C * pi, A), X, "for the node QuadraticMinimum$"),
    "replicated moment": (ReplicatedMoment(SAMPLE, X, A, 2), X, "for the node ReplicatedMoment$"),
    "mean inside a trace": (Trace(SpectralMean.of(gamma[ell] * X) * A), X, "a mean must not stand inside the trace"),
}
SILENT_ZERO = {
    "envelope in the teacher's variance": (ENVELOPE, sym.rho, "over local fields has no derivative rule in rho$"),
    "mean of another field": (
        over_tokens(Trace(FieldMean.of(sym.g_field * sym.g_field.T) * sym.V)),
        sym.q,
        "rule in q for the mean of MatMul over fields$",
    ),
    "residual in the proximal problem's variance": (
        over_tokens(Trace(FieldMean.of(sym.g_field * sym.g_field.T) * sym.q)),
        sym.V,
        "rule in V for the mean of MatMul over fields$",
    ),
    "row of weights in a conjugate": (
        SpectralMean.of(Trace(WeightMean.of(sym.w * sym.w.T))),
        sym.q_hat,
        "rule in q_hat for the mean of MatMul over weights$",
    ),
    "log-partition mean": (
        sym.alpha * LogPartitionMean(SAMPLE, [sym.q], sym.V, []),
        sym.q,
        "for the node LogPartitionMean$",
    ),
    "common Gaussian moment": (
        CommonGaussianMoment(SAMPLE, [sym.q], sym.V, [2]),
        sym.q,
        "for the node CommonGaussianMoment$",
    ),
    "entry": (X[0, 0], X, "for the node MatrixEntry$"),
}


@pytest.mark.parametrize("case", WITHOUT_RULE)
def test_node_without_a_rule_raises(case):
    f, family, words = WITHOUT_RULE[case]
    with pytest.raises(TypeError, match=words):
        gradient(f, family)


@pytest.mark.parametrize("case", SILENT_ZERO)
def test_node_whose_dependence_is_hidden_raises(case):
    f, family, words = SILENT_ZERO[case]
    with pytest.raises(TypeError, match=words):
        gradient(f, family)


def test_node_without_an_array_print_raises():
    with pytest.raises(TypeError, match=r"no NumPy print for the node HadamardProduct$"):
        ArrayPrinter({ell: "l"})(Trace(HadamardProduct(A, X) * B))


def test_independent_expression_has_zero_gradient():
    assert differential(Trace(A), X) is None
    assert gradient(Trace(A), X).is_ZeroMatrix


# --- scalar parameters ------------------------------------------------------------------------

SLOPE = Symbol("u", positive=True)


def shifted_resolvent():
    return Inverse(SLOPE * Identity(r) + over_tokens(gamma[kappa] * at(S, kappa), kappa))


IN_A_PARAMETER = {
    "factor": SLOPE * over_tokens(Trace(A * S)),
    "factor inside": over_tokens(Trace(A * MatMul(SLOPE, S) * B)) + Trace(K),
    "resolvent": Trace(shifted_resolvent() * K),
    "resolvent alone": Trace(shifted_resolvent()),
    "resolvents": SpectralMean.of(SLOPE * Trace(shifted_resolvent() * K * shifted_resolvent() * K)),
    "source": SpectralMean.of(Trace(Transpose(SLOPE * at(C, kappa).xreplace({kappa: sympify(0)}) * pi) * K * (C * pi))),
}


@pytest.mark.parametrize("case", IN_A_PARAMETER)
def test_derivative_in_a_scalar_parameter(case, world):
    """Against SymPy's derivative of the explicit expression, exactly."""
    f = IN_A_PARAMETER[case]
    evaluate, _ = world(len(case), r=2, t=1, L=2)
    at_point = replace(evaluate, sizes=evaluate.sizes | {"u": Rational(3, 5)})
    expected = sympify(evaluate(f, {ell: 1})).diff(SLOPE).subs(SLOPE, Rational(3, 5))
    assert at_point(derivative(f, SLOPE), {ell: 1}) == expected
    assert expected != 0


def test_derivative_in_a_parameter_that_is_not_there():
    assert derivative(ENVELOPE, SLOPE) == 0
    assert derivative(Trace(S), Symbol("S")) == 0  # a parameter is not the matrix of its name


@pytest.mark.parametrize("changed", [sym.omega_field, sym.V])
def test_envelope_has_a_rule_in_the_scale_of_its_loss_alone(changed):

    envelope = MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field)
    assert derivative(envelope.scaled(SLOPE), SLOPE) == FieldLoss(sym.prox_field, sym.k_field)
    with pytest.raises(TypeError, match="MoreauEnvelope but in the scale of the loss"):
        derivative(envelope.xreplace({changed: SLOPE * changed}), SLOPE)


# --- bound indices ----------------------------------------------------------------------------

NESTED = {
    "inner index of another token": over_tokens(over_tokens(Trace(at(A, kappa) * X), kappa)),
    "outer index in a product": Trace(over_tokens(at(A, kappa) * over_tokens(at(X, eta), eta), kappa)),
    "same index twice": Trace(over_tokens(at(A, kappa) * over_tokens(at(B, kappa) * at(X, kappa), kappa), kappa)),
    "resolvent in a sum": over_tokens(Trace(resolvent(X) * A)),
    "inner sum over the free index": over_tokens(Trace(at(A, kappa) * over_tokens(B * X)), kappa),
}
SAFE_NESTED = {
    "inner constant sum over the free index": over_tokens(Trace(over_tokens(A) * at(X, kappa)), kappa),
    "constant sum with the same index": over_tokens(Trace(over_tokens(at(A, kappa), kappa) * at(X, kappa)), kappa),
    "square of one sum": Trace(
        over_tokens(at(A, kappa) * at(X, kappa), kappa) * Transpose(over_tokens(at(X, kappa), kappa))
    ),
}


def check_nested(f, world):
    """The right value at every token."""
    evaluate, _ = world(3, r=2, t=1, L=2)
    G = gradient(f, X)
    expected = entry_derivatives(f, X, evaluate)
    for token in range(2):
        assert evaluate(G, {ell: token}) == Matrix(expected[token])


@pytest.mark.parametrize("case", SAFE_NESTED)
def test_nested_sums_do_not_capture(case, world):
    check_nested(SAFE_NESTED[case], world)


@pytest.mark.parametrize("case", NESTED)
def test_sums_that_do_not_carry_the_differential_stay(case, world):
    check_nested(NESTED[case], world)


def test_scalar_trace_as_a_factor_of_a_matrix(world):
    check_nested(over_tokens(Trace(Trace(X) * A)), world)


# --- helpers ----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.data(), st.integers(0, 10**6))
def test_transposed_is_the_transpose(world, data, seed):
    matrix = data.draw(matrices(X, kappa))
    evaluate, _ = world(seed, r=2, t=1, L=2)
    try:
        value = evaluate(matrix, {kappa: 1})
    except NonInvertibleMatrixError:
        assume(False)
    assert evaluate(transposed(matrix), {kappa: 1}) == value.T
    assert evaluate(transposed(transposed(matrix)), {kappa: 1}) == value


def test_symmetrized_leaves_symmetric_terms_alone():
    symmetric = A * Transpose(A) + S
    assert symmetrized(symmetric) == symmetric
    assert symmetrized(A * B) == (A * B + Transpose(B) * Transpose(A)) / 2


def test_solve_linear(world):
    evaluate, _ = world(8, r=2, t=2, L=1)
    solution = solve_linear(MatAdd(A * B, Rational(-2, 3) * X, sym.alpha * K), X)
    a, b, k, alpha = (
        evaluate.values["A"][0],
        evaluate.values["B"][0],
        evaluate.values["K"],
        evaluate.sizes["alpha"],
    )
    assert evaluate(solution, {ell: 0}) == Rational(3, 2) * (a * b + alpha * k)


@pytest.mark.parametrize(
    "condition",
    [A * X + B, MatAdd(A, B), sym.alpha * X + A, MatAdd(Transpose(X), A)],
    ids=["matrix coefficient", "absent", "symbolic coefficient", "transposed"],
)
def test_solve_linear_refuses_what_it_cannot_solve(condition):
    with pytest.raises(TypeError, match=r"^X\[ell\] does not stand alone in the stationarity condition$"):
        solve_linear(condition, X)


def test_token_matrix_is_its_own_transpose_only_if_symmetric():
    assert Transpose(S).doit() == S
    assert Transpose(X).doit() != X
    assert S[1, 0] == S[0, 1]
    assert X[1, 0] != X[0, 1]
    assert Identity(r) * X == X
