"""What an ingredient of a declaration costs: seconds to compile a model that has it, and to solve it to .1 %."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from benchmarks.commands import compiling
from benchmarks.measuring import Options, Row, clock_named, timed

__all__ = ["INGREDIENTS", "rows"]

_TWO_COLUMNS = {"teacher": {"rank": 2}, "student": {"rank": 2}, "positions": {"kind": "none"}}
_SPIKE = {
    "kind": "mixture",
    "clusters": [{"sigma": 1.0, "mean": [0.0]}, {"sigma": 1.0, "mean": [2.0]}],
    "law": {"kind": "single-location"},
    "mean_teacher": [[1.0], [0.0]],
}
_LOCATION = {
    "teacher": {"rank": 2, "noise": 0.1},
    "student": {"rank": 2},
    "positions": {"kind": "none"},
    "regularizer": {"strength": 0.3},
}
_CLASSES = {"kind": "mixture", "length": 1, "clusters": [{"sigma": 1.0, "mean": [-1.0]}, {"sigma": 1.0, "mean": [1.0]}]}
_ONE = {"tokens": {"length": 1, "sigma": 1.0}}


def _formula(text: str, **rest: Any) -> dict[str, Any]:
    return {"loss": {"kind": "expression", "expression": text, **rest}}


class Model(NamedTuple):
    """A model with an ingredient, at one of its points."""

    declaration: dict[str, Any]
    alpha: float = 2.0
    branch: str = "semantic"


INGREDIENTS = {
    "none: the paper's model": Model({}),
    "lasso": Model({"regularizer": {"kind": "lasso", "strength": 0.003}}),
    "a ridge for each column, untied": Model({"student": {"tied": False}, "regularizer": {"strength": [0.02, 0.005]}}),
    "a causal mask": Model({"teacher": {"causal": True}, "student": {"causal": True}}),
    "noise on the attention matrix": Model({"teacher": {"noise": 0.1}}, 10.0),
    "the same noise, where there is no branch": Model({"teacher": {"noise": 0.1}}),
    "two heads": Model(
        _TWO_COLUMNS
        | {"tokens": {"sigma": 1.0}, "regularizer": {"strength": 0.1}}
        | _formula(
            "heads = softmax(h[:, :1] @ h[:, :1].T) + softmax(h[:, 1:] @ h[:, 1:].T)\n"
            "label = softmax(k[:, :1] @ k[:, :1].T) + softmax(k[:, 1:] @ k[:, 1:].T)\nsum((heads - label)**2)/8"
        )
    ),
    "two layers": Model(
        _TWO_COLUMNS
        | {"tokens": {"sigma": 1.0}, "regularizer": {"strength": 0.1}}
        | _formula(
            "u = (eye(L) + softmax(h[:, :1] @ h[:, :1].T)) @ h[:, 1:]\n"
            "v = (eye(L) + softmax(k[:, :1] @ k[:, :1].T)) @ k[:, 1:]\nsum((softmax(u @ u.T) - softmax(v @ v.T))**2)/2"
        ),
        4.0,
    ),
    "cross-entropy over tokens": Model(
        {"positions": {"kind": "none"}, "tokens": {"sigma": 1.0}, "regularizer": {"strength": 0.1}}
        | _formula("S = softmax(k @ k.T)\n-sum(S*log(softmax(h @ h.T)))")
    ),
    "a relevant token, in a cluster": Model(
        {**_LOCATION, "tokens": _SPIKE} | _formula("(c @ k[:, 1] + noise[0, 0] - softmax(h[:, 0]) @ h[:, 1])**2/2"), 4.0
    ),
    "a relevant token, by its field": Model(
        {**_LOCATION, "tokens": {"length": 2, "sigma": 1.0}}
        | _formula(
            "first = (1 + sign(k[0, 0] - k[1, 0]))/2\n"
            "(first*k[0, 1] + (1 - first)*k[1, 1] + noise[0, 0] - softmax(h[:, 0]) @ h[:, 1])**2/2"
        ),
        4.0,
    ),
    "classes, logistic loss": Model(
        {"regularizer": {"strength": 0.1}, "positions": {"kind": "none"}, "tokens": _CLASSES}
        | _formula("softplus((1 - 2*c[0])*h[0, 0])"),
        branch="uninformed",
    ),
    "the same with a trained bias": Model(
        {"regularizer": {"strength": 0.1}, "positions": {"kind": "none"}}
        | {"tokens": _CLASSES | {"law": {"kind": "independent", "weights": [0.3, 0.7]}}}
        | _formula("softplus((1 - 2*c[0])*(h[0, 0] + b))", parameters={"b": 0.0}, trained={"b": "b**2/1000"}),
        branch="uninformed",
    ),
    "a trained temperature": Model(
        {"positions": {"kind": "none"}, "tokens": {"sigma": 1.0}, "regularizer": {"strength": 0.1}}
        | _formula(
            "sum((softmax(beta*h @ h.T) - softmax(k @ k.T))**2)/2",
            parameters={"beta": 1.0},
            trained={"beta": "0.05*beta**2"},
        )
    ),
    "a trained read-out": Model(
        {**_ONE, "teacher": {"noise": 0.1}, "regularizer": {"strength": 0.1}}
        | _formula(
            "(tanh(2*k[0, 0]) + noise[0, 0] - a*tanh(h[0, 0]))**2/2", parameters={"a": 1.0}, trained={"a": "0.05*a**2"}
        )
    ),
    "a loss of the weights' products Q": Model(
        {"regularizer": {"strength": 1.0}, "positions": {"kind": "none"}}
        | {"tokens": _CLASSES | {"length": 2, "law": {"kind": "same", "probability": 0.8}}}
        | _formula("p = tanh(h)\nsum(p @ Q * p)/2 - sum(h*p)"),
        branch="positional",
    ),
    "another law of the teacher's fields": Model(
        {"tokens": {"length": 1, "sigma": 1.0, "density": "1 + tanh(k)/2"}, "loss": {"kind": "square"}}
    ),
    "fields with heavy tails": Model(
        {"tokens": {"length": 1, "sigma": 1.0, "sampler": "k + k**3/10"}, "loss": {"kind": "square"}}
    ),
    "a prior of the teacher, with lasso": Model(
        {**_ONE, "teacher": {"noise": 0.2, "prior": "rademacher"}, "loss": {"kind": "square"}}
        | {"regularizer": {"kind": "lasso", "strength": 0.3}}
    ),
    "a kink: hinge loss": Model({**_ONE, "loss": {"kind": "hinge"}}, 3.0),
    "two test metrics": Model(
        {"metrics": {"wrong": "(1 - sign((h0_0 - h1_0)*(k0_0 - k1_0)))/2", "distance": "(h0_0 - k0_0)**2"}}
    ),
}
"""A model of at most four student's fields for each; those of the literature are on pages of their own."""


def rows(options: Options) -> Iterator[Row]:
    """Two rows for each: the model compiled in a process of its own, and a second solve."""
    clock, settings = clock_named(options.clock), SolverSettings(threads=options.threads)
    for name, model in list(INGREDIENTS.items())[: 1 if options.quick else None]:
        problem, last = Problem.from_dict(model.declaration), list[BranchPoint]()
        if not options.quick:
            yield Row(f"compile: {name}", "s", compiling(problem, options.clock), most=1)

        def solve(problem: Problem = problem, model: Model = model, last: list[BranchPoint] = last) -> None:
            last[:] = [solve_point(problem, model.alpha, model.branch, settings=settings)]

        solve()
        yield Row(
            f"solve: {name}",
            "s",
            lambda solve=solve: timed(clock, solve),
            most=3,
            outcome=lambda last=last: f"{last[0].nodes} nodes, {last[0].status.name}, {_error(last[0]):.2%} of q",
        )


def _error(point: BranchPoint) -> float:
    """The largest standard error of q relative to the largest entry."""
    return float(abs(point.errors["q"]).max() / abs(point.values["q"]).max())
