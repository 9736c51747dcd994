"""The user's description of a problem: frozen dataclasses that read and write TOML.

A `Problem` says *what* is studied: the tokens' law, the positional encodings, the teacher, the
student, the regulariser, and how finely Gaussian expectations are integrated. Where it is solved
(sample complexity, branch) and how the iteration runs are arguments of `attnphase.solve`.

Every value is checked when it is given. A wrong one raises `ProblemError`, whose message is one
sentence that names the field as it stands in the TOML, such as ``teacher.mixing``.

Conventions are those of Cui, Behrens, Krzakala and Zdeborová, arXiv:2402.03902; every quantity
is dimensionless.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
import tomli_w
from pydantic import BeforeValidator, ConfigDict, Field, Strict, ValidationError, model_validator
from pydantic.dataclasses import dataclass

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = [
    "Integration",
    "Positions",
    "Problem",
    "ProblemError",
    "Regularizer",
    "SpectrumAtom",
    "Student",
    "Teacher",
    "Tokens",
    "load_problem",
    "parse_setting",
]

PAPER_MIXING = ((0.6, 0.4), (0.4, 0.6))
"""Positional part A of the paper's teacher, equation (16)."""

_RELATIVE_TOLERANCE = 1e-9
"""How far a Gram matrix may be from symmetric and positive semidefinite, and weights from 1."""


class ProblemError(ValueError):
    """A problem that cannot be used as it was given.

    Parameters
    ----------
    field
        The TOML field at fault, such as ``teacher.mixing``, or the file that cannot be read.
    message
        One sentence that names the field and says what to do.

    Attributes
    ----------
    field : str
        As given.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message

    def __str__(self) -> str:
        return self.message


def _plain(value: Any) -> Any:
    """Turn lists and NumPy values into tuples and Python numbers, and -0.0 into 0.0."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    return value + 0.0 if isinstance(value, float) else value


# The description of a field is what its error message says the field must be.
_PLAIN = BeforeValidator(_plain)
_Finite = Annotated[float, Strict(), Field(allow_inf_nan=False), _PLAIN]
_Sigma = Annotated[float, Strict(), Field(ge=1e-6, le=1e6, allow_inf_nan=False), _PLAIN]
_Variance = Annotated[float, Strict(), Field(ge=0, le=1e12, allow_inf_nan=False), _PLAIN]
_Rank = Annotated[int, Strict(), Field(ge=1, le=8, description="a whole number from 1 to 8"), _PLAIN]
_Score = Annotated[Literal["softmax", "linear"], Field(description='"softmax" or "linear"')]
_Table = tuple[tuple[_Finite, ...], ...]

_CONFIG = ConfigDict(extra="forbid")
_T = TypeVar("_T")


def _errors_name_fields(section: str) -> Callable[[type[_T]], type[_T]]:
    """Make a pydantic dataclass raise `ProblemError`; `section` is its place in the TOML."""

    def decorate(cls: type[_T]) -> type[_T]:
        target: Any = cls
        validate = target.__init__

        @functools.wraps(validate)
        def construct(self: _T, /, *args: Any, **kwargs: Any) -> None:
            try:
                validate(self, *args, **kwargs)
            except ValidationError as error:
                raise _as_problem_error(section, error) from None

        target.__init__ = construct
        return cls

    return decorate


@_errors_name_fields("tokens.spectrum")
@dataclass(frozen=True, config=_CONFIG)
class SpectrumAtom:
    """A fraction of the common eigen-directions on which every token has one variance.

    Parameters
    ----------
    weight
        Fraction of the directions, above 0 and at most 1.
    variances
        Shape (L,): the eigenvalue of each token's covariance there, 0 or more.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.
    """

    weight: Annotated[
        float,
        Strict(),
        Field(gt=0, le=1, allow_inf_nan=False, description="a number above 0 and at most 1"),
        _PLAIN,
    ]
    variances: Annotated[
        tuple[_Variance, ...],
        Field(description="a list of numbers from 0 to 1e12, one for each token"),
        _PLAIN,
    ]


