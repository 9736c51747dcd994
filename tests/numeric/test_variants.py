"""Mixtures, spectra, regularisers, scores and losses against known numbers, limits and finite-size fits."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import optimize, stats

import attnphase as ap
from attnphase.checks.consistency import check
from attnphase.cli.commands import main
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.kernels.compiler import kernels_for
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.spectrum.measure import Spectrum

ONE_THREAD = SolverSettings(threads=1)
SAMPLED = {"integration.rule": "sobol", "integration.nodes": 256}
PAPER = Problem.paper()
MIXTURE = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
        "tokens.law": {"kind": "same", "probability": 0.8},
    }
)


def solved(problem: Problem, alpha: float, branch: str = "semantic") -> BranchPoint:
    point = solve_point(problem, alpha, branch, settings=ONE_THREAD)
    assert point.status is Status.converged
    return point


# --- mixture tokens ---------------------------------------------------------------------------------------------------


def test_mixture_example_lies_in_the_ranges_of_direct_minimisation():
    """Three minimisations at d = 1000: |W|^2/d .351-.367, theta/gamma .518-.540, training loss .00312-.00322."""
    point = solved(MIXTURE, 2.0)
    assert 0.351 < point.values["weight_norm"] < 0.367
    ratio = point.values["theta"].ravel() / MIXTURE.site_variances
    assert np.all((ratio > 0.518) & (ratio < 0.540))
    assert 0.00312 < point.values["training_loss"] < 0.00322
    ds = ap.solve(MIXTURE.with_fields(SAMPLED), 2.0)
    assert ds.q.dims == ("token", "cluster", "row", "col")
    assert ds.q.shape == (2, 2, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"student.tied": False}, {"regularizer.kind": "elastic-net"}])
@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_one_cluster_of_mean_zero_is_a_gaussian_token(fields, branch):
    gaussian = PAPER.with_fields({**SAMPLED, **fields})
    one = gaussian.with_fields({"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5}]})
    a, b = (solve_point(p, 1.7, branch, settings=ONE_THREAD) for p in (gaussian, one))
    assert a.status is b.status
    for name, value in a.values.items():
        np.testing.assert_allclose(b.values[name], value, rtol=1e-10, atol=1e-14, err_msg=name)


def test_clusters_with_a_teacher_mean_and_unequal_counts():
    """Tokens with one and three clusters, means along the teacher: no symmetry is left, and the numbers agree."""
    problem = PAPER.with_fields(
        {
            **SAMPLED,
            "tokens.kind": "mixture",
            "tokens.clusters": [
                [{"sigma": 0.45, "mean": [0.7]}],
                [{"sigma": 0.4, "mean": [-0.6]}, {"sigma": 0.6, "mean": [0.2]}, {"sigma": 0.5, "mean": [0.9]}],
            ],
            "tokens.law": {"kind": "table", "table": [[0.2, 0.5, 0.3]]},
            "tokens.mean_teacher": [[0.6]],
        }
    )
    spectrum = Spectrum.of(problem)
    np.testing.assert_allclose(spectrum.teacher_means.ravel(), 0.6 * np.array([0.7, -0.6, 0.2, 0.9]))
    point = solved(problem, 1.6)
    assert point.values["free_energy_gap"] < 1e-6 * point.values["training_loss"]
    # the means pull the weights along: m is theta's share of theirs, and they are not small
    m, share = point.values["m"].ravel(), spectrum.teacher_means.ravel()
    assert np.corrcoef(m, share)[0, 1] > 0.95
    assert np.abs(m).max() > 0.2
    ds = ap.solve(problem, 1.6)
    missing = ds.q.isnull()
    assert missing.sel(token=0).sum() == 2
    assert not missing.sel(token=1).any()


# --- spectra ----------------------------------------------------------------------------------------------------------


def test_measure_of_finite_matrices_gives_the_solution_of_its_law():
    """Commuting matrices of two levels, with vectors that have the law's products on each level: the same solution.

    Neither the basis nor a vector within a level matters; with the ridge, second moments are all there is to know.
    """
    d, rng = 90, np.random.default_rng(4)
    basis = np.linalg.qr(rng.normal(size=(d, d)))[0]
    low = np.arange(d) < d // 3
    covariance = (basis * np.where(low, 0.12, 0.4)) @ basis.T
    p, teacher = np.empty(d), np.empty(d)
    for level in (low, ~low):
        size = level.sum()
        along, across = np.linalg.qr(rng.normal(size=(size, 2)))[0].T
        p[level], teacher[level] = along * np.sqrt(size / d), across * np.sqrt(size)
    p, teacher = basis @ p, basis @ teacher
    measured = Spectrum.from_matrices([covariance, covariance], np.stack([p, -p]), teacher[:, None])
    atoms = {"tokens.spectrum": measured.atoms()}
    law = {"tokens.spectrum": [{"weight": 1 / 3, "variances": [0.12] * 2}, {"weight": 2 / 3, "variances": [0.4] * 2}]}
    finite, limit = (solved(PAPER.with_fields({**SAMPLED, **f}), 1.8) for f in (atoms, law))
    assert finite.values["theta"].min() > 0.05
    for name in ("q", "V", "theta", "test_error", "training_loss", "weight_norm"):
        np.testing.assert_allclose(finite.values[name], limit.values[name], rtol=1e-5, err_msg=name)


def test_matrices_that_do_not_commute_are_refused_with_the_size():
    rng = np.random.default_rng(3)
    a, b = (x @ x.T for x in rng.normal(size=(2, 20, 20)))
    with pytest.raises(ValueError, match=r"commut.*0\.\d+"):
        Spectrum.from_matrices([a, b], np.zeros((2, 20)), rng.normal(size=(20, 1)))


def test_positions_along_the_teacher_help_the_semantic_branch():
    correlated = PAPER.with_fields(
        {**SAMPLED, "positions.gram": [[1, -1], [-1, 1]], "positions.teacher": [[0.5], [-0.5]]}
    )
    point = solved(correlated, 2.0)
    assert np.abs(point.values["m"]).min() > 0.05  # theta brings m along
    assert point.values["free_energy_gap"] < 1e-6 * point.values["training_loss"]


# --- regularisers -----------------------------------------------------------------------------------------------------


def test_elastic_net_in_closed_form():
    """The overlaps from the conjugates: a row's source is normal, ``B = b + noise``, and its weight soft thresholding.

    ``E[w^2]``, ``E[w pi]`` and ``P(w != 0)`` for ``w = sign(B) (|B| - s)_+ / (Lambda + ridge)``, from the normal law.
    Training with this penalty agrees, in the tests of agreement.
    """
    strength, ridge, gamma = 0.01, 0.002, 0.25
    problem = PAPER.with_fields(
        {"regularizer.kind": "elastic-net", "regularizer.strength": strength, "regularizer.ridge": ridge, **SAMPLED}
    )
    values = solved(problem, 2.0).values
    noise, curvature, signal = (gamma * values[name].sum() for name in ("q_hat", "V_hat", "theta_hat"))
    scale = np.sqrt(signal**2 + noise)
    t, stiffness = strength / scale, curvature + ridge
    density = 2 * stats.norm.sf(t)
    norm = scale**2 / stiffness**2 * ((1 + t**2) * density - 2 * t * stats.norm.pdf(t))
    exact = {
        "density": density,
        "weight_norm": norm,
        "q": gamma * norm,
        "V": gamma * density / stiffness,
        "theta": gamma * signal * density / stiffness,
    }
    assert 0.3 < density < 0.6
    for name, value in exact.items():
        np.testing.assert_allclose(values[name], value, rtol=1e-6, err_msg=name)


def test_elastic_net_tends_to_both_limits():
    """Rates: the distance to a limit falls in proportion to the strength that is taken away."""

    def norm(strength, ridge):
        net = {"regularizer.kind": "elastic-net", "regularizer.strength": strength, "regularizer.ridge": ridge}
        return solved(PAPER.with_fields({**SAMPLED, **net}), 2.3).values["weight_norm"]

    ridge = solved(PAPER.with_fields({**SAMPLED, "regularizer.strength": 0.013}), 2.3).values["weight_norm"]
    lasso = PAPER.with_fields({**SAMPLED, "regularizer.kind": "lasso", "regularizer.strength": 0.008})
    limits = {ridge: [norm(s, 0.013) for s in (4e-5, 1e-5)]}
    limits[solved(lasso, 2.3).values["weight_norm"]] = [norm(0.008, s) for s in (4e-5, 1e-5)]
    for limit, (far, near) in limits.items():
        assert abs(near - limit) < 0.01 * limit
        assert (far - limit) / (near - limit) == pytest.approx(4, rel=0.1)


def lasso_fit(d: int, alpha: float, strength: float, noise: float, seed: int) -> np.ndarray:
    """Minimiser of ``1/2 |y - X w|^2 + strength |w|_1``, entries of X of variance 1/d, by coordinate descent."""
    rng = np.random.default_rng(seed)
    X = noise * rng.normal(size=(round(alpha * d), d)) / np.sqrt(d)
    y = X @ rng.normal(size=d)
    w, residual, curvature = np.zeros(d), y.copy(), (X**2).sum(axis=0)
    for _ in range(500):
        largest = 0.0
        for i in range(d):
            gradient = X[:, i] @ residual + curvature[i] * w[i]
            new = np.sign(gradient) * max(abs(gradient) - strength, 0) / curvature[i]
            if new != w[i]:
                residual -= X[:, i] * (new - w[i])
                largest = max(largest, abs(new - w[i]))
                w[i] = new
        if largest < 1e-9:
            break
    return w


@pytest.mark.slow
def test_lasso_density_against_coordinate_descent():
    """Square loss of one token: weights that are exactly zero, and their share, within three standard errors."""
    sigma, alpha, strength, d, seeds = 0.9, 0.8, 0.35, 300, 12
    problem = Problem().with_fields(
        {
            "tokens.length": 1,
            "teacher.mixing": None,
            "positions.kind": "none",
            "tokens.sigma": sigma,
            "loss.kind": "square",
            "regularizer.kind": "lasso",
            "regularizer.strength": strength,
        }
    )
    point = solved(problem, alpha)
    fits = [lasso_fit(d, alpha, strength, sigma, seed) for seed in range(seeds)]
    for name, samples in (
        ("density", np.array([np.mean(w != 0) for w in fits])),
        ("weight_norm", np.array([w @ w / d for w in fits])),
    ):
        error = samples.std(ddof=1) / np.sqrt(seeds)
        # the finite-size correction is of order 1/d
        assert abs(samples.mean() - point.values[name]) < 3 * error + 2 / d * point.values[name], name
    assert 0.2 < point.values["density"] < 0.8


# --- losses of one token ----------------------------------------------------------------------------------------------


def one_token(kind: str, **fields) -> Problem:
    return Problem().with_fields(
        {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none", "loss.kind": kind, **fields}
    )


@pytest.mark.parametrize(("alpha", "sigma", "strength"), [(1.7, 0.8, 0.21), (0.6, 1.3, 0.04)])
def test_square_loss_is_ridge_regression(alpha, sigma, strength):
    """V is the positive root of ``lambda V^2 + (lambda + gamma alpha - gamma) V - gamma``; the rest follows."""
    point = solved(one_token("square", **{"tokens.sigma": sigma, "regularizer.strength": strength}), alpha)
    gamma = sigma**2
    V = np.roots([strength, strength + gamma * alpha - gamma, -gamma]).max()
    hat = alpha / (1 + V)
    R = 1 / (strength + gamma * hat)
    theta = gamma**2 * R * hat
    share = gamma**2 * R**2 * alpha / (1 + V) ** 2
    q = (share * (gamma - 2 * theta) + gamma**3 * R**2 * hat**2) / (1 - share)
    for name, exact in (("V", V), ("theta", theta), ("q", q)):
        error = float(point.errors[name].ravel()[0])
        assert point.values[name].ravel()[0] == pytest.approx(exact, abs=5 * error + 1e-6), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_classification_against_a_direct_solution_of_the_equations(kind):
    """The same fixed point from scipy: scalar proximal points, nested quadrature, root finding in (q, V, theta).

    For a label ``sign(k)`` and ``rho = gamma``: ``k | omega ~ N(theta omega/q, rho - theta^2/q)``.
    """
    alpha, gamma, strength = 2.2, 0.7, 0.3
    problem = one_token(kind, **{"tokens.sigma": float(np.sqrt(gamma)), "regularizer.strength": strength})
    point = solved(problem, alpha)

    def proximal(omega, V):
        if kind == "hinge":
            return omega + np.clip(1 - omega, 0, V)
        h = omega.copy()
        for _ in range(
            40
        ):  # Newton's method for (h - omega)/V = 1/(1 + e^h), whose left side rises and right side falls
            label = 1 / (1 + np.exp(h))
            h -= ((h - omega) / V - label) / (1 / V + label * (1 - label))
        return h

    nodes, weights = np.polynomial.legendre.leggauss(60)

    def image(x):
        q, V, theta = x
        spread = np.sqrt(gamma - theta**2 / q)
        kinks = [(1 - V) / np.sqrt(q), 1 / np.sqrt(q)] if kind == "hinge" else []
        edges = np.array(sorted([-8.0, -3.0, 0.0, 3.0, 8.0, *(k for k in kinks if abs(k) < 8)]))
        half = np.diff(edges)[:, None] / 2
        xi = (edges[:-1, None] + half + half * nodes).ravel()
        omega = np.sqrt(q) * xi
        g = (proximal(omega, V) - omega) / V
        z = theta * omega / q / spread
        # both labels: by symmetry twice the positive one
        measure = 2 * stats.norm.pdf(xi) * (half * weights).ravel()

        q_hat = alpha * measure @ (g**2 * stats.norm.cdf(z))
        # E[g (k - mean) | omega] = g spread phi(z)
        theta_hat = alpha * measure @ (g * spread * stats.norm.pdf(z)) / spread**2
        V_hat = theta_hat * theta / q - alpha * measure @ (g * xi * stats.norm.cdf(z)) / np.sqrt(q)
        R = 1 / (strength + gamma * V_hat)
        b = gamma * theta_hat
        return np.array([gamma * R**2 * (gamma * q_hat + b**2), gamma * R, gamma * R * b])

    x = np.array([point.values[name].ravel()[0] for name in ("q", "V", "theta")])
    errors = np.array([point.errors[name].ravel()[0] for name in ("q", "V", "theta")])
    exact = optimize.root(lambda y: image(y) - y, x, tol=1e-9).x
    assert np.all(np.abs(x - exact) < 4 * errors + 2e-5 * np.abs(exact))


# --- rank two with a teacher of rank one ------------------------------------------------------------------------------


@pytest.mark.slow
def test_mixed_start_of_a_rank_two_student():
    """One column semantic, one positional: lower loss and error than either start of one kind alone.

    The mixed branch keeps both order parameters, in different columns.
    """
    problem = PAPER.with_fields({"student.rank": 2, **SAMPLED})
    points = {b: solve_point(problem, 1.5, b, settings=ONE_THREAD) for b in ("semantic", "positional", "mixed")}
    mixed = points["mixed"]
    assert mixed.status is Status.converged
    assert abs(mixed.values["theta"][0, 0, 0]) > 0.05
    assert abs(mixed.values["m"][0, 1]) > 0.05
    assert mixed.values["theta"][0, 1, 0] == mixed.values["m"][0, 0] == 0
    for branch in ("semantic", "positional"):
        assert mixed.values["training_loss"] < points[branch].values["training_loss"]


# --- the consistency report -------------------------------------------------------------------------------------------


def test_report_as_text_and_json():
    result = CliRunner().invoke(
        main,
        [
            "check",
            "--json",
            "--set",
            "teacher.omega=0.37",
            "--set",
            "integration.standard_error=0.01",
            "--alpha",
            "1.9",
        ],
    )
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["passed"]
    names = [one["name"] for one in report["checks"]]
    assert len(names) == len(set(names)) >= 10
    assert {one["passed"] for one in report["checks"]} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["conjugates", "free entropy", "loss"])
def test_report_notices_broken_equations(monkeypatch, broken):
    """A wrong factor in one derived or generated function fails a check, and the command exits with 1."""
    kernels = kernels_for(PAPER)
    maps = kernels.ridge
    if broken == "conjugates":

        def wrong_conjugates(**arguments):
            q_hat, V_hat, m_hat, theta_hat = maps.conjugates_from_moments(**arguments)
            return q_hat, V_hat, m_hat, 1.1 * theta_hat

        changed = replace(kernels, ridge=replace(maps, conjugates_from_moments=wrong_conjugates))
    elif broken == "free entropy":

        def wrong_terms(**arguments):
            terms = maps.free_entropy_terms(**arguments)
            return terms | {"overlap": 1.01 * terms["overlap"]}

        changed = replace(kernels, ridge=replace(maps, free_entropy_terms=wrong_terms))
    else:

        def wrong_losses(fields, teacher, mixing, parameters, variance, losses):
            kernels.losses_at(fields, teacher, mixing, parameters, variance, losses)
            losses *= 1 + 1e-6

        changed = replace(kernels, losses_at=wrong_losses)
    monkeypatch.setattr(sys.modules["attnphase.state_evolution.system"], "kernels_for", lambda problem: changed)
    report = check(PAPER.with_fields({"integration.standard_error": 0.01}), 1.9, experiment=False)
    assert not report.passed
    assert "FAILED" in report.text()
