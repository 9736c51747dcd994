"""What a solution of the 1RSB equations consists of."""

from __future__ import annotations

from attnphase.data.variable import Variable
from attnphase.data.variables import POINT_VARIABLES

__all__ = ["COORDINATES", "COORDINATES_OF", "ONE_RSB_VARIABLES", "RANK", "SCHEMAS"]

_POINT = {variable.name: variable for variable in POINT_VARIABLES}
_SQUARE = ("token", "row", "col")
_SHARED = ("V", "m", "theta", "test_error", "residual", "iterations", "nodes", "unsolved_nodes", "status")

ONE_RSB_VARIABLES = (
    Variable("y", (), "Parisi parameter; its error, where it was found, is that of the maximum of F", "y", True),
    Variable("q_0", _SQUARE, "overlap of two solutions of different groups", r"q_{0,\ell}", True),
    Variable("q_1", _SQUARE, "overlap of a solution with itself, and of two of one group", r"q_{1,\ell}", True),
    Variable("free_entropy", (), "F(y), whose maximum over y is the training loss of the best solutions", "F", True),
    Variable("energy", (), "training loss of the metastable solutions that y selects", r"\partial_y (y F)", True),
    Variable("complexity", (), "logarithm of their number, divided by d", r"y^2 \partial_y F", True),
    *(_POINT[name] for name in _SHARED),
)
"""What a solution of the 1RSB equations consists of."""

SCHEMAS = {"one_rsb": ONE_RSB_VARIABLES}
COORDINATES_OF = {"one_rsb": ("branch", "alpha", "state")}
COORDINATES = {"state": ("number of the solution", "n")}
RANK = {"state": 3}
