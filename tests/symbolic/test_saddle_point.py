"""The derived equations against theory.md section 3, typed here again, and the free entropy."""
# SymPy's annotations do not know explicit matrices
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false

from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Matrix, Rational, Symbol, diag, zeros
from sympy.matrices.expressions import Trace

from derivations.algebra import symbols as sym
from derivations.algebra.means import SpectralMean, WeightMean
from derivations.algebra.minima import FieldHessian, RowPenalty
from derivations.codegen.arrays import state_evolution_source
from derivations.models.attention import AttentionModel, Student
from derivations.models.scalar import ScalarModel
from derivations.models.symbolic import GENERIC
from derivations.replica.chain import derive_free_entropy
from derivations.replica.observables import mean_envelope, penalty, weight_norm
from derivations.replica.saddle_point import conditional_covariance, derive_saddle_point

SIZES = [(length, r, t) for length in (1, 2, 3) for r in (1, 2) for t in (1, 2)]
FREE_ENTROPY = derive_free_entropy(GENERIC)
SADDLE_POINT = derive_saddle_point(FREE_ENTROPY)
EQUATIONS = {equation.unknown.name: equation for equation in SADDLE_POINT}


@pytest.fixture(scope="module")
def generated():
    """The generated NumPy module, as every model would get it."""
    namespace = {}
    exec(
        compile(state_evolution_source(SADDLE_POINT, FREE_ENTROPY), "state_evolution", "exec"),
        namespace,
    )
    return SimpleNamespace(**namespace)


# --- random worlds ----------------------------------------------------------------------------


def positive(rng, *shape):
    size = shape[-1]
    factor = rng.normal(size=(*shape, size))
    return factor @ factor.mT / size + 0.3 * np.eye(size)


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T


class World:
    """Random positive definite matrices and a few spectral atoms, nothing at a special value."""

    def __init__(self, seed, length, r, t):
        rng = np.random.default_rng([seed, length, r, t])
        atoms = 4
        self.rng, self.length, self.r, self.t = rng, length, r, t
        self.alpha = rng.uniform(0.3, 2.5)
        self.ridge = rng.uniform(0.2, 0.9, r)
        self.weights = rng.dirichlet(np.full(atoms, 3.0))
        self.gamma = rng.uniform(0.2, 1.8, (length, atoms))
        self.tau = rng.normal(size=(length, atoms))
        self.pi = rng.normal(size=(atoms, t))
        self.q = positive(rng, length, r)
        self.V = positive(rng, length, r)
        self.m = rng.normal(size=(length, r, 1))
        self.theta = rng.normal(size=(length, r, t))
        # and so is the joint covariance (q, theta; theta^T, rho)
        self.rho = positive(rng, length, t) + self.theta.mT @ np.linalg.inv(self.q) @ self.theta
        self.q_hat = positive(rng, length, r)
        # V_hat of any sign, as long as every resolvent stays positive
        raw = rng.normal(size=(length, r, r))
        self.V_hat = 0.04 * (raw + raw.mT) + 0.1 * np.eye(r)
        self.m_hat = rng.normal(size=(length, r, 1))
        self.theta_hat = rng.normal(size=(length, r, t))

    def spectral_mean(self, values):
        return np.tensordot(self.weights, values, axes=1)

    def prior_arguments(self):
        return {
            "gamma": self.gamma[:, :, None, None],
            "tau": self.tau[:, :, None, None],
            "pi": self.pi[:, :, None],
            "spectral_mean": self.spectral_mean,
            "ridge": self.ridge,
        }

    def overlaps(self):
        return {"q": self.q, "V": self.V, "m": self.m, "theta": self.theta}

    def conjugates(self):
        return {
            "q_hat": self.q_hat,
            "V_hat": self.V_hat,
            "m_hat": self.m_hat,
            "theta_hat": self.theta_hat,
        }


worlds = st.builds(
    World,
    st.integers(0, 10**6),
    st.sampled_from((1, 2, 3)),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2)),
)


def every_size(test):
    return pytest.mark.parametrize("size", SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))(test)


# --- theory.md section 3, second typing -------------------------------------------------------


