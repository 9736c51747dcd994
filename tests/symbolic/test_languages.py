"""The local problem in every language: loss, gradient, Hessian and target are those of the model's definition.

The definitions are typed here again, in mpmath with 50 digits; derivatives are differences of them.

Not public: the prints for NumPy, mpmath and torch, and the compiled kernels, which `ap.check` compares in the same way.
"""

from functools import cache
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
from models import MODELS, model
from mpmath import mpf
from numba.core import config as numba_config
from toys import executed

import attnphase as ap
from attnphase.kernels.compiler import load_kernels
from attnphase.kernels.key import ModelKey, model_numbers
from attnphase.kernels.reference import printed_loss
from attnphase.kernels.torch.loss import LocalLoss

DIGITS = 50
ONE = {"tokens.length": 1}
RATIO = "(z + z**3/5)/sqrt(2 + sum(z**2))"


def printed(problem, language):
    """The local problem in NumPy or mpmath."""
    loss = printed_loss(ModelKey.of(problem))
    return loss.plain if language == "numpy" else loss.exact


def _shares(z, null=0):
    weights = [mpmath.exp(x - max(z)) for x in z]
    return [w / (sum(weights) + null * mpmath.exp(-max(z))) for w in weights]


SCORES = {
    "softmax": _shares,
    "softmax1": lambda z: _shares(z, 1),
    "linear": list,
    "sigmoid": lambda z: [1 / (1 + mpmath.exp(-x)) for x in z],
    "relu": lambda z: [max(x, mpf(0)) / (mpf(1) / 10 + sum(max(y, mpf(0)) for y in z)) for x in z],
    RATIO: lambda z: [(x + x**3 / 5) / mpmath.sqrt(2 + sum(y**2 for y in z)) for x in z],
}


def attention(part, queries, keys):
    """``S`` or ``T`` by the definitions of score, temperature and mask."""
    logits, rows = queries @ keys.T / mpf(float(part.temperature)), []
    for a, row in enumerate(logits):
        seen = list(row[: a + 1] if part.causal else row)
        rows.append([*SCORES[part.score](seen), *[mpf(0)] * (len(row) - len(seen))])
    return np.array(rows, dtype=object)


def stated_target(problem, k):
    """``(1 - omega) T(k) + omega A``, with the noise that stands behind the fields, times the values if any."""
    rank, columns, omega = problem.teacher.rank, problem.teacher_columns, mpf(float(problem.teacher.omega))
    mixed = (1 - omega) * attention(problem.teacher, k[:, :rank], k[:, :rank]) + omega * exact(problem.mixing_matrix)
    mixed = mixed + k[:, columns:] if problem.teacher.noise else mixed
    return mixed @ k[:, rank:columns] if problem.loss.value_columns else mixed


def stated_loss(problem, h, target, variance):
    """``1/2 Tr[(S - T) D (S - T)^T]``, and ``1/2 |S h_V - Y|^2`` with a value matrix."""
    rank, tied, values = problem.student.rank, problem.student.tied, problem.loss.value_columns
    S = attention(problem.student, h[:, :rank], h[:, :rank] if tied else h[:, rank : 2 * rank])
    if values:
        return ((S @ h[:, -values:] - target) ** 2).sum() / 2
    return ((S - target) ** 2 * variance).sum() / 2


def softplus(x):
    return mpmath.log1p(mpmath.exp(x))


def single(function):
    return lambda h, k: function(h[0, 0], k[0, 0])


def shares(z):
    return np.array([_shares(list(row)) for row in np.atleast_2d(z)], dtype=object)


def layers(h, k):
    def output(w):
        sequence = mpf(8) / 10 * exact(np.eye(2))
        first = sequence + shares(np.outer(w[:, 0], w[:, 0]))
        u = first @ w[:, 1]
        return (sequence + shares(np.outer(u, u))) @ first

    return ((output(h) - output(k)) ** 2).sum() / 8


