"""The kinds of ready-made spectra of the covariances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from derivations.printing import setting

__all__ = ["SPECTRUM_KINDS", "GivenSpectrum", "SpectrumKind"]


class GivenSpectrum(Protocol):
    """The fields of a ready-made ``tokens.spectrum``."""

    @property
    def variance(self) -> float | tuple[float, ...] | None:
        """The mean eigenvalue, of all sites or of each."""
        ...

    @property
    def exponent(self) -> float | None:
        """Of a power law."""
        ...

    @property
    def atoms(self) -> int | None:
        """How many eigenvalues there are."""
        ...

    @property
    def variances(self) -> tuple[float, ...] | None:
        """The eigenvalues."""
        ...

    @property
    def fraction(self) -> float | None:
        """Share of the directions with the first of two eigenvalues."""
        ...


class SpectrumKind(ABC):
    """A kind of spectrum; an instance of every subclass stands in `SPECTRUM_KINDS`.

    Attributes
    ----------
    name : str
        What ``tokens.spectrum.kind`` calls it.
    keys, needs : tuple of str
        The keys of ``tokens.spectrum`` that go with it, and those of them that have no default.
    defaults : mapping
        The others' defaults.
    example : mapping
        Values of its keys to begin with.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]] = ()
    defaults: ClassVar[Mapping[str, Any]] = {}
    example: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def expand(self, law: GivenSpectrum, count: int) -> tuple[Array, Array]:
        """Weights (A,) and variances (A, count) of its atoms, for so many sites.

        Raises
        ------
        ProblemError
            A list is not one of so many numbers.
        """

    def statement(self, law: GivenSpectrum) -> str:
        """What a page says of it beside its atoms; nothing where these say it all."""
        return ""


class Isotropic(SpectrumKind):
    """``"isotropic"``: one eigenvalue."""

    name = "isotropic"
    keys = ("variance",)
    defaults: ClassVar = {"variance": 0.25}
    example: ClassVar = {"variance": 0.25}

    def expand(self, law: GivenSpectrum, count: int) -> tuple[Array, Array]:
        """See `SpectrumKind`."""
        return np.ones(1), _means(law, count)[None, :]


class PowerLaw(SpectrumKind):
    """``"power-law"``: eigenvalues in equal shares, the i-th in proportion to a power of i."""

    name = "power-law"
    keys = ("variance", "exponent", "atoms")
    needs = ("exponent",)
    defaults: ClassVar = {"variance": 0.25, "atoms": 32}
    example: ClassVar = {"variance": 0.25, "exponent": 1.2, "atoms": 32}

    def expand(self, law: GivenSpectrum, count: int) -> tuple[Array, Array]:
        """See `SpectrumKind`."""
        assert law.atoms is not None, "filled in when the law was made"
        assert law.exponent is not None, "checked when the law was made"
        shape = np.asarray(np.arange(1.0, law.atoms + 1) ** -law.exponent, dtype=float)
        return np.full(law.atoms, 1 / law.atoms), (shape / shape.mean())[:, None] * _means(law, count)

    def statement(self, law: GivenSpectrum) -> str:
        """See `SpectrumKind`."""
        assert law.exponent is not None, "checked when the law was made"
        return (
            rf"The eigenvalues are a power law: $\gamma \propto i^{{-{setting.number(law.exponent)}}}$ for "
            rf"$i = 1, \dots, {law.atoms}$, in equal shares."
        )


class TwoLevel(SpectrumKind):
    """``"two-level"``: one eigenvalue on a share of the directions, another on the rest."""

    name = "two-level"
    keys = ("variances", "fraction")
    needs = ("variances", "fraction")
    example: ClassVar = {"variances": [0.6, 0.15], "fraction": 0.25}

    def expand(self, law: GivenSpectrum, count: int) -> tuple[Array, Array]:
        """See `SpectrumKind`."""
        assert law.variances is not None, "checked when the law was made"
        assert law.fraction is not None, "checked when the law was made"
        levels = np.array(law.variances)
        return np.array([law.fraction, 1 - law.fraction]), np.repeat(levels[:, None], count, axis=1)


def _means(law: GivenSpectrum, count: int) -> Array:
    """The mean eigenvalue of each site."""
    if isinstance(law.variance, tuple) and len(law.variance) != count:
        raise ProblemError(
            "tokens.spectrum",
            f"tokens.spectrum.variance has {len(law.variance)} numbers, but must have {count}: give one for each"
            " token (for a mixture: for each cluster of each token), or a single one for all.",
        )
    return np.broadcast_to(np.asarray(law.variance, dtype=float), (count,))


SPECTRUM_KINDS: dict[str, SpectrumKind] = {kind.name: kind for kind in (Isotropic(), PowerLaw(), TwoLevel())}
"""By name; to add one, write a subclass of `SpectrumKind` and put it here."""
