"""Solved points of one token against `one_token`, a program of its own, for every loss, law and penalty."""

from typing import Any

import numpy as np
import pytest
from models import model
from one_token import Cluster, OneToken, hinge, logistic, quantile, square

import attnphase as ap

SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False, max_maps=2000)
RIDGE = "regularizer.strength"


def classes(*rows: tuple[float, float, float]) -> dict[str, Any]:
    """Clusters of given share, deviation and mean."""
    law = {"kind": "independent", "weights": [share for share, *_ in rows]}
    return {"tokens.clusters": [{"sigma": s, "mean": [m]} for _, s, m in rows], "tokens.law": law}


def numbers(**values: float) -> dict[str, float]:
    return {f"loss.parameters.{name}": value for name, value in values.items()}


def gaussian(sigma: float, **law: Any) -> list[Cluster]:
    return [Cluster(sigma=sigma, **law)]


def wide(k: Any) -> tuple[Any, Any]:
    return k, 1 + 0.45 * (k**2 / 0.81 - 1) + 0.3 * np.tanh(k)


def tail(k: Any) -> tuple[Any, Any]:
    return k + 0.17 * k**3, np.ones_like(k)


PAIR = ((0.35, 0.9, -0.7), (0.65, 0.6, 1.6))
NUMBER_OF_CLUSTER = [Cluster(p, s, m, label) for (p, s, m), label in zip(PAIR, (-0.4, 1.1), strict=True)]
OPPOSITE = ((0.3, 0.8, -1.3), (0.7, 1.1, 0.6))
SIDES = [Cluster(p, s, m, label) for (p, s, m), label in zip(OPPOSITE, (1.0, -1.0), strict=True)]
WIDE = {"tokens.density": "1 + a*(k**2/rho - 1) + 0.3*tanh(k)", "tokens.parameters": {"a": 0.45, "rho": 0.81}}
TAIL = {"tokens.sampler": "k + tail*k**3", "tokens.parameters": {"tail": 0.17}}
LASSO = {"regularizer.kind": "lasso"}
NET = {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.11}


def of(name: str, alpha: float, ridge: float, sigma: float, proximal: Any, fields: Any = None, **own: Any) -> Any:
    """The fields and the own equations of tokens of one kind."""
    law = {key: own.pop(key) for key in ("made",) if key in own}
    rest = {key: own.pop(key) for key in ("rule", "fine", "branch") if key in own}
    strength = own.get("strength", 0.0)
    given = {"tokens.sigma": sigma, RIDGE: strength or ridge, **(fields or {})}
    return name, given, OneToken(gaussian(sigma, **law), proximal, alpha, ridge, **own), rest


ROWS: dict[str, Any] = {
    "regression": of("square", 1.7, 0.21, 0.8, square()),
    "regression on few samples by points": of("square", 0.6, 0.04, 1.3, square(), rule="sobol"),
    "regression with a lasso": of("square", 0.8, 0.0, 0.9, square(), LASSO, strength=0.35),
    "regression with an elastic net": of("square", 1.4, 0.11, 1.2, square(), NET, strength=0.23),
    "regression with a density": of("square", 2.3, 0.15, 0.9, square(), WIDE, made=wide),
    "regression with a density, by points": of("square", 2.3, 0.15, 0.9, square(), WIDE, made=wide, rule="sobol"),
    "regression on drawn fields": of("square", 2.3, 0.15, 0.9, square(), TAIL, made=tail),
    "logistic regression": of("logistic", 2.2, 0.3, 0.84, logistic),
    "logistic regression by points": of("logistic", 2.2, 0.3, 0.84, logistic, rule="sobol"),
    "logistic regression of noisy labels": of(
        "logistic", 1.4, 0.06, 0.83, logistic, {"teacher.noise": 0.37}, noise=0.37
    ),
    "logistic regression with a density": of("logistic", 3.1, 0.2, 0.9, logistic, WIDE, made=wide),
    "logistic regression with a tail": of("logistic", 1.9, 0.1, 0.9, logistic, TAIL, made=tail),
    "near a hard margin": of("logistic", 9.0, 0.0007, 1.2, logistic, rule="sobol", sizes=(40, 200)),
    "narrow labels": of("logistic", 18.0, 0.012, 0.95, logistic, sizes=(40, 200)),
    "a quantile": of("kinks", 1.7, 0.07, 1.2, quantile(0.7), {"teacher.noise": 0.4}, noise=0.4, fine=1e-4),
    "a quantile with a square": of(
        "kinks", 2.4, 0.2, 0.9, quantile(0.2, 0.6), {"teacher.noise": 0.3, **numbers(tau=0.2, square=0.6)}, noise=0.3
    ),
    "a hinge with a bias": of(
        "kinks", 2.5, 0.2, 0.8, hinge(0.3), {"teacher.noise": 0.1, **numbers(quantile=0, hinge=1, b=0.3)}, noise=0.1
    ),
    "a square with a modulus": of(
        "kinks",
        1.3,
        0.15,
        1.1,
        square(0.4),
        {"teacher.noise": 0.2, **numbers(quantile=0, square=1, modulus=0.4)},
        noise=0.2,
    ),
    "regression on the number of a cluster": (
        "terms",
        {**classes(*PAIR), RIDGE: 0.17, **numbers(logistic=0, square=1, scale=0, shift=-0.4, apart=1.5)},
        OneToken(NUMBER_OF_CLUSTER, square(), 2.3, 0.17),
        {"branch": "uninformed"},
    ),
    "a classifier of two clusters": (
        "terms",
        {**classes(*OPPOSITE), RIDGE: 0.3},
        OneToken(SIDES, logistic, 1.7, 0.3),
        {"branch": "uninformed"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_points_are_those_of_the_own_equations(name: str) -> None:
    which, fields, own, rest = ROWS[name]
    given = fields | ({"integration.rule": rest["rule"]} if "rule" in rest else {})
    point = ap.solve(model(which, given), own.alpha, rest.get("branch", "semantic"), settings=SETTINGS).squeeze()
    assert point.status == 0
    near = [point[key].to_numpy().reshape(len(own.clusters), -1)[:, 0] for key in ("q", "V", "m", "theta")]
    expected = own.solved(np.stack(near, axis=1))
    for key, value in expected.items():
        if key not in point:
            continue
        found, error = (point[end].to_numpy().reshape(np.size(value), -1)[:, 0] for end in (key, f"{key}_stderr"))
        allowed = 4 * error + rest.get("fine", 1e-5) * np.abs(value).max()
        assert np.all(np.abs(found - value) <= allowed), (key, found, value, error)
        assert np.all(error <= 0.02 * np.abs(value).max() + 1e-9), (key, error)
