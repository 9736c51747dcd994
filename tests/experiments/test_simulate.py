"""Experiments as users run them: datasets, checkpoints and kills, refusals, memory, the command line, no torch."""

from __future__ import annotations

import inspect
import io
import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from command import run as run_command
from stop_at import ended

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.variables import RunStatus
from attnphase.errors import DatasetError, ExperimentError, ProblemError
from attnphase.experiments import memory
from attnphase.experiments.checkpoint import Checkpoint
from attnphase.experiments.histogram.report import histogram_dataset
from attnphase.experiments.histogram.settings import FrozenPlan, HistogramSizes, UnfrozenPlan
from attnphase.experiments.histogram.stages import train_histogram, unfreeze_histogram
from attnphase.experiments.memory import MemoryNeed, runs_that_fit
from attnphase.experiments.optimizers.gradient_descent import GradientDescent
from attnphase.experiments.plan import Plan
from attnphase.experiments.simulate import simulate
from attnphase.files.writing import write_file
from attnphase.problem.problem import Problem

PAPER = Problem.paper(omega=0.3)
SMALL: dict[str, Any] = {"dimension": 30, "seeds": 2, "test_samples": 50}


def same(a: xr.Dataset, b: xr.Dataset) -> None:
    """Every number is the same, bit by bit."""
    assert set(a.data_vars) == set(b.data_vars)
    for name in a.data_vars:
        np.testing.assert_array_equal(a[name].to_numpy(), b[name].to_numpy(), err_msg=str(name))


