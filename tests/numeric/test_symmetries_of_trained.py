"""Symmetries of losses: trained parameters that change signs and places with the columns, and labels of classes."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from attnphase.checks.alignment import Frame
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import lines
from attnphase.problem.problem import Problem
from attnphase.state_evolution.assignments import informed_starts
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sector import Sector, images
from attnphase.state_evolution.system import System

pytestmark = pytest.mark.usefixtures("uncompiled")


def units(first: str = "0.3*a**2", second: str = "0.3*b**2") -> Problem:
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.2},
            "positions": {"kind": "none"},
            "student": {"rank": 2},
            "loss": {
                "kind": "expression",
                "expression": "f = a*tanh(h[0, 0]) + b*tanh(h[0, 1])\n(2*tanh(k[0, 0]) - tanh(k[0, 0]/2) - f)**2/2",
                "parameters": {"a": 0.7, "b": 0.7},
                "trained": {"a": first, "b": second},
            },
            "regularizer": {"strength": 0.4},
        }
    )


def test_classes_change_places_and_not_signs():
    """Labels of three values are often equal by chance: six random fields do not tell their symmetries."""
    first = "(1 + sign(k[0, 0] - max(k[0, 1], k[0, 2])))/2"
    second = "(1 + sign(k[0, 1] - max(k[0, 0], k[0, 2])))/2"
    text = f"p = softmax(h[0])\na = {first}\nb = {second}\n-a*log(p[0]) - b*log(p[1]) - (1 - a - b)*log(p[2])"
    problem = Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 0.9},
            "positions": {"kind": "none"},
            "teacher": {"rank": 3},
            "student": {"rank": 3},
            "loss": {"kind": "expression", "expression": text},
        }
    )
    found = System.of(problem).symmetries
    assert len(found) == 6
    for _, A, B, _ in found:
        np.testing.assert_array_equal(A, np.abs(B))
        np.testing.assert_array_equal(B, np.abs(B))


def test_units_change_places_and_signs_with_their_weights():
    """The weight of a unit of which the sign changes changes its sign, both do where the teacher's field does."""
    found = System.of(units()).symmetries
    assert len(found) == 16
    for _, A, B, C in found:
        np.testing.assert_array_equal(C, A * B.item())
    # without equal costs units keep their places; with odd ones of one weight so does its sign
    assert [len(System.of(units(*costs)).symmetries) for costs in (("0.2*a**2",), ("0.3*a**2 + 0.1*a**3",))] == [8, 4]


def start_of(q: list[list[float]], theta: list[float], trained: list[float]) -> Overlaps:
    V = np.array([[[0.9, -0.2], [-0.2, 0.9]]])
    return Overlaps(np.array([q]), V, np.zeros((1, 2, 1)), np.reshape(theta, (1, 2, 1)), np.array(trained))


ALIKE = start_of([[0.8, 0.5], [0.5, 0.8]], [0.6, 0.6], [0.7, 0.7])
OPPOSITE = start_of([[0.8, -0.5], [-0.5, 0.8]], [0.6, -0.6], [0.7, -0.7])


@pytest.mark.parametrize("start", [ALIKE, OPPOSITE], ids=["alike", "opposite"])
def test_maps_of_exchanged_units_are_those_without_symmetries(start: Overlaps):
    """In the space of what an exchange leaves unchanged, where nodes stand for their images, and in that of all."""
    system = System.of(units())
    found = []
    for symmetries in (system.symmetries, system.symmetries[:1]):
        sector = Sector.of(start, symmetries, system.units)
        map_ = StateEvolution(Channel(system, lines(3, 2, LineOrders((20,), (6,)))), 3.0, sector)
        assert len(sector.group) == (4 if len(symmetries) > 1 else 1)
        image = map_(map_.pack(start))
        assert image is not None
        found.append(map_.unpack(image))
    np.testing.assert_allclose(*(abs(x) for x in found[0].trained), rtol=1e-12)
    for name in ("trained", "q", "V", "theta"):
        one, other = (getattr(x, name) for x in found)
        np.testing.assert_allclose(one, other, rtol=2e-3, atol=2e-3, err_msg=name)
        assert np.abs(one - getattr(start, name)).max() > 0.02, name


def test_slopes_of_weights_are_averaged_over_exchanges():
    sector = Sector.of(OPPOSITE, System.of(units()).symmetries)
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


def test_starts_are_told_apart_by_what_weights_cost():
    """Which unit learns the teacher's field matters if their read-outs have unlike costs."""
    counts = [len(informed_starts(System.of(units(*costs)), "semantic")) for costs in ((), ("0.2*a**2",))]
    assert counts == [1, 4]
