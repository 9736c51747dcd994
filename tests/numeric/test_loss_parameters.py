"""Numbers of a loss: parameters that are swept, and those that are trained with the weights."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from models import of_terms

import attnphase as ap
from attnphase.data.derivatives import sensitivity_table
from attnphase.errors import ProblemError
from attnphase.fixed_points.point import BranchPoint
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status

SETTINGS = SolverSettings(threads=1)
FEW_MAPS = SolverSettings(threads=1, max_maps=2, stability=False, identity=False)


def of_loss(expression: str, **loss: object) -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.8},
            "regularizer": {"strength": 0.13},
            "loss": {"kind": "expression", "expression": expression, **loss},
        }
    )


def regression(**numbers: float | dict[str, str]) -> Problem:
    """The square loss of tokens of one kind."""
    trained = {"trained": numbers.pop("trained")} if "trained" in numbers else {}
    own = {name: value for name, value in numbers.items() if isinstance(value, float)}
    return of_terms([{"sigma": 0.8}], [1.0], 0.13, {"square": 1.0} | own, **trained)


def classifier(a: float = 1.0, b: float = 0.0, **loss: object) -> Problem:
    """Two clusters of unequal weights, whose number is the label."""
    clusters = [{"sigma": 0.9, "mean": [1.1]}, {"sigma": 1.2, "mean": [-0.6]}]
    return of_terms(clusters, [0.3, 0.7], 0.4, {"logistic": 1.0, "a": a, "b": b}, **loss)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_parameters_are_the_numbers_of_a_formula(uncompiled: None):
    """Of the order of their names nothing depends; both problems have the same numbers after a few maps."""
    written = of_loss("(h - 0.7*k)**2/2 + 0.2*softplus(h - 0.3)")
    named = of_loss("(h - scale*k)**2/2 + weight*softplus(h - 0.3)", parameters={"weight": 0.2, "scale": 0.7})
    wanted, found = (solve_point(one, 1.7, settings=FEW_MAPS) for one in (written, named))
    for name in ("q", "theta", "training_loss", "test_error"):
        np.testing.assert_allclose(found.values[name], wanted.values[name], rtol=1e-9)
    other = named.with_fields({"loss.parameters.scale": 1.4})
    assert other.loss.parameters is not None
    assert other.loss.parameters["scale"] == 1.4
    assert other.loss.parameters["weight"] == 0.2
    assert Problem.from_toml(other.to_toml()) == other
    assert other.hash != named.hash
    far = solve_point(other, 1.7, settings=FEW_MAPS)
    wanted = solve_point(of_loss("(h - 1.4*k)**2/2 + 0.2*softplus(h - 0.3)"), 1.7, settings=FEW_MAPS)
    np.testing.assert_allclose(far.values["theta"], wanted.values["theta"], rtol=1e-9)


def test_a_sweep_over_a_parameter(tmp_path: Path):
    problem = regression(scale=0.7)
    swept = ap.sweep(problem, 1.7, branch="semantic", fields={"loss.parameters.scale": [0.7, 2.1]}, workers=1)
    ratio = swept["theta"].squeeze().to_numpy()
    np.testing.assert_allclose(ratio[1] / ratio[0], 3.0, rtol=1e-5)  # the square loss is linear in its labels
    ap.save_dataset(swept, tmp_path / "swept.nc")
    assert ap.load_dataset(tmp_path / "swept.nc")["parameters.scale"].attrs["field"] == "loss.parameters.scale"


def test_planes_of_a_label_move_with_a_parameter(uncompiled: None):
    """A label that jumps at a parameter is integrated as one that jumps at its number."""
    written = of_loss("softplus(-sign(k - 0.35)*h)")
    named = of_loss("softplus(-sign(k - edge)*h)", parameters={"edge": 0.35})
    assert named.loss.form.label_planes == written.loss.form.label_planes
    found, wanted = (solve_point(one, 2.3, settings=FEW_MAPS) for one in (named, written))
    np.testing.assert_allclose(found.values["theta"], wanted.values["theta"], rtol=1e-9)


# --- trained ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["auto", "sobol", "gauss-hermite"])
def test_a_trained_shift_of_the_square_loss(rule: str):
    """With labels k + 1.3 and a penalty 0.4 b^2 the residual's mean is (1.3 - b)/(1 + V), so that b is known."""
    problem = regression(b=0.2, shift=1.3, trained={"b": "0.4*b**2"})
    point = solve_point(problem.with_fields({"integration.rule": rule}), 1.7, settings=SETTINGS)
    V = float(point.values["V"].item())
    wanted, error = 1.3 * 1.7 / (1.7 + 0.8 * (1 + V)), float(point.errors["trained"].item())
    assert abs(point.values["trained"].item() - wanted) <= 4 * error + 1e-9
    assert error < 3e-4
    fixed = problem.with_fields({"loss.trained": None, "loss.parameters.b": wanted, "integration.rule": rule})
    at_fixed = solve_point(fixed, 1.7, settings=SETTINGS)
    objective, of_both = at_fixed.values["training_loss"] + 0.4 * wanted**2, point.errors["training_loss"]
    assert abs(point.values["training_loss"] - objective) <= 4 * float(of_both) + 1e-8


