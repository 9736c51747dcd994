"""Generated local problems: three prints of one kernel agree, and agree with dense differentiation.

Double precision against 50 digits: values are compared to 1e-12 of the largest entry, plus 5e-14,
because saturated scores have small derivatives that are differences of entries near 1.  Dense SymPy
derivatives against the mpmath print are compared to 1e-40.
"""

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from itertools import combinations_with_replacement, pairwise, product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import DiracDelta, Matrix, Rational, Symbol, diag, exp, lambdify, log, sign, simplify, sqrt, tanh

from derivations.codegen.backends import BACKENDS
from derivations.codegen.local_problem import local_problem_source
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.scalar import SCALAR_LOSSES, ScalarModel, formula_loss
from derivations.models.scores import SCORES, linear, resolve, softmax

DIGITS = 50
TEMPERATURES = (1.25, 0.75)  # of student and teacher, exact in binary
RATIO = "(z + z**3 / 5) / sqrt(2 + sum(z**2))"


def softplus_loss(h, k):
    """Logistic regression on a label from two teacher fields: smooth and not quadratic."""
    x = h[0][0] * h[0][1] - Rational(3, 4) * h[0][0]
    return log(1 + exp(x)) - x * k[0][0] * k[0][1] / 2


ATTENTION = {
    "tied L=2 r=1": AttentionModel(2),
    "tied L=3 r=1 t=2": AttentionModel(3, teacher=Teacher(softmax, 2)),
    "tied L=3 r=2 t=1": AttentionModel(3, Student(softmax, 2)),
    "tied L=1 r=2 t=2": AttentionModel(1, Student(linear, 2), Teacher(linear, 2)),
    "untied L=2 rank 1": AttentionModel(2, Student(softmax, 1, tied=False)),
    "untied L=3 rank 2 t=2": AttentionModel(3, Student(softmax, 2, tied=False), Teacher(softmax, 2)),
    "linear tied L=2 r=2": AttentionModel(2, Student(linear, 2), Teacher(linear, 1)),
    "linear untied L=3 rank 1": AttentionModel(3, Student(linear, 1, tied=False), Teacher(linear, 2)),
    "softmax student, linear teacher": AttentionModel(2, Student(softmax, 2), Teacher(linear, 2)),
    "linear student, softmax teacher": AttentionModel(3, Student(linear, 1), Teacher(softmax, 1)),
}
ATTENTION |= {
    "causal L=3": AttentionModel(3, Student(softmax, 1, causal=True), Teacher(softmax, 1, causal=True)),
    "causal student, untied": AttentionModel(2, Student(softmax, 1, tied=False, causal=True), Teacher(linear)),
    "sigmoid": AttentionModel(2, Student(SCORES["sigmoid"], 2), Teacher(SCORES["sigmoid"])),
    "softmax-1": AttentionModel(3, Student(SCORES["softmax1"]), Teacher(SCORES["softmax1"])),
    "relu": AttentionModel(2, Student(SCORES["relu"]), Teacher(SCORES["relu"])),
    "causal relu": AttentionModel(3, Student(SCORES["relu"], causal=True)),
    "formula": AttentionModel(2, Student(resolve(RATIO, 2)), Teacher(resolve(RATIO, 2))),
    "values": AttentionModel(2, values=2),
    "values, causal, untied": AttentionModel(2, Student(softmax, 1, False, True), Teacher(linear), values=1),
}
SCALAR = {
    "square loss": ScalarModel("square", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2),
    "logistic loss": ScalarModel("logistic", softplus_loss, columns=2, teacher_rank=2),
    "classification": SCALAR_LOSSES["logistic"],
    "formula loss": formula_loss("(h0_0*h1_0 - k0_0)**2/2 + sqrt(1 + h0_0**2)*k1_0**2", 2, 1, 1),
}
MODELS = ATTENTION | SCALAR


