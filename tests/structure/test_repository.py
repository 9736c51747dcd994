"""Files about the repository that repeat each other: a version, a title, a tool's version, a target of the Makefile."""

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not (ROOT / ".github").exists(), reason="a source distribution has no files about the repository"
)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def cited(field: str) -> str:
    """A field at the top of CITATION.cff."""
    return re.findall(rf'^{field}: "?(.+?)"?$', text("CITATION.cff"), re.MULTILINE)[0]


def workflows() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / ".github/workflows").iterdir()))


def test_citation_and_archive_describe_this_version():
    project = tomllib.loads(text("pyproject.toml"))["project"]
    archived = json.loads(text(".zenodo.json"))
    assert cited("version") == project["version"]
    assert cited("license") == archived["license"] == project["license"]
    assert cited("title") == archived["title"]
    assert archived["title"].startswith(f"{project['name']}: ")
    assert archived["keywords"] == re.findall(r"^  - ([a-z ]+)$", text("CITATION.cff"), re.MULTILINE)


def test_hooks_and_the_makefile_run_the_same_ruff():
    hook = re.search(r"ruff-pre-commit\n +rev: v(\S+)", text(".pre-commit-config.yaml"))
    pinned = re.search(r"^ruff==(\S+)$", text("constraints.txt"), re.MULTILINE)
    assert hook is not None
    assert pinned is not None
    assert hook[1] == pinned[1]


def test_workflows_run_targets_that_the_makefile_has():
    ran = set(re.findall(r"run: make ([a-z-]+)", workflows()))
    (listed,) = re.findall(r"^ +target: \[(.+)\]$", workflows(), re.MULTILINE)
    assert ran
    assert ran | set(listed.split(", ")) <= set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))


def test_workflows_name_actions_by_their_commit():
    used = re.findall(r"uses: (.+)", workflows())
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []
