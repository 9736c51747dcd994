"""Put small wrong changes into copies of the sources, one at a time, and see whether the tests notice.

    python tests/mutations/run.py [--only ID ...] [--origin named|own] [--jobs N] [--whole] [--dry-run]

The changes stand in ``mutations.toml``: what is replaced by what in which file, what that breaks, and the tests that
should fail for it. For each of them the sources are copied into a temporary folder, the change is made there, and its
tests run until the first failure. Tests must pass before the change; a change whose old text does not occur exactly
once is stale. With ``--whole`` a change that its own tests miss is tried on the whole suite, which takes long.

Exit code 1 if a change is missed or stale, or if its tests fail without it or do not end in time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutations.toml")
SOURCES = ("attnphase", "derivations", "tests", "data", "docs", "benchmarks")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "constraints.txt")
COMPILED = ("derivations/", "attnphase/kernels/", "attnphase/problem/losses.py", "attnphase/problem/attention.py")
"""What kernels depend on: a change here compiles its own, into a cache of its own."""

NAMED_LIMIT, WHOLE_LIMIT = 900, 7200  # seconds


@dataclass(frozen=True)
class Mutation:
    """One wrong change.

    Attributes
    ----------
    id : str
    origin : {"named", "own"}
        Named by someone who had seen it go unnoticed, or chosen blindly.
    file : str
        Relative to the root.
    old, new : str
        The text and what stands in its place.
    breaks : str
    tests : tuple of str
        That should fail, as pytest takes them.
    """

    id: str
    origin: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    @property
    def stale(self) -> bool:
        """Whether the old text does not stand in the file exactly once."""
        path = ROOT / self.file
        return not path.is_file() or path.read_text(encoding="utf-8").count(self.old) != 1

    def apply(self, root: Path) -> None:
        """Make the change in a copy."""
        path = root / self.file
        path.write_text(path.read_text(encoding="utf-8").replace(self.old, self.new), encoding="utf-8")


@dataclass(frozen=True)
class Outcome:
    """What became of one change: caught, missed, stale, baseline (its tests fail without it), late or error."""

    mutation: Mutation
    word: str
    detail: str
    seconds: float


def read_list(path: Path = LIST) -> list[Mutation]:
    """The changes of a file, with their tests and no id twice."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutation"]
    mutations = [Mutation(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]
    ids = [mutation.id for mutation in mutations]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise SystemExit(f"{path.name}: the id {twice[0]} stands there twice.")
    for mutation in mutations:
        if mutation.origin not in ("named", "own") or not mutation.tests or mutation.old == mutation.new:
            raise SystemExit(f"{path.name}: {mutation.id} has a wrong origin, no tests, or changes nothing.")
    return mutations


def copied(folder: Path) -> Path:
    """A copy of the sources and tests."""
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "*.pyc")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in FILES:
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, folder / name)
    return folder


