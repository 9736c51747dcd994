"""The equations of a problem, to read: `derive` returns them as LaTeX, Markdown and Python source.

SymPy is imported when `derive` is called, not with this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attnphase import arguments
from attnphase.compiled import ModelKey
from attnphase.problem import Problem

if TYPE_CHECKING:
    from derivations.replica import FreeEntropy
    from derivations.saddle_point import SaddlePoint

__all__ = ["Derivation", "derive"]


@dataclass(frozen=True)
class Derivation:
    """The derived equations of one model.  Notebooks show the Markdown.

    Attributes
    ----------
    latex
        A standalone document for pdflatex.
    markdown
        The same page with formulas for MathJax.
    python
        The generated source: the local problem, compiled with Numba, and the state-evolution maps.
    free_entropy
        Named terms, and the replica calculation step by step, as SymPy expressions.
    saddle_point
        The state-evolution equations as SymPy expressions.
    """

    latex: str = field(repr=False)
    markdown: str = field(repr=False)
    python: str = field(repr=False)
    free_entropy: FreeEntropy = field(repr=False)
    saddle_point: SaddlePoint = field(repr=False)

    def _repr_markdown_(self) -> str:
        return self.markdown


def derive(problem: Problem | None = None, *, concrete: bool = False) -> Derivation:
    """Derive and print the equations of a problem.

    Parameters
    ----------
    problem
        Its scores, weight tying and sizes select the model; numerical parameters stay symbols.
        Left out, the paper's problem.
    concrete
        Print for the problem's own number of tokens and ranks: sums are written out, and rank 1
        is printed without matrices.  By default L, r and t are symbols.  The Python source always
        has the problem's sizes.

    Raises
    ------
    ProblemError
        `problem` is no problem, or `concrete` neither true nor false.

    Examples
    --------
    >>> print(derive().saddle_point.overlaps[1].right_hand_side)
    MatrixSpectralMean(...)
    """
    problem = Problem.paper() if problem is None else arguments.instance("problem", problem, Problem)
    arguments.flag("concrete", concrete)
    from derivations.codegen import module_source
    from derivations.render import document
    from derivations.replica import derive_free_entropy
    from derivations.saddle_point import derive_saddle_point

    model = ModelKey.of(problem).model()
    penalty = _penalty(problem)
    free_entropy = derive_free_entropy(separable=penalty is not None)
    page = document(model, concrete=concrete, penalty=penalty, clusters=problem.tokens.kind == "mixture")
    return Derivation(
        latex=page.latex(),
        markdown=page.markdown(),
        python=module_source(model, separable=penalty is not None),
        free_entropy=free_entropy,
        saddle_point=derive_saddle_point(free_entropy),
    )


def _penalty(problem: Problem) -> str | None:
    """LaTeX of the regulariser of one row of the weights; None for the ridge."""
    kind = problem.regularizer.kind
    absolute, norm = r"s \lVert w \rVert_1", r"s \lVert w \rVert_2"
    quadratic = r"\tfrac{\lambda}{2} \lVert w \rVert_2^2" if problem.regularizer.ridge else ""
    if kind == "ridge":
        return None
    if kind == "prox":
        own = r"\rho(w)"
    elif kind == "expression":
        from derivations.regularizers import ConvexPenalty
        from derivations.render import EquationPrinter

        own = r"\sum_c \rho(w_c), \quad \rho(w) = " + EquationPrinter().show(
            ConvexPenalty.of(str(problem.regularizer.expression)).expression
        )
        return f"{quadratic} + {own}" if quadratic else own
    else:
        own = norm if kind == "group-lasso" else absolute
    return f"{own} + {quadratic}" if quadratic else own
