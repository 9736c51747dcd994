"""The command as a process: refusals before anything heavy, closed streams, signals, faults, and code of the user's."""

import contextlib
import ctypes
import importlib
import io
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from attnphase.cli import streams
from attnphase.cli.commands import main
from attnphase.errors import DatasetError, ProblemError, SolverError
from attnphase.files import writing as files
from attnphase.pages.page import page_of
from attnphase.problem.problem import Problem
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.settings import FlowSettings

HEAVY = ("numba", "xarray", "scipy", "sympy", "matplotlib", "torch", "pandas", "netCDF4", "rich")
POSIX = pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
MODULE = [sys.executable, "-m", "attnphase"]

# arguments of every command, and what its refusal says; {file} exists, {text} is a file, {none} does not exist
REFUSED = {
    "solve": [
        (["--alpha", "-1"], "alpha must be one positive number"),
        (["--alpha", "1", "--method", "magic"], "method must be one of"),
        (["--alpha", "1", "--tolerance", "2"], "tolerance must be"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
        (["--alpha", "1", "-o", "x.pdf"], "let the name end in .nc, not in .pdf"),
        (["--alpha", "1", "--set", "teacher.omega=2"], "teacher.omega must be"),
        (["--alpha", "1", "--set", "student.rank=x"], "student.rank must be"),
        (["--alpha", "1", "--sensitivity", "sigma"], "--sensitivity must be alpha, or a field"),
        (["--alpha", "1", "--sensitivity", "lambda"], "not 'lambda': did you mean \"regularizer.strength\"?"),
        (["--alpha", "1", "--sensitivity", "student.rank"], "only a field that is one real number"),
        (["--alpha", "1", "--branch", "positional", "--set", "positions.kind=none"], "needs positional encodings"),
        (["--alpha", "1", "--set", "integration.rule=gauss-hermite", "--set", "integration.nodes=256"], "more than"),
        (["{none}", "--alpha", "1"], "there is no such file"),
    ],
    "sweep": [
        (["--alpha", "1,-2", "-o", "{none}"], "alpha must be a positive number"),
        (["--alpha", "1,2", "--omega", "3", "-o", "{none}"], "omega must be a number from 0 to 1"),
        (["--alpha", "1,2", "-o", "{file}"], "the file exists"),
        (["--alpha", "1,2", "-o", "{none}", "--workers", "0"], "workers must be"),
        (["--alpha", "1,2", "-o", "{none}", "--set", "teacher.omega=2"], "teacher.omega must be"),
        (["--alpha", "1:2:0", "-o", "{none}"], "needs finite START and STOP, and a COUNT from 1"),
        (["-o", "{none}"], "Missing option '--alpha'"),
        (["--alpha", "1,2"], "Missing option '-o'"),
        (["--alpha", "1,2", "-o", "{none}", "--scheduler", "here"], "scheduler must be the address"),
        (["--alpha", "1,2", "-o", "{none}", "--shard", "3/2"], "shard must be K/N, share K from 1 to N"),
        (["--alpha", "1,2", "-o", "{none}", "--scheduler", "tcp://a:1", "--workers", "2"], "workers or scheduler"),
        (["--alpha", "1,2", "-o", "{none}", "--plan", "0"], "plan must be a whole number of at least 1"),
        (["--alpha", "1,2", "-o", "{file}", "--plan", "2"], "this is not a folder"),
        (["--alpha", "1,2", "-o", "{none}", "--plan", "2", "--resume"], "--resume belongs to a sweep in one go"),
        (["--alpha", "1,2", "-o", "{none}", "--plan", "2", "--set", "a.b=1"], "unknown key"),
        (["--plan", "2", "--block", "1", "{folder}"], "exclude each other"),
        (["--block", "0", "{folder}"], "block must be a whole number of at least 1"),
        (["--block", "1"], "needs the folder of a plan"),
        (["--block", "1", "{none}"], "there is no such folder"),
        (["--block", "1", "{folder}"], "there is no plan in this folder"),
        (["--block", "1", "{folder}", "--alpha", "2"], "--alpha belongs to the plan"),
        (["--merge", "{folder}"], "Missing option '-o'"),
        (["--merge", "{folder}", "-o", "{file}"], "the file exists"),
        (["--merge", "{folder}", "-o", "x.JSON"], "not in .JSON"),
        (["--merge", "{folder}", "-o", "{none}"], "there is no plan in this folder"),
    ],
    "simulate": [
        (["--alpha", "1", "--optimizer", "sgd", "--dimension", "20", "--batch", "50"], "batch must be at most"),
        (["--alpha", "1", "-o", "one.nc", "--checkpoint", "one.nc"], "names a file of the result"),
        (["--alpha", "0"], "alpha must be a positive number"),
        (["--alpha", "1", "--seeds", "0"], "seeds must be"),
        (["--alpha", "1", "--learning-rate", "1"], "learning_rate belongs to"),
        (["--alpha", "1", "--device", "tpu"], "device must be"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
        (["--alpha", "1", "--set", "teacher.omega=2"], "teacher.omega must be"),
        (["--alpha", "1", "--start", "mixed"], "needs student.rank of at least 2"),
        (["--alpha", "1", "--start", "nowhere"], "start must be one of"),
        (["--alpha", "1", "--optimizer", "sgd", "--steps", "4"], "steps does not go with sgd"),
    ],
    "experiment": [
        (["fig9", "-o", "{none}"], "experiment must be one of"),
        (["fig7", "-o", "{none}", "--alpha", "-1"], "alpha must be a positive number"),
        (["fig7", "-o", "{none}", "--steps", "0"], "steps must be"),
        (["fig7", "-o", "{folder}"], "fig7.png: the file exists"),
    ],
    "compare": [
        (["{none}", "{file}"], "there is no such file"),
        (["{file}", "{file}", "--figure", "{file}"], "the file exists"),
        (["{file}", "{file}", "--figure", "x.xyz"], "no figure format"),
    ],
    "check": [
        (["--alpha", "-1"], "alpha must be one positive number"),
        (["--set", "teacher.omega=2"], "teacher.omega must be"),
    ],
    "follow": [
        (["--between", "2", "1"], "between must be an increasing pair"),
        (["--between", "0", "1"], "between must hold positive sample complexities"),
        (["--between", "0.3", "2", "--at", "3"], "at must be a number from 0.3 to 2"),
        (["--between", "0.3", "2", "-o", "{file}"], "the file exists"),
        (["--between", "0.3", "2", "--field", "omega", "--alpha", "1"], "field must be alpha"),
        (["--between", "0.3", "2", "--field", "teacher.omga", "--alpha", "1"], 'did you mean "teacher.omega"'),
        (["--between", "0.3", "2", "--field", "teacher.omega", "--alpha", "1"], "teacher.omega must be"),
        (["--between", "1", "3", "--field", "tokens.length", "--alpha", "1"], "tokens.length is 2"),
        (["--between", "0.1", "0.4", "--field", "teacher.omega"], "alpha is missing"),
        (["--between", "0.3", "2", "--set", "positions.kind=none", "--branch", "positional"], "positions.kind"),
    ],
    "solutions": [
        (["--alpha", "0"], "alpha must be"),
        (["--alpha", "1", "--starts", "-1"], "starts must be"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
        (["--alpha", "1", "{none}"], "there is no such file"),
    ],
    "tune": [
        (["--alpha", "0"], "alpha must be"),
        (["--alpha", "1", "--between", "1", "0.1"], "between must be an increasing pair"),
        (["--alpha", "1", "--between", "-1", "1"], "regularizer.strength must be"),
        (["--alpha", "1", "--metric", "test_eror"], 'did you mean "test_error"'),
        (["--alpha", "1", "--field", "alpha"], "field must be a field"),
        (["--alpha", "1", "--field", "tokens.sgma"], 'did you mean "tokens.sigma"'),
        (["--alpha", "1", "--field", "tokens.length"], "only a field that is one real number"),
        (["--alpha", "1", "--field", "teacher.noise"], "between is missing"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
    ],
    "explore": [(["{none}"], "Missing option '-o'")],
    "sgd-flow": [
        (["--start", "positional"], "start must be semantic, or sizes"),
        (["--learning-rate", "-1"], "learning_rate must be"),
        (["--learning-rate", "1e10"], "from 0, which is gradient flow, to 1e+09"),
        (["--until", "0"], "until must be"),
        (["--tolerance", "1e-13"], "from 1e-12 to below 1"),
        (["--start", "noise=1e4"], "start.noise must be a standard deviation from 0 to 1000"),
        (["--start", "semantic=-1e4"], "start.semantic must be a number from -1000 to 1000"),
        (["-o", "{file}"], "the file exists"),
        (["--set", "regularizer.kind=lasso"], "regularizer.kind is lasso"),
    ],
    "stationary": [
        (["--starts", "-1"], "starts must be a whole number from 0 to 1000"),
        (["--batch", "3"], "batch belongs to SGD"),
        (["-o", "{file}"], "the file exists"),
    ],
    "basins": [
        (["--figure", "one.png", "-o", "one.png"], "name one file"),
        (["--set", "teacher.omega=0.2"], "give its values with --omega"),
        (["--omega", "2"], "omega must be a number from 0 to 1"),
        (["--scale", "0"], "scale must be a positive number up to 1000"),
        (["--noise", "-1"], "noise must be a standard deviation, a number from 0 to 1000"),
        (["-o", "one.nc", "--checkpoint", "one.nc"], "names a file of the result"),
        (["--angle", "50,20"], "angle must be in increasing order"),
        (["--runs", "{file}"], "name a --figure"),
        (["--figure", "x.xyz"], "no figure format"),
        (["-o", "{file}"], "the file exists"),
    ],
    "one-rsb": [
        (["--alpha", "0"], "alpha must be"),
        (["--alpha", "1", "--y", "100,-1"], "y must be"),
        (["--alpha", "1", "--outer", "48"], "outer must be a power of two"),
        (["--alpha", "1", "--inner", "4"], "inner must be"),
        (["--alpha", "1", "--outer", "65536"], "outer times inner"),
        (["--alpha", "1", "--tolerance", "2"], "tolerance must be"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
        (["--alpha", "1", "--set", "regularizer.kind=lasso"], "regularizer.kind must be ridge"),
        (["--alpha", "1", "--set", "positions.kind=none", "--branch", "positional"], "positions.kind"),
    ],
    "bayes-optimal": [
        (["--alpha", "0"], "alpha must be"),
        (["--alpha", "1", "--max-nodes", "20"], "max_nodes must be"),
        (["--alpha", "1", "-o", "{file}"], "the file exists"),
        (["--alpha", "1", "{none}"], "there is no such file"),
        (["--alpha", "1", "--channel", "sign"], 'channel = "sign" is for one token'),
        (["--alpha", "1", "--set", "teacher.rank=3"], "teacher.rank must be 1 or 2"),
        (["--alpha", "1", "--set", "teacher.omega=1"], "teacher.omega = 1"),
        (["--alpha", "1", "--vary", "student.rank=1,2"], "student.rank does not enter"),
        (["--alpha", "1", "--vary", "teacher.omega=a:b:3"], "START, STOP and COUNT must be numbers"),
        (["--alpha", "1", "-o", "one.nc", "--checkpoint", "one.nc"], "names a file of the result"),
    ],
    "thresholds": [
        (["--vary", "tokens.sigma=0.3,0.4", "--vary", "student.rank=1,2"], "--vary names 2 fields"),
        (["--omega", "0.3", "--vary", "tokens.sigma=0.3,0.4"], "cannot both be given"),
        (["--vary", "alpha=1,2"], "alpha is not a field"),
        (["--omega", "2"], "omega must be a number from 0 to 1"),
        (["--omega", ".3", ".3"], "twice"),
        (["--omega", ".3", "-o", "{file}"], "the file exists"),
        (["--omega", ".3", "--set", "teacher.rank=9"], "teacher.rank must be"),
    ],
    "init": [(["-o", "{file}"], "the file exists"), (["--length", "0"], "tokens.length must be")],
    "derive": [
        (["--set", "teacher.omega=2"], "teacher.omega must be"),
        (["{none}"], "there is no such file"),
        (["--concrete", "--format", "python"], "--concrete is for pages"),
        (["--concrete", "--limit", "sgd_flow"], "--concrete does not go with --limit sgd_flow"),
        (["--limit", "sgd_flow", "--set", "regularizer.kind=lasso"], "regularizer.kind is lasso"),
    ],
    "figure": [
        (["fig2", "-o", "{file}"], "the file exists"),
        (["fig2", "-o", "x.xyz"], "no figure format"),
        (["fig2", "-o", "x.pgf"], "no figure format"),  # TeX would run a dataset's labels
        (["fig2", "--data", "{none}"], "there is no such file"),
        (["fig2", "--workers", "0"], "workers must be"),
        (["fig9", "--data", "file.nc", "--with-data", "-o", "file.png"], "name another --output"),
    ],
    "phase-diagram": [
        (["--output", "{none}", "--nodes", "100"], "--nodes must be a power of two"),
        (["--output", "{folder}", "--alphas", "2"], "fig3.png: the file exists"),
        (["--output", "{file}"], "is a file"),
        (["--output", "{none}", "--workers", "0"], "workers must be"),
    ],
    "histogram train": [
        (["-o", "{none}", "--length", "1"], "length must be"),
        (["-o", "{none}", "--learning-rate", "-1"], "learning_rate must be"),
        (["-o", "{none}", "--epochs", "0"], "epochs must be"),
    ],
    "histogram unfreeze": [(["{none}"], "there is no such folder"), (["{none}", "--noise", "-1"], "noise must be")],
    "histogram report": [(["{none}"], "there is no such folder"), (["{folder}"], "there are no")],
}

# arguments with which every command that writes a file gets as far as its output
ASKED = {
    **{name: ["--alpha", "1"] for name in ("solve", "solutions", "one-rsb", "simulate", "bayes-optimal")},
    **{name: [] for name in ("init", "sgd-flow", "stationary", "basins")},
    "sweep": ["--alpha", "1,2"],
    "thresholds": ["--omega", "0.3"],
    "tune": ["--alpha", "1"],
    "follow": ["--between", "1", "2"],
    "figure": ["fig2"],
    "explore": ["file.nc"],
}
NO_FILES = ["", "/", "..", "none/x.nc", "file/x.nc", "n" * 300, "/dev/full", "pipe", "circle"]
NO_CHECKPOINTS = [*NO_FILES, "file.nc", "other"]


def refused_files():
    """Every command that writes a file or keeps a checkpoint, with every kind of name where there can be none."""
    for name in commands():
        *groups, last = name.split()
        owner: Any = main.commands[groups[0]] if groups else main
        for param in owner.commands[last].params:
            kinds = {"output": NO_FILES, "checkpoint": NO_CHECKPOINTS}.get(param.name, [])
            if isinstance(param.type, click.Path) and not (param.name == "output" and not param.type.file_okay):
                yield from (([*name.split(), *ASKED[name], param.opts[-1], bad], "") for bad in kinds)


def commands(group=main, before=""):
    """The names of all commands, those of groups spelt out."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_refusals_load_nothing_heavy(tmp_path):
    """All in one process, which would otherwise have loaded a heavy package for the first of them."""
    missing = set(commands()) - set(REFUSED)
    assert not missing, f"give the refusals of the new commands {missing}"
    (tmp_path / "file").touch()
    (tmp_path / "fig7.png").touch()
    (tmp_path / "fig3.png").touch()
    (tmp_path / "file.nc").touch()
    (tmp_path / "other").write_text("no checkpoint\n")
    (tmp_path / "circle").symlink_to("circle")
    os.mkfifo(tmp_path / "pipe")
    places = {"file": "file", "none": "none", "folder": "."}
    cases = [
        ([*command.split(), *(argument.format(**places) for argument in arguments)], words)
        for command, refusals in REFUSED.items()
        for arguments, words in refusals
    ] + [*refused_files()]
    script = (
        "import contextlib, io, json, sys\n"
        "from attnphase.cli.commands import main\n"
        "said = []\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        try:\n"
        "            main(arguments, prog_name='attnphase')\n"
        "        except SystemExit as end:\n"
        "            said.append([end.code, err.getvalue(), out.getvalue()])\n"
        f"    loaded = sorted(set({HEAVY}) & set(sys.modules))\n"
        "    assert not loaded, (arguments, loaded)\n"
        "print(json.dumps(said))\n"
    )
    given = json.dumps([arguments for arguments, _ in cases])
    done = subprocess.run([sys.executable, "-c", script, given], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for (arguments, words), (code, err, out) in zip(cases, json.loads(done.stdout), strict=True):
        assert (code, out) == (2, ""), (arguments, err)
        assert words in err, arguments
        assert err.count("\n") == 1, err
        assert err.startswith("attnphase: error: ")
        assert err[-2] in ".?)", err
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("circle", "fig3.png", "fig7.png", "file", "file.nc", "other", "pipe"),
    ]


@POSIX
def test_names_of_files_may_be_no_utf8(monkeypatch, tmp_path):
    """The history of a dataset has the command line."""
    monkeypatch.chdir(tmp_path)
    few = ["--set", "integration.rule=sobol", "--set", "integration.nodes=16", "--quiet", "--allow-unconverged"]
    for arguments in (
        ["init", "-o", "a\udcff.toml"],
        ["solve", "a\udcff.toml", "--alpha", "2", *few, "-o", "\udcfe.nc"],
    ):
        monkeypatch.setattr(sys, "argv", ["attnphase", *arguments])
        with pytest.raises(SystemExit) as end:
            main(arguments, prog_name="attnphase")
        assert end.value.code == 0
    ds = importlib.import_module("attnphase.data.files").load_dataset("\udcfe.nc")
    assert ds.attrs["history"].endswith("-o '\\udcfe.nc'")


def test_times_of_a_trajectory_differ():
    """Next to the smallest positive number all of them would be the same one or two."""
    for until, records in ((5e-324, 101), (3e-308, 2001)):
        with pytest.raises(ProblemError, match=rf"until must be at least .*, so that the {records} times"):
            FlowSettings(until=until, records=records)
    assert FlowSettings(until=3e-308, records=2).until == 3e-308


LASSO = ("--set", "regularizer.kind=lasso", "--set", "regularizer.strength=0.01")
UNNEEDED = ("scipy.stats", "xarray", "pandas", "sympy")


@pytest.mark.parametrize(
    ("options", "unneeded"),
    [
        ((), (*UNNEEDED, "scipy.special", "scipy.linalg")),
        (("--branch", "positional"), (*UNNEEDED, "scipy.special", "scipy.linalg")),
        (LASSO, UNNEEDED),
    ],
)
def test_a_solve_waits_for_no_package_that_it_does_not_need(options, unneeded, tmp_path):
    """SciPy's functions, tables and symbols take longer to import than a point to be solved, once kernels are kept."""
    code = (
        "import sys\n"
        "from attnphase.cli.commands import main\n"
        "try:\n"
        f"    main(['solve', '--alpha', '2.3', *{options!r}], prog_name='attnphase')\n"
        "finally:\n"
        f"    print(*set(sys.modules) & set({unneeded!r}))\n"
    )
    # kernels that are not kept are made by the first, with SymPy
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path) for _ in range(2)
    )
    assert first.returncode == second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        ("0", "for gradient flow from 4 starts: give more starts."),
        ("7.5", "for learning_rate = 7.5 from 4 starts: lower"),
    ],
)
def test_a_search_without_stationary_points_has_not_converged(monkeypatch, capsys, rate, words):
    monkeypatch.setattr("attnphase.theories.sgd_flow.roots.stationary_points", lambda *_: [])
    with pytest.raises(SystemExit) as end:
        main(["stationary", "--starts", "0", "--learning-rate", rate, "--quiet"])
    assert end.value.code == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_formats_of_figures_are_those_of_matplotlib():
    figure = importlib.import_module("matplotlib.figure").Figure()
    assert set(files.FIGURE_FORMATS) <= set(figure.canvas.get_supported_filetypes())


# --- standard streams -------------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams(closed):
    """They are the null device: nothing else gets their number, and nothing fails."""
    script = f'exec "$@" {closed}'
    for arguments, code in ((["--version"], 0), (["solve", "--alpha", "0"], 2)):
        done = subprocess.run(["sh", "-c", script, "sh", *MODULE, *arguments], capture_output=True, text=True)
        assert done.returncode == code
        assert "Traceback" not in done.stderr
        assert bool(done.stdout) == (code == 0 and ">&-" not in closed.replace("2>&-", ""))
        assert bool(done.stderr) == (code == 2 and "2>&-" not in closed)


@POSIX
def test_a_closed_stream_leaves_its_number_to_nobody():
    script = (
        "import os; from attnphase.cli import streams\n"
        "streams.opened()\n"
        "os._exit(0 if os.open(os.devnull, os.O_RDONLY) > 2 else 1)\n"
    )
    command = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(command).returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_who_leaves_early(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run([*MODULE, "--help"], stdout=writer, stderr=subprocess.PIPE, env=environment)
    finally:
        os.close(writer)
    assert done.returncode == streams.UNREAD
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_output_that_cannot_be_written():
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([*MODULE, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "attnphase: error: standard output cannot be written: No space left on device.\n"


def test_files_are_written_though_the_reader_has_left(tmp_path, monkeypatch):
    """The text of the first part of an experiment meets a closed pipe; both parts and the files are made."""
    paper = importlib.import_module("attnphase.paper.catalogue")
    run = importlib.import_module("attnphase.paper.run")

    def experiment(asked, folder, *, say, **rest):
        for part in ("first", "second"):
            say(f"{part}\n" * 10_000)
            files.write_file(Path(folder) / f"{part}.txt", part.encode())

    monkeypatch.setattr(run, "run_experiment", experiment)
    monkeypatch.setattr(paper, "check_results", lambda *_: tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    outlet = streams.Outlet(writer, "w")
    with io.TextIOWrapper(io.BufferedWriter(outlet), "utf-8") as stream, contextlib.redirect_stdout(stream):
        with pytest.raises(SystemExit) as end:
            main(["experiment", "fig7", "-o", str(tmp_path)], prog_name="attnphase")
        assert end.value.code == 0
        assert isinstance(outlet.lost, BrokenPipeError)
    assert (tmp_path / "second.txt").read_text() == "second"


# --- signals ----------------------------------------------------------------------------------------------------------

WHEN_LOADED = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, {begin})
signal.signal(signal.SIGINT, {first})
import attnphase.__main__ as process

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.{number})

sys.meta_path.insert(0, Finder())
sys.argv[1:] = {arguments!r}
process.main()
"""


def interrupted(number, module, arguments, begin="signal.SIG_DFL", first="signal.default_int_handler"):
    script = WHEN_LOADED.format(number=number, module=module, arguments=arguments, begin=begin, first=first)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


@POSIX
@pytest.mark.parametrize("module", ["attnphase.cli.commands", "click"])
def test_ctrl_c_while_the_command_line_is_loaded(module):
    done = interrupted("SIGINT", module, ["--version"])
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "attnphase: interrupted.\n")


@POSIX
def test_ctrl_c_while_a_command_loads_packages():
    done = interrupted("SIGINT", "numpy", ["derive"])
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "attnphase: interrupted.")


@POSIX
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ignored_signals_stay_ignored(number):
    done = interrupted(number, "attnphase.cli.commands", ["--version"], "signal.SIG_IGN", "signal.SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "")


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def derivation(monkeypatch):
    """Makes `derive` raise."""

    def raising(error):
        def derive(*args, **kwargs):
            raise error

        monkeypatch.setattr(importlib.import_module("attnphase.pages.page"), "derive", derive)

    return raising


def test_a_fault_of_the_program_shows_its_traceback(derivation):
    derivation(IndexError("invalid index\nto scalar"))
    result = CliRunner().invoke(main, ["derive", "--concrete"])
    assert (result.exit_code, result.stdout) == (70, "")
    *lines, last = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "    raise error" in lines
    assert last == (
        "attnphase: fault: IndexError: invalid index to scalar: this is a fault of attnphase, not of its input;"
        " please report it with the lines above."
    )


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (MemoryError(), 2, "error: memory ran out: end other programs, or take fewer nodes, tokens or samples."),
        (MemoryError("Unable to allocate 9 GiB"), 2, "error: memory ran out (Unable to allocate 9 GiB): end other"),
        (ImportError("libx.so: failed to map"), 2, "error: ImportError: libx.so: failed to map: a package cannot be"),
        (KeyboardInterrupt(), 130, "interrupted."),
        (EOFError("short"), 70, "fault: EOFError: short: this is a fault"),
        (OSError(28, "No space left", "some.file"), 2, "error: some.file: No space left."),
        (OSError("no library"), 2, "error: no library."),
        (RecursionError("too deep"), 70, "fault: RecursionError: too deep: this"),
        (GeneratorExit(), 70, "fault: GeneratorExit: this"),
    ],
)
def test_every_end_is_a_sentence(derivation, error, code, sentence):
    derivation(error)
    result = CliRunner().invoke(main, ["derive"])
    assert (result.exit_code, result.stdout) == (code, "")
    *lines, last = result.stderr.strip().splitlines()
    assert last.startswith(f"attnphase: {sentence}")
    assert bool(lines) == (code == 70)  # the traceback


def test_sentences_are_short_and_printable():
    result = CliRunner().invoke(main, ["derive", f"{'x' * 200}\x1b[31m\n{'y' * 3000}"])
    assert result.exit_code == 2
    assert len(result.stderr) < 700
    assert result.stderr.count("\n") == 1
    assert "\x1b" not in result.stderr


# --- extreme values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"positions.gram": [[1e308, 0], [0, 1]]}, "positions.gram must be"),
        ({"teacher.mixing": [[1e300, 0], [0, 1]]}, "teacher.mixing must be"),
        ({"regularizer.kind": "expression", "regularizer.expression": "1e308*w**2"}, "too large a number"),
        ({"regularizer.kind": "expression", "regularizer.expression": "1e30*1e40*w**2"}, "too large a number"),
        ({"regularizer.kind": "expression", "regularizer.expression": "w/0 + w**2"}, "divides by zero"),
        ({"student.score": "exp(" * 60 + "z" + ")" * 60}, "too intricate"),
        ({"student.score": "exp(" * 8 + "z" + ")" * 8}, "not a finite number"),
        ({"tokens.sigma": 10**400}, "tokens.sigma must be"),
        ({"tokens.sigma": 10**5000}, "tokens.sigma must be"),
        ({"integration.seed": -(10**5000)}, "integration.seed must be"),
    ],
)
def test_extreme_values_are_refused(fields, words):
    with pytest.raises(ProblemError) as caught:
        Problem().with_fields(fields)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_in_a_sentence(bad, monkeypatch, uncompiled):
    """As sqrt(h), of which not even the identity is found to be a symmetry."""

    def losses_at(h, k, mixing, parameters, variance, losses):
        losses[:] = np.where(h[:, 0, 0] < 0, bad, h[:, 0, 0])

    system = System.of(Problem().with_fields({"tokens.length": 1, "loss.kind": "square"}))
    wrong = replace(system.loss, kernels=replace(system.kernels, losses_at=losses_at))
    with pytest.raises(SolverError, match="the loss is not a finite number"):
        loss_symmetries(wrong)


# --- code of the user's own -------------------------------------------------------------------------------------------

OWN = """
import sys
print("a module's own print")

def ends(z):
    sys.exit(0)

def leaves(z):
    raise GeneratorExit

def prints(z):
    print("a function's own print")
    return [2 * logit for logit in z]

def endless(z):
    while True:
        yield z[0]

def long(z):
    raise ValueError("word " * 1000)

def prox_ends(v, step):
    sys.exit(0)

def prox_text(v, step):
    return "text"

def prox_prints(v, step):
    print("a prox's own print")
    return v / (1 + step)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "faults_own.py").write_text(OWN)
    (tmp_path / "faults_ending.py").write_text("raise SystemExit(0)\n")
    yield
    for name in ("faults_own", "faults_ending"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("field", "name", "words"),
    [
        ("student.score", "sys:exit", "fails on 2 logits: it ends the program"),
        ("student.score", "faults_own:ends", "fails on 2 logits: it ends the program"),
        ("teacher.score", "faults_own:leaves", "fails on 2 logits: GeneratorExit"),
        ("student.score", "faults_own:endless", "returns more than 2 entries"),
        ("student.score", "faults_own:long", "word word"),
        ("student.score", "builtins:len", "is not iterable"),
        ("student.score", "faults_ending:row", "cannot be imported: it ends the program"),
        ("student.score", "lambda: z", "cannot stand in a formula"),
        ("regularizer.prox", "faults_own:prox_ends", "fails on an array: it ends the program"),
        ("regularizer.prox", "faults_own:prox_text", "it must return an array"),
        ("regularizer.prox", "faults_ending:prox", "cannot be imported: it ends the program"),
    ],
)
def test_code_that_fails_is_refused(own, capsys, field, name, words):
    fields = {"regularizer.kind": "prox"} if field == "regularizer.prox" else {}
    with pytest.raises(ProblemError) as caught:
        Problem().with_fields({**fields, field: name})
    assert caught.value.field == field
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert capsys.readouterr().out == ""


def test_standard_output_is_for_results(own, capsys):
    page_of(Problem().with_fields({"teacher.score": "faults_own:prints"}))
    Problem().with_fields({"student.score": "faults_own:prints"})
    Problem().with_fields({"regularizer.kind": "prox", "regularizer.prox": "faults_own:prox_prints"})
    captured = capsys.readouterr()
    assert captured.out == ""
    for whose in ("module", "function", "prox"):
        assert f"a {whose}'s own print" in captured.err


# --- outputs ----------------------------------------------------------------------------------------------------------


@POSIX
def test_links_stay_links(tmp_path):
    (tmp_path / "folder").mkdir()
    target, dangling, existing = tmp_path / "folder" / "target", tmp_path / "dangling", tmp_path / "existing"
    dangling.symlink_to("folder/target")
    assert files.check_output(dangling) == dangling
    files.write_file(dangling, b"first")
    assert target.read_bytes() == b"first"
    existing.symlink_to(dangling)  # a link to a link
    with pytest.raises(DatasetError, match="the file exists"):
        files.check_output(existing)
    files.write_file(files.check_output(existing, force=True), b"second")
    assert target.read_bytes() == b"second"
    assert existing.is_symlink()
    assert dangling.is_symlink()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["target"]


@POSIX
def test_links_that_lead_nowhere(tmp_path):
    circle, outside = tmp_path / "circle", tmp_path / "outside"
    circle.symlink_to("circle")
    outside.symlink_to("no/folder/file")
    with pytest.raises(DatasetError, match="links lead in a circle"):
        files.check_output(circle, force=True)
    with pytest.raises(DatasetError, match="there is no folder"):
        files.check_output(outside)
    assert circle.is_symlink()
    assert outside.is_symlink()


@pytest.mark.parametrize("name", ["x" * 300, "no/such/file", "a/" * 3000 + "file"])
def test_names_that_cannot_be_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError):
        files.check_output(name)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no such folder of the system's own here")
@pytest.mark.parametrize("check", [files.check_output, files.check_folder])
def test_folders_that_permissions_alone_would_allow(check):
    """The superuser may write everywhere, and still makes no file there."""
    with pytest.raises(DatasetError, match=r"not writable|not a folder that may be written to"):
        check("/proc/one")


def test_the_longest_name_can_be_written(tmp_path):
    path = files.check_output(tmp_path / ("é" * 100 + "x" * 50))
    files.write_file(path, b"whole")
    assert path.read_bytes() == b"whole"


# --- other systems ----------------------------------------------------------------------------------------------------


def test_free_memory_without_sysconf(monkeypatch):
    """As on Windows, where the answer is a structure that the system fills in."""
    pytest.importorskip("torch", reason="experiments need PyTorch")
    import torch

    memory = importlib.import_module("attnphase.experiments.memory")

    def fill(pointer):
        status = ctypes.cast(pointer, ctypes.POINTER(memory._MemoryStatus)).contents
        assert status.length == ctypes.sizeof(memory._MemoryStatus) == 64
        status.free_physical = 5 << 30
        return 1

    kernel = SimpleNamespace(GlobalMemoryStatusEx=fill)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(memory.Path, "exists", lambda path: False)
    assert memory.available_memory(torch.device("cpu")) == 5 << 30


def test_signals_that_are_answered_exist_everywhere():
    assert {signal.SIGINT, signal.SIGTERM} <= set(signal.Signals)
