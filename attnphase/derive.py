"""The equations of a problem, to read: `derive` returns them as LaTeX, Markdown and Python source.

SymPy is imported when `derive` is called, not with this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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

    Examples
    --------
    >>> print(derive().saddle_point.overlaps[1].right_hand_side)
    MatrixSpectralMean(...)
    """
    from derivations.codegen import module_source
    from derivations.render import document

    model = ModelKey.of(problem if problem is not None else Problem.paper()).model()
    page = document(model, concrete=concrete)
    return Derivation(
        latex=page.latex(),
        markdown=page.markdown(),
        python=module_source(model),
        free_entropy=model.free_entropy,
        saddle_point=model.saddle_point,
    )
