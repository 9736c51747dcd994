"""Theory against experiment: frames, standard errors, fits, refusals; synthetic runs whose answer is known."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import xarray as xr
from click.testing import CliRunner

pytest.importorskip("torch", reason="experiments need PyTorch")

import attnphase as ap
from attnphase.checks.comparison import compare
from attnphase.cli.commands import main
from attnphase.data.variables import RunStatus
from attnphase.errors import CompareError
from attnphase.figures import comparison_figure
from attnphase.problem.problem import Problem

FEW = {"integration.rule": "sobol", "integration.nodes": 64}
PAPER = Problem.paper(omega=0.3).with_fields(FEW)
GRID = ([50, 100, 200], 4)


def experiment(problem: Problem, starts: list[str], alpha: float = 2.0) -> xr.Dataset:
    """Runs of hardly any training: a frame to write numbers into."""
    return ap.simulate(problem, alpha, starts, GRID[0], GRID[1], "gd", steps=1, test_samples=0).copy(deep=True)


def written(runs: xr.Dataset, point: xr.Dataset, noise: float, slope: float, transform=None) -> xr.Dataset:
    """Runs that have the theory's numbers plus slope/d plus noise of zero mean, each in a frame of its own."""
    generator = np.random.default_rng(8)
    for name in ("q", "m", "theta", "training_loss", "test_error", "weight_norm"):
        for j, d in enumerate(GRID[0]):
            values = np.repeat(point[name].to_numpy()[None], GRID[1], axis=0)
            kicks = generator.standard_normal(values.shape)
            kicks -= kicks.mean(axis=0)
            values = values * (1 + slope / d + noise * kicks)
            if name == "q":
                values = (values + values.swapaxes(-1, -2)) / 2
            if transform is not None:
                values = transform(name, values)
            runs[name].to_numpy()[0, j, 0] = values
    return runs


@pytest.fixture(scope="module")
def paper_point() -> xr.Dataset:
    return ap.solve(PAPER, 2.0, "semantic")


def test_differences_and_fits_are_those_written(paper_point):
    runs = written(experiment(PAPER, ["semantic"]), paper_point, 0.02, 7.0)
    comparison = compare(paper_point, runs)
    loss = next(q for q in comparison.quantities if q.name == "training_loss")
    theory = float(paper_point["training_loss"])
    for one, d in zip(loss.measured, GRID[0], strict=True):
        values = runs["training_loss"].sel(dimension=d).to_numpy().ravel()
        assert one.value == pytest.approx(values.mean(), rel=1e-14)
        assert one.value == pytest.approx(theory * (1 + 7 / d), rel=1e-12)
        error = values.std(ddof=1) / 2
        assert one.stderr == pytest.approx(error, rel=1e-12)
        expected = one.difference / math.hypot(error, float(paper_point["training_loss_stderr"]))
        assert one.z == pytest.approx(expected, rel=1e-12)
    assert loss.limit is not None
    assert loss.limit.value == pytest.approx(theory, rel=1e-10)
    assert loss.limit.slope == pytest.approx(7 * theory, rel=1e-8)
    assert loss.limit.chi2 < 1e-12
    assert loss.limit.degrees_of_freedom == 1
    overlaps = [q for q in comparison.quantities if q.name[0] in "qmt" and "error" not in q.name]
    assert len(overlaps) == 6  # q and theta of two tokens, the training loss, and m, which is 0 for both
    assert max(abs(q.limit.difference) for q in overlaps if q.limit is not None) < 1e-10
    # the text has them all
    assert "training_loss" in comparison.text()
    parsed = json.loads(comparison.to_json())
    assert parsed["worst"] == pytest.approx(comparison.worst)
    assert len(parsed["quantities"]) == len(comparison.quantities)


