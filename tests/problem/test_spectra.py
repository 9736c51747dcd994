"""The spectral measure against vectors and matrices that have it: of problems, of finite matrices, in files."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import attnphase as ap
from attnphase.errors import SpectrumError

CLUSTERS: list[list[dict[str, Any]]] = [
    [{"sigma": 0.5, "mean": [1.5, 0.2]}, {"sigma": 0.4, "mean": [-1.1, 0.6]}],
    [{"sigma": 0.3}, {"sigma": 0.7, "mean": [0.4, 0.9]}],
]
SEEDS = st.integers(0, 2**32 - 1)


def assert_same_measure(one: ap.Spectrum, other: ap.Spectrum) -> None:
    for name in ("weights", "gamma", "mean", "covariance", "teacher_means"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-12, atol=1e-14, err_msg=name)


def test_a_mixture_against_vectors_with_the_same_products():
    problem = ap.Problem(
        tokens={
            "kind": "mixture",
            "clusters": CLUSTERS,
            "mean_positions": [[0.2, -0.1], [0.3, 0.15]],
            "mean_teacher": [[0.1, 0.25], [0.3, -0.2]],
        },
        positions={"gram": [[1.3, 0.2], [0.2, 0.9]], "teacher": [[0.4, -0.3], [0.1, 0.2]]},
        teacher={"rank": 2},
    )
    spectrum, root = ap.Spectrum.of(problem), np.linalg.cholesky(problem.joint_gram)
    e, p, teacher = root[:2], root[2:4], root[4:]
    means = np.array([c.get("mean", [0.0, 0.0]) for row in CLUSTERS for c in row]) @ e
    vectors = np.concatenate([means + p[[0, 0, 1, 1]], teacher])
    np.testing.assert_allclose(spectrum.second_moments[0], vectors @ vectors.T, atol=1e-14)
    np.testing.assert_allclose(spectrum.teacher_means, means @ teacher.T, atol=1e-14)
    np.testing.assert_allclose(spectrum.gamma[:, 0], [0.25, 0.16, 0.09, 0.49])
    np.testing.assert_allclose(spectrum.rho, spectrum.gamma[:, :1, None] * np.eye(2), atol=1e-14)
    weights, gamma, tau, pi = spectrum.points()
    at = np.concatenate([tau, pi.T])
    for power in range(4):  # second moments of (tau, pi) given the eigenvalues, through powers of these
        expected = np.einsum("a,a,aij->ij", spectrum.weights, spectrum.gamma[0] ** power, spectrum.second_moments)
        found = np.einsum("a,a,ia,ja->ij", weights, gamma[0] ** power, at, at)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12 * np.abs(spectrum.second_moments).max())


def test_teacher_means_of_atoms_are_weighted():
    """``m* = sum_a weight_a mu_a pi_a``: atoms count by their weight."""
    atoms = [
        {"weight": 0.8, "variances": [0.2, 0.3], "means": [0.5, -0.2], "teacher": [1.1]},
        {"weight": 0.2, "variances": [0.4, 0.1], "means": [-0.3, 0.7], "teacher": [-0.6]},
    ]
    problem = ap.Problem(tokens={"kind": "mixture", "clusters": [[{}], [{}]], "spectrum": atoms})
    expected = [0.8 * 0.5 * 1.1 + 0.2 * 0.3 * 0.6, -0.8 * 0.2 * 1.1 - 0.2 * 0.7 * 0.6]
    np.testing.assert_allclose(ap.Spectrum.of(problem).teacher_means[:, 0], expected, rtol=1e-12)


POWER = 1.2 / (1 + 2**-1.2 + 3**-1.2) * np.arange(1, 4)[:, None] ** -1.2 * [1, 1]
READY: dict[str, tuple[ap.Spectrum, dict[str, Any], Any, Any]] = {
    "isotropic": (ap.Spectrum.isotropic([0.3, 0.7]), {"variance": [0.3, 0.7]}, [1.0], [[0.3, 0.7]]),
    "power-law": (
        ap.Spectrum.power_law(1.2, 0.4, 3),
        {"exponent": 1.2, "variance": 0.4, "atoms": 3},
        [1 / 3] * 3,
        POWER,
    ),
    "two-level": (
        ap.Spectrum.two_level((0.1, 0.4), 0.3),
        {"variances": [0.1, 0.4], "fraction": 0.3},
        [0.3, 0.7],
        [[0.1, 0.1], [0.4, 0.4]],
    ),
}


@pytest.mark.parametrize("kind", READY)
def test_ready_made_spectra(kind: str, tmp_path: Any):
    spectrum, law, weights, variances = READY[kind]
    problem = ap.Problem(tokens={"spectrum": {"kind": kind, **law}})
    for found, expected in zip(problem.spectrum_atoms(), (weights, variances), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)
    assert_same_measure(spectrum, ap.Spectrum.of(problem))
    spectrum.to_csv(tmp_path / "atoms.csv")
    read, given_ones = (ap.Problem(tokens={"spectrum": x}) for x in (str(tmp_path / "atoms.csv"), spectrum.atoms()))
    assert read == given_ones
    assert_same_measure(spectrum, ap.Spectrum.of(read))


def matrices(seed: int, d: int, count: int, levels: int = 0) -> tuple[np.random.Generator, list[NDArray[np.float64]]]:
    """Random commuting covariances; few levels make their eigenvalues degenerate."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
    values = generator.uniform(0.1, 1.0, (count, levels or d))
    if levels:
        values = values[:, generator.integers(0, levels, d)]
    return generator, [(basis * gamma) @ basis.T for gamma in values]


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 12), st.integers(0, 3))
def test_matrices_and_vectors_have_the_moments_and_make_a_problem(seed: int, d: int, levels: int):
    generator, flat = matrices(seed, d, 3, levels)
    means, positions = ([generator.normal(size=d) / np.sqrt(d) for _ in range(count)] for count in (3, 2))
    teacher = generator.normal(size=(d, 2))
    spectrum = ap.Spectrum.from_matrices([flat[:2], flat[2:]], positions, teacher, [means[:2], means[2:]])
    at = np.stack([mean + positions[token] for mean, token in zip(means, (0, 0, 1), strict=True)])
    vectors, products = np.concatenate([np.sqrt(d) * at, teacher.T]), ("a,aij->ij", "a,a,aij->ij", "a,a,a,aij->ij")
    for order, (first, second) in enumerate(((None, None), (0, None), (1, 2))):
        chosen = [place for place in (first, second) if place is not None]
        matrix = np.linalg.multi_dot([np.eye(d), np.eye(d), *(flat[place] for place in chosen)])
        found = np.einsum(
            products[order], spectrum.weights, *(spectrum.gamma[place] for place in chosen), spectrum.second_moments
        )
        np.testing.assert_allclose(found, vectors @ matrix @ vectors.T / d, atol=1e-9)
    np.testing.assert_allclose(spectrum.rho[1], teacher.T @ flat[1] @ teacher / d, atol=1e-10)
    np.testing.assert_allclose(spectrum.teacher_means, np.stack(means) @ teacher / np.sqrt(d), atol=1e-12)
    np.testing.assert_allclose(spectrum.site_variances, [np.trace(m) / d for m in flat], atol=1e-10)
    tokens = {"kind": "mixture", "clusters": [[{}, {}], [{}]], "spectrum": spectrum.atoms()}
    problem = ap.Problem(tokens=tokens, teacher={"rank": 2})
    assert_same_measure(ap.Spectrum.of(problem), spectrum)
    np.testing.assert_allclose(problem.positions_gram, np.stack(positions) @ np.stack(positions).T, atol=1e-12)


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 24), st.sampled_from([1e-3, 1.0, 1e3]))
def test_singular_matrices_make_a_problem(seed: int, d: int, scale: float):
    """Zero eigenvalues come out of rounding on either side; on other directions even the product is all rounding."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
    values = scale * generator.uniform(0.1, 1.0, (3, d))
    values[0, : d // 2] = values[1, d // 2 :] = 0.0
    spectrum = ap.Spectrum.from_matrices([(basis * gamma) @ basis.T for gamma in values])
    problem = ap.Problem(tokens={"length": 3, "spectrum": spectrum.atoms()})
    np.testing.assert_allclose(problem.site_variances, values.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(spectrum.gamma.prod(axis=0), 0, atol=1e-12 * scale**3)
    together = np.einsum("a,sa,ra->sr", spectrum.weights, spectrum.gamma, spectrum.gamma)
    np.testing.assert_allclose(together, values @ values.T / d, rtol=1e-10, atol=1e-13 * scale**2)


def test_matrices_that_do_not_commute_are_refused_with_the_pair_and_the_size():
    """A commutator far below the matrices' norms is seen against their product."""
    _, (first, second) = matrices(1, 9, 2)
    _, (third,) = matrices(2, 9, 1)
    product = second @ third
    size = np.linalg.norm(product - product.T) / np.linalg.norm(product)
    with pytest.raises(SpectrumError, match=r"covariances\[0\]\[0\] and covariances\[1\]\[0\] do not") as refused:
        ap.Spectrum.from_matrices([[second, np.eye(9)], [third]])
    assert f"{size:.2g} of that of their product" in str(refused.value)
    root = np.array([[0.0, 1e-7], [1e-7, 1.0]])
    for pair in ([first, second + 1e-5 * third], [np.diag([1.0, 0.0]), root @ root.T]):
        with pytest.raises(SpectrumError, match="do not commute"):
            ap.Spectrum.from_matrices(pair)
