"""Hypothesis strategies for problems, for property tests of one's own.

    from hypothesis import given
    from attnphase.testing import problems

    @given(problems())
    def test_something(problem): ...

Compiling a model takes seconds, so problems are drawn from a limited number of *shapes* (sizes, scores, tying, loss),
while every number is free; `models` are those whose losses are formulas.  Needs the package hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnphase import arguments
from attnphase.errors import MissingExtraError, ProblemError
from attnphase.problem.problem import Problem
from attnphase.problem.schema import sections
from attnphase.problem.teacher_priors import TEACHER_PRIORS
from attnphase.rows.kinds import REGULARIZERS

try:
    from hypothesis import strategies as st
except ModuleNotFoundError:
    raise MissingExtraError("attnphase.testing needs Hypothesis: pip install hypothesis.") from None

__all__ = [
    "MODELS",
    "SHAPES",
    "cluster_laws",
    "gram_matrices",
    "mixing_matrices",
    "models",
    "problems",
    "regularizers",
    "teacher_priors",
    "token_laws",
]

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
    several = _several(shapes)
    for shape in several:
        Problem().with_fields(shape)
    return _problems(several, _integration(nodes))


def _several(shapes: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    several = [shapes] if isinstance(shapes, Mapping) else arguments.items("shapes", shapes)
    return [arguments.mapping("shapes", shape, "a mapping from fields to values, or several") for shape in several]


def _integration(nodes: int) -> Strategy[dict[str, Any]]:
    """So few nodes, of any seed."""
    nodes = arguments.whole("nodes", nodes, 1, 2**24)
    if nodes & (nodes - 1):
        raise ProblemError("nodes", f"nodes must be a power of two, not {nodes}.")
    rule = {"integration.rule": st.just("sobol"), "integration.nodes": st.just(nodes)}
    return st.fixed_dictionaries({**rule, "integration.seed": st.integers(0, 3)})


@st.composite
def _problems(draw: Any, shapes: Sequence[Mapping[str, Any]], integration: Strategy[dict[str, Any]]) -> Problem:
    shape = dict(draw(st.sampled_from(shapes)))
    length = shape.get("tokens.length", 2)
    fields = {
        **shape,
        **draw(token_laws(length)),
        **draw(regularizers(Problem().with_fields(shape).columns)),
        "teacher.omega": draw(_numbers(0, 1)),
        "teacher.mixing": draw(mixing_matrices(length)),
        **draw(integration),
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


def teacher_priors() -> Strategy[dict[str, Any]]:
    """Fields of ``[teacher]`` that say how the entries of its weights are distributed, by every shipped law."""
    return st.sampled_from(sorted(TEACHER_PRIORS)).flatmap(lambda name: _PRIORS[name].map(_of_prior(name)))


def _of_prior(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda rest: {"teacher.prior": name} | {f"teacher.prior_{key}": value for key, value in rest.items()}


def _named(**numbers: Strategy[Any]) -> Strategy[dict[str, Any]]:
    return st.fixed_dictionaries(numbers)


_PRIORS: dict[str, Strategy[dict[str, Any]]] = {
    "gaussian": _named(),
    "rademacher": _named(),
    "gauss-bernoulli": _named(density=_numbers(0.1, 1)),
    "atoms": _named(
        values=st.tuples(_numbers(-1.5, -0.5), _numbers(-0.2, 0.2), _numbers(0.5, 1.5)), probabilities=_weights(3)
    ),
}

_TWO_COLUMNS = {"teacher.rank": 2, "student.rank": 2, "positions.kind": "none"}
_NOISE = _numbers(0, 0.3)


def _clusters(count: int) -> Strategy[list[dict[str, Any]]]:
    one = _named(sigma=_numbers(0.6, 1.2), mean=st.tuples(_numbers(-2, 2)))
    return st.lists(one, min_size=count, max_size=count)


def _formula(text: str, **parameters: Strategy[float]) -> dict[str, Any]:
    return {"loss.kind": "expression", "loss.expression": text, "loss.parameters": _named(**parameters)}


def _penalty(name: str) -> Strategy[dict[str, str]]:
    return _named(**{name: _numbers(0.01, 0.1).map(lambda strength: f"{strength}*{name}**2")})


_RIDGE = _numbers(0.05, 0.4)
_RIDGES = _RIDGE | st.tuples(_RIDGE, _RIDGE)


MODELS: tuple[Mapping[str, Any], ...] = (
    # two heads, the second of any weight, with noise on the attention of both
    _TWO_COLUMNS
    | {
        "tokens.sigma": _numbers(0.6, 1.1),
        "teacher.noise": _NOISE,
        **_formula(
            "heads = softmax(h[:, :1] @ h[:, :1].T) + share*softmax(h[:, 1:] @ h[:, 1:].T)\n"
            "label = softmax(k[:, :1] @ k[:, :1].T) + share*softmax(k[:, 1:] @ k[:, 1:].T)\n"
            "sum((heads - label - noise)**2)/8",
            share=_numbers(0, 1),
        ),
        "regularizer.strength": _RIDGES,
        "metrics.distance": "(h0_0 - k0_0)**2",
        "metrics.wrong": "(1 - sign(h0_0*k0_0))/2",
    },
    # two layers, the first as strong as one likes
    _TWO_COLUMNS
    | {
        "tokens.sigma": _numbers(0.6, 1.1),
        **_formula(
            "u = (skip*eye(L) + first*softmax(h[:, :1] @ h[:, :1].T)) @ h[:, 1:]\n"
            "v = (skip*eye(L) + first*softmax(k[:, :1] @ k[:, :1].T)) @ k[:, 1:]\n"
            "sum((softmax(u @ u.T) - softmax(v @ v.T))**2)/2",
            first=_numbers(0, 1),
            skip=_numbers(0.5, 1.5),
        ),
        "regularizer.strength": _RIDGES,
    },
    # the token that matters is in a cluster of its own, along the student's first column if it has learnt
    _TWO_COLUMNS
    | {
        "tokens.kind": "mixture",
        "tokens.clusters": _clusters(2),
        "tokens.law": st.fixed_dictionaries({"kind": st.just("single-location"), "weights": _weights(2)}),
        "tokens.mean_teacher": st.tuples(st.tuples(_numbers(0.2, 0.9)), st.just((0.0,))),
        "teacher.noise": _NOISE,
        **_formula("(c @ k[:, 1] + noise[0, 0] - softmax(beta*h[:, 0]) @ h[:, 1])**2/2", beta=_numbers(0.5, 2)),
        "regularizer.strength": _RIDGES,
    },
    # a trained temperature
    {
        "positions.kind": "none",
        "tokens": token_laws(2),
        "loss.trained": _penalty("beta"),
        **_formula("sum((softmax(beta*h @ h.T) - softmax(k @ k.T))**2)/2", beta=_numbers(0.5, 1.5)),
        "regularizer.strength": _numbers(0.02, 0.2),
    },
    # two classes, with a trained bias
    {
        "tokens.kind": "mixture",
        "tokens.length": 1,
        "tokens.clusters": _clusters(2),
        "tokens.law": st.fixed_dictionaries({"kind": st.just("independent"), "weights": _weights(2)}),
        "loss.trained": _penalty("b"),
        **_formula("softplus((1 - 2*c)*(h + b))", b=_numbers(-0.5, 0.5)),
        "regularizer": regularizers(),
        "metrics.wrong": "(1 - (1 - 2*c)*sign(h + b))/2",
        "metrics.margin": "(1 - 2*c)*(h + b)",
    },
    # teachers of any prior, whose fields are tilted and have heavy tails
    {
        "tokens.length": 1,
        "tokens.sigma": _numbers(0.6, 1.1),
        "tokens.density": "1 + tilt*tanh(k)",
        "tokens.sampler": "k + tail*k**3",
        "tokens.parameters": _named(tilt=_numbers(-0.9, 0.9), tail=_numbers(0, 0.2)),
        "teacher": teacher_priors(),
        "teacher.noise": _NOISE,
        **_formula(
            "sqrt(delta**2 + (h - scale*k - noise)**2) - delta", scale=_numbers(0.5, 2), delta=_numbers(0.3, 1.5)
        ),
        "regularizer": regularizers(),
    },
    # an autoencoder, whose loss takes the products of its weights
    {
        "positions.kind": "none",
        "tokens.kind": "mixture",
        "tokens.clusters": _clusters(2),
        "tokens.law": _named(kind=st.just("same"), probability=_numbers(0.3, 0.95)),
        **_formula("p = tanh(gain*h)\nsum(p @ Q * p)/2 - sum(h*p)", gain=_numbers(0.5, 1.5)),
        "regularizer.strength": _numbers(0.7, 2),
    },
)
"""What `models` draws from: fields, and sections, with values or strategies for them; each is compiled once."""


def models(shapes: Mapping[str, Any] | Sequence[Mapping[str, Any]] = MODELS, nodes: int = 16) -> Strategy[Problem]:
    """Random models whose loss is a formula, with the ingredients of later work.

    Among them are trained parameters, losses of Q, other laws of the teacher's fields, clusters that say which token
    matters, several metrics, a ridge for each column, priors of the teacher, and noise on the labels.

    Parameters
    ----------
    shapes : mapping or sequence of mappings
        What to choose from: values of fields, or strategies for them. A strategy under the name of a section, such as
        ``tokens``, is one for several fields by their whole names.
    nodes : int
        Sobol points per replicate, a power of two, as of `problems`.

    Returns
    -------
    strategy of Problem
        All of them valid if `shapes` are.

    Raises
    ------
    ProblemError
        `shapes` are no mappings, or `nodes` is no power of two; when it draws, fields are wrong.

    Examples
    --------
    >>> from hypothesis import strategies as st
    >>> square = {"tokens.length": 1, "loss.kind": "square", "regularizer.strength": st.floats(0.1, 0.2)}
    >>> strategy = models(square, nodes=8)
    """
    return st.builds(_model, st.sampled_from(_several(shapes)).flatmap(_values), _integration(nodes))


def _values(shape: Mapping[str, Any]) -> Strategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {name: value if isinstance(value, Strategy) else st.just(value) for name, value in shape.items()}
    )


def _model(values: Mapping[str, Any], integration: Mapping[str, Any]) -> Problem:
    fields = dict(integration)
    for name, value in values.items():
        # a section stands for the fields that were drawn for it
        fields |= value if name in sections() else {name: value}
    return Problem().with_fields(fields)


def __dir__() -> list[str]:
    return __all__
