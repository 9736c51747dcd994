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
CAUSAL = {
    "student.temperature": 0.7,
    "tokens.sigma": [0.6, 0.5],
    "teacher.noise": 0.2,
    "teacher.causal": True,
    "regularizer.kind": "elastic-net",
    "regularizer.strength": 0.07,
    "regularizer.ridge": 0.03,
}
ROOT = r"(q_{\ell} - \theta_{\ell} \rho_{\ell}^{-1} \theta_{\ell}^{\top})^{-1/2}"

# fields and options of a derivation, numbers of formulas by the letter of their tags, and formulas that are spelt out
PAGES = {
    "trained": (
        {},
        {},
        {"D": 5, "P": 4, "N": 4, "L": 3, "R": 4, "F": 1, "S": 8, "O": 4, "G": 8, "B": 2},
        [
            r"R = (\lambda I + \sum_{\kappa} \gamma_{\kappa} \hat V_{\kappa})^{-1}",
            r"q_{\ell} = \int\mathrm{d}\nu \gamma_{\ell} R (b b^{\top} + S) R",
            r"V_{\ell} = \int\mathrm{d}\nu \gamma_{\ell} R",
            r"m_{\ell} = \int\mathrm{d}\nu \tau_{\ell} R b",
            r"\theta_{\ell} = \int\mathrm{d}\nu \gamma_{\ell} R b \pi^{\top}",
            r"\hat q_{\ell} = \alpha \mathbb{E}[g_{\ell} g_{\ell}^{\top}]",
            r"\hat V_{\ell} = \operatorname{sym}[-\alpha \mathbb{E}[g_{\ell} \xi_{\ell}^{\top}] " + ROOT,
            r"\hat\theta_{\ell} = \alpha \mathbb{E}[g_{\ell} k_{\ell}^{\top}] \rho_{\ell}^{-1} - \alpha \mathbb{E}[g",
            r"+ \tfrac{1}{2} \sum_{\ell} \operatorname{Tr}[\hat q_{\ell} V_{\ell}]",
            r"- \tfrac{1}{2} \sum_{\ell} \operatorname{Tr}[\hat V_{\ell} q_{\ell}]",
            r"\epsilon_g = \frac{2}{L} \mathbb{E}[\ell(\omega, k)]",
        ],
    ),
    "concrete, soft thresholding": (
        CAUSAL,
        {"concrete": True},
        {"D": 6, "P": 3, "N": 4, "E": 7, "L": 5, "R": 3, "F": 1, "S": 8, "O": 4, "G": 8, "B": 2},
        [
            r"\tfrac{1}{2} \sum_{a = 1}^{2} \sum_{b = 1}^{2} \rho^\Sigma_{b} (\mathsf{S}_{a b} - \mathsf{Y}_{a b})^{2}",
            r"\mathsf{T}_{1 1} = 1 + A_{1 1} \omega - \omega",
            r"\mathsf{T}_{2 1} = A_{2 1} \omega"
            r" + \frac{e^{z^{\star}_{2 1}} (1 - \omega)}{e^{z^{\star}_{2 1}} + e^{z^{\star}_{2 2}}}",
            r"z_{a b} = \frac{h_{a} h_{b}}{T_{S}}",
            r"\mathsf{S}_{a 2} = \frac{e^{z_{a 2}}}{e^{z_{a 1}} + e^{z_{a 2}}}",
            r"\omega = 0.3, T_{S} = 0.7, \Delta = 0.2, s = 0.07, \lambda = 0.03",
            r"A = (\begin{matrix} 0.6 0.4 0.4 0.6 \end{matrix})",
            r"\gamma = (0.36, 0.25)",
            r"\frac{(h_{2} - \omega_{2})^{2}}{2 V_{2}} + \ell(h, k)",
            r"w = \frac{\operatorname{sign}(B) \max(|B| - s, 0)}{A + \lambda}",
            r"\hat\theta_{\ell} = \frac{\alpha}{\rho_{\ell}} \mathbb{E}[g_{\ell} k_{\ell}] -",
        ],
    ),
    "concrete, a mixture and a loss": (
        MIXTURE,
        {"concrete": True},
        {"D": 3, "P": 4, "N": 6, "L": 3, "R": 4, "F": 1, "S": 8, "O": 4, "G": 8},
        [
            r"\tilde k_{a} = k_{a} + m^{\star}_{a}",
            r"\ell(h, k) = \tfrac{1}{3} (h_{1} h_{2} - \mathsf{c}_{2} \operatorname{sign}(\tilde k_{1}))^{2}"
            r" + \mathtt{beta} \log(1 + \exp(h_{2}))",
            r"\mathtt{beta} = 0.4",
            r"\gamma = (0.25, 0.16, 0.25, 0.16)",
            r"(\begin{matrix} 2.69 0.09 0.69 -1.91 0.52",  # 1 + 1.3^2, 1 - 1.3 0.7, 1.3^2 - 1, -1 - 1.3 0.7, 0.4 1.3
            r"m^\star = (\begin{matrix} 0.52 -0.28 0.52 -0.28 \end{matrix})",
            r"P(1, 1) = 0.25, P(1, 2) = 0.25, P(2, 1) = 0.25",
            r"\mathbb{E}[\mathbf{1}_{c_\ell = c} g_{\ell c}^{2}]",
        ],
    ),
    "Bayes-optimal": (
        {"teacher.rank": 1},
        {"limit": "bayes_optimal"},
        {"E": 2, "R": 4, "O": 1, "S": 5},
        [
            r"V_{\ell} = \int\mathrm{d}\nu \gamma_{\ell} R",
            r"\hat q_{\ell} = \alpha \mathbb{E}[g_{\ell} g_{\ell}^{\top}]",
            r"\hat q_{\ell} = \alpha (V_{\ell}^{-1} - V_{\ell}^{-1} \mathbb{E}[C_{\ell}] V_{\ell}^{-1})",
            r"\tfrac{1}{2} \log\det P + \tfrac{1}{2} \operatorname{Tr}[P^{-1} \Lambda]",
        ],
    ),
    "SGD": (
        {},
        {"limit": "sgd_flow"},
        {"S": 1, "R": 5, "Q": 6, "F": 6, "N": 2},
        [
            r"u = b - A w",
            r"\frac{\mathrm{d} C}{\mathrm{d}T} = \operatorname{sym}[\frac{\eta^{2}}{s} S - 2 \eta C A]",
            r"\hat V_{\ell} = \operatorname{sym}[-\mathbb{E}[g_{\ell} \xi_{\ell}^{\top}] " + ROOT,
            r"\sum_{\kappa} \mathbb{E}[\operatorname{Tr}[\tfrac{1}{2} \Delta \ell^{\mathsf{ZZ}}_{\kappa}]]",
        ],
    ),
}  # fmt: skip


