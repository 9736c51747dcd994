"""Teacher's fields that are drawn, by `tokens.sampler`: laws that can be declared otherwise, closed forms, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from other_laws import configurations_left, ridge_regression

import attnphase as ap
from attnphase.checks.consistency import check
from attnphase.checks.matching import at_problem
from attnphase.errors import ProblemError
from attnphase.experiments.settings import TrainingSettings
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.functions import sign
from attnphase.problem.problem import Problem
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.predictors import PredictorKind, best_predictor
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.system import System
from attnphase.theories.bayes_optimal.run import bayes_optimal
from tests.numeric.test_densities import BENT, INDEPENDENT, SAME, SHARE, SIGMA, assert_alike, problem_of, solved

TAIL = 0.17
HEAVY: dict[str, Any] = {"sampler": "k + tail*k**3", "parameters": {"tail": TAIL}}
SQUARE = "(h - k)**2/2"


def law_of(problem: Problem) -> SampleLaw:
    return System.of(problem).sample_law


# --- laws that can be declared otherwise ------------------------------------------------------------------------------


def test_without_a_tail_the_law_is_gaussian():
    none = {**HEAVY, "parameters": {"tail": 0.0}}
    plain, drawn = (solved(problem_of(BENT, sigma=SIGMA, **given), 1e-11) for given in ({}, none))
    assert plain.rule == drawn.rule == "lines"
    assert_alike(plain, drawn, rel=1e-9)


def test_a_shift_in_each_cluster_is_that_of_a_mean_along_the_teacher():
    loss, shift = "softplus((1 - 2*c)*(h - k/3 + 0.2))", 0.55
    means = [{"sigma": SIGMA, "mean": [s * shift]} for s in (1, -1)]
    moved = solved(problem_of(loss, clusters=means, law=INDEPENDENT, mean_teacher=[[1.0]]))
    given = {"sampler": "k + (1 - 2*c)*s", "parameters": {"s": shift}}
    drawn = solved(problem_of(loss, clusters=SAME, law=INDEPENDENT, **given))
    assert moved.rule == drawn.rule == "lines"
    assert_alike(moved, drawn)


@pytest.mark.parametrize(
    ("sampler", "density"),
    [("0.6*k", f"exp(-(1/0.36 - 1)*k**2/(2*{SIGMA**2}))/0.6"), ("abs(k)", "1 + sign(k)")],
    ids=["narrower", "one side"],
)
def test_a_sampler_and_a_density_give_one_law(sampler: str, density: str):
    drawn = solved(problem_of(BENT, sigma=SIGMA, sampler=sampler))
    weighed = solved(problem_of(BENT, sigma=SIGMA, density=density))
    assert_alike(drawn, weighed)
    plain = solved(problem_of(BENT, sigma=SIGMA))
    assert abs(plain.values["training_loss"] / drawn.values["training_loss"] - 1) > 0.01


def test_a_density_is_relative_to_the_law_of_the_sampler():
    """Atoms with unequal weights are those of clusters with one atom each."""
    weighed = problem_of(BENT, sigma=SIGMA, sampler="sign(k)", density=f"1 + {2 * SHARE - 1!r}*k")
    clusters = problem_of(BENT, clusters=SAME, law=INDEPENDENT, sampler="1 - 2*c + 0*k")
    one, other = solved(weighed), solved(clusters)
    assert_alike(one, other)
    even = solved(problem_of(BENT, sigma=SIGMA, sampler="sign(k)"))
    assert abs(even.values["metric_product"] / one.values["metric_product"] - 1) > 0.01


# --- closed forms -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "second"),
    [
        (HEAVY, SIGMA**2 + 6 * TAIL * SIGMA**4 + 15 * TAIL**2 * SIGMA**6),
        ({"sampler": "sign(k)"}, 1.0),
        ({"sampler": "k/s", "parameters": {"s": 0.7}}, SIGMA**2 / 0.49),
    ],
    ids=["tail", "Rademacher", "scale"],
)
def test_ridge_regression(given: dict[str, Any], second: float):
    point = solved(problem_of(SQUARE, sigma=SIGMA, **given).with_fields({"metrics.size": "k**2"}))
    expected = ridge_regression(second, SIGMA**2, 2.3, 0.15)
    expected |= {"metric_size": second, "metric_product": expected["theta"] / SIGMA**2 * second}
    for name, value in expected.items():
        allowed = 4 * float(np.ravel(point.errors[name])[0]) + 1e-6 * value
        assert abs(float(np.ravel(point.values[name])[0]) - value) < allowed < 0.02 * value, name


def test_the_best_predictors_of_a_label():
    """Against quadrature in one field."""
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    k = SIGMA * z + TAIL * (SIGMA * z) ** 3
    y = np.tanh(k) + k / 5 + np.cos(k)
    variance, slope = w @ y**2 - (w @ y) ** 2, w @ (y * k)
    problem = problem_of(SQUARE, sigma=SIGMA, **HEAVY)
    wanted: dict[PredictorKind, float] = {"constant": variance, "linear": variance - slope**2 / (w @ k**2)}
    for kind, value in wanted.items():
        found = best_predictor(problem, "tanh(k) + k/5 + cos(k)", kind)
        assert abs(found.error - value) < 4 * found.standard_error < 0.03 * value, kind


# --- the law itself ---------------------------------------------------------------------------------------------------


def two_columns(sampler: Any) -> Problem:
    clusters = [{"sigma": 0.8, "mean": [0.4]}, {"sigma": 1.1, "mean": [-0.7]}]
    plain = problem_of("sum(h**2)/2 - h[0, 0]*k[1, 0]", 2, clusters=clusters)
    law = {"tokens.law": {"kind": "same", "probability": 0.8}, "tokens.mean_teacher": [[0.8], [0.3]]}
    return plain.with_fields({"teacher.rank": 2, "tokens.sampler": sampler, **law})


def test_drawn_fields_are_those_of_the_function():
    """Of two tokens and two columns, whose covariance is no multiple of one."""

    def sampler(k, c, a=0.3):
        return k + a * (1 + c[0]) * (k[::-1, ::-1] + sign(k[0, 0])) ** 3

    law = law_of(two_columns(sampler))
    law = replace(law, rho=law.rho + 0.2, clean_rho=law.clean_rho + 0.2)
    zeta = np.random.default_rng(4).normal(size=(50, 2, 2))
    for place, sites in enumerate(law.configurations):
        roots, middle = matrix_root(law.rho[sites]), law.means[place, :, :2]
        k = middle + np.einsum("lij,nlj->nli", roots, zeta)
        made = k + 0.3 * (1 + sites[0] % 2) * (k[:, ::-1, ::-1] + np.sign(k[:, :1, :1])) ** 3
        scaled, shares = law.drawn(place, zeta)
        np.testing.assert_allclose(middle + np.einsum("lij,nlj->nli", roots, scaled), made, rtol=1e-9, atol=1e-9)
        assert (shares == 1).all()
    assert not np.array_equal(law.configurations[0] % 2, law.configurations[1] % 2)


@pytest.mark.parametrize(
    ("sampler", "even", "exchanges"),
    [
        ("k + k**3/7", True, True),
        ("k + k**2/7", False, True),
        ("k + relu(k - 3.5)", False, True),
        ("[[k[0, 0] + k[1, 0]**3], [k[1, 0]]]", True, False),
        ("k - 0.2*(k - mean(k))**3", True, True),
        ("k + 0.1*abs(k[1, 0])*k", True, False),
    ],
)
def test_symmetries_are_those_of_the_sampler(sampler: str, even: bool, exchanges: bool):
    law = law_of(problem_of("sum((h - k)**2)/2", 2, sigma=SIGMA, sampler=sampler))
    assert law.is_even is even
    assert law.unchanged([1, 0], np.eye(1)) is exchanges


def test_configurations_are_alike_only_if_their_samplers_are(uncompiled: None):
    formulas = "k + [[c[0]], [c[1]]]*k**3", "k + c[0]*k**3"
    assert [*configurations_left("sampler", formulas)] == [1, 2]


# --- the parameter ----------------------------------------------------------------------------------------------------


def test_a_tail_is_swept(tmp_path: Path):
    """To none, and as each value by itself."""
    problem, places = problem_of(BENT, sigma=SIGMA, **HEAVY), [0.0, 0.1, TAIL]
    swept = ap.sweep(problem, 2.3, branch="semantic", fields={"tokens.parameters.tail": places}, workers=2)
    each = [
        problem.with_fields({"tokens.sampler": None}),
        problem.with_fields({"tokens.parameters.tail": 0.1}),
        problem,
    ]
    assert each[0].tokens.parameters is None
    for i, one in enumerate(each):
        found, wanted = swept.isel({"parameters.tail": i}).squeeze(), ap.solve(one, 2.3).squeeze()
        for name in ("q", "V", "theta", "training_loss", "test_error", "metric_product"):
            np.testing.assert_allclose(found[name], wanted[name], rtol=0 if i else 1e-6, err_msg=name)
    ap.save_dataset(swept, tmp_path / "swept.nc")
    again = ap.load_dataset(tmp_path / "swept.nc")
    assert at_problem(again, each[1]).theta.item() == swept.theta.squeeze()[1]


def test_the_slope_in_a_tail_is_that_of_two_solves():
    problem, step = problem_of(BENT, sigma=SIGMA, **HEAVY), 0.02
    slopes = ap.sensitivity(problem, 2.3, field="tokens.parameters.tail").squeeze()
    beside = [
        ap.solve(problem.with_fields({"tokens.parameters.tail": TAIL + side}), 2.3).squeeze() for side in (step, -step)
    ]
    for name in ("q", "theta", "training_loss", "test_error", "metric_product"):
        wanted = (beside[0][name].item() - beside[1][name].item()) / (2 * step)
        error = np.hypot(slopes[f"d_{name}_stderr"], 2e-3 * abs(wanted))  # of differences, of the step's square
        assert abs(slopes[f"d_{name}"] - wanted) < 4 * error, name
    assert abs(slopes["d_test_error"]) > 100 * slopes["d_test_error_stderr"]


# --- declared and refused ---------------------------------------------------------------------------------------------


def heavy(k, c, *, tail):
    return k + tail * (1 - c[0]) * k**3


def test_a_function_is_its_formula():
    given = {"clusters": SAME, "law": {"kind": "same", "probability": 0.7}, "parameters": {"tail": 0.3}}
    called, written = (problem_of("sum((h - k)**2)/2", 2, sampler=one, **given)
                       for one in (heavy, "k + (1 - c[0])*tail*k**3"))  # fmt: skip
    assert called.hash == written.hash == Problem.from_toml(called.to_toml()).hash
    assert called.hash != called.with_fields({"tokens.sampler": "k - (1 - c[0])*tail*k**3"}).hash
    assert Problem.from_data(called.to_toml(), called.hash) == called


def test_the_identity_is_no_sampler():
    plain = problem_of("sum((h - k)**2)/2", 2)
    for one in ("k", "[[k[0, 0]], [k1_0]]", "2*k - k", lambda k: 1.0 * k):
        assert plain.with_fields({"tokens.sampler": one}) == plain
    assert plain.with_fields({"tokens.sampler": "[[k[1, 0]], [k[0, 0]]]"}) != plain


def test_a_sampler_and_a_density_share_their_numbers():
    both: dict[str, Any] = {
        "sampler": lambda k, a=0.2, b=0.3: a * k + b * k**3,
        "density": lambda k, b=0.3, e=0.1: 1 + e * b * k[0, 0],
    }
    problem = problem_of(SQUARE, **both)
    assert dict(problem.tokens.parameters or {}) == {"a": 0.2, "b": 0.3, "e": 0.1}
    left = problem.with_fields({"tokens.density": None, "tokens.parameters.e": None})
    assert dict(left.tokens.parameters or {}) == {"a": 0.2, "b": 0.3}
    other: dict[str, Any] = both | {"density": lambda k, b=0.4: 1 + b * k[0, 0]}
    with pytest.raises(ProblemError, match=r"^tokens\.parameters\.b has the defaults 0\.3 and 0\.4"):
        problem_of(SQUARE, **other)
    given = problem_of(SQUARE, **other, parameters={"b": 0.1})
    assert dict(given.tokens.parameters or {}) == {"b": 0.1, "a": 0.2}


@pytest.mark.parametrize(
    ("sampler", "says"),
    [
        ("k + h", "tokens.sampler has h0_0 in it: write it with k and c alone"),
        ("k*noise[1, 0]", "tokens.sampler has noise1_0 in it"),
        ("k + z", 'tokens.sampler must be a formula of fields, but it uses the unknown name "z"'),
        ("sum(k)", "its value is one number instead of an array of shape (2, 1), as k + k**3 is"),
        ("k.T", "its value is an array of shape (1, 2) instead"),
        (lambda k: k[:, 0], "tokens.sampler cannot be used: it returns an array of shape (2,) instead"),
        (lambda k: 1j * k, "must return finite real numbers"),
        (lambda k: abs(k) if k[0, 0] > 0 else k, "the function branches on k0_0 > 0"),
        (lambda k: np.array([[1.0 * (one == 0.3)] for one in k[:, 0]]) + k, None),
        ("1/k", "tokens.sampler must be a finite number for all fields"),
        ("sqrt(k)", "tokens.sampler must be a finite number for all fields"),
        ("k + c[0]*k", "takes the number of a token's cluster"),
        ("k +", "tokens.sampler must be a formula"),
        (3, "tokens.sampler must be a formula in k and c, but it is 3"),
    ],
)
def test_what_is_no_sampler_is_refused(sampler: Any, says: str | None):
    if says is None:  # a comparison with a number that is never met
        assert problem_of("sum((h - k)**2)/2", 2, sampler=sampler) == problem_of("sum((h - k)**2)/2", 2)
        return
    with pytest.raises(ProblemError) as caught:
        problem_of("sum((h - k)**2)/2", 2, sampler=sampler)
    assert says in str(caught.value)
    assert caught.value.field == "tokens.sampler"


def test_a_place_without_a_value_is_named_by_what_the_formula_takes():
    with pytest.raises(ProblemError, match=r"not finite at b = 0\.3, a = 1\.7, k0_0 = \S+, k1_0 = 1\.7: keep"):
        problem_of("sum((h - k)**2)/2", 2, sampler="[[k0_0], [b/(k1_0 - a)]]", parameters={"b": 0.3, "a": 1.7})


def test_numbers_that_nothing_takes_are_refused():
    with pytest.raises(ProblemError, match=r"^tokens\.parameters\.b is no number of tokens\.sampler, which has no b"):
        problem_of(SQUARE, sampler="a*k", parameters={"a": 0.3, "b": 1.0})
    with pytest.raises(ProblemError, match=r"^tokens\.parameters are numbers of tokens\.sampler and tokens\.density"):
        problem_of(SQUARE, parameters={"b": 1.0})


@pytest.mark.parametrize(
    ("sigma", "says"),
    [
        (SIGMA, r"must give fields with a finite mean square, but that of 65536 draws has an error of 99 percent"),
        (9.0, r"must give finite numbers, but some are not"),
    ],
)
def test_fields_without_a_mean_square_are_refused(sigma: float, says: str):
    with pytest.raises(ProblemError, match=rf"^tokens\.sampler {says}: let it grow slower\.$"):
        solve_point(problem_of(SQUARE, sigma=sigma, sampler="exp(k**2)"), 1.0, "semantic")


def test_a_density_over_drawn_fields_must_have_the_mean_one():
    with pytest.raises(ProblemError, match=r"must have the mean 1 over the k of tokens\.sampler, but has 1\.2"):
        solve_point(problem_of(SQUARE, sampler="abs(sign(k))", density="1 + k/5"), 1.0, "semantic")


def test_what_needs_a_gaussian_law_says_so():
    problem = problem_of(BENT, **HEAVY)
    TrainingSettings("lbfgs").check(problem)
    for optimizer in ("gamp", "bayes-gamp"):
        with pytest.raises(ProblemError, match=rf"^tokens\.sampler does not go with optimizer {optimizer}, .*: use"):
            TrainingSettings(optimizer).check(problem)
    with pytest.raises(ProblemError, match=r"^tokens\.sampler gives a law .* the Bayes-optimal error needs"):
        bayes_optimal(problem, 1.2, channel="k")
    with pytest.raises(ProblemError, match=r"no tokens\.sampler"):
        best_predictor(problem_of("sum((h - k)**2)/2", 2, **HEAVY), "k[0, 0]", "positional")
    noisy = problem.with_fields({"loss.kind": "square", "teacher.noise": 0.2})
    with pytest.raises(ProblemError, match=r"^tokens\.sampler gives a law .* set teacher\.noise to 0"):
        solve_point(noisy, 1.2, "semantic")


@pytest.mark.parametrize(
    ("loss", "sampler"), [(BENT, "sign(k)"), (BENT, "k + relu(k)"), ("softplus(-sign(k)*h)", "k + k**3/9 + 0.3")]
)
def test_rules_by_planes_give_way_to_points(loss: str, sampler: str):
    problem = problem_of(loss, sampler=sampler)
    with pytest.raises(ProblemError, match=r'integration\.rule = "lines" needs .* smooth tokens\.sampler'):
        problem.with_fields({"integration.rule": "lines"})
    assert solved(problem).rule == "sobol"


def test_checks_train_instances_of_a_sampler():
    pytest.importorskip("torch")
    problem = problem_of(BENT, sigma=SIGMA, **HEAVY).with_fields({"integration.standard_error": 1e-3})
    report = check(problem, 2.3, settings=SolverSettings(threads=1))
    assert report.passed, report
    found = next(one for one in report.checks if one.name == "experiment at finite d")
    assert found.passed, found.detail
