"""What is public: shown by the package, typed, called by the program that type checkers see, and named on the site."""

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import attnphase as ap

ROOT = Path(__file__).parents[2]
PROGRAM = ast.parse((ROOT / "tests" / "typing" / "everything.py").read_text(encoding="utf-8"))
MODULES = ["errors", "figures", "functions", "interface", "reference", "testing", "tracking"]


def functions():
    for home in ("", ".figures", ".reference", ".testing", ".tracking"):
        module = import_module(f"attnphase{home}")
        yield from (f"ap{home}.{one}" for one in module.__all__ if inspect.isroutine(getattr(module, one)))
    yield from ("ap.Problem", "ap.Problem.paper", "ap.SolverSettings")


@pytest.mark.parametrize("home", ["", *(f".{name}" for name in MODULES)])
def test_the_program_calls_everything_public(home):
    attributes = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Attribute)]
    taken = {node.attr for node in attributes if ast.unparse(node.value) == f"ap{home}"}
    assert set(import_module(f"attnphase{home}").__all__) - taken == set()


@pytest.mark.parametrize("name", list(functions()))
def test_the_program_passes_every_parameter_and_the_site_has_its_type(name):
    item = attrgetter(name.removeprefix("ap."))(ap)
    parameters = list(inspect.signature(item).parameters)
    calls = [node for node in ast.walk(PROGRAM) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    passed = {key.arg for call in calls for key in call.keywords}
    passed.update(*(parameters[: len(call.args)] for call in calls))
    assert set(parameters) - passed == set()
    if name.count(".") == 1 and inspect.isfunction(item):
        described = re.search(r"(?ms)^Parameters\n-+\n(.*?)(?:\n\n|\Z)", inspect.getdoc(item) or "")
        told = re.findall(r"(?m)^([\w*, ]+) : \S", described[1]) if described else []
        assert {one.strip(" *") for line in told for one in line.split(",")} == set(parameters)


def test_the_package_shows_its_public_names_only_and_loads_the_rest_on_use():
    program = f"import sys, attnphase as ap; print([m for m in {MODULES} if 'attnphase.' + m in sys.modules], dir(ap))"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told.strip() == f"[] {sorted([*ap.__all__, 'testing'])}"  # `import *` leaves it out: it needs Hypothesis
    for name in ap.errors.__all__:
        base = ap.errors.AttnphaseWarning if name.endswith("Warning") else ap.errors.AttnphaseError
        assert issubclass(getattr(ap.errors, name), base)


def test_no_public_name_is_missing_on_the_site():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"auto(?:function|class|exception):: attnphase\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(name for name in ap.__all__ if callable(getattr(ap, name)))
    errors = re.findall(r"autoexception:: attnphase\.errors\.(\w+)$", text, re.MULTILINE)
    assert sorted(errors) == sorted(ap.errors.__all__)
    assert sorted(["errors", *re.findall(r"automodule:: attnphase\.(\w+)$", text, re.MULTILINE)]) == MODULES
