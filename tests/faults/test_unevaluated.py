"""Points at which nothing can be evaluated: they have a status and no numbers, and end no other point.

The loss overflows where fields are large: at sigma = 7.7 the informed start has no image for some alpha.
"""

from __future__ import annotations

import io
import json
import warnings
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run
from made_up import made_up_point

import attnphase as ap
from attnphase.data.boundaries import with_boundaries
from attnphase.data.build import from_points
from attnphase.errors import DatasetError
from attnphase.explorer.page import explore
from attnphase.figures import fig2, fig3, fig9
from attnphase.fixed_points import branches
from attnphase.fixed_points.run import Run
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.fixed_points.transitions import thresholds_of
from attnphase.problem.problem import Problem
from attnphase.solvers.iteration import Status
from attnphase.state_evolution import replicon
from attnphase.state_evolution.branches import Identity
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.spread import at_most
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System

STEEP = """[tokens]
length = 1
sigma = 7.7
[loss]
kind = "expression"
expression = "exp(exp(h0_0*k0_0))"
[regularizer]
strength = 1.7
[integration]
rule = "sobol"
"""
FAILING, FINE = (0.13, 0.9), (0.4, 1.7)
REMEDY = "bring tokens.sigma, regularizer.strength, teacher.mixing and alpha closer to one"


@pytest.fixture(name="problem", scope="module")
def _problem(tmp_path_factory):
    path = tmp_path_factory.mktemp("steep") / "problem.toml"
    path.write_text(STEEP, encoding="utf-8")
    return ap.load_problem(path)


@pytest.fixture(name="points", scope="module")
def _points(problem):
    return ap.sweep(problem, alpha=sorted((*FAILING, *FINE)), branch="semantic", workers=1).squeeze("branch")


def test_a_point_without_numbers_has_a_status_and_ends_no_sweep(problem, points):
    lost = points.sel(alpha=list(FAILING))
    assert (lost.status == Status.left_domain).all()
    numbers = [name for name in lost.data_vars if lost[name].dtype.kind == "f"]
    assert {"q", "theta_hat", "density", "free_energy_gap", "map_eigenvalue", "q_stderr"} < {*numbers}
    for name in numbers:
        assert lost[name].isnull().all(), name
    assert (lost.unsolved_nodes == 0).all()
    kept = points.sel(alpha=list(FINE))
    assert (kept.status == Status.converged).all()
    alone = ap.solve(problem, alpha=FINE[1], branch="semantic")
    error = 4 * np.hypot(alone.q_stderr, kept.q_stderr.sel(alpha=FINE[1]))
    assert (np.abs(alone.q - kept.q.sel(alpha=FINE[1])) < error).all()
    ap.validate_dataset(points)


def test_only_a_point_without_a_residual_may_be_without_numbers(points):
    claimed = points.assign(residual=points.residual.fillna(1e-3))
    with pytest.raises(DatasetError, match='variable "q" is NaN'):
        ap.validate_dataset(claimed)
    with pytest.raises(DatasetError, match='variable "q" is NaN'):
        ap.validate_dataset(points.assign(status=xr.zeros_like(points.status)))


