"""The user's description of a problem, section by section."""

from attnphase.problem.attention import Student, Teacher
from attnphase.problem.integration import Integration
from attnphase.problem.laws import Cluster, Law
from attnphase.problem.loading import load_problem
from attnphase.problem.loss import Loss
from attnphase.problem.positions import Positions
from attnphase.problem.problem import DataProblem, Problem
from attnphase.problem.regularizer import Regularizer
from attnphase.problem.spectrum import SpectrumAtom, SpectrumLaw
from attnphase.problem.tokens import Tokens
from attnphase.problem.toml import parse_setting
from attnphase.problem.values import MAX_ATOMS

__all__ = [
    "MAX_ATOMS",
    "Cluster",
    "DataProblem",
    "Integration",
    "Law",
    "Loss",
    "Positions",
    "Problem",
    "Regularizer",
    "SpectrumAtom",
    "SpectrumLaw",
    "Student",
    "Teacher",
    "Tokens",
    "load_problem",
    "parse_setting",
]
