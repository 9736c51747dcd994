"""Products of the tokens of a batch of runs with a few columns a run: fields from weights, gradients from slopes."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnphase.kernels.cache import filled_aside, fingerprint, intact_folder
from attnphase.kernels.package import compile_package, import_package, write_package

__all__ = ["compile_passes", "fields_of", "pull_back"]

_PASSES = Path(__file__).with_name("passes.py")


def fields_of(tokens: Tensor, weights: Tensor) -> Tensor:
    """Local fields ``(x+p) W / sqrt(d)``: (S, n L, d) and (S, d, r) to (S, n L, r)."""
    scale = math.sqrt(tokens.shape[2])
    if tokens.is_cuda:
        return torch.bmm(tokens, weights) / scale
    rows, products = weights.mT.contiguous(), tokens.new_empty((*tokens.shape[:2], weights.shape[2]))
    for run in zip(tokens, rows, products, strict=True):
        compile_passes().fields(*(array.numpy() for array in run))
    return products.div_(scale)


def pull_back(tokens: Tensor, slopes: Tensor) -> Tensor:
    """``(x+p)^T g / sqrt(d)``, gradients in the fields to gradients in the weights: (S, n L, r) to (S, d, r)."""
    scale = math.sqrt(tokens.shape[2])
    if tokens.is_cuda:
        return torch.bmm(tokens.mT, slopes) / scale
    columns, sums = slopes.contiguous(), tokens.new_zeros((len(tokens), slopes.shape[2], tokens.shape[2]))
    for run in zip(tokens, columns, sums, strict=True):
        compile_passes().slopes(*(array.numpy() for array in run))
    return sums.mT.contiguous().div_(scale)


@lru_cache(maxsize=1)
def compile_passes() -> Any:
    """The module `attnphase.experiments.passes` in machine code, from the user's cache if it is there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    source = _PASSES.read_text(encoding="utf-8")

    def build(folder: Path) -> None:
        with filled_aside(folder) as aside:

            def write() -> tuple[str]:
                write_package(aside, {_PASSES.stem: source})
                return (_PASSES.stem,)

            compile_package(aside, folder.name, write, processes=1)

    with intact_folder(fingerprint(("passes", hashlib.sha256(source.encode()).hexdigest())), build) as folder:
        return import_package(folder, folder.name, (_PASSES.stem,))[_PASSES.stem]
