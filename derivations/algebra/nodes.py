"""Opaque matrix nodes, each with its derivative rule, and matrix differentiation built on them.

SymPy's own matrix derivatives return 0 without a word for functions they do not know (``log(Determinant(A))``), and
cannot sum over an index that is also carried by a matrix.  Here differentiation goes through *differentials*:
``d f = sum_l Tr(G_l^T dX_l)`` is computed by the product rule and the rules of the nodes, and the gradient ``G_l`` is
read off after rotating ``dX_l`` to the end of every trace.  A node without a rule raises `TypeError`.

Convention for symmetric ``X``: the gradient is the symmetric ``G`` with ``df = Tr(G dX)`` for symmetric ``dX``.  An
off-diagonal entry varied alone (both mirror images at once) therefore has derivative ``2 G_ab``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sympy import Add, Dummy, Expr, Integer, Mul, S, Symbol, expand_mul, sympify
from sympy.core.symbol import Str
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatrixExpr, Trace, Transpose, ZeroMatrix

__all__ = [
    "CommonGaussianMoment",
    "FieldHessian",
    "FieldMean",
    "LogPartitionMean",
    "MatrixSqrt",
    "MoreauEnvelope",
    "QuadraticMinimum",
    "ReplicatedMoment",
    "RowMinimum",
    "RowPenalty",
    "SpectralMean",
    "TokenMatrix",
    "TokenSum",
    "WeightMean",
    "differential",
    "gradient",
    "operands",
    "solve_linear",
    "symmetrized",
    "transposed",
]


def operands(node: Any) -> tuple[Any, ...]:
    """Arguments of a node.  SymPy types every argument as `Basic`; a node knows more about its own."""
    return node.args


class MatrixEntry(Symbol):
    """An entry ``name_index_ij`` of a `TokenMatrix`: for reading off, not for differentiating with respect to."""

    @property
    def family(self) -> str:
        """Name of the matrix."""
        return self.name.rsplit("_", 1)[0].removesuffix("_").split("_ell")[0].split("_kappa")[0]


class TokenMatrix(MatrixExpr):
    """A matrix symbol carried by a token (index) or by none (``index=None``).

    Parameters
    ----------
    name : str
        ASCII name, also the name in generated code.
    rows, columns : int or Symbol
        Shape.
    index : Symbol, int or None
        Token index.
    symmetric : bool
        Whether the transpose equals the matrix.
    latex : str
        Printed name without index.
    """

    def __new__(
        cls,
        name: Any,
        rows: Any,
        columns: Any,
        index: Any,
        *flags: Any,
        symmetric: bool = False,
        latex: str | None = None,
    ) -> TokenMatrix:
        """Build the symbol; SymPy rebuilds it from ``args``, with two positional ``flags``."""
        if not flags:
            flags = (S.true if symmetric else S.false, Str(latex if latex is not None else str(name)))
        label = name if isinstance(name, Str) else Str(str(name))
        index = Str("") if index is None else sympify(index)
        return super().__new__(cls, label, sympify(rows), sympify(columns), index, *flags)

    @property
    def name(self) -> str:
        """ASCII name."""
        return operands(self)[0].name

    @property
    def index(self) -> Any:
        """Token index, or None."""
        return None if isinstance(self.args[3], Str) else self.args[3]

    @property
    def symmetric(self) -> bool:
        """Whether the transpose equals the matrix."""
        return bool(self.args[4])

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        return self.args[1], self.args[2]

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        suffix = "" if self.index is None else f"_{self.index}"
        if self.symmetric and isinstance(i, (int, Integer)) and isinstance(j, (int, Integer)):
            i, j = min(int(i), int(j)), max(int(i), int(j))
        return MatrixEntry(f"{self.name}{suffix}_{i}{j}", real=True)

    def _eval_transpose(self) -> Any:
        return self if self.symmetric else None

    def _sympystr(self, printer: Any) -> str:
        return self.name if self.index is None else f"{self.name}[{printer._print(self.index)}]"

    @property
    def latex_name(self) -> str:
        """The printed name without the token index."""
        return operands(self)[5].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        index = "" if self.index is None else f"_{{{printer._print(self.index)}}}"
        return self.latex_name + index


class _Operator:
    """A linear operation on an expression: a sum over tokens or a mean.  Subclasses print it."""

    of: Callable[..., Any]

    @property
    def body(self) -> Any:
        """What is summed or averaged."""
        return operands(self)[0]

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns of the body."""
        return self.body.shape

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return self.apply(self.body[i, j])

    def apply(self, body: Any) -> Any:
        """The same operation on another body, scalar or matrix."""
        return type(self).of(body, *operands(self)[1:])


