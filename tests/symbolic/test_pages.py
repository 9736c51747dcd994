"""The page of a problem says everything about it, and what it says is what the generated code computes.

The loss of one sample is read back from the printed LaTeX by a small interpreter that knows nothing of SymPy, with the
problem's numbers read from the page too; it is held against the NumPy print of the generated code, its gradient by
complex steps.  A sign lost in print, a missing sum or a forgotten temperature fails here.
"""

from __future__ import annotations

import cmath
import dataclasses
import re
import typing
from functools import cache
from typing import Any

import numpy as np
import pytest
from sympy import Symbol, lambdify

import attnphase as ap
from attnphase.kernels.key import ModelKey
from attnphase.kernels.reference import reference_backend
from attnphase.pages.page import Derivation, model_equations, page_of
from attnphase.problem import Integration, Problem
from attnphase.spectrum.measure import Spectrum
from derivations.algebra import symbols as sym
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.functions import NUMPY_FUNCTIONS
from derivations.models.regularizers import ConvexPenalty
from derivations.models.scalar import ScalarModel
from derivations.models.scores import SCORES, RowScore
from derivations.printing.document import Document, Formula
from derivations.printing.page import document
from derivations.printing.setting import matrix, number, vector

# --- every field is on the page ------------------------------------------------------------------

MIXTURE = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.7]}],
}
ATOMS: list[dict[str, Any]] = [{"weight": 0.4, "variances": [0.3, 0.7]}, {"weight": 0.6, "variances": [0.5, 0.2]}]
POWER = {"kind": "power-law", "exponent": 1.2, "variance": 0.3, "atoms": 5}
LEVELS = {"kind": "two-level", "variances": [0.3, 0.6], "fraction": 0.4}
ONE = {"tokens.length": 1}
SPARSE = {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.2}
VALUES = {
    "teacher.prior": "atoms",
    "teacher.prior_values": [-1.0, 0.0, 1.0],
    "teacher.prior_probabilities": [0.1, 0.8, 0.1],
}
NAMED = {"loss.kind": "expression", "loss.expression": "(h - beta*k)**2", "loss.parameters": {"beta": 2.0}}
TILTED = {"tokens.density": "1 + tilt*tanh(k0_0)", "tokens.parameters": {"tilt": 0.5}}


def atoms(weights: tuple[float, float] = (0.4, 0.6), first: list[float] = ATOMS[0]["variances"]) -> dict[str, Any]:
    """The two atoms, with other weights or with other variances in the first."""
    values = (first, ATOMS[1]["variances"])
    return {"tokens.spectrum": [{"weight": w, "variances": v} for w, v in zip(weights, values, strict=True)]}


def pointed(key: str, first: list[float], second: list[float]) -> dict[str, Any]:
    return {"tokens.spectrum": [{**ATOMS[0], key: first}, {**ATOMS[1], key: second}]}


SITES = [{"weight": 0.4, "variances": [0.3, 0.7, 0.2, 0.6]}, {"weight": 0.6, "variances": [0.5, 0.2, 0.4, 0.3]}]
BARE = {"tokens.kind": "mixture", "tokens.clusters": [{}, {}]}