def theory_overlaps(w):
    """Equation (7): loops over atoms and tokens, one matrix at a time."""
    L, r, t = w.length, w.r, w.t
    q, V, m, theta = (
        np.zeros((L, r, r)),
        np.zeros((L, r, r)),
        np.zeros((L, r, 1)),
        np.zeros((L, r, t)),
    )
    for a, weight in enumerate(w.weights):
        R = np.linalg.inv(w.ridge * np.eye(r) + sum(w.gamma[j, a] * w.V_hat[j] for j in range(L)))
        b = sum(w.tau[j, a] * w.m_hat[j][:, 0] + w.gamma[j, a] * w.theta_hat[j] @ w.pi[a] for j in range(L))
        noise = sum(w.gamma[j, a] * w.q_hat[j] for j in range(L))
        for l in range(L):
            q[l] += weight * w.gamma[l, a] * R @ (noise + np.outer(b, b)) @ R
            V[l] += weight * w.gamma[l, a] * R
            m[l, :, 0] += weight * w.tau[l, a] * R @ b
            theta[l] += weight * w.gamma[l, a] * np.outer(R @ b, w.pi[a])
    return q, V, m, theta


def latent_first(w, shape):
    """Fields (L, ..., N, size), by their normals: g, xi of omega given k, k, and xi of ``omega = m + q^1/2 xi``."""
    g, xi = w.rng.normal(0.3, 1.4, (2, w.length, *shape, w.r))
    k = w.rng.normal(-0.2, 0.8, (w.length, *shape, w.t))
    student = np.empty_like(xi)
    for l in range(w.length):
        back = w.theta[l] @ np.linalg.inv(w.rho[l])
        spread = root(w.q[l] - back @ w.theta[l].T)
        student[l] = (xi[l] @ spread + k[l] @ back.T) @ np.linalg.inv(root(w.q[l]))
    return g, xi, k, student


def theory_conjugates(w, g, xi, k):
    """Equation (8) with the mean over samples as a plain average; fields are (L, N, size), omega is m + q^1/2 xi."""
    L, N = w.length, g.shape[1]
    q_hat, m_hat, theta_hat, V_hat = [], [], [], []
    for l in range(L):
        q_root = root(w.q[l])
        q_inverse = np.linalg.inv(w.q[l])
        conditional = w.rho[l] - w.theta[l].T @ q_inverse @ w.theta[l]
        deviation = k[l] - xi[l] @ (w.theta[l].T @ np.linalg.inv(q_root)).T
        q_hat.append(w.alpha * g[l].T @ g[l] / N)
        m_hat.append(w.alpha * g[l].mean(axis=0)[:, None])
        theta_hat.append(w.alpha * (g[l].T @ deviation / N) @ np.linalg.inv(conditional))
        raw = theta_hat[l] @ w.theta[l].T @ q_inverse - w.alpha * (g[l].T @ xi[l] / N) @ np.linalg.inv(q_root)
        V_hat.append((raw + raw.T) / 2)
    return tuple(np.stack(x) for x in (q_hat, V_hat, m_hat, theta_hat))


def average(values, token):
    """Mean over samples, which stand in front of rows and columns; the same samples for every token."""
    return values.mean(axis=-3)


