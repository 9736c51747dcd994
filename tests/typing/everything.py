"""A user's program that calls everything public, for mypy and pyright: it is checked by `make lint` and never run.

Lines that a checker must refuse end with a ``type: ignore``, which is itself refused where it is not needed.
"""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import xarray as xr
from hypothesis import given
from hypothesis.strategies import SearchStrategy
from matplotlib.figure import Figure
from numpy.typing import NDArray

import attnphase as ap

Rows = NDArray[Any]


def loss(h: Rows, k: Rows, noise: Rows, c: Rows, beta: float = 2.0) -> Any:
    student, teacher = ap.functions.softmax(beta * h @ h.T), ap.functions.softmax(k @ k.T, causal=True)
    assert_type(student, Rows)
    chosen = ap.functions.hardmax(k[:, 0]) @ k[:, 0] + ap.functions.argmax(k[:, 0])
    return ((student - teacher - noise) ** 2).sum() + ap.functions.relu(beta) * (chosen - c @ h[:, 0]) ** 2


def entry_by_entry(h: Rows, k: Rows, width: float = 1.0) -> Any:
    waves = [ap.functions.cos(h), ap.functions.sin(h), ap.functions.cosh(h), ap.functions.sinh(h), ap.functions.tanh(h)]
    others = [
        ap.functions.abs(h),
        ap.functions.exp(h),
        ap.functions.log(h),
        ap.functions.sigmoid(h),
        ap.functions.sign(k),
    ]
    assert_type(waves + others, list[Rows])
    numbers = [ap.functions.sqrt(width), ap.functions.softplus(width), ap.functions.min(h), ap.functions.max(h)]
    assert_type(numbers, list[float])
    ap.functions.softmax(width)  # type: ignore[arg-type]
    return sum(numbers) * sum((x**2).sum() for x in waves + others) + ap.functions.max(h[0, 0], k[0, 0])


def row(logits: list[Any]) -> list[Any]:
    return [z / ap.functions.sqrt(1 + sum(y**2 for y in logits)) for z in logits]


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
    ap.Problem.paper(0.3, sigma=0.6, strength=0.02, mixing=np.full((2, 2), 0.5))
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
    settings = ap.SolverSettings(method="damped", tolerance=1e-6, max_seconds=60.0, threads=2)
    point = ap.solve(problem, alpha=1.5, branch="semantic", settings=settings)
    assert_type(point, xr.Dataset)
    assert_type(float(point.test_error), float)
    assert_type(ap.solve(problem, 1.6, start=point), xr.Dataset)
    assert_type(ap.solutions(problem, 1.5, settings=settings), xr.Dataset)
    assert_type(ap.sensitivity(problem, 1.5, "alpha", "all"), xr.Dataset)
    assert_type(ap.one_rsb(problem, 1.5, y=[0.5, 1.0]), xr.Dataset)
    assert_type(ap.check(problem, experiment=False).passed, bool)
    assert_type(ap.derive(problem).latex, str)
    assert_type(ap.best_predictor(problem, "k0_0", "linear").error, float)
    ap.solve(problem, "1.5")  # type: ignore[arg-type]
    ap.solve(problem, 1.5, "semantik")  # type: ignore[arg-type]
    ap.solve(problem, 1.5, tolerance=1e-6)  # type: ignore[call-arg]
    ap.SolverSettings(method="euler")  # type: ignore[arg-type]
    number: float = ap.solve(problem, 1.5)  # type: ignore[assignment]
    ap.SolverSettings(tolerance="small")  # type: ignore[arg-type]
    _ = ap.sovle, number  # type: ignore[attr-defined]


Words = (
    ap.interface.BayesOptimalStart
    | ap.interface.DtypeName
    | ap.interface.LimitName
    | ap.interface.Lowest
    | ap.interface.MethodName
    | ap.interface.OneRsbStart
    | ap.interface.OptimizerName
    | ap.interface.PredictorKind
)
Results = (
    ap.interface.BestPredictor
    | ap.interface.BranchPoint
    | ap.interface.Check
    | ap.interface.Derivation
    | ap.interface.ExplorePage
    | ap.interface.Overlaps
    | ap.interface.Plan
    | ap.interface.Report
    | ap.interface.Sizes
    | ap.interface.SizesLike
    | ap.interface.Threshold
    | ap.interface.TrajectoryComparison
)


