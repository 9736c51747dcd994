"""The printed equations: complete, well-formed, compilable, and equal to what is computed."""

from __future__ import annotations

import importlib.util
import pickle
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sympy import Add, Expr, Indexed, Integer, Rational, Symbol, exp, symbols
from sympy.matrices.expressions import Inverse, MatAdd, MatMul, Trace, Transpose
from sympy.printing.latex import LatexPrinter

import attnphase as ap
from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean, SpectralMean
from derivations.algebra.tokens import MatrixSqrt, TokenSum
from derivations.codegen.arrays import state_evolution_source
from derivations.codegen.local_problem import module_source
from derivations.models.attention import AttentionModel, Student, Teacher
from derivations.models.scalar import ScalarModel
from derivations.models.scores import RowScore, linear, resolve
from derivations.printing.document import Document, Formula, Heading
from derivations.printing.latex import EquationPrinter, expanded, scalarized
from derivations.printing.page import document, equations_page, latex, markdown
from derivations.replica.amp import derive_iteration
from derivations.replica.chain import derive_free_entropy
from derivations.replica.observables import observables
from derivations.replica.saddle_point import abbreviated, definitions, derive_saddle_point

ROOT = Path(__file__).parents[2]
PLAIN = EquationPrinter()

MODELS = {
    "tied": AttentionModel(),
    "untied": AttentionModel(student=Student(tied=False)),
    "large": AttentionModel(8, Student(linear, 3, tied=False), Teacher(rank=2)),
    "scalar": ScalarModel("ridge_regression", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2),
}
PAGES = [(name, concrete) for name in MODELS for concrete in (False, True)]
pages = pytest.mark.parametrize(("name", "concrete"), PAGES)


@cache
def page_of(name: str, concrete: bool) -> Document:
    return document(MODELS[name], concrete=concrete)


def squeezed(text: str) -> str:
    """Without white space, line breaks and alignment."""
    return re.sub(r"\\\\|&|\{\}|\\quad|\s", "", text)


# --- what is on the page -------------------------------------------------------------------------


@pages
def test_every_formula_is_printed(name, concrete):
    model = MODELS[name]
    scalar = concrete and model.columns == model.teacher_rank == 1
    printer = EquationPrinter(model.length if concrete else None, scalar)
    text = squeezed(page_of(name, concrete).latex())
    formulas = [e.right_hand_side for e in derive_saddle_point(derive_free_entropy(model))]
    formulas += [term for _, term in derive_free_entropy(model)]
    formulas += [o.expression for o in observables(derive_free_entropy(model))]
    for formula in formulas:
        for _, term in printer.terms(abbreviated(formula)):
            assert squeezed(term) in text
    for equation in derive_saddle_point(derive_free_entropy(model)):
        assert squeezed(f"{printer.show(equation.unknown)} =") in text
        assert equation.number in text
    for named in derive_iteration():
        assert squeezed(f"{PLAIN.show(named.unknown)} = {PLAIN.show(named.value)}") in text
    for symbol in definitions():
        assert squeezed(f"{printer.show(symbol)} =") in text or f"{symbol.name}^{{-1}}=" in text
    for step in derive_free_entropy(model).steps:
        assert f"{step.name} (paper" in page_of(name, concrete).latex()
        for term in step.terms:
            assert rf"\text{{{term}}}" in text


def test_known_formulas():
    """The paper's equations as they should read, spelt out once."""
    text = squeezed(latex(AttentionModel()))
    for formula in (
        r"m_{\ell}=\int\!\mathrm{d}\nu\,\tau_{\ell}Rb",
        r"\theta_{\ell}=\int\!\mathrm{d}\nu\,\gamma_{\ell}Rb\pi^{\top}",
        r"\hat q_{\ell}=\alpha\mathbb{E}\left[g_{\ell}g_{\ell}^{\top}\right]",
        r"\hat V_{\ell}=\operatorname{sym}\left[-\alpha\mathbb{E}\left[g_{\ell}\xi_{\ell}^{\top}\right]"
        r"\left(q_{\ell}-\theta_{\ell}\rho_{\ell}^{-1}\theta_{\ell}^{\top}\right)^{-1/2}\right]",
        r"\hat\theta_{\ell}=\alpha\mathbb{E}\left[g_{\ell}k_{\ell}^{\top}\right]\rho_{\ell}^{-1}"
        r"-\alpha\mathbb{E}\left[g_{\ell}\xi_{\ell}^{\top}\right]\left(q_{\ell}",
        r"+\tfrac{1}{2}\sum_{\ell}\operatorname{Tr}\left[\hat q_{\ell}V_{\ell}\right]",
        r"-\tfrac{1}{2}\sum_{\ell}\operatorname{Tr}\left[\hat V_{\ell}q_{\ell}\right]",
        r"\epsilon_g=\frac{2}{L}\mathbb{E}\left[\ell(\omega,k)\right]",
    ):
        assert squeezed(formula) in text


