"""Standard streams of which any may be closed, or lose its reader, as ``| head`` does: files are still written.

Click and Python end a program whose reader has left.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

__all__ = ["REFUSED", "UNREAD", "Outlet", "closed", "opened"]

REFUSED, UNREAD = 2, 141
"""Exit codes: an error that the user can mend; the reader of standard output has left."""


class Outlet(io.FileIO):
    """A stream that drops what it cannot write.

    Attributes
    ----------
    lost : OSError or None
        Why the first piece was dropped.
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


def opened() -> Outlet | None:
    """Take the null device for closed streams, whose numbers other files would get; drop what nobody reads.

    Returns
    -------
    Outlet or None
        Below standard output.
    """
    below: dict[str, Outlet] = {}
    for name in ("stdin", "stdout", "stderr"):  # a file gets the lowest number that is free
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif name != "stdin" and type(getattr(stream.buffer, "raw", stream.buffer)) is io.FileIO:  # no Windows console
            raw = below[name] = Outlet(stream.fileno(), "w", closefd=False)
            layer: Any = raw if stream.write_through else io.BufferedWriter(raw)  # the former under python -u
            # a character that the encoding does not have is written in its escaped form
            errors = "backslashreplace" if stream.errors == "strict" else stream.errors
            how = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
            setattr(sys, name, io.TextIOWrapper(layer, stream.encoding, errors, **how))
    return below.get("stdout")


def closed(output: Outlet | None, code: Any) -> Any:
    """The exit code, after all is written that can be."""
    sys.stdout.flush()
    sys.stderr.flush()
    if output is None or output.lost is None:
        return code
    if isinstance(output.lost, BrokenPipeError):
        return code or UNREAD
    print(f"attnphase: error: standard output cannot be written: {output.lost.strerror}.", file=sys.stderr)
    return REFUSED