@settings(deadline=None, max_examples=40)
@given(worlds)
def test_overlaps_are_theory_section_3(generated, w):
    arguments = w.prior_arguments()
    derived = generated.overlaps_from_conjugates(**arguments, **w.conjugates())
    for value, expected in zip(derived, theory_overlaps(w), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


@settings(deadline=None, max_examples=40)
@given(worlds)
def test_conjugates_are_theory_section_3(generated, w):
    """The printed form has omega given k, section 3 has k given omega: on any samples they are the same."""
    g, xi, k, student = latent_first(w, (50,))
    derived = generated.conjugates_from_overlaps(
        alpha=w.alpha,
        rho=w.rho,
        site_mean=average,
        g=g[..., None],
        xi=xi[..., None],
        k=k[..., None],
        **w.overlaps(),
    )
    for value, expected in zip(derived, theory_conjugates(w, g, student, k), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-11 * np.abs(expected).max())


@every_size
def test_replicate_axes_are_carried_along(generated, size):
    """The layout of `attnphase`: a replicate axis between atoms or tokens and the matrix."""
    w = World(7, *size)
    g, xi, k, student = latent_first(w, (3, 20))
    overlaps = {name: value[:, None] for name, value in w.overlaps().items()}
    conjugates = generated.conjugates_from_overlaps(
        alpha=w.alpha,
        rho=w.rho[:, None],
        site_mean=average,
        g=g[..., None],
        xi=xi[..., None],
        k=k[..., None],
        **overlaps,
    )
    for replicate in range(3):
        expected = theory_conjugates(w, g[:, replicate], student[:, replicate], k[:, replicate])
        for value, single in zip(conjugates, expected, strict=True):
            np.testing.assert_allclose(value[:, replicate], single, rtol=1e-11, atol=1e-12 * np.abs(single).max())


def test_equations_do_not_depend_on_the_model(generated):
    """Loss and tying enter through g alone."""
    source = state_evolution_source(SADDLE_POINT, FREE_ENTROPY)
    scalar = ScalarModel("ridge", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2)
    for model in (AttentionModel(3), AttentionModel(2, Student(rank=2, tied=False)), scalar):
        assert (
            state_evolution_source(derive_saddle_point(derive_free_entropy(model)), derive_free_entropy(model))
            == source
        )


# --- the same, entry by entry in exact arithmetic ---------------------------------------------


def rational_world(explicit, rational, seed, L, r, t):
    """An evaluator with rational square roots, spectral atoms and a few samples of fields."""
    draw = rational(seed)
    roots = [draw.positive(r) for _ in range(L)]
    theta, rho = draw.per_token(L, r, t), [draw.positive(t) for _ in range(L)]
    values = {
        "q": [roots[l] * roots[l] + theta[l] * rho[l].inv() * theta[l].T for l in range(L)],
        "V": [draw.positive(r) for _ in range(L)],
        "m": draw.per_token(L, r, 1),
        "theta": theta,
        "rho": rho,
        "q_hat": [draw.positive(r) for _ in range(L)],
        "V_hat": draw.per_token(L, r, r, symmetric=True),
        "m_hat": draw.per_token(L, r, 1),
        "theta_hat": draw.per_token(L, r, t),
    }
    atoms = tuple(
        (
            Rational(weight, 19),
            {
                "gamma": [abs(draw.number()) for _ in range(L)],
                "tau": [draw.number() for _ in range(L)],
                "pi": draw.matrix(t, 1),
            },
        )
        for weight in (7, 12)
    )
    samples = tuple(
        (
            Rational(weight, 11),
            {name: draw.per_token(L, size, 1) for name, size in (("g", r), ("xi", r), ("k", t))},
        )
        for weight in (2, 5, 4)
    )
    scalars = {"r": r, "t": t, "L": L, "alpha": abs(draw.number())}
    values["ridges"] = diag(*(abs(draw.number()) for _ in range(r)))
    return explicit(L, scalars, values, atoms, samples, {conditional_covariance(): roots})


@every_size
def test_derived_expressions_entry_by_entry(explicit, rational, size):
    """The symbolic right-hand sides themselves, before any printing, in exact rational numbers."""
    L, r, t = size
    world = rational_world(explicit, rational, 11, L, r, t)
    v, alpha = world.values, world.sizes["alpha"]
    q, V, m, theta = (
        [zeros(r) for _ in range(L)],
        [zeros(r) for _ in range(L)],
        [zeros(r, 1)] * L,
        [zeros(r, t)] * L,
    )
    for weight, atom in world.atoms:
        gamma, tau, pi = atom["gamma"], atom["tau"], atom["pi"]
        R = (v["ridges"] + sum((gamma[j] * v["V_hat"][j] for j in range(L)), zeros(r))).inv()
        b = sum(
            (tau[j] * v["m_hat"][j] + gamma[j] * v["theta_hat"][j] * pi for j in range(L)),
            zeros(r, 1),
        )
        noise = sum((gamma[j] * v["q_hat"][j] for j in range(L)), zeros(r))
        for l in range(L):
            q[l] = q[l] + weight * gamma[l] * R * (noise + b * b.T) * R
            V[l] = V[l] + weight * gamma[l] * R
            m[l] = m[l] + weight * tau[l] * R * b
            theta[l] = theta[l] + weight * gamma[l] * R * b * pi.T
    expected = {
        "q": q,
        "V": V,
        "m": m,
        "theta": theta,
        "q_hat": [],
        "m_hat": [],
        "theta_hat": [],
        "V_hat": [],
    }
    for l in range(L):
        spread, back = world.roots[conditional_covariance()][l], v["theta"][l] * v["rho"][l].inv()
        mean = {name: zeros(r, c) for name, c in (("gg", r), ("g", 1), ("gx", r), ("gk", t))}
        for weight, fields in world.samples:
            g, xi, k = fields["g"][l], fields["xi"][l], fields["k"][l]
            mean["gg"] += weight * g * g.T
            mean["g"] += weight * g
            mean["gx"] += weight * g * xi.T
            mean["gk"] += weight * g * k.T
        expected["q_hat"].append(alpha * mean["gg"])
        expected["m_hat"].append(alpha * mean["g"])
        raw = -alpha * mean["gx"] * spread.inv()
        expected["V_hat"].append((raw + raw.T) / 2)
        expected["theta_hat"].append(alpha * mean["gk"] * v["rho"][l].inv() + raw * back)
    for name, equation in EQUATIONS.items():
        for l in range(L):
            assert world(equation.right_hand_side, {sym.ell: l}) == expected[name][l], name


@pytest.mark.parametrize("conjugate", ["q_hat", "V_hat", "m_hat", "theta_hat"])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 1, 2), (1, 2, 1), (2, 2, 2)], ids=lambda s: "L{}-r{}-t{}".format(*s))
def test_free_entropy_is_stationary_entry_by_entry(explicit, rational, size, conjugate):
    """SymPy's scalar derivative of -Phi in every entry of a conjugate vanishes exactly at (7)."""
    L, r, t = size
    world = rational_world(explicit, rational, 23, L, r, t)
    solved = world.given(
        **{
            name: [world(EQUATIONS[name].right_hand_side, {sym.ell: l}) for l in range(L)]
            for name in ("q", "V", "m", "theta")
        }
    )
    symmetric = conjugate in {"q_hat", "V_hat"}
    point = world.values[conjugate]

    def name(l, i, j):
        i, j = sorted((i, j)) if symmetric else (i, j)
        return Symbol(f"c_{l}_{i}_{j}")

    unknown = [Matrix(*point[l].shape, lambda i, j, l=l: name(l, i, j)) for l in range(L)]
    values = {name(l, i, j): point[l][i, j] for l in range(L) for i, j in product(*map(range, point[l].shape))}
    total = sum(solved.given(**{conjugate: unknown})(term) for label, term in FREE_ENTROPY if label != "energy")
    for symbol in values:
        assert total.diff(symbol).subs(values) == 0


