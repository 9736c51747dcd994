"""Losses, scores and penalties that are not finite or have no minimum: refused when given, or flagged when solved."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba.core import config as numba_config
from sympy import Symbol

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.local.constants import RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.package import import_package, write_package
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from derivations.codegen.local_problem import local_problem_source
from derivations.models.bounds import fall_of, singular_point
from derivations.models.scalar import ScalarModel, formula_loss

# formula of h (and k): a value of h at or near which it is not finite
SINGULAR = {
    "1/h": 0.0,
    "log(h)": None,
    "log(h**2)": 0.0,
    "-log(h**2)": 0.0,
    "sqrt(h)": None,
    "sqrt(h + 50)": None,
    "1/(h - 1)": 1.0,
    "1/(h + 0.123456789)": -0.123456789,
    "1/(h**2 - 2*h + 1)": 1.0,
    "1/(h**2 - 7)": 7**0.5,
    "1/(exp(h) - 20)": np.log(20),
    "1/(cosh(h) - 1.5)": np.arccosh(1.5),
    "(h - k)**2/(1 - 0.2*h)": 5.0,
    "log(h - k)": None,
    "1/(2*h - k + 20)": None,
    "h*log(h**2)": 0.0,
    "sin(h)/h": 0.0,
    "sin(h - 1)/(h - 1)": 1.0,
    "1/relu(h)": None,
    "sqrt(abs(h) - 1)": None,
}
FALLING = [
    "-(h**2)",
    "-(h**2)/100",
    "-(h - k)**2/200",
    "h**3",
    "h**2 - h**4",
    "h*h*k",
    "-exp(h)",
    "-exp(exp(h))",
    "-(h**2)*cos(h)",
    "h**2*cos(h)",
    "-(h**2)*cos(h*k)",
    "-h*relu(h)",
    "-softplus(h)**2",
    "-abs(h)**1.95",
    "h**2 - 1e-6*h**3",
]
SOUND = [
    "(h - k)**2/2",
    "-h",
    "-abs(h)",
    "-h*k",
    "-sqrt(1 + h**2)",
    "-abs(h)**1.5",
    "-h*cos(h*k)",
    "-0.7*h*cos(1.7*h*k + 1) - h*k",
    "1e6 - k*abs(h)*sin(3*h*k)",
    "-abs(h)**1.5*cos(0.4*h*k + 0.6)",
    "log(1 + exp(-sign(k)*h))",
    "-log(1 + exp(h))",
    "relu(1 - sign(k)*h)",
    "1/(1 + h**2)",
    "1/(h**2 - h + 1)",
    "1/(h**2 - 2*h*k + k**2 + 0.01)",
    "log(2 + cos(h))",
    "1/sigmoid(h)",
    "exp(h)/(1 + exp(h))",
    "exp(exp(h)) + 5*h**2",
    "sqrt(abs(h - k))",
    "0.001*h**4 - h**2",
    "(h - k)**2 - h**2",
    "1e-300*h**2",
]
h, k = Symbol("h0_0", real=True), Symbol("k0_0", real=True)


def loss_of(text: str) -> Any:
    return formula_loss(text, 1, 1, 1).loss([[h]], [[k]])


@pytest.mark.parametrize("text", SINGULAR)
def test_where_a_formula_is_not_finite(text):
    point = singular_point([loss_of(text)], [h, k])
    assert point is not None
    if SINGULAR[text] is not None:
        assert point[h] == pytest.approx(SINGULAR[text], abs=1e-6) or abs(point[h]) == pytest.approx(
            abs(SINGULAR[text])
        )
    # independent of how it was found: mpmath's and Python's own arithmetic fail there, or the values grow beside it
    values = [abs(complex(loss_of(text).subs({h: point[h] + s, k: point.get(k, 0.0)}).evalf())) for s in (1e-4, 1e-7)]
    here = loss_of(text).subs({h: point[h], k: point.get(k, 0.0)}).evalf()
    beside = loss_of(text).subs({h: point[h] - 1e-7, k: point.get(k, 0.0)}).evalf()
    bad = not (here.is_real and here.is_finite and abs(here) < 1e306) or not beside.is_real
    assert bad or values[1] > 1.5 * values[0]


@pytest.mark.parametrize("text", FALLING)
def test_how_a_loss_falls(text):
    loss = loss_of(text)
    assert singular_point([loss], [h, k]) is None
    fall = fall_of(loss, [h], [k])
    assert fall is not None
    assert float(loss.subs(dict(fall.point))) == pytest.approx(fall.value, rel=1e-9)
    assert fall.value < 0


@pytest.mark.parametrize("text", SOUND)
def test_sound_losses_pass(text):
    loss = loss_of(text)
    assert singular_point([loss], [h, k]) is None
    assert fall_of(loss, [h], [k]) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1/(h - 1)", "must be a finite number for all fields, but is not finite at h = 1"),
        ("-(h - k)**2", "falls without bound, at least as the square of the fields: at h = 100, k = "),
    ],
)
def test_the_sentence_names_the_field_and_the_place(text, words):
    with pytest.raises(ProblemError, match=r"^loss\.expression ") as caught:
        Problem().with_fields({"tokens.length": 1, "loss.kind": "expression", "loss.expression": text})
    assert caught.value.field == "loss.expression"
    assert words in str(caught.value)


def test_losses_of_several_fields():
    """A saddle falls along a diagonal; a pole may lie on a curve."""
    fields = {"loss.kind": "expression"}
    for text, words in (
        ("-h0_0*h1_0", "h0_0 = 100, h1_0 = 100"),
        ("(h0_0*h1_0)**2 - 0.01*h0_0**2", "h0_0 = 100, h1_0 = 0"),
        ("1/(h0_0**2 + h1_0**2 - 7)", "finite number"),
    ):
        with pytest.raises(ProblemError, match=r"^loss\.expression") as caught:
            Problem().with_fields(fields | {"loss.expression": text})
        assert words in str(caught.value)
    Problem().with_fields(fields | {"loss.expression": "(h0_0*h1_0 - k0_0)**2/2 + sqrt(h0_0**2 + h1_0**2)"})


@pytest.mark.parametrize(
    "score",
    ["1/z", "log(z)", "sqrt(z)", "1/(z - 1)", "z/(1 + sum(z))", "z/sqrt(sum(z**2))", "1/(5 + z)", "sqrt(abs(z))"],
)
def test_scores_with_poles_are_refused(score):
    for section in ("student", "teacher"):
        with pytest.raises(ProblemError, match="not a finite number at logits") as caught:
            Problem().with_fields({f"{section}.score": score})
        assert caught.value.field == f"{section}.score"


@pytest.mark.parametrize("score", ["z/sqrt(1 + sum(z**2))", "relu(z)/(0.1 + sum(relu(z)))", "exp(z)/sum(exp(z))", "z"])
def test_finite_scores_pass(score):
    assert Problem().with_fields({"student.score": score}).student.score == score


@pytest.mark.parametrize("penalty", ["1/w", "log(w)", "-log(5000 - w)", "1/(w - 1.2345)**2", "1/w**2"])
def test_penalties_with_poles_are_refused(penalty):
    with pytest.raises(ProblemError, match="is not finite at w = ") as caught:
        Problem().with_fields({"regularizer.kind": "expression", "regularizer.expression": penalty})
    assert caught.value.field == "regularizer.expression"


# --- what a probe cannot see -----------------------------------------------------------------------

# falls as -0.05 h0^2 in one direction between two walls, too narrow for the probe's rays
SLOPE, WALL, DROP = 0.3714, 1000.0, 0.05
VALLEY = f"{WALL}*(h0_1 - {SLOPE}*h0_0)**2 - {DROP}*h0_0**2 - h0_0*k0_0"
FIELDS = {"tokens.length": 1, "student.rank": 2, "loss.kind": "expression", "loss.expression": VALLEY}
LARGEST = (1 + SLOPE**2) / (2 * DROP)
"""Of a V proportional to the identity, beyond which the local problem has no minimum."""


def nodes(V: float) -> dict[str, Any]:
    """Arguments of a kernel for three nodes."""
    rng = np.random.default_rng(6)
    return {
        "centers": rng.normal(size=(3, 1, 2)),
        "teacher_fields": rng.normal(size=(3, 1, 1)),
        "factor": np.sqrt(V) * np.eye(2)[None],
        "mixing": np.ones((1, 1)),
        "parameters": np.array([0.3, 1.0, 1.0, 1.0, 1.0, 1.0]),
        "variance": np.array([0.25]),
        "minima": np.zeros((3, 2, 1, 2)),
        "energies": np.zeros((3, 2)),
        "losses": np.zeros(3),
        "residuals": np.zeros((3, 1, 2)),
        "flags": np.zeros(3, dtype=np.int64),
    }


def handed(given: dict[str, Any]) -> tuple[Nodes, Starts, Solution]:
    """The same as a minimiser takes them, from all starts."""
    return (
        Nodes(*(given[name] for name in Nodes._fields)),
        Starts.COLD,
        Solution(*(given[name] for name in Solution._fields)),
    )


def in_python(model: ScalarModel, folder: Path) -> dict[str, ModuleType]:
    """The modules of a model's kernel, without compilation."""
    folder.mkdir()
    write_package(folder, {"local_problem": local_problem_source(model, "numba")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba_config, "DISABLE_JIT", True)
        return import_package(folder, "in_python", ("local_problem", "nodes"))


@pytest.fixture(scope="module")
def minimise(tmp_path_factory):
    """Minimiser of the valley."""
    folder = tmp_path_factory.mktemp("valley") / "kernel"
    return in_python(formula_loss(VALLEY, 1, 2, 1), folder)["nodes"].minimise


def test_scratch_arrays_that_hold_no_numbers_change_nothing(tmp_path, monkeypatch):
    """Of two kinks one holds the point and one does not: what was in memory before must not be read."""
    model = formula_loss("abs(h0_0 - k0_0) + 0.6*abs(h1_0 - k1_0)", 2, 1, 1)
    way = in_python(model, tmp_path / "kernel")["nodes"].minimise
    centers = np.array([[-0.41959532, -3.46220107], [0.69585651, 0.81575587]])[..., None]
    fields = np.array([[-0.39723901, -0.62821361], [0.67446563, 2.09116006]])[..., None]
    factor, numbers = np.full((2, 1, 1), 0.2), np.array([0.3, 1.0, 1.0, 1.0, 1.0])
    nodes = Nodes(centers, fields, factor, np.ones((2, 2)), numbers, np.full(2, 0.25))
    empty, found = np.empty, []
    for filled in (0.0, np.nan):

        def scratch(shape: Any, dtype: Any = float, value: float = filled) -> Any:
            made = empty(shape, dtype)
            made[...] = value if made.dtype.kind == "f" else 0
            return made

        solution = Solution(
            np.zeros((2, 2, 2, 1)), np.zeros((2, 2)), np.zeros(2), np.zeros((2, 2, 1)), np.zeros(2, dtype=np.int64)
        )
        monkeypatch.setattr(np, "empty", scratch)
        way(nodes, Starts.COLD, solution)
        monkeypatch.setattr(np, "empty", empty)
        found.append(solution)
    assert (found[0].flags >= 0).all()
    for plain, odd in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, odd)