class TokenSum(_Operator):
    """Sum over the tokens; ``TokenSum.of(body, index)`` gives the scalar or the matrix kind."""

    @staticmethod
    def of(body: Any, index: Any) -> Any:
        """The sum of a scalar or of a matrix over ``index``."""
        return (MatrixTokenSum if _is_matrix(body) else ScalarTokenSum)(body, index)

    @property
    def index(self) -> Any:
        """The index that is summed over."""
        return operands(self)[1]

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\sum_{{{printer._print(self.index)}}} {_bracketed(self.body, printer)}"


class ScalarTokenSum(TokenSum, Expr):
    pass


class MatrixTokenSum(TokenSum, MatrixExpr):
    pass


class SpectralMean(_Operator):
    """Mean over the spectral measure ``nu(gamma, tau, pi)`` of equation (5)."""

    @staticmethod
    def of(body: Any) -> Any:
        """The mean of a scalar or of a matrix."""
        return (MatrixSpectralMean if _is_matrix(body) else ScalarSpectralMean)(body)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\int\!\mathrm{{d}}\nu\, {_bracketed(self.body, printer)}"


class ScalarSpectralMean(SpectralMean, Expr):
    pass


class MatrixSpectralMean(SpectralMean, MatrixExpr):
    pass


class FieldMean(_Operator):
    """Mean over the local fields of one sample.

    ``omega_l ~ N(m_l, q_l)`` and ``k_l`` are jointly Gaussian with covariance blocks ``q_l, theta_l, rho_l``,
    independent over tokens.  Its derivative rule is Price's theorem: with respect to a mean, the mean of the gradient;
    with respect to a covariance block, the mean of the Hessian block (half of it for a diagonal block).
    """

    @staticmethod
    def of(body: Any) -> Any:
        """The mean of a scalar or of a matrix."""
        return (MatrixFieldMean if _is_matrix(body) else ScalarFieldMean)(body)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}\left[{printer._print(self.body)}\right]"


class ScalarFieldMean(FieldMean, Expr):
    pass


class MatrixFieldMean(FieldMean, MatrixExpr):
    pass


class WeightMean(_Operator):
    """Mean over the effective noise ``z`` of one eigendirection, of functions of its row of weights ``w``."""

    @staticmethod
    def of(body: Any) -> Any:
        """The mean of a scalar or of a matrix."""
        return (MatrixWeightMean if _is_matrix(body) else ScalarWeightMean)(body)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}_z\left[{printer._print(self.body)}\right]"


class ScalarWeightMean(WeightMean, Expr):
    pass


class MatrixWeightMean(WeightMean, MatrixExpr):
    pass


class MatrixSqrt(MatrixExpr):
    """Symmetric square root of a positive definite matrix; derivatives never reach it in this theory."""

    def __new__(cls, matrix: MatrixExpr) -> MatrixSqrt:
        """Take the matrix."""
        return super().__new__(cls, matrix)

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        return operands(self)[0].shape

    def _eval_transpose(self) -> Any:
        return self

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return Symbol(f"sqrt_{self.args[0]}_{i}{j}", real=True)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"{printer._print(self.args[0])}^{{1/2}}"


class MoreauEnvelope(Expr):
    """``M(omega, k) = min_h  1/2 sum_l (h_l - omega_l)^T V_l^-1 (h_l - omega_l) + loss(h, k)``.

    Envelope theorem: ``dM/d omega_l = -g_l`` and ``dM/dV_l = -1/2 g_l g_l^T`` with
    ``g_l = V_l^-1 (prox_l - omega_l)``, wherever the minimiser is unique.
    """

    def __new__(
        cls, omega: TokenMatrix, k: TokenMatrix, variance: TokenMatrix, residual: TokenMatrix
    ) -> MoreauEnvelope:
        """Take the fields, ``V`` and the symbol of ``g``."""
        return Expr.__new__(cls, omega, k, variance, residual)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return r"\mathcal{M}(\omega, k)"


