"""Differentiation of matrix expressions.

SymPy's own matrix derivatives return 0 without a word for functions they do not know (``log(Determinant(A))``), and
cannot sum over an index that is also carried by a matrix.  Here differentiation goes through *differentials*:
``d f = sum_l Tr(G_l^T dX_l)`` is computed by the product rule and the rules of the nodes, and the gradient ``G_l`` is
read off after rotating ``dX_l`` to the end of every trace.  Each pass over an expression chooses its rule by the type
of the node; a node without a rule raises `TypeError` with its name.

Convention for symmetric ``X``: the gradient is the symmetric ``G`` with ``df = Tr(G dX)`` for symmetric ``dX``.  An
off-diagonal entry varied alone (both mirror images at once) therefore has derivative ``2 G_ab``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from sympy import Add, Dummy, Expr, Mul, S, expand_mul
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose, ZeroMatrix

from derivations.algebra.means import FieldMean, LawMean
from derivations.algebra.minima import FieldHessian, MoreauEnvelope, RowMinimum
from derivations.algebra.tokens import MatrixEntry, Operator, TokenMatrix, TokenSum, is_matrix, operands

__all__ = [
    "change",
    "depends_on",
    "differential",
    "differential_symbol",
    "gradient",
    "solve_linear",
    "symmetrized",
    "transposed",
]


# --- what an expression depends on --------------------------------------------------------------------------------


@singledispatch
def depends_on(expression: Any, family: TokenMatrix) -> bool:
    """Whether ``family`` stands in an expression, or in the law that one of its means is taken over."""
    return any(depends_on(a, family) for a in getattr(expression, "args", ()))


@depends_on.register
def _(expression: TokenMatrix, family: TokenMatrix) -> bool:
    return expression.name == family.name


@depends_on.register
def _(expression: MatrixEntry, family: TokenMatrix) -> bool:
    return expression.family == family.name


# --- differentials ------------------------------------------------------------------------------------------------


def differential(expression: Any, family: TokenMatrix) -> Any:
    """First-order change of ``expression`` when every ``X_l`` of ``family`` changes by ``dX_l``; None if it is zero.

    Raises
    ------
    TypeError
        A node has no derivative rule: never a silent zero.
    """
    return change(expression, family) if depends_on(expression, family) else None


def differential_symbol(symbol: TokenMatrix) -> TokenMatrix:
    """``dX`` of a matrix ``X``."""
    return TokenMatrix(
        f"d_{symbol.name}", *symbol.shape, symbol.index, symmetric=symbol.symmetric, latex=f"d{symbol.latex_name}"
    )


@singledispatch
def change(expression: Any, family: TokenMatrix) -> Any:
    """The differential of an expression that depends on ``family``, by the rule of its node."""
    raise TypeError(f"no derivative rule for the node {type(expression).__name__}")


@change.register
def _(symbol: TokenMatrix, family: TokenMatrix) -> Any:
    return differential_symbol(symbol)


@change.register(Add)
@change.register(MatAdd)
def _(sum_: Any, family: TokenMatrix) -> Any:
    return _total(d for a in sum_.args if (d := differential(a, family)) is not None)


@change.register(Mul)
@change.register(MatMul)
def _(product: Any, family: TokenMatrix) -> Any:
    terms = []
    for i, factor in enumerate(product.args):
        change = differential(factor, family)
        if change is not None:
            terms.append(type(product)(*product.args[:i], change, *product.args[i + 1 :]))
    return _total(terms)


@change.register(Transpose)
@change.register(Trace)
def _(linear: Any, family: TokenMatrix) -> Any:
    return type(linear)(differential(linear.arg, family))


@change.register
def _(inverse: Inverse, family: TokenMatrix) -> Any:
    return -1 * inverse * differential(inverse.arg, family) * inverse


@change.register
def _(operator: Operator, family: TokenMatrix) -> Any:
    return operator.apply(differential(operator.body, family))


@change.register
def _(mean: LawMean, family: TokenMatrix) -> Any:
    if not depends_on(mean.law, family):
        return mean.apply(differential(mean.body, family))
    if isinstance(mean, FieldMean) and isinstance(mean.body, MoreauEnvelope):
        return _price(mean, family)
    over = "fields" if isinstance(mean, FieldMean) else "weights"
    raise TypeError(f"no derivative rule in {family.name} for the mean of {type(mean.body).__name__} over {over}")


@change.register
def _(minimum: RowMinimum, family: TokenMatrix) -> Any:
    return minimum.change(*(differential(a, family) for a in operands(minimum)[:3]))


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
    moved = differential_symbol(family).xreplace({family.index: omega.index})
    return TokenSum.of(Trace(Transpose(mean.apply(rates[family.name])) * moved), omega.index)


def _total(terms: Iterable[Any]) -> Any:
    terms = list(terms)
    if not terms:
        return None
    return MatAdd(*terms).doit(deep=False) if is_matrix(terms[0]) else Add(*terms)


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
