"""Sweeps that are killed, interrupted, resumed, or given bad lines: nothing finished is lost or computed twice."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import gated_lines
import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

from attnphase.cli.commands import main
from attnphase.data.files import load_dataset
from attnphase.errors import DatasetError, ProblemError, SweepError
from attnphase.problem.problem import Problem
from attnphase.processes.progress import ProgressLine
from attnphase.sweeps.grid import sweep
from attnphase.sweeps.store import Store, parts_folder

sweep_module = sys.modules["attnphase.sweeps.grid"]  # as an attribute of the package, sweep is the function
COARSE = {"integration.rule": "sobol", "integration.nodes": 16}
PROBLEM = Problem().with_fields(COARSE)
ALPHAS = [1.6, 2.0]
OMEGAS = [0.1, 0.2, 0.3]
OPTIONS = ["sweep", "--set", "integration.rule=sobol", "--set", "integration.nodes=16"]
OPTIONS += ["--alpha", "1.6,2", "--omega", "0.1,0.2,0.3"]
ALWAYS = 600  # seconds after which a test gives up; nothing is decided by time


@pytest.fixture(scope="module")
def lines():
    """Datasets of the grid's lines by their key."""
    return {}


@pytest.fixture(scope="module")
def undisturbed(lines):
    """The grid, computed by this process."""
    solve = sweep_module.Line.solve

    def kept(self, *args):
        lines[self.key] = solve(self, *args)
        return lines[self.key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_module.Line, "solve", kept)
        return sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)


