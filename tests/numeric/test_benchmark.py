"""The benchmark: that all of it runs, what it saves, and that stated changes are the ones of the files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE_UP = {"date": "2026-01-02T03:04:05+00:00", "machine": "made up", "clock": "wall", "load": [0.5, 1.5]}
MAP = "recipe: one map"


def benchmark(*arguments, code=0):
    """What ``python -m benchmarks`` prints; the tables and refusals on either stream."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def figure(name, unit, *values, **more):
    return {"name": name, "unit": unit, "values": values, **more}


def write(path, commit, *figures, **changes):
    path.write_text(json.dumps({**MADE_UP, "commit": commit, "figures": figures, **changes}))
    return path


def cells(text, name):
    """Cells of a figure's last line, taken apart at two or more blanks."""
    (*_, line) = (line for line in text.splitlines() if line.startswith(f"{name} "))
    return re.split(r" {2,}", line.strip())


@pytest.fixture
def sides(tmp_path):
    """The machine is twice as slow now: b has become twice as fast beside the recipe, which one clock cannot see."""
    then = [
        figure(MAP, "s", 0.5, 0.4, 0.6),
        figure("b", "ns", 80, 100, 160),
        figure("gone", "MB", 7),
        figure("c", "MB", 200, 100),
    ]
    now = [
        figure(MAP, "s", 1.0),
        figure("b", "ns", 90, 120, 100),
        figure("c", "MB", 300),
        figure("new", "s", 0.25),
    ]
    return write(tmp_path / "now.json", "bbbb", *now), write(tmp_path / "then.json", "aaaa", *then)


def test_a_change_is_the_ratio_of_medians_with_the_widest_ratios_of_repeats(sides):
    """Would catch then/now for now/then, means for medians, and a spread of min/min to max/max."""
    text = benchmark("--read", sides[0], "--against", sides[1])
    assert cells(text, "b") == ["b", "100", "80", "160", "100", "90", "120", "ns", "1", "0.562", "1.5", "0.5"]
    assert cells(text, "c") == ["c", "150", "100", "200", "300", "300", "300", "MB", "2", "1.5", "3"]
    assert cells(text, MAP) == [MAP, "0.5", "0.4", "0.6", "1", "1", "1", "s", "2", "1.67", "2.5"]
    assert "now:  bbbb" in text
    assert "then: aaaa" in text


def test_a_figure_of_one_side_has_no_ratio(sides):
    """Would catch a figure that is left out of the table because the other file does not have it."""
    text = benchmark("--read", sides[0], "--against", sides[1])
    assert cells(text, "new") == ["new", "0.25", "0.25", "0.25", "s"]
    assert cells(text, "gone") == ["gone", "7", "7", "7", "MB"]


def test_times_are_multiples_of_the_recipe_and_what_is_held_beside_another_says_how_much_faster(tmp_path):
    """Would catch nanoseconds taken for seconds, memory given in maps, and a ratio upside down."""
    path = write(
        tmp_path / "one.json",
        "cccc",
        figure(MAP, "s", 0.5),
        figure("node", "ns", 1000),
        figure("memory", "MB", 400),
        figure("quick", "s", 0.001, beside=MAP, detail="so it is"),
    )
    text = benchmark("--read", path)
    assert cells(text, "node") == ["node", "1,000", "1,000", "1,000", "ns", "2e-06"]
    assert cells(text, "memory") == ["memory", "400", "400", "400", "MB"]
    assert cells(text, "quick")[-2:] == ["0.002", f"500 times faster than {MAP}; so it is"]


def test_what_cannot_be_compared_is_refused(sides, tmp_path):
    """Would catch CPU times held against wall-clock times, before anything is measured or after."""
    cpu = write(tmp_path / "cpu.json", "dddd", figure(MAP, "s", 1.0), clock="cpu")
    assert "cannot be held against wall times" in benchmark("--read", sides[0], "--against", cpu, code=1)
    assert "cannot be held against wall times" in benchmark("--against", cpu, code=1)
    broken = write(tmp_path / "broken.json", "eeee", figure(MAP, "s"))
    assert "no figures of this benchmark" in benchmark("--read", broken, code=2)


@pytest.mark.slow
def test_a_quick_run_saves_all_its_repeats(tmp_path):
    """Would catch a row that cannot be measured any more, and repeats that are not kept."""
    path = tmp_path / "results" / "quick.json"
    groups = ("local", "map", "point", "memory")
    text = benchmark("--quick", "--repeats", 2, "--only", *groups, "--clock", "cpu", "--output", path)
    saved = json.loads(path.read_text())
    assert saved["clock"] == "cpu"
    figures = {each["name"]: each for each in saved["figures"]}
    made = [re.split(r"\W", name)[0] for name in figures]
    assert made == [*["recipe"] * 3, *["local"] * 3, "recipe", "map", *["point"] * 4, "memory"]
    for name, each in figures.items():
        assert len(each["values"]) == (1 if name.startswith("recipe: to") else 2), name
        assert cells(text, name)[0] == name
    assert figures["recipe: to the semantic point"]["detail"].startswith("51 maps")
    found = re.search(r"(\d+) local problems, moments to (.*)%", figures["map: the paper's, semantic"]["detail"])
    assert found is not None
    assert 700 < int(found[1]) < 1500
    assert 0.001 < float(found[2]) < 0.1
    assert "converged" in figures["point: semantic, alpha = 2"]["detail"]
    assert 50 < min(figures["memory: positional point"]["values"]) < 2000
    ratios = cells(benchmark("--read", path, "--against", path), "local (2,1), cold: a node")
    assert ratios[-4] == ratios[-1] == "1"
