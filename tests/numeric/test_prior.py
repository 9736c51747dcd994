"""Beyond the ridge: shares of weights, minima of rows, and the sizes against which residuals are held."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from scipy import integrate
from scipy.stats import norm

from attnphase import solve
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


@pytest.mark.parametrize("columns", [1, 2])
def test_points_have_the_moments_of_rows_that_are_drawn(columns):
    """Of w, tau and pi on two atoms in each of three replicates: a wrong root, share, sign or order of axes."""
    prior = replace(
        prior_of({"kind": "elastic-net", "strength": 0.2, "ridge": 0.3}, columns),
        spectrum=Spectrum.two_level((0.4, 1.1), 0.3),
    )
    spectrum, rows, draws = prior.spectrum, prior.rows, np.random.default_rng(2)
    assert rows is not None
    factors = draws.normal(size=(2, 2, 3, columns, columns))
    q_hat, V_hat = 0.3 * factors @ factors.swapaxes(-1, -2)
    m_hat, theta_hat = draws.normal(size=(2, 2, 3, columns, 1))
    solved = prior.arguments(Conjugates(q_hat, V_hat, m_hat, theta_hat))
    mean_over, w = solved["spectral_mean"], solved["w"]
    found = [mean_over(solved["gamma"][0] * (w @ x)) for x in (w.mT, solved["pi"].mT)] + [
        mean_over(solved["tau"][1] * w)
    ]
    count = 100_000
    for s in range(3):
        expected: list[Any] = [0.0, 0.0, 0.0]
        for atom, weight in enumerate(spectrum.weights):
            gamma = spectrum.gamma[:, atom]
            noise, curvature, slope = (np.einsum("l,lij->ij", gamma, x[:, s]) for x in (q_hat, V_hat, theta_hat))
            tau_pi = draws.multivariate_normal(spectrum.mean[atom], spectrum.covariance[atom], count)
            b = tau_pi @ np.hstack([m_hat[0, s], m_hat[1, s], slope]).T
            drawn = rows.minimise(curvature, b + draws.multivariate_normal(np.zeros(columns), noise, count))
            products = gamma[0] * drawn.T @ drawn, gamma[0] * drawn.T @ tau_pi[:, 2:], drawn.T @ tau_pi[:, 1:2]
            expected = [x + weight * y / count for x, y in zip(expected, products, strict=True)]
        for value, mean in zip(found, expected, strict=True):
            np.testing.assert_allclose(value[s], mean, rtol=0, atol=0.02 * np.abs(mean).max())


@pytest.mark.parametrize("columns", [1, 2])
def test_closed_forms_and_nodes_are_one_prior(columns):
    """Rows' minima, penalties, responses and density, which no other variable of a dataset would give away."""
    closed = prior_of({"kind": "lasso", "strength": 0.2}, columns)
    assert closed.rows is not None
    nodes = replace(closed, rows=replace(closed.rows, linear=False))
    conjugates = hats([0.5, 0.2][:columns], [0.8, 1.3][:columns])
    found, expected = (prior.arguments(conjugates) for prior in (closed, nodes))
    for name in ("chi", "penalty", "row_minimum"):
        value = expected["spectral_mean"](expected[name])
        accuracy = 1e-11 if columns == 1 else 1e-4
        np.testing.assert_allclose(found["spectral_mean"](found[name]), value, rtol=0, atol=accuracy)
    assert closed.density(conjugates).item() == pytest.approx(nodes.density(conjugates).item(), abs=2e-3)


def test_what_vanishes_is_held_against_its_natural_size():
    """q and theta against the teacher's variance, m against its root, V against its inverse: a millionth of each."""
    natural = 0.36
    zero = np.zeros((2, 1, 1))
    scales = Overlaps(zero, zero, zero, zero).scales(np.full((2, 1, 1), natural))
    expected = np.repeat([natural, 1 / natural, np.sqrt(natural), natural], 2)
    np.testing.assert_allclose(scales, 1e-6 * expected, rtol=1e-12)


@pytest.mark.parametrize(
    "regularizer",
    [
        {"kind": "lasso", "strength": 0.004},
        {"kind": "group-lasso", "strength": 0.004},
        {"kind": "expression", "expression": "0.008*sqrt(w**2 + 0.2)"},
    ],
    ids=lambda given: given["kind"],
)
@pytest.mark.parametrize("given", ["two-level", "atoms"])
def test_a_share_of_directions_without_variance_is_less_data_and_more_variance(regularizer, given):
    """Their weights are zero: with a share w of them it is the problem of alpha/(1 - w) and variance gamma (1 - w)."""
    share, gamma, alpha = 0.23, 0.41, 2.3
    spectra: dict[str, Any] = {
        "two-level": {"kind": "two-level", "variances": [0.0, gamma], "fraction": share},
        "atoms": [
            {"weight": share / 4, "variances": [0.0, 0.0]},
            {"weight": 1 - share, "variances": [gamma, gamma]},
            {"weight": 3 * share / 4, "variances": [0.0, 0.0]},
        ],
    }
    sigma = float(np.sqrt(gamma * (1 - share)))
    rest = {"positions": {"kind": "none"}, "regularizer": regularizer, "integration": {"rule": "sobol", "nodes": 64}}
    problems = [
        Problem.from_dict({"tokens": given, **rest}) for given in ({"spectrum": spectra[given]}, {"sigma": sigma})
    ]
    found, right = (solve(p, a, "semantic") for p, a in zip(problems, (alpha, alpha / (1 - share)), strict=True))
    assert int(found.status) == int(right.status) == 0
    for name in ("q", "V", "m", "theta"):
        # both are solved to 1e-9 or so; the noise floor of a smooth penalty is 1e-7 of a source
        size = float(np.abs(right[name]).max())
        np.testing.assert_allclose(found[name].values, right[name].values, rtol=0, atol=1e-7 * size + 1e-9)
    assert float(found.density) == pytest.approx((1 - share) * float(right.density), rel=1e-6)


def test_encodings_along_directions_without_variance_leave_a_lasso_without_minimum():
    """The source there is ``m_hat tau``, of any size, and no curvature holds it; without encodings weights are zero."""
    prior = prior_of({"kind": "lasso", "strength": 0.3}, 1)
    spectrum = prior.spectrum
    gamma = np.array([[0.0, 0.7, 0.0]])
    covariance = np.tile(spectrum.covariance, (3, 1, 1))
    mean = np.zeros((3, spectrum.mean.shape[1]))
    mean[2, 0] = 1.3
    wide = Spectrum(np.array([0.2, 0.5, 0.3]), gamma, mean, covariance, spectrum.teacher_means)
    hat = hats([0.5], [0.8])
    assert Prior(prior.kernels, wide, 0.0, prior.rows).has_image(hat)  # a semantic branch has no m_hat
    hat.m_hat[:] = 0.07
    assert not Prior(prior.kernels, wide, 0.0, prior.rows).has_image(hat)
    mean[2, 0] = 0.0
    still = Spectrum(np.array([0.2, 0.5, 0.3]), gamma, mean, covariance, spectrum.teacher_means)
    assert Prior(prior.kernels, still, 0.0, prior.rows).has_image(hat)
