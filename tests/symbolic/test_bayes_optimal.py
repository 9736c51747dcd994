"""The Bayes-optimal free entropy: every step of its derivation, on a toy with one token and one column.

The channel of the toy is ``Y = f(k) + noise`` with f neither even nor linear.  The replica matrices are written out by
hand, the integrals are done where they stand, and the equations are held against differences of the free entropy.

Not public: rules for the toy are added to those of `derivations.replica.quadrature`.
"""
# SymPy's annotations do not know its own matrices
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import math
from dataclasses import replace

import numpy as np
import pytest
from toys import executed, richardson

import attnphase as ap
from derivations.algebra import symbols as sym
from derivations.algebra.tokens import operands
from derivations.replica import quadrature
from derivations.replica.bayes_optimal import NISHIMORI
from derivations.replica.posterior import ObservationEntropy, ObservationIntegral, WeightEntropy, WeightIntegral
from derivations.replica.quadrature import Toy, evaluate

DERIVED = ap.derive(limit="bayes_optimal")
MOMENTS, FACTORISED, ONE, GAUSSIAN = DERIVED.free_entropy.steps
TOTAL, Q, V_OF_Q = DERIVED.free_entropy.total, *(e.right_hand_side for e in DERIVED.saddle_point.overlaps)
NOISE, ALPHA = 0.37, 0.71
OBSERVED = np.linspace(-6, 40, 401)
# what the prior gives by itself: rho = sum of weight gamma (1/P + c^2)
ATOMS = (
    (0.35, {"gamma": 0.7, "prior_mean": 0.4, "prior_precision": 1.7}),
    (0.65, {"gamma": 1.3, "prior_mean": -0.3, "prior_precision": 0.9}),
)
RHO = sum(w * a["gamma"] * (1 / a["prior_precision"] + a["prior_mean"] ** 2) for w, a in ATOMS)
TOY = Toy({"q": 0.41, "q_hat": 0.29, "rho": RHO, "alpha": ALPHA}, ATOMS, step=0.25, reach=8.0)
WIDE = replace(TOY, step=0.3, reach=18.0)  # where exponentials of squares are integrated


def likelihood(k):
    """``P(Y | k)`` on the grid of observations, along a new last axis."""
    label = 1.1 * k + 0.3 * k**2 - 0.2
    return np.exp(-((OBSERVED - label[..., None]) ** 2) / (2 * NOISE)) / math.sqrt(2 * math.pi * NOISE)


def summed(values):
    return np.trapezoid(values, OBSERVED, axis=-1)


def evidence(omega, V, toy):
    """``Z(Y, omega)``, (..., Y), the derivative of its logarithm in omega, and the posterior's variance."""
    x, weights = toy.gaussian(0, 1)
    of_k = likelihood(omega[..., None] + math.sqrt(V) * x)
    Z = np.maximum(np.einsum("...iy,i->...y", of_k, weights), 1e-200)
    mean, square = (np.einsum("...iy,i,i->...y", of_k, weights, y) / Z for y in (math.sqrt(V) * x, V * x**2))
    return Z, mean / V, square - mean**2


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
    coupling = covariance - 2 * np.diag(np.diagonal(covariance))
    nodes, weights = quadrature._cube(toy, len(covariance))
    rows = [mean + x / math.sqrt(precision) for x in nodes]
    exponent = sum(value * rows[a] * rows[b] for (a, b), value in np.ndenumerate(coupling)) / 2
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
    return (summed(Z * np.log(Z)) * weights).sum()


@evaluate.register
def _(node: WeightEntropy, toy):
    noise, mean, precision = (evaluate(a, toy) for a in operands(node))
    (z, weights), (x, own) = toy.gaussian(0, 2), toy.gaussian(1, 2)
    w = mean + x / math.sqrt(precision)
    partition = (np.exp(math.sqrt(noise) * z * w - noise * w**2 / 2) * own).sum(axis=1)
    return (partition * np.log(partition) * weights[:, 0]).sum()


def with_replicas(toy, n):
    """The toy with n replicas, the teacher among them, written out."""
    overlap, conjugate = np.full((n, n), toy.values["q"]), np.full((n, n), toy.values["q_hat"])
    np.fill_diagonal(overlap, RHO)
    np.fill_diagonal(conjugate, 0.0)
    return replace(toy.given(n=n), replicas={"q": overlap, "q_hat": conjugate, "m": np.zeros(n)})


def power_mean(n):
    """``log E_omega int dY Z^n`` of the toy."""
    x, weights = TOY.gaussian(0, 1)
    Z, _, _ = evidence(math.sqrt(TOY.values["q"]) * x, RHO - TOY.values["q"], TOY)
    return math.log((summed(Z**n) * weights).sum())


def test_the_classes_of_replicas_hold_every_pair_once():
    assert sum(c.count for c in NISHIMORI.classes).expand() == sym.n**2


