"""One-step replica-symmetry breaking: its replica-symmetric limits, its own derivatives, known solutions, its errors.

Not public: limits in which nothing breaks, and closed forms of single images, that a solution of `ap.one_rsb` hides.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from models import model

import attnphase as ap
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.map import OneRsbMap
from attnphase.theories.one_rsb.nodes import OneRsbNodes, Proposal
from attnphase.theories.one_rsb.solving import OneRsbSolver, apart_by

PAPER = ap.Problem.paper(omega=0.3)
WIDE = PAPER.with_fields({"tokens.sigma": 0.7})
MIXTURE = PAPER.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.sigma": None,
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
        "tokens.law": {"kind": "same", "probability": 0.8},
    }
)
SETTINGS = ap.SolverSettings(tolerance=1e-5, max_maps=1000, threads=1)
OUT: dict[str, Any] = {"branch": "uninformed", "start": "informed", "settings": SETTINGS}


@pytest.mark.parametrize(("y", "apart"), [(1e-9, 0.37), (35.0, 1e-3)], ids=["no tilt", "one group"])
@pytest.mark.parametrize(
    ("problem", "branch"),
    [
        pytest.param(PAPER.with_fields({"tokens.sigma": [0.6, 0.45]}), "positional", id="two variances"),
        pytest.param(model("untied", {"teacher.omega": 0.3}), "semantic", id="untied"),
        pytest.param(MIXTURE, "semantic", id="mixture"),
        pytest.param(model("noisy", {"teacher.noise": 0.013}), "semantic", id="noise"),
    ],
)
def test_the_replica_symmetric_theory_is_a_limit(problem, branch, y, apart):
    """At y = 0 those of q_1, V, m, theta do not know q_0, at q_1 = q_0 none knows y, and test errors know q_1 alone."""
    system, start = System.of(problem), initial_overlaps(problem, branch)
    start = Overlaps(start.q, 0.4 * start.V, start.m, start.theta)
    sector = system.sector_of(start)
    map_ = OneRsbMap(OneRsbNodes(system, 64, 32, 16), 1.3, y, sector)
    image = map_(map_.pack(apart_by(start, system.spectrum.rho, apart)))
    plain = StateEvolution(OneRsbNodes(system, 1024, 8, 16).channel, 1.3, sector)
    expected = plain(plain.pack(start))
    assert image is not None
    assert expected is not None
    assert plain.last is not None
    each = plain.prior.of_replicates(plain.last.conjugates, lift=True)
    assert each is not None
    scatter = map_.images()[:, : len(expected)].std(axis=0, ddof=1) / 4
    error = np.sqrt(scatter**2 + plain.sector.pack_all(each).var(axis=0, ddof=1) / 16)
    np.testing.assert_array_less(np.abs(image[: len(expected)] - expected), 4 * error + 1e-12)
    assert (error < 0.12 * plain.scales(expected)).all()
    errors = map_.test_error(), 2 / problem.tokens.length * plain.channel.loss_at_omega(start)
    difference, scatter = errors[0].mean() - errors[1].mean(), np.hypot(*(one.std(ddof=1) / 4 for one in errors))
    assert abs(difference) < 4 * scatter < 0.1 * errors[1].mean()


def test_points_drawn_elsewhere_change_no_mean():
    """Moments of the Gaussian exactly, and a tilted mean: E exp(a.x - b x^2/2) = exp(a^2/(2 (1 + b)))/(1 + b)."""
    nodes, shape = OneRsbNodes(System.of(PAPER), 16, 512, 4), (1, 1, 4, 16)
    mean, root = np.array([0.8, -0.5]), np.array([[0.6, 0.0], [0.2, 0.5]])
    proposal = Proposal(np.broadcast_to(mean, (*shape, 2)), np.broadcast_to(root, (*shape, 2, 2)))
    points, shares = nodes.inner_points(proposal)
    flat = points.reshape(*shape, 512, 2)
    np.testing.assert_allclose(np.einsum("...j,...ja->...a", shares, flat), 0.0, atol=1e-12)
    square = np.einsum("...j,...ja,...jb->...ab", shares, flat, flat)
    np.testing.assert_allclose(square, np.broadcast_to(np.eye(2), square.shape), atol=1e-12)
    a, b = np.array([1.9, -0.7]), 1.4
    tilted = (shares * np.exp(flat @ a - b * (flat**2).sum(axis=-1) / 2)).sum(axis=-1)
    assert tilted.mean() == pytest.approx(np.exp(a @ a / (2 * (1 + b))) / (1 + b), rel=0.01)


def test_the_solution_of_wide_tokens_is_the_known_one():
    """At y = 200 a solution by hand has F = .00423, q_0 = .10, q_1 = .229, V = 14.5; the symmetric F is .003745(6)."""
    here = ap.one_rsb(WIDE, 1.0, y=200, outer=64, inner=32, **OUT).isel(state=0)
    assert int(here.status) == 0
    for name, expected, known in (
        ("free_entropy", 0.00423, 0.02),
        ("q_1", 0.229, 0.02),
        ("V", 14.5, 0.02),
        ("q_0", 0.10, 0.1),
    ):
        value, error = float(here[name].max()), float(here[f"{name}_stderr"].max())
        assert value == pytest.approx(expected, abs=3 * np.hypot(error, known * expected)), name
        assert error < 0.15 * expected
    assert float(here.free_entropy - 3 * here.free_entropy_stderr) > 0.00377
    assert not here.m.any()
    assert not here.theta.any()


@pytest.mark.slow
def test_the_y_where_f_is_largest_scatters_within_its_error():
    """y is about 150: an error that forgets a factor of y, or has one too many, is wrong by as much."""
    found = [
        ap.one_rsb(WIDE.with_fields({"integration.seed": seed}), 1.0, outer=32, inner=32, **OUT) for seed in range(2)
    ]
    values, errors = (np.array([float(ds[name].item()) for ds in found]) for name in ("y", "y_stderr"))
    assert (np.abs(values - 150) < 50).all()
    # half of the inner points against all, which is part of the error, says more than seeds at this size
    assert 0.02 < values.std(ddof=1) / np.sqrt((errors**2).mean()) < 2.2
    for ds in found:
        assert abs(float(ds.complexity.item())) < 1e-4
        assert float(ds.free_entropy.item()) == pytest.approx(float(ds.energy.item()), rel=1e-3)


def test_stated_errors_are_the_scatter_over_seeds():
    """At a y of 130; of six seeds the scatter is known to a third."""
    names = [name + end for name in ("free_entropy", "q_1", "test_error", "complexity") for end in ("", "_stderr")]
    several = [
        ap.one_rsb(WIDE.with_fields({"integration.seed": seed}), 1.0, y=130, outer=16, inner=16, **OUT)
        for seed in range(6)
    ]
    table = np.array([[float(ds[name].max()) for name in names] for ds in several])
    # half of the inner points against all decides about that of the complexity, y^2 dF/dy: 0.15, and 0.31 without it
    for column, least, most in ((0, 0.45, 1.9), (2, 0.45, 1.9), (4, 0.45, 1.9), (6, 0.05, 0.22)):
        assert least < table[:, column].std(ddof=1) / np.sqrt((table[:, column + 1] ** 2).mean()) < most


def test_errors_at_the_largest_f_solve_the_point_and_y_together():
    """Of a map ``A x + b ln y`` whose slope ``c x + e ln y`` is held at zero; measured is ``D x + f ln y``."""
    draw = np.random.default_rng(4).normal
    A, b, c, e, D, f = 0.3 * draw(size=(2, 2)), draw(size=2), draw(size=2), 0.7, draw(size=(4, 2)), draw(size=4)
    rows = [draw(size=(3, 2)), draw(size=(3, 1)), draw(size=(3, 4))]

    class Toy:
        y, scales = 1.3, staticmethod(np.ones_like)

        def __call__(self, x):
            self.x = np.append(x, np.log(self.y))
            return np.c_[A, b] @ self.x

        def slope(self):
            return np.append(c, e) @ self.x

    solver: Any = SimpleNamespace(map_=Toy(), _measured=lambda: (np.c_[D, f] @ solver.map_.x)[None])
    step, change = OneRsbSolver._displacements(solver, np.array([0.4, -0.2]), rows, True)
    whole = np.block([[np.eye(2) - A, -b[:, None]], [c, e]])
    assert step == pytest.approx(np.linalg.solve(whole, np.hstack([rows[0], -rows[1]]).T).T, rel=1e-6)
    assert change == pytest.approx(rows[2] + step @ np.c_[D, f].T * [0, 1, 1, 1], rel=1e-6)  # F is stationary
