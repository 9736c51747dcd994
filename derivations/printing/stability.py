r"""The equations of two copies of the replica-symmetric solution as a page to read.

Made from `derivations.replica.stability`; nothing derived is written here.
"""

from __future__ import annotations

from derivations.printing.document import Document, Page
from derivations.printing.latex import EquationPrinter
from derivations.replica.saddle_point import abbreviated
from derivations.replica.stability import GAP, NOISE_APART, derive_copies, derive_replicon

__all__ = ["stability_document"]


def stability_document() -> Document:
    """The page of the stability, for any loss of the local fields and symbolic sizes."""
    page, copies = Page(EquationPrinter()), derive_copies()
    gap, apart = map(page.printer.show, (GAP, NOISE_APART))
    page.text(
        "Printed for any loss $\\ell(h, k)$ of the local fields, any number $L$ of tokens, $r$ columns of the weights "
        "and teacher rank $t$, and the ridge; what the other symbols stand for is said on the page of the "
        "replica-symmetric equations."
    )
    page.heading("Two copies", "C")
    page.text(
        r"At $y = 0$ the equations of one-step replica-symmetry breaking are those of the replica-symmetric theory for "
        r"all but two unknowns: two groups are two copies of the solution that share the samples, whose overlap falls "
        rf"short of $q$ by the gap ${gap} = q_{{1, \ell}} - q_{{0, \ell}}$, and "
        rf"${apart} = \hat q_{{1, \ell}} - \hat q_{{0, \ell}}$ is the noise that they do not share. "
        r"$\langle \cdot \rangle$ is the mean over the fields of one copy given what both share, and $R$ the matrix of "
        r"one eigendirection:"
    )
    page.equation(apart, copies.noise)
    page.equation(gap, abbreviated(copies.gap))
    page.heading("Copies that lie close together", "N")
    page.text(
        rf"${gap} = 0$ solves this. Near it, where the proximal point is smooth, the first equation is linear: with "
        r"the derivative $\partial_\omega g$ of the residuals of all tokens in the fields of all tokens, and $D$ the "
        r"gaps of all tokens on the diagonal of one matrix,"
    )
    page.equation(apart, derive_replicon())
    page.text(
        "The spectral radius of this map and the second equation one after the other is the `replicon`: copies come "
        "together where it is below one, unless the proximal point jumps."
    )
    return Document("Stability of the replica-symmetric solution", tuple(page.blocks))
