"""A release with something out of order is refused, and files about the repository repeat each other."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tools.release import faults, unequal

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / ".github").exists(), reason="a source distribution has no such files")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


VERSION = tomllib.loads(text("pyproject.toml"))["project"]["version"]


def test_what_is_not_in_order_is_refused():
    """Today the authors and addresses are placeholders, and the version has no date."""
    found = "\n".join(faults(ROOT, "v0"))
    assert f'the tag must be v{VERSION}, as pyproject.toml has the version, but it is "v0".' in found
    for sentence in ('must fill in the line "authors = [{', f'must have a section "## [{VERSION}] - YYYY-MM-DD"'):
        assert sentence in found


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
