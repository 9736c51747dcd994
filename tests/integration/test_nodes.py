"""Scrambled Sobol points are SciPy's, quantiles have all digits, and rules have their degrees of exactness.

Not public: nodes, because a wrong one would make the error of a mean larger, and no mean wrong.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import qmc

from attnphase.integration.direction_numbers import DIRECTIONS
from attnphase.integration.quantile import normal_quantile
from attnphase.integration.rules import SIGNS, Rule, gauss_hermite, published_rule
from attnphase.integration.scrambling import scrambled_sobol

TABLE = 1 + len(DIRECTIONS)
FAR = 2.0**-40  # what a scrambled zero becomes
JOINTS = [side * joint for joint in (0.075, 0.925, np.exp(-25.0)) for side in (1 - 1e-7, 1, 1 + 1e-7)]


@pytest.mark.parametrize("dimensions", [1, 4, TABLE, TABLE + 1])
def test_points_are_those_of_scipy(dimensions):
    """The last dimensions need the whole table, and those beyond it."""
    for points, seed in ((1, 0), (64, 5), (2048, 0), (2048, 5)):
        theirs = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed)).random(points)
        np.testing.assert_array_equal(scrambled_sobol(dimensions, points, np.random.default_rng(seed)), theirs)


@pytest.mark.parametrize("p", [FAR, 3e-11, 2e-9, 1e-4, 0.0312, 0.21, 0.4999999, 0.68, 0.977, 1 - 2.0**-30, *JOINTS])
def test_a_quantile_has_all_its_digits(p):
    """A wrong digit in a coefficient, or one polynomial beyond its end, shows from the tenth digit on."""
    with mpmath.workdps(40):
        exact = float(mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(float(p)) - 1))
    np.testing.assert_allclose(normal_quantile(np.array([p])), [exact], rtol=1e-15)


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
