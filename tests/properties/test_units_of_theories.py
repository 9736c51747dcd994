"""A change of units by powers of two changes no bit of any theory's numbers, and none of training's.

Losses and the ridge times a, tokens and encodings times c leave the weights: fields are c times, times 1/a times, and
losses and rates a times what they were. Of losses that are an energy of the fields, a is c^2. Every expected number is
that of the problem before the change, times a power of two that follows from this.
"""

from typing import Any

import numpy as np
import pytest
import xarray as xr
from models import of_terms

import attnphase as ap
from attnphase.arrays import Array
from attnphase.experiments.optimizers.kinds import OptimizerName
from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.problem import Problem
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.run import _first_tilt
from attnphase.theories.one_rsb.solving import apart_by
from attnphase.theories.sgd_flow import planes

CLUSTERS = [[0.42, 0.5], [0.61, -0.8]]  # deviations and means
LOGARITHMS = {"free_entropy", "mutual_information", "energy", "complexity"}
OF_FIELDS = [(2.0**-16, 2.0**-8), (2.0**12, 2.0**6)]
UNITS = [(2.0**-21, 2.0**-9), (2.0**14, 2.0**6)]
FEW = SolverSettings(threads=1, max_nodes=2**9)

SMOOTH = "energy*((h - k - noise - unit*sign(k - 0.4*unit)/2)**2/(2*unit**2) + shift)"
KINKED = "energy*(abs(h - k - noise - 0.2*unit)/unit + (h - unit*sign(k - 0.4*unit)/2)**2/(2*unit**2) + shift)"


def of_clusters(expression: str, a: float = 1.0, c: float = 1.0, shift: float = 0.7) -> Problem:
    """Two clusters, labels that jump, with noise, and a constant in the loss; a and c are the units."""
    return Problem.from_dict(
        {
            "tokens": {
                "length": 1,
                "kind": "mixture",
                "clusters": [[{"sigma": c * sigma, "mean": [c * mean]} for sigma, mean in CLUSTERS]],
            },
            "positions": {"kind": "none"},
            "teacher": {"noise": 0.15 * c**2},
            "regularizer": {"strength": 0.13 * a},
            "loss": {
                "kind": "expression",
                "expression": expression,
                "parameters": {"energy": a, "unit": c, "shift": shift},
            },
            "integration": {"rule": "sobol", "nodes": 64},
        }
    )


def attention(c: float = 1.0, **integration: Any) -> Problem:
    """The paper's setting away from its numbers, in units c; the loss's unit then is c^2."""
    gram = [[1.1, -1.1], [-1.1, 1.1]]
    return Problem.from_dict(
        {
            "tokens": {"sigma": 0.49 * c},
            "positions": {"kind": "gram", "gram": (c**2 * np.array(gram)).tolist()},
            "teacher": {"omega": 0.35, "temperature": c**2},
            "student": {"temperature": c**2},
            "regularizer": {"strength": 0.0095 * c**2},
            "integration": {"rule": "gauss-hermite", "nodes": 6, **integration},
        }
    )


def powers(a: float, c: float) -> dict[str, float]:
    """By what the numbers of a dataset are multiplied; those that are not there stay."""
    sizes = {"q": c**2, "q_0": c**2, "q_1": c**2, "V": c**2 / a, "m": c, "theta": c**2}
    sizes |= {"q_hat": (a / c) ** 2, "V_hat": a / c**2, "m_hat": a / c, "theta_hat": a / c**2}
    sizes |= {"positional_size": c, "semantic_size": c**2}
    energies = ("training_loss", "test_error", "test_error_sampled", "linear_test_error", "free_energy_gap")
    energies += ("population_risk", "free_entropy", "energy", "eigenvalue", "growth", "gradient_norm", "tuned")
    times = ("time", "end", "plateau", "y")
    return sizes | dict.fromkeys(energies, a) | dict.fromkeys(times, 1 / a)


def same(found: xr.Dataset, expected: xr.Dataset, a: float, c: float, others: dict[str, float] | None = None) -> None:
    """Refuse datasets of which any number, verdict or message differs by more than its power of two."""
    sizes = powers(a, c) | (others or {})
    assert set(found.variables) == set(expected.variables)
    for name, known in expected.variables.items():
        here, known = found[name].to_numpy(), known.to_numpy()
        stem = str(name).removesuffix("_stderr").removesuffix("_imag")
        if known.dtype.kind == "f" and stem in sizes:
            here = here / sizes[stem]
        if known.dtype.kind == "f":
            here, known = (np.where(np.abs(x) < 1e-290, 0.0, x) for x in (here, known))  # these underflow
        if stem in LOGARITHMS:  # of determinants that have a unit: their difference is that of numbers of order one
            rounding = 1e-13 if stem == name else 1e-6  # of errors, over steps of derivatives
            np.testing.assert_allclose(here, known, rtol=rounding, atol=1e-13, err_msg=str(name))
        else:
            np.testing.assert_array_equal(here, known, err_msg=str(name))


