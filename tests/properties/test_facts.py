"""Facts about losses do not depend on the size of numbers: neither of units, nor of constants, nor of thresholds.

Not public: an expression is asked of its symmetries at single points, and a solve shows only that it asked them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from models import model
from sympy import Abs, Symbol, cos, exp, log, sqrt

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.facts import Expressions
from attnphase.fixed_points import solver
from attnphase.spectrum.measure import measure_of
from attnphase.state_evolution.onset import is_decoupled
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System
from attnphase.theories.bayes_optimal.lattices import axes_of
from derivations.models.bounds import singular_point
from derivations.models.formulas import parse_formula
from derivations.models.regularizers import ConvexPenalty

K, OTHER = Symbol("k", real=True), Symbol("j", real=True)
FLIP, SWAP = [[-1.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [1.0, 0.0]]
UNITS = st.integers(-40, 40).map(lambda power: 2.0**power)


def unchanged(text: str, change: list[list[float]], size: float) -> bool:
    """Tell whether an expression of k and j is unchanged, of fields of this size."""
    own = Expressions((parse_formula(text, {"k": K, "j": OTHER}),), (K, OTHER))
    return own.unchanged(np.array(change), own.asked(own.points(np.zeros(2), np.full(2, size))))


@settings(max_examples=8)
@given(
    size=st.floats(-9, 9).map(lambda x: 10.0**x),
    constant=st.sampled_from([0.0, 1.0, -3e7, 4e25]),
    unit=st.sampled_from([1.0, 1e-20, 7e13]),
    threshold=st.floats(0.02, 25.0),
)
@example(size=1.0, constant=4e25, unit=1e-20, threshold=1.3)
@example(size=3.0, constant=0.0, unit=1.0, threshold=19.0)
def test_neither_constants_nor_units_nor_thresholds_make_a_symmetry(size, constant, unit, threshold):
    """What is even below a threshold and not beyond is not even, in whatever unit and beside whatever constant."""
    c, t, s = f"{constant:.17g} + {unit:.17g}", f"{threshold * size:.17g}", f"{size:.17g}"
    even = f"{c}*(k**2 + j**2)/{size**2:.17g}"
    for wrong in (f"relu(k - {t})/{s}", f"sign(k - {t})", f"relu({t} - abs(k + {t}))/{s}"):
        text = f"{even} + {unit * 1e-3:.17g}*({wrong})"
        assert not unchanged(text, FLIP, size)
        assert not unchanged(text, SWAP, size)
    # exp(x) + exp(-x) is even and no rule knows it; so are kinks on both sides
    pair = f"exp(k/{s}) + exp(-k/{s}) + relu(k - {t})/{s} + relu(-k - {t})/{s}"
    both = f"{c}*({pair} + {pair.replace('k', 'j')}"
    assert unchanged(f"{c}*({pair})", FLIP, size)
    assert unchanged(f"{both})", SWAP, size)
    assert not unchanged(f"{both} + 1e-6*(k/{s})**3)", SWAP, size)


def of_one_token(loss: str, **numbers: float) -> ap.Problem:
    fields = {"loss.kind": "expression", "loss.expression": loss, "loss.parameters": numbers}
    return ap.Problem().with_fields({"tokens.length": 1, "positions.kind": "none", **fields})


@pytest.mark.parametrize("sigma", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("constant", [0.0, 3e4])
def test_a_loss_that_bends_beyond_some_threshold_is_not_even(sigma, constant):
    """Without the bend h and k change their signs together."""
    text, numbers = "(h - k)**2/2 + w*relu(h - a)**2 + level", {"a": 1.1 * sigma, "level": constant * sigma**2}
    for w, count in ((2.0, 1), (0.0, 2)):
        problem = of_one_token(text, w=w, **numbers).with_fields({"tokens.sigma": sigma})
        assert len(loss_symmetries(System.of(problem).loss)) == count


def test_a_solve_asks_once_more_at_its_fixed_point_and_finds_nothing(monkeypatch):
    seen, asked = list[Any](), solver.witnesses_at
    monkeypatch.setattr(solver, "witnesses_at", lambda solved: seen.append(asked(solved)) or seen[-1])
    ap.solve(model("square", {"regularizer.strength": 0.3}), 2.0)
    assert seen == [()]


@settings(max_examples=8)
@given(tau=UNITS, pi=UNITS)
def test_whether_encodings_know_the_teacher_depends_on_no_unit(tau, pi):
    """Vectors of two variables with a correlation, in a unit for each; less than 1e-12 is rounding."""
    spectrum = measure_of(ap.Problem())
    size = spectrum.mean.shape[1]
    units = np.where(np.arange(size) < spectrum.sites, tau, pi)
    for crossed, decoupled in ((0.0, True), (1e-14, True), (1e-3, False), (-0.8, False)):
        covariance = np.eye(size)
        covariance[0, -1] = covariance[-1, 0] = crossed
        moments = (covariance * np.outer(units, units))[None].repeat(len(spectrum.weights), axis=0)
        assert is_decoupled(replace(spectrum, mean=0 * spectrum.mean, covariance=moments)) is decoupled


@settings(max_examples=8)
@given(unit=UNITS, small=st.integers(-40, 0).map(lambda power: 2.0**power), noise=st.floats(-1, 1))
@example(unit=1.0, small=2.0**-37, noise=0.3)
def test_entries_of_labels_are_small_beside_the_noise_alone(unit, small, noise):
    """Two entries, one of them smaller by a unit, with noise as large as the smaller; the third is rounding."""
    k = np.random.default_rng(1).standard_normal((200, 2))
    labels, smaller = unit * np.stack([k[:, 0], small * k[:, 1], k[:, 0]], axis=1), unit * small * 10**noise
    if smaller > unit * 1e-6:  # of what is smaller, rounding of the larger is not to be told
        assert len(axes_of(labels, smaller**2)) == 2
    assert len(axes_of(labels[:, :2], smaller**2)) == 2


@settings(max_examples=2)
@given(unit=UNITS, size=UNITS, place=st.sampled_from([3.0, 2.0, 50.0, -7.0]))
@example(unit=2.0**-38, size=1.0, place=3.0)
@example(unit=2.0**37, size=1.0, place=-7.0)
def test_poles_of_losses_are_found_in_any_unit(unit, size, place):
    h, at = Symbol("h", real=True), place * unit
    poles = size / (h - at), log(h**2 - at**2 / 4), size / (exp(h / at) - 20), size / (h**2 - 2 * at * h + at**2)
    for pole in (*poles, log(h + abs(at)), sqrt(h - at)):
        assert singular_point([pole], [h]) is not None
    for sound in (size / (h**2 - at * h + at**2), sqrt(Abs(h - at)) * size, size * log(2 + cos(h / at))):
        assert singular_point([sound], [h]) is None


@settings(max_examples=3)
@given(unit=UNITS, place=st.sampled_from([3.0, 2.0, 50.0]))
@example(unit=2.0**-36, place=3.0)
def test_kinks_and_convexity_of_penalties_are_found_in_any_unit(unit, place):
    at = place * unit
    (low, *_), (high, left, right) = ConvexPenalty.of(f"relu(abs(w) - {at!r})").kinks
    assert (-low, high, right) == pytest.approx((at, at, 1), rel=1e-12)
    assert abs(left) < 1e-6
    for text in (f"abs(w) - 0.3*relu(w - {at!r})", f"abs(w)/{at!r} + 0.3*cos(w/{at!r})", f"-relu(abs(w) - {at!r})"):
        with pytest.raises(ProblemError, match="not convex"):
            ap.Problem().with_fields({"regularizer.kind": "expression", "regularizer.expression": text})
