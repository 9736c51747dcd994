"""Losses given as one expression of the local fields: generalised linear models, and formulas of the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from sympy import Expr, Float, Integer, Symbol

from derivations.algebra import symbols as sym
from derivations.models.formula_arrays import ARRAY_FUNCTIONS, array
from derivations.models.formula_lines import FormulaError
from derivations.models.formulas import FUNCTIONS, names_in, parse_formula
from derivations.models.functions import Modulus, Relu, Sign, Softplus, Step, with_known_functions
from derivations.models.kinks import has_kink
from derivations.models.model import Definition, label_fields, numbered, parameter_symbol, teacher_fields

__all__ = [
    "NORM",
    "SCALAR_LOSSES",
    "LabelPlanes",
    "Roughness",
    "ScalarModel",
    "Sizes",
    "field_names",
    "formula_label_planes",
    "formula_loss",
    "formula_roughness",
    "norm_array",
    "norm_names",
    "read_fields",
    "takes_clusters",
    "takes_norms",
]

_CLUSTER = re.compile(r"c\d*")  # a name of the number of a token's cluster
NORM = re.compile(r"Q|Q\d+_\d+")  # of an entry of W^T W / d
_PARALLEL = 1e-12  # by what normals of parallel planes may differ


@dataclass(frozen=True)
class ScalarModel:
    """Any loss given as one expression of the local fields: a small sequence multi-index model.

    Attributes
    ----------
    name : str
    loss : callable
        ``loss(h, k)`` with nested sequences of symbols, ``h[l][c]`` of shape (L, columns) and ``k[l][c]`` of shape
        (L, teacher_rank + noise_columns + cluster_columns); returns a scalar expression.  Differentiated entry by
        entry, so meant for small sizes.
    prox : callable, optional
        ``prox(omega, k, V)``, the minimiser of the local problem for one token and one column as a list of pairs
        (value, condition): the first whose condition holds, the last one's being None.  For losses with kinks.
    parameters, trained : tuple of str
        Names of the loss's own numbers, and those of them that are trained; entries of ``Q = W^T W / d`` are both.
    """

    name: str
    loss: Callable[[Sequence[Sequence[Symbol]], Sequence[Sequence[Symbol]]], Any]
    length: int = 1
    columns: int = 1
    teacher_rank: int = 1
    prox: Callable[[Symbol, Symbol, Symbol], Sequence[tuple[Expr, Expr | None]]] | None = None
    noise_columns: int = 0
    cluster_columns: int = 0
    parameters: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    has_grams = False  # the fields are all it depends on, at every d
    rows = None

    @property
    def norms(self) -> tuple[str, ...]:
        """Those of them that are entries of ``Q = W^T W / d``."""
        return tuple(name for name in self.trained if name in norm_names(self.columns))

    @property
    def lift(self) -> tuple[int, ...]:
        """For every student column the teacher's column that a local minimisation may start from."""
        return tuple(c % self.teacher_rank for c in range(self.columns))

    @cached_property
    def expression(self) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
        """The loss in symbols, and the student's and the teacher's fields."""
        h, k = (
            [[Symbol(f"{letter}{a}_{c}", real=True) for c in range(columns)] for a in range(self.length)]
            for letter, columns in (("h", self.columns), ("k", label_fields(self)))
        )
        student, teacher = (tuple(x for row in rows for x in row) for rows in (h, k))
        return with_known_functions(self.loss(h, k)), student, teacher

    @property
    def has_labels(self) -> bool:
        """Whether of the teacher's fields only the signs enter, so that there are wrong labels to count."""
        loss, _, teacher = self.expression
        unsigned = loss.xreplace({Sign(k): Symbol(f"sign_{k}") for k in teacher})
        return unsigned != loss and not unsigned.free_symbols & {*teacher}

    @property
    def has_kink(self) -> bool:
        """Whether it is not differentiable in the student's fields everywhere."""
        loss, student, _ = self.expression
        return has_kink(loss, student)

    def definitions(self, *, shifted: bool = False) -> tuple[Definition, ...]:
        """The loss of one sample in the symbols of `derivations.algebra.symbols`, as of `AttentionModel`."""
        teacher = sym.teacher_field if shifted else sym.k
        length, columns, rank = self.length, self.columns, self.teacher_rank
        steps = teacher_fields(rank) if shifted else []
        h = [[numbered(sym.h, a, c, columns) for c in range(1, columns + 1)] for a in range(1, length + 1)]
        k = [[numbered(teacher, a, c, rank) for c in range(1, rank + 1)] for a in range(1, length + 1)]
        for a, row in enumerate(k, 1):
            row += [sym.noise[a, b] for b in range(1, self.noise_columns + 1)]
            row += [sym.cluster[a]] * self.cluster_columns
        return (*steps, Definition(sym.loss, with_known_functions(self.loss(h, k))))


