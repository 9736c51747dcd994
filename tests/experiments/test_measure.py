"""What is measured on trained weights: fresh samples, stated errors, records, the replicon, frames, shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

import attnphase as ap
from attnphase.checks.alignment import Frame
from attnphase.data.variables import RunStatus
from attnphase.errors import ExperimentError
from attnphase.experiments import measure
from attnphase.experiments.checkpoint import Checkpoint
from attnphase.experiments.data import Instance, Stream, draw_instance, draw_samples
from attnphase.experiments.histogram.report import _jackknife, _measured, _Sums, distances, variance_shares
from attnphase.experiments.histogram.stages import load_trained, train_histogram, unfreeze_histogram
from attnphase.experiments.histogram.steps import test_errors as errors_on
from attnphase.experiments.histogram.task import HistogramSizes, draw_sequences
from attnphase.experiments.histogram.transformer import absorbed, initial_parameters, logits, with_noise
from attnphase.experiments.measure import exact_test_errors, measured_metrics, sampled_test_errors
from attnphase.experiments.memory import MemoryNeed, runs_that_fit
from attnphase.experiments.optimizers.fista import Fista
from attnphase.experiments.optimizers.gamp import Gamp
from attnphase.experiments.products import fields_of
from attnphase.experiments.risk import Risk
from attnphase.experiments.runs import _Group
from attnphase.experiments.starts import UNINFORMED_SCALE, initial_weights
from attnphase.experiments.training import Trained, TrainingSettings, _look, train
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem.problem import Problem

Array = NDArray[Any]

PAPER = Problem.paper(omega=0.26)
SIZES = HistogramSizes(length=4, alphabet=6, model_dimension=10, hidden=7, sequences=60)


def instance_of(
    problem: Problem = PAPER, d: int = 18, n: int = 30, runs: tuple[int, ...] = (0, 1), seed: int = 5
) -> Instance:
    return draw_instance(problem, d, n, seed, runs, LocalLoss(problem))


def weights_for(instance: Instance) -> torch.Tensor:
    shape = (len(instance.runs), instance.dimension, instance.problem.columns)
    return 0.3 + 0.7 * torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


# --- test errors ------------------------------------------------------------------------------------------------------


def test_fresh_samples_are_not_those_of_training():
    """As many of them as were trained on, and yet another error; of another number of samples, another one again."""
    instance = instance_of()
    weights = weights_for(instance)
    losses = Risk.of(instance).sample_losses(weights)
    training = 2 * losses.mean(dim=1).numpy() / 2
    fresh, errors = sampled_test_errors(instance, weights, instance.samples.count)
    assert np.all(np.abs(fresh - training) > 1e-6)
    exact, _ = exact_test_errors(instance, weights)
    many, few = sampled_test_errors(instance, weights, 3000)
    assert np.all(np.abs(many - exact) < 4 * few)
    assert np.all(few < errors)


def test_error_of_the_exact_test_error(monkeypatch):
    """Quadratures of 32 seeds on few nodes, about one on many: they scatter as each says."""
    problem = PAPER.with_fields({"tokens.sigma": [0.7, 0.5]})
    instance = instance_of(problem, runs=(0,))
    weights = weights_for(instance)
    true = exact_test_errors(instance, weights)[0].item()
    monkeypatch.setattr(measure, "POINTS", 32)
    seeds, replicates = 32, 8
    found = []
    for seed in range(seeds):
        other = Instance(problem, 1000 + seed, instance.runs, instance.geometries, instance.samples, instance.loss)
        value, error = exact_test_errors(other, weights)
        found.append((value.item() - true, error.item()))
    deviations, errors = np.array(found).T
    ratio = np.mean(deviations**2) / np.mean(errors**2)
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], seeds, seeds * (replicates - 1))
    assert low < ratio < high


MIXTURE = Problem.from_dict(
    {
        "tokens": {
            "kind": "mixture",
            "clusters": [{"sigma": 0.9, "mean": [1.4]}, {"sigma": 0.7, "mean": [-0.8]}],
            "law": {"kind": "table", "table": [[0.15, 0.25], [0.2, 0.4]]},
            "mean_teacher": [[0.6]],
        },
        "teacher": {"noise": 0.3},
        "student": {"tied": False},
        "metrics": {"sign": "c1*sign(h0_0*(h0_1 - h1_1))", "square": "(h1_1 - k0_0 + noise1_0)**2*(1 + c0)"},
    }
)


def test_metrics_of_a_run_are_those_of_fresh_samples():
    """Of tokens that are drawn: fields, encodings, clusters and teacher of each run, at a small dimension."""
    instance, count = instance_of(MIXTURE, d=11), 40_000
    weights = weights_for(instance)
    values, errors = measured_metrics(instance, weights)
    streams = (Stream.TEST_CLUSTERS, Stream.TEST_TOKENS)
    fresh = draw_samples(MIXTURE, instance.geometries, count, 5, instance.runs, instance.loss, streams)
    h = (fresh.tokens @ weights / np.sqrt(11)).reshape(2, count, 2, 2).numpy()
    k, c = fresh.teacher_fields[..., 0].numpy(), fresh.sites.numpy() - [0, 2]
    noise = np.sqrt(0.3) * np.random.default_rng(4).normal(size=(2, count))
    sampled = np.stack(
        [
            c[..., 1] * np.sign(h[..., 0, 0] * (h[..., 0, 1] - h[..., 1, 1])),
            (h[..., 1, 1] - k[..., 0] + noise) ** 2 * (1 + c[..., 0]),
        ],
        axis=-1,
    )
    own = sampled.std(axis=1) / np.sqrt(count)
    assert np.all(np.abs(values - sampled.mean(axis=1)) < 4 * np.hypot(errors, own))
    assert np.all(np.abs(values[0] - values[1]) > 5 * own[0])  # the runs are told apart
    assert np.all(errors < own)


# --- records of training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gd", "fista"])
def test_records_are_the_risk_over_d(name):
    instance = instance_of()
    risk, start = Risk.of(instance), initial_weights(instance, "uninformed")
    trained = train(
        instance,
        risk,
        start,
        TrainingSettings(name, steps=4, tolerance=1e-30 if name == "fista" else None, trajectory=1),
    )
    losses = trained.trajectory["trajectory_training_loss"]
    np.testing.assert_allclose(losses[0], (risk.value(start) / instance.dimension).numpy(), rtol=1e-12)
    assert np.all(np.diff(np.stack(losses), axis=0) < 0)


def test_uninformed_starts_have_the_papers_size():
    instance = instance_of(d=400, n=2, runs=tuple(range(12)))
    start = initial_weights(instance, "uninformed")
    assert UNINFORMED_SCALE == 0.1
    assert float(start.std()) == pytest.approx(0.1, abs=5 * 0.1 / np.sqrt(2 * start.numel()))


def test_accelerated_descent_forgets_its_momentum_uphill():
    """On a valley that is flat one way and steep the other the momentum overshoots, and is dropped then."""
    instance = instance_of(d=30, n=90, runs=(0,))
    fista = Fista(Risk.of(instance), initial_weights(instance, "semantic"), 0.15)
    momenta = []
    for _ in range(120):
        fista.step()
        momenta.append(float(fista.state()["momentum"]))
    assert max(momenta) > 2
    dropped = [i for i in range(1, len(momenta)) if momenta[i] < momenta[i - 1]]
    assert dropped
    assert all(momenta[i] == 1.0 for i in dropped)


# --- GAMP -------------------------------------------------------------------------------------------------------------


def test_replicon_of_a_small_instance():
    """The linearised iteration written out: responses by differences, the operator by loops over samples and tokens."""
    problem = PAPER.with_fields({"tokens.sigma": [0.6, 0.45]})
    instance = instance_of(problem, d=7, n=9, runs=(0,))
    weights = initial_weights(instance, "semantic")
    gamp = Gamp(instance, Risk.of(instance), weights, variance=6.0)
    gamp.step()
    samples, d = instance.samples, instance.dimension
    omega = fields_of(samples.tokens, weights).reshape(1, samples.count, 2, 1)
    step, responses = 1e-6, np.empty((samples.count, 2, 2))
    for token in range(2):
        shift = torch.zeros_like(omega)
        shift[:, :, token] = step
        ends = [gamp.residual_at(omega + side * shift, gamp.V, Starts.COLD)[0, :, :, 0].numpy() for side in (1, -1)]
        responses[:, :, token] = (ends[0] - ends[1]) / (2 * step)
    gamma, c = instance.geometries[0].gamma, gamp._c[0, :, 0, 0].numpy()
    operator = np.zeros((2, 2))
    for l in range(2):
        for source in range(2):
            for i in range(d):
                kicked = sum(gamma[k, i] * (responses[:, k, source] ** 2).sum() / d for k in range(2))
                operator[l, source] += gamma[l, i] * c[i] ** 2 * kicked / d
    expected = np.abs(np.linalg.eigvals(operator)).max()
    assert gamp.replicon().item() == pytest.approx(expected, rel=1e-5)


def test_gamp_settles_when_all_overlaps_have():
    """Two looks: one overlap stands still and another moves, then none does."""
    instance = instance_of(runs=(0,))
    weights = weights_for(instance)
    trained = Trained(weights, np.full(1, -1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=bool))
    _look(trained, instance)
    assert not trained.settled.any()
    direction = torch.as_tensor(instance.geometries[0].teacher)[None]
    # the overlaps with the positions stay, those with the teacher move
    positions = torch.as_tensor(instance.geometries[0].positions[:1].T)[None]
    moved = direction - positions * (positions * direction).sum() / positions.square().sum()
    trained.weights = weights + 0.1 * moved
    _look(trained, instance)
    assert not trained.settled.any()
    _look(trained, instance)
    assert trained.settled.all()


def test_gamp_keeps_its_share_of_the_old_variances():
    """From the second step on weights and variances are both mixtures of old and new."""
    instance = instance_of(runs=(0,))
    start = initial_weights(instance, "semantic")
    plain, damped = (Gamp(instance, Risk.of(instance), start, keep, variance=5.0) for keep in (0.0, 0.3))
    plain.step()
    damped.step()
    torch.testing.assert_close(damped._c, 0.3 * 5.0 + 0.7 * plain._c, rtol=1e-12, atol=0)
    torch.testing.assert_close(damped.weights, 0.3 * start + 0.7 * plain.weights, rtol=1e-12, atol=1e-12)


def test_gamp_takes_its_own_last_kick_out_of_the_fields(monkeypatch):
    """``omega = X w - V g`` with the g of the iteration before, which is Onsager's term."""
    instance = instance_of(runs=(0,))
    gamp = Gamp(instance, Risk.of(instance), initial_weights(instance, "semantic"), variance=5.0)
    seen: list[torch.Tensor] = []
    minimise = gamp.residual_at

    def watched(omega: torch.Tensor, V: torch.Tensor, starts: Starts) -> torch.Tensor:
        seen.append(omega.clone())
        return minimise(omega, V, starts)

    monkeypatch.setattr(gamp, "residual_at", watched)
    gamp.step()
    kick, weights = gamp.state()["residual"].clone(), gamp.weights.clone()
    gamp.step()
    fields = fields_of(instance.samples.tokens, weights).reshape(seen[1].shape)
    V = gamp.V[0, :, 0, 0]
    torch.testing.assert_close(seen[1], fields - V[:, None] * kick, rtol=1e-12, atol=1e-12)
    assert kick.abs().max() > 1e-3