class FieldHessian(MatrixExpr):
    """``d residual / d field^T``, the Jacobian of ``g_l`` in a local field of the same token.

    Never printed in results: Stein's lemma removes it, see `derivations.replica.saddle_point`.
    """

    def __new__(cls, residual: TokenMatrix, field: TokenMatrix) -> FieldHessian:
        """Take the symbols of ``g`` and of the field."""
        return super().__new__(cls, residual, field)

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        residual, field = operands(self)
        return residual.shape[0], field.shape[0]

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return Symbol(f"d{self.args[0]}_{i}_d{self.args[1]}_{j}", real=True)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\partial_{{{printer._print(self.args[1])}}} {printer._print(self.args[0])}"


class ReplicatedMoment(Expr):
    """``log E prod_a e^{-beta f(x^a)}`` over replicated Gaussian fields.

    The covariance is ``diagonal`` within a replica and ``off_diagonal`` between two: the n-replica channel or prior
    term before any ansatz is used.
    """

    def __new__(cls, side: Any, diagonal: Any, off_diagonal: Any, n: Any) -> ReplicatedMoment:
        """Take the side, "channel" or "prior", the covariances and the number of replicas."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side), diagonal, off_diagonal, sympify(n))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        # a moment depends on the matrices of all tokens: they are printed without an index
        d, o = (a.latex_name for a in operands(self)[1:3])
        name = {"channel": r"\Psi_y", "prior": r"\Psi_w"}[self.side]
        return rf"{name}^{{({printer._print(self.args[3])})}}\left[{d}, {o}\right]"


class CommonGaussianMoment(Expr):
    """``log E_common [ Z(common)^n ]``: the replicas factorised over the Gaussian they share."""

    def __new__(cls, side: Any, n: Any) -> CommonGaussianMoment:
        """Take the side, "channel" or "prior", and the number of replicas."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side), sympify(n))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        if self.side == "channel":
            return rf"\log \mathbb{{E}}\left[Z_y(\omega, k)^{{{printer._print(self.args[1])}}}\right]"
        return rf"\int\!\mathrm{{d}}\nu\, \log \mathbb{{E}}_z\left[Z_w(z)^{{{printer._print(self.args[1])}}}\right]"


class LogPartitionMean(Expr):
    """``E_common log Z(common)`` at inverse temperature beta: what remains of the moment at linear order in n."""

    def __new__(cls, side: Any) -> LogPartitionMean:
        """Take the side, "channel" or "prior"."""
        return Expr.__new__(cls, side if isinstance(side, Str) else Str(side))

    @property
    def side(self) -> str:
        """The channel's moment or the prior's."""
        return operands(self)[0].name

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        if self.side == "channel":
            return r"\mathbb{E}\left[\log Z_y(\omega, k)\right]"
        return r"\int\!\mathrm{d}\nu\, \mathbb{E}_z\left[\log Z_w(z)\right]"


class QuadraticMinimum(Expr):
    """``E_z min_w 1/2 w^T A w - (b + S^{1/2} z)^T w`` for ``z ~ N(0, I)``; `doit` completes the square.

    ``= -1/2 Tr[A^-1 (S + b b^T)]``.
    """

    def __new__(cls, curvature: MatrixExpr, source: MatrixExpr, noise: MatrixExpr) -> QuadraticMinimum:
        """Take ``A``, ``b`` and ``S``."""
        return Expr.__new__(cls, curvature, source, noise)

    def doit(self, **hints: Any) -> Expr:
        """The value of the minimum."""
        curvature, source, noise = operands(self)
        return -Trace(Inverse(curvature) * (noise + source * Transpose(source))) / 2

    @property
    def objective(self) -> Any:
        """What is minimised over ``w``, at given ``z``."""
        curvature, source, noise = operands(self)
        w, z = (TokenMatrix(name, source.shape[0], 1, None) for name in ("w", "z"))
        return MatAdd(
            MatMul(S.Half, Transpose(w), curvature, w),
            MatMul(-1, Transpose(MatAdd(source, MatMul(MatrixSqrt(noise), z))), w),
        )

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}_z \min_w \left\{{{printer._print(self.objective)}\right\}}"