def test_a_wrong_theory_is_seen(paper_point):
    runs = written(experiment(PAPER, ["semantic"]), paper_point, 0.01, 0.0)
    wrong = paper_point.copy(deep=True)
    wrong["theta"] *= 1.05
    comparison = compare(wrong, runs)
    assert not comparison.within(3)
    assert {q.name for q in comparison.quantities if abs(q.z) > 3} == {"theta[1,1,1]", "theta[2,1,1]"}


@pytest.mark.parametrize("tied", [True, False])
def test_overlaps_are_compared_up_to_rotations_and_signs(tied):
    """Rank 2: every run is turned by a rotation of its columns and a sign of the teacher, which nothing may notice."""
    problem = PAPER.with_fields({"student.rank": 2, "teacher.rank": 2, "student.tied": tied})
    point = ap.solve(problem, 2.5, "semantic")
    generator = np.random.default_rng(3)
    turns, signs = [], []
    for _ in range(GRID[1]):
        turn = np.linalg.qr(generator.standard_normal((2, 2)))[0]
        turns.append(turn if tied else np.kron(np.eye(2), turn))
        signs.append(np.diag(generator.choice([-1.0, 1.0], 2)))

    def transform(name, values):
        if name == "q":
            return np.stack([A @ v @ A.T for A, v in zip(turns, values, strict=True)])
        if name == "m":
            return np.stack([v @ A.T for A, v in zip(turns, values, strict=True)])
        if name == "theta":
            return np.stack([A @ v @ B for A, B, v in zip(turns, signs, values, strict=True)])
        return values

    runs = written(experiment(problem, ["semantic"], 2.5), point, 1e-4, 0.0, transform)
    comparison = compare(point, runs)
    for name in ("q[1,1,1]", "q[1,1,2]", "theta[1,1,1]", "theta[2,2,2]", "theta[1,1,2]"):
        found = next(q for q in comparison.quantities if q.name == name)
        assert abs(found.measured[-1].difference) < 2e-3 * np.abs(point[name[: name.index("[")]].to_numpy()).max(), name


def test_lasso_columns_are_permuted_but_not_rotated():
    problem = PAPER.with_fields(
        {"student.rank": 2, "regularizer.kind": "elastic-net", "regularizer.strength": 0.002, "regularizer.ridge": 0.01}
    )
    from attnphase.checks.alignment import Frame

    frame = Frame.of(problem)
    assert len(frame.gauge.turns) == 0
    assert len({A.tobytes() for _, A, *_ in frame.elements}) == 8  # signed permutations of two columns
    assert len(Frame.of(PAPER.with_fields({"student.rank": 2})).gauge.turns) == 1


@pytest.mark.parametrize(
    ("strength", "expression"), [(0.3, "(h[0, 0] - k[0, 0])**2/2 + (h[0, 1] - 2*k[1, 0])**2/2"), ([0.01, 0.02], None)]
)
def test_columns_that_the_loss_or_the_ridge_tells_apart_are_not_rotated(strength, expression):
    """A run is compared as it is, as all symmetries only change signs of columns."""
    problem = PAPER.with_fields({"student.rank": 2, "regularizer.strength": strength})
    if expression:
        problem = problem.with_fields({"loss.kind": "expression", "loss.expression": expression})
    problem = problem.with_fields({"integration.rule": "sobol", "integration.nodes": 64})
    point = ap.solve(problem, 1.5, "semantic")
    turn = np.array([[0.8, 0.6], [-0.6, 0.8]])

    def transform(name, values):
        return turn @ values @ turn.T if name == "q" else turn @ values if name == "theta" else values

    runs = written(experiment(problem, ["semantic"], 1.5), point, 1e-4, 0.0, transform)
    found = next(q for q in compare(point, runs).quantities if q.name == "q[1,1,2]")
    expected = abs((turn @ point.q.to_numpy()[0] @ turn.T)[0, 1])
    assert expected > 0.03
    assert abs(found.measured[-1].value) == pytest.approx(expected, abs=2e-3)


