"""Facts about expressions of fields, such as labels: by rules where these decide, else in many digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.points import Block, Points, points_of
from attnphase.facts.questions import Asked
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import mpmath

    from derivations.algebra import digits
    from derivations.models import exactly, parity

__all__ = ["Expressions", "equivariant"]


@dataclass(frozen=True)
class Expressions:
    """Functions of fields, given as expressions of symbols.

    Attributes
    ----------
    entries : tuple of Expr
        In functions of `derivations.models.functions`.
    symbols : tuple of Symbol
        Of the fields, in the order of a point's numbers.
    """

    entries: tuple[Any, ...]
    symbols: tuple[Any, ...]

    @cached_property
    def _printed(self) -> Any:
        return exactly.Printed.of(self.entries, self.symbols)

    def double(self, points: Array) -> Array:
        """Values (N, M) at points (N, F)."""
        with np.errstate(all="ignore"):
            return self._printed.double(points)

    def exact(self, points: Array) -> NDArray[np.object_]:
        """The same as numbers of mpmath, in the digits that it works in."""
        return self._printed.exact(points)

    def kinks(self, points: Array) -> Array:
        """Arguments (N, K) of all functions with kinks or jumps."""
        with np.errstate(all="ignore"):
            return self._printed.kinks(points)

    def points(self, means: Array, deviations: Array, *, each: int = 3, seed: int = 20) -> Points:
        """Points of fields with these means and deviations, (F,) each, and points between all kinks."""
        return points_of(
            [Block(means, deviations)], self.kinks if self._printed.has_kinks else None, each=each, seed=seed
        )

    def asked(self, points: Points) -> Asked:
        """The functions at those of some points at which they are finite."""
        return Asked.of(self, points)

    def unchanged_by_rule(self, change: Array) -> bool:
        """Whether rules show that ``f(change @ fields)`` is ``f(fields)``; False says nothing.

        Parameters
        ----------
        change : (F, F) array
            A signed permutation; rules know no others.
        """
        rows = np.abs(change)
        if not (np.isin(rows, (0, 1)).all() and (rows.sum(axis=0) == 1).all() and (rows.sum(axis=1) == 1).all()):
            return False
        places = rows.argmax(axis=1)
        changes = {
            self.symbols[i]: (int(change[i, j]), self.symbols[j])
            for i, j in enumerate(places)
            if i != j or change[i, j] < 0
        }
        return parity.unchanged_by_rule(self.entries, changes)

    def unchanged(self, change: Array, asked: Asked) -> bool:
        """Whether ``f(change @ fields)`` is ``f(fields)``: by a rule, or at the points that are asked.

        Parameters
        ----------
        change : (F, F) array
            A signed permutation, so that images are exact.
        asked : Asked
            What `asked` returns of these expressions.
        """
        if self.unchanged_by_rule(change):
            return True

        def image(_: Any, points: Array) -> Array:
            return points @ change.T

        return bool(asked.possible([None], image)) and asked.holds(lambda points: points @ change.T)


def equivariant(source: Expressions, image: Expressions, points: Points, change: Array, outputs: Array) -> bool:
    """Whether ``image(change @ fields)`` is ``outputs @ source(fields)``: in many digits, by signed permutations."""
    asked = source.asked(points)
    places, groups = asked.points.values[asked.points.exact], asked.points.groups[asked.points.exact]
    values, needed = digits.values_in_digits(lambda: source.exact(places), groups)
    with mpmath.workdps(needed):
        turned, its = values @ digits.exact(outputs.T), image.exact(places @ change.T)
    return digits.same(turned, its, groups, needed)
