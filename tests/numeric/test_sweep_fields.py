"""Sweeps over fields of the problem, from Python and from the command line: what is varied, and how it is named."""

import importlib

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from made_up import Solver

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.files import load_dataset
from attnphase.data.reading import spacing
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from attnphase.sweeps.grid import sweep

PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
COARSE = ["--set", "integration.rule=sobol"]
SWEEP = importlib.import_module("attnphase.sweeps.grid")


@pytest.fixture
def solver(monkeypatch):
    return Solver(monkeypatch)


@pytest.fixture
def lines(solver, monkeypatch):
    """The problems of the lines that are solved, in any order."""
    found = []
    solve = SWEEP.Line.solve

    def noted(line, *args):
        found.append(line.problem)
        return solve(line, *args)

    monkeypatch.setattr(SWEEP.Line, "solve", noted)
    return found


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="attnphase")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def vary(folder, *options):
    """The dataset of a sweep of one branch."""
    _sweep(folder / "out.nc", options, 0)
    return load_dataset(folder / "out.nc")


def refusal(folder, *options):
    """What a sweep says that is refused."""
    said = _sweep(folder / "out.nc", options, 2).stderr
    assert said.count("\n") == 1
    assert list(folder.iterdir()) == []
    return said


def _sweep(output, options, code):
    given = [part for option in options for part in (("--vary", option) if isinstance(option, str) else option)]
    options = ["--alpha", 1.3, "--branch", "semantic", *given, "-o", output, "--workers", 1]
    return invoke("sweep", *COARSE, *options, code=code)


# --- from Python -----------------------------------------------------------------------------------------------------


def test_every_line_has_its_values(lines):
    fields = {"tokens.sigma": [0.4, 0.7], "regularizer.strength": [0.02, 0.003]}
    ds = sweep(PROBLEM, [1.3, 0.9], 0.25, "positional", fields=fields, workers=1)
    assert ds["status"].dims == ("branch", "omega", "sigma", "strength", "alpha")
    expected = [(0.25, sigma, strength) for sigma in (0.4, 0.7) for strength in (0.02, 0.003)]
    assert sorted((p.teacher.omega, p.tokens.sigma, p.regularizer.strength) for p in lines) == sorted(expected)
    for problem in [*lines]:
        at = {"sigma": problem.tokens.sigma, "strength": problem.regularizer.strength, "branch": "positional"}
        line = SWEEP.Line(problem, "positional", (1.3, 0.9), ap.SolverSettings(), "").solve()
        np.testing.assert_array_equal(ds["theta"].sel(at).squeeze("omega"), line["theta"])


def test_a_swept_field_reaches_the_solver():
    """Two points of a sweep are those of the two problems, solved one by one."""
    sigmas = [0.45, 0.6]
    ds = sweep(PROBLEM, [1.7], branch=["semantic"], fields={"tokens.sigma": sigmas}, workers=1)
    for sigma in sigmas:
        alone = ap.solve(PROBLEM.with_fields({"tokens.sigma": sigma}), 1.7)
        point = ds.sel(sigma=sigma, alpha=1.7, branch="semantic")
        for name in ("q", "theta", "training_loss", "test_error_stderr"):
            np.testing.assert_array_equal(point[name], alone[name], err_msg=name)


@pytest.mark.parametrize(
    ("field", "values", "name", "taken"),
    [
        ("tokens.sigma", 0.5, "sigma", [0.5]),
        ("tokens.sigma", np.array([1, 2]), "sigma", [1.0, 2.0]),
        ("tokens.sigma", xr.DataArray([0.4, 0.6], dims="x"), "sigma", [0.4, 0.6]),
        ("teacher.omega", (0, 1), "omega", [0.0, 1.0]),
        ("integration.nodes", [16, 64], "integration_nodes", [16, 64]),
        ("integration.seed", range(3), "integration_seed", [0, 1, 2]),
        ("student.temperature", [0.5, 2], "student_temperature", [0.5, 2.0]),
        ("teacher.causal", [True, np.False_], "teacher_causal", [True, False]),
        ("teacher.score", ["linear", "softmax"], "teacher_score", ["linear", "softmax"]),
        ("teacher.score", "linear", "teacher_score", ["linear"]),
        ("positions.kind", ["opposite", "none"], "positions_kind", ["opposite", "none"]),
    ],
)
def test_values_become_a_coordinate(solver, tmp_path, field, values, name, taken):
    output = tmp_path / "out.nc"
    ds = sweep(PROBLEM, 1.3, branch="semantic", fields={field: values}, workers=1, output=output)
    coordinate = ds[name]
    assert coordinate.to_numpy().tolist() == taken
    assert [type(value) for value in coordinate.to_numpy().tolist()] == [type(value) for value in taken]
    assert coordinate.attrs["field"] == field
    assert set(coordinate.attrs) == {"field", "long_name", "units", "latex"}
    xr.testing.assert_identical(load_dataset(output), ds)


