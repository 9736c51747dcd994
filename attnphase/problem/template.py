"""A problem as a commented TOML, to begin with: every field, what it is, and its value or an example.

What a field must be is said by the description at the field itself (`problem`), which its error messages use too; the
notes below say what it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from attnphase.problem.attention import SHIPPED_SCORES
from attnphase.problem.losses import LOSSES
from attnphase.problem.problem import Problem
from attnphase.problem.spectrum_laws import SPECTRUM_KINDS
from attnphase.rows.kinds import REGULARIZERS

__all__ = ["OFFERED", "changes_for", "template"]

OFFERED = {
    "loss": tuple(LOSSES),
    "regularizer": tuple(name for name, kind in REGULARIZERS.items() if kind.example is not None),
    "spectrum": (*SPECTRUM_KINDS, "atoms"),
}
"""Kinds that `changes_for` has an example of; a proximal operator is a function of the user's own."""

_COLUMN = 24  # where comments begin behind a short value
_LONGEST = 105  # characters of a value and its comment on one line
_LARGEST = 4  # tokens for which examples of tables are written out
_CLUSTERS = [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]
_SCORE = f'{", ".join(SHIPPED_SCORES)}, a formula in z, or "module:function"'

# {} stands for what the field must be
_NOTES = {
    "tokens.kind": "{}",
    "tokens.length": "L, {}",
    "tokens.sigma": "of gaussian tokens: standard deviation, or a list with one for each token",
    "tokens.spectrum": "other covariances, instead of sigma; or a ready-made law, or a CSV file",
    "tokens.clusters": "a mixture's, instead of sigma; or a list for each token",
    "tokens.law": "of the clusters: independent, markov, same, single-location or table",
    "tokens.mean_positions": "a mixture's: products p_l . e_k of encodings and directions of the means",
    "tokens.mean_teacher": "a mixture's: products e_k . Q*_s / sqrt(d) of these directions and the teacher",
    "tokens.sampler": "the teacher's fields of a sample, made of Gaussian k: {}, the numbers of the clusters",
    "tokens.density": "of the teacher's fields k, relative to those without it: {}",
    "tokens.parameters": "numbers of sampler and density by name, such as tilt",
    "positions.kind": "{}; opposite: p_1 = -p_2, norm 1, for L = 2",
    "positions.gram": 'with kind = "gram": the products p_l . p_k; for L > 2 the corners of a simplex',
    "positions.teacher": "products p_l . Q*_s / sqrt(d) of encodings and teacher",
    "teacher.score": _SCORE,
    "teacher.temperature": "logits are divided by it",
    "teacher.causal": "true: a token attends to itself and those before it",
    "teacher.rank": "t, {}",
    "teacher.omega": "weight of the positional part, {}",
    "teacher.mixing": "the positional part A, L by L; for L > 2 uniform",
    "teacher.noise": "Delta, variance of the noise on every entry of the labels' T",
    "teacher.prior": "of an entry of Q*: {}",
    "teacher.prior_density": 'with prior = "gauss-bernoulli": share of the entries that are not zero',
    "teacher.prior_values": 'with prior = "atoms": the values of an entry',
    "teacher.prior_probabilities": "their probabilities",
    "student.score": "as above",
    "student.temperature": "as above",
    "student.causal": "as above",
    "student.rank": "r, columns of Q, and of K if untied; {}",
    "student.tied": "false: W = (Q|K)",
    "regularizer.kind": "{}",
    "regularizer.strength": "lambda, or a list of them; of lasso and group-lasso the factor of |w| or of a row's norm",
    "regularizer.ridge": 'not with kind = "ridge" or "lasso": adds (ridge/2) w^2',
    "regularizer.expression": 'with kind = "expression": a convex function of one weight, instead of a strength',
    "regularizer.prox": 'with kind = "prox": prox(v, step) of an even convex function, instead of a strength',
    "loss.kind": "{}",
    "loss.width": 'with kind = "values": columns of the value matrices, {}',
    "loss.expression": 'with kind = "expression": a formula in the fields h[0, 0] (token 0, column 0), k[0, 0], ...',
    "loss.parameters": 'with kind = "expression": numbers of the formula by name, such as beta',
    "loss.trained": "those of them that are trained, with what each adds to the objective divided by d",
    "metrics.error": "a mean over fresh samples, under a name of your own: a formula as of a loss, which may jump",
    "integration.rule": "{}; published: the paper's 144 nodes",
    "integration.standard_error": "relative, asked for on q",
    "integration.seed": "of the points",
    "integration.nodes": "sobol: points in each of 16 replicates, a power of two; gauss-hermite: nodes per dimension",
}


