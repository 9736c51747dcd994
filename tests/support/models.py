"""The models that most tests solve: twelve, whose numbers choose what there is in them.

Any other takes a second to compile.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attnphase as ap

_TERMS = (
    "square*(h - scale*k + enters*b - shift - apart*c)**2/2 + logistic*softplus((2*c - 1)*(a*h + b))"
    " + wave*cos(b) + line*b - hill*b**2"
)
_NONE = {"square": 0.0, "logistic": 0.0, "wave": 0.0, "line": 0.0, "hill": 0.0}
_PLAIN = {"scale": 1.0, "enters": 1.0, "shift": 0.0, "apart": 0.0, "a": 1.0, "b": 0.0}
_KINKS = (
    "r = scale*k + noise + shift - h\n"
    "quantile*max(tau*r, (tau - 1)*r) + square*r**2/2 + hinge*relu(1 - sign(k + noise)*(h + b)) + modulus*abs(h)"
)
_HEADS = (
    "own = softmax(h[:, :1] @ h[:, :1].T) + share*softmax(h[:, 1:] @ h[:, 1:].T)\n"
    "label = softmax(k[:, :1] @ k[:, :1].T) + share*softmax(k[:, 1:] @ k[:, 1:].T)\n"
    "heads*sum((own - label)**2)/8 + located*(k[0, 1] - softmax(beta*h[:, 0]) @ h[:, 1])**2/2"
)
_ONE = {"tokens.length": 1, "tokens.sigma": 0.9, "positions.kind": "none"}
_TWO = {"student.rank": 2, "teacher.rank": 2}
_CLASSES = {
    "tokens.kind": "mixture",
    "tokens.length": 1,
    "tokens.clusters": [{"sigma": 0.8, "mean": [0.9]}, {"sigma": 1.1, "mean": [-0.7]}],
    "tokens.law": {"kind": "independent", "weights": [0.4, 0.6]},
    "positions.kind": "none",
}


def _formula(text: str, **numbers: float) -> dict[str, Any]:
    return {"loss.kind": "expression", "loss.expression": text, "loss.parameters": numbers}


MODELS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "noisy": {"teacher.noise": 0.2},
    "untied": {"student.tied": False},
    "rank 2": _TWO,
    "three tokens": {"tokens.length": 3},
    "linear": {"student.score": "linear", "teacher.score": "linear"},
    "square": _ONE | {"loss.kind": "square"},
    "logistic": _ONE | {"loss.kind": "logistic"},
    "terms": _CLASSES | _formula(_TERMS, **_NONE | {"logistic": 1.0}, **_PLAIN),
    "trained": _CLASSES
    | _formula(_TERMS, **_NONE | {"logistic": 1.0}, **_PLAIN)
    | {"loss.trained": {"b": "0.02*b**2"}},
    "kinks": _ONE
    | {"teacher.noise": 0.1, "regularizer.strength": 0.1}
    | _formula(_KINKS, scale=1, shift=0, quantile=1, tau=0.7, square=0, hinge=0, b=0, modulus=0),
    "heads": _TWO
    | {"positions.kind": "none", "tokens.sigma": 0.9}
    | _formula(_HEADS, heads=1, share=0.6, located=0, beta=1.2),
}
"""Fields of each; every number of them may be changed without compiling another."""

MIXTURE: dict[str, Any] = {
    "tokens.kind": "mixture",
    "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}, {"sigma": 0.6, "mean": [-0.4]}]] * 2,
    "tokens.law": {"kind": "same", "probability": 0.8},
    "tokens.mean_teacher": [[0.6]],
}
"""Fields of two clusters along the teacher, to which both tokens mostly belong."""


def model(name: str, fields: Mapping[str, Any] | None = None) -> ap.Problem:
    """A problem of one of the twelve models, with fields of its own, such as ``loss.parameters.square``."""
    return ap.Problem().with_fields({**MODELS[name], **(fields or {})})


def of_terms(
    clusters: Sequence[Mapping[str, object]],
    weights: Sequence[float],
    strength: float,
    numbers: Mapping[str, float],
    **loss: object,
) -> ap.Problem:
    """A token of these clusters, and the terms that are given a weight; parameters that are trained make it another."""
    law = {"kind": "independent", "weights": [*weights]}
    tokens = {"kind": "mixture", "length": 1, "clusters": [*clusters], "law": law}
    own = {"kind": "expression", "expression": _TERMS, "parameters": {**_NONE, **_PLAIN, **numbers}}
    return ap.Problem.from_dict(
        {"tokens": tokens, "positions": {"kind": "none"}, "regularizer": {"strength": strength}, "loss": own | loss}
    )
