"""The equations of a problem, to read: `derive` returns them as LaTeX, Markdown and Python source.

SymPy is imported when equations are made, not with this module.
"""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass, field
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.kernels.key import ModelKey
from attnphase.lazy import loaded_on_use
from attnphase.pages.limits import LIMITS, LimitName
from attnphase.problem import Problem, SpectrumLaw
from attnphase.problem.attention import SHIPPED_SCORES
from attnphase.processes.progress import progress_line
from attnphase.theories.sgd_flow.settings import FlowSettings
from derivations.models.foreign import is_of_a_module

with loaded_on_use(__name__):
    from attnphase.spectrum import measure as measures
    from attnphase.state_evolution import sample_law
    from derivations.algebra import symbols as sym
    from derivations.codegen import bayes_optimal as bayes_optimal_code
    from derivations.codegen import local_problem
    from derivations.codegen import sgd_flow as flow_code
    from derivations.models import attention, scores, symbolic
    from derivations.models import model as model_symbols
    from derivations.printing import bayes_optimal as bayes_optimal_page
    from derivations.printing import latex as equation_printing
    from derivations.printing import models, setting
    from derivations.printing import page as pages
    from derivations.printing import sgd_flow as flow_page
    from derivations.replica import bayes_optimal, chain
    from derivations.replica import saddle_point as saddle

if TYPE_CHECKING:
    from derivations.printing.document import Document
    from derivations.replica.chain import FreeEntropy
    from derivations.replica.saddle_point import SaddlePoint

__all__ = ["Derivation", "derive", "model_equations", "page_of"]


@dataclass(frozen=True)
class Derivation:
    """The derived equations of one problem; a notebook shows them.

    Attributes
    ----------
    problem : Problem
        The problem.
    latex : str
        A standalone document for pdflatex.
    markdown : str
        The same page with formulas for MathJax.
    python : str
        The generated source: the local problem, compiled with Numba, and the state-evolution maps.
    free_entropy : derivations.replica.chain.FreeEntropy
        Named terms, each a `sympy.Expr`, and the replica calculation step by step, as SymPy expressions.
    saddle_point : derivations.replica.saddle_point.SaddlePoint
        The state-evolution equations as SymPy expressions.
    """

    problem: Problem
    latex: str = field(repr=False)
    markdown: str = field(repr=False)
    python: str = field(repr=False)
    free_entropy: FreeEntropy = field(repr=False)
    saddle_point: SaddlePoint = field(repr=False)

    def __repr__(self) -> str:
        """One line; the page itself is `markdown`."""
        problem = self.problem
        sizes = f"L = {problem.tokens.length}, r = {problem.columns}, t = {problem.teacher_columns}"
        return f"<Derivation of problem {problem.hash}: {problem.loss.kind} loss, {sizes}>"

    def _repr_markdown_(self) -> str:
        return self.markdown


def derive(
    problem: Problem | None = None,
    *,
    concrete: bool = False,
    limit: LimitName = "trained",
    progress: bool | None = None,
) -> Derivation:
    """Derive and print the equations of a problem.

    Parameters
    ----------
    problem : Problem, optional
        Scores, weight tying, loss and regulariser determine the equations; a section of the page has the numbers.
        By default the paper's problem.
    concrete : bool
        Print the equations for the problem's own sizes: with sums written out, without matrices for rank 1, and with
        the loss of one sample entry by entry.  By default L, r and t are symbols.  The Python source always has the
        problem's sizes.
    limit : {"trained", "bayes_optimal", "sgd_flow"}
        ``"trained"``: the student that minimises the risk. ``"bayes_optimal"``: the Bayes-optimal learner.
        ``"sgd_flow"``: one-pass SGD and gradient flow. The last two have the same equations for all problems, with
        symbolic sizes.
    progress : bool, optional
        Show the progress on standard error, if the call takes longer than a second.

    Returns
    -------
    Derivation
        The texts, and the expressions that they are printed from.

    Raises
    ------
    ProblemError
        `problem` is no `Problem`, `concrete` is neither True nor False, or `limit` is unknown; the limit does not cover
        the problem, or does not go with `concrete`; ``tokens.density`` is negative somewhere, or its mean is not
        1; ``tokens.sampler`` is not finite.

    Examples
    --------
    >>> print(derive().saddle_point.overlaps[1].right_hand_side)  # doctest: +ELLIPSIS
    MatrixSpectralMean(...)
    """
    problem = Problem.paper() if problem is None else arguments.instance("problem", problem, Problem)
    arguments.flag("concrete", concrete)
    arguments.flag_or_none("progress", progress)
    other = {"bayes_optimal": _bayes_optimal, "sgd_flow": _sgd_flow}.get(arguments.word("limit", limit, LIMITS))
    if other is not None and concrete:
        raise ProblemError(
            "concrete", f"concrete does not go with limit {limit}, whose sizes are symbols: leave it out."
        )
    if limit == "sgd_flow":
        FlowSettings().check(problem)
    if problem.tokens.own_laws:
        sample_law.SampleLaw.of(problem, measures.Spectrum.of(problem))  # refuses a law that is none
    if other is not None:
        return other(problem, progress)
    with progress_line(progress, "loading SymPy") as line:
        line.callback("deriving the saddle-point equations")
        separable = not problem.regularizer.form.quadratic
        # the equations hold for any loss; without a user's functions in it, what is returned can be pickled
        free_entropy = chain.derive_free_entropy(symbolic.GENERIC, separable=separable)
        saddle_point = saddle.derive_saddle_point(free_entropy)
        line.callback("printing the equations")
        page = page_of(problem, concrete=concrete)
        latex, markdown = page.latex(), page.markdown()
        line.callback("generating the source")
        source = local_problem.module_source(ModelKey.of(problem).model(), separable=separable)
    return Derivation(
        problem=problem,
        latex=latex,
        markdown=markdown,
        python=source,
        free_entropy=free_entropy,
        saddle_point=saddle_point,
    )


