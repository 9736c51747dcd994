"""The schema of the dynamics: trajectories, their stationary points, and the basins of these."""

from __future__ import annotations

from dataclasses import replace

from attnphase.data.variable import Variable
from attnphase.theories.sgd_flow.settings import Basin, FlowStatus

__all__ = [
    "BASIN_VARIABLES",
    "COORDINATES",
    "COORDINATES_OF",
    "FLOW_VARIABLES",
    "RANK",
    "SCHEMAS",
    "STATIONARY_VARIABLES",
]

_OVERLAPS = (
    ("q", ("token", "row", "col"), "overlap of the weights with themselves", r"q_\ell"),
    ("m", ("token", "row"), "overlap of the weights with the positional encodings", r"m_\ell"),
    ("theta", ("token", "row", "teacher"), "overlap of the weights with the teacher's", r"\theta_\ell"),
    ("weight_norm", (), "squared norm of the weights, divided by d", r"\Vert W \Vert^2 / d"),
    ("population_risk", (), "mean loss of a fresh sample, with the weight decay", r"\mathbb{E}\ell + \dots"),
    ("test_error", (), "test error per token and dimension", r"\epsilon_g"),
)  # fmt: skip

_STATUS = Variable(
    "status",
    (),
    "how the trajectory ended",
    r"\mathrm{status}",
    dtype="int8",
    meanings=tuple(status.name for status in FlowStatus),
)

FLOW_VARIABLES = (
    *(Variable(name, ("time", *dims), text, latex, True) for name, dims, text, latex in _OVERLAPS),
    Variable("end", (), "time at which the trajectory came to rest or ran away; else the last", r"\tau_{\mathrm{end}}"),
    Variable(
        "growth",
        (),
        "largest eigenvalue of the rates' Jacobian at the end, positive at a saddle; NaN unless the"
        " trajectory is at rest",
        r"\mu_{\max}",
        optional=True,
    ),
    Variable("nodes", (), "integration nodes, all replicates together", r"n_{\mathrm{nodes}}", dtype="int64"),
    Variable("evaluations", (), "evaluations of the rates", r"n_{\mathrm{rates}}", dtype="int64"),
    _STATUS,
)
"""What a trajectory consists of: behind its end the last numbers, or NaN where the weights have run away."""

STATIONARY_VARIABLES = (
    *(Variable(name, dims, text, latex, True) for name, dims, text, latex in _OVERLAPS),
    Variable("eigenvalue", ("mode",), "eigenvalues of the rates' Jacobian, real parts, largest first",
             r"\operatorname{Re} \mu", True),
    Variable("eigenvalue_imag", ("mode",), "eigenvalues of the rates' Jacobian, imaginary parts",
             r"\operatorname{Im} \mu"),
    Variable("unstable_directions", (), "eigenvalues with a positive real part", r"n_{\mathrm{unstable}}",
             dtype="int32"),
    Variable("residual", (), "largest share of itself by which an overlap moves in the state's own unit of time",
             r"\Vert \dot x \Vert"),
    Variable("nodes", (), "integration nodes, all replicates together", r"n_{\mathrm{nodes}}", dtype="int64"),
    Variable("found", (), "searches that ended at this point or a mirror image", r"n_{\mathrm{found}}", dtype="int32"),
)  # fmt: skip
"""What a stationary point of the dynamics consists of."""

_PER_ANGLE = ("angle",)

BASIN_VARIABLES = (
    Variable("positional_size", _PER_ANGLE, "largest |m| at the end", r"\max |m|"),
    Variable("semantic_size", _PER_ANGLE, "largest |theta| at the end", r"\max |\theta|"),
    Variable("test_error", _PER_ANGLE, "test error per token and dimension, at the end", r"\epsilon_g"),
    Variable("plateau", _PER_ANGLE, "time until the order parameter has half of its size at the end", r"\tau_{1/2}"),
    Variable(
        "basin",
        _PER_ANGLE,
        "where the weights have ended",
        r"\mathrm{basin}",
        dtype="int8",
        meanings=tuple(basin.name for basin in Basin),
    ),
    replace(_STATUS, dims=_PER_ANGLE),
    Variable(
        "boundary",
        (),
        "angle in degrees above which starts find the semantic point, its error of bisection and rule; NaN where there"
        " is none: a start between 0 and 90 degrees ends neither semantic nor positional, or a positional end is above"
        " a semantic one",
        r"\varphi_\star",
        True,
    ),
)
"""What starts of one size in a plane lead to."""

SCHEMAS = {
    "sgd_flow": FLOW_VARIABLES,
    "stationary": STATIONARY_VARIABLES,
    "basins": BASIN_VARIABLES,
}
COORDINATES_OF = {
    "sgd_flow": ("start", "time", "learning_rate", "batch"),
    "stationary": ("solution", "learning_rate", "batch"),
    "basins": ("omega", "scale", "angle", "noise", "learning_rate", "batch"),
}
COORDINATES: dict[str, tuple[str, str]] = {
    "time": ("steps divided by d; of gradient flow, times the learning rate", r"\tau"),
    "learning_rate": ("learning rate; 0 is gradient flow", r"\eta"),
    "batch": ("fresh samples of a step", "s"),
    "scale": ("size of the start's part in the plane of encodings and teacher", "s"),
    "noise": ("standard deviation of the start's entries", r"\sigma_0"),
    "angle": ("direction of the start from the encodings' (0) to the teacher's (90 degrees)", r"\varphi"),
}
RANK = {"scale": 3}
