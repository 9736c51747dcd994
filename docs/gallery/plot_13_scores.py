"""
Other scores
============

Test error of a student with the teacher's softmax, and of students with other scores.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 32})
alphas = np.linspace(1.0, 2.5, 5).tolist()

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
for score, style in (("softmax", "o-"), ("linear", "s--"), ("softmax1", "D-."), ("tanh(z)", "^:")):
    line = ap.sweep(problem.with_fields({"student.score": score}), alpha=alphas, branch="semantic", workers=1).squeeze()
    line = line.where(line.status == 0)  # leave out points that did not converge
    axes.errorbar(alphas, 1e3 * line.test_error, 1e3 * line.test_error_stderr, fmt=style, label=score)
axes.set(xlabel=r"$\alpha$", ylabel=r"$10^3 \epsilon_g$", yscale="log", ylim=(0.6, 3000))
axes.legend(ncols=2)