def _bayes_optimal(problem: Problem, progress: bool | None) -> Derivation:
    """The equations of the Bayes-optimal limit."""
    with progress_line(progress, "loading SymPy") as line:
        line.callback("deriving the Bayes-optimal equations")
        bayes = bayes_optimal.derive_bayes_optimal()
        page = bayes_optimal_page.bayes_optimal_document(_prior(problem))
    return Derivation(
        problem=problem,
        latex=page.latex(),
        markdown=page.markdown(),
        python=bayes_optimal_code.bayes_optimal_source(bayes),
        free_entropy=chain.FreeEntropy(bayes.terms, bayes.steps, bayes_optimal.NISHIMORI),
        saddle_point=saddle.SaddlePoint((bayes.q, bayes.V), (bayes.q_hat,)),
    )


def _sgd_flow(problem: Problem, progress: bool | None) -> Derivation:
    """The equations of the dynamics; free entropy and saddle point are those of the static theory."""
    with progress_line(progress, "loading SymPy") as line:
        line.callback("deriving the equations of the dynamics")
        page, free_entropy = (
            flow_page.flow_document(ridges=problem.regularizer.by_column),
            chain.derive_free_entropy(symbolic.GENERIC),
        )
    return Derivation(
        problem=problem,
        latex=page.latex(),
        markdown=page.markdown(),
        python=flow_code.flow_source(),
        free_entropy=free_entropy,
        saddle_point=saddle.derive_saddle_point(free_entropy),
    )


def page_of(problem: Problem, *, concrete: bool = False) -> Document:
    """The page of a problem's equations; see `derive`."""
    model = ModelKey.of(problem).model()
    return pages.document(
        model,
        concrete=concrete,
        penalty=problem.regularizer.latex,
        minimizer=problem.regularizer.minimizer if model.columns == 1 else None,
        clusters=problem.tokens.has_clusters,
        ridges=problem.regularizer.by_column,
        setting=_setting(problem),
    )


def model_equations(problem: Problem) -> str:
    """What a problem is, as Markdown: its model and its numbers, without the derivation.

    Functions that the problem names are not looked up, so that a problem may come from anywhere.
    """
    return pages.model_page(
        _named_model(problem),
        _setting(problem),
        penalty=problem.regularizer.latex,
        clusters=problem.tokens.has_clusters,
        ridges=problem.regularizer.by_column,
    ).markdown()


def _named_model(problem: Problem) -> Any:
    """The symbolic model, with names alone for scores that would have to be looked up."""
    student, teacher = problem.student, problem.teacher
    if not problem.loss.has_attention:
        return ModelKey.of(problem).model()
    return attention.AttentionModel(
        problem.tokens.length,
        attention.Student(scores.named(student.score), student.rank, student.tied, student.causal),
        attention.Teacher(scores.named(teacher.score), teacher.rank, teacher.causal),
        problem.loss.value_columns,
        noisy=problem.target_noise > 0,
    )


