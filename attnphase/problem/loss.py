"""`[loss]`: the loss of one sample."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase.problem.kinds import alternatives, check_keys, one_of
from attnphase.problem.losses import LOSSES, LossKind
from attnphase.problem.messages import toml_table
from attnphase.problem.values import (
    CONFIG,
    Name,
    Rank,
)

__all__ = ["Loss"]


@toml_table("loss", kinds={"kind": LOSSES})
@dataclass(frozen=True, config=CONFIG)
class Loss:
    """The loss of one sample, a function of its local fields h and k.

    Parameters
    ----------
    kind
        ``"attention"``: ½‖T[k] x - S[h] (x+p)‖², the paper's. ``"values"``: both layers have value
        matrices of ``width`` columns, ½‖T(k_Q) k_V - S(h_Q) h_V‖², where W = (Q|V) or (Q|K|V) and
        Q⋆ = (Q|V). ``"square"``: (h - k)²/2; ``"logistic"``: log(1 + exp(-sign(k) h)); ``"hinge"``:
        max(0, 1 - sign(k) h): these three are for one token and one column. ``"expression"``: the
        user's own. All but the first two know no attention, and use no score, ω or mixing.
    width
        For ``"values"``: columns of the value matrices, from 1 to 8; 1 if left out.
    expression
        For ``"expression"``: a formula in the fields ``h0_0`` (token 0, column 0) and ``k0_0``, or
        plain ``h`` and ``k`` if there is one of each. Finite for all fields, and falling more slowly
        than their square; ``sign`` takes no field of the student, since the loss would jump.
        ``noise0_1``, or ``noise`` for one token, is the labels' noise in entry (0, 1), of variance
        ``teacher.noise``. ``c0``, or ``c`` for one token, is the number of the cluster of token 0,
        from 0.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, is missing, or does not go with ``kind``.
    """

    kind: Annotated[
        str,
        Strict(),
        one_of(LOSSES),
        Field(description=alternatives(LOSSES)),
    ] = "attention"
    width: Annotated[
        Rank | None,
        Field(description="a whole number from 1 to 8"),
    ] = None
    expression: Annotated[
        Name | None,
        Field(description="a formula in the local fields h and k"),
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_keys("loss", self, LOSSES, ("width", "expression"))
        if self.width is None and "width" in self.form.keys:
            object.__setattr__(self, "width", 1)
        return self

    @property
    def form(self) -> LossKind:
        """What its kind is: flags, and the symbolic model."""
        return LOSSES[self.kind].of(self.expression)

    @property
    def value_columns(self) -> int:
        """Columns that the value matrices add to the weights of student and teacher."""
        return self.width or 0

    @property
    def has_attention(self) -> bool:
        """Whether scores, temperatures and masks enter."""
        return self.form.has_attention
