"""What a model must reduce to, and when.

A `Reduction` states a limit of the theory in which the answer is known without solving the saddle-point equations, or
in which two problems must have the same answer.  `attnphase check` tries those that apply to a problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sympy import Expr, Symbol, simplify, sqrt

__all__ = ["REDUCTIONS", "Facts", "Reduction", "reductions_of", "ridge_regression"]


@dataclass(frozen=True)
class Facts:
    """What the limits depend on.

    Attributes
    ----------
    length : int
    squared : bool
        The loss is half the squared difference of a field of the student and one of the teacher.
    bilinear : bool
        The weights enter the loss through logits only, which are bilinear in them.
    ridge : bool
        The regulariser is the ridge and nothing else.
    temperature : float
        The student's.
    mixture : bool
        Whether tokens come from clusters.
    isotropic : bool
        Every token has one variance in all directions.
    teacher_mean : bool
        Whether clusters give the teacher's fields a mean.
    correlated : bool
        Whether encodings overlap with the teacher.
    """

    length: int
    squared: bool = False
    bilinear: bool = False
    ridge: bool = True
    temperature: float = 1.0
    mixture: bool = False
    isotropic: bool = True
    teacher_mean: bool = False
    correlated: bool = False


@dataclass(frozen=True)
class Reduction:
    """A limit with a known answer.

    Attributes
    ----------
    name : str
    statement : str
        What must hold, with LaTeX between dollar signs.
    applies : callable
        Whether a problem with the given `Facts` is in the limit.
    """

    name: str
    statement: str
    applies: Callable[[Facts], bool]


REDUCTIONS = (
    Reduction(
        "ridge regression",
        r"One token, square loss and ridge: $V$ is the positive root of "
        r"$\lambda V^2 + (\lambda + \gamma\alpha - \gamma) V - \gamma = 0$; $\theta$ and $q$ follow in closed form.",
        lambda f: f.length == 1 and f.squared and f.ridge and f.isotropic and not (f.mixture or f.correlated),
    ),
    Reduction(
        "ridge as a general regulariser",
        r"The row problem of section (100)-(106) with $r(w) = \frac{\lambda}{2} w^2$ gives the overlaps of (7).",
        lambda f: f.ridge,
    ),
    Reduction(
        "one cluster is a Gaussian",
        r"Gaussian tokens are mixture tokens with one cluster of mean zero.",
        lambda f: not f.mixture and f.isotropic,
    ),
    Reduction(
        "equal clusters are a Gaussian",
        r"A mixture of two clusters that both have a token's own law is that token, whatever their joint law.",
        lambda f: not f.mixture and f.isotropic and f.length <= 2,
    ),
    Reduction(
        "temperature",
        r"Logits are bilinear in the weights: temperature $T$ and ridge $\lambda$ are temperature 1 and ridge "
        r"$\lambda T$ with weights divided by $\sqrt{T}$.",
        lambda f: f.bilinear and f.ridge and f.temperature != 1,
    ),
)


def reductions_of(facts: Facts) -> tuple[Reduction, ...]:
    """The reductions that apply."""
    return tuple(reduction for reduction in REDUCTIONS if reduction.applies(facts))


def ridge_regression() -> dict[str, Expr]:
    """Order parameters of ridge regression on isotropic data, as expressions of alpha, lambda, gamma and Delta.

    They solve the saddle-point equations (7)-(8) at L = r = t = 1 with ``loss(h, k) = (h - k - z)^2/2``, z being the
    labels' noise of variance Delta.  Its proximal point is ``(omega + V (k + z))/(1 + V)``, so that
    ``V_hat = theta_hat = alpha/(1 + V)`` and ``q_hat = alpha (gamma + Delta - 2 theta + q)/(1 + V)^2``.
    """
    alpha, ridge, gamma = (Symbol(name, positive=True) for name in ("alpha", "lambda", "gamma"))
    noise = Symbol("Delta", nonnegative=True)
    half = (ridge + gamma * alpha - gamma) / (2 * ridge)
    V = -half + sqrt(half**2 + gamma / ridge)
    hat = alpha / (1 + V)
    R = 1 / (ridge + gamma * hat)
    theta = gamma**2 * R * hat
    # q = gamma^2 R^2 (q_hat + gamma theta_hat^2) is linear in q through q_hat
    share = gamma**2 * R**2 * alpha / (1 + V) ** 2
    q = (share * (gamma + noise - 2 * theta) + gamma**3 * R**2 * hat**2) / (1 - share)
    error = gamma - 2 * theta + q
    return {"q": q, "V": V, "theta": theta, "test_error": error, "weight_norm": simplify(q / gamma)}
