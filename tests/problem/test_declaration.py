"""A problem as its user writes it: the paper's defaults, what follows from other fields, TOML, and the hash."""

import copy
import pickle
import tomllib
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import attnphase as ap

PAPER = """
tokens = {kind = "gaussian", length = 2, sigma = 0.5}
positions = {kind = "opposite"}
teacher = {score = "softmax", rank = 1, omega = 0.3, mixing = [[0.6, 0.4], [0.4, 0.6]]}
student = {score = "softmax", rank = 1, tied = true}
regularizer = {kind = "ridge", strength = 0.01}
integration = {rule = "auto", standard_error = 1e-3, seed = 0}
"""
TWO: list[Any] = [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]
UNLIKE: list[Any] = [[{"sigma": 0.3}, {"sigma": 0.6, "mean": [0.7, -0.2]}, {}], [{"mean": [0.4, 0.1]}, {"sigma": 0.8}]]
POINTS = [
    {"weight": 0.4, "variances": [0.2, 0.3], "positions": [1.1, -0.7], "teacher": [0.8]},
    {"weight": 0.6, "variances": [0.4, 0.1], "positions": [0.3, 0.9], "teacher": [-1.2]},
]
ATOMS = [{"weight": 0.3, "variances": [0.2, 0.7]}, {"weight": 0.7, "variances": [0.5, 0.0]}]
ONE: dict[str, Any] = {"tokens.length": 1}


def problem(fields: dict[str, Any] | None = None) -> ap.Problem:
    return ap.Problem().with_fields(fields or {})


def mixture(clusters: list[Any] = TWO, **tokens: Any) -> ap.Problem:
    return ap.Problem(tokens={"kind": "mixture", "clusters": clusters, **tokens})


def loss(text: Any, **fields: Any) -> ap.Problem:
    return problem({**ONE, "loss.kind": "expression", "loss.expression": text, **fields})


def test_the_defaults_are_the_papers_and_their_hash_stays():
    """Stored datasets name their problem by this hash."""
    assert ap.Problem.from_toml(PAPER) == ap.Problem.from_toml("") == ap.Problem() == ap.Problem.paper()
    assert ap.Problem.from_toml(PAPER).hash == ap.Problem().hash == "62805d6474c85932"
    other = ap.Problem.paper(0.17, sigma=0.7, strength=0.1, mixing=((0.3, 0.7), (0.8, 0.2)))
    given = {"teacher.omega": 0.17, "teacher.mixing": [[0.3, 0.7], [0.8, 0.2]]}
    assert other == problem({**given, "tokens.sigma": 0.7, "regularizer.strength": 0.1})
    assert ap.Problem().to_dict() == tomllib.loads(ap.Problem().to_toml())
    assert not {"loss", "metrics"} & {*ap.Problem().to_dict()}
    assert not {"noise", "prior", "temperature"} & {*ap.Problem().to_dict()["teacher"]}


FOLLOWS: dict[str, tuple[ap.Problem, dict[str, Any]]] = {
    "four tokens": (
        problem({"tokens.length": 4, "tokens.sigma": [0.4, 0.7, 1.1, 2]}),
        {"mixing_matrix": np.full((4, 4), 0.25), "positions_gram": (4 * np.eye(4) - 1) / 3},
    ),
    "one token": (problem(ONE), {"mixing_matrix": [[1]], "positions_gram": [[0]], "sites": [(0, 0)]}),
    "untied, with values": (
        ap.Problem(student={"rank": 2, "tied": False}, teacher={"rank": 3}, loss={"kind": "values", "width": 2}),
        {"columns": 6, "teacher_columns": 5},
    ),
    "a spectrum": (problem({"tokens.spectrum": ATOMS}), {"token_variances": [0.41, 0.21]}),
    "encodings and a teacher on atoms": (
        problem({"tokens.spectrum": POINTS}),
        {"joint_gram": [[0.538, -0.146, 0.136], [-0.146, 0.682, -0.872], [0.136, -0.872, 1.12]]},
    ),
    "clusters of their own for each token": (
        mixture(UNLIKE, law={"kind": "independent", "weights": [[0.2, 0.3, 0.5], [0.6, 0.4]]}),
        {
            "sites": [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)],
            "site_variances": [0.09, 0.36, 0.25, 0.25, 0.64],
            "token_variances": [0.251, 0.406],
            "site_means": [[0, 0], [0.7, -0.2], [0, 0], [0.4, 0.1], [0, 0]],
        },
    ),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_numbers_that_follow_from_the_fields(name: str):
    made, expected = FOLLOWS[name]
    for attribute, value in expected.items():
        np.testing.assert_allclose(getattr(made, attribute), value, rtol=1e-14, atol=1e-15, err_msg=attribute)