def test_derivatives_of_a_trained_shift():
    """Of the b known above, in alpha: V changes with it."""
    problem, alpha = regression(b=0.2, shift=1.3, trained={"b": "0.4*b**2"}), 1.7
    found = ap.sensitivity(problem, alpha, field="alpha", settings=SETTINGS)
    V, slope = float(found["V"].item()), float(found["d_V"].item())
    stiff = 0.8 * (1 + V)
    wanted = 1.3 * (stiff - 0.8 * alpha * slope) / (alpha + stiff) ** 2
    assert abs(float(found["d_trained"].item()) - wanted) <= 4 * float(found["d_trained_stderr"].item()) + 1e-7
    assert float(found["d_trained_stderr"].item()) < 1e-3
    rows = {name: value for name, value, *_ in sensitivity_table(found).rows}
    assert rows["d_trained[b]"].startswith(f"{wanted:.3f}")


def test_a_trained_bias_minimises_the_objective():
    """The objectives of problems whose bias is fixed lie on a parabola about the trained one's."""
    trained = classifier(trained={"b": "0.03*b**2"})
    point = solve_point(trained, 1.9, settings=SETTINGS)
    b, objective = point.values["trained"].item(), float(point.values["training_loss"])
    beside = []
    for step in (-0.02, 0.0, 0.02):
        fixed = classifier(b=b + step)
        beside.append(
            float(solve_point(fixed, 1.9, settings=SETTINGS).values["training_loss"]) + 0.03 * (b + step) ** 2
        )
    low, middle, high = beside
    curvature = (low - 2 * middle + high) / 0.02**2
    assert curvature > 0.1
    assert abs((high - low) / 0.04) < 2e-4 * curvature
    assert middle == pytest.approx(objective, abs=1e-7)
    assert abs(b) > 0.2


def test_a_stiff_penalty_keeps_a_parameter():
    trained = classifier(trained={"b": "1e7*(b - 0.31)**2"})
    held, fixed = (solve_point(p, 1.9, settings=SETTINGS) for p in (trained, classifier(b=0.31)))
    assert held.values["trained"].item() == pytest.approx(0.31, abs=1e-6)
    np.testing.assert_allclose(held.values["q"], fixed.values["q"], rtol=1e-6)


@pytest.mark.parametrize(("falling", "status"), [("hill", 2), ("line", 2), ("wave", 0)])
def test_a_maximum_in_a_trained_parameter_is_no_solution(falling: str, status: int):
    """All three losses are stationary or linear in b near the start, and only the cosine has a minimum, at pi."""
    problem = regression(b=0.1, enters=0.0, trained={"b": "0"}, **{falling: 1.0})
    point = solve_point(problem, 1.5, settings=SETTINGS)
    assert point.status == status
    if not status:
        assert point.values["trained"].item() == pytest.approx(np.pi, abs=1e-6)


@pytest.mark.parametrize("curvature", [-0.02, -0.05])
def test_a_maximum_where_the_weights_follow_is_no_solution(curvature: float):
    """At fixed weights both objectives are convex in b; minimised over the weights the second has a maximum."""
    clusters = [{"sigma": 0.9, "mean": [1.1]}, {"sigma": 1.2, "mean": [-0.6]}]

    def at(b: float, **trained: dict[str, str]) -> BranchPoint:
        numbers = {"logistic": 1.0, "a": 1.0, "b": b}
        return solve_point(of_terms(clusters, [0.3, 0.7], 0.1, numbers, **trained), 1.9, settings=SETTINGS)

    point = at(0.0, trained={"b": f"{curvature}*b**2"})
    b = point.values["trained"].item()
    low, middle, high = (
        float(at(near).values["training_loss"]) + curvature * near**2 for near in (b - 0.1, b, b + 0.1)
    )
    if curvature == -0.02:
        assert point.status is Status.converged
        assert middle < min(low, high)
    else:
        assert point.status is Status.left_domain
        assert middle > max(low, high)


