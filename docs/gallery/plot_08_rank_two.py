"""
A student of rank two
=====================

On the mixed branch one column of the student is semantic and the other positional.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem().with_fields({"student.rank": 2, "integration.rule": "sobol", "integration.nodes": 32})
alphas = np.linspace(0.6, 2.2, 5).tolist()
branches = ["semantic", "positional", "mixed"]
theory = ap.sweep(problem, alpha=alphas, branch=branches, workers=1)

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for branch, style in zip(branches, ("o-", "s--", "D-."), strict=True):
    line = theory.sel(branch=branch)
    line = line.where(line.status == 0)  # leave out points that did not converge
    axes.errorbar(line.alpha, 1e3 * line.training_loss, 1e3 * line.training_loss_stderr, fmt=style, label=branch)
axes.set(xlabel=r"$\alpha$", ylabel=r"$10^3 \epsilon_t$")
axes.legend()
