"""Every rewrite of the replica calculation, checked numerically.

The toy has one token, one student column and one teacher column, a smooth loss that is not
quadratic, a ridge prior on two eigendirections and no parameter at a special value.  Replicated
integrals are done by mpmath, the factorised ones by the trapezoidal rule on the line, which
converges exponentially for these integrands; so two routes meet.  The nodes `ReplicatedMoment`,
`CommonGaussianMoment` and `LogPartitionMean` name an integral without holding its integrand; the
integrals written here are the ones their docstrings and the steps' statements give.
"""
# SymPy's annotations do not know explicit matrices
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
# pyright: reportArgumentType=false, reportOperatorIssue=false

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product

import numpy as np
import pytest
from mpmath import quad
from sympy import Float, Matrix, Rational, Symbol, diag, eye, log, zeros
from sympy import pi as circle

from derivations.algebra import symbols as sym
from derivations.algebra.means import FieldMean
from derivations.algebra.minima import QuadraticMinimum
from derivations.algebra.tokens import TokenMatrix
from derivations.replica.chain import _ReplicaSum, derive_free_entropy, noise, precision, source
from derivations.replica.moments import CommonGaussianMoment, LogPartitionMean, ReplicatedMoment

FREE_ENTROPY = derive_free_entropy()
MOMENTS, ANSATZ, NO_REPLICAS, ZERO_TEMPERATURE, RIDGE = FREE_ENTROPY.steps
COUPLINGS = ("mean", "teacher", "overlap")

# --- the toy ----------------------------------------------------------------------------------


def log_cosh(h, k, lib=np):
    return lib.log(lib.cosh(1.3 * h - 0.8 * k + 0.2))


def tanh_square(h, k, lib=np):
    return (lib.tanh(0.6 * h) - lib.tanh(0.45 * k + 0.3)) ** 2 / 2


def double_well(h, k, lib=np):
    return (lib.tanh(1.2 * h * h) - lib.tanh(0.6 * k * k + 0.3)) ** 2 / 2


