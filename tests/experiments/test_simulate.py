"""Experiments as users run them: datasets, seeds, checkpoints, memory, the caller's settings of torch."""

import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from command import run
from surroundings import callers_settings, free_memory, threads_of_torch

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

import attnphase as ap
from attnphase.errors import ExperimentError

PAPER = ap.Problem.paper(omega=0.3)
SMALL: dict[str, Any] = {"dimension": 30, "seeds": 2, "test_samples": 50}
pytestmark = pytest.mark.filterwarnings("ignore:.*not converged")


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


MIXED = {
    "tokens.kind": "mixture",
    "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}], [{"sigma": 0.6}, {"sigma": 0.4, "mean": [0.3]}]],
    "tokens.law": {"kind": "table", "table": [[0.3, 0.7]]},
}


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
    "sgd": {"trajectory": 250, "test_samples": 0},
    "bayes-gamp": {"steps": 45, "tolerance": 1e-2, "test_samples": 0},
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_from_within_a_run_leads_to_the_same_numbers(tmp_path, monkeypatch, optimizer):
    """Every state that was written is what a process that is killed next leaves behind; two are taken up again."""
    path, states, replace = tmp_path / "runs.checkpoint", [], Path.replace

    def kept(self: Path, target: Path) -> Path:
        states.append(self.read_bytes())
        return replace(self, target)

    starts = {"bayes-gamp": ["uninformed", "informed"], "sgd": ["semantic=0.4,noise=0.5", "positional=0.3,noise=0.5"]}
    options: dict[str, Any] = {"trajectory": 10, "test_samples": 60} | OPTIMIZERS[optimizer]
    alpha = 26.0 if optimizer == "sgd" else 1.3  # several blocks of fresh samples
    grid: Any = (PAPER, alpha, starts.get(optimizer, ["semantic", "positional"]), 40, 2, optimizer)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kept)
        whole = ap.simulate(*grid, **options, checkpoint=path, checkpoint_interval=0)
    for share in (0.3, 0.8):
        path.write_bytes(states[int(share * len(states))])
        with pytest.warns(UserWarning, match="going on from this checkpoint"):
            same(whole, ap.simulate(*grid, **options, checkpoint=path))


def test_checkpoints_of_other_runs_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "c"
    done = ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)
    for name, value in (("alpha", 2.1), ("seed", 3)):
        with pytest.raises(ExperimentError, match=f"belongs to other training runs, with another {name}; remove it"):
            ap.simulate(PAPER, **{"alpha": 2.0, name: value}, start="semantic", **SMALL, checkpoint=path)
    with pytest.warns(UserWarning, match="2 runs are done"):
        same(ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path), done)
    own = tmp_path / "own"  # of a score that gets another meaning under its name
    for row in (list, lambda z: [2 * v for v in z]):
        ap.register_score("own_row", row)
        problem = PAPER.with_fields({"student.score": "own_row"})
        with pytest.raises(ExperimentError, match="another source of functions") if own.exists() else nullcontext():
            ap.simulate(problem, 2.0, "semantic", **SMALL, checkpoint=own)
    whole = path.read_bytes()
    for i in range(1, 21):  # one bit each time
        damaged = bytearray(whole)
        damaged[i * len(whole) // 21] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(ExperimentError, match=r"this is not a checkpoint of training runs, or it is damaged"):
            ap.simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="the memory of Linux is replaced here")
def test_runs_are_as_many_at_a_time_as_60_per_cent_of_the_free_memory_hold():
    """Less the program's own 300 MiB; the tokens are most of what a run needs, and message passing needs more."""
    tokens = 8 * 600 * 2 * 600
    shape: dict[str, Any] = {"dimension": 600, "steps": 10, "test_samples": 0}

    def holding(share: float) -> Any:
        return free_memory((300 * 2**20 + share * tokens) / 0.6)

    plenty = ap.simulate(PAPER, 1.0, "semantic", seeds=3, **shape)
    for share in (1.5, 2.8):
        with holding(share):
            same(ap.simulate(PAPER, 1.0, "semantic", seeds=3, **shape), plenty)
    refused: Any = ((0.99, "lbfgs"), (1.5, "gamp"))
    for share, optimizer in refused:
        with holding(share), pytest.raises(ExperimentError, match=r"the largest n L d that fits is about [4-6]\.\d"):
            ap.simulate(PAPER, 1.0, "semantic", seeds=1, optimizer=optimizer, **shape)


def test_numbers_do_not_depend_on_threads():
    """Bit for bit, with several runs in a part and a part that is not full; a part of other runs would be seen."""
    problem = PAPER.with_fields(MIXED)
    options: dict[str, Any] = {"steps": 20, "test_samples": 50, "tolerance": 1e-13, "trajectory": 10}
    for optimizer in ("gd", "lbfgs"):
        alone = ap.simulate(problem, 50.0, "semantic", 30, 1, optimizer, **options)
        ends = []
        for threads in (1, 3):
            with threads_of_torch(threads):
                ends.append(ap.simulate(problem, 50.0, "semantic", 30, 5, optimizer, **options))
        same(*ends)
        ds = ap.validate_dataset(ends[0])
        assert ds["q"].dims[-4:] == ("token", "cluster", "row", "col")
        assert ds["trajectory_m"].dims[-4:] == ("step", "token", "cluster", "row")
        np.testing.assert_array_equal(ds["m"].isnull().all(["seed", "row"]).squeeze(), [[False, True], [False] * 2])
        for name in ("training_loss", "q", "test_error_sampled", "linear_test_error"):
            np.testing.assert_allclose(ends[0][name].isel(seed=[0]), alone[name], rtol=1e-9)


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


@pytest.mark.parametrize("of", ["default device", "inference mode"])
@pytest.mark.parametrize("optimizer", ["gd", "lbfgs", "gamp", "sgd", "bayes-gamp"])
def test_the_callers_torch_settings_change_no_run(optimizer, of, tmp_path):
    """Two threads, of which the second has not the caller's mode."""
    options: dict[str, Any] = {"optimizer": optimizer, "dimension": 24, "seeds": 2, "test_samples": 20, "seed": 3}
    options |= {"steps": 20} if optimizer == "gd" else {}
    with threads_of_torch(2):
        expected = ap.simulate(PAPER, 1.3, **options)
        assert np.isfinite(expected["test_error"]).all()
        with callers_settings(of):
            same(ap.simulate(PAPER, 1.3, **options, checkpoint=tmp_path / "runs"), expected)
            with pytest.warns(UserWarning, match="2 runs are done"):
                same(ap.simulate(PAPER, 1.3, **options, checkpoint=tmp_path / "runs"), expected)
