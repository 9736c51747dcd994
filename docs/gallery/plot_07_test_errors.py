"""
Test errors (Figure 9)
======================

Test error along the sample complexity for several weights of the positional part, standard deviations of the tokens
and strengths of the ridge, as in Figure 9 of the paper. Points are published training runs.
"""

import attnphase as ap
from attnphase.figures import fig9

problem = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 32})
values = {
    "teacher.omega": [0.2, 0.3, 0.7],
    "tokens.sigma": [0.3, 0.5, 0.7],
    "regularizer.strength": [0.001, 0.01, 0.1],
}
alphas = [0.3, 0.8, 1.2, 1.6, 2.0]
figure = fig9([ap.sweep(problem, alphas, fields={field: several}, workers=1) for field, several in values.items()])