def test_scalar_formulas_hold_no_matrices():
    text = squeezed(latex(AttentionModel(), concrete=True))
    for formula in (
        r"R=\frac{1}{\lambda+\gamma_{1}\hat V_{1}+\gamma_{2}\hat V_{2}}",
        r"\hat\theta_{\ell}=\frac{\alpha}{\rho_{\ell}}\mathbb{E}\left[g_{\ell}k_{\ell}\right]-",
        r"\epsilon_g=\mathbb{E}\left[\ell(\omega,k)\right]",
    ):
        assert squeezed(formula) in text
    assert r"\operatorname{sym}" not in text


def test_pages_differ_where_the_models_do():
    tied, untied = (page_of(name, False).latex() for name in ("tied", "untied"))
    assert r"h h^\top" in tied
    assert "(Q|K)" not in tied
    assert r"h_Q^{} h_K^\top" in untied
    assert r"h h^\top" not in untied
    two, three = (latex(AttentionModel(n), concrete=True) for n in (2, 3))
    assert r"\gamma_{3}" not in two
    assert r"\gamma_{3}" in three
    general = latex(AttentionModel())
    assert general == latex(AttentionModel(3))  # sizes are symbols
    assert r"\sum_{\kappa}" in general
    assert r"\sum_{\kappa} \gamma" not in three
    large = page_of("large", True).latex()
    assert r"\mathbb{R}^{6 \times 2}" in large


def test_a_score_of_ones_own_is_defined_from_its_row_function():
    score = RowScore("ratio", r"\mathrm{ratio}", lambda z: tuple(x**2 / Add(*(y**2 for y in z)) for x in z))
    text = latex(AttentionModel(3, Student(score)), concrete=True)
    entry = r"\frac{z_{1}^{2}}{z_{1}^{2} + z_{2}^{2} + z_{3}^{2}}"
    assert rf"\mathrm{{ratio}}(z) & = \left({entry}" in text
    assert r"\mathrm{softmax}(z)" in text  # the teacher's


def test_tags_are_unique_and_cite_the_paper():
    page = document(AttentionModel())
    tags = [block.tag for block in page.blocks if isinstance(block, Formula)]
    assert len(set(tags)) == len(tags)
    assert [t for t in tags if t[0] == "S"] == [f"S{i}" for i in range(1, 9)]
    headings = [block.text for block in page.blocks if isinstance(block, Heading)]
    assert headings.index("Replica calculation") < headings.index("Saddle-point equations")
    assert "(paper, eqs. (100), (104))" in page.latex()
    assert "(paper, App. B)" in page.latex()


# --- the formats ---------------------------------------------------------------------------------


@pages
def test_latex_is_balanced(name, concrete):
    text = page_of(name, concrete).latex()
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert text.count(r"\left") == text.count(r"\right")
    assert text.count(r"\Bigl") == text.count(r"\Bigr")
    open_environments = []
    for kind, environment in re.findall(r"\\(begin|end)\{([a-z*]+)\}", text):
        if kind == "begin":
            open_environments.append(environment)
        else:
            assert open_environments.pop() == environment
    assert not open_environments
    assert text.replace("–", "-").replace("á", "a").isascii()


@pages
def test_latex_compiles_within_the_margins(name, concrete, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-recommended)")
    (tmp_path / "page.tex").write_text(page_of(name, concrete).latex(), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-2000:]
    assert "Overfull" not in run.stdout
    assert "Warning" not in run.stdout
    assert (tmp_path / "page.pdf").stat().st_size > 10_000