def _label(k: Any) -> Any:
    return Sign(k[0][0])


def _hinge_prox(omega: Any, k: Any, V: Any) -> list[tuple[Any, Any]]:
    margin = 1 - Sign(k) * omega
    return [(omega, margin <= 0), (omega + V * Sign(k), margin >= V), (Sign(k), None)]


SCALAR_LOSSES = {
    "square": ScalarModel("square", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2),
    "logistic": ScalarModel("logistic", lambda h, k: Softplus(-_label(k) * h[0][0])),
    "hinge": ScalarModel("hinge", lambda h, k: Relu(1 - _label(k) * h[0][0]), prox=_hinge_prox),
}
"""Losses of generalised linear models, L = r = t = 1: regression on k, and classification of its sign."""


class Sizes(NamedTuple):
    """Sizes of the arrays of a formula: h (length, columns), k (length, teacher_rank), noise (length, length), c."""

    length: int
    columns: int
    teacher_rank: int

    def symbols(self) -> tuple[Any, Any, Any, Any]:
        """``h``, ``k``, ``noise`` and ``c`` as arrays of symbols."""
        widths = {"h": self.columns, "k": self.teacher_rank, "noise": self.length}
        h, k, noise = (
            array([[Symbol(f"{letter}{a}_{b}", real=True) for b in range(width)] for a in range(self.length)])
            for letter, width in widths.items()
        )
        return h, k, noise, array([Symbol(f"c{a}", real=True) for a in range(self.length)])


