"""Names of numbers within fields: in lists, in tables, in the clusters of a mixture."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import Solver

import attnphase as ap
from attnphase.data.files import load_dataset
from attnphase.errors import ProblemError
from attnphase.problem.entries import entry_of, get, put, value_of
from attnphase.problem.problem import Problem

NUMBERS = st.floats(0.11, 0.93)


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Tables of a mixture: clusters of all tokens or of each, means in several directions, a law of its own."""
    length, directions, count = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(2, 3))

    def clusters() -> list[dict[str, Any]]:
        return [{"sigma": draw(NUMBERS), "mean": [draw(NUMBERS) for _ in range(directions)]} for _ in range(count)]

    each = draw(st.booleans())
    found = [clusters() for _ in range(length)] if each else clusters()
    tokens = {"kind": "mixture", "length": length, "clusters": found}
    tokens["mean_teacher"] = [[draw(NUMBERS) / 10 for _ in range(directions)]]
    return {"tokens": tokens, "positions": {"kind": "none"}}


def places(value: Any, name: str) -> list[str]:
    """The names of all numbers within a value."""
    if isinstance(value, dict):
        return [one for key, below in value.items() for one in places(below, f"{name}.{key}")]
    if isinstance(value, list):
        return [one for i, below in enumerate(value) for one in places(below, f"{name}[{i}]")]
    return [name]


@settings(max_examples=30)
@given(mixtures(), st.data())
def test_a_number_of_a_cluster_is_set_as_in_a_new_problem(tables: dict[str, dict[str, Any]], data: st.DataObject):
    problem = Problem.from_dict(tables)
    names = [one for key in ("clusters", "mean_teacher") for one in places(tables["tokens"][key], f"tokens.{key}")]
    name, value = data.draw(st.sampled_from(names)), data.draw(NUMBERS) / 10
    by_hand = copy.deepcopy(tables)
    target: Any = by_hand
    steps = name.replace("[", ".[").replace(".", " ").split()
    for step in steps[:-1]:
        target = target[int(step.strip("[]"))] if step.startswith("[") else target[step]
    target[int(steps[-1].strip("[]")) if steps[-1].startswith("[") else steps[-1]] = value
    changed = problem.with_fields({name: value})
    assert changed == Problem.from_dict(by_hand)
    assert value_of(changed, name) == get(changed.to_dict(), name) == value
    other = problem.to_dict()
    put(other, name, value)
    assert other == changed.to_dict()
    assert problem.with_fields({name: value_of(problem, name)}) == problem


def test_entries_of_tables():
    assert entry_of("tokens.clusters[1][0].mean[2]") == ("tokens.clusters", (1, 0, "mean", 2))
    assert entry_of("tokens.sigma") == ("tokens.sigma", ())
    assert Problem().with_fields({"teacher.mixing[0][1]": 0.45}).teacher.mixing == ((0.6, 0.45), (0.4, 0.6))
    # one product of two vectors
    gram = Problem().with_fields({"tokens.length": 3}).with_fields({"positions.gram[0][2]": -0.3}).positions.gram
    assert gram == ((1, -0.5, -0.3), (-0.5, 1, -0.5), (-0.3, -0.5, 1))


def test_probabilities_of_a_row_sum_to_one():
    two = [{"sigma": 0.5, "mean": [1.0]}, {"sigma": 0.4, "mean": [-1.0]}]
    law = {"kind": "markov", "weights": [0.3, 0.7], "transition": [[0.9, 0.1], [0.4, 0.6]]}
    chain = Problem.from_dict({"tokens": {"kind": "mixture", "clusters": two, "law": law}})
    changed = chain.with_fields({"tokens.law.transition[1][0]": 0.55, "tokens.law.transition[0][1]": 0.2})
    np.testing.assert_allclose(get(changed.to_dict(), "tokens.law.transition"), [[0.8, 0.2], [0.55, 0.45]], rtol=1e-14)
    each = Problem.from_dict(
        {"tokens": {"kind": "mixture", "clusters": two, "law": {"weights": [[0.3, 0.7], [0.2, 0.8]]}}}
    )
    changed = each.with_fields({"tokens.law.weights[1][0]": 0.35})
    np.testing.assert_allclose(get(changed.to_dict(), "tokens.law.weights"), [[0.3, 0.7], [0.35, 0.65]], rtol=1e-14)
    with pytest.raises(ProblemError, match=r"weights\[1\]\[0\] and .*weights\[1\]\[1\] change each other"):
        each.with_fields({"tokens.law.weights[1][0]": 0.3, "tokens.law.weights[1][1]": 0.3})