@pytest.mark.parametrize("kind", ["lasso", "group-lasso"])
def test_the_optimizer_by_default_can_train_what_has_kinks(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = {"regularizer.kind": kind, "regularizer.strength": 0.02}
    assert simulate(PAPER.with_fields(changes), 1.1, steps=3, **SMALL).attrs["rule"].startswith("fista (steps 3;")
    sets = [word for field, value in changes.items() for word in ("--set", f"{field}={value}")]
    options = ["--alpha", "1.1", "--dimension", "30", "--seeds", "2", "--steps", "3", "-o", "runs.nc"]
    run_command("simulate", *sets, *options, "--allow-unconverged")
    assert ap.load_dataset("runs.nc").attrs["rule"].startswith("fista (steps 3;")
    with pytest.raises(ProblemError, match="optimizer lbfgs needs the ridge"):
        simulate(PAPER.with_fields(changes), 1.1, optimizer="lbfgs", **SMALL)


def test_the_result_is_a_dataset_of_the_schema(tmp_path):
    ds = simulate(PAPER, [1.0, 1.8], ["semantic", "positional"], [20, 30], 3, test_samples=80, seed=4, trajectory=10)
    assert ds["status"].dims == ("start", "dimension", "alpha", "seed")
    assert ds["theta"].dims == ("start", "dimension", "alpha", "seed", "token", "row", "teacher")
    assert ds.attrs["seed"] == 4
    assert ds.attrs["rule"].startswith("lbfgs (steps 2000; tolerance 1e-08), float64")
    ap.save_dataset(ds, tmp_path / "runs.nc")
    xr.testing.assert_identical(ap.load_dataset(tmp_path / "runs.nc"), ds)
    # one start's runs do not depend on the others, and the seed decides everything
    part = simulate(PAPER, 1.8, "positional", 30, 3, test_samples=80, seed=4, trajectory=10)
    same(part, ds.sel(start=["positional"], dimension=[30], alpha=[1.8]).isel(step=slice(part.sizes["step"])))
    other = simulate(PAPER, 1.8, "positional", 30, 3, test_samples=80, seed=5)
    assert (other["test_error"].to_numpy() != part["test_error"].to_numpy()).all()


def test_mixtures_have_their_clusters_dimension():
    problem = PAPER.with_fields(
        {
            "tokens.kind": "mixture",
            "tokens.clusters": [[{"sigma": 0.45, "mean": [0.7]}], [{"sigma": 0.6}, {"sigma": 0.4, "mean": [0.3]}]],
            "tokens.law": {"kind": "table", "table": [[0.3, 0.7]]},
        }
    )
    ds = ap.validate_dataset(simulate(problem, 2.0, "semantic", 30, 2, "gd", steps=20, trajectory=10, test_samples=0))
    assert ds["q"].dims[-4:] == ("token", "cluster", "row", "col")
    assert ds["trajectory_m"].dims[-4:] == ("step", "token", "cluster", "row")
    assert np.isnan(ds["m"].to_numpy()[..., 0, 1, :]).all()
    assert np.isfinite(ds["m"].to_numpy()[..., 1, :, :]).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_precision(dtype):
    ds = simulate(PAPER, 2.0, "semantic", 40, 2, "gd", steps=200, dtype=dtype, test_samples=200, seed=2)
    double = simulate(PAPER, 2.0, "semantic", 40, 2, "gd", steps=200, test_samples=200, seed=2)
    limit = 1e-4 if dtype == "float32" else 0
    for name in ("training_loss", "test_error", "test_error_sampled", "theta"):
        np.testing.assert_allclose(ds[name], double[name], rtol=limit)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        ("gd", {"steps": 40}),
        ("adam", {"steps": 40}),
        ("lbfgs", {"steps": 60, "tolerance": 1e-13}),
        ("gamp", {"steps": 40, "damping": 0.7, "tolerance": 1e-13}),
    ],
)
def test_a_checkpoint_from_within_a_run_leads_to_the_same_numbers(tmp_path, monkeypatch, optimizer, options):
    """Every state that was written is what a process that is killed next leaves behind; one is taken up again."""
    path, written = tmp_path / "runs.checkpoint", []

    def kept(path, content):
        written.append(content)
        write_file(path, content)

    grid = (PAPER, 2.0, ["semantic", "positional"], 60, 3, optimizer)
    arguments: dict[str, Any] = {"trajectory": 10, "test_samples": 60, **options}
    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.checkpoints.write_file", kept)
        whole = simulate(*grid, **arguments, checkpoint=path, checkpoint_interval=0)
    same(whole, simulate(*grid, **arguments))

    def within_the_second_start(content: bytes) -> bool:
        path.write_bytes(content)
        kept = Checkpoint.read(path)
        return len(kept.finished) == 3 and kept.running is not None

    chosen = [content for content in written if within_the_second_start(content)]
    assert len(chosen) >= 2
    path.write_bytes(chosen[len(chosen) // 2])
    with pytest.warns(UserWarning, match=r"going on from this checkpoint \(3 runs are done\)"):
        resumed = simulate(*grid, **arguments, checkpoint=path)
    same(resumed, whole)


def test_checkpoints_of_others_and_damaged_ones_are_refused(tmp_path):
    path = tmp_path / "c"
    done = simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)
    with pytest.raises(
        ExperimentError,
        match="belongs to other training runs, with another alpha; remove it, or name",
    ):
        simulate(PAPER, 2.1, "semantic", **SMALL, checkpoint=path)
    with pytest.raises(ExperimentError, match="belongs to other training runs, with another problem"):
        simulate(PAPER.with_fields({"teacher.omega": 0.31}), 2.0, "semantic", **SMALL, checkpoint=path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same(simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path), done)
    whole = path.read_bytes()
    flipped = [bytearray(whole) for _ in range(20)]
    for i, copy in enumerate(flipped):
        copy[(i + 1) * len(whole) // 21] ^= 0x10
    foreign = io.BytesIO()
    torch.save({"fingerprint": "x", "plan": {}, "finished": {}, "running": None}, foreign)
    for damaged in (whole[: len(whole) // 2], b"", b"no checkpoint", foreign.getvalue(), *flipped):
        path.write_bytes(damaged)
        with pytest.raises(ExperimentError, match=r"^.*c: this is not a checkpoint of training runs, or it is damaged"):
            simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=path)
    with pytest.raises(DatasetError, match="there is no folder"):
        simulate(PAPER, 2.0, "semantic", **SMALL, checkpoint=tmp_path / "none" / "c")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "terminate", "kill -9"])
def test_an_interruption_keeps_what_was_computed(tmp_path, monkeypatch, how):
    output, checkpoint = tmp_path / "runs.nc", tmp_path / "runs.nc.checkpoint"
    command = ["simulate", "--alpha", "2", "--start", "semantic", "--start", "positional", "--dimension", "60"]
    command += ["--seeds", "3", "--optimizer", "gd", "--steps", "40", "--test-samples", "50", "-o", str(output)]
    if how == signal.SIGTERM:  # in this process
        step = GradientDescent.step

        def told_to_end(self):
            signal.raise_signal(how)
            return step(self)

        with monkeypatch.context() as patch:
            patch.setattr(GradientDescent, "step", told_to_end)
            code, _, errors = run(*command)
    elif how == signal.SIGINT:
        code, errors = ended(how, "attnphase.experiments.optimizers.gradient_descent:GradientDescent.step", 15, command)
    else:  # what is finished is there, and nothing of what was begun
        code, errors = ended(how, "attnphase.files.checkpoints:write_file", 1, command)
    kept = Checkpoint.read(checkpoint)
    if how == signal.SIGKILL:
        assert code == -how
        assert len(kept.finished) == 3
    else:
        assert code == 128 + how
        sentence = f"interrupted: what was computed is kept in {checkpoint}; run the same command again to go on."
        assert sentence in errors.replace("\n", "")
        assert kept.running is not None
    assert not output.exists()
    code, _, errors = run(*command)
    assert code == 0, errors
    assert not checkpoint.exists()
    starts = ["semantic", "positional"]
    same(ap.load_dataset(output), simulate(PAPER, 2.0, starts, 60, 3, "gd", steps=40, test_samples=50))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"alpha": 0.0}, "alpha must be a positive number up to 1e+06, or a list of them, not 0.0."),
        ({"alpha": "two"}, "alpha must be a positive number up to 1e+06, or a list of them, not 'two'."),
        ({"alpha": 0.001}, "alpha = 0.001 at d = 30 gives no sample (n = alpha d, rounded)."),
        ({"alpha": [1.0, 1.0]}, "alpha has 1.0 twice: give every value once."),
        ({"alpha": 1e308}, "alpha must be a positive number up to 1e+06, or a list of them, not 1e+308."),
        ({"dimension": []}, "dimension must hold at least one value."),
        (
            {"start": [1]},
            "start must be one of semantic, positional, uninformed, mixed, several of them, or an array, not [1].",
        ),
        ({"start": "random"}, 'start must be one of semantic, positional, uninformed, mixed, not "random".'),
        (
            {"start": 3},
            "start must be one of semantic, positional, uninformed, mixed, several of them, or an array, not 3.",
        ),
        ({"dimension": 2.5}, "dimension must be a whole number of at least 2, not 2.5."),
        ({"seeds": 0}, "seeds must be a whole number of at least 1, not 0."),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1."),
        ({"test_samples": 1}, "test_samples must be 0, or at least 2 for a standard error."),
        ({"dtype": "half"}, 'dtype must be one of float64, float32, not "half".'),
        ({"start": np.zeros((31, 1))}, "start is an array, which has one dimension: give that dimension alone."),
    ],
)
def test_wrong_arguments_are_refused(options, sentence):
    arguments: dict[str, Any] = {"alpha": 2.0, "start": "semantic", "dimension": 30, "seeds": 2, **options}
    with pytest.raises(ProblemError) as caught:
        simulate(PAPER, **arguments)
    assert str(caught.value) == sentence


