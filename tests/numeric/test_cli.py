"""The command line: what it prints, what it writes, and one sentence with an exit code for whatever goes wrong."""

import importlib
import json
import re
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from command import run

from attnphase.data.files import load_dataset
from attnphase.data.variables import POINT_VARIABLES
from attnphase.errors import CacheError
from attnphase.fixed_points.threshold import Outcome
from attnphase.problem.problem import Problem

COARSE = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16"]
# as attributes of the package, solve and sweep are the functions
POINTS = importlib.import_module("attnphase.sweeps.points")
BRANCHES = importlib.import_module("attnphase.fixed_points.branches")
CRITICAL = importlib.import_module("attnphase.sweeps.critical")
SWEEP = importlib.import_module("attnphase.sweeps.grid")


def sentence(*arguments, code=2):
    """What a refused command says: one sentence, and nothing on standard output."""
    result = run(*arguments, code=code)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("attnphase: error: ")
    assert lines[0][-1] in ".?)"
    return lines[0]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unconverged(monkeypatch):
    """A solver that always fails, so that the failure's path stays tested."""
    solve_point = POINTS.solve_point

    def fail(*args, **kwargs):
        settings = POINTS.SolverSettings(max_maps=1)
        return solve_point(*args, **{**kwargs, "settings": settings})

    monkeypatch.setattr(POINTS, "solve_point", fail)
    monkeypatch.setattr(BRANCHES, "solve_point", fail)


# --- help -----------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from attnphase.cli.commands import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "heavy = {'numpy', 'scipy', 'sympy', 'numba', 'xarray', 'matplotlib', 'pydantic', 'netCDF4', 'rich'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "phase-diagram" in done.stdout


@pytest.mark.parametrize("command", ["solve", "sweep", "thresholds", "derive", "figure", "phase-diagram"])
def test_every_command_has_help(command):
    assert "Usage" in run(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("sgd-flow", "--omega", "0.2"), " Give the field as --set teacher.omega=VALUE."),
        (("solve", "--lambda=0.2"), " Give the field as --set regularizer.strength=VALUE."),
        (("explore", "--omega", "0.2"), ""),  # which has no --set
        (("solve", "--omga", "0.2"), ""),
    ],
)
def test_a_symbol_given_as_an_option_is_told_how_it_is_set(arguments, hint):
    option = arguments[1].partition("=")[0]
    told = rf"attnphase: error: No such option:? '?{option}'?\.{re.escape(hint)}"  # click's words depend on its version
    assert re.fullmatch(told, sentence(*arguments))


def test_version():
    assert re.fullmatch(r"attnphase \d.*\n", run("--version").stdout)


# --- solve ----------------------------------------------------------------------------------------------------------


