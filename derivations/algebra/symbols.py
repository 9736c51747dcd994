"""Order parameters, conjugates, local fields and dimensions, with the paper's symbols.

One place for names: the ASCII name is the name in generated code and datasets, the LaTeX is what the rendered
equations show.  Everything indexed by a token is a `TokenMatrix`; eigenvalues and projections of the spectral
measure (5) are `Indexed` scalars.
"""

from __future__ import annotations

from typing import Any

from sympy import IndexedBase, Symbol

from derivations.algebra.tokens import TokenMatrix

# dimensions and control parameters
L = Symbol("L", integer=True, positive=True)
r = Symbol("r", integer=True, positive=True)
t = Symbol("t", integer=True, positive=True)
n = Symbol("n")  # number of replicas, continued to zero
alpha = Symbol("alpha", positive=True)
beta = Symbol("beta", positive=True)
ridge = Symbol("lambda", positive=True)
omega = Symbol("omega", nonnegative=True)

# token indices: `ell` is free in an equation, `kappa` is always summed over
ell = Symbol("ell", integer=True)
kappa = Symbol("kappa", integer=True)

# spectral measure nu(gamma, tau, pi), equation (5)
gamma: Any = IndexedBase("gamma", positive=True)
tau: Any = IndexedBase("tau", real=True)

# loss of one sample: fields, parameters, and what is made of them; a is a row of the attention matrix, b a token
row = Symbol("a", integer=True)
token = Symbol("b", integer=True)
other_token = Symbol("b'", integer=True)
h: Any = IndexedBase("h", real=True)
k: Any = IndexedBase("k", real=True)
teacher_field: Any = IndexedBase(r"\tilde k", real=True)  # k and its mean, where clusters give it one
mixing: Any = IndexedBase("A", real=True)
token_variance: Any = IndexedBase(r"\rho^\Sigma", real=True)
teacher_mean: Any = IndexedBase(r"m^\star", real=True)
student_temperature = Symbol("T_S", positive=True)
teacher_temperature = Symbol("T_T", positive=True)
student_logit: Any = IndexedBase("z", real=True)
teacher_logit: Any = IndexedBase(r"z^\star", real=True)
attention: Any = IndexedBase(r"\mathsf{S}", real=True)
target: Any = IndexedBase(r"\mathsf{T}", real=True)
cluster: Any = IndexedBase(r"\mathsf{c}", real=True)  # number of a token's cluster, from 0
noise: Any = IndexedBase(r"\mathsf{Z}", real=True)  # of the labels, and the target with it
noisy_target: Any = IndexedBase(r"\mathsf{Y}", real=True)
noise_variance = Symbol("Delta", nonnegative=True)
teacher_attention: Any = IndexedBase(r"\mathsf{S}^\star", real=True)
gram: Any = IndexedBase("G", real=True)  # of one sample at finite d, and the products of its tokens with the target
cross: Any = IndexedBase("C", real=True)
output: Any = IndexedBase("y", real=True)
label: Any = IndexedBase(r"y^\star", real=True)
shared: Any = IndexedBase("c", real=True)  # what the entries of a long row have in common
teacher_shared: Any = IndexedBase(r"c^\star", real=True)
loss = Symbol(r"\ell(h, k)", real=True)

LATEX = {
    "q": "q",
    "V": "V",
    "m": "m",
    "theta": r"\theta",
    "rho": r"\rho",
    "q_hat": r"\hat q",
    "V_hat": r"\hat V",
    "m_hat": r"\hat m",
    "theta_hat": r"\hat\theta",
    "g": "g",
    "prox": r"\mathrm{prox}",
    "xi": r"\xi",
    "omega": r"\omega",
    "k": "k",
    "h": "h",
    "pi": r"\pi",
    "z": "z",
    "w": "w",
    "chi": r"\partial_b w",
}


