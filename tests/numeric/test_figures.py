"""Figures of sweeps over any field: what is drawn where, at which values, and what cannot be drawn.

The datasets' numbers are formulas, so that every expected number follows from the place in the grid.
"""

import io
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner
from made_up import SWEEP, made_up_point
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgb
from matplotlib.contour import ContourSet
from matplotlib.mathtext import MathTextParser
from matplotlib.text import Annotation

from attnphase.cli.commands import main
from attnphase.data.boundaries import with_boundaries
from attnphase.data.build import from_points, from_thresholds
from attnphase.data.files import load_dataset, save_dataset
from attnphase.data.schemas import COORDINATES
from attnphase.errors import DatasetError, ProblemError
from attnphase.figures import FIGURES, fig2, fig3, fig9, gap_figure, limits_figure, save_figure
from attnphase.paper.figures import PAPER_FIGURES, caption
from attnphase.problem.problem import Problem
from attnphase.reference import read_reference
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity

ALPHAS = [0.5, 1.25, 2.0]
BRANCHES = ["semantic", "positional"]
MIXTURE = Problem().with_fields(
    {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]}
)


def loss(branch, alpha, fields):
    """A training loss that tells all places apart, lower for the semantic branch where alpha times sigma is large."""
    numbers = [value for value in fields.values() if isinstance(value, float)]
    common = 0.02 + 0.001 * alpha + sum(0.01 * (i + 1) * x for i, x in enumerate(numbers))
    return common - (0.004 * (alpha * fields.get("tokens.sigma", 0.5) - 0.6) if branch == "semantic" else 0.0)


def grid(fields, alphas=ALPHAS, branches=BRANCHES, problem=None, unsettled=(), **known):
    """A dataset over branch, fields and alpha."""
    problem = problem or Problem()
    points = []
    for branch, *values, alpha in itertools.product(branches, *fields.values(), alphas):
        changes = dict(zip(fields, values, strict=True))
        changed = problem.with_fields(changes) if changes else problem
        size = len(changed.sites)
        numbers = {
            "training_loss": loss(branch, alpha, changes),
            "test_error": 0.5 * loss(branch, alpha, changes),
            "linear_test_error": 0.01,
            "m": np.full((size, 1), 0.0 if branch == "semantic" else 0.3),
            "theta": np.full((size, 1, 1), 0.2 * alpha if branch == "semantic" else 0.0),
        }
        status = Status.iteration_limit if (branch, alpha) in unsettled else Status.converged
        points.append(made_up_point(changed, alpha, branch, status=status, **{**numbers, **known}))
    swept = {"branch": branches, **fields, "alpha": alphas}
    return from_points(points, swept, problem=problem)


