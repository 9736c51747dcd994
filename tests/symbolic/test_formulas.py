"""Formulas mean what NumPy means; what has no such meaning, or would take for ever, is refused.

Not public: `metric_function` and `parse_formula`, which read what problems hold, and need no fixed point.
"""
# SymPy's annotations do not know its own matrices
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportCallIssue=false

import ast
import itertools
from functools import reduce
from textwrap import dedent

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from sympy import Add, Function, Mul, Rational, Symbol, exp, symbols

from derivations.algebra.common_parts import Slopes, common_parts
from derivations.models.formulas import FormulaError, parse_formula
from derivations.models.functions import Softmax
from derivations.models.metrics import metric_function
from derivations.models.scalar import Sizes, field_names, formula_label_planes, formula_loss, formula_roughness

SIZES = Sizes(3, 2, 2)
RNG = np.random.default_rng(5)
POINT = {"h": RNG.normal(size=(3, 2)), "k": RNG.normal(size=(3, 2)), "noise": RNG.normal(size=(3, 3))}
POINT["c"] = np.array([0.0, 2.0, 1.0])


def read(text, sizes=SIZES):
    h, *others = sizes.symbols()
    return parse_formula(text, *field_names(h, *others), {x for values in others for x in values.flat})


def values_of(*texts, **point):
    h, k, noise, c = ({**POINT, **point}[name] for name in ("h", "k", "noise", "c"))
    found, jumps = metric_function(texts, 3, 2, 2)(
        h[..., None], k[..., None], noise.reshape(-1, 1), c[:, None], np.empty(0)
    )
    return found[:, 0], jumps[:, 0]


def softmax(x, causal=False):
    weights = np.exp(x - x.max()) * (np.tril(np.ones_like(x)) if causal else 1.0)
    return weights / weights.sum(axis=-1, keepdims=True)


_SAME = "exp tanh sinh cosh sin cos abs sign sqrt log sum mean tril eye argmax"
NUMPY = {name: getattr(np, name) for name in _SAME.split()}
NUMPY |= {"max": lambda x, *others: reduce(np.maximum, others, x) if others else np.max(x), "L": 3, "softmax": softmax}
NUMPY |= {"min": lambda x, *others: reduce(np.minimum, others, x) if others else np.min(x), "sigmoid": expit}
NUMPY |= {"relu": lambda x: np.maximum(x, 0), "softplus": lambda x: np.logaddexp(0, x)}
NUMPY |= {"hardmax": lambda x: np.eye(3)[x.argmax(axis=-1)]}
TEXTS = [
    "h[1, 0] - 2*k[0, 1] + noise[2, 1]*c[1]",
    "h1_0 - 2*k0_1 + noise2_1*c1",
    "h[-1, 0] + h[:, 1][2] + h[1][0]",
    "sum(h[1:, 0]) - sum(k[:-1, 1]) + sum(h[::2, 1])",
    "(h @ k.T)[0, 2] + (noise @ h)[1, 0] + (c @ h)[1] + c @ k[:, 1]",
    "softmax(h[:, 0]) @ h[:, 1]",
    "hardmax(h[:, 0]) @ k[:, 1] + sum(hardmax(noise) * noise.T)",
    "argmax(h[:, 1]) + 10*argmax(noise)",
    "sum(softmax(h @ k.T) * noise)",
    "sum(softmax(h @ k.T, causal=True) * noise)",
    "sum(sum(h*k, axis=1) * c)",
    "sum(sum(h*k, 0) * [1, -0.5])",
    "sum(noise, axis=-1) @ c",
    "mean(h**2) + mean(k, axis=0)[1]",
    "max(h) + 2*min(k) + max(h[0, 0], k[0, 0], 0.1, h[1, 1])",
    "sum(max(h, k)) - sum(min(h[:, 0], 0.2)) - sum(min(h, k, -0.3))",
    "sum((h - k[:, :1])**2) + sum((h[:, :1] - k[:, 1:].T)**2) + sum(c*noise)",
    "sum(tril(noise) * noise.T) + sum(eye(L) * noise) + L*sum(eye(2) * h[1:])",
    "sum(-h + h[:, 0] @ [[1, 2], [0, 3], [1, 1]])",
    "\n    a = h[:, 0]*c  # a comment\n    b = (a +\n         k[:, 1])\n    a @ b\n",
    "sum(exp(h) + tanh(k)/(1 + cosh(h)**2) - sinh(h)*sin(k) + cos(h*k))",
    "sum(sqrt(h**2 + 0.75)*log(2 + k**2) + abs(h)**1.5 - relu(k)*sign(h))",
    "sum(sigmoid(3*h) + softplus(k)**-2 - -h*k/0.3)",
]


