"""Numbers of a loss that are trained with the weights: closed forms, objectives of kept numbers, SciPy, training.

Not public: the samples of `simulate`, which it does not return, are minimised over by SciPy.
"""

from typing import Any

import numpy as np
import pytest
from models import model
from one_token import Cluster, OneToken, hinge, quantile
from scipy.optimize import minimize, minimize_scalar

import attnphase as ap

SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
STABLE = ap.SolverSettings(threads=1)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
ONE = {"tokens.clusters": [{"sigma": 0.8}], "tokens.law": None, "regularizer.strength": 0.13}
TWO = {
    "tokens.clusters": [{"sigma": 0.9, "mean": [1.1]}, {"sigma": 1.2, "mean": [-0.6]}],
    "tokens.law.weights": [0.3, 0.7],
    "regularizer.strength": 0.4,
}


def numbers(**values: float) -> dict[str, float]:
    return {f"loss.parameters.{name}": value for name, value in values.items()}


def regression(penalty: str | None, rule: str = "auto", **values: float) -> ap.Problem:
    """The square loss of tokens of one kind, with b trained or kept."""
    fields = ONE | numbers(logistic=0, square=1, **values) | {"integration.rule": rule}
    return model("trained" if penalty else "terms", fields | ({"loss.trained.b": penalty} if penalty else {}))


def classifier(penalty: str | None = None, strength: float = 0.4, **values: float) -> ap.Problem:
    """Two clusters of unequal weights, whose number is the label, with b trained or kept."""
    fields = TWO | numbers(**values) | {"regularizer.strength": strength}
    return model("trained" if penalty else "terms", fields | ({"loss.trained.b": penalty} if penalty else {}))


def objective(b: float, strength: float = 0.4) -> float:
    """Of the classifier at a kept b."""
    return ap.solve(classifier(None, strength, b=b), 1.9, settings=SETTINGS).training_loss.item()


@pytest.mark.parametrize("rule", ["auto", "sobol", "gauss-hermite"])
def test_a_trained_shift_of_the_square_loss_is_known(rule: str) -> None:
    """With labels k + 1.3 and a penalty 0.4 b^2 the residual's mean is (1.3 - b)/(1 + V)."""
    point = ap.solve(regression("0.4*b**2", rule, b=0.2, shift=1.3), 1.7, settings=SETTINGS)
    wanted, error = 1.3 * 1.7 / (1.7 + 0.8 * (1 + point.V.item())), point.trained_stderr.item()
    assert abs(point.trained.item() - wanted) <= 4 * error + 1e-9
    assert error < 3e-4
    kept = ap.solve(regression(None, rule, b=wanted, shift=1.3), 1.7, settings=SETTINGS)
    loss = kept.training_loss.item() + 0.4 * wanted**2
    assert abs(point.training_loss.item() - loss) <= 4 * point.training_loss_stderr.item() + 1e-8


def test_the_derivative_of_a_trained_shift_is_known() -> None:
    """Of the b known above, in alpha: V changes with it."""
    found = ap.sensitivity(regression("0.4*b**2", b=0.2, shift=1.3), 1.7, field="alpha", settings=SETTINGS).squeeze()
    stiff = 0.8 * (1 + found.V.item())
    wanted = 1.3 * (stiff - 0.8 * 1.7 * found.d_V.item()) / (1.7 + stiff) ** 2
    assert abs(found.d_trained.item() - wanted) <= 4 * found.d_trained_stderr.item() + 1e-7 < 1e-3


def test_a_trained_bias_minimises_the_objective(tmp_path: Any) -> None:
    """Those of kept biases lie on a parabola about it; a saved point is a start."""
    point = ap.solve(classifier("0.03*b**2"), 1.9, settings=SETTINGS)
    b = point.trained.item()
    low, middle, high = (objective(one) + 0.03 * one**2 for one in (b - 0.02, b, b + 0.02))
    curvature = (low - 2 * middle + high) / 0.02**2
    assert curvature > 0.1
    assert abs((high - low) / 0.04) < 2e-4 * curvature
    assert middle == pytest.approx(point.training_loss.item(), abs=1e-7)
    assert abs(b) > 0.2
    assert (point.trained.dims, point.parameter.values.tolist()) == (("parameter",), ["b"])
    ap.save_dataset(point, tmp_path / "point.nc")
    start = ap.load_dataset(tmp_path / "point.nc")
    again = ap.solve(classifier("0.03*b**2"), 1.9, start=start, settings=SETTINGS)
    assert again.trained.item() == pytest.approx(b, abs=1e-6)
    assert int(again.iterations) < int(point.iterations)


@pytest.mark.parametrize("start", [-40.0, 300.0])
def test_a_bias_far_from_its_minimum_comes_back(start: float) -> None:
    """There the logistic loss has no curvature in it."""
    far, near = (ap.solve(classifier("1e-4*b**2", b=b), 1.9, settings=SETTINGS) for b in (start, 0.0))
    assert far.trained.item() == pytest.approx(near.trained.item(), abs=1e-5)


