"""A problem from a TOML file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.files.reading import LARGEST_TEXT, read_input
from attnphase.problem.problem import Problem
from attnphase.problem.toml import parse_toml

__all__ = ["load_problem"]


def load_problem(path: str | PathLike[str]) -> Problem:
    """Read a problem from a TOML file.

    Parameters
    ----------
    path : path-like
        The file, encoded in UTF-8; missing fields have the paper's values. If ``tokens.spectrum`` or
        ``teacher.prior_values`` names a file, its path is relative to the folder of the problem file.

    Returns
    -------
    Problem
        The problem; all its values are checked.

    Raises
    ------
    ProblemError
        The file cannot be read, is not TOML (the message gives the line), or has an unknown key or a
        wrong value. Every message begins with the name of the file.
    """
    path = arguments.path("path", path)
    file = str(path)
    content = read_input(path, "TOML file", LARGEST_TEXT, lambda sentence: ProblemError(file, f"{file}: {sentence}"))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(
            file,
            f"{file}: this is not text in UTF-8 (byte {error.start}): give a problem file, saved in that encoding.",
        ) from None
    try:
        data = parse_toml(text)
        for section, key in (("tokens", "spectrum"), ("teacher", "prior_values")):
            table = data.get(section)
            if isinstance(table, dict) and isinstance(table.get(key), str):
                table[key] = str(Path(path).parent / table[key])
        return Problem.from_dict(data)
    except ProblemError as error:
        field = file if error.field == "problem" else error.field
        raise ProblemError(field, f"{file}: {error}") from None
