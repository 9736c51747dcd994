"""Matrices carried by tokens, sums over tokens, and what every linear operation on an expression has in common."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from sympy import Add, Expr, Integer, S, Symbol, sympify
from sympy.core.symbol import Str
from sympy.matrices.expressions import MatAdd, MatrixExpr

__all__ = [
    "Block",
    "DirectionSum",
    "MatrixEntry",
    "MatrixSqrt",
    "Operator",
    "SampleSum",
    "TokenMatrix",
    "TokenSum",
    "bracketed",
    "is_matrix",
    "operands",
]


def operands(node: Any) -> tuple[Any, ...]:
    """Arguments of a node.  SymPy types every argument as `Basic`; a node knows more about its own."""
    return node.args


def is_matrix(expression: Any) -> bool:
    """Whether an expression is a matrix, and not a number."""
    return bool(getattr(expression, "is_Matrix", False))


def bracketed(body: Any, printer: Any) -> str:
    """LaTeX of what stands behind an operator: sums in brackets."""
    text = printer._print(body)
    return rf"\left({text}\right)" if isinstance(body, (Add, MatAdd)) else text


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
        if self.index is None:
            return self.latex_name
        name, _, subscript = self.latex_name.partition("_")
        index = printer._print(self.index)
        return rf"{name}_{{{subscript}, {index}}}" if subscript else rf"{name}_{{{index}}}"


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
        inner = self.args[0]
        text = printer._print(inner)
        return rf"{text}^{{1/2}}" if isinstance(inner, TokenMatrix) else rf"\left({text}\right)^{{1/2}}"


class Operator:
    """A linear operation on an expression: a sum over tokens or a mean.  Subclasses print it.

    SymPy knows scalars and matrices by their classes: every operation has one of each, made with it and named after it.
    """

    kinds: ClassVar[tuple[type, type]]
    usual: ClassVar[tuple[Any, ...]] = ()  # what an operation takes besides the body, where it is not said

    def __init_subclass__(cls) -> None:
        """Make the scalar and the matrix kind of an operation, where SymPy and pickle look for them."""
        super().__init_subclass__()
        if issubclass(cls, Expr):
            return
        home = sys.modules[cls.__module__]
        made = []
        for name, base in ((f"Scalar{cls.__name__}", Expr), (f"Matrix{cls.__name__}", MatrixExpr)):
            made.append(type(name, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__}))
            setattr(home, name, made[-1])
        cls.kinds = made[0], made[1]

    @classmethod
    def of(cls, body: Any, *rest: Any) -> Any:
        """The operation on a scalar or on a matrix; ``rest`` is what else it takes."""
        return cls.kinds[is_matrix(body)](body, *(rest or cls.usual))

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


class TokenSum(Operator):
    """Sum over the tokens: ``TokenSum.of(body, index)``."""

    @property
    def index(self) -> Any:
        """The index that is summed over."""
        return operands(self)[1]

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\sum_{{{printer._print(self.index)}}} {bracketed(self.body, printer)}"


class SampleSum(Operator):
    """Sum over the samples of a data set."""

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\sum_{{\mu}} {bracketed(self.body, printer)}"


class DirectionSum(Operator):
    """Sum over the d directions of the weights."""

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\sum_{{i}} {bracketed(self.body, printer)}"


class Block(MatrixExpr):
    """The diagonal block of a token in a matrix of the fields of all tokens."""

    def __new__(cls, matrix: MatrixExpr, index: Any, size: Any) -> Block:
        """Take the matrix, the token's index and the number of its rows."""
        return super().__new__(cls, matrix, sympify(index), sympify(size))

    @property
    def shape(self) -> tuple[Any, Any]:
        """Rows and columns."""
        return operands(self)[2], operands(self)[2]

    def _entry(self, i: Any, j: Any, **kwargs: Any) -> Expr:
        return Symbol(f"block_{self.args[1]}_{i}{j}", real=True)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        matrix, index = map(printer._print, operands(self)[:2])
        return rf"\left[{matrix}\right]_{{{index} {index}}}"
