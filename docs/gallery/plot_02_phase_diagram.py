"""
The phase diagram (Figure 3)
============================

The maps show differences of training loss and test error, and the overlaps of the branch with the lower loss. The
axes are the sample complexity and the weight of the teacher's positional part. Thresholds are drawn with their
errors. The interactive page below shows the same: click the map, or move with the arrow keys.
"""

import numpy as np

import attnphase as ap
from attnphase.figures import fig3

problem = ap.Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": 64})
theory = ap.sweep(problem, alpha=np.linspace(0.2, 2.0, 10).tolist(), omega=np.linspace(0, 0.5, 6).tolist(), workers=1)
thresholds = ap.thresholds(problem, omega=[0.1, 0.25, 0.4])
figure = fig3(theory, thresholds=thresholds)
page = ap.explore(theory, thresholds=thresholds)
