"""How long lines are, how many nodes their pieces have, and which nodes of the latent variables are left out."""

import numpy as np
import pytest
from scipy.stats import chi2, norm

from attnphase.integration.lines import LineOrders, between, heaviest, stretched
from attnphase.integration.rules import tensor
from attnphase.problem.problem import Problem
from attnphase.state_evolution import directions, line_rules
from attnphase.state_evolution.system import System


@pytest.mark.parametrize("defect", [3e-5, 2e-7])
def test_lines_are_as_long_and_have_as_many_nodes_as_their_defect_needs(defect):
    """Half a line has its part of the law's variance to the defect, and the next fewer nodes do not."""
    orders = LineOrders((8,), (), defect=defect)
    assert chi2.sf(orders.reach**2, 3) == pytest.approx(defect, rel=2e-2)
    off = []
    for count in (orders.nodes - 1, orders.nodes):
        x, w = np.polynomial.legendre.leggauss(count)
        s = orders.reach / 2 * (1 + x)
        law = orders.reach * w * norm.pdf(s)
        parts = law @ s**2 - chi2.cdf(orders.reach**2, 3), law.sum() - 2 * norm.cdf(orders.reach) + 1
        off.append(np.abs(parts).max())
    assert off[1] < 1.1 * defect < off[0]


@pytest.mark.parametrize("counts", [(14, 8), (9, 7, 6), (11,)])
def test_the_lightest_nodes_are_left_out(counts):
    """They have less than a given share of the variance, with the next one more; mean and symmetry stay."""
    places, weights = tensor([stretched(n, n == 9) for n in counts])
    share = 3e-3
    kept, of_kept = heaviest(places, weights, share)
    assert len(kept) < 0.8 * len(places)
    assert of_kept.sum() == pytest.approx(1)
    is_kept = (places[:, None] == kept).all(axis=2).any(axis=1)
    assert weights[~is_kept].max() < weights[is_kept].min()
    variances = weights * (places**2).sum(axis=1)
    left = variances[~is_kept].sum()
    assert left <= share * variances.sum() < left + variances[np.isclose(weights, weights[is_kept].min())].sum()
    rows = {tuple(row) for row in np.round(kept, 9) + 0.0}
    assert {tuple(row) for row in np.round(-kept, 9) + 0.0} == rows
    assert all(len(one) == len(of) for one, of in zip(heaviest(places, weights, 0.0), (places, weights), strict=True))


def test_nodes_beside_a_break_are_not_left_out():
    """However light they are: in this direction none is, in the others those that are far from all breaks."""
    loss = {"kind": "expression", "expression": "(h0_0 + h1_0 - sign(k0_0 + 0.7*k1_0 - 0.3))**2/2"}
    found = directions.directions_of(System.of(Problem.from_dict({"tokens": {"length": 2}, "loss": loss})))
    orders = LineOrders((9, 10), (3,), dropped=1e-3)
    zeta, _, weights = line_rules._latent_nodes(found, orders, (2, 1, 0), ())
    along, across = (zeta.reshape(-1, 2) @ found.latent).T
    np.testing.assert_allclose(
        np.unique(np.round(along, 12)), np.sort(np.round(between(found.breaks, 9, False)[0], 12))
    )
    assert 4 < len(np.unique(np.round(across, 9))) < 10
    assert weights.sum() == pytest.approx(1, abs=1e-3)