def valley(h: Any, k: Any) -> tuple[float, Any]:
    """Loss and gradient, written out."""
    across = h[1] - SLOPE * h[0]
    slope = [-2 * WALL * SLOPE * across - 2 * DROP * h[0] - k, 2 * WALL * across]
    return WALL * across**2 - DROP * h[0] ** 2 - h[0] * k, np.array(slope)


def test_a_descent_without_a_bottom_is_counted(minimise):
    """Every node is flagged; what is left of it, its centre, is finite."""
    given = nodes(1.3 * LARGEST)
    minimise(*handed(given))
    assert (given["flags"] == RUNAWAY).all()
    for center, k, energy, loss, residual, minima in zip(
        given["centers"],
        given["teacher_fields"],
        *(given[n] for n in ("energies", "losses", "residuals", "minima")),
        strict=True,
    ):
        expected, slope = valley(center[0], k[0, 0])
        np.testing.assert_allclose([loss, *energy], expected, rtol=1e-10)
        np.testing.assert_allclose(residual[0], -slope, rtol=1e-8)
        np.testing.assert_allclose(minima[:, 0], [center[0], center[0]], rtol=1e-12)


def test_below_the_limit_the_minimum_is_found(minimise):
    """The same loss, quadratic, where V is small enough: ``(H + 1/V) h = omega/V + (k, 0)``."""
    V = 0.7 * LARGEST
    given = nodes(V)
    minimise(*handed(given))
    assert (given["flags"] >= 0).all()
    across = np.array([-SLOPE, 1.0])
    hessian = 2 * WALL * np.outer(across, across) - 2 * DROP * np.diag([1.0, 0.0])
    for center, k, minima in zip(given["centers"], given["teacher_fields"], given["minima"], strict=True):
        expected = np.linalg.solve(hessian + np.eye(2) / V, center[0] / V + np.array([k[0, 0], 0.0]))
        np.testing.assert_allclose(minima[0, 0], expected, rtol=1e-7)


