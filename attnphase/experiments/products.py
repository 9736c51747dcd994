"""Products of the tokens of a batch of runs with a few columns a run: fields from weights, gradients from slopes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from attnphase.kernels.shared import prepare, shared

__all__ = ["compile_passes", "fields_of", "pull_back"]


def fields_of(tokens: Tensor, weights: Tensor) -> Tensor:
    """Local fields ``(x+p) W / sqrt(d)``: (S, n L, d) and (S, d, r) to (S, n L, r)."""
    scale = math.sqrt(tokens.shape[2])
    if tokens.is_cuda:
        return torch.bmm(tokens, weights) / scale
    rows, products = weights.mT.contiguous(), tokens.new_empty((*tokens.shape[:2], weights.shape[2]))
    for run in zip(tokens, rows, products, strict=True):
        _compiled("fields", tokens)(*(array.numpy() for array in run))
    return products.div_(scale)


def pull_back(tokens: Tensor, slopes: Tensor) -> Tensor:
    """``(x+p)^T g / sqrt(d)``, gradients in the fields to gradients in the weights: (S, n L, r) to (S, d, r)."""
    scale = math.sqrt(tokens.shape[2])
    if tokens.is_cuda:
        return torch.bmm(tokens.mT, slopes) / scale
    columns, sums = slopes.contiguous(), tokens.new_zeros((len(tokens), slopes.shape[2], tokens.shape[2]))
    for run in zip(tokens, columns, sums, strict=True):
        _compiled("slopes", tokens)(*(array.numpy() for array in run))
    return sums.mT.contiguous().div_(scale)


def _compiled(name: str, tokens: Tensor) -> Callable[..., None]:
    """One of `attnphase.kernels.local.passes`, for numbers of the tokens' precision."""
    return shared(f"token_{name}_{8 * tokens.element_size()}")


def compile_passes() -> None:
    """Have these compiled, if they are not in the user's cache.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    prepare(("passes",))
