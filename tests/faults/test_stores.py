"""What is stored: it survives being killed, Ctrl-C, a full disk, damage, foreign files, and two commands at once.

Files are written aside and put on the disk by `os.fsync`: within it every command is stopped.
"""

import os
import signal
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import xarray as xr
from command import run
from stop_at import ended

import attnphase as ap

GRID = ("sweep", "--set", "integration.rule=sobol", "--set", "integration.nodes=16", "--alpha", "1.3")
GRID += ("--branch", "semantic", "--no-stability", "--no-identity", "--omega", "0.1,0.13,0.16")
ALL = "--allow-unconverged"
SWEEP = (*GRID, "--workers", "1", "-o", "out.nc", ALL)
RUNS = ("simulate", "--alpha", "2.1", "--start", "semantic", "--start", "positional", "--dimension", "20")
RUNS += ("--seeds", "2", "--optimizer", "gd", "--steps", "9", "--test-samples", "9")
LIMITS = ("bayes-optimal", "--alpha", "0.27,0.36", "--vary", "teacher.omega=0.2,0.45", "--start", "uninformed")
BASINS = ("basins", "--omega", "0.27", "--scale", "0.6", "--angle", "30,65", "--until", "3")
BASINS += ("--set", "integration.rule=gauss-hermite", "--set", "integration.nodes=4")


@dataclass(frozen=True)
class Store:
    """A command that keeps what it finds, in files `parts`; it is stopped within writing the file after so many.

    `again` goes on, when `known` is said. Another process is told that it is `busy`; `other` commands are refused.
    """

    command: tuple[str, ...]
    again: tuple[str, ...]
    parts: str
    after: int
    known: str
    busy: str | None
    other: tuple[str, ...]
    foreign: str


def of_checkpoint(command, known, busy, other, foreign):
    command = (*command, "-o", "out.nc", ALL)
    known = f"going on from this checkpoint ({known})"
    return Store(command, command, "out.nc.checkpoint", 1, known, busy, (*command, *other), foreign)


STORES = {
    "sweep": Store(
        SWEEP,
        (*SWEEP, "--resume"),
        "out.nc.parts/line-*.nc",
        3,
        "2 of 3 lines are finished already",
        "another sweep writes to this folder; wait for it",
        (*SWEEP, "--omega", "0.1,0.22", "--resume"),
        "belong to another sweep: teacher.omega was 0.1:0.16:3 and is 0.1, 0.22 now",
    ),
    "training runs": of_checkpoint(
        RUNS, "2 runs are done", None, ("--seed", "3"), "belongs to other training runs, with another seed"
    ),
    "Bayes-optimal limits": of_checkpoint(
        (*LIMITS, "--max-nodes", "2048"),
        "1 points are known",
        "other Bayes-optimal limits are written to this checkpoint; wait for them",
        ("--max-nodes", "4096"),
        "belongs to other Bayes-optimal limits, with another max_nodes",
    ),
    "basins": of_checkpoint(
        BASINS,
        "1 ends are known",
        "other basins are written to this checkpoint; wait for them",
        ("--noise", "0.07"),
        "belongs to other basins, with another noise",
    ),
}
each = pytest.mark.parametrize("name", STORES)
pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*commands, code=0):
    """What all of them say on standard error, warnings included."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        errors = [run(*command, code=code).stderr for command in commands]
    return "".join([*errors, *(str(one.message) for one in warned)])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What every command finds when it is left alone."""
    found = {}

    def of(name):
        if name not in found:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("undisturbed"))
                said(STORES[name].command)
                found[name] = ap.load_dataset("out.nc")
        return found[name]

    return of


def goes_on(store, expected):
    """The commands that go on end with the numbers of a command left alone, and leave neither parts nor locks."""
    errors = said(store.again)
    xr.testing.assert_identical(ap.load_dataset("out.nc").drop_attrs(), expected.drop_attrs())
    assert {path.name for path in Path().glob("[!.]*")} <= {"out.nc"}
    return errors


def stopped(store, monkeypatch, how):
    """End a command within writing the file after so many others."""
    fsync, count = os.fsync, []

    def stopping(descriptor):
        count.append(fsync(descriptor))
        if len(count) > store.after:
            how()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stopping)
        return run(*store.command, code=130 if how is interrupt else 2).stderr


def interrupt():
    signal.raise_signal(signal.SIGINT)


def full():
    raise OSError(28, "No space left on device")


@each
def test_a_killed_command_goes_on_to_the_same_numbers_and_shares_its_store_with_nobody(name, undisturbed):
    store, expected = STORES[name], undisturbed(name)

    def meanwhile():
        if store.busy:
            assert store.busy in said(store.again, code=2)

    code, _ = ended(signal.SIGKILL, "os:fsync", store.after + 1, store.command, meanwhile)
    assert code == -signal.SIGKILL
    assert not Path("out.nc").exists()
    assert store.known in goes_on(store, expected)


@each
@pytest.mark.parametrize(
    ("how", "words"),
    [(interrupt, "attnphase: interrupted: "), (full, "No space left on device")],
    ids=["Ctrl-C", "full disk"],
)
def test_ctrl_c_and_a_full_disk_end_in_a_sentence_and_lose_nothing(name, how, words, undisturbed, monkeypatch):
    store, expected = STORES[name], undisturbed(name)
    errors = stopped(store, monkeypatch, how)
    assert words in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert [*Path().glob(store.parts)]
    assert not Path("out.nc").exists()
    goes_on(store, expected)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def one_bit(path):
    """Of a number, which netCDF does not notice."""
    content = bytearray(path.read_bytes())
    place = len(content) // 2
    if path.suffix == ".nc":
        place = content.index(ap.load_dataset(path)["q"].to_numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(content)


@each
@pytest.mark.parametrize("damage", [cut, one_bit], ids=lambda damage: damage.__name__)
def test_a_damaged_part_is_found_again_or_refused_by_its_name(name, damage, undisturbed, monkeypatch):
    store = STORES[name]
    part = store.parts.endswith(".checkpoint")
    stopped(store, monkeypatch, interrupt)
    path = min(Path().glob(store.parts))
    damage(path)
    content = path.read_bytes()
    if part:
        assert f"{path}: this is not a checkpoint of {name}, or it is damaged" in said(store.again, code=2)
        assert path.read_bytes() == content
    else:
        assert f"a finished line is computed again: {path}" in goes_on(store, undisturbed(name))


@each
def test_another_task_is_refused_by_what_differs_and_its_parts_stay(name, monkeypatch):
    store = STORES[name]
    stopped(store, monkeypatch, interrupt)
    before = {path: path.read_bytes() for path in Path().glob(store.parts)}
    assert store.foreign in said(store.other, code=2)
    assert {path: path.read_bytes() for path in Path().glob(store.parts)} == before


@each
def test_files_of_the_users_own_stay(name):
    """Under the name of the output, beside parts, and where a checkpoint would be."""
    store, mine = STORES[name], b"mine"
    Path("out.nc").write_bytes(mine)
    assert "--force" in said(store.command, code=2)
    assert Path("out.nc").read_bytes() == mine
    Path("out.nc").unlink()
    own = Path(store.parts).with_name("notes.txt") if "*" in store.parts else Path(store.parts)
    own.parent.mkdir(exist_ok=True)
    own.write_bytes(mine)
    said(store.command, code=2 if own.suffix == ".checkpoint" else 0)
    assert own.read_bytes() == mine
