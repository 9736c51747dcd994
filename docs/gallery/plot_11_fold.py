"""
Through a fold
==============

At σ = 0.6 the positional branch begins at a fold. Pseudo-arclength continuation follows it onto its unstable part
(dashed).
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem().with_fields({"tokens.sigma": 0.6, "integration.rule": "sobol", "integration.nodes": 256})
curve = ap.follow(problem, field="alpha", between=(6.5, 9.0), branch="positional")
size = np.abs(curve.m.isel(token=0, row=0))
stable = curve.unstable_directions == 0

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.plot(curve.field_value, size.where(~stable), "--", color="0.5", label="unstable")
axes.plot(curve.field_value, size.where(stable), "-", color="C0", label="stable")
axes.set(xlabel=r"$\alpha$", ylabel=r"$|m|$")
axes.legend()