Sections = (
    ap.interface.Integration
    | ap.interface.Loss
    | ap.interface.Positions
    | ap.interface.Regularizer
    | ap.interface.Student
    | ap.interface.Teacher
    | ap.interface.Tokens
)


def words(
    given: Words | Sections,
    numbers: ap.interface.HasArray | ap.interface.Number | ap.interface.Wholes,
    results: Results,
) -> str:
    return f"{given} {numbers} {results}"


def each(problem: ap.Problem, branch: ap.interface.Branches, alpha: ap.interface.Numbers) -> list[xr.Dataset]:
    names: list[ap.interface.BranchName] = ["semantic", "positional"]
    return [*(ap.solve(problem, 1.0, name) for name in names), ap.sweep(problem, alpha, branch=branch)]


def many_points(problem: ap.Problem) -> xr.Dataset:
    fields = {"tokens.sigma": [0.4, 0.5], "regularizer.strength": 0.01}
    grid = ap.sweep(problem, np.linspace(0.5, 2.0, 4), omega=[0.2, 0.3], branch=["semantic", "mixed"], fields=fields)
    plan = ap.plan_sweep(problem, [1.0, 2.0], blocks=2, folder="plan")
    assert_type(plan.blocks, tuple[tuple[int, ...], ...])
    assert_type(ap.run_block("plan", 1), dict[str, xr.Dataset])
    assert_type(ap.merge_blocks(Path("plan")), xr.Dataset)
    assert_type(ap.follow(problem, 2.0, "tokens.sigma", [0.4, 0.6]), xr.Dataset)
    assert_type(ap.tune(problem, alpha=[1.0, 2.0], between=[0.01, 1]), xr.Dataset)
    assert_type(ap.thresholds(problem, [0.5, 2.0], omega=[0.2, 0.3]), xr.Dataset)
    assert_type(ap.bayes_optimal(problem, alpha=[1.0, 2.0], start="informed"), xr.Dataset)
    ap.save_dataset(grid, Path("sweep.nc"), force=True)
    assert_type(ap.validate_dataset(ap.load_dataset("sweep.nc")), xr.Dataset)
    ap.load_dataset(3)  # type: ignore[arg-type]
    return grid


def training(problem: ap.Problem, theory: xr.Dataset) -> None:
    runs = ap.simulate(problem, alpha=[1.0, 2.0], dimension=200, seeds=2)
    assert_type(runs, xr.Dataset)
    comparison: ap.interface.Comparison = ap.compare(theory, runs)
    assert_type(comparison.within(3.0), bool)
    ap.figures.comparison_figure(comparison)
    flow = ap.sgd_flow(problem, {"semantic": 0.1, "noise": 1.0}, learning_rate=0.1)
    ap.figures.trajectory_figure(ap.compare(flow, runs))
    assert_type(ap.stationary(problem), xr.Dataset)
    assert_type(ap.figures.basins_figure(ap.basins(problem, omega=[0.1, 0.2])), Figure)
    ap.compare(theory)  # type: ignore[call-arg]


def drawn(theory: xr.Dataset, runs: xr.Dataset, found: xr.Dataset) -> None:
    ap.figures.save_figure(ap.figures.fig2(theory, omega=0.3), "fig2.pdf")
    drawn = [
        ap.figures.fig3(theory, at={"tokens.sigma": 0.5}, thresholds=found),
        ap.figures.fig9([theory], quantity="test_error"),
        ap.figures.limits_figure(theory, limit=found),
        ap.figures.gap_figure(theory, limit=found),
        ap.figures.grid_figure(theory, runs),
        ap.figures.scatter_figure(theory, runs),
        ap.figures.attention_figure(runs),
        ap.figures.learning_figure(runs),
        ap.figures.FIGURES["fig2"](theory),
    ]
    assert_type(drawn, list[Figure])
    ap.figures.loss_crossing(theory)
    ap.explore(theory, runs=runs).save(Path("page.html"), force=True)
    ap.figures.fig2(ap.Problem())  # type: ignore[arg-type]


