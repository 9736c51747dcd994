"""How runs are trained, and on what device: names and numbers, checked without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from attnphase import arguments
from attnphase.errors import ProblemError
from attnphase.experiments.optimizers.kinds import OPTIMIZERS, OptimizerKind, OptimizerName
from attnphase.theories.bayes_optimal.request import channel_of

if TYPE_CHECKING:
    from attnphase.problem import Problem

__all__ = ["DTYPES", "DtypeName", "TrainingSettings"]

DtypeName = Literal["float64", "float32"]
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)
"""Of the numbers of an experiment."""


@dataclass(frozen=True)
class TrainingSettings:
    """How runs are trained.

    Attributes
    ----------
    optimizer : {"lbfgs", "gd", "adam", "fista", "gamp", "bayes-gamp", "sgd"}
        L-BFGS; full-batch gradient descent (proximal where the regulariser is not a ridge); Adam; accelerated proximal
        gradient; generalised approximate message passing; the same with posterior means in place of minima, which
        trains no student; stochastic gradient descent with fresh samples in every step.
    steps : int
        Largest number of steps: 2000 (lbfgs), 5000 (gd, fista), 2500 (adam), 400 (gamp), 500 (bayes-gamp) by default.
        That of sgd is the number of samples over `batch`.
    tolerance : float or None
        On the gradient ``|nabla R| / sqrt(d)`` over its natural size, by which the curvatures of losses and regulariser
        change it for weights as large as these (`attnphase.experiments.risk.Risk.gradient_size`): 1e-8 by default for
        lbfgs, fista and gamp.  None, the default of gd and adam, makes all the steps, as in the paper.
        Of bayes-gamp on the weights' last step, over the prior's standard deviation: 1e-6.
    learning_rate : float or None
        Of gd (.15 by default), adam (.01), fista (the first step's, over the risk's curvature at the start, .15) and
        sgd (1).
    damping : float
        Share of the old iterate that GAMP keeps, bayes-gamp once the overlaps have settled or after 100 steps,
        and then more of it where its steps do not shrink; 0.5 by default.
    trajectory : int
        Steps between two records of the trajectory; 0 for none.
    batch : int or None
        Samples of a step of sgd, 1 by default.
    channel : str or None
        Of bayes-gamp: what is observed of one token, as in `attnphase.bayes_optimal`.

    Raises
    ------
    ProblemError
        A value is out of range, or does not belong to the optimiser.
    """

    optimizer: OptimizerName = "lbfgs"
    steps: int | None = None
    tolerance: float | None = None
    learning_rate: float | None = None
    damping: float | None = None
    trajectory: int = 0
    batch: int | None = None
    channel: str | None = None

    def __post_init__(self) -> None:
        name = arguments.word("optimizer", self.optimizer, tuple(OPTIMIZERS))
        kind = OPTIMIZERS[name]
        plain: dict[str, Any] = {
            field: getattr(kind, field) for field in ("steps", "tolerance", "learning_rate", "damping", "batch")
        }
        plain["trajectory"] = arguments.whole("trajectory", self.trajectory, 0)
        if self.batch is not None:
            plain["batch"] = arguments.whole("batch", self.batch, 1)
        if kind.one_pass:
            for field in ("steps", "tolerance"):
                if getattr(self, field) is not None:
                    raise ProblemError(
                        field, f"{field} does not go with {name}, which makes alpha d / batch steps: leave it out."
                    )
        if self.steps is not None:
            plain["steps"] = arguments.whole("steps", self.steps, 1)
        for field in ("tolerance", "learning_rate"):
            if getattr(self, field) is not None:
                plain[field] = arguments.number(field, getattr(self, field), lambda x: x > 0, "a positive number")
        if self.damping is not None:
            what = "a number from 0 to below 1"
            plain["damping"] = arguments.number("damping", self.damping, lambda x: 0 <= x < 1, what)
        if self.channel is not None:
            plain["channel"] = arguments.text("channel", self.channel, "sign, absolute, linear or a formula of k")
            if not kind.posterior:
                raise ProblemError("channel", f"channel belongs to bayes-gamp, not to {name}.")
        for field in ("learning_rate", "damping", "batch"):
            if getattr(self, field) is not None and getattr(kind, field) is None:
                owners = [one for one, its_kind in OPTIMIZERS.items() if getattr(its_kind, field) is not None]
                raise ProblemError(field, f"{field} belongs to {', '.join(owners)}, not to {name}.")
        for field, value in plain.items():
            object.__setattr__(self, field, value)

    @property
    def kind(self) -> OptimizerKind:
        """What the optimiser can do."""
        return OPTIMIZERS[self.optimizer]

    def check(self, problem: Problem) -> None:
        """Refuse a problem that the optimiser cannot train.

        Raises
        ------
        ProblemError
        """
        if problem.tokens.own_laws and (self.kind.message_passing or self.kind.posterior):
            field = f"tokens.{problem.tokens.own_laws[0]}"
            raise ProblemError(
                field,
                f"{field} does not go with optimizer {self.optimizer}, which needs Gaussian tokens: use lbfgs.",
            )
        if self.kind.posterior:
            channel_of(problem, self.channel)
            return
        if problem.loss.form.has_kink:
            raise ProblemError(
                "loss.kind",
                f"loss.kind {problem.loss.kind} has a kink, which the experiments' optimisers cannot handle; use a"
                " smooth loss, such as logistic.",
            )
        if self.kind.one_pass or self.kind.message_passing:
            problem.loss.refuse_trained(f"optimizer {self.optimizer}")
        if self.kind.smooth_only and not problem.regularizer.form.quadratic:
            substitutes = {kind.substitute for kind in OPTIMIZERS.values()}
            able = [name for name, kind in OPTIMIZERS.items() if not (kind.smooth_only or kind.posterior)]
            *first, last = sorted(able, key=lambda name: name not in substitutes)  # those are the first choice
            raise ProblemError(
                "optimizer",
                f"optimizer {self.optimizer} needs the ridge regulariser, but regularizer.kind is"
                f" {problem.regularizer.kind}: use {', '.join(first)} or {last}.",
            )

    @property
    def description(self) -> str:
        """The optimiser with its settings, for a dataset's attribute ``rule``."""
        given = {"steps": self.steps, "tolerance": self.tolerance, "learning_rate": self.learning_rate}
        given |= {"damping": self.damping, "batch": self.batch}
        if self.kind.one_pass:
            del given["steps"]
        parts = [f"{name} {value:g}" for name, value in given.items() if value is not None]
        return f"{self.optimizer} ({'; '.join(parts)})"
