"""Damped Newton descents of many lanes at once: each has its own damping, and leaves when it has arrived."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnphase.kernels.local.constants import (
    CONVEX,
    DECREASE,
    EASED,
    FAR,
    FIRST_SHIFT,
    GRADIENT_TOLERANCE,
    MAX_NEWTON,
    MAX_TRIES,
    NO_SHIFT,
    PIVOT,
    ROUNDING,
    RUNAWAY,
    STEEPER,
)
from attnphase.kernels.torch.lanes import Lanes, Point

__all__ = ["descend"]


def descend(lanes: Lanes, u: Tensor) -> tuple[Point, Tensor]:
    """Damped Newton descents: where they end, and in how many steps, negative above the gradient tolerance.

    One that begins where the energy is not finite and one that finds no bottom end with infinite energy, the latter
    with RUNAWAY steps.
    """
    point, unit = lanes.at(u), lanes.length_unit**2
    far, deep = FAR * (unit + point.norm), -FAR * (unit + point.energy.abs())
    left = torch.arange(u.shape[-1], device=u.device)
    steps, tries = torch.zeros_like(left), torch.zeros_like(left)
    shift = torch.zeros_like(point.energy)
    ends: list[tuple[Tensor, Point, Tensor]] = []
    while True:
        arrived = point.slope.square().sum(dim=0) <= GRADIENT_TOLERANCE**2 * (unit + point.norm)
        finite = point.energy.isfinite()
        exhausted = steps >= MAX_NEWTON
        away = (steps > 0) & ~(finite & (point.norm < far) & (point.energy > deep))
        done = arrived | (tries >= MAX_TRIES) | exhausted | away | ~finite
        out = done.nonzero()[:, 0]
        if len(out) or not len(left):
            if bool(exhausted.any()):  # still on the way down where the energy is not convex
                away |= exhausted & ~_solve(point.curvature, torch.zeros_like(shift), point.slope)[2]
            arrived &= steps < MAX_NEWTON
            flag = torch.where(arrived, steps, -(steps + 1).clamp(max=MAX_NEWTON))
            flag = torch.where(away, RUNAWAY, flag)
            energy = torch.where(away | ~finite, torch.inf, point.energy)
            ends.append((left[out], replace(point, energy=energy).take(out), flag[out]))
        if len(out) == len(left):
            break
        if len(out):
            keep = (~done).nonzero()[:, 0]
            lanes, point = lanes.take(keep), point.take(keep)
            left, steps, tries = left[keep], steps[keep], tries[keep]
            shift, far, deep = shift[keep], far[keep], deep[keep]
        step, decrease, definite = _newton_step(point, shift, tries)
        trial = lanes.at(point.u - step.view_as(point.u))
        # rounding decides below 1e-14 of the energy: accept, the gradient is the stopping rule
        allowed = point.energy - DECREASE * decrease + ROUNDING * (unit + point.energy.abs())
        good = definite & (trial.energy <= allowed)
        point = point.moved(trial, good)
        steps, tries = steps + good, torch.where(good, 0, tries + 1)
        eased = torch.where(shift < NO_SHIFT, 0.0, EASED * shift)
        shift = torch.where(good, eased, torch.clamp(STEEPER * shift, min=FIRST_SHIFT))
    order = torch.argsort(torch.cat([lane for lane, _, _ in ends]))
    pieces = zip(*(vars(end).values() for _, end, _ in ends), strict=True)
    whole = Point(*(torch.cat(piece, dim=-1)[..., order] for piece in pieces))
    return whole, torch.cat([flag for _, _, flag in ends])[order]


def _newton_step(point: Point, shift: Tensor, tries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Steps (L r, N), slope times step, and where a step was found; `shift` and `tries` grow in place until one is."""
    step, decrease, definite = _solve(point.curvature, shift, point.slope)
    while len(failed := (~definite & (tries < MAX_TRIES - 1)).nonzero()[:, 0]):
        shift[failed] = torch.clamp(CONVEX * shift[failed], min=FIRST_SHIFT)
        tries[failed] += 1
        found = _solve(point.curvature[..., failed], shift[failed], point.slope[:, failed])
        step[:, failed], decrease[failed], definite[failed] = found
    return step, decrease, definite


def _solve(matrix: Tensor, shift: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Solve ``(matrix + shift I) x = right``: x, right times x, and whether the matrix is positive definite."""
    size = len(right)
    matrix, x = matrix.clone(), right.clone()
    matrix.diagonal().add_(shift[:, None])
    definite = torch.ones_like(shift, dtype=torch.bool)
    # elimination without pivoting: its pivots are the squares on the diagonal of the Cholesky factor
    for j in range(size):
        definite &= matrix[j, j] > PIVOT
        share = matrix[j + 1 :, j] / matrix[j, j]
        matrix[j + 1 :, j + 1 :] -= share[:, None] * matrix[j, j + 1 :]
        x[j + 1 :] -= share * x[j]
    for j in reversed(range(size)):
        x[j] = (x[j] - (matrix[j, j + 1 :] * x[j + 1 :]).sum(dim=0)) / matrix[j, j]
    return x, (right * x).sum(dim=0), definite
