"""Fields of nodes before the search, and moments of what was found: samples side by side, row by row."""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import side_by_side
from .model import Model, Record
from .starts import NONE, ONE, TWO, unsigned
from .values import BLOCK, Draws, FieldLaw, Solution

__all__ = ["fields_at", "moments_of"]

_BLOCK = unsigned(BLOCK)


@side_by_side
def to_rows(source: Array, first: int, count: int, width: int, some: int, rows: Array, row: int) -> None:
    """The first numbers of every sample, `some` of `width`, row by row."""
    for c in range(some):
        for n in range(count):
            rows[(row + c) * _BLOCK + n] = source[(first + n) * width + c]


@side_by_side
def from_row(rows: Array, row: int, target: Array, first: int, count: int, width: int, place: int) -> None:
    """One number of every sample from a row."""
    for n in range(count):
        target[(first + n) * width + place] = rows[row * _BLOCK + n]


@side_by_side
def fill(rows: Array, row: int, value: float) -> None:
    """Make all of a row this number."""
    for n in range(_BLOCK):
        rows[row * _BLOCK + n] = value


@side_by_side
def add(rows: Array, row: int, share: float, source: int) -> None:
    """Add a share of one row to another."""
    for n in range(_BLOCK):
        rows[row * _BLOCK + n] += share * rows[source * _BLOCK + n]


@side_by_side
def inner(rows: Array, one: int, other: int, count: int) -> float:
    """Inner product of two rows."""
    total = 0.0
    for n in range(count):
        total += rows[one * _BLOCK + n] * rows[other * _BLOCK + n]
    return total


@side_by_side
def turn(m: Record, draws: Draws, law: FieldLaw, a: int, some: int, rows: Array, normals: int, turned: int) -> None:
    """The first numbers of ``(xi, zeta)`` of a token, row by row, from the rows of the normals."""
    width = m.columns + m.teacher_rank
    for i in range(some):
        fill(rows, turned + i, 0.0)
        for j in range(width):
            student = j < m.columns
            place = a * m.columns + j if student else m.fields + a * m.teacher_rank + j - m.columns
            share = law.turns[(a * width + i) * width + j] * draws.signs[NONE if student else ONE]
            add(rows, turned + i, share, normals + place)


def fields_at(model: Model, draws: Draws, law: FieldLaw, centers: Array, teacher_fields: Array, rows: Array) -> None:
    """``omega`` (N, L, r), and the teacher's fields about their mean with the noise behind them, (N, L, label fields).

    What else labels are made of has no variance.  ``rows`` is scratch.
    """
    m: Record = model.numbers[0]
    r, t, nodes, labels = m.columns, m.teacher_rank, unsigned(centers.size) // m.fields, m.length * m.label_fields
    width = m.length * (r + t + m.noise)
    turned, made = width + ONE, width
    for block in range((nodes + _BLOCK - ONE) // _BLOCK):
        first = block * _BLOCK
        count = min(_BLOCK, nodes - first)
        to_rows(draws.normals, first, count, width, width, rows, NONE)
        for a in range(m.length):
            turn(m, draws, law, a, r + t, rows, NONE, turned)
            for i in range(r):
                p = a * r + i
                fill(rows, made, law.means[p])
                for j in range(r + t):
                    add(rows, made, law.roots[p * r + j] if j < r else law.lifts[p * t + j - r], turned + j)
                from_row(rows, made, centers, first, count, m.fields, p)
            for i in range(m.label_fields):
                fill(rows, made, 0.0)
                for j in range(t if i < t else NONE):
                    add(rows, made, law.teacher_roots[(a * t + i) * t + j], turned + r + j)
                if t <= i < t + m.noise:
                    add(rows, made, law.noise[a], m.length * (r + t) + a * m.noise + i - t)
                from_row(rows, made, teacher_fields, first, count, labels, a * m.label_fields + i)


def moments_of(
    model: Model,
    draws: Draws,
    law: FieldLaw,
    teacher_fields: Array,
    found: Solution,
    moments: Array,
    energies: Array,
    rows: Array,
) -> None:
    """Add the weighted moments of every replicate's nodes.

    ``moments`` (S, L, r, 1 + 2 r + t) are those of ``g`` with 1, ``g``, ``xi`` and ``k``; ``energies`` (S, 2) the
    envelope and the loss.  ``rows`` is scratch.
    """
    m: Record = model.numbers[0]
    r, t, nodes, labels = m.columns, m.teacher_rank, unsigned(found.losses.size), m.length * m.label_fields
    points, some, width = unsigned(draws.weights.size), m.length * (r + t), m.length * (r + t + m.noise)
    weight, weighted, residuals = NONE, ONE, TWO
    fields = residuals + m.fields
    normals = fields + labels
    turned, first = normals + some, NONE
    while first < nodes:
        replicate, point = (unsigned(draws.first) + first) // points, (unsigned(draws.first) + first) % points
        count = min(_BLOCK, points - point, nodes - first)
        for n in range(count):
            rows[n] = draws.weights[point + n] * (draws.shares[first + n] if draws.shares.size > 0 else 1.0)
            energies[TWO * replicate] += rows[n] * found.energies[TWO * (first + n)]
            energies[TWO * replicate + ONE] += rows[n] * found.losses[first + n]
        to_rows(found.residuals, first, count, m.fields, m.fields, rows, residuals)
        to_rows(teacher_fields, first, count, labels, labels, rows, fields)
        to_rows(draws.normals, first, count, width, some, rows, normals)
        for a in range(m.length):
            turn(m, draws, law, a, r, rows, normals, turned)
            for i in range(r):
                g, place = residuals + a * r + i, ((replicate * m.length + a) * r + i) * (ONE + TWO * r + t)
                moments[place] += inner(rows, weight, g, count)
                for n in range(_BLOCK):
                    rows[_BLOCK + n] = rows[n] * rows[g * _BLOCK + n]
                for j in range(r):
                    moments[place + ONE + j] += inner(rows, weighted, residuals + a * r + j, count)
                    moments[place + ONE + r + j] += inner(rows, weighted, turned + j, count)
                for j in range(t):
                    row = fields + a * m.label_fields + j
                    moments[place + ONE + TWO * r + j] += inner(rows, weighted, row, count)
        first += count
