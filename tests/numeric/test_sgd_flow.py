"""Trajectories, stationary points and basins: closed forms, an integration of its own, identities, refusals."""

import math

import numpy as np
import pytest

import attnphase as ap
from attnphase.data.schemas import SCHEMAS
from attnphase.errors import ProblemError
from attnphase.problem import Problem
from attnphase.state_evolution.sizes import Sizes
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.corrections import corrected, known_way
from attnphase.theories.sgd_flow.planes import Arrival
from attnphase.theories.sgd_flow.settings import Basin, FlowSettings, FlowStatus
from attnphase.theories.sgd_flow.slopes import SlopeChannel, next_rule, replicates_of, system_of
from attnphase.theories.sgd_flow.trajectory import follow_flow, integrated, measured, started

PAPER = Problem.paper(omega=0.3)
NO_DECAY = {"regularizer.strength": 1e-8}
ONE_TOKEN = {"tokens.length": 1, "loss.kind": "square", "positions.kind": "none", "teacher.mixing": [[1.0]]}
START = "semantic=0.3,positional=0.3,noise=0.6"


def rule(order):
    return {"integration.rule": "gauss-hermite", "integration.nodes": order}


# --- numbers of another program, and closed forms ----------------------------------------------------------------


def test_the_papers_setting_has_the_numbers_of_an_integration_without_rows():
    """An integration by hand of the equations for isotropic tokens, by raw moments; errors in brackets there."""
    ds = ap.sgd_flow(PAPER.with_fields(NO_DECAY), START, 2.0, 40.0, records=3)
    last = ds.isel(time=-1, token=0)
    for name, scale, value, error in (
        ("q", 0.25, 0.4464, 3e-4),
        ("m", 1.0, 0.0489, 2e-4),
        ("theta", 0.25, 0.5344, 6e-4),
    ):
        assert abs(float(last[name].squeeze()) / scale - value) < 3 * error, name
        assert float(last[f"{name}_stderr"].squeeze()) < error
    assert float(ds.population_risk[-1]) == pytest.approx(float(ds.test_error[-1]), rel=1e-5)  # L = 2, no decay
    assert ap.validate_dataset(ds) is ds


@pytest.mark.parametrize(("rate", "batch", "delta"), [(0.0, 1, 0.0), (0.7, 1, 0.0), (1.9, 3, 0.0), (1.3, 2, 0.37)])
def test_linear_regression_with_two_variances_has_its_closed_form(rate, batch, delta):
    """Loss (h - k)^2/2 of one token: an atom's error ``v = W - Q_star`` obeys ``v' = -eta gamma v``.

    Its square decays by ``2 eta gamma`` and gains ``eta^2 gamma/s`` times the mean square of ``h - k``, that of all
    atoms together and of the labels' noise: a linear system of its own, solved here by the exponential of a matrix.
    """
    from scipy.linalg import expm

    low, high, share = 0.3, 0.9, 0.4
    spectrum = [{"weight": share, "variances": [low]}, {"weight": 1 - share, "variances": [high]}]
    problem = Problem().with_fields(
        ONE_TOKEN
        | {"tokens.spectrum": spectrum, "teacher.noise": delta}
        | NO_DECAY
        | {"integration.rule": "gauss-hermite", "integration.nodes": 8}
    )
    start, until = Sizes(semantic=0.35, noise=0.8), 4.0
    ds = ap.sgd_flow(problem, start, rate, until, batch=batch, records=5)
    gamma, weight, eta = np.array([low, high]), np.array([share, 1 - share]), rate or 1.0
    noise = rate and eta**2 / batch
    system = np.zeros((3, 3))  # the last row is one, which the labels' noise multiplies
    system[:2, :2] = np.diag(-2 * eta * gamma) + noise * np.outer(gamma, weight * gamma)
    system[:2, 2] = noise * gamma * delta
    first = np.append(np.full(2, (start.semantic - 1) ** 2 + start.noise**2), 1.0)
    for t in range(5):
        time = float(ds.time[t])
        along = 1 + (start.semantic - 1) * np.exp(-eta * gamma * time)
        square = (expm(system * time) @ first)[:2]
        theta = weight @ (gamma * along)
        q = weight @ (gamma * (square + 2 * along - 1))
        here = ds.isel(time=t)
        assert float(here.theta.squeeze()) == pytest.approx(theta, rel=2e-5)
        assert float(here.q.squeeze()) == pytest.approx(q, rel=2e-5)
        assert float(here.test_error) == pytest.approx(weight @ (gamma * square), rel=2e-5)
        assert float(here.population_risk) == pytest.approx((weight @ (gamma * square) + delta) / 2, rel=2e-5)


