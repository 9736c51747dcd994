"""Optimisers against plain implementations and against each other; how runs end.

Not public: weights, gradients and momenta, which `ap.simulate` does not return.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from instances import instance_of, weights_for

import attnphase as ap
from attnphase.data.variables import RunStatus
from attnphase.experiments.optimizers.fista import Fista
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.experiments.training import Trained, train
from attnphase.functions import softmax, tanh

PAPER = ap.Problem.paper(omega=0.3)
UNTIED = PAPER.with_fields({"student.tied": False})
ELASTIC = PAPER.with_fields(
    {"regularizer.kind": "elastic-net", "regularizer.strength": 0.004, "regularizer.ridge": 0.008}
)


def trained_by(name: Any, instance: Any, start: Any, **options: Any) -> Trained:
    weights = initial_weights(instance, start) if isinstance(start, str) else start
    return train(instance, Risk.of(instance), weights, TrainingSettings(name, **options))


@pytest.mark.parametrize(("name", "limit"), [("gd", 5000), ("adam", 2500)])
def test_steps_are_those_of_torch(name, limit):
    """The paper's rates; its ridge is SGD's weight decay, for Adam a term of the loss.

    Adam's small number is relative to the gradient's natural size at the start, a power of two.
    """
    assert TrainingSettings(name).steps == limit
    instance = instance_of(PAPER, 40, 80, (0, 1), 7)
    samples, start = instance.samples, initial_weights(instance, "uninformed")
    trained = trained_by(name, instance, start, steps=60)
    for s in range(2):
        weights = start[s].clone().requires_grad_()
        if name == "gd":
            optimizer: Any = torch.optim.SGD([weights], lr=0.15, weight_decay=0.01)
        else:
            unit = 2.0 ** math.frexp(float(Risk.of(instance).sizes(start)[1][s, 0]))[1]
            optimizer = torch.optim.Adam([weights], lr=0.01, eps=1e-8 * unit)
        for _ in range(60):
            optimizer.zero_grad()
            h = (samples.tokens[s] @ weights / 40**0.5).view(-1, 2, 1)
            S, G, C = torch.softmax(h @ h.mT, dim=-1), samples.grams[s], samples.targets[s]
            loss = ((S @ G * S).sum(dim=(1, 2)) / 2 - (S * C).sum(dim=(1, 2))).sum()
            if name == "adam":
                loss = loss + 0.01 / 2 * weights.square().sum()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(trained.weights[s], weights.detach(), rtol=1e-9, atol=1e-11)
    assert trained.status.tolist() == [RunStatus.completed] * 2
    assert trained.steps.tolist() == [60, 60]


@pytest.mark.parametrize(
    ("problem", "name"),
    [(PAPER, "lbfgs"), (UNTIED, "lbfgs"), (ELASTIC, "fista")],
    ids=["tied", "untied", "elastic net"],
)
def test_optimisers_find_one_minimum_with_the_same_zeros(problem, name):
    """From the teacher; gradient descent falls back to it."""
    instance = instance_of(problem, 60, 180, (0, 1), 7)
    risk, start = Risk.of(instance), initial_weights(instance, "semantic")
    one, other = trained_by(name, instance, start), trained_by("gamp", instance, start, damping=0.6)
    for trained in (one, other):
        assert trained.status.tolist() == [RunStatus.converged] * 2
        gradient = risk.smooth(trained.weights)[1]
        assert risk.stationarity(trained.weights, gradient).max() <= 1.01e-8
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    displaced, found = one.weights + 0.05 * noise, risk.value(one.weights)
    assert (risk.value(displaced) > 1.0005 * found).all()
    descended = trained_by("gd", instance, displaced, steps=3000)
    torch.testing.assert_close(risk.value(other.weights), found, rtol=1e-9, atol=0)
    torch.testing.assert_close(risk.value(descended.weights), found, rtol=1e-6, atol=0)
    zeros = one.weights == 0
    assert torch.equal(other.weights == 0, zeros)
    assert torch.equal(descended.weights == 0, zeros)
    if problem is ELASTIC:
        assert 0.1 < float(zeros.double().mean()) < 0.9
        # a gradient of 1e-8 sqrt(d) moves a weight by at most itself over the ridge, for each of the two
        torch.testing.assert_close(other.weights, one.weights, rtol=0, atol=2e-8 * 60**0.5 / 0.008)


def units(h, gain):
    return tanh(gain * softmax(h[:, :1] @ h[:, 1:2].T) @ h[:, 2:])


def of_units(h, k, noise, a0=1.5, a1=-1.25, a2=1.0):
    label = units(k, 3) @ np.array([1.5, -1.25, 1.0]) + noise[:, 0]
    return ((label - units(h, 1) @ np.array([a0, a1, a2])) ** 2).sum() / 4


STEEP = {"teacher.rank": 5, "teacher.noise": 0.1, "student.rank": 5, "regularizer.strength": 0.2, "tokens.sigma": 1.0}
STEEP |= {"positions.kind": "none", "teacher.mixing": None, "loss.kind": "expression", "loss.expression": of_units}
STEEP |= {"loss.trained": {a: f"0.1*{a}**2" for a in ("a0", "a1", "a2")}}
HARD = {
    "rounding hides differences of the risk": (PAPER, 2.0, 1e-9, 300),
    "columns of attention are steeper than others": (ap.Problem().with_fields(STEEP), 7.0, 1e-8, 400),
}


@pytest.mark.parametrize("why", HARD)
def test_lbfgs_reaches_its_tolerance_in_few_steps_where(why):
    """Line searches by values, or a unit for each column, took thousands of steps here or never ended."""
    problem, alpha, tolerance, most = HARD[why]
    runs = ap.simulate(problem, alpha, "semantic", 60, 2, test_samples=0, tolerance=tolerance)
    assert (runs["status"] == RunStatus.converged).all()
    assert runs["steps"].max() < most


def test_runs_of_a_batch_do_not_mix():
    together, alone = (instance_of(UNTIED, 40, 80, runs, 7) for runs in ((0, 1, 2), (1,)))
    for name in ("gd", "adam", "lbfgs", "gamp"):
        batch, single = (
            trained_by(name, i, "semantic", steps=40, tolerance=None if name in ("gd", "adam") else 1e-4)
            for i in (together, alone)
        )
        torch.testing.assert_close(batch.weights[1], single.weights[0], rtol=1e-12, atol=1e-14)
        assert (batch.steps[1], batch.status[1]) == (single.steps[0], single.status[0])


def test_one_diverging_run_stops_alone_with_its_last_finite_weights():
    instance = instance_of(PAPER, 40, 80, (0, 1), 7)
    start = initial_weights(instance, "uninformed")
    start[1] *= 1e200
    trained = trained_by("gd", instance, start, steps=30)
    assert trained.status.tolist() == [RunStatus.completed, RunStatus.diverged]
    assert trained.steps.tolist() == [30, 0]
    assert torch.isfinite(trained.weights).all()
    with pytest.warns(
        UserWarning, match=r"^semantic, d = 30, alpha = 2, seed 0: diverged at step \d+; its last finite"
    ):
        runs = ap.simulate(PAPER, 2.0, "semantic", 30, 1, "gd", learning_rate=900.0, test_samples=0)
    assert runs["status"].item() == RunStatus.diverged
    assert 1 < runs["steps"].item() < 5000
    assert np.isfinite(runs["weight_norm"].item())


def test_accelerated_descent_forgets_its_momentum_uphill():
    instance = instance_of(ap.Problem.paper(omega=0.26), 30, 90, (0,), 5)
    fista = Fista(Risk.of(instance), initial_weights(instance, "semantic"), 0.15)
    momenta = []
    for _ in range(120):
        fista.step()
        momenta.append(float(fista.state()["momentum"]))
    assert max(momenta) > 2
    dropped = [i for i in range(1, len(momenta)) if momenta[i] < momenta[i - 1]]
    assert dropped
    assert all(momenta[i] == 1.0 for i in dropped)


@pytest.mark.parametrize("name", ["gd", "adam"])
def test_a_trajectory_is_what_shorter_runs_end_with(name):
    def runs(steps: int, **options: Any) -> Any:
        return ap.simulate(PAPER, 2.0, "semantic", 30, 2, name, steps=steps, test_samples=0, **options).squeeze()

    whole = runs(50, trajectory=20)
    assert whole["step"].to_numpy().tolist() == [0, 20, 40]
    assert (whole["trajectory_training_loss"].diff("step") < 0).all()
    for index, steps in ((1, 20), (2, 40)):
        shorter = runs(steps)
        for quantity in ("training_loss", "q", "theta", "m"):
            record = whole[f"trajectory_{quantity}"].isel(step=index)
            np.testing.assert_allclose(shorter[quantity], record, rtol=1e-12, err_msg=quantity)


def test_proximal_steps_shrink_entries_or_whole_rows():
    fields = {"student.rank": 2, "teacher.rank": 2, "regularizer.strength": 0.3}
    step = torch.tensor([0.7, 1.9], dtype=torch.float64)
    for kind in ("lasso", "group-lasso"):
        instance = instance_of(PAPER.with_fields(fields | {"regularizer.kind": kind}), 24, 5, (0, 1))
        weights = weights_for(instance)
        size = weights.abs() if kind == "lasso" else weights.square().sum(dim=2, keepdim=True).sqrt()
        expected = weights * (1 - 0.3 * step[:, None, None] / size).clamp(min=0)
        torch.testing.assert_close(Risk.of(instance).proximal_step(weights, step), expected, rtol=1e-12, atol=1e-14)
        assert 0.02 < float((expected == 0).double().mean()) < 0.9
