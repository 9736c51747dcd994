"""Basins that are interrupted or killed: what was found is kept, and the end is that of a command left alone."""

import signal

import numpy as np
import pytest
import xarray as xr
from stop_at import ended

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.files import load_dataset
from attnphase.errors import DatasetError
from attnphase.files.checkpoints import BASINS
from attnphase.files.writing import write_file
from attnphase.problem import Problem
from attnphase.sweeps import kept
from attnphase.theories.sgd_flow import planes
from attnphase.theories.sgd_flow.run import basins

ASKED = ["--omega", "0.27", "--scale", "0.6", "--angle", "30,65", "--quiet"]
ASKED += ["--set", "integration.rule=gauss-hermite", "--set", "integration.nodes=6"]
PROBLEM = Problem.paper(omega=0.3).with_fields({"integration.rule": "gauss-hermite", "integration.nodes": 6})


def run(*more: object) -> int:
    try:
        return int(main(["basins", *ASKED, *map(str, more)], standalone_mode=False) or 0)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setattr(planes, "BISECTIONS", 0)


def test_killed_basins_go_on_bit_for_bit(tmp_path, monkeypatch):
    whole, resumed = tmp_path / "whole.nc", tmp_path / "resumed.nc"
    followed = []
    arrival = planes.arrival_from
    monkeypatch.setattr(planes, "arrival_from", lambda *args: followed.append(1) or arrival(*args))
    assert run("-o", whole) == 0
    of_whole = len(followed)
    assert not whole.with_name("whole.nc.checkpoint").exists()
    code, _ = ended(signal.SIGKILL, "attnphase.files.checkpoints:write_file", 2, ["basins", *ASKED, "-o", str(resumed)])
    assert code == -signal.SIGKILL
    assert resumed.with_name("resumed.nc.checkpoint").exists()
    assert not resumed.exists()
    with pytest.warns(UserWarning, match="going on from this checkpoint .2 ends are known"):
        assert run("-o", resumed) == 0
    one, other = load_dataset(whole), load_dataset(resumed)
    xr.testing.assert_identical(one.drop_attrs(), other.drop_attrs())
    assert np.isfinite(one.boundary).all()
    assert len(followed) == 2 * of_whole - 2


def test_an_interruption_says_where_to_go_on(tmp_path, monkeypatch, capsys):
    output = tmp_path / "one.nc"

    def interrupted(path, content):
        write_file(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr("attnphase.files.checkpoints.write_file", interrupted)
    assert run("-o", output) == 130
    text = " ".join(capsys.readouterr().err.split())
    assert f"what was found is kept in {output}.checkpoint; run the same command again to go on" in text


def test_checkpoints_of_other_basins_and_damaged_ones_are_refused(tmp_path):
    kept_ends = tmp_path / "kept"
    basins(PROBLEM, 0.27, 0.6, 30.0, checkpoint=kept_ends)
    with pytest.raises(DatasetError, match="belongs to other basins, with another learning_rate"):
        basins(PROBLEM, 0.27, 0.6, 30.0, checkpoint=kept_ends, learning_rate=0.5)
    with pytest.raises(DatasetError, match=r"holds ends of omega = 0\.27 and scale = 0\.6, which are not asked for"):
        basins(PROBLEM, 0.31, 0.6, 30.0, checkpoint=kept_ends)
    kept_ends.write_bytes(kept_ends.read_bytes().replace(b"0.27", b"0.28"))
    with pytest.raises(DatasetError, match="not a checkpoint of basins, or it is damaged"):
        basins(PROBLEM, 0.27, 0.6, 30.0, checkpoint=kept_ends)


def test_a_checkpoint_belongs_to_one_command_at_a_time(tmp_path):
    ends = tmp_path / "kept"
    with kept.checkpoint_for_us(ends, BASINS):
        with pytest.raises(DatasetError, match="kept: other basins are written to this checkpoint; wait for them"):
            basins(PROBLEM, 0.27, 0.6, 30.0, checkpoint=ends)
        assert not ends.exists()
    assert list(tmp_path.iterdir()) == []
    with kept.checkpoint_for_us(ends, BASINS), kept.checkpoint_for_us(tmp_path / "other", BASINS):
        pass


def test_runs_that_cannot_be_drawn_are_refused_before_anything_is_followed(tmp_path, monkeypatch):
    """Of another kind, or from starts whose sizes nobody knows."""
    asked = ["--figure", tmp_path / "one.png", "-o", tmp_path / "one.nc"]
    followed = []
    monkeypatch.setattr(planes, "arrival_from", lambda *args: followed.append(1))
    runs = ap.simulate(Problem(), 1.5, "semantic", 12, 2, "gd", steps=3, test_samples=0)
    ap.save_dataset(runs, tmp_path / "runs.nc")
    with pytest.raises(DatasetError, match='the runs start from "semantic", but must start from sizes'):
        run("--runs", tmp_path / "runs.nc", *asked)
    ap.save_dataset(
        ap.solve(PROBLEM, 1.5, "uninformed", settings=ap.SolverSettings(stability=False, threads=1)),
        tmp_path / "other.nc",
    )
    with pytest.raises(DatasetError, match="the runs"):
        run("--runs", tmp_path / "other.nc", *asked)
    assert not followed
    assert sorted(file.name for file in tmp_path.iterdir()) == ["other.nc", "runs.nc"]
