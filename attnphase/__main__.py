"""The command as a process: how it starts and ends, whatever happens.

Signals are answered before anything is imported that takes time.  A fault of the program ends in a sentence that says
where its traceback is; a reader of standard output who leaves early, as ``head`` does, is no fault.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import threading

TYPE_CHECKING = False  # typing's own takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, NoReturn, TypeAlias

    Answer: TypeAlias = Callable[[int, FrameType | None], Any] | signal.Handlers

__all__ = ["main", "run"]

INTERRUPTED, TERMINATED, REFUSED, FAULT, LEFT = 130, 143, 2, 70, 141
"""Exit codes: Ctrl-C; the order to end; an error that the user can mend; a fault of the program; no reader left."""

_DEBUG = "ATTNPHASE_DEBUG"
_PATIENCE = 1.0  # seconds in which threads end that look after dead workers
_LOADED = 400_000  # objects, of which modules make more than half for a solve


def main() -> NoReturn:
    """Run the command line with the arguments of the process, and end the process."""
    _let_load()
    _answer_signals(_end_at_once, _end_at_once)
    outlet = _prepare_streams()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if outlet is not None and outlet.lost is not None:
        if not isinstance(outlet.lost, BrokenPipeError):
            _say(f"error: standard output cannot be written: {outlet.lost.strerror}.")
            code = REFUSED
        code = code or LEFT
    _answer_signals(signal.SIG_IGN, signal.SIG_IGN)  # nothing is left to be interrupted
    if code in (INTERRUPTED, TERMINATED):
        _tidy()
        os._exit(code)  # an interpreter that met Ctrl-C in compiled code would end by the signal itself
    gc.freeze()  # the memory goes with the process: an interpreter that ends would take every module apart first
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str
        As they stand behind the command's name.

    Returns
    -------
    int
        The exit code; nothing is raised.
    """
    try:
        from attnphase.cli.commands import main as program

        # now the commands say what is kept after Ctrl-C; the order to end shall end what hangs in compiled code, too
        _answer_signals(signal.default_int_handler, signal.SIG_DFL)
        program(list(arguments), prog_name="attnphase")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAULT
    except KeyboardInterrupt as interruption:
        from attnphase.processes.interruption import exit_code

        _say("interrupted.")
        return exit_code(interruption)
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        _say(f"error: memory ran out{reason}: end other programs, or take fewer nodes, tokens or samples.")
        return REFUSED
    except ImportError as error:
        first: BaseException = error
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        _show(error)
        _say(f"error: {_described(first)}: a package cannot be loaded; is it installed whole, and is memory left?")
        return REFUSED
    except BaseException as error:
        _say_fault(error)
        return FAULT
    raise AssertionError("the program ends by SystemExit")


def _let_load() -> None:
    """Look for garbage only once there is more than what modules make, and from then on as usual.

    What they make stays: to look through it after every 700 objects takes a sixth of a short command.
    """
    usual = gc.get_threshold()

    def begin(phase: str, info: dict[str, int]) -> None:
        gc.callbacks.remove(begin)
        gc.set_threshold(*usual)

    gc.callbacks.append(begin)
    gc.set_threshold(_LOADED)


# ------------------------------------------------------------------------------------------------------------ signals


def _answer_signals(interrupt: Answer, end: Answer) -> None:
    """Set the answers to Ctrl-C and to the order to end, unless whoever began this process has them ignored."""
    for number, answer in ((signal.SIGINT, interrupt), (signal.SIGTERM, end)):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, answer)


def _tidy() -> None:
    """What an interpreter does before it ends, as far as semaphores of worker processes need it to be taken back."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(_PATIENCE)
    atexit._run_exitfuncs()


def _end_at_once(number: int, frame: FrameType | None) -> None:
    """While modules are loaded: an exception could be caught, or lost, anywhere within them."""
    _say("interrupted.")
    os._exit(TERMINATED if number == signal.SIGTERM else INTERRUPTED)


# ------------------------------------------------------------------------------------------------------------ streams


class _Outlet(io.FileIO):
    """Standard output or standard error; what it does not take any more is dropped, so that files are still written.

    Attributes
    ----------
    lost : OSError or None
        Why the first piece was dropped: `BrokenPipeError` where the reader has left.
    """

    lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write, or drop."""
        if self.lost is None:
            try:
                return super().write(data)
            except OSError as error:
                self.lost = error
        return memoryview(data).nbytes


def _prepare_streams() -> _Outlet | None:
    """Open closed standard streams on the null device, and make the open ones fit for readers who leave.

    Returns
    -------
    _Outlet or None
        Below standard output; None where there is none to look after.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _fill(number)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    below = _outlet("stdout", 1)
    _outlet("stderr", 2)
    return below


def _fill(number: int) -> None:
    """Take the number of a closed stream, which would otherwise be that of the next file that is opened."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


def _outlet(name: str, number: int) -> _Outlet | None:
    stream = getattr(sys, name)
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)  # under python -u there is no buffer
    if type(raw) is not io.FileIO or raw.fileno() != number:  # a console of Windows
        return None
    below = _Outlet(number, "w", closefd=False)
    layer: Any = below if raw is buffer else io.BufferedWriter(below)
    # a character that the encoding does not have is written in its escaped form
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
    setattr(sys, name, io.TextIOWrapper(layer, stream.encoding, errors, **how))
    return below


def _say(sentence: str) -> None:
    """A sentence on standard error, by the shortest way."""
    try:
        os.write(2, f"attnphase: {sentence}\n".encode(errors="backslashreplace"))
    except OSError:  # nobody listens
        return


# ------------------------------------------------------------------------------------------------------------- faults


def _say_fault(error: BaseException) -> None:
    """Say that the program is at fault, and where its traceback is."""
    where = "with the lines above"
    if not _show(error):
        where = f"with the file {kept}" if (kept := _kept(error)) else f"with what {_DEBUG}=1 shows"
    _say(f"fault: {_described(error)}: this is a fault of attnphase, not of its input; please report it {where}.")


def _described(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(":. ")


def _show(error: BaseException) -> bool:
    """Show a traceback, if that was asked for; whether it was."""
    if os.environ.get(_DEBUG, "") in ("", "0"):
        return False
    import traceback

    sys.stderr.write("".join(traceback.format_exception(error)))
    sys.stderr.flush()
    return True


def _kept(error: BaseException) -> str | None:
    """The file in which a traceback is kept, as long as there is a place for one."""
    import platform
    import shlex
    import tempfile
    import traceback

    from attnphase.version import __version__

    report = "".join(traceback.format_exception(error))
    head = f"attnphase {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{head}\n{shlex.join(['attnphase', *sys.argv[1:]])}\n\n{report}"
    try:
        number, name = tempfile.mkstemp(prefix="attnphase-fault-", suffix=".txt")
        with os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None
    return name


if __name__ == "__main__":
    main()