def curves(figure, panel):
    """Colour, horizontal and vertical places of a panel's solid lines."""
    lines = [line for line in figure.axes[panel].get_lines() if line.get_linestyle() == "-"]
    return {line.get_color(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines}


BLUE, ORANGE = "#0072B2", "#D55E00"  # semantic and positional


def mesh(figure, panel):
    """Values of a panel's map, a row for each value of the field upwards."""
    (found,) = (item for item in figure.axes[panel].collections if type(item) is QuadMesh)
    return np.asarray(found.get_array())


def drawn(figure):
    """That the figure can be written: labels are not read before."""
    figure.savefig(io.BytesIO(), format="png", dpi=20)


# --- curves ----------------------------------------------------------------------------------------------------------


def test_curves_are_at_the_selected_values():
    fields = {"teacher.omega": [0.1, 0.3], "tokens.sigma": [0.3, 0.45, 0.6], "teacher.score": ["softmax", "linear"]}
    ds = grid(fields)
    figure = fig2(ds, at={"tokens.sigma": 0.45, "teacher_score": "linear", "omega": 0.1})
    for branch, colour in (("semantic", BLUE), ("positional", ORANGE)):
        across, values = curves(figure, 0)[colour]
        expected = [loss(branch, alpha, {"teacher.omega": 0.1, "tokens.sigma": 0.45}) for alpha in ALPHAS]
        np.testing.assert_allclose(across, ALPHAS)
        np.testing.assert_allclose(values, 1e3 * np.array(expected))
    title = figure.get_suptitle()
    assert r"$\sigma$ = 0.45" in title
    assert r"$\omega$ = 0.1" in title
    assert "linear" in title
    drawn(figure)


def test_values_that_a_message_offers_can_be_selected():
    thirds, close = [1 / 3, 0.5, 2 / 3], [0.2000001, 0.2000002]
    ds = grid({"tokens.sigma": thirds, "regularizer.strength": close})
    with pytest.raises(DatasetError, match=r"it has 0\.333333, 0\.5, 0\.666667") as refused:
        fig2(ds, at={"tokens.sigma": 0.6})
    for offered, sigma in zip(re.findall(r"0\.\d+", str(refused.value))[1:], thirds, strict=True):
        # six digits stand for two strengths, which are therefore offered with all of theirs
        with pytest.raises(DatasetError, match=r"it has 0\.2000001, 0\.2000002"):
            fig2(ds, at={"tokens.sigma": float(offered), "regularizer.strength": 0.2})
        figure = fig2(ds, at={"tokens.sigma": float(offered), "regularizer.strength": 0.2000002})
        np.testing.assert_allclose(
            curves(figure, 0)[BLUE][1],
            [1e3 * loss("semantic", a, {"tokens.sigma": sigma, "regularizer.strength": close[1]}) for a in ALPHAS],
        )


def test_omega_is_the_papers_if_it_is_not_selected():
    ds = grid({"teacher.omega": [0.1, 0.3]})
    for figure in (fig2(ds), fig2(ds, omega=0.3), fig2(ds, at={"teacher.omega": 0.3})):
        np.testing.assert_allclose(curves(figure, 0)[ORANGE][1][0], 1e3 * loss("x", 0.5, {"teacher.omega": 0.3}))
    assert fig2(ds).get_suptitle() == ""
    np.testing.assert_allclose(
        curves(fig2(ds, omega=0.1), 0)[ORANGE][1][0], 1e3 * loss("x", 0.5, {"teacher.omega": 0.1})
    )


def test_an_omega_that_the_dataset_has_not_is_refused():
    ds = grid({"tokens.sigma": [0.45, 0.6]})  # of the paper's problem, at its omega
    sigma = {"tokens.sigma": 0.45}
    drawn = curves(fig2(ds, omega=0.3, at=sigma), 0)[ORANGE][1]
    np.testing.assert_allclose(drawn[0], 1e3 * loss("x", 0.5, sigma))
    with pytest.raises(DatasetError, match=r"has omega = 0\.3 alone, not 0\.5"):
        fig2(ds, omega=0.5, at=sigma)


def test_curves_are_over_the_field_where_alpha_has_one_value():
    strengths = [0.1, 0.001, 0.01]  # in no order
    ds = grid({"teacher.omega": [0.3], "regularizer.strength": strengths}, alphas=[1.25])
    figure = fig2(ds)
    across, values = curves(figure, 0)[BLUE]
    np.testing.assert_allclose(across, sorted(strengths))
    expected = [loss("semantic", 1.25, {"teacher.omega": 0.3, "regularizer.strength": strength}) for strength in across]
    np.testing.assert_allclose(values, 1e3 * np.array(expected))
    assert figure.axes[2].get_xlabel() == r"$\lambda$"
    assert figure.axes[2].get_xscale() == "log"
    # thresholds are values of alpha, and the paper's runs are at values of alpha
    assert not figure.axes[0].texts[1:]
    assert "gradient descent" not in str([text.get_text() for text in figure.legends[0].texts])
    drawn(figure)


def test_curves_over_omega_need_no_value_of_it():
    ds = grid({"teacher.omega": [0.1, 0.2, 0.45]}, alphas=[1.25])
    np.testing.assert_allclose(curves(fig2(ds), 0)[BLUE][0], [0.1, 0.2, 0.45])


def test_alpha_is_selected_like_a_field():
    ds = grid({"tokens.sigma": [0.3, 0.45, 0.6]})
    figure = fig2(ds, at={"alpha": 2.0})
    across, values = curves(figure, 0)[BLUE]
    np.testing.assert_allclose(across, [0.3, 0.45, 0.6])
    np.testing.assert_allclose(values, [1e3 * loss("semantic", 2.0, {"tokens.sigma": sigma}) for sigma in across])
    assert figure.axes[3].get_xscale() == "linear"


def test_alpha_evenly_spaced_in_the_logarithm_gets_such_an_axis():
    figure = fig2(grid({}, alphas=[0.5, 1.0, 2.0, 4.0]))
    assert figure.axes[0].get_xscale() == "log"
    drawn(figure)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({}, True),
        ({"integration.rule": "sobol", "integration.nodes": 64}, True),
        ({"tokens.sigma": 0.6}, False),
        ({"teacher.omega": 0.2}, False),
        ({"student.temperature": 0.5}, False),
    ],
)
def test_published_runs_are_drawn_beside_their_own_problem(changes, shown):
    ds = grid({}, problem=Problem().with_fields(changes))
    labels = [text.get_text() for text in fig2(ds).legends[0].texts]
    assert any("gradient descent" in label for label in labels) is shown
    for asked in (True, False):
        labels = [text.get_text() for text in fig2(ds, experiments=asked).legends[0].texts]
        assert any("gradient descent" in label for label in labels) is asked


@pytest.mark.parametrize(("sigma", "shown"), [(0.5, True), (0.6, False)])
def test_published_runs_are_drawn_at_the_papers_value_of_a_swept_field(sigma, shown):
    base = Problem().with_fields({"tokens.sigma": 0.9})  # which the coordinate replaces
    figure = fig2(grid({"tokens.sigma": [0.5, 0.6]}, problem=base), at={"sigma": sigma})
    assert ("gradient descent" in str([text.get_text() for text in figure.legends[0].texts])) is shown


def test_clusters_are_taken_together():
    """The first token's overlap of both clusters, as one vector: 0.3 and 0.4 make 0.5."""
    parts = np.array([0.3, 0.4, 0.1, 0.1])  # the clusters of the first token, then those of the second
    ds = grid({}, problem=MIXTURE, m=parts[:, None], theta=2 * parts[:, None, None])
    figure = fig2(ds)
    np.testing.assert_allclose(curves(figure, 2)[BLUE][1], 0.5)
    np.testing.assert_allclose(curves(figure, 3)[ORANGE][1], 1.0)


def test_points_that_did_not_converge_are_hollow():
    ds = grid({}, unsettled=[("positional", 1.25)])
    axes = fig2(ds).axes[0]
    np.testing.assert_allclose(curves(axes.figure, 0)[ORANGE][0], [0.5, 2.0])
    (hollow,) = [line for line in axes.get_lines() if line.get_marker() == "D" and len(np.asarray(line.get_xdata()))]
    assert np.asarray(hollow.get_xdata()).tolist() == [1.25]
    assert hollow.get_markerfacecolor() == "white"


# --- maps ------------------------------------------------------------------------------------------------------------


