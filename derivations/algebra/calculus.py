"""Differentiation of matrix expressions.

SymPy's own matrix derivatives return 0 without a word for functions they do not know (``log(Determinant(A))``), and
cannot sum over an index that is also carried by a matrix.  Here differentiation goes through *differentials*:
``d f = sum_l Tr(G_l^T dX_l)`` is computed by the product rule and the rules of the nodes, and the gradient ``G_l`` is
read off after rotating ``dX_l`` to the end of every trace.  Each pass over an expression chooses its rule by the type
of the node; a node without a rule raises `TypeError` with its name.

The same rules give derivatives in scalar parameters: a minimum then varies by the envelope theorem, a saddle point
at fixed order parameters.

Convention for symmetric ``X``: the gradient is the symmetric ``G`` with ``df = Tr(G dX)`` for symmetric ``dX``.  An
off-diagonal entry varied alone (both mirror images at once) therefore has derivative ``2 G_ab``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from sympy import Add, Dummy, Expr, Mul, S, Symbol, expand_mul, sift
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose, ZeroMatrix

from derivations.algebra.means import FieldMean, LawMean
from derivations.algebra.minima import FieldHessian, LossSlope, MoreauEnvelope, RowMinimum
from derivations.algebra.tokens import MatrixEntry, MatrixSqrt, Operator, TokenMatrix, TokenSum, is_matrix, operands

__all__ = [
    "Variable",
    "change_of",
    "cyclic",
    "depends_on",
    "derivative",
    "differential",
    "differential_symbol",
    "gradient",
    "jacobian",
    "solve_linear",
    "symmetrized",
    "transposed",
]

# what an expression is varied in: a matrix of all tokens, or a scalar parameter
Variable = TokenMatrix | Symbol


# --- what an expression depends on --------------------------------------------------------------------------------


@singledispatch
def depends_on(expression: Any, variable: Variable) -> bool:
    """Whether ``variable`` stands in an expression, or in the law that one of its means is taken over."""
    return any(depends_on(a, variable) for a in getattr(expression, "args", ()))


@depends_on.register
def _(expression: TokenMatrix, variable: Variable) -> bool:
    return isinstance(variable, TokenMatrix) and expression.name == variable.name


@depends_on.register
def _(expression: Symbol, variable: Variable) -> bool:
    return expression == variable


@depends_on.register
def _(expression: MatrixEntry, variable: Variable) -> bool:
    return isinstance(variable, TokenMatrix) and expression.family == variable.name


# --- differentials ------------------------------------------------------------------------------------------------


def differential(expression: Any, variable: Variable) -> Any:
    """First-order change of ``expression`` when ``variable`` changes; None if it is zero.

    Every ``X_l`` of a matrix changes by ``dX_l``, a scalar parameter by 1.

    Raises
    ------
    TypeError
        A node has no derivative rule: never a silent zero.
    """
    return change_of(expression, variable) if depends_on(expression, variable) else None


def derivative(expression: Any, parameter: Symbol) -> Any:
    """The derivative in a scalar parameter, at fixed matrices."""
    change = differential(expression, parameter)
    return S.Zero if change is None else change


def differential_symbol(symbol: TokenMatrix) -> TokenMatrix:
    """``dX`` of a matrix ``X``."""
    return TokenMatrix(
        f"d_{symbol.name}", *symbol.shape, symbol.index, symmetric=symbol.symmetric, latex=f"d{symbol.latex_name}"
    )


@singledispatch
def change_of(expression: Any, variable: Variable) -> Any:
    """The differential of an expression that depends on ``variable``, by the rule of its node."""
    raise TypeError(f"no derivative rule for the node {type(expression).__name__}")


change_of.register(MatrixEntry, change_of.dispatch(object))  # it is for reading off, although it is a symbol


@change_of.register
def _(symbol: TokenMatrix, variable: Variable) -> Any:
    return differential_symbol(symbol)


@change_of.register
def _(symbol: Symbol, variable: Variable) -> Any:
    return S.One


@change_of.register(Add)
@change_of.register(MatAdd)
def _(sum_: Any, variable: Variable) -> Any:
    return _total(d for a in sum_.args if (d := differential(a, variable)) is not None)


@change_of.register(Mul)
@change_of.register(MatMul)
def _(product: Any, variable: Variable) -> Any:
    terms = []
    for i, factor in enumerate(product.args):
        change = differential(factor, variable)
        if change is not None:
            terms.append(type(product)(*product.args[:i], change, *product.args[i + 1 :]))
    return _total(terms)


@change_of.register
def _(transpose: Transpose, variable: Variable) -> Any:
    return Transpose(differential(transpose.arg, variable))


@change_of.register
def _(trace: Trace, variable: Variable) -> Any:
    change = differential(trace.arg, variable)
    return Trace(change) if isinstance(variable, TokenMatrix) else cyclic(change)


@change_of.register
def _(inverse: Inverse, variable: Variable) -> Any:
    change = differential(inverse.arg, variable)
    if isinstance(variable, TokenMatrix):
        return -1 * inverse * change * inverse
    # no powers: what stands between the two is put there by the trace
    return MatMul(S.NegativeOne, inverse, change, inverse)


@change_of.register
def _(operator: Operator, variable: Variable) -> Any:
    return _applied(operator, differential(operator.body, variable), variable)


@change_of.register
def _(mean: LawMean, variable: Variable) -> Any:
    if not depends_on(mean.law, variable):
        return _applied(mean, differential(mean.body, variable), variable)
    assert isinstance(variable, TokenMatrix)
    if isinstance(mean, FieldMean) and isinstance(mean.body, MoreauEnvelope):
        return _price(mean, variable)
    over = "fields" if isinstance(mean, FieldMean) else "weights"
    raise TypeError(f"no derivative rule in {variable.name} for the mean of {type(mean.body).__name__} over {over}")


@change_of.register(MoreauEnvelope)
@change_of.register(LossSlope)
@change_of.register(RowMinimum)
def _(node: Any, variable: Variable) -> Any:
    return node.change(*(differential(a, variable) for a in operands(node)))


def _price(mean: Any, family: TokenMatrix) -> Expr:
    """Price's theorem and the envelope theorem: differential of ``E[M]`` in one of the law's parameters."""
    omega, k, variance, residual = operands(mean.body)[:4]
    center, covariance, correlation = (parameter.name for parameter in operands(mean.law)[:3])
    rates = {
        variance.name: -residual * Transpose(residual) / 2,
        center: -residual,
        covariance: -FieldHessian(residual, omega) / 2,
        correlation: -FieldHessian(residual, k),
    }
    if family.name not in rates:
        raise TypeError(f"the mean over local fields has no derivative rule in {family.name}")
    change = differential_symbol(family).xreplace({family.index: omega.index})
    return TokenSum.of(Trace(Transpose(mean.apply(rates[family.name])) * change), omega.index)


def _applied(operator: Operator, change: Any, variable: Variable) -> Any:
    """A sum or mean of a change; in a scalar parameter with numbers and parameters in front of it."""
    if isinstance(variable, TokenMatrix) or is_matrix(change):
        return operator.apply(change)
    factors = Mul.make_args(change)
    constants = [a for a in factors if a.is_number or isinstance(a, Symbol)]
    return Mul(*constants, operator.apply(Mul(*(a for a in factors if a not in constants))))


def cyclic(matrix: Any) -> Any:
    """The trace, in which a factor that stands twice side by side is moved to both ends: no powers appear."""
    if isinstance(matrix, MatAdd):
        return Add(*map(cyclic, matrix.args))
    matrices, scalars = sift(_factors(matrix), is_matrix, binary=True)
    if len(matrices) > 2 and matrices[0] == matrices[1]:
        matrices = [*matrices[1:], matrices[0]]
    return Mul(*scalars) * Trace(MatMul(*matrices) if matrices else Identity(matrix.shape[0]))


def _factors(matrix: Any) -> list[Any]:
    """Factors of nested products, without identities."""
    if isinstance(matrix, MatMul):
        return [factor for a in matrix.args for factor in _factors(a)]
    return [] if isinstance(matrix, Identity) else [matrix]


def _total(terms: Iterable[Any]) -> Any:
    terms = list(terms)
    if not terms:
        return None
    return MatAdd(*terms).doit(deep=False) if is_matrix(terms[0]) else Add(*terms)


def jacobian(expression: Any, vector: TokenMatrix) -> Any:
    """``J`` with ``d expression = J dX`` for a column ``X`` that no token carries."""
    change = differential(expression, vector)
    if change is None:
        return ZeroMatrix(expression.shape[0], vector.shape[0])
    expanded = change.expand()
    terms = expanded.args if isinstance(expanded, MatAdd) else (expanded,)
    return MatAdd(*(_without_last(term, differential_symbol(vector)) for term in terms)).doit()


def _without_last(term: Any, change: TokenMatrix) -> Any:
    """The matrix in front of the differential."""
    *factors, last = _factors(term)
    if last != change or any(depends_on(a, change) for a in factors):
        raise TypeError(f"cannot read a Jacobian off {type(term).__name__}")
    return MatMul(*factors, Identity(change.shape[0]))


# --- from a differential to a gradient ----------------------------------------------------------------------------


def gradient(expression: Any, family: TokenMatrix) -> MatrixExpr:
    """``G_l`` with ``d expression = sum_l Tr(G_l^T dX_l)``, in the index of ``family``; symmetrised if ``X`` is."""
    change = differential(expression, family)
    if change is None:
        return ZeroMatrix(*family.shape)
    total = _total(_collect(change, family))
    assert total is not None
    return symmetrized(total) if family.symmetric else total


def symmetrized(matrix: MatrixExpr) -> MatrixExpr:
    """``(G + G^T)/2``, returned as it is when it is symmetric term by term."""
    terms = matrix.args if isinstance(matrix, MatAdd) else (matrix,)
    if all(transposed(t) == t for t in terms):
        return matrix
    return (matrix + transposed(matrix)) / 2


@singledispatch
def transposed(matrix: Any) -> Any:
    """The transpose, carried through sums, products and means."""
    return Transpose(matrix).doit()


@transposed.register
def _(matrix: Operator) -> Any:
    return matrix.apply(transposed(matrix.body))


@transposed.register
def _(matrix: MatAdd) -> Any:
    return MatAdd(*(transposed(a) for a in matrix.args))


@transposed.register
def _(matrix: MatMul) -> Any:
    scalars = [a for a in matrix.args if not is_matrix(a)]
    return MatMul(*scalars, *(transposed(a) for a in reversed(matrix.args) if is_matrix(a)))


@transposed.register
def _(matrix: Inverse) -> Any:
    return Inverse(transposed(matrix.arg))


@transposed.register
def _(matrix: Transpose) -> Any:
    return matrix.arg


@transposed.register
def _(matrix: MatrixSqrt) -> Any:
    return matrix


@singledispatch
def _collect(expression: Any, family: TokenMatrix) -> list[Any]:
    """Gradient terms of a scalar that is linear in the differentials of ``family``."""
    raise TypeError(f"cannot read a gradient off {type(expression).__name__}")


@_collect.register
def _(sum_: Add, family: TokenMatrix) -> list[Any]:
    return [term for a in sum_.args for term in _collect(a, family)]


@_collect.register
def _(product: Mul, family: TokenMatrix) -> list[Any]:
    inner = [a for a in product.args if depends_on(a, differential_symbol(family))]
    outer = Mul(*(a for a in product.args if a not in inner))
    if len(inner) != 1:
        raise TypeError("a differential must enter every term exactly once")
    return [outer * term for term in _collect(inner[0], family)]


@_collect.register
def _(total: TokenSum, family: TokenMatrix) -> list[Any]:
    body, kept = _opened(total, family)
    terms = _collect(body, family)
    return terms if kept is None else [TokenSum.of(term, kept) for term in terms]


@_collect.register
def _(operator: Operator, family: TokenMatrix) -> list[Any]:
    return [operator.apply(term) for term in _collect(operator.body, family)]


@_collect.register
def _(trace: Trace, family: TokenMatrix) -> list[Any]:
    terms = trace.arg.args if isinstance(trace.arg, MatAdd) else (trace.arg,)
    return [term for a in terms for term in _rotate(a, family)]


def _opened(total: Any, family: TokenMatrix) -> tuple[Any, Any]:
    """Body of a token sum around a differential, and the index of the sum if it stays.

    A sum over the differential's own index disappears: its index becomes the free one of the gradient. Any other sum
    stays, under a new index, so that it captures nothing it is moved across.
    """
    if _carries(total.body, differential_symbol(family), total.index):
        return _renamed(total.body, total.index, family.index), None
    fresh = Dummy(str(total.index), integer=True)
    return _renamed(total.body, total.index, fresh), fresh


@singledispatch
def _carries(expression: Any, change: TokenMatrix, index: Any) -> bool:
    """Whether ``dX_index`` stands free in an expression, not under a sum of its own."""
    return any(_carries(a, change, index) for a in getattr(expression, "args", ()))


@_carries.register
def _(symbol: TokenMatrix, change: TokenMatrix, index: Any) -> bool:
    return symbol.name == change.name and symbol.index == index


@_carries.register
def _(total: TokenSum, change: TokenMatrix, index: Any) -> bool:
    return total.index != index and _carries(total.body, change, index)


def _renamed(expression: Any, old: Any, new: Any) -> Any:
    """Substitute a free index, leaving sums over the same symbol alone and moving sums over the new one aside."""
    return new if expression == old else _renamed_inside(expression, old, new)


@singledispatch
def _renamed_inside(expression: Any, old: Any, new: Any) -> Any:
    if not getattr(expression, "args", ()):
        return expression
    return expression.func(*(_renamed(a, old, new) for a in expression.args))


@_renamed_inside.register
def _(total: TokenSum, old: Any, new: Any) -> Any:
    body, index = total.body, total.index
    if index == old:
        return total
    if index == new:
        fresh = Dummy(str(index), integer=True)
        body, index = _renamed(body, index, fresh), fresh
    return TokenSum.of(_renamed(body, old, new), index)


def _rotate(matrix: Any, family: TokenMatrix) -> list[Any]:
    """``Tr(A dX B) -> (B A)^T`` and ``Tr(A dX^T B) -> B A``, opening sums and operators around ``dX``."""
    change = differential_symbol(family)
    factors: list[Any] = list(matrix.args) if isinstance(matrix, MatMul) else [matrix]
    positions = [i for i, f in enumerate(factors) if depends_on(f, change)]
    if len(positions) != 1:
        raise TypeError("a differential must enter every term exactly once")
    (i,) = positions
    factor, before, after = factors[i], factors[:i], factors[i + 1 :]
    if not is_matrix(factor):
        rest = Trace(MatMul(*before, *after))
        return [rest * term for term in _collect(factor, family)]
    return _rotate_around(factor, before, after, family)


@singledispatch
def _rotate_around(factor: Any, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    """Gradient terms of ``Tr(before factor after)`` by what the matrix with the differential is."""
    raise TypeError(f"cannot read a gradient off {type(factor).__name__}")


@_rotate_around.register
def _(factor: TokenMatrix, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    scalars, rest = _behind(before, after)
    return [MatMul(*scalars, *map(transposed, reversed(rest))) if rest else _multiple(scalars, factor)]


@_rotate_around.register
def _(factor: Transpose, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    if not isinstance(factor.arg, TokenMatrix):
        return _rotate(MatMul(*before, transposed(factor.arg), *after), family)
    scalars, rest = _behind(before, after)
    return [MatMul(*scalars, *rest) if rest else _multiple(scalars, factor)]


@_rotate_around.register
def _(factor: MatMul, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    return _rotate(MatMul(*before, *factor.args, *after), family)


@_rotate_around.register
def _(factor: MatAdd, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    inner = [a for a in factor.args if depends_on(a, differential_symbol(family))]
    return [term for a in inner for term in _rotate(MatMul(*before, a, *after), family)]


@_rotate_around.register
def _(factor: TokenSum, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    body, kept = _opened(factor, family)
    terms = _rotate(MatMul(*before, body, *after), family)
    return terms if kept is None else [TokenSum.of(term, kept) for term in terms]


@_rotate_around.register
def _(factor: Operator, before: list[Any], after: list[Any], family: TokenMatrix) -> list[Any]:
    raise TypeError("a mean must not stand inside the trace of a differential")


def _behind(before: list[Any], after: list[Any]) -> tuple[list[Any], list[Any]]:
    """Scalars, and the matrices that stand behind the differential when it is rotated to the front."""
    around = [*after, *before]
    return [a for a in around if not is_matrix(a)], [a for a in around if is_matrix(a)]


def _multiple(scalars: list[Any], matrix: Any) -> Any:
    return Mul(*scalars) * Identity(matrix.shape[0])


# --- stationarity conditions --------------------------------------------------------------------------------------


def solve_linear(expression: MatrixExpr, unknown: TokenMatrix) -> MatrixExpr:
    """Solve ``expression = 0`` for ``unknown``, which must stand alone with a numerical coefficient in one term."""
    terms = list(expression.args) if isinstance(expression, MatAdd) else [expression]
    coefficient, rest = S.Zero, []
    for term in terms:
        scalar, matrix = term.as_coeff_mmul() if isinstance(term, MatMul) else (S.One, term)
        if matrix == unknown or matrix == MatMul(unknown):
            coefficient += scalar
        else:
            rest.append(term)
    if coefficient == 0 or not coefficient.is_number:
        raise TypeError(f"{unknown} does not stand alone in the stationarity condition")
    return _scaled(_total(rest), -1 / coefficient)


def _scaled(matrix: Any, factor: Any) -> Any:
    if matrix is None:
        raise TypeError("the stationarity condition has no other term")
    if isinstance(matrix, MatAdd):
        return MatAdd(*(_scaled(a, factor) for a in matrix.args))
    scalar, rest = _scalar_part(matrix)
    scalar = expand_mul(scalar * factor)
    if isinstance(rest, Operator):
        inner_scalar, inner = _scalar_part(rest.body)
        number, symbols = inner_scalar.as_coeff_Mul()
        rest = rest.apply(symbols * inner if symbols != 1 else inner)
        scalar *= number
    return rest if scalar == 1 else MatMul(scalar, rest)


def _scalar_part(matrix: Any) -> tuple[Any, Any]:
    if isinstance(matrix, MatMul):
        scalars = [a for a in matrix.args if not is_matrix(a)]
        rest = [a for a in matrix.args if is_matrix(a)]
        return Mul(*scalars), rest[0] if len(rest) == 1 else MatMul(*rest)
    return S.One, matrix
