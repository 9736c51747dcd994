"""Pages are spelt right, lead somewhere, show what is run, and cite equations that are there.

Not public: two pages of equations, which are made when the site is built.
"""

import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from command import run
from spellchecker import SpellChecker

import attnphase as ap
from attnphase.paper.catalogue import planned

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8")
    for page in (*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")))
    if not {"_build", "gallery_pages", "equations"} & set(page.parts)
}
TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
NO_PROSE = (
    r"(?s)\A---\n.*?\n---\n", r"(?ms)^(```|~~~).*?^\1", r"(?s)\$\$.*?\$\$", r"(?m)^    .*$", r"`[^`]*`", r"\$[^$]*\$",
    r"\]\([^)]*\)", r"https?://\S+", r"<[^>]*>",
)  # fmt: skip


def tool(name):
    """A program of the site."""
    spec: Any = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = sys.modules[f"docs_{name}"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def execution():
    return tool("execution")


def words_of(text):
    for pattern in NO_PROSE:
        text = re.sub(pattern, " ", text)
    found = re.findall(r"(?<![\w.\-_/])[A-Za-z][a-z']+(?![\w_/])", text)
    return {re.sub(r"'s?$", "", word.lower()) for word in found if len(word) > 2}


def test_pages_are_spelt_right_and_listed_words_are_used_and_in_order():
    checker, listed = SpellChecker(distance=1), (DOCS / "words.txt").read_text(encoding="utf-8").split()
    checker.word_frequency.load_words(listed)
    assert {name: wrong for name, text in PAGES.items() if (wrong := checker.unknown(words_of(text)))} == {}
    assert checker.unknown(words_of("The replcion of a regulariser, `replcion`, $replcion$")) == {"replcion"}
    assert listed == sorted(listed)
    assert set(listed) <= set().union(*map(words_of, PAGES.values()))


@pytest.mark.parametrize("name", [name for name in PAGES if name not in {"docs/problem_file.md", "CHANGELOG.md"}])
def test_no_block_of_a_page_is_left_out(name, execution):
    before = ""
    for block in execution.blocks_of(PAGES[name]):
        language, place = block.language, f"{name}:{block.line}"
        if language == "{code-cell}":
            assert PAGES[name].startswith("---\nfile_format: mystnb\n"), place
        elif language == "toml":
            ap.Problem.from_toml(block.text)
        elif language == "console":
            for command in execution.commands_of(block):
                execution.check_options(command.words)
        elif called := re.findall(r'(?m)(?:^|")attnphase (.*?)"?$', block.text):  # by a scheduler of jobs
            for line in called:
                execution.check_options(shlex.split(re.sub(r"\$\w+|\{[\w.]+\}", "2", line)))
        elif (language == "python") == (name in execution.TESTED) and not language.startswith("{"):
            assert (language, before) == ("text", "python") or Path(name).name in TESTS, place  # README.md: bibtex
        before = language
    for line in re.findall(r"(?m)^    attnphase ((?:.*\\\n)*.*)$", PAGES[name]):  # shown, and not run
        execution.check_options(shlex.split(line.replace("\\\n", " ")))


def test_every_equation_has_its_code_and_no_number_dangles():
    from derivations.printing import sgd_flow, stability

    made = {"dynamics": sgd_flow.flow_document, "stability": stability.stability_document}
    links = tool("citations")
    for page, document in links.PAGES.items():
        text = made[page]().markdown() if page in made else PAGES[f"docs/{document}.md"]
        named = {tag for one in links.citations() if one.page == page for tag in one.tags}
        assert named == set(links.formulas_of(text)), page


def test_links_between_pages_lead_somewhere_and_every_page_stands_in_the_contents():
    named = set()
    for name, text in PAGES.items():
        page = ROOT / name
        for line in "\n".join(re.findall(r"(?s)```\{toctree\}\n(.*?)```", text)).splitlines():
            if line and not line.startswith(":"):
                named.add((page.parent / re.sub(r"^.*<(.*)>$", r"\1", line.strip())).resolve())
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]*)\)", re.sub(r"(?ms)^(```+).*?^\1$", "", text)):
            where, _, anchor = target.partition("#")
            if where.startswith("gallery_pages/"):  # made when the site is built
                where = f"gallery/{Path(where).stem}.py"
            file = (page.parent / where).resolve() if where else page
            if name.startswith("docs/reference/"):  # to pages that are made
                continue
            assert file.exists(), f"{name}: {target}"
            heads = re.findall(r"(?m)^#+ (.*)$", file.read_text(encoding="utf-8")) if anchor else []
            slugs = [re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads]
            assert not anchor or anchor in slugs, f"{name}: {target}"
    made = {(ROOT / name).with_suffix("") for name in PAGES if name.startswith("docs/")}
    assert made - named == {DOCS / "index"}


def test_pages_have_what_the_code_has():
    updated = runpy.run_path(str(DOCS / "update_schema.py"))["updated"]
    assert PAGES["docs/schema.md"] == updated(PAGES["docs/schema.md"]), "run python docs/update_schema.py"
    (block,) = re.findall(r"(?s)```toml\n(\[tokens\].*?\[positions\].*?)```", PAGES["docs/problem.md"])
    assert block == run("init").stdout
    (eprint,) = re.findall(r"eprint = \{(.*?)\}", PAGES["README.md"])
    assert eprint in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for name, row in re.findall(r"(?m)^\| `([\w-]+)` \|(.* seeds.*)$", PAGES["docs/experiments.md"]):
        assert re.findall(r"(\d+) seed", row) == [str(planned(name, size).size.seeds) for size in ("quick", "full")]