def _setting(problem: Problem) -> setting.Setting:
    """The problem's numbers as plain values."""
    measure, tokens = measures.Spectrum.of(problem), problem.tokens
    clusters, probabilities = tokens.configurations
    spectrum, law = tokens.spectrum, tokens.law
    return setting.Setting(
        name=problem.hash,
        sizes={"L": tokens.length, "r": problem.columns, "t": problem.teacher_columns},
        parameters=_parameters(problem),
        texts=_texts(problem),
        sites=problem.sites,
        weights=_plain(measure.weights),
        gamma=_plain(measure.gamma.T),
        mean=_plain(measure.mean),
        covariance=_plain(measure.covariance[0]),  # the same on all atoms
        teacher_means=_plain(measure.teacher_means),
        configurations=_plain(clusters),
        probabilities=_plain(probabilities),
        spectrum=spectrum.form.statement(spectrum) if isinstance(spectrum, SpectrumLaw) else None,
        law=tuple(law.form.statements(law)) if law is not None else (),
        law_is_listed=law is not None and law.form.is_listed,
        prior=_prior(problem),
    )


def _prior(problem: Problem) -> tuple[tuple[float, ...], ...]:
    """Probabilities, means and variances of an entry of the teacher's weights, where it is not Gaussian."""
    law = problem.teacher.law
    return () if law.is_gaussian else (law.probabilities, law.means, law.variances)


def _parameters(problem: Problem) -> dict[str, Any]:
    """Numbers by their symbols on the page; temperatures where they are not 1."""
    parameters: dict[str, Any] = {}
    show, regularizer = equation_printing.EquationPrinter().show, problem.regularizer
    if problem.loss.has_attention:
        parameters[show(sym.omega)] = problem.teacher.omega
        temperatures = {
            sym.student_temperature: problem.student.temperature,
            sym.teacher_temperature: problem.teacher.temperature,
        }
        parameters |= {show(symbol): value for symbol, value in temperatures.items() if value != 1}
    if problem.teacher.noise:
        parameters[show(sym.noise_variance)] = problem.teacher.noise
    for key in regularizer.form.keys:
        value = getattr(regularizer, key)
        if key in regularizer.form.symbols and value:
            symbol = regularizer.form.symbols[key]
            several = value if isinstance(value, tuple) else ()
            parameters |= {f"{symbol}_{i}": one for i, one in enumerate(several, 1)} or {symbol: value}
    if problem.loss.has_attention:
        parameters["A"] = _plain(problem.mixing_matrix)
    for name, value in {**(problem.loss.parameters or {}), **(problem.tokens.parameters or {})}.items():
        if name not in (problem.loss.trained or {}):
            parameters[str(model_symbols.parameter_symbol(name))] = value
    return parameters


_OF_A_LOGIT = "was given, in terms of a logit z and of sums over its row, as"


def _texts(problem: Problem) -> dict[str, tuple[str, str]]:
    """Formulas and names that the user gave, by their symbols on the page."""
    texts: dict[str, tuple[str, str]] = {}
    if problem.loss.has_attention:
        names = models.score_names(_named_model(problem))
        for name, score in zip(names, (problem.student.score, problem.teacher.score), strict=True):
            if score not in SHIPPED_SCORES:
                shown = _without_comments(score)
                function = is_of_a_module(shown) or (shown.isidentifier() and shown != "z")
                texts[name] = ("is the function" if function else _OF_A_LOGIT, shown)
    if problem.loss.text is not None:
        fields = "fields and noise" if problem.teacher.noise else "fields"
        texts[r"\ell"] = (f"was given, with {fields} numbered from 0, as", _without_comments(problem.loss.text))
    if problem.tokens.sampler is not None:
        what = "is the teacher's fields in all equations, made of Gaussian ones, which the formula calls k, as"
        texts[r"s(\kappa, c)"] = (what, _without_comments(problem.tokens.sampler))
    if problem.tokens.density is not None:
        over = "Gaussian one" if problem.tokens.sampler is None else "one of s"
        symbol = r"\mathcal{N}(k)" if problem.tokens.sampler is None else r"p_s(k \,|\, c)"
        what = f"is the density of the teacher's fields over the {over},"
        texts[rf"p(k \,|\, c) / {symbol}"] = (what, _without_comments(problem.tokens.density))
    for name, penalty in (problem.loss.trained or {}).items():
        texts[f"r_{{{model_symbols.parameter_symbol(name)}}}"] = ("was given as", penalty)
    form = problem.regularizer.form
    if form.own:
        texts[r"\rho"] = (form.introduced, _without_comments(getattr(problem.regularizer, form.own)))
    return texts


def _without_comments(formula: str) -> str:
    """A formula on one line, its definitions apart by semicolons, without comments, whose text could be markup."""
    text = dedent(formula).strip()
    return "; ".join(_on_one_line(ast.get_source_segment(text, line) or "") for line in ast.parse(text).body)


def _on_one_line(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(tokenize.untokenize(token for token in tokens if token.type != tokenize.COMMENT).split())


def _plain(values: Any) -> Any:
    """An array as nested tuples of Python numbers."""
    return tuple(map(_plain, values)) if getattr(values, "ndim", 0) else values.item()
