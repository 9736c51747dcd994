"""What a model of the theory provides, whatever its loss: sizes, and the loss of one sample as one expression.

The symbols are those of `derivations.algebra.symbols`: fields ``h[a]`` and ``k[a]`` (``h[a, c]`` where there are
several columns), attention ``S[a, b]``, target ``T[a, b]``, all counted from 1.  Pages print a model's `definitions`;
generated code is made of the same expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Protocol

from sympy import Add, Integer, Sum, Symbol

from derivations.algebra import symbols as sym
from derivations.models.scores import RowScore

__all__ = [
    "Attention",
    "Definition",
    "Fields",
    "Model",
    "RowLoss",
    "composed",
    "field_symbols",
    "label_fields",
    "label_symbols",
    "numbered",
    "parameter_symbol",
    "teacher_fields",
    "written_out",
]

Fields = Sequence[Sequence[Any]]
"""Local fields of one sample, ``h[l][c]``."""


class Attention(Protocol):
    """A matrix whose rows are a score of logits that are bilinear in the fields."""

    @property
    def score(self) -> RowScore:
        """The function of a row of logits."""
        ...

    @property
    def causal(self) -> bool:
        """Whether row ``a`` has its entries ``b <= a`` only, the others being zero."""
        ...

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Columns (i, j) whose products ``h[a, i] h[b, j]`` add up to the logit (a, b)."""
        ...


@dataclass(frozen=True)
class RowLoss:
    """A loss that is a sum over the rows of the student's attention, and what its target is made of.

    Attributes
    ----------
    student, teacher : Attention
    loss : Expr
        Of row ``a``: of ``S[a, b]``, of what it is compared with, ``T[a, b]``, ``y_star[a]`` or ``C[a, b]``, of the
        variances ``rho[b]`` or the Gram matrix ``G[b, c]``, and of fields ``h[b, c]`` that make no logits.
    mixed : Expr
        The target's entry ``T[a, b]``, of the teacher's attention ``S_star[a, b]``, ``A[a, b]`` and omega.
    noise : Expr
        What is added to it for labels with noise, ``Z[a, b]``; else 0.
    labels : tuple of Definition
        What the student's outputs are compared with, if not with ``T`` or ``Y``; of one of these and ``k[b, c]``.
    """

    student: Attention
    teacher: Attention
    loss: Any
    mixed: Any
    noise: Any = 0
    labels: tuple[Definition, ...] = ()


class Model(Protocol):
    """What pages and generated code ask of a model."""

    @property
    def length(self) -> int:
        """Number L of tokens."""
        ...

    @property
    def columns(self) -> int:
        """Number r of columns of W."""
        ...

    @property
    def teacher_rank(self) -> int:
        """Number t of columns of the teacher's weights."""
        ...

    @property
    def noise_columns(self) -> int:
        """Entries of the labels' noise that belong to a token, which its fields ``k`` hold behind those of the teacher.

        A row of the noise ``Z[a, b]`` for every token ``a``; 0 for labels without noise, and where the noise is part of
        the teacher's fields.
        """
        ...

    @property
    def cluster_columns(self) -> int:
        """1 if the loss takes the numbers of the tokens' clusters, which stand behind the noise; else 0."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the loss's own numbers, in the order in which compiled code is given them."""
        ...

    @property
    def trained(self) -> tuple[str, ...]:
        """Those of them that are trained together with the weights."""
        ...

    @property
    def lift(self) -> tuple[int, ...]:
        """For every student column the teacher's column that a local minimisation may start from."""
        ...

    @property
    def has_grams(self) -> bool:
        """Whether the loss takes the sample's Gram matrix."""
        ...

    @property
    def rows(self) -> RowLoss | None:
        """The loss row by row; None for a loss without rows, which is differentiated entry by entry."""
        ...

    @property
    def has_kink(self) -> bool:
        """Whether the loss's gradient jumps somewhere in the student's fields."""
        ...

    @property
    def prox(self) -> Any:
        """``prox(omega, k, V)`` as pairs (value, condition), where a formula is known; else None."""
        ...

    def definitions(self, *, shifted: bool = False) -> tuple[Definition, ...]:
        """The loss of one sample, step by step, the loss last; ``shifted`` if the teacher's fields have means."""
        ...


