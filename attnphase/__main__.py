"""The command line as a process of its own."""

from __future__ import annotations

import gc
import signal
import sys

from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from attnphase.cli import commands, streams

__all__ = ["main"]


def main() -> None:
    """Run the command line with the arguments of the process, and end the process."""
    gc.set_threshold(50_000)  # modules make so many objects: looking through them takes a tenth of a short command
    output = streams.opened()
    try:
        commands.main(sys.argv[1:], prog_name="attnphase")
    except KeyboardInterrupt:  # while modules are loaded
        sys.stderr.write("attnphase: interrupted.\n")
        sys.exit(130)
    except SystemExit as end:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to be interrupted
        gc.freeze()  # the memory goes with the process; else every module is taken apart first, for 0.1 s
        sys.exit(streams.closed(output, end.code))


if __name__ == "__main__":
    main()