# field: what the problem has already, and the two values between which the field alone changes
FIELDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "tokens.kind": ({}, {}, MIXTURE),
    "tokens.length": ({}, {}, {"tokens.length": 3}),
    "tokens.sigma": ({}, {}, {"tokens.sigma": [0.5, 0.7]}),
    "tokens.clusters": (MIXTURE, {}, {"tokens.clusters": [MIXTURE["tokens.clusters"], [{"sigma": 0.8}]]}),
    "tokens.law": (MIXTURE, {}, {"tokens.law": {"kind": "same", "probability": 0.8}}),
    "tokens.mean_positions": (MIXTURE, {}, {"tokens.mean_positions": [[0.2], [-0.2]]}),
    "tokens.mean_teacher": (MIXTURE, {}, {"tokens.mean_teacher": [[0.3]]}),
    "tokens.sampler": ({}, {"tokens.sampler": "k + k**3/2"}, {"tokens.sampler": "k + k**3/3"}),
    "tokens.density": ({}, {"tokens.density": "1 + tanh(k0_0)/2"}, {"tokens.density": "1 + tanh(k0_0)/3"}),
    "tokens.parameters": ({}, TILTED, TILTED | {"tokens.parameters": {"tilt": 0.6}}),
    "tokens.spectrum": ({}, {}, {"tokens.spectrum": POWER}),
    "SpectrumAtom.weight": ({}, atoms(), atoms((0.3, 0.7))),
    "SpectrumAtom.variances": ({}, atoms(), atoms(first=[0.3, 0.8])),
    "SpectrumAtom.positions": (
        {},
        pointed("positions", [0.7, -0.4], [0.3, 0.9]),
        pointed("positions", [0.7, -0.3], [0.3, 0.9]),
    ),
    "SpectrumAtom.teacher": ({}, pointed("teacher", [1.1], [-0.6]), pointed("teacher", [1.1], [-0.8])),
    "SpectrumAtom.means": (
        BARE,
        {"tokens.spectrum": [{**atom, "means": [0.5, -0.3, 0.2, 0.1]} for atom in SITES]},
        {"tokens.spectrum": [{**atom, "means": [0.5, -0.3, 0.2, 0.4]} for atom in SITES]},
    ),
    "SpectrumLaw.kind": ({}, {"tokens.spectrum": POWER}, {"tokens.spectrum": LEVELS}),
    "SpectrumLaw.variance": ({"tokens.spectrum": POWER}, {}, {"tokens.spectrum.variance": 0.4}),
    "SpectrumLaw.exponent": ({"tokens.spectrum": POWER}, {}, {"tokens.spectrum.exponent": 0.7}),
    "SpectrumLaw.atoms": ({"tokens.spectrum": POWER}, {}, {"tokens.spectrum.atoms": 40}),
    "SpectrumLaw.variances": ({"tokens.spectrum": LEVELS}, {}, {"tokens.spectrum.variances": [0.3, 0.7]}),
    "SpectrumLaw.fraction": ({"tokens.spectrum": LEVELS}, {}, {"tokens.spectrum.fraction": 0.3}),
    "Cluster.sigma": (
        MIXTURE,
        {},
        {"tokens.clusters": [{"sigma": 0.6, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.7]}]},
    ),
    "Cluster.mean": (MIXTURE, {}, {"tokens.clusters": [{"sigma": 0.5, "mean": [1.2]}, {"sigma": 0.4, "mean": [-0.7]}]}),
    "Law.kind": (
        MIXTURE,
        {"tokens.law": {"kind": "independent", "weights": [0.3, 0.7]}},
        {"tokens.law": {"kind": "same", "weights": [0.3, 0.7], "probability": 0.8}},
    ),
    "Law.weights": (
        MIXTURE,
        {"tokens.law": {"kind": "independent", "weights": [0.3, 0.7]}},
        {"tokens.law": {"kind": "independent", "weights": [[0.3, 0.7], [0.6, 0.4]]}},
    ),
    "Law.transition": (
        MIXTURE,
        {"tokens.law": {"kind": "markov", "transition": [[0.3, 0.7], [0.6, 0.4]]}},
        {"tokens.law": {"kind": "markov", "transition": [[0.3, 0.7], [0.5, 0.5]]}},
    ),
    "Law.probability": (
        MIXTURE,
        {"tokens.law": {"kind": "same", "probability": 0.8}},
        {"tokens.law": {"kind": "same", "probability": 0.7}},
    ),
    "Law.table": (
        MIXTURE,
        {"tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.3, 0.2]]}},
        {"tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.2, 0.3]]}},
    ),
    "positions.kind": ({}, {}, {"positions.kind": "none"}),
    "positions.gram": ({}, {}, {"positions.gram": [[1.2, -0.7], [-0.7, 0.9]]}),
    "positions.teacher": ({}, {}, {"positions.teacher": [[0.3], [-0.3]]}),
    "teacher.score": ({}, {}, {"teacher.score": "relu"}),
    "teacher.rank": ({}, {}, {"teacher.rank": 2}),
    "teacher.omega": ({}, {}, {"teacher.omega": 0.37}),
    "teacher.mixing": ({}, {}, {"teacher.mixing": [[0.6, 0.4], [0.3, 0.7]]}),
    "teacher.temperature": ({"teacher.temperature": 1.6}, {}, {"teacher.temperature": 0.6}),
    "teacher.causal": ({}, {}, {"teacher.causal": True}),
    "teacher.noise": ({}, {}, {"teacher.noise": 0.02}),
    "teacher.prior": ({}, {}, {"teacher.prior": "rademacher"}),
    "teacher.prior_density": (SPARSE, {}, {"teacher.prior_density": 0.3}),
    "teacher.prior_values": (VALUES, {}, {"teacher.prior_values": [-1.0, 0.5, 1.0]}),
    "teacher.prior_probabilities": (VALUES, {}, {"teacher.prior_probabilities": [0.2, 0.7, 0.1]}),
    "student.score": ({}, {}, {"student.score": "z / sqrt(2 + sum(z**2))"}),
    "student.rank": ({}, {}, {"student.rank": 2}),
    "student.tied": ({}, {}, {"student.tied": False}),
    "student.temperature": ({"student.temperature": 0.7}, {}, {"student.temperature": 0.5}),
    "student.causal": ({}, {}, {"student.causal": True}),
    "regularizer.kind": ({}, {}, {"regularizer.kind": "lasso"}),
    "regularizer.strength": ({}, {}, {"regularizer.strength": 0.02}),
    "regularizer.ridge": (
        {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.002},
        {},
        {"regularizer.ridge": 0.003},
    ),
    "regularizer.expression": (
        {"regularizer.kind": "expression", "regularizer.expression": "0.01*sqrt(w**2 + 0.1)"},
        {},
        {"regularizer.expression": "0.01*sqrt(w**2 + 0.2)"},
    ),
    "regularizer.prox": (
        {"regularizer.kind": "prox", "regularizer.prox": f"{__name__}:halved"},
        {},
        {"regularizer.prox": f"{__name__}:shrunk"},
    ),
    "loss.kind": (ONE, {"loss.kind": "square"}, {"loss.kind": "logistic"}),
    "loss.width": ({"loss.kind": "values", "loss.width": 2}, {}, {"loss.width": 3}),
    "loss.expression": (
        ONE | {"loss.kind": "expression", "loss.expression": "(h - 2*k)**2"},
        {},
        {"loss.expression": "(h - 3*k)**2"},
    ),
    "loss.parameters": (ONE | NAMED, {}, {"loss.parameters.beta": 3.0}),
    "loss.trained": (
        ONE | NAMED,
        {"loss.trained": {"beta": "beta**2"}},
        {"loss.trained": {"beta": "2*beta**2"}},
    ),
}
SILENT = {f"integration.{item.name}" for item in dataclasses.fields(Integration)} | {"metrics"}
"""Fields that change how finely means are integrated, or which are reported, and no equation."""


def halved(v: Any, step: Any) -> Any:
    """The proximal operator of ``w^2/2``, step by step."""
    return v / (1 + step)


def shrunk(v: Any, step: Any) -> Any:
    """The proximal operator of ``w^2``."""
    return v / (1 + 2 * step)


def known_fields() -> set[str]:
    """Every field of a problem and of the tables in it, as pydantic has them."""

    def tables(annotation: Any) -> set[type]:
        own = {annotation} if isinstance(annotation, type) and dataclasses.is_dataclass(annotation) else set()
        return own.union(*(tables(part) for part in typing.get_args(annotation)))

    found, sections = set(), typing.get_type_hints(Problem, include_extras=True)
    for section in [item.name for item in dataclasses.fields(Problem) if not item.name.startswith("_")]:
        pending = [(section, kind) for kind in tables(sections[section])]
        if not pending:  # a table of the user's own names
            found.add(section)
        while pending:
            name, table = pending.pop()
            hints = typing.get_type_hints(table, include_extras=True)
            for field in (item.name for item in dataclasses.fields(table)):
                found.add(f"{name}.{field}")
                pending += [(inner.__name__, inner) for inner in tables(hints[field])]
    return found


@cache
def pages(problem: Problem) -> dict[str, str]:
    """All pages of a problem, without its name."""
    made = {name: page_of(problem, concrete=name == "concrete") for name in ("generic", "concrete")}
    texts = {f"{name} latex": page.latex() for name, page in made.items()}
    texts |= {f"{name} markdown": page.markdown() for name, page in made.items()}
    return {name: text.replace(problem.hash, "NAME") for name, text in texts.items()}


def test_every_field_is_tried():
    """A field that is added later must be tried below, or be said to change no equation."""
    assert known_fields() == FIELDS.keys() | SILENT


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_changes_the_page(field):
    base, before, after = FIELDS[field]
    problem = Problem().with_fields(base).with_fields(before)
    changed = Problem().with_fields(base).with_fields(after)
    assert changed != problem
    old, new = pages(problem), pages(changed)
    assert {name for name in old if old[name] == new[name]} == set()


def test_integration_and_metrics_change_no_equation():
    settings = {"integration.rule": "sobol", "integration.nodes": 64, "integration.seed": 3}
    settings |= {"metrics.error": "h0_0**2"}
    assert pages(Problem().with_fields(settings)) == pages(Problem())


def test_pages_bear_the_problem_s_name():
    """Two spectra that differ where a list is cut still have different pages; equal problems have equal ones."""
    rows = [{"weight": 1 / 30, "variances": [0.2 + 0.01 * i, 0.3]} for i in range(30)]
    problem = Problem().with_fields({"tokens.spectrum": rows})
    other = Problem().with_fields(
        {"tokens.spectrum": [*rows[:20], {**rows[20], "variances": [0.4, 0.3001]}, *rows[21:]]}
    )
    again = Problem.from_toml(problem.to_toml())
    text = page_of(problem).markdown()
    assert "takes 30 values" in text
    assert problem.hash in text.split("##")[0]
    assert page_of(again).latex() == page_of(problem).latex()
    assert page_of(other).markdown() != text


# --- what is printed is what is computed ----------------------------------------------------------

RATIO = "(z + z**3 / 5) / sqrt(2 + sum(z**2))"
CLUSTERS = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.7, "mean": [-0.7]}, {"sigma": 0.4}],
    "tokens.mean_teacher": [[0.4]],
}
PRINTED: dict[str, dict[str, Any]] = {
    "temperatures": {"student.temperature": 0.6, "teacher.temperature": 1.7, "tokens.sigma": [0.5, 0.8]},
    "untied, rank 2, causal": {
        "tokens.length": 3,
        "student.tied": False,
        "student.rank": 2,
        "student.causal": True,
        "student.temperature": 0.7,
        "teacher.rank": 2,
        "teacher.causal": True,
        "teacher.mixing": [[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.4, 0.4, 0.2]],
    },
    "tied, rank 2": {"student.rank": 2, "teacher.temperature": 0.8, "teacher.omega": 0.41},
    "values": {"loss.kind": "values", "loss.width": 2, "student.temperature": 1.4, "teacher.rank": 2},
    "values, untied, causal": {"loss.kind": "values", "student.tied": False, "student.causal": True},
    "relu and softmax-1": {"student.score": "relu", "teacher.score": "softmax1", "student.temperature": 0.9},
    "sigmoid and linear": {"student.score": "sigmoid", "teacher.score": "linear", "student.rank": 2},
    "formulas": {"student.score": RATIO, "teacher.score": "tanh(z) + 0.2*sin(z)*cos(z)", "student.temperature": 1.3},
    "long rows": {"tokens.length": 5, "student.score": "softmax1", "teacher.score": RATIO, "student.causal": True},
    "noise, causal": {"teacher.noise": 0.3, "teacher.causal": True, "student.tied": False, "tokens.length": 3},
    "noise on values": {"teacher.noise": 0.4, "loss.kind": "values", "loss.width": 2},
    "two digits": {"tokens.length": 11, "student.temperature": 0.8},
    "clusters": CLUSTERS | {"student.temperature": 0.7, "teacher.omega": 0.23},
    "clusters with values": CLUSTERS | {"loss.kind": "values", "tokens.mean_teacher": [[0.4], [-0.3]]},
    "clusters with noise": CLUSTERS | {"teacher.noise": 0.2},
    "square": ONE | {"loss.kind": "square"},
    "square with noise": ONE | {"loss.kind": "square", "teacher.noise": 0.2},
    "logistic": ONE | {"loss.kind": "logistic"},
    "hinge": ONE | {"loss.kind": "hinge"},
    "a loss of one token": ONE
    | {
        "loss.kind": "expression",
        "loss.expression": "log(1 + exp(-sign(k)*h)) + sigmoid(h - 0.3*k)**2/(1 + h**2) + abs(tanh(h) - sin(k))**1.5"
        " + max(h, -k) + cosh(0.4*h - k)/3",
    },
    "a loss of two tokens": {
        "student.rank": 2,
        "teacher.rank": 2,
        "loss.kind": "expression",
        "loss.expression": "(h0_0*h1_1 - k0_1)**2/2 + sqrt(1 + h0_1**2)*exp(-k1_0**2) + softplus(h1_0 - k0_0/2)",
    },
    "a loss with noise": {
        "teacher.noise": 0.3,
        "loss.kind": "expression",
        "loss.expression": "(h0_0*h1_0 - k0_0*k1_0 - noise0_1)**2 + (h1_0**2 - k1_0 - noise1_0)**2 * exp(-noise0_1**2)",
    },
    "a loss of clusters": CLUSTERS
    | {"loss.kind": "expression", "loss.expression": "(h0_0 + 2*h1_0 - k0_0*k1_0)**2 + relu(h0_0 - k1_0)"},
    "a loss that knows clusters": CLUSTERS
    | {
        "teacher.noise": 0.3,
        "loss.kind": "expression",
        "loss.expression": "(h0_0*h1_0 - c1*k0_0 - noise1_0)**2 + softplus((1 - 2*c0)*h0_0)/(1 + c1) + h1_0**2",
    },
}

