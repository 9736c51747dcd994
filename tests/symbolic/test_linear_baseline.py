"""The linear baseline: the predictor is where the error is least, exactly, on samples of any targets.

Not public: the error of a predictor that is not the best one has no other name.
"""

import pytest
from explicit import Explicit, RationalDraw
from sympy import Rational, diag, zeros

from derivations.algebra.calculus import gradient
from derivations.replica.baseline import PREDICTOR, derive_baseline


@pytest.mark.parametrize("clusters", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_predictor_has_the_least_error(length, clusters):
    """(20) is (17) at the predictor, and not elsewhere; clusters have token variances of their own."""
    draw = RationalDraw(71 + length)

    def variances():
        return diag(*(abs(draw.number()) for _ in range(length)))

    common = variances()
    samples = tuple(
        (Rational(w, 10), {"targets": draw.matrix(length, length), "variances": variances() if clusters else common})
        for w in (2, 3, 5)
    )
    at = Explicit(length, {"L": length}, {"variances": common}, samples=samples)
    best = derive_baseline() if clusters else derive_baseline().without_clusters()
    assert at(best.predictor) == at(derive_baseline().predictor)
    slope, predictor = gradient(best.error, PREDICTOR), at(best.predictor)
    at_best, elsewhere = (at.given(predictor=x) for x in (predictor, predictor + draw.matrix(length, length)))
    assert at_best(slope) == zeros(length, length) != elsewhere(slope)
    assert at_best(best.test_error) == at_best(best.error) < elsewhere(best.error)