@pytest.mark.parametrize("text", TEXTS)
def test_formulas_mean_what_numpy_means(text):
    """The same text is a program of NumPy."""
    entries = {f"{name}{'_'.join(map(str, place))}": x for name, a in POINT.items() for place, x in np.ndenumerate(a)}
    *lines, last = ast.parse(dedent(text)).body
    names = {**NUMPY, **POINT, **entries}
    exec(compile(ast.Module(lines, []), "<text>", "exec"), names)
    expected = eval(compile(ast.Expression(last.value), "<text>", "eval"), names)
    assert values_of(text)[0] == pytest.approx(expected, rel=1e-12)


def test_jumps_of_metrics_are_how_much_signs_change_them():
    texts = "sign(h[0, 0])*k[0, 0]", "h[0, 1] + 0.3*sign(k[1, 1] - h[0, 0])", "h[1, 1]**2"
    expected = [2 * abs(POINT["k"][0, 0]), 0.6, 0.0]
    for count in (1, 2, 3):
        assert values_of(*texts[:count])[1] == pytest.approx(expected[:count], rel=1e-12)


def test_jumps_of_arrays_are_those_of_their_entries():
    text = "sum((h[:, 0] - sign(0.7*k[0, 0] - k[2, 1] + 0.2))**2) + sum(abs(h - k))*c[0]"
    assert formula_roughness(text, sizes=SIZES) == (True, True, False)
    planes = formula_label_planes(text, sizes=SIZES)
    assert planes is not None
    assert (planes.normal, planes.offsets) == ({(0, 0): -0.7, (2, 1): 1.0}, (0.2,))


def test_derivatives_of_a_softmax_are_those_of_exponentials():
    z = [Symbol(f"h{a}_0", real=True) for a in range(3)]
    share, plain = read("softmax(h[:, 0])[1]"), exp(z[1]) / Add(*map(exp, z))
    point = dict(zip(z, POINT["h"][:, 0], strict=True))
    for a, b in itertools.product(range(3), repeat=2):
        second, shared = share.diff(z[a], z[b]), Slopes(z[b])(Slopes(z[a])(share))
        expected = pytest.approx(float(plain.diff(z[a], z[b]).subs(point)), rel=1e-11)
        assert float(second.doit().subs(point)) == expected == float(shared.doit().subs(point))
        assert second.atoms(Softmax) <= read("sum(softmax(h[:, 0])*c)").atoms(Softmax)  # is not multiplied out


@pytest.mark.parametrize("count", [2, 3])
def test_logarithms_of_a_softmax_are_finite(count):
    """Where the share itself is too small for a number; a quotient of shares is a difference of logarithms."""
    for scale in (1.3, 2000.0):
        x, y = (scale * POINT[name][:count, column] for name, column in (("h", 0), ("k", 1)))
        text = f"log(softmax({scale}*h[:{count}, 0])[1]**2/softmax({scale}*k[:{count}, 1])[0])"
        assert values_of(text)[0] == pytest.approx(2 * (x[1] - logsumexp(x)) - (y[0] - logsumexp(y)), rel=1e-12)


def test_numbers_times_sums_stay_sums():
    """Where a sum stands beside a number times it: SymPy's own `cse` multiplies the terms of the last one here."""
    a, b, c = symbols("a b c", real=True)
    part, sums = Rational(2, 5), (a + b, a + b + c)
    whole = [*(exp(Mul(part, x, evaluate=False)) for x in sums), *(exp(part * x) for x in sums)]
    values = {a: 0.31, b: 0.72, c: -0.23}
    shared, left = common_parts(whole, "y")
    known = dict(values)
    for name, value in shared:
        known[name] = value.subs(known)
    assert shared
    for one, expected in zip(left, whole, strict=True):
        assert abs(one.subs(known) - expected.subs(values)) < 1e-12


