"""The sections of a problem together: sizes, sites, and the products of its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PlainValidator
from pydantic.dataclasses import dataclass

from attnphase.arrays import Array
from attnphase.problem.attention import Student, Teacher, matrices_of_weights
from attnphase.problem.integration import Integration
from attnphase.problem.loss import Loss
from attnphase.problem.metrics import Metrics
from attnphase.problem.positions import Positions
from attnphase.problem.regularizer import Regularizer
from attnphase.problem.tables import table_or_zeros
from attnphase.problem.tokens import Tokens
from attnphase.problem.values import CONFIG, TABLE

__all__ = ["Sections"]


@dataclass(frozen=True, config=CONFIG)
class Sections:
    """The eight sections; `attnphase.problem.problem.Problem` says what they are and reads them.

    Raises
    ------
    ProblemError
        A value is wrong in itself.
    """

    tokens: Annotated[Tokens, TABLE, Field(description="a table")] = Tokens()
    positions: Annotated[Positions, TABLE, Field(description="a table")] = Positions()
    teacher: Annotated[Teacher, TABLE, Field(description="a table")] = Teacher()
    student: Annotated[Student, TABLE, Field(description="a table")] = Student()
    regularizer: Annotated[Regularizer, TABLE, Field(description="a table")] = Regularizer()
    integration: Annotated[Integration, TABLE, Field(description="a table")] = Integration()
    loss: Annotated[Loss, TABLE, Field(description="a table")] = Loss()
    metrics: Annotated[Mapping[str, str], PlainValidator(Metrics.of)] = Metrics()

    @property
    def columns(self) -> int:
        """Number of columns of the student's weights: r if tied, 2r for (Q|K), plus the value matrix's."""
        return self.student.rank * matrices_of_weights(self.student.tied) + self.loss.value_columns

    @property
    def teacher_columns(self) -> int:
        """Number of columns of the teacher's weights Q⋆: t, plus the value matrix's."""
        return self.teacher.rank + self.loss.value_columns

    @property
    def numbers(self) -> dict[str, float]:
        """Numbers of the loss and of the tokens' law by name, which metrics may take; of those trained the starts."""
        return {**self.loss.numbers, **(self.tokens.parameters or {})}

    @property
    def field_noise(self) -> float:
        """Variance of the labels' noise where it is part of the teacher's field, else 0."""
        return self.teacher.noise if self.loss.form.noisy_fields else 0.0

    @property
    def target_noise(self) -> float:
        """Variance of the labels' noise on every entry of what is made of the teacher's fields, else 0."""
        return 0.0 if self.loss.form.noisy_fields else self.teacher.noise

    @property
    def sites(self) -> tuple[tuple[int, int], ...]:
        """The P pairs (token, cluster), token by token; L pairs (l, 0) for Gaussian tokens."""
        lists = self.tokens.cluster_lists
        return tuple((token, cluster) for token, row in enumerate(lists) for cluster in range(len(row)))

    @property
    def cluster_law(self) -> tuple[NDArray[np.int64], Array]:
        """The joint law of the clusters.

        Returns
        -------
        configurations
            Shape (C, L): the site of each token, for every configuration of probability above 0.
        probabilities
            Shape (C,); they sum to 1.
        """
        clusters, probabilities = self.tokens.configurations
        counts = [len(row) for row in self.tokens.cluster_lists]
        first = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        return clusters + first, probabilities

    @property
    def positions_gram(self) -> Array:
        """Products p_l · p_k of the encodings, shape (L, L)."""
        points = self.tokens.points("positions")
        if points is not None:
            weights, _ = self.spectrum_atoms()
            return (points.T * weights) @ points
        return self.positions.products(self.tokens.length)

    @property
    def site_means(self) -> Array:
        """Coordinates of each site's mean μ in the orthonormal directions e_k, shape (P, K).

        Where the atoms of ``tokens.spectrum`` have the means, there are no directions: K = 0.
        """
        directions = self.tokens.mean_directions
        rows = [cluster.mean or (0.0,) * directions for row in self.tokens.cluster_lists for cluster in row]
        return np.array(rows).reshape(len(rows), directions)

    @property
    def joint_gram(self) -> Array:
        """Products of the vectors (e_1..e_K, p_1..p_L, Q⋆_1/√d..Q⋆_t/√d), a square of side K + L + t."""
        directions, length, columns = self.tokens.mean_directions, self.tokens.length, self.teacher_columns
        weights, _ = self.spectrum_atoms()
        positions, teacher = self.tokens.points("positions"), self.tokens.points("teacher")
        mean_positions = table_or_zeros(self.tokens.mean_positions, (length, directions))
        mean_teacher = table_or_zeros(self.tokens.mean_teacher, (columns, directions))
        positions_teacher = table_or_zeros(self.positions.teacher, (length, columns))
        teachers = np.zeros((columns, columns))
        if teacher is None:
            law = self.teacher.law
            teacher, teachers = np.full((len(weights), columns), law.mean), law.variance * np.eye(columns)
        if positions is not None and teacher.any():
            positions_teacher = (positions.T * weights) @ teacher
        teachers = teachers + (teacher.T * weights) @ teacher
        return np.block(
            [
                [np.eye(directions), mean_positions.T, mean_teacher.T],
                [mean_positions, self.positions_gram, positions_teacher],
                [mean_teacher, positions_teacher.T, teachers],
            ]
        )

    @property
    def mixing_matrix(self) -> Array:
        """Positional part A of the teacher, shape (L, L)."""
        return np.array(self._mixing)

    @property
    def _mixing(self) -> tuple[tuple[float, ...], ...]:
        assert self.teacher.mixing is not None, "filled in when the problem was made"
        return self.teacher.mixing

    @property
    def site_variances(self) -> Array:
        """Mean variance ρ^Σ_s = tr Σ_s / d of an entry at each site, shape (P,)."""
        weights, variances = self.spectrum_atoms()
        return weights @ variances

    @property
    def token_variances(self) -> Array:
        """Mean variance of each token's entries, shape (L,); for a mixture the mean over its clusters."""
        configurations, probabilities = self.cluster_law
        return probabilities @ self.site_variances[configurations]

    def spectrum_atoms(self) -> tuple[Array, Array]:
        """Return the joint spectral measure of the covariances, as atoms.

        Returns
        -------
        weights
            Shape (A,): fraction of the eigen-directions; they sum to 1.
        variances
            Shape (A, P): eigenvalues γ_s of each site's covariance there.
        """
        return self.tokens.spectrum_atoms()
