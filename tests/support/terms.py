"""A model of one token for all tests of losses of this size: its parameters say which of its terms there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnphase.problem.problem import Problem

__all__ = ["of_terms"]

_TERMS = (
    "square*(h - scale*k + enters*b - shift - apart*c)**2/2 + logistic*softplus((2*c - 1)*(a*h + b))"
    " + wave*cos(b) + line*b - hill*b**2"
)
_NONE = {"square": 0.0, "logistic": 0.0, "wave": 0.0, "line": 0.0, "hill": 0.0}
_PLAIN = {"scale": 1.0, "enters": 1.0, "shift": 0.0, "apart": 0.0, "a": 1.0, "b": 0.0}


def of_terms(
    clusters: Sequence[Mapping[str, object]],
    weights: Sequence[float],
    strength: float,
    numbers: Mapping[str, float],
    **loss: object,
) -> Problem:
    """A token of these clusters, and the terms that are given a weight; parameters that are trained make it another."""
    law = {"kind": "independent", "weights": [*weights]}
    tokens = {"kind": "mixture", "length": 1, "clusters": [*clusters], "law": law}
    own = {"kind": "expression", "expression": _TERMS, "parameters": {**_NONE, **_PLAIN, **numbers}}
    return Problem.from_dict(
        {
            "tokens": tokens,
            "positions": {"kind": "none"},
            "regularizer": {"strength": strength},
            "loss": own | loss,
        }
    )
