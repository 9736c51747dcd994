"""`[integration]`: how Gaussian expectations are computed."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator
from pydantic.dataclasses import dataclass

from attnphase.errors import ProblemError
from attnphase.problem.messages import toml_table
from attnphase.problem.values import (
    CONFIG,
    PLAIN,
)

__all__ = ["Integration"]


@toml_table("integration")
@dataclass(frozen=True, config=CONFIG)
class Integration:
    """How expectations over Gaussian fields are computed.

    Parameters
    ----------
    rule
        ``"auto"``, ``"gauss-hermite"``, ``"sobol"`` (scrambled points, with standard errors), or
        ``"published"``, the 144 nodes behind the paper's figures.
    standard_error
        Relative standard error asked for on q, between 0 and 1.
    seed
        Seed of the scrambled points, 0 or more.
    nodes
        Overrides the rule's own choice: for ``"gauss-hermite"`` the nodes in each dimension, from
        1 to 256; for ``"sobol"`` the points in each replicate, a power of two up to 2**24.

    Raises
    ------
    ProblemError
        A value is of the wrong type or out of range, or ``nodes`` does not go with ``rule``.
    """

    rule: Annotated[
        Literal["auto", "gauss-hermite", "sobol", "published"],
        Field(description='"auto", "gauss-hermite", "sobol" or "published"'),
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
        name = "integration.nodes"
        if self.nodes is None:
            return self
        if self.rule == "published":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "published", whose nodes'
                " are fixed: remove it, or choose another rule.",
            )
        if self.rule == "auto":
            raise ProblemError(
                name,
                'integration.nodes does not go with integration.rule = "auto", which chooses them:'
                ' set integration.rule to "gauss-hermite" or "sobol", or remove it.',
            )
        if self.rule == "gauss-hermite" and self.nodes > 256:
            raise ProblemError(
                name,
                "integration.nodes must be at most 256 nodes per dimension for"
                f' integration.rule = "gauss-hermite", but it is {self.nodes}.',
            )
        if self.rule == "sobol" and self.nodes & (self.nodes - 1):
            raise ProblemError(
                name,
                f'integration.nodes must be a power of two for integration.rule = "sobol", but it is {self.nodes}.',
            )
        return self
