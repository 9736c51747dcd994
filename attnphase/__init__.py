"""Phase diagrams of solvable attention models, derived with SymPy and solved numerically.

The names below are loaded when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib

from attnphase import display

TYPE_CHECKING = False  # that of typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from attnphase.checks.comparison import compare
    from attnphase.checks.consistency import check
    from attnphase.data.files import load_dataset, save_dataset
    from attnphase.data.validate import validate_dataset
    from attnphase.errors import (
        AttnphaseError,
        CacheError,
        CompareError,
        DatasetError,
        ExperimentError,
        MissingExtraError,
        NotFoundError,
        ProblemError,
        SolverError,
        SpectrumError,
        SweepError,
    )
    from attnphase.experiments.simulate import simulate
    from attnphase.explorer.page import explore
    from attnphase.fixed_points.settings import SolverSettings
    from attnphase.pages.page import derive
    from attnphase.problem import Problem, load_problem
    from attnphase.problem.own_functions import register_score
    from attnphase.spectrum.measure import Spectrum
    from attnphase.sweeps.blocks import merge_blocks, plan_sweep, run_block
    from attnphase.sweeps.critical import thresholds
    from attnphase.sweeps.curves import follow, solutions
    from attnphase.sweeps.grid import sweep
    from attnphase.sweeps.points import solve
    from attnphase.sweeps.tuning import sensitivity, tune
    from attnphase.theories.bayes_optimal.run import optimal
    from attnphase.theories.one_rsb.run import one_rsb
    from attnphase.theories.sgd_flow.run import basins, flow, stationary

    __version__: str

__all__ = [
    "AttnphaseError",
    "CacheError",
    "CompareError",
    "DatasetError",
    "ExperimentError",
    "MissingExtraError",
    "NotFoundError",
    "Problem",
    "ProblemError",
    "SolverError",
    "SolverSettings",
    "Spectrum",
    "SpectrumError",
    "SweepError",
    "__version__",
    "basins",
    "check",
    "compare",
    "derive",
    "explore",
    "flow",
    "follow",
    "load_dataset",
    "load_problem",
    "merge_blocks",
    "one_rsb",
    "optimal",
    "plan_sweep",
    "register_score",
    "run_block",
    "save_dataset",
    "sensitivity",
    "simulate",
    "solutions",
    "solve",
    "stationary",
    "sweep",
    "thresholds",
    "tune",
    "validate_dataset",
]

_HOME = {
    "__version__": "version",
    "AttnphaseError": "errors",
    "CacheError": "errors",
    "CompareError": "errors",
    "DatasetError": "errors",
    "ExperimentError": "errors",
    "MissingExtraError": "errors",
    "NotFoundError": "errors",
    "Problem": "problem.problem",
    "ProblemError": "errors",
    "SolverError": "errors",
    "SolverSettings": "fixed_points.settings",
    "Spectrum": "spectrum.measure",
    "SpectrumError": "errors",
    "SweepError": "errors",
    "basins": "theories.sgd_flow.run",
    "check": "checks.consistency",
    "compare": "checks.comparison",
    "derive": "pages.page",
    "explore": "explorer.page",
    "flow": "theories.sgd_flow.run",
    "follow": "sweeps.curves",
    "load_dataset": "data.files",
    "load_problem": "problem.loading",
    "merge_blocks": "sweeps.blocks",
    "one_rsb": "theories.one_rsb.run",
    "one_step": "theories.one_rsb.run",
    "optimal": "theories.bayes_optimal.run",
    "plan_sweep": "sweeps.blocks",
    "register_score": "problem.own_functions",
    "run_block": "sweeps.blocks",
    "save_dataset": "data.files",
    "sensitivity": "sweeps.tuning",
    "simulate": "experiments.simulate",
    "solutions": "sweeps.curves",
    "solve": "sweeps.points",
    "stationary": "theories.sgd_flow.run",
    "sweep": "sweeps.grid",
    "thresholds": "sweeps.critical",
    "tune": "sweeps.tuning",
    "validate_dataset": "data.validate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnphase' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attnphase.{_HOME[name]}"), name)
    globals()[name] = value
    return value


display.show_by(lambda: importlib.import_module("attnphase.pages.page").model_equations)


def __dir__() -> list[str]:
    return __all__
