"""Facts about losses do not depend on the size of numbers: neither of units, nor of constants, nor of thresholds."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sympy import Symbol

import attnphase as ap
from attnphase.facts import Expressions
from attnphase.fixed_points import solver
from attnphase.fixed_points.measuring import SolvedPoint
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System
from derivations.models.formulas import parse_formula

QUICK = settings(deadline=None, max_examples=12)
K, OTHER = Symbol("k", real=True), Symbol("j", real=True)


def unchanged(text: str, change: list[list[float]], size: float) -> bool:
    """Whether an expression of k and j is unchanged, of fields of this size."""
    own = Expressions((parse_formula(text, {"k": K, "j": OTHER}),), (K, OTHER))
    asked = own.asked(own.points(np.zeros(2), np.full(2, size)))
    return own.unchanged(np.array(change), asked)


FLIP, SWAP = [[-1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]]


@QUICK
@given(
    size=st.floats(-9, 9).map(lambda x: 10.0**x),
    constant=st.sampled_from([0.0, 1.0, -3e7, 4e25]),
    unit=st.sampled_from([1.0, 1e-20, 7e13]),
    threshold=st.floats(0.02, 25.0),
)
@example(size=1.0, constant=4e25, unit=1e-20, threshold=1.3)
def test_neither_constants_nor_units_nor_thresholds_matter(size, constant, unit, threshold):
    """What is even below a threshold and not beyond is not even, in whatever unit and beside whatever constant."""
    c, t = f"{constant:.17g} + {unit:.17g}", f"{threshold * size:.17g}"
    even = f"{c}*(k**2 + j**2)/{size**2:.17g}"
    for wrong in (f"relu(k - {t})", f"sign(k - {t})", f"relu({t} - abs(k + {t}))"):
        share = size if "sign" not in wrong else 1.0
        text = f"{even} + {unit * 1e-3:.17g}*({wrong})/{share:.17g}"
        assert not unchanged(text, FLIP, size)
        assert not unchanged(text, SWAP, size)
    # exp(x) + exp(-x) is even and no rule knows it; so are kinks on both sides
    pair = f"exp(k/{size:.17g}) + exp(-k/{size:.17g}) + relu(k - {t})/{size:.17g} + relu(-k - {t})/{size:.17g}"
    assert unchanged(f"{c}*({pair})", FLIP, size)
    assert unchanged(f"{c}*({pair} + {pair.replace('k', 'j')})", SWAP, size)
    assert not unchanged(f"{c}*({pair} + {pair.replace('k', 'j')} + 1e-6*(k/{size:.17g})**3)", SWAP, size)


def of_scale(sigma: float, loss: str, strength: float, **parameters: float) -> ap.Problem:
    return ap.Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": sigma},
            "positions": {"kind": "none"},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": loss, "parameters": parameters},
        }
    )


# --- one model: its parameters are thresholds, units and constants ----------------------------------------------------

BENT = "(h - k)**2/2 + w*relu(h - a)**2 + level"
SHARE, ALPHA = 2.0, 1.7  # w, and the sample complexity


def of_a_grid(sigma: float, a: float, strength: float) -> dict[str, float]:
    """Order parameters by sums over a grid of normals, with the proximal point in closed form."""
    z = np.linspace(-7.0, 7.0, 401)
    weights = np.exp(-(z**2) / 2)
    x, weights = z[:, None], np.outer(weights, weights) / weights.sum() ** 2
    rho, theta, q, V = sigma**2, 0.5 * sigma**2, 0.5 * sigma**2, 1.0
    found = dict[str, float]()
    for _ in range(100):
        k = sigma * x
        omega = theta / sigma * x + np.sqrt(q - theta**2 / rho) * z
        h = (omega + V * k) / (1 + V)
        beyond = h > a
        h = np.where(beyond, (omega + V * (k + 2 * SHARE * a)) / (1 + V * (1 + 2 * SHARE)), h)
        slope = np.where(beyond, 1 / (1 + V * (1 + 2 * SHARE)), 1 / (1 + V))
        g = (h - omega) / V
        # by Stein's lemma E[g k] = rho E[dg/dk] + theta E[dg/domega]
        response = ((1 - slope) / V * weights).sum()
        q_hat, m_hat = ALPHA * (g**2 * weights).sum(), ALPHA * ((g * k * weights).sum() / rho + theta / rho * response)
        V_hat = ALPHA * response
        new = sigma**2 / (strength + sigma**2 * V_hat)
        overlap = new * m_hat * rho
        power = (sigma**2 * q_hat + m_hat**2 * sigma**2 * rho) * new**2 / sigma**2
        loss = (((h - k) ** 2 / 2 + SHARE * np.maximum(h - a, 0) ** 2) * weights).sum()
        found = {"q": q, "theta": theta, "training_loss": ALPHA * loss + strength * q / sigma**2 / 2}
        theta, q, V = overlap, power, new
    return found


@settings(deadline=None, max_examples=5)
@given(
    sigma=st.floats(-3, 3).map(lambda x: 10.0**x),
    threshold=st.floats(0.4, 1.3),
    strength=st.floats(0.1, 0.6),
    constant=st.sampled_from([0.0, -40.0, 3e4]),
)
def test_a_loss_bent_beyond_some_threshold_is_solved_in_any_unit(sigma, threshold, strength, constant):
    a, ridge = threshold * sigma, strength * sigma**2
    problem = of_scale(sigma, BENT, ridge, w=SHARE, a=a, level=constant * sigma**2)
    assert len(loss_symmetries(System.of(problem).loss)) == 1  # without the term there were two
    point = ap.solve(problem, ALPHA)
    assert int(point["status"]) == 0
    right = of_a_grid(sigma, a, ridge)
    right["training_loss"] += ALPHA * constant * sigma**2
    for name, value in right.items():
        error = float(np.ravel(point[f"{name}_stderr"].values)[0])
        # sums over the grid have an error of 1e-5 at its kink
        assert float(np.ravel(point[name].values)[0]) == pytest.approx(value, rel=3e-5, abs=4 * error)


# --- asked again at the fixed point -----------------------------------------------------------------------------------

HIDDEN = "(h - k)**2/2 + s*exp(-((h - a)/w)**2)"


def test_what_no_question_sees_is_seen_at_the_fixed_point(monkeypatch):
    """A bump so narrow that it is 1e-20 of the loss at all points that are asked first, and hit by nodes of a solve."""
    s, a, w, strength = 30.0, 1.1, 0.01, 0.3
    problem = of_scale(1.0, HIDDEN, strength, s=s, a=a, w=w)
    assert len(loss_symmetries(System.of(problem).loss)) == 2  # h and k together

    def test_error(q: float, theta: float) -> float:
        variance = w**2 + 2 * q
        return (1 - 2 * theta + q) / 2 + s * w / np.sqrt(variance) * np.exp(-(a**2) / variance)

    point = ap.solve(problem, 2.0)
    q, theta, found, error = (
        float(np.ravel(point[name].values)[0]) for name in ("q", "theta", "test_error", "test_error_stderr")
    )
    assert found == pytest.approx(test_error(q, theta), abs=4 * error)
    # a solve that does not ask again is 1e5 of its errors off
    monkeypatch.setattr(solver, "witnesses_at", lambda solved: ())
    point = ap.solve(problem.with_fields({"integration.seed": 1}), 2.0)
    q, theta, found, error = (
        float(np.ravel(point[name].values)[0]) for name in ("q", "theta", "test_error", "test_error_stderr")
    )
    assert abs(found - test_error(q, theta)) > 1000 * error


def test_all_holds_of_a_loss_without_hidden_parts():
    """Nothing is dropped where all that is assumed is true: witnesses are asked once a solve."""
    seen = list[tuple[object, ...]]()
    asked: Callable[..., tuple[object, ...]] = solver.witnesses_at

    def counted(solved: SolvedPoint) -> tuple[object, ...]:
        seen.append(asked(solved))
        return seen[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(solver, "witnesses_at", counted)
        ap.solve(of_scale(1.0, HIDDEN, 0.3, s=0.0, a=1.1, w=0.01), 2.0)
    assert seen == [()]