SAME = """tokens.kind = "mixture"; tokens.clusters = [{sigma = 0.5, mean = [1.5]}, {sigma = 0.4, mean = [-1.5]}]
tokens.mean_teacher = [[0.2]]; tokens.law.kind = "same"; tokens.law.probability = %s"""
NET = 'regularizer.kind = "elastic-net"; regularizer.ridge = 0.3; regularizer.strength = 0.2'
LASSO = 'regularizer.kind = "lasso"; regularizer.strength = 0.2'
GRAM = "positions.gram = [[1, -0.5, -0.3], [-0.5, 1, -0.5], [-0.3, -0.5, 1]]"
LAW = 'tokens.spectrum = {kind = "power-law", exponent = %s, atoms = 7}'
# before, in TOML with a semicolon for a new line; changes; after
CHANGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "None restores the default": ("teacher.omega = 0.1", {"teacher.omega": None}, ""),
    "an entry of a table": ("", {"teacher.mixing[0][1]": 0.45}, "teacher.mixing = [[0.6, 0.45], [0.4, 0.6]]"),
    "a product, on both sides": ("tokens.length = 3", {"positions.gram[0][2]": -0.3}, f"tokens.length = 3; {GRAM}"),
    "a number of a law": (SAME % 0.8, {"tokens.law.probability": 0.3}, SAME % 0.3),
    "a number of a spectrum": (LAW % 0.5, {"tokens.spectrum.exponent": 1.5}, LAW % 1.5),
    "a sigma displaces a spectrum": (LAW % 0.5, {"tokens.sigma": 0.5}, ""),
    "a kind of tokens displaces its keys": (SAME % 0.8, {"tokens.kind": "gaussian"}, ""),
    "a kind of regulariser displaces its keys": (NET, {"regularizer.kind": "lasso"}, LASSO),
    "a kind of loss displaces its keys": ('loss.kind = "values"; loss.width = 3', {"loss.kind": "attention"}, ""),
    "a metric is removed": ('metrics.x = "h0_0"', {"metrics.x": None}, ""),
}


def in_toml(text: str) -> ap.Problem:
    return ap.Problem.from_toml(text.replace("; ", "\n"))


@pytest.mark.parametrize("name", CHANGES)
def test_changed_fields_make_the_problem_that_is_written_so(name: str):
    before, fields, after = CHANGES[name]
    changed = in_toml(before).with_fields(fields)
    assert changed == in_toml(after)
    assert changed.hash == in_toml(after).hash


def test_a_later_change_does_not_enter_the_tables_of_the_caller():
    table = {"tau": 0.7}
    formula = {"tokens.length": 1, "loss.kind": "expression", "loss.expression": "tau*(h - k)**2"}
    changed = problem(formula | {"loss.parameters": table, "loss.parameters.tau": 0.4})
    assert (dict(changed.loss.parameters or {}), table) == ({"tau": 0.4}, {"tau": 0.7})


CHAIN = {"kind": "markov", "weights": [0.3, 0.7], "transition": [[0.9, 0.1], [0.4, 0.6]]}
THREE = {"prior": "atoms", "prior_values": [-1.0, 0.2, 1.5], "prior_probabilities": [0.2, 0.5, 0.3]}
# the probability that changes, its new value, and all of them
PROBABILITIES: dict[str, tuple[ap.Problem, float, list[float]]] = {
    "tokens.law.weights[1]": (mixture([*TWO, {}], law={"weights": [0.2, 0.5, 0.3]}), 0.75, [0.1, 0.75, 0.15]),
    "tokens.law.weights[0]": (mixture([*TWO, {}]), 0.5, [0.5, 0.25, 0.25]),
    "tokens.law.weights[3]": (mixture(length=4, law={"kind": "single-location"}), 0.4, [0.2, 0.2, 0.2, 0.4]),
    "tokens.law.transition[1][0]": (mixture(law=CHAIN), 0.55, [0.55, 0.45]),
    "tokens.law.weights[1][0]": (mixture(law={"weights": [[0.3, 0.7], [0.2, 0.8]]}), 0.35, [0.35, 0.65]),
    "teacher.prior_probabilities[2]": (ap.Problem(teacher=THREE), 0.65, [0.1, 0.25, 0.65]),
}


@pytest.mark.parametrize("field", PROBABILITIES)
def test_other_probabilities_keep_their_ratios(field: str):
    before, value, expected = PROBABILITIES[field]
    found: Any = before.with_fields({field: value}).to_dict()
    for key in field.replace("]", "").replace("[", ".").split(".")[:-1]:
        found = found[int(key)] if key.isdigit() else found[key]
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def squared(h: Any, k: Any, scale: float = 2.0) -> Any:
    return scale * (h[0, 0] - k[0, 0]) ** 2