def test_equal_entries_are_compared_once_and_m_only_with_directions(paper_point):
    """Three tokens of one law counted thrice in how many quantities agree."""
    problem = ap.Problem.from_dict({"positions": {"kind": "none"}, "tokens": {"length": 3, "sigma": 0.7}})
    point = ap.solve(problem, 1.9, "semantic")
    runs = ap.simulate(problem, 1.9, dimension=(40, 80), seeds=3, start="semantic")
    overlaps = [q.name for q in compare(point, runs).quantities if q.name[0] in "qmt" and "error" not in q.name]
    assert overlaps == ["training_loss", "q[1,1,1]", "theta[1,1,1]"]
    other = point.assign(q=point["q"].copy(data=point["q"] + np.array([0, 1e-9, 0])[:, None, None]))
    assert [q.name for q in compare(other, runs).quantities if q.name[0] == "q"] == ["q[1,1,1]", "q[2,1,1]"]
    names = {"q", "q_stderr"}  # in other units
    small = [each.assign({n: each[n].copy(data=1e-20 * each[n]) for n in names & {*each}}) for each in (other, runs)]
    assert len([q for q in compare(*small).quantities if q.name[0] == "q"]) == 2


def test_runs_that_diverged_are_left_out_and_late_ones_named(paper_point):
    runs = written(experiment(PAPER, ["semantic"]), paper_point, 0.01, 0.0)
    runs["status"].to_numpy()[0, 0, 0, 0] = RunStatus.diverged
    runs["training_loss"].to_numpy()[0, 0, 0, 0] = 1e9
    runs["status"].to_numpy()[0, 1, 0, :2] = RunStatus.unsettled
    comparison = compare(paper_point, runs)
    assert comparison.excluded == (
        "semantic, alpha = 2, d = 50: of 4 runs 1 diverged: not counted.",
        "semantic, alpha = 2, d = 100: of 4 runs 2 unsettled: counted, though not converged.",
    )
    loss = next(q for q in comparison.quantities if q.name == "training_loss")
    assert [one.runs for one in loss.measured] == [3, 4, 4]
    assert loss.measured[0].value < 1


def test_what_cannot_be_compared_is_said(paper_point):
    runs = written(experiment(PAPER, ["semantic"]), paper_point, 0.01, 0.0)
    runs["m"].to_numpy()[0, 1, 0, 2] = np.nan
    comparison = compare(paper_point, runs)
    assert comparison.excluded == ("semantic, alpha = 2: m is not a number in some runs: left out.",)
    assert not [q for q in comparison.quantities if q.name.startswith("m[")]
    runs["status"].to_numpy()[:] = RunStatus.diverged
    nothing = compare(paper_point, runs)
    assert nothing.quantities == ()
    assert nothing.text().endswith("there is no run to compare.")
    with pytest.raises(
        CompareError, match=r"^the theory must be an xarray\.Dataset, not 'theory\.nc': load it first\.$"
    ):
        compare("theory.nc", runs)  # type: ignore[arg-type]


def test_single_runs_have_no_z(paper_point):
    runs = ap.simulate(PAPER, 2.0, "semantic", 40, 1, "gd", steps=1, test_samples=0)
    comparison = compare(paper_point, runs)
    assert math.isnan(comparison.worst)
    assert not comparison.within()
    assert "run more than one seed" in comparison.text()


def test_theory_from_a_sweep_and_other_integration_rules_fit():
    runs = experiment(PAPER, ["semantic"])
    other = PAPER.with_fields({"integration.nodes": 128, "teacher.omega": 0.1})
    fields = {"teacher.noise": [0.0, 0.02]}  # a problem's text does not say that there is none
    grid = ap.sweep(other, alpha=[1.9, 2.0], omega=[0.2, 0.3], fields=fields, branch=("semantic",), workers=1)
    comparison = compare(grid, runs)
    loss = next(q for q in comparison.quantities if q.name == "training_loss")
    assert loss.theory == float(grid["training_loss"].sel(omega=0.3, noise=0.0, alpha=2.0, branch="semantic"))