# --- frames -----------------------------------------------------------------------------------------------------------


def test_runs_are_aligned_by_m_where_theta_vanishes():
    """A positional run with the sign of its weights reversed, or its tokens exchanged, is the theory's."""
    problem = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    point = ap.solve(problem, 1.9, "positional")
    runs = ap.simulate(problem, 1.9, "positional", 12, 2, "gd", steps=1, test_samples=0).copy(deep=True)
    for s, sign in enumerate((1.0, -1.0)):
        for name in ("q", "V", "m", "theta"):
            value = point[name].to_numpy()
            runs[name].to_numpy()[0, 0, 0, s] = sign * value if name == "m" else value
    here = runs.isel(start=0, dimension=0, alpha=0).transpose("seed", ...)
    aligned = Frame.of(problem).aligned(point, here)
    assert np.abs(point["m"]).max() > 0.05
    for s in range(2):
        np.testing.assert_allclose(aligned["m"][s], point["m"], rtol=1e-12)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_runs_are_kept_apart_by_all_that_tells_them_apart():
    keys = {
        _Group(start, d, alpha, ()).key(run)
        for start in ("semantic", "positional")
        for d in (20, 40)
        for alpha in (0.5, 0.7)
        for run in (0, 1)
    }
    assert len(keys) == 16