def test_a_map_is_over_alpha_and_the_field_that_varies():
    """In increasing order, whatever the dataset's; the other fields have one value, or are selected."""
    fields = {"teacher.omega": [0.3], "tokens.sigma": [0.65, 0.35, 0.45], "student.temperature": [1.0, 2.0]}
    ds = grid(fields, alphas=[2.0, 0.5, 1.25])
    figure = fig3(ds, at={"student.temperature": 2.0})
    expected = [[-4.0 * (alpha * sigma - 0.6) for alpha in ALPHAS] for sigma in (0.35, 0.45, 0.65)]
    np.testing.assert_allclose(mesh(figure, 0), expected, atol=1e-12)
    assert figure.axes[2].get_ylabel() == r"$\sigma$"
    assert figure.axes[2].get_xlabel() == r"$\alpha$"
    assert figure.axes[0].get_yscale() == "linear"
    assert r"$T_{\mathrm{student}}$ = 2" in figure.get_suptitle()
    # theta of the lower branch: semantic where alpha sigma exceeds 0.6
    lower = [[0.2 * alpha if alpha * sigma > 0.6 else 0.0 for alpha in ALPHAS] for sigma in (0.35, 0.45, 0.65)]
    np.testing.assert_allclose(mesh(figure, 2), lower, atol=1e-12)
    drawn(figure)


def test_cells_of_a_logarithmic_axis_reach_half_way_to_their_neighbours():
    ds = grid({"regularizer.strength": [0.001, 0.01, 0.1]}, unsettled=[("positional", 1.25)])
    figure = fig3(ds)
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_xscale() == "linear"
    (found,) = (item for item in axes.collections if type(item) is QuadMesh)
    corners = np.asarray(found.get_coordinates())
    np.testing.assert_allclose(corners[:, 0, 1], 10 ** np.array([-3.5, -2.5, -1.5, -0.5]))
    np.testing.assert_allclose(corners[0, :, 0], [0.125, 0.875, 1.625, 2.375])
    drawn(figure)


def test_a_loss_without_a_linear_predictor_has_its_test_error_alone():
    square = Problem().with_fields({"tokens.length": 1, "loss.kind": "square"})
    figure = fig3(grid({"tokens.sigma": [0.3, 0.6]}, problem=square, linear_test_error=np.nan))
    lower = [
        [min(loss(branch, alpha, {"tokens.sigma": sigma}) for branch in BRANCHES) for alpha in ALPHAS]
        for sigma in (0.3, 0.6)
    ]
    np.testing.assert_allclose(mesh(figure, 1), 500 * np.array(lower))
    assert "linear" not in figure.axes[1].get_title()
    labels = [text.get_text() for text in fig2(grid({}, problem=square, linear_test_error=np.nan)).legends[0].texts]
    assert "linear predictor" not in labels


def test_a_map_of_a_mixture():
    parts = np.array([0.3, 0.4, 0.1, 0.1])
    ds = grid({"student.temperature": [0.5, 2.0]}, problem=MIXTURE, m=parts[:, None], theta=parts[:, None, None])
    np.testing.assert_allclose(mesh(fig3(ds), 3), 0.5)


# --- what cannot be drawn --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "fields", "options", "sentence"),
    [
        (
            fig2,
            {"tokens.sigma": [0.3, 0.6]},
            {},
            "varies tokens.sigma too: select one of 0.3, 0.6, as --at tokens.sigma=0.3 (at={'tokens.sigma': 0.3})",
        ),
        (fig2, {"tokens.sigma": [0.3, 0.6]}, {"at": {"sigma": 0.5}}, "has no tokens.sigma = 0.5; it has 0.3, 0.6."),
        (
            fig2,
            {"teacher.omega": [0.1, 0.2]},
            {},
            "has no omega = 0.3, at which curves are drawn by default: select one of 0.1, 0.2, as"
            " --at teacher.omega=0.1 (at={'teacher.omega': 0.1}).",
        ),
        (
            fig2,
            {"tokens.sigma": [0.3]},
            {"at": {"lambda": 0.5}},
            "does not vary lambda; it varies branch, tokens.sigma, alpha.",
        ),
        (fig2, {"tokens.sigma": [0.3]}, {"at": {"alpha": 0.5}}, "one value of alpha and of every field"),
        (fig2, {"teacher.score": ["softmax", "linear"]}, {"at": {"alpha": 0.5}}, "has no numbers for an axis: select"),
        (fig3, {"teacher.score": ["softmax", "linear"]}, {}, "teacher.score has no numbers for an axis: select one of"),
        (fig3, {"teacher.causal": [True, False]}, {}, "select one of true, false, as --at teacher.causal=true"),
        (fig3, {"tokens.sigma": [0.3, 0.6]}, {"at": {"alpha": 2}}, "has not several values of alpha, which"),
        (fig3, {"tokens.sigma": [0.3]}, {}, "has not several values of a field beside alpha, which"),
        (
            fig3,
            {"teacher.omega": [0.2, 0.3], "tokens.sigma": [0.3, 0.6]},
            {},
            "varies tokens.sigma too: select one of 0.3, 0.6",
        ),
        (fig3, {"tokens.sigma": [0.3, 0.6]}, {"at": {"branch": "semantic"}}, "has no positional branch"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(draw, fields, options, sentence):
    with pytest.raises(DatasetError) as caught:
        draw(grid(fields), **options)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith(("the dataset", "teacher."))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"at": "sigma=0.3"}, "at must be a mapping from dimensions or fields to a value of each, not 'sigma=0.3'."),
        ({"omega": "0.3"}, "omega must be a number from 0 to 1, not '0.3'."),
        ({"experiments": "no"}, "experiments must be True or False, not 'no'."),
    ],
)
def test_wrong_arguments_are_one_sentence(options, sentence):
    with pytest.raises(ProblemError) as caught:
        fig2(grid({"teacher.omega": [0.2, 0.3]}), **options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("draw", [fig2, fig3])
def test_a_point_is_no_figure(draw):
    with pytest.raises(DatasetError, match="has no dimension branch"):
        draw(from_points([made_up_point(Problem(), 1.5, "semantic")]))


def test_every_symbol_can_be_read():
    parser = MathTextParser("path")
    for _, latex in COORDINATES.values():
        parser.parse(f"${latex}$")


# --- the command line ------------------------------------------------------------------------------------------------


def test_the_command_selects_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_dataset(grid({"tokens.sigma": [0.3, 0.6], "teacher.causal": [True, False]}), "data.nc")
    asked = []

    def noted(ds, at):
        asked.append(at)
        return fig2(ds, at=at)

    monkeypatch.setitem(FIGURES, "fig2", noted)
    options = ["figure", "fig2", "--data", "data.nc", "--at", "tokens.sigma=0.6", "--at", "teacher_causal=false"]
    result = CliRunner().invoke(main, options, prog_name="attnphase", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert asked == [{"tokens.sigma": 0.6, "teacher_causal": False}]
    assert (tmp_path / "fig2.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--at", "sigma=0.6"], "--at selects from a dataset: name one with --data."),
        (["--data", "x.nc", "--at", "sigma=0.6", "--at", "sigma=0.3"], "--at names a field twice"),
        (["--data", "x.nc", "--at", "sigma"], "field=value"),
    ],
)
def test_wrong_selections_are_one_sentence(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["figure", "fig3", *options], prog_name="attnphase")
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_label_that_is_no_formula_is_named(tmp_path):
    ds = grid({})
    ds["m"].attrs["latex"] = r"\foo{"
    figure = fig2(ds)
    with pytest.raises(
        DatasetError, match=r"^.*x\.png: the figure cannot be drawn: .*foo.*: mend the attributes latex"
    ):
        save_figure(figure, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


def test_one_legend_of_the_map_names_everything_that_is_marked(tmp_path):
    """Lines of thresholds, ends of branches, points not decided, what is not converged and what is not trusted."""
    sigmas = [0.3, 0.45, 0.6]
    ds = grid({"tokens.sigma": sigmas}, unsettled=[("semantic", 2.0)], overlap_gap=0.47)
    identity = ds["on_branch"].copy()
    identity.loc[{"branch": "semantic", "alpha": 0.5}] = Identity.merged
    identity.loc[{"branch": "semantic", "alpha": 1.25, "sigma": 0.45}] = Identity.not_decided
    lines = {name: [1.1, 1.2, 1.3] for name in ("alpha_c", "alpha_l")}
    errors = {name: [0.01, 0.02, 0.01] for name in lines}
    thresholds = from_thresholds(Problem(), sigmas, lines, errors, "sobol", field="tokens.sigma")
    figure = fig3(ds.assign(on_branch=identity), thresholds=thresholds)
    save_figure(figure, tmp_path / "map.png")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        r"$\alpha_c$",
        r"$\alpha_l$",
        "end of the semantic branch",
        "not decided whether both are branches",
        "a branch is not converged here",
        "replica symmetry fails for a branch that is shown",
    ]
    texts = [text.get_text() for text in fig3(ds, thresholds=thresholds).legends[0].get_texts()]
    assert not [text for text in texts if "end of" in text or "decided" in text]


