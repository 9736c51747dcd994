"""Which images of points leave a function as it is: double precision rejects, and many digits decide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.points import Points
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import mpmath

    from derivations.algebra import digits

__all__ = ["Asked", "Question", "differs", "group_of", "spreads"]

# what double precision may reject by: far above its rounding, of the values and of what an expression cancels
_FAR, _ROUNDING = 1e-6, 1e-9
_FEW = (1, 8)  # points at which most candidates fail

Image = Callable[[Any, Array], Array]
"""The image (N, F) of points under a candidate: permuted, with other signs, so that it is exact."""


class Question(Protocol):
    """A function of fields in double precision, and in as many digits as mpmath works in."""

    def double(self, points: Array) -> Array:
        """Values (N, M) at points (N, F)."""
        ...

    def exact(self, points: Array) -> NDArray[np.object_]:
        """The same as numbers of mpmath."""
        ...


@dataclass(frozen=True, eq=False)
class Asked:
    """A function at the points where facts about it are asked.

    Attributes
    ----------
    question : Question
    points : Points
        At all of which the function is finite, see `of`.
    """

    question: Question
    points: Points

    @classmethod
    def of(cls, question: Question, points: Points) -> Asked:
        """The function at those of some points at which it is a finite number in double precision."""
        with np.errstate(all="ignore"):
            finite = np.isfinite(question.double(points.values)).all(axis=1)
        return cls(question, points if finite.all() else points.subset(np.flatnonzero(finite)))

    @cached_property
    def _double(self) -> tuple[Array, Array]:
        """Values, and what their differences are compared with."""
        with np.errstate(all="ignore"):
            values = self.question.double(self.points.values)
        return values, _FAR * spreads(values, self.points.groups)

    @cached_property
    def _exact(self) -> tuple[Any, int]:
        exact = self.points.exact
        places = self.points.values[exact]
        return digits.values_in_digits(lambda: self.question.exact(places), self.points.groups[exact])

    def possible(self, candidates: Iterable[Any], image: Image, images: Question | None = None) -> list[Any]:
        """Those of some candidates that double precision cannot reject.

        Parameters
        ----------
        candidates : iterable
        image : callable
            The image of points under a candidate.
        images : Question, optional
            The function that has the same values at the images; else this one.
        """
        rest, other = list(candidates), images or self.question
        for count in (*_FEW, len(self.points.values)):
            if not rest or not count:
                break
            some = self.points.values[:count]
            values, allowed = (one[:count] for one in self._double)
            moved = np.concatenate([image(one, some) for one in rest])
            with np.errstate(all="ignore"):
                found = other.double(moved).reshape(len(rest), *values.shape)
            rest = [one for one, its in zip(rest, found, strict=True) if not differs(values, its, allowed)]
        return rest

    def holds(self, moved: Callable[[Array], Array], images: Question | None = None) -> bool:
        """Whether the values are the same at images of the points, in many digits."""
        values, needed = self._exact
        with mpmath.workdps(needed):
            its = (images or self.question).exact(moved(self.points.values[self.points.exact]))
        return digits.same(values, its, self.points.groups[self.points.exact], needed)

    def differences(self, moved: Callable[[Array], Array], images: Question | None = None) -> Array:
        """By how much values and those at images certainly differ, (N,), in what rounding and their spread allow."""
        values, allowed = self._double
        with np.errstate(all="ignore"):
            its = (images or self.question).double(moved(self.points.values))
            rounding = _ROUNDING * np.maximum(np.abs(values), np.abs(its))
            apart = np.abs(its - values) / np.maximum(allowed + rounding, np.finfo(float).tiny)
        return np.where(np.isfinite(apart), apart, np.inf).max(axis=1)

    def at(self, places: NDArray[np.intp]) -> Asked:
        """The same at some of the points, which count as one size."""
        return Asked(self.question, Points(self.points.values[places], np.zeros_like(places), np.arange(len(places))))

    def difference(self, moved: Callable[[Array], Array]) -> float:
        """Largest difference of values and those at images, in double precision: of what values of a size vary by."""
        values, allowed = self._double
        with np.errstate(all="ignore"):
            apart = np.abs(self.question.double(moved(self.points.values)) - values)
        return float((apart / np.where(allowed > 0, allowed, 1.0)).max() * _FAR)


def spreads(values: Array, groups: NDArray[np.intp]) -> Array:
    """What values (N, M) vary by within the group of every point."""
    found = np.empty(values.shape)
    for group in np.unique(groups):
        own = groups == group
        found[own] = np.ptp(values[own], axis=0)
    return found


def differs(values: Array, images: Array, allowed: Array) -> bool:
    """Whether values (N, M) and their images certainly differ: by more than what is allowed, and than rounding."""
    apart = np.abs(images - values)
    rounding = _ROUNDING * np.maximum(np.abs(values), np.abs(images))
    return not bool((apart <= allowed + rounding).all())


def group_of(
    candidates: Sequence[Any],
    holds: Callable[[Any], bool],
    product: Callable[[Any, Any], Any],
    key: Callable[[Any], Any],
) -> list[Any]:
    """Those of some candidates that hold, the first of which is the identity: generators are asked, and make the group.

    Parameters
    ----------
    candidates : sequence
    holds : callable
        Decides about one.
    product : callable
        Of two.
    key : callable
        What tells two apart.
    """
    one, *others = candidates
    known, generators = {key(one): one}, list[Any]()
    for candidate in others:
        if key(candidate) in known or not holds(candidate):
            continue
        generators.append(candidate)
        waiting = list(known.values())
        while waiting:  # a finite group: products from the right by generators make all of it
            made = [product(found, own) for found in waiting for own in generators]
            fresh = {key(found): found for found in made if key(found) not in known}
            known |= fresh
            waiting = list(fresh.values())
    return [candidate for candidate in candidates if key(candidate) in known]
