"""Crossings, onsets and ends of branches: against other rules and ways, their errors, and why there is none."""

from typing import Any

import numpy as np
import pytest
from models import of_terms
from solving import settings, word

import attnphase as ap

PAPER = ap.Problem.paper(omega=0.3)
FEW = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 256})

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


def found_of(problem: ap.Problem, alpha: tuple[float, float], **options: Any) -> Any:
    return ap.thresholds(problem, alpha, settings=settings(), **options)


def number(ds: Any, name: str) -> tuple[float, float]:
    """A threshold and its error."""
    return float(ds[name].item()), float(ds[f"{name}_stderr"].item())


def outcome(ds: Any, name: str) -> str:
    return word(ds, f"{name}_status")


def test_thresholds_by_lines_are_those_of_many_nodes_of_other_kinds():
    """Crossings with 36 to 60 nodes of each teacher's field; onsets by section 14 of the theory."""
    ds = found_of(PAPER, (0.02, 2.0), transitions=True)
    for name, truth, known, relative in (
        ("alpha_c", 1.25154, 2e-5, 1e-4),
        ("alpha_l", 1.49226, 2e-5, 1e-4),
        ("onset_theta", 0.7200, 6e-4, 5e-4),
        ("onset_m", 0.05746, 5e-5, 5e-4),
    ):
        value, error = number(ds, name)
        assert outcome(ds, name) == "located", name
        assert error < relative * truth, name
        assert abs(value - truth) < 3 * np.hypot(error, known), name
    assert outcome(ds, "spinodal_semantic") == outcome(ds, "spinodal_positional") == "continuous"
    assert ds.attrs["rule"] == "lines"


def test_errors_of_thresholds_are_their_scatter_over_seeds():
    """Six seeds of few points, against lines: a sum of six squares lies in this range but for one case in 300."""
    found = [
        found_of(FEW.with_fields({"integration.seed": seed, "integration.nodes": 128}), (0.9, 2.0)) for seed in range(6)
    ]
    for name, truth in (("alpha_c", 1.25158), ("alpha_l", 1.49234)):
        values, errors = np.transpose([number(one, name) for one in found])
        assert (errors > 5e-4).all()
        assert 0.6 < (((values - truth) / errors) ** 2).sum() < 20, name


def test_branches_that_are_one_solution_do_not_cross():
    """A convex problem has one solution: where rounding changes the sign of a difference, it was called alpha_c."""
    clusters = [{"sigma": 0.9, "mean": [0.7]}, {"sigma": 1.1, "mean": [-0.4]}]
    problem = of_terms(clusters, [0.5, 0.5], 0.21, {"logistic": 1.0, "a": -1.0, "square": 0.6}).with_fields(
        {"tokens.mean_teacher": [[0.3]], "integration.rule": "sobol", "integration.standard_error": 0.01}
    )
    reasons = []
    for seed in range(4):
        with pytest.warns(ap.errors.NotFoundWarning) as warned:
            ds = found_of(problem.with_fields({"integration.seed": seed}), (0.8, 2.6))
        assert outcome(ds, "alpha_c") != "located"
        reasons += [str(one.message) for one in warned]
    assert any("semantic and positional are one solution" in one for one in reasons)


@pytest.mark.parametrize(
    ("fields", "between", "outcomes", "sentence"),
    [
        (
            {},
            (0.9, 1.1),
            dict.fromkeys(("alpha_c", "alpha_l", "spinodal_semantic", "onset_theta", "onset_m"), "outside_range"),
            "the semantic branch is there at alpha = 0.9 already, where the range begins",
        ),
        (
            {},
            (0.2, 0.5),
            dict.fromkeys(("alpha_c", "alpha_l", "spinodal_semantic"), "no_branch"),
            "the semantic branch was found nowhere from alpha = 0.2 to 0.5",
        ),
        # the positional branch ends at 1.289, where the semantic loss is lower already
        ({"teacher.omega": 0.1}, (1.1, 1.5), {"alpha_c": "outside_range"}, "falls through zero nowhere"),
        # of 256 points the positional curve turns back beside its onset, and lines have no fold there
        ({"integration.seed": 4}, (0.01, 3.0), {"spinodal_positional": "continuous"}, "vanishes where"),
        (
            {"integration.rule": "published", "integration.nodes": None},
            (0.1, 1.0),
            {"onset_m": "no_replicates", "spinodal_positional": "no_replicates"},
            "the rule published has no replicates to take an error from",
        ),
        (
            {"tokens.kind": "mixture", "tokens.clusters": [{"mean": [0.4]}], "tokens.mean_teacher": [[0.3]]},
            (0.6, 0.9),
            {"onset_theta": "no_symmetry"},
            "m and theta do not vanish by symmetry",
        ),
    ],
    ids=["range above", "range below", "crossing behind an end", "fold of chance", "no replicates", "no symmetry"],
)
def test_thresholds_that_do_not_exist_say_why(fields, between, outcomes, sentence):
    with pytest.warns(ap.errors.NotFoundWarning) as warned:
        ds = found_of(FEW.with_fields(fields), between, transitions=True)
    assert {name: outcome(ds, name) for name in outcomes} == outcomes
    assert all(np.isnan(number(ds, name)).all() for name in outcomes)
    assert sentence in " ".join(str(one.message) for one in warned)
