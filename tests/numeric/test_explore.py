"""The interactive page: what it holds, and what a browser makes of it."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from command import run

import attnphase as ap
from attnphase.data.variables import NOT_COMPUTED
from attnphase.errors import DatasetError, MissingExtraError
from attnphase.explorer.payload import DOUBTS, table_of

ROOT = Path(__file__).parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_a_browser = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def grid() -> xr.Dataset:
    problem = ap.Problem.paper().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
    return ap.sweep(problem, alpha=[0.5, 1.1, 1.7, 2.3], omega=[0.1, 0.35, 0.47], workers=1, progress=False)


@pytest.fixture(scope="module")
def runs() -> xr.Dataset:
    return ap.load_dataset(ROOT / "data" / "experiments" / "untied-runs.nc")


def quantities(ds: xr.Dataset):
    return {one.name: one for one in table_of(ds).quantities}


def part(pattern: str, text: str) -> str:
    """The only group of a pattern's first place."""
    found = re.search(pattern, text, re.DOTALL)
    assert found is not None, pattern
    return found[1]


def held(page: str) -> dict[str, tuple[dict, np.ndarray, np.ndarray | None]]:
    """What a page holds by itself, read without the code that wrote it: every quantity, its values and its errors."""
    what = json.loads(part(r'id="what">(.*?)</script>', page))
    planes = gzip.decompress(base64.b64decode(part(r'id="numbers">(.*?)</script>', page)))
    numbers = np.frombuffer(planes, np.uint8).reshape(4, -1).T.copy().view("<f4").ravel()
    length = {axis["name"]: len(axis["values"]) for axis in what["table"]["axes"]}
    found, at = {}, 0
    for one in what["table"]["quantities"]:
        shape = [length[name] for name in one["axes"]]
        parts = []
        for _ in range(1 + one["errors"]):
            parts.append(numbers[at : at + one["size"]].reshape(shape))
            at += one["size"]
        found[one["name"]] = (one, parts[0], parts[1] if one["errors"] else None)
    return found


# --- what it holds ----------------------------------------------------------------------------------------------------


def test_a_page_holds_the_numbers_of_the_file(grid):
    found = held(ap.explore(grid).html)
    one, values, errors = found["training_loss"]
    expected = grid["training_loss"].transpose(*one["axes"])
    np.testing.assert_allclose(values, expected, rtol=2e-6)
    assert errors is not None
    np.testing.assert_allclose(errors, grid["training_loss_stderr"].transpose(*one["axes"]), rtol=2e-3)
    one, values, errors = found["|theta|"]
    theta = grid["theta"].isel(token=0, row=0, teacher=0).transpose(*one["axes"])
    np.testing.assert_allclose(values, np.abs(theta), rtol=2e-6)
    assert errors is not None


def test_what_does_not_vary_is_held_once(grid):
    one = quantities(grid)["linear_test_error"]
    assert one.axes == ("omega",)
    np.testing.assert_array_equal(one.values, grid["linear_test_error"].isel(branch=1, alpha=2))


