"""The schema of results: one table of variables for each kind of dataset, with names, dimensions and attributes.

Everything else follows from the tables: the datasets that `attnphase.solve` and `attnphase.sweep` return, the
validator, and ``docs/schema.md``.
"""

from __future__ import annotations

from dataclasses import replace

from attnphase.data.identity_variables import VERDICT_VARIABLE, VIOLATION_VARIABLES
from attnphase.data.variable import RunStatus, Variable
from attnphase.fixed_points.optimum import OptimumStatus
from attnphase.fixed_points.threshold import Outcome
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import BRANCHES, Branch

__all__ = [
    "BOUNDARY_VARIABLES",
    "CURVE_VARIABLES",
    "EXPERIMENT_VARIABLES",
    "HISTOGRAM_ENTRIES",
    "HISTOGRAM_STAGES",
    "HISTOGRAM_VARIABLES",
    "IDENTITY_MEANINGS",
    "NOT_COMPUTED",
    "OUTCOME_MEANINGS",
    "POINT_VARIABLES",
    "SENSITIVITY_VARIABLES",
    "SOLUTION_VARIABLES",
    "STATUS_MEANINGS",
    "THRESHOLD_VARIABLES",
    "TRAJECTORY_VARIABLES",
    "TRANSITION_VARIABLES",
    "TUNED_VARIABLES",
    "RunStatus",
    "Variable",
    "with_own",
]

NOT_COMPUTED = max(Status) + 1
"""Value of ``status`` where a grid has no result; the others are those of `attnphase.solvers.iteration.Status`."""

STATUS_MEANINGS = (*(status.name for status in Status), "not_computed")
"""Names of the values 0, 1, … of ``status``."""

IDENTITY_MEANINGS = ("on_branch", "merged_with_uninformed", "not_decided")
"""Names of the values 0, 1, 2 of ``on_branch``, those of `attnphase.state_evolution.branches.Identity`."""


HISTOGRAM_STAGES = ("frozen", "unfrozen")
"""Stages of training of the histogram task."""

HISTOGRAM_ENTRIES = ("all", "off_diagonal")
"""Which entries of the attention matrices of the histogram task are scored."""


_SQUARE = ("token", "row", "col")
_COLUMN = ("token", "row")
_CROSS = ("token", "row", "teacher")

POINT_VARIABLES = (
    Variable("q", _SQUARE, "overlap of the student's weights with themselves", r"q_\ell", True),
    Variable("V", _SQUARE, "rescaled variance of the student's weights", r"V_\ell", True),
    Variable("m", _COLUMN, "overlap of the student's weights with the positional encodings", r"m_\ell", True),
    Variable("theta", _CROSS, "overlap of the student's weights with the teacher's", r"\theta_\ell", True),
    Variable("q_hat", _SQUARE, "conjugate of q", r"\hat{q}_\ell", True),
    Variable("V_hat", _SQUARE, "conjugate of V", r"\hat{V}_\ell", True),
    Variable("m_hat", _COLUMN, "conjugate of m", r"\hat{m}_\ell", True),
    Variable("theta_hat", _CROSS, "conjugate of theta", r"\hat{\theta}_\ell", True),
    Variable("test_error", (), "test error per token and dimension", r"\epsilon_g", True),
    Variable("training_loss", (), "minimum of the regularised risk, divided by d", r"\epsilon_t", True),
    Variable("weight_norm", (), "squared norm of the student's weights, divided by d", r"\Vert W \Vert^2 / d", True),
    Variable("density", (), "share of the student's weights that are not zero", r"P(w \neq 0)", True),
    Variable("linear_test_error", (), "test error of the best linear predictor", r"\epsilon_g^{\mathrm{lin}}", True),
    Variable(
        "second_minimum_share",
        (),
        "share of samples whose two lowest local minima differ by less than 1e-3 (2 sigma)^2 (logistic, hinge: 1e-3)",
        r"P(\Psi_2 - \Psi_1 < 10^{-3} E)",
        True,
    ),
    Variable("replicon", (), "spectral radius of the linearised GAMP iteration", r"\Lambda", True, optional=True),
    Variable(
        "overlap_gap",
        (),
        "share of q that two solutions on the same samples do not have in common: above 0.2 replica symmetry fails",
        r"\operatorname{tr} D / \operatorname{tr} q",
        True,
        optional=True,
    ),
    Variable(
        "map_eigenvalue",
        ("eigenvalue",),
        "largest eigenvalues of the undamped state-evolution map, real parts",
        r"\operatorname{Re} \mu",
        optional=True,
    ),
    Variable(
        "map_eigenvalue_imag",
        ("eigenvalue",),
        "largest eigenvalues of the undamped state-evolution map, imaginary parts",
        r"\operatorname{Im} \mu",
        optional=True,
    ),
    Variable(
        "free_energy_gap",
        (),
        "difference of the two expressions of the training loss, which agree at a fixed point",
        r"\Delta \epsilon_t",
    ),
    *VIOLATION_VARIABLES,
    Variable("residual", (), "largest relative change under one undamped iteration", r"\Vert F(x) - x \Vert"),
    Variable("iterations", (), "evaluations of the state-evolution map", r"n_{\mathrm{maps}}", dtype="int32"),
    Variable("nodes", (), "integration nodes, all replicates together", r"n_{\mathrm{nodes}}", dtype="int64"),
    Variable(
        "unsolved_nodes", (), "nodes whose local minimisation did not converge", r"n_{\mathrm{unsolved}}", dtype="int64"
    ),
    Variable(
        "zero_weights",
        (),
        "whether all weights of the student are zero, up to a millionth of the teacher's variance",
        r"W = 0",
        dtype="int8",
        meanings=("no", "yes", "not_computed"),
        optional=True,
    ),
    Variable(
        "on_branch",
        (),
        "whether the point is on its branch",
        r"\mathrm{on\ branch}",
        dtype="int8",
        meanings=IDENTITY_MEANINGS,
        optional=True,
    ),
    VERDICT_VARIABLE,
    Variable("status", (), "how the iteration ended", r"\mathrm{status}", dtype="int8", meanings=STATUS_MEANINGS),
)
"""What a solved point consists of."""

