"""Random problems are solved consistently, or flagged; there is never an unexpected exception.

`make test` draws every number, law and regulariser of the twelve models that it compiles, `make test-long` all shapes.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from models import MODELS

import attnphase as ap
from attnphase import testing

NODES = 16  # few: the question is whether the numbers agree, not how good they are
QUICK = ap.SolverSettings(tolerance=1e-6, max_maps=100, threads=1, max_nodes=2**10)
UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
BY_SHAPE = ("paper", "noisy", "untied", "rank 2", "three tokens", "linear", "square", "logistic")


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(0, 1000).map(lambda i: round(low + (high - low) * i / 1000, 6))


def of_formula(name: str, **parameters: tuple[float, float]) -> Mapping[str, Any]:
    """Numbers of the loss, a law of one token, its regulariser and its teacher's prior."""
    own, known = dict(MODELS[name]), MODELS[name]["loss.parameters"]
    drawn = {key: numbers(*parameters[key]) if key in parameters else st.just(value) for key, value in known.items()}
    own["loss.parameters"] = st.fixed_dictionaries(drawn).map(lambda found: {key: found[key] for key in known})
    if name != "heads":
        own["regularizer"] = testing.regularizers()
    if "tokens.clusters" in own:
        return own | {"tokens.clusters": testing.MODELS[4]["tokens.clusters"], "tokens.law": testing.cluster_laws([2])}
    return own | {"tokens.sigma": numbers(0.6, 1.1), "teacher.noise": numbers(0.01, 0.3)} if name == "kinks" else own


TERMS = {"square": (0, 1), "logistic": (0.2, 1), "scale": (0.5, 2), "shift": (-1, 1), "apart": (-1, 1), "b": (-1, 1)}
KINKS = {"quantile": (0.1, 1), "tau": (0.1, 0.9), "square": (0, 1), "hinge": (0, 1), "modulus": (0, 1)}
KINKS["b"] = (-0.5, 0.5)
OTHERS = {
    "terms": of_formula("terms", **TERMS),
    "trained": of_formula("trained", logistic=(0.2, 1), square=(0, 1), b=(-0.5, 0.5)),
    "kinks": of_formula("kinks", **KINKS),
    "heads": of_formula("heads", heads=(0.1, 1), share=(0, 1), located=(0, 1), beta=(0.5, 2)),
}


def strategy_of(name: str) -> st.SearchStrategy[ap.Problem]:
    if name not in BY_SHAPE:
        return testing.models([OTHERS[name]], NODES).map(lambda one: one.with_fields({"positions.kind": "none"}))
    kept = ("tokens.length", "student.", "teacher.", "loss.kind")
    shape = {key: value for key, value in MODELS[name].items() if key.startswith(kept)}
    return testing.problems([shape], NODES)


@pytest.mark.parametrize("name", MODELS)
def test_random_problems_of_the_compiled_models_are_solved_or_flagged(name):
    assert_most_are_solved(strategy_of(name), 3, [*MODELS].index(name))


@pytest.mark.long
@pytest.mark.parametrize("shape", testing.SHAPES, ids=lambda shape: ", ".join(map(str, shape.values())))
def test_random_problems_of_all_shapes_are_solved_or_flagged(shape):
    kinks = shape.get("student.score") == "relu"
    assert_most_are_solved(testing.problems([shape], NODES), 60, testing.SHAPES.index(shape), 0.2 if kinks else 0.5)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(testing.MODELS)))
def test_random_models_of_formulas_are_solved_or_flagged(number):
    assert_most_are_solved(testing.models(testing.MODELS[number], NODES), 60, number)


def assert_most_are_solved(strategy: st.SearchStrategy[ap.Problem], count: int, draws: int, floor: float = 0.5) -> None:
    """Of so many problems; `draws` are others for every strategy, `floor` is the least share that converges."""
    found: Counter[int] = Counter()

    @settings(max_examples=count, suppress_health_check=UNHURRIED, phases=[Phase.explicit, Phase.generate])
    @given(data=st.data())
    def draw(data):
        problem = data.draw(strategy)
        alpha = data.draw(st.sampled_from([0.9, 1.7, 3.1]))
        branches = ["semantic", "uninformed"] + ["positional"] * (problem.positions.kind != "none")
        found[consistent_or_flagged(problem, alpha, data.draw(st.sampled_from(branches)))] += 1

    (seed(draws)(draw) if settings.default is not None and settings.default.derandomize else draw)()
    assert found.total() >= count
    assert found[0] >= floor * found.total(), found


def assert_is_its_own_copy(problem: ap.Problem) -> None:
    for copy in (ap.Problem.from_toml(problem.to_toml()), ap.Problem.from_dict(problem.to_dict())):
        assert copy == problem
        assert copy.hash == problem.hash


def consistent_or_flagged(problem: ap.Problem, alpha: float, branch: Any) -> int:
    """Return the status of a point whose numbers agree with one another."""
    assert_is_its_own_copy(problem)
    point = ap.validate_dataset(ap.solve(problem, alpha, branch, settings=QUICK))
    status, residual = int(point.status), float(point.residual)
    if status:
        # where the equations have no numbers there is no residual either
        assert residual > QUICK.tolerance or (status == 2 and np.isnan(residual))
        return status
    # two expressions of the training loss
    assert float(point.free_energy_gap) <= 1e-4 * abs(float(point.training_loss)) + 1e-9
    if not problem.loss.norms and not OTHER_SIGN & set(problem.loss.numbers):  # with which a loss may be negative
        assert float(point.test_error) >= -1e-12
    assert 0 <= float(point.density) <= 1 + 1e-9
    q, V = (point[name].to_numpy() for name in ("q", "V"))
    for matrices in (q, V) if q.ndim > 2 else ():
        # clusters that a token has not are missing
        assert np.linalg.eigvalsh(np.nan_to_num(matrices)).min() >= -1e-9 * np.nanmax(np.abs(matrices))
    # |W|^2/d bounds every q by the largest eigenvalue of its covariance
    if problem.tokens.clusters is None and problem.tokens.spectrum is None:
        largest = np.max(np.square(np.array(problem.tokens.sigma)))
        traces = np.trace(q, axis1=-2, axis2=-1)
        assert (traces <= largest * float(point.weight_norm) * (1 + 1e-6 + residual) + 1e-9).all()
    return status


OTHER_SIGN = {"line", "hill"}
