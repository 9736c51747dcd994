r"""The equations of one-pass SGD and gradient flow as a page to read.

Made from `derivations.replica.sgd_flow`; nothing derived is written here.
"""

from __future__ import annotations

from derivations.algebra import symbols as sym
from derivations.printing.document import Document, Page
from derivations.printing.latex import EquationPrinter
from derivations.replica.saddle_point import student_field
from derivations.replica.sgd_flow import NOISE_CURVATURE, NOISE_ROW, SCATTER, VELOCITY, derive_flow, names

__all__ = ["flow_document"]


def flow_document(*, ridges: bool = False) -> Document:
    """The page of the dynamics, for any loss of the local fields and symbolic sizes.

    Parameters
    ----------
    ridges : bool
        Every column has a ridge of its own.
    """
    page, flow = Page(EquationPrinter(ridges=ridges)), derive_flow()
    show = page.printer.show
    page.text(
        "Printed for any loss $\\ell(h, k)$ of the local fields, any number $L$ of tokens, $r$ columns of the weights "
        "and teacher rank $t$, and the ridge as weight decay; what the other symbols stand for is said on the page of "
        "the replica-symmetric equations."
    )
    page.heading("One step", "S")
    page.text(
        r"A step takes $s$ fresh samples $\mu$, with the rows $\bar x_\ell = (x_\ell + p_\ell)/\sqrt{d}$ and the "
        r"residuals $g_\ell = -\partial \ell / \partial h_\ell$ at their own fields. A row $w$ of the weights becomes"
    )
    page.equation(rf"{show(flow.step.unknown)}^{{\mathrm{{new}}}}", flow.step.value)
    page.heading("Rows", "R")
    page.text(
        r"What fresh samples do to a row are independent terms; their mean and covariance follow from Gaussian "
        r"integration by parts. With the time $T = \text{steps}/d$, in the limit of large $d$, a row moves as "
        rf"$\mathrm{{d}}w = \eta {show(VELOCITY)} \, \mathrm{{d}}T$ with"
    )
    for name, value in names().items():
        page.equation(show(name), value)
    page.text(
        r"and gains noise of covariance $(\eta^2/s) S \, \mathrm{d}T$. Given the projections $\tau_\ell, \pi$ of "
        rf"its direction it is Gaussian; the covariance ${show(SCATTER)}$ around its mean obeys"
    )
    page.equation(rf"\frac{{\mathrm{{d}} {show(SCATTER)}}}{{\mathrm{{d}}T}}", flow.scatter.value)
    page.heading("Overlaps", "Q")
    page.text("By Itô's formula, the mean being over the rows, too:")
    for named in flow.rates:
        page.equation(rf"\frac{{\mathrm{{d}} {show(named.unknown)}}}{{\mathrm{{d}}T}}", named.value)
    page.text(
        rf"They close, since mean $w$ and covariance ${show(SCATTER)}$ of the rows give all overlaps, on every atom of "
        r"the covariances' spectrum:"
    )
    for named in flow.overlaps:
        page.equation(show(named.unknown), named.value)
    page.heading("Fresh samples", "F")
    page.text(
        r"The conjugates are means over the local fields of one sample: the teacher's, "
        rf"${show(sym.k_field)} \sim \mathcal{{N}}(0, {show(sym.rho)})$, and given these the student's, with "
        r"$\xi_\ell \sim \mathcal{N}(0, I)$,"
    )
    page.equation(show(sym.omega_field), student_field())
    for equation in flow.conjugates:
        page.equation(show(equation.unknown), equation.right_hand_side)
    page.text(
        r"Gradient flow on the population risk is the limit of small $\eta$, in which $S$ drops out, with $\eta T$ "
        r"as its time. The risk is"
    )
    page.formula((r"\mathcal{R}", rf"= {show(flow.loss)} + {show(flow.penalty)}"))
    page.heading("Labels with noise", "N")
    page.text(
        rf"Noise of the labels has the independent entries ${show(NOISE_ROW)} \sim \mathcal{{N}}(0, "
        rf"{show(sym.noise_variance)} I_L)$, a row for every token. Attention's losses are quadratic in it, with a "
        rf"second derivative ${show(NOISE_CURVATURE)}$ that knows nothing of the student. So the residuals are affine "
        r"in it, their mean is that of labels without noise, and gradient flow does not change. The fields' means stay "
        r"those without noise if this is added to the conjugate of $q_\ell$, and so to the noise of SGD alone:"
    )
    page.equation(rf"\delta {show(sym.q_hat)}", flow.square_gain)
    page.text("The risk gains a constant:")
    page.equation(r"\delta \mathcal{R}", flow.loss_gain)
    page.text(
        "For another loss the noise belongs to the fields of a sample, and the means above are over it, too; test "
        "errors are those of labels without noise."
    )
    return Document("Dynamics of one-pass SGD and gradient flow", tuple(page.blocks))