# --- labels with noise ------------------------------------------------------------------------------------------------


NOISY = PAPER.with_fields({"teacher.noise": 0.21, "tokens.sigma": [0.4, 0.6]} | rule(6))


def test_noise_of_labels_is_nothing_to_gradient_flow_but_a_constant_of_the_risk():
    clean, noisy = (
        ap.sgd_flow(NOISY.with_fields({"teacher.noise": x}), START, 0.0, 15.0, records=4) for x in (0.0, 0.21)
    )
    for name in ("q", "m", "theta", "weight_norm", "test_error"):
        assert (clean[name] == noisy[name]).all(), name
    # every row of the noise meets every token: Delta L Tr D / 2
    gain = (noisy.population_risk - clean.population_risk).to_numpy()
    assert gain == pytest.approx(np.full(4, 0.21 * 2 * (0.16 + 0.36) / 2), rel=1e-12)
    assert ap.validate_dataset(noisy) is noisy


def test_gains_by_noise_are_derivatives_of_the_models_loss():
    """At drawn fields, beside SymPy's derivatives of the loss of the model in its fields and its noise."""
    from sympy import symbols

    from attnphase.kernels.compiler import gains_for
    from attnphase.kernels.key import ModelKey, model_numbers
    from derivations.algebra import symbols as sym

    random = np.random.default_rng(7)
    h, k, variance = random.normal(size=(1, 2, 1)), random.normal(size=(1, 2, 1)), np.array([0.16, 0.36])
    squares, losses = np.empty((1, 2, 1, 1)), np.empty(1)
    mixing = np.array([[0.6, 0.4], [0.3, 0.7]])
    gains_for(NOISY)(h, k, mixing, model_numbers(NOISY), variance, squares, losses)

    fields, noise = symbols("h0 h1", real=True), symbols("z00 z01 z10 z11", real=True)
    labels = [[k[0, a, 0], *noise[2 * a : 2 * a + 2]] for a in range(2)]
    loss = ModelKey.of(NOISY).model().loss([[field] for field in fields], labels)
    values = {sym.omega: 0.3, sym.student_temperature: 1.0, sym.teacher_temperature: 1.0}
    values |= {sym.mixing[a + 1, b + 1]: mixing[a, b] for a in range(2) for b in range(2)}
    values |= {sym.token_variance[b + 1]: variance[b] for b in range(2)}
    values |= dict(zip(fields, h[0, :, 0], strict=True)) | dict.fromkeys(noise, 0.0)
    for a, field in enumerate(fields):
        exact = sum(float(loss.diff(field, z).subs(values)) ** 2 for z in noise)
        assert squares[0, a, 0, 0] == pytest.approx(exact, rel=1e-12)
    assert losses[0] == pytest.approx(sum(float(loss.diff(z, 2).subs(values)) for z in noise) / 2, rel=1e-12)


def test_gains_by_noise_do_not_know_the_teachers_fields(monkeypatch):
    """A tensor rule with every place of the student's normals once has the gains of all its nodes."""
    system = system_of(NOISY)
    dynamics, state = started(system, Sizes.of(START), FlowSettings(1.0), system.refinement(2**18).gauss_hermite(5))
    overlaps = dynamics.rows.overlaps(state)[0]
    few, loss = dynamics.channel.noise_gains(overlaps, of_loss=True)
    fewer = dynamics.channel.of_student
    assert fewer is not None
    assert fewer.rule.size < dynamics.channel.rule.size / 4
    monkeypatch.setattr(SlopeChannel, "of_student", None)
    whole, same = dynamics.channel.noise_gains(overlaps, of_loss=True)
    assert np.allclose(few, whole, rtol=1e-12)
    assert loss == pytest.approx(same, rel=1e-12)


