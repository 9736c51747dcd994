"""The user's description of a problem: frozen dataclasses that read and write TOML.

A `Problem` says *what* is studied: the tokens' law, the positional encodings, the teacher, the
student, the regulariser, the loss, test metrics, and how finely Gaussian expectations are integrated. Where it is
solved (sample complexity, branch) and how the iteration runs are arguments of `attnphase.solve`.

Every value is checked when it is given. A wrong one raises `ProblemError`, whose message is one
sentence that names the field as it stands in the TOML, such as ``teacher.mixing``.

Conventions are those of Cui, Behrens, Krzakala and Zdeborová, arXiv:2402.03902; every quantity
is dimensionless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from inspect import Parameter, Signature
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self

import tomli_w
from pydantic import model_validator
from pydantic.dataclasses import dataclass

from attnphase import arguments
from attnphase.arrays import Array
from attnphase.display import in_markdown
from attnphase.errors import ProblemError
from attnphase.problem.attention import PAPER_MIXING, Student, Teacher
from attnphase.problem.canonical import canonical_toml
from attnphase.problem.changes import change
from attnphase.problem.consistency import check_rule, check_sections
from attnphase.problem.entries import entry_of
from attnphase.problem.integration import Integration
from attnphase.problem.loss import Loss
from attnphase.problem.messages import shown, toml_table, unknown_key
from attnphase.problem.own_functions import check_own_functions, sections_of_formulas
from attnphase.problem.positions import Positions
from attnphase.problem.regularizer import Regularizer
from attnphase.problem.schema import as_plain_dict, sections
from attnphase.problem.sections import Sections
from attnphase.problem.tables import check_square
from attnphase.problem.tokens import Tokens
from attnphase.problem.toml import digest_of, parse_toml
from attnphase.problem.values import (
    CONFIG,
)
from attnphase.rows.regularizer import RowRegularizer

__all__ = ["DataProblem", "Problem"]

_REPR_FIELDS = 6  # fields that a problem's line shows


@toml_table("")
@dataclass(frozen=True, config=CONFIG)
class Problem(Sections):
    """A problem; fields that are left out have the paper's values. docs/problem.md describes all fields.

    Two defaults depend on the number of tokens L. The mixing matrix A is the paper's
    ((.6, .4), (.4, .6)) for L = 2, and uniform, 1/L, otherwise. The encodings are the paper's
    opposite ones for L = 2. For L > 2 they are the corners of a simplex around the origin, with unit
    norms and products -1/(L-1), as ``kind = "gram"``. For L = 1 there are none. If the atoms of
    ``tokens.spectrum`` contain the encodings, ``positions.kind`` is ``"spectrum"``. Both defaults are
    filled in, so that a problem does not depend on whether they are written out.

    Parameters
    ----------
    tokens, positions, teacher, student, regularizer, integration, loss, metrics : mapping, optional
        The sections of the TOML. ``help(ap.interface.Loss)`` describes the fields of ``loss``, and so on.

    Raises
    ------
    ProblemError
        A value is wrong, or two values do not go together.

    Notes
    -----
    ``Problem()`` is the setting of Figure 2 of arXiv:2402.03902.

    Examples
    --------
    >>> Problem(tokens={"length": 3}, regularizer={"strength": 0.1}).teacher.mixing[0]
    (0.3333333333333333, 0.3333333333333333, 0.3333333333333333)
    """

    MADE_BY: ClassVar[str] = "load_problem reads one from a file, Problem.from_dict makes one of a mapping"

    # fields that nobody gave, so that they follow the length in `with_fields`
    _filled_in: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False, hash=False)

    if TYPE_CHECKING:  # sections are read from mappings too

        def __init__(
            self,
            tokens: Tokens | Mapping[str, Any] = ...,
            positions: Positions | Mapping[str, Any] = ...,
            teacher: Teacher | Mapping[str, Any] = ...,
            student: Student | Mapping[str, Any] = ...,
            regularizer: Regularizer | Mapping[str, Any] = ...,
            integration: Integration | Mapping[str, Any] = ...,
            loss: Loss | Mapping[str, Any] = ...,
            metrics: Mapping[str, str | Callable[..., Any]] = ...,
        ) -> None: ...

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._fill_in()
        check_square("teacher.mixing", self._mixing, self.tokens.length)
        check_sections(self)
        check_own_functions(self, self._may_look_up)
        check_rule(self)
        return self

    def _may_look_up(self, name: str) -> bool:
        """Whether a function may be looked up, which may import a module; a formula may always be read."""
        return True

    @property
    def imports(self) -> dict[str, str]:
        """Fields that name a function of a module, and the name as "module:function"."""
        named = {}
        if self.loss.has_attention:
            named = {"teacher.score": self.teacher.score, "student.score": self.student.score}
        named["regularizer.prox"] = self.regularizer.prox or ""
        return {name: value for name, value in named.items() if ":" in value}

    def require_functions(self) -> None:
        """Refuse functions of modules that only a dataset names, before they are looked up; see ``DataProblem``.

        Raises
        ------
        ProblemError
            The message names the field and the remedy.
        """

    @property
    def rows(self) -> RowRegularizer:
        """The regulariser of one row of the weights.

        Raises
        ------
        ProblemError
            The problem came with data and names a function of a module.
        """
        self.require_functions()
        return self.regularizer.rows(self.columns)

    def _fill_in(self) -> None:
        length = self.tokens.length
        for name, section in sections_of_formulas(self).items():
            object.__setattr__(self, name, section)
        filled_in = set()
        if self.teacher.mixing is None:
            uniform = ((1 / length,) * length,) * length
            mixing = PAPER_MIXING if length == 2 else uniform
            object.__setattr__(self, "teacher", replace(self.teacher, mixing=mixing))
            filled_in.add("teacher.mixing")
        if self.positions.kind is None:
            in_atoms = self.tokens.points("positions") is not None
            positions = self.positions.of_length(length, in_atoms=in_atoms)
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
        mixing: Sequence[Sequence[float]] | Array | None = None,
    ) -> Self:
        """Return the paper's problem, at the parameters it varies.

        Parameters
        ----------
        omega : float
            Weight of the teacher's positional part.
        sigma : float
            Standard deviation of the tokens' entries.
        strength : float
            Ridge strength λ.
        mixing : sequence of sequence of float, optional
            Shape (2, 2): positional part A, ((.6, .4), (.4, .6)) if left out; the paper's second example, equation
            (144), has ((.3, .7), (.8, .2)).

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
            tokens={"sigma": sigma},
            teacher={"omega": omega, "mixing": mixing},
            regularizer={"strength": strength},
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the sections and their keys as plain dicts, lists and scalars.

        Returns
        -------
        dict
            ``{"tokens": {"kind": "gaussian", …}, …}``, with the defaults filled in. Keys are left out
            if they have no value or have no effect: temperatures of 1, masks that are off, a ridge of 0,
            the paper's loss, and an empty table of metrics.
        """
        data = {name: as_plain_dict(getattr(self, name)) for name in sections()}
        if self.loss == Loss():
            del data["loss"]
        if not self.metrics:
            del data["metrics"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make a problem from nested mappings, as a TOML parser returns them.

        Parameters
        ----------
        data : mapping
            Sections by name; missing fields have the paper's values.

        Raises
        ------
        ProblemError
            A key is unknown, or a value is wrong.
        """
        if not isinstance(data, Mapping):
            raise ProblemError("problem", f"A problem must be a table, but it is {shown(data)}.")
        for name in data:
            if name not in sections():
                raise unknown_key(cls, "", str(name))
        return cls(**data)

    def to_toml(self) -> str:
        """Return the problem as TOML, with the defaults filled in; `from_toml` reads it back."""
        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Make a problem from TOML text.

        Parameters
        ----------
        text : str
            The TOML; missing fields have the paper's values.

        Raises
        ------
        ProblemError
            `text` is not a text or not TOML, a key is unknown, or a value is wrong.
        """
        return cls.from_dict(parse_toml(arguments.text("text", text, "a problem as TOML text")))

    @staticmethod
    def from_data(text: str, digest: str) -> DataProblem:
        """Make a problem from the TOML of a dataset, without trust in it.

        Unlike `from_toml`, this imports no module and opens no file that the text names.

        Parameters
        ----------
        text : str
            TOML from `to_toml`.
        digest : str
            The `hash` of the problem, from the same dataset.

        Raises
        ------
        ProblemError
            The hash is that of another problem (the error's field is then ``problem_hash``), or the text is no problem.
        """
        other = ProblemError("problem_hash", "The problem's hash belongs to another problem.")
        if digest_of(text) == digest:  # of a problem without formulas, and of any in older data
            return DataProblem.from_dict(parse_toml(text))
        try:
            found = DataProblem.from_dict(parse_toml(text))
        except ProblemError:
            raise other from None
        if found.hash != digest:
            raise other
        return found

    def with_fields(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> Self:
        """Return a copy in which some fields have new values.

        Defaults that depend on the number of tokens follow a new ``tokens.length``. If two fields
        exclude each other (``tokens.sigma`` and ``tokens.spectrum``; ``positions.gram`` and another
        ``positions.kind``), the new one replaces the old one. A new kind removes the keys of the old
        kind.

        Parameters
        ----------
        values, **named : mapping, optional
            New values by the field's name in the TOML, such as ``{"teacher.omega": 0.2}`` or
            ``{"tokens.law.probability": 0.7}``; None restores the default.

        Raises
        ------
        ProblemError
            A field is unknown, a value is wrong, or `values` is no mapping.

        Examples
        --------
        >>> Problem().with_fields({"teacher.omega": 0.2}).teacher.omega
        0.2
        """
        if values is not None:
            arguments.mapping("values", values, "a mapping from fields of the problem to new values")
        changes = {**(values or {}), **named}
        data = self.to_dict()
        for name in self._filled_in - {entry_of(name)[0] for name in changes if isinstance(name, str)}:
            section, _, key = name.partition(".")
            data[section].pop(key, None)
        change(data, changes)
        return type(self).from_dict(data)

    @property
    def hash(self) -> str:
        """First 16 hexadecimal digits of a SHA-256, which all problems have in common that are the same model.

        It is that of `to_toml`, with the expression of each formula in place of its text, and without what has no
        effect. So a loss has the same hash as a function and as the same formula.
        """
        return digest_of(canonical_toml(self, self.to_dict()))

    def __repr__(self) -> str:
        """One line: what the problem is, and in which fields it is not the paper's."""
        student, teacher = self.student, self.teacher
        plural = "" if self.tokens.length == 1 else "s"
        parts = [f"{self.tokens.length} {self.tokens.form.title} token{plural}"]
        if self.loss.has_attention:
            parts.append(
                f"{'tied' if student.tied else 'untied'} {_brief(student.score)} student of rank {student.rank}"
            )
            parts.append(f"{_brief(teacher.score)} teacher of rank {teacher.rank}")
        else:
            parts.append(f"r = {self.columns}, t = {self.teacher_columns}")
        parts += [self.regularizer.kind, f"{self.loss.kind} loss"]
        changed = [f"{name} = {_brief(value)}" for name, value in self._unlike(Problem()).items()]
        more = f" and {len(changed) - _REPR_FIELDS} more" if len(changed) > _REPR_FIELDS else ""
        unlike = f"not as in the paper {', '.join(changed[:_REPR_FIELDS])}{more}" if changed else "as in the paper"
        return f"<Problem {self.hash}: {', '.join(parts)}; {unlike}>"

    def _unlike(self, other: Problem) -> dict[str, Any]:
        """The fields that somebody gave and that the other problem does not have or has otherwise."""
        theirs = other.to_dict()
        return {
            f"{section}.{key}": value
            for section, entries in self.to_dict().items()
            for key, value in entries.items()
            if f"{section}.{key}" not in self._filled_in and theirs.get(section, {}).get(key) != value
        }

    def _repr_markdown_(self) -> str:
        """The model's equations and numbers, for notebooks."""
        return in_markdown(self)


# for `help` and editors at run time: pydantic's own has the classes of the sections with all their fields
_SECTIONS = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default={}) for one in sections()]
Problem.__signature__ = Signature(_SECTIONS)  # pyright: ignore[reportAttributeAccessIssue]