def test_a_later_solve_imports_what_it_needs_alone():
    """Once the kernels are in the cache it neither derives, draws, makes datasets, nor gets ready to compile."""
    arguments = ["solve", "--alpha", "2", *COARSE]
    run(*arguments)
    code = (
        "import sys\n"
        "from attnphase.cli.commands import main\n"
        "try:\n"
        f"    main({arguments})\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "idle = {'sympy', 'derivations.models', 'derivations.codegen', 'scipy.stats', 'numba.np.linalg'}\n"
        "idle |= {'xarray', 'pandas', 'dask'}\n"
        "idle |= {'netCDF4', 'matplotlib', 'torch'}\n"
        "sys.exit(str(idle & set(sys.modules)) if idle & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_solve_prints_a_table():
    result = run("solve", "--alpha", 2, *COARSE)
    for name in ("q[1]", "theta[2]", "test_error", "residual", "iterations", "nodes", "status"):
        assert re.search(rf"^{re.escape(name)} +\S", result.stdout, re.MULTILINE), name
    assert re.search(r"^theta\[1\] +0\.15\d*\(\d+\)$", result.stdout, re.MULTILINE)
    assert result.stderr == ""


def test_solve_prints_json():
    result = run("solve", "--alpha", 2, "--json", *COARSE)
    data = json.loads(result.stdout, parse_constant=pytest.fail)
    assert set(data) >= {variable.name for variable in POINT_VARIABLES} | {"alpha", "branch", "q_stderr"}
    assert data["alpha"] == 2.0
    assert data["branch"] == "semantic"
    assert np.shape(data["q"]) == (2, 1, 1)
    assert np.shape(data["m"]) == (2, 1)
    assert 0 < data["test_error"] < 0.01


def test_solve_writes_all_branches_from_a_file(in_folder):
    problem = Problem.paper(omega=0.2).with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    (in_folder / "problem.toml").write_text(problem.to_toml(), encoding="utf-8")
    result = run("solve", "problem.toml", "--alpha", 2, "--branch", "all", "-o", "out.nc", "--quiet")
    assert result.output == ""
    ds = load_dataset("out.nc")
    assert ds["branch"].to_numpy().tolist() == ["semantic", "positional", "uninformed"]
    assert Problem.from_toml(ds.attrs["problem"]) == problem


def test_set_changes_a_field(in_folder):
    run("solve", "--alpha", 2, "--set", "teacher.omega=0.1", *COARSE, "-o", "out.nc", "--quiet")
    assert "omega = 0.1" in load_dataset("out.nc").attrs["problem"]


def test_what_did_not_converge_is_written_flagged_and_ends_with_1(in_folder, unconverged):
    result = run("solve", "--alpha", 2, *COARSE, "-o", "out.nc", code=1)
    # the first test to want these kernels is told that they are compiled
    said = [line for line in result.stderr.splitlines() if "compiling the kernels" not in line]
    assert re.fullmatch(
        r"attnphase: semantic: not converged, so it is not decided whether this is the branch\.\n"
        r"attnphase: not converged: .*alpha = 2.*\(iteration_limit, residual .*\); --allow-unconverged accepts this\.",
        "\n".join(said),
    )
    assert "iteration_limit" in result.stdout
    assert load_dataset("out.nc")["status"].item() == 1
    assert "not converged" in run("solve", "--alpha", 2, *COARSE, "--allow-unconverged").stderr


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["solve"], "--alpha"),
        (["solve", "--alpha", "x"], "--alpha"),
        (["solve", "--alpha", "-1"], "alpha must be"),
        (["solve", "--alpha", "0"], "alpha must be"),
        (["solve", "--alpha", "nan"], "alpha must be"),
        (["solve", "--alpha", "1", "--alfa", "2"], "--alfa"),
        (["solve", "--alpha", "1", "--branch", "sematic"], "sematic"),
        (["solve", "--alpha", "1", "--set", "teacher.omega=2"], "teacher.omega must be a number from 0 to 1"),
        (["solve", "--alpha", "1", "--set", "teacher.omga=0.2"], 'did you mean "teacher.omega"?'),
        (["solve", "--alpha", "1", "--set", "omega"], "field=value"),
        (["solve", "--alpha", "1", "--method", "magic"], "method must be"),
        (["solve", "--alpha", "1", "--tolerance", "-1"], "tolerance must"),
        (["solve", "--alpha", "1", "--max-maps", "0"], "max_maps must"),
        (["solve", "--alpha", "1", "--max-nodes", "0"], "max_nodes must"),
        (["solve", "--alpha", "1", "--max-seconds", "0"], "max_seconds must be a positive number of seconds, not 0.0"),
        (["sweep", "--alpha", "1,2", "-o", "x.nc", "--max-seconds", "nan"], "max_seconds must be a positive number"),
        (["solve", "--alpha", "1", "--start", "missing.nc"], "missing.nc: there is no such file"),
        (["solve", "missing.toml", "--alpha", "1"], "missing.toml: there is no such file"),
        (["solve", "--alpha", "1", "--branch", "positional", "--set", "positions.kind=none"], "positional"),
        (["sweep", "--alpha", "1:2", "-o", "x.nc"], "START:STOP:COUNT"),
        (["sweep", "--alpha", "1:inf:3", "-o", "x.nc"], "finite"),
        (["sweep", "--alpha", "1:2:0", "-o", "x.nc"], "COUNT"),
        (["sweep", "--alpha", "0:2:3", "-o", "x.nc"], "alpha must be a positive number"),
        (["sweep", "--alpha", "1,2"], "--output"),
        (["sweep", "--alpha", "1,2", "-o", "no/x.nc"], "there is no folder no"),
        (["sweep", "--alpha", "1,2", "-o", "x.nc", "--workers", "0"], "workers must"),
        (["thresholds", "--omega", "0.1", "bad.toml"], "bad.toml"),
        (["derive", "--format", "word"], "word"),
        (["figure", "fig5"], "fig5"),
        (["figure", "fig2", "--data", "missing.nc"], "missing.nc: there is no such file"),
        (["phase-diagram"], "--output"),
        (["nonsense"], "nonsense"),
    ],
)
def test_bad_input_gets_one_sentence(in_folder, arguments, named):
    assert named in sentence(*arguments)
    assert list(in_folder.iterdir()) == []


def test_a_file_with_a_misspelt_key_is_refused(in_folder):
    (in_folder / "p.toml").write_text("[teacher]\nomga = 0.2\n")
    assert 'did you mean "teacher.omega"' in sentence("solve", "p.toml", "--alpha", 1)


