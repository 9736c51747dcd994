"""Models are functions in machine code, which the minimiser, compiled once for all of them, reaches by their addresses.

Not public: kernels of losses that no problem has, of which forty are quickly made, and what is kept of them.
"""

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from local_problems import Starts, empty
from models import model as problem_of

from attnphase.kernels import cache, compiler, machine, shared
from attnphase.kernels.compiler import load_kernels
from attnphase.kernels.local.values import Nodes
from derivations.models.scalar import formula_loss

_CENTERS = np.linspace(-2.0, 2.0, 90).reshape(90, 1, 1)


@dataclass(frozen=True)
class Parabola:
    """The key of the loss ``a (h - k)^2 / 2``, whose proximal point under V is ``(omega + a V k)/(1 + a V)``."""

    a: float
    space: str = ""

    def model(self):
        return formula_loss(f"{self.a}*(h{self.space} - k)**2/2", 1, 1, 1)

    def is_right(self, minimise, V=0.7):
        """Whether a minimiser finds these points."""
        nodes, k = nodes_of(V), 0.4
        found = empty(nodes)
        minimise(nodes, Starts.COLD, found)
        return np.allclose(found.minima[:, 0], (_CENTERS + self.a * V * k) / (1 + self.a * V), rtol=1e-10, atol=1e-12)


def nodes_of(V):
    """All with k = 0.4."""
    factor, ones = np.full((1, 1, 1), V**0.5), np.ones((1, 1))
    return Nodes(_CENTERS, np.full_like(_CENTERS, 0.4), factor, ones, np.array([0.3, 1.0, 1.0, 1.0, 1.0]), np.ones(1))


def is_right_elsewhere(kernels, key):
    """What a worker is asked: kernels arrive there as their key, since addresses are of a process."""
    return key.is_right(kernels.minimise)


@pytest.fixture
def forty():
    """Forty models, more than are held by the program, and their minimisers alone."""
    keys = [Parabola(0.3 + 0.05 * j) for j in range(40)]
    minimisers = [load_kernels(key).minimise for key in keys]
    gc.collect()
    return list(zip(keys, minimisers, strict=True))


def test_forty_models_are_there_as_long_as_their_functions_are_held(forty):
    assert all(key.is_right(minimise) for key, minimise in forty)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(lambda one: one[0].is_right(one[1]), 4 * forty))


def test_workers_load_kernels_by_their_key(forty):
    kernels, key = load_kernels(forty[3][0]), forty[3][0]
    assert b"address" not in pickle.dumps(kernels)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as workers:
        assert workers.submit(is_right_elsewhere, kernels, key).result()


def test_machine_code_is_handed_no_other_arrays():
    """It looks neither where an array ends nor at what it holds."""
    minimise, nodes = load_kernels(Parabola(0.7)).minimise, nodes_of(0.6)
    found = empty(nodes)
    minimise(nodes, Starts.COLD, found)
    wide = np.zeros((len(_CENTERS), 2, 1))
    for wrong in (np.float32(_CENTERS), wide[:, :1], _CENTERS.astype(">f8"), np.arange(90), None, 3, [1.0]):
        with pytest.raises((TypeError, ValueError)):
            minimise(nodes._replace(centers=wrong), Starts.COLD, found)


@pytest.fixture
def nothing_compiled(monkeypatch):
    """Compiling is an error, and nothing is held in this process."""

    def refuse(*arguments):
        raise AssertionError("compiled again")

    load_kernels(Parabola(1.7))
    compiler.load_kernels.cache_clear()
    compiler._source.cache_clear()
    monkeypatch.setattr(compiler, "linked", refuse)


def test_what_is_the_same_is_not_compiled_again(nothing_compiled, monkeypatch):
    """In another version of the program, or written with a space."""
    assert Parabola(1.7).is_right(load_kernels(Parabola(1.7, " ")).minimise)
    monkeypatch.setattr(compiler, "version", str(time.time()).lower)  # one that no run had before
    compiler.load_kernels.cache_clear()
    assert Parabola(1.7).is_right(load_kernels(Parabola(1.7)).minimise)
    with pytest.raises(AssertionError, match="compiled again"):
        load_kernels(Parabola(2 + time.time() % 1))  # which no run had before


def test_machine_code_of_another_processor_is_not_used(nothing_compiled, monkeypatch):
    monkeypatch.setattr(compiler, "processor", lambda: "another")
    with pytest.raises(AssertionError, match="compiled again"):
        load_kernels(Parabola(1.7))


_WARM = """
import sys, attnphase as ap
ap.solve(ap.load_problem(sys.argv[1]), alpha=1.3)
print(*sorted({"sympy", "numba"} & set(sys.modules)))
"""


def test_a_warm_start_imports_no_compiler(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(problem_of("square").to_toml())
    runs = [subprocess.run([sys.executable, "-c", _WARM, path], check=True, capture_output=True) for _ in range(2)]
    assert runs[1].stdout.split() == []


_BY_PYTHON = """
import sys; sys.path[:0] = sys.argv[1:]
from test_compiling import Parabola, load_kernels
assert Parabola(0.9).is_right(load_kernels(Parabola(0.9)).minimise)
assert "numba" in sys.modules
"""


def test_the_minimiser_runs_without_a_compiler():
    here = Path(__file__).parent
    folders = [here, here.parent / "support"]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    subprocess.run([sys.executable, "-c", _BY_PYTHON, *folders], check=True, env=environment)


def test_a_process_that_compiles_and_is_stopped_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match=r"a process that compiles a kernel was stopped \(exit code 1\)"):
        shared.prepare(["never compiled"])


def test_text_that_is_no_code_is_refused():
    with pytest.raises(RuntimeError, match="expected top-level entity"):
        machine.module_of("no code")
    assert not cache.is_kept("code", "no code")
