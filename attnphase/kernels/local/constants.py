"""Numbers of Newton's method and of its starting points."""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ARGUMENTS",
    "CAPTURED",
    "CLOSE",
    "CONVERGED",
    "CONVEX",
    "DECREASE",
    "DISTINCT",
    "EASED",
    "ENDLESS",
    "FAR",
    "FINITE",
    "FIRST_SHIFT",
    "FLED",
    "GOES_ON",
    "GRADIENT_TOLERANCE",
    "IRREGULAR",
    "LENGTH_UNIT",
    "MATCHED",
    "MAX_NEWTON",
    "MAX_TRIES",
    "MERGED",
    "NO_SHIFT",
    "PIVOT",
    "ROUNDING",
    "RUNAWAY",
    "STEEPER",
    "STUCK",
    "Starts",
]

ARGUMENTS = 8
"""Arrays that a model's function takes, whatever it needs of them."""

LENGTH_UNIT = 3
"""Place among the parameters of a loss of the length e: ``e^2`` is the unit of its energies."""

MATCHED = 4
"""Place of the first of the factors that make the student's fields of the teacher's, one a column."""

MAX_NEWTON = 200
MAX_TRIES = 60
"""Of a step with growing damping."""

GRADIENT_TOLERANCE = 1e-11
"""On the norm of the gradient in u, relative to the root of ``e^2 + |u|^2`` with the length e of `LENGTH_UNIT`."""

CLOSE = 1e-7
"""Longest step, relative to the root of ``e^2 + |u|^2``, that a lane may take without a look at where it leads."""

PIVOT = 1e-12
"""A matrix whose pivots are not above it counts as not positive definite."""

DECREASE = 1e-4
"""Share of the decrease by the slope that a step must bring."""

ROUNDING = 4e-16
"""Of the energy, relative to e^2 and its size: rounding decides below."""

FIRST_SHIFT, NO_SHIFT = 0.1, 0.05
"""Smallest damping, and the one below which an accepted step drops it."""

CONVEX, STEEPER, EASED = 2.0, 4.0, 0.25
"""Factors of the damping: where the matrix is not positive definite, a step is refused, a step is accepted."""

DISTINCT = 1e-5
"""Two minima are one if no coordinate differs by more, relative to e + |u|."""

CAPTURED = 1e-2
"""A descent this close to a known minimum, relative to the length of its u, is taken to end there.

No other length will do: where V is large, minima that are far apart in h are close in u.
"""

FAR = 1e30
"""Growth of |u|^2, or of the energy's size on its way down, by which a descent counts as run away."""

RUNAWAY = -MAX_NEWTON - 1
"""Steps of a node at which a descent found no bottom."""


GOES_ON, CONVERGED, MERGED, FLED, STUCK, ENDLESS, IRREGULAR = 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
"""What has become of a descent: nothing yet, a minimum, a known one, no bottom, no step that helps, too many steps.

IRREGULAR: its next step is one for `lanes.newton_trial`, from where it is.
"""

FINITE = 1.7976931348623157e308
"""No energy is larger."""


class Starts(IntEnum):
    """Starting points of the local minimisation.

    WARM: the two lowest minima of the previous pass.  FROM_ZERO: zero alone, as in the published recipe.  COLD: omega,
    the teacher's field lifted to the student's columns, in their units, with both signs, zero, the reflected omega, and
    omega with one token reflected.  REFRESH: both, so that a pass can only find lower minima.
    """

    COLD = 0
    WARM = 1
    FROM_ZERO = 2
    REFRESH = 3

    @property
    def follow(self) -> bool:
        """Whether the minima of the previous pass are the first of the starts."""
        return self in (Starts.WARM, Starts.REFRESH)
