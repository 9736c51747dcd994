"""The kinds of losses of one sample, and the symbolic model of each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attnphase.lazy import loaded_on_use
from attnphase.problem.attention import matrices_of_weights

with loaded_on_use(__name__):
    from derivations.models import attention, scalar, scores

if TYPE_CHECKING:
    from derivations.models.scalar import LabelPlanes, Roughness

__all__ = ["LOSSES", "Architecture", "LossKind", "Sizes"]

Sizes = tuple[int, int, int]
"""Number of tokens, and of columns of the student's and the teacher's weights."""


class Architecture(Protocol):
    """What of a problem a model depends on; `attnphase.kernels` hashes it."""

    @property
    def length(self) -> int:
        """Number of tokens L."""
        ...

    @property
    def rank(self) -> int:
        """Columns of the student's queries."""
        ...

    @property
    def tied(self) -> bool:
        """Whether keys have the queries' weights."""
        ...

    @property
    def student_score(self) -> str:
        """As in the TOML."""
        ...

    @property
    def student_causal(self) -> bool:
        """As in the TOML."""
        ...

    @property
    def teacher_score(self) -> str:
        """As in the TOML."""
        ...

    @property
    def teacher_causal(self) -> bool:
        """As in the TOML."""
        ...

    @property
    def teacher_rank(self) -> int:
        """Columns of the teacher's queries."""
        ...

    @property
    def values(self) -> int:
        """Columns of the value matrices."""
        ...

    @property
    def expression(self) -> str:
        """The user's formula."""
        ...

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the formula's own numbers."""
        ...

    @property
    def trained(self) -> tuple[str, ...]:
        """Those that are trained."""
        ...

    @property
    def finite(self) -> bool:
        """Whether samples have the Gram matrices of finite d."""
        ...

    @property
    def noisy(self) -> bool:
        """Whether the labels have noise that the loss takes apart from the teacher's fields."""
        ...


class LossKind(ABC):
    """A kind of loss; an instance of every subclass stands in `LOSSES`.

    Attributes
    ----------
    name : str
        What ``loss.kind`` calls it.
    keys, needs : tuple of str
        The keys of the section that go with it, and those of them that have no default.
    also : tuple of str
        What others call it.
    has_attention : bool
        Whether scores, temperatures, masks, omega and mixing enter.
    has_grams : bool
        Whether it compares attention matrices, weighted with the tokens' Gram matrices, rather than fields or outputs;
        a linear student is then a closed form.
    has_labels : bool
        Whether only the sign of the teacher's field enters, so that there are wrong labels to count.
    noisy_fields : bool
        Whether ``teacher.noise`` is added to the teacher's field, and not to what is made of the fields.
    noise_is_quadratic : bool
        Whether the labels' noise enters to second order at most, and its square without the student: then the mean
        gradient is that of labels without noise (`derivations.models.noise` shows it).
    is_squared : bool
        Whether it is half the squared difference of two fields, so that the student is ridge regression.
    requires : mapping
        Fields of the problem and the values that it is made for.
    example : mapping
        Fields of a problem to begin with.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ()
    also: ClassVar[tuple[str, ...]] = ()
    has_attention: ClassVar[bool] = False
    has_grams: ClassVar[bool] = False
    has_labels: ClassVar[bool] = False
    noisy_fields: ClassVar[bool] = False
    noise_is_quadratic: ClassVar[bool] = False
    is_squared: ClassVar[bool] = False
    requires: ClassVar[Mapping[str, Any]] = {}
    example: ClassVar[Mapping[str, Any]] = {}

    @property
    def has_kink(self) -> bool:
        """Whether it is not differentiable somewhere, which optimisers of finite instances cannot handle."""
        return False

    @property
    def label_jumps(self) -> bool:
        """Whether it jumps somewhere as the teacher's fields vary; `has_labels` is apart, with exact means over k."""
        return False

    @property
    def is_rough(self) -> bool:
        """Whether there are jumps or kinks, of the label or the loss, which a tensor rule is not to be taken across."""
        return self.has_kink or self.label_jumps

    @property
    def cluster_columns(self) -> int:
        """1 if it takes the numbers of the tokens' clusters, else 0."""
        return 0

    @property
    def label_planes(self) -> tuple[Mapping[tuple[int, int], float], Sequence[float]] | None:
        """Normal and offsets of the planes of the teacher's fields where the label jumps; None where it jumps else."""
        return ({(0, 0): 1.0}, (0.0,)) if self.has_labels else ({}, ())

    def of(
        self, expression: str | None, parameters: Mapping[str, float | None], sizes: Sizes | None = None
    ) -> LossKind:
        """The kind of a loss with this formula, if it takes one, and its numbers; None of those that are trained.

        The sizes of its arrays are L and the columns of student and teacher; without them it can have none.
        """
        return self

    def norms(self, expression: str | None, sizes: Sizes, parameters: Mapping[str, float]) -> tuple[str, ...]:
        """Names of the entries of ``Q = W^T W / d``, if a formula takes it and they are no parameters of the user's."""
        return ()

    @abstractmethod
    def model(self, of: Architecture) -> Any:
        """The symbolic model (imports SymPy)."""


