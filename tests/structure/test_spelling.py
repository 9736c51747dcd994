"""Pages are spelt right; words that no dictionary has stand in ``docs/words.txt``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from spellchecker import SpellChecker

ROOT = Path(__file__).parents[2]
WORDS = ROOT / "docs" / "words.txt"
PAGES = sorted(
    page
    for page in (*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"))
    if not {"_build", "gallery_pages"} & set(page.parts) and page.parent.name != "equations"
)
NO_PROSE = (
    r"(?s)\A---\n.*?\n---\n", r"(?ms)^(```|~~~).*?^\1", r"(?s)\$\$.*?\$\$", r"(?m)^    .*$", r"`[^`]*`", r"\$[^$]*\$",
    r"\]\([^)]*\)", r"https?://\S+", r"<[^>]*>",
)  # fmt: skip


@pytest.fixture(scope="module")
def dictionary() -> SpellChecker:
    checker = SpellChecker(distance=1)
    checker.word_frequency.load_words(WORDS.read_text(encoding="utf-8").split())
    return checker


def words_of(text: str) -> set[str]:
    for pattern in NO_PROSE:
        text = re.sub(pattern, " ", text)
    found = re.findall(r"(?<![\w.\-_/])[A-Za-z][a-z']+(?![\w_/])", text)
    return {re.sub(r"'s?$", "", word.lower()) for word in found if len(word) > 2}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_spelt_right(page, dictionary):
    assert dictionary.unknown(words_of(page.read_text(encoding="utf-8"))) == set()


def test_a_slip_is_seen(dictionary):
    assert dictionary.unknown(words_of("The replcion of a regulariser, `replcion`, $replcion$")) == {"replcion"}


def test_listed_words_are_used_and_in_order():
    listed = WORDS.read_text(encoding="utf-8").split()
    assert listed == sorted(listed)
    assert set(listed) <= set().union(*(words_of(page.read_text(encoding="utf-8")) for page in PAGES))
