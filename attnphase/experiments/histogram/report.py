"""What runs of the histogram task have learnt: accuracy, distances, attention matrices, and how positional they are."""

from __future__ import annotations

import functools
import math
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.data.build import from_histogram
from attnphase.data.text import Table, wrapped
from attnphase.data.variables import HISTOGRAM_ENTRIES, HISTOGRAM_STAGES, RunStatus
from attnphase.errors import ProblemError
from attnphase.experiments.data import generator
from attnphase.experiments.histogram.settings import HistogramSizes
from attnphase.experiments.histogram.stages import BETAS, Trained, check_same, load_trained
from attnphase.experiments.histogram.steps import test_errors
from attnphase.experiments.histogram.task import Stream, draw_sequences
from attnphase.experiments.histogram.transformer import Parameters, attention
from attnphase.kernels.torch.device import callers_torch_set_aside

__all__ = ["distances", "histogram_dataset", "histogram_text", "variance_shares"]

_EXAMPLES = 3  # sequences whose matrices are shown if none are given
_BLOCKS = 10  # of random sequences, for the standard error of the shares
_BLOCK = 400


@callers_torch_set_aside()
def histogram_dataset(folder: str | os.PathLike[str], sequences: Sequence[Sequence[int]] | None = None) -> xr.Dataset:
    """Measure the finished runs of a folder.

    Parameters
    ----------
    folder : path-like
        Of `train_histogram`.
    sequences : sequence of sequences of int, optional
        L symbols each, numbers below T, whose attention matrices are given; three random ones by default.

    Returns
    -------
    xarray.Dataset
        Schema ``histogram``: over mechanism and run.

    Raises
    ------
    ProblemError
        The sequences do not fit the task.
    ExperimentError
        There are no finished runs, a checkpoint is damaged, or the mechanisms were trained with different settings.
    """
    trained = load_trained(folder)
    first = trained[0]
    for other in trained[1:]:
        check_same(folder, first.task, other.task)
    symbols = _symbols(first.sizes, first.seed, sequences)
    epochs = max(state["epoch"] for one in trained for state in one.stages.values())
    measured = [_measured(one, symbols, epochs) for one in trained]
    columns = {name: np.stack([one[name] for one in measured]) for name in measured[0]}
    settings = [
        ", ".join(f"{key} {value}" for key, value in one.stages[name]["settings"].items())
        for one in trained
        for name in one.stages
    ]
    described = [f"{one.mechanism} {name}" for one in trained for name in one.stages]
    stages = "; ".join(f"{what}: {text}" for what, text in zip(described, settings, strict=True))
    common = {**asdict(first.sizes), **{name: first.task[name] for name in ("batch", "learning_rate", "dtype")}}
    names = ", ".join(f"{name} {value}" for name, value in common.items())
    rule = f"{names}; Adam with betas {BETAS}, then plain descent; {stages}; torch {torch.__version__}"
    return from_histogram(
        columns,
        mechanisms=[one.mechanism for one in trained],
        runs=first.runs,
        symbols=symbols,
        rule=rule,
        seed=first.seed,
    )


def distances(before: Parameters, after: Parameters) -> tuple[Array, Array]:
    """How far weights have moved, each (R).

    Returns
    -------
    distance_sum, distance_l2 : (R) arrays
        Sum over the tensors of the L2 norm of the difference; one L2 norm over everything.
    """
    norms = np.stack([(after[name] - before[name]).double().flatten(1).norm(dim=1).numpy() for name in before])
    return norms.sum(0), np.sqrt((norms**2).sum(0))


def variance_shares(matrices: Tensor, symbols: Tensor, alphabet: int) -> dict[str, dict[str, tuple[float, float]]]:
    """How positional and how semantic attention is.

    The entries ``A_ij`` of the matrices of random sequences have a variance, over sequences and places.  Of it, pairs
    of places (i, j) explain the variance of the means at fixed pair; pairs of symbols (x_i, x_j) likewise.

    Parameters
    ----------
    matrices : (n, L, L) tensor
    symbols : (n, L) tensor
        The sequences; n is a multiple of 10.
    alphabet : int
        T.

    Returns
    -------
    dict
        For ``position_share`` and ``token_share``: for ``all`` entries and for those ``off_diagonal``, the share and
        its standard error, by the jackknife over ten blocks of sequences, which corrects the share's bias, too.  A
        diagonal entry attends from a symbol to itself, and thus tells places apart in a semantic matrix, too; off the
        diagonal a purely semantic one has no position share.  NaN where all entries are the same.
    """
    length = symbols.shape[1]
    places = torch.arange(length**2).reshape(length, length).expand(matrices.shape)
    groups = {
        "position_share": (places, length**2),
        "token_share": (symbols[:, :, None] * alphabet + symbols[:, None, :], alphabet**2),
    }
    counted = {
        "all": torch.ones(length, length, dtype=torch.bool),
        "off_diagonal": ~torch.eye(length, dtype=torch.bool),
    }
    values = matrices.double() - matrices.double().mean()
    shares: dict[str, dict[str, tuple[float, float]]] = {}
    for name, (group, size) in groups.items():
        shares[name] = {}
        for entries in HISTOGRAM_ENTRIES:
            kept = counted[entries].expand(matrices.shape)
            blocks = zip(values.chunk(_BLOCKS), group.chunk(_BLOCKS), kept.chunk(_BLOCKS), strict=True)
            shares[name][entries] = _jackknife([_Sums.of(a[k], g[k], size) for a, g, k in blocks])
    return shares


