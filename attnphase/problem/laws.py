"""`tokens.clusters` and `tokens.law`: the clusters of a mixture and their joint law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Discriminator, Field, Strict, Tag, model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.cluster_laws import CLUSTER_LAWS, ClusterLaw
from attnphase.problem.kinds import alternatives, check_law_keys, one_of
from attnphase.problem.messages import toml_table
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

__all__ = ["Cluster", "Law"]


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


@toml_table("tokens.law", kinds={"kind": CLUSTER_LAWS})
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
        proportion to the product of ``weights``. ``"single-location"``: with ``probability`` one
        token, drawn with ``weights``, is in its second cluster; all others are in their first.
        ``"table"``: ``table`` is the law.
    weights
        Probabilities of the clusters, uniform if left out: one list for all tokens, or, for
        ``"independent"``, a list of one list for each token. For ``"single-location"``:
        probabilities of the tokens.
    transition
        For ``"markov"``, shape (C, C): from the row's cluster to the column's.
    probability
        For ``"same"`` and ``"single-location"``: from 0 to 1; of the latter 1 if left out.
    table
        For ``"table"``: lists nested to depth L; ``table[c_1]…[c_L]`` is the probability.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.
    """

    kind: Annotated[
        str,
        Strict(),
        one_of(CLUSTER_LAWS),
        Field(description=alternatives(CLUSTER_LAWS)),
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
        check_law_keys("tokens.law", self, CLUSTER_LAWS)
        for key, value in self.form.defaults.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
        if not self.form.differs and is_nested(self.weights):
            raise ProblemError(
                "tokens.law",
                f'tokens.law.weights must be a single list of probabilities for the law kind "{self.kind}":'
                " give one for all tokens.",
            )
        return self

    @property
    def form(self) -> ClusterLaw:
        """What its kind is."""
        return CLUSTER_LAWS[self.kind]

    def one_list(self, counts: Sequence[int]) -> tuple[float, ...] | None:
        """Its weights if they are one list, equal ones if none are given, for tokens with so many clusters."""
        given: Any = self.weights
        if given is None:
            count = self.form.weights_of(counts)
            return None if count is None else (1 / count,) * count
        return None if is_nested(given) else given

    @property
    def is_uniform(self) -> bool:
        """Whether all weights that are given are equal: if they fit, they are those of a law without weights."""
        rows: Any = self.weights if is_nested(self.weights) else (self.weights or (),)
        return self.weights is not None and all(len({*row}) == 1 for row in rows)

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
            `attnphase.problem.cluster_laws.MAX_CONFIGURATIONS` configurations.
        """
        counts = [arguments.whole("counts", count, 1) for count in arguments.items("counts", counts)]
        clusters, probabilities = self.form.configurations(self, counts)
        return clusters, probabilities / probabilities.sum()
