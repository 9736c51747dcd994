"""Figures show the dataset's numbers, at the places that were asked for; these numbers are formulas."""

import io
import re
from typing import Any

import numpy as np
import pytest
from by_formula import ALPHAS, FEW, points, stretched
from matplotlib.collections import QuadMesh
from matplotlib.contour import ContourSet

import attnphase as ap
from attnphase.figures import basins_figure, fig2, fig3, fig9, gap_figure, limits_figure, loss_crossing

BLUE, ORANGE = "#0072B2", "#D55E00"  # semantic and positional
CONVERGED, UNCONVERGED = 0, 1
ON, MERGED, UNDECIDED = 0, 1, 2
MIXTURE = ap.Problem().with_fields(
    {"tokens.kind": "mixture", "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]}
)


def loss(branch, alpha, sigma=0.5, strength=0.0, omega=0.0, **_):
    """Tell all places apart; lower for the semantic branch where alpha times sigma exceeds 0.6."""
    common = 0.02 + 0.001 * alpha + 0.01 * sigma + 0.02 * strength + 0.005 * omega
    return common - (0.004 * (alpha * sigma - 0.6) if branch == "semantic" else 0.0)


def theta(branch, alpha, **_):
    return 0.2 * alpha if branch == "semantic" else 0.0


def m(branch, **_):
    return 0.0 if branch == "semantic" else 0.3


def grid(fields, *args, **numbers):
    known = {"training_loss": loss, "test_error": lambda **at: 0.5 * loss(**at), "linear_test_error": 0.01}
    return points(fields, *args, **known | {"theta": theta, "m": m} | numbers)


def curves(figure, panel, style="-"):
    """Places of a panel's lines by their colours."""
    lines = [line for line in figure.axes[panel].get_lines() if line.get_linestyle() == style]
    return {line.get_color(): (np.asarray(line.get_xdata()), np.asarray(line.get_ydata())) for line in lines}


def marked(figure, panel, **of):
    """Places of all points of a panel that are marked like this."""
    lines = [
        line for line in figure.axes[panel].get_lines() if all(getattr(line, f"get_{k}")() == v for k, v in of.items())
    ]
    return [x for line in lines for x in np.asarray(line.get_xdata()).tolist()]


def mesh(figure, panel):
    """Values of a panel's map, a row for each value of the field upwards, and its corners."""
    (found,) = (item for item in figure.axes[panel].collections if type(item) is QuadMesh)
    return np.asarray(found.get_array()), np.asarray(found.get_coordinates())


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


STRENGTHS = {"teacher.omega": [0.3], "regularizer.strength": [0.1, 0.001, 0.01]}
TWO = {"teacher.omega": [0.1, 0.3], "tokens.sigma": [0.3, 0.45, 0.6], "teacher.score": ["softmax", "linear"]}


@pytest.mark.parametrize(
    ("swept", "options", "across", "at", "scale"),
    [
        pytest.param((TWO,), {"at": {"tokens.sigma": 0.45, "teacher_score": "linear", "omega": 0.1}}, ALPHAS,
                     {"omega": 0.1, "sigma": 0.45}, "linear", id="selected by field, dimension and word"),
        pytest.param(({"teacher.omega": [0.1, 0.3]},), {}, ALPHAS, {"omega": 0.3}, "linear", id="the paper's omega"),
        pytest.param(({"teacher.omega": [0.1, 0.3]},), {"omega": 0.1}, ALPHAS, {"omega": 0.1}, "linear", id="omega"),
        pytest.param((STRENGTHS, [1.25]), {}, [0.001, 0.01, 0.1], {"alpha": 1.25, "omega": 0.3}, "log", id="one alpha"),
        pytest.param(({"tokens.sigma": [0.3, 0.45]},), {"at": {"alpha": 2.0}}, [0.3, 0.45], {"alpha": 2.0}, "linear",
                     id="a selected alpha"),
        pytest.param(({}, [0.5, 1.0, 2.0, 4.0]), {}, [0.5, 1.0, 2.0, 4.0], {}, "log", id="alpha in the logarithm"),
    ],
)  # fmt: skip
def test_curves_have_the_numbers_at_what_is_selected(swept, options, across, at, scale):
    figure = fig2(grid(*swept), **options)
    over = next((n for n, v in (("strength", STRENGTHS), ("sigma", None)) if swept[0] is v), "sigma")
    over = over if "alpha" in at else "alpha"
    for branch, colour in (("semantic", BLUE), ("positional", ORANGE)):
        for panel, of in enumerate((loss, lambda **place: loss(**place) / 2)):
            x, y = curves(figure, panel)[colour]
            np.testing.assert_allclose(x, across)
            np.testing.assert_allclose(y, [1e3 * of(branch=branch, **at | {over: value}) for value in across])
    np.testing.assert_allclose(curves(figure, 3)[BLUE][1], [0.2 * (at | {over: value})["alpha"] for value in across])
    assert figure.axes[0].get_xscale() == scale


def test_a_crossing_of_losses_has_the_errors_of_both_branches():
    def own(semantic, positional):
        return lambda branch, alpha: semantic(alpha) if branch == "semantic" else positional

    losses, errors = own(lambda alpha: 0.1 + 0.02 * (1.4 - alpha), 0.1), own(lambda alpha: 0.003, 0.004)
    found = loss_crossing(points({}, [1.0, 2.0], training_loss=losses, training_loss_stderr=errors))
    assert found.alpha == pytest.approx(1.4)
    assert found.standard_error == pytest.approx(0.005 * np.hypot(0.6, 0.4) / 0.02)


def test_an_omega_that_the_dataset_has_not_is_refused():
    ds = grid({"tokens.sigma": [0.45, 0.6]})  # of the paper's problem, at its omega
    y = curves(fig2(ds, omega=0.3, at={"sigma": 0.45}), 0)[ORANGE][1]
    np.testing.assert_allclose(y[0], 1e3 * loss("positional", 0.5, 0.45))
    with pytest.raises(ap.errors.DatasetError, match=r"has omega = 0\.3 alone, not 0\.5"):
        fig2(ds, omega=0.5, at={"sigma": 0.45})


def test_overlaps_are_norms_over_columns_teachers_and_clusters_with_the_norm_of_their_errors():
    entries, errors = np.array([[0.3, 0.4], [0.0, 1.2]]), np.array([[0.03, 0.0], [0.04, 0.12]])
    ds = grid({}, problem=ap.Problem().with_fields({"student.rank": 2, "teacher.rank": 2}))
    ds["theta"].to_numpy()[..., 0, :, :], ds["theta_stderr"].to_numpy()[..., 0, :, :] = entries, errors
    figure = fig2(ds)
    np.testing.assert_allclose(curves(figure, 3)[BLUE][1], 1.3)
    band = np.asarray(figure.axes[3].collections[0].get_paths()[0].vertices)
    np.testing.assert_allclose([band[:, 1].min(), band[:, 1].max()], [1.3 - 0.13, 1.3 + 0.13])
    # two clusters of the first token as one vector, in curves and in maps
    ds = grid({"student.temperature": [0.5, 2.0]}, problem=MIXTURE)
    ds["m"].to_numpy()[..., 0, :, 0] = 0.3, 0.4
    np.testing.assert_allclose(curves(fig2(ds, at={"student.temperature": 2}), 2)[ORANGE][1], 0.5)
    np.testing.assert_allclose(mesh(fig3(ds), 3)[0], 0.5)


def test_what_a_point_is_shows_in_its_curve():
    """Hollow if it did not converge, dotted up to the branch if merged, with dots where replica symmetry fails."""
    ds = grid({}, [0.5, 1.0, 1.5, 2.0])
    for name, branch, alpha, value in (
        ("status", "positional", 1.5, UNCONVERGED), ("on_branch", "semantic", 0.5, MERGED),
        ("on_branch", "semantic", 1.5, UNDECIDED), ("overlap_gap", "semantic", 2.0, 0.21),
        ("identities", "positional", 2.0, 1),
    ):  # fmt: skip
        ds[name].loc[{"branch": branch, "alpha": alpha}] = value
    figure = fig2(ds)
    assert curves(figure, 0)[ORANGE][0].tolist() == [0.5, 1.0, 2.0]
    assert np.isfinite(curves(figure, 0)[BLUE][1]).tolist() == [False, True, True, True]
    assert np.isfinite(curves(figure, 0, ":")[BLUE][1]).tolist() == [True, True, False, False]
    assert marked(figure, 0, marker="D", markerfacecolor="white") == [1.5]
    assert marked(figure, 0, marker="o", markerfacecolor="black") == [2.0]
    said = ["replica symmetry fails", "exact identities violated", "merged with the uninformed point"]
    assert legend(figure)[-5:] == [*said, "branch not decided", "theory not converged"]


# --- maps ------------------------------------------------------------------------------------------------------------


def test_a_map_is_over_alpha_and_the_field_with_the_overlap_of_the_branch_of_lower_loss():
    """In increasing order, whatever the dataset's; the other fields have one value, or are selected."""
    fields = {"teacher.omega": [0.3], "tokens.sigma": [0.65, 0.35, 0.45], "student.temperature": [1.0, 2.0]}
    figure = fig3(grid(fields, [2.0, 0.5, 1.25]), at={"student.temperature": 2.0})
    products = np.outer([0.35, 0.45, 0.65], ALPHAS)
    np.testing.assert_allclose(mesh(figure, 0)[0], -4 * (products - 0.6), atol=1e-12)
    np.testing.assert_allclose(mesh(figure, 2)[0], np.where(products > 0.6, 0.2 * np.array(ALPHAS), 0), atol=1e-12)
    np.testing.assert_allclose(mesh(figure, 3)[0], np.where(products > 0.6, 0, 0.3), atol=1e-12)
    lower = [
        [min(loss(b, a, s, omega=0.3) for b in ("semantic", "positional")) for a in ALPHAS] for s in (0.35, 0.45, 0.65)
    ]
    np.testing.assert_allclose(mesh(figure, 1)[0], 500 * np.array(lower) - 10)
    assert (figure.axes[2].get_xlabel(), figure.axes[2].get_ylabel()) == (r"$\alpha$", r"$\sigma$")
    assert r"$T_{\mathrm{student}}$ = 2" in figure.get_suptitle()
    figure.savefig(io.BytesIO(), format="png", dpi=20)


def test_the_line_of_a_crossing_is_where_the_losses_cross_with_a_band_of_its_error():
    """alpha sigma = 0.6; an error of 0.0004 in both losses is 0.0004 sqrt(2) / 0.004 in alpha sigma."""
    ds = grid({"tokens.sigma": [0.3, 0.45, 0.6, 0.75]}, np.linspace(0.5, 2, 16).tolist(), training_loss_stderr=0.0004)
    found = [item for item in fig3(ds).axes[0].collections if isinstance(item, ContourSet)]
    assert sorted(item.filled for item in found) == [False, True]
    for item in found:
        places = np.concatenate([path.vertices for path in item.get_paths()])
        inside = places[(places[:, 0] > 0.51) & (places[:, 0] < 1.99) & (places[:, 1] > 0.31) & (places[:, 1] < 0.74)]
        product = np.abs(inside.prod(axis=1) - 0.6)
        np.testing.assert_allclose(product, 0.0004 * 2**0.5 / 0.004 if item.filled else 0, rtol=0.1, atol=0.003)
        assert len(inside) > 3


def test_thresholds_with_their_errors_stand_in_the_place_of_contours():
    names = ["alpha_c", "spinodal_semantic", "spinodal_positional", "onset_m", "onset_theta"]
    places = np.array([[1.9, 1.0, 1.4], [0.9, np.nan, np.nan], [2.5, 1.5, 1.7], [0.8, 0.7, 0.6], [np.nan] * 3])
    with pytest.warns(ap.errors.NotFoundWarning):
        ds = ap.thresholds(ap.Problem().with_fields(FEW), omega=[0.3], alpha=(1.8, 1.9), progress=False)
    ds = ds.assign({f"{one}{end}": ds[f"alpha_c{end}"] for one in names for end in ("", "_stderr", "_status")})
    ds = stretched(ds, {"omega": [0.4, 0.1, 0.25]})
    for i, name in enumerate(names):
        ds[name].attrs["latex"], ds[name][:], ds[f"{name}_stderr"][:] = name, places[i], 0.01 * (1 + i)
    axes = fig3(grid({"teacher.omega": [0.1, 0.25, 0.4]}), thresholds=ds).axes
    for ax, shown in zip(axes, ([0, 1, 2, 3], [0], [0, 1], [0, 2, 3]), strict=False):
        assert not [one for one in ax.collections if isinstance(one, ContourSet)]
        for (line, _, (errors,)), i in zip(ax.containers, shown, strict=True):
            x, y = (np.asarray(of(), dtype=float) for of in (line.get_xdata, line.get_ydata))
            np.testing.assert_array_equal([x, y], [places[i][[1, 2, 0]], [0.1, 0.25, 0.4]])
            half = [np.ptp(bar[:, 0]) / 2 for bar in errors.get_segments() if len(bar) and np.isfinite(bar).all()]
            np.testing.assert_allclose(half, [0.01 * (1 + i)] * np.isfinite(x).sum())
            assert (line.get_marker() == ".", line.get_label()) == (i == 1, f"${names[i]}$")


def test_what_cannot_be_drawn_says_what_to_select():
    for draw, sigmas, at, said in (
        (fig2, [0.3, 0.4], {"sgima": 1}, "not vary sgima; it varies branch, tokens.sigma, alpha."),
        (fig2, [0.3, 0.3000001], {}, "0.3, 0.3000001, as --at tokens.sigma=0.3 (at={'tokens.sigma': 0.3})."),
        (fig9, [0.1 * i for i in range(1, 16)], {}, "0.9, 1, ..., 1.5: select at most"),
    ):
        with pytest.raises(ap.errors.DatasetError, match=re.escape(said)):
            draw(grid({"tokens.sigma": sigmas}), at=at)


# --- values of a field side by side, and published and other runs -----------------------------------------------------


def test_whatever_has_an_error_can_be_drawn_if_the_dataset_has_it():
    ds = grid({"tokens.sigma": [0.3, 0.6]}, problem=ap.Problem(metrics={"share": "h0_0"}), metric_share=0.37)
    np.testing.assert_allclose(np.asarray(fig9(ds, quantity="metric_share").axes[0].get_lines()[0].get_ydata()), 0.37)
    without = ds.drop_vars(["overlap_gap", "overlap_gap_stderr"])
    with pytest.raises(
        ap.errors.DatasetError, match=r'has no quantity "overlap_gap" for curves; it has .*metric_share'
    ):
        fig9(without, quantity="overlap_gap")


def test_published_runs_stand_beside_the_values_that_have_some_with_a_spread():
    figure = fig9(grid({"tokens.sigma": [0.3, 0.5, 0.7]}), quantity="theta")
    theirs = ap.reference.read_reference("gradient_descent_other")
    theirs = theirs[(theirs["sigma"] == 0.7) & (theirs["start"] == "semantic")]
    heights = [np.asarray(bars[0].get_ydata()) for bars in figure.axes[0].containers]
    assert len(heights) == 4  # two starts at 0.5 and at 0.7
    assert any(np.array_equal(one, theirs["theta"]) for one in heights)
    ds = grid({"teacher.omega": [0.2, 0.3]})
    assert fig9(ds, quantity="test_error").axes[0].containers
    assert not fig9(ds, quantity="linear_test_error").axes[0].containers  # published without a spread


# --- beside what is possible ------------------------------------------------------------------------------------------


def known(alpha):
    """Share of the teacher that is known in the made-up limit."""
    return min(max(2 * alpha - 0.6, 0.0), 1.0)


def limit_of(alphas, omegas=(0.3,)):
    """A Bayes-optimal limit whose error falls to zero: 2 (1 - omega) (1 - known) thousandths."""
    few = ap.SolverSettings(max_nodes=256)
    base = ap.bayes_optimal(ap.Problem.paper(), [0.42], fields={"teacher.omega": [0.3]}, settings=few, progress=False)
    ds = stretched(base, {"omega": omegas, "alpha": alphas})
    for i, omega in enumerate(omegas):
        for j, alpha in enumerate(alphas):
            place = {"omega": i, "alpha": j}
            ds["test_error"][place], ds["test_error_stderr"][place] = 0.002 * (1 - omega) * (1 - known(alpha)), 1e-5
            ds["overlap"][place] = known(alpha)
    return ds if len(omegas) > 1 else ds.isel(omega=0)


def test_curves_stand_beside_the_limit_and_over_it_with_both_errors():
    theory, limit = grid({}, [0.2, 0.5, 0.7], test_error_stderr=2e-4), limit_of([0.2, 0.35, 0.5, 0.6, 0.7, 0.9])
    theory["on_branch"].loc[{"branch": "semantic", "alpha": 0.2}] = MERGED
    limit["test_error_stderr"][...] = 1e-4
    figure = limits_figure(theory, limit=limit.isel(alpha=slice(5)))
    x, y = curves(figure, 0)["black"]
    np.testing.assert_allclose(x, [0.2, 0.35, 0.5, 0.6, 0.7])
    np.testing.assert_allclose(y, [1.4, 1.26, 0.84, 0.56, 0.28], rtol=1e-12)
    x, y = curves(figure, 1)[BLUE]  # between the theory's alphas the branch is interpolated
    assert np.isfinite(y).tolist() == [False, False, True, True, True]
    between = (loss("semantic", 0.5) + loss("semantic", 0.7)) / 2
    np.testing.assert_allclose(y[2:4], [0.5e3 * loss("semantic", 0.5) / 0.84, 0.5e3 * between / 0.56])
    ratio = 0.5 * loss("semantic", 0.5) / 0.84e-3
    band = np.asarray(figure.axes[1].collections[0].get_paths()[0].vertices)
    reach = ratio * np.hypot(2e-4 / (0.84e-3 * ratio), 1e-4 / 0.84e-3)
    np.testing.assert_allclose(np.ptp(band[np.isclose(band[:, 0], 0.5), 1]), 2 * reach)
    zero = limits_figure(theory, limit=limit.isel(alpha=[5]))
    assert "the Bayes-optimal error\nis zero at all alphas" in [text.get_text() for text in zero.axes[1].texts]


def test_the_map_of_the_ratio_is_of_the_best_branch_and_beside_what_could_be_known():
    alphas, omegas = [0.4, 0.6, 0.9], [0.1, 0.4]
    theory = grid({"teacher.omega": omegas}, alphas)
    theory["status"].loc[{"branch": "positional", "omega": 0.1, "alpha": 0.4}] = UNCONVERGED  # which would be the best
    figure = gap_figure(theory, limit=limit_of(alphas, [0.4, 0.2, 0.1]))
    best = [[min(loss(b, a, omega=o) for b in ("semantic", "positional")) / 2 for a in alphas[:2]] for o in omegas]
    best[0][0] = loss("semantic", 0.4, omega=0.1) / 2
    ratios = [
        [best[i][j] / (0.002 * (1 - o) * (1 - known(a))) for j, a in enumerate(alphas[:2])]
        for i, o in enumerate(omegas)
    ]
    np.testing.assert_allclose(mesh(figure, 0)[0][:, :2], np.log10(ratios), rtol=1e-9)
    assert np.ma.getmaskarray(np.ma.masked_invalid(mesh(figure, 0)[0]))[:, 2].all()  # over nothing
    np.testing.assert_allclose(mesh(figure, 1)[0], [[0.2, 0.6, 1.0]] * 2)


def test_edges_and_transitions_lie_over_the_map_of_the_ratio():
    alphas, strengths = [0.2, 0.4, 0.6, 0.9], [0.01, 0.1, 0.2]
    theory, limit = grid({"regularizer.strength": strengths}, alphas), limit_of(alphas)
    theory["linear_test_error"][...], theory["test_error"][...], theory["training_loss"][...] = 0.05, 0.2, 0.05
    limit["recovered"].loc[{"alpha": 0.9}] = 1  # something is known from between 0.2 and 0.4 on
    for i, places in enumerate([(0.3, 0.5), (0.7, 0.8), (5.0, 0.45)]):
        for name, place in zip(("training_loss", "test_error"), places, strict=True):
            theory[name].loc[{"branch": "semantic"}][{"strength": i}] = 0.05 + 0.01 * np.subtract(place, alphas)
    ax: Any = gap_figure(theory, limit=limit).axes[0]
    lines = {line.get_marker(): np.asarray(line.get_xydata()).T for line in ax.get_lines()}
    np.testing.assert_allclose([*lines["."], *lines[""]], [[0.3, 0.7, np.nan], strengths, [0.5, 0.8, 0.45], strengths])
    assert [(one.get_text(), *one.xy) for one in ax.texts] == [(r"$\alpha_c$", 0.7, 0.1), (r"$\alpha_l$", 0.8, 0.1)]
    edges = [path for one in ax.collections if isinstance(one, ContourSet) for path in one.get_paths()]
    np.testing.assert_allclose([np.unique(np.asarray(path.vertices)[:, 0]) for path in edges], [[0.3], [0.75]])


def test_basins_are_in_the_plane_of_starts_with_the_shares_of_runs():
    with pytest.warns(ap.errors.AttnphaseWarning):
        base = ap.basins(ap.Problem().with_fields(FEW), [0.3], [0.3], [10], noise=0.1, until=1)
    ds = stretched(base, {"omega": [0.2, 0.3], "scale": [0.5, 1.0], "angle": [10.0, 40.0, 80.0]})
    ds["boundary"][:], ds["plateau"][:] = [[30.0, 45.0], [60.0, 0.0]], np.arange(12.0).reshape(2, 2, 3)
    ds["positional_size"][:], ds["semantic_size"][:] = [[[0.9]], [[0.4]]], [[[0.1]], [[0.8]]]
    drawn: Any = [[line.get_xydata() for line in ax.get_lines()] for ax in basins_figure(ds).axes]
    plane, plateau = np.array(drawn).tolist()
    np.testing.assert_allclose(plane, [[[0.4330127, 0.25], [0.5**0.5] * 2], [[0.25, 0.4330127], [1, 0]]])
    assert plateau == [[[0.5, 1], [1, 4]], [[0.5, 7], [1, 10]]]  # at 40 degrees
    pytest.importorskip("torch", reason="experiments need PyTorch")
    place = (0.1, ["semantic=0.3,positional=0.6", "semantic=0.1"], 20, 4, "sgd")
    runs = ap.simulate(ap.Problem.paper(omega=0.28), *place, learning_rate=0.1, test_samples=0)
    runs["theta"].to_numpy().reshape(8, -1)[:] = np.reshape([0.3, 0.3, 0.3, 9, 0.5, 0.5, 0, 0], (8, 1))
    runs["m"].to_numpy().reshape(8, -1)[:] = np.reshape([0.1, 0.2, -0.3, 0, 0.2, -0.2, 0.1, 0.1], (8, 1))
    runs["status"][{"start": 0, "seed": 3}] = 4  # the ends of the theory are 0.4 of m and 0.8 of theta
    ax: Any = basins_figure(ds, runs).axes[0]
    squares = [line.get_xydata().ravel().tolist() for line in ax.get_lines() if line.get_marker() == "s"]
    assert (squares, [text.get_text() for text in ax.texts]) == ([[0.6, 0.3], [0.0, 0.1]], ["33%", "50%"])
    runs["status"][{"start": 0}] = 4
    assert [text.get_text() for text in basins_figure(ds, runs).axes[0].texts] == ["50%"]