CLUSTERS = [{"sigma": 1.0, "mean": [-1.0]}, {"sigma": 0.7, "mean": [1.3]}]
MIXTURE = Problem.from_dict(
    {
        "positions": {"kind": "none"},
        "regularizer": {"strength": 0.1},
        "tokens": {"kind": "mixture", "length": 1, "clusters": CLUSTERS},
        "loss": {"kind": "expression", "expression": "softplus((1 - 2*c[0])*h[0, 0])"},
    }
)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tokens.clusters[1].mean[1]", 0.2, "whose tokens.clusters[1].mean is a list of 1 entries, numbered from 0"),
        ("tokens.clusters[2].sigma", 0.2, "whose tokens.clusters is a list of 2 entries, numbered from 0"),
        (
            "tokens.clusters[1].mean",
            0.2,
            "a list of 1 entries, numbered from 0: name one, as tokens.clusters[1].mean[0].",
        ),
        ("tokens.clusters[1].sgma", 0.2, "a table with sigma, mean: did you mean tokens.clusters[1].sigma?"),
        ("tokens.clusters[1].men[0]", 0.2, "a table with sigma, mean: did you mean tokens.clusters[1].mean?"),
        ("tokens.clusters[1]", 0.2, "whose tokens.clusters[1] is a table with sigma, mean."),
        ("tokens.clusters[1].sigma[0]", 0.2, "whose tokens.clusters[1].sigma is no list of numbers"),
        ("tokens.clusters[1].sigma", -0.2, "tokens.clusters[1].sigma must be a positive number from 1e-6 to 1e6"),
        ("tokens.clusters[1].sigma", None, "tokens.clusters[1].sigma has no default"),
        ("tokens.clustrs[1].sigma", 0.2, 'did you mean "tokens.clusters"'),
    ],
)
def test_what_is_no_number_of_a_cluster_is_refused(name: str, value: float | None, words: str):
    with pytest.raises(ProblemError) as error:
        MIXTURE.with_fields({name: value})
    assert words in str(error.value)
    assert str(error.value).count("\n") == 0


def test_a_sweep_over_a_mean_names_it(monkeypatch, tmp_path):
    Solver(monkeypatch)
    varied = {"tokens.clusters[1].mean[0]": [0.5, 1.5], "tokens.clusters[0].sigma": [0.3, 0.6]}
    ds = ap.sweep(MIXTURE, [1.0], branch="uninformed", fields=varied, workers=1, output=tmp_path / "out.nc")
    assert dict(ds.sizes) | {"clusters_1_mean_0": 2, "clusters_0_sigma": 2} == dict(ds.sizes)
    assert ds.clusters_1_mean_0.attrs["field"] == "tokens.clusters[1].mean[0]"
    assert load_dataset(tmp_path / "out.nc").clusters_0_sigma.to_numpy().tolist() == [0.3, 0.6]


@pytest.mark.parametrize(("field", "step"), [("tokens.clusters[1].mean[0]", 2e-3), ("tokens.clusters[1].sigma", 2e-3)])
def test_derivatives_in_a_cluster_are_those_of_solves_beside(field: str, step: float):
    ds = ap.sensitivity(MIXTURE, 2.0, field, "uninformed").squeeze()
    index = ("mean", 0) if "mean" in field else ("sigma",)
    beside = []
    for sign in (-1, 1):
        clusters: Any = copy.deepcopy(CLUSTERS)
        place = clusters[1]
        for one in index[:-1]:
            place = place[one]
        place[index[-1]] += sign * step
        tables = MIXTURE.to_dict()
        tables["tokens"]["clusters"] = clusters
        beside.append(
            ap.solve(
                Problem.from_dict(tables), 2.0, "uninformed", settings=ap.SolverSettings(tolerance=1e-10)
            ).squeeze()
        )
    for name in ("q", "training_loss"):
        slope = ((beside[1][name] - beside[0][name]) / (2 * step)).to_numpy()
        error = ds[f"d_{name}_stderr"].to_numpy()
        assert np.all(np.abs(ds[f"d_{name}"].to_numpy() - slope) < 4 * error + 1e-5), name
        assert np.all(error < 0.1 * np.abs(slope) + 1e-3)
