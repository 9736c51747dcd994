"""Overlaps as vectors: which of them fields can have, in what units they are measured, and what symmetries forbid.

Not public: a solve shows a vector's scales and a sector's projection by its speed alone.
"""

import numpy as np
import pytest
from models import model
from solving import solved

from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

NAMES = ("q", "V", "m", "theta")


def random_overlaps(length, columns, rank, seed):
    rng = np.random.default_rng(seed)
    q, V = rng.normal(size=(2, length, columns, columns + 2))
    m, theta = rng.normal(size=(length, columns, 1)), rng.normal(size=(length, columns, rank))
    return Overlaps(q @ q.mT, V @ V.mT + 0.2, m, theta)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"theta": 0.31}, False),  # theta^2 > q rho
        ({"V": -0.1}, False),
        ({"V": 0.0}, False),
        ({"q": -0.1}, False),
        ({"m": np.nan}, False),
        ({"q": 0.0, "theta": 0.0}, True),  # the trivial point
        ({"theta": np.sqrt(0.3 * 0.31)}, True),  # the teacher's field is known
    ],
    ids=str,
)
@pytest.mark.parametrize("columns", [1, 2])
def test_only_overlaps_that_fields_can_have_are_feasible(columns, changes, expected):
    values = {"q": 0.3, "V": 4.0, "m": -0.2, "theta": 0.29} | changes
    first = np.eye(columns)[None, :, :1]
    q, V = (values[name] * np.eye(columns)[None] for name in ("q", "V"))
    x = Overlaps(q, V, values["m"] * first, values["theta"] * first)
    assert x.feasible(np.full((1, 1, 1), 0.31)) is expected


@pytest.mark.parametrize("name", ["paper", "rank 2", "untied"])
@pytest.mark.parametrize("branch", ["semantic", "positional", "uninformed"])
def test_a_sector_is_a_projection_that_keeps_the_start(name, branch):
    problem = model(name)
    start = initial_overlaps(problem, branch)
    sector = Sector.of(start, System.of(problem).symmetries)
    kept = sector.unpack(sector.pack(start))
    x = random_overlaps(2, problem.columns, problem.teacher.rank, 5)
    once = sector.unpack(sector.pack(x))
    np.testing.assert_allclose(sector.pack(once), sector.pack(x), rtol=1e-14)
    # the mean over the group is the same projection
    conjugates = sector.symmetrized(Conjugates(*(getattr(x, name)[:, None] for name in NAMES)))
    for each in NAMES:
        np.testing.assert_allclose(getattr(kept, each), getattr(start, each), atol=1e-15)
        np.testing.assert_allclose(getattr(conjugates, f"{each}_hat")[:, 0], getattr(once, each), atol=1e-14)
    # what a branch's symmetry forbids is exactly zero, and equal tokens are exactly equal
    assert np.array_equal(once.q[0], once.q[1])
    assert once.m.any() == conjugates.m_hat.any() == (branch == "positional")
    assert once.theta.any() == conjugates.theta_hat.any() == (branch == "semantic")


def test_entries_that_differ_by_a_sign_have_one_error():
    """m of the second token is minus that of the first."""
    ds = solved(model("paper", {"integration.rule": "sobol", "integration.nodes": 64}), 1.24, "positional")
    assert float(ds.m[0, 0]) == -float(ds.m[1, 0]) != 0
    assert float(ds.m_stderr[0, 0]) == float(ds.m_stderr[1, 0]) > 0
    assert not ds.theta.any()
    assert not ds.theta_stderr.any()


@pytest.mark.parametrize("norm", [0.4, 1.0, 2.5])
def test_the_positional_start_has_one_size_whatever_the_encodings(norm):
    """``W`` is 0.2 times the unit vector along p: ``m_l = 0.2 |p_l|``, up to the sign of the direction."""
    gram = [[norm**2, -(norm**2)], [-(norm**2), norm**2]]
    start = initial_overlaps(model("paper", {"positions.gram": gram}), "positional")
    np.testing.assert_allclose(np.abs(start.m.ravel()), 0.2 * norm, rtol=1e-9)
