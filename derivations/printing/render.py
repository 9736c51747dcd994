r"""The equations of a model as a page to read: LaTeX and Markdown.

Nothing derived is written here: formulas are printed from the expressions of
`derivations.replica.chain`, `derivations.replica.saddle_point` and `derivations.replica.observables`; only definitions
(what a symbol stands for) and the sentences around them are text.  A page is a `Document`, a
sequence of headings, paragraphs and tagged formulas, from which both formats are written.

Two kinds of pages: with L, r and t as symbols, or, with ``concrete=True``, for the sizes of the
given model.  Sums over tokens are then written out, at r = t = 1 all matrices are printed as the
numbers they are, and the loss of one sample is printed entry by entry.  With a `Setting` the page
is that of one problem: a section has its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any

from sympy import (
    Add,
    Expr,
    Indexed,
    Integer,
    Mul,
    Pow,
    Rational,
    S,
    Sum,
    Symbol,
    preorder_traversal,
    sqrt,
)
from sympy.matrices.expressions import (
    Identity,
    Inverse,
    MatAdd,
    MatMul,
    MatrixExpr,
    Trace,
    Transpose,
)
from sympy.printing.latex import LatexPrinter

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import transposed
from derivations.algebra.means import FieldMean, SpectralMean, WeightMean
from derivations.algebra.minima import FieldLoss, MoreauEnvelope, QuadraticMinimum, RowMinimum, RowPenalty
from derivations.algebra.tokens import MatrixSqrt, TokenMatrix, TokenSum, operands
from derivations.models.attention import AttentionModel, Definition, ScalarModel
from derivations.models.foreign import contained
from derivations.models.scores import RowScore
from derivations.printing.setting import Setting
from derivations.replica.chain import FreeEntropy, Step, _ReplicaSum, derive_free_entropy, precision
from derivations.replica.moments import CommonGaussianMoment, LogPartitionMean, ReplicatedMoment
from derivations.replica.observables import OBSERVABLES, SEPARABLE_OBSERVABLES
from derivations.replica.saddle_point import (
    RESOLVENT,
    SaddlePoint,
    abbreviated,
    conditional_covariance,
    conditional_mean,
    definitions,
    derive_saddle_point,
)

__all__ = [
    "Document",
    "EquationPrinter",
    "Formula",
    "Heading",
    "Paragraph",
    "document",
    "equations_page",
    "latex",
    "markdown",
    "model_page",
    "score_names",
]

_PAPER = (
    "Cui, Behrens, Krzakala and Zdeborová, A phase transition between positional and semantic "
    "learning in a solvable model of dot-product attention, arXiv:2402.03902"
)

# printed width, in characters of a formula, that fits the text block of the LaTeX page
_LINE = 74

_OPERATORS = (TokenSum, SpectralMean, FieldMean, WeightMean)
# nodes that print a name of their own, whatever the sizes
_NAMED = (
    CommonGaussianMoment,
    FieldLoss,
    LogPartitionMean,
    MoreauEnvelope,
    QuadraticMinimum,
    ReplicatedMoment,
    RowMinimum,
    RowPenalty,
)


# --- printing ----------------------------------------------------------------------------------


def expanded(expression: Any, length: int) -> Any:
    """The expression with every sum over tokens written out for tokens 1, ..., ``length``."""
    if isinstance(expression, TokenSum):
        body, index = operands(expression)
        terms = [body.xreplace({index: Integer(i)}) for i in range(1, length + 1)]
        return MatAdd(*terms).doit(deep=False) if body.is_Matrix else Add(*terms)
    if isinstance(expression, MatAdd):
        return MatAdd(*(expanded(a, length) for a in expression.args)).doit(deep=False)
    if not getattr(expression, "args", ()) or isinstance(expression, (TokenMatrix, Indexed)):
        return expression
    return expression.func(*(expanded(a, length) for a in expression.args))


def scalarized(expression: Any, printer: LatexPrinter) -> Any:
    """An expression of 1 x 1 matrices as one of commuting numbers, with the names that a printer gives the matrices."""
    if isinstance(expression, TokenMatrix):
        return Symbol(printer.doprint(expression))
    if isinstance(expression, Identity):
        return S.One
    if isinstance(expression, (Transpose, Trace)):
        return scalarized(expression.arg, printer)
    if isinstance(expression, Inverse):
        return 1 / scalarized(expression.arg, printer)
    if isinstance(expression, MatrixSqrt):
        return sqrt(scalarized(expression.args[0], printer))
    if isinstance(expression, _OPERATORS):
        return expression.apply(scalarized(expression.body, printer))
    if isinstance(expression, (*_NAMED, Indexed)) or not getattr(expression, "args", ()):
        return expression
    kind = {MatAdd: Add, MatMul: Mul}.get(expression.func, expression.func)
    return kind(*(scalarized(a, printer) for a in expression.args))


# the order in which commuting factors of a product are written: conjugates, then the names that are
# missing here, then these
_FACTORS = ("theta", "m", "g", "xi", "k", "b", "pi", "z", "w")
_FACTOR_RANK = {sym.LATEX.get(name, name): i for i, name in enumerate(_FACTORS)}
_CONTROLS = {sym.alpha, sym.beta, sym.ridge, sym.n, sym.L}


class EquationPrinter(LatexPrinter):
    r"""Print equations the way they are written on paper.

    Numerical coefficients stand in front as small fractions and signs between terms, products have
    no dots, transposes are :math:`X^\top`, and pairs :math:`(X + X^\top)/2` are
    :math:`\mathrm{sym}[X]`.

    Parameters
    ----------
    length : int or None
        Write sums over tokens out for this number of tokens.
    scalar : bool
        Print 1 x 1 matrices as numbers.
    clusters : bool
        Tokens come from mixtures: indices are pairs of a token and a cluster, and the mean of what belongs to such a
        pair is over the samples whose token is in the cluster, the others counting as zero.
    """

    def __init__(self, length: int | None = None, scalar: bool = False, clusters: bool = False) -> None:
        super().__init__()
        self.length = length
        self.scalar = scalar
        self.clusters = clusters

    def prepared(self, expression: Any) -> Any:
        """The expression as it will be printed: sums expanded, 1 x 1 matrices as numbers."""
        if self.length is not None:
            expression = expanded(expression, self.length).xreplace({sym.L: Integer(self.length)})
        return self._scalarized(expression) if self.scalar else expression

    def _scalarized(self, expression: Any) -> Any:
        return scalarized(expression, EquationPrinter(clusters=self.clusters))

    def show(self, expression: Any) -> str:
        """LaTeX of an expression on one line."""
        return _joined(self.terms(expression))

    def terms(self, expression: Any) -> list[tuple[bool, str]]:
        """The summands as pairs (is negative, LaTeX without the sign), positive ones first."""
        return self._terms(self.prepared(expression))

    def _terms(self, expression: Any) -> list[tuple[bool, str]]:
        if not isinstance(expression, (Add, MatAdd)):
            return [self._signed(expression)]
        if isinstance(expression, MatAdd):
            rows, columns = expression.shape
            if rows == 1 and columns != 1:
                return [(False, self._print(Transpose(transposed(expression))))]
            half = _symmetric_half(expression)
            if half is not None:
                return [(False, rf"\operatorname{{sym}}\left[{self._print(half)}\right]")]
        signed = [self._signed(a) for a in expression.args]
        return sorted(signed, key=lambda term: term[0])

    def _signed(self, expression: Any) -> tuple[bool, str]:
        number, rest = _split_number(expression)
        factors = rest.args if isinstance(rest, (Mul, MatMul)) else (rest,)
        matrices = [f for f in factors if f.is_Matrix]
        heavy = [f for f in factors if not f.is_Matrix and _is_heavy(f)]
        light = sorted((f for f in factors if f not in matrices and f not in heavy), key=_light_key)
        above = [f for f in light if not _is_denominator(f) and f != 1]
        below = [1 / f for f in light if _is_denominator(f)]
        text = [self._coefficient(abs(number), above, below)]
        tail = [*heavy, *matrices]
        text += [self._factor(f, last=f is tail[-1]) for f in tail]
        result = " ".join(t for t in text if t)
        return bool(number < 0), result or "1"

    def _coefficient(self, number: Rational, above: list[Any], below: list[Any]) -> str:
        """``number * above / below`` with one fraction at most in front."""
        numerator, denominator = Integer(number.p), Integer(number.q)
        inside = above if below else [f for f in above if _is_control(f) and denominator != 1]
        # control parameters alone below the line do not drag the other factors above it
        if below and all(_is_control(f) for f in below):
            inside = [f for f in above if _is_control(f)]
        after = [f for f in above if f not in inside]
        top = [self._print(numerator)] if numerator != 1 else []
        fraction = bool(below) or denominator != 1
        alone = fraction and len(inside) == 1 and numerator == 1
        top += [self._factor(f, alone=alone) for f in inside]
        bottom = [self._print(denominator)] if denominator != 1 else []
        alone = len(below) == 1 and denominator == 1
        bottom += [self._factor(f, alone=alone) for f in below]
        tail = " ".join(self._factor(f) for f in after)
        if not fraction:
            return " ".join([*top, tail]).strip()
        command = r"\frac" if inside or below else r"\tfrac"
        return rf"{command}{{{' '.join(top) or '1'}}}{{{' '.join(bottom)}}} {tail}".strip()

    def _factor(self, expression: Any, last: bool = False, alone: bool = False) -> str:
        """A factor of a product, in brackets where it needs them."""
        text = self._print(expression)
        if isinstance(expression, (Add, MatAdd)):
            open_ended = len(self._terms(expression)) > 1 and not alone
        else:
            open_ended = isinstance(expression, (TokenSum, SpectralMean, Sum)) and not last
        return rf"\left({text}\right)" if open_ended else text

    def _print(self, expr: Any, **kwargs: Any) -> str:
        restricted = self.clusters and isinstance(expr, FieldMean) and not expr.body.has(*_NAMED)
        if self.scalar and isinstance(expr, MatrixExpr):
            expr = self._scalarized(expr)
        if restricted and _split_number(expr)[0] == 1:
            return rf"\mathbb{{E}}\left[\mathbf{{1}}_{{c_\ell = c}} \, {self._print(expr.body)}\right]"
        if isinstance(expr, (*_OPERATORS, _ReplicaSum)) and _split_number(expr)[0] != 1:
            negative, text = self._signed(expr)
            return f"-{text}" if negative else text
        return super()._print(expr, **kwargs)

    def _print_Add(self, expr: Any, order: Any = None) -> str:
        return _joined(self._terms(expr))

    def _print_Mul(self, expr: Any) -> str:
        return _joined([self._signed(expr)])

    _print_MatAdd = _print_Add
    _print_MatMul = _print_Mul

    def _print_Transpose(self, expr: Any) -> str:
        return self._with_exponent(expr.arg, r"\top")

    def _print_Inverse(self, expr: Any) -> str:
        if isinstance(expr.arg, MatrixSqrt):
            return self._with_exponent(expr.arg.args[0], "-1/2")
        return self._with_exponent(expr.arg, "-1")

    def _with_exponent(self, base: Any, exponent: str) -> str:
        text = self._print(base)
        simple = isinstance(base, FieldMean) or (isinstance(base, TokenMatrix) and "^" not in text)
        return rf"{text}^{{{exponent}}}" if simple else rf"\left({text}\right)^{{{exponent}}}"

    def _print_Trace(self, expr: Any) -> str:
        if expr.arg.shape == (1, 1):
            return self._print(expr.arg)
        return rf"\operatorname{{Tr}}\left[{self._print(expr.arg)}\right]"

    def _print_Identity(self, I: Any) -> Any:
        return "I"

    def _print_Pow(self, expr: Any) -> str:
        if isinstance(expr.base, Indexed):  # as a symbol, it is put into brackets where it has a superscript
            expr = Pow(Symbol(self._print(expr.base)), expr.exp)
        return super()._print_Pow(expr)

    def _print_Indexed(self, expr: Any) -> str:
        indices = [self._print(index) for index in expr.indices]
        apart = ", " if any(len(index) > 1 for index in indices) else " "
        return rf"{self._print(expr.base.label)}_{{{apart.join(indices)}}}"

    def _print_Sum(self, expr: Any) -> str:
        text = self._print(expr.function)
        text = rf"\left({text}\right)" if isinstance(expr.function, Add) else text
        for limits in expr.limits:  # the innermost first
            index, first, last = map(self._print, limits)
            text = rf"\sum_{{{index} = {first}}}^{{{last}}} {text}"
        return text

    def _print_Symbol(self, expr: Any, style: str = "plain") -> str:
        if self.clusters and expr in (sym.ell, sym.kappa):
            return super()._print_Symbol(expr, style) + (" c" if expr == sym.ell else " j")
        return expr.name if expr.name.startswith("\\") else super()._print_Symbol(expr, style)


def _joined(terms: Sequence[tuple[bool, str]]) -> str:
    (negative, text), *rest = terms
    first = f"-{text}" if negative else text
    return " ".join([first, *(f"{'-' if minus else '+'} {text}" for minus, text in rest)])


def _split_number(expression: Any) -> tuple[Any, Any]:
    """Numerical coefficient and the rest, also out of sums and means."""
    if isinstance(expression, _OPERATORS):
        number, body = _split_number(expression.body)
        return number, expression.apply(body)
    if isinstance(expression, _ReplicaSum):
        number, body = _split_number(expression.args[0])
        return number, expression.func(body, expression.args[1])
    if isinstance(expression, (Mul, MatMul)):
        number, factors = S.One, []
        for factor in expression.args:
            part, rest = (factor, S.One) if factor.is_Rational else (S.One, factor)
            if isinstance(rest, (*_OPERATORS, _ReplicaSum, Mul)):
                part, rest = _split_number(rest)
            number *= part
            factors += rest.args if isinstance(rest, Mul) else [rest] if rest != 1 else []
        if len(factors) == 1:
            return number, factors[0]
        return number, expression.func(*factors, **({"evaluate": False} if factors else {}))
    if getattr(expression, "is_Rational", False):
        return expression, S.One
    return S.One, expression


def _light_key(factor: Any) -> tuple[Any, ...]:
    base = factor.base if isinstance(factor, Pow) else factor
    name = re.sub(r"_\{.*", "", base.name) if isinstance(base, Symbol) else ""
    return (
        not _is_control(base),
        not isinstance(base, Indexed),
        isinstance(base, Add),
        _FACTOR_RANK.get(name, -2 if name.startswith(r"\hat") else -1),
        factor.sort_key(),
    )


def _is_control(factor: Any) -> bool:
    """Whether a factor holds nothing but control parameters and dimensions."""
    return bool(factor.free_symbols) and factor.free_symbols <= _CONTROLS


def _is_heavy(factor: Any) -> bool:
    """Means, sums and the like, which stand after plain symbols and never inside a fraction."""
    kinds = (*_OPERATORS, _ReplicaSum, Sum, Trace, *_NAMED)
    return not _is_denominator(factor) and any(isinstance(node, kinds) for node in preorder_traversal(factor))


def _is_denominator(factor: Any) -> bool:
    return isinstance(factor, Pow) and factor.exp.is_number and bool(factor.exp.is_negative)


def _symmetric_half(expression: MatAdd) -> Any:
    """``X`` if the sum is ``(X + X^T)/2``, else None."""
    pairs: list[Any] = []
    alone: dict[Any, Any] = {}
    for term in expression.args:
        coefficient, matrix = _scalar_and_matrix(term)
        other = transposed(matrix)
        partner = alone.pop((coefficient, other), None)
        if partner is None:
            alone[coefficient, transposed(other)] = matrix
        else:
            shown = partner if isinstance(matrix, Transpose) else matrix
            pairs.append(MatMul(2 * coefficient, shown) if coefficient != S.Half else shown)
    return None if alone else _total(pairs)


def _scalar_and_matrix(term: Any) -> tuple[Any, Any]:
    if not isinstance(term, MatMul):
        return S.One, term
    scalars = [a for a in term.args if not a.is_Matrix]
    matrices = [a for a in term.args if a.is_Matrix]
    return Mul(*scalars), matrices[0] if len(matrices) == 1 else MatMul(*matrices)


def _total(terms: Sequence[Any]) -> Any:
    return terms[0] if len(terms) == 1 else MatAdd(*terms)


# --- documents ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heading:
    """A section title."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Text with inline formulas between dollar signs."""

    text: str


