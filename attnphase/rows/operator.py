"""A regulariser that a user gave by its proximal operator, a function of a module of his own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from attnphase.errors import ProblemError
from attnphase.lazy import loaded_on_use
from attnphase.rows.kind import Given, RegularizerKind
from attnphase.rows.regularizer import RowRegularizer

with loaded_on_use(__name__):
    from derivations.models import foreign

__all__ = ["Operator", "load_prox", "returned_by"]

_SPACED = np.linspace(-6.3, 6.1, 125)  # weights, on which the slopes of a proximal operator are looked at
_WIDE = np.concatenate([_SPACED, np.logspace(-6, 4, 201)])  # on which it must be odd, and by which it is known
_ROUNDING = 1e-9  # of what it returns, as a share of the weight
_PROX = "regularizer.prox"
_PANELS, _ORDER = 96, 6  # there may be kinks that nobody knows


class Operator(RegularizerKind):
    """``"prox"``: the proximal operator of an even convex function, and a ridge."""

    name = "prox"
    keys = ("prox", "ridge")
    needs = ("prox",)
    own = "prox"
    introduced = "has the proximal operator"
    penalty = r"\rho(w)"

    def rows(self, given: Given, columns: int) -> RowRegularizer:
        """See `RegularizerKind`."""
        return load_prox(str(given.prox), float(given.ridge))


def load_prox(name: str, ridge: float) -> RowRegularizer:
    """The regulariser of a proximal operator ``prox(v, step)``, imported as "module:function".

    Its value is recovered from the operator's own envelope, since ``(v - prox(v, 1))`` is a subgradient at
    ``prox(v, 1)``.

    Raises
    ------
    ProblemError
        Naming ``regularizer.prox``.
    """
    return _checked(name, _imported(name), ridge)


@lru_cache(maxsize=16)  # by the function itself, which is another one when its module was loaded again
def _checked(name: str, found: Callable[..., Any], ridge: float) -> RowRegularizer:
    prox = _guarded(name, found)
    v, step = _SPACED, 0.7
    try:
        moved = np.asarray(prox(v, step), dtype=float)
        shaped = np.asarray(prox(v.reshape(5, 25), np.full((5, 25), step)), dtype=float)
    except ProblemError:
        raise
    except (TypeError, ValueError):
        raise ProblemError(_PROX, f'{_PROX} "{name}" fails on an array: it must return an array of numbers.') from None
    if moved.shape != v.shape or shaped.shape != (5, 25):
        raise ProblemError(_PROX, f'{_PROX} "{name}" must return an array of the shape of its first argument.')
    slopes = np.diff(moved) / np.diff(v)
    if not np.isfinite(moved).all() or slopes.min() < -1e-9 or slopes.max() > 1 + 1e-9:
        raise ProblemError(
            _PROX,
            f'{_PROX} "{name}" is not the proximal operator of a convex function: its slope in v must lie between 0 '
            f"and 1, but reaches {slopes.max() if slopes.max() > 1 + 1e-9 else slopes.min():.3g}.",
        )
    if (np.abs(prox(-_WIDE, step) + prox(_WIDE, step)) > _ROUNDING * np.abs(_WIDE)).any():
        raise ProblemError(_PROX, f'{_PROX} "{name}" must be odd in v, as for a penalty that does not see signs.')
    return RowRegularizer("prox", ridge, _value_of(prox), prox, panels=_PANELS, order=_ORDER)


def returned_by(name: str) -> str:
    """Hash of what a proximal operator returns, to ten digits: a changed one gives another."""
    returned = (_guarded(name, _imported(name))(_WIDE, np.full(_WIDE.shape, step)) for step in (0.3, 1.7))
    return hashlib.sha256(",".join(f"{one:.9e}" for values in returned for one in values).encode()).hexdigest()


def _imported(name: str) -> Callable[..., Any]:
    try:
        found = foreign.imported(name)
    except foreign.ForeignError as error:
        raise ProblemError(_PROX, f'{_PROX} "{name}" cannot be imported: {error}; write "module:function".') from None
    if not callable(found):
        module, _, attribute = name.partition(":")
        raise ProblemError(_PROX, f'{_PROX} "{name}": module {module} has no function "{attribute}".')
    return found


def _guarded(name: str, prox: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the user's own whose failures are sentences."""

    def guarded(v: Any, step: Any) -> Any:
        try:
            with foreign.contained():
                return prox(v, step)
        except foreign.ForeignError as error:
            raise ProblemError(_PROX, f'{_PROX} "{name}" fails on an array: {error}.') from error

    return guarded


def _value_of(prox: Callable[..., Any]) -> Callable[[Any], Any]:
    """``r(w) = int_0^w r'``, the slope at ``prox(v, 1)`` being ``v - prox(v, 1)``, up to its value at zero."""

    def value(w: Any) -> Any:
        size = np.abs(np.asarray(w, dtype=float))
        largest = float(size.max(initial=0.0))
        if largest == 0.0:
            return np.zeros_like(size)
        # v grows until the operator passes the largest weight
        reach = 2 * largest
        while float(np.asarray(prox(np.array([reach]), 1.0))[0]) < largest and reach < 1e12:
            reach *= 2
        v = np.concatenate([np.linspace(0, reach, 20001)])
        at = np.asarray(prox(v, 1.0), dtype=float)
        slope = v - at
        integral = np.concatenate([[0.0], np.cumsum(np.diff(at) * (slope[1:] + slope[:-1]) / 2)])
        return np.interp(size, at, integral)

    return value
