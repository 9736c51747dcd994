"""Wrong numbers that a theorist would believe, and the tests that must fail for each: a plugin of pytest.

With ``--wrong ID`` the result of one public function is changed before anybody sees it. The table names behaviour, not
lines of source, so that it stays valid when code moves.
"""

from __future__ import annotations

import functools
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
import xarray as xr

__all__ = ["WRONG", "Wrong"]

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Wrong:
    """One wrong number.

    Attributes
    ----------
    function : str
        A public function: its name below ``attnphase``, or in full if it begins with ``derivations``.
    part : str
        Variables of the returned dataset, with ``*`` for any letters, or one attribute; empty for the whole result.
    change : callable
        From the right part to the wrong one.
    tests : tuple of str
        Tests that must fail, as pytest takes them.
    """

    function: str
    part: str
    change: Change
    tests: tuple[str, ...]

    def of(self, result: Any) -> Any:
        """The result with the wrong number."""
        if not self.part:
            return self.change(result)
        if isinstance(result, xr.Dataset):
            names = [name for name in map(str, result.data_vars) if fnmatch(name, self.part)]
            with xr.set_options(keep_attrs=True):
                return result.assign({name: self.change(result[name]) for name in names})
        return replace(result, **{self.part: self.change(getattr(result, self.part))})

    def install(self) -> None:
        """Wrap the function where users and where the package find it."""
        name = self.function if self.function.startswith("derivations") else f"attnphase.{self.function}"
        owner, last = pkgutil.resolve_name(name.rpartition(".")[0]), name.rpartition(".")[2]
        inner = getattr(owner, last)

        @functools.wraps(inner)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            try:
                return self.of(result)
            except Exception as error:  # a failing test would look like one that notices
                return pytest.exit(f"{self.function} {self.part} cannot be made wrong: {error!r}", returncode=3)

        if isinstance(owner, type):
            setattr(owner, last, staticmethod(wrapped))
        else:
            setattr(owner, last, wrapped)
            setattr(sys.modules[inner.__module__], last, wrapped)


def times(factor: float) -> Change:
    """A value that is off by a factor."""
    return lambda value: value * factor


HUNDREDTH = times(0.01)


def said(word: str, of: str) -> Change:
    """A flag that has another word."""

    def change(flag: xr.DataArray) -> xr.DataArray:
        words = flag.attrs["flag_meanings"].split()
        values = flag.to_numpy()
        return flag.copy(data=np.where(values == words.index(of), words.index(word), values).astype(values.dtype))

    return change


def drawn(figure: Any) -> Any:
    """The first curve, or the first map, of a figure is 2 % too high."""
    curves, maps = figure.axes[0].get_lines(), figure.axes[0].collections
    if curves:
        curves[0].set_ydata(1.02 * np.asarray(curves[0].get_ydata(), dtype=float))
    else:
        maps[0].set_array(1.02 * maps[0].get_array())
    return figure


def in_equations(saddle_point: Any) -> Any:
    """The right-hand side of the first overlap, q, has the other sign."""
    first, *others = saddle_point.overlaps
    return replace(saddle_point, overlaps=(replace(first, right_hand_side=-first.right_hand_side), *others))


def _row(function: str, part: str, change: Change, *tests: str) -> Wrong:
    return Wrong(function, part, change, tuple(f"tests/{test}" for test in tests))


ONE_TOKEN = "laws/test_one_token.py"
THRESHOLDS = "branches/test_thresholds.py"
CURVES = "branches/test_curves.py"
OPTIMA = "branches/test_sensitivity_and_optima.py"
BAYES = "theories/test_bayes_optimal_points.py"
FLOW = "theories/test_sgd_flow.py"
COMPARE = "experiments/test_compare.py"
FIGURES = "shell/test_figures.py"

