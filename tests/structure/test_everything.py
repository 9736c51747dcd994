"""The program that type checkers see."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

PROGRAM = ast.parse((Path(__file__).parents[1] / "typing" / "everything.py").read_text(encoding="utf-8"))


def taken_from(module):
    """Attributes of a module that the program takes."""
    attributes = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if ast.unparse(node.value) == module}


@pytest.mark.parametrize("home", ["", ".errors", ".figures", ".functions", ".testing"])
def test_it_calls_everything_public(home):
    assert set(import_module(f"attnphase{home}").__all__) - taken_from(f"ap{home}") == set()


@pytest.mark.parametrize("package", ["attnphase", "derivations"])
def test_packages_say_that_they_have_types(package):
    assert (Path(import_module(package).__path__[0]) / "py.typed").is_file()
