"""The one line that says what is being done: where it appears, what it says, and that it leaves nothing behind."""

import builtins
import importlib
import io
import re
import sys
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import click
import pytest
from click.testing import CliRunner

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.errors import ProblemError, SolverError
from attnphase.fixed_points.settings import SolverSettings
from attnphase.kernels import cache
from attnphase.kernels import compiler as compiled
from attnphase.kernels.key import ModelKey
from attnphase.problem.problem import Problem
from attnphase.processes import progress as module
from attnphase.processes.progress import ProgressLine, progress_line, silent, within
from attnphase.solvers.iteration import Status

SOLVER, CROSSINGS = (importlib.import_module(f"attnphase.fixed_points.{name}") for name in ("solver", "crossings"))
POINTS, CRITICAL = (importlib.import_module(f"attnphase.sweeps.{name}") for name in ("points", "critical"))
SYSTEM = importlib.import_module("attnphase.state_evolution.system")
COARSE = Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 16})
HIDE, SHOW, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"
ELAPSED = ProgressLine.__dict__["elapsed"]
PATIENCE = 300.0  # seconds after which a line that does not come is missed


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Nothing waits a second here, and no second passes; a terminal of 60 columns."""
    monkeypatch.setattr(ProgressLine, "elapsed", "0 s")
    monkeypatch.setattr(module, "SILENT", 0.0)
    monkeypatch.setattr(module, "REFRESH", 0.001)
    monkeypatch.setattr(module, "NOTEBOOK", 0.001)
    monkeypatch.setattr(module, "PLAIN", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):  # what rich asks besides
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def clock(monkeypatch):
    """The line's own clock, which stands until it is set."""
    own = SimpleNamespace(now=1000.0)
    own.monotonic = lambda: own.now
    monkeypatch.setattr(module, "time", own)
    return own


def standard_error(monkeypatch, stream):
    """Not in a fixture: between a test's setup and its call pytest puts its own in place."""
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def recording(said):
    """A `Callback` that keeps the words."""
    return lambda text, *steps: said.append(text)


def until(condition):
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < PATIENCE
        time.sleep(0.001)


# --- one line ---------------------------------------------------------------------------------------------------------


def test_on_a_terminal_the_line_is_live_and_gone_in_the_end(monkeypatch):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(True, "solving [1]") as line:
        until(lambda: "solving [1]" in terminal.getvalue())
        line.callback("7 maps, residual 3e-05")
        until(lambda: "7 maps, residual 3e-05 0 s" in re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()))
        assert SHOW not in terminal.getvalue()
    end = terminal.getvalue()
    assert end.count(HIDE) == end.count(SHOW) == 1
    assert ERASE in end[end.rindex(SHOW) :]
    assert threading.active_count() == 1 or not any(t.name.endswith("(_watch)") for t in threading.enumerate())


def test_a_line_has_a_bar_where_the_total_is_known(monkeypatch):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(True, "solving", total=40) as line:
        line.at(10, "x" * 100)
        until(lambda: "25%" in terminal.getvalue())
    shown = terminal.getvalue()
    assert "━" in shown
    assert "xxx…" in shown  # gives way to the bar, so that the line stays one
    assert "x" * 50 not in shown


@pytest.mark.parametrize("error", [KeyboardInterrupt, ProblemError("alpha", "alpha is wrong.")])
def test_an_interruption_gives_the_cursor_back(monkeypatch, error):
    terminal = standard_error(monkeypatch, Terminal())

    def interrupted():
        with progress_line(True, "solving"):
            until(lambda: HIDE in terminal.getvalue())
            raise error

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else ProblemError):
        interrupted()
    assert terminal.getvalue().count(SHOW) == 1


def test_warnings_stand_above_the_line(monkeypatch):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(True, "solving"):
        until(lambda: HIDE in terminal.getvalue())
        click.echo("attnphase: warning: mind the step", err=True)
    assert "attnphase: warning: mind the step\n" in terminal.getvalue()