def test_a_key_of_two_sections_makes_two_dimensions(lines):
    fields = {"student.temperature": [0.5, 2.0], "teacher.temperature": [0.8, 1.4]}
    ds = sweep(PROBLEM, 1.3, branch="semantic", fields=fields, workers=1)
    assert ds.sizes["student_temperature"] == ds.sizes["teacher_temperature"] == 2
    found = [(problem.student.temperature, problem.teacher.temperature) for problem in lines]
    assert sorted(found) == [(0.5, 0.8), (0.5, 1.4), (2.0, 0.8), (2.0, 1.4)]


def test_a_law_of_the_tokens_is_swept(lines, tmp_path):
    mixture = PROBLEM.with_fields(
        {
            "tokens.kind": "mixture",
            "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
            "tokens.law": {"kind": "same", "probability": 0.8},
        }
    )
    fields = {"tokens.law.probability": [0.6, 0.9]}
    ds = sweep(mixture, 1.3, branch="semantic", fields=fields, workers=1, output=tmp_path / "out.nc")
    assert [p.tokens.law.probability for p in lines] == [0.6, 0.9]
    assert ds["law.probability"].to_numpy().tolist() == [0.6, 0.9]
    assert ds.sizes["cluster"] == 2


def test_losses_without_a_linear_predictor_are_swept(solver, tmp_path):
    """NaN is allowed where some of the losses have no linear predictor."""
    scalar = Problem().with_fields({"tokens.length": 1, "positions.kind": "none"})  # its own loss is the paper's
    solver.known["linear_test_error"] = float("nan")
    fields = {"loss.kind": ["square", "logistic"]}
    ds = sweep(scalar, 1.3, branch="semantic", fields=fields, workers=1, output=tmp_path / "out.nc")
    assert bool(ds["linear_test_error"].isnull().all())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"problem": "paper"}, "problem must be a Problem, not 'paper': load_problem reads one from a file"),
        ({"alpha": "x"}, "alpha must be a positive number up to 1e+06, or a list of them, not 'x'."),
        ({"alpha": 1e308}, "alpha must be a positive number up to 1e+06, or a list of them, not 1e+308."),
        ({"alpha": [1.0, -2.0]}, "alpha must be a positive number up to 1e+06, or a list of them, not -2.0."),
        ({"omega": "high"}, "omega must be a number from 0 to 1, not 'high'."),
        ({"omega": 1.5}, "teacher.omega must be a number from 0 to 1, but it is 1.5."),
        ({"branch": 3}, "branch must be one of semantic, positional, uninformed, mixed, all, not 3."),
        ({"branch": ["semantic", "semantic"]}, "branch has 'semantic' twice: give every value once."),
        ({"branch": "mixed"}, "the mixed branch needs student.rank of at least 2."),
        ({"fields": [("tokens.sigma", 0.5)]}, "fields must be a mapping from fields of the problem to values, not [("),
        ({"fields": {"alpha": [1.0]}}, "alpha is not a field of the problem: give it as the argument alpha."),
        ({"fields": {"branch": "semantic"}}, "branch is not a field of the problem: give it as the argument branch"),
        ({"fields": {"tokens.sigma": []}}, "tokens.sigma must hold at least one value."),
        ({"fields": {"tokens.sigma": [0.5, 0.5]}}, "tokens.sigma has a value twice: give every value once."),
        (
            {"fields": {"tokens.sigma": [[0.5, 0.4]]}},
            "tokens.sigma cannot be swept over [0.5, 0.4]: only numbers, words",
        ),
        ({"fields": {"tokens.sigma": None}}, "tokens.sigma must be a value or a list of values, not None."),
        ({"fields": {"tokens.sigm": 0.5}}, 'unknown key "tokens.sigm": did you mean "tokens.sigma"?'),
        ({"fields": {"tokens.sigma": -1}}, "tokens.sigma must be a positive number"),
        ({"fields": {"student.rank": [1, 2]}}, "sizes, as student.rank does: sweep each size alone."),
        (
            {"fields": {"student.tied": [True, False], "tokens.sigma": [0.4, 0.5]}},
            "sizes, as student.tied does: sweep each size alone.",
        ),
        ({"settings": {"tolerance": 1e-6}}, "not {'tolerance': 1e-06}: write SolverSettings(tolerance=1e-6)."),
        ({"workers": "2"}, "workers must be a whole number from 1 to 1024, not '2'."),
        ({"workers": 1.5}, "workers must be a whole number from 1 to 1024, not 1.5."),
        ({"output": 5}, "output must be the path of a file, not 5."),
        ({"resume": True}, "resume needs output, the file of the sweep that was interrupted: give both."),
        ({"resume": "all", "output": "x.nc"}, "resume must be True, False or \"fitting\", not 'all'."),
        ({"force": 1}, "force must be True or False, not 1."),
        ({"progress": "no"}, "progress must be True or False, not 'no'."),
    ],
)
def test_a_wrong_argument_is_one_sentence(lines, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProblemError) as caught:
        sweep(**{"problem": PROBLEM, "alpha": [1.3], **arguments})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert lines == []
    assert list(tmp_path.iterdir()) == []


