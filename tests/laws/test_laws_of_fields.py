"""Laws of the teacher's fields, by `tokens.density` and `tokens.sampler`: against the same laws declared otherwise.

Not public: no result says which configurations of clusters stand for each other, or where a user's law splits a rule.
"""

from typing import Any

import numpy as np
import pytest
from models import model
from other_laws import columns, configurations_left, evaluated, rule_of, tilted

import attnphase as ap

SIGMA, SHIFT, SHARE = 0.9, 0.6, 0.7
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
PLAIN = {"tokens.sigma": SIGMA, "regularizer.strength": 0.15, "metrics.product": "h[0, 0]*k[0, 0]"}
TILT = {"tokens.density": "exp(tilt*k - tilt**2*rho/2)", "tokens.parameters": {"tilt": SHIFT, "rho": SIGMA**2}}
TAIL = {"tokens.sampler": "k + tail*k**3", "tokens.parameters": {"tail": 0.17}}
SUM = ap.Problem.from_dict(
    {
        "tokens": {"length": 2},
        "positions": {"kind": "none"},
        "loss": {"kind": "expression", "expression": "sum((h - k)**2)/2"},
    }
)
pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.UndecidedWarning")


def of(fields: dict[str, Any], name: str = "logistic", means: tuple[float, ...] = ()) -> ap.Problem:
    """A problem of one token, of two clusters of these means or of none."""
    clusters = {
        "tokens.sigma": None,
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": SIGMA, "mean": [m]} for m in means],
        "tokens.law": {"kind": "independent", "weights": [SHARE, 1 - SHARE]},
    }
    return model(name, PLAIN | (clusters if means else {}) | fields)


def law(text: str, kind: str = "density", **parameters: float) -> dict[str, Any]:
    return {f"tokens.{kind}": text} | ({"tokens.parameters": parameters} if parameters else {})


LABELS = {"loss.parameters.logistic": 0.7, "loss.parameters.square": 0.5, "loss.parameters.scale": 0.8}
ALONG = {"tokens.mean_teacher": [[1.0]]} | LABELS
TILTED_CLUSTERS = law("exp((1 - 2*c)*t*k - t**2*rho/2)", t=SHIFT, rho=SIGMA**2)
MOVED = SHIFT * SIGMA**2
NARROW = f"exp(-(1/0.36 - 1)*k**2/(2*{SIGMA**2}))/0.6"
PAIRS = {
    "clusters that tilt are those that shift": (
        of(LABELS | TILTED_CLUSTERS, "terms", (0.0, 0.0)),
        of(ALONG, "terms", (MOVED, -MOVED)),
    ),
    "a shift of drawn fields adds to a mean along the teacher": (
        of(ALONG | law("k + (1 - 2*c)*s", "sampler", s=0.35), "terms", (0.2, -0.2)),
        of(ALONG, "terms", (0.55, -0.55)),
    ),
    "a mixture of densities is one density": (
        of(law("1 + (1 - 2*c)*tanh(1.3*k)*0.8"), means=(0.0, 0.0)),
        of(law(f"1 + {(2 * SHARE - 1) * 0.8!r}*tanh(1.3*k)")),
    ),
    "narrower drawn fields have a density": (of(law("0.6*k", "sampler")), of(law(NARROW))),
    "absolute values have a density": (of(law("abs(k)", "sampler"), "square"), of(law("1 + sign(k)"), "square")),
    "unequal atoms are clusters of one atom": (
        of(law("sign(k)", "sampler") | law(f"1 + {2 * SHARE - 1!r}*k")),
        of(law("1 - 2*c + 0*k", "sampler"), means=(0.0, 0.0)),
    ),
    "no tail is the Gaussian law": (of(TAIL | {"tokens.parameters": {"tail": 0.0}}), of({})),
    "no tilt is the Gaussian law": (of(TILT | {"tokens.parameters": {"tilt": 0.0, "rho": SIGMA**2}}), of({})),
}


@pytest.mark.parametrize("name", PAIRS)
def test_one_law_declared_in_two_ways_has_one_point(name: str) -> None:
    one, other = (ap.solve(problem, 2.3, settings=SETTINGS).squeeze() for problem in PAIRS[name])
    assert one.status == other.status == 0
    for key in ("q", "V", "theta", "training_loss", "test_error", "weight_norm", "metric_product"):
        (a, b), errors = ([float(np.ravel(x[key + end])[0]) for x in (one, other)] for end in ("", "_stderr"))
        assert abs(a - b) <= 4 * np.hypot(errors[0], errors[1]) + 1e-7 * abs(a), key
        assert max(errors) < 0.02 * abs(a), key