def test_standard_output_is_left_alone(monkeypatch, capsys):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(True, "solving"):
        until(lambda: HIDE in terminal.getvalue())
        print("a result")
    assert capsys.readouterr().out == "a result\n"


def test_what_is_quick_says_nothing(monkeypatch):
    terminal = standard_error(monkeypatch, Terminal())
    monkeypatch.setattr(module, "SILENT", 60.0)
    with progress_line(True, "solving") as line:
        line.callback("7 maps")
    assert terminal.getvalue() == ""


def test_a_quiet_line_says_nothing(monkeypatch):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(False, "solving") as line:
        line.at(3, "7 maps")
        assert not any(thread.name.endswith("(_watch)") for thread in threading.enumerate())
    assert terminal.getvalue() == ""


@pytest.mark.parametrize(("output", "shown"), [(Terminal, True), (io.StringIO, False)])
def test_by_default_only_compiling_is_shown(monkeypatch, output, shown):
    """A function that nobody asked for its progress seems to hang while it compiles; a log is left alone."""
    written = standard_error(monkeypatch, output())
    monkeypatch.setattr(module, "PLAIN", 0.01)
    with progress_line(None, "solving") as line:
        line.callback("7 maps")
        assert not any(thread.name.endswith("(_watch)") for thread in threading.enumerate())
        line.callback(f"semantic, alpha = 2: {module.COMPILING}")
        if shown:
            until(lambda: module.COMPILING in written.getvalue())
        line.callback("8 maps")
        assert not any(thread.name.endswith("(_watch)") for thread in threading.enumerate())
    assert (written.getvalue().count(SHOW) == 1) == shown
    assert "maps" not in written.getvalue()
    assert shown or written.getvalue() == ""


@pytest.mark.parametrize(("progress", "shown"), [(None, True), (False, False)])
def test_a_solve_shows_that_it_compiles(monkeypatch, progress, shown):
    terminal = standard_error(monkeypatch, Terminal())

    def compiling(problem, callback, **_):
        callback(module.COMPILING)
        if shown:
            until(lambda: module.COMPILING in terminal.getvalue())

    monkeypatch.setattr("attnphase.state_evolution.system.tell_if_compiling", compiling)
    ap.solve(COARSE, 2.0, progress=progress)
    assert (module.COMPILING in terminal.getvalue()) == shown


def test_a_log_gets_plain_lines(monkeypatch):
    log = standard_error(monkeypatch, io.StringIO())
    with progress_line(True, "solving", total=8) as line:
        line.at(2, "omega = 0.3")
        until(lambda: "attnphase: 25%, omega = 0.3 (0 s)\n" in log.getvalue())
    assert "\x1b" not in log.getvalue()


def test_what_is_counted_is_said_with_its_rate(clock):
    """What was there before the line, or before counting, began is counted, but not as if it had been done since."""
    line = ProgressLine("sweeping", 20, 8, "points")
    assert line.plain == "40%, sweeping: 8/20 points (0 s)"
    clock.now += 10  # compiling, and the first two points
    line.reach(10)
    assert line.plain == "50%, sweeping: 10/20 points (0 s)"
    clock.now += 4
    line.reach(16)
    assert line.words == "sweeping: 16/20 points, 1.5 points/s"
    assert line.plain == "80%, sweeping: 16/20 points, 1.5 points/s, 3 s left (0 s)"
    assert line.clock == "3 s left"


def test_compiling_does_not_enter_the_rate(clock):
    """It is said to be compiling as long as it is, without a time left, which would be that of as slow a rest."""
    line = ProgressLine("sweeping", 1300, 0, "points")
    for text in ("compiling the kernels of this model, once", "sweeping"):
        line.callback(text)
        clock.now += 20
        line.reach(0)  # as the workers' counters are read again and again
        assert line.plain == f"0%, {text}: 0/1300 points (0 s)"
        assert line.clock == "0 s"
    for done in range(1, 101):
        clock.now += 0.1
        line.reach(done)
    assert line.rate == pytest.approx(10)
    assert line.plain.endswith("100/1300 points, 10.0 points/s, 2 min 0 s left (0 s)")


