"""The spectral measure: of problems, of finite matrices, in files."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnphase.errors import ProblemError, SpectrumError
from attnphase.problem import Positions, Problem, SpectrumLaw, Teacher, Tokens, load_problem
from attnphase.spectrum import Spectrum, read_csv

CLUSTERS = [
    [{"sigma": 0.5, "mean": [1.5, 0.2]}, {"sigma": 0.4, "mean": [-1.1, 0.6]}],
    [{"sigma": 0.3}, {"sigma": 0.7, "mean": [0.4, 0.9]}],
]


def correlated():
    """A mixture whose directions, encodings and teacher all have products."""
    return Problem.from_dict(
        {
            "tokens": {
                "kind": "mixture",
                "clusters": CLUSTERS,
                "mean_positions": [[0.2, -0.1], [0.3, 0.15]],
                "mean_teacher": [[0.1, 0.25], [0.3, -0.2]],
            },
            "positions": {"gram": [[1.3, 0.2], [0.2, 0.9]], "teacher": [[0.4, -0.3], [0.1, 0.2]]},
            "teacher": {"rank": 2},
        }
    )


def assert_same_measure(one, other, **tolerance):
    for name in ("weights", "gamma", "mean", "covariance", "teacher_means"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **tolerance)


def assert_points_have_the_moments(spectrum):
    """Second moments of (tau, pi), summed over the points that share an atom's eigenvalues."""
    weights, gamma, tau, pi = spectrum.points()
    vectors = np.concatenate([tau, pi.T])
    np.testing.assert_allclose(weights.sum(), 1, rtol=1e-12)
    scale = np.abs(spectrum.second_moments).max()
    for power in range(4):  # moments given gamma, through functions of it
        expected = np.einsum("a,a,aij->ij", spectrum.weights, spectrum.gamma[0] ** power, spectrum.second_moments)
        found = np.einsum("a,a,ia,ja->ij", weights, gamma[0] ** power, vectors, vectors)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12 * scale)


# --- of problems ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        Problem(),
        Problem(tokens=Tokens(length=3, sigma=(0.4, 0.7, 1.1)), teacher=Teacher(rank=2)),
        Problem(tokens=Tokens(spectrum=SpectrumLaw(kind="power-law", exponent=0.8, atoms=5))),
    ],
)
def test_independent_encodings_and_teacher_become_p_plus_t_points_an_eigenvalue(problem):
    spectrum = Spectrum.of(problem)
    length, rank = problem.tokens.length, problem.teacher.rank
    weights, gamma, tau, pi = spectrum.points()
    atoms, count = len(problem.spectrum_atoms()[0]), length + rank
    assert gamma.shape == tau.shape == (length, atoms * count)
    assert pi.shape == (atoms * count, rank)
    np.testing.assert_allclose(weights, np.repeat(problem.spectrum_atoms()[0] / count, count))
    first = slice(0, count)
    np.testing.assert_array_equal(tau[:, length:count], 0)  # points of the teacher alone, then
    np.testing.assert_array_equal(pi[:length], 0)  # points of the encodings alone
    np.testing.assert_allclose(tau[:, first] @ tau[:, first].T / count, problem.positions_gram, atol=1e-14)
    np.testing.assert_allclose(pi[first].T @ pi[first] / count, np.eye(rank), atol=1e-14)
    np.testing.assert_allclose(spectrum.rho, problem.token_variances[:, None, None] * np.eye(rank))
    np.testing.assert_allclose(spectrum.site_variances, problem.token_variances)
    assert not spectrum.teacher_means.any()


