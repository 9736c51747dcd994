"""The optimisers by name: what each needs and is set to, read without torch; `classes` has the classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attnphase.state_evolution.branches import BRANCHES

if TYPE_CHECKING:
    from attnphase.problem import Problem

__all__ = ["OPTIMIZERS", "OptimizerKind", "OptimizerName", "suited"]

OptimizerName = Literal["gd", "adam", "lbfgs", "fista", "gamp", "bayes-gamp", "sgd"]
"""An optimiser of the experiments."""

_TOLERANCE = 1e-8


@dataclass(frozen=True)
class OptimizerKind:
    """An optimiser's settings by default, and what it can do.

    Attributes
    ----------
    steps : int
        Largest number of steps.
    learning_rate : float or None
        None: it has none.
    tolerance : float or None
        On ``|nabla R| / sqrt(d)`` over its natural size.  None: all the steps are made.
    damping : float or None
        Share of the old iterate that is kept.  None: it has none.
    smooth_only : bool
        Whether it cannot take a regulariser with kinks.
    substitute : str or None
        What then takes its place where nobody insists on it.
    message_passing : bool
        Whether it solves the samples' local problems, and keeps their matrices and the tokens' squares.
    batch : int or None
        Fresh samples of a step; the number of steps follows from alpha.  None: it trains on all samples, again and
        again.
    posterior : bool
        Whether it seeks the posterior's mean of the teacher's weights, and trains no student.
    """

    steps: int
    learning_rate: float | None = None
    tolerance: float | None = None
    damping: float | None = None
    smooth_only: bool = False
    substitute: OptimizerName | None = None
    message_passing: bool = False
    batch: int | None = None
    posterior: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        """Names of starts, that by default first."""
        return ("uninformed", "informed") if self.posterior else BRANCHES

    @property
    def one_pass(self) -> bool:
        """Whether no sample is seen twice."""
        return self.batch is not None


OPTIMIZERS: dict[OptimizerName, OptimizerKind] = {
    "gd": OptimizerKind(steps=5000, learning_rate=0.15),  # the paper's, as is adam
    "adam": OptimizerKind(steps=2500, learning_rate=0.01, smooth_only=True),
    "lbfgs": OptimizerKind(steps=2000, tolerance=_TOLERANCE, smooth_only=True, substitute="fista"),
    "fista": OptimizerKind(steps=5000, learning_rate=0.15, tolerance=_TOLERANCE),
    "gamp": OptimizerKind(steps=400, tolerance=_TOLERANCE, damping=0.5, message_passing=True),
    "bayes-gamp": OptimizerKind(steps=500, tolerance=1e-6, damping=0.5, posterior=True),
    "sgd": OptimizerKind(steps=0, learning_rate=1.0, smooth_only=True, batch=1),
}
"""The optimisers of the experiments."""


def suited(optimizer: OptimizerName, problem: Problem) -> OptimizerName:
    """Return an optimiser, or the one that takes its place where the regulariser has kinks."""
    if problem.regularizer.form.quadratic:
        return optimizer
    return OPTIMIZERS[optimizer].substitute or optimizer
