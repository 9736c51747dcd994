"""Docstrings name the numbered equations that they compute; the site links them, and the equations back to the code."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from derivations.printing.sgd_flow import flow_document
from derivations.printing.stability import stability_document

MADE = {"dynamics": flow_document, "stability": stability_document}  # when the site is built
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def links() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_citations", DOCS / "citations.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["docs_citations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_equation_has_its_code_and_no_number_dangles(links):
    for page, document in links.PAGES.items():
        file = DOCS / f"{document}.md"
        text = MADE[page]().markdown() if page in MADE else file.read_text(encoding="utf-8")
        named = {tag for one in links.citations() if one.page == page for tag in one.tags}
        assert named == set(links.formulas_of(text)), page
    assert {one.page for one in links.citations()} == set(links.PAGES)


def test_citations_are_read_as_they_stand(links):
    """A range, single numbers and a second page, over the end of a line; sentences about other equations are none."""
    found = links.CITATION.findall(
        "Equations (S1)-(S10),\n    (F1) of the\n1RSB page. Equation (O1) of the dynamics page."
    )
    assert [(tuple(links.tags_of(tags)), page) for tags, page in found] == [
        ((*(f"S{i}" for i in range(1, 11)), "F1"), "1RSB"),
        (("O1",), "dynamics"),
    ]
    assert not links.CITATION.findall("Equation (7), and (S1) of the paper's page")


def test_code_is_named_as_users_find_it(links):
    names = {one.name: one.kind for one in links.citations()}
    assert names["attnphase.solve"] == "function"
    assert names["attnphase.state_evolution.channel.Channel.evaluate"] == "method"
    page = links.code_page()
    assert "auto" + "method:: attnphase.state_evolution.channel.Channel.evaluate\n" in page
    assert "attnphase.solve\n" not in page  # its docstring stands on the page of the interface