# a curve that is followed shows where its branch ends, and a solution is called after what it has
_UNNAMED = tuple(variable for variable in POINT_VARIABLES[:-1] if variable.name != "on_branch")

_EIGENVALUE = Variable(
    "leading_eigenvalue", (), "largest real part of an eigenvalue of the state-evolution map's Jacobian", r"\Lambda_1"
)
_UNSTABLE = Variable(
    "unstable_directions", (), "eigenvalues of the state-evolution map's Jacobian with a real part above one",
    r"n_{\mathrm{unstable}}", dtype="int32",
)  # fmt: skip

CURVE_VARIABLES = (
    *_UNNAMED,
    Variable("field_value", (), "value of the followed field; its error is orthogonal to the curve", "p", True),
    replace(_EIGENVALUE, long_name=f"{_EIGENVALUE.long_name} among points with the branch's symmetries"),
    replace(_UNSTABLE, long_name=f"{_UNSTABLE.long_name}, among points with the branch's symmetries"),
    Variable(
        "turn", (), "whether the field turns back here", r"\mathrm{turn}", dtype="int8", meanings=("none", "fold")
    ),
    POINT_VARIABLES[-1],
)
"""What a point of a followed branch consists of."""

SOLUTION_VARIABLES = (
    *_UNNAMED,
    _EIGENVALUE,
    _UNSTABLE,
    Variable(
        "found", (), "searches that ended at this solution or a mirror image", r"n_{\mathrm{found}}", dtype="int32"
    ),
    POINT_VARIABLES[-1],
)
"""What one of several fixed points at one place consists of."""

_OVERLAPS = ("q", "V", "m", "theta", "q_hat", "V_hat", "m_hat", "theta_hat")


def _derivative(one: Variable) -> Variable:
    """The total derivative of a variable."""
    return replace(
        one,
        name=f"d_{one.name}",
        long_name=f"total derivative of the {one.long_name}",
        latex=rf"\mathrm{{d}} {one.latex} / \mathrm{{d}} p",
        optional=True,
    )


SENSITIVITY_VARIABLES = (
    *POINT_VARIABLES[:-1],
    *(
        _derivative(one)
        for one in POINT_VARIABLES
        if one.name in (*_OVERLAPS, "test_error", "training_loss", "weight_norm", "density")
    ),
    POINT_VARIABLES[-1],
)
"""A solved point with its derivatives in alpha or a field, which the global attribute ``field`` names."""

