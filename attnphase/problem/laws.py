"""`tokens.clusters` and `tokens.law`: the clusters of a mixture and their joint law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.messages import listed, shown, toml_table
from attnphase.problem.tables import RELATIVE_TOLERANCE, check_square
from attnphase.problem.values import (
    CONFIG,
    MAX_CLUSTERS,
    MAX_MEAN_DIRECTIONS,
    PLAIN,
    Coordinate,
    Probability,
    Sigma,
    is_nested,
    lists,
    read_table,
)

__all__ = ["MAX_CONFIGURATIONS", "Cluster", "Law"]

MAX_CONFIGURATIONS = 4096
"""Limit of the choices of a cluster for every token that have a probability above 0."""


@toml_table("tokens.clusters", "#clusters", "#each-clusters", quiet=("mean",))
@dataclass(frozen=True, config=CONFIG)
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
        Sigma | None,
        Field(description="a positive number from 1e-6 to 1e6"),
        PLAIN,
    ] = None
    mean: Annotated[
        tuple[Coordinate, ...],
        Field(max_length=MAX_MEAN_DIRECTIONS, description="a list of at most 64 numbers from -1e12 to 1e12"),
        lists(MAX_MEAN_DIRECTIONS),
    ] = ()


@toml_table("tokens.law")
@dataclass(frozen=True, config=CONFIG)
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
            Annotated[tuple[Probability, ...], Tag("#one")]
            | Annotated[tuple[tuple[Probability, ...], ...], Tag("#each")],
            Discriminator(lambda value: "#each" if is_nested(value) else "#one"),
        ]
        | None,
        Field(description="a list of probabilities, or a list of such lists, one for each token"),
        lists(MAX_CLUSTERS, MAX_CLUSTERS),
    ] = None
    transition: Annotated[
        tuple[tuple[Probability, ...], ...] | None,
        Field(description="a square table of probabilities"),
        lists(MAX_CLUSTERS, MAX_CLUSTERS),
    ] = None
    probability: Annotated[
        Probability | None,
        Field(description="a number from 0 to 1"),
        PLAIN,
    ] = None
    table: Annotated[
        tuple[Any, ...] | None,
        Field(description="a list of probabilities nested as deep as there are tokens"),
        BeforeValidator(read_table),
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
                    f" which has {listed(uses)}: remove it.",
                )
            if not given and key in uses and key != "weights":
                raise ProblemError("tokens.law", f'tokens.law of kind "{self.kind}" needs {key}: give it.')
        if self.kind != "independent" and is_nested(self.weights):
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
        if not is_nested(self.weights):
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
                f" they have {listed(counts)}: give every token as many, or choose another kind.",
            )
        weights = self._each_weights(counts)[0]
        if self.transition is not None:
            check_square("tokens.law.transition", self.transition, count, "the number of clusters", "tokens.law")
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
        if abs(total - 1) > RELATIVE_TOLERANCE:
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


def _distribution(place: str, row: Sequence[Any], count: int) -> Array:
    """Check that a list of `count` probabilities sums to 1."""
    name = f"tokens.law.{place}"
    if len(row) != count:
        raise ProblemError(
            "tokens.law",
            f"{name} has {len(row)} numbers, but there are {count} clusters: give one for each cluster.",
        )
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
