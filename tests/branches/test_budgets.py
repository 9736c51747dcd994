"""A solve that ends with its time or its maps: its best point, with honest errors, from which another solve goes on."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from solving import size, solved, word

import attnphase as ap

AT_ONCE = 1e-9
FEW = {"integration.rule": "sobol", "integration.nodes": 64}
SOBOL = {"integration.rule": "sobol"}

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


def paper(**fields: Any) -> ap.Problem:
    return ap.Problem.paper(omega=0.27).with_fields({"tokens.sigma": 0.55, **fields})


@pytest.mark.parametrize(("branch", "alpha"), [("semantic", 1.63), ("positional", 0.87), ("uninformed", 1.63)])
def test_a_solve_without_time_returns_a_point_of_its_first_map(branch, alpha):
    ds, whole = (solved(paper(), alpha, branch, max_seconds=s, stability=True) for s in (AT_ONCE, None))
    assert (word(ds), word(ds, "on_branch")) == ("iteration_limit", "not_decided")
    assert 0 < int(ds.iterations) <= 2
    assert np.isnan([float(ds.overlap_gap), float(ds.replicon)]).all()
    for name in ("q", "m", "theta"):
        assert (np.abs(ds[name] - whole[name]) <= 4 * ds[f"{name}_stderr"]).all(), name


def test_no_finer_rule_is_begun_once_all_maps_are_spent():
    """One that the limit cuts off leaves the point before."""
    whole, first = solved(paper(**SOBOL), 1.63), solved(paper(**SOBOL), 1.63, max_nodes=4096)
    for more in (0, 1):
        ds = solved(paper(**SOBOL), 1.63, max_maps=int(first.iterations) + more)
        assert word(ds) == "converged"
        assert int(ds.nodes) == 4096 < int(whole.nodes)
        assert size(ds, "q_stderr") > 3 * size(whole, "q_stderr")
        assert_allclose(ds.q, first.q, rtol=1e-12)


@pytest.mark.parametrize(
    ("fields", "alpha", "branch", "limit"),
    [
        ({}, 1.37, "semantic", {"max_seconds": AT_ONCE}),
        (SOBOL, 0.81, "semantic", {"max_maps": 9}),
        (SOBOL, 1.63, "semantic", {"max_maps": 19}),  # it has lent its derivatives
        ({"integration.standard_error": 1e-2}, 1.63, "all", {"max_maps": 5}),
    ],
    ids=["a first map", "sobol", "derivatives", "all branches"],
)
def test_a_solve_goes_on_from_where_another_was_ended(fields, alpha, branch, limit):
    problem = paper(**fields)
    early, whole = (solved(problem, alpha, branch, stability=True, **some) for some in (limit, {}))
    on = solved(problem, alpha, branch, early, stability=True)
    assert (early.iterations < whole.iterations).all()
    assert (on.status == 0).all()
    assert (on.on_branch == whole.on_branch).all()
    for name in ("q", "V", "m", "theta", "test_error", "training_loss"):
        assert_allclose(on[name], whole[name], rtol=1e-5, atol=1e-7, err_msg=name)
        assert_allclose(on[f"{name}_stderr"], whole[f"{name}_stderr"], rtol=0.05, atol=1e-8, err_msg=name)
