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
            names = [name for name in map(str, result.variables) if fnmatch(name, self.part)]
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


def said(word: str, of: str) -> Change:
    """A flag that has another word."""

    def change(flag: xr.DataArray) -> xr.DataArray:
        words = flag.attrs["flag_meanings"].split()
        values = flag.to_numpy()
        return flag.copy(data=np.where(values == words.index(of), words.index(word), values).astype(values.dtype))

    return change


def higher(figure: Any) -> Any:
    """The first curve of a figure is drawn 2 % too high."""
    curve = figure.axes[0].get_lines()[0]
    curve.set_ydata(1.02 * np.asarray(curve.get_ydata(), dtype=float))
    return figure


def equations_with_a_wrong_sign(saddle_point: Any) -> Any:
    """The right-hand side of the first overlap, q, has the other sign."""
    first, *others = saddle_point.overlaps
    return replace(saddle_point, overlaps=(replace(first, right_hand_side=-first.right_hand_side), *others))


def smaller_deviations(quantities: Any) -> Any:
    """Deviations are a tenth too small."""
    return tuple(replace(q, measured=tuple(replace(one, z=0.9 * one.z) for one in q.measured)) for q in quantities)


def _row(function: str, part: str, change: Change, *tests: str) -> Wrong:
    return Wrong(function, part, change, tuple(f"tests/{test}" for test in tests))


EDGES = "at the edge of the range, at the edge of the range"
ONE_TOKEN = "laws/test_one_token.py"
THRESHOLDS = "branches/test_thresholds.py::test_thresholds_by_lines_are_those_of_many_nodes_of_other_kinds"
CURVES = "branches/test_curves.py"
OPTIMA = "branches/test_sensitivity_and_optima.py"
BAYES = "theories/test_bayes_optimal_points.py"
FLOW = "theories/test_sgd_flow.py"