@dataclass(frozen=True, eq=False)
class _Sums:
    """What the variance of grouped values is made of.

    Attributes
    ----------
    counts, sums : (G) arrays
        Number and sum of the values of every group.
    squares : float
        Sum of the squares of all values.
    """

    counts: Array
    sums: Array
    squares: float

    @classmethod
    def of(cls, values: Tensor, groups: Tensor, size: int) -> _Sums:
        """Of values and the number of the group of each."""
        counts = torch.bincount(groups, minlength=size).double().numpy()
        sums = torch.bincount(groups, values, minlength=size).numpy()
        return cls(counts, sums, float((values**2).sum()))

    def plus(self, other: _Sums, sign: float = 1.0) -> _Sums:
        """Of both, or without the other."""
        counts, sums = self.counts + sign * other.counts, self.sums + sign * other.sums
        return _Sums(counts, sums, self.squares + sign * other.squares)

    @property
    def explained(self) -> float:
        """Share of the variance that lies between the groups; unbiased if all values are independent."""
        there = self.counts > 0
        count, groups = self.counts.sum(), there.sum()
        total = self.squares - self.sums.sum() ** 2 / count
        within = self.squares - (self.sums[there] ** 2 / self.counts[there]).sum()
        # rounding of equal entries is no variance
        if not total > count * np.finfo(np.float32).eps ** 2 or count <= groups:
            return math.nan
        return 1 - (within / (count - groups)) / (total / (count - 1))


def _jackknife(blocks: list[_Sums]) -> tuple[float, float]:
    """The share of the variance that groups explain, without its bias of first order, and its standard error."""
    whole = functools.reduce(_Sums.plus, blocks)
    without = np.array([whole.plus(block, -1.0).explained for block in blocks])
    n = len(blocks)
    share = n * whole.explained - (n - 1) * without.mean()
    return float(share), float(np.sqrt((n - 1) * without.var()))


def _symbols(sizes: HistogramSizes, seed: int, sequences: Sequence[Sequence[int]] | None) -> NDArray[np.int64]:
    """The given sequences, or random ones."""
    if sequences is None:
        return generator(seed, 0, Stream.EXAMPLES).integers(sizes.alphabet, size=(_EXAMPLES, sizes.length))
    letters = f" (A to {chr(ord('A') + sizes.alphabet - 1)})" if sizes.alphabet <= 26 else ""
    wanted = f"{sizes.length} symbols between 0 and {sizes.alphabet - 1}{letters}"
    try:
        rows = [[operator.index(symbol) for symbol in sequence] for sequence in sequences]
    except TypeError:
        raise ProblemError("sequence", f"sequence must be {wanted}; give a list of such lists.") from None
    for row in rows:
        if len(row) != sizes.length or not all(0 <= symbol < sizes.alphabet for symbol in row):
            raise ProblemError("sequence", f"sequence must be {wanted}, not {','.join(map(str, row))}.")
    if not rows:
        raise ProblemError("sequence", "sequence must be given at least once, or left out.")
    return np.array(rows, dtype=np.int64)