def test_a_mixture_against_vectors_with_the_same_products():
    """Build e, p and Q from a root of the joint Gram matrix, and all moments from them."""
    problem = correlated()
    spectrum = Spectrum.of(problem)
    root = np.linalg.cholesky(problem.joint_gram)
    e, p, teacher = root[:2], root[2:4], root[4:]
    means = [np.array(c.get("mean", [0.0, 0.0])) @ e for row in CLUSTERS for c in row]
    tokens = [0, 0, 1, 1]
    vectors = np.stack([*(mu + p[l] for mu, l in zip(means, tokens, strict=True)), *teacher])
    np.testing.assert_allclose(spectrum.second_moments[0], vectors @ vectors.T, atol=1e-14)
    np.testing.assert_allclose(spectrum.teacher_means, np.stack(means) @ teacher.T, atol=1e-14)
    np.testing.assert_allclose(spectrum.gamma[:, 0], [0.25, 0.16, 0.09, 0.49])
    np.testing.assert_allclose(spectrum.rho, spectrum.gamma[:, :1, None] * np.eye(2), atol=1e-14)
    assert_points_have_the_moments(spectrum)


def test_one_cluster_without_mean_is_gaussian():
    mixed = Problem.from_dict({"tokens": {"kind": "mixture", "clusters": [[{"sigma": 0.4}], [{"sigma": 0.7}]]}})
    assert_same_measure(Spectrum.of(mixed), Spectrum.of(Problem(tokens=Tokens(sigma=(0.4, 0.7)))), rtol=1e-14)


def test_points_on_atoms_leave_the_rest_gaussian():
    """Encodings on atoms, clusters' means and teacher not: their covariance stays."""
    atoms = [
        {"weight": 0.4, "variances": [0.1, 0.2, 0.3, 0.4], "positions": [1.1, -0.7]},
        {"weight": 0.6, "variances": [0.5, 0.4, 0.3, 0.2], "positions": [0.3, 0.9]},
    ]
    clusters = [[{"mean": [1.5]}, {"mean": [-0.4]}], [{"mean": [0.7]}, {}]]
    problem = Problem.from_dict(
        {"tokens": {"kind": "mixture", "clusters": clusters, "spectrum": atoms, "mean_teacher": [[0.3]]}}
    )
    spectrum = Spectrum.of(problem)
    means = np.array([1.5, -0.4, 0.7, 0.0])
    np.testing.assert_allclose(spectrum.mean, [[1.1, 1.1, -0.7, -0.7, 0], [0.3, 0.3, 0.9, 0.9, 0]])
    vectors = np.array([*means, 0.3])
    expected = np.outer(vectors, vectors)
    expected[4, 4] = 1.0
    np.testing.assert_allclose(spectrum.covariance, [expected, expected], atol=1e-14)
    np.testing.assert_allclose(spectrum.teacher_means[:, 0], 0.3 * means)
    assert_points_have_the_moments(spectrum)


# --- of matrices ----------------------------------------------------------------------------


