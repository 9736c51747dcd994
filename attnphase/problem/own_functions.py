"""Functions of the user's own: scores, losses and regularisers that are formulas, or functions of modules.

Whether they can be used is found out when a problem is made.  It takes SymPy, which is imported where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import lru_cache
from typing import Any

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.attention import SHIPPED_SCORES
from attnphase.problem.field_formulas import (
    arrays_of,
    check_clusters,
    check_finite,
    check_metric,
    cluster_numbers,
    formula_text,
    refuse_symbols,
    shown_point,
    traced,
)
from attnphase.problem.loss import Loss
from attnphase.problem.losses import Sizes
from attnphase.problem.messages import listed
from attnphase.problem.metrics import Metrics
from attnphase.problem.regularizer import Regularizer
from attnphase.problem.sections import Sections
from attnphase.problem.teacher_fields import check_law, tokens_of_formulas

with loaded_on_use(__name__):
    import sympy

    from derivations.models import bounds, formulas, functions, kinks, model, row_functions, scalar, scores

__all__ = [
    "check_loss",
    "check_own_functions",
    "check_regularizer",
    "check_score",
    "label_formula",
    "printed_scores",
    "register_score",
    "sections_of_formulas",
]

_MOST_TRIED = 64  # configurations of clusters, each of which takes some hundredths of a second


def check_own_functions(problem: Sections, may_look_up: Callable[[str], bool]) -> None:
    """Refuse formulas and functions that cannot be used.

    Parameters
    ----------
    problem
    may_look_up
        Whether a function of this name may be looked up, which may import a module; formulas may always be read.

    Raises
    ------
    ProblemError
        Naming the field.
    """
    length, loss, regularizer = problem.tokens.length, problem.loss, problem.regularizer
    if loss.has_attention:
        for section, score in (("teacher", problem.teacher.score), ("student", problem.student.score)):
            if score not in SHIPPED_SCORES and may_look_up(score):
                check_score(score, length, f"{section}.score")
    own = problem.metrics or loss.text is not None or problem.tokens.own_laws
    clusters = cluster_numbers(problem) if own else ()
    used = set[str]()  # names of the loss's own numbers
    for name, text in problem.metrics.items():
        metric, held = check_metric(problem, f"metrics.{name}", text, clusters, problem.numbers)
        used |= {name for name, x in zip(problem.numbers, held.parameters, strict=True) if metric.has(x)}
    if problem.tokens.own_laws:
        check_law(problem, clusters)
    if loss.text is not None:
        sizes = length, problem.columns, problem.teacher_columns
        rows, numbers = tuple(map(tuple, clusters)), tuple(loss.numbers.items())
        taken, noisy = check_loss(loss.text, sizes, rows, numbers, tuple(loss.fitted))
        if problem.teacher.noise and not noisy:
            names = "noise" if problem.tokens.length == 1 else "noise0_0, noise0_1, ..."
            raise ProblemError(
                "teacher.noise",
                f"teacher.noise is {problem.teacher.noise:g}, but loss.expression does not say where it enters: write"
                f" it with {names}, or leave teacher.noise out.",
            )
        for name, penalty in (loss.trained or {}).items():
            _check_trained(name, penalty, taken)
        _check_used(loss, used | taken)
    if regularizer.expression is not None or (regularizer.prox is not None and may_look_up(regularizer.prox)):
        check_regularizer(regularizer, problem.columns)


def sections_of_formulas(problem: Sections) -> dict[str, Any]:
    """The sections of a problem in which functions may stand; each is called and becomes a formula.

    Raises
    ------
    ProblemError
        Naming the field of a function that cannot be used.
    """
    sizes = problem.tokens.length, problem.columns, problem.teacher_columns
    loss, metrics, tokens = _loss_of_sizes(problem.loss, sizes), problem.metrics, tokens_of_formulas(problem)
    regularizer, penalty = problem.regularizer, problem.regularizer.expression
    if any(map(callable, metrics.values())):
        given, names = arrays_of(sizes), (*loss.numbers, *(tokens.parameters or {}))
        given |= {name: model.parameter_symbol(name) for name in names}
        given |= {"Q": scalar.norm_array(problem.columns)} if loss.norms else {}
        metrics = Metrics.of({one: formula_text(f"metrics.{one}", it, given, names) for one, it in metrics.items()})
    if callable(penalty):
        given = {"w": sympy.Symbol("w", real=True)}
        regularizer = replace(regularizer, expression=formula_text("regularizer.expression", penalty, given))
    teacher, student = (
        replace(one, score=_row_formula(f"{name}.score", one.score, sizes[0])) if callable(one.score) else one
        for name, one in (("teacher", problem.teacher), ("student", problem.student))
    )
    found = {"loss": loss, "metrics": metrics, "tokens": tokens, "regularizer": regularizer}
    return found | {"teacher": teacher, "student": student}


def label_formula(problem: Sections, label: str | Callable[..., Any]) -> str:
    """A label as a formula: of k, the noise, the clusters and parameters of the loss that are not trained.

    Raises
    ------
    ProblemError
        Naming ``label``.
    """
    loss = problem.loss
    given = arrays_of((problem.tokens.length, problem.columns, problem.teacher_columns))
    given |= {name: model.parameter_symbol(name) for name in problem.numbers}
    text = formula_text("label", label, given, tuple(problem.numbers))
    formula, held = check_metric(problem, "label", text, cluster_numbers(problem), problem.numbers)
    named = {x: str(x) for x in held.student} | {model.parameter_symbol(name): name for name in loss.fitted}
    refuse_symbols("label", formula, named, "k, noise, c and parameters that are not trained")
    return text


def _row_formula(field: str, function: Callable[..., Any], length: int) -> str:
    """A function of a row of logits as a formula."""
    try:
        return row_functions.row_formula_of(function, length)
    except (formulas.FormulaError, scores.ScoreError) as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None


def _loss_of_sizes(loss: Loss, sizes: Sizes) -> Loss:
    """The loss of a problem of these sizes; functions are called and become formulas."""
    function = loss.expression
    if function is not None and not isinstance(function, str):
        found = traced("loss.expression", function, sizes, loss.parameters or {})
        loss = replace(loss, expression=found.text, parameters=found.parameters or None)
    if any(map(callable, (loss.trained or {}).values())):
        penalties = {
            name: formula_text(f"loss.trained.{name}", penalty, {name: model.parameter_symbol(name)}, (name,))
            for name, penalty in (loss.trained or {}).items()
        }
        loss = replace(loss, trained=penalties)
    return loss.with_sizes(sizes)


def check_regularizer(regularizer: Regularizer, columns: int) -> None:
    """Refuse a formula that is not convex, or a function that is no proximal operator of an even convex function.

    Raises
    ------
    ProblemError
        Naming the field.
    """
    regularizer.rows(columns)


def printed_scores(problem: Sections) -> str:
    """What the row functions of scores that are not shipped return, as text: a changed one gives another."""
    length = problem.tokens.length
    return "; ".join(
        _printed_row(score, length, f"{section}.score")
        for section, score in (("student", problem.student.score), ("teacher", problem.teacher.score))
        if score not in SHIPPED_SCORES
    )


def _printed_row(score: str, length: int, field: str) -> str:
    """What a score's row function returns for so many logits, as text."""
    try:
        entries = scores.row_entries(
            scores.resolve(score, length), [sympy.Symbol(f"z{b}", real=True) for b in range(length)]
        )
    except scores.ScoreError as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None
    return ", ".join(sympy.srepr(entry) for entry in entries)


