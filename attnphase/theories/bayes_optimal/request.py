"""What the Bayes-optimal theory can be asked, checked without loading anything heavy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

from attnphase.errors import ProblemError

if TYPE_CHECKING:
    from attnphase.problem.problem import Problem

__all__ = ["CHANNELS", "FORMULAS", "STARTS", "BayesOptimalStart", "channel_of", "check_varied", "undetermined"]

BayesOptimalStart = Literal["uninformed", "informed", "asymmetric"]
"""Where the iteration starts."""

STARTS: tuple[BayesOptimalStart, ...] = get_args(BayesOptimalStart)
"""Its names."""

CHANNELS = ("sign", "absolute", "linear")
"""Channels of one token by name; formulas are of up to three."""

FORMULAS = "a formula of k, or one of k and y, the likelihood of a label y = 1 or -1"
"""What these are, for messages."""

_OF_LOSS = {"square": "linear", "logistic": "sign", "hinge": "sign"}
_LARGEST_RANK, _LARGEST_WITHOUT_NOISE, _MOST_TOKENS = 3, 2, 3
_WITHOUT_PART, _NODES = ("student", "regularizer"), ("integration.rule", "integration.nodes")


def channel_of(problem: Problem, channel: str | None) -> str | None:
    """What is observed, by name or formula; None for the teacher's score matrix, or what a loss of one's own sees.

    Raises
    ------
    ProblemError
        The theory does not cover the problem; the message names the field.
    """
    if problem.tokens.points("teacher") is not None:
        raise ProblemError(
            "tokens.spectrum",
            "tokens.spectrum has the teacher's weights on its atoms, so that a learner who knows the model has nothing"
            " to learn: leave them out.",
        )
    rank = problem.teacher_columns
    if rank > _LARGEST_RANK:
        raise ProblemError("teacher.rank", f"teacher.rank must be at most {_LARGEST_RANK} for this theory, not {rank}.")
    if rank > _LARGEST_WITHOUT_NOISE and problem.teacher.noise == 0:
        where = "" if problem.loss.has_attention else ", and add noise to the label in loss.expression"
        raise ProblemError(
            "teacher.rank",
            f"teacher.rank must be 1 or {_LARGEST_WITHOUT_NOISE} for labels without noise, not {rank}: set"
            f" teacher.noise above zero{where}.",
        )
    if channel is None and problem.loss.has_attention:
        if problem.teacher.omega == 1:
            raise ProblemError(
                "teacher.omega",
                "teacher.omega = 1: labels do not depend on the teacher's weights, and nothing can be learned of them:"
                " set teacher.omega below 1.",
            )
        _check_scores(problem)
        return None
    length = problem.tokens.length
    if length > _MOST_TOKENS:
        raise ProblemError(
            "tokens.length",
            f"tokens.length must be at most {_MOST_TOKENS} for labels other than the teacher's score matrices, not"
            f" {length}.",
        )
    if channel is None and problem.loss.kind == "expression":
        return None
    if length != 1 and (channel is None or channel in CHANNELS):
        raise ProblemError(
            "channel",
            f'channel = "{channel}" is for one token: give a formula of k, or set tokens.length = 1, not {length}.',
        )
    channel = _OF_LOSS[problem.loss.kind] if channel is None else channel
    if channel in CHANNELS and rank != 1:
        raise ProblemError("channel", f'channel = "{channel}" is for teacher.rank = 1, not {rank}: give a formula.')
    return channel


def _check_scores(problem: Problem) -> None:
    if problem.loss.value_columns:
        raise ProblemError(
            "loss.kind",
            f'loss.kind = "{problem.loss.kind}" has value matrices, which this theory does not cover: use "attention".',
        )


def check_varied(names: Iterable[str]) -> None:
    """Refuse fields that have no part in this theory, of which each value would give the same.

    Raises
    ------
    ProblemError
        The message names the field.
    """
    for name in names:
        if name.partition(".")[0] in _WITHOUT_PART or name in _NODES:
            raise ProblemError(
                name,
                f"{name} does not enter the Bayes-optimal error, so nothing would vary: the student, its"
                " regulariser and the rule do not matter. Vary another field.",
            )


def undetermined() -> ProblemError:
    """The refusal of labels without noise that leave a continuum of fields."""
    return ProblemError(
        "teacher.noise",
        "teacher.noise = 0: given some of the teacher's fields, these labels must leave one common sign of the others"
        " open, or nothing, which was found for no choice of fields: give a noise, however small (such as 1e-6).",
    )