# --- values of a field side by side ----------------------------------------------------------------------------------


def test_every_value_has_its_lightness_and_every_branch_its_dashes():
    ds = grid({"tokens.sigma": [0.3, 0.6], "teacher.score": ["softmax", "linear"]})
    figure = fig9(ds, at={"teacher.score": "linear"}, quantity="training_loss")
    lines = figure.axes[0].get_lines()
    legend = figure.axes[0].get_legend()
    assert legend is not None
    colours = [handle.get_color() for handle in legend.get_lines()]
    assert np.diff([np.dot(to_rgb(colour), [0.3, 0.59, 0.11]) for colour in colours]) > 0.3
    for sigma, colour in zip([0.3, 0.6], colours, strict=True):
        for branch, dashes in (("semantic", "-"), ("positional", "--")):
            (line,) = (
                one for one in lines if one.get_linestyle() == dashes and np.array_equal(one.get_color(), colour)
            )
            np.testing.assert_array_equal(line.get_xdata(), ALPHAS)
            expected = [1e3 * loss(branch, alpha, {"tokens.sigma": sigma, "x": 0.0}) for alpha in ALPHAS]
            np.testing.assert_allclose(np.asarray(line.get_ydata()), expected)
    drawn(figure)


def test_published_runs_stand_beside_the_values_that_have_some():
    figure = fig9(grid({"tokens.sigma": [0.3, 0.5, 0.7]}), quantity="theta")
    theirs = read_reference("gradient_descent_other")
    theirs = theirs[(theirs["sigma"] == 0.7) & (theirs["start"] == "semantic")]
    heights = [np.asarray(bars[0].get_ydata()) for bars in figure.axes[0].containers]
    assert len(heights) == 4  # two starts at 0.5 and at 0.7
    assert any(np.array_equal(one, theirs["theta"]) for one in heights)
    assert fig9(grid({"tokens.sigma": [0.3, 0.7]}), experiments=False).axes[0].containers == []


def test_whatever_has_an_error_can_be_drawn_if_the_dataset_has_it(tmp_path, monkeypatch):
    """Test metrics too; a variable that may be missing is refused where it is."""
    monkeypatch.chdir(tmp_path)
    problem = Problem(metrics={"share": "h0_0"})
    ds = grid({"tokens.sigma": [0.3, 0.6]}, problem=problem, metric_share=0.37)
    ds = ds.drop_vars(["overlap_gap", "overlap_gap_stderr"])
    figure = fig9(ds, quantity="metric_share")
    assert figure.axes[0].get_ylabel() == r"$\mathrm{share}$"
    np.testing.assert_allclose(np.asarray(figure.axes[0].get_lines()[0].get_ydata()), 0.37)
    with pytest.raises(DatasetError, match=r'has no quantity "overlap_gap" for curves; it has .*metric_share'):
        fig9(ds, quantity="overlap_gap")
    save_dataset(ds, "a.nc")
    call = ["figure", "fig9", "--data", "a.nc", "--with-data", "-o", "x.png", "--quiet", "--quantity"]
    refused = CliRunner().invoke(main, [*call, "overlap_gap"], prog_name="attnphase")
    assert refused.exit_code == 2
    assert 'the dataset (a.nc) has no quantity "overlap_gap"' in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.nc"]
    result = CliRunner().invoke(main, [*call, "metric_share"], prog_name="attnphase")
    assert result.exit_code == 0, result.stderr
    assert "theory. metric_share along alpha for several" in (tmp_path / "x.txt").read_text()