WRONG: dict[str, Wrong] = {
    # points
    "q-is-two-percent-too-large": _row("solve", "q", times(1.02), ONE_TOKEN),
    "the-error-of-q-is-a-hundredth": _row(
        "solve",
        "q_stderr",
        HUNDREDTH,
        "integration/test_stated_errors.py::test_seeds_scatter_as_their_errors_say_about_what_lines_give",
    ),
    "m-is-two-percent-too-small": _row(
        "solve", "m", times(0.98), "published/test_published.py::test_published_rule_reproduces_the_published_curve"
    ),
    "theta-has-the-size-of-another-token": _row(
        "solve", "theta", times(1.02), "theories/test_limits_of_large_regression.py"
    ),
    "V-is-two-percent-too-large": _row("solve", "V", times(1.02), "theories/test_limits_of_large_regression.py"),
    "a-conjugate-is-two-percent-too-large": _row(
        "solve",
        "theta_hat",
        times(1.02),
        "branches/test_exact_identities.py::test_sides_that_differ_by_rounding_have_the_error_that_q_tells",
    ),
    "the-test-error-is-two-percent-too-large": _row("solve", "test_error", times(1.02), ONE_TOKEN),
    "the-training-loss-is-one-percent-too-small": _row("solve", "training_loss", times(0.99), ONE_TOKEN),
    "the-share-of-weights-is-two-percent-too-large": _row("solve", "density", times(1.02), ONE_TOKEN),
    "a-metric-is-three-percent-too-large": _row(
        "solve", "metric_*", times(1.03), "problem/test_metrics.py::test_metrics_are_means_over_drawn_fields"
    ),
    "the-error-of-a-metric-is-a-hundredth": _row(
        "solve", "metric_*_stderr", HUNDREDTH, "problem/test_metrics.py::test_stated_errors_of_metrics"
    ),
    "the-linear-baseline-is-two-percent-too-small": _row(
        "solve", "linear_test_error", times(0.98), "integration/test_baseline.py"
    ),
    "a-trained-parameter-is-two-percent-too-large": _row(
        "solve",
        "trained",
        times(1.02),
        "laws/test_trained_parameters.py::test_a_trained_shift_of_the_square_loss_is_known",
    ),
    "the-replicon-is-five-percent-too-large": _row(
        "solve",
        "replicon",
        times(1.05),
        "branches/test_stability.py::test_the_replicon_of_the_paper_is_that_of_an_independent_estimate",
    ),
    "the-gap-of-two-copies-is-a-third": _row(
        "solve", "overlap_gap", times(0.3), "branches/test_stability.py::test_the_gap_tells_where_training_departs"
    ),
    "what-ran-out-of-maps-is-said-to-have-converged": _row(
        "solve",
        "status",
        said("converged", "iteration_limit"),
        "branches/test_budgets.py::test_a_solve_without_time_returns_a_point_of_its_first_map",
    ),
    "what-has-merged-is-said-to-be-on-its-branch": _row(
        "solve",
        "on_branch",
        said("on_branch", "merged_with_uninformed"),
        "branches/test_on_branch.py::test_a_branch_is_there_from_its_onset_or_fold_on",
    ),
    "violated-identities-are-said-to-hold": _row(
        "solve",
        "identities",
        said("hold", "violated"),
        "branches/test_exact_identities.py::test_a_rule_beside_the_labels_jump_is_caught",
    ),
    "a-sweep-has-another-test-error": _row(
        "sweep", "test_error", times(1.03), "shell/test_sweeps.py", "experiments/test_compare.py"
    ),
    "a-solution-is-left-out": _row("solutions", "", lambda ds: ds.isel(solution=slice(1, None)), CURVES),
    # thresholds, curves, derivatives, optima
    "alpha_c-is-two-percent-too-large": _row("thresholds", "alpha_c", times(1.02), THRESHOLDS),
    "an-onset-is-two-percent-too-small": _row("thresholds", "onset_theta", times(0.98), THRESHOLDS),
    "the-error-of-a-threshold-is-a-hundredth": _row("thresholds", "alpha_l_stderr", HUNDREDTH, THRESHOLDS),
    "a-fold-is-two-percent-away": _row("follow", "field_value", times(1.02), CURVES),
    "a-fold-is-not-marked": _row("follow", "turn", lambda turn: turn & False, CURVES),
    "a-curve-is-said-to-end-at-the-edge-of-its-range": _row(
        "follow", "", lambda ds: ds.assign_attrs(ends="at the edge of the range, at the edge of the range"), CURVES
    ),
    "a-derivative-is-two-percent-too-large": _row("sensitivity", "d_q", times(1.02), OPTIMA),
    "an-optimum-is-two-percent-too-large": _row("tune", "optimum", times(1.02), OPTIMA),
    "an-optimum-at-a-crossing-is-said-to-be-inside": _row("tune", "status", said("inside", "at_crossing"), OPTIMA),
    # other theories
    "the-Bayes-optimal-overlap-is-two-percent-too-large": _row("bayes_optimal", "overlap", times(1.02), BAYES),
    "the-Bayes-optimal-error-is-two-percent-too-large": _row("bayes_optimal", "test_error", times(1.02), BAYES),
    "the-free-entropy-is-one-percent-too-large": _row("bayes_optimal", "free_entropy", times(1.01), BAYES),
    "weak-recovery-is-three-percent-too-early": _row(
        "bayes_optimal",
        "weak_recovery",
        times(0.97),
        "theories/test_bayes_optimal_thresholds.py::test_weak_recovery_has_its_closed_form",
    ),
    "overlaps-of-SGD-are-two-percent-too-large": _row("sgd_flow", "theta", times(1.02), FLOW),
    "the-error-of-SGD-is-a-hundredth": _row("sgd_flow", "q_stderr", HUNDREDTH, FLOW),
    "rest-at-a-saddle-is-said-to-be-rest": _row("sgd_flow", "status", said("at_rest", "at_saddle"), FLOW),
    "the-boundary-of-the-basins-is-two-percent-away": _row("basins", "boundary", times(1.02), FLOW),
    "a-saddle-is-said-to-be-a-minimum": _row("stationary", "unstable_directions", times(0), FLOW),
    "the-energy-of-1RSB-is-a-tenth-too-large": _row("one_rsb", "free_entropy", times(1.1), "theories/test_one_rsb.py"),
    "the-error-of-1RSB-is-a-hundredth": _row("one_rsb", "q_1_stderr", HUNDREDTH, "theories/test_one_rsb.py"),
    "the-best-predictor-is-two-percent-better": _row(
        "best_predictor", "error", times(0.98), "problem/test_best_predictors.py"
    ),
    # experiments
    "training-reaches-a-loss-one-percent-too-small": _row(
        "simulate", "training_loss", times(0.99), "experiments/test_sgd.py"
    ),
    "variances-of-GAMP-are-five-percent-too-large": _row(
        "simulate", "V", times(1.05), "experiments/test_bayes_gamp.py"
    ),
    "the-error-of-runs-is-a-hundredth": _row("simulate", "*_stderr", HUNDREDTH, "experiments/test_simulate.py"),
    "deviations-are-counted-a-tenth-too-small": _row(
        "compare",
        "quantities",
        lambda found: tuple(replace(q, measured=tuple(replace(m, z=0.9 * m.z) for m in q.measured)) for q in found),
        COMPARE,
    ),
    "state-evolution-of-GAMP-has-another-V": _row(
        "tracking.iterates",
        "",
        lambda many: (replace(one, V=1.03 * one.V) for one in many),
        "experiments/test_gamp.py::test_state_evolution_tracks_gamp",
    ),
    # equations, files and figures
    "a-check-that-fails-is-said-to-pass": _row(
        "check",
        "checks",
        lambda checks: tuple(replace(one, passed=True) for one in checks),
        "shell/test_check.py::test_one_per_cent_in_an_equation_is_seen",
    ),
    "an-equation-has-the-wrong-sign": _row("derive", "saddle_point", in_equations, "symbolic/test_amp.py"),
    "printed-code-has-the-wrong-sign": _row(
        "derive", "python", lambda text: text.replace("V_hat = -0.5", "V_hat = 0.5"), "symbolic/test_saddle_point.py"
    ),
    "a-variance-of-the-data-is-two-percent-too-large": _row(
        "Spectrum.of", "gamma", times(1.02), "problem/test_spectra.py"
    ),
    "a-moment-of-the-data-is-two-percent-too-large": _row(
        "Spectrum.of", "teacher_means", times(1.02), "problem/test_spectra.py"
    ),
    "softplus-is-two-percent-too-large": _row("functions.softplus", "", times(1.02), "symbolic/test_functions.py"),
    "a-curve-is-drawn-two-percent-too-high": _row("figures.fig2", "", drawn, FIGURES),
    "a-map-is-drawn-two-percent-too-high": _row("figures.fig3", "", drawn, FIGURES),
    "a-loaded-number-is-another-one": _row("load_dataset", "test_error", times(1.001), "shell/test_datasets.py"),
    "a-published-number-is-another-one": _row("reference.read_reference", "", lambda table: table[1:], "published"),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--wrong ID``."""
    parser.addoption("--wrong", choices=WRONG, metavar="ID", help="a wrong number of tests/mutations/wrong_numbers.py")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Put the wrong number in place: after `conftest.py` has set the environment, before tests are imported."""
    name = session.config.getoption("--wrong")
    if name is not None:
        WRONG[name].install()