def test_the_probe_misses_the_valley():
    """Or the tests above would be of a problem that nobody can make."""
    assert Problem().with_fields(FIELDS).columns == 2


def test_an_overflowing_start_spoils_nothing():
    """A start at which the loss is not a number is skipped; the others find the minimum."""
    text = "(h - 0.3)**2 + exp(h)/(1 + exp(h))"  # infinity over infinity beyond h = 710
    problem = Problem().with_fields({"tokens.length": 1, "loss.kind": "expression", "loss.expression": text + " + 0*k"})
    given = nodes(2.0) | {"centers": np.array([[[0.4]], [[-0.2]]]), "teacher_fields": np.array([[[900.0]], [[0.1]]])}
    given |= {
        "factor": np.sqrt(2.0) * np.ones((1, 1, 1)),
        "minima": np.zeros((2, 2, 1, 1)),
        "energies": np.zeros((2, 2)),
    }
    given |= {"losses": np.zeros(2), "residuals": np.zeros((2, 1, 1)), "flags": np.zeros(2, dtype=np.int64)}
    kernels_for(problem).minimise(*handed(given))
    assert (given["flags"] >= 0).all()
    for center, minima in zip(given["centers"].ravel(), given["minima"][:, 0, 0, 0], strict=True):
        grid = np.linspace(-3, 3, 600001)
        energy = (grid - center) ** 2 / 4 + (grid - 0.3) ** 2 + 1 / (1 + np.exp(-grid))
        assert minima == pytest.approx(grid[energy.argmin()], abs=2e-5)