def test_published_runs_without_a_spread_of_a_quantity_are_left_out():
    ds = grid({"teacher.omega": [0.2, 0.3]}, problem=Problem.paper())
    assert fig9(ds, quantity="test_error").axes[0].containers
    assert not fig9(ds, quantity="linear_test_error").axes[0].containers


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_a_legend_with_all_marks_is_no_wider_than_its_figure(panels):
    ds = grid({"tokens.sigma": [0.3, 0.5, 0.7]})
    for place, (name, value) in enumerate({"on_branch": 1, "status": 1, "overlap_gap": 0.5}.items()):
        ds[name].values.flat[place] = value
    ds["on_branch"].values.flat[3] = 2
    figure = fig9([ds] * panels)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 7
    extent = legend.get_window_extent()
    assert extent.x0 >= 0
    assert extent.x1 <= figure.bbox.width


@pytest.mark.parametrize(
    ("fields", "options", "sentence"),
    [
        (
            {"tokens.sigma": np.linspace(0.3, 0.9, 7).tolist()},
            {},
            "too many values of tokens.sigma for curves, 0.3, 0.4, ",
        ),
        ({}, {}, "has not a field beside alpha"),
        ({"tokens.sigma": [0.3, 0.6]}, {"quantity": "V"}, 'no quantity "V" for curves; it has m, theta, test_error, '),
        ({"tokens.sigma": [0.3, 0.6]}, {"quantity": "residual"}, 'no quantity "residual"'),
        ({"tokens.sigma": [0.3, 0.6]}, {"quantity": 3}, "quantity must be the name of a variable, not 3"),
        ({"tokens.sigma": [0.3, 0.6], "teacher.omega": [0.1, 0.2]}, {}, "varies omega too: select one of 0.1, 0.2"),
    ],
)
def test_what_cannot_be_put_side_by_side_is_one_sentence(fields, options, sentence):
    with pytest.raises((DatasetError, ProblemError), match=sentence):
        fig9(grid(fields), **options)


def test_a_panel_for_each_dataset_and_data_and_caption_beside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, values in (("tokens.sigma", [0.3, 0.6]), ("teacher.omega", [0.1, 0.2, 0.3])):
        save_dataset(grid({name: values}), f"{name}.nc")
    data = ["--data", "tokens.sigma.nc", "--data", "teacher.omega.nc"]
    result = CliRunner().invoke(main, ["figure", "fig9", *data, "--with-data", "-o", "x.png"], prog_name="attnphase")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split() == ["x.png", "x-1.nc", "x-2.nc", "x.txt"]
    assert load_dataset("x-2.nc").identical(load_dataset("teacher.omega.nc"))
    told = (tmp_path / "x.txt").read_text()
    first, second = (part for part in told.split("\n\n") if part.startswith("Data: "))
    assert "sigma 0.3, 0.6; alpha 0.5, 1.25, 2. 12 converged" in first
    assert "teacher.omega = 0.3" in first
    assert "tokens.sigma = " not in first
    assert "omega 0.1, 0.2, 0.3" in second
    assert "tokens.sigma = 0.5" in second


def test_the_caption_of_a_map_says_which_lines_it_has():
    ds = grid({"teacher.omega": [0.1, 0.2, 0.3]})
    own, others = (caption("fig3", [ds], thresholds=drawn) for drawn in (False, True))
    assert "Full lines: where the training losses cross" in own
    assert "where branches begin" not in own
    assert "Full lines" not in others
    assert "thresholds with their standard errors" in others
    assert own.partition("Dotted lines")[2] == others.partition("Dotted lines")[2] != ""


def test_the_map_of_the_second_teacher_is_computed_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {}

    def noted(problem, alphas, *, fields, **_):
        asked.update(problem=problem, alphas=alphas, fields=fields)
        return grid({"teacher.omega": [0.1, 0.2]}, problem=problem)

    monkeypatch.setattr(SWEEP, "sweep", noted)
    options = ["--set", "integration.rule=sobol", "--set", "integration.nodes=32"]
    result = CliRunner().invoke(main, ["figure", "fig8", *options, "--quiet"], prog_name="attnphase")
    assert result.exit_code == 0, result.stderr
    assert asked["problem"].teacher.mixing == ((0.3, 0.7), (0.8, 0.2))  # (144) of the paper
    assert asked["problem"].integration.nodes == 32
    assert (len(asked["alphas"]), len(asked["fields"]["teacher.omega"])) == (25, 26)
    assert (tmp_path / "fig8.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["fig3", "--data", "a.nc", "--data", "a.nc"], "fig3 is drawn from one dataset: give --data once."),
        (["fig3", "--data", "a.nc", "--set", "tokens.sigma=0.4"], "--set changes what is computed"),
        (["fig9", "--set", "tokens.sigma=0.4"], "fig9 varies tokens.sigma: leave --set tokens.sigma out."),
        (["fig2", "--data", "a.nc", "--quantity", "theta"], "--quantity is drawn by fig9: ask for it."),
        (["fig9", "--quantity", "theta"], "--quantity selects from a dataset: name one with --data."),
        (["fig9", "--data", "a.nc", "--with-data", "-o", "taken.png"], "taken.nc: the file exists"),
    ],
)
def test_wrong_options_of_figures_are_one_sentence(tmp_path, monkeypatch, options, sentence):
    monkeypatch.chdir(tmp_path)
    save_dataset(grid({"tokens.sigma": [0.3, 0.6]}), "a.nc")
    (tmp_path / "taken.nc").write_text("precious")
    result = CliRunner().invoke(main, ["figure", *options], prog_name="attnphase")
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_the_error_of_a_crossing_is_a_band_around_it():
    """Where the difference is within its standard error, as the made-up numbers have it."""
    ds = grid({"tokens.sigma": [0.3, 0.45, 0.6, 0.75]}, alphas=np.linspace(0.5, 2, 16).tolist())
    ds["training_loss_stderr"][:] = 0.0004
    bands = [item for item in fig3(ds).axes[0].collections if isinstance(item, ContourSet) and item.filled]
    (band,) = bands
    edges = np.concatenate([path.vertices for path in band.get_paths()])
    inside = edges[(edges[:, 0] > 0.51) & (edges[:, 0] < 1.99) & (edges[:, 1] > 0.31) & (edges[:, 1] < 0.74)]
    # alpha sigma - 0.6 times 0.004 is one error away
    np.testing.assert_allclose(np.abs(inside[:, 0] * inside[:, 1] - 0.6), 0.0004 * 2**0.5 / 0.004, rtol=0.1)
    assert len(inside) > 10