@dataclass(frozen=True)
class Formula:
    """A displayed formula.

    Attributes
    ----------
    rows : tuple of (left, right, note)
        Lines, aligned between ``left`` and ``right``; ``note`` is text beside the line.
    tag : str
        The formula's label on the page.
    definitions : tuple of Definition
        What is printed, where it belongs to the loss of one sample.
    """

    rows: tuple[tuple[str, str, str], ...]
    tag: str
    definitions: tuple[Definition, ...] = ()

    def line(self) -> str:
        """The formula with its tag, as a line of an ``align*`` environment."""
        left, right, note = self.rows[0]
        if len(self.rows) == 1 and not note:
            return rf"{left} & {right} \tag{{{self.tag}}}"
        return rf"& {self.body()} \tag{{{self.tag}}}"

    def body(self) -> str:
        """The formula without its tag; several lines stand in an ``aligned`` environment."""
        if len(self.rows) == 1 and not self.rows[0][2]:
            left, right, _ = self.rows[0]
            return f"{left} {right}".strip()
        lines = [f"{left} & {right}" + (rf" && \text{{{note}}}" if note else "") for left, right, note in self.rows]
        return "\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}"


@dataclass(frozen=True)
class Document:
    """A page of equations."""

    title: str
    blocks: tuple[Heading | Paragraph | Formula, ...]

    def latex(self) -> str:
        """A standalone LaTeX document for pdflatex, with amsmath and amssymb."""
        parts = [_LATEX_HEAD.replace("TITLE", self.title)]
        for kind, group in groupby(self.blocks, type):
            if kind is Formula:
                lines = [f.line() for f in group if isinstance(f, Formula)]
                # no blank line in front: a display belongs to the paragraph above it
                parts[-1] += "\n\\begin{align*}\n" + " \\\\\n".join(lines) + "\n\\end{align*}"
            else:
                heading = kind is Heading
                texts = [b.text for b in group if not isinstance(b, Formula)]
                parts += [rf"\section*{{{text}}}" if heading else _typeset(text) for text in texts]
        return "\n\n".join(parts) + "\n\n\\end{document}\n"

    def markdown(self) -> str:
        """Markdown whose formulas, between dollar signs, are set by MathJax."""
        parts = [f"# {_safe(self.title)}"]
        for block in self.blocks:
            if isinstance(block, Heading):
                parts.append(f"## {_safe(block.text)}")
            elif isinstance(block, Paragraph):
                spans = re.split("(`[^`]*`)", block.text)
                parts.append("".join(span if span.startswith("`") else _safe(span) for span in spans))
            else:
                parts.append(f"$$\n{_safe(block.body())} \\tag{{{block.tag}}}\n$$")
        return "\n\n".join(parts) + "\n"


