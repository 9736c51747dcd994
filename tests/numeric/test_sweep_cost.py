"""What lines are estimated to cost, and blocks of lines that cost much the same."""

import statistics
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given

from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.problem import Problem
from attnphase.sweeps.cost import balanced, seconds_of
from attnphase.sweeps.line import Line


def seconds(branch="semantic", omega=0.3, points=25, settings=None, **integration):
    fields = {f"integration.{name}": value for name, value in integration.items()}
    problem = Problem.paper(omega=omega).with_fields(fields)
    return seconds_of(Line(problem, branch, tuple(np.linspace(0.05, 2, points)), settings or SolverSettings(), ""))


# processor seconds of lines of 25 points, alpha from 0.05 to 2, tolerance 1e-6, as docs/large-sweeps.md has them
MEASURED = [
    ("semantic", 0.3, {}, 9.3),
    ("positional", 0.3, {}, 17.1),
    ("uninformed", 0.3, {}, 2.4),
    ("semantic", 0.1, {"rule": "sobol", "nodes": 1024}, 3.3),
    ("semantic", 0.42, {"rule": "sobol", "nodes": 1024}, 3.9),
    ("positional", 0.1, {"rule": "sobol", "nodes": 1024}, 15.6),
    ("positional", 0.3, {"rule": "sobol", "nodes": 1024}, 4.1),
    ("positional", 0.42, {"rule": "sobol", "nodes": 1024}, 3.5),
    ("uninformed", 0.3, {"rule": "sobol", "nodes": 1024}, 1.8),
    ("semantic", 0.3, {"rule": "sobol", "nodes": 256}, 2.5),
    ("positional", 0.1, {"rule": "sobol", "nodes": 256}, 7.1),
    ("positional", 0.3, {"rule": "sobol", "nodes": 256}, 1.8),
    ("uninformed", 0.3, {"rule": "sobol", "nodes": 256}, 0.82),
    ("semantic", 0.3, {"rule": "sobol", "nodes": 64}, 1.9),
    ("positional", 0.1, {"rule": "sobol", "nodes": 64}, 6.1),
    ("positional", 0.3, {"rule": "sobol", "nodes": 64}, 2.4),
    ("positional", 0.42, {"rule": "sobol", "nodes": 64}, 1.6),
    ("uninformed", 0.3, {"rule": "sobol", "nodes": 64}, 1.0),
]
# with 64 nodes, by what else is left out
LEFT_OUT = [
    ("semantic", 0.3, ["stability"], 1.3),
    ("semantic", 0.3, ["identity"], 1.3),
    ("semantic", 0.3, ["stability", "identity"], 0.78),
    ("positional", 0.1, ["identity"], 2.9),
    ("positional", 0.3, ["stability", "identity"], 0.94),
    ("uninformed", 0.3, ["stability"], 0.47),
    ("uninformed", 0.3, ["identity"], 1.1),
]


@pytest.mark.parametrize(("branch", "omega", "integration", "measured"), MEASURED)
def test_estimates_are_those_that_were_measured(branch, omega, integration, measured):
    assert 1 / 2.1 < seconds(branch, omega, **integration) / measured < 2.1


@pytest.mark.parametrize(("branch", "omega", "names", "measured"), LEFT_OUT)
def test_estimates_know_what_is_left_out(branch, omega, names, measured):
    settings = replace(SolverSettings(), **dict.fromkeys(names, False))
    assert 1 / 2.1 < seconds(branch, omega, settings=settings, rule="sobol", nodes=64) / measured < 2.1


def test_what_a_line_costs_more_for():
    assert seconds("positional") > 2 * seconds("semantic") > 2 * seconds("uninformed")
    assert seconds(points=50) == pytest.approx(2 * seconds(points=25))
    assert seconds("positional", 0.1) > seconds("positional", 0.25) > seconds("positional", 0.45)
    assert seconds("positional", standard_error=5e-3) < seconds("positional") / 3
    # where no more nodes are allowed, a smaller error costs nothing
    few = SolverSettings(max_nodes=2**14)
    assert seconds("positional", settings=few, standard_error=1e-4) == seconds("positional", settings=few)
    for rule in ("published", "gauss-hermite"):
        assert 0 < seconds("positional", rule=rule) < seconds("positional")


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=60), st.integers(1, 20))
@example([1.0] * 7, 7)
def test_parts_are_whole_and_even(costs, parts):
    parts = min(parts, len(costs))
    found = balanced(costs, parts)
    assert len(found) == parts
    assert sorted(i for part in found for i in part) == list(range(len(costs)))
    assert all(found)
    loads = [sum(costs[i] for i in part) for part in found]
    # no part could give its cheapest away to a lighter one
    for part, load in zip(found, loads, strict=True):
        if len(part) > 1:
            assert load - min(costs[i] for i in part) <= min(loads) + 1e-9 * load


@pytest.mark.parametrize("parts", [5, 10, 20, 25])
def test_a_field_that_the_estimate_does_not_know_has_its_share_everywhere(parts):
    """Of 20 by 10 lines, which the estimate takes for alike, those of the last value cost ten times the first's."""
    true = [1.0 + i % 10 for i in range(200)]
    loads = [sum(true[i] for i in part) for part in balanced([1.0] * 200, parts)]
    assert max(loads) < 1.35 * statistics.mean(loads)
