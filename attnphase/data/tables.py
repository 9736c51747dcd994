"""The tables of ``docs/schema.md``, from the schema in the code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attnphase.data.schemas import GLOBAL_ATTRIBUTES, PROBLEM_ATTRIBUTES, SCHEMAS
from attnphase.data.variable import Variable
from attnphase.data.variables import BOUNDARY_VARIABLES, OUTCOME_MEANINGS, TRAJECTORY_VARIABLES, TRANSITION_VARIABLES

__all__ = ["schema_markdown"]


def schema_markdown() -> str:
    """The tables of ``docs/schema.md``: the variables of every kind of dataset and the global attributes."""
    lines: list[str] = []
    for kind, variables in SCHEMAS.items():
        lines += [f"### Variables of `{kind}`", "", *_variable_table(variables), ""]
    title = "### Further variables of `points`, of refined sweeps: over the swept fields, without branch and alpha"
    lines += [title, "", *_variable_table(BOUNDARY_VARIABLES), ""]
    title = "### Further variables of `thresholds`, with transitions"
    lines += [title, "", *_variable_table(TRANSITION_VARIABLES), ""]
    lines += ["### Variables of a trajectory, in `experiments`", "", *_variable_table(TRAJECTORY_VARIABLES), ""]
    for kind in ("points", "experiments", "histogram", "bayes_optimal", "posterior", "sgd_flow", "basins", "tuned"):
        for flag in (variable for variable in SCHEMAS[kind] if variable.meanings):
            meanings = enumerate(f"`{meaning}`" for meaning in flag.meanings)
            lines += [f"### Values of `{flag.name}` of `{kind}`", "", *_table(("value", "meaning"), meanings), ""]
    meanings = enumerate(f"`{meaning}`" for meaning in OUTCOME_MEANINGS)
    lines += ["### Values of `alpha_c_status` and its like", "", *_table(("value", "meaning"), meanings), ""]
    also = {name: f"{text} (not of `histogram`)" for name, text in PROBLEM_ATTRIBUTES.items()}
    described = ((f"`{name}`", text) for name, text in {**GLOBAL_ATTRIBUTES, **also}.items())
    return "\n".join([*lines, "### Global attributes", "", *_table(("attribute", "content"), described)])


def _variable_table(variables: Iterable[Variable]) -> list[str]:
    rows = (
        (
            f"`{v.name}`",
            v.long_name,
            ", ".join(v.dims) or "–",
            # a bar would end the cell
            f"${v.latex}$".replace("|", r"\vert "),
            v.dtype,
            f"`{v.stderr}`" if v.has_stderr else "–",
        )
        for v in variables
    )
    return _table(("name", "meaning", "dimensions", "symbol", "type", "standard error"), rows)


def _table(head: Sequence[str], rows: Iterable[Iterable[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]
