"""Types that public functions take and return, for annotations of one's own, and sections of problems, for `help`.

Examples
--------
>>> import attnphase as ap
>>> def lowest(problem: ap.Problem, branch: ap.interface.Branches) -> float: ...
"""

from __future__ import annotations

from attnphase.arrays import HasArray, Number, Numbers, Wholes
from attnphase.checks.comparison import Comparison
from attnphase.checks.report import Check, Report
from attnphase.checks.trajectories import TrajectoryComparison
from attnphase.experiments.optimizers.kinds import OptimizerName
from attnphase.experiments.settings import DtypeName
from attnphase.explorer.page import ExplorePage
from attnphase.fixed_points.optimum import Lowest
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import MethodName
from attnphase.fixed_points.threshold import Threshold
from attnphase.pages.limits import LimitName
from attnphase.pages.page import Derivation
from attnphase.problem import Integration, Loss, Positions, Regularizer, Student, Teacher, Tokens
from attnphase.state_evolution.branches import Branches, BranchName
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.predictors import BestPredictor, PredictorKind
from attnphase.state_evolution.sizes import Sizes, SizesLike
from attnphase.sweeps.blocks import Plan
from attnphase.theories.bayes_optimal.request import BayesOptimalStart
from attnphase.theories.one_rsb.settings import OneRsbStart

__all__ = [
    "BayesOptimalStart",
    "BestPredictor",
    "BranchName",
    "BranchPoint",
    "Branches",
    "Check",
    "Comparison",
    "Derivation",
    "DtypeName",
    "ExplorePage",
    "HasArray",
    "Integration",
    "LimitName",
    "Loss",
    "Lowest",
    "MethodName",
    "Number",
    "Numbers",
    "OneRsbStart",
    "OptimizerName",
    "Overlaps",
    "Plan",
    "Positions",
    "PredictorKind",
    "Regularizer",
    "Report",
    "Sizes",
    "SizesLike",
    "Student",
    "Teacher",
    "Threshold",
    "Tokens",
    "TrajectoryComparison",
    "Wholes",
]


def __dir__() -> list[str]:
    return __all__