def test_noise_that_a_loss_says_itself_is_that_of_the_field():
    """By nodes for the noise, where nothing says that the loss is quadratic in it."""
    plain = Problem().with_fields(ONE_TOKEN | {"teacher.noise": 0.37, "tokens.sigma": 0.7} | NO_DECAY | rule(6))
    said = {"loss.kind": "expression", "loss.expression": "(h - k - noise)**2/2"}
    one, other = (
        ap.sgd_flow(p, "semantic=0.3,noise=0.4", 1.1, 3.0, records=3) for p in (plain, plain.with_fields(said))
    )
    for name in ("q", "theta", "population_risk", "test_error"):
        assert np.allclose(one[name], other[name], rtol=1e-9), name
    assert float(one.population_risk[-1] - one.test_error[-1] / 2) == pytest.approx(0.185, rel=1e-6)  # no decay here


# --- identities -------------------------------------------------------------------------------------------------------


VARIANTS = {
    "paper": {"teacher.omega": 0.17, "regularizer.strength": 0.03},
    "spectrum": {"tokens.spectrum": {"kind": "two-level", "variances": [0.1, 0.5], "fraction": 0.3}},
    "encodings": {"positions.kind": "gram", "positions.gram": [[1.3, 0.4], [0.4, 0.7]], "tokens.sigma": [0.4, 0.6]},
    "mixture": {
        "tokens": {
            "kind": "mixture",
            "length": 2,
            "clusters": [{"sigma": 0.5, "mean": [0.9]}, {"sigma": 0.4, "mean": [-0.7]}],
            "law": {"kind": "same", "probability": 0.8},
            "mean_positions": [[0.15], [-0.15]],
            "mean_teacher": [[0.2]],
        }
    },
}


@pytest.mark.parametrize("name", VARIANTS)
def test_gradient_flow_loses_risk_at_the_rate_of_its_gradients_square(name):
    """``d risk / dt = -(mean square of the rows' velocity)``, by a difference of risks and not by the conjugates.

    The velocity of a row is u for its mean and ``-A delta`` for its deviation; nothing of this is in the rates' code.
    """
    changes = VARIANTS[name]
    whole = PAPER.to_dict() | {"tokens": changes["tokens"]} if "tokens" in changes else PAPER.to_dict()
    problem = Problem.from_dict(whole).with_fields(({} if "tokens" in changes else changes) | rule(14))
    system, settings = System.of(problem), FlowSettings()
    dynamics, state = started(system, Sizes(0.45, 0.35, 0.5), settings, system.refinement(2**18).first())
    rate = dynamics.rate(state)
    _, covariances = dynamics.rows.unpack(state)
    moved, shrunk = dynamics.rows.unpack(rate)
    points = dynamics.rows.points
    weights = dynamics.rows.weights
    # C' = -2 A C for one column, so that A C A = C'^2 / 4C
    gone = weights[:points] @ (moved[..., 0] ** 2).sum(axis=1)
    gone += weights[points:] @ (shrunk[:, 0, 0] ** 2 / (4 * covariances[:, 0, 0]))
    step = 1e-4
    ahead, behind = (measured(dynamics, (state + s * step * rate)[None])["population_risk"][0] for s in (1, -1))
    assert (ahead - behind) / (2 * step) == pytest.approx(-gone, rel=1e-5)
    assert gone > 1e-6


def test_small_rates_are_gradient_flow():
    problem = PAPER.with_fields(rule(8))
    flow = ap.sgd_flow(problem, START, 0.0, 12.0, records=4)
    for rate in (0.02, 0.01):
        sgd = ap.sgd_flow(problem, START, rate, 12.0 / rate, records=4)
        ratio = np.abs(sgd.q.to_numpy() - flow.q.to_numpy()).max() / rate
        assert 1e-4 < ratio < 0.05  # the noise's part is linear in the rate


