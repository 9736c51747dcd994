"""One probability of a list as a field: the others keep their ratios, so that all sum to 1."""

from __future__ import annotations

import re

import pytest

import attnphase as ap
from attnphase.checks.matching import at_problem
from attnphase.problem.problem import Problem


def mixture(**law: object) -> Problem:
    clusters = [{"sigma": 1.0, "mean": [0.4]}, {"sigma": 0.7, "mean": [2.0]}, {"sigma": 1.3, "mean": [-0.8]}]
    return Problem.from_dict(
        {
            "tokens": {
                "kind": "mixture",
                "length": 1,
                "clusters": clusters,
                "law": {"kind": "independent", **law},
                "mean_teacher": [[0.9]],
            },
            "positions": {"kind": "none"},
            "teacher": {"noise": 0.1},
            "regularizer": {"strength": 0.3},
            "loss": {"kind": "square"},
        }
    )


ATOMS = Problem.from_dict(
    {
        "tokens": {"length": 1, "sigma": 1.0},
        "positions": {"kind": "none"},
        "teacher": {"prior": "atoms", "prior_values": [-1.0, 0.2, 1.5], "prior_probabilities": [0.2, 0.5, 0.3]},
        "loss": {"kind": "square"},
    }
)


def test_the_others_keep_their_ratios():
    changed = mixture(weights=[0.2, 0.5, 0.3]).with_fields({"tokens.law.weights[1]": 0.75})
    assert changed.tokens.law_weights == pytest.approx((0.1, 0.75, 0.15), rel=1e-15)
    assert changed == mixture(weights=changed.tokens.law_weights)
    equal = mixture().with_fields({"tokens.law.weights[0]": 0.5})
    assert equal.tokens.law_weights == pytest.approx((0.5, 0.25, 0.25), rel=1e-15)
    law = {"kind": "single-location"}
    tokens = {"kind": "mixture", "length": 4, "clusters": [{"mean": [0.3]}, {"mean": [1.1]}], "law": law}
    place = Problem.from_dict({"tokens": tokens})
    place = place.with_fields({"tokens.law.weights[3]": 0.4})
    assert place.tokens.law_weights == pytest.approx((0.2, 0.2, 0.2, 0.4), rel=1e-15)
    atoms = ATOMS.with_fields({"teacher.prior_probabilities[2]": 0.65})
    assert atoms.teacher.prior_probabilities == pytest.approx((0.1, 0.25, 0.65), rel=1e-15)


@pytest.mark.parametrize("weights", [[0.2, 0.5, 0.3], None])
def test_derivatives_in_a_weight_are_those_of_solves_beside(weights: list[float] | None):
    problem = mixture() if weights is None else mixture(weights=weights)
    own, field, step = (0.5 if weights else 1 / 3), "tokens.law.weights[1]", 2e-3
    slopes = ap.sensitivity(problem, 1.7, field=field)
    assert float(slopes["law.weights_1"]) == own
    low, high = (
        ap.solve(
            problem.with_fields({field: own + side * step}),
            1.7,
            settings=ap.SolverSettings(stability=False, identity=False),
        )
        for side in (-1, 1)
    )
    for name in ("test_error", "training_loss", "weight_norm"):
        expected = (float(high[name]) - float(low[name])) / (2 * step)
        assert float(slopes[f"d_{name}"]) == pytest.approx(expected, rel=2e-3)
        assert abs(expected) > 1e-3


def test_a_sweep_names_the_weight():
    varied = {"tokens.law.weights[0]": [0.2, 0.6]}
    swept = ap.sweep(mixture(weights=[0.2, 0.5, 0.3]), alpha=[1.7], branch=["semantic"], fields=varied)
    alone = ap.solve(mixture(weights=[0.6, 0.25, 0.15]), 1.7)
    (name,) = (name for name in map(str, swept.dims) if "weights" in name)
    assert float(swept["test_error"].isel({name: 1}).item()) == pytest.approx(float(alone["test_error"]), rel=1e-6)


