"""The minimiser is ordinary Python: as it stands, and with a model's local problem as a build copies it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import derivations
from attnphase.kernels import cache
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum

PAPER = Problem.paper(omega=0.3)

PLAIN = """
import sys
from pathlib import Path

import numpy as np

from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.package import import_package

folder, given, found = map(Path, sys.argv[1:4])
entry = sys.argv[4]
modules = import_package(folder, folder.name, (entry, "search"))
assert type(modules["search"].search) is type(import_package), "compiled"
with np.load(given) as arrays:
    nodes = Nodes(*(arrays[name] for name in Nodes._fields))
    solution = Solution(*(arrays[name] for name in Solution._fields))
    for starts in arrays["starts"].tolist():
        modules[entry].minimise(nodes, starts, solution)
np.savez(found, **solution._asdict())
"""


def nodes_of(problem: Problem, count: int) -> tuple[Nodes, Solution]:
    rng, length, columns = np.random.default_rng(2), problem.tokens.length, problem.columns
    variance = np.ascontiguousarray(Spectrum.of(problem).site_variances[:length])
    nodes = Nodes(
        rng.normal(size=(count, length, columns)),
        rng.normal(size=(count, length, problem.teacher_columns)),
        np.sqrt(np.full((length, columns, columns), 8.0)),
        np.ascontiguousarray(problem.mixing_matrix),
        model_numbers(problem),
        variance,
    )
    solution = Solution(
        np.zeros((count, 2, length, columns)),
        np.zeros((count, 2)),
        np.zeros(count),
        np.zeros((count, length, columns)),
        np.zeros(count, dtype=np.int64),
    )
    return nodes, solution


def in_plain_python(
    folder: Path, nodes: Nodes, solution: Solution, starts: list[Starts], place: Path, entry: str = "nodes"
) -> Solution:
    """What an entry point of a package gives in a process without Numba's compiler."""
    np.savez(place / "given.npz", starts=np.array(starts), **nodes._asdict(), **solution._asdict())
    command = [sys.executable, "-c", PLAIN, folder, place / "given.npz", place / "found.npz", entry]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([str(part) for part in command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(place / "found.npz") as arrays:
        return Solution(*(arrays[name] for name in Solution._fields))


def test_a_kernel_runs_as_plain_python_and_finds_what_machine_code_finds(tmp_path):
    nodes, solution = nodes_of(PAPER, 12)
    kernels, starts = kernels_for(PAPER), [Starts.COLD, Starts.WARM, Starts.REFRESH, Starts.FROM_ZERO]
    plain = in_plain_python(kernels.folder, nodes, solution, starts, tmp_path)
    for each in starts:
        kernels.minimise(nodes, each, solution)
    assert solution.flags.max() > 0
    for name, expected in solution._asdict().items():
        np.testing.assert_allclose(getattr(plain, name), expected, rtol=1e-11, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("entry", ["nodes", "blocks", "together"])
def test_the_package_in_the_repository_runs_by_itself(tmp_path, entry):
    """With the square loss, whose proximal point is ``(omega + V k) / (1 + V)``."""
    nodes, solution = nodes_of(Problem().with_fields({"tokens.length": 1, "loss.kind": "square"}), 5)
    folder = Path(cache.__file__).with_name("local")
    found = in_plain_python(folder, nodes, solution, [Starts.COLD], tmp_path, entry)
    expected = (nodes.centers + 8 * nodes.teacher_fields) / 9
    np.testing.assert_allclose(found.minima[:, 0], expected, rtol=1e-12)
    np.testing.assert_allclose(found.residuals, (expected - nodes.centers) / 8, rtol=1e-10)


@pytest.mark.parametrize(
    "part",
    [
        "derivations/codegen/local_problem.py",
        "local/along_kinks.py",
        "local/values.py",
        "compiler.py",
        "package.py",
        "losses.py",
    ],
)
def test_a_kernel_is_named_after_every_source_it_depends_on(monkeypatch, tmp_path, part):
    sources = dict(cache.kernel_sources())
    assert {path for name, path in sources.items() if name.startswith("derivations/")} == set(
        Path(str(derivations.__file__)).parent.rglob("*.py")
    )
    # taken once in a process, whose modules do not change
    monkeypatch.setattr(cache, "fingerprint_of_program", cache.fingerprint_of_program.__wrapped__)
    before = cache.fingerprint("key")
    changed = tmp_path / "changed.py"
    changed.write_text(sources[part].read_text(encoding="utf-8") + "\n", encoding="utf-8")
    monkeypatch.setattr(cache, "kernel_sources", lambda: iter((sources | {part: changed}).items()))
    assert cache.fingerprint("key") != before
