"""One step of the minimiser for many samples at once: straight-line code that processors do in parallel lanes.

The state of all lanes is one array, a row of it holding one number of every lane.  A lane descends one trial of a
damped Newton step at a time: it evaluates the loss with its derivatives at the trial point, accepts it or raises the
damping, and factorises the damped Hessian for the next step.  A step that is known to lead to the minimum is made at
once, by the derivatives that are known already: no trial is spent to see that the gradient is zero there.

Most descents are regular: for a few fields there is a second function, for steps that need neither damping nor a look
at known minima.  It does what a trial does there, in three quarters of its instructions.  Where the energy does not
fall enough, or the curvature is not positive, a lane stays as it was: the trial then begins in the same place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import product
from typing import Any

from derivations.codegen.form import Function, Loop, Store
from derivations.codegen.kinked import has_kink
from derivations.codegen.losses import (
    OWN,
    Field,
    Reads,
    Terms,
    loss_terms,
    row_loss,
    row_terms,
    rows_of,
    target_columns,
    target_row,
)
from derivations.codegen.tape import Node, Number, Place, Row, Tape
from derivations.models.model import Model, RowLoss, label_fields

__all__ = ["Lanes", "has_lanes"]

_MANY, _FEW = 64, 16  # samples in a block: the rows of a model then fit into the fastest memory
_STRAIGHT = 5  # fields up to which all rows of the loss are one straight line, which grows with their third power
_IN_TURN = 2  # fields up to which lanes are done in turn
_MOST = 16  # fields: of more, compiling the step takes longer than all else
_ARGUMENTS = ("state", "factor", "variance", "parameters")
_SINGLE = ("ENERGY", "LOSS", "SHIFT", "STEPS", "TRIES", "EXPECTED", "DEFINITE", "WIDEST", "DEEPEST", "EVENT")


def has_lanes(model: Model) -> bool:
    """Whether samples of a model are done side by side: of few fields, with a loss without kinks."""
    return model.length * model.columns <= _MOST and model.prox is None and not has_kink(model)


@dataclass(frozen=True)
class Lanes:
    """The functions of a model's blocks.

    Attributes
    ----------
    model : Model
    own : bool
        Whether every sample has its own weights of the loss, and its own V, as at finite d.
    rules : mapping
        Numbers of the minimiser, by their names in `attnphase.kernels.local.constants`.
    """

    model: Model
    own: bool
    rules: Mapping[str, float]

    # --- the state ---

    @property
    def size(self) -> int:
        """Fields of a sample."""
        return self.model.length * self.model.columns

    @property
    def loss(self) -> RowLoss | None:
        """The loss row by row, if it is one."""
        return row_loss(self.model)

    @property
    def straight(self) -> bool:
        """Whether the loss is one straight line."""
        return self.loss is None or self.size <= _STRAIGHT

    @property
    def width(self) -> int:
        """Samples in a block."""
        return _MANY if self.straight else _FEW

    @property
    def triangle(self) -> list[tuple[int, int]]:
        """Entries of a symmetric matrix."""
        return [(i, j) for i in range(self.size) for j in range(i + 1)]

    @cached_property
    def rows(self) -> dict[str, int]:
        """The first row of every quantity of the state, and their number."""
        length, columns = self.model.length, self.model.columns
        widths = {
            "CENTER": self.size,
            "TARGET": length * target_columns(self.model),
            # whoever goes on elsewhere takes along what comes before the known minima, and of an end what comes first
            **dict.fromkeys(("POINT", "GRADIENT", "SLOPE"), self.size),
            "CURVATURE": len(self.triangle),
            **dict.fromkeys(("STEP", "BEST", "OTHER"), self.size),
            **dict.fromkeys(_SINGLE, 1),
            **({"FACTOR": self.size * columns, "VARIANCE": length**2} if self.own else {}),
            **({} if self.straight else self.by_rows.widths),
        }
        first = dict(zip(widths, [sum([*widths.values()][:n]) for n in range(len(widths))], strict=True))
        return first | {"ROWS": sum(widths.values())}

    def constants(self) -> dict[str, int]:
        """What the minimiser has to know of the state."""
        return {"LANES": self.width, "TARGETS": self.model.length * target_columns(self.model), **self.rows}

    @cached_property
    def by_rows(self) -> _ByRows:
        """The loss of many fields."""
        return _ByRows(self)

    def place(self, quantity: str, number: int = 0, scale: int = 0) -> Place:
        """A row of the state, which may depend on a loop's turn."""
        row = self.rows[quantity] + number
        return Place("state", (Row(scale, row) if scale else row,))

    # --- functions ---

    def functions(self) -> tuple[Function, ...]:
        """All of them: ``newton_trial``, ``teacher_targets``, ``lane_losses`` and of few fields ``newton_step``."""
        made = (self.newton_trial(), self.teacher_targets(), self.lane_losses())
        steps = self.straight and not self.own and self.size <= _STRAIGHT
        return (*made, self.newton_step()) if steps else made

    def function(self, name: str, loops: Iterable[Loop], arguments: tuple[str, ...] = _ARGUMENTS) -> Function:
        """A function of blocks."""
        length, columns = self.model.length, self.model.columns
        shapes = {
            "factor": (length, columns, columns),
            "variance": (length, length) if self.model.has_grams else (length,),
            "mixing": (length, length),
        }
        shared = ("factor", "variance", "parameters", "mixing")
        # of few fields the numbers of two lanes find room in a processor's registers
        return Function(name, arguments, tuple(loops), shapes, (), self.width, shared, self.size <= _IN_TURN)

    def teacher_targets(self) -> Function:
        """``teacher_targets(k, mixing, parameters, targets)``: rows of a block's targets from those of its fields."""
        reads, width, wide = Reads.of_arrays(Tape()), target_columns(self.model), label_fields(self.model)
        reads = _of_rows(reads, teacher=("k", wide))
        loops, rows, tokens = list[Loop](), self.loss, self.model.length
        if rows is None:
            copied = (Store(Place("targets", (i,)), reads.tape.read("k", i)) for i in range(width * tokens))
            loops.append(Loop(tuple(copied)))
        numbers = rows_of(self.model, rows.teacher) if rows else []
        made = [(row, target_row(self.model, rows, reads, row)) for row in numbers] if rows else []
        for row, entries in made:
            turn = Row(width) if row is None else Row(0, row * width)
            stores = (Store(Place("targets", (_index(turn, c),)), entry) for c, entry in enumerate(entries))
            loops.append(Loop(tuple(stores), tokens if row is None else None))
        return self.function("teacher_targets", loops, ("k", "mixing", "parameters", "targets"))

    def lane_losses(self) -> Function:
        """``lane_losses(h, targets, variance, parameters, losses)``: a block's losses from the rows of its fields."""
        reads = Reads.of_arrays(Tape())
        reads = _of_rows(reads, field=("h", self.model.columns), target=("targets", target_columns(self.model)))
        place, loops = Place("losses", (0,)), list[Loop]()
        if self.straight or self.loss is None:
            loops.append(Loop((Store(place, loss_terms(self.model, reads, 0).value),)))
        else:
            loops.append(Loop((Store(place, reads.tape.node(0)),)))
            for row in rows_of(self.model, self.loss.student):
                value = row_terms(self.model, self.loss, reads, 0, row).value
                loops.append(Loop((Store(place, value, adds=True),), self.model.length if row is None else None))
        return self.function("lane_losses", loops, ("h", "targets", "variance", "parameters", "losses"))

    def newton_trial(self) -> Function:
        """``newton_trial(state, factor, variance, parameters)``: a trial of every lane."""
        step = _Step(self)
        step.tried(trial=True)
        if self.straight:
            step.derived(loss_terms(self.model, step.reads()))
            return self.function("newton_trial", [Loop(tuple(step.trial()))])
        loops = self.by_rows.loops(step)
        step.derived(self.by_rows.collected(step))
        return self.function("newton_trial", [*loops, Loop(tuple(step.trial()))])

    def newton_step(self) -> Function:
        """``newton_step(state, factor, variance, parameters)``: a regular step of every lane."""
        step = _Step(self)
        step.tried(trial=False)
        step.derived(loss_terms(self.model, step.reads()))
        return self.function("newton_step", [Loop(tuple(step.regular()))])


