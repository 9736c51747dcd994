"""Source printed for every kind of problem passes ruff, runs, and computes the same numbers in every language.

What `attnphase derive --format python` prints is executed with Numba's compilation switched off, so that nothing is
compiled here; the compiled kernels are held against the same prints in `test_codegen` and `attnphase check`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from numba.core import config as numba_config
from sympy import EulerGamma, Function, Piecewise, erf, pi

import attnphase as ap
from attnphase.kernels.key import ModelKey
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from derivations.codegen.backends import BACKENDS
from derivations.codegen.local_problem import local_problem_source
from derivations.codegen.modules import completed
from derivations.models.attention import AttentionModel, Student
from derivations.models.scores import SCORES, ScoreError, check_row, register_score
from derivations.models.scores import RowScore as Score

ONE = {"tokens.length": 1}
MIXTURE = {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4}]}
OWN = {"loss.kind": "expression"}
PROBLEMS: dict[str, dict[str, Any]] = {
    "paper": {},
    "logistic": ONE | {"loss.kind": "logistic"},
    "hinge": ONE | {"loss.kind": "hinge"},
    "square": ONE | {"loss.kind": "square", "regularizer.kind": "lasso"},
    "relu": {"student.score": "relu", "teacher.score": "relu"},
    "sigmoid": {"student.score": "sigmoid", "teacher.score": "sigmoid", "student.temperature": 0.7},
    "softmax1": {"student.score": "softmax1", "teacher.score": "linear"},
    "rank 2": {"student.rank": 2, "teacher.rank": 2, "regularizer.kind": "group-lasso"},
    "untied": {"student.tied": False, "teacher.temperature": 1.4},
    "values": {"loss.kind": "values", "loss.width": 2},
    "causal": {"tokens.length": 3, "student.causal": True, "teacher.causal": True},
    "elastic net": {"regularizer.kind": "elastic-net", "regularizer.ridge": 0.002},
    "mixture": MIXTURE,
    "formula": {"student.score": "tanh(z) + cosh(0.1*z)", "teacher.score": "exp(1)*z/sqrt(1 + sum(z**2))"},
    "smooth loss": ONE | OWN | {"loss.expression": "log(1 + exp(-k*h)) + (tanh(h) - sin(k))**2/(1 + cos(h)**2)"},
    "kinked loss": ONE | OWN | {"loss.expression": "abs(h - k)*exp(1) + softplus(h) + max(h, k) + sinh(sigmoid(h*k))"},
    "loss of some fields": OWN | {"loss.expression": "sqrt(1 + (h0_0 - k0_0)**2)"},
    "loss of two tokens": MIXTURE | OWN | {"loss.expression": "(h0_0*h1_0 - sign(k0_0)*k1_0)**2/3"},
}


@cache
def problem_of(name: str) -> Problem:
    return Problem().with_fields(PROBLEMS[name])


@cache
def local_source(name: str, backend: str) -> str:
    return local_problem_source(ModelKey.of(problem_of(name)).model(), backend)


@cache
def module(name: str) -> str:
    return ap.derive(problem_of(name)).python


def run(source: str) -> Any:
    """The module that a source is."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<generated>", "exec"), namespace)
    return SimpleNamespace(**namespace)


def test_every_source_passes_ruff(tmp_path):
    """Its default rules, and the order of imports, white space and long lines: one run over all files."""
    for name in PROBLEMS:
        stem = name.replace(" ", "_").replace("-", "_")
        (tmp_path / f"{stem}.py").write_text(module(name), encoding="utf-8")
        for backend in BACKENDS:
            (tmp_path / f"{stem}_{backend}.py").write_text(local_source(name, backend), encoding="utf-8")
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--extend-select", "I,W,E501"]
    options = ["--line-length", "120", "--output-format", "concise", str(tmp_path)]
    found = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-500:]
    assert len(list(tmp_path.glob("*.py"))) == len(PROBLEMS) * (1 + len(BACKENDS))


