"""Formulas of arrays mean what NumPy means, and everything else is refused; functions become such formulas."""

import itertools
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy.special import logsumexp
from sympy import Symbol, exp, lambdify

import attnphase.functions as fn
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem
from derivations.codegen.local_problem import local_problem_source
from derivations.models.formulas import FormulaError, names_in, parse_formula
from derivations.models.functions import NUMPY_FUNCTIONS, Softmax, with_known_functions
from derivations.models.scalar import Sizes, field_names, formula_label_planes, formula_loss, formula_roughness
from derivations.models.traced import traced

SIZES = Sizes(3, 2, 2)
RNG = np.random.default_rng(5)
POINT = {
    "h": RNG.normal(size=(3, 2)),
    "k": RNG.normal(size=(3, 2)),
    "noise": RNG.normal(size=(3, 3)),
    "c": np.array([0.0, 2.0, 1.0]),
}


def softmax(x: np.ndarray, causal: bool = False) -> np.ndarray:
    weights = np.exp(x) * (np.tril(np.ones_like(x)) if causal else 1.0)
    return weights / weights.sum(axis=-1, keepdims=True)


def read(text: str, sizes: Sizes = SIZES):
    h, *others = sizes.symbols()
    fixed = {x for values in others for x in values.flat}
    return parse_formula(text, *field_names(h, *others), fixed)


def value_at_point(expression, sizes: Sizes = SIZES) -> float:
    symbols = [x for values in sizes.symbols() for x in values.flat]
    numbers = np.concatenate([POINT[name].ravel() for name in ("h", "k", "noise", "c")])
    return float(lambdify(symbols, expression, [NUMPY_FUNCTIONS, "numpy"])(*numbers))


# --- what they mean ---------------------------------------------------------------------------------------------------

