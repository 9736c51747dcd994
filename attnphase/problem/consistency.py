"""Whether the sections of a problem go together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnphase.errors import ProblemError
from attnphase.integration.kinds import RULES
from attnphase.lazy import loaded_on_use
from attnphase.problem.messages import listed, shown
from attnphase.problem.sections import Sections
from attnphase.problem.tables import RELATIVE_TOLERANCE, check_table, gram_fault
from attnphase.problem.values import (
    MAX_ATOMS,
    PointKey,
    Table,
)

with loaded_on_use(__name__):
    from derivations.models import samplers, scalar

__all__ = ["check_rule", "check_sections", "has_rule", "has_smooth_law"]


def check_sections(problem: Sections) -> None:
    """Refuse sections that do not go together.

    Raises
    ------
    ProblemError
        Naming the field.
    """
    problem.positions.check_length(problem.tokens.length)
    _check_spectrum_positions(problem)
    _check_products(problem)
    _check_strength(problem)
    _check_loss(problem)


def check_rule(problem: Sections) -> None:
    """Refuse an integration rule that is not made for the problem.

    Raises
    ------
    ProblemError
        Naming ``integration.rule``.
    """
    need = _unmet(problem, problem.integration.form.requires)
    if need:
        raise ProblemError(
            "integration.rule",
            f'integration.rule = "{problem.integration.rule}" needs {need}: choose "auto" for this problem.',
        )
    if problem.integration.form.needs_planes and not _has_planes(problem):
        raise ProblemError(
            "integration.rule",
            f'integration.rule = "{problem.integration.rule}" needs a label that jumps or bends on parallel planes of'
            " the teacher's fields alone, as sign(k0_0 + k1_0) does, a smooth tokens.density, and without such a"
            ' label a smooth tokens.sampler: choose "auto" for this problem.',
        )


def has_rule(problem: Sections, name: str) -> bool:
    """Whether an integration rule is made for the problem."""
    rule = RULES[name]
    return _unmet(problem, rule.requires) is None and not (rule.needs_planes and not _has_planes(problem))


def _has_planes(problem: Sections) -> bool:
    """Whether labels jump on parallel planes of the Gaussian fields alone, and the law of k nowhere."""
    planes = problem.loss.form.label_planes
    bent = problem.tokens.sampler is not None and planes is not None and len(planes[0]) > 0
    return planes is not None and not bent and has_smooth_law(problem)


def has_smooth_law(problem: Sections) -> bool:
    """Whether what makes the law of k of the Gaussian one, a sampler or a density, jumps or bends nowhere."""
    tokens = problem.tokens
    if not tokens.own_laws:
        return True  # without SymPy, which takes longer to load than a solve
    sizes, own = scalar.Sizes(tokens.length, problem.columns, problem.teacher_columns), tokens.parameters or {}
    if tokens.sampler is not None and not samplers.is_smooth(tokens.sampler, sizes, tuple(own)):
        return False
    return tokens.density is None or scalar.formula_label_planes(tokens.density, own, sizes) == ({}, ())


def _unmet(problem: Sections, required: Mapping[str, Any]) -> str | None:
    """The first of the fields that do not have their values, as it should stand in the TOML."""
    for name, value in required.items():
        section, _, key = name.partition(".")
        if getattr(getattr(problem, section), key) != value:
            return f"{name} = {shown(value)}"
    return None


def _check_spectrum_positions(problem: Sections) -> None:
    in_atoms = problem.tokens.points("positions") is not None
    if in_atoms and not problem.positions.in_atoms:
        raise ProblemError(
            "positions.kind",
            f'positions.kind = "{problem.positions.kind}" does not go with positions in the atoms of tokens.spectrum:'
            ' set positions.kind = "spectrum", or remove one of them.',
        )
    if problem.positions.in_atoms and not in_atoms:
        raise ProblemError(
            "positions.kind",
            'positions.kind = "spectrum" needs positions in every atom of tokens.spectrum: give them, or choose'
            " another kind.",
        )


def _check_products(problem: Sections) -> None:
    """Check what is known of the joint Gram matrix of cluster directions, encodings and teacher."""
    length, columns = problem.tokens.length, problem.teacher_columns
    tables: dict[str, tuple[Table | None, tuple[PointKey, PointKey]]] = {
        "tokens.mean_positions": (problem.tokens.mean_positions, ("means", "positions")),
        "tokens.mean_teacher": (problem.tokens.mean_teacher, ("means", "teacher")),
        "positions.teacher": (problem.positions.teacher, ("positions", "teacher")),
    }
    size = "teacher.rank" if problem.loss.value_columns == 0 else "teacher.rank + loss.width"
    if problem.positions.teacher is not None:
        check_table("positions.teacher", problem.positions.teacher, (length, columns), ("tokens.length", size))
    if problem.tokens.mean_teacher is not None:
        shape = (columns, problem.tokens.mean_directions)
        check_table("tokens.mean_teacher", problem.tokens.mean_teacher, shape, (size, "the length of a cluster's mean"))
    for name, (table, keys) in tables.items():
        for key in keys:
            if table is not None and problem.tokens.points(key) is not None:
                raise ProblemError(
                    name,
                    f"{name} does not go with {key} in the atoms of tokens.spectrum: remove it, and give both"
                    f" {keys[0]} and {keys[1]} in the atoms if they are correlated.",
                )
    _check_teacher_points(problem)
    _check_teacher_prior(problem, tables)
    given = [name for name, (table, _) in tables.items() if table is not None and np.any(np.array(table))]
    if given:
        _check_joint_gram(problem, given)


def _check_teacher_points(problem: Sections) -> None:
    points = problem.tokens.points("teacher")
    if points is None:
        return
    name, columns = "tokens.spectrum", problem.teacher_columns
    if points.shape[1] != columns:
        raise ProblemError(
            name,
            f"tokens.spectrum[0].teacher has {points.shape[1]} numbers, but the teacher has {columns} columns:"
            " give one for each.",
        )
    weights, variances = problem.spectrum_atoms()
    overlaps = np.einsum("a,as,ai,aj->sij", weights, variances, points, points)
    scale = np.sqrt(np.maximum(np.einsum("sii->si", overlaps), np.finfo(float).tiny))
    lowest = np.linalg.eigvalsh(overlaps / (scale[:, :, None] * scale[:, None, :]))[:, 0]
    if lowest.min() < RELATIVE_TOLERANCE:
        token, cluster = problem.sites[int(lowest.argmin())]
        whose = problem.tokens.form.site(token, cluster)
        raise ProblemError(
            name,
            f"tokens.spectrum gives teacher values whose fields on {whose} vanish or are not independent: give"
            " the columns of the teacher independent values, not zero, where the variance is not zero.",
        )


def _check_teacher_prior(problem: Sections, tables: Mapping[str, tuple[Table | None, Any]]) -> None:
    """Refuse a law of the teacher's entries beside what gives them or correlates them with other vectors."""
    law = problem.teacher.law
    if problem.teacher.prior == "gaussian":
        return
    named = f'teacher.prior = "{problem.teacher.prior}"'
    if problem.tokens.points("teacher") is not None:
        raise ProblemError(
            "teacher.prior",
            f"{named} does not go with teacher in the atoms of tokens.spectrum, which give the entries: remove one.",
        )
    for name in ("tokens.mean_teacher", "positions.teacher"):
        table = tables[name][0]
        if table is not None and np.any(np.array(table)):
            raise ProblemError(
                "teacher.prior",
                f"{named} draws entries that are independent of encodings and clusters' means, which {name} does not"
                " allow: set it to zero, or remove teacher.prior.",
            )
    weights, _ = problem.spectrum_atoms()
    components = len(law.probabilities) ** problem.teacher_columns * len(weights)
    if components > MAX_ATOMS:
        raise ProblemError(
            "teacher.prior",
            f"{named} gives a row of the teacher's weights {components} components on the atoms of tokens.spectrum,"
            f" more than {MAX_ATOMS}: take fewer values, columns or atoms.",
        )


