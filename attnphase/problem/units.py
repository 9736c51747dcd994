"""The problem's own units: the sizes by which starts, tolerances and thresholds are measured.

Two changes of units leave a problem what it is. Tokens and encodings times c, with temperatures and the penalty times
c^2, leave the weights and multiply fields by c and losses by c^2. A student's temperature times T, with a ridge over T,
multiplies weights and fields of its score by the root of T. Every unit here follows both, by factors that are exact for
powers of two, and is one for tokens of standard deviation 1/2 at temperatures 1, the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attnphase.arrays import Array
from attnphase.problem.problem import Problem

__all__ = ["Units", "power_of_two"]


def power_of_two(size: Array) -> Array:
    """Powers of two as large as sizes that are positive, or up to twice as large: dividing by them costs no digit."""
    return np.ldexp(1.0, np.frexp(size)[1])


@dataclass(frozen=True, eq=False)
class Units:
    """Sizes of what a problem is made of.

    Attributes
    ----------
    tokens : float
        Twice the root mean square of the tokens' standard deviations. It is the unit of the teacher's fields, and of
        encodings.
    energy : float
        Of the loss of one sample: the square of `tokens`; 1 where only the sign of the teacher's field enters.
    fields : (r,) array
        Of the student's fields, column by column: the root of the temperature for the columns of a score, 1 where the
        loss compares the field with a sign, `tokens` elsewhere.
    matched : (r,) array
        Of the student's weights, where its logits, or else its fields, are the teacher's.
    """

    tokens: float
    energy: float
    fields: Array
    matched: Array

    @classmethod
    def of(cls, problem: Problem) -> Units:
        """Those of a problem."""
        return _units_of(problem)

    @property
    def weights(self) -> Array:
        """Of the student's weights, where tokens make fields of unit size of them, (r,)."""
        return self.fields / self.tokens

    @property
    def curvature(self) -> float:
        """Of the penalty, for the first column: that of an energy by squared weights."""
        return float(self.energy / self.weights[0] ** 2)


@lru_cache(maxsize=32)
def _units_of(problem: Problem) -> Units:
    weights, variances = problem.spectrum_atoms()
    tokens, form = float(2.0 * np.sqrt((weights @ variances).mean())), problem.loss.form
    columns = problem.columns - problem.loss.value_columns
    fields, matched = np.full(problem.columns, tokens), np.ones(problem.columns)
    if form.has_attention:
        fields[:columns] = np.sqrt(problem.student.temperature)
        matched[:columns] = np.sqrt(problem.student.temperature / problem.teacher.temperature)
    elif form.has_labels:
        fields[:], matched[:] = 1.0, 1.0 / tokens
    return Units(tokens, 1.0 if form.has_labels else tokens**2, fields, matched)
