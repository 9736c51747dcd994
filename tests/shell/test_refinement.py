"""Sweeps that solve where a boundary passes: which points, which boundaries, and how they go on.

Not public: lines are made up by formulas, so that the places of all boundaries are known, and lattices are looked at.
"""

import numpy as np
import pytest
import xarray as xr
from by_formula import FEW, points
from matplotlib.contour import ContourSet

import attnphase as ap
from attnphase.data.boundaries import with_boundaries
from attnphase.sweeps.lattice import points_at_boundaries
from attnphase.sweeps.line import Line

ALPHAS = np.linspace(0.05, 2, 33).tolist()
OMEGAS = np.linspace(0, 0.5, 25).tolist()
NOT_COMPUTED, MERGED, VIOLATED = 3, 1, 1


def looked_at(classes, divided=(True, True), needed=None):
    """What is looked at where all classes are known; those of other points must not be read."""
    needed = np.ones((len(classes), 1), dtype=bool) if needed is None else np.array(needed)
    seen = np.zeros((needed.shape[1], *classes.shape[1:]), dtype=bool)

    def classes_of(wanted):
        assert not (seen & wanted).any(), "a point is looked at twice"
        seen[wanted] = True
        return np.where([seen[things].all(0) for things in needed], classes, 0)

    found = points_at_boundaries(classes.shape[1:], divided, needed, classes_of)
    np.testing.assert_array_equal(found, seen)
    return found


def crossed(classes):
    """Ends of the grid's steps whose classes differ."""
    ends = np.zeros(classes.shape[1:], dtype=bool)
    for one in classes:
        up, across = one[1:] * one[:-1] < 0, one[:, 1:] * one[:, :-1] < 0
        ends[1:] |= up
        ends[:-1] |= up
        ends[:, 1:] |= across
        ends[:, :-1] |= across
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
    # a strip one point wide is followed from where it crosses another boundary
    strip = np.ones((2, 81, 81), dtype=np.int8)
    strip[0, :, 41:], strip[1, 43, 12:70] = -1, -1
    assert looked_at(strip)[0][crossed(strip)].all()
    # of values without an order every one is looked at
    words = np.where(np.arange(60) > np.array([[50], [7], [31]]), 1, -1)[None].astype(np.int8)
    assert (looked_at(words, (False, True))[0] & (words[0] * np.roll(words[0], 1, 1) < 0)).sum(1).tolist() == [2, 2, 2]


def alpha_c(omega):
    return 0.62 + 1.1 * omega + 2.0 * omega**2


def alpha_l(omega):
    return 0.75 + 1.3 * omega + 4.0 * omega**2


def begin(branch, omega):
    return 0.51 + 0.8 * omega if branch == "semantic" else 0.31 - 0.2 * omega


def end(omega):
    """Of the positional branch."""
    return 1.35 + 2.4 * omega


class Solved:
    """The lines that were solved."""

    def __init__(self, patch):
        self.lines, self.violated = [], np.nan  # an omega at which the semantic points violate identities
        self.base = points({}, [1.0], ["semantic"]).isel(branch=0)
        patch.setattr(Line, "solve", lambda line, on_point=None: self.solve(line))
        patch.setattr("attnphase.sweeps.grid.kernels_for", lambda *_: None)

    def solve(self, line):
        """A line whose numbers follow from its places, what is not given here being the same everywhere."""
        self.lines.append(line)
        omega, alpha, semantic = line.problem.teacher.omega, np.array(line.alphas), line.branch == "semantic"
        merged = (alpha < begin(line.branch, omega)) | (not semantic and alpha > end(omega))
        numbers = {
            "training_loss": 0.002 * alpha - (0.001 * (alpha - alpha_c(omega)) if semantic else 0.0),
            "test_error": 0.002 - 0.0007 * (alpha - alpha_l(omega)) if semantic else np.full(len(alpha), 0.003),
            "linear_test_error": np.full(len(alpha), 0.002),
            "test_error_stderr": np.full(len(alpha), 1e-6),
            "linear_test_error_stderr": np.full(len(alpha), 4e-6),
            "training_loss_stderr": np.full(len(alpha), 2e-6 if semantic else 7e-6),
            "on_branch": np.where(merged, MERGED, 0).astype("int8"),
            "violation_alpha": np.full(len(alpha), 0.5),
            "violation_alpha_stderr": np.full(len(alpha), 0.1),
            "identities": np.full(len(alpha), VIOLATED if semantic and omega == self.violated else 0, dtype="int8"),
        }
        ds = self.base.isel(alpha=[0] * len(alpha)).assign_coords(alpha=("alpha", alpha, self.base["alpha"].attrs))
        ds["branch"] = ((), line.branch, ds["branch"].attrs)
        ds = ds.assign_attrs(problem=line.problem.to_toml(), problem_hash=line.problem.hash)
        return ds.assign({name: ds[name].copy(data=values) for name, values in numbers.items()})


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def solved(monkeypatch):
    return Solved(monkeypatch)


