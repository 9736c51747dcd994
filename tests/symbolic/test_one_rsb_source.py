"""The generated NumPy of the 1RSB equations, against a local problem whose integrals are known."""

import numpy as np
import pytest

from derivations.codegen.one_rsb import one_rsb_source

POINTS, WEIGHTS = np.polynomial.hermite_e.hermegauss(12)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
ALPHA, Y, RIDGE, RHO = 1.3, 0.37, 0.6, 0.9
# of one token whose loss is (h - k)^2 / 2, away from the fixed point
OVERLAPS = {"q_0": 0.31, "q_1": 0.53, "V": 0.7, "m": 0.23, "theta": 0.27}
CONJUGATES = {"q_hat_0": 0.21, "q_hat_1": 0.44, "V_hat": 0.83, "m_hat": 0.19, "theta_hat": 0.37}


@pytest.fixture(scope="module")
def equations():
    namespace = {}
    exec(one_rsb_source(), namespace)
    return namespace


def arrays(values):
    return {name: np.full((1, 1, 1), value) for name, value in values.items()}


def atoms(columns=1):
    gamma, tau = np.array([0.7, 1.6]), np.array([0.9, -0.4])
    pi = np.array([0.8, 1.1])
    return {
        "ridge": RIDGE,
        "gamma": gamma[None, :, None, None],
        "tau": tau[None, :, None, None],
        "pi": pi[:, None, None],
        "spectral_mean": lambda values: np.tensordot([0.35, 0.65], values, 1),
    }


def quadrature(overlaps):
    """Fields of a square loss on a product rule, which is exact for it but for the tilt."""
    q_0, q_1, V, m, theta = (overlaps[name] for name in ("q_0", "q_1", "V", "m", "theta"))
    xi_0, zeta = np.meshgrid(POINTS, POINTS, indexing="ij")
    k = np.sqrt(RHO) * zeta
    shared = m + theta / RHO * k + np.sqrt(q_0 - theta**2 / RHO) * xi_0
    omega = shared[..., None] + np.sqrt(q_1 - q_0) * POINTS
    envelope = (omega - k[..., None]) ** 2 / (2 * (1 + V))
    return xi_0, k, (k[..., None] - omega) / (1 + V), envelope, np.outer(WEIGHTS, WEIGHTS)


def free_entropy(equations, overlaps, conjugates):
    *_, envelope, outer = quadrature(overlaps)

    def tilted_envelope(y):
        return (outer * np.log(np.exp(-y * envelope) @ WEIGHTS)).sum()

    terms = equations["free_entropy_terms"](
        alpha=ALPHA, y=Y, **atoms(), tilted_envelope=tilted_envelope, **arrays(overlaps), **arrays(conjugates)
    )
    return float(np.squeeze(sum(terms.values())))


def slope(equations, name, step=1e-5):
    def moved(by):
        overlaps, conjugates = (
            {key: value + by * (key == name) for key, value in part.items()} for part in (OVERLAPS, CONJUGATES)
        )
        return free_entropy(equations, overlaps, conjugates)

    return (moved(step) - moved(-step)) / (2 * step)


def test_conjugates_are_where_f_is_stationary_in_the_overlaps(equations):
    xi_0, k, g, envelope, outer = quadrature(OVERLAPS)
    weights = WEIGHTS * np.exp(-Y * envelope)
    weights /= weights.sum(axis=-1, keepdims=True)
    hats = equations["conjugates_from_overlaps"](
        alpha=ALPHA,
        y=Y,
        rho=np.full((1, 1, 1), RHO),
        site_mean=lambda values, site: np.einsum("nm,nmij->ij", outer, values),
        tilted=lambda values: np.einsum("...j,...jab->...ab", weights, values),
        g=[g[..., None, None]],
        xi_0=[xi_0[..., None, None]],
        xi_1=[np.broadcast_to(POINTS, g.shape)[..., None, None]],
        k=[k[..., None, None]],
        **arrays(OVERLAPS),
    )
    right = dict(
        zip(("q_hat_0", "q_hat_1", "V_hat", "m_hat", "theta_hat"), map(float, map(np.squeeze, hats)), strict=True)
    )
    off = {name: CONJUGATES[name] - value for name, value in right.items()}
    # derivative of F in each overlap; V_hat's equation holds q_hat_1 at its own value
    assert slope(equations, "V") == pytest.approx(off["q_hat_1"] / 2, rel=1e-6)
    assert slope(equations, "q_0") == pytest.approx(-Y / 2 * off["q_hat_0"], rel=1e-6)
    assert slope(equations, "q_1") == pytest.approx(-(off["V_hat"] - Y * off["q_hat_1"]) / 2, rel=1e-6)
    assert slope(equations, "m") == pytest.approx(off["m_hat"], rel=1e-6)
    assert slope(equations, "theta") == pytest.approx(off["theta_hat"], rel=1e-6)


