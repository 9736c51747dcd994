"""The paper's experiments, each with a theory curve beside it: Figures 2, 3 and 7, Appendices E.3 and E.4.

Every experiment is data: problems, a grid, an optimiser, and two sizes.  `run_experiment` computes theory and runs,
compares them, and writes datasets, a figure and a text into a folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnphase.compare import Comparison, compare
from attnphase.dataset import check_output, overlap_size, save_dataset, write_file
from attnphase.errors import ProblemError
from attnphase.experiments.simulate import simulate
from attnphase.figures import comparison_figure, grid_figure, save_figure, scatter_figure
from attnphase.problem import Problem
from attnphase.progress import progress_line
from attnphase.reference import read_reference
from attnphase.solve import SolverSettings
from attnphase.sweep import sweep
from attnphase.text import Table, wrapped

__all__ = ["EXPERIMENTS", "PaperExperiment", "Size", "basins", "published_table", "run_experiment"]

_RUNS_OF_FIG7 = 70  # a point of the published table, about
_RUNS_OF_FIG2 = 24
_NEAR = 0.5  # share of the theory's overlap that a run must have to belong to its minimum


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
    optimizer: str
    quick: Size
    full: Size
    published: str = ""


def _grid(start: float, stop: float, count: int) -> tuple[float, ...]:
    return tuple(np.linspace(start, stop, count).tolist())


_PAPER = Problem.paper(omega=0.3)
_BOTH = ("semantic", "positional")
_SHARED_CLUSTERS = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
    "tokens.law": {"kind": "same", "probability": 0.8},
}
_LEVELS = [{"weight": 0.25, "variances": [0.6, 0.6]}, {"weight": 0.75, "variances": [0.15, 0.15]}]


def _experiments() -> dict[str, PaperExperiment]:
    fig2_alphas = tuple(sorted({float(row["alpha"]) for row in read_reference("fig2_gradient_descent")}))
    few, many = Size((1.0, 2.0), (100, 200), 6, {"test_samples": 0}), Size(_grid(0.5, 2.0, 7), (500, 1000), 24)
    variants = {
        "correlated": (
            "Appendix E.3: tokens of two clusters that the sentence's tokens share",
            _SHARED_CLUSTERS,
            _BOTH,
        ),
        "rank2": ("Appendix E.3: a student of rank 2", {"student.rank": 2}, (*_BOTH, "mixed")),
        "untied": ("Appendix E.3: untied weights Q and K", {"student.tied": False}, _BOTH),
        "values": ("Appendix E.3: a trainable value matrix", {"loss.kind": "values", "loss.width": 1}, _BOTH),
    }
    found = [
        PaperExperiment(
            "fig2",
            "Figure 2: gradient descent from both starts along alpha, at omega = 0.3",
            {"": _PAPER},
            _BOTH,
            "gd",
            quick=Size((1.0, 2.0), (200,), 6, {"steps": 2000, "test_samples": 0}),
            full=Size(fig2_alphas, (1000,), _RUNS_OF_FIG2),
            published="fig2_gradient_descent",
        ),
        PaperExperiment(
            "fig3",
            "Figure 3: gradient descent from both starts over alpha and omega",
            {"": _PAPER},
            _BOTH,
            "gd",
            quick=Size(_grid(0.5, 2.0, 4), (100,), 2, {"steps": 1500, "test_samples": 0}, omegas=(0.1, 0.25, 0.4)),
            full=Size(_grid(0.01, 2.0, 25)[1:], (1000,), 1, {"test_samples": 0}, omegas=_grid(0.02, 0.5, 25)),
        ),
        PaperExperiment(
            "fig7",
            "Figure 7 and Figure 3, left: gradient descent against the dimension at alpha = 1.5",
            {"": _PAPER},
            _BOTH,
            "gd",
            quick=Size((1.5,), (23, 56, 135), 12, {"test_samples": 0}),
            full=Size((1.5,), (23, 56, 135, 323), _RUNS_OF_FIG7),
            published="fig7_scaling",
        ),
        *(
            PaperExperiment(name, title, {"": _PAPER.with_fields(fields)}, starts, "lbfgs", few, many)
            for name, (title, fields, starts) in variants.items()
        ),
        PaperExperiment(
            "adam",
            "Appendix E.4: Adam from uninformed starts at alpha = 2, d = 100",
            {"": _PAPER},
            ("uninformed",),
            "adam",
            quick=Size((2.0,), (100,), 16, {"test_samples": 0}),
            full=Size((2.0,), (100,), 400),
        ),
        # with a second column training leaves a semantic or positional solution for the mixed one
        PaperExperiment(
            "agreement-rank2",
            "Theory against L-BFGS for a student of rank 2 at alpha = 2, with the correction in d",
            {"": _PAPER.with_fields({"student.rank": 2})},
            ("mixed",),
            "lbfgs",
            quick=Size((2.0,), (200, 350, 600), 24, {"test_samples": 0}),
            full=Size((2.0,), (500, 1000, 2000), 24),
        ),
        # without a ridge the positional state has no replica-symmetric fixed point here
        PaperExperiment(
            "agreement-lasso",
            "Theory against proximal gradients for a lasso at alpha = 2, with the correction in d",
            {"": _PAPER.with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.006})},
            ("semantic",),
            "fista",
            quick=Size((2.0,), (200, 350, 600), 24, {"test_samples": 0}),
            full=Size((2.0,), (500, 1000, 2000), 24),
        ),
        PaperExperiment(
            "agreement",
            "Theory against L-BFGS or proximal gradients at alpha = 2, with the correction in d",
            {
                "tied": _PAPER,
                "untied": _PAPER.with_fields({"student.tied": False}),
                "mixture": _PAPER.with_fields(_SHARED_CLUSTERS),
                "anisotropic": _PAPER.with_fields({"tokens.sigma": None, "tokens.spectrum": _LEVELS}),
                "elastic-net": _PAPER.with_fields(
                    {"regularizer.kind": "elastic-net", "regularizer.strength": 0.002, "regularizer.ridge": 0.01}
                ),
            },
            _BOTH,
            "lbfgs",
            quick=Size((2.0,), (200, 350, 600), 24, {"test_samples": 0}),
            full=Size((2.0,), (500, 1000, 2000), 24),
        ),
    ]
    return {one.name: one for one in found}


EXPERIMENTS: dict[str, PaperExperiment] = _experiments()
"""The experiments by name."""


def run_experiment(
    name: str,
    folder: Path,
    size: str = "quick",
    *,
    seed: int = 0,
    overrides: dict[str, Any] | None = None,
    force: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
    width: int | None = None,
) -> dict[str, Comparison | xr.Dataset]:
    """Run an experiment of the paper and write its results.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    folder : Path
        Gets ``NAME-theory.nc``, ``NAME-runs.nc``, ``NAME.png`` and ``NAME.txt``, with the problem's label in between
        where there are several.  Finished runs are kept beside them until they are written.
    size : {"quick", "full"}
    seed : int
    overrides : dict, optional
        Other dimensions, seeds, optimizer or arguments of `simulate` than the size's.
    force : bool
        Whether files are replaced.
    progress : bool
    say : callable, optional
        Takes the text of every part.
    width : int or None
        Columns that this text may have; None for no limit.

    Returns
    -------
    dict
        By label, the comparison, or for a grid over omega the runs.

    Raises
    ------
    ProblemError
        Unknown name or size.
    """
    if name not in EXPERIMENTS:
        raise ProblemError("experiment", f'experiment must be one of {", ".join(EXPERIMENTS)}, not "{name}".')
    if size not in ("quick", "full"):
        raise ProblemError("size", f'size must be quick or full, not "{size}".')
    experiment = EXPERIMENTS[name]
    plan: Size = getattr(experiment, size)
    changed = dict(overrides or {})
    plan = replace(
        plan,
        dimensions=tuple(changed.pop("dimension", plan.dimensions)),
        seeds=changed.pop("seeds", plan.seeds),
        alphas=tuple(changed.pop("alpha", plan.alphas)),
        options={**plan.options, **changed},
    )
    optimizer = plan.options.pop("optimizer", experiment.optimizer)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Comparison | xr.Dataset] = {}
    for label, problem in experiment.problems.items():
        stem = f"{name}-{label}" if label else name
        files = {kind: folder / f"{stem}{kind}" for kind in ("-theory.nc", "-runs.nc", ".png", ".txt")}
        for path in files.values():
            check_output(path, force)
        checkpoint = folder / f"{stem}.checkpoint"
        part = _Part(experiment, plan, problem, optimizer, seed, checkpoint, progress)
        # runs first: they are what can be refused, and what an interruption keeps
        runs = part.runs()
        theory = part.theory()
        with progress_line(progress, "drawing"):
            text, figure, result = part.conclude(theory, runs)
        save_dataset(theory, files["-theory.nc"], force=True)
        save_dataset(runs, files["-runs.nc"], force=True)
        save_figure(figure, files[".png"])
        write_file(files[".txt"], f"{text(None)}\n".encode())
        for kept in part.checkpoints():
            kept.unlink(missing_ok=True)
        results[label] = result
        say(f"{stem}\n{text(width)}")
    return results


@dataclass(frozen=True, eq=False)
class _Part:
    """One problem of an experiment."""

    experiment: PaperExperiment
    plan: Size
    problem: Problem
    optimizer: str
    seed: int
    checkpoint: Path
    progress: bool

    def theory(self) -> xr.Dataset:
        """The branches that belong to the starts, and for uninformed ones both informed branches."""
        starts = _BOTH if self.experiment.starts == ("uninformed",) else self.experiment.starts
        grid: dict[str, Any] = {"alpha": self.plan.alphas, "branches": starts, "progress": self.progress}
        if self.plan.omegas:
            # as the phase diagram: many points, less exact ones
            coarse = self.problem.with_fields({"integration.rule": "sobol", "integration.nodes": 256})
            settings = SolverSettings(tolerance=1e-6, max_maps=100)
            return sweep(coarse, omega=self.plan.omegas, settings=settings, **grid)
        return sweep(self.problem, **grid)

    def checkpoints(self) -> list[Path]:
        """Files that keep finished runs."""
        if not self.plan.omegas:
            return [self.checkpoint]
        return [self.checkpoint.with_suffix(f".{omega:g}.checkpoint") for omega in self.plan.omegas]

    def runs(self) -> xr.Dataset:
        """All runs; along omega where there is a grid of it."""
        if not self.plan.omegas:
            return self._simulate(self.problem, self.checkpoint)
        lines = [
            self._simulate(self.problem.with_fields({"teacher.omega": omega}), path)
            for omega, path in zip(self.plan.omegas, self.checkpoints(), strict=True)
        ]
        attributes = {"long_name": "weight of the teacher's positional part", "units": "1", "latex": r"\omega"}
        omega = xr.DataArray(
            np.array(self.plan.omegas), dims="omega", name="omega", attrs={**attributes, "field": "teacher.omega"}
        )
        whole = xr.concat(lines, dim=omega, combine_attrs="override")
        return whole.transpose("start", "dimension", "omega", "alpha", "seed", ...)

    def _simulate(self, problem: Problem, checkpoint: Path) -> xr.Dataset:
        sparse = problem.regularizer.kind != "ridge"
        return simulate(
            problem,
            self.plan.alphas,
            self.experiment.starts,
            self.plan.dimensions,
            self.plan.seeds,
            "fista" if sparse and self.optimizer == "lbfgs" else self.optimizer,
            seed=self.seed,
            checkpoint=checkpoint,
            progress=self.progress,
            **self.plan.options,
        )

    def conclude(
        self, theory: xr.Dataset, runs: xr.Dataset
    ) -> tuple[Callable[[int | None], str], Any, Comparison | xr.Dataset]:
        """Text for a terminal of some width, figure and result."""
        head, published = self.experiment.title, self.experiment.published
        if self.plan.omegas:
            return _text_of(f"{head}\n\n{_grid_text(theory, runs)}"), grid_figure(theory, runs), runs
        if self.experiment.starts == ("uninformed",):
            return _text_of(f"{head}\n\n{_basin_text(theory, runs)}"), scatter_figure(theory, runs), runs
        comparison = compare(theory, runs)

        def text(width: int | None) -> str:
            table = published_table(published, runs, width) if published else ""
            return "\n\n".join(filter(None, (wrapped(head, width), comparison.text(width), table)))

        return text, comparison_figure(comparison), comparison


def _text_of(whole: str) -> Callable[[int | None], str]:
    return lambda width: wrapped(whole, width)


def basins(theory: xr.Dataset, runs: xr.Dataset) -> dict[str, float]:
    """Share of the runs that reached each minimum.

    A run belongs to the semantic one if its theta is at least half the theory's and its m less than half, to the
    positional one the other way round; "both" and "neither" are the rest.

    Parameters
    ----------
    theory : xarray.Dataset
        Branches semantic and positional at one alpha.
    runs : xarray.Dataset
        Of one start, dimension and alpha.
    """
    theta, m = (overlap_size(runs, name).to_numpy().ravel() for name in ("theta", "m"))
    semantic = theta >= _NEAR * float(overlap_size(theory.sel(branch="semantic"), "theta").squeeze())
    positional = m >= _NEAR * float(overlap_size(theory.sel(branch="positional"), "m").squeeze())
    masks = {
        "semantic": semantic & ~positional,
        "positional": positional & ~semantic,
        "both": semantic & positional,
        "neither": ~semantic & ~positional,
    }
    return {name: float(mask.mean()) for name, mask in masks.items()}


def _basin_text(theory: xr.Dataset, runs: xr.Dataset) -> str:
    count = runs["status"].size
    lines = [f"{count} runs; share that reached each minimum:"]
    for name, share in basins(theory, runs).items():
        error = math.sqrt(share * (1 - share) / count)
        lines.append(f"  {name:<10}  {share:.3f} +- {error:.3f}")
    losses = runs["training_loss"].to_numpy().ravel()
    lines.append(f"training loss of the runs: {losses.mean():.6f} +- {losses.std(ddof=1) / math.sqrt(count):.6f}")
    for branch in _BOTH:
        lines.append(f"training loss of theory, {branch}: {theory['training_loss'].sel(branch=branch).item():.6f}")
    return "\n".join(lines)


def _grid_text(theory: xr.Dataset, runs: xr.Dataset) -> str:
    """On how much of the grid runs and theory agree which minimum is lower."""
    mean = runs["training_loss"].isel(dimension=-1).mean("seed")
    measured = mean.sel(start="semantic") - mean.sel(start="positional")
    expected = theory["training_loss"].sel(branch="semantic") - theory["training_loss"].sel(branch="positional")
    measured, expected = measured.transpose("omega", "alpha"), expected.transpose("omega", "alpha")
    same = np.sign(measured.to_numpy()) == np.sign(expected.to_numpy())
    clear = np.abs(expected.to_numpy()) > 0.02 * np.abs(theory["training_loss"].sel(branch="semantic").to_numpy())
    return (
        f"d = {int(runs['dimension'][-1])}: of {same.size} points the sign of the losses' difference is the theory's at"
        f" {same.sum()}; of the {clear.sum()} where the theory's difference is over 2 % of the loss, at"
        f" {(same & clear).sum()}."
    )


def published_table(name: str, runs: xr.Dataset, width: int | None = None) -> str:
    """Our means beside the published ones, with the difference in standard errors.

    Published standard deviations are of single runs; where there is none, ours stands in for it.

    Parameters
    ----------
    name : str
        Table of `attnphase.reference.read_reference`.
    runs : xarray.Dataset
        With one of the table's sample complexities; other rows are left out.
    width : int or None
        Columns of the terminal; None for no limit.

    Returns
    -------
    str
        Empty if there are no such rows.
    """
    table = read_reference(name)
    count = {"fig7_scaling": _RUNS_OF_FIG7, "fig2_gradient_descent": _RUNS_OF_FIG2}[name]
    names = table.dtype.names or ()
    rows: list[tuple[str, ...]] = []
    for row in table:
        d = int(row["d"]) if "d" in names else 1000
        near = np.isclose(runs["alpha"].to_numpy(), row["alpha"])
        if d not in runs["dimension"] or not near.any():
            continue
        here = runs.sel(start=str(row["start"]), dimension=d).isel(alpha=int(np.flatnonzero(near)[0]))
        for quantity in ("test_error", "training_loss", "m", "theta"):
            values = overlap_size(here, quantity) if quantity in ("m", "theta") else here[quantity]
            values = values.to_numpy()
            mean, spread = values.mean(), values.std(ddof=1)
            theirs = float(row[f"{quantity}_sd"]) if f"{quantity}_sd" in names else spread
            error = math.hypot(spread / math.sqrt(len(values)), theirs / math.sqrt(count))
            z = (mean - row[quantity]) / error
            cell = f"{mean:.6g} +- {spread / math.sqrt(len(values)):.2g}"
            rows.append(
                (quantity, str(row["start"]), str(d), f"{row['alpha']:.3g}", f"{row[quantity]:.6g}", cell, f"{z:+.1f}")
            )
    heads = ("", "start", "d", "alpha", "published", "ours", "z")
    return Table(heads, tuple(rows), labels=4, left=(0, 1)).text(width) if rows else ""
