"""The release check refuses what a release must not have, a sentence for each thing."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.release import faults, unequal

ROOT = Path(__file__).parents[2]
FILES = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling>=1.27"]
[project]
version = "2.5.0"
requires-python = ">=3.11"
authors = [{ name = "A. Author", email = "authors@example.org" }]
dependencies = ["netCDF4>=1.7", "numba>=0.61", "tomli-w>=1.0"]
[project.optional-dependencies]
torch = ["torch>=2.6"]
distributed = ["distributed>=2025.1"]
explore = ["plotly>=6"]
[project.scripts]
program = "program.main:main"
[project.urls]
Homepage = "https://example.org/attnphase"
Issues = "https://example.org/attnphase/issues"
""",
    "CITATION.cff": "cff-version: 1.2.0\nversion: 2.5.0\nauthors:\n  - name: A. Author\n",
    ".zenodo.json": '{"version": "2.5.0"}',
    "CHANGELOG.md": "# Changelog\n\n## [2.5.0] - 2026-11-29\n\n- New.\n\n## [2.4.9] - 2026-10-01\n",
    "recipe/recipe.yaml": """
context:
  version: "2.5.0"
build:
  python:
    entry_points:
      - program = program.main:main
requirements:
  host:
    - python >=3.11
    - pip
    - hatchling >=1.27
  run:
    - python >=3.11
    - netcdf4 >=1.7
    - numba >=0.61
    - tomli-w >=1.0
  run_constraints:
    - pytorch >=2.6
    - distributed >=2025.1
    - plotly >=6
about:
  homepage: https://example.org/attnphase
""",
    "CODE_OF_CONDUCT.md": "Write to conduct@example.org.\n",
    "SECURITY.md": "Write to security@example.org.\n",
    "README.md": "    git clone https://example.org/attnphase attnphase\n",
    "docs/index.md": "    git clone https://example.org/attnphase attnphase\n",
}


@pytest.fixture
def repository(tmp_path):
    """A repository whose version 2.5.0 is in order."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def change(root, name, before, after):
    """Replace what stands in a file once."""
    text = (root / name).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (root / name).write_text(text.replace(before, after), encoding="utf-8")


def test_what_is_in_order_is_released(repository):
    assert list(faults(repository, "v2.5.0")) == []


def test_zenodo_may_take_the_version_from_the_tag(repository):
    (repository / ".zenodo.json").write_text("{}", encoding="utf-8")
    assert list(faults(repository, "v2.5.0")) == []
    (repository / ".zenodo.json").unlink()
    assert list(faults(repository, "v2.5.0")) == []


@pytest.mark.parametrize("tag", ["2.5.0", "v2.5", "v2.5.1", ""])
def test_a_tag_is_the_version(repository, tag):
    assert list(faults(repository, tag)) == [
        f'the tag must be v2.5.0, as pyproject.toml has the version, but it is "{tag}".'
    ]


@pytest.mark.parametrize(
    ("name", "before", "after", "sentence"),
    [
        ("CITATION.cff", "\nversion: 2.5.0", "\nversion: 2.4", "version must be 2.5.0, as in pyproject.toml, but"),
        ("CITATION.cff", "\nversion: 2.5.0", "", "but it is missing."),
        (".zenodo.json", "2.5.0", "2.6.0", ".zenodo.json: version must be 2.5.0"),
        ("recipe/recipe.yaml", '"2.5.0"', '"2.5.1"', "but it is 2.5.1."),
        ("recipe/recipe.yaml", "    - numba >=0.61\n", "", "run must list numba >=0.61: see pyproject.toml."),
        ("recipe/recipe.yaml", "- netcdf4 >=1.7", "- netcdf4 >=1.7\n    - pandas", "run must not list pandas:"),
        ("recipe/recipe.yaml", "- pytorch >=2.6", "- pytorch >=2.5", "run_constraints must list pytorch >=2.6:"),
        ("recipe/recipe.yaml", "- hatchling >=1.27", "- hatchling", "host must list hatchling >=1.27:"),
        ("recipe/recipe.yaml", "program.main:main", "program:main", "entry_points must list program = program.main:"),
        ("CHANGELOG.md", "2026-11-29", "unreleased", 'must have a section "## [2.5.0] - YYYY-MM-DD"'),
        ("CHANGELOG.md", "2026-11-29", "2026-13-29", 'must have a section "## [2.5.0] - YYYY-MM-DD"'),
        ("CHANGELOG.md", "[2.5.0]", "[2.4.0]", 'must have a section "## [2.5.0] - YYYY-MM-DD"'),
        ("pyproject.toml", "A. Author", "attnphase contributors", 'must fill in the line "authors = [{'),
        ("pyproject.toml", "authors@example.org", "a@example.invalid", 'must fill in the line "authors = [{'),
        ("pyproject.toml", "example.org/attnphase/issues", "example.invalid", 'must fill in the line "Issues = '),
        ("CITATION.cff", "A. Author", "Placeholder", 'must fill in the line "- name: Placeholder".'),
        ("recipe/recipe.yaml", "example.org", "example.invalid", "must fill in the line"),
        ("SECURITY.md", "example.org", "example.invalid", "must fill in the line"),
        ("README.md", "https://example.org/attnphase", "<address of this repository>", "must fill in the line"),
    ],
)
def test_what_is_not_in_order_is_refused(repository, name, before, after, sentence):
    change(repository, name, before, after)
    found = list(faults(repository, "v2.5.0"))
    assert any(sentence in one for one in found), found
    assert all(one.startswith(name) for one in found)


def test_copies_of_version_and_dependencies_agree_here():
    assert list(unequal(ROOT)) == []


def test_placeholders_end_a_release_with_2():
    command = [sys.executable, ROOT / "tools" / "release.py"]
    ended = subprocess.run([*command, "v0"], capture_output=True, text=True)
    assert ended.returncode == 2
    assert 'but it is "v0".' in ended.stderr.splitlines()[0]
    assert subprocess.run(command, capture_output=True).returncode == 2
