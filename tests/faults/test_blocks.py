"""Sweeps in blocks: planned, solved by whoever comes, killed, taken up again, merged; what is missing is named."""

import contextlib
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import filelock
import gated_lines
import numpy as np
import pytest
import xarray as xr
from command import run as command
from made_up import SWEEP, Solver

import attnphase as ap
from attnphase.data.files import load_dataset
from attnphase.data.variables import NOT_COMPUTED
from attnphase.errors import DatasetError, ProblemError, SolverError, SweepError
from attnphase.problem.problem import Problem
from attnphase.sweeps import line as lines_module
from attnphase.sweeps.blocks import Plan

PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
ALPHAS = [1.1, 1.3]
OMEGAS = [0.1, 0.13, 0.16]
OPTIONS = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16", "--alpha", "1.1,1.3"]
OPTIONS += ["--omega", "0.1,0.13,0.16"]
ALWAYS = 600  # seconds after which a test gives up; nothing is decided by time


@pytest.fixture
def solver(monkeypatch):
    return Solver(monkeypatch)


@pytest.fixture
def folder(tmp_path):
    """A plan of three blocks, of two lines each."""
    ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=3, folder=tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Such a folder, all of it solved."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        Solver(patch)
        ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=3, folder=folder)
        for block in (1, 2, 3):
            ap.run_block(folder, block, workers=1)
    return folder


@pytest.fixture
def done(finished, solver, tmp_path):
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


def files(folder, block):
    """The finished lines of a block by their labels."""
    lines = Plan.read(folder).block(block)
    return {line.label: folder / f"line-{line.key}.nc" for line in lines if (folder / f"line-{line.key}.nc").exists()}


def wait_until(condition):
    end = time.monotonic() + ALWAYS
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


# --- all goes well ---------------------------------------------------------------------------------------------------


def test_blocks_make_the_sweep(solver, folder, tmp_path):
    undisturbed = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)
    labels = sorted(solver.labels)
    solver.labels.clear()
    by_label = {}
    for block in (2, 3, 1):
        by_label |= ap.run_block(folder, block, workers=1)
    assert sorted(solver.labels) == labels == sorted(by_label)
    line = by_label["positional, teacher.omega = 0.13"]
    xr.testing.assert_equal(line["q"], undisturbed["q"].sel(branch="positional", omega=0.13).drop_vars("omega"))
    output = tmp_path / "out.nc"
    merged = ap.merge_blocks(folder, output)
    xr.testing.assert_equal(merged, undisturbed)
    xr.testing.assert_identical(load_dataset(output), merged)
    again = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=tmp_path / "whole.nc")
    assert merged.attrs["sweep_hash"] == again.attrs["sweep_hash"]
    assert len(list(folder.glob("line-*.nc"))) == 6  # nothing is taken away
    # and it is known to a sweep that is taken up
    solver.labels.clear()
    ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=output, resume=True)
    assert solver.labels == []


def test_shares_make_the_sweep(solver, tmp_path):
    """With nothing but the folder beside the output, in any order, one of them twice; the rest in the end."""
    undisturbed = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)
    labels = sorted(solver.labels)
    output = tmp_path / "out.nc"
    found = {}
    for share in ("3/3", "1/3", "3/3"):
        solver.labels.clear()
        ds = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=output, shard=share)
        solved = ds["status"] == 0
        assert int(solved.sum()) == 2 * 2
        xr.testing.assert_equal(ds["q"].where(solved, drop=True), undisturbed["q"].where(solved, drop=True))
        assert set(np.unique(ds["status"])) == {0, NOT_COMPUTED}
        found.setdefault(share, []).extend(solver.labels)
    assert [len(lines) for lines in found.values()] == [2, 2]  # what is finished is not solved again
    assert not output.exists()
    assert not [path for path in (tmp_path / "out.nc.parts").iterdir() if path.suffix == ".lock"]
    solver.labels.clear()
    whole = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=output, resume=True)
    assert sorted([*solver.labels, *found["1/3"], *found["3/3"]]) == labels
    xr.testing.assert_equal(whole, undisturbed)
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_a_share_of_another_sweep_is_refused(solver, tmp_path):
    ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1, output=tmp_path / "out.nc", shard="1/2")
    with pytest.raises(DatasetError, match="finished lines there belong to another sweep: alpha"):
        ap.sweep(PROBLEM, [1.1, 1.4], OMEGAS, workers=1, output=tmp_path / "out.nc", shard="2/2")