def template(problem: Problem) -> str:
    """A problem as TOML with a comment on every line.

    Parameters
    ----------
    problem : Problem
        Its fields are written with their values, and as a comment where they follow from the number of tokens.  What
        it does not have is written as a comment with an example.

    Returns
    -------
    str
        `Problem.from_toml` makes an equal problem of it.
    """
    lines: list[str] = []
    section, plain = "", problem.to_dict()
    for name, note in _NOTES.items():
        home, key = name.split(".")
        if home != section:
            lines += [*([""] if lines else []), f"[{home}]"]
            section = home
        if not _applies(problem, name):
            continue
        if home == "metrics":
            lines.append(f"# {note}")
            lines += [f"{key} = {_toml(value)}" for key, value in problem.metrics.items()]
            lines += [] if problem.metrics else [f"# {key} = {_toml(_example(problem, name))}"]
            continue
        part = getattr(problem, home)
        value, begin = plain.get(home, {}).get(key, getattr(part, key)), ""
        note = note.format(type(part).__pydantic_fields__[key].description)
        if _follows(problem, name):
            if problem.tokens.length > _LARGEST:  # its table would fill the file
                lines.append(f"# {key}: {note}")
                continue
            begin = "# "
        elif value is None or not _allowed(problem, name):
            value, begin = _example(problem, name), "# "
        if value is not None:
            lines += _field(begin, key, value, note)
    return "\n".join(lines) + "\n"


def _field(begin: str, key: str, value: Any, note: str) -> list[str]:
    """Write one field with its note, beside it or above; a long table has a line for each row."""
    line, told = f"{begin}{key} = {_toml(value)}", f"# {key}: {note}"
    if len(line) + len(note) <= _LONGEST:
        return [f"{line:<{_COLUMN - 1}}  # {note}"]
    if len(line) <= _LONGEST or not _is_table(value):
        return [told, line]
    return [told, f"{begin}{key} = [", *(f"{begin}    {_toml(row)}," for row in value), f"{begin}]"]


def changes_for(
    *,
    mixture: bool = False,
    spectrum: str | None = None,
    length: int | None = None,
    rank: int | None = None,
    untied: bool = False,
    loss: str | None = None,
    width: int | None = None,
    regularizer: str | None = None,
) -> dict[str, Any]:
    """Fields of the paper's problem to change, for `Problem.with_fields`, so that it has what is asked for.

    Parameters
    ----------
    mixture : bool
        Whether tokens are in two clusters, which they often share.
    spectrum : str, optional
        A ready-made law by its kind, or "atoms".
    length, rank : int, optional
        L and r.
    untied : bool
    loss : str, optional
        Its kind; those without attention have one token, unless `length` says otherwise.
    width : int, optional
        Columns of value matrices, which the loss then has.
    regularizer : str, optional
        Its kind, but for a proximal operator, which is a function of the user's own.
    """
    changes: dict[str, Any] = {}
    if loss is not None:
        changes["loss.kind"] = loss
    if width is not None:
        changes |= {"loss.kind": loss or "values", "loss.width": width}
    example = dict(LOSSES[loss].example) if loss is not None else {}
    length = int(example.pop("tokens.length", 2)) if length is None else length
    changes |= {**example, "tokens.length": length}
    if rank is not None:
        changes["student.rank"] = rank
    if untied:
        changes["student.tied"] = False
    if mixture:
        changes["tokens.kind"] = "mixture"
        changes["tokens.clusters"] = [{"mean": [1.5]}, {"mean": [-1.5]}] if spectrum else _CLUSTERS
        changes["tokens.law"] = _law(length)
    if spectrum is not None:
        changes["tokens.spectrum"] = _spectrum(spectrum, length * (2 if mixture else 1))
    if regularizer is not None:
        changes["regularizer.kind"] = regularizer
        changes |= {f"regularizer.{key}": value for key, value in (REGULARIZERS[regularizer].example or {}).items()}
    return changes


