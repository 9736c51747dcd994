"""What a user writes for numbers, symbols and words."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import click

from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    import numpy as np

__all__ = ["NUMBERS", "WHOLE_NUMBERS", "ManyValues", "Symbols", "Words"]


class _Values(click.ParamType, ABC):
    """Several values in one word."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values; a default may have been read already."""
        return value if isinstance(value, tuple) else self.read(value, param, ctx)

    @abstractmethod
    def read(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """Return the values of a text, or refuse it."""


class _Numbers(_Values):
    """START:STOP:COUNT or START:STOP:COUNT:log, or numbers with commas between them."""

    name = "numbers"

    def read(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """Return the numbers."""
        try:
            if ":" not in text:
                return tuple(float(part) for part in text.split(","))
            start, stop, count, *rest = text.split(":")
            limits, size = (float(start), float(stop)), int(count)
        except ValueError:
            self.fail(f"{text!r} is neither START:STOP:COUNT[:log] nor numbers with commas between them.", param, ctx)
        if rest not in ([], ["log"]):
            self.fail(f"{text!r} has something behind START:STOP:COUNT; only :log may stand there.", param, ctx)
        if not all(map(math.isfinite, limits)) or not 1 <= size <= 10**6:
            self.fail(f"{text!r} needs finite START and STOP, and a COUNT from 1 to 1000000.", param, ctx)
        if rest and min(limits) <= 0:
            self.fail(f"{text!r} needs a positive START and STOP to be spaced evenly in the logarithm.", param, ctx)
        return tuple((np.geomspace if rest else np.linspace)(*limits, size).tolist())

    def fits(self, value: str) -> bool:
        """Whether it begins like numbers."""
        try:
            float(value.replace(":", ",").split(",")[0])
        except ValueError:
            return False
        return True


NUMBERS = _Numbers()


class _WholeNumbers(_Values):
    """Whole numbers with commas between them."""

    name = "numbers"

    def read(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers."""
        try:
            return tuple(int(part) for part in text.split(","))
        except ValueError:
            self.fail(f"{text!r} is not a whole number, nor several with commas between them.", param, ctx)


WHOLE_NUMBERS = _WholeNumbers()


class Symbols(_WholeNumbers):
    """Symbols as letters, A for the first, or as whole numbers from 0 with commas between them."""

    name = "symbols"

    def read(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the numbers of the symbols."""
        if text.isascii() and text.isalpha():
            return tuple(ord(letter) - ord("A") for letter in text.upper())
        return super().read(text, param, ctx)


class Words(click.Choice[str]):
    """One of some words, which are read only when they are needed.

    Parameters
    ----------
    read : callable
        Returns the words.
    """

    def __init__(self, read: Callable[[], Iterable[str]]) -> None:
        self._read, self.case_sensitive = read, True

    def __getattr__(self, name: str) -> Any:
        """The choices, when they are first asked for."""
        if name != "choices":
            raise AttributeError(name)
        self.choices = tuple(self._read())
        return self.choices


class ManyValues(click.Command):
    """A command whose option ``--omega`` takes all the numbers that follow it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the option's name before each of its values."""
        spelt: list[str] = []
        open_ = False
        for arg in args:
            if open_ and spelt[-1] != "--omega" and NUMBERS.fits(arg):
                spelt.append("--omega")
            open_ = arg.startswith("--omega") or (open_ and NUMBERS.fits(arg))
            spelt.append(arg)
        return super().parse_args(ctx, spelt)
