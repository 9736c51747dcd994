"""The histogram task: the transformer against a plain one, exact zeros, kills, scores, the report.

Not public: the task is a command; weights and sequences are what a plain implementation needs.
"""

import math
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run
from plain_transformer import Plain
from scipy import stats
from stop_at import ended

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from torch import nn

import attnphase as ap
from attnphase.experiments.data import generator
from attnphase.experiments.histogram.report import _jackknife, _Sums, histogram_dataset, histogram_text, variance_shares
from attnphase.experiments.histogram.settings import MECHANISMS
from attnphase.experiments.histogram.stages import load_trained, train_histogram, unfreeze_histogram
from attnphase.experiments.histogram.task import HistogramSizes, Stream, counts, draw_sequences

ROOT = Path(__file__).parents[2]
SMALL = HistogramSizes(length=4, alphabet=6, model_dimension=10, hidden=7, sequences=60, training_share=0.7)
NOISY = ("semantic_embedding", "positional_embedding", "query", "key")


def descend(plain: Plain, optimizer: Any, stream: int, epochs: int, zeros: Any = ()) -> None:
    """Plain epochs over the training sequences of run 1, after each step with zeros where weights are frozen."""
    training, _ = draw_sequences(SMALL, 5, 2, torch.device("cpu"))
    for epoch in range(epochs):
        for chosen in torch.from_numpy(generator(5, 1, stream, epoch).permutation(42)).split(7):
            optimizer.zero_grad()
            scores = plain(training.symbols[1, chosen]).flatten(0, 1)
            nn.functional.cross_entropy(scores, training.counts[1, chosen].flatten()).backward()
            optimizer.step()
            with torch.no_grad():
                for weight, zero in zeros:
                    weight[zero] = 0


def test_targets_are_counts_of_sequences_that_are_split_and_differ_between_runs():
    assert counts(torch.tensor([[2, 0, 2, 2, 1]])).tolist() == [[3, 1, 3, 3, 1]]
    sizes, cpu = HistogramSizes(length=5, alphabet=4, sequences=101, training_share=0.6), torch.device("cpu")
    training, test = draw_sequences(sizes, 7, 3, cpu)
    assert training.symbols.shape == (3, 61, 5)
    assert test.symbols.shape == (3, 40, 5)
    alone = draw_sequences(sizes, 7, 1, cpu)[0]
    assert torch.equal(alone.symbols[0], training.symbols[0])
    assert not torch.equal(training.symbols[1], training.symbols[0])
    assert not torch.equal(draw_sequences(sizes, 8, 1, cpu)[0].symbols, alone.symbols)
    frequencies = torch.bincount(torch.cat([training.symbols, test.symbols], 1).flatten(), minlength=4) / 1515
    assert (frequencies - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / 1515)
    assert HistogramSizes().training_count == 35_000  # 70 % of the paper's


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_training_is_adam_with_frozen_zeros_then_plain_descent_from_the_disturbed_solution(mechanism, tmp_path):
    """And records are those of the plain transformer."""
    noise, (training, test) = 0.02, draw_sequences(SMALL, 5, 2, torch.device("cpu"))
    train_histogram(tmp_path, mechanism, 2, 3, 5, sizes=SMALL, batch=7, learning_rate=4e-3, dtype="float64")
    unfreeze_histogram(tmp_path, epochs=2, noise=noise, learning_rate=0.03)
    (trained,) = load_trained(tmp_path)
    frozen, unfrozen, noisy = *(trained.stages[name] for name in ("frozen", "unfrozen")), trained.noisy()
    unseen = slice(5, 10) if mechanism == "semantic" else slice(0, 5)
    for full in (trained.initial, frozen["parameters"]):
        assert (full["semantic_embedding"][..., 5:] == 0).all()
        assert (full["positional_embedding"][..., :5] == 0).all()
        assert all((full[name][:, unseen] == 0).all() for name in ("query", "key"))
    plain = Plain(trained.initial, 1)
    weights = (plain.symbols.weight, plain.places.weight, plain.query.weight, plain.key.weight)
    zeros, adam = [(w, w.detach() == 0) for w in weights], torch.optim.Adam(plain.parameters(), 4e-3, betas=(0.9, 0.98))
    descend(plain, adam, Stream.FROZEN_ORDER, 3, zeros)
    for mine, theirs in zip(Plain(frozen["parameters"], 1).parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    loss, right = plain.scores(test)
    assert frozen["accuracy"][1, -1].item() == pytest.approx(right, abs=1e-12)
    assert frozen["test_loss"][1, -1].item() == pytest.approx(loss, rel=1e-8)
    for name, value in frozen["parameters"].items():
        change = (noisy[name] - value).flatten()
        expected = noise if name in NOISY else 0
        assert float(change.std()) == pytest.approx(expected, abs=expected * 4 / math.sqrt(2 * len(change))), name
    plain = Plain(noisy, 1)
    descend(plain, torch.optim.SGD(plain.parameters(), lr=0.03), Stream.UNFROZEN_ORDER, 2)
    for mine, theirs in zip(Plain(unfrozen["parameters"], 1).parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    # hardly any step: the record of an epoch is the loss of its sequences, the distance is that of the noise
    unfreeze_histogram(tmp_path, epochs=1, noise=2.0, learning_rate=1e-12, force=True)
    (still,) = load_trained(tmp_path)
    plain, shown = Plain(still.noisy(), 1), test.symbols[1, :2]
    whole = histogram_dataset(tmp_path, shown.tolist()).isel(mechanism=0).sel(stage="unfrozen")
    assert still.stages["unfrozen"]["training_loss"][1, 0].item() == pytest.approx(plain.scores(training)[0], rel=1e-8)
    accuracies = [Plain(still.noisy(), r).scores(test)[1] for r in (0, 1)]
    np.testing.assert_allclose(whole["noisy_accuracy"], accuracies, rtol=1e-12)
    assert ((frozen["accuracy"][:, -1] - torch.tensor(accuracies)).abs() > 0.01).any()
    np.testing.assert_allclose(whole["attention"][1], plain.attend(shown)[0].detach(), rtol=0, atol=1e-6)
    noises = [value - frozen["parameters"][name] for name, value in still.noisy().items()]
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in noises])
    np.testing.assert_allclose(whole["distance_sum"], norms.sum(dim=0), rtol=1e-6)
    np.testing.assert_allclose(whole["distance_l2"], norms.norm(dim=0), rtol=1e-6)