def matrices(seed, d, count, levels):
    """Random commuting covariances; few `levels` make their eigenvalues degenerate."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
    values = generator.uniform(0.1, 1.0, (count, d))
    if levels:
        values = generator.uniform(0.1, 1.0, (count, levels))[:, generator.integers(0, levels, d)]
    return generator, [(basis * gamma) @ basis.T for gamma in values]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 24), st.integers(1, 3), st.integers(0, 3), st.integers(1, 2))
def test_moments_of_matrices(seed, d, length, levels, t):
    generator, covariances = matrices(seed, d, length, levels)
    positions = generator.normal(size=(length, d)) / np.sqrt(d)
    teacher = generator.normal(size=(d, t))
    spectrum = Spectrum.from_matrices(covariances, positions, teacher)
    vectors = np.concatenate([np.sqrt(d) * positions, teacher.T])
    weights, moments = spectrum.weights, spectrum.second_moments
    np.testing.assert_allclose(np.einsum("a,aij->ij", weights, moments), vectors @ vectors.T / d, atol=1e-10)
    for l, first in enumerate(covariances):
        np.testing.assert_allclose(spectrum.rho[l], teacher.T @ first @ teacher / d, atol=1e-10)
        for k, second in enumerate(covariances):
            found = np.einsum("a,a,a,aij->ij", weights, spectrum.gamma[l], spectrum.gamma[k], moments)
            np.testing.assert_allclose(found, vectors @ first @ second @ vectors.T / d, atol=1e-10)
    np.testing.assert_allclose(spectrum.site_variances, [np.trace(m) / d for m in covariances], atol=1e-10)


def test_eigenvalues_that_only_together_tell_directions_apart():
    """Each matrix has large eigenspaces, and eigenvalues that differ by less than the first combination resolves."""
    generator = np.random.default_rng(3)
    d = 60
    basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
    first = np.where(np.arange(d) < 30, 0.2, 0.7)
    second = np.where(np.arange(d) % 2, 0.4, 0.5)
    third = 0.3 + 1e-8 * (np.arange(d) % 3)
    covariances = [(basis * gamma) @ basis.T for gamma in (first, second, third)]
    positions, teacher = generator.normal(size=(3, d)) / np.sqrt(d), generator.normal(size=(d, 1))
    spectrum = Spectrum.from_matrices(covariances, positions, teacher)
    for l, gamma in enumerate((first, second, third)):
        np.testing.assert_allclose(np.sort(spectrum.gamma[l]), np.sort(gamma), atol=1e-13)
    excess = np.round((spectrum.gamma[2] - 0.3) * 1e8)
    for level in range(3):
        assert set(np.round(spectrum.gamma[0][excess == level], 9)) == {0.2, 0.7}
        np.testing.assert_array_equal((excess == level).sum(), 20)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12), st.integers(0, 3))
def test_matrices_to_problem_and_back(seed, d, levels):
    generator, flat = matrices(seed, d, 3, levels)
    covariances = [flat[:2], flat[2:]]
    means = [[generator.normal(size=d) / np.sqrt(d) for _ in row] for row in covariances]
    positions, teacher = generator.normal(size=(2, d)) / np.sqrt(d), generator.normal(size=(d, 1))
    spectrum = Spectrum.from_matrices(covariances, positions, teacher, means)
    np.testing.assert_allclose(
        spectrum.teacher_means[:, 0], [mu @ teacher[:, 0] / np.sqrt(d) for row in means for mu in row], atol=1e-12
    )
    problem = Problem.from_dict(
        {"tokens": {"kind": "mixture", "clusters": [[{}, {}], [{}]], "spectrum": spectrum.atoms()}}
    )
    assert_same_measure(Spectrum.of(problem), spectrum, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(problem.positions_gram, positions @ positions.T, atol=1e-12)
    weights, gamma, tau, pi = spectrum.points()
    assert tau.shape == gamma.shape == (3, d)
    assert weights.shape == (d,)
    assert pi.shape == (d, 1)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 24), st.sampled_from([1e-3, 1.0, 1e3]))
def test_singular_matrices_make_a_problem(seed, d, scale):
    """Zero eigenvalues come out of rounding on either side; on other directions even the product is all rounding."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(d, d)))[0]
    values = scale * generator.uniform(0.1, 1.0, (3, d))
    values[0, : d // 2] = 0.0
    values[1, d // 2 :] = 0.0
    spectrum = Spectrum.from_matrices([(basis * gamma) @ basis.T for gamma in values])
    problem = Problem.from_dict({"tokens": {"length": 3, "spectrum": spectrum.atoms()}})
    np.testing.assert_allclose(problem.site_variances, values.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(spectrum.gamma.prod(axis=0), 0, atol=1e-12 * scale**3)
    together = np.einsum("a,sa,ra->sr", spectrum.weights, spectrum.gamma, spectrum.gamma)
    np.testing.assert_allclose(together, values @ values.T / d, rtol=1e-10, atol=1e-13 * scale**2)


def test_matrices_that_nearly_have_no_product_must_commute_too():
    """A commutator far below the matrices' norms is still seen against the product."""
    first, second = np.diag([1.0, 0.0]), np.array([[0.0, 1e-7], [1e-7, 1.0]])
    second = second @ second.T
    with pytest.raises(SpectrumError, match="do not commute"):
        Spectrum.from_matrices([first, second])


def test_what_is_left_out_of_the_matrices():
    _, covariances = matrices(11, 7, 2, 0)
    spectrum = Spectrum.from_matrices(covariances)
    np.testing.assert_allclose(spectrum.rho[:, 0, 0], [np.trace(m) / 7 for m in covariances])
    np.testing.assert_array_equal(spectrum.mean, 0)
    atoms: Any = spectrum.atoms()
    assert set(atoms[0]) == {"weight", "variances", "positions"}
    assert_same_measure(Spectrum.of(Problem(tokens=Tokens(spectrum=atoms))), spectrum)


def test_matrices_that_do_not_commute_are_refused_with_the_pair_and_the_size():
    _, (first, second) = matrices(1, 9, 2, 0)
    _, (third,) = matrices(2, 9, 1, 0)
    product = second @ third
    size = np.linalg.norm(product - product.T) / np.linalg.norm(product)
    with pytest.raises(SpectrumError, match=r"covariances\[\d\] and covariances\[2\] do not commute") as caught:
        Spectrum.from_matrices([second, second, third])
    assert f"{size:.2g} of that of their product" in str(caught.value)
    with pytest.raises(SpectrumError, match=re.escape("covariances[0][1] and covariances[1][0] do not commute")):
        Spectrum.from_matrices([[np.eye(9), second], [third]])
    nearly = second + 1e-5 * third
    with pytest.raises(SpectrumError, match="do not commute"):
        Spectrum.from_matrices([first, nearly])


@pytest.mark.parametrize(
    ("covariances", "others", "words"),
    [
        ([np.array([[1.0, 0.2], [0.3, 1.0]])], {}, "must be symmetric, but differs from its transpose by 0.1"),
        ([np.diag([1.0, -0.3])], {}, "must be positive semidefinite, but has the eigenvalue -0.3"),
        ([np.diag([1.0, np.nan])], {}, "covariances[0] holds a number that is not finite"),
        ([np.eye(2), np.eye(3)], {}, "covariances[1] has shape (3, 3), but must have (2, 2)"),
        ([np.ones((2, 3))], {}, "has shape (2, 3)"),
        ([], {}, "must hold at least one matrix"),
        (["ab"], {}, "must be an array of real numbers"),
        ([np.diag([1.0, 0.3 + 0.4j])], {}, "covariances[0] must be an array of real numbers"),
        ([np.zeros((0, 0))], {}, "covariances[0] is empty"),
        (0.3, {}, "covariances must be a list with an entry for every token"),
        ([np.eye(2)], {"means": 0.3}, "means must be a list with an entry for every token"),
        ([np.eye(2)], {"positions": np.zeros((2, 2))}, "positions has shape (2, 2), but must have (1, 2)"),
        ([np.eye(2)], {"teacher": np.zeros(2)}, "teacher has shape (2,), but must have (2, 1)"),
        ([np.eye(2)], {"teacher": np.zeros((2, 0))}, "teacher has shape (2, 0), but must have (2, 1)"),
        ([np.eye(2)], {"teacher": [[1.0], [2.0, 3.0]]}, "teacher must be an array of real numbers"),
        ([np.eye(2)], {"teacher": [[1.0], [np.inf]]}, "teacher holds a number that is not finite"),
        ([[np.eye(2)] * 2], {"means": [[np.zeros(2)]]}, "means must have the structure of covariances"),
        ([[np.eye(2)]], {"means": [[np.zeros(3)]]}, "means[0][0] has shape (3,), but must have (2,)"),
    ],
)
def test_refused_matrices(covariances, others, words):
    with pytest.raises(SpectrumError, match=re.escape(words)):
        Spectrum.from_matrices(covariances, **others)


# --- ready-made, files ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spectrum", "law"),
    [
        (Spectrum.isotropic([0.3, 0.7]), SpectrumLaw(kind="isotropic", variance=(0.3, 0.7))),
        (Spectrum.power_law(1.2, 0.4, 9), SpectrumLaw(kind="power-law", exponent=1.2, variance=0.4, atoms=9)),
        (Spectrum.two_level((0.1, 0.4), 0.3), SpectrumLaw(kind="two-level", variances=(0.1, 0.4), fraction=0.3)),
    ],
)
def test_ready_made(spectrum, law):
    problem = Problem(tokens=Tokens(spectrum=law))
    assert_same_measure(spectrum, Spectrum.of(problem), rtol=1e-14)
    atoms: Any = spectrum.atoms()
    assert_same_measure(spectrum, Spectrum.of(Problem(tokens=Tokens(spectrum=atoms))), rtol=1e-14)


def test_ready_made_with_encodings():
    gram = ((1.3, 0.2, 0.1), (0.2, 0.9, -0.3), (0.1, -0.3, 0.7))
    spectrum = Spectrum.power_law(0.6, 0.2, 4, length=3, positions=gram, teacher_rank=2)
    law = SpectrumLaw(kind="power-law", exponent=0.6, variance=0.2, atoms=4)
    problem = Problem(tokens=Tokens(length=3, spectrum=law), positions=Positions(gram=gram), teacher=Teacher(rank=2))
    assert_same_measure(spectrum, Spectrum.of(problem))
    with pytest.raises(ProblemError, match="from 0 to 20"):
        Spectrum.power_law(-1.0)
    wrong: Any = "large"
    with pytest.raises(ProblemError, match="variance must be a number"):
        Spectrum.isotropic(wrong)
    levels: Any = np.array([0.3, 0.7])
    assert_same_measure(Spectrum.isotropic(levels), Spectrum.isotropic([0.3, 0.7]))


def test_a_spectrum_file_is_looked_for_beside_the_toml(tmp_path, monkeypatch):
    generator, covariances = matrices(4, 6, 2, 0)
    positions, teacher = generator.normal(size=(2, 6)), generator.normal(size=(6, 2))
    spectrum = Spectrum.from_matrices(covariances, positions, teacher)
    spectrum.to_csv(tmp_path / "spectrum.csv")
    header = (tmp_path / "spectrum.csv").read_text().splitlines()[0]
    assert header == "weight,variance_0,variance_1,position_0,position_1,teacher_0,teacher_1"
    assert read_csv(tmp_path / "spectrum.csv") == spectrum.atoms()
    path = tmp_path / "problem.toml"
    path.write_text('[tokens]\nspectrum = "spectrum.csv"\n[teacher]\nrank = 2\n')
    problem = load_problem(path)
    atoms: Any = spectrum.atoms()
    assert problem == Problem(tokens=Tokens(spectrum=atoms), teacher=Teacher(rank=2))
    assert Problem.from_toml(problem.to_toml()) == problem  # the file is not needed any more
    monkeypatch.chdir(tmp_path)
    assert Problem(teacher=Teacher(rank=2)).with_fields({"tokens.spectrum": "spectrum.csv"}) == problem


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must have weight"),
        ("weight\n1\n", "must have variance_0"),
        ("variance_0\n1\n", "must have weight"),
        ("weight,variance_1\n1,1\n", "columns of variances in"),
        ("weight,variance_0,variance_0\n1,1,1\n", 'has the column "variance_0" where'),
        ("weight,variance_0,colour\n1,1,1\n", 'has the column "colour" where'),
        ("weight,variance_0\n1\n", "atom 0 of"),
        ("weight,variance_0\n0.5,1\n0.5,x\n", "atom 1 of"),
        ("weight,variance_0\n1,-1\n", "but its entry [0] is -1.0."),
        ("weight,variance_0\n0.5,1\n", "sum to 1, but they sum to 0.5"),
        ("weight,variance_0\n", "sum to 1, but they sum to 0"),
        ("weight,variance_0,variance_1\n1,1,1\n", "has 2 numbers, but tokens.length is 1"),
    ],
)
def test_refused_files(tmp_path, text, words):
    (tmp_path / "spectrum.csv").write_text(text)
    path = tmp_path / "problem.toml"
    path.write_text('[tokens]\nlength = 1\nspectrum = "spectrum.csv"\n')
    with pytest.raises(ProblemError, match=re.escape(words)) as caught:
        load_problem(path)
    assert caught.value.field == "tokens.spectrum"
    assert str(caught.value).startswith(f"{path}: tokens.spectrum")


def test_unreadable_files(tmp_path):
    for name in (tmp_path / "missing.csv", tmp_path, "a\0b"):
        with pytest.raises(
            ProblemError,
            match=r"tokens\.spectrum.* (check its name|name a CSV file in it|cannot be read: .*|path of a .*)\.",
        ):
            read_csv(name)
