"""Stated standard errors against the scatter of seeds, and seeds that contradict one another: `docs/trust.md`.

    python benchmarks/seeds.py [--nodes 64] [--seeds 16] [--only mixture]

solves 31 points of ten problems, with so many seeds each. A number is the scatter of the seeds in units of the stated
error, by root mean squares over seeds and entries, with its own standard error by the jackknife; `+` and `-` mark what
lies more than that above 1.5 or below 0.67: errors stated too small, or too large; `?` is a number that hangs on one
seed. No two points have a seed in common, so that chance is not the same at all of them. How many seeds have the branch
(on), have it not (merged) and cannot tell (open) stands beside it, and how many did not converge. The last two are left
out: near an onset or a fold first-order errors do not hold.

    python benchmarks/seeds.py --identity [--problems 20] [--seeds 8]

draws problems, looks by bisection for an alpha at which two seeds differ or cannot tell, and counts how many of all
have the branch and have it not: both at one point are a contradiction.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import attnphase as ap
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity

SETTINGS = SolverSettings(threads=1, tolerance=1e-6, stability=False)
QUANTITIES = ("q", "V", "m", "theta", "test_error", "training_loss")
LARGEST = 1.5
SEEDS_APART = 1000

THREE: dict[str, Any] = {
    "tokens.length": 3,
    "positions.kind": "gram",
    "positions.gram": [[1, -0.5, -0.5], [-0.5, 1, -0.5], [-0.5, -0.5, 1]],
    "teacher.mixing": [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.3, 0.2, 0.5]],
}
MIXTURE: dict[str, Any] = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
    "tokens.law": {"kind": "same", "probability": 0.8},
}
SPARSE: dict[str, Any] = {
    "regularizer.kind": "elastic-net",
    "regularizer.strength": 0.01,
    "regularizer.ridge": 0.002,
}
UNTIED: dict[str, Any] = {"student.tied": False}
TWO: dict[str, Any] = {"student.rank": 2, "teacher.rank": 2}

# name: fields beside the paper's problem at omega = 0.3, branch, sample complexities
POINTS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    "semantic": ({}, "semantic", (0.85, 1.24, 2.0)),
    "positional": ({}, "positional", (0.5, 1.0, 2.0)),
    "onset": ({"teacher.omega": 0.4}, "semantic", (0.95, 1.05, 1.2)),
    "end": ({"teacher.omega": 0.1}, "positional", (0.7, 1.0, 1.2, 1.3)),
    "elastic net": (SPARSE, "semantic", (1.1, 1.5, 2.2)),
    "untied": (UNTIED, "semantic", (0.9, 1.4, 2.0)),
    "mixture": (MIXTURE, "semantic", (0.8, 1.2, 2.0)),
    "three tokens": (THREE, "semantic", (0.7, 0.9, 1.6)),
    "two variances": ({"tokens.sigma": [0.4, 0.7]}, "positional", (0.6, 1.1, 1.7)),
    "rank 2": (TWO, "semantic", (1.2, 1.7, 2.5)),
}
SHAPES: tuple[dict[str, Any], ...] = ({}, UNTIED, {"student.causal": True, "teacher.causal": True}, THREE, TWO)


def solved(problem: ap.Problem, alpha: float, branch: str, seeds: Sequence[int], nodes: int) -> list[BranchPoint]:
    """The point from one seed after another, each from the branch's own start."""
    fields = {"integration.rule": "sobol", "integration.nodes": nodes}
    problems = [problem.with_fields({**fields, "integration.seed": seed}) for seed in seeds]
    return [solve_point(one, alpha, branch, settings=SETTINGS) for one in problems]


def ratio(points: Sequence[BranchPoint], name: str) -> tuple[float, float]:
    """Scatter over stated error and its standard error; NaN where nothing scatters and nothing is stated.

    The scatter is about the seeds' mean. Where some have merged, and so an order parameter of zero without an error, it
    is that of the others about zero.
    """
    values, errors = (np.stack([np.ravel(getattr(point, of)[name]) for point in points]) for of in ("values", "errors"))
    # a sign or an exchange of tokens is no scatter
    values, sure = np.abs(values), ~errors.any(axis=1)
    if sure.all():
        return (np.nan, np.nan) if not np.ptp(values, axis=0).any() else (np.inf, 0.0)
    about = values[sure].mean(axis=0) if sure.any() else None
    values, errors = values[~sure], errors[~sure]
    count = len(values)

    def of_those(kept: np.ndarray) -> float:
        chosen = values[kept]
        squares = chosen.var(axis=0, ddof=1) if about is None else ((chosen - about) ** 2).mean(axis=0)
        return float(np.log(squares.sum() / (errors[kept] ** 2).mean(axis=0).sum()) / 2)

    everyone = np.arange(count)
    found = float(np.exp(of_those(everyone)))
    if count == 1:
        return found, np.inf
    left_out = np.array([of_those(everyone != i) for i in everyone])
    return found, found * float(np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum()))


