"""
Sparse weights
==============

Share of weights that are not zero, and test error, as functions of the strength of a lasso.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem().with_fields({"regularizer.kind": "lasso", "integration.rule": "sobol", "integration.nodes": 32})
strengths = np.geomspace(0.002, 0.0125, 5).tolist()
line = ap.sweep(problem, alpha=2.0, branch="semantic", fields={"regularizer.strength": strengths}, workers=1).squeeze()
line = line.where(line.status == 0)  # leave out points that did not converge

figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
for ax, name, label in zip(axes, ("density", "test_error"), (r"$P(w \neq 0)$", r"$\epsilon_g$"), strict=True):
    ax.errorbar(strengths, line[name], line[f"{name}_stderr"], fmt="o-")
    ax.set(xlabel=r"$\lambda$", ylabel=label, ylim=(0, None))
