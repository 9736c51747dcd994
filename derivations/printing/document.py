"""Pages of headings, paragraphs and tagged formulas, written as LaTeX and as Markdown, and how one is put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from derivations.models.model import Definition
from derivations.printing.latex import EquationPrinter

__all__ = ["LINE", "Document", "Formula", "Heading", "Page", "Paragraph", "cited", "filled", "width"]

# printed width, in characters of a formula, that fits the text block of the LaTeX page
LINE = 74


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


def width(text: str) -> int:
    """Printed width of a formula, roughly, in characters."""
    text = re.sub(r"\\(?:left|right|begin|end|[Bb]igg?[lr]?)(?![a-z])", "", text)
    text = re.sub(r"\\(?:operatorname|math[a-z]+|text|hat)(?![a-z])", "", text)
    text = re.sub(r"\\t?frac\{([^{}]*)\}\{([^{}]*)\}", lambda m: max(m[1], m[2], key=len), text)
    text = re.sub(r"\\[a-zA-Z]+", "x", text)
    return len(re.sub(r"\\.|[{}^_\s]", "", text)) + 2 * len(re.findall(r"[-+=] ", text))


def filled(terms: Iterable[tuple[bool, str]], room: int) -> list[str]:
    """Signed terms as lines of at most ``room`` characters, where single terms allow it."""
    lines: list[str] = []
    for negative, text in terms:
        signed = f"{'-' if negative else '+'} {text}"
        if not lines:
            lines.append(f"-{text}" if negative else text)
        elif width(f"{lines[-1]} {signed}") <= room:
            lines[-1] += f" {signed}"
        else:
            lines.append(f"{{}}{signed}")
    return lines


def cited(number: str) -> str:
    """A reference to the paper's equation, e.g. ``paper, eqs. (14), (120)``."""
    number = number.replace(")-(", ")–(")
    if not number.startswith("("):
        return f"paper, {number}"
    return f"paper, {'eqs.' if number.count('(') > 1 else 'eq.'} {number}"


def _row_of(left: str, right: str, note: str = "") -> tuple[str, str, str]:
    return left, right, note


@dataclass
class Page:
    """A document in the making: the printer, the sizes, and the count of tags per section."""

    printer: EquationPrinter
    blocks: list[Heading | Paragraph | Formula] = field(default_factory=list)
    prefix: str = ""
    count: int = 0

    def heading(self, text: str, prefix: str) -> None:
        """Begin a section, whose tags begin with a letter."""
        self.blocks.append(Heading(text))
        self.prefix, self.count = prefix, 0

    def text(self, text: str) -> None:
        """Add a paragraph."""
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
            lines = filled(self.printer.terms(definition.value), LINE - width(left))
            rows += [(left, f"= {lines[0]}"), *(("", rf"\quad {line}") for line in lines[1:])]
        return self.formula(*rows, definitions=definitions)

    def equation(self, left: str, expression: Any) -> str:
        """Add ``left = expression``, broken between terms where it is long."""
        lines = filled(self.printer.terms(expression), LINE - width(left))
        return self.formula((left, f"= {lines[0]}"), *(("", rf"\quad {line}") for line in lines[1:]))

    def extremum(self, left: str, terms: Mapping[str, Any]) -> str:
        """Add ``left = extr { named terms }``, each on a line with its name."""
        left = rf"{left} = \operatorname{{extr}} \Bigl\{{\,"
        rows: list[tuple[str, str, str]] = []
        room = LINE - width(left) - max(len(name) for name in terms)
        for name, term in terms.items():
            printed = self.printer.terms(term)
            lines = filled(printed, room)
            if rows and not printed[0][0]:
                lines[0] = f"+ {lines[0]}"
            rows.append(("" if rows else left, ("{}" if rows else "") + lines[0], name))
            rows += [("", rf"\quad {line}", "") for line in lines[1:]]
        rows[-1] = (rows[-1][0], rows[-1][1] + r" \Bigr\}", rows[-1][2])
        return self.formula(*rows)
