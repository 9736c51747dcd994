"""Every command gives the numbers of its function, prints them, writes what it says, and ends with the right code."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from by_formula import FEW, points
from command import run

import attnphase as ap

ROOT = Path(__file__).parents[2]
PROBLEM = ap.Problem.paper(omega=0.31).with_fields(FEW)
SET = ["--set", "teacher.omega=0.31", *(word for name, value in FEW.items() for word in ("--set", f"{name}={value}"))]
SETTINGS = ap.SolverSettings(tolerance=3e-6, max_maps=150, max_nodes=4096, stability=False, identity=False)
ITERATION = "--tolerance 3e-6 --max-maps 150 --max-nodes 4096 --allow-unconverged"
SOLVER = f"{ITERATION} --no-stability --no-identity"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(command, *words, code=0):
    return run(*command.split(), *words, code=code)


def written(folder):
    return sorted(path.name for path in folder.iterdir())


COMMANDS = [
    (f"solve --alpha 1.7 --branch positional {SOLVER}", lambda: ap.solve(PROBLEM, 1.7, "positional", settings=SETTINGS),
     "V"),
    ("solve --alpha 1.7 --sensitivity tokens.sigma", lambda: ap.sensitivity(PROBLEM, 1.7, "tokens.sigma"),
     "d_training_loss"),
    (f"sweep --alpha 1.6:1.9:2 --vary tokens.sigma=0.4,0.6 --branch semantic --workers 1 {SOLVER}",
     lambda: ap.sweep(PROBLEM, [1.6, 1.9], branch="semantic", fields={"tokens.sigma": [0.4, 0.6]}, workers=1,
                      settings=SETTINGS), None),
    ("thresholds --omega 0.25 0.3 --alpha 1 2", lambda: ap.thresholds(PROBLEM, omega=[0.25, 0.3], alpha=(1, 2)),
     "alpha_l"),
    (f"follow --field tokens.sigma --between 0.45 0.5 --alpha 1.6 --at 0.48 {SOLVER}",
     lambda: ap.follow(PROBLEM, 1.6, "tokens.sigma", (0.45, 0.5), at=0.48, settings=SETTINGS), "training_loss"),
    (f"solutions --alpha 1.7 --starts 0 --seed 3 {SOLVER}",
     lambda: ap.solutions(PROBLEM, 1.7, starts=0, seed=3, settings=SETTINGS), "training_loss"),
    (f"tune --alpha 1.7 --field regularizer.strength --metric training_loss --between 0.01 0.02 {ITERATION}",
     lambda: ap.tune(PROBLEM, 1.7, "regularizer.strength", "training_loss", between=(0.01, 0.02), settings=SETTINGS),
     "optimum"),
    ("sgd-flow --start semantic=0.2,noise=0.3 --learning-rate 0.7 --batch 2 --until 90 --records 4 --tolerance 1e-3",
     lambda: ap.sgd_flow(PROBLEM, "semantic=0.2,noise=0.3", 0.7, 90.0, batch=2, records=4, tolerance=1e-3),
     "population_risk"),
    ("stationary --learning-rate 0.3 --batch 2 --starts 1 --seed 2",
     lambda: ap.stationary(PROBLEM, 0.3, batch=2, starts=1, seed=2), "test_error"),
    ("basins --omega 0.3 --scale 0.3 --angle 10,80 --noise 0.1 --until 20 --learning-rate 0.2 --batch 2"
     " --allow-unconverged",
     lambda: ap.basins(PROBLEM, [0.3], [0.3], [10, 80], noise=0.1, until=20, learning_rate=0.2, batch=2), None),
    ("one-rsb --alpha 1.2 --branch uninformed --y 0.8 --start informed --outer 16 --inner 16 --tolerance 1e-2"
     " --max-maps 30 --allow-unconverged",
     lambda: ap.one_rsb(PROBLEM, 1.2, "uninformed", y=0.8, start="informed", outer=16, inner=16,
                        settings=ap.SolverSettings(tolerance=1e-2, max_maps=30)), None),
    ("bayes-optimal --alpha 0.42 --start uninformed --max-nodes 512 --vary tokens.sigma=0.4,0.6",
     lambda: ap.bayes_optimal(PROBLEM, 0.42, start="uninformed", fields={"tokens.sigma": [0.4, 0.6]},
                              settings=ap.SolverSettings(max_nodes=512)), "test_error"),
    ("simulate --alpha 1.7 --start semantic --dimension 20,30 --seeds 2 --seed 5 --optimizer adam --steps 9"
     " --learning-rate 0.02 --test-samples 7",
     lambda: ap.simulate(PROBLEM, 1.7, "semantic", [20, 30], 2, "adam", seed=5, steps=9, learning_rate=0.02,
                         test_samples=7), None),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("command", "function", "shown"), COMMANDS, ids=[one[0].split()[0] for one in COMMANDS])
def test_a_command_gives_the_numbers_of_its_function(command, function, shown):
    expected = function()
    result = call(command, *(SET[2:] if "--omega" in command else SET), "-o", "out.nc")
    found = ap.load_dataset("out.nc")
    xr.testing.assert_allclose(found.drop_attrs(), expected.drop_attrs(), rtol=1e-10, atol=1e-14)
    assert ap.Problem.from_toml(found.attrs["problem"]).integration == PROBLEM.integration
    assert "attnphase" in found.attrs["history"].splitlines()[-1]
    if shown is not None:
        value = float(expected[shown].to_numpy().ravel()[0])
        printed = [float(one) for one in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", re.sub(r"\(\d+\)", "", result.stdout))]
        assert min(abs(one - value) for one in printed) < 0.03 * abs(value)


def test_all_branches_of_a_problem_file_are_printed_as_json():
    Path("problem.toml").write_text(PROBLEM.to_toml(), encoding="utf-8")
    told = run("solve", "problem.toml", "--alpha", 2, "--branch", "all", "--json", "-o", "out.nc").stdout
    data, ds = json.loads(told, parse_constant=pytest.fail), ap.load_dataset("out.nc")
    assert data["branch"] == ["semantic", "positional", "uninformed"]
    for name in ("q", "theta_stderr", "test_error", "iterations"):
        np.testing.assert_array_equal(data[name], ds[name])


def test_a_solve_prints_its_numbers_with_their_errors():
    told = run("solve", "--alpha", 1.6, "--branch", "positional", *SET).stdout
    ds = ap.solve(PROBLEM, 1.6, "positional", progress=False)
    printed = re.findall(r"(-?\d+(?:\.(\d+))?)\((\d+)\)", told)  # 0.1148(5) is 0.1148, and 0.0005 is its error
    found = [(float(value), float(error) / 10 ** len(digits), 10.0 ** -len(digits)) for value, digits, error in printed]
    for name in ("q", "m", "V"):
        for value, error in zip(ds[name].to_numpy().ravel(), ds[f"{name}_stderr"].to_numpy().ravel(), strict=True):
            assert any(abs(v - value) <= last and abs(e - error) <= last for v, e, last in found), (name, value, error)


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("solve --alpha 2 --max-maps 1", 1, r"not converged: .*alpha = 2 \(iteration_limit, residual .*\); --all"),
        ("solve --alpha 2 --max-maps 1 --allow-unconverged", 0, r"not converged: .*\.$"),
        ("solve --alpha 1.7 --branch all --max-maps 21", 1, r"not converged: branch = positional, alpha = 1.7 \(iter"),
        ("sweep --alpha 1.6,2 --omega 0.2 --max-maps 1 --workers 1 -o out.nc", 1, r"and \d more; --allow-unconverged"),
        ("check --max-maps 1 --no-experiment", 1, ""),
        ("check --no-experiment --quiet", 0, r"^$"),
        ("basins --omega 0.3 --scale 0.3 --angle 10 --until 5", 1, r"1 of 1 starts not at rest"),
        ("solve --alpha 1.8 --branch uninformed", 0, r"^attnphase: uninformed: overlap_gap = [\d.()]+ is above 0\.2"),
        ("solve --alpha 1.8 --branch uninformed --quiet", 0, r"^$"),
        ("solve --alpha 0.4 --set integration.standard_error=0.01 --no-stability", 0, r"theta = 0 within its error"),
        ("solve --alpha 0", 2, r"^attnphase: error: alpha must be [^\n]*\n$"),
        ("solve --alpha 2 --omega 0.2", 2, r"Give the field as --set teacher\.omega=VALUE\.\n$"),
    ],
)  # fmt: skip
def test_a_command_ends_with_its_code(folder, command, code, said):
    where = [] if "--set" in command or code == 2 else SET[2:] if "--omega" in command else SET
    result = call(command, *where, code=code)
    assert re.search(said, result.stderr, re.DOTALL)
    assert not result.stdout if code == 2 or "--quiet" in command else result.stdout
    assert written(folder) == (["out.nc"] if "-o out.nc" in command else [])


def test_a_solve_goes_on_from_a_file():
    call("solve --alpha 1.7 --max-seconds 1e-9 -o early.nc --allow-unconverged --quiet", *SET)
    call("solve --alpha 1.7 --start early.nc -o on.nc --quiet", *SET)
    early, on, whole = ap.load_dataset("early.nc"), ap.load_dataset("on.nc"), ap.solve(PROBLEM, 1.7)
    assert early["status"] == 1
    assert abs(early["q"] - whole["q"]).max() > 0.01
    assert abs(on["q"] - whole["q"]).max() < 1e-6


def test_the_main_job_writes_data_and_figures_and_draws_them_again(folder):
    command = "phase-diagram --output results --alphas 3 --omegas 2 --nodes 64 --workers 1 --no-stability"
    told = call(command).stdout
    assert written(folder / "results") == ["fig2.png", "fig3.png", "phase_diagram.nc"]
    ds = ap.load_dataset("results/phase_diagram.nc")
    assert ds["omega"].to_numpy().tolist() == [0.0, 0.3, 0.5]  # that of figure 2 is added
    np.testing.assert_allclose(ds["alpha"], [0.05, 1.025, 2.0])
    (crossing,) = set(re.findall(r"alpha_c at omega = 0\.3 +([\d.]+)", told))
    assert float(crossing) == pytest.approx(ap.figures.loss_crossing(ds.sel(omega=0.3)).alpha, rel=0.05)
    before = (folder / "results" / "phase_diagram.nc").stat().st_mtime_ns
    assert call(command).stdout.splitlines()[0] == told.splitlines()[0]
    assert (folder / "results" / "phase_diagram.nc").stat().st_mtime_ns == before


@pytest.fixture
def data():
    ds = points({"tokens.sigma": [0.3, 0.6], "teacher.causal": [True, False]})
    ap.save_dataset(ds, "a.nc")
    ap.save_dataset(points({"teacher.omega": [0.1, 0.2, 0.3]}), "b.nc")
    ap.save_dataset(points({"tokens.sigma": [0.3, 0.6]}).isel(branch=1), "one.nc")
    return ds


@pytest.mark.parametrize(
    ("command", "made", "said"),
    [
        ("fig2 --data a.nc --at tokens.sigma=0.6 --at teacher_causal=false", ["fig2.png"], ""),
        ("fig3 --data b.nc -o x.pdf", ["x.pdf"], ""),
        (
            "fig9 --data a.nc --at teacher.causal=true --quantity theta --with-data -o y.svg",
            ["y.svg", "y.nc", "y.txt"],
            "",
        ),
        ("gap --data b.nc --with-data -o g.png --quiet", ["g.png", "g.nc", "g-limit.nc", "g.txt"], ""),
        ("fig3 --data one.nc --with-data -o x.svg", [], "(one.nc) has no dimension branch"),
        ("fig9 --set tokens.sigma=0.4", [], "fig9 varies tokens.sigma: leave --set tokens.sigma out."),
    ],
)
def test_figures_are_drawn_from_files_into_files(folder, data, command, made, said):
    before = written(folder)
    result = call(f"figure {command}", code=0 if made else 2)
    assert said in result.stderr
    assert result.stdout.split() == ([] if "--quiet" in command else made)
    assert sorted({*written(folder)} - {*before}) == sorted(made)
    for name in made:
        if name.endswith(".txt"):
            told = Path(name).read_text()
            assert "converged" in told
            assert "teacher.omega = 0.3" in told or "omega 0.1, 0.2, 0.3" in told
        elif not name.endswith(".nc"):
            begin = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[Path(name).suffix]
            assert Path(name).read_bytes().startswith(begin)
    if "y.nc" in made:
        assert ap.load_dataset("y.nc").equals(data)
    if "g-limit.nc" in made:  # another student has the same limit
        assert call("figure gap --data b.nc --limit g-limit.nc -o h.png --quiet").output == ""
        assert Path("h.png").read_bytes() == Path("g.png").read_bytes()
