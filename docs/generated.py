"""Pages that are made of the program itself when the site is built, and the addresses of other libraries' types."""

from __future__ import annotations

import zlib
from pathlib import Path

from citations import code_page

import attnphase as ap
from attnphase.problem.template import template
from derivations.printing.sgd_flow import flow_document
from derivations.printing.stability import stability_document

__all__ = ["MODELS", "TYPES", "write_all"]

MODELS = {
    "tied": ("Tied weights, rank one: the paper's model", {}),
    "untied": ("Untied weights", {"student.tied": False}),
    "rank-two": ("Student and teacher of rank two", {"student.rank": 2, "teacher.rank": 2}),
    "three-tokens": ("Three tokens, a causal mask", {"tokens.length": 3, "student.causal": True}),
    "mixture": (
        "Tokens of a Gaussian mixture",
        {
            "tokens.kind": "mixture",
            "tokens.sigma": None,
            "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
        },
    ),
    "lasso": ("A lasso on the weights", {"regularizer.kind": "lasso"}),
    "values": ("A value matrix", {"loss.kind": "values", "loss.width": 1}),
    "logistic": (
        "One token, logistic loss",
        {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None, "loss.kind": "logistic"},
    ),
}
"""Models whose equations the site has: a title, and what differs from the paper's problem."""

# what docstrings name of other libraries, and where these describe it
_ELSEWHERE = {
    "python": (
        "https://docs.python.org/3/",
        {
            **{name: f"library/functions.html#{name}" for name in ("bool", "float", "int", "callable")},
            **{name: f"library/stdtypes.html#{name}" for name in ("str", "dict", "list", "tuple")},
            **{name: f"glossary.html#term-{name}" for name in ("sequence", "mapping", "iterable", "path-like-object")},
            "None": "library/constants.html#None",
            "pathlib.Path": "library/pathlib.html#pathlib.Path",
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {"numpy.ndarray": "reference/generated/numpy.ndarray.html#numpy.ndarray"},
    ),
    "xarray": (
        "https://docs.xarray.dev/en/stable/",
        {f"xarray.{name}": f"generated/xarray.{name}.html#xarray.{name}" for name in ("Dataset", "DataArray")},
    ),
    "sympy": ("https://docs.sympy.org/latest/", {"sympy.Expr": "modules/core.html#sympy.core.expr.Expr"}),
    "matplotlib": (
        "https://matplotlib.org/stable/",
        {"matplotlib.figure.Figure": "api/figure_api.html#matplotlib.figure.Figure"},
    ),
}
_RETURNED = {
    "Comparison": "checks.comparison",
    "Derivation": "pages.page",
    "ExplorePage": "explorer.page",
    "Report": "checks.report",
}
TYPES = {name: f":py:class:`{name}`" for _, names in _ELSEWHERE.values() for name in names}
"""How a docstring's type is linked, by its name there."""
TYPES |= {
    "array": ":py:class:`array <numpy.ndarray>`",
    "path-like": ":py:class:`path-like <path-like-object>`",
    "Path": ":py:class:`Path <pathlib.Path>`",
    **{name: f":py:obj:`{name} <attnphase.{name}>`" for name in ap.__all__ if name[0].isupper()},
    **{name: f":py:obj:`{name} <attnphase.{room}.{name}>`" for name, room in _RETURNED.items()},
}


def write_all(docs: Path) -> dict[str, tuple[str, str]]:
    """Write what is generated below `docs`; returns where types of other libraries are described."""
    _write(docs / "reference" / "problem_file.md", _problem_file())
    for name, (title, changes) in MODELS.items():
        markdown = ap.derive(ap.Problem().with_fields(changes)).markdown
        heading, _, rest = markdown.partition("\n")
        assert heading.startswith("# ")
        _write(docs / "reference" / "equations" / f"{name}.md", f"# {title}\n{rest}")
    for name, document in {"flow": flow_document(), "stability": stability_document()}.items():
        _write(docs / "reference" / "equations" / f"{name}.md", document.markdown())
    _write(docs / "reference" / "code.md", code_page())
    return {name: (home, str(_inventory(docs, name, names))) for name, (home, names) in _ELSEWHERE.items()}


def _problem_file() -> str:
    return f"""# The problem file

Every field with its default, as `attnphase init` writes it; what is left out is the paper's. The comment behind a field
says what it may be. `attnphase init --help` lists what else it writes: mixtures, untied weights, other losses and
regularisers.

```toml
{template(ap.Problem())}
```
"""


def _inventory(docs: Path, name: str, names: dict[str, str]) -> Path:
    """The few names that are linked, in the format of Sphinx's inventories, so that a build needs no network."""
    lines = "".join(f"{item} py:class 1 {page} -\n" for item, page in names.items())
    head = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n"
    head += "# The remainder of this file is compressed using zlib.\n"
    path = docs / "_build" / "inventories" / f"{name}.inv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress(lines.encode()))
    return path


def _write(path: Path, text: str) -> None:
    """Write a page, unless it is there already: an old one need not be built again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