_LATEX_HEAD = r"""\documentclass[11pt,a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[margin=2.3cm]{geometry}
\usepackage{amsmath,amssymb}
\setlength{\parindent}{0pt}
\setlength{\parskip}{5pt plus 2pt}
\allowdisplaybreaks
\begin{document}
\begin{center}
{\Large\bfseries TITLE\par}
\end{center}"""

_ESCAPED = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
_ESCAPED |= {character: f"\\{character}" for character in "_{}#$%&"}


def _typeset(text: str) -> str:
    """A paragraph in LaTeX: code between backticks is set as such, with line breaks where it may have them."""

    def code(match: re.Match[str]) -> str:
        characters = [_ESCAPED.get(c, c) + (r"\allowbreak{}" if c in "+-*/(), .:_" else "") for c in match[1]]
        return rf"\texttt{{{''.join(characters)}}}"

    return re.sub("`([^`]*)`", code, text)


# Markdown readers may take a backslash before punctuation as an escape and drop it
_SAFE = {
    "{": r"\lbrace",
    "}": r"\rbrace",
    ",": r"\thinspace",
    ";": r"\mspace{5mu}",
    "!": r"\negthinspace",
    ":": r"\mspace{4mu}",
}


def _safe(text: str) -> str:
    # a letter behind must not become part of the command; "\\" is a line break
    return re.sub(
        r"(?<!\\)\\([{},;:!])(?=(\s*[a-zA-Z])?)",
        lambda match: _SAFE[match[1]] + (" " if match[2] and not match[2][0].isspace() else ""),
        text,
    )


