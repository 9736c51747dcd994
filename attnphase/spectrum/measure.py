"""The joint spectral measure nu(gamma, tau, pi) of covariances, encodings and teacher, equation (5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array, Numbers
from attnphase.problem import Positions, Problem, SpectrumLaw, Teacher, Tokens
from attnphase.problem.atoms_file import write_atoms
from attnphase.problem.teacher_priors import EntryLaw
from attnphase.spectrum.matrices import finite, point_atoms

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Spectrum", "gaussian_gram", "measure_of"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The measure as weighted atoms of gamma; on each of them (tau, pi) is Gaussian.

    A site is a token, or for mixture tokens a pair of a token and one of its clusters; there are P of them.

    Attributes
    ----------
    weights : (A,) array
        Sum to one.
    gamma : (P, A) array
        Eigenvalues of the sites' covariances.
    mean : (A, P + t) array
        Mean of ``(tau_1, ..., tau_P, pi_1, ..., pi_t)``, with ``tau_s = sqrt(d) e_i^T (mu_s + p_l)`` and
        ``pi = Q_star^T e_i``.
    covariance : (A, P + t, P + t) array
        Covariance of the same vector; zero for an atom that is a point.
    teacher_means : (P, t) array
        ``m_star_s = Q_star^T mu_s / sqrt(d)``.
    point_positions : (A, L) array or None
        ``sqrt(d) e_i^T p_l``, if the atoms contain the encodings.
    point_means : (A, P) array or None
        ``sqrt(d) e_i^T mu_s``, if the atoms contain the clusters' means.
    law : EntryLaw or None
        Law of the entries of pi, if it is not Gaussian. They are independent of one another and of tau, and `mean` and
        `covariance` are those of this law.

    Raises
    ------
    SpectrumError
        Shapes do not agree, or a number is not finite.
    ProblemError
        `law` is not the law of an entry.

    Examples
    --------
    >>> Spectrum.two_level((0.3, 0.6), fraction=0.4).weights
    array([0.4, 0.6])
    """

    weights: Array
    gamma: Array
    mean: Array
    covariance: Array
    teacher_means: Array
    point_positions: Array | None = None
    point_means: Array | None = None
    law: EntryLaw | None = None

    def __post_init__(self) -> None:
        atoms, sites = (np.shape(self.gamma)[axis] if np.ndim(self.gamma) == 2 else 1 for axis in (1, 0))
        rank = np.shape(self.teacher_means)[1] if np.ndim(self.teacher_means) == 2 else 1
        shapes: dict[str, tuple[int, ...]] = {
            "weights": (atoms,),
            "gamma": (sites, atoms),
            "mean": (atoms, sites + rank),
            "covariance": (atoms, sites + rank, sites + rank),
            "teacher_means": (sites, rank),
        }
        if self.point_positions is not None:
            encoded = np.shape(self.point_positions)[1] if np.ndim(self.point_positions) == 2 else 1
            shapes["point_positions"] = (atoms, encoded)
        if self.point_means is not None:
            shapes["point_means"] = (atoms, sites)
        if self.law is not None:
            arguments.instance("law", self.law, EntryLaw)
        for name, shape in shapes.items():
            object.__setattr__(self, name, finite(name, getattr(self, name), shape))

    @classmethod
    def of(cls, problem: Problem) -> Spectrum:
        """Return the measure of a problem.

        Encodings, clusters' means and teacher are independent of the eigenvectors unless the atoms contain them.

        Raises
        ------
        ProblemError
            `problem` is no `Problem`.
        """
        arguments.instance("problem", problem, Problem)
        weights, variances = problem.spectrum_atoms()
        tokens = np.array([token for token, _ in problem.sites])
        count, t, length = len(tokens), problem.teacher_columns, problem.tokens.length
        means = problem.site_means
        directions = means.shape[1]
        positions, of_means, pi = (problem.tokens.points(key) for key in ("positions", "means", "teacher"))
        teacher_means = means @ problem.joint_gram[:directions, directions + length :]
        law = None if problem.teacher.law.is_gaussian else problem.teacher.law
        if law is not None and law.mean:
            pi = np.full((len(weights), t), law.mean)
        if of_means is not None and pi is not None:
            teacher_means = (of_means.T * weights) @ pi
        joint = gaussian_gram(problem)
        # the sites' vectors mu + p and the teacher's columns, in terms of e_k, p_l and Q_star
        combination = np.zeros((count + t, directions + length + t))
        combination[:count, :directions] = means
        combination[np.arange(count), directions + tokens] = 1.0
        combination[count:, directions + length :] = np.eye(t)
        mean = np.zeros((len(weights), count + t))
        if positions is not None:
            mean[:, :count] += positions[:, tokens]
        if of_means is not None:
            mean[:, :count] += of_means
        if pi is not None:
            mean[:, count:] = pi
        covariance = combination @ joint @ combination.T
        return cls(
            np.asarray(weights),
            np.ascontiguousarray(variances.T),
            mean,
            np.tile((covariance + covariance.T) / 2, (len(weights), 1, 1)),
            teacher_means,
            positions,
            of_means,
            law,
        )

    @property
    def sites(self) -> int:
        """Number P of sites."""
        return self.gamma.shape[0]

    @cached_property
    def gaussian(self) -> Spectrum:
        """The same measure with (tau, pi) Gaussian on every atom: each of those here becomes the components of pi."""
        if self.law is None:
            return self
        count = self.sites
        probabilities, means, variances = self.law.of_rows(self.teacher_means.shape[1])
        repeated, size = len(self.weights), len(probabilities)
        mean, covariance = np.repeat(self.mean, size, axis=0), np.repeat(self.covariance, size, axis=0)
        mean[:, count:] = np.tile(means, (repeated, 1))
        covariance[:, count:, count:] = np.tile(variances, (repeated, 1))[:, :, None] * np.eye(means.shape[1])
        return replace(
            self,
            weights=np.outer(self.weights, probabilities).ravel(),
            gamma=np.repeat(self.gamma, size, axis=1),
            mean=mean,
            covariance=covariance,
            point_positions=None,
            point_means=None,
            law=None,
        )

    @cached_property
    def second_moments(self) -> Array:
        """``E (tau, pi)(tau, pi)^T`` on every atom, (A, P + t, P + t)."""
        return self.covariance + self.mean[:, :, None] * self.mean[:, None, :]

    @cached_property
    def rho(self) -> Array:
        """``rho_s = int dnu gamma_s pi pi^T``, (P, t, t)."""
        moments = self.second_moments[:, self.sites :, self.sites :]
        return np.einsum("a,sa,aij->sij", self.weights, self.gamma, moments)

    @cached_property
    def site_variances(self) -> Array:
        """``tr Sigma_s / d``, (P,)."""
        return self.gamma @ self.weights

    @property
    def site_shares(self) -> Array:
        """Shares (P,): ``share_s M`` added to each ``V_hat_s`` adds M to ``sum_s gamma_s V_hat_s`` on average."""
        return 1 / (self.sites * self.site_variances)

    def points(self) -> tuple[Array, Array, Array, Array]:
        """Return point atoms with the same second moments of (tau, pi) given gamma, which are all that the ridge needs.

        Every atom becomes P + t points: the columns of a matrix root of its second moments. If all atoms are points,
        they are returned.

        Returns
        -------
        weights : (A',) array
        gamma, tau : (P, A') arrays
        pi : (A', t) array
        """
        count = self.sites
        if not self.covariance.any():
            return self.weights, self.gamma, np.ascontiguousarray(self.mean[:, :count].T), self.mean[:, count:].copy()
        root = _roots(self.second_moments, count)
        size = root.shape[2]
        points = np.sqrt(size) * np.swapaxes(root, 1, 2).reshape(-1, size)
        return (
            np.repeat(self.weights / size, size),
            np.repeat(self.gamma, size, axis=1),
            np.ascontiguousarray(points[:, :count].T),
            np.ascontiguousarray(points[:, count:]),
        )

    @classmethod
    def from_matrices(cls, covariances: Any, positions: Any = None, teacher: Any = None, means: Any = None) -> Spectrum:
        """Return the measure of finite matrices: one point atom for every common eigenvector.

        Parameters
        ----------
        covariances : sequence of (d, d) arrays
            One matrix for every token, or for mixture tokens a sequence with one for each cluster. All must commute.
        positions : (L, d) array, optional
            Encodings p_l, with norms of order 1 (``tau = sqrt(d) e_i^T p_l``); zero by default.
        teacher : (d, t) array, optional
            Teacher's weights, with entries of order 1; by default one column that is independent of everything else.
        means : sequence of (d,) arrays, optional
            Clusters' means, with norms of order 1, in the structure of `covariances`.

        Raises
        ------
        SpectrumError
            A matrix is not a covariance, shapes differ, or two matrices do not commute; the message says by how much.

        Notes
        -----
        ``Spectrum.from_matrices(…).atoms()`` is a value of the field ``tokens.spectrum``.

        Examples
        --------
        >>> import numpy as np
        >>> Spectrum.from_matrices([np.diag([0.2, 0.3]), np.diag([0.3, 0.2])]).gamma.shape
        (2, 2)
        """
        return cls(*point_atoms(covariances, positions, teacher, means))

    @classmethod
    def isotropic(
        cls, variance: Numbers = 0.25, *, length: int = 2, positions: Any = None, teacher_rank: int = 1
    ) -> Spectrum:
        """Return the measure of isotropic covariances.

        Parameters
        ----------
        variance : float or sequence of float
            Eigenvalue σ² of the covariance, for all tokens or one for each.
        length : int
            Number of tokens L.
        positions : (L, L) array, optional
            Products p_l . p_k of the encodings; by default those of `Problem`.
        teacher_rank : int
            Number t of the teacher's columns.

        Raises
        ------
        ProblemError
            A value is wrong; the message names the field of the problem.
        """
        law = SpectrumLaw(kind="isotropic", variance=cast("Any", variance))
        return cls._ready_made(law, length, positions, teacher_rank)

    @classmethod
    def power_law(
        cls,
        exponent: float,
        variance: Numbers = 0.25,
        atoms: int = 32,
        *,
        length: int = 2,
        positions: Any = None,
        teacher_rank: int = 1,
    ) -> Spectrum:
        """Return the measure of eigenvalues proportional to ``i^-exponent``, i = 1..atoms, with mean `variance`.

        Other parameters and errors are those of `isotropic`.
        """
        law = SpectrumLaw(kind="power-law", exponent=exponent, variance=cast("Any", variance), atoms=atoms)
        return cls._ready_made(law, length, positions, teacher_rank)

    @classmethod
    def two_level(
        cls,
        variances: tuple[float, float],
        fraction: float,
        *,
        length: int = 2,
        positions: Any = None,
        teacher_rank: int = 1,
    ) -> Spectrum:
        """Return the measure with the first eigenvalue on a share `fraction` of the directions, the second on the rest.

        Other parameters and errors are those of `isotropic`.
        """
        law = SpectrumLaw(kind="two-level", variances=variances, fraction=fraction)
        return cls._ready_made(law, length, positions, teacher_rank)

    @classmethod
    def _ready_made(cls, law: SpectrumLaw, length: int, positions: Any, teacher_rank: int) -> Spectrum:
        encodings = Positions() if positions is None else Positions(gram=positions)
        tokens = Tokens(length=length, spectrum=law)
        return cls.of(Problem(tokens=tokens, positions=encodings, teacher=Teacher(rank=teacher_rank)))

    def atoms(self) -> list[dict[str, Any]]:
        """Return the measure as a value of the field ``tokens.spectrum``: a list of tables.

        Vectors that are Gaussian on the atoms are left out; other fields of the problem give their products.
        """
        count = self.sites
        optional = {"positions": self.point_positions, "means": self.point_means}
        optional["teacher"] = None if self.covariance[:, count:, count:].any() else self.mean[:, count:]
        given = {key: values for key, values in optional.items() if values is not None}
        return [
            {"weight": float(weight), "variances": self.gamma[:, a].tolist()}
            | {key: values[a].tolist() for key, values in given.items()}
            for a, weight in enumerate(self.weights)
        ]

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write `atoms` to a CSV file that ``tokens.spectrum`` can name.

        Parameters
        ----------
        path : path-like
            The file; an existing one is replaced.

        Raises
        ------
        DatasetError
            The file cannot be written.
        ProblemError
            `path` is not a path.
        """
        write_atoms(arguments.path("path", path), self.atoms())


@lru_cache(maxsize=32)
def measure_of(problem: Problem) -> Spectrum:
    """`Spectrum.of`, kept for whoever asks for the same problem again; its arrays are not to be written to."""
    return Spectrum.of(problem)


def gaussian_gram(problem: Problem) -> Array:
    """`Problem.joint_gram` of the vectors that are Gaussian on the atoms; zero for those that the atoms give."""
    directions, length = problem.tokens.mean_directions, problem.tokens.length
    joint = problem.joint_gram
    if problem.tokens.points("positions") is not None:
        joint[directions : directions + length] = joint[:, directions : directions + length] = 0.0
    if problem.tokens.points("teacher") is not None:
        joint[directions + length :] = joint[:, directions + length :] = 0.0
    elif problem.teacher.law.mean:
        joint[directions + length :] = joint[:, directions + length :] = 0.0
        joint[directions + length :, directions + length :] = problem.teacher.law.variance * np.eye(
            problem.teacher_columns
        )
    return joint


def _roots(moments: Array, count: int) -> Array:
    """Square roots of matrices (A, n, n): block by block if the first `count` variables are independent of the rest."""

    def root(matrix: Array) -> Array:
        values, vectors = np.linalg.eigh(matrix)
        vanishes = np.diagonal(matrix, axis1=1, axis2=2) == 0  # not but for rounding
        return np.where(vanishes[..., None], 0.0, vectors * np.sqrt(np.clip(values, 0.0, None))[:, None, :])

    if moments[:, :count, count:].any():
        return root(moments)
    whole = np.zeros_like(moments)
    whole[:, :count, :count] = root(moments[:, :count, :count])
    whole[:, count:, count:] = root(moments[:, count:, count:])
    return whole