MEANINGS = {
    "h[1, 0] - 2*k[0, 1] + noise[2, 1]*c[1]": lambda h, k, noise, c: h[1, 0] - 2 * k[0, 1] + noise[2, 1] * c[1],
    "h1_0 - 2*k0_1 + noise2_1*c1": lambda h, k, noise, c: h[1, 0] - 2 * k[0, 1] + noise[2, 1] * c[1],
    "h[-1, 0] + h[:, 1][2] + h[1][0]": lambda h, k, noise, c: h[-1, 0] + h[2, 1] + h[1, 0],
    "sum(h[1:, 0]) - sum(k[:-1, 1]) + sum(h[::2, 1])": lambda h, k, noise, c: (
        h[1:, 0].sum() - k[:-1, 1].sum() + h[::2, 1].sum()
    ),
    "c @ k[:, 1]": lambda h, k, noise, c: c @ k[:, 1],
    "(h @ k.T)[0, 2] + (noise @ h)[1, 0] + (c @ h)[1]": lambda h, k, noise, c: (
        (h @ k.T)[0, 2] + (noise @ h)[1, 0] + (c @ h)[1]
    ),
    "softmax(h[:, 0]) @ h[:, 1]": lambda h, k, noise, c: softmax(h[:, 0]) @ h[:, 1],
    "hardmax(h[:, 0]) @ k[:, 1] + sum(hardmax(noise) * noise.T)": lambda h, k, noise, c: (
        k[h[:, 0].argmax(), 1] + noise.T[range(3), noise.argmax(axis=1)].sum()
    ),
    "argmax(h[:, 1]) + 10*argmax(noise)": lambda h, k, noise, c: h[:, 1].argmax() + 10 * noise.argmax(),
    "sum(softmax(h @ k.T) * noise)": lambda h, k, noise, c: (softmax(h @ k.T) * noise).sum(),
    "sum(softmax(h @ k.T, causal=True) * noise)": lambda h, k, noise, c: (softmax(h @ k.T, True) * noise).sum(),
    "sum(sum(h*k, axis=1) * c)": lambda h, k, noise, c: ((h * k).sum(axis=1) * c).sum(),
    "sum(sum(h*k, 0) * [1, -0.5])": lambda h, k, noise, c: (h * k).sum(axis=0) @ [1, -0.5],
    "sum(noise, axis=-1) @ c": lambda h, k, noise, c: noise.sum(axis=-1) @ c,
    "mean(h**2) + mean(k, axis=0)[1]": lambda h, k, noise, c: (h**2).mean() + k.mean(axis=0)[1],
    "max(h) + 2*min(k) + max(h[0, 0], 0.1)": lambda h, k, noise, c: h.max() + 2 * k.min() + max(h[0, 0], 0.1),
    "sum(max(h, k)) - sum(min(h[:, 0], 0.2))": lambda h, k, noise, c: (
        np.maximum(h, k).sum() - np.minimum(h[:, 0], 0.2).sum()
    ),
    "max(h[0, 0], k[0, 0], 0.1, h[1, 1]) - sum(min(h, k, -0.3))": lambda h, k, noise, c: (
        max(h[0, 0], k[0, 0], 0.1, h[1, 1]) - np.minimum(np.minimum(h, k), -0.3).sum()
    ),
    "sum((h - k[:, :1])**2) + sum((h[:, :1] - k[:, 1:].T)**2) + sum(c*noise)": lambda h, k, noise, c: (
        ((h - k[:, :1]) ** 2).sum() + ((h[:, :1] - k[:, 1:].T) ** 2).sum() + (c * noise).sum()
    ),
    "sum(tril(noise) * noise.T)": lambda h, k, noise, c: (np.tril(noise) * noise.T).sum(),
    "sum(eye(L) * noise) + L*sum(eye(2) * h[1:])": lambda h, k, noise, c: np.trace(noise) + 3 * np.trace(h[1:]),
    "sum(tanh(h) / (1 + exp(k)))": lambda h, k, noise, c: (np.tanh(h) / (1 + np.exp(k))).sum(),
    "sum(-h + h[:, 0] @ [[1, 2], [0, 3], [1, 1]])": lambda h, k, noise, c: (
        -h + h[:, 0] @ np.array([[1, 2], [0, 3], [1, 1]])
    ).sum(),
    "\n    a = h[:, 0]*c  # a comment\n    b = (a +\n         k[:, 1])\n    a @ b\n": lambda h, k, noise, c: (
        (h[:, 0] * c) @ (h[:, 0] * c + k[:, 1])
    ),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_formulas_of_arrays_mean_what_numpy_means(text):
    assert value_at_point(read(text)) == pytest.approx(MEANINGS[text](**POINT), rel=1e-12)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("max(h, k) + abs(h - noise)*c", "max(h0_0, k0_0) + abs(h0_0 - noise0_0)*c0"),
        ("h[0, 0]*k[0][0] + noise[0, 0]*c[0]", "h*k + noise*c"),
        ("sum(h) + h.T @ k[0] @ [1]", "h + h*k"),
        ("softmax(h[:, 0]) @ k[:, 0]", "k"),
    ],
)
def test_the_name_of_one_entry_is_a_number_and_an_array(text, same):
    sizes = Sizes(1, 1, 1)
    assert read(text, sizes) == read(same, sizes)