TWO_LAYERS = """
first = 0.8*eye(L) + softmax(h[:, 0:1] @ h[:, 0:1].T)
u = first @ h[:, 1:2]
teacher = 0.8*eye(L) + softmax(k[:, 0:1] @ k[:, 0:1].T)
v = teacher @ k[:, 1:2]
output = (0.8*eye(L) + softmax(u @ u.T)) @ first
sum((output - (0.8*eye(L) + softmax(v @ v.T)) @ teacher)**2)/8
"""


def own(text, **numbers):
    return {"loss.kind": "expression", "loss.expression": text, "loss.parameters": numbers}


# fields of the problem, and the loss of (h, k) unless it is attention's
PROBLEMS = {
    "temperatures": ({"student.temperature": 1.25, "teacher.temperature": 0.75, "tokens.sigma": [0.5, 0.8]}, None),
    "three tokens, rank 2": ({"tokens.length": 3, "student.rank": 2, "teacher.omega": 0.41}, None),
    "untied, causal": (
        {"tokens.length": 3, "student.tied": False, "student.rank": 2, "student.causal": True, "teacher.rank": 2}
        | {"teacher.causal": True, "teacher.omega": 0.2},
        None,
    ),
    "untied, linear": ({"tokens.length": 3, "student.score": "linear", "student.tied": False, "teacher.rank": 2}, None),
    "linear teacher": ({"student.rank": 2, "teacher.score": "linear", "teacher.rank": 2}, None),
    "four tokens": ({"tokens.length": 4, "student.causal": True}, None),
    "sigmoid": ({"student.score": "sigmoid", "teacher.score": "sigmoid", "student.rank": 2}, None),
    "null logit": ({"tokens.length": 3, "student.score": "softmax1", "teacher.score": "softmax1"}, None),
    "relu": ({"student.score": "relu", "teacher.score": "relu", "student.temperature": 0.9}, None),
    "causal relu": ({"tokens.length": 3, "student.score": "relu", "student.causal": True}, None),
    "formula": ({"student.score": RATIO, "teacher.score": RATIO, "student.temperature": 1.3}, None),
    "values": ({"loss.kind": "values", "loss.width": 2, "student.temperature": 1.4, "teacher.rank": 2}, None),
    "values, untied": ({"loss.kind": "values", "student.tied": False, "student.causal": True}, None),
    "noise": ({"teacher.noise": 0.3, "teacher.causal": True, "tokens.length": 3}, None),
    "noise on values": ({"teacher.noise": 0.4, "loss.kind": "values", "loss.width": 2}, None),
    "square": (ONE | {"loss.kind": "square"}, single(lambda x, y: (x - y) ** 2 / 2)),
    "logistic": (ONE | {"loss.kind": "logistic"}, single(lambda x, y: softplus(-mpmath.sign(y) * x))),
    "hinge": (ONE | {"loss.kind": "hinge"}, single(lambda x, y: max(mpf(0), 1 - mpmath.sign(y) * x))),
    "quotients": (
        ONE | own("log(1 + exp(-k*h)) + (tanh(h) - sin(k))**2/(1 + cos(h)**2) + a/(2 + h**2)", a=0.3),
        single(
            lambda x, y: softplus(-y * x) + (mpmath.tanh(x) - mpmath.sin(y)) ** 2 / (1 + mpmath.cos(x) ** 2)
            + mpf(0.3) / (2 + x**2)
        ),
    ),
    "kinks": (
        ONE | own("abs(h - k)*exp(1) + softplus(h) + max(h, k) + sinh(sigmoid(h*k)) + relu(h + 2*k)**2/3"),
        single(
            lambda x, y: abs(x - y) * mpmath.e + softplus(x) + max(x, y) + mpmath.sinh(1 / (1 + mpmath.exp(-x * y)))
            + max(x + 2 * y, mpf(0)) ** 2 / 3
        ),
    ),
    "two tokens": (
        {"student.rank": 2, "teacher.rank": 2, "teacher.noise": 0.3}
        | own("(h0_0*h1_1 - sign(k0_1)*k1_0 - noise1_0)**2/2 + sqrt(1 + h0_1**2)*exp(-k1_0) + softplus(h1_0*k0_0)"),
        lambda h, k: (
            (h[0, 0] * h[1, 1] - mpmath.sign(k[0, 1]) * k[1, 0] - k[1, 2]) ** 2 / 2
            + mpmath.sqrt(1 + h[0, 1] ** 2) * mpmath.exp(-k[1, 0])
            + softplus(h[1, 0] * k[0, 0])
        ),
    ),
    "two layers": ({"student.rank": 2, "teacher.rank": 2} | own(TWO_LAYERS), layers),
}  # fmt: skip


