"""The commented problem file to begin with, and the names that a user meets first."""

import importlib
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from command import run

import attnphase as ap
from attnphase import errors
from attnphase.problem import Problem
from attnphase.problem.losses import LOSSES
from attnphase.problem.spectrum_laws import SPECTRUM_KINDS
from attnphase.problem.template import _NOTES, changes_for, template
from attnphase.rows.kinds import REGULARIZERS

MODULES = {"errors", "figures", "functions", "interface", "reference", "testing", "tracking"}
PAGE = Path(__file__).parents[2] / "docs" / "problem.md"
COARSE = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16"]

CASES = [
    {},
    {"mixture": True},
    {"untied": True},
    {"length": 3},
    {"length": 5, "mixture": True},
    {"length": 1, "mixture": True},
    {"length": 1},
    {"rank": 2},
    {"width": 2},
    {"loss": "values"},
    {"loss": "square"},
    {"loss": "logistic", "regularizer": "lasso"},
    {"loss": "hinge", "spectrum": "power-law"},
    {"loss": "expression"},
    {"loss": "expression", "length": 2},
    *({"regularizer": name} for name, kind in REGULARIZERS.items() if kind.example),
    {"regularizer": "expression", "rank": 2},
    {"spectrum": "isotropic"},
    {"spectrum": "two-level", "length": 4},
    {"spectrum": "atoms", "length": 3},
    {"mixture": True, "spectrum": "atoms"},
    {"mixture": True, "spectrum": "two-level", "untied": True},
]


def examples(text):
    """Fields that a template has as comments, with their examples; a line of words is none."""
    section, found = "", {}
    text = re.sub(r"(?<=\[|,)\n# (?=    \[|\])", "", text)  # a table with a line for each row
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif re.match(r"# \w+ = ", line):
            (pair,) = tomllib.loads(line[2:]).items()
            found[f"{section}.{pair[0]}"] = pair[1]
    return found


