"""Scrambled Sobol points and normal quantiles, held against those of SciPy, bit by bit."""

import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import qmc

from attnphase.integration import quantiles
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


def test_quantiles_are_those_of_scipy(monkeypatch):
    """In the middle, in both tails, where they meet, and at the ends; a wrong coefficient shows in some of them."""
    monkeypatch.setattr(quantiles, "_MANY", 10**9)
    edge, powers = np.exp(-2.0), 2.0 ** -np.linspace(1, 40, 2000)
    drawn = np.random.default_rng(7).integers(1, 2**30, size=20_000) / 2.0**30
    drawn = np.concatenate([drawn, powers, 1 - powers, [edge, np.nextafter(edge, 0), 1 - edge, 0.5]]).reshape(2, -1)
    # another processor's compiler may join a product and a sum, which rounds once less
    np.testing.assert_array_max_ulp(quantiles.normal_quantiles(drawn), ndtri(drawn), 2)


def test_many_quantiles_are_scipys():
    many = np.random.default_rng(2).random(quantiles._MANY).reshape(4, -1)
    np.testing.assert_array_equal(quantiles.normal_quantiles(many), ndtri(many))
