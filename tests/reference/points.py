"""The 200 points of the reference: what is computed, by what is public, and their numbers as one table.

A point is a call and its arguments.  The models are all ingredients a problem can have; each is solved on its
branches, some by every rule, and then come the other theories.  Nothing here depends on how the solver works.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

import attnphase as ap

__all__ = ["POINTS", "Number", "Point", "numbers_of"]

LEFT_OUT = {"residual", "iterations", "nodes", "unsolved_nodes", "found", "free_energy_gap", "evaluations", "solves"}
"""How a number was reached, which is no number of the theory."""


@dataclass(frozen=True)
class Number:
    """One number of a point, whose error is NaN if none is stated; a whole one counts, or stands for a word."""

    name: str
    value: float
    error: float
    whole: bool


@dataclass(frozen=True)
class Point:
    """A call of the package, one of `CALLS`, with its arguments."""

    name: str
    call: str
    problem: ap.Problem
    given: Mapping[str, Any] = field(default_factory=dict)

    def compute(self) -> list[Number]:
        """The numbers of the point."""
        return numbers_of(CALLS[self.call](self.problem, **self.given))


def numbers_of(result: xr.Dataset) -> list[Number]:
    """All numbers of a dataset that belong to the theory, each with its stated error."""
    numbers = []
    for name, variable in result.data_vars.items():
        if str(name).endswith("_stderr") or name in LEFT_OUT or variable.dtype.kind not in "fiub":
            continue
        values, whole = np.asarray(variable.values, dtype=float), variable.dtype.kind != "f"
        errors = result.get(f"{name}_stderr")
        stated = np.full(values.shape, np.nan) if errors is None else np.asarray(errors.values, dtype=float)
        for place in np.ndindex(values.shape):
            at = f"[{', '.join(map(str, place))}]" if place else ""
            numbers.append(Number(f"{name}{at}", float(values[place]), float(stated[place]), whole))
    return numbers


def _predictor(problem: ap.Problem, label: str, kind: Any) -> xr.Dataset:
    found = ap.best_predictor(problem, label, kind)
    return xr.Dataset({"error": found.error, "error_stderr": found.standard_error})


def _ends_and_folds(problem: ap.Problem, **given: Any) -> xr.Dataset:
    """Of a followed branch the points that do not depend on the lengths of steps."""
    curve = ap.follow(problem, **given)
    kept = [0, *np.flatnonzero(curve["turn"].to_numpy().ravel()), curve.sizes["arclength"] - 1]
    return curve.isel(arclength=kept)


CALLS: Mapping[str, Callable[..., xr.Dataset]] = {
    "solve": ap.solve,
    "solutions": ap.solutions,
    "follow": _ends_and_folds,
    "sensitivity": ap.sensitivity,
    "tune": ap.tune,
    "thresholds": ap.thresholds,
    "bayes_optimal": ap.bayes_optimal,
    "one_rsb": ap.one_rsb,
    "sgd_flow": ap.sgd_flow,
    "stationary": ap.stationary,
    "basins": ap.basins,
    "best_predictor": _predictor,
}


def _formula(text: str, **parameters: float) -> dict[str, Any]:
    return {"loss.kind": "expression", "loss.expression": text} | (
        {"loss.parameters": parameters} if parameters else {}
    )


def _penalty(**values: Any) -> dict[str, Any]:
    return {f"regularizer.{name}": value for name, value in values.items()}


def _mixture(clusters: list[dict[str, Any]], **law: Any) -> dict[str, Any]:
    return {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": clusters, "tokens.law": law}


def _model(fields: Mapping[str, Any]) -> ap.Problem:
    return ap.Problem().with_fields({key: value for key, value in fields.items() if value is not None})


_FREE = {"positions.kind": "none"}
_ONE = _FREE | {"tokens.length": 1, "tokens.sigma": 0.9}
_SQUARE = _ONE | {"loss.kind": "square", "teacher.noise": 0.2, "regularizer.strength": 0.3}
_LOGISTIC = _ONE | {"loss.kind": "logistic", "regularizer.strength": 0.1}
_SIGNED = [{"sigma": 0.8, "mean": [0.9]}, {"sigma": 1.1, "mean": [-0.7]}]
_CLASSES = _ONE | _mixture(_SIGNED, kind="independent", weights=[0.4, 0.6]) | {"regularizer.strength": 0.15}
_TWO = _FREE | {"teacher.rank": 2, "student.rank": 2, "tokens.sigma": 0.9}
_HEADS = _TWO | _formula(
    "heads = softmax(h[:, :1] @ h[:, :1].T) + share*softmax(h[:, 1:] @ h[:, 1:].T)\n"
    "label = softmax(k[:, :1] @ k[:, :1].T) + share*softmax(k[:, 1:] @ k[:, 1:].T)\n"
    "sum((heads - label - noise)**2)/8",
    share=0.6,
)
_HEADS |= {"teacher.noise": 0.1, "metrics.distance": "(h0_0 - k0_0)**2", "metrics.wrong": "(1 - sign(h0_0*k0_0))/2"}
_LAYERS = _TWO | _formula(
    "u = (skip*eye(L) + first*softmax(h[:, :1] @ h[:, :1].T)) @ h[:, 1:]\n"
    "v = (skip*eye(L) + first*softmax(k[:, :1] @ k[:, :1].T)) @ k[:, 1:]\n"
    "sum((softmax(u @ u.T) - softmax(v @ v.T))**2)/2",
    first=0.7,
    skip=0.9,
)
_LOCATED = [{"sigma": 1.0, "mean": [0.0]}, {"sigma": 0.8, "mean": [1.4]}]
_LOCATION = _TWO | _mixture(_LOCATED, kind="single-location", weights=[0.4, 0.6])
_LOCATION |= {"tokens.mean_teacher": [[0.8], [0.0]], "teacher.noise": 0.1}
_LOCATION |= _formula("(c @ k[:, 1] + noise[0, 0] - softmax(beta*h[:, 0]) @ h[:, 1])**2/2", beta=1.2)
_TILTED = _ONE | {"tokens.density": "1 + tilt*tanh(k)", "tokens.sampler": "k + tail*k**3", "teacher.noise": 0.1}
_TILTED |= {"tokens.parameters": {"tilt": 0.5, "tail": 0.1}}
_CAUSAL = {"student.causal": True, "teacher.causal": True}
_UNEQUAL = [{"sigma": 0.4}, {"sigma": 0.7}]
_APART = [{"sigma": 0.5, "mean": [0.8]}, {"sigma": 0.4, "mean": [-1.1]}]
_THREE = [{"sigma": 0.4, "mean": [0.5]}, {"sigma": 0.5, "mean": [-0.4]}, {"sigma": 0.7, "mean": [0.0]}]
_ATOMS = [{"weight": 0.3, "variances": [0.1, 0.4]}, {"weight": 0.7, "variances": [0.3, 0.2]}]
_BOTH = ("semantic", "positional")

# fields, sample complexities, and branches if it is not the semantic one alone
MODELS: Mapping[str, tuple[Any, ...]] = {
    "paper": ({}, (0.8, 1.7, 4.0), *_BOTH, "uninformed"),
    "omega": ({"teacher.omega": 0.45}, (1.2, 2.2), *_BOTH),
    "two sigmas": ({"tokens.sigma": [0.4, 0.6]}, (1.1, 1.9), *_BOTH),
    "mixing": ({"teacher.mixing": [[0.3, 0.7], [0.8, 0.2]]}, (2.1,), *_BOTH),
    "gram": ({"positions.kind": "gram", "positions.gram": [[1.1, 0.2], [0.2, 0.7]]}, (1.6,), *_BOTH),
    "teacher in positions": ({"positions.teacher": [[0.2], [-0.2]]}, (1.6,), *_BOTH),
    "temperatures": ({"student.temperature": 1.4, "teacher.temperature": 0.8}, (1.8,), *_BOTH),
    "noise": ({"teacher.noise": 0.15}, (1.3, 2.4), *_BOTH),
    "untied": ({"student.tied": False}, (1.3, 2.3), *_BOTH),
    "ridge a column": ({"student.tied": False, "regularizer.strength": [0.01, 0.03]}, (2.3,)),
    "rank 2": ({"student.rank": 2, "teacher.rank": 2}, (2.6,), *_BOTH, "mixed"),
    "student of rank 2": ({"student.rank": 2}, (2.0,)),
    "teacher of rank 2": ({"teacher.rank": 2}, (2.0,)),
    "three tokens": ({"tokens.length": 3, "tokens.sigma": [0.4, 0.5, 0.7]}, (1.0, 1.8), *_BOTH),
    "four tokens": ({"tokens.length": 4}, (2.0,)),
    "causal": (_CAUSAL, (0.9, 1.7), *_BOTH),
    "linear": ({"student.score": "linear", "teacher.score": "linear"}, (0.8, 1.4), *_BOTH, "uninformed"),
    "relu": ({"student.score": "relu", "teacher.score": "relu"}, (2.0,)),
    "sigmoid": ({"student.score": "sigmoid"}, (1.8,), *_BOTH),
    "softmax1": ({"student.score": "softmax1", "teacher.score": "relu"}, (1.8,)),
    "own score": ({"student.score": "z / sqrt(0.3 + sum(z**2))"}, (1.0, 1.7), *_BOTH),
    "values": ({"loss.kind": "values", "loss.width": 1}, (1.6, 2.6), *_BOTH),
    "lasso": ({"regularizer.kind": "lasso", "regularizer.strength": 0.02}, (1.0, 1.8), *_BOTH),
    "elastic net": (_penalty(kind="elastic-net", strength=0.015, ridge=0.006), (1.8,), *_BOTH),
    "group lasso": ({"student.tied": False, "regularizer.kind": "group-lasso", "regularizer.strength": 0.015}, (2.3,)),
    "own regulariser": (_penalty(kind="expression", expression="0.01*sqrt(w**2 + 0.1)"), (1.8,), *_BOTH),
    "spectrum": ({"tokens.spectrum": _ATOMS}, (1.8,), *_BOTH),
    "power law": ({"tokens.spectrum": {"kind": "power-law", "exponent": 1.2, "variance": 0.25, "atoms": 8}}, (1.8,)),
    "mixture": (_mixture(_APART, kind="same", probability=0.8), (2.0,), *_BOTH),
    "markov": (_mixture(_UNEQUAL, kind="markov", weights=[0.3, 0.7], transition=[[0.6, 0.4], [0.2, 0.8]]), (2.0,)),
    "table": (_mixture(_UNEQUAL, kind="table", table=[[0.3, 0.2], [0.1, 0.4]]), (2.0,)),
    "square": (_SQUARE, (0.7, 2)),
    "logistic": (_LOGISTIC, (0.7, 2.0)),
    "hinge": (_ONE | {"loss.kind": "hinge", "regularizer.strength": 0.1}, (0.7, 2.0)),
    "sparse signs": (_SQUARE | {"teacher.prior": "rademacher"} | _penalty(kind="lasso"), (0.8,)),
    "sparse teacher": (
        _LOGISTIC
        | {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.2}
        | _penalty(kind="elastic-net", ridge=0.05),
        (1.2,),
    ),
    "atoms": (
        _SQUARE
        | {"teacher.noise": 0.0, "teacher.prior": "atoms", "teacher.prior_values": [0.0, 1.5]}
        | {"teacher.prior_probabilities": [0.7, 0.3]}
        | _penalty(kind="lasso", strength=0.2),
        (0.8,),
    ),
    "huber": (_ONE | _formula("delta*(sqrt(delta**2 + (h - k)**2) - delta)", delta=0.7), (1.3,)),
    "quantile": (
        _ONE
        | {"teacher.noise": 0.1, "regularizer.strength": 0.1}
        | _formula("max(tau*(k + noise - h), (tau - 1)*(k + noise - h))", tau=0.7),
        (1.3,),
    ),
    "absolute": (_ONE | {"regularizer.strength": 0.1} | _formula("abs(h - k)"), (2.0,)),
    "signs": (_ONE | {"regularizer.strength": 0.1} | _formula("(h - sign(k + 0.2))**2/2"), (1.3,)),
    "two heads": (_HEADS, (3.0, 5.0)),
    "two layers": (_LAYERS, (3.0, 5.0)),
    "single location": (_LOCATION, (2.0,)),
    "trained temperature": (
        _FREE
        | {"loss.trained": {"beta": "0.05*beta**2"}, "regularizer.strength": 0.1, "tokens.sigma": 0.8}
        | _formula("sum((softmax(beta*h @ h.T) - softmax(k @ k.T))**2)/2", beta=1.0),
        (3.0,),
    ),
    "trained bias": (
        _CLASSES | {"loss.trained": {"b": "0.02*b**2"}} | _formula("softplus((1 - 2*c)*(h + b))", b=0.1),
        (0.8, 2.0),
    ),
    "autoencoder": (
        _CLASSES
        | {"tokens.length": 2, "tokens.law": {"kind": "same", "probability": 0.7}, "regularizer.strength": 1.0}
        | _formula("p = tanh(gain*h)\nsum(p @ Q * p)/2 - sum(h*p)", gain=0.9),
        (2.0,),
    ),
    "classes": (
        _CLASSES
        | {"metrics.wrong": "(1 - (1 - 2*c)*sign(h))/2", "metrics.margin": "(1 - 2*c)*h"}
        | _formula("softplus((1 - 2*c)*h)"),
        (0.8, 2.0),
    ),
    "two value columns": ({"loss.kind": "values", "loss.width": 2}, (3.0,)),
    "causal and untied": (_CAUSAL | {"tokens.length": 3, "student.tied": False}, (2.2,)),
    "rank 2, group lasso": ({"student.rank": 2} | _penalty(kind="group-lasso", strength=0.012), (2.0,)),
    "three clusters": (_mixture(_THREE, kind="independent", weights=[0.3, 0.5, 0.2]), (2.0,)),
    "hidden sign": (_ONE | {"regularizer.strength": 0.2} | _formula("softplus(-h*sign(k))"), (0.6, 1.8)),
    "margin": (_ONE | {"regularizer.strength": 0.2} | _formula("max(0, m - h*k)", m=0.6), (1.4,)),
    "other law": (
        _TILTED | _formula("sqrt(delta**2 + (h - scale*k - noise)**2) - delta", scale=1.3, delta=0.8),
        (1.3,),
    ),
}

_RULES: Mapping[str, Mapping[str, Any]] = {
    "lines": {"integration.rule": "lines"},
    "sobol": {"integration.rule": "sobol", "integration.standard_error": 0.002},
    "gauss-hermite": {"integration.rule": "gauss-hermite", "integration.nodes": 9},
    "published": {"integration.rule": "published"},
    "sharp": {"integration.standard_error": 1e-4},
    "other points": {"integration.rule": "sobol", "integration.seed": 3, "integration.standard_error": 0.002},
}
_METHODS = ("anderson", "damped")


def _solved() -> Iterator[Point]:
    for name, (fields, alphas, *branches) in MODELS.items():
        for alpha in alphas:
            for branch in branches or ["semantic"]:
                yield Point(f"{name}, {branch}, {alpha:g}", "solve", _model(fields), {"alpha": alpha, "branch": branch})
    for name, fields in _RULES.items():
        for branch in _BOTH:
            yield Point(f"rule {name}, {branch}", "solve", _model(fields), {"alpha": 1.7, "branch": branch})
    for rule in ("lines", "sobol"):
        kinked = _model({**MODELS["quantile"][0], **_RULES[rule]})
        yield Point(f"rule {rule}, quantile", "solve", kinked, {"alpha": 1.3})
    for method in _METHODS:
        settings = ap.SolverSettings(method=method)
        published = _model(_RULES["published"])
        yield Point(f"method {method}", "solve", published, {"alpha": 1.7, "settings": settings})


def _other(name: str) -> ap.Problem:
    return _model(MODELS[name][0])


def _theories() -> Iterator[Point]:
    paper, coarse = ap.Problem(), {"integration.rule": "sobol", "integration.nodes": 64}
    for name in ("paper", "rank 2", "square", "quantile", "three tokens", "linear"):
        yield Point(f"solutions, {name}", "solutions", _other(name).with_fields(coarse), {"alpha": 1.6, "starts": 4})
    wide = paper.with_fields({"tokens.sigma": 0.6, "integration.rule": "sobol", "integration.nodes": 256})
    yield Point("follow a fold", "follow", wide, {"field": "alpha", "between": (6.5, 9.0), "branch": "positional"})
    for field_, between in (("tokens.sigma", (0.45, 0.55)), ("teacher.omega", (0.2, 0.4))):
        given = {"field": field_, "between": between, "alpha": 1.7}
        yield Point(f"follow {field_}", "follow", paper.with_fields(coarse), given)
    for field_ in ("alpha", "tokens.sigma", "teacher.omega", "regularizer.strength", "student.temperature"):
        given = {"alpha": 1.7, "field": field_, "branch": "semantic"}
        yield Point(f"sensitivity {field_}", "sensitivity", paper, given)
    yield Point("sensitivity of a metric", "sensitivity", _other("two heads"), {"alpha": 3.0, "field": "alpha"})
    yield Point("sensitivity, untied", "sensitivity", _other("untied"), {"alpha": 2.3, "field": "tokens.sigma"})
    given = {"alpha": 0.9, "field": "loss.parameters.delta"}
    yield Point("sensitivity, huber", "sensitivity", _other("huber"), given)
    given = {"alpha": 1.2, "metric": "wrong", "between": [0.02, 2.0]}
    yield Point("tune a metric", "tune", _other("classes"), given)
    given = {"alpha": 1.7, "field": "student.temperature", "between": [0.6, 1.8], "branch": "semantic"}
    yield Point("tune temperature", "tune", paper, given)
    yield Point("tune ridge", "tune", _other("square"), {"alpha": 1.4, "between": [0.02, 2.0]})
    yield Point("tune logistic", "tune", _other("logistic"), {"alpha": 1.4, "between": [0.005, 1.0]})
    given = {"alpha": 1.7, "field": "regularizer.strength", "between": [0.004, 0.06], "branch": "semantic"}
    yield Point("tune paper", "tune", paper, given)
    for omega in (0.1, 0.3, 0.5):
        yield Point(f"thresholds, {omega:g}", "thresholds", paper, {"omega": [omega]})
    for sigma in (0.4, 0.6):
        yield Point(f"thresholds, sigma {sigma:g}", "thresholds", paper.with_fields({"tokens.sigma": sigma}))
    for name in ("temperatures", "causal", "linear", "mixing", "two sigmas"):
        yield Point(f"thresholds, {name}", "thresholds", _other(name))
    yield Point("transitions", "thresholds", paper.with_fields(coarse), {"alpha": (0.5, 2.5), "transitions": True})
    for name, alpha in (("square", 0.8), ("sparse signs", 0.8), ("sparse teacher", 1.2), ("atoms", 0.8)):
        noisy = _model({**MODELS[name][0], "teacher.noise": 0.2, "loss.kind": "square"})
        yield Point(f"bayes-optimal, {name}", "bayes_optimal", noisy, {"alpha": alpha})
    for name in ("paper", "noise", "linear", "two sigmas", "logistic", "mixture", "rank 2"):
        given = {"alpha": [1.5], "start": ["uninformed", "informed"]}
        yield Point(f"bayes-optimal, {name}", "bayes_optimal", _other(name), given)
    for name in ("square", "sparse teacher"):
        given = {"alpha": [0.6, 2.5], "start": ["uninformed", "informed"], "channel": "sign"}
        yield Point(f"bayes-optimal signs, {name}", "bayes_optimal", _other(name), given)
    given = {"alpha": [0.5, 1.0, 2.0], "thresholds": True}
    yield Point("bayes-optimal thresholds", "bayes_optimal", _other("linear"), given)
    broken = (
        ("paper", 0.8, "semantic", 0.5),
        ("paper", 0.8, "semantic", 2.0),
        ("paper", 1.7, "positional", 0.8),
        ("temperatures", 0.8, "semantic", 0.8),
        ("two sigmas", 1.1, "positional", 0.8),
        ("sigmoid", 0.8, "semantic", 0.8),
    )
    for name, alpha, branch, y in broken:
        given = {"alpha": alpha, "branch": branch, "y": y}
        yield Point(f"one-step RSB, {name}, {branch}, y = {y:g}", "one_rsb", _other(name), given)
    starts = ({"semantic": 0.2, "noise": 1.0}, {"semantic": 0.3, "positional": 0.2, "noise": 0.4})
    for number, start in enumerate(starts):
        for name, rate in (("paper", 0.0), ("paper", 0.3), ("causal", 0.2), ("square", 0.2)):
            known = start if name != "square" else {"semantic": 0.2, "noise": 0.5 + number}
            given = {"start": known, "learning_rate": rate, "until": 15.0, "records": 4}
            yield Point(f"flow {number}, {name}, {rate:g}", "sgd_flow", _other(name), given)
    for name, rate in (("paper", 0.0), ("two sigmas", 0.2), ("sigmoid", 0.1), ("square", 0.2)):
        yield Point(f"stationary, {name}", "stationary", _other(name), {"learning_rate": rate, "starts": 4})
    given = {"scale": [0.2, 0.6], "angle": [20.0, 70.0], "noise": 0.1, "until": 100.0}
    yield Point("basins", "basins", paper, given)
    for kind in ("constant", "pooled", "positional", "linear"):
        given = {"label": "tanh(k[0, 0] + 2*k[1, 0])", "kind": kind}
        yield Point(f"{kind} predictor", "best_predictor", paper, given)


POINTS: tuple[Point, ...] = (*_solved(), *_theories())
