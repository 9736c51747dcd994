"""Straight-line code: every operation on numbers is written down once, and so are its derivatives.

A `Tape` holds the operations in an order in which they can be done.  What is asked for twice is the same `Node`, so
that values and all their derivatives share what they have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce
from typing import Any, TypeAlias

from sympy import Add, And, Float, Ge, Gt, Integer, Le, Lt, Mul, NumberSymbol, Or, Pow, Rational

from derivations.models.functions import Softmax

__all__ = ["Node", "Number", "Place", "Row", "Tape", "nodes_of"]

Number: TypeAlias = Fraction | float | int
"""Exact numbers, and those of a computer."""


@dataclass(frozen=True)
class Row:
    """An index that depends on the number of a loop's turn: ``scale * turn + offset``."""

    scale: int = 1
    offset: int = 0


@dataclass(frozen=True)
class Place:
    """An element of an array, or without indices a number that a function adds up."""

    array: str
    indices: tuple[int | Row, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether it depends on the turn."""
        return any(isinstance(index, Row) for index in self.indices)

    def may_be(self, other: Place, turns: int) -> bool:
        """Whether it is the same as another one, in any of so many turns of either."""
        if self.array != other.array:
            return False
        pairs = zip(self.indices, other.indices, strict=True)
        return all(_first(x) <= _last(y, turns) and _first(y) <= _last(x, turns) for x, y in pairs)


def _first(index: int | Row) -> int:
    return index.offset if isinstance(index, Row) else index


def _last(index: int | Row, turns: int) -> int:
    return index.offset + index.scale * (turns - 1) if isinstance(index, Row) else index


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes
    ----------
    operation : str
        ``number``, ``constant`` (pi or e), ``read``, ``variable`` (the same number, in which one differentiates), or
        what is done with the arguments.
    arguments : tuple of Node
    value : object
        The number, the constant's name or the `Place` that is read.
    """

    tape: Tape = field(repr=False)
    operation: str
    arguments: tuple[Node, ...]
    value: Any = None

    def __add__(self, other: Node | Number) -> Node:
        return self.tape.add(self, other)

    def __radd__(self, other: Number) -> Node:
        return self.tape.add(self, other)

    def __sub__(self, other: Node | Number) -> Node:
        return self.tape.add(self, -self.tape.node(other))

    def __rsub__(self, other: Number) -> Node:
        return self.tape.add(-self, other)

    def __mul__(self, other: Node | Number) -> Node:
        return self.tape.multiply(self, other)

    def __rmul__(self, other: Number) -> Node:
        return self.tape.multiply(self, other)

    def __truediv__(self, other: Node | Number) -> Node:
        return self.tape.multiply(self, self.tape.node(other).inverse())

    def __neg__(self) -> Node:
        if self.operation == "negative":
            return self.arguments[0]
        return self.tape.node(-self.value) if self.is_number else self.tape.do("negative", self)

    def __lt__(self, other: Node | Number) -> Node:
        return self.tape.do("less", self, other)

    def __gt__(self, other: Node | Number) -> Node:
        return self.tape.do("less", self.tape.node(other), self)

    def __le__(self, other: Node | Number) -> Node:
        return self.tape.do("at_most", self, other)

    def __ge__(self, other: Node | Number) -> Node:
        return self.tape.do("at_most", self.tape.node(other), self)

    def __and__(self, other: Node) -> Node:
        return self.tape.do("both", self, other)

    def __or__(self, other: Node) -> Node:
        return self.tape.do("either", self, other)

    def __abs__(self) -> Node:
        return self.tape.do("modulus", self)

    def chosen(self, yes: Node | Number, no: Node | Number) -> Node:
        """One of two values, by whether this condition holds; both are computed."""
        yes, no = self.tape.node(yes), self.tape.node(no)
        return yes if yes is no else self.tape.do("chosen", self, yes, no)

    def inverse(self) -> Node:
        """``1 / x``."""
        if self.is_number and self.value != 0:
            return self.tape.node(1 / (Fraction(self.value) if isinstance(self.value, int) else self.value))
        return self.tape.do("inverse", self)

    @property
    def is_number(self) -> bool:
        """Whether it is the same number for all samples, known now."""
        return self.operation == "number"


_READ_BY_NAME = ("exp", "log", "cos", "sin", "cosh", "sinh", "tanh")
_OWN = ("Step", "Sign", "Modulus", "Relu", "Sigmoid", "Softplus")  # of `derivations.models.functions`

# derivative of a function, by its argument x and its value y
_SLOPES: dict[str, Callable[[Node, Node], Node | Number]] = {
    "negative": lambda x, y: -1,
    "inverse": lambda x, y: -(y * y),
    "exp": lambda x, y: y,
    "log": lambda x, y: x.inverse(),
    "sqrt": lambda x, y: (2 * y).inverse(),
    "cos": lambda x, y: -x.tape.do("sin", x),
    "sin": lambda x, y: x.tape.do("cos", x),
    "cosh": lambda x, y: x.tape.do("sinh", x),
    "sinh": lambda x, y: x.tape.do("cosh", x),
    "tanh": lambda x, y: 1 - y * y,
    "sigmoid": lambda x, y: y * (1 - y),
    "softplus": lambda x, y: x.tape.do("sigmoid", x),
    "relu": lambda x, y: x.tape.do("step", x),
    "modulus": lambda x, y: x.tape.sign(x),
    "step": lambda x, y: 0,
    "sign": lambda x, y: 0,
}


@dataclass(eq=False)
class Tape:
    """Operations by what they are, and the signs of arguments of moduli that are given from outside."""

    known: dict[Any, Node] = field(default_factory=dict[Any, Node])
    signs: dict[Node, Node] = field(default_factory=dict[Node, Node])

    # --- writing ---

    def _kept(self, operation: str, arguments: tuple[Node, ...] = (), value: Any = None) -> Node:
        key = (operation, arguments, type(value), value)
        if key not in self.known:
            self.known[key] = Node(self, operation, arguments, value)
        return self.known[key]

    def _known(self, operation: str, *arguments: Node | None) -> Node | None:
        """An operation that was asked for before."""
        return self.known.get((operation, arguments, type(None), None))

    def node(self, value: Node | Number) -> Node:
        """A number as a node."""
        if isinstance(value, Node):
            return value
        exact = isinstance(value, Fraction) and value.denominator == 1
        return self._kept("number", (), int(value) if exact else value)

    def do(self, operation: str, *arguments: Node | Number) -> Node:
        """An operation on values."""
        return self._kept(operation, tuple(map(self.node, arguments)))

    def read(self, array: str, *indices: int | Row) -> Node:
        """An element of an array."""
        return self._kept("read", (), Place(array, indices))

    def variable(self, value: Node) -> Node:
        """The same number, in which something is differentiated: no operation looks behind it."""
        return self.do("variable", value)

    def sign(self, value: Node) -> Node:
        """The sign of a value, or what stands for it."""
        return self.signs.get(value) or self.do("sign", value)

    def add(self, one: Node, other: Node | Number) -> Node:
        """A sum, without zeros."""
        other = self.node(other)
        if one.is_number and other.is_number:
            return self.node(one.value + other.value)
        for zero, rest in ((one, other), (other, one)):
            if zero.is_number and zero.value == 0:
                return rest
        if one is other:
            return self.multiply(one, 2)
        signs = [node.operation == "negative" for node in (one, other)]
        if all(signs):
            return -self.add(-one, -other)
        if any(signs):
            one, other = (other, one) if signs[0] else (one, other)
            opposite = self._known("sum", -other, self._known("negative", one))
            if opposite is not None:  # a difference that is there the other way round
                return -opposite
        return self.do("sum", *((other, one) if one.is_number else (one, other)))

    def multiply(self, one: Node, other: Node | Number) -> Node:
        """A product, without ones; zero where a factor is."""
        other = self.node(other)
        if other.is_number:
            one, other = other, one
        if one.is_number:
            if other.is_number:
                return self.node(one.value * other.value)
            if one.value in (0, 1, -1):
                return {0: one, 1: other, -1: -other}[one.value]
            if other.operation == "product" and other.arguments[0].is_number:
                return self.multiply(other.arguments[1], one.value * other.arguments[0].value)
        if "negative" in (one.operation, other.operation):
            signs = [node.operation == "negative" for node in (one, other)]
            product = self.multiply(-one if signs[0] else one, -other if signs[1] else other)
            return product if all(signs) else -product
        return self.do("product", one, other)

    def total(self, values: Iterable[Node]) -> Node:
        """The sum of values."""
        return reduce(self.add, values, self.node(0))

    def power(self, base: Node, exponent: Fraction | int) -> Node:
        """A rational power."""
        if exponent < 0:
            return self.power(base, -exponent).inverse()
        whole, rest = divmod(Fraction(exponent), 1)
        if rest and exponent != Fraction(1, 2):  # a root's slope times zero would be no number
            return self.do("power", base, exponent)
        root = self.do("sqrt", base) if rest else self.node(1)
        return reduce(self.multiply, [base] * int(whole), root)

    # --- from SymPy ---

    def of(self, expression: Any, values: Mapping[Any, Node], known: dict[Any, Node] | None = None) -> Node:
        """An expression of the symbols for which values are given.

        Raises
        ------
        TypeError
            It holds something that generated code does not know.
        """
        known = {} if known is None else known
        if expression in values:
            return values[expression]
        if expression not in known:
            known[expression] = self._new(expression, lambda part: self.of(part, values, known))
        return known[expression]

    def _new(self, expression: Any, of: Callable[[Any], Node]) -> Node:
        if isinstance(expression, (int, float)):
            return self.node(expression)
        if isinstance(expression, (Integer, Rational)):
            return self.node(Fraction(int(expression.p), int(expression.q)))
        if isinstance(expression, Float):
            return self.node(float(expression))
        if isinstance(expression, NumberSymbol):
            return self._kept("constant", (), {"Pi": "pi", "Exp1": "e"}[type(expression).__name__])
        if isinstance(expression, Pow):
            return self._power(expression, of)
        if isinstance(expression, Softmax):
            return of(expression.stable)
        name, arguments = type(expression).__name__, [of(part) for part in expression.args]
        if isinstance(expression, Add):
            return self.total(arguments)
        if isinstance(expression, Mul):
            return reduce(self.multiply, arguments, self.node(1))
        if isinstance(expression, (And, Or)):
            return reduce(lambda a, b: a & b if isinstance(expression, And) else a | b, arguments)
        if isinstance(expression, (Lt, Le, Gt, Ge)):
            one, other = arguments if isinstance(expression, (Lt, Le)) else reversed(arguments)
            return one < other if isinstance(expression, (Lt, Gt)) else one <= other
        if name in _READ_BY_NAME or name in _OWN:
            return self.sign(arguments[0]) if name == "Sign" else self.do(name.lower(), *arguments)
        raise TypeError(f"generated code does not know {name}")

    def _power(self, expression: Any, of: Callable[[Any], Node]) -> Node:
        base, exponent = expression.args
        if isinstance(exponent, (Integer, Rational)):
            return self.power(of(base), Fraction(int(exponent.p), int(exponent.q)))
        return self.do("power", of(base), of(exponent))

    # --- derivatives ---

    def partials(self, node: Node) -> Iterator[tuple[Node, Node]]:
        """The arguments of an operation with its derivatives in them; a largest value counts as a number."""
        arguments = node.arguments
        if node.operation == "sum":
            yield from ((one, self.node(1)) for one in arguments)
        elif node.operation == "product":
            yield from zip(arguments, reversed(arguments), strict=True)
        elif node.operation == "power":
            base, exponent = arguments
            yield base, exponent * self.do("power", base, exponent - 1)
            yield exponent, self.do("log", base) * node
        elif node.operation == "chosen":
            condition, yes, no = arguments
            yield yes, condition.chosen(1, 0)
            yield no, condition.chosen(0, 1)
        elif node.operation in _SLOPES:
            yield arguments[0], self.node(_SLOPES[node.operation](arguments[0], node))

    def gradient(self, value: Node, variables: Sequence[Node]) -> list[Node]:
        """Derivatives of a value, backwards through what it is made of."""
        order = nodes_of([value], variables)
        moved, slopes = set(variables), {value: self.node(1)}
        for node in order:
            if not moved.isdisjoint(node.arguments):
                moved.add(node)
        for node in reversed(order):
            if node in slopes and node not in variables:
                for argument, slope in self.partials(node) if node in moved else ():
                    if argument in moved:
                        slopes[argument] = self.add(slopes.get(argument, self.node(0)), slopes[node] * slope)
        return [slopes.get(one, self.node(0)) for one in variables]

    def along(self, values: Sequence[Node], variables: Sequence[Node], one: Node) -> list[Node]:
        """Derivatives of values in one of the variables, forwards."""
        changes = {one: self.node(1)}
        for node in nodes_of(values, variables):
            if node not in changes and not changes.keys().isdisjoint(node.arguments):
                parts = [slope * changes[x] for x, slope in self.partials(node) if x in changes]
                changes[node] = self.total(parts)
        return [changes.get(value, self.node(0)) for value in values]

    def curvatures(self, slopes: Sequence[Node], variables: Sequence[Node]) -> dict[tuple[int, int], Node]:
        """Derivatives of slopes, forwards, by the numbers of both variables, of which the second is not the smaller."""
        found = {}
        for y, one in enumerate(variables):
            found |= {(x, y): change for x, change in enumerate(self.along(slopes[: y + 1], variables, one))}
        return found


def nodes_of(values: Iterable[Node], leaves: Iterable[Node] = ()) -> list[Node]:
    """What values are made of, each behind its arguments; of leaves it is not asked."""
    order, seen, ends = list[Node](), set[Node](), set(leaves)
    stack = [(value, False) for value in reversed([*values])]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(one, False) for one in reversed(node.arguments) if node not in ends and one not in seen]
    return order
