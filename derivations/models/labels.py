"""What a loss sees of the teacher: the label of a sample as functions of the teacher's fields.

A loss is a function of the student's fields and of parts that hold the teacher's fields alone.  These parts are the
label: who knows them can compute the loss of every student, and nobody learns more from a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Integer, Mul, Symbol, exp, lambdify, log, sinh, tanh

from derivations.models.formula_arrays import array
from derivations.models.formula_lines import FormulaError
from derivations.models.formulas import parse_formula
from derivations.models.functions import KINKED, NUMPY_FUNCTIONS, Sigmoid, Sign, Softmax, Step, with_known_functions
from derivations.models.model import parameter_symbol
from derivations.models.scalar import Sizes, formula_loss
from derivations.models.scores import resolve, row_entries

__all__ = ["LabelFunctions", "labels_of_formula", "labels_of_loss", "labels_of_scores"]

Array = NDArray[np.float64]

_INJECTIVE = (Sigmoid, tanh, sinh, exp, log)


@dataclass(frozen=True, eq=False)
class LabelFunctions:
    """Entries of a label as expressions of the teacher's fields.

    Attributes
    ----------
    entries : tuple of Expr
    fields : tuple of Symbol
        ``k0_0``, ``k0_1``, ..., token by token.
    label : Symbol or None
        Of a likelihood, the label y.
    noisy : bool
        Whether every entry has noise of its own, which is left out of it.
    clusters : tuple of Symbol
        ``c0``, ``c1``, ..., the numbers of the tokens' clusters, where an entry holds one of them.
    """

    entries: tuple[Any, ...]
    fields: tuple[Symbol, ...]
    label: Symbol | None = None
    noisy: bool = False
    clusters: tuple[Symbol, ...] = ()

    def at(self, numbers: Sequence[int]) -> LabelFunctions:
        """The label of tokens that are in the clusters with these numbers."""
        values = {symbol: Integer(number) for symbol, number in zip(self.clusters, numbers, strict=True)}
        return replace(self, entries=tuple(entry.xreplace(values) for entry in self.entries), clusters=())

    @property
    def smooth(self) -> bool:
        """Whether there are no kinks and jumps."""
        return not any(entry.has(*KINKED) for entry in self.entries)

    @property
    def continuous(self) -> bool:
        """Whether there are no jumps."""
        return not any(entry.has(Sign, Step) for entry in self.entries)

    @property
    def of_every_label(self) -> tuple[Any, ...]:
        """The entries, or the likelihoods of the labels 1 and -1."""
        if self.label is None:
            return self.entries
        return tuple(entry.xreplace({self.label: Integer(y)}) for y in (1, -1) for entry in self.entries)

    @property
    def varying(self) -> LabelFunctions:
        """Without what is added to the labels of all fields and clusters: it tells nothing, and takes digits."""
        own = (*self.fields, *self.clusters)
        return replace(self, entries=tuple(entry.as_independent(*own, as_Add=True)[1] for entry in self.entries))

    def values(self) -> Callable[..., Array]:
        """Entries (..., M) of fields (..., F), and of the label where there is one."""
        given = self.fields if self.label is None else (*self.fields, self.label)
        return _compiled(self.entries, given, (len(self.entries),))

    def of(self, expression: Any) -> Callable[..., Array]:
        """Another function of the fields (..., F), (..., 1)."""
        return _compiled((expression,), self.fields, (1,))

    def values_and_slopes(self) -> Callable[[Array], tuple[Array, Array]]:
        """Both, what they share being computed once."""
        count = len(self.entries)
        found = tuple(entry.diff(field) for entry in self.entries for field in self.fields)
        both = _compiled((*self.entries, *found), self.fields, (count * (1 + len(self.fields)),))

        def function(k: Array) -> tuple[Array, Array]:
            made = both(k)
            return made[..., :count], made[..., count:].reshape(*k.shape[:-1], count, len(self.fields))

        return function

    def simplest(self) -> LabelFunctions:
        """Entries from which these follow, and which follow from them: without functions that can be inverted."""
        found: list[Any] = []
        for entry in self.entries:
            if not entry.free_symbols:
                continue
            inner = _stripped(entry)
            if inner not in found and -inner not in found:
                found.append(inner)
        return LabelFunctions(tuple(found), self.fields)


def _compiled(expressions: Sequence[Any], given: Sequence[Symbol], shape: tuple[int, ...]) -> Callable[..., Array]:
    compiled = lambdify(given, list(expressions), [NUMPY_FUNCTIONS, "numpy"], cse=True)
    count = sum(1 for symbol in given if str(symbol) != "y")

    def function(k: Array, *label: float) -> Array:
        found = compiled(*(k[..., i] for i in range(count)), *label)
        made = np.empty((*k.shape[:-1], len(expressions)))
        for place, value in enumerate(found):
            made[..., place] = value
        return made.reshape(*k.shape[:-1], *shape)

    return function


def _stripped(entry: Any) -> Any:
    """What is inside of functions that can be inverted, and of multiples and sums with numbers."""
    while True:
        if isinstance(entry, (Add, Mul)):
            number, rest = entry.as_independent(*entry.free_symbols, as_Add=isinstance(entry, Add))
            if number == (0 if isinstance(entry, Add) else 1):
                return entry
            entry = rest
        elif isinstance(entry, _INJECTIVE):
            entry = entry.args[0]
        elif isinstance(entry, Softmax):
            return with_known_functions(log(entry))
        else:
            return entry


def labels_of_formula(text: str, length: int, rank: int, clustered: bool = False) -> LabelFunctions:
    """A label given as a formula of ``k``, or the likelihood of a label y as one of ``k`` and ``y``.

    Parameters
    ----------
    text : str
    length, rank : int
    clustered : bool
        Whether it may hold the numbers of clusters, ``c``.

    Raises
    ------
    FormulaError
        It cannot be read.
    """
    fields, label = _fields(length, rank), Symbol("y", real=True)
    clusters = Sizes(length, 1, rank).symbols()[3] if clustered else array([])
    arrays = {"k": fields} | ({"c": clusters} if clustered else {})
    names: dict[str, Any] = {str(symbol): symbol for symbol in (*fields.flat, *clusters.flat)}
    names |= {"y": label, "L": Integer(length)} | {x: one.item() for x, one in arrays.items() if one.size == 1}
    fixed = {*fields.flat, *clusters.flat}
    found = np.atleast_1d(np.asarray(parse_formula(text, names, arrays, fixed, shaped=True), dtype=object))
    held = set[Any]().union(*(entry.free_symbols for entry in found.flat))
    used = tuple(clusters.flat) if held & {*clusters.flat} else ()
    return LabelFunctions(tuple(found.flat), tuple(fields.flat), label if label in held else None, clusters=used)


def labels_of_scores(score: str, causal: bool, length: int, rank: int) -> LabelFunctions:
    """The teacher's score matrix as the label."""
    if score == "softmax":
        return labels_of_formula(f"softmax(k @ k.T, causal={causal})", length, rank)
    fields = _fields(length, rank)
    logits = fields @ fields.T
    rows = [logits[a, : a + 1] if causal else logits[a] for a in range(length)]
    entries = [entry for row in rows for entry in row_entries(resolve(score, length), list(row))]
    return LabelFunctions(tuple(entries), tuple(fields.flat))


