"""Nodes and weights against exact moments: degrees of exactness, orbits of signs, and calibrated standard errors.

Not public: a solve shows a rule's nodes by its errors alone.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import chi2

from attnphase.integration.rules import SIGNS, Rule, gauss_hermite, published_rule, sobol


def mean(rule: Rule, function) -> np.ndarray:
    """Mean per replicate, over the sign changes of a symmetric rule."""
    signed = []
    for xi, zeta in rule.signs:
        nodes = rule.nodes.copy()
        nodes[..., : rule.student_dimensions] *= xi
        nodes[..., rule.student_dimensions :] *= zeta
        signed.append(function(nodes) @ rule.weights)
    return np.mean(signed, axis=0)


def mean_power(rule: Rule, powers) -> float:
    return float(mean(rule, lambda x: np.prod(x ** np.array(powers), axis=-1))[0])


def moment(powers) -> float:
    """Product of moments of the standard normal law."""
    return math.prod(0.0 if p % 2 else float(math.prod(range(p - 1, 0, -2))) for p in powers)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("order", [2, 3, 6])
def test_gauss_hermite_moments_are_exact_up_to_their_degree(order, symmetric):
    rule = gauss_hermite(3, 2, symmetric, order)
    for powers in itertools.product(range(0, 2 * order, 1 if order < 4 else 3), repeat=3):
        near = 1e-11 * moment([2 * (p // 2 + 1) for p in powers])
        assert mean_power(rule, powers) == pytest.approx(moment(powers), rel=1e-11, abs=near)
    # the first moment it misses, by order!
    missed = moment([2 * order]) - math.factorial(order)
    assert mean_power(rule, (2 * order, 0, 0)) == pytest.approx(missed, rel=1e-11)


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_published_rule_has_degree_seven_in_each_plane(symmetric):
    rule = published_rule(symmetric)
    assert rule.size < 72 if symmetric else rule.size == 144
    for powers in itertools.product(range(8), repeat=4):
        if powers[0] + powers[1] <= 7 and powers[2] + powers[3] <= 7:
            assert mean_power(rule, powers) == pytest.approx(moment(powers), rel=1e-11, abs=1e-10)
    for powers in ((8, 0, 0, 0), (0, 0, 6, 2)):
        assert abs(mean_power(rule, powers) / moment(powers) - 1) > 1e-2


@pytest.mark.parametrize(
    "make", [lambda s: gauss_hermite(4, 2, s, 4), lambda s: gauss_hermite(4, 2, s, 5), published_rule]
)
def test_orbits_of_the_signs_carry_the_whole_rule(make):
    """Half a grid with four signs is the grid, multiplicities of nodes at zero included."""

    def rough(x):
        return np.exp(0.4 * x[..., 0] - 0.3 * x[..., 2]) + np.abs(x[..., 1] + 0.2) * (x[..., 3] > 0.15)

    whole, orbits = make(False), make(True)
    assert orbits.size < whole.size / 2
    assert orbits.signs == SIGNS
    assert mean(orbits, rough)[0] == pytest.approx(mean(whole, rough)[0], rel=1e-13)


@pytest.mark.parametrize("points", [64, 512])
def test_sobol_standard_errors_are_calibrated(points):
    """Deviations of 30 seeds from the exact mean, in stated errors: Student's law with 15 degrees of freedom."""
    a = np.array([0.6, -0.4, 0.5, 0.3])
    exact = math.exp(a @ a / 2) + 0.5 * math.erfc(0.7 / math.sqrt(2))
    scores = []
    for seed in range(30):
        replicates = mean(sobol(4, 2, False, points, 16, seed), lambda x: np.exp(x @ a) + (x[..., 1] > 0.7))
        scores.append((replicates.mean() - exact) / (replicates.std(ddof=1) / 4))
    low, high = chi2.ppf([5e-4, 1 - 5e-4], len(scores))
    assert low < np.sum(np.square(scores)) / (15 / 13) < high
    assert abs(np.mean(scores)) < 3.3 * math.sqrt(15 / 13 / len(scores))