def _width(text: str) -> int:
    """Printed width of a formula, roughly, in characters."""
    text = re.sub(r"\\(?:left|right|begin|end|[Bb]igg?[lr]?)(?![a-z])", "", text)
    text = re.sub(r"\\(?:operatorname|math[a-z]+|text|hat)(?![a-z])", "", text)
    text = re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", lambda m: max(m[1], m[2], key=len), text)
    text = re.sub(r"\\[a-zA-Z]+", "x", text)
    return len(re.sub(r"\\.|[{}^_\s]", "", text)) + 2 * len(re.findall(r"[-+=] ", text))


def _filled(terms: Iterable[tuple[bool, str]], width: int) -> list[str]:
    """Signed terms as lines of at most ``width`` characters, where single terms allow it."""
    lines: list[str] = []
    for negative, text in terms:
        signed = f"{'-' if negative else '+'} {text}"
        if not lines:
            lines.append(f"-{text}" if negative else text)
        elif _width(f"{lines[-1]} {signed}") <= width:
            lines[-1] += f" {signed}"
        else:
            lines.append(f"{{}}{signed}")
    return lines


def _cited(number: str) -> str:
    """A reference to the paper's equation, e.g. ``paper, eqs. (14), (120)``."""
    number = number.replace(")-(", ")–(")
    if not number.startswith("("):
        return f"paper, {number}"
    return f"paper, {'eqs.' if number.count('(') > 1 else 'eq.'} {number}"


def _row_of(left: str, right: str, note: str = "") -> tuple[str, str, str]:
    return left, right, note


@dataclass
class _Page:
    """A document in the making: the printer, the sizes, and the count of tags per section."""

    printer: EquationPrinter
    blocks: list[Heading | Paragraph | Formula] = field(default_factory=list)
    prefix: str = ""
    count: int = 0

    def heading(self, text: str, prefix: str) -> None:
        self.blocks.append(Heading(text))
        self.prefix, self.count = prefix, 0

    def text(self, text: str) -> None:
        self.blocks.append(Paragraph(text))

    def formula(self, *rows: tuple[str, str] | tuple[str, str, str], definitions: tuple[Definition, ...] = ()) -> str:
        """Add a tagged formula and return its tag."""
        self.count += 1
        tag = f"{self.prefix}{self.count}"
        self.blocks.append(Formula(tuple(_row_of(*row) for row in rows), tag, definitions))
        return tag

    def defined(self, definitions: tuple[Definition, ...]) -> str:
        """Add definitions as one formula, each on lines of its own."""
        rows = []
        for definition in definitions:
            left = self.printer.show(definition.symbol)
            lines = _filled(self.printer.terms(definition.value), _LINE - _width(left))
            rows += [(left, f"= {lines[0]}"), *(("", rf"\quad {line}") for line in lines[1:])]
        return self.formula(*rows, definitions=definitions)

    def equation(self, left: str, expression: Any) -> str:
        """Add ``left = expression``, broken between terms where it is long."""
        lines = _filled(self.printer.terms(expression), _LINE - _width(left))
        return self.formula((left, f"= {lines[0]}"), *(("", rf"\quad {line}") for line in lines[1:]))

    def extremum(self, left: str, terms: Mapping[str, Any]) -> str:
        """Add ``left = extr { named terms }``, each on a line with its name."""
        left = rf"{left} = \operatorname{{extr}} \Bigl\{{\,"
        rows: list[tuple[str, str, str]] = []
        width = _LINE - _width(left) - max(len(name) for name in terms)
        for name, term in terms.items():
            printed = self.printer.terms(term)
            lines = _filled(printed, width)
            if rows and not printed[0][0]:
                lines[0] = f"+ {lines[0]}"
            rows.append(("" if rows else left, ("{}" if rows else "") + lines[0], name))
            rows += [("", rf"\quad {line}", "") for line in lines[1:]]
        rows[-1] = (rows[-1][0], rows[-1][1] + r" \Bigr\}", rows[-1][2])
        return self.formula(*rows)


@dataclass(frozen=True)
class _Sizes:
    """Printed sizes: tokens, columns r of W, rank of Q, columns t of the teacher's weights, rank of its scores."""

    length: str
    columns: str
    rank: str
    teacher: str
    teacher_rank: str

    @classmethod
    def of(cls, model: AttentionModel | ScalarModel, concrete: bool) -> _Sizes:
        if not isinstance(model, AttentionModel):
            sizes = (model.length, model.columns, model.columns, model.teacher_rank, model.teacher_rank)
            return cls(*map(str, sizes)) if concrete else cls("L", "r", "r", "t", "t")
        student, teacher = model.student, model.teacher
        if concrete:
            return cls(*map(str, (model.length, model.columns, student.rank, model.teacher_rank, teacher.rank)))
        scores = f"r - {model.values}" if model.values else "r"
        rank = scores if student.tied else f"({scores})/2" if model.values else "r/2"
        return cls("L", "r", rank, "t", f"t - {model.values}" if model.values else "t")

    def shape(self, matrix: TokenMatrix) -> str:
        """Printed set of matrices that ``matrix`` belongs to."""
        names = {sym.r: self.columns, sym.t: self.teacher}
        rows, columns = (names.get(size, str(size)) for size in matrix.shape)
        if (rows, columns) == ("1", "1"):
            return r"\mathbb{R}"
        return rf"\mathbb{{R}}^{{{rows}}}" if columns == "1" else rf"\mathbb{{R}}^{{{rows} \times {columns}}}"


