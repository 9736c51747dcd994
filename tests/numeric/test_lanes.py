"""Nodes side by side in the lanes of a block find what the same search finds one after another."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnphase.kernels import compiler
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import ModelKey, model_numbers
from attnphase.kernels.local.constants import CONVERGED, IRREGULAR, RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, SampleNodes, Solution
from attnphase.kernels.package import import_package, write_package
from attnphase.problem.problem import Problem
from attnphase.spectrum.measure import Spectrum
from derivations.codegen.backends.lanes import LANES
from derivations.codegen.ir import Module
from derivations.codegen.lanes import lanes
from derivations.codegen.local_problem import kernel_source, lanes_source, local_problem, steps_source
from derivations.codegen.modules import completed
from derivations.codegen.rows import rows_apart
from derivations.codegen.steps import steps
from derivations.codegen.writer import written
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.scalar import formula_loss
from derivations.models.scores import SCORES, linear, softmax

SCALAR = {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None}
THREE = {"tokens.length": 3, "positions.kind": "none"}
THREE |= {"teacher.mixing": [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]}
# all but the last have kernels that other tests compile too
MODELS = {
    "softmax, tied": {"tokens.sigma": 0.7, "teacher.omega": 0.31},
    "untied": {"student.tied": False, "student.temperature": 1.3},
    "relu": {"student.score": "relu"},
    "logistic": SCALAR | {"loss.kind": "logistic"},
    "sigmoid": {"student.score": "sigmoid", "teacher.omega": 0.17},
    "three tokens, of a formula": THREE | {"student.score": "z / sqrt(0.3 + sum(z**2))"},
    "rank two": {"student.rank": 2, "teacher.rank": 2, "teacher.temperature": 0.8},
    "values": {"loss.kind": "values", "loss.width": 1},
    "four tokens, causal": {"tokens.length": 4, "student.causal": True, "positions.kind": "none"}
    | {"teacher.mixing": [[0.25] * 4 for _ in range(4)], "student.score": "softmax1"},
}
# a third of a minute and more to compile
LARGE = {
    "three tokens, rank two": THREE | {"student.rank": 2, "teacher.rank": 2},
    "six tokens, causal": {"tokens.length": 6, "student.causal": True, "positions.kind": "none"}
    | {"teacher.mixing": [[0.3 - 0.06 * abs(a - b) for b in range(6)] for a in range(6)]},
}
FAST = ("softmax, tied", "logistic")
FEW, MANY = 2_500, 17_000


def nodes_of(problem: Problem, count: int, seed: int) -> list[Nodes]:
    """Nodes of ordinary and of hard kinds: V small and large, singular, centres that have two equal minima.

    Fewer are the first of many, under the same V.
    """
    rng, length, columns = np.random.default_rng(seed), problem.tokens.length, problem.columns
    variance = np.ascontiguousarray(Spectrum.of(problem).site_variances[:length] * rng.uniform(0.6, 1.5, length))
    mixing = np.ascontiguousarray(problem.mixing_matrix, dtype=float)
    sets = []
    for scale, width in ((0.02, 1.0), (1.3, 0.8), (12.0, 0.5), (90.0, 0.3), (40.0, 0.0), (600.0, 1.5)):
        directions = rng.normal(size=(length, columns, columns))
        V = scale * (0.05 * np.eye(columns) + directions @ directions.transpose(0, 2, 1) / columns)
        centers = width * rng.normal(size=(MANY, length, columns))[:count]
        k = rng.normal(size=(MANY, length, problem.teacher_columns))[:count] * rng.choice([0.3, 1.0, 2.5])
        factor = np.linalg.cholesky(V).astype(float)
        sets.append(Nodes(centers, k, factor, mixing, model_numbers(problem), variance))
    return sets


def empty(nodes: Nodes | SampleNodes) -> Solution:
    count, length, columns = nodes.centers.shape
    return Solution(
        np.zeros((count, 2, length, columns)),
        np.zeros((count, 2)),
        np.zeros(count),
        np.zeros((count, length, columns)),
        np.zeros(count, dtype=np.int64),
    )


def entry_points(problem: Problem, place: Path):
    """Both ways into a model's kernel: side by side as everyone has it, and one after another, compiled for this."""
    write_package(place, {"local_problem": kernel_source(ModelKey.of(problem).model())})
    return kernels_for(problem), import_package(place, f"{place.name}_alone", ("nodes",))["nodes"]


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
    if not single.any():  # of an odd score, all centres at zero have two
        return int((gap > 0).sum())
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


