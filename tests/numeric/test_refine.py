"""Sweeps that solve where a boundary passes: which points, which places of the boundaries, and what becomes of them.

The points' numbers are formulas, so that the places of all boundaries are known.
"""

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from made_up import SWEEP, made_up_point
from matplotlib.contour import ContourSet

from attnphase.cli.commands import main
from attnphase.data.build import from_points
from attnphase.data.files import load_dataset
from attnphase.data.variables import NOT_COMPUTED
from attnphase.errors import DatasetError, ProblemError
from attnphase.figures import fig2, fig3
from attnphase.problem.problem import Problem
from attnphase.state_evolution.branches import Identity
from attnphase.sweeps.grid import sweep
from attnphase.sweeps.lattice import points_at_boundaries
from attnphase.sweeps.line import Line
from attnphase.sweeps.store import parts_folder

PROBLEM = Problem().with_fields({"integration.rule": "sobol", "integration.nodes": 16})
ALPHAS = np.linspace(0.05, 2, 33).tolist()
OMEGAS = np.linspace(0, 0.5, 25).tolist()


# --- which points ----------------------------------------------------------------------------------------------------


def looked_at(classes, divided=(True, True), needed=None):
    """What is looked at where all classes are known; those of other points must not be read."""
    kinds, *sizes = classes.shape
    needed = np.ones((kinds, 1), dtype=bool) if needed is None else np.array(needed)
    seen = np.zeros((needed.shape[1], *sizes), dtype=bool)

    def classes_of(wanted):
        assert not (seen & wanted).any(), "a point is looked at twice"
        seen[wanted] = True
        return np.where([seen[things].all(0) for things in needed], classes, 0)

    found = points_at_boundaries(sizes, divided, needed, classes_of)
    np.testing.assert_array_equal(found, seen)
    return found


def crossed(classes):
    """Ends of the grid's steps whose classes differ, one after the other."""
    ends = np.zeros(classes.shape[1:], dtype=bool)
    for one in classes:
        for i, j in np.argwhere(one[1:] * one[:-1] < 0):
            ends[i, j] = ends[i + 1, j] = True
        for i, j in np.argwhere(one[:, 1:] * one[:, :-1] < 0):
            ends[i, j] = ends[i, j + 1] = True
    return ends


def test_a_tenth_of_a_grid_of_200_has_all_its_boundaries():
    up, across = np.linspace(0, 1, 200)[:, None], np.linspace(0, 1, 200)
    signs = [across - 0.3 - 0.5 * up**2, 0.2 + 0.7 * up**1.4 - across, (across - 0.6) ** 2 + (up - 0.5) ** 2 - 0.1]
    classes = np.stack([np.where(sign > 0, 1, -1) for sign in signs]).astype(np.int8)
    (found,) = looked_at(classes)
    assert found[crossed(classes)].all()
    assert found.mean() < 0.1
    # two things of which one is needed for the first boundary, the other for the second, both for the third
    apart = looked_at(classes, needed=[[True, False], [False, True], [True, True]])
    for thing, kinds in zip(apart, ([0, 2], [1, 2]), strict=True):
        assert thing[crossed(classes[kinds])].all()
        assert thing.sum() < found.sum()


def test_what_a_coarse_lattice_misses_is_followed_from_where_it_is_seen():
    """A strip one point wide, which crosses a boundary and none of the coarse lattice's lines elsewhere."""
    classes = np.ones((2, 81, 81), dtype=np.int8)
    classes[0, :, 41:] = -1
    classes[1, 43, 12:70] = -1
    assert not crossed(classes[1:, ::8, ::8]).any()
    (found,) = looked_at(classes)
    assert found[crossed(classes)].all()


def test_points_without_a_class_have_no_boundary():
    classes = np.zeros((1, 97, 60), dtype=np.int8)
    classes[0, :, 30:] = 1
    assert looked_at(classes).sum() == 13 * 13


def test_values_without_an_order_are_looked_at_one_by_one():
    classes = np.where(np.arange(60) > np.array([[50], [7], [31]]), 1, -1)[None].astype(np.int8)
    (found,) = looked_at(classes, (False, True))
    assert found[classes[0] * np.roll(classes[0], 1, 1) < 0].all()
    assert (found.sum(1) < 20).all()


# --- sweeps ----------------------------------------------------------------------------------------------------------