@_errors_name_fields("tokens")
@dataclass(frozen=True, config=_CONFIG)
class Tokens:
    """The law of the tokens: row l of a sentence is drawn from N(0, Σ_l).

    All Σ_l share their eigenvectors. They are either isotropic, ``sigma``, or given by a
    ``spectrum``; one excludes the other, and with neither ``sigma`` is the paper's 0.5.

    Parameters
    ----------
    kind
        ``"gaussian"``, the only one in this version.
    length
        Number of tokens L, from 1 to 16.
    sigma
        Standard deviation of a token's entries, one number or one for each token.
    spectrum
        Atoms of the joint spectral measure of the covariances; their weights sum to 1.

    Raises
    ------
    ProblemError
        A value is of the wrong type, shape or range, or ``sigma`` comes with ``spectrum``.

    Notes
    -----
    Equation (5) of arXiv:2402.03902, with a measure made of atoms.
    """

    kind: Annotated[
        Literal["gaussian"],
        Field(description='"gaussian", the only kind available in this version'),
    ] = "gaussian"
    length: Annotated[int, Strict(), Field(ge=1, le=16, description="a whole number from 1 to 16"), _PLAIN] = 2
    sigma: Annotated[
        _Sigma | tuple[_Sigma, ...] | None,
        Field(description="a positive number from 1e-6 to 1e6, or a list with one for each token"),
        _PLAIN,
    ] = None
    spectrum: Annotated[
        tuple[SpectrumAtom, ...] | None,
        Field(description="a list of tables, each with a weight and a list of variances"),
        _PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.spectrum is not None:
            self._check_spectrum(self.spectrum)
        elif self.sigma is None:
            object.__setattr__(self, "sigma", 0.5)
        elif isinstance(self.sigma, tuple) and len(self.sigma) != self.length:
            raise ProblemError(
                "tokens.sigma",
                f"tokens.sigma has {len(self.sigma)} numbers, but tokens.length is {self.length}:"
                " give one for each token, or a single one for all.",
            )
        return self

    def _check_spectrum(self, spectrum: tuple[SpectrumAtom, ...]) -> None:
        name = "tokens.spectrum"
        if self.sigma is not None:
            raise ProblemError(name, "tokens.sigma and tokens.spectrum exclude each other: keep one of them.")
        total = sum(atom.weight for atom in spectrum)
        if abs(total - 1) > _RELATIVE_TOLERANCE:
            raise ProblemError(name, f"tokens.spectrum needs weights that sum to 1, but they sum to {total:.10g}.")
        for index, atom in enumerate(spectrum):
            if len(atom.variances) != self.length:
                raise ProblemError(
                    name,
                    f"tokens.spectrum[{index}].variances has {len(atom.variances)} numbers, but"
                    f" tokens.length is {self.length}: give one for each token.",
                )
        for token in range(self.length):
            if not any(atom.variances[token] > 0 for atom in spectrum):
                raise ProblemError(
                    name,
                    f"tokens.spectrum gives token {token} no variance at all: make its variance"
                    " positive in at least one atom.",
                )


@_errors_name_fields("positions")
@dataclass(frozen=True, config=_CONFIG)
class Positions:
    """The positional encodings, known through their products p_l · p_k.

    Parameters
    ----------
    kind
        ``"opposite"``: p_1 = -p_2 = 1/√d, for two tokens. ``"gram"``: the products are ``gram``.
        ``"none"``: no encodings. Left out, it is ``"gram"`` if ``gram`` is given, and else
        follows the number of tokens: see `Problem`.
    gram
        Shape (L, L), symmetric and positive semidefinite: the products p_l · p_k.

    Raises
    ------
    ProblemError
        A value is of the wrong type, ``gram`` is not a Gram matrix, or it does not go with
        ``kind``.
    """

    kind: Annotated[
        Literal["opposite", "gram", "none"] | None,
        Field(description='"opposite", "gram" or "none"'),
    ] = None
    gram: Annotated[
        _Table | None,
        Field(description="a square table of finite numbers, the products of the encodings"),
        _PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.gram is not None:
            if self.kind is None:
                object.__setattr__(self, "kind", "gram")
            if self.kind != "gram":
                raise ProblemError(
                    "positions.gram",
                    f'positions.gram does not go with positions.kind = "{self.kind}": set'
                    ' positions.kind = "gram", or remove positions.gram.',
                )
            _check_gram(self.gram)
        elif self.kind == "gram":
            raise ProblemError(
                "positions.gram",
                'positions.kind = "gram" needs positions.gram, the table of products p_l . p_k:'
                " give it, or choose another kind.",
            )
        return self


def _check_gram(gram: tuple[tuple[float, ...], ...]) -> None:
    name = "positions.gram"
    _check_square(name, gram, len(gram))
    matrix = np.array(gram, dtype=float).reshape(len(gram), len(gram))
    largest = np.abs(matrix).max(initial=0.0)
    if largest == 0:
        return
    matrix = matrix / largest
    if np.abs(matrix - matrix.T).max() > _RELATIVE_TOLERANCE:
        row, column = np.unravel_index(np.abs(matrix - matrix.T).argmax(), matrix.shape)
        raise ProblemError(
            name,
            f"positions.gram must be symmetric, but its entries [{row}][{column}] and"
            f" [{column}][{row}] are {gram[row][column]!r} and {gram[column][row]!r}.",
        )
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)
    if eigenvalues[0] < -_RELATIVE_TOLERANCE * np.abs(eigenvalues).max():
        raise ProblemError(
            name,
            "positions.gram must be positive semidefinite, as products p_l . p_k are, but it has"
            f" the eigenvalue {eigenvalues[0] * largest:.4g}.",
        )


def _check_square(name: str, table: tuple[tuple[float, ...], ...], size: int) -> None:
    if len(table) != size:
        raise ProblemError(
            name,
            f"{name} has {len(table)} rows, but must be {size} by {size}: tokens.length is {size}.",
        )
    for index, row in enumerate(table):
        if len(row) != size:
            raise ProblemError(
                name,
                f"{name} must be {size} by {size}, but its row {index} has length {len(row)}.",
            )


@_errors_name_fields("teacher")
@dataclass(frozen=True, config=_CONFIG)
class Teacher:
    """The target T[k] = (1 - ω) score(k kᵀ) + ω A applied to the tokens.

    Parameters
    ----------
    score
        ``"softmax"`` (row-wise) or ``"linear"``.
    rank
        Number t of columns of Q⋆, from 1 to 8.
    omega
        Weight of the positional part, from 0 to 1.
    mixing
        Shape (L, L): the positional part A. Left out, it follows the number of tokens: see
        `Problem`.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (1) and (16) of arXiv:2402.03902.
    """

    score: _Score = "softmax"
    rank: _Rank = 1
    omega: Annotated[
        float,
        Strict(),
        Field(ge=0, le=1, allow_inf_nan=False, description="a number from 0 to 1"),
        _PLAIN,
    ] = 0.3
    mixing: Annotated[
        _Table | None,
        Field(description="a square table of finite numbers, one row for each token"),
        _PLAIN,
    ] = None


@_errors_name_fields("student")
@dataclass(frozen=True, config=_CONFIG)
class Student:
    """The attention layer that is trained: S[h] applied to tokens plus encodings.

    Parameters
    ----------
    score
        ``"softmax"`` (row-wise) or ``"linear"``.
    rank
        Number r of columns of Q (and of K), from 1 to 8.
    tied
        Whether queries and keys share their weights, S of h hᵀ, or not, S of h_Q h_Kᵀ.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equations (2) and (15), untied (124), of arXiv:2402.03902.
    """

    score: _Score = "softmax"
    rank: _Rank = 1
    tied: Annotated[bool, Strict(), Field(description="true or false"), _PLAIN] = True


@_errors_name_fields("regularizer")
@dataclass(frozen=True, config=_CONFIG)
class Regularizer:
    """The penalty on the weights, (λ/2)‖W‖²_F for the ridge.

    Parameters
    ----------
    kind
        ``"ridge"``, the only one in this version.
    strength
        λ, above 0.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range.

    Notes
    -----
    Equation (3) of arXiv:2402.03902.
    """

    kind: Annotated[
        Literal["ridge"],
        Field(description='"ridge", the only kind available in this version'),
    ] = "ridge"
    strength: Annotated[
        float,
        Strict(),
        Field(ge=1e-8, le=1e8, allow_inf_nan=False, description="a number from 1e-8 to 1e8"),
        _PLAIN,
    ] = 0.01


@_errors_name_fields("integration")
@dataclass(frozen=True, config=_CONFIG)
class Integration:
    """How expectations over Gaussian fields are computed.

    Parameters
    ----------
    rule
        ``"auto"``, ``"gauss-hermite"``, ``"sobol"`` (scrambled points, with standard errors), or
        ``"published"``, the 144 nodes behind the paper's figures.
    standard_error
        Relative standard error asked for on q, between 0 and 1.
    seed
        Seed of the scrambled points, 0 or more.
    nodes
        Overrides the rule's own choice: for ``"gauss-hermite"`` the nodes in each dimension, from
        1 to 256; for ``"sobol"`` the points in each replicate, a power of two up to 2**24.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, or ``nodes`` does not go with ``rule``.
    """

    rule: Annotated[
        Literal["auto", "gauss-hermite", "sobol", "published"],
        Field(description='"auto", "gauss-hermite", "sobol" or "published"'),
    ] = "auto"
    standard_error: Annotated[
        float,
        Strict(),
        Field(gt=0, lt=1, allow_inf_nan=False, description="a number between 0 and 1"),
        _PLAIN,
    ] = 1e-3
    seed: Annotated[
        int,
        Strict(),
        Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1"),
        _PLAIN,
    ] = 0
    nodes: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=2**24)] | None,
        Field(description="a whole number from 1 to 2**24"),
        _PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        name = "integration.nodes"
        if self.nodes is None:
            return self
        if self.rule == "published":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "published", whose nodes'
                " are fixed: remove it, or choose another rule.",
            )
        if self.rule == "auto":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "auto", which chooses them:'
                ' set integration.rule to "gauss-hermite" or "sobol", or remove it.',
            )
        if self.rule == "gauss-hermite" and self.nodes > 256:
            raise ProblemError(
                name,
                "integration.nodes must be at most 256 nodes per dimension for"
                f' integration.rule = "gauss-hermite", but it is {self.nodes}.',
            )
        if self.rule == "sobol" and self.nodes & (self.nodes - 1):
            raise ProblemError(
                name,
                f'integration.nodes must be a power of two for integration.rule = "sobol", but it is {self.nodes}.',
            )
        return self


