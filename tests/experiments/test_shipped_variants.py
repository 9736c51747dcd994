"""The shipped runs of Appendix E.3 along alpha, d = 500 and 1000: their texts are theirs, and say what the docs say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.data.text import format_value
from attnphase.data.variables import RunStatus

SHIPPED = Path(__file__).parents[2] / "data" / "experiments"
ALPHAS = np.linspace(0.5, 2.0, 7)
# where a start's limits of large d part from the theory of its branch by more than 3 standard errors
PARTED = {
    "correlated": {"semantic": [0.5, 0.75]},
    "rank2": {"semantic": list(ALPHAS), "positional": [1.0, 1.25, 1.5, 1.75, 2.0], "mixed": [0.5]},
    "untied": {"semantic": [0.5, 0.75, 1.0]},
    "values": {"semantic": list(ALPHAS), "positional": [1.25, 1.5, 1.75, 2.0]},
}
# of 24 runs at d = 1000, how many stayed, where not all did at every alpha
STAYED = {
    ("correlated", "semantic"): [4, 5, 12, 21, 23, 24, 24],
    ("untied", "semantic"): [2, 3, 6, 12, 22, 24, 24],
    ("rank2", "positional"): [24, 4, 5, 3, 0, 0, 0],
    ("rank2", "semantic"): [0] * 7,
    ("values", "semantic"): [13, 20, 24, 24, 24, 24, 24],
}


def read(name: str) -> tuple[xr.Dataset, dict[tuple[str, float], dict[str, list[str]]], list[list[str]]]:
    """Runs; the words of each quantity's line by start and alpha; those of the lines that say where runs ended."""
    runs = ap.load_dataset(SHIPPED / f"{name}-runs.nc")
    compared, ended = (SHIPPED / f"{name}.txt").read_text(encoding="utf-8").split("Where not all runs stayed")
    blocks: dict[tuple[str, float], dict[str, list[str]]] = {}
    for part in compared.split("\n\n"):
        head = re.match(r"(\w+), alpha = ([\d.]+)", part)
        if head is not None:
            lines = (line.split() for line in part.splitlines()[2:])
            blocks[head[1], float(head[2])] = {words[0]: words[1:] for words in lines}
    return runs, blocks, [line.split() for line in ended.splitlines()[3:]]


def number(word: str) -> float:
    """A number without its error."""
    return float(word.split("(")[0])


@pytest.mark.parametrize("name", PARTED)
def test_texts_are_those_of_the_shipped_runs(name):
    runs, blocks, _ = read(name)
    np.testing.assert_allclose(runs["alpha"], ALPHAS)
    assert runs["dimension"].to_numpy().tolist() == [500, 1000]
    assert runs.sizes["seed"] == 24
    assert (runs["status"] == RunStatus.converged).all()
    starts = list(map(str, runs["start"].to_numpy()))
    assert set(blocks) == {(start, alpha) for start in starts for alpha in ALPHAS}
    for (start, alpha), block in blocks.items():
        for quantity in ("training_loss", "test_error", "weight_norm"):
            values = runs[quantity].sel(start=start, alpha=alpha)
            means, errors = values.mean("seed"), values.std("seed", ddof=1) / np.sqrt(24)
            written = [format_value(float(mean), float(error)) for mean, error in zip(means, errors, strict=True)]
            assert [block[quantity][1], block[quantity][3]] == written


@pytest.mark.parametrize("name", PARTED)
def test_training_parts_from_the_theory_where_the_docs_say_so_only(name):
    _, blocks, _ = read(name)
    parted: dict[str, list[float]] = {}
    for (start, alpha), block in blocks.items():
        limits = [abs(number(words[6])) for words in block.values()]
        if max(limits) > 3:
            parted.setdefault(start, []).append(alpha)
    assert parted == PARTED[name]


@pytest.mark.parametrize("name", PARTED)
def test_as_many_runs_stayed_as_the_docs_say(name):
    runs, _, ended = read(name)
    counted = {(words[0], float(words[1]), words[3]): int(words[4]) for words in ended if words[2] == "1000"}
    for start in map(str, runs["start"].to_numpy()):
        left = [sum(n for key, n in counted.items() if key[:2] == (start, a) and key[2] != start) for a in ALPHAS]
        assert [24 - count for count in left] == STAYED.get((name, start), [24] * 7), start


@pytest.mark.parametrize("name", PARTED)
def test_the_ends_of_shipped_runs_are_counted_right(name):
    """By the text's own theory, branch by branch: each run belongs to the nearest pair of sizes of m and theta."""
    runs, blocks, ended = read(name)
    counted = {(words[0], float(words[1]), int(words[2]), words[3]): int(words[4]) for words in ended}
    starts = list(map(str, runs["start"].to_numpy()))
    for start, alpha, d in {key[:3] for key in counted}:
        here = runs.sel(start=start, alpha=alpha, dimension=d)
        points = {}
        for branch in starts:
            sums = [
                np.sqrt(
                    sum(number(words[0]) ** 2 for entry, words in blocks[branch, alpha].items() if entry[:2] == kind)
                )
                for kind in ("m[", "th")
            ]
            points[branch] = np.array(sums)
        sizes = np.stack([np.sqrt((here[kind].to_numpy().reshape(24, -1) ** 2).sum(axis=1)) for kind in ("m", "theta")])
        away = np.stack([np.linalg.norm(sizes.T - point, axis=1) for point in points.values()])
        nearest = np.array(starts)[away.argmin(axis=0)]
        for branch in starts:
            assert counted.get((start, alpha, d, branch), 0) == (nearest == branch).sum(), (start, alpha, d, branch)