def test_scrambled_points_and_their_errors_agree_with_a_tensor_rule():
    exact = follow_flow(PAPER.with_fields(rule(12)), Sizes.of(START), FlowSettings(1.5, until=15.0, records=4))
    few = {"integration.rule": "sobol", "integration.nodes": 64}
    sampled = follow_flow(PAPER.with_fields(few), Sizes.of(START), FlowSettings(1.5, until=15.0, records=4))
    for name in ("q", "m", "theta", "test_error"):
        z = (sampled.values[name] - exact.values[name])[1:] / sampled.errors[name][1:]
        assert np.abs(z).max() < 4
        assert np.abs(z).max() > 0.01
    assert sampled.rule.size == 16 * 64
    assert (sampled.errors["q"][0] < 1e-12).all()  # all start alike


def test_the_error_of_a_flow_is_the_scatter_of_replicates_that_are_integrated_one_by_one():
    few = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    start, settings = Sizes.of(START), FlowSettings(1.7, until=8.0, records=5)
    found = follow_flow(few, start, settings)
    system, ways = system_of(few), []
    for part in replicates_of(found.rule):
        dynamics, state = started(system, start, settings, part)
        ways.append(measured(dynamics, integrated(dynamics, state, found.times).states))
    assert len(ways) == 16
    for name in ("q", "m", "theta", "population_risk", "test_error"):
        each = np.stack([way[name] for way in ways])
        expected = np.sqrt(((each - each.mean(axis=0)) ** 2).sum(axis=0) / (16 * 15))
        # errors are to first order in what a replicate moves, which is a few per cent here
        np.testing.assert_allclose(found.errors[name][1:], expected[1:], rtol=0.1, atol=0.01 * expected.max())


def test_six_dimensions_have_tensor_rules_of_low_order():
    """Beside scrambled points, which are exact up to the scatter of their replicates."""
    problem, settings = PAPER.with_fields({"student.rank": 2}), FlowSettings(1.5, until=6.0, records=3)
    tensor = follow_flow(problem, Sizes.of(START), settings)
    few = {"integration.rule": "sobol", "integration.nodes": 128}
    sampled = follow_flow(problem.with_fields(few), Sizes.of(START), settings)
    assert tensor.rule.order in (6, 7, 8)
    assert not tensor.rule.randomised
    for name in ("q", "m", "theta", "population_risk"):
        apart, scatter = (sampled.values[name] - tensor.values[name])[1:], sampled.errors[name][1:]
        assert (np.abs(apart) <= 4 * scatter + tensor.errors[name][1:] + 1e-12).all(), name
        assert scatter.max() > 0, name
    q = tensor.values["q"][:, 0, 0, 0]
    assert (tensor.errors["q"][1:, 0, 0, 0] < 2e-3 * q[1:]).all()
    assert (tensor.errors["q"][1:, 0, 0, 0] > 0).all()


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"student.rank": 2, "teacher.noise": 0.2, "integration.standard_error": 1e-4}, "gauss-hermite"),
        ({"student.tied": False, "integration.rule": "sobol", "integration.standard_error": 2e-3}, "sobol"),
    ],
)
def test_corrected_ways_are_those_that_are_integrated(monkeypatch, changes, name):
    """Values and their errors under rules that were asked at a few knots in time, beside an integration under each."""
    problem, start = PAPER.with_fields(changes), Sizes.of("semantic=0.3,positional=0.3,noise=0.6")
    settings = FlowSettings(2.0, until=20.0, records=9)
    quick = follow_flow(problem, start, settings)
    monkeypatch.setattr("attnphase.theories.sgd_flow.trajectory.known_way", lambda *_: None)
    whole = follow_flow(problem, start, settings)
    assert (quick.rule.name, quick.rule.order) == (name, whole.rule.order)
    assert quick.evaluations < whole.evaluations / 2
    for key, value in whole.values.items():
        errors = whole.errors[key]
        assert (np.abs(quick.values[key] - value) <= 0.05 * errors + 1e-6 * np.abs(value).max()).all(), key
        assert np.abs(quick.errors[key] - errors).max() <= 0.1 * errors.max(), key


