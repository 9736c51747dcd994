"""What tests of samplers, of densities and of a user's own laws of k have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from attnphase.problem.problem import Problem
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.system import System


def ridge_regression(second: float, gamma: float, alpha: float, ridge: float) -> dict[str, float]:
    """The fixed point of regression on k, whose mean square is all that the equations know of its law."""
    q, V, theta = 0.5, 1.0, 0.5
    square = 0.0
    for _ in range(4000):
        left = 1 - theta / gamma
        square = left**2 * second + q - theta**2 / gamma
        q_hat, V_hat = alpha * square / (1 + V) ** 2, alpha / (1 + V)
        theta_hat = V_hat * (left * second + theta) / gamma
        R = 1 / (ridge + gamma * V_hat)
        images = gamma * R**2 * (gamma**2 * theta_hat**2 + gamma * q_hat), gamma * R, gamma**2 * R * theta_hat
        q, V, theta = (0.7 * old + 0.3 * new for old, new in zip((q, V, theta), images, strict=True))
    loss = alpha * square / (2 * (1 + V) ** 2) + ridge * q / gamma / 2
    return {"q": q, "V": V, "theta": theta, "test_error": square, "training_loss": loss}


def configurations_left(key: str, formulas: Iterable[str]) -> Iterator[int]:
    """How many of two configurations of clusters remain, for a law of k by each of some formulas."""
    for formula in formulas:
        tokens: dict[str, Any] = {"kind": "mixture", "length": 2, "clusters": [{"sigma": 0.8}, {"sigma": 1.1}]}
        tokens |= {"law": {"kind": "single-location"}, key: formula}
        loss = {"kind": "expression", "expression": "(h[0, 0] + h[1, 0] - c @ k[:, 0])**2/2"}
        system = System.of(Problem.from_dict({"tokens": tokens, "positions": {"kind": "none"}, "loss": loss}))
        group = [(list(order), A, B, C) for order, A, B, C in system.symmetries]
        yield len(merged(system, group).sample_law.probabilities)


def assert_metric_is_that_of_samples(instance: Any, weights: Any, measured: Iterable[tuple[Any, Any]]) -> None:
    """The first metric of every run, ``h k - k_1^2`` of the first token, without the second term of one token."""
    length, samples, d = instance.problem.tokens.length, instance.samples, instance.geometries[0].dimension
    for run, (value, uncertain) in enumerate(measured):
        x, k = samples.tokens[run].double().numpy(), samples.teacher_fields[run, :, :, 0].double().numpy()
        h = (x @ weights[run].double().numpy()[:, 0] / np.sqrt(d)).reshape(len(k), length)
        seen = h[:, 0] * k[:, 0] - (k[:, 1] ** 2 if length > 1 else 0)
        assert abs(seen.mean() - value[0]) < 4 * np.hypot(uncertain[0], seen.std() / np.sqrt(len(k)))
