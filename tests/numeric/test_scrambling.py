"""Scrambled Sobol points, held against those of SciPy, bit by bit."""

import numpy as np
import pytest
from scipy.stats import qmc

from attnphase.integration.direction_numbers import DIRECTIONS
from attnphase.integration.scrambling import scrambled_sobol

TABLE = 1 + len(DIRECTIONS)


@pytest.mark.parametrize("dimensions", [1, 2, 4, 7, 16, TABLE, TABLE + 1])
@pytest.mark.parametrize("points", [1, 2, 64, 2048])
def test_points_are_those_of_scipy(dimensions, points):
    """A wrong number of the table or recurrence, a lost diagonal, or another order of the points would change numbers.

    The last dimensions need the whole table, and those beyond it.
    """
    for seed in (0, 5):
        theirs = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed)).random(points)
        np.testing.assert_array_equal(scrambled_sobol(dimensions, points, np.random.default_rng(seed)), theirs)


def test_a_table_entry_is_a_polynomial_with_odd_numbers_below_its_powers():
    """What makes direction numbers out of numbers, whatever SciPy has."""
    for inner, first in DIRECTIONS:
        assert inner < 2 ** (len(first) - 1)
        assert all(m % 2 == 1 and m < 2 ** (j + 1) for j, m in enumerate(first))