@pytest.mark.parametrize("rate", [0.0, 0.9])
def test_flows_of_clusters_and_jumping_labels(rate: float) -> None:
    """Gradient flow to rest, and SGD whose rate has the unit of time."""

    def followed(a: float, c: float) -> xr.Dataset:
        until = 30.0 if rate else 30 / a
        return ap.sgd_flow(of_clusters(SMOOTH, a, c), "semantic=0.2,noise=0.3", rate / a, until, records=4)

    expected = followed(1.0, 1.0)
    for a, c in UNITS:
        same(followed(a, c), expected, a, c, {"time": 1.0, "end": 1.0, "learning_rate": 1 / a} if rate else {})


@pytest.mark.parametrize("c", [2.0**-9, 2.0**6])
def test_flows_and_stationary_points_of_attention(c: float) -> None:
    """Also W = 0, whose directions grow, and saddles."""

    def followed(c: float) -> xr.Dataset:
        return ap.sgd_flow(attention(c), "semantic=0.3,positional=0.3,noise=0.2", until=900 / c**2, records=4)

    def found(c: float) -> xr.Dataset:
        return ap.stationary(attention(c), starts=12)

    expected = found(1.0)
    assert expected["unstable_directions"].to_numpy().tolist() == [0, 0, 1, 2]
    same(found(c), expected, c**2, c)
    same(followed(c), followed(1.0), c**2, c)


def test_basins_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends, plateaus and the boundary."""
    monkeypatch.setattr(planes, "BISECTIONS", 0)

    def found(c: float) -> xr.Dataset:
        problem = attention(c, nodes=4).with_fields({"regularizer.strength": 0.008 * c**2})
        return ap.basins(problem, omega=0.35, scale=0.5, angle=[30.0, 85.0], until=20_000 / c**2)

    expected, c = found(1.0), 2.0**-7
    assert expected["boundary"].notnull().all()
    same(found(c), expected, c**2, c)


@pytest.mark.parametrize("optimizer", ["lbfgs", "fista", "gamp"])
def test_training_on_clusters_and_jumping_labels(optimizer: OptimizerName) -> None:
    """To the tolerance; the local minima of GAMP have the unit of the fields' squares."""
    pytest.importorskip("torch", reason="experiments need PyTorch")
    units = UNITS if optimizer != "gamp" else OF_FIELDS

    def trained(a: float, c: float) -> xr.Dataset:
        problem = of_clusters(SMOOTH, a, c)
        return ap.simulate(problem, 2.0, "uninformed", [40], 2, optimizer, test_samples=0)

    expected = trained(1.0, 1.0)
    assert (expected["status"] == 0).all()
    for a, c in units:
        same(trained(a, c), expected, a, c)


def test_gradient_descent_whose_rate_is_a_time() -> None:
    pytest.importorskip("torch", reason="experiments need PyTorch")

    def trained(a: float, c: float) -> xr.Dataset:
        settings = {"learning_rate": 0.1 / a, "steps": 300, "tolerance": 1e-3}
        return ap.simulate(of_clusters(SMOOTH, a, c), 2.0, "uninformed", [40], 2, "gd", test_samples=0, **settings)

    expected = trained(1.0, 1.0)
    assert (expected["status"] == 0).all()
    for a, c in UNITS:
        same(trained(a, c), expected, a, c)


def test_adam_in_units() -> None:
    """What it adds to the roots of the gradient's squares has their unit; the rate has that of the weights."""
    pytest.importorskip("torch", reason="experiments need PyTorch")

    def trained(a: float, c: float) -> xr.Dataset:
        settings = {"learning_rate": 0.05, "steps": 100, "tolerance": 1e-9}
        return ap.simulate(of_clusters(SMOOTH, a, c), 2.0, "uninformed", [40], 2, "adam", test_samples=0, **settings)

    expected = trained(1.0, 1.0)
    for a, c in [*UNITS, (2.0**-24, 1.0)]:
        same(trained(a, c), expected, a, c)


@pytest.mark.parametrize("optimizer", ["lbfgs", "fista"])
@pytest.mark.parametrize("small", [2.0**-7, 2.0**-20])
def test_training_on_labels_in_units(optimizer: OptimizerName, small: float) -> None:
    """Labels and a start times s, under a square: the weights and their gradients are s times what they were."""
    pytest.importorskip("torch", reason="experiments need PyTorch")

    def trained(s: float) -> xr.Dataset:
        problem = of_clusters("energy*(h - shift*(k + noise + unit*sign(k - 0.4)/2))**2/2", shift=s)
        start = f"semantic={0.2 * s!r},noise={0.7 * s!r}"
        return ap.simulate(problem, 2.0, start, [40], 2, optimizer, test_samples=0)

    expected, found = trained(1.0), trained(small)
    assert (expected["status"] == 0).all()
    np.testing.assert_array_equal(found["status"], expected["status"])
    np.testing.assert_array_equal(found["steps"], expected["steps"])
    powers_of_labels = {"q": 2, "m": 1, "theta": 1, "weight_norm": 2, "training_loss": 2, "gradient_norm": 1}
    for name, power in powers_of_labels.items():
        np.testing.assert_array_equal(found[name] / small**power, expected[name], err_msg=name)


