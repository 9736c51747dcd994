"""The user's description of a problem: frozen dataclasses that read and write TOML.

A `Problem` says *what* is studied: the tokens' law, the positional encodings, the teacher, the
student, the regulariser, the loss, and how finely Gaussian expectations are integrated. Where it is
solved (sample complexity, branch) and how the iteration runs are arguments of `attnphase.solve`.

Every value is checked when it is given. A wrong one raises `ProblemError`, whose message is one
sentence that names the field as it stands in the TOML, such as ``teacher.mixing``.

Conventions are those of Cui, Behrens, Krzakala and Zdeborová, arXiv:2402.03902; every quantity
is dimensionless.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import field, fields, is_dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

import numpy as np
import tomli_w
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Strict, Tag, ValidationError, model_validator
from pydantic.dataclasses import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from attnphase.arrays import Array

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.files.reading import LARGEST_TEXT, read_input

__all__ = [
    "MAX_ATOMS",
    "Cluster",
    "DataProblem",
    "Integration",
    "Law",
    "Loss",
    "Positions",
    "Problem",
    "Regularizer",
    "SpectrumAtom",
    "SpectrumLaw",
    "Student",
    "Teacher",
    "Tokens",
    "load_problem",
    "parse_setting",
]

PAPER_MIXING = ((0.6, 0.4), (0.4, 0.6))
"""Positional part A of the paper's teacher, equation (16)."""

SHIPPED_SCORES = ("softmax", "linear", "relu", "sigmoid", "softmax1")
"""Scores whose names need no further check."""

MAX_CONFIGURATIONS = 4096
"""Limit of the choices of a cluster for every token that have a probability above 0."""

MAX_ATOMS = 65536
"""Limit of the atoms of a spectrum."""

_MAX_LENGTH = 16  # tokens
_MAX_RANK = 8
_MAX_MEAN_DIRECTIONS = 64
_MAX_CLUSTERS = 64
_MAX_SITES = _MAX_LENGTH * _MAX_CLUSTERS
_MAX_COLUMNS = 2 * _MAX_RANK  # of the teacher, the value matrix's included
_MAX_TABLE = 2**18  # entries of a law's table, zeros included: 64 clusters for each of three tokens

# what a TOML may hold, so that a file which no problem has is not parsed for minutes
_MOST_VALUES = 500_000  # a law's table and the clusters' means at their largest come to less
_MOST_DOTS = 2_000  # beyond one for each value
_VALUES_OF_ATOM = 2 * _MAX_SITES + _MAX_LENGTH + _MAX_COLUMNS

_STRENGTH = 0.01  # the paper's ridge
_REPR_FIELDS = 6  # fields that a problem's line shows

_RELATIVE_TOLERANCE = 1e-9
"""How far a Gram matrix may be from symmetric and positive semidefinite, and weights from 1."""


_DEEPEST = _MAX_LENGTH  # levels of lists in lists that a value may have


def _plain(value: Any, depth: int = _DEEPEST) -> Any:
    """Turn lists and NumPy values into tuples and Python numbers, and -0.0 into 0.0.

    Lists nested deeper than `depth` stay as they are, and are refused where a number must be.
    """
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim > depth:
            return value
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(item, depth - 1) for item in value) if depth else value
    return value + 0.0 if isinstance(value, float) else value


class _TooLongError(ValueError):
    """A list that is too long, whatever is in it; the text is the end of a sentence."""


def _lists(*most: int) -> BeforeValidator:
    """Check how long lists in lists are, level by level, before anything in them is looked at; then `_plain`."""

    def validate(value: Any) -> Any:
        _check_lengths(value, most)
        return _plain(value, len(most))

    return BeforeValidator(validate)


def _check_lengths(value: Any, most: tuple[int, ...], inner: bool = False) -> None:
    if isinstance(value, np.ndarray):
        shape = value.shape
    else:
        shape = (len(value),) if isinstance(value, Sized) and not isinstance(value, str | Mapping) else ()
    for level, (length, limit) in enumerate(zip(shape, most, strict=False)):
        if length > limit:
            what = f"has a list of {length}" if inner or level else f"has {length}"
            raise _TooLongError(f"{what} entries, more than {limit}")
    if isinstance(value, list | tuple) and len(most) > 1:
        for item in value:
            _check_lengths(item, most[1:], True)


def _read_table(value: Any) -> Any:
    """Check how large a law's table is before anything is made of it."""
    level = [value]
    for _ in range(_DEEPEST):
        parts = [item for item in level if isinstance(item, list | tuple | np.ndarray)]
        if sum(item.size if isinstance(item, np.ndarray) else len(item) for item in parts) > _MAX_TABLE:
            raise _TooLongError(f"has more than {_MAX_TABLE} entries")
        level = [item for part in parts if not isinstance(part, np.ndarray) for item in part]
    if any(isinstance(item, list | tuple) for item in level):
        raise _TooLongError(f"has more than {_DEEPEST} lists in one another")
    return _with_floats(_plain(value))


def _with_floats(value: Any) -> Any:
    """Turn the whole numbers of a nested table into floats, as pydantic does for typed fields."""
    if isinstance(value, tuple):
        return tuple(_with_floats(item) for item in value)
    return float(value) if isinstance(value, int) and value in (0, 1) and not isinstance(value, bool) else value


# The description of a field is what its error message says the field must be.
_PLAIN = BeforeValidator(lambda value: _plain(value, 0))
_Sigma = Annotated[float, Strict(), Field(ge=1e-6, le=1e6, allow_inf_nan=False), _PLAIN]
_Variance = Annotated[float, Strict(), Field(ge=0, le=1e12, allow_inf_nan=False), _PLAIN]
_Rank = Annotated[int, Strict(), Field(ge=1, le=8, description="a whole number from 1 to 8"), _PLAIN]
_Level = Annotated[float, Strict(), Field(ge=1e-12, le=1e12, allow_inf_nan=False), _PLAIN]
_Coordinate = Annotated[float, Strict(), Field(ge=-1e12, le=1e12, allow_inf_nan=False), _PLAIN]
_Probability = Annotated[float, Strict(), Field(ge=0, le=1, allow_inf_nan=False), _PLAIN]
_Name = Annotated[str, Strict(), Field(min_length=1, max_length=4000)]
_Score = Annotated[
    _Name,
    Field(description='the name of a score, a formula in z, or "module:attribute"'),
]
_Temperature = Annotated[
    float,
    Strict(),
    Field(ge=1e-6, le=1e6, allow_inf_nan=False, description="a number from 1e-6 to 1e6"),
    _PLAIN,
]
_Flag = Annotated[bool, Strict(), Field(description="true or false"), _PLAIN]
# of products of coordinates; products of these do not overflow
_Entry = Annotated[float, Strict(), Field(ge=-1e24, le=1e24, allow_inf_nan=False), _PLAIN]
_ENTRIES = "numbers from -1e24 to 1e24"
_Table = tuple[tuple[_Entry, ...], ...]

_Key = Literal["positions", "means", "teacher"]  # optional keys of an atom

_CONFIG = ConfigDict(extra="forbid")
_T = TypeVar("_T")


def _errors_name_fields(section: str) -> Callable[[type[_T]], type[_T]]:
    """Make a pydantic dataclass raise `ProblemError`; `section` is its place in the TOML."""

    def decorate(cls: type[_T]) -> type[_T]:
        target: Any = cls
        validate = target.__init__

        @functools.wraps(validate)
        def construct(self: _T, /, *args: Any, **kwargs: Any) -> None:
            try:
                validate(self, *args, **kwargs)
            except ValidationError as error:
                raise _as_problem_error(section, cls, error) from None

        target.__init__ = construct
        return cls

    return decorate


