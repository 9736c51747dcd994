"""Losses of Q = WᵀW/d: linear ones are ridges, others meet closed forms and training."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.fixed_points.deflation import _with_entries
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.state_evolution.gauge import gauge_of
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System

SETTINGS = SolverSettings(threads=1)
LEVELS = [{"weight": 0.3, "variances": [0.9]}, {"weight": 0.7, "variances": [0.35]}]
ALPHA = 1.7


def of_loss(expression: object, strength: float, loss: dict[str, object] | None = None, **fields: object) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "spectrum": LEVELS},
            "positions": {"kind": "none"},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": expression} | (loss or {}),
        }
        | {name: {"rank": value} for name, value in fields.items() if name in ("student", "teacher")}
        | ({"integration": {"rule": fields["rule"]}} if "rule" in fields else {})
    )


def autoencoder(strength: float = 0.8, columns: int = 1, loss: str = "p = tanh(h[0])\n-h[0]@p + p@Q@p/2") -> Problem:
    clusters = [{"sigma": 1.1, "mean": [-1.3]}, {"sigma": 1.1, "mean": [1.3]}]
    return Problem.from_dict(
        {
            "tokens": {"kind": "mixture", "length": 1, "clusters": clusters},
            "positions": {"kind": "none"},
            "student": {"rank": columns},
            "regularizer": {"strength": strength},
            "loss": {"kind": "expression", "expression": loss},
        }
    )


# one model of one column: parameters say which of its terms there are
TERMS = "bent*sqrt(1 + (h - k - b)**2) + square*(h - k)**2/2 + linear*Q + size*Q**2"


def of_terms(strength: float, rule: str = "auto", **numbers: float) -> Problem:
    given = {"bent": 0.0, "square": 0.0, "linear": 0.0, "size": 0.0, "b": 0.2} | numbers
    return of_loss(TERMS, strength, {"parameters": given, "trained": {"b": "0.3*(b - 0.5)**2"}}, rule=rule)


# --- linear losses of Q are ridges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["gauss-hermite", "lines", "sobol"])
def test_a_linear_loss_of_q_is_a_ridge(rule: str):
    """c Q adds 2 alpha c to lambda, also where tokens are anisotropic and q is not Q; a trained bias stays itself."""
    written, ridge = (
        solve_point(of_terms(strength, rule, bent=1.0, linear=linear), ALPHA, settings=SETTINGS)
        for linear, strength in ((0.13, 0.21), (0.0, 0.21 + 2 * ALPHA * 0.13))
    )
    for name in ("q", "V", "theta", "q_hat", "V_hat", "training_loss", "weight_norm", "replicon"):
        np.testing.assert_allclose(written.values[name], ridge.values[name], rtol=1e-7, err_msg=name)
    assert written.values["trained"][0] == pytest.approx(ridge.values["trained"][0], rel=1e-6)
    assert written.values["trained"][1] == pytest.approx(ridge.values["weight_norm"], rel=1e-6)
    assert ridge.values["weight_norm"] != pytest.approx(ridge.values["q"].item(), rel=0.1)
    assert written.values["free_energy_gap"] < 1e-6
    for name in ("violation_alpha", "violation_ridge"):
        assert abs(written.values[name]) < 4 * written.errors[name] + 1e-4


def test_a_linear_loss_of_all_of_q_is_a_ridge_of_other_columns():
    """Tr[W (lambda I + 2 alpha D) W^T] is that of lambda and columns W (I + 2 alpha D / lambda)^(1/2)."""
    strength, D = 0.3, np.array([[0.11, -0.035], [-0.035, 0.06]])
    values, vectors = np.linalg.eigh(np.eye(2) + 2 * ALPHA * D / strength)
    back = (vectors / np.sqrt(values)) @ vectors.T
    loss = (
        "x = s*h0_0 + u*h0_1\ny = u*h0_0 + t*h0_1\n(k - x)**2/2 + (0.4*k - y)**2/2 + 0.3*sqrt(1 + x*y + x**2 + y**2)"
        " + first*Q[0, 0] + both*Q[1, 0] + second*Q1_1"
    )

    def with_numbers(change: np.ndarray, slopes: np.ndarray) -> Problem:
        # the entry (1, 2) of Q stands twice in Tr[D Q], and once in a formula
        numbers = {"s": change[0, 0], "u": change[0, 1], "t": change[1, 1], "first": slopes[0, 0]}
        numbers |= {"both": 2 * slopes[0, 1], "second": slopes[1, 1]}
        return of_loss(loss, strength, {"parameters": numbers}, student=2, rule="gauss-hermite")

    written, other = with_numbers(np.eye(2), D), with_numbers(back, np.zeros((2, 2)))
    found, wanted = (solve_point(one, ALPHA, settings=SETTINGS) for one in (written, other))
    assert found.status == wanted.status == 0
    np.testing.assert_allclose(found.values["q"], back @ wanted.values["q"] @ back, rtol=5e-6)
    np.testing.assert_allclose(found.values["theta"], back @ wanted.values["theta"], rtol=5e-6)
    for name in ("training_loss", "replicon"):
        assert found.values[name] == pytest.approx(float(wanted.values[name]), rel=1e-6)


# --- losses that are not linear in Q ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.05, -0.2])
def test_a_square_of_q_meets_the_ridge_of_its_slope(strength: float):
    """c Q^2 adds 4 alpha c Q to lambda: where that is known, so is lambda, which may not be zero or less."""
    whole, c = 0.6, 0.0
    ridge = solve_point(of_terms(whole, square=1.0), ALPHA, settings=SETTINGS)
    Q = float(ridge.values["weight_norm"])
    c = (whole - abs(strength)) / (4 * ALPHA * Q) if strength > 0 else -0.1 / (4 * ALPHA * Q)
    own = whole - 4 * ALPHA * c * Q
    found = solve_point(of_terms(own, square=1.0, size=c), ALPHA, settings=SETTINGS)
    assert found.status == 0
    np.testing.assert_allclose(found.values["q"], ridge.values["q"], rtol=1e-6)
    # the objective has c alpha Q^2 for what the ridge has
    difference = ALPHA * c * Q**2 + (own - whole) / 2 * Q
    assert found.values["training_loss"] - ridge.values["training_loss"] == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize(("strength", "alpha"), [(0.1, 3.0), (0.4, 3.0), (0.8, 1.5), (2.5, 0.6)])
def test_an_autoencoder_is_solved_from_small_weights(strength: float, alpha: float):
    """With lambda + Q_hat in place of the multiplier that holds Q, weights would grow without bound."""
    found = solve_point(autoencoder(strength), alpha, "positional", settings=SETTINGS)
    assert found.status == 0
    assert (np.abs(found.values["m"]).max() > 1) == (strength < 1)  # where there is enough data for the means
    assert found.values["free_energy_gap"] < 1e-6
    assert found.values["trained"][0] == pytest.approx(float(found.values["weight_norm"]), rel=1e-6)
    for name in ("violation_alpha", "violation_ridge"):
        assert abs(found.values[name]) < 4 * found.errors[name] + 1e-4


def test_checks_hold():
    report = ap.check(autoencoder(), 5.0, "positional", experiment=False)
    assert report.passed
    assert {"slopes of trained parameters"} <= {check.name for check in report.checks}


# --- symmetries -------------------------------------------------------------------------------------------------------


def test_columns_change_together_with_q(uncompiled: None):
    """An entry of Q breaks the exchange of columns, an off-diagonal one single signs; turns change Q too."""
    found = {}
    squares, bent = "tanh(h[0])@tanh(h[0])", "sqrt(1 + h[0]@h[0])"
    for name, loss in {
        "p Q p": "p = tanh(h[0])\np@Q@p",
        "Tr Q": f"{squares} + Q[0, 0] + Q[1, 1]",
        "Q11": f"{squares} + Q[0, 0]",
        "Q12": f"({squares})*(1 + Q[0, 1])",
        "h Q h": f"{bent} + h[0]@Q@h[0]",
        "|h|, Q11": f"{bent} + Q[0, 0]",
    }.items():
        system = System.of(autoencoder(columns=2, loss=loss))
        turns = gauge_of(system.loss).turns
        found[name] = len(loss_symmetries(system.loss)) // 2, len(turns)
    assert found == {"p Q p": (8, 0), "Tr Q": (8, 0), "Q11": (4, 0), "Q12": (4, 0), "h Q h": (8, 1), "|h|, Q11": (4, 0)}


def test_entries_that_vanish_in_starts_have_sizes():
    """A search for all solutions counts distances in them: of q, V and Q those of the diagonal entries."""
    q = np.diag([0.9, 0.4])[None] * np.array([1.0, 0.5])[:, None, None]
    given = Overlaps(q, 0.3 * q, np.ones((2, 2, 1)), np.array([[[0.2], [0.0]]] * 2), np.array([2.0, 0.0, 0.5]), norms=3)
    rho = np.full((2, 1, 1), 1.7)
    sizes = Overlaps.unpack(_with_entries(np.abs(given.pack()), given, rho), 2, 2, 1, 3)
    np.testing.assert_allclose(sizes.q[0], [[0.9, 0.6], [0.6, 0.4]])
    np.testing.assert_allclose(sizes.V[1], 0.15 * sizes.q[0])
    np.testing.assert_allclose(sizes.theta[0, :, 0], [0.2, 0.1 * np.sqrt(0.4 * 1.7)])
    np.testing.assert_allclose(sizes.trained, [2.0, 1.0, 0.5])


# --- at finite d ------------------------------------------------------------------------------------------------------

GENERAL = "p = tanh(h[0])\n-h[0]@p + p@Q@p/2 + 0.2*Q[0, 0] - 0.15*Q[0, 1]*p[0]**2"


def test_the_risk_at_finite_d_and_its_gradient():
    """Against the formula of the samples' own tokens, and central differences."""
    torch = pytest.importorskip("torch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.risk import Risk
    from attnphase.kernels.torch.loss import LocalLoss

    problem, d, n = autoencoder(0.8, 2, GENERAL), 24, 31
    instance = draw_instance(problem, d, n, 3, (0, 1), LocalLoss(problem))
    risk = Risk.of(instance)
    weights = torch.randn((2, d, 2), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values, gradients = risk.smooth(weights)
    for run in range(2):
        W = weights[run].numpy()
        h = instance.samples.tokens[run].numpy().reshape(n, d) @ W / np.sqrt(d)
        scale = risk.fields(weights).reshape(2, n, 2)[run].numpy() / h
        np.testing.assert_allclose(scale, scale[0, 0], rtol=1e-9)
        h, Q = h * scale, W.T @ W / d
        p = np.tanh(h)
        losses = (
            -(h * p).sum(axis=1) + np.einsum("ni,ij,nj->n", p, Q, p) / 2 + 0.2 * Q[0, 0] - 0.15 * Q[0, 1] * p[:, 0] ** 2
        )
        assert float(values[run]) == pytest.approx(losses.sum() + 0.4 * (W**2).sum(), rel=1e-10)
    torch.testing.assert_close(risk.value(weights), values, rtol=1e-13, atol=0)
    direction = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slope = (risk.value(weights + 1e-5 * direction) - risk.value(weights - 1e-5 * direction)) / 2e-5
    torch.testing.assert_close(slope, (gradients * direction).sum(dim=(1, 2)), rtol=1e-8, atol=0)


def two_columns(**numbers: float) -> dict[str, object]:
    """A loss of two columns, of two teachers' fields if these have a part in it."""
    loss = f"{GENERAL.split(' + 0.2')[0]} + first*Q[0, 0] - both*Q[0, 1]*p[0]**2 + part*p[0]*k0_0 + rest*p[1]*k0_1"
    given = {"first": 0.0, "both": 0.0, "part": 0.0, "rest": 0.0} | numbers
    return {"positions.kind": "none", "teacher.rank": 2, "loss.expression": loss, "loss.parameters": given}


@pytest.mark.slow
@pytest.mark.parametrize("columns", [1, 2])
def test_training_meets_theory(columns: int):
    pytest.importorskip("torch")
    problem = autoencoder(0.8, columns)
    if columns == 2:
        problem = problem.with_fields(two_columns(first=0.2, both=0.15))
    theory = ap.solve(problem, 5.0, "positional")
    runs = ap.simulate(problem, 5.0, "positional", dimension=[250, 500], seeds=12, optimizer="lbfgs", test_samples=0)
    limits = {one.name: one.limit for one in ap.compare(theory, runs).quantities}
    assert {"training_loss", "weight_norm", "q[1,1,1,1]", "m[1,1,1]"} <= limits.keys()
    assert all(limit is None or abs(limit.z) < 4 for limit in limits.values())


# --- declarations -----------------------------------------------------------------------------------------------------


def test_functions_take_q_as_an_array():
    def loss(h, k, Q, size=0.1):
        return ((h - k) ** 2).sum() / 2 + size * (Q @ Q).sum()

    problem = of_loss(loss, 0.3, student=2, teacher=2)
    assert dict(problem.loss.parameters or {}) == {"size": 0.1}
    assert problem.loss.norms == ("Q0_0", "Q0_1", "Q1_1")
    assert Problem.from_toml(problem.to_toml()) == problem

    def scaled(h, k, Q=0.3):
        return (h[0, 0] - k[0, 0]) ** 2 / 2 + Q * h[0, 0] ** 2

    for own in (of_loss(scaled, 0.3), of_loss("(h - k)**2/2 + Q*h**2", 0.3, {"parameters": {"Q": 0.3}})):
        assert own.loss.norms == ()
        assert dict(own.loss.parameters or {}) == {"Q": 0.3}


def test_a_dataset_names_the_entries_of_q(tmp_path: Path):
    ds = ap.solve(autoencoder(), 5.0, "positional")
    assert ds["parameter"].to_numpy().tolist() == ["Q0_0"]
    ap.save_dataset(ds, tmp_path / "point.nc")
    again = ap.solve(autoencoder(), 5.0, "positional", start=ap.load_dataset(tmp_path / "point.nc"))
    assert int(again["iterations"]) < int(ds["iterations"])
    assert float(again["trained"].item()) == pytest.approx(float(ds["trained"].item()), rel=1e-6)


def test_metrics_take_q():
    problem = replace(autoencoder(), metrics={"size": "Q + 0*h", "ratio": "h**2/(Q + 0.1)"})
    ds = ap.solve(problem, 5.0, "positional")
    assert float(ds["metric_size"]) == pytest.approx(float(ds["weight_norm"]), rel=1e-6)
    norm = float(ds["weight_norm"])
    second = 1.1**2 * norm + float(ds["m"].to_numpy().ravel()[0]) ** 2
    assert float(ds["metric_ratio"]) == pytest.approx(second / (norm + 0.1), rel=1e-3)


def test_the_page_has_the_equations_of_q():
    page = ap.derive(autoencoder(0.8, 2, GENERAL)).markdown
    assert r"\mathsf{Q}_{1 2} = \mathtt{Q0\_1}" in page
    section = page[page.index("## Products of the columns") :]
    factors = re.findall(r"hat\{\\mathsf\{Q\}\}_\{(\d) (\d)\} & = (2 )?\\alpha", section)
    assert factors == [("1", "1", "2 "), ("1", "2", ""), ("2", "2", "2 ")]
    assert r"\mathsf{Q} = \int\negthinspace\mathrm{d}\nu\thinspace R \left(b b^{\top} + S\right) R" in section
    assert "Products of the columns" not in ap.derive(of_loss("(h - k)**2/2", 0.3)).markdown


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"regularizer.kind": "lasso"}, 'takes Q, which does not go with regularizer.kind = "lasso"'),
        ({"loss.parameters": {"Q0_0": 1.0}}, "loss.parameters.Q0_0 has the name of an entry of Q"),
        ({"loss.expression": "h**2 + Q[1, 0]"}, "loss.expression"),
        ({"metrics.size": "Q[0, 1]"}, "metrics.size"),
    ],
)
def test_wrong_declarations_end_in_one_sentence(fields: dict[str, object], sentence: str):
    with pytest.raises(ProblemError, match=re.escape(sentence)) as caught:
        autoencoder().with_fields(fields)
    assert str(caught.value).count(". ") == 0


def test_what_does_not_cover_losses_of_q_says_so():
    calls = {
        "1RSB": lambda: ap.one_rsb(autoencoder(), 2.0, y=[1.0]),
        "the dynamics": lambda: ap.sgd_flow(autoencoder(), until=2.0),
        "optimizer gamp": lambda: ap.simulate(autoencoder(), 2.0, optimizer="gamp", dimension=50, seeds=1),
        "optimizer sgd": lambda: ap.simulate(autoencoder(), 2.0, optimizer="sgd", dimension=50, seeds=1),
    }
    for what, call in calls.items():
        with pytest.raises(ProblemError, match=rf"{what} does not cover losses of Q") as caught:
            call()
        assert str(caught.value).count(". ") == 0