def register_score(name: str, row: Callable[..., Any]) -> None:
    """Give a row function a name, for ``student.score`` and ``teacher.score`` in this process.

    Parameters
    ----------
    name : str
        A Python name, other than those of the shipped scores.
    row : callable
        Maps a list of SymPy logits, of any length, to a list of as many expressions.

    Raises
    ------
    ProblemError
        The name cannot be used, or `row` is not such a function; the message gives the reason.

    Examples
    --------
    >>> from sympy import sqrt
    >>> register_score("cosine", lambda logits: [z / sqrt(1 + sum(y**2 for y in logits)) for z in logits])
    """
    arguments.text("name", name, "a Python name")
    arguments.function("row", row)
    try:
        scores.register_score(name, row)
    except scores.ScoreError as error:
        raise ProblemError("score", f"the score cannot be registered: {error}") from None


def check_score(score: str, length: int, field: str) -> None:
    """Refuse a score that is not a row function of so many logits.

    Raises
    ------
    ProblemError
        Naming ``field``.
    """
    if score not in SHIPPED_SCORES:
        _printed_row(score, length, field)


@lru_cache(maxsize=64)  # a line makes hundreds of problems with one loss
def check_loss(
    expression: str,
    sizes: Sizes,
    clusters: tuple[tuple[int, ...], ...],
    numbered: tuple[tuple[str, float], ...],
    trained: tuple[str, ...],
) -> tuple[frozenset[str], bool]:
    """Refuse a formula that is not a loss of so many fields, is not finite, or falls so fast that it has no minimum.

    It may take the numbers of the tokens' ``clusters``, of which these configurations occur, and has parameters of its
    own, with their values, of which training determines ``trained`` ones: in these, and in the student's fields, it
    must not jump. Those that are no entries of Q begin at their values.

    Returns
    -------
    taken : frozenset of str
        The parameters on which it depends.
    noisy : bool
        Whether it says where the noise enters.

    Raises
    ------
    ProblemError
        Naming ``loss.expression``, or a parameter that must begin elsewhere.
    """
    field, parameters, (length, columns, teacher_columns) = "loss.expression", dict(numbered), sizes
    formula = scalar.formula_loss(expression, length, columns, teacher_columns, noisy=True, parameters=[*parameters])
    h = [[sympy.Symbol(f"h{a}_{c}", real=True) for c in range(columns)] for a in range(length)]
    k = [[sympy.Symbol(f"k{a}_{c}", real=True) for c in range(teacher_columns)] for a in range(length)]
    drawn = [[sympy.Symbol(f"noise{a}_{b}", real=True) for b in range(length)] for a in range(length)]
    numbers = [sympy.Symbol(f"c{a}", real=True) for a in range(length)]
    try:
        loss = formula.loss(h, [[*teacher, *own, c] for teacher, own, c in zip(k, drawn, numbers, strict=True)])
    except formulas.FormulaError as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None
    check_clusters(field, expression, clusters)
    taken = {name for name in parameters if loss.has(model.parameter_symbol(name))}
    _refuse_jumps(field, loss, parameters, trained)
    begun = [name for name in trained if not scalar.NORM.fullmatch(name)]
    values = {model.parameter_symbol(name): sympy.Float(value) for name, value in parameters.items()}
    starts = {model.parameter_symbol(name): values.pop(model.parameter_symbol(name)) for name in begun}
    loss = loss.xreplace(values)
    if not any(loss.has(symbol) for row in h for symbol in row):
        raise ProblemError(field, f"{field} does not depend on the student's fields: write it with h.")
    own = {symbol for row in h for symbol in row}
    steep = kinks.steep_kink(loss, own) if len(own) > 1 else None
    if steep is not None:
        raise ProblemError(
            field,
            f"{field} has an infinite slope where {steep} vanishes, and no minimum is found there in several fields:"
            " take it to the power one or more, or smooth it.",
        )
    jumping = next((node for node in loss.atoms(functions.Sign) if node.free_symbols & own), None)
    if jumping is not None:
        raise ProblemError(
            field,
            f"{field} takes {str(jumping).lower()}, which jumps in a student's field and may leave no minimum:"
            " take sign of the teacher's fields alone, and abs, max, min or relu of the student's.",
        )
    present = [symbol for row in drawn for symbol in row if loss.has(symbol)]
    _check_starts(loss, {name: parameters[name] for name in begun}, [symbol for row in h for symbol in row])
    loss = loss.xreplace(starts)
    fields, teachers = [x for row in h for x in row], [x for row in k for x in row]
    named = {"h": fields, "k": teachers, "noise": present if length == 1 else [], "c": numbers}
    short = {group[0]: name for name, group in named.items() if len(group) == 1}  # as formulas may have it
    held = [place for place, c in enumerate(numbers) if loss.has(c)]
    for row in [*dict.fromkeys(tuple(row[place] for place in held) for row in clusters or ((),))][:_MOST_TRIED]:
        at = {numbers[place]: number for place, number in zip(held, row, strict=True)}
        _check_values(loss.subs(at), fields, teachers + present, at, short)
    return frozenset(taken), bool(present)


