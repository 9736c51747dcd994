"""Tokens, clusters, units and classes that may be exchanged: those alone that nothing in the problem tells apart.

Not public: symmetries of `System`, `site_permutations`, `merged`, `Sector`, `Frame` and a map.  One that is missed
shows in the time of a solve alone, and a false one of trained weights in samples that are not solved by chance.
"""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from models import model

import attnphase as ap
from attnphase.checks.alignment import Frame
from attnphase.integration.rules import gauss_hermite
from attnphase.state_evolution.assignments import informed_starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.metrics import metric_means
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.replicon import slope_sums
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.sector import Sector, images
from attnphase.state_evolution.symmetries import site_permutations
from attnphase.state_evolution.system import System
from attnphase.state_evolution.teacher_slopes import teacher_slopes

TRIPLE: dict[str, Any] = {"tokens.length": 3, "tokens.sigma": 0.6}
HALVES: list[Any] = [{"sigma": 0.5}, {"sigma": 0.5}]
MIXTURE: dict[str, Any] = {
    "tokens.kind": "mixture",
    "tokens.clusters": [{"sigma": 0.5, "mean": [0.7]}, {"sigma": 0.5, "mean": [-0.7]}],
    "positions.kind": "none",
}
ALL = {(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)}
SKEWED = [{"weight": 0.4, "variances": [0.1, 0.5, 0.5]}, {"weight": 0.6, "variances": [0.5, 0.5, 0.1]}]
SIX: dict[str, Any] = {"tokens.length": 6, "positions.kind": "none"}
ORDERS: dict[str, tuple[dict[str, Any], set[tuple[int, ...]] | int]] = {
    "the paper": ({}, {(0, 1), (1, 0)}),
    "one variance": (TRIPLE | {"tokens.sigma": [0.6, 0.45, 0.6]}, {(0, 1, 2), (2, 1, 0)}),
    "mixing": (
        TRIPLE | {"teacher.mixing": [[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8]]},
        {(0, 1, 2), (1, 0, 2)},
    ),
    "a spectrum": ({"tokens.length": 3, "tokens.spectrum": SKEWED}, {(0, 1, 2)}),
    "opposite means, exchanged together": (MIXTURE, ALL),
    "unequal means": (MIXTURE | {"tokens.clusters[1].mean[0]": -0.4}, {(0, 1, 2, 3), (2, 3, 0, 1)}),
    "unequal clusters of equal tokens": (
        MIXTURE | {"tokens.clusters": HALVES, "tokens.law": {"weights": [0.3, 0.7]}},
        {(0, 1, 2, 3), (2, 3, 0, 1)},
    ),
    "correlated clusters": (
        MIXTURE | {"tokens.clusters": HALVES, "tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.1, 0.4]]}},
        ALL,
    ),
    "an asymmetric law": (
        MIXTURE | {"tokens.clusters": HALVES, "tokens.law": {"kind": "table", "table": [[0.4, 0.1], [0.2, 0.3]]}},
        {(0, 1, 2, 3)},
    ),
    "six in classes": (
        SIX | {"tokens.sigma": [0.3, 0.4, 0.4, 0.3, 0.7, 0.3], "teacher.mixing": np.full((6, 6), 1 / 6)},
        6,
    ),
    "six in a chain": (
        SIX
        | MIXTURE
        | {"tokens.law": {"kind": "markov", "transition": [[0.8, 0.2], [0.3, 0.7]], "weights": [0.5, 0.5]}},
        {tuple(range(12))},
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_what_tells_tokens_and_clusters_apart(name: str):
    fields, expected = ORDERS[name]
    kind = {"tokens.kind": "mixture", "tokens.clusters": MIXTURE["tokens.clusters"]} if "tokens.kind" in fields else {}
    problem = ap.Problem().with_fields(kind).with_fields(fields)
    spectrum = ap.Spectrum.of(problem)
    found = set(site_permutations(problem, spectrum, SampleLaw.of(problem, spectrum)))
    assert (len(found) if isinstance(expected, int) else found) == expected
    if name == "six in classes":
        assert all(order[4] == 4 for order in found)


ATOMS = {"teacher.prior": "atoms", "teacher.prior_values": [-0.5, 2.0], "teacher.prior_probabilities": [0.8, 0.2]}
REFLECTED: dict[str, tuple[ap.Problem, bool]] = {
    "means of clusters": (model("paper", MIXTURE), True),
    "a mean along the teacher": (model("paper", MIXTURE | {"tokens.mean_teacher": [[0.4]]}), False),
    "signs": (model("square", {"teacher.prior": "rademacher"}), True),
    "sparse entries": (model("square", {"teacher.prior": "gauss-bernoulli", "teacher.prior_density": 0.23}), True),
    "skewed entries": (model("square", ATOMS), False),
}


@pytest.mark.parametrize("name", REFLECTED)
def test_a_teacher_with_a_mean_or_a_skewed_law_is_not_reflected(name: str):
    problem, reflected = REFLECTED[name]
    assert {float(B.item()) for _, _, B, _ in System.of(problem).symmetries} == ({1.0, -1.0} if reflected else {1.0})
    if name == "a mean along the teacher":
        law = SampleLaw.of(problem, ap.Spectrum.of(problem))
        assert law.unchanged(range(4), np.eye(1))
        assert not law.unchanged(range(4), -np.eye(1))


LOCATION = "(c @ k[:, 0]{noise} - softmax(0.8*h[:, 0]) @ h[:, 0])**2/2 + sum(c)*(sum(h) + more*h[1, 0])**2/20"


def located(
    length: int, law: dict[str, Any], loss: str = LOCATION, more: float = 0.0, noise: float = 0.0
) -> ap.Problem:
    """One of some tokens is shifted along the teacher, and its field is the label."""
    clusters = [{"sigma": 0.9, "mean": [0.3]}, {"sigma": 1.1, "mean": [1.4]}]
    text = loss.format(noise=" + noise[0, 0]" if noise else "")
    return ap.Problem(
        tokens={"kind": "mixture", "length": length, "clusters": clusters, "mean_teacher": [[0.8]], "law": law},
        loss={"kind": "expression", "expression": text, "parameters": {"more": more}},
        teacher={"noise": noise},
        regularizer={"strength": 0.2},
        positions={"kind": "none"},
    )


ONE = {"kind": "single-location"}
SOMETIMES = ONE | {"probability": 0.6}


def point_of(length: int) -> Overlaps:
    """The same for all tokens."""
    numbers = ([0.7, 1.1], [0.3, 0.4], [0.3, 1.2], [0.5, 0.7])  # V so small that no sample has two minima
    return Overlaps(*(np.tile(one, length).reshape(-1, 1, 1) for one in numbers))


def test_configurations_that_stand_for_others_change_no_number():
    """Conjugates, losses, and both sides of Stein's lemma, by a tensor rule, which symmetries leave as it is."""
    problem, point, found = located(2, SOMETIMES), point_of(2), []
    system = System.of(problem.with_fields({"metrics.first": "c[0]"}))
    for sector in (system.sector_of(point), Sector.of(point, system.symmetries[:1], system.units)):
        map_ = StateEvolution(
            Channel(system, gauss_hermite(2 * (1 + system.kernels.label_normals), 2, False, 3)), 1.7, sector
        )
        assert map_(map_.pack(point)) is not None
        assert map_.last is not None
        channel, minima = map_.all_nodes(map_.pack(point))
        of_teacher = teacher_slopes(channel, point, minima)
        assert of_teacher is not None
        squares, answers = slope_sums(channel, point, minima)
        first = metric_means(system.problem, map_.system.sample_law, point, 256)[:, 0].mean()
        losses = map_.last.envelope, map_.last.loss_at_prox, map_.channel.loss_at_omega(point), first
        found.append((map_.last.conjugates, losses, squares, answers.swapaxes(0, 1), of_teacher[0]))
    (mine, *few), (all_of, *every) = found
    expected = system.sector_of(point).symmetrized(all_of)
    for name, value in expected.by_name.items():
        np.testing.assert_allclose(mine.by_name[name], value, rtol=1e-9, atol=1e-11, err_msg=name)
        assert np.abs(value).max() > 1e-3
    for one, other in zip(few, every, strict=True):
        for value, wanted in zip(one, other, strict=True):
            np.testing.assert_allclose(value, wanted, rtol=1e-7, atol=1e-9 * np.abs(wanted).max())
    assert few[0][3] == pytest.approx(0.3, rel=1e-12)


def test_configurations_that_stand_for_others_give_their_derivatives_by_the_teacher():
    """Of one column, with two of the student's."""
    fields = {"tokens.clusters": [[{"sigma": 0.45}, {"sigma": 0.6}]] * 2, "tokens.mean_teacher": None}
    system, found = System.of(model("untied", MIXTURE | fields | {"regularizer.strength": 2.0})), list[Any]()
    numbers = [[0.7, 0.3], [0.3, 0.8]], [[0.3, 0.05], [0.05, 0.25]], np.zeros((2, 1)), [[0.2], [0.15]]
    point = Overlaps(*(np.tile(one, (4, 1, 1)) for one in numbers))
    for sector in (system.sector_of(point), Sector.of(point, system.symmetries[:1], system.units)):
        map_ = StateEvolution(Channel(system, gauss_hermite(6, 2, False, 3)), 0.7, sector)
        map_(map_.pack(point))
        channel, minima = map_.all_nodes(map_.pack(point))
        found.append(teacher_slopes(channel, point, minima))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-7)


COUNTS: dict[str, tuple[ap.Problem, int]] = {
    "one of six": (located(6, ONE), 1),
    "one or none of six": (located(6, SOMETIMES), 2),
    "two classes of six": (located(6, ONE | {"weights": [0.2] * 3 + [0.4 / 3] * 3}), 2),
    "told apart by the loss": (located(2, ONE, more=1.0), 2),
    "noise that stays": (located(2, ONE, noise=0.4), 1),
    "noise of no order": (
        located(2, ONE, LOCATION.replace("{noise}", "{noise}*c[0] + noise[0, 1]*c[1]"), noise=0.4),
        2,
    ),
}


@pytest.mark.parametrize("name", COUNTS)
def test_how_many_configurations_stand_for_all(name: str):
    problem, count = COUNTS[name]
    system = System.of(problem)
    found = merged(system, system.sector_of(point_of(problem.tokens.length)).group).sample_law.probabilities
    assert len(found) == count
    assert found.sum() == pytest.approx(1, abs=1e-14)


def units(first: str = "0.3*a**2", second: str = "0.3*b**2") -> ap.Problem:
    text = "f = a*tanh(h[0, 0]) + b*tanh(h[0, 1])\n(2*tanh(k[0, 0]) - tanh(k[0, 0]/2) - f)**2/2"
    loss = {"kind": "expression", "expression": text, "parameters": {"a": 0.7, "b": 0.7}}
    return ap.Problem(
        tokens={"length": 1, "sigma": 1.2},
        student={"rank": 2},
        loss=loss | {"trained": {"a": first, "b": second}},
        regularizer={"strength": 0.4},
    )


def start_of(q: list[list[float]], theta: list[float], trained: list[float]) -> Overlaps:
    V = np.array([[[0.9, -0.2], [-0.2, 0.9]]])
    return Overlaps(np.array([q]), V, np.zeros((1, 2, 1)), np.reshape(theta, (1, 2, 1)), np.array(trained))


OPPOSITE = start_of([[0.8, -0.5], [-0.5, 0.8]], [0.6, -0.6], [0.7, -0.7])


def test_classes_change_places_and_not_signs():
    """Labels of three values are often equal by chance: six random fields do not tell their symmetries."""
    first = "(1 + sign(k[0, 0] - max(k[0, 1], k[0, 2])))/2"
    second = "(1 + sign(k[0, 1] - max(k[0, 0], k[0, 2])))/2"
    text = f"p = softmax(h[0])\na = {first}\nb = {second}\n-a*log(p[0]) - b*log(p[1]) - (1 - a - b)*log(p[2])"
    loss = {"kind": "expression", "expression": text}
    sections: Any = {
        "tokens": {"length": 1, "sigma": 0.9},
        "teacher": {"rank": 3},
        "student": {"rank": 3},
        "loss": loss,
    }
    found = System.of(ap.Problem(**sections)).symmetries
    assert len(found) == 6
    for _, A, B, _ in found:
        np.testing.assert_array_equal(A, np.abs(B))
        np.testing.assert_array_equal(B, np.abs(B))


def test_units_change_places_and_signs_with_their_weights():
    """The weight of a unit whose sign changes changes its sign, and both do where the teacher's field does."""
    found = System.of(units()).symmetries
    assert len(found) == 16
    for _, A, B, C in found:
        np.testing.assert_array_equal(C, A * B.item())
    # without equal costs units keep their places; with odd ones of one weight so does its sign
    assert [len(System.of(units(*costs)).symmetries) for costs in (("0.2*a**2",), ("0.3*a**2 + 0.1*a**3",))] == [8, 4]
    counts = [len(informed_starts(System.of(units(*costs)), "semantic")) for costs in ((), ("0.2*a**2",))]
    assert counts == [1, 4]  # which unit learns the teacher's field matters where their costs are unlike
    sector = Sector.of(OPPOSITE, found)
    slopes, curvatures = np.array([[1.0, 3.0]]), np.array([[[2.0, 0.5], [0.5, 4.0]]])
    first, second = sector.symmetrized_trained(slopes, curvatures)
    np.testing.assert_allclose(first, [[-1.0, 1.0]])
    np.testing.assert_allclose(second, [[[3.0, 0.5], [0.5, 3.0]]])


def test_runs_with_exchanged_units_are_brought_into_the_theorys_frame():
    problem, system = units(), System.of(units())
    theory = start_of([[1.0, 0.4], [0.4, 0.3]], [0.9, 0.2], [0.8, -0.3])

    def dataset(rows: Overlaps, *lead: str) -> xr.Dataset:
        dims = {"q": ("token", "a", "b"), "V": ("token", "a", "b"), "m": ("token", "a"), "theta": ("token", "a", "t")}
        values = {"q": rows.q, "V": rows.V, "m": rows.m[..., 0], "theta": rows.theta, "trained": rows.trained}
        return xr.Dataset({name: ((*lead, *dims.get(name, ("parameter",))), one) for name, one in values.items()})

    aligned = Frame.of(problem).aligned(dataset(theory), dataset(images(theory, system.symmetries), "seed"))
    for name, values in aligned.items():
        wanted = dataset(theory)[name].to_numpy()
        np.testing.assert_allclose(values, np.broadcast_to(wanted, values.shape), atol=1e-12, err_msg=name)
    assert len(aligned["trained"]) == 16
