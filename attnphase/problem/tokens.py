"""`[tokens]`: the law of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Discriminator, Field, PlainValidator, Strict, Tag, model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.kinds import alternatives, one_of
from attnphase.problem.laws import Cluster, Law
from attnphase.problem.messages import toml_table
from attnphase.problem.spectrum import SpectrumAtom, SpectrumLaw, read_spectrum
from attnphase.problem.tables import RELATIVE_TOLERANCE
from attnphase.problem.token_laws import TOKEN_LAWS, TokenLaw
from attnphase.problem.values import (
    CONFIG,
    ENTRIES,
    MAX_CLUSTERS,
    MAX_COLUMNS,
    MAX_LENGTH,
    MAX_MEAN_DIRECTIONS,
    MAX_SITES,
    OR_FUNCTION,
    PLAIN,
    TABLE,
    Formula,
    PointKey,
    Sigma,
    Table,
    is_nested,
    lists,
    read_named,
)

__all__ = ["Tokens"]


@toml_table(
    "tokens",
    named=("parameters",),
    kinds={"kind": TOKEN_LAWS},
    without={"parameters": ("sampler", "density")},
    displaces={
        "kind": ("sigma", "spectrum"),
        "sigma": ("spectrum",),
        "spectrum": ("sigma",),
    },
)
@dataclass(frozen=True, config=CONFIG)
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
    sampler
        A formula of Gaussian fields ``k`` (L, t) and the numbers ``c`` of the clusters, or a function
        of these arrays, which the problem replaces by the resulting formula: the teacher's fields of
        a sample, such as ``"k + tail*k**3"`` or ``"sign(k)"``. Without it k is Gaussian. The tokens
        change only along the teacher's weights.
    density
        A formula of the teacher's fields ``k`` and the numbers ``c`` of the clusters, or a function
        of these arrays, as above: the density of k given c, divided by the Gaussian density, or by
        that of the fields of ``sampler``. The tokens change only along the teacher's
        weights. The mean of the formula over these k must be 1 for every choice of clusters,
        which is checked when the problem is solved.
    parameters
        Numbers of ``sampler`` and ``density`` by name, such as ``{"tilt": 0.5}``. Each can be swept,
        as ``tokens.parameters.tilt``. Further arguments of a function are such numbers.
    spectrum
        The joint spectral measure of the covariances: atoms whose weights sum to 1, a ready-made
        law, or the name of a CSV file of atoms (see `attnphase.spectrum.read_csv`), which is read
        when the problem is made.

    Raises
    ------
    ProblemError
        A value is of the wrong type, shape or range, or two do not go together.

    Notes
    -----
    Equation (5) of arXiv:2402.03902, with a measure made of atoms; mixtures are its Result C.2.
    """

    kind: Annotated[
        str,
        Strict(),
        one_of(TOKEN_LAWS),
        Field(description=alternatives(TOKEN_LAWS)),
    ] = "gaussian"
    length: Annotated[int, Strict(), Field(ge=1, le=16, description="a whole number from 1 to 16"), PLAIN] = 2
    sigma: Annotated[
        Sigma | tuple[Sigma, ...] | None,
        Field(description="a positive number from 1e-6 to 1e6, or a list with one for each token"),
        lists(MAX_LENGTH),
    ] = None
    clusters: Annotated[
        Annotated[
            Annotated[tuple[Annotated[Cluster, TABLE], ...], Tag("#clusters")]
            | Annotated[tuple[tuple[Annotated[Cluster, TABLE], ...], ...], Tag("#each-clusters")],
            Discriminator(lambda value: "#each-clusters" if is_nested(value) else "#clusters"),
        ]
        | None,
        Field(description="a list of tables, each with sigma and mean, or a list of such lists"),
        lists(MAX_SITES, MAX_CLUSTERS),
    ] = None
    law: Annotated[Law | None, TABLE, Field(description="a table with a kind")] = None
    mean_positions: Annotated[
        Table | None,
        Field(description=f"a table of {ENTRIES}, a row for each token and a column for each direction"),
        lists(MAX_LENGTH, MAX_MEAN_DIRECTIONS),
    ] = None
    mean_teacher: Annotated[
        Table | None,
        Field(description=f"a table of {ENTRIES}, a row for each teacher column and a column for each direction"),
        lists(MAX_COLUMNS, MAX_MEAN_DIRECTIONS),
    ] = None
    sampler: Annotated[
        Formula | None,
        OR_FUNCTION,
        Field(description="a formula in k and c"),
    ] = None
    density: Annotated[
        Formula | None,
        OR_FUNCTION,
        Field(description="a formula in k and c"),  # in a file, whose comment this is, there are no functions
    ] = None
    parameters: Annotated[
        Mapping[str, float] | None,
        PlainValidator(lambda value: read_named("tokens.parameters", value, float)),
        Field(description="a table of numbers by name"),
    ] = None
    spectrum: Annotated[
        Annotated[
            Annotated[tuple[Annotated[SpectrumAtom, TABLE], ...], Tag("#atoms")]
            | Annotated[SpectrumLaw, TABLE, Tag("#law")],
            Discriminator(lambda value: "#law" if isinstance(value, Mapping | SpectrumLaw) else "#atoms"),
        ]
        | None,
        Field(
            description="a list of tables, each with a weight and a list of variances, a table with a kind, or a file"
        ),
        BeforeValidator(read_spectrum),
    ] = None

    @property
    def form(self) -> TokenLaw:
        """What its kind is."""
        return TOKEN_LAWS[self.kind]

    @property
    def has_clusters(self) -> bool:
        """Whether tokens come from a mixture of clusters."""
        return self.form.has_clusters

    @property
    def own_laws(self) -> tuple[str, ...]:
        """Those of ``sampler`` and ``density`` that are given: with any, the teacher's fields are not Gaussian."""
        return tuple(key for key in ("sampler", "density") if getattr(self, key) is not None)

    @property
    def cluster_lists(self) -> tuple[tuple[Cluster, ...], ...]:
        """The clusters of each token; a Gaussian token has one, of mean zero."""
        if self.clusters is None:
            spread = self.sigma if isinstance(self.sigma, tuple) else (self.sigma,) * self.length
            return tuple((Cluster(sigma=sigma),) for sigma in spread)
        lists: Any = self.clusters if is_nested(self.clusters) else (self.clusters,) * self.length
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

    @property
    def law_weights(self) -> tuple[float, ...] | None:
        """Weights of the clusters' law, equal ones if none are given; None if it has no single list of them."""
        return None if self.law is None else self.law.one_list([len(row) for row in self.cluster_lists])

    def spectrum_atoms(self) -> tuple[Array, Array]:
        """Return weights (A,) and variances (A, P) of the spectral measure's atoms."""
        sites = [cluster for row in self.cluster_lists for cluster in row]
        if self.spectrum is None:
            return np.ones(1), np.array([[cluster.sigma for cluster in sites]], dtype=float) ** 2
        if isinstance(self.spectrum, SpectrumLaw):
            return self.spectrum.expand(len(sites))
        return np.array([a.weight for a in self.spectrum]), np.array([a.variances for a in self.spectrum])

    def points(self, key: PointKey) -> Array | None:
        """Return the values that the atoms give under an optional key, shape (A, count), or None."""
        arguments.word("key", key, get_args(PointKey))
        if self.spectrum is None or isinstance(self.spectrum, SpectrumLaw) or getattr(self.spectrum[0], key) is None:
            return None
        return np.array([getattr(atom, key) for atom in self.spectrum], dtype=float)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.form.complete(self)
        if self.parameters is not None and not self.own_laws:
            raise ProblemError(
                "tokens.parameters",
                "tokens.parameters are numbers of tokens.sampler and tokens.density, which are missing: give one, or"
                " leave them out.",
            )
        if self.spectrum is not None:
            self._check_spectrum()
        return self

    def _check_spectrum(self) -> None:
        name = "tokens.spectrum"
        lists = self.cluster_lists
        sites = [(token, cluster) for token, row in enumerate(lists) for cluster in range(len(row))]
        mixture = self.has_clusters
        each = (
            f"there are {len(sites)} clusters of all tokens together" if mixture else f"tokens.length is {self.length}"
        )
        one = "one for each cluster of each token" if mixture else "one for each token"
        if not isinstance(self.spectrum, SpectrumLaw):
            self._check_atoms(len(sites), each, one)
        for index, variance in enumerate(self.spectrum_atoms()[1].max(axis=0)):
            if variance == 0:
                token, cluster = sites[index]
                raise ProblemError(
                    name,
                    f"tokens.spectrum gives {self.form.site(token, cluster)} no variance at all: make its variance"
                    " positive in at least one atom.",
                )

    def _check_atoms(self, sites: int, each: str, one: str) -> None:
        name = "tokens.spectrum"
        atoms: Any = self.spectrum
        total = sum(atom.weight for atom in atoms)
        if abs(total - 1) > RELATIVE_TOLERANCE:
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
            self.form.check_means(self)
