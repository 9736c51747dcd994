"""The saddle point, as `attnphase derive` prints it, against theory.md section 3, typed again, and the free entropy."""

from itertools import product

import numpy as np
import pytest
from toys import executed

import attnphase as ap

SIZES = [(length, r, t) for length in (1, 2, 3) for r in (1, 2) for t in (1, 2)]
every_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: "L{}-r{}-t{}".format(*s))
OVERLAPS, CONJUGATES = ("q", "V", "m", "theta"), ("q_hat", "V_hat", "m_hat", "theta_hat")
# d(-Phi)/d(one) = factor (the other - the right-hand side of its equation)
PARTNERS = [("q", "V_hat", -0.5), ("V", "q_hat", 0.5), ("m", "m_hat", 1.0), ("theta", "theta_hat", 1.0)]


@pytest.fixture(scope="module")
def printed():
    return executed(ap.derive().python)


def positive(rng, *shape):
    factor = rng.normal(size=(*shape, shape[-1]))
    return factor @ factor.mT / shape[-1] + 0.3 * np.eye(shape[-1])


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.sqrt(values)) @ vectors.T


class World:
    """Random positive definite matrices and a few spectral atoms, nothing at a special value."""

    def __init__(self, seed, length, r, t):
        rng = np.random.default_rng([seed, length, r, t])
        self.rng, self.length, self.r, self.t = rng, length, r, t
        self.alpha, self.ridge = rng.uniform(0.3, 2.5), rng.uniform(0.2, 0.9, r)
        self.weights = rng.dirichlet(np.full(4, 3.0))
        self.gamma, self.tau = rng.uniform(0.2, 1.8, (length, 4)), rng.normal(size=(length, 4))
        self.pi = rng.normal(size=(4, t))
        self.q, self.V, self.q_hat = (positive(rng, length, r) for _ in range(3))
        self.m, self.m_hat = rng.normal(size=(2, length, r, 1))
        self.theta, self.theta_hat = rng.normal(size=(2, length, r, t))
        # and so is the joint covariance (q, theta; theta^T, rho)
        self.rho = positive(rng, length, t) + self.theta.mT @ np.linalg.inv(self.q) @ self.theta
        # of any sign, as long as every resolvent stays positive
        raw = rng.normal(size=(length, r, r))
        self.V_hat = 0.04 * (raw + raw.mT) + 0.1 * np.eye(r)

    def atoms(self):
        atoms = {"gamma": self.gamma[:, :, None, None], "tau": self.tau[:, :, None, None], "pi": self.pi[:, :, None]}
        return atoms | {"spectral_mean": lambda values: np.tensordot(self.weights, values, axes=1)}

    def named(self, names):
        return {name: getattr(self, name) for name in names}


def theory_overlaps(w):
    """Equation (7): loops over atoms and tokens, one matrix at a time."""
    L, r, t = w.length, w.r, w.t
    q, V, m, theta = (np.zeros((L, r, columns)) for columns in (r, r, 1, t))
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


def theory_conjugates(w, g, xi, k):
    """Equation (8), with the mean over samples (L, N, size): omega is ``m + q^1/2 x`` for x made of xi and k."""
    q_hat, m_hat, theta_hat, V_hat = [], [], [], []
    for l in range(w.length):
        q_inverse, q_root_inverse = np.linalg.inv(w.q[l]), np.linalg.inv(root(w.q[l]))
        back = w.theta[l] @ np.linalg.inv(w.rho[l])
        x = (xi[l] @ root(w.q[l] - back @ w.theta[l].T) + k[l] @ back.T) @ q_root_inverse
        conditional = w.rho[l] - w.theta[l].T @ q_inverse @ w.theta[l]
        deviation = k[l] - x @ (w.theta[l].T @ q_root_inverse).T
        N = len(x)
        q_hat.append(w.alpha * g[l].T @ g[l] / N)
        m_hat.append(w.alpha * g[l].mean(axis=0)[:, None])
        theta_hat.append(w.alpha * (g[l].T @ deviation / N) @ np.linalg.inv(conditional))
        raw = theta_hat[l] @ w.theta[l].T @ q_inverse - w.alpha * (g[l].T @ x / N) @ q_root_inverse
        V_hat.append((raw + raw.T) / 2)
    return tuple(np.stack(x) for x in (q_hat, V_hat, m_hat, theta_hat))


def moments_of(g, xi, k):
    """Means over the samples, on the last axis but one."""
    return {"g": g.mean(axis=-2)[..., None]} | {
        f"g_{name}": g.mT @ x / g.shape[-2] for name, x in (("g", g), ("xi", xi), ("k", k))
    }


