"""The Jacobian of a map with a domain, by differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnphase.arrays import Array

__all__ = ["STEP", "Map", "finite_difference_jacobian", "response_to"]

_SINGULAR = 1e-12  # share of the largest singular value below which a direction has no response

STEP = 1e-2
"""Of differences of a map that may jump, relative to the size of what changes."""

Map = Callable[[Array], Array | None]
"""The image of a point, or None if the point or its image lies outside the domain."""


def finite_difference_jacobian(
    evaluate: Map, point: Array, scale: Array, relative_step: float = STEP, centre: Array | None = None
) -> Array:
    """``dF/dx`` by central differences, or from what is known at the point.

    The step is large because a sampled map jumps: a node that changes its minimum moves F by about 1/N, which a small
    step would magnify.  Where one side lies outside the domain the step shrinks, then the difference is one-sided.

    Parameters
    ----------
    evaluate : callable
        Any vector-valued function; None outside its domain.
    point, scale : (P,) arrays
        Steps are ``relative_step * scale``.
    centre : array, optional
        The function at the point: half the evaluations then do, for small steps in a smooth function.

    Raises
    ------
    ArithmeticError
        No step stays inside the domain.
    """
    columns = []
    for i in range(len(point)):
        unit = np.zeros(len(point))
        unit[i] = scale[i]
        for shrink in (1.0, 1e-2, 1e-4):
            step = relative_step * shrink
            ends = [] if centre is None else [(0, centre)]
            for side in (1, -1):
                if len(ends) < 2 and (value := evaluate(point + side * step * unit)) is not None:
                    ends.append((side, value))
            if centre is None and len(ends) == 1 and (here := evaluate(point)) is not None:
                ends.append((0, here))
            if len(ends) == 2:
                (right, upper), (left, lower) = ends
                columns.append((upper - lower) / ((right - left) * step * scale[i]))
                break
        else:
            raise ArithmeticError(f"no finite difference of parameter {i} stays inside the domain")
    return np.stack(columns, axis=1)


def response_to(changes: Array, jacobian: Array, scale: Array) -> Array:
    """``(I - J)^-1 dF``, by how much the fixed point moves when a map changes; rows are changes (N, P).

    Every coordinate counts in its scale (P,): in other units I - J may look singular.
    """
    system = np.eye(len(scale)) - jacobian * scale / scale[:, None]
    moved: Array = scale * np.linalg.lstsq(system, (changes / scale).T, rcond=_SINGULAR)[0].T
    return moved