def test_memory_is_foreseen():
    need = MemoryNeed.of(PAPER, 1000, 2000, "lbfgs", 0, 8)
    assert 2000 * 2 * 1000 * 8 <= need.total < 1.5 * 2000 * 2 * 1000 * 8
    assert MemoryNeed.of(PAPER, 1000, 2000, "gamp", 0, 8).total > need.total
    place = {"dimension": 1000, "count": 2000, "length": 2}
    assert runs_that_fit(need, 8, 2**34, **place) == 8
    few = runs_that_fit(need, 800, 2**31, **place)
    assert 0 < few * need.total <= 2**31
    with pytest.raises(
        ExperimentError, match=r"n L d = 4e\+06\) needs 0\.0 GiB, .*: the largest n L d that fits is about \d"
    ):
        runs_that_fit(need, 8, 2**29 + 2**25, **place)


def test_little_memory_makes_small_groups_with_the_same_numbers(monkeypatch):
    plenty = simulate(PAPER, 2.0, "semantic", 30, 5, test_samples=50)
    need = MemoryNeed.of(PAPER, 30, 60, "lbfgs", 50, 8).total
    monkeypatch.setattr(memory, "OVERHEAD", 0)
    monkeypatch.setattr("attnphase.experiments.runs.available_memory", lambda device: int(2.5 * need / 0.6))
    same(simulate(PAPER, 2.0, "semantic", 30, 5, test_samples=50), plenty)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_gpu_is_one_sentence():
    with pytest.raises(ExperimentError, match=r"^no CUDA device is available: [^.]*\.$"):
        simulate(PAPER, 2.0, **SMALL, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")
@pytest.mark.parametrize("optimizer", ["gd", "lbfgs", "gamp"])
def test_gpu_and_cpu_agree(optimizer):
    on_cpu, on_gpu = (simulate(PAPER, 2.5, **SMALL, optimizer=optimizer, device=d) for d in ("cpu", "cuda"))
    for name in ("training_loss", "test_error", "q", "theta"):
        np.testing.assert_allclose(on_gpu[name], on_cpu[name], rtol=1e-6)


# --- the command line -------------------------------------------------------------------------------------------------

FAST = ["--alpha", "2", "--dimension", "30", "--seeds", "2", "--test-samples", "50"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_the_command_prints_writes_and_says_how_runs_ended(tmp_path):
    output = tmp_path / "runs.nc"
    code, out, _ = run("simulate", *FAST, "--start", "semantic", "--start", "positional", "-o", str(output))
    assert code == 0
    assert out.count("2 converged") == 2
    assert not output.with_name("runs.nc.checkpoint").exists()
    same(ap.load_dataset(output), simulate(PAPER, 2.0, ["semantic", "positional"], 30, 2, test_samples=50))
    code, out, _ = run("simulate", *FAST, "--json", "--quiet")
    assert code == 0
    assert np.shape(json.loads(out)["theta"]) == (1, 1, 1, 2, 2, 1, 1)
    code, out, err = run("simulate", *FAST, "--steps", "10", "--quiet")
    assert code == 1
    assert (
        "2 of 2 runs not converged, the first start = semantic, dimension = 30, alpha = 2, seed = 0 (step_limit)" in err
    )
    assert run("simulate", *FAST, "--steps", "10", "--quiet", "--allow-unconverged")[0] == 0
    # a fixed number of steps is no failure
    assert run("simulate", *FAST, "--optimizer", "gd", "--steps", "10", "--quiet")[0] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # also where the tests run with warnings off
        code, out, err = run("simulate", *FAST, "--optimizer", "gd", "--learning-rate", "900", "--quiet")
    assert code == 1
    assert "diverged at step" in err
    assert "(diverged)" in err


def test_a_diverged_run_keeps_its_last_finite_numbers():
    with pytest.warns(
        UserWarning, match=r"^semantic, d = 30, alpha = 2, seed 0: diverged at step \d+; its last finite"
    ):
        ds = simulate(PAPER, 2.0, "semantic", 30, 1, "gd", learning_rate=900.0, test_samples=0)
    assert int(ds["status"].item()) == RunStatus.diverged
    assert np.isfinite(ds["weight_norm"].item())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--alpha", "2", "--dimension", "big"], "'big' is not a whole number"),
        (["--alpha", "2", "--optimizer", "gd", "--damping", "0.5"], "damping belongs to gamp, bayes-gamp, not to gd"),
        (["--alpha", "2", "--dimension", "1"], "dimension must be a whole number of at least 2, not 1"),
        (["--alpha", "2", "--device", "tpu"], "device"),
        (["--alpha", "2", "-o", "no/folder/runs.nc"], "there is no folder no/folder"),
    ],
)
def test_wrong_options_end_with_2(arguments, sentence):
    code, out, err = run("simulate", *arguments)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1