# what MathJax 3 knows without extensions, of what a page may use
MATHJAX = {
    "alpha",
    "bar",
    "begin",
    "beta",
    "Bigl",
    "Bigr",
    "dots",
    "ell",
    "end",
    "epsilon",
    "eta",
    "exp",
    "frac",
    "gamma",
    "hat",
    "in",
    "infty",
    "int",
    "kappa",
    "Lambda",
    "lambda",
    "lbrace",
    "left",
    "lim",
    "log",
    "lVert",
    "mathbb",
    "mathcal",
    "mathrm",
    "mathsf",
    "min",
    "mspace",
    "mu",
    "negthinspace",
    "neq",
    "nu",
    "omega",
    "operatorname",
    "partial",
    "Phi",
    "pi",
    "prod",
    "Psi",
    "qquad",
    "quad",
    "rbrace",
    "rho",
    "right",
    "rVert",
    "Sigma",
    "sim",
    "sqrt",
    "star",
    "sum",
    "tag",
    "tau",
    "text",
    "tfrac",
    "theta",
    "thinspace",
    "times",
    "to",
    "top",
    "xi",
}


@pages
def test_markdown_suits_mathjax(name, concrete):
    text = page_of(name, concrete).markdown()
    displays = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, flags=re.DOTALL | re.MULTILINE)
    assert 2 * len(displays) == text.count("$$")
    for display in displays:
        assert display.count(r"\tag{") == 1
        # a tag inside the inner environment is an error, and so is a blank line
        assert re.search(r"\\tag\{[A-Z]\d+\}$", display)
        assert "\n\n" not in display
    outside = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    assert r"\tag" not in outside
    assert outside.count("$") % 2 == 0
    assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= MATHJAX
    # Markdown would drop the backslash of these
    assert not re.search(r"(?<!\\)\\[^a-zA-Z\\\n]", text)
    assert r"\left\lbrace" in text or r"\Bigl\lbrace" in text


def test_the_page_in_the_documentation_is_up_to_date():
    written = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
    assert written == equations_page(), "run: python -m derivations.printing.page > docs/equations.md"
    assert "python -m derivations.printing.page" in written


# --- printing rules ------------------------------------------------------------------------------

a, b, c = symbols("a b c")


@pytest.mark.parametrize(
    ("expression", "printed"),
    [
        (c * (a + b), r"c \left(a + b\right)"),
        ((a + b) / c, r"\frac{a + b}{c}"),
        (a / (b + c), r"\frac{a}{b + c}"),
        (-a * b / (2 * c), r"-\frac{a b}{2 c}"),
        (Rational(-2, 3) * a, r"-\tfrac{2}{3} a"),
        (1 / (1 + exp(-a)), r"\frac{1}{1 + e^{-a}}"),
        (b - a, "b - a"),
        (Integer(3), "3"),
        ((sym.n - 1) * TokenSum.of(a, sym.ell), r"\left(n - 1\right) \sum_{\ell} a"),
        (TokenSum.of(-a / 2, sym.ell), r"-\tfrac{1}{2} \sum_{\ell} a"),
        (TokenSum.of(a + b, sym.ell), r"\sum_{\ell} \left(a + b\right)"),
        (sym.ridge / 2 * SpectralMean.of(a), r"\frac{\lambda}{2} \int\!\mathrm{d}\nu\, a"),
        (Transpose(sym.theta), r"\theta_{\ell}^{\top}"),
        (Inverse(MatrixSqrt(sym.q)), r"q_{\ell}^{-1/2}"),
        (Inverse(MatAdd(sym.q, sym.V)), r"\left(q_{\ell} + V_{\ell}\right)^{-1}"),
        (
            MatMul(MatAdd(sym.q, MatMul(-1, sym.V)), sym.m),
            r"\left(q_{\ell} - V_{\ell}\right) m_{\ell}",
        ),
        (Trace(sym.q * sym.V), r"\operatorname{Tr}\left[q_{\ell} V_{\ell}\right]"),
        (Trace(sym.m.T * sym.m), r"m_{\ell}^{\top} m_{\ell}"),
        (
            MatAdd(sym.q * sym.V / 2, Transpose(sym.q * sym.V) / 2),
            r"\operatorname{sym}\left[V_{\ell} q_{\ell}\right]",
        ),
        (
            MatAdd(sym.q * sym.V, 2 * Transpose(sym.q * sym.V)),
            r"q_{\ell} V_{\ell} + 2 V_{\ell} q_{\ell}",
        ),
    ],
)
def test_printing_rules(expression, printed):
    assert EquationPrinter().show(expression) == printed


