"""Curves through folds, and all solutions at one place, against another way.

Not public: points of made-up errors, and errors at a held order parameter.
"""

from typing import Any

import numpy as np
import pytest
from models import model
from solving import settings, size, solved

import attnphase as ap
from attnphase.fixed_points.continuation import Followed, _with_turns, follow_field
from attnphase.fixed_points.setting import Setting

COARSE = ap.Problem.paper(omega=0.27).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
EDGES = "at the edge of the range, at the edge of the range"


@pytest.mark.parametrize(
    ("values", "held", "turns"),
    [
        ([1.0, 0.7, 0.95], [[0.1], [0.0], [-0.1]], [1]),
        ([1.0, 0.7, 0.95], [[0.2], [0.0], [0.0]], []),
        ([1.0, 0.7, 0.95], [[0.0], [0.0], [0.2]], []),
        ([1.0, 0.7, 0.95], [[9.2], [9.1], [9.0]], [1]),
        ([1.0, 0.7, 0.95], [[0.1, 0.0], [0.2], [0.1, 0.0]], []),
        ([1.0, 0.7, 0.95], [[0.2, 0.0], [0.0], [0.2, 0.0]], []),
        ([0.7, 1.0, 0.8, 0.4, 0.9, 0.1], [[0.0], [0.0], [0.5], [0.0], [0.3], [0.0]], [1]),
        ([0.7, 1.0, 0.8, 0.4, 0.9, 0.1], [[0.0], [0.0], [0.5], [0.0], [0.2], [0.0]], [1, 3, 4]),
    ],
)
def test_a_fold_is_seen_from_both_sides_beyond_errors(values, held, turns):
    """Points on either side differ from it by more than twice the error of that."""
    nothing: Any = None
    points = [Followed(nothing, v, 0.0, np.inf, np.array(row), 0.0, 0) for v, row in zip(values, held, strict=True)]
    assert [i for i, one in enumerate(_with_turns(points)) if one.turn] == turns


def test_errors_at_a_held_order_parameter_are_those_of_other_nodes():
    """Alpha at one theta varies between seeds by its error, though the curve moves along itself alone."""
    found = []
    for seed in range(8):
        setting = Setting(COARSE.with_fields({"integration.seed": seed}), 1.12)
        points = follow_field(setting, "semantic", (1.1, 1.14), settings=settings(tolerance=1e-6)).points
        sizes, values = ([abs(one.point.values["theta"][0, 0, 0]) for one in points], [one.value for one in points])
        line = np.polyfit(sizes, values, 1)
        found.append((np.polyval(line, 0.113), np.mean([np.linalg.norm(one.held) for one in points])))
    values, errors = np.transpose(found)
    assert 0.5 < values.std(ddof=1) / np.sqrt((errors**2).mean()) < 2


@pytest.mark.parametrize(("omega", "seed"), [(0.35, 4), (0.3, 2)])
def test_a_branch_that_ends_among_jumps_of_its_nodes_is_not_traced_twice(omega, seed):
    """Down to where theta is small or vanishes."""
    few = {"integration.rule": "sobol", "integration.nodes": 32, "integration.seed": seed}
    curve = ap.follow(ap.Problem.paper(omega=omega).with_fields(few), between=(0.5, 2.0), at=2.0, settings=settings())
    values, sizes = curve.alpha.values, np.abs(curve.theta.values[:, 0, 0, 0])
    assert curve.attrs["ends"].endswith("at the edge of the range")
    assert values[-1] == pytest.approx(2.0)
    assert 10 < len(values) < 30
    # away from its end the branch has one point at every alpha, and a larger theta at a larger alpha
    away = np.flatnonzero(values > 1)
    assert (np.diff(away) == 1).all()
    assert (np.diff(values[away]) > 0).all()
    assert (np.diff(sizes[away]) > 0).all()
    assert sizes[0] < 0.5 * sizes[away[0]]


FOLDED = ap.Problem.paper(omega=0.3).with_fields(
    {"tokens.sigma": 0.6, "integration.rule": "sobol", "integration.nodes": 256}
)


@pytest.fixture(scope="module")
def folded():
    """The positional branch about its fold near alpha = 7.3, far from any onset."""
    return ap.follow(FOLDED, between=(7.0, 8.0), at=7.8, branch="positional", settings=settings(tolerance=1e-6))


def test_a_branch_is_followed_through_a_fold(folded):
    assert folded.attrs["ends"] == EDGES
    assert folded.alpha.values[[0, -1]] == pytest.approx([8.0, 8.0])
    (fold,) = np.flatnonzero(folded.turn)
    assert fold == folded.alpha.values.argmin()
    assert (np.diff(np.abs(folded.m.values[:, 0, 0])) > 0).all()
    # a place beside which a node jumps has no residual of 1e-6, and says so
    assert float(folded.residual.max()) < 0.02
    assert float((folded.status == 0).mean()) > 0.8
    # eigenvalues beyond the nearest points of the fold, which the jumps of single nodes decide
    assert (folded.unstable_directions[: fold - 1] == 1).all()
    assert (folded.unstable_directions[fold + 2 :] == 0).all()


