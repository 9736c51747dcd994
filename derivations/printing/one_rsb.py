r"""The equations of one-step replica-symmetry breaking as a page to read: ``docs/one_rsb.md``.

Made from the same chain as the replica-symmetric page, with another ansatz; nothing derived is written here.
"""

from __future__ import annotations

from typing import Any

from sympy.matrices.expressions import MatAdd, MatMul

from derivations.algebra import symbols as sym
from derivations.algebra.tokens import MatrixSqrt
from derivations.models.symbolic import GENERIC
from derivations.printing.document import Document, Page
from derivations.printing.latex import EquationPrinter
from derivations.printing.sections import replica_chain
from derivations.replica.ansatz import ONE_RSB
from derivations.replica.chain import derive_free_entropy
from derivations.replica.one_rsb import (
    GROUPED,
    abbreviated,
    derive_one_rsb_saddle_point,
    group_covariance,
    names,
)
from derivations.replica.saddle_point import SaddlePoint, conditional_covariance, conditional_mean

__all__ = ["one_rsb_document", "one_rsb_page"]


def one_rsb_document(*, separable: bool = False) -> Document:
    """The page of the free entropy ``F(y)`` and its saddle point.

    Parameters
    ----------
    separable : bool
        Keep any convex regulariser of the rows; by default the ridge.
    """
    page = Page(EquationPrinter())
    page.text(
        "Printed for any loss $\\ell(h, k)$ of the local fields, any number $L$ of tokens, $r$ columns of the weights "
        "and teacher rank $t$; what the symbols stand for is said on the page of the replica-symmetric equations. "
        "The static solution maximises $F(y)$ over the Parisi parameter $y$. For the ridge `attnphase one-rsb` solves "
        "this."
    )
    free_entropy = derive_free_entropy(GENERIC, ONE_RSB, separable=separable)
    _one_eigendirection(page)
    replica_chain(page, free_entropy, abbreviated)
    _fields(page)
    _saddle_point(page, derive_one_rsb_saddle_point(free_entropy), separable)
    return Document("One-step replica-symmetry breaking", tuple(page.blocks))


def _one_eigendirection(page: Page) -> None:
    page.heading("One eigendirection", "E")
    page.text("On one eigendirection of the covariances the weights see")
    for name, value in names().items():
        page.equation(page.printer.show(name), _in_earlier_names(value) if name == GROUPED else value)


def _in_earlier_names(grouped: Any) -> Any:
    """``A`` in terms of ``R``, ``S_0`` and ``S_1``, which are defined before it."""
    resolvent, _, apart, near, _ = names()
    return MatAdd(resolvent.I, MatMul(-sym.y, MatAdd(near, MatMul(-1, apart))))


def _fields(page: Page) -> None:
    show = page.printer.show
    page.heading("Local fields", "L")
    page.text(
        r"$\mathbb{E}$ is the mean over what all replicas share, $\xi_{0,\ell} \sim \mathcal{N}(0, I)$ and "
        rf"${show(sym.k_field)} \sim \mathcal{{N}}(0, {show(sym.rho)})$, "
        r"and $\langle \cdot \rangle$ that over what a group shares, $\xi_{1,\ell} \sim \mathcal{N}(0, I)$, with the "
        r"weight $e^{-y \mathcal{M}}$, where $\mathcal{M}(\omega, k)$ and $g = V^{-1}(\mathrm{prox} - \omega)$ are the "
        r"envelope and the residual of the replica-symmetric theory at"
    )
    shared, own = MatrixSqrt(conditional_covariance(sym.q_0)), MatrixSqrt(group_covariance())
    parts = MatAdd(*conditional_mean().args, MatMul(shared, sym.xi_0), MatMul(own, sym.xi_1))
    page.equation(show(sym.omega_field), parts)


def _saddle_point(page: Page, saddle_point: SaddlePoint, separable: bool) -> None:
    show = page.printer.show
    page.heading("Saddle-point equations", "S")
    for equations in (saddle_point.overlaps, saddle_point.conjugates):
        variables = ", ".join(f"${show(e.stationary_in)}$" for e in equations)
        page.text(f"Stationarity of $F(y)$ in {variables}, in this order:")
        for equation in equations:
            page.equation(show(equation.unknown), abbreviated(equation.right_hand_side))
    if separable:
        page.text(r"Here $w$ is the minimiser of a row's problem, $\langle \cdot \rangle$ the mean over $z_1$ with its "
                  r"weight and $\mathbb{E}_z$ that over $z_0$.")  # fmt: skip
    page.text(
        r"For $V$ the condition in $\hat q_1$ was taken along the direction in which $A$ stays as it is: $y$ times the "
        r"one in $\hat V$ was added. Derivatives of the proximal point, which jumps, were removed by Stein's lemma. At "
        r"$q_1 = q_0$ and $\hat q_1 = \hat q_0$ all of this is the replica-symmetric theory."
    )


def one_rsb_page() -> str:
    """The page ``docs/one_rsb.md``."""
    title, _, rest = one_rsb_document().markdown().partition("\n\n")
    made = "Made by `python -m derivations.printing.one_rsb > docs/one_rsb.md`; with `--latex` as a LaTeX document."
    return f"{title}\n\n{made}\n\n{rest}"


if __name__ == "__main__":
    import sys

    print(one_rsb_document().latex() if "--latex" in sys.argv[1:] else one_rsb_page(), end="")