class Printed:
    """One print of a model's local problem, called alike for every back end.

    What Numba is given is Python: "numba source" runs it as such, which takes no compilation.
    """

    def __init__(self, model, backend, folder):
        self.backend = backend
        source = local_problem_source(model, backend.removesuffix(" source"))
        if backend == "numba source":
            source, found = re.subn(r"(?m)^compiled = njit\(.*\)$", "compiled = lambda function: function", source)
            assert found == 1
        # Numba's cache needs a file, and the name tells the back ends apart
        path = folder / f"{backend.replace(' ', '_')}_print.py"
        path.write_text(source, encoding="utf-8")
        specification = importlib.util.spec_from_file_location(f"{folder.name}_{backend}", path)
        assert specification is not None
        assert specification.loader is not None
        self.module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(self.module)

    def array(self, values, dtype=float):
        if self.backend == "mpmath":
            return np.vectorize(mpmath.mpf, otypes=[object])(values)
        return np.array(values, dtype=dtype)

    def zeros(self, *shape, like):
        """Scratch that carries the samples of ``like`` where the back end wants them."""
        return np.zeros((*shape, *like.shape[2:]), dtype=like.dtype)

    def target(self, k, mixing, omega):
        k = self.array(k)
        L = self.module.LENGTH
        target = self.zeros(L, max(L, self.module.TEACHER_RANK), like=k)
        self.module.teacher_target(k, self.array(mixing), self.parameters(omega), target)
        return target

    def parameters(self, omega=0.0):
        """Omega and the temperatures of student and teacher."""
        return self.array([omega, *TEMPERATURES])

    def loss(self, h, target, variance):
        return self.module.loss(h, target, self.array(variance), self.parameters())

    def derivatives(self, h, target, variance):
        size = self.module.LENGTH * self.module.COLUMNS
        gradient = self.zeros(self.module.LENGTH, self.module.COLUMNS, like=h)
        hessian, contracted = self.zeros(size, size, like=h), self.zeros(size, like=h)
        value = self.module.loss_derivatives(
            h, target, self.array(variance), self.parameters(), gradient, hessian, contracted
        )
        return value, gradient, hessian

    def everything(self, sample):
        """target, loss, loss again, gradient and Hessian of a sample."""
        target = self.target(sample["k"], sample["mixing"], sample["omega"])
        h = self.array(sample["h"])
        return (
            target,
            self.loss(h, target, sample["variance"]),
            *self.derivatives(h, target, sample["variance"]),
        )


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Makes the print of a model (by name) for a back end, once."""

    @cache
    def make(name, backend):
        return Printed(MODELS[name], backend, tmp_path_factory.mktemp("kernel"))

    return make


def sample_of(model, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    L = model.length
    return {
        "h": scale * rng.normal(0.2, 1.1, (L, model.columns)),
        "k": scale * rng.normal(-0.1, 0.9, (L, model.teacher_rank)),
        "mixing": rng.uniform(0.1, 0.9, (L, L)),
        "omega": rng.uniform(0.15, 0.85),
        "variance": rng.uniform(0.2, 1.7, L),
    }


def assert_close(values, expected, tolerance=1e-12):
    values, expected = np.asarray(values, dtype=float), np.asarray(expected, dtype=float)
    np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * (0.05 + np.abs(expected).max()))


# --- the prints against each other ------------------------------------------------------------


def assert_prints_agree(printed, name, backend, seed, scale):
    sample = sample_of(MODELS[name], seed, scale)
    with mpmath.workdps(DIGITS):
        reference = printed(name, "mpmath").everything(sample)
        for value, expected in zip(printed(name, backend).everything(sample), reference, strict=True):
            assert_close(value, expected)


@pytest.mark.parametrize("name", MODELS)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.3, 1.0, 2.5]))
def test_prints_agree(printed, name, seed, scale):
    assert_prints_agree(printed, name, "numba source", seed, scale)


# a sum of rows, loops over values and a mask, and every helper with a branch
COMPILED = ["tied L=2 r=1", "values, causal, untied", "classification"]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([0.3, 1.0, 2.5]))
def test_machine_code_does_what_its_source_says(printed, name, seed, scale):
    """Solved points, and nodes' minima, hold the compiled kernels of the other models to their prints."""
    assert_prints_agree(printed, name, "numba", seed, scale)