TUNED_VARIABLES = (
    Variable("optimum", (), "value of the field at which the metric is smallest", r"p^\star", True, optional=True),
    Variable("metric", (), "the metric there", r"\epsilon(p^\star)", True, optional=True),
    Variable("solves", (), "points that were traced or solved", "n", dtype="int32"),
    Variable(
        "status", (), "where in the range the optimum lies", r"\mathrm{status}", dtype="int8",
        meanings=tuple(place.name for place in OptimumStatus),
    ),
)  # fmt: skip
"""What `attnphase.tune` returns; NaN where no optimum is known. The attributes ``field`` and ``metric`` name both."""

OUTCOME_MEANINGS = tuple(outcome.name for outcome in Outcome)
"""Names of the values 0, 1, ... of ``alpha_c_status`` and its like."""


def _threshold(name: str, long_name: str, latex: str, *, optional: bool = False) -> tuple[Variable, Variable]:
    """A threshold, and the flag that says whether there is one."""
    status = rf"\mathrm{{status}}({latex})"
    flag = Variable(
        f"{name}_status", (), f"whether {name} was located, or why not", status, dtype="int8",
        meanings=OUTCOME_MEANINGS, optional=optional,
    )  # fmt: skip
    return Variable(name, (), long_name, latex, True, optional=optional), flag


TRANSITION_VARIABLES = (
    *_threshold(
        "spinodal_semantic", "lowest sample complexity of the semantic branch, at a fold",
        r"\alpha_{\mathrm{sp}}^{\mathrm{sem}}",
    ),
    *_threshold(
        "spinodal_positional", "lowest sample complexity of the positional branch, at a fold",
        r"\alpha_{\mathrm{sp}}^{\mathrm{pos}}",
    ),
    *_threshold(
        "onset_theta", "sample complexity above which theta grows from zero at the uninformed point", r"\alpha_\theta"
    ),
    *_threshold("onset_m", "sample complexity above which m grows from zero at the uninformed point", r"\alpha_m"),
)  # fmt: skip
"""What `attnphase.thresholds` adds where it is asked for the transitions."""

THRESHOLD_VARIABLES = (
    *_threshold(
        "alpha_c", "sample complexity where the semantic branch's training loss falls below the positional one's",
        r"\alpha_c",
    ),
    *_threshold(
        "alpha_l", "sample complexity where the semantic branch's test error falls below the linear predictor's",
        r"\alpha_l",
    ),
    *_threshold(
        "zero_semantic", "sample complexity where the semantic branch's training loss falls below that of zero weights",
        r"\alpha_0^{\mathrm{sem}}", optional=True,
    ),
    *_threshold(
        "zero_positional",
        "sample complexity where the positional branch's training loss falls below that of zero weights",
        r"\alpha_0^{\mathrm{pos}}", optional=True,
    ),
)  # fmt: skip
"""What `attnphase.thresholds` returns; NaN where there is no threshold, which its flag then explains."""

BOUNDARY_VARIABLES = (
    *THRESHOLD_VARIABLES[:4:2],
    *(
        Variable(
            f"{side}_{branch}",
            (),
            f"sample complexity {text} the {branch} branch has merged with the uninformed point",
            rf"\alpha_{{\mathrm{{{side}}}}}^{{\mathrm{{{branch[:3]}}}}}",
            True,
        )
        for branch in BRANCHES
        if Branch.named(branch).is_informed
        for side, text in (("begin", "below which"), ("end", "beyond which"))
    ),
)
"""Where boundaries pass in a refined sweep, over its fields: crossings by linear interpolation between points, ends of
branches half-way between the last point that has merged and the first one that has not; NaN where there is none."""

_POINT = {variable.name: variable for variable in POINT_VARIABLES}


def with_own(variables: tuple[Variable, ...], problem: Problem) -> tuple[Variable, ...]:
    """Variables with those of a problem's own beside the test error: its test metrics, and what its loss trains."""
    place = next((i for i, one in enumerate(variables, 1) if one.name == "test_error"), 0)
    if not place:
        return variables
    metrics = tuple(
        Variable(
            f"metric_{name}",
            (),
            f"test metric {name}",
            rf"\mathrm{{{name}}}".replace("_", r"\_"),
            True,
            optional=True,
        )
        for name in problem.metrics
    )
    trained = tuple(  # with an error wherever the training loss has one: a single run's has none
        Variable("trained", ("parameter",), "trained parameters of the loss", "b", one.has_stderr, optional=True)
        for one in variables
        if one.name == "training_loss" and problem.loss.fitted
    )
    found = (*variables[: place - 1], *trained, variables[place - 1], *metrics, *variables[place:])
    derived = next((i for i, one in enumerate(found, 1) if one.name == "d_test_error"), 0)
    return (*found[:derived], *map(_derivative, (*trained, *metrics)), *found[derived:]) if derived else found


