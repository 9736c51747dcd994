"""The site names everything that is public; what it says is executed when it is built (`make docs`)."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import attnphase as ap
from attnphase import figures, functions, interface, reference, testing, tracking
from attnphase.cli.commands import main

DOCS = Path(__file__).parents[2] / "docs"


def test_no_public_name_is_missing_in_the_reference():
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"auto(?:function|class|exception):: attnphase\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(name for name in ap.__all__ if callable(getattr(ap, name)))
    errors = re.findall(r"autoexception:: attnphase\.errors\.(\w+)$", text, re.MULTILINE)
    assert sorted(errors) == sorted(ap.errors.__all__)
    whole = re.findall(r"automodule:: attnphase\.(\w+)$", text, re.MULTILINE)
    assert sorted(whole) == sorted(
        module.__name__.rpartition(".")[2] for module in (figures, functions, reference, testing, tracking, interface)
    )


PUBLIC = [name for name in ap.__all__ if inspect.isfunction(getattr(ap, name))]
PUBLIC += [
    f"Problem.{name}" for name in vars(ap.Problem) if callable(getattr(ap.Problem, name)) and not name.startswith("_")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_parameter_of_the_reference_has_a_type(name):
    """The site links types from the docstrings, which it shows instead of annotations."""
    item = getattr(ap.Problem, name.partition(".")[2]) if "." in name else getattr(ap, name)
    described = re.search(r"(?ms)^Parameters\n-+\n(.*?)(?:\n\n|\Z)", inspect.getdoc(item) or "")
    named = re.findall(r"(?m)^\S.*$", described[1]) if described else []
    assert all(re.match(r"[\w*, ]+ : \S", line) for line in named), named
    taken = [one for one in inspect.signature(item).parameters if one not in ("self", "cls")]
    told = {one.strip(" *") for line in named for one in line.partition(" : ")[0].split(",")}
    assert told == set(taken)


def test_links_that_lead_nowhere_are_found(tmp_path):
    spec = importlib.util.spec_from_file_location("inner_links", DOCS / "inner_links.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.html").write_text(
        '<h1 id="top">a</h1><a href="../two.html?x=1#there">b</a><a href="#top">c</a>'
    )
    (tmp_path / "two.html").write_text(
        '<p id="there">d</p><a href="a/one.html#else">e</a><img src="no%20picture.png"><a href="https://a.b/c#d">f</a>'
    )
    assert list(module.broken(tmp_path)) == [("two.html", "a/one.html#else"), ("two.html", "no%20picture.png")]


def test_the_gallery_has_a_dozen_figures_with_a_title():
    scripts = sorted((DOCS / "gallery").glob("plot_*.py"))
    assert len(scripts) >= 12
    shown = re.findall(r"\(Figures? ([\d and]+)\)\n=", "".join(one.read_text(encoding="utf-8") for one in scripts))
    assert {int(number) for one in shown for number in re.findall(r"\d", one)} == set(range(2, 10))  # of the paper
    for script in scripts:
        assert re.match(r'"""\n(.+)\n=+\n\n', script.read_text(encoding="utf-8")), script.name


def test_every_page_stands_in_the_contents():
    named = set()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    target = re.sub(r"^.*<(.*)>$", r"\1", line.strip())  # behind a title of its own
                    named.add((page.parent / target).resolve().relative_to(DOCS).as_posix())
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    built = {page for page in pages if page.startswith(("_build/", "gallery_pages/", "reference/equations/"))}
    assert pages - built - named == {"index"}


def test_every_command_has_a_line_of_help():
    assert all(command.help for command in main.commands.values())


def test_links_between_pages_lead_somewhere():
    """Also those of pages that are no part of the site, of which Sphinx knows nothing."""
    for page in (
        *DOCS.parent.glob("*.md"),
        *DOCS.glob("*.md"),
        *(DOCS / "tutorials").glob("*.md"),
        *(DOCS / "literature").glob("*.md"),
    ):
        text = re.sub(r"(?ms)^(```+).*?^\1$", "", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]*)\)", text):
            name, _, anchor = target.partition("#")
            if name.startswith("gallery_pages/"):  # made when the site is built
                name = f"gallery/{Path(name).stem}.py"
            file = (page.parent / name).resolve() if name else page
            assert file.exists(), f"{page.name}: {target}"
            if anchor:
                heads = re.findall(r"(?m)^#+ (.*)$", file.read_text(encoding="utf-8"))
                slugs = [re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads]
                assert anchor in slugs, f"{page.name}: {target}"