def test_the_same_share_waits_for_the_other(solver, tmp_path, capfd):
    output = tmp_path / "out.nc"
    (tmp_path / "out.nc.parts").mkdir()
    held, over = threading.Event(), threading.Event()

    def hold():
        with filelock.FileLock(tmp_path / "out.nc.parts" / "share-2-of-2.lock"):
            held.set()
            over.wait(ALWAYS)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(ALWAYS)
    command("sweep", *OPTIONS, "--shard", "1/2", "-o", output, "--workers", 1)  # another one does not
    threading.Timer(1.0, over.set).start()
    said = command("sweep", *OPTIONS, "--shard", "2/2", "-o", output, "--workers", 1)
    holder.join()
    assert said.stdout.startswith(f"{output}: share 2/2: 6 converged, 6 not_computed")
    assert "another process solves share 2 of 2 of" in said.stderr + capfd.readouterr().err


def test_every_line_is_in_one_block(folder):
    plan = Plan.read(folder)
    assert sorted(i for block in plan.blocks for i in block) == list(range(6))
    assert all(plan.blocks)
    # a semantic and a positional line each, since these cost more
    assert [sorted(plan.lines[i].branch for i in block) for block in plan.blocks] == [["positional", "semantic"]] * 3


def test_a_plan_is_read_as_it_was_made(tmp_path):
    problem = PROBLEM.with_fields({"teacher.mixing": [[0.6, 0.4], [0.4, 0.61]]})
    fields = {"student.score": ["softmax", "sigmoid"], "tokens.sigma": [1, 0.4], "student.causal": [False, True]}
    settings = ap.SolverSettings(tolerance=3e-6, max_maps=77, threads=2, stability=False, identity=False)
    folder = tmp_path / "a" / "b"  # is made
    made = ap.plan_sweep(
        problem, np.linspace(0.1, 2, 7), branch="semantic", blocks=2, folder=folder, fields=fields, settings=settings
    )
    read = Plan.read(folder)
    assert [line.key for line in read.lines] == [line.key for line in made.lines]
    assert read == made
    assert (read.lines[0].settings, len(read.lines)) == (settings, 8)


def test_planning_twice_is_planning_once(folder, solver):
    before = (folder / "plan.json").read_bytes()
    ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=3, folder=folder)
    assert (folder / "plan.json").read_bytes() == before
    for changes in ({"blocks": 2}, {"omega": [0.1, 0.2]}):
        with pytest.raises(DatasetError, match=r"another plan is there; use --force.*keeps all finished lines"):
            ap.plan_sweep(
                **{"problem": PROBLEM, "alpha": ALPHAS, "omega": OMEGAS, "blocks": 3, "folder": folder, **changes}
            )
    assert (folder / "plan.json").read_bytes() == before


def test_another_number_of_blocks_keeps_what_is_finished(folder, solver):
    ap.run_block(folder, 2, workers=1)
    ap.plan_sweep(PROBLEM, ALPHAS, [*OMEGAS, 0.4], blocks=4, folder=folder, force=True)
    for block in (1, 2, 3, 4):
        ap.run_block(folder, block, workers=1)
    assert len(solver.labels) == len(set(solver.labels)) == 8


# --- interrupted, killed, two at once --------------------------------------------------------------------------------


