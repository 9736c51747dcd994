"""`[integration]`: how Gaussian expectations are computed."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase.errors import ProblemError
from attnphase.integration.kinds import RULES
from attnphase.integration.refinement import Refinement
from attnphase.problem.kinds import alternatives, one_of
from attnphase.problem.messages import toml_table
from attnphase.problem.values import (
    CONFIG,
    PLAIN,
)

__all__ = ["Integration"]

_LEFT = {"split": "lines", "nets": "sobol"}


def _known(rule: str) -> str:
    """Refuse a name that a rule had before."""
    if rule in _LEFT:
        other = ' or "lines"' if _LEFT[rule] != "lines" else ""
        raise ProblemError("integration.rule", f'integration.rule = "{rule}" is no more: write "{_LEFT[rule]}"{other}.')
    return rule


@toml_table("integration", displaces={"rule": ("nodes",)})
@dataclass(frozen=True, config=CONFIG)
class Integration:
    """How expectations over Gaussian fields are computed.

    Parameters
    ----------
    rule
        ``"auto"``, ``"lines"`` (locates jumps), ``"gauss-hermite"``, ``"sobol"`` (scrambled points), or
        ``"published"``, the 144 nodes behind the paper's figures.
    standard_error
        Requested relative standard error of q, between 0 and 1.
    seed
        Seed of the scrambled points, 0 or more.
    nodes
        Fixes the number of nodes: for ``"gauss-hermite"`` the nodes in each dimension, from
        1 to 256; for ``"lines"`` those of each of the teacher's fields; for ``"sobol"``
        the points in each replicate, a power of two up to 2**24.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, or ``nodes`` does not go with ``rule``.
    """

    rule: Annotated[
        str,
        Strict(),
        AfterValidator(_known),
        one_of(RULES),
        Field(description=alternatives(RULES)),
    ] = "auto"
    standard_error: Annotated[
        float,
        Strict(),
        Field(gt=0, lt=1, allow_inf_nan=False, description="a number between 0 and 1"),
        PLAIN,
    ] = 1e-3
    seed: Annotated[
        int,
        Strict(),
        Field(ge=0, lt=2**63, description="a whole number from 0 to 2**63 - 1"),
        PLAIN,
    ] = 0
    nodes: Annotated[
        Annotated[int, Strict(), Field(ge=1, le=2**24)] | None,
        Field(description="a whole number from 1 to 2**24"),
        PLAIN,
    ] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nodes is not None:
            self.form.check_nodes(self.nodes)
        return self

    def rules(
        self,
        dimensions: tuple[int, int],
        symmetric: bool,
        max_nodes: int,
        noise_dimensions: int = 0,
        seen_noise: int = 0,
    ) -> Refinement:
        """The sequence of rules of a solve; see `Refinement`."""
        return self.form(self, dimensions, symmetric, max_nodes, noise_dimensions, seen_noise)

    @property
    def form(self) -> type[Refinement]:
        """What its rule is."""
        return RULES[self.rule]