# --- the mean over the local fields: Price's theorem and Stein's lemma ------------------------


def hermite_nodes(dimension, points):
    """Gauss-Hermite product rule for N(0, I)."""
    x, w = np.polynomial.hermite_e.hermegauss(points)
    grid = np.array(list(product(x, repeat=dimension)))
    weights = np.prod(np.array(list(product(w / w.sum(), repeat=dimension))), axis=1)
    return grid, weights


@dataclass(frozen=True)
class Fields:
    """omega, k and xi of one token (L = 1) on the nodes of a quadrature rule."""

    omega: np.ndarray
    k: np.ndarray
    xi: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, q, m, theta, rho, points):
        r, t = theta.shape
        nodes, weights = hermite_nodes(r + t, points)
        xi, zeta = nodes[:, :r], nodes[:, r:]
        k, back = zeta @ np.linalg.cholesky(rho).T, theta @ np.linalg.inv(rho)
        return cls(m[:, 0] + k @ back.T + xi @ root(q - back @ theta.T), k, xi, weights)

    def mean(self, values):
        return np.tensordot(self.weights, values, axes=([0], [0]))


@pytest.fixture(scope="module")
def smooth():
    """Makes ``f = sin(u.omega + v.k + .4) + (omega^T c k)^2`` and its derivatives, any r and t."""

    def make(rng, r, t):
        u, v, c = (
            rng.uniform(0.3, 0.7, r),
            rng.uniform(-0.6, -0.2, t),
            rng.uniform(0.1, 0.3, (r, t)),
        )

        def f(omega, k):
            return np.sin(omega @ u + k @ v + 0.4) + np.einsum("...i,ij,...j->...", omega, c, k) ** 2

        def g(omega, k):
            """Minus the gradient in omega, as the envelope theorem has it."""
            inner = np.einsum("...i,ij,...j->...", omega, c, k)
            return -(np.cos(omega @ u + k @ v + 0.4)[..., None] * u + 2 * inner[..., None] * (k @ c.T))

        def jacobians(omega, k):
            """dg/domega and dg/dk."""
            wave = np.sin(omega @ u + k @ v + 0.4)[..., None, None]
            inner = np.einsum("...i,ij,...j->...", omega, c, k)[..., None, None]
            left, right = k @ c.T, omega @ c
            by_omega = wave * np.outer(u, u) - 2 * left[..., :, None] * left[..., None, :]
            by_k = wave * np.outer(u, v) - 2 * left[..., :, None] * right[..., None, :] - 2 * inner * c
            return by_omega, by_k

        return f, g, jacobians

    return make


