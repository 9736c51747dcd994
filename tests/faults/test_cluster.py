"""Sweeps on a real Dask cluster of two processes: workers and clients that are killed lose no finished line."""

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from typing import Any

import gated_lines
import pytest
import xarray as xr
from command import run as command

import attnphase as ap
from attnphase.data.files import load_dataset
from attnphase.errors import MissingExtraError, SweepError
from attnphase.problem.problem import Problem
from attnphase.sweeps.store import parts_folder

pytest.importorskip("distributed", reason='sweeps on a cluster need the extra "distributed"')

CLUSTER = importlib.import_module("attnphase.sweeps.cluster")
SWEEP = importlib.import_module("attnphase.sweeps.grid")
PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
ALPHAS, OMEGAS = [1.6, 2.0], [0.1, 0.2, 0.3]
OPTIONS = ["sweep", "--set", "integration.rule=sobol", "--set", "integration.nodes=16"]
OPTIONS += ["--alpha", "1.6,2", "--omega", "0.1,0.2,0.3"]
ALWAYS = 600  # seconds after which a test gives up; nothing is decided by time


def wait_until(condition):
    end = time.monotonic() + ALWAYS
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def undisturbed():
    """The grid, computed by this process before its lines are gated."""
    return ap.sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)


@pytest.fixture(scope="module")
def folder(undisturbed, tmp_path_factory):
    """The folder whose files say what lines do; from now on they are gated ones, here and in the workers."""
    folder = tmp_path_factory.mktemp("gates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(gated_lines.FOLDER, str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        patch.setattr(SWEEP, "Line", gated_lines.GatedLine)
        yield folder


@pytest.fixture
def gates(folder):
    """The same, with every gate shut and nothing noted yet."""
    for path in folder.iterdir():
        path.unlink()
    return folder


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    """Of a scheduler with two workers, each a process that is replaced when it dies."""
    from distributed import LocalCluster

    place = str(tmp_path_factory.mktemp("dask"))
    options = {"dashboard_address": None, "host": "127.0.0.1", "local_directory": place, "silence_logs": 50}
    cluster: Any
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, scheduler_kwargs={"allowed_failures": 1}, **options
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_a_killed_worker_costs_its_line_alone(undisturbed, gates, address, tmp_path):
    (gates / "die-once").touch()
    (gates / "open").touch()
    output = tmp_path / "out.nc"
    result = command(*OPTIONS, "--scheduler", address, "-o", output)
    assert not (gates / "die-once").exists()  # one of them was killed
    assert result.stdout.startswith(f"{output}: 12 converged")
    xr.testing.assert_equal(load_dataset(output), undisturbed)
    labels = gated_lines.noted(gates / "solved")
    assert len(labels) == len(set(labels)) == 6
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


@pytest.mark.slow
def test_a_killed_client_is_followed_by_another(undisturbed, gates, address, tmp_path):
    """One line is finished and kept while the workers are at others, which wait: there the client is killed."""
    output = tmp_path / "out.nc"
    arguments = ["-m", "gated_lines", *OPTIONS, "--scheduler", address, "-o", str(output)]
    with subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True) as client:
        kept = lambda: list(parts_folder(output).glob("line-*.nc"))  # noqa: E731
        wait_until(lambda: (kept() and len(gated_lines.noted(gates / "begun")) == 3) or client.poll() is not None)
        client.kill()
        assert client.communicate(timeout=ALWAYS)[1] == ""
    (path,) = kept()
    before = path.stat().st_mtime_ns
    assert not output.exists()
    (gates / "open").touch()
    ds = ap.sweep(PROBLEM, ALPHAS, OMEGAS, scheduler=address, output=output, resume=True)
    xr.testing.assert_equal(ds, undisturbed)
    xr.testing.assert_identical(load_dataset(output), ds)
    assert before > 0
    assert gated_lines.noted(gates / "solved").count(gated_lines.FIRST) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


@pytest.mark.slow
def test_workers_that_always_die_are_named(gates, address, tmp_path):
    (gates / "die").touch()
    with pytest.raises(SweepError, match=r"the workers that solved it died, perhaps because memory ran out"):
        ap.sweep(PROBLEM, [2.0], branch="semantic", scheduler=address, output=tmp_path / "out.nc")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_worker_with_another_program_is_refused(gates, address, monkeypatch):
    (gates / "open").touch()
    monkeypatch.setattr("attnphase.sweeps.line.source_hash", lambda: 64 * "f")
    with pytest.raises(SweepError, match=r"a worker has another version of attnphase"):
        ap.sweep(PROBLEM, [2.0], branch="semantic", scheduler=address)
    assert gated_lines.noted(gates / "solved") == []


def unreachable(address, words, tmp_path, monkeypatch):
    """What a sweep says that would discard finished lines if it began."""
    monkeypatch.setattr(CLUSTER, "PATIENCE", 0.2)
    output = tmp_path / "out.nc"
    parts_folder(output).mkdir()
    (parts_folder(output) / "line-0123.nc").write_bytes(b"precious")
    said = command(*OPTIONS, "--scheduler", address, "-o", output, "--force", code=2).stderr
    assert words in said
    assert said.count("\n") == 1
    assert [path.name for path in parts_folder(output).iterdir()] == ["line-0123.nc"]


def test_an_address_where_nobody_listens(tmp_path, monkeypatch):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{found.getsockname()[1]}"
        unreachable(address, f"no Dask scheduler answers at {address} within 0.2 seconds", tmp_path, monkeypatch)


def test_a_server_that_says_nothing(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        unreachable(address, f"no Dask scheduler answers at {address} within 0.2 seconds", tmp_path, monkeypatch)


def test_an_address_of_no_protocol(tmp_path, monkeypatch):
    unreachable("carrier://pigeon:1", "is not the address of a Dask scheduler", tmp_path, monkeypatch)


def test_the_extra_is_asked_for(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "distributed" else find(name, *rest)
    )
    with pytest.raises(MissingExtraError, match=r"pip install \"attnphase\[distributed\]\""):
        ap.sweep(PROBLEM, ALPHAS, scheduler="tcp://127.0.0.1:1")
