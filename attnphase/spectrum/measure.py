"""The joint spectral measure nu(gamma, tau, pi) of covariances, encodings and teacher, equation (5)."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.errors import ProblemError, SpectrumError
from attnphase.files.reading import LARGEST_TEXT, open_input
from attnphase.files.writing import write_file
from attnphase.problem import MAX_ATOMS, Positions, Problem, SpectrumLaw, Teacher, Tokens

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["Spectrum", "gaussian_gram", "read_csv"]

_COMMUTE = 1e-8  # norm of a commutator, relative to that of the product, that rounding may leave
_NO_PRODUCT = 1e-14  # the same relative to the factors' norms, where the product is rounding too
_ROUNDING = 1e-9  # relative asymmetry and negative eigenvalue likewise
_CLOSE = 1e-5  # eigenvalues nearer than this share of their range are told apart by another combination
_LONGEST_LINE = 1 << 17  # characters of a CSV file's line
_LARGEST = 1e60
_COLUMNS = {"variance": "variances", "position": "positions", "mean": "means", "teacher": "teacher"}


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
        Of ``(tau_1, ..., tau_P, pi_1, ..., pi_t)``, with ``tau_s = sqrt(d) e_i^T (mu_s + p_l)`` and
        ``pi = Q_star^T e_i``.
    covariance : (A, P + t, P + t) array
        Likewise; zero where an atom is a point.
    teacher_means : (P, t) array
        ``m_star_s = Q_star^T mu_s / sqrt(d)``.
    point_positions : (A, L) array or None
        ``sqrt(d) e_i^T p_l``, where the atoms have the encodings.
    point_means : (A, P) array or None
        ``sqrt(d) e_i^T mu_s``, where the atoms have the clusters' means.

    Raises
    ------
    SpectrumError
        The shapes do not go together, or a number is not finite.
    """

    weights: Array
    gamma: Array
    mean: Array
    covariance: Array
    teacher_means: Array
    point_positions: Array | None = None
    point_means: Array | None = None

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
        for name, shape in shapes.items():
            object.__setattr__(self, name, _finite(name, getattr(self, name), shape))

    @classmethod
    def of(cls, problem: Problem) -> Spectrum:
        """The measure of a problem.

        Encodings, clusters' means and teacher are independent of the eigenvectors unless the atoms say otherwise.

        Raises
        ------
        ProblemError
            `problem` is none.
        """
        arguments.instance("problem", problem, Problem)
        weights, variances = problem.spectrum_atoms()
        tokens = np.array([token for token, _ in problem.sites])
        count, t, length = len(tokens), problem.teacher_columns, problem.tokens.length
        means = problem.site_means
        directions = means.shape[1]
        positions, of_means, pi = (problem.tokens.points(key) for key in ("positions", "means", "teacher"))
        teacher_means = means @ problem.joint_gram[:directions, directions + length :]
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
        )

    @property
    def sites(self) -> int:
        """Number P of sites."""
        return self.gamma.shape[0]

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

    def points(self) -> tuple[Array, Array, Array, Array]:
        """Point atoms with the same second moments of (tau, pi) given gamma, all that the ridge needs.

        Every atom becomes P + t points, the columns of a matrix root of its second moments; where all atoms are points
        already, they stay.

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
        """The measure of finite matrices: one point atom for every common eigenvector.

        Parameters
        ----------
        covariances : sequence of (d, d) arrays
            One for every token; for mixture tokens a sequence of those of its clusters. All must commute.
        positions : (L, d) array, optional
            Encodings, of norm O(1); zero if left out.
        teacher : (d, t) array, optional
            Entries O(1); one column independent of everything else if left out.
        means : sequence of (d,) arrays, optional
            Clusters' means, of norm O(1), in the structure of `covariances`.

        Raises
        ------
        SpectrumError
            A matrix is not a covariance, shapes differ, or two do not commute; the sentence says by how much.

        Notes
        -----
        `atoms` makes the field ``tokens.spectrum`` of a problem of the result.
        """
        names, matrices, tokens = _flat("covariances", covariances)
        if not matrices:
            raise SpectrumError("covariances must hold at least one matrix for every token.")
        d, length = len(np.atleast_1d(matrices[0])), max(tokens) + 1
        if d == 0:
            raise SpectrumError(f"{names[0]} is empty, but must be a square matrix.")
        matrices = [_covariance(name, matrix, d) for name, matrix in zip(names, matrices, strict=True)]
        _check_commuting(names, matrices)
        vectors = _common_eigenvectors(matrices)
        gamma = np.stack([np.einsum("ji,jk,ki->i", vectors, m, vectors, optimize=True) for m in matrices])
        gamma = np.maximum(gamma, 0.0)  # rounding leaves zeros on either side
        encodings = np.zeros((length, d)) if positions is None else _finite("positions", positions, (length, d))
        point_positions = math.sqrt(d) * (encodings @ vectors).T
        mean = point_positions[:, tokens]
        point_means = None
        if means is not None:
            labels, flat, places = _flat("means", means, 1)
            if places != tokens:
                raise SpectrumError(f"means must have the structure of covariances: {len(matrices)} vectors in all.")
            rows = [_finite(label, vector, (d,)) for label, vector in zip(labels, flat, strict=True)]
            point_means = math.sqrt(d) * (np.stack(rows) @ vectors).T
            mean = mean + point_means
        weights, count = np.full(d, 1 / d), len(matrices)
        if teacher is None:
            pi = np.zeros((d, 1))
        else:
            array = _real("teacher", teacher, "(d, t)")
            pi = vectors.T @ _finite("teacher", array, (d, max(array.shape[1], 1) if array.ndim == 2 else 1))
        covariance = np.zeros((d, count + pi.shape[1], count + pi.shape[1]))
        if teacher is None:
            covariance[:, count, count] = 1.0
        teacher_means = np.zeros((count, pi.shape[1])) if point_means is None else point_means.T @ pi / d
        joined = np.concatenate([mean, pi], axis=1)
        return cls(weights, gamma, joined, covariance, teacher_means, point_positions, point_means)

    @classmethod
    def isotropic(
        cls, variance: float | Sequence[float] = 0.25, *, length: int = 2, positions: Any = None, teacher_rank: int = 1
    ) -> Spectrum:
        """Equal eigenvalues.

        Parameters
        ----------
        variance : float or sequence of float
            The eigenvalue, for all tokens or for each.
        length : int
            Number of tokens L.
        positions : (L, L) array, optional
            Products p_l . p_k of the encodings; left out, those of `Problem`.
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
        variance: float | Sequence[float] = 0.25,
        atoms: int = 32,
        *,
        length: int = 2,
        positions: Any = None,
        teacher_rank: int = 1,
    ) -> Spectrum:
        """Eigenvalues in proportion to ``i^-exponent``, i = 1..atoms, with mean `variance`; see `isotropic`."""
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
        """The first eigenvalue on a share `fraction` of the directions, the second on the rest; see `isotropic`."""
        law = SpectrumLaw(kind="two-level", variances=variances, fraction=fraction)
        return cls._ready_made(law, length, positions, teacher_rank)

    @classmethod
    def _ready_made(cls, law: SpectrumLaw, length: int, positions: Any, teacher_rank: int) -> Spectrum:
        encodings = Positions() if positions is None else Positions(gram=positions)
        tokens = Tokens(length=length, spectrum=law)
        return cls.of(Problem(tokens=tokens, positions=encodings, teacher=Teacher(rank=teacher_rank)))

    def atoms(self) -> list[dict[str, Any]]:
        """The field ``tokens.spectrum`` as plain tables.

        What is Gaussian on the atoms is left out: other fields of the problem give its products.
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
        """Write `atoms` to a file that ``tokens.spectrum`` can name; see `read_csv`.

        Parameters
        ----------
        path : path-like
            An existing file is replaced.

        Raises
        ------
        DatasetError
            The file cannot be written.
        ProblemError
            `path` is no path.
        """
        path = arguments.path("path", path)
        atoms = self.atoms()
        singular = {plural: name for name, plural in _COLUMNS.items() if plural in atoms[0]}
        header = ["weight"]
        for plural, name in singular.items():
            header += [f"{name}_{index}" for index in range(len(atoms[0][plural]))]
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(header)
        for atom in atoms:
            numbers = itertools.chain([atom["weight"]], *(atom[plural] for plural in singular))
            writer.writerow([repr(number) for number in numbers])
        write_file(path, text.getvalue().encode())


def gaussian_gram(problem: Problem) -> Array:
    """`Problem.joint_gram` of the vectors that are Gaussian on the atoms; zero for those that the atoms give."""
    directions, length = problem.tokens.mean_directions, problem.tokens.length
    joint = problem.joint_gram
    if problem.tokens.points("positions") is not None:
        joint[directions : directions + length] = joint[:, directions : directions + length] = 0.0
    if problem.tokens.points("teacher") is not None:
        joint[directions + length :] = joint[:, directions + length :] = 0.0
    return joint


def read_csv(path: str | PathLike[str]) -> list[dict[str, Any]]:
    """Read atoms of a spectrum from a file of comma-separated values.

    Parameters
    ----------
    path
        Its header is ``weight,variance_0,...``, then, as far as the atoms have them, ``position_0,...``,
        ``mean_0,...`` and ``teacher_0,...``; one atom in each line.

    Returns
    -------
    list of dict
        As `Spectrum.atoms` has them.

    Raises
    ------
    ProblemError
        The file cannot be read, or the header or a line is not as above.
    """
    field, file = "tokens.spectrum", str(arguments.path("tokens.spectrum", path))

    def refuse(sentence: str) -> ProblemError:
        return ProblemError(field, f"{field}: {file}: {sentence}")

    try:
        with io.TextIOWrapper(
            open_input(path, "CSV file", LARGEST_TEXT, refuse), encoding="utf-8-sig", newline=""
        ) as stream:
            lines = [line for line in csv.reader(_short_lines(stream, refuse)) if line]
    except ProblemError:
        raise
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise refuse(f"the file cannot be read: {reason}.") from None
    header = [name.strip() for name in lines[0]] if lines else []
    places = _header_places(file, header)
    atoms = []
    for row, line in enumerate(lines[1:]):
        if len(line) != len(header):
            raise ProblemError(
                field,
                f"tokens.spectrum: atom {row} of {file} has {len(line)} numbers, but the header has {len(header)}.",
            )
        try:
            numbers = [float(text) for text in line]
        except ValueError as error:
            raise ProblemError(field, f"tokens.spectrum: atom {row} of {file} has a wrong entry: {error}.") from None
        atoms.append(
            {"weight": numbers[places["weight"][0]]}
            | {key: [numbers[index] for index in indices] for key, indices in places.items() if key != "weight"}
        )
    return atoms


def _short_lines(stream: io.TextIOWrapper, refuse: Callable[[str], ProblemError]) -> Iterator[str]:
    """The lines of a file, as long as they may be those of a spectrum."""
    for count, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE + 1), "")):
        if len(line) > _LONGEST_LINE:
            raise refuse(f"line {count + 1} has more than {_LONGEST_LINE} characters, and is not that of an atom.")
        if count > 2 * MAX_ATOMS:  # as many may be empty
            raise refuse(f"the file has more lines than the {MAX_ATOMS} atoms that a spectrum may have.")
        yield line


def _header_places(file: str, header: list[str]) -> dict[str, list[int]]:
    """Find the columns of each key; those of a list must be numbered from 0."""
    found: dict[str, dict[int, int]] = {}
    for index, name in enumerate(header):
        stem, _, number = name.rpartition("_")
        is_entry = stem in _COLUMNS and number.isdecimal() and len(number) < 10
        key, entry = (_COLUMNS[stem], int(number)) if is_entry else (name, 0)
        if (not is_entry and name != "weight") or entry in found.setdefault(key, {}):
            raise ProblemError(
                "tokens.spectrum",
                f'tokens.spectrum: the header of {file} has the column "{name[:40]}" where only weight, variance_0,'
                " position_0, mean_0, teacher_0 and their like may stand, each once.",
            )
        found[key][entry] = index
    for key, entries in found.items():
        if set(entries) != set(range(len(entries))):
            raise ProblemError(
                "tokens.spectrum", f"tokens.spectrum: the columns of {key} in {file} must be numbered from 0 on."
            )
    for key, name in (("weight", "weight"), ("variances", "variance_0")):
        if key not in found:
            raise ProblemError("tokens.spectrum", f"tokens.spectrum: the header of {file} must have {name}.")
    return {key: [entries[entry] for entry in range(len(entries))] for key, entries in found.items()}


def _roots(moments: Array, count: int) -> Array:
    """Square roots of matrices (A, n, n): block by block if the first `count` variables are independent of the rest."""

    def root(matrix: Array) -> Array:
        values, vectors = np.linalg.eigh(matrix)
        return vectors * np.sqrt(np.clip(values, 0.0, None))[:, None, :]

    if moments[:, :count, count:].any():
        return root(moments)
    whole = np.zeros_like(moments)
    whole[:, :count, :count] = root(moments[:, :count, :count])
    whole[:, count:, count:] = root(moments[:, count:, count:])
    return whole


def _flat(name: str, nested: Any, dimensions: int = 2) -> tuple[list[str], list[Any], list[int]]:
    """Flatten a list of arrays, or of lists of arrays, into names, arrays and the token of each."""
    if isinstance(nested, str) or not isinstance(nested, Sequence | np.ndarray) or getattr(nested, "ndim", 1) == 0:
        raise SpectrumError(f"{name} must be a list with an entry for every token.")
    names, arrays, tokens = [], [], []
    for token, item in enumerate(nested):
        try:
            single = np.ndim(item) <= dimensions
        except ValueError:  # arrays of different shapes in one list
            single = False
        for cluster, array in enumerate([item] if single else item):
            names.append(f"{name}[{token}]" if single else f"{name}[{token}][{cluster}]")
            arrays.append(array)
            tokens.append(token)
    return names, arrays, tokens


def _real(name: str, values: Any, shape: object) -> Array:
    try:
        array = np.asarray(values)
        if not np.iscomplexobj(array):  # whose imaginary part NumPy would drop with a mere warning
            return array.astype(float)
    except (TypeError, ValueError, OverflowError):
        pass
    raise SpectrumError(f"{name} must be an array of real numbers of shape {shape}.")


def _finite(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    array = _real(name, values, shape)
    if array.shape != shape:
        raise SpectrumError(f"{name} has shape {array.shape}, but must have {shape}.")
    if not np.isfinite(array).all():
        raise SpectrumError(f"{name} holds a number that is not finite.")
    if np.abs(array).max(initial=0.0) > _LARGEST:  # products would not be finite
        raise SpectrumError(f"{name} holds a number beyond {_LARGEST:g}: choose other units.")
    return array


def _covariance(name: str, values: Any, d: int) -> Array:
    matrix = _finite(name, values, (d, d))
    size = np.abs(matrix).max(initial=0.0)
    skew = np.abs(matrix - matrix.T).max(initial=0.0)
    if skew > _ROUNDING * size:
        raise SpectrumError(f"{name} must be symmetric, but differs from its transpose by {skew:.2g}.")
    matrix = (matrix + matrix.T) / 2
    lowest = float(np.linalg.eigvalsh(matrix)[0])
    if lowest < -_ROUNDING * d * size:
        raise SpectrumError(f"{name} must be positive semidefinite, but has the eigenvalue {lowest:.4g}.")
    return matrix


def _check_commuting(names: list[str], matrices: list[Array]) -> None:
    worst, pair = 0.0, ("", "")
    for (first, a), (second, b) in itertools.combinations(zip(names, matrices, strict=True), 2):
        product = a @ b
        commutator = np.linalg.norm(product - product.T)
        if commutator <= _NO_PRODUCT * np.linalg.norm(a) * np.linalg.norm(b):
            continue
        off = float(commutator / np.linalg.norm(product))
        if off > worst:
            worst, pair = off, (first, second)
    if worst > _COMMUTE:
        raise SpectrumError(
            f"{pair[0]} and {pair[1]} do not commute: the norm of their commutator is {worst:.2g} of that of their"
            " product, where the theory needs common eigenvectors."
        )


def _common_eigenvectors(matrices: list[Array]) -> Array:
    """Orthonormal eigenvectors, as columns, of matrices that commute.

    A generic combination of the matrices has only common eigenvectors, unless two of its eigenvalues come so close that
    rounding mixes theirs. Such groups are told apart by combinations made for them alone.
    """
    d = len(matrices[0])
    centred = [matrix - np.trace(matrix) / d * np.eye(d) for matrix in matrices]
    # what is left of a multiple of the identity is rounding
    sizes = [(np.linalg.norm(c), np.linalg.norm(m)) for c, m in zip(centred, matrices, strict=True)]
    scaled = [c / size for c, (size, whole) in zip(centred, sizes, strict=True) if size > 1e-12 * whole]
    if d == 1 or not scaled:
        return np.eye(d)
    generator = np.random.default_rng(d)
    combination = np.sum([g * c for g, c in zip(generator.uniform(1.0, 2.0, len(scaled)), scaled, strict=True)], axis=0)
    if not np.linalg.norm(combination) > 1e-3:  # a chance cancellation
        combination = scaled[0]
    values, vectors = np.linalg.eigh(combination)
    gaps = np.diff(values) > _CLOSE * (values[-1] - values[0]) / d
    for group in np.split(np.arange(d), np.flatnonzero(gaps) + 1):
        if 1 < len(group) < d:
            basis = vectors[:, group]
            vectors[:, group] = basis @ _common_eigenvectors([basis.T @ matrix @ basis for matrix in matrices])
    return vectors