def test_the_page_of_figures_has_the_captions_of_today():
    page = " ".join((Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8").split())
    for figure in PAPER_FIGURES.values():
        assert f"*{figure.title}.* {figure.shown}" in page


# --- beside what is possible ------------------------------------------------------------------------------------------


def limit_of(alphas, omegas=(0.3,)):
    """A made-up limit whose error falls from the linear predictor's to zero, without solving anything."""
    from attnphase.theories.bayes_optimal.dataset import from_bayes_optimal_points
    from attnphase.theories.bayes_optimal.solving import BayesOptimalPoint, Start

    def point(alpha, omega, start):
        known = min(max(2 * alpha - 0.6, 0.0), 1.0)
        q = np.full((2, 1, 1), 0.25 * known)
        names = ("q", "V", "overlap", "free_entropy", "mutual_information", "test_error", "nishimori")
        errors = dict.fromkeys(names, 1e-05) | {"q": 0 * q, "V": 0 * q}
        entropy = np.nan if known == 1 else -alpha
        return BayesOptimalPoint(
            alpha, start, q, 0.25 - q, q, np.full((2, 1, 1), 0.25), entropy, np.nan, 0.002 * (1 - omega) * (1 - known),
            known, 0.0, errors, 0.0, 1, 2048, Status.converged, known == 1,
        )  # fmt: skip

    swept = {"teacher.omega": list(omegas), "alpha": list(alphas)} if len(omegas) > 1 else {"alpha": list(alphas)}
    points = {
        start.name: [point(a, o, start) for o in omegas for a in alphas] for start in (Start.uninformed, Start.informed)
    }
    return from_bayes_optimal_points(Problem.paper(omega=omegas[0]), swept, points, [(0.0019, 0.0)] * len(omegas))


def test_the_ratio_to_the_limit_is_that_of_the_best_converged_branch():
    from attnphase.figures.bayes_optimal import error_ratio

    errors = xr.DataArray([[4e-3, 3e-3], [2e-3, 5e-3]], dims=("branch", "alpha"), coords={"alpha": [0.4, 0.9]})
    status = xr.DataArray([[0, 0], [1, 0]], dims=("branch", "alpha"), coords={"alpha": [0.4, 0.9]})
    theory = xr.Dataset({"test_error": errors, "status": status})
    limit = xr.Dataset({"test_error": ("alpha", [1e-3, 0.0])}, {"alpha": [0.4, 0.9]})
    ratio, unsettled = error_ratio(theory, limit)
    assert ratio.to_numpy() == pytest.approx([4.0, np.nan], nan_ok=True)  # the lower one did not converge; nothing is 0
    assert unsettled.to_numpy().tolist() == [True, False]


def test_curves_stand_beside_the_limit_and_its_thresholds():
    theory, limit = grid({"teacher.omega": [0.2, 0.3]}), limit_of([0.2, 0.4, 0.6, 0.9])
    limit = limit.assign_coords(perfect_recovery=((), 0.8, {"latex": r"\alpha_{\mathrm{PR}}"}))
    figure = limits_figure(theory, limit=limit, at={"omega": 0.3})
    x, y = curves(figure, 0)["black"]
    np.testing.assert_allclose(x, [0.2, 0.4, 0.6, 0.9])
    np.testing.assert_allclose(y, [1.4, 1.12, 0.56, 0.0])  # 2 (1 - omega) (1 - known), by hand
    # the semantic branch over the limit, between whose alphas it is interpolated, at alpha = 0.5
    x, y = curves(figure, 1)[BLUE]
    np.testing.assert_allclose(y[list(x).index(0.5)], 0.5e3 * loss("semantic", 0.5, {"teacher.omega": 0.3}) / 0.84)
    marked = [text.get_text() for text in figure.axes[0].texts]
    assert r"$\alpha_{\mathrm{PR}}$" in marked
    drawn(figure)


def test_both_panels_beside_the_limit_mark_a_branch_alike():
    alphas = [0.2, 0.5, 0.7]
    theory = grid({}, alphas=alphas, overlap_gap=0.5)
    theory["on_branch"].loc[{"branch": "semantic", "alpha": 0.2}] = Identity.merged
    theory["test_error_stderr"][...] = 2e-4
    limit = limit_of([0.2, 0.35, 0.5, 0.6, 0.7])
    limit["test_error_stderr"][...] = 1e-4
    figure = limits_figure(theory, limit=limit)
    for panel, places in enumerate((alphas, [0.2, 0.35, 0.5, 0.6, 0.7])):
        full, dotted = (
            next(
                line
                for line in figure.axes[panel].get_lines()
                if line.get_color() == BLUE and line.get_linestyle() == style
            )
            for style in ("-", ":")
        )
        np.testing.assert_allclose(np.asarray(full.get_xdata()), places)
        assert np.isfinite(np.asarray(full.get_ydata())).tolist() == [alpha >= 0.5 for alpha in places]
        assert np.isfinite(np.asarray(dotted.get_ydata())).tolist() == [alpha <= 0.5 for alpha in places]
        dots = [
            line
            for line in figure.axes[panel].get_lines()
            if line.get_markerfacecolor() == "black" and line.get_marker() == "o"
        ]
        assert [x.tolist() for x in (np.asarray(line.get_xdata()) for line in dots) if len(x)] == [alphas, alphas]
    # over the limit at alpha = 0.5, 0.84e-3: the band reaches as far as both errors let it
    ratio = 0.5 * loss("semantic", 0.5, {}) / 0.84e-3
    band = np.asarray(figure.axes[1].collections[0].get_paths()[0].vertices)
    reach = ratio * np.hypot(2e-4 / (0.84e-3 * ratio), 1e-4 / 0.84e-3)
    np.testing.assert_allclose(np.ptp(band[np.isclose(band[:, 0], 0.5), 1]), 2 * reach)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (None, 0),
        ("on_branch", Identity.merged),
        ("on_branch", Identity.not_decided),
        ("status", Status.iteration_limit),
    ],
)
def test_curves_and_map_have_the_same_thresholds_and_only_from_reliable_points(name, value):
    """Of the made-up losses, by hand: alpha_c = 1.2; alpha_l where 0.0112 - 0.0005 alpha + 0.005 omega is 0.01165."""
    alphas, omegas = [0.5, 1.25, 2.0, 3.0], [0.2, 0.3]
    theory = grid({"teacher.omega": omegas}, alphas=alphas, linear_test_error=0.01165)
    if name is not None:
        theory[name].loc[{"branch": "semantic", "omega": 0.2, "alpha": 0.5}] = value
    merged = name is not None
    known = {r"$\alpha_c$": [np.nan if merged else 1.2, 1.2], r"$\alpha_l$": [np.nan if merged else 1.1, 2.1]}
    ds = with_boundaries(theory)
    np.testing.assert_allclose([ds.alpha_c, ds.alpha_l], list(known.values()))
    limit = limit_of(alphas, omegas)
    lines = [line for line in gap_figure(theory, limit=limit).axes[0].get_lines() if line.get_color() == "white"]
    for line, places in zip(lines, known.values(), strict=True):
        np.testing.assert_allclose(np.asarray(line.get_xdata()), places)
        np.testing.assert_allclose(np.asarray(line.get_ydata()), omegas)
    for i, omega in enumerate(omegas):
        marked = limits_figure(theory, limit=limit, at={"omega": omega}).axes[1].texts
        found = {text.get_text(): text.xy[0] for text in marked if isinstance(text, Annotation)}
        for symbol, places in known.items():
            assert found.get(symbol, np.nan) == pytest.approx(places[i], nan_ok=True)