def test_what_a_correction_cannot_follow_is_integrated(monkeypatch):
    """A rule that comes to rest, runs away or is too far from the known one; and a way that ended before its time."""
    settings = FlowSettings(2.0, until=20.0, records=3)
    system = system_of(PAPER)
    dynamics, state = started(system, Sizes.of(START), settings, system.refinement(2**18).gauss_hermite(6))
    way = integrated(dynamics, state, np.linspace(0.0, 20.0, 3))
    known = known_way(way.path, way.steps, dynamics, dynamics)
    assert known is not None
    same = corrected(known, dynamics, way.times, 1e-6)
    assert same is not None
    assert np.allclose(same.states, way.states, rtol=1e-9, atol=1e-12)
    assert np.abs(same.shifts).max() < 1e-12
    monkeypatch.setattr(
        "attnphase.theories.sgd_flow.corrections.rows_asked", lambda *_: np.full((1, len(state) + 2), 0.1)
    )
    assert corrected(known, dynamics, way.times, 1e-6) is None
    monkeypatch.undo()
    monkeypatch.setattr(type(dynamics), "is_lost", lambda *_: True)
    assert corrected(known, dynamics, way.times, 1e-6) is None
    rests = integrated(
        started(system, Sizes(noise=0.1), FlowSettings(), dynamics.channel.rule)[0], 0 * state, way.times
    )
    assert rests.status is not FlowStatus.completed
    assert rests.path is None


def test_low_orders_are_given_up_where_they_do_not_converge():
    rules = system_of(PAPER.with_fields({"student.rank": 2})).refinement(2**18)
    names = []
    for order, error in ((6, 0.9e-3), (6, 3e-3), (6, 0.1), (8, 3e-3)):
        finer = next_rule(rules, rules.gauss_hermite(order), error, smooth=True)
        names.append(None if finer is None else (finer.name, finer.order))
    assert names == [None, ("gauss-hermite", 7), ("sobol", 256), ("sobol", 256)]


@pytest.mark.parametrize("largest", [2**18, 2**12])
def test_tensor_rules_are_left_for_points_where_they_do_not_converge(largest):
    """By errors of a pole beside the real axis, which are about ``exp(-c sqrt(n))``.

    In two dimensions order 48 has fewer nodes than the first Sobol points. In four, only the next order is tried.
    """
    two, four = (PAPER if many else PAPER.with_fields(ONE_TOKEN) for many in (False, True))
    for problem, error, expected in (
        (two, 0.9e-3, None),
        (two, 0.02, ("gauss-hermite", 16)),  # 0.02^2 under order 48
        (two, 0.05, ("sobol", 256)),
        (four, 2e-3, ("gauss-hermite", 16)),  # 0.002^1.155
        (four, 4e-3, ("sobol", 256)),
    ):
        rules = system_of(problem).refinement(largest)
        finer = next_rule(rules, rules.gauss_hermite(12), error, smooth=True)
        assert (None if finer is None else (finer.name, finer.order)) == expected
    rules = system_of(two).refinement(largest)
    last = rules.sobol(256)
    while (finer := next_rule(rules, last, 0.1, smooth=True)) is not None:
        assert finer.randomised
        assert finer.order > last.order
        last = finer
    assert last.size == largest
    points = rules.next(rules.gauss_hermite(48), 2e-3, 0.0)  # so many that no tensor rule comes after them
    assert (points is not None and points.order > 256) == (largest > 2**12)


def test_exact_symmetries_stay_exact():
    """Along the teacher alone m is zero at all times, and theta along the encodings, also under sampled nodes."""
    problem = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    semantic = ap.sgd_flow(problem, "semantic=0.4,noise=0.3", 1.0, 30.0, records=3)
    positional = ap.sgd_flow(problem, "positional=0.4,noise=0.3", 1.0, 30.0, records=3)
    assert not semantic.m.any()
    assert float(np.abs(semantic.theta).min()) > 0.05
    assert not positional.theta.any()
    assert (positional.m[:, 0] == -positional.m[:, 1]).all()


