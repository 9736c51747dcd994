"""
Which start leads to which mechanism
====================================

Gradient flow on the population risk, from starts of three sizes between the encodings' direction and the teacher's.
Above the line the weights end at the semantic point, below it at the positional point. Both are stable here.
"""

import attnphase as ap
from attnphase.figures import basins_figure

problem = ap.Problem.paper().with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 10})
basins = ap.basins(problem, omega=0.3, scale=[0.1, 0.3, 0.8], angle=[0.0, 45.0, 90.0])
figure = basins_figure(basins)