@dataclass(frozen=True)
class Toy:
    """Order parameters of one token with L = r = t = 1, at inverse temperature beta."""

    q: float = 0.83
    v: float = 0.47
    m: float = -0.36
    theta: float = 0.52
    rho: float = 1.17
    beta: float = 1.6
    alpha: float = 0.71
    ridge: float = 0.43
    q_hat: float = 0.29
    v_hat: float = 0.61
    m_hat: float = 0.38
    theta_hat: float = -0.57
    atoms: tuple = ((0.35, 0.7, 0.9, -1.2), (0.65, 1.3, -0.6, 0.8))  # weight, gamma, tau, pi

    def covariance(self, diagonal, off_diagonal, n):
        """Of (h^1, ..., h^n, k)."""
        result = np.full((n + 1, n + 1), float(off_diagonal))
        np.fill_diagonal(result, float(diagonal))
        result[n, :] = result[:, n] = self.theta
        result[n, n] = self.rho
        return result

    def replicated_channel(self, loss, diagonal, off_diagonal, n):
        """``log E exp(-beta sum_a loss(h^a, k))`` over the joint law of n replicas, by mpmath."""
        lower = np.linalg.cholesky(self.covariance(diagonal, off_diagonal, n)).tolist()

        def integrand(*nodes):
            x = [float(node) for node in nodes]
            fields = [sum(row[j] * x[j] for j in range(i + 1)) for i, row in enumerate(lower)]
            energy = sum(loss(self.m + h, fields[n], math) for h in fields[:n])
            return math.exp(-self.beta * energy - sum(c * c for c in x) / 2)

        value = quad(integrand, *[[-6.5, 6.5]] * (n + 1), method="gauss-legendre", maxdegree=5)
        return math.log(value) - (n + 1) / 2 * math.log(2 * math.pi)

    def common_fields(self):
        """omega, k and weights over the Gaussian common to the replicas."""
        x, weight = line()
        xi, zeta = np.meshgrid(x, x, indexing="ij")
        omega = self.m + math.sqrt(self.q) * xi
        k = self.theta / math.sqrt(self.q) * xi + math.sqrt(self.rho - self.theta**2 / self.q) * zeta
        return omega, k, np.multiply.outer(weight, weight)

    def channel_partition(self, loss):
        """``Z_y(omega, k) = E_eta exp(-beta loss(omega + v^1/2 eta, k))`` on the common fields."""
        omega, k, weights = self.common_fields()
        eta, eta_weights = line()
        h = omega[..., None] + math.sqrt(self.v) * eta
        return np.exp(-self.beta * loss(h, k[..., None])) @ eta_weights, weights

    def replicated_prior(self, diagonal, off_diagonal, n):
        """``int dnu log int prod_a dw^a`` of the ridge measure with the Fourier factors."""
        total = 0.0
        for weight, gamma, tau, pi in self.atoms:
            b = tau * self.m_hat + gamma * self.theta_hat * pi

            def integrand(*nodes, gamma=gamma, b=b):
                w = [float(node) for node in nodes]
                squares = sum(a * a for a in w)
                pairs = sum(w) ** 2 - squares
                action = (self.beta * self.ridge + gamma * diagonal) * squares - gamma * off_diagonal * pairs
                return math.exp(-action / 2 + b * sum(w))

            total += weight * math.log(quad(integrand, *[[-16, 16]] * n, method="gauss-legendre", maxdegree=6))
        return total

    def prior_partitions(self):
        """``Z_w(z) = int dw exp(-(beta lambda + gamma v_hat) w^2/2 + field(z) w)`` per atom."""
        z, weights = line()
        w = np.linspace(-40.0, 40.0, 4001)
        for weight, gamma, tau, pi in self.atoms:
            b = tau * self.m_hat + gamma * self.theta_hat * pi
            field = b + math.sqrt(gamma * self.q_hat) * z
            exponent = -(self.beta * self.ridge + gamma * self.v_hat) * w**2 / 2 + field[:, None] * w
            yield weight, np.exp(exponent).sum(axis=1) * (w[1] - w[0]), weights

    def values(self, **changed):
        """The order parameters by the names of the symbols, for the evaluator."""
        names = ("q", "v", "m", "theta", "q_hat", "v_hat", "m_hat", "theta_hat")
        return {name: [Matrix([[Float(changed.get(name, getattr(self, name)))]])] for name in names}


def line(step=0.25, reach=12.0):
    """Trapezoidal rule for N(0, 1)."""
    x = np.arange(-reach, reach + step / 2, step)
    return x, step * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


TOY = Toy()
LOSSES = pytest.mark.parametrize("loss", [log_cosh, tanh_square])

# --- (a) replicated moments factorise ---------------------------------------------------------


@LOSSES
def test_replicated_channel_factorises_over_the_common_gaussian(loss):
    """At n = 1; n = 2 is in `test_step_two_is_step_one_at_integer_n`."""
    partition, weights = TOY.channel_partition(loss)
    factorised = math.log((weights * partition).sum())
    replicated = TOY.replicated_channel(loss, TOY.q + TOY.v, TOY.q, 1)
    assert replicated == pytest.approx(factorised, rel=1e-8)


@pytest.mark.parametrize("n", [1, 2])
def test_replicated_prior_factorises_over_the_common_gaussian(n):
    factorised = sum(weight * math.log(weights @ Z**n) for weight, Z, weights in TOY.prior_partitions())
    # Q_hat^aa = v_hat - q_hat and Q_hat^ab = q_hat, the ansatz of step 2
    replicated = TOY.replicated_prior(TOY.v_hat - TOY.q_hat, TOY.q_hat, n)
    assert replicated == pytest.approx(factorised, rel=1e-8)


