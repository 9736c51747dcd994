"""The kernel cache: damage is noticed and repaired, and nobody else's folder is trusted."""

import multiprocessing
import os
import shutil
import stat
from dataclasses import dataclass

import numpy as np
import pytest

from attnphase import compiled
from attnphase.compiled import cache_directory, load_kernels
from attnphase.errors import CacheError
from derivations.model import ScalarModel


@dataclass(frozen=True)
class SquareKey:
    """A model that compiles quickly."""

    def model(self):
        return ScalarModel("square", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own; kernels loaded before are forgotten before and after."""
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "cache"))
    load_kernels.cache_clear()
    yield tmp_path / "cache" / "kernels"
    load_kernels.cache_clear()


def minimum_of_square(kernels, omega=0.7, k=-0.4, variance=1.9):
    """Proximal point of (h - k)^2/2, which is (omega + V k) / (1 + V)."""
    fields, energies = np.zeros((1, 2, 1, 1)), np.zeros((1, 2))
    losses, residuals, steps = np.zeros(1), np.zeros((1, 1, 1)), np.zeros(1, dtype=np.int64)
    kernels.minimise(
        np.full((1, 1, 1), omega),
        np.full((1, 1, 1), k),
        np.full((1, 1, 1), np.sqrt(variance)),
        np.zeros((1, 1)),
        np.array([0.3, 1.0, 1.0]),
        np.ones(1),
        0,
        fields,
        energies,
        losses,
        residuals,
        steps,
    )
    assert fields[0, 0, 0, 0] == pytest.approx((omega + variance * k) / (1 + variance), abs=1e-12)


def kernel_files(cache):
    (folder,) = [p for p in cache.iterdir() if p.is_dir()]
    return folder, sorted(p for p in folder.rglob("*") if p.is_file())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A cache with one kernel, compiled once for this file."""
    root = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNPHASE_CACHE_DIR", str(root))
        load_kernels.cache_clear()
        minimum_of_square(load_kernels(SquareKey()))
        load_kernels.cache_clear()
    return root / "kernels"


@pytest.fixture
def filled(cache, whole, monkeypatch):
    """A copy of it as the test's cache, and the folders that are built there: compiling again is copying again."""
    shutil.copytree(whole, cache)
    (folder,) = [p for p in whole.iterdir() if p.is_dir()]
    built = []

    def build(_, place):
        shutil.copytree(folder, place)
        built.append(place)

    monkeypatch.setattr(compiled, "_build", build)
    return built


@pytest.mark.parametrize(
    "damage", ["truncate source", "flip machine code", "delete manifest", "extra file", "garbage manifest"]
)
def test_a_damaged_kernel_is_built_again(cache, filled, damage):
    folder, files = kernel_files(cache)
    before = {p.name: p.read_bytes() for p in files}
    if damage == "truncate source":
        source = folder / "local_problem.py"
        source.write_text(source.read_text()[:200])
    elif damage == "flip machine code":
        machine_code = next(p for p in files if p.suffix == ".nbc")
        content = bytearray(machine_code.read_bytes())
        content[len(content) // 2] ^= 0xFF
        machine_code.write_bytes(bytes(content))
    elif damage == "delete manifest":
        (folder / "manifest.json").unlink()
    elif damage == "garbage manifest":
        (folder / "manifest.json").write_text("{not json")
    else:
        (folder / "evil.py").write_text("raise SystemExit(3)")
    minimum_of_square(load_kernels(SquareKey()))
    assert filled == [folder]
    assert {p.name: p.read_bytes() for p in kernel_files(cache)[1]} == before
    assert compiled._intact(folder)


def test_an_intact_kernel_is_not_built_again(cache, filled):
    minimum_of_square(load_kernels(SquareKey()))
    assert filled == []


def test_the_cache_is_private(cache):
    folder = cache_directory()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)
    assert stat.S_IMODE(cache_directory().stat().st_mode) == 0o755


def test_a_cache_of_somebody_else_is_refused(cache, monkeypatch):
    cache_directory()
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(CacheError, match=r"belongs to another user.*ATTNPHASE_CACHE_DIR"):
        cache_directory()


def test_a_cache_that_cannot_be_made_is_replaced_for_the_run(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(blocker / "cache"))
    with pytest.warns(UserWarning, match="not usable"):
        folder = cache_directory()
    assert folder.is_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def load_in_process(_):
    """The kernel's folder, and how often this process compiled."""
    builds, build = [], compiled._build

    def counted(*args):
        builds.append(args)
        build(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_build", counted)
        return str(load_kernels(SquareKey()).folder), len(builds)


@pytest.mark.slow
def test_processes_share_one_build(cache):
    """Two that begin together: one compiles, and the other waits and takes what it made."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(load_in_process, range(4), chunksize=1)
    assert len({folder for folder, _ in found}) == 1
    assert sum(builds for _, builds in found) == 1
    minimum_of_square(load_kernels(SquareKey()))
