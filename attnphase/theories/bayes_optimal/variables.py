"""What a Bayes-optimal fixed point consists of."""

from __future__ import annotations

from attnphase.data.variable import RunStatus, Variable
from attnphase.solvers.iteration import Status

__all__ = ["COORDINATES", "COORDINATES_OF", "OPTIMAL_VARIABLES", "POSTERIOR_VARIABLES", "RANK", "SCHEMAS"]

_SQUARE = ("token", "teacher", "teacher_column")

OPTIMAL_VARIABLES = (
    Variable("q", _SQUARE, "overlap of two draws of the posterior, and of one with the teacher", "q", True),
    Variable("V", _SQUARE, "covariance of the teacher's field given what is known of it", "V", True),
    Variable("q_hat", _SQUARE, "conjugate of the overlap", r"\hat q"),
    Variable("overlap", (), "share of the variance of the teacher's fields that is known", r"q/\rho", True),
    Variable(
        "test_error", (), "test error of the posterior's prediction, against labels without noise", r"\epsilon_g", True
    ),
    Variable(
        "linear_test_error", (), "test error of the best linear predictor", r"\epsilon_{\mathrm{lin}}", True,
        optional=True,
    ),
    Variable(
        "free_entropy", (),
        "mean logarithm of the evidence per dimension; without noise up to a constant of the labels; NaN if infinite",
        r"\Phi", True, optional=True,
    ),
    Variable(
        "mutual_information", (),
        "information of a sample's label on the teacher, in natural units; NaN where it is infinite",
        "I/n", True, optional=True,
    ),
    Variable(
        "nishimori", (),
        "overlap of the posterior's fields with the teacher's over that with themselves, minus 1; "
        "NaN where labels are summed over, so that both are one number",
        r"\delta_{\mathrm{N}}", True, optional=True,
    ),
    Variable(
        "growth", (),
        "largest eigenvalue of the map's Jacobian: above 1 the point is unstable; NaN if everything is known, or if"
        " the map has no directions of columns",
        r"\lambda_{\max}", optional=True,
    ),
    Variable(
        "residual",
        (),
        "relative residual of the undamped iteration; 0 if nothing or everything is known",
        "r",
    ),
    Variable("iterations", (), "evaluations of the map", "n", dtype="int32"),
    Variable("nodes", (), "nodes of the finest rule", "N", dtype="int32"),
    Variable(
        "recovered", (), "whether the teacher's weights are known", r"\mathrm{recovered}", dtype="int8",
        meanings=("no", "yes"),
    ),
    Variable(
        "status", (), "how the iteration ended", r"\mathrm{status}", dtype="int8",
        meanings=(*(status.name for status in Status), "not_computed"),
    ),
)  # fmt: skip
"""Over start and alpha."""

POSTERIOR_VARIABLES = (
    Variable("q", _SQUARE, "overlap of the posterior's mean with itself", "q"),
    Variable("theta", _SQUARE, "overlap of the posterior's mean with the teacher", r"\theta"),
    Variable("V", _SQUARE, "covariance of the teacher's field given what is known of it", "V"),
    Variable(
        "overlap", (), "overlap of the posterior's mean with the teacher over that of the teacher with itself",
        r"\theta/\rho",
    ),
    Variable(
        "test_error", (), "exact test error of the posterior's prediction, against labels without noise",
        r"\epsilon_g", True,
    ),
    Variable(
        "linear_test_error", (), "test error of the linear predictor fitted to the training samples",
        r"\epsilon_g^{\mathrm{lin}}", optional=True,
    ),
    Variable("change", (), "root mean square of the weights' last step over that of the prior", r"\delta W"),
    Variable("steps", (), "steps of the iteration", r"n_{\mathrm{steps}}", dtype="int64"),
    Variable(
        "trajectory_overlap", ("step",), "overlap with the teacher over that of the teacher with itself, along the run",
        r"\theta/\rho", optional=True,
    ),
    Variable(
        "status", (), "how the run ended", r"\mathrm{status}", dtype="int8",
        meanings=tuple(status.name for status in RunStatus),
    ),
)  # fmt: skip
"""Of runs of Bayes-optimal message passing, over start, dimension, alpha and seed."""

SCHEMAS = {
    "bayes_optimal": OPTIMAL_VARIABLES,
    "posterior": POSTERIOR_VARIABLES,
}
COORDINATES_OF = {
    "bayes_optimal": ("start", "alpha"),
    "posterior": ("start", "dimension", "alpha", "seed"),
}
COORDINATES: dict[str, tuple[str, str]] = {}
RANK: dict[str, int] = {}