def test_an_existing_file_needs_force(in_folder):
    (in_folder / "out.nc").write_text("precious")
    for command in (["solve", "--alpha", 2], ["sweep", "--alpha", "1,2"], ["thresholds", "--omega", 0.3]):
        assert "--force" in sentence(*command, *COARSE, "-o", "out.nc")
    (in_folder / "fig2.png").write_text("precious")
    assert "--force" in sentence("figure", "fig2")
    assert (in_folder / "out.nc").read_text() == (in_folder / "fig2.png").read_text() == "precious"
    run("solve", "--alpha", 2, *COARSE, "-o", "out.nc", "--force", "--quiet")
    load_dataset("out.nc")


def test_a_solve_goes_on_from_a_file(in_folder):
    run("solve", "--alpha", 1.7, *COARSE, "--max-seconds", 1e-9, "-o", "early.nc", "--allow-unconverged", "--quiet")
    run("solve", "--alpha", 1.7, *COARSE, "--start", "early.nc", "-o", "on.nc", "--quiet")
    run("solve", "--alpha", 1.7, *COARSE, "-o", "whole.nc", "--quiet")
    early, on, whole = (load_dataset(f"{name}.nc") for name in ("early", "on", "whole"))
    assert early.status == 1
    assert abs(early.q - whole.q).max() > 0.01
    assert abs(on.q - whole.q).max() < 1e-6


def test_a_truncated_file_is_refused(in_folder):
    run("solve", "--alpha", 2, *COARSE, "-o", "out.nc", "--quiet")
    path = in_folder / "out.nc"
    path.write_bytes(path.read_bytes()[:5000])
    assert "truncated" in sentence("figure", "fig2", "--data", "out.nc")


def test_a_cache_of_somebody_else_is_refused(in_folder, monkeypatch):
    def foreign(problem):
        raise CacheError("kernel cache /x belongs to another user.")

    monkeypatch.setattr(importlib.import_module("attnphase.state_evolution.system"), "kernels_for", foreign)
    assert "another user" in sentence("solve", "--alpha", 2)