def test_an_interrupted_block_is_taken_up(folder, solver):
    solver.lines_left = 1
    with pytest.raises(KeyboardInterrupt):
        ap.run_block(folder, 1, workers=1)
    solver.lines_left = float("inf")
    for _ in range(2):
        ap.run_block(folder, 1, workers=1)
    assert len(solver.labels) == len(set(solver.labels)) == 2


def test_a_second_process_waits_and_computes_nothing(done, solver, tmp_path, capsys):
    """Of a block whose lines come while it waits."""
    kept = tmp_path / "elsewhere"
    kept.mkdir()
    for path in files(done, 1).values():
        shutil.move(path, kept)
    found = []
    with filelock.FileLock(done / "block-1.lock"):
        second = threading.Thread(target=lambda: found.append(ap.run_block(done, 1, workers=1)), daemon=True)
        second.start()
        said = ""

        def waiting():
            nonlocal said
            said += capsys.readouterr().err
            return "another process solves block 1" in said

        wait_until(waiting)
        for path in kept.iterdir():
            shutil.move(path, done)
        assert found == []
    second.join(ALWAYS)
    assert len(found[0]) == 2
    assert solver.labels == []


def test_what_a_killed_process_left_half_written_is_removed_by_its_block_alone(folder, solver):
    lines = [Plan.read(folder).block(block)[0] for block in (1, 2)]
    left = [folder / f".line-{line.key}.nc.ab12.part" for line in lines]
    for path in left:
        path.write_bytes(b"half")
    ap.run_block(folder, 1, workers=1)
    assert [path.exists() for path in left] == [False, True]


@pytest.mark.slow
def test_blocks_at_once_one_twice_and_one_killed(tmp_path, monkeypatch):
    """The first block stands still within its second line when it is killed; its twin, which waited, goes on."""
    gates, folder = tmp_path / "gates", tmp_path / "run"
    gates.mkdir()
    monkeypatch.setenv(gated_lines.FOLDER, str(gates))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    undisturbed = ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)
    plan = ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=2, folder=folder)
    numbers = [1, 2] if gated_lines.FIRST in {line.label for line in plan.block(1)} else [2, 1]
    with contextlib.ExitStack() as stack:

        def begin(block, name):
            errors = stack.enter_context((tmp_path / name).open("w"))
            arguments = ["-m", "gated_lines", "sweep", "--block", str(block), str(folder), "--workers", "1"]
            process = subprocess.Popen([sys.executable, *arguments], stderr=errors, stdout=subprocess.DEVNULL)
            stack.callback(process.kill)
            return process

        killed, other = begin(numbers[0], "killed"), begin(numbers[1], "other")
        # one line of the first block is finished, and one of either is begun
        wait_until(lambda: len(gated_lines.noted(gates / "begun")) == 3 and list(folder.glob("line-*.nc")))
        assert gated_lines.noted(gates / "solved") == [gated_lines.FIRST]
        twin = begin(numbers[0], "twin")
        wait_until(lambda: "waiting for it" in (tmp_path / "twin").read_text())
        killed.kill()
        killed.wait()
        (gates / "open").touch()
        assert (twin.wait(ALWAYS), other.wait(ALWAYS)) == (0, 0)
    labels = gated_lines.noted(gates / "solved")
    assert sorted(labels) == sorted(line.label for line in plan.lines)  # each once
    assert len(gated_lines.noted(gates / "begun")) == len(labels) + 1  # that of the killed one twice
    merged = ap.merge_blocks(folder, tmp_path / "out.nc")
    xr.testing.assert_equal(merged, undisturbed)


def test_a_line_that_fails_leaves_its_block_to_be_run_again(folder, solver):
    ap.run_block(folder, 1, workers=1)
    label = Plan.read(folder).block(2)[1].label
    for error, what in ((MemoryError("no room"), "run the block again"), (SolverError("too extreme."), "plan anew in")):
        solver.failures[label] = error
        with pytest.raises(SweepError, match=rf"the line {label} failed: .*; finished lines are kept in .*: .*{what}"):
            ap.run_block(folder, 2, workers=1)
    del solver.failures[label]
    ap.run_block(folder, 2, workers=1)
    assert len(solver.labels) == len(set(solver.labels)) == 4


