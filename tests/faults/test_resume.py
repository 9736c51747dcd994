"""Finished lines of interrupted sweeps: taken up where they fit, refused where they do not, and never lost."""

import importlib
import json
import re
import shutil
from pathlib import Path

import pytest
import xarray as xr
from click.testing import CliRunner
from made_up import SWEEP, Solver

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.files import load_dataset, save_dataset
from attnphase.errors import DatasetError, ProblemError, SolverError, SweepError
from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.problem import Problem
from attnphase.sweeps import line as lines_module
from attnphase.sweeps.grid import sweep
from attnphase.sweeps.store import parts_folder

PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
ALPHAS = [1.1, 1.3]
OMEGAS = [0.1, 0.18, 0.26]
OTHER_OMEGAS = [0.1, 0.16, 0.22]
FIGURES = importlib.import_module("attnphase.figures")


@pytest.fixture
def solver(monkeypatch):
    return Solver(monkeypatch)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.nc"


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """The finished lines of a sweep over six, interrupted after semantic, omega = 0.1 and 0.18."""
    output = tmp_path_factory.mktemp("interrupted") / "out.nc"
    with pytest.MonkeyPatch.context() as patch:
        Solver(patch).lines_left = 2
        with pytest.raises(KeyboardInterrupt):
            run(output)
    assert len(parts(output)) == 2
    return parts_folder(output)


@pytest.fixture
def unfinished(interrupted, solver, output):
    """An output with these lines beside it."""
    shutil.copytree(interrupted, parts_folder(output))
    return output


def run(output, omega=OMEGAS, problem=PROBLEM, alpha=ALPHAS, **options):
    return sweep(problem, alpha, omega, workers=1, output=output, **options)


def parts(output):
    return {path: path.read_bytes() for path in parts_folder(output).glob("line-*.nc")}


def holds(ds, path):
    """Whether a dataset has the numbers of a finished line."""
    line = xr.load_dataset(path)
    place = {"branch": str(line["branch"].item()), "omega": Problem.from_toml(line.attrs["problem"]).teacher.omega}
    if place["omega"] not in ds["omega"]:
        return False
    return bool((ds["q"].sel(place) == line["q"]).all())


# --- another sweep ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"omega": OTHER_OMEGAS}, "teacher.omega was 0.1:0.26:3 and is 0.1:0.22:3 now"),
        ({"omega": [0.1, 0.2]}, "teacher.omega was 0.1:0.26:3 and is 0.1, 0.2 now"),
        ({"omega": None}, "teacher.omega was 0.1:0.26:3 and is 0.3 now"),
        ({"alpha": [1.1, 1.4]}, "alpha was 1.1, 1.3 and is 1.1, 1.4 now"),
        ({"branch": "positional"}, "branch was semantic, positional and is positional now"),
        ({"problem": PROBLEM.with_fields({"integration.seed": 3})}, "integration.seed was 0 and is 3 now"),
        (
            {"problem": PROBLEM.with_fields({"integration.rule": "gauss-hermite"})},
            "integration.rule was sobol and is gauss-hermite now; integration.nodes was 16 and is not set now",
        ),
        ({"problem": PROBLEM.with_fields({"tokens.sigma": [0.4, 0.6]})}, "tokens.sigma was 0.5 and is 0.4, 0.6 now"),
        ({"settings": SolverSettings(tolerance=1e-5)}, "tolerance was 1e-07 and is 1e-05 now"),
        ({"settings": SolverSettings(method="anderson")}, "method was newton and is anderson now"),
    ],
)
def test_another_sweep_is_refused_by_what_differs(unfinished, solver, changes, sentence):
    before = parts(unfinished)
    with pytest.raises(DatasetError) as caught:
        run(unfinished, **{"resume": True, **changes})
    assert f"belong to another sweep: {sentence}" in str(caught.value)
    assert "--resume-fitting" in str(caught.value)
    assert solver.labels == []
    assert parts(unfinished) == before
    assert not unfinished.exists()


def test_what_fits_is_counted_in_the_refusal(unfinished):
    with pytest.raises(DatasetError, match=r"to take up the 1 of 2 that fits and leave the others"):
        run(unfinished, OTHER_OMEGAS, resume=True)


