"""The kernel cache: damage is noticed and repaired, and nobody else's folder is trusted.

Not public: `intact_folder` and `compile_package`, for a model takes ten seconds to compile and a file of text none.
"""

import multiprocessing
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnphase.errors import CacheError
from attnphase.kernels.cache import cache_directory, filled_aside, intact_folder
from attnphase.kernels.package import compile_package

ANOTHER = 54321  # a user that no machine of ours has


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "above" / "cache"))
    return tmp_path / "above" / "cache" / "kernels"


def built(text="whole", builds=None):
    """The folder of a kernel, which is built from this text if need be."""

    def build(folder):
        if builds is not None:
            builds.append(text)
        with filled_aside(folder) as aside:
            (aside / "code").mkdir()
            (aside / "code" / "machine").write_text(text)
            (aside / "source.py").write_text("whole")

    with intact_folder("k0aaa", build) as folder:
        assert (folder / "source.py").read_text() == "whole"
        return folder, (folder / "code" / "machine").read_text()


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


DAMAGE = {
    "a file is cut": lambda folder: (folder / "code" / "machine").write_text("wh"),
    "a file is missing": lambda folder: (folder / "source.py").unlink(),
    "a file is added": lambda folder: (folder / "evil.py").write_text("raise SystemExit(3)"),
    "the manifest is no JSON": lambda folder: (folder / "manifest.json").write_text("{not json"),
    "the folder is a link": lambda folder: folder.symlink_to(folder.rename(folder.with_name("elsewhere"))),
    "the folder may be written to": lambda folder: folder.chmod(0o770),
    "a file may be written to": lambda folder: (folder / "source.py").chmod(0o666),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_kernel_is_built_again_if(damage):
    folder, _ = built()
    builds = []
    assert built("never built", builds) == (folder, "whole")
    DAMAGE[damage](folder)
    assert built("built again", builds) == (folder, "built again")
    assert builds == ["built again"]
    assert not folder.is_symlink()


@pytest.mark.parametrize("what", [".", "code/machine"])
def test_a_kernel_of_somebody_else_is_built_again(give_away, what):
    """With a manifest that fits: what is checked is who wrote it."""
    folder, _ = built()
    give_away(folder / what)
    assert built("built again") == (folder, "built again")


def test_what_is_built_under_a_loose_umask_is_nobody_elses(cache):
    mask = os.umask(0)
    try:
        folder, _ = built()
    finally:
        os.umask(mask)
    assert [path for path in (folder, *folder.rglob("*")) if path.stat().st_mode & 0o022] == []
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.parents[:2])] == [0o700] * 3


def test_a_cache_that_others_could_have_written_to_is_refused_and_not_made_private(cache):
    folder = cache_directory()
    for mode in (0o777, 0o1777, 0o720):
        folder.chmod(mode)
        assert f"{folder}: others could have written to it" in refusal()
        assert stat.S_IMODE(folder.stat().st_mode) == mode
    folder.chmod(0o700)
    shared = cache.parents[1]
    shared.chmod(0o777)
    assert f"others may write to {shared}" in refusal()
    shared.chmod(0o1777)  # nobody renames another's folder there, as in /tmp
    assert cache_directory() == folder


@pytest.mark.parametrize("level", [0, 2], ids=["cache", "home"])
def test_a_cache_of_somebody_else_is_refused(give_away, level):
    owned = (cache_directory(), *cache_directory().parents)[level]
    give_away(owned)
    assert f"{'it' if level == 0 else owned} belongs to another user (number {ANOTHER})" in refusal()


@pytest.mark.parametrize("place", ["a file", "links in a circle"])
def test_a_cache_that_cannot_be_made_is_replaced_for_the_run(tmp_path, monkeypatch, place):
    (tmp_path / "a file").touch()
    (tmp_path / "links in a circle").symlink_to("links in a circle")
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / place))
    with pytest.warns(UserWarning, match=r"kernel cache .* is not usable \(.*\): compiling into"):
        folder = cache_directory()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_a_killed_compilation_left_is_replaced(cache):
    (cache_directory() / ".k0aaa").mkdir()
    (cache / ".k0aaa" / "half.py").write_text("half of it")
    folder, _ = built()
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["k0aaa"]
    assert not (folder / "half.py").exists()


def build_in_process(barrier, place):
    """A second process that builds at the same time fails."""

    def build(folder):
        (Path(place) / "alone").mkdir()
        time.sleep(0.3)
        with filled_aside(folder) as aside:
            (aside / "source.py").write_text("whole")

    barrier.wait(600)
    with intact_folder("k0aaa", build) as folder:
        assert (folder / "source.py").read_text() == "whole"


def test_two_processes_compile_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=build_in_process, args=(barrier, str(tmp_path))) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [0, 0]


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
    pid = tmp_path / "pid"
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "endless.py").write_text(
        f"import os\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nwhile True: pass\n"
    )
    code = f"compile_package(Path({str(tmp_path)!r}), 'of_a_test', lambda: ('endless',), 1)"
    head = "from pathlib import Path; from attnphase.kernels.package import compile_package; "
    with subprocess.Popen([sys.executable, "-c", head + code]) as waiting:
        while not pid.exists() or not pid.read_text():
            assert waiting.poll() is None
            time.sleep(0.05)
        waiting.kill()
    state = Path(f"/proc/{pid.read_text()}/stat")
    for _ in range(600):
        if not state.exists() or state.read_text().split()[2] == "Z":  # ended, if nobody has asked yet how
            return
        time.sleep(0.1)
    raise AssertionError("the process still compiles")