def moment_handlers(toy, loss):
    """The three opaque nodes as integrals, from the arguments that the nodes carry."""
    partition, weights = toy.channel_partition(loss)
    priors = list(toy.prior_partitions())

    def replicated(node, evaluate, _):
        diagonal, off_diagonal = (float(evaluate(a, {sym.ell: 0})[0, 0]) for a in node.args[1:3])
        n = int(evaluate(node.args[3]))
        if node.side == "channel":
            return Float(toy.replicated_channel(loss, diagonal, off_diagonal, n))
        return Float(toy.replicated_prior(diagonal, off_diagonal, n))

    def common(node, evaluate, _):
        n = float(evaluate(node.args[1]))
        if node.side == "channel":
            return Float(math.log((weights * partition**n).sum()))
        return Float(sum(weight * math.log(w @ Z**n) for weight, Z, w in priors))

    def log_mean(node, _evaluate, _):
        if node.side == "channel":
            return Float((weights * np.log(partition)).sum())
        return Float(sum(weight * (w @ np.log(Z)) for weight, Z, w in priors))

    return {ReplicatedMoment: replicated, CommonGaussianMoment: common, LogPartitionMean: log_mean}


def replica_sums(replicas):
    """Explicit sums: ``replicas[name][a][b]`` (or ``[a]``) is what replica indices stand for."""

    def handler(node, evaluate, bound):
        body, pairs = node.args
        n = len(replicas["m"])
        total = 0
        for a, b in product(range(n), repeat=2):
            if (a != b) != bool(pairs):
                continue
            where = "ab" if pairs else "aa"
            values = {f"{name}^{where}": replicas[name][a][b] for name in ("q", "q_hat")}
            values |= {f"{name}^a": replicas[name][a] for name in ("m", "theta", "m_hat", "theta_hat")}
            total = total + evaluate.given(**values)(body, bound)
        return total

    return {_ReplicaSum: handler}


def symmetric_replicas(values, n):
    """The replica-symmetric ansatz, written out as replica matrices of blocks per token."""
    tokens = range(len(values["q"]))
    total = [values["q"][l] + values["v"][l] for l in tokens]
    conjugate = [values["v_hat"][l] - values["q_hat"][l] for l in tokens]
    return {
        "q": [[total if a == b else values["q"] for b in range(n)] for a in range(n)],
        "q_hat": [[conjugate if a == b else values["q_hat"] for b in range(n)] for a in range(n)],
        **{name: [values[name]] * n for name in ("m", "theta", "m_hat", "theta_hat")},
    }


@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_step_two_is_step_one_at_integer_n(explicit, n):
    """All terms of both steps, moments included, as the steps' own expressions have them."""
    values = TOY.values()
    replicas = symmetric_replicas(values, n)
    first_of = {"q^aa": replicas["q"][0][0], "q^ab": values["q"]}
    first_of |= {"q_hat^aa": replicas["q_hat"][0][0], "q_hat^ab": values["q_hat"]}
    handlers = moment_handlers(TOY, tanh_square) | replica_sums(replicas)
    sizes = {"r": 1, "t": 1, "L": 1, "n": n, "alpha": TOY.alpha}
    evaluate = explicit(1, sizes, values | first_of, handlers=handlers)
    for name, term in MOMENTS.terms.items():
        assert float(evaluate(term)) == pytest.approx(float(evaluate(ANSATZ.terms[name])), rel=1e-8), name


# --- (b) no replicas --------------------------------------------------------------------------


def richardson(function, first, levels=6):
    """Limit of a smooth function at 0 from its values at ``first / 2^j``."""
    row = [function(first / 2**j) for j in range(levels)]
    for order in range(1, levels):
        row = [b + (b - a) / (2**order - 1) for a, b in pairwise(row)]
    return row[0]


@LOSSES
def test_channel_moment_over_n_tends_to_mean_log_partition(loss):
    partition, weights = TOY.channel_partition(loss)
    limit = richardson(lambda n: math.log((weights * partition**n).sum()) / n, 0.4)
    assert limit == pytest.approx((weights * np.log(partition)).sum(), rel=1e-9)


def test_prior_moment_over_n_tends_to_mean_log_partition():
    for _, Z, weights in TOY.prior_partitions():
        limit = richardson(lambda n, Z=Z, weights=weights: math.log(weights @ Z**n) / n, 0.4)
        assert limit == pytest.approx(weights @ np.log(Z), rel=1e-9)


