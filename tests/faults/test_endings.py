"""How a command ends: with a sentence and an exit code, whoever closes its streams, interrupts it, or is at fault.

Not public: `derive` of `attnphase.pages.page` is made to fail, as no input does.
"""

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from command import run

import attnphase as ap
from attnphase.cli.commands import main

MODULE = [sys.executable, "-m", "attnphase"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_are_the_null_device(closed):
    for arguments, code in ((["--version"], 0), (["solve", "--alpha", "0"], 2)):
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *MODULE, *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert bool(done.stdout) == (code == 0 and closed == "2>&-")
        assert bool(done.stderr) == (code == 2 and closed == ">&-")


def test_a_reader_who_leaves_early_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*MODULE, "--help"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode != 0
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (MemoryError("Unable to allocate 9 GiB"), 2, "error: memory ran out (Unable to allocate 9 GiB): end other"),
        (ImportError("libx.so: failed to map"), 2, "error: ImportError: libx.so: failed to map: a package cannot be"),
        (KeyboardInterrupt(), 130, "interrupted."),
        (OSError(28, "No space left", "some.file"), 2, "error: some.file: No space left."),
        (IndexError("invalid index\nto scalar"), 70, "fault: IndexError: invalid index to scalar: this is a fault of"),
        (RecursionError("too deep"), 70, "fault: RecursionError: too deep: this"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_end_is_a_sentence_and_a_fault_has_a_traceback(monkeypatch, error, code, sentence):
    def derive(*args, **kwargs):
        raise error

    monkeypatch.setattr("attnphase.pages.page.derive", derive)
    result = CliRunner().invoke(main, ["derive"], prog_name="attnphase")
    assert (result.exit_code, result.stdout) == (code, "")
    *lines, last = result.stderr.strip().splitlines()
    assert last.startswith(f"attnphase: {sentence}")
    assert bool(lines) == (code == 70)  # the traceback


def test_what_code_of_the_users_own_prints_is_no_result(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "prints.py").write_text(
        "print('of a module')\n\ndef row(z):\n    print('of a function')\n    return [2 * logit for logit in z]\n"
    )
    ap.Problem().with_fields({"student.score": "prints:row"})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "of a module" in captured.err
    assert "of a function" in captured.err


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_training_says_by_which_signal(monkeypatch, tmp_path, number, code):
    """It goes on to where it can keep what it has, and names the signal in its exit code."""
    fsync = os.fsync

    def stopping(descriptor):
        signal.raise_signal(number)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", stopping)
    runs = ["simulate", "--alpha", "2.1", "--dimension", "20", "--seeds", "2", "--optimizer", "gd", "--steps", "9"]
    runs += ["--start", "semantic", "--start", "positional", "--test-samples", "9", "-o", "out.nc"]
    monkeypatch.chdir(tmp_path)
    assert "what was computed is kept in out.nc.checkpoint" in run(*runs, code=code).stderr.replace("\n", " ")
