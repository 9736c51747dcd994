"""The local problem in torch against the compiled kernel: single nodes, samples at finite d, and whole solves."""

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch backend needs PyTorch")

import torch

from attnphase.errors import ExperimentError, ProblemError
from attnphase.experiments.data import draw_instance
from attnphase.experiments.optimizers.local_minima import minimised_in_torch
from attnphase.fixed_points.settings import SolverSettings
from attnphase.fixed_points.solver import solve_point
from attnphase.kernels.compiler import kernels_for, sample_kernels_for
from attnphase.kernels.key import model_numbers
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes as NodeArrays
from attnphase.kernels.local.values import SampleNodes, Solution
from attnphase.kernels.torch import minimiser
from attnphase.kernels.torch.device import device_of
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.kernels.torch.minimiser import Batch, minimise, node_minimiser
from attnphase.problem.problem import Problem
from attnphase.state_evolution.system import System
from attnphase.sweeps.grid import sweep
from attnphase.sweeps.line import Line
from attnphase.sweeps.points import solve

CPU = torch.device("cpu")
PAPER = Problem.paper(omega=0.3)
ONE_TOKEN = {"tokens.length": 1, "teacher.mixing": None, "positions.kind": "none"}
CASES = {
    "paper": PAPER,
    "untied": PAPER.with_fields({"student.tied": False}),
    "rank 2": PAPER.with_fields({"student.rank": 2}),
    "linear": PAPER.with_fields({"student.score": "linear", "teacher.score": "linear"}),
    "square": Problem().with_fields({**ONE_TOKEN, "loss.kind": "square"}),
    "logistic": Problem().with_fields({**ONE_TOKEN, "loss.kind": "logistic"}),
}
SLOW_CASES = {
    "three tokens": Problem().with_fields({"tokens.length": 3}),
    "ranks 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2}),
    "untied ranks 2": PAPER.with_fields({"student.rank": 2, "teacher.rank": 2, "student.tied": False}),
    "causal": PAPER.with_fields({"student.causal": True, "teacher.causal": True}),
    "sigmoid": PAPER.with_fields({"student.score": "sigmoid"}),
    "values": Problem().with_fields({"loss.kind": "values", "loss.width": 1}),
}
HINGE = Problem().with_fields({**ONE_TOKEN, "loss.kind": "hinge"})
NO_HINGE = "^the torch backend has no proximal point for the hinge loss: use the compiled one .*$"
MIXTURE = Problem().with_fields(
    {
        "tokens.kind": "mixture",
        "tokens.clusters": [[{"sigma": 0.5, "mean": [1.0]}, {"sigma": 0.8, "mean": [-1.0]}]] * 2,
        "tokens.law": {"kind": "independent", "weights": [[0.5, 0.5], [0.3, 0.7]]},
    }
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


class Nodes:
    """Random nodes of a problem, for either backend."""

    def __init__(self, problem, count, seed, spread=1.0, variance=1.0):
        system, rng = System.of(problem), np.random.default_rng(seed)
        kernels, spectrum = system.kernels, system.spectrum
        length, columns = kernels.length, kernels.columns
        self.problem = problem
        self.centers = spread * rng.normal(size=(count, length, columns))
        self.k = rng.normal(size=(count, length, kernels.teacher_rank))
        root = rng.normal(size=(length, columns, columns))
        V = variance * (root @ root.mT / columns + 0.1 * np.eye(columns))
        self.factor: Any = np.linalg.cholesky(V)
        self.variances = np.ascontiguousarray(spectrum.site_variances[:length])
        self.parameters = system.parameters

    def solve(self, backend, starts, previous=None):
        """Minima, energies, losses, residuals and flags."""
        functions = {
            "numba": lambda: kernels_for(self.problem).minimise,
            "torch": lambda: node_minimiser(self.problem, CPU, 1),
            "cuda": lambda: node_minimiser(self.problem, device_of("cuda"), 1),
        }
        shape = self.centers.shape
        minima, energies = np.zeros((shape[0], 2, *shape[1:])), np.zeros((shape[0], 2))
        if previous is not None:
            minima[:], energies[:] = previous[:2]
        losses, residuals, flags = np.empty(shape[0]), np.empty(shape), np.empty(shape[0], dtype=np.int64)
        solution = Solution(minima, energies, losses, residuals, flags)
        functions[backend]()(self.arguments, starts, solution)
        return tuple(solution)

    @property
    def arguments(self):
        return NodeArrays(self.centers, self.k, self.factor, *self.parameters, self.variances)


def assert_same(found, expected):
    """The same two lowest energies, and the same minimum where it is not tied with another."""
    minima, energies, losses, residuals, flags = found
    scale = 1 + np.abs(expected[1])
    assert np.abs((energies - expected[1]) / scale).max() < 1e-10
    gap = expected[1][:, 1] - expected[1][:, 0]
    clear = (gap == 0) | (gap > 1e-6)
    assert clear.mean() > 0.9
    assert np.abs(residuals - expected[3])[clear].max() < 1e-8
    np.testing.assert_allclose(minima[clear, 0], expected[0][clear, 0], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(losses[clear], expected[2][clear], rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal((energies[:, 1] > energies[:, 0])[clear], (gap > 0)[clear])
    # steps count the same thing; which is the last one is up to rounding
    np.testing.assert_array_equal(flags < 0, expected[4] < 0)
    assert (flags == expected[4]).mean() > 0.95


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variance", [1.0, 20.0])
@pytest.mark.parametrize(
    "problem",
    [
        *(pytest.param(problem, id=name) for name, problem in CASES.items()),
        *(pytest.param(problem, id=name, marks=pytest.mark.slow) for name, problem in SLOW_CASES.items()),
    ],
)
def test_nodes_have_the_minima_of_the_compiled_kernel(problem, variance):
    nodes = Nodes(problem, 300, 1, spread=1 + variance / 20, variance=variance)
    expected = nodes.solve("numba", Starts.COLD)
    assert_same(nodes.solve("torch", Starts.COLD), expected)
    if variance > 1 and problem in [CASES[name] for name in ("paper", "untied", "rank 2", "linear")]:
        assert (expected[1][:, 1] > expected[1][:, 0]).mean() > 0.01
    assert_same(nodes.solve("torch", Starts.FROM_ZERO), nodes.solve("numba", Starts.FROM_ZERO))
    nodes.centers += 0.05
    for starts in (Starts.WARM, Starts.REFRESH):
        assert_same(nodes.solve("torch", starts, expected), nodes.solve("numba", starts, expected))


def test_the_minimiser_jumps_where_the_compiled_one_does():
    """On a line of centres about a positional state: one step of the line, another basin."""
    nodes = Nodes(PAPER, 400, 0)
    line = np.linspace(-4, 4, 400)
    nodes.centers = np.stack([0.25 + line, -0.25 + 0.5 * line], axis=1)[..., None]
    nodes.k = np.broadcast_to([[2.0], [-1.0]], nodes.k.shape).copy()
    nodes.factor = np.sqrt(np.full((2, 1, 1), 14.7))
    expected = nodes.solve("numba", Starts.COLD)
    found = nodes.solve("torch", Starts.COLD)
    assert_same(found, expected)
    moved = np.abs(np.diff(expected[0][:, 0], axis=0)).max(axis=(1, 2))
    assert moved.max() > 1
    # a few steps along the line: some nodes pass a jump, where the minima only change places
    nodes.centers += [[0.1], [0.05]]
    warm = nodes.solve("torch", Starts.WARM, found)
    assert_same(warm, nodes.solve("numba", Starts.WARM, expected))
    jumped = np.abs(warm[0][:, 0] - found[0][:, 0]).max(axis=(1, 2)) > 1
    assert jumped.any()
    np.testing.assert_allclose(warm[0][jumped, 0], found[0][jumped, 1], atol=0.2)


@pytest.mark.parametrize("name", ["paper", pytest.param("ranks 2", marks=pytest.mark.slow)])
def test_no_minimum_that_a_single_descent_finds_is_missed(name):
    """Nor is a descent stopped that only passes by a known minimum, which is near in u where V is huge."""
    nodes = Nodes((CASES | SLOW_CASES)[name], 1500, 7, spread=5.0, variance=1000.0)
    whole, found = nodes.solve("numba", Starts.COLD), nodes.solve("torch", Starts.COLD)
    reflected = [nodes.centers * sign[:, None] for sign in (np.array([-1.0, 1.0]), np.array([1.0, -1.0]))]
    lifted = nodes.k[..., list(LocalLoss(nodes.problem, finite=False).module.LIFT)]
    zero = np.zeros_like(nodes.centers)
    singles = []
    for start in (nodes.centers, lifted, -lifted, zero, -nodes.centers, *reflected):
        previous = np.stack([start, start], axis=1), np.zeros((len(start), 2))
        singles.append(nodes.solve("numba", Starts.WARM, previous)[1][:, 0])
    lowest = np.min(singles, axis=0)
    np.testing.assert_allclose(found[1][:, 0], lowest, rtol=1e-10, atol=1e-10)
    assert (whole[1][:, 0] <= lowest + 1e-8).all()


def test_units_change_no_bit_of_a_minimum():
    """Fields 2^-20 times as large, temperatures and losses 2^-40 times."""
    c = 2.0**-20
    for variance in (1.0, 40.0, 1000.0):
        nodes = Nodes(PAPER, 4000, 11, spread=2.0, variance=variance)
        expected = nodes.solve("torch", Starts.COLD)
        mixing, (omega, student, teacher, length, *matched) = nodes.parameters
        nodes.parameters = mixing, np.array([omega, c**2 * student, c**2 * teacher, c * length, *matched])
        nodes.centers, nodes.k, nodes.variances = c * nodes.centers, c * nodes.k, c**2 * nodes.variances
        found = nodes.solve("torch", Starts.COLD)
        for one, right, unit in zip(found, expected, (c, c**2, c**2, c, 1), strict=True):
            np.testing.assert_array_equal(one, unit * right)


def test_small_blocks_give_what_one_block_gives(monkeypatch):
    nodes = Nodes(CASES["rank 2"], 101, 3, spread=2.0, variance=20.0)
    whole = nodes.solve("torch", Starts.REFRESH, nodes.solve("torch", Starts.FROM_ZERO))
    monkeypatch.setitem(minimiser._LANES, "cpu", 70)
    sizes = []
    search = minimiser.search
    monkeypatch.setattr(minimiser, "search", lambda *args: sizes.append(args[2].shape[1]) or search(*args))
    assert_same(nodes.solve("torch", Starts.REFRESH, nodes.solve("torch", Starts.FROM_ZERO)), whole)
    assert sizes == [70, 31] + [7] * 14 + [3]


def test_no_nodes_at_all():
    assert [len(array) for array in Nodes(PAPER, 0, 0).solve("torch", Starts.COLD)] == [0] * 5


def test_a_warm_pass_needs_minima():
    loss, fields = LocalLoss(PAPER, finite=False), torch.zeros(3, 2, 1, dtype=torch.float64)
    factors = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs the minima of the last pass"):
        minimise(loss, Batch(fields, fields, loss.targets(fields), torch.ones(2), factors), Starts.WARM)


def test_a_pass_leaves_the_number_of_threads_as_it_was(monkeypatch):
    before = torch.get_num_threads()
    nodes = Nodes(PAPER, 10, 0)
    seen = []
    original = minimiser._minimise
    monkeypatch.setattr(minimiser, "_minimise", lambda *args: seen.append(torch.get_num_threads()) or original(*args))
    outputs = np.zeros((10, 2, 2, 1)), np.zeros((10, 2)), np.zeros(10), np.zeros((10, 2, 1)), np.zeros(10, dtype=int)
    node_minimiser(PAPER, CPU, before + 1)(nodes.arguments, Starts.COLD, Solution(*outputs))
    assert seen == [before + 1]
    assert torch.get_num_threads() == before


# --- samples at finite d ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(PAPER, id="paper"),
        pytest.param(CASES["logistic"], id="logistic"),
        pytest.param(CASES["untied"], id="untied", marks=pytest.mark.slow),
        pytest.param(MIXTURE, id="mixture", marks=pytest.mark.slow),
    ],
)
def test_samples_have_the_minima_of_the_compiled_kernel(problem):
    runs, count, rng = 2, 100, np.random.default_rng(5)
    loss = LocalLoss(problem)
    instance = draw_instance(problem, 60, count, 3, tuple(range(runs)), loss)
    samples, length, columns = instance.samples, problem.tokens.length, problem.columns
    sites = len(problem.sites)
    omega = 2 * rng.normal(size=(runs, count, length, columns))
    root = rng.normal(size=(runs, sites, columns, columns))
    factors = np.linalg.cholesky(10 * (root @ root.mT + 0.1 * np.eye(columns)))
    grams = samples.grams.numpy() if loss.has_grams else np.ones((runs, count, length, length))
    numbers = model_numbers(problem)
    minima, energies = np.zeros((runs, count, 2, length, columns)), np.zeros((runs, count, 2))
    for starts in Starts:
        centers, roots, *previous = (torch.from_numpy(x.copy()) for x in (omega, factors, minima, energies))
        found = minimised_in_torch(loss, centers, samples, roots, starts, (previous[0], previous[1]))
        residuals = np.empty_like(omega)
        for s in range(runs):
            nodes = SampleNodes(
                np.ascontiguousarray(omega[s]),
                np.ascontiguousarray(samples.teacher_fields[s].numpy()),
                np.ascontiguousarray(samples.targets[s].numpy()),
                np.ascontiguousarray(grams[s]),
                np.ascontiguousarray(samples.sites[s].numpy()),
                np.ascontiguousarray(factors[s]),
                numbers,
            )
            flags = np.empty(count, dtype=np.int64)
            solution = Solution(minima[s], energies[s], np.empty(count), residuals[s], flags)
            sample_kernels_for(problem).minimise(nodes, starts, solution)
        np.testing.assert_allclose(found[1], energies, rtol=1e-10, atol=1e-10)
        gap = energies[..., 1] - energies[..., 0]
        clear = (gap == 0) | (gap > 1e-6)
        assert np.abs(found[2].numpy() - residuals)[clear].max() < 1e-8
        np.testing.assert_allclose(found[0].numpy()[clear][:, 0], minima[clear][:, 0], rtol=1e-8, atol=1e-8)
        omega = omega + 0.05


# --- solves -----------------------------------------------------------------------------------------------------------

FEW_NODES = {"integration.rule": "sobol", "integration.nodes": 64}
FEW = SolverSettings(threads=1, max_nodes=512)


def solved(problem, branch="semantic", backend="numba", whole=True):
    """A solve, with what is computed at its end or without: no other nodes are solved there."""
    options = {"threads": FEW.threads, "max_nodes": FEW.max_nodes, "stability": whole, "identity": whole}
    return solve(problem.with_fields(FEW_NODES), 1.5, branch, backend=backend, **options)


def assert_same_solution(found, expected):
    for name in ("q", "V", "m", "theta", "test_error"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-8, err_msg=name)
    assert str(found["status"].values) == str(expected["status"].values)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
def test_a_solve_gives_what_the_compiled_one_gives(branch):
    expected = solved(PAPER, branch)
    assert float(np.abs(expected["m" if branch == "positional" else "theta"]).max()) > 0.05
    assert_same_solution(solved(PAPER, branch, "torch"), expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "problem",
    [
        pytest.param(MIXTURE, id="mixture"),
        pytest.param(CASES["untied"], id="untied"),
        pytest.param(CASES["logistic"], id="logistic"),
    ],
)
def test_a_solve_of_another_model_gives_what_the_compiled_one_gives(problem):
    assert_same_solution(solved(problem, backend="torch", whole=False), solved(problem, whole=False))


def test_a_sweep_takes_the_backend():
    """In this process, and as a worker is given its line."""
    problem, alpha = PAPER.with_fields(FEW_NODES), [1.5, 1.6]
    points = replace(FEW, stability=False, identity=False)
    settings = replace(points, backend="torch")
    expected, found = (
        sweep(problem, alpha, branches=("semantic",), settings=each, workers=1) for each in (points, settings)
    )
    line = pickle.loads(pickle.dumps(Line(problem, "semantic", tuple(alpha), settings, "semantic")))
    assert line.settings == settings
    alone = line.solve()
    for name in ("q", "V", "m", "theta", "test_error"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-8, atol=1e-8, err_msg=name)
        np.testing.assert_array_equal(alone[name], found[name].sel(branch="semantic"), err_msg=name)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_hinge_is_refused():
    loss = LocalLoss(HINGE, finite=False)
    point = torch.zeros(1, 1, 1, dtype=torch.float64)
    for attempt in (
        lambda: node_minimiser(HINGE, CPU, 1),
        lambda: minimise(loss, Batch(point, point, point, torch.ones(1), point[..., None] + 1), Starts.COLD),
        lambda: solve_point(HINGE, 1.5, settings=SolverSettings(backend="torch")),
    ):
        with pytest.raises(ExperimentError, match=NO_HINGE):
            attempt()


@pytest.mark.parametrize("backend", ["", "numpy", "CUDA", "cuda:0", 3, None])
def test_unknown_backends_are_refused(backend):
    with pytest.raises(ProblemError, match=r"^backend must be one of numba, torch, cuda, not") as caught:
        SolverSettings(backend=backend)
    assert caught.value.field == "backend"


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for attempt in (lambda: solve(PAPER, 1.5, backend="cuda"), lambda: device_of("cuda"), lambda: device_of("cuda:1")):
        with pytest.raises(ExperimentError, match=r'^no CUDA device is available: use the device "cpu"[^.]*\.$'):
            attempt()


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of(name) for name in ("cpu", "cuda", "cuda:1")] == [CPU, *map(torch.device, ("cuda", "cuda:1"))]
    with pytest.raises(ExperimentError, match=r'^there is no CUDA device 2: the last one here is "cuda:1"\.$'):
        device_of("cuda:2")
    unknown: list[Any] = ["gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "", None]
    for name in unknown:
        with pytest.raises(ProblemError, match=r"^device must be") as caught:
            device_of(name)
        assert caught.value.field == "device"


def test_torch_is_imported_only_when_asked_for():
    code = (
        "import sys; from attnphase.fixed_points.settings import SolverSettings; SolverSettings();"
        "print('torch' in sys.modules); SolverSettings(backend='torch'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]  # a solve loads it


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@needs_cuda
@pytest.mark.parametrize("problem", [pytest.param(problem, id=name) for name, problem in CASES.items()])
def test_nodes_on_a_gpu_have_the_minima_of_the_compiled_kernel(problem):
    nodes = Nodes(problem, 300, 1, spread=2.0, variance=20.0)
    expected = nodes.solve("numba", Starts.COLD)
    assert_same(nodes.solve("cuda", Starts.COLD), expected)
    nodes.centers += 0.05
    assert_same(nodes.solve("cuda", Starts.REFRESH, expected), nodes.solve("numba", Starts.REFRESH, expected))


@needs_cuda
def test_a_solve_on_a_gpu_gives_what_the_compiled_one_gives():
    assert_same_solution(solved(PAPER, backend="cuda"), solved(PAPER))
