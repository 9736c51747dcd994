"""Which tokens and clusters may be exchanged: those that nothing in the problem tells apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.symmetries import site_permutations
from attnphase.state_evolution.system import System

TRIPLE = Problem().with_fields({"tokens.length": 3, "tokens.sigma": 0.6})
MIXTURE = Problem().with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5, "mean": [0.7]}, {"sigma": 0.5, "mean": [-0.7]}],
        "tokens.law": {"kind": "independent", "weights": [[0.5, 0.5], [0.5, 0.5]]},
        "positions.kind": "none",
    }
)


def orders(problem: Problem) -> set[tuple[int, ...]]:
    spectrum = Spectrum.of(problem)
    return set(site_permutations(problem, spectrum, SampleLaw.of(problem, spectrum)))


def test_equal_tokens_are_exchanged_in_every_way():
    assert len(orders(TRIPLE)) == 6
    assert orders(Problem()) == {(0, 1), (1, 0)}


@pytest.mark.parametrize(
    ("fields", "left"),
    [
        ({"tokens.sigma": [0.6, 0.45, 0.6]}, {(0, 1, 2), (2, 1, 0)}),
        ({"tokens.sigma": [0.6, 0.45, 0.5]}, {(0, 1, 2)}),
        (
            {"teacher.mixing": [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]},
            {(0, 1, 2), (1, 0, 2)},
        ),
        ({"positions.gram": [[1.0, 0.2, 0.1], [0.2, 1.0, 0.1], [0.1, 0.1, 1.0]]}, {(0, 1, 2), (1, 0, 2)}),
        (
            {"tokens.sigma": None, "tokens.spectrum": [
                {"weight": 0.4, "variances": [0.1, 0.5, 0.5]}, {"weight": 0.6, "variances": [0.5, 0.5, 0.1]}
            ]},
            {(0, 1, 2)},
        ),
    ],
    ids=["one variance", "all variances", "mixing", "encodings", "spectrum"],
)  # fmt: skip
def test_what_tells_tokens_apart(fields: dict[str, Any], left: set[tuple[int, ...]]):
    assert orders(TRIPLE.with_fields(fields)) == left


def test_clusters_are_exchanged_as_far_as_the_products_of_their_means_allow():
    """Opposite means of all tokens may be exchanged together, which is a reflection; unequal ones may not."""
    assert orders(MIXTURE) == {(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)}
    unequal = MIXTURE.with_fields({"tokens.clusters": [{"sigma": 0.5, "mean": [0.7]}, {"sigma": 0.5, "mean": [-0.4]}]})
    assert orders(unequal) == {(0, 1, 2, 3), (2, 3, 0, 1)}
    same = MIXTURE.with_fields({"tokens.clusters": [{"sigma": 0.5}, {"sigma": 0.5}]})
    assert len(orders(same)) == 8


@pytest.mark.parametrize(
    ("law", "left"),
    [
        ({"kind": "independent", "weights": [[0.3, 0.7], [0.3, 0.7]]}, {(0, 1, 2, 3), (2, 3, 0, 1)}),
        ({"kind": "independent", "weights": [[0.3, 0.7], [0.5, 0.5]]}, {(0, 1, 2, 3), (0, 1, 3, 2)}),
        (
            {"kind": "table", "table": [[0.4, 0.1], [0.1, 0.4]]},
            {(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)},
        ),
        ({"kind": "table", "table": [[0.4, 0.1], [0.2, 0.3]]}, {(0, 1, 2, 3)}),
    ],
    ids=["equal marginals", "one uniform token", "correlated", "asymmetric"],
)
def test_the_clusters_law_tells_them_apart(law, left):
    same = MIXTURE.with_fields({"tokens.clusters": [{"sigma": 0.5}, {"sigma": 0.5}], "tokens.law": law})
    assert orders(same) == left


def test_a_teacher_with_a_mean_is_not_reflected():
    """Elements of the whole group: with a teacher mean the sign of the teacher's column is left alone."""
    centred = MIXTURE
    shifted = MIXTURE.with_fields({"tokens.mean_teacher": [[0.4]]})
    signs = []
    for problem in (centred, shifted):
        found = System.of(problem).symmetries
        signs.append({float(B.item()) for _, _, B, _ in found})
    assert signs == [{1.0, -1.0}, {1.0}]
    law = SampleLaw.of(shifted, Spectrum.of(shifted))
    assert law.unchanged(range(4), np.eye(1))
    assert not law.unchanged(range(4), -np.eye(1))


def test_teacher_means_of_atoms_are_weighted():
    """``m* = sum_a weight_a mu_a pi_a``: atoms count by their weight."""
    problem = Problem().with_fields(
        {
            "tokens.kind": "mixture",
            "tokens.clusters": [[{}], [{}]],
            "tokens.spectrum": [
                {"weight": 0.8, "variances": [0.2, 0.3], "means": [0.5, -0.2], "teacher": [1.1]},
                {"weight": 0.2, "variances": [0.4, 0.1], "means": [-0.3, 0.7], "teacher": [-0.6]},
            ],
        }
    )
    expected = [0.8 * 0.5 * 1.1 + 0.2 * 0.3 * 0.6, -0.8 * 0.2 * 1.1 - 0.2 * 0.7 * 0.6]
    np.testing.assert_allclose(Spectrum.of(problem).teacher_means[:, 0], expected, rtol=1e-12)
