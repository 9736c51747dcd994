"""The commented problem file to begin with, and what a command does with an option left out."""

import inspect

import pytest
from command import main, run

import attnphase as ap

CASES = {
    "": {},
    "--mixture": {"tokens.kind": "mixture"},
    "--untied": {"student.tied": False},
    "--rank 2": {"student.rank": 2},
    "--values 4 --length 3": {"loss.kind": "values", "loss.width": 4, "tokens.length": 3},
    "--loss square": {"loss.kind": "square", "tokens.length": 1},
    "--loss logistic --regularizer lasso": {"loss.kind": "logistic", "regularizer.kind": "lasso"},
    "--loss hinge --spectrum power-law": {"loss.kind": "hinge", "tokens.spectrum.kind": "power-law"},
    "--regularizer expression --rank 2": {"regularizer.kind": "expression", "student.rank": 2},
    "--spectrum two-level --length 4": {"tokens.spectrum.kind": "two-level", "tokens.length": 4},
    "--mixture --spectrum atoms": {"tokens.kind": "mixture"},
    "--set teacher.omega=0.2": {"teacher.omega": 0.2},
}


@pytest.mark.parametrize("options", CASES)
def test_a_written_file_is_what_was_asked_for(options):
    text = run("init", *options.split()).stdout
    problem = ap.Problem.from_toml(text)
    plain = problem.to_dict()
    for name, value in CASES[options].items():
        *path, key = name.split(".")
        table = plain
        for step in path:
            table = table[step]
        assert table[key] == value


# commands, and the functions whose defaults they have; the others have none, or one whose arguments they all need
FUNCTIONS = {
    **{name: [getattr(ap, name)] for name in ("derive", "check", "thresholds", "tune", "basins", "explore")},
    **{name: [getattr(ap, name), ap.SolverSettings] for name in ("solve", "sweep", "follow", "solutions")},
    **{name: [getattr(ap, name.replace("-", "_"))] for name in ("sgd-flow", "stationary", "one-rsb", "bayes-optimal")},
    "simulate": [ap.simulate],
}
# what a command does otherwise, or has no option for
APART = {("simulate", "optimizer"), ("solve", "threads"), ("sweep", "settings")}
NO_OPTION = {"problem", "settings", "progress", "threads", "on_check", "on_step", "checkpoint_interval"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_option_left_out_is_an_argument_left_out_and_every_argument_has_an_option(name):
    command = main.commands[name]
    values = command.make_context(name, [], resilient_parsing=True).params
    given = {
        param.opts[-1].removeprefix("--").replace("-", "_"): None if values[param.name] == () else values[param.name]
        for param in command.params
        if not param.required
    }
    stated = {}
    for function in FUNCTIONS[name]:
        parameters = inspect.signature(function).parameters.values()
        stated |= {one.name: one.default for one in parameters if one.default is not one.empty}
    options = {word.removeprefix("--").replace("-", "_") for param in command.params for word in param.opts}
    lacking = {one for one in stated if one not in options} - NO_OPTION
    assert lacking <= {"fields"}  # which --vary stands for
    for one in given.keys() & stated.keys() - {word for at, word in APART if at == name}:
        left, right = (list(value) if isinstance(value, tuple) else [value] for value in (given[one], stated[one]))
        assert left == (pytest.approx(right, rel=1e-12) if type(right[0]) is float else right), one
