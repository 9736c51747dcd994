"""The numbers of one problem, as its page shows them: what the symbols of the equations stand for.

Plain values only: who describes problems hands them over, and nothing here knows how they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Any

__all__ = ["Setting", "matrix", "number", "vector"]

Row = tuple[str, str]
"""Left and right side of one line of a formula."""

_DIGITS = 14
_WIDE = 64  # characters of a matrix's row beyond which it is set small
_SHOWN = 17  # rows and columns of a matrix, entries of a vector; of longer ones the first and the last are shown
_CONFIGURATIONS = 36  # of clusters that are listed


def number(value: float) -> str:
    """A number in LaTeX, with all digits that rounding leaves sure; thirds and the like as fractions."""
    text = f"{value:.{_DIGITS}g}"
    if len(text) > 9 and value != 0:
        fraction = Fraction(value).limit_denominator(99)
        if fraction and abs(float(fraction) - value) <= 1e-13 * abs(value):
            sign = "-" if value < 0 else ""
            return rf"{sign}\tfrac{{{abs(fraction.numerator)}}}{{{fraction.denominator}}}"
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return mantissa
    power = f"10^{{{int(exponent)}}}"
    return {"1": power, "-1": f"-{power}"}.get(mantissa, rf"{mantissa} \times {power}")


def _shortened(entries: Sequence[Any], gap: Any) -> list[Any]:
    """The entries, or of many the first ones, a gap and the last."""
    return [*entries] if len(entries) <= _SHOWN else [*entries[: _SHOWN - 2], gap, entries[-1]]


def vector(values: Sequence[float]) -> str:
    """Numbers between brackets; of many the first ones and the last, and how many there are."""
    entries = _shortened([number(x) for x in values], r"\dots")
    count = rf" \quad ({len(values)} \text{{ numbers}})" if len(values) > _SHOWN else ""
    if sum(map(len, entries)) + 2 * len(entries) > _WIDE:
        return _array([entries]) + count
    return rf"\left({', '.join(entries)}\right){count}"


def matrix(rows: Sequence[Sequence[float]]) -> str:
    """A matrix in LaTeX; of many rows or columns the first ones and the last, and its size."""
    table = [_shortened([number(x) for x in row], r"\cdots") for row in rows]
    cut = len(rows) > _SHOWN or len(rows[0]) > _SHOWN
    size = rf" \quad ({len(rows)} \times {len(rows[0])})" if cut else ""
    return _array(_shortened(table, [r"\vdots"] * len(table[0]))) + size


def _array(rows: Sequence[Sequence[str]]) -> str:
    width = max(sum(map(len, row)) + 2 * len(row) for row in rows)
    kind = "matrix" if width <= _WIDE and len(rows[0]) <= 10 else "smallmatrix"
    body = r" \\ ".join(" & ".join(row) for row in rows)
    return rf"\left(\begin{{{kind}}} {body} \end{{{kind}}}\right)"


@dataclass(frozen=True)
class Setting:
    r"""What the symbols of a page stand for.

    A site is a token, or for mixture tokens a pair of a token and one of its clusters; there are P of them.

    Attributes
    ----------
    name : str
        Of the problem; pages of different problems differ at least in it.
    sizes : mapping
        LaTeX of a size to its value, such as ``L``.
    parameters : mapping
        LaTeX of a parameter to a number or a table of numbers, such as ``\lambda``.
    texts : mapping
        LaTeX of a function to what is said of it and to the formula or the name that the user gave.
    sites : tuple of (int, int)
        Token and cluster of every site, from 0.
    weights : tuple of float
        Of the measure's A atoms.
    gamma : nested tuple
        Eigenvalues of the sites' covariances on each atom, (A, P).
    mean : nested tuple
        Of ``(tau_1, ..., tau_P, pi_1, ..., pi_t)`` on each atom, (A, P + t).
    covariance : nested tuple
        Likewise, (P + t, P + t), on all atoms alike.
    teacher_means : nested tuple
        ``m_star`` of every site, (P, t).
    configurations, probabilities : nested tuple (C, L) and tuple (C,)
        Joint law of the clusters, from 0.
    spectrum : str or None
        How the eigenvalues were given, if by a ready-made law; empty where the measure says it all.
    law : tuple
        How the clusters' law was given, as `statements` has it; empty without clusters.
    law_is_listed : bool
        Whether it was given choice by choice, so that those that are not shown stand in the problem alone.
    prior : tuple of three tuples
        Of an entry of pi that is not Gaussian: probabilities, means and variances of the Gaussians of which its law is
        a mixture; else empty.
    """

    name: str
    sizes: Mapping[str, int]
    parameters: Mapping[str, Any]
    sites: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    gamma: tuple[tuple[float, ...], ...]
    mean: tuple[tuple[float, ...], ...]
    covariance: tuple[tuple[float, ...], ...]
    teacher_means: tuple[tuple[float, ...], ...]
    configurations: tuple[tuple[int, ...], ...]
    probabilities: tuple[float, ...]
    texts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    spectrum: str | None = None
    law: tuple[str | tuple[Row, ...], ...] = ()
    law_is_listed: bool = False
    prior: tuple[tuple[float, ...], ...] = ()

    @property
    def mixture(self) -> bool:
        """Whether a token has several clusters, or one of its own mean."""
        return bool(self.law)

    @property
    def shifted(self) -> bool:
        """Whether clusters give the teacher's fields a mean."""
        return any(any(row) for row in self.teacher_means)

    @property
    def has_positions(self) -> bool:
        """Whether there are encodings or clusters' means, without which tau and m vanish."""
        count = len(self.sites)
        return any(any(row[:count]) for row in (*self.mean, *self.covariance[:count]))

    def statements(self) -> Iterator[str | tuple[Row, ...]]:
        """Paragraphs, and formulas as lines, in the order in which they stand on the page."""
        sizes = ", ".join(f"${name} = {value}$" for name, value in self.sizes.items())
        yield f"What the symbols stand for in problem `{self.name}`: {sizes}"
        if self.parameters:
            yield tuple(_parameters(self.parameters))
        for symbol, (what, text) in self.texts.items():
            yield f"${symbol}$ {what} `{text}`."
        yield from self._measure()
        yield from self._projections()
        if self.mixture:
            yield from self._clusters()
        variances = [
            sum(w * row[s] for w, row in zip(self.weights, self.gamma, strict=True)) for s in range(len(self.sites))
        ]
        index = r"\ell c" if self.mixture else r"\ell"
        yield rf"Variances of an entry, $\rho^\Sigma_{{{index}}} = \int \mathrm{{d}}\nu \, \gamma_{{{index}}}$:"
        yield ((r"\rho^\Sigma", f"= {vector(variances)}"),)

    def _measure(self) -> Iterator[str | tuple[Row, ...]]:
        if self.mixture:
            pairs = _shortened([f"({token + 1}, {cluster + 1})" for token, cluster in self.sites], "...")
            yield (
                rf"What follows runs over the {len(self.sites)} pairs $(\ell, c)$ of a token and its cluster, in the "
                f"order {', '.join(pairs)}."
            )
        if len(self.weights) == 1:
            yield r"All directions are alike, so that $\int \mathrm{d}\nu$ is a mean over $(\tau, \pi)$ alone, at"
            yield ((r"\gamma", f"= {vector(self.gamma[0])}"),)
            return
        if self.spectrum:
            yield self.spectrum
        yield (
            rf"$\gamma$ takes {len(self.weights)} values; each row has the share of the directions, then $\gamma$"
            + (
                "; all of them are in the problem's file:"
                if len(self.weights) > _SHOWN and self.spectrum is None
                else ":"
            )
        )
        rows = [(w, *row) for w, row in zip(self.weights, self.gamma, strict=True)]
        yield ((r"\left(\text{share} \,|\, \gamma\right)", f"= {matrix(rows)}"),)

    def _projections(self) -> Iterator[str | tuple[Row, ...]]:
        count = len(self.sites)
        if not self.has_positions:
            yield (
                r"There are no encodings"
                + (" and no clusters' means" if self.mixture else "")
                + r": $\tau = 0$, and $m = 0$ in all that follows."
            )
        numbered = _shortened([rf"\tau_{{{s}}}" for s in range(1, count + 1)], r"\dots")
        names = rf"({', '.join(numbered)}, \pi)" if count > 1 else r"(\tau, \pi)"
        covariance = self.covariance
        if not self.has_positions:
            names, covariance = r"\pi", tuple(row[count:] for row in covariance[count:])
        covered = any(any(row) for row in covariance)
        pointed = any(any(row) for row in self.mean)
        if pointed:
            what = "the mean of" if covered else "the values of"
            yield rf"Each row has {what} ${names}$ where $\gamma$ has the value of that row:"
            yield ((r"\mathbb{E}\left[\tau, \pi \,|\, \gamma\right]", f"= {matrix(self.mean)}"),)
        if covered:
            about = rf"About that, ${names}$" if pointed else rf"${names}$"
            is_gaussian = "has a law that is" if self.prior else "is Gaussian,"
            yield rf"{about} {is_gaussian} the same for all $\gamma$, with mean zero and covariance"
            short = r"\tau, \pi" if self.has_positions else r"\pi"
            yield ((rf"\operatorname{{Cov}}\left[{short}\right]", f"= {matrix(covariance)}"),)
        if self.prior:
            yield (
                (r"Of these $\tau$ is Gaussian. The" if self.has_positions else "The")
                + r" entries of $\pi$ are independent of all others. Each is drawn from one of these Gaussians, an "
                "atom where the variance is zero:"
            )
            yield tuple(
                (rf"\text{{{name}}}", f"= {vector(row)}")
                for name, row in zip(("probabilities", "means", "variances"), self.prior, strict=True)
            )

    def _clusters(self) -> Iterator[str | tuple[Row, ...]]:
        if self.shifted:
            yield "The teacher's fields have the means, a row for each pair,"
            yield ((r"m^\star", f"= {matrix(self.teacher_means)}"),)
        else:
            yield r"The teacher's fields have no means: $m^\star = 0$."
        yield from self.law
        listed = list(zip(self.configurations, self.probabilities, strict=True))
        if len(listed) > _CONFIGURATIONS:
            rest = ", and the others are in the problem's file" if self.law_is_listed else ""
            yield f"That makes {len(listed)} choices of clusters; the first ones are below{rest}:"
            listed = listed[:_CONFIGURATIONS]
        entries = [
            f"P({', '.join(str(c + 1) for c in clusters)}) = {number(probability)}" for clusters, probability in listed
        ]
        yield tuple(("", line) for line in _lines(entries))


def _parameters(parameters: Mapping[str, Any]) -> Iterator[Row]:
    """The numbers on lines together, the tables on lines of their own."""
    for tables, group in groupby(parameters.items(), lambda item: isinstance(item[1], Sequence)):
        if tables:
            yield from ((name, f"= {matrix(value)}") for name, value in group)
        else:
            yield from (("", line) for line in _lines([f"{name} = {number(value)}" for name, value in group]))


def _lines(entries: Sequence[str]) -> list[str]:
    """Entries with commas between them, on lines of a page's width."""
    lines = [entries[0]]
    for entry in entries[1:]:
        if len(lines[-1]) + len(entry) < 80:
            lines[-1] += rf", \quad {entry}"
        else:
            lines[-1] += ","
            lines.append(entry)
    return lines
