"""Functions as LLVM's text: for one sample, or for many side by side in the lanes of a processor's registers.

All functions take as many addresses of numbers, and return a number.  What all samples have in common is done once,
before the loop over them.  Exponentials and logarithms are polynomials in what the exponent leaves over, for all lanes
at once.  A number is rounded by adding 3/2 2^52, behind which a double has no digits left: the last of its bits are the
integer.  What has no such form here (a sine) is called lane by lane.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import reduce
from math import e, factorial, log, pi, prod, sqrt
from typing import Any

from derivations.codegen.form import RESULT, Function, Loop, Store
from derivations.codegen.tape import Node, Place, nodes_of

__all__ = ["emitted"]

_AT_A_TIME = 10  # operations of one register before it is the other's turn
# sums in any order and products with reciprocals; infinities keep their meaning, and so does what is not a number
_IN_ORDER = "nsz arcp contract afn"
_LOOSE = f"reassoc {_IN_ORDER}"
_CONDITIONS = {"less": "olt", "at_most": "ole", "both": "and", "either": "or"}
_FIXED = ("number", "constant")
_NAMED: dict[Any, float] = {"pi": pi, "e": e}
_CALLED = {"sin": "sin", "cos": "cos", "pow": "pow"}  # functions of the C library


def _sigmoid(x: Node) -> Node:
    small = x.tape.do("exp", -abs(x))
    size = (1 + small).inverse()
    return (x > 0).chosen(size, small * size)


def _tanh(x: Node) -> Node:
    small = x.tape.do("exp", -2 * abs(x))
    size = (1 - small) / (1 + small)
    return (x > 0).chosen(size, -size)


def _hyperbolic(x: Node) -> tuple[Node, Node]:
    large = x.tape.do("exp", abs(x))
    return large / 2, large.inverse() / 2


def _sinh(x: Node) -> Node:
    large, small = _hyperbolic(x)
    return (x > 0).chosen(large - small, small - large)


def _power(base: Node, exponent: Node) -> Node:
    """A half power by a root, which all lanes have at once; any other by the C library."""
    if exponent.is_number and exponent.value < 0:
        return _power(base, -exponent).inverse()
    whole, rest = divmod(exponent.value, 1) if exponent.is_number else (0, 0)
    if rest != Fraction(1, 2):
        return base.tape.do("pow", base, exponent)
    return reduce(base.tape.multiply, [base] * int(whole), base.tape.do("sqrt", base))


_MADE_OF: dict[str, Callable[..., Node]] = {
    "variable": lambda x: x,
    "power": _power,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "cosh": lambda x: _hyperbolic(x)[0] + _hyperbolic(x)[1],
    "sinh": _sinh,
    "softplus": lambda x: x.tape.do("relu", x) + x.tape.do("log1p", x.tape.do("exp", -abs(x))),
    "relu": lambda x: (x > 0).chosen(x, 0),
    "step": lambda x: (x > 0).chosen(1, 0),
    "sign": lambda x: (x > 0).chosen(1, (x < 0).chosen(-1, 0)),
    "largest": lambda a, b: (a < b).chosen(b, a),
}
"""Functions by simpler ones."""


def emitted(functions: Iterable[Function], arguments: int, numbers: int) -> str:
    """The text of a module, whose functions all take so many addresses, for registers of so many numbers."""
    parts = [_Text(function, numbers).text(arguments) for function in functions]
    width = f"v{numbers}f64"
    vector = f"<{numbers} x double>"
    declared = [f"declare double @{name}(double{', double' if name == 'pow' else ''})" for name in _CALLED.values()]
    for name in ("fabs", "sqrt"):
        declared += [f"declare double @llvm.{name}.f64(double)", f"declare {vector} @llvm.{name}.{width}({vector})"]
    declared += ["declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"]
    return "\n\n".join([*parts, "\n".join(declared)]) + "\n"


def _simpler(stores: Sequence[Store]) -> tuple[Store, ...]:
    """The same stores of values in which no function of `_MADE_OF` is left."""
    known = dict[Node, Node]()

    def simple(value: Node) -> Node:
        for node in nodes_of([value], known):
            if node not in known:
                arguments = [known[one] for one in node.arguments]
                made = _MADE_OF.get(node.operation)
                known[node] = simple(made(*arguments)) if made else _again(node, arguments)
        return known[value]

    return tuple(Store(store.place, simple(store.value), store.adds) for store in stores)


def _again(node: Node, arguments: list[Node]) -> Node:
    """The operation on other arguments."""
    return node.tape.do(node.operation, *arguments) if [*node.arguments] != arguments else node


class _Text:
    """The lines of a function."""

    def __init__(self, function: Function, numbers: int) -> None:
        self.function, self.numbers = function, numbers
        self.lines: list[str] = []
        self.count = 0

    # --- the function ---

    def text(self, arguments: int) -> str:
        given = self.function.arguments
        names = [*given, *(f"unused{i}" for i in range(arguments - len(given)))]
        self.add(f"%{RESULT.array} = alloca double")
        self.add(f"store double 0.0, ptr %{RESULT.array}")
        for array in self.function.cleared:
            size = 8 * prod(self.function.shapes[array])
            self.add(f"call void @llvm.memset.p0.i64(ptr %{array}, i8 0, i64 {size}, i1 false)")
        for loop in self.function.loops:
            self.loop(Loop(_simpler(loop.stores), loop.turns))
        result = self.new(f"load double, ptr %{RESULT.array}")
        self.add(f"ret double {result}")
        taken = ", ".join(f"ptr noalias nocapture %{name}" for name in names)
        return f"define double @{self.function.name}({taken}) {{\nentry:\n" + "\n".join(self.lines) + "\n}"

    def add(self, line: str) -> None:
        self.lines.append(f"  {line}")

    def new(self, value: str) -> str:
        self.count += 1
        self.add(f"%t{self.count} = {value}")
        return f"%t{self.count}"

    def loop(self, loop: Loop) -> None:
        """A loop over turns, and in each over the lanes."""
        turn = self.opened() if loop.turns else None
        places = {node.value for node in nodes_of(store.value for store in loop.stores) if node.operation == "read"}
        places |= {store.place for store in loop.stores} - {RESULT}
        bases = {key: self.base(key, turn) for key in sorted({(p.array, self.function.flat(p)[0]) for p in places})}
        body = _Body(self, loop, bases)
        body.common_values()
        if self.function.lanes:
            self.over_lanes(body)
        else:
            body.run([0])
        if turn:
            self.closed(turn, loop.turns or 0, 1)

    def base(self, key: tuple[str, int], turn: str | None) -> str:
        """Where an array begins for a turn."""
        array, scale = key
        if not scale:
            return f"%{array}"
        width = 1 if array in self.function.shared else max(self.function.lanes, 1)
        shift = self.new(f"mul i64 {turn}, {scale * width}")
        return self.new(f"getelementptr inbounds double, ptr %{array}, i64 {shift}")

    def over_lanes(self, body: _Body) -> None:
        step = self.numbers * len(body.halves)
        index = self.opened()
        for key, base in body.bases.items():
            if key[0] not in self.function.shared:
                body.bases[key] = self.new(f"getelementptr inbounds double, ptr {base}, i64 {index}")
        body.run(body.halves)
        self.closed(index, self.function.lanes, step)

    def opened(self) -> str:
        """Begin a loop; returns its index."""
        self.count += 1
        label = f"loop{self.count}"
        before = next(line[:-1] for line in reversed(self.labels()) if line)
        self.lines += [
            f"  br label %{label}",
            f"{label}:",
            f"  %{label}i = phi i64 [ 0, %{before} ], [ %{label}n, %{label}e ]",
        ]
        return f"%{label}i"

    def labels(self) -> list[str]:
        return ["entry:", *(line for line in self.lines if line.endswith(":"))]

    def closed(self, index: str, turns: int, step: int) -> None:
        label = index[1:-1]
        self.lines += [
            f"  br label %{label}e",
            f"{label}e:",
            f"  %{label}n = add nuw nsw i64 {index}, {step}",
            f"  %{label}m = icmp ult i64 %{label}n, {turns}",
            f"  br i1 %{label}m, label %{label}, label %{label}o",
            f"{label}o:",
        ]


class _Body:
    """The operations of a loop's turn: for one sample, or for lanes in two halves that are done in turn."""

    def __init__(self, text: _Text, loop: Loop, bases: dict[tuple[str, int], str]) -> None:
        self.text, self.loop, self.bases = text, loop, bases
        self.function = text.function
        self.lanes = text.numbers if self.function.lanes else 0
        self.halves = [*range(2 if self.function.in_turn else 1)]
        self.values: list[dict[Node, str]] = [{}, {}]
        self.alike: dict[Node, str] = {}  # of what is the same number for all lanes
        self.spread: dict[Node, str] = {}

    # --- what is the same for all lanes ---

    def common_values(self) -> None:
        """Do what is common to all lanes, and spread over them what others are made of."""
        if not self.lanes:
            return
        nodes = nodes_of(store.value for store in self.loop.stores)
        for node in nodes:
            if self.is_alike(node):
                self.alike[node] = self.operation(node, [self.alike.get(x, "") for x in node.arguments], 0, 0)
        used = [x for node in nodes if node not in self.alike for x in node.arguments]
        for node in (*used, *(store.value for store in self.loop.stores)):
            if node in self.alike and node not in self.spread:
                vector = self.kind(node, self.lanes)
                first = f"insertelement {vector} poison, {self.kind(node, 0)} {self.alike[node]}, i32 0"
                zeros = f"<{self.lanes} x i32> zeroinitializer"
                self.spread[node] = self.text.new(
                    f"shufflevector {vector} {self.text.new(first)}, {vector} poison, {zeros}"
                )

    def is_alike(self, node: Node) -> bool:
        """Whether an operation has the same result for all lanes, and is none of numbers alone."""
        if node.operation == "read":
            return node.value.array in self.function.shared
        own = [x for x in node.arguments if x.operation not in _FIXED]
        return bool(own) and all(x in self.alike for x in own)

    # --- all operations in turn ---

    def run(self, halves: Sequence[int]) -> None:
        steps = [step for step in self.loop.steps() if not (isinstance(step, Node) and step in self.alike)]
        for first in range(0, len(steps), _AT_A_TIME):
            for half in halves:
                for step in steps[first : first + _AT_A_TIME]:
                    if isinstance(step, Store):
                        self.store(step, half)
                    else:
                        arguments = [self.value(x, half) for x in step.arguments]
                        self.values[half][step] = self.operation(step, arguments, half, self.lanes)

    def value(self, node: Node, half: int) -> str:
        return self.spread.get(node) or self.values[half][node]

    def kind(self, node: Node, lanes: int) -> str:
        one = "i1" if node.operation in _CONDITIONS or self.chooses(node) else "double"
        return f"<{lanes} x {one}>" if lanes else one

    def chooses(self, node: Node) -> bool:
        """Whether it is one of two conditions."""
        return node.operation == "chosen" and any(
            x.operation in _CONDITIONS or self.chooses(x) for x in node.arguments[1:]
        )

    def address(self, place: Place, half: int) -> str:
        if place == RESULT:
            return f"%{RESULT.array}"
        scale, offset = self.function.flat(place)
        width = 1 if place.array in self.function.shared else max(self.function.lanes, 1)
        shift = offset * width + (half * self.lanes if width > 1 else 0)
        base = self.bases[place.array, scale]
        return self.text.new(f"getelementptr inbounds double, ptr {base}, i64 {shift}") if shift else base

    def store(self, store: Store, half: int) -> None:
        kind = f"<{self.lanes} x double>" if self.lanes else "double"
        value, address = self.value(store.value, half), self.address(store.place, half)
        if self.kind(store.value, 0) == "i1":
            value = self.text.new(f"uitofp {self.kind(store.value, self.lanes)} {value} to {kind}")
        if store.adds:
            before = self.text.new(f"load {kind}, ptr {address}, align 8")
            value = self.text.new(f"fadd {_LOOSE} {kind} {before}, {value}")
        self.text.add(f"store {kind} {value}, ptr {address}, align 8")

    def operation(self, node: Node, arguments: list[str], half: int, lanes: int) -> str:
        """What an operation on values gives."""
        new, kind, name = self.text.new, self.kind(node, lanes), node.operation
        numbers = _Vector(new, lanes)
        if not lanes:
            given = zip(node.arguments, arguments, strict=True)
            arguments = [self.operation(x, [], 0, 0) if x.operation in _FIXED else value for x, value in given]
        if name in _FIXED:
            return numbers.number(_NAMED[node.value] if node.value in _NAMED else float(node.value))
        if name == "read":
            return new(f"load {kind}, ptr {self.address(node.value, half)}, align 8")
        own = numbers.kind
        if name in ("sum", "product"):
            return new(f"{'fadd' if name == 'sum' else 'fmul'} {_LOOSE} {own} {arguments[0]}, {arguments[1]}")
        if name == "negative":
            return new(f"fneg {_LOOSE} {own} {arguments[0]}")
        if name == "inverse":
            return new(f"fdiv {_LOOSE} {own} {numbers.number(1.0)}, {arguments[0]}")
        if name in ("less", "at_most"):
            return new(f"fcmp {_CONDITIONS[name]} {own} {arguments[0]}, {arguments[1]}")
        if name in ("both", "either"):
            return new(f"{_CONDITIONS[name]} {kind} {arguments[0]}, {arguments[1]}")
        if name == "chosen":
            return self.choice(node, arguments, lanes)
        if name in ("modulus", "sqrt"):
            return numbers.intrinsic("fabs" if name == "modulus" else "sqrt", arguments[0])
        if name in _CALLED:
            return numbers.called(_CALLED[name], arguments)
        return {"exp": numbers.exp, "log": numbers.log, "log1p": numbers.log1p}[name](arguments[0])

    def choice(self, node: Node, arguments: list[str], lanes: int) -> str:
        """One of two values; what is not frozen LLVM puts back by slow stores under masks."""
        new, kind = self.text.new, self.kind(node, lanes)
        condition = f"<{lanes} x i1>" if lanes else "i1"
        values = list[str]()
        for one, value in zip(node.arguments[1:], arguments[1:], strict=True):
            values.append(
                value if one.operation in ("number", *_CONDITIONS) or not lanes else new(f"freeze {kind} {value}")
            )
        return new(f"select {condition} {arguments[0]}, {kind} {values[0]}, {kind} {values[1]}")


