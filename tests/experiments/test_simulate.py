"""Experiments as users run them: datasets, seeds, checkpoints, memory, the caller's settings of torch."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

import attnphase as ap
from attnphase.data.variables import RunStatus
from attnphase.errors import ExperimentError
from attnphase.experiments import memory
from attnphase.experiments.memory import MemoryNeed
from attnphase.files.writing import write_file

PAPER = ap.Problem.paper(omega=0.3)
SMALL: dict[str, Any] = {"dimension": 30, "seeds": 2, "test_samples": 50}
ENDINGS = "ignore:.*not converged"


def same(a: xr.Dataset, b: xr.Dataset) -> None:
    """Every number is the same, bit by bit."""
    assert set(a.data_vars) == set(b.data_vars)
    for name in a.data_vars:
        np.testing.assert_array_equal(a[name].to_numpy(), b[name].to_numpy(), err_msg=str(name))


def test_the_result_is_a_dataset_of_the_schema_whose_runs_depend_on_their_seed_alone(tmp_path):
    grid: Any = (PAPER, [1.0, 1.8], ["semantic", "positional"], [20, 30], 2)
    ds = ap.simulate(*grid, test_samples=80, seed=4, trajectory=10)
    assert ds["status"].dims == ("start", "dimension", "alpha", "seed")
    assert ds["theta"].dims == ("start", "dimension", "alpha", "seed", "token", "row", "teacher")
    assert ds.attrs["seed"] == 4
    both = np.hypot(ds["test_error_stderr"], ds["test_error_sampled_stderr"])
    assert (np.abs(ds["test_error"] - ds["test_error_sampled"]) < 4 * both).all()  # of 80 fresh samples
    assert ds.attrs["rule"].startswith("lbfgs (steps 2000; tolerance 1e-08), float64")
    ap.save_dataset(ds, tmp_path / "runs.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "runs.nc"), ds)
    part = ap.simulate(PAPER, 1.8, "positional", 30, 2, test_samples=80, seed=4, trajectory=10)
    same(part, ds.sel(start=["positional"], dimension=[30], alpha=[1.8]).isel(step=slice(part.sizes["step"])))
    other = ap.simulate(PAPER, 1.8, "positional", 30, 2, test_samples=80, seed=5)
    assert (other["test_error"].to_numpy() != part["test_error"].to_numpy()).all()


def test_mixtures_have_their_clusters_dimension():
    clusters = [[{"sigma": 0.45, "mean": [0.7]}], [{"sigma": 0.6}, {"sigma": 0.4, "mean": [0.3]}]]
    law = {"tokens.law": {"kind": "table", "table": [[0.3, 0.7]]}}
    problem = PAPER.with_fields({"tokens.kind": "mixture", "tokens.clusters": clusters} | law)
    ds = ap.validate_dataset(ap.simulate(problem, 2.0, "semantic", 30, 2, "gd", steps=20, trajectory=10))
    assert ds["q"].dims[-4:] == ("token", "cluster", "row", "col")
    assert ds["trajectory_m"].dims[-4:] == ("step", "token", "cluster", "row")
    np.testing.assert_array_equal(np.isnan(ds["m"]).all(["seed", "row"]).squeeze(), [[False, True], [False, False]])


@pytest.mark.parametrize("kind", ["lasso", "group-lasso"])
def test_the_optimizer_by_default_can_train_what_has_kinks(kind):
    problem = PAPER.with_fields({"regularizer.kind": kind, "regularizer.strength": 0.02})
    assert ap.simulate(problem, 1.1, steps=3, **SMALL).attrs["rule"].startswith("fista (steps 3;")


def test_single_precision_has_the_numbers_of_double_precision():
    single, double = (
        ap.simulate(PAPER, 2.0, "semantic", 40, 2, "gd", steps=200, dtype=dtype, test_samples=200, seed=2)
        for dtype in ("float32", "float64")
    )
    for name in ("training_loss", "test_error", "test_error_sampled", "theta"):
        np.testing.assert_allclose(single[name], double[name], rtol=1e-4)
    assert (single["training_loss"] != double["training_loss"]).all()


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "gd": {"steps": 40},
    "adam": {"steps": 40},
    "fista": {"steps": 40, "tolerance": 1e-13},
    "lbfgs": {"steps": 60, "tolerance": 1e-13},
    "gamp": {"steps": 40, "damping": 0.7, "tolerance": 1e-13},
    "sgd": {},
    "bayes-gamp": {"steps": 45, "tolerance": 1e-2},
}


@pytest.mark.filterwarnings(ENDINGS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_from_within_a_run_leads_to_the_same_numbers(tmp_path, monkeypatch, optimizer):
    """Every state that was written is what a process that is killed next leaves behind; two are taken up again."""
    path, states = tmp_path / "runs.checkpoint", []

    def kept(path: Path, content: bytes) -> None:
        states.append(content)
        write_file(path, content)

    monkeypatch.setattr("attnphase.experiments.one_pass.BLOCK", 16)  # several of them
    starts = {"bayes-gamp": ["uninformed", "informed"], "sgd": ["semantic=0.4,noise=0.5", "positional=0.3,noise=0.5"]}
    options = {"trajectory": 10, "test_samples": 60 if optimizer not in ("sgd", "bayes-gamp") else 0}
    grid: Any = (PAPER, 1.3, starts.get(optimizer, ["semantic", "positional"]), 40, 2, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.checkpoints.write_file", kept)
        whole = ap.simulate(*grid, **options, **OPTIMIZERS[optimizer], checkpoint=path, checkpoint_interval=0)
    for share in (0.3, 0.8):
        path.write_bytes(states[int(share * len(states))])
        with pytest.warns(UserWarning, match="going on from this checkpoint"):
            same(whole, ap.simulate(*grid, **options, **OPTIMIZERS[optimizer], checkpoint=path))


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "c"
    done = ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)
    for name, value in (("alpha", 2.1), ("seed", 3)):
        with pytest.raises(ExperimentError, match=f"belongs to other training runs, with another {name}; remove it"):
            ap.simulate(PAPER, **{"alpha": 2.0, name: value}, start="semantic", **SMALL, checkpoint=path)
    with pytest.warns(UserWarning, match="2 runs are done"):
        same(ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path), done)
    whole = path.read_bytes()
    for i in range(1, 21):  # one bit each time
        damaged = bytearray(whole)
        damaged[i * len(whole) // 21] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(ExperimentError, match=r"this is not a checkpoint of training runs, or it is damaged"):
            ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)


def test_little_memory_makes_small_groups_with_the_same_numbers(monkeypatch):
    plenty = ap.simulate(PAPER, 2.0, "semantic", 30, 5, test_samples=50)
    need = MemoryNeed.of(PAPER, 30, 60, "lbfgs", 50, 8).total
    monkeypatch.setattr(memory, "OVERHEAD", 0)
    monkeypatch.setattr("attnphase.experiments.runs.available_memory", lambda _device: int(2.5 * need / 0.6))
    same(ap.simulate(PAPER, 2.0, "semantic", 30, 5, test_samples=50), plenty)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("optimizer", ["gd", "lbfgs", "gamp"])
def test_gpu_and_cpu_agree(optimizer):
    on_cpu, on_gpu = (ap.simulate(PAPER, 2.5, **SMALL, optimizer=optimizer, device=d) for d in ("cpu", "cuda"))
    for name in ("training_loss", "test_error", "q", "theta"):
        np.testing.assert_allclose(on_gpu[name], on_cpu[name], rtol=1e-6)


def test_the_command_says_how_runs_ended():
    fast = ["simulate", "--alpha", "2", "--dimension", "30", "--seeds", "2", "--test-samples", "50", "--quiet"]
    failed = run(*fast, "--steps", "10", code=1)
    first = "the first start = semantic, dimension = 30, alpha = 2, seed = 0 (step_limit)"
    assert f"2 of 2 runs not converged, {first}" in failed.stderr
    run(*fast, "--steps", "10", "--allow-unconverged")
    run(*fast, "--optimizer", "gd", "--steps", "10")  # a fixed number of steps is no failure
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert "(diverged)" in run(*fast, "--optimizer", "gd", "--learning-rate", "900", code=1).stderr


@contextmanager
def callers_settings(of: str) -> Any:
    """Results that land on this default device have no numbers."""
    with torch.inference_mode(of == "inference mode"):
        if of == "default device":
            torch.set_default_device("meta")
        before = torch.get_default_device(), torch.is_inference_mode_enabled()
        try:
            yield
            assert (torch.get_default_device(), torch.is_inference_mode_enabled()) == before
        finally:
            torch.set_default_device(None)


@pytest.mark.filterwarnings(ENDINGS)
@pytest.mark.parametrize("of", ["default device", "inference mode"])
@pytest.mark.parametrize("optimizer", ["gd", "lbfgs", "gamp", "sgd", "bayes-gamp"])
def test_the_callers_torch_settings_change_no_run(optimizer, of, tmp_path, monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # other threads do not have the caller's mode
    options: dict[str, Any] = {"optimizer": optimizer, "dimension": 24, "seeds": 2, "test_samples": 20, "seed": 3}
    options |= {"steps": 20} if optimizer in ("gd", "adam") else {}
    expected = ap.simulate(PAPER, 1.3, **options)
    assert (expected["status"] != RunStatus.diverged).all()
    with callers_settings(of):
        same(ap.simulate(PAPER, 1.3, **options, checkpoint=tmp_path / "runs"), expected)
        with pytest.warns(UserWarning, match="2 runs are done"):
            same(ap.simulate(PAPER, 1.3, **options, checkpoint=tmp_path / "runs"), expected)
    torch.set_num_threads(threads)
