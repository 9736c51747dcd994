"""Links in the site between numbered equations and the docstrings that name them, both ways."""

from __future__ import annotations

import re
from pathlib import Path

from citations import CITATION, PAGES, citations, formulas_of
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

__all__ = ["connect"]


def _anchor(document: str, tag: str) -> str:
    return f"equation-{document.rpartition('/')[2]}-{tag}".lower().replace("_", "-")


def _link_docstring(app: Sphinx, what: str, name: str, item: object, options: object, lines: list[str]) -> None:
    """Link the equations that a docstring names."""
    del app, what, name, item, options
    lines[:] = CITATION.sub(_linked, "\n".join(lines)).split("\n")


def _linked(match: re.Match[str]) -> str:
    document = PAGES[match[2]]
    head, tail = match[0].split(match[1], 1)
    tags = re.sub(r"\(([A-Z]\d+)\)", lambda m: f":ref:`({m[1]}) <{_anchor(document, m[1])}>`", match[1])
    return head + tags + tail


def _credit_equations(app: Sphinx, doctree: nodes.document) -> None:
    """Give every numbered equation a place to link to, and name the code that computes it."""
    pages = {document: page for page, document in PAGES.items()}
    document = app.env.docname
    if document not in pages and not document.startswith("reference/equations/"):
        return
    page = pages.get(document, "replica-symmetric")
    here, general = (
        formulas_of((Path(app.srcdir) / f"{name}.md").read_text(encoding="utf-8")) for name in (document, PAGES[page])
    )
    cited = [one for one in citations() if one.page == page]
    labels = app.env.domains.standard_domain.anonlabels
    for block in list(doctree.findall(nodes.math_block)):
        tagged = re.search(r"\\tag\{(\w+)\}", block.astext())
        if tagged is None:
            continue
        tag, anchor = tagged[1], _anchor(document, tagged[1])
        labels[anchor] = (document, anchor)
        names = [one.name for one in cited if tag in one.tags and here.get(tag) == general.get(tag)]
        parent, at = block.parent, block.parent.index(block)
        parent.insert(at + 1, [_credit(names)] if names else [])
        parent.insert(at, nodes.target("", "", ids=[anchor]))


def _credit(names: list[str]) -> nodes.paragraph:
    paragraph = nodes.paragraph("", "", nodes.Text("In the code: "), classes=["equation-code"])
    for at, name in enumerate(names):
        link = addnodes.pending_xref("", refdomain="py", reftype="obj", reftarget=name, refexplicit=True, refwarn=True)
        # of a method with its class
        link += nodes.literal("", re.sub(r"^([a-z_]+\.)+", "", name))
        paragraph += [nodes.Text(", ")] * bool(at) + [link]
    return paragraph


def connect(app: Sphinx) -> None:
    """Have a site make the links."""
    app.connect("autodoc-process-docstring", _link_docstring)
    app.connect("doctree-read", _credit_equations, priority=400)
