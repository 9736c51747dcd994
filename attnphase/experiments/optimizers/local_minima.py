"""Minima of the samples' local problems for a batch of runs: in the compiled kernel, or in torch on a GPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Samples
from attnphase.kernels.compiler import sample_kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import SampleNodes, Solution
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.kernels.torch.minimiser import Batch, minimise

__all__ = ["minimised_compiled", "minimised_in_torch"]


def minimised_in_torch(
    loss: LocalLoss,
    omega: Tensor,
    samples: Samples,
    factors: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor],
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
    previous : (minima (S, n, 2, L, r), energies (S, n, 2))
        Of the last pass, for warm starts.

    Raises
    ------
    ExperimentError
        The loss has kinks.
    """
    runs, count, length, columns = omega.shape
    local = factors[torch.arange(runs, device=omega.device)[:, None, None], samples.sites]
    batch = Batch(
        omega.flatten(0, 1),
        samples.teacher_fields.flatten(0, 1),
        samples.targets.flatten(0, 1),
        samples.grams.flatten(0, 1) if loss.has_grams else omega.new_ones(length),
        local.flatten(0, 1),
    )
    minima, energies = previous
    found = minimise(loss, batch, starts, (minima.flatten(0, 1), energies.flatten(0, 1)))
    return (
        found.minima.reshape(runs, count, 2, length, columns).to(omega.dtype),
        found.energies.reshape(runs, count, 2).to(omega.dtype),
        found.residuals.reshape(omega.shape).to(omega.dtype),
    )


def minimised_compiled(
    loss: LocalLoss,
    omega: Tensor,
    samples: Samples,
    factors: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """What `minimised_in_torch` returns, from the compiled kernel of the loss's problem."""
    runs, count, length, _ = omega.shape
    kernels = sample_kernels_for(loss.problem)
    residual = torch.empty(omega.shape, dtype=torch.float64)
    losses, flags = np.empty(count), np.empty(count, dtype=np.int64)
    minima, energies = (x.double().numpy() for x in previous)
    for s in range(runs):
        nodes = SampleNodes(
            _array(omega[s]),
            _array(samples.teacher_fields[s]),
            _array(samples.targets[s]),
            _grams(samples.grams[s], count, length),
            np.ascontiguousarray(samples.sites[s].numpy()),
            _array(factors[s]),
            model_numbers(loss.problem),
        )
        kernels.minimise(nodes, starts, Solution(minima[s], energies[s], losses, residual[s].numpy(), flags))
    return (
        torch.as_tensor(minima, dtype=omega.dtype),
        torch.as_tensor(energies, dtype=omega.dtype),
        residual.to(omega.dtype),
    )


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.double().numpy())


def _grams(grams: Tensor, count: int, length: int) -> Array:
    """Gram matrices for the compiled kernel; losses that use none get rows that they ignore."""
    return _array(grams) if len(grams) else np.ones((count, length, length))