@_errors_name_fields("tokens.spectrum")
@dataclass(frozen=True, config=_CONFIG)
class SpectrumAtom:
    """A fraction of the common eigen-directions e_i on which every covariance has one eigenvalue.

    The optional keys give the point of the other vectors' projections there. What an atom leaves
    out is Gaussian on it, with the products that the problem's other fields give.

    Parameters
    ----------
    weight
        Fraction of the directions, above 0 and at most 1.
    variances
        Shape (L,), for a mixture (P,): the eigenvalue of each token's (site's) covariance there,
        0 or more.
    positions
        Shape (L,): √d e_iᵀp_l.
    means
        Shape (P,): √d e_iᵀμ_s of each cluster's mean, for a mixture.
    teacher
        Shape (t,): e_iᵀQ⋆.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.
    """

    weight: Annotated[
        float,
        Strict(),
        Field(gt=0, le=1, allow_inf_nan=False, description="a number above 0 and at most 1"),
        _PLAIN,
    ]
    variances: Annotated[
        tuple[_Variance, ...],
        Field(description="a list of numbers from 0 to 1e12, one for each token"),
        _lists(_MAX_SITES),
    ]
    positions: Annotated[
        tuple[_Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each token"),
        _lists(_MAX_LENGTH),
    ] = None
    means: Annotated[
        tuple[_Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each cluster of each token"),
        _lists(_MAX_SITES),
    ] = None
    teacher: Annotated[
        tuple[_Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each column of the teacher"),
        _lists(_MAX_COLUMNS),
    ] = None


@_errors_name_fields("tokens.spectrum")
@dataclass(frozen=True, config=_CONFIG)
class SpectrumLaw:
    """A ready-made spectrum of the covariances.

    Parameters
    ----------
    kind
        ``"isotropic"``: one eigenvalue, ``variance``. ``"power-law"``: ``atoms`` eigenvalues in
        equal shares, the i-th in proportion to i^-exponent and their mean ``variance``.
        ``"two-level"``: a ``fraction`` of the directions has the first of the two ``variances``,
        the rest the second.
    variance
        For ``"isotropic"`` and ``"power-law"``: the mean eigenvalue, one number or one for each
        token (for a mixture: for each cluster of each token); 0.25 if left out.
    exponent
        For ``"power-law"``: from 0 to 20.
    atoms
        For ``"power-law"``: how many eigenvalues there are, 32 if left out.
    variances
        For ``"two-level"``: the two eigenvalues.
    fraction
        For ``"two-level"``: share of the directions with the first eigenvalue, between 0 and 1.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.
    """

    kind: Annotated[
        Literal["isotropic", "power-law", "two-level"],
        Field(description='"isotropic", "power-law" or "two-level"'),
    ]
    variance: Annotated[
        _Level | tuple[_Level, ...] | None,
        Field(description="a number from 1e-12 to 1e12, or a list with one for each token"),
        _lists(_MAX_SITES),
    ] = None
    exponent: Annotated[
        Annotated[float, Strict(), Field(ge=0, le=20, allow_inf_nan=False)] | None,
        Field(description="a number from 0 to 20"),
        _PLAIN,
    ] = None
    atoms: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=4096)] | None,
        Field(description="a whole number from 1 to 4096"),
        _PLAIN,
    ] = None
    variances: Annotated[
        Annotated[tuple[_Variance, ...], Field(min_length=2, max_length=2)] | None,
        Field(description="a list of two numbers from 0 to 1e12"),
        _lists(2),
    ] = None
    fraction: Annotated[
        Annotated[float, Strict(), Field(gt=0, lt=1, allow_inf_nan=False)] | None,
        Field(description="a number between 0 and 1"),
        _PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        name, uses, needs = "tokens.spectrum", _SPECTRUM_KEYS[self.kind], _SPECTRUM_NEEDS[self.kind]
        for key in ("variance", "exponent", "atoms", "variances", "fraction"):
            given = getattr(self, key) is not None
            if given and key not in uses:
                raise ProblemError(
                    name,
                    f'tokens.spectrum.{key} does not go with the spectrum kind "{self.kind}",'
                    f" which has {_listed(uses)}: remove it.",
                )
            if not given and key in needs:
                raise ProblemError(name, f'tokens.spectrum of kind "{self.kind}" needs {key}: give it.')
        if "variance" in uses and self.variance is None:
            object.__setattr__(self, "variance", 0.25)
        if "atoms" in uses and self.atoms is None:
            object.__setattr__(self, "atoms", 32)
        return self

    def expand(self, count: int) -> tuple[Array, Array]:
        """Return the spectrum as atoms.

        Parameters
        ----------
        count
            Number of tokens, or of sites for a mixture.

        Returns
        -------
        weights
            Shape (A,); they sum to 1.
        variances
            Shape (A, count).

        Raises
        ------
        ProblemError
            ``variance`` is a list of another length.
        """
        count = arguments.whole("count", count, 1)
        if self.kind == "two-level":
            assert self.variances is not None, "checked when the law was made"
            assert self.fraction is not None, "checked when the law was made"
            levels = np.array(self.variances)
            return np.array([self.fraction, 1 - self.fraction]), np.repeat(levels[:, None], count, axis=1)
        if isinstance(self.variance, tuple) and len(self.variance) != count:
            raise ProblemError(
                "tokens.spectrum",
                f"tokens.spectrum.variance has {len(self.variance)} numbers, but must have {count}: give one for each"
                " token (for a mixture: for each cluster of each token), or a single one for all.",
            )
        mean = np.broadcast_to(np.asarray(self.variance, dtype=float), (count,))
        atoms = self.atoms if self.kind == "power-law" and self.atoms is not None else 1
        shape = np.arange(1.0, atoms + 1) ** -(self.exponent or 0.0)
        return np.full(atoms, 1 / atoms), np.outer(shape / shape.mean(), mean)


_SPECTRUM_KEYS = {
    "isotropic": ("variance",),
    "power-law": ("variance", "exponent", "atoms"),
    "two-level": ("variances", "fraction"),
}
_SPECTRUM_NEEDS = {"isotropic": (), "power-law": ("exponent",), "two-level": ("variances", "fraction")}


@_errors_name_fields("tokens.clusters")
@dataclass(frozen=True, config=_CONFIG)
class Cluster:
    """One component N(μ, Σ) of a mixture.

    Parameters
    ----------
    sigma
        Standard deviation of an entry, Σ = sigma² I; 0.5 if left out. With ``tokens.spectrum``,
        which then gives Σ, it must be left out.
    mean
        Coordinates of μ in orthonormal vectors e_1, …, e_K of R^d, so that ‖μ‖ = O(1) beside
        entries of x that are O(1). All clusters have the same K; left out, μ = 0.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.
    """

    sigma: Annotated[
        _Sigma | None,
        Field(description="a positive number from 1e-6 to 1e6"),
        _PLAIN,
    ] = None
    mean: Annotated[
        tuple[_Coordinate, ...],
        Field(max_length=_MAX_MEAN_DIRECTIONS, description="a list of at most 64 numbers from -1e12 to 1e12"),
        _lists(_MAX_MEAN_DIRECTIONS),
    ] = ()


@_errors_name_fields("tokens.law")
@dataclass(frozen=True, config=_CONFIG)
class Law:
    """The joint law P(c_1, …, c_L) of the tokens' clusters.

    Parameters
    ----------
    kind
        ``"independent"``: every token draws its cluster with its ``weights``. ``"markov"``: the
        first draws it with ``weights``, the others with the row of ``transition`` that belongs to
        the cluster before. ``"same"``: with ``probability`` all share one cluster, drawn with
        ``weights``; the rest is spread over the configurations that are not all equal, in
        proportion to the product of ``weights``. ``"table"``: ``table`` is the law.
    weights
        Probabilities of the clusters, uniform if left out: one list for all tokens, or, for
        ``"independent"``, a list of one list for each token.
    transition
        For ``"markov"``, shape (C, C): from the row's cluster to the column's.
    probability
        For ``"same"``: from 0 to 1.
    table
        For ``"table"``: lists nested to depth L; ``table[c_1]…[c_L]`` is the probability.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.
    """

    kind: Annotated[
        Literal["independent", "markov", "same", "table"],
        Field(description='"independent", "markov", "same" or "table"'),
    ] = "independent"
    weights: Annotated[
        Annotated[
            Annotated[tuple[_Probability, ...], Tag("#one")]
            | Annotated[tuple[tuple[_Probability, ...], ...], Tag("#each")],
            Discriminator(lambda value: "#each" if _is_nested(value) else "#one"),
        ]
        | None,
        Field(description="a list of probabilities, or a list of such lists, one for each token"),
        _lists(_MAX_CLUSTERS, _MAX_CLUSTERS),
    ] = None
    transition: Annotated[
        tuple[tuple[_Probability, ...], ...] | None,
        Field(description="a square table of probabilities"),
        _lists(_MAX_CLUSTERS, _MAX_CLUSTERS),
    ] = None
    probability: Annotated[
        _Probability | None,
        Field(description="a number from 0 to 1"),
        _PLAIN,
    ] = None
    table: Annotated[
        tuple[Any, ...] | None,
        Field(description="a list of probabilities nested as deep as there are tokens"),
        BeforeValidator(_read_table),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        uses = _LAW_KEYS[self.kind]
        for key in ("weights", "transition", "probability", "table"):
            given = getattr(self, key) is not None
            if given and key not in uses:
                raise ProblemError(
                    "tokens.law",
                    f'tokens.law.{key} does not go with the law kind "{self.kind}",'
                    f" which has {_listed(uses)}: remove it.",
                )
            if not given and key in uses and key != "weights":
                raise ProblemError("tokens.law", f'tokens.law of kind "{self.kind}" needs {key}: give it.')
        if self.kind != "independent" and _is_nested(self.weights):
            raise ProblemError(
                "tokens.law",
                f'tokens.law.weights must be a single list of probabilities for the law kind "{self.kind}":'
                " give one for all tokens.",
            )
        return self

    def configurations(self, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """Return all choices of a cluster for every token that have a probability above 0.

        Parameters
        ----------
        counts
            Shape (L,): number of clusters of each token.

        Returns
        -------
        clusters
            Shape (C, L): a configuration in each row.
        probabilities
            Shape (C,); they sum to 1.

        Raises
        ------
        ProblemError
            The law does not fit the clusters, does not sum to 1, or has more than
            `MAX_CONFIGURATIONS` configurations.
        """
        counts = [arguments.whole("counts", count, 1) for count in arguments.items("counts", counts)]
        if self.kind == "table":
            clusters, probabilities = self._of_table(counts)
        elif self.kind == "independent":
            clusters, probabilities = _chain([rows[None, :] for rows in self._each_weights(counts)])
        else:
            clusters, probabilities = self._of_equal_counts(counts)
        return clusters, probabilities / probabilities.sum()

    def _each_weights(self, counts: Sequence[int]) -> list[Array]:
        """Weights of every token's clusters, uniform where none are given."""
        if self.weights is None:
            return [np.full(count, 1 / count) for count in counts]
        if not _is_nested(self.weights):
            return [_distribution("weights", self.weights, count) for count in counts]
        if len(self.weights) != len(counts):
            raise ProblemError(
                "tokens.law",
                f"tokens.law.weights has {len(self.weights)} lists, but tokens.length is {len(counts)}:"
                " give one for each token, or a single one for all.",
            )
        each: Any = self.weights
        return [_distribution(f"weights[{l}]", row, counts[l]) for l, row in enumerate(each)]

    def _of_equal_counts(self, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        count, length = counts[0], len(counts)
        if any(other != count for other in counts):
            raise ProblemError(
                "tokens.law",
                f'tokens.law of kind "{self.kind}" needs the same number of clusters for every token, but'
                f" they have {_listed(counts)}: give every token as many, or choose another kind.",
            )
        weights = self._each_weights(counts)[0]
        if self.transition is not None:
            _check_square("tokens.law.transition", self.transition, count, "the number of clusters", "tokens.law")
            rows = [_distribution(f"transition[{c}]", row, count) for c, row in enumerate(self.transition)]
            return _chain([weights[None, :], *[np.array(rows)] * (length - 1)])
        assert self.probability is not None, "checked when the law was made"
        shared = np.repeat(np.arange(count)[:, None], length, axis=1)
        if self.probability == 1:
            return shared[weights > 0], weights[weights > 0]
        clusters, products = _chain([weights[None, :]] * length)
        equal = (clusters == clusters[:, :1]).all(axis=1)
        rest = products[~equal].sum()
        if rest == 0:
            raise ProblemError(
                "tokens.law",
                "tokens.law.probability must be 1 where no configuration has unequal clusters, but it is"
                f" {self.probability!r}: give two tokens and two clusters of positive weight, or set it to 1.",
            )
        probabilities = np.where(
            equal, self.probability * weights[clusters[:, 0]], (1 - self.probability) * products / rest
        )
        return clusters[probabilities > 0], probabilities[probabilities > 0]

    def _of_table(self, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        assert self.table is not None, "checked when the law was made"
        _check_law_table(self.table, counts)
        table = np.array(self.table, dtype=float)
        total = table.sum()
        if abs(total - 1) > _RELATIVE_TOLERANCE:
            raise ProblemError("tokens.law", f"tokens.law.table must sum to 1, but it sums to {total:.10g}.")
        clusters = np.argwhere(table > 0)
        _check_configurations(len(clusters))
        return clusters, table[table > 0]


_LAW_KEYS = {
    "independent": ("weights",),
    "markov": ("weights", "transition"),
    "same": ("weights", "probability"),
    "table": ("table",),
}


def _is_nested(value: Any) -> bool:
    """Tell a list of lists from a list."""
    return isinstance(value, list | tuple) and len(value) > 0 and isinstance(value[0], list | tuple)


def _distribution(place: str, row: Sequence[Any], count: int) -> Array:
    """Check that a list of `count` probabilities sums to 1."""
    name = f"tokens.law.{place}"
    if len(row) != count:
        raise ProblemError(
            "tokens.law",
            f"{name} has {len(row)} numbers, but there are {count} clusters: give one for each cluster.",
        )
    total = sum(row)
    if abs(total - 1) > _RELATIVE_TOLERANCE:
        raise ProblemError("tokens.law", f"{name} must sum to 1, but it sums to {total:.10g}.")
    return np.array(row, dtype=float)


def _check_law_table(table: Any, counts: Sequence[int], place: str = "") -> None:
    name = f"tokens.law.table{place}"
    if not counts:
        is_number = isinstance(table, int | float) and not isinstance(table, bool)
        if not (is_number and 0 <= table <= 1):
            raise ProblemError("tokens.law", f"{name} must be a number from 0 to 1, but it is {_shown(table)}.")
    elif not isinstance(table, tuple) or len(table) != counts[0]:
        size = f"has length {len(table)}" if isinstance(table, tuple) else f"is {_shown(table)}"
        depth = place.count("[")
        raise ProblemError(
            "tokens.law",
            f"{name} must be a list of length {counts[0]}, one entry for each cluster of token {depth}, but it {size}.",
        )
    else:
        for index, item in enumerate(table):
            _check_law_table(item, counts[1:], f"{place}[{index}]")


def _check_configurations(count: int) -> None:
    if count > MAX_CONFIGURATIONS:
        raise ProblemError(
            "tokens.law",
            f"tokens.law has more than {MAX_CONFIGURATIONS} configurations of clusters with a probability"
            " above 0, too many to sum over: take fewer tokens or clusters, or a law with more zeros.",
        )


def _chain(steps: Sequence[Array]) -> tuple[NDArray[np.int64], Array]:
    """Expand a Markov chain; each step has a row for every cluster of the token before, or one row for all."""
    clusters, probabilities = np.zeros((1, 0), dtype=np.int64), np.ones(1)
    for step in steps:
        before = clusters[:, -1] if clusters.shape[1] and len(step) > 1 else np.zeros(len(clusters), dtype=np.int64)
        joint = probabilities[:, None] * step[before]
        parent, cluster = np.nonzero(joint)
        _check_configurations(len(parent))
        clusters, probabilities = np.column_stack([clusters[parent], cluster]), joint[parent, cluster]
    return clusters, probabilities


def _read_spectrum(value: Any) -> Any:
    """Replace the name of a CSV file by its atoms."""
    if isinstance(value, str | PathLike):
        from attnphase.spectrum.measure import read_csv

        value = read_csv(value)
    if (isinstance(value, list | tuple) or getattr(value, "ndim", 0)) and len(value) > MAX_ATOMS:
        raise ProblemError(
            "tokens.spectrum", f"tokens.spectrum must have at most {MAX_ATOMS} atoms, but has {len(value)}."
        )
    return _plain(value, 1)


@_errors_name_fields("tokens")
@dataclass(frozen=True, config=_CONFIG)
class Tokens:
    """The law of the tokens.

    Gaussian: row l of a sentence is drawn from N(0, Σ_l). Mixture: every token has a cluster, drawn
    jointly by ``law``, and row l in cluster c is drawn from N(μ_lc, Σ_lc). A *site* is a pair (token,
    cluster), ordered token by token; P is their number, and P = L for Gaussian tokens.

    All covariances share their eigenvectors. They are either isotropic, by ``sigma`` or the
    clusters' own, or given by a ``spectrum``; one excludes the other, and with neither the standard
    deviation is the paper's 0.5.

    Parameters
    ----------
    kind
        ``"gaussian"`` or ``"mixture"``.
    length
        Number of tokens L, from 1 to 16.
    sigma
        Gaussian tokens: standard deviation of a token's entries, one number or one for each token.
    clusters
        Mixture: the list of clusters of all tokens, or a list of such lists, one for each token.
    law
        Mixture: joint law of the clusters; independent and uniform if left out.
    mean_positions
        Mixture, shape (L, K): products p_l · e_k of the encodings with the clusters' directions,
        0 if left out.
    mean_teacher
        Mixture, shape (t, K): e_kᵀQ⋆_s/√d, 0 if left out.
    spectrum
        The joint spectral measure of the covariances: atoms whose weights sum to 1, a ready-made
        law, or the name of a CSV file of atoms (see `attnphase.spectrum.measure.read_csv`), which is read
        when the tokens are made.

    Raises
    ------
    ProblemError
        A value is of the wrong type, shape or range, or two do not go together.

    Notes
    -----
    Equation (5) of arXiv:2402.03902, with a measure made of atoms; mixtures are its Result C.2.
    """

    kind: Annotated[
        Literal["gaussian", "mixture"],
        Field(description='"gaussian" or "mixture"'),
    ] = "gaussian"
    length: Annotated[int, Strict(), Field(ge=1, le=16, description="a whole number from 1 to 16"), _PLAIN] = 2
    sigma: Annotated[
        _Sigma | tuple[_Sigma, ...] | None,
        Field(description="a positive number from 1e-6 to 1e6, or a list with one for each token"),
        _lists(_MAX_LENGTH),
    ] = None
    clusters: Annotated[
        Annotated[
            Annotated[tuple[Cluster, ...], Tag("#clusters")]
            | Annotated[tuple[tuple[Cluster, ...], ...], Tag("#each-clusters")],
            Discriminator(lambda value: "#each-clusters" if _is_nested(value) else "#clusters"),
        ]
        | None,
        Field(description="a list of tables, each with sigma and mean, or a list of such lists"),
        _lists(_MAX_SITES, _MAX_CLUSTERS),
    ] = None
    law: Annotated[Law | None, Field(description="a table with a kind")] = None
    mean_positions: Annotated[
        _Table | None,
        Field(description=f"a table of {_ENTRIES}, a row for each token and a column for each direction"),
        _lists(_MAX_LENGTH, _MAX_MEAN_DIRECTIONS),
    ] = None
    mean_teacher: Annotated[
        _Table | None,
        Field(description=f"a table of {_ENTRIES}, a row for each teacher column and a column for each direction"),
        _lists(_MAX_COLUMNS, _MAX_MEAN_DIRECTIONS),
    ] = None
    spectrum: Annotated[
        Annotated[
            Annotated[tuple[SpectrumAtom, ...], Tag("#atoms")] | Annotated[SpectrumLaw, Tag("#law")],
            Discriminator(lambda value: "#law" if isinstance(value, Mapping | SpectrumLaw) else "#atoms"),
        ]
        | None,
        Field(
            description="a list of tables, each with a weight and a list of variances, a table with a kind, or a file"
        ),
        BeforeValidator(_read_spectrum),
    ] = None

    @property
    def cluster_lists(self) -> tuple[tuple[Cluster, ...], ...]:
        """The clusters of each token; a Gaussian token has one, of mean zero."""
        if self.clusters is None:
            spread = self.sigma if isinstance(self.sigma, tuple) else (self.sigma,) * self.length
            return tuple((Cluster(sigma=sigma),) for sigma in spread)
        lists: Any = self.clusters if _is_nested(self.clusters) else (self.clusters,) * self.length
        return lists

    @property
    def mean_directions(self) -> int:
        """K, the number of orthonormal vectors in which the clusters' means are given."""
        return max(len(cluster.mean) for row in self.cluster_lists for cluster in row)

    @property
    def configurations(self) -> tuple[NDArray[np.int64], Array]:
        """All choices of a cluster for every token, (C, L), and their probabilities above 0, (C,)."""
        if self.law is None:
            return np.zeros((1, self.length), dtype=np.int64), np.ones(1)
        return self.law.configurations([len(row) for row in self.cluster_lists])

    def spectrum_atoms(self) -> tuple[Array, Array]:
        """Return weights (A,) and variances (A, P) of the spectral measure's atoms."""
        sites = [cluster for row in self.cluster_lists for cluster in row]
        if self.spectrum is None:
            return np.ones(1), np.array([[cluster.sigma for cluster in sites]], dtype=float) ** 2
        if isinstance(self.spectrum, SpectrumLaw):
            return self.spectrum.expand(len(sites))
        return np.array([a.weight for a in self.spectrum]), np.array([a.variances for a in self.spectrum])

    def points(self, key: _Key) -> Array | None:
        """Return the values that the atoms give under an optional key, shape (A, count), or None."""
        arguments.word("key", key, get_args(_Key))
        if self.spectrum is None or isinstance(self.spectrum, SpectrumLaw) or getattr(self.spectrum[0], key) is None:
            return None
        return np.array([getattr(atom, key) for atom in self.spectrum], dtype=float)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "gaussian":
            self._check_gaussian()
        else:
            self._check_mixture()
        if self.spectrum is not None:
            self._check_spectrum()
        return self

    def _check_gaussian(self) -> None:
        for key in ("clusters", "law", "mean_positions", "mean_teacher"):
            if getattr(self, key) is not None:
                raise ProblemError(
                    f"tokens.{key}",
                    f'tokens.{key} does not go with tokens.kind = "gaussian": set tokens.kind = "mixture", or'
                    f" remove tokens.{key}.",
                )
        if self.spectrum is not None:
            if self.sigma is not None:
                raise ProblemError(
                    "tokens.spectrum", "tokens.sigma and tokens.spectrum exclude each other: keep one of them."
                )
        elif self.sigma is None:
            object.__setattr__(self, "sigma", 0.5)
        elif isinstance(self.sigma, tuple) and len(self.sigma) != self.length:
            raise ProblemError(
                "tokens.sigma",
                f"tokens.sigma has {len(self.sigma)} numbers, but tokens.length is {self.length}:"
                " give one for each token, or a single one for all.",
            )

    def _check_mixture(self) -> None:
        if self.sigma is not None:
            raise ProblemError(
                "tokens.sigma",
                'tokens.sigma does not go with tokens.kind = "mixture", whose clusters have their own: give it in'
                " tokens.clusters.",
            )
        self._check_clusters()
        if self.law is None:
            object.__setattr__(self, "law", Law())
        _ = self.configurations  # refuses a law that does not fit
        directions = self.mean_directions
        for key, table in (("mean_positions", self.mean_positions), ("mean_teacher", self.mean_teacher)):
            for index, row in enumerate(table or ()):
                if len(row) != directions:
                    raise ProblemError(
                        f"tokens.{key}",
                        f"tokens.{key} must have {directions} columns, one for each coordinate of the means in"
                        f" tokens.clusters, but its row {index} has length {len(row)}.",
                    )
        if self.mean_positions is not None and len(self.mean_positions) != self.length:
            raise ProblemError(
                "tokens.mean_positions",
                f"tokens.mean_positions has {len(self.mean_positions)} rows, but tokens.length is {self.length}:"
                " give one for each token.",
            )

    def _check_clusters(self) -> None:
        name = "tokens.clusters"
        if self.clusters is None:
            raise ProblemError(
                name, 'tokens.kind = "mixture" needs tokens.clusters: give each cluster\'s sigma and mean.'
            )
        lists = self.cluster_lists
        if len(lists) != self.length:
            raise ProblemError(
                name,
                f"tokens.clusters has {len(lists)} lists, but tokens.length is {self.length}: give one for each"
                " token, or a single one for all.",
            )
        for token, row in enumerate(lists):
            if not 1 <= len(row) <= _MAX_CLUSTERS:
                raise ProblemError(
                    name,
                    f"tokens.clusters must have from 1 to {_MAX_CLUSTERS} clusters for each token, but token {token}"
                    f" has {len(row)}.",
                )
        lengths = sorted({len(cluster.mean) for row in lists for cluster in row if cluster.mean})
        if len(lengths) > 1:
            raise ProblemError(
                name,
                "tokens.clusters must have means of one length, the number of directions they lie in, but there are"
                f" means of length {_listed(lengths)}: fill the short ones up with zeros.",
            )
        if self.spectrum is None:
            self._fill_in_sigma()
        elif any(cluster.sigma is not None for row in lists for cluster in row):
            raise ProblemError(
                name,
                "tokens.clusters gives sigma where tokens.spectrum gives the variances: keep one of them.",
            )

    def _fill_in_sigma(self) -> None:
        def filled(row: Any) -> Any:
            if isinstance(row, tuple):
                return tuple(filled(item) for item in row)
            return Cluster(sigma=0.5, mean=row.mean) if row.sigma is None else row

        object.__setattr__(self, "clusters", filled(self.clusters))

    def _check_spectrum(self) -> None:
        name = "tokens.spectrum"
        lists = self.cluster_lists
        sites = [(token, cluster) for token, row in enumerate(lists) for cluster in range(len(row))]
        mixture = self.kind == "mixture"
        each = (
            f"there are {len(sites)} clusters of all tokens together" if mixture else f"tokens.length is {self.length}"
        )
        one = "one for each cluster of each token" if mixture else "one for each token"
        if not isinstance(self.spectrum, SpectrumLaw):
            self._check_atoms(len(sites), each, one)
        for index, variance in enumerate(self.spectrum_atoms()[1].max(axis=0)):
            if variance == 0:
                token, cluster = sites[index]
                whose = f"cluster {cluster} of token {token}" if mixture else f"token {token}"
                raise ProblemError(
                    name,
                    f"tokens.spectrum gives {whose} no variance at all: make its variance positive in at least"
                    " one atom.",
                )

    def _check_atoms(self, sites: int, each: str, one: str) -> None:
        name = "tokens.spectrum"
        atoms: Any = self.spectrum
        total = sum(atom.weight for atom in atoms)
        if abs(total - 1) > _RELATIVE_TOLERANCE:
            raise ProblemError(name, f"tokens.spectrum needs weights that sum to 1, but they sum to {total:.10g}.")
        for index, atom in enumerate(atoms):
            place = f"tokens.spectrum[{index}]"
            if len(atom.variances) != sites:
                raise ProblemError(
                    name, f"{place}.variances has {len(atom.variances)} numbers, but {each}: give {one}."
                )
            for key in ("positions", "means", "teacher"):
                if (getattr(atom, key) is None) != (getattr(atoms[0], key) is None):
                    raise ProblemError(
                        name,
                        f"{place}.{key} and tokens.spectrum[0].{key} are not both given: give {key} for all atoms"
                        " or for none.",
                    )
            if atom.positions is not None and len(atom.positions) != self.length:
                raise ProblemError(
                    name,
                    f"{place}.positions has {len(atom.positions)} numbers, but tokens.length is {self.length}:"
                    " give one for each token.",
                )
            if atom.means is not None and len(atom.means) != sites:
                raise ProblemError(name, f"{place}.means has {len(atom.means)} numbers, but {each}: give {one}.")
            if atom.teacher is not None and len(atom.teacher) != len(atoms[0].teacher):
                raise ProblemError(
                    name,
                    f"{place}.teacher has {len(atom.teacher)} numbers, but tokens.spectrum[0].teacher has"
                    f" {len(atoms[0].teacher)}: give one for each column of the teacher.",
                )
        if atoms[0].means is not None:
            self._check_no_other_means()

    def _check_no_other_means(self) -> None:
        if self.kind == "gaussian":
            raise ProblemError(
                "tokens.spectrum",
                'tokens.spectrum gives means, which do not go with tokens.kind = "gaussian": set tokens.kind ='
                ' "mixture", or remove them.',
            )
        if self.mean_directions > 0:
            raise ProblemError(
                "tokens.clusters",
                "tokens.clusters gives means and so does tokens.spectrum: keep one of them.",
            )


@_errors_name_fields("positions")
@dataclass(frozen=True, config=_CONFIG)
class Positions:
    """The positional encodings, known through their products p_l · p_k.

    Parameters
    ----------
    kind
        ``"opposite"``: p_1 = -p_2 = 1/√d, for two tokens. ``"gram"``: the products are ``gram``.
        ``"spectrum"``: the atoms of ``tokens.spectrum`` have them. ``"none"``: no encodings. Left
        out, it is ``"gram"`` if ``gram`` is given, ``"spectrum"`` if the atoms have them, and else
        follows the number of tokens: see `Problem`.
    gram
        Shape (L, L), symmetric and positive semidefinite: the products p_l · p_k.
    teacher
        Shape (L, t): products p_l · Q⋆_s/√d of encodings that are correlated with the teacher, 0 if
        left out.

    Raises
    ------
    ProblemError
        A value is of the wrong type, ``gram`` is not a Gram matrix, or it does not go with
        ``kind``.
    """

    kind: Annotated[
        Literal["opposite", "gram", "spectrum", "none"] | None,
        Field(description='"opposite", "gram", "spectrum" or "none"'),
    ] = None
    gram: Annotated[
        _Table | None,
        Field(description=f"a square table of {_ENTRIES}, the products of the encodings"),
        _lists(_MAX_LENGTH, _MAX_LENGTH),
    ] = None
    teacher: Annotated[
        _Table | None,
        Field(description=f"a table of {_ENTRIES}, a row for each token and a column for each teacher column"),
        _lists(_MAX_LENGTH, _MAX_COLUMNS),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gram is not None:
            if self.kind is None:
                object.__setattr__(self, "kind", "gram")
            if self.kind != "gram":
                raise ProblemError(
                    "positions.gram",
                    f'positions.gram does not go with positions.kind = "{self.kind}": set'
                    ' positions.kind = "gram", or remove positions.gram.',
                )
            _check_gram(self.gram)
        elif self.kind == "gram":
            raise ProblemError(
                "positions.gram",
                'positions.kind = "gram" needs positions.gram, the table of products p_l . p_k:'
                " give it, or choose another kind.",
            )
        return self


def _check_gram(gram: tuple[tuple[float, ...], ...]) -> None:
    name = "positions.gram"
    _check_square(name, gram, len(gram), "the number of its rows")
    matrix = np.array(gram, dtype=float).reshape(len(gram), len(gram))
    largest = np.abs(matrix).max(initial=0.0)
    if largest == 0:
        return
    matrix = matrix / largest
    if np.abs(matrix - matrix.T).max() > _RELATIVE_TOLERANCE:
        row, column = np.unravel_index(np.abs(matrix - matrix.T).argmax(), matrix.shape)
        raise ProblemError(
            name,
            f"positions.gram must be symmetric, but its entries [{row}][{column}] and"
            f" [{column}][{row}] are {gram[row][column]!r} and {gram[column][row]!r}.",
        )
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    if eigenvalues[0] < -_RELATIVE_TOLERANCE * np.abs(eigenvalues).max():
        raise ProblemError(
            name,
            "positions.gram must be positive semidefinite, as products p_l . p_k are, but it has"
            f" the eigenvalue {eigenvalues[0] * largest:.4g}.",
        )


def _check_square(
    name: str, table: tuple[tuple[float, ...], ...], size: int, source: str = "tokens.length", field: str | None = None
) -> None:
    _check_table(name, table, (size, size), (source, source), field)


def _check_table(
    name: str,
    table: tuple[tuple[float, ...], ...],
    shape: tuple[int, int],
    sources: tuple[str, str],
    field: str | None = None,
) -> None:
    """Check a table's shape; `sources` say what sets its rows and columns."""
    size = f"{shape[0]} by {shape[1]}"
    if len(table) != shape[0]:
        raise ProblemError(
            field or name, f"{name} has {len(table)} rows, but must be {size}: {sources[0]} is {shape[0]}."
        )
    for index, row in enumerate(table):
        if len(row) != shape[1]:
            raise ProblemError(
                field or name,
                f"{name} must be {size}, since {sources[1]} is {shape[1]}, but its row {index} has length {len(row)}.",
            )


@_errors_name_fields("teacher")
@dataclass(frozen=True, config=_CONFIG)
class Teacher:
    """The target T[k] = (1 - ω) score(k kᵀ) + ω A applied to the tokens.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, or the user's
        ``"module:attribute"``.
    rank
        Number t of columns of Q⋆, from 1 to 8.
    omega
        Weight of the positional part, from 0 to 1.
    mixing
        Shape (L, L): the positional part A. Left out, it follows the number of tokens: see
        `Problem`.
    temperature
        Divides the logits, from 1e-6 to 1e6.
    causal
        Whether token a attends only to tokens b <= a.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (1) and (16) of arXiv:2402.03902.
    """

    score: _Score = "softmax"
    rank: _Rank = 1
    omega: Annotated[
        float,
        Strict(),
        Field(ge=0, le=1, allow_inf_nan=False, description="a number from 0 to 1"),
        _PLAIN,
    ] = 0.3
    mixing: Annotated[
        _Table | None,
        Field(description=f"a square table of {_ENTRIES}, one row for each token"),
        _lists(_MAX_LENGTH, _MAX_LENGTH),
    ] = None
    temperature: _Temperature = 1.0
    causal: _Flag = False


@_errors_name_fields("student")
@dataclass(frozen=True, config=_CONFIG)
class Student:
    """The attention layer that is trained: S[h] applied to tokens plus encodings.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, or the user's
        ``"module:attribute"``.
    rank
        Number r of columns of Q (and of K), from 1 to 8.
    tied
        Whether queries and keys share their weights, S of h hᵀ, or not, S of h_Q h_Kᵀ.
    temperature
        Divides the logits, from 1e-6 to 1e6.
    causal
        Whether token a attends only to tokens b <= a.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (2) and (15), untied (124), of arXiv:2402.03902.
    """

    score: _Score = "softmax"
    rank: _Rank = 1
    tied: _Flag = True
    temperature: _Temperature = 1.0
    causal: _Flag = False


@_errors_name_fields("regularizer")
@dataclass(frozen=True, config=_CONFIG)
class Regularizer:
    """The penalty on the weights, a sum over the rows w_i of W; (λ/2)‖W‖²_F for the ridge.

    Parameters
    ----------
    kind
        ``"ridge"``: (strength/2) w². ``"lasso"``: strength |w|. ``"elastic-net"``: strength |w| +
        (ridge/2) w². ``"group-lasso"``: strength ‖w_i‖ + (ridge/2) ‖w_i‖². ``"expression"`` and
        ``"prox"``: the user's own, plus (ridge/2) w².
    strength
        λ, above 0. Not for ``"expression"`` and ``"prox"``, which have their own scale.
    ridge
        Strength of the added ridge, 0 or more; for every kind but ``"ridge"`` and ``"lasso"``.
    expression
        For ``"expression"``: a convex function of one weight ``w``, such as
        ``"0.01*sqrt(w**2 + 0.1)"``, summed over all weights.
    prox
        For ``"prox"``: ``"module:function"``, the proximal operator prox(v, step) of an even convex
        function, vectorised over v of shape (..., r).

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.

    Notes
    -----
    Equation (3) of arXiv:2402.03902; for other kinds than the ridge (100)-(106).
    """

    kind: Annotated[
        Literal["ridge", "lasso", "elastic-net", "group-lasso", "expression", "prox"],
        Field(description='"ridge", "lasso", "elastic-net", "group-lasso", "expression" or "prox"'),
    ] = "ridge"
    strength: Annotated[
        float,
        Strict(),
        Field(ge=1e-8, le=1e8, allow_inf_nan=False, description="a number from 1e-8 to 1e8"),
        _PLAIN,
    ] = _STRENGTH
    ridge: Annotated[
        float,
        Strict(),
        Field(ge=0, le=1e8, allow_inf_nan=False, description="a number from 0 to 1e8"),
        _PLAIN,
    ] = 0.0
    expression: Annotated[
        _Name | None,
        Field(description="a formula in one weight w"),
    ] = None
    prox: Annotated[
        _Name | None,
        Field(description='the name of a function as "module:function"'),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind in ("ridge", "lasso") and self.ridge != 0:
            instead = "regularizer.strength" if self.kind == "ridge" else 'regularizer.kind = "elastic-net"'
            raise ProblemError(
                "regularizer.ridge",
                f'regularizer.ridge does not go with regularizer.kind = "{self.kind}": use {instead} instead.',
            )
        _check_own_key("regularizer", self.kind, "expression", self.expression)
        _check_own_key("regularizer", self.kind, "prox", self.prox)
        if self.kind in ("expression", "prox") and self.strength != _STRENGTH:
            raise ProblemError(
                "regularizer.strength",
                f'regularizer.strength does not go with regularizer.kind = "{self.kind}": remove it, and put the scale'
                f" into regularizer.{self.kind}.",
            )
        if self.prox is not None and not re.fullmatch(r"[\w.]+:[\w.]+", self.prox):
            raise ProblemError(
                "regularizer.prox",
                f'regularizer.prox must be the name of a function as "module:function", but it is {_shown(self.prox)}.',
            )
        return self


def _check_own_key(section: str, kind: str, key: str, value: str | None) -> None:
    """Check that a key which belongs to the kind of the same name comes with it, and only with it."""
    if kind == key and value is None:
        raise ProblemError(f"{section}.{key}", f'{section}.kind = "{kind}" needs {section}.{key}: give it.')
    if kind != key and value is not None:
        raise ProblemError(
            f"{section}.{key}",
            f'{section}.{key} does not go with {section}.kind = "{kind}": set {section}.kind = "{key}", or remove it.',
        )


@_errors_name_fields("loss")
@dataclass(frozen=True, config=_CONFIG)
class Loss:
    """The loss of one sample, a function of its local fields h and k.

    Parameters
    ----------
    kind
        ``"attention"``: ½‖T[k] x - S[h] (x+p)‖², the paper's. ``"values"``: both layers have value
        matrices of ``width`` columns, ½‖T(k_Q) k_V - S(h_Q) h_V‖², where W = (Q|V) or (Q|K|V) and
        Q⋆ = (Q|V). ``"square"``: (h - k)²/2; ``"logistic"``: log(1 + exp(-sign(k) h)); ``"hinge"``:
        max(0, 1 - sign(k) h): these three are for one token and one column. ``"expression"``: the
        user's own. All but the first two know no attention, and use no score, ω or mixing.
    width
        For ``"values"``: columns of the value matrices, from 1 to 8; 1 if left out.
    expression
        For ``"expression"``: a formula in the fields ``h0_0`` (token 0, column 0) and ``k0_0``, or
        plain ``h`` and ``k`` if there is one of each. Finite for all fields, and falling more slowly
        than their square.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.
    """

    kind: Annotated[
        Literal["attention", "values", "square", "logistic", "hinge", "expression"],
        Field(description='"attention", "values", "square", "logistic", "hinge" or "expression"'),
    ] = "attention"
    width: Annotated[
        _Rank | None,
        Field(description="a whole number from 1 to 8"),
    ] = None
    expression: Annotated[
        _Name | None,
        Field(description="a formula in the local fields h and k"),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "values":
            if self.width is None:
                object.__setattr__(self, "width", 1)
        elif self.width is not None:
            raise ProblemError(
                "loss.width",
                f'loss.width does not go with loss.kind = "{self.kind}": set loss.kind = "values", or remove it.',
            )
        _check_own_key("loss", self.kind, "expression", self.expression)
        return self

    @property
    def value_columns(self) -> int:
        """Columns that the value matrices add to the weights of student and teacher."""
        return self.width or 0

    @property
    def has_attention(self) -> bool:
        """Whether scores, temperatures and masks enter."""
        return self.kind in ("attention", "values")


@_errors_name_fields("integration")
@dataclass(frozen=True, config=_CONFIG)
class Integration:
    """How expectations over Gaussian fields are computed.

    Parameters
    ----------
    rule
        ``"auto"``, ``"gauss-hermite"``, ``"sobol"`` (scrambled points, with standard errors), or
        ``"published"``, the 144 nodes behind the paper's figures.
    standard_error
        Relative standard error asked for on q, between 0 and 1.
    seed
        Seed of the scrambled points, 0 or more.
    nodes
        Overrides the rule's own choice: for ``"gauss-hermite"`` the nodes in each dimension, from
        1 to 256; for ``"sobol"`` the points in each replicate, a power of two up to 2**24.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, or ``nodes`` does not go with ``rule``.
    """

    rule: Annotated[
        Literal["auto", "gauss-hermite", "sobol", "published"],
        Field(description='"auto", "gauss-hermite", "sobol" or "published"'),
    ] = "auto"
    standard_error: Annotated[
        float,
        Strict(),
        Field(gt=0, lt=1, allow_inf_nan=False, description="a number between 0 and 1"),
        _PLAIN,
    ] = 1e-3
    seed: Annotated[
        int,
        Strict(),
        Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1"),
        _PLAIN,
    ] = 0
    nodes: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=2**24)] | None,
        Field(description="a whole number from 1 to 2**24"),
        _PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        name = "integration.nodes"
        if self.nodes is None:
            return self
        if self.rule == "published":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "published", whose nodes'
                " are fixed: remove it, or choose another rule.",
            )
        if self.rule == "auto":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "auto", which chooses them:'
                ' set integration.rule to "gauss-hermite" or "sobol", or remove it.',
            )
        if self.rule == "gauss-hermite" and self.nodes > 256:
            raise ProblemError(
                name,
                "integration.nodes must be at most 256 nodes per dimension for"
                f' integration.rule = "gauss-hermite", but it is {self.nodes}.',
            )
        if self.rule == "sobol" and self.nodes & (self.nodes - 1):
            raise ProblemError(
                name,
                f'integration.nodes must be a power of two for integration.rule = "sobol", but it is {self.nodes}.',
            )
        return self


@_errors_name_fields("")
@dataclass(frozen=True, config=_CONFIG)
class Problem:
    """A whole problem; what is left out is the paper's.

    Two defaults follow the number of tokens L. The mixing matrix is the paper's
    ((.6, .4), (.4, .6)) for L = 2 and uniform, 1/L, otherwise. The encodings are the paper's
    opposite ones for L = 2; for L > 2 they are their generalisation, the corners of a simplex
    around the origin: unit norms and products -1/(L-1), under ``kind = "gram"``; for L = 1, where
    there is no position to tell, ``"none"``. Both are filled in, so that a default left out and the
    same value written out make equal problems. Where the atoms of ``tokens.spectrum`` have the
    encodings, ``positions.kind`` is ``"spectrum"``.

    Parameters
    ----------
    tokens, positions, teacher, student, regularizer, integration, loss
        The sections of the TOML, as objects or as mappings.

    Raises
    ------
    ProblemError
        A value is wrong in itself or does not go with another.

    Notes
    -----
    The setting of Figure 2 of arXiv:2402.03902 is ``Problem()``.
    """

    tokens: Annotated[Tokens, Field(description="a table")] = Tokens()
    positions: Annotated[Positions, Field(description="a table")] = Positions()
    teacher: Annotated[Teacher, Field(description="a table")] = Teacher()
    student: Annotated[Student, Field(description="a table")] = Student()
    regularizer: Annotated[Regularizer, Field(description="a table")] = Regularizer()
    integration: Annotated[Integration, Field(description="a table")] = Integration()
    loss: Annotated[Loss, Field(description="a table")] = Loss()
    # fields that nobody gave, so that they follow the length in `with_fields`
    _filled_in: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False, hash=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._fill_in()
        length = self.tokens.length
        _check_square("teacher.mixing", self._mixing, length)
        if self.positions.kind == "opposite" and length != 2:
            raise ProblemError(
                "positions.kind",
                f'positions.kind = "opposite" needs tokens.length = 2, but it is {length}: choose "gram" or "none".',
            )
        if self.positions.gram is not None:
            _check_square("positions.gram", self.positions.gram, length)
        self._check_spectrum_positions()
        self._check_products()
        self._check_loss()
        self._check_own_functions()
        if self.integration.rule == "published":
            needs = {
                "tokens.length = 2": length == 2,
                'tokens.kind = "gaussian"': self.tokens.kind == "gaussian",
                "teacher.rank = 1": self.teacher.rank == 1,
                "student.rank = 1": self.student.rank == 1,
                "student.tied = true": self.student.tied,
                'loss.kind = "attention"': self.loss.kind == "attention",
            }
            for need, met in needs.items():
                if not met:
                    raise ProblemError(
                        "integration.rule",
                        f'integration.rule = "published" needs {need}: choose "auto" for this problem.',
                    )
        return self

    def _check_spectrum_positions(self) -> None:
        in_atoms = self.tokens.points("positions") is not None
        if in_atoms and self.positions.kind != "spectrum":
            raise ProblemError(
                "positions.kind",
                f'positions.kind = "{self.positions.kind}" does not go with positions in the atoms of tokens.spectrum:'
                ' set positions.kind = "spectrum", or remove one of them.',
            )
        if self.positions.kind == "spectrum" and not in_atoms:
            raise ProblemError(
                "positions.kind",
                'positions.kind = "spectrum" needs positions in every atom of tokens.spectrum: give them, or choose'
                " another kind.",
            )

    def _check_products(self) -> None:
        """Check what is known of the joint Gram matrix of cluster directions, encodings and teacher."""
        length, columns = self.tokens.length, self.teacher_columns
        tables: dict[str, tuple[_Table | None, tuple[_Key, _Key]]] = {
            "tokens.mean_positions": (self.tokens.mean_positions, ("means", "positions")),
            "tokens.mean_teacher": (self.tokens.mean_teacher, ("means", "teacher")),
            "positions.teacher": (self.positions.teacher, ("positions", "teacher")),
        }
        size = "teacher.rank" if self.loss.kind != "values" else "teacher.rank + loss.width"
        if self.positions.teacher is not None:
            _check_table("positions.teacher", self.positions.teacher, (length, columns), ("tokens.length", size))
        if self.tokens.mean_teacher is not None:
            shape = (columns, self.tokens.mean_directions)
            _check_table(
                "tokens.mean_teacher", self.tokens.mean_teacher, shape, (size, "the length of a cluster's mean")
            )
        for name, (table, keys) in tables.items():
            for key in keys:
                if table is not None and self.tokens.points(key) is not None:
                    raise ProblemError(
                        name,
                        f"{name} does not go with {key} in the atoms of tokens.spectrum: remove it, and give both"
                        f" {keys[0]} and {keys[1]} in the atoms if they are correlated.",
                    )
        self._check_teacher_points()
        given = [name for name, (table, _) in tables.items() if table is not None and np.any(np.array(table))]
        if given:
            self._check_joint_gram(given)

    def _check_teacher_points(self) -> None:
        points = self.tokens.points("teacher")
        if points is None:
            return
        name, columns = "tokens.spectrum", self.teacher_columns
        if points.shape[1] != columns:
            raise ProblemError(
                name,
                f"tokens.spectrum[0].teacher has {points.shape[1]} numbers, but the teacher has {columns} columns:"
                " give one for each.",
            )
        weights, variances = self.spectrum_atoms()
        overlaps = np.einsum("a,as,ai,aj->sij", weights, variances, points, points)
        scale = np.sqrt(np.maximum(np.einsum("sii->si", overlaps), np.finfo(float).tiny))
        lowest = np.linalg.eigvalsh(overlaps / (scale[:, :, None] * scale[:, None, :]))[:, 0]
        if lowest.min() < _RELATIVE_TOLERANCE:
            token, cluster = self.sites[int(lowest.argmin())]
            whose = f"token {token}" if self.tokens.kind == "gaussian" else f"cluster {cluster} of token {token}"
            raise ProblemError(
                name,
                f"tokens.spectrum gives teacher values whose fields on {whose} vanish or are not independent: give"
                " the columns of the teacher independent values, not zero, where the variance is not zero.",
            )

    def _check_joint_gram(self, given: list[str]) -> None:
        blocks = {
            "tokens.mean_positions": ("cluster directions e_k", "encodings p_l", slice(0, 2)),
            "tokens.mean_teacher": ("cluster directions e_k", "the teacher's columns", slice(0, 3, 2)),
            "positions.teacher": ("encodings p_l", "the teacher's columns", slice(1, 3)),
        }
        gram = self.joint_gram
        ends = np.cumsum([0, self.tokens.mean_directions, self.tokens.length, self.teacher_columns])
        parts = [np.arange(first, last) for first, last in itertools.pairwise(ends)]
        for name in given:
            first, second, chosen = blocks[name]
            index = np.concatenate(parts[chosen])
            fault = _gram_fault(gram[np.ix_(index, index)])
            if fault:
                raise ProblemError(
                    name, f"{name} has products that no {first} and {second} can have: {fault}; make them smaller."
                )
        fault = _gram_fault(gram)
        if fault:
            raise ProblemError(
                given[0],
                f"{_listed(given)} have products that no cluster directions, encodings and teacher can have together:"
                f" {fault}; make them smaller.",
            )

    def _check_loss(self) -> None:
        kind = self.loss.kind
        if kind in ("square", "logistic", "hinge"):
            needs = {
                "tokens.length = 1": self.tokens.length == 1,
                "teacher.rank = 1": self.teacher.rank == 1,
                "student.rank = 1": self.student.rank == 1,
                "student.tied = true": self.student.tied,
            }
            for need, met in needs.items():
                if not met:
                    raise ProblemError(
                        "loss.kind", f'loss.kind = "{kind}" needs {need}: set it, or choose another loss.'
                    )
        if not self.loss.has_attention:
            default: Any
            for section in ("teacher", "student"):
                for key, default in (("score", "softmax"), ("temperature", 1.0), ("causal", False)):
                    if getattr(getattr(self, section), key) != default:
                        raise ProblemError(
                            f"{section}.{key}",
                            f'{section}.{key} does not go with loss.kind = "{kind}", which knows no attention: remove'
                            " it.",
                        )

    def _check_own_functions(self) -> None:
        """Check the user's formulas and functions, which takes SymPy: only where there are any."""
        length = self.tokens.length
        if self.loss.has_attention:
            for section, score in (("teacher", self.teacher.score), ("student", self.student.score)):
                if score not in SHIPPED_SCORES and self._may_look_up(score):
                    from attnphase.kernels.compiler import check_score

                    check_score(score, length, f"{section}.score")
        if self.loss.expression is not None:
            from attnphase.kernels.compiler import check_loss

            check_loss(self.loss.expression, length, self.columns, self.teacher_columns)
        own = self.regularizer.prox or self.regularizer.expression
        if own is not None and (own == self.regularizer.expression or self._may_look_up(own)):
            from attnphase.rows.own import check_regularizer

            check_regularizer(self.regularizer, self.columns)

    def _may_look_up(self, name: str) -> bool:
        """Whether a function may be looked up, which may import a module; a formula may always be read."""
        return True

    @property
    def imports(self) -> dict[str, str]:
        """Fields whose function is that of a module, with what they name as "module:function"."""
        named = {}
        if self.loss.has_attention:
            named = {"teacher.score": self.teacher.score, "student.score": self.student.score}
        named["regularizer.prox"] = self.regularizer.prox or ""
        return {name: value for name, value in named.items() if ":" in value}

    def require_functions(self) -> None:
        """Refuse functions of modules that nobody but data asks for, before they are looked up; see `DataProblem`.

        Raises
        ------
        ProblemError
            Naming the field and what to do.
        """

    def _fill_in(self) -> None:
        length = self.tokens.length
        filled_in = set()
        if self.teacher.mixing is None:
            uniform = ((1 / length,) * length,) * length
            mixing = PAPER_MIXING if length == 2 else uniform
            object.__setattr__(self, "teacher", replace(self.teacher, mixing=mixing))
            filled_in.add("teacher.mixing")
        if self.positions.kind is None:
            if self.tokens.points("positions") is not None:
                positions = replace(self.positions, kind="spectrum")
            elif length > 2:
                positions = replace(self.positions, kind="gram", gram=_simplex(length))
            else:
                positions = replace(self.positions, kind="opposite" if length == 2 else "none")
            object.__setattr__(self, "positions", positions)
            filled_in |= {"positions.kind", "positions.gram"}
        object.__setattr__(self, "_filled_in", frozenset(filled_in))

    @classmethod
    def paper(
        cls,
        omega: float = 0.3,
        *,
        sigma: float = 0.5,
        strength: float = 0.01,
        mixing: tuple[tuple[float, ...], ...] = PAPER_MIXING,
    ) -> Self:
        """Return the paper's problem, at the parameters it varies.

        Parameters
        ----------
        omega
            Weight of the teacher's positional part.
        sigma
            Standard deviation of the tokens' entries.
        strength
            Ridge strength λ.
        mixing
            Shape (2, 2): positional part A; the paper's second example, equation (144), has
            ((.3, .7), (.8, .2)).

        Returns
        -------
        Problem
            Two tokens, opposite encodings, rank 1, tied, softmax.

        Raises
        ------
        ProblemError
            A value is out of range.
        """
        return cls(
            tokens=Tokens(sigma=sigma),
            teacher=Teacher(omega=omega, mixing=mixing),
            regularizer=Regularizer(strength=strength),
        )

    @property
    def columns(self) -> int:
        """Number of columns of the student's weights: r if tied, 2r for (Q|K), plus the value matrix's."""
        return self.student.rank * (1 if self.student.tied else 2) + self.loss.value_columns

    @property
    def teacher_columns(self) -> int:
        """Number of columns of the teacher's weights Q⋆: t, plus the value matrix's."""
        return self.teacher.rank + self.loss.value_columns

    @property
    def sites(self) -> tuple[tuple[int, int], ...]:
        """The P pairs (token, cluster), token by token; L pairs (l, 0) for Gaussian tokens."""
        lists = self.tokens.cluster_lists
        return tuple((token, cluster) for token, row in enumerate(lists) for cluster in range(len(row)))

    @property
    def cluster_law(self) -> tuple[NDArray[np.int64], Array]:
        """The joint law of the clusters.

        Returns
        -------
        configurations
            Shape (C, L): the site of each token, for every configuration of probability above 0.
        probabilities
            Shape (C,); they sum to 1.
        """
        clusters, probabilities = self.tokens.configurations
        counts = [len(row) for row in self.tokens.cluster_lists]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        return clusters + first, probabilities

    @property
    def positions_gram(self) -> Array:
        """Products p_l · p_k of the encodings, shape (L, L)."""
        points = self.tokens.points("positions")
        if points is not None:
            weights, _ = self.spectrum_atoms()
            return (points.T * weights) @ points
        if self.positions.gram is not None:
            gram = np.array(self.positions.gram)
            return (gram + gram.T) / 2
        if self.positions.kind == "opposite":
            return np.array([[1.0, -1.0], [-1.0, 1.0]])
        return np.zeros((self.tokens.length, self.tokens.length))

    @property
    def site_means(self) -> Array:
        """Coordinates of each site's mean μ in the orthonormal directions e_k, shape (P, K).

        Where the atoms of ``tokens.spectrum`` have the means, there are no directions: K = 0.
        """
        directions = self.tokens.mean_directions
        rows = [cluster.mean or (0.0,) * directions for row in self.tokens.cluster_lists for cluster in row]
        return np.array(rows).reshape(len(rows), directions)

    @property
    def joint_gram(self) -> Array:
        """Products of the vectors (e_1..e_K, p_1..p_L, Q⋆_1/√d..Q⋆_t/√d), a square of side K + L + t."""
        directions, length, columns = self.tokens.mean_directions, self.tokens.length, self.teacher_columns
        weights, _ = self.spectrum_atoms()
        positions, teacher = self.tokens.points("positions"), self.tokens.points("teacher")
        mean_positions = _table_or_zeros(self.tokens.mean_positions, (length, directions))
        mean_teacher = _table_or_zeros(self.tokens.mean_teacher, (columns, directions))
        positions_teacher = _table_or_zeros(self.positions.teacher, (length, columns))
        if positions is not None and teacher is not None:
            positions_teacher = (positions.T * weights) @ teacher
        teachers = np.eye(columns) if teacher is None else (teacher.T * weights) @ teacher
        return np.block(
            [
                [np.eye(directions), mean_positions.T, mean_teacher.T],
                [mean_positions, self.positions_gram, positions_teacher],
                [mean_teacher, positions_teacher.T, teachers],
            ]
        )

    @property
    def mixing_matrix(self) -> Array:
        """Positional part A of the teacher, shape (L, L)."""
        return np.array(self._mixing)

    @property
    def _mixing(self) -> tuple[tuple[float, ...], ...]:
        assert self.teacher.mixing is not None, "filled in when the problem was made"
        return self.teacher.mixing

    @property
    def site_variances(self) -> Array:
        """Mean variance ρ^Σ_s = tr Σ_s / d of an entry at each site, shape (P,)."""
        weights, variances = self.spectrum_atoms()
        return weights @ variances

    @property
    def token_variances(self) -> Array:
        """Mean variance of each token's entries, shape (L,); for a mixture the mean over its clusters."""
        configurations, probabilities = self.cluster_law
        return probabilities @ self.site_variances[configurations]

    def spectrum_atoms(self) -> tuple[Array, Array]:
        """Return the joint spectral measure of the covariances, as atoms.

        Returns
        -------
        weights
            Shape (A,): fraction of the eigen-directions; they sum to 1.
        variances
            Shape (A, P): eigenvalues γ_s of each site's covariance there.
        """
        return self.tokens.spectrum_atoms()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the sections and their keys as plain dicts, lists and scalars.

        Returns
        -------
        dict
            ``{"tokens": {"kind": "gaussian", …}, …}``, with the defaults filled in, but without the
            keys that have no value and those that a plain problem does not need: temperatures of 1,
            masks that are not there, a ridge of 0, and the loss if it is the paper's.
        """
        data = {name: _as_plain_dict(getattr(self, name)) for name in _SECTIONS}
        if self.loss == Loss():
            del data["loss"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a problem from nested mappings, as a TOML parser returns them.

        Parameters
        ----------
        data
            Sections by name; what is missing is the paper's.

        Raises
        ------
        ProblemError
            A key is unknown, or a value is wrong.
        """
        if not isinstance(data, Mapping):
            raise ProblemError("problem", f"A problem must be a table, but it is {_shown(data)}.")
        for name in data:
            if name not in _SECTIONS:
                raise _unknown_key(cls, "", str(name))
        return cls(**data)

    def to_toml(self) -> str:
        """Return the problem as TOML, with the defaults filled in; `from_toml` reads it back."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Make a problem from TOML text.

        Parameters
        ----------
        text
            The TOML; what is missing is the paper's.

        Raises
        ------
        ProblemError
            It is not a text, not TOML, a key is unknown, or a value is wrong.
        """
        return cls.from_dict(_parse_toml(arguments.text("text", text, "a problem as TOML text")))

    @staticmethod
    def from_data(text: str, digest: str) -> DataProblem:
        """Make a problem from the TOML that came with data, which nobody vouches for.

        Unlike `from_toml` it imports no module and opens no file, whatever the text names.

        Parameters
        ----------
        text
            As `to_toml` wrote it.
        digest
            The `hash` that came with it.

        Raises
        ------
        ProblemError
            The hash belongs to another text (the error's field is then ``problem_hash``), or this is no problem.
        """
        if _digest(text) != digest:
            raise ProblemError("problem_hash", "The problem's hash belongs to another problem.")
        return DataProblem.from_dict(_parse_toml(text))

    def with_fields(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Self:
        """Return a copy in which some fields have new values.

        Defaults that nobody gave follow a new length. Of two fields that exclude each other
        (``tokens.sigma`` and ``tokens.spectrum``; ``positions.gram`` and another
        ``positions.kind``), the new one displaces the old, and a new kind displaces what belongs to
        the old one.

        Parameters
        ----------
        values, **named
            New values by the field's name in the TOML, such as ``{"teacher.omega": 0.2}`` or
            ``{"tokens.law.probability": 0.7}``; None takes a field back to its default.

        Raises
        ------
        ProblemError
            A field is unknown, or a value is wrong; or `values` is no mapping.

        Examples
        --------
        >>> Problem().with_fields({"teacher.omega": 0.2}).teacher.omega
        0.2
        """
        if values is not None:
            arguments.mapping("values", values, "a mapping from fields of the problem to new values")
        changes = {**(values or {}), **named}
        data = self.to_dict()
        for name in self._filled_in:
            section, _, key = name.partition(".")
            data[section].pop(key, None)
        for name, value in changes.items():
            section, key, inner = _split_name(name)
            entries = data.setdefault(section, {})
            if not _same(entries.get(key), value) or inner:
                _displace(data, f"{section}.{key}", value if not inner else None, changes)
            if inner:
                entries = entries.setdefault(key, {})
                key = inner
                if not isinstance(entries, dict):
                    raise ProblemError(
                        name, f"{name} cannot be set, since the present {section}.{key} is no ready-made law."
                    )
                if inner == "kind":
                    _forget_other_kinds(entries, name.rpartition(".")[0], value, changes)
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
        return type(self).from_dict(data)

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of `to_toml`: equal for equal problems."""
        return _digest(self.to_toml())

    def __repr__(self) -> str:
        """One line: what the problem is, and in which fields it is not the paper's."""
        student, teacher = self.student, self.teacher
        plural = "" if self.tokens.length == 1 else "s"
        parts = [f"{self.tokens.length} {'Gaussian' if self.tokens.kind == 'gaussian' else 'mixture'} token{plural}"]
        if self.loss.has_attention:
            parts.append(
                f"{'tied' if student.tied else 'untied'} {_brief(student.score)} student of rank {student.rank}"
            )
            parts.append(f"{_brief(teacher.score)} teacher of rank {teacher.rank}")
        else:
            parts.append(f"r = {self.columns}, t = {self.teacher_columns}")
        parts += [self.regularizer.kind, f"{self.loss.kind} loss"]
        changed = [f"{name} = {_brief(value)}" for name, value in self._unlike(Problem()).items()]
        more = f" and {len(changed) - _REPR_FIELDS} more" if len(changed) > _REPR_FIELDS else ""
        unlike = f"not as in the paper {', '.join(changed[:_REPR_FIELDS])}{more}" if changed else "as in the paper"
        return f"<Problem {self.hash}: {', '.join(parts)}; {unlike}>"

    def _unlike(self, other: Problem) -> dict[str, Any]:
        """The fields that somebody gave and that the other problem does not have or has otherwise."""
        theirs = other.to_dict()
        return {
            f"{section}.{key}": value
            for section, entries in self.to_dict().items()
            for key, value in entries.items()
            if f"{section}.{key}" not in self._filled_in and theirs.get(section, {}).get(key) != value
        }

    def _repr_markdown_(self) -> str:
        """The model's equations and numbers, for notebooks."""
        from attnphase.pages.page import model_equations

        return model_equations(self)


class DataProblem(Problem):
    """A problem that came with data: it is looked at, compared and changed like any other, but imports nothing.

    Its functions of modules are looked up by nobody, and it names no file.  To solve it, make a `Problem` of it, which
    is to trust it: ``Problem.from_toml(problem.to_toml())``.  Formulas and scores that were registered in this process
    need no import, and may be used.
    """

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `Problem.from_dict`, without opening the file of a spectrum.

        Raises
        ------
        ProblemError
            A key is unknown, a value is wrong, or ``tokens.spectrum`` is the name of a file.
        """
        tokens = data.get("tokens") if isinstance(data, Mapping) else None
        if isinstance(tokens, Mapping) and isinstance(tokens.get("spectrum"), str | PathLike):
            raise ProblemError(
                "tokens.spectrum",
                f"tokens.spectrum names the file {_shown(str(tokens['spectrum']))}, which data must not: its atoms must"
                " be written out.",
            )
        return super().from_dict(data)

    def _may_look_up(self, name: str) -> bool:
        return ":" not in name and not name.isidentifier()  # what is no formula is of a module, or registered

    def require_functions(self) -> None:
        """Refuse functions of modules.

        Raises
        ------
        ProblemError
            Naming the first.
        """
        for name, value in self.imports.items():
            raise ProblemError(
                name,
                f'{name} is "{value}", a function of a module, which is not imported for a problem that came with data:'
                " give the problem yourself, by load_problem or Problem.from_toml.",
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.to_dict() == other.to_dict()

    __hash__ = Problem.__hash__


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


_SECTIONS: dict[str, type] = {
    "tokens": Tokens,
    "positions": Positions,
    "teacher": Teacher,
    "student": Student,
    "regularizer": Regularizer,
    "integration": Integration,
    "loss": Loss,
}

# tables in fields; where a field has several types, its name is followed by the tag of one
_NESTED: dict[tuple[str, ...], type] = {
    ("tokens.spectrum", "#atoms"): SpectrumAtom,
    ("tokens.spectrum", "#law"): SpectrumLaw,
    ("tokens.clusters", "#clusters"): Cluster,
    ("tokens.clusters", "#each-clusters"): Cluster,
    ("tokens.law",): Law,
}
_TABLES = {"tokens.law": Law, "tokens.spectrum": SpectrumLaw}

_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")

# keys that to_dict leaves out at these values
_QUIET: dict[type, dict[str, Any]] = {
    Cluster: {"mean": ()},
    Teacher: {"temperature": 1.0, "causal": False},
    Student: {"temperature": 1.0, "causal": False},
    Regularizer: {"ridge": 0.0},
}

# setting the first forgets the others, which would contradict it or mean something else
_DISPLACES = {
    "tokens.kind": (
        "tokens.sigma",
        "tokens.clusters",
        "tokens.law",
        "tokens.mean_positions",
        "tokens.mean_teacher",
        "tokens.spectrum",
    ),
    "tokens.sigma": ("tokens.spectrum",),
    "tokens.spectrum": ("tokens.sigma",),
    "positions.gram": ("positions.kind",),
    "positions.kind": ("positions.gram",),
    "regularizer.kind": ("regularizer.ridge", "regularizer.expression", "regularizer.prox"),
    "loss.kind": ("loss.width", "loss.expression"),
    "integration.rule": ("integration.nodes",),
}


def _same(kept: Any, value: Any) -> bool:
    """Whether a field's new value is its old one; no more of it is looked at than the old one has."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.size <= 2 * _MAX_TABLE else None
    if isinstance(kept, list) and isinstance(value, list | tuple):
        return len(kept) == len(value) and all(_same(*pair) for pair in zip(kept, value, strict=True))
    return bool(kept == value)


def _displace(data: dict[str, Any], name: str, value: Any, changes: Mapping[str, Any]) -> None:
    """Forget what a new value of a field excludes, unless that is given anew as well."""
    for other in _DISPLACES.get(name, ()):
        section, _, key = other.partition(".")
        if other not in changes:
            data[section].pop(key, None)
    if name == "regularizer.kind" and value in ("expression", "prox") and "regularizer.strength" not in changes:
        data["regularizer"].pop("strength", None)
    if name in ("tokens.kind", "tokens.sigma", "tokens.spectrum") and data["positions"].get("kind") == "spectrum":
        data["positions"].pop("kind")
    if name == "tokens.spectrum" and value is not None and "tokens.clusters" not in changes:
        _forget_sigma(data["tokens"].get("clusters", ()))


def _forget_other_kinds(law: dict[str, Any], place: str, kind: Any, changes: Mapping[str, Any]) -> None:
    """Forget the keys of a ready-made law that its new kind does not have, unless they are given anew."""
    uses = {**_LAW_KEYS, **_SPECTRUM_KEYS}.get(kind) if isinstance(kind, str) else None
    if uses is None:  # no kind at all, which is refused later
        return
    for key in [*law]:
        if key != "kind" and key not in uses and f"{place}.{key}" not in changes:
            del law[key]


def _forget_sigma(clusters: Sequence[Any]) -> None:
    for item in clusters:
        if isinstance(item, dict):
            item.pop("sigma", None)
        else:
            _forget_sigma(item)


def _split_name(name: str) -> tuple[str, str, str]:
    """Split a field's name into section, key and, for one entry of a ready-made law, the key in it."""
    section, _, key = name.partition(".")
    if section not in _SECTIONS:
        raise _unknown_key(Problem, "", name)
    if not key:
        example = f"{section}.{_keys(_SECTIONS[section])[0]}"
        raise ProblemError(name, f'"{section}" is a section: set one of its keys, such as "{example}".')
    if key in _keys(_SECTIONS[section]):
        return section, key, ""
    outer, _, inner = key.partition(".")
    table = _TABLES.get(f"{section}.{outer}")
    if table is None or not inner:
        raise _unknown_key(_SECTIONS[section], section, key)
    if inner not in _keys(table):
        raise _unknown_key(table, f"{section}.{outer}", inner)
    return section, outer, inner


def _parse_toml(text: str) -> dict[str, Any]:
    # a megabyte takes a second to be parsed, so what is no problem is told by counting, comments included
    atoms = text.count("weight")
    if atoms > MAX_ATOMS + _MAX_LENGTH:
        raise ProblemError(
            "tokens.spectrum", f"tokens.spectrum must have at most {MAX_ATOMS} atoms, but about {atoms} are given."
        )
    values = sum(map(text.count, ",=["))
    if values > _MOST_VALUES + _VALUES_OF_ATOM * atoms:
        raise ProblemError("problem", f"The TOML holds about {values} values, more than any problem has.")
    try:
        if text.count(".") > values + _MOST_DOTS:  # names in names without end take the parser hours
            raise RecursionError
        return tomllib.loads(text)
    except RecursionError:
        raise ProblemError("problem", "The TOML is nested too deeply to be a problem.") from None
    except ValueError as error:
        hint = "; attnphase.load_problem reads a file" if text.strip().endswith(".toml") else ""
        raise ProblemError("problem", f"This is not valid TOML: {error}{hint}.") from None


def _listed(items: Sequence[Any]) -> str:
    """Return ``a, b and c``."""
    words = [str(item) for item in items]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _table_or_zeros(table: Any, shape: tuple[int, int]) -> Array:
    return np.zeros(shape) if table is None else np.array(table, dtype=float).reshape(shape)


def _gram_fault(gram: Array) -> str | None:
    """Say why a symmetric matrix cannot be a Gram matrix, if it cannot."""
    norms = np.sqrt(np.diag(gram))
    if np.any(gram[norms == 0]):
        return "a vector of norm 0 has none but 0"
    norms = np.where(norms == 0, 1.0, norms)
    lowest = float(np.linalg.eigvalsh(gram / norms[:, None] / norms)[0])
    if lowest >= -_RELATIVE_TOLERANCE:
        return None
    return f"their Gram matrix, scaled to a unit diagonal, has the eigenvalue {lowest:.4g}"


def _simplex(length: int) -> tuple[tuple[float, ...], ...]:
    """Products of `length` unit vectors that sum to zero and are all equally far apart."""
    apart = -1 / (length - 1)
    return tuple(tuple(1.0 if k == l else apart for k in range(length)) for l in range(length))


def _as_plain_dict(section: Any) -> dict[str, Any]:
    values = {item.name: getattr(section, item.name) for item in fields(section)}
    quiet = _QUIET.get(type(section), {})
    if isinstance(section, Regularizer) and section.kind in ("expression", "prox"):
        quiet = {**quiet, "strength": _STRENGTH}
    return {
        key: _as_lists(value)
        for key, value in values.items()
        if value is not None and not (key in quiet and value == quiet[key])
    }


def _as_lists(value: Any) -> Any:
    if is_dataclass(value):
        return _as_plain_dict(value)
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


def _keys(section: type) -> list[str]:
    return [item.name for item in fields(section) if not item.name.startswith("_")]


def _unknown_key(owner: type, place: str, key: str) -> ProblemError:
    """Return the error for a key that its table does not have, with the nearest one that exists."""
    name = f"{place}.{key}" if place else key
    siblings = _keys(owner)
    field = ".".join(re.split(r"[.\[]", name)[:2]) if owner in _NESTED.values() else name
    if owner in _NESTED.values():
        nearest = difflib.get_close_matches(key, siblings, 1)
        instead = f'did you mean "{nearest[0]}"?' if nearest else f"it may have {_listed(siblings)}."
        return ProblemError(field, f'unknown key "{name}": {instead}')
    prefix = f"{place}." if place else ""
    nearest = [prefix + close for close in difflib.get_close_matches(key, siblings, 1)]
    if not nearest:  # perhaps the right key in the wrong section
        last = key.rpartition(".")[2]
        homes = {item: f"{home}.{item}" for home, section in _SECTIONS.items() for item in _keys(section)}
        nearest = [homes[close] for close in difflib.get_close_matches(last, homes, 1)]
    if nearest:
        return ProblemError(field, f'unknown key "{name}": did you mean "{nearest[0]}"?')
    where = f'"{place}" has the keys' if place else "a problem has the sections"
    return ProblemError(field, f'unknown key "{name}": {where} {", ".join(siblings)}.')


def _shown(value: Any) -> str:
    """Return a value as TOML would have it, short enough for a message."""
    if isinstance(value, bool | str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0):
        value = value[:20]  # more than are shown
    return arguments.shown(_as_lists(_plain(value, 2)))


def _brief(value: Any) -> str:
    """A value in a problem's line."""
    text = value if isinstance(value, str) and value.isidentifier() else _shown(value)
    return text if len(text) <= 32 else text[:29] + "..."


def _as_problem_error(section: str, cls: type, error: ValidationError) -> ProblemError:
    """Turn the first of pydantic's errors into a sentence made of the field's description."""
    found = error.errors(include_url=False)
    first = next((item for item in found if item["type"] in _UNKNOWN), found[0])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ProblemError):
        return cause
    if first["type"] == "unexpected_positional_argument":
        place = section or "problem"
        return ProblemError(place, f"{place} was given too many values: give them by name.")

    steps = list(first["loc"])
    unknown = str(steps.pop()) if first["type"] in _UNKNOWN else None
    owner, location, description = _follow(cls, section, steps)
    if unknown is not None:
        return _unknown_key(owner, _dotted(location), unknown)
    end = max(index for index, step in enumerate(location) if isinstance(step, str)) + 1
    name, entry = _dotted(location[:end]), _dotted(location[end:])
    field = ".".join([step for step in location if isinstance(step, str)][:2])
    if first["type"] in ("missing", "missing_argument"):
        return ProblemError(field, f"{name} is missing: give {description}.")
    subject = f"its entry {entry}" if entry else "it"
    tail = f"{cause}" if isinstance(cause, _TooLongError) else f"is {_shown(first['input'])}"
    return ProblemError(field, f"{name} must be {description}, but {subject} {tail}.")


def _follow(cls: type, section: str, steps: list[int | str]) -> tuple[type, list[int | str], str | None]:
    """Follow pydantic's location to the table that holds it.

    Returns
    -------
    owner
        The class of the innermost table.
    location
        Names and indices from the problem on.
    description
        What the last field must be.
    """
    owner, description = cls, None
    location: list[int | str] = [*section.split(".")] if section else []
    for step in steps:
        place = ".".join(item for item in location if isinstance(item, str))
        if isinstance(step, int):
            location.append(step)
        elif step.startswith("#"):  # the type chosen among a field's
            owner = _NESTED.get((place, step), owner)
        elif step in _keys(owner):
            description = owner.__pydantic_fields__[step].description  # pyright: ignore[reportAttributeAccessIssue]
            location.append(step)
            inner = f"{place}.{step}" if place else step
            owner = _SECTIONS.get(inner, owner) if not place else _NESTED.get((inner,), owner)
        # other names are branches of a union, and stand for no field
    return owner, location, description


def _dotted(location: list[int | str]) -> str:
    """Return a place as one writes it: ``tokens.spectrum[0].weight``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def parse_setting(text: str) -> tuple[str, Any]:
    """Split a command line's ``field=value`` into the field and its value.

    Parameters
    ----------
    text
        Such as ``teacher.omega=0.3``. The value is written as in TOML; a single word, and
        ``module:function``, need no quotes.

    Returns
    -------
    field
        The name before the equals sign, to be checked by `Problem.with_fields`.
    value
        The value as Python has it.

    Raises
    ------
    ProblemError
        There is no equals sign, or the value is not TOML.
    """
    arguments.text("text", text, "a setting field=value, such as teacher.omega=0.3")
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals or not name:
        raise ProblemError(
            name,
            f"A setting must read field=value, such as teacher.omega=0.3, but it is {_shown(text)}.",
        )
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        parsed = {}
    if list(parsed) == ["value"]:
        return name, parsed["value"]
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*", raw):
        return name, raw
    if re.fullmatch(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?", raw):  # .3 and 3. are numbers to everyone but TOML
        return name, float(raw)
    raise ProblemError(
        name,
        f"{name} cannot be read from {_shown(raw)}: write the value as in TOML, a formula in quotation marks that the"
        f" shell leaves, such as '{name}=\"...\"'.",
    )


def load_problem(path: str | PathLike[str]) -> Problem:
    """Read a problem from a TOML file.

    Parameters
    ----------
    path
        The file, encoded in UTF-8; what it leaves out is the paper's. A file named as
        ``tokens.spectrum`` is looked for beside it.

    Returns
    -------
    Problem
        The checked problem.

    Raises
    ------
    ProblemError
        The file cannot be read, is not TOML (the message has the line), has an unknown key, or a
        wrong value. Every message begins with the file's name.
    """
    path = arguments.path("path", path)
    file = str(path)
    content = read_input(path, "TOML file", LARGEST_TEXT, lambda sentence: ProblemError(file, f"{file}: {sentence}"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(
            file,
            f"{file}: this is not text in UTF-8 (byte {error.start}); save it in that encoding.",
        ) from None
    try:
        data = _parse_toml(text)
        tokens = data.get("tokens")
        if isinstance(tokens, dict) and isinstance(tokens.get("spectrum"), str):
            tokens["spectrum"] = str(Path(path).parent / tokens["spectrum"])
        return Problem.from_dict(data)
    except ProblemError as error:
        field = file if error.field == "problem" else error.field
        raise ProblemError(field, f"{file}: {error}") from None