def test_a_checkpoint_that_was_changed_or_belongs_to_another_task_is_refused(tmp_path: Path):
    path = tmp_path / "kept"
    kept = Checkpoint(path, {"alpha": 1.5, "grid": {"seed": 3}})
    kept.finished["a"] = {"q": torch.tensor([0.25])}
    kept.write()
    assert Checkpoint(path, {"alpha": 1.5, "grid": {"seed": 3}}).load()
    for task in ({"alpha": 1.6, "grid": {"seed": 3}}, {"alpha": 1.5, "grid": {"seed": 4}}, {"alpha": 1.5}):
        with pytest.raises(ExperimentError, match=r"other training runs, with another (alpha|seed)"):
            Checkpoint(path, task).load()
    whole = path.read_bytes()
    number = np.float32(0.25).tobytes()
    assert whole.count(number) == 1
    path.write_bytes(whole.replace(number, np.float32(0.5).tobytes()))
    with pytest.raises(ExperimentError, match="damaged"):
        Checkpoint(path, {"alpha": 1.5, "grid": {"seed": 3}}).load()


def test_some_memory_is_left_free():
    """Runs may take 60 % of what is free, less what the program itself needs."""
    need = MemoryNeed(2**30, 0)
    free = 10 * 2**30 + 500 * 2**20  # 60 % of it: six runs and 300 MiB
    assert runs_that_fit(need, 100, free, dimension=10, count=10, length=2) == 6
    with pytest.raises(ExperimentError, match="free"):
        runs_that_fit(need, 100, 2**30, dimension=10, count=10, length=2)


