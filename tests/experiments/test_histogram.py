"""The histogram task: the transformer against a plain one, exact zeros, kills, distances, scores, the report."""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from stop_at import ended

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from torch import nn

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data.variables import RunStatus
from attnphase.errors import DatasetError, ExperimentError, ProblemError
from attnphase.experiments.checkpoint import Checkpoint
from attnphase.experiments.data import generator
from attnphase.experiments.histogram.report import distances, histogram_dataset, histogram_text, variance_shares
from attnphase.experiments.histogram.settings import MECHANISMS
from attnphase.experiments.histogram.stages import (
    checkpoint_path,
    load_trained,
    train_histogram,
    unfreeze_histogram,
)
from attnphase.experiments.histogram.task import HistogramSizes, Stream, counts, draw_sequences
from attnphase.experiments.histogram.transformer import (
    absorbed,
    attention,
    initial_parameters,
    logits,
    with_noise,
)
from attnphase.files.writing import write_file

ROOT = Path(__file__).parents[2]
SMALL = HistogramSizes(length=4, alphabet=6, model_dimension=10, hidden=7, sequences=60)
CPU = torch.device("cpu")


class Plain(nn.Module):
    """The same transformer as one would write it for a single run, on embedded sequences."""

    def __init__(self, sizes: HistogramSizes, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        m = sizes.model_dimension
        self.symbols = nn.Embedding(sizes.alphabet, m)
        self.places = nn.Embedding(sizes.length, m)
        self.query, self.key, self.value = (nn.Linear(m, m, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(m)
        self.hidden, self.output = nn.Linear(m, sizes.hidden), nn.Linear(sizes.hidden, sizes.length + 1)
        self.to(next(iter(weights.values())).dtype)
        pairs = {
            "semantic_embedding": self.symbols.weight,
            "positional_embedding": self.places.weight,
            "query": self.query.weight.T,
            "key": self.key.weight.T,
            "value": self.value.weight.T,
            "gain": self.norm.weight,
            "shift": self.norm.bias,
            "hidden_weight": self.hidden.weight.T,
            "hidden_bias": self.hidden.bias,
            "output_weight": self.output.weight.T,
            "output_bias": self.output.bias,
        }
        assert set(pairs) == set(weights)
        with torch.no_grad():
            for name, own in pairs.items():
                own.copy_(weights[name])

    def attend(self, symbols: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.symbols(symbols) + self.places.weight
        scores = self.query(embedded) @ self.key(embedded).mT / math.sqrt(embedded.shape[-1])
        return scores.softmax(-1), embedded

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        matrix, embedded = self.attend(symbols)
        return self.output(self.hidden(self.norm(matrix @ self.value(embedded))).relu())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_tables_give_the_transformer_of_the_paper(mechanism):
    free = initial_parameters(SMALL, 3, 2, torch.float64)
    full = with_noise(absorbed(free, mechanism), 0.3, 3)  # no entry is special now
    symbols = draw_sequences(SMALL, 3, 2, CPU)[0].symbols[:, :9]
    for run in range(2):
        plain = Plain(SMALL, {name: value[run] for name, value in full.items()})
        torch.testing.assert_close(attention(full, symbols)[run], plain.attend(symbols[run])[0], rtol=0, atol=1e-13)
        ours = logits(full, symbols)[run].reshape(9, SMALL.length, -1)
        torch.testing.assert_close(ours, plain(symbols[run]), rtol=0, atol=1e-12)


def test_targets_are_counts():
    symbols = torch.tensor([[2, 0, 2, 2, 1]])
    assert counts(symbols).tolist() == [[3, 1, 3, 3, 1]]


def test_sequences_are_split_and_those_of_a_run_do_not_depend_on_the_others():
    sizes = HistogramSizes(length=5, alphabet=4, sequences=101, training_share=0.6)
    training, test = draw_sequences(sizes, 7, 3, CPU)
    assert training.symbols.shape == (3, 61, 5)
    assert test.symbols.shape == (3, 40, 5)
    alone = draw_sequences(sizes, 7, 1, CPU)[0]
    assert torch.equal(alone.symbols[0], training.symbols[0])
    assert not torch.equal(training.symbols[1], training.symbols[0])
    assert not torch.equal(draw_sequences(sizes, 8, 1, CPU)[0].symbols, alone.symbols)
    frequencies = torch.bincount(torch.cat([training.symbols, test.symbols], 1).flatten(), minlength=4) / (3 * 505)
    assert (frequencies - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / (3 * 505))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_training_is_adam_on_the_masked_transformer_and_what_is_frozen_stays_zero(mechanism, tmp_path):
    """The reference trains all weights of the plain transformer and sets the frozen ones to zero after every step."""
    epochs, batch, rate = 3, 7, 4e-3
    train_histogram(tmp_path, mechanism, 2, epochs, 5, sizes=SMALL, batch=batch, learning_rate=rate, dtype="float64")
    (trained,) = load_trained(tmp_path)
    ours = trained.stages["frozen"]["parameters"]
    m = SMALL.model_dimension
    seen, unseen = (slice(0, m // 2), slice(m // 2, m))[:: 1 if mechanism == "semantic" else -1]
    for full in (trained.initial, ours):
        assert (full["semantic_embedding"][..., m // 2 :] == 0).all()
        assert (full["positional_embedding"][..., : m // 2] == 0).all()
        for name in ("query", "key"):
            assert (full[name][:, unseen] == 0).all()
            assert (full[name][:, seen] != 0).all()

    training, test = draw_sequences(SMALL, 5, 2, CPU)
    run = 1
    plain = Plain(SMALL, {name: value[run] for name, value in trained.initial.items()})
    frozen = [(w, w.detach() == 0) for w in (plain.symbols.weight, plain.places.weight)]
    frozen += [(w, w.detach() == 0) for w in (plain.query.weight, plain.key.weight)]
    optimizer = torch.optim.Adam(plain.parameters(), lr=rate, betas=(0.9, 0.98))
    for epoch in range(epochs):
        order = torch.from_numpy(generator(5, run, Stream.FROZEN_ORDER, epoch).permutation(42))
        for chosen in order.split(batch):
            loss = nn.functional.cross_entropy(
                plain(training.symbols[run, chosen]).flatten(0, 1), training.counts[run, chosen].flatten()
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for weight, zero in frozen:
                    weight[zero] = 0
    reference = Plain(SMALL, {name: value[run] for name, value in ours.items()})
    for mine, theirs in zip(reference.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)
    right = (plain(test.symbols[run]).argmax(-1) == test.counts[run]).double().mean()
    assert trained.stages["frozen"]["accuracy"][run, -1] == pytest.approx(float(right), abs=1e-12)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_absorbing_the_mask_changes_no_output(mechanism):
    """Against query and key that see a masked embedding, and have entries behind the mask, too."""
    free = initial_parameters(SMALL, 11, 2, torch.float32)
    full = absorbed(free, mechanism)
    m = SMALL.model_dimension
    mask = torch.zeros(m)
    mask[: m // 2 if mechanism == "semantic" else m] = 1
    mask[: 0 if mechanism == "semantic" else m // 2] = 0
    symbols = draw_sequences(SMALL, 11, 2, CPU)[0].symbols
    for run in range(2):
        plain = Plain(SMALL, {name: value[run] for name, value in full.items()})
        with torch.no_grad():
            for weight in (plain.query.weight, plain.key.weight):
                weight += (1 - mask) * torch.randn(m, m)
        embedded = plain.symbols(symbols[run]) + plain.places.weight
        seen = mask * embedded
        matrix = (plain.query(seen) @ plain.key(seen).mT / math.sqrt(m)).softmax(-1)
        masked = plain.output(plain.hidden(plain.norm(matrix @ plain.value(embedded))).relu())
        ours = logits(full, symbols)[run].reshape(masked.shape)
        torch.testing.assert_close(ours, masked, rtol=0, atol=1e-6)


def test_unfreezing_is_plain_descent_from_the_disturbed_solution(tmp_path):
    noise, rate, batch = 0.02, 0.03, 9
    train_histogram(tmp_path, "positional", 2, 2, 6, sizes=SMALL, batch=batch, dtype="float64")
    (before,) = load_trained(tmp_path)
    unfreeze_histogram(tmp_path, epochs=2, noise=noise, learning_rate=rate)
    (after,) = load_trained(tmp_path)
    frozen, unfrozen = (after.stages[name]["parameters"] for name in ("frozen", "unfrozen"))
    for name, value in before.stages["frozen"]["parameters"].items():
        assert torch.equal(value, frozen[name])
    noisy = after.noisy()
    added = torch.cat([(noisy[name] - frozen[name]).flatten() for name in frozen])
    disturbed = torch.cat([added[added != 0]])
    m = SMALL.model_dimension
    assert len(disturbed) == 2 * (2 * m * m + (SMALL.alphabet + SMALL.length) * m)
    assert float(disturbed.std()) == pytest.approx(noise, rel=4 / math.sqrt(2 * len(disturbed)))

    training, _ = draw_sequences(SMALL, 6, 2, CPU)
    for run in range(2):
        plain = Plain(SMALL, {name: value[run] for name, value in noisy.items()})
        optimizer = torch.optim.SGD(plain.parameters(), lr=rate)
        for epoch in range(2):
            order = torch.from_numpy(generator(6, run, Stream.UNFROZEN_ORDER, epoch).permutation(42))
            for chosen in order.split(batch):
                target = training.counts[run, chosen].flatten()
                loss = nn.functional.cross_entropy(plain(training.symbols[run, chosen]).flatten(0, 1), target)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        reference = Plain(SMALL, {name: value[run] for name, value in unfrozen.items()})
        for mine, theirs in zip(reference.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    # without noise and almost without steps nothing happens
    unfreeze_histogram(tmp_path, epochs=1, noise=0, learning_rate=1e-30, force=True)
    (still,) = load_trained(tmp_path)
    assert torch.equal(still.stages["unfrozen"]["accuracy"][:, 0], still.stages["frozen"]["accuracy"][:, -1])
    assert distances(still.stages["frozen"]["parameters"], still.stages["unfrozen"]["parameters"])[0].max() < 1e-20


def test_distances_are_sums_of_norms_and_one_norm():
    before = {"a": torch.zeros(2, 3), "b": torch.ones(2, 2, 2)}
    after = {
        "a": torch.tensor([[3.0, 0, 4], [0, 0, 0]]),
        "b": torch.ones(2, 2, 2) + torch.tensor([6.0, 1])[:, None, None],
    }
    both = distances(before, after)
    np.testing.assert_allclose(both[0], [5 + 12, 0 + 2], rtol=1e-15)
    np.testing.assert_allclose(both[1], [13, 2], rtol=1e-15)


# --- shares of the variance -------------------------------------------------------------------------------------------


def test_shares_of_made_up_matrices():
    """Entries that are a sum of a part of the places, one of the symbols, and noise, with known variances."""
    rng = np.random.default_rng(5)
    length, alphabet, count = 6, 4, 20_000
    symbols = torch.from_numpy(rng.integers(alphabet, size=(count, length)))
    places = torch.from_numpy(rng.standard_normal((length, length)))
    table = torch.from_numpy(rng.standard_normal((alphabet, alphabet)))
    noise = torch.from_numpy(rng.standard_normal((count, length, length)))
    off = ~torch.eye(length, dtype=torch.bool)
    # off the diagonal every pair of symbols has one probability
    parts = float(places[off].var(correction=0)), float(table.var(correction=0)), 0.7**2
    matrices = places + table[symbols[:, :, None], symbols[:, None, :]] + 0.7 * noise
    shares = variance_shares(matrices, symbols, alphabet)
    for name, part in zip(("position_share", "token_share"), parts, strict=False):
        share, error = shares[name]["off_diagonal"]
        assert abs(share - part / sum(parts)) < 4 * error
        assert error < 0.01
    alone = variance_shares(places.expand(count, -1, -1), symbols, alphabet)
    assert alone["position_share"]["all"][0] == pytest.approx(1, abs=1e-9)
    assert abs(alone["token_share"]["off_diagonal"][0]) < 1e-3
    shuffled = variance_shares(noise, symbols, alphabet)
    for name in ("position_share", "token_share"):
        share, error = shuffled[name]["all"]
        assert abs(share) < 4 * error
        assert error < 1e-3


def test_equal_attention_has_no_shares():
    symbols = torch.from_numpy(np.random.default_rng(1).integers(3, size=(100, 4)))
    shares = variance_shares(torch.full((100, 4, 4), 0.25), symbols, 3)
    assert all(math.isnan(share) for both in shares.values() for share, _ in both.values())


# --- checkpoints ------------------------------------------------------------------------------------------------------


def snapshot(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: {**state, "seconds": 0} for name, state in one.stages.items()} for one in load_trained(folder)
    ]  # times differ


def same(a: Any, b: Any) -> None:
    """Equal bit by bit, all the way down."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same(one, other)
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    else:
        assert a == b


OPTIONS = ["--runs", "2", "--sequences", "300", "--epochs", "6", "--seed", "3", "--hidden", "20", "--quiet"]


def refusal(*arguments: str) -> str:
    """The one sentence with which a command refuses its input."""
    result = CliRunner().invoke(main, ["histogram", *arguments])
    assert result.exit_code == 2, result.output
    assert result.output.startswith("attnphase: error: ")
    return result.output.removeprefix("attnphase: error: ").strip()


def test_killed_commands_go_on_with_the_same_numbers(tmp_path, undisturbed):
    train = ["train", "--mechanism", "semantic", *OPTIONS, "-o", str(tmp_path)]
    unfreeze = ["unfreeze", str(tmp_path), "--epochs", "4", "--quiet"]
    for how, command, stage, epochs in (
        (signal.SIGKILL, train, "frozen", 2),
        (signal.SIGINT, unfreeze, "unfrozen", 1),
    ):
        # where this many epochs have been written
        code, errors = ended(how, "attnphase.files.checkpoints:write_file", epochs, ["histogram", *command])
        if how == signal.SIGKILL:
            assert code == -how
        else:
            assert code == 130
            sentence = f"interrupted: finished epochs are kept in {tmp_path}; run the same command again to go on."
            assert errors == f"attnphase: {sentence}\n"
        kept = Checkpoint.read(checkpoint_path(tmp_path, "semantic"))
        assert stage not in kept.finished
        assert kept.running is not None
        assert kept.running["epoch"] == epochs
        assert CliRunner().invoke(main, ["histogram", *command]).exit_code == 0
    same(snapshot(tmp_path), snapshot(undisturbed))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    for arguments in (["train", "--mechanism", "semantic", *OPTIONS, "-o"], ["unfreeze", "--epochs", "4", "--quiet"]):
        result = CliRunner().invoke(main, ["histogram", *arguments, str(folder)])
        assert result.exit_code == 0, result.output
    return folder


def test_more_epochs_go_on_from_fewer(tmp_path, undisturbed):
    train = ["train", "--mechanism", "semantic", *OPTIONS, "-o", str(tmp_path)]
    fewer = [*train, "--epochs", "4"]
    assert CliRunner().invoke(main, ["histogram", *fewer]).exit_code == 0
    assert CliRunner().invoke(main, ["histogram", *train]).exit_code == 0
    same(snapshot(tmp_path)[0]["frozen"], snapshot(undisturbed)[0]["frozen"])
    assert "6 epochs were made already, more than the 4 asked for; choose another folder." in refusal(*fewer)
    for epochs in ("1", "4"):
        unfreeze = ["histogram", "unfreeze", str(tmp_path), "--quiet", "--epochs", epochs]
        assert CliRunner().invoke(main, unfreeze).exit_code == 0
    same(snapshot(tmp_path), snapshot(undisturbed))
    back = refusal("unfreeze", str(tmp_path), "--epochs", "3")
    assert "4 epochs were made already, more than the 3 asked for; use --force" in back


@pytest.fixture
def interrupted_after(monkeypatch: pytest.MonkeyPatch, interruptible: None) -> Callable[..., None]:
    """Calls a function that is interrupted, or told to end, while the checkpoint of so many epochs is written."""
    return partial(_interrupted_after, monkeypatch)


def _interrupted_after(
    monkeypatch: pytest.MonkeyPatch, epochs: int, command: Callable[[], None], how: signal.Signals = signal.SIGINT
) -> None:
    written: list[Path] = []

    def and_interrupt(path: Path, content: bytes) -> None:
        write_file(path, content)
        written.append(path)
        if len(written) == epochs:
            signal.raise_signal(how)

    with monkeypatch.context() as patch:
        patch.setattr("attnphase.files.checkpoints.write_file", and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            command()


def test_what_is_finished_stays_while_it_is_extended_and_may_end_where_it_stands(tmp_path, interrupted_after):
    one: Any = np.int64(1)

    def train(epochs: int, mechanism: str = "both") -> None:
        train_histogram(tmp_path, mechanism, one, epochs * one, sizes=SMALL, learning_rate=np.float64(1e-3))

    # an interruption in the last epoch of one mechanism is heard before the next
    interrupted_after(2, lambda: train(2))
    assert not checkpoint_path(tmp_path, "semantic").exists()
    train(2)
    interrupted_after(2, lambda: train(6, "positional"))
    lengths = {x.mechanism: x.stages["frozen"]["epoch"] for x in load_trained(tmp_path)}
    assert lengths == {"positional": 2, "semantic": 2}
    with pytest.raises(ExperimentError, match=r"positional\.checkpoint: training has not ended"):
        unfreeze_histogram(tmp_path)
    train(4)
    assert {x.stages["frozen"]["epoch"] for x in load_trained(tmp_path)} == {4}
    interrupted_after(3, lambda: unfreeze_histogram(tmp_path, "positional", 9 * one))
    unfreeze_histogram(tmp_path, epochs=3 * one)
    ended = load_trained(tmp_path)
    train_histogram(tmp_path / "once", "both", 1, 4, sizes=SMALL)
    unfreeze_histogram(tmp_path / "once", epochs=3)
    for mine, other in zip(ended, load_trained(tmp_path / "once"), strict=True):
        for stage in ("frozen", "unfrozen"):
            same(mine.stages[stage]["parameters"], other.stages[stage]["parameters"])


def test_a_mechanism_in_work_is_left_out(tmp_path, interrupted_after):
    train_histogram(tmp_path, "semantic", 1, 1, sizes=SMALL)
    interrupted_after(1, lambda: train_histogram(tmp_path, "positional", 1, 2, sizes=SMALL), signal.SIGTERM)
    with pytest.warns(UserWarning, match=r"positional\.checkpoint: training has not ended; these runs are left out\."):
        ds = histogram_dataset(tmp_path)
    assert ds["mechanism"].to_numpy().tolist() == ["semantic"]


@pytest.mark.parametrize("sequences", [[[0.5] * 4], ["ABCD"], [1, 2, 3, 4], 5])
def test_sequences_are_whole_numbers(sequences, tmp_path):
    train_histogram(tmp_path, "semantic", 1, 1, sizes=SMALL)
    with pytest.raises(ProblemError, match=r"^sequence must be 4 symbols between 0 and 5 \(A to F\)"):
        histogram_dataset(tmp_path, sequences)


def test_a_full_disk_keeps_the_last_epoch(tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        if Checkpoint.read(path).running if path.exists() else None:
            raise DatasetError(f"{path}: the file cannot be written: No space left on device.")
        write_file(path, content)

    monkeypatch.setattr("attnphase.files.checkpoints.write_file", full)
    with pytest.raises(DatasetError, match=r"semantic\.checkpoint: the file cannot be written: No space left"):
        train_histogram(tmp_path, "semantic", 1, 5, sizes=SMALL)
    monkeypatch.undo()
    assert (Checkpoint.read(checkpoint_path(tmp_path, "semantic")).running or {})["epoch"] == 1
    train_histogram(tmp_path, "semantic", 1, 5, sizes=SMALL)
    train_histogram(tmp_path / "other", "semantic", 1, 5, sizes=SMALL)
    same(snapshot(tmp_path), snapshot(tmp_path / "other"))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ["--model-dimension", "63"],
            "model_dimension must be even, as half of it is semantic and half positional, not 63",
        ),
        (["--length", "1"], "length must be a whole number from 2 to 100, not 1."),
        (["--alphabet", "1"], "alphabet must be a whole number from 2 to 1000, not 1."),
        (["--hidden", "0"], "hidden must be a whole number from 1 to 1000000000, not 0."),
        (["--sequences", "1"], "sequences must be a whole number from 2 to 1000000000, not 1."),
        (["--training-share", "1.0"], "training_share must be a number between 0 and 1, not 1.0."),
        (["--training-share", "nan"], "training_share must be a number between 0 and 1, not nan."),
        (["--training-share", "0.999", "--sequences", "10"], "leaves none to train on or none to test."),
        (["--batch", "0"], "batch must be a whole number from 1 to 1000000000, not 0."),
        (["--runs", "0"], "runs must be a whole number from 1 to 1000000000, not 0."),
        (["--epochs", "0"], "epochs must be a whole number from 1 to 1000000000, not 0."),
        (["--seed", "-1"], "seed must be a whole number from 0 to 9223372036854775807, not -1."),
        (["--seed", "9223372036854775808"], "seed must be a whole number from 0 to"),
        (["--length", "101"], "length must be a whole number from 2 to 100, not 101."),
        (["--sequences", "1000000", "--batch", "900000", "--runs", "100"], "lower runs, sequences, batch"),
        (["--learning-rate", "inf"], "learning_rate must be a positive number, not inf."),
        (["--device", "tpu"], 'device must be "cpu", "cuda"'),
        (["--runs", "100000"], "100000 runs of 50000 sequences need about"),
        (["--sequences", "900000000"], "GiB are free, of which 60% are used; lower runs, sequences"),
    ],
)
def test_settings_that_cannot_be(options, sentence, tmp_path):
    folder = tmp_path / "runs"
    assert sentence in refusal("train", "-o", str(folder), *options)
    assert not folder.exists()


def test_checkpoints_of_others_and_damaged_ones(tmp_path, undisturbed):
    own, path = str(tmp_path), checkpoint_path(tmp_path, "semantic")
    assert "there is no such folder" in refusal("unfreeze", f"{own}/none")
    assert "there are no positional or semantic runs here; train them first" in refusal("report", own)
    whole = checkpoint_path(undisturbed, "semantic").read_bytes()
    for damaged in (whole[:1000], b"", whole[:5000] + b"?" + whole[5001:], b"nothing of the kind"):
        path.write_bytes(damaged)
        for arguments in (["train", *OPTIONS, "-o", own], ["unfreeze", own], ["report", own]):
            assert "this is not a checkpoint of training runs, or it is damaged" in refusal(*arguments)
        assert path.read_bytes() == damaged
    # a whole one under the wrong name, one of another command, other settings, one that is not finished
    path.write_bytes(whole)
    path.rename(checkpoint_path(tmp_path, "positional"))
    for command in ("report", "unfreeze"):
        assert "something else than positional histogram runs" in refusal(command, own)
    assert "belongs to other training runs, with another mechanism" in refusal("train", *OPTIONS, "-o", own)
    checkpoint_path(tmp_path, "positional").unlink()
    Checkpoint(path, {"problem": "none"}).write()
    assert "something else than semantic histogram runs" in refusal("unfreeze", own)
    path.write_bytes(whole)
    other = refusal("train", "--mechanism", "semantic", *OPTIONS, "--batch", "31", "-o", own)
    assert "belongs to other training runs, with another batch; remove it, or name another" in other
    further = refusal("train", "--mechanism", "semantic", *OPTIONS, "--epochs", "7", "-o", own)
    assert "unfrozen already and cannot be trained further" in further
    again = refusal("unfreeze", own, "--epochs", "4", "--noise", "0.5")
    assert "unfrozen with another value of noise (0.001); use --force" in again
    assert path.read_bytes() == whole
    kept = Checkpoint.read(path)
    kept.running, kept.finished = kept.finished["frozen"], {}
    kept.write()
    for command in ("report", "unfreeze"):
        assert "training has not ended; run the command that began it once more first" in refusal(command, own)


def test_sequences_that_do_not_fit(undisturbed, tmp_path):
    for given, shown in (("ABC", "0,1,2"), ("AAAAAAAAAZ", "0,0,0,0,0,0,0,0,0,25"), ("1,2,3,4,5,6,7,8,9,-1", "9,-1")):
        sentence = refusal("report", str(undisturbed), "--sequence", given, "-o", str(tmp_path))
        assert "sequence must be 10 symbols between 0 and 14 (A to O), not" in sentence
        assert shown in sentence
    other_run = refusal("report", str(undisturbed), "--run", "2", "-o", str(tmp_path))
    assert other_run == "run must lie between 0 and 1, not 2."
    assert not list(tmp_path.iterdir())


def test_runs_that_diverge_are_named_and_left_out(tmp_path):
    sizes = HistogramSizes(sequences=100)
    with pytest.warns(UserWarning, match=r"semantic, run 1: diverged in epoch 1\."):
        train_histogram(tmp_path, "semantic", epochs=2, learning_rate=1e38, sizes=sizes)
    command = ["train", "--mechanism", "semantic", "--sequences", "100", "--epochs", "2", "--learning-rate", "1e38"]
    result = CliRunner().invoke(main, ["histogram", *command, "--quiet", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert "3 runs diverged; lower the learning rate, or the noise." in result.output
    ds = histogram_dataset(tmp_path)
    assert (ds["status"].sel(stage="frozen") == RunStatus.diverged).all()
    assert "0 (3 diverged)" in histogram_text(ds)
    result = CliRunner().invoke(main, ["histogram", "report", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "attention.png").exists()


def test_the_smallest_sizes_work(tmp_path):
    smallest = ["--length", "2", "--alphabet", "2", "--model-dimension", "2", "--hidden", "1", "--sequences", "2"]
    train = ["train", *smallest, "--training-share", "0.5", "--epochs", "2", "--runs", "1", "-o", str(tmp_path)]
    for arguments in (train, ["unfreeze", str(tmp_path), "--epochs", "1"], ["report", str(tmp_path)]):
        result = CliRunner().invoke(main, ["histogram", *arguments, "--quiet"])
        assert result.exit_code == 0, result.output
    ds = ap.load_dataset(tmp_path / "report.nc")
    assert (ds["status"] == RunStatus.completed).all()
    assert np.isfinite(ds["distance_sum"]).all()


def test_the_page_is_what_the_code_says(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "histogram.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    table, printed = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "histogram.md", "exec"), {})
    assert capsys.readouterr().out == printed
    shipped = ap.load_dataset(ROOT / "data" / "histogram" / "report.nc")
    assert histogram_text(shipped).strip() == table.strip()
    assert (ROOT / "data" / "histogram" / "report.txt").read_text(encoding="utf-8").strip() == table.strip()


# --- the report -------------------------------------------------------------------------------------------------------


def test_the_report_of_short_runs(tmp_path):
    """A small size of the paper's experiment: both mechanisms count nine symbols of ten, each in its own way."""
    runs, out = tmp_path / "runs", tmp_path / "report"
    sizes = ["--length", "6", "--alphabet", "8", "--model-dimension", "32", "--hidden", "64", "--quiet"]
    train = ["train", *sizes, "--runs", "2", "--sequences", "4000", "--epochs", "12", "--seed", "1", "-o", str(runs)]
    for arguments in (train, ["unfreeze", str(runs), "--epochs", "2", "--quiet"]):
        assert CliRunner().invoke(main, ["histogram", *arguments]).exit_code == 0
    words = ["AABBCC", "ABCDEF"]
    report = ["report", str(runs), "-o", str(out), "--run", "1", "--sequence", words[0], "--sequence"]
    result = CliRunner().invoke(main, ["histogram", *report, "0,1,2,3,4,5"])
    assert result.exit_code == 0, result.output
    ds = ap.load_dataset(out / "report.nc")
    assert ds["attention"].dims == ("mechanism", "run", "stage", "sequence", "token", "attended")
    assert ["".join("ABCDEF"[i] for i in row) for row in ds["symbols"].to_numpy()] == words
    assert (ds["accuracy"] > 0.9).all()
    np.testing.assert_allclose(ds["attention"].sum("attended"), 1, rtol=0, atol=1e-6)
    frozen = ds.sel(stage="frozen", entries="off_diagonal")
    np.testing.assert_allclose(frozen["position_share"].sel(mechanism="positional"), 1, rtol=0, atol=1e-9)
    assert (abs(frozen["token_share"].sel(mechanism="positional")) < 0.01).all()
    assert (abs(frozen["position_share"].sel(mechanism="semantic")) < 0.01).all()
    assert (frozen["token_share"].sel(mechanism="semantic") > 0.8).all()
    # a positional matrix is the same for all sequences, a semantic one for all places of the same symbols
    positional = ds["attention"].sel(mechanism="positional", stage="frozen")
    np.testing.assert_allclose(positional.isel(sequence=0), positional.isel(sequence=1), rtol=0, atol=1e-6)
    semantic = ds["attention"].sel(mechanism="semantic", stage="frozen").isel(sequence=0).to_numpy()
    np.testing.assert_allclose(semantic[:, 0], semantic[:, 1], rtol=0, atol=1e-6)
    trained = load_trained(runs)
    for one in trained:
        stages = {name: state["parameters"] for name, state in one.stages.items()}
        for begin, stage in ((one.initial, "frozen"), (stages["frozen"], "unfrozen")):
            moved = {name: (stages[stage][name] - value).double() for name, value in begin.items()}
            squares = [[float((value[run] ** 2).sum()) for value in moved.values()] for run in range(2)]
            here = ds.sel(mechanism=one.mechanism, stage=stage)
            np.testing.assert_allclose(here["distance_sum"], np.sqrt(squares).sum(1), rtol=1e-6)
            np.testing.assert_allclose(here["distance_l2"], np.sqrt(np.sum(squares, 1)), rtol=1e-6)
    for name in ("attention.png", "learning.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    text = (out / "report.txt").read_text(encoding="utf-8")
    assert text.count("unfrozen") >= 2
    assert text.strip() in result.output
    kept = {path: path.read_bytes() for path in out.iterdir()}
    assert "report.nc: the file exists; use --force" in refusal(*report, "ABCDEF")
    assert {path: path.read_bytes() for path in out.iterdir()} == kept
    # a mechanism that was trained otherwise does not belong in one table
    other = [
        "histogram",
        "train",
        "--mechanism",
        "semantic",
        *sizes,
        "--runs",
        "2",
        "--sequences",
        "20",
        "--epochs",
        "1",
    ]
    refused = refusal(*other[1:], "-o", str(runs))
    assert "belongs to other training runs" in refused
    assert CliRunner().invoke(main, [*other, "-o", str(tmp_path / "other")]).exit_code == 0
    checkpoint_path(tmp_path / "other", "semantic").replace(checkpoint_path(runs, "semantic"))
    mixed = refusal("report", str(runs), "-o", str(tmp_path / "mixed"))
    assert "seed is 1 for the positional runs here and 0 for the semantic ones" in mixed
    checkpoint_path(runs, "semantic").unlink()
    assert "seed is 1 for the positional runs here and 0 for the semantic ones" in refusal(*other[1:], "-o", str(runs))
    assert not checkpoint_path(runs, "semantic").exists()
