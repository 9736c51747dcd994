"""Commands that stand still at a place, to be interrupted or killed there; no test needs to guess how long they take.

As a program: ``python -m stop_at MODULE:NAME CALLS COMMAND ...`` runs ``attnphase COMMAND ...``.  When the function has
been called so often, "reached" is printed, and the program waits until its standard input is closed.
"""

import functools
import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

ALWAYS = 600.0
"""Seconds after which whatever runs is killed, so that a test fails and does not hang."""


def ended(
    how: signal.Signals, place: str, calls: int, command: Sequence[str], meanwhile: Callable[[], None] | None = None
) -> tuple[int, str]:
    """Exit code and standard error of a command that gets a signal where it stands still, after `meanwhile`."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-m", "stop_at", place, str(calls), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        watch = threading.Timer(ALWAYS, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            reached = process.stdout.readline()
            if reached:
                if meanwhile is not None:
                    meanwhile()
                process.send_signal(how)
            errors = process.communicate()[1]
        finally:
            watch.cancel()
    assert reached == "reached\n", errors
    return process.returncode, errors


def stop_at(place: str, calls: int) -> None:
    """Replace a function by one that stops."""
    module, _, name = place.partition(":")
    *owners, last = name.split(".")
    owner: Any = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    function: Callable[..., Any] = getattr(owner, last)
    count = itertools.count(1)

    @functools.wraps(function)
    def stopping(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if next(count) == calls:
            print("reached", flush=True)
            sys.stdin.read()
        return result

    setattr(owner, last, stopping)


if __name__ == "__main__":
    from attnphase.cli.commands import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
    stop_at(sys.argv[1], int(sys.argv[2]))
    main(sys.argv[3:])
