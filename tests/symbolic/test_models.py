"""A model's one statement of its loss: pages and generated code are made of it, and change with it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sympy import Indexed, Integer, Sum, Symbol, lambdify

from attnphase.problem.problem import Problem
from derivations.algebra import symbols as sym
from derivations.codegen.ir import Accumulate, Assign, Call, Function, If, Loop, Module, Ordered, Return, element, name
from derivations.codegen.local_problem import local_problem, local_problem_source
from derivations.codegen.writer import written
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.functions import NUMPY_FUNCTIONS
from derivations.models.model import composed, field_symbols, label_symbols, numbered, written_out
from derivations.models.scalar import SCALAR_LOSSES, ScalarModel
from derivations.models.scores import SCORES
from derivations.printing.page import document

TEMPERATURES = {sym.student_temperature: 1.25, sym.teacher_temperature: 0.75}


@dataclass(frozen=True)
class Quartic(AttentionModel):
    """Attention with another distance, which weighs rows unequally: no other line knows of it."""

    @property
    def row_loss(self) -> Any:
        S, T = sym.attention[sym.row, sym.token], sym.target[sym.row, sym.token]
        distance: Any = Sum(sym.token_variance[sym.token] * (S - T) ** 4, (sym.token, 1, self.length))
        return distance / 4 + sym.attention[sym.row, 1] * sym.target[sym.row, 1]


@dataclass(frozen=True)
class Cubic(AttentionModel):
    """Values with another distance, and one field that enters by itself."""

    @property
    def row_loss(self) -> Any:
        output, label = (numbered(base, sym.row, 1, self.values) for base in (sym.output, sym.label))
        return (output - label) ** 2 * output**2 / 3 + sym.h[1, self.columns] ** 2


MODELS = {
    "attention": AttentionModel(3, Student(rank=2, tied=False), Teacher(SCORES["sigmoid"], 2)),
    "causal": AttentionModel(3, Student(causal=True), Teacher(causal=True)),
    "null logit": AttentionModel(2, Student(SCORES["softmax1"]), Teacher(SCORES["relu"])),
    "values": AttentionModel(2, Student(causal=True), Teacher(rank=2), values=2),
    "one value": AttentionModel(2, values=1),
    "values of samples": AttentionModel(2, values=1, finite=True),
    "samples": AttentionModel(3, Student(tied=False, causal=True), finite=True),
    "changed": Quartic(2),
    "changed, causal": Quartic(3, Student(causal=True)),
    "changed values": Cubic(2, Student(tied=False), values=1),
    "noise": AttentionModel(3, Student(causal=True), Teacher(rank=2, causal=True), noisy=True),
    "noise on values": AttentionModel(2, Student(tied=False), values=2, noisy=True),
    "noise on values of samples": AttentionModel(2, values=1, finite=True, noisy=True),
    "two tokens with noise": ScalarModel(
        "own",
        lambda h, k: (h[0][0] * h[1][0] - k[1][0] * k[0][2]) ** 3 / 5 + h[1][0] ** 2 * k[1][1],
        2,
        noise_columns=2,
    ),
    "two tokens": ScalarModel("own", lambda h, k: (h[0][0] * h[1][1] - k[1][0]) ** 3 / 5, 2, 2, 1),
}


def numbers_of(model: Any, seed: int) -> SimpleNamespace:
    """A sample's fields and parameters; a Gram matrix where the model takes one."""
    rng = np.random.default_rng(seed)
    length = model.length
    root = rng.normal(size=(length, length))
    return SimpleNamespace(
        h=rng.normal(0.2, 0.8, (length, model.columns)),
        k=rng.normal(-0.1, 0.9, (length, model.teacher_rank + model.noise_columns)),
        mixing=rng.uniform(0.1, 0.9, (length, length)),
        omega=0.37,
        variance=root @ root.T if model.has_grams else rng.uniform(0.3, 1.4, length),
        cross=rng.normal(size=(length, length)),
    )


