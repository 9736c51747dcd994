"""The benchmark of thresholds: which crossings it finds on curves that are known, and which verdicts it gives."""

import json
from math import isnan, nan

import numpy as np
import pytest
import xarray as xr

from attnphase.fixed_points.threshold import Outcome
from attnphase.state_evolution.branches import Identity
from benchmarks import crossings
from benchmarks.crossings import COUNT, KINDS, WHOLE, Crossing, Curves, crossing, drawn, judged, passes

LOCATED, ABSENT, UNSETTLED = Outcome.located, Outcome.outside_range, Outcome.unsettled
REFERENCE = Crossing(1.3, 3e-4, [])
BETWEEN = (0.9, 2.1)


class Known(Curves):
    """Curves in closed form: ``losses`` by branch, each with the range of α in which it exists."""

    def __init__(self, undecided=(0.0, 0.0), **losses):
        super().__init__(drawn()[3].problem)
        self.losses, self.undecided = losses, undecided

    def point(self, branch, alpha, error):
        loss, (low, high) = self.losses[branch]
        identity = Identity.on_branch if low < alpha < high else Identity.merged
        if self.undecided[0] < alpha < self.undecided[1]:
            identity = Identity.not_decided
        values = {"status": 0, "on_branch": int(identity), "training_loss": loss(alpha), "test_error": loss(alpha)}
        return xr.Dataset(
            values | {"training_loss_stderr": 1e-2 * error, "test_error_stderr": 1e-2 * error, "linear_test_error": 0.0}
        )


EVERYWHERE = (0.0, np.inf)


def cross(at, semantic=EVERYWHERE, positional=EVERYWHERE, **options):
    """What is found of two losses of which the semantic one grows less, equal at ``at``."""
    curves = Known(
        semantic=(lambda alpha: 0.1 * np.log(alpha / at), semantic),
        positional=(lambda alpha: 0.3 * np.log(alpha / at), positional),
        **options,
    )
    return crossing(curves, "alpha_c")


@pytest.mark.parametrize(
    ("semantic", "positional"),
    [
        (EVERYWHERE, EVERYWHERE),
        ((1.36, np.inf), EVERYWHERE),
        (EVERYWHERE, (0.0, 1.374)),
        # both exist only between two points of the grid
        ((1.36, np.inf), (0.0, 1.374)),
    ],
)
def test_a_crossing_is_found_up_to_the_ends_of_branches(semantic, positional):
    """Would catch a wrong sign, a root that is not closed in on, and gaps that are not divided."""
    found = cross(1.37, semantic, positional)
    assert abs(found.alpha - 1.37) <= found.error < 1e-4
    assert found.open == []


@pytest.mark.parametrize(
    ("semantic", "positional"), [((1.38, np.inf), EVERYWHERE), (EVERYWHERE, (0.0, 1.35)), ((2.0, 7.0), (0.0, 1.9))]
)
def test_curves_that_end_before_they_meet_do_not_cross(semantic, positional):
    """Would catch a crossing of a curve with what lies beyond its end."""
    found = cross(1.37, semantic, positional)
    assert isnan(found.alpha)
    assert found.open == []


def test_undecided_points_leave_an_interval_open():
    """Would catch a crossing located, or denied, by points of which nothing is known."""
    found = cross(1.37, undecided=(1.3, 1.45))
    assert isnan(found.alpha)
    ((low, high),) = found.open
    assert low < 1.37 < high < 1.4 * low


def test_undecided_points_far_from_a_crossing_leave_nothing_open():
    """Would catch every end of a branch taken for a crossing that may be."""
    assert cross(1.37, undecided=(0.5, 0.6)).open == []
    assert cross(1.37, positional=(0.0, 3.0), undecided=(2.9, 3.1)).open == []


def test_the_last_fall_counts():
    """Would catch a rise that counts, and an earlier fall that is forgotten."""
    curves = Known(semantic=(lambda alpha: np.sin(2 * np.pi * np.log(alpha)), EVERYWHERE))
    found = crossing(curves, "alpha_l")  # falls through zero at exp(-3/2) and three times more
    assert abs(found.alpha - np.exp(1.5)) <= found.error < 1e-3
    assert [low < x < high for (low, high), x in zip(found.open, np.exp([-1.5, -0.5, 0.5]), strict=True)] == [True] * 3