@pytest.fixture
def gates(tmp_path_factory, monkeypatch):
    """The folder whose files say what lines do; in this process and its workers they are gated ones."""
    folder = tmp_path_factory.mktemp("gates")
    monkeypatch.setenv(gated_lines.FOLDER, str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.setattr(sweep_module, "Line", gated_lines.GatedLine)
    return folder


def parts(output):
    return sorted(parts_folder(output).glob("line-*.nc"))


def wait_until(condition):
    end = time.monotonic() + ALWAYS
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def group_is_gone(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


# --- processes ------------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_replaced_and_processes_give_what_one_gives(undisturbed, gates, tmp_path, capfd):
    (gates / "die-once").touch()
    (gates / "open").touch()
    output = tmp_path / "out.nc"
    ds = sweep(PROBLEM, ALPHAS, OMEGAS, workers=2, output=output)
    assert "a worker process died" in capfd.readouterr().err
    xr.testing.assert_equal(ds, undisturbed)
    xr.testing.assert_identical(load_dataset(output), ds)
    assert [p.name for p in tmp_path.iterdir()] == ["out.nc"]


def test_workers_that_always_die_end_the_sweep(gates, tmp_path):
    (gates / "die").touch()
    with pytest.raises(SweepError, match=r"died 3 times.*2 of 2 lines are unfinished.*--resume"):
        sweep(PROBLEM, [2.0], workers=2, output=tmp_path / "out.nc")
    assert not (tmp_path / "out.nc").exists()


FAILING = """
import numpy as np

def prox(v, step):
    if np.size(v) not in (1, 125, 326, 20001):  # what a function is tried with before it is used
        raise RuntimeError("these weights are too many")
    return v / (1 + step)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_fails_is_named_and_the_others_are_kept(tmp_path, monkeypatch, workers):
    (tmp_path / f"failing{workers}.py").write_text(FAILING)
    monkeypatch.syspath_prepend(tmp_path)
    own = PROBLEM.with_fields({"regularizer.kind": "prox", "regularizer.prox": f"failing{workers}:prox"})
    output = tmp_path / "out.nc"
    fields = {"regularizer.kind": ["ridge", "prox"]}
    line = r"the line semantic, regularizer.kind = prox failed: "
    expected = line + r".*: these weights are too many; .*kept.* with --resume-fitting "
    with pytest.raises(SweepError, match=expected) as caught:
        sweep(own, [2.0], branch=["semantic"], fields=fields, workers=workers, output=output)
    assert isinstance(caught.value.__cause__, ProblemError)
    assert len(parts(output)) == 1
    assert not output.exists()


# --- interruption ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_an_interrupted_sweep_keeps_its_lines_and_is_resumed(undisturbed, gates, tmp_path, how):
    """One line is finished and saved while two workers are at others, which wait: there the command is ended."""
    output = tmp_path / "out.nc"
    # a session of its own, as a terminal would have it
    process = subprocess.Popen(
        [sys.executable, "-m", "gated_lines", *OPTIONS, "--workers", "2", "-o", str(output)],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: parts(output) or process.poll() is not None)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.kill()  # the parent alone: its workers must notice
    errors = process.communicate(timeout=ALWAYS)[1]
    wait_until(lambda: group_is_gone(process))
    finished = parts(output)
    assert len(finished) == 1, errors
    assert not output.exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in errors
        sentence = errors.strip().splitlines()[-1]
        assert sentence == (
            "attnphase: interrupted: finished lines are kept; run the same command again with --resume."
        )
    before = {path: path.stat().st_mtime_ns for path in finished}

    refused = CliRunner().invoke(main, [*OPTIONS, "-o", str(output)])
    assert refused.exit_code == 2
    assert "--resume" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in parts(output)} == before

    (gates / "open").touch()
    resumed = CliRunner().invoke(main, [*OPTIONS, "-o", str(output), "--resume", "--workers", "1"])
    assert resumed.exit_code == 0, resumed.output
    assert "1 of 6 lines are finished already" in resumed.stderr
    xr.testing.assert_equal(load_dataset(output), undisturbed)
    assert [p.name for p in tmp_path.iterdir()] == ["out.nc"]


REFINED = [*OPTIONS[:5], "--alpha", "0.2:2:17", "--omega", "0.1:0.5:3", "--branch", "semantic", "--no-stability"]
REFINED += ["--refine", "--workers", "1", "--allow-unconverged"]


@pytest.mark.slow
def test_a_refined_sweep_that_is_killed_goes_on_with_the_same_rounds(gates, tmp_path):
    """Within its second round, whose points follow from the first: what is left is solved once, to the same numbers."""
    (gates / "open").touch()
    whole, output = tmp_path / "whole.nc", tmp_path / "out.nc"
    assert CliRunner().invoke(main, [*REFINED, "-o", str(whole)]).exit_code == 0
    labels = gated_lines.noted(gates / "solved")
    first = next(i for i in range(len(labels)) if labels[i] in labels[:i])  # of the second round
    assert 2 < first < len(labels) - 2
    (gates / "solved").unlink()
    (gates / "open").unlink()
    gated_lines.note(gates / "most", str(first + 1))
    process = subprocess.Popen([sys.executable, "-m", "gated_lines", *REFINED, "-o", str(output)])
    wait_until(lambda: len(gated_lines.noted(gates / "begun")) > len(labels) + first + 1 or process.poll() is not None)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert len(parts(output)) == first + 1
    assert not output.exists()
    (gates / "most").unlink()
    (gates / "open").touch()
    resumed = CliRunner().invoke(main, [*REFINED, "-o", str(output), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert gated_lines.noted(gates / "solved") == labels
    xr.testing.assert_equal(load_dataset(output), load_dataset(whole))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.nc", "whole.nc"]


def test_ctrl_c_in_python_is_passed_on(tmp_path):
    def interrupt(self, done):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "reach", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sweep(PROBLEM, ALPHAS, OMEGAS, workers=2, output=tmp_path / "out.nc")
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []


# --- finished lines -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crashed(undisturbed, lines, tmp_path_factory):
    """The folder of an output whose sweep stopped after two of six lines, as if by a crash."""
    output = tmp_path_factory.mktemp("crashed") / "out.nc"
    save = Store.save

    def save_two(self, line, ds):
        save(self, line, ds)
        if len(parts(output)) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save", save_two)
        patch.setattr(sweep_module.Line, "solve", lambda self, *_: lines[self.key])
        with pytest.raises(KeyboardInterrupt):
            sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=output)
    assert len(parts(output)) == 2
    return output.parent


@pytest.fixture
def half_done(crashed, tmp_path):
    """A copy of that output."""
    return shutil.copytree(crashed, tmp_path / "copy") / "out.nc"


@pytest.fixture
def solved(lines, undisturbed, monkeypatch):
    """Labels of the lines that are computed in this process; those of the grid are known already."""
    labels = []
    solve = sweep_module.Line.solve

    def counted(self, *args):
        labels.append(self.label)
        return lines[self.key] if self.key in lines else solve(self, *args)

    monkeypatch.setattr(sweep_module.Line, "solve", counted)
    return labels


def test_finished_lines_are_not_computed_again(undisturbed, half_done, solved):
    ds = sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=half_done, resume=True)
    xr.testing.assert_equal(ds, undisturbed)
    assert len(solved) == 4


@pytest.mark.parametrize("damage", [b"", b"CDF nonsense", None], ids=["empty", "garbage", "truncated"])
def test_a_damaged_line_is_computed_again(undisturbed, half_done, solved, capsys, damage):
    path = parts(half_done)[0]
    path.write_bytes(path.read_bytes()[:3000] if damage is None else damage)
    ds = sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=half_done, resume=True)
    xr.testing.assert_equal(ds, undisturbed)
    assert len(solved) == 5
    assert "computed again" in capsys.readouterr().err


def test_lines_of_another_problem_are_not_taken_up(half_done, solved):
    other = PROBLEM.with_fields({"regularizer.strength": 0.02})
    with pytest.raises(DatasetError, match=r"regularizer\.strength was 0\.01 and is 0\.02 now"):
        sweep(other, ALPHAS, OMEGAS, workers=1, output=half_done, resume=True)
    assert solved == []
    assert len(parts(half_done)) == 2


def test_force_discards_finished_lines(half_done, solved):
    sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=half_done, force=True)
    assert len(solved) == 6


def test_a_full_disk_ends_in_a_sentence_and_keeps_what_is_there(half_done, solved, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.writing.os.fsync", full)
        with pytest.raises(DatasetError, match="No space left on device"):
            sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=half_done, resume=True)
    assert len(parts(half_done)) == 2
    assert len(list(parts_folder(half_done).iterdir())) == 4  # and the lock, and what the sweep is


def test_two_sweeps_do_not_share_an_output(half_done):
    import filelock

    with filelock.FileLock(parts_folder(half_done) / "lock"), pytest.raises(DatasetError, match="another sweep"):
        sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=half_done, resume=True)
    assert len(parts(half_done)) == 2


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"alpha": [0.0]}, "alpha must be a positive number"),
        ({"alpha": [np.nan]}, "alpha must be a positive number"),
        ({"alpha": []}, "alpha must hold at least one value"),
        ({"alpha": [1.0, 1.0]}, "alpha has 1.0 twice"),
        ({"omega": [1.5]}, "teacher.omega must be a number from 0 to 1"),
        ({"branch": ["sematic"]}, "branch must be one of"),
        ({"fields": {"teacher.omga": [0.1]}}, "did you mean"),
        ({"fields": {"tokens.length": [2, 3]}}, "sweep each size alone"),
        ({"fields": {"teacher.mixing": [((0.5, 0.5), (0.5, 0.5))]}}, "cannot be swept"),
        ({"fields": {"teacher.omega": [0.1]}, "omega": [0.1]}, "twice"),
        ({"workers": 0}, "workers must be a whole number from 1"),
        (
            {"shard": 3, "output": "out.nc"},
            'shard must be K/N, share K from 1 to N of N shares, at most 100000 in all, as "3/16", not 3',
        ),
        ({"shard": "0/2", "output": "out.nc"}, "share K from 1 to N"),
        ({"shard": "5/2", "output": "out.nc"}, "share K from 1 to N"),
        ({"shard": "1/1000000", "output": "out.nc"}, "at most 100000 in all"),
        ({"shard": "1/2"}, "shard needs output"),
        ({"shard": "1/2", "output": "out.nc", "force": True}, "shard goes neither with refine nor with force"),
        ({"shard": "1/9", "output": "out.nc"}, "shard must be at most "),
        ({"scheduler": 8786}, "scheduler must be the address of a Dask scheduler"),
        ({"scheduler": "10.0.0.1:8786"}, "scheduler must be the address of a Dask scheduler"),
        ({"scheduler": "tcp://10.0.0.1:8786", "workers": 2}, "give workers or scheduler, not both"),
        ({"fields": {"positions.kind": ["none"]}}, "positional"),
    ],
)
def test_a_bad_grid_is_refused_before_any_work(solved, arguments, sentence):
    with pytest.raises(ProblemError, match=sentence):
        sweep(PROBLEM, **{"alpha": ALPHAS, **arguments})
    assert solved == []


def test_an_output_that_cannot_be_written_is_refused_before_any_work(solved, tmp_path):
    with pytest.raises(DatasetError, match="no folder"):
        sweep(PROBLEM, ALPHAS, output=tmp_path / "missing" / "out.nc")
    (tmp_path / "out.nc").touch()
    with pytest.raises(DatasetError, match="--force"):
        sweep(PROBLEM, ALPHAS, output=tmp_path / "out.nc")
    assert solved == []


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import attnphase as ap\n"
        f"problem, sweep = ap.Problem().with_fields({COARSE!r}), ap.sweep\n"
        "sweep(problem, [2.0], branch=['semantic', 'positional'], workers=2)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode != 0
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "died" not in done.stderr  # nothing is tried again


@pytest.mark.parametrize(
    ("workers", "code", "said"),
    [(None, 0, "<stdin>, which is not a file: the sweep runs in this process alone"), (2, 1, "or give workers=1.")],
)
def test_a_script_from_standard_input_has_no_workers(workers, code, said, tmp_path):
    """As a job script has it: multiprocessing would have every worker import a file of the name <stdin>."""
    script = (
        "import attnphase as ap, os\n"
        "os.sched_getaffinity = lambda pid: set(range(8))\n"
        "if __name__ == '__main__':\n"
        f"    problem = ap.Problem().with_fields({COARSE!r})\n"
        f"    print(ap.sweep(problem, [2.0], [0.1, 0.2], branch='uninformed', workers={workers}).sizes['omega'])\n"
    )
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ("2\n" if code == 0 else "")
    assert "died" not in done.stderr