@pytest.mark.parametrize("name", ANSATZ.terms)
def test_step_three_is_the_coefficient_of_n(explicit, name):
    """Every term of step 2 divided by n, extrapolated to n = 0, is the term of step 3."""
    world = partial(explicit, 1, values=TOY.values(), handlers=moment_handlers(TOY, log_cosh))

    def per_replica(n):
        return float(world(sizes={"n": Float(n), "alpha": TOY.alpha})(ANSATZ.terms[name])) / n

    expected = float(world(sizes={"alpha": TOY.alpha})(NO_REPLICAS.terms[name]))
    assert richardson(per_replica, 0.4) == pytest.approx(expected, rel=1e-8)
    assert not NO_REPLICAS.terms[name].has(sym.n)


# --- (c) zero temperature ---------------------------------------------------------------------

FIELDS = np.linspace(-14.0, 14.0, 5601)  # spacing .005, against a peak of width (V/beta)^1/2 > .03


def energies(toy, V, loss, stride=3):
    """``Psi(h)`` on a grid of h, for every (stride-th) common field, and the fields' weights."""
    omega, k, weights = (x[::stride, ::stride] for x in toy.common_fields())
    weights = weights / weights.sum()
    return (FIELDS - omega[..., None]) ** 2 / (2 * V) + loss(FIELDS, k[..., None]), weights


def minus_log_partition(energy, V, beta):
    """``-1/beta log Z_y`` with ``v = V/beta``."""
    lowest = energy.min(axis=-1)
    sums = np.exp(-beta * (energy - lowest[..., None])).sum(axis=-1) * (FIELDS[1] - FIELDS[0])
    return lowest - np.log(sums * math.sqrt(beta / (2 * math.pi * V))) / beta


def test_log_partition_tends_to_the_moreau_envelope_with_the_laplace_rate():
    """``-E log Z / beta = E[M] + E log(1 + V loss''(prox)) / (2 beta)`` and O(beta^-2)."""
    V = 0.9
    energy, weights = energies(TOY, V, log_cosh)
    envelope = energy.min(axis=-1)
    _, k, _ = (x[::3, ::3] for x in TOY.common_fields())
    prox = FIELDS[energy.argmin(axis=-1)]
    curvature = 1.3**2 / np.cosh(1.3 * prox - 0.8 * k + 0.2) ** 2
    predicted = (weights * np.log(1 + V * curvature)).sum() / 2
    scaled = {b: b * (weights * (minus_log_partition(energy, V, b) - envelope)).sum() for b in (100.0, 400.0)}
    # the next order is 1/beta: about 1/100, then 1/400
    assert scaled[100.0] == pytest.approx(predicted, rel=2e-2)
    assert scaled[400.0] == pytest.approx(predicted, rel=5e-3)


def test_log_partition_tends_to_the_global_minimum_where_the_prox_jumps():
    """Two minima compete at large V; the mean still converges like 1/beta."""
    V = 12.0
    energy, weights = energies(TOY, V, double_well, stride=4)
    envelope = energy.min(axis=-1)
    interior = energy[..., 1:-1]
    minima = ((interior < energy[..., :-2]) & (interior < energy[..., 2:])).sum(axis=-1)
    assert (weights * (minima > 1)).sum() > 0.05  # otherwise nothing is tested
    errors = [(weights * (minus_log_partition(energy, V, b) - envelope)).sum() for b in (250.0, 500.0, 1000.0, 2000.0)]
    for coarse, fine in pairwise(errors):
        assert fine / coarse == pytest.approx(0.5, abs=0.05)


def scaled_toy(beta):
    """Order parameters at inverse temperature beta under the scalings of step 4."""
    return Toy(
        beta=beta,
        v=TOY.v / beta,
        v_hat=TOY.v_hat * beta,
        q_hat=TOY.q_hat * beta**2,
        m_hat=TOY.m_hat * beta,
        theta_hat=TOY.theta_hat * beta,
    )


