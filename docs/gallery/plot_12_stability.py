"""
Where replica symmetry fails
============================

The overlap gap along both branches, where they exist, at two strengths of the ridge. Above 0.2 training departs from
the theory.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
alphas = np.linspace(0.4, 2.0, 9).tolist()

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for strength, style in ((0.01, "-"), (0.003, "--")):
    grid = ap.sweep(problem.with_fields({"regularizer.strength": strength}), alpha=alphas, workers=1)
    for branch, colour in (("semantic", "#0072B2"), ("positional", "#D55E00")):
        line = grid.sel(branch=branch)
        line = line.where((line.status == 0) & (line.on_branch != 1))  # 1: merged with the uninformed point
        label = rf"{branch}, $\lambda$ = {strength}"
        axes.errorbar(alphas, line.overlap_gap, line.overlap_gap_stderr, ls=style, color=colour, label=label)
axes.axhline(0.2, color="0.3", lw=0.8)
axes.set(xlabel=r"$\alpha$", ylabel="overlap gap", ylim=(0, 1.1))
axes.legend(fontsize=8)