class RowPenalty(Expr):
    """``r(w)``: the regulariser of one row of the weights."""

    def __new__(cls, weights: TokenMatrix) -> RowPenalty:
        """Take the symbol of ``w``."""
        return Expr.__new__(cls, weights)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"r\left({printer._print(self.args[0])}\right)"


class RowMinimum(Expr):
    """``E_z min_w r(w) + 1/2 w^T A w - (b + S^{1/2} z)^T w`` for ``z ~ N(0, I)`` and a convex regulariser ``r``.

    The envelope theorem gives ``1/2 E[w w^T]`` for its derivative in A and ``-E[w]`` for that in b; with S enters the
    covariance of a Gaussian field whose Hessian is ``-dw/db``, so by Price's theorem its derivative is
    ``-1/2 E[dw/db]``.
    """

    def __new__(
        cls, curvature: MatrixExpr, source: MatrixExpr, noise: MatrixExpr, weights: TokenMatrix, response: TokenMatrix
    ) -> RowMinimum:
        """Take ``A``, ``b``, ``S`` and the symbols of the minimiser and of its derivative in ``b``."""
        return Expr.__new__(cls, curvature, source, noise, weights, response)

    @property
    def objective(self) -> Any:
        """What is minimised over ``w`` besides the regulariser, at given ``z``."""
        return QuadraticMinimum(*operands(self)[:3]).objective

    def change(self, curvature: Any, source: Any, noise: Any) -> Any:
        """First-order change for given changes of A, b and S, each None where it vanishes."""
        weights, response = operands(self)[3:]
        terms = []
        if curvature is not None:
            terms.append(Trace(WeightMean.of(weights * Transpose(weights)) * curvature) / 2)
        if source is not None:
            terms.append(-Trace(Transpose(WeightMean.of(weights)) * source))
        if noise is not None:
            terms.append(-Trace(WeightMean.of(response) * noise) / 2)
        return Add(*terms)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        penalty = printer._print(RowPenalty(TokenMatrix("w", *operands(self)[3].shape, None)))
        return rf"\mathbb{{E}}_z \min_w \left\{{{penalty} + {printer._print(self.objective)}\right\}}"


def _is_matrix(expression: Any) -> bool:
    return bool(getattr(expression, "is_Matrix", False))


def _bracketed(body: Any, printer: Any) -> str:
    text = printer._print(body)
    return rf"\left({text}\right)" if isinstance(body, (Add, MatAdd)) else text


# --- differentials ------------------------------------------------------------------------------------------------


def _differential_symbol(symbol: TokenMatrix) -> TokenMatrix:
    return TokenMatrix(
        f"d_{symbol.name}", *symbol.shape, symbol.index, symmetric=symbol.symmetric, latex=f"d{symbol.latex_name}"
    )


def _in_family(symbol: Any, family: TokenMatrix) -> bool:
    return isinstance(symbol, TokenMatrix) and symbol.name == family.name


def differential(expression: Any, family: TokenMatrix) -> Any:
    """First-order change of ``expression`` when every ``X_l`` of ``family`` changes by ``dX_l``; None if it is zero.

    Raises
    ------
    TypeError
        A node has no derivative rule: never a silent zero.
    """
    if not _depends_on(expression, family):
        return None
    if _in_family(expression, family):
        return _differential_symbol(expression)
    if isinstance(expression, (Add, MatAdd)):
        return _total(d for a in expression.args if (d := differential(a, family)) is not None)
    if isinstance(expression, (Mul, MatMul)):
        terms = []
        for i, factor in enumerate(expression.args):
            change = differential(factor, family)
            if change is not None:
                terms.append(type(expression)(*expression.args[:i], change, *expression.args[i + 1 :]))
        return _total(terms)
    if isinstance(expression, Transpose):
        return Transpose(differential(expression.arg, family))
    if isinstance(expression, Trace):
        return Trace(differential(expression.arg, family))
    if isinstance(expression, Inverse):
        return -1 * expression * differential(expression.arg, family) * expression
    if isinstance(expression, FieldMean) and isinstance(expression.body, MoreauEnvelope):
        return _price(expression.body, family)
    if isinstance(expression, RowMinimum):
        return expression.change(*(differential(a, family) for a in operands(expression)[:3]))
    if isinstance(expression, FieldMean) and family.name in _LAW:
        raise TypeError(
            f"no derivative rule in {family.name} for the mean of {type(expression.body).__name__} over fields"
        )
    if isinstance(expression, _Operator):
        return expression.apply(differential(expression.body, family))
    raise TypeError(f"no derivative rule for the node {type(expression).__name__}")


