"""Scrambled Sobol points are SciPy's, bit by bit, and become normal numbers to all digits.

Not public: nodes, because a wrong number of the table would make the error of a mean larger, and no mean wrong.
"""

import mpmath
import numpy as np
import pytest
from scipy.stats import qmc

from attnphase.integration.direction_numbers import DIRECTIONS
from attnphase.integration.quantile import normal_quantile
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
