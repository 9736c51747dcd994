"""Which code computes which numbered equation, by the sentences that docstrings have.

``Equations (S1)-(S4), (F1) of the replica-symmetric page.`` is all that anybody writes: the site links it to the
equations and these back to the code (`equation_links`), and a page of the reference has all such docstrings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import attnphase as ap

__all__ = ["CITATION", "PAGES", "Citation", "citations", "code_page", "formulas_of", "tags_of"]

PAGES = {
    "replica-symmetric": "equations",
    "1RSB": "one_rsb",
    "Bayes-optimal": "bayes_optimal",
    "dynamics": "reference/equations/flow",
    "stability": "reference/equations/stability",
}
"""Pages of equations as docstrings name them, and their documents in the site."""

_ROOT = Path(__file__).parents[1]
CITATION = re.compile(r"Equations?\s+((?:\([A-Z]\d+\)[-,\s]*)+)of\s+the\s+(\S+)\s+page")
"""A sentence that names equations: their numbers, and the page."""
_RANGE = re.compile(r"\(([A-Z])(\d+)\)(?:-\(\1(\d+)\))?")


@dataclass(frozen=True)
class Citation:
    """An object whose docstring names equations: its name, its kind for autodoc, the page and the tags."""

    name: str
    kind: str
    page: str
    tags: tuple[str, ...]


@cache
def citations() -> list[Citation]:
    """All of them, in the order of the packages."""
    files = [file for package in ("derivations", "attnphase") for file in sorted((_ROOT / package).rglob("*.py"))]
    found: list[Citation] = []
    for file in files:
        module = ".".join(file.relative_to(_ROOT).with_suffix("").parts)
        found += _cited_in(ast.parse(file.read_text(encoding="utf-8")), module, "function")
    return found


def _cited_in(tree: ast.Module | ast.ClassDef, prefix: str, function: str) -> Iterator[Citation]:
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        name, kind = f"{prefix}.{node.name}", "class" if isinstance(node, ast.ClassDef) else function
        for match in CITATION.finditer(ast.get_docstring(node) or ""):
            yield Citation(_public().get(name, name), kind, match[2], tuple(tags_of(match[1])))
        if isinstance(node, ast.ClassDef):
            yield from _cited_in(node, name, "method")


@cache
def _public() -> dict[str, str]:
    """Names under which the package itself has what a module defines: these stand on the page of the interface."""
    named = ((short, getattr(ap, short)) for short in ap.__all__)
    return {f"{item.__module__}.{item.__qualname__}": f"attnphase.{short}" for short, item in named if callable(item)}


def tags_of(text: str) -> Iterator[str]:
    """The tags in a list of numbers and ranges."""
    for letter, first, last in _RANGE.findall(text):
        yield from (f"{letter}{number}" for number in range(int(first), int(last or first) + 1))


def formulas_of(markdown: str) -> dict[str, str]:
    """What stands on the left of every numbered equation of a page."""
    formulas = re.findall(r"\$\$\n(.*?) \\tag\{(\w+)\}\n\$\$", markdown, re.DOTALL)
    return {
        tag: body.removeprefix("\\begin{aligned}").partition("=")[0].replace("&", "").strip() for body, tag in formulas
    }


def code_page() -> str:
    """The page of all docstrings that name equations."""
    seen: set[str] = set()
    parts = [
        "# The code of the equations",
        "What computes which numbered equation, and what derives it. These functions are not the "
        "[public interface](api.md) and may change with any version.",
    ]
    for page, document in PAGES.items():
        parts += [f"## The {page} page", f"[Its equations](/{document}.md)."]
        for one in citations():
            if one.page == page and one.name not in {*seen, *_public().values()}:
                seen.add(one.name)
                parts.append(f"```{{eval-rst}}\n.. auto{one.kind}:: {one.name}\n```")
    return "\n\n".join(parts) + "\n"
