"""The Bayes-optimal free entropy: every step of its derivation, on a toy with one token and one column.

The channel of the toy is ``Y = f(k) + noise`` with f neither even nor linear.  The replica matrices are written out by
hand, the integrals are done where they stand, and the equations are held against differences of the free entropy.
"""
# SymPy's annotations do not know explicit matrices
# pyright: reportAttributeAccessIssue=false

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from attnphase.theories.bayes_optimal.equations import bayes_optimal_equations
from derivations.algebra import symbols as sym
from derivations.algebra.means import SpectralMean
from derivations.algebra.tokens import operands
from derivations.printing.bayes_optimal import bayes_optimal_document, bayes_optimal_page
from derivations.replica import quadrature
from derivations.replica.bayes_optimal import NISHIMORI, derive_bayes_optimal
from derivations.replica.posterior import ObservationEntropy, ObservationIntegral, WeightEntropy, WeightIntegral
from derivations.replica.quadrature import Toy, evaluate

BAYES_OPTIMAL = derive_bayes_optimal()
MOMENTS, FACTORISED, ONE, GAUSSIAN = BAYES_OPTIMAL.steps

NOISE = 0.37
OBSERVED = np.linspace(-6, 40, 801)
# what the prior gives by itself: rho = sum of weight gamma (1/P + c^2)
ATOMS = (
    (0.35, {"gamma": 0.7, "prior_mean": 0.4, "prior_precision": 1.7}),
    (0.65, {"gamma": 1.3, "prior_mean": -0.3, "prior_precision": 0.9}),
)
RHO = sum(w * a["gamma"] * (1 / a["prior_precision"] + a["prior_mean"] ** 2) for w, a in ATOMS)
WIDE = {"step": 0.3, "reach": 18.0}  # where exponentials of squares are integrated
TOY = Toy({"q": 0.41, "q_hat": 0.29, "rho": RHO, "alpha": 0.71}, ATOMS, step=0.2, reach=8.0)


def likelihood(k):
    """``P(Y | k)`` on the grid of observations, along a new last axis."""
    label = 1.1 * k + 0.3 * k**2 - 0.2
    return np.exp(-((OBSERVED - label[..., None]) ** 2) / (2 * NOISE)) / math.sqrt(2 * math.pi * NOISE)


def summed(values):
    return np.trapezoid(values, OBSERVED, axis=-1)


def evidence(omega, V, toy):
    """``Z(Y, omega)``, (..., Y), and the first derivative of its logarithm in omega."""
    x, weights = toy.gaussian(0, 1)
    k = omega[..., None] + math.sqrt(V) * x
    of_k = likelihood(k)
    Z = np.maximum(np.einsum("...iy,i->...y", of_k, weights), 1e-200)
    mean = np.einsum("...iy,i,i->...y", of_k, weights, math.sqrt(V) * x)
    square = np.einsum("...iy,i,i->...y", of_k, weights, V * x**2)
    return Z, mean / Z / V, square / Z - (mean / Z) ** 2


@quadrature._replicated.register
def _(integral: ObservationIntegral, covariance, toy):
    nodes, weights = quadrature._cube(toy, len(covariance))
    root = np.linalg.cholesky(covariance)
    fields = [sum(entry * x for entry, x in zip(row, nodes, strict=True)) for row in root.tolist()]
    product = math.prod(likelihood(np.broadcast_to(k, weights.shape)) for k in fields)
    return math.log(summed((product * weights[..., None]).sum(axis=tuple(range(weights.ndim)))))


@quadrature._replicated.register
def _(integral: WeightIntegral, covariance, toy):
    """``w ~ N(c, 1/P)`` each, so that the integral is a Gaussian one of a quadratic form."""
    mean, precision = (evaluate(a, toy) for a in operands(integral))
    n = len(covariance)
    coupling = covariance - 2 * np.diag(np.diagonal(covariance))
    nodes, weights = quadrature._cube(toy, n)
    rows = [mean + x / math.sqrt(precision) for x in nodes]
    exponent = sum(coupling[a, b] * rows[a] * rows[b] for a in range(n) for b in range(n)) / 2
    return math.log((np.exp(exponent) * weights).sum())


