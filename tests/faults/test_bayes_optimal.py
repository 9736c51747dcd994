"""Bayes-optimal limits that are interrupted or killed: finished points are kept, and the end is the same."""

import signal

import numpy as np
import pytest
import xarray as xr
from stop_at import ended

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.files import load_dataset
from attnphase.errors import DatasetError
from attnphase.files.writing import write_file
from attnphase.problem import Problem
from attnphase.theories.bayes_optimal import run as home

ASKED = ["--alpha", "0.27,0.36", "--vary", "teacher.omega=0.2,0.45", "--start", "uninformed", "--max-nodes", "2048"]
PROBLEM = Problem.paper(omega=0.3)


def run(*more: object) -> int:
    try:
        return int(main(["bayes-optimal", *ASKED, "--quiet", *map(str, more)], standalone_mode=False) or 0)
    except SystemExit as end:
        return int(end.code or 0)


def test_a_killed_grid_goes_on_bit_for_bit(tmp_path, monkeypatch):
    whole, resumed = tmp_path / "whole.nc", tmp_path / "resumed.nc"
    solved = []
    solve = home.solve_bayes_optimal
    monkeypatch.setattr(home, "solve_bayes_optimal", lambda *args, **kw: solved.append(args[1]) or solve(*args, **kw))
    assert run("-o", whole) == 0
    assert not whole.with_name("whole.nc.checkpoint").exists()
    command = ["bayes-optimal", *ASKED, "--quiet", "-o", str(resumed)]
    code, _ = ended(signal.SIGKILL, "attnphase.files.checkpoints:write_file", 2, command)
    assert code == -signal.SIGKILL
    assert resumed.with_name("resumed.nc.checkpoint").exists()
    assert not resumed.exists()
    with pytest.warns(UserWarning, match="going on from this checkpoint .2 points are known"):
        assert run("-o", resumed) == 0
    one, other = load_dataset(whole), load_dataset(resumed)
    xr.testing.assert_identical(one.drop_attrs(), other.drop_attrs())
    assert len(solved) == 4 + 2
    assert not resumed.with_name("resumed.nc.checkpoint").exists()


def test_an_interruption_says_where_to_go_on(tmp_path, monkeypatch, capsys):
    output = tmp_path / "one.nc"

    def interrupted(path, content):
        write_file(path, content)
        raise KeyboardInterrupt

    monkeypatch.setattr("attnphase.files.checkpoints.write_file", interrupted)
    assert run("-o", output) == 130
    text = " ".join(capsys.readouterr().err.split())
    assert f"what was found is kept in {output}.checkpoint; run the same command again to go on" in text


def test_points_and_thresholds_are_read_back_as_they_were(tmp_path):
    """Infinite and missing numbers, whole ones, errors and thresholds: from the file alone."""
    file = tmp_path / "kept"
    asked = {"thresholds": True, "settings": ap.SolverSettings(max_nodes=2**11), "checkpoint": file}
    retrieval = Problem.from_dict({"tokens": {"length": 1, "sigma": 0.7}, "loss": {"kind": "square"}})
    first = ap.bayes_optimal(retrieval, [0.3, 1.3], channel="absolute", **asked)
    assert np.isnan(first.free_entropy).any()
    with pytest.warns(UserWarning, match="4 points are known"):
        again = ap.bayes_optimal(retrieval, [0.3, 1.3], channel="absolute", **asked)
    xr.testing.assert_identical(first.drop_attrs(), again.drop_attrs())
    assert again["algorithmic"].attrs == first["algorithmic"].attrs


def test_checkpoints_of_other_limits_and_damaged_ones_are_refused(tmp_path):
    file = tmp_path / "kept"
    asked = {"start": "uninformed", "checkpoint": file}
    ap.bayes_optimal(PROBLEM, 0.27, settings=ap.SolverSettings(max_nodes=2**11), **asked)
    with pytest.raises(DatasetError, match="belongs to other Bayes-optimal limits, with another max_nodes"):
        ap.bayes_optimal(PROBLEM, 0.27, settings=ap.SolverSettings(max_nodes=2**12), **asked)
    with pytest.raises(DatasetError, match=r"holds the point alpha = 0\.27, start = uninformed, which is not asked"):
        ap.bayes_optimal(PROBLEM, 0.31, settings=ap.SolverSettings(max_nodes=2**11), **asked)
    file.write_bytes(file.read_bytes().replace(b"0.27", b"0.28"))
    with pytest.raises(DatasetError, match="not a checkpoint of Bayes-optimal limits, or it is damaged"):
        ap.bayes_optimal(PROBLEM, 0.27, settings=ap.SolverSettings(max_nodes=2**11), **asked)
