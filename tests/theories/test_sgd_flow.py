"""Trajectories of gradient flow and one-pass SGD, their stationary points and basins.

Not public: which rule comes next, the share of samples with a gradient, where a slow trajectory ends, and what the
ends of trajectories make of a boundary are decisions that a whole basin takes minutes to show.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import model
from scipy.linalg import expm
from sympy import symbols

import attnphase as ap
from attnphase.kernels.compiler import kernels_for
from attnphase.kernels.key import ModelKey, model_numbers
from attnphase.kernels.local.values import Nodes
from attnphase.state_evolution.sizes import Sizes
from attnphase.theories.sgd_flow.corrections import KnownWay, Moved, of_replicates
from attnphase.theories.sgd_flow.planes import Arrival, _half_time
from attnphase.theories.sgd_flow.settings import Basin, FlowSettings, FlowStatus
from attnphase.theories.sgd_flow.slopes import gains, next_rule, system_of
from attnphase.theories.sgd_flow.trajectory import integrated, started
from derivations.algebra import symbols as sym

PAPER = ap.Problem.paper(omega=0.3)
NO_DECAY = {"regularizer.strength": 1e-8}
START = "semantic=0.3,positional=0.3,noise=0.6"


def rule(order: int) -> dict[str, Any]:
    return {"integration.rule": "gauss-hermite", "integration.nodes": order}


def few(nodes: int) -> dict[str, Any]:
    return {"integration.rule": "sobol", "integration.nodes": nodes}


def test_the_paper_setting_has_the_numbers_of_an_integration_by_hand():
    """Of the equations for isotropic tokens, by raw moments; its errors stand beside its numbers."""
    last = ap.sgd_flow(PAPER.with_fields(NO_DECAY), START, 2.0, 40.0, records=3).isel(time=-1, token=0)
    for name, value, error in (("q", 0.1116, 8e-5), ("m", 0.0489, 2e-4), ("theta", 0.1336, 1.5e-4)):
        assert abs(float(last[name].squeeze()) - value) < 3 * error, name
        assert float(last[f"{name}_stderr"].squeeze()) < 4 * error
    assert float(last.population_risk) == pytest.approx(float(last.test_error), rel=1e-5)  # L = 2, no decay


def test_gains_by_noise_are_derivatives_of_the_loss():
    """At drawn fields, beside SymPy's derivatives of the model's loss by its fields and its noise."""
    problem = model("noisy", {"teacher.omega": 0.3, "tokens.sigma": [0.4, 0.6]})
    random, variance, mixing = np.random.default_rng(7), np.array([0.16, 0.36]), np.array([[0.6, 0.4], [0.3, 0.7]])
    h, k = random.normal(size=(2, 1, 2, 1))
    nodes = Nodes(h, k, np.empty(0), mixing, model_numbers(problem), variance)
    squares, losses = gains(kernels_for(problem), nodes, of_loss=True)
    fields, noise = symbols("h0 h1", real=True), symbols("z00 z01 z10 z11", real=True)
    labels = [[k[0, a, 0], *noise[2 * a : 2 * a + 2]] for a in range(2)]
    loss = ModelKey.of(problem).model().loss([[field] for field in fields], labels)
    values = {sym.omega: 0.3, sym.student_temperature: 1.0, sym.teacher_temperature: 1.0}
    values |= {sym.mixing[a + 1, b + 1]: mixing[a, b] for a in range(2) for b in range(2)}
    values |= {sym.token_variance[b + 1]: variance[b] for b in range(2)}
    values |= dict(zip(fields, h[0, :, 0], strict=True)) | dict.fromkeys(noise, 0.0)
    for a, field in enumerate(fields):
        exact = sum(float(loss.diff(field, z).subs(values)) ** 2 for z in noise)
        assert squares[0, a, 0, 0] == pytest.approx(exact, rel=1e-12)
    assert losses[0] == pytest.approx(sum(float(loss.diff(z, 2).subs(values)) for z in noise) / 2, rel=1e-12)


def test_gains_by_noise_know_the_cluster():
    clusters = {"kind": "mixture", "length": 1, "clusters": [{"sigma": 0.9}, {"sigma": 0.7}]}
    loss = {"kind": "expression", "expression": "(0.7 + c0)*(h0_0 - 1.3*k0_0 - 0.6*noise0_0)**2/2"}
    problem = ap.Problem.from_dict({"tokens": clusters, "teacher": {"noise": 0.3}, "loss": loss})
    h, labels = np.full((2, 1, 1), 0.4), np.array([[[0.8, 0.0]], [[-0.3, 1.0]]])
    nodes = Nodes(h, labels, np.empty(0), np.eye(1), model_numbers(problem), np.ones(1))
    squares, losses = gains(kernels_for(problem), nodes, of_loss=True)
    np.testing.assert_allclose(squares.ravel(), [(0.7 * 0.6) ** 2, (1.7 * 0.6) ** 2], rtol=1e-12)
    np.testing.assert_allclose(losses, [0.7 * 0.36 / 2, 1.7 * 0.36 / 2], rtol=1e-12)


@pytest.mark.parametrize(
    ("rate", "batch", "delta", "said"),
    [(0.0, 1, 0.0, False), (0.7, 1, 0.0, False), (1.9, 3, 0.0, False), (1.3, 2, 0.37, False), (1.3, 2, 0.37, True)],
)
def test_linear_regression_with_two_variances_has_its_closed_form(rate, batch, delta, said):
    """Loss (h - k)^2/2 of one token: an atom's error ``v = W - Q_star`` obeys ``v' = -eta gamma v``.

    Its square decays by ``2 eta gamma`` and gains ``eta^2 gamma/s`` times the mean square of ``h - k``, that of all
    atoms together and of the labels' noise, also where the loss itself names the noise.
    """
    spectrum = [{"weight": 0.4, "variances": [0.3]}, {"weight": 0.6, "variances": [0.9]}]
    fields = {"tokens.sigma": None, "tokens.spectrum": spectrum, "teacher.noise": delta, **NO_DECAY, **rule(8)}
    own = {"loss.parameters.quantile": 0, "loss.parameters.square": 1}
    problem = model("kinks", fields | own) if said else model("square", fields)
    start, eta = Sizes(semantic=0.35, noise=0.8), rate or 1.0
    ds = ap.sgd_flow(problem, start, rate, 4.0, batch=batch, records=3)
    gamma, weight = np.array([0.3, 0.9]), np.array([0.4, 0.6])
    noise = rate and eta**2 / batch
    system = np.zeros((3, 3))  # the last row is one, which the labels' noise multiplies
    system[:2, :2] = np.diag(-2 * eta * gamma) + noise * np.outer(gamma, weight * gamma)
    system[:2, 2] = noise * gamma * delta
    first = np.append(np.full(2, (start.semantic - 1) ** 2 + start.noise**2), 1.0)
    for t in range(3):
        time, here = float(ds.time[t]), ds.isel(time=t)
        along = 1 + (start.semantic - 1) * np.exp(-eta * gamma * time)
        square = (expm(system * time) @ first)[:2]
        expected = {"theta": weight @ (gamma * along), "q": weight @ (gamma * (square + 2 * along - 1))}
        expected |= {
            "test_error": weight @ (gamma * square),
            "population_risk": (weight @ (gamma * square) + delta) / 2,
        }
        for name, value in expected.items():
            assert float(here[name].squeeze()) == pytest.approx(value, rel=2e-5), name


def test_exact_symmetries_stay_exact_under_sampled_nodes():
    """Along the teacher alone m is zero at all times, and theta along the encodings."""
    semantic, positional = (
        ap.sgd_flow(PAPER.with_fields(few(64)), f"{name}=0.4,noise=0.3", 1.0, 30.0, records=3)
        for name in ("semantic", "positional")
    )
    assert not semantic.m.any()
    assert float(np.abs(semantic.theta).min()) > 0.05
    assert not positional.theta.any()
    assert (positional.m[:, 0] == -positional.m[:, 1]).all()


def test_stated_errors_of_sampled_flows_are_their_scatter_about_a_tensor_rule():
    exact = ap.sgd_flow(PAPER.with_fields(rule(12)), START, 1.5, 15.0, records=4).isel(time=slice(1, None))
    several = [
        ap.sgd_flow(PAPER.with_fields(few(64) | {"integration.seed": seed}), START, 1.5, 15.0, records=4)
        for seed in range(5)
    ]
    for name in ("q", "m", "theta", "test_error"):
        found = np.stack([ds[name].to_numpy()[1:] for ds in several])
        stated = np.sqrt(np.mean([ds[f"{name}_stderr"].to_numpy()[1:] ** 2 for ds in several], axis=0))
        apart = np.sqrt(((found - exact[name].to_numpy()) ** 2).mean(axis=0))
        assert (apart < 2.2 * stated).all(), name
        assert np.median(apart / stated) > 0.4, name
    assert float(np.abs(several[0].q_stderr[0]).max()) < 1e-12  # all start alike


@pytest.mark.parametrize("largest", [2**18, 2**12])
@pytest.mark.parametrize(
    ("problem", "order", "error", "expected"),
    [
        (PAPER, 12, 0.9e-3, None),
        (PAPER, 12, 2e-3, ("gauss-hermite", 16)),  # 0.002^1.155
        (PAPER, 12, 4e-3, ("sobol", 256)),
        (model("square"), 12, 0.02, ("gauss-hermite", 16)),  # 0.02^2 under order 48
        (model("square"), 12, 0.05, ("sobol", 256)),
    ],
)
def test_tensor_rules_are_left_for_points_where_they_do_not_converge(problem, order, error, expected, largest):
    """By errors of a pole beside the real axis, which are about ``exp(-c sqrt(n))``; never back."""
    rules = system_of(problem).refinement(largest)
    finer = next_rule(rules, rules.gauss_hermite(order), error, smooth=True)
    assert (None if finer is None else (finer.name, finer.order)) == expected
    last = rules.sobol(256)
    while (finer := next_rule(rules, last, 0.1, smooth=True)) is not None:
        assert finer.randomised
        assert finer.order > last.order
        last = finer
    assert last.size == largest


def grown(start: str, order: str, until: float = 20.0) -> float:
    """Rate at which a small start grows."""
    ds = ap.sgd_flow(PAPER.with_fields(rule(8)), start, 0.0, until, records=3)
    sizes = np.abs(ds[order].isel(token=0).to_numpy().ravel())
    return 2 * math.log(sizes[2] / sizes[1]) / until


def test_stationary_points_of_the_paper_are_two_minima_a_saddle_and_zero():
    ds = ap.stationary(PAPER.with_fields(rule(8)), starts=6)
    assert ds.unstable_directions.to_numpy().tolist() == [0, 0, 1, 2]
    assert (np.diff(ds.population_risk) > 0).all()
    at_zero = ds.isel(solution=3)
    assert float(at_zero.weight_norm) < 1e-8
    for start, order, eigenvalue in (("positional=1e-5", "m", 0), ("semantic=1e-5", "theta", 1)):
        assert grown(start, order) == pytest.approx(float(at_zero.eigenvalue[eigenvalue]), rel=1e-4)
    end = ap.sgd_flow(PAPER.with_fields(rule(8)), "positional=0.3,noise=0.2", 0.0, 5000.0, records=2)
    assert (int(end.status), float(end.end) < 5000) == (FlowStatus.at_rest, True)
    positional = ds.isel(solution=int(np.abs(ds.m[:, 0, 0].to_numpy()).argmax()))
    assert float(np.abs(end.m[-1, 0, 0])) == pytest.approx(float(np.abs(positional.m[0, 0])), rel=1e-3)


def test_rest_at_a_saddle_is_told_from_rest():
    """Noise alone dies at a point that a small part along the encodings leaves, at a rate that a run with one has."""
    dead = ap.sgd_flow(PAPER.with_fields(rule(8)), "noise=0.3", 0.0, 4000.0, records=2)
    assert int(dead.status) == FlowStatus.at_saddle
    assert float(dead.growth) == pytest.approx(grown("positional=1e-5", "m"), rel=1e-3)


def test_one_direction_that_grows_is_no_rest_where_another_shrinks():
    atoms = [{"weight": 0.5, "variances": one} for one in ([0.5, 0.02], [0.02, 0.2])]
    fields = {"tokens.sigma": None, "tokens.spectrum": atoms, "regularizer.strength": 0.01}
    ds = ap.sgd_flow(PAPER.with_fields(rule(8) | fields), "semantic=1e-8", 0.0, 50.0, records=2)
    (first, second), (grown_first, shrunk_second) = np.abs(ds.theta.to_numpy().reshape(2, 2))
    assert (grown_first > 1.1 * first, shrunk_second < 0.9 * second) == (True, True)


def test_passing_by_a_saddle_is_no_rest():
    """At this angle it is slower beside the saddle than what is rest elsewhere, and ends semantic all the same."""
    system = system_of(PAPER.with_fields(rule(6)))
    angle, settings = math.radians(63.5), FlowSettings(until=4000.0, tolerance=1e-6, at_rest=5e-3)
    start = Sizes(semantic=0.5 * math.sin(angle), positional=0.5 * math.cos(angle))
    dynamics, state = started(system, start, settings, system.refinement(2**18).first())
    found = integrated(dynamics, state)
    speeds = np.array([dynamics.speed(one) for one in found.states])
    assert speeds[np.flatnonzero(speeds < settings.at_rest)[0] :].max() > 2 * settings.at_rest
    assert found.status is FlowStatus.at_rest
    assert found.growth < 0
    assert dynamics.has_found(found.states[-1])[3]


@pytest.mark.parametrize(
    ("problem", "start", "rate"),
    [
        pytest.param(
            model("square", {"tokens.sigma": 1.0, **NO_DECAY, **rule(8)}), "noise=0.5", 2.5, id="eta gamma > 2"
        ),
        pytest.param(PAPER.with_fields(rule(5)), START, 1e7, id="a huge rate, few nodes"),
        pytest.param(PAPER.with_fields(few(16)), START, 1e7, id="a huge rate, few points"),
    ],
)
def test_rates_that_are_too_large_diverge(problem, start, rate):
    """Also where the noise carries the weights to where no node has a gradient: that is no rest."""
    ds = ap.sgd_flow(problem, start, rate, 200.0, records=3)
    assert int(ds.status) == FlowStatus.diverged
    assert np.isnan(ds.q[-1]).all()
    assert np.isfinite(ds.q[0]).all()


@pytest.mark.long
def test_the_boundary_of_the_basins_separates_trajectories(monkeypatch):
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 2)
    problem = PAPER.with_fields(rule(8))
    ds = ap.basins(problem, 0.3, 0.5, [56.0, 68.0])
    assert ds.basin.to_numpy().ravel().tolist() == [Basin.positional, Basin.semantic]
    boundary, error = ds.boundary.item(), ds.boundary_stderr.item()
    assert 1.5 <= error < 2.5  # half of 12/4, and what the finer of two rules changes
    for sign, order in ((-1, "m"), (1, "theta")):
        angle = math.radians(boundary + sign * error)
        start = Sizes(semantic=0.5 * math.sin(angle), positional=0.5 * math.cos(angle))
        end = ap.sgd_flow(problem, start, 0.0, 3000.0, records=2).isel(time=-1)
        assert max(("m", "theta"), key=lambda name: float(np.abs(end[name]).max())) == order


def sides(low: float, high: float) -> Callable[[float], Basin]:
    return lambda angle: Basin.positional if angle < low else Basin.semantic if angle > high else Basin.mixed


def test_replicates_of_a_linear_way_are_integrated_exactly():
    """Rates ``-r x + c_s``, numbers ``B x + e_s``: both are apart by what the constants move, not more or less."""
    random, rates = np.random.default_rng(3), np.array([0.7, 1.9])
    c, e, b = 1 + 0.02 * random.normal(size=(4, 2)), 0.01 * random.normal(size=(4, 2)), random.normal(size=(2, 2))
    toy: Any = SimpleNamespace(
        rows=SimpleNamespace(points=2, columns=1),
        rate=lambda x: c.mean(axis=0) - rates * x,
        numbers=lambda x: b @ x + e.mean(axis=0),
        of_replicates=lambda x: (c - rates * x, b @ x + e),
        sizes=np.ones_like,
        clock=lambda x: 1.0,
    )
    knots, times = np.linspace(0, 3, 41), np.array([0.4, 1.3, 2.9])
    decays = (1 - np.exp(-np.multiply.outer(times, rates))) / rates
    known = KnownWay(lambda t: c.mean(axis=0) * (1 - np.exp(-np.multiply.outer(t, rates))) / rates, toy, toy, knots)
    way = Moved(decays * c.mean(axis=0), np.zeros((3, 2)), known, np.arange(0, 41, 2), known.values[::2])
    found = of_replicates(way, times) or pytest.fail("one is too far")
    assert found[0] == pytest.approx(c[:, None] * decays, abs=1e-5)
    c, e = (x - x.mean(axis=0) for x in (c, e))
    assert found[1] == pytest.approx(c[:, None] * decays @ b.T + e[:, None], abs=1e-5)


def test_a_plateau_ends_at_half_of_the_end_between_two_records():
    assert _half_time(np.array([0.0, 1.0, 3.0, 9.0]), np.array([0.1, 0.2, 1.0, 1.2])) == pytest.approx(2.0, rel=1e-12)
    assert _half_time(np.array([0.0, 2.0, 4.0]), np.array([0.1, 0.3, 0.8])) == pytest.approx(2.4, rel=1e-12)


def boundary_of(monkeypatch: pytest.MonkeyPatch, ends: Sequence[Callable[[float], Basin]], **fields: Any) -> Any:
    """A plane whose starts end by their angle in degrees, by one function for each rule in the order they come."""
    several, names = iter(ends), {}

    def arrival(dynamics: Any, state: Any) -> Arrival:
        size = dynamics.channel.rule.size
        names[size] = names.get(size) or next(several)
        overlaps = dynamics.rows.overlaps(state)[0]
        angle = math.degrees(math.atan2(np.abs(overlaps.theta).max() / 0.25, np.abs(overlaps.m).max()))
        return Arrival(0.0, 0.0, 0.0, 0.0, names[size](angle), FlowStatus.at_rest)

    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.arrival_from", arrival)
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 9)
    ds = ap.basins(PAPER.with_fields(fields or rule(8)), 0.3, 0.5, [10.0, 30.0, 70.0])
    return ds.boundary.item(), ds.boundary_stderr.item()


HALF = 40 / 2**10


def test_error_of_the_boundary_holds_what_the_rule_changes(monkeypatch):
    """With little left of bisection, the boundary is the finer rule's, its error the larger distance from two."""
    found, error = boundary_of(monkeypatch, [sides(at, at) for at in (40.0, 40.6, 40.3)])
    assert found == pytest.approx(40.6, abs=1.01 * HALF)
    assert error == pytest.approx(0.6, abs=3 * HALF)


def test_the_boundary_under_a_low_order_is_held_against_two_gauges(monkeypatch):
    """One order below it is nearly the same by chance; two below it is 4 degrees off, of which a quarter counts."""
    ends = [sides(at, at) for at in (40.0, 40.1, 44.1)]
    found, error = boundary_of(monkeypatch, ends, **{"student.tied": False})
    assert found == pytest.approx(40.1, abs=1.01 * HALF)
    assert error == pytest.approx(1.0, abs=3 * HALF)


def test_starts_at_rest_beside_the_saddle_leave_a_boundary(monkeypatch):
    """Under the finer rule starts within a degree of the truth are caught: the interval reaches over them all."""
    found, error = boundary_of(monkeypatch, [sides(40.0, 40.0), sides(39.7, 41.2), sides(40.0, 40.0)])
    assert found - error < 39.7
    assert found + error > 41.2
    assert error < 3.0  # half of what is not known is 0.75, and steps double