def test_an_overflow_on_the_way_down(tmp_path):
    """``-exp(h)`` reaches minus infinity in a few steps; in the kernel as plain Python, with an exp that overflows."""
    given = nodes(2.0) | {"centers": np.array([[[0.4]]]), "teacher_fields": np.array([[[0.7]]])}
    given |= {
        "factor": np.sqrt(2.0) * np.ones((1, 1, 1)),
        "minima": np.zeros((1, 2, 1, 1)),
        "energies": np.zeros((1, 2)),
    }
    given |= {"losses": np.zeros(1), "residuals": np.zeros((1, 1, 1)), "flags": np.zeros(1, dtype=np.int64)}
    model = formula_loss("-exp(h) + 0*k", 1, 1, 1)
    modules = in_python(model, tmp_path / "kernel")
    vars(modules["local_problem"])["exp"] = lambda x: float(np.exp(x))
    with np.errstate(over="ignore", invalid="ignore"):
        modules["nodes"].minimise(*handed(given))
    assert given["flags"][0] == RUNAWAY
    np.testing.assert_allclose([*given["energies"][0], given["losses"][0]], -np.exp(0.4), rtol=1e-14)
    np.testing.assert_allclose(given["residuals"], np.exp(0.4), rtol=1e-14)


def test_what_a_search_from_all_starts_found_is_not_forgotten():
    """A warm pass, from known minima, need not meet the bottomless nodes; a clean search clears them.

    A pass searches the nodes of two of the sign changes, and two nodes of either are marked.
    """
    problem = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    system = System.of(problem)
    marked: list[int] = []

    def minimise(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        system.kernels.minimise(nodes, starts, solution)
        solution.flags[marked if starts != Starts.WARM else []] = RUNAWAY

    rule = system.refinement(2**18).first()
    channel = Channel(replace(system, kernels=replace(system.kernels, minimise=minimise)), rule)
    start = initial_overlaps(problem, "semantic")
    map_ = StateEvolution(channel, 2.0, Sector.of(start, system.symmetries))
    x = map_.pack(start)
    marked[:] = [1, 4]
    assert map_(x) is not None  # from all starts
    assert (map_.bottomless, map_.unsolved) == (4, 4)
    map_.adopt(map_.minima)
    map_(x)  # warm
    assert map_.minima is not None
    assert (map_.minima.unsolved, map_.bottomless, map_.unsolved) == (0, 4, 4)
    assert not map_.spot_check(x)
    marked[:] = []
    map_(x, refresh=True)
    assert (map_.bottomless, map_.unsolved) == (0, 0)
    assert map_.spot_check(x)
    marked[:] = [2]
    assert not map_.spot_check(x)


def test_a_point_with_bottomless_nodes_is_not_converged(monkeypatch):
    """Also where only a search from all starts meets them, and the warm passes after it do not."""
    module = importlib.import_module("attnphase.state_evolution.system")
    problem = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    kernels = kernels_for(problem)

    def minimise(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        kernels.minimise(nodes, starts, solution)
        if starts != Starts.WARM:  # of both sign changes that are searched
            solution.flags[5:8] = RUNAWAY

    sound = ap.solve(problem, alpha=2.0)
    monkeypatch.setattr(module, "kernels_for", lambda _: replace(kernels, minimise=minimise))
    found = ap.solve(problem, alpha=2.0)
    assert sound.status == Status.converged
    assert sound.unsolved_nodes == 0
    assert found.status == Status.left_domain
    assert found.unsolved_nodes == 6
    assert np.isfinite(found.training_loss)
    np.testing.assert_allclose(found.q, sound.q, rtol=1e-6)
