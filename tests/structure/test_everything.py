"""The program that type checkers see."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PROGRAM = ast.parse((Path(__file__).parents[1] / "typing" / "everything.py").read_text(encoding="utf-8"))


def taken_from(*modules):
    """Names that the program takes from modules, as attributes or by import."""
    attributes = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Attribute)]
    imports = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.ImportFrom) and node.module == "attnphase"]
    names = {alias.name for node in imports for alias in node.names} if "ap" in modules else set()
    return names | {node.attr for node in attributes if ast.unparse(node.value) in modules}


@pytest.mark.parametrize(
    ("home", "names"),
    [("", ("ap", "errors")), *((f".{name}", (name,)) for name in ("errors", "figures", "functions", "testing"))],
)
def test_it_calls_everything_public(home, names):
    assert set(import_module(f"attnphase{home}").__all__) - taken_from(*names) == set()


@pytest.mark.parametrize("package", ["attnphase", "derivations"])
def test_packages_say_that_they_have_types(package):
    assert (Path(import_module(package).__path__[0]) / "py.typed").is_file()