def test_both_sides_of_a_fold_are_solutions(folded):
    found = ap.solutions(FOLDED, 7.8, starts=0, settings=settings(tolerance=1e-6))
    assert (np.diff(found.training_loss) >= 0).all()
    assert sorted(found.branch.values.tolist()) == ["positional", "positional", "semantic", "uninformed"]
    two = found.isel(solution=np.flatnonzero(found.branch == "positional"))
    sizes = sorted(size(one, "m") for _, one in two.groupby("solution", squeeze=False))
    for unstable, found_size in zip((1, 0), sizes, strict=True):
        side = folded.isel(arclength=np.flatnonzero(folded.unstable_directions == unstable)).sortby("alpha")
        assert found_size == pytest.approx(np.interp(7.8, side.alpha, np.abs(side.m[:, 0, 0])), abs=2e-3)
    assert abs(int(two.unstable_directions[0]) - int(two.unstable_directions[1])) == 1


def test_a_curve_by_lines_turns_back_where_the_map_has_the_eigenvalue_one():
    """Thresholds say 7.2620(5)."""
    problem = ap.Problem.paper(omega=0.3).with_fields({"tokens.sigma": 0.6, "integration.standard_error": 3e-3})
    curve = ap.follow(problem, between=(7.2, 7.5), at=7.4, branch="positional", settings=settings(tolerance=1e-6))
    assert curve.attrs["ends"] == EDGES
    fold = curve.isel(arclength=int(np.flatnonzero(curve.turn).item()))
    assert abs(float(fold.field_value) - 7.2620) < 3 * np.hypot(fold.field_value_stderr, 5e-4)
    assert float(fold.field_value_stderr) < 1e-2
    assert float(fold.leading_eigenvalue) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("field", "between", "at", "alpha"),
    [("alpha", (1.1, 1.5), 1.5, None), ("teacher.omega", (0.0, 0.28), 0.27, 1.5)],
    ids=["alpha", "omega"],
)
def test_points_by_lines_are_those_of_solves_by_other_nodes(field, between, at, alpha):
    """Up to the edge, which omega cannot pass, and within errors as small as asked for along the whole curve."""
    problem = ap.Problem.paper(omega=0.28)
    curve = ap.follow(problem, alpha, field, between, at=at, settings=settings(tolerance=1e-6))
    assert sorted(curve.field_value.values[[0, -1]]) == pytest.approx(between, abs=1e-12)
    # its length has a part of the field, and one of the order parameters
    assert (np.diff(curve.arclength) > 1.001 * 2 * np.diff(curve.field_value) / (between[1] - between[0])).all()
    assert (np.diff(curve.field_value) > 0).all()
    assert (curve.q_stderr < 1e-3 * curve.q.max()).all()
    other = {"integration.rule": "sobol", "integration.nodes": 2048}
    for place in (1, -2):
        one = curve.isel(arclength=place)
        there = problem.with_fields(other if alpha is None else other | {field: float(one.field_value)})
        alone = solved(there, float(one.field_value) if alpha is None else alpha)
        for name in ("q", "theta", "test_error", "training_loss"):
            error = np.hypot(size(one, f"{name}_stderr"), size(alone, f"{name}_stderr"))
            assert size(one - alone, name) < 3.5 * error, name


def test_points_converge_in_their_own_units():
    """The largest strengths have q a hundred times smaller than the start, in whose units the curve is traced."""
    problem = model("logistic", {"tokens.sigma": 0.5, "integration.rule": "gauss-hermite", "integration.nodes": 24})
    curve = ap.follow(problem, 4.0, "regularizer.strength", (0.001, 1.0), settings=settings())
    assert float(curve.q.max()) > 100 * float(curve.q.min())
    assert (curve.status == 0).all()


def test_a_curve_ends_where_the_weights_vanish():
    problem = ap.Problem.paper(omega=0.29).with_fields({"integration.standard_error": 1e-2})
    strong = ("regularizer.strength", (0.05, 0.3), "uninformed")
    curve = ap.follow(problem, 2.1, *strong, at=0.05, settings=settings(tolerance=1e-6))
    assert curve.attrs["ends"] == "at the edge of the range, where the weights vanish"
    assert float(curve.q[-1].max()) < 1e-4 * float(curve.q[0].max())


@pytest.mark.long
def test_exact_recovery_of_the_teacher_has_an_edge():
    """The smallest mean absolute deviation of labels next to no noise is the teacher, above some alpha."""
    problem = model("kinks", {"teacher.noise": 1e-30, "loss.parameters.tau": 0.5})
    curve = ap.follow(problem, between=(0.4, 2.1), at=2.1, settings=settings())
    assert curve.attrs["ends"] == "at the edge of the exact recovery of the teacher, at the edge of the range"


@pytest.mark.parametrize(
    ("fields", "alpha", "sentence"),
    [
        ({}, 0.3, r"no semantic branch at alpha = 0\.3: .* or follow the positional or uninformed branch\.$"),
        ({"teacher.omega": 0.31, "integration.seed": 2}, 0.7, r"semantic branch at alpha = 0\.7 is not decided"),
    ],
    ids=["below its onset", "beside its onset"],
)
def test_a_branch_that_may_be_none_cannot_be_followed(fields, alpha, sentence):
    """Near its onset the order parameter may be the nodes' error."""
    with pytest.raises((ap.errors.ProblemError, ap.errors.NotFoundError), match=sentence):
        ap.follow(COARSE.with_fields(fields), between=(alpha - 0.02, alpha), at=alpha, settings=settings())
