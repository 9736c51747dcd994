"""Kernels as ordinary Python: what a compiler would be given, at a few hundred nodes, in no time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from numba.core import config

from attnphase.kernels import compiler
from attnphase.kernels.cache import fingerprint
from attnphase.kernels.package import write_package

_PLACE = TemporaryDirectory(prefix="attnphase-uncompiled-")


def _write_package(folder: Path, generated: Mapping[str, str]) -> None:
    """With functions of NumPy, which go on with infinities as machines do."""
    write_package(
        folder, {name: source.replace("from math import", "from numpy import") for name, source in generated.items()}
    )


@contextmanager
def _written(key: Any) -> Iterator[Path]:
    """The sources of a kernel."""
    folder = Path(_PLACE.name) / f"python_{fingerprint(key)}"
    if not folder.exists():
        compiler.build_kernel(key, folder)
    yield folder


# none of these is among those that are compiled
_LOADERS = {
    name: lru_cache(getattr(compiler, name).__wrapped__)
    for name in ("load_kernels", "load_sample_kernels", "load_slopes", "load_entry")
}


@contextmanager
def uncompiled() -> Iterator[None]:
    """All kernels that are asked for here are run by Python, node by node.

    A node takes a millisecond.
    """
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(config, "DISABLE_JIT", 1)
        patch.setattr(compiler, "SIDE_BY_SIDE", 0)  # lanes are for machines
        patch.setattr(compiler, "write_package", _write_package)
        patch.setattr(compiler, "compile_package", lambda _folder, _name, write, _count: write())
        patch.setattr(compiler, "built_folder", _written)
        for name, loader in _LOADERS.items():
            patch.setattr(compiler, name, loader)
        yield
