"""
Training loss, test error and overlaps (Figure 2)
=================================================

Theory (lines) and published training runs (points) in the setting of Figure 2 of the paper, with few integration
nodes.
"""

import numpy as np

import attnphase as ap
from attnphase.figures import fig2

problem = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
theory = ap.sweep(problem, alpha=np.linspace(0.2, 2.0, 10).tolist(), workers=1)
figure = fig2(theory)
