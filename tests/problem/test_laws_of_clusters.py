"""The joint law of the tokens' clusters, against products written out by hand."""

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

import attnphase as ap

W = [0.2, 0.5, 0.3]
EACH = [[0.2, 0.5, 0.3], [0.6, 0.4], [0.1, 0.0, 0.9]]
CHAIN = [[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.0, 0.25, 0.75]]
TABLE = np.array([[[0.05, 0.1], [0.2, 0.15]], [[0.0, 0.3], [0.12, 0.08]]])
EQUAL = sum(w**3 for w in W)

# law, clusters of each token, and the probability of a configuration
LAWS: dict[str, tuple[dict[str, Any], tuple[int, ...], Callable[[tuple[int, ...]], float]]] = {
    "nothing is uniform": ({}, (3, 2), lambda _: 1 / 6),
    "independent": ({"weights": W}, (3, 3), lambda row: prod(W[c] for c in row)),
    "independent, of each token": (
        {"weights": EACH},
        (3, 2, 3),
        lambda row: prod(w[c] for w, c in zip(EACH, row, strict=True)),
    ),
    "a Markov chain": (
        {"kind": "markov", "weights": W, "transition": CHAIN},
        (3, 3, 3),
        lambda row: W[row[0]] * CHAIN[row[0]][row[1]] * CHAIN[row[1]][row[2]],
    ),
    "equal clusters": (
        {"kind": "same", "probability": 0.37, "weights": W},
        (3, 3, 3),
        lambda row: 0.37 * W[row[0]] if len({*row}) == 1 else 0.63 * prod(W[c] for c in row) / (1 - EQUAL),
    ),
    "always equal": (
        {"kind": "same", "probability": 1, "weights": W},
        (3,) * 4,
        lambda row: W[row[0]] if len({*row}) == 1 else 0.0,
    ),
    "never equal": (
        {"kind": "same", "probability": 0, "weights": [0.3, 0.7]},
        (2, 2),
        lambda row: 0.0 if len({*row}) == 1 else 0.5,
    ),
    "a table": ({"kind": "table", "table": TABLE.tolist()}, (2, 2, 2), lambda row: float(TABLE[row])),
    "a single location": ({"kind": "single-location"}, (2, 2, 2), lambda row: 1 / 3 if sum(row) == 1 else 0.0),
    "a single location, or none": (
        {"kind": "single-location", "probability": 0.3, "weights": W},
        (2, 2, 2),
        lambda row: [0.7, 0.3 * W[row.index(1)] if 1 in row else 0.0, 0.0, 0.0][sum(row)],
    ),
    "no location": ({"kind": "single-location", "probability": 0.0}, (2, 2), lambda row: float(sum(row) == 0)),
}


@pytest.mark.parametrize("name", LAWS)
def test_probabilities_of_configurations(name: str):
    """Those that are zero are left out."""
    law, counts, probability = LAWS[name]
    tokens = {"kind": "mixture", "length": len(counts), "clusters": [[{}] * count for count in counts], "law": law}
    problem = ap.Problem(tokens=tokens)
    found = {tuple(problem.sites[site][1] for site in row): p for row, p in zip(*problem.cluster_law, strict=True)}
    expected = {row: probability(row) for row in itertools.product(*map(range, counts))}
    assert sum(expected.values()) == pytest.approx(1, rel=1e-14)
    assert found == pytest.approx({row: p for row, p in expected.items() if p > 0}, rel=1e-13)