@dataclass(frozen=True)
class _Law:
    """What a page needs to know beyond the model: the regulariser and the tokens' law.

    ``penalty`` is the LaTeX of the regulariser of one row, None for the ridge.
    """

    penalty: str | None = None
    clusters: bool = False
    setting: Setting | None = None

    def temperature(self, symbol: Symbol) -> str:
        """What logits are divided by, in a formula: nothing where it is 1."""
        name = EquationPrinter().show(symbol)
        return f" / {name}" if self.setting is not None and name in self.setting.parameters else ""

    def definitions(self, model: AttentionModel | ScalarModel) -> tuple[Definition, ...]:
        """The loss of one sample, step by step, without temperatures of 1."""
        symbols = (sym.student_temperature, sym.teacher_temperature)
        ones = {symbol: S.One for symbol in symbols if not self.temperature(symbol)}
        shifted = self.clusters if self.setting is None else self.setting.shifted
        return tuple(Definition(d.symbol, d.value.xreplace(ones)) for d in model.definitions(shifted=shifted))

    @property
    def regularizer(self) -> str:
        """The regulariser in a title."""
        return "ridge" if self.penalty is None else "separable regulariser"


def document(
    model: AttentionModel | ScalarModel,
    *,
    concrete: bool = False,
    penalty: str | None = None,
    clusters: bool = False,
    setting: Setting | None = None,
) -> Document:
    """The page of a model's equations.

    Parameters
    ----------
    model : AttentionModel or ScalarModel
    concrete : bool
        Print for the model's own L, r and t instead of symbols; mixture tokens keep their sums.
    penalty : str, optional
        LaTeX of the regulariser ``r(w)`` of one row of the weights, if it is not the ridge.
    clusters : bool
        Tokens come from a mixture of clusters, Result C.2.
    setting : Setting, optional
        Makes it the page of one problem, with the numbers that its symbols stand for.
    """
    sizes = _Sizes.of(model, concrete)
    law = _Law(penalty, clusters, setting)
    scalar = concrete and model.columns == model.teacher_rank == 1
    shape = (model.length if concrete and not clusters else None, scalar, clusters)
    page = _Page(EquationPrinter(*shape))
    if setting is not None:
        page.text(f"Equations of problem `{setting.name}`, whose numbers stand in the section {_NUMBERS}.")
    page.text(_summary(sizes, concrete))
    page.text(
        "Tags with a letter are this page's own; bare numbers are equations of the paper: "
        f"{_PAPER}. Token indices run from $1$ to ${sizes.length}$."
    )
    _model(page, model, sizes, concrete, law)
    _order_parameters(page, model, sizes, scalar, law)
    if setting is not None:
        _numbers(page, setting)
    if concrete and isinstance(model, AttentionModel):
        _entries(page, model, law)
    _auxiliary_problems(page, scalar, law)
    page.blocks += _derivation(*shape, penalty is not None)
    if isinstance(model, AttentionModel) and not model.values:
        _baseline(page, sizes, law)
    title = f"{_subject(model, sizes, law)}: replica-symmetric equations"
    return Document(title, tuple(page.blocks))


def model_page(
    model: AttentionModel | ScalarModel, setting: Setting, *, penalty: str | None = None, clusters: bool = False
) -> Document:
    """What is solved, without how: the model's definitions and the numbers of one problem; see `document`."""
    law = _Law(penalty, clusters, setting)
    page = _Page(EquationPrinter(None, False, clusters))
    sizes = _Sizes.of(model, True)
    _model(page, model, sizes, True, law)
    page.text(
        r"$\nu(\gamma, \tau, \pi)$ is the limiting joint law, over the common eigenvectors $e_i$ of the covariances, "
        r"of their eigenvalues $\gamma$, of $\tau = \sqrt{d} e_i^\top p$"
        + (r" (with $\mu + p$ for $p$)" if clusters else "")
        + r" and of $\pi = Q_\star^\top e_i$."
    )
    _numbers(page, setting)
    return Document(_subject(model, sizes, law), tuple(page.blocks))


def latex(model: AttentionModel | ScalarModel, *, concrete: bool = False) -> str:
    """The model's equations as a standalone LaTeX document; see `document`."""
    return document(model, concrete=concrete).latex()


def markdown(model: AttentionModel | ScalarModel, *, concrete: bool = False) -> str:
    """The model's equations as Markdown with MathJax formulas; see `document`."""
    return document(model, concrete=concrete).markdown()


def equations_page() -> str:
    """The page ``docs/equations.md``: the paper's model with L, r and t symbolic."""
    title, _, rest = markdown(AttentionModel()).partition("\n\n")
    made = (
        "Made by `python -m derivations.printing.render > docs/equations.md`. `attnphase derive "
        "problem.toml --format markdown` prints the page of another model, and `--concrete` that "
        "of its sizes."
    )
    return f"{title}\n\n{made}\n\n{rest}"


# --- sections ----------------------------------------------------------------------------------


_NUMBERS = "This problem"


def _subject(model: AttentionModel | ScalarModel, sizes: _Sizes, law: _Law) -> str:
    if isinstance(model, ScalarModel):
        loss = (
            f"{model.name.replace('_', ' ').capitalize()} loss" if model.name.isidentifier() else "A loss of one's own"
        )
        return f"{loss} with a {law.regularizer}{', mixture tokens' if law.clusters else ''}"
    student_score, teacher_score = score_names(model)
    return (
        f"{'Tied' if model.student.tied else 'Untied'} ${student_score}$ attention of rank "
        f"${sizes.rank}$, "
        f"${teacher_score}$ teacher of rank ${sizes.teacher_rank}$, {law.regularizer}"
        f"{', mixture tokens' if law.clusters else ''}{', value matrix' if model.values else ''}"
    )


def score_names(model: AttentionModel) -> tuple[str, str]:
    """Printed names of the student's and the teacher's score, different ones for different scores."""
    student, teacher = model.student.score, model.teacher.score
    if student.latex != teacher.latex or student.name == teacher.name:
        return student.latex, teacher.latex
    return f"{student.latex}_S", f"{teacher.latex}_T"


def _summary(sizes: _Sizes, concrete: bool) -> str:
    if not concrete:
        return "Printed for any number $L$ of tokens, $r$ columns of the weights and teacher rank $t$."
    return (
        f"Printed for $L = {sizes.length}$ tokens, $r = {sizes.columns}$ "
        f"{'column' if sizes.columns == '1' else 'columns'} of the weights and teacher rank "
        f"$t = {sizes.teacher}$."
    )