@pytest.mark.parametrize("n", [2, 3])
def test_replicas_factorise(n):
    """n replicas at once against powers of one, for the sample, the row and the couplings."""
    toy, wide = with_replicas(TOY, n), with_replicas(WIDE, n)
    expected = evaluate(FACTORISED.terms["overlap"], toy)
    assert evaluate(MOMENTS.terms["overlap"], toy) == pytest.approx(expected, rel=1e-12)
    joint = evaluate(MOMENTS.terms["observations"], replace(toy, step=0.6, reach=6.6) if n == 3 else toy)
    assert joint == pytest.approx(ALPHA * power_mean(n), rel=1e-6 if n == 2 else 1e-4)
    assert evaluate(MOMENTS.terms["prior"], wide) == pytest.approx(evaluate(FACTORISED.terms["prior"], wide), rel=1e-6)


def test_one_replica_more_is_the_coefficient_beside_it():
    """Of n - 1 as n goes to 1: the norm is there, so that there is no constant."""
    for name in ("overlap", "prior"):
        limit = richardson(lambda e, name=name: evaluate(FACTORISED.terms[name], WIDE.given(n=1 + e)) / e, 0.2, 5)
        assert limit == pytest.approx(evaluate(ONE.terms[name], WIDE), rel=1e-6), name
    limit = richardson(lambda e: power_mean(1 + e) / e, 0.2, 5)
    assert ALPHA * limit == pytest.approx(evaluate(ONE.terms["observations"], TOY), rel=1e-6)


def test_the_gaussian_prior_does_its_integrals():
    assert evaluate(GAUSSIAN.terms["prior"], WIDE) == pytest.approx(evaluate(ONE.terms["prior"], WIDE), rel=1e-9)


def difference(name, step=1e-4):
    above, below = (evaluate(TOTAL, TOY.given(**{name: TOY.values[name] + s * step})) for s in (1, -1))
    return (above - below) / (2 * step)


def test_stationarity_in_the_conjugate_is_the_equation_of_the_overlap():
    """d Phi/d q_hat = (what the equation gives - q)/2, and V is what is left of rho."""
    q = evaluate(Q, TOY)
    assert difference("q_hat") == pytest.approx((q - TOY.values["q"]) / 2, abs=1e-8)
    assert evaluate(V_OF_Q, TOY) == pytest.approx(RHO - q, rel=1e-12)


def test_stationarity_in_the_overlap_is_the_equation_of_the_conjugate():
    """d Phi/d q = (alpha E[g g] - q_hat)/2 with the moment done here; and the same by the posterior's covariance."""
    x, weights = TOY.gaussian(0, 1)
    V, printed = RHO - TOY.values["q"], executed(DERIVED.python)
    Z, g, spread = evidence(math.sqrt(TOY.values["q"]) * x, V, TOY)
    square, covariance = ((summed(Z * values) * weights).sum() for values in (g**2, spread))
    assert difference("q") == pytest.approx((ALPHA * square - TOY.values["q_hat"]) / 2, rel=1e-6)
    by_residuals = printed.conjugates_from_residuals(ALPHA, np.full((1, 1, 1), square))
    by_spreads = printed.conjugates_from_spreads(ALPHA, np.full((1, 1, 1), covariance), np.full((1, 1, 1), V))
    assert [by_residuals.item(), by_spreads.item()] == pytest.approx([ALPHA * square] * 2, rel=1e-8)


def test_printed_code_computes_the_expressions():
    names = ("gamma", "prior_mean", "prior_precision")
    gamma, mean, precision = (np.array([a[name] for _, a in ATOMS])[:, None, None] for name in names)
    atoms = {"gamma": gamma[None], "prior_mean": mean, "prior_precision": precision}
    atoms["spectral_mean"] = lambda x: np.einsum("a,aij->ij", [w for w, _ in ATOMS], np.broadcast_to(x, (2, 1, 1)))
    printed, (q, q_hat) = executed(DERIVED.python), (np.full((1, 1, 1), TOY.values[name]) for name in ("q", "q_hat"))
    found = printed.overlaps_from_conjugates(**atoms, q_hat=q_hat)
    assert [one.item() for one in found] == pytest.approx([evaluate(Q, TOY), evaluate(V_OF_Q, TOY)], rel=1e-12)
    entropy = evaluate(ObservationEntropy(sym.q_star, sym.rho - sym.q_star), TOY)
    terms = printed.free_entropy_terms(alpha=ALPHA, **atoms, q_hat=q_hat, q=q, observation_entropy=entropy)
    for name, term in DERIVED.free_entropy.terms.items():
        assert np.asarray(terms[name]).item() == pytest.approx(evaluate(term, TOY), rel=1e-10), name
    deviations, variances = np.array([[[0.3, -0.2], [0.7, 0.4]]]), np.array([[[1.2, 0.0], [0.0, 0.6]]])
    error = printed.test_error(lambda body: body(deviations, variances).mean(), 2)
    assert error == pytest.approx((1.2 * (0.3**2 + 0.7**2) + 0.6 * (0.2**2 + 0.4**2)) / 2)
