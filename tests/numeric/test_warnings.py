"""What functions warn of: once for each class, when all is saved, in the command line's words, at the caller's line."""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_up import Solver, made_up_point

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.data import outcomes
from attnphase.data.build import from_points
from attnphase.data.trust import untrusted, violated
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.branches import Identity

PROBLEM = ap.Problem.paper()
GOOD = {"overlap_gap": 0.01, "violation_ridge": 0.03}
KINDS = {
    ap.errors.NotConvergedWarning: {"status": Status.iteration_limit},
    ap.errors.ViolatedWarning: {"violation_ridge": 0.9},
    ap.errors.ReplicaSymmetryWarning: {"overlap_gap": 0.53},
    ap.errors.MergedWarning: {"on_branch": Identity.merged},
    ap.errors.UndecidedWarning: {"on_branch": Identity.not_decided},
}


def point_with(alpha=1.37, branch="semantic", **known):
    """A made-up point whose violation, if it has one, is 9 of its errors."""
    on_branch = known.pop("on_branch", Identity.on_branch)
    point = replace(made_up_point(PROBLEM, alpha, branch, **GOOD | known), on_branch=on_branch)
    return replace(point, errors=point.errors | {"violation_ridge": 0.1})


def solving(monkeypatch, points):
    monkeypatch.setattr("attnphase.sweeps.points.solved", lambda *_, **__: list(points))