def test_long_lists_are_told_apart_by_the_first_value_that_differs(solver, output):
    uneven = [0.1, 0.2, 0.31, 0.4, 0.5, 0.6, 0.7, 0.8]
    solver.lines_left = 1
    with pytest.raises(KeyboardInterrupt):
        run(output, uneven)
    with pytest.raises(
        DatasetError, match=r"teacher\.omega has 0\.41 instead of 0\.4; and|has 0\.41 instead of 0\.4\. "
    ):
        run(output, [*uneven[:3], 0.41, *uneven[4:]], resume=True)


@pytest.mark.parametrize("what", ["source code", "attnphase"])
def test_another_version_is_refused_and_its_lines_stay(unfinished, solver, monkeypatch, what):
    if what == "attnphase":
        monkeypatch.setattr("attnphase.version.__version__", "9.8.7")
    else:
        monkeypatch.setattr(lines_module, "source_hash", lambda: 64 * "f")
    before = parts(unfinished)
    with pytest.raises(DatasetError, match=rf"{what} was \S+ and is (9\.8\.7|f{{16}}) now"):
        run(unfinished, resume=True)
    if what == "source code":
        run(unfinished, resume="fitting")
        assert len(solver.labels) == 6
    assert parts(unfinished) == before


def test_what_fits_is_taken_up_and_the_rest_stays(interrupted, unfinished, solver, capsys):
    ds = run(unfinished, OTHER_OMEGAS, resume="fitting")
    assert len(solver.labels) == 5
    assert "semantic, teacher.omega = 0.1" not in solver.labels
    stays = {path.name: path.read_bytes() for path in interrupted.glob("line-*.nc") if not holds(ds, path)}
    assert len(stays) == 1
    assert {path.name: data for path, data in parts(unfinished).items()} == stays
    # and what the other sweep is; this one needs no description any more
    assert (interrupted / description(unfinished).name).exists()
    said = capsys.readouterr().err
    assert f"1 finished line that is no part of this sweep stays in {parts_folder(unfinished)}." in said
    xr.testing.assert_identical(load_dataset(unfinished), ds)


def test_the_first_sweep_goes_on_after_another_one_to_the_same_output(unfinished, solver):
    run(unfinished, OTHER_OMEGAS, resume="fitting")
    solver.labels.clear()
    ds = run(unfinished, resume=True, force=True)
    # of the two lines, one went into the file that is replaced now
    assert sorted(solver.labels) == sorted(
        [
            *(f"semantic, teacher.omega = {omega:g}" for omega in OMEGAS),
            *(f"positional, teacher.omega = {omega:g}" for omega in OMEGAS[:2]),
        ]
    )
    assert not parts_folder(unfinished).exists()
    assert ds["omega"].to_numpy().tolist() == OMEGAS


def test_two_unfinished_sweeps_lie_side_by_side(unfinished, solver):
    solver.lines_left = 2
    with pytest.raises(KeyboardInterrupt):
        run(unfinished, OTHER_OMEGAS, resume="fitting")
    assert len(parts(unfinished)) == 4
    solver.lines_left = 0
    for omegas in (OMEGAS, OTHER_OMEGAS):  # either is known, so that neither is refused
        with pytest.raises(KeyboardInterrupt):
            run(unfinished, omegas, resume=True)
    assert len(parts(unfinished)) == 4
    solver.lines_left = float("inf")
    solver.labels.clear()
    first = run(unfinished, resume=True)
    assert len(solver.labels) == 4
    assert not any(holds(first, path) for path in parts(unfinished))
    run(unfinished, OTHER_OMEGAS, resume=True, force=True)
    assert not parts_folder(unfinished).exists()


def test_one_value_is_the_same_as_the_problems_own(solver, output):
    solver.lines_left = 1
    with pytest.raises(KeyboardInterrupt):
        run(output, [0.2])
    solver.lines_left = float("inf")
    ds = run(output, None, PROBLEM.with_fields({"teacher.omega": 0.2}), resume=True)
    assert "omega" not in ds.dims
    assert len(solver.labels) == 2
    assert not parts_folder(output).exists()


# --- what lies beside the lines --------------------------------------------------------------------------------------


def description(output):
    (path,) = parts_folder(output).glob("sweep-*.json")
    return path


def test_the_description_can_be_read(unfinished):
    entries = json.loads(description(unfinished).read_text())
    assert entries["alpha"] == ALPHAS
    assert entries["teacher.omega"] == OMEGAS
    assert entries["branch"] == ["semantic", "positional"]
    assert entries["integration.nodes"] == 16
    assert entries["tolerance"] == 1e-7