NAMES = (
    r"\mathsf{S}",
    r"\mathsf{T}",
    r"\mathsf{Y}",
    r"\mathsf{c}",
    r"\mathsf{Z}",
    r"\rho^\Sigma",
    r"z^{\star}",
    r"c^{\star}",
    r"y^{\star}",
    r"m^{\star}",
    r"\tilde k",
    "T_{S}",
    "T_{T}",
    r"\omega",
    "z",
    "c",
    "y",
    "A",
    "h",
    "k",
    "w",
)
FUNCTIONS = {
    r"\log": cmath.log,
    r"\exp": cmath.exp,
    r"\tanh": cmath.tanh,
    r"\sinh": cmath.sinh,
    r"\sin": cmath.sin,
    r"\cosh": cmath.cosh,
    r"\cos": cmath.cos,
    r"\operatorname{sign}": lambda x: complex(np.sign(x.real)),
    r"\Theta": lambda x: complex(x.real > 0),
}


class Reader:
    """Reads a printed formula and computes it: numbers by (name, indices) for what it mentions."""

    def __init__(self, text: str, known: dict[tuple[str, tuple[int, ...]], complex], bound: dict[str, int]) -> None:
        # indices apart: `_{a 1}` and `_{a, 10}` are two, `_{10}` is one
        text = re.sub(r"(?<!sum)_\{([^{}]*)\}", lambda m: f"_{{{re.sub(', | ', ';', m[1].strip())}}}", text)
        self.text = re.sub(r"\\quad|\s|\{\}", "", text.replace(r"\tilde k", r"\tilde_k"))
        self.known, self.bound, self.place = known, dict(bound), 0

    def value(self) -> complex:
        result = self.terms()
        assert self.place == len(self.text), self.text[self.place :]
        return result

    def takes(self, *texts: str) -> str | None:
        for text in texts:
            if self.text.startswith(text, self.place):
                self.place += len(text)
                return text
        return None

    def needs(self, text: str) -> None:
        assert self.takes(text), f"{text} expected at {self.text[self.place : self.place + 30]}"

    def terms(self) -> complex:
        result = -self.product() if self.takes("-") else self.product()
        while sign := self.takes("+", "-"):
            result += self.product() if sign == "+" else -self.product()
        return result

    def product(self) -> complex:
        result = complex(1)
        ends = ("+", "-", "}", r"\right", ")", "&")
        while self.place < len(self.text) and not self.text.startswith(ends, self.place):
            result *= self.sum() if self.takes(r"\sum_{") else self.power()
        return result

    def sum(self) -> complex:
        """A sum runs over all that follows in its product."""
        index = self.text[self.place]
        self.place += 1
        self.needs("=1}^{")
        last = int(self.until("}"))
        start, total = self.place, complex(0)
        for value in range(1, last + 1):
            self.place, self.bound[index] = start, value
            total += self.product()
        del self.bound[index]
        return total

    def until(self, end: str) -> str:
        stop = self.text.index(end, self.place)
        text, self.place = self.text[self.place : stop], stop + len(end)
        return text

    def group(self) -> complex:
        self.needs("{")
        result = self.terms()
        self.needs("}")
        return result

    def power(self) -> complex:
        base = self.factor()
        return base ** self.group() if self.takes("^") else base

    def factor(self) -> complex:
        if self.takes(r"\frac", r"\tfrac"):
            above = self.group()
            return above / self.group()
        if self.takes(r"\sqrt"):
            return self.group() ** 0.5
        if self.takes("e^"):
            return cmath.exp(self.group())
        if self.takes(r"\left("):
            return self.bracket(")")
        if self.takes(r"\left["):
            inner = self.bracket("]")
            self.needs("_+")
            return inner if inner.real > 0 else complex(0)
        if self.takes(r"\left|"):
            inner = self.bracket("|")
            return inner if inner.real > 0 else -inner
        for name, function in FUNCTIONS.items():
            if self.takes(name):
                power = self.group() if self.takes("^") else complex(1)
                braced = self.takes("{")
                self.needs(r"\left(")
                result = function(self.bracket(")"))
                if braced:
                    self.needs("}")
                return result**power
        if match := re.match(r"\d+(\.\d+)?", self.text[self.place :]):
            self.place += match.end()
            return complex(float(match[0]))
        return self.known[self.name()]

    def bracket(self, end: str) -> complex:
        result = self.terms()
        self.needs(rf"\right{end}")
        return result

    def name(self) -> tuple[str, tuple[int, ...]]:
        name = self.takes(*(name.replace(" ", "_") for name in NAMES))
        assert name, f"no known symbol at {self.text[self.place : self.place + 30]}"
        return name.replace(r"\tilde_k", r"\tilde k"), self.indices() if self.takes("_{") else ()

    def indices(self) -> tuple[int, ...]:
        return tuple(self.bound.get(part) or int(part) for part in self.until("}").split(";"))


