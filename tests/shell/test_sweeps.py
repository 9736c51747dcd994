"""Sweeps over fields of the problem: every point is that of its own problem, at its place, told in the end.

Not public: `untrusted`, which a page has, points that nobody solved, and two of them at one place.
"""

import numpy as np
import pytest
import xarray as xr
from by_formula import FEW, points
from command import run
from made_up import made_up_point

import attnphase as ap
from attnphase.data.build import from_points
from attnphase.data.trust import untrusted

PROBLEM = ap.Problem().with_fields(FEW)
MIXTURE = PROBLEM.with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
        "tokens.law": {"kind": "same", "probability": 0.8},
    }
)
SETTINGS = ap.SolverSettings(max_maps=4, stability=False, identity=False)  # the same numbers, not the right ones


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("problem", "fields"),
    [
        (PROBLEM, {"tokens.sigma": (0.4, 0.7), "regularizer.strength": np.array([0.02, 0.003])}),
        (PROBLEM, {"tokens.sigma": xr.DataArray([0.4, 0.6], dims="x"), "teacher.omega": 0.2}),
        (PROBLEM, {"integration.nodes": [16, 64], "integration.seed": range(2)}),
        (PROBLEM, {"student.temperature": [0.5, 2], "teacher.temperature": [1.4]}),
        (PROBLEM, {"positions.kind": ["opposite", "none"], "teacher.causal": [np.False_]}),
        (MIXTURE, {"tokens.law.probability": [0.6, 0.9]}),
    ],
    ids=lambda given: " and ".join(given) if isinstance(given, dict) else "",
)
def test_every_point_is_that_of_its_own_problem(tmp_path, problem, fields):
    asked = {"branch": "semantic", "settings": SETTINGS, "progress": False}
    ds = ap.sweep(problem, [1.7, 1.3], fields=fields, workers=1, output=tmp_path / "out.nc", **asked)
    names = [str(name) for name in ds["status"].dims[1:-1]]
    assert {ds[name].attrs["field"] for name in names} == set(fields)
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "out.nc"), ds)
    for place in np.ndindex(*(ds.sizes[name] for name in names)):
        here = ds.isel(dict(zip(names, place, strict=True)))
        own = problem.with_fields({ds[name].attrs["field"]: here[name].item() for name in names})
        alone = ap.sweep(own, [1.7, 1.3], workers=1, **asked)
        for name in ("q", "theta", "training_loss", "test_error_stderr"):
            np.testing.assert_array_equal(here[name], alone[name])


@pytest.mark.parametrize(
    ("option", "name", "values"),
    [
        ("tokens.sigma=0.3:0.7:5", "sigma", [0.3, 0.4, 0.5, 0.6, 0.7]),
        ("tokens.sigma=0.2:1.6:4:log", "sigma", [0.2, 0.4, 0.8, 1.6]),
        ("integration.nodes=16:64:3:log", "integration_nodes", [16, 32, 64]),
        ('teacher.score="softmax"', "teacher_score", ["softmax"]),
        ("teacher.causal=false", "teacher_causal", [False]),
    ],
)
def test_vary_reads_values_as_set_does(tmp_path, option, name, values):
    grid = ["--alpha", "0.5:2:3:log", "--omega", "0.1", "--branch", "semantic", "--vary", option, "--workers", 1]
    quick = ["--max-maps", 1, "--no-stability", "--no-identity", "--allow-unconverged", "--quiet"]
    run("sweep", "--set", "integration.rule=sobol", *grid, *quick, "-o", tmp_path / "out.nc")
    ds = ap.load_dataset(tmp_path / "out.nc")
    found = ds[name].to_numpy().tolist()
    assert [type(value) for value in found] == [type(value) for value in values]
    assert found == (pytest.approx(values, rel=1e-14) if isinstance(values[0], float) else values)
    np.testing.assert_allclose(ds["alpha"], [0.5, 1.0, 2.0], rtol=1e-14)


def test_two_points_at_one_place_are_refused():
    point = made_up_point(PROBLEM, 0.5, "semantic")
    with pytest.raises(ap.errors.DatasetError, match="two points"):
        from_points([point, point], {"alpha": [0.5]})


KINDS = {
    "NotConvergedWarning": ("status", 1, "not converged: branch = semantic, omega = 0.3, alpha = 2 (iteration_limit"),
    "ViolatedWarning": (
        "identities",
        1,
        "exact identities are violated: branch = semantic, omega = 0.3, alpha = 2 (violation_ridge = 0.90(10))",
    ),
    "ReplicaSymmetryWarning": ("overlap_gap", 0.53, "replica symmetry fails at 1 point."),
    "MergedWarning": ("on_branch", 1, "no semantic branch at 1 point."),
    "UndecidedWarning": ("on_branch", 2, "semantic branch not decided at 1 point."),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_point_is_warned_of_by_its_kind_and_ends_a_command_with_its_code(tmp_path, monkeypatch, kind):
    ds = points({}, [0.5, 1.25, 2.0], ["semantic"]).isel(branch=0)
    name, value, words = KINDS[kind]
    ds["violation_ridge"][...], ds["violation_ridge_stderr"][...] = 0.9, 0.1
    ds[name][2] = value
    assert untrusted(ds).to_numpy().tolist() == [False, False, kind in {"ViolatedWarning", "ReplicaSymmetryWarning"}]
    monkeypatch.setattr("attnphase.sweeps.line.Line.solve", lambda line, on_point=None: ds)
    asked = {"alpha": [0.5, 1.25, 2.0], "omega": 0.3, "branch": "semantic", "workers": 1, "progress": False}
    with pytest.warns(ap.errors.AttnphaseWarning) as caught:
        ap.sweep(PROBLEM, **asked)
    assert [one.category for one in caught] == [getattr(ap.errors, kind)]
    assert words in str(caught[0].message)
    assert caught[0].filename == __file__
    same = [word for field, value in FEW.items() for word in ("--set", f"{field}={value}")]
    grid = ["--alpha", "0.5,1.25,2", "--omega", 0.3, "--branch", "semantic", "--workers", 1, "-o", tmp_path / "out.nc"]
    result = run("sweep", *same, *grid, code=int(kind in {"NotConvergedWarning", "ViolatedWarning"}))
    assert words.partition(":")[0].removesuffix(".") in result.output