def _spectrum(kind: str, sites: int) -> Any:
    if kind == "atoms":
        variances = [round(0.2 + 0.1 * (i % _LARGEST), 1) for i in range(sites)]
        return [{"weight": 0.5, "variances": variances}, {"weight": 0.5, "variances": variances[::-1]}]
    return {"kind": kind, **SPECTRUM_KINDS[kind].example}


def _applies(problem: Problem, name: str) -> bool:
    """Whether a field means anything for the problem's loss and regulariser."""
    attention = ("score", "temperature", "causal", "omega", "mixing")
    if name.split(".")[0] in ("teacher", "student") and name.split(".")[1] in attention:
        return problem.loss.has_attention
    if name == "regularizer.strength":
        return "strength" in problem.regularizer.form.keys
    return True


def _allowed(problem: Problem, name: str) -> bool:
    """Whether a field may have another value than its default."""
    return name != "regularizer.ridge" or "ridge" in problem.regularizer.form.keys


def _follows(problem: Problem, name: str) -> bool:
    """Whether a field's value is the default that follows from the number of tokens."""
    tables = ("teacher.mixing", "positions.kind", "positions.gram")
    if name not in tables or problem.tokens.length <= 2:
        return False
    return problem.with_fields({name: None}) == problem


def _example(problem: Problem, name: str) -> Any:
    """What a problem could set a field to that it does not have; None for no example."""
    length, columns = problem.tokens.length, problem.teacher_columns
    directions = problem.tokens.mean_directions or 1
    tables = length <= _LARGEST
    if name == "tokens.spectrum":
        return _spectrum("atoms", len(problem.sites)) if tables else _spectrum("two-level", length)
    if name in ("positions.gram", "teacher.mixing"):
        diagonal, others = (1.0, 0.0) if name == "positions.gram" else (0.6, 0.2)
        return [[diagonal if k == l else others for k in range(length)] for l in range(length)] if tables else None
    return {
        "tokens.sigma": 0.5,
        "tokens.clusters": _CLUSTERS,
        "tokens.law": _law(length),
        "tokens.mean_positions": _apart(problem, directions),
        "tokens.mean_teacher": [[0.1] * directions] * columns,
        "tokens.sampler": "k + k**3/9",
        "tokens.density": "1 + tilt*tanh(k[0, 0])",
        "tokens.parameters": {"tilt": 0.5},
        "positions.kind": "none",
        "positions.teacher": _apart(problem, columns),
        "teacher.prior_density": 0.2,
        "teacher.prior_values": [-1.0, 0.0, 1.0],
        "teacher.prior_probabilities": [0.1, 0.8, 0.1],
        "regularizer.ridge": 0.002,
        "regularizer.expression": (REGULARIZERS["expression"].example or {})["expression"],
        "regularizer.prox": "module:function",
        "loss.width": 1,
        "loss.expression": LOSSES["expression"].example["loss.expression"],
        "loss.parameters": {"beta": 2.0},
        "loss.trained": {"beta": "0.01*beta**2"},
        "metrics.error": "(1 - sign(h0_0*k0_0))/2",
        "integration.nodes": 1024,
    }[name]


def _law(length: int) -> dict[str, Any]:
    if length == 1:
        return {"kind": "independent", "weights": [0.3, 0.7]}
    return {"kind": "same", "probability": 0.8}


def _apart(problem: Problem, columns: int) -> Any:
    """Products of encodings that sum to zero, as the default ones do, with other vectors; None without encodings."""
    if not problem.positions_gram.any() or problem.tokens.length > _LARGEST:
        return None
    return [[value] * columns for value in (0.1, -0.1, 0.0, 0.0)[: problem.tokens.length]]


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, list) for row in value)


def _toml(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(_pairs(value))}}}"
    return repr(value)


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        yield f"{key} = {_toml(value)}"