def test_two_trained_parameters_with_a_common_curvature():
    """A read-out and a bias: the slopes of the objective vanish in both, whatever each does to the other."""
    penalties = {"b": "0.01*b**2", "a": "0.3*(a - 1.2)**2"}
    point = solve_point(classifier(0.6, 0.1, trained=penalties), 1.9, settings=SETTINGS)
    b, a = point.values["trained"]

    def objective(a: float, b: float) -> float:
        paid = 0.01 * b**2 + 0.3 * (a - 1.2) ** 2
        return float(solve_point(classifier(a, b), 1.9, settings=SETTINGS).values["training_loss"]) + paid

    for da, db in ((0.02, 0.0), (0.0, 0.02)):
        assert abs(objective(a + da, b + db) - objective(a - da, b - db)) / 0.04 < 2e-5
    assert a != pytest.approx(1.2, abs=0.02)


def test_errors_of_a_trained_parameter_are_those_of_its_seeds():
    """Without a penalty a shift is the labels' own.  Its distances to that under eight seeds are as large as stated."""
    problem = regression(b=0.2, shift=1.3, trained={"b": "0"})
    scores = []
    for seed in range(8):
        sampled = problem.with_fields({"integration.rule": "sobol", "integration.nodes": 256, "integration.seed": seed})
        point = solve_point(sampled, 1.7, settings=SETTINGS)
        scores.append((point.values["trained"].item() - 1.3) / point.errors["trained"].item())
    assert 0.4 < np.sqrt(np.mean(np.square(scores))) < 2.2


def test_a_dataset_names_trained_parameters(tmp_path: Path):
    ds = ap.solve(classifier(trained={"b": "0.03*b**2"}), 1.9)
    assert ds["trained"].dims == ("parameter",)
    assert ds["parameter"].to_numpy().tolist() == ["b"]
    ap.save_dataset(ds, tmp_path / "point.nc")
    again = ap.solve(classifier(trained={"b": "0.03*b**2"}), 2.0, start=ap.load_dataset(tmp_path / "point.nc"))
    assert abs(float(again["trained"].item()) - float(ds["trained"].item())) < 0.1


# --- at finite d ------------------------------------------------------------------------------------------------------


