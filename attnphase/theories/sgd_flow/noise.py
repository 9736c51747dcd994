"""Labels with noise: where a loss is quadratic in it, its mean is taken in closed form.

The gradient is then affine in the noise, whose mean leaves it as it is: only squares of gradients, which the noise of
SGD is made of, and the mean loss gain by it (`derivations.replica.sgd_flow`).  Other noise belongs to a sample's
fields.
Nothing heavy is imported, so that a wrong argument is refused at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnphase.problem.problem import Problem

__all__ = ["has_quadratic_noise", "of_fields"]


def has_quadratic_noise(problem: Problem) -> bool:
    """Whether there is noise whose mean is taken in closed form."""
    return problem.loss.form.noise_is_quadratic and problem.target_noise > 0


def of_fields(problem: Problem) -> Problem:
    """The problem whose kernels the dynamics uses: without noise that is not drawn with the fields."""
    return problem.with_fields({"teacher.noise": 0.0}) if has_quadratic_noise(problem) else problem