def mark(found: float, error: float) -> str:
    """Whether the stated errors are off by more than the factor, beyond the ratio's own error."""
    if not np.isfinite(error):
        return "?"
    return "+" if found - LARGEST > error else "-" if 1 / LARGEST - found > error else ""


def cell(found: float, error: float) -> str:
    """A ratio with its error in the last digits."""
    if np.isnan(found):
        return ""
    return f"{found:.2f}" + (f"({100 * error:.0f})" if np.isfinite(error) else "") + mark(found, error)


def counted(points: Sequence[BranchPoint]) -> str:
    """On the branch, merged, not decided, as three numbers."""
    seen = Counter(point.on_branch for point in points)
    return "/".join(str(seen[one]) for one in (Identity.on_branch, Identity.merged, Identity.not_decided))


def errors(nodes: int, seeds: int, only: str | None) -> None:
    """Solve and print a line for every point."""
    print("problem | alpha | on/merged/open | failed | " + " | ".join(QUANTITIES))
    ratios = []
    for place, (name, (fields, branch, alphas)) in enumerate(POINTS.items()):
        if only not in (None, name):
            continue
        problem = ap.Problem.paper(omega=0.3).with_fields(fields)
        for number, alpha in enumerate(alphas):
            first = SEEDS_APART * (len(alphas) * place + number)
            every = solved(problem, alpha, branch, range(first, first + seeds), nodes)
            points = [point for point in every if point.status is Status.converged]
            sure = [point for point in points if point.on_branch is not Identity.not_decided]
            found = [ratio(sure, quantity) if len(sure) > 1 else (np.nan, np.nan) for quantity in QUANTITIES]
            ratios += [one for one in found if not np.isnan(one[0])]
            cells = [cell(*one) for one in found]
            failed = len(every) - len(points)
            print(" | ".join([name, f"{alpha:g}", counted(points), str(failed), *cells]), flush=True)
    values = np.array([r for r, _ in ratios])
    large, small = (sum(mark(*one) == sign for one in ratios) for sign in "-+")
    print(f"{len(values)} numbers from {values.min():.2f} to {values.max():.2f}, median {np.median(values):.2f}")
    print(f"below {1 / LARGEST:.2f}: {(values < 1 / LARGEST).sum()}, {large} of them beyond their error")
    print(f"above {LARGEST:.2f}: {(values > LARGEST).sum()}, {small} of them beyond their error")


def drawn(number: int) -> tuple[ap.Problem, str]:
    """A random problem and one of its branches, the same for the same number."""
    generator = np.random.default_rng([14, number])
    fields = {
        "teacher.omega": round(float(generator.uniform(0.05, 0.5)), 3),
        "tokens.sigma": round(float(generator.uniform(0.35, 0.6)), 3),
        "regularizer.strength": round(float(np.exp(generator.uniform(np.log(0.005), np.log(0.05)))), 4),
    }
    branch = ("semantic", "positional")[number % 2]
    return ap.Problem.paper(omega=0.3).with_fields({**SHAPES[number % len(SHAPES)], **fields}), branch


def near_an_end(problem: ap.Problem, branch: str, nodes: int) -> float:
    """An alpha at which two seeds differ or cannot tell, by bisection between merged and on the branch."""
    low, high = 0.01, 8.0
    for _ in range(9):
        alpha = float(np.sqrt(low * high))
        seen = {point.on_branch for point in solved(problem, alpha, branch, range(2), nodes)}
        if seen == {Identity.on_branch}:
            high = alpha
        elif seen == {Identity.merged}:
            low = alpha
        else:
            return alpha
    return float(np.sqrt(low * high))


def identities(problems: int, seeds: int, nodes: int) -> None:
    """Draw, bisect and print a line for every problem."""
    print("problem | branch | alpha | on/merged/open | failed")
    contradictions = 0
    for number in range(problems):
        problem, branch = drawn(number)
        alpha = near_an_end(problem, branch, nodes)
        every = solved(problem, alpha, branch, range(seeds), nodes)
        points = [point for point in every if point.status is Status.converged]
        seen = {point.on_branch for point in points}
        both = {Identity.on_branch, Identity.merged} <= seen
        contradictions += both
        cells = [str(number), branch, f"{alpha:.4g}", counted(points), str(len(every) - len(points))]
        print(" | ".join(cells) + (" !" if both else ""), flush=True)
    print(f"{contradictions} of {problems} problems with seeds that contradict one another")


def main() -> None:
    """Read the options, and do one of the two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=64, help="Sobol points in each of 16 replicates")
    parser.add_argument("--seeds", type=int, help="16, or 8 with --identity")
    parser.add_argument("--only", choices=POINTS, metavar="PROBLEM", help=f"one of {', '.join(POINTS)}")
    parser.add_argument("--identity", action="store_true", help="contradictions of seeds at random problems")
    parser.add_argument("--problems", type=int, default=20, help="how many are drawn")
    asked = parser.parse_args()
    if asked.identity:
        identities(asked.problems, asked.seeds or 8, asked.nodes)
    else:
        errors(asked.nodes, asked.seeds or 16, asked.only)


if __name__ == "__main__":
    main()
