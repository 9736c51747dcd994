"""The paper's experiments as data: Figures 2, 3 and 7, Appendices E.3 and E.4.

Problems, a grid, an optimiser, and two sizes each; a wrong name or option is refused here, without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from attnphase import arguments
from attnphase.experiments.optimizers.kinds import OptimizerName, suited
from attnphase.experiments.plan import Plan
from attnphase.files.writing import check_folder, check_output
from attnphase.problem import Problem
from attnphase.reference import read_reference

__all__ = ["EXPERIMENTS", "PaperExperiment", "Planned", "Size", "check_results", "planned", "result_files"]

SIZES = ("quick", "full")
RUNS_OF_FIG7 = 70  # a point of the published table, about
RUNS_OF_FIG2 = 24


@dataclass(frozen=True)
class Size:
    """How large an experiment is.

    Attributes
    ----------
    alphas : tuple of float
    dimensions : tuple of int
    seeds : int
    options : dict
        Arguments of `simulate` besides these.
    cost : str
        What it took, and on what.
    omegas : tuple of float
        Of a grid over the teacher's omega.
    """

    alphas: tuple[float, ...]
    dimensions: tuple[int, ...]
    seeds: int
    options: dict[str, Any] = field(default_factory=dict)
    cost: str = ""
    omegas: tuple[float, ...] = ()


@dataclass(frozen=True)
class PaperExperiment:
    """One experiment.

    Attributes
    ----------
    name, title : str
    problems : dict of str to Problem
        By label; one dataset each.
    starts : tuple of str
    optimizer : str
    quick, full : Size
    published : str
        Table of published numbers, if there is one.
    """

    name: str
    title: str
    problems: dict[str, Problem]
    starts: tuple[str, ...]
    optimizer: OptimizerName
    quick: Size
    full: Size
    published: str = ""

    def stem(self, label: str) -> str:
        """What the names of a problem's files begin with."""
        return f"{self.name}-{label}" if label else self.name

    def optimizer_for(self, problem: Problem) -> OptimizerName:
        """The optimiser: L-BFGS cannot take a regulariser with kinks."""
        return suited(self.optimizer, problem)


def _grid(start: float, stop: float, count: int) -> tuple[float, ...]:
    return tuple(np.linspace(start, stop, count).tolist())


_PAPER = Problem.paper(omega=0.3)
BOTH = ("semantic", "positional")
_SHARED_CLUSTERS = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
    "tokens.law": {"kind": "same", "probability": 0.8},
}
_LEVELS = [{"weight": 0.25, "variances": [0.6, 0.6]}, {"weight": 0.75, "variances": [0.15, 0.15]}]


_FIG2_ALPHAS = tuple(sorted({float(row["alpha"]) for row in read_reference("fig2_gradient_descent")}))
_UNTESTED = {"test_samples": 0}

_FIGURES = (
    PaperExperiment(
        "fig2",
        "Figure 2: gradient descent from both starts along alpha, at omega = 0.3",
        {"": _PAPER},
        BOTH,
        "gd",
        quick=Size((1.0, 2.0), (200,), 6, {"steps": 2000, **_UNTESTED}),
        full=Size(_FIG2_ALPHAS, (1000,), RUNS_OF_FIG2),
        published="fig2_gradient_descent",
    ),
    PaperExperiment(
        "fig3",
        "Figure 3: gradient descent from both starts over alpha and omega",
        {"": _PAPER},
        BOTH,
        "gd",
        quick=Size(_grid(0.5, 2.0, 4), (100,), 2, {"steps": 1500, **_UNTESTED}, omegas=(0.1, 0.25, 0.4)),
        full=Size(_grid(0.01, 2.0, 25)[1:], (1000,), 1, _UNTESTED, omegas=_grid(0.02, 0.5, 25)),
    ),
    PaperExperiment(
        "fig7",
        "Figure 7 and Figure 3, left: gradient descent against the dimension at alpha = 1.5",
        {"": _PAPER},
        BOTH,
        "gd",
        quick=Size((1.5,), (23, 56, 135), 12, _UNTESTED),
        full=Size((1.5,), (23, 56, 135, 323), RUNS_OF_FIG7),
        published="fig7_scaling",
    ),
)


def _variant(name: str, title: str, fields: dict[str, Any], starts: tuple[str, ...] = BOTH) -> PaperExperiment:
    """A variant of the paper's problem along alpha."""
    few, many = Size((1.0, 2.0), (100, 200), 6, _UNTESTED), Size(_grid(0.5, 2.0, 7), (500, 1000), 24)
    title = f"Appendix E.3: {title}"
    return PaperExperiment(name, title, {"": _PAPER.with_fields(fields)}, starts, "lbfgs", few, many)


_VARIANTS = (
    _variant("correlated", "tokens of two clusters that the sentence's tokens share", _SHARED_CLUSTERS),
    _variant("rank2", "a student of rank 2", {"student.rank": 2}, (*BOTH, "mixed")),
    _variant("untied", "untied weights Q and K", {"student.tied": False}),
    _variant("values", "a trainable value matrix", {"loss.kind": "values", "loss.width": 1}),
)

