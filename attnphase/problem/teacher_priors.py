"""The kinds of laws that an entry of the teacher's weights may have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.problem.tables import RELATIVE_TOLERANCE

__all__ = ["TEACHER_PRIORS", "EntryLaw", "GivenPrior", "TeacherPrior"]


@dataclass(frozen=True)
class EntryLaw:
    """The law of an entry of the teacher's weights: a mixture of Gaussians, of which those without variance are atoms.

    Attributes
    ----------
    probabilities, means, variances : tuple of float
        Of the components.
    """

    probabilities: tuple[float, ...]
    means: tuple[float, ...]
    variances: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of an entry."""
        return float(np.dot(self.probabilities, self.means))

    @property
    def variance(self) -> float:
        """Of an entry."""
        squares = np.square(np.subtract(self.means, self.mean)) + self.variances
        return float(np.dot(self.probabilities, squares))

    @property
    def is_gaussian(self) -> bool:
        """Whether there is one component alone."""
        return len(self.probabilities) == 1

    @property
    def is_discrete(self) -> bool:
        """Whether all components are atoms."""
        return not any(self.variances)

    @property
    def is_even(self) -> bool:
        """Whether an entry's sign may change."""
        rows = sorted(zip(self.means, self.variances, self.probabilities, strict=True))
        return rows == sorted((0.0 - mean, *others) for mean, *others in rows)

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent entries."""
        which = random.choice(len(self.probabilities), size=shape, p=self.probabilities)
        spread = np.sqrt(self.variances)[which]
        return np.asarray(np.array(self.means)[which] + spread * random.standard_normal(shape), float)

    def of_rows(self, columns: int) -> tuple[Array, Array, Array]:
        """The components of a row of independent entries: probabilities (K,), means (K, t) and variances (K, t)."""
        which = np.indices((len(self.probabilities),) * columns).reshape(columns, -1).T
        probabilities = np.prod(np.array(self.probabilities)[which], axis=1)
        return probabilities, np.array(self.means)[which], np.array(self.variances)[which]


class GivenPrior(Protocol):
    """The fields of ``[teacher]`` that a prior may have."""

    @property
    def prior_density(self) -> float | None:
        """Share of the entries that are not zero."""
        ...

    @property
    def prior_values(self) -> tuple[float, ...] | None:
        """Values of an entry."""
        ...

    @property
    def prior_probabilities(self) -> tuple[float, ...] | None:
        """Their probabilities."""
        ...


class TeacherPrior(ABC):
    """A kind of law; an instance of every subclass stands in `TEACHER_PRIORS`.

    Attributes
    ----------
    name : str
        What ``teacher.prior`` calls it.
    keys, needs : tuple of str
        The keys of ``[teacher]`` that go with it, and those of them that have no default.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def law(self, given: GivenPrior) -> EntryLaw:
        """The law of an entry.

        Raises
        ------
        ProblemError
            The keys do not give one.
        """


class Gaussian(TeacherPrior):
    """``"gaussian"``: standard normal entries, as in the paper."""

    name = "gaussian"

    def law(self, given: GivenPrior) -> EntryLaw:
        """See `TeacherPrior`."""
        return EntryLaw((1.0,), (0.0,), (1.0,))


class Rademacher(TeacherPrior):
    """``"rademacher"``: 1 or -1, each with probability 1/2."""

    name = "rademacher"

    def law(self, given: GivenPrior) -> EntryLaw:
        """See `TeacherPrior`."""
        return EntryLaw((0.5, 0.5), (-1.0, 1.0), (0.0, 0.0))


class GaussBernoulli(TeacherPrior):
    """``"gauss-bernoulli"``: zero but for a share of the entries, which are normal; their variance is one."""

    name = "gauss-bernoulli"
    keys = ("prior_density",)
    needs = ("prior_density",)

    def law(self, given: GivenPrior) -> EntryLaw:
        """See `TeacherPrior`."""
        density = given.prior_density
        assert density is not None, "checked when the section was made"
        if density == 1:
            return EntryLaw((1.0,), (0.0,), (1.0,))
        return EntryLaw((1 - density, density), (0.0, 0.0), (0.0, 1 / density))


class Atoms(TeacherPrior):
    """``"atoms"``: one of the values, with their probabilities; they are taken as they are."""

    name = "atoms"
    keys = ("prior_values", "prior_probabilities")
    needs = ("prior_values", "prior_probabilities")

    def law(self, given: GivenPrior) -> EntryLaw:
        """See `TeacherPrior`."""
        values, probabilities = given.prior_values, given.prior_probabilities
        assert values is not None, "checked when the section was made"
        assert probabilities is not None, "checked when the section was made"
        if len(set(values)) < max(len(values), 2):
            raise ProblemError(
                "teacher.prior_values", "teacher.prior_values must be two or more different numbers: give each once."
            )
        total = sum(probabilities)
        if len(probabilities) != len(values):
            raise ProblemError(
                "teacher.prior_probabilities",
                f"teacher.prior_probabilities has {len(probabilities)} numbers, but teacher.prior_values has"
                f" {len(values)}: give one for each value.",
            )
        if abs(total - 1) > RELATIVE_TOLERANCE:
            raise ProblemError(
                "teacher.prior_probabilities", f"teacher.prior_probabilities must sum to 1, but sum to {total:.12g}."
            )
        return EntryLaw(tuple(p / total for p in probabilities), values, (0.0,) * len(values))


TEACHER_PRIORS: dict[str, TeacherPrior] = {
    kind.name: kind for kind in (Gaussian(), Rademacher(), GaussBernoulli(), Atoms())
}
"""By name; to add one, write a subclass of `TeacherPrior` and put it here."""
