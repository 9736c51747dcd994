"""Configurations of clusters that symmetries make of each other: one is computed, and no number changes."""

from typing import Any

import numpy as np
import pytest

from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.rules import gauss_hermite
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.replicon import slope_sums
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.symmetries import site_permutations
from attnphase.state_evolution.system import System
from attnphase.state_evolution.teacher_slopes import teacher_slopes

LOCATION = "(c @ k[:, 0]{noise} - softmax(0.8*h[:, 0]) @ h[:, 0])**2/2 + sum(c)*(sum(h) + more*h[1, 0])**2/20"


def located(length: int, law: dict[str, Any], loss: str = LOCATION, more: float = 0.0, **sections: Any) -> Problem:
    """One of some tokens is shifted along the teacher, and its field is the label."""
    noisy = "noise" in sections
    clusters = [{"sigma": 0.9, "mean": [0.3]}, {"sigma": 1.1, "mean": [1.4]}]
    tokens = {"kind": "mixture", "length": length, "clusters": clusters, "mean_teacher": [[0.8]]}
    return Problem.from_dict(
        {
            "tokens": tokens | {"law": law},
            "loss": {
                "kind": "expression",
                "expression": loss.format(noise=" + noise[0, 0]" if noisy else ""),
                "parameters": {"more": more},
            },
            "teacher": {"noise": sections.pop("noise", 0.0)},
            "regularizer": {"strength": 0.2},
            "positions": {"kind": "none"},
        }
        | sections
    )


ONE = {"kind": "single-location"}
SOMETIMES = ONE | {"probability": 0.6}
UNEQUAL = ONE | {"weights": [0.5, 0.3, 0.2]}


def point_of(problem: Problem) -> Overlaps:
    """The same for all tokens."""
    q, V, m, theta = [0.7, 1.1], [0.3, 0.4], [0.3, 1.2], [0.5, 0.7]  # V so small that no sample has two minima
    return Overlaps(*(np.tile(one, problem.tokens.length).reshape(-1, 1, 1) for one in (q, V, m, theta)))


def maps_of(problem: Problem, order: int = 4) -> tuple[StateEvolution, StateEvolution]:
    """With one configuration of those that are alike, and with all."""
    system, point = System.of(problem), point_of(problem)
    length, kernels = problem.tokens.length, system.kernels
    rule = gauss_hermite(length * (1 + kernels.label_normals), length, False, order)
    sectors = system.sector_of(point), Sector.of(point, system.symmetries[:1], system.units)
    found = tuple(StateEvolution(Channel(system, rule), 1.7, sector) for sector in sectors)
    for map_ in found:
        assert map_(map_.pack(point)) is not None
    return found[0], found[1]


@pytest.mark.parametrize(
    ("problem", "counts"),
    [
        (located(3, ONE), (1, 3)),
        (located(3, SOMETIMES), (2, 4)),
        (located(3, UNEQUAL), (3, 3)),
        (located(3, ONE, more=1.0), (2, 3)),
    ],
    ids=["all alike", "one or none", "other weights", "another loss"],
)
def test_conjugates_are_those_of_all_configurations(problem: Problem, counts: tuple[int, int]):
    """By tensor rules, which symmetries leave as they are: to rounding."""
    conjugates_are_those_of_all(problem, counts, 4)


@pytest.mark.parametrize(
    ("loss", "counts"),
    [(LOCATION, (1, 2)), (LOCATION.replace("{noise}", "{noise}*c[0] + noise[0, 1]*c[1]"), (2, 2))],
    ids=["noise that stays", "noise of no order"],
)
def test_noise_is_exchanged_with_the_tokens_or_it_stays(loss: str, counts: tuple[int, int], uncompiled: None):
    """By two points a direction."""
    conjugates_are_those_of_all(located(2, ONE, loss, noise=0.4), counts, 2)


def conjugates_are_those_of_all(problem: Problem, counts: tuple[int, int], order: int) -> None:
    few, every = maps_of(problem, order)
    assert tuple(len(one.channel.probabilities) for one in (few, every)) == counts
    assert few.channel.probabilities.sum() == pytest.approx(1, abs=1e-15)
    assert few.last is not None
    assert every.last is not None
    found, expected = few.last.conjugates, few.sector.symmetrized(every.last.conjugates)
    for name, value in expected.by_name.items():
        np.testing.assert_allclose(found.by_name[name], value, rtol=1e-9, atol=1e-11, err_msg=name)
        assert np.abs(value).max() > 1e-3
    point = point_of(problem)
    for name in ("envelope", "loss_at_prox"):
        np.testing.assert_allclose(getattr(few.last, name), getattr(every.last, name), rtol=1e-10)
    losses = [one.channel.loss_at_omega(point) for one in (few, every)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-10)


