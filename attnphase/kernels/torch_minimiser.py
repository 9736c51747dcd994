"""Global minimisers of the local problem in torch: damped Newton descents of many nodes from all starts at once.

The algorithm is the compiled kernel's (`newton.py`), in ``u`` with ``h = omega + C u`` and ``V = C C^T``, but for one
thing: no descent stops short near a minimum that is known already, since none is known while all are under way.  A
descent from one start of one node is a lane; all lanes try their next step together, each with its own damping, and
leave when they have arrived.  As in the generated code the lanes are on the last axis of every array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.errors import ExperimentError
from attnphase.experiments.data import Samples
from attnphase.kernels.compiler import torch_module
from attnphase.kernels.torch_loss import LocalLoss
from attnphase.problem.problem import Problem
from attnphase.state_evolution.proximal import RUNAWAY, Starts

__all__ = ["Solution", "minimise", "minimise_samples", "node_minimiser"]

# As in `newton.py`.
_NEWTON_STEPS = 200
_TRIES = 60  # of a step with growing damping
_TOLERANCE = 1e-11
_DISTINCT = 1e-5  # two minima are one if no coordinate differs by more, relative to 1 + |u|
_PIVOT = 1e-12
_FAR = 1e30  # growth of |u|^2, or of the energy's size on its way down, by which a descent counts as run away

# Lanes of a block, and numbers in all their Hessians together: as many as fill a processor, and with everything else
# that is computed for them some hundred MB of a computer's memory and some GB of a GPU's.
_LANES = {"cpu": 1 << 16, "cuda": 1 << 20}
_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 26}


@dataclass(frozen=True, eq=False)
class Solution:
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


@dataclass(frozen=True, eq=False)
class _Lanes:
    """Local problems with the lanes on the last axis; an array without that axis is of all lanes alike.

    Attributes
    ----------
    module : module
        The generated loss.
    parameters : (3,) tensor
    center : (L, r, N) tensor
        ``omega``.
    target : (L, x, N) tensor
    weights : (L, L, N) or (L,) tensor
    factor : (L, r, r, N) or (L, r, r, 1) tensor
        Lower Cholesky factors of V.
    """

    module: ModuleType
    parameters: Tensor
    center: Tensor
    target: Tensor
    weights: Tensor
    factor: Tensor

    def take(self, index: Tensor) -> _Lanes:
        """Some of the lanes."""
        return _Lanes(
            self.module,
            self.parameters,
            self.center[..., index],
            self.target[..., index],
            self.weights[..., index] if self.weights.ndim > 1 else self.weights,
            self.factor[..., index] if self.factor.shape[-1] > 1 else self.factor,
        )

    def place(self, u: Tensor) -> Tensor:
        """``h = omega + C u``."""
        h = self.center.clone()
        for j in range(u.shape[1]):
            h[:, j:].addcmul_(self.factor[:, j:, j], u[:, j, None])
        return h

    def scaled(self, h: Tensor) -> Tensor:
        """Solve ``C u = h - omega``."""
        u = h - self.center
        for i in range(u.shape[1]):
            known = (self.factor[:, i, :i] * u[:, :i]).sum(dim=1)
            u[:, i] = (u[:, i] - known) / self.factor[:, i, i]
        return u

    def at(self, u: Tensor) -> _Point:
        """Everything that a descent needs to know at ``u``."""
        length, columns, count = u.shape
        size = length * columns
        h = self.place(u)
        gradient, hessian = torch.empty_like(u), u.new_empty((size, size, count))
        scratch = u.new_empty((size, count))
        value = self.module.loss_derivatives(h, self.target, self.weights, self.parameters, gradient, hessian, scratch)
        slope, inner, curvature = u.clone(), torch.zeros_like(hessian), torch.zeros_like(hessian)
        blocks, inner, outer = (x.view(length, columns, length, columns, count) for x in (hessian, inner, curvature))
        for i in range(columns):
            row = self.factor[:, i, : i + 1]  # C is lower triangular
            slope[:, : i + 1].addcmul_(row, gradient[:, i, None])
            inner[:, : i + 1].addcmul_(row[:, :, None, None], blocks[:, i, None])
        for i in range(columns):
            outer[..., : i + 1, :].addcmul_(inner[..., i, None, :], self.factor[:, i, : i + 1])
        curvature.diagonal().add_(1.0)
        norm = u.square().sum(dim=(0, 1))
        return _Point(u, 0.5 * norm + value, value, gradient, slope.reshape(size, count), curvature, norm)


@dataclass(frozen=True, eq=False)
class _Point:
    """Where N lanes stand.

    Attributes
    ----------
    u : (L, r, N) tensor
    energy, value : (N,) tensors
        ``Psi`` and the loss.
    gradient : (L, r, N) tensor
        Of the loss in h.
    slope, curvature : (L r, N) and (L r, L r, N) tensors
        Gradient and Hessian of ``Psi`` in u.
    norm : (N,) tensor
        ``|u|^2``.
    """

    u: Tensor
    energy: Tensor
    value: Tensor
    gradient: Tensor
    slope: Tensor
    curvature: Tensor
    norm: Tensor

    def take(self, index: Tensor) -> _Point:
        """Some of the lanes."""
        return _Point(*(x[..., index] for x in vars(self).values()))

    def moved(self, to: _Point, lanes: Tensor) -> _Point:
        """The other point in lanes where a step is accepted."""
        pairs = zip(vars(to).values(), vars(self).values(), strict=True)
        return _Point(*(torch.where(lanes, new, old) for new, old in pairs))


def minimise_samples(
    loss: LocalLoss,
    omega: Tensor,
    samples: Samples,
    factors: Tensor,
    starts: Starts,
    minima: Tensor,
    energies: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minima (S, n, 2, L, r), energies (S, n, 2) and residuals (S, n, L, r) of all samples of a batch of runs.

    Parameters
    ----------
    loss : LocalLoss
        At finite d.
    omega : (S, n, L, r) tensor
        Centres.
    samples : Samples
    factors : (S, P, r, r) tensor
        Lower Cholesky factors of V of every site.
    starts : Starts
    minima, energies : (S, n, 2, L, r) and (S, n, 2) tensors
        Of the last pass, for warm starts.

    Raises
    ------
    ExperimentError
        The loss has kinks.
    """
    _check(loss.problem)
    runs, count, length, columns = omega.shape
    local = factors[torch.arange(runs, device=omega.device)[:, None, None], samples.sites]
    found = minimise(
        loss,
        omega.flatten(0, 1),
        samples.teacher_fields.flatten(0, 1),
        samples.targets.flatten(0, 1),
        samples.grams.flatten(0, 1) if loss.has_grams else omega.new_ones(length),
        local.flatten(0, 1),
        starts,
        (minima.flatten(0, 1), energies.flatten(0, 1)),
    )
    return (
        found.minima.reshape(runs, count, 2, length, columns).to(omega.dtype),
        found.energies.reshape(runs, count, 2).to(omega.dtype),
        found.residuals.reshape(omega.shape).to(omega.dtype),
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
) -> Solution:
    """Lowest and second-lowest minimum of the local problem of N samples, in double precision.

    Parameters
    ----------
    loss : LocalLoss
    omega, k : (N, L, r) and (N, L, t) tensors
        Centres and the teacher's fields.
    targets, weights : tensors
        As `LocalLoss.values` takes them.
    factors : (N, L, r, r) or (1, L, r, r) tensor
        Lower Cholesky factors of V.
    starts : Starts
    previous : (minima (N, 2, L, r), energies (N, 2)), optional
        Of the last pass, which WARM and REFRESH start from.

    Raises
    ------
    ExperimentError
        The loss has kinks, for which only the compiled kernel has an exact proximal point.
    """
    _check(loss.problem)
    parameters = loss.parameters.double()
    return _minimise(loss.module, parameters, omega, k, targets, weights, factors, starts, previous)


