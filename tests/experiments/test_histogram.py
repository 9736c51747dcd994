"""The histogram task: the transformer against a plain one, exact zeros, kills, distances, scores, the report."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch
from torch import nn

from attnphase.experiments.histogram.stages import load_trained, test_errors, train_histogram
from attnphase.experiments.histogram.task import HistogramSizes, counts, draw_sequences
from attnphase.experiments.histogram.transformer import (
    MECHANISMS,
    absorbed,
    attention,
    initial_parameters,
    logits,
    with_noise,
)

test_errors.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]

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
        order = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(run, 104, epoch))).permutation(42)
        for begin in range(0, 42, batch):
            chosen = torch.from_numpy(order[begin : begin + batch])
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
