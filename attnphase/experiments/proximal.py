"""Global minimisers of the local problem in torch: batched damped Newton descents from many starts at once.

The same algorithm as the compiled kernel's (`newton.py`), in ``u`` with ``h = omega + C u`` and ``V = C C^T``: on
accelerators a batch of samples takes each Newton step together.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnphase.experiments.data import Samples
from attnphase.experiments.errors import ExperimentError
from attnphase.experiments.local_loss import LocalLoss
from attnphase.problem import Problem
from attnphase.proximal import Starts

__all__ = ["minimise", "minimise_samples"]

_NEWTON_STEPS = 200
_TOLERANCE = 1e-11
_DISTINCT = 1e-5  # two minima are one if no coordinate differs by more, relative to 1 + |u|
_HALVINGS = 60


def minimise_samples(
    loss: LocalLoss,
    omega: Tensor,
    samples: Samples,
    factors: Tensor,
    starts: Starts,
    minima: Tensor,
    energies: Tensor,
    problem: Problem,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minima (S, n, 2, L, r), energies (S, n, 2) and residuals (S, n, L, r) of all samples of a batch of runs."""
    runs, count, length, columns = omega.shape
    local = factors[torch.arange(runs, device=omega.device)[:, None, None], samples.sites]
    grams = samples.grams.flatten(0, 1)
    if not len(grams):
        grams = omega.new_ones((runs * count, length, length))
    found = minimise(
        loss,
        omega.flatten(0, 1),
        samples.teacher_fields.flatten(0, 1),
        samples.targets.flatten(0, 1),
        grams,
        local.flatten(0, 1),
        starts,
        (minima.flatten(0, 1), energies.flatten(0, 1)),
    )
    minima, energies, _, residual, _ = found
    return (
        minima.reshape(runs, count, 2, length, columns),
        energies.reshape(runs, count, 2),
        residual.reshape(omega.shape),
    )


