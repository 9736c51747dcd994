"""Wrong numbers that a theorist would believe, and the tests that must fail for each: a plugin of pytest.

With ``--wrong ID`` the result of one public function is changed before anybody sees it. The table names behaviour, not
lines of source, so that it stays valid when code moves.
"""

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
    test : str
        What must fail: a file below ``tests``, or a test of one.
    """

    function: str
    part: str
    change: Change
    test: str

    @property
    def name(self) -> str:
        """What is wrong: the function and the part."""
        return f"{self.function}.{self.part}".rstrip(".")

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


EDGES = "at the edge of the range, at the edge of the range"
ONE_TOKEN = "laws/test_one_token.py"
CURVES = "branches/test_curves.py"
OPTIMA = "branches/test_sensitivity_and_optima.py"
BAYES = "theories/test_bayes_optimal_points.py"
FLOW = "theories/test_sgd_flow.py"
RUNS = "experiments/test_simulate.py"

WRONG: dict[str, Wrong] = {
    one.name: one
    for one in (
        # points
        Wrong("solve", "q", times(1.02), ONE_TOKEN),
        Wrong("solve", "q_stderr", times(0.01),
              "integration/test_stated_errors.py::test_seeds_scatter_as_their_errors_say_about_what_lines_give"),
        Wrong("solve", "m", times(0.98),
              "published/test_published.py::test_published_rule_reproduces_the_published_curve"),
        Wrong("solve", "V", times(1.02), "theories/test_limits_of_large_regression.py"),
        Wrong("solve", "test_error", times(1.02), ONE_TOKEN),
        Wrong("solve", "training_loss", times(0.99), ONE_TOKEN),
        Wrong("solve", "metric_*", times(1.03), "problem/test_metrics.py::test_metrics_are_means_over_drawn_fields"),
        Wrong("solve", "replicon", times(1.05),
              "branches/test_stability.py::test_the_replicon_of_the_paper_is_that_of_an_independent_estimate"),
        Wrong("solve", "overlap_gap", times(0.3),
              "branches/test_stability.py::test_a_gap_is_its_own_image_from_wherever_it_is_sought"),
        Wrong("solve", "status", said("converged", "iteration_limit"),
              "branches/test_budgets.py::test_a_solve_without_time_returns_a_point_of_its_first_map"),
        Wrong("solve", "on_branch", said("on_branch", "merged_with_uninformed"),
              "branches/test_on_branch.py::test_a_branch_is_there_from_its_onset_or_fold_on"),
        Wrong("solve", "identities", said("hold", "violated"),
              "branches/test_exact_identities.py::test_a_rule_beside_the_labels_jump_is_caught"),
        Wrong("sweep", "test_error", times(1.03),
              "published/test_published.py::test_gradient_descent_agrees_with_the_theory"),
        Wrong("solutions", "", lambda ds: ds.isel(solution=slice(1, None)),
              f"{CURVES}::test_both_sides_of_a_fold_are_solutions"),
        # thresholds, curves, derivatives, optima
        Wrong("thresholds", "alpha_c", times(1.02), "published/test_published.py::test_thresholds"),
        Wrong("thresholds", "alpha_l_stderr", times(0.01),
              "branches/test_thresholds.py::test_errors_of_thresholds_are_their_scatter_over_seeds"),
        Wrong("follow", "field_value", times(1.02),
              f"{CURVES}::test_points_by_lines_are_those_of_solves_by_other_nodes"),
        Wrong("follow", "", lambda ds: ds.assign_attrs(ends=EDGES),
              f"{CURVES}::test_a_curve_ends_where_the_weights_vanish"),
        Wrong("sensitivity", "d_q", times(1.02), f"{OPTIMA}::test_errors_of_derivatives_hold_for_ridge_regression"),
        Wrong("tune", "optimum", times(1.02), f"{OPTIMA}::test_the_best_ridge_is_the_noise"),
        # other theories
        Wrong("bayes_optimal", "overlap", times(1.02),
              f"{BAYES}::test_overlap_of_the_paper_teacher_is_that_of_gauss_rules_and_of_the_table"),
        Wrong("bayes_optimal", "test_error", times(1.02),
              f"{BAYES}::test_generalisation_error_of_the_perceptron_is_the_published_one"),
        Wrong("bayes_optimal", "free_entropy", times(1.01),
              f"{BAYES}::test_free_entropy_of_a_sign_is_that_of_its_evidence_by_quadrature"),
        Wrong("bayes_optimal", "algorithmic", times(0.99),
              "theories/test_bayes_optimal_thresholds.py::test_thresholds_with_noise_are_those_of_the_potential"),
        Wrong("sgd_flow", "theta", times(1.02),
              f"{FLOW}::test_linear_regression_with_two_variances_has_its_closed_form"),
        Wrong("sgd_flow", "q_stderr", times(0.01),
              f"{FLOW}::test_stated_errors_of_sampled_flows_are_their_scatter_about_a_tensor_rule"),
        Wrong("sgd_flow", "status", said("at_rest", "at_saddle"), f"{FLOW}::test_rest_at_a_saddle_is_told_from_rest"),
        Wrong("basins", "boundary", times(1.02), f"{FLOW}::test_error_of_the_boundary_holds_what_the_rule_changes"),
        Wrong("stationary", "unstable_directions", times(0),
              f"{FLOW}::test_stationary_points_of_the_paper_are_two_minima_a_saddle_and_zero"),
        Wrong("one_rsb", "q_1_stderr", times(0.01),
              "theories/test_one_rsb.py::test_stated_errors_are_the_scatter_over_seeds"),
        Wrong("best_predictor", "error", times(0.98), "problem/test_best_predictors.py::test_tokens_with_a_spike"),
        # experiments
        Wrong("simulate", "training_loss", times(0.99),
              "experiments/test_sgd.py::test_runs_make_steps_of_batches_and_report_the_risk_of_fresh_samples"),
        Wrong("simulate", "*_stderr", times(0.01),
              f"{RUNS}::test_the_result_is_a_dataset_of_the_schema_whose_runs_depend_on_their_seed_alone"),
        Wrong("compare", "quantities", smaller_deviations,
              "experiments/test_compare.py::test_differences_standard_errors_and_fits_are_those_written"),
        Wrong("check", "checks", lambda checks: tuple(replace(one, passed=True) for one in checks),
              "shell/test_check.py::test_one_per_cent_in_a_term_or_an_observable_is_seen"),
        # equations, data, files and figures
        Wrong("derive", "saddle_point", equations_with_a_wrong_sign, "symbolic/test_amp.py"),
        Wrong("Spectrum.of", "gamma", times(1.02), "problem/test_spectra.py"),
        Wrong("functions.softplus", "", times(1.02),
              "symbolic/test_functions.py::test_each_function_is_that_of_formulas"),
        Wrong("load_dataset", "test_error", times(1.001), "shell/test_datasets.py::test_a_file_loses_nothing"),
        Wrong("figures.fig2", "", higher, "shell/test_figures.py::test_curves_have_the_numbers_at_what_is_selected"),
    )
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--wrong ID``."""
    parser.addoption("--wrong", choices=WRONG, metavar="ID", help="a wrong number of tests/mutations/wrong_numbers.py")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Put the wrong number in place: after `conftest.py` has set the environment, before tests are imported."""
    name = session.config.getoption("--wrong")
    if name is not None:
        WRONG[name].install()