# --- the histogram task -----------------------------------------------------------------------------------------------


def test_errors_on_sequences_are_means_per_token():
    """Cross-entropy as minus the logarithm of the right count's probability."""
    full = with_noise(absorbed(initial_parameters(SIZES, 3, 2, torch.float64), "semantic"), 0.3, 3)
    _, test = draw_sequences(SIZES, 3, 2, torch.device("cpu"))
    losses, accuracy = errors_on(full, test)
    for run in range(2):
        scores = logits(full, test.symbols)[run].numpy()
        counts = test.counts[run].numpy().ravel()
        probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        assert losses[run].item() == pytest.approx(
            -np.log(probabilities[np.arange(len(counts)), counts]).mean(), rel=1e-10
        )
        assert accuracy[run].item() == pytest.approx((scores.argmax(axis=1) == counts).mean(), abs=1e-12)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory) -> Path:
    """Two runs whose weights hardly move in their first stage, and are disturbed a lot before the second."""
    folder = tmp_path_factory.mktemp("histogram")
    train_histogram(folder, "semantic", 2, 1, 5, sizes=SIZES, batch=7, learning_rate=1e-12, dtype="float64")
    unfreeze_histogram(folder, "semantic", 1, noise=2.0, learning_rate=1e-12)
    return folder