def read_numbers(page: Document) -> dict[tuple[str, tuple[int, ...]], complex]:
    """The problem's parameters, from the section of the page that has them."""
    known: dict[tuple[str, tuple[int, ...]], complex] = {}

    def numeric(text: str) -> complex:
        return Reader(text, {}, {}).value()

    for formula in formulas(page):
        for left, right, _ in formula.rows:
            if not formula.tag.startswith("N"):
                continue
            if not left:
                for part in right.split(r", \quad "):
                    name, _, value = part.rstrip(",").partition(" = ")
                    if name in NAMES:
                        known[name, ()] = numeric(value)
            elif left == "A" or left.startswith((r"\rho^\Sigma", r"m^\star")):
                inner = re.sub(r"= |\\left\(|\\right\)|\\(begin|end)\{(small)?matrix\}", "", right)
                rows = [re.split("&|,", row) for row in inner.split(r"\\")]
                values = [[numeric(entry) for entry in row] for row in rows]
                known |= {(left, (a, b)): x for a, row in enumerate(values, 1) for b, x in enumerate(row, 1)}
    return known


def formulas(page: Document) -> list[Formula]:
    return [block for block in page.blocks if isinstance(block, Formula)]


def printed_loss(page: Document, h: Any, k: Any, noise: Any, clusters: Any, sites: Any, length: int) -> complex:
    """The loss of one sample, computed from the page's LaTeX."""
    known = read_numbers(page)
    known |= {(r"\mathsf{Z}", (a + 1, b + 1)): complex(value) for (a, b), value in np.ndenumerate(noise)}
    known |= {(r"\mathsf{c}", (a + 1,)): complex(value) for a, value in enumerate(clusters)}
    given = {name for name, _ in known}
    sizes = {"h": h.shape[1], "k": k.shape[1]}
    for name, fields in (("h", h), ("k", k)):
        for (a, c), value in np.ndenumerate(fields):
            known[name, (a + 1, c + 1) if sizes[name] > 1 else (a + 1,)] = complex(value)
    for token in range(length):
        known[r"\rho^\Sigma", (token + 1,)] = known.get((r"\rho^\Sigma", (1, int(sites[token]) + 1)), complex("nan"))
        if r"m^\star" in given:
            for s in range(k.shape[1]):
                place = (token + 1, s + 1) if k.shape[1] > 1 else (token + 1,)
                known[r"m^{\star}", place] = known[r"m^\star", (int(sites[token]) + 1, s + 1)]
    result = complex("nan")
    for formula in formulas(page):
        if not formula.definitions:
            continue
        lines: list[tuple[str, str]] = []
        for left, right, _ in formula.rows:
            if left:
                lines.append((left, right.removeprefix("= ")))
            else:
                lines[-1] = (lines[-1][0], lines[-1][1] + right)
        for left, right in lines:
            if left == r"\ell(h, k)":
                result = Reader(right, known, {}).value()
                continue
            free = [index for index in "ab" if re.search(rf"_{{.*\b{index}\b", left)]
            for values in np.ndindex(*(length,) * len(free)):
                bound = {index: value + 1 for index, value in zip(free, values, strict=True)}
                target = Reader(left, {}, bound).name()
                assert target not in known, "defined twice"
                known[target] = Reader(right, known, bound).value()
    return result


