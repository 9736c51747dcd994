"""Numbers of clusters and one probability of a list as fields: derivatives, sweeps, and runs at one value."""

from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.errors import CompareError

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
CLUSTERS = [{"sigma": 1.0, "mean": [0.4]}, {"sigma": 0.7, "mean": [2.0]}, {"sigma": 1.3, "mean": [-0.8]}]


def mixture(**law: Any) -> ap.Problem:
    tokens = {"kind": "mixture", "length": 1, "clusters": CLUSTERS, "mean_teacher": [[0.9]]}
    return ap.Problem(
        tokens=tokens | {"law": {"kind": "independent", **law}},
        teacher={"noise": 0.1},
        regularizer={"strength": 0.3},
        loss={"kind": "square"},
    )


ATOMS = model(
    "square",
    {
        "teacher.prior": "atoms",
        "teacher.prior_values": [-1.0, 0.2, 1.5],
        "teacher.prior_probabilities": [0.2, 0.5, 0.3],
    },
)
SLOPES = {
    "weights of a law": (mixture(weights=[0.2, 0.5, 0.3]), "tokens.law.weights[1]", 0.5),
    "equal weights, left out": (mixture(), "tokens.law.weights[1]", 1 / 3),
    "a mean of a cluster": (mixture(), "tokens.clusters[1].mean[0]", 2.0),
    "a variance of a cluster": (mixture(), "tokens.clusters[1].sigma", 0.7),
}


@pytest.mark.parametrize("name", SLOPES)
def test_derivatives_are_those_of_solves_on_both_sides(name: str):
    problem, field, own = SLOPES[name]
    slopes = ap.sensitivity(problem, 1.7, field=field, settings=SETTINGS)
    low, high = (
        ap.solve(problem.with_fields({field: own + side * 2e-3}), 1.7, "semantic", settings=SETTINGS)
        for side in (-1, 1)
    )
    for quantity in ("test_error", "training_loss", "weight_norm"):
        expected = (float(high[quantity]) - float(low[quantity])) / 4e-3
        assert float(slopes[f"d_{quantity}"]) == pytest.approx(expected, rel=2e-3)
        assert abs(expected) > 1e-3


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
    """Whether runs give the probabilities as lists, or leave equal ones out; other lists are other problems."""
    base, there, other = SWEPT[field]
    swept = ap.sweep(base, [1.7], branch="semantic", fields={field: [0.45, 0.6, 1 / 3]}, workers=1, settings=SETTINGS)
    (dimension,) = (str(name) for name in swept.dims if swept[name].attrs.get("field") == field)
    alone = ap.solve(there, 1.7, "semantic", settings=SETTINGS)
    assert swept.test_error.sel({dimension: 0.6}).item() == pytest.approx(alone.test_error.item(), rel=1e-6)
    trained: Any = {"dimension": [30], "seeds": 2, "progress": False}
    for problem in (there, *([base] if base == mixture() else [])):
        found = ap.compare(swept, ap.simulate(problem, 1.7, start="semantic", **trained))
        assert np.isfinite(found.worst)
    with pytest.raises(CompareError, match=r"different problems: (tokens\.law|teacher\.prior_probabilities) is"):
        ap.compare(swept, ap.simulate(other, 1.7, start="semantic", **trained))