def test_a_long_run_is_estimated_once_as_soon_as_something_was_counted_for_a_while(clock):
    """By the first of a million points, of which a twentieth would be reached in a day."""
    said: list[str] = []
    line = ProgressLine("solving", 1_000_000, 0, "points", announce=said.append)
    for done in range(1, 9):
        line.reach(done)
        line.estimate()
        clock.now += 2
    # counting began with the first point, and 2 s for each of the 999997 that are left are 33333 min 14 s
    sentence = (
        "999997 of 1000000 points are left, which take about 555 h 33 min, if the rest costs what the first part did"
    )
    assert said == [sentence]
    for total, unit in ((30, "points"), (None, "")):  # half a minute; nobody knows
        line = ProgressLine("solving", total, 0, unit, announce=said.append)
        for done in range(1, 9):
            line.reach(done)
            line.estimate()
            clock.now += 1
    assert said == [sentence]
    line = ProgressLine("following", 1.0, announce=said.append)
    line.reach(0.01)
    clock.now += 4
    line.reach(0.03)
    line.estimate()
    assert said[1] == "this takes about 3 min 14 s, if the rest costs what the first part did"
    line = ProgressLine("following", 1.0, announce=said.append, before="where it ends before")
    line.reach(0.01)
    clock.now += 4
    line.reach(0.03)
    line.estimate()
    assert said[2] == said[1].replace("about", "at most about") + "; less where it ends before"


def test_what_takes_long_one_by_one_is_estimated_before_the_second_is_done(clock):
    """From below while the first is under way, and then by the first; what is compiled once counts for neither."""
    said: list[str] = []
    line = ProgressLine("solving", 40, 0, "points", announce=said.append)
    line.callback("compiling the kernels of this model, once")
    clock.now += 30
    line.estimate()
    assert said == []
    line.callback("semantic")
    for _ in range(7):
        clock.now += 2
        line.estimate()
    assert said == ["none of 40 points is done after 10 s: all of them may take 6 min 40 s or more"]
    line.reach(1)
    line.estimate()
    assert len(said) == 1  # a second may follow at once
    clock.now += 3
    line.estimate()
    assert said[1:] == [
        "39 of 40 points are left, which take about 9 min 6 s, if the rest costs what the first part did"
    ]
    clock.now += 3
    line.estimate()
    assert len(said) == 2
    line = ProgressLine("sweeping", 40, 0, "points", announce=said.append, at_once=8)
    clock.now += 10
    line.estimate()
    assert said[2:] == []  # 50 s, by eight at once
    line.reach(1)
    clock.now += 3
    line.estimate()
    assert said[2:] == []  # likewise
    clock.now += 21  # the second takes so long that all of them would take 117 s
    line.reach(9)
    line.estimate()
    assert said[2:] == [
        "31 of 40 points are left, which take about 1 min 33 s, if the rest costs what the first part did"
    ]
    for total in (1, 2):  # of the only one nobody knows; two take more than a minute once the first takes half of one
        line = ProgressLine("solving", total, 0, "points", announce=said.append)
        for _ in range(2):
            clock.now += 25
            line.estimate()
    assert said[3:] == ["none of 2 points is done after 50 s: all of them may take 1 min 40 s or more"]


def test_an_iteration_is_estimated_by_the_steps_that_it_makes_at_most(clock):
    """Of what costs the same: between two rules something else is told, and steps of the first do not count."""
    said: list[str] = []
    for total, unit in ((None, ""), (1, "points")):
        line = ProgressLine("solving", total, 0, unit, announce=said.append)
        callback = within("semantic", line.callback)
        for steps in range(1, 13):
            callback("few nodes", steps, 400)
            line.estimate()
            clock.now += 0.1  # all of them would take 39 s
        callback("measuring")
        clock.now += 60
        line.estimate()
        for steps in range(12, 15):
            assert said == []
            callback("many nodes", steps, 400)
            line.estimate()
            clock.now += 1.5
        assert line.text == "semantic: many nodes"
        # two steps in 3 s, and 386 may follow
        assert said == [
            "386 of 400 steps of the iteration are left, which take at most about 9 min 39 s, if the rest costs what"
            " the first part did; less where it converges sooner"
        ]
        said.clear()
    line = ProgressLine("solving", 40, 0, "points", announce=said.append)
    for steps in range(1, 5):  # the points are what is counted
        line.callback("semantic", steps, 400)
        line.estimate()
        clock.now += 2
    assert said == []
    for done in (0, 0, 1, 2):  # and are estimated again once there are some
        clock.now += 5
        line.reach(done)
        line.estimate()
    assert [sentence.partition(" points")[0] for sentence in said] == ["none of 40", "38 of 40"]


