"""Nodes side by side in the lanes of a block find what the same search finds one by one.

Not public: the search of a single node, and the functions of lanes.
"""

import ctypes
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from local_problems import Starts, drawn, empty, one_by_one

import attnphase as ap
from attnphase.kernels.compiler import kernels_for, load_kernels
from attnphase.kernels.local.constants import ARGUMENTS, MATCHED, RUNAWAY
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.machine import compiled, loaded, module_of
from derivations.codegen.form import Function, Loop, Store
from derivations.codegen.llvm import emitted
from derivations.codegen.tape import Place, Tape
from derivations.models.scalar import formula_loss

THREE = {"tokens.length": 3, "positions.kind": "none"}
THREE |= {"teacher.mixing": [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.2, 0.4]]}
RANK_TWO = {"student.rank": 2, "teacher.rank": 2}
SCALAR = {"tokens.length": 1, "positions.kind": "none", "teacher.mixing": None}
LARGE, HUGE, EQUAL, SOLVED = (40.0, 0.8), (600.0, 1.5), (40.0, 0.0), (600.0, None)
"""Size of V and width of the centres; those at zero have two equal minima, and some are where the loss vanishes."""
# so many nodes of each kind: more than a block has lanes
CASES = {
    "tied": ({"tokens.sigma": 0.7, "teacher.omega": 0.31}, 80, (LARGE, EQUAL)),
    "without encodings": ({"teacher.omega": 0.0, "teacher.temperature": 0.8}, 25, (SOLVED,)),
    "untied": ({"student.tied": False, "student.temperature": 1.3}, 20, (HUGE,)),
    "rank two": (RANK_TWO | {"teacher.temperature": 0.8}, 25, (LARGE,)),
    "logistic": (SCALAR | {"loss.kind": "logistic"}, 70, (HUGE,)),
    "values": ({"loss.kind": "values", "loss.width": 1}, 10, (HUGE,)),
    "three tokens, causal": (THREE | {"student.causal": True, "student.score": "softmax1"}, 10, (LARGE,)),
    "three tokens, rank two": (THREE | RANK_TWO | {"student.score": "sigmoid"}, 17, (LARGE,)),
}


@dataclass(frozen=True)
class _Formula:
    """The key of a loss of one token that no problem may have."""

    text: str

    def model(self):
        return formula_loss(self.text, 1, 1, 1)


def assert_same(found: Solution, expected: Solution) -> None:
    """Energies of both minima; all else where one is lower than the other."""
    np.testing.assert_allclose(found.energies, expected.energies, rtol=1e-11, atol=1e-12)
    size = 1 + np.abs(expected.energies[:, 0])
    alone, of_found = ((one.minima[:, 0] == one.minima[:, 1]).all(axis=(1, 2)) for one in (expected, found))
    np.testing.assert_array_equal(of_found, alone)  # a minimum that is found twice is one
    clear = alone | (np.diff(expected.energies)[:, 0] > 1e-9 * size)
    np.testing.assert_allclose(found.minima[clear], expected.minima[clear], rtol=1e-7, atol=1e-8)
    for name in ("losses", "residuals"):
        a, b = (getattr(one, name)[clear] for one in (found, expected))
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=name)
    assert (found.flags != expected.flags)[clear].sum() <= 0.03 * len(clear)  # as many steps; rounding may add one
    assert ((found.flags < 0) == (expected.flags < 0)).all()


@pytest.mark.parametrize("name", CASES)
def test_a_block_finds_what_a_search_of_its_own_finds(name):
    """From every kind of start, beginning at minima that are a little off."""
    fields, count, kinds = CASES[name]
    problem, several = ap.Problem.paper(omega=0.3).with_fields(fields), 0
    in_lanes, one_after_another = kernels_for(problem).minimise, partial(one_by_one, problem)
    for kind, (scale, width) in enumerate(kinds):
        nodes, known = drawn(problem, count, 5 + kind, scale, width or 0.0), None
        if width is None:
            nodes.centers[:] = nodes.teacher_fields * nodes.parameters[MATCHED]
        for starts in Starts:
            both = empty(nodes), empty(nodes)
            for minimise, solution in zip((in_lanes, one_after_another), both, strict=True):
                if known is not None:
                    solution.minima[:], solution.energies[:] = known.minima * 1.02, known.energies
                minimise(nodes, starts, solution)
            assert_same(*both)
            known = both[1]
            several += int((np.diff(known.energies)[:, 0] > 1e-9).sum())
    assert several > 2 or name == "logistic"