@quadrature._log_partition.register
def _(integral: WeightIntegral, covariances, individual, toy):
    mean, precision = (evaluate(a, toy) for a in operands(integral))
    source, common, inner = quadrature._sources(0.0, covariances, 1, toy)
    x, weights = toy.gaussian(1, 2)
    w = mean + x / math.sqrt(precision)
    return quadrature._log_mean(source * w - individual * w**2 / 2, weights, -1), common, inner


@evaluate.register
def _(node: ObservationEntropy, toy):
    q, V = (evaluate(a, toy) for a in operands(node))
    x, weights = toy.gaussian(0, 1)
    Z, _, _ = evidence(math.sqrt(q) * x, V, toy)
    return (summed(Z * np.log(np.maximum(Z, 1e-300))) * weights).sum()


@evaluate.register
def _(node: WeightEntropy, toy):
    noise, mean, precision = (evaluate(a, toy) for a in operands(node))
    z, weights = toy.gaussian(0, 2)
    x, own = toy.gaussian(1, 2)
    w = mean + x / math.sqrt(precision)
    partition = (np.exp(math.sqrt(noise) * z * w - noise * w**2 / 2) * own).sum(axis=1)
    return (partition * np.log(partition) * weights[:, 0]).sum()


def with_replicas(toy, n):
    """The toy with n replicas, the teacher among them, written out."""
    values = toy.values
    overlap, conjugate = np.full((n, n), values["q"]), np.full((n, n), values["q_hat"])
    np.fill_diagonal(overlap, values["rho"])
    np.fill_diagonal(conjugate, 0.0)
    return replace(toy.given(n=n), replicas={"q": overlap, "q_hat": conjugate, "m": np.zeros(n)})


def power_mean(toy, n):
    """``log E_omega int dY Z^n`` of the toy."""
    x, weights = toy.gaussian(0, 1)
    Z, _, _ = evidence(math.sqrt(toy.values["q"]) * x, toy.values["rho"] - toy.values["q"], toy)
    return math.log((summed(Z**n) * weights).sum())


def test_the_classes_hold_every_pair_once():
    assert sum(c.count for c in NISHIMORI.classes).expand() == sym.n**2


@pytest.mark.parametrize("n", [2, 3])
def test_replicas_factorise(n):
    """n replicas at once against powers of one, for the sample, the row and the couplings."""
    toy = with_replicas(TOY, n)
    assert evaluate(MOMENTS.terms["overlap"], toy) == pytest.approx(
        evaluate(FACTORISED.terms["overlap"], toy), rel=1e-12
    )
    coarse = replace(toy, step=0.6, reach=6.6) if n == 3 else toy
    joint = evaluate(MOMENTS.terms["observations"], coarse)
    assert joint == pytest.approx(toy.values["alpha"] * power_mean(toy, n), rel=1e-6 if n == 2 else 1e-4)
    wide = replace(toy, **WIDE)
    joint = evaluate(MOMENTS.terms["prior"], wide)
    assert joint == pytest.approx(evaluate(FACTORISED.terms["prior"], wide), rel=1e-6)


def richardson(function, first, levels=5):
    """Limit of a smooth function at 0 from its values at ``first / 2^j``."""
    row = [function(first / 2**j) for j in range(levels)]
    for order in range(1, levels):
        row = [b + (b - a) / (2**order - 1) for a, b in pairwise(row)]
    return row[0]


def test_one_replica_is_the_coefficient_beside_it():
    """Of n - 1 as n goes to 1: the norm is there, so that there is no constant."""
    toy = replace(TOY, **WIDE)
    for name in ("overlap", "prior"):
        limit = richardson(lambda e, name=name: evaluate(FACTORISED.terms[name], toy.given(n=1 + e)) / e, 0.2)
        assert limit == pytest.approx(evaluate(ONE.terms[name], toy), rel=1e-6), name
    limit = richardson(lambda e: power_mean(TOY, 1 + e) / e, 0.2)
    assert TOY.values["alpha"] * limit == pytest.approx(evaluate(ONE.terms["observations"], TOY), rel=1e-6)


def test_the_gaussian_prior_does_its_integrals():
    toy = replace(TOY, **WIDE)
    assert evaluate(GAUSSIAN.terms["prior"], toy) == pytest.approx(evaluate(ONE.terms["prior"], toy), rel=1e-9)


def difference(term, name, step=1e-4):
    value = TOY.values[name]
    above, below = (evaluate(term, TOY.given(**{name: value + s * step})) for s in (1, -1))
    return (above - below) / (2 * step)