def labels_of_loss(
    text: str, sizes: tuple[int, int, int], numbers: Mapping[str, float], noise: float
) -> LabelFunctions:
    """The parts of a loss that hold the teacher's fields alone; terms without the student's fields are no part of it.

    Parameters
    ----------
    text : str
        The formula of the loss.
    sizes : (int, int, int)
        Tokens, and columns of student and teacher.
    numbers : mapping of str to float
        Its parameters.
    noise : float
        Variance of the labels' noise, which must then stand in every entry of the label, one for each.

    Raises
    ------
    FormulaError
        There is no label, or the noise is no noise on its entries.
    """
    length, columns, rank = sizes
    h, k, noises, clusters = Sizes(*sizes).symbols()
    model = formula_loss(text, length, columns, rank, noise > 0, tuple(numbers))
    teacher = [[*row, *(noises[a] if noise > 0 else ()), clusters[a]] for a, row in enumerate(k)]
    values = {parameter_symbol(name): value for name, value in numbers.items()}
    loss = with_known_functions(model.loss([[*row] for row in h], teacher)).xreplace(values)
    students, own = {*h.flat}, {*k.flat, *noises.flat, *clusters.flat}
    terms = [term for term in Add.make_args(loss) if term.free_symbols & students]
    found = list(dict.fromkeys(part for term in terms for part in _parts(term, students, own)))
    held = set[Any]().union(*(part.free_symbols for part in found))
    if not held & {*k.flat}:
        raise FormulaError("its labels hold no field of the teacher.")
    if noise > 0:
        found = _without_noise(found, {*noises.flat})
    used = tuple(clusters.flat) if held & {*clusters.flat} else ()
    return LabelFunctions(tuple(found), tuple(k.flat), noisy=noise > 0, clusters=used)


def _parts(expression: Any, students: Set[Any], own: Set[Any]) -> Iterator[Any]:
    """Largest parts of an expression that hold the teacher's symbols and none of the student's."""
    held = expression.free_symbols
    if not held & own:
        return
    if not held & students:
        yield expression
        return
    alone = [part for part in expression.args if part.free_symbols & own and not part.free_symbols & students]
    if alone and isinstance(expression, (Add, Mul)):
        yield expression.func(*alone)
        alone_too = {*alone}
        for part in expression.args:
            if part not in alone_too:
                yield from _parts(part, students, own)
        return
    for part in expression.args:
        yield from _parts(part, students, own)


def _without_noise(parts: Sequence[Any], noises: Set[Any]) -> list[Any]:
    """Entries whose noise has the coefficient one, without it."""
    left, seen = list[Any](), set[Any]()
    for part in parts:
        here = part.free_symbols & noises
        slope = part.diff(next(iter(here))) if len(here) == 1 else None
        if slope is None or not slope.is_number or slope == 0 or here & seen:
            raise FormulaError(
                "its labels must each have one entry of the noise, added to them, where teacher.noise is above zero."
            )
        seen |= here
        left.append((part / slope).expand().xreplace({next(iter(here)): Integer(0)}))
    return left


def _fields(length: int, rank: int) -> Any:
    return array([[Symbol(f"k{a}_{b}", real=True) for b in range(rank)] for a in range(length)])
