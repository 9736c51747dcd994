"""A change of units changes no result: fields in other units, and a temperature that the weights take up.

Tokens and encodings times c, with both temperatures and the penalty times c^2, leave the weights: fields are c times,
and losses c^2 times what they were. Where the loss compares the student's field with a sign, the weights are 1/c times
as large instead, and losses stay. A student's temperature times T, with the penalty's curvature over T, makes the
weights ``sqrt(T)`` times as large and nothing else. Every expected number is that of the problem before the change,
times a power of c and of T that follows from this.
"""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.verdict import IDENTITIES
from attnphase.problem.problem import Problem
from attnphase.state_evolution.map import _news
from attnphase.state_evolution.overlaps import Conjugates
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.starts import has_directions, informed_signal, initial_overlaps, vanishes
from attnphase.state_evolution.system import System

ONE_THREAD = SolverSettings(threads=1)
COMMON = {
    "tokens.sigma": [0.47, 0.58],
    "teacher.omega": 0.23,
    "regularizer.strength": 0.012,
    "integration.rule": "sobol",
    "integration.nodes": 32,
}
ONE_TOKEN = {"tokens.length": 1, "tokens.sigma": 0.68, "positions.kind": "none"}
CLUSTERS = [[{"sigma": 0.42, "mean": [0.5]}, {"sigma": 0.61, "mean": [-0.8]}], [{"sigma": 0.52, "mean": [0.2]}]]


@dataclass(frozen=True)
class Case:
    """A problem with the branch and the sample complexity where it is solved."""

    fields: dict[str, Any]
    alpha: float
    branch: str = "semantic"

    @property
    def problem(self) -> Problem:
        # encodings as their products, whose units can be changed
        encodings = {"positions.gram": [[1.1, -0.9], [-0.9, 0.95]]} if "tokens.length" not in self.fields else {}
        return Problem().with_fields({**COMMON, **encodings, **self.fields})


CASES = {
    "softmax": Case({}, 2.2),
    "positional": Case({}, 0.9, "positional"),
    "uninformed": Case({}, 1.4, "uninformed"),
    "untied": Case({"student.tied": False}, 2.4),
    "rank two": Case({"student.rank": 2, "teacher.rank": 2}, 3.1),
    "linear": Case({"student.score": "linear", "teacher.score": "linear"}, 1.6),
    "causal": Case({"student.causal": True, "teacher.causal": True}, 2.1),
    "three tokens": Case(
        {
            "tokens.length": 3,
            "tokens.sigma": [0.45, 0.62, 0.53],
            "positions.gram": [[1.1, -0.4, 0.1], [-0.4, 0.8, -0.2], [0.1, -0.2, 0.9]],
        },
        2.6,
    ),
    "square": Case({**ONE_TOKEN, "loss.kind": "square", "teacher.noise": 0.1}, 1.4),
    "logistic": Case({**ONE_TOKEN, "loss.kind": "logistic"}, 1.4),
    "hinge": Case({**ONE_TOKEN, "loss.kind": "hinge"}, 1.4),
    "values": Case({"loss.kind": "values", "loss.width": 1}, 2.0),
    "lasso": Case({"regularizer.kind": "lasso", "regularizer.strength": 0.0012}, 1.7),
    "clusters": Case({"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": CLUSTERS}, 1.9, "positional"),
    "gauss-hermite": Case({"integration.rule": "gauss-hermite", "integration.nodes": None}, 2.2),
}
# the penalty of a value matrix says what its weights are
WITH_TEMPERATURE = [name for name, case in CASES.items() if "loss.kind" not in case.fields]


