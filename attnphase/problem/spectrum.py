"""`tokens.spectrum`: the joint spectral measure of the covariances."""

from __future__ import annotations

from os import PathLike
from typing import Annotated, Any, Self

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.atoms_file import read_csv
from attnphase.problem.kinds import alternatives, check_law_keys, one_of
from attnphase.problem.messages import toml_table
from attnphase.problem.spectrum_laws import SPECTRUM_KINDS, SpectrumKind
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

    The optional keys give the projections of encodings, means and teacher on these directions. Vectors
    that are left out have Gaussian projections, with the products that other fields of the problem give.

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


@toml_table("tokens.spectrum", "#law", kinds={"kind": SPECTRUM_KINDS})
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
        str,
        Strict(),
        one_of(SPECTRUM_KINDS),
        Field(description=alternatives(SPECTRUM_KINDS)),
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
        check_law_keys("tokens.spectrum", self, SPECTRUM_KINDS)
        for key, value in self.form.defaults.items():
            if getattr(self, key) is None:
                object.__setattr__(self, key, value)
        return self

    @property
    def form(self) -> SpectrumKind:
        """What its kind is."""
        return SPECTRUM_KINDS[self.kind]

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
        return self.form.expand(self, count)


def read_spectrum(value: Any) -> Any:
    """Replace the name of a CSV file by its atoms."""
    if isinstance(value, str | PathLike):
        value = read_csv(value)
    if (isinstance(value, list | tuple) or getattr(value, "ndim", 0)) and len(value) > MAX_ATOMS:
        raise ProblemError(
            "tokens.spectrum", f"tokens.spectrum must have at most {MAX_ATOMS} atoms, but has {len(value)}."
        )
    return plain(value, 1)
