"""Every public function refuses every wrong argument in one sentence that names it, before any work is begun.

The functions and their parameters are read from the package, so that a new one is tested without a word here: only a
parameter of a new name needs a value in `GOOD`, and what is a right value for it in `RIGHT`.
"""

import importlib
import inspect
import math
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import attnphase as ap
from attnphase.data import build
from attnphase.data.schemas import SCHEMAS
from attnphase.data.variables import HISTOGRAM_VARIABLES
from attnphase.errors import AttnphaseError
from attnphase.fixed_points.settings import SolverSettings
from attnphase.problem.problem import Problem

pytest.importorskip("hypothesis")
pytest.importorskip("torch")  # of experiments

PAPER = Problem.paper(omega=0.2)
NOTHING = object()
WRONG = {
    "None": None,
    "a number": 5,
    "a word": "x",
    "bytes": b"x",
    "an object": NOTHING,
    "NaN": math.nan,
    "an empty list": [],
    "an empty mapping": {},
    "a negative number": -1,
    "a huge number": 10**400,
    "True": True,
}

NUMBERS, WORD, FLAG, MAPPING = "a number", "a word", "True", "an empty mapping"
# right values among the wrong ones, by parameter; None is right wherever it is the default
RIGHT = {
    "alpha": {NUMBERS}, "branch": set(), "steps": {NUMBERS}, "seeds": {NUMBERS}, "dimension": {NUMBERS},
    "seed": {NUMBERS}, "test_samples": {NUMBERS}, "trajectory": {NUMBERS}, "checkpoint_interval": {NUMBERS},
    "max_maps": {NUMBERS}, "max_seconds": {NUMBERS}, "max_nodes": {NUMBERS}, "threads": {NUMBERS}, "workers": {NUMBERS},
    "length": {NUMBERS}, "size": {NUMBERS}, "largest": {NUMBERS}, "counts": {NUMBERS}, "columns": {NUMBERS},
    "exponent": {NUMBERS}, "atoms": {NUMBERS}, "teacher_rank": {NUMBERS}, "variance": {NUMBERS}, "sigma": {NUMBERS},
    "strength": {NUMBERS}, "learning_rate": {NUMBERS}, "limit": {NUMBERS}, "blocks": {NUMBERS}, "block": {NUMBERS},
    "starts": {NUMBERS}, "progress": {FLAG}, "stability": {FLAG}, "identity": {FLAG}, "force": {FLAG}, "resume": {FLAG},
    "experiment": {FLAG}, "experiments": {FLAG}, "y": {NUMBERS},
    "scale": {NUMBERS}, "angle": {NUMBERS}, "noise": {NUMBERS}, "until": {NUMBERS}, "records": {NUMBERS},
    "batch": {NUMBERS},
    "concrete": {FLAG}, "transitions": {FLAG}, "thresholds": {FLAG}, "channel": {WORD},
    "tied": {FLAG}, "causal": {FLAG},
    "checkpoint": {WORD}, "output": {WORD}, "path": {WORD}, "name": {WORD},
    "values": {MAPPING}, "data": {MAPPING}, "fields": {MAPPING}, "at": {MAPPING}, "shapes": {MAPPING},
    # sections of a problem, as tables
    "tokens": {MAPPING}, "positions": {MAPPING}, "teacher": {MAPPING}, "student": {MAPPING}, "loss": {MAPPING},
    "regularizer": {MAPPING}, "integration": {MAPPING}, "metrics": {MAPPING},
}  # fmt: skip
# where the same name means something else
RIGHT_HERE = {
    ("compare", "experiment"): set(), ("derive", "limit"): set(), ("follow", "at"): {NUMBERS},
    ("limits_figure", "limit"): set(), ("gap_figure", "limit"): set(),
    ("read_reference", "name"): set(), ("load_problem", "path"): set(),
    ("published_runs", "problem"): {MAPPING},
    ("load_dataset", "path"): set(), ("Spectrum.isotropic", "positions"): set(), ("Spectrum", "mean"): set(),
    ("Spectrum.power_law", "positions"): set(), ("Spectrum.two_level", "positions"): set(),
    ("Spectrum.from_matrices", "positions"): set(), ("Spectrum.from_matrices", "teacher"): set(),
    ("simulate", "tolerance"): {NUMBERS}, ("plan_sweep", "folder"): {WORD}, ("plan_sweep", "omega"): {FLAG},
    # None stands for what is left out
    ("Problem.paper", "sigma"): {NUMBERS, "None"}, ("Problem.paper", "mixing"): {"None"},
    ("Spectrum.isotropic", "variance"): {NUMBERS, "None"}, ("Spectrum.power_law", "variance"): {NUMBERS, "None"},
    ("Spectrum.power_law", "atoms"): {NUMBERS, "None"},
}  # fmt: skip
# what else a message may call a parameter: the field of the problem, or what it holds
ALSO = {
    "problem": ["problem"], "theory": ["theory"], "experiment": ["experiment"], "ds": ["dataset", "ds"],
    "path": ["path", "x:", "file"], "fields": ["fields"], "teacher_rank": ["teacher.rank"], "data": ["problem"],
    "text": ["text", "TOML"], "row": ["row"], "shapes": ["shape", "unknown key"],
    "values": ["values"], "name": ["name"], "counts": ["counts"],
}  # fmt: skip
# right values, so that only one argument is wrong at a time
GOOD = {
    "problem": PAPER, "alpha": 1.4, "omega": 0.3, "start": None, "row": lambda logits: logits, "name": "own",
    "path": "nowhere.nc", "text": "", "data": {}, "size": 2, "counts": [2, 2], "length": 2, "exponent": 1.2,
    "variances": (0.2, 0.4), "fraction": 0.3, "covariances": [np.eye(3)], "steps": 2, "values": {},
    "settings": SolverSettings(), "blocks": 2, "block": 1, "folder": "nowhere", "field": "tokens.sigma",
    "label": "k[0, 0]", "kind": "linear",
}  # fmt: skip
# sweep has a table of its own
ELSEWHERE = {"sweep"}


