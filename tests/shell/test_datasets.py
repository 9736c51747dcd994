"""Datasets lose nothing in files, say what they are, and are refused where they break the schema."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from by_formula import FEW, points
from models import model

import attnphase as ap

EXPERIMENTS = Path(__file__).parents[2] / "data" / "experiments"
SETTINGS = ap.SolverSettings(max_maps=5)


def swept():
    """Of other sizes in every direction, with a point that was not computed and one that left the domain."""
    generator = np.random.default_rng(5)
    ds = points({"tokens.sigma": [0.1 + 0.2, 1 / 3]}, [0.7, 1.1, 1.9], problem=model("rank 2"))
    for name in ("q", "m", "theta_hat", "test_error"):
        ds[name][...] = generator.normal(size=ds[name].shape)
    numbers = [name for name in ds.data_vars if ds[name].dtype.kind == "f"]
    for name in numbers:
        ds[name][{"branch": 1, "sigma": 0, "alpha": 2}] = np.nan
    ds["status"][{"branch": 1, "sigma": 0, "alpha": 2}] = 3
    ds["status"][{"branch": 0, "sigma": 0, "alpha": 0}] = 2
    return ds


def runs():
    return ap.load_dataset(EXPERIMENTS / "untied-runs.nc")


def solved(name, **fields):
    return ap.solve(model(name, FEW | fields), 1.4, settings=SETTINGS, progress=False)


KINDS = {
    "points": swept,
    "one point": lambda: solved("paper"),
    "clusters, trained parameters and a metric": lambda: ap.solve(
        model("trained", FEW | {"metrics.share": "h*h"}), 1.4, settings=SETTINGS, progress=False
    ),
    "thresholds": lambda: ap.thresholds(model("paper", FEW), omega=[0.2, 0.3], alpha=(1.8, 2), progress=False),
    "curve": lambda: ap.follow(model("paper", FEW), between=(1.7, 1.9), progress=False),
    "runs": runs,
    "histogram": lambda: ap.load_dataset(EXPERIMENTS.parent / "histogram" / "report.nc"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_loses_nothing(tmp_path, kind):
    ds = KINDS[kind]()
    ap.save_dataset(ds, tmp_path / "x.nc")
    back = ap.load_dataset(tmp_path / "x.nc")
    xr.testing.assert_identical(back, ds)
    assert {name: back[name].dtype for name in ds.variables} == {name: ds[name].dtype for name in ds.variables}
    assert [path.name for path in tmp_path.iterdir()] == ["x.nc"]
    for name in ds.variables:
        assert ds[name].attrs.keys() >= {"long_name", "units", "latex"}
    with xr.open_dataset(tmp_path / "x.nc") as seen:  # as other programs do
        assert seen.sizes == ds.sizes


def test_a_selection_follows_the_schema_and_an_error_may_be_unknown():
    ds = swept()
    ds["q_stderr"][{"branch": 0, "sigma": 1, "alpha": 1}] = np.nan
    for part in (ds, ds.sel(branch="semantic"), ds.isel(sigma=0, alpha=slice(2))):
        ap.validate_dataset(part)


def changed(name, index, value):
    """One number."""

    def spoil(ds):
        ds[name].to_numpy()[index] = value
        return ds

    return spoil


def described(name, **attributes):
    """Other attributes."""
    return lambda ds: ds[name].attrs.update(attributes) or ds


def at(name, place, value):
    """One value of a coordinate."""

    def spoil(ds):
        values = ds[name].to_numpy().astype(type(value)).copy()
        values[place] = value
        return ds.assign_coords({name: (name, values, ds[name].attrs)})

    return spoil


@pytest.mark.parametrize(
    ("make", "spoil", "named"),
    [
        (swept, lambda ds: ds.drop_vars("theta_stderr"), '"theta_stderr"'),
        (swept, lambda ds: ds.assign(q=ds["q"].astype("float32")), '"q"'),
        (swept, lambda ds: ds.assign(m=ds["m"].transpose(..., "token")), '"m"'),
        (swept, lambda ds: ds.isel(token=slice(1)), '"q"'),
        (swept, lambda ds: ds.transpose("alpha", ...), "out of order"),
        (swept, lambda ds: ds.isel(branch=[0, 0]), '"branch" has a value twice'),
        (swept, changed("q_stderr", (0, 1, 1, 0, 0, 0), -1e-9), '"q_stderr" is negative'),
        (swept, changed("status", (0, 0, 0), 12), '"status" must lie between 0 and 3'),
        (swept, changed("test_error", (0, 1, 1), np.nan), '"test_error" is NaN'),
        (swept, at("alpha", 0, 0.0), '"alpha" must be positive'),
        (swept, at("alpha", 2, np.inf), '"alpha" must be'),
        (swept, lambda ds: ds.assign_attrs(problem="[tokens]\nlenght = 2"), '"problem"'),
        (swept, lambda ds: ds.assign_attrs(problem=ap.Problem().to_toml()), '"problem_hash"'),
        (swept, lambda ds: ds.assign_attrs(schema_version=0), "follows version 0 of the schema"),
        (swept, lambda ds: ds.assign_attrs(schema_version=2), "follows version 2 of the schema"),
        (swept, lambda ds: xr.Dataset({"x": 1}), "not a dataset of attnphase"),
        (swept, lambda ds: ds.assign(other=1.0), '"other" is not part of the schema'),
        (swept, lambda ds: ds.assign_attrs(schema="curves"), "\"schema\" is 'curves', but must be"),
        (swept, lambda ds: ds.drop_vars("status"), '"status" is missing'),
        (swept, lambda ds: ds.drop_vars("alpha"), 'coordinate "alpha" is missing'),
        (swept, lambda ds: ds.isel(alpha=slice(0)), "has nothing along alpha"),
        (swept, at("branch", 0, "sematic"), "\"branch\" is 'sematic', but must be one of"),
        (swept, lambda ds: ds.assign(q=(ds["q"].dims, ds["q"].data)), '"q" has no attribute "long_name"'),
        (swept, described("q", latex=1), '"latex" of variable "q" must be a text'),
        (swept, described("q", units="m"), "\"q\" has units 'm', but must have"),
        (swept, described("sigma", field="sigma"), '"field" of variable "sigma" must be a field'),
        (runs, at("alpha", 0, -0.7), '"alpha" must be positive'),
        (runs, at("dimension", 0, -20), '"dimension" must be positive'),
        (runs, changed("status", (0, 0, 0, 0), 6), '"status" must lie between 0 and 5'),
    ],
)
def test_what_breaks_the_schema_is_named(make, spoil, named):
    with xr.set_options(keep_attrs=True):
        spoilt = spoil(make().copy(deep=True))
    with pytest.raises(ap.errors.DatasetError) as caught:
        ap.validate_dataset(spoilt)
    assert named in str(caught.value)


def test_a_part_of_a_file_is_refused(tmp_path):
    new = tmp_path / "new.nc"
    ap.save_dataset(swept(), new)
    before = new.read_bytes()
    for keep in (0, 100, 4000, 12000):
        new.write_bytes(before[:keep])
        with pytest.raises(ap.errors.DatasetError, match=r"new\.nc: "):
            ap.load_dataset(new)
