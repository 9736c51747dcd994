"""The kinds of laws of the tokens: what each has, and what of it goes together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

from attnphase.errors import ProblemError
from attnphase.problem.laws import Cluster, Law
from attnphase.problem.messages import listed
from attnphase.problem.values import MAX_CLUSTERS

__all__ = ["TOKEN_LAWS", "TokenLaw"]


class TokenLaw(ABC):
    """A kind of law; an instance of every subclass stands in `TOKEN_LAWS`.

    Attributes
    ----------
    name : str
        What ``tokens.kind`` calls it.
    title : str
        What a problem's line calls its tokens.
    keys, needs : tuple of str
        The keys of ``[tokens]`` that go with it, and those of them that have no default.
    has_clusters : bool
        Whether a token's law is a mixture, so that what other tokens have, each of its clusters has.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]] = ()
    has_clusters: ClassVar[bool] = False

    @abstractmethod
    def complete(self, tokens: Any) -> None:
        """Check what is given, and fill in what is left out.

        Parameters
        ----------
        tokens : attnphase.problem.tokens.Tokens

        Raises
        ------
        ProblemError
            Naming the field.
        """

    @abstractmethod
    def check_means(self, tokens: Any) -> None:
        """Refuse means in the atoms of ``tokens.spectrum`` where they have no place.

        Raises
        ------
        ProblemError
            Naming the field.
        """

    def site(self, token: int, cluster: int) -> str:
        """What a message calls a token, or one of its clusters."""
        return f"cluster {cluster} of token {token}" if self.has_clusters else f"token {token}"


class Gaussian(TokenLaw):
    """``"gaussian"``: every token is drawn from one normal law."""

    name = "gaussian"
    title = "Gaussian"
    keys = ("sigma", "sampler", "density", "parameters", "spectrum")

    def complete(self, tokens: Any) -> None:
        """See `TokenLaw`."""
        for key in ("clusters", "law", "mean_positions", "mean_teacher"):
            if getattr(tokens, key) is not None:
                raise ProblemError(
                    f"tokens.{key}",
                    f'tokens.{key} does not go with tokens.kind = "gaussian": set tokens.kind = "mixture", or'
                    f" remove tokens.{key}.",
                )
        if tokens.spectrum is not None:
            if tokens.sigma is not None:
                raise ProblemError(
                    "tokens.spectrum", "tokens.sigma and tokens.spectrum exclude each other: keep one of them."
                )
        elif tokens.sigma is None:
            object.__setattr__(tokens, "sigma", 0.5)
        elif isinstance(tokens.sigma, tuple) and len(tokens.sigma) != tokens.length:
            raise ProblemError(
                "tokens.sigma",
                f"tokens.sigma has {len(tokens.sigma)} numbers, but tokens.length is {tokens.length}:"
                " give one for each token, or a single one for all.",
            )

    def check_means(self, tokens: Any) -> None:
        """See `TokenLaw`."""
        raise ProblemError(
            "tokens.spectrum",
            'tokens.spectrum gives means, which do not go with tokens.kind = "gaussian": set tokens.kind ='
            ' "mixture", or remove them.',
        )


class Mixture(TokenLaw):
    """``"mixture"``: every token has a cluster, drawn jointly, and each cluster a normal law."""

    name = "mixture"
    title = "mixture"
    keys = ("clusters", "law", "mean_positions", "mean_teacher", "sampler", "density", "parameters", "spectrum")
    needs = ("clusters",)
    has_clusters = True

    def complete(self, tokens: Any) -> None:
        """See `TokenLaw`."""
        if tokens.sigma is not None:
            raise ProblemError(
                "tokens.sigma",
                'tokens.sigma does not go with tokens.kind = "mixture", whose clusters have their own: give it in'
                " tokens.clusters.",
            )
        _check_clusters(tokens)
        law: Law = tokens.law or Law()
        object.__setattr__(tokens, "law", law)
        _ = tokens.configurations  # refuses a law that does not fit
        if law.is_uniform:  # which it is without weights
            object.__setattr__(tokens, "law", replace(law, weights=None))
        directions = tokens.mean_directions
        for key, table in (("mean_positions", tokens.mean_positions), ("mean_teacher", tokens.mean_teacher)):
            for index, row in enumerate(table or ()):
                if len(row) != directions:
                    raise ProblemError(
                        f"tokens.{key}",
                        f"tokens.{key} must have {directions} columns, one for each coordinate of the means in"
                        f" tokens.clusters, but its row {index} has length {len(row)}.",
                    )
        if tokens.mean_positions is not None and len(tokens.mean_positions) != tokens.length:
            raise ProblemError(
                "tokens.mean_positions",
                f"tokens.mean_positions has {len(tokens.mean_positions)} rows, but tokens.length is {tokens.length}:"
                " give one for each token.",
            )

    def check_means(self, tokens: Any) -> None:
        """See `TokenLaw`."""
        if tokens.mean_directions > 0:
            raise ProblemError(
                "tokens.clusters",
                "tokens.clusters gives means and so does tokens.spectrum: keep one of them.",
            )


def _check_clusters(tokens: Any) -> None:
    name = "tokens.clusters"
    if tokens.clusters is None:
        raise ProblemError(name, 'tokens.kind = "mixture" needs tokens.clusters: give each cluster\'s sigma and mean.')
    lists = tokens.cluster_lists
    if len(lists) != tokens.length:
        raise ProblemError(
            name,
            f"tokens.clusters has {len(lists)} lists, but tokens.length is {tokens.length}: give one for each"
            " token, or a single one for all.",
        )
    for token, row in enumerate(lists):
        if not 1 <= len(row) <= MAX_CLUSTERS:
            raise ProblemError(
                name,
                f"tokens.clusters must have from 1 to {MAX_CLUSTERS} clusters for each token, but token {token}"
                f" has {len(row)}.",
            )
    lengths = sorted({len(cluster.mean) for row in lists for cluster in row if cluster.mean})
    if len(lengths) > 1:
        raise ProblemError(
            name,
            "tokens.clusters must have means of one length, the number of directions they lie in, but there are"
            f" means of length {listed(lengths)}: fill the short ones up with zeros.",
        )
    if tokens.spectrum is None:
        _fill_in_sigma(tokens)
    elif any(cluster.sigma is not None for row in lists for cluster in row):
        raise ProblemError(
            name,
            "tokens.clusters gives sigma where tokens.spectrum gives the variances: keep one of them.",
        )


def _fill_in_sigma(tokens: Any) -> None:
    def filled(row: Any) -> Any:
        if isinstance(row, tuple):
            return tuple(filled(item) for item in row)
        return Cluster(sigma=0.5, mean=row.mean) if row.sigma is None else row

    object.__setattr__(tokens, "clusters", filled(tokens.clusters))


TOKEN_LAWS: dict[str, TokenLaw] = {law.name: law for law in (Gaussian(), Mixture())}
"""By name; to add one, write a subclass of `TokenLaw` and put it here."""
