"""Losses, scores and penalties that are not finite or have no minimum: refused when given, or flagged when solved.

Not public: the kernels' `minimise`, which alone takes a V of which no solve comes to an end.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.local.constants import RUNAWAY, Starts
from attnphase.kernels.local.values import Nodes, Solution


def problem(text: str, **fields: Any) -> ap.Problem:
    return ap.Problem().with_fields({"tokens.length": 1, "loss.kind": "expression", "loss.expression": text, **fields})


# formula of h (and k): a value of |h| at which it is not finite, where there is one alone
SINGULAR: dict[str, float | None] = {
    "1/h": 0.0,
    "log(h)": None,
    "-log(h**2)": 0.0,
    "sqrt(h)": None,
    "sqrt(h + 50)": None,
    "1/(h - 1)": 1.0,
    "1/(h + 0.123456789)": 0.123456789,
    "1/(h**2 - 2*h + 1)": 1.0,
    "1/(h**2 - 7)": 7**0.5,
    "1/(exp(h) - 20)": np.log(20),
    "1/(cosh(h) - 1.5)": np.arccosh(1.5),
    "log(h - k)": None,
    "1/(2*h - k + 20)": None,
    "h*log(h**2)": 0.0,
    "sin(h - 1)/(h - 1)": 1.0,
    "1/relu(h)": None,
    "sqrt(abs(h) - 1)": None,
    "exp(exp(-3*h))": None,  # beyond double precision, of negative fields alone
}
FALLING = [
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


@pytest.mark.parametrize("text", SINGULAR)
def test_where_a_loss_is_not_finite(text: str):
    with pytest.raises(ProblemError, match=r"^loss\.expression must be a finite number for all fields") as refused:
        problem(text)
    at = {name: float(value) for name, value in re.findall(r"(h|k) = (-?\d[\d.e+-]*)", str(refused.value))}
    if SINGULAR[text] is not None:
        assert abs(at["h"]) == pytest.approx(SINGULAR[text], abs=1e-3)
    # by NumPy's own arithmetic: no number there, or one that grows beside it, or of a side
    names = {name: getattr(np, name) for name in ("log", "sqrt", "exp", "cosh", "sin", "abs")}
    names |= {"relu": lambda x: np.maximum(x, 0), "k": at.get("k", 0.0)}
    with np.errstate(all="ignore"):
        places = (0.0, -1e-3, 1e-2, 1e-3)
        *here, near, nearer = (eval(text, names | {"h": np.float64(at["h"]) + s}) for s in places)
    assert not np.isfinite(here).all() or abs(nearer) > 1.2 * abs(near)


@pytest.mark.parametrize("text", FALLING)
def test_a_loss_that_falls_as_a_square_is_refused(text: str):
    with pytest.raises(ProblemError, match=r"^loss\.expression falls without bound, .*: at h = "):
        problem(text)


@pytest.mark.parametrize("text", SOUND)
def test_sound_losses_pass(text: str):
    assert problem(text).loss.expression == text


SEVERAL = {
    "-h0_0*h1_0": "h0_0 = 100, h1_0 = 100",
    "(h0_0*h1_0)**2 - 0.01*h0_0**2": "h0_0 = 100, h1_0 = 0",
    "1/(h0_0**2 + h1_0**2 - 7)": "finite number",
}


@pytest.mark.parametrize("text", SEVERAL)
def test_losses_of_several_fields(text: str):
    """A saddle falls along a diagonal; a pole may lie on a curve."""
    with pytest.raises(ProblemError, match=re.escape(SEVERAL[text])):
        problem(text, **{"tokens.length": 2})


POLES: list[tuple[str, dict[str, Any]]] = [
    *(
        (field, {field: score})
        for field in ("student.score", "teacher.score")
        for score in ("1/z", "log(z)", "1/(z - 1)", "z/(1 + sum(z))", "z/sqrt(sum(z**2))", "1/(5 + z)", "sqrt(abs(z))")
    ),
    *(
        ("regularizer.expression", {"regularizer.kind": "expression", "regularizer.expression": penalty})
        for penalty in ("1/w", "log(w)", "-log(5000 - w)", "1/(w - 1.2345)**2")
    ),
]


@pytest.mark.parametrize(("field", "fields"), POLES, ids=str)
def test_scores_and_penalties_with_poles_are_refused(field: str, fields: dict[str, Any]):
    with pytest.raises(ProblemError, match=r"not a finite number at logits|is not finite at w = ") as refused:
        ap.Problem().with_fields(fields)
    assert refused.value.field == field


@pytest.mark.parametrize("score", ["z/sqrt(1 + sum(z**2))", "relu(z)/(0.1 + sum(relu(z)))", "exp(z)/sum(exp(z))"])
def test_finite_scores_pass(score: str):
    assert ap.Problem(student={"score": score}).student.score == score


# --- what a probe cannot see ------------------------------------------------------------------------------------------

# falls as -0.05 h0^2 in one direction between two walls, too narrow for the probe's rays
SLOPE, WALL, DROP = 0.3714, 1000.0, 0.05
VALLEY = f"{WALL}*(h0_1 - {SLOPE}*h0_0)**2 - {DROP}*h0_0**2 - h0_0*k0_0"
LARGEST = (1 + SLOPE**2) / (2 * DROP)
"""Of a V proportional to the identity, beyond which the local problem has no minimum."""


def minimised(text: str, V: float, centers: Any, fields: Any) -> Solution:
    """What a search from all starts finds at some nodes of one token."""
    count, columns = np.shape(centers)
    nodes = Nodes(
        np.reshape(centers, (count, 1, columns)),
        np.reshape(fields, (count, 1, 1)),
        np.sqrt(V) * np.eye(columns)[None],
        np.ones((1, 1)),
        np.array([0.3, *[1.0] * (3 + columns)]),
        np.array([0.25]),
    )
    shape = count, 1, columns
    found = Solution(
        np.zeros((count, 2, 1, columns)), np.zeros((count, 2)), np.zeros(count), np.zeros(shape), np.zeros(count, int)
    )
    kernels_for(problem(text, **{"student.rank": columns})).minimise(nodes, Starts.COLD, found)
    return found


RANDOM = np.random.default_rng(6)
CENTERS, FIELDS = RANDOM.normal(size=(3, 2)), RANDOM.normal(size=3)
ACROSS = np.array([-SLOPE, 1.0])
HESSIAN = 2 * WALL * np.outer(ACROSS, ACROSS) - 2 * DROP * np.diag([1.0, 0.0])


@pytest.mark.usefixtures("uncompiled")
def test_a_descent_without_a_bottom_is_counted():
    """What is left of it, its centre, is finite."""
    found = minimised(VALLEY, 1.3 * LARGEST, CENTERS, FIELDS)
    assert (found.flags == RUNAWAY).all()
    forces = np.stack([FIELDS, 0 * FIELDS], axis=1)
    expected = np.einsum("ni,ij,nj->n", CENTERS, HESSIAN, CENTERS) / 2 - (forces * CENTERS).sum(axis=1)
    np.testing.assert_allclose(found.losses, expected, rtol=1e-10)
    np.testing.assert_allclose(found.energies, np.stack([expected] * 2, axis=1), rtol=1e-10)
    np.testing.assert_allclose(found.residuals[:, 0], forces - CENTERS @ HESSIAN, rtol=1e-8)
    np.testing.assert_allclose(found.minima[:, :, 0], np.stack([CENTERS] * 2, axis=1), rtol=1e-12)


@pytest.mark.usefixtures("uncompiled")
def test_below_the_limit_the_minimum_is_found():
    """The same loss, quadratic, where V is small enough: ``(H + 1/V) h = omega/V + (k, 0)``."""
    V = 0.7 * LARGEST
    found = minimised(VALLEY, V, CENTERS, FIELDS)
    assert (found.flags >= 0).all()
    sources = CENTERS / V + np.stack([FIELDS, 0 * FIELDS], axis=1)
    expected = np.linalg.solve(HESSIAN + np.eye(2) / V, sources.T).T
    np.testing.assert_allclose(found.minima[:, 0, 0], expected, rtol=1e-7)


@pytest.mark.usefixtures("uncompiled")
def test_a_start_that_overflows_spoils_nothing():
    """It is infinity over infinity beyond h = 710, where the teacher's field lies; the others find the minimum."""
    found = minimised("(h - 0.3)**2 + exp(h)/(1 + exp(h)) + 0*k", 2.0, [[0.4], [-0.2]], [900.0, 0.1])
    assert (found.flags >= 0).all()
    grid = np.linspace(-3, 3, 600001)
    for center, minimum in zip((0.4, -0.2), found.minima[:, 0, 0, 0], strict=True):
        energy = (grid - center) ** 2 / 4 + (grid - 0.3) ** 2 + 1 / (1 + np.exp(-grid))
        assert minimum == pytest.approx(grid[energy.argmin()], abs=2e-5)


@pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
def test_a_point_with_bottomless_nodes_is_not_converged(monkeypatch: pytest.MonkeyPatch):
    """Also where only a search from all starts meets them, and the warm passes after it do not."""
    paper = ap.Problem(integration={"rule": "sobol", "nodes": 16})
    kernels, sound = kernels_for(paper), ap.solve(paper, alpha=2.0)

    def minimise(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        kernels.minimise(nodes, starts, solution)
        if starts != Starts.WARM:  # of both sign changes that are searched
            solution.flags[5:8] = RUNAWAY

    system = importlib.import_module("attnphase.state_evolution.system")
    monkeypatch.setattr(system, "kernels_for", lambda _: replace(kernels, minimise=minimise))
    found = ap.solve(paper, alpha=2.0)
    assert (sound.status, sound.unsolved_nodes, found.unsolved_nodes) == (0, 0, 6)
    assert found.status == found.status.attrs["flag_meanings"].split().index("left_domain")
    assert np.isfinite(found.training_loss)
    np.testing.assert_allclose(found.q, sound.q, rtol=1e-6)