FIELD_SIZES = [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize(("r", "t"), FIELD_SIZES)
def test_stein_forms_are_means_of_derivatives(generated, smooth, r, t):
    """theta_hat = alpha E[dg/dk] and V_hat = -alpha E[dg/domega] for smooth g.

    16-point Gauss-Hermite a dimension; the integrands are entire, quadrature error below 1e-11.
    """
    w = World(31, 1, r, t)
    fields = Fields.of(w.q[0] / 3, w.m[0], w.theta[0] / 3, w.rho[0], 16)
    _, g, jacobians = smooth(w.rng, r, t)
    values = {"q": w.q / 3, "V": w.V, "m": w.m, "theta": w.theta / 3}

    def site_mean(values, token):
        return np.einsum("n,nij->ij", fields.weights, values)

    _, V_hat, _, theta_hat = generated.conjugates_from_overlaps(
        alpha=w.alpha,
        rho=w.rho,
        site_mean=site_mean,
        g=g(fields.omega, fields.k)[None, ..., None],
        xi=fields.xi[None, ..., None],
        k=fields.k[None, ..., None],
        **values,
    )
    by_omega, by_k = (fields.mean(j) for j in jacobians(fields.omega, fields.k))
    np.testing.assert_allclose(theta_hat[0], w.alpha * by_k, rtol=1e-9)
    np.testing.assert_allclose(V_hat[0], -w.alpha * by_omega, rtol=1e-9)


@pytest.mark.parametrize(("r", "t"), FIELD_SIZES)
def test_price_rule(generated, smooth, r, t):
    """Behind (8): m_hat, theta_hat and V_hat are derivatives of the mean of f in its law.

    With alpha = 1 and ``g = -df/domega``: ``dE[f]/dm = -m_hat``, ``dE[f]/dtheta = -theta_hat`` and
    ``dE[f]/dq = V_hat/2``.  Central differences with step 1e-4: tolerance 1e-6 relative.
    """
    w = World(37, 1, r, t)
    f, g, _ = smooth(w.rng, r, t)
    law = {"q": w.q / 3, "m": w.m, "theta": w.theta / 3}

    def mean_f(law):
        fields = Fields.of(law["q"][0], law["m"][0], law["theta"][0], w.rho[0], 16)
        return fields.mean(f(fields.omega, fields.k))

    fields = Fields.of(law["q"][0], law["m"][0], law["theta"][0], w.rho[0], 16)
    _, V_hat, m_hat, theta_hat = generated.conjugates_from_overlaps(
        alpha=1.0,
        rho=w.rho,
        site_mean=lambda values, token: np.einsum("n,nij->ij", fields.weights, values),
        g=g(fields.omega, fields.k)[None, ..., None],
        xi=fields.xi[None, ..., None],
        k=fields.k[None, ..., None],
        V=w.V,
        **law,
    )
    for name, predicted in (("m", -m_hat), ("theta", -theta_hat), ("q", V_hat / 2)):
        measured = finite_gradient(lambda x, name=name: mean_f(law | {name: x}), law[name], symmetric=name == "q")
        np.testing.assert_allclose(measured, predicted, rtol=1e-6, atol=1e-8, err_msg=name)


def finite_gradient(function, point, *, symmetric, step=1e-4):
    """Gradient G with df = Tr(G^T dX) per token, by central differences, entry by entry."""
    result = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        l, i, j = index
        direction = np.zeros_like(point)
        direction[index] = 1.0
        if symmetric:
            direction[l, j, i] = 1.0
        difference = (function(point + step * direction) - function(point - step * direction)) / (2 * step)
        # both mirror images moved at once: the derivative is 2 G_ij
        result[index] = difference / (2 if symmetric and i != j else 1)
    return result


# --- gradients of the free entropy ------------------------------------------------------------


def total(generated, w, envelope_mean, **changed):
    """-Phi with a given value of E[M]."""
    arguments = {**w.prior_arguments(), **w.overlaps(), **w.conjugates(), **changed}
    terms = generated.free_entropy_terms(
        alpha=w.alpha,
        field_mean=lambda values: values,
        envelope=np.full((1, 1), envelope_mean),
        **arguments,
    )
    return sum(float(term) for term in terms.values())


@pytest.mark.parametrize(
    ("conjugate", "overlap", "factor"),
    [("V_hat", "q", -0.5), ("q_hat", "V", 0.5), ("m_hat", "m", 1.0), ("theta_hat", "theta", 1.0)],
)
@every_size
def test_gradient_of_free_entropy_in_conjugates(generated, size, conjugate, overlap, factor):
    """``d(-Phi)/d(conjugate) = factor (overlap - right-hand side of (7))``, anywhere.

    Central differences with step 1e-4: tolerance 1e-6 of the largest entry.
    """
    w = World(41, *size)
    derived = dict(
        zip(
            ("q", "V", "m", "theta"),
            generated.overlaps_from_conjugates(**w.prior_arguments(), **w.conjugates()),
            strict=True,
        )
    )
    expected = factor * (w.overlaps()[overlap] - derived[overlap])
    measured = finite_gradient(
        lambda x: total(generated, w, 0.3, **{conjugate: x}),
        w.conjugates()[conjugate],
        symmetric=conjugate in {"q_hat", "V_hat"},
    )
    np.testing.assert_allclose(measured, expected, atol=1e-6 * np.abs(expected).max())


class QuadraticChannel:
    """``loss = e^T C e / 2``, ``e = h - B k`` over all tokens: the Moreau envelope in closed form.

    Means of second-degree polynomials are exact on the 2^n vertices of a cube.
    """

    def __init__(self, w):
        size = w.length * w.r
        self.w = w
        self.curvature = positive(w.rng, size)
        self.readout = w.rng.normal(size=(size, w.length * w.t))

    def resolvent(self, V):
        """``(V + C^-1)^-1``."""
        return np.linalg.inv(blocks(V) + np.linalg.inv(self.curvature))

    def envelope_mean(self, q, V, m, theta):
        w, readout = self.w, self.readout
        mean = m.reshape(-1, 1)
        cross = blocks(theta) @ readout.T
        second = blocks(q) + mean @ mean.T - cross - cross.T + readout @ blocks(w.rho) @ readout.T
        return np.trace(self.resolvent(V) @ second) / 2

    def fields(self, q, V, m, theta):
        """g, xi, k of shape (L, N, size, 1)."""
        w = self.w
        L, r, t = w.length, w.r, w.t
        nodes = np.array(list(product((-1.0, 1.0), repeat=L * (r + t))))
        xi = nodes[:, : L * r].reshape(-1, L, r)
        zeta = nodes[:, L * r :].reshape(-1, L, t)
        omega, k = np.empty_like(xi), np.empty_like(zeta)
        for l in range(L):
            k[:, l], back = zeta[:, l] @ np.linalg.cholesky(w.rho[l]).T, theta[l] @ np.linalg.inv(w.rho[l])
            omega[:, l] = m[l, :, 0] + k[:, l] @ back.T + xi[:, l] @ root(q[l] - back @ theta[l].T)
        error = omega.reshape(-1, L * r) - k.reshape(-1, L * t) @ self.readout.T
        g = -(error @ self.resolvent(V)).reshape(-1, L, r)
        return tuple(np.moveaxis(x, 1, 0)[..., None] for x in (g, xi, k))


def blocks(matrices):
    """Block-diagonal matrix of one block per token."""
    rows, columns = matrices.shape[1:]
    result = np.zeros((len(matrices) * rows, len(matrices) * columns), dtype=matrices.dtype)
    for l, matrix in enumerate(matrices):
        result[l * rows : (l + 1) * rows, l * columns : (l + 1) * columns] = matrix
    return result


QUADRATIC_SIZES = [size for size in SIZES if size[0] < 3]


@pytest.mark.parametrize("size", QUADRATIC_SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))
@pytest.mark.parametrize(
    ("overlap", "conjugate", "factor"),
    [("q", "V_hat", -0.5), ("V", "q_hat", 0.5), ("m", "m_hat", 1.0), ("theta", "theta_hat", 1.0)],
)
def test_gradient_of_free_entropy_in_overlaps(generated, size, overlap, conjugate, factor):
    """``d(-Phi)/d(overlap) = factor (conjugate - right-hand side of (8))``, anywhere.

    The loss couples the tokens.  The closed form of E[M] knows nothing of Stein's lemma or the
    envelope theorem.
    """
    w = World(43, *size)
    channel = QuadraticChannel(w)
    g, xi, k = channel.fields(**w.overlaps())
    derived = dict(
        zip(
            ("q_hat", "V_hat", "m_hat", "theta_hat"),
            generated.conjugates_from_overlaps(
                alpha=w.alpha, rho=w.rho, site_mean=average, g=g, xi=xi, k=k, **w.overlaps()
            ),
            strict=True,
        )
    )

    def free_entropy(x):
        changed = {**w.overlaps(), overlap: x}
        return total(generated, w, channel.envelope_mean(**changed), **{overlap: x})

    expected = factor * (w.conjugates()[conjugate] - derived[conjugate])
    measured = finite_gradient(free_entropy, w.overlaps()[overlap], symmetric=overlap in {"q", "V"})
    np.testing.assert_allclose(measured, expected, atol=1e-6 * np.abs(expected).max())