def test_an_integration_that_is_not_affordable_is_refused_before_any_work(lines):
    fields = {"integration.rule": ["sobol", "gauss-hermite"], "integration.nodes": 128}
    with pytest.raises(ProblemError, match="Gauss-Hermite rule of order 128 in 4 dimensions"):
        sweep(PROBLEM, 1.3, fields=fields, workers=1)
    assert lines == []


def test_a_huge_grid_is_refused_before_it_is_made(lines):
    """A list of so many numbers would fill the memory."""
    with pytest.raises(ProblemError, match="the grid has 2000000000 points in 2 lines"):
        sweep(PROBLEM, range(10**9), workers=1)
    with pytest.raises(
        ProblemError, match=r"the grid has 3000000 points in 3000000 lines, but may have 10000000 in 10"
    ):
        sweep(PROBLEM, 1.3, range(10**6), "semantic", fields={"integration.seed": range(3)}, workers=1)


def test_a_large_grid_is_checked_without_solving_anything(monkeypatch):
    """Whether a branch exists is asked once for all numbers: the spectrum of every problem would take minutes."""
    asked = []
    monkeypatch.setattr(SWEEP, "initial_overlaps", lambda problem, branch: asked.append((problem, branch)))
    values = np.linspace(0.1, 0.9, 300)
    fields = {"positions.kind": ["opposite", "none"], "integration.seed": [0, 1]}
    swept = SWEEP.axes_of(Problem(), 1.3, values, ("semantic", "positional"), fields)
    lines, _ = SWEEP.lines_of(PROBLEM, swept, ap.SolverSettings())
    assert len(lines) == 2400
    assert {(problem.positions.kind, branch) for problem, branch in asked} == {
        (kind, branch) for kind in ("opposite", "none") for branch in ("semantic", "positional")
    }
    assert len(asked) == 4


def test_kinds_of_tokens_are_swept_alone(lines):
    mixture = PROBLEM.with_fields({"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}]})
    with pytest.raises(ProblemError, match=r"tokens\.kind cannot be swept"):
        sweep(mixture, 1.3, branch="semantic", fields={"tokens.kind": ["gaussian"]}, workers=1)
    assert lines == []


# --- from the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("tokens.sigma=0.3:0.7:5", "sigma", [0.3, 0.4, 0.5, 0.6, 0.7]),
        ("tokens.sigma=0.2:1.6:4:log", "sigma", [0.2, 0.4, 0.8, 1.6]),
        ("tokens.sigma=.3, 0.5,1", "sigma", [0.3, 0.5, 1.0]),
        ("tokens.sigma=0.4", "sigma", [0.4]),
        ("tokens.sigma=1:3:3", "sigma", [1.0, 2.0, 3.0]),
        ("integration.seed=4:6:3", "integration_seed", [4, 5, 6]),
        ("integration.nodes=16:128:4:log", "integration_nodes", [16, 32, 64, 128]),
        ("teacher.score=softmax,linear", "teacher_score", ["softmax", "linear"]),
        ('teacher.score="softmax","exp(z)"', "teacher_score", ["softmax", "exp(z)"]),
        ("teacher.causal=true,false", "teacher_causal", [True, False]),
        ("teacher.omega=0.1,0.2", "omega", [0.1, 0.2]),
    ],
)
def test_vary_reads_values_as_set_does(solver, tmp_path, option, name, values):
    ds = vary(tmp_path, option)
    found = ds[name].to_numpy().tolist()
    if isinstance(values[0], float):
        assert found == pytest.approx(values, rel=1e-14)
        assert ds[name].dtype == np.float64
    else:
        assert found == values
        assert [type(value) for value in found] == [type(value) for value in values]


