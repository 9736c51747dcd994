"""How a dynamics runs, and how long.

Nothing heavy is imported, so that a wrong setting is refused at once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.errors import ProblemError

if TYPE_CHECKING:
    from attnphase.problem.problem import Problem

__all__ = ["Basin", "FlowSettings", "FlowStatus"]

_LONGEST = 1e9
_MOST_RECORDS = 100_000


class FlowStatus(IntEnum):
    """How a trajectory ended; the values are the CF flags of the dataset's ``status``."""

    at_rest = 0  # a stationary point is reached
    completed = 1  # the time is over
    diverged = 2  # the weights run away: the rate is too large, or the risk has no minimum
    at_saddle = 3  # a stationary point is reached that has unstable directions, along which nothing pushes


class Basin(IntEnum):
    """What the weights have found at the end; the values are the CF flags of the dataset's ``basin``."""

    semantic = 0
    positional = 1
    mixed = 2
    uninformed = 3
    under_way = 4  # the time is over before anything is at rest


@dataclass(frozen=True)
class FlowSettings:
    """What moves, and how accurately it is followed.

    Attributes
    ----------
    learning_rate : float
        eta of one-pass SGD; 0 is gradient flow on the population risk, with ``t = eta tau`` as its time.
    batch : int
        Fresh samples of a step.
    until : float
        The time at the end: steps over d, or t.
    records : int
        Times that are recorded, from 0 to `until` in equal steps.
    tolerance : float
        Relative, of the integration in time.
    at_rest : float
        The dynamics has ended where no overlap moves by more than this share of itself in the state's own unit of time,
        see `attnphase.theories.sgd_flow.rates.Dynamics.pace`. Ten times `tolerance`, up to which an integration does
        not come to rest.
    max_nodes : int
        Largest number of Sobol points, all replicates together.

    Raises
    ------
    ProblemError
        A value is out of range; the message names it.
    """

    learning_rate: float = 0.0
    batch: int = 1
    until: float = 100.0
    records: int = 101
    tolerance: float = 1e-6
    at_rest: float = 1e-5
    max_nodes: int = 2**18

    def __post_init__(self) -> None:
        positive = f"a positive number up to {_LONGEST:g}"
        plain: dict[str, Any] = {
            "learning_rate": arguments.number(
                "learning_rate",
                self.learning_rate,
                lambda x: 0 <= x <= _LONGEST,
                f"a number from 0, which is gradient flow, to {_LONGEST:g}",
            ),
            "batch": arguments.whole("batch", self.batch, 1),
            "until": arguments.number("until", self.until, lambda x: 0 < x <= _LONGEST, positive),
            "records": arguments.whole("records", self.records, 2, _MOST_RECORDS),
            "tolerance": arguments.number(
                "tolerance", self.tolerance, lambda x: 1e-12 <= x < 1, "a number from 1e-12 to below 1"
            ),
            "at_rest": arguments.number("at_rest", self.at_rest, lambda x: 0 <= x < 1, "a number from 0 to below 1"),
            "max_nodes": arguments.whole("max_nodes", self.max_nodes, 1),
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        shortest = (self.records - 1) * sys.float_info.min
        if self.until < shortest:
            raise ProblemError(
                "until",
                f"until must be at least {shortest:.3g}, so that the {self.records} times of the result differ, not"
                f" {self.until:g}.",
            )
        if not self.learning_rate and self.batch > 1:
            raise ProblemError("batch", "batch belongs to SGD: give a learning_rate, or leave it out.")

    @property
    def is_flow(self) -> bool:
        """Whether it is gradient flow."""
        return self.learning_rate == 0

    def check(self, problem: Problem) -> None:
        """Refuse a problem that the equations do not cover.

        Raises
        ------
        ProblemError
        """
        if not problem.regularizer.form.quadratic:
            raise ProblemError(
                "regularizer.kind",
                f"regularizer.kind is {problem.regularizer.kind}, but the dynamics is that of weight decay: use ridge.",
            )
        if problem.loss.form.has_kink:
            raise ProblemError(
                "loss.kind",
                f"loss.kind {problem.loss.kind} has a kink, which SGD steps across: use a smooth loss, such"
                " as logistic.",
            )
        problem.loss.refuse_trained("the dynamics")
