"""Seconds and accuracy of the published numerical recipe and of this package, side by side in one run.

    python benchmarks/compare.py

For each of the two settings the recipe in ``published_recipe.py`` (one local search per node and conjugate) runs to its
own stopping rule, then `attnphase.solve_point` with the requested standard error. Biases are distances to the converged
values in ``data/reference/converged.csv``. Compilation is done beforehand and timed separately.
"""

import argparse
import time

import numpy as np
import published_recipe
from rich.console import Console
from rich.table import Table

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.kernels.compiler import kernels_for
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference

SETTINGS = ((2.0, "semantic", 1e-3), (1.24, "positional", 2e-3))
QUANTITIES = ("q", "V", "m", "theta")
REPEATS = 3


def published(alpha, branch, maps):
    """Seconds, maps and (q, V, m, theta) of the recipe, with its own damping and stopping rule."""
    x, begin = np.array(published_recipe.STARTS[branch]), time.perf_counter()
    done = 0
    while done < maps:
        done += 1
        new = np.array(published_recipe.state_evolution_map(alpha, *x))
        moved = np.abs(new - x)[[0, 2, 3]].max()
        if moved < 1e-4:
            break
        x = 0.8 * x + 0.2 * new
    return time.perf_counter() - begin, done, x


def ours(problem, alpha, branch, threads):
    """Least seconds of a few repeats, and the point."""

    def timed():
        begin = time.perf_counter()
        point = solve_point(problem, alpha, branch, settings=SolverSettings(threads=threads))
        return time.perf_counter() - begin, point

    runs = [timed() for _ in range(REPEATS)]
    return min(seconds for seconds, _ in runs), runs[-1][1]


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--maps", type=int, default=300, help="stop the published recipe after this many maps")
    parser.add_argument("--threads", type=int, help="threads of our solver (default: all cores)")
    args = parser.parse_args()
    begin = time.perf_counter()
    kernels_for(Problem.paper(omega=0.3))
    console = Console(width=150)
    console.print(f"kernels ready after {time.perf_counter() - begin:.1f} s (compiled, or read from the cache)")
    table = Table(
        "setting", "solver", "seconds", "maps", "nodes", *QUANTITIES, "worst bias in q, V", "worst stderr in q, V"
    )
    ratios = []
    for alpha, branch, requested in SETTINGS:
        reference = read_reference("converged")
        row = reference[(reference["alpha"] == alpha) & (reference["branch"] == branch)][0]
        truth = np.array([row[name] for name in QUANTITIES])
        problem = Problem.paper(omega=0.3).with_fields({"integration.standard_error": requested})

        slow, maps, x = published(alpha, branch, args.maps)
        bias = np.abs(x / np.where(truth == 0, np.inf, truth) - (truth != 0))[:2].max()
        setting = f"alpha = {alpha:g}, {branch}"
        table.add_row(
            setting, "published", f"{slow:.2f}", str(maps), "144", *(f"{v:.5g}" for v in x), f"{bias:.2%}", "not given"
        )

        fast, point = ours(problem, alpha, branch, args.threads)
        values = np.array([np.ravel(point.values[name])[0] for name in QUANTITIES])
        errors = np.array([np.ravel(point.errors[name])[0] for name in QUANTITIES])
        own_bias = np.abs(values / np.where(truth == 0, np.inf, truth) - (truth != 0))[:2].max()
        cells = [f"{v:.5g}({e:.0e})" if e > 0 else f"{v:.5g}" for v, e in zip(values, errors, strict=True)]
        own_error = (errors[:2] / np.abs(values[:2])).max()
        nodes = f"{point.nodes} {point.rule}"
        table.add_row(
            setting,
            "attnphase",
            f"{fast:.3f}",
            str(point.iterations),
            nodes,
            *cells,
            f"{own_bias:.2%}",
            f"{own_error:.2%}",
        )
        ratios.append(
            f"{setting}: {slow / fast:.0f} times faster, bias {bias / max(own_bias, 1e-12):.0f} times smaller, "
            f"standard error {bias / own_error:.0f} times below the published bias"
        )
    console.print(table)
    for line in ratios:
        console.print(line)


if __name__ == "__main__":
    main()
