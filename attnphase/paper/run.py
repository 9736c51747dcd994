"""The paper's experiments, run: theory and training computed, compared, and written into a folder.

What is run is data: `attnphase.paper.catalogue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnphase.checks.comparison import Comparison, compare
from attnphase.data.files import save_dataset
from attnphase.data.reading import counted, counted_alone, overlap_size
from attnphase.data.text import Table, wrapped
from attnphase.experiments.simulate import simulate
from attnphase.figures import comparison_figure, grid_figure, save_figure, scatter_figure
from attnphase.files.writing import write_file
from attnphase.fixed_points.settings import SolverSettings
from attnphase.paper.catalogue import (
    BOTH,
    RUNS_OF_FIG2,
    RUNS_OF_FIG7,
    Planned,
    check_results,
    result_files,
)
from attnphase.paper.ends import ends_text
from attnphase.problem import Problem
from attnphase.processes.progress import progress_line
from attnphase.reference import read_reference
from attnphase.sweeps.grid import sweep

__all__ = ["basins", "published_table", "run_experiment"]

_NEAR = 0.5  # share of the theory's overlap that a run must have to belong to its minimum


def run_experiment(
    planned: Planned,
    folder: Path,
    *,
    force: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda text: None,
    width: int | None = None,
) -> dict[str, Comparison | xr.Dataset]:
    """Run an experiment of the paper and write its results.

    Parameters
    ----------
    planned : Planned
        By `attnphase.paper.catalogue.planned`.
    folder : Path
        Gets ``NAME-theory.nc``, ``NAME-runs.nc``, ``NAME.png`` and ``NAME.txt``, with the problem's label in between
        where there are several.  Finished runs are kept beside them until they are written.
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
    DatasetError
        A file exists and `force` is false, or cannot be written.
    """
    experiment = planned.experiment
    folder = check_results(experiment, folder, force)
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Comparison | xr.Dataset] = {}
    for label, problem in experiment.problems.items():
        stem = experiment.stem(label)
        files = result_files(folder, stem)
        checkpoint = folder / f"{stem}.checkpoint"
        part = _Part(planned, problem, checkpoint, progress)
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

    planned: Planned
    problem: Problem
    checkpoint: Path
    progress: bool

    def theory(self) -> xr.Dataset:
        """The branches that belong to the starts, and for uninformed ones both informed branches."""
        starts = BOTH if self.planned.experiment.starts == ("uninformed",) else self.planned.experiment.starts
        grid: dict[str, Any] = {"alpha": self.planned.size.alphas, "branch": starts, "progress": self.progress}
        if self.planned.size.omegas:
            # as the phase diagram: many points, less exact ones
            coarse = self.problem.with_fields({"integration.standard_error": 1e-2})
            settings = SolverSettings(tolerance=1e-6)
            return sweep(coarse, omega=self.planned.size.omegas, settings=settings, **grid)
        return sweep(self.problem, **grid)

    def checkpoints(self) -> list[Path]:
        """Files that keep finished runs."""
        if not self.planned.size.omegas:
            return [self.checkpoint]
        return [self.checkpoint.with_suffix(f".{omega:g}.checkpoint") for omega in self.planned.size.omegas]

    def runs(self) -> xr.Dataset:
        """All runs; along omega where there is a grid of it."""
        omegas = self.planned.size.omegas
        if not omegas:
            return self._simulate(self.problem, self.checkpoint)
        lines = [
            self._simulate(self.problem.with_fields({"teacher.omega": omega}), path)
            for omega, path in zip(omegas, self.checkpoints(), strict=True)
        ]
        attributes = {"long_name": "weight of the teacher's positional part", "units": "1", "latex": r"\omega"}
        attributes["field"] = "teacher.omega"
        along = xr.DataArray(np.array(omegas), dims="omega", name="omega", attrs=attributes)
        whole = xr.concat(lines, dim=along, combine_attrs="override")
        return whole.transpose("start", "dimension", "omega", "alpha", "seed", ...)

    def _simulate(self, problem: Problem, checkpoint: Path) -> xr.Dataset:
        return simulate(
            problem,
            self.planned.size.alphas,
            self.planned.experiment.starts,
            self.planned.size.dimensions,
            self.planned.size.seeds,
            self.planned.experiment.optimizer_for(problem),
            seed=self.planned.seed,
            checkpoint=checkpoint,
            progress=self.progress,
            **self.planned.size.options,
        )

    def conclude(
        self, theory: xr.Dataset, runs: xr.Dataset
    ) -> tuple[Callable[[int | None], str], Any, Comparison | xr.Dataset]:
        """Text for a terminal of some width, figure and result."""
        head, published = self.planned.experiment.title, self.planned.experiment.published
        if self.planned.size.omegas:
            return _text_of(f"{head}\n\n{_grid_text(theory, runs)}"), grid_figure(theory, runs), runs
        if self.planned.experiment.starts == ("uninformed",):
            return _text_of(f"{head}\n\n{_basin_text(theory, runs)}"), scatter_figure(theory, runs), runs
        comparison = compare(theory, runs)

        def text(width: int | None) -> str:
            table = published_table(published, runs, width) if published else ""
            parts = (wrapped(head, width), comparison.text(width), ends_text(theory, runs, width), table)
            return "\n\n".join(filter(None, parts))

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
    kept = counted(runs).squeeze(["start", "dimension", "alpha"]).to_numpy()
    count, lost = np.count_nonzero(kept), np.count_nonzero(~kept)
    if not count:
        return f"all {lost} runs diverged."
    runs, diverged = runs.isel(seed=kept), f", without {lost} that diverged" if lost else ""
    lines = [f"{count} runs{diverged}; share that reached each minimum:"]
    for name, share in basins(theory, runs).items():
        error = math.sqrt(share * (1 - share) / count)
        lines.append(f"  {name:<10}  {share:.3f} +- {error:.3f}")
    losses = runs["training_loss"].to_numpy().ravel()
    spread = f" +- {losses.std(ddof=1) / math.sqrt(count):.6f}" if count > 1 else ""
    lines.append(f"training loss of the runs: {losses.mean():.6f}{spread}")
    for branch in BOTH:
        lines.append(f"training loss of theory, {branch}: {theory['training_loss'].sel(branch=branch).item():.6f}")
    return "\n".join(lines)


def _grid_text(theory: xr.Dataset, runs: xr.Dataset) -> str:
    """On how much of the grid runs and theory agree which minimum is lower."""
    last = runs.isel(dimension=-1)
    mean = last["training_loss"].where(counted(last)).mean("seed")
    measured = mean.sel(start="semantic") - mean.sel(start="positional")
    expected = theory["training_loss"].sel(branch="semantic") - theory["training_loss"].sel(branch="positional")
    measured, expected = measured.transpose("omega", "alpha"), expected.transpose("omega", "alpha")
    same = np.sign(measured.to_numpy()) == np.sign(expected.to_numpy())
    known = np.isfinite(measured.to_numpy())
    size = np.abs(theory["training_loss"].sel(branch="semantic").to_numpy())
    clear = known & (np.abs(expected.to_numpy()) > 0.02 * size)
    return (
        f"d = {int(runs['dimension'][-1])}: of {known.sum()} points the sign of the losses' difference is the theory's"
        f" at {same.sum()}; of the {clear.sum()} where the theory's difference is over 2 % of the loss, at"
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
    count = {"fig7_scaling": RUNS_OF_FIG7, "fig2_gradient_descent": RUNS_OF_FIG2}[name]
    names = table.dtype.names or ()
    rows: list[tuple[str, ...]] = []
    for row in table:
        d = int(row["d"]) if "d" in names else 1000
        near = np.isclose(runs["alpha"].to_numpy(), row["alpha"], rtol=1e-5, atol=0)
        if d not in runs["dimension"] or not near.any():
            continue
        here = runs.sel(start=str(row["start"]), dimension=d).isel(alpha=int(np.flatnonzero(near)[0]))
        here = counted_alone(here)
        for quantity in ("test_error", "training_loss", "m", "theta"):
            values = (overlap_size(here, quantity) if quantity in ("m", "theta") else here[quantity]).to_numpy()
            head = (quantity, str(row["start"]), str(d), f"{row['alpha']:.3g}", f"{row[quantity]:.6g}")
            if len(values) < 2:
                rows.append((*head, "–", "–"))
                continue
            mean, spread = values.mean(), values.std(ddof=1)
            theirs = float(row[f"{quantity}_sd"]) if f"{quantity}_sd" in names else spread
            error = math.hypot(spread / math.sqrt(len(values)), theirs / math.sqrt(count))
            z = (mean - row[quantity]) / error
            cell = f"{mean:.6g} +- {spread / math.sqrt(len(values)):.2g}"
            rows.append((*head, cell, f"{z:+.1f}"))
    heads = ("", "start", "d", "alpha", "published", "ours", "z")
    return Table(heads, tuple(rows), labels=4, left=(0, 1)).text(width) if rows else ""