@_errors_name_fields("")
@dataclass(frozen=True, config=_CONFIG)
class Problem:
    """A whole problem; what is left out is the paper's.

    Two defaults follow the number of tokens L. The mixing matrix is the paper's
    ((.6, .4), (.4, .6)) for L = 2 and uniform, 1/L, otherwise. The encodings are the paper's
    opposite ones for L = 2; for L > 2 they are their generalisation, the corners of a simplex
    around the origin: unit norms and products -1/(L-1), under ``kind = "gram"``; for L = 1, where
    there is no position to tell, ``"none"``. Both are filled in, so that a default left out and the
    same value written out make equal problems.

    Parameters
    ----------
    tokens, positions, teacher, student, regularizer, integration
        The sections of the TOML, as objects or as mappings.

    Raises
    ------
    ProblemError
        A value is wrong in itself or does not go with another.

    Notes
    -----
    The setting of Figure 2 of arXiv:2402.03902 is ``Problem()``.
    """

    tokens: Annotated[Tokens, Field(description="a table")] = Tokens()
    positions: Annotated[Positions, Field(description="a table")] = Positions()
    teacher: Annotated[Teacher, Field(description="a table")] = Teacher()
    student: Annotated[Student, Field(description="a table")] = Student()
    regularizer: Annotated[Regularizer, Field(description="a table")] = Regularizer()
    integration: Annotated[Integration, Field(description="a table")] = Integration()
    # fields that nobody gave, so that they follow the length in `with_fields`
    _filled_in: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False, hash=False)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._fill_in()
        length = self.tokens.length
        _check_square("teacher.mixing", self._mixing, length)
        if self.positions.kind == "opposite" and length != 2:
            raise ProblemError(
                "positions.kind",
                f'positions.kind = "opposite" needs tokens.length = 2, but it is {length}: choose "gram" or "none".',
            )
        if self.positions.gram is not None:
            _check_square("positions.gram", self.positions.gram, length)
        if self.integration.rule == "published":
            needs = {
                "tokens.length = 2": length == 2,
                "teacher.rank = 1": self.teacher.rank == 1,
                "student.rank = 1": self.student.rank == 1,
                "student.tied = true": self.student.tied,
            }
            for need, met in needs.items():
                if not met:
                    raise ProblemError(
                        "integration.rule",
                        f'integration.rule = "published" needs {need}: choose "auto" for this problem.',
                    )
        return self

    def _fill_in(self) -> None:
        length = self.tokens.length
        filled_in = set()
        if self.teacher.mixing is None:
            uniform = ((1 / length,) * length,) * length
            mixing = PAPER_MIXING if length == 2 else uniform
            object.__setattr__(self, "teacher", replace(self.teacher, mixing=mixing))
            filled_in.add("teacher.mixing")
        if self.positions.kind is None:
            if length > 2:
                positions = Positions(kind="gram", gram=_simplex(length))
            else:
                positions = Positions(kind="opposite" if length == 2 else "none")
            object.__setattr__(self, "positions", positions)
            filled_in |= {"positions.kind", "positions.gram"}
        object.__setattr__(self, "_filled_in", frozenset(filled_in))

    @classmethod
    def paper(
        cls,
        omega: float = 0.3,
        *,
        sigma: float = 0.5,
        strength: float = 0.01,
        mixing: tuple[tuple[float, ...], ...] = PAPER_MIXING,
    ) -> Self:
        """Return the paper's problem, at the parameters it varies.

        Parameters
        ----------
        omega
            Weight of the teacher's positional part.
        sigma
            Standard deviation of the tokens' entries.
        strength
            Ridge strength λ.
        mixing
            Shape (2, 2): positional part A; the paper's second example, equation (144), has
            ((.3, .7), (.8, .2)).

        Returns
        -------
        Problem
            Two tokens, opposite encodings, rank 1, tied, softmax.

        Raises
        ------
        ProblemError
            A value is out of range.
        """
        return cls(
            tokens=Tokens(sigma=sigma),
            teacher=Teacher(omega=omega, mixing=mixing),
            regularizer=Regularizer(strength=strength),
        )

    @property
    def columns(self) -> int:
        """Number of columns of the student's weights W: r if tied, 2r for W = (Q|K)."""
        return self.student.rank * (1 if self.student.tied else 2)

    @property
    def positions_gram(self) -> NDArray[np.float64]:
        """Products p_l · p_k of the encodings, shape (L, L)."""
        if self.positions.gram is not None:
            gram = np.array(self.positions.gram)
            return (gram + gram.T) / 2
        if self.positions.kind == "opposite":
            return np.array([[1.0, -1.0], [-1.0, 1.0]])
        return np.zeros((self.tokens.length, self.tokens.length))

    @property
    def mixing_matrix(self) -> NDArray[np.float64]:
        """Positional part A of the teacher, shape (L, L)."""
        return np.array(self._mixing)

    @property
    def _mixing(self) -> tuple[tuple[float, ...], ...]:
        assert self.teacher.mixing is not None, "filled in when the problem was made"
        return self.teacher.mixing

    @property
    def token_variances(self) -> NDArray[np.float64]:
        """Mean variance ρ^Σ_l = tr Σ_l / d of each token's entries, shape (L,)."""
        weights, variances = self.spectrum_atoms()
        return weights @ variances

    def spectrum_atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the joint spectral measure of the tokens' covariances, as atoms.

        Returns
        -------
        weights
            Shape (A,): fraction of the eigen-directions; they sum to 1.
        variances
            Shape (A, L): eigenvalues γ_l of each token's covariance there.
        """
        if self.tokens.spectrum is None:
            sigma = np.broadcast_to(np.asarray(self.tokens.sigma, float), (self.tokens.length,))
            return np.ones(1), sigma[None, :] ** 2
        atoms = self.tokens.spectrum
        return np.array([a.weight for a in atoms]), np.array([a.variances for a in atoms])

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the sections and their keys as plain dicts, lists and scalars.

        Returns
        -------
        dict
            ``{"tokens": {"kind": "gaussian", …}, …}``, with the defaults filled in and without
            the keys that have no value.
        """
        return {name: _as_plain_dict(getattr(self, name)) for name in _SECTIONS}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a problem from nested mappings, as a TOML parser returns them.

        Parameters
        ----------
        data
            Sections by name; what is missing is the paper's.

        Raises
        ------
        ProblemError
            A key is unknown, or a value is wrong.
        """
        if not isinstance(data, Mapping):
            raise ProblemError("problem", f"A problem must be a table, but it is {_shown(data)}.")
        for name in data:
            if name not in _SECTIONS:
                raise _unknown_key("", str(name))
        return cls(**data)

    def to_toml(self) -> str:
        """Return the problem as TOML, with the defaults filled in; `from_toml` reads it back."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Make a problem from TOML text.

        Parameters
        ----------
        text
            The TOML; what is missing is the paper's.

        Raises
        ------
        ProblemError
            It is not TOML, a key is unknown, or a value is wrong.
        """
        try:
            data = tomllib.loads(text)
        except RecursionError:
            raise ProblemError("problem", "The TOML is nested too deeply to be a problem.") from None
        except ValueError as error:
            raise ProblemError("problem", f"This is not valid TOML: {error}.") from None
        return cls.from_dict(data)

    def with_fields(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Self:
        """Return a copy in which some fields have new values.

        Defaults that nobody gave follow a new length. Of two fields that exclude each other
        (``tokens.sigma`` and ``tokens.spectrum``; ``positions.gram`` and another
        ``positions.kind``), the new one displaces the old.

        Parameters
        ----------
        values, **named
            New values by the field's name in the TOML, such as ``{"teacher.omega": 0.2}``; None
            takes a field back to its default.

        Raises
        ------
        ProblemError
            A field is unknown, or a value is wrong.

        Examples
        --------
        >>> Problem().with_fields({"teacher.omega": 0.2}).teacher.omega
        0.2
        """
        changes = {**(values or {}), **named}
        data = self.to_dict()
        for name in self._filled_in:
            section, _, key = name.partition(".")
            data[section].pop(key, None)
        for name, value in changes.items():
            section, _, key = name.partition(".")
            if section not in _SECTIONS:
                raise _unknown_key("", name)
            if not key:
                raise ProblemError(
                    name,
                    f'"{section}" is a section: set one of its keys, such as "{section}.{_keys(section)[0]}".',
                )
            if key not in _keys(section):
                raise _unknown_key(section, key)
            displaced = _DISPLACES.get(name)
            if displaced is not None and displaced not in changes:
                unchanged = _plain(data[section].get(key)) == _plain(value)
                if not unchanged:
                    data[section].pop(displaced.partition(".")[2], None)
            if value is None:
                data[section].pop(key, None)
            else:
                data[section][key] = value
        return type(self).from_dict(data)

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of `to_toml`: equal for equal problems."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:16]


_SECTIONS: dict[str, type] = {
    "tokens": Tokens,
    "positions": Positions,
    "teacher": Teacher,
    "student": Student,
    "regularizer": Regularizer,
    "integration": Integration,
}

_ATOM_KEYS = [item.name for item in fields(SpectrumAtom)]
_NAMES = {*_SECTIONS, *_ATOM_KEYS, *(k.name for s in _SECTIONS.values() for k in fields(s))}
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")

# setting the first forgets the second, which would contradict it or mean something else
_DISPLACES = {
    "tokens.sigma": "tokens.spectrum",
    "tokens.spectrum": "tokens.sigma",
    "positions.gram": "positions.kind",
    "positions.kind": "positions.gram",
    "integration.rule": "integration.nodes",
}


def _simplex(length: int) -> tuple[tuple[float, ...], ...]:
    """Products of `length` unit vectors that sum to zero and are all equally far apart."""
    apart = -1 / (length - 1)
    return tuple(tuple(1.0 if k == l else apart for k in range(length)) for l in range(length))


def _as_plain_dict(section: Any) -> dict[str, Any]:
    values = {item.name: getattr(section, item.name) for item in fields(section)}
    return {key: _as_lists(value) for key, value in values.items() if value is not None}


def _as_lists(value: Any) -> Any:
    if isinstance(value, SpectrumAtom):
        return _as_plain_dict(value)
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


def _keys(section: str) -> list[str]:
    return [item.name for item in fields(_SECTIONS[section])]


def _unknown_key(section: str, key: str) -> ProblemError:
    """Return the error for a key that no section has, with the nearest one that exists."""
    name = f"{section}.{key}" if section else key
    siblings = _keys(section) if section else list(_SECTIONS)
    prefix = f"{section}." if section else ""
    nearest = [prefix + close for close in difflib.get_close_matches(key, siblings, 1)]
    if not nearest:  # perhaps the right key in the wrong section
        last = key.rpartition(".")[2]
        homes = {item: f"{home}.{item}" for home in _SECTIONS for item in _keys(home)}
        nearest = [homes[close] for close in difflib.get_close_matches(last, homes, 1)]
    if nearest:
        return ProblemError(name, f'unknown key "{name}": did you mean "{nearest[0]}"?')
    where = f'"{section}" has the keys' if section else "a problem has the sections"
    return ProblemError(name, f'unknown key "{name}": {where} {", ".join(siblings)}.')


def _shown(value: Any) -> str:
    """Return a value as TOML would have it, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | str) else repr(_as_lists(_plain(value)))
    return text if len(text) <= 60 else text[:57] + "..."


