"""The kinds of joint laws of the tokens' clusters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.messages import listed, shown
from attnphase.problem.tables import RELATIVE_TOLERANCE, check_square
from attnphase.problem.values import is_nested

with loaded_on_use(__name__):
    from derivations.printing import setting

__all__ = ["CLUSTER_LAWS", "MAX_CONFIGURATIONS", "ClusterLaw", "GivenLaw"]

MAX_CONFIGURATIONS = 4096
"""Limit of the choices of a cluster for every token that have a probability above 0."""


Statement = str | tuple[tuple[str, str], ...]


class GivenLaw(Protocol):
    """The fields of ``tokens.law``."""

    @property
    def weights(self) -> tuple[Any, ...] | None:
        """Probabilities of the clusters, of all tokens or of each; or of the tokens."""
        ...

    @property
    def transition(self) -> tuple[tuple[float, ...], ...] | None:
        """From the row's cluster to the column's."""
        ...

    @property
    def probability(self) -> float | None:
        """That all tokens share one cluster, or that there is a special one."""
        ...

    @property
    def table(self) -> tuple[Any, ...] | None:
        """The law itself, nested as deep as there are tokens."""
        ...


class ClusterLaw(ABC):
    """A kind of law; an instance of every subclass stands in `CLUSTER_LAWS`.

    Attributes
    ----------
    name : str
        What ``tokens.law.kind`` calls it.
    keys, needs : tuple of str
        The keys of ``tokens.law`` that go with it, and those of them that have no default.
    defaults : mapping
        Numbers that are filled in where they are left out.
    differs : bool
        Whether tokens may have weights of their own.
    is_listed : bool
        Whether it is given choice by choice.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    differs: ClassVar[bool] = False
    is_listed: ClassVar[bool] = False

    @abstractmethod
    def configurations(self, law: GivenLaw, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """Choices of a cluster for every token, (C, L), and their probabilities, (C,), up to rounding.

        Raises
        ------
        ProblemError
            The law does not fit tokens with so many clusters.
        """

    def weights_of(self, counts: Sequence[int]) -> int | None:
        """How many weights it has in one list; None if it takes none, or other ones for each token."""
        return counts[0] if "weights" in self.keys and len({*counts}) == 1 else None

    @abstractmethod
    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """What a page says of the law: sentences, and formulas as lines of a left and a right side."""


class Independent(ClusterLaw):
    """``"independent"``: every token draws its cluster by itself."""

    name = "independent"
    keys = ("weights",)
    differs = True

    def configurations(self, law: GivenLaw, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """See `ClusterLaw`."""
        return _chain([rows[None, :] for rows in _each_weights(law, counts)])

    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """See `ClusterLaw`."""
        yield f"Every token draws its cluster by itself, {_drawn_by(law.weights)}."
        if is_nested(law.weights):
            yield tuple(
                (rf"P_{{{token}}}", f"= {setting.vector(row)}") for token, row in enumerate(law.weights or (), 1)
            )


class _OfEqualCounts(ClusterLaw):
    """A law of tokens that all have the same clusters."""

    def configurations(self, law: GivenLaw, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """See `ClusterLaw`."""
        if any(other != counts[0] for other in counts):
            raise ProblemError(
                "tokens.law",
                f'tokens.law of kind "{self.name}" needs the same number of clusters for every token, but'
                f" they have {listed(counts)}: give every token as many, or choose another kind.",
            )
        return self._drawn(law, _each_weights(law, counts)[0], len(counts))

    @abstractmethod
    def _drawn(self, law: GivenLaw, weights: Array, length: int) -> tuple[NDArray[np.int64], Array]: ...


class Markov(_OfEqualCounts):
    """``"markov"``: the first draws it with the weights, the others with a row of the transition matrix."""

    name = "markov"
    keys = ("weights", "transition")
    needs = ("transition",)

    def _drawn(self, law: GivenLaw, weights: Array, length: int) -> tuple[NDArray[np.int64], Array]:
        assert law.transition is not None, "checked when the law was made"
        count = len(weights)
        check_square("tokens.law.transition", law.transition, count, "the number of clusters", "tokens.law")
        rows = [_distribution(f"transition[{c}]", row, count) for c, row in enumerate(law.transition)]
        return _chain([weights[None, :], *[np.array(rows)] * (length - 1)])

    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """See `ClusterLaw`."""
        drawn = _drawn_by(law.weights)
        yield f"The clusters are a Markov chain; the first token draws its own {drawn}, the others by the row of"
        yield ((r"P(c_{\ell + 1} \,|\, c_\ell)", f"= {setting.matrix(law.transition or ())}"),)
        yield "that belongs to the cluster before."


class Same(_OfEqualCounts):
    """``"same"``: all share one cluster with a probability; the rest is spread over the other choices."""

    name = "same"
    keys = ("weights", "probability")
    needs = ("probability",)

    def _drawn(self, law: GivenLaw, weights: Array, length: int) -> tuple[NDArray[np.int64], Array]:
        assert law.probability is not None, "checked when the law was made"
        shared = np.repeat(np.arange(len(weights))[:, None], length, axis=1)
        if law.probability == 1:
            return shared[weights > 0], weights[weights > 0]
        clusters, products = _chain([weights[None, :]] * length)
        equal = (clusters == clusters[:, :1]).all(axis=1)
        rest = products[~equal].sum()
        if rest == 0:
            raise ProblemError(
                "tokens.law",
                "tokens.law.probability must be 1 where no configuration has unequal clusters, but it is"
                f" {law.probability!r}: give two tokens and two clusters of positive weight, or set it to 1.",
            )
        probabilities = np.where(
            equal, law.probability * weights[clusters[:, 0]], (1 - law.probability) * products / rest
        )
        return clusters[probabilities > 0], probabilities[probabilities > 0]

    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """See `ClusterLaw`."""
        assert law.probability is not None, "checked when the law was made"
        common = setting.number(law.probability)
        yield (
            f"With probability ${common}$ all tokens share one cluster, {_drawn_by(law.weights)};"
            " the rest is spread over the other choices in proportion to the product of these probabilities."
        )


class SingleLocation(ClusterLaw):
    """``"single-location"``: one token is in the second cluster, or none; the others are in the first."""

    name = "single-location"
    keys = ("weights", "probability")
    defaults: ClassVar = {"probability": 1.0}

    def weights_of(self, counts: Sequence[int]) -> int | None:
        """See `ClusterLaw`."""
        return len(counts)

    def _each(self, law: GivenLaw, length: int) -> Array:
        """Probabilities of the locations, if there is one."""
        if law.weights is None:
            return np.full(length, 1 / length)
        if len(law.weights) != length:
            raise ProblemError(
                "tokens.law",
                f"tokens.law.weights has {len(law.weights)} numbers, but tokens.length is {length}: give the"
                f' probability of each location for the law kind "{self.name}".',
            )
        return _summing_to_one("tokens.law.weights", law.weights)

    def configurations(self, law: GivenLaw, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """See `ClusterLaw`."""
        if any(count != 2 for count in counts):
            raise ProblemError(
                "tokens.law",
                f'tokens.law of kind "{self.name}" needs two clusters for every token, the second for the one location,'
                f" but they have {listed(counts)}: give two, or choose another kind.",
            )
        assert law.probability is not None, "filled in when the law was made"
        length, present = len(counts), law.probability
        clusters = np.concatenate([np.zeros((1, length), dtype=np.int64), np.eye(length, dtype=np.int64)])
        probabilities = np.concatenate([[1 - present], present * self._each(law, length)])
        return clusters[probabilities > 0], probabilities[probabilities > 0]

    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """See `ClusterLaw`."""
        assert law.probability is not None, "filled in when the law was made"
        present = law.probability
        often = "One token" if present == 1 else f"With probability ${setting.number(present)}$ one token"
        where = "all tokens being equally likely"
        if law.weights is not None:
            where = f"a token being this one with the probabilities ${setting.vector(law.weights)}$"
        yield f"{often} is in the second cluster, {where}; all others are in the first."


class Table(ClusterLaw):
    """``"table"``: the law itself."""

    name = "table"
    keys = ("table",)
    needs = ("table",)
    is_listed = True

    def configurations(self, law: GivenLaw, counts: Sequence[int]) -> tuple[NDArray[np.int64], Array]:
        """See `ClusterLaw`."""
        assert law.table is not None, "checked when the law was made"
        _check_law_table(law.table, counts)
        table = np.array(law.table, dtype=float)
        total = table.sum()
        if abs(total - 1) > RELATIVE_TOLERANCE:
            raise ProblemError("tokens.law", f"tokens.law.table must sum to 1, but it sums to {total:.10g}.")
        clusters = np.argwhere(table > 0)
        _check_configurations(len(clusters))
        return clusters, table[table > 0]

    def statements(self, law: GivenLaw) -> Iterator[Statement]:
        """See `ClusterLaw`."""
        yield "The law of the clusters is a table:"


def _drawn_by(weights: tuple[Any, ...] | None) -> str:
    """How a page says with which probabilities clusters are drawn."""
    if weights is None:
        return "all clusters being equally likely"
    return (
        "with the probabilities in the rows below"
        if is_nested(weights)
        else f"with the probabilities ${setting.vector(weights)}$"
    )


def _each_weights(law: GivenLaw, counts: Sequence[int]) -> list[Array]:
    """Weights of every token's clusters, uniform where none are given."""
    if law.weights is None:
        return [np.full(count, 1 / count) for count in counts]
    if not is_nested(law.weights):
        return [_distribution("weights", law.weights, count) for count in counts]
    if len(law.weights) != len(counts):
        raise ProblemError(
            "tokens.law",
            f"tokens.law.weights has {len(law.weights)} lists, but tokens.length is {len(counts)}:"
            " give one for each token, or a single one for all.",
        )
    each: Any = law.weights
    return [_distribution(f"weights[{l}]", row, counts[l]) for l, row in enumerate(each)]


def _distribution(place: str, row: Sequence[Any], count: int) -> Array:
    """Check that a list of `count` probabilities sums to 1."""
    name = f"tokens.law.{place}"
    if len(row) != count:
        raise ProblemError(
            "tokens.law",
            f"{name} has {len(row)} numbers, but there are {count} clusters: give one for each cluster.",
        )
    return _summing_to_one(name, row)


def _summing_to_one(name: str, row: Sequence[Any]) -> Array:
    """Check that probabilities sum to 1."""
    total = sum(row)
    if abs(total - 1) > RELATIVE_TOLERANCE:
        raise ProblemError("tokens.law", f"{name} must sum to 1, but it sums to {total:.10g}.")
    return np.array(row, dtype=float)


def _check_law_table(table: Any, counts: Sequence[int], place: str = "") -> None:
    name = f"tokens.law.table{place}"
    if not counts:
        is_number = isinstance(table, int | float) and not isinstance(table, bool)
        if not (is_number and 0 <= table <= 1):
            raise ProblemError("tokens.law", f"{name} must be a number from 0 to 1, but it is {shown(table)}.")
    elif not isinstance(table, tuple) or len(table) != counts[0]:
        size = f"has length {len(table)}" if isinstance(table, tuple) else f"is {shown(table)}"
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


CLUSTER_LAWS: dict[str, ClusterLaw] = {
    law.name: law for law in (Independent(), Markov(), SingleLocation(), Same(), Table())
}
"""By name; to add one, write a subclass of `ClusterLaw` and put it here."""
