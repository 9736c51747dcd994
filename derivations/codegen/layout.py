"""Line breaks of generated source."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

__all__ = ["WIDTH", "folded"]

WIDTH = 96  # of a statement, before it is indented in its function
# where to fold a line, in this order
_SEPARATORS = (r", ", r" (?=for )", r" (?=[-+] )", r" (?=[*@/] )")


def folded(code: str, width: int) -> list[str]:
    """Lines of an expression or a statement, folded inside its brackets as a formatter would."""
    if len(code) <= width:
        return [code]
    depths = _depths(code)
    for separator in _SEPARATORS:
        cuts = [m for m in re.finditer(separator, code) if depths[m.start()] == 0]
        if cuts:
            ends = [0, *(m.end() for m in cuts), len(code)]
            parts = [code[a:b].rstrip() for a, b in pairwise(ends)]
            return [line for part in parts for line in folded(part, width)]
    closed = len(re.sub(r"\.\w+$", "", code)) - 1  # the bracket at the end of the line, or before its attribute
    if code[closed] not in ")]}":
        return [code]
    opened = max(i for i, depth in enumerate(depths[:closed]) if depth == 0)
    inner = [f"    {line}" for line in folded(code[opened + 1 : closed], width - 4)]
    return [code[: opened + 1], *inner, code[closed:]]


def _depths(code: str) -> list[int]:
    """How many brackets are open before each character."""
    steps = [(c in "([{") - (c in ")]}") for c in code[:-1]]
    return list(accumulate(steps, initial=0))