@cache
def problem_of(name):
    return ap.Problem().with_fields(PROBLEMS[name][0])


def exact(values):
    return np.vectorize(lambda x: x if isinstance(x, mpf) else mpf(float(x)), otypes=[object])(values)


def sample_of(problem, seed, count=1, scale=1.0):
    """Fields (N, L, columns), with the noise behind the teacher's, and variances of the tokens."""
    rng, length = np.random.default_rng(seed), problem.tokens.length
    width = problem.teacher_columns + printed(problem, "numpy").NOISE
    h = scale * rng.normal(0.2, 1.1, (count, length, problem.columns))
    return SimpleNamespace(h=h, k=rng.normal(-0.1, 0.9, (count, length, width)), D=rng.uniform(0.2, 1.7, length))


def evaluated(module, problem, h, k, D, array=np.array):
    """Target, loss, gradient and Hessian; those of `loss` and `loss_gradient` must be the same."""
    numbers = array(model_numbers(problem))
    (length, columns), samples, size = h.shape[:2], h.shape[2:], h.shape[0] * h.shape[1]
    h, k, D = array(h), array(k), array(D)

    def empty(*shape):
        return array(np.zeros((*shape, *samples)))

    target, slope, gradient = (empty(length, width) for width in (module.TARGET_COLUMNS, columns, columns))
    hessian = empty(size, size)
    module.teacher_target(k, array(problem.mixing_matrix), numbers, target)
    loss = module.loss_derivatives(h, target, D, numbers, gradient, hessian)
    again = module.loss(h, target, D, numbers), module.loss_gradient(h, target, D, numbers, slope)
    for other, one in zip((*again, slope), (loss, loss, gradient), strict=True):
        assert_close(other, one, 1e-13)
    return target, loss, gradient, hessian


def assert_close(values, expected, tolerance):
    values, expected = (np.asarray(x, dtype=float) for x in (values, expected))
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * (0.05 + np.abs(expected).max()))