@pytest.mark.parametrize("damage", [None, b"", b'{"alpha": ', b"[1, 2]", b"\xff\xfe", b'{"alpha": [2.0]}'])
def test_lines_without_a_description_are_unknown(unfinished, solver, damage):
    path = description(unfinished)
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    before = parts(unfinished)
    with pytest.raises(DatasetError, match=r"do not say which sweep they belong to.*the 2 of 2 that fit"):
        run(unfinished, resume=True)
    assert parts(unfinished) == before
    run(unfinished, resume="fitting")
    assert len(solver.labels) == 4
    assert not parts_folder(unfinished).exists()


def test_nothing_is_left_of_a_sweep_without_a_finished_line(solver, output):
    solver.lines_left = 0
    with pytest.raises(KeyboardInterrupt):
        run(output)
    assert list(output.parent.iterdir()) == []


def test_what_a_killed_process_leaves_is_no_obstacle(unfinished, solver):
    folder = parts_folder(unfinished)
    (folder / "lock").touch()
    (folder / ".line-0123.nc.abc.part").write_bytes(b"half")
    run(unfinished, resume=True)
    assert len(solver.labels) == 4
    assert not folder.exists()


def test_foreign_files_stay(unfinished):
    notes = parts_folder(unfinished) / "notes.txt"
    notes.write_text("mine")
    run(unfinished, force=True)
    assert notes.read_text() == "mine"


# --- damaged lines ---------------------------------------------------------------------------------------------------


def test_a_damaged_line_is_kept_until_it_is_computed_again(unfinished, solver, capsys):
    damaged, _ = sorted(parts(unfinished))
    damaged.write_bytes(b"CDF nonsense")
    solver.lines_left = 0
    with pytest.raises(KeyboardInterrupt):
        run(unfinished, resume=True)
    assert damaged.read_bytes() == b"CDF nonsense"
    assert f"computed again: {damaged}" in capsys.readouterr().err
    solver.lines_left = float("inf")
    run(unfinished, resume=True)
    assert len(solver.labels) == 5


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_among_the_lines_is_not_written_through(unfinished, solver, tmp_path, capsys, dangling):
    line, _ = sorted(parts(unfinished))
    (description,) = parts_folder(unfinished).glob("sweep-*.json")
    targets = [tmp_path / "treasure", tmp_path / "another"]
    for path, target in zip((line, description), targets, strict=True):
        path.unlink()
        if not dangling:
            target.write_text("mine")
        path.symlink_to(target)
    run(unfinished, resume="fitting")
    assert [target.read_text() if target.exists() else None for target in targets] == [None if dangling else "mine"] * 2
    assert unfinished.is_file()


def test_a_line_under_the_name_of_another_is_computed_again(unfinished, solver, capsys):
    one, other = sorted(parts(unfinished))
    one.write_bytes(other.read_bytes())
    ds = run(unfinished, resume=True)
    assert len(solver.labels) == 5
    assert "holds another one" in capsys.readouterr().err
    xr.testing.assert_equal(ds, run(None))


# --- discarded lines -------------------------------------------------------------------------------------------------


def test_without_resume_or_force_nothing_happens(unfinished, solver):
    before = parts(unfinished)
    with pytest.raises(DatasetError, match=r"--resume \(resume=True\).*--force"):
        run(unfinished)
    assert solver.labels == []
    assert parts(unfinished) == before


def test_force_says_how_many_lines_it_discards(unfinished, solver, capsys):
    run(unfinished, OTHER_OMEGAS, force=True)
    assert len(solver.labels) == 6
    assert f"2 finished lines are discarded from {parts_folder(unfinished)}." in capsys.readouterr().err
    assert not parts_folder(unfinished).exists()


# --- a finished output -----------------------------------------------------------------------------------------------


def test_a_finished_sweep_is_returned_as_it_is(solver, output, capsys):
    done = run(output)
    before = output.read_bytes()
    solver.labels.clear()
    again = run(output, resume=True)
    assert solver.labels == []
    assert output.read_bytes() == before
    xr.testing.assert_identical(again, done)
    assert f"{output} holds this sweep already; nothing is computed" in capsys.readouterr().err


