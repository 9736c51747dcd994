"""Kinks of a loss: where its gradient jumps in the student's fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any

from sympy import Dummy, Integer, Rational, S, cancel, default_sort_key

from derivations.algebra.common_parts import Slopes
from derivations.models.functions import KINKED, Modulus, Relu, Sign, Step

__all__ = ["has_kink", "kinks", "slope_in_modulus", "steep_kink", "with_moduli"]


def has_kink(loss: Any, student: Iterable[Any]) -> bool:
    """Whether the loss or its gradient in the student's fields jumps.

    ``relu(h)**2`` has no kink: its gradient is continuous.
    """
    student = {*student}
    return any(node.free_symbols & student for node in loss.atoms(Sign, Step)) or bool(kinks(loss, student))


def kinks(loss: Any, student: Iterable[Any]) -> tuple[Any, ...]:
    """The arguments of moduli and ``relu`` at whose zeros the gradient jumps; of those in proportion, the first."""
    slopes, found = {x: Slopes(x) for x in student}, list[Any]()
    for node in sorted(loss.atoms(Modulus, Relu), key=default_sort_key):
        (argument,) = node.args
        if any(_ratio(argument, other) is not None for other in found):
            continue
        if any(x in node.free_symbols and _jumps(slope(loss), argument, x) for x, slope in slopes.items()):
            found.append(argument)
    return tuple(found)


def with_moduli(expression: Any, arguments: Sequence[Any], modulus: Callable[[int, Any], Any]) -> Any:
    """The expression with ``modulus(j, c)`` for the modulus of the j-th of its kinks' arguments.

    Parameters
    ----------
    expression : Expr
    arguments : sequence of Expr
        What `kinks` finds.
    modulus : callable
        ``c`` is the argument with its own kinks replaced.
    """
    if not expression.args:
        return expression
    if isinstance(expression, (Modulus, Relu)):
        (own,) = expression.args
        for j, argument in enumerate(arguments):
            ratio = _ratio(own, argument)
            if ratio is not None:
                inner = with_moduli(argument, arguments, modulus)
                size = abs(ratio) * modulus(j, inner)
                return size if isinstance(expression, Modulus) else (ratio * inner + size) / 2
    return expression.func(*(with_moduli(one, arguments, modulus) for one in expression.args))


def slope_in_modulus(loss: Any, arguments: Sequence[Any], kink: int, value: Any) -> Any:
    """Derivative of the loss in the modulus of one of its kinks' arguments, where this modulus has a value."""
    own = Dummy("modulus", real=True)
    return with_moduli(loss, arguments, lambda j, c: own if j == kink else Modulus(c)).diff(own).subs(own, value)


def steep_kink(loss: Any, student: Iterable[Any]) -> Any:
    """The argument of a kink at which the slope is infinite, as that of ``sqrt(abs(h))``; None if there is none."""
    found = kinks(loss, student)
    slopes = (slope_in_modulus(loss, found, j, Integer(0)) for j in range(len(found)))
    return next((c for c, slope in zip(found, slopes, strict=True) if slope.has(S.ComplexInfinity, S.Infinity)), None)


def _ratio(argument: Any, other: Any) -> Any:
    """By which number an argument is another one's multiple; None if it is not."""
    ratio = cancel(argument / other)
    return ratio if ratio.is_number and ratio.is_real else None


def _jumps(slope: Any, argument: Any, x: Any) -> bool:
    """Whether the slope in ``x`` jumps where ``argument`` vanishes, on any branch of the kinks inside the argument."""
    ratios = {node.args[0]: _ratio(node.args[0], argument) for node in slope.atoms(*KINKED)}
    along = {other: ratio for other, ratio in ratios.items() if ratio is not None}  # vanish with it
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
