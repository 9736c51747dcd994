"""Texts of shipped runs along alpha, which the docs cite: their numbers, and where training parts from the theory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import attnphase as ap

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


@pytest.mark.parametrize("name", PARTED)
def test_texts_of_shipped_runs_are_theirs_and_say_what_the_docs_say(name):
    """Means of Appendix E.3, where training parts from the theory, and how many runs stayed on their branch."""
    runs = ap.load_dataset(SHIPPED / f"{name}-runs.nc")
    compared, ended = (SHIPPED / f"{name}.txt").read_text(encoding="utf-8").split("Where not all runs stayed")
    starts, parted, seen = list(map(str, runs["start"].to_numpy())), dict[str, list[float]](), set()
    for part in compared.split("\n\n"):
        if (head := re.match(r"(\w+), alpha = ([\d.]+)", part)) is None:
            continue
        start, alpha = head[1], float(head[2])
        seen.add((start, alpha))
        block = {words[0]: words[1:] for words in map(str.split, part.splitlines()[2:])}
        for quantity in ("training_loss", "test_error", "weight_norm"):
            values = runs[quantity].sel(start=start, alpha=alpha)
            means, errors = values.mean("seed").to_numpy(), values.std("seed", ddof=1).to_numpy() / np.sqrt(24)
            for text, mean, error in zip((block[quantity][1], block[quantity][3]), means, errors, strict=True):
                said, digits = text.rstrip(")").split("(")
                unit = 10.0 ** -len(said.partition(".")[2])
                assert abs(float(said) - mean) <= 0.501 * unit
                assert abs(int(digits) * unit - error) <= 0.501 * unit
        if max(abs(float(words[6].split("(")[0])) for words in block.values()) > 3:
            parted.setdefault(start, []).append(alpha)
    assert seen == {(start, alpha) for start in starts for alpha in ALPHAS}
    assert parted == PARTED[name]
    stayed = dict.fromkeys(seen, 24)
    for start, alpha, d, end, count, *_ in map(str.split, ended.splitlines()[3:]):
        stayed[start, float(alpha)] -= int(count) if d == "1000" and end != start else 0
    for start in starts:
        assert [stayed[start, alpha] for alpha in ALPHAS] == STAYED.get((name, start), [24] * 7), start
