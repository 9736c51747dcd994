"""One regular step in every lane of a block: here none is, so that all is left to the trials.

As with `lanes`, a build puts a model's generated source in its place; `derivations.codegen.steps` says what that does.
"""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import side_by_side
from .constants import GOES_ON, IRREGULAR
from .lanes import EVENT, LANES

__all__ = ["newton_step"]


@side_by_side
def newton_step(state: Array, factor: Array, variance: Array, parameters: Array) -> None:
    """A step in every lane whose descent is under way."""
    for n in range(LANES):
        if state[n + EVENT * LANES] == GOES_ON:
            state[n + EVENT * LANES] = IRREGULAR