@pytest.mark.parametrize("name", PRINTED)
def test_printed_loss_is_the_generated_one(name):
    problem = Problem().with_fields(PRINTED[name])
    page = page_of(problem, concrete=True)
    backend, spectrum = reference_backend(problem, "numpy"), Spectrum.of(problem)
    length = problem.tokens.length
    parameters = (problem.teacher.omega, problem.student.temperature, problem.teacher.temperature)
    rng = np.random.default_rng(sum(map(ord, name)))
    for _ in range(2 if length < 4 else 1):
        h, k = rng.normal(0.2, 0.9, (length, problem.columns)), rng.normal(-0.1, 0.8, (length, problem.teacher_columns))
        configurations, _ = problem.cluster_law
        sites = configurations[rng.integers(len(configurations))]
        noise = rng.normal(0.3, 0.7, (length, backend.module.NOISE))
        clusters = [problem.sites[site][1] for site in sites]
        numbers = np.array(clusters)[:, None][:, : problem.loss.form.cluster_columns]
        fields = np.concatenate([k + spectrum.teacher_means[sites], noise, numbers], axis=1)
        arguments = h[None], fields[None], problem.mixing_matrix, parameters
        variance = spectrum.site_variances[sites]
        (expected,), (slope,) = backend.losses(*arguments, variance), backend.gradients(*arguments, variance)
        assert printed_loss(page, h, k, noise, clusters, sites, length).real == pytest.approx(expected, rel=1e-11)
        entries = [*np.ndindex(h.shape)]
        for entry in entries[:: 1 + len(entries) // 4]:
            shifted = h.astype(complex)
            shifted[entry] += 1e-20j
            printed = printed_loss(page, shifted, k, noise, clusters, sites, length).imag / 1e-20
            assert printed == pytest.approx(slope[entry], rel=1e-9, abs=1e-12)


def test_printed_regulariser_is_the_computed_one():
    text = "0.3*abs(w)**1.5 + 0.2*softplus(w - 0.4)**2 + 0.7*cosh(0.3*w) + relu(0.5 - w)**2 + sqrt(w**2 + 0.1)"
    problem = Problem().with_fields({"regularizer.kind": "expression", "regularizer.expression": text})
    (printed,) = [right for f in formulas(page_of(problem)) for left, right, _ in f.rows if left == "r(w)"]
    value = ConvexPenalty.of(text).numeric[0]
    for w in (-1.3, 0.2, 0.9):
        read = Reader(printed.partition(r"\rho(w) = ")[2], {("w", ()): complex(w)}, {}).value()
        assert read.real == pytest.approx(float(value(np.array(w))), rel=1e-12)


AS_ONE = ["temperatures", "untied, rank 2, causal", "values", "relu and softmax-1", "formulas", "noise on values"]


@pytest.mark.parametrize("name", AS_ONE)
def test_the_loss_as_one_expression_is_the_generated_one(name):
    """`AttentionModel.loss`, and its gradient by SymPy."""
    problem = Problem().with_fields(PRINTED[name])
    model = ModelKey.of(problem).model()
    length = model.length
    h, k = (
        [[Symbol(f"{letter}{a}_{c}", real=True) for c in range(columns)] for a in range(length)]
        for letter, columns in (("h", model.columns), ("k", model.teacher_rank + model.noise_columns))
    )
    loss = model.loss(h, k)
    fields = [x for row in h for x in row]
    parameters = [sym.omega, sym.student_temperature, sym.teacher_temperature]
    tables = [sym.mixing[a + 1, b + 1] for a in range(length) for b in range(length)]
    variances = [sym.token_variance[a + 1] for a in range(length)]
    symbols = [*fields, *(x for row in k for x in row), *parameters, *tables, *variances]
    assert loss.free_symbols <= {s for x in symbols for s in x.free_symbols}
    evaluate = lambdify(symbols, [loss, *(loss.diff(x) for x in fields)], [NUMPY_FUNCTIONS, "numpy"], cse=True)
    rng = np.random.default_rng(8)
    values = [rng.normal(0.2, 0.9, (length, len(fields[0]))) for fields in (h, k)]
    numbers = (problem.teacher.omega, problem.student.temperature, problem.teacher.temperature)
    variance = rng.uniform(0.2, 1.4, length)
    got = evaluate(*values[0].ravel(), *values[1].ravel(), *numbers, *problem.mixing_matrix.ravel(), *variance)
    backend = reference_backend(problem, "numpy")
    arguments = values[0][None], values[1][None], problem.mixing_matrix, numbers, variance
    assert got[0] == pytest.approx(backend.losses(*arguments)[0], rel=1e-12)
    np.testing.assert_allclose(got[1:], backend.gradients(*arguments)[0].ravel(), rtol=1e-10, atol=1e-13)


# --- the pages are well formed ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [*PRINTED, "names"])
def test_pages_are_well_formed(name):
    changes = PRINTED.get(name, {"student.score": "z", "teacher.score": "1.5*z", "regularizer.kind": "group-lasso"})
    page = page_of(Problem().with_fields(changes), concrete=name != "names")
    text = page.latex()
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    for left, right in ((r"\left", r"\right"), (r"\Bigl", r"\Bigr")):
        assert len(re.findall(rf"\{left}(?![a-z])", text)) == len(re.findall(rf"\{right}(?![a-z])", text))
    opened: list[str] = []
    for kind, environment in re.findall(r"\\(begin|end)\{([a-z*]+)\}", text):
        if kind == "begin":
            opened.append(environment)
        else:
            assert opened.pop() == environment
    assert not opened
    for paragraph in re.sub(r"\\begin\{align\*\}.*?\\end\{align\*\}", "", text, flags=re.DOTALL).split("\n\n"):
        assert paragraph.count("$") % 2 == 0
        assert "`" not in paragraph
    read = page.markdown()
    displays = re.findall(r"^\$\$\n(.*?)\n\$\$$", read, flags=re.DOTALL | re.MULTILINE)
    assert 2 * len(displays) == read.count("$$")
    outside = re.sub(r"\$\$.*?\$\$|`[^`\n]*`", "", read, flags=re.DOTALL)
    assert outside.count("$") % 2 == 0
    assert outside.count("`") == 0
    # Markdown would drop the backslash of these
    assert not re.search(r"(?<!\\)\\[^a-zA-Z\\\n]", re.sub("`[^`]*`", "", read))
    tags = re.findall(r"\\tag\{([A-Z]\d+)\}", read)
    assert len(tags) == len(set(tags)) == len(displays)


def test_two_formulas_have_two_names():
    problem = Problem().with_fields({"student.score": RATIO, "teacher.score": "tanh(z)"})
    text = page_of(problem).markdown()
    for name, formula in ((r"\mathsf{s}_S", RATIO), (r"\mathsf{s}_T", "tanh(z)")):
        assert f"{name}(z) =" in text
        assert f"`{formula}`" in text
    same = page_of(problem.with_fields({"teacher.score": RATIO})).markdown()
    assert same.count(r"\mathsf{s}(z) =") == 1


def test_code_is_set_as_code():
    page = page_of(Problem().with_fields({"student.score": "z * 2**0.5 / (1 + sum(z**2))"}))
    assert "`z * 2**0.5 / (1 + sum(z**2))`" in page.markdown()
    (line,) = [line for line in page.latex().splitlines() if "of sums over its row" in line]
    code = line[line.index(r"\texttt{") :]
    assert code.replace(r"\allowbreak{}", "").startswith(r"\texttt{z * 2**0.5 / (1 + sum(z**2))}")


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        (0.1 + 0.2, "0.3"),
        (-1 / 3, r"-\tfrac{1}{3}"),
        (5 / 7, r"\tfrac{5}{7}"),
        (1e-8, "10^{-8}"),
        (-2.5e-9, r"-2.5 \times 10^{-9}"),
        (3.0, "3"),
        (0.0, "0"),
        (0.33333, "0.33333"),
        (0.123456789012, "0.123456789012"),
    ],
)
def test_numbers(value, printed):
    assert number(value) == printed