def _as_problem_error(section: str, error: ValidationError) -> ProblemError:
    """Turn the first of pydantic's errors into a sentence made of the field's description."""
    found = error.errors(include_url=False)
    first = next((item for item in found if item["type"] in _UNKNOWN), found[0])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ProblemError):
        return cause
    if first["type"] == "unexpected_positional_argument":
        place = section or "problem"
        return ProblemError(place, f"{place} was given too many values: give them by name.")

    location: list[int | str] = [*section.split("."), *first["loc"]] if section else [*first["loc"]]
    if first["type"] in _UNKNOWN:
        *place, key = location
        if "spectrum" not in place:
            return _unknown_key(".".join(map(str, place)), str(key))
        name = f"{_dotted(place)}.{key}"
        close = difflib.get_close_matches(str(key), _ATOM_KEYS, 1)
        instead = f'did you mean "{close[0]}"?' if close else "an atom has weight and variances."
        return ProblemError("tokens.spectrum", f'unknown key "{name}": {instead}')

    # the branches of a union stand in the location too, and name no field
    location = [step for step in location if isinstance(step, int) or step in _NAMES]
    names = [step for step in location if isinstance(step, str)]
    owner: Any = Problem
    if len(names) > 1:
        owner = SpectrumAtom if names[-1] in _ATOM_KEYS else _SECTIONS[names[0]]
    description = owner.__pydantic_fields__[names[-1]].description
    end = max(index for index, step in enumerate(location) if isinstance(step, str)) + 1
    name, entry = _dotted(location[:end]), _dotted(location[end:])
    field = ".".join(names[:2])
    if first["type"] in ("missing", "missing_argument"):
        return ProblemError(field, f"{name} is missing: give {description}.")
    subject = f"its entry {entry}" if entry else "it"
    return ProblemError(field, f"{name} must be {description}, but {subject} is {_shown(first['input'])}.")