def in_units(problem: Problem, c: float, T: float = 1.0) -> tuple[Problem, float]:
    """The problem in other units, and what its weights are multiplied by."""
    labels, attention = problem.loss.form.has_labels, problem.loss.form.has_attention
    weights = 1 / c if labels else float(np.sqrt(T))
    energy = 1.0 if labels else c**2
    fields: dict[str, Any] = {}
    if problem.tokens.clusters is None:
        fields["tokens.sigma"] = (c * np.array(problem.tokens.sigma)).tolist()
    else:
        fields["tokens.clusters"] = [
            [{"sigma": c * one["sigma"], "mean": (c * np.array(one["mean"])).tolist()} for one in row]
            for row in CLUSTERS
        ]
    if problem.positions.kind != "none":
        fields["positions.gram"] = (c**2 * np.array(problem.positions.gram)).tolist()
    if attention:
        fields["teacher.temperature"] = c**2 * problem.teacher.temperature
        fields["student.temperature"] = c**2 * T * problem.student.temperature
    elif not labels:
        fields["teacher.noise"] = c**2 * problem.teacher.noise
    power = 2 if problem.regularizer.kind == "ridge" else 1
    fields["regularizer.strength"] = cast("float", problem.regularizer.strength) * energy / weights**power
    return problem.with_fields(fields), weights