@pytest.mark.parametrize("name", MODELS)
def test_numpy_print_carries_samples(printed, name):
    """Five samples at once on the trailing axis equal five single calls of the mpmath print."""
    samples = [sample_of(MODELS[name], seed) for seed in range(5)]
    shared = samples[0]  # mixing, omega and the variances belong to the problem
    numpy_print, reference = printed(name, "numpy"), printed(name, "mpmath")
    h, k = (np.stack([s[field] for s in samples], axis=-1) for field in "hk")
    batch = numpy_print.everything(shared | {"h": h, "k": k})
    assert batch[3].shape == (*h.shape[:2], 5)
    with mpmath.workdps(DIGITS):
        for i, sample in enumerate(samples):
            single = reference.everything(shared | {"h": sample["h"], "k": sample["k"]})
            for value, expected in zip(batch, single, strict=True):
                assert_close(value[..., i], expected)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_derivatives_return_the_same_loss(printed, name):
    """`loss` accepts a step and `loss_derivatives` stops: they may differ by roundings alone."""
    for seed in range(5):
        _, loss, again, _, _ = printed(name, "numpy").everything(sample_of(MODELS[name], seed))
        assert loss == pytest.approx(again, rel=1e-13, abs=1e-15)


# --- against dense differentiation ------------------------------------------------------------


def dense_row(score, row):
    """One row of the attention matrix, by the definition of the score."""
    weights = [exp(z) for z in row]
    if score == "linear":
        return list(row)
    if score == "sigmoid":
        return [1 / (1 + exp(-z)) for z in row]
    if score == "relu":
        positive = [z * (1 + sign(z)) / 2 for z in row]
        return [p / (Rational(1, 10) + sum(positive)) for p in positive]
    if score == RATIO:
        return [(z + z**3 / 5) / sqrt(2 + sum(y**2 for y in row)) for z in row]
    return [w / (sum(weights) + (1 if score == "softmax1" else 0)) for w in weights]


def dense_attention(part, pairs, fields, temperature):
    """``S`` or ``T`` of explicit fields, by the definition of the score and of the mask."""
    L = fields.rows
    logits = Matrix(L, L, lambda a, b: sum(fields[a, i] * fields[b, j] for i, j in pairs) / Rational(temperature))
    rows = []
    for a in range(L):
        visible = a + 1 if part.causal else L
        rows.append(dense_row(part.score.name, [logits[a, b] for b in range(visible)]) + [0] * (L - visible))
    return Matrix(rows)


def smooth(expression):
    """The derivative almost everywhere."""
    return expression.replace(DiracDelta, lambda *args: 0)


def dense_problem(model):
    """``1/2 Tr[(S-T) D (S-T)^T]``, gradient and Hessian as a function of (h, T, variance).

    With a value matrix ``1/2 |S h_V - Y|^2``, the target Y in place of T.
    """
    L, columns = model.length, model.columns
    h = Matrix(L, columns, lambda a, i: Symbol(f"h_{a}_{i}", real=True))
    T = Matrix(L, model.values or L, lambda a, b: Symbol(f"T_{a}_{b}"))
    D = diag(*(Symbol(f"D_{a}") for a in range(L)))
    rank = model.student.rank
    pairs = [(c, c if model.student.tied else rank + c) for c in range(rank)]
    S = dense_attention(model.student, pairs, h, TEMPERATURES[0])
    if model.values:
        output = S * h[:, model.student.columns :] - T
        loss = (output * output.T).trace() / 2
    else:
        loss = ((S - T) * D * (S - T).T).trace() / 2
    fields = h.flat()
    # away from its jump a sign is a constant
    gradient = [smooth(loss.diff(x)) for x in fields]
    upper = {
        (i, j): smooth(gradient[i].diff(fields[j])) for i, j in combinations_with_replacement(range(len(fields)), 2)
    }
    evaluate = lambdify(
        [fields, T.flat(), D.diagonal().flat()],
        [loss, gradient, list(upper.values())],
        "mpmath",
        cse=True,
    )

    def dense(h, T, variance):
        value, slope, entries = evaluate(list(h.ravel()), list(T.ravel()), [mpmath.mpf(x) for x in variance])
        hessian = np.empty((len(fields), len(fields)), dtype=object)
        for (i, j), entry in zip(upper, entries, strict=True):
            hessian[i, j] = hessian[j, i] = entry
        return value, np.array(slope, dtype=object).reshape(h.shape), hessian

    return dense


