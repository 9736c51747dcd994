"""What every test stands on: folders of the run's own, one thread for a worker, the same draws every time."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

_FOLDER = "ATTNPHASE_TESTS_FOLDER"  # inherited by the workers of pytest-xdist

# machines differ in speed, and a failure must come back when the test is run again
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
# `make test-long`: other draws every time, and more of them
settings.register_profile(
    "long", deadline=None, print_blob=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
# constants in the sources of modules that are imported would make draws depend on the tests that ran before
providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    """Keep what users have out of reach, before anything that reads the environment is imported."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="attnphase-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(_FOLDER), ignore_errors=True))
    folder = Path(os.environ[_FOLDER])
    os.environ |= {
        "ATTNPHASE_CACHE_DIR": os.environ.get("ATTNPHASE_TEST_CACHE") or str(folder / "cache"),
        "MPLCONFIGDIR": str(folder / "matplotlib"),
        "MPLBACKEND": "agg",
        # as many processes as cores run side by side: threads of theirs would only wait for one another
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    }
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"):
        os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    """Look for garbage seldom: compiling makes millions of objects that live on, and every look passes all of them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases of long.txt, and refuse a name in it that no test has."""
    folder, found = Path(__file__).parent, {item.nodeid: item for item in items}
    for line in (folder / "long.txt").read_text("utf-8").splitlines():
        test, _, cases = line.partition(": ")
        for case in () if line.startswith("#") else cases.split(" | "):
            name = f"{(folder / test).relative_to(config.rootpath).as_posix()}[{case}]"
            if name in found:
                found[name].add_marker("long")
            elif config.args == config.getini("testpaths"):
                raise pytest.UsageError(f"tests/long.txt names {name}, which is no test")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, here and in child processes, also if pytest was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_scores() -> Iterator[None]:
    """Scores that a test registers are forgotten after it."""
    from derivations.models.scores import SCORES  # after the environment is set

    before = dict(SCORES)
    yield
    SCORES.clear()
    SCORES.update(before)
