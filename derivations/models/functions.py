"""Functions with kinks or overflow that generated code knows by name, with their almost-everywhere derivatives.

SymPy's own ``Abs``, ``Max`` and ``sign`` differentiate to Dirac deltas, and ``log(1 + exp(x))`` overflows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sympy import (
    Abs,
    Add,
    E,
    Function,
    Heaviside,
    Integer,
    Max,
    Min,
    Mul,
    NumberSymbol,
    Piecewise,
    Rational,
    S,
    cos,
    cosh,
    default_sort_key,
    exp,
    log,
    pi,
    sign,
    sin,
    sinh,
    tanh,
)
from sympy.core.function import AppliedUndef

__all__ = [
    "KINKED",
    "NUMPY_FUNCTIONS",
    "Modulus",
    "Relu",
    "Sigmoid",
    "Sign",
    "Softmax",
    "Softplus",
    "Step",
    "with_known_functions",
]


def _raised(text: str, power: Any) -> str:
    """A function's LaTeX with the power that SymPy's printer hands over, if any."""
    if power is None:
        return text
    closed = text.endswith((r"\right|", r"\right]_+"))
    return rf"{text}^{{{power}}}" if closed else rf"\left({text}\right)^{{{power}}}"


class Step(Function):
    """1 for positive arguments, else 0; its derivative is 0."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value at a number."""
        (x,) = args
        if not (x.is_number and x.is_real) or x.is_positive is None:
            return None
        return S.One if x.is_positive else S.Zero

    def fdiff(self, argindex: int = 1) -> Any:
        """Almost everywhere."""
        return S.Zero

    def _latex(self, printer: Any, exp: Any = None) -> str:
        return _raised(rf"\Theta\left({printer._print(self.args[0])}\right)", exp)


class Sign(Function):
    """1, 0 or -1; its derivative is 0."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value at a number."""
        (x,) = args
        return sign(x) if x.is_number and x.is_real else None

    def fdiff(self, argindex: int = 1) -> Any:
        """Almost everywhere."""
        return S.Zero

    def _latex(self, printer: Any, exp: Any = None) -> str:
        return _raised(rf"\operatorname{{sign}}\left({printer._print(self.args[0])}\right)", exp)


class Modulus(Function):
    """Absolute value."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value at a number."""
        (x,) = args
        return Abs(x) if x.is_number and x.is_real else None

    def fdiff(self, argindex: int = 1) -> Any:
        """Almost everywhere."""
        return Sign(self.args[0])

    def _latex(self, printer: Any, exp: Any = None) -> str:
        return _raised(rf"\left|{printer._print(self.args[0])}\right|", exp)


class Relu(Function):
    """``max(0, x)``."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value at a number."""
        (x,) = args
        return Max(0, x) if x.is_number and x.is_real else None

    def fdiff(self, argindex: int = 1) -> Any:
        """Almost everywhere."""
        return Step(self.args[0])

    def _latex(self, printer: Any, exp: Any = None) -> str:
        return _raised(rf"\left[{printer._print(self.args[0])}\right]_+", exp)


class Sigmoid(Function):
    """``1 / (1 + exp(-x))``."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The value at zero."""
        return S.Half if args[0] == 0 else None

    def fdiff(self, argindex: int = 1) -> Any:
        """A polynomial in the function itself."""
        value: Any = self
        return value * (1 - value)

    def _eval_evalf(self, prec: int) -> Any:
        x: Any = self.args[0]
        return (1 / (1 + exp(-x)))._eval_evalf(prec)

    def _latex(self, printer: Any, exp: Any = None) -> str:
        x: Any = self.args[0]
        return _raised(rf"\frac{{1}}{{1 + \exp\left({printer._print(-x)}\right)}}", exp)


class Softplus(Function):
    """``log(1 + exp(x))``."""

    def fdiff(self, argindex: int = 1) -> Any:
        """The sigmoid."""
        return Sigmoid(self.args[0])

    def _eval_evalf(self, prec: int) -> Any:
        return log(1 + exp(self.args[0]))._eval_evalf(prec)

    def _latex(self, printer: Any, exp: Any = None) -> str:
        return _raised(rf"\log\left(1 + \exp\left({printer._print(self.args[0])}\right)\right)", exp)


