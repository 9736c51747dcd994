"""The Bayes-optimal limit where nearly all is known: closed forms of one token, and ends that no integral resolves."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from attnphase.integration.rules import sobol
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.theories.bayes_optimal.channel import Fields, Signs
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.lattices import FieldLaw, LabelPlane
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.one_sign import SignSums
from attnphase.theories.bayes_optimal.readout import SignError
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal

pytestmark = pytest.mark.filterwarnings("error")


def one_token(noise=0.0):
    fields = {"tokens": {"length": 1, "sigma": 0.7}, "loss": {"kind": "square"}, "teacher": {"noise": noise}}
    return Problem.from_dict(fields)


@pytest.mark.parametrize("noise", [0.0, 0.35])
@pytest.mark.parametrize(("q", "V", "center"), [(0.1, 0.4, 0.3), (0.6, 0.05, -0.4), (0.9, 1e-3, 0.0)])
def test_one_sign_summed_over_one_variable_against_its_draws(noise, q, V, center):
    """What is known narrower than what is not, and wider: covariance, gain and evidence, and two offsets alike."""
    normals = sobol(2, 0, False, 8192, 16, 3).nodes
    omega = center + np.sqrt(q) * normals[..., :1, None]
    k = omega + np.sqrt(V) * normals[..., 1:, None]
    drawn = Signs(noise).posterior(Fields(omega, k, np.full((1, 1, 1), V), np.zeros((16, 8192, 1))))
    law = FieldLaw(np.eye(1), np.array([center]), np.sqrt([q]), np.sqrt([V]))
    found, other = (SignSums(noise).means(law, 128, np.random.default_rng(seed)) for seed in (1, 2))
    assert found.gain == pytest.approx(other.gain, rel=1e-12)
    for ours, theirs in (
        (found.spread, drawn.spread), (found.gain, drawn.gain), (found.log_evidence, drawn.log_evidence),
    ):  # fmt: skip
        each = theirs.reshape(16, 8192).mean(axis=1)
        assert abs(each.mean() - np.squeeze(ours)) <= 4.5 * each.std(ddof=1) / 4 + 1e-12


def test_one_given_sign_is_what_is_drawn():
    """`given` takes the sign of the field with its noise: its mean of all nodes is that over both labels."""
    channel, V = Signs(0.2), np.full((1, 1, 1), 0.3)
    normals = sobol(3, 0, False, 8192, 16, 4).nodes
    omega = 0.2 + 0.7 * normals[..., :1, None]
    fields = Fields(omega, omega + np.sqrt(0.3) * normals[..., 1:2, None], V, normals[..., 2:])
    one, all_labels = channel.given(fields), channel.posterior(fields)
    for name in ("spread", "gain", "alignment", "log_evidence"):
        each = (getattr(one, name) - getattr(all_labels, name)).reshape(16, -1).mean(axis=1)
        assert abs(each.mean()) <= 4.5 * each.std(ddof=1) / 4, name


@pytest.mark.parametrize(("rho", "V", "mean"), [(0.8, 0.3, 0.0), (0.8, 0.3, -0.5), (0.4, 0.4, 0.5), (1.3, 1e-4, 0.9)])
def test_error_of_a_sign_against_the_integral(rho, V, mean):
    """``E Phi(-|omega| / sqrt(V))`` by a fine sum over what is known, with a mean of the fields and without."""
    case = np.zeros(1, int), 1.0, np.full((1, 1), mean)
    evolution: Any = SimpleNamespace(rho=np.full((1, 1, 1), rho), cases=[case], replicates=4)
    found = SignError().error(evolution, np.full((1, 1, 1), V))
    x = np.linspace(-9, 9, 2_000_001)
    weights = norm.pdf(x) * (x[1] - x[0])
    expected = weights @ norm.cdf(-np.abs(mean + np.sqrt(rho - V) * x) / np.sqrt(V))
    assert found == pytest.approx(np.full(4, expected), rel=2e-6)


@pytest.mark.parametrize("start", Start)
def test_a_sign_is_learned_as_one_over_the_number_of_samples(start):
    """The error of the Bayes-optimal perceptron times alpha tends to .4417, and nothing is ever known for certain."""
    products = []
    for alpha in (1e4, 1e6, 1e9):
        point = solve_bayes_optimal(model_of(one_token(), "sign"), alpha, start)
        assert (point.status, point.recovered) == (Status.converged, False)
        products.append(alpha * point.test_error)
    assert products == pytest.approx([0.4417] * 3, abs=5e-5)


@pytest.mark.parametrize("alpha", [30.0, 1e3, 1e4, 1e7])
def test_a_noisy_line_is_learned_as_it_is_by_hand(alpha):
    """``V = 1 / (1 / rho + alpha / (Delta + V))``, within the stated error, also where labels tell little of V."""
    model = model_of(one_token(0.13), "linear")
    rho = float(model.prior.rho[0, 0, 0])
    V = rho
    for _ in range(200):
        V = 1 / (1 / rho + alpha / (0.13 + V))
    point = solve_bayes_optimal(model, alpha, Start.uninformed)
    assert (point.status, point.recovered) == (Status.converged, False)
    assert point.V[0, 0, 0] == pytest.approx(V, abs=5 * point.errors["V"][0, 0, 0] + 1e-6 * V)
    assert point.V[0, 0, 0] == pytest.approx(V, rel=1e-3)


@pytest.mark.parametrize("V", [0.9e-4, 1e-4, 3e-7])
def test_what_labels_tell_little_of_a_field_is_linear_in_it(V):
    """The gain V^2 / (Delta + V) by coarse lattices too, also where those of the fields and of what is known agree."""
    plane = model_of(one_token(0.1), "k").channel.sums
    assert isinstance(plane, LabelPlane)
    law = FieldLaw(np.eye(1), np.zeros(1), np.sqrt([1 - V]), np.sqrt([V]))
    found = [plane.means(law, 2, np.random.default_rng([7, seed])).gain.item() for seed in range(4)]
    assert found == pytest.approx([V**2 / (0.1 + V)] * 4, rel=5e-3)


@pytest.mark.parametrize("start", Start)
def test_a_noisy_length_is_learned_nearly_as_the_field(start):
    """|k| tells less than k, and nearly as much where the sign is known: neither nothing nor all is known."""
    line, length = (solve_bayes_optimal(model_of(one_token(0.1), name), 1e3, start) for name in ("linear", "absolute"))
    assert (length.status, length.recovered) == (Status.converged, False)
    assert 1 < length.V[0, 0, 0] / line.V[0, 0, 0] < 1.05


def test_an_end_that_draws_do_not_resolve_is_none_of_the_model():
    """The sign as a formula, whose draws miss where it changes; as the channel of the name it has a fixed point."""
    point = solve_bayes_optimal(model_of(one_token(), "sign(k)"), 1e4, Start.uninformed)
    assert (point.status, point.recovered) == (Status.left_domain, False)


def test_nothing_known_is_no_end_where_the_first_map_learns():
    """A channel that loses what it has learned by few draws: its return to nothing is not believed."""
    model = model_of(one_token(), "1/(1 + exp(-y*k))")
    assert isinstance(model.channel, Labels)
    few = replace(model, channel=replace(model.channel, draws=16))
    point = solve_bayes_optimal(few, 1e6, Start.uninformed, max_nodes=2**10)
    assert (point.status, point.recovered) == (Status.left_domain, False)


def test_the_status_is_that_of_the_last_rule(monkeypatch):
    """A coarse rule that does not come to rest only leads to the others."""
    whole = solve_bayes_optimal(model_of(one_token(0.1), "linear"), 10.0, Start.uninformed)
    monkeypatch.setattr("attnphase.theories.bayes_optimal.solving.COARSE_MAPS", 2)
    point = solve_bayes_optimal(model_of(one_token(0.1), "linear"), 10.0, Start.uninformed)
    assert point.status is Status.converged
    assert point.V.item() == pytest.approx(whole.V.item(), rel=1e-8)


@pytest.mark.parametrize("alpha", [0.501, 0.503])
def test_what_is_recovered_has_converged(alpha):
    """Without noise the iteration runs to V = 0, below anything that is resolved, and that is the answer."""
    point = solve_bayes_optimal(model_of(Problem.paper(omega=0.3)), alpha, Start.uninformed)
    assert (point.status, point.recovered) == (Status.converged, True)


@pytest.mark.parametrize("start", Start)
def test_a_nearly_marginal_point_is_followed_to_its_end(start):
    """At alpha = 1 with little noise V^2 + V Delta = rho Delta: a residual of 1e-7 is 3 % away from there."""
    model, noise = model_of(one_token(1e-12), "k"), 1e-12  # a formula, whose posterior is drawn
    rho = float(model.prior.rho[0, 0, 0])
    point = solve_bayes_optimal(model, 1.0, start)
    exact = (np.sqrt(noise**2 + 4 * rho * noise) - noise) / 2
    closed = solve_bayes_optimal(model_of(one_token(1e-12), "linear"), 1.0, start)
    assert (closed.status, closed.V.item()) == (Status.converged, pytest.approx(exact, rel=1e-6))
    assert point.status is Status.converged
    assert point.V.item() == pytest.approx(exact, abs=4 * point.errors["V"].item())
    assert point.V.item() == pytest.approx(exact, rel=5e-3)