def test_lasso_of_small_tokens_and_large_losses() -> None:
    """V, of the size of c^2/a, is far below that of the problem's unit; the strength of a lasso has the loss's unit."""

    def solved(a: float, c: float) -> xr.Dataset:
        lasso = {"regularizer": {"kind": "lasso", "strength": 0.13 * a}}
        problem = Problem.from_dict(of_clusters(SMOOTH, a, c).to_dict() | lasso)
        return ap.solve(
            problem, 1.3, settings=SolverSettings(stability=False, identity=False, max_nodes=2**9, threads=1)
        )

    expected, (a, c) = solved(1.0, 1.0), (2.0**9, 2.0**-8)
    found = solved(a, c)
    for name in ("q", "V", "theta", "density", "training_loss"):
        np.testing.assert_allclose(found[name] / powers(a, c).get(name, 1.0), expected[name], rtol=1e-6, err_msg=name)


def test_one_step_replica_symmetry_breaking() -> None:
    """At a given y, which is the inverse of an energy, of a loss with kinks and jumps."""

    def solved(a: float, c: float) -> xr.Dataset:
        few = {"outer": 8, "inner": 8, "settings": SolverSettings(threads=1, max_maps=30)}
        return ap.one_rsb(of_clusters(KINKED, a, c), 1.3, y=[0.7 / a, 0.9 / a], start="informed", **few)

    expected = solved(1.0, 1.0)
    for a, c in OF_FIELDS:
        same(solved(a, c), expected, a, c)


def test_no_constant_in_the_loss_moves_the_first_tilt() -> None:
    """Weights ``exp(-y M)`` do not know it, so that the search for the maximum of F begins at the same y."""

    def first(shift: float) -> float:
        system = System.of(of_clusters(KINKED, shift=shift), threads=1)
        begun = apart_by(initial_overlaps(system.problem, "semantic"), system.spectrum.rho, 0.5)
        return _first_tilt(system, 1.3, begun)

    assert first(40.0) == pytest.approx(first(0.0), rel=1e-9)


def test_trained_parameters_of_small_losses() -> None:
    """A bias far from its minimum, in a logistic loss 2^-40 times as large: every bit is the same."""
    pytest.importorskip("torch", reason="experiments need PyTorch")
    from attnphase.experiments.data import draw_instance
    from attnphase.experiments.risk import Risk
    from attnphase.experiments.starts import initial_weights
    from attnphase.kernels.torch.loss import LocalLoss

    clusters = [{"sigma": 0.9, "mean": [1.1]}, {"sigma": 1.2, "mean": [-0.6]}]

    def trained(a: float) -> Array:
        numbers = {"logistic": a, "a": 0.8, "b": 3.0}
        problem = of_terms(clusters, [0.3, 0.7], 0.4, numbers, trained={"b": "0"})
        instance = draw_instance(problem, 40, 80, 7, (0, 1), LocalLoss(problem))
        return Risk.of(instance).trained(initial_weights(instance, "uninformed"))

    np.testing.assert_array_equal(trained(2.0**-40), trained(1.0))


def test_thresholds_of_attention() -> None:
    def found(c: float) -> xr.Dataset:
        return ap.thresholds(attention(c), alpha=(0.9, 2.0), transitions=True, settings=FEW)

    expected = found(1.0)
    assert expected["alpha_c"].notnull().all()
    for c in (2.0**-8, 2.0**6):
        same(found(c), expected, c**2, c)


def test_tuned_ridges_of_kinked_losses() -> None:
    """A trace goes along the logarithm of the field, whose rounding knows the unit: numbers differ by no more."""

    def found(a: float, c: float) -> xr.Dataset:
        return ap.tune(of_clusters(KINKED, a, c), alpha=1.3, between=(0.02 * a, 2 * a), settings=FEW)

    expected = found(1.0, 1.0)
    a, c = OF_FIELDS[0]
    here, sizes = found(a, c), powers(a, c) | {"optimum": a, "metric": a}
    assert int(here["status"].item()) == int(expected["status"].item()) == 0
    for name in expected.data_vars:
        unit = sizes.get(str(name).removesuffix("_stderr"), 1.0)
        np.testing.assert_allclose(here[name] / unit, expected[name], rtol=1e-6, err_msg=str(name))


def test_the_best_that_can_be_learned() -> None:
    """Of labels that jump and have a constant, in other units."""

    def found(c: float) -> xr.Dataset:
        problem = of_clusters(SMOOTH, 1.0, c)
        channel = f"k + {c / 2!r}*sign(k - {0.4 * c!r}) + {0.7 * c!r}"
        return ap.bayes_optimal(problem, 0.8, channel=channel, settings=SolverSettings(max_nodes=2**8))

    expected = found(1.0)
    for c in (2.0**-8, 2.0**6):
        here = found(c)
        here["free_entropy"] += 0.8 * np.log(c)  # of the density of 0.8 d labels
        same(here, expected, 1.0, c, {"test_error": c**2})  # that of the labels' best predictor
