"""Sweeps in several processes, shares or blocks, and sweeps that are taken up: nothing is lost or mixed."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from command import run
from filelock import FileLock

import attnphase as ap
from attnphase.errors import DatasetError, ProblemError, SweepError

PAPER = ap.Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
SETTINGS = ap.SolverSettings(stability=False, identity=False, tolerance=0.3, max_maps=9)
ALPHAS, OMEGAS = [1.1, 1.3], [0.1, 0.13, 0.16]
OWN = """
import multiprocessing, os, signal, time
from pathlib import Path

HERE = Path(__file__).parent

def prox(v, step):
    if (HERE / "fail").exists() and len(v) not in (1, 125, 326, 20001):  # what a function is tried with
        raise RuntimeError("these weights are too many")
    if multiprocessing.parent_process() is not None:
        if (HERE / "die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            (HERE / "die-once").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            pass
        while (HERE / "wait").exists():
            time.sleep(0.01)
    return v / (1 + 0.01 * step)
"""
NUMBER = itertools.count()
KINDS = {"regularizer.kind": ["ridge", "prox"]}
COMMAND = ["sweep", "--alpha", "1.3", "--omega", "0.1,0.16", "--branch", "semantic", "--no-stability", "--no-identity"]
COMMAND += ["own.toml", "--vary", "regularizer.kind=ridge,prox", "-o", "out.nc"]
COMMAND += ["--max-maps", "9", "--tolerance", "0.3", "--allow-unconverged", "--workers"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    name = f"own_{next(NUMBER)}"  # what is known of a module is kept
    Path(f"{name}.py").write_text(OWN)
    problem = PAPER.with_fields({"regularizer.kind": "prox", "regularizer.prox": f"{name}:prox"})
    Path("own.toml").write_text(problem.to_toml())


def sweep(omega=OMEGAS, problem=PAPER, alpha=ALPHAS, branch: Any = "semantic", settings=SETTINGS, **options):
    return ap.sweep(problem, alpha, omega, branch, settings=settings, **{"workers": 1, **options})


@pytest.fixture(scope="module")
def undisturbed():
    """The whole grid of both branches, by this process."""
    return sweep(branch=["semantic", "positional"])


def parts():
    return {path: path.read_bytes() for path in Path("out.nc.parts").glob("line-*.nc")}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Two of the three lines of a sweep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("stopped"))
        count, fsync = itertools.count(1), os.fsync

        def stopping(descriptor):
            if next(count) > 3:
                raise KeyboardInterrupt
            fsync(descriptor)

        patch.setattr(os, "fsync", stopping)
        with pytest.raises(KeyboardInterrupt):
            sweep(output="out.nc")
        return Path("out.nc.parts").absolute()


@pytest.fixture
def unfinished(stopped):
    """A copy of them beside the output."""
    shutil.copytree(stopped, "out.nc.parts")
    assert len(parts()) == 2


# --- shares and blocks -----------------------------------------------------------------------------------------------


def test_shares_make_the_sweep(undisturbed):
    """With nothing but the folder beside the output, in any order, one of them twice; the rest in the end."""
    both, before = {"branch": ["semantic", "positional"], "output": "out.nc"}, {}
    for share in ("3/3", "1/3", "3/3"):
        ds = sweep(shard=share, **both)
        solved = ds["residual"].notnull()
        assert int(solved.sum()) == 2 * len(ALPHAS)
        xr.testing.assert_equal(ds["q"].where(solved, drop=True), undisturbed["q"].where(solved, drop=True))
        times = {path: path.stat().st_mtime_ns for path in parts()}
        assert before.items() <= times.items()  # what is finished is not solved again
        before = times
    assert len(before) == 4
    assert not Path("out.nc").exists()
    xr.testing.assert_equal(sweep(resume=True, **both), undisturbed)
    assert not Path("out.nc.parts").exists()


def test_blocks_make_the_sweep(undisturbed):
    planned = {"branch": ["semantic", "positional"], "folder": "run", "settings": SETTINGS}
    ap.plan_sweep(PAPER, ALPHAS, OMEGAS, blocks=3, **planned)
    with pytest.raises(DatasetError, match="another plan is there; use --force"):
        ap.plan_sweep(PAPER, ALPHAS, OMEGAS, blocks=2, **planned)
    lines = {}
    for block in (2, 3):
        lines |= ap.run_block("run", block, workers=1)
    with pytest.raises(DatasetError, match=r"block 1 of 3 cannot be used, the first since .*: there is no such file"):
        ap.merge_blocks("run", "out.nc")
    with pytest.raises(ProblemError, match="there is no block 4: this plan has blocks 1 to 3"):
        ap.run_block("run", 4)
    before = {path: path.stat().st_mtime_ns for path in Path("run").glob("line-*.nc")}
    ap.plan_sweep(PAPER, ALPHAS, OMEGAS, blocks=4, force=True, **planned)  # keeps what is finished
    for block in (1, 2, 3, 4):
        lines |= ap.run_block("run", block, workers=1)
    assert len(before) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before
    merged = ap.merge_blocks("run", "out.nc")
    xr.testing.assert_equal(merged, undisturbed)
    assert len(lines) == 6
    line = lines["positional, teacher.omega = 0.13"]
    xr.testing.assert_equal(line["q"], undisturbed["q"].sel(branch="positional", omega=0.13).drop_vars("omega"))
    # and it is known to a sweep that is taken up
    xr.testing.assert_identical(sweep(branch=planned["branch"], output="out.nc", resume=True), merged)


# --- taken up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"omega": [0.1, 0.16, 0.22]}, "teacher.omega was 0.1:0.16:3 and is 0.1:0.22:3 now"),
        ({"alpha": [1.1, 1.4]}, "alpha was 1.1, 1.3 and is 1.1, 1.4 now"),
        ({"branch": "positional"}, "branch was semantic and is positional now"),
        ({"problem": PAPER.with_fields({"integration.seed": 3})}, "integration.seed was 0 and is 3 now"),
        ({"settings": replace(SETTINGS, tolerance=1e-5)}, "tolerance was 0.3 and is 1e-05 now"),
    ],
)  # fmt: skip
def test_another_sweep_is_refused_by_what_differs(unfinished, changes, words):
    before = parts()
    with pytest.raises(DatasetError) as caught:
        sweep(output="out.nc", resume=True, **changes)
    assert f"belong to another sweep: {words}" in str(caught.value)
    assert "--resume-fitting" in str(caught.value)
    assert parts() == before
    assert not Path("out.nc").exists()


def test_a_share_waits_for_those_of_another_sweep_at_work(stopped):
    """None of its lines is finished, to be taken up or discarded."""
    shutil.copytree(stopped, "out.nc.parts", ignore=shutil.ignore_patterns("line-*"))
    words = "shares of another sweep are solved there: teacher.omega was .*; wait for them"
    with FileLock("out.nc.parts/share-1-of-3.lock"):
        with pytest.raises(DatasetError, match=words):
            sweep([0.1, 0.22], output="out.nc", shard="2/2")
        with pytest.raises(DatasetError, match=r"share 1 of 3 of a sweep writes to this folder; wait for it"):
            sweep(output="out.nc")


def test_what_fits_is_taken_up_and_the_rest_stays(unfinished, undisturbed, capfd):
    before = parts()
    ds = sweep([0.13, 0.16], output="out.nc", resume="fitting")
    said = capfd.readouterr().err
    stays = parts()
    assert stays.items() < before.items()
    assert "no part of" in said
    xr.testing.assert_equal(ds, undisturbed.sel(branch=["semantic"], omega=[0.13, 0.16]))
    ds = sweep(output="out.nc", resume=True, force=True)  # the first sweep goes on
    xr.testing.assert_equal(ds, undisturbed.sel(branch=["semantic"]))
    assert not Path("out.nc.parts").exists()


def test_a_finished_output_is_returned_if_it_is_this_sweep(capfd):
    whole = sweep(output="out.nc")
    content = Path("out.nc").read_bytes()
    xr.testing.assert_identical(sweep(output="out.nc", resume=True), whole)
    assert "out.nc holds this sweep already; nothing is computed" in capfd.readouterr().err
    assert Path("out.nc").read_bytes() == content
    with xr.set_options(keep_attrs=True):
        halved = whole.assign(q=0.5 * whole["q"])
    for ds, words in (
        (whole.isel(alpha=[1]), "another sweep: alpha was 1.3 and is 1.1, 1.3 now"),
        (whole.isel(omega=[0, 2]), "another sweep: teacher.omega was 0.1, 0.16 and is 0.1:0.16:3 now"),
        (halved, "this sweep with other numbers"),
    ):  # fmt: skip
        ap.save_dataset(ds, "out.nc", force=True)
        content = Path("out.nc").read_bytes()
        with pytest.raises(DatasetError, match=rf"holds {words[:60]}.*; use --force".replace("[", r"\[")):
            sweep(output="out.nc", resume=True)
        assert Path("out.nc").read_bytes() == content


def test_a_line_depends_on_the_source_of_a_function_of_the_users_own():
    """A program that is started again with another function takes up what does not call it alone."""
    command = [sys.executable, "-m", "attnphase", *COMMAND, "1", "--shard", "1/1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    next(Path().glob("own*.py")).write_text(OWN.replace("0.01 * step", "0.02 * step"))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "functions of your own was" in done.stderr
    assert "the 2 of 4 that fit" in done.stderr


# --- workers ---------------------------------------------------------------------------------------------------------


def own(workers, **options):
    return sweep([0.1, 0.16], ap.load_problem("own.toml"), [1.3], fields=KINDS, workers=workers, **options)


def test_a_killed_worker_is_replaced_and_processes_give_what_one_gives(capfd):
    expected = own(1)
    Path("die-once").touch()
    ds = own(2, output="out.nc")
    assert "a worker process died" in capfd.readouterr().err
    xr.testing.assert_equal(ds, expected)
    assert not Path("out.nc.parts").exists()
    Path("die").touch()
    with pytest.raises(SweepError, match=r"died 3 times.*2 of 4 lines are unfinished.*--resume"):
        own(2, output="out.nc", force=True)
    assert len(parts()) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_line_that_fails_is_named_and_the_others_are_kept(workers):
    Path("fail").touch()
    words = (
        r"the line semantic, teacher.omega = 0.1, regularizer.kind = prox failed: .*too many.*kept.*--resume-fitting"
    )
    with pytest.raises(SweepError, match=words) as caught:
        own(workers, output="out.nc")
    assert isinstance(caught.value.__cause__, ProblemError)
    assert len(parts()) == 2
    assert not Path("out.nc").exists()


def test_a_worker_that_imports_an_unguarded_script_starts_no_sweep(monkeypatch):
    monkeypatch.setattr("multiprocessing.process._current_process.name", "SpawnProcess-1")
    monkeypatch.delitem(sys.modules, "__mp_main__")
    with pytest.raises(SystemExit, match="77"):
        sweep(workers=2)
    monkeypatch.setattr("multiprocessing.process._current_process._inheriting", True, raising=False)
    assert not sweep([0.4], alpha=[1.3]).status.any()  # one by this process alone may be there


def wait_until(condition):
    end = time.monotonic() + 600  # then a test gives up; nothing is decided by time
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def group_is_gone(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "kill -9"])
def test_workers_end_with_their_sweep_whose_lines_are_kept(interruptible, how):
    """Two lines are finished while two workers wait within the others: there the command is ended."""
    Path("wait").touch()
    command = [sys.executable, "-m", "attnphase", *COMMAND, "2"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: len(parts()) == 2 or process.poll() is not None)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.kill()  # the parent alone: its workers must notice
    errors = process.communicate(timeout=600)[1]
    wait_until(lambda: group_is_gone(process))
    assert len(parts()) == 2, errors
    assert not Path("out.nc").exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert errors.strip().splitlines()[-1] == (
            "attnphase: interrupted: finished lines are kept; run the same command again with --resume."
        )
    Path("wait").unlink()
    assert "2 of 4 lines are finished already" in run(*COMMAND, 1, "--resume").stderr
    assert not Path("out.nc.parts").exists()


# --- Dask ------------------------------------------------------------------------------------------------------------


def test_a_cluster_gives_what_one_process_gives(tmp_path, undisturbed):
    distributed = pytest.importorskip("distributed", reason='sweeps on a cluster need the extra "distributed"')
    options = {"dashboard_address": None, "host": "127.0.0.1", "local_directory": str(tmp_path / "dask")}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, silence_logs=50, **options) as cluster:
        ds = sweep(scheduler=cluster.scheduler_address, workers=None, output="out.nc")
    xr.testing.assert_equal(ds, undisturbed.sel(branch=["semantic"]))
    assert not Path("out.nc.parts").exists()