def test_several_fields_are_varied(lines, tmp_path):
    ds = vary(tmp_path, "tokens.sigma=0.4,0.6", "teacher.score=softmax,linear", ["--omega", "0.1,0.2"])
    assert ds["status"].dims == ("branch", "omega", "sigma", "teacher_score", "alpha")
    assert len(lines) == 8
    assert {p.tokens.sigma for p in lines} == {0.4, 0.6}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["tokens.sigm=0.3,0.4"], 'unknown key "tokens.sigm": did you mean "tokens.sigma"?'),
        (["sigma=0.3"], 'did you mean "tokens.sigma"?'),
        (["tokens.sigma=0.3", "tokens.sigma=0.4"], "tokens.sigma is given twice by --vary: leave one out."),
        (["tokens.sigma=0.3", ["--set", "tokens.sigma=0.4"]], "tokens.sigma is given twice by --set and by --vary"),
        (["teacher.omega=0.3", ["--omega", "0.2"]], "teacher.omega is given twice by --omega and by --vary"),
        (["alpha=0.3:1:3"], "alpha is not a field of the problem: use --alpha."),
        (["branch=semantic"], "branch is not a field of the problem: use --branch."),
        (["tokens.sigma="], "tokens.sigma has no values: write tokens.sigma=START:STOP:COUNT"),
        (["tokens.sigma"], "--vary must read FIELD=VALUES"),
        (["=0.3"], "--vary must read FIELD=VALUES"),
        (["tokens.sigma=[0.3,0.5]"], "tokens.sigma cannot be swept over lists or tables"),
        (["teacher.mixing=[[0.6,0.4],[0.4,0.6]]"], "teacher.mixing cannot be swept over lists or tables"),
        (["tokens.sigma=0.3:0.7"], "tokens.sigma cannot be swept: '0.3:0.7' is neither START:STOP:COUNT[:log] nor"),
        (["tokens.sigma=0.3:0.7:5:lin"], "has something behind START:STOP:COUNT; only :log may stand there"),
        (["tokens.sigma=0:0.7:5:log"], "needs a positive START and STOP"),
        (["tokens.sigma=0.3:0.7:0"], "COUNT from 1"),
        (["tokens.sigma=0.3,,0.5"], 'tokens.sigma cannot be read from ""'),
        (['teacher.score="softmax'], "teacher.score has a quotation mark that is not closed"),
        (["tokens.sigma=softmax"], "tokens.sigma must be a positive number"),
        (["tokens.sigma=0.4,0.40"], "tokens.sigma has a value twice"),
        (["student.tied=true,false"], "sizes, as student.tied does: sweep each size alone."),
    ],
)
def test_what_cannot_be_varied_is_one_sentence(lines, tmp_path, options, sentence):
    assert sentence in refusal(tmp_path, *options)
    assert lines == []


def test_an_alpha_out_of_range_is_refused_before_any_work(lines, tmp_path):
    output = tmp_path / "out.nc"
    result = invoke("sweep", *COARSE, "--alpha", "1e308", "-o", output, "--workers", 1, code=2)
    assert (
        result.stderr
        == "attnphase: error: alpha must be a positive number up to 1e+06, or a list of them, not 1e+308.\n"
    )
    assert lines == []
    assert list(tmp_path.iterdir()) == []


def test_alpha_and_omega_are_spaced_in_the_logarithm(solver, tmp_path):
    output = tmp_path / "out.nc"
    invoke("sweep", *COARSE, "--alpha", "0.5:4:4:log", "--omega", "0.1:0.4:3:log", "-o", output, "--workers", 1)
    ds = load_dataset(output)
    np.testing.assert_allclose(ds["alpha"], [0.5, 1.0, 2.0, 4.0], rtol=1e-14)
    np.testing.assert_allclose(ds["omega"], [0.1, 0.2, 0.4], rtol=1e-14)


@pytest.mark.parametrize("command", ["sweep", "simulate", "experiment"])
def test_numbers_that_are_not_positive_have_no_logarithm(tmp_path, command):
    name = ["fig2"] if command == "experiment" else []
    result = invoke(command, *name, "--alpha", "-1:4:4:log", "-o", tmp_path / "out", code=2)
    assert "needs a positive START and STOP" in result.stderr


# --- spacing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.linspace(-0.3, 0.7, 7), "linear"),
        (np.geomspace(0.01, 3.0, 6), "log"),
        ([4.0, 2.0, 1.0], "log"),
        ([3, 2, 1], "linear"),
        ([0.1, 0.2], ""),
        ([1.0, 2.0, 3.0001], ""),
        ([-1.0, -2.0, -4.0], ""),
        (["a", "b", "c"], ""),
        ([True, False], ""),
        ([1e-9, 2e-9, 4e-9], "log"),
    ],
)
def test_spacing(values, kind):
    assert spacing(values) == kind