# --- merging ---------------------------------------------------------------------------------------------------------


def refusal(folder, tmp_path):
    """What a merge says, which leaves the output as it was."""
    output = tmp_path / "out.nc"
    output.write_bytes(b"before")
    names = sorted(path.name for path in folder.iterdir())
    result = command("sweep", "--merge", folder, "-o", output, "--force", code=2)
    assert output.read_bytes() == b"before"
    assert sorted(path.name for path in folder.iterdir()) == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.nc", "run"]
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_missing_and_unfinished_blocks_are_named(done, tmp_path):
    for path in files(done, 3).values():
        path.unlink()
    said = refusal(done, tmp_path)
    assert f"{done}: block 3 of 3 cannot be used, the first since {done}/line-" in said
    assert f"no such file; check its name: run attnphase sweep --block K {done}" in said
    path = next(iter(files(done, 1).values()))
    path.unlink()
    said = refusal(done, tmp_path)
    assert f"blocks 1, 3 of 3 cannot be used, the first since {path}: there is no such file" in said
    for path in done.glob("line-*.nc"):
        path.unlink()
    assert "blocks 1, 2, 3 of 3 cannot be used" in refusal(done, tmp_path)


def one_number_changed(path):
    """One bit of one number, which netCDF does not notice."""
    q = load_dataset(path)["q"].to_numpy()
    data = path.read_bytes()
    place = data.index(q.tobytes())
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damaged", [lambda _: b"", lambda _: b"CDF nonsense", lambda path: path.read_bytes()[:3000], one_number_changed]
)
def test_a_damaged_block_is_named_and_mended_by_running_it(done, solver, tmp_path, capsys, damaged):
    whole = ap.merge_blocks(done)
    path = next(iter(files(done, 2).values()))
    path.write_bytes(damaged(path))
    said = refusal(done, tmp_path)
    assert "block 2 of 3 cannot be used" in said
    assert str(path) in said
    ap.run_block(done, 2, workers=1)
    assert len(solver.labels) == 1
    assert "a finished line is computed again" in capsys.readouterr().err
    xr.testing.assert_equal(ap.merge_blocks(done), whole)


@pytest.mark.parametrize(
    "changes", [{"omega": [0.1, 0.13, 0.3]}, {"settings": ap.SolverSettings(tolerance=1e-5)}], ids=["grid", "settings"]
)
def test_a_foreign_block_is_named(done, solver, tmp_path, changes):
    """A line of another plan under the name of one of ours: of another problem, and of the same with other settings."""
    other = tmp_path / "other"
    ap.plan_sweep(**{"problem": PROBLEM, "alpha": ALPHAS, "omega": OMEGAS, **changes}, blocks=1, folder=other)
    ap.run_block(other, 1, workers=1)
    label, path = next(iter(files(done, 2).items()))
    ours = {line.key for line in Plan.read(done).lines}
    strange = {line.label: line for line in Plan.read(other).lines if line.key not in ours}
    source = strange.get(label, next(iter(strange.values())))
    path.write_bytes((other / f"line-{source.key}.nc").read_bytes())
    shutil.rmtree(other)
    said = refusal(done, tmp_path)
    assert f"block 2 of 3 cannot be used, the first since {path}: this is not the line {label} of this sweep" in said


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_block_that_is_not_there(folder, solver):
    with pytest.raises(ProblemError, match=r"there is no block 4: this plan has blocks 1 to 3\.$"):
        ap.run_block(folder, 4, workers=1)
    assert "no block 7" in command("sweep", "--block", 7, folder, code=2).stderr
    assert solver.labels == []