REFUSED = {
    "h": "its value 'h' is an array of shape (3, 2), but must be one number",
    "h[:, 0] + h": "'h[:, 0] + h' takes an array of shape (3,) and an array of shape (3, 2), which do not go together",
    "sum(h @ k)": "'h @ k' multiplies an array of shape (3, 2) with an array of shape (3, 2)",
    "h[0, 0] @ k[0]": "'h[0, 0] @ k[0]' multiplies one number with an array of shape (2,)",
    "h[3, 0]": "'h[3, 0]' does not exist: 'h' is an array of shape (3, 2)",
    "h[0, 0, 0]": "an index that is not of whole numbers and colons",
    "c[0, 1]": "'c[0, 1]' does not exist: 'c' is an array of shape (3,)",
    "h[L, 0]": "'h[L, 0]' has an index that is not of whole numbers",
    "h[0.5, 0]": "'h[0.5, 0]' has an index that is not of whole numbers",
    "h[::0, 0] @ c": "'h[::0, 0]' does not exist",
    "h[0, 0][0]": "'h[0, 0][0]' has an index, but 'h[0, 0]' is one number",
    "h.shape": "'h.shape' cannot stand in a formula",
    "h.sum()": "cannot stand in a formula",
    "h.__class__": "cannot stand in a formula",
    "x[0]": 'unknown name "x": the names are h',
    "norm(h)": 'unknown function "norm": the functions are exp',
    "sum(h[:, 0] - k[:, :1])": "takes arrays of shapes (3,) and (3, 1), of which NumPy makes a matrix of shape (3, 3)",
    "h[0, 0] > 0": "'h[0, 0] > 0' cannot stand in a formula: write it with sign, max, min, abs or relu",
    "h[0, 0] if k[0, 0] else 0": "cannot stand in a formula: write it with sign, max, min, abs or relu",
    "h[0, 0]**2 or not k": "cannot stand in a formula: write it with sign, max, min, abs or relu",
    "h[0, 0]^2": "'h[0, 0] ^ 2' cannot stand in a formula: write a power as **",
    "max()": 'it gives "max" 0 arguments, but max takes one or more',
    "softmax(h[0, 0])": "'softmax(h[0, 0])' takes one number, but softmax takes an array",
    "max(h[3:])": "'max(h[3:])' takes an array without entries",
    "sum(h, 2)": "'sum(h, 2)' has the axis 2, but takes an array of shape (3, 2)",
    "sum(h, axis=L)": "'sum(h, axis=L)' has 'L' where a whole number such as 0 must stand",
    "sum(h, axes=0)": "has the keyword axes, which sum does not take",
    "sum(h, 0, 1)": 'it gives "sum" 3 arguments, but sum takes one or two',
    "softmax(h, causal=True)[0, 0]": "is causal, but takes an array of shape (3, 2) and no square",
    "softmax(noise, causal=1)[0, 0]": "has '1' where True or False must stand",
    "tril(c)": "'tril(c)' takes an array of shape (3,), but tril takes a matrix",
    "sum(eye(17))": "'eye(17)' must be eye(L), or of a whole number from 1 to 16",
    "[h, 1][0]": "'[h, 1]' must be a list of numbers, or of lists of as many numbers each",
    "h[0, 0]**k[0, 0]": "its powers must be numbers",
    "sum(h / (c - c))": "'h / (c - c)'",
    "a = 2": "its last line 'a = 2' is not a formula",
    "a += 2\na": "its line 'a += 2' is not a definition",
    "import os\nh[0, 0]": "its line 'import os' is not a definition",
    "a, b = 1, 2\na": "is not a definition",
    "a = 1\na = 2\na*h[0, 0]": 'it defines "a" twice',
    "h = 1\nh": 'it defines "h", which is the name of a field, a number or a function',
    "k0_1 = 1\nk0_1": 'it defines "k0_1", which is the name of a field',
    "sum = 1\nsum": 'it defines "sum", which is the name of',
    "a = b\nb = 1\na": 'unknown name "b"',
    "# nothing": "it is empty",
    "a =\n1": "is not a formula",
    "a = 1e-400\nh[0, 0] + a": "too near to zero",
    "sum(" + "h + " * 5001 + "h)": "longer than 20000 characters",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_formulas_of_arrays_may_not_say(text):
    with pytest.raises(FormulaError) as caught:
        read(text)
    assert REFUSED[text] in str(caught.value)
    assert str(caught.value).endswith(".")
    assert str(caught.value).count(". ") == 0


def test_arrays_and_definitions_stand_in_losses_alone():
    names = {"x": Symbol("x", real=True)}
    for text in ("sum(x)", "y = x\ny", "[x][0]", "x.T"):
        with pytest.raises(FormulaError):
            parse_formula(text, names)


DOUBLED = "a0 = exp(h[0, 0]) + k[0, 0]\n" + "\n".join(f"a{n + 1} = a{n}*exp(a{n})" for n in range(40)) + "\na40"
LONG = "\n".join(f"m{n} = noise @ noise" for n in range(20)) + "\nm19[0, 0]*h[0, 0]"
WIDE = "a = softmax(noise @ noise)\nb = softmax(a @ a + h @ h.T)\ne = softmax(b @ b)\nsum(softmax(e @ e) @ h)"


@pytest.mark.parametrize("text", [DOUBLED, LONG, WIDE], ids=["doubled", "many products", "wide"])
def test_what_would_take_for_ever_is_refused(text):
    """Names that stand in a formula twice double it, and products of arrays hold many of numbers."""
    with pytest.raises(FormulaError, match="too intricate"):
        read(text, Sizes(8, 2, 2))


def test_a_softmax_of_sixteen_tokens_is_not_too_intricate():
    loss = read("(c @ k[:, 1] + noise[0, 0] - softmax(h[:, 0]) @ h[:, 1])**2/2", Sizes(16, 2, 2))
    assert len(loss.atoms(Softmax)) == 16


def test_names_of_definitions_are_neither_fields_nor_clusters():
    text = "c7 = 2*h[0, 0] - k[0, 0]\nhidden = c7**2\nk_of = hidden + sign(k[1, 1])\nk_of**2"
    assert names_in(text) == ["h", "k"]
    model = formula_loss(text, 3, 2, 2)
    assert (model.cluster_columns, model.has_kink) == (0, False)
    assert formula_roughness(text, sizes=SIZES).label_jumps
    planes = formula_label_planes(text, sizes=SIZES)
    assert planes is not None
    assert (planes.normal, planes.offsets) == ({(1, 1): 1.0}, (0.0,))


def test_jumps_of_arrays_are_found_as_those_of_their_entries():
    text = "sum((h[:, 0] - sign(0.7*k[0, 0] - k[2, 1] + 0.2))**2) + sum(abs(h - k))*c[0]"
    assert formula_roughness(text, sizes=SIZES) == (True, True, False)
    planes = formula_label_planes(text, sizes=SIZES)
    assert planes is not None
    assert planes.normal == {(0, 0): -0.7, (2, 1): 1.0}
    assert planes.offsets == (0.2,)


# --- the softmax ------------------------------------------------------------------------------------------------------


def test_a_softmax_is_not_multiplied_out():
    loss = read("sum((softmax(h @ h.T) @ k - softmax(k @ k.T) @ k)**2)")
    assert len(loss.atoms(Softmax)) == 18
    assert not loss.has(exp)
    first = loss.diff(Symbol("h0_0", real=True))
    assert first.diff(Symbol("h2_1", real=True)).atoms(Softmax) <= first.atoms(Softmax) <= loss.atoms(Softmax)


def test_derivatives_of_a_softmax_are_those_of_exponentials():
    z = [Symbol(f"h{a}_0", real=True) for a in range(3)]
    share = read("softmax(h[:, 0])[1]")
    plain = exp(z[1]) / sum(map(exp, z))
    for a, b in itertools.product(range(3), repeat=2):
        assert value_at_point(share.diff(z[a], z[b])) == pytest.approx(
            value_at_point(plain.diff(z[a], z[b])), rel=1e-11
        )


@pytest.mark.parametrize("count", [2, 3])
def test_logarithms_of_a_softmax_are_finite(count: int):
    """Where the share itself is too small for a number; a quotient of shares is a difference of logarithms."""
    for scale in (1.3, 2000.0):
        text = f"log(softmax({scale}*h[:{count}, 0])[1]**2/softmax({scale}*k[:{count}, 1])[0])"
        x, y = (scale * POINT[name][:count, column] for name, column in (("h", 0), ("k", 1)))
        expected = 2 * (x[1] - logsumexp(x)) - (y[0] - logsumexp(y))
        assert value_at_point(with_known_functions(read(text))) == pytest.approx(expected, rel=1e-12)


def test_generated_code_of_a_softmax_does_not_overflow():
    """Logits of a thousand: the value, the gradient and the Hessian are those of a sure choice."""
    model = formula_loss("(k[0, 0] - softmax(800*h[:, 0]) @ h[:, 1])**2/2", 3, 2, 1)
    module: dict = {}
    exec(local_problem_source(model, "numpy"), module)
    for order in itertools.permutations(range(3)):
        h = np.array([[2.3, 0.4], [-1.9, 0.7], [0.2, -0.9]])[list(order)]
        target, gradient, hessian = np.array([[0.3]] * 3), np.zeros((3, 2)), np.zeros((6, 6))
        numbers = np.zeros(3), np.ones(8)
        chosen = order.index(0)
        with np.errstate(all="raise", under="ignore"):
            value = module["loss_derivatives"](h, target, *numbers, gradient, hessian, np.zeros((3, 3)))
        expected = np.zeros((3, 2))
        expected[chosen, 1] = 0.4 - 0.3
        curved = np.zeros((6, 6))
        curved[2 * chosen + 1, 2 * chosen + 1] = 1.0
        assert value == pytest.approx(0.005, rel=1e-12)
        np.testing.assert_allclose(gradient, expected, atol=1e-12)
        np.testing.assert_allclose(hessian, curved, atol=1e-12)


# --- functions --------------------------------------------------------------------------------------------------------


def attention(h, k, noise, c, beta=1.3):
    label = c @ k[:, 1] + noise[0, 0]
    weights = fn.softmax(beta * h[:, 0])
    return (label - weights @ h[:, 1]) ** 2 / 2 + fn.relu(fn.max(h[0, 0], 0.25) - 1) / 3


FORMULA = """
weights = softmax(beta*h[:, 0])
(c @ k[:, 1] + noise[0, 0] - weights @ h[:, 1])**2/2 + relu(max(h[0, 0], 0.25) - 1)/3
"""


def as_read(text: str):
    names, arrays = field_names(*SIZES.symbols())
    return parse_formula(text, names | {one: Symbol(one, real=True) for one in ("beta", "s")}, arrays)


def test_a_function_is_the_formula_that_it_is():
    found = traced(attention, SIZES, {})
    assert found.parameters == {"beta": 1.3}
    assert as_read(found.text) == as_read(FORMULA)
    assert traced(attention, SIZES, {"beta": 2.5}).parameters == {"beta": 2.5}


def test_its_text_has_common_parts_once():
    def loss(h, k):
        z = h @ k.T
        for _ in range(5):
            z = fn.tanh(z @ k @ k.T)
        return (z**2).sum()

    text = traced(loss, Sizes(2, 2, 2), {}).text
    assert len(text) < 1500
    with pytest.raises(FormulaError, match="too intricate"):
        read(text, Sizes(2, 2, 2))


ARRAYS = ("argmax", "hardmax", "softmax")


@pytest.mark.parametrize("name", [name for name in fn.__all__ if name not in ARRAYS])
def test_each_function_is_written_as_formulas_have_it(name):
    function = getattr(fn, name)
    arguments = "2 + sin(h), cos(k)" if name in ("max", "min") else "2 + sin(h)"

    def loss(h, k):
        values = (2 + fn.sin(h), fn.cos(k)) if name in ("max", "min") else (2 + fn.sin(h),)
        return function(*values).sum() * 1e-5 + 0.25 * h[0, 0] ** -0.5

    assert read(traced(loss, SIZES, {}).text) == read(f"1e-5*sum({name}({arguments})) + 0.25/sqrt(h[0, 0])")


@pytest.mark.parametrize("name", ARRAYS)
def test_functions_of_arrays_are_written_as_formulas_have_them(name):
    function = getattr(fn, name)
    found = traced(lambda h, k: (function(h[:, 0] - k[:, 1]) * k[:, 0]).sum(), SIZES, {})
    assert read(found.text) == read(f"sum({name}(h[:, 0] - k[:, 1])*k[:, 0])")


def test_extremes_of_several_and_of_the_entries_of_an_array():
    """As formulas have them; Python's own max and min take as many."""
    found = traced(lambda h, k: fn.max(h) + fn.min(h[0, 0], k[1, 1], 0.3) + fn.max(h, k, 0.2).sum(), SIZES, {})
    assert read(found.text) == read("max(h) + min(h[0, 0], k[1, 1], 0.3) + sum(max(h, k, 0.2))")


def test_a_fault_of_this_package_is_told_as_it_is():
    """No function is to be taken instead where one of `attnphase.functions` says what is wrong."""
    with pytest.raises(FormulaError) as caught:
        traced(lambda h: fn.softmax(h[0, 0]), SIZES, {})
    assert str(caught.value) == "the function fails on symbols: functions.softmax takes an array with one or two axes."


def test_a_text_does_not_depend_on_the_process():
    code = (
        "from derivations.models.fingerprints import fingerprint\nfrom tests.symbolic.test_array_formulas import *\n"
        "print(repr(traced(attention, SIZES, {}).text), fingerprint(as_read(FORMULA)))"
    )
    found = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, check=True,
                       capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1
    assert repr(traced(attention, SIZES, {}).text) in found.pop()


def branches(h, k):
    return h[0, 0] if h[0, 0] > k[0, 0] else k[0, 0]  # noqa: FURB136  it is what is refused


def builtin_max(h, k):
    return max(h[0, 0], k[0, 0])


def loops(h):
    x = h[0, 0]
    while x > 1:
        x = x / 2
    return x


def of_numpy(h):
    return np.exp(h).sum()


def of_math(h):
    import math

    return math.exp(h[0, 0])


def of_sympy(h):
    from sympy import erf

    return erf(h[0, 0])


def ends(h):
    sys.exit(3)


FUNCTIONS = {
    branches: "on h0_0 > k0_0 in h[0, 0] > k[0, 0], which has no truth value for symbols: write it with max, min, abs",
    builtin_max: "branches on k0_0 > h0_0 in max(h[0, 0], k[0, 0]), which has no truth value for symbols: take max of",
    of_numpy: "the function fails on symbols in np.exp(h): take exp of attnphase.functions.",
    of_math: "the function fails on symbols in math.exp(h[0, 0]): take exp of attnphase.functions.",
    loops: "branches on h0_0 > 1 in x > 1, which has no truth value for symbols: write it with max, min",
    lambda h, k: sorted([h[0, 0], k[0, 0]])[0]:  # noqa: FURB192  it is what is refused
    "in sorted([h[0, 0], k[0, 0]]), which has no truth value for symbols:"
    " take max and min of attnphase.functions.",
    lambda h: np.maximum(h, 0).sum(): "in np.maximum(h, 0), which has no truth value for symbols: take max of",
    lambda h: h.max(): "in h.max(), which has no truth value for symbols: take max of attnphase.functions.",
    lambda h: h[0, 0] ** 2 * (h[0, 0] > 0): "takes a comparison for a number in h[0, 0] ** 2 * (h[0, 0] > 0): write",
    lambda h: float(h[0, 0]): "in float(h[0, 0]): Cannot convert expression to float, write it with + - * / ** and",
    lambda h, k: k[0, 0] * h[0, 0] * (1 if fn.sign(k[1, 0]) == 1 else -1): "for numbers it returns another value than",
    lambda h: RNG.normal() * h[0, 0]: "for numbers it returns another value than for symbols, as a function does that",
    lambda h, c: h[0, 0] if c[0] == 0 and c[2] == 1 else h[1, 0]: "for tokens in the clusters 0, 0, 1 it returns",
    lambda h: 1j * h[0, 0]: "it returns 1.0*I*h0_0, but must return finite real numbers",
    lambda h: h[0, 0] * np.inf: "it returns oo*h0_0, but must return finite real numbers",
    lambda h, k: ((h[:, 0] - k[:, :1]) ** 2).sum(): "takes arrays of shapes (3,) and (3, 1), of which NumPy makes a"
    " matrix of shape (3, 3): index both alike",
    lambda h, k: (fn.tanh(h[:, 0]) - fn.tanh(k[:, :1])).sum(): "takes arrays of shapes (3,) and (3, 1), of which",
    lambda h: fn.max(h[3:]): "functions.max takes no array without entries",
    lambda h, c: (h[0, 0] - (2 if c[1] == 1 else 3)) ** 2: "for tokens in cluster 1 it returns another value",
    lambda h, c: h[0, 0] if c[0] else h[1, 0]: "for tokens in cluster 0 it returns another value",
    of_sympy: "generated code does not know erf",
    ends: "it ends the program",
    lambda h: h: "it returns an array of shape (3, 2), but must return one number",
    lambda h: None: "it returns None, but must return an expression of its arguments",
    lambda h: h[0, 0] > 1: "it returns h0_0 > 1, but must return an expression",
    lambda h: "h": "it returns 'h', but must return an expression",
    lambda h: h[0, 0] + Symbol("omega"): "its value holds omega, which is none of its arguments",
    lambda h: h[5, 0]: "the function fails on symbols in h[5, 0]: index 5 is out of bounds",
    lambda h, a: a * h[0, 0]: 'its argument "a" is none of h, k, noise, c, Q, and no number: give it a default',
    lambda h, a="x": h[0, 0]: "its argument \"a\" must be a number, but its default is 'x'",
    lambda *h: h[0]: 'it takes "*h", but must name its arguments',
    lambda h, k: fn.hardmax(h[0, 0]): "functions.hardmax takes an array with one or two axes",
    lambda h, k: fn.softmax(h[0, 0]): "functions.softmax takes an array with one or two axes",
    lambda h: fn.softmax(h, causal=True): "functions.softmax is causal, but its array has the shape (3, 2)",
    lambda h: fn.exp("h"): "functions.exp takes numbers, symbols and arrays of these, not 'h'",  # pyright: ignore[reportArgumentType]
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_that_are_no_losses_are_refused(function):
    with pytest.raises(FormulaError) as caught:
        traced(function, SIZES, {})
    assert FUNCTIONS[function] in str(caught.value)
    assert str(caught.value).endswith(".")


def problem_of(expression, **loss) -> Problem:
    clusters = [{"sigma": 0.9, "mean": [0.0]}, {"sigma": 0.8, "mean": [1.4]}]
    law = {"kind": "single-location", "probability": 0.6}
    tokens = {"kind": "mixture", "length": 3, "clusters": clusters, "law": law}
    return Problem.from_dict(
        {
            "tokens": tokens | {"mean_teacher": [[0.9], [0.2]]},
            "positions": {"kind": "none"},
            "teacher": {"rank": 2, "noise": 0.2},
            "student": {"rank": 2},
            "loss": {"kind": "expression", "expression": expression, **loss},
        }
    )


def test_a_problem_with_a_function_is_data():
    first = problem_of(attention)
    assert dict(first.loss.parameters or {}) == {"beta": 1.3}
    again = Problem.from_toml(first.to_toml())
    assert again == first
    assert again.hash == first.hash == problem_of(attention).hash
    assert dict(problem_of(attention, parameters={"beta": 2.0}).loss.parameters or {}) == {"beta": 2.0}
    assert first.with_fields({"loss.parameters.beta": 2.0}) == problem_of(attention, parameters={"beta": 2.0})
    assert first.with_fields({"loss.expression": attention}) == first
    assert first.loss.form.cluster_columns == 1
    assert first.loss.form.has_kink


def squared(h, k, c, beta=9.0, scale=0.7):
    return sum((c[i] * k[i, 1] - scale * fn.tanh(beta * h[i, 0])) ** 2 for i in range(3))


def test_metrics_densities_and_penalties_may_be_functions():
    texts = {
        "tokens.density": "1 + s*tanh(k[0, 1]) - s/2*tanh(k[2, 0])*c[1]",
        "tokens.parameters": {"s": 0.2},
        "metrics.apart": "sum((c*k[:, 1] - 0.7*tanh(beta*h[:, 0]))**2)",
        "metrics.size": "sum(k**2)",
        "loss.trained": {"beta": "0.07*beta**2"},
        "regularizer.expression": "0.03*w**4 + 0.01*w**2",
    }
    functions = {
        "tokens.density": lambda k, c, s=0.2: 1 + s * fn.tanh(k[0, 1]) - s / 2 * fn.tanh(k[2, 0]) * c[1],
        "metrics.apart": squared,
        "metrics.size": lambda k: (k**2).sum(),
        "loss.trained": {"beta": lambda beta: 0.07 * beta**2},
        "regularizer.expression": lambda w, a=0.01: a * w**2 + 3 * a * w**4,
    }
    problem = problem_of(attention).with_fields({"regularizer.kind": "expression", "regularizer.expression": "w**2"})
    written, called = problem.with_fields(texts), problem.with_fields(functions)
    assert called.loss == written.loss  # its penalty is this text
    for one in ("apart", "size"):
        assert as_read(called.metrics[one]) == as_read(written.metrics[one])
    assert called.tokens.parameters == written.tokens.parameters
    densities = [str(one.tokens.density) for one in (called, written)]
    assert as_read(densities[0]) == as_read(densities[1])
    assert called.regularizer.expression == written.regularizer.expression
    assert called.with_fields({"metrics.size": lambda k: (k**2).sum()}) == called
    for again in (
        Problem.from_toml(called.to_toml()),
        pickle.loads(pickle.dumps(called)),
        problem.with_fields(functions),
    ):
        assert again == called
        assert again.hash == called.hash
    assert "beta" in called.metrics["apart"]  # a parameter of the loss stays one


def test_a_trained_argument_begins_at_its_default():
    def shifted(h, k, b=0.4, gain=1.3):
        return (gain * k[0, 0] - h[0, 0] - b) ** 2 / 2

    plain = Problem()
    loss = {"loss.kind": "expression", "loss.expression": shifted}
    problem = plain.with_fields(loss | {"loss.trained": {"b": "0.3*b**2"}})
    assert dict(problem.loss.parameters or {}) == {"b": 0.4, "gain": 1.3}
    assert problem == problem.with_fields({"loss.parameters": {"b": 0.4, "gain": 1.3}})
    with pytest.raises(ProblemError, match=r"loss\.trained\.z is no parameter of the loss: give the number"):
        plain.with_fields(loss | {"loss.trained": {"z": "z**2"}})


def test_a_metric_may_be_a_function_of_the_products_of_weights():
    norms = problem_of(lambda h, k, noise, Q: (h[0, 0] - k[0, 0] - noise[0, 0]) ** 2 + 0.1 * Q[0, 1] ** 2)
    changed = {"metrics.overlap": lambda h, Q: Q[1, 0] * h[0, 0]}
    assert norms.with_fields(changed).metrics["overlap"] == "Q0_1*h0_0"
    with pytest.raises(
        ProblemError, match=r'metrics\.overlap cannot be used: its argument "Q" is none of h, k, noise, c'
    ):
        problem_of(attention).with_fields(changed)


WRONG = {
    "metrics.m": (branches, "metrics.m cannot be used: the function branches on h0_0 > k0_0"),
    "metrics.n": (lambda h, c: h[0, 0] if c[0] == 1 else 0, "metrics.n cannot be used: for tokens in cluster 1"),
    "tokens.density": (
        lambda h: h[0, 0],
        'tokens.density cannot be used: its argument "h" is none of k, c, and no number: give it',
    ),
    "loss.trained": ({"beta": lambda b: b}, 'loss.trained.beta cannot be used: its argument "b" is none of beta'),
    "regularizer.expression": (
        lambda w, a="x": w,
        'regularizer.expression cannot be used: its argument "a" must be a number',
    ),
}


@pytest.mark.parametrize("field", WRONG)
def test_a_function_that_cannot_be_used_is_refused_under_its_field(field):
    value, message = WRONG[field]
    kind = "expression" if field == "regularizer.expression" else "ridge"
    with pytest.raises(ProblemError) as caught:
        problem_of(attention).with_fields({"regularizer.kind": kind, field: value})
    assert message in str(caught.value)


def test_the_sizes_are_those_of_the_problem():
    loss = {"kind": "expression", "expression": "sum(abs(h))"}
    one, two = (Problem.from_dict({"tokens": {"length": n}, "loss": loss}) for n in (1, 3))
    assert one.with_fields({"tokens.length": 3}) == two
    assert one.loss.form != two.loss.form
    shared, before = two.loss, two.loss.form
    other = Problem.from_dict({"tokens": {"length": 2}, "loss": loss})
    assert Problem(tokens=other.tokens, loss=shared).loss.form == other.loss.form
    assert shared.form == before


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("sum(h @ k)", r"^loss\.expression cannot be used: 'h @ k' multiplies"),
        (branches, r"^loss\.expression cannot be used: the function branches on h0_0 > k0_0"),
        (3, r"^loss\.expression must be a formula in the local fields h and k, or a function of them"),
        ("h[0, 0]" + 20_000 * " ", r"^loss\.expression must be .* of at most 20000 characters"),
        ("sum(sign(h))*noise[0, 0]", r"^loss\.expression takes sign\(h\d_\d\), which jumps"),
        (lambda h, k, noise: -(h**4).sum() + noise[0, 0], r"^loss\.expression falls without bound"),
    ],
)  # fmt: skip
def test_problems_name_the_field(expression, says):
    with pytest.raises(ProblemError, match=says):
        problem_of(expression)
