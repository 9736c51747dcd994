"""Nodes side by side in the lanes of a block find what the same search finds one after another."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.package import import_package
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from derivations.codegen.backends.lanes import LANES
from derivations.codegen.modules import completed

SCALAR = {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None}
MODELS = {
    "softmax, tied": {"tokens.sigma": 0.7, "teacher.omega": 0.31},
    "untied": {"student.tied": False, "student.temperature": 1.3},
    "relu": {"student.score": "relu", "teacher.score": "linear"},
    "logistic": SCALAR | {"loss.kind": "logistic"},
    "three tokens, causal": {"tokens.length": 3, "student.causal": True, "positions.kind": "none"}
    | {"teacher.mixing": [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]},
    "rank two": {"student.rank": 2, "teacher.rank": 2, "teacher.temperature": 0.8},
    "values": {"loss.kind": "values", "loss.width": 1},
    "sigmoid of a formula": {"student.score": "tanh(z) + 0.3*z", "teacher.score": "sigmoid"},
    "four tokens": {"tokens.length": 4, "positions.kind": "none"}
    | {"teacher.mixing": [[0.25] * 4 for _ in range(4)], "student.score": "softmax1"},
}
FAST = ("softmax, tied", "logistic")


def nodes_of(problem: Problem, count: int, seed: int) -> list[Nodes]:
    """Nodes of ordinary and of hard kinds: V small and large, singular, centres that have two equal minima."""
    rng, length, columns = np.random.default_rng(seed), problem.tokens.length, problem.columns
    variance = np.ascontiguousarray(Spectrum.of(problem).site_variances[:length] * rng.uniform(0.6, 1.5, length))
    mixing = np.ascontiguousarray(problem.mixing_matrix, dtype=float)
    sets = []
    for scale, width in ((0.02, 1.0), (1.3, 0.8), (12.0, 0.5), (90.0, 0.3), (40.0, 0.0), (600.0, 1.5)):
        directions = rng.normal(size=(length, columns, columns))
        V = scale * (0.05 * np.eye(columns) + directions @ directions.transpose(0, 2, 1) / columns)
        centers = width * rng.normal(size=(count, length, columns))
        k = rng.normal(size=(count, length, problem.teacher_columns)) * rng.choice([0.3, 1.0, 2.5])
        factor = np.linalg.cholesky(V).astype(float)
        sets.append(Nodes(centers, k, factor, mixing, model_numbers(problem), variance))
    return sets


def empty(nodes: Nodes) -> Solution:
    count, length, columns = nodes.centers.shape
    return Solution(
        np.zeros((count, 2, length, columns)),
        np.zeros((count, 2)),
        np.zeros(count),
        np.zeros((count, length, columns)),
        np.zeros(count, dtype=np.int64),
    )


def ways_in(problem: Problem, place: Path):
    """Both ways into a copy of a model's kernel: side by side, and one after another."""
    folder = place / kernels_for(problem).folder.name
    shutil.copytree(kernels_for(problem).folder, folder)
    modules = import_package(folder, f"{folder.name}_both", ("blocks", "nodes"))
    return modules["blocks"], modules["nodes"]


def chosen(solution: Solution, which: np.ndarray) -> Solution:
    minima, energies, losses, residuals, flags = solution
    return Solution(minima[which], energies[which], losses[which], residuals[which], flags[which])


def compare(found: Solution, reference: Solution, where: str) -> int:
    """Everything to rounding where one minimum is the lowest; returns the number of nodes that have two.

    Where the minimum lies at a kink of the score no descent reaches its tolerance: it stops nearby, where rounding
    says, and flags the node. Up to three nodes in a hundred then end elsewhere.
    """
    if "relu" in where:
        same = np.all(np.isclose(found.energies, reference.energies, rtol=1e-11, atol=0), axis=1)
        lowest = np.isclose(found.energies[:, 0], reference.energies[:, 0], rtol=1e-11, atol=0)
        stopped_short = (found.flags < 0) | (reference.flags < 0)
        assert (lowest | stopped_short).mean() > 0.99
        assert lowest.mean() > 0.97
        found, reference = chosen(found, same), chosen(reference, same)
    size = 1 + np.abs(reference.energies)
    np.testing.assert_allclose(found.energies / size, reference.energies / size, atol=2e-12, err_msg=where)
    gap = reference.energies[:, 1] - reference.energies[:, 0]
    alone = (reference.minima[:, 0] == reference.minima[:, 1]).all(axis=(1, 2))
    single = alone | (gap > 1e-9 * size[:, 0])
    assert single.mean() > 0.3 or "equal" in where
    for name in ("minima", "losses", "residuals"):
        a, b = (getattr(one, name)[single] for one in (found, reference))
        a, b = (x[:, 0] if name == "minima" else x for x in (a, b))
        # a descent that stopped short is a little beside the minimum
        a, b = (x[reference.flags[single] >= 0] for x in (a, b))
        scale = 1 + np.abs(b).reshape(len(b), -1).max(axis=1).reshape(-1, *(1,) * (b.ndim - 1))
        np.testing.assert_allclose(a / scale, b / scale, atol=2e-9, err_msg=f"{name}, {where}")
    assert (found.flags[single] >= 0).mean() > (0.9 if "relu" in where else 0.999)
    assert ((found.flags < 0) == (reference.flags < 0))[single].mean() > (0.99 if "relu" in where else 0.999)
    return int((gap > 0).sum())