def options_of_theories(problem: ap.Problem, point: xr.Dataset, start: ap.interface.Overlaps) -> None:
    alpha, settings = point["alpha"], ap.SolverSettings(max_maps=200, max_nodes=2**14, stability=False, identity=False)
    ap.solve(problem, alpha, "mixed", start=start, settings=settings, progress=True)
    ap.solve(problem, np.int64(2), progress=None)
    ap.solve(problem, alpha.to_numpy()[0])
    ap.thresholds(problem, np.array([0.5, 2.0]))
    ap.follow(problem, 2.0, "teacher.omega", np.array([0.1, 0.2]))
    ap.solutions(problem, np.float32(1.5), starts=3, seed=4, settings=settings, progress=False)
    ap.sensitivity(problem, alpha, "tokens.sigma", branch="positional", settings=settings, progress=True)
    ap.follow(
        problem,
        alpha=alpha,
        field="teacher.omega",
        between=(0.1, 0.5),
        branch="all",
        at=0.3,
        start=start,
        settings=settings,
        progress=True,
    )
    ap.tune(
        problem,
        alpha,
        field="student.temperature",
        metric="training_loss",
        branch="lowest",
        between=np.array([0.5, 2.0]).tolist(),
        settings=settings,
        progress=True,
    )
    ap.one_rsb(
        problem, alpha, "all", y=0.5, start="replica-symmetric", outer=64, inner=32, settings=settings, progress=True
    )
    ap.one_rsb(problem, 1.5, start=point)
    ap.thresholds(
        problem,
        alpha=(0.5, 2.0),
        fields={"tokens.sigma": [0.4, 0.5]},
        transitions=True,
        settings=settings,
        on_step=lambda: None,
        progress=True,
    )
    ap.bayes_optimal(
        problem,
        alpha,
        fields={"teacher.noise": [0.1]},
        channel="sign",
        start=["uninformed", "informed"],
        thresholds=True,
        settings=settings,
        checkpoint=Path("limit.checkpoint"),
        progress=True,
    )
    ap.check(
        problem,
        alpha,
        "semantic",
        settings=settings,
        experiment=False,
        on_check=lambda one: print(one.passed),
        progress=True,
    )
    ap.derive(problem, concrete=True, limit="sgd_flow", progress=True)
    ap.best_predictor(problem, entry_by_entry, "pooled", nodes=2**15)
    ap.follow(problem, "alpha")  # type: ignore[arg-type]
    ap.derive(problem, limit="trainde")  # type: ignore[arg-type]
    ap.one_rsb(problem, 1.5, start="uninformed")  # type: ignore[arg-type]
    ap.tune(problem, 1.5, branch="lowset")  # type: ignore[arg-type]
    ap.bayes_optimal(problem, 1.5, start=["informde"])  # type: ignore[list-item]


def options_of_sweeps(problem: ap.Problem, alpha: xr.DataArray) -> None:
    settings = ap.SolverSettings(method="anderson")
    ap.sweep(
        problem,
        alpha,
        0.3,
        "all",
        settings=settings,
        refine=True,
        workers=2,
        scheduler=None,
        shard="1/2",
        output="sweep.nc",
        resume="fitting",
        force=True,
        progress=True,
    )
    ap.plan_sweep(
        problem,
        alpha,
        omega=[0.2, 0.3],
        branch=("semantic",),
        blocks=2,
        folder=Path("plan"),
        fields={"tokens.sigma": [0.4]},
        settings=settings,
        force=True,
    )
    ap.run_block(folder="plan", block=1, workers=2, progress=True)
    ap.merge_blocks(folder="plan", output="sweep.nc", force=True)
    ap.sweep(problem, alpha, branch=["semantic", "positionnal"])  # type: ignore[list-item]
    ap.sweep(problem, alpha, resume="fits")  # type: ignore[arg-type]