def alpha_c(omega):
    return 0.62 + 1.1 * omega + 2.0 * omega**2


def alpha_l(omega):
    return 0.75 + 1.3 * omega + 4.0 * omega**2


def begin(branch, omega):
    return 0.51 + 0.8 * omega if branch == "semantic" else 0.31 - 0.2 * omega


def end(omega):
    """Of the positional branch."""
    return 1.35 + 2.4 * omega


def made_up(line):
    """A line whose numbers follow from its places, what is not given here being the same everywhere."""
    omega, alpha = line.problem.teacher.omega, np.array(line.alphas)
    semantic = line.branch == "semantic"
    merged = (alpha < begin(line.branch, omega)) | (not semantic and alpha > end(omega))
    numbers = {
        "training_loss": 0.002 * alpha - (0.001 * (alpha - alpha_c(omega)) if semantic else 0.0),
        "test_error": 0.002 - 0.0007 * (alpha - alpha_l(omega)) if semantic else np.full(len(alpha), 0.003),
        "linear_test_error": np.full(len(alpha), 0.002),
        "on_branch": np.where(merged, Identity.merged, Identity.on_branch).astype("int8"),
    }
    somewhere = from_points([made_up_point(line.problem, 1.0, line.branch)], {"alpha": [1.0]})
    ds = somewhere.isel(alpha=np.zeros(len(alpha), dtype=int))
    ds = ds.assign_coords(alpha=("alpha", alpha, somewhere.alpha.attrs))
    return ds.assign({name: ds[name].copy(data=values) for name, values in numbers.items()})


class Solved:
    """The lines that were solved; when none is left, Ctrl-C."""

    def __init__(self):
        self.lines, self.left = [], float("inf")

    @property
    def points(self):
        return sum(len(line.alphas) for line in self.lines)

    def solve(self, line):
        if len(self.lines) >= self.left:
            raise KeyboardInterrupt
        self.lines.append(line)
        return made_up(line)


def made_up_by(patch):
    """Lines are made up from here on."""
    noted = Solved()
    patch.setattr(Line, "solve", lambda line, on_point=None: noted.solve(line))
    patch.setattr(SWEEP, "kernels_for", lambda *_: None)
    return noted


@pytest.fixture
def solved(monkeypatch):
    return made_up_by(monkeypatch)


@pytest.fixture(scope="module")
def refined():
    """The whole grid's boundaries, and how many points they took."""
    with pytest.MonkeyPatch.context() as patch:
        noted = made_up_by(patch)
        return run(), noted.points


def run(omega=OMEGAS, alpha=ALPHAS, **options):
    return sweep(PROBLEM, alpha, omega, refine=True, workers=1, **options)


def test_the_boundaries_are_those_of_the_whole_grid(refined, solved):
    ds, points = refined
    there = ds.status != NOT_COMPUTED
    assert points == int(there.sum()) < 0.5 * ds.status.size
    whole = sweep(PROBLEM, ALPHAS, OMEGAS, workers=1)
    for name in whole.data_vars:
        expected = whole[name].where(there) if whole[name].dtype == "float64" else whole[name]
        found = ds[name] if whole[name].dtype == "float64" else ds[name].where(there, expected)
        np.testing.assert_array_equal(found, expected)
    steps = float(np.diff(ALPHAS)[0])
    omega = ds.omega
    # the losses are linear in alpha, so that nothing is lost between two points
    np.testing.assert_allclose(ds.alpha_c, alpha_c(omega).where(alpha_c(omega) < end(omega)), rtol=1e-9)
    np.testing.assert_allclose(ds.alpha_l, alpha_l(omega).where(alpha_l(omega) < 2), rtol=1e-9)
    for name, expected in (
        ("begin_semantic", begin("semantic", omega)),
        ("begin_positional", begin("positional", omega)),
        ("end_positional", end(omega).where(end(omega) < 2)),
    ):
        assert (np.isnan(ds[name]) == np.isnan(expected)).all(), name
        assert (np.abs(ds[name] - expected).fillna(0) <= steps / 2).all(), name
        np.testing.assert_allclose(ds[f"{name}_stderr"].where(expected > 0, steps / 12**0.5), steps / 12**0.5)
    assert bool(ds.end_semantic.isnull().all())