def test_nodes_without_a_minimum_keep_what_the_centre_has():
    """The teacher's field says how the loss bends, and for some nodes it has no bottom."""
    minimise = load_kernels(_Formula("k*h**2/2 + 3*cos(h)")).minimise
    rng = np.random.default_rng(4)
    for starts, count in ((Starts.FROM_ZERO, 640), (Starts.COLD, 100)):
        k = np.where(rng.random(count) < 0.3, -2.0, 0.5).reshape(count, 1, 1)
        center = rng.normal(size=(count, 1, 1)) * 2
        nodes = Nodes(center, k, np.ones((1, 1, 1)), np.ones((1, 1)), np.array([0.3, 1.0, 1.0, 1.0, 1.0]), np.ones(1))
        found = empty(nodes)
        minimise(nodes, starts, found)
        fallen = (found.flags == RUNAWAY) & (found.minima[:, 0, 0, 0] == center.ravel())
        assert 5 < fallen.sum() <= (k < 0).sum()
        at_center = (k * center**2 / 2 + 3 * np.cos(center)).ravel()
        np.testing.assert_allclose(found.energies[fallen, 0], at_center[fallen], rtol=1e-12)
        assert (found.flags[k.ravel() > 0] > 0).all()
    # a curvature that is infinite where the energy is not leaves no step to make, and none that is refused
    alone = nodes._replace(centers=center[:1], teacher_fields=k[:1], factor=np.full((1, 1, 1), 1e160))
    found = empty(alone)
    minimise(alone, Starts.COLD, found)
    assert found.flags[0] < 0


def applied(value, points, lanes):
    """A function of ``points`` at these, one after another or in lanes, of which so many fill a register."""
    loop = Loop((Store(Place("values", (0,)), value),))
    function = Function("apply", ("points", "values"), (loop,), lanes=len(points) * (lanes > 0), in_turn=lanes == 4)
    code = loaded(compiled(module_of(emitted([function], ARGUMENTS, lanes or 4))), ["apply"])
    apply = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_void_p] * ARGUMENTS)(code.addresses["apply"])
    values = np.empty(len(points))
    for n in range(1 if lanes else len(points)):
        apply(points[n:].ctypes.data, values[n:].ctypes.data, *[None] * (ARGUMENTS - 2))
    return values


@pytest.mark.parametrize("lanes", [0, 4, 8])
def test_elementary_functions(lanes):
    """To a few units in the last place, wherever the minimiser may look; at the ends they stay what they are."""
    known = {name: getattr(math, name) for name in ("exp", "log", "tanh", "cosh", "sinh")} | {
        "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
        "softplus": lambda x: math.log1p(math.exp(-abs(x))) + max(x, 0.0),
        "sin": math.sin,
    }
    tape, rng = Tape(), np.random.default_rng(3)
    both = np.concatenate([rng.normal(0, 3, 400), rng.normal(0, 1e-3, 100), rng.uniform(-30, 30, 100), np.zeros(8)])
    ends = np.array([-1e4, 0.0, -1.0, np.nan, np.inf, 1.0, 2.0, 3.0])
    for name, function in known.items():
        value, points = tape.do(name, tape.read("points", 0)), np.exp(both) if name == "log" else both
        expected, absolute = np.array([function(x) for x in points]), 4e-16 if name in ("tanh", "sinh") else 0.0
        relative = 2e-14 if name == "exp" else 1e-13
        np.testing.assert_allclose(applied(value, points, lanes), expected, rtol=relative, atol=absolute)
        at_ends = applied(value, ends, lanes)
        assert math.isnan(at_ends[3])
        assert name != "exp" or at_ends[0] < 1e-300
        assert name != "log" or (at_ends[1] == -math.inf and math.isnan(at_ends[2]) and at_ends[4] == math.inf)


@pytest.mark.parametrize("lanes", [0, 4, 8])
def test_powers_and_their_slopes(lanes):
    """Half powers vanish with their slopes where the base does; what is no number stays so, also in the largest."""
    tape, points = Tape(), np.array([-0.7, 0.0, 0.4, 2.3, 9.0, np.nan, 1.0, 5.0])
    x = tape.read("points", 0)
    for power in (Fraction(3, 2), Fraction(5, 2), Fraction(1, 3), 3):
        value = tape.power(tape.do("relu", x) + (1 if power == Fraction(1, 3) else 0), power)
        base = np.maximum(points, 0) + (power == Fraction(1, 3))
        slope, exponent = tape.gradient(value, [x])[0], float(power)
        finite = ~np.isnan(points)
        for found, expected in ((value, base**exponent), (slope, (points > 0) * exponent * base ** (exponent - 1))):
            np.testing.assert_allclose(applied(found, points, lanes)[finite], expected[finite], rtol=1e-14, atol=0)
    largest = applied(tape.do("largest", x, 1), points, lanes)
    np.testing.assert_array_equal(largest, np.maximum(points, 1))