@pytest.mark.parametrize("name", PROBLEMS)
def test_generated_source_computes_what_the_other_languages_compute(name, monkeypatch):
    monkeypatch.setattr(numba_config, "DISABLE_JIT", True)
    problem = problem_of(name)
    plain, arrays, exact = run(module(name)), run(local_source(name, "numpy")), run(local_source(name, "mpmath"))
    length, columns, rank = plain.LENGTH, plain.COLUMNS, plain.TEACHER_RANK
    assert (length, columns, rank) == (problem.tokens.length, problem.columns, problem.teacher_columns)
    rng = np.random.default_rng(4)
    h, k = rng.normal(0.3, 0.8, (length, columns)), rng.normal(-0.2, 0.9, (length, rank))
    parameters = np.array([0.37, problem.student.temperature, problem.teacher.temperature])
    mixing = rng.uniform(0.1, 0.9, (length, length))
    variance = Spectrum.of(problem).site_variances[problem.cluster_law[0][-1]]
    size, width = length * columns, max(length, rank)

    def everything(code: Any, array: Any, extra: tuple[int, ...]) -> list[Any]:
        def empty(*shape: int) -> Any:
            return array(np.zeros((*shape, *extra)))

        fields, teacher = (array(x.reshape(*x.shape, *extra)) for x in (h, k))
        target, gradient, hessian = empty(length, width), empty(length, columns), empty(size, size)
        numbers = array(parameters)
        code.teacher_target(teacher, array(mixing), numbers, target)
        loss = code.loss(fields, target, array(variance), numbers)
        again = code.loss_derivatives(fields, target, array(variance), numbers, gradient, hessian, empty(size))
        first = empty(length, columns)
        third = code.loss_gradient(fields, target, array(variance), numbers, first)
        return [np.asarray(x, dtype=float).ravel() for x in (target, loss, again, third, gradient, first, hessian)]

    precise = np.vectorize(mpmath.mpf, otypes=[object])
    results = [everything(plain, np.array, ()), everything(arrays, np.array, (1,)), everything(exact, precise, ())]
    for mine, numpys, mpmaths in zip(*results, strict=True):
        np.testing.assert_allclose(mine, mpmaths, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(numpys, mpmaths, rtol=1e-12, atol=1e-14)
    assert np.abs(results[0][-1]).max() > 0 or problem.loss.kind == "hinge"


@pytest.mark.parametrize("name", ["paper", "rank 2"])
def test_the_maps_of_a_printed_module_run(name, monkeypatch):
    """The state-evolution maps behind the local problem, for a ridge and for another regulariser."""
    monkeypatch.setattr(numba_config, "DISABLE_JIT", True)
    problem = problem_of(name)
    code, spectrum = run(module(name)), Spectrum.of(problem)
    weights, gamma, tau, pi_ = spectrum.points()
    r, t, sites = problem.columns, problem.teacher_columns, spectrum.sites
    rng = np.random.default_rng(1)
    hats = (
        np.tile(0.3 * np.eye(r), (sites, 1, 1)),
        np.tile(0.4 * np.eye(r), (sites, 1, 1)),
        rng.normal(size=(sites, r, 1)),
        rng.normal(size=(sites, r, t)),
    )
    atoms = (gamma[..., None, None], tau[..., None, None], pi_[..., None])

    def mean(values: Any) -> Any:
        return np.tensordot(weights, values, axes=([0], [-3])) if np.ndim(values) > 2 else np.mean(values)

    if problem.regularizer.kind == "ridge":
        q, V, m, theta = code.overlaps_from_conjugates(0.01, *atoms, mean, *hats)
        # one direction's weights at isotropic variances: V = gamma / (lambda + sum gamma V_hat)
        np.testing.assert_allclose(V[0], 0.25 / (0.01 + 2 * 0.25 * 0.4) * np.eye(r), rtol=1e-13)
    else:
        w, chi = rng.normal(size=(len(weights), r, 1)), np.tile(0.7 * np.eye(r), (len(weights), 1, 1))
        q, V, m, theta = code.overlaps_from_conjugates(*atoms, w, chi, mean, *hats)
        np.testing.assert_allclose(V[0], 0.25 * 0.7 * np.eye(r), rtol=1e-13)
    assert (q.shape, V.shape, m.shape, theta.shape) == ((sites, r, r), (sites, r, r), (sites, r, 1), (sites, r, t))


@pytest.mark.parametrize("backend", BACKENDS)
def test_imports_and_helpers_are_those_that_are_read(backend):
    """A parameter that is named like a constant is no reason to import it."""
    body = "def f(x, pi):\n    return softplus(x) + ratio(1, 3) * e + pi\n"
    source = completed("A test.", body, BACKENDS[backend])
    tree = ast.parse(source)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imported = {a.asname or a.name for node in tree.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert {"f", "softplus", "ratio"} <= defined
    assert not {"sigmoid", "step", "of_numbers_too"} & defined
    assert "e" in imported
    assert not {"pi", "cosh", "sign"} & imported


def test_what_no_language_knows_is_refused():
    """A special function or constant would be an undefined name in the printed code."""
    for row, words in (
        (lambda z: [erf(x) for x in z], "does not know erf"),
        (lambda z: [EulerGamma * x for x in z], "does not know EulerGamma"),
        (lambda z: [Piecewise((x, x > 0), (0, True)) for x in z], "Piecewise"),
        (lambda z: [Function("f")(x) for x in z], "no known derivative"),
    ):
        with pytest.raises(ScoreError, match=words):
            check_row(Score("own", "s", row), 2)


def test_constants_are_imported():
    register_score("half_turns", lambda z: [pi * x for x in z])
    try:
        source = local_problem_source(AttentionModel(2, Student(SCORES["half_turns"])), "mpmath")
    finally:
        del SCORES["half_turns"]
    assert "from mpmath import exp, mpf, pi\n" in source
