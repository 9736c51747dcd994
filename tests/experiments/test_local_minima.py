"""The samples' local problems at finite d: their minima, on the device and in the precision of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from torch import Tensor

from attnphase.errors import ExperimentError, ProblemError
from attnphase.experiments.data import Samples, draw_instance
from attnphase.experiments.optimizers.local_minima import minimised_compiled
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.torch.device import device_of
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

PAPER = Problem.paper(omega=0.31).with_fields({"tokens.sigma": [0.62, 0.47]})
ONE_TOKEN = {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none"}
MIXTURE = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [[{"sigma": 0.5, "mean": [1.1]}, {"sigma": 0.8, "mean": [-0.9]}]] * 2,
        "tokens.law": {"kind": "independent", "weights": [[0.6, 0.4], [0.3, 0.7]]},
    }
)
RUNS, COUNT = 2, 40


def asked(problem: Problem) -> tuple[LocalLoss, Tensor, Samples, Tensor]:
    """Loss, centres, samples and factors of some runs."""
    rng, loss = np.random.default_rng(5), LocalLoss(problem)
    samples = draw_instance(problem, 30, COUNT, 3, tuple(range(RUNS)), loss).samples
    columns = problem.columns
    omega = 2 * rng.normal(size=(RUNS, COUNT, problem.tokens.length, columns))
    root = rng.normal(size=(RUNS, len(problem.sites), columns, columns))
    V = 7 * (root @ root.mT + 0.1 * np.eye(columns))
    return loss, torch.from_numpy(omega), samples, torch.from_numpy(np.linalg.cholesky(V))


def nothing_known(omega: Tensor) -> tuple[Tensor, Tensor]:
    runs, count, length, columns = omega.shape
    return omega.new_zeros((runs, count, 2, length, columns)), omega.new_zeros((runs, count, 2))


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(PAPER, id="paper"),
        pytest.param(Problem().with_fields({**ONE_TOKEN, "loss.kind": "logistic"}), id="logistic"),
        pytest.param(PAPER.with_fields({"student.tied": False}), id="untied", marks=pytest.mark.slow),
        pytest.param(MIXTURE, id="mixture", marks=pytest.mark.slow),
    ],
)
def test_minima_of_samples_are_stationary_in_the_printed_loss(problem):
    loss, omega, samples, factors = asked(problem)
    known = nothing_known(omega)
    for starts in (Starts.COLD, Starts.REFRESH):
        minima, energies, residuals = minimised_compiled(loss, omega, samples, factors, starts, known)
        local = factors[torch.arange(RUNS)[:, None, None], samples.sites]
        u = torch.linalg.solve(local, (minima[:, :, 0] - omega)[..., None])[..., 0]
        losses, slopes = loss.gradients(
            minima[:, :, 0].flatten(0, 1), samples.targets.flatten(0, 1), samples.grams.flatten(0, 1)
        )
        torch.testing.assert_close(
            energies[..., 0], losses.reshape(RUNS, COUNT) + u.square().sum(dim=(2, 3)) / 2, rtol=1e-10, atol=1e-10
        )
        torch.testing.assert_close(residuals, -slopes.reshape(residuals.shape), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close((local @ u[..., None])[..., 0], (local @ local.mT @ residuals[..., None])[..., 0])
        assert (energies[..., 0] <= energies[..., 1]).all()
        known, omega = (minima, energies), omega + 0.05


class Elsewhere(torch.Tensor):
    """A tensor that NumPy cannot read before it is moved to the CPU; what is made of it is one too."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("on another device")

    def cpu(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.as_subclass(Tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_minima_are_found_on_the_cpu_and_brought_back(dtype):
    loss, omega, samples, factors = asked(PAPER)

    def minimised(of: type[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        def there(tensor: Tensor) -> Tensor:
            return (tensor.to(dtype) if tensor.is_floating_point() else tensor).as_subclass(of)

        moved = Samples(**{name: there(array) for name, array in vars(samples).items()})
        centers, (minima, energies) = there(omega), nothing_known(there(omega))
        return minimised_compiled(loss, centers, moved, there(factors), Starts.COLD, (minima, energies))

    for found, expected in zip(minimised(Elsewhere), minimised(Tensor), strict=True):
        assert (type(found), found.dtype) == (Elsewhere, dtype)
        assert torch.equal(found.cpu(), expected)


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ExperimentError, match=r'^no CUDA device is available: use the device "cpu"\.$'):
            device_of(name)


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [torch.device(name) for name in ("cpu", "cuda", "cuda:1")]
    assert [device_of(name) for name in ("cpu", "cuda", "cuda:1")] == devices
    with pytest.raises(ExperimentError, match=r'^there is no CUDA device 2: the last one here is "cuda:1"\.$'):
        device_of("cuda:2")
    unknown: list[Any] = ["gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "", None]
    for name in unknown:
        with pytest.raises(ProblemError, match=r"^device must be") as caught:
            device_of(name)
        assert caught.value.field == "device"
