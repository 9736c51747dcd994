"""How well the overlap gap tells where published training departs from the theory: `docs/stability.md`.

    python benchmarks/departures.py [--nodes 1024]

solves the 250 points of `gradient_descent_other` and `fig2_gradient_descent`, in about a minute.
A run departs where its overlap (theta from the semantic start, m from the positional one), its test error or its
training loss differs from the theory's by more than two of its standard deviations and a tenth of its value: what
d = 1000 and unfinished training are allowed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import rankdata

import attnphase as ap
from attnphase.data.trust import TRUSTED_GAP
from attnphase.reference import read_reference
from attnphase.state_evolution.branches import BranchName

MIXING = {"standard": [[0.6, 0.4], [0.4, 0.6]], "second": [[0.3, 0.7], [0.8, 0.2]]}
SETTING: tuple[str, ...] = ("mixing", "sigma", "omega", "ridge")
DEVIATIONS, ALLOWED = 2.0, 0.1


def tables() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Name, setting and runs of one line of points after another."""
    papers = {"mixing": "standard", "sigma": 0.5, "omega": 0.3, "ridge": 0.01}
    yield "fig2", papers, read_reference("fig2_gradient_descent")
    other = read_reference("gradient_descent_other")
    for values in dict.fromkeys(map(tuple, other[list(SETTING)].tolist())):
        here = np.logical_and.reduce([other[name] == value for name, value in zip(SETTING, values, strict=True)])
        yield ", ".join(map(str, values)), dict(zip(SETTING, values, strict=True)), other[here]


def departures(runs: Any, ds: Any, overlap: str) -> Any:
    """Which runs depart from the theory."""
    found = np.zeros(len(runs), dtype=bool)
    for name in (overlap, "test_error", "training_loss"):
        theory = abs(ds[name])
        inner = [dim for dim in theory.dims if dim != "alpha"]
        allowed = DEVIATIONS * runs[f"{name}_sd"] + ALLOWED * abs(runs[name])
        found |= abs(theory.mean(inner).to_numpy() - abs(runs[name])) > allowed
    return found


def area(score: Any, truth: Any) -> float:
    """Probability that a run that departs has the larger score of two."""
    positive, ranks = int(truth.sum()), rankdata(score)
    return (ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive))


def main() -> None:
    """Solve, count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=1024, help="Sobol points in each of 16 replicates")
    nodes = parser.parse_args().nodes
    rows = []
    print("setting | start | points | depart | of these flagged | others flagged | gap from .. to")
    for name, setting, runs in tables():
        problem = ap.Problem.paper(omega=setting["omega"]).with_fields(
            {
                "tokens.sigma": setting["sigma"],
                "teacher.mixing": MIXING[setting["mixing"]],
                "regularizer.strength": setting["ridge"],
                "integration.rule": "sobol",
                "integration.nodes": nodes,
            }
        )
        pairs: tuple[tuple[BranchName, str], ...] = (("semantic", "theta"), ("positional", "m"))
        for start, overlap in pairs:
            line = np.sort(runs[runs["start"] == start], order="alpha")
            ds = ap.sweep(problem, line["alpha"], branch=start).isel(branch=0)
            gap, departs = ds["overlap_gap"].fillna(1.0).to_numpy(), departures(line, ds, overlap)
            flagged = gap > TRUSTED_GAP
            counts = [len(line), departs.sum(), (flagged & departs).sum(), (flagged & ~departs).sum()]
            print(" | ".join([name, start, *map(str, counts), f"{gap.min():.2f} .. {gap.max():.2f}"]), flush=True)
            rows.append((name == "fig2", gap, departs))
    for title, held_out in (("other settings", False), ("fig2, not used for the threshold", True)):
        gap, departs = (np.concatenate([row[i] for row in rows if row[0] == held_out]) for i in (1, 2))
        flagged = gap > TRUSTED_GAP
        print(
            f"{title}: {(flagged & departs).sum()} of {departs.sum()} departures flagged, "
            f"{(flagged & ~departs).sum()} of {(~departs).sum()} others; area under the curve {area(gap, departs):.3f}"
        )


if __name__ == "__main__":
    main()
