"""
Tokens of a Gaussian mixture
============================

Two clusters have different means, and both tokens share their cluster with a given probability. The figure shows how
this correlation changes the test error.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

clusters = [{"sigma": 0.5, "mean": [0.7]}, {"sigma": 0.4, "mean": [-0.7]}]
fields = {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": clusters}
fields |= {"integration.rule": "sobol", "integration.nodes": 16}
alphas = np.linspace(0.9, 2.5, 5).tolist()

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for probability, style in ((0.5, "o-"), (0.8, "s--"), (1.0, "D-.")):
    law = {"kind": "same", "probability": probability}
    problem = ap.Problem().with_fields(fields | {"tokens.law": law})
    line = ap.sweep(problem, alpha=alphas, branch="semantic", workers=1).squeeze()
    line = line.where(line.status == 0)  # leave out points that did not converge
    axes.errorbar(alphas, 1e3 * line.test_error, 1e3 * line.test_error_stderr, fmt=style, label=f"same: {probability}")
axes.set(xlabel=r"$\alpha$", ylabel=r"$10^3 \epsilon_g$")
axes.legend(title="one cluster for both tokens")
