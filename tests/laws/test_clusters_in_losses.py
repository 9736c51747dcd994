"""Losses that know the clusters of tokens: against losses with the numbers written in, and which samples are alike.

Not public: which symmetries a loss leaves for all clusters no result says.
"""

from typing import Any

import numpy as np
import pytest
from other_laws import evaluated, rule_of

import attnphase as ap
from attnphase.interface import Overlaps
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System

BENT = "sqrt(1 + (h0_0 - (0.7*{0} - 0.4)*k0_0 + 0.3*noise0_1)**2)*(1 + {1}) + (h1_0 - k1_0*{1})**2*(0.3 + 0.1*{0})"
PAIR = [{"sigma": 0.9, "mean": [0.4]}, {"sigma": 0.7, "mean": [-0.5]}]
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def two_tokens(loss: str, noise: float = 0.3, table: Any = ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))) -> ap.Problem:
    """The first token is in its second cluster, the other one in its third."""
    clusters = [PAIR, [*PAIR, {"sigma": 0.8, "mean": [0.9]}]]
    return ap.Problem.from_dict(
        {
            "tokens": {
                "kind": "mixture",
                "clusters": clusters if len(table[0]) == 3 else PAIR,
                "mean_teacher": [[0.6]],
                "law": {"kind": "table", "table": [*map(list, table)]},
            },
            "positions": {"kind": "none"},
            "teacher": {"noise": noise},
            "loss": {"kind": "expression", "expression": loss},
            "integration": {"rule": "sobol", "nodes": 1},
        }
    )


def test_maps_with_known_numbers_are_those_with_written_ones() -> None:
    gamma, means = (np.array(x)[:, None, None] for x in ((0.81, 0.49, 0.81, 0.49, 0.64), (0.4, -0.5, 0.4, -0.5, 0.9)))
    at = Overlaps(0.8 * gamma, 1.3 * gamma, 0.7 * means, 0.55 * gamma)
    systems = [System.of(two_tokens(BENT.format(*numbers))) for numbers in (("c0", "c1"), ("1", "2"))]
    ours, theirs = (evaluated(one, rule_of("sobol", one, 2, 8), 1.7, at) for one in systems)
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-8, atol=1e-12, err_msg=key)
    assert abs(theirs["theta_hat"][1]) > 0.02


def test_symmetries_hold_for_all_numbers() -> None:
    """Of a loss that is even for one cluster and turns its columns for two, and does neither for the third."""
    squares = "sqrt(1 + (h0_0**2 + h0_1**2 - k0_0**2)**2)"
    loss = f"{squares}*(c - 1)**2 + c*(2 - c)*(h0_0 - k0_0 - 0.3)**2/2 + c*h0_1**2/9"

    def of(weights: tuple[float, ...]) -> System:
        law = {"kind": "independent", "weights": [*weights]}
        tokens = {"kind": "mixture", "length": 1, "clusters": [{"sigma": 0.9}] * len(weights), "law": law}
        whole = {"tokens": tokens, "student": {"rank": 2}, "loss": {"kind": "expression", "expression": loss}}
        return System.of(ap.Problem.from_dict(whole))

    systems = [of(weights) for weights in ((1.0,), (0.4, 0.6), (0.4, 0.0, 0.6))]
    assert [one.sample_law.clusters for one in systems] == [((0.0,),), ((0.0,), (1.0,)), ((0.0,), (2.0,))]
    assert [one.has_even_loss for one in systems] == [True, False, True]
    assert [len(loss_symmetries(one.loss, one.sample_law.clusters)) for one in systems] == [16, 2, 8]
    assert [len(one.gauge.turns) for one in systems] == [1, 0, 0]


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("(h0_0 - k0_0)**2/(2*c0 - c1)", "not finite at c0 = 1, c1 = 2, h0_0 = 0"),
        ("(h0_0 - k0_0)**2*(c1 - 3*c0)", "falls without bound, .* at c0 = 1, c1 = 2, h0_0 ="),
        ("(h0_0 - k0_0)**2*(4*c0 - c1)/c1", None),  # infinite for clusters that no sample has
    ],
)
def test_a_formula_is_held_to_the_clusters_that_samples_have(loss: str, says: str | None) -> None:
    if says is None:
        assert two_tokens(loss, noise=0.0).loss.form.cluster_columns == 1
        return
    with pytest.raises(ap.errors.ProblemError, match=rf"^loss\.expression .*{says}"):
        two_tokens(loss, noise=0.0)
