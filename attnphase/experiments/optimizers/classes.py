"""The optimisers' classes by name; `kinds` has what can be said of them without torch."""

from __future__ import annotations

from attnphase.experiments.optimizers.adam import Adam
from attnphase.experiments.optimizers.fista import Fista
from attnphase.experiments.optimizers.gamp import Gamp
from attnphase.experiments.optimizers.gradient_descent import GradientDescent
from attnphase.experiments.optimizers.interface import Optimizer
from attnphase.experiments.optimizers.lbfgs import Lbfgs

__all__ = ["CLASSES"]

CLASSES: dict[str, type[Optimizer]] = {
    "gd": GradientDescent,
    "adam": Adam,
    "lbfgs": Lbfgs,
    "fista": Fista,
    "gamp": Gamp,
}
"""Of the names in `attnphase.experiments.optimizers.kinds.OPTIMIZERS` that train on one set of samples."""