def prior_evaluator(explicit):
    """The final prior term's world: what was v and v_hat is now V and V_hat."""
    values = TOY.values()
    values |= {"V": values["v"], "V_hat": values["v_hat"]}
    atoms = tuple((w, {"gamma": [g], "tau": [tau], "pi": Matrix([[pi]])}) for w, g, tau, pi in TOY.atoms)
    return explicit(1, {"r": 1, "t": 1, "L": 1, "lambda": TOY.ridge, "alpha": TOY.alpha}, values, atoms)


def test_prior_log_partition_tends_to_the_completed_square(explicit):
    """``-E log Z_w / beta`` is the last prior term minus ``log(2 pi / A) / (2 beta)`` exactly."""
    limit = float(prior_evaluator(explicit)(RIDGE.terms["prior"]))
    for beta in (7.0, 60.0):
        toy = scaled_toy(beta)
        log_mean, correction = 0.0, 0.0
        for weight, gamma, tau, pi in toy.atoms:
            z, weights = line()
            A = beta * toy.ridge + gamma * toy.v_hat
            field = tau * toy.m_hat + gamma * toy.theta_hat * pi + math.sqrt(gamma * toy.q_hat) * z
            w = np.linspace(-9.0, 9.0, 3601)
            exponent = -A * w**2 / 2 + field[:, None] * w
            highest = exponent.max(axis=1)
            logs = highest + np.log(np.exp(exponent - highest[:, None]).sum(axis=1) * (w[1] - w[0]))
            log_mean += weight * (weights @ logs)
            correction += weight * math.log(2 * math.pi / A) / 2
        assert -log_mean / beta == pytest.approx(limit - correction / beta, rel=1e-9)


# --- (d) completed square ---------------------------------------------------------------------


@pytest.mark.parametrize("r", [1, 2, 3])
def test_completed_square(explicit, rational, r):
    """`QuadraticMinimum.doit` against an explicit minimiser for z on a cube (exact)."""
    draw = rational(r)
    A, b, S_root = draw.positive(r), draw.matrix(r, 1), draw.positive(r)
    node = QuadraticMinimum(*(TokenMatrix(name, sym.r, c, None) for name, c in (("A", sym.r), ("b", 1), ("S", sym.r))))
    evaluate = explicit(1, {"r": r}, {"A": A, "b": b, "S": S_root * S_root}, roots={"S": S_root})

    def objective(w, z):
        return evaluate.given(w=w, z=z)(node.objective)[0, 0]

    mean = 0
    for signs in product((-1, 1), repeat=r):
        z = Matrix(signs)
        w = A.LUsolve(b + S_root * z)
        lowest = objective(w, z)
        mean += lowest / 2**r
        for i, step in product(range(r), (-1, 1)):
            assert objective(w + step * eye(r)[:, i], z) > lowest
    assert evaluate(node.doit()) == mean


def test_last_step_only_completes_the_square():
    for name, term in RIDGE.terms.items():
        before = ZERO_TEMPERATURE.terms[name]
        if name == "prior":
            assert before.body == QuadraticMinimum(precision(), source(), noise())
            assert term.body == before.body.doit()
        else:
            assert term == before


# --- (e) bookkeeping of replica sums ----------------------------------------------------------

NAMES = {"q": ("r", "r"), "v": ("r", "r"), "q_hat": ("r", "r"), "v_hat": ("r", "r")}
NAMES |= {"m": ("r", 1), "m_hat": ("r", 1), "theta": ("r", "t"), "theta_hat": ("r", "t")}


