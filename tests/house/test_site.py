"""The site names everything that is public; what it says is executed when it is built (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

import attnphase as ap
from attnphase import figures, reference, testing, tracking
from attnphase.cli.commands import main

DOCS = Path(__file__).parents[2] / "docs"


def test_no_public_name_is_missing_in_the_reference():
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"auto(?:function|class|exception):: attnphase\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(set(ap.__all__) - {"__version__"})
    whole = re.findall(r"automodule:: attnphase\.(\w+)$", text, re.MULTILINE)
    assert sorted(whole) == sorted(
        module.__name__.rpartition(".")[2] for module in (figures, reference, testing, tracking)
    )


def test_the_gallery_has_a_dozen_figures_with_a_title():
    scripts = sorted((DOCS / "gallery").glob("plot_*.py"))
    assert len(scripts) >= 12
    for script in scripts:
        assert re.match(r'"""\n(.+)\n=+\n\n', script.read_text(encoding="utf-8")), script.name


def test_every_page_stands_in_the_contents():
    named = set()
    for page in DOCS.rglob("*.md"):
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.splitlines():
                if line and not line.startswith(":"):
                    named.add((page.parent / line.strip()).resolve().relative_to(DOCS).as_posix())
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    built = {page for page in pages if page.startswith(("_build/", "gallery_pages/", "reference/equations/"))}
    assert pages - built - named == {"index"}


def test_every_command_has_a_line_of_help():
    assert all(command.help for command in main.commands.values())


def test_links_between_pages_lead_somewhere():
    """Also those of pages that are no part of the site, of which Sphinx knows nothing."""
    for page in (*DOCS.parent.glob("*.md"), *DOCS.glob("*.md"), *(DOCS / "tutorials").glob("*.md")):
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