def test_long_lists_are_cut_in_sight():
    assert vector([0.5, 0.25]) == r"\left(0.5, 0.25\right)"
    assert r"\dots" in vector([0.5] * 40)
    assert r"(40 \text{ numbers})" in vector([0.5] * 40)
    assert r"\cdots" in matrix([[0.5] * 30] * 2)
    assert r"(2 \times 30)" in matrix([[0.5] * 30] * 2)
    assert r"\vdots" in matrix([[0.5]] * 30)
    assert r"\cdots" not in matrix([[0.5] * 17])
    assert r"\begin{matrix}" in matrix([[0.25, 0.5]] * 2)
    assert r"\begin{smallmatrix}" in matrix(
        [[0.123456, 0.234567, 0.345678, 0.456789, 0.567891, 0.678912, 0.789123] * 2]
    )


# --- one line, and the notebook's page -------------------------------------------------------------


def test_a_problem_in_one_line():
    text = repr(Problem().with_fields({"tokens.length": 3, "student.tied": False, "student.temperature": 0.7}))
    assert text.startswith("<Problem ")
    assert text.count("\n") == 0
    for part in ("3 Gaussian tokens", "untied softmax student", "student.temperature = 0.7", "tokens.length = 3"):
        assert part in text
    assert "teacher.mixing" not in text  # filled in, not given
    assert repr(Problem()).endswith("as in the paper>")
    assert "teacher.omega = 0.2" in repr(Problem.paper(omega=0.2))
    many = repr(Problem().with_fields(PRINTED["untied, rank 2, causal"] | {"teacher.omega": 0.1, "tokens.sigma": 0.6}))
    assert "and 4 more>" in many
    assert len(many) < 400