def test_overlaps_are_where_f_is_stationary_in_the_conjugates(equations):
    images = equations["overlaps_from_conjugates"](y=Y, **atoms(), **arrays(CONJUGATES))
    right = dict(zip(OVERLAPS, map(float, map(np.squeeze, images)), strict=True))
    off = {name: OVERLAPS[name] - value for name, value in right.items()}
    assert slope(equations, "q_hat_0") == pytest.approx(-Y / 2 * off["q_0"], rel=1e-6)
    assert slope(equations, "V_hat") == pytest.approx(-off["q_1"] / 2, rel=1e-6)
    assert slope(equations, "q_hat_1") == pytest.approx((off["V"] + Y * off["q_1"]) / 2, rel=1e-6)
    assert slope(equations, "m_hat") == pytest.approx(off["m"], rel=1e-6)
    assert slope(equations, "theta_hat") == pytest.approx(off["theta"], rel=1e-6)


def test_overlaps_of_matrices_that_do_not_commute(equations):
    """At r = 2: the prior's part of F, varied in every entry of a conjugate, with both tokens' atoms."""
    rng, tokens, r, t = np.random.default_rng(3), 2, 2, 1

    def positive(size):
        root = rng.normal(size=(tokens, r, r))
        return size * (np.eye(r) + root @ root.mT)

    hats = {"q_hat_0": positive(0.05), "V_hat": positive(0.4)}
    hats["q_hat_1"] = hats["q_hat_0"] + positive(0.05)
    hats |= {"m_hat": rng.normal(size=(tokens, r, 1)), "theta_hat": rng.normal(size=(tokens, r, t))}
    gamma, tau = rng.uniform(0.5, 1.5, (tokens, 3, 1, 1)), rng.normal(size=(tokens, 3, 1, 1))
    world = {"ridge": RIDGE, "gamma": gamma, "tau": tau, "pi": rng.normal(size=(3, t, 1))}
    world["spectral_mean"] = lambda values: np.tensordot([0.2, 0.5, 0.3], values, 1)
    nothing = np.zeros((tokens, r, r))
    order = ("q_hat_0", "q_hat_1", "V_hat", "m_hat", "theta_hat")

    def prior(values):
        terms = equations["free_entropy_terms"](
            alpha=1.0, y=Y, **world, tilted_envelope=lambda y: 0.0, q_0=nothing, q_1=nothing, V=nothing,
            m=0 * hats["m_hat"], theta=0 * hats["theta_hat"], **values,
        )  # fmt: skip
        return float(terms["prior"])

    q_0, q_1, V, m, theta = equations["overlaps_from_conjugates"](y=Y, **world, **{name: hats[name] for name in order})
    expected = {
        "q_hat_0": Y / 2 * q_0,
        "V_hat": q_1 / 2,
        "q_hat_1": -(V + Y * q_1) / 2,
        "m_hat": -m,
        "theta_hat": -theta,
    }
    for name, gradient in expected.items():
        for place in np.ndindex(hats[name].shape):
            step = np.zeros(hats[name].shape)
            step[place] = 1e-6
            symmetric = name not in ("m_hat", "theta_hat")
            step = (step + step.mT) / 2 if symmetric else step
            moved = [prior(hats | {name: hats[name] + side * step}) for side in (1, -1)]
            assert (moved[0] - moved[1]) / 2e-6 == pytest.approx(gradient[place], rel=1e-6, abs=1e-8), (name, place)
