"""Lines where tokens are in clusters or labels have noise: against scrambled points, closed forms and symmetries."""

from itertools import pairwise

import numpy as np
import pytest

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import lines, sobol
from attnphase.problem.problem import Problem
from attnphase.state_evolution import line_rules
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.directions import directions_of
from attnphase.state_evolution.lines import nodes_along
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicon import replicon
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System
from derivations.replica.limits import ridge_regression

CLUSTERS = [{"mean": [0.9], "sigma": 0.7}, {"mean": [-0.4], "sigma": 1.3}]
LIKE = [{"mean": [0.8], "sigma": 0.6}, {"mean": [-0.8], "sigma": 0.6}]
LOGISTIC = {"loss": {"kind": "logistic"}, "regularizer": {"strength": 0.05}}
NOISE = {"teacher.noise": 0.27}


def mixture(length, clusters=CLUSTERS, weights=(0.35, 0.65), products=None, **sections):
    tokens = {"length": length, "kind": "mixture", "clusters": clusters}
    tokens["law"] = {"kind": "independent", "weights": list(weights)}
    return Problem.from_dict({"tokens": tokens | ({"mean_teacher": products} if products else {})} | sections)


ONE = Problem.from_dict({"tokens": {"length": 1, "sigma": 1.1}} | LOGISTIC)
WRITTEN = Problem.from_dict(
    {"tokens": {"length": 1, "sigma": 1.1}, "loss": {"kind": "expression", "expression": "(h - k - noise)**2/2"}}
)
MODELS = {
    "noise in the field": (ONE.with_fields(NOISE), 4.0, ([11.0], [3.2], [0.0], [3.2])),
    "noise beside it": (WRITTEN.with_fields(NOISE), 1.6, ([1.6], [1.7], [0.0], [1.2])),
    "noise on attention": (
        Problem.paper(omega=0.1).with_fields({"teacher.noise": 0.011, "tokens.sigma": [0.5, 0.6]}),
        2.5,
        ([0.16, 0.2], [8.5, 9.5], [0.05, -0.03], [0.18, 0.2]),
    ),
    "one token of two clusters": (
        mixture(1, products=[[0.3]], **LOGISTIC).with_fields(NOISE),
        3.0,
        ([4.0, 13.8], [2.0, 6.8], [0.7, -0.3], [1.2, 4.0]),
    ),
    "two tokens of two clusters": (
        mixture(2, products=[[0.3]], teacher={"omega": 0.3}),
        1.5,
        ([0.26, 0.9], [1.5, 5.0], [0.2, -0.09], [0.35, 1.2]),
    ),
}
LATENT = {"noise on attention": (16, 10, 8, 8), "two tokens of two clusters": (36, 20)}


def at(name, latent=None, across=4):
    problem, alpha, values = MODELS[name]
    system = System.of(problem)
    sites, length = len(problem.sites), problem.tokens.length
    q, V, m, theta = (np.resize(np.array(x), sites).reshape(sites, 1, 1) for x in values)
    seen = max(one.shape[1] for one in system.noise_directions)
    latent = LATENT.get(name, (20,) * (length + seen)) if latent is None else (latent,) * (length + seen)
    return system, alpha, Overlaps(q, V, m, theta), LineOrders(latent, (across,) * (length - 1), defect=1e-7)


def map_of(system, alpha, overlaps, rule, sector=None):
    map_ = StateEvolution(Channel(system, rule), alpha, sector or system.sector_of(overlaps))
    map_.lift = True
    assert map_(map_.pack(overlaps)) is not None
    return map_


def by_lines(name, sector=None, **orders):
    system, alpha, overlaps, found = at(name, **orders)
    return map_of(system, alpha, overlaps, lines(*sizes(system), found), sector), overlaps


def sizes(system):
    kernels = system.kernels
    return kernels.length * (kernels.columns + kernels.label_fields), kernels.length * kernels.columns


