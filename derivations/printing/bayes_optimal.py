r"""The Bayes-optimal limit as a page to read: ``docs/bayes_optimal.md``.

Made from the posterior's replicated moments; nothing derived is written here.
"""

from __future__ import annotations

from sympy import Add

from derivations.algebra import symbols as sym
from derivations.printing.document import Document, Page
from derivations.printing.latex import EquationPrinter
from derivations.printing.setting import vector
from derivations.replica.bayes_optimal import abbreviated, definitions, derive_bayes_optimal, test_error

__all__ = ["bayes_optimal_document", "bayes_optimal_page"]


def bayes_optimal_document(prior: tuple[tuple[float, ...], ...] = ()) -> Document:
    """The page of the free entropy of a learner who knows the model, and of its fixed points.

    With the probabilities, means and variances of the Gaussians of which an entry of the teacher's weights is drawn,
    where that is no Gaussian, the page has the mean of their posterior.
    """
    page = Page(EquationPrinter())
    bayes = derive_bayes_optimal()
    show = page.printer.show
    page.text(
        r"What can a learner reach who knows all of the model but the teacher's weights? Printed for any observation "
        r"$Y \sim P_\mathrm{out}(\cdot \mid k)$ of the teacher's fields, any number $L$ of tokens and any rank $t$. "
        r"With mixture tokens everything that belongs to a token belongs to each of its clusters, and the fields have "
        r"the means that the clusters give them."
    )
    page.heading("One eigendirection", "E")
    page.text("On one eigendirection of the covariances the weights see")
    for name, value in definitions().items():
        page.equation(show(name), value)
    page.heading("Replica calculation", "R")
    for number, step in enumerate(bayes.steps, 1):
        page.text(f"Step {number}, {step.name}. {step.statement}")
        names = {value: name for name, value in step.names.items()}
        page.extremum(step.latex, {name: abbreviated(term.xreplace(names)) for name, term in step.terms.items()})
        if step.names:
            called = ", ".join(f"${show(name)} = {show(value)}$" for name, value in step.names.items())
            page.text(f"with {called}.")
    page.heading("Observations", "O")
    page.text(
        r"$\omega_\ell$ is what the learner knows of a field and $\langle \cdot \rangle$ the mean over the posterior "
        r"of the fields, $N(k; \omega, V) \, P_\mathrm{out}(Y \mid k) / Z(Y, \omega)$:"
    )
    page.formula(
        (
            show(sym.omega_star),
            rf"\sim \mathcal{{N}}(0, {show(sym.q_star)}), \qquad k_\ell \sim \mathcal{{N}}(\omega_\ell, "
            rf"{show(sym.V_star)}), \qquad {show(sym.g_star)} = {show(sym.V_star)}^{{-1}} "
            rf"\left({show(sym.posterior_mean)} - {show(sym.omega_star)}\right), \qquad "
            rf"{show(sym.posterior_covariance)} = \langle k_\ell k_\ell^\top \rangle - "
            rf"{show(sym.posterior_mean)} {show(sym.posterior_mean)}^\top",
        )
    )
    page.heading("Fixed points", "S")
    page.text(f"Stationarity of $\\Phi$ in ${show(sym.q_hat_star)}$ and in ${show(sym.q_star)}$:")
    for equation in (bayes.q, bayes.V, bayes.q_hat):
        page.equation(show(equation.unknown), abbreviated(equation.right_hand_side))
    page.text("By the law of total variance, where $V$ is small and the difference of large numbers is not wanted,")
    page.equation(show(sym.q_hat_star), abbreviated(bayes.q_hat_precise))
    page.text("The error of the posterior's prediction for a fresh sample, whose label nobody saw, is")
    page.equation(r"\epsilon_g", Add(test_error()))
    if prior:
        _prior(page, prior)
    return Document("The Bayes-optimal limit", tuple(page.blocks))


def _prior(page: Page, components: tuple[tuple[float, ...], ...]) -> None:
    """What a prior that is a mixture of Gaussians makes of a row."""
    page.heading("Prior of the teacher's weights", "W")
    given = ", ".join(f"{name} {vector(row)}" for name, row in zip(("p =", r"\mu =", "v ="), components, strict=True))
    page.text(
        rf"An entry of the weights is drawn from Gaussians with ${given}$ for probabilities, means and variances. So a "
        r"row $w$ is drawn from $N(\mu_k, C_k)$ with probability $p_k$, for all choices $k$ of its entries. Steps 1 to "
        r"3 hold; step 4 and the overlap (S1) are of a Gaussian row. Here the source "
        r"$B = \Lambda w + \Lambda^{1/2} z$ with a normal $z$ says of the row"
    )
    page.formula(
        (
            r"r_k",
            r"\propto p_k \det(1 + C_k \Lambda)^{-1/2} \exp\left[B^\top \mu_k - \tfrac{1}{2} \mu_k^\top \Lambda \mu_k "
            r"+ \tfrac{1}{2} (B - \Lambda \mu_k)^\top (1 + C_k \Lambda)^{-1} C_k (B - \Lambda \mu_k)\right]",
        )
    )
    page.formula(
        (
            r"\langle w \rangle",
            r"= \sum_k r_k \left[\mu_k + (1 + C_k \Lambda)^{-1} C_k (B - \Lambda \mu_k)\right], \qquad "
            r"q_\ell = \int \mathrm{d}\nu \, \gamma_\ell \, \mathbb{E}_B "
            r"\langle w \rangle \langle w \rangle^\top",
        )
    )


def bayes_optimal_page() -> str:
    """The page ``docs/bayes_optimal.md``."""
    title, _, rest = bayes_optimal_document().markdown().partition("\n\n")
    made = (
        "Made by `python -m derivations.printing.bayes_optimal > docs/bayes_optimal.md`; with `--latex` as a LaTeX "
        "document."
    )
    return f"{title}\n\n{made}\n\n{rest}"


if __name__ == "__main__":
    import sys

    print(bayes_optimal_document().latex() if "--latex" in sys.argv[1:] else bayes_optimal_page(), end="")
