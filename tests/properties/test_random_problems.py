"""Random problems over everything the theory covers: solved consistently, or flagged; never an unexpected exception."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnphase.data.build import from_points
from attnphase.data.validate import validate_dataset
from attnphase.fixed_points.run import MISSED
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.starts import branches_of
from attnphase.testing import MODELS, SHAPES, models, problems, regularizers

# few nodes: the question is whether the numbers agree, not how good they are; with fewer most maps are staircases
NODES = 16
# identity looks at as many nodes as there may be, which a staircase keeps busy for minutes
QUICK = SolverSettings(tolerance=1e-6, max_maps=100, threads=1, max_nodes=2**10)
# lowest share of draws that must converge: four of five do, of students whose score has a kink from a third to a half
FLOOR, FLOOR_WITH_KINKS = 0.5, 0.2
# what is drawn depends on the modules that other tests have imported: so many that a share is not missed by chance
FEW, FEW_WITH_KINKS = 3, 12
UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
KINKS = [i for i, shape in enumerate(SHAPES) if shape.get("student.score") == "relu"]
NUMBERS = pytest.mark.parametrize("shape", range(len(SHAPES)), ids=lambda i: ", ".join(map(str, SHAPES[i].values())))


@pytest.mark.slow
@NUMBERS
def test_random_problems_are_solved_consistently_or_flagged(shape):
    assert_most_are_solved(*of_shape(shape, FEW_WITH_KINKS if shape in KINKS else FEW))


@pytest.mark.slow
@pytest.mark.long
@NUMBERS
def test_many_random_problems_are_solved_consistently_or_flagged(shape):
    assert_most_are_solved(*of_shape(shape, 60))


def of_shape(shape: int, count: int) -> tuple[SearchStrategy[Problem], int, int, float]:
    return problems([SHAPES[shape]], NODES), count, shape, FLOOR_WITH_KINKS if shape in KINKS else FLOOR


# the first four have two tokens with columns or laws of all kinds: a minute and a half to compile, left to the long run
@pytest.mark.slow
@pytest.mark.parametrize("number", range(4, len(MODELS)))
def test_random_models_are_solved_consistently_or_flagged(number):
    assert_most_are_solved(models(MODELS[number], NODES), FEW, number)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MODELS)))
def test_many_random_models_are_solved_consistently_or_flagged(number):
    assert_most_are_solved(models(MODELS[number], NODES), 60, number)


def assert_most_are_solved(strategy: SearchStrategy[Problem], count: int, draws: int, floor: float = FLOOR) -> None:
    """Of so many problems; `draws` are others for every strategy."""
    found: Counter[Status] = Counter()

    @settings(max_examples=count, suppress_health_check=UNHURRIED, phases=[Phase.explicit, Phase.generate])
    @given(data=st.data())
    def draw(data):
        problem = data.draw(strategy)
        alpha = data.draw(st.sampled_from([0.9, 1.7, 3.1]))
        branch = data.draw(st.sampled_from(branches_of(problem)))
        found[consistent_or_flagged(problem, alpha, branch)] += 1

    (seed(draws)(draw) if settings.default is not None and settings.default.derandomize else draw)()
    assert found.total() >= count
    assert found[Status.converged] >= floor * found.total(), found


def assert_is_its_own_copy(problem: Problem) -> None:
    for copy in (Problem.from_toml(problem.to_toml()), Problem.from_dict(problem.to_dict())):
        assert copy == problem
        assert copy.hash == problem.hash


def consistent_or_flagged(problem: Problem, alpha: float, branch: str) -> Status:
    assert_is_its_own_copy(problem)
    point = solve_point(problem, alpha, branch, settings=QUICK)
    ds = validate_dataset(from_points([point], {}))
    assert ds.status.item() == point.status
    spectrum = Spectrum.of(problem)
    if point.status is not Status.left_domain:
        # a law of weights, teacher and tokens with these overlaps exists
        assert point.restart.overlaps.feasible(spectrum.rho)
    if point.status is not Status.converged:
        # where the equations have no numbers there is no residual either
        no_numbers = point.status is Status.left_domain and np.isnan(point.residual)
        assert no_numbers or point.residual > QUICK.tolerance
        return point.status
    rule = point.restart.rule
    jumps = MISSED * problem.integration.standard_error if rule is not None and rule.randomised else 0.0
    assert point.residual <= max(QUICK.tolerance, jumps)
    values = point.values
    # two expressions of the training loss
    size = abs(values["training_loss"])
    assert values["free_energy_gap"] <= 1e-4 * size + 1e-9
    if not problem.loss.norms:  # with which a loss may be negative
        assert values["test_error"] >= -1e-12
    assert 0 <= values["density"] <= 1 + 1e-9
    # |W|^2/d bounds every q by the largest eigenvalue of its covariance; it is that of the image, a residual away
    traces, rounding = np.trace(values["q"], axis1=-2, axis2=-1), 1e-6 + point.residual
    assert np.all(traces <= spectrum.gamma.max(axis=1) * values["weight_norm"] * (1 + rounding) + 1e-9)
    return point.status


@pytest.mark.parametrize("number", range(len(MODELS)))
@settings(max_examples=5, suppress_health_check=UNHURRIED)
@given(data=st.data())
def test_random_models_are_what_their_files_say(number, data):
    assert_is_its_own_copy(data.draw(models(MODELS[number])))


def test_a_ridge_for_each_column_is_drawn():
    found = find(regularizers(3), lambda drawn: isinstance(drawn["regularizer.strength"], list))
    assert found["regularizer.kind"] == "ridge"
    assert len(found["regularizer.strength"]) == 3