def test_a_finished_file_of_another_sweep_is_not_replaced(solver, output):
    run(output)
    before = output.read_bytes()
    for options, what in (
        ({"omega": OTHER_OMEGAS}, "teacher.omega was 0.1:0.26:3 and is 0.1:0.22:3 now"),
        ({"settings": SolverSettings(tolerance=1e-5)}, "tolerance was 1e-07 and is 1e-05 now"),
    ):
        with pytest.raises(DatasetError, match=rf"holds another sweep: {what}; use --force") as caught:
            run(output, **{"resume": True, **options})
        assert "; and" not in str(caught.value)
    assert output.read_bytes() == before
    # a point, and a sweep of before it was said what it is
    for change in ({"sweep": None, "sweep_hash": None}, {"sweep": "[" * 100_000, "sweep_hash": "x"}):
        ds = load_dataset(output)
        ds.attrs |= change
        ds.attrs = {name: value for name, value in ds.attrs.items() if value is not None}
        save_dataset(ds, output, force=True)
        with pytest.raises(DatasetError, match=r"holds something else than a finished sweep; use --force"):
            run(output, omega=OTHER_OMEGAS, resume=True)
    output.write_bytes(b"precious")
    with pytest.raises(DatasetError, match=r"not a netCDF file.*--force"):
        run(output, resume=True)
    assert output.read_bytes() == b"precious"
    output.write_bytes(before)
    solver.labels.clear()
    run(output, resume=True, force=True)
    assert len(solver.labels) == 6


def test_a_part_of_a_finished_file_and_other_numbers_are_not_taken_for_the_sweep(solver, output):
    run(output)
    whole = load_dataset(output)
    solver.labels.clear()
    with xr.set_options(keep_attrs=True):
        halved = whole.assign(q=0.5 * whole["q"])
    for changed, what in (
        (whole.isel(alpha=[1]), "another sweep: alpha was 1.3 and is 1.1, 1.3 now"),
        (whole.isel(omega=[0, 2], alpha=0), r"another sweep: teacher.omega was 0.1, 0.26 and is 0.1:0.26:3 now; alpha"),
        (whole.sel(branch=["positional"]), "another sweep: branch was positional and is semantic, positional now"),
        (whole.isel(alpha=[1, 0]), "another sweep: alpha was 1.3, 1.1 and is 1.1, 1.3 now"),
        (halved, "this sweep with other numbers"),
    ):
        save_dataset(changed, output, force=True)
        before = output.read_bytes()
        with pytest.raises(DatasetError, match=rf"holds {what}.*; use --force"):
            run(output, resume=True)
        assert output.read_bytes() == before
    save_dataset(whole, output, force=True)  # rewritten as it was
    xr.testing.assert_identical(run(output, resume=True), whole)
    assert solver.labels == []


# --- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [SolverError("too extreme."), ProblemError("x", "x is wrong.")])
def test_what_fails_again_is_not_to_be_resumed(solver, output, error):
    solver.failures["positional, teacher.omega = 0.18"] = error
    with pytest.raises(
        SweepError, match=r"0\.18 failed: (too extreme|x is wrong); finished lines are kept in"
    ) as caught:
        run(output)
    assert "leave out what fails, and take them up with --resume-fitting" in str(caught.value)
    assert "--resume " not in str(caught.value)
    assert caught.value.__cause__ is error
    assert len(parts(output)) == 5
    run(output, [0.1, 0.26], resume="fitting")
    assert len(solver.labels) == 5
    # the semantic line at 0.18 is in no finished file
    assert len(parts(output)) == 1


def test_other_failures_may_be_mended(solver, output):
    solver.failures["positional, teacher.omega = 0.18"] = MemoryError("no room")
    with pytest.raises(
        SweepError, match=r"no room; finished lines are kept in .*: run again with --resume \(resume=True"
    ):
        run(output)


def test_nothing_is_kept_of_a_sweep_that_fails_at_once(solver, output):
    solver.failures |= {f"semantic, teacher.omega = {omega:g}": SolverError("too extreme.") for omega in OMEGAS}
    with pytest.raises(SweepError, match=r"failed: too extreme \(3 lines failed\)\.$"):
        run(output, branch="semantic")
    assert list(output.parent.iterdir()) == []


# --- keys ------------------------------------------------------------------------------------------------------------