class Softmax(Function):
    """``1 / (1 + exp(x_1) + ...)``: the softmax of a logit, of the others' differences ``x`` to it."""

    @classmethod
    def eval(cls, *args: Any) -> Any:
        """The sigmoid of two logits; of more, the same in any order of the others."""
        if len(args) == 1:
            return Sigmoid(-args[0])
        ordered = sorted(args, key=default_sort_key)
        if [*args] != ordered:
            return cls(*ordered)
        return Rational(1, 1 + len(args)) if all(x == 0 for x in args) else None

    def fdiff(self, argindex: int = 1) -> Any:
        """A product with the softmax of the other logit."""
        args: Any = self.args
        own = args[argindex - 1]
        others = (x - own for place, x in enumerate(args, 1) if place != argindex)
        return -self * Softmax(-own, *others)

    @property
    def stable(self) -> Any:
        """The same by functions that no size of the logits makes overflow."""
        return Sigmoid(-_log_sum(self.args))

    def _eval_evalf(self, prec: int) -> Any:
        return (1 / Add(1, *map(exp, self.args)))._eval_evalf(prec)

    def _latex(self, printer: Any, exp: Any = None) -> str:
        terms = " + ".join(rf"\exp\left({printer._print(x)}\right)" for x in self.args)
        return _raised(rf"\frac{{1}}{{1 + {terms}}}", exp)


def _log_sum(logits: Sequence[Any]) -> Any:
    """``log(exp(x_1) + ...)``, by halves."""
    if len(logits) == 1:
        return logits[0]
    middle = len(logits) // 2
    one, other = _log_sum(logits[:middle]), _log_sum(logits[middle:])
    return one + Softplus(other - one)


def _exponents(value: Any) -> list[Any]:
    """The x of a sum of ``a exp(x)``, with the logarithm of each number a > 0 added; empty if it is no such sum."""
    found = []
    for term in value.args if isinstance(value, Add) else ():
        number, rest = term.as_coeff_Mul()
        if not number.is_positive or not (rest == 1 or isinstance(rest, exp)):
            return []
        found.append(log(number) + (0 if rest == 1 else rest.args[0]))
    return found


def _logarithm(value: Any) -> Any:
    """``log(value)``, finite where a sigmoid, a softmax or a sum of exponentials in it is no number."""
    terms, rest = list[Any](), list[Any]()
    for factor in Mul.make_args(value):
        base, power = factor.as_base_exp()
        exponents = _exponents(base)
        if exponents and power.is_number:
            terms.append(power * _log_sum(exponents))
        elif isinstance(base, (Sigmoid, Softmax)) and power.is_number:
            logits: Any = base.args
            terms.append(-power * Softplus(_log_sum(logits) if isinstance(base, Softmax) else -logits[0]))
        else:
            rest.append(factor)
    return Add(*terms, log(Mul(*rest)))


KINKED = (Step, Sign, Modulus, Relu)
"""Functions whose value or slope jumps where their argument vanishes."""


NUMPY_FUNCTIONS: dict[str, Any] = {
    "Modulus": np.abs,
    "Relu": lambda x: np.maximum(x, 0.0),
    "Step": lambda x: np.where(x > 0, 1.0, 0.0),
    "Sign": np.sign,
    "Sigmoid": lambda x: (1 + np.tanh(x / 2)) / 2,
    "Softmax": lambda *x: np.exp(-np.logaddexp.reduce(np.broadcast_arrays(0.0, *x))),
    "Softplus": lambda x: np.logaddexp(0, x),
}
"""What `sympy.lambdify` needs to know beside NumPy's own functions."""

_PRINTED = (*KINKED, Sigmoid, Softmax, Softplus, cos, cosh, exp, log, sin, sinh, tanh)
_REPLACED = (Abs, sign, Heaviside, Max, Min)


def with_known_functions(expression: Any) -> Any:
    """The expression with SymPy's functions that have kinks replaced by those of this module.

    Raises
    ------
    TypeError
        It holds a function or a constant that generated code does not know, such as a Piecewise.
    """
    if expression.has(Piecewise):
        raise TypeError("Piecewise has no derivative that generated code could use: write it with relu, abs or sign")
    for node in expression.atoms(Function, NumberSymbol):
        if not isinstance(node, (*_PRINTED, *_REPLACED, AppliedUndef)) and node not in (E, pi):
            name = type(node).__name__
            raise TypeError(f"generated code does not know {name}: write it with exp, log, tanh, sin, cos and powers")
    return _with_own_functions(expression)


def _with_own_functions(expression: Any) -> Any:
    if not expression.args:
        return expression
    args = [_with_own_functions(a) for a in expression.args]
    if isinstance(expression, Abs):
        return Modulus(args[0])
    if isinstance(expression, sign):
        return Sign(args[0])
    if isinstance(expression, Heaviside):
        return Step(args[0])
    if isinstance(expression, log):
        return _logarithm(args[0])
    if isinstance(expression, (Max, Min)):
        side = Integer(1 if isinstance(expression, Max) else -1)
        result = args[0]
        for other in args[1:]:
            result = other + side * Relu(side * (result - other))
        return result
    return expression.func(*args)