def test_the_record_of_the_training_loss_is_that_of_the_training_sequences(frozen):
    (trained,) = load_trained(frozen)
    training, _ = draw_sequences(SIZES, 5, 2, torch.device("cpu"))
    expected, _ = errors_on(trained.initial, training)
    record = trained.stages["frozen"]["training_loss"]
    assert record.shape == (2, 1)
    np.testing.assert_allclose(record[:, 0].numpy(), expected.numpy(), rtol=1e-8)


def test_the_accuracy_after_noise_is_measured_with_it(frozen):
    """And the second stage's distance is from the first one's end, which is the size of the noise here."""
    (trained,) = load_trained(frozen)
    columns = _measured(trained, np.zeros((1, 4), dtype=np.int64), 1)
    _, test = draw_sequences(SIZES, 5, 2, torch.device("cpu"))
    _, noisy = errors_on(trained.noisy(), test)
    _, before = errors_on(trained.stages["frozen"]["parameters"], test)
    assert np.abs(noisy.numpy() - before.numpy()).max() > 0.1
    np.testing.assert_allclose(columns["noisy_accuracy"], noisy.numpy(), atol=1e-12)
    moved, _ = distances(trained.stages["frozen"]["parameters"], trained.noisy())
    np.testing.assert_allclose(columns["distance_sum"][:, 1], moved, rtol=1e-6)
    assert columns["status"].tolist() == [[RunStatus.completed] * 2] * 2


def test_noise_is_on_embeddings_query_and_key():
    full = absorbed(initial_parameters(SIZES, 3, 2, torch.float64), "semantic")
    noisy = with_noise(full, 0.5, 7)
    for name, value in full.items():
        change = (noisy[name] - value).std().item()
        if name in ("semantic_embedding", "positional_embedding", "query", "key"):
            assert change == pytest.approx(0.5, rel=0.25), name
        else:
            assert change == 0, name


def test_off_the_diagonal_the_diagonal_does_not_count():
    """Places explain all of matrices that differ on the diagonal, but nothing off it, where all is equal."""
    generator = torch.Generator().manual_seed(1)
    symbols = torch.randint(5, (400, 4), generator=generator)
    noise = torch.rand(400, 4, 4, generator=generator, dtype=torch.float64)
    places = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    shares = variance_shares(places + 0.1 * noise, symbols, 5)
    whole, off = (shares["position_share"][name][0] for name in ("all", "off_diagonal"))
    assert whole > 0.9
    assert abs(off) < 0.05


def test_error_of_a_jackknifed_share():
    """Shares of made-up groups over 150 draws: unbiased, and scattered as they say."""
    generator = np.random.default_rng(12)
    draws, blocks, found = 150, 10, []
    means = torch.tensor([-0.5, 0.2, 0.9, -0.1, 0.4, -0.6], dtype=torch.float64)
    for _ in range(draws):
        groups = torch.from_numpy(generator.integers(6, size=(blocks, 60)))
        values = means[groups] + torch.from_numpy(generator.normal(0.0, 0.6, (blocks, 60)))
        found.append(_jackknife([_Sums.of(v, g, 6) for v, g in zip(values, groups, strict=True)]))
    values, errors = np.array(found).T
    between = float(means.var(correction=0))
    true = between / (between + 0.36)
    ratio = np.mean((values - true) ** 2) / np.mean(errors**2)
    # the jackknife's own bias and its ten blocks widen the interval of chance
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], draws, draws * (blocks - 1))
    assert 0.9 * low < ratio < 1.1 * high
    assert abs(values.mean() - true) < 4 * values.std() / np.sqrt(draws)