@pytest.mark.parametrize("name", PROBLEMS)
def test_loss_and_derivatives_are_those_of_the_definition(name):
    """In 50 digits: a saturated score has derivatives that are differences of entries near 1."""
    problem, own_loss, step = problem_of(name), PROBLEMS[name][1], mpf(10) ** -15
    module, sample = printed(problem, "mpmath"), sample_of(problem, 3)
    with mpmath.workdps(DIGITS):
        h, k, D = (exact(x) for x in (sample.h[0], sample.k[0], sample.D))
        target, loss, gradient, hessian = evaluated(module, problem, h, k, D, exact)
        if own_loss:
            stated = lambda h: own_loss(h, k)  # noqa: E731
        else:
            expected = stated_target(problem, k)
            assert np.abs(target[:, : expected.shape[1]] - expected).max() < mpf(10) ** -45
            stated = lambda h: stated_loss(problem, h, expected, D)  # noqa: E731
        assert abs(loss - stated(h)) < mpf(10) ** -40
        for a, place in enumerate(np.ndindex(h.shape)):
            up, down = h.copy(), h.copy()
            up[place] += step
            down[place] -= step
            rise = (stated(up) - stated(down)) / (2 * step)
            assert abs(rise - gradient[place]) < mpf(10) ** -20
            steeper, flatter = (evaluated(module, problem, x, k, D, exact)[2] for x in (up, down))
            assert np.abs(((steeper - flatter) / (2 * step)).ravel() - hessian[a]).max() < mpf(10) ** -20


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_language_computes_the_same_numbers(name, monkeypatch):
    """NumPy, which carries samples on the last axis, the source for Numba, run as Python, and torch, against mpmath."""
    monkeypatch.setattr(numba_config, "DISABLE_JIT", True)
    problem = problem_of(name)
    arrays, digits = (printed(problem, language) for language in ("numpy", "mpmath"))
    python, sample = executed(ap.derive(problem).python), sample_of(problem, 5, 3)
    assert (problem.tokens.length, problem.columns) == (python.LENGTH, python.COLUMNS)
    batch = evaluated(arrays, problem, np.moveaxis(sample.h, 0, -1), np.moveaxis(sample.k, 0, -1), sample.D)
    local = LocalLoss(problem)
    for one in range(3):
        h, k = sample.h[one], sample.k[one]
        with mpmath.workdps(DIGITS):
            expected = evaluated(digits, problem, h, k, sample.D, exact)
        for found in ([x[..., one] for x in batch], evaluated(python, problem, h, k, sample.D)):
            for value, reference in zip(found, expected, strict=True):
                assert_close(value, reference, 1e-12)
        # torch's loss has Gram matrices: 1/2 Tr[S G S^T] - Tr[S C^T], which misses 1/2 Tr[T G T^T]
        target, constant = np.array(expected[0], dtype=float)[:, : local.target_shape[1]], 0.0
        if local.has_grams:
            constant, target = (target**2 * sample.D).sum() / 2, target * sample.D
        grams = np.diag(sample.D)
        loss, gradient, hessian = local.derivatives(*(torch.tensor(x)[None] for x in (h, target, grams)))
        for value, reference in zip((loss + constant, gradient, hessian), expected[1:], strict=True):
            assert_close(value[0], reference, 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_compiled_losses_and_targets_are_those_of_the_prints(name):
    problem = model(name)
    kernels, sample = load_kernels(ModelKey.of(problem)), sample_of(problem, 7, 20)
    loss = printed_loss(ModelKey.of(problem))
    clusters = np.ones((20, problem.tokens.length, kernels.label_fields - sample.k.shape[2]))
    constants = problem.mixing_matrix, model_numbers(problem)
    h, k, losses = sample.h, np.concatenate([sample.k, clusters], axis=2), np.empty(20)
    kernels.losses_at(h, k, *constants, sample.D, losses)
    assert_close(losses, loss.in_digits(h, k, *constants, sample.D)[0], 1e-12)
    assert np.ptp(losses) > 0.01


@pytest.mark.parametrize("name", [name for name, (_, own) in PROBLEMS.items() if own is None])
def test_large_fields_do_not_overflow(name):
    """Logits of size 1600, beyond the range of exp.  Saturated entries are multiplied by h^2 in the Hessian."""
    problem = problem_of(name)
    sample = sample_of(problem, 9, 20, 40.0)
    arrays, digits = (printed(problem, language) for language in ("numpy", "mpmath"))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        batch = evaluated(arrays, problem, np.moveaxis(sample.h, 0, -1), np.moveaxis(sample.k, 0, -1), sample.D)
    for one in range(2):
        with mpmath.workdps(DIGITS):
            expected = evaluated(digits, problem, sample.h[one], sample.k[one], sample.D, exact)
        for value, reference, scale in zip(batch, expected, (1.0, 1.0, 40.0, 1600.0), strict=True):
            found, size = np.asarray(reference, dtype=float), scale
            assert np.isfinite(value).all()
            assert np.abs(value[..., one] - found).max() < 1e-11 * max(size, np.abs(found).max())


@pytest.mark.parametrize("far", [9.0, -40.0, 98.0, -690.0, 720.0, 4000.0])
def test_two_logits_far_apart(far):
    """Their difference alone is taken, which no exponential may turn into what is not a number."""
    problem = model("paper", {"student.temperature": 1.25})
    h, D = np.array([[3.0], [3.0 - far * 1.25 / 3.0]]), np.array([0.7, 1.3])
    k = np.array([[0.4], [-0.9]])
    with mpmath.workdps(DIGITS):
        expected = stated_loss(problem, exact(h), stated_target(problem, exact(k)), exact(D))
    for backend, array in (("numpy", np.array), ("mpmath", exact)):
        found = evaluated(printed(problem, backend), problem, h, k, D, array)
        assert abs(found[1] - expected) < 1e-14
        assert all(np.isfinite(np.array(x, dtype=float)).all() for x in found)
    compiled, kernels = np.empty(1), load_kernels(ModelKey.of(problem))
    kernels.losses_at(h[None], k[None], problem.mixing_matrix, model_numbers(problem), D, compiled)
    assert abs(compiled[0] - expected) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("length", [2, 3])
def test_powers_of_entries_stay_finite(length, dtype):
    """Where a loss has products of a softmax's entries, as with a Gram matrix, exponentials are not multiplied."""
    problem = ap.Problem().with_fields({"tokens.length": length})
    rng = np.random.default_rng(length)
    root, target = rng.normal(size=(length, length)), rng.normal(size=(length, length))
    h, gram = np.array([[31.0], [9.0], [-22.0]])[:length], root @ root.T
    entries = np.exp(h * h.T - (h * h.T).max(axis=1, keepdims=True))
    entries /= entries.sum(axis=1, keepdims=True)
    expected = np.trace(entries @ gram @ entries.T) / 2 - np.trace(entries @ target.T)
    local = LocalLoss(problem, dtype=dtype)
    found = local.derivatives(*(torch.tensor(x, dtype=dtype)[None] for x in (h, target, gram)))
    assert found[0].dtype == dtype
    assert found[0].item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-5)
    assert all(torch.isfinite(value).all() for value in found)


