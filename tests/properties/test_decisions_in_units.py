"""Decisions on formulas, labels and moments depend on no unit: powers of two that are drawn change none of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Abs, Symbol, cos, exp, log, sqrt

from attnphase import Problem
from attnphase.spectrum.measure import measure_of
from attnphase.state_evolution.onset import is_decoupled
from attnphase.theories.bayes_optimal.lattices import axes_of
from derivations.models.bounds import singular_point
from derivations.models.regularizers import ConvexPenalty, RegularizerError

UNITS = st.integers(-40, 40).map(lambda power: 2.0**power)


# ------------------------------------------------------------------------------------------------ encodings and labels


@settings(deadline=None, max_examples=30)
@given(tau=UNITS, pi=UNITS, share=st.floats(-1, 1))
def test_whether_encodings_know_the_teacher(tau, pi, share):
    """Vectors of two variables with a correlation, in a unit for each; less than 1e-12 is rounding."""
    spectrum = measure_of(Problem())
    sites, size = spectrum.sites, spectrum.mean.shape[1]
    units = np.where(np.arange(size) < sites, tau, pi)
    for crossed, decoupled in ((share, abs(share) < 1e-9), (1e-14, True), (1e-3, False)):
        covariance = np.eye(size)
        covariance[0, -1] = covariance[-1, 0] = crossed * (abs(crossed) <= 1)
        moments = (covariance * np.outer(units, units))[None].repeat(len(spectrum.weights), axis=0)
        own = replace(spectrum, mean=np.zeros_like(spectrum.mean), covariance=moments)
        assert is_decoupled(own) is decoupled


@settings(deadline=None, max_examples=30)
@given(unit=UNITS, small=UNITS, noise=st.floats(-1, 1))
def test_entries_of_labels_are_small_beside_the_noise_alone(unit, small, noise):
    """Two entries, one of them smaller by a unit, with noise as large as the smaller; the third is rounding."""
    k = np.random.default_rng(1).standard_normal((200, 2))
    labels = unit * np.stack([k[:, 0], small * k[:, 1], k[:, 0]], axis=1)
    smaller = unit * min(small, 1.0) * 10**noise
    if smaller > unit * max(small, 1.0) * 1e-6:  # of what is smaller, rounding of the larger is not to be told
        assert len(axes_of(labels, smaller**2)) == 2
    found = axes_of(labels[:, :2], smaller**2)
    assert len(found) == 2
    if small not in (2.0**-30, 2.0**30):  # the bound, about
        assert len(axes_of(labels[:, :2], (1e13 * unit) ** 2)) == (2 if 1e-9 < small < 1e9 else 1)


# ------------------------------------------------------------------------------------------------ poles and penalties


@settings(deadline=None, max_examples=6)
@given(unit=UNITS, size=UNITS, place=st.sampled_from([3.0, 2.0, 50.0]))
def test_poles_are_found_in_any_unit(unit, size, place):
    h = Symbol("h", real=True)
    at = place * unit
    for pole in (size / (h - at), log(h**2 - at**2 / 4), size / (exp(h / at) - 20), size / (h**2 - 2 * at * h + at**2)):
        assert singular_point([pole], [h]) is not None
    for sound in (size / (h**2 - at * h + at**2), sqrt(Abs(h - at)) * size, size * log(2 + cos(h / at))):
        assert singular_point([sound], [h]) is None


@settings(deadline=None, max_examples=6)
@given(unit=UNITS, place=st.sampled_from([3.0, 2.0, 50.0]))
def test_kinks_and_convexity_in_any_unit(unit, place):
    at = place * unit
    (low, *_), (high, left, right) = ConvexPenalty.of(f"relu(abs(w) - {at!r})").kinks
    assert (-low, high, right) == pytest.approx((at, at, 1), rel=1e-12)
    assert abs(left) < 1e-6
    for text in (f"abs(w) - 0.3*relu(w - {at!r})", f"abs(w)/{at!r} + 0.3*cos(w/{at!r})", f"-relu(abs(w) - {at!r})"):
        with pytest.raises(RegularizerError, match="not convex"):
            ConvexPenalty.of(text)
    assert ConvexPenalty.of(f"softplus(w/{at!r}) + softplus(-w/{at!r})").even