def _refuse_jumps(field: str, loss: Any, parameters: Iterable[str], trained: Iterable[str]) -> None:
    """Refuse a loss that jumps in what training determines."""
    loss = loss.xreplace({model.parameter_symbol(name): sympy.Symbol(name) for name in parameters})
    for name in trained:
        jumping = next((x for x in loss.atoms(functions.Sign, functions.Step) if x.has(sympy.Symbol(name))), None)
        if jumping is not None:
            shown = str(jumping)
            raise ProblemError(
                field,
                f"{field} takes {shown[0].lower()}{shown[1:]}, which jumps in {name}, and training needs a slope there:"
                " take abs, max, min or relu of it.",
            )


def _check_starts(loss: Any, starts: Mapping[str, float], fields: Sequence[Any]) -> None:
    """Refuse trained parameters that begin where the loss loses a field of the student.

    With weights of zero the slopes in the weights and in the parameters vanish there: the point is stationary by
    symmetry, although it need not be a minimum.

    Raises
    ------
    ProblemError
        Naming the first of them.
    """

    def without(names: Iterable[str]) -> Any:
        return loss.xreplace({model.parameter_symbol(name): sympy.Float(starts[name]) for name in names})

    lost = next((x for x in fields if loss.has(x) and not without(starts).has(x)), None)
    if lost is None:
        return
    alone = [name for name in starts if without({*starts} - {name}).has(lost)]
    named = [f"loss.parameters.{name}" for name in alone or starts if loss.has(model.parameter_symbol(name))]
    values = listed([f"{name} = {starts[name.rpartition('.')[2]]:g}" for name in named])
    what = "training, which begins there, cannot tell how to leave it: begin at another value"
    leave, field = "leaves" if len(named) == 1 else "leave", "h" if len(fields) == 1 else lost
    raise ProblemError(named[0], f"{values} {leave} loss.expression without {field}, and {what}.")