def test_the_map_has_the_line_of_the_semantic_branch_and_none_through_a_merged_point():
    """Of the same losses: alpha_l is 2.1 at omega = 0.3, and 1.1 at 0.2, where the positional branch is lower."""
    theory = grid({"teacher.omega": [0.2, 0.3]}, alphas=[0.5, 1.25, 2.0, 3.0], linear_test_error=0.01165)

    def ends():
        (line,) = (i for i in fig3(theory).axes[1].collections if isinstance(i, ContourSet) and not i.filled)
        return {(round(x, 6), round(y, 6)) for path in line.get_paths() for x, y in np.asarray(path.vertices)}

    assert {(1.1, 0.2), (2.1, 0.3)} <= ends()
    theory["on_branch"].loc[{"branch": "semantic", "omega": 0.2, "alpha": 0.5}] = Identity.merged
    assert (2.1, 0.3) in ends()
    assert (1.1, 0.2) not in ends()


def test_a_limit_of_several_teachers_is_taken_at_that_of_the_sweep():
    theory, alphas = grid({}, problem=Problem.paper(omega=0.2)), [0.5, 0.6, 1.0]
    _, y = curves(limits_figure(theory, limit=limit_of(alphas, [0.1, 0.2])), 0)["black"]
    np.testing.assert_allclose(y, [0.96, 0.64, 0.0])  # 2 (1 - omega) (1 - known), by hand
    with pytest.raises(DatasetError, match=r"the limit has no omega = 0\.2, which the theory has: compute it\."):
        limits_figure(theory, limit=limit_of(alphas, [0.1, 0.3]))


def test_a_limit_through_which_no_curve_goes_is_not_left_out():
    theory = grid({"teacher.omega": [0.3]})
    one = limits_figure(theory, limit=limit_of([0.6]))
    points = [line for line in one.axes[0].get_lines() if line.get_color() == "black" and line.get_marker() == "o"]
    assert [np.asarray(line.get_ydata()).tolist() for line in points] == [[pytest.approx(0.56)]]
    ratios = [
        line.get_ydata() for line in one.axes[1].get_lines() if line.get_color() == BLUE and line.get_marker() == "o"
    ]
    expected = (0.5 * loss("semantic", 0.6, {"teacher.omega": 0.3})) / 0.56e-3
    assert any(np.nanmax(y, initial=-1) == pytest.approx(expected) for y in ratios)
    zero = limits_figure(theory, limit=limit_of([0.9, 1.5]))
    assert "the Bayes-optimal error\nis zero at all alphas" in [text.get_text() for text in zero.axes[1].texts]


