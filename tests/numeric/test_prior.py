"""Beyond the ridge: shares of weights, minima of rows, and the sizes against which residuals are held."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from attnphase.kernels.compiler import Kernels
from attnphase.problem import Problem, Regularizer
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior

ONE = Problem().with_fields({"tokens.length": 1, "tokens.sigma": 0.7, "positions.kind": "none", "teacher.mixing": None})


def prior_of(regularizer: dict[str, Any], columns: int) -> Prior:
    rows = Regularizer(**regularizer).rows(columns)
    kernels = cast("Kernels", SimpleNamespace(columns=columns, ridge=None, separable=None))
    return Prior(kernels, Spectrum.of(ONE), rows.ridge, rows)


def hats(q: list[float], V: list[float]) -> Conjugates:
    """Columns that know nothing of each other, of the positions and of the teacher."""
    r = len(q)
    return Conjugates(np.diag(q)[None, None], np.diag(V)[None, None], np.zeros((1, 1, r, 1)), np.zeros((1, 1, r, 1)))


def test_density_counts_weights_and_not_rows():
    """``w_c`` is not zero where its source, of variance gamma q_hat, is larger than the lasso's strength."""
    gamma, strength = 0.49, 0.3
    prior = prior_of({"kind": "lasso", "strength": strength}, 2)
    q = [0.5, 0.1]
    shares = np.array([2 * norm.sf(strength / np.sqrt(gamma * x)) for x in q])
    assert prior.density(hats(q, [0.8, 1.3])).item() == pytest.approx(shares.mean(), abs=2e-3)
    assert 1 - (1 - shares).prod() > shares.mean() + 0.1  # rows that hold a weight


def test_minimum_of_a_row():
    """``E min_w s|w| + r w^2/2 + L w^2/2 - B w = -E (|B| - s)_+^2 / (2 (L + r))``, by another quadrature."""
    gamma, strength, ridge, q, V = 0.49, 0.2, 0.15, 0.6, 0.9
    prior = prior_of({"kind": "elastic-net", "strength": strength, "ridge": ridge}, 1)
    solved = prior.arguments(hats([q], [V]))
    found = solved["spectral_mean"](solved["row_minimum"][..., None, None]).item()
    spread, stiffness = np.sqrt(gamma * q), gamma * V + ridge

    def value(z: float) -> float:
        return -(max(abs(spread * z) - strength, 0.0) ** 2) / (2 * stiffness) * norm.pdf(z)

    kink = strength / spread
    expected = 2 * integrate.quad(value, kink, 12, epsabs=0, epsrel=1e-10)[0]
    assert found == pytest.approx(expected, rel=1e-8)
    penalty = solved["spectral_mean"](solved["penalty"][..., None, None]).item()
    assert penalty > 0


def test_what_vanishes_is_held_against_its_natural_size():
    """q and theta against the teacher's variance, m against its root, V against its inverse: a millionth of each."""
    natural = 0.36
    zero = np.zeros((2, 1, 1))
    scales = Overlaps(zero, zero, zero, zero).scales(np.full((2, 1, 1), natural))
    expected = np.repeat([natural, 1 / natural, np.sqrt(natural), natural], 2)
    np.testing.assert_allclose(scales, 1e-6 * expected, rtol=1e-12)
