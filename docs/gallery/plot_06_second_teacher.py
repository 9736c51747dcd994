"""
The second teacher (Figure 8)
=============================

Figure 8 of the paper is the phase diagram for the teacher's positional part A = ((0.3, 0.7), (0.8, 0.2)), equation
(144). Each token attends to the other one rather than to itself.
"""

import attnphase as ap
from attnphase.figures import fig3
from attnphase.reference import SECOND_MIXING

fields = {"teacher.mixing": SECOND_MIXING, "integration.rule": "sobol", "integration.nodes": 32}
problem = ap.Problem.paper().with_fields(fields)
theory = ap.sweep(problem, alpha=[0.2, 0.6, 1.0, 1.4, 1.7, 2.0], omega=[0.0, 0.1, 0.2, 0.3, 0.4], workers=1)
figure = fig3(theory)
