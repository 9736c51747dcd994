"""The GAMP of the experiments against its equations, evaluated as they are derived and printed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

from attnphase.experiments.data import draw_instance
from attnphase.experiments.optimizers.gamp import Gamp
from attnphase.experiments.risk import Risk
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem
from derivations.codegen.iteration import iteration_source

PAPER = Problem.paper(omega=0.26)
PROBLEMS = {
    "tied": PAPER.with_fields({"tokens.sigma": [0.6, 0.45]}),
    "untied": PAPER.with_fields({"student.tied": False, "tokens.sigma": [0.52, 0.49]}),
}


def generated() -> SimpleNamespace:
    namespace: dict[str, Any] = {}
    exec(iteration_source(), namespace)
    return SimpleNamespace(**namespace)


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_iteration_is_that_of_the_equations(name):
    """Two steps, so that Onsager's term counts. Curvatures are summed in single precision by the experiments."""
    problem, equations = PROBLEMS[name], generated()
    instance = draw_instance(problem, 14, 40, 5, (0,), LocalLoss(problem))
    samples, d, L, r = instance.samples, instance.dimension, problem.tokens.length, problem.columns
    start = 0.4 * torch.randn((1, d, r), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    risk = Risk.of(instance)
    gamp = Gamp(instance, risk, start, variance=0.8)
    gamp.step()
    state = {key: value.clone() for key, value in gamp.state().items() if torch.is_tensor(value)}
    gamp.step()

    xbar = np.moveaxis(samples.tokens[0].numpy().reshape(samples.count, L, d), 1, 0)[..., None, None] / np.sqrt(d)
    gamma = instance.stacked("gamma")[0].numpy()[:, None, :, None, None]
    w, c = state["weights"][0].numpy()[None, ..., None], state["c"][0].numpy()[None]

    def of_tokens(tensor: torch.Tensor) -> np.ndarray:
        """(S, n, L, r) to (L, n, 1, r, 1)."""
        return np.moveaxis(tensor[0].numpy(), 1, 0)[:, :, None, :, None]

    V, omega = equations.fields(xbar, gamma, d, w, c, of_tokens(state["residual"]))
    np.testing.assert_allclose(V[:, 0, 0], gamp.V[0].numpy(), rtol=1e-12)

    # the proximal points that the residuals say, stationary in the problem that the equations say
    prox = omega + V @ of_tokens(gamp.state()["residual"])
    fields = torch.as_tensor(np.moveaxis(prox[:, :, 0, :, 0], 0, 1).copy())
    _, slopes, hessian = risk.loss.derivatives(fields, samples.targets.flatten(0, 1), samples.grams.flatten(0, 1))
    g = of_tokens(gamp.state()["residual"])
    np.testing.assert_allclose(g[:, :, 0, :, 0], -np.moveaxis(slopes.reshape(-1, L, r).numpy(), 1, 0), atol=1e-8)

    H = hessian.reshape(-1, 1, L * r, L * r).numpy()
    ridge = problem.regularizer.strength
    assert ridge is not None
    again, dg, w, c = equations.weights(xbar, ridge, w, V, omega, prox, H)
    np.testing.assert_allclose(again, g, atol=1e-12)
    blocks = gamp.responses.reshape(samples.count, L, r, L, r).numpy()
    for l in range(L):
        np.testing.assert_allclose(dg[l][:, 0], blocks[:, l, :, l], atol=1e-9)
    np.testing.assert_allclose(c[0], gamp.state()["c"][0].numpy(), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(w[0, ..., 0], gamp.weights[0].numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(w[0, ..., 0] - state["weights"][0].numpy()).max() > 1e-2  # and it moves