@pytest.mark.parametrize("law", [ONE, SOMETIMES])
def test_derivatives_are_those_of_all_configurations(law: dict[str, Any]):
    """Of the replicon and of both sides of Stein's lemma."""
    problem = located(3, law)
    few, every = maps_of(problem)
    point, sides = point_of(problem), []
    for map_ in (few, every):
        channel, minima = map_.all_nodes(map_.pack(point))
        of_teacher = teacher_slopes(channel, point, minima)
        assert of_teacher is not None
        squares, answers = slope_sums(channel, point, minima)
        sides.append((squares, answers.swapaxes(0, 1), of_teacher[0]))
    for mine, all_of in zip(*sides, strict=True):
        np.testing.assert_allclose(mine, all_of, rtol=1e-7, atol=1e-9 * np.abs(all_of).max())
    assert few.last is not None
    np.testing.assert_allclose(sides[0][2] * 1.7, few.last.conjugates.theta_hat, rtol=0.05, atol=1e-9)


def test_copies_are_those_of_all_configurations():
    """By scrambled points, within their scatter."""
    problem = located(3, SOMETIMES)
    point = point_of(problem)
    few, _ = maps_of(problem)
    assert few.last is not None
    hats: Conjugates = few.last.conjugates.mean()
    images = [
        Copies.of(system, 1.7, point, hats, 256).images(0.3 * point.q) for system in (few.channel.system, few.system)
    ]
    errors = [one.std(axis=1, ddof=1) / 4 for one in images]
    apart = images[0].mean(axis=1) - images[1].mean(axis=1)
    assert (np.abs(apart) <= 4 * np.hypot(*errors)).all()
    assert (errors[0] < 0.05 * images[0].mean(axis=1)).all()


# --- which tokens are alike -------------------------------------------------------------------------------------------


def orders_of(problem: Problem) -> set[tuple[int, ...]]:
    spectrum = Spectrum.of(problem)
    return set(site_permutations(problem, spectrum, SampleLaw.of(problem, spectrum)))


def rotated(*classes: list[int]) -> tuple[int, ...]:
    """The order of two sites a token that takes every token's place from the next one of its class."""
    places = {token: others[(i + 1) % len(others)] for others in classes for i, token in enumerate(others)}
    return tuple(2 * places[token] + cluster for token in sorted(places) for cluster in (0, 1))


def test_many_tokens_are_rotated_among_those_that_are_alike():
    """Beyond five tokens, of which all orders are tried."""
    alike = orders_of(located(6, ONE))
    assert len(alike) == 6
    assert rotated(list(range(6))) in alike
    found = orders_of(located(6, ONE | {"weights": [0.1, 0.2, 0.2, 0.1, 0.3, 0.1]}))
    assert all(order[8:10] == (8, 9) for order in found)
    assert len(found) == 3 * 2
    assert rotated([0, 3, 5], [1, 2], [4]) in found
    chain = {"kind": "markov", "transition": [[0.8, 0.2], [0.3, 0.7]], "weights": [0.5, 0.5]}
    assert orders_of(located(6, chain)) == {tuple(range(12))}


@pytest.mark.parametrize(
    ("law", "count"),
    [
        (ONE, 1),
        (SOMETIMES, 2),
        ({"kind": "single-location", "weights": [0.1] * 4 + [0.15] * 4}, 2),
        ({"kind": "independent", "weights": [0.7, 0.3]}, 36),  # necklaces of eight beads in two colours
    ],
)
def test_how_many_configurations_of_eight_tokens_are_computed(law: dict[str, Any], count: int, uncompiled: None):
    problem = located(8, law)
    system, point = System.of(problem), point_of(problem)
    found = merged(system, system.sector_of(point).group)
    assert len(found.sample_law.probabilities) == count
    assert found.sample_law.probabilities.sum() == pytest.approx(1, abs=1e-14)
    assert found.whole is system


# --- solved points ----------------------------------------------------------------------------------------------------


def test_a_solve_is_that_of_tokens_that_are_nearly_alike():
    """Probabilities that differ by 1e-9 leave no symmetry, and the numbers where they are."""
    third = 1 / 3
    nearly = ONE | {"weights": [third + 2e-9, third - 1e-9, third - 1e-9]}
    fields = {"integration.standard_error": 0.01}
    points = [
        solve_point(
            located(3, law, metrics={"first": "c[0]", "h": "h[1, 0]"}).with_fields(fields),
            3.0,
            "semantic",
            settings=SolverSettings(threads=1),
        )
        for law in (ONE, nearly)
    ]
    assert all(point.status is Status.converged for point in points)
    for name in ("q", "V", "theta", "m", "training_loss", "test_error", "replicon", "overlap_gap", "metric_h"):
        (mine, its), (error, other) = (
            tuple(np.asarray(getattr(point, kind)[name]) for point in points) for kind in ("values", "errors")
        )
        assert (np.abs(mine - its) <= 4 * np.hypot(error, other) + 1e-9).all(), name
        assert np.all(error < 0.1 * np.abs(mine).max() + 1e-3), name
    assert points[0].values["metric_first"] == pytest.approx(third, abs=1e-12)
    for name in ("violation_V_hat", "violation_theta_hat", "violation_alpha", "violation_ridge"):
        assert abs(points[0].values[name]) <= 4 * points[0].errors[name], name
