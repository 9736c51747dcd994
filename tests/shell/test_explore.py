"""The interactive page holds the file's numbers, and asks no network."""

import base64
import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest
from by_formula import points
from command import run

import attnphase as ap

ROOT = Path(__file__).parents[2]
OMEGAS = [0.1, 0.35, 0.47]


@pytest.fixture(scope="module")
def grid():
    return points(
        {"teacher.omega": OMEGAS},
        [0.5, 1.1, 1.7, 2.3],
        training_loss=lambda branch, alpha, omega: alpha / 7 + omega**2 + (branch == "semantic") * (omega - alpha) / 9,
        training_loss_stderr=lambda alpha, **_: 1e-3 * alpha,
        linear_test_error=lambda omega, **_: omega / 3,
    )


def part(pattern, text):
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None, pattern
    return found[1]


def held(page):
    """What a page holds by itself, read without the code that wrote it: every quantity, its values and its errors."""
    what = json.loads(part(r'id="what">(.*?)</script>', page))
    planes = gzip.decompress(base64.b64decode(part(r'id="numbers">(.*?)</script>', page)))
    numbers = np.frombuffer(planes, np.uint8).reshape(4, -1).T.copy().view("<f4").ravel()
    length = {axis["name"]: len(axis["values"]) for axis in what["table"]["axes"]}
    found, at = {}, 0
    for one in what["table"]["quantities"]:
        parts = [one["axes"]]
        for _ in range(1 + one["errors"]):
            parts.append(numbers[at : at + one["size"]].reshape([length[name] for name in one["axes"]]))
            at += one["size"]
        found[one["name"]] = parts
    return found, what


def test_a_page_holds_the_numbers_of_the_file_with_their_errors_and_doubts(grid):
    ds = grid.copy(deep=True)
    doubts = [
        ("on_branch", 1),
        ("on_branch", 2),
        ("overlap_gap", 0.21),
        ("status", 1),
        ("identities", 1),
        ("status", 3),
    ]
    for place, (name, value) in enumerate(doubts):
        ds[name][{"branch": place // 4, "omega": 1, "alpha": place % 4}] = value
    found, _ = held(ap.explore(ds).html)
    axes, values, errors = found["training_loss"]
    np.testing.assert_allclose(values, ds["training_loss"].transpose(*axes), rtol=2e-6)
    np.testing.assert_allclose(errors, ds["training_loss_stderr"].transpose(*axes), rtol=2e-3)
    axes, values, *_ = found["|theta|"]
    np.testing.assert_allclose(values, np.abs(ds["theta"].isel(token=0, row=0, teacher=0).transpose(*axes)), rtol=2e-6)
    axes, values, *_ = found["linear_test_error"]  # what does not vary is held once
    assert axes == ["omega"]
    np.testing.assert_allclose(values, np.array(OMEGAS) / 3, rtol=2e-6)
    axes, values, *_ = found["doubt"]
    shown = np.moveaxis(values, [axes.index(name) for name in ("branch", "omega", "alpha")], [0, 1, 2])[:, 1].ravel()
    np.testing.assert_array_equal(shown, [1, 2, 3, 4, 5, np.nan, 0, 0])


def test_runs_are_means_over_seeds_with_their_errors_and_stand_where_they_were_made(grid):
    runs = ap.load_dataset(ROOT / "data" / "experiments" / "untied-runs.nc")
    runs["test_error"][{"seed": 1}], runs["status"][{"seed": 1}] = 1e6, 4  # which ran away and does not count
    runs["steps"][:], runs["steps"][{"seed": 1}] = 70, 10**6
    page = held(ap.explore(runs).html)[0]
    assert np.unique(page["steps"][1]).tolist() == [70]
    axes, values, errors = page["test_error"]
    own = runs["test_error"].transpose(*axes, "seed").drop_isel(seed=1)
    np.testing.assert_allclose(values, own.mean("seed"), rtol=2e-6)
    np.testing.assert_allclose(errors, own.std("seed", ddof=1) / own.sizes["seed"] ** 0.5, rtol=2e-3)
    beside = ap.load_dataset(ROOT / "data" / "experiments" / "fig7-runs.nc")
    assert held(ap.explore(grid, runs=beside).html)[1]["runs_at"] == {"alpha": 1.5, "omega": 0.3}


def test_a_page_asks_no_network_for_anything_and_words_of_a_dataset_stay_words(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    title = "</script><script>alert(1)</script>{{script}}"
    ap.save_dataset(grid.assign_attrs(title=title), "a.nc")
    assert run("explore", "a.nc", "-o", "x.html").stdout == "x.html\n"
    assert "--force" in run("explore", "a.nc", "-o", "x.html", code=2).stderr
    page = Path("x.html").read_text()
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|import)\(", part(r"<script>(.*?)</script>", page))
    assert "<script>alert" not in page
    assert held(page)[1]["title"] == title
