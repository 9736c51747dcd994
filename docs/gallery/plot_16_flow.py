"""
Training dynamics
=================

One-pass SGD in the limit of large d, from a small start. The positional overlap grows first, exponentially, because
its eigenvalue at zero is larger.
"""

import matplotlib.pyplot as plt
import numpy as np

import attnphase as ap

problem = ap.Problem.paper(omega=0.3)
path = ap.sgd_flow(problem, "semantic=0.05,positional=0.05,noise=0.05", learning_rate=1.0, until=150.0).squeeze()

figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.plot(path.time, np.abs(path.m.isel(token=0)), "s--", color="#D55E00", ms=2, label="$|m|$")
axes.plot(path.time, np.abs(path.theta.isel(token=0)), "o-", color="#0072B2", ms=2, label=r"$|\theta|$")
axes.set(xlabel=r"$\tau$ = samples / d", yscale="log")
axes.legend()
