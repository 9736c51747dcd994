"""Global minimisers of the local problem in torch: damped Newton descents of many nodes from all starts at once.

The algorithm is the compiled kernel's (`attnphase.kernels.local`) but for one thing: no descent stops short near a
minimum that is known already, since none is known while all are under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.errors import ExperimentError
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.reference import torch_module
from attnphase.kernels.torch.lanes import Lanes
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.kernels.torch.search import TorchSolution, last_axis, search, starting_fields
from attnphase.problem.problem import Problem

__all__ = ["Batch", "minimise", "node_minimiser"]

# Lanes of a block, and numbers in all their Hessians together: as many as fill a processor, and with everything else
# that is computed for them some hundred MB of a computer's memory and some GB of a GPU's.
_LANES = {"cpu": 1 << 16, "cuda": 1 << 20}
_NUMBERS = {"cpu": 1 << 21, "cuda": 1 << 26}


@dataclass(frozen=True, eq=False)
class Batch:
    """N local problems.

    Attributes
    ----------
    centers, teacher_fields : (N, L, r) and (N, L, t) tensors
        ``omega``, and the teacher's fields.
    targets, weights : tensors
        As `LocalLoss.values` takes them.
    factors : (N, L, r, r) or (1, L, r, r) tensor
        Lower Cholesky factors of V.
    """

    centers: Tensor
    teacher_fields: Tensor
    targets: Tensor
    weights: Tensor
    factors: Tensor

    def lanes(self, part: slice, module: ModuleType, parameters: Tensor) -> Lanes:
        """Some of the problems with the samples on the last axis."""
        return Lanes(
            module,
            parameters,
            last_axis(self.centers[part]),
            last_axis(self.targets[part]),
            last_axis(self.weights[part]) if self.weights.ndim > 1 else self.weights.double(),
            last_axis(self.factors[part] if len(self.factors) > 1 else self.factors),
        )


def minimise(
    loss: LocalLoss, batch: Batch, starts: Starts, previous: tuple[Tensor, Tensor] | None = None
) -> TorchSolution:
    """Lowest and second-lowest minimum of the local problem of N samples, in double precision.

    Parameters
    ----------
    loss : LocalLoss
    batch : Batch
    starts : Starts
    previous : (minima (N, 2, L, r), energies (N, 2)), optional
        Of the last pass, which WARM and REFRESH start from.

    Raises
    ------
    ExperimentError
        The loss has kinks, for which only the compiled kernel has an exact proximal point.
    """
    _check(loss.problem)
    return _minimise(loss.module, loss.parameters.double(), batch, starts, previous)


def _minimise(
    module: ModuleType, parameters: Tensor, batch: Batch, starts: Starts, previous: tuple[Tensor, Tensor] | None
) -> TorchSolution:
    """`minimise`, block by block."""
    count, length, columns = batch.centers.shape
    kind = batch.centers.device.type
    most = min(_LANES[kind], _NUMBERS[kind] // (length * columns) ** 2)
    block = max(1, most // starts.number(length))
    parts = []
    # a pass over no nodes at all has one empty block
    for begin in range(0, max(count, 1), block):
        part = slice(begin, begin + block)
        lanes = batch.lanes(part, module, parameters)
        before = None if previous is None else (previous[0][part].double(), previous[1][part].double())
        k = last_axis(batch.teacher_fields[part])
        fields, used = starting_fields(module, parameters, lanes.center, k, starts, before)
        parts.append(search(lanes, fields, used))
    return TorchSolution(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def _check(problem: Problem) -> None:
    if problem.loss.form.has_kink:
        raise ExperimentError(
            f"the torch backend has no proximal point for the {problem.loss.kind} loss: use the compiled one (cpu)."
        )


@lru_cache(maxsize=32)
def node_minimiser(problem: Problem, device: torch.device, threads: int) -> Callable[[Nodes, Starts, Solution], None]:
    """A function that runs in torch and is to `Kernels` what their compiled ``minimise`` is.

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
        fields = last_axis(k)
        target = fields.new_zeros((module.LENGTH, max(module.LENGTH, module.LABEL_FIELDS), len(k)))
        module.teacher_target(fields, mixing, parameters, target)
        return target.movedim(-1, 0)

    def minimise_nodes(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        k, parameters = tensor(nodes.teacher_fields), tensor(nodes.parameters)
        targets = targets_of(k, tensor(nodes.mixing), parameters)
        batch = Batch(tensor(nodes.centers), k, targets, tensor(nodes.variance), tensor(nodes.factor)[None])
        previous = tensor(solution.minima), tensor(solution.energies)
        with _torch_threads(threads):
            found = _minimise(module, parameters, batch, Starts(starts), previous)
        for name, array in solution._asdict().items():
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