def label_fields(model: Model) -> int:
    """How many numbers of a token labels are made of: the teacher's fields, the noise, and its cluster's number."""
    return model.teacher_rank + model.noise_columns + model.cluster_columns


def parameter_symbol(name: str) -> Any:
    """The symbol of one of a loss's own numbers, in LaTeX, so that it is none of the theory's."""
    return Symbol(rf"\mathtt{{{name}}}".replace("_", r"\_"), real=True)


def label_symbols(model: Model, fields: Fields) -> dict[Any, Any]:
    """What labels are made of, by the symbols of definitions: the teacher's fields, the noise, the clusters' numbers.

    Parameters
    ----------
    model : Model
    fields : nested sequence
        Of shape (L, `label_fields`).
    """
    rank, behind = model.teacher_rank, model.teacher_rank + model.noise_columns
    noise = {sym.noise[a, b]: entry for a, row in enumerate(fields, 1) for b, entry in enumerate(row[rank:behind], 1)}
    clusters = {sym.cluster[a]: entry for a, row in enumerate(fields, 1) for entry in row[behind:]}
    return field_symbols(sym.k, [row[:rank] for row in fields]) | noise | clusters


@dataclass(frozen=True)
class Definition:
    """``symbol = value`` for every row a and token b, where these indices are free in it.

    Attributes
    ----------
    symbol : Indexed or Symbol
    value : Expr
        Of symbols defined before, fields and parameters.
    """

    symbol: Any
    value: Any

    def each(self, length: int) -> Iterator[Definition]:
        """The definition for every row and token, of so many."""
        indices = [index for index in (sym.row, sym.token) if index in self.symbol.free_symbols]
        for numbers in product(range(1, length + 1), repeat=len(indices)):
            place = dict(zip(indices, map(Integer, numbers), strict=True))
            yield Definition(self.symbol.xreplace(place), self.value.xreplace(place))


def written_out(expression: Any) -> Any:
    """The expression with every sum as its terms, one after the other."""
    if not expression.args or not expression.has(Sum):
        return expression
    if not isinstance(expression, Sum):
        return expression.func(*map(written_out, expression.args))
    *inside, (index, first, last) = expression.limits  # the innermost first
    term = written_out(Sum(expression.function, *inside) if inside else expression.function)
    return Add(*(term.xreplace({index: Integer(n)}) for n in range(int(first), int(last) + 1)))


def composed(definitions: Sequence[Definition], length: int, values: dict[Any, Any]) -> Any:
    """The last definition as one expression: everything before it put in.

    Parameters
    ----------
    definitions : sequence of Definition
    length : int
        Number L of rows and tokens.
    values : dict
        What stands for fields and parameters.
    """
    known = dict(values)
    for definition in definitions:
        for one in definition.each(length):
            known[one.symbol] = written_out(one.value).xreplace(known)
    return known[definitions[-1].symbol]


def numbered(base: Any, row: Any, column: int, columns: int) -> Any:
    """A field's entry; a single column has no index."""
    return base[row] if columns == 1 else base[row, column]


def teacher_fields(rank: int) -> list[Definition]:
    """The teacher's fields with their means."""
    bases = (sym.teacher_field, sym.k, sym.teacher_mean)
    fields = [[numbered(base, sym.row, s, rank) for base in bases] for s in range(1, rank + 1)]
    return [Definition(whole, centred + mean) for whole, centred, mean in fields]


def field_symbols(base: Any, fields: Fields) -> dict[Any, Any]:
    """The entries of an array of fields, by the symbols that definitions have for them."""
    return {numbered(base, a, c, len(row)): entry for a, row in enumerate(fields, 1) for c, entry in enumerate(row, 1)}
