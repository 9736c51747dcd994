"""Atoms of a spectrum, and of the law of the teacher's entries, as files of comma-separated values."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.files.reading import LARGEST_TEXT, open_input
from attnphase.files.writing import write_file
from attnphase.problem.values import MAX_ATOMS

__all__ = ["read_csv", "read_prior", "write_atoms"]

LONGEST_LINE = 1 << 17  # characters of a CSV file's line
_COLUMNS = {"variance": "variances", "position": "positions", "mean": "means", "teacher": "teacher"}


def read_csv(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read atoms of a spectrum from a file of comma-separated values.

    Parameters
    ----------
    path
        Its header is ``weight,variance_0,...``, then, as far as the atoms have them, ``position_0,...``,
        ``mean_0,...`` and ``teacher_0,...``; one atom in each line.

    Returns
    -------
    list of dict
        As `Spectrum.atoms` has them.

    Raises
    ------
    ProblemError
        The file cannot be read, or the header or a line is not as above.
    """
    file, header, lines = _read("tokens.spectrum", path)
    places = _header_places(file, header)
    return [
        {"weight": numbers[places["weight"][0]]}
        | {key: [numbers[index] for index in indices] for key, indices in places.items() if key != "weight"}
        for numbers in _numbers("tokens.spectrum", file, header, lines)
    ]


def read_prior(path: str | PathLike[str]) -> tuple[list[float], list[float]]:
    """Read values of an entry of the teacher's weights, and their probabilities, from a file.

    Parameters
    ----------
    path
        Of comma-separated values.  Its header is ``value,probability``; one value in each line.

    Raises
    ------
    ProblemError
        The file cannot be read, or the header or a line is not as above.
    """
    field = "teacher.prior_values"
    file, header, lines = _read(field, path)
    if sorted(header) != ["probability", "value"]:
        raise ProblemError(field, f"{field}: the header of {file} must be value,probability.")
    rows = _numbers(field, file, header, lines)
    values, probabilities = ([row[header.index(name)] for row in rows] for name in ("value", "probability"))
    return values, probabilities


def _read(field: str, path: str | PathLike[str]) -> tuple[str, list[str], list[list[str]]]:
    """The file's name, its header and its lines."""
    file = str(arguments.path(field, path))

    def refuse(sentence: str) -> ProblemError:
        return ProblemError(field, f"{field}: {file}: {sentence}")

    try:
        with io.TextIOWrapper(
            open_input(path, "CSV file", LARGEST_TEXT, refuse), encoding="utf-8-sig", newline=""
        ) as stream:
            lines = [line for line in csv.reader(_short_lines(stream, refuse)) if line]
    except ProblemError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise refuse(f"the file cannot be read: {reason}.") from None
    return file, [name.strip() for name in lines[0]] if lines else [], lines[1:]


def _numbers(field: str, file: str, header: list[str], lines: list[list[str]]) -> list[list[float]]:
    """The lines as numbers, one for each column of the header."""
    rows = []
    for row, line in enumerate(lines):
        if len(line) != len(header):
            raise ProblemError(
                field, f"{field}: atom {row} of {file} has {len(line)} numbers, but the header has {len(header)}."
            )
        try:
            rows.append([float(text) for text in line])
        except ValueError as error:
            raise ProblemError(field, f"{field}: atom {row} of {file} has a wrong entry: {error}.") from None
    return rows


def _short_lines(stream: io.TextIOWrapper, refuse: Callable[[str], ProblemError]) -> Iterator[str]:
    """The lines of a file, as long as they may be those of a spectrum."""
    for count, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), "")):
        if len(line) > LONGEST_LINE:
            raise refuse(f"line {count + 1} has more than {LONGEST_LINE} characters, and is not that of an atom.")
        if count > 2 * MAX_ATOMS:  # as many may be empty
            raise refuse(f"the file has more lines than the {MAX_ATOMS} atoms that a spectrum may have.")
        yield line


def _header_places(file: str, header: list[str]) -> dict[str, list[int]]:
    """Find the columns of each key; those of a list must be numbered from 0."""
    found: dict[str, dict[int, int]] = {}
    for index, name in enumerate(header):
        stem, _, number = name.rpartition("_")
        is_entry = stem in _COLUMNS and number.isdecimal() and len(number) < 10
        key, entry = (_COLUMNS[stem], int(number)) if is_entry else (name, 0)
        if (not is_entry and name != "weight") or entry in found.setdefault(key, {}):
            raise ProblemError(
                "tokens.spectrum",
                f'tokens.spectrum: the header of {file} has the column "{name[:40]}" where only weight, variance_0,'
                " position_0, mean_0, teacher_0 and the like with other numbers may stand, each once.",
            )
        found[key][entry] = index
    for key, entries in found.items():
        if set(entries) != set(range(len(entries))):
            raise ProblemError(
                "tokens.spectrum", f"tokens.spectrum: the columns of {key} in {file} must be numbered from 0 on."
            )
    for key, name in (("weight", "weight"), ("variances", "variance_0")):
        if key not in found:
            raise ProblemError("tokens.spectrum", f"tokens.spectrum: the header of {file} must have {name}.")
    return {key: [entries[entry] for entry in range(len(entries))] for key, entries in found.items()}


def write_atoms(path: Path, atoms: Sequence[Mapping[str, Any]]) -> None:
    """Write atoms, all with the same keys, to a file that `read_csv` reads; an existing one is replaced.

    Raises
    ------
    DatasetError
        The file cannot be written.
    """
    singular = {plural: name for name, plural in _COLUMNS.items() if plural in atoms[0]}
    header = ["weight"]
    for plural, name in singular.items():
        header += [f"{name}_{index}" for index in range(len(atoms[0][plural]))]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    for atom in atoms:
        numbers = itertools.chain([atom["weight"]], *(atom[plural] for plural in singular))
        writer.writerow([repr(number) for number in numbers])
    write_file(path, text.getvalue().encode())