def _measured(trained: Trained, symbols: NDArray[np.int64], epochs: int) -> dict[str, NDArray[Any]]:
    """Every variable of the schema, over run and its own dimensions."""
    runs, sizes = trained.runs, trained.sizes
    drawn = [
        generator(trained.seed, run, Stream.SCORE).integers(sizes.alphabet, size=(_BLOCKS * _BLOCK, sizes.length))
        for run in range(runs)
    ]
    random = torch.from_numpy(np.stack(drawn))
    begin = trained.initial
    rows: list[dict[str, Array]] = []
    noisy = np.full(runs, np.nan)
    for name in HISTOGRAM_STAGES:
        if name not in trained.stages:
            rows.append({})
            continue
        state = trained.stages[name]
        full = state["parameters"]
        if name == "unfrozen":
            _, test = draw_sequences(sizes, trained.seed, runs, torch.device("cpu"))
            noisy = test_errors(trained.noisy(), test)[1].numpy()
        both = distances(begin, full)
        row: dict[str, Any] = {"distance_sum": both[0], "distance_l2": both[1]}
        with torch.no_grad():
            given = torch.from_numpy(symbols).expand(runs, -1, -1)
            row["attention"] = attention(full, given).double().numpy()
            matrices = attention(full, random)
        shares = [variance_shares(a, x, sizes.alphabet) for a, x in zip(matrices, random, strict=True)]
        for share in ("position_share", "token_share"):
            pairs = np.array([[one[share][entries] for entries in HISTOGRAM_ENTRIES] for one in shares])
            row[share], row[f"{share}_stderr"] = pairs[..., 0], pairs[..., 1]
        for record in ("training_loss", "test_loss", "accuracy"):
            along = state[record].numpy()
            padded = np.full((runs, epochs), np.nan)
            padded[:, : along.shape[1]] = along
            row[f"epoch_{record}"] = padded
        row["accuracy"], row["test_loss"] = state["accuracy"][:, -1].numpy(), state["test_loss"][:, -1].numpy()
        row["seconds"] = np.full(runs, state["seconds"] / runs)
        diverged = state["diverged"].numpy() >= 0
        row["status"] = np.where(diverged, RunStatus.diverged, RunStatus.completed)
        rows.append(row)
        begin = full
    pattern = rows[0]
    columns: dict[str, NDArray[Any]] = {"noisy_accuracy": noisy}
    for variable, values in pattern.items():
        missing = np.full(values.shape, RunStatus.not_computed if variable == "status" else np.nan)
        columns[variable] = np.stack([row.get(variable, missing) for row in rows], 1)
    columns["status"] = columns["status"].astype(np.int8)
    return columns


def histogram_text(ds: xr.Dataset, width: int | None = None) -> str:
    """The table of a report: means and standard deviations over the runs.

    Parameters
    ----------
    ds : xarray.Dataset
        Of `histogram_dataset`.
    width : int or None
        Columns of the terminal; None for no limit.

    Returns
    -------
    str
        Runs that diverged are counted and left out of the means.
    """
    names = {
        "accuracy": "accuracy",
        "noisy": "after noise",
        "distance_sum": "distance, sum",
        "distance_l2": "distance, L2",
        "position_share": "position share",
        "token_share": "token share",
        "seconds": "s per run",
    }
    rows = []
    for mechanism in ds["mechanism"].to_numpy():
        for stage in HISTOGRAM_STAGES:
            here = ds.sel(mechanism=mechanism, stage=stage)
            status = here["status"].to_numpy()
            if (status == RunStatus.not_computed).all():
                continue
            here = here.isel(run=status == RunStatus.completed)
            off = here.sel(entries="off_diagonal")
            values = {name: here[name] for name in ("accuracy", "distance_sum", "distance_l2", "seconds")}
            values |= {name: off[name] for name in ("position_share", "token_share")}
            if stage == "unfrozen":
                values["noisy"] = here["noisy_accuracy"]
            cells = [_mean_and_deviation(values[name].to_numpy()) if name in values else "–" for name in names]
            diverged = int((status == RunStatus.diverged).sum())
            count = f"{here.sizes['run']}" + (f" ({diverged} diverged)" if diverged else "")
            rows.append((str(mechanism), stage, count, *cells))
    table = Table(("mechanism", "stage", "runs", *names.values()), tuple(rows), labels=2, left=(0, 1))
    notes = (
        "Accuracy per test token, at the end of each stage; means and standard deviations over the runs.",
        "Distances: frozen, from initialisation; unfrozen, from the frozen solution, noise included.",
        "Shares of the variance of the attention entries off the diagonal.",
    )
    return "\n".join([table.text(width), "", *(wrapped(note, width) for note in notes)])


def _mean_and_deviation(values: Array) -> str:
    if not len(values) or not np.isfinite(values).all():
        return "–"
    mean = float(values.mean())
    if len(values) == 1:
        return f"{mean:.5g}"
    deviation = float(values.std(ddof=1))
    if deviation < 1e-5:
        return f"{mean:.5g}"
    places = max(0, 1 - math.floor(math.log10(deviation)))
    return f"{mean:.{places}f} ± {deviation:.{places}f}"
