"""Functions as Python text: one body for all languages, behind a head that gives it its functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction

from derivations.codegen.form import RESULT, Function, Loop, Store
from derivations.codegen.tape import Node, Place, Row, nodes_of

__all__ = ["printed"]

_LONGEST = 40  # text of a value that stands inside another one
_WIDEST = 2**53  # integer: larger ones are no exact doubles
_OPERATORS = {"less": " < ", "at_most": " <= ", "both": " & ", "either": " | "}
_SUM, _PRODUCT, _SIGN, _POWER, _ATOM = range(5)  # what binds more tightly than another


def printed(functions: Iterable[Function]) -> str:
    """Source of functions."""
    return "\n\n\n".join(map(_function, functions)) + "\n"


def _function(function: Function) -> str:
    lines = [f"{array}[...] = 0.0" for array in function.cleared]
    lines += [f"{RESULT.array} = 0.0"]
    for loop in function.loops:
        body = list(_Body(loop).lines())
        lines += body if loop.turns is None else [f"for a in range({loop.turns}):", *(f"    {line}" for line in body)]
    lines += [f"return {RESULT.array}"]
    return "\n".join([f"def {function.name}({', '.join(function.arguments)}):", *(f"    {line}" for line in lines)])


class _Body:
    """The lines of a loop: a value that is used twice, or long, has a name."""

    def __init__(self, loop: Loop) -> None:
        nodes = nodes_of(store.value for store in loop.stores)
        self.steps = [*nodes, *loop.stores]  # some reads stand where they are used
        self.uses = Counter(argument for node in nodes for argument in node.arguments)
        self.texts: dict[Node, tuple[str, int]] = {}
        self.names = 0

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            if isinstance(step, Store):
                value = self.texts[step.value][0]
                yield f"{_place(step.place)} {'+=' if step.adds else '='} {value}"
                continue
            text, binding = self.text(step)
            self.texts[step] = text, binding
            named = self.uses[step] > 1 and (step.arguments or step.operation == "read")
            if named or len(text) > _LONGEST:
                self.texts[step] = f"x{self.names}", _ATOM
                yield f"x{self.names} = {text}"
                self.names += 1

    def operand(self, node: Node, outside: int) -> str:
        text, binding = self.texts[node]
        return f"({text})" if binding < outside else text

    def text(self, node: Node) -> tuple[str, int]:
        """The text of an operation on its arguments, and how tightly it binds."""
        arguments = node.arguments
        if node.operation == "number":
            return _number(node.value)
        if node.operation == "constant":
            return node.value, _ATOM
        if node.operation == "read":
            return _place(node.value), _ATOM
        if node.operation == "variable":
            return self.texts[arguments[0]]
        if node.operation == "sum":
            one, other = (self.operand(x, _SUM) for x in arguments)
            if one.startswith("-"):
                one, other = other, one
            return (f"{one} - {other[1:]}" if other.startswith("-") else f"{one} + {other}"), _SUM
        if node.operation == "product":
            return f"{self.operand(arguments[0], _PRODUCT)}*{self.operand(arguments[1], _SIGN)}", _PRODUCT
        if node.operation == "negative":
            return f"-{self.operand(arguments[0], _PRODUCT)}", _SUM
        if node.operation == "inverse":
            return f"1/{self.operand(arguments[0], _POWER)}", _PRODUCT
        if node.operation == "power":
            return f"{self.operand(arguments[0], _ATOM)}**{self.operand(arguments[1], _ATOM)}", _POWER
        if node.operation in _OPERATORS:
            return f"({_OPERATORS[node.operation].join(self.operand(x, _SUM) for x in arguments)})", _ATOM
        return f"{node.operation}({', '.join(self.texts[x][0] for x in arguments)})", _ATOM


def _number(value: Fraction | float) -> tuple[str, int]:
    text = repr(value)
    if isinstance(value, Fraction):
        exact = value == Fraction(float(value)) or max(abs(value.numerator), value.denominator) > _WIDEST
        text = repr(float(value)) if exact else f"ratio({value.numerator}, {value.denominator})"
    elif abs(value) > _WIDEST:
        text = repr(float(value))
    return text, _SUM if text.startswith("-") else _ATOM


def _place(place: Place) -> str:
    indices = ", ".join(map(_index, place.indices))
    return f"{place.array}[{indices}]" if indices else place.array


def _index(index: int | Row) -> str:
    if isinstance(index, int):
        return str(index)
    turn = "a" if index.scale == 1 else f"{index.scale}*a"
    return f"{turn} + {index.offset}" if index.offset else turn