def stated(model: Any, of: SimpleNamespace) -> tuple[float, np.ndarray]:
    """The loss that the model's definitions state, and its gradient by SymPy, entry by entry."""
    h, k = (
        [[Symbol(f"{letter}{a}_{c}", real=True) for c in range(columns)] for a in range(model.length)]
        for letter, columns in (("h", model.columns), ("k", model.teacher_rank + model.noise_columns))
    )
    loss = composed(model.definitions(), model.length, field_symbols(sym.h, h) | label_symbols(model, k))
    values = {x: of.h[a, c] for a, row in enumerate(h) for c, x in enumerate(row)}
    values |= {x: of.k[a, c] for a, row in enumerate(k) for c, x in enumerate(row)}
    values |= {sym.omega: of.omega, **TEMPERATURES}
    arrays = {sym.mixing: of.mixing, sym.token_variance: of.variance, sym.gram: of.variance, sym.cross: of.cross}
    for entry in loss.atoms(Indexed):
        values[entry] = arrays[entry.base][tuple(int(index) - 1 for index in entry.indices)]
    flat = [x for row in h for x in row]
    plain = {old: Symbol(f"p{i}", real=True) for i, old in enumerate(values)}
    expressions = [e.xreplace(plain) for e in (loss, *(loss.diff(x) for x in flat))]
    result = lambdify(list(plain.values()), expressions, [NUMPY_FUNCTIONS, "numpy"])(*values.values())
    return result[0], np.array(result[1:]).reshape(of.h.shape)


def code_of(model: Any) -> dict[str, Any]:
    """The generated functions."""
    code: dict[str, Any] = {}
    exec(local_problem_source(model, "numpy"), code)
    return code


def computed(model: Any, of: SimpleNamespace, code: dict[str, Any] | None = None) -> tuple[float, Any, Any]:
    """Loss, gradient and Hessian of the generated code."""
    code = code or code_of(model)
    parameters = np.array([of.omega, *TEMPERATURES.values()])
    target = np.zeros((model.length, max(of.k.shape)))
    if model.has_grams:
        target[...] = of.cross
    else:
        code["teacher_target"](of.k, of.mixing, parameters, target)
    size = of.h.size
    gradient, hessian = np.zeros(of.h.shape), np.zeros((size, size))
    loss = code["loss_derivatives"](of.h, target, of.variance, parameters, gradient, hessian, np.zeros(size))
    assert code["loss"](of.h, target, of.variance, parameters) == pytest.approx(loss, rel=1e-13)
    return loss, gradient, hessian


@pytest.mark.parametrize("label", MODELS)
def test_generated_code_computes_what_the_definitions_state(label):
    """The page's own expressions, composed, against the code that is chained row by row: finite d too."""
    model = MODELS[label]
    of = numbers_of(model, 3)
    loss, gradient = stated(model, of)
    code = code_of(model)
    mine, slope, hessian = computed(model, of, code)
    assert mine == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(slope, gradient, rtol=1e-11, atol=1e-13)
    step, size = 1e-6, of.h.size
    for place in range(size):
        shift = step * np.eye(size)[place].reshape(of.h.shape)
        up, down = (computed(model, SimpleNamespace(**vars(of) | {"h": of.h + s}), code)[1] for s in (shift, -shift))
        np.testing.assert_allclose((up - down).ravel() / (2 * step), hessian[place], rtol=1e-6, atol=1e-7)


def test_a_changed_row_loss_changes_code_and_page(monkeypatch):
    model, of = AttentionModel(2), numbers_of(AttentionModel(2), 5)
    before, page = computed(model, of)[0], document(model, concrete=True).latex()
    assert r"\left(\mathsf{S}_{a b} - \mathsf{T}_{a b}\right)^{4}" not in page
    monkeypatch.setattr(AttentionModel, "row_loss", Quartic.row_loss)
    after = computed(model, of)[0]
    assert abs(after - before) > 1e-3
    assert after == pytest.approx(computed(Quartic(2), of)[0], rel=1e-15)
    changed = document(model, concrete=True).latex()
    assert r"^{4}" in changed
    assert changed != page


def test_the_target_is_stated_once(monkeypatch):
    """Omega on the other side, in `rows` alone, reaches the page and the teacher's code."""
    model, of = AttentionModel(2), numbers_of(AttentionModel(2), 6)
    page, rows = document(model, concrete=True).latex(), model.rows
    swapped = rows.mixed.xreplace({sym.omega: 1 - sym.omega})
    other = SimpleNamespace(**vars(of) | {"omega": 1 - of.omega})
    expected = computed(model, other)[0]
    monkeypatch.setattr(AttentionModel, "rows", type(rows)(rows.student, rows.teacher, rows.loss, swapped))
    assert computed(model, of)[0] == pytest.approx(expected, rel=1e-14)
    assert document(model, concrete=True).latex() != page


