"""How large the parts of the weights are where their dynamics starts: along the teacher, along the encodings, noise.

Nothing heavy is imported, so that a wrong start is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias

from attnphase import arguments
from attnphase.errors import ProblemError

__all__ = ["Sizes", "SizesLike"]

_LARGEST = 1e3  # from there on rounding hides what is no part of the teacher, and all scores are saturated


@dataclass(frozen=True)
class Sizes:
    """Weights ``W = semantic Q_star + positional a + noise z``, entries O(1).

    Every column has the teacher's and the principal direction ``a`` of the encodings of its own number, as far as there
    are any; untied Q and K have the same ones, and a value matrix has the teacher's.  The entries of z are independent.

    Attributes
    ----------
    semantic, positional : float
        A direction ``a`` has norm sqrt(d), so that an encoding of norm 1 along it has ``m = positional``.
    noise : float
        Standard deviation.

    Raises
    ------
    ProblemError
        A size is not finite, or the noise is negative.
    """

    semantic: float = 0.0
    positional: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("semantic", "positional"):
            value = arguments.number(
                f"start.{name}",
                getattr(self, name),
                lambda x: abs(x) <= _LARGEST,
                f"a number from {-_LARGEST:g} to {_LARGEST:g}",
            )
            object.__setattr__(self, name, value)
        noise = arguments.number(
            "start.noise", self.noise, lambda x: 0 <= x <= _LARGEST, f"a standard deviation from 0 to {_LARGEST:g}"
        )
        object.__setattr__(self, "noise", noise)

    @classmethod
    def of(cls, value: Any) -> Sizes:
        """From sizes, a mapping of them, or a text as ``semantic=0.3,noise=0.6``; "semantic" alone is ``Q_star``.

        Raises
        ------
        ProblemError
            It is none of these; the message names ``start``.
        """
        if isinstance(value, Sizes):
            return value
        if isinstance(value, Mapping):
            return cls._named(value)
        if isinstance(value, str) and value.strip() == "semantic":
            return cls(semantic=1.0)
        if not isinstance(value, str) or "=" not in value:
            raise ProblemError(
                "start",
                "start must be semantic, or sizes of the parts of the weights as"
                f" semantic=0.3,positional=0.3,noise=0.6, not {arguments.shown(value)}.",
            )
        given: dict[str, Any] = {}
        for part in value.split(","):
            name, _, number = (piece.strip() for piece in part.partition("="))
            if name in given:
                raise ProblemError("start", f"start has {name} twice: give every size once.")
            try:
                given[name] = float(number)
            except ValueError:
                raise ProblemError(
                    "start", f"start must have numbers, as noise=0.6, not {arguments.shown(part)}."
                ) from None
        return cls._named(given)

    @classmethod
    def _named(cls, values: Mapping[Any, Any]) -> Sizes:
        known = tuple(one.name for one in fields(cls))
        for name in values:
            arguments.word("start", name, known)
        if not values:
            raise ProblemError("start", f"start has no sizes: give some of {', '.join(known)}.")
        return cls(**values)

    @property
    def text(self) -> str:
        """What `of` reads; the name of the start in datasets."""
        whole = asdict(self)
        sizes = {name: value for name, value in whole.items() if value} or whole
        return ",".join(f"{name}={value!r}" for name, value in sizes.items())


SizesLike: TypeAlias = Sizes | str | Mapping[str, float]
"""What is read as sizes."""