def set_aside(found: Solution, reference: Solution, one_by_one, nodes: Nodes, starts: Starts, known: Solution) -> None:
    """Let nodes agree whose second minimum is up to rounding.

    With many starts at a large V a descent may be chaotic. That is shown for each such node: the single search finds
    the same two minima as the block once the centre is moved by some units in the last place.
    """
    apart = np.abs(found.energies - reference.energies).max(axis=1) > 2e-12 * (1 + np.abs(reference.energies[:, 0]))
    assert apart.sum() <= 3
    for node in np.flatnonzero(apart):
        copies, rng = np.full(3_000, node), np.random.default_rng(node)
        units = rng.choice([-1, 0, 1], size=(len(copies), *nodes.centers.shape[1:]))
        near = nodes.centers[copies] * (1 + 1e-15 * units)
        outcomes = chosen(known, copies)
        one_by_one.minimise(
            nodes._replace(centers=near, teacher_fields=nodes.teacher_fields[copies]), int(starts), outcomes
        )
        same = np.isclose(outcomes.energies, found.energies[node], rtol=1e-11, atol=0).all(axis=1)
        assert same.any()
        assert not same.all()
        for name in Solution._fields:
            getattr(found, name)[node] = getattr(reference, name)[node]


WHERE_ROUNDING_DECIDES = ("six tokens, causal",)


@pytest.mark.parametrize("label", [pytest.param(m, marks=[] if m in FAST else pytest.mark.slow) for m in MODELS])
def test_a_block_finds_what_a_search_of_its_own_finds(label, tmp_path):
    """Thousands of nodes of a model with up to four fields, hard ones included."""
    finds_the_same(label, FEW, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("label", MODELS | LARGE)
def test_blocks_of_many_nodes_find_what_searches_of_their_own_find(label, tmp_path):
    """A hundred thousand nodes of every model."""
    finds_the_same(label, MANY, tmp_path)


def finds_the_same(label: str, count: int, tmp_path: Path) -> None:
    """Six sets of so many nodes of a model."""
    problem = Problem.paper(omega=0.3).with_fields((MODELS | LARGE)[label])
    assert problem.tokens.length * problem.columns <= 8
    side_by_side, one_by_one = entry_points(problem, tmp_path)
    several = 0
    for number, nodes in enumerate(nodes_of(problem, count, seed=5)):
        found, reference = empty(nodes), empty(nodes)
        where = f"{label}, set {number}{', equal minima' if number == 4 else ''}"
        alone = () if label == "relu" else (Starts.FROM_ZERO,)  # zero is a kink itself
        for starts in (*(one for one in Starts if one is not Starts.FROM_ZERO), *alone):
            moved = nodes._replace(centers=nodes.centers * (1.0 if starts == Starts.COLD else 1.03))
            known = chosen(reference, np.arange(len(reference.flags)))  # a copy
            side_by_side.minimise(moved, starts, found)
            one_by_one.minimise(moved, int(starts), reference)
            if label in WHERE_ROUNDING_DECIDES:
                set_aside(found, reference, one_by_one, moved, starts, known)
            several += compare(found, reference, f"{where}, {starts.name}")
            for name in Solution._fields:  # the next pass begins at the same minima
                getattr(found, name)[...] = getattr(reference, name)
        centers, k, _, mixing, parameters, variance = nodes
        losses = np.zeros((2, len(centers)))
        for way, place in zip((side_by_side, one_by_one), losses, strict=True):
            way.losses_at(centers, k, mixing, parameters, variance, place)
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12, atol=1e-13, err_msg=where)
    assert several > count / 200 or label == "logistic"