def minimise(
    loss: LocalLoss,
    omega: Tensor,
    k: Tensor,
    targets: Tensor,
    weights: Tensor,
    factors: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Lowest and second-lowest minimum of the local problem of N samples.

    Parameters
    ----------
    loss : LocalLoss
    omega, k : (N, L, r) and (N, L, t) tensors
        Centres and the teacher's fields.
    targets, weights : tensors
        As `LocalLoss.values` takes them.
    factors : (N, L, r, r) tensor
        Lower Cholesky factors of V.
    starts : Starts
    previous : (minima (N, 2, L, r), energies (N, 2)), optional
        Of the last pass, for warm starts.

    Returns
    -------
    minima : (N, 2, L, r) tensor
    energies : (N, 2) tensor
        Equal where only one minimum was found.
    losses : (N,) tensor
        At the lowest minimum.
    residuals : (N, L, r) tensor
        ``V^-1 (prox - omega)``.
    flags : (N,) tensor of int
        Newton steps, negative where the gradient did not reach its tolerance.

    Raises
    ------
    ExperimentError
        The loss has kinks, for which only the compiled kernel has an exact proximal point.
    """
    if loss.problem.loss.kind == "hinge":
        raise ExperimentError("the torch backend has no proximal point for the hinge loss: use the compiled one (cpu).")
    fields = _starting_fields(loss, omega, k, starts, previous)
    best_u = torch.zeros_like(omega)
    infinite = omega.new_full((len(omega),), torch.inf)
    best, other, best_loss = infinite.clone(), infinite.clone(), infinite.clone()
    other_u, best_g = torch.zeros_like(omega), torch.zeros_like(omega)
    best_flag = torch.zeros(len(omega), dtype=torch.int64, device=omega.device)
    for start in fields:
        u = torch.linalg.solve_triangular(factors, (start - omega)[..., None], upper=False)[..., 0]
        u, energy, value, gradient, flag = _descend(loss, u, omega, targets, weights, factors)
        gap = ((u - best_u).abs() / (1 + best_u.abs())).amax(dim=(1, 2))
        new = torch.isinf(best) | (gap > _DISTINCT)
        lower = new & (energy < best)
        second = ~lower & new & (energy < other)
        other = torch.where(lower, best, torch.where(second, energy, other))
        other_u = torch.where(lower[:, None, None], best_u, torch.where(second[:, None, None], u, other_u))
        best, best_loss = torch.where(lower, energy, best), torch.where(lower, value, best_loss)
        best_u = torch.where(lower[:, None, None], u, best_u)
        best_g = torch.where(lower[:, None, None], gradient, best_g)
        best_flag = torch.where(lower, flag, best_flag)
    single = torch.isinf(other)
    other = torch.where(single, best, other)
    other_u = torch.where(single[:, None, None], best_u, other_u)
    minima = torch.stack([_place(u, omega, factors) for u in (best_u, other_u)], dim=1)
    return minima, torch.stack([best, other], dim=1), best_loss, -best_g, best_flag


def _place(u: Tensor, omega: Tensor, factors: Tensor) -> Tensor:
    return omega + torch.einsum("nlij,nlj->nli", factors, u)


def _starting_fields(
    loss: LocalLoss, omega: Tensor, k: Tensor, starts: Starts, previous: tuple[Tensor, Tensor] | None
) -> list[Tensor]:
    """The starting points of the compiled kernel, in its order."""
    if starts is Starts.FROM_ZERO:
        return [torch.zeros_like(omega)]
    fields = [] if previous is None or starts is Starts.COLD else [previous[0][:, 0], previous[0][:, 1]]
    if starts is Starts.WARM:
        return fields
    lifted = k[:, :, list(loss.module.LIFT)]
    reflected = []
    for l in range(omega.shape[1]):
        one = omega.clone()
        one[:, l] = -one[:, l]
        reflected.append(one)
    return [*fields, omega, lifted, -lifted, torch.zeros_like(omega), -omega, *reflected]


def _descend(
    loss: LocalLoss, u: Tensor, omega: Tensor, targets: Tensor, weights: Tensor, factors: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Damped Newton descents: u, energy, loss, gradient in the fields and steps of each.

    Samples that have arrived are taken out, so that a few slow ones cost little.
    """
    count, length, columns = u.shape
    size = length * columns
    result_u, result_g = u.clone(), torch.zeros_like(u)
    energy = u.new_full((count,), torch.inf)
    value = energy.clone()
    flags = torch.full((count,), -_NEWTON_STEPS, dtype=torch.int64, device=u.device)
    left = torch.arange(count, device=u.device)
    per_sample = weights.ndim > 1

    def part(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return omega[chosen], targets[chosen], weights[chosen] if per_sample else weights, factors[chosen]

    shift = u.new_zeros(count)
    identity = torch.eye(size, dtype=u.dtype, device=u.device)
    for iteration in range(_NEWTON_STEPS):
        o, t, w, f = part(left)
        x = result_u[left]
        losses, gradient, hessian = loss.derivatives(_place(x, o, f), t, w)
        now = x.square().sum(dim=(1, 2)) / 2 + losses
        slope = (x + torch.einsum("nlij,nli->nlj", f, gradient)).reshape(-1, size)
        energy[left], value[left], result_g[left] = now, losses, gradient
        arrived = slope.square().sum(dim=1) <= _TOLERANCE**2 * (1 + x.square().sum(dim=(1, 2)))
        flags[left[arrived]] = iteration
        keep = ~arrived
        if not keep.any():
            break
        left, x, slope, now = left[keep], x[keep], slope[keep], now[keep]
        o, t, w, f = part(left)
        blocks = hessian[keep].reshape(-1, length, columns, length, columns)
        scaled = torch.einsum("nlia,nlimj,nmjb->nlamb", f, blocks, f).reshape(-1, size, size)
        lam = shift[left]
        # the lowest eigenvalue says how much must be added at least, which a factorisation would find by trial
        lowest = torch.linalg.eigvalsh(scaled)[:, 0] + 1
        lam = torch.maximum(lam, torch.where(lowest < 1e-8, 0.1 - lowest, torch.zeros_like(lowest)))
        waiting = torch.ones(len(left), dtype=torch.bool, device=u.device)
        moved = x.clone()
        for _ in range(_HALVINGS):
            step = torch.linalg.solve(scaled + (1 + lam)[:, None, None] * identity, slope[..., None])[..., 0]
            trial = x - step.reshape(x.shape)
            reached = trial.square().sum(dim=(1, 2)) / 2 + loss.values(_place(trial, o, f), t, w)
            decrease = (slope * step).sum(dim=1)
            good = reached <= now - 1e-4 * decrease + 4e-16 * (1 + now.abs())
            take = waiting & good
            moved[take] = trial[take]
            waiting &= ~good
            if not waiting.any():
                break
            lam = torch.where(waiting, torch.clamp(4 * lam, min=0.1), lam)
        result_u[left] = moved
        shift[left] = torch.where(lam < 0.05, torch.zeros_like(lam), lam / 4)
        if waiting.any():
            # no step lowers the energy: as good as it gets, which its flag says
            flags[left[waiting]] = -iteration - 1
            left = left[~waiting]
            if not len(left):
                break
    return result_u, energy, value, result_g, flags