def assert_close(values, expected, tolerance):
    for value, one in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, one, rtol=tolerance, atol=tolerance * np.abs(one).max())


@every_size
@pytest.mark.parametrize("seed", [3, 4])
def test_overlaps_are_theory_section_3(printed, size, seed):
    w = World(seed, *size)
    derived = printed.overlaps_from_conjugates(ridge=w.ridge, **w.atoms(), **w.named(CONJUGATES))
    assert_close(derived, theory_overlaps(w), 1e-12)


@every_size
def test_conjugates_are_theory_section_3(printed, size):
    """The printed form has omega given k, section 3 has k given omega: on any samples they are the same.

    Three replicates stand between the tokens and the samples, as in `attnphase`.
    """
    w = World(7, *size)
    g, xi = w.rng.normal(0.3, 1.4, (2, w.length, 3, 20, w.r))
    k = w.rng.normal(-0.2, 0.8, (w.length, 3, 20, w.t))
    overlaps = {name: value[:, None] for name, value in w.named((*OVERLAPS, "rho")).items()}
    derived = printed.conjugates_from_moments(alpha=w.alpha, **moments_of(g, xi, k), **overlaps)
    for one in range(3):
        expected = theory_conjugates(w, g[:, one], xi[:, one], k[:, one])
        assert_close([value[:, one] for value in derived], expected, 1e-10)


def test_overlaps_of_other_regularisers_are_moments_of_the_rows():
    separable = executed(ap.derive(ap.Problem().with_fields({"regularizer.kind": "lasso"})).python)
    w = World(6, 2, 2, 2)
    rows, chi = w.rng.normal(size=(4, 2, 1)), positive(w.rng, 4, 2)
    found = separable.overlaps_from_conjugates(w=rows, chi=chi, **w.atoms(), **w.named(CONJUGATES))
    mean = {"q": ("gamma", rows @ rows.mT), "V": ("gamma", chi), "m": ("tau", rows)}
    mean["theta"] = ("gamma", rows @ w.pi[:, None])
    for value, (factor, matrix) in zip(found, mean.values(), strict=True):
        expected = np.einsum("a,la,aij->lij", w.weights, getattr(w, factor), matrix)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    free_entropy = separable.free_entropy_terms(
        alpha=w.alpha, w=rows, chi=chi, penalty=np.ones(4), row_minimum=np.arange(4.0), field_mean=lambda x: x,
        envelope=np.full((1, 1), 0.3), **w.atoms(), **w.named((*OVERLAPS, *CONJUGATES)),
    )  # fmt: skip
    assert free_entropy["prior"] == pytest.approx(w.weights @ np.arange(4))


def slope(function, point, *, symmetric, step=1e-4):
    """Gradient G with df = Tr(G^T dX) per token, by central differences, entry by entry."""
    result = np.zeros_like(point)
    for l, i, j in np.ndindex(point.shape):
        direction = np.zeros_like(point)
        direction[l, i, j] = 1.0
        if symmetric:  # both mirror images move at once: the derivative is 2 G_ij
            direction[l, j, i] = 1.0
        difference = (function(point + step * direction) - function(point - step * direction)) / (2 * step)
        result[l, i, j] = difference / (2 if symmetric and i != j else 1)
    return result


def free_entropy(printed, w, mean_envelope, **changed):
    """-Phi with a given value of E[M]."""
    arguments = {"ridge": w.ridge, **w.atoms(), **w.named((*OVERLAPS, *CONJUGATES)), **changed}
    means = {"field_mean": lambda values: values, "envelope": np.full((1, 1), mean_envelope)}
    return sum(map(float, printed.free_entropy_terms(alpha=w.alpha, **means, **arguments).values()))


@pytest.mark.parametrize(("overlap", "conjugate", "factor"), PARTNERS)
@every_size
def test_free_entropy_is_stationary_in_conjugates_at_the_overlaps(printed, size, overlap, conjugate, factor):
    """Anywhere: central differences with step 1e-4, tolerance 1e-6 of the largest entry."""
    w = World(41, *size)
    derived = printed.overlaps_from_conjugates(ridge=w.ridge, **w.atoms(), **w.named(CONJUGATES))
    expected = factor * (getattr(w, overlap) - derived[OVERLAPS.index(overlap)])
    symmetric = conjugate in {"q_hat", "V_hat"}
    measured = slope(
        lambda x: free_entropy(printed, w, 0.3, **{conjugate: x}), getattr(w, conjugate), symmetric=symmetric
    )
    np.testing.assert_allclose(measured, expected, atol=1e-6 * np.abs(expected).max())


