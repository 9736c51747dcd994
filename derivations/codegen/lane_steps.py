"""The statements of a Newton step in one lane of a block, which trials and regular steps have in common."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sympy import Add, Integer, Mul

from derivations.codegen.ir import Assign, Call, Ordered, Select, Value, element, name
from derivations.codegen.lane_state import Block
from derivations.codegen.unrolled import scalar

__all__ = ["ACCEPTED", "ARGUMENTS", "LENGTH_UNIT", "UNIT", "VALUE", "LaneStep", "all_of", "size_of"]

ARGUMENTS = ("state", "factor", "variance", "parameters")
"""Of what is done in every lane: a block's state, and what its samples share."""

VALUE, ACCEPTED = map(name, ("value", "accepted"))

LENGTH_UNIT, UNIT = map(name, ("length_unit", "energy_unit"))
"""Of the points u, and of the energy: lengths and energies count as small in these."""


def all_of(conditions: Iterable[Value]) -> Value:
    """Whether all conditions hold."""
    return Ordered("&", tuple(conditions))


def size_of(value: Value) -> Call:
    """The modulus of a value."""
    return Call("modulus", (value,))


@dataclass(frozen=True)
class LaneStep:
    """From a trial point to the next step.

    Attributes
    ----------
    block : Block
    """

    block: Block

    # --- the state ---

    def row(self, quantity: str, number: int = 0) -> Any:
        """A lane's number in a row of the state."""
        return self.block.row(quantity, number)

    def vector(self, quantity: str, names: str) -> list[Assign]:
        """The rows of a vector, read."""
        return [Assign(scalar(names, i), self.row(quantity, i)) for i in range(self.block.size)]

    def shared(self) -> Iterator[Assign]:
        """What all lanes share: the parameters, and if no sample has its own the diagonal of D and the factors of V."""
        yield from self.block.parameters_of_all()
        yield Assign(LENGTH_UNIT, element("parameters", 3))
        yield Assign(UNIT, LENGTH_UNIT**2)
        if not self.block.own:
            yield from self.block.weights_of_all()
            yield from (Assign(scalar("factor", *entry), element("factor", *entry)) for entry in self._factors())

    def targets(self) -> Iterator[Assign]:
        """The entries of the target that the loss reads, and its weights where every sample has its own."""
        for number, place in enumerate(self.block.targets):
            yield Assign(place, self.row("TARGET", number))
        yield from self.block.weights_of_lane()

    def factors(self) -> Iterator[Assign]:
        """The Cholesky factors of V, where every sample has its own."""
        for token, i, j in self._factors() if self.block.own else ():
            number = (token * self.block.columns + i) * self.block.columns + j
            yield Assign(scalar("factor", token, i, j), self.row("FACTOR", number))

    def _factors(self) -> list[tuple[int, int, int]]:
        columns = range(self.block.columns)
        return [(token, i, j) for token in range(self.block.length) for i in columns for j in range(i + 1)]

    # --- the trial ---

    def fields(self) -> Iterator[Assign]:
        """The fields ``h = omega + C u`` of the trial point ``u``."""
        columns = self.block.columns
        for token in range(self.block.length):
            for i in range(columns):
                place = token * columns + i
                moved = [scalar("factor", token, i, j) * scalar("trial", token * columns + j) for j in range(i + 1)]
                yield Assign(scalar("center", place), self.row("CENTER", place))
                yield Assign(scalar("h", token, i), Add(scalar("center", place), *moved))

    def scaled(self) -> Iterator[Assign]:
        """Gradient and Hessian of the energy in u, from those of the loss in h."""
        columns = self.block.columns
        for i in range(self.block.size):
            token, j = divmod(i, columns)
            parts = [scalar("factor", token, c, j) * scalar("gradient", token, c) for c in range(j, columns)]
            yield Assign(scalar("new_slope", i), Add(scalar("trial", i), *parts))
        for row, column in self.block.triangle:
            (a, j), (b, l) = divmod(row, columns), divmod(column, columns)
            terms = [
                scalar("factor", a, i, j)
                * scalar("hessian", a * columns + i, b * columns + c)
                * scalar("factor", b, c, l)
                for i in range(j, columns)
                for c in range(l, columns)
            ]
            yield Assign(scalar("new_curvature", row, column), Add(Integer(row == column), *terms))

    def energy(self) -> Iterator[Assign]:
        """The trial's, the last accepted one, and what the step before was to bring."""
        norm = name("norm")
        for quantity in ("ENERGY", "LOSS", "STEPS", "EXPECTED"):
            yield Assign(name(quantity.lower()), self.row(quantity))
        yield Assign(norm, Add(*(scalar("trial", i) ** 2 for i in range(self.block.size))))
        yield Assign(name("trial_energy"), norm / 2 + VALUE)

    # --- the next step: (curvature + damping I) step = slope ---

    def step(self) -> Iterator[Assign]:
        """By the factors of Cholesky without roots: lower triangle, pivots and their reciprocals."""
        size = self.block.size
        pivots = [scalar("pivot", i) for i in range(size)]
        for j in range(size):
            reduced = [-scalar("lower", j, c) * scalar("product", j, c) for c in range(j)]
            yield Assign(pivots[j], Add(scalar("curvature", j, j), name("damping"), *reduced))
            yield Assign(scalar("inverse", j), Ordered("/", (1.0, pivots[j])))
            for i in range(j + 1, size):
                reduced = [-scalar("lower", i, c) * scalar("product", j, c) for c in range(j)]
                yield Assign(scalar("product", i, j), Add(scalar("curvature", i, j), *reduced))
                yield Assign(scalar("lower", i, j), scalar("product", i, j) * scalar("inverse", j))
        yield Assign(name("solvable"), all_of(Ordered(">", (pivot, name("PIVOT"))) for pivot in pivots))
        for i in range(size):
            before = [-scalar("lower", i, c) * scalar("half", c) for c in range(i)]
            yield Assign(scalar("half", i), Add(scalar("slope", i), *before))
        for i in reversed(range(size)):
            after = [-scalar("lower", c, i) * scalar("step", c) for c in range(i + 1, size)]
            yield Assign(scalar("step", i), Add(scalar("half", i) * scalar("inverse", i), *after))
        yield Assign(name("decrease"), Add(*(scalar("slope", i) * scalar("step", i) for i in range(size))))

    def arrived(self) -> Iterator[Assign]:
        """Whether the next step leads to the minimum: it is small, and the slope it leaves is below the tolerance.

        That slope is half of how much the curvature changes along the step, times the step; by how much the curvature
        has changed along the step before, in proportion.
        """
        size = self.block.size
        before, now, left, scale = map(name, ("tried_square", "step_square", "left_square", "point_scale"))
        yield Assign(before, Add(*(scalar("tried", i) ** 2 for i in range(size))))
        yield Assign(now, Add(*(scalar("step", i) ** 2 for i in range(size))))
        yield Assign(scale, UNIT + name("norm"))
        slopes = Add(*(scalar("new_slope", i) ** 2 for i in range(size)))
        bound = Mul(name("GRADIENT_TOLERANCE") ** 2, scale, evaluate=False)
        yield Assign(name("level"), Ordered("<=", (slopes, bound)))
        for i, j in self.block.triangle:
            change = scalar("new_curvature", i, j) - scalar("old_curvature", i, j)
            yield Assign(scalar("curving", i, j), change)
        for i in range(size):
            parts = [scalar("curving", max(i, j), min(i, j)) * scalar("step", j) for j in range(size)]
            yield Assign(scalar("bend", i), Add(*parts))
        yield Assign(left, Add(*(scalar("bend", i) ** 2 for i in range(size))))
        small = Ordered("<=", (now, Mul(name("CLOSE") ** 2, scale, evaluate=False)))
        bound = Mul((2 * name("GRADIENT_TOLERANCE")) ** 2, scale, before, evaluate=False)
        vanishing = Ordered("<=", (Ordered("*", (left, now)), bound))
        undamped = Ordered("<=", (name("damping"), 0.0))
        leads = all_of([ACCEPTED, name("solvable"), undamped, small, vanishing])
        yield Assign(name("arrived"), Select(name("level"), False, leads))
        yield Assign(name("flat"), Ordered("|", (name("level"), name("arrived"))))
        made = Select(name("arrived"), 2.0, 1.0)
        yield Assign(name("new_steps"), Select(ACCEPTED, Ordered("+", (name("steps"), made)), name("steps")))

    # --- the accepted trial ---

    def chosen(self, quantity: str, number: int, new: Value, old: Value) -> Assign:
        """A row that changes where the trial is accepted."""
        return Assign(self.row(quantity, number), Select(ACCEPTED, new, old))

    def written(self) -> Iterator[Assign]:
        """The trial becomes the lane's point, or the minimum where the step leads there."""
        columns, size = self.block.columns, self.block.size
        arrived, step = name("arrived"), [scalar("step", i) for i in range(size)]
        for i in range(size):
            token, j = divmod(i, columns)
            parts = [scalar("factor", token, j, c) * step[token * columns + c] for c in range(j + 1)]
            yield Assign(scalar("moved", i), Add(*parts))
        for i in range(size):
            trial, now = scalar("trial", i), scalar("gradient", *divmod(i, columns))
            yield self.chosen("POINT", i, Select(arrived, trial - step[i], trial), scalar("point", i))
            change = [scalar("hessian", max(i, j), min(i, j)) * scalar("moved", j) for j in range(size)]
            yield Assign(scalar("change", i), Add(*change))
            yield Assign(scalar("old_gradient", i), self.row("GRADIENT", i))
            new = Select(arrived, now - scalar("change", i), now)
            yield self.chosen("GRADIENT", i, new, scalar("old_gradient", i))
        # the energy is quadratic there, and its first part exactly so
        norm_change = Add(*(scalar("trial", i) * step[i] for i in range(size)), -name("step_square") / 2)
        yield Assign(name("norm_change"), norm_change)
        energy, loss = name("trial_energy"), VALUE
        lower = Select(arrived, energy - name("decrease") / 2, energy)
        yield self.chosen("ENERGY", 0, lower, name("energy"))
        lower = Select(arrived, loss - name("decrease") / 2 + name("norm_change"), loss)
        yield self.chosen("LOSS", 0, lower, name("loss"))
        yield Assign(self.row("STEPS"), name("new_steps"))