def test_more_blocks_than_lines(tmp_path):
    with pytest.raises(ProblemError, match=r"blocks must be at most 6, the number of lines"):
        ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=7, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff",
        b"[" * 100_000,
        {"blocks": 0},
        {"blocks": None},
        {"swept": {"branch": ["semantic"]}},
        {"swept": 3},
        {"problem": "[teacher]\nomga = 1"},
        {"settings": {"tolerance": 7}},
        {"settings": {"speed": 7}},
    ],
    ids=str,
)
def test_a_damaged_plan(folder, solver, damage):
    path = folder / "plan.json"
    path.write_bytes(
        damage if isinstance(damage, bytes) else json.dumps(json.loads(path.read_text()) | damage).encode()
    )
    for call in (lambda: ap.run_block(folder, 1, workers=1), lambda: ap.merge_blocks(folder)):
        with pytest.raises(DatasetError, match=r"plan\.json: the plan cannot be read: .*; make it again by"):
            call()
    assert solver.labels == []
    assert not list(folder.glob("line-*"))


def test_a_plan_of_another_version(folder, solver, monkeypatch):
    monkeypatch.setattr(lines_module, "source_hash", lambda: 64 * "f")
    with pytest.raises(DatasetError, match=r"not one of this program: source code was \w{16} and is f{16} now; make"):
        ap.run_block(folder, 1, workers=1)
    assert solver.labels == []
    ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=3, folder=folder, force=True)
    ap.run_block(folder, 1, workers=1)


def test_a_folder_without_a_plan(tmp_path):
    (tmp_path / "file").touch()
    for name, words in ((".", "no plan in this folder"), ("file", "not a folder"), ("none", "no such folder")):
        for arguments in (["--block", 1, tmp_path / name], ["--merge", tmp_path / name, "-o", tmp_path / "out.nc"]):
            assert words in command("sweep", *arguments, code=2).stderr
    (tmp_path / "plan.json").mkdir()
    assert "this is a folder" in command("sweep", "--block", 1, tmp_path, code=2).stderr


def refused(number, words):
    def call(*args, **kwargs):
        raise OSError(number, words)

    return call


