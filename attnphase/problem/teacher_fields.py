"""The formulas of `[tokens]`: the law of the teacher's fields, by a sampler and a density."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.problem.field_formulas import check_at, check_clusters, check_metric, refuse_symbols, traced
from attnphase.problem.sections import Sections
from attnphase.problem.tokens import Tokens

with loaded_on_use(__name__):
    from derivations.models import formulas, metrics, model, samplers, scalar

__all__ = ["check_law", "tokens_of_formulas"]


def tokens_of_formulas(problem: Sections) -> Tokens:
    """The section of the tokens, without a sampler that changes nothing."""
    tokens, sizes = problem.tokens, (problem.tokens.length, problem.columns, problem.teacher_columns)
    given, found = dict(tokens.parameters or {}), dict[str, float]()
    texts = {key: getattr(tokens, key) for key in tokens.own_laws}
    for key, text in texts.items():
        if not callable(text):
            continue
        # one of both need not take the numbers of the other
        own = given if len(texts) == 1 else {one: given[one] for one in given if one in _argument_names(text)}
        shape = (sizes[0], sizes[2]) if key == "sampler" else ()
        made = traced(f"tokens.{key}", text, sizes, own, ("k", "c"), "tokens.parameters", shape=shape)
        for name, number in made.parameters.items():
            if found.setdefault(name, number) != number:
                raise ProblemError(
                    f"tokens.parameters.{name}",
                    f"tokens.parameters.{name} has the defaults {found[name]:g} and {number:g} in tokens.sampler and"
                    " tokens.density: give it.",
                )
        texts[key] = made.text
    numbers = given | found
    if "sampler" in texts:
        fields, held = _check_fields(problem, texts["sampler"], tuple(numbers))
        texts["sampler"] = None if fields == held.teacher else texts["sampler"]
    if "density" in texts and _is_one(texts["density"], sizes, tuple(numbers)):
        texts["density"] = None
    changed = any(getattr(tokens, key) != text for key, text in texts.items())
    return replace(tokens, **texts, parameters=numbers or None) if changed else tokens


def _is_one(density: str, sizes: tuple[int, int, int], numbers: tuple[str, ...]) -> bool:
    """Whether a density is 1 for all fields; not if it is no formula, which is refused later."""
    try:
        return bool(metrics.metric_expression(density, *sizes, numbers)[0] == 1)
    except formulas.FormulaError:
        return False


def _argument_names(function: Callable[..., Any]) -> Set[str]:
    """Names of a function's arguments; none where they are not known."""
    try:
        return inspect.signature(function).parameters.keys()
    except (TypeError, ValueError):
        return set()


def check_law(problem: Sections, clusters: Sequence[Sequence[int]]) -> None:
    """Refuse a sampler or a density of k that is no formula, not finite, or takes other fields.

    Their means are not known here.
    """
    tokens, numbers, used = problem.tokens, problem.tokens.parameters or {}, set[Any]()
    for key in tokens.own_laws:
        field, text = f"tokens.{key}", getattr(tokens, key)
        if key == "sampler":
            check_clusters(field, text, clusters)
            value, held = _check_fields(problem, text, tuple(numbers))
            check_at(field, value, held, clusters, numbers)
        else:
            value, held = check_metric(problem, field, text, clusters, numbers)
        refuse_symbols(field, value, {x: str(x) for x in (*held.student, *held.noise)}, "k and c alone")
        used |= value.free_symbols
    named = " and ".join(f"tokens.{key}" for key in tokens.own_laws)
    for name in numbers:
        place = f"tokens.parameters.{name}"
        if model.parameter_symbol(name) not in used:
            raise ProblemError(place, f"{place} is no number of {named}, which has no {name}: leave it out.")
        if name in problem.loss.numbers:
            raise ProblemError(place, f"{place} has the name of loss.parameters.{name}: choose another name.")


def _check_fields(problem: Sections, text: str, numbers: tuple[str, ...]) -> tuple[Any, metrics.MetricSymbols]:
    """The fields of a sampler in symbols; it may take these numbers by name."""
    sizes = scalar.Sizes(problem.tokens.length, problem.columns, problem.teacher_columns)
    try:
        return samplers.sampler_expressions(text, sizes, numbers)
    except formulas.FormulaError as error:
        raise ProblemError("tokens.sampler", f"tokens.sampler must be a formula of fields, but {error}") from None