def test_training_minimises_the_risk_in_weights_and_bias_together():
    """Against a minimiser that knows nothing of the package, on the same samples."""
    torch = pytest.importorskip("torch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.risk import Risk
    from attnphase.kernels.torch.loss import LocalLoss

    problem, d, n = classifier(trained={"b": "0.03*b**2"}), 30, 57
    instance = draw_instance(problem, d, n, 3, (0, 1), LocalLoss(problem))
    ds = ap.simulate(problem, n / d, dimension=d, seeds=2, seed=3, test_samples=0)
    tokens = instance.samples.tokens.numpy()
    for run in range(2):
        x, labels = tokens[run].reshape(n, d), 2 * instance.samples.targets[run, :, 0, -1].numpy() - 1
        scale = 1.0

        def risk(v: np.ndarray, x: np.ndarray = x, labels: np.ndarray = labels, scale: float = scale) -> float:
            margins = labels * (scale * x @ v[:-1] + v[-1])
            return float(np.logaddexp(0, margins).sum() + 0.2 * (v[:-1] ** 2).sum() + d * 0.03 * v[-1] ** 2)

        weights = torch.zeros((2, d, 1), dtype=torch.float64)
        weights[run, :, 0] = torch.linspace(-1, 1, d, dtype=torch.float64)
        h = Risk.of(instance).fields(weights).reshape(2, n)[run].numpy()
        scale = float((h / (x @ np.linspace(-1, 1, d))).mean())
        found = minimize(lambda v, scale=scale: risk(v, scale=scale), np.zeros(d + 1), tol=1e-12)
        assert ds["trained"].to_numpy().ravel()[run] == pytest.approx(found.x[-1], abs=2e-5)
        assert ds["training_loss"].to_numpy().ravel()[run] == pytest.approx(found.fun / d, rel=1e-9)


@pytest.mark.slow
def test_training_with_a_bias_meets_theory():
    problem = classifier(trained={"b": "0.03*b**2"})
    theory = ap.solve(problem, 1.9)
    runs = ap.simulate(problem, 1.9, dimension=[150, 300], seeds=24, seed=5, test_samples=0)
    comparison = ap.compare(theory, runs)
    trained = [one for one in comparison.quantities if one.name == "trained[b]"]
    assert trained
    assert all(abs(one.z) < 4 for one in trained)


# --- refusals ---------------------------------------------------------------------------------------------------------

BIASED = "softplus(h + b*k)"


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ({"parameters": {"h0_0": 1.0}}, 'its parameter "h0_0" has the name of a field or a function'),
        ({"parameters": {"exp": 1.0}}, 'its parameter "exp" has the name of a field or a function'),
        ({"parameters": {"b": "x"}}, "loss.parameters.b must be a number of at most 1e12, but it is 'x'"),
        ({"parameters": {"b": True}}, "loss.parameters.b must be a number of at most 1e12, but it is True"),
        ({"parameters": {"b": float("nan")}}, "loss.parameters.b must be a number of at most 1e12"),
        ({"parameters": 3}, "loss.parameters must be a table of names and values, but it is 3"),
        ({"parameters": {"items": 1.0}}, "is no keyword of Python or method of a mapping: choose another name"),
        ({"parameters": {"lambda": 1.0}}, 'the name "lambda", but a name'),
        ({"parameters": {"2b": 1.0}}, "begins with a letter"),
        ({}, 'uses the unknown name "b"'),
        (
            {"parameters": {"b": 1.0}, "trained": {"a": "0"}},
            "loss.trained.a is no parameter of the loss: give the number",
        ),
        ({"parameters": {"b": 1.0, "a": 1.0}, "trained": {"a": "0"}}, "loss.expression does not depend on a: leave"),
        ({"parameters": {"b": 1.0, "a": 1.0}}, "loss.parameters.a has no effect: neither loss.expression nor a metric"),
        ({"parameters": {"b": 1.0}, "trained": {"b": "1/b"}}, "must be a finite number for every b"),
        ({"parameters": {"b": 1.0}, "trained": {"b": "abs(b)"}}, "has a kink or a jump"),
        (
            {"parameters": {"b": 1.0}, "trained": {"b": "h"}},
            'loss.trained.b cannot be used: it uses the unknown name "h"',
        ),
    ],
)
def test_wrong_parameters_end_in_one_sentence(loss: dict[str, object], sentence: str):
    with pytest.raises(ProblemError, match=re.escape(sentence)) as caught:
        of_loss(BIASED, **loss)
    assert str(caught.value).count(". ") == 0


def test_a_parameter_that_cancels_has_no_effect():
    for trained, field in (({}, "loss.parameters.b"), ({"trained": {"b": "b**2"}}, "loss.trained.b")):
        with pytest.raises(ProblemError, match=re.escape(field)) as caught:
            of_loss("softplus(h) + b*k - k*b", parameters={"b": 0.7}, **trained)
        assert caught.value.field == field


def test_a_parameter_may_be_that_of_a_metric():
    problem = of_loss(BIASED, parameters={"b": 0.7}).with_fields(
        {"metrics.far": "(h - b*k)**2", "loss.expression": "softplus(h)"}
    )
    assert dict(problem.loss.parameters or {}) == {"b": 0.7}


def test_parameters_belong_to_a_formula():
    with pytest.raises(ProblemError, match=r"loss\.parameters does not go with loss\.kind"):
        Problem.from_dict({"loss": {"parameters": {"b": 1.0}}})


def test_nothing_is_differentiated_in_where_training_begins():
    """Derivatives were zero, after a whole solve."""
    problem = classifier(trained={"b": "0.03*b**2"})
    with pytest.raises(
        ProblemError, match=r"^loss\.parameters\.b is where training begins, on which no result depends"
    ):
        ap.sensitivity(problem, 1.9, field="loss.parameters.b")
    assert np.isfinite(ap.sensitivity(problem, 1.9, field="loss.parameters.a")["d_trained"]).all()


def test_what_does_not_cover_trained_parameters_says_so():
    problem = classifier(trained={"b": "0.03*b**2"})
    calls = {
        "1RSB": lambda: ap.one_rsb(problem, 2.0, y=[1.0]),
        "the dynamics": lambda: ap.sgd_flow(problem, until=2.0),
        "optimizer gamp": lambda: ap.simulate(problem, 2.0, optimizer="gamp", dimension=50, seeds=1),
        "optimizer sgd": lambda: ap.simulate(problem, 2.0, optimizer="sgd", dimension=50, seeds=1),
    }
    for what, call in calls.items():
        with pytest.raises(ProblemError, match=f"{what} does not cover trained parameters, but loss.trained names b"):
            call()
