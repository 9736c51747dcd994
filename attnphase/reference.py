"""Published numbers, to compare with and to draw: see ``source.toml`` beside them for where they come from."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase import arguments

__all__ = ["read_reference"]


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


def _folder() -> Traversable:
    """Inside the package where it was installed from a wheel, in the repository where it was not."""
    installed = files("attnphase").joinpath("data", "reference")
    return installed if installed.is_dir() else Path(__file__).parent.parent / "data" / "reference"