@pytest.mark.parametrize("label", ["untied", pytest.param("three tokens, rank two", marks=pytest.mark.slow)])
def test_samples_in_blocks_find_what_searches_of_their_own_find(label, tmp_path):
    """At finite d: every sample has its own target, Gram matrix and V, none so large that rounding decides."""
    problem, rng, count = Problem.paper(omega=0.3).with_fields((MODELS | LARGE)[label]), np.random.default_rng(7), 700
    model, length, columns = ModelKey.of(problem, finite=True).model(), problem.tokens.length, problem.columns
    ways = []
    for way, sources in (("sample_blocks", {"lanes": lanes_source(model, own=True)}), ("samples", {})):
        (tmp_path / way).mkdir()
        write_package(tmp_path / way, {"local_problem": kernel_source(model), **sources})
        ways.append(import_package(tmp_path / way, f"finite_{way}", (way,))[way].minimise)
    directions = rng.normal(size=(5, columns, columns))
    V = np.geomspace(0.02, 9, 5)[:, None, None] * (0.05 * np.eye(columns) + directions @ directions.mT)
    tokens = rng.normal(size=(count, length, 40)) / np.sqrt(40)
    products = rng.dirichlet(np.ones(length), (count, length)) @ tokens @ tokens.mT
    centers, k = (rng.normal(size=(count, length, width)) for width in (columns, problem.teacher_columns))
    sites = rng.integers(5, size=(count, length))
    factors = np.linalg.cholesky(V).astype(float)
    nodes = SampleNodes(centers, k, products, tokens @ tokens.mT, sites, factors, model_numbers(problem))
    found, reference = empty(nodes), empty(nodes)
    for starts in (Starts.COLD, Starts.WARM, Starts.FROM_ZERO):
        for minimise, solution in zip(ways, (found, reference), strict=True):
            minimise(nodes, int(starts), solution)
        compare(found, reference, f"{label}, {starts.name}")
    assert np.unique(found.losses).size == count


def test_units_change_no_bit_of_a_minimum(tmp_path):
    """Fields 2^-20 times as large, temperatures and losses 2^-40 times: rounding is a share of such energies too."""
    problem, c = Problem.paper(omega=0.3).with_fields(MODELS["softmax, tied"]), 2.0**-20
    cold: Any = int(Starts.COLD)
    for way in entry_points(problem, tmp_path):
        for nodes in nodes_of(problem, MANY, seed=6):
            omega, student, teacher, length, *matched = nodes.parameters
            parameters = np.array([omega, c**2 * student, c**2 * teacher, c * length, *matched])
            fields = {"centers": c * nodes.centers, "teacher_fields": c * nodes.teacher_fields}
            small = nodes._replace(**fields, parameters=parameters, variance=c**2 * nodes.variance)
            expected, found = empty(nodes), empty(small)
            way.minimise(nodes, cold, expected)
            way.minimise(small, cold, found)
            for name, unit in (("minima", c), ("energies", c**2), ("losses", c**2), ("residuals", c), ("flags", 1)):
                np.testing.assert_array_equal(getattr(found, name), unit * getattr(expected, name), err_msg=name)


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


def test_nodes_without_a_minimum_keep_what_the_centre_has(tmp_path):
    """While other nodes of a block begin, a lane that goes to the centre waits for its trial."""
    model = formula_loss("k*h**2/2 + 3*cos(h)", 1, 1, 1)
    sources = {"local_problem": kernel_source(model), "lanes": lanes_source(model), "steps": steps_source(model)}
    write_package(tmp_path, {name: source for name, source in sources.items() if source is not None})
    minimise = import_package(tmp_path, "bottomless", ("together",))["together"].minimise
    rng, count = np.random.default_rng(4), 8000
    # the teacher's field says how the loss bends, and for one in twenty it has no bottom
    k = np.where(rng.random(count) < 0.05, -2.0, 0.5).reshape(count, 1, 1)
    center = rng.normal(size=(count, 1, 1)) * 2
    nodes = Nodes(center, k, np.ones((1, 1, 1)), np.ones((1, 1)), np.array([0.3, 1.0, 1.0, 1.0, 1.0]), np.ones(1))
    at_center = (k * center**2 / 2 + 3 * np.cos(center)).ravel()
    for starts in (Starts.COLD, Starts.FROM_ZERO):
        found = empty(nodes)
        minimise(nodes, int(starts), found)
        fallen = (found.flags == RUNAWAY) & (found.minima[:, 0, 0, 0] == center.ravel())
        assert 50 < fallen.sum() < 800
        np.testing.assert_allclose(found.energies[fallen, 0], at_center[fallen], rtol=1e-12)
    # a curvature that is infinite where the energy is not leaves no step to make, and none that is refused
    alone = nodes._replace(centers=center[:1], teacher_fields=k[:1], factor=np.full((1, 1, 1), 1e160))
    found = empty(alone)
    minimise(alone, int(Starts.COLD), found)
    assert found.flags[0] < 0