def dense_target(model, sample):
    """``(1 - omega) score(k k^T) + omega A`` with numbers, at the working precision; times the values if any."""
    k = np.vectorize(mpmath.mpf, otypes=[object])(sample["k"])
    symbols = Matrix(*k.shape, lambda a, i: Symbol(f"k_{a}_{i}", real=True))
    rank = model.teacher.rank
    scores = dense_attention(model.teacher, [(c, c) for c in range(rank)], symbols, TEMPERATURES[1])
    entries = lambdify([symbols.flat()], scores.flat(), "mpmath")(list(k.ravel()))
    omega = mpmath.mpf(sample["omega"])
    mixed = (1 - omega) * np.array(entries, dtype=object).reshape(model.length, model.length)
    mixed = mixed + omega * np.vectorize(mpmath.mpf, otypes=[object])(sample["mixing"])
    return mixed @ k[:, rank:] if model.values else mixed


SMALL = [name for name, model in ATTENTION.items() if model.length * model.columns <= 4]


@pytest.mark.parametrize("name", SMALL)
def test_derivatives_equal_dense_sympy(printed, name):
    model, generated = ATTENTION[name], printed(name, "mpmath")
    dense = dense_problem(model)
    for seed in (3, 4):
        sample = sample_of(model, seed)
        with mpmath.workdps(DIGITS):
            target, loss, *derived = generated.everything(sample)
            expected_target = dense_target(model, sample)
            width = model.values or model.length
            assert np.abs(target[:, :width] - expected_target).max() < mpmath.mpf(10) ** -45
            expected = dense(generated.array(sample["h"]), expected_target, sample["variance"])
            assert abs(loss - expected[0]) < mpmath.mpf(10) ** -40
            for value, reference in zip(derived, expected, strict=True):
                assert np.abs(np.atleast_1d(value - reference)).max() < mpmath.mpf(10) ** -40


@pytest.mark.parametrize("backend", ["mpmath", "numpy", "numba"])
@pytest.mark.parametrize("far", [9.0, -40.0, 98.0, -690.0, 720.0, 4000.0])
def test_two_logits_far_apart(printed, backend, far):
    """Of two logits the difference alone is taken, which no exponential may turn into what is not a number."""
    name, variance = "tied L=2 r=1", np.array([0.7, 1.3])
    generated, target = printed(name, backend), np.array([[0.2, 0.8], [0.6, 0.4]])
    # logits of the first row differ by h_0 (h_0 - h_1), those of the second by h_1 (h_0 - h_1), over a temperature
    apart = far * TEMPERATURES[0] / 3.0
    h = np.array([[3.0], [3.0 - apart]])
    with mpmath.workdps(DIGITS):
        exponents = [mpmath.mpf(float(x)) * (h[0, 0] - h[1, 0]) / mpmath.mpf(TEMPERATURES[0]) for x in h[:, 0]]
        rows = [(1 / (1 + mpmath.exp(-z)), 1 / (1 + mpmath.exp(z))) for z in exponents]
        expected = sum(
            mpmath.mpf(float(v)) * (s - mpmath.mpf(float(t))) ** 2 / 2
            for row, targets in zip(rows, target, strict=True)
            for s, t, v in zip(row, targets, variance, strict=True)
        )
        loss, gradient, hessian = generated.derivatives(
            generated.array(h), generated.array(target), generated.array(variance)
        )
        assert abs(loss - expected) < 1e-14
        assert np.isfinite(np.array(gradient, dtype=float)).all()
        assert np.isfinite(np.array(hessian, dtype=float)).all()