class Counted(Function):
    """A function that counts how often it is differentiated."""

    times = 0

    def fdiff(self, argindex=1):
        type(self).times += 1
        return Counted(2 * self.args[0])


def test_each_part_is_differentiated_once():
    """Written out, the last of these has 4095 calls of the function, and its second derivative many more."""
    x = Symbol("x", real=True)
    part, slope = x, Slopes(x)
    for _ in range(12):
        part = part * Counted(part)
    assert slope(slope(part)) != 0
    assert Counted.times <= 24


def nested(line, lines, first="h[0, 0] + k[0, 0]"):
    definitions = [f"a{n + 1} = {line.format(f'a{n}')}" for n in range(lines)]
    return "\n".join([f"a0 = {first}", *definitions, f"sum((a{lines} - k[0, 0])**2)"])


NO_MEANING = {
    "h": "is an array of shape (3, 2), but must be one number",
    "h[3, 0]": "does not exist: 'h' is an array of shape (3, 2)",
    "sum(h[:, 0] - k[:, :1])": "takes arrays of shapes (3,) and (3, 1), of which NumPy makes a matrix of shape (3, 3)",
    "softmax(h, causal=True)[0, 0]": "is causal, but takes an array of shape (3, 2) and no square",
    "h[0, 0] if k[0, 0] else 0": "write it with sign, max, min, abs or relu",
    "__import__('os')": 'unknown function "__import__"',
    "h[0, 0]**k[0, 0]": "its powers must be numbers",
    "h[0, 0]**65": "at most 64",
    "h[0, 0]**(-1e6)": "at most 64",
    "((9**64)**64)**64*h[0, 0]": "too large a number",
    "import os\nh[0, 0]": "its line 'import os' is not a definition",
}
TOO_INTRICATE = {
    "products of exponentials": nested("{0}*exp({0})", 40, "exp(h[0, 0]) + k[0, 0]"),
    "products of arrays": "\n".join(f"m{n} = noise @ noise" for n in range(20)) + "\nm19[0, 0]*h[0, 0]",
    "softmax of softmax": "a = softmax(noise)\nb = softmax(a @ a + h @ h.T)\nsum(softmax(b @ b) @ h)",
    "matrices": nested("{0} @ {0}", 40, "h @ h.T"),
    "powers": nested("(1 + {0})**9*{0}", 40),
    "kinks": nested("relu({0})*exp(relu({0})) + 1", 4),
    "largest": nested("max({0}, 1 - {0}*{0})", 12),
}  # fmt: skip


@pytest.mark.parametrize("text", NO_MEANING)
def test_formulas_without_a_meaning_are_refused(text):
    with pytest.raises(FormulaError) as caught:
        read(text)
    assert NO_MEANING[text] in str(caught.value)


@pytest.mark.parametrize("name", TOO_INTRICATE)
def test_what_would_take_for_ever_is_refused(name):
    """Names that stand in a formula twice double it, and second derivatives more so."""
    with pytest.raises(FormulaError, match="too intricate"):
        _ = formula_loss(TOO_INTRICATE[name], 8, 2, 2, noisy=True).has_kink


def test_definitions_may_nest_as_deep_as_python_can_walk():
    with pytest.raises(FormulaError, match="nested more than 200 levels deep"):
        _ = formula_loss(nested("tanh({0} + 1)", 300, "k[0, 0]") + " + h[0, 0]**2", 2, 2, 2).has_kink
    long = nested("0.9*{0} + " + " + ".join(["k[1, 0]"] * 30), 20, "k[0, 0]")  # a sum of a sum is one level
    for text in (nested("tanh({0} + 1)", 95, "k[0, 0]"), long):
        assert not formula_loss(text + " + h[0, 0]**2", 2, 2, 2).has_kink
