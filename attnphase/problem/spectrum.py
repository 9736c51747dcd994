"""`tokens.spectrum`: the joint spectral measure of the covariances."""

from __future__ import annotations

from os import PathLike
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.messages import listed, toml_table
from attnphase.problem.values import (
    CONFIG,
    MAX_ATOMS,
    MAX_COLUMNS,
    MAX_LENGTH,
    MAX_SITES,
    PLAIN,
    Coordinate,
    Level,
    Variance,
    lists,
    plain,
)

__all__ = ["SpectrumAtom", "SpectrumLaw", "read_spectrum"]


@toml_table("tokens.spectrum", "#atoms")
@dataclass(frozen=True, config=CONFIG)
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
        PLAIN,
    ]
    variances: Annotated[
        tuple[Variance, ...],
        Field(description="a list of numbers from 0 to 1e12, one for each token"),
        lists(MAX_SITES),
    ]
    positions: Annotated[
        tuple[Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each token"),
        lists(MAX_LENGTH),
    ] = None
    means: Annotated[
        tuple[Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each cluster of each token"),
        lists(MAX_SITES),
    ] = None
    teacher: Annotated[
        tuple[Coordinate, ...] | None,
        Field(description="a list of numbers from -1e12 to 1e12, one for each column of the teacher"),
        lists(MAX_COLUMNS),
    ] = None


@toml_table("tokens.spectrum", "#law")
@dataclass(frozen=True, config=CONFIG)
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
        Level | tuple[Level, ...] | None,
        Field(description="a number from 1e-12 to 1e12, or a list with one for each token"),
        lists(MAX_SITES),
    ] = None
    exponent: Annotated[
        Annotated[float, Strict(), Field(ge=0, le=20, allow_inf_nan=False)] | None,
        Field(description="a number from 0 to 20"),
        PLAIN,
    ] = None
    atoms: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=4096)] | None,
        Field(description="a whole number from 1 to 4096"),
        PLAIN,
    ] = None
    variances: Annotated[
        Annotated[tuple[Variance, ...], Field(min_length=2, max_length=2)] | None,
        Field(description="a list of two numbers from 0 to 1e12"),
        lists(2),
    ] = None
    fraction: Annotated[
        Annotated[float, Strict(), Field(gt=0, lt=1, allow_inf_nan=False)] | None,
        Field(description="a number between 0 and 1"),
        PLAIN,
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
                    f" which has {listed(uses)}: remove it.",
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


def read_spectrum(value: Any) -> Any:
    """Replace the name of a CSV file by its atoms."""
    if isinstance(value, str | PathLike):
        from attnphase.spectrum.measure import read_csv

        value = read_csv(value)
    if (isinstance(value, list | tuple) or getattr(value, "ndim", 0)) and len(value) > MAX_ATOMS:
        raise ProblemError(
            "tokens.spectrum", f"tokens.spectrum must have at most {MAX_ATOMS} atoms, but has {len(value)}."
        )
    return plain(value, 1)