def test_a_command_ends_with_one_sentence_and_its_remedy(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text(STEEP, encoding="utf-8")
    output = tmp_path / "steep.nc"
    sweep = ["sweep", path, "--alpha", "0.9,1.7", "--branch", "semantic", "-o", output, "--workers", "1"]
    solve = ["solve", path, "--alpha", "0.9"]
    for call in (solve, [*sweep, "--quiet"], [*sweep, "--quiet", "--resume"]):
        told = [line for line in run(*call, code=1).stderr.splitlines() if "holds this sweep" not in line]
        assert len(told) == 1, told
        assert "alpha = 0.9" in told[0]
        assert "(left_domain, no numbers)" in told[0]
        assert REMEDY in told[0]
    run(*solve, "--allow-unconverged")
    assert ap.load_dataset(output).status.to_numpy().ravel().tolist() == [Status.left_domain, Status.converged]


LINE = """[tokens]
length = 1
sigma = 0.8
[loss]
kind = "expression"
expression = "(h - k)**2/2 + b*h"
parameters = {b = 0.3, unlike = 1.0}
trained = {b = "0"}
[metrics]
far = "unlike*(h - k)**2"
"""


def test_a_trained_parameter_without_a_minimum_is_named(tmp_path):
    """Each command ended with a status alone, or said that there is no branch."""
    path = tmp_path / "line.toml"
    path.write_text(LINE, encoding="utf-8")
    at, few = ("--alpha", "1.7"), ("--dimension", "30", "--seeds", "2", "--start", "semantic")
    calls: dict[tuple[object, ...], tuple[int, str]] = {
        ("solve", path, *at): (1, "; "),
        ("sweep", path, *at, "--branch", "semantic", "--quiet", "-o", tmp_path / "line.nc"): (1, "; "),
        ("tune", path, *at): (1, "no optimum is known at alpha = 1.7, since points did not converge; "),
        ("follow", path, "--between", "1", "2"): (1, "; "),
        ("simulate", path, *at, *few, "--quiet"): (1, "(diverged); "),
    }
    for call, (code, before) in calls.items():
        told = run(*call, code=code).stderr.splitlines()[-1]
        assert f"{before}loss.trained.b may leave the objective without a minimum: let the penalty grow" in told, told
    assert "(left_domain, " in run("solve", path, *at, code=1).stderr
    # where the objective has its maximum in b, the slopes vanish
    stationary = json.loads(run("solutions", path, *at, "--starts", "1", "--json").stdout)
    assert stationary["unstable_directions"] == [1], stationary
    checked = run("check", path, *at, code=1).stdout
    assert "loss.trained.b may leave the objective without a minimum" in checked


BOTTOMLESS = LINE.replace("(h - k)**2/2 + b*h", "k*h").partition("parameters")[0]


@pytest.mark.parametrize(
    ("expression", "regularizer"),
    [("k*h", 'kind = "lasso"\nstrength = 0.5'), ("1e50*(h - k)**2", "strength = 0.5")],
    ids=["linear with a lasso", "huge"],
)
def test_an_iteration_that_runs_away_ends(tmp_path, expression: str, regularizer: str):
    """Lines were cut into ever shorter pieces where rounding alone leaves their defects, until memory was full."""
    path = tmp_path / "runs_away.toml"
    path.write_text(BOTTOMLESS.replace("k*h", expression) + f"[regularizer]\n{regularizer}\n", encoding="utf-8")
    told = run("solve", path, "--alpha", "1.7", "--no-stability", code=1).stderr.splitlines()[-1]
    assert "(left_domain" in told, told


def test_no_threshold_rests_on_a_point_without_numbers(problem, points):
    found = thresholds_of(problem, FAILING, None, SolverSettings(threads=1))
    assert not found["alpha_l"].found
    bounded = with_boundaries(points.expand_dims("branch"))
    assert bounded.begin_semantic.isnull().all()  # it is not known whether the branch ends there


@pytest.mark.parametrize("lost", [0.4, slice(None)])
def test_figures_leave_out_points_without_numbers(lost):
    sigmas, alphas, names = [0.4, 0.7], [0.3, 0.9, 2.2], ["semantic", "positional"]
    problems = {sigma: Problem().with_fields({"tokens.sigma": sigma}) for sigma in sigmas}
    made = [made_up_point(problems[s], a, name) for name, s, a in product(names, sigmas, alphas)]
    ds = from_points(made, {"branch": names, "tokens.sigma": sigmas, "alpha": alphas}, problem=Problem())
    place = {"sigma": lost, "alpha": slice(None)}
    for name in ds.data_vars:
        if ds[name].dtype.kind == "f":
            ds[name].loc[place] = np.nan
    ds["status"].loc[place], ds["on_branch"].loc[place] = Status.left_domain, Identity.not_decided
    ap.validate_dataset(ds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for figure in (fig2(ds, at={"sigma": 0.4}), fig3(ds), fig9(ds)):
            figure.savefig(io.BytesIO(), format="png", dpi=20)
        if lost == 0.4:  # of nothing there is no page
            assert explore(ds).html


def test_a_line_goes_on_from_a_fresh_start_where_its_neighbour_led_to_nothing(problem, monkeypatch):
    """From a neighbour the lower point has no numbers, from its own start it has."""
    lost, found = (solve_point(problem, alpha, "semantic") for alpha in (FAILING[0], FINE[0]))
    monkeypatch.setattr(branches, "solve_point", lambda *_, start=None, **__: found if start is None else lost)
    _, last = branches.follow(problem, [FINE[1], FINE[0]], "semantic")
    assert last.status is Status.converged


@pytest.mark.parametrize("lift", [False, True])
def test_an_image_that_overflows_is_none(problem, lift):
    steeper = problem.with_fields({"tokens.sigma": 1e3})
    start, share = initial_overlaps(steeper, "semantic"), 1e-200
    small = Overlaps(share * start.q, share * start.V, np.sqrt(share) * start.m, np.sqrt(share) * start.theta)
    with np.errstate(all="ignore"):
        system = System.of(steeper, 1)
        map_ = Run(system, 1.3, SolverSettings(), system.sector_of(start)).map(system.refinement(2**12).first())
        map_.lift = lift
        assert map_(map_.pack(small)) is None


@pytest.mark.parametrize("error", [np.nan, np.inf, 1e300])
def test_an_unknown_error_asks_for_many_more_nodes(error):
    rules = System.of(Problem(), 1).refinement(2**18)
    known, unknown = (rules.finer_sobol(rules.sobol(256), each) for each in (1.0, error))
    assert known is not None
    assert known is unknown
    assert known.order == 8 * 256


def test_a_spectral_radius_of_numbers_that_overflow_is_not_known(monkeypatch):
    monkeypatch.setattr(replicon, "Spread", lambda *_: SimpleNamespace(linear=np.array([[[[[[3.0]]]]]])))
    squares = np.array([0.7, np.inf]).reshape(2, 1, 1, 1, 1, 1, 1)
    nothing: Any = None  # the rows' part is given
    radii = replicon._radii(nothing, squares, nothing)
    assert radii == pytest.approx([2.1, np.nan], nan_ok=True)


def test_covariances_that_overflow_are_not_known():
    with np.errstate(all="ignore"):
        assert np.isnan(at_most(np.full((1, 3, 3), np.inf), np.eye(3)[None])).all()


def test_weights_that_are_nearly_zero_have_derivatives():
    """By steps of their own size, so that the point can be told to be the uninformed one."""
    problem = Problem.from_dict(
        {"student": {"tied": False}, "tokens": {"sigma": 0.0137}, "regularizer": {"strength": 1.2e-6}}
    )
    point = ap.solve(problem, alpha=0.208, branch="semantic", settings=SolverSettings(max_nodes=2**12, max_maps=150))
    assert int(point.status) == Status.converged
    assert int(point.on_branch) == Identity.merged
    assert float(point.residual) < 1e-7
    assert 0 <= float(point.q.max()) < 1e-12


@pytest.mark.parametrize("alpha", [4.3, 7.1])
def test_unknown_derivatives_beside_zero_weights_reach_no_lapack(alpha, capfd):
    """No difference stays inside the domain there; the number that was found is kept."""
    problem = Problem.from_dict(
        {
            "student": {"tied": False},
            "tokens": {"sigma": 0.0256},
            "regularizer": {"strength": 0.011},
            "integration": {"rule": "sobol", "nodes": 256},
        }
    )
    point = ap.solve(
        problem,
        alpha=alpha,
        branch="positional",
        settings=SolverSettings(stability=False, tolerance=1e-6, max_maps=150),
    )
    assert np.isfinite(point.q).all()
    assert int(point.on_branch) == Identity.not_decided
    assert capfd.readouterr().out == ""
