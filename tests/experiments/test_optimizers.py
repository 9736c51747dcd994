"""The optimisers' two faces: what is said of them without torch, and the classes that do it."""

import inspect
import subprocess
import sys
from copy import deepcopy

import pytest

pytest.importorskip("torch", reason="experiments need PyTorch")

import torch

from attnphase.experiments.data import draw_instance
from attnphase.experiments.optimizers.classes import CLASSES
from attnphase.experiments.optimizers.kinds import OPTIMIZERS, OptimizerName, suited
from attnphase.experiments.risk import Risk
from attnphase.experiments.settings import TrainingSettings
from attnphase.experiments.starts import initial_weights
from attnphase.kernels.torch.loss import LocalLoss
from attnphase.problem import Problem

PAPER = Problem.paper(omega=0.3)
# of a training set
EMPIRICAL: list[OptimizerName] = [name for name, kind in OPTIMIZERS.items() if not (kind.one_pass or kind.posterior)]
LASSO = PAPER.with_fields({"regularizer.kind": "lasso", "regularizer.strength": 0.02})


def started(name, problem):
    instance = draw_instance(problem, 20, 40, 5, (0, 1), LocalLoss(problem))
    weights = initial_weights(instance, "uninformed")
    damping = None if OPTIMIZERS[name].damping is None else 0.0  # what is damped reaches zero late
    return CLASSES[name].start(instance, Risk.of(instance), weights, TrainingSettings(name, damping=damping))


def test_every_name_has_its_class():
    assert list(CLASSES) == EMPIRICAL


@pytest.mark.parametrize("name", EMPIRICAL)
def test_settings_that_a_kind_has_are_those_that_its_class_takes(name):
    taken = set(inspect.signature(CLASSES[name]).parameters)
    for setting in ("learning_rate", "damping"):
        assert (getattr(OPTIMIZERS[name], setting) is not None) == (setting in taken)


@pytest.mark.parametrize("name", EMPIRICAL)
def test_optimizers_for_kinks_find_exact_zeros(name):
    optimizer = started(name, LASSO)
    for _ in range(3):
        optimizer.step()
    assert bool((optimizer.weights == 0).any()) == (not OPTIMIZERS[name].smooth_only)


@pytest.mark.parametrize("name", EMPIRICAL)
def test_message_passing_has_variances_and_the_others_none(name):
    optimizer = started(name, PAPER)
    optimizer.step()
    passing = OPTIMIZERS[name].message_passing
    assert (optimizer.variances() is not None) == (optimizer.replicon() is not None) == passing


@pytest.mark.parametrize("name", EMPIRICAL)
def test_a_restored_optimizer_makes_the_same_steps(name):
    one, other = started(name, PAPER), started(name, PAPER)
    one.step()
    other.restore(deepcopy(one.state()))
    one.step()
    other.step()
    assert torch.equal(one.weights, other.weights)


def test_only_what_cannot_take_kinks_is_replaced():
    assert {name: suited(name, LASSO) for name in EMPIRICAL} == {
        "gd": "gd", "adam": "adam", "lbfgs": "fista", "fista": "fista", "gamp": "gamp"
    }  # fmt: skip
    assert all(suited(name, PAPER) == name for name in OPTIMIZERS)


def test_kinds_are_read_without_torch_and_without_problems():
    code = "import sys, attnphase.experiments.optimizers.kinds;print({'torch', 'numpy', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