def general_values(rational, seed, L, r, t):
    draw = rational(seed)
    size = {"r": r, "t": t, 1: 1}
    return {name: draw.per_token(L, size[a], size[b], symmetric=(a, b) == ("r", "r")) for name, (a, b) in NAMES.items()}


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(("L", "r", "t"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_counting_of_replicas(explicit, rational, L, r, t, n):
    """Sums over explicit replica matrices equal the counts n and n(n-1) of step 2, exactly."""
    values = general_values(rational, 3, L, r, t)
    handlers = replica_sums(symmetric_replicas(values, n))
    evaluate = explicit(L, {"r": r, "t": t, "L": L, "n": n}, values, handlers=handlers)
    for name in COUPLINGS:
        assert evaluate(MOMENTS.terms[name]) == evaluate(ANSATZ.terms[name])


@pytest.mark.parametrize(("L", "r", "t"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
def test_couplings_linear_in_n(explicit, rational, L, r, t):
    """Step 3 is the linear coefficient of step 2, of second degree in n: three values fix it."""
    values = general_values(rational, 5, L, r, t)
    for name in COUPLINGS:
        at = [explicit(L, {"n": n}, values)(ANSATZ.terms[name]) for n in (0, 1, 2)]
        linear = (-3 * at[0] + 4 * at[1] - at[2]) / 2
        assert at[0] == 0
        assert explicit(L, {}, values)(NO_REPLICAS.terms[name]) == linear


@pytest.mark.parametrize("n", [1, 2])
def test_couplings_of_step_one_count_the_weights(explicit, n):
    """At its extremum, step 1 without the energy is the log-volume of weights with given overlaps.

    For directions with ``gamma = c``, ``tau = +-p``, ``pi = +-s``: log-volume per dimension
    ``1/2 log det(2 pi e X) - beta lambda/2 Tr Q/c``,
    ``X = Q/c - m m^T/p^2 - theta theta^T/(c s)^2``.
    This fixes the sign and the factor of every conjugate.  Replicas need not be symmetric here.
    """
    c, p, s = Rational(7, 5), Rational(4, 3), Rational(5, 6)
    beta_ridge = Rational(3, 11)
    Q = Matrix([[Rational(9, 4), Rational(2, 3)], [Rational(2, 3), Rational(12, 7)]])[:n, :n]
    m, theta = (
        Matrix([Rational(3, 7), Rational(-2, 9)])[:n, :],
        Matrix([Rational(1, 5), Rational(4, 9)])[:n, :],
    )
    X = Q / c - m * m.T / p**2 - theta * theta.T / (c * s) ** 2
    # unknown conjugates; the quadratic form has Q_hat^aa on its diagonal and -Q_hat^ab off it
    Q_hat = Matrix(n, n, lambda a, b: Symbol(f"Q_{min(a, b)}{max(a, b)}"))
    m_hat, theta_hat = (Matrix(n, 1, lambda a, _, name=name: Symbol(f"{name}_{a}")) for name in ("m", "t"))
    form = beta_ridge * eye(n) + c * (2 * diag(*Q_hat.diagonal()) - Q_hat)

    def prior(node, _evaluate, _):
        total = 0
        for signs in product((-1, 1), repeat=2):
            b = signs[0] * p * m_hat + signs[1] * c * s * theta_hat
            total += ((b.T * form.inv() * b)[0, 0] + n * log(2 * circle) - log(form.det())) / 8
        return total

    replicas = {
        "q": [[[Q[a, b] * eye(1)] for b in range(n)] for a in range(n)],
        "q_hat": [[[Q_hat[a, b] * eye(1)] for b in range(n)] for a in range(n)],
        "m": [[m[a, :]] for a in range(n)],
        "m_hat": [[m_hat[a, :]] for a in range(n)],
        "theta": [[theta[a, :]] for a in range(n)],
        "theta_hat": [[theta_hat[a, :]] for a in range(n)],
    }
    evaluate = explicit(1, {"n": n}, handlers=replica_sums(replicas) | {ReplicatedMoment: prior})
    total = sum(evaluate(term) for name, term in MOMENTS.terms.items() if name != "energy")
    inverse = X.inv()
    solved = (inverse - beta_ridge * eye(n)) / c
    point = dict(zip(m_hat, inverse * m / p**2, strict=True))
    point |= dict(zip(theta_hat, inverse * theta / (c * s) ** 2, strict=True))
    point |= {Q_hat[a, b]: solved[a, b] if a == b else -solved[a, b] for a in range(n) for b in range(n)}
    for unknown in point:
        assert total.diff(unknown).subs(point).simplify() == 0
    volume = (log((2 * circle) ** n * X.det()) + n - beta_ridge * Q.trace() / c) / 2
    assert float(total.subs(point) - volume) == pytest.approx(0, abs=1e-12)


# --- (f) scalings of step 4 -------------------------------------------------------------------


@pytest.mark.parametrize(("L", "r", "t"), [(1, 1, 1), (2, 2, 1), (3, 2, 2)])
@pytest.mark.parametrize("beta", [Rational(5, 2), Rational(400, 3)])
def test_scaled_couplings_are_those_of_the_free_entropy(explicit, rational, L, r, t, beta):
    """``-1/beta`` times step 3 at scaled values is step 4 minus ``sum Tr[V_hat V] / (2 beta)``."""
    values = general_values(rational, 9, L, r, t)
    V, V_hat = values.pop("v"), values.pop("v_hat")
    powers = {"q": 0, "m": 0, "theta": 0, "q_hat": 2, "m_hat": 1, "theta_hat": 1}
    scaled = {name: [beta ** powers[name] * x for x in values[name]] for name in powers}
    scaled |= {"v": [x / beta for x in V], "v_hat": [beta * x for x in V_hat]}
    before, after = explicit(L, {}, scaled), explicit(L, {}, values | {"V": V, "V_hat": V_hat})
    for name in ("mean", "teacher"):
        assert -before(NO_REPLICAS.terms[name]) / beta == after(FREE_ENTROPY.terms[name])
    remainder = sum(((a * b).trace() for a, b in zip(V, V_hat, strict=True)), zeros(1)[0, 0]) / (2 * beta)
    final = after(FREE_ENTROPY.terms["variance"]) + after(FREE_ENTROPY.terms["overlap"])
    assert -before(NO_REPLICAS.terms["overlap"]) / beta == final - remainder


def test_whole_free_entropy_is_the_limit_of_the_finite_temperature_one(explicit):
    """Step 3 of the toy at large beta against the final free entropy, all terms together.

    The differences shrink like log(beta)/beta: between beta = 50 and 800, ``beta`` times the
    difference grows by less than a factor 3.
    """
    energy, weights = energies(TOY, TOY.v, log_cosh)
    envelope = float((weights * energy.min(axis=-1)).sum())
    final = prior_evaluator(explicit)
    final = replace(final, handlers={FieldMean: lambda *_: Float(envelope)})
    limit = sum(float(final(term)) for _, term in FREE_ENTROPY)

    def minus_log_z(beta):
        toy = scaled_toy(beta)
        channel = (weights * minus_log_partition(energy, TOY.v, beta)).sum() - envelope
        measure = sum(w * math.log(2 * math.pi / (beta * (TOY.ridge + g * TOY.v_hat))) / 2 for w, g, _, _ in TOY.atoms)
        couplings = explicit(1, {}, toy.values())
        total = -sum(float(couplings(NO_REPLICAS.terms[name])) for name in COUPLINGS) / beta
        prior = float(final(RIDGE.terms["prior"])) - measure / beta
        return total + prior + TOY.alpha * (channel + envelope)

    differences = [abs(minus_log_z(beta) - limit) for beta in (50.0, 200.0, 800.0)]
    assert differences[2] < differences[1] < differences[0]
    assert differences[2] * 800 < 3 * differences[0] * 50


def test_named_terms_are_the_ones_documented():
    assert list(FREE_ENTROPY.terms) == ["energy", "variance", "overlap", "mean", "teacher", "prior"]
    assert FREE_ENTROPY.terms["variance"].has(sym.q_hat)
    assert FREE_ENTROPY.terms["overlap"].has(sym.V_hat)
    assert FREE_ENTROPY.total == ZERO_TEMPERATURE.total.xreplace(
        {node: node.doit() for node in ZERO_TEMPERATURE.total.atoms(QuadraticMinimum)}
    )
    assert not FREE_ENTROPY.total.has(sym.beta)
    assert not FREE_ENTROPY.total.has(sym.n)


def test_every_step_says_what_was_done():
    for step in FREE_ENTROPY.steps:
        assert step.name
        assert step.equation
        assert len(step.statement) > 40
        assert step.terms