def test_tails_that_gaussian_points_do_not_reach_are_in_the_error_of_a_metric() -> None:
    """A law far from the Gaussian of mean zero: ``h = theta k / rho`` on average."""
    far = of(law("exp(b*k - b**2*rho/2)*(1 + tanh(k - b*rho)/2)", b=2.0, rho=SIGMA**2), "square")
    point = ap.solve(far, 2.3, settings=SETTINGS).squeeze()
    k, s = np.linspace(-4, 8, 4001), 2 * SIGMA**2
    density = np.exp(-((k - s) ** 2) / (2 * SIGMA**2)) * (1 + np.tanh(k - s) / 2)
    expected = point.theta.item() / SIGMA**2 * (density @ k**2) / density.sum()
    assert abs(point.metric_product.item() - expected) < 4 * point.metric_product_stderr.item() < 0.1 * expected


@pytest.mark.parametrize(
    ("loss", "fields", "name", "other", "step"),
    [("logistic", TILT, "tilt", -0.45, 0.05), ("square", TAIL, "tail", 0.1, 0.02)],
    ids=["density", "sampler"],
)
def test_a_number_of_a_law_is_swept_compared_and_differentiated(
    loss: str, fields: dict[str, Any], name: str, other: float, step: float
) -> None:
    """To none, where the law is Gaussian, and as each value by itself; its slope is that of two solves."""
    problem, field = of(fields, loss), f"tokens.parameters.{name}"
    swept = ap.sweep(problem, 2.3, branch="semantic", fields={field: [0.0, other]}, workers=1, settings=SETTINGS)
    assert swept[f"parameters.{name}"].attrs["field"] == field
    for i, one in enumerate((of({}, loss), problem.with_fields({field: other}))):
        wanted = ap.solve(one, 2.3, settings=SETTINGS).squeeze()
        for key in ("q", "theta", "training_loss", "test_error"):
            found = swept[key].isel({f"parameters.{name}": i}).squeeze()
            np.testing.assert_allclose(found, wanted[key], rtol=1e-6, err_msg=key)
    runs = ap.simulate(problem.with_fields({field: other}), 2.3, dimension=[20, 40], seeds=2, test_samples=0)
    found = {one.name: one.theory for one in ap.compare(swept, runs).quantities}
    assert found["training_loss"] == pytest.approx(swept.training_loss.values.ravel()[1], rel=1e-12)
    slopes = ap.sensitivity(problem, 2.3, field=field, settings=SETTINGS).squeeze()
    value = fields["tokens.parameters"][name]
    ends = [ap.solve(problem.with_fields({field: value + side}), 2.3, settings=SETTINGS) for side in (step, -step)]
    for key in ("q", "theta", "training_loss", "test_error", "metric_product"):
        high, low = (one[key].squeeze().item() for one in ends)
        slope = (high - low) / (2 * step)
        error = np.hypot(slopes[f"d_{key}_stderr"], 3e-3 * abs(slope))  # of differences, of the step's square
        assert abs(slopes[f"d_{key}"] - slope) < 4 * error, key


def test_metrics_and_labels_take_the_numbers_of_a_density() -> None:
    """As if they were typed in, and a derivative in one is that of the metric, too: ``E (h - a k/2)^2 + a``."""
    named = of(TILT | {"metrics.own": "(h - tilt*k/2)**2 + tilt"})
    typed = of(TILT | {"metrics.own": "(h - 0.6*k/2)**2 + 0.6"})
    found = ap.sensitivity(named, 2.3, field="tokens.parameters.tilt", settings=SETTINGS).squeeze()
    assert found.metric_own.item() == pytest.approx(ap.solve(typed, 2.3, settings=SETTINGS).metric_own.item(), rel=1e-9)
    one, other = (ap.best_predictor(of(TILT), label, "constant").error for label in ("sin(tilt*k)", "sin(0.6*k)"))
    assert one == pytest.approx(other, rel=1e-12)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (law("1.01 + tanh(k)/2"), "must have the mean 1 over Gaussian k, but has 1.01"),
        (law("1 + k**2/100"), "must have the mean 1"),
        (law("1 + 1.5*tanh(k)"), "must be positive for all k"),
        (law("exp(k**2)", "sampler"), "must give fields with a finite mean square"),
        (law("abs(sign(k))", "sampler") | law("1 + k/5"), "must have the mean 1 over the k of tokens.sampler"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_no_law_is_solved_or_derived_that_is_none(fields: dict[str, Any], says: str) -> None:
    for refused in (lambda: ap.solve(of(fields), 1.0, settings=SETTINGS), lambda: ap.derive(of(fields))):
        with pytest.raises(ap.errors.ProblemError, match=r"^tokens\.(density|sampler)") as caught:
            refused()
        assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("square", law("1 + sign(k)/2")),
        ("square", law("sign(k)", "sampler")),
        ("square", law("k + relu(k)", "sampler")),
        ("logistic", law("k + k**3/9 + 0.3", "sampler")),
    ],
)
def test_laws_that_jump_or_bend_labels_are_integrated_by_points(name: str, fields: dict[str, Any]) -> None:
    assert ap.solve(of(fields, name), 1.7, settings=SETTINGS).attrs["rule"] == "sobol"