# --- form -------------------------------------------------------------------------------------


def test_every_equation_has_its_partner_and_number():
    partners = {e.unknown.name: e.stationary_in.name for e in SADDLE_POINT}
    assert partners == {
        "q": "V_hat", "V": "q_hat", "m": "m_hat", "theta": "theta_hat",
        "q_hat": "V", "V_hat": "q", "m_hat": "m", "theta_hat": "theta",
    }  # fmt: skip
    assert {e.number for e in SADDLE_POINT.overlaps} == {"(7)"}
    assert {e.number for e in SADDLE_POINT.conjugates} == {"(8)"}


def test_no_pointwise_derivative_of_the_proximal_point_is_left():
    for equation in SADDLE_POINT:
        assert not equation.right_hand_side.has(FieldHessian)


# --- observables ------------------------------------------------------------------------------


def derived(generated, w, **changed):
    """Observables of the generated module at a given value of E[M] and of the losses."""
    arguments = {**w.prior_arguments(), **w.conjugates(), "q": w.q, "V": w.V, "alpha": w.alpha, **changed}
    means = {name: np.full((1, 1), 0.3) for name in ("envelope", "loss_at_prox", "loss_at_omega")}
    found = generated.observables(length=w.length, field_mean=lambda values: values, **means, **arguments)
    return {name: float(value) for name, value in found.items()}


