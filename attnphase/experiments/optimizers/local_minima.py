"""Minima of the samples' local problems for a batch of runs, in the compiled kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Samples
from attnphase.kernels.compiler import sample_kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.torch.loss import LocalLoss

__all__ = ["minimised_compiled"]


def minimised_compiled(
    loss: LocalLoss,
    omega: Tensor,
    samples: Samples,
    factors: Tensor,
    starts: Starts,
    previous: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Minima (S, n, 2, L, r), energies (S, n, 2) and residuals (S, n, L, r) of all samples of a batch of runs.

    What lies on a GPU is moved to the CPU for it, and the results have the device and precision of ``omega``.

    Parameters
    ----------
    loss : LocalLoss
    omega : (S, n, L, r) tensor
        Centres.
    samples : Samples
    factors : (S, P, r, r) tensor
        Lower Cholesky factors of V of every site.
    starts : Starts
    previous : (minima (S, n, 2, L, r), energies (S, n, 2))
        Of the last pass, for warm starts.
    """
    runs, count, length, _ = omega.shape
    kernels = sample_kernels_for(loss.problem)
    residuals = np.empty(omega.shape)
    losses, flags = np.empty(count), np.empty(count, dtype=np.int64)
    minima, energies = (_array(x) for x in previous)
    for s in range(runs):
        nodes = Nodes(
            _array(omega[s]),
            _array(samples.teacher_fields[s]),
            _array(factors[s]),
            np.empty(0),
            model_numbers(loss.problem),
            _grams(samples.grams[s], count, length),
            _array(samples.targets[s]),
            np.ascontiguousarray(samples.sites[s].cpu().numpy()),
        )
        kernels.minimise(nodes, starts, Solution(minima[s], energies[s], losses, residuals[s], flags))

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(omega)

    return tensor(minima), tensor(energies), tensor(residuals)


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.double().cpu().numpy())


def _grams(grams: Tensor, count: int, length: int) -> Array:
    """Gram matrices for the compiled kernel; losses that use none get rows that they ignore."""
    return _array(grams) if len(grams) else np.ones((count, length, length))
