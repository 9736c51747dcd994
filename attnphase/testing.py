"""Hypothesis strategies for problems, for property tests of one's own.

    from hypothesis import given
    from attnphase.testing import problems

    @given(problems())
    def test_something(problem): ...

Compiling a model takes seconds, so problems are drawn from a limited number of *shapes* (sizes, scores, tying, loss),
while every number is free.  Needs the package hypothesis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from attnphase.rows.kinds import REGULARIZERS

__all__ = ["SHAPES", "cluster_laws", "gram_matrices", "mixing_matrices", "problems", "regularizers", "token_laws"]

Strategy = st.SearchStrategy

SHAPES: tuple[Mapping[str, Any], ...] = (
    {},
    {"student.tied": False},
    {"student.rank": 2},
    {"student.rank": 2, "teacher.rank": 2},
    {"student.score": "linear", "teacher.score": "linear"},
    {"student.score": "sigmoid"},
    {"student.score": "softmax1", "teacher.score": "relu"},
    {"student.score": "relu"},
    {"student.causal": True, "teacher.causal": True},
    {"tokens.length": 3},
    {"tokens.length": 3, "student.score": "z / sqrt(0.3 + sum(z**2))"},
    {"tokens.length": 1, "loss.kind": "square"},
    {"tokens.length": 1, "loss.kind": "logistic"},
    {"tokens.length": 1, "loss.kind": "hinge"},
    {"loss.kind": "values", "loss.width": 1},
)
"""Sizes, scores, tying and losses that `problems` draws from; each is a model to be compiled once."""


def _numbers(low: float, high: float) -> Strategy[float]:
    """Numbers of a range with few digits, so that failing examples are readable."""
    return st.integers(0, 1000).map(lambda i: round(low + (high - low) * i / 1000, 6))


def gram_matrices(size: int, largest: float = 1.3) -> Strategy[list[list[float]]]:
    """Positive semidefinite matrices, singular ones among them, as nested lists.

    Raises
    ------
    ProblemError
        An argument is wrong.
    """
    size = arguments.whole("size", size, 1)
    return _gram_matrices(size, arguments.number("largest", largest, lambda x: x > 0, "a positive number"))


@st.composite
def _gram_matrices(draw: Any, size: int, largest: float) -> list[list[float]]:
    rank = draw(st.integers(1, size))
    factor = np.array(draw(st.lists(_numbers(-1, 1), min_size=size * rank, max_size=size * rank))).reshape(size, rank)
    return (largest * factor @ factor.T / rank).tolist()


def mixing_matrices(size: int) -> Strategy[list[list[float]]]:
    """Positional parts A of the teacher.

    Raises
    ------
    ProblemError
        `size` is no whole number from 1 on.
    """
    size = arguments.whole("size", size, 1)
    return st.lists(st.lists(_numbers(0, 1), min_size=size, max_size=size), min_size=size, max_size=size)


def _weights(count: int) -> Strategy[list[float]]:
    def normalised(parts: list[int]) -> list[float]:
        return [part / sum(parts) for part in parts]

    return st.lists(st.integers(1, 9), min_size=count, max_size=count).map(normalised)


def cluster_laws(counts: int | Sequence[int]) -> Strategy[dict[str, Any]]:
    """Joint laws of the clusters of tokens that have so many each, of every ready-made kind and as tables.

    Raises
    ------
    ProblemError
        `counts` are no whole numbers from 1 on.
    """
    return _cluster_laws([arguments.whole("counts", count, 1) for count in arguments.items("counts", counts)])


@st.composite
def _cluster_laws(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    equal = len(set(counts)) == 1
    kinds = ["independent", "table"] + (["markov", "same"] if equal and len(counts) > 1 and counts[0] > 1 else [])
    kinds += ["single-location"] if {*counts} == {2} else []
    kind = draw(st.sampled_from(kinds))
    return {"kind": kind, **_LAWS[kind](draw, counts)}


def _independent(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    return {"weights": [draw(_weights(count)) for count in counts]}


def _same(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    return {"probability": draw(_numbers(0.05, 0.95)), "weights": draw(_weights(counts[0]))}


def _markov(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    transition = [draw(_weights(counts[0])) for _ in range(counts[0])]
    return {"weights": draw(_weights(counts[0])), "transition": transition}


def _table(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    return {"table": np.array(draw(_weights(int(np.prod(counts))))).reshape(counts).tolist()}


def _single(draw: Any, counts: Sequence[int]) -> dict[str, Any]:
    return {"weights": draw(_weights(len(counts))), "probability": draw(_numbers(0, 1))}


_LAWS = {"independent": _independent, "table": _table, "markov": _markov, "same": _same, "single-location": _single}


def token_laws(length: int) -> Strategy[dict[str, Any]]:
    """Fields of ``[tokens]``: Gaussian with variances or a spectrum, or a mixture of up to three clusters a token.

    Raises
    ------
    ProblemError
        `length` is no whole number from 1 to 16.
    """
    return _token_laws(arguments.whole("length", length, 1, 16))


@st.composite
def _token_laws(draw: Any, length: int) -> dict[str, Any]:
    return draw(st.sampled_from([_one_sigma, _sigmas, _spectrum, _mixture]))(draw, length)


_SIGMA = _numbers(0.3, 0.9)


def _one_sigma(draw: Any, length: int) -> dict[str, Any]:
    return {"tokens.sigma": draw(_SIGMA)}


def _sigmas(draw: Any, length: int) -> dict[str, Any]:
    return {"tokens.sigma": draw(st.lists(_SIGMA, min_size=length, max_size=length))}


def _spectrum(draw: Any, length: int) -> dict[str, Any]:
    weights = draw(st.integers(1, 3).flatmap(_weights))
    variances = st.lists(_numbers(0.05, 0.8), min_size=length, max_size=length)
    return {"tokens.spectrum": [{"weight": w, "variances": draw(variances)} for w in weights]}


def _mixture(draw: Any, length: int) -> dict[str, Any]:
    # at most six configurations: each costs as much as a problem without clusters
    counts = [draw(st.integers(1, 2)) for _ in range(length)]
    counts[0] = draw(st.integers(1, 3)) if length < 3 else counts[0]
    directions = draw(st.integers(0, 2))
    mean = st.lists(_numbers(-1.5, 1.5), min_size=directions, max_size=directions)
    clusters = [[{"sigma": draw(_SIGMA), "mean": draw(mean)} for _ in range(count)] for count in counts]
    return {"tokens.kind": "mixture", "tokens.clusters": clusters, "tokens.law": draw(cluster_laws(counts))}


def regularizers(columns: int = 1) -> Strategy[dict[str, Any]]:
    """Fields of ``[regularizer]`` of every shipped kind, and a smooth convex expression.

    With several columns mostly the ridge: the others integrate over rows of weights, which takes seconds a solve.

    Raises
    ------
    ProblemError
        `columns` is no whole number from 1 on.
    """
    return _regularizers(arguments.whole("columns", columns, 1))


@st.composite
def _regularizers(draw: Any, columns: int) -> dict[str, Any]:
    shipped = [name for name, form in REGULARIZERS.items() if not (form.quadratic or form.own)]
    kinds = ["ridge", "ridge", *shipped, "expression"] if columns == 1 else ["ridge"] * 60 + shipped
    kind = draw(st.sampled_from(kinds))
    strength = draw(_numbers(0.004, 0.05))
    form = REGULARIZERS[kind]
    if form.own:
        return {"regularizer.kind": kind, f"regularizer.{form.own}": "0.02*sqrt(w**2 + 0.3) + 0.005*w**2"}
    each = kind == "ridge" and columns > 1 and draw(st.booleans())
    strengths = [strength, *(draw(_numbers(0.004, 0.05)) for _ in range(columns - 1))] if each else strength
    fields: dict[str, Any] = {"regularizer.kind": kind, "regularizer.strength": strengths}
    if "ridge" in form.keys:
        fields["regularizer.ridge"] = draw(_numbers(0.001, 0.05))
    return fields


def problems(
    shapes: Mapping[str, Any] | Sequence[Mapping[str, Any]] = SHAPES,
    nodes: int = 16,
) -> Strategy[Problem]:
    """Random problems over everything the theory covers.

    Parameters
    ----------
    shapes : mapping or sequence of mappings
        Fields that decide about the model to be compiled, to choose from.
    nodes : int
        Sobol points per replicate, a power of two: few, so that a solve takes a fraction of a second.

    Returns
    -------
    strategy of Problem
        All of them valid.

    Raises
    ------
    ProblemError
        A shape is not of fields of a problem, or `nodes` is no power of two.
    """
    several = [shapes] if isinstance(shapes, Mapping) else arguments.items("shapes", shapes)
    several = [arguments.mapping("shapes", shape, "a mapping from fields to values, or several") for shape in several]
    for shape in several:
        Problem().with_fields(shape)
    nodes = arguments.whole("nodes", nodes, 1, 2**24)
    if nodes & (nodes - 1):
        raise ProblemError("nodes", f"nodes must be a power of two, not {nodes}.")
    return _problems(several, nodes)


@st.composite
def _problems(draw: Any, shapes: Sequence[Mapping[str, Any]], nodes: int) -> Problem:
    shape = dict(draw(st.sampled_from(list(shapes))))
    length = shape.get("tokens.length", 2)
    fields = {
        **shape,
        **draw(token_laws(length)),
        **draw(regularizers(Problem().with_fields(shape).columns)),
        "teacher.omega": draw(_numbers(0, 1)),
        "teacher.mixing": draw(mixing_matrices(length)),
        "integration.rule": "sobol",
        "integration.nodes": nodes,
        "integration.seed": draw(st.integers(0, 3)),
    }
    positions = draw(st.sampled_from(["default", "gram", "none"]))
    if positions == "gram":
        fields["positions.gram"] = draw(gram_matrices(length))
    elif positions == "none":
        fields["positions.kind"] = "none"
    if "loss.kind" not in shape:
        fields["student.temperature"] = draw(_numbers(0.5, 2.0))
        fields["teacher.temperature"] = draw(_numbers(0.5, 2.0))
    return Problem().with_fields(fields)