def pytest(root: Path, cache: Path, tests: Sequence[str], *options: str, limit: float) -> tuple[int | None, str]:
    """Exit code of pytest in a copy, None if it ran past the limit, and the end of its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "ATTNPHASE_TEST_CACHE": str(cache),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", *options, *tests]
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return None, "time limit"
    return done.returncode, (done.stdout + done.stderr).strip()


def failing(root: Path, cache: Path, tests: Sequence[str]) -> set[str]:
    """Those of the named tests that fail, or are not found, without any change."""
    report = root / "baseline.xml"
    code, output = pytest(root, cache, tests, f"--junit-xml={report}", limit=WHOLE_LIMIT)
    if code == 0:
        return set()
    if code != 1 or not report.exists():  # one of the names is wrong: find out which
        wrong = {test for test in tests if pytest(root, cache, [test], "--collect-only", limit=NAMED_LIMIT)[0] != 0}
        if not wrong:
            raise SystemExit(f"the tests cannot be run:\n{output}")
        return wrong | failing(root, cache, [test for test in tests if test not in wrong])
    bad: set[str] = set()
    for case in ET.parse(report).iter("testcase"):
        if any(child.tag in ("failure", "error") for child in case):
            path = case.get("classname", "").replace(".", "/") + ".py"
            name = case.get("name", "")
            bad |= {t for t in tests if f"{path}::{name}".startswith(t) or t == path}
    return bad


def tried(mutation: Mutation, shared: Path, whole: bool) -> Outcome:
    """Make one change in a copy and run its tests."""
    begin = time.monotonic()

    def outcome(word: str, detail: str) -> Outcome:
        return Outcome(mutation, word, detail, time.monotonic() - begin)

    with tempfile.TemporaryDirectory(prefix="mutation-") as name:
        root = copied(Path(name))
        mutation.apply(root)
        own = mutation.file.startswith(COMPILED)
        cache = root / "cache" if own else shared
        code, output = pytest(root, cache, mutation.tests, "-x", limit=NAMED_LIMIT)
        if code == 0 and whole:
            code, output = pytest(root, cache, ["tests"], "-x", limit=WHOLE_LIMIT)
        if code == 0:
            return outcome("missed", "")
        if code is None:  # a slow machine looks like a test that hangs: nobody's merit
            return outcome("late", f"its tests take longer than {NAMED_LIMIT} s")
        first = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), output[-300:])
        return outcome("caught" if code == 1 else "error", first.removeprefix("FAILED ").split(" - ")[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the changes asked for and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="ID", help="these changes alone")
    parser.add_argument("--origin", choices=("named", "own"), help="these alone")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="changes tried at once")
    parser.add_argument("--whole", action="store_true", help="try what is missed on the whole suite")
    parser.add_argument("--dry-run", action="store_true", help="only see whether every change can be made")
    options = parser.parse_args(arguments)
    mutations = [m for m in read_list() if options.origin in (None, m.origin)]
    if options.only:
        unknown = sorted(set(options.only) - {m.id for m in mutations})
        if unknown:
            parser.error(f"there is no mutation {unknown[0]}")
        mutations = [m for m in mutations if m.id in options.only]
    outcomes = [Outcome(m, "stale", f"the old text is not once in {m.file}", 0.0) for m in mutations if m.stale]
    fresh = [m for m in mutations if not m.stale]
    for one in outcomes:
        show(one)
    if not options.dry_run:
        with tempfile.TemporaryDirectory(prefix="mutation-cache-") as cache:
            outcomes += run(fresh, Path(cache), options.jobs, options.whole)
    words = [one.word for one in outcomes]
    counts = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
    if options.dry_run:
        print(f"{len(fresh)} of {len(mutations)} changes can be made")
        return int(bool(outcomes))
    caught = words.count("caught")
    print(f"{counts}: {caught} of {len(outcomes)} are caught, {caught / max(len(outcomes), 1):.0%}")
    return int(caught < len(outcomes))


def run(mutations: Sequence[Mutation], cache: Path, jobs: int, whole: bool) -> list[Outcome]:
    """The tests without any change, then every change."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    with tempfile.TemporaryDirectory(prefix="mutation-baseline-") as name:
        bad = failing(copied(Path(name)), cache, tests)
    outcomes, left = [], []
    for mutation in mutations:
        if wrong := bad & set(mutation.tests):
            outcomes.append(Outcome(mutation, "baseline", f"{min(wrong)} fails without the change", 0.0))
            show(outcomes[-1])
        else:
            left.append(mutation)
    with ThreadPoolExecutor(max(jobs, 1)) as pool:
        for one in pool.map(lambda mutation: tried(mutation, cache, whole), left):
            show(one)
            outcomes.append(one)
    return outcomes


def show(one: Outcome) -> None:
    """One line."""
    print(f"{one.word:>8}  {one.mutation.id:<40}  {one.seconds:5.0f} s  {one.detail}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
