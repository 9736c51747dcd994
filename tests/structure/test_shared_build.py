"""The work of a build of the site is cut evenly (``docs/sharing.py``)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sharing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_sharing", ROOT / "docs" / "sharing.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["docs_sharing"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_part_takes_as_long_and_every_page_is_in_one(sharing):
    pages = sorted({*sharing.LONG, *(f"page-{i}" for i in range(50))})
    sizes = [18, 18, 18, len(pages) - 54]
    order = sharing.evenly(pages, sizes)
    assert sorted(order) == pages
    longest, took, first = max(sharing.LONG.values()), [], 0
    for size in sizes:
        took.append(sum(sharing.LONG.get(page, 0) for page in order[first : first + size]))
        first += size
    assert max(took) - min(took) < longest / 2
    assert order[0] == max(sharing.LONG, key=sharing.LONG.get)


def test_pages_with_a_time_are_pages(sharing):
    for page in sharing.LONG:
        assert (ROOT / "docs" / f"{page}.md").exists() or page == "reference/code", page


def test_pages_that_run_something_long_have_a_time(sharing):
    for page in (ROOT / "docs").rglob("*.md"):
        if "\nfile_format: mystnb\n" in page.read_text(encoding="utf-8"):
            assert page.relative_to(ROOT / "docs").with_suffix("").as_posix() in sharing.LONG


@pytest.mark.parametrize(
    ("cores", "processes", "expected"),
    [
        ([0, 1], 2, [{0}, {1}]),
        ([2, 3, 5, 7, 8], 2, [{2, 5, 8}, {3, 7}]),
        ([4], 2, [{4}]),
        ([0, 1], 1, [{0, 1}]),
    ],
)
def test_every_process_has_cores_of_its_own(cores, processes, expected, sharing):
    assert sharing.shares(cores, processes) == expected