def _price(envelope: MoreauEnvelope, family: TokenMatrix) -> Expr:
    """Price's theorem and the envelope theorem: differential of ``E[M]`` in one of the laws' parameters."""
    omega, k, variance, residual = operands(envelope)
    index = omega.index
    change = _differential_symbol(family).xreplace({family.index: index})
    if family.name == variance.name:
        rate = -residual * Transpose(residual) / 2
    elif family.name == "m":
        rate = -residual
    elif family.name == "q":
        rate = -FieldHessian(residual, omega) / 2
    elif family.name == "theta":
        rate = -FieldHessian(residual, k)
    else:
        raise TypeError(f"the mean over local fields has no derivative rule in {family.name}")
    return TokenSum.of(Trace(Transpose(FieldMean.of(rate)) * change), index)


# parameters of the law of the local fields, and everything that is integrated over in the opaque moments
_LAW = {"m", "q", "theta", "rho"}
_INTEGRATED = _LAW | {"V", "q_hat", "V_hat", "m_hat", "theta_hat"}


def _depends_on(expression: Any, family: TokenMatrix) -> bool:
    """Whether ``family`` stands in an expression, or in the law that one of its means is taken over."""
    if isinstance(expression, FieldMean) and family.name in _LAW:
        return True
    if (
        isinstance(expression, (ReplicatedMoment, CommonGaussianMoment, LogPartitionMean))
        and family.name in _INTEGRATED
    ):
        return True
    if isinstance(expression, MatrixEntry):
        return expression.family == family.name
    if _in_family(expression, family):
        return True
    return any(_depends_on(a, family) for a in getattr(expression, "args", ()))


def _total(terms: Iterable[Any]) -> Any:
    terms = list(terms)
    if not terms:
        return None
    return MatAdd(*terms).doit(deep=False) if _is_matrix(terms[0]) else Add(*terms)


# --- from a differential to a gradient -----------------------------------------------------------------------------


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


def transposed(matrix: Any) -> Any:
    """The transpose, carried through sums, products and means."""
    if isinstance(matrix, _Operator):
        return matrix.apply(transposed(matrix.body))
    if isinstance(matrix, MatAdd):
        return MatAdd(*(transposed(a) for a in matrix.args))
    if isinstance(matrix, MatMul):
        scalars = [a for a in matrix.args if not _is_matrix(a)]
        matrices = [transposed(a) for a in reversed(matrix.args) if _is_matrix(a)]
        return MatMul(*scalars, *matrices)
    if isinstance(matrix, Inverse):
        return Inverse(transposed(matrix.arg))
    if isinstance(matrix, Transpose):
        return matrix.arg
    return Transpose(matrix).doit()


def _collect(expression: Any, family: TokenMatrix) -> list[Any]:
    """Gradient terms of a scalar that is linear in the differentials of ``family``."""
    if isinstance(expression, Add):
        return [term for a in expression.args for term in _collect(a, family)]
    if isinstance(expression, Mul):
        inner = [a for a in expression.args if _depends_on(a, _differential_symbol(family))]
        outer = Mul(*(a for a in expression.args if a not in inner))
        if len(inner) != 1:
            raise TypeError("a differential must enter every term exactly once")
        return [outer * term for term in _collect(inner[0], family)]
    if isinstance(expression, TokenSum):
        body, kept = _opened(expression, family)
        terms = _collect(body, family)
        return terms if kept is None else [TokenSum.of(term, kept) for term in terms]
    if isinstance(expression, _Operator):
        return [expression.apply(term) for term in _collect(expression.body, family)]
    if isinstance(expression, Trace):
        return [term for a in _summands(expression.arg, family) for term in _rotate(a, family)]
    raise TypeError(f"cannot read a gradient off {type(expression).__name__}")


def _opened(total: Any, family: TokenMatrix) -> tuple[Any, Any]:
    """Body of a token sum around a differential, and the index of the sum if it stays.

    A sum over the differential's own index disappears: its index becomes the free one of the gradient. Any other sum
    stays, under a new index, so that it captures nothing it is moved across.
    """
    index = total.args[1]
    if _carries(total.body, _differential_symbol(family), index):
        return _renamed(total.body, index, family.index), None
    fresh = Dummy(str(index), integer=True)
    return _renamed(total.body, index, fresh), fresh