@pytest.mark.parametrize("far", [-300.0, 87.0, 95.0])
def test_two_logits_far_apart_with_32_bits(printed, far):
    generated = printed("tied L=2 r=1", "numpy")
    h, target, variance, parameters = (
        np.array(values, dtype=np.float32)
        for values in ([[3.0], [3.0 - far / 3.0]], [[0.2, 0.8], [0.6, 0.4]], [0.7, 1.3], [0.0, 1.0, 1.0])
    )
    gradient, hessian, contracted = (np.zeros(shape, dtype=np.float32) for shape in ((2, 1), (2, 2), 2))
    loss = generated.module.loss_derivatives(h, target, variance, parameters, gradient, hessian, contracted)
    exact = generated.derivatives(h.astype(float), target.astype(float), variance)[0]
    assert exact == pytest.approx(generated.loss(h.astype(float), target.astype(float), variance))
    assert loss.dtype == np.float32
    assert np.isfinite([loss, *gradient.ravel(), *hessian.ravel()]).all()


@pytest.mark.parametrize("length", [2, 3])
def test_powers_of_entries_stay_finite(length, tmp_path):
    """Where a loss has products of a softmax's entries, as with a Gram matrix, exponentials are not multiplied."""
    generated = Printed(AttentionModel(length, finite=True), "numpy", tmp_path)
    rng = np.random.default_rng(length)
    root, target = rng.normal(size=(length, length)), rng.normal(size=(length, length))
    h, gram = np.array([[31.0], [9.0], [-22.0]])[:length], root @ root.T
    logits = h * h.T / TEMPERATURES[0]
    assert np.ptp(logits, axis=1).max() > 500
    entries = np.exp(logits - logits.max(axis=1, keepdims=True))
    entries /= entries.sum(axis=1, keepdims=True)
    expected = np.trace(entries @ gram @ entries.T) / 2 - np.trace(entries @ target.T)
    loss, *derived = generated.derivatives(h, target, gram)
    assert loss == pytest.approx(expected, rel=1e-12)
    assert all(np.isfinite(value).all() for value in derived)
    single = (x.astype(np.float32) for x in (h, target, gram, generated.parameters()))
    derived = [np.zeros(shape, dtype=np.float32) for shape in ((length, 1), (length, length), length)]
    loss = generated.module.loss_derivatives(*single, *derived)
    assert loss.dtype == np.float32
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(np.isfinite(value).all() for value in derived)


@pytest.mark.parametrize("name", SCALAR)
def test_scalar_derivatives_equal_mpmath_differences(printed, name):
    """50 digits, central differences with step 1e-12: truncation 1e-24."""
    model, generated = SCALAR[name], printed(name, "mpmath")
    sample = sample_of(model, 6)
    step = mpmath.mpf(10) ** -12
    with mpmath.workdps(DIGITS):
        target, _, _, gradient, hessian = generated.everything(sample)
        h = generated.array(sample["h"])
        flat = list(np.ndindex(h.shape))
        for a, index in enumerate(flat):
            up, down = h.copy(), h.copy()
            up[index] += step
            down[index] -= step
            rise = generated.loss(up, target, sample["variance"]) - generated.loss(down, target, sample["variance"])
            assert abs(rise / (2 * step) - gradient[index]) < mpmath.mpf(10) ** -20
            steeper = generated.derivatives(up, target, sample["variance"])[1]
            flatter = generated.derivatives(down, target, sample["variance"])[1]
            column = ((steeper - flatter) / (2 * step)).ravel()
            assert np.abs(column - hessian[a]).max() < mpmath.mpf(10) ** -20