@pytest.mark.parametrize("curvature", [-0.02, -0.05])
def test_a_maximum_where_the_weights_follow_is_no_solution(curvature: float) -> None:
    """At fixed weights both objectives are convex in b; minimised over the weights the second has a maximum."""
    point = ap.solve(classifier(f"{curvature}*b**2", 0.1, b=0.0), 1.9, settings=STABLE)
    b = point.trained.item()
    low, middle, high = (objective(one, 0.1) + curvature * one**2 for one in (b - 0.1, b, b + 0.1))
    assert (point.status.item() == 0) == (middle < min(low, high)) == (curvature == -0.02)
    assert (point.status.item() == 2) == (middle > max(low, high))


def test_errors_of_a_trained_parameter_are_those_of_its_seeds() -> None:
    """Without a penalty a shift is the labels' own.  Its distances to that under eight seeds are as large as stated."""
    scores = []
    for seed in range(8):
        points = {"integration.nodes": 256, "integration.seed": seed}
        problem = regression("0", "sobol", b=0.2, shift=1.3).with_fields(points)
        point = ap.solve(problem, 1.7, settings=SETTINGS)
        scores.append((point.trained.item() - 1.3) / point.trained_stderr.item())
    assert 0.4 < np.sqrt(np.mean(np.square(scores))) < 2.2


ON_KINKS: dict[str, tuple[str, dict[str, float], Any]] = {
    "quantile": (
        "max(tau*(k + noise - h - b), (tau - 1)*(k + noise - h - b))",
        {"tau": 0.85},
        lambda b: {"proximal": quantile(0.85), "shift": -b},
    ),
    "hinge": (
        "relu(1 - sign(k + noise - edge)*(h + b))",
        {"edge": 0.4},
        lambda b: {"proximal": hinge(b), "shift": -0.4, "edges": (0.4,)},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", ON_KINKS)
def test_a_parameter_trained_on_kinks_minimises_the_own_objective(name: str) -> None:
    text, values, own_of = ON_KINKS[name]
    loss = {"loss.expression": text, "loss.parameters": values | {"b": 0.1}, "loss.trained": {"b": "0.02*b**2"}}
    problem = model("kinks", loss | {"teacher.noise": 0.5})
    point = ap.solve(problem, 2.5, settings=SETTINGS).squeeze()
    assert point.status.item() == 0
    near = np.array([[point[key].item() for key in ("q", "V", "m", "theta")]])

    def own(b: float) -> dict[str, Any]:
        return OneToken([Cluster(sigma=0.9)], alpha=2.5, ridge=0.1, noise=0.5, **own_of(b)).solved(near)

    b = point.trained.item()
    best: Any = minimize_scalar(lambda b: own(b)["training_loss"] + 0.02 * b**2, (0.8 * b, 1.2 * b), tol=1e-5)
    expected = own(best.x) | {"trained": np.array(best.x)}
    for key in ("q", "V", "theta", "trained"):
        value, error = point[key].item(), point[f"{key}_stderr"].item()
        assert abs(value - expected[key].item()) < 4 * error + 1e-4 < 0.02 * max(abs(value), 0.3), key
    assert ap.check(problem, 2.5, experiment=False).passed


def test_training_minimises_the_risk_in_weights_and_bias_together() -> None:
    """Against a minimiser that knows nothing of the package, on the same samples."""
    torch = pytest.importorskip("torch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.risk import Risk
    from attnphase.kernels.torch.loss import LocalLoss

    problem, d, n = classifier("0.03*b**2"), 30, 57
    instance = draw_instance(problem, d, n, 3, (0, 1), LocalLoss(problem))
    ds = ap.simulate(problem, n / d, dimension=d, seeds=2, seed=3, test_samples=0)
    tokens = instance.samples.tokens.numpy()
    for run in range(2):
        x, labels = tokens[run].reshape(n, d), 2 * instance.samples.targets[run, :, 0, -1].numpy() - 1
        weights = torch.zeros((2, d, 1), dtype=torch.float64)
        weights[run, :, 0] = torch.linspace(-1, 1, d, dtype=torch.float64)
        h = Risk.of(instance).fields(weights).reshape(2, n)[run].numpy()
        scaled = (h / (x @ np.linspace(-1, 1, d))).mean() * x

        def risk(v: Any, x: Any = scaled, labels: Any = labels) -> float:
            losses = np.logaddexp(0, labels * (x @ v[:-1] + v[-1]))
            return float(losses.sum() + 0.2 * (v[:-1] ** 2).sum() + d * 0.03 * v[-1] ** 2)

        found = minimize(risk, np.zeros(d + 1), tol=1e-12)
        assert ds.trained.values.ravel()[run] == pytest.approx(found.x[-1], abs=2e-5)
        assert ds.training_loss.values.ravel()[run] == pytest.approx(found.fun / d, rel=1e-9)