def test_negative_terms_of_sums_in_brackets():
    mean = FieldMean.of(Symbol("x") - Symbol("y"))
    assert EquationPrinter().show(-sym.alpha * mean) == r"-\alpha \mathbb{E}\left[x - y\right]"


class Unheard(Expr):
    """A node that no pass knows."""


def test_unknown_nodes_are_refused_by_name():
    """SymPy would print the Python name of a new node, and rebuild it from numbers where it stands for matrices."""
    node = Unheard(sym.q)
    with pytest.raises(TypeError, match="no LaTeX for the node Unheard"):
        EquationPrinter().show(2 * node)
    with pytest.raises(TypeError, match="numbers in place of matrices for the node Unheard"):
        scalarized(2 * node, LatexPrinter())
    with pytest.raises(TypeError, match="expansion over tokens for the node str"):
        expanded("q", 2)
    model: Any = Symbol("model")
    with pytest.raises(TypeError, match="no page for the model Symbol"):
        document(model)


# --- what is printed is what is computed ---------------------------------------------------------


def test_scalar_print_equals_the_generated_maps():
    """At r = t = 1, expanded and scalarised right-hand sides have the values of the matrix code."""
    model = AttentionModel(3)
    rng = np.random.default_rng(5)
    matrices = {s: 0.3 + rng.random((3, 1, 1)) for s in (*sym.OVERLAPS, *sym.CONJUGATES)}
    matrices[sym.rho] = 9 + rng.random((3, 1, 1))
    fields = {s: rng.normal(size=(3, 1, 1, 1)) for s in (sym.g_field, sym.xi_field, sym.k_field)}
    gamma, tau, pi = (
        0.3 + rng.random((3, 1, 1, 1)),
        rng.normal(size=(3, 1, 1, 1)),
        np.array([[[0.7]]]),
    )

    namespace: dict = {}
    exec(state_evolution_source(derive_saddle_point(derive_free_entropy(model)), derive_free_entropy(model)), namespace)
    mean = lambda values, *token: values.mean(axis=-3)  # noqa: E731
    by_name = {s.name: value for s, value in (matrices | fields).items()}
    prior = [by_name[n] for n in ("q_hat", "V_hat", "m_hat", "theta_hat")]
    channel = [by_name[n] for n in ("g", "xi", "k", "q", "V", "m", "theta")]
    expected = dict(
        zip(
            ["q", "V", "m", "theta"],
            namespace["overlaps_from_conjugates"](0.2, gamma, tau, pi, mean, *prior),
            strict=True,
        )
    )
    conjugates = namespace["conjugates_from_overlaps"](1.3, by_name["rho"], mean, *channel)
    expected |= dict(zip(["q_hat", "V_hat", "m_hat", "theta_hat"], conjugates, strict=True))

    for equation in derive_saddle_point(derive_free_entropy(model)):
        for token in range(3):
            plain = scalarized(expanded(equation.right_hand_side, 3), LatexPrinter())
            plain = plain.replace(lambda e: isinstance(e, (FieldMean, SpectralMean)), lambda e: e.body)
            plain = plain.xreplace({sym.ell: Integer(token + 1)})
            values: dict[Any, float] = {sym.alpha: 1.3, Symbol(sym.ridges.latex_name): 0.2, Symbol(r"\pi"): 0.7}
            for index in range(3):
                values[Indexed(sym.gamma, index + 1)] = gamma[index].item()
                values[Indexed(sym.tau, index + 1)] = tau[index].item()
            for symbol in (*matrices, *fields):
                for index in range(3):
                    name = Symbol(f"{symbol.latex_name}_{{{index + 1}}}")
                    values[name] = by_name[symbol.name][index].item()
                values[Symbol(f"{symbol.latex_name}_{{\\ell}}")] = by_name[symbol.name][token].item()
            result = float(plain.subs(values))
            assert result == pytest.approx(expected[equation.unknown.name][token].item(), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_python_source_runs(name, tmp_path):
    source = module_source(MODELS[name])
    assert max(map(len, source.splitlines())) <= 100
    path = tmp_path / f"generated_{name}.py"
    path.write_text(source, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    assert MODELS[name].columns == module.COLUMNS
    for function in (
        "loss",
        "loss_derivatives",
        "teacher_target",
        "overlaps_from_conjugates",
        "conjugates_from_overlaps",
        "free_entropy_terms",
        "observables",
    ):
        assert callable(getattr(module, function))


# --- derive --------------------------------------------------------------------------------------


def test_derive_returns_the_pages_of_the_problem():
    """All that the generic page says, and the problem's own numbers."""
    paper = ap.derive()
    assert paper.markdown == paper._repr_markdown_()
    for generic, page in ((latex, paper.latex), (markdown, paper.markdown)):
        missing = [part for part in generic(AttentionModel()).split("\n\n") if part not in page]
        assert not missing
    assert "## This problem" in paper.markdown
    assert r"\section*{This problem}" in paper.latex
    assert paper.python == module_source(AttentionModel())
    assert [name for name, _ in derive_free_entropy(paper)] == list(derive_free_entropy(paper).terms)
    assert len(list(derive_saddle_point(derive_free_entropy(paper)))) == 8

    untied = ap.Problem.paper().with_fields({"student.tied": False})
    model = AttentionModel(student=Student(tied=False))
    page = ap.derive(untied, concrete=True).latex
    assert all(part in page for part in latex(model, concrete=True).split("\n\n"))
    assert "COLUMNS = 2" in ap.derive(untied).python


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens.length": 1, "loss.kind": "logistic"},
        {"tokens.length": 1, "loss.kind": "expression", "loss.expression": "sqrt(1 + (h - k)**2)"},
        {"student.score": "z / (1 + z**2)", "regularizer.kind": "lasso"},
    ],
    ids=str,
)
def test_a_derivation_can_be_pickled(fields):
    """Also where the problem has functions that cannot."""
    made = ap.derive(ap.Problem().with_fields(fields))
    copied = pickle.loads(pickle.dumps(made))
    assert copied.free_entropy.total == made.free_entropy.total
    assert list(copied.saddle_point) == list(made.saddle_point)
    assert copied.latex == made.latex