def squeezed(text):
    """Without alignment, and without commands that set spaces and sizes of brackets."""
    text = re.sub(r"\\(left|right|Bigl|Bigr|negthinspace|thinspace|quad)(?![a-z])|\\[,!\\]|&|\s", "", text)
    return text.replace("{}", "")


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_complete_and_balanced(name):
    fields, options, tags, formulas = PAGES[name]
    page = ap.derive(ap.Problem().with_fields(fields), **options)
    for text in (page.latex, page.markdown):
        found = re.findall(r"\\tag\{([A-Z]\d+)\}", text)
        assert found == [f"{letter}{n + 1}" for letter, count in tags.items() for n in range(count)]
        for formula in formulas:
            assert squeezed(formula) in squeezed(text), formula
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
        for left, right in (("left", "right"), ("Bigl", "Bigr")):
            assert len(re.findall(rf"\\{left}(?![a-z])", text)) == len(re.findall(rf"\\{right}(?![a-z])", text))
        opened = []
        for kind, environment in re.findall(r"\\(begin|end)\{([a-z*]+)\}", text):
            if kind == "begin":
                opened.append(environment)
            else:
                assert opened.pop() == environment
        assert not opened
        assert not re.search(r"\^\{[^{}]*\}\s*\^", text)  # TeX refuses a second superscript
        assert not re.search(r"Symbol|Matrix\(|Mean\(", text)
    outside = re.sub(r"\$\$.*?\$\$|`[^`\n]*`", "", page.markdown, flags=re.DOTALL)
    assert outside.count("$") % 2 == 0
    assert page.problem.hash in page.markdown or "limit" in options


@pytest.mark.parametrize(
    ("name", "written"),
    [("equations", equations_page), ("one_rsb", one_rsb_page), ("bayes_optimal", bayes_optimal_page)],
)
def test_pages_of_the_documentation_are_up_to_date(name, written):
    assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == written()
