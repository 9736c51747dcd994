"""Formulas of a sample's fields: written down from functions, read, and refused where they cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.losses import Sizes
from attnphase.problem.sections import Sections

with loaded_on_use(__name__):
    import sympy

    from derivations.models import bounds, formulas, metrics, scalar
    from derivations.models import traced as tracing

__all__ = [
    "arrays_of",
    "check_at",
    "check_clusters",
    "check_finite",
    "check_metric",
    "cluster_numbers",
    "formula_text",
    "refuse_symbols",
    "shown_point",
    "traced",
]

_MOST_TRIED = 64  # configurations of clusters, each of which takes some hundredths of a second


def arrays_of(sizes: Sizes) -> dict[str, Any]:
    """The arrays of a formula by name."""
    return dict(zip(("h", "k", "noise", "c"), scalar.Sizes(*sizes).symbols(), strict=True))


def traced(field: str, function: Callable[..., Any], sizes: Sizes, *more: Any, **shaped: Any) -> tracing.Traced:
    """A function of the arrays of a formula, and of numbers, as data."""
    try:
        return tracing.traced(function, scalar.Sizes(*sizes), *more, **shaped)
    except formulas.FormulaError as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None


def formula_text(
    field: str, function: str | Callable[..., Any], given: Mapping[str, Any], numbers: Sequence[str] = ()
) -> str:
    """A function as a formula; a formula stays as it is."""
    if isinstance(function, str):
        return function
    try:
        return tracing.formula_of(function, given, numbers)
    except formulas.FormulaError as error:
        raise ProblemError(field, f"{field} cannot be used: {error}") from None


def cluster_numbers(problem: Sections) -> Sequence[Sequence[int]]:
    """Numbers of the tokens' clusters in every configuration; none where tokens have no clusters."""
    return problem.tokens.configurations[0].tolist() if problem.tokens.has_clusters else ()


def check_clusters(field: str, expression: str, clusters: Sequence[Sequence[int]]) -> None:
    """Refuse a formula with the number of a token's cluster where tokens have none."""
    if scalar.takes_clusters(expression) and not clusters:
        raise ProblemError(
            field,
            f'{field} takes the number of a token\'s cluster, but tokens have none: set tokens.kind = "mixture" and'
            " give tokens.clusters, or write it without c.",
        )


def refuse_symbols(field: str, formula: Any, named: Mapping[Any, str], remedy: str) -> None:
    """Refuse a formula that takes any of some symbols, given with their names."""
    other = sorted(named[x] for x in formula.free_symbols & named.keys())
    if other:
        raise ProblemError(field, f"{field} has {other[0]} in it: write it with {remedy}.")


def check_metric(
    problem: Sections, field: str, text: str, clusters: Sequence[Sequence[int]], numbers: Mapping[str, float]
) -> tuple[Any, metrics.MetricSymbols]:
    """Refuse a metric that is no formula of the problem's fields, or not a finite number for all of them.

    It may take these numbers by name. It is returned in symbols.
    """
    check_clusters(field, text, clusters)
    try:
        sizes = problem.tokens.length, problem.columns, problem.teacher_columns
        metric, held = metrics.metric_expression(text, *sizes, tuple(numbers))
    except formulas.FormulaError as error:
        raise ProblemError(field, f"{field} must be a formula of a sample's fields, but {error}") from None
    check_at(field, metric, held, clusters, numbers)
    return metric, held


def check_at(
    field: str,
    value: Any,
    held: metrics.MetricSymbols,
    clusters: Sequence[Sequence[int]],
    numbers: Mapping[str, float],
) -> None:
    """Refuse a formula, or several, that are not finite for all fields in some configuration of clusters."""
    for row in clusters[:_MOST_TRIED] or ((),):
        at = dict(zip(held.clusters, row, strict=False))
        at |= dict(zip(held.parameters, numbers.values(), strict=True))
        taken = {x: number for x, number in at.items() if x in value.free_symbols}
        variables = [x for x in (*held.student, *held.teacher, *held.noise) if x in value.free_symbols]
        check_finite(field, value.subs(at), variables, taken, dict(zip(held.parameters, numbers, strict=True)))


def check_finite(
    field: str, value: Any, variables: Sequence[Any], at: Mapping[Any, float], short: Mapping[Any, str]
) -> None:
    """Refuse a formula, or several, that are not finite for all fields, with the clusters ``at`` which it is taken."""
    several: Any = value if isinstance(value, sympy.Tuple) else (value,)
    pole = bounds.singular_point([*several], variables)
    if pole is not None:
        raise ProblemError(
            field,
            f"{field} must be a finite number for all fields, but is not finite at"
            f" {shown_point({**at, **pole}, short)}: keep its denominators, and the arguments of its logarithms and"
            " roots, above zero.",
        )


def shown_point(point: Mapping[Any, float], short: Mapping[Any, str]) -> str:
    """What a message shows of a point; some symbols have short names."""
    return ", ".join(f"{short.get(x, x)} = {value:.4g}" for x, value in point.items())