def _model(page: _Page, model: AttentionModel | ScalarModel, sizes: _Sizes, concrete: bool, law: _Law) -> None:
    if isinstance(model, AttentionModel):
        _attention_definitions(page, model, sizes, concrete, law)
    else:
        _scalar_definitions(page, model, sizes, law)


def _numbers(page: _Page, setting: Setting) -> None:
    page.heading(_NUMBERS, "N")
    for statement in setting.statements():
        if isinstance(statement, str):
            page.text(statement)
        else:
            page.formula(*statement)


def _entries(page: _Page, model: AttentionModel, law: _Law) -> None:
    """The loss of one sample entry by entry."""
    page.heading("Loss of one sample, entry by entry", "E")
    page.text(
        rf"The same loss without matrices: $a$ and $b$ run from $1$ to ${model.length}$, the second index of a field "
        "over its columns where it has several."
    )
    if law.clusters:
        page.text(
            r"In a sample with clusters $c_1, \dots, c_L$, $\rho^\Sigma_b$ is that of the cluster drawn, "
            r"$\rho^\Sigma_{b c_b}$, and so is $m^\star_a$."
        )
    for _, group in groupby(law.definitions(model), _base_and_row):
        page.defined(tuple(group))


def _base_and_row(definition: Definition) -> Any:
    """What definitions of one formula have in common."""
    symbol = definition.symbol
    return (symbol.base, symbol.indices[0]) if isinstance(symbol, Indexed) else symbol


def _attention_definitions(page: _Page, model: AttentionModel, sizes: _Sizes, concrete: bool, law: _Law) -> None:
    student, teacher = model.student, model.teacher
    student_score, teacher_score = score_names(model)
    length, columns = sizes.length, sizes.columns
    page.heading("Model", "D")
    tokens = (
        r"Tokens are the rows $x_\ell \sim \mathcal{N}(0, \Sigma_\ell)$ of "
        rf"$x \in \mathbb{{R}}^{{{length} \times d}}$, independent over $\ell$"
    )
    if law.clusters:
        tokens = (
            r"Every token $\ell$ is in a cluster $c_\ell$, with any joint law $P(c_1, \dots, c_L)$; given the "
            r"clusters, tokens are the rows $x_\ell \sim \mathcal{N}(\mu_{\ell c_\ell}, \Sigma_{\ell c_\ell})$ of "
            rf"$x \in \mathbb{{R}}^{{{length} \times d}}$, independent over $\ell$ "
            r"(paper, Result C.2)"
        )
    page.text(
        rf"{tokens}; positional "
        rf"encodings are "
        rf"$p \in \mathbb{{R}}^{{{length} \times d}}$. Teacher ({_cited('(1), (16)')}), with "
        rf"$Q_\star \in \mathbb{{R}}^{{d \times {sizes.teacher}}}$ and a fixed matrix "
        rf"$A \in \mathbb{{R}}^{{{length} \times {length}}}$; $\omega$ is here the "
        rf"mixing parameter; everywhere else $\omega_\ell$ is a local field, and $\omega$ that of "
        rf"all tokens together:"
    )
    page.formula(
        (
            "y(x)",
            r"= \mathsf{T}\left(\frac{x Q_\star}{\sqrt{d}}\right) x, \qquad "
            rf"\mathsf{{T}}(k) = (1 - \omega) \, {teacher_score}\left(k k^\top"
            rf"{law.temperature(sym.teacher_temperature)}\right) + "
            rf"\omega A",
        )
    )
    if student.tied:
        weights = rf"$W = Q \in \mathbb{{R}}^{{d \times {columns}}}$"
        logits, number = r"h h^\top", "(2), (15)"
    else:
        weights = (
            rf"$W = (Q|K) \in \mathbb{{R}}^{{d \times {columns}}}$, fields "
            rf"$h = (h_Q|h_K)$, $h_Q, h_K \in \mathbb{{R}}^{{{length} \times {sizes.rank}}}$"
        )
        logits, number = r"h_Q^{} h_K^\top", "(124)"
    page.text(f"Student ({_cited(number)}), {weights}:")
    page.formula(
        (
            "f_W(x)",
            r"= \mathsf{S}\left(\frac{(x + p) W}{\sqrt{d}}\right) (x + p), \qquad "
            rf"\mathsf{{S}}(h) = {student_score}\left({logits}{law.temperature(sym.student_temperature)}\right)",
        )
    )
    if student.causal or teacher.causal:
        masked = " and ".join(n for n, one in (("student", student), ("teacher", teacher)) if one.causal)
        page.text(rf"Under the causal mask of the {masked}, row $a$ of logits holds its entries $b \le a$ only.")
    size = min(model.length, 3) if concrete or law.setting is not None else 2
    scores = {student_score: student.score, teacher_score: teacher.score}
    if any(score.known for score in scores.values()):
        page.text(f"Scores act on each row $z$ of logits; for a row of {size}:")
    for name, score in scores.items():
        if score.known:
            page.formula((f"{name}(z)", f"= {_row(score, size)}"))
    page.text(
        rf"The risk ({_cited('(3)')}) over $n = \alpha d$ samples, and the loss of one sample as "
        rf"a function of its "
        r"local fields $h_\ell = W^\top (x_\ell + p_\ell)/\sqrt{d}$ and $k_\ell = Q_\star^\top "
        r"x_\ell/\sqrt{d}$, since "
        r"$x x^\top/d \to D = \operatorname{diag}(\rho^\Sigma_\ell)$ with "
        r"$\rho^\Sigma_\ell = \operatorname{Tr} \Sigma_\ell/d$:"
    )
    penalty = r"\frac{\lambda}{2} \left\lVert W \right\rVert_F^2" if law.penalty is None else r"\sum_i r(w_i)"
    output = "" if not model.values else r"; here both are read through a value matrix, the last columns of the weights"
    page.formula(
        (
            r"\mathcal{R}(W)",
            r"= \sum_{\mu = 1}^{n} \frac{1}{2d} \left\lVert y(x^\mu) - f_W(x^\mu) \right\rVert_F^2 "
            rf"+ {penalty}",
        )
        if not model.values
        else (r"\mathcal{R}(W)", rf"= \sum_{{\mu = 1}}^{{n}} \ell(h^\mu, k^\mu) + {penalty}")
    )
    if law.penalty is not None:
        page.text("with the regulariser of one row of the weights")
        page.formula((r"r(w)", f"= {law.penalty}"))
    if model.values:
        page.text(
            rf"Teacher and student attend to values of width ${model.values}$ instead of the tokens{output}: fields "
            r"$h = (h_Q | h_V)$ and $k = (k_Q | k_V)$, where $h_Q$ stands for all that makes the logits."
        )
        page.formula(
            (
                r"\ell(h, k)",
                r"= \tfrac{1}{2} \left\lVert \mathsf{S}(h_Q) h_V - \mathsf{T}(k_Q) k_V \right\rVert_F^2",
            )
        )
        return
    page.formula(
        (
            r"\ell(h, k)",
            r"= \tfrac{1}{2} \operatorname{Tr}\left[\left(\mathsf{S}(h) - \mathsf{T}(k)\right) D "
            r"\left(\mathsf{S}(h) - \mathsf{T}(k)\right)^\top\right]",
        )
    )