def held(plain, name):
    """The value of a field in a problem's plain form; None where it has none."""
    section, key = name.split(".")
    return plain.get(section, {}).get(key)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_page_of_the_problem_file_has_what_init_writes():
    (block,) = re.findall(r"```toml\n(\[tokens\].*?\[positions\].*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block == run("init").stdout


def test_every_field_has_a_note():
    problem = Problem()
    sections = [item.name for item in fields(Problem) if not item.name.startswith("_")]
    names = {f"{section}.{item.name}" for section in sections for item in fields(getattr(problem, section))}
    names = names - {"metrics._formulas"} | {"metrics.error"}  # whose names are the user's own
    assert set(_NOTES) == names
    written = run("init").stdout
    assert set(re.findall(r"^\[(\w+)\]$", written, re.MULTILINE)) == set(sections)
    live = {f"{section}.{key}" for section, keys in tomllib.loads(written).items() for key in keys}
    assert live | set(examples(written)) == names
    assert not live & set(examples(written))


@pytest.mark.parametrize("asked", CASES, ids=str)
def test_a_written_problem_is_read_again(asked):
    problem = Problem().with_fields(changes_for(**asked))
    text = template(problem)
    assert Problem.from_toml(text) == problem
    assert max(map(len, text.splitlines())) <= 160
    assert all(line.isascii() for line in text.splitlines())


def test_what_is_asked_for_is_written():
    problem = Problem().with_fields(
        changes_for(
            mixture=True, spectrum="two-level", length=3, rank=2, untied=True, width=4, regularizer="group-lasso"
        )
    )
    assert problem.tokens.kind == "mixture"
    assert problem.tokens.length == 3
    assert problem.to_dict()["tokens"]["spectrum"]["kind"] == "two-level"
    assert len(problem.sites) == 6
    assert (problem.student.rank, problem.student.tied) == (2, False)
    assert (problem.loss.kind, problem.loss.width) == ("values", 4)
    assert problem.regularizer.kind == "group-lasso"
    # what means nothing is left out
    assert "\nstrength = " not in template(Problem().with_fields(changes_for(regularizer="expression")))
    assert "softmax" not in template(Problem().with_fields(changes_for(loss="square")))
    # a loss of one token brings one token along
    assert Problem().with_fields(changes_for(loss="logistic")).tokens.length == 1


# what a field's note says that it goes with
NEEDS = {
    "tokens.sigma": {"tokens.kind": "gaussian"},
    "tokens.density": {"tokens.parameters": {"tilt": 0.5}},
    "tokens.parameters": {"tokens.density": "1 + tilt*tanh(k0_0)"},
    "teacher.prior_density": {"teacher.prior": "gauss-bernoulli"},
    "teacher.prior_values": {"teacher.prior": "atoms", "teacher.prior_probabilities": [0.1, 0.8, 0.1]},
    "teacher.prior_probabilities": {"teacher.prior": "atoms", "teacher.prior_values": [-1.0, 0.0, 1.0]},
    "regularizer.ridge": {"regularizer.kind": "elastic-net"},
    "regularizer.expression": {"regularizer.kind": "expression"},
    "loss.width": {"loss.kind": "values"},
    "loss.expression": {"loss.kind": "expression"},
    "loss.parameters": {"loss.kind": "expression", "loss.expression": "(h0_0 - beta*k0_0)**2"},
    "loss.trained": {
        "loss.kind": "expression",
        "loss.expression": "(h0_0 - beta*k0_0)**2",
        "loss.parameters": {"beta": 2.0},
    },
    "integration.nodes": {"integration.rule": "sobol"},
}


@pytest.mark.parametrize("asked", CASES, ids=str)
def test_every_example_can_be_taken(asked):
    problem = Problem().with_fields(changes_for(**asked))
    found = examples(template(problem))
    assert found.pop("regularizer.prox") == "module:function"  # nobody's own
    a_mixture = {"tokens.kind": "mixture"}
    if problem.tokens.kind != "mixture":
        a_mixture |= {"tokens.clusters": found["tokens.clusters"]}
    plain = problem.to_dict()
    # comments that show a value which follows from the number of tokens change nothing
    defaults = {name for name, value in found.items() if value == held(plain, name)}
    assert problem.with_fields({name: found.pop(name) for name in defaults}) == problem
    assert defaults == ({"positions.kind", "positions.gram", "teacher.mixing"} if asked == {"length": 3} else defaults)
    for name, value in found.items():
        with_it = {name: value, **NEEDS.get(name, {})}
        if name in ("tokens.clusters", "tokens.law", "tokens.mean_positions", "tokens.mean_teacher"):
            with_it = a_mixture | with_it
        assert problem.with_fields(with_it) != problem, name


def test_the_command_offers_all_kinds():
    """In the order of `--help`; any of them can be asked for, and nothing else."""
    help_text = " ".join(run("init", "--help").output.split())
    for option, names in (
        ("loss", list(LOSSES)),
        ("regularizer", [name for name, kind in REGULARIZERS.items() if kind.example is not None]),
        ("spectrum", [*SPECTRUM_KINDS, "atoms"]),
    ):
        assert f"--{option} [{'|'.join(names)}]" in help_text
        assert all("kind" in run("init", f"--{option}", name).output for name in names)
        refused = run("init", f"--{option}", "nonesuch", code=2).output
        assert refused.startswith(f"attnphase: error: Invalid value for '--{option}': 'nonesuch' is not one of")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_first_console_example_of_the_readme(tmp_path, monkeypatch):
    """In a fresh folder; on fewer nodes."""
    monkeypatch.chdir(tmp_path)
    Path("problem.toml").write_text(run("init").stdout, encoding="utf-8")
    assert "converged" in run("solve", "problem.toml", "--alpha", 1.5, *COARSE).stdout
    assert ap.load_problem("problem.toml") == Problem()


def test_init_writes_a_file_and_replaces_none(tmp_path):
    path = tmp_path / "problem.toml"
    assert run("init", "--rank", 2, "-o", path).stdout == f"{path}\n"
    assert ap.load_problem(path) == Problem().with_fields({"student.rank": 2})
    refused = run("init", "-o", path, code=2)
    assert "--force" in refused.stderr
    assert ap.load_problem(path).student.rank == 2
    assert run("init", "--set", "teacher.omega=0.2", "-o", path, "--force", "--quiet").output == ""
    assert ap.load_problem(path) == Problem.paper(omega=0.2)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--values", 2, "--loss", "square"], "loss.width"),
        (["--loss", "hinge", "--length", 2], "tokens.length = 1"),
        (["--length", 99], "tokens.length must be a whole number from 1 to 16"),
        (["--length", 0], "tokens.length must be a whole number from 1 to 16"),
        (["--rank", 0], "student.rank must be a whole number from 1 to 8"),
        (["--regularizer", "prox"], "'prox' is not one of"),
        (["--set", "teacher.omga=1"], "teacher.omega"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, named):
    result = run("init", *arguments, code=2)
    assert result.stdout == ""
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


# --- the package's own names ------------------------------------------------------------------------------------------


def test_the_package_shows_its_public_names_only():
    importlib.import_module("attnphase.checks.consistency")  # the name stays the function
    assert sorted(dir(ap)) == sorted([*ap.__all__, "testing"])  # which `import *` leaves out: it needs Hypothesis
    assert "SolverSettings" in ap.__all__
    assert {name for name in dir(ap) if isinstance(getattr(ap, name), type(ap))} == MODULES
    assert not [name for name in ap.__all__ if name.endswith(("Error", "Warning"))]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ap.nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_need_no_import(name):
    """Nor does `import attnphase` load them."""
    program = f"import sys, attnphase as ap; early = 'attnphase.{name}' in sys.modules; print(early, ap.{name}.__all__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False ['")


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_one_of_ours(name):
    base = errors.AttnphaseWarning if name.endswith("Warning") else errors.AttnphaseError
    assert issubclass(getattr(ap.errors, name), base)
    with pytest.raises(AttributeError):
        getattr(ap, name)
