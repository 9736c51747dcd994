"""What a command does with an option left out is what its function does with the argument left out."""

import importlib
import inspect
from typing import Any

import click
import pytest

import attnphase as ap
from attnphase.cli.commands import main
from attnphase.experiments.settings import TrainingSettings
from attnphase.fixed_points.settings import SolverSettings
from attnphase.theories.sgd_flow.settings import FlowSettings

# what states the defaults of a command: its function, and the settings that it makes of flat arguments or options
STATED: dict[str, list[Any]] = {
    "derive": [ap.derive],
    "check": [ap.check],
    "solve": [ap.solve, SolverSettings],
    "sweep": [ap.sweep, SolverSettings],
    "thresholds": [ap.thresholds],
    "follow": [ap.follow, SolverSettings],
    "solutions": [ap.solutions, SolverSettings],
    "tune": [ap.tune, SolverSettings],
    "sgd-flow": [ap.sgd_flow, FlowSettings],
    "stationary": [ap.stationary, FlowSettings],
    "basins": [ap.basins],
    "one-rsb": [ap.one_rsb],
    "bayes-optimal": [ap.bayes_optimal],
    "simulate": [ap.simulate, TrainingSettings],
    "explore": [ap.explore],
    "histogram train": ["stages.train_histogram", "settings.HistogramSizes"],
    "histogram unfreeze": ["stages.unfreeze_histogram"],
}
# they have no function, or one whose arguments they all need
WITHOUT = {"init", "experiment", "compare", "figure", "phase-diagram", "histogram report"}
# by default the optimiser depends on the problem
OTHERWISE = {("simulate", TrainingSettings, "optimizer")}


def commands(group: Any = main, before: str = "") -> dict[str, click.Command]:
    """All commands by name, those of groups spelt out."""
    found = {}
    for name, command in group.commands.items():
        inner = isinstance(command, click.Group)
        found |= commands(command, f"{before}{name} ") if inner else {f"{before}{name}": command}
    return found


def stated(home: Any) -> dict[str, Any]:
    """The defaults that a function or a dataclass states."""
    if isinstance(home, str):
        pytest.importorskip("torch", reason="the histogram task needs PyTorch")
        module, _, name = home.partition(".")
        home = getattr(importlib.import_module(f"attnphase.experiments.histogram.{module}"), name)
    parameters = inspect.signature(home).parameters
    return {name: one.default for name, one in parameters.items() if one.default is not one.empty}


def optional(name: str) -> dict[str, Any]:
    """The values of a command's options that are left out, by the names that a function would have for them."""
    command = commands()[name]
    values = command.make_context(name, [], resilient_parsing=True).params
    return {
        word: None if values[param.name] == () else values[param.name]
        for param in command.params
        if param.name and not param.required
        for word in [param.opts[-1].removeprefix("--").replace("-", "_")]
    }


def same(one: Any, other: Any) -> bool:
    """Whether two defaults mean the same; one value is a list of one, and 0:0.5:6 is rounded."""
    left, right = (list(value) if isinstance(value, tuple) else [value] for value in (one, other))
    numbers = all(type(value) is float for value in (*left, *right))
    return left == pytest.approx(right, rel=1e-12, abs=0) if numbers else left == right


def test_every_command_states_its_defaults_somewhere():
    assert set(commands()) == {*STATED, *WITHOUT}


@pytest.mark.parametrize("name", STATED)
def test_an_option_left_out_is_an_argument_left_out(name):
    given = optional(name)
    for home in STATED[name]:
        known = stated(home)
        shared = {one for one in given.keys() & known.keys() if (name, home, one) not in OTHERWISE}
        assert shared, home
        assert {one: given[one] for one in shared if not same(given[one], known[one])} == {}, home


@pytest.mark.parametrize("name", [name for name, homes in STATED.items() if len(homes) > 1])
def test_a_function_has_the_defaults_of_the_settings_that_it_makes(name):
    function, settings = map(stated, STATED[name])
    shared = {one for one in function.keys() & settings.keys() if (name, STATED[name][1], one) not in OTHERWISE}
    assert {one: function[one] for one in shared if function[one] != settings[one]} == {}