class DataProblem(Problem):
    """A problem that came with data: it is looked at, compared and changed like any other, but imports nothing.

    Its functions of modules are looked up by nobody, and it names no file.  To solve it, make a `Problem` of it, which
    is to trust it: ``Problem.from_toml(problem.to_toml())``.  Formulas and scores that were registered in this process
    need no import, and may be used.
    """

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `Problem.from_dict`, without opening the file of a spectrum.

        Raises
        ------
        ProblemError
            A key is unknown, a value is wrong, or ``tokens.spectrum`` is the name of a file.
        """
        tokens = data.get("tokens") if isinstance(data, Mapping) else None
        if isinstance(tokens, Mapping) and isinstance(tokens.get("spectrum"), str | PathLike):
            raise ProblemError(
                "tokens.spectrum",
                f"tokens.spectrum names the file {shown(str(tokens['spectrum']))}, which data must not: its atoms must"
                " be written out.",
            )
        return super().from_dict(data)

    def _may_look_up(self, name: str) -> bool:
        return ":" not in name and not name.isidentifier()  # what is no formula is of a module, or registered

    def require_functions(self) -> None:
        """Refuse functions of modules.

        Raises
        ------
        ProblemError
            Naming the first.
        """
        for name, value in self.imports.items():
            raise ProblemError(
                name,
                f'{name} is "{value}", a function of a module, which is not imported for a problem that came with data:'
                " give the problem yourself, by load_problem or Problem.from_toml.",
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.to_dict() == other.to_dict()

    __hash__ = Problem.__hash__


def _brief(value: Any) -> str:
    """A value in a problem's line."""
    text = value if isinstance(value, str) and value.isidentifier() else shown(value)
    return text if len(text) <= 32 else text[:29] + "..."