def _dotted(location: list[int | str]) -> str:
    """Return a place as one writes it: ``tokens.spectrum[0].weight``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def parse_setting(text: str) -> tuple[str, Any]:
    """Split a command line's ``field=value`` into the field and its value.

    Parameters
    ----------
    text
        Such as ``teacher.omega=0.3``. The value is written as in TOML; a single word needs no
        quotes.

    Returns
    -------
    field
        The name before the equals sign, to be checked by `Problem.with_fields`.
    value
        The value as Python has it.

    Raises
    ------
    ProblemError
        There is no equals sign, or the value is not TOML.
    """
    name, equals, raw = text.partition("=")
    name, raw = name.strip(), raw.strip()
    if not equals or not name:
        raise ProblemError(
            name,
            f"A setting must read field=value, such as teacher.omega=0.3, but it is {_shown(text)}.",
        )
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (ValueError, RecursionError):
        parsed = {}
    if list(parsed) == ["value"]:
        return name, parsed["value"]
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", raw):
        return name, raw
    if re.fullmatch(r"[+-]?(\.\d+|\d+\.)([eE][+-]?\d+)?", raw):  # .3 and 3. are numbers to everyone but TOML
        return name, float(raw)
    raise ProblemError(name, f"{name} cannot be read from {_shown(raw)}: write the value as in TOML.")


def load_problem(path: str | os.PathLike[str]) -> Problem:
    """Read a problem from a TOML file.

    Parameters
    ----------
    path
        The file, encoded in UTF-8; what it leaves out is the paper's.

    Returns
    -------
    Problem
        The checked problem.

    Raises
    ------
    ProblemError
        The file cannot be read, is not TOML (the message has the line), has an unknown key, or a
        wrong value. Every message begins with the file's name.
    """
    file = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ProblemError(file, f"{file}: there is no such file; check its name.") from None
    except IsADirectoryError:
        raise ProblemError(file, f"{file}: this is a folder; name a TOML file in it.") from None
    except UnicodeDecodeError as error:
        raise ProblemError(
            file,
            f"{file}: this is not text in UTF-8 (byte {error.start}); save it in that encoding.",
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ProblemError(file, f"{file}: the file cannot be read: {reason}.") from None
    try:
        return Problem.from_toml(text)
    except ProblemError as error:
        field = file if error.field == "problem" else error.field
        raise ProblemError(field, f"{file}: {error}") from None