def test_an_axis_may_be_given_in_any_order(solved):
    few = {"omega": [0.4, 0.1, 0.25], "branch": "semantic"}
    turned = run(alpha=ALPHAS[::-1], **few)
    xr.testing.assert_equal(turned.sortby("alpha"), run(**few))


def test_further_fields_are_refined_value_by_value(solved):
    ds = run(alpha=ALPHAS, omega=[0.1, 0.4], fields={"teacher.score": ["softmax", "linear"]}, branch="semantic")
    assert ds.alpha_l.dims == ("omega", "teacher_score")
    np.testing.assert_allclose(ds.alpha_l, [2 * [alpha_l(0.1)], 2 * [alpha_l(0.4)]], rtol=1e-9)
    assert "alpha_c" not in ds


def test_an_interrupted_sweep_goes_on_with_the_same_rounds(solved, tmp_path):
    output, few = tmp_path / "out.nc", {"omega": [0.1, 0.25, 0.4]}
    expected = run(**few)
    count = len(solved.lines)
    assert count > 2 * len({line.label for line in solved.lines}), "there are several rounds"
    solved.lines.clear()
    for left in (5, count // 2, count - 3):
        solved.left = left
        with pytest.raises(KeyboardInterrupt):
            run(output=output, resume=True, **few)
        assert len(list(parts_folder(output).glob("line-*.nc"))) == left
    solved.left = count
    ds = run(output=output, resume=True, **few)
    assert len({line.key for line in solved.lines}) == count
    assert not parts_folder(output).exists()
    xr.testing.assert_equal(ds, expected)
    xr.testing.assert_identical(load_dataset(output), ds)


def test_a_sweep_of_all_points_is_another_sweep(solved, tmp_path):
    run(output=tmp_path / "out.nc", omega=0.2, branch="semantic")
    with pytest.raises(DatasetError, match=r"holds another sweep: refine was True and is not set now"):
        sweep(PROBLEM, ALPHAS, 0.2, "semantic", workers=1, output=tmp_path / "out.nc", resume=True)


@pytest.mark.parametrize(
    ("alpha", "options", "sentence"),
    [
        ([0.5, 1.0], {}, "refine needs three or more values of alpha or of a field of real numbers"),
        (1.0, {"fields": {"teacher.score": ["softmax", "linear", "relu"]}}, "refine needs three or more values"),
    ],
)
def test_a_grid_without_an_order_is_refused(solved, alpha, options, sentence):
    with pytest.raises(ProblemError, match=sentence):
        sweep(PROBLEM, alpha, refine=True, workers=1, **options)
    assert solved.lines == []


@pytest.mark.parametrize("where", [["--plan", "2"], ["--merge", "run"], ["--block", "1", "run"]])
def test_blocks_are_not_refined(where, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ["--alpha", "0.1:2:20", "-o", "run"] if "--plan" in where else []
    result = CliRunner().invoke(main, ["sweep", *grid, "--refine", *where], prog_name="attnphase")
    assert result.exit_code == 2
    assert f"leave it out with {where[0]}." in result.stderr
    assert "--refine belongs to" in result.stderr


def test_the_command_says_what_was_not_computed(solved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = ["--alpha", "0.05:2:41", "--omega", "0.1,0.3", "--branch", "semantic", "--workers", "1", "-o", "out.nc"]
    result = CliRunner().invoke(main, ["sweep", *grid, "--refine"], prog_name="attnphase")
    assert result.exit_code == 0, result.stderr
    left = 2 * 41 - solved.points
    assert f"{left} not_computed" in result.stdout


# --- figures ---------------------------------------------------------------------------------------------------------


def test_a_map_has_no_gaps_and_its_line_is_where_the_losses_cross(refined):
    ds, _ = refined
    figure = fig3(ds)
    panel = figure.axes[0]
    (mesh,) = (item for item in panel.collections if type(item).__name__ == "QuadMesh")
    assert np.isfinite(np.asarray(mesh.get_array())).all()
    (line,) = (item for item in panel.collections if isinstance(item, ContourSet) and list(item.levels) == [0.0])
    alpha, omega = np.concatenate([path.vertices for path in line.get_paths()]).T
    assert np.ptp(omega) > 0.3
    np.testing.assert_allclose(alpha, alpha_c(omega), atol=0.003)  # a chord of the curve from value to value of omega
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "computed in (d); interpolated between" in labels
    assert "a branch is not converged here" not in labels
    fig2(ds, omega=OMEGAS[10])