# of a field: a problem, one with 0.6 in its place, and one with 0.6 and other ratios
SWEPT = {
    "tokens.law.weights[0]": (
        mixture(weights=[0.2, 0.5, 0.3]),
        mixture(weights=[0.6, 0.25, 0.15]),
        mixture(weights=[0.6, 0.3, 0.1]),
    ),
    "tokens.law.weights[1]": (mixture(), mixture(weights=[0.2, 0.6, 0.2]), mixture(weights=[0.1, 0.6, 0.3])),
    "teacher.prior_probabilities[2]": (
        ATOMS,
        ATOMS.with_fields({"teacher.prior_probabilities": [0.8 / 7, 2 / 7, 0.6]}),
        ATOMS.with_fields({"teacher.prior_probabilities": [0.2, 0.2, 0.6]}),
    ),
}


@pytest.mark.parametrize("field", SWEPT)
def test_a_theory_over_a_probability_is_compared_with_runs_at_one(field: str):
    """Whether they give the probabilities as lists, or leave equal ones out."""
    base, there, other = SWEPT[field]
    swept = ap.sweep(base, alpha=[1.7], branch=["semantic"], fields={field: [0.45, 0.6, 1 / 3]}, workers=1)
    dimension = next(str(name) for name in swept.dims if swept[name].attrs.get("field") == field)
    found = at_problem(swept, there)
    assert found[dimension].item() == 0.6
    assert found.test_error.item() == pytest.approx(ap.solve(there, 1.7).test_error.item(), rel=1e-6)
    if base == mixture():
        assert at_problem(swept, base)[dimension].item() == 1 / 3
    with pytest.raises(
        ap.errors.CompareError, match=r"different problems: (tokens\.law|teacher\.prior_probabilities) is"
    ):
        at_problem(swept, other)


REFUSED = {
    "tokens.law.weights[0] and tokens.law.weights[1] change each other": (
        mixture(),
        {"tokens.law.weights[0]": 0.2, "tokens.law.weights[1]": 0.3},
    ),
    "tokens.law.weights[1] is 1, and its change leaves open which others grow: change the whole list": (
        mixture(weights=[0.0, 1.0, 0.0]),
        {"tokens.law.weights[1]": 0.9},
    ),
    "whose tokens.law.weights is a list of 3 entries, numbered from 0": (mixture(), {"tokens.law.weights[3]": 0.9}),
    "tokens.law.weights[0] must be a probability, a number from 0 to 1, but is 1.2": (
        mixture(weights=[0.2, 0.5, 0.3]),
        {"tokens.law.weights[0]": 1.2},
    ),
    "whose tokens.law.weights is no list of numbers": (Problem.paper(), {"tokens.law.weights[0]": 0.2}),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_leaves_no_law_is_refused(sentence: str):
    problem, changes = REFUSED[sentence]
    with pytest.raises(ap.errors.ProblemError, match=re.escape(sentence)):
        problem.with_fields(changes)


def test_a_derivative_that_does_not_exist_names_the_remedy():
    """It had dashes for numbers and no word."""
    certain = mixture(weights=[0.0, 1.0, 0.0])
    with pytest.raises(
        ap.errors.ProblemError, match=r"weights\[1\] can have no value beside its own: tokens\.law\.weights"
    ):
        ap.sensitivity(certain, 1.7, field="tokens.law.weights[1]")
    assert abs(float(ap.sensitivity(certain, 1.7, field="tokens.law.weights[2]")["d_test_error"])) > 1e-3
    with pytest.raises(ap.errors.ProblemError, match=r"can vary: name an entry, as tokens\.law\.weights\[0\]\."):
        ap.sensitivity(mixture(weights=[0.2, 0.5, 0.3]), 1.7, field="tokens.law.weights")
