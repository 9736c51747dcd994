"""Phase diagrams of solvable attention models, derived with SymPy and solved numerically.

The names below are loaded when they are first used, so that importing the package is quick.
"""

from __future__ import annotations

import importlib

from attnphase import display

TYPE_CHECKING = False  # that of typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from attnphase import errors, figures, functions, interface, reference, testing, tracking
    from attnphase.checks.comparison import compare
    from attnphase.checks.consistency import check
    from attnphase.data.files import load_dataset, save_dataset
    from attnphase.data.validate import validate_dataset
    from attnphase.experiments.simulate import simulate
    from attnphase.explorer.page import explore
    from attnphase.fixed_points.settings import SolverSettings
    from attnphase.pages.page import derive
    from attnphase.problem import Problem, load_problem
    from attnphase.problem.own_functions import register_score
    from attnphase.spectrum.measure import Spectrum
    from attnphase.state_evolution.predictors import best_predictor
    from attnphase.sweeps.blocks import merge_blocks, plan_sweep, run_block
    from attnphase.sweeps.critical import thresholds
    from attnphase.sweeps.curves import follow, solutions
    from attnphase.sweeps.grid import sweep
    from attnphase.sweeps.points import solve
    from attnphase.sweeps.tuning import sensitivity, tune
    from attnphase.theories.bayes_optimal.run import bayes_optimal
    from attnphase.theories.one_rsb.run import one_rsb
    from attnphase.theories.sgd_flow.run import basins, sgd_flow, stationary

    __version__: str

__all__ = [
    "Problem",
    "SolverSettings",
    "Spectrum",
    "__version__",
    "basins",
    "bayes_optimal",
    "best_predictor",
    "check",
    "compare",
    "derive",
    "errors",
    "explore",
    "figures",
    "follow",
    "functions",
    "interface",
    "load_dataset",
    "load_problem",
    "merge_blocks",
    "one_rsb",
    "plan_sweep",
    "reference",
    "register_score",
    "run_block",
    "save_dataset",
    "sensitivity",
    "sgd_flow",
    "simulate",
    "solutions",
    "solve",
    "stationary",
    "sweep",
    "thresholds",
    "tracking",
    "tune",
    "validate_dataset",
]

if TYPE_CHECKING:
    __all__ += ["testing"]  # it needs Hypothesis: without it, `import *` would end in an error

_NAMES = {
    "checks.comparison": "compare",
    "checks.consistency": "check",
    "data.files": "load_dataset save_dataset",
    "data.validate": "validate_dataset",
    "experiments.simulate": "simulate",
    "explorer.page": "explore",
    "fixed_points.settings": "SolverSettings",
    "pages.page": "derive",
    "problem.loading": "load_problem",
    "problem.own_functions": "register_score",
    "problem.problem": "Problem",
    "spectrum.measure": "Spectrum",
    "state_evolution.predictors": "best_predictor",
    "sweeps.blocks": "merge_blocks plan_sweep run_block",
    "sweeps.critical": "thresholds",
    "sweeps.curves": "follow solutions",
    "sweeps.grid": "sweep",
    "sweeps.points": "solve",
    "sweeps.tuning": "sensitivity tune",
    "theories.bayes_optimal.run": "bayes_optimal",
    "theories.one_rsb.run": "one_rsb",
    "theories.sgd_flow.run": "basins sgd_flow stationary",
    "version": "__version__",
}
_MODULES = ("errors", "figures", "functions", "interface", "reference", "testing", "tracking")
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # to type checkers a wrong name is an error

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"attnphase.{name}")
        if name not in _HOME:
            raise AttributeError(f"module 'attnphase' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"attnphase.{_HOME[name]}"), name)
        globals()[name] = value
        return value


display.show_by(lambda: importlib.import_module("attnphase.pages.page").model_equations)


def __dir__() -> list[str]:
    from importlib.util import find_spec

    return [*__all__, "testing"] if find_spec("hypothesis") else __all__