def _row(score: RowScore, size: int) -> str:
    """A row function's values on a row of ``size`` generic logits."""
    printer = EquationPrinter()
    with contained():
        values = score.entries([Symbol(f"z_{b}", real=True) for b in range(1, size + 1)])
    entries = r",\quad ".join(printer.show(value) for value in values)
    return rf"\left({entries}\right)"


def _scalar_definitions(page: _Page, model: ScalarModel, sizes: _Sizes, law: _Law) -> None:
    page.heading("Model", "D")
    page.text(
        r"Tokens are the rows $x_\ell \sim \mathcal{N}(0, \Sigma_\ell)$, independent over $\ell$, "
        r"with encodings "
        rf"$p_\ell$. Local fields $h_\ell = W^\top (x_\ell + p_\ell)/\sqrt{{d}} \in "
        rf"\mathbb{{R}}^{{{sizes.columns}}}$ "
        rf"and $k_\ell = Q_\star^\top x_\ell/\sqrt{{d}} \in \mathbb{{R}}^{{{sizes.teacher}}}$. "
        rf"The risk over "
        r"$n = \alpha d$ samples and the loss of one sample "
        f"(here at $L = {model.length}$, $r = {model.columns}$, $t = {model.teacher_rank}$):"
    )
    page.formula(
        (
            r"\mathcal{R}(W)",
            r"= \sum_{\mu = 1}^{n} \ell(h^\mu, k^\mu) + "
            + (r"\frac{\lambda}{2} \left\lVert W \right\rVert_F^2" if law.penalty is None else r"\sum_i r(w_i)"),
        )
    )
    if law.penalty is not None:
        page.formula((r"r(w)", f"= {law.penalty}"))
    for definition in law.definitions(model):
        page.defined((definition,))


def _order_parameters(page: _Page, model: Any, sizes: _Sizes, scalar: bool, law: _Law) -> None:
    page.heading("Order parameters and spectral measure", "P")
    page.text(f"Overlaps of the weights ({_cited('(6)')}), and the teacher's own covariance:")
    show = page.printer.show
    covariance, position = r"\Sigma_\ell", r"p_\ell"
    if law.clusters:
        covariance, position = r"\Sigma_{\ell c}", r"(\mu_{\ell c} + p_\ell)"
    page.formula(
        (show(sym.q), rf"= \frac{{W^\top {covariance} W}}{{d}}, \qquad "
         rf"{show(sym.m)} = \frac{{W^\top {position}}}{{\sqrt{{d}}}}, \qquad "
         rf"{show(sym.theta)} = \frac{{W^\top {covariance} Q_\star}}{{d}}, \qquad "
         rf"{show(sym.rho)} = \frac{{Q_\star^\top {covariance} Q_\star}}{{d}}"),
    )  # fmt: skip
    pairs = "; ".join(
        f"${show(a)}, {show(b)} \\in {sizes.shape(a)}$"
        for a, b in zip(sym.OVERLAPS, (sym.q_hat, sym.V_hat, sym.m_hat, sym.theta_hat), strict=True)
    )
    symmetric = (
        ""
        if scalar
        else (" $q$, $V$ and their conjugates are symmetric, and $\\operatorname{sym}[X] = (X + X^\\top)/2$.")
    )
    page.text(
        f"${show(sym.V)}$ is the rescaled variance of the Gibbs measure; every order parameter "
        f"has a conjugate. "
        f"Sizes: {pairs}; ${show(sym.rho)} \\in {sizes.shape(sym.rho)}$.{symmetric}"
    )
    page.text(
        rf"The covariances share eigenvectors $e_i$. $\nu(\gamma, \tau, \pi)$ ({_cited('(5)')}) "
        rf"is the limiting joint law "
        r"over $i$ of the eigenvalues $\gamma_\ell$ of $\Sigma_\ell$, of $\tau_\ell = \sqrt{d} "
        r"e_i^\top p_\ell$ and of "
        rf"$\pi = Q_\star^\top e_i \in {sizes.shape(sym.pi)}$. On one eigendirection the weights "
        rf"see"
    )
    if law.clusters:
        page.text(
            r"Everything that belongs to a token belongs to each of its clusters $c$: $\Sigma_{\ell c}$, "
            r"$m_{\ell c} = W^\top (\mu_{\ell c} + p_\ell)/\sqrt{d}$, $\tau_{\ell c} = \sqrt{d} e_i^\top "
            r"(\mu_{\ell c} + p_\ell)$ and so on; sums $\kappa j$ run over tokens and clusters. In the loss the "
            r"teacher's field has the mean $m^\star_{\ell c} = Q_\star^\top \mu_{\ell c}/\sqrt{d}$, which $k$ below "
            r"does not hold, and $D$ the variances of the clusters drawn."
        )
    for name, value in definitions().items():
        if law.penalty is not None and name == RESOLVENT:
            continue
        left, expression = show(name), value
        inverse = isinstance(value, Inverse)
        if inverse and _width(page.printer.show(value)) > _LINE:
            left, expression = page.printer.show(Inverse(name)), value.arg
        page.equation(left, expression)


