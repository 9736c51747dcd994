"""`[loss]`: the loss of one sample."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, PlainValidator, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase.errors import ProblemError
from attnphase.problem.kinds import alternatives, check_keys, one_of
from attnphase.problem.losses import LOSSES, LossKind, Sizes
from attnphase.problem.messages import listed, toml_table
from attnphase.problem.values import (
    CONFIG,
    Formula,
    Rank,
    read_named,
)

__all__ = ["Loss"]


@toml_table("loss", kinds={"kind": LOSSES}, named=("parameters", "trained"))
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
        user's own. Only the first two use scores, ω and mixing.
    width
        For ``"values"``: columns of the value matrices, from 1 to 8; 1 if left out.
    expression
        For ``"expression"``: a formula of arrays as in NumPy: the student's fields ``h`` (L, r), the
        teacher's ``k`` (L, t), the labels' ``noise`` (L, L) of variance ``teacher.noise``, the
        numbers ``c`` (L) of the tokens' clusters, from 0, and the products of the weights' columns,
        ``Q`` = WᵀW/d (r, r). ``h0_1`` is ``h[0, 1]``; of one entry, ``h`` is a number. Or a function
        ``loss(h, k, noise, c, Q)`` of such arrays, which the problem calls with SymPy symbols and
        replaces by the resulting formula. The loss must be finite for all fields and must not fall as
        fast as minus their square. ``sign`` of the student's fields is refused, since the loss would
        jump. ``test_error`` is 2/L times its mean.
    parameters
        For ``"expression"``: numbers of the formula by name, such as ``{"beta": 2.0}``. Each can be
        swept, as ``loss.parameters.beta``.
    trained
        Parameters that are trained together with the weights, and their penalties: formulas that are
        added to the objective divided by d, such as ``{"b": "0.02*b**2"}``, or ``"0"``. Training begins
        at their values in ``parameters``, or for a function at its defaults. A penalty may be a
        function of its parameter, which becomes a formula.

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
        Formula | Callable[..., Any] | None,
        Field(description="a formula in the local fields h and k, or a function of them, of at most 20000 characters"),
    ] = None
    parameters: Annotated[
        Mapping[str, float] | None,
        PlainValidator(lambda value: read_named("loss.parameters", value, float)),
        Field(description="a table of numbers by name"),
    ] = None
    trained: Annotated[
        Mapping[str, str] | None,
        PlainValidator(lambda value: read_named("loss.trained", value, str)),
        Field(description="a table of formulas by the names of parameters"),
    ] = None

    _sizes: ClassVar[Sizes | None] = None  # those of the problem, which sets them

    @model_validator(mode="after")
    def _check(self) -> Self:
        check_keys("loss", self, LOSSES, ("width", "expression", "parameters", "trained"))
        for name in self.parameters or ():
            if re.fullmatch(r"Q\d+_\d+", name):
                raise ProblemError(
                    "loss.parameters",
                    f"loss.parameters.{name} has the name of an entry of Q = WᵀW/d: choose another name.",
                )
        awaited = callable(self.expression)  # whose arguments have numbers too
        for name in self.trained or ():
            if name not in (self.parameters or ()) and not awaited:
                raise ProblemError(
                    "loss.trained",
                    f"loss.trained.{name} is no parameter of the loss: give the number at which it begins as"
                    f" loss.parameters.{name}.",
                )
        if self.width is None and "width" in self.form.keys:
            object.__setattr__(self, "width", 1)
        return self

    @property
    def form(self) -> LossKind:
        """What its kind is: flags, and the symbolic model."""
        return LOSSES[self.kind].of(
            self.text,
            {name: None if name in self.fitted else value for name, value in self.numbers.items()},
            self._sizes,
        )

    @property
    def text(self) -> str | None:
        """The formula; None of a function that no problem has called yet."""
        return self.expression if isinstance(self.expression, str) else None

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the entries of Q = WᵀW/d, if the loss of a problem takes it: these numbers are of the weights."""
        kind = LOSSES[self.kind]
        return () if self._sizes is None else kind.norms(self.text, self._sizes, self.parameters or {})

    @property
    def numbers(self) -> dict[str, float]:
        """All numbers that the loss depends on, by name: its parameters, and for those of Q the identity."""
        return {**(self.parameters or {}), **{name: float(len({*name[1:].split("_")}) == 1) for name in self.norms}}

    @property
    def fitted(self) -> tuple[str, ...]:
        """Names of those numbers that training determines: what is trained, and Q."""
        return (*(self.trained or ()), *self.norms)

    @property
    def trained_remedy(self) -> str:
        """The end of a sentence on points that are not found: that trained parameters may be why; empty without any."""
        names = listed([f"loss.trained.{name}" for name in self.trained or ()])
        advice = f"; {names} may leave the objective without a minimum: let the penalty grow, as 0.01*b**2 does in b"
        return advice if self.trained else ""

    def with_sizes(self, sizes: Sizes) -> Self:
        """A copy that knows the sizes of a problem, of which formulas in arrays are."""
        copy = replace(self)
        object.__setattr__(copy, "_sizes", sizes)
        return copy

    @property
    def value_columns(self) -> int:
        """Columns that the value matrices add to the weights of student and teacher."""
        return self.width or 0

    @property
    def has_attention(self) -> bool:
        """Whether scores, temperatures and masks enter."""
        return self.form.has_attention

    def refuse_trained(self, what: str) -> None:
        """Refuse trained parameters and Q, which something does not cover; `what` begins the sentence.

        Raises
        ------
        ProblemError
        """
        if self.trained:
            raise ProblemError(
                "loss.trained",
                f"{what} does not cover trained parameters, but loss.trained names {', '.join(self.trained)}: leave it"
                " out, so that they keep their values in loss.parameters.",
            )
        if self.norms:
            raise ProblemError(
                "loss.expression", f"{what} does not cover losses of Q, but loss.expression takes Q: write it without."
            )
