"""The program that type checkers see."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import get_args

import pytest

import attnphase as ap

PROGRAM = ast.parse((Path(__file__).parents[1] / "typing" / "everything.py").read_text(encoding="utf-8"))


def taken_from(module):
    """Attributes of a module that the program takes."""
    attributes = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Attribute)]
    return {node.attr for node in attributes if ast.unparse(node.value) == module}


@pytest.mark.parametrize(
    "home", ["", ".errors", ".figures", ".functions", ".interface", ".reference", ".testing", ".tracking"]
)
def test_it_calls_everything_public(home):
    assert set(import_module(f"attnphase{home}").__all__) - taken_from(f"ap{home}") == set()


def public_functions():
    for home in ("", ".figures", ".reference", ".testing", ".tracking"):
        module = import_module(f"attnphase{home}")
        yield from (f"ap{home}.{one}" for one in module.__all__ if inspect.isroutine(getattr(module, one)))
    yield from ("ap.Problem", "ap.Problem.paper", "ap.SolverSettings")


@pytest.mark.parametrize("name", public_functions())
def test_it_passes_every_parameter(name):
    parameters = list(inspect.signature(attrgetter(name.removeprefix("ap."))(ap)).parameters)
    calls = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    passed = {key.arg for call in calls for key in call.keywords}
    passed.update(*(parameters[: len(call.args)] for call in calls))
    assert set(parameters) - passed == set()


@pytest.mark.parametrize("name", ap.interface.__all__)
def test_types_may_be_combined_at_run_time(name):
    assert type(None) in get_args(getattr(ap.interface, name) | None)


WITHOUT_HYPOTHESIS = """
import inspect, sys
sys.modules["hypothesis"] = None
import attnphase as ap
from attnphase import *
names = {name for name, _ in inspect.getmembers(ap)}
assert "interface" in names and "testing" not in names, names
try:
    ap.testing
except ap.errors.MissingExtraError as error:
    print(error)
"""


def test_all_names_can_be_looked_through_without_hypothesis():
    told = subprocess.run([sys.executable, "-c", WITHOUT_HYPOTHESIS], capture_output=True, text=True, check=True)
    assert told.stdout == "attnphase.testing needs Hypothesis: pip install hypothesis.\n"


@pytest.mark.parametrize("package", ["attnphase", "derivations"])
def test_packages_say_that_they_have_types(package):
    assert (Path(import_module(package).__path__[0]) / "py.typed").is_file()