def slopes_in_ridges(generated, w):
    """Of the free entropy, by central differences with step 1e-5: half the squared norms of the columns."""
    ends = [[total(generated, w, 0.3, ridge=w.ridge + 1e-5 * sign * e) for sign in (1, -1)] for e in np.eye(w.r)]
    return [(up - down) / 2e-5 for up, down in ends]


@every_size
def test_weight_norm_is_the_derivative_in_the_ridges(generated, size):
    w = World(47, *size)
    assert derived(generated, w)["weight_norm"] == pytest.approx(2 * sum(slopes_in_ridges(generated, w)), rel=1e-6)


@every_size
def test_training_loss_is_the_energy_without_its_couplings(generated, size):
    """(14) and (121), with E[M] = E[loss] = .3 from outside."""
    w = World(53, *size)
    values = derived(generated, w)
    penalty = sum(ridge * slope for ridge, slope in zip(w.ridge, slopes_in_ridges(generated, w), strict=True))
    coupling = sum(np.trace(a @ b) for a, b in zip(w.q_hat, w.V, strict=True)) / 2
    assert values["training_loss"] == pytest.approx(0.3 * w.alpha - coupling + penalty, rel=1e-7)
    assert values["training_loss_direct"] == pytest.approx(0.3 * w.alpha + penalty, rel=1e-7)


@pytest.mark.parametrize("separable", [False, True])
def test_mean_envelope_is_the_derivative_in_alpha(separable):
    free_entropy = derive_free_entropy(GENERIC, separable=separable)
    assert sym.alpha * mean_envelope(free_entropy) == free_entropy.terms["energy"]


def test_observables_of_a_general_regulariser_are_means_of_the_row():
    free_entropy = derive_free_entropy(GENERIC, separable=True)
    assert penalty(free_entropy) == SpectralMean.of(WeightMean.of(RowPenalty(sym.w)))
    assert weight_norm(free_entropy) == SpectralMean.of(Trace(WeightMean.of(sym.w * sym.w.T)))
