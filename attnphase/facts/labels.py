"""Facts about labels that are functions of the teacher's fields: values, parities, symmetries of the columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.expressions import Expressions
from attnphase.facts.moments import same_arrays
from attnphase.facts.points import Points
from attnphase.facts.questions import Asked
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import measure_of

with loaded_on_use(__name__):
    from derivations.models import cells as symbolic

if TYPE_CHECKING:
    from derivations.models.labels import LabelFunctions

__all__ = ["FieldLaws", "LabelFacts"]

_MANY = 256  # points of every size, at which double precision looks for values that are none
_LIKELY = 9.0  # standard deviations: a normal variable is farther with a probability of 2e-19
_FARTHEST = 40.0  # standard deviations: normal densities are no numbers from 38.6 on
_MOST_VALUES = 16  # that draws are summed over
_MOST_OF_ONE = 64  # of one field, which need none: of jumps one after another, half a minute of decisions
_FEW = 64  # fields at which many digits look for a number
_RANKS = 8  # points at which the rank of a label's slopes is looked at
_INDEPENDENT = 1e-7  # singular value of slopes, over the largest
_BITS = 20  # of the fields that exact rotations turn
# orthogonal matrices times a number; of three columns those of two quaternions, one of them reflected
_ROTATIONS = {
    2: ([[3, -4], [4, 3]], [[5, 12], [12, -5]]),
    3: ([[-29, 2, 26], [22, -19, 26], [14, 34, 13]], [[5, 10, -10], [2, -11, -10], [14, -2, 5]]),
}


@dataclass(frozen=True, eq=False)
class FieldLaws:
    """Normal laws that the fields of a sample can have.

    Attributes
    ----------
    means, deviations : (C, F) arrays
        Of C laws.
    """

    means: Array
    deviations: Array

    @classmethod
    def of(cls, problem: Problem) -> FieldLaws:
        """Those of a problem's clusters, without noise."""
        spectrum, configurations = measure_of(problem), problem.cluster_law[0]
        deviations = np.sqrt(np.diagonal(spectrum.rho, axis1=1, axis2=2))
        both = [x[configurations].reshape(len(configurations), -1) for x in (spectrum.teacher_means, deviations)]
        means, widths = np.split(np.unique(np.concatenate(both, axis=1), axis=0), 2, axis=1)
        return cls(means, widths)

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """Beyond which a field's density is no number, (F,) each."""
        reach = _FARTHEST * self.deviations
        return (self.means - reach).min(axis=0), (self.means + reach).max(axis=0)

    @cached_property
    def scales(self) -> Array:
        """Root mean squares of the fields, (F,): the largest of all laws."""
        return np.sqrt(self.means**2 + self.deviations**2).max(axis=0)

    def likely(self, points: Array) -> NDArray[np.bool_]:
        """Which fields (N, F) some law can have."""
        apart = np.abs(points[:, None] - self.means) <= _LIKELY * self.deviations
        return np.asarray(apart.all(axis=-1).T.any(axis=0))

    def points(self, expressions: Expressions, each: int = 3) -> Points:
        """Points about zero and about the means, of all sizes."""
        about = [(np.zeros_like(self.scales), self.scales)]
        if self.means.any():
            about += [(mean, deviation) for mean, deviation in zip(self.means, self.deviations, strict=True)]
        found = [expressions.points(mean, deviation, each=each) for mean, deviation in about]
        if len(found) == 1:
            return found[0]
        starts = np.cumsum([0, *(len(one.values) for one in found)])
        groups = np.cumsum([0, *(one.groups.max() + 1 for one in found)])
        return Points(
            np.concatenate([one.values for one in found]),
            np.concatenate([one.groups + first for one, first in zip(found, groups, strict=False)]),
            np.concatenate([one.exact + first for one, first in zip(found, starts, strict=False)]),
        )