def _carries(expression: Any, change: TokenMatrix, index: Any) -> bool:
    """Whether ``dX_index`` stands free in an expression, not under a sum of its own."""
    if isinstance(expression, TokenSum) and expression.index == index:
        return False
    if _in_family(expression, change):
        return expression.index == index
    return any(_carries(a, change, index) for a in getattr(expression, "args", ()))


def _renamed(expression: Any, old: Any, new: Any) -> Any:
    """Substitute a free index, leaving sums over the same symbol alone and moving sums over the new one aside."""
    if expression == old:
        return new
    if isinstance(expression, TokenSum):
        body, index = operands(expression)
        if index == old:
            return expression
        if index == new:
            fresh = Dummy(str(index), integer=True)
            body, index = _renamed(body, index, fresh), fresh
        return TokenSum.of(_renamed(body, old, new), index)
    if not getattr(expression, "args", ()):
        return expression
    return expression.func(*(_renamed(a, old, new) for a in expression.args))


def _summands(matrix: Any, family: TokenMatrix) -> list[Any]:
    """Expand products over sums, but only around the factor that holds the differential."""
    if isinstance(matrix, MatAdd):
        return [s for a in matrix.args for s in _summands(a, family)]
    return [matrix]


def _rotate(matrix: Any, family: TokenMatrix) -> list[Any]:
    """``Tr(A dX B) -> (B A)^T`` and ``Tr(A dX^T B) -> B A``, opening sums and operators around ``dX``."""
    change = _differential_symbol(family)
    factors: list[Any] = list(matrix.args) if isinstance(matrix, MatMul) else [matrix]
    positions = [i for i, f in enumerate(factors) if _depends_on(f, change)]
    if len(positions) != 1:
        raise TypeError("a differential must enter every term exactly once")
    (i,) = positions
    factor, before, after = factors[i], factors[:i], factors[i + 1 :]
    if not _is_matrix(factor):
        rest = Trace(MatMul(*before, *after))
        return [rest * term for term in _collect(factor, family)]
    if isinstance(factor, (MatMul, MatAdd, TokenSum)) or (
        isinstance(factor, Transpose) and not _in_family(factor.arg, change)
    ):
        if isinstance(factor, TokenSum):
            body, kept = _opened(factor, family)
            terms = _rotate(MatMul(*before, body, *after), family)
            return terms if kept is None else [TokenSum.of(term, kept) for term in terms]
        if isinstance(factor, Transpose):
            inner = [transposed(factor.arg)]
        else:
            inner = list(factor.args) if isinstance(factor, MatAdd) else [factor]
            if isinstance(factor, MatMul):
                return _rotate(MatMul(*before, *factor.args, *after), family)
            inner = [a for a in inner if _depends_on(a, change)]
        return [term for a in inner for term in _rotate(MatMul(*before, a, *after), family)]
    if isinstance(factor, _Operator):
        raise TypeError("a mean must not stand inside the trace of a differential")
    scalars = [a for a in (*after, *before) if not _is_matrix(a)]
    rest = [a for a in (*after, *before) if _is_matrix(a)]
    if isinstance(factor, Transpose):
        result = MatMul(*scalars, *rest) if rest else Mul(*scalars) * Identity(factor.shape[0])
        return [result]
    result = (
        MatMul(*scalars, *(transposed(a) for a in reversed(rest)))
        if rest
        else Mul(*scalars) * Identity(factor.shape[0])
    )
    return [result]


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
    if isinstance(rest, _Operator):
        inner_scalar, inner = _scalar_part(rest.body)
        number, symbols = inner_scalar.as_coeff_Mul()
        rest = rest.apply(symbols * inner if symbols != 1 else inner)
        scalar *= number
    return rest if scalar == 1 else MatMul(scalar, rest)


def _scalar_part(matrix: Any) -> tuple[Any, Any]:
    if isinstance(matrix, MatMul):
        scalars = [a for a in matrix.args if not _is_matrix(a)]
        rest = [a for a in matrix.args if _is_matrix(a)]
        return Mul(*scalars), rest[0] if len(rest) == 1 else MatMul(*rest)
    return S.One, matrix
