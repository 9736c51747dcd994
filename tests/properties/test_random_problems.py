"""Random problems over everything the theory covers: solved consistently, or flagged; never an unexpected exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnphase.dataset import from_points, validate_dataset
from attnphase.fixed_point import Status
from attnphase.problem import Problem
from attnphase.solve import SolverSettings, solve_point
from attnphase.spectrum import Spectrum
from attnphase.starts import branches_of
from attnphase.testing import SHAPES, problems

# a few nodes and maps: the question is whether the numbers agree, not how good they are
QUICK = SolverSettings(tolerance=1e-6, max_maps=50, threads=1)


SEVERAL_COLUMNS = [i for i, shape in enumerate(SHAPES) if Problem().with_fields(shape).columns > 1]
ONE_COLUMN = [i for i in range(len(SHAPES)) if i not in SEVERAL_COLUMNS]


@pytest.mark.slow
@pytest.mark.parametrize("shape", ONE_COLUMN)
@settings(
    deadline=None,
    max_examples=46,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
@given(data=st.data())
def test_a_random_problem_is_solved_consistently_or_flagged(shape, data):
    assert_consistent_or_flagged(shape, data)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SEVERAL_COLUMNS)
@settings(
    deadline=None,
    max_examples=6,  # beyond the ridge a solve takes seconds
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
)
@given(data=st.data())
def test_a_random_problem_of_several_columns_likewise(shape, data):
    assert_consistent_or_flagged(shape, data)


def assert_consistent_or_flagged(shape, data):
    problem = data.draw(problems(shapes=[SHAPES[shape]], nodes=4))
    assert Problem.from_toml(problem.to_toml()) == problem
    alpha = data.draw(st.sampled_from([0.4, 0.9, 1.7, 3.1]))
    branch = data.draw(st.sampled_from(branches_of(problem)))
    point = solve_point(problem, alpha, branch, settings=QUICK)
    ds = validate_dataset(from_points([point], {}))
    assert ds.status.item() == point.status
    if point.status is not Status.converged:
        assert point.residual > QUICK.tolerance
        return
    assert point.residual <= QUICK.tolerance
    values, spectrum = point.values, Spectrum.of(problem)
    # two expressions of the training loss
    size = abs(values["training_loss"])
    assert values["free_energy_gap"] <= 1e-4 * size + 1e-9
    # a law of weights, teacher and tokens with these overlaps exists
    assert point.restart.overlaps.feasible(spectrum.rho)
    assert values["test_error"] >= -1e-12
    assert 0 <= values["density"] <= 1 + 1e-9
    # |W|^2/d bounds every q by the largest eigenvalue of its covariance
    traces = np.trace(values["q"], axis1=-2, axis2=-1)
    assert np.all(traces <= spectrum.gamma.max(axis=1) * values["weight_norm"] * (1 + 1e-6) + 1e-9)
