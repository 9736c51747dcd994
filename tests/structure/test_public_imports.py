"""Tests use what is public, so that the rest may change; a file that must not says why in its docstring."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
MODULES = {
    f"attnphase.{name}" for name in ("errors", "figures", "functions", "interface", "reference", "testing", "tracking")
}
COMMAND = "attnphase.cli.commands.main"  # the command line with its arguments, within this process
DOCUMENTED = {
    f"{module}.{name.strip()}"
    for page in (ROOT / "docs").rglob("*.md")
    for module, names in re.findall(r"from (derivations[\w.]*) import ([\w, ]+)", page.read_text(encoding="utf-8"))
    for name in names.split(",")
}


def imported(tree):
    """Full names of what is imported, or patched by a name in a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "setattr")):
            yield from (
                one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str)
            )


def private_names(path):
    """Of a file, and of the support it uses: names of what is not public."""
    names = set(imported(ast.parse(path.read_text(encoding="utf-8"))))
    support = [SUPPORT / f"{name.split('.')[0]}.py" for name in names]
    return {one for one in names if not is_public(one)}.union(*(private_names(one) for one in support if one.exists()))


def is_public(name):
    home, _, last = name.rpartition(".")
    if name.split(".")[0] not in ("attnphase", "derivations") or name in {"attnphase", COMMAND, *MODULES, *DOCUMENTED}:
        return True
    return home in MODULES or (home == "attnphase" and last in import_module("attnphase").__all__)


@pytest.mark.parametrize("path", TESTS, ids=[str(path.relative_to(ROOT / "tests").with_suffix("")) for path in TESTS])
def test_a_file_uses_what_is_public_or_says_why_not(path):
    said = re.search(r"(?m)^Not public: \S", ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    private = sorted(private_names(path))
    assert bool(private) == bool(said), private
