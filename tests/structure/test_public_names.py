"""What is public: shown by the package, typed, called by the program that type checkers see, named on the site.

Tests use it alone, so that the rest may change; a file that must not says why in its docstring.
"""

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
SUPPORT = ROOT / "tests" / "support"
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
HOMES = {f"attnphase.{name}" for name in MODULES}
COMMAND = "attnphase.cli.commands.main"  # the command line with its arguments, within this process
DOCUMENTED = {
    f"{module}.{name.strip()}"
    for page in (ROOT / "docs").rglob("*.md")
    for module, names in re.findall(r"from (derivations[\w.]*) import ([\w, ]+)", page.read_text(encoding="utf-8"))
    for name in names.split(",")
}


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
    if name.split(".")[0] not in ("attnphase", "derivations") or name in {"attnphase", COMMAND, *HOMES, *DOCUMENTED}:
        return True
    return home in HOMES or (home == "attnphase" and last in import_module("attnphase").__all__)


@pytest.mark.parametrize("path", TESTS, ids=[str(path.relative_to(ROOT / "tests").with_suffix("")) for path in TESTS])
def test_a_file_uses_what_is_public_or_says_why_not(path):
    said = re.search(r"(?m)^Not public: \S", ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
    private = sorted(private_names(path))
    assert bool(private) == bool(said), private
