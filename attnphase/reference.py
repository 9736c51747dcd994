"""Published numbers, to compare with and to draw: see ``source.toml`` beside them for where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase import arguments
from attnphase.problem.problem import Problem

__all__ = ["SECOND_MIXING", "published_runs", "read_reference"]

SECOND_MIXING = [[0.3, 0.7], [0.8, 0.2]]
"""The teacher's positional part in the paper's second example, (144)."""


def read_reference(name: str) -> NDArray[Any]:
    """Read a table of published numbers.

    Parameters
    ----------
    name : str
        ``fig2_gradient_descent``, ``gradient_descent_other``, ``fig2_theory``, ``fig7_scaling`` or ``converged``.

    Returns
    -------
    structured array
        One field for each column, named as in the file.

    Raises
    ------
    ProblemError
        There is no such table.
    """
    known = sorted(file.name.removesuffix(".csv") for file in _folder().iterdir() if file.name.endswith(".csv"))
    arguments.word("name", name, known)
    with _folder().joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return np.genfromtxt(file, delimiter=",", names=True, dtype=None, encoding="utf-8")


def published_runs(problem: Mapping[str, Any]) -> NDArray[Any] | None:
    """The published gradient-descent runs of a problem, however that is integrated.

    Parameters
    ----------
    problem : mapping
        Its sections, as of the TOML.

    Returns
    -------
    structured array or None
        Rows of ``fig2_gradient_descent`` or ``gradient_descent_other``; None if none were published.

    Raises
    ------
    ProblemError
        `problem` is no mapping.
    """
    own = {**arguments.mapping("problem", problem, "a mapping from sections to fields"), "integration": None}
    papers = Problem().with_fields({"teacher.omega": 0.3})
    if own == {**papers.to_dict(), "integration": None}:
        return read_reference("fig2_gradient_descent")
    others = read_reference("gradient_descent_other")
    for setting in np.unique(others[["mixing", "sigma", "omega", "ridge"]]):
        mixing, sigma, omega, ridge = setting.tolist()
        changes = {"tokens.sigma": sigma, "teacher.omega": omega, "regularizer.strength": ridge}
        if mixing == "second":
            changes["teacher.mixing"] = SECOND_MIXING
        if own == {**papers.with_fields(changes).to_dict(), "integration": None}:
            return others[others[["mixing", "sigma", "omega", "ridge"]] == setting]
    return None


def _folder() -> Traversable:
    """Inside the package where it was installed from a wheel, in the repository where it was not."""
    installed = files("attnphase").joinpath("data", "reference")
    return installed if installed.is_dir() else Path(__file__).parent.parent / "data" / "reference"
