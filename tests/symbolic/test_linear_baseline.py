"""The linear baseline's expressions: the predictor is where the error is least, exactly, on samples of any targets."""

import pytest
from sympy import Rational, Symbol, diag, zeros

from derivations.algebra import symbols as sym
from derivations.algebra.calculus import gradient
from derivations.algebra.tokens import TokenMatrix
from derivations.replica.baseline import PREDICTOR, derive_baseline

LENGTHS = pytest.mark.parametrize("length", [1, 2, 3])


@pytest.fixture
def world(explicit, rational):
    """Makes an evaluator with three samples of targets and token variances, and the random source."""

    def make(length, *, clusters):
        draw = rational(71 + length)
        common = diag(*(abs(draw.number()) for _ in range(length)))

        def sample():
            own = diag(*(abs(draw.number()) for _ in range(length)))
            return {"targets": draw.matrix(length, length), "variances": own if clusters else common}

        samples = tuple((Rational(weight, 10), sample()) for weight in (2, 3, 5))
        sizes = {"L": length}
        return explicit(length, sizes, {} if clusters else {"variances": common}, samples=samples), draw

    return make


@LENGTHS
@pytest.mark.parametrize("clusters", [False, True])
def test_predictor_makes_the_error_stationary(world, length, clusters):
    evaluate, draw = world(length, clusters=clusters)
    best = derive_baseline() if clusters else derive_baseline().without_clusters()
    predictor = evaluate(best.predictor)
    slope = gradient(best.error, PREDICTOR)
    assert evaluate.given(predictor=predictor)(slope) == zeros(length, length)
    elsewhere = evaluate.given(predictor=predictor + draw.matrix(length, length))
    assert elsewhere(slope) != zeros(length, length)
    assert elsewhere(best.error) > evaluate.given(predictor=predictor)(best.error)


@LENGTHS
@pytest.mark.parametrize("clusters", [False, True])
def test_least_error(world, length, clusters):
    """(20) is (17) at the predictor, and not elsewhere."""
    evaluate, _ = world(length, clusters=clusters)
    best = derive_baseline() if clusters else derive_baseline().without_clusters()
    at_best = evaluate.given(predictor=evaluate(best.predictor))
    assert at_best(best.test_error) == at_best(best.error)


@LENGTHS
def test_variances_that_are_the_same_in_every_sample_come_out_of_the_means(world, length):
    evaluate, _ = world(length, clusters=False)
    general, fixed = derive_baseline(), derive_baseline().without_clusters()
    assert not fixed.predictor.has(TokenMatrix("variances", sym.L, sym.L, None, symmetric=True, latex="D"))
    assert evaluate(general.predictor) == evaluate(fixed.predictor)
    assert Symbol("L") not in evaluate(fixed.predictor).free_symbols