# --- stationary points ------------------------------------------------------------------------------------------------


def test_stationary_points_of_the_paper():
    """Two minima, the saddle between them, and W = 0, which is unstable in both directions."""
    problem = PAPER.with_fields(rule(8))
    ds = ap.stationary(problem, starts=6)
    assert ds.unstable_directions.to_numpy().tolist() == [0, 0, 1, 2]
    assert (np.diff(ds.population_risk) > 0).all()
    at_zero = ds.isel(solution=3)
    assert float(at_zero.weight_norm) < 1e-8
    # small starts grow at the eigenvalues there
    for start, order, eigenvalue in (("positional=1e-5", "m", 0), ("semantic=1e-5", "theta", 1)):
        grown = np.abs(ap.sgd_flow(problem, start, 0.0, 20.0, records=3)[order].isel(token=0).to_numpy().ravel())
        rate = math.log(grown[2] / grown[1]) / 10
        assert rate == pytest.approx(float(at_zero.eigenvalue[eigenvalue]), rel=1e-4)
    # and a trajectory ends at the minimum that is searched for
    end = ap.sgd_flow(problem, "positional=0.3,noise=0.2", 0.0, 5000.0, records=2)
    assert int(end.status) == FlowStatus.at_rest
    assert float(end.end) < 5000
    positional = ds.isel(solution=int(np.abs(ds.m[:, 0, 0].to_numpy()).argmax()))
    assert float(np.abs(end.m[-1, 0, 0])) == pytest.approx(float(np.abs(positional.m[0, 0])), rel=1e-3)
    assert ap.validate_dataset(ds) is ds


def test_a_rate_that_is_too_large_diverges():
    problem = Problem().with_fields(ONE_TOKEN | {"tokens.sigma": 1.0} | rule(8) | NO_DECAY)
    ds = ap.sgd_flow(problem, "noise=0.5", 2.5, 200.0, records=5)  # eta gamma > 2
    assert int(ds.status) == FlowStatus.diverged
    assert np.isnan(ds.q[-1]).all()
    assert np.isfinite(ds.q[0]).all()


@pytest.mark.parametrize("nodes", [{"nodes": 5, "rule": "gauss-hermite"}, {"nodes": 16, "rule": "sobol"}])
def test_huge_rates_diverge_under_few_nodes_too(nodes):
    """The noise carries the weights to where no node has a gradient: that is no rest."""
    system = system_of(PAPER.with_fields({f"integration.{name}": value for name, value in nodes.items()}))
    for rate in (1e5, 1e7):
        settings = FlowSettings(rate, until=40.0)
        found = integrated(*started(system, Sizes.of(START), settings, system.refinement(2**18).single()))
        assert found.status is FlowStatus.diverged


def test_the_share_of_samples_with_a_gradient_is_that_of_a_normal():
    """Of the square loss of one token ``g = k - h`` is normal: ``E[g^2]^2 / E[g^4]`` is a third, whatever its size."""
    problem = Problem().with_fields(ONE_TOKEN | {"tokens.sigma": 0.7} | rule(5))
    system = system_of(problem)
    dynamics, state = started(system, Sizes(semantic=0.3, noise=0.9), FlowSettings(1.1), system.refinement(64).first())
    channel = SlopeChannel(system, dynamics.channel.rule)
    assert channel.participation(dynamics.rows.overlaps(state)[0]) == pytest.approx(1 / 3, rel=1e-12)


def test_rest_at_a_saddle_is_told_from_rest():
    """Noise alone dies at a point that a small part along the encodings leaves, at a rate that a run with one has."""
    problem = PAPER.with_fields(rule(8))
    dead, alive = (ap.sgd_flow(problem, start, 0.0, 4000.0, records=2) for start in ("noise=0.3", "positional=0.3"))
    assert int(dead.status) == FlowStatus.at_saddle
    assert int(alive.status) == FlowStatus.at_rest
    grown = np.abs(ap.sgd_flow(problem, "positional=1e-5", 0.0, 20.0, records=3).m.isel(token=0).to_numpy().ravel())
    assert float(dead.growth) == pytest.approx(math.log(grown[2] / grown[1]) / 10, rel=1e-3)
    assert float(alive.growth) < -1e-3
    assert ap.validate_dataset(dead) is dead


