"""Processes that meet in one folder of finished lines: nothing is lost, whoever stands still where, or is killed."""

import importlib
import signal
import threading
from contextlib import contextmanager

import filelock
import pytest
import stop_at
import xarray as xr
from command import run as command
from made_up import Solver

import attnphase as ap
from attnphase.data.files import load_dataset
from attnphase.errors import DatasetError
from attnphase.problem.problem import Problem
from attnphase.sweeps.store import parts_folder

PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
ALPHAS, OTHER_ALPHAS = [1.1, 1.3], [1.1, 1.4]
OMEGAS = [0.1, 0.13, 0.16]
OPTIONS = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16", "--alpha", "1.1,1.3"]
OPTIONS += ["--omega", "0.1,0.13,0.16", "--quiet"]
ALWAYS = 600  # seconds after which a test gives up; nothing is decided by time

# after these functions have returned, in the order in which a share calls them; it holds its lock, and not the door
BEGINNING = ("attnphase.sweeps.locks:_taken_in_turn", 1)
FIRST_LINE = ("attnphase.sweeps.line:Line.solve", 1)
FIRST_PART = ("attnphase.files.writing:tempfile.mkstemp", 2)  # the first is that of the description
SECOND_LINE = ("attnphase.sweeps.line:Line.solve", 2)
SECOND_PART = ("attnphase.files.writing:tempfile.mkstemp", 3)
ALL_SOLVED = ("attnphase.sweeps.grid:solved_lines", 1)
PLACES = [BEGINNING, FIRST_LINE, FIRST_PART, SECOND_LINE, SECOND_PART, ALL_SOLVED]


@pytest.fixture
def solver(monkeypatch):
    return Solver(monkeypatch)


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.nc"


def run(output, alpha=ALPHAS, **options):
    return ap.sweep(PROBLEM, alpha, OMEGAS, workers=1, output=output, **options)


@contextmanager
def standing_still(monkeypatch, place, call, calls=1):
    """A call in a thread of its own, which stands still when a function has been called so often; it ends in the end.

    Yields its result, in a list that is empty until then.
    """
    module, _, name = place.partition(":")
    *owners, last = name.split(".")
    owner = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    function, reached, go, left, found = getattr(owner, last), threading.Event(), threading.Event(), [calls], []

    def stopping(*args, **kwargs):
        result = function(*args, **kwargs)
        if threading.current_thread() is thread:
            left[0] -= 1
            if left[0] == 0:
                reached.set()
                assert go.wait(ALWAYS)
        return result

    def work():
        try:
            found.append(call())
        except BaseException as error:
            found.append(error)
        finally:
            reached.set()

    thread = threading.Thread(target=work, daemon=True)
    with monkeypatch.context() as patch:
        patch.setattr(owner, last, stopping)
        thread.start()
        try:
            assert reached.wait(ALWAYS)
            assert found == []
            yield found
        finally:
            go.set()
            thread.join(ALWAYS)


@pytest.fixture(scope="module")
def undisturbed():
    with pytest.MonkeyPatch.context() as patch:
        Solver(patch)
        return run(None)


def finished(output):
    return {path.name: path.read_bytes() for path in parts_folder(output).glob("line-*.nc")}


@pytest.mark.parametrize("place", PLACES, ids=lambda place: f"{place[0].rpartition(':')[2]}-{place[1]}")
def test_nobody_takes_from_a_share_at_work(monkeypatch, solver, undisturbed, output, tmp_path, place):
    with standing_still(monkeypatch, place[0], lambda: run(output, shard="1/2"), place[1]) as found:
        before = finished(output)
        for options in ({"resume": True}, {"resume": "fitting"}, {"force": True}, {}):
            with pytest.raises(DatasetError) as caught:
                run(output, **options)
            what = "share 1 of 2 of a sweep writes to this folder; wait for it, or choose another output."
            assert str(caught.value) == f"{parts_folder(output)}: {what}"
        if place != BEGINNING:  # where the share does not yet say what it is one of
            with pytest.raises(DatasetError, match=r"another sweep.*: alpha was 1\.1, 1\.3 and is 1\.1, 1\.4 now"):
                run(output, OTHER_ALPHAS, shard="2/2")
        assert finished(output) == before
        run(output, shard="1/3")  # has lines of the share that stands still
        run(output, shard="2/2")
        assert before.items() <= finished(output).items()
    assert isinstance(found[0], xr.Dataset), found[0]
    assert int((found[0]["status"] == 0).sum()) == 2 * 3
    left = [path.name for path in parts_folder(output).iterdir()]
    assert len(left) == 7
    assert len(finished(output)) == 6
    solver.labels.clear()
    xr.testing.assert_equal(run(output, resume=True), undisturbed)
    assert solver.labels == []
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_of_two_sweeps_that_begin_at_once_one_is_refused(monkeypatch, solver, undisturbed, output):
    with standing_still(monkeypatch, BEGINNING[0], lambda: run(output, shard="1/2")) as found:
        run(output, OTHER_ALPHAS, shard="2/2")
    assert "the finished lines there belong to another sweep: alpha" in str(found[0])
    xr.testing.assert_equal(run(output, resume="fitting"), undisturbed)
    assert len(finished(output)) == 3