def means_of(map_, overlaps):
    """Conjugates per replicate, and what else is measured, (S, everything)."""
    assert map_.last is not None
    hats = map_.last.conjugates
    every = [np.moveaxis(x, 1, 0) for x in (hats.q_hat, hats.V_hat, hats.m_hat, hats.theta_hat)]
    every += [map_.last.envelope, map_.last.loss_at_prox, map_.channel.loss_at_omega(overlaps)]
    return np.concatenate([x.reshape(len(map_.last.envelope), -1) for x in every], axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_means_are_those_of_scrambled_points(name):
    """Every conjugate, both energies and the test error within the scatter of 16 replicates."""
    mine, overlaps = by_lines(name)
    system, alpha = mine.system, mine.alpha
    points = map_of(system, alpha, overlaps, sobol(*sizes(system), system.reflects, 1024, 16, 3), mine.sector)
    found, others = means_of(mine, overlaps)[0], means_of(points, overlaps)
    error = others.std(axis=0, ddof=1) / 4
    assert (np.abs(found - others.mean(axis=0)) <= 4 * error + 2e-5 * np.abs(found)).all()
    assert (error <= 0.015 * np.abs(found).max()).all()
    assert (error[np.abs(found) > 0] < 0.02 * np.abs(found[np.abs(found) > 0])).mean() > 0.8


@pytest.mark.parametrize("problem", [WRITTEN, WRITTEN.with_fields({"loss.kind": "square", "loss.expression": None})])
def test_ridge_regression_with_noise(problem):
    """To the error that is stated, a thousand times smaller than that of scrambled points."""
    fields = {"integration.rule": "lines", "integration.standard_error": 1e-4, "regularizer.strength": 0.13}
    problem = problem.with_fields(NOISE | fields)
    point = solve_point(problem, 1.6, "semantic", settings=SolverSettings(threads=1))
    assert point.rule == "lines"
    values = {"alpha": 1.6, "lambda": 0.13, "gamma": 1.1**2, "Delta": 0.27}
    for name, expression in ridge_regression().items():
        exact = float(expression.subs({symbol: values[str(symbol)] for symbol in expression.free_symbols}))
        error = float(np.ravel(point.errors[name])[0])
        assert error < 2e-5 * exact
        assert np.ravel(point.values[name])[0] == pytest.approx(exact, abs=4 * error + 1e-7 * exact), name


SYMMETRIC = {
    "two tokens of two clusters": MODELS["two tokens of two clusters"],
    "like clusters": (  # -1 times one is the other
        mixture(2, LIKE, (0.5, 0.5), teacher={"omega": 0.3}),
        1.5,
        ([0.2], [9.0], [0.1, -0.1], [0.0]),
    ),
    "noise on attention": (
        MODELS["noise on attention"][0].with_fields({"tokens.sigma": 0.5}),
        2.5,
        ([0.16], [8.5], [0.0], [0.18]),
    ),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_values_are_those_of_nodes_without_symmetries(name, monkeypatch):
    """Nodes, and configurations, that symmetries make of others change no number."""
    monkeypatch.setitem(MODELS, name, SYMMETRIC[name])
    solved: list[int] = []

    def counted(system, variances, bundle, orders):
        solved[-1] += len(bundle.centers)
        return nodes_along(system, variances, bundle, orders)

    monkeypatch.setattr(line_rules, "nodes_along", counted)
    system, _, overlaps, _ = at(name)
    maps = []
    for sector in (None, Sector.of(overlaps, system.symmetries[:1], system.units)):
        solved.append(0)
        maps.append(by_lines(name, sector, latent=8, across=3)[0])
    assert solved[0] < 0.8 * solved[1]
    few, every = (means_of(one, overlaps)[0] for one in maps)
    np.testing.assert_allclose(few, every, rtol=1e-6, atol=1e-8 * np.abs(every).max())
    shares = [one.second_minimum_share(np.inf)[0] for one in maps]
    assert shares[0] == pytest.approx(shares[1], abs=5e-4)  # of the second minima that searches on the way met
    channel, minima = maps[0].all_nodes(maps[0].pack(overlaps))
    assert len(minima.steps) == channel.rule.size * len(channel.probabilities)


def test_every_configuration_has_its_own_nodes():
    """Of one number, each with the weight of the normal law, again and again; what fills up tells nothing."""
    map_, overlaps = by_lines("two tokens of two clusters", latent=12)
    map_(1.001 * map_.pack(overlaps))
    rule, minima = map_.channel.rule, map_.minima
    assert minima is not None
    assert len(rule.own) == 3  # of the four, two are made of each other
    for c, own in enumerate(rule.own):
        assert own.own == ()
        assert own.size == rule.size
        assert own.weights.sum() == pytest.approx(1, abs=1e-5)
        mean = np.einsum("n,nd,ne->de", own.weights, own.nodes[0], own.nodes[0])
        here = slice(c * rule.size, (c + 1) * rule.size)
        filled = own.weights == 0
        assert not minima.has_second(np.inf)[here][filled].any()
        assert (minima.steps[here][filled] == 0).all()
        assert np.isfinite(mean).all()
    assert any((own.weights == 0).any() for own in rule.own)
    assert not any(np.array_equal(one.nodes, other.nodes) for one, other in pairwise(rule.own))
    assert minima.unsolved == 0


def test_what_stability_and_onset_make_of_nodes_by_lines():
    """The replicon, and the growth of a small m or theta, are those over scrambled points."""
    mine, overlaps = by_lines("two tokens of two clusters")
    system = mine.system
    points = map_of(system, 1.5, overlaps, sobol(*sizes(system), system.reflects, 512, 16, 3), mine.sector)
    found = []
    for map_ in (mine, points):
        channel, minima = map_.all_nodes(map_.pack(overlaps))
        assert map_.last is not None
        found.append(replicon(channel, 1.5, overlaps, map_.last.conjugates.mean(), minima))
    assert found[0][0] == pytest.approx(found[1][0], abs=4 * found[1][1:].std(ddof=1) / 4)


def test_noise_that_no_student_sees():
    """Rows of softmax scores sum to one: of four entries of the noise two matter, and none that is as 1/D in a row."""
    system = at("noise on attention")[0]
    (seen,) = system.noise_directions
    assert seen.shape == (4, 2)
    np.testing.assert_allclose(seen.T @ seen, np.eye(2), atol=1e-12)
    blind = np.kron(np.eye(2), 1 / np.array([0.5, 0.6]) ** 2)
    np.testing.assert_allclose(blind @ seen, 0, atol=1e-6)
    assert at("noise beside it")[0].noise_directions[0].shape == (1, 1)
    assert at("noise in the field")[0].noise_directions[0].shape == (0, 0)


def test_labels_are_split_with_noise_and_without():
    """A cluster's teacher has a mean; the test error knows no noise."""
    system = at("one token of two clusters")[0]
    for c, (mean, sigma) in enumerate(((0.9, 0.7), (-0.4, 1.3))):
        expected = sorted(-0.3 * mean / np.sqrt(sigma**2 + noise) for noise in (0.0, 0.27))
        assert directions_of(system, c).breaks == pytest.approx(expected)
    assert directions_of(at("noise in the field")[0]).breaks == (0.0,)


def test_the_automatic_rule_takes_lines():
    """With noise and clusters too, but where noise has many directions, and where several tokens are in clusters."""
    for name in MODELS:
        system = at(name)[0]
        several = len(system.sample_law.probabilities) > 1 and system.kernels.length > 1
        expected = "auto" if several or name == "noise on attention" else "lines"
        assert system.refinement_of_solve(2**18).name == expected
