"""The meaning of every node of the derivations at concrete sizes, with SymPy's explicit matrices.

Not public: nodes of `derivations.algebra`, whose meaning this states a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sympy import Add, Indexed, Integer, Matrix, Mul, Number, NumberSymbol, Pow, Rational, Symbol, eye, zeros
from sympy.matrices.expressions import Identity, Inverse, MatAdd, MatMul, MatPow, Trace, Transpose, ZeroMatrix

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum


@dataclass(frozen=True)
class Explicit:
    """Evaluates node expressions.

    `values` has a matrix, or a list of one matrix (or scalar) per token, by name; `sizes` has symbolic dimensions and
    scalars.  Spectral and field means run over `atoms` and `samples`, pairs of a weight and values to be added.
    `roots` has square roots of expressions, so that rational numbers stay rational; `handlers` add further nodes.
    """

    length: int
    sizes: Mapping[str, Any]
    values: Mapping[str, Any] = field(default_factory=dict)
    atoms: tuple[tuple[Any, Mapping[str, Any]], ...] = ()
    samples: tuple[tuple[Any, Mapping[str, Any]], ...] = ()
    roots: Mapping[Any, Any] = field(default_factory=dict)
    handlers: Mapping[type, Callable[..., Any]] = field(default_factory=dict)

    def given(self, **values: Any) -> Explicit:
        """The same with other values."""
        return replace(self, values={**self.values, **values})

    def mean(self, body: Any, nodes: Any, bound: Mapping[Any, int]) -> Any:
        return _sum(weight * self.given(**values)(body, bound) for weight, values in nodes)

    def __call__(self, e: Any, bound: Mapping[Any, int] | None = None) -> Any:
        bound = bound or {}
        tokens: dict[Any, Any] = {**bound}

        def inner(a: Any) -> Any:
            return self(a, bound)

        def token(index: Any) -> int:
            return int(tokens.get(index, index))

        meanings: dict[Any, Callable[[], Any]] = {
            TokenMatrix: lambda: self.values[e.name] if e.index is None else self.values[e.name][token(e.index)],
            TokenSum: lambda: _sum(self(e.body, {**bound, e.index: one}) for one in range(self.length)),
            SpectralMean: lambda: self.mean(e.body, self.atoms, bound),
            FieldMean: lambda: self.mean(e.body, self.samples, bound),
            MatrixSqrt: lambda: self.roots[e.args[0]],
            Trace: lambda: inner(e.arg).trace(),
            Inverse: lambda: inner(e.arg).inv(method="ADJ"),
            Transpose: lambda: inner(e.arg).T,
            Identity: lambda: eye(int(inner(e.shape[0]))),
            ZeroMatrix: lambda: zeros(*(int(inner(size)) for size in e.shape)),
            (MatAdd, Add): lambda: _sum(map(inner, e.args)),
            (MatMul, Mul): lambda: _product(map(inner, e.args)),
            (Pow, MatPow): lambda: inner(e.base) ** e.exp,
            Indexed: lambda: self.values[str(e.base)][token(e.indices[0])],
            Symbol: lambda: self.sizes.get(e.name, e),
        }
        for kind, handler in self.handlers.items():
            if isinstance(e, kind):
                return handler(e, self, bound)
        for kinds, meaning in meanings.items():
            if isinstance(e, kinds):
                return meaning()
        assert isinstance(e, Number | NumberSymbol), f"the tests give no meaning to {type(e).__name__}"
        return e


def _sum(terms: Any) -> Any:
    first, *others = terms
    return sum(others, first)


def _product(factors: Any) -> Any:
    result: Any = Integer(1)
    for one in factors:
        result = result * one
    return result


def jacobian_values(node: Any, evaluate: Explicit, bound: Mapping[Any, int]) -> Any:
    """A handler of `FieldHessian`: the values ``by_NAME`` at the token that is bound."""
    return evaluate.values[f"by_{node.args[1].name}"][bound.get(sym.ell, bound.get(sym.kappa, 0))]


class RationalDraw:
    """Random rational matrices: exact arithmetic, and no entry at a special value."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self) -> Any:
        sign = 1 if self.rng.random() < 0.5 else -1
        return sign * Rational(int(self.rng.integers(2, 40)), 29)

    def matrix(self, rows: int, columns: int, *, symmetric: bool = False) -> Any:
        full: Any = Matrix(rows, columns, lambda i, j: self.number())
        return (full + full.T) / 2 if symmetric else full

    def positive(self, size: int) -> Any:
        factor = self.matrix(size, size)
        return factor * factor.T / size + Rational(3, 7) * eye(size)

    def per_token(self, length: int, rows: int, columns: int, *, symmetric: bool = False) -> list[Any]:
        return [self.matrix(rows, columns, symmetric=symmetric) for _ in range(length)]

    def atoms(self, length: int, teacher_columns: int, *weights: Any) -> tuple[tuple[Any, dict[str, Any]], ...]:
        """Spectral atoms: variances and projections of each token, and the teacher's of the direction."""

        def atom() -> dict[str, Any]:
            gamma, tau = ([self.number() for _ in range(length)] for _ in range(2))
            return {"gamma": [abs(x) for x in gamma], "tau": tau, "pi": self.matrix(teacher_columns, 1)}

        return tuple((weight, atom()) for weight in weights)

    def residuals(self, L: int, r: int, t: int, *weights: Any) -> tuple[tuple[Any, dict[str, Any]], ...]:
        """Samples of residuals and of their Jacobians."""

        def sample() -> dict[str, Any]:
            by = {"by_omega": self.per_token(L, r, r, symmetric=True), "by_k": self.per_token(L, r, t)}
            return {"g": self.per_token(L, r, 1), **by}

        return tuple((weight, sample()) for weight in weights)
