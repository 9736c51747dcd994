"""The two lowest minima of many nodes, from descents from all their starts."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from attnphase.kernels.local.constants import DISTINCT, MATCHED, RUNAWAY, Starts
from attnphase.kernels.torch.descent import descend
from attnphase.kernels.torch.lanes import Lanes

__all__ = ["TorchSolution", "last_axis", "search", "starting_fields"]


@dataclass(frozen=True, eq=False)
class TorchSolution:
    """Minima of N local problems.

    Attributes
    ----------
    minima : (N, 2, L, r) tensor
        Lowest and second lowest.
    energies : (N, 2) tensor
        Equal where only one minimum was found.
    losses : (N,) tensor
        At the lowest minimum.
    residuals : (N, L, r) tensor
        ``V^-1 (prox - omega)``.
    flags : (N,) tensor of int
        Newton steps, negative where the gradient did not reach its tolerance, RUNAWAY where a descent found no bottom.
    """

    minima: Tensor
    energies: Tensor
    losses: Tensor
    residuals: Tensor
    flags: Tensor


def search(nodes: Lanes, fields: Tensor, used: Tensor) -> TorchSolution:
    """The two lowest minima among those that the descents from all starts of N nodes end in."""
    starts, count = used.shape
    lane = used.flatten().nonzero()[:, 0]
    lanes = nodes.take(lane % count)
    found, steps = descend(lanes, lanes.scaled(fields.flatten(2)[..., lane]))

    def spread(values: Tensor, empty: float) -> Tensor:
        every = values.new_full((*values.shape[:-1], starts * count), empty)
        every[..., lane] = values
        return every.reshape(*values.shape[:-1], starts, count)

    u, energy = spread(found.u, 0.0), spread(found.energy, torch.inf)
    value, gradient, steps = spread(found.value, 0.0), spread(found.gradient, 0.0), spread(steps, 0)
    best_u, other_u = torch.zeros_like(u[..., 0, :]), torch.zeros_like(u[..., 0, :])
    best, other = torch.full_like(energy[0], torch.inf), torch.full_like(energy[0], torch.inf)
    chosen = torch.zeros_like(best, dtype=torch.int64)
    # in the kernel's order, so that of equal minima the same one counts
    for s in range(starts):
        gap = ((u[..., s, :] - best_u).abs() / (nodes.length_unit + best_u.abs())).amax(dim=(0, 1))
        candidate, distinct = ~torch.isinf(energy[s]), gap > DISTINCT
        lower = candidate & (torch.isinf(best) | ((energy[s] < best) & distinct))
        second = candidate & ~lower & distinct & (energy[s] < other)
        other_u = torch.where(lower, best_u, torch.where(second, u[..., s, :], other_u))
        other = torch.where(lower, best, torch.where(second, energy[s], other))
        best_u, best = torch.where(lower, u[..., s, :], best_u), torch.where(lower, energy[s], best)
        chosen = torch.where(lower, s, chosen)
    node = torch.arange(count, device=chosen.device)
    losses, residuals = value[chosen, node], -gradient[..., chosen, node]
    nowhere = torch.isinf(best)
    steps = torch.where(nowhere | (steps == RUNAWAY).any(dim=0), RUNAWAY, steps[chosen, node])
    if bool(nowhere.any()):  # what is left is the centre
        center = nodes.at(torch.zeros_like(best_u))
        losses = torch.where(nowhere, center.value.nan_to_num(0.0, 0.0, 0.0), losses)
        residuals = torch.where(nowhere, -center.gradient.nan_to_num(0.0, 0.0, 0.0), residuals)
        best = torch.where(nowhere, losses, best)
    single = torch.isinf(other)
    other_u, other = torch.where(single, best_u, other_u), torch.where(single, best, other)
    return TorchSolution(
        torch.stack([nodes.place(best_u), nodes.place(other_u)]).movedim(-1, 0),
        torch.stack([best, other], dim=1),
        losses,
        residuals.movedim(-1, 0),
        steps,
    )


def starting_fields(
    module: ModuleType,
    parameters: Tensor,
    center: Tensor,
    k: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """Starting points (L, r, s, N) of the compiled kernel in its order, and which of them are used, (s, N)."""
    zero = torch.zeros_like(center)
    fields, used = [], []
    if starts.follow:
        if previous is None:
            raise ValueError("a warm pass needs the minima of the last pass")
        minima, energies = previous
        fields += [last_axis(minima[:, 0]), last_axis(minima[:, 1])]
        used = [torch.ones_like(center[0, 0], dtype=torch.bool), energies[:, 0] != energies[:, 1]]
    if starts is Starts.FROM_ZERO:
        fields = [zero]
    elif starts is not Starts.WARM:
        lifted = parameters[MATCHED : MATCHED + len(module.LIFT), None] * k[:, list(module.LIFT)]
        signs = 1 - 2 * torch.eye(len(center), dtype=center.dtype, device=center.device)
        reflected = [center * sign[:, None, None] for sign in signs]
        cold = [center, lifted, -lifted, zero, -center, *reflected]
        fields += [cold[s] for s in starts.fresh(len(center))]
    used += [torch.ones_like(center[0, 0], dtype=torch.bool)] * (len(fields) - len(used))
    return torch.stack(fields, dim=2), torch.stack(used)


def last_axis(values: Tensor) -> Tensor:
    """The samples on the last axis, in double precision."""
    return values.double().movedim(0, -1).contiguous()