def blank(kind, swept):
    """A dataset of a kind with ones in all its variables, which nobody solved."""
    sizes = {
        "token": 2,
        "row": 1,
        "col": 1,
        "teacher": 1,
        "teacher_column": 1,
        "eigenvalue": 3,
        **{name: len(values) for name, values in swept.items()},
    }
    columns = {}
    for variable in (one for one in SCHEMAS[kind] if "step" not in one.dims):
        shape = [sizes[dim] for dim in (*swept, *variable.dims)]
        for name in variable.names:
            columns[name] = (np.zeros if variable.meanings else np.ones)(shape, dtype=variable.dtype)
    return build.assemble(kind, columns, swept, {}, PAPER, ["sobol"], "ones")


@cache
def datasets():
    branches = ["semantic", "positional"]
    histogram = {}
    sizes = {"stage": 2, "entries": 2, "epoch": 3, "sequence": 1, "query": 4, "token": 4, "key": 4}
    for variable in HISTOGRAM_VARIABLES:
        shape = [2, 2, *(sizes.get(dim, 4) for dim in variable.dims)]
        for name in variable.names:
            histogram[name] = np.ones(shape, dtype=variable.dtype)
    return {
        "points": blank("points", {"branch": branches, "omega": [0.2, 0.3], "alpha": [1.0, 1.5]}),
        "experiments": blank(
            "experiments", {"start": branches, "dimension": [50], "alpha": [1.0, 1.5], "seed": [0, 1]}
        ),
        "bayes_optimal": blank("bayes_optimal", {"start": ["uninformed"], "omega": [0.2, 0.3], "alpha": [1.0, 1.5]}),
        "histogram": build.from_histogram(
            histogram, mechanisms=branches, runs=2, symbols=np.zeros((1, 4), dtype=np.int64), rule="none", seed=0
        ),
    }  # fmt: skip


def public():
    """Names and callables: functions, classes, and their methods."""
    found = {}
    for name in ap.__all__:
        item = getattr(ap, name)
        if inspect.isclass(item) and issubclass(item, Exception):
            continue
        if callable(item):
            found[name] = item
    for module in ("testing", "tracking", "figures", "reference"):
        home = importlib.import_module(f"attnphase.{module}")
        found |= {name: getattr(home, name) for name in home.__all__ if callable(getattr(home, name))}
    for cls, instance in ((Problem, PAPER), (ap.Spectrum, ap.Spectrum.of(PAPER))):
        for name, item in vars(cls).items():
            if not name.startswith("_") and (inspect.isfunction(item) or isinstance(item, classmethod)):
                found[f"{cls.__name__}.{name}"] = getattr(instance, name)
    return {name: item for name, item in found.items() if name not in ELSEWHERE}


def parameters(function):
    """Parameters by name; of a class, those of its fields."""
    signature = inspect.signature(function).parameters
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    if is_dataclass(function):
        return {field.name: signature[field.name] for field in fields(function) if field.name in signature}
    return {name: one for name, one in signature.items() if one.kind not in kinds}


def good(name, parameter):
    """A right value of a required parameter."""
    if name.endswith("_figure") or name in (
        "fig2",
        "fig3",
        "fig9",
        "loss_crossing",
        "validate_dataset",
        "save_dataset",
    ):
        kinds = {"theory": "points", "ds": "points", "runs": "experiments", "limit": "bayes_optimal"}
        if name in ("attention_figure", "learning_figure"):
            return datasets()["histogram"]
        if parameter in kinds:
            return datasets()[kinds[parameter]]
    if name == "compare":
        return datasets()["points" if parameter == "theory" else "experiments"]
    if parameter == "dataset":
        return datasets()["points"]
    if name == "Spectrum":
        return getattr(ap.Spectrum.of(PAPER), parameter)
    if parameter == "figure":
        return Figure()
    if name == "iterates" and parameter == "start":
        from attnphase.state_evolution.starts import initial_overlaps

        return initial_overlaps(PAPER, "semantic")
    assert parameter in GOOD, f"give a right value of the new parameter {parameter} in GOOD"
    return GOOD[parameter]