def test_a_sentence_on_datasets_names_their_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_dataset(grid({"teacher.omega": [0.1, 0.4]}), "a.nc")
    save_dataset(limit_of([0.5, 1.25], [0.1, 0.4]), "b.nc")
    for options, sentence in (
        (["limits", "--at", "omega=0.4", "--limit", "a.nc"], 'limit (a.nc) must be a dataset of kind "bayes_optimal"'),
        (["fig3", "--at", "sigma=0.4"], "the dataset (a.nc) does not vary sigma; it varies branch, omega, alpha."),
        (["gap", "--limit", "b.nc"], "the limit (b.nc) has no alpha = 2, which the theory (a.nc) has: compute it."),
    ):
        result = CliRunner().invoke(main, ["figure", *options, "--data", "a.nc", "-o", "x.png"], prog_name="attnphase")
        assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr


def test_the_map_of_the_ratio_and_what_could_be_known():
    alphas, omegas = [0.4, 0.6, 0.9], [0.1, 0.4]
    theory, limit = grid({"teacher.omega": omegas}, alphas=alphas), limit_of(alphas, [0.4, 0.2, 0.1])
    figure = gap_figure(theory, limit=limit)
    best = [[min(loss(b, a, {"teacher.omega": o}) for b in BRANCHES) / 2 for a in alphas] for o in omegas]
    ratios = [
        [best[i][j] / (0.002 * (1 - o) * (1 - (2 * a - 0.6))) for j, a in enumerate(alphas[:2])]
        for i, o in enumerate(omegas)
    ]
    np.testing.assert_allclose(mesh(figure, 0)[:, :2], np.log10(np.minimum(ratios, 100)), rtol=1e-9)
    assert np.ma.getmaskarray(np.ma.masked_invalid(mesh(figure, 0)))[:, 2].all()
    np.testing.assert_allclose(mesh(figure, 1), [[0.2, 0.6, 1.0]] * 2)
    drawn(figure)


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (lambda: limit_of([0.4, 0.6]), "the limit has no alpha = 0.9, which the theory has: compute it."),
        (
            lambda: limit_of([0.4, 0.6, 0.9], [0.1, 0.3]),
            "the limit has no omega = 0.4, which the theory has: compute it.",
        ),
        (
            lambda: limit_of([0.4, 0.6, 0.9]),
            "the limit is of another problem: teacher.omega differs; compute it with --vary teacher.omega=...",
        ),
    ],
)
def test_a_limit_of_something_else_is_one_sentence(limit, sentence):
    theory = grid({"teacher.omega": [0.1, 0.4]}, alphas=[0.4, 0.6, 0.9])
    with pytest.raises(DatasetError) as caught:
        gap_figure(theory, limit=limit())
    assert sentence in str(caught.value)


def test_the_command_computes_the_limit_of_a_sweep_or_takes_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = {}

    def noted(problem, alphas, *, fields, thresholds, **_):
        asked.update(problem=problem, alphas=alphas, fields=fields, thresholds=thresholds)
        return limit_of(alphas, fields["teacher.omega"])

    monkeypatch.setattr("attnphase.theories.bayes_optimal.run.bayes_optimal", noted)
    save_dataset(grid({"teacher.omega": [0.1, 0.4], "regularizer.strength": [0.02]}), "a.nc")
    result = CliRunner().invoke(main, ["figure", "gap", "--data", "a.nc", "--with-data"], prog_name="attnphase")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.split() == ["gap.png", "gap.nc", "gap-limit.nc", "gap.txt"]
    assert asked["fields"] == {"teacher.omega": [0.1, 0.4]}  # the strength is the student's
    assert asked["alphas"] == ALPHAS
    again = ["figure", "gap", "--data", "a.nc", "--limit", "gap-limit.nc", "-o", "b.png", "--quiet"]
    assert CliRunner().invoke(main, again, prog_name="attnphase").exit_code == 0
    assert (tmp_path / "b.png").read_bytes() == (tmp_path / "gap.png").read_bytes()
    wrong = CliRunner().invoke(main, ["figure", "fig3", "--data", "a.nc", "--limit", "gap-limit.nc"])
    assert wrong.exit_code == 2
    assert "--limit belongs to the figures limits and gap: ask for one of them." in wrong.stderr


@pytest.mark.parametrize("name", ["fig2", "fig3", "fig8", "fig9", "limits", "gap"])
def test_what_no_figure_can_draw_is_refused_before_anything_is_written(name, tmp_path, monkeypatch):
    """Thresholds have no branch and no alpha; and of one branch alone the dimension is gone."""
    monkeypatch.chdir(tmp_path)
    found, errors = {"alpha_c": [1.1, 1.2], "alpha_l": [1.3, 1.4]}, {"alpha_c": [0.1, 0.1], "alpha_l": [0.1, 0.1]}
    crossings = from_thresholds(Problem(), [0.2, 0.3], found, errors, "sobol")
    save_dataset(crossings, "crossings.nc")
    save_dataset(grid({"tokens.sigma": [0.4, 0.5]}).isel(branch=1), "one.nc")
    before = sorted(path.name for path in tmp_path.iterdir())
    for data, sentence in (
        ("crossings.nc", 'must be a dataset of kind "points"'),
        ("one.nc", "has no dimension branch"),
    ):
        asked = ["figure", name, "--data", data, "--with-data", "-o", "x.svg", "--quiet"]
        result = CliRunner().invoke(main, asked, prog_name="attnphase")
        assert result.exit_code == 2, result.output
        assert sentence in " ".join(result.output.split())
        assert data in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("latex", ["{" * 4000 + "x" + "}" * 4000, r"\frac{" * 500 + "x" + "}{2}" * 500])
def test_labels_nested_without_end_are_refused(latex, tmp_path):
    ds = grid({"tokens.sigma": [0.4, 0.5]})
    ds["training_loss"].attrs["latex"] = latex
    with pytest.raises(DatasetError, match=r"the figure cannot be drawn: .*: mend the attributes latex"):
        save_figure(fig2(ds, at={"tokens.sigma": 0.4}), tmp_path / "x.svg")
    assert list(tmp_path.iterdir()) == []
