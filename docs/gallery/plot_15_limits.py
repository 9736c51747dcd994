"""
What is possible, and what training does
========================================

Test error of the trained student on both branches, where they exist, of the best linear predictor, and of a
Bayes-optimal learner. The last knows the model but not the teacher's weights. From α = 1/2 on it recovers all of
them.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem.paper(omega=0.3)
coarse = problem.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
theory = ap.sweep(coarse, alpha=np.linspace(0.2, 2.0, 10).tolist(), workers=1)
alphas = [0.1, 0.2, 0.3, 0.4, 0.48, 0.51, 2.0]
optimal = ap.bayes_optimal(
    problem, alpha=alphas, start="uninformed", thresholds=True, settings=ap.SolverSettings(max_nodes=4096)
)

figure, axes = plt.subplots(figsize=(5.4, 3.4), layout="constrained")
for branch, colour, style in (("semantic", "#0072B2", "o-"), ("positional", "#D55E00", "s--")):
    line = theory.sel(branch=branch)
    line = line.where((line.status == 0) & (line.on_branch != 1))  # 1: merged with the uninformed point
    label = f"trained, {branch}"
    axes.errorbar(
        line.alpha, 1e3 * line.test_error, 1e3 * line.test_error_stderr, fmt=style, color=colour, label=label, ms=4
    )
axes.axhline(1e3 * float(theory.linear_test_error.values.ravel()[0]), color="0.4", ls=":", label="linear predictor")
best = optimal.squeeze()
axes.errorbar(
    best.alpha, 1e3 * best.test_error, 1e3 * best.test_error_stderr, fmt="D-", color="k", label="Bayes-optimal", ms=4
)
axes.axvline(float(optimal.weak_recovery), color="0.6", lw=0.8)
axes.set(xlabel=r"$\alpha$", ylabel=r"$10^3 \epsilon_g$", ylim=(0, None))
axes.legend(fontsize=8)
