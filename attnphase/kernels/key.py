"""What a kernel depends on, and the numbers of a problem that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.problem.problem import SHIPPED_SCORES, Problem

__all__ = ["ModelKey", "model_numbers"]


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

    @classmethod
    def of(cls, problem: Problem, *, finite: bool = False) -> ModelKey:
        """The key of a problem's model, in the limit of high dimension or of samples at finite d.

        Raises
        ------
        ProblemError
            A score of the user's own is not known in this process, or has changed for the worse; or the problem came
            with data and names a function of a module.
        """
        from attnphase.kernels.compiler import _printed_row as printed_row

        problem.require_functions()
        student, teacher, length = problem.student, problem.teacher, problem.tokens.length
        return cls(
            length,
            student.rank,
            student.tied,
            student.score,
            student.causal,
            teacher.score,
            teacher.causal,
            teacher.rank,
            problem.loss.kind,
            problem.loss.value_columns,
            problem.loss.expression or "",
            "; ".join(
                printed_row(score, length, f"{section}.score")
                for section, score in (("student", student.score), ("teacher", teacher.score))
                if score not in SHIPPED_SCORES
            ),
            finite,
        )

    def model(self) -> Any:
        """The symbolic model (imports SymPy)."""
        from derivations.models.attention import SCALAR_LOSSES, AttentionModel, Student, Teacher, formula_loss
        from derivations.models.scores import resolve

        if self.loss in SCALAR_LOSSES:
            return SCALAR_LOSSES[self.loss]
        if self.loss == "expression":
            columns = self.rank * (1 if self.tied else 2)
            return formula_loss(self.expression, self.length, columns, self.teacher_rank)
        student = Student(resolve(self.student_score, self.length), self.rank, self.tied, self.student_causal)
        teacher = Teacher(resolve(self.teacher_score, self.length), self.teacher_rank, self.teacher_causal)
        return AttentionModel(self.length, student, teacher, self.values, self.finite)


def model_numbers(problem: Problem) -> Array:
    """What generated code takes as ``parameters``: omega and the temperatures of student and teacher."""
    return np.array([problem.teacher.omega, problem.student.temperature, problem.teacher.temperature], dtype=float)