def test_a_full_disk_ends_in_a_sentence(in_folder, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("attnphase.files.writing.os.fsync", full)
    result = run("solve", "--alpha", 2, *COARSE, "-o", "out.nc", code=2)
    assert result.stderr == "attnphase: error: out.nc: the file cannot be written: No space left on device.\n"
    assert list(in_folder.iterdir()) == []


def test_exit_codes_of_the_process(in_folder):
    command = [sys.executable, "-m", "attnphase", "solve"]
    done = subprocess.run([*command, "--alpha", "0"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("attnphase: error: alpha must be")
    assert done.stderr.count("\n") == 1


# --- grids and figures ----------------------------------------------------------------------------------------------


def test_sweep_writes_a_grid(in_folder):
    result = run("sweep", "--alpha", "1.6:2:2", "--omega", "0.2,0.3", *COARSE, "-o", "out.nc", "--workers", 1)
    assert "8 converged" in result.stdout
    ds = load_dataset("out.nc")
    assert ds["status"].dims == ("branch", "omega", "alpha")
    assert ds["alpha"].to_numpy().tolist() == [1.6, 2.0]
    assert [path.name for path in in_folder.iterdir()] == ["out.nc"]


def test_sweep_reports_what_did_not_converge(in_folder, unconverged):
    arguments = ["sweep", "--alpha", "1.6,2", *COARSE, "-o", "out.nc", "--workers", 1]
    result = run(*arguments, code=1)
    assert "and 1 more" in result.stderr
    assert "branch = semantic, alpha = 1.6 (iteration_limit" in result.stderr
    run(*arguments, "--force", "--allow-unconverged")


def test_thresholds_takes_many_values(in_folder, monkeypatch):
    """Made-up thresholds, whose computation is tested beside the published ones."""

    def made_up(problem, *_):
        omega = problem.teacher.omega
        return {"alpha_c": CRITICAL.Threshold(1 + omega, 0.01), "alpha_l": CRITICAL.Threshold(2 - omega, 0.02)}

    monkeypatch.setattr(CRITICAL, "thresholds_of", made_up)
    result = run("thresholds", "--omega", "0.25", "0.3", *COARSE, "-o", "t.nc", "--json")
    data = json.loads(result.stdout)
    assert data["omega"] == [0.25, 0.3]
    assert data["alpha_c"] == [1.25, 1.3]
    assert data["alpha_l"] == [1.75, 1.7]
    assert data["alpha_l_stderr"] == [0.02, 0.02]
    assert load_dataset("t.nc")["alpha_c"].to_numpy().tolist() == [1.25, 1.3]
    table = run("thresholds", "--omega", "0.25", "0.3", *COARSE).stdout
    assert re.search(r"^ *0\.25 +1\.250\(10\) +1\.75\(2\) *$", table, re.MULTILINE), table


def test_thresholds_take_the_problems_own_omega_and_say_why_there_are_none(in_folder, monkeypatch):
    """Made-up ones again: the problem's omega is 0.17, and no branch is where alpha_l is looked for."""

    def made_up(problem, *_):
        reason = "there is no semantic branch at alpha = 0.4"
        none = CRITICAL.Threshold.absent(Outcome.no_branch, reason)
        return {"alpha_c": CRITICAL.Threshold(1 + problem.teacher.omega, 0.01), "alpha_l": none}

    monkeypatch.setattr(CRITICAL, "thresholds_of", made_up)
    result = run("thresholds", "--set", "teacher.omega=0.17", *COARSE, "-o", "t.nc")
    assert re.search(r"^ *0\.17 +1\.170\(10\) +no branch *$", result.stdout, re.MULTILINE), result.stdout
    assert "alpha_l at omega = 0.17: there is no semantic branch at alpha = 0.4." in result.stderr
    ds = load_dataset("t.nc")
    assert ds["alpha_l_status"].to_numpy().tolist() == [Outcome.no_branch]
    assert ds["alpha_l_status"].attrs["comment"] == "omega = 0.17: there is no semantic branch at alpha = 0.4"
    assert not run("thresholds", *COARSE, "--quiet").stderr


@pytest.mark.parametrize(("form", "expected"), [("latex", r"\documentclass"), ("markdown", "# "), ("python", "def ")])
def test_derive_prints_equations(form, expected):
    assert expected in run("derive", "--format", form).stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished folder of the main job on a small grid, and what the job printed, twice."""
    folder = tmp_path_factory.mktemp("main") / "results"
    solve, known = SWEEP.Line.solve, {}

    def remembered(self, *args):
        if self.key not in known:
            known[self.key] = solve(self, *args)
        return known[self.key]

    with pytest.MonkeyPatch.context() as patch:
        coarse = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
        patch.setattr(Problem, "paper", classmethod(lambda cls, *args, **kwargs: coarse))
        patch.setattr(SWEEP.Line, "solve", remembered)
        arguments = ["phase-diagram", "--output", folder, "--alphas", 3, "--omegas", 2, "--nodes", 256, "--workers", 1]
        result = run(*arguments)
        assert len(known) == 6
        drawn = (folder / "fig3.png").stat().st_mtime_ns
        again = run(*arguments)  # what it has made, drawn again
        assert len(known) == 6
        assert (folder / "fig3.png").stat().st_mtime_ns > drawn
    assert again.stdout.splitlines()[0] == result.stdout.splitlines()[0]
    return folder, result


def test_the_main_job_writes_data_and_figures(finished):
    folder, result = finished
    assert sorted(path.name for path in folder.iterdir()) == ["fig2.png", "fig3.png", "phase_diagram.nc"]
    ds = load_dataset(folder / "phase_diagram.nc")
    assert ds["omega"].to_numpy().tolist() == [0.0, 0.3, 0.5]  # that of figure 2 is added
    assert ds["alpha"].to_numpy().tolist() == pytest.approx([0.05, 1.025, 2.0])
    assert (folder / "fig2.png").read_bytes().startswith(b"\x89PNG")
    assert "converged" in result.stdout
    (crossing,) = set(re.findall(r"alpha_c at omega = 0\.3 +([\d.]+)\(\d+\)", result.stdout))
    assert 1.025 < float(crossing) < 2


@pytest.mark.parametrize("name", ["fig2", "fig3"])
def test_figures_are_drawn_from_data(in_folder, finished, name):
    data = finished[0] / "phase_diagram.nc"
    run("figure", name, "--data", data)
    run("figure", name, "--data", data, "-o", "x.pdf", "--quiet")
    assert (in_folder / f"{name}.png").stat().st_size > 10_000
    assert (in_folder / "x.pdf").read_bytes().startswith(b"%PDF")
    assert "no figure format" in sentence("figure", name, "--data", data, "-o", "x.xyz")


def test_a_figure_needs_the_right_data(in_folder, finished):
    run("solve", "--alpha", 2, *COARSE, "-o", "one.nc", "--quiet")
    assert "no dimension" in sentence("figure", "fig3", "--data", "one.nc")
    ds = load_dataset(finished[0] / "phase_diagram.nc")
    with xr.set_options(keep_attrs=True):
        shifted = ds.assign_coords(omega=ds["omega"] + 0.01)
    shifted.to_netcdf("shifted.nc")
    assert "omega = 0.3" in sentence("figure", "fig2", "--data", "shifted.nc")