def _check_used(loss: Loss, used: Set[str]) -> None:
    """Refuse a parameter that nothing uses."""
    for name in loss.parameters or ():
        if name not in used:
            raise ProblemError(
                f"loss.parameters.{name}",
                f"loss.parameters.{name} has no effect: neither loss.expression nor a metric depends on {name}; use it"
                " or remove it.",
            )


def _check_trained(name: str, penalty: str, taken: Set[str]) -> None:
    """Refuse a trained parameter on which the loss does not depend, and a penalty that is no formula in it alone.

    Raises
    ------
    ProblemError
        Naming the field.
    """
    field = f"loss.trained.{name}"
    if name not in taken:
        raise ProblemError(field, f"{field} is trained, but loss.expression does not depend on {name}: leave it out.")
    symbol = model.parameter_symbol(name)
    try:
        formula = formulas.parse_formula(penalty, {name: symbol})
    except formulas.FormulaError as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None
    if kinks.has_kink(formula, [symbol]) or formula.has(functions.Sign, functions.Step):
        raise ProblemError(field, f"{field} has a kink or a jump, but needs a second derivative everywhere: smooth it.")
    pole = bounds.singular_point([formula], [symbol])
    if pole is not None:
        raise ProblemError(
            field, f"{field} must be a finite number for every {name}: keep its denominators above zero."
        )


def _check_values(
    loss: Any, fields: Sequence[Any], others: Sequence[Any], at: Mapping[Any, float], short: Mapping[Any, str]
) -> None:
    """Refuse a loss of the student's fields and others that is not finite, or falls so fast that it has no minimum.

    A message shows a point with the clusters ``at`` which the loss is taken, under ``short`` names.
    """
    field = "loss.expression"
    check_finite(field, loss, [*fields, *others], at, short)
    fall = bounds.fall_of(loss, fields, others)
    if fall is not None:
        raise ProblemError(
            field,
            f"{field} falls without bound, at least as the square of the fields: at"
            f" {shown_point({**at, **fall.point}, short)} it is {fall.value:.4g}, and no minimum is left; let it be"
            " bounded from below, or fall no faster than a line.",
        )