def one_of(command: str) -> None:
    """A short one of a command that iterates for one point."""
    match command:
        case "solve":
            ap.solve(COARSE, 1.8, "positional", settings=SolverSettings(stability=False, identity=False))
        case "check":
            ap.check(COARSE, 1.8, "positional", experiment=False)
        case "bayes-optimal":
            ap.bayes_optimal(Problem.paper(omega=0.3), 0.42, settings=SolverSettings(max_nodes=1024))
        case _:
            wide = COARSE.with_fields({"positions.kind": "none", "tokens.sigma": 0.7})
            settings = SolverSettings(tolerance=1e-3, max_maps=60)
            with suppress(SolverError):  # so few nodes may not show a maximum
                ap.one_rsb(wide, 1.0, branch="uninformed", start="informed", outer=16, inner=16, settings=settings)


@pytest.mark.parametrize("command", ["solve", "check", "bayes-optimal", "one-rsb"])
def test_every_iteration_tells_its_steps(monkeypatch, command):
    """And how many it makes at most: without them nobody can say how long a point may take."""
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(ProgressLine, "callback", lambda line, text, steps=0.0, most=0.0: told.append((steps, most)))
    one_of(command)
    counted = [(steps, most) for steps, most in told if most]
    assert len(counted) >= 3
    assert all(steps > 0 for steps, _ in counted)
    assert counted[0][0] < counted[0][1]
    assert any(later > earlier for (earlier, _), (later, _) in pairwise(counted))


@pytest.mark.parametrize("shown", [True, False])
def test_an_estimate_is_printed_while_nothing_is_done(monkeypatch, shown):
    """On a stream that is no terminal too, before the first of many is done; and never where all is quiet."""
    log = standard_error(monkeypatch, io.StringIO())
    monkeypatch.setattr(module, "LOOK", 0.001)
    monkeypatch.setattr(module, "WAITED", 0.01)
    with progress_line(shown, "solving", 1_000_000, unit="points"):
        if shown:
            until(lambda: "attnphase: none of 1000000 points is done after 0 s: all of them may" in log.getvalue())
        else:
            time.sleep(0.1)
    assert shown or log.getvalue() == ""


def test_no_time_is_said_from_a_few_points(clock):
    line = ProgressLine("sweeping", 1001, 0, "points")
    for done in range(1, 51):
        line.reach(done)
        assert line.left is None
        clock.now += 1
    line.reach(51)  # a twentieth of what was left when counting began
    assert line.left == pytest.approx(950)
    asked = ProgressLine("sweeping", 1001, 0, "points", enough=2)
    asked.reach(1)
    clock.now += 1
    asked.reach(2)
    assert asked.left is None
    asked.reach(3)
    assert asked.left == pytest.approx(499)


def test_what_is_lost_is_not_counted(clock):
    """Where workers died, the rate since is that of the others that take their place."""
    line = ProgressLine("sweeping", 100, 0, "points")
    for done in (20, 40, 10):  # the last when 30 points of unfinished lines were lost
        line.reach(done)
        clock.now += 1
    assert line.rate is None
    assert line.left is None
    line.reach(20)
    clock.now += 2
    line.reach(40)
    assert line.left == pytest.approx(6)