class Attention(LossKind):
    """``"attention"``: half the squared distance of the layers' outputs, the paper's."""

    name = "attention"
    has_attention = True
    has_grams = True
    noise_is_quadratic = True

    def model(self, of: Architecture) -> Any:
        """See `LossKind`."""
        student = attention.Student(scores.resolve(of.student_score, of.length), of.rank, of.tied, of.student_causal)
        teacher = attention.Teacher(scores.resolve(of.teacher_score, of.length), of.teacher_rank, of.teacher_causal)
        return attention.AttentionModel(of.length, student, teacher, of.values, of.finite, of.noisy)


class Values(Attention):
    """``"values"``: the same of layers with value matrices of ``width`` columns."""

    name = "values"
    keys = ("width",)
    has_grams = False


class Scalar(LossKind):
    """A loss of one field of the student and one of the teacher."""

    noisy_fields = True
    requires: ClassVar = {"tokens.length": 1, "teacher.rank": 1, "student.rank": 1, "student.tied": True}
    example: ClassVar = {"tokens.length": 1}

    def model(self, of: Architecture) -> Any:
        """See `LossKind`."""
        return scalar.SCALAR_LOSSES[self.name]


class Square(Scalar):
    """``"square"``: half the squared difference of the fields."""

    name = "square"
    also = ("l2", "least_squares", "mean_squared_error", "mse", "quadratic", "squared_error")
    is_squared = True


class Logistic(Scalar):
    """``"logistic"``: of the label that is the sign of the teacher's field."""

    name = "logistic"
    also = ("bce", "binary_cross_entropy", "cross_entropy", "log_loss")
    has_labels = True


class Hinge(Scalar):
    """``"hinge"``: of this label."""

    name = "hinge"
    also = ("svm",)
    has_labels = True

    @property
    def has_kink(self) -> bool:
        """See `LossKind`."""
        return True


@dataclass(frozen=True)
class Formula(LossKind):
    """``"expression"``: a formula of the user's own in all fields, and in the labels' noise."""

    name = "expression"
    keys = ("expression", "parameters", "trained")
    needs = ("expression",)
    example: ClassVar = {"tokens.length": 1, "loss.expression": "sqrt(1 + (h0_0 - k0_0)**2)"}
    text: str = ""
    numbers: tuple[tuple[str, float | None], ...] = ()
    sizes: Sizes | None = None

    @property
    def has_kink(self) -> bool:
        """See `LossKind`; imports SymPy."""
        return bool(self.text) and _roughness(self.text, self.numbers, self.sizes).kink

    @property
    def label_jumps(self) -> bool:
        """See `LossKind`; imports SymPy."""
        return bool(self.text) and _roughness(self.text, self.numbers, self.sizes).label_jumps

    @property
    def is_rough(self) -> bool:
        """See `LossKind`; imports SymPy."""
        return super().is_rough or (bool(self.text) and _roughness(self.text, self.numbers, self.sizes).label_bends)

    @property
    def cluster_columns(self) -> int:
        """See `LossKind`; imports SymPy."""
        return int(bool(self.text) and _takes_clusters(self.text))

    @property
    def label_planes(self) -> tuple[Mapping[tuple[int, int], float], Sequence[float]] | None:
        """See `LossKind`; imports SymPy."""
        return _label_planes(self.text, self.numbers, self.sizes) if self.text else ({}, ())

    def of(self, expression: str | None, parameters: Mapping[str, float | None], sizes: Sizes | None = None) -> Formula:
        """See `LossKind`."""
        return Formula(expression or "", tuple(parameters.items()), sizes)

    def norms(self, expression: str | None, sizes: Sizes, parameters: Mapping[str, float]) -> tuple[str, ...]:
        """See `LossKind`; imports SymPy if there is a Q in the formula."""
        return _norms(expression, sizes[1], tuple(parameters)) if expression and "Q" in expression else ()

    def model(self, of: Architecture) -> Any:
        """See `LossKind`."""
        columns = of.rank * matrices_of_weights(of.tied)
        sizes = of.length, columns, of.teacher_rank
        return scalar.formula_loss(of.expression, *sizes, of.noisy, of.parameters, of.trained)


@lru_cache(maxsize=64)
def _roughness(expression: str, numbers: tuple[tuple[str, float | None], ...], sizes: Sizes | None) -> Roughness:
    return scalar.formula_roughness(expression, dict(numbers), sizes and scalar.Sizes(*sizes))


@lru_cache(maxsize=64)
def _norms(expression: str, columns: int, parameters: tuple[str, ...]) -> tuple[str, ...]:
    return scalar.norm_names(columns) if scalar.takes_norms(expression, parameters) else ()


@lru_cache(maxsize=64)
def _takes_clusters(expression: str) -> bool:
    return scalar.takes_clusters(expression)


@lru_cache(maxsize=64)
def _label_planes(
    expression: str, numbers: tuple[tuple[str, float | None], ...], sizes: Sizes | None
) -> LabelPlanes | None:
    return scalar.formula_label_planes(expression, dict(numbers), sizes and scalar.Sizes(*sizes))


LOSSES: dict[str, LossKind] = {
    kind.name: kind for kind in (Attention(), Values(), Square(), Logistic(), Hinge(), Formula())
}
"""By name; to add one, write a subclass of `LossKind` and put it here."""