def test_doubts_have_their_reasons(grid):
    ds = grid.copy(deep=True)
    ds["status"][...], ds["on_branch"][...], ds["overlap_gap"][...] = 0, 0, 0.1
    ds["identities"][...] = 0
    places = [{"branch": i // 4, "omega": 1, "alpha": i % 4} for i in range(5)]
    ds["on_branch"][places[0]] = 1
    ds["on_branch"][places[1]] = 2
    ds["overlap_gap"][places[2]] = 0.21
    ds["status"][places[3]] = 1
    ds["identities"][places[4]] = 1
    last = {"branch": 1, "omega": 0, "alpha": 0}
    ds["status"][last] = NOT_COMPUTED
    one = quantities(ds)["doubt"]
    doubt = xr.DataArray(one.values, dims=one.axes)
    assert [DOUBTS[int(doubt[place])] for place in places] == list(DOUBTS[1:])
    assert np.isnan(doubt[last])
    assert float((doubt == 0).sum()) == doubt.size - 6


def test_runs_are_means_over_seeds_with_their_errors(runs):
    one = quantities(runs)["test_error"]
    values = runs["test_error"].transpose(..., "seed")
    assert one.axes == tuple(d for d in values.dims if d != "seed")
    np.testing.assert_allclose(one.values, values.mean("seed"), rtol=1e-12)
    assert one.errors is not None
    scatter = values.std("seed", ddof=1) / np.sqrt(runs.sizes["seed"])
    np.testing.assert_allclose(one.errors, scatter, rtol=1e-9)


def test_words_of_a_dataset_cannot_leave_their_place(grid):
    title = "</script><script>alert(1)</script>{{script}}"
    page = ap.explore(grid.assign_attrs(title=title)).html
    assert "<script>alert" not in page
    assert page.count("async function begin()") == 1
    assert json.loads(part(r'id="what">(.*?)</script>', page))["title"] == title


def test_a_page_asks_no_network_for_anything(grid):
    whole = ap.explore(grid)
    with pytest.raises(DatasetError, match=r"let its name end in \.html"):
        whole.save("page.pdf")
    page = whole.html
    assert "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:)', page)
    assert not re.search(r"\b(?:fetch|XMLHttpRequest|import)\(", part(r"<script>(.*?)</script>", page))


@pytest.mark.slow
def test_a_large_grid_stays_under_five_megabytes(grid):
    rng, large = np.random.default_rng(3), {"alpha": np.linspace(0.5, 2.3, 100), "omega": np.linspace(0.1, 0.47, 100)}
    ds = grid.reindex(large, method="nearest")
    for name, array in ds.data_vars.items():
        ds[name].attrs = grid[name].attrs
        if array.dtype.kind == "f":  # all digits are different, as those of a solve are
            ds[name] = array * (1 + 1e-3 * rng.normal(size=array.shape))
            ds[name].attrs = grid[name].attrs
    for name in large:
        ds[name].attrs = grid[name].attrs
    assert len(ap.explore(ds).html) < 5e6


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_has_no_map_or_curve_is_refused(grid, runs):
    with pytest.raises(DatasetError, match="one value of alpha and of every field"):
        ap.explore(grid.isel(alpha=[1], omega=[0]))
    with pytest.raises(DatasetError, match="runs are drawn beside a sweep, but the dataset holds experiments"):
        ap.explore(runs, runs=runs)
    with pytest.raises(
        DatasetError, match=r"runs must be training runs, .* but are of bayes-gamp, which trains no student"
    ):
        ap.explore(grid, runs=runs.assign_attrs(schema="posterior"))
    with pytest.raises(DatasetError, match="thresholds"):
        ap.explore(grid, thresholds=grid)


def test_runs_stand_where_they_were_made(grid):
    """Runs name their fields in their problem only: no coordinate of the shipped ones is omega."""
    beside = ap.load_dataset(ROOT / "data" / "experiments" / "fig7-runs.nc")
    assert "omega" not in beside.coords
    what = json.loads(part(r'id="what">(.*?)</script>', ap.explore(grid, runs=beside).html))
    assert what["runs_at"] == {"alpha": 1.5, "omega": 0.3}
    problem = beside.attrs["problem"].replace("strength = 0.01", "strength = 0.02")
    with pytest.raises(
        DatasetError, match=r"runs are of another problem .*regularizer.strength is 0.02 in them and 0.01"
    ):
        ap.explore(grid, runs=beside.assign_attrs(problem=problem, problem_hash=ap.Problem.from_toml(problem).hash))


def test_without_plotly_a_sentence_says_what_to_install(grid, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else found(name))
    with pytest.raises(MissingExtraError, match=r'pip install "attnphase\[explore\]"'):
        ap.explore(grid)


def test_the_command_writes_a_page_and_keeps_one_that_is_there(grid, tmp_path):
    data, page = tmp_path / "grid.nc", tmp_path / "page.html"
    ap.save_dataset(grid, data)
    refused = run("explore", data, "-o", tmp_path / "page.txt", code=2).stderr
    assert refused == "attnphase: error: --output must end in .html, not page.txt.\n"
    assert run("explore", data, "-o", page).stdout == f"{page}\n"
    before = page.read_text()
    assert before == ap.explore(ap.load_dataset(data)).html
    assert "--force" in run("explore", data, "-o", page, code=2).stderr
    assert page.read_text() == before


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(grid):
    page = ap.explore(grid)
    frame = page._repr_html_()
    assert 'sandbox="allow-scripts"' in frame
    assert page.html not in frame  # escaped
    assert repr(page).startswith("<ExplorePage 'Fixed points")


# --- what a browser makes of it ---------------------------------------------------------------------------------------

ACTING = """
<script>
const said = [];
addEventListener("error", (event) => said.push(String(event.error?.stack ?? event.message)));
addEventListener("unhandledrejection", (event) => said.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => said.push(`network: ${event.blockedURI}`));
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const state = () => ({ chosen: document.getElementById("said").textContent,
  title: document.querySelector("#curves .gtitle")?.textContent,
  runs: document.getElementById("curves").data.filter((trace) => /^runs/.test(trace.name)).map((trace) => trace.x),
  curves: JSON.stringify(document.getElementById("curves").data.map((trace) => trace.y)) });
async function act() {
  for (let i = 0; i < 200 && document.body.dataset.ready !== "yes"; i++) await wait(50);
  const result = { before: state(), said, hover: {} };
  const map = document.getElementById("map");
  if (!map.parentElement.hidden) {
    const { xaxis, yaxis } = map._fullLayout;
    const layer = map.querySelector(".nsewdrag");
    const frame = layer.getBoundingClientRect();
    const heat = map.data[0];
    const at = (i, j) => ({ clientX: frame.left + xaxis.d2p(heat.x[i]), clientY: frame.top + yaxis.d2p(heat.y[j]) });
    const send = (kind, i, j) => layer.dispatchEvent(new MouseEvent(kind, { bubbles: true, ...at(i, j) }));
    for (const [i, j] of [[0, 0], [3, 1]]) {
      send("mousemove", i, j);
      await wait(300);
      result.hover[`${i},${j}`] = [...map.querySelectorAll(".hoverlayer text")].map((one) => one.textContent).join("|");
    }
    for (const kind of ["mousemove", "mousedown", "mouseup", "click"]) { send(kind, 3, 0); await wait(100); }
    await wait(300);
    result.clicked = state();
    map.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
    await wait(300);
    result.moved = state();
    const select = document.getElementById("choose-quantity");
    select.selectedIndex = 1;
    select.dispatchEvent(new Event("change"));
    await wait(300);
    result.chosen = state();
    result.lines = map.data.map((trace) => trace.name ?? "");
  }
  result.links = document.querySelectorAll("a[*|href]").length;
  result.legend = [...document.querySelectorAll(".legendtext")].map((one) => one.textContent);
  result.buttons = [...document.querySelectorAll(".modebar-btn")].map((one) => one.dataset.title);
  const element = document.createElement("pre");
  element.id = "result";
  element.textContent = JSON.stringify(result);
  document.body.append(element);
}
act();
</script></body>
"""


def acted(page: str, folder: Path, width: int = 1300) -> dict:
    """What a browser without a network does with a page on which the mouse is moved and clicked."""
    file = folder / "acting.html"
    file.write_text(page.replace("</body>", ACTING))
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},1000", "--virtual-time-budget=30000"]
    assert BROWSER is not None
    shown = subprocess.run(
        [BROWSER, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=600, check=True
    )
    assert 'id="result"' in shown.stdout, shown.stderr[-2000:]
    found = part(r'<pre id="result">(.*?)</pre>', shown.stdout)
    return json.loads(found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@needs_a_browser
@pytest.mark.slow
def test_a_browser_shows_the_files_numbers_and_follows_a_click(grid, tmp_path):
    beside = ap.load_dataset(ROOT / "data" / "experiments" / "fig7-runs.nc")
    problem = beside.attrs["problem"].replace("omega = 0.3", "omega = 0.35")
    runs = beside.assign_attrs(problem=problem, problem_hash=ap.Problem.from_toml(problem).hash)
    result = acted(ap.explore(grid, runs=runs).html, tmp_path)
    assert result["said"] == []
    assert result["clicked"]["runs"] == []  # at omega = 0.1 nothing was trained
    assert result["moved"]["runs"]
    assert all(x == [1.5] for x in result["moved"]["runs"])
    for place, text in result["hover"].items():
        i, j = map(int, place.split(","))
        there = grid.isel(branch=0, alpha=i, omega=j)
        assert f"α = {float(there['alpha']):g}" in text
        assert f"ω = {float(there['omega']):g}" in text
        number = float(part(r"training_loss = ([\d.]+) ±", text))
        assert number == pytest.approx(float(there["training_loss"]), abs=0.5 * float(there["training_loss_stderr"]))
    assert result["clicked"]["title"] == "ω = 0.1"
    assert result["clicked"]["chosen"].startswith("ω = 0.1, α = 2.3: training_loss = ") or (
        result["clicked"]["chosen"].startswith("α = 2.3, ω = 0.1: training_loss = ")
    )
    assert result["clicked"]["curves"] != result["before"]["curves"]
    assert result["moved"]["title"] == "ω = 0.35"
    assert result["moved"]["curves"] != result["clicked"]["curves"]
    assert "test_error" in result["chosen"]["chosen"]
    assert "losses cross" in result["lines"]
    assert "Reset axes" in result["buttons"]
    assert not [one for one in result["buttons"] if "Share" in one or "Select" in one]  # the first sends numbers away


@needs_a_browser
@pytest.mark.slow
def test_words_of_a_dataset_are_shown_as_they_are(runs, tmp_path):
    link = '<a href="https://example.org">%{x} &lt;b</a>'
    starts = [link, *map(str, runs["start"].to_numpy()[1:])]
    ds = runs.assign_coords(start=("start", starts, runs["start"].attrs))
    result = acted(ap.explore(ds).html, tmp_path)
    assert result["said"] == []
    assert result["links"] == 0
    assert any(link in text for text in result["legend"])


@needs_a_browser
@pytest.mark.slow
def test_a_browser_shows_runs_and_the_histogram_task(runs, tmp_path):
    for name, ds in {"runs": runs, "histogram": ap.load_dataset(ROOT / "data" / "histogram" / "report.nc")}.items():
        (tmp_path / name).mkdir()
        result = acted(ap.explore(ds).html, tmp_path / name, 500)
        assert result["said"] == [], name
        assert result["clicked"]["curves"] != result["before"]["curves"], name
