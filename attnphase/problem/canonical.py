"""One text for all problems that are the same model: with expressions for formulas, and without what has no effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import tomli_w

from attnphase.lazy import loaded_on_use
from attnphase.problem.attention import SHIPPED_SCORES
from attnphase.problem.entries import get, put
from attnphase.problem.losses import Sizes
from attnphase.problem.schema import notes_of, sections
from attnphase.problem.sections import Sections
from attnphase.problem.values import is_nested

with loaded_on_use(__name__):
    import sympy

    from derivations.models import fingerprints, formulas, metrics, samplers, scalar, scores

__all__ = ["WrittenFormula", "canonical_toml", "with_formulas"]

_ZERO_BY_DEFAULT = ("tokens.mean_positions", "tokens.mean_teacher", "positions.teacher")
_ONE_FOR_ALL = ("tokens.sigma", "tokens.spectrum.variance", "regularizer.strength")
_OF_ATTENTION = ("teacher.omega", "teacher.mixing")


class WrittenFormula(str):
    """The text of a formula, which is equal to any other text of the same expression.

    Attributes
    ----------
    fingerprint : str
        Of the expression.
    """

    __slots__ = ("fingerprint",)
    fingerprint: str

    def __new__(cls, text: str, fingerprint: str) -> WrittenFormula:
        """A text and the fingerprint of its expression."""
        found = super().__new__(cls, text)
        found.fingerprint = fingerprint
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WrittenFormula) and self.fingerprint == other.fingerprint

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def with_formulas(problem: Sections, data: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The sections of a problem as plain dicts, in which each formula is a `WrittenFormula`; in place."""
    for name, text, fingerprint in _formulas(problem):
        put(data, name, WrittenFormula(text, fingerprint))
    return data


def canonical_toml(problem: Sections, data: dict[str, dict[str, Any]]) -> str:
    """The text of a problem, which is given as plain dicts; that of its TOML if nothing in it can be left out."""
    data = with_formulas(problem, data)
    for name in _ZERO_BY_DEFAULT:
        if not np.any(get(data, name) or 0):
            _remove(data, name)
    for name in _ONE_FOR_ALL:
        value = get(data, name)
        if isinstance(value, list) and len({*value}) == 1:
            put(data, name, value[0])
    clusters = get(data, "tokens.clusters") or []
    for row in clusters if is_nested(clusters) else [clusters]:
        for cluster in row:
            if not np.any(cluster.get("mean", 0)):
                cluster.pop("mean", None)
    for name in ("tokens.clusters", "tokens.law.weights"):
        rows = get(data, name)
        if is_nested(rows) and all(row == rows[0] for row in rows):
            put(data, name, rows[0])
    for name in () if problem.loss.has_attention else _OF_ATTENTION:
        _remove(data, name)
    for name, section in sections().items():
        for key in notes_of(section).named:
            table = get(data, f"{name}.{key}")
            if table is not None:
                data[name][key] = dict(sorted(table.items()))
    return tomli_w.dumps(_plain(data))


def _remove(data: dict[str, dict[str, Any]], name: str) -> None:
    section, _, key = name.partition(".")
    data.get(section, {}).pop(key, None)


def _plain(value: Any) -> Any:
    """A value with the fingerprints of formulas for their texts."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value.fingerprint if isinstance(value, WrittenFormula) else value


def _formulas(problem: Sections) -> Iterator[tuple[str, str, str]]:
    """Where formulas stand, their texts, and the fingerprints of their expressions."""
    tokens, loss, sizes = (
        problem.tokens,
        problem.loss,
        (problem.tokens.length, problem.columns, problem.teacher_columns),
    )
    numbers = tuple(loss.numbers)
    if loss.text is not None:
        yield "loss.expression", loss.text, _of_fields(loss.text, sizes, numbers)
    for name, text in problem.metrics.items():
        yield f"metrics.{name}", text, _of_fields(text, sizes, tuple(problem.numbers))
    own = tuple(tokens.parameters or {})
    if tokens.sampler is not None:
        yield "tokens.sampler", tokens.sampler, _of_sampler(tokens.sampler, sizes, own)
    if tokens.density is not None:
        yield "tokens.density", tokens.density, _of_fields(tokens.density, sizes, own)
    for name, text in (loss.trained or {}).items():
        yield f"loss.trained.{name}", text, _of_number(text, name)
    if problem.regularizer.expression is not None:
        yield "regularizer.expression", problem.regularizer.expression, _of_number(problem.regularizer.expression, "w")
    for name, text in (("student.score", problem.student.score), ("teacher.score", problem.teacher.score)):
        if text not in SHIPPED_SCORES and scores.is_formula(text):
            yield name, text, _of_row(text, tokens.length)


@lru_cache(maxsize=256)
def _of_fields(text: str, sizes: Sizes, numbers: tuple[str, ...]) -> str:
    return fingerprints.fingerprint(metrics.metric_expression(text, *sizes, numbers)[0])


@lru_cache(maxsize=64)
def _of_sampler(text: str, sizes: Sizes, numbers: tuple[str, ...]) -> str:
    return " ".join(map(fingerprints.fingerprint, samplers.sampler_expressions(text, scalar.Sizes(*sizes), numbers)[0]))


@lru_cache(maxsize=64)
def _of_number(text: str, name: str) -> str:
    return fingerprints.fingerprint(formulas.parse_formula(text, {name: sympy.Symbol(name, real=True)}))


@lru_cache(maxsize=64)
def _of_row(text: str, length: int) -> str:
    logits = [sympy.Symbol(f"z{b}", real=True) for b in range(length)]
    return fingerprints.fingerprint(formulas.parse_row_formula(text, logits)[0])
