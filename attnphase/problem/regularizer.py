"""`[regularizer]`: the penalty on the weights."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase.errors import ProblemError
from attnphase.problem.kinds import alternatives, check_keys, one_of
from attnphase.problem.messages import shown, toml_table
from attnphase.problem.values import (
    CONFIG,
    MAX_COLUMNS,
    OR_FUNCTION,
    PLAIN,
    Name,
    lists,
)
from attnphase.rows.kind import RegularizerKind
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["Regularizer"]

_STRENGTH = 0.01  # the paper's ridge
_RANGE = "a number from 2^-27 to 2^27 (about 1e-8 to 1e8)"
# the paper's in units 2^10 times as small has 2^-20 times the strength
_Strength = Annotated[float, Strict(), Field(ge=2.0**-27, le=2.0**27, allow_inf_nan=False), PLAIN]


# the ridge of one kind means something else for another
@toml_table(
    "regularizer",
    quiet=("ridge",),
    kinds={"kind": REGULARIZERS},
    displaces={"kind": ("ridge",)},
    also={"strength": ("lambda", "lam", "weight_decay")},
)
@dataclass(frozen=True, config=CONFIG)
class Regularizer:
    """The penalty on the weights, a sum over the rows w_i of W; (λ/2)‖W‖²_F for the ridge.

    Parameters
    ----------
    kind
        ``"ridge"``: (strength/2) w². ``"lasso"``: strength |w|. ``"elastic-net"``: strength |w| +
        (ridge/2) w². ``"group-lasso"``: strength ‖w_i‖ + (ridge/2) ‖w_i‖². ``"expression"`` and
        ``"prox"``: the user's own, plus (ridge/2) w².
    strength
        λ, from 2^-27 to 2^27 (about 1e-8 to 1e8). Not for ``"expression"`` and ``"prox"``, which have their own scale.
        For the ridge also a list with one for each column of W, whose penalty is Σ_i (λ_i/2) ‖W_i‖².
    ridge
        Strength of the added ridge, 0 or more; for every kind but ``"ridge"`` and ``"lasso"``.
    expression
        For ``"expression"``: a convex function of one weight ``w``, such as
        ``"0.01*sqrt(w**2 + 0.1)"``, summed over all weights. Or a function of ``w``, which the problem
        replaces by the resulting formula.
    prox
        For ``"prox"``: ``"module:function"``, the proximal operator prox(v, step) of an even convex
        function, vectorised over v of shape (..., r).

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.

    Notes
    -----
    Equation (3) of arXiv:2402.03902; for other kinds than the ridge (100)-(106).
    """

    kind: Annotated[
        str,
        Strict(),
        one_of(REGULARIZERS),
        Field(description=alternatives(REGULARIZERS)),
    ] = "ridge"
    strength: Annotated[
        _Strength | tuple[_Strength, ...],
        Field(description=f"{_RANGE}, or for a ridge a list with one for each column of the weights"),
        lists(MAX_COLUMNS),
    ] = _STRENGTH
    ridge: Annotated[
        float,
        Strict(),
        Field(ge=0, le=1e8, allow_inf_nan=False, description="a number from 0 to 1e8"),
        PLAIN,
    ] = 0.0
    expression: Annotated[
        Name | None,
        OR_FUNCTION,
        Field(description="a formula in one weight w, or a function of it"),
    ] = None
    prox: Annotated[
        Name | None,
        Field(description='the name of a function as "module:function"'),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        form = self.form
        if "ridge" not in form.keys and self.ridge != 0:
            raise ProblemError(
                "regularizer.ridge",
                f'regularizer.ridge does not go with regularizer.kind = "{self.kind}": use {form.instead_of_ridge}'
                " instead.",
            )
        check_keys("regularizer", self, REGULARIZERS, ("expression", "prox"))
        if "strength" not in form.keys and self.strength != _STRENGTH:
            raise ProblemError(
                "regularizer.strength",
                f'regularizer.strength does not go with regularizer.kind = "{self.kind}": remove it, and put the scale'
                f" into regularizer.{form.own}.",
            )
        if self.by_column and not form.quadratic:
            raise ProblemError(
                "regularizer.strength",
                f'regularizer.strength is a list, which does not go with regularizer.kind = "{self.kind}": give one'
                ' number, or set regularizer.kind = "ridge".',
            )
        if self.prox is not None and not re.fullmatch(r"[\w.]+:[\w.]+", self.prox):
            raise ProblemError(
                "regularizer.prox",
                f'regularizer.prox must be the name of a function as "module:function", but it is {shown(self.prox)}.',
            )
        return self

    @property
    def form(self) -> RegularizerKind:
        """What its kind is: flags, LaTeX and numerics."""
        return REGULARIZERS[self.kind]

    @property
    def by_column(self) -> bool:
        """Whether every column has a strength of its own."""
        return isinstance(self.strength, tuple)

    @property
    def latex(self) -> str | None:
        """LaTeX of the penalty of one row w; None for the ridge, whose equations have it written out."""
        return self.form.latex(self)

    @property
    def minimizer(self) -> str | None:
        """LaTeX of a row's minimiser in one column; None where it has no formula."""
        return self.form.minimizer_latex(self)

    def rows(self, columns: int) -> RowRegularizer:
        """The problem of a row of so many weights; that of a problem is `Problem.rows`.

        Raises
        ------
        ProblemError
            A function of the user's own cannot be used.
        """
        return self.form.rows(self, columns)