@dataclass(frozen=True, eq=False)
class LabelFacts:
    """Labels, of which one of several functions is that of a sample.

    Attributes
    ----------
    cases : sequence of LabelFunctions
        Those that clusters nobody sees make of the fields.
    shares : sequence of float
        Their probabilities.
    laws : FieldLaws
    """

    cases: Sequence[LabelFunctions]
    shares: Sequence[float]
    laws: FieldLaws

    @cached_property
    def _each(self) -> list[Expressions]:
        return [Expressions(case.of_every_label, case.fields) for case in self.cases]

    @cached_property
    def _asked(self) -> list[Asked]:
        return [one.asked(self.laws.points(one)) for one in self._each]

    @property
    def columns(self) -> int:
        """Columns of the fields (L, t), whose symbols are ``k0_0``, ``k0_1``, ..."""
        return 1 + max(int(str(one).rpartition("_")[2]) for one in self.cases[0].fields)

    @cached_property
    def are_finite(self) -> bool:
        """Whether labels are numbers: in many digits at all points, in double precision where fields can be."""
        for one in self._each:
            points = self.laws.points(one, _MANY).values
            bad = points[~np.isfinite(one.double(points)).all(axis=1)]
            if self.laws.likely(bad).any():
                return False
            try:
                one.exact(bad[:_FEW])
            except (TypeError, ValueError, ZeroDivisionError, OverflowError):  # complex, or a pole
                return False
        return True

    @cached_property
    def vary(self) -> bool:
        """Whether some label depends on the fields."""
        for one in self._each:
            values = one.double(self.laws.points(one, _MANY).values)
            if np.ptp(values[np.isfinite(values).all(axis=1)], axis=0).max() > 0:
                return True
        return False

    def samples(self) -> list[Array]:
        """Fields that the laws can have, for every case: of all sizes and between all kinks."""
        points = (self.laws.points(one, _MANY).values for one in self._each)
        return [some[self.laws.likely(some)] for some in points]

    def unchanged(self, turn: Array) -> bool:
        """Whether labels are the same of fields whose columns are turned by a signed permutation (t, t)."""
        change = self._of_fields(turn)
        return all(one.unchanged(change, asked) for one, asked in zip(self._each, self._asked, strict=True))

    def alike(self, turn: Array) -> bool:
        """Whether all labels are as likely as before: functions of equal shares may give way to one another."""
        change = self._of_fields(turn)
        for one, asked, share in zip(self._each, self._asked, self.shares, strict=True):
            others = (
                other
                for other, its in zip(self._each, self.shares, strict=True)
                if same_arrays(np.array(its), np.array(share))
            )
            if not (one.unchanged(change, asked) or any(_become(asked, other, change) for other in others)):
                return False
        return True

    def even_in(self, places: Sequence[int]) -> bool:
        """Whether labels stay as they are when some fields change their signs together."""
        change = np.eye(len(self.laws.scales))
        change[places, places] = -1
        return all(one.unchanged(change, asked) for one, asked in zip(self._each, self._asked, strict=True))

    def unchanged_by_rotations(self) -> bool:
        """Whether all orthogonal matrices of the columns leave labels unchanged.

        A rotation by an angle that is no share of a full turn and a reflection show it, of three columns
        about two axes.
        Fields have few digits and matrices integers, so that images are exact.
        """
        if self.columns == 1:
            return False
        for turn in map(np.array, _ROTATIONS[self.columns]):
            size = round(np.sqrt(turn[0] @ turn[0]))
            change = self._of_fields(turn / 1.0)
            for one in self._each:
                points = self.laws.points(one)
                mantissas, powers = np.frexp(points.values)
                short = np.ldexp(np.round(np.ldexp(mantissas, _BITS)), powers - _BITS)
                asked = one.asked(Points(size * short, points.groups, points.exact))
                if not _become(asked, one, change, size):
                    return False
        return True

    @property
    def most(self) -> int:
        """Values that finitely many labels can have."""
        return _MOST_OF_ONE if len(self.laws.scales) == 1 else _MOST_VALUES

    @property
    def are_steps(self) -> bool:
        """Whether the first label has no slope wherever double precision looks: it only jumps."""
        slopes = self.cases[0].values_and_slopes()(self.laws.points(self._each[0], _MANY).values)[1]
        return not slopes[np.isfinite(slopes).all(axis=(1, 2))].any()

    @cached_property
    def _cells(self) -> list[symbolic.Cells] | None:
        """Of all functions; None if one of them is not constant between jumps, or has too many values."""
        found = [symbolic.cells_of(case.entries, case.fields, *self.laws.ends, self.most) for case in self.cases]
        cells = [one for one in found if one is not None]
        return cells if len(cells) == len(found) else None

    def values(self) -> Callable[[Array], Array] | None:
        """Probabilities of the labels (..., Y) of fields (..., F) where these are finitely many, else None.

        Labels are constant between jumps, and signs of functions of the fields decide which one it is.
        """
        cells = self._cells
        if cells is None:
            return None
        numbers = symbolic.distinct([value for one in cells for value in one.values])
        if (count := max(numbers) + 1) > self.most:
            return None
        starts = np.cumsum([0, *(len(one.values) for one in cells)])
        parts = [
            (share, one, np.array(numbers[start:]), [case.of(argument) for argument in one.arguments])
            for case, share, one, start in zip(self.cases, self.shares, cells, starts, strict=False)
        ]

        def certain(k: Array) -> Array:
            flat = k.reshape(-1, k.shape[-1])
            chances = np.zeros((len(flat), count))
            for share, one, labels, arguments in parts:
                which = one.numbers(lambda place, here, of=arguments: of[place](flat[here])[..., 0] > 0, len(flat))
                chances[np.arange(len(flat)), labels[which]] += share
            return chances.reshape(*k.shape[:-1], count)

        return certain

    def jumps(self) -> tuple[float, ...] | None:
        """Where finitely many labels of one field jump, in order; None of several fields, or where it is not known."""
        if self._cells is None or len(self.laws.scales) > 1:
            return None
        found = [cells.jumps(case.fields[0]) for cells, case in zip(self._cells, self.cases, strict=True)]
        known = [one for one in found if one is not None]
        return tuple(np.unique(np.concatenate(known)).tolist()) if len(known) == len(found) else None

    def ranks(self) -> set[int]:
        """Of how many fields the label depends, of the first function: on every piece between kinks, at most of points.

        On a piece the label is analytic, and all points but a few have one rank.
        """
        case, scale = self.cases[0], self.laws.scales
        pieces = symbolic.pieces_of(case.entries, case.fields, *self.laws.ends)
        points = scale * np.random.default_rng(3).standard_normal((_RANKS, len(scale)))
        found = set[int]()
        for piece in pieces:
            with np.errstate(all="ignore"):
                slopes = scale * replace(case, entries=piece).values_and_slopes()(points)[1]
            slopes = slopes[np.isfinite(slopes).all(axis=(1, 2))]
            sizes = np.linalg.svd(slopes, compute_uv=False)
            found.add(int((sizes > _INDEPENDENT * sizes[:, :1]).sum(axis=1).max(initial=0)))
        return found

    def _of_fields(self, turn: Array) -> Array:
        """The matrix (F, F) of all fields that turns the columns of every token."""
        return np.asarray(np.kron(np.eye(len(self.laws.scales) // len(turn)), turn), float)


def _become(asked: Asked, other: Expressions, change: Array, size: int = 1) -> bool:
    """Whether other functions of ``change @ fields / size`` are those that are asked of the fields."""

    def image(_: Any, points: Array) -> Array:
        return (points / size) @ change.T

    return bool(asked.possible([None], image, other)) and asked.holds(lambda points: image(None, points), other)
