"""Nodes and weights against exact moments: degrees of exactness, orbits of signs, and calibrated standard errors.

Not public: a solve shows a rule's nodes by its errors alone.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from attnphase.integration.rules import SIGNS, Rule, gauss_hermite, published_rule


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