def test_a_full_disk_loses_nothing(folder, solver, monkeypatch):
    ap.run_block(folder, 1, workers=1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.writing.os.fsync", refused(28, "No space left on device"))
        assert "No space left on device" in command("sweep", "--block", 2, folder, "--workers", 1, code=2).stderr
        for block in (2, 3):
            with pytest.raises(DatasetError, match="No space left on device"):
                ap.run_block(folder, block, workers=1)
        with pytest.raises(DatasetError, match="No space left on device"):
            ap.plan_sweep(PROBLEM, ALPHAS, OMEGAS, blocks=2, folder=folder, force=True)
    assert {path: path.read_bytes() for path in before} == before
    assert not list(folder.glob(".*"))
    for block in (2, 3):
        ap.run_block(folder, block, workers=1)
    ap.merge_blocks(folder)


def test_a_read_only_folder(folder, solver, monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", refused(30, "Read-only file system"))
    said = command("sweep", "--block", 1, folder, "--workers", 1, code=2).stderr
    assert said == f"attnphase: error: {folder}: the folder cannot be written to: Read-only file system.\n"
    assert solver.labels == []


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_commands(tmp_path, solver):
    folder, output = tmp_path / "run", tmp_path / "out.nc"
    folder.mkdir()  # a workflow makes it before it runs the command
    solver.known = {"status": importlib.import_module("attnphase.solvers.iteration").Status.iteration_limit}
    planned = command("sweep", *OPTIONS, "--no-stability", "--no-identity", "--plan", 2, "-o", folder)
    assert planned.stdout.startswith(f"{folder}: 12 points in 6 lines, 2 blocks of about ")
    settings = Plan.read(folder).lines[0].settings
    assert (settings.stability, settings.identity) == (False, False)
    first = command("sweep", "--block", 1, folder, "--workers", 1, code=1)
    count = len(solver.labels)
    assert first.stdout == f"{folder}: block 1, {count} lines: {2 * count} iteration_limit\n"
    assert f"attnphase: not converged: line = {solver.labels[0].split(',')[0]}" in first.stderr
    command("sweep", "--block", 2, folder, "--workers", 1, "--allow-unconverged")
    assert len(solver.labels) == 6
    merged = command("sweep", "--merge", folder, "-o", output, "--allow-unconverged")
    assert merged.stdout.startswith(f"{output}: 12 iteration_limit")
    assert "the file exists" in command("sweep", "--merge", folder, "-o", output, code=2).stderr
    command("sweep", "--merge", folder, "-o", output, "--force", code=1)


def test_an_interrupted_command_says_how_to_go_on(folder, solver):
    solver.lines_left = 1
    result = command("sweep", "--block", 1, folder, "--workers", 1, code=130)
    assert result.stderr == "attnphase: interrupted: finished lines are kept; run the same command again.\n"


def test_kernels_are_made_once_in_a_block(folder, solver, monkeypatch):
    asked = []
    monkeypatch.setattr(SWEEP, "are_intact", lambda _: False)
    monkeypatch.setattr(SWEEP, "kernels_for", asked.append)
    ap.run_block(folder, 1, workers=1)
    assert len(asked) == 1


# --- the examples of the docs ----------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "large-sweeps.md"
STUB = '#!/bin/bash\nprintf "%s\\n" "$@" > called\n'


def example(begin):
    """The example of the page that begins so."""
    (found,) = (text for text in re.findall(r"```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL) if text.startswith(begin))
    return found


def called_by(script, folder, **environment):
    """The arguments of the one ``attnphase`` that a shell script calls."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "attnphase").write_text(STUB)
    (folder / "bin" / "attnphase").chmod(0o755)
    paths = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", script], cwd=folder, env={**os.environ, **paths, **environment}, check=True)
    return (folder / "called").read_text().splitlines()


@pytest.mark.skipif(shutil.which("bash") is None, reason="the batch script is for bash")
def test_the_batch_script(folder, solver, monkeypatch):
    """With the blocks of another plan in the folder of the same name."""
    script = example("#!/bin/bash")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "#SBATCH --array=1-50" in script
    monkeypatch.chdir(folder.parent)
    for block in (1, 2, 3):
        arguments = called_by(script, folder.parent, SLURM_ARRAY_TASK_ID=str(block), SLURM_CPUS_PER_TASK="1")
        said = command(*arguments).stdout
        assert said.startswith(f"run: block {block}, 2 lines: 4 converged")
    submission = example("attnphase sweep --alpha 0.01")
    subprocess.run(["bash", "-n"], input=submission, text=True, check=True)
    merge = re.findall(r'--wrap "attnphase (.*)"', submission)
    assert command(*merge[0].split()).stdout.startswith("out.nc: 12 converged")


@pytest.mark.skipif(shutil.which("bash") is None, reason="Snakemake calls bash")
def test_the_snakefile(folder, solver, monkeypatch):
    text = example("N = 50")
    assert len(text.splitlines()) == 10
    merge, block = re.findall(r'shell: "(.*)"', text)
    monkeypatch.chdir(folder.parent)
    for k in (1, 2, 3):
        shell = block.replace("{wildcards.k}", str(k)).replace("{threads}", "1")
        command(*called_by(shell, folder.parent))
    command(*called_by(merge.replace("{output}", "out.nc"), folder.parent))
    assert load_dataset("out.nc").sizes["omega"] == 3


def test_the_grid_of_the_docs_is_planned(tmp_path):
    """With the blocks that the batch script and the Snakefile expect."""
    (line,) = (line for line in example("attnphase sweep --alpha 0.01").splitlines() if "--plan" in line)
    _, *arguments = shlex.split(line)
    said = command(*arguments[:-1], tmp_path / "run").stdout
    assert "80000 points in 400 lines, 50 blocks of about" in said
    seconds = Plan.read(tmp_path / "run").seconds
    assert max(seconds) < 1.1 * min(seconds)