def _check_joint_gram(problem: Sections, given: list[str]) -> None:
    blocks = {
        "tokens.mean_positions": ("cluster directions e_k", "encodings p_l", slice(0, 2)),
        "tokens.mean_teacher": ("cluster directions e_k", "the teacher's columns", slice(0, 3, 2)),
        "positions.teacher": ("encodings p_l", "the teacher's columns", slice(1, 3)),
    }
    gram = problem.joint_gram
    ends = np.cumsum([0, problem.tokens.mean_directions, problem.tokens.length, problem.teacher_columns])
    parts = [np.arange(first, last) for first, last in itertools.pairwise(ends)]
    for name in given:
        first, second, chosen = blocks[name]
        index = np.concatenate(parts[chosen])
        fault = gram_fault(gram[np.ix_(index, index)])
        if fault:
            raise ProblemError(
                name, f"{name} has products that no {first} and {second} can have: {fault}; make them smaller."
            )
    fault = gram_fault(gram)
    if fault:
        raise ProblemError(
            given[0],
            f"{listed(given)} have products that no cluster directions, encodings and teacher can have together:"
            f" {fault}; make them smaller.",
        )


def _check_strength(problem: Sections) -> None:
    """Refuse a list of ridges that has not one for each column."""
    strength, columns = problem.regularizer.strength, problem.columns
    if isinstance(strength, tuple) and len(strength) != columns:
        counted = "one column" if columns == 1 else f"{columns} columns"
        raise ProblemError(
            "regularizer.strength",
            f"regularizer.strength has {len(strength)} numbers, but the student's weights have {counted}:"
            " give one for each, or one number for all.",
        )


def _check_norms(problem: Sections) -> None:
    """Refuse what does not go with a loss of Q = W^T W / d."""
    name = "loss.expression"
    if not problem.regularizer.form.quadratic:
        raise ProblemError(
            name,
            f'{name} takes Q, which does not go with regularizer.kind = "{problem.regularizer.kind}": write it without'
            ' Q, or set regularizer.kind = "ridge".',
        )


def _check_loss(problem: Sections) -> None:
    kind = problem.loss.kind
    need = _unmet(problem, problem.loss.form.requires)
    if need:
        raise ProblemError("loss.kind", f'loss.kind = "{kind}" needs {need}: set it, or choose another loss.')
    if problem.loss.norms:
        _check_norms(problem)
    if not problem.loss.has_attention:
        default: Any
        for section in ("teacher", "student"):
            for key, default in (("score", "softmax"), ("temperature", 1.0), ("causal", False)):
                if getattr(getattr(problem, section), key) != default:
                    raise ProblemError(
                        f"{section}.{key}",
                        f'{section}.{key} does not go with loss.kind = "{kind}", which has no attention: remove it.',
                    )
