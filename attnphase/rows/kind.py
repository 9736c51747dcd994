"""What a kind of regulariser says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from attnphase.rows.regularizer import RowRegularizer

__all__ = ["Given", "RegularizerKind"]


class Given(Protocol):
    """The fields of ``[regularizer]``."""

    @property
    def strength(self) -> float | tuple[float, ...]:
        """Its scale; of a ridge perhaps one for each column."""
        ...

    @property
    def ridge(self) -> float:
        """Strength of the added ridge."""
        ...

    @property
    def expression(self) -> str | None:
        """A formula in one weight."""
        ...

    @property
    def prox(self) -> str | None:
        """The name of a proximal operator."""
        ...


class RegularizerKind(ABC):
    """A kind of regulariser; an instance of every subclass stands in `attnphase.rows.kinds.REGULARIZERS`.

    Attributes
    ----------
    name : str
        What ``regularizer.kind`` calls it.
    keys, needs : tuple of str
        The keys of the section that go with it, and those of them that have no default.
    also : tuple of str
        What others call it.
    symbols : mapping
        What equations call the numbers among its keys.
    own : str
        The key of a function that the user gives, if it has one.
    introduced : str
        What stands on a page before the user's function.
    penalty : str
        LaTeX of the penalty of one row ``w``, without the added ridge.
    minimizer : str
        LaTeX of the minimiser of ``penalty + w^2/2 - B w`` in one column, where that is soft thresholding.
    quadratic : bool
        Whether it is the ridge and nothing else: a row's problem is linear, and the risk is as smooth as the loss.
    rotates : bool
        Whether rotations of a row's weights leave it unchanged.
    instead_of_ridge : str
        What to use where ``regularizer.ridge`` does not go with it.
    example : mapping or None
        Values of its keys to begin with, at which the paper's problem has its semantic branch at alpha = 1.5; None
        where nothing can be proposed.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    needs: ClassVar[tuple[str, ...]] = ()
    also: ClassVar[tuple[str, ...]] = ()
    symbols: ClassVar[Mapping[str, str]] = {"strength": "s", "ridge": r"\lambda"}
    own: ClassVar[str] = ""
    introduced: ClassVar[str] = ""
    penalty: ClassVar[str] = ""
    minimizer: ClassVar[str] = ""
    quadratic: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    instead_of_ridge: ClassVar[str] = ""
    example: ClassVar[Mapping[str, Any] | None] = None

    quadratic_latex: ClassVar[str] = r"\tfrac{\lambda}{2} \lVert w \rVert_2^2"

    @abstractmethod
    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """The problem of a row of so many weights.

        Raises
        ------
        ProblemError
            A function of the user's own cannot be used.
        """

    def latex(self, given: Given) -> str | None:
        """LaTeX of the regulariser of one row; None for the ridge, whose equations have it written out."""
        return f"{self.penalty} + {self.quadratic_latex}" if given.ridge else self.penalty

    def minimizer_latex(self, given: Given) -> str | None:
        """Return the LaTeX of the minimiser of ``r(w) + A w^2/2 - B w`` in one column; None without a formula."""
        curvature = f"A + {self.symbols['ridge']}" if given.ridge else "A"
        return rf"\frac{{{self.minimizer}}}{{{curvature}}}" if self.minimizer else None