def options_of_training(problem: ap.Problem, theory: xr.Dataset, weights: NDArray[np.float64]) -> None:
    runs = ap.simulate(
        problem,
        theory["alpha"],
        ["semantic", "positional"],
        [100, 200],
        4,
        "adam",
        seed=3,
        steps=100,
        tolerance=1e-6,
        learning_rate=0.1,
        damping=0.5,
        trajectory=10,
        batch=None,
        channel=None,
        test_samples=0,
        device="cpu",
        dtype="float32",
        checkpoint="runs.checkpoint",
        checkpoint_interval=60.0,
        progress=True,
    )
    ap.simulate(problem, 1.5, weights, np.int64(100))
    ap.compare(theory, experiment=runs, problem=problem, progress=True)
    sizes = ap.interface.Sizes(semantic=0.2)
    ap.sgd_flow(problem, [sizes, "noise=0.1"], 0.1, until=20.0, batch=2, records=11, tolerance=1e-5, progress=True)
    ap.stationary(problem, learning_rate=0.1, batch=2, starts=3, seed=4, progress=True)
    flows = ap.basins(
        problem,
        omega=0.3,
        scale=[0.1, 0.2],
        angle=[0.0, 45.0],
        noise=0.1,
        learning_rate=0.1,
        batch=2,
        until=100.0,
        checkpoint="basins.checkpoint",
        progress=True,
    )
    ap.figures.basins_figure(flows, runs=runs)
    ap.figures.attention_figure(runs, run=1)
    ap.simulate(problem, 1.5, start=3)  # type: ignore[arg-type]
    ap.simulate(problem, 1.5, optimizer="adma")  # type: ignore[arg-type]
    ap.simulate(problem, 1.5, dtype="float16")  # type: ignore[arg-type]
    ap.sgd_flow(problem, [3])  # type: ignore[list-item]


def options_of_figures(theory: xr.Dataset, runs: xr.Dataset, found: xr.Dataset) -> None:
    at = {"tokens.sigma": 0.5}
    ap.figures.fig2(theory, experiments=False, at=at)
    ap.figures.fig9((theory,), experiments=False, at=at)
    ap.figures.limits_figure(theory, limit=found, at=at)
    ap.figures.gap_figure(theory, limit=found, at=at)
    ap.explore(theory, runs=runs, thresholds=found)


def published(problem: ap.Problem, start: ap.interface.Overlaps) -> list[ap.interface.Overlaps]:
    assert_type(ap.reference.read_reference(name="fig2_theory"), NDArray[Any])
    ap.reference.published_runs(problem=problem.to_dict())
    mixing = ap.Problem.paper(0.3, mixing=ap.reference.SECOND_MIXING)
    return [*ap.tracking.iterates(mixing, alpha=1.5, start=start, steps=3, points=512)]


@given(ap.testing.problems(ap.testing.SHAPES[:2], nodes=8), ap.testing.models(ap.testing.MODELS, nodes=8))
def properties(problem: ap.Problem, model: ap.Problem) -> None:
    assert problem.hash != model.hash


def strategies() -> list[SearchStrategy[dict[str, Any]]]:
    matrices = [ap.testing.gram_matrices(2, largest=2.0), ap.testing.mixing_matrices(2)]
    assert_type(matrices, list[SearchStrategy[list[list[float]]]])
    return [
        ap.testing.cluster_laws(2),
        ap.testing.token_laws(2),
        ap.testing.regularizers(columns=2),
        ap.testing.teacher_priors(),
    ]


def faults() -> list[type[Exception]]:
    try:
        ap.Problem.paper(omega=1.5)
    except ap.errors.ProblemError as error:
        assert_type(error.field, str)
        assert_type(error.exit_code, int)
    return [
        ap.errors.AttnphaseError,
        ap.errors.CacheError,
        ap.errors.CompareError,
        ap.errors.DatasetError,
        ap.errors.ExperimentError,
        ap.errors.MissingExtraError,
        ap.errors.NotFoundError,
        ap.errors.SolverError,
        ap.errors.SpectrumError,
        ap.errors.SweepError,
        ap.errors.AttnphaseWarning,
        ap.errors.MergedWarning,
        ap.errors.NotConvergedWarning,
        ap.errors.NotFoundWarning,
        ap.errors.ReplicaSymmetryWarning,
        ap.errors.UndecidedWarning,
        ap.errors.ViolatedWarning,
    ]


if __name__ == "__main__":
    assert_type(ap.__version__, str)
    training(problems(), many_points(problems()))