def _index(turn: Row, number: int) -> int | Row:
    return Row(turn.scale, turn.offset + number) if turn.scale else turn.offset + number


def _of_rows(reads: Reads, **arrays: tuple[str, int]) -> Reads:
    """Reads of the rows of arrays, so many for every token."""

    def at(array: str, width: int) -> Any:
        def read(token: int | Row, column: int = 0) -> Node:
            own = token if isinstance(token, Row) else Row(0, token)
            return reads.tape.read(array, _index(Row(own.scale * width, own.offset * width), column))

        return read

    return replace(reads, **{name: at(*where) for name, where in arrays.items()})


class _Step:
    """A Newton step in one lane, from the trial point to the next step."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.tape, self.size = lanes, Tape(), lanes.size
        self.rules = lanes.rules
        self.length_unit = self.tape.read("parameters", 3)
        self.unit = self.length_unit * self.length_unit  # of the energy

    # --- the state ---

    def get(self, quantity: str, number: int = 0) -> Node:
        """A lane's number in a row of the state."""
        return self.tape.read("state", *self.lanes.place(quantity, number).indices)

    def vector(self, quantity: str) -> list[Node]:
        """The rows of a vector."""
        return [self.get(quantity, i) for i in range(self.size)]

    def put(self, quantity: str, new: Iterable[Node | Number], old: Iterable[Node] | None = None) -> list[Store]:
        """Stores of rows; with old values those that change where the trial is accepted."""
        values = [self.tape.node(one) for one in new]
        if old is not None:
            values = [self.accepted.chosen(one, before) for one, before in zip(values, old, strict=True)]
        return [Store(self.lanes.place(quantity, i), value) for i, value in enumerate(values)]

    def factor(self, token: int, i: int, j: int) -> Node:
        """An entry of the Cholesky factor of V."""
        if not self.lanes.own:
            return self.tape.read("factor", token, i, j)
        return self.get("FACTOR", (token * self.lanes.model.columns + i) * self.lanes.model.columns + j)

    def reads(self) -> Reads:
        """Where the loss finds the trial's fields, and all else in the state."""
        model = self.lanes.model
        return replace(
            Reads.of_arrays(self.tape),
            field=lambda token, column: self.fields[token * model.columns + column],
            target=lambda token, column: self.get("TARGET", token * target_columns(model) + column),
            **self.weights(),
        )

    def weights(self) -> dict[str, Any]:
        """Where the loss finds its weights."""
        if not self.lanes.own:
            return {}
        return {"weight": lambda *entry: self.get("VARIANCE", entry[-1] + self.lanes.model.length * sum(entry[:-1]))}

    # --- the trial ---

    def tried(self, *, trial: bool) -> None:
        """The trial's point, by the step that is to be made from the lane's, and its fields ``h = omega + C u``."""
        self.point, self.steps_before = self.vector("POINT"), self.vector("STEP")
        self.positive = self.get("DEFINITE") > 0 if trial else None
        moved = [x - dx for x, dx in zip(self.point, self.steps_before, strict=True)]
        self.trials = (
            moved
            if self.positive is None
            else [self.positive.chosen(*two) for two in zip(moved, self.point, strict=True)]
        )
        self.fields = [x + c for x, c in zip(self.vector("CENTER"), self.placed(self.trials), strict=True)]

    def placed(self, u: Sequence[Node]) -> list[Node]:
        """``C u``."""
        columns, total = self.lanes.model.columns, self.tape.total
        return [
            total(self.factor(token, i, j) * u[token * columns + j] for j in range(i + 1))
            for token in range(self.lanes.model.length)
            for i in range(columns)
        ]

    def derived(self, terms: Terms) -> None:
        """Energy, gradient and Hessian in u, from those of the loss in h."""
        columns, zero, size = self.lanes.model.columns, self.tape.node(0), self.size
        places = [divmod(i, columns) for i in range(size)]
        self.value = terms.value
        self.gradient = [terms.slopes.get(place, zero) for place in places]
        self.hessian = {(i, j): terms.curvatures.get((places[i], places[j]), zero) for i, j in self.lanes.triangle}
        total, self.slopes, self.curvatures = self.tape.total, list[Node](), dict[tuple[int, int], Node]()
        for i, (token, j) in enumerate(places):
            self.slopes.append(
                self.trials[i]
                + total(self.factor(token, c, j) * self.gradient[token * columns + c] for c in range(j, columns))
            )
        for row, column in self.lanes.triangle:
            (a, j), (b, l) = places[row], places[column]
            parts = (
                self.factor(a, i, j) * self.entry(a * columns + i, b * columns + c) * self.factor(b, c, l)
                for i, c in product(range(j, columns), range(l, columns))
            )
            self.curvatures[row, column] = total(parts) + int(row == column)
        self.norm = total(x * x for x in self.trials)
        self.energy = self.norm / 2 + self.value

    def entry(self, i: int, j: int) -> Node:
        """An entry of the Hessian in h."""
        return self.hessian[max(i, j), min(i, j)]

    # --- the next step: (curvature + damping I) step = slope ---

    def solve(self, slope: Sequence[Node], curvature: Mapping[tuple[int, int], Node], damping: Node) -> None:
        """By the factors of Cholesky without roots: lower triangle, pivots and their reciprocals."""
        size, total = range(self.size), self.tape.total
        pivots, inverse = list[Node](), list[Node]()
        products, lower = dict[tuple[int, int], Node](), dict[tuple[int, int], Node]()
        for j in size:
            pivots.append(curvature[j, j] + damping - total(lower[j, c] * products[j, c] for c in range(j)))
            inverse.append(pivots[j].inverse())
            for i in size[j + 1 :]:
                products[i, j] = curvature[i, j] - total(lower[i, c] * products[j, c] for c in range(j))
                lower[i, j] = products[i, j] * inverse[j]
        half, step = list[Node](), dict[int, Node]()
        for i in size:
            half.append(slope[i] - total(lower[i, c] * half[c] for c in range(i)))
        for i in reversed(size):
            step[i] = half[i] * inverse[i] - total(lower[c, i] * step[c] for c in size[i + 1 :])
        self.step = [step[i] for i in size]
        self.solvable = _all(pivot > self.rules["PIVOT"] for pivot in pivots)
        self.decrease = total(a * b for a, b in zip(slope, self.step, strict=True))

    def arrive(self, before: Mapping[tuple[int, int], Node], damping: Node) -> None:
        """Whether the next step leads to the minimum: it is small, and the slope it leaves is below the tolerance.

        That slope is half of how much the curvature changes along the step, times the step; by how much the curvature
        has changed along the step before, in proportion.
        """
        total, tolerance = self.tape.total, self.rules["GRADIENT_TOLERANCE"] ** 2
        made, now = (total(x * x for x in step) for step in (self.steps_before, self.step))
        self.step_square, scale = now, self.unit + self.norm
        change = {place: self.curvatures[place] - before[place] for place in self.lanes.triangle}
        size = range(self.size)
        bends = [total(change[max(i, j), min(i, j)] * self.step[j] for j in size) for i in size]
        left = total(bend * bend for bend in bends)
        slopes, bound = total(slope * slope for slope in self.slopes), scale * tolerance
        small = now <= scale * self.rules["CLOSE"] ** 2
        vanishing = left * now <= scale * made * (4 * tolerance)
        undamped = [] if damping.is_number else [damping <= 0]
        self.arrived = _all([self.accepted, self.solvable, *undamped, small, vanishing, slopes > bound])
        self.flat = (slopes <= bound) | self.arrived
        steps = self.get("STEPS")
        self.steps = self.accepted.chosen(steps + self.arrived.chosen(2, 1), steps)

    def written(self) -> list[Store]:
        """The trial becomes the lane's point, or the minimum where the step leads there."""
        arrived, total, size = self.arrived, self.tape.total, range(self.size)
        moved = self.placed(self.step)
        points = [arrived.chosen(x - dx, x) for x, dx in zip(self.trials, self.step, strict=True)]
        slopes = [
            arrived.chosen(self.gradient[i] - total(self.entry(i, j) * moved[j] for j in size), self.gradient[i])
            for i in size
        ]
        # the energy is quadratic there, and its first part exactly so
        norm_change = total(x * dx for x, dx in zip(self.trials, self.step, strict=True)) - self.step_square / 2
        energy = self.energy - self.decrease / 2
        loss = self.value - self.decrease / 2 + norm_change
        return [
            *self.put("POINT", points, self.point),
            *self.put("GRADIENT", slopes, self.vector("GRADIENT")),
            *self.put("ENERGY", [arrived.chosen(energy, self.energy)], [self.get("ENERGY")]),
            *self.put("LOSS", [arrived.chosen(loss, self.value)], [self.get("LOSS")]),
            *self.put("STEPS", [self.steps]),
        ]

    def allowed(self, energy: Node) -> tuple[Node, Node]:
        """The energy that a trial may not exceed, by what the step was to bring, and by rounding."""
        lower = energy - self.get("EXPECTED") * self.rules["DECREASE"]
        return lower, (self.unit + abs(energy)) * self.rules["ROUNDING"]

    # --- regular steps ---

    def regular(self) -> list[Store]:
        """All that a regular step writes; nothing where it is not regular."""
        zero, rules = self.tape.node(0), self.rules
        self.solve(self.slopes, self.curvatures, zero)
        event, far = self.get("EVENT"), self.unit * rules["FAR"]
        under_way = event <= rules["GOES_ON"]
        lower, within = self.allowed(self.get("ENERGY"))
        falls = self.energy <= lower + within
        self.accepted = _all([under_way, self.solvable, falls, abs(self.energy) < far, self.norm < far])
        triangle = self.lanes.triangle
        before = {place: self.get("CURVATURE", number) for number, place in enumerate(triangle)}
        self.arrive(before, zero)
        ended = self.flat.chosen(rules["CONVERGED"], rules["GOES_ON"])
        refused = under_way.chosen(rules["IRREGULAR"], event)
        return [
            *self.written(),
            *self.put("SLOPE", self.slopes, self.vector("SLOPE")),
            *self.put("STEP", self.step, self.steps_before),
            *self.put("CURVATURE", [self.curvatures[place] for place in triangle], before.values()),
            *self.put("EXPECTED", [self.decrease], [self.get("EXPECTED")]),
            *self.put("EVENT", [ended], [refused]),
        ]

    # --- trials ---

    def trial(self) -> list[Store]:
        """All that a trial writes."""
        rules, positive = self.rules, self.positive
        assert positive is not None
        first, shift, tries = self.get("STEPS") < 0, self.get("SHIFT"), self.get("TRIES")
        # at the start of a descent, whose energy is infinite, a trial is accepted if its own is finite
        lower, within = self.allowed(self.get("ENERGY"))
        bound = first.chosen(rules["FINITE"], lower) + first.chosen(0, within)
        self.accepted = positive & (first.chosen(abs(self.energy), self.energy) <= bound)
        # damping eases where a step was accepted, and rises where it was not or the matrix is not positive
        eased = (shift < rules["NO_SHIFT"]).chosen(0, shift * rules["EASED"])
        raised = self.tape.do(
            "largest", positive.chosen(rules["STEEPER"], rules["CONVEX"]) * shift, rules["FIRST_SHIFT"]
        )
        damping = self.accepted.chosen(eased, raised)
        # slope and curvature at the lane's point, the trial where that was accepted; none where none ever was
        slope = [
            self.accepted.chosen(new, first.chosen(0, old))
            for new, old in zip(self.slopes, self.vector("SLOPE"), strict=True)
        ]
        before, curvature = dict[tuple[int, int], Node](), dict[tuple[int, int], Node]()
        for number, place in enumerate(self.lanes.triangle):
            before[place] = first.chosen(int(place[0] == place[1]), self.get("CURVATURE", number))
            curvature[place] = self.accepted.chosen(self.curvatures[place], before[place])
        self.solve(slope, curvature, damping)
        self.arrive(before, damping)
        tries = self.accepted.chosen(0, tries + 1)
        deepest = self.get("DEEPEST")
        fall = -(self.unit + abs(self.energy)) * rules["FAR"]
        return [
            *self.written(),
            *self.put("SLOPE", slope),
            *self.put("STEP", self.step),
            *self.put("CURVATURE", [curvature[place] for place in self.lanes.triangle]),
            *self.put("EXPECTED", [self.decrease]),
            *self.put("DEFINITE", [self.solvable.chosen(1, 0)]),
            *self.put("SHIFT", [damping]),
            *self.put("TRIES", [tries]),
            *self.put("DEEPEST", [(first & self.accepted).chosen(fall, deepest)]),
            *self.put("EVENT", [self.event(first, tries, deepest)]),
        ]

    def event(self, first: Node, tries: Node, deepest: Node) -> Node:
        """What has happened to the descent: 0 for nothing."""
        rules = self.rules
        known = [self.near(self.vector(minimum)) for minimum in ("BEST", "OTHER")]
        endless = (self.steps < rules["MAX_NEWTON"]).chosen(rules["GOES_ON"], rules["ENDLESS"])
        here = self.flat.chosen(rules["CONVERGED"], endless)
        # where the descent has just begun, no minimum stops it
        here = first.chosen(here, (known[0] | known[1]).chosen(rules["MERGED"], here))
        inside = (self.norm < self.get("WIDEST")) & (self.energy > deepest)
        refused = (tries < rules["MAX_TRIES"]).chosen(rules["GOES_ON"], rules["STUCK"])
        return self.accepted.chosen(inside.chosen(here, rules["FLED"]), refused)

    def near(self, minimum: Sequence[Node]) -> Node:
        """Whether the trial is as close to a known minimum as a captured descent; an unknown one is not a number."""
        apart = self.tape.total((x - one) * (x - one) for x, one in zip(self.trials, minimum, strict=True))
        return apart <= self.tape.total(one * one for one in minimum) * self.rules["CAPTURED"] ** 2