def test_importing_derive_leaves_sympy_alone():
    code = "import sys, attnphase.pages.page; assert 'sympy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def tagged(page):
    """Formulas of a page by their tags."""
    return {one.tag: one.body() for one in page.blocks if isinstance(one, Formula)}


def test_pages_of_mixtures_keep_the_clusters_of_numbers_and_of_matrices():
    """With 1 x 1 matrices printed as numbers, every formula has the indices that it has with matrices."""
    model = AttentionModel()
    numbers = tagged(document(model, concrete=True, clusters=True))
    matrices = tagged(document(model, clusters=True))
    indices = re.compile(r"(?<=_)\{[^{}]*\}|(?<=\{)\\ell c(?=\})|\\mathbf\{1\}_\{[^}]*\}")
    derived = [tag for tag in matrices if tag[0] in "PLRFSO"]
    assert len(derived) == 24
    for tag in derived:
        assert set(indices.findall(numbers[tag])) == set(indices.findall(matrices[tag])), tag
    assert r"\mathbb{E}\left[\mathbf{1}_{c_\ell = c} \, g_{\ell c}^{2}\right]" in numbers["S5"]
    # a sample has one cluster for each token
    assert r"\sum_{\ell,\, c = c_\ell}" in numbers["L2"]
    assert r"\sum_{\ell c}" not in numbers["L2"]


@pytest.mark.parametrize("score", ["z**2/(1 + sum(z**2))", "z**3", "1/(1 + exp(-z))**2"])
def test_no_symbol_has_two_superscripts(score):
    """A power of the teacher's logits, which have a star: TeX refuses a second superscript."""
    text = latex(AttentionModel(teacher=Teacher(score=resolve(score, 2))), concrete=True)
    assert re.search(r"z\^\{\\star\s*\}_\{a 1\}", text)
    assert not re.search(r"\^\{\\star\s*\}_\{[^{}]*\}\s*\^", text)
    assert not re.search(r"\^\{[^{}]*\}\s*\^", text)