def _auxiliary_problems(page: _Page, scalar: bool, law: _Law) -> None:
    show = page.printer.show
    page.heading("Local problem", "L")
    root = MatMul(MatrixSqrt(sym.q), sym.xi_field)
    noise = rf"with $\xi_\ell \sim \mathcal{{N}}(0, {'1' if scalar else 'I'})$:"
    if law.clusters:
        page.text(
            r"In a sample every token $\ell$ is in one cluster $c = c_\ell$, drawn with $P(c_1, \dots, c_L)$. "
            r"$\mathbb{E}$ is the mean over these clusters and over the local fields of one sample, independent over "
            rf"$\ell$ given the clusters, {noise}"
        )
    else:
        page.text(r"$\mathbb{E}$ is the mean over the local fields of one sample, independent over $\ell$, " + noise)
    page.formula(
        (
            show(sym.omega_field),
            rf"= {show(MatAdd(root, sym.m))}, \qquad {show(sym.k_field)} \sim \mathcal{{N}}\left("
            rf"{show(conditional_mean())}, {show(conditional_covariance())}\right)",
        )
    )
    prox = sym.prox_field.latex_name
    page.text(
        rf"Moreau envelope of the loss, whose global minimiser $h$ is ${prox}(\omega, k)$, and "
        rf"the residual:"
    )
    h = sym.token_matrix("h", sym.r, 1)
    shift = MatAdd(h, MatMul(-1, sym.omega_field))
    tokens = Symbol(r"\ell,\, c = c_\ell") if law.clusters else sym.ell
    distance = TokenSum.of(MatMul(S.Half, Transpose(shift), Inverse(sym.V), shift), tokens)
    envelope = page.printer.show(MoreauEnvelope(sym.omega_field, sym.k_field, sym.V, sym.g_field))
    lines = _filled([*page.printer.terms(distance), (False, r"\ell(h, k)")], _LINE - 20)
    lines[-1] += r" \Bigr\}"
    page.formula(
        (envelope, rf"= \min_{{h}} \Bigl\{{ {lines[0]}"),
        *(("", rf"\qquad {line}") for line in lines[1:]),
    )
    residual = MatMul(Inverse(sym.V), MatAdd(sym.prox_field, MatMul(-1, sym.omega_field)))
    page.equation(show(sym.g_field), residual)
    if law.penalty is not None:
        (row,) = derive_free_entropy(separable=True).total.atoms(RowMinimum)
        page.text(
            rf"The weights of one eigendirection, ${show(sym.w)}(z)$, are the minimiser of its problem at given noise "
            rf"$z \sim \mathcal{{N}}(0, {'1' if scalar else 'I'})$, and ${show(sym.chi)}$ is its derivative in $b$:"
        )
        page.formula(
            (show(sym.w), rf"= \operatorname{{argmin}}_w \left\{{ r(w) + {show(_short(row.objective))} \right\}}")
        )


@cache
def _derivation(
    length: int | None, scalar: bool, clusters: bool, separable: bool
) -> tuple[Heading | Paragraph | Formula, ...]:
    """What is derived, the same for all losses and numbers; takes a printer's arguments and the regulariser's kind."""
    free_entropy = derive_free_entropy(separable=separable)
    page = _Page(EquationPrinter(length, scalar, clusters))
    _replica_chain(page, free_entropy)
    _saddle_point(page, derive_saddle_point(free_entropy))
    _observables(page, free_entropy)
    return tuple(page.blocks)


def _replica_chain(page: _Page, free_entropy: FreeEntropy) -> None:
    *chain, last = free_entropy.steps
    # the argument does not depend on the number of tokens: its sums stay sums
    full, page.printer = page.printer, EquationPrinter(None, page.printer.scalar, page.printer.clusters)
    order = list(free_entropy.terms)
    page.heading("Replica calculation", "R")
    page.text(
        r"$Z = \int \mathrm{d}W e^{-\beta \mathcal{R}(W)}$ is the partition function of the risk, "
        r"and "
        r"$-\Phi = -\lim_{\beta, d \to \infty} \log Z/(\beta d)$ its ground-state energy over $d$. "
        r"$\operatorname{extr}$ is the extremum over the order parameters and their conjugates."
    )

    def named(step: Step) -> dict[str, Expr]:
        known = [name for name in order if name in step.terms]
        known += [name for name in step.terms if name not in order]
        return {name: _short(step.terms[name]) for name in known}

    for number, step in enumerate(chain, 1):
        page.text(f"Step {number}, {step.name} ({_cited(step.equation)}). {step.statement}")
        page.extremum(step.latex, named(step))
    page.printer = full
    page.heading("Free entropy", "F")
    page.text(f"Step {len(chain) + 1}, {last.name} ({_cited(last.equation)}). {last.statement}")
    page.extremum(last.latex, named(last))


def _short(expression: Any) -> Any:
    """The expression in terms of ``R``, ``b`` and ``S``."""
    return abbreviated(expression).xreplace({precision(): Inverse(RESOLVENT)})


def _saddle_point(page: _Page, saddle_point: SaddlePoint) -> None:
    page.heading("Saddle-point equations", "S")
    show = page.printer.show
    for equations in (saddle_point.overlaps, saddle_point.conjugates):
        variables = ", ".join(f"${show(e.stationary_in)}$" for e in equations)
        numbers = ", ".join(dict.fromkeys(e.number for e in equations))
        page.text(f"Stationarity of the free entropy in {variables}, in this order ({_cited(numbers)}):")
        for equation in equations:
            page.equation(show(equation.unknown), _short(equation.right_hand_side))
    page.text(
        r"In the last two, derivatives of the proximal point, which jumps, were removed by "
        r"Stein's lemma."
    )


def _observables(page: _Page, free_entropy: FreeEntropy) -> None:
    page.heading("Observables", "O")
    page.text(
        r"At a fixed point. A fresh sample's fields have the law of $(\omega_\ell, k_\ell)$, so "
        r"the test error is a mean "
        "over the same fields."
    )
    for observable in SEPARABLE_OBSERVABLES if free_entropy.separable else OBSERVABLES:
        title = re.sub(r"\bd\b", "$d$", observable.title[0].upper() + observable.title[1:])
        page.text(f"{title} ({_cited(observable.number)}):")
        page.equation(observable.latex, _short(observable.expression))


def _baseline(page: _Page, sizes: _Sizes, law: _Law) -> None:
    page.heading("Linear baseline", "B")
    page.text(
        rf"The best linear map $f(x) = \hat W x$, $\hat W \in \mathbb{{R}}^{{{sizes.length} "
        rf"\times {sizes.length}}}$, "
        rf"on tokens without encodings, and its test error ({_cited('(17), (19)-(20)')}):"
    )
    if law.clusters:
        page.formula((r"\hat W", r"= \mathbb{E}\left[\mathsf{T}(k) D\right] \mathbb{E}\left[D\right]^{-1}"))
    else:
        page.formula((r"\hat W", r"= \mathbb{E}\left[\mathsf{T}(k)\right]"))
    variance = r"\mathbb{E}[D]" if law.clusters else "D"
    page.formula(
        (
            r"\epsilon_{\mathrm{lin}}",
            rf"= \frac{{1}}{{{sizes.length}}} \left\{{\mathbb{{E}} "
            rf"\operatorname{{Tr}}\left[\mathsf{{T}}(k) D "
            r"\mathsf{T}(k)^\top\right] - \operatorname{Tr}\left[\hat W "
            rf"{variance} \hat W^\top\right]\right\}}",
        )
    )


if __name__ == "__main__":
    print(equations_page(), end="")