@pytest.mark.parametrize("kind", SCALAR_LOSSES)
def test_flags_of_losses_are_those_of_their_expressions(kind):
    """Problems are read without SymPy, so their kinds carry plain flags: these must be what the expression says."""
    loss, model = Problem().with_fields({"tokens.length": 1, "loss.kind": kind}).loss, SCALAR_LOSSES[kind]
    assert (loss.form.has_labels, loss.form.has_kink) == (model.has_labels, model.has_kink)


def test_flags_look_at_the_fields_that_matter():
    for text, labels, kink in (
        (lambda h, k: (h[0][0] - k[0][0]) ** 2, False, False),
        (lambda h, k: abs(k[0][0]) * h[0][0] ** 2, False, False),
        (lambda h, k: abs(h[0][0]), False, True),
    ):
        model = ScalarModel("own", text)
        assert (model.has_labels, model.has_kink) == (labels, kink)


def test_sums_are_written_out_innermost_first():
    a, b = sym.row, sym.token
    nested: Any = Sum(Sum(sym.gram[a, b] * b, (b, 1, 2)), (a, 1, 2))
    expected = sum(sym.gram[i, j] * j for i in (1, 2) for j in (1, 2))
    assert written_out(nested / 2 + sym.omega) == expected / 2 + sym.omega


# --- the form between expressions and text --------------------------------------------------------


def test_the_intermediate_form_is_written_in_its_order():
    """Operations keep the order they are given: a rounding must not depend on how SymPy sorts names."""
    x, y, i = name("x"), name("y"), Symbol("i", integer=True)
    body = (
        Assign(x, Ordered("*", (Ordered("+", (element("b", 0), element("a", 1))), y))),
        Assign(y, Ordered("*", (x, y * element("a", 2)))),
        Loop(i, 3, (Accumulate(element("c", i, 2 * i + 1), Ordered("-", (x, x + y))),)),
        If(x <= 0, (Return(False),)),
        Return(Call("largest_of", (x, 0.5))),
    )
    text = written(Module({"SIZE": 3, "PAIRS": (0, 1)}, (Function("f", ("a", "b", "c"), body),)))
    assert text == (
        "SIZE = 3\nPAIRS = (0, 1)\n\n\n@compiled\ndef f(a, b, c):\n"
        "    x = (b[0] + a[1]) * y\n"
        "    y = x * (y * a[2])\n"
        "    for i in range(3):\n"
        "        c[i, 2 * i + 1] += x - (x + y)\n"
        "    if x <= 0:\n        return False\n"
        "    return largest_of(x, 0.5)"
    )


def test_what_has_no_text_is_refused_by_name():
    for statement, words in (
        ("pass", "no text for the statement str"),
        (Return({}), "no text for the value dict"),  # pyright: ignore[reportArgumentType]
    ):
        module = Module({}, (Function("f", (), (statement,)),))  # pyright: ignore[reportArgumentType]
        with pytest.raises(TypeError, match=words):
            written(module)


def test_every_model_has_the_same_functions():
    """The minimiser is written for these names and arguments."""
    found = {label: local_problem(model) for label, model in MODELS.items()}
    signatures = {label: [(f.name, f.arguments) for f in module.functions] for label, module in found.items()}
    assert len({tuple(one) for one in signatures.values()}) == 1
    names = [name for name, _ in signatures["samples"]]
    derivatives = ["loss", "loss_gradient", "loss_derivatives", "kinked_derivatives"]
    assert names == ["teacher_target", *derivatives, "weights_of", "closed_form"]
    sizes = {
        "LENGTH": 2,
        "COLUMNS": 3,
        "TEACHER_RANK": 4,
        "NOISE": 0,
        "LABEL_FIELDS": 4,
        "PARAMETERS": 0,
        "LIFT": (0, 2, 3),
        "KINKS": 0,
    }
    assert found["values"].constants == sizes
    assert Integer(0) not in MODELS["samples"].rows.loss.args