def test_passing_by_a_saddle_is_no_rest():
    """At this angle it is slower beside the saddle than what is rest elsewhere, and ends semantic all the same."""
    system = system_of(PAPER.with_fields(rule(6)))
    angle, settings = math.radians(63.5), FlowSettings(until=4000.0, tolerance=1e-6, at_rest=5e-3)
    start = Sizes(semantic=0.5 * math.sin(angle), positional=0.5 * math.cos(angle))
    dynamics, state = started(system, start, settings, system.refinement(2**18).first())
    found = integrated(dynamics, state)
    speeds = np.array([dynamics.speed(one) for one in found.states])
    slow = np.flatnonzero(speeds < settings.at_rest)
    assert speeds[slow[0] :].max() > 2 * settings.at_rest  # it was slow, and moved again
    assert found.status is FlowStatus.at_rest
    assert found.growth < 0
    assert dynamics.has_found(found.states[-1])[3]
    assert (np.diff(found.times) >= 0).all()


# --- basins -----------------------------------------------------------------------------------------------------------


def test_the_boundary_of_the_basins_separates_trajectories(monkeypatch):
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 3)
    problem = PAPER.with_fields(rule(8))
    ds = ap.basins(problem, 0.3, 0.5, [50.0, 74.0])
    assert ds.basin.to_numpy().ravel().tolist() == [Basin.positional, Basin.semantic]
    boundary, error = ds.boundary.item(), ds.boundary_stderr.item()
    assert 1.5 <= error < 2.5  # half of 24/8, and what the finer of two rules changes
    for sign, order in ((-1, "m"), (1, "theta")):
        angle = math.radians(boundary + sign * error)
        start = Sizes(semantic=0.5 * math.sin(angle), positional=0.5 * math.cos(angle))
        end = ap.sgd_flow(problem, start, 0.0, 3000.0, records=2).isel(time=-1)
        sizes = {name: float(np.abs(end[name]).max()) for name in ("m", "theta")}
        assert max(sizes, key=sizes.__getitem__) == order
    assert ap.validate_dataset(ds) is ds


def test_the_boundarys_error_holds_what_the_rule_changes(monkeypatch):
    """With little left of bisection, the boundary is the finer rule's, its error the larger distance from two."""
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 9)
    _by_angle(monkeypatch, [lambda angle, at=at: _sides(angle, at, at) for at in (40.0, 40.6, 40.3)])
    ds = ap.basins(PAPER.with_fields(rule(8)), 0.3, 0.5, [10.0, 30.0, 70.0])
    half = 40 / 2**10
    assert ds.boundary.item() == pytest.approx(40.6, abs=1.01 * half)
    assert ds.boundary_stderr.item() == pytest.approx(0.6, abs=3 * half)


def test_the_boundary_under_a_low_order_is_held_against_two_gauges(monkeypatch):
    """One order below it is nearly the same by chance; two below it is 4 degrees off, of which a quarter counts."""
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 9)
    places = (40.0, 40.1, 44.1)
    _by_angle(monkeypatch, [lambda angle, at=at: _sides(angle, at, at) for at in places])
    ds = ap.basins(PAPER.with_fields({"student.tied": False}), 0.3, 0.5, [10.0, 30.0, 70.0])
    half = 40 / 2**10
    assert ds.boundary.item() == pytest.approx(40.1, abs=1.01 * half)
    assert ds.boundary_stderr.item() == pytest.approx(1.0, abs=3 * half)


def _by_angle(monkeypatch, of_rules):
    """Ends of starts by their angle in degrees, by a function for each rule in the order in which they come."""
    several, names = iter(of_rules), {}

    def arrival(dynamics, state):
        size = dynamics.channel.rule.size
        if size not in names:
            names[size] = next(several)
        overlaps = dynamics.rows.overlaps(state)[0]
        angle = math.degrees(math.atan2(np.abs(overlaps.theta).max() / 0.25, np.abs(overlaps.m).max()))
        return Arrival(0.0, 0.0, 0.0, 0.0, names[size](angle), FlowStatus.at_rest)

    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.arrival_from", arrival)


