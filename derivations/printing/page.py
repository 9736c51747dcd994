r"""The equations of a model as a page to read: LaTeX and Markdown.

Nothing derived is written here: formulas are printed from the expressions of
`derivations.replica.chain`, `derivations.replica.saddle_point` and `derivations.replica.observables`; only definitions
(what a symbol stands for) and the sentences around them are text.  A page is a `Document`, a
sequence of headings, paragraphs and tagged formulas, from which both formats are written.

Two kinds of pages: with L, r and t as symbols, or, with ``concrete=True``, for the sizes of the
given model.  Sums over tokens are then written out, at r = t = 1 all matrices are printed as the
numbers they are, and the loss of one sample is printed entry by entry.  With a `Setting` the page
is that of one problem: a section has its numbers.
"""

from __future__ import annotations

from derivations.models.attention import AttentionModel
from derivations.models.scalar import ScalarModel
from derivations.printing import sections
from derivations.printing.document import Document, Page
from derivations.printing.latex import EquationPrinter
from derivations.printing.models import Law, Sizes, text_of
from derivations.printing.setting import Setting

__all__ = ["document", "equations_page", "latex", "markdown", "model_page"]

_PAPER = (
    "Cui, Behrens, Krzakala and Zdeborová, A phase transition between positional and semantic "
    "learning in a solvable model of dot-product attention, arXiv:2402.03902"
)


def document(
    model: AttentionModel | ScalarModel,
    *,
    concrete: bool = False,
    penalty: str | None = None,
    minimizer: str | None = None,
    clusters: bool = False,
    ridges: bool = False,
    setting: Setting | None = None,
) -> Document:
    """The page of a model's equations.

    Parameters
    ----------
    model : AttentionModel or ScalarModel
    concrete : bool
        Print for the model's own L, r and t instead of symbols; mixture tokens keep their sums.
    penalty : str, optional
        LaTeX of the regulariser ``r(w)`` of one row of the weights, if it is not the ridge.
    minimizer : str, optional
        LaTeX of the minimiser of the row's problem, if a row is one weight and there is a formula; see `Law`.
    clusters : bool
        Tokens come from a mixture of clusters, Result C.2.
    ridges : bool
        Every column has a ridge of its own.
    setting : Setting, optional
        Makes it the page of one problem, with the numbers that its symbols stand for.
    """
    law = Law(penalty, clusters, setting, minimizer, ridges)
    text = text_of(model, law, concrete)
    scalar = concrete and model.columns == model.teacher_rank == 1
    shape = (model.length if concrete and not clusters else None, scalar, clusters, ridges)
    page = Page(EquationPrinter(*shape))
    if setting is not None:
        page.text(f"Equations of problem `{setting.name}`, whose numbers stand in the section {sections.NUMBERS}.")
    page.text(_summary(text.sizes, concrete))
    page.text(
        "Tags with a letter are this page's own; bare numbers are equations of the paper: "
        f"{_PAPER}. Token indices run from $1$ to ${text.sizes.length}$."
    )
    text.definitions(page)
    sections.order_parameters(page, text.sizes, scalar, law)
    if setting is not None:
        sections.numbers(page, setting)
    if concrete and text.has_entries:
        sections.entries(page, model, law)
    sections.local_problem(page, scalar, law)
    page.blocks += sections.derivation(*shape, penalty is not None)
    if model.trained:
        text.products(page, sections.squares_of_rows(page))
    sections.message_passing(page, law)
    if text.has_baseline:
        sections.baseline(page, text.sizes, law)
    return Document(f"{text.subject()}: replica-symmetric equations", tuple(page.blocks))


def model_page(
    model: AttentionModel | ScalarModel,
    setting: Setting,
    *,
    penalty: str | None = None,
    clusters: bool = False,
    ridges: bool = False,
) -> Document:
    """What is solved, without how: the model's definitions and the numbers of one problem; see `document`."""
    text = text_of(model, Law(penalty, clusters, setting, ridges=ridges), True)
    page = Page(EquationPrinter(None, False, clusters))
    text.definitions(page)
    page.text(
        r"$\nu(\gamma, \tau, \pi)$ is the limiting joint law, over the common eigenvectors $e_i$ of the covariances, "
        r"of their eigenvalues $\gamma$, of $\tau = \sqrt{d} e_i^\top p$"
        + (r" (with $\mu + p$ for $p$)" if clusters else "")
        + r" and of $\pi = Q_\star^\top e_i$."
    )
    sections.numbers(page, setting)
    return Document(text.subject(), tuple(page.blocks))


def latex(model: AttentionModel | ScalarModel, *, concrete: bool = False) -> str:
    """The model's equations as a standalone LaTeX document; see `document`."""
    return document(model, concrete=concrete).latex()


def markdown(model: AttentionModel | ScalarModel, *, concrete: bool = False) -> str:
    """The model's equations as Markdown with MathJax formulas; see `document`."""
    return document(model, concrete=concrete).markdown()


def equations_page() -> str:
    """The page ``docs/equations.md``: the paper's model with L, r and t symbolic."""
    title, _, rest = markdown(AttentionModel()).partition("\n\n")
    made = (
        "Made by `python -m derivations.printing.page > docs/equations.md`. `attnphase derive "
        "problem.toml --format markdown` prints the page of another model, and `--concrete` that "
        "of its sizes."
    )
    return f"{title}\n\n{made}\n\n{rest}"


def _summary(sizes: Sizes, concrete: bool) -> str:
    if not concrete:
        return "Printed for any number $L$ of tokens, $r$ columns of the weights and teacher rank $t$."
    return (
        f"Printed for $L = {sizes.length}$ tokens, $r = {sizes.columns}$ "
        f"{'column' if sizes.columns == '1' else 'columns'} of the weights and teacher rank "
        f"$t = {sizes.teacher}$."
    )


if __name__ == "__main__":
    print(equations_page(), end="")
