"""`branch="all"` solves every branch of a problem, and the result has the dimension ``branch``."""

# pyright: reportArgumentType=false

from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run

import attnphase as ap

PROBLEM = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
SETTINGS = ap.SolverSettings(threads=1, stability=False, identity=False)
BRANCHES = ["semantic", "positional", "uninformed"]
QUICK: dict[str, Any] = {"outer": 8, "inner": 8, "settings": ap.SolverSettings(tolerance=1e-2, threads=1)}
FUNCTIONS = {
    "solve": lambda branch: ap.solve(PROBLEM, 1.5, branch, settings=SETTINGS),
    "sweep": lambda branch: ap.sweep(PROBLEM, [1.5], branch=branch, settings=SETTINGS, workers=1),
    "sensitivity": lambda branch: ap.sensitivity(PROBLEM, 1.5, "tokens.sigma", branch, settings=SETTINGS),
    "tune": lambda branch: ap.tune(PROBLEM, [1.5, 1.7], between=(0.005, 0.05), branch=branch, settings=SETTINGS),
    "one_rsb": lambda branch: ap.one_rsb(PROBLEM, 0.5, branch, y=[5.0, 6.0], start="informed", **QUICK),
}


@pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_branch_is_that_of_its_own_call(name, tmp_path):
    ds, alone = FUNCTIONS[name]("all"), FUNCTIONS[name]("positional")
    alone = alone.isel(branch=0) if "branch" in alone.dims else alone
    assert ds["branch"].to_numpy().tolist() == BRANCHES
    assert ds["status"].dims[0] == "branch"
    for variable in ("test_error", "q", "optimum", "metric", "y"):
        if variable in alone:
            np.testing.assert_allclose(ds.sel(branch="positional")[variable], alone[variable], rtol=1e-12)
    ap.save_dataset(ds, tmp_path / "all.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "all.nc"), ds)


def test_curves_of_every_branch_end_in_points_that_are_missing(tmp_path):
    ds = ap.follow(PROBLEM, between=(1.4, 1.6), branch="all", settings=SETTINGS)
    assert ds["status"].dims == ("branch", "point")
    missing = (ds["status"] == 3).to_numpy()
    assert not missing.all(axis=1).any()
    assert (np.diff(missing.astype(int), axis=1) >= 0).all()
    for name in ("alpha", "arclength", "test_error", "field_value"):
        np.testing.assert_array_equal(np.isnan(ds[name].to_numpy()), missing)
    for branch in BRANCHES:
        alone, own = ap.follow(PROBLEM, between=(1.4, 1.6), branch=branch, settings=SETTINGS), ds.sel(branch=branch)
        own = own.isel(point=slice(alone.sizes["arclength"]))
        for name in ("alpha", "arclength", "q", "turn", "unstable_directions"):
            np.testing.assert_allclose(own[name].to_numpy(), alone[name].to_numpy(), rtol=1e-12, err_msg=name)
    assert ds.attrs["ends"].count("; ") == 2
    ap.save_dataset(ds, tmp_path / "all.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "all.nc"), ds)
    wrong = ds.assign_coords(alpha=ds["alpha"].where(ds["point"] > 1))
    with pytest.raises(ap.errors.DatasetError, match='coordinate "alpha" must be finite'):
        ap.validate_dataset(wrong)


def test_what_does_not_exist_at_the_start_is_left_out_and_told():
    with pytest.warns(ap.errors.NotFoundWarning, match=r"there is no semantic branch at alpha = 0\.3"):
        ds = ap.follow(PROBLEM, between=(0.25, 0.3), branch="all", settings=SETTINGS)
    assert "semantic" not in ds["branch"]
    assert "uninformed" in ds["branch"]
    assert "no semantic branch" in ds.attrs["left_out"]
    told = run("follow", "--between", "0.25", "0.3", "--branch", "all", *QUICK_NODES)
    assert "attnphase: there is no semantic branch at alpha = 0.3" in " ".join(told.stderr.split())
    assert "attnphase: the uninformed curve ends" in told.stderr
    assert "uninformed" in told.stdout


QUICK_NODES = ["--set", "integration.rule=sobol", "--set", "integration.nodes=64", "--no-stability", "--no-identity"]


def test_a_check_names_the_branch_of_each():
    report = ap.check(PROBLEM, 1.5, "all", settings=SETTINGS, experiment=False)
    assert report.branch == "all"
    assert "all branches, alpha = 1.5" in report.text()
    assert {one.name.partition(": ")[0] for one in report.checks} == set(BRANCHES)


def test_all_is_given_alone():
    both = run("sweep", "--alpha", "1", "--branch", "all", "--branch", "semantic", "-o", "none.nc", code=2)
    assert '"all" names every branch: give it alone.' in both.stderr
    with pytest.raises(ap.errors.ProblemError, match="give it alone"):
        ap.sweep(PROBLEM, [1.5], branch=["all", "semantic"], workers=1)


@pytest.mark.parametrize("command", ["solve", "follow", "tune", "check", "one-rsb"])
def test_none_of_two_branches_is_dropped(command):
    several = run(command, "--branch", "semantic", "--branch", "positional", code=2)
    assert "Invalid value for '--branch': give one branch, or all." in several.stderr


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ap.thresholds(PROBLEM, 0.3), "alpha must be an increasing pair"),
        (lambda: ap.follow(PROBLEM, "alpha", (0.4, 2.0)), "field must be alpha, or a field"),
        (lambda: ap.follow(PROBLEM, 2.0, "teacher.omega"), "between is missing: give the range in which teacher.omega"),
        (lambda: ap.tune(PROBLEM, "regularizer.strength"), "alpha must be a positive number"),
        (lambda: ap.sensitivity(PROBLEM, 1.5, "semantic"), "field must be alpha, or a field"),
        (
            lambda: ap.follow(PROBLEM, start=1.5),
            "start must be a dataset of attnphase.solve, Overlaps or a BranchPoint",
        ),
        (
            lambda: ap.bayes_optimal(PROBLEM, 0.3, settings=ap.SolverSettings(max_nodes=64, max_maps=3)),
            r"^settings\.max_maps has no part in this: leave it out, and set max_nodes\.$",
        ),
    ],
)
def test_arguments_of_another_order_or_part_are_refused(call, words):
    with pytest.raises(ap.errors.ProblemError, match=words):
        call()