def test_a_softmax_of_a_formula_does_not_overflow():
    """Logits of a thousand: the value, the gradient and the Hessian are those of a sure choice."""
    problem = ap.Problem().with_fields(
        {"tokens.length": 3, "student.rank": 2} | own("(k[0, 0] - softmax(800*h[:, 0]) @ h[:, 1])**2/2")
    )
    module, k = printed(problem, "numpy"), np.full((3, 1), 0.3)
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        h = np.array([[2.3, 0.4], [-1.9, 0.7], [0.2, -0.9]])[order]
        with np.errstate(all="raise", under="ignore"):
            _, value, gradient, hessian = evaluated(module, problem, h, k, np.ones(3))
        slope, curved, chosen = np.zeros((3, 2)), np.zeros((6, 6)), order.index(0)
        slope[chosen, 1], curved[2 * chosen + 1, 2 * chosen + 1] = 0.4 - 0.3, 1.0
        for found, expected in ((value, 0.005), (gradient, slope), (hessian, curved)):
            np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "lift"),
    [
        ({"student.rank": 2}, (0, 0)),
        ({"student.rank": 3, "student.tied": False, "teacher.rank": 2}, (0, 1, 0, 0, 1, 0)),
        ({"student.rank": 2, "student.tied": False, "teacher.rank": 3, "loss.kind": "values"}, (0, 1, 0, 1, 3)),
    ],
    ids=["tied", "untied", "values"],
)
def test_columns_start_at_those_of_the_teacher(fields, lift):
    """Query and key column c start at the same teacher column, value columns at the teacher's values."""
    assert lift == printed(ap.Problem().with_fields(fields), "numpy").LIFT
