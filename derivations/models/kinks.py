"""Kinks of a loss: whether its gradient jumps somewhere in the student's fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from sympy import Dummy, Rational, cancel

from derivations.models.functions import KINKED, Modulus, Relu, Sign, Step

__all__ = ["has_kink"]


def has_kink(loss: Any, student: Iterable[Any]) -> bool:
    """Whether the loss or its gradient in the student's fields jumps.

    ``relu(h)**2`` has no kink: its gradient is continuous.
    """
    for x in student:
        nodes = [node for node in loss.atoms(*KINKED) if x in node.free_symbols]
        slope = loss.diff(x) if nodes else None
        for node in nodes:
            if isinstance(node, (Sign, Step)) or _jumps(slope, node.args[0], x):
                return True
    return False


def _jumps(slope: Any, argument: Any, x: Any) -> bool:
    """Whether the slope in ``x`` jumps where ``argument`` vanishes, on any branch of the kinks inside the argument."""
    ratios = {node.args[0]: cancel(node.args[0] / argument) for node in slope.atoms(*KINKED)}
    along = {other: ratio for other, ratio in ratios.items() if ratio.is_number and ratio.is_real}  # vanish with it
    inner = list({node.args[0] for node in argument.atoms(*KINKED) if x in node.free_symbols})
    for signs in product((1, -1), repeat=len(inner)):
        branch = dict(zip(inner, signs, strict=True))
        zero = Dummy("zero", real=True)  # the argument, which is zero at the kink
        values = {other: ratio * zero for other, ratio in along.items()}
        above, below = (
            _on_branch(
                slope, branch | {other: side * (1 if ratio > 0 else -1) for other, ratio in along.items()}, values
            )
            for side in (1, -1)
        )
        jump = (above - below).subs(zero, 0)
        crossing = _on_branch(argument, branch, {})
        rate = crossing.diff(x)
        if rate == 0:
            continue
        if x not in rate.free_symbols:
            jump = jump.subs(x, -crossing.subs(x, 0) / rate)
        if not jump.equals(0):
            return True
    return False


def _on_branch(expression: Any, signs: Mapping[Any, int], values: Mapping[Any, Any]) -> Any:
    """The expression where the given arguments of kinked functions have these signs, and values where there are any."""
    if not expression.args:
        return expression
    if isinstance(expression, KINKED) and expression.args[0] in signs:
        (argument,) = expression.args
        sign = signs[argument]
        positive = Rational(1 + sign, 2)
        if isinstance(expression, Sign):
            return Rational(sign)
        if isinstance(expression, Step):
            return positive
        value = values[argument] if argument in values else _on_branch(argument, signs, values)
        factors = {Modulus: sign, Relu: positive}
        return factors[type(expression)] * value
    return expression.func(*(_on_branch(one, signs, values) for one in expression.args))