_ADAM = PaperExperiment(
    "adam",
    "Appendix E.4: Adam from uninformed starts at alpha = 2, d = 100",
    {"": _PAPER},
    ("uninformed",),
    "adam",
    quick=Size((2.0,), (100,), 16, _UNTESTED),
    full=Size((2.0,), (100,), 400),
)


def _agreement(
    name: str,
    what: str,
    problems: dict[str, dict[str, Any]],
    starts: tuple[str, ...],
    optimizer: OptimizerName = "lbfgs",
) -> PaperExperiment:
    """Theory against training at alpha = 2, in so many dimensions that the correction can be fitted."""
    title = f"Theory against {what} at alpha = 2, with the correction in d"
    changed = {label: _PAPER.with_fields(fields) for label, fields in problems.items()}
    few, many = Size((2.0,), (200, 350, 600), 24, _UNTESTED), Size((2.0,), (500, 1000, 2000), 24)
    return PaperExperiment(name, title, changed, starts, optimizer, few, many)


_AGREEMENTS = (
    # with a second column training leaves a semantic or positional solution for the mixed one
    _agreement("agreement-rank2", "L-BFGS for a student of rank 2", {"": {"student.rank": 2}}, ("mixed",)),
    # without a ridge the positional state has no replica-symmetric fixed point here
    _agreement(
        "agreement-lasso",
        "proximal gradients for a lasso",
        {"": {"regularizer.kind": "lasso", "regularizer.strength": 0.006}},
        ("semantic",),
        "fista",
    ),
    _agreement(
        "agreement",
        "L-BFGS or proximal gradients",
        {
            "tied": {},
            "untied": {"student.tied": False},
            "mixture": _SHARED_CLUSTERS,
            "anisotropic": {"tokens.sigma": None, "tokens.spectrum": _LEVELS},
            "elastic-net": {
                "regularizer.kind": "elastic-net",
                "regularizer.strength": 0.002,
                "regularizer.ridge": 0.01,
            },
        },
        BOTH,
    ),
)

EXPERIMENTS: dict[str, PaperExperiment] = {one.name: one for one in (*_FIGURES, *_VARIANTS, _ADAM, *_AGREEMENTS)}
"""The experiments by name."""


@dataclass(frozen=True)
class Planned:
    """An experiment of the paper as it is to be run.

    Attributes
    ----------
    experiment : PaperExperiment
    size : Size
    seed : int
        From which all random numbers follow.
    """

    experiment: PaperExperiment
    size: Size
    seed: int


def planned(name: str, size: str = "quick", *, seed: int = 0, overrides: Mapping[str, Any] | None = None) -> Planned:
    """An experiment at a size, after changes.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    size : {"quick", "full"}
    seed : int
    overrides : mapping, optional
        Other values of ``alpha``, ``dimension``, ``seeds``, ``optimizer`` or further arguments of
        `attnphase.simulate`.

    Returns
    -------
    Planned

    Raises
    ------
    ProblemError
        There is no such experiment or size, or a changed value cannot be used.
    """
    experiment = EXPERIMENTS[arguments.word("experiment", name, tuple(EXPERIMENTS))]
    chosen: Size = getattr(experiment, arguments.word("size", size, SIZES))
    changed = arguments.mapping("overrides", overrides or {}, "a mapping from arguments of simulate to values")
    for key in changed:
        arguments.word("overrides", key, [key for key in signature(Plan.of).parameters if key != "start"])
    grid = {"alpha": chosen.alphas, "dimension": chosen.dimensions, "seeds": chosen.seeds}
    asked = {**grid, "optimizer": experiment.optimizer, **chosen.options, **changed}
    plan = Plan.of(start=experiment.starts, seed=seed, **asked)
    experiment = replace(experiment, optimizer=asked.pop("optimizer"))
    for problem in experiment.problems.values():
        settings = replace(plan.settings, optimizer=experiment.optimizer_for(problem))
        replace(plan, settings=settings).check(problem)
    chosen = replace(
        chosen,
        alphas=plan.grid.alphas,
        dimensions=plan.grid.dimensions,
        seeds=plan.grid.seeds,
        options={key: value for key, value in asked.items() if key not in grid},
    )
    return Planned(experiment, chosen, plan.grid.seed)


def result_files(folder: Path, stem: str) -> dict[str, Path]:
    """The files of one problem's results, by the ends of their names."""
    return {end: folder / f"{stem}{end}" for end in ("-theory.nc", "-runs.nc", ".png", ".txt")}


def check_results(experiment: PaperExperiment, folder: Any, force: bool) -> Path:
    """Refuse a folder to which an experiment's results could not be written.

    Raises
    ------
    DatasetError
        It is no folder and cannot become one; or a file exists and `force` is false.
    ProblemError
        `folder` is no path.
    """
    path = check_folder(folder)
    for label in experiment.problems:
        for file in result_files(path, experiment.stem(label)).values():
            if path.exists():
                check_output(file, force)
    return path