def sweep(omega=OMEGAS, alpha=ALPHAS, refine=True, **options):
    problem = ap.Problem().with_fields(FEW)
    return ap.sweep(problem, alpha, omega, refine=refine, workers=1, progress=False, **options)


def test_the_boundaries_are_those_of_the_whole_grid_and_the_map_shows_them(solved):
    ds = sweep()
    there = ds["status"] != NOT_COMPUTED
    assert sum(len(line.alphas) for line in solved.lines) == int(there.sum()) < 0.5 * ds["status"].size
    whole = sweep(refine=False)
    for name in ("training_loss", "test_error", "q"):
        np.testing.assert_array_equal(ds[name], whole[name].where(there))
    omega, steps = ds["omega"], ALPHAS[1] - ALPHAS[0]
    # the losses are linear in alpha, so that nothing is lost between two points
    np.testing.assert_allclose(ds["alpha_c"], alpha_c(omega).where(alpha_c(omega) < end(omega)), rtol=1e-9)
    np.testing.assert_allclose(ds["alpha_l"], alpha_l(omega).where(alpha_l(omega) < 2), rtol=1e-9)
    for name, slope, errors in (("alpha_l", 7e-4, (1e-6, 4e-6)), ("alpha_c", 1e-3, (2e-6, 7e-6))):
        place = (ds[name] - ALPHAS[0]) / steps % 1  # between two points, whose errors are independent
        error = np.hypot(1 - place, place) * np.hypot(*errors) / slope
        np.testing.assert_allclose(ds[f"{name}_stderr"], error, rtol=1e-6)
    for name, expected in (
        ("begin_semantic", begin("semantic", omega)),
        ("begin_positional", begin("positional", omega)),
        ("end_positional", end(omega).where(end(omega) < 2)),
    ):
        assert (np.isnan(ds[name]) == np.isnan(expected)).all(), name
        assert (abs(ds[name] - expected).fillna(0) <= steps / 2).all(), name
        np.testing.assert_allclose(ds[f"{name}_stderr"].where(expected > 0, steps / 12**0.5), steps / 12**0.5)
    assert bool(ds["end_semantic"].isnull().all())
    panel = ap.figures.fig3(ds).axes[0]
    (mesh,) = (item for item in panel.collections if type(item).__name__ == "QuadMesh")
    assert np.isfinite(np.asarray(mesh.get_array())).all()  # interpolated
    (line,) = (item for item in panel.collections if isinstance(item, ContourSet) and list(item.levels) == [0.0])
    alpha, up = np.concatenate([path.vertices for path in line.get_paths()]).T
    assert np.ptp(up) > 0.3
    np.testing.assert_allclose(alpha, alpha_c(up), atol=0.003)  # a chord of the curve from value to value of omega


def test_points_that_violate_identities_make_no_boundary(solved):
    whole, solved.violated = sweep(OMEGAS[2:5]), OMEGAS[3]
    ds = sweep(OMEGAS[2:5])
    assert ds["identities"].attrs["flag_meanings"].split()[VIOLATED] == "violated"
    for name in ("alpha_c", "alpha_l"):
        assert whole[name].notnull()[1]
        np.testing.assert_allclose(ds[name], whole[name].where(whole["omega"] != OMEGAS[3]), rtol=1e-9, err_msg=name)


@pytest.mark.parametrize("branch", ["semantic", "positional"])
@pytest.mark.parametrize("doubt", [("status", 1), ("identities", VIOLATED), ("on_branch", 1), ("on_branch", 2)])
def test_a_doubtful_point_of_either_branch_makes_no_boundary(branch, doubt):
    def falls(branch, alpha, **_):
        return 0.03 * (1.4 - alpha) if branch == "semantic" else 0.0

    ds = points({}, [1.0, 2.0], training_loss=falls, test_error=falls, linear_test_error=0.0)
    whole = with_boundaries(ds)
    assert (float(whole["alpha_c"]), float(whole["alpha_l"])) == pytest.approx((1.4, 1.4))
    ds[doubt[0]].loc[{"branch": branch, "alpha": 2.0}] = doubt[1]
    found = with_boundaries(ds)
    assert bool(found["alpha_c"].isnull())
    assert bool(found["alpha_l"].isnull()) is (branch == "semantic")


def test_an_axis_may_be_given_in_any_order_and_further_fields_are_refined_one_by_one(solved):
    few = {"omega": [0.4, 0.1, 0.25], "branch": "semantic"}
    xr.testing.assert_equal(sweep(alpha=ALPHAS[::-1], **few).sortby("alpha"), sweep(**few))
    ds = sweep([0.1, 0.4], fields={"teacher.score": ["softmax", "linear"]}, branch="semantic")
    assert ds["alpha_l"].dims == ("omega", "teacher_score")
    np.testing.assert_allclose(ds["alpha_l"], [2 * [alpha_l(0.1)], 2 * [alpha_l(0.4)]], rtol=1e-9)
