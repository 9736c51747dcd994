"""`[teacher]` and `[student]`: the two attention layers."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict
from pydantic.dataclasses import dataclass

from attnphase.problem.messages import toml_table
from attnphase.problem.values import (
    CONFIG,
    ENTRIES,
    MAX_LENGTH,
    PLAIN,
    Flag,
    Noise,
    Rank,
    Score,
    Table,
    Temperature,
    lists,
)

__all__ = ["PAPER_MIXING", "SHIPPED_SCORES", "Student", "Teacher", "matrices_of_weights"]

PAPER_MIXING = ((0.6, 0.4), (0.4, 0.6))
"""Positional part A of the paper's teacher, equation (16)."""

SHIPPED_SCORES = ("softmax", "linear", "relu", "sigmoid", "softmax1")
"""Scores whose names need no further check."""


def matrices_of_weights(tied: bool) -> int:
    """How many matrices the logits are made of: Q alone, or Q and K."""
    return 1 if tied else 2


@toml_table("teacher", quiet=("temperature", "causal", "noise"))
@dataclass(frozen=True, config=CONFIG)
class Teacher:
    """The target T[k] = (1 - ω) score(k kᵀ) + ω A applied to the tokens.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, or the user's
        ``"module:attribute"``.
    rank
        Number t of columns of Q⋆, from 1 to 8.
    omega
        Weight of the positional part, from 0 to 1.
    mixing
        Shape (L, L): the positional part A. Left out, it follows the number of tokens: see
        `Problem`.
    temperature
        Divides the logits, from 2^-20 to 2^20 (about 1e-6 to 1e6).
    causal
        Whether token a attends only to tokens b <= a.
    noise
        Variance Δ of the labels' noise, from 0 to 1e6: what is learned from is T[k] + √Δ Z, where Z has
        independent standard normal entries for every sample, L by L as T; one number for L = 1. With the loss
        ``"square"``, ``"logistic"`` or ``"hinge"`` it is the teacher's field that has it, k + √Δ z. Test errors are
        those of labels without noise.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (1) and (16) of arXiv:2402.03902.
    """

    score: Score = "softmax"
    rank: Rank = 1
    omega: Annotated[
        float,
        Strict(),
        Field(ge=0, le=1, allow_inf_nan=False, description="a number from 0 to 1"),
        PLAIN,
    ] = 0.3
    mixing: Annotated[
        Table | None,
        Field(description=f"a square table of {ENTRIES}, one row for each token"),
        lists(MAX_LENGTH, MAX_LENGTH),
    ] = None
    temperature: Temperature = 1.0
    causal: Flag = False
    noise: Noise = 0.0


@toml_table("student", quiet=("temperature", "causal"))
@dataclass(frozen=True, config=CONFIG)
class Student:
    """The attention layer that is trained: S[h] applied to tokens plus encodings.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, or the user's
        ``"module:attribute"``.
    rank
        Number r of columns of Q (and of K), from 1 to 8.
    tied
        Whether queries and keys share their weights, S of h hᵀ, or not, S of h_Q h_Kᵀ.
    temperature
        Divides the logits, from 2^-20 to 2^20 (about 1e-6 to 1e6).
    causal
        Whether token a attends only to tokens b <= a.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (2) and (15), untied (124), of arXiv:2402.03902.
    """

    score: Score = "softmax"
    rank: Rank = 1
    tied: Flag = True
    temperature: Temperature = 1.0
    causal: Flag = False