@pytest.mark.parametrize("name", [name for name in ATTENTION if "relu" not in name])
def test_derivatives_equal_complex_steps(printed, name):
    """The NumPy print in complex arithmetic: derivatives without cancellation, at every size."""
    model, generated = ATTENTION[name], printed(name, "numpy")
    sample = sample_of(model, 9)
    h = sample["h"][..., None]
    target = generated.target(sample["k"][..., None], sample["mixing"], sample["omega"])
    _, gradient, hessian = generated.derivatives(h, target, sample["variance"])
    size, step = h.size, 1e-30
    shifted = np.repeat(h.astype(complex), size, axis=-1)
    shifted.reshape(size, size)[np.diag_indices(size)] += 1j * step
    targets = np.repeat(target, size, axis=-1)
    loss, slopes, _ = generated.derivatives(shifted, targets, sample["variance"])
    assert_close(loss.imag / step, gradient.ravel())
    assert_close(generated.loss(shifted, targets, sample["variance"]).imag / step, gradient.ravel())
    assert_close(slopes.reshape(size, size).imag / step, hessian[..., 0])


@pytest.mark.parametrize("name", MODELS)
def test_hessian_is_symmetric(printed, name):
    for seed, scale in product(range(4), (0.4, 1.0, 3.0)):
        hessian = printed(name, "numpy").everything(sample_of(MODELS[name], seed, scale))[-1]
        assert_close(hessian, hessian.T, 1e-14)


# --- large fields -----------------------------------------------------------------------------

SATURATING = [name for name, model in ATTENTION.items() if model.student.score is softmax]


@pytest.mark.parametrize("name", SATURATING)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10**6))
def test_large_fields_do_not_overflow(printed, name, seed):
    """Fields of size 40: logits of size 1600, beyond the range of exp.

    Saturated entries (errors 1e-16) are multiplied by h^2 in the Hessian: tolerance 1e-11 of that.
    """
    model = ATTENTION[name]
    sample = sample_of(model, seed, 40.0)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        computed = printed(name, "numpy").everything(sample)
    for value in computed:
        assert np.isfinite(value).all()
    with mpmath.workdps(DIGITS):
        reference = printed(name, "mpmath").everything(sample)
    for value, expected, scale in zip(computed, reference, (1.0, 1.0, 1.0, 40.0, 1600.0), strict=True):
        if model.teacher.score is linear:
            scale *= 1600.0**2  # the residual itself is that large
        if model.values:
            scale *= 1600.0  # values of size 40 on both sides
        difference = np.asarray(value, dtype=float) - np.asarray(expected, dtype=float)
        assert np.abs(difference).max() < 1e-11 * scale


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tied L=2 r=1", "values, causal, untied"])
def test_large_fields_do_not_overflow_in_machine_code(printed, name):
    for seed in range(20):
        sample = sample_of(MODELS[name], seed, 40.0)
        for value in printed(name, "numba").everything(sample):
            assert np.isfinite(value).all()


@pytest.mark.parametrize("name", SCORES)
def test_shift_invariance_is_as_declared(name):
    score = SCORES[name]
    z, shift = [Symbol(f"z{b}", real=True) for b in range(4 if score.null_logit else 3)], Symbol("c", real=True)
    differences = [
        simplify(moved - still) for moved, still in zip(score.row([x + shift for x in z]), score.row(z), strict=True)
    ]
    assert all(d == 0 for d in differences) == score.shift_invariant
    point = {**dict(zip(z, (0.3, -1.2, 0.8, 0.1), strict=False)), shift: 2.7}
    largest = max(abs(float(d.subs(list(point.items())))) for d in differences)
    assert (largest < 1e-14) == score.shift_invariant


# --- symmetries of the loss -------------------------------------------------------------------