def test_a_log_is_not_flooded(monkeypatch):
    log = standard_error(monkeypatch, io.StringIO())
    monkeypatch.setattr(module, "PLAIN", 60.0)
    with progress_line(True, "solving") as line:
        for i in range(1000):
            line.callback(f"{i} maps")
    assert log.getvalue() == ""


@pytest.mark.parametrize("kind", ["closed by the shell", "nobody reads", "dumb"])
def test_without_a_proper_terminal_the_work_goes_on(monkeypatch, kind):
    class Broken(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    stream = {"closed by the shell": None, "nobody reads": Broken(), "dumb": Terminal()}[kind]
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_line(True, "solving") as line:
        if kind == "dumb":
            until(lambda: "attnphase: solving" in stream.getvalue())
        line.callback("7 maps")
    if kind == "dumb":
        assert "\x1b" not in stream.getvalue()


def test_a_notebook_shows_the_line_in_its_cell(monkeypatch):
    """IPython's display with a handle, as a notebook's kernel has it, on a stream that is no terminal."""
    log = standard_error(monkeypatch, io.StringIO())
    shown, bars = [], []

    def show(data):
        shown.append(data["text/plain"])
        bars.append(data["text/html"])

    class Handle:
        def update(self, data, raw):
            assert raw
            show(data)

    def display(data, raw, display_id):
        assert raw
        assert display_id is True
        show(data)
        return Handle()

    fake = ModuleType("IPython.display")
    fake.__dict__["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    shell = type("ZMQInteractiveShell", (), {})()  # by whose name a notebook is known
    monkeypatch.setattr(builtins, "get_ipython", lambda: shell, raising=False)
    with progress_line(True, "solving", total=4) as line:
        until(lambda: "0%, solving (0 s)" in shown)
        line.at(3, "7 maps < 9")
        until(lambda: "75%, 7 maps < 9 (0 s)" in shown)
    assert shown[-1] == bars[-1] == ""
    assert '<progress value="0" max="4"></progress> solving (0 s)' in bars
    assert '<progress value="3" max="4"></progress> 7 maps &lt; 9 (0 s)' in bars
    assert ProgressLine("searching", None).mimebundle()["text/html"].startswith("<progress></progress> searching")
    assert log.getvalue() == ""


@pytest.mark.parametrize("value", ["yes", 1])
def test_progress_is_true_or_false(value):
    with pytest.raises(ProblemError, match="progress must be True or False"):
        ap.solve(COARSE, 2.0, progress=value)


def test_a_bar_ends_in_the_time_left(monkeypatch, clock):
    terminal = standard_error(monkeypatch, Terminal())
    with progress_line(True, "sweeping", 40, 0, "points") as line:
        line.reach(1)
        clock.now += 2
        line.reach(21)
        until(lambda: "2 s left" in re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()))


def test_minutes_are_counted(monkeypatch):
    monkeypatch.setattr(ProgressLine, "elapsed", ELAPSED)
    now = [31.2]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    line = ProgressLine("solving", None)
    now[0] += 127.9
    assert line.plain == "solving (2 min 7 s)"


# --- what is said -----------------------------------------------------------------------------------------------------


def test_a_place_is_named_once_and_silence_stays_silence():
    said = []
    within("outside", within("inside", recording(said)))("7 maps")
    assert said == ["inside: outside: 7 maps"]
    assert within("inside", silent) is silent


def test_a_solve_tells_its_maps_and_residual():
    said = []
    point = SOLVER.solve_point(COARSE, 1.8, "positional", callback=recording(said))
    assert point.status is Status.converged
    assert all(text.startswith("positional, alpha = 1.8: ") for text in said)
    maps = [text.split(": ")[1] for text in said if " maps, residual " in text]
    counts = [int(text.split()[0]) for text in maps]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == point.iterations
    assert maps[-1] == f"{point.iterations} maps, residual {point.residual:.0e}, {point.nodes} nodes"


def test_solving_all_branches_shows_one_line(monkeypatch):
    lines = recorded(monkeypatch, POINTS)
    ap.solve(COARSE, 1.8, "all", progress=True)
    (line,) = lines
    assert line.shown
    branches = list(dict.fromkeys(text.split(",")[0] for text in line.said))
    assert branches == ["semantic", "positional", "uninformed"]
    ap.solve(COARSE, 1.8)
    assert not lines[-1].shown


@pytest.mark.parametrize("finite", [False, True])
def test_compiling_is_told_where_nothing_is_in_the_cache(tmp_path, monkeypatch, finite):
    said = []
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path))
    compiled.tell_if_compiling(COARSE, recording(said), finite=finite)
    assert said == ["compiling the kernels of this model, once"]
    keys = {finite: ModelKey.of(COARSE, finite=finite) for finite in (False, True)}
    for is_finite in (not finite, finite):
        folder = cache.cache_directory() / cache.fingerprint(keys[is_finite])
        folder.mkdir()
        (folder / "manifest.json").touch()
        compiled.tell_if_compiling(COARSE, recording(said), finite=finite)
        assert len(said) == (1 if is_finite is finite else 2)  # only its own kernels count
        said[1:] = []