def test_a_share_does_not_begin_beside_a_whole_sweep(monkeypatch, solver, output, tmp_path):
    with standing_still(monkeypatch, FIRST_PART[0], lambda: run(output), FIRST_PART[1]) as found:
        for call in (
            lambda: run(output, shard="1/2"),
            lambda: run(output, resume=True),
            lambda: run(output, force=True),
        ):
            with pytest.raises(DatasetError, match="another sweep writes to this folder; wait for it"):
                call()
    assert isinstance(found[0], xr.Dataset), found[0]
    assert len(solver.labels) == len(set(solver.labels)) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


@pytest.mark.parametrize("options", [{"resume": True}, {"shard": "1/2"}, {}], ids=str)
def test_an_output_that_comes_while_one_begins_is_not_solved_again(monkeypatch, solver, output, tmp_path, options):
    """Between a look at the output and the lock."""
    with standing_still(monkeypatch, "attnphase.sweeps.grid:check_dataset", lambda: run(output, **options)) as found:
        whole = run(output)
        before = output.read_bytes()
        solver.labels.clear()
    assert solver.labels == []
    if options.get("resume"):
        xr.testing.assert_equal(found[0], whole)
    else:
        assert "the file exists" in str(found[0])
    assert output.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_locks_of_killed_processes_hold_nobody_up(solver, output, tmp_path):
    folder = parts_folder(output)
    folder.mkdir()
    for name in ("lock", "door", "share-1-of-2.lock", "share-7-of-9.lock", ".line-0123.nc.abc.part", ".sweep-1.x.part"):
        (folder / name).touch()
    run(output, shard="1/2")
    assert sorted(path.name for path in folder.glob("*lock")) == ["lock"]
    run(output, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_a_folder_that_is_removed_while_one_comes_is_made_again(monkeypatch, solver, output, tmp_path):
    """By a process that was the last to leave it, between the making of the folder and of the lock in it."""
    acquire, removed = filelock.FileLock.acquire, []

    def acquired(lock, *args, **kwargs):
        if not removed:
            removed.append(parts_folder(output).rmdir())
        return acquire(lock, *args, **kwargs)

    monkeypatch.setattr(filelock.FileLock, "acquire", acquired)
    run(output, shard="1/2")
    run(output, resume=True)
    assert removed
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_two_plans_at_once_are_not_both_taken(monkeypatch, solver, tmp_path):
    def plan(blocks):
        return lambda: ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=blocks, folder=tmp_path / "run")

    with standing_still(monkeypatch, "attnphase.sweeps.blocks:Plan.of", plan(2)) as found:
        plan(3)()
    assert "another plan is there" in str(found[0])


def test_a_block_of_a_new_plan_leaves_the_old_plans_block_alone(monkeypatch, solver, undisturbed, tmp_path):
    folder = tmp_path / "run"

    def plan(blocks):
        ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=blocks, folder=folder, force=True)

    plan(1)
    place = "attnphase.files.writing:tempfile.mkstemp"
    with standing_still(monkeypatch, place, lambda: ap.run_block(folder, 1, workers=1)) as found:
        plan(6)
        for block in range(2, 7):
            ap.run_block(folder, block, workers=1)
    assert isinstance(found[0], dict), found[0]
    ap.run_block(folder, 1, workers=1)
    xr.testing.assert_equal(ap.merge_blocks(folder), undisturbed)


@pytest.mark.slow
def test_a_share_that_is_killed_while_it_writes(solver, output, tmp_path):
    """By another process, as the operating system kills it; --force is refused before, and welcome after."""
    refused = []

    def meanwhile():
        refused.append(command("sweep", *OPTIONS, "-o", output, "--force", "--workers", 1, code=2).stderr)

    share = ["sweep", *OPTIONS, "--shard", "1/2", "-o", str(output), "--workers", "1"]
    code, _ = stop_at.ended(signal.SIGKILL, *SECOND_PART, share, meanwhile)
    assert code == -signal.SIGKILL
    assert "share 1 of 2 of a sweep writes to this folder" in refused[0]
    folder = parts_folder(output)
    assert len(list(folder.glob("line-*.nc"))) == 1
    assert len(list(folder.glob(".line-*.part"))) == 1
    (kept,) = folder.glob("line-*.nc")
    real = load_dataset(kept)["q"].to_numpy()
    for options in ({"shard": "2/2"}, {"shard": "1/2"}, {"resume": True}):
        ds = run(output, **options)
    assert len(solver.labels) == 5
    assert any((ds["q"].sel(branch=branch, omega=omega) == real).all() for branch in ds.branch for omega in OMEGAS)
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]