WRONG: dict[str, Wrong] = {
    # points
    "q-is-two-percent-too-large": _row("solve", "q", times(1.02), ONE_TOKEN),
    "the-error-of-q-is-a-hundredth": _row(
        "solve", "q_stderr", times(0.01),
        "integration/test_stated_errors.py::test_seeds_scatter_as_their_errors_say_about_what_lines_give",
    ),
    "m-is-two-percent-too-small": _row(
        "solve", "m", times(0.98),
        "published/test_published.py::test_published_rule_reproduces_the_published_curve",
    ),
    "V-is-two-percent-too-large": _row("solve", "V", times(1.02), "theories/test_limits_of_large_regression.py"),
    "the-test-error-is-two-percent-too-large": _row("solve", "test_error", times(1.02), ONE_TOKEN),
    "the-training-loss-is-one-percent-too-small": _row("solve", "training_loss", times(0.99), ONE_TOKEN),
    "a-metric-is-three-percent-too-large": _row(
        "solve", "metric_*", times(1.03), "problem/test_metrics.py::test_metrics_are_means_over_drawn_fields"
    ),
    "the-replicon-is-five-percent-too-large": _row(
        "solve", "replicon", times(1.05),
        "branches/test_stability.py::test_the_replicon_of_the_paper_is_that_of_an_independent_estimate",
    ),
    "the-gap-of-two-copies-is-a-third": _row(
        "solve", "overlap_gap", times(0.3),
        "branches/test_stability.py::test_a_gap_is_its_own_image_from_wherever_it_is_sought",
    ),
    "what-ran-out-of-maps-is-said-to-have-converged": _row(
        "solve", "status", said("converged", "iteration_limit"),
        "branches/test_budgets.py::test_a_solve_without_time_returns_a_point_of_its_first_map",
    ),
    "what-has-merged-is-said-to-be-on-its-branch": _row(
        "solve", "on_branch", said("on_branch", "merged_with_uninformed"),
        "branches/test_on_branch.py::test_a_branch_is_there_from_its_onset_or_fold_on",
    ),
    "violated-identities-are-said-to-hold": _row(
        "solve", "identities", said("hold", "violated"),
        "branches/test_exact_identities.py::test_a_rule_beside_the_labels_jump_is_caught",
    ),
    "a-sweep-has-a-test-error-that-is-three-percent-too-large": _row(
        "sweep", "test_error", times(1.03),
        "published/test_published.py::test_gradient_descent_agrees_with_the_theory",
    ),
    "a-solution-is-left-out": _row(
        "solutions", "", lambda ds: ds.isel(solution=slice(1, None)),
        f"{CURVES}::test_both_sides_of_a_fold_are_solutions",
    ),
    # thresholds, curves, derivatives, optima
    "the-crossing-of-losses-is-two-percent-too-late": _row("thresholds", "alpha_c", times(1.02), THRESHOLDS),
    "the-error-of-a-threshold-is-a-hundredth": _row(
        "thresholds", "alpha_l_stderr", times(0.01),
        "branches/test_thresholds.py::test_errors_of_thresholds_are_their_scatter_over_seeds",
    ),
    "a-fold-is-two-percent-away": _row(
        "follow", "field_value", times(1.02),
        f"{CURVES}::test_a_curve_by_lines_turns_back_where_the_map_has_the_eigenvalue_one",
    ),
    "a-curve-is-said-to-end-at-the-edge-of-its-range": _row(
        "follow", "", lambda ds: ds.assign_attrs(ends=EDGES), f"{CURVES}::test_a_curve_ends_where_the_weights_vanish"
    ),
    "a-derivative-is-two-percent-too-large": _row(
        "sensitivity", "d_q", times(1.02), f"{OPTIMA}::test_errors_of_derivatives_hold_for_ridge_regression"
    ),
    "an-optimum-is-two-percent-too-large": _row(
        "tune", "optimum", times(1.02), f"{OPTIMA}::test_the_best_ridge_is_the_noise"
    ),
    # other theories
    "the-Bayes-optimal-overlap-is-two-percent-too-large": _row(
        "bayes_optimal", "overlap", times(1.02),
        f"{BAYES}::test_overlap_of_the_paper_teacher_is_that_of_gauss_rules_and_of_the_table",
    ),
    "the-Bayes-optimal-error-is-two-percent-too-large": _row(
        "bayes_optimal", "test_error", times(1.02),
        f"{BAYES}::test_generalisation_error_of_the_perceptron_is_the_published_one",
    ),
    "the-free-entropy-is-one-percent-too-large": _row(
        "bayes_optimal", "free_entropy", times(1.01),
        f"{BAYES}::test_free_entropy_of_a_sign_is_that_of_its_evidence_by_quadrature",
    ),
    "the-algorithmic-threshold-is-one-percent-too-early": _row(
        "bayes_optimal", "algorithmic", times(0.99),
        "theories/test_bayes_optimal_thresholds.py::test_thresholds_with_noise_are_those_of_the_potential",
    ),
    "theta-of-SGD-is-two-percent-too-large": _row(
        "sgd_flow", "theta", times(1.02), f"{FLOW}::test_linear_regression_with_two_variances_has_its_closed_form"
    ),
    "the-error-of-SGD-is-a-hundredth": _row(
        "sgd_flow", "q_stderr", times(0.01),
        f"{FLOW}::test_stated_errors_of_sampled_flows_are_their_scatter_about_a_tensor_rule",
    ),
    "rest-at-a-saddle-is-said-to-be-rest": _row(
        "sgd_flow", "status", said("at_rest", "at_saddle"), f"{FLOW}::test_rest_at_a_saddle_is_told_from_rest"
    ),
    "the-boundary-of-the-basins-is-two-percent-away": _row(
        "basins", "boundary", times(1.02), f"{FLOW}::test_error_of_the_boundary_holds_what_the_rule_changes"
    ),
    "a-saddle-is-said-to-be-a-minimum": _row(
        "stationary", "unstable_directions", times(0),
        f"{FLOW}::test_stationary_points_of_the_paper_are_two_minima_a_saddle_and_zero",
    ),
    "the-error-of-1RSB-is-a-hundredth": _row(
        "one_rsb", "q_1_stderr", times(0.01), "theories/test_one_rsb.py::test_stated_errors_are_the_scatter_over_seeds"
    ),
    "the-best-predictor-is-two-percent-better": _row(
        "best_predictor", "error", times(0.98), "problem/test_best_predictors.py::test_tokens_with_a_spike"
    ),
    # experiments
    "training-ends-at-a-loss-that-is-one-percent-too-small": _row(
        "simulate", "training_loss", times(0.99),
        "experiments/test_sgd.py::test_runs_make_steps_of_batches_and_report_the_risk_of_fresh_samples",
    ),
    "the-error-of-runs-is-a-hundredth": _row(
        "simulate", "*_stderr", times(0.01),
        "experiments/test_simulate.py::test_the_result_is_a_dataset_of_the_schema_whose_runs_depend_on_their_seed_alone",
    ),
    "deviations-are-a-tenth-too-small": _row(
        "compare", "quantities", smaller_deviations,
        "experiments/test_compare.py::test_differences_standard_errors_and_fits_are_those_written",
    ),
    "a-check-that-fails-is-said-to-pass": _row(
        "check", "checks", lambda checks: tuple(replace(one, passed=True) for one in checks),
        "shell/test_check.py::test_one_per_cent_in_a_term_or_an_observable_is_seen",
    ),
    # equations, data, files and figures
    "an-equation-has-the-wrong-sign": _row(
        "derive", "saddle_point", equations_with_a_wrong_sign, "symbolic/test_amp.py"
    ),
    "variances-of-the-data-are-two-percent-too-large": _row(
        "Spectrum.of", "gamma", times(1.02), "problem/test_spectra.py"
    ),
    "softplus-is-two-percent-too-large": _row(
        "functions.softplus", "", times(1.02), "symbolic/test_functions.py::test_each_function_is_that_of_formulas"
    ),
    "a-loaded-number-is-another-one": _row(
        "load_dataset", "test_error", times(1.001), "shell/test_datasets.py::test_a_file_loses_nothing"
    ),
    "a-curve-is-drawn-two-percent-too-high": _row(
        "figures.fig2", "", higher, "shell/test_figures.py::test_curves_have_the_numbers_at_what_is_selected"
    ),
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--wrong ID``."""
    parser.addoption("--wrong", choices=WRONG, metavar="ID", help="a wrong number of tests/mutations/wrong_numbers.py")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Put the wrong number in place: after `conftest.py` has set the environment, before tests are imported."""
    name = session.config.getoption("--wrong")
    if name is not None:
        WRONG[name].install()
