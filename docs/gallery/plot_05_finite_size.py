"""
Finite d (Figure 7)
===================

Training runs at several d, with means and standard errors, approach the theory as d grows. Lines are extrapolations.
"""

from pathlib import Path

import attnphase as ap
from attnphase.figures import comparison_figure

runs = ap.load_dataset(Path.cwd().parents[1] / "data" / "experiments" / "fig7-runs.nc")
problem = ap.Problem.from_toml(runs.attrs["problem"])
theory = ap.sweep(problem, alpha=runs.alpha.values.tolist(), workers=1)
figure = comparison_figure(ap.compare(theory, runs))
