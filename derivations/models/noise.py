"""How the noise of the labels enters a loss: by differentiating what a model says of it."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

from derivations.algebra import symbols as sym
from derivations.algebra.common_parts import Slopes, common_parts
from derivations.models.model import Model, written_out

__all__ = ["is_quadratic"]

_STUDENT = (sym.h, sym.attention, sym.output)


def is_quadratic(model: Model) -> bool:
    """Whether the second derivatives in the noise hold neither the noise nor anything of the student.

    Then the gradient in the student's fields is affine in the noise: its mean is that of labels without noise, and the
    mean loss differs from theirs by a constant.
    """
    places = [(a, b) for a in range(1, model.length + 1) for b in range(1, model.noise_columns + 1)]
    noise = [sym.noise[place] for place in places]
    known: dict[Any, Any] = {}
    value: Any = 0
    for definition in model.definitions():
        for one in definition.each(model.length):
            # what holds no noise keeps its name
            value = written_out(one.value).xreplace(known)
            if value.has(*noise):
                known[one.symbol] = value
    kept = {*noise, *_STUDENT}
    seconds = [second(first(value)) for first, second in combinations_with_replacement(map(Slopes, noise), 2)]
    shared, left = common_parts(seconds, "x")
    return not any(part.has(*kept) for part in (*(part for _, part in shared), *left))