@pytest.mark.parametrize(
    ("alpha", "error", "outcome", "between", "verdict"),
    [
        (1.3012, 2e-4, LOCATED, BETWEEN, "right"),
        (1.3018, 2e-4, LOCATED, BETWEEN, "wrong"),
        (1.3018, 4e-4, LOCATED, BETWEEN, "right"),
        (nan, nan, ABSENT, BETWEEN, "wrong"),
        (nan, nan, Outcome.no_branch, BETWEEN, "wrong"),
        (nan, nan, UNSETTLED, BETWEEN, "missed"),
        (nan, nan, ABSENT, (1.4, 2.1), "right"),
        (1.7, 2e-4, LOCATED, (1.4, 2.1), "wrong"),
        (nan, nan, UNSETTLED, (1.4, 2.1), "flagged"),
        (nan, nan, ABSENT, (1.305, 2.1), "open"),
        (nan, nan, ABSENT, (0.9, 1.292), "open"),
    ],
)
def test_verdicts(alpha, error, outcome, between, verdict):
    """Would catch errors that are not combined, thresholds outside the range, and flags that hide a crossing."""
    assert judged(REFERENCE, between, alpha, error, outcome) == verdict


@pytest.mark.parametrize(
    ("opened", "between", "verdict"),
    [
        ((0.95, 1.0), BETWEEN, "wrong"),
        ((1.6, 1.7), BETWEEN, "open"),
        ((0.95, 1.0), (0.9, 1.2), "open"),
        ((0.95, 1.0), (1.05, 1.2), "right"),
    ],
)
def test_open_intervals_leave_verdicts_out_only_where_they_matter(opened, between, verdict):
    """Would catch ranges left out for what lies below the crossing that counts."""
    reference = Crossing(REFERENCE.alpha, REFERENCE.error, [opened])
    assert judged(reference, between, nan, nan, ABSENT) == verdict


def test_no_crossing_is_right_where_there_is_none():
    """Would catch a threshold that is located where no curves cross."""
    nowhere = Crossing(nan, nan, [])
    assert judged(nowhere, BETWEEN, nan, nan, ABSENT) == "right"
    assert judged(nowhere, BETWEEN, nan, nan, UNSETTLED) == "flagged"
    assert judged(nowhere, BETWEEN, 1.3, 1.0, LOCATED) == "wrong"


def test_what_passes():
    """Would catch flags that do not count, or that count alike among fewer problems."""
    right = ["right"] * (3 * COUNT - 5)
    assert passes([*right, *["flagged"] * 5])
    assert not passes([*right[:-1], *["flagged"] * 6])
    assert not passes([*right, "wrong"])
    assert not passes([*right, "missed"])
    assert passes([*right, "open"])
    assert not passes(["right", "right", "flagged"])


@pytest.mark.parametrize("at", [0.21, 1.3, 7.9, nan])
def test_ranges_hold_the_crossing_and_stay_within_the_first(at):
    """Would catch ranges that leave out the crossing, reach beyond what is known, or have no width."""
    for one in drawn():
        first, *others = one.ranges(at)
        assert first == WHOLE
        assert len(others) == 2
        for low, high in others:
            assert WHOLE[0] <= low < high <= WHOLE[1]
            assert isnan(at) or low < at < high


def test_references_are_saved_as_they_are_found(tmp_path, monkeypatch):
    """Would catch NaN in the file, and references that a second run finds anew."""
    monkeypatch.setattr(crossings, "REFERENCES", tmp_path / "crossings.json")
    found = []

    def reference(one):
        found.append(one.number)
        return {"number": one.number, **{kind: Crossing(nan, nan, [(0.5, 0.6)]).line() for kind in KINDS}}

    monkeypatch.setattr(crossings, "reference_of", reference)
    crossings._find(drawn()[:2], 1)
    crossings._find(drawn()[:3], 1)
    assert found == [0, 1, 2]
    assert "NaN" not in json.dumps(crossings._lines())
    assert isnan(crossings.saved()[2]["alpha_c"].alpha)
    assert crossings.saved()[2]["alpha_l"].open == [(0.5, 0.6)]