@pytest.mark.parametrize("fields", [law("1 + 0.8*tanh(1.3*k)"), TAIL], ids=["density", "sampler"])
def test_checks_train_instances_of_a_law(fields: dict[str, Any]) -> None:
    problem = of(fields | {"integration.standard_error": 1e-3}, "square")
    report = ap.check(problem, 2.3, settings=ap.SolverSettings(threads=1))
    assert report.passed, report
    assert "experiment at finite d" in {one.name for one in report.checks if one.passed}


@pytest.mark.parametrize(
    ("key", "formulas"),
    [
        ("density", ("1 + c[0]*tanh(k[0, 0])/2 + c[1]*tanh(k[1, 0])/2", "1 + c[0]*tanh(k[0, 0])/2")),
        ("sampler", ("k + [[c[0]], [c[1]]]*k**3", "k + c[0]*k**3")),
    ],
)
def test_configurations_are_alike_only_if_their_laws_are(key: str, formulas: Any) -> None:
    assert [*configurations_left(key, formulas)] == [1, 2]


def test_a_law_that_bends_the_normals_must_tell_where_labels_jump() -> None:
    """Lines would be split where they jump under the Gaussian law; points need no place."""
    system, _ = tilted(model("logistic", {"tokens.sigma": 1.1}), (0.45,), 0.12)
    at = columns([2.9], [1.7], [0.2], [1.1])
    with pytest.raises(ap.errors.ProblemError, match=r"give it a method split, or set integration\.rule"):
        evaluated(system, rule_of("lines", system, 24, 4096), 3.1, at)
    assert np.isfinite(evaluated(system, rule_of("sobol", system, 24, 256), 3.1, at)["q_hat"]).all()


def heavy(k: Any, c: Any, *, tail: float) -> Any:
    return k + tail * (1 - c[0]) * k**3


def test_a_function_is_its_formula() -> None:
    clusters = {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": SIGMA}] * 2, "tokens.parameters": {"tail": 0.3}}
    texts = heavy, "k + (1 - c[0])*tail*k**3"
    called, written = (SUM.with_fields(clusters | {"tokens.sampler": one}) for one in texts)
    assert called.hash == written.hash == ap.Problem.from_toml(called.to_toml()).hash
    assert called.hash != called.with_fields({"tokens.sampler": "k - (1 - c[0])*tail*k**3"}).hash


def test_the_identity_is_no_sampler() -> None:
    for one in ("k", "[[k[0, 0]], [k1_0]]", "2*k - k", lambda k: 1.0 * k):
        assert SUM.with_fields({"tokens.sampler": one}) == SUM
    assert SUM.with_fields({"tokens.sampler": "[[k[1, 0]], [k[0, 0]]]"}) != SUM
    with pytest.raises(ap.errors.ProblemError, match=r"its value is an array of shape \(1, 2\) instead"):
        SUM.with_fields({"tokens.sampler": "k.T"})


def test_a_sampler_and_a_density_share_their_numbers() -> None:
    both: dict[str, Any] = {
        "tokens.sampler": lambda k, a=0.2, b=0.3: a * k + b * k**3,
        "tokens.density": lambda k, b=0.3, e=0.1: 1 + e * b * k[0, 0],
    }
    problem = model("square", both)
    assert dict(problem.tokens.parameters or {}) == {"a": 0.2, "b": 0.3, "e": 0.1}
    left = problem.with_fields({"tokens.density": None, "tokens.parameters.e": None})
    assert dict(left.tokens.parameters or {}) == {"a": 0.2, "b": 0.3}
    with pytest.raises(ap.errors.ProblemError, match=r"^tokens\.parameters\.b has the defaults 0\.3 and 0\.4"):
        model("square", both | {"tokens.density": lambda k, b=0.4: 1 + b * k[0, 0]})
