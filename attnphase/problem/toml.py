"""TOML text, and a command line's ``field=value``."""

from __future__ import annotations

import hashlib
import re
import tomllib
from typing import Any

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.problem.messages import shown
from attnphase.problem.values import (
    MAX_ATOMS,
    MAX_COLUMNS,
    MAX_LENGTH,
    MAX_SITES,
)

__all__ = ["digest_of", "parse_setting", "parse_toml"]

# what a TOML may hold, so that a file which no problem has is not parsed for minutes
_MOST_VALUES = 500_000  # a law's table and the clusters' means at their largest come to less
_MOST_DOTS = 2_000  # beyond one for each value
_VALUES_OF_ATOM = 2 * MAX_SITES + MAX_LENGTH + MAX_COLUMNS


def digest_of(text: str) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def parse_toml(text: str) -> dict[str, Any]:
    """Parse the TOML of a problem.

    Raises
    ------
    ProblemError
        It is not TOML, or holds more than any problem does.
    """
    # a megabyte takes a second to be parsed, so what is no problem is told by counting, comments included
    atoms = text.count("weight")
    if atoms > MAX_ATOMS + MAX_LENGTH:
        raise ProblemError(
            "tokens.spectrum", f"tokens.spectrum must have at most {MAX_ATOMS} atoms, but about {atoms} are given."
        )
    values = sum(map(text.count, ",=["))
    if values > _MOST_VALUES + _VALUES_OF_ATOM * atoms:
        raise ProblemError(
            "problem", f"The TOML has about {values} values, more than any problem needs: check the file."
        )
    try:
        if text.count(".") > values + _MOST_DOTS:  # names in names without end take the parser hours
            raise RecursionError
        return tomllib.loads(text)
    except RecursionError:
        raise ProblemError("problem", "The TOML is nested too deeply to be a problem.") from None
    except ValueError as error:
        hint = "; attnphase.load_problem reads a file" if text.strip().endswith(".toml") else ""
        raise ProblemError("problem", f"This is not valid TOML: {error}{hint}.") from None


def parse_setting(text: str) -> tuple[str, Any]:
    """Split a command line's ``field=value`` into the field and its value.

    Parameters
    ----------
    text
        Such as ``teacher.omega=0.3``. The value is written as in TOML; a single word, and
        ``module:function``, need no quotes.

    Returns
    -------
    field
        The name before the equals sign, to be checked by `Problem.with_fields`.
    value
        The value as Python has it.

    Raises
    ------
    ProblemError
        There is no equals sign, or the value is not TOML.
    """
    arguments.text("text", text, "a setting field=value, such as teacher.omega=0.3")
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals or not name:
        raise ProblemError(
            name,
            f"A setting must read field=value, such as teacher.omega=0.3, but it is {shown(text)}.",
        )
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        parsed = {}
    if list(parsed) == ["value"]:
        return name, parsed["value"]
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*|[A-Za-z_][\w.]*:[A-Za-z_]\w*", raw):
        return name, raw
    if re.fullmatch(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?", raw):  # .3 and 3. are numbers to everyone but TOML
        return name, float(raw)
    raise ProblemError(
        name,
        f"{name} cannot be read from {shown(raw)}: write the value as in TOML, a formula in quotation marks that the"
        f" shell leaves, such as '{name}=\"...\"'.",
    )
