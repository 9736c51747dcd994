"""A regulariser that a user gave as a formula of one weight, summed over the weights of a row."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.rows.kind import Given, RegularizerKind
from attnphase.rows.prox import newton_prox
from attnphase.rows.regularizer import RowRegularizer

with loaded_on_use(__name__):
    from derivations.models import regularizers
    from derivations.printing import latex as equation_printing

__all__ = ["Formula", "load_expression"]

_EXPRESSION = "regularizer.expression"
_PANELS = 24  # a formula may bend sharply without a kink


class Formula(RegularizerKind):
    """``"expression"``: a convex function of one weight, and a ridge."""

    name = "expression"
    keys = ("expression", "ridge")
    needs = ("expression",)
    own = "expression"
    introduced = "was given as"
    example: ClassVar = {"expression": "0.01*sqrt(w**2 + 0.1)"}

    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """See `RegularizerKind`."""
        return load_expression(str(given.expression), float(given.ridge))

    def latex(self, given: Given) -> str:
        """See `RegularizerKind`."""
        expression = regularizers.ConvexPenalty.of(str(given.expression)).expression
        own = r"\sum_c \rho(w_c), \quad \rho(w) = " + equation_printing.EquationPrinter().show(expression)
        return f"{self.quadratic_latex} + {own}" if given.ridge else own


@lru_cache(maxsize=16)
def load_expression(text: str, ridge: float) -> RowRegularizer:
    """The regulariser of a formula of one weight, summed over the weights of a row.

    Raises
    ------
    ProblemError
        Naming ``regularizer.expression``.
    """
    try:
        penalty = regularizers.ConvexPenalty.of(text)
    except regularizers.RegularizerError as error:
        raise ProblemError(_EXPRESSION, f"{_EXPRESSION} cannot be used: {error}") from None
    value, slope, curvature = penalty.numeric
    kinks = penalty.kinks
    prox = newton_prox(slope, curvature, kinks)
    return RowRegularizer("expression", ridge, value, prox, kinks, even=penalty.even, panels=_PANELS)