@pytest.mark.parametrize(("length", "way"), [(2, "together"), (9, "blocks"), (17, "nodes")])
def test_a_model_with_very_many_fields_is_done_node_by_node(length, way, monkeypatch, tmp_path):
    imported = []
    monkeypatch.setattr(compiler, "compile_package", lambda folder, name, write, _: imported.extend(write()))
    monkeypatch.setattr(compiler, "map_sources", dict)
    compiler.build_kernel(ModelKey(length, 1, True, "linear", False, "linear", False, 1), tmp_path / "kernel")
    assert imported == [way, "means", "curvature"]


def as_python(source: str) -> str:
    """A module of lanes without Numba."""
    own = """
def plain(f):
    return f

def chosen(condition, yes, no):
    return yes if condition else no

compiled = inlined = in_order = plain
"""
    return re.sub(r"(from \.compiled import .*\n)+", own, source)


def run_as_python(module: Module) -> dict[str, Any]:
    """The functions and constants of a module of lanes, without Numba."""
    plain = as_python(completed("", written(module), LANES))
    space: dict[str, Any] = {}
    exec(plain.replace("from .constants", "from attnphase.kernels.local.constants"), space)
    return space


WIDE = {
    "rank two": AttentionModel(3, Student(softmax, 2), Teacher(softmax, 2)),
    "untied, causal": AttentionModel(
        3, Student(softmax, 1, tied=False, causal=True), Teacher(softmax, 1, causal=True), noisy=True
    ),
    "values": AttentionModel(3, Student(softmax, 1, tied=True), Teacher(linear), values=1),
    "null logit": AttentionModel(3, Student(SCORES["softmax1"], 2), Teacher(SCORES["relu"])),
}
QUICK = ("rank two", "untied, causal")


