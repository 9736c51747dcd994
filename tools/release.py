"""Whether the repository is ready for the release of a tag: ``python tools/release.py v0.1.0``.

It prints a sentence for each thing to mend, and ends with 2 if there is any. It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

__all__ = ["faults", "main", "unequal"]

_ROOT = Path(__file__).parents[1]
_RECIPE = "recipe/recipe.yaml"
_ZENODO = ".zenodo.json"  # which may have no version: Zenodo takes it from the tag
_PLACEHOLDER = re.compile(r"example\.invalid|placeholder|attnphase contributors|<address of", re.IGNORECASE)
_PAGES = ("CODE_OF_CONDUCT.md", "README.md", "SECURITY.md", "docs/index.md")
_COPIES = {  # of the version
    "CITATION.cff": r"^version: *[\"']?([^\"'\n]+)",
    _ZENODO: r'"version": *"([^"]+)"',
    _RECIPE: r"^ +version: \"([^\"]+)\"",
}
_CONDA = {"matplotlib": "matplotlib-base", "torch": "pytorch"}  # other names of a package there
_EXTRAS = ("torch", "distributed", "explore")


def faults(root: Path, tag: str) -> Iterator[str]:
    """Yield a sentence for each thing that keeps a tag from being released.

    Parameters
    ----------
    root : Path
        The repository.
    tag : str
        "v" and the version.
    """
    project = tomllib.loads(_text(root, "pyproject.toml"))["project"]
    version = project["version"]
    if tag != f"v{version}":
        yield f'the tag must be v{version}, as pyproject.toml has the version, but it is "{tag}".'
    yield from unequal(root)
    yield from _undated(_text(root, "CHANGELOG.md"), version)
    for name in ("pyproject.toml", *_COPIES, *_PAGES):
        for line in filter(_PLACEHOLDER.search, _text(root, name).splitlines()):
            yield f'{name}: a person must fill in the line "{line.strip()}".'


def unequal(root: Path) -> Iterator[str]:
    """Yield a sentence for each copy of what pyproject.toml says that differs from it.

    Parameters
    ----------
    root : Path
        The repository.
    """
    settings = tomllib.loads(_text(root, "pyproject.toml"))
    project = settings["project"]
    for name, pattern in _COPIES.items():
        copy = re.search(pattern, _text(root, name), re.MULTILINE)
        written = copy[1].strip() if copy else "missing"
        if written != project["version"] and (copy or name != _ZENODO):
            yield f"{name}: version must be {project['version']}, as in pyproject.toml, but it is {written}."
    recipe = _text(root, _RECIPE)
    for key, needed in _requirements(settings).items():
        block = re.search(rf"^ +{key}:\n((?: +- .*\n)+)", recipe, re.MULTILINE)
        listed = set(re.findall(r"- (.*)", block[1])) if block else set()
        for what, more in (("must list", needed - listed), ("must not list", listed - needed)):
            if more:
                yield f"{_RECIPE}: {key} {what} {', '.join(sorted(more))}: see pyproject.toml."


def _requirements(settings: dict[str, Any]) -> dict[str, set[str]]:
    """What a recipe lists, by its keys."""
    project, python = settings["project"], f"python {settings['project']['requires-python']}"
    extras = [one for extra in _EXTRAS for one in project["optional-dependencies"][extra]]
    return {
        "entry_points": {f"{name} = {place}" for name, place in project.get("scripts", {}).items()},
        "host": {python, "pip", *map(_in_conda, settings["build-system"]["requires"])},
        "run": {python, *map(_in_conda, project["dependencies"])},
        "run_constraints": set(map(_in_conda, extras)),
    }


def _in_conda(requirement: str) -> str:
    name = re.split("[^A-Za-z0-9-]", requirement, maxsplit=1)[0]
    return f"{_CONDA.get(name, name.lower())} {requirement.removeprefix(name)}"


def _undated(changelog: str, version: str) -> Iterator[str]:
    """A sentence if the changelog has no dated section of a version."""
    section = re.search(rf"^## \[{re.escape(version)}\] - (.*)$", changelog, re.MULTILINE)
    try:
        date.fromisoformat(section[1] if section else "")
    except ValueError:
        yield f'CHANGELOG.md must have a section "## [{version}] - YYYY-MM-DD" with the date of the release.'


def _text(root: Path, name: str) -> str:
    """The text of a file of the repository; of one that need not be there, nothing."""
    path = root / name
    return path.read_text(encoding="utf-8") if name != _ZENODO or path.exists() else ""


def main() -> None:
    """Print the faults of this repository, and end the process."""
    parser = argparse.ArgumentParser(description="Say what keeps a tag from being released.")
    parser.add_argument("tag", metavar="TAG", help="v and the version, as v0.1.0")
    found = list(faults(_ROOT, parser.parse_args().tag))
    for sentence in found:
        print(sentence, file=sys.stderr)
    sys.exit(2 if found else 0)


if __name__ == "__main__":
    main()