CASES = [(name, parameter) for name, function in public().items() for parameter in parameters(function)]


@pytest.fixture(autouse=True)
def no_work(monkeypatch, tmp_path):
    """Whatever work begins fails."""
    monkeypatch.chdir(tmp_path)

    def begun(*args, **kwargs):
        raise AssertionError("work was begun")

    for module, attribute in (
        ("attnphase.kernels.compiler", "load_kernels"),
        ("attnphase.fixed_points.solver", "_solve_point"),
        ("attnphase.experiments.runs", "draw_instance"),
        ("derivations.replica.chain", "derive_free_entropy"),
        ("tempfile", "mkstemp"),
    ):
        monkeypatch.setattr(importlib.import_module(module), attribute, begun)
    monkeypatch.setattr(Figure, "savefig", begun)
    monkeypatch.setattr(Figure, "subplots", begun)


@pytest.mark.parametrize(("name", "parameter"), CASES, ids=[".".join(case) for case in CASES])
def test_wrong_arguments_are_refused_by_name(name, parameter):
    function = public()[name]
    known = parameters(function)
    needed = {
        other: good(name, other)
        for other, one in known.items()
        if one.default is inspect.Parameter.empty and other != parameter
    }
    right = RIGHT_HERE.get((name, parameter), RIGHT.get(parameter, set()))
    words = [parameter, *ALSO.get(parameter, [])]
    for kind, value in WRONG.items():
        if kind in right or (value is None and known[parameter].default is None):
            continue
        positional = known[parameter].kind is inspect.Parameter.POSITIONAL_ONLY
        with pytest.raises(AttnphaseError) as caught:
            function(value, **needed) if positional else function(**needed, **{parameter: value})
        message = str(caught.value)
        assert any(word in message for word in words), f"{kind}: {message}"
        assert "\n" not in message
        assert message[-1] in ".?", message
        assert len(message) < 400, message


# --- one value where several are meant, and the other way round -------------------------------------------------------


@pytest.fixture
def found(monkeypatch):
    """Thresholds without the work."""
    critical = importlib.import_module("attnphase.sweeps.critical")
    ranges = []

    def at(problem, between, *_):
        ranges.append((problem.teacher.omega, *between))
        return {
            "alpha_c": critical.Threshold(1.0 + problem.teacher.omega, 0.1),
            "alpha_l": critical.Threshold(2.0, 0.2),
        }

    monkeypatch.setattr(critical, "thresholds_of", at)
    return ranges


@pytest.mark.parametrize(
    "omega",
    [0.3, np.float32(0.25), np.array(0.3), xr.DataArray(0.3), [0.3], (0.2, 0.3), np.array([0.2, 0.3]), range(2)],
    ids=repr,
)
def test_one_value_is_a_list_of_one(found, omega):
    ds = ap.thresholds(PAPER, omega=omega)
    wanted = np.atleast_1d(np.asarray(omega, dtype=float))
    assert ds["omega"].to_numpy().tolist() == wanted.tolist()
    assert ds["alpha_c"].to_numpy().tolist() == (1 + wanted).tolist()


def test_a_range_is_a_pair(found):
    pair: Any = np.array([0.5, 2.5])
    ap.thresholds(PAPER, omega=0.3, alpha=pair)
    assert found == [(0.3, 0.5, 2.5)]
    for wrong in [(1, 2, 3), 1.5, (2, 1), (1, 1), "12", (1, math.inf), (0, 1), [[1, 2]], (1, 1e9)]:
        with pytest.raises(ap.errors.ProblemError, match=r"^alpha (must be|has)") as caught:
            ap.thresholds(PAPER, omega=0.3, alpha=wrong)
        assert caught.value.field == "alpha"


@pytest.mark.parametrize("alpha", [[1.2], [1, 2], (1.5,), np.array([1.0, 2.0]), "1", {1: 2}, range(1, 3)], ids=repr)
def test_one_sample_complexity_is_meant(alpha):
    for function in (ap.solve, ap.check):
        with pytest.raises(ap.errors.ProblemError, match=r"^alpha must be one positive number"):
            function(PAPER, alpha)


def test_numbers_of_other_packages_count():
    given: dict[str, Any] = {"tolerance": np.float64(1e-6), "max_maps": np.int16(30), "threads": np.array(2)}
    settings = SolverSettings(**given)
    assert repr(settings) == repr(SolverSettings(tolerance=1e-6, max_maps=30, threads=2))
    assert PAPER.with_fields({"tokens.sigma": np.array([0.3, 0.4])}).tokens.sigma == (0.3, 0.4)
