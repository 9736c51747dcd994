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
    if code[-1] not in ")]}":
        return [code]
    # the bracket that closes at the end of the line
    opened = max(i for i, depth in enumerate(depths) if depth == 0)
    inner = [f"    {line}" for line in folded(code[opened + 1 : -1], width - 4)]
    return [code[: opened + 1], *inner, code[-1]]


def _depths(code: str) -> list[int]:
    """How many brackets are open before each character."""
    steps = [(c in "([{") - (c in ")]}") for c in code[:-1]]
    return list(accumulate(steps, initial=0))
