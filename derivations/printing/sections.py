"""The sections of a page: order parameters, local problem, replica chain, saddle point, observables, baseline."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import groupby
from typing import Any

from sympy import Expr, Indexed, Integer, S, Symbol
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, Transpose

from derivations.algebra import symbols as sym
from derivations.algebra.minima import MoreauEnvelope, RowMinimum
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.models.attention import AttentionModel
from derivations.models.model import Definition
from derivations.models.scalar import ScalarModel
from derivations.models.symbolic import GENERIC
from derivations.printing.document import LINE, Formula, Heading, Page, Paragraph, cited, filled, width
from derivations.printing.latex import EquationPrinter
from derivations.printing.models import Law, Sizes
from derivations.printing.setting import Setting
from derivations.replica.amp import A, B, c, derive_iteration, g_before
from derivations.replica.baseline import PREDICTOR, derive_baseline
from derivations.replica.chain import FreeEntropy, Step, derive_free_entropy, precision
from derivations.replica.observables import observables
from derivations.replica.saddle_point import (
    RESOLVENT,
    SaddlePoint,
    abbreviated,
    definitions,
    derive_saddle_point,
    student_field,
)

__all__ = [
    "NUMBERS",
    "baseline",
    "derivation",
    "entries",
    "local_problem",
    "message_passing",
    "numbers",
    "order_parameters",
    "replica_chain",
    "squares_of_rows",
]

NUMBERS = "This problem"


def numbers(page: Page, setting: Setting) -> None:
    """The numbers of one problem."""
    page.heading(NUMBERS, "N")
    for statement in setting.statements():
        if isinstance(statement, str):
            page.text(statement)
        else:
            page.formula(*statement)


def order_parameters(page: Page, sizes: Sizes, scalar: bool, law: Law) -> None:
    """What the theory is a theory of; with ``scalar`` all matrices are numbers."""
    page.heading("Order parameters and spectral measure", "P")
    page.text(f"Overlaps of the weights ({cited('(6)')}), and the teacher's own covariance:")
    show = page.printer.show
    covariance, position = r"\Sigma_\ell", r"p_\ell"
    if law.clusters:
        covariance, position = r"\Sigma_{\ell c}", r"(\mu_{\ell c} + p_\ell)"
    page.formula(
        (show(sym.q), rf"= \frac{{W^\top {covariance} W}}{{d}}, \qquad "
         rf"{show(sym.m)} = \frac{{W^\top {position}}}{{\sqrt{{d}}}}, \qquad "
         rf"{show(sym.theta)} = \frac{{W^\top {covariance} Q_\star}}{{d}}, \qquad "
         rf"{show(sym.rho)} = \frac{{Q_\star^\top {covariance} Q_\star}}{{d}}"),
    )  # fmt: skip
    pairs = "; ".join(
        f"${show(a)}, {show(b)} \\in {sizes.shape(a)}$"
        for a, b in zip(sym.OVERLAPS, (sym.q_hat, sym.V_hat, sym.m_hat, sym.theta_hat), strict=True)
    )
    symmetric = (
        ""
        if scalar
        else (" $q$, $V$ and their conjugates are symmetric, and $\\operatorname{sym}[X] = (X + X^\\top)/2$.")
    )
    page.text(
        f"${show(sym.V)}$ is the rescaled variance of the Gibbs measure; every order parameter "
        f"has a conjugate. "
        f"Sizes: {pairs}; ${show(sym.rho)} \\in {sizes.shape(sym.rho)}$.{symmetric}"
    )
    page.text(
        rf"The covariances share eigenvectors $e_i$. $\nu(\gamma, \tau, \pi)$ ({cited('(5)')}) "
        rf"is the limiting joint law "
        r"over $i$ of the eigenvalues $\gamma_\ell$ of $\Sigma_\ell$, of $\tau_\ell = \sqrt{d} "
        r"e_i^\top p_\ell$ and of "
        rf"$\pi = Q_\star^\top e_i \in {sizes.shape(sym.pi)}$. On one eigendirection the weights "
        rf"see"
    )
    if law.clusters:
        page.text(
            r"Everything that belongs to a token belongs to each of its clusters $c$: $\Sigma_{\ell c}$, "
            r"$m_{\ell c} = W^\top (\mu_{\ell c} + p_\ell)/\sqrt{d}$, $\tau_{\ell c} = \sqrt{d} e_i^\top "
            r"(\mu_{\ell c} + p_\ell)$ and so on; sums $\kappa j$ run over tokens and clusters. In the loss the "
            r"teacher's field has the mean $m^\star_{\ell c} = Q_\star^\top \mu_{\ell c}/\sqrt{d}$, which $k$ below "
            r"does not hold, and $D$ the variances of the clusters drawn."
        )
    for name, value in definitions().items():
        if law.penalty is not None and name == RESOLVENT:
            continue
        left, expression = show(name), value
        inverse = isinstance(value, Inverse)
        if inverse and width(page.printer.show(value)) > LINE:
            left, expression = page.printer.show(Inverse(name)), value.arg
        page.equation(left, expression)


def local_problem(page: Page, scalar: bool, law: Law) -> None:
    """The problem of one sample and, unless the regulariser is a ridge, that of one row of the weights."""
    show = page.printer.show
    page.heading("Local problem", "L")
    fields = (
        rf"the local fields of one sample, independent over $\ell$%s: the teacher's, ${show(sym.k_field)} \sim "
        rf"\mathcal{{N}}(0, {show(sym.rho)})$, and given these the student's, with $\xi_\ell \sim "
        rf"\mathcal{{N}}(0, {'1' if scalar else 'I'})$:"
    )
    if law.clusters:
        page.text(
            r"In a sample every token $\ell$ is in one cluster $c = c_\ell$, drawn with $P(c_1, \dots, c_L)$. "
            rf"$\mathbb{{E}}$ is the mean over these clusters and over {fields % ' given the clusters'}"
        )
    else:
        page.text(rf"$\mathbb{{E}}$ is the mean over {fields % ''}")
    page.equation(show(sym.omega_field), student_field())
    prox = sym.prox_field.latex_name
    page.text(
        rf"Moreau envelope of the loss, whose global minimiser $h$ is ${prox}(\omega, k)$, and "
        rf"the residual:"
    )
    h = sym.token_matrix("h", sym.r, 1)
    shift = MatAdd(h, MatMul(-1, sym.omega_field))
    tokens = Symbol(r"\ell,\, c = c_\ell") if law.clusters else sym.ell
    distance = TokenSum.of(MatMul(S.Half, Transpose(shift), Inverse(sym.V), shift), tokens)
    envelope = page.printer.show(MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field))
    lines = filled([*page.printer.terms(distance), (False, r"\ell(h, k)")], LINE - 20)
    lines[-1] += r" \Bigr\}"
    page.formula(
        (envelope, rf"= \min_{{h}} \Bigl\{{ {lines[0]}"),
        *(("", rf"\qquad {line}") for line in lines[1:]),
    )
    residual = MatMul(Inverse(sym.V), MatAdd(sym.prox_field, MatMul(-1, sym.omega_field)))
    page.equation(show(sym.g_field), residual)
    if law.penalty is not None:
        (row,) = derive_free_entropy(GENERIC, separable=True).total.atoms(RowMinimum)
        page.text(
            rf"The weights of one eigendirection, ${show(sym.w)}(z)$, are the minimiser of its problem at given noise "
            rf"$z \sim \mathcal{{N}}(0, {'1' if scalar else 'I'})$, and ${show(sym.chi)}$ is its derivative in $b$:"
        )
        page.formula(
            (show(sym.w), rf"= \operatorname{{argmin}}_w \left\{{ r(w) + {show(_short(row.objective))} \right\}}")
        )
        if law.minimizer is not None:
            curvature, source, noise = operands(row)[:3]
            pull = MatAdd(source, MatMul(MatrixSqrt(noise), TokenMatrix("z", sym.r, 1, None)))
            page.text(
                rf"For one column, with $A = {show(_short(curvature))}$ and $B = {show(_short(pull))}$, this is soft "
                "thresholding:"
            )
            page.formula((show(sym.w), f"= {law.minimizer}"))


@cache
def derivation(
    length: int | None, scalar: bool, clusters: bool, ridges: bool, separable: bool
) -> tuple[Heading | Paragraph | Formula, ...]:
    """What is derived, the same for all losses and numbers; takes a printer's arguments and the regulariser's kind."""
    free_entropy = derive_free_entropy(GENERIC, separable=separable)
    page = Page(EquationPrinter(length, scalar, clusters, ridges))
    replica_chain(page, free_entropy, _short)
    _saddle_point(page, derive_saddle_point(free_entropy))
    _observables(page, free_entropy)
    return tuple(page.blocks)


def replica_chain(page: Page, free_entropy: FreeEntropy, shortened: Callable[[Any], Any]) -> None:
    """The steps of the replica calculation, with names for matrices put in by ``shortened``."""
    *chain, last = free_entropy.steps
    # the argument does not depend on the number of tokens: its sums stay sums
    full = page.printer
    page.printer = EquationPrinter(None, full.scalar, full.clusters, full.ridges)
    order = list(free_entropy.terms)
    page.heading("Replica calculation", "R")
    page.text(
        r"$Z = \int \mathrm{d}W e^{-\beta \mathcal{R}(W)}$ is the partition function of the risk, "
        r"and "
        r"$-\Phi = -\lim_{\beta, d \to \infty} \log Z/(\beta d)$ its ground-state energy over $d$. "
        r"$\operatorname{extr}$ is the extremum over the order parameters and their conjugates."
    )

    def named(step: Step) -> dict[str, Expr]:
        known = [name for name in order if name in step.terms]
        known += [name for name in step.terms if name not in order]
        names = {value: name for name, value in step.names.items()}
        return {name: shortened(step.terms[name].xreplace(names)) for name in known}

    def announced(number: int, step: Step) -> str:
        source = f" ({cited(step.equation)})" if step.equation else ""
        return f"Step {number}, {step.name}{source}. {step.statement}"

    for number, step in enumerate(chain, 1):
        page.text(announced(number, step))
        page.extremum(step.latex, named(step))
        if step.names:
            show = full.show
            called = ", ".join(f"${show(name)} = {show(value)}$" for name, value in step.names.items())
            page.text(f"with {called}.")
    page.printer = full
    page.heading("Free entropy", "F")
    page.text(announced(len(chain) + 1, last))
    page.extremum(last.latex, named(last))


def _short(expression: Any) -> Any:
    """The expression in terms of ``R``, ``b`` and ``S``."""
    return abbreviated(expression).xreplace({precision(): Inverse(RESOLVENT)})


def _saddle_point(page: Page, saddle_point: SaddlePoint) -> None:
    page.heading("Saddle-point equations", "S")
    show = page.printer.show
    for equations in (saddle_point.overlaps, saddle_point.conjugates):
        variables = ", ".join(f"${show(e.stationary_in)}$" for e in equations)
        numbers = ", ".join(dict.fromkeys(e.number for e in equations))
        page.text(f"Stationarity of the free entropy in {variables}, in this order ({cited(numbers)}):")
        for equation in equations:
            page.equation(show(equation.unknown), _short(equation.right_hand_side))
    page.text(
        r"In the last two, derivatives of the proximal point, which jumps, were removed by "
        r"Stein's lemma."
    )


def squares_of_rows(page: Page) -> str:
    """The mean of ``w w^T`` of a row of the weights, with a ridge: the q of a site of variance one."""
    q = derive_saddle_point(derive_free_entropy(GENERIC)).overlaps[0].right_hand_side
    return page.printer.show(_short(q.xreplace({sym.gamma[sym.ell]: S.One})))


def _observables(page: Page, free_entropy: FreeEntropy) -> None:
    page.heading("Observables", "O")
    page.text(
        r"At a fixed point. A fresh sample's fields have the law of $(\omega_\ell, k_\ell)$, so "
        r"the test error is a mean "
        "over the same fields."
    )
    for observable in observables(free_entropy):
        title = re.sub(r"\bd\b", "$d$", observable.title[0].upper() + observable.title[1:])
        page.text(f"{title} ({cited(observable.number)}):")
        page.equation(observable.latex, _short(observable.expression))


def entries(page: Page, model: AttentionModel | ScalarModel, law: Law) -> None:
    """The loss of one sample entry by entry."""
    page.heading("Loss of one sample, entry by entry", "E")
    page.text(
        rf"The same loss without matrices: $a$ and $b$ run from $1$ to ${model.length}$, the second index of a field "
        "over its columns where it has several."
    )
    if law.clusters:
        page.text(
            r"In a sample with clusters $c_1, \dots, c_L$, $\rho^\Sigma_b$ is that of the cluster drawn, "
            r"$\rho^\Sigma_{b c_b}$, and so is $m^\star_a$."
        )
    for _, group in groupby(law.definitions(model), _base_and_row):
        page.defined(tuple(group))


def _base_and_row(definition: Definition) -> Any:
    """What definitions of one formula have in common."""
    symbol = definition.symbol
    return (symbol.base, symbol.indices[0]) if isinstance(symbol, Indexed) else symbol


def message_passing(page: Page, law: Law) -> None:
    """GAMP: one iteration."""
    page.heading("Message passing", "G")
    iteration, show = derive_iteration(), EquationPrinter(ridges=law.ridges).show
    before = show(g_before)
    page.text(
        rf"State evolution is that of GAMP (paper, Algorithm 1), for samples with the rows $\bar x_\ell = (x_\ell + "
        rf"p_\ell)/\sqrt{{d}}$ and the entries $\bar x_{{\ell i}}$. One iteration takes the rows $w_i$ of the weights, "
        rf"their variances $c_i$ and the residuals ${before}$ of every sample to"
    )
    for named in iteration.fields:
        page.formula((show(named.unknown), f"= {show(named.value)}"))
    page.text(
        r"and, with the proximal points at these, to new residuals, and for every direction to a new row. In "
        r"$\partial g$, differentiated from the stationarity of the proximal problem, $V$ is block diagonal and $H$ "
        r"the Hessian of $\ell$ at the proximal point, for the fields of all tokens; $\kappa$ runs over the tokens "
        r"and $\mu$ over the samples. The index $i$ of a direction is left out."
    )
    for named in iteration.weights:
        if law.penalty is None or named.unknown not in (sym.w, c):
            page.formula((show(named.unknown), f"= {show(named.value)}"))
    if law.penalty is not None:  # another row's minimiser and its derivative stand in place of the ridge's
        objective = MatAdd(MatMul(S.Half, Transpose(sym.w), A, sym.w), MatMul(-1, Transpose(B), sym.w))
        page.formula((show(sym.w), rf"= \operatorname{{argmin}}_w \left\{{ r(w) + {show(objective)} \right\}}"))
        page.formula((show(c), rf"= \frac{{\partial {show(sym.w)}}}{{\partial {show(B)}}}"))
    if law.clusters:
        page.text(r"With clusters, $\gamma_\ell$ and $V_\ell$ are those of the cluster that the token is in.")


def baseline(page: Page, sizes: Sizes, law: Law) -> None:
    """The best linear map and its error."""
    page.heading("Linear baseline", "B")
    page.text(
        rf"The best linear map $f(x) = \hat W x$, $\hat W \in \mathbb{{R}}^{{{sizes.length} "
        rf"\times {sizes.length}}}$, "
        rf"on tokens without encodings, and its test error ({cited('(17), (19)-(20)')}):"
    )
    best = derive_baseline() if law.clusters else derive_baseline().without_clusters()
    # score matrices are no numbers where the fields are
    printer = EquationPrinter()
    length = {sym.L: Integer(sizes.length)} if sizes.length.isdigit() else {}
    page.formula((printer.show(PREDICTOR), f"= {printer.show(best.predictor)}"))
    page.formula((r"\epsilon_{\mathrm{lin}}", f"= {printer.show(best.test_error.xreplace(length))}"))
    if law.noisy:
        page.text("Noise of the labels has no mean and knows nothing of the tokens: with it this map is the best too.")