def key(problem=PROBLEM, branch="semantic", alphas=(1.1, 1.3), **settings):
    return SWEEP.Line(problem, branch, alphas, SolverSettings(**settings), "").key


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": PROBLEM.with_fields({"teacher.mixing": [[0.6, 0.4], [0.4, 0.61]]})},
        {"problem": PROBLEM.with_fields({"integration.seed": 1})},
        {"branch": "positional"},
        {"alphas": (1.1, 1.30000001)},
        {"alphas": (1.1,)},
        {"tolerance": 2e-7},
        {"max_maps": 399},
        {"max_seconds": 59.0},
        {"max_nodes": 2**17},
        {"method": "anderson"},
    ],
)
def test_a_line_is_known_by_all_that_decides_about_it(changes):
    assert key(**changes) != key()


def test_a_line_does_not_depend_on_the_number_of_threads():
    assert key(threads=3) == key()


SOURCES = ["sweeps/grid.py", "experiments/histogram/steps.py", "../derivations/algebra/calculus.py"]


@pytest.mark.parametrize("changed", SOURCES)
def test_a_line_depends_on_every_source_file(monkeypatch, changed):
    before = key()
    path = (Path(str(ap.__file__)).parent / changed).resolve()
    assert path.is_file()
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + (b"#" if self.resolve() == path else b""))
    monkeypatch.setattr(lines_module, "source_hash", lines_module.source_hash.__wrapped__)
    assert key() != before


def test_a_line_depends_on_the_source_of_a_function_of_the_users_own(tmp_path, monkeypatch):
    source = "def prox(v, step):\n    return v / (1 + 0.01 * step)\n"
    (tmp_path / "own_prox.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own = PROBLEM.with_fields({"regularizer.kind": "prox", "regularizer.prox": "own_prox:prox"})
    before = key(own)
    (tmp_path / "own_prox.py").write_text(source.replace("0.01", "0.02"))
    lines_module._module_hash.cache_clear()
    assert key(own) != before


# --- the command line ------------------------------------------------------------------------------------------------


def command(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="attnphase")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_the_command_takes_up_what_fits(unfinished, solver):
    options = ["sweep", "--alpha", "1.1,1.3", "--set", "integration.rule=sobol", "--set", "integration.nodes=16"]
    options += ["--omega", "0.1,0.16,0.22", "-o", unfinished, "--workers", 1]
    refused = command(*options, "--resume", code=2)
    assert "belong to another sweep" in refused.stderr
    assert refused.stderr.count("\n") == 1
    result = command(*options, "--resume-fitting")
    assert "1 of 6 lines are finished already" in result.stderr
    assert "1 finished line that is no part of this sweep stays in" in result.stderr
    assert re.match(rf"{unfinished}: 12 converged(; replica symmetry fails at \d points)?\n$", result.stdout)
    assert "holds this sweep already" in command(*options, "--resume").stderr
    assert len(solver.labels) == 5


def test_the_main_job_goes_on_and_keeps_lines_of_other_settings(tmp_path, solver, monkeypatch):
    for name in ("fig2", "fig3", "save_figure"):
        monkeypatch.setattr(FIGURES, name, lambda *_: None)
    folder = tmp_path / "results"
    options = ["phase-diagram", "--output", folder, "--omegas", 2, "--workers", 1]
    data = folder / "phase_diagram.nc"
    solver.lines_left = 2
    assert "run the same command again" in command(*options, "--alphas", 3, "--nodes", 16, code=130).stderr
    kept = parts(data)
    assert len(kept) == 2
    solver.lines_left = float("inf")
    for others in (["--alphas", 3, "--nodes", 32], ["--alphas", 2, "--nodes", 16]):
        solver.labels.clear()
        if data.exists():
            refused = command(*options, *others, code=2).stderr
            assert "integration.nodes was 32 and is 16 now" in refused
            assert not solver.labels
        result = command(*options, *others, "--force")
        assert len(solver.labels) == 6  # omega = 0.3 is there in any case
        assert f"2 finished lines that are no part of it stay in {folder / 'phase_diagram.nc.parts'}" in result.stderr
        assert parts(data) == kept
    solver.labels.clear()
    command(*options, "--alphas", 3, "--nodes", 16, "--force")
    assert len(solver.labels) == 4
    assert not parts_folder(data).exists()
    assert load_dataset(data).sizes["alpha"] == 3
    assert "nothing is computed" in command(*options, "--alphas", 3, "--nodes", 16).stderr
    assert len(solver.labels) == 4