def field_names(h: Any, k: Any, noise: Any, clusters: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the names of a formula stand for: the names of numbers, and those of arrays.

    Parameters
    ----------
    h, k, noise : array
        Of shapes (L, columns), (L, teacher_rank) and (L, L).
    clusters : array, optional
        Of shape (L,).
    """
    arrays = {"h": h, "k": k, "noise": noise} | ({} if clusters is None else {"c": clusters})
    numbers = {
        letter + "_".join(map(str, place)): values[place]
        for letter, values in arrays.items()
        for place in np.ndindex(values.shape)
    }
    single = {letter: values.item() for letter, values in arrays.items() if values.size == 1}
    return numbers | single | {"L": Integer(len(h))}, arrays


def norm_names(columns: int) -> tuple[str, ...]:
    """Names of the independent entries of ``Q = W^T W / d``, as parameters of a loss: its upper triangle."""
    return tuple(f"Q{i}_{j}" for i in range(columns) for j in range(i, columns))


def norm_array(columns: int) -> Any:
    """``Q`` as an array of the symbols of these parameters."""
    return array([[parameter_symbol(f"Q{min(i, j)}_{max(i, j)}") for j in range(columns)] for i in range(columns)])


def _with_norms(
    names: Mapping[str, Any], arrays: Mapping[str, Any], parameters: Iterable[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Names of numbers and of arrays, with those of Q if its entries are among the parameters."""
    columns = arrays["h"].shape[1]
    if not {*norm_names(columns)} <= {*parameters}:
        return {**names}, {**arrays}
    norms = norm_array(columns)
    entries = {f"Q{i}_{j}": norms[i, j] for i, j in np.ndindex(norms.shape)}
    return {**names, **entries, **({"Q": norms.item()} if columns == 1 else {})}, {**arrays, "Q": norms}


def _fixed(arrays: Mapping[str, Any]) -> set[Any]:
    """The entries of the arrays other than h and Q: nobody differentiates a loss in them."""
    return {entry for name, values in arrays.items() if name not in ("h", "Q") for entry in values.flat}


def formula_loss(
    text: str,
    length: int,
    columns: int,
    teacher_rank: int,
    noisy: bool = False,
    parameters: Sequence[str] = (),
    trained: Sequence[str] = (),
) -> ScalarModel:
    """A loss given as a formula of arrays ``h``, ``k``, ``noise`` and ``c``, or of their entries ``h0_0``, ...

    ``h0_1`` is ``h[0, 1]``, of token 0 and column 1; where there is one entry, ``h`` is a number too.
    ``noise[0, 1]`` is the noise on entry (0, 1) of the labels; without noise it is zero.  ``c[0]`` is the number of
    the cluster of token 0, from 0, and ``L`` the number of tokens.  Names of `parameters` stand for numbers that the
    formula does not give, some of which are `trained`; those of `norm_names` among them are the array ``Q``.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """
    clustered = takes_clusters(text)

    def loss(h: Sequence[Sequence[Any]], k: Sequence[Sequence[Any]]) -> Any:
        noise = [[*row[teacher_rank : teacher_rank + length]] if noisy else [Integer(0)] * length for row in k]
        teacher = [[*row[:teacher_rank]] for row in k]
        clusters = array([row[-1] for row in k]) if clustered else None
        return read_fields(text, (array([[*row] for row in h]), array(teacher), array(noise), clusters), parameters)

    return ScalarModel(
        text,
        loss,
        length,
        columns,
        teacher_rank,
        noise_columns=length if noisy else 0,
        cluster_columns=int(clustered),
        parameters=tuple(parameters),
        trained=tuple(trained),
    )


def read_fields(
    text: str, fields: tuple[Any, Any, Any, Any], parameters: Sequence[str] = (), *, shaped: bool = False
) -> Any:
    """Read a formula of the arrays of `field_names` and of parameters; its value may be an array if it is `shaped`.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """
    names, arrays = field_names(*fields)
    taken = {*names, *arrays, *FUNCTIONS, *ARRAY_FUNCTIONS}
    names, arrays = _with_norms(names, arrays, parameters)
    if "Q" in arrays:
        taken.add("Q")
    for name in parameters:
        if name in taken:
            raise FormulaError(f'its parameter "{name}" has the name of a field or a function: choose another name.')
    own = {name: parameter_symbol(name) for name in parameters}
    return parse_formula(text, names | own, arrays, _fixed(arrays), shaped=shaped)


def takes_clusters(text: str) -> bool:
    """Whether a formula holds a name of a token's cluster, ``c0``, ... or ``c``; not if it cannot be read."""
    try:
        return any(_CLUSTER.fullmatch(name) for name in names_in(text))
    except FormulaError:
        return False


def takes_norms(text: str, parameters: Sequence[str] = ()) -> bool:
    """Whether a formula holds a name of ``W^T W / d``, ``Q`` or ``Q0_1``, that is no parameter of its own.

    Not if it cannot be read.
    """
    try:
        return any(NORM.fullmatch(name) and name not in parameters for name in names_in(text))
    except FormulaError:
        return False


class Roughness(NamedTuple):
    """Where a formula of the student's fields and the label's, the teacher's fields and the noise, is not smooth.

    Attributes
    ----------
    kink : bool
        Its gradient jumps somewhere in the student's fields.
    label_jumps, label_bends : bool
        It jumps, or has a kink, where something without a student's field vanishes.
    """

    kink: bool
    label_jumps: bool
    label_bends: bool


class LabelPlanes(NamedTuple):
    """Parallel planes of the teacher's fields, at which alone a label or its derivative jumps.

    Attributes
    ----------
    normal : dict of (int, int) to float
        What multiplies the field of a token and a column; empty where there is no plane.
    offsets : tuple of float
        The planes are ``normal . k = offset``.
    """

    normal: dict[tuple[int, int], float]
    offsets: tuple[float, ...]


def formula_label_planes(
    text: str, parameters: Mapping[str, float | None] = MappingProxyType({}), sizes: Sizes | None = None
) -> LabelPlanes | None:
    """The planes of a formula's label; None where it jumps elsewhere, or where a trained parameter says.

    What depends on the clusters alone jumps nowhere in the fields.

    Parameters
    ----------
    text : str
    parameters : mapping, optional
        Values of the formula's own numbers; None of trained ones.
    sizes : Sizes, optional
        Of its arrays; without them it can only have names of single numbers.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """
    loss, places, student, clusters = _parts(text, parameters, sizes)
    normal, offsets = dict[tuple[int, int], float](), set[float]()
    for node in loss.atoms(Sign, Step, Modulus, Relu):
        (argument,) = node.args
        if node.free_symbols & student or node.free_symbols <= clusters:
            continue
        if node.free_symbols - {*places}:  # noise, a cluster, a trained number, or a name that a problem does not know
            return None
        slopes = {places[x]: argument.diff(x) for x in argument.free_symbols}
        if not slopes or not all(slope.is_number for slope in slopes.values()):
            return None
        own = {place: float(slope) for place, slope in sorted(slopes.items())}  # opposite arguments have one normal
        size, rest = max(own.values(), key=abs), float(argument.subs(dict.fromkeys(argument.free_symbols, 0)))
        own = {place: slope / size for place, slope in own.items()}
        if normal and (own.keys() != normal.keys() or any(abs(own[one] - normal[one]) > _PARALLEL for one in own)):
            return None
        normal = normal or own
        offsets.add(-rest / size)
    return LabelPlanes(normal, tuple(sorted(offsets)))


def _parts(
    text: str, parameters: Mapping[str, float | None], sizes: Sizes | None
) -> tuple[Any, dict[Symbol, tuple[int, int]], set[Symbol], set[Symbol]]:
    """A formula in symbols, tokens and columns of the teacher's, the student's, and those that a sample's fields leave.

    The last are numbers of clusters and trained parameters; the other parameters have their values.
    """
    own = {one: parameter_symbol(one) for one in parameters}
    known = {symbol: Float(parameters[one]) for one, symbol in own.items() if parameters[one] is not None}
    if sizes is None:
        names = {one: Symbol(one, real=True) for one in names_in(text) if one not in parameters}
        student = {x for one, x in names.items() if one.startswith("h")}
        places = {x: _place_of(one) for one, x in names.items() if one.startswith("k")}
        clusters, arrays = {x for one, x in names.items() if _CLUSTER.fullmatch(one)}, dict[str, Any]()
    else:
        symbols = sizes.symbols()
        names, arrays = field_names(*symbols)
        h, k, _, c = symbols
        student, clusters, places = {*h.flat}, {*c}, {k[place]: place for place in np.ndindex(k.shape)}
        names, arrays = _with_norms(names, arrays, parameters)
    loss = parse_formula(text, names | own, arrays, _fixed(arrays)).xreplace(known)
    return loss, places, student, clusters | ({*own.values()} - known.keys())


def _place_of(name: str) -> tuple[int, int]:
    """Token and column of a teacher's field."""
    token, _, column = name[1:].partition("_")
    return (int(token), int(column)) if column else (0, 0)


def formula_roughness(
    text: str, parameters: Mapping[str, float | None] = MappingProxyType({}), sizes: Sizes | None = None
) -> Roughness:
    """Where a formula is not smooth.

    Parameters
    ----------
    text, parameters, sizes
        As of `formula_label_planes`.

    Raises
    ------
    FormulaError
        The formula cannot be read.
    """
    loss, _, student, clusters = _parts(text, parameters, sizes)

    def of_label(*kinds: type) -> bool:
        return any(not (x := node.free_symbols) & student and not x <= clusters for node in loss.atoms(*kinds))

    return Roughness(has_kink(loss, student), of_label(Sign, Step), of_label(Modulus, Relu))
