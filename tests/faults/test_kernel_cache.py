"""The kernel cache: damage is noticed and repaired, and nobody else's files and folders are trusted.

Not public: `kept`, for a model takes seconds to compile and a text none.
"""

import multiprocessing
import os
import stat
import time
from pathlib import Path

import pytest

from attnphase.errors import CacheError
from attnphase.kernels import cache as store
from attnphase.kernels.cache import cache_directory, is_kept, kept

ANOTHER = 54321  # a user that no machine of ours has


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("ATTNPHASE_CACHE_DIR", str(tmp_path / "above" / "cache"))
    return tmp_path / "above" / "cache" / "kernels"


def never():
    raise AssertionError("it is there and intact")


def files():
    return {path for path in cache_directory().iterdir() if not path.name.startswith("lock-")}


def made(content=b"whole", key: object = "key"):
    """The file of a content that was not there."""
    before = files()
    assert kept("text", key, lambda: content) == content
    return (files() - before).pop()


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
    "it is cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "it is empty": lambda path: path.write_bytes(b""),
    "its checksum is another": lambda path: path.write_bytes(b"!" + path.read_bytes()[1:]),
    "it is gone": Path.unlink,
    "it is a folder": lambda path: (path.unlink(), path.mkdir()),
    "it is a link": lambda path: path.symlink_to(path.rename(path.with_name("elsewhere"))),
    "others may write to it": lambda path: path.chmod(0o620),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_is_made_again_if(damage):
    path = made()
    assert kept("text", "key", never) == b"whole"
    DAMAGE[damage](path)
    assert not is_kept("text", "key")
    assert [kept("text", "key", make) for make in (lambda: b"again", never)] == [b"again"] * 2
    assert stat.S_IFMT(path.lstat().st_mode) == stat.S_IFREG


def test_a_file_of_somebody_else_is_made_again(give_away):
    """With a checksum that fits: what is checked is who wrote it."""
    give_away(made())
    assert kept("text", "key", lambda: b"again") == b"again"


def test_every_kind_and_key_has_a_file_of_its_own():
    names = [(kind, key) for kind in ("text", "code") for key in ("one", ("one", 2))]
    first = [kept(*each, repr(each).encode) for each in names]
    assert first == [kept(*each, never) for each in names] == [repr(each).encode() for each in names]


def test_what_is_made_under_a_loose_umask_is_nobody_elses(cache):
    mask = os.umask(0)
    try:
        path = made()
    finally:
        os.umask(mask)
    assert {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()} == {0o600}, path
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, *cache.parents[:2])] == [0o700] * 3


def test_a_cache_that_others_could_have_written_to_is_refused_and_not_made_private(cache):
    folder, shared = cache_directory(), cache.parents[1]
    for mode in (0o777, 0o1777, 0o720):
        folder.chmod(mode)
        assert f"{folder}: others could have written to it" in refusal()
        assert stat.S_IMODE(folder.stat().st_mode) == mode
    folder.chmod(0o700)
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


def test_a_full_disk_is_told_and_leaves_nothing(monkeypatch):
    def full(path, content):
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CacheError, match="cannot be written: No space left on device; make room there"):
        kept("text", "key", lambda: b"whole")
    assert files() == set()


def test_what_was_used_longest_ago_goes_first(monkeypatch):
    monkeypatch.setattr(store, "MOST", 3000)
    oldest, used, unused = (made(bytes(800), key) for key in range(3))
    for age, path in enumerate((unused, oldest, used), start=1):
        os.utime(path, (0, time.time() - 100 * age))
    kept("text", 1, never)
    newest = made(bytes(800), 3)
    assert files() == {used, unused, newest}
    last = made(bytes(1600), 4)
    assert files() == {newest, last}
    kept("text", 5, lambda: bytes(4000))  # more than all may take
    assert {path.name[:5] for path in cache_directory().iterdir()} == {"lock-"}


def test_what_earlier_versions_and_killed_processes_left_is_removed(cache):
    left, young = ("k0123456789abcdef01234567", ".k0123", ".tmp"), ".tmp of a process that runs"
    for name in (*left, young):
        (cache_directory() / name).mkdir()
        (cache / name / "half.py").write_text("half of it")
    for name in left:
        os.utime(cache / name, (0, time.time() - 7200))
    path = made()
    assert files() == {path, cache / young}


def make_in_process(barrier, place):
    """A second process that makes it fails."""

    def make():
        (Path(place) / "alone").mkdir()
        time.sleep(0.3)
        return b"whole"

    barrier.wait(600)
    assert kept("text", "key", make) == b"whole"


def die_in_process(barrier, place):
    """A process that ends while it makes something."""
    barrier.wait(600)
    kept("text", "key", lambda: os._exit(9))


@pytest.mark.parametrize(("run", "code"), [(make_in_process, 0), (die_in_process, 9)])
def test_of_two_processes_one_makes_it_and_none_where_both_are_killed(tmp_path, run, code):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=run, args=(barrier, str(tmp_path))) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
    assert [process.exitcode for process in processes] == [code] * 2
    assert is_kept("text", "key") == (code == 0)