def token_matrix(
    name: str, rows: object, columns: object, index: object = ell, *, symmetric: bool = False
) -> TokenMatrix:
    """A matrix carried by every token, e.g. ``q_ell``, with the project's LaTeX name."""
    return TokenMatrix(name, rows, columns, index, symmetric=symmetric, latex=LATEX[name])


# order parameters (6)
q = token_matrix("q", r, r, symmetric=True)
V = token_matrix("V", r, r, symmetric=True)
m = token_matrix("m", r, 1)
theta = token_matrix("theta", r, t)
rho = token_matrix("rho", t, t, symmetric=True)

# their conjugates
q_hat = token_matrix("q_hat", r, r, symmetric=True)
V_hat = token_matrix("V_hat", r, r, symmetric=True)
m_hat = token_matrix("m_hat", r, 1)
theta_hat = token_matrix("theta_hat", r, t)

# local fields of one sample, and the projection of the teacher's weights on an eigendirection
omega_field = token_matrix("omega", r, 1)
k_field = token_matrix("k", t, 1)
xi_field = token_matrix("xi", r, 1)
g_field = token_matrix("g", r, 1)
prox_field = token_matrix("prox", r, 1)
pi = TokenMatrix("pi", t, 1, None, latex=LATEX["pi"])

# one row of the weights, the minimiser of an eigendirection's problem, and its derivative in the source
w = TokenMatrix("w", r, 1, None, latex=LATEX["w"])
chi = TokenMatrix("chi", r, r, None, symmetric=True, latex=LATEX["chi"])
# the ridges of the columns, diagonal; `ridge` I where all columns have the same one
ridges = TokenMatrix("ridges", r, r, None, symmetric=True, latex=r"\operatorname{diag}(\lambda)")

OVERLAPS = (q, V, m, theta)
CONJUGATES = (q_hat, V_hat, m_hat, theta_hat)

# one-step replica-symmetry breaking: overlaps of replicas in different groups and in one, their conjugates, the
# noises of the fields that all replicas and those of a group share, the size of a group and its scaled limit
q_0 = TokenMatrix("q_0", r, r, ell, symmetric=True, latex="q_0")
q_1 = TokenMatrix("q_1", r, r, ell, symmetric=True, latex="q_1")
q_hat_0 = TokenMatrix("q_hat_0", r, r, ell, symmetric=True, latex=r"\hat q_0")
q_hat_1 = TokenMatrix("q_hat_1", r, r, ell, symmetric=True, latex=r"\hat q_1")
xi_0 = TokenMatrix("xi_0", r, 1, ell, latex=r"\xi_0")
xi_1 = TokenMatrix("xi_1", r, 1, ell, latex=r"\xi_1")
x = Symbol("x", positive=True)
y = Symbol("y", positive=True)

ONE_STEP_OVERLAPS = (q_0, q_1, V, m, theta)
ONE_STEP_CONJUGATES = (q_hat_0, q_hat_1, V_hat, m_hat, theta_hat)

# the learner who knows the model: overlap of draws of the posterior, what is left, its conjugate, the fields; mean and
# precision of the prior of one row of the teacher's weights
q_star = TokenMatrix("q", t, t, ell, symmetric=True, latex="q")
V_star = TokenMatrix("V", t, t, ell, symmetric=True, latex="V")
q_hat_star = TokenMatrix("q_hat", t, t, ell, symmetric=True, latex=r"\hat q")
g_star = TokenMatrix("g", t, 1, ell, latex="g")
omega_star = TokenMatrix("omega", t, 1, ell, latex=r"\omega")
posterior_mean = TokenMatrix("k_mean", t, 1, ell, latex=r"\langle k \rangle")
posterior_covariance = TokenMatrix("spread", t, t, ell, symmetric=True, latex="C")
prior_mean = TokenMatrix("prior_mean", t, 1, None, latex=r"\bar\pi")
prior_precision = TokenMatrix("prior_precision", t, t, None, symmetric=True, latex="P")
