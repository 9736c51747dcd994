"""Pages of equations: each theory's is complete, in LaTeX and in Markdown, with its formulas and numbers.

Not public: `derivations.printing`, by which docs/ says its pages are written.
"""

import re
from pathlib import Path

import pytest

import attnphase as ap
from derivations.printing.bayes_optimal import bayes_optimal_page
from derivations.printing.one_rsb import one_rsb_page
from derivations.printing.page import equations_page

DOCS = Path(__file__).parents[2] / "docs"
MIXTURE = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [1.3]}, {"sigma": 0.4, "mean": [-0.7]}],
    "tokens.mean_teacher": [[0.4]],
    "loss.kind": "expression",
    "loss.expression": "(h0_0*h1_0 - c1*sign(k0_0))**2/3 + beta*softplus(h1_0)",
    "loss.parameters": {"beta": 0.4},
}
OF_Q = {
    "tokens.length": 1,
    "tokens.spectrum": [{"weight": 0.3, "variances": [0.9]}, {"weight": 0.7, "variances": [0.35]}],
    "positions.kind": "none",
    "student.rank": 2,
    "loss.kind": "expression",
    "loss.expression": "h0_0**2 - h0_1*k0_0/3 + 0.2*Q[0, 0] - 0.15*Q[0, 1]*h0_0**2",
}
CAUSAL = {
    "student.temperature": 0.7,
    "teacher.temperature": 0.3331234567,
    "tokens.sigma": [0.6, 0.5],
    "teacher.noise": 0.2,
    "teacher.causal": True,
    "regularizer.kind": "elastic-net",
    "regularizer.strength": 0.07,
    "regularizer.ridge": 0.03,
}
# fields and options of a derivation, numbers of formulas by the letter of their tags, and formulas that are spelt out
PAGES = {
    "trained": (
        {},
        {},
        {"D": 5, "P": 4, "N": 4, "L": 3, "R": 4, "F": 1, "S": 8, "O": 4, "G": 8, "B": 2},
        [r"R = (\lambda I + \sum_{\kappa} \gamma_{\kappa} \hat V_{\kappa})^{-1}"],
    ),
    "concrete, soft thresholding": (
        CAUSAL,
        {"concrete": True},
        {"D": 6, "P": 3, "N": 4, "E": 7, "L": 5, "R": 3, "F": 1, "S": 8, "O": 4, "G": 8, "B": 2},
        [
            r"z_{a b} = \frac{h_{a} h_{b}}{T_{S}}",
            r"\omega = 0.3, T_{S} = 0.7, T_{T} = 0.3331234567, \Delta = 0.2, s = 0.07, \lambda = 0.03",
            r"w = \frac{\operatorname{sign}(B) \max(|B| - s, 0)}{A + \lambda}",
        ],
    ),
    "concrete, a mixture and a loss": (
        MIXTURE,
        {"concrete": True},
        {"D": 3, "P": 4, "N": 6, "L": 3, "R": 4, "F": 1, "S": 8, "O": 4, "G": 8},
        [
            r"\ell(h, k) = \tfrac{1}{3} (h_{1} h_{2} - \mathsf{c}_{2} \operatorname{sign}(\tilde k_{1}))^{2}"
            r" + \mathtt{beta} \log(1 + \exp(h_{2}))",
            r"(\begin{matrix} 2.69 0.09 0.69 -1.91 0.52",  # 1 + 1.3^2, 1 - 1.3 0.7, 1.3^2 - 1, -1 - 1.3 0.7, 0.4 1.3
            r"m^\star = (\begin{matrix} 0.52 -0.28 0.52 -0.28 \end{matrix})",
        ],
    ),
    "concrete, a loss of Q": (
        OF_Q,
        {"concrete": True},
        {"D": 2, "P": 4, "N": 4, "L": 3, "R": 4, "F": 1, "S": 8, "O": 4, "Q": 4, "G": 8},
        [
            r"\rho^\Sigma = (0.515)",  # 0.3 0.9 + 0.7 0.35
            r"\hat{\mathsf{Q}}_{1 1} = 2 \alpha\, \mathbb{E}[\frac{\partial \ell}{\partial \mathtt{Q0\_0}}]",
            r"\hat{\mathsf{Q}}_{1 2} = \alpha\, \mathbb{E}[\frac{\partial \ell}{\partial \mathtt{Q0\_1}}]",
        ],
    ),
    "Bayes-optimal": (
        {"teacher.rank": 1},
        {"limit": "bayes_optimal"},
        {"E": 2, "R": 4, "O": 1, "S": 5},
        [r"\hat q_{\ell} = \alpha \mathbb{E}[g_{\ell} g_{\ell}^{\top}]"],
    ),
    "SGD": ({}, {"limit": "sgd_flow"}, {"S": 1, "R": 5, "Q": 6, "F": 6, "N": 2}, [r"u = b - A w"]),
}


def squeezed(text):
    """Without alignment, and without commands that set spaces and sizes of brackets."""
    text = re.sub(r"\\(left|right|Bigl|Bigr|negthinspace|thinspace|quad)(?![a-z])|\\[,!\\]|&|\s", "", text)
    return text.replace("{}", "")


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_complete(name):
    fields, options, tags, formulas = PAGES[name]
    page = ap.derive(ap.Problem().with_fields(fields), **options)
    for text in (page.latex, page.markdown):
        found = re.findall(r"\\tag\{([A-Z]\d+)\}", text)
        assert found == [f"{letter}{n + 1}" for letter, count in tags.items() for n in range(count)]
        for formula in formulas:
            assert squeezed(formula) in squeezed(text), formula
        assert not re.search(r"\^\{[^{}]*\}\s*\^", text)  # TeX refuses a second superscript
        assert not re.search(r"Symbol|Matrix\(|Mean\(", text)
    assert page.problem.hash in page.markdown or "limit" in options


@pytest.mark.parametrize(
    ("name", "written"),
    [("equations", equations_page), ("one_rsb", one_rsb_page), ("bayes_optimal", bayes_optimal_page)],
)
def test_pages_of_the_documentation_are_up_to_date(name, written):
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == written()