def test_without_torch_the_extra_is_named(tmp_path):
    """A finder that hides torch, in a process of its own."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "attnphase", "simulate", "--alpha", "2"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 2
    assert 'pip install "attnphase[torch]"' in result.stderr
    assert result.stderr.count("\n") == 1
    light = "import sys, attnphase, attnphase.cli.commands; attnphase.solve; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", light], env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("function", "plan"),
    [(ap.simulate, Plan.of), (train_histogram, FrozenPlan.of), (unfreeze_histogram, UnfrozenPlan.of)],
    ids=["simulate", "histogram train", "histogram unfreeze"],
)
def test_a_plan_has_the_defaults_of_the_function_that_it_checks(function, plan):
    """The command line checks by the plan and calls the function: what it leaves out must mean the same to both."""

    def defaults(callable_):
        parameters = inspect.signature(callable_).parameters
        return {name: one.default for name, one in parameters.items() if name != "problem"}

    assert defaults(plan) == defaults(function)


@pytest.fixture(params=["default device", "inference mode"])
def callers_torch(request, monkeypatch):
    """A way to compute under settings of the caller's own; what lands on this default device has no numbers."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # other threads do not have the caller's mode

    @contextmanager
    def set_():
        with torch.inference_mode(request.param == "inference mode"):
            if request.param == "default device":
                torch.set_default_device("meta")
            before = torch.get_default_device(), torch.is_inference_mode_enabled()
            try:
                yield
                assert (torch.get_default_device(), torch.is_inference_mode_enabled()) == before
            finally:
                torch.set_default_device(None)

    return set_


