"""Losses that know the clusters of tokens: against closed forms, against losses that do not, and under every rule."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from models import of_terms

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Rule, gauss_hermite, lines, sobol
from attnphase.problem.problem import Problem
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.symmetries import loss_symmetries
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.map import OneRsbMap
from attnphase.theories.one_rsb.nodes import OneRsbNodes
from attnphase.theories.one_rsb.solving import apart_by
from tests.numeric.test_sample_law import evaluated

SETTINGS = SolverSettings(threads=1)


def one_token(loss: str, clusters: Sequence[Mapping[str, object]], weights: list[float], rank: int = 1) -> Problem:
    tokens = {"kind": "mixture", "length": 1, "clusters": clusters, "law": {"kind": "independent", "weights": weights}}
    whole = {"tokens": tokens, "loss": {"kind": "expression", "expression": loss}, "regularizer": {"strength": 0.17}}
    return Problem.from_dict(whole | {"student": {"rank": rank}})


OPPOSITE = [{"sigma": 0.83, "mean": [1.3]}, {"sigma": 0.83, "mean": [-1.3]}]


# --- closed forms -----------------------------------------------------------------------------------------------------


def test_ridge_regression_on_the_number_of_a_cluster():
    """Of two clusters of different variances and means, not opposite: equations of moments, iterated here."""
    sigmas, places, weights, targets = (0.9, 0.6), (-0.7, 1.6), (0.35, 0.65), (-0.4, 1.1)
    clusters = [{"sigma": s, "mean": [m]} for s, m in zip(sigmas, places, strict=True)]
    numbers = {"square": 1.0, "scale": 0.0, "shift": -0.4, "apart": 1.5}
    problem = of_terms(clusters, weights, 0.17, numbers)
    alpha, point = 2.3, solve_point(problem, 2.3, "uninformed", settings=SETTINGS)
    gamma, mu, p, y = (np.array(x) for x in (np.square(sigmas), places, weights, targets))
    q, V, m = gamma.copy(), gamma.copy(), np.zeros(2)
    for _ in range(2000):
        q_hat = alpha * p * ((y - m) ** 2 + q) / (1 + V) ** 2
        V_hat, m_hat = alpha * p / (1 + V), alpha * p * (y - m) / (1 + V)
        R, b = 1 / (0.17 + gamma @ V_hat), mu @ m_hat
        images = gamma * R**2 * (gamma @ q_hat + b**2), gamma * R, mu * R * b
        q, V, m = (0.9 * old + 0.1 * new for old, new in zip((q, V, m), images, strict=True))
    square = (y - m) ** 2 + q
    expected = {"q": q, "V": V, "m": m, "test_error": p @ square}
    expected["training_loss"] = alpha / 2 * p @ (square / (1 + V) ** 2) + 0.17 * q[0] / gamma[0] / 2
    for name, value in expected.items():
        assert np.ravel(point.values[name]) == pytest.approx(np.ravel(value), rel=2e-6), name


def logistic(clusters: Sequence[Mapping[str, object]], weights: Sequence[float]) -> Problem:
    return of_terms(clusters, weights, 0.17, {"logistic": 1.0})


def hinge(clusters: Sequence[Mapping[str, object]], weights: Sequence[float]) -> Problem:
    return one_token("max(0, 1 + (2*c - 1)*h)", clusters, [*weights])


@pytest.mark.parametrize("problem_of", [logistic, hinge])
def test_classes_are_one_cluster_turned_over(problem_of: Callable[..., Problem]):
    """Of tokens about +mu and -mu the margins have one law, so that a label of all tokens about mu is the same."""
    two, one = problem_of(OPPOSITE, [0.3, 0.7]), problem_of(OPPOSITE[:1], [1.0])
    found, expected = (solve_point(x, 1.9, "uninformed", settings=SETTINGS).values for x in (two, one))
    for name in ("q", "V", "m", "test_error", "training_loss", "replicon", "overlap_gap"):
        ours, theirs = np.ravel(found[name]), np.ravel(expected[name])
        signs = [1, -1] if name == "m" else 1
        assert ours == pytest.approx(signs * np.resize(theirs, ours.shape), rel=1e-5, abs=1e-7, nan_ok=True), name
    assert float(np.ravel(found["m"])[0]) > 0.5


# --- numbers that never change may as well be written -----------------------------------------------------------------

BENT = "sqrt(1 + (h0_0 - (0.7*{0} - 0.4)*k0_0 + 0.3*noise0_1)**2)*(1 + {1}) + (h1_0 - k1_0*{1})**2*(0.3 + 0.1*{0})"
FIXED = [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]  # the first token is in its second cluster, the other one in its third


def two_tokens(loss: str, noise: float = 0.3) -> Problem:
    pairs = [{"sigma": 0.9, "mean": [0.4]}, {"sigma": 0.7, "mean": [-0.5]}]
    tokens = {"kind": "mixture", "clusters": [pairs, [*pairs, {"sigma": 0.8, "mean": [0.9]}]], "mean_teacher": [[0.6]]}
    tokens["law"] = {"kind": "table", "table": FIXED}
    whole = {"tokens": tokens, "loss": {"kind": "expression", "expression": loss}, "positions": {"kind": "none"}}
    return Problem.from_dict(whole | {"teacher": {"noise": noise}})


KNOWN, WRITTEN = two_tokens(BENT.format("c0", "c1")), two_tokens(BENT.format("1", "2"))


def overlaps_for(sites: slice = slice(None)) -> Overlaps:
    gamma = np.array([0.81, 0.49, 0.81, 0.49, 0.64])[sites, None, None]
    means = np.array([0.4, -0.5, 0.4, -0.5, 0.9])[sites, None, None]
    return Overlaps(0.8 * gamma, 1.3 * gamma, 0.7 * means, 0.55 * gamma)


def rule_for(name: str, system: System, fine: bool = False) -> Rule:
    """Of the fewest points, or of many."""
    kernels = system.kernels
    student = 2 * kernels.columns
    size = student + 2 * kernels.label_normals
    if name == "lines":
        noise = max(one.shape[1] for one in system.noise_directions)
        orders = LineOrders(((18,) * 2 if fine else (2,) * 2) + (2,) * noise, (9 if fine else 2,), defect=1e-7)
        return lines(size, student, orders)
    if name == "sobol":
        return sobol(size, student, False, 256 if fine else 8, 4, 3)
    return gauss_hermite(size, student, False, 2)


@pytest.mark.parametrize("name", ["lines", "sobol", "gauss-hermite"])
def test_a_map_with_known_numbers_is_that_with_written_ones(name: str, uncompiled: None):
    systems = [System.of(problem) for problem in (KNOWN, WRITTEN)]
    ours, theirs = (evaluated(one, rule_for(name, one), 1.7, overlaps_for()) for one in systems)
    for key, values in theirs.items():
        np.testing.assert_allclose(ours[key], values, rtol=1e-8, atol=1e-12, err_msg=key)
    assert abs(theirs["theta_hat"][1]) > 0.02
    assert systems[0].kernels.cluster_columns == 1 > systems[1].kernels.cluster_columns


def test_theories_with_known_numbers_are_those_with_written_ones(uncompiled: None):
    """Two copies, 1RSB and the dynamics draw the same points for both."""
    found: list[dict[str, np.ndarray]] = []
    for problem in (KNOWN, WRITTEN):
        system, start = System.of(problem), overlaps_for()
        map_ = StateEvolution(Channel(system, rule_for("sobol", system)), 1.7, system.sector_of(start))
        assert map_(map_.pack(start)) is not None
        assert map_.last is not None
        copies = Copies.of(system, 1.7, start, map_.last.conjugates.mean(), 16)
        split = OneRsbMap(OneRsbNodes(system, 4, 4, 2), 1.7, 2.0, system.sector_of(start))
        image = split(split.pack(apart_by(start, system.spectrum.rho, 0.3)))
        assert image is not None
        few = problem.with_fields({"integration.rule": "sobol", "integration.nodes": 1})
        flow = ap.sgd_flow(few, learning_rate=0.4, until=0.2, records=2, tolerance=0.01)
        found.append({"gap": copies.images(0.3 * start.q), "1RSB": image, "flow": flow["test_error"].to_numpy()})
    for key, values in found[1].items():
        np.testing.assert_allclose(found[0][key], values, rtol=1e-7, atol=1e-12, err_msg=key)
        assert np.ptp(values) > 1e-3, key


# --- which samples are alike ------------------------------------------------------------------------------------------


def exchanged(second: float) -> Problem:
    """One of two tokens is in the second cluster, and its field is learned."""
    tokens = {"kind": "mixture", "clusters": [{"sigma": 0.9, "mean": [0.4]}, {"sigma": 0.7, "mean": [-0.5]}]}
    tokens["law"] = {"kind": "table", "table": [[0.0, 0.5], [0.5, 0.0]]}
    text = "sqrt(1 + (c0*(h0_0 - k0_0) + second*c1*(h1_0 - k1_0) + 0.3*h0_0*h1_0)**2)"
    loss = {"kind": "expression", "expression": text, "parameters": {"second": second}}
    return Problem.from_dict({"tokens": tokens, "positions": {"kind": "none"}, "loss": loss})


@pytest.mark.parametrize(("second", "count"), [(1.0, 1), (2.5, 2)])
def test_samples_of_two_configurations_are_exchanged_only_if_their_losses_are(second: float, count: int):
    """One then stands for both."""
    system, start = System.of(exchanged(second)), overlaps_for(slice(0, 4))
    group = [(list(order), A, B, C) for order, A, B, C in system.symmetries if A.item() == B.item() == 1]
    assert len(group) == 2
    assert len(merged(system, group).sample_law.probabilities) == count
    by_lines, points = (evaluated(system, rule_for(name, system, True), 1.7, start) for name in ("lines", "sobol"))
    for key in ("q_hat", "theta_hat", "m_hat", "envelope", "loss"):
        np.testing.assert_allclose(by_lines[key], points[key], rtol=0.02, atol=2e-3, err_msg=key)


def test_symmetries_hold_for_all_numbers(uncompiled: None):
    """Of a loss that is even for one cluster and turns its columns for two, and does neither for the third."""
    squares = "sqrt(1 + (h0_0**2 + h0_1**2 - k0_0**2)**2)"
    loss = f"{squares}*(c - 1)**2 + c*(2 - c)*(h0_0 - k0_0 - 0.3)**2/2 + c*h0_1**2/9"
    three = [{"sigma": 0.9}, {"sigma": 0.9}, {"sigma": 0.9}]
    systems = [
        System.of(one_token(loss, three[: len(weights)], list(weights), 2))
        for weights in ((1.0,), (0.4, 0.6), (0.4, 0.0, 0.6))
    ]
    assert [one.sample_law.clusters for one in systems] == [((0.0,),), ((0.0,), (1.0,)), ((0.0,), (2.0,))]
    assert [one.has_even_loss for one in systems] == [True, False, True]
    assert [len(loss_symmetries(one.loss, one.sample_law.clusters)) for one in systems] == [16, 2, 8]
    assert [len(one.gauge.turns) for one in systems] == [1, 0, 0]


# --- what a formula may say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ("(h0_0 - c2)**2", 'it uses the unknown name "c2": .* c0, c1'),
        ("(h0_0 - c)**2", r"its value .* is an array of shape \(2,\), but must be one number"),
        ("(h0_0 - k0_0)**2/(2*c0 - c1)", "not finite at c0 = 1, c1 = 2, h0_0 = 0"),
        ("(h0_0 - k0_0)**2*(c1 - 3*c0)", "falls without bound, .* at c0 = 1, c1 = 2, h0_0 ="),
    ],
)
def test_formulas_that_cannot_be_used_are_refused(loss: str, says: str):
    with pytest.raises(ProblemError, match=rf"^loss\.expression .*{says}"):
        two_tokens(loss, noise=0.0)


def test_numbers_that_do_not_occur_make_no_formula_useless():
    assert two_tokens("(h0_0 - k0_0)**2*(4*c0 - c1)/c1", noise=0.0).loss.form.cluster_columns == 1


def test_tokens_without_clusters_have_no_number():
    loss = {"kind": "expression", "expression": "(h0_0 - c0)**2"}
    with pytest.raises(ProblemError, match=r'^loss\.expression takes .* set tokens\.kind = "mixture" and give'):
        Problem.from_dict({"loss": loss})


def test_labels_jump_in_fields_and_not_between_clusters():
    labels = "sign(c0 - 0.5)", "sign(c1*k0_0)"
    smooth, jumping = (two_tokens(f"(h0_0 - {label})**2", noise=0.0).loss.form for label in labels)
    assert (smooth.label_jumps, smooth.is_rough, smooth.label_planes) == (False, False, ({}, ()))
    assert (jumping.label_jumps, jumping.label_planes) == (True, None)


# --- single-location regression, arXiv:2509.21936 ---------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "single_location.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("variant", [0, 1], ids=["spiked", "max"])
def test_the_location_of_a_token_is_learned(variant: int):
    """The page's problems, its numbers, and those of a state evolution by a program of its own, with their errors."""
    toml = re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)[variant]
    problem = Problem.from_toml(toml).with_fields({"integration.standard_error": 3e-3})
    point = ap.solve(problem, alpha=4.0, branch="semantic").isel(token=0)
    clean = 2 * point.test_error.item() + 0.1
    assert abs(point.metric_error - clean) < 3 * np.hypot(point.metric_error_stderr, 2 * point.test_error_stderr)
    q, theta = (point[name] if variant else point[name][0] for name in ("q", "theta"))
    of_q, of_theta = (point[f"{name}_stderr"] if variant else point[f"{name}_stderr"][0] for name in ("q", "theta"))
    found = [
        (point.training_loss, point.training_loss_stderr),
        (point.metric_error, point.metric_error_stderr),
    ]
    found += [(theta[i, i], of_theta[i, i]) for i in (0, 1)] + [(q[i, i], of_q[i, i]) for i in (0, 1)]
    table = PAGE.split("| --- | --- | --- | --- |\n")[1 + variant].split("\n\n")[0].splitlines()
    assert len(table) == len(found)
    for row, (value, error) in zip(table, found, strict=True):
        assert error < 5e-3 * value
        for column in (2, 3):
            digits, last = re.findall(r"([\d.]+)\((\d+)\)", row.split("|")[column])[0]
            own = int(last) * 10.0 ** -len(digits.partition(".")[2])
            assert abs(value - float(digits)) < 3 * np.hypot(error, own), row


