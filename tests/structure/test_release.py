"""A release with something out of order is refused, and files about the repository repeat each other."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tools.release import faults, unequal

ROOT = Path(__file__).parents[2]
NAMES = ("pyproject.toml", "CITATION.cff", ".zenodo.json", "CHANGELOG.md", "recipe/recipe.yaml", "CODE_OF_CONDUCT.md")
pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="a source distribution has no such files")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


VERSION = tomllib.loads(text("pyproject.toml"))["project"]["version"]


@pytest.fixture
def repository(tmp_path):
    """This one, dated, with names and addresses in the places of the placeholders."""
    for name in (*NAMES, "SECURITY.md", "README.md", "docs/index.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        filled = re.sub("example[.]invalid", "example.org", (tmp_path / name).read_text(encoding="utf-8"))
        filled = re.sub(
            "(?i)placeholder[^\"']*?names? of the authors|placeholder|<address of [^>]*>", "Somebody", filled
        )
        (tmp_path / name).write_text(filled.replace("attnphase contributors", "Somebody"), encoding="utf-8")
    changes = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    changes = re.sub(rf"(?m)^## .*{re.escape(VERSION)}.*$", f"## [{VERSION}] - 2026-11-29", changes)
    (tmp_path / "CHANGELOG.md").write_text(changes, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "before", "after", "sentence"),
    [
        ("README.md", "", "", None),
        ("CITATION.cff", f"version: {VERSION}", "version: 2.4", f"version must be {VERSION}, as in pyproject.toml"),
        ("recipe/recipe.yaml", "    - numba >=0.61\n", "", "run must list numba >=0.61: see pyproject.toml."),
        ("CHANGELOG.md", "2026-11-29", "unreleased", f'must have a section "## [{VERSION}] - YYYY-MM-DD"'),
        ("pyproject.toml", "Somebody", "attnphase contributors", 'must fill in the line "authors = [{'),
        ("SECURITY.md", "example.org", "example.invalid", "must fill in the line"),
    ],
)
def test_what_is_not_in_order_is_refused(repository, name, before, after, sentence):
    file = repository / name
    file.write_text(
        file.read_text(encoding="utf-8").replace(before, after) if before else file.read_text(encoding="utf-8")
    )
    found = list(faults(repository, f"v{VERSION}"))
    assert [one for one in found if not one.startswith(name)] == []
    assert found == [] if sentence is None else any(sentence in one for one in found)
    assert 'but it is "v0".' in next(faults(repository, "v0"))


def test_files_about_the_repository_agree():
    assert list(unequal(ROOT)) == []
    archived, cited = (
        json.loads(text(".zenodo.json")),
        dict(re.findall(r'(?m)^(\w+): "?(.+?)"?$', text("CITATION.cff"))),
    )
    assert (cited["license"], cited["title"]) == (archived["license"], archived["title"])
    assert archived["keywords"] == re.findall(r"^  - ([a-z ]+)$", text("CITATION.cff"), re.MULTILINE)
    hook = re.findall(r"ruff-pre-commit\n +rev: v(\S+)", text(".pre-commit-config.yaml"))
    assert hook == re.findall(r"(?m)^ruff==(\S+)$", text("constraints.txt"))
    workflows = "\n".join(text(path.relative_to(ROOT)) for path in sorted((ROOT / ".github/workflows").iterdir()))
    (listed,) = re.findall(r"(?m)^ +target: \[(.+)\]$", workflows)
    ran = {*re.findall(r"run: make ([a-z-]+)", workflows), *listed.split(", ")}
    assert ran <= set(re.findall(r"(?m)^([a-z-]+):", text("Makefile")))
    used = re.findall(r"uses: (.+)", workflows)
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
