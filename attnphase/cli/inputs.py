"""Problems, fields and settings from the options that name them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnphase.cli.values import NUMBERS
from attnphase.errors import ProblemError
from attnphase.files.checkpoints import CheckpointKind
from attnphase.files.writing import check_dataset
from attnphase.fixed_points.settings import check_affordable
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from attnphase.problem import loading, toml
    from attnphase.problem import problem as problems
    from attnphase.state_evolution import starts

if TYPE_CHECKING:
    from attnphase.problem import Problem

__all__ = ["checked_checkpoint", "named", "problem_of", "solvable", "varied"]


def problem_of(problem_file: Path | None, changes: Sequence[str]) -> Problem:
    """The problem of a file, or the paper's, with its changes."""
    problem = problems.Problem() if problem_file is None else loading.load_problem(problem_file)
    return problem.with_fields(dict(map(toml.parse_setting, changes))) if changes else problem


def named(branch: str) -> tuple[str, ...]:
    """The branches that ``--branch`` names: none of them for ``all``, which are those that a problem has."""
    return () if branch == "all" else (branch,)


def solvable(problem: Problem, branches: Sequence[str]) -> Problem:
    """The problem, if it has these branches and its integration is affordable."""
    check_affordable(problem)
    for branch in branches:
        starts.initial_overlaps(problem, branch)
    return problem


def checked_checkpoint(
    kind: CheckpointKind, checkpoint: Path | None, output: Path | None, force: bool, *others: Path | None
) -> Path | None:
    """The checkpoint of a command, beside the output by default, after both were checked; `others` are other files."""
    if output is not None:
        check_dataset(output, force)
        checkpoint = checkpoint or output.with_name(f"{output.name}.checkpoint")
    if checkpoint is None:
        return None
    if checkpoint.absolute() in [other.absolute() for other in (output, *others) if other is not None]:
        raise ProblemError(
            "checkpoint",
            "--checkpoint names a file of the result: name another, since the checkpoint is removed at the end.",
        )
    return kind.check(checkpoint)


def varied(options: Sequence[str], changes: Sequence[str], omega: object) -> dict[str, tuple[Any, ...]]:
    """The fields that a sweep varies, with their values, from FIELD=START:STOP:COUNT[:log] and FIELD=VALUE,VALUE."""
    given = {toml.parse_setting(change)[0]: "--set" for change in changes}
    if omega is not None:
        given["teacher.omega"] = "--omega"
    found: dict[str, tuple[Any, ...]] = {}
    for option in options:
        name, equals, text = (part.strip() for part in option.partition("="))
        if not (equals and name):
            raise ProblemError(
                "vary", f"--vary must read FIELD=VALUES, such as tokens.sigma=0.3:0.7:5, not {option!r}."
            )
        if name in ("alpha", "branch"):
            raise ProblemError(name, f"{name} is not a field of the problem: use --{name}.")
        if name in given:
            where = "by --vary" if name in found else f"by {given[name]} and by --vary"
            raise ProblemError(name, f"{name} is given twice {where}: leave one out.")
        given[name] = "--vary"
        found[name] = _values(name, text)
    return found


def _values(name: str, text: str) -> tuple[Any, ...]:
    """The values that an option gives a field, each as --set reads it."""
    if not text:
        raise ProblemError(name, f"{name} has no values: write {name}=START:STOP:COUNT or values with commas between.")
    if text.startswith(("[", "{")):
        raise ProblemError(
            name,
            f"{name} cannot be swept over lists or tables: only numbers, words and truth values can, with commas"
            " between them and without brackets.",
        )
    if ":" in text and NUMBERS.fits(text):
        try:
            numbers = NUMBERS.convert(text, None, None)
        except click.BadParameter as error:
            raise ProblemError(name, f"{name} cannot be swept: {error.message}") from None
        whole = [round(number) for number in numbers]
        near = all(abs(number - n) <= 1e-9 * abs(n) for number, n in zip(numbers, whole, strict=True))
        return tuple(whole) if near else numbers  # a field of whole numbers takes no others
    if text.count(":") in (2, 3) and {'"', "'", ","}.isdisjoint(text):
        raise ProblemError(name, f"{name}={text} is no START:STOP:COUNT[:log]: START, STOP and COUNT must be numbers.")
    parts = text.split(",")
    if not {'"', "'"}.isdisjoint(text):  # a comma in quotation marks is part of a value
        lexer = shlex.shlex(text, posix=False)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
        try:
            parts = list(lexer)
        except ValueError:
            raise ProblemError(name, f"{name} has a quotation mark that is not closed: {text}.") from None
    return tuple(toml.parse_setting(f"{name}={part}")[1] for part in parts)