def test_a_solve_tells_that_it_compiles(monkeypatch):
    """Before it asks for the kernels."""
    said = []
    monkeypatch.setattr(
        SYSTEM, "tell_if_compiling", lambda problem, callback: callback(f"compiling at {problem.teacher.omega}")
    )
    monkeypatch.setattr(SYSTEM, "kernels_for", lambda problem: said.append("asked") or compiled.kernels_for(problem))
    SOLVER.solve_point(COARSE, 1.8, "positional", callback=recording(said))
    assert said[:2] == ["positional, alpha = 1.8: compiling at 0.3", "asked"]


def test_a_sweep_compiles_every_model_that_is_not_kept_before_its_workers_start(monkeypatch):
    """Masks make models of their own, which no worker shall compile in silence; what is kept is theirs to load."""
    home, models = importlib.import_module("attnphase.sweeps.grid"), []

    def kernels_for(problem):
        models.append((problem.student.causal, problem.teacher.causal))

    def stop(*_):
        raise KeyboardInterrupt

    lines = recorded(monkeypatch, home)
    monkeypatch.setattr(home, "kernels_for", kernels_for)
    monkeypatch.setattr(home, "are_intact", lambda problem: problem.student.causal and not problem.teacher.causal)
    monkeypatch.setattr(home.Work, "solve", stop)
    fields = {"student.causal": [False, True], "teacher.causal": [False, True]}
    with pytest.raises(KeyboardInterrupt):
        ap.sweep(COARSE, [2.0], [0.2, 0.3], fields=fields, workers=1)
    assert sorted(models) == [(False, False), (False, True), (True, True)]
    assert lines[0].said == ["compiling the kernels of this model, once"] * 3


def test_thresholds_know_how_much_is_done(monkeypatch):
    """On a stand-in that stops after a branch, as where there is none, and one that takes all its steps."""

    def stub(problem, crossings, ends, settings, advance, callback):
        callback("looking for the semantic branch")
        for _ in range(4 if problem.teacher.omega > 0.25 else 1):
            dones.append(lines[0].done)
            advance()
        return dict.fromkeys(("alpha_c", "alpha_l"), CRITICAL.Threshold(1.3, 0.1))

    dones, lines = [], recorded(monkeypatch, CRITICAL)
    monkeypatch.setattr(CRITICAL, "thresholds_of", stub)
    ap.thresholds(Problem.paper(), omega=[0.2, 0.3], progress=True)
    (line,) = lines
    assert dones == [0, 4, 5, 6, 7]
    assert line.done == line.total == 8
    assert line.said[0] == "omega = 0.2: looking for the semantic branch"
    assert line.said[-1] == "omega = 0.3: looking for the semantic branch"


def test_derive_names_its_steps(monkeypatch):
    lines = recorded(monkeypatch, importlib.import_module("attnphase.pages.page"))
    page = SimpleNamespace(latex=lambda: "", markdown=lambda: "")
    for name in (
        "printing.page.document",
        "codegen.local_problem.module_source",
        "replica.saddle_point.derive_saddle_point",
    ):
        monkeypatch.setattr(f"derivations.{name}", lambda *_, **__: page)
    ap.derive(progress=True)
    assert lines[0].said == ["deriving the saddle-point equations", "printing the equations", "generating the source"]