def blocks(matrices):
    """Block-diagonal matrix of one block per token."""
    rows, columns = matrices.shape[1:]
    result = np.zeros((len(matrices) * rows, len(matrices) * columns))
    for l, matrix in enumerate(matrices):
        result[l * rows : (l + 1) * rows, l * columns : (l + 1) * columns] = matrix
    return result


class QuadraticChannel:
    """``loss = e^T C e / 2``, ``e = h - B k`` over all tokens: the Moreau envelope in closed form.

    Means of second-degree polynomials are exact on the 2^n vertices of a cube.
    """

    def __init__(self, w):
        self.w, size = w, w.length * w.r
        self.curvature, self.readout = positive(w.rng, size), w.rng.normal(size=(size, w.length * w.t))

    def resolvent(self, V):
        return np.linalg.inv(blocks(V) + np.linalg.inv(self.curvature))

    def mean_envelope(self, q, V, m, theta):
        mean, cross = m.reshape(-1, 1), blocks(theta) @ self.readout.T
        second = blocks(q) + mean @ mean.T - cross - cross.T + self.readout @ blocks(self.w.rho) @ self.readout.T
        return np.trace(self.resolvent(V) @ second) / 2

    def fields(self, q, V, m, theta):
        """g, xi, k of shape (L, N, size)."""
        w = self.w
        nodes = np.array(list(product((-1.0, 1.0), repeat=w.length * (w.r + w.t))))
        xi = nodes[:, : w.length * w.r].reshape(-1, w.length, w.r)
        zeta = nodes[:, w.length * w.r :].reshape(-1, w.length, w.t)
        omega, k = np.empty_like(xi), np.empty_like(zeta)
        for l in range(w.length):
            k[:, l], back = zeta[:, l] @ np.linalg.cholesky(w.rho[l]).T, theta[l] @ np.linalg.inv(w.rho[l])
            omega[:, l] = m[l, :, 0] + k[:, l] @ back.T + xi[:, l] @ root(q[l] - back @ theta[l].T)
        error = omega.reshape(len(nodes), -1) - k.reshape(len(nodes), -1) @ self.readout.T
        g = -(error @ self.resolvent(V)).reshape(xi.shape)
        return (np.moveaxis(x, 1, 0) for x in (g, xi, k))


@pytest.mark.parametrize("size", [s for s in SIZES if s[0] < 3], ids=lambda s: "L{}-r{}-t{}".format(*s))
@pytest.mark.parametrize(("overlap", "conjugate", "factor"), PARTNERS)
def test_free_entropy_is_stationary_in_overlaps_at_the_conjugates(printed, size, overlap, conjugate, factor):
    """The loss couples the tokens; the closed form of E[M] knows nothing of Stein's lemma or the envelope theorem."""
    w = World(43, *size)
    channel, overlaps = QuadraticChannel(w), w.named(OVERLAPS)
    moments = moments_of(*channel.fields(**overlaps))
    derived = printed.conjugates_from_moments(alpha=w.alpha, rho=w.rho, **moments, **overlaps)

    def moved(x):
        return free_entropy(printed, w, channel.mean_envelope(**overlaps | {overlap: x}), **{overlap: x})

    expected = factor * (getattr(w, conjugate) - derived[CONJUGATES.index(conjugate)])
    measured = slope(moved, overlaps[overlap], symmetric=overlap in {"q", "V"})
    np.testing.assert_allclose(measured, expected, atol=1e-6 * np.abs(expected).max())


@every_size
def test_observables_are_derivatives_of_the_free_entropy(printed, size):
    """The weights' norm and penalty by slopes in the ridges; the training loss is (14) and (121), with E[M] = .3."""
    w = World(47, *size)
    means = {"envelope": 0.3, "loss_at_prox": 0.17, "loss_at_omega": 0.29}
    found = printed.observables(
        alpha=w.alpha, ridge=w.ridge, length=w.length, q=w.q, V=w.V, field_mean=lambda values: values, **w.atoms(),
        **{name: np.full((1, 1), value) for name, value in means.items()}, **w.named(CONJUGATES),
    )  # fmt: skip
    ends = [[free_entropy(printed, w, 0.3, ridge=w.ridge + 1e-5 * s * e) for s in (1, -1)] for e in np.eye(w.r)]
    slopes = np.array([(up - down) / 2e-5 for up, down in ends])  # half the squared norms of the columns
    coupling = sum(np.trace(a @ b) for a, b in zip(w.q_hat, w.V, strict=True)) / 2
    expected = {
        "training_loss": 0.3 * w.alpha - coupling + w.ridge @ slopes,
        "training_loss_direct": 0.17 * w.alpha + w.ridge @ slopes,
        "weight_norm": 2 * slopes.sum(),
        "test_error": 2 * 0.29 / w.length,
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected, rel=1e-6)
