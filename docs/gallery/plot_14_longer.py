"""
Longer sentences
================

Overlap of the last token with three tokens instead of two, with and without causal masks of teacher and student.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem().with_fields({"tokens.length": 3, "integration.rule": "sobol", "integration.nodes": 32})
alphas = np.linspace(0.4, 1.6, 5).tolist()

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for causal, style in ((False, "o-"), (True, "s--")):
    one = problem.with_fields({"teacher.causal": causal, "student.causal": causal})
    line = ap.sweep(one, alpha=alphas, branch="semantic", workers=1).squeeze()
    line = line.where(line.status == 0)  # leave out points that did not converge
    size = np.abs(line.theta.isel(token=-1))
    axes.errorbar(alphas, size, line.theta_stderr.isel(token=-1), fmt=style, label="causal" if causal else "all tokens")
axes.set(xlabel=r"$\alpha$", ylabel=r"$|\theta|$ of the last token")
axes.legend()