def test_shares_of_the_variance_are_those_of_made_up_matrices():
    """Entries that are a sum of a part of the places, one of the symbols, and noise, with known variances."""
    rng = np.random.default_rng(5)
    symbols = torch.from_numpy(rng.integers(4, size=(20_000, 6)))
    places, table, noise = (torch.from_numpy(rng.standard_normal(s)) for s in ((6, 6), (4, 4), (20_000, 6, 6)))
    # off the diagonal every pair of symbols has one probability
    off = ~torch.eye(6, dtype=torch.bool)
    parts = float(places[off].var(correction=0)), float(table.var(correction=0)), 0.7**2
    shares = variance_shares(places + table[symbols[:, :, None], symbols[:, None, :]] + 0.7 * noise, symbols, 4)
    for name, part in zip(("position_share", "token_share"), parts, strict=False):
        share, error = shares[name]["off_diagonal"]
        assert abs(share - part / sum(parts)) < 4 * error < 0.04
    diagonal = variance_shares(torch.diag(torch.arange(1.0, 7.0)) + 0.1 * noise, symbols, 4)["position_share"]
    assert diagonal["all"][0] > 0.9
    assert abs(diagonal["off_diagonal"][0]) < 0.05
    equal = variance_shares(torch.full((100, 6, 6), 0.25), symbols[:100], 4)
    assert all(math.isnan(share) for both in equal.values() for share, _ in both.values())


def test_the_stated_error_of_a_share_is_its_scatter():
    """Shares of made-up groups over 150 draws, by the F distribution, which ten blocks widen."""
    rng, means, found = np.random.default_rng(12), torch.tensor([-0.5, 0.2, 0.9, -0.1, 0.4, -0.6]).double(), []
    for _ in range(150):
        groups = torch.from_numpy(rng.integers(6, size=(10, 60)))
        values = means[groups] + torch.from_numpy(rng.normal(0.0, 0.6, (10, 60)))
        found.append(_jackknife([_Sums.of(v, g, 6) for v, g in zip(values, groups, strict=True)]))
    values, errors = np.array(found).T
    between = float(means.var(correction=0))
    true = between / (between + 0.36)
    low, high = stats.f.ppf([1e-4, 1 - 1e-4], 150, 150 * 9)
    assert 0.9 * low < np.mean((values - true) ** 2) / np.mean(errors**2) < 1.1 * high
    assert abs(values.mean() - true) < 4 * values.std() / np.sqrt(150)


