"""Points at which nothing can be evaluated: they have a status and no numbers, and end no other point."""

import json

import pytest
import xarray as xr
from command import run
from models import model

import attnphase as ap
from attnphase.errors import DatasetError

FEW = {"integration.rule": "sobol", "integration.nodes": 16}
SETTINGS = ap.SolverSettings(stability=False, identity=False, tolerance=0.3, max_maps=9)
SOME = """
from pathlib import Path

import numpy as np

def prox(v, step):
    return v / (1 + 0.01 * step) * (np.nan if (Path(__file__).parent / "nothing").exists() else 1)
"""
LOST = 0.9


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """Of three alphas, the middle one without numbers: there a penalty of the user's own has none."""
    place = tmp_path_factory.mktemp("unevaluated")
    (place / "some_numbers.py").write_text(SOME)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        own = {"regularizer.kind": "prox", "regularizer.prox": "some_numbers:prox"}
        problem, found = ap.Problem().with_fields(FEW | own), {}
        for alpha in (0.4, LOST, 1.7):
            if alpha == LOST:
                (place / "nothing").touch()
            found[alpha] = ap.sweep(problem, [alpha], workers=1, settings=SETTINGS)
            (place / "nothing").unlink(missing_ok=True)
        return found


def test_a_point_without_numbers_has_a_status_and_ends_no_sweep(points):
    lost = points[LOST]
    assert (lost["status"] == lost["status"].attrs["flag_meanings"].split().index("left_domain")).all()
    # the linear baseline needs no fixed point
    numbers = [name for name in lost.data_vars if lost[name].dtype.kind == "f" and "linear" not in str(name)]
    assert {"q", "theta_hat", "density", "free_energy_gap", "map_eigenvalue", "q_stderr", "residual"} < {*numbers}
    for name in numbers:
        assert lost[name].isnull().all(), name
    assert (lost["unsolved_nodes"] == 0).all()
    assert points[1.7]["q"].notnull().all()
    ap.validate_dataset(lost)


def test_only_a_point_without_a_residual_may_be_without_numbers(points):
    lost = points[LOST]
    for claimed in (
        lost.assign(residual=lost["residual"].fillna(1e-3)),
        lost.assign(status=xr.zeros_like(lost.status)),
    ):
        with pytest.raises(DatasetError, match='variable "q" is NaN'):
            ap.validate_dataset(claimed)


def test_a_trained_parameter_without_a_minimum_is_named(tmp_path):
    """Its loss falls as fast as its penalty grows, at some alpha."""
    problem, path = model("trained", FEW | {"loss.parameters.hill": 0.02}), tmp_path / "own.toml"
    path.write_text(problem.to_toml())
    told = "loss.trained.b may leave the objective without a minimum: let the penalty grow"
    common = ("--alpha", "1.7", "--no-stability", "--no-identity")
    assert told in run("solve", path, *common, code=1).stderr.splitlines()[-1]
    assert "(left_domain, " in run("solve", path, *common, code=1).stderr
    sweep = ("sweep", path, *common[1:], "--branch", "semantic", "--quiet", "--workers", 1, "-o", tmp_path / "own.nc")
    said = run(sweep[0], path, "--alpha", "0.3,1.7", *sweep[3:], code=1).stderr
    assert told in said
    assert "alpha = 1.7" in said
    assert ap.load_dataset(tmp_path / "own.nc")["status"].to_numpy().ravel()[0] == 0
    unstable = json.loads(run("solve", path, "--alpha", "0.3", *common[2:], "--json").stdout)
    assert unstable


def test_weights_that_are_nearly_zero_have_derivatives():
    """By steps of their own size, so that the point can be told to be the uninformed one."""
    fields = {"tokens.sigma": 0.0137, "regularizer.strength": 1.2e-6}
    settings = ap.SolverSettings(max_nodes=2**12, max_maps=150)
    point = ap.solve(model("untied", fields), 0.208, "semantic", settings=settings)
    assert point["status"].attrs["flag_meanings"].split()[int(point["status"])] == "converged"
    assert "merged" in point["on_branch"].attrs["flag_meanings"].split()[int(point["on_branch"])]
    assert float(point["residual"]) < 1e-7
    assert 0 <= float(point["q"].max()) < 1e-12