def _shared(*names: str) -> tuple[Variable, ...]:
    """Quantities of the theory, as a single run has them: without a standard error."""
    return tuple(replace(_POINT[name], has_stderr=False) for name in names)


EXPERIMENT_VARIABLES = (
    *_shared("q", "V", "m", "theta"),
    Variable("test_error", (), "exact test error per token and dimension", r"\epsilon_g", True),
    Variable("test_error_sampled", (), "test error on fresh samples", r"\epsilon_g^{\mathrm{fresh}}", True),
    Variable("training_loss", (), "regularised risk, divided by d", r"\epsilon_t"),
    *_shared("weight_norm", "density"),
    Variable(
        "linear_test_error",
        (),
        "test error of the linear predictor fitted to the training samples",
        r"\epsilon_g^{\mathrm{lin}}",
    ),
    Variable("gradient_norm", (), "norm of the risk's gradient", r"\Vert \nabla R \Vert / \sqrt{d}"),
    Variable("replicon", (), "spectral radius of the linearised GAMP iteration", r"\Lambda"),
    Variable("steps", (), "steps of the optimiser", r"n_{\mathrm{steps}}", dtype="int64"),
    Variable(
        "status",
        (),
        "how the run ended",
        r"\mathrm{status}",
        dtype="int8",
        meanings=tuple(status.name for status in RunStatus),
    ),
)
"""What a training run consists of; V and the replicon are NaN unless the optimiser is GAMP."""

TRAJECTORY_VARIABLES = (
    *(
        replace(v, name=f"trajectory_{v.name}", dims=("step", *v.dims), long_name=f"{v.long_name}, along the run")
        for v in EXPERIMENT_VARIABLES
        if v.name in ("q", "V", "m", "theta", "training_loss", "gradient_norm")
    ),
    Variable(
        "trajectory_test_error", ("step",), "exact test error per token and dimension, along a run of one-pass SGD",
        r"\epsilon_g", optional=True,
    ),
)  # fmt: skip
"""What a run's trajectory consists of, where one was asked for; NaN behind the end of a run."""

_PER_STAGE, _PER_EPOCH = ("stage",), ("stage", "epoch")

HISTOGRAM_VARIABLES = (
    Variable("accuracy", _PER_STAGE, "share of test tokens that are counted right, at the stage's end", r"a"),
    Variable("test_loss", _PER_STAGE, "cross-entropy per test token, at the stage's end", r"\mathcal{L}"),
    Variable("noisy_accuracy", (), "accuracy after the noise, before everything is trained", r"a_{\mathrm{noisy}}"),
    Variable(
        "distance_sum", _PER_STAGE, "sum over the tensors of the norm of the changes in the stage, noise included",
        r"\sum_k \Vert \Delta \theta_k \Vert",
    ),
    Variable(
        "distance_l2", _PER_STAGE, "norm of the changes in the stage, noise included", r"\Vert \Delta \theta \Vert"
    ),
    Variable(
        "position_share", ("stage", "entries"),
        "share of the variance of attention matrices' entries that pairs of positions explain", r"\eta_{\mathrm{pos}}",
        True,
    ),
    Variable(
        "token_share", ("stage", "entries"),
        "share of the variance of the attention matrices' entries that pairs of symbols explain",
        r"\eta_{\mathrm{sem}}", True,
    ),
    Variable("attention", ("stage", "sequence", "token", "attended"), "attention matrix of a given sequence", r"A"),
    Variable("epoch_training_loss", _PER_EPOCH, "mean cross-entropy per token along an epoch", r"\mathcal{L}_{tr}"),
    Variable("epoch_test_loss", _PER_EPOCH, "cross-entropy per test token after an epoch", r"\mathcal{L}"),
    Variable("epoch_accuracy", _PER_EPOCH, "share of test tokens that are counted right after an epoch", r"a"),
    Variable(
        "seconds", _PER_STAGE, "time of the stage, divided by the number of runs trained at once", r"t", units="s"
    ),
    Variable(
        "status", _PER_STAGE, "how the stage ended", r"\mathrm{status}", dtype="int8",
        meanings=tuple(status.name for status in RunStatus),
    ),
)  # fmt: skip
"""What a run of the histogram task consists of; NaN for a stage that was not made and behind its last epoch."""