def test_stationarity_in_the_conjugate_is_the_equation_of_the_overlap():
    """d Phi/d q_hat = (what the equation gives - q)/2, and V is what is left of rho."""
    gradient = difference(BAYES_OPTIMAL.total, "q_hat")
    q = evaluate(BAYES_OPTIMAL.q.right_hand_side, TOY)
    assert gradient == pytest.approx((q - TOY.values["q"]) / 2, abs=1e-8)
    assert evaluate(BAYES_OPTIMAL.V.right_hand_side, TOY) == pytest.approx(RHO - q, rel=1e-12)


def test_stationarity_in_the_overlap_is_the_equation_of_the_conjugate():
    """d Phi/d q = (alpha E[g g] - q_hat)/2 with the moment done here; and the same by the posterior's covariance."""
    x, weights = TOY.gaussian(0, 1)
    V = RHO - TOY.values["q"]
    Z, g, spread = evidence(math.sqrt(TOY.values["q"]) * x, V, TOY)
    square, covariance = ((summed(Z * values) * weights).sum() for values in (g**2, spread))
    alpha = TOY.values["alpha"]
    assert difference(BAYES_OPTIMAL.total, "q") == pytest.approx((alpha * square - TOY.values["q_hat"]) / 2, rel=1e-6)
    maps = bayes_optimal_equations()
    generated = [
        maps.conjugates_from_residuals(alpha, np.full((1, 1, 1), square)),
        maps.conjugates_from_spreads(alpha, np.full((1, 1, 1), covariance), np.full((1, 1, 1), V)),
    ]
    assert [one.item() for one in generated] == pytest.approx([alpha * square] * 2, rel=1e-8)


def test_generated_code_is_the_expressions():
    """For the toy's atoms, from which shapes (A, 1, 1) are made."""
    gamma, mean, precision = (
        np.array([a[name] for _, a in ATOMS])[:, None, None] for name in ("gamma", "prior_mean", "prior_precision")
    )
    weights = np.array([w for w, _ in ATOMS])
    atoms = {"gamma": gamma[None], "prior_mean": mean, "prior_precision": precision}
    q_hat = np.full((1, 1, 1), TOY.values["q_hat"])
    q, V = bayes_optimal_equations().overlaps_from_conjugates(
        **atoms, spectral_mean=lambda x: np.einsum("a,aij->ij", weights, x), q_hat=q_hat
    )
    assert q.item() == pytest.approx(evaluate(BAYES_OPTIMAL.q.right_hand_side, TOY), rel=1e-12)
    assert V.item() == pytest.approx(evaluate(BAYES_OPTIMAL.V.right_hand_side, TOY), rel=1e-12)
    entropy = evaluate(ObservationEntropy(sym.q_star, sym.rho - sym.q_star), TOY)
    terms = bayes_optimal_equations().free_entropy_terms(
        alpha=TOY.values["alpha"],
        **atoms,
        spectral_mean=lambda x: np.einsum("a,aij->ij", weights, np.broadcast_to(x, (2, 1, 1))),
        q_hat=q_hat,
        q=np.full((1, 1, 1), TOY.values["q"]),
        observation_entropy=entropy,
    )
    for name, term in BAYES_OPTIMAL.terms.items():
        assert np.asarray(terms[name]).item() == pytest.approx(evaluate(term, TOY), rel=1e-10), name


def test_a_change_of_the_teachers_covariance_has_no_rule():
    from derivations.algebra.calculus import differential

    with pytest.raises(TypeError, match="covariance of the teacher's field"):
        differential(ObservationEntropy(sym.q_star, sym.V_star), sym.q_star)


def test_the_page_holds_the_equations():
    page = bayes_optimal_document().markdown()
    assert r"\hat q_{\ell} = \alpha \mathbb{E}\left[g_{\ell} g_{\ell}^{\top}\right]" in page
    assert page.count(r"\tag{R") == 4
    assert "SpectralMean" not in page
    assert isinstance(BAYES_OPTIMAL.V.right_hand_side, SpectralMean)


def test_the_page_in_docs_is_up_to_date():
    assert (Path(__file__).parents[2] / "docs" / "bayes_optimal.md").read_text(encoding="utf-8") == bayes_optimal_page()