class Recorded(ProgressLine):
    """A line that remembers all it was told."""

    def __init__(self, shown, *what, **more):
        super().__init__(*what, **more)
        self.shown, self.said = shown, []

    def callback(self, text, steps=0.0, most=0.0):
        self.said.append(text)


def recorded(monkeypatch, home):
    lines = []

    @contextmanager
    def record(shown, *what, **more):
        lines.append(Recorded(shown, *what, **more))
        yield lines[-1]

    monkeypatch.setattr(home, "progress_line", record)
    return lines


# --- the command line -------------------------------------------------------------------------------------------------


def commands(group, path=()):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


@pytest.mark.parametrize(("name", "command"), list(commands(main)), ids=[name for name, _ in commands(main)])
def test_every_command_can_be_quiet(name, command):
    assert any("--quiet" in option.opts for option in command.params), name


RUNS = ["--dimension", "20", "--seeds", "2"]


@pytest.mark.parametrize(
    ("home", "function", "arguments"),
    [
        ("sweeps.points", "solved", ["solve", "--alpha", "2"]),
        ("sweeps.critical", "thresholds", ["thresholds", "--omega", "0.3"]),
        ("checks.consistency", "check", ["check"]),
        ("pages.page", "derive", ["derive"]),
        ("sweeps.grid", "sweep", ["sweep", "--alpha", "2", "-o", "x.nc"]),
        ("sweeps.grid", "sweep", ["figure", "fig2"]),
        ("sweeps.grid", "sweep", ["phase-diagram", "--output", "x"]),
        ("experiments.simulate", "simulate", ["simulate", "--alpha", "2", *RUNS]),
        ("paper.run", "run_experiment", ["experiment", "fig7", "-o", "x"]),
        ("experiments.histogram.stages", "train_histogram", ["histogram", "train", "-o", "x"]),
        ("experiments.histogram.stages", "unfreeze_histogram", ["histogram", "unfreeze", "x"]),
    ],
)
def test_commands_show_progress_unless_quiet(tmp_path, monkeypatch, home, function, arguments):
    if home.startswith(("experiments", "paper")):
        pytest.importorskip("torch", reason="experiments need PyTorch")
    monkeypatch.chdir(tmp_path)
    if arguments[:2] == ["histogram", "unfreeze"]:
        monkeypatch.setattr("attnphase.experiments.histogram.settings.UnfrozenPlan.of", lambda *_, **__: None)
    asked = []

    def stop(*_, progress, **__):
        asked.append(progress)
        raise KeyboardInterrupt

    module = importlib.import_module(f"attnphase.{home}")
    monkeypatch.setattr(module, function, stop)
    monkeypatch.setitem(ap.__dict__, function, stop)
    for quiet in ([], ["--quiet"]):
        result = CliRunner().invoke(main, [*arguments, *quiet], prog_name="attnphase")
        # Ctrl-C: one sentence and 130
        assert result.exit_code == 130, result.output
        assert result.stdout == ""
        assert result.stderr.strip().startswith("attnphase: interrupted")
    assert asked == [True, False]


def test_compare_shows_progress_unless_quiet(tmp_path, monkeypatch):
    home, asked = importlib.import_module("attnphase.checks.comparison"), []

    def stop(theory, experiment, *, progress, **_):
        asked.append(progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(home, "compare", stop)
    monkeypatch.setattr("attnphase.data.files.load_dataset", lambda path: path)
    monkeypatch.chdir(tmp_path)
    for name in ("a.nc", "b.nc"):
        (tmp_path / name).touch()
    for quiet in ([], ["--quiet"]):
        result = CliRunner().invoke(main, ["compare", "a.nc", "b.nc", *quiet], prog_name="attnphase")
        assert result.exit_code == 130, result.output
    assert asked == [True, False]
