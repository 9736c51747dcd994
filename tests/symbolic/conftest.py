"""The meaning of every node at concrete sizes, with SymPy's explicit matrices."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from sympy import Add, Expr, Indexed, Integer, Matrix, Mul, Pow, Rational, Symbol, eye, zeros
from sympy.matrices.expressions import (
    Identity,
    Inverse,
    MatAdd,
    MatMul,
    MatPow,
    Trace,
    Transpose,
    ZeroMatrix,
)

from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum


@dataclass(frozen=True)
class Explicit:
    """Evaluates node expressions.

    Attributes
    ----------
    length : int
        Number of tokens.
    sizes : mapping
        Values of symbolic dimensions and other scalars, by name.
    values : mapping
        A matrix, or a list of one matrix (or scalar) per token, by name.
    atoms, samples : sequences of (weight, values)
        What spectral and field means run over; the values are added to `values`.
    roots : mapping
        Square roots of expressions, a matrix or one per token, so that rational numbers stay rational.
    handlers : mapping of type to callable
        ``handler(node, evaluate, bound)`` for further nodes.
    """

    length: int
    sizes: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    atoms: tuple[tuple[Any, Mapping[str, Any]], ...] = ()
    samples: tuple[tuple[Any, Mapping[str, Any]], ...] = ()
    roots: Mapping[Any, Any] = field(default_factory=dict)
    handlers: Mapping[type, Callable[..., Any]] = field(default_factory=dict)

    def given(self, **values: Any) -> "Explicit":
        """The same with other values."""
        return replace(self, values={**self.values, **values})

    def size(self, dimension: Any) -> int:
        return int(self(dimension))

    def mean(self, body: Any, nodes: Iterable[tuple[Any, Mapping[str, Any]]], bound: Mapping[Any, int]) -> Any:
        terms = [weight * self.given(**values)(body, bound) for weight, values in nodes]
        return sum(terms[1:], terms[0])

    def __call__(self, e: Any, bound: Mapping[Any, int] | None = None) -> Any:
        bound = bound or {}

        def inner(a: Any) -> Any:
            return self(a, bound)

        for kind, handler in self.handlers.items():
            if isinstance(e, kind):
                return handler(e, self, bound)
        if isinstance(e, TokenMatrix):
            value = self.values[e.name]
            if e.index is None:
                return value
            return value[token_of(e.index, bound)]
        if isinstance(e, TokenSum):
            index = e.index
            terms = [self(e.body, {**bound, index: token}) for token in range(self.length)]
            return sum(terms[1:], terms[0])
        if isinstance(e, SpectralMean):
            return self.mean(e.body, self.atoms, bound)
        if isinstance(e, FieldMean):
            return self.mean(e.body, self.samples, bound)
        if isinstance(e, MatrixSqrt):
            root, (family, *_) = self.roots[e.args[0]], e.atoms(TokenMatrix)
            return root if family.index is None else root[token_of(family.index, bound)]
        if isinstance(e, Trace):
            return inner(e.arg).trace()
        if isinstance(e, Inverse):
            return inner(e.arg).inv(method="ADJ")
        if isinstance(e, Transpose):
            return inner(e.arg).T
        if isinstance(e, Identity):
            return eye(self.size(e.shape[0]))
        if isinstance(e, ZeroMatrix):
            return zeros(self.size(e.shape[0]), self.size(e.shape[1]))
        if isinstance(e, (MatAdd, Add)):
            terms = [inner(a) for a in e.args]
            return sum(terms[1:], terms[0])
        if isinstance(e, (MatMul, Mul)):
            result = Integer(1)
            for a in e.args:
                result = result * inner(a)
            return result
        if isinstance(e, (Pow, MatPow)):
            return inner(e.base) ** e.exp
        if isinstance(e, Indexed):
            return self.values[str(e.base)][token_of(e.indices[0], bound)]
        if isinstance(e, Symbol):
            return self.sizes.get(e.name, e)
        if isinstance(e, Expr) and e.is_number:
            return e
        raise AssertionError(f"the tests give no meaning to {type(e).__name__}")


def token_of(index: Any, bound: Mapping[Any, int]) -> int:
    """The token that an index stands for: bound by a sum or given, or a number."""
    return int(bound.get(index, index))


class RationalDraw:
    """Random rational matrices: exact arithmetic, and no entry at a special value."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self) -> Any:
        sign = 1 if self.rng.random() < 0.5 else -1
        return sign * Rational(int(self.rng.integers(2, 40)), 29)

    def matrix(self, rows: int, columns: int, *, symmetric: bool = False) -> Any:
        full = Matrix(rows, columns, lambda i, j: self.number())
        return (full + full.T) / 2 if symmetric else full

    def positive(self, size: int) -> Any:
        factor = self.matrix(size, size)
        return factor * factor.T / size + Rational(3, 7) * eye(size)

    def per_token(self, length: int, rows: int, columns: int, *, symmetric: bool = False) -> list[Any]:
        return [self.matrix(rows, columns, symmetric=symmetric) for _ in range(length)]


@pytest.fixture(scope="session")
def explicit() -> type[Explicit]:
    """The evaluator of node expressions at concrete sizes."""
    return Explicit


@pytest.fixture(scope="session")
def rational() -> type[RationalDraw]:
    """Random rational matrices from a seed."""
    return RationalDraw
