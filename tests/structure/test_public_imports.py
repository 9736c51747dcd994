"""Tests use what is public, so that the rest may change; a file that must not says why in its docstring."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = {f"attnphase.{name}" for name in "errors figures functions interface reference testing tracking".split()}  # noqa: SIM905
DOCUMENTED = {
    f"{module}.{name.strip()}"
    for page in (ROOT / "docs").rglob("*.md")
    for module, names in re.findall(r"from (derivations[\w.]*) import ([\w, ]+)", page.read_text(encoding="utf-8"))
    for name in names.split(",")
}
FILES = sorted((ROOT / "tests").rglob("test_*.py"))


def imported(tree):
    """Full names of what is imported from the two packages, also by a name in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "setattr")):
            texts = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
            yield from (one for one in texts if isinstance(one, str))


def is_public(name):
    package, _, last = name.rpartition(".")
    if name.split(".")[0] not in ("attnphase", "derivations"):
        return True
    if package == "attnphase" or name == "attnphase":
        return name == "attnphase" or name in MODULES or last in import_module("attnphase").__all__
    return name in MODULES or package in MODULES or name in DOCUMENTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_uses_what_is_public_or_says_why_not(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    private = sorted({name for name in imported(tree) if not is_public(name)})
    said = re.search(r"(?m)^Not public: \w", ast.get_docstring(tree) or "")
    assert bool(private) == bool(said), private


def test_what_is_private_is_seen():
    source = "import attnphase as ap\nfrom attnphase.data import build\nm.setattr('attnphase.x.y', 1)\nimport numpy"
    assert [is_public(name) for name in imported(ast.parse(source))] == [True, False, True, False] or [
        name for name in imported(ast.parse(source)) if not is_public(name)
    ] == ["attnphase.data.build", "attnphase.x.y"]