def _minimise(
    module: ModuleType,
    parameters: Tensor,
    omega: Tensor,
    k: Tensor,
    targets: Tensor,
    weights: Tensor,
    factors: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor] | None,
) -> Solution:
    """`minimise`, block by block."""
    count, length, columns = omega.shape
    number = {Starts.FROM_ZERO: 1, Starts.WARM: 2, Starts.COLD: 5 + length, Starts.REFRESH: 7 + length}[starts]
    kind = omega.device.type
    lanes = min(_LANES[kind], _NUMBERS[kind] // (length * columns) ** 2)
    block = max(1, lanes // number)
    parts = []
    # a pass over no nodes at all has one empty block
    for begin in range(0, max(count, 1), block):
        part = slice(begin, begin + block)
        lanes = _Lanes(
            module,
            parameters,
            _last(omega[part]),
            _last(targets[part]),
            _last(weights[part]) if weights.ndim > 1 else weights.double(),
            _last(factors[part] if len(factors) > 1 else factors),
        )
        before = None if previous is None else (previous[0][part].double(), previous[1][part].double())
        fields, used = _starting_fields(module, lanes.center, _last(k[part]), starts, before)
        parts.append(_search(lanes, fields, used))
    return Solution(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def _check(problem: Problem) -> None:
    if problem.loss.form.has_kink:
        raise ExperimentError(
            f"the torch backend has no proximal point for the {problem.loss.kind} loss: use the compiled one (cpu)."
        )


def _last(values: Tensor) -> Tensor:
    """The samples on the last axis, in double precision."""
    return values.double().movedim(0, -1).contiguous()


def _starting_fields(
    module: ModuleType, center: Tensor, k: Tensor, starts: Starts, previous: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Starting points (L, r, s, N) of the compiled kernel in its order, and which of them are used, (s, N)."""
    zero = torch.zeros_like(center)
    fields, used = [], []
    if starts in (Starts.WARM, Starts.REFRESH):
        if previous is None:
            raise ValueError("a warm pass needs the minima of the last pass")
        minima, energies = previous
        fields += [_last(minima[:, 0]), _last(minima[:, 1])]
        used = [torch.ones_like(center[0, 0], dtype=torch.bool), energies[:, 0] != energies[:, 1]]
    if starts is Starts.FROM_ZERO:
        fields = [zero]
    elif starts is not Starts.WARM:
        lifted = k[:, list(module.LIFT)]
        signs = 1 - 2 * torch.eye(len(center), dtype=center.dtype, device=center.device)
        reflected = [center * sign[:, None, None] for sign in signs]
        fields += [center, lifted, -lifted, zero, -center, *reflected]
    used += [torch.ones_like(center[0, 0], dtype=torch.bool)] * (len(fields) - len(used))
    return torch.stack(fields, dim=2), torch.stack(used)


def _search(nodes: _Lanes, fields: Tensor, used: Tensor) -> Solution:
    """The two lowest minima among those that the descents from all starts of N nodes end in."""
    starts, count = used.shape
    lane = used.flatten().nonzero()[:, 0]
    lanes = nodes.take(lane % count)
    found, steps = _descend(lanes, lanes.scaled(fields.flatten(2)[..., lane]))

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
        gap = ((u[..., s, :] - best_u).abs() / (1 + best_u.abs())).amax(dim=(0, 1))
        candidate, distinct = ~torch.isinf(energy[s]), gap > _DISTINCT
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
    return Solution(
        torch.stack([nodes.place(best_u), nodes.place(other_u)]).movedim(-1, 0),
        torch.stack([best, other], dim=1),
        losses,
        residuals.movedim(-1, 0),
        steps,
    )


def _descend(lanes: _Lanes, u: Tensor) -> tuple[_Point, Tensor]:
    """Damped Newton descents: where they end, and in how many steps, negative above the gradient tolerance.

    One that begins where the energy is not finite and one that finds no bottom end with infinite energy, the latter
    with RUNAWAY steps.
    """
    point = lanes.at(u)
    far, deep = _FAR * (1 + point.norm), -_FAR * (1 + point.energy.abs())
    left = torch.arange(u.shape[-1], device=u.device)
    steps, tries = torch.zeros_like(left), torch.zeros_like(left)
    shift = torch.zeros_like(point.energy)
    ends: list[tuple[Tensor, _Point, Tensor]] = []
    while True:
        arrived = point.slope.square().sum(dim=0) <= _TOLERANCE**2 * (1 + point.norm)
        finite = point.energy.isfinite()
        exhausted = steps >= _NEWTON_STEPS
        away = (steps > 0) & ~(finite & (point.norm < far) & (point.energy > deep))
        done = arrived | (tries >= _TRIES) | exhausted | away | ~finite
        out = done.nonzero()[:, 0]
        if len(out) or not len(left):
            if bool(exhausted.any()):  # still on the way down where the energy is not convex
                away |= exhausted & ~_solve(point.curvature, torch.zeros_like(shift), point.slope)[2]
            arrived &= steps < _NEWTON_STEPS
            flag = torch.where(arrived, steps, -(steps + 1).clamp(max=_NEWTON_STEPS))
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
        allowed = point.energy - 1e-4 * decrease + 4e-16 * (1 + point.energy.abs())
        good = definite & (trial.energy <= allowed)
        point = point.moved(trial, good)
        steps, tries = steps + good, torch.where(good, 0, tries + 1)
        shift = torch.where(good, torch.where(shift < 0.05, 0.0, 0.25 * shift), torch.clamp(4 * shift, min=0.1))
    order = torch.argsort(torch.cat([lane for lane, _, _ in ends]))
    pieces = zip(*(vars(end).values() for _, end, _ in ends), strict=True)
    whole = _Point(*(torch.cat(piece, dim=-1)[..., order] for piece in pieces))
    return whole, torch.cat([flag for _, _, flag in ends])[order]


def _newton_step(point: _Point, shift: Tensor, tries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Steps (L r, N), slope times step, and where a step was found; `shift` and `tries` grow in place until one is."""
    step, decrease, definite = _solve(point.curvature, shift, point.slope)
    while len(failed := (~definite & (tries < _TRIES - 1)).nonzero()[:, 0]):
        shift[failed] = torch.clamp(2 * shift[failed], min=0.1)
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
        definite &= matrix[j, j] > _PIVOT
        share = matrix[j + 1 :, j] / matrix[j, j]
        matrix[j + 1 :, j + 1 :] -= share[:, None] * matrix[j, j + 1 :]
        x[j + 1 :] -= share * x[j]
    for j in reversed(range(size)):
        x[j] = (x[j] - (matrix[j, j + 1 :] * x[j + 1 :]).sum(dim=0)) / matrix[j, j]
    return x, (right * x).sum(dim=0), definite


@lru_cache(maxsize=32)
def node_minimiser(problem: Problem, device: torch.device, threads: int) -> Callable[..., None]:
    """A function that runs in torch and has the arguments of `Kernels.minimise`, which `newton_nodes.py` documents.

    Parameters
    ----------
    problem : Problem
        Decides about the model; the numbers of the local problem are arguments.
    device : torch.device
    threads : int
        Torch's own, on the CPU.

    Raises
    ------
    ExperimentError
        The loss has kinks.
    """
    _check(problem)
    module = torch_module(problem, finite=False)

    def tensor(values: Array) -> Tensor:
        return torch.as_tensor(values, device=device)

    def targets_of(k: Tensor, mixing: Tensor, parameters: Tensor) -> Tensor:
        fields = _last(k)
        target = fields.new_zeros((module.LENGTH, max(module.LENGTH, module.TEACHER_RANK), len(k)))
        module.teacher_target(fields, mixing, parameters, target)
        return target.movedim(-1, 0)

    def minimise_nodes(
        centers: Array,
        teacher_fields: Array,
        factor: Array,
        mixing: Array,
        parameters: Array,
        variance: Array,
        mode: int,
        minima: Array,
        energies: Array,
        losses: Array,
        residuals: Array,
        flags: NDArray[np.int64],
    ) -> None:
        k, numbers = tensor(teacher_fields), tensor(parameters)
        targets = targets_of(k, tensor(mixing), numbers)
        previous = tensor(minima), tensor(energies)
        nodes = tensor(centers), k, targets, tensor(variance), tensor(factor)[None]
        with _torch_threads(threads):
            found = _minimise(module, numbers, *nodes, Starts(mode), previous)
        outputs = {"minima": minima, "energies": energies, "losses": losses, "residuals": residuals, "flags": flags}
        for name, array in outputs.items():
            array[...] = getattr(found, name).cpu().numpy()

    return minimise_nodes


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """So many threads for torch on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