def test_killed_and_shorter_commands_go_on_with_the_same_numbers(tmp_path):
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    sizes = ["--runs", "2", "--sequences", "300", "--epochs", "6", "--seed", "3", "--hidden", "20", "--quiet"]
    train = ["histogram", "train", "--mechanism", "semantic", *sizes, "-o"]
    unfreeze = ["histogram", "unfreeze", "--epochs", "4", "--quiet"]
    run(*train, undisturbed)
    run(*unfreeze, undisturbed)
    run(*train, killed, "--epochs", "3")
    code, _ = ended(signal.SIGKILL, "attnphase.files.checkpoints:write_file", 2, [*train, str(killed)])
    assert code == -signal.SIGKILL
    run(*train, killed)
    run(*unfreeze, killed)
    (one,), (other,) = load_trained(killed), load_trained(undisturbed)
    for stage in ("frozen", "unfrozen"):
        torch.testing.assert_close(one.stages[stage]["parameters"], other.stages[stage]["parameters"], rtol=0, atol=0)


def test_runs_that_diverge_when_all_weights_are_free_end_with_code_one(tmp_path):
    sizes = ["--mechanism", "semantic", "--runs", "1", "--sequences", "60", "--quiet"]
    run("histogram", "train", *sizes, "--epochs", "1", "-o", tmp_path)
    told = run("histogram", "unfreeze", tmp_path, "--epochs", "2", "--learning-rate", "1e12", "--quiet", code=1)
    assert "1 runs diverged; lower the learning rate" in told.stderr


def test_both_mechanisms_count_in_their_own_way(tmp_path):
    """A small size of the paper's experiment, nine symbols of ten right."""
    sizes = ["--length", "6", "--alphabet", "8", "--model-dimension", "32", "--hidden", "64", "--quiet"]
    options = ["--runs", "2", "--sequences", "4000", "--epochs", "12", "--seed", "1", "-o", tmp_path]
    run("histogram", "train", *sizes, *options)
    run("histogram", "unfreeze", tmp_path, "--epochs", "2", "--quiet")
    words = ["--sequence", "AABBCC", "--sequence", "0,1,2,3,4,5"]
    said = run("histogram", "report", tmp_path, "-o", tmp_path / "report", *words).output
    ds = ap.load_dataset(tmp_path / "report" / "report.nc")
    assert (tmp_path / "report" / "report.txt").read_text(encoding="utf-8").strip() in said
    assert (ds["accuracy"] > 0.9).all()
    np.testing.assert_allclose(ds["attention"].sum("attended"), 1, rtol=0, atol=1e-6)
    frozen = ds.sel(stage="frozen", entries="off_diagonal")
    positional, semantic = (frozen.sel(mechanism=name) for name in MECHANISMS)
    np.testing.assert_allclose(positional["position_share"], 1, rtol=0, atol=1e-9)
    assert (abs(positional["token_share"]) < 0.01).all()
    assert (abs(semantic["position_share"]) < 0.01).all()
    assert (semantic["token_share"] > 0.8).all()
    # a positional matrix is the same for all sequences, a semantic one for all places of the same symbols
    matrices = positional["attention"]
    np.testing.assert_allclose(matrices.isel(sequence=0), matrices.isel(sequence=1), rtol=0, atol=1e-6)
    columns = semantic["attention"].isel(sequence=0)
    np.testing.assert_allclose(columns.isel(attended=0), columns.isel(attended=1), rtol=0, atol=1e-6)


def test_the_page_is_what_the_code_says(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "histogram.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    table, printed = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "histogram.md", "exec"), {})
    assert capsys.readouterr().out == printed
    shipped = ap.load_dataset(ROOT / "data" / "histogram" / "report.nc")
    assert histogram_text(shipped).strip() == table.strip()