@pytest.mark.parametrize("label", [pytest.param(m, marks=[] if m in FAST else pytest.mark.slow) for m in MODELS])
def test_a_block_finds_what_a_search_of_its_own_finds(label, tmp_path):
    """A hundred thousand nodes of every model, the hard ones included; fewer where a test must be fast."""
    problem = Problem.paper(omega=0.3).with_fields(MODELS[label])
    assert problem.tokens.length * problem.columns <= 4
    side_by_side, one_by_one = ways_in(problem, tmp_path)
    several = 0
    for number, nodes in enumerate(nodes_of(problem, 1_000 if label in FAST else 17_000, seed=5)):
        found, reference = empty(nodes), empty(nodes)
        where = f"{label}, set {number}{', equal minima' if number == 4 else ''}"
        alone = () if label == "relu" else (Starts.FROM_ZERO,)  # zero is a kink itself
        for starts in (Starts.COLD, Starts.WARM, Starts.REFRESH, *alone):
            moved = nodes._replace(centers=nodes.centers * (1.0 if starts == Starts.COLD else 1.03))
            side_by_side.minimise(moved, int(starts), found)
            one_by_one.minimise(moved, int(starts), reference)
            several += compare(found, reference, f"{where}, {starts.name}")
            for name in Solution._fields:  # the next pass begins at the same minima
                getattr(found, name)[...] = getattr(reference, name)
        centers, k, _, mixing, parameters, variance = nodes
        losses = np.zeros((2, len(centers)))
        for way, place in zip((side_by_side, one_by_one), losses, strict=True):
            way.losses_at(centers, k, mixing, parameters, variance, place)
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12, atol=1e-13, err_msg=where)
    assert several > 100 or label == "logistic"


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_blocks_that_are_not_full(count):
    problem = Problem.paper(omega=0.3)
    (nodes, *_), kernels = nodes_of(problem, 200, seed=8), kernels_for(problem)
    whole = empty(nodes)
    kernels.minimise(nodes, Starts.COLD, whole)
    few = nodes._replace(centers=nodes.centers[:count], teacher_fields=nodes.teacher_fields[:count])
    part = empty(few)
    kernels.minimise(few, Starts.COLD, part)
    for name in Solution._fields:
        np.testing.assert_array_equal(getattr(part, name), getattr(whole, name)[:count])


def test_a_model_with_more_fields_is_done_node_by_node():
    assert not (kernels_for(Problem.paper(omega=0.3).with_fields(FIVE)).folder / "lanes.py").exists()
    assert (kernels_for(Problem.paper(omega=0.3)).folder / "lanes.py").exists()


FIVE = {"tokens.length": 5, "positions.kind": "none", "teacher.mixing": [[0.2] * 5 for _ in range(5)]}


def test_elementary_functions_of_lanes():
    """To a few units in the last place, wherever the minimiser may look; at the ends they stay what they are."""
    names = ("exp", "log", "log1p", "tanh", "cosh", "sinh", "sigmoid", "softplus")
    body = "\n".join(f"def use_{name}(x):\n    return {name}(x)" for name in names)
    source = completed("", body, LANES)
    head, tail = source.split("@inlined", 1)
    plain = (
        "import math\nimport numpy as np\nfrom math import floor\n\ndef inlined(f):\n    return f\n\n@inlined" + tail
    )
    assert "from .compiled import in_lanes as inlined" in head
    space: dict = {}
    exec(plain, space)
    known = {name: getattr(math, name) for name in names if hasattr(math, name)} | {
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "softplus": lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0),
    }
    rng = np.random.default_rng(3)
    both = np.concatenate([rng.normal(0, 3, 400), rng.normal(0, 1e-3, 100), rng.uniform(-30, 30, 100)])
    for name in names:
        points = np.exp(both) if name == "log" else np.expm1(both) if name == "log1p" else both
        with np.errstate(over="ignore"):
            for x in points[np.isfinite(points)]:
                value, right = space[name](float(x)), known[name](float(x))
                absolute = 4e-16 if name in ("tanh", "sinh", "log1p") else 0.0
                assert value == pytest.approx(right, rel=2e-14 if name == "exp" else 1e-13, abs=absolute), (name, x)
    assert space["exp"](-1e4) < 1e-300
    assert space["log"](0.0) == -math.inf
    assert math.isnan(space["log"](-1.0))