class _Vector:
    """Functions of numbers, one or one in each lane."""

    def __init__(self, new: Callable[[str], str], lanes: int) -> None:
        self.new, self.lanes = new, lanes
        self.kind = f"<{lanes} x double>" if lanes else "double"
        self.bits = f"<{lanes} x i64>" if lanes else "i64"
        self.condition = f"<{lanes} x i1>" if lanes else "i1"

    def number(self, value: float) -> str:
        one = f"0x{struct.pack('>d', value).hex().upper()}"
        return f"<{', '.join([f'double {one}'] * self.lanes)}>" if self.lanes else one

    def integer(self, value: int) -> str:
        return f"<{', '.join([f'i64 {value}'] * self.lanes)}>" if self.lanes else str(value)

    def intrinsic(self, name: str, x: str) -> str:
        return self.new(
            f"call {self.kind} @llvm.{name}.{f'v{self.lanes}f64' if self.lanes else 'f64'}({self.kind} {x})"
        )

    def called(self, name: str, arguments: list[str]) -> str:
        """A function of the C library, lane by lane."""
        if not self.lanes:
            return self.new(f"call double @{name}({', '.join(f'double {x}' for x in arguments)})")
        result = "poison"
        for lane in range(self.lanes):
            own = [self.new(f"extractelement {self.kind} {x}, i32 {lane}") for x in arguments]
            one = self.new(f"call double @{name}({', '.join(f'double {x}' for x in own)})")
            result = self.new(f"insertelement {self.kind} {result}, double {one}, i32 {lane}")
        return result

    def do(self, operation: str, x: str | float, y: str | float) -> str:
        x, y = (self.number(one) if isinstance(one, float) else one for one in (x, y))
        return self.new(f"{operation} {_IN_ORDER} {self.kind} {x}, {y}")

    def sum(self, x: str | float, y: str | float) -> str:
        return self.do("fadd", x, y)

    def product(self, x: str | float, y: str | float) -> str:
        return self.do("fmul", x, y)

    def unless(self, comparison: str, x: str, bound: float, instead: str | float, value: str) -> str:
        """A value, or another one where a number compares so with a bound."""
        beyond = self.new(f"fcmp {comparison} {self.kind} {x}, {self.number(bound)}")
        other = self.number(instead) if isinstance(instead, float) else instead
        return self.new(f"select {self.condition} {beyond}, {self.kind} {other}, {self.kind} {value}")

    def exp(self, x: str) -> str:
        x = self.unless("olt", x, -700.0, -700.0, x)
        x = self.unless("ogt", x, 700.0, 700.0, x)
        shift = 1.5 * 2.0**52
        shifted = self.sum(self.product(x, 1 / log(2)), shift)
        n = self.do("fsub", shifted, shift)
        high, low = 0.6931471803691238, 1.9082149292705877e-10  # of the logarithm of 2
        r = self.do("fsub", self.do("fsub", x, self.product(n, high)), self.product(n, low))
        terms: list[str | float] = [1 / factorial(k) for k in range(13)]
        # neighbours first, then pairs of these, so that the processor need not wait
        power: str | float = r
        while len(terms) > 1:
            pairs = [self.sum(a, self.product(power, b)) for a, b in zip(terms[::2], terms[1::2], strict=False)]
            terms = [*pairs, *([terms[-1]] if len(terms) % 2 else [])]
            power = self.product(power, power)
        bits = self.new(f"bitcast {self.kind} {shifted} to {self.bits}")
        bits = self.new(f"add {self.bits} {bits}, {self.integer(1023)}")
        bits = self.new(f"shl {self.bits} {bits}, {self.integer(52)}")
        return self.product(terms[0], self.new(f"bitcast {self.bits} {bits} to {self.kind}"))

    def log(self, x: str) -> str:
        bits = self.new(f"bitcast {self.kind} {x} to {self.bits}")
        n = self.new(
            f"sub {self.bits} {self.new(f'lshr {self.bits} {bits}, {self.integer(52)}')}, {self.integer(1023)}"
        )
        exponent = self.new(f"sitofp {self.bits} {n} to {self.kind}")
        bits = self.new(f"and {self.bits} {bits}, {self.integer(2**52 - 1)}")
        bits = self.new(f"or {self.bits} {bits}, {self.integer(1023 << 52)}")
        m = self.new(f"bitcast {self.bits} {bits} to {self.kind}")
        exponent = self.unless("ogt", m, sqrt(2), self.sum(exponent, 1.0), exponent)
        m = self.unless("ogt", m, sqrt(2), self.product(m, 0.5), m)
        s = self.do("fdiv", self.sum(m, -1.0), self.sum(m, 1.0))
        square = self.product(s, s)
        value: str | float = 0.0
        for i in range(21, 0, -2):
            value = self.sum(self.product(value, square), 1 / i)
        value = self.sum(self.product(exponent, log(2)), self.product(self.product(s, 2.0), value))
        value = self.unless("oeq", x, 0.0, float("-inf"), value)
        value = self.unless("oeq", x, float("inf"), x, value)
        return self.unless("ult", x, 0.0, float("nan"), value)

    def log1p(self, x: str) -> str:
        u = self.sum(x, 1.0)
        rest = self.do("fsub", x, self.sum(u, -1.0))
        return self.sum(self.log(u), self.do("fdiv", rest, u))
