"""Put wrong numbers into results of public functions, one at a time, and see whether the tests notice.

    python tests/mutations/run.py [--only ID ...] [--jobs N] [--list]

The wrong numbers and the tests that must fail for each stand in ``wrong_numbers.py``. First these tests must pass as
the code is. Exit code 1 if they do not, or if a wrong number is missed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from wrong_numbers import WRONG

ROOT = Path(__file__).resolve().parents[2]


def pytest(tests: Sequence[str], *options: str) -> tuple[str, str, float]:
    """Whether these tests passed, failed, or could not be run; the first that failed, or the end of the output."""
    begin = time.monotonic()
    paths = os.pathsep.join(filter(None, [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", *options]
    command += [f"tests/{test}" for test in tests]
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr).strip()
    first = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), output[-1000:])
    return {0: "passed", 1: "failed"}.get(done.returncode, "error"), first, time.monotonic() - begin


def tried(name: str) -> bool:
    """Run the tests of one wrong number, and print whether they notice it."""
    word, first, seconds = pytest([WRONG[name].test], "-p", "wrong_numbers", "--wrong", name)
    word = {"passed": "missed", "failed": "caught"}.get(word, word)
    print(f"{word:>6}  {name:<60}  {seconds:4.0f} s  {'' if word == 'missed' else first}", flush=True)
    return word == "caught"


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WRONG, metavar="ID", help="these wrong numbers alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="wrong numbers tried at once")
    parser.add_argument("--list", action="store_true", help="print the wrong numbers and their tests")
    options = parser.parse_args(arguments)
    names = options.only or [*WRONG]
    if options.list:
        print("\n".join(f"{name}: {WRONG[name].test}" for name in names))
        return 0
    with tempfile.TemporaryDirectory(prefix="attnphase-wrong-") as cache:
        os.environ.setdefault("ATTNPHASE_TEST_CACHE", cache)  # all compile once
        return tell(names, options.jobs)


def tell(names: Sequence[str], jobs: int) -> int:
    """Run the tests as the code is, then with each wrong number; the exit code."""
    word, first, seconds = pytest(list(dict.fromkeys(WRONG[name].test for name in names)))
    if word != "passed":
        print(f"without a wrong number the tests do not pass: {first}")
        return 1
    print(f"passed  without a wrong number, in {seconds:.0f} s", flush=True)
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        caught = sum(pool.map(tried, names))
    print(f"{caught} of {len(names)} wrong numbers are caught")
    return int(caught < len(names))


if __name__ == "__main__":
    sys.exit(main())