def _sides(angle, low, high):
    return Basin.positional if angle < low else Basin.semantic if angle > high else Basin.mixed


def test_starts_at_rest_beside_the_saddle_leave_a_boundary(monkeypatch):
    """Under the finer rule starts within a degree of the truth are caught: the interval reaches over them all."""
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 8)
    places = ((40.0, 40.0), (39.7, 41.2), (40.0, 40.0))
    _by_angle(monkeypatch, [lambda angle, at=at: _sides(angle, *at) for at in places])
    ds = ap.basins(PAPER.with_fields(rule(8)), 0.3, 0.5, [10.0, 30.0, 70.0])
    boundary, error = ds.boundary.item(), ds.boundary_stderr.item()
    assert boundary - error < 39.7
    assert boundary + error > 41.2
    assert error < 3.0  # half of what is not known is 0.75, and steps double


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([lambda angle: _sides(angle, 25.0, 35.0)], "the start at 30 degrees ends mixed"),
        ([lambda angle: _sides(-angle, -40.0, -40.0)], "at 70 degrees ends positional, but that at 10 semantic"),
        (
            [lambda angle: _sides(angle, 40.0, 40.0), *[lambda _: Basin.uninformed] * 2],
            "under a finer rule starts about 40",
        ),
    ],
)
def test_planes_without_a_boundary_say_why(monkeypatch, rules, why):
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 6)
    _by_angle(monkeypatch, rules)
    with pytest.warns(UserWarning, match=f"omega = 0.3, scale = 0.5: there is no boundary, as .*{why}"):
        ds = ap.basins(PAPER.with_fields(rule(8)), 0.3, 0.5, [10.0, 30.0, 70.0])
    assert np.isnan([ds.boundary.item(), ds.boundary_stderr.item()]).all()


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"start": "positional"}, "start must be semantic, or sizes"),
        ({"start": "semantic=x"}, "start must have numbers"),
        ({"start": "semantic=1,semantic=2"}, "start has semantic twice"),
        ({"start": "size=1"}, "start must be one of semantic, positional, noise"),
        ({"start": {"noise": -1.0}}, "start.noise must be a standard deviation"),
        ({"start": ["noise=0.1", "noise=0.1"]}, "start has 'noise=0.1' twice"),
        ({"learning_rate": -1.0}, "learning_rate must be a number from 0, which is gradient flow, to"),
        ({"batch": 2}, "batch belongs to SGD"),
        ({"until": 0.0}, "until must be a positive number"),
        ({"records": 1}, "records must be a whole number"),
        ({"tolerance": 2.0}, "tolerance must be a number from 1e-12 to below 1"),
    ],
)
def test_wrong_arguments_are_refused(changed, words):
    with pytest.raises(ProblemError, match=words):
        ap.sgd_flow(PAPER, **changed)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"regularizer.kind": "lasso"}, "regularizer.kind is lasso"),
        ({"tokens.length": 1, "loss.kind": "hinge", "teacher.mixing": [[1.0]]}, "hinge has a kink"),
    ],
)
def test_problems_without_such_a_dynamics_are_refused(changes, words):
    with pytest.raises(ProblemError, match=words):
        ap.sgd_flow(PAPER.with_fields(changes))


def test_a_positional_start_needs_encodings():
    with pytest.raises(ProblemError, match="start has a positional part, but there are no encodings"):
        ap.sgd_flow(PAPER.with_fields({"positions.kind": "none"}), "positional=0.3")


def test_texts_of_sizes_are_read_back():
    for sizes in (Sizes(), Sizes(0.25, -0.5, 0.125), Sizes(noise=1.5), Sizes(semantic=1 / 3)):
        assert Sizes.of(sizes.text) == sizes


def test_kinds_of_the_dynamics_are_part_of_the_schema():
    assert {"sgd_flow", "stationary", "basins"} <= set(SCHEMAS)
