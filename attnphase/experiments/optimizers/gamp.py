"""Generalised approximate message passing, Algorithm 1, on the samples of a batch of runs.

The local problems are solved to their global minimum with each sample's exact Gram matrices, so that a fixed point is a
critical point of the true risk at finite d, whatever the variances are.  State evolution tracks the iteration.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Instance
from attnphase.experiments.optimizers.interface import Optimizer, Progress
from attnphase.experiments.optimizers.local_minima import minimised_compiled
from attnphase.experiments.products import fields_of, pull_back
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.kernels.local.constants import Starts
from attnphase.problem.units import Units

__all__ = ["Gamp"]

_LEAST = 1e-6  # of the size of curvatures, where their mean is none
_CURVATURE_FLOOR = 0.05  # of a row problem, relative to the mean; the fixed points do not depend on it
_DIFFERENCE = 1e-6  # step of the row problem's numerical response
_NEGLIGIBLE = 1e-10  # relative to the root mean square of the weights
_START_VARIANCE = 0.5  # of the weights, in units of 1 / lambda, as where the theory's branches start


class Gamp(Optimizer):
    """The iteration of a batch of runs.

    Parameters
    ----------
    instance : Instance
    risk : Risk
    weights : (S, d, r) tensor
    damping : float
        Share of the old weights and variances that is kept, from 0 to below 1; state evolution tracks the iteration
        without damping.
    variance : float, optional
        Starting variance c of the weights.

    Attributes
    ----------
    V : (S, P, r, r) tensor
        Of the last step.
    """

    wanders = True

    def __init__(
        self, instance: Instance, risk: Risk, weights: Tensor, damping: float = 0.0, variance: float | None = None
    ) -> None:
        self.instance, self.risk, self.weights, self.damping = instance, risk, weights, damping
        problem, samples = instance.problem, risk.samples
        runs, columns = len(weights), weights.shape[2]
        self._length = problem.tokens.length
        self._gamma = instance.stacked("gamma")
        strength = np.maximum(problem.regularizer.strength, problem.regularizer.ridge)
        first = _START_VARIANCE / strength if variance is None else variance
        identity = torch.eye(columns, dtype=weights.dtype, device=weights.device)
        self._c = (
            torch.as_tensor(first, dtype=weights.dtype, device=weights.device)
            * identity.expand(*weights.shape, columns).clone()
        )
        self._residual = weights.new_zeros((runs, samples.count, self._length, columns))
        self._minima = weights.new_zeros((runs, samples.count, 2, self._length, columns))
        self._energies = weights.new_zeros((runs, samples.count, 2))
        self._steps = 0
        # single precision is enough for variances, on which no fixed point depends
        self._squares = samples.tokens.float().square()
        self.V = self._variances()
        self.responses = weights.new_zeros((runs, samples.count, self._length * columns, self._length * columns))

    @classmethod
    def start(cls, instance: Instance, risk: Risk, weights: Tensor, settings: TrainingSettings) -> Self:
        """With its damping."""
        return cls(instance, risk, weights, settings.damping or 0.0)

    def _variances(self) -> Tensor:
        """``V_s = sum_i gamma_si c_i / d``, (S, P, r, r)."""
        return torch.einsum("bpd,bdij->bpij", self._gamma, self._c) / self.instance.dimension

    def step(self) -> Progress:
        """One iteration.

        Equations (G1)-(G8) of the replica-symmetric page.
        """
        risk, samples, before = self.risk, self.risk.samples, self.weights
        runs, count, length = len(before), samples.count, self._length
        columns = before.shape[2]
        V = self.V = self._variances()
        local = V[torch.arange(runs, device=V.device)[:, None, None], samples.sites]  # (S, n, L, r, r)
        fields = fields_of(samples.tokens, before).reshape(runs, count, length, columns)
        omega = fields - torch.einsum("bnlij,bnlj->bnli", local, self._residual)
        starts = Starts.COLD if self._steps == 0 else Starts.REFRESH
        self._residual = self.residual_at(omega, V, starts)
        prox = omega + torch.einsum("bnlij,bnlj->bnli", local, self._residual)
        self.responses = self._response(prox, local)
        blocks = self.responses.reshape(runs, count, length, columns, length, columns)
        own = torch.diagonal(blocks, dim1=2, dim2=4).movedim(-1, 2)  # (S, n, L, r, r)
        squares = own.reshape(runs, count * length, columns * columns).float()
        curvature = -torch.stack([x.mT @ y for x, y in zip(self._squares, squares, strict=True)])
        curvature = curvature.reshape(runs, -1, columns, columns).to(before.dtype) / self.instance.dimension
        curvature = _lifted((curvature + curvature.mT) / 2, float(np.min(risk.regularizer.ridge)))
        residual = self._residual.reshape(runs, count * length, columns)
        source = pull_back(samples.tokens, residual) + torch.einsum("bdij,bdj->bdi", curvature, before)
        weights, c = self._rows(curvature, source)
        keep = self.damping
        damped = keep * before + (1 - keep) * weights
        # a damped weight whose undamped value is zero tends to zero without reaching it
        negligible = damped.abs() <= _NEGLIGIBLE * before.square().mean(dim=(1, 2), keepdim=True).sqrt()
        self.weights = torch.where((weights == 0) & negligible, weights, damped)
        self._c = keep * self._c + (1 - keep) * c
        self._steps += 1
        value, gradient = risk.smooth(before)
        return Progress(value + risk.sharp(before), risk.stationarity(before, gradient), before)

    def residual_at(self, omega: Tensor, V: Tensor, starts: Starts) -> Tensor:
        """Residuals ``g = V^-1 (prox - omega)`` of all samples, (S, n, L, r)."""
        previous = self._minima, self._energies
        factors = torch.linalg.cholesky(V)
        found = minimised_compiled(self.risk.loss, omega, self.risk.samples, factors, starts, previous)
        self._minima, self._energies, residual = found
        return residual

    def _response(self, prox: Tensor, V: Tensor) -> Tensor:
        """``dg / domega = -H (I + V H)^-1`` of every sample, (S, n, L r, L r)."""
        runs, count, length, columns = prox.shape
        samples, size = self.risk.samples, length * columns
        _, _, hessian = self.risk.loss.derivatives(
            prox.reshape(-1, length, columns), samples.targets.flatten(0, 1), samples.grams.flatten(0, 1)
        )
        hessian = hessian.reshape(runs * count, size, size)
        blocks = V.reshape(-1, length, columns, columns)
        rows = hessian.reshape(-1, length, columns, size)
        scaled = torch.einsum("nlij,nljk->nlik", blocks, rows).reshape(-1, size, size)
        identity = torch.eye(size, dtype=prox.dtype, device=prox.device)
        # H (I + V H)^-1 = (I + H V)^-1 H, the transpose of a solve with the symmetric H and V
        response = -torch.linalg.solve((identity + scaled).mT, hessian.mT).mT
        return response.reshape(runs, count, size, size)

    def _rows(self, curvature: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        """Minimisers of the row problems (S, d, r) and their responses to the source (S, d, r, r)."""
        regularizer, columns = self.risk.regularizer, source.shape[2]
        if self.risk.is_smooth:
            ridges = regularizer.ridge * np.eye(columns)
            whole = curvature + torch.as_tensor(ridges, dtype=source.dtype, device=source.device)
            c = torch.linalg.inv(whole)
            return torch.einsum("bdij,bdj->bdi", c, source), c
        stiffness, pull = curvature.double().cpu().numpy(), source.double().cpu().numpy()
        w = regularizer.minimise(stiffness, pull)
        # where nothing pulls, by what the problem's own weights would
        natural = float(np.abs(stiffness).mean()) * float(Units.of(self.instance.problem).weights.min())
        step = _DIFFERENCE * max(float(np.abs(pull).mean()), _DIFFERENCE * natural)
        sides = [
            (regularizer.minimise(stiffness, pull + shift) - regularizer.minimise(stiffness, pull - shift)) / (2 * step)
            for shift in step * np.eye(columns)
        ]
        response = np.stack(sides, axis=-1)
        options = {"dtype": source.dtype, "device": source.device}
        return torch.as_tensor(w, **options), torch.as_tensor((response + response.swapaxes(-1, -2)) / 2, **options)

    def variances(self) -> Array:
        """V of the last step."""
        return self.V.double().cpu().numpy()

    def replicon(self) -> Array:
        """Spectral radius of the linearised iteration, (S,): below 1 where perturbations of single weights die out.

        ``P_l -> sum_i gamma_li c_i (sum_k gamma_ki C_k) c_i / d`` with ``C_k = sum_mu sum_l (dg_k/domega_l) P_l
        (...)^T / d``.
        """
        runs, count, length, columns = self._residual.shape
        sites, gamma, c = self.risk.samples.sites, self._gamma, self._c
        d, number = self.instance.dimension, self._gamma.shape[1]
        responses = self.responses.reshape(runs, count, length, columns, length, columns)
        radii = []
        for s in range(runs):
            size = number * columns * columns
            operator = np.empty((size, size))
            for j in range(size):
                P = torch.zeros(size, dtype=c.dtype, device=c.device)
                P[j] = 1.0
                local = P.reshape(number, columns, columns)[sites[s]]
                spread = torch.einsum("nkalb,nlbe,nkcle->nkac", responses[s], local, responses[s])
                C = torch.zeros((number, columns, columns), dtype=c.dtype, device=c.device)
                C.index_add_(0, sites[s].reshape(-1), spread.reshape(-1, columns, columns))
                image = torch.einsum("pd,dij,kd,kjl,dlm->pim", gamma[s], c[s], gamma[s], C / d, c[s]) / d
                operator[:, j] = image.reshape(-1).double().cpu().numpy()
            radii.append(float(np.abs(np.linalg.eigvals(operator)).max()))
        return np.array(radii)

    def state(self) -> dict[str, Any]:
        """Weights, variances, residuals and local minima."""
        return {
            "weights": self.weights,
            "c": self._c,
            "residual": self._residual,
            "minima": self._minima,
            "energies": self._energies,
            "steps": self._steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.weights, self._c, self._residual = state["weights"], state["c"], state["residual"]
        self._minima, self._energies, self._steps = state["minima"], state["energies"], state["steps"]


def _lifted(curvature: Tensor, ridge: float) -> Tensor:
    """Curvatures whose eigenvalues, with the least ridge, are not below a share of their mean over the coordinates."""
    values, vectors = torch.linalg.eigh(curvature)
    mean = (values.mean(dim=(1, 2), keepdim=True) + ridge).clamp(
        min=ridge if ridge > 0 else _LEAST * float(values.abs().mean())
    )
    return (vectors * torch.maximum(values, _CURVATURE_FLOOR * mean - ridge)[..., None, :]) @ vectors.mT