def test_a_spike_anywhere_is_learned():
    """The page's third problem: four configurations of three tokens."""
    problem = Problem.from_toml(re.findall(r"(?ms)^```toml\n(.*?)^```", PAGE)[2])
    point = ap.solve(problem.with_fields({"integration.standard_error": 4e-3}), alpha=3.0, branch="semantic")
    theta, error = point.theta[0, 0, 0].to_numpy(), point.theta_stderr[0, 0, 0].to_numpy()
    assert abs(point.training_loss.item() - 1.429) < 3 * np.hypot(1e-3, point.training_loss_stderr.item())
    assert abs(theta @ [0.6, 0.8] + 0.423) < 3 * np.hypot(1e-3, error @ [0.6, 0.8])
    assert len(System.of(problem).sample_law.probabilities) == 4
    wrong, own = wrong_labels(point.isel(token=0))
    assert abs(point.metric_error.item() - wrong) < 3 * np.hypot(own, point.metric_error_stderr.item())
    assert point.metric_error_stderr < 4e-3 * wrong


def wrong_labels(point: xr.Dataset, count: int = 400_000) -> tuple[float, float]:
    """The share of wrong labels among drawn samples at overlaps of the page's third problem, and its error."""
    rng = np.random.default_rng(29)
    theta, q = point.theta[0, 0].to_numpy(), point.q[0, 0, 0].item()
    k = rng.normal(size=(count, 3, 2))
    h = k @ theta + np.sqrt(q - theta @ theta) * rng.normal(size=(count, 3))
    spiked = np.flatnonzero(rng.random(count) < 0.3)
    token = rng.integers(3, size=len(spiked))
    k[spiked, token, 0] += 2.0
    h[spiked, token] += point.m[1, 0].item()
    weights = np.exp(k @ [1.2, 1.6])
    output = (weights * h).sum(axis=1) / weights.sum(axis=1)
    label = np.full(count, -1.0)
    label[spiked] = 1.0
    wrong = label * output < 0
    return float(wrong.mean()), float(wrong.std() / np.sqrt(count))
