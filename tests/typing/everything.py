"""A user's program that calls everything public, for mypy and pyright: it is checked by `make lint` and never run.

Lines that a checker must refuse end with a ``type: ignore``, which is itself refused where it is not needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis.strategies import SearchStrategy
from matplotlib.figure import Figure
from numpy.typing import NDArray

import attnphase as ap
from attnphase import errors, figures, functions, testing

Rows = NDArray[Any]


def loss(h: Rows, k: Rows, noise: Rows, c: Rows, beta: float = 2.0) -> Any:
    student, teacher = functions.softmax(beta * h @ h.T), functions.softmax(k @ k.T, causal=True)
    assert_type(student, Rows)
    chosen = functions.hardmax(k[:, 0]) @ k[:, 0] + functions.argmax(k[:, 0])
    return ((student - teacher - noise) ** 2).sum() + functions.relu(beta) * (chosen - c @ h[:, 0]) ** 2


def entry_by_entry(h: Rows, k: Rows, width: float = 1.0) -> Any:
    waves = [functions.cos(h), functions.sin(h), functions.cosh(h), functions.sinh(h), functions.tanh(h)]
    others = [functions.abs(h), functions.exp(h), functions.log(h), functions.sigmoid(h), functions.sign(k)]
    assert_type(waves + others, list[Rows])
    numbers = [functions.sqrt(width), functions.softplus(width), functions.min(h), functions.max(h)]
    assert_type(numbers, list[float])
    functions.softmax(width)  # type: ignore[arg-type]
    return sum(numbers) * sum((x**2).sum() for x in waves + others) + functions.max(h[0, 0], k[0, 0])


def row(logits: list[Any]) -> list[Any]:
    return [z / functions.sqrt(1 + sum(y**2 for y in logits)) for z in logits]


def problems() -> ap.Problem:
    ap.Problem(
        tokens={"length": 3, "kind": "mixture", "clusters": [{"mean": [0.0]}, {"mean": [1.5]}]},
        positions={"kind": "none"},
        teacher={"noise": 0.1},
        student={"rank": 2, "score": row},
        regularizer={"strength": [0.1, 0.2]},
        integration={"rule": "sobol", "nodes": 64},
        loss={"kind": "expression", "expression": loss, "parameters": {"beta": 1.0}},
        metrics={"distance": "(h0_0 - k0_0)**2", "of_a_function": entry_by_entry},
    )
    tables: dict[str, dict[str, Any]] = {"tokens": {"length": 2}, "loss": {"kind": "square"}}
    ap.Problem(**tables)
    problem = ap.Problem.from_dict(tables)
    assert_type(problem.tokens.length, int)
    assert_type(problem.metrics["distance"], str)
    ap.Problem.paper(0.3, mixing=[[0.3, 0.7], [0.8, 0.2]])
    ap.Problem.paper(0.3, mixing=np.full((2, 2), 0.5))
    ap.Problem(teacher=problem.teacher, loss=problem.loss)
    assert_type(problem.with_fields({"tokens.sigma": [0.4, 0.5]}, **{"teacher.omega": 0.2}), ap.Problem)
    assert_type(ap.Problem.from_toml(problem.to_toml()).hash, str)
    assert_type(ap.load_problem(Path("problem.toml")), ap.Problem)
    ap.register_score("cosine", row)
    measure = ap.Spectrum.of(problem)
    assert_type(measure.weights, NDArray[np.float64])
    ap.Problem(tokens=3)  # type: ignore[arg-type]
    ap.Problem(token={"length": 3})  # type: ignore[call-arg]
    ap.Problem(metrics={"distance": 3})  # type: ignore[dict-item]
    problem.tokens = problem.tokens  # type: ignore[misc]
    return problem


def one_point(problem: ap.Problem) -> None:
    settings = ap.SolverSettings(method="damped", tolerance=1e-6, max_seconds=60.0)
    point = ap.solve(problem, alpha=1.5, branch="semantic")
    assert_type(point, xr.Dataset)
    assert_type(float(point.test_error), float)
    assert_type(ap.solve(problem, 1.6, start=point), xr.Dataset)
    assert_type(ap.solutions(problem, 1.5, settings=settings), xr.Dataset)
    assert_type(ap.sensitivity(problem, 1.5, of="alpha"), xr.Dataset)
    assert_type(ap.one_rsb(problem, 1.5, y=[0.5, 1.0]), xr.Dataset)
    assert_type(ap.check(problem, experiment=False).passed, bool)
    assert_type(ap.derive(problem).latex, str)
    assert_type(ap.best_predictor(problem, "k0_0", "linear").error, float)
    ap.solve(problem, "1.5")  # type: ignore[arg-type]
    ap.solve(problem, 1.5, tolerances=1e-6)  # type: ignore[call-arg]
    number: float = ap.solve(problem, 1.5)  # type: ignore[assignment]
    ap.SolverSettings(tolerance="small")  # type: ignore[arg-type]
    _ = ap.sovle, number  # type: ignore[attr-defined]


def many_points(problem: ap.Problem) -> xr.Dataset:
    fields = {"tokens.sigma": [0.4, 0.5], "regularizer.strength": 0.01}
    grid = ap.sweep(problem, np.linspace(0.5, 2.0, 4), omega=[0.2, 0.3], fields=fields, output="sweep.nc")
    plan = ap.plan_sweep(problem, [1.0, 2.0], blocks=2, folder="plan")
    assert_type(plan.blocks, tuple[tuple[int, ...], ...])
    assert_type(ap.run_block("plan", 1), dict[str, xr.Dataset])
    assert_type(ap.merge_blocks(Path("plan")), xr.Dataset)
    assert_type(ap.follow(problem), xr.Dataset)
    assert_type(ap.tune(problem, alpha=[1.0, 2.0]), xr.Dataset)
    assert_type(ap.thresholds(problem, omega=[0.2, 0.3]), xr.Dataset)
    assert_type(ap.optimal(problem, alpha=[1.0, 2.0]), xr.Dataset)
    ap.save_dataset(grid, Path("sweep.nc"), force=True)
    assert_type(ap.validate_dataset(ap.load_dataset("sweep.nc")), xr.Dataset)
    ap.load_dataset(3)  # type: ignore[arg-type]
    return grid


def training(problem: ap.Problem, theory: xr.Dataset) -> None:
    runs = ap.simulate(problem, alpha=[1.0, 2.0], dimension=200, seeds=2)
    assert_type(runs, xr.Dataset)
    comparison = ap.compare(theory, runs)
    assert_type(comparison.within(3.0), bool | Any)
    figures.comparison_figure(comparison)
    flow = ap.flow(problem, {"semantic": 0.1, "noise": 1.0}, learning_rate=0.1)
    figures.trajectory_figure(ap.compare(flow, runs))
    assert_type(ap.stationary(problem), xr.Dataset)
    assert_type(figures.basins_figure(ap.basins(problem, omega=[0.1, 0.2])), Figure)
    ap.compare(theory)  # type: ignore[call-arg]


def drawn(theory: xr.Dataset, runs: xr.Dataset, found: xr.Dataset) -> None:
    figures.save_figure(figures.fig2(theory, omega=0.3), "fig2.pdf")
    drawn = [
        figures.fig3(theory, at={"tokens.sigma": 0.5}, thresholds=found),
        figures.fig9([theory], quantity="test_error"),
        figures.limits_figure(theory, limit=found),
        figures.gap_figure(theory, limit=found),
        figures.grid_figure(theory, runs),
        figures.scatter_figure(theory, runs),
        figures.attention_figure(runs),
        figures.learning_figure(runs),
        figures.FIGURES["fig2"](theory),
    ]
    assert_type(drawn, list[Figure])
    figures.loss_crossing(theory)
    ap.explore(theory, runs=runs).save(Path("page.html"), force=True)
    figures.fig2(ap.Problem())  # type: ignore[arg-type]


@given(testing.problems(testing.SHAPES[:2]), testing.models(testing.MODELS))
def properties(problem: ap.Problem, model: ap.Problem) -> None:
    assert problem.hash != model.hash


def strategies() -> list[SearchStrategy[dict[str, Any]]]:
    matrices = [testing.gram_matrices(2), testing.mixing_matrices(2)]
    assert_type(matrices, list[SearchStrategy[list[list[float]]]])
    return [testing.cluster_laws(2), testing.token_laws(2), testing.regularizers(), testing.teacher_priors()]


def faults() -> list[type[Exception]]:
    try:
        ap.Problem.paper(omega=1.5)
    except errors.ProblemError as error:
        assert_type(error.field, str)
        assert_type(error.exit_code, int)
    return [
        errors.AttnphaseError,
        errors.CacheError,
        errors.CompareError,
        errors.DatasetError,
        errors.ExperimentError,
        errors.MissingExtraError,
        errors.NotFoundError,
        errors.SolverError,
        errors.SpectrumError,
        errors.SweepError,
        errors.AttnphaseWarning,
        errors.MergedWarning,
        errors.NotConvergedWarning,
        errors.NotFoundWarning,
        errors.ReplicaSymmetryWarning,
        errors.UndecidedWarning,
        errors.ViolatedWarning,
    ]


if __name__ == "__main__":
    assert_type(ap.__version__, str)
    training(problems(), many_points(problems()))
