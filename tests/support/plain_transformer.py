"""The transformer of the histogram task as one would write it for a single run."""

import math
from typing import Any

import torch
from torch import nn

NAMES = (
    "semantic_embedding",
    "positional_embedding",
    "query",
    "key",
    "value",
    "gain",
    "shift",
    "hidden_weight",
    "hidden_bias",
    "output_weight",
    "output_bias",
)


class Plain(nn.Module):
    """Of 4 symbols of 6, with an embedding of 10 and 7 hidden units, with a run's weights."""

    def __init__(self, weights: dict[str, torch.Tensor], run: int) -> None:
        super().__init__()
        m, h, L, T, self.run = 10, 7, 4, 6, run
        self.symbols, self.places = nn.Embedding(T, m), nn.Embedding(L, m)
        self.query, self.key, self.value = (nn.Linear(m, m, bias=False) for _ in range(3))
        self.norm, self.hidden, self.output = nn.LayerNorm(m), nn.Linear(m, h), nn.Linear(h, L + 1)
        self.double()
        square = (self.query.weight.T, self.key.weight.T, self.value.weight.T)
        rest = (self.norm.weight, self.norm.bias, self.hidden.weight.T, self.hidden.bias)
        own = (self.symbols.weight, self.places.weight, *square, *rest, self.output.weight.T, self.output.bias)
        assert set(weights) == set(NAMES)
        with torch.no_grad():
            for name, weight in zip(NAMES, own, strict=True):
                weight.copy_(weights[name][run])

    def attend(self, symbols: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.symbols(symbols) + self.places.weight
        return (self.query(embedded) @ self.key(embedded).mT / math.sqrt(10)).softmax(-1), embedded

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        matrix, embedded = self.attend(symbols)
        return self.output(self.hidden(self.norm(matrix @ self.value(embedded))).relu())

    def scores(self, sequences: Any) -> tuple[float, float]:
        """The loss and the share of right answers."""
        found = self(sequences.symbols[self.run]).flatten(0, 1).detach()
        right = sequences.counts[self.run].flatten()
        return float(nn.functional.cross_entropy(found, right)), float((found.argmax(-1) == right).double().mean())