class _ByRows:
    """The loss of a block row by row of the attention matrix, where there are more fields than one straight line takes.

    A row's function is the same for all rows: straight-line code for all lanes, in a loop over the rows.  Its
    derivatives in the fields of the tokens that it sees are added up; those in the fields of its own token, and mixed
    ones, lie behind one another, a part for each row, until all are put together.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.size, self.columns = lanes, lanes.size, lanes.model.columns
        self.sums, self.parts = set[int](), set[int]()

    @property
    def part(self) -> int:
        """Rows of a part."""
        return self.columns + self.columns * self.size + self.columns * (self.columns + 1) // 2

    @property
    def widths(self) -> dict[str, int]:
        """Rows of the state that the loops hand on."""
        sums = self.size + len(self.lanes.triangle)
        return {"FIELD": self.size, "VALUE": 1, "SUM": sums, "PART": self.lanes.model.length * self.part}

    def number(self, *fields: Field) -> int:
        """Where a derivative lies among the sums, or, if one of its fields is of the row's own token, in the part."""
        flat = [column if isinstance(token, Row) else token * self.columns + column for token, column in fields]
        if not isinstance(fields[0][0], Row):
            return flat[0] if len(flat) == 1 else self.size + flat[0] * (flat[0] + 1) // 2 + flat[1]
        if len(flat) == 1:
            return flat[0]
        if not isinstance(fields[1][0], Row):
            return self.columns + flat[0] * self.size + flat[1]
        return self.columns * (1 + self.size) + flat[0] * (flat[0] + 1) // 2 + flat[1]

    def loops(self, step: _Step) -> list[Loop]:
        """All that is done before the derivatives are put together."""
        lanes, rows = self.lanes, self.lanes.loss
        assert rows is not None
        targets = target_columns(lanes.model)

        def at(quantity: str, width: int) -> Any:
            def read(token: int | Row, column: int = 0) -> Node:
                own = (column, width) if isinstance(token, Row) else (token * width + column, 0)
                return step.tape.read("state", *lanes.place(quantity, *own).indices)

            return read

        reads = replace(
            Reads.of_arrays(step.tape), field=at("FIELD", self.columns), target=at("TARGET", targets), **step.weights()
        )
        loops = list[Loop]()
        for row in rows_of(lanes.model, rows.student):
            terms = row_terms(lanes.model, rows, reads, 2, row)
            derivatives = [*(((field,), slope) for field, slope in terms.slopes.items()), *terms.curvatures.items()]
            stores = [Store(lanes.place("VALUE"), terms.value, adds=True)]
            for fields, value in derivatives:
                number, summed = self.number(*fields), not isinstance(fields[0][0], Row)
                (self.sums if summed else self.parts).add(number)
                place = lanes.place("SUM", number) if summed else lanes.place("PART", number, self.part)
                stores.append(Store(place, value, adds=summed))
            loops.append(Loop(tuple(stores), lanes.model.length if row is None else None))
        zero = [Store(lanes.place("SUM", number), step.tape.node(0)) for number in sorted(self.sums)]
        begun = [Store(lanes.place("FIELD", i), field) for i, field in enumerate(step.fields)]
        return [Loop((*begun, *zero, *step.put("VALUE", [0]))), *loops]

    def collected(self, step: _Step) -> Terms:
        """Value, gradient and Hessian of the loss, put together."""

        def found(*fields: Field, row: int | None = None) -> Node:
            number = self.number(*fields)
            if row is None:
                return step.get("SUM", number) if number in self.sums else step.tape.node(0)
            return step.get("PART", row * self.part + number) if number in self.parts else step.tape.node(0)

        places = [divmod(i, self.columns) for i in range(self.size)]
        slopes: dict[Field, Node] = {place: found(place) + found((OWN, place[1]), row=place[0]) for place in places}
        curvatures = dict[Any, Node]()
        for i, j in self.lanes.triangle:
            (a, p), (b, q) = places[i], places[j]
            value = found((a, p), (b, q)) + found((OWN, p), (b, q), row=a) + found((OWN, q), (a, p), row=b)
            if a == b:
                value = value + found((OWN, max(p, q)), (OWN, min(p, q)), row=a)
            curvatures[places[i], places[j]] = value
        return Terms(step.get("VALUE"), slopes, curvatures)


def _all(conditions: Iterable[Node]) -> Node:
    """Whether all conditions hold."""
    return reduce(lambda one, other: one & other, conditions)
