"""What a kernel depends on, and the numbers of a problem that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.problem.losses import LOSSES
from attnphase.problem.own_functions import printed_scores
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units

__all__ = ["ModelKey", "model_numbers", "trained_places"]


@dataclass(frozen=True)
class ModelKey:
    """What a kernel depends on: sizes, scores, masks, tying and the loss, and no numerical parameter of the problem."""

    length: int
    rank: int
    tied: bool
    student_score: str
    student_causal: bool
    teacher_score: str
    teacher_causal: bool
    teacher_rank: int
    loss: str = "attention"
    values: int = 0
    expression: str = ""
    functions: str = ""  # what a user's own row functions return, so that a changed one is compiled anew
    finite: bool = False
    noisy: bool = False
    parameters: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()

    @classmethod
    def of(cls, problem: Problem, *, finite: bool = False) -> ModelKey:
        """The key of a problem's model, in the limit of high dimension or of samples at finite d.

        Raises
        ------
        ProblemError
            A score of the user's own is not known in this process, or has changed for the worse; or the problem came
            with data and names a function of a module.
        """
        problem.require_functions()
        student, teacher = problem.student, problem.teacher
        return cls(
            problem.tokens.length,
            student.rank,
            student.tied,
            student.score,
            student.causal,
            teacher.score,
            teacher.causal,
            teacher.rank,
            problem.loss.kind,
            problem.loss.value_columns,
            problem.loss.text or "",
            printed_scores(problem),
            finite,
            problem.target_noise > 0,
            tuple(problem.loss.numbers),
            problem.loss.fitted,
        )

    def model(self) -> Any:
        """The symbolic model (imports SymPy)."""
        return LOSSES[self.loss].model(self)


def model_numbers(problem: Problem) -> Array:
    """What compiled code takes as ``parameters``: omega, temperatures of student and teacher, units, the loss's own.

    Units are at the places `LENGTH_UNIT` and from `MATCHED` on, one a column; the parameters of the loss come last.
    """
    units, temperatures = Units.of(problem), (problem.student.temperature, problem.teacher.temperature)
    own = problem.loss.numbers.values()
    return np.array([problem.teacher.omega, *temperatures, np.sqrt(units.energy), *units.matched, *own], dtype=float)


def trained_places(problem: Problem) -> list[int]:
    """Where among these numbers stand those that training determines: trained parameters of the loss, and Q."""
    names = [*problem.loss.numbers]
    first = len(model_numbers(problem)) - len(names)
    return [first + names.index(name) for name in problem.loss.fitted]
