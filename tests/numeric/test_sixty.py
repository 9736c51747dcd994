"""The sixty points: the program behind their references against known values, and which errors count as true."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.errors import LARGEST, MEDIAN, PROBLEMS, Outcome, compare, points, saved, summary
from benchmarks.hundred import Reference
from benchmarks.independent_pairs import Map, Pair, Rule, pair_reference
from benchmarks.independent_scalar import Scalar

MIXING = np.array([[0.6, 0.4], [0.4, 0.6]])
SEMANTIC = Pair("semantic", 0.5, 0.01, 2.0, 0.3, MIXING)
POSITIONAL = replace(SEMANTIC, branch="positional", alpha=1.24)
# of the paper's problem, by lines in a program of its own: q, V, order parameter and training loss
KNOWN = (
    (SEMANTIC, 0.1148173, 12.66841, 0.158159, 0.00359062),
    (POSITIONAL, 0.0469804, 14.95976, 0.252292, 0.00269723),
)


def spread(problem, q, order):
    """The part of q along neither the teacher nor the encodings."""
    return q - order**2 * (1 / problem.gamma if problem.branch == "semantic" else problem.gamma)


@pytest.mark.parametrize(("problem", "q", "V", "order", "loss"), KNOWN)
def test_a_known_point_is_fixed(problem, q, V, order, loss):
    """Would catch a wrong equation, weight or derivative, and jumps that are not located."""
    x = np.array([spread(problem, q, order), V, order])
    image, seen = Map(problem, Rule().scaled(0.6)).image(x)
    # of so coarse a rule, times what I - J does to the error of x
    np.testing.assert_allclose(image, x, rtol=1e-3)
    assert seen[0] == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("tied", [True, False])
def test_lines_along_two_directions_give_one_map(tied):
    """Would catch jumps that are missed, and a wrong factor of the covariance; the fields' covariance is a full one."""
    problem = replace(SEMANTIC, alpha=1.3, sigma=0.6, tied=tied)
    x = np.array([0.03, 14.0, 0.13]) if tied else np.array([0.021, 0.015, 0.024, 16.0, 2.0, 18.0, 0.13, 0.12])
    first, second = (
        Map(problem, replace(Rule.of(problem).scaled(0.6 if tied else 0.5), turned=turned)).image(x)
        for turned in (False, True)
    )
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=3e-4)


def test_units_scale_the_map():
    """Would catch a temperature of one of both, encodings that are not scaled, and starts in fixed units."""
    unit, rule = 2.3, Rule().scaled(0.5)
    problem = replace(POSITIONAL, causal=(True, False))
    c = unit**2
    scaled = replace(problem, sigma=unit * 0.5, ridge=c * 0.01, size=unit, temperatures=(c, c))
    x = np.array([0.03, 15.0, 0.25])
    image, seen = Map(problem, rule).image(x)
    other, other_seen = Map(scaled, rule).image(x * [c, 1, 1])
    np.testing.assert_allclose(other, image * [c, 1, 1], rtol=1e-7)
    np.testing.assert_allclose(other_seen, seen * c, rtol=1e-7)


@pytest.mark.slow
def test_a_references_error_falls_with_its_orders():
    """Would catch an error that is a constant, and one that is smaller than what finer orders change."""
    coarse, fine = (pair_reference(SEMANTIC, asked=0.0, finest=finest) for finest in (0.7, 1.0))
    for name in ("q", "V", "theta", "training_loss", "test_error"):
        assert np.all(fine[1][name] < coarse[1][name] / 2), name
        assert np.all(abs(fine[0][name] - coarse[0][name]) <= coarse[1][name] + fine[1][name]), name
    _, q, V, theta, loss = KNOWN[0]
    for name, right in {"q": q, "V": V, "theta": theta, "training_loss": loss}.items():
        assert fine[0][name] == pytest.approx(right, rel=4e-6), name


REFERENCE = Reference({"q": 2.0, "theta": [0.4, 0.4]}, {"q": 1e-5, "theta": 1e-5})


def outcome(q=2.0, theta=0.4, error=1e-3):
    return compare(
        {"q": np.full((2, 1, 1), q), "theta": np.full((2, 1, 1), theta)},
        {"q": np.full((2, 1, 1), error), "theta": np.full((2, 1, 1), error)},
        REFERENCE,
    )


def test_errors_are_true_if_they_are_neither_too_small_nor_too_large():
    """Would catch ratios upside down, a median over points, and a common sign that counts as wrong."""
    fair = outcome(2.0005, -0.4006)
    assert fair.worst == (pytest.approx(0.6), "theta")
    assert summary([fair])[1]
    assert not summary([fair] * 9 + [outcome(2.0 + 1.1e-3 * LARGEST)])[1]
    assert summary([fair] * 9 + [outcome(2.0 + 0.9e-3 * LARGEST)])[1]
    cautious = outcome(2.0 + 0.9e-3 / MEDIAN, 0.4 + 0.9e-3 / MEDIAN)
    assert summary([fair] * 3 + [cautious] * 2)[1]
    assert not summary([fair] * 2 + [cautious] * 3)[1]


def test_a_flagged_point_claims_nothing():
    """Would catch flags that count as failures, or as numbers; a point without an error is flagged; all may not be."""
    wrong = outcome(7.0)
    flagged = Outcome("iteration_limit", wrong.ratios, {})
    fair = outcome(2.0005, 0.4005)
    assert summary([flagged, fair])[1]
    assert not summary([flagged])[1]
    assert not summary([wrong, fair])[1]
    assert outcome(error=np.nan).flag == "q has no stated error"


def test_a_reference_judges_no_error_below_its_own():
    """Would catch a reference's error that counts as the package's, and a wrong number that hides behind it."""
    rough, fair = outcome(2.00003, error=1e-5), outcome(2.0005, 0.4005)
    assert rough.ratios == {"q": [], "theta": []}
    assert rough.unresolved["q"] == [pytest.approx(3 / np.sqrt(2))] * 2
    assert "4 numbers, and 4 with" in summary([rough, fair])[0]
    assert summary([rough, fair])[1]
    assert not summary([rough])[1]
    assert not summary([outcome(2.0003, error=1e-5), fair])[1]


def test_the_saved_references_are_those_of_the_sixty():
    """Would catch a draw that has changed since, a branch that does not exist, and references that are too rough."""
    sixty, references = points(), saved()
    assert [point.number for point in sixty] == list(range(60))
    assert [point.name for point in sixty[::3]] == list(PROBLEMS)
    for point in (sixty[number] for number in references):
        reference = references[point.number]
        orders = {"semantic": {"theta"}, "positional": {"m"}, "uninformed": set()}[point.branch]
        assert {"q", "V", "training_loss", "test_error"} | orders == reference.values.keys()
        for name, value in reference.values.items():
            size = np.abs(value).max()
            assert size > 0
            most = 2e-3 if point.number == 20 else 1e-4  # its lowest minimum changes in many places
            assert np.max(reference.errors[name]) < most * size, (point.number, name)
        one = point.independent
        V, norm = np.ravel(reference.values["V"])[0], np.ravel(reference.values["q"])[0] / one.sigma**2
        assert one.sigma**2 / one.ridge > V if isinstance(one, Scalar) else V > 0
        assert np.ravel(reference.values["training_loss"])[0] > 0.999 * one.ridge / 2 * norm