@pytest.mark.parametrize(
    "comment", ["a ` <b>bold</b> ` c", "one\u2028two", r"\input{file} $ % ```", "module: function", "}: $x$"]
)
def test_comments_of_formulas_are_not_printed(comment):
    formulas = {"student.score": "tanh(z) + z/3", "regularizer.kind": "expression"}
    penalty = "0.01*sqrt(w**2 + 0.2)"
    plain = Problem().with_fields(formulas | {"regularizer.expression": penalty})
    told = plain.with_fields(
        {
            "student.score": f"(tanh(z) # {comment}\n + z/3) # {comment}",
            "regularizer.expression": f"{penalty} # {comment}",
        }
    )
    made, same = page_of(told), page_of(plain)
    for text, expected in ((made.markdown(), same.markdown()), (made.latex(), same.latex())):
        bare = text.replace(told.hash, plain.hash).replace("(tanh(z) + z/3)", "tanh(z) + z/3")
        if text.startswith("#"):
            assert bare == expected
        assert comment not in text
        assert "\u2028" not in text


@pytest.mark.parametrize(("kind", "ridge"), [("lasso", 0.0), ("elastic-net", 0.03), ("group-lasso", 0.02)])
def test_soft_thresholding_is_printed_as_it_is_computed(kind, ridge):
    strength = 0.07
    changes = {"regularizer.kind": kind, "regularizer.strength": strength}
    problem = Problem().with_fields(changes | ({"regularizer.ridge": ridge} if ridge else {}))
    text = page_of(problem).markdown()
    formula = r"w = \frac{\operatorname{sign}(B) \max\left(|B| - s, 0\right)}{A" + (r" + \lambda}" if ridge else "}")
    assert formula in text
    # the definition: the minimum over a fine grid of weights
    curvature, sources, weights = 1.7, np.array([-0.4, -0.05, 0.06, 0.9]), np.linspace(-1, 1, 200001)
    penalty = strength * np.abs(weights) + (ridge + curvature) / 2 * weights**2
    least = [weights[np.argmin(penalty - source * weights)] for source in sources]
    printed = np.sign(sources) * np.maximum(np.abs(sources) - strength, 0) / (curvature + ridge)
    np.testing.assert_allclose(printed, least, atol=1e-5)
    # Algorithm 1 has the row's minimiser where the ridge has its own
    assert r"\left(\lambda I + A\right)^{-1}" not in text
    assert r"\frac{\partial w}{\partial B}" in text
    # with two columns there is no such formula
    assert "soft thresholding" not in page_of(problem.with_fields({"student.tied": False})).markdown()


