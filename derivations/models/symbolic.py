"""The model of which nothing is said: its loss is the symbol ``ell(h, k)``, its sizes are L, r and t."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from derivations.algebra import symbols as sym

__all__ = ["GENERIC", "SymbolicModel"]


@dataclass(frozen=True)
class SymbolicModel:
    """Any loss of the local fields, with symbolic sizes: for what does not depend on the model."""

    length: Any = sym.L
    columns: Any = sym.r
    teacher_rank: Any = sym.t

    def loss(self, h: Any, k: Any) -> Any:
        """The symbol of the loss, whatever the fields."""
        return sym.loss


GENERIC = SymbolicModel()
