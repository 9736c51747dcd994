"""Means: over the spectral measure, over the local fields of one sample, over the noise of one eigendirection."""

from __future__ import annotations

from typing import Any, Self

from sympy import Basic

from derivations.algebra import symbols as sym
from derivations.algebra.tokens import Operator, TokenMatrix, bracketed, operands

__all__ = [
    "FIELDS",
    "ROW",
    "TEACHER",
    "FieldLaw",
    "FieldMean",
    "Law",
    "LawMean",
    "RowLaw",
    "SpectralMean",
    "TeacherLaw",
    "WeightMean",
]


class Law(Basic):
    """What a mean is taken over, known by the matrices that decide about it.

    A law belongs to all tokens: its matrices are kept without their index.
    """

    def __new__(cls, *parameters: TokenMatrix) -> Self:
        """Take the parameters."""
        return super().__new__(cls, *(TokenMatrix(p.name, *p.shape, None, *operands(p)[4:]) for p in parameters))


class FieldLaw(Law):
    """The local fields of one sample: jointly Gaussian ``omega_l`` and ``k_l``, and what is made of them.

    The parameters are the mean and covariance of ``omega``, its covariance with ``k`` and that of ``k``, and the
    variance of the proximal problem, on which the residual ``g`` depends.
    """


class TeacherLaw(Law):
    """The teacher's fields of one sample, and the clusters of its tokens; the parameter is the covariance of ``k``."""


class RowLaw(Law):
    """The noise ``z`` of one eigendirection, and the row of weights ``w(z)`` that the conjugates make of it."""


FIELDS = FieldLaw(sym.m, sym.q, sym.theta, sym.rho, sym.V)
TEACHER = TeacherLaw(sym.rho)
ROW = RowLaw(*sym.CONJUGATES)


class SpectralMean(Operator):
    """Mean over the spectral measure ``nu(gamma, tau, pi)`` of equation (5)."""

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\int\!\mathrm{{d}}\nu\, {bracketed(self.body, printer)}"


class LawMean(Operator):
    """A mean whose law depends on order parameters or conjugates, although its body may not show them."""

    @property
    def law(self) -> Law:
        """What the mean is taken over."""
        return operands(self)[1]


class FieldMean(LawMean):
    """Mean over the local fields of one sample.

    ``omega_l ~ N(m_l, q_l)`` and ``k_l`` are jointly Gaussian with covariance blocks ``q_l, theta_l, rho_l``,
    independent over tokens.  Its derivative rule is Price's theorem: with respect to a mean, the mean of the gradient;
    with respect to a covariance block, the mean of the Hessian block (half of it for a diagonal block).
    """

    usual = (FIELDS,)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}\left[{printer._print(self.body)}\right]"


class WeightMean(LawMean):
    """Mean over the effective noise ``z`` of one eigendirection, of functions of its row of weights ``w``."""

    usual = (ROW,)

    def _latex(self, printer: Any, **kwargs: Any) -> str:
        return rf"\mathbb{{E}}_z\left[{printer._print(self.body)}\right]"
