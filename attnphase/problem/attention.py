"""`[teacher]` and `[student]`: the two attention layers."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Annotated, Any, Self

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from attnphase.errors import ProblemError
from attnphase.problem.atoms_file import read_prior
from attnphase.problem.kinds import alternatives, check_keys, one_of
from attnphase.problem.messages import toml_table
from attnphase.problem.teacher_priors import TEACHER_PRIORS, EntryLaw
from attnphase.problem.values import (
    CONFIG,
    ENTRIES,
    MAX_LENGTH,
    PLAIN,
    Flag,
    Noise,
    Probability,
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


_MOST_VALUES = 16  # of an entry of the teacher's weights


def matrices_of_weights(tied: bool) -> int:
    """How many matrices the logits are made of: Q alone, or Q and K."""
    return 1 if tied else 2


@toml_table("teacher", quiet=("temperature", "causal", "noise", "prior"), kinds={"prior": TEACHER_PRIORS})
@dataclass(frozen=True, config=CONFIG)
class Teacher:
    """The target T[k] = (1 - ω) score(k kᵀ) + ω A applied to the tokens.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, the user's
        ``"module:attribute"``, or a function of a list of logits, which the problem
        replaces by the resulting formula.
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
        Variance Δ of the label noise, from 0 to 1e6: training labels are (T[k] + √Δ Z) x, where Z has
        independent standard normal entries for every sample, L by L as T; one number for L = 1. With the loss
        ``"square"``, ``"logistic"`` or ``"hinge"`` the noise is added to the teacher's field, k + √Δ z. Test errors are
        those of labels without noise.
    prior
        The law of the entries of Q⋆ in the eigenbasis of the covariances, which are independent. ``"gaussian"``:
        N(0, 1), as in the paper. ``"rademacher"``: 1 or -1. ``"gauss-bernoulli"``: zero, or with probability
        ``prior_density`` normal, with variance one in all. ``"atoms"``: ``prior_values`` with
        ``prior_probabilities``, which are not normalised to variance one or mean zero.
    prior_density
        For ``"gauss-bernoulli"``: share of the entries that are not zero, from 1e-6 to 1.
    prior_values
        For ``"atoms"``: two to 16 different numbers from -1e6 to 1e6, or the name of a CSV file with the header
        ``value,probability``, which is read when the teacher is made.
    prior_probabilities
        For ``"atoms"``: the probability of each, above 0; left out where a file has them.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``prior``.

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
    prior: Annotated[
        str,
        Strict(),
        one_of(TEACHER_PRIORS),
        Field(description=alternatives(TEACHER_PRIORS)),
    ] = "gaussian"
    prior_density: Annotated[
        Annotated[float, Strict(), Field(ge=1e-6, le=1, allow_inf_nan=False)] | None,
        Field(description="a number from 1e-6 to 1"),
        PLAIN,
    ] = None
    prior_values: Annotated[
        tuple[Annotated[float, Strict(), Field(ge=-1e6, le=1e6, allow_inf_nan=False), PLAIN], ...] | None,
        Field(description="a list of two to 16 numbers from -1e6 to 1e6, or a file"),
        lists(_MOST_VALUES),
    ] = None
    prior_probabilities: Annotated[
        tuple[Annotated[Probability, Field(gt=0)], ...] | None,
        Field(description="a list of probabilities above 0, one for each value"),
        lists(_MOST_VALUES),
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Replace the name of a file of values by these and their probabilities."""
        values = given.kwargs if isinstance(given, ArgsKwargs) else given
        if not isinstance(values, Mapping) or not isinstance(values.get("prior_values"), str | PathLike):
            return given
        if values.get("prior_probabilities") is not None:
            raise ProblemError(
                "teacher.prior_probabilities",
                "teacher.prior_probabilities are in the file that teacher.prior_values names: leave them out, or set"
                " them to None.",
            )
        read = dict(zip(("prior_values", "prior_probabilities"), read_prior(values["prior_values"]), strict=True))
        return ArgsKwargs(given.args, {**values, **read}) if isinstance(given, ArgsKwargs) else {**values, **read}

    @model_validator(mode="after")
    def _check(self) -> Self:
        optional = ("prior_density", "prior_values", "prior_probabilities")
        check_keys("teacher", self, TEACHER_PRIORS, optional, "prior")
        _ = self.law
        return self

    @property
    def law(self) -> EntryLaw:
        """The law of an entry of the weights."""
        return TEACHER_PRIORS[self.prior].law(self)


@toml_table("student", quiet=("temperature", "causal"))
@dataclass(frozen=True, config=CONFIG)
class Student:
    """The attention layer that is trained: S[h] applied to tokens plus encodings.

    Parameters
    ----------
    score
        The function of one row of logits: ``"softmax"``, ``"linear"``, ``"relu"``, ``"sigmoid"``, ``"softmax1"``
        (denominator plus one), a formula in the entry's own logit ``z``, the user's
        ``"module:attribute"``, or a function of a list of logits, which the problem
        replaces by the resulting formula.
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
