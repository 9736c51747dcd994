"""A change of units changes no result of any theory, nor of training: powers of two change no bit.

Losses and the penalty times a, tokens and encodings times c leave the weights: fields are c times, times 1/a times,
losses and rates a times what they were. Of losses that are an energy of the fields, a is c^2. Where the loss compares
the student's field with a sign, the weights are 1/c times as large, and losses stay. A student's temperature times T,
with the penalty over T, makes the weights ``sqrt(T)`` times as large and nothing else. Every expected number is that of
the problem before the change, times a power of two that follows from this.

Not public: the first tilt of one-step replica-symmetry breaking, which a search leaves.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import xarray as xr
from models import model

import attnphase as ap
from attnphase.state_evolution.starts import initial_overlaps
from attnphase.state_evolution.system import System
from attnphase.theories.one_rsb.run import _first_tilt
from attnphase.theories.one_rsb.solving import apart_by

ONE_THREAD = ap.SolverSettings(threads=1)
FEW = ap.SolverSettings(threads=1, max_nodes=2**9)
LOGARITHMS = {"free_entropy", "mutual_information", "energy", "complexity"}


def same(
    found: xr.Dataset, expected: xr.Dataset, a: float, c: float, weights: float = 1.0,
    others: dict[str, float] | None = None,
) -> None:  # fmt: skip
    """Refuse datasets of which any number, verdict or message differs by more than its power of two."""
    h = c * weights
    sizes = {"q": h**2, "q_0": h**2, "q_1": h**2, "V": h**2 / a, "m": h, "theta": h * c, "weight_norm": weights**2}
    sizes |= {"q_hat": (a / h) ** 2, "V_hat": a / h**2, "m_hat": a / h, "theta_hat": a / (h * c)}
    sizes |= {"positional_size": h, "semantic_size": h * c}
    energies = ("training_loss", "test_error", "test_error_sampled", "linear_test_error", "free_energy_gap", "tuned")
    energies += ("population_risk", "free_entropy", "energy", "eigenvalue", "growth", "gradient_norm", "optimum")
    sizes |= dict.fromkeys(energies, a) | dict.fromkeys(("time", "end", "plateau", "y"), 1 / a) | (others or {})
    assert set(found.variables) == set(expected.variables)
    for name, known in expected.variables.items():
        here, known = found[name].to_numpy(), known.to_numpy()
        stem = str(name).removesuffix("_stderr").removesuffix("_imag")
        if known.dtype.kind != "f":
            np.testing.assert_array_equal(here, known, err_msg=str(name))
            continue
        here = here / sizes.get(stem, 1.0)
        here, known = (np.where(np.abs(x) < 1e-290, 0.0, x) for x in (here, known))  # these underflow
        if stem in LOGARITHMS:  # of determinants that have a unit: their difference is that of numbers of order one
            rounding = 1e-13 if stem == name else 1e-6  # of errors, over steps of derivatives
            np.testing.assert_allclose(here, known, rtol=rounding, atol=1e-13, err_msg=str(name))
        else:
            np.testing.assert_array_equal(here, known, err_msg=str(name))


COMMON = {
    "tokens.sigma": [0.47, 0.58],
    "teacher.omega": 0.23,
    "regularizer.strength": 0.012,
    "positions.gram": [[1.1, -0.9], [-0.9, 0.95]],
    "integration.rule": "sobol",
    "integration.nodes": 32,
}
THREE = {"tokens.sigma": [0.45, 0.62, 0.53], "positions.gram": [[1.1, -0.4, 0.1], [-0.4, 0.8, -0.2], [0.1, -0.2, 0.9]]}
CLUSTERS = [[{"sigma": 0.42, "mean": [0.5]}, {"sigma": 0.61, "mean": [-0.8]}], [{"sigma": 0.52, "mean": [0.2]}]]
MIXTURE = {"tokens.kind": "mixture", "tokens.sigma": None, "tokens.clusters": CLUSTERS}
ONE = {"tokens.sigma": 0.68, "positions.gram": None}
SOLVED: dict[str, tuple[str, dict[str, Any], float, Any]] = {
    "softmax": ("paper", {}, 2.2, "semantic"),
    "positional": ("paper", {}, 0.9, "positional"),
    "uninformed": ("paper", {}, 1.4, "uninformed"),
    "untied": ("untied", {}, 2.4, "semantic"),
    "rank two": ("rank 2", {}, 3.1, "semantic"),
    "linear": ("linear", {}, 1.6, "semantic"),
    "three tokens": ("three tokens", THREE, 2.6, "semantic"),
    "square": ("square", {**ONE, "teacher.noise": 0.1}, 1.4, "semantic"),
    "logistic": ("logistic", ONE, 1.4, "semantic"),
    "lasso": ("paper", {"regularizer.kind": "lasso", "regularizer.strength": 0.0012}, 1.7, "semantic"),
    "clusters": ("paper", MIXTURE, 1.9, "positional"),
    "gauss-hermite": ("paper", {"integration.rule": "gauss-hermite", "integration.nodes": None}, 2.2, "semantic"),
}


def solved(name: str, c: float, T: float = 1.0) -> tuple[xr.Dataset, float, float]:
    """The point in other units, what losses and what weights are multiplied by."""
    kind, fields, alpha, branch = SOLVED[name]
    problem = model(kind, COMMON | fields)
    labels, attention = kind == "logistic", problem.loss.has_attention
    weights, energy = (1 / c, 1.0) if labels else (float(np.sqrt(T)), c**2)
    changed: dict[str, Any] = {}
    if problem.tokens.clusters is None:
        changed["tokens.sigma"] = (c * np.array(problem.tokens.sigma)).tolist()
    else:
        changed["tokens.clusters"] = [
            [{"sigma": c * one["sigma"], "mean": [c * one["mean"][0]]} for one in row] for row in CLUSTERS
        ]
    if problem.positions.kind != "none":
        changed["positions.gram"] = (c**2 * np.array(problem.positions.gram)).tolist()
    if attention:
        changed["teacher.temperature"], changed["student.temperature"] = c**2, c**2 * T
    elif not labels:
        changed["teacher.noise"] = c**2 * problem.teacher.noise
    power = 1 if name == "lasso" else 2
    changed["regularizer.strength"] = cast("float", problem.regularizer.strength) * energy / weights**power
    return ap.solve(problem.with_fields(changed), alpha, branch, settings=ONE_THREAD), energy, weights


ATTENTION = [name for name in SOLVED if name not in ("square", "logistic", "lasso")]


@pytest.mark.parametrize("name", SOLVED)
def test_powers_of_two_change_no_bit_of_a_point(name):
    """Every value, error, verdict and number of steps; also of a temperature 4^3 times as large."""
    expected, *_ = solved(name, 1.0)
    # a weak penalty 2^20 times as weak would be refused
    changes = [(2.0**-8 if name == "lasso" else 2.0**-10, 1.0), (2.0**7, 1.0)]
    for c, T in changes + ([(0.5, 64.0)] if name in ATTENTION else []):
        found, energy, weights = solved(name, c, T)
        same(found, expected, energy, c, weights)


OF_FIELDS = [(2.0**-16, 2.0**-8), (2.0**12, 2.0**6)]  # of losses that are squares of fields
UNITS = [(2.0**-21, 2.0**-9), (2.0**14, 2.0**6)]


def smooth(a: float, c: float, **numbers: float) -> ap.Problem:
    """Two classes, a square beside a logistic loss, and a constant."""
    clusters = [{"sigma": 0.42 * c, "mean": [0.5 * c]}, {"sigma": 0.61 * c, "mean": [-0.8 * c]}]
    terms = {"square": a / c**2, "shift": 0.3 * c, "apart": 0.8 * c, "logistic": a, "a": 0.7 / c, "b": 0.4, "line": a}
    terms["enters"] = c
    fields = {"tokens.clusters": clusters, "regularizer.strength": 0.13 * a}
    fields |= {"integration.rule": "sobol", "integration.nodes": 16}
    return model("terms", fields | {f"loss.parameters.{name}": value for name, value in (terms | numbers).items()})


def kinked(a: float, c: float, **fields: Any) -> ap.Problem:
    """A quantile loss beside a square and a modulus, with noise."""
    terms = {"quantile": 0.3 * a / c, "square": a / c**2, "modulus": 0.2 * a / c, "shift": 0.4 * c, "scale": 0.8}
    own = {"tokens.sigma": 0.61 * c, "teacher.noise": 0.15 * c**2, "regularizer.strength": 0.13 * a}
    own |= {"integration.rule": "sobol", "integration.nodes": 64}
    return model("kinks", own | {f"loss.parameters.{name}": value for name, value in terms.items()} | fields)


def attention(c: float, **integration: Any) -> ap.Problem:
    """The paper's setting away from its numbers; the loss's unit then is c^2."""
    fields = {"tokens.sigma": 0.49 * c, "positions.gram": [[1.1 * c**2, -1.1 * c**2], [-1.1 * c**2, 1.1 * c**2]]}
    fields |= {"teacher.omega": 0.35, "teacher.temperature": c**2, "student.temperature": c**2}
    rule = {"rule": "gauss-hermite", "nodes": 6} | integration
    fields |= {f"integration.{name}": value for name, value in rule.items()}
    return model("paper", fields | {"regularizer.strength": 0.0095 * c**2})


def trained(optimizer: Any, **settings: Any) -> Callable[[float, float], xr.Dataset]:
    def found(a: float, c: float) -> xr.Dataset:
        rate = {"learning_rate": settings["rate"] / (a if optimizer == "gd" else 1.0)} if "rate" in settings else {}
        rest = {name: value for name, value in settings.items() if name != "rate"}
        ds = ap.simulate(smooth(a, c), 2.0, "uninformed", [40], 2, optimizer, test_samples=0, **rate, **rest)
        assert (ds.status == 0).all() or optimizer == "adam"
        return ds

    return found


def of_one_step(a: float, c: float) -> xr.Dataset:
    few = ap.SolverSettings(threads=1, max_maps=30)
    return ap.one_rsb(kinked(a, c), 1.3, y=[0.7 / a, 0.9 / a], start="informed", outer=8, inner=8, settings=few)


def of_sgd(a: float, c: float) -> xr.Dataset:
    return ap.sgd_flow(smooth(a, c), "semantic=0.2,noise=0.3", 0.9 / a, 9.0, records=3)


def of_flow(a: float, c: float) -> xr.Dataset:
    return ap.sgd_flow(smooth(a, c), "semantic=0.2,noise=0.3", 0.0, 6.0 / a, records=3)


def of_attention(a: float, c: float) -> xr.Dataset:
    return ap.sgd_flow(attention(c), "semantic=0.3,positional=0.3,noise=0.2", until=900 / a, records=4)


def stationary(a: float, c: float) -> xr.Dataset:
    ds = ap.stationary(attention(c), starts=12)
    assert ds.unstable_directions.to_numpy().tolist() == [0, 0, 1, 2]
    return ds


def basins(a: float, c: float) -> xr.Dataset:
    problem = attention(c, nodes=4).with_fields({"regularizer.strength": 0.008 * a})
    ds = ap.basins(problem, omega=0.35, scale=0.5, angle=[30.0, 85.0], until=20_000 / a)
    assert ds.boundary.notnull().all()
    return ds


def thresholds(a: float, c: float) -> xr.Dataset:
    ds = ap.thresholds(attention(c), alpha=(0.9, 2.0), transitions=True, settings=FEW)
    assert ds.alpha_c.notnull().all()
    return ds


def learner(a: float, c: float) -> xr.Dataset:
    channel = f"k + {c / 2!r}*sign(k - {0.4 * c!r}) + {0.7 * c!r}"
    problem = model("square", {"tokens.sigma": 0.6 * c, "teacher.noise": 0.15 * c**2})
    ds = ap.bayes_optimal(problem, 0.8, channel=channel, settings=ap.SolverSettings(max_nodes=2**8))
    ds["free_entropy"] += 0.8 * np.log(c)  # of the density of 0.8 d labels
    return ds


Call = Callable[[float, float], xr.Dataset]
SQUARES = [(2.0**-18, 2.0**-9), (2.0**12, 2.0**6)]
THEORIES: dict[str, tuple[Call, list[tuple[float, float]], Callable[[float, float], dict[str, float]]]] = {
    "gradient flow": (of_flow, UNITS, lambda a, c: {}),
    "one-pass SGD": (of_sgd, UNITS, lambda a, c: {"time": 1.0, "end": 1.0, "learning_rate": 1 / a}),
    "gradient flow of attention": (of_attention, SQUARES[:1], lambda a, c: {}),
    "stationary points": (stationary, SQUARES[:1], lambda a, c: {}),
    "basins": (basins, [(2.0**-14, 2.0**-7)], lambda a, c: {}),
    "thresholds": (thresholds, [(2.0**-16, 2.0**-8)], lambda a, c: {}),
    "one-step replica-symmetry breaking": (of_one_step, OF_FIELDS, lambda a, c: {}),
    "the Bayes-optimal error": (learner, OF_FIELDS, lambda a, c: dict.fromkeys(
        ("V", "test_error"), c**2) | {"q_hat": c**-2, "free_entropy": 1.0, "growth": 1.0}),
    "training by L-BFGS": (trained("lbfgs"), UNITS, lambda a, c: {}),
    "training by FISTA": (trained("fista"), UNITS, lambda a, c: {}),
    "training by message passing": (trained("gamp"), OF_FIELDS, lambda a, c: {}),
    "training by gradient descent": (trained("gd", rate=0.1, steps=300, tolerance=1e-3), UNITS, lambda a, c: {}),
    "training by Adam": (
        trained("adam", rate=0.05, steps=100, tolerance=1e-9), [*UNITS, (2.0**-24, 1.0)], lambda a, c: {}),
}  # fmt: skip


@pytest.mark.parametrize("name", THEORIES)
def test_powers_of_two_change_no_bit_of_any_theory(name, monkeypatch):
    if name.startswith("training"):
        pytest.importorskip("torch", reason="experiments need PyTorch")
    monkeypatch.setattr("attnphase.theories.sgd_flow.planes.BISECTIONS", 0)
    call, units, others = THEORIES[name]
    expected = call(1.0, 1.0)
    for a, c in units:
        same(call(a, c), expected, a, c, others=others(a, c))


def test_trained_parameters_of_small_losses_are_those_of_large_ones():
    """A bias far from its minimum, in a logistic loss 2^-24 times as large: every bit is the same."""
    pytest.importorskip("torch", reason="experiments need PyTorch")

    def found(a: float) -> xr.Dataset:
        numbers = {"loss.parameters.logistic": a, "loss.parameters.a": 0.8, "loss.parameters.b": 3.0}
        problem = model(
            "trained", numbers | {"regularizer.strength": 0.4 * a, "loss.trained": {"b": f"{0.02 * a!r}*b**2"}}
        )
        return ap.simulate(problem, 2.0, "uninformed", [40], 2, "lbfgs", test_samples=0)

    a = 2.0**-24
    same(found(a), found(1.0), a, 1.0)


def test_no_constant_in_the_loss_moves_the_first_tilt():
    """Weights ``exp(-y M)`` do not know it, so that the search for the maximum of F begins at the same y."""

    def first(constant: float) -> float:
        system = System.of(smooth(1.0, 1.0, line=constant), threads=1)
        begun = apart_by(initial_overlaps(system.problem, "semantic"), system.spectrum.rho, 0.5)
        return _first_tilt(system, 1.3, begun)

    assert first(40.0) == pytest.approx(first(0.0), rel=1e-9)
