"""A new kind of regulariser is one class, as docs/architecture.md says.

Not public: the class and the table of kinds, of which the page tells, and where solves start.
"""

from typing import Any, ClassVar

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.rows.kind import RegularizerKind
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.regularizer import RowRegularizer
from attnphase.state_evolution.starts import initial_overlaps


class Halved(RegularizerKind):
    """(strength/2) w^2, as a function of which nothing is known."""

    name = "test-halved"
    keys = ("strength", "ridge")
    penalty = r"\frac{s}{2} \sum_c w_c^2"
    example: ClassVar = {"strength": 0.01}

    def rows(self, given: Any, columns: int) -> RowRegularizer:
        s = given.strength
        return RowRegularizer(
            self.name, float(given.ridge), lambda w: s / 2 * w**2, lambda v, step: v / (1 + s * step), panels=24
        )


pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGULARIZERS, Halved.name, Halved())


def test_a_new_regulariser_has_the_numbers_of_the_ridge_that_it_is():
    own = model("square", {"regularizer.kind": "test-halved", "regularizer.strength": 0.3, "teacher.noise": 0.2})
    settings = ap.SolverSettings(threads=1, stability=False, identity=False)
    one, ridge = (
        ap.solve(each, 1.7, "semantic", settings=settings)
        for each in (own, own.with_fields({"regularizer.kind": "ridge"}))
    )
    for name in ("q", "theta", "V", "training_loss"):
        error = np.hypot(one[f"{name}_stderr"].item(), ridge[f"{name}_stderr"].item())
        assert abs(one[name].item() - ridge[name].item()) < 4 * error + 1e-6
    # the unit of the weights is the root of the temperature, and starts take the penalty's curvature there
    cold = {"regularizer.strength": 0.3, "student.temperature": 0.07}
    starts = [
        initial_overlaps(ap.Problem().with_fields({"regularizer.kind": kind, **cold}), "semantic").V
        for kind in ("test-halved", "ridge")
    ]
    np.testing.assert_allclose(*starts, rtol=1e-12)
    assert ap.Problem.from_toml(own.to_toml()) == own
