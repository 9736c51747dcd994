"""The transformer of Appendix A, for several runs at once, and the parametrisation of its two frozen forms.

A sequence is a list of pairs (symbol, place), of which there are few: attention scores and values of all of them are
made once for a step, as tables over the T symbols and the L places, and looked up for every sequence.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, one_hot, pad

from attnphase.arrays import Array
from attnphase.experiments.data import generator
from attnphase.experiments.histogram.settings import HistogramSizes
from attnphase.experiments.histogram.task import Stream

__all__ = ["Parameters", "absorbed", "attention", "initial_parameters", "logits", "with_noise"]

Parameters = dict[str, Tensor]
"""Weights by name, each (R, ...): run by run.

``semantic_embedding`` (T, m), ``positional_embedding`` (L, m); ``query``, ``key``, ``value`` (m, m), applied from the
right; ``gain`` and ``shift`` (m) of the layer norm; ``hidden_weight`` (m, h), ``hidden_bias`` (h), ``output_weight``
(h, L + 1), ``output_bias`` (L + 1).
"""

_NOISY = ("semantic_embedding", "positional_embedding", "query", "key")


def initial_parameters(sizes: HistogramSizes, seed: int, runs: int, dtype: torch.dtype) -> Parameters:
    """Random weights of the frozen form: those of its parameters that are free.

    Normal with the variance one over the number of inputs, after LeCun; embeddings are of norm about one, biases are
    zero.  The paper names no choice.  Where embeddings start as standard normal, about a sixth of the semantic runs end
    in a local minimum in which one symbol does not attend to itself.

    Returns
    -------
    dict of str to Tensor
        The embeddings have m/2 columns, query and key m/2 rows; all else is as in the full form.
    """
    m, hidden, outputs = sizes.model_dimension, sizes.hidden, sizes.length + 1
    drawn: list[dict[str, Array]] = []
    for run in range(runs):
        rng = generator(seed, run, Stream.WEIGHTS)

        def normal(*shape: int, inputs: int, rng: np.random.Generator = rng) -> Array:
            return rng.standard_normal(shape) / math.sqrt(inputs)

        drawn.append(
            {
                "semantic_embedding": normal(sizes.alphabet, m // 2, inputs=m // 2),
                "positional_embedding": normal(sizes.length, m // 2, inputs=m // 2),
                "query": normal(m // 2, m, inputs=m // 2),
                "key": normal(m // 2, m, inputs=m // 2),
                "value": normal(m, m, inputs=m),
                "gain": np.ones(m),
                "shift": np.zeros(m),
                "hidden_weight": normal(m, hidden, inputs=m),
                "hidden_bias": np.zeros(hidden),
                "output_weight": normal(hidden, outputs, inputs=hidden),
                "output_bias": np.zeros(outputs),
            }
        )
    return {name: torch.from_numpy(np.stack([one[name] for one in drawn])).to(dtype) for name in drawn[0]}


def absorbed(free: Parameters, mechanism: str) -> Parameters:
    """The full form of a frozen one: what is frozen is written out as exact zeros.

    The first half of an embedding is semantic, the second positional; query and key see one of them.
    """
    half = free["query"].shape[-2]
    seen = (0, 0, 0, half) if mechanism == "semantic" else (0, 0, half, 0)
    return free | {
        "semantic_embedding": pad(free["semantic_embedding"], (0, half)),
        "positional_embedding": pad(free["positional_embedding"], (half, 0)),
        "query": pad(free["query"], seen),
        "key": pad(free["key"], seen),
    }


def with_noise(full: Parameters, scale: float, seed: int) -> Parameters:
    """Gaussian noise of standard deviation `scale` on every entry of the embeddings, query and key."""
    noisy = dict(full)
    generators = [generator(seed, run, Stream.NOISE) for run in range(len(full["query"]))]
    for name in _NOISY:
        noise = np.stack([rng.standard_normal(full[name].shape[1:]) for rng in generators])
        noisy[name] = full[name] + (scale * torch.from_numpy(noise)).to(full[name])
    return noisy


def attention(full: Parameters, symbols: Tensor) -> Tensor:
    """Attention matrices ``softmax(Q K^T / sqrt(m))``.

    Parameters
    ----------
    full : dict of str to Tensor
    symbols : (R, n, L) tensor

    Returns
    -------
    (R, n, L, L) tensor
        Rows sum to one.
    """
    pairs = _pairs(full, symbols)
    return _attention(full, pairs).reshape(*symbols.shape, -1)


def logits(full: Parameters, symbols: Tensor) -> Tensor:
    """Scores of the counts 0, ..., L at every place.

    Returns
    -------
    (R, n L, L + 1) tensor
        For weights in the full form and symbols (R, n, L).
    """
    runs = len(symbols)
    pairs = _pairs(full, symbols)
    # the attended value is linear in the embeddings: attention summed by symbol and by place, times their values
    weights = torch.bmm(_attention(full, pairs), pairs).reshape(runs, -1, pairs.shape[-1])
    attended = weights @ (_embeddings(full) @ full["value"])
    normed = layer_norm(attended, attended.shape[-1:]) * full["gain"][:, None] + full["shift"][:, None]
    hidden = torch.baddbmm(full["hidden_bias"][:, None], normed, full["hidden_weight"]).relu()
    return torch.baddbmm(full["output_bias"][:, None], hidden, full["output_weight"])


def _embeddings(full: Parameters) -> Tensor:
    """Embeddings of symbols and places, one below the other, (R, T + L, m)."""
    return torch.cat([full["semantic_embedding"], full["positional_embedding"]], 1)


def _pairs(full: Parameters, symbols: Tensor) -> Tensor:
    """Indicators of symbol and place, (R n, L, T + L): times the embeddings, they are the embedded sequences."""
    runs, count, length = symbols.shape
    places = torch.eye(length, dtype=full["query"].dtype, device=symbols.device).expand(runs * count, -1, -1)
    indicators = one_hot(symbols.reshape(-1, length), full["semantic_embedding"].shape[1])
    return torch.cat([indicators.to(places.dtype), places], -1)


def _attention(full: Parameters, pairs: Tensor) -> Tensor:
    embeddings = _embeddings(full)
    table = (embeddings @ full["query"]) @ (embeddings @ full["key"]).mT / math.sqrt(embeddings.shape[-1])
    rows = (pairs.reshape(len(table), -1, table.shape[-1]) @ table).reshape(pairs.shape)
    return torch.softmax(torch.bmm(rows, pairs.mT), -1)
