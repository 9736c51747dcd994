"""The user's description of a problem, section by section."""

from attnphase.problem.problem import (
    MAX_ATOMS,
    Cluster,
    DataProblem,
    Integration,
    Law,
    Loss,
    Positions,
    Problem,
    Regularizer,
    SpectrumAtom,
    SpectrumLaw,
    Student,
    Teacher,
    Tokens,
    load_problem,
    parse_setting,
)

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