@pytest.mark.parametrize("name", ATTENTION)
def test_reflections_leave_the_loss_unchanged(printed, name):
    generated, sample = printed(name, "numpy"), sample_of(MODELS[name], 12)
    target, loss, _, gradient, hessian = generated.everything(sample)
    reflected = generated.everything(sample | {"h": -sample["h"], "k": -sample["k"]})
    if ATTENTION[name].values:
        target = -target
    for value, expected in zip(reflected, (target, loss, loss, -gradient, hessian), strict=True):
        assert_close(value, expected, 1e-14)


def test_untied_problem_on_equal_columns_is_the_tied_one(printed, tmp_path):
    """``h = (x|x)``: the same loss, and the tied gradient is the sum of the two blocks."""
    tied = printed("tied L=3 r=2 t=1", "numpy")
    untied = Printed(AttentionModel(3, Student(softmax, 2, tied=False)), "numpy", tmp_path)
    sample = sample_of(MODELS["tied L=3 r=2 t=1"], 14)
    target, loss, _, gradient, _ = tied.everything(sample)
    target2, loss2, _, gradient2, _ = untied.everything(sample | {"h": np.tile(sample["h"], (1, 2))})
    assert_close(target2, target)
    assert loss2 == pytest.approx(loss, rel=1e-13)
    assert_close(gradient2[:, :2] + gradient2[:, 2:], gradient)


# --- the source -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "student",
    [Student(softmax, 2, tied=False), Student(linear, 2)],
    ids=["softmax untied", "linear tied"],
)
def test_source_grows_polynomially(student):
    """Doubling L multiplies the source by less than 2^2.5; full expansion would square it."""
    sizes = [len(local_problem_source(AttentionModel(length, student), "numba")) for length in (2, 4, 8)]
    for small, large in pairwise(sizes):
        assert large < 2**2.5 * small


def test_source_does_not_depend_on_the_hash_seed():
    """Kernels are addressed by content: the same model gives the same text in every process."""
    program = (
        "from derivations.codegen.arrays import state_evolution_source as maps\n"
        "from derivations.codegen.local_problem import local_problem_source\n"
        "from derivations.models.attention import AttentionModel\n"
        "model = AttentionModel(3)\n"
        "from derivations.replica.chain import derive_free_entropy\n"
        "from derivations.replica.saddle_point import derive_saddle_point\n"
        "free_entropy = derive_free_entropy(model)\n"
        "print(local_problem_source(model), maps(derive_saddle_point(free_entropy), free_entropy))\n"
    )
    sources = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "5", "27")
    }
    assert len(sources) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["tied L=2 r=1", "logistic loss"])
def test_source_is_complete(printed, name, backend):
    """Every name that a generated module uses is defined in it."""
    namespace = vars(printed(name, backend).module)
    for function in ("teacher_target", "loss", "loss_derivatives"):
        code = getattr(namespace[function], "py_func", namespace[function]).__code__
        assert set(code.co_names) <= namespace.keys() | {"range"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_functions_are_imported(backend, tmp_path):
    model = ScalarModel("perceptron", lambda h, k: (tanh(h[0][0]) - tanh(k[0][0])) ** 2 / 2)
    generated = Printed(model, backend, tmp_path)
    h, target = generated.array([[0.7]]), generated.array([[-0.4]])
    value = generated.loss(h, target, generated.array([1.3]))
    assert abs(float(np.ravel(value)[0]) - (np.tanh(0.7) - np.tanh(-0.4)) ** 2 / 2) < 1e-14


def test_mpmath_print_keeps_rational_numbers(tmp_path):
    model = ScalarModel("quartic", lambda h, k: Rational(1, 3) * (h[0][0] - k[0][0]) ** 4)
    generated = Printed(model, "mpmath", tmp_path)
    with mpmath.workdps(DIGITS):
        h, target = generated.array([[0.7]]), generated.array([[-0.4]])
        expected = (h[0, 0] - target[0, 0]) ** 4 / 3
        assert abs(generated.loss(h, target, [1.3]) - expected) < mpmath.mpf(10) ** -45