SUMS = "sum(sum((h - k)**2, axis=1), axis=-1)"
LOCATION = {"kind": "single-location", "probability": 0.7}
ALIKE: dict[str, Callable[[], tuple[ap.Problem, ap.Problem]]] = {
    "the sign of zero": lambda: (problem({"teacher.omega": -0.0}), problem({"teacher.omega": 0.0})),
    "the order of terms": lambda: (loss("log(2 + h**2) + k*h"), loss("h*k + log(h*h + 2)")),
    "a number of a loss as a default": lambda: (
        loss(squared),
        loss("scale*(h - k)**2", **{"loss.parameters": {"scale": 2.0}}),
    ),
    "a number of a metric as a default": lambda: (
        ap.Problem(metrics={"x": lambda h, scale=2.5: scale * h[0, 0] ** 2, "a": "k1_0"}),
        ap.Problem(metrics={"a": "k1_0", "x": "2.5*h0_0**2"}),
    ),
    "sums along an axis": lambda: (
        loss(SUMS, **{"tokens.length": 2}),
        loss("(h0_0 - k0_0)**2 + (h1_0 - k1_0)**2", **{"tokens.length": 2}),
    ),
    "equal weights left out": lambda: (mixture(law={"weights": [0.5, 0.5]}), mixture()),
    "equal locations left out": lambda: (
        mixture(length=3, law=LOCATION | {"weights": [1 / 3] * 3}),
        mixture(length=3, law=LOCATION),
    ),
    "a Gaussian teacher without noise": lambda: (
        problem({"teacher.prior": "gaussian", "teacher.noise": 0.0}),
        problem(),
    ),
}
UNLIKE_HASHES: dict[str, Callable[[], tuple[ap.Problem, ap.Problem]]] = {
    "the last digit": lambda: (ap.Problem.paper(omega=0.30000000000000004), problem()),
    "a metric": lambda: (ap.Problem(metrics={"x": "h0_0"}), problem()),
    "a term with a factor of minus one": lambda: (loss("tanh(h - k)**2"), loss("tanh(h)**2 + 0*k")),
    "clusters of the second token": lambda: (mixture([TWO, TWO[::-1]]), mixture()),
    "unequal weights": lambda: (mixture(law={"weights": [0.4, 0.6]}), mixture()),
    "unequal weights of a law": lambda: (
        mixture(law={"kind": "same", "probability": 0.8, "weights": [0.4, 0.6]}),
        mixture(law={"kind": "same", "probability": 0.8, "weights": [0.5, 0.5]}),
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_problems_that_are_one_model_have_one_hash(name: str):
    one, other = ALIKE[name]()
    assert one.hash == other.hash


@pytest.mark.parametrize("name", UNLIKE_HASHES)
def test_problems_that_differ_have_two_hashes(name: str):
    one, other = UNLIKE_HASHES[name]()
    assert one != other
    assert one.hash != other.hash


def every_problem() -> list[ap.Problem]:
    made = (*(row[0] for row in FOLLOWS.values()), *(make()[0] for make in ALIKE.values()))
    return [*made, *(in_toml(row[2]) for row in CHANGES.values())]


def read_only(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: read_only(one) for key, one in value.items()})
    return tuple(map(read_only, value)) if isinstance(value, list) else value


def test_every_problem_comes_back_from_toml_mappings_and_copies(tmp_path: Any):
    for one in every_problem():
        again = ap.Problem.from_toml(one.to_toml())
        assert again == one == ap.Problem(**read_only(one.to_dict())) == ap.Problem.from_dict(one.to_dict())
        assert (again.hash, again.to_toml()) == (one.hash, one.to_toml())
        assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    path = tmp_path / "problem.toml"
    path.write_bytes(b"\xef\xbb\xbf[teacher]\nomega = 0.2 # with a byte-order mark\n")
    assert ap.load_problem(path) == ap.load_problem(str(path)) == ap.Problem.paper(omega=0.2)


# --- functions and formulas -------------------------------------------------------------------------------------------


def halved(logits: list[Any]) -> list[Any]:
    return [z / 2 for z in logits]


def test_scores_are_formulas_functions_and_names_of_modules():
    made = [problem({"student.score": one}) for one in ("z/2", halved, f"{__name__}:halved")]
    assert made[0].hash == made[1].hash
    assert made[2].imports == {"student.score": f"{__name__}:halved"}
