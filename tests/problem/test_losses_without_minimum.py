"""Losses, scores and penalties that are not finite or have no minimum: refused when given, or flagged when solved.

Not public: the kernels' `minimise`, whose flags are set by hand: no problem that is taken has such nodes.
"""

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
    "log(h)": None,
    "sqrt(h + 50)": None,
    "1/(h + 0.123456789)": 0.123456789,
    "1/(h**2 - 7)": 7**0.5,
    "1/(exp(h) - 20)": np.log(20),
    "log(h - k)": None,
    "sin(h - 1)/(h - 1)": 1.0,
    "exp(exp(-3*h))": None,  # beyond double precision, of negative fields alone
}
FALLING = ["-(h - k)**2/200", "h**3", "h*h*k", "-exp(h)", "-(h**2)*cos(h*k)", "-abs(h)**1.95", "h**2 - 1e-6*h**3"]
SOUND = ["-abs(h)", "-h*k", "-sqrt(1 + h**2)", "-abs(h)**1.5", "-h*cos(h*k)", "-0.7*h*cos(1.7*h*k + 1) - h*k"]
SOUND += ["1e6 - k*abs(h)*sin(3*h*k)", "-abs(h)**1.5*cos(0.4*h*k + 0.6)", "-log(1 + exp(h))", "1/(h**2 - h + 1)"]
SOUND += ["1/(h**2 - 2*h*k + k**2 + 0.01)", "1/sigmoid(h)", "exp(exp(h)) + 5*h**2", "0.001*h**4 - h**2", "1e-300*h**2"]


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


POLES: list[tuple[str, dict[str, Any]]] = [
    *(("student.score", {"student.score": score}) for score in ("1/(z - 1)", "z/(1 + sum(z))", "sqrt(abs(z))")),
    *(
        ("regularizer.expression", {"regularizer.kind": "expression", "regularizer.expression": penalty})
        for penalty in ("-log(5000 - w)", "1/(w - 1.2345)**2")
    ),
]


@pytest.mark.parametrize(("field", "fields"), POLES, ids=str)
def test_scores_and_penalties_with_poles_are_refused(field: str, fields: dict[str, Any]):
    with pytest.raises(ProblemError, match=r"not a finite number at logits|is not finite at w = ") as refused:
        ap.Problem().with_fields(fields)
    assert refused.value.field == field


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