@pytest.mark.parametrize("label", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in WIDE])
def test_rows_one_after_another_are_one_straight_line(label):
    """Two trials of a descent, the targets and the losses: with a loop over the rows and without, to rounding."""
    model, rng = WIDE[label], np.random.default_rng(11)
    problem, size = local_problem(model), model.length * model.columns
    ways = run_as_python(lanes(problem)), run_as_python(lanes(problem, rows_apart(model, model.rows)))
    assert ways[0]["LANES"] > ways[1]["LANES"] == 16
    factor = np.linalg.cholesky(np.eye(model.columns) + 0.3 * rng.random((model.length, 1, 1)))
    variance, parameters = rng.uniform(0.4, 1.2, model.length), np.array([0.37, 1.3, 0.8, 0.7])
    mixing, k = (
        rng.uniform(0, 1, (model.length, model.length)),
        rng.normal(size=(model.length * (model.teacher_rank + model.noise_columns), 16)),
    )
    center, point, drawn = rng.normal(size=(3, size, 16))
    results = []
    for way in ways:
        width = way["LANES"]
        spread = partial(np.pad, pad_width=((0, 0), (0, width - 16)))
        targets, losses = np.zeros((way["TARGETS"], width)), np.zeros(width)
        way["teacher_targets"](spread(k).ravel(), mixing, parameters, targets.reshape(-1))
        way["lane_losses"](spread(drawn).ravel(), targets.reshape(-1), variance, parameters, losses)
        state = np.zeros((way["ROWS"], width))
        names = (*ONE, *FIELDS, "CENTER", "TARGET", "CURVATURE", "DEFINITE", "WIDEST", "BEST")
        rows = {name: state[way[name] :] for name in names}
        rows["CENTER"][:size], rows["POINT"][:size] = spread(center), spread(point)
        rows["TARGET"][: len(targets)], rows["BEST"][: 2 * size] = targets, np.nan
        rows["DEFINITE"][0] = 1.0
        rows["ENERGY"][0], rows["STEPS"][0], rows["WIDEST"][0], rows["DEEPEST"][0] = np.inf, -1.0, 1e30, -np.inf
        found = [losses[:16]]
        for _ in range(2):
            way["newton_trial"](state.reshape(-1), factor, variance, parameters)
            found += [rows[name][:size, :16] for name in FIELDS]
            found += [rows["CURVATURE"][: size * (size + 1) // 2, :16], *(rows[name][:1, :16] for name in ONE)]
            found = [np.array(array) for array in found]
        results.append(found)
    for line, loop in zip(*results, strict=True):
        np.testing.assert_allclose(loop, line, rtol=1e-11, atol=1e-13)
    assert np.ptp(results[0][1]) > 0.1


def test_a_regular_step_is_a_trial_where_nothing_is_refused():
    """Of one descent each: lanes of regular nodes go as trials let them; others stay, and so does what has ended."""
    model, rng = AttentionModel(2, Student(softmax, 1), Teacher(softmax, 1)), np.random.default_rng(3)
    problem = local_problem(model)
    trial, step = run_as_python(lanes(problem)), run_as_python(steps(problem))["newton_step"]
    width, factor = trial["LANES"], np.array([[[1.2]], [[1.9]]])
    variance, parameters = np.array([0.9, 1.2]), np.array([0.37, 1.3, 0.8, 0.7])
    state = np.zeros((trial["ROWS"], width))
    state[trial["CENTER"] : trial["CENTER"] + 2] = rng.normal(size=(2, width)) * 2
    state[trial["TARGET"] : trial["TARGET"] + 4] = rng.uniform(0, 1, (4, width))
    state[[trial["DEFINITE"], trial["CURVATURE"], trial["CURVATURE"] + 2]] = 1.0
    state[trial["BEST"] : trial["BEST"] + 4] = np.nan
    state[trial["ENERGY"]], state[trial["STEPS"]], state[trial["WIDEST"]] = np.inf, -1.0, 1e30
    state[trial["DEEPEST"]] = -np.inf
    ended = np.arange(width) % 7 == 0
    state[trial["EVENT"], ended] = CONVERGED
    other, start, refused = state.copy(), state.copy(), np.zeros(width, dtype=bool)
    kept = [row for row in range(trial["ROWS"]) if row not in (trial["DEEPEST"], trial["SHIFT"], trial["TRIES"])]
    arrived, before = np.zeros(width, dtype=bool), state
    for _ in range(8):
        before = state.copy()
        step(state.reshape(-1), factor, variance, parameters)
        trial["newton_trial"](other.reshape(-1), factor, variance, parameters)
        damped = (other[trial["DEFINITE"]] == 0) | (other[trial["SHIFT"]] > 0) | (other[trial["TRIES"]] > 0)
        refused |= damped & ~arrived
        going = ~(ended | refused | arrived)
        np.testing.assert_allclose(state[kept][:, going], other[kept][:, going], rtol=1e-11, atol=1e-13)
        np.testing.assert_array_equal(state[:, ended], start[:, ended])
        np.testing.assert_array_equal(state[trial["EVENT"], refused & ~ended], IRREGULAR)
        rest = [row for row in range(trial["ROWS"]) if row != trial["EVENT"]]
        np.testing.assert_array_equal(state[rest][:, ~going], before[rest][:, ~going])
        arrived |= going & (state[trial["EVENT"]] == CONVERGED)
    assert arrived.sum() > 20
    assert (refused & ~ended).sum() > 5


FIELDS, ONE = (
    ("POINT", "GRADIENT", "SLOPE", "STEP"),
    ("EXPECTED", "ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES", "DEEPEST", "EVENT"),
)


def test_elementary_functions_of_lanes():
    """To a few units in the last place, wherever the minimiser may look; at the ends they stay what they are."""
    names = ("exp", "log", "log1p", "tanh", "cosh", "sinh", "sigmoid", "softplus")
    body = "\n".join(f"def use_{name}(x):\n    return {name}(x)" for name in names)
    source = completed("", body, LANES)
    assert "from .compiled import in_lanes as inlined" in source
    space: dict = {}
    exec(as_python(source), space)
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
