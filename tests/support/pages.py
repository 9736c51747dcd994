"""Problems and numbers that stand on pages of docs/."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["cells", "problems"]


def _text(page: str) -> str:
    return (Path(__file__).parents[2] / page).read_text(encoding="utf-8")


def problems(page: str) -> list[str]:
    """Its blocks of TOML."""
    return re.findall(r"(?ms)^```toml\n(.*?)^```", _text(page))


def cells(page: str, table: int) -> list[list[tuple[float, float]]]:
    """Numbers of a table of four columns with their errors, row by row, those without an error left out."""
    rows = _text(page).split("| --- | --- | --- | --- |\n")[table].split("\n\n")[0].splitlines()
    found = [re.findall(r"([\d.]+)\((\d+)\)", row) for row in rows]
    return [[(float(x), int(last) * 10.0 ** -len(x.partition(".")[2])) for x, last in row] for row in found]
