"""The kernel cache: damage is noticed and repaired, and nobody else's folder is trusted."""

import errno
import grp
import json
import multiprocessing
import os
import pwd
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import platformdirs
import pytest
from numba.core import config
from numba.core.caching import FunctionCache

from attnphase.errors import CacheError
from attnphase.kernels import cache as cache_module
from attnphase.kernels import compiler as compiled
from attnphase.kernels.cache import cache_directory, filled_aside
from attnphase.kernels.compiler import load_kernels
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.kernels.package import compile_package
from derivations.models.scalar import ScalarModel


@dataclass(frozen=True)
class SquareKey:
    """A model that compiles quickly."""

    def model(self):
        return ScalarModel("square", lambda h, k: (h[0][0] - k[0][0]) ** 2 / 2)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a kernel that was compiled under a loose umask and with another place for Numba's cache."""
    root = tmp_path_factory.mktemp("built")
    mask = os.umask(0o002)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("ATTNPHASE_CACHE_DIR", str(root / "cache"))
            patch.setattr(config, "CACHE_DIR", str(root / "numba"), raising=False)
            patch.setattr(sys, "pycache_prefix", str(root / "bytecode"))
            load_kernels.cache_clear()
            folder = load_kernels(SquareKey()).folder
            assert getattr(config, "CACHE_DIR", None) == str(root / "numba")
            assert sys.pycache_prefix == str(root / "bytecode")
    finally:
        os.umask(mask)
        load_kernels.cache_clear()
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own; kernels loaded before are forgotten before and after."""
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "cache"))
    load_kernels.cache_clear()
    yield tmp_path / "cache" / "kernels"
    load_kernels.cache_clear()


@pytest.fixture
def builds(monkeypatch):
    """How often a folder was built; nothing is compiled."""
    made = []

    def build(key, folder):
        made.append(folder)
        folder.mkdir(mode=0o700)
        (folder / "local_problem.py").write_text("built = True")

    monkeypatch.setattr(compiled, "fingerprint", lambda key: "k0aaa")
    monkeypatch.setattr(compiled, "build_kernel", build)
    return made


def minimum_of_square(kernels, omega=0.7, k=-0.4, variance=1.9):
    """Proximal point of (h - k)^2/2, which is (omega + V k) / (1 + V)."""
    fields, energies = np.zeros((1, 2, 1, 1)), np.zeros((1, 2))
    losses, residuals, steps = np.zeros(1), np.zeros((1, 1, 1)), np.zeros(1, dtype=np.int64)
    nodes = Nodes(
        np.full((1, 1, 1), omega),
        np.full((1, 1, 1), k),
        np.full((1, 1, 1), np.sqrt(variance)),
        np.zeros((1, 1)),
        np.array([0.3, 1.0, 1.0, 1.0, 1.0]),
        np.ones(1),
    )
    kernels.minimise(nodes, Starts.COLD, Solution(fields, energies, losses, residuals, steps))
    assert fields[0, 0, 0, 0] == pytest.approx((omega + variance * k) / (1 + variance), abs=1e-12)


@pytest.mark.parametrize(
    "damage",
    ["truncate source", "flip machine code", "delete manifest", "extra file", "garbage manifest", "deep manifest"],
)
def test_a_damaged_kernel_is_built_again(cache, built, monkeypatch, damage):
    folder = shutil.copytree(built, cache_directory() / built.name)
    if damage == "truncate source":
        source = folder / "local_problem.py"
        source.write_text(source.read_text()[:200])
    elif damage == "flip machine code":
        machine_code = next(p for p in folder.rglob("*.nbc"))
        content = bytearray(machine_code.read_bytes())
        content[len(content) // 2] ^= 0xFF
        machine_code.write_bytes(bytes(content))
    elif damage == "delete manifest":
        (folder / "manifest.json").unlink()
    elif damage == "deep manifest":  # that Python's reader does not follow to its end
        (folder / "manifest.json").write_text("[" * 100_000)
    elif damage == "garbage manifest":
        (folder / "manifest.json").write_text("{not json")
    else:
        (folder / "evil.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(compiled, "build_kernel", lambda key, place: shutil.copytree(built, place))
    minimum_of_square(load_kernels(SquareKey()))
    assert cache_module._checksums(folder) == cache_module._checksums(built)
    assert cache_module._intact(folder)


def test_an_untested_numba_that_fails_is_named(cache, monkeypatch):
    def build(key, folder):
        raise AttributeError("no 'load_overload'")

    monkeypatch.setattr(compiled, "build_kernel", build)
    with pytest.raises(AttributeError):
        load_kernels(SquareKey())
    monkeypatch.setattr(cache_module.metadata, "version", {"numba": "0.71.2", "numpy": "2.4.6"}.get)
    told = r"^numba 0\.71\.2 is newer .* ended with AttributeError: no 'load_overload'; .* or numba<0\.\d+\.$"
    with pytest.raises(CacheError, match=told):
        load_kernels(SquareKey())


def test_an_untested_numba_that_cannot_load_is_named(cache, built, monkeypatch):
    monkeypatch.setattr(compiled, "build_kernel", lambda key, place: shutil.copytree(built, place))

    def load_overload(self, signature, context, extra):
        raise AssertionError("is not called with two arguments")

    monkeypatch.setattr(cache_module.metadata, "version", {"numba": "1.0.0", "numpy": "2.4.6"}.get)
    monkeypatch.setattr(FunctionCache, "load_overload", load_overload)
    with pytest.raises(CacheError, match=r"^numba 1\.0\.0 is newer .* TypeError: .*load_overload.*extra"):
        load_kernels(SquareKey())


def test_an_untested_numba_that_keeps_machine_code_elsewhere_is_named(cache, builds, monkeypatch):
    monkeypatch.setattr(cache_module.metadata, "version", {"numba": "0.71.2", "numpy": "2.4.6"}.get)
    with pytest.raises(CacheError, match=r"^numba 0\.71\.2 is newer .* keeps machine code elsewhere"):
        load_kernels(SquareKey())


def test_an_untested_numba_that_works_is_used(cache, built, monkeypatch):
    monkeypatch.setattr(compiled, "build_kernel", lambda key, place: shutil.copytree(built, place))
    monkeypatch.setattr(cache_module.metadata, "version", {"numba": "0.71.2", "numpy": "2.4.6"}.get)
    minimum_of_square(load_kernels(SquareKey()))


def test_the_newest_tested_numba_is_the_pinned_one():
    pins = (Path(__file__).parents[2] / "constraints.txt").read_text(encoding="utf-8")
    major, minor = cache_module._NEWEST
    assert f"\nnumba=={major}.{minor}." in pins


def test_an_intact_kernel_is_not_built_again(cache, built, monkeypatch):
    shutil.copytree(built, cache_directory() / built.name)
    monkeypatch.setattr(compiled, "build_kernel", lambda *_: pytest.fail("built again"))
    minimum_of_square(load_kernels(SquareKey()))


def test_what_is_built_under_a_loose_umask_is_nobody_elses(built):
    assert [p for p in (built, *built.rglob("*")) if p.stat().st_mode & 0o022] == []


def test_machine_code_lies_in_the_cache_wherever_numba_keeps_others(built):
    assert any(built.rglob("*.nbc"))
    assert not (built.parents[2] / "numba").exists()


def test_bytecode_lies_in_the_cache_whole_wherever_python_keeps_others(built):
    """Who loads a kernel writes none, which would not be in the manifest: what is missing is compiled every time."""
    sources = {path.stem for path in built.glob("*.py")}
    assert {path.name.split(".")[0] for path in (built / "__pycache__").glob("*.pyc")} == sources
    prefix = built.parents[2] / "bytecode"
    assert not any(built.name in str(path) for path in prefix.rglob("*.pyc"))


ANOTHER = 54321  # a user that no machine of ours has


@pytest.fixture
def give_away(monkeypatch):
    """Makes a file or folder another user's; without root's rights it only looks so."""
    given, lstat = set(), Path.lstat

    def of_another(path):
        info = lstat(path)
        return os.stat_result([*info[:4], ANOTHER, *info[5:]]) if path in given else info

    def give(path):
        if os.getuid() == 0:
            os.chown(path, ANOTHER, -1, follow_symlinks=False)
        else:
            given.add(path)
            monkeypatch.setattr(Path, "lstat", of_another)

    return give


def refusal():
    with pytest.raises(CacheError) as caught:
        cache_directory()
    assert "set ATTNPHASE_CACHE_DIR to a folder of your own" in str(caught.value)
    return str(caught.value)


def test_the_cache_and_what_leads_to_it_are_made_private(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "a" / "b"))
    mask = os.umask(0)
    try:
        folder = cache_directory()
    finally:
        os.umask(mask)
    assert folder == tmp_path.resolve() / "a" / "b" / "kernels"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder, *folder.parents[:2])] == [0o700] * 3


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o720, 0o702])
def test_a_cache_that_others_could_have_written_to_is_not_made_private_and_trusted(cache, mode):
    folder = cache_directory()
    folder.chmod(mode)
    assert f"{folder}: others could have written to it" in refusal()
    assert stat.S_IMODE(folder.stat().st_mode) == mode


def test_a_cache_of_somebody_else_is_refused(cache, give_away):
    folder = cache_directory()
    give_away(folder)
    assert f"{folder}: it belongs to another user (number {ANOTHER})" in refusal()


def test_a_cache_in_a_folder_of_somebody_else_is_refused(tmp_path, monkeypatch, give_away):
    home = tmp_path / "home"
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(home / ".cache" / "attnphase"))
    cache_directory()
    give_away(home)  # as that of the user who calls sudo
    assert f"{home} belongs to another user" in refusal()


def test_nothing_is_made_in_a_folder_of_somebody_else(tmp_path, monkeypatch, give_away):
    home = tmp_path / "home"
    home.mkdir()
    give_away(home)
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(home / "cache"))
    refusal()
    assert not any(home.iterdir())


def test_a_cache_in_a_folder_that_others_may_write_to_is_refused(tmp_path, monkeypatch):
    shared = tmp_path / "shared"
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(shared / "mine"))
    folder = cache_directory()
    shared.chmod(0o777)
    assert f"others may write to {shared}" in refusal()
    assert f"run chmod go-w {shared}" in refusal()
    shared.chmod(0o1777)  # nobody renames another's folder there, as in /tmp
    assert cache_directory() == folder


@pytest.mark.parametrize(
    ("group", "members", "other", "private"),
    [
        ("ana", [], 0, True),
        ("ana", ["ana"], 0, True),
        ("ana", ["ana", "bo"], 0, False),
        ("physics", [], 0, False),
        ("ana", [], 1, False),
    ],
)
def test_only_a_group_of_ones_own_may_write_to_the_folders_above(tmp_path, monkeypatch, group, members, other, private):
    own = tmp_path.stat().st_gid + other
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="ana", pw_gid=own))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=group, gr_mem=members))
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "above" / "mine"))
    folder = cache_directory()
    (tmp_path / "above").chmod(0o775)  # what mkdir makes under the umask 002
    if private:
        assert cache_directory() == folder
        folder.chmod(0o770)  # this folder must be the user's alone in any case
    refusal()


def test_a_link_to_the_cache_is_followed(tmp_path, monkeypatch, give_away):
    (tmp_path / "real").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to("real/../real")
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(link))
    assert cache_directory() == tmp_path.resolve() / "real" / "kernels"
    give_away(tmp_path / "real")
    assert f"{tmp_path.resolve() / 'real'} belongs to another user" in refusal()


def test_what_a_link_leads_through_is_looked_at(tmp_path, monkeypatch):
    (tmp_path / "open" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "real")
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "link"))
    assert f"others may write to {tmp_path.resolve() / 'open'}" in refusal()


def test_links_in_a_circle_end(tmp_path, monkeypatch):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "a"))
    with pytest.warns(UserWarning, match="not usable"):
        cache_directory()


def test_the_machines_root_is_trusted_where_it_shows_as_nobody(cache, tmp_path, monkeypatch, give_away):
    cache_directory()
    give_away(tmp_path)
    refusal()
    lstat = Path.lstat

    def in_a_container(path):  # whose users have no root
        info = lstat(path)
        return os.stat_result([*info[:4], ANOTHER, *info[5:]]) if path == Path("/") else info

    monkeypatch.setattr(Path, "lstat", in_a_container)
    cache_directory()


@pytest.mark.parametrize("planted", ["folder", "source", "machine code", "link", "writable folder", "writable file"])
def test_an_entry_that_somebody_else_could_have_written_is_built_again(cache, builds, give_away, planted):
    """With a manifest that fits: what is checked is who wrote it."""
    folder = fake_entry("k0aaa")
    source, code = folder / "local_problem.py", folder / "__pycache__" / "code.nbc"
    assert cache_module._intact(folder)
    if planted == "link":
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
    elif planted.startswith("writable"):
        path = folder if planted == "writable folder" else source
        path.chmod(path.stat().st_mode | stat.S_IWGRP)
    else:
        give_away({"folder": folder, "source": source, "machine code": code}[planted])
    assert not cache_module._intact(folder)
    with compiled.built_folder(SquareKey()) as folder:
        assert (folder / "local_problem.py").read_text() == "built = True"
    assert builds == [folder]
    assert not folder.is_symlink()
    assert {p.name for p in folder.parent.iterdir()} - {"elsewhere"} == {"k0aaa", "lock-0"}


def fake_entry(name):
    folder = cache_directory() / name
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "local_problem.py").write_text("built = False")
    (folder / "__pycache__" / "code.nbc").write_bytes(b"machine code")
    (folder / "manifest.json").write_text(json.dumps(cache_module._checksums(folder)))
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022)
    return folder


def test_what_a_killed_compilation_left_is_replaced(cache):
    root = cache_directory()
    (root / ".k0aaa").mkdir()
    (root / ".k0aaa" / "half.py").write_text("half of it")
    with filled_aside(root / "k0aaa") as aside:
        (aside / "whole.py").write_text("all of it")
    assert {p.name for p in root.iterdir()} == {"k0aaa"}
    assert {p.name for p in (root / "k0aaa").iterdir()} == {"whole.py", "manifest.json"}


def test_a_cache_that_cannot_be_made_is_replaced_for_the_run(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(blocker / "cache"))
    with pytest.warns(UserWarning, match="not usable"):
        folder = cache_directory()
    assert folder.is_dir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("platform", ["raises", "leaves the tilde"])
def test_a_user_without_a_home_has_a_cache_for_the_run(tmp_path, monkeypatch, platform):
    """As ``docker run --user 54321`` has it: no HOME, and no entry in the list of users."""
    for name in ("HOME", "XDG_CACHE_HOME", "ATTNPHASE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    if platform == "leaves the tilde":
        monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: Path("~/.cache") / name)
    cache_module._temporary_cache.cache_clear()
    with pytest.warns(UserWarning, match=r"kernel cache ~/.cache/attnphase is not usable \(.*home.*\): compiling into"):
        folder = cache_directory()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []  # no folder of the name ~


def build_in_process(barrier):
    """Build or find a folder; a second process that builds it at the same time fails."""

    def build(key, folder):
        alone = folder.with_name("alone")
        alone.mkdir()
        time.sleep(0.3)
        shutil.copytree(fake_entry("k0bbb"), folder)
        alone.rmdir()

    compiled.fingerprint = lambda key: "k0aaa"
    compiled.build_kernel = build
    barrier.wait(600)
    with compiled.built_folder(SquareKey()) as folder:
        assert (folder / "local_problem.py").read_text() == "built = False"


def test_processes_share_one_build(cache):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=build_in_process, args=(barrier,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]


def test_a_full_disk_is_named(cache, monkeypatch):
    def build(key, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compiled, "build_kernel", build)
    with pytest.raises(CacheError, match=rf"^kernel cache {cache}: .*No space left on device.* ATTNPHASE_CACHE_DIR"):
        load_kernels(SquareKey())


def test_what_stops_a_compilation_is_told(tmp_path):
    """In a process of its own: its exception, or its end; and no module of the other process is left running."""
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "broken.py").write_text("raise OSError(28, 'No space left on device')")
    (tmp_path / "killed.py").write_text("import os; os._exit(7)")
    (tmp_path / "endless.py").write_text("while True: pass")
    with pytest.raises(OSError, match="No space left on device"):
        compile_package(tmp_path, "of_a_test", lambda: ("broken", "endless"))
    with pytest.raises(ChildProcessError, match=r"exit code 7.*run it again"):
        compile_package(tmp_path, "of_a_test", lambda: ("killed",), processes=1)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_a_compilation_ends_with_the_process_that_waits(tmp_path):
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "endless.py").write_text(f"open({str(tmp_path / 'pid')!r}, 'w').write(str(__import__('os').getpid()))")
    with (tmp_path / "endless.py").open("a") as file:
        file.write("\nwhile True: pass")
    code = f"compile_package(Path({str(tmp_path)!r}), 'of_a_test', lambda: ('endless',), 1)"
    head = "from pathlib import Path; from attnphase.kernels.package import compile_package; "
    with subprocess.Popen([sys.executable, "-c", head + code]) as waiting:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.05)
        waiting.kill()
    compiling = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{compiling}/stat")
    for _ in range(600):
        if not state.exists() or state.read_text().split()[2] == "Z":  # ended, if nobody has asked yet how
            return
        time.sleep(0.1)
    raise AssertionError("the process still compiles")


def test_every_level_of_optimisation_has_an_entry_of_its_own(monkeypatch):
    """Python keeps other bytecode for each beside the source, which the manifest of another does not hold."""
    names = set()
    for level in range(3):
        monkeypatch.setattr(sys, "flags", SimpleNamespace(optimize=level))
        names.add(cache_module.fingerprint(SquareKey()))
    assert len(names) == 3


def test_a_file_in_the_place_of_a_folder_is_not_to_be_made_private(monkeypatch):
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", os.devnull)
    with pytest.warns(UserWarning, match="is not usable .*Not a directory"):
        cache_directory()