@pytest.mark.parametrize("optimizer", ["lbfgs", "gd", "fista", "gamp", "sgd", "bayes-gamp"])
def test_the_callers_torch_settings_change_no_run(optimizer, callers_torch, tmp_path):
    asked: dict[str, Any] = {"optimizer": optimizer, "dimension": 24, "seeds": 2, "test_samples": 20, "seed": 3}
    asked |= {"steps": 20} if optimizer == "gd" else {}
    expected = simulate(PAPER, 1.3, **asked)
    with callers_torch():
        same(simulate(PAPER, 1.3, **asked, checkpoint=tmp_path / "runs"), expected)
        with pytest.warns(UserWarning, match="2 runs are done"):
            same(simulate(PAPER, 1.3, **asked, checkpoint=tmp_path / "runs"), expected)


def test_the_callers_torch_settings_change_no_histogram(callers_torch, tmp_path):
    sizes = HistogramSizes(length=4, alphabet=5, sequences=40)
    train_histogram(tmp_path / "plain", "semantic", 1, 1, sizes=sizes)
    unfreeze_histogram(tmp_path / "plain", epochs=1)
    with callers_torch():
        train_histogram(tmp_path / "own", "semantic", 1, 1, sizes=sizes)
        unfreeze_histogram(tmp_path / "own", epochs=1)
        found = histogram_dataset(tmp_path / "own")
    plain = histogram_dataset(tmp_path / "plain")
    same(found.drop_vars("seconds"), plain.drop_vars("seconds"))