def in_the_units_of(point: BranchPoint, weights: float, c: float, energy: float) -> BranchPoint:
    """Values and errors of a point whose weights, tokens and losses are multiplied, divided by the same."""
    h = c * weights
    sizes = {"q": h**2, "V": h**2 / energy, "m": h, "theta": h * c, "weight_norm": weights**2}
    sizes |= {"q_hat": (energy / h) ** 2, "V_hat": energy / h**2, "m_hat": energy / h, "theta_hat": energy / (h * c)}
    sizes |= dict.fromkeys(("training_loss", "test_error", "linear_test_error", "free_energy_gap"), energy)

    def divided(table: dict[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(value) / sizes.get(name, 1.0) for name, value in table.items()}

    return replace(point, values=divided(point.values), errors=divided(point.errors))


def solved_in(case: Case, c: float, T: float = 1.0) -> BranchPoint:
    problem, weights = in_units(case.problem, c, T)
    energy = 1.0 if problem.loss.form.has_labels else c**2
    return in_the_units_of(solve_point(problem, case.alpha, case.branch, settings=ONE_THREAD), weights, c, energy)


def said_of(point: BranchPoint) -> tuple[Any, ...]:
    return point.status, point.on_branch, point.iterations, point.rule, point.nodes


@pytest.mark.parametrize("name", CASES)
def test_powers_of_two_change_no_bit(name):
    """Every value, error, status and number of steps, at k = -10 and 7; also of a temperature 4^3 times as large."""
    case = CASES[name]
    expected = solved_in(case, 1.0)
    # a weak penalty 2^20 times as weak would be refused
    others = [solved_in(case, 2.0**-8 if name == "lasso" else 2.0**-10), solved_in(case, 2.0**7)]
    others += [solved_in(case, 0.5, 64.0)] if name in WITH_TEMPERATURE and name != "lasso" else []
    for other in others:
        assert said_of(other) == said_of(expected)
        for found, known in ((other.values, expected.values), (other.errors, expected.errors)):
            for key, value in known.items():
                np.testing.assert_array_equal(found[key], value, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_other_units_change_no_more_than_rounding(name):
    """Within 1e-8 at c = .3, and for temperatures from .01 to 1000 times as large."""
    case = CASES[name]
    expected = solved_in(case, 1.0)
    others = [solved_in(case, 0.3)]
    others += [solved_in(case, 1.0, 1000.0), solved_in(case, 0.07, 0.01)] if name in WITH_TEMPERATURE else []
    # these are differences of equal numbers
    rounding = {"free_energy_gap", "linear_test_error"}
    for other in others:
        assert said_of(other) == said_of(expected)
        for key, value in expected.values.items():
            if key not in rounding:
                size = np.abs(expected.values["map_eigenvalue"] if key == "map_eigenvalue_imag" else value).max()
                # of two sides of order one, one is a difference over a step of 1e-4: rounding moves it by up to 1.3e-6
                size = 300.0 * max(size, 1.0) if key in IDENTITIES else size
                np.testing.assert_allclose(other.values[key], value, rtol=1e-8, atol=1e-8 * size)
        # of a tensor rule whose two sides are equal but for rounding, the error of their difference is rounding too
        equal = {key for key in IDENTITIES if abs(expected.values[key]) < 1e-9}
        for key, value in expected.errors.items():
            if key not in rounding | equal:
                size = max(np.abs(value).max(), 1.0) if key in IDENTITIES else np.abs(value).max()
                np.testing.assert_allclose(other.errors[key], value, rtol=1e-6, atol=1e-6 * size)


def test_which_minima_are_new_depends_on_no_unit():
    """Energies around the differences that count, 1e-9 for a lower minimum and 1e-3 for a second one nearly as low."""
    rng = np.random.default_rng(2)
    lowest, lower, gap, beside_gap = rng.normal(0, 0.3, 60), *(10.0 ** rng.uniform(-11, [[-8], [-2], [-2]], (3, 60)))

    def news(unit: float) -> tuple[Any, Any]:
        found, beside = (
            SimpleNamespace(energies=unit * np.stack([low, low + apart], axis=1), gap=unit * apart)
            for low, apart in ((lowest - lower, gap), (lowest, beside_gap))
        )
        return _news(cast("Minima", found), cast("Minima", beside), unit)

    expected = news(1.0)
    assert all(0 < one.sum() < 60 for one in expected)
    for unit in (4.0**-10, 4.0**7):
        np.testing.assert_array_equal(news(unit), expected)


@pytest.mark.parametrize(("c", "T"), [(2.0**-9, 1.0), (2.0**6, 1.0), (1.0, 2.0**10), (0.25, 2.0**-8)])
@pytest.mark.parametrize(("name", "branch"), [("softmax", "semantic"), ("positional", "positional")])
def test_when_an_order_parameter_vanishes_depends_on_no_unit(name, branch, c, T):
    case = CASES[name]
    problem, weights = in_units(case.problem, c, T)
    start = initial_overlaps(case.problem, branch)
    size = informed_signal(start, branch)
    for share in 10.0 ** np.linspace(-7.5, -4.5, 25):
        small = replace(start, m=share / size * start.m, theta=share / size * start.theta)
        here = replace(small, m=c * weights * small.m, theta=c**2 * weights * small.theta)
        assert vanishes(problem, here, branch) == vanishes(case.problem, small, branch)


@pytest.mark.parametrize("c", [2.0**-9, 2.0**6])
def test_whether_there_are_encodings_depends_on_no_unit(c):
    """Those of 1e-12 of the tokens' variance are rounding."""
    for size, expected in ((1e-13, False), (3e-12, True)):
        weak = CASES["softmax"].problem.with_fields({"positions.gram": [[size, 0.2 * size], [0.2 * size, size]]})
        for problem in (weak, in_units(weak, c)[0]):
            assert has_directions(problem) is expected


@pytest.mark.parametrize("size", [1e-5, 0.8, 3e4])
@pytest.mark.parametrize(("c", "T"), [(2.0**-9, 1.0), (4.0, 2.0**-6)])
def test_starts_along_weak_and_strong_encodings_depend_on_no_unit(size, c, T):
    gram = [[1.1 * size, -0.9 * size], [-0.9 * size, 0.95 * size]]
    plain = CASES["positional"].problem.with_fields({"positions.gram": gram})
    problem, weights = in_units(plain, c, T)
    expected, found = (initial_overlaps(one, "positional") for one in (plain, problem))
    np.testing.assert_allclose(found.m, c * weights * expected.m, rtol=1e-12)
    np.testing.assert_allclose(found.q, (c * weights) ** 2 * expected.q, rtol=1e-12)


@pytest.mark.parametrize("T", [2.0**-6, 2.0**8])
def test_the_floor_of_a_rows_noise_depends_on_no_unit(T):
    """A source is an energy over a weight; without noise and signal it has a share of the curvature's."""
    problem, _ = in_units(CASES["lasso"].problem, 1.0, T)
    roots = []
    for one, unit in ((CASES["lasso"].problem, 1.0), (problem, T)):
        zero = np.zeros((2, 1, 1, 1))
        hats = Conjugates(zero, 0.7 / unit + zero, zero, zero)
        roots.append(np.sqrt(unit) * System.of(one).prior.sources(hats).root)
    np.testing.assert_allclose(roots[1], roots[0], rtol=1e-12)