def warnings_of(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [one for one in caught if issubclass(one.category, ap.errors.AttnphaseWarning)]


@pytest.fixture
def unusual(monkeypatch):
    """`Line.solve` makes violated points that did not converge and lie far apart."""
    solver = Solver(monkeypatch)
    solver.known = {"status": Status.iteration_limit, "overlap_gap": 0.61}
    return solver


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_solve_warns_of_its_kind_alone_at_the_callers_line(monkeypatch, kind):
    solving(monkeypatch, [point_with(**KINDS[kind])])
    (warning,) = warnings_of(lambda: ap.solve(PROBLEM, 1.37))
    assert warning.category is kind
    assert warning.filename == __file__
    assert "ap.solve" in Path(__file__).read_text(encoding="utf-8").splitlines()[warning.lineno - 1]


def test_a_good_point_warns_of_nothing(monkeypatch):
    solving(monkeypatch, [point_with()])
    assert warnings_of(lambda: ap.solve(PROBLEM, 1.37)) == []


def test_one_call_warns_once_of_every_kind(monkeypatch):
    """Of several branches in one sentence after the other."""
    solving(monkeypatch, [point_with(branch=name, overlap_gap=0.4) for name in ("semantic", "positional")])
    (warning,) = warnings_of(lambda: ap.solve(PROBLEM, 1.37, "all"))
    assert str(warning.message).count("is above 0.2") == 2


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_command_says_the_same_and_does_not_warn(monkeypatch, kind):
    solving(monkeypatch, [point_with(**KINDS[kind])])
    (warning,) = warnings_of(lambda: ap.solve(PROBLEM, 1.37))
    told = []
    monkeypatch.setattr(warnings, "showwarning", lambda *given, **_: told.append(given))
    result = CliRunner().invoke(main, ["solve", "--alpha", "1.37"])
    assert told == []
    accepts = (
        "; --allow-unconverged accepts this"
        if kind in (ap.errors.NotConvergedWarning, ap.errors.ViolatedWarning)
        else ""
    )
    assert result.stderr == f"attnphase: {str(warning.message).removesuffix('.')}{accepts}.\n"
    assert result.exit_code == (1 if accepts else 0)
    accepted = CliRunner().invoke(main, ["solve", "--alpha", "1.37", "--allow-unconverged"])
    assert accepted.exit_code == 0


def test_a_class_is_silenced_by_the_usual_filter(monkeypatch):
    solving(monkeypatch, [point_with(overlap_gap=0.53, status=Status.iteration_limit)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ap.errors.ReplicaSymmetryWarning)
        with pytest.raises(ap.errors.NotConvergedWarning):
            ap.solve(PROBLEM, 1.37)
        warnings.simplefilter("ignore", ap.errors.AttnphaseWarning)
        assert int(ap.solve(PROBLEM, 1.37)["status"]) == Status.iteration_limit


def test_a_sweep_is_saved_before_it_warns(tmp_path, unusual):
    """With -W error the file is whole."""
    output = tmp_path / "out.nc"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ap.errors.AttnphaseWarning)
        with pytest.raises(ap.errors.AttnphaseWarning):
            ap.sweep(PROBLEM, [1.1, 1.7], workers=1, output=output)
    whole = ap.load_dataset(output)
    assert whole.sizes["alpha"] == 2
    assert not Path(f"{output}.parts").exists()
    kinds = {one.category for one in warnings_of(lambda: ap.sweep(PROBLEM, [1.1, 1.7], workers=1))}
    assert kinds == {ap.errors.NotConvergedWarning, ap.errors.ReplicaSymmetryWarning}
    assert len(unusual.labels) == 4


def test_blocks_warn_of_their_own_points(tmp_path, unusual):
    ap.plan_sweep(PROBLEM, [1.1, 1.7], blocks=1, folder=tmp_path)
    own = warnings_of(lambda: ap.run_block(tmp_path, 1, workers=1))
    assert {one.category for one in own} == {ap.errors.NotConvergedWarning}
    assert "line = semantic, alpha = 1.1" in str(own[0].message)
    merged = warnings_of(lambda: ap.merge_blocks(tmp_path, tmp_path / "out.nc"))
    assert {one.category for one in merged} == {ap.errors.NotConvergedWarning, ap.errors.ReplicaSymmetryWarning}


def test_a_missing_threshold_is_warned_of(monkeypatch):
    """No crossing lies in a range where nothing changes sign: told as the command tells it."""
    from attnphase.fixed_points.threshold import Outcome, Threshold

    absent = Threshold.absent(Outcome.no_branch, "the positional branch was not found")
    found = {"alpha_c": absent, "alpha_l": Threshold(1.31, 0.01)}
    monkeypatch.setattr("attnphase.sweeps.critical.thresholds_of", lambda *_: found)
    (warning,) = warnings_of(lambda: ap.thresholds(PROBLEM, omega=0.27))
    assert warning.category is ap.errors.NotFoundWarning
    assert str(warning.message) == "alpha_c at omega = 0.27: the positional branch was not found."
    result = CliRunner().invoke(main, ["thresholds", "--omega", "0.27"])
    assert result.stderr == f"attnphase: {warning.message}\n"


def test_violated_points_are_named_with_the_worst_identity():
    points = [point_with(alpha) for alpha in (1.1, 1.3)] + [point_with(1.5, violation_ridge=-0.73)]
    ds = from_points(points, {"alpha": [1.1, 1.3, 1.5]})
    assert violated(ds).to_numpy().tolist() == [False, False, True]
    assert untrusted(ds).to_numpy().tolist() == [False, False, True]
    assert not bool(untrusted(ds.drop_vars("identities")).any())
    ((category, sentence),) = outcomes.of_points(ds)
    assert category is ap.errors.ViolatedWarning
    assert sentence.startswith(
        "exact identities are violated: branch = semantic, alpha = 1.5 (violation_ridge = -0.73(10)); do not use"
    )


@pytest.mark.parametrize("error", [0.1, 0.0])
def test_the_worst_identity_may_have_no_error(error):
    """Beside one that is exact, and one that was not computed."""
    point = point_with(violation_ridge=0.9, violation_alpha=0.0, violation_V_hat=np.nan)
    errors = point.errors | {"violation_ridge": error, "violation_alpha": 0.0, "violation_V_hat": np.nan}
    ((_, sentence),) = outcomes.of_points(from_points([replace(point, errors=errors)]))
    assert "(violation_ridge = 0.9" in sentence


def test_python_may_be_told_to_raise_all_warnings(monkeypatch, tmp_path):
    """A command under -W error writes and prints all the same."""
    solving(monkeypatch, [point_with(overlap_gap=0.53)])
    monkeypatch.setattr(sys, "argv", ["attnphase"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = CliRunner().invoke(main, ["solve", "--alpha", "1.37", "-o", str(tmp_path / "out.nc")])
    assert result.exit_code == 0
    assert float(ap.load_dataset(tmp_path / "out.nc")["overlap_gap"]) == pytest.approx(0.53)
    assert np.isfinite(float(ap.load_dataset(tmp_path / "out.nc")["test_error"]))
