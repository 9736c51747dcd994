"""What pages show is run when the site is built (``docs/execution.py``), or is a test: no block is left out."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

import attnphase as ap

ROOT = Path(__file__).parents[2]
PAGES = {
    page.relative_to(ROOT).as_posix(): page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not {"_build", "gallery_pages", "equations"} & set(page.parts) and page.name != "problem_file.md"
}
OWN_TESTS = {  # blocks in other languages, and the tests that run them or hold them against the program
    ("docs/histogram.md", "text"): "tests/experiments/test_histogram.py",
    ("docs/large-sweeps.md", "bash"): "tests/faults/test_blocks.py",
    ("docs/large-sweeps.md", "text"): "tests/faults/test_blocks.py",
    ("README.md", "bibtex"): "tests/structure/test_blocks_of_pages.py",
}


@pytest.fixture(scope="module")
def execution() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_execution", ROOT / "docs" / "execution.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["docs_execution"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_no_block_of_a_page_is_left_out(name, execution):
    text = PAGES[name].read_text(encoding="utf-8")
    before = ""
    for block in execution.blocks_of(text):
        language, place = block.language, f"{name}:{block.line}"
        if language == "{code-cell}":
            assert text.startswith("---\nfile_format: mystnb\n"), place
        elif language == "toml":
            try:
                ap.Problem.from_toml(block.text)
            except ap.errors.ProblemError as error:
                pytest.fail(f"{place}: a toml block must be a whole problem, but {error}")
        elif language == "console":
            for command in execution.commands_of(block):
                execution.check_options(command.words)
        elif language == "python" and name in execution.TESTED:
            assert Path(name).name in (ROOT / execution.TESTED[name]).read_text(encoding="utf-8"), place
        elif not language.startswith("{") and language != "python" and (language, before) != ("text", "python"):
            assert Path(name).name in (ROOT / OWN_TESTS[name, language]).read_text(encoding="utf-8"), place
        before = language
    for line in re.findall(r"(?m)^    attnphase ((?:.*\\\n)*.*)$", text):  # shown, and not run
        execution.check_options(shlex.split(line.replace("\\\n", " ")))


def test_the_entry_of_the_readme_is_the_papers():
    (entry,) = re.findall(r"```bibtex\n(.*?)```", PAGES["README.md"].read_text(encoding="utf-8"), re.DOTALL)
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"eprint = \{(.*?)\}", entry)[0] in cited


@pytest.mark.parametrize(
    ("said", "found", "same"),
    [
        ("q  0.0942(6)  23\n", "q 0.0943(6)   23\n", True),  # the last digit
        ("q  0.0942(6)  23\n", "q 0.0945(6)   23\n", False),
        ("q  0.0942(6)  23\n", "q 0.0942(12)  23\n", False),
        ("0.20(10)", "0.203(98)", True),
        ("16 converged", "15 converged", False),  # what is counted is exact
        ("iterations  23", "iterations  24", True),
        ("residual  3.3e-09", "residual  1.8e-10", True),  # rounding
        ("residual  3.3e-09", "residual  1.8e-03", False),
        ("5(3)e-5", "9(3)e-5", False),
        ("alpha_c = 1", "alpha_l = 1", False),
        ("q[1] 0.5", "q[2] 0.5", False),
        ("first\n...\nlast\n", "first\na 1\nb 2\nlast\n", True),
        ("first\n...\nlast\n", "first\na 1\nb 2\n", False),
        ("first\n", "first\nsecond\n", False),
        ("[0.   0.27]\n", "[0. 0.29]\n", False),
    ],
)
def test_numbers_agree_within_a_part_of_their_errors(said, found, same, execution):
    assert execution.agrees(said, found) is same


def test_what_differs_is_said_with_its_line(execution):
    page = """# A page

```console
$ attnphase init --length 3 > problem.toml
$ attnphase solve problem.toml --alpha 2 --set teacher.omga=0.3
attnphase: error: unknown key "teacher.omga": did you mean "teacher.omega"?
$ attnphase solve problem.toml --alpha -2
attnphase: error: alpha must be small.
$ attnphase experiment fig7 -o x  # takes a minute
```

```python
print(1 / 3)
```

```text
0.34
```

```python
import attnphase

attnphase.Problem(1 / 0)
```
"""
    (refused, shown, failed) = list(execution.differences("a.md", page))
    assert refused[0] == 3
    assert "attnphase solve problem.toml --alpha -2 prints\n" in refused[1]
    assert shown == (12, "this prints\n0.3333333333333333\nbut the page says\n0.34\n")
    assert failed[0] == 20
    assert "ZeroDivisionError" in failed[1]
    long = "```console\n$ attnphase experiment fig7 --seeeds 3 -o x  # takes a minute\n```\n"
    with pytest.raises(Exception, match="seeeds"):
        list(execution.differences("a.md", long))


@pytest.mark.parametrize(
    "said",
    [
        "solving: 3 of 8 (1 min 20 s)",
        "none of 8 points is done after 10 s: all of them may take 1 min 20 s or more",
        "7 of 8 points are left, which take about 2 min 3 s, if the rest costs what the first part did",
        "this takes at most about 40 s, if each costs what the last ones did",
    ],
)
def test_what_a_slow_machine_says_is_not_held_against_a_page(said, execution):
    rest = "run: block 1, 2 lines: 8 converged\n"
    assert execution._PROGRESS.sub("", f"attnphase: {said}\n{rest}") == rest