def test_a_derivation_in_one_line():
    problem = Problem().with_fields({"student.rank": 2})
    made = ap.derive(problem)
    assert repr(made) == f"<Derivation of problem {problem.hash}: attention loss, L = 2, r = 2, t = 1>"
    assert made._repr_markdown_() == made.markdown
    assert not hasattr(Derivation, "_repr_latex_")  # notebooks would choose between the two


def test_a_notebook_shows_the_model_and_its_numbers():
    problem = Problem().with_fields({"student.temperature": 0.7, "tokens.sigma": 0.6})
    text = problem._repr_markdown_()
    assert text == model_equations(problem)
    for part in ("# Tied", r"T_{S} = 0.7", r"\gamma = \left(0.36, 0.36\right)", problem.hash):
        assert part in text
    assert "## Replica" not in text


def test_a_notebook_looks_no_function_up():
    """A problem may come from a file of somebody else: its page names what it does not import."""
    ap.register_score("own_score", lambda logits: [2 * z for z in logits])
    problem = Problem().with_fields({"student.score": "own_score"})
    del SCORES["own_score"]
    text = problem._repr_markdown_()
    assert "`own_score`" in text
    assert r"\mathrm{own\text{-}score}\left(h h^\top\right)" in text


def test_names_with_underscores_are_no_subscripts():
    score = RowScore("a_b_c", r"\mathrm{a\text{-}b\text{-}c}", lambda z: [2 * x for x in z])
    text = document(AttentionModel(2, Student(score), Teacher())).latex()
    assert "a_b" not in text


def test_a_loss_of_one_s_own_keeps_its_formula_out_of_the_title():
    title = document(ScalarModel("(h0_0 - k0_0)**2", lambda h, k: (h[0][0] - k[0][0]) ** 2)).title
    assert "h0_0" not in title