def test_what_does_not_belong_together_is_refused(paper_point, tmp_path):
    runs = experiment(PAPER, ["semantic"])
    with pytest.raises(CompareError, match=r'the theory must be a dataset of kind "points", but is "experiments"'):
        compare(runs, runs)
    with pytest.raises(CompareError, match=r'the experiment must be a dataset of kind "experiments", but is "points"'):
        compare(paper_point, paper_point)
    with pytest.raises(
        CompareError, match=r"different problems: regularizer\.strength is 0\.02 in the theory and 0\.01"
    ):
        compare(ap.solve(PAPER.with_fields({"regularizer.strength": 0.02}), 2.0), runs)
    with pytest.raises(CompareError, match=r"the theory has no alpha = 2, which the experiment has: solve there"):
        compare(ap.solve(PAPER, 1.9), runs)
    with pytest.raises(CompareError, match=r'the theory has no branch "positional", where the experiment starts'):
        compare(paper_point, experiment(PAPER, ["positional"]))
    grid = ap.sweep(PAPER, alpha=[2.0], omega=[0.2], branch=("semantic",), workers=1)
    with pytest.raises(CompareError, match=r"the theory has no omega = 0\.3, which the experiment has"):
        compare(grid, runs)
    theory, experiment_file = tmp_path / "theory.nc", tmp_path / "runs.nc"
    ap.save_dataset(paper_point, theory)
    ap.save_dataset(runs, experiment_file)
    result = CliRunner().invoke(
        main, ["compare", str(theory), str(experiment_file), "--figure", str(tmp_path / "c.png")]
    )
    assert result.exit_code == 0
    assert "a of a + b/d" in result.stdout
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    swapped = CliRunner().invoke(main, ["compare", str(experiment_file), str(theory)])
    assert swapped.exit_code == 2
    assert f'the theory ({experiment_file}) must be a dataset of kind "points"' in swapped.stderr


@pytest.mark.parametrize(
    ("name", "place"), [("test_error", "runs"), ("q", "runs"), ("m_stderr", "theory"), ("weight_norm", "theory")]
)
def test_numbers_that_nobody_computed_are_refused(paper_point, name, place):
    """Their squares overflow; those of runs that diverged are not looked at."""
    runs = written(experiment(PAPER, ["semantic"]), paper_point, 0.01, 0.0)
    theory = paper_point.copy(deep=True)
    {"runs": runs, "theory": theory}[place][name].to_numpy()[...] = 1e308 if place == "runs" else np.inf
    where = "the runs of semantic, alpha = 2, d = 50" if place == "runs" else "the theory at semantic, alpha = 2"
    with pytest.raises(CompareError, match=rf"^{where} cannot be compared: {name} is (1e\+308|inf) there\.$"):
        compare(theory, runs)
    if place == "runs":
        runs["status"].to_numpy()[...] = RunStatus.diverged
        assert compare(theory, runs).quantities == ()


def test_the_figure_over_alpha_has_all_of_the_theory():
    """Its line ran through the sample complexities of the runs alone."""
    problem = PAPER.with_fields({"integration.rule": "sobol", "integration.nodes": 32})
    theory = ap.sweep(problem, alpha=[1.4, 1.9, 2.3], branch=["semantic"], workers=1)
    runs = ap.simulate(problem, [1.4, 2.3], dimension=30, seeds=2, start="semantic")
    axes = comparison_figure(compare(theory, runs)).axes
    for ax, name, index in ((axes[0], "training_loss", ()), (axes[3], "q", (0, 0, 0))):
        curve = theory[name].sel(branch="semantic").transpose("alpha", ...).to_numpy()
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1.4, 1.9, 2.3])
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), curve[(slice(None), *index)])
