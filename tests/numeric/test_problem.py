"""The description of a problem: defaults, TOML round trip, and one sentence for every refusal."""

import copy
import itertools
import math
import pickle
import re
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnphase
from attnphase.errors import ProblemError
from attnphase.problem import (
    Cluster,
    Integration,
    Law,
    Loss,
    Positions,
    Problem,
    Regularizer,
    SpectrumAtom,
    SpectrumLaw,
    Student,
    Teacher,
    Tokens,
    load_problem,
    own_functions,
    parse_setting,
)
from attnphase.problem.kinds import alternatives
from attnphase.problem.losses import LOSSES
from attnphase.rows.kinds import REGULARIZERS

THIRD = 1 / 3


def refusal(make, *args, **kwargs):
    """The error that a call raises, after checking that its message is one sentence."""
    with pytest.raises(ProblemError) as caught:
        make(*args, **kwargs)
    message = str(caught.value)
    assert message[-1] in ".?"
    assert "\n" not in message
    assert "pydantic" not in message
    return caught.value


# --- defaults -------------------------------------------------------------------------------


def test_defaults_are_the_papers():
    problem = Problem()
    assert problem == Problem.paper()
    assert problem.tokens.length == 2
    assert problem.tokens.sigma == 0.5
    assert problem.teacher.omega == 0.3
    assert problem.regularizer.strength == 0.01
    assert problem.columns == 1
    np.testing.assert_array_equal(problem.mixing_matrix, [[0.6, 0.4], [0.4, 0.6]])
    np.testing.assert_array_equal(problem.positions_gram, [[1, -1], [-1, 1]])
    np.testing.assert_array_equal(problem.token_variances, [0.25, 0.25])


def test_paper_takes_the_parameters_the_paper_varies():
    problem = Problem.paper(omega=0.17, sigma=0.7, strength=0.1, mixing=((0.3, 0.7), (0.8, 0.2)))
    assert problem.teacher.omega == 0.17
    assert problem.tokens.sigma == 0.7
    assert problem.regularizer.strength == 0.1
    np.testing.assert_array_equal(problem.mixing_matrix, [[0.3, 0.7], [0.8, 0.2]])


def test_the_paper_spelt_out_in_toml_is_the_default():
    text = """
    [tokens]
    kind = "gaussian"
    length = 2
    sigma = 0.5
    [positions]
    kind = "opposite"
    [teacher]
    score = "softmax"
    rank = 1
    omega = 0.3
    mixing = [[0.6, 0.4], [0.4, 0.6]]
    [student]
    score = "softmax"
    rank = 1
    tied = true
    [regularizer]
    kind = "ridge"
    strength = 0.01
    [integration]
    rule = "auto"
    standard_error = 1e-3
    seed = 0
    """
    assert Problem.from_toml(text) == Problem.from_toml("") == Problem()
    assert Problem.from_toml(text).hash == Problem().hash


@pytest.mark.parametrize("length", [3, 4, 7])
def test_longer_sentences_have_uniform_mixing_and_simplex_positions(length):
    problem = Problem(tokens=Tokens(length=length))
    np.testing.assert_array_equal(problem.mixing_matrix, np.full((length, length), 1 / length))
    assert problem.positions.kind == "gram"
    gram = problem.positions_gram
    np.testing.assert_array_equal(np.diag(gram), np.ones(length))
    np.testing.assert_allclose(gram.sum(axis=0), 0, atol=1e-14)
    assert np.linalg.matrix_rank(gram) == length - 1


def test_a_single_token_has_no_position():
    problem = Problem(tokens=Tokens(length=1))
    assert problem.positions.kind == "none"
    np.testing.assert_array_equal(problem.positions_gram, [[0.0]])
    np.testing.assert_array_equal(problem.mixing_matrix, [[1.0]])


def test_untied_weights_have_twice_the_columns():
    assert Problem(student=Student(rank=3)).columns == 3
    assert Problem(student=Student(rank=3, tied=False)).columns == 6


def test_one_sigma_for_each_token():
    problem = Problem(tokens=Tokens(length=3, sigma=(0.4, 0.7, 1.1)))
    weights, variances = problem.spectrum_atoms()
    np.testing.assert_array_equal(weights, [1.0])
    np.testing.assert_allclose(variances, [[0.16, 0.49, 1.21]])
    np.testing.assert_allclose(problem.token_variances, [0.16, 0.49, 1.21])


def test_spectrum():
    atoms = (
        SpectrumAtom(weight=0.3, variances=(0.2, 0.7)),
        SpectrumAtom(weight=0.7, variances=(0.5, 0.0)),
    )
    problem = Problem(tokens=Tokens(spectrum=atoms))
    assert problem.tokens.sigma is None
    weights, variances = problem.spectrum_atoms()
    np.testing.assert_array_equal(weights, [0.3, 0.7])
    np.testing.assert_array_equal(variances, [[0.2, 0.7], [0.5, 0.0]])
    np.testing.assert_allclose(problem.token_variances, [0.41, 0.21])
    assert "[[tokens.spectrum]]" in problem.to_toml()


def test_a_gram_matrix_needs_no_kind():
    problem = Problem(positions=Positions(gram=((1.3, 0.2), (0.2, 0.9))))
    assert problem.positions.kind == "gram"
    np.testing.assert_array_equal(problem.positions_gram, [[1.3, 0.2], [0.2, 0.9]])


def test_numpy_values_and_whole_numbers_are_taken():
    problem = Problem.from_dict(
        {
            "tokens": {"length": np.int64(3), "sigma": np.array([0.4, 1, 2])},
            "teacher": {"omega": np.float64(0.2), "mixing": np.eye(3)},
            "regularizer": {"strength": 1},
        }
    )
    assert type(problem.tokens.length) is int
    assert type(problem.teacher.omega) is float
    assert type(problem.regularizer.strength) is float
    assert problem.teacher.mixing == ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


def test_sections_may_be_mappings():
    assert Problem.from_dict({"tokens": {"sigma": 0.7}}) == Problem(tokens=Tokens(sigma=0.7))


# --- refusals of single values --------------------------------------------------------------

NUMBERS = [
    ("tokens.length", [0, -1, 17, 2.0, True, "2", math.nan, None], "a whole number from 1 to 16"),
    ("tokens.sigma", [0, -0.5, math.nan, math.inf, True, "x", [], [0.5, -1]], "a positive number"),
    ("teacher.omega", [-0.1, 1.5, math.nan, math.inf, True, "x"], "a number from 0 to 1"),
    ("teacher.rank", [0, 9, 1.5, True], "a whole number from 1 to 8"),
    ("student.rank", [0, 9, 1.5, True], "a whole number from 1 to 8"),
    ("student.tied", [1, 0, "yes", "true"], "true or false"),
    (
        "regularizer.strength",
        [0, -1, 1e-9, 1e9, math.nan, math.inf, False],
        "a number from 2^-27 to 2^27 (about 1e-8 to 1e8)",
    ),
    ("integration.standard_error", [0, 1, -0.1, math.nan, True], "a number between 0 and 1"),
    ("integration.seed", [-1, 1.5, True, 2**63], "a whole number from 0"),
    ("teacher.score", [1, "", True], "the name of a score, a formula in z"),
    ("student.score", [None, ["softmax"]], "the name of a score, a formula in z"),
    ("teacher.temperature", [0, -1, math.inf, "x", True], "a number from 2^-20 to 2^20 (about 1e-6 to 1e6)"),
    ("student.temperature", [0, -1, math.nan], "a number from 2^-20 to 2^20 (about 1e-6 to 1e6)"),
    ("teacher.causal", [1, "yes"], "true or false"),
    ("student.causal", [0], "true or false"),
    ("positions.kind", ["round", 3], '"opposite", "gram", "spectrum" or "none"'),
    ("positions.teacher", [3, "x", [0.1, 0.2]], "a table of numbers from -1e24 to 1e24, a row for each token"),
    ("integration.rule", ["simpson", 3], '"auto", "gauss-hermite", "sobol", "lines" or "published"'),
    ("tokens.kind", ["mixtures", "gausian", 1], '"gaussian" or "mixture"'),
    ("tokens.clusters", [3, "x", [3], [[3]]], "a list of tables, each with sigma and mean"),
    ("tokens.law", [3, "same", [0.5, 0.5]], "a table with a kind"),
    ("tokens.mean_positions", [3, [1.0]], "a table of numbers from -1e24 to 1e24"),
    ("tokens.mean_teacher", [3, [1.0], [[math.nan]]], "a table of numbers from -1e24 to 1e24"),
    ("regularizer.kind", ["lassso", 1], alternatives(REGULARIZERS)),
    ("regularizer.ridge", [-0.1, math.inf, "x", True], "a number from 0 to 1e8"),
    ("regularizer.expression", [3, ""], "a formula in one weight w"),
    ("regularizer.prox", [3, ""], "the name of a function"),
    ("loss.kind", ["squared", 3], alternatives(LOSSES)),
    ("loss.width", [0, 9, 1.5, True], "a whole number from 1 to 8"),
    ("loss.expression", [3, ""], "a formula in the local fields"),
    ("teacher.mixing", [3, "x", [1, 2], {"a": 1}], "a square table of numbers from -1e24 to 1e24"),
]


@pytest.mark.parametrize(
    ("name", "value", "must_be"),
    [(name, value, must_be) for name, values, must_be in NUMBERS for value in values],
)
def test_refused_values(name, value, must_be):
    section, _, key = name.partition(".")
    if name == "tokens.sigma" and value == []:
        must_be = "has 0 numbers"
    error = refusal(Problem.from_dict, {section: {key: value}})
    assert error.field == name
    assert str(error).startswith(name)
    assert must_be in str(error)
    if must_be != "has 0 numbers":
        assert "must be" in str(error)
        assert ", but it" in str(error)


@pytest.mark.parametrize(
    ("cls", "section"),
    [
        (Tokens, "tokens"),
        (Positions, "positions"),
        (Teacher, "teacher"),
        (Student, "student"),
        (Regularizer, "regularizer"),
        (Integration, "integration"),
        (Loss, "loss"),
    ],
)
def test_sections_made_in_python_raise_our_error(cls, section):
    error = refusal(cls, colour=1)
    assert error.field == f"{section}.colour"
    assert str(error).startswith(f'unknown key "{section}.colour": "{section}" has the keys ')
    assert refusal(cls, *range(9)).field == f"{section}.{fields(cls)[0].name}"


def test_arguments_without_a_name_are_those_of_the_first_sections():
    assert str(refusal(Problem, "problem.toml")) == 'tokens must be a table, but it is "problem.toml".'
    assert str(refusal(Problem, {"tokens": {"sigma": 0.7}})).startswith('unknown key "tokens.tokens": "tokens" has ')


def test_the_message_in_full():
    error = refusal(Teacher, omega=1.5)
    assert str(error) == "teacher.omega must be a number from 0 to 1, but it is 1.5."
    assert error.args == ("teacher.omega", str(error))
    assert isinstance(error, ValueError)


def test_the_entry_of_a_table_is_named():
    error = refusal(Teacher, mixing=[[0.6, 0.4], [math.inf, 0.6]])
    assert error.field == "teacher.mixing"
    assert "but its entry [1][0] is inf." in str(error)
    error = refusal(Teacher, mixing=[[0.6, 0.4], [True, 0.6]])
    assert "but its entry [1][0] is true." in str(error)


def test_long_values_are_cut_short():
    assert len(str(refusal(Teacher, omega=list(range(500))))) < 150


@pytest.mark.parametrize("section", ["tokens", "teacher", "integration"])
def test_a_section_must_be_a_table(section):
    error = refusal(Problem.from_dict, {section: 3})
    assert error.field == section
    assert str(error) == f"{section} must be a table, but it is 3."


def test_a_problem_must_be_a_table():
    assert refusal(Problem.from_dict, [1, 2]).field == "problem"


# --- unknown keys ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "name", "nearest"),
    [
        ({"teacher": {"mixng": [[1]]}}, "teacher.mixng", "teacher.mixing"),
        ({"tokens": {"sigmas": 0.5}}, "tokens.sigmas", "tokens.sigma"),
        ({"teachr": {}}, "teachr", "teacher"),
        ({"regulariser": {"strength": 0.1}}, "regulariser", "regularizer"),
        ({"omega": 0.3}, "omega", "teacher.omega"),
        ({"teacher": {"tied": True}}, "teacher.tied", "student.tied"),
        ({"integration": {"strenght": 0.3}}, "integration.strenght", "regularizer.strength"),
    ],
)
def test_unknown_keys_name_the_nearest(data, name, nearest):
    error = refusal(Problem.from_dict, data)
    assert error.field == name
    assert str(error) == f'unknown key "{name}": did you mean "{nearest}"?'


def test_an_unknown_key_with_no_near_one_lists_the_known_ones():
    error = refusal(Problem.from_dict, {"student": {"zzz": 1}})
    assert str(error) == 'unknown key "student.zzz": "student" has the keys score, rank, tied, temperature, causal.'
    error = refusal(Problem.from_dict, {"zzz": 1})
    assert "a problem has the sections tokens, positions, teacher" in str(error)


def test_the_private_field_cannot_be_given():
    assert refusal(Problem.from_dict, {"_filled_in": []}).field == "_filled_in"


# --- values that do not go together ---------------------------------------------------------


@pytest.mark.parametrize("mixing", [[[1.0]], [[0.6, 0.4]], [[0.6, 0.4], [0.4]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]], []])
def test_mixing_must_fit_the_length(mixing):
    error = refusal(Problem, teacher=Teacher(mixing=mixing))
    assert error.field == "teacher.mixing"
    assert "must be 2 by 2" in str(error)


def test_sigma_must_fit_the_length():
    error = refusal(Tokens, sigma=(0.5, 0.6, 0.7))
    assert error.field == "tokens.sigma"
    assert "has 3 numbers, but tokens.length is 2" in str(error)


def test_opposite_positions_need_two_tokens():
    error = refusal(Problem, tokens=Tokens(length=3), positions=Positions(kind="opposite"))
    assert error.field == "positions.kind"
    assert "needs tokens.length = 2, but it is 3" in str(error)


@pytest.mark.parametrize(
    ("gram", "words"),
    [
        ([[1, 2], [2, 1]], "must be positive semidefinite"),
        ([[-1, 0], [0, 1]], "has the eigenvalue -1"),
        ([[1, 0.2], [0.3, 1]], r"must be symmetric, but its entries \[0\]\[1\] and \[1\]\[0\]"),
        ([[1, 0], [0]], "its row 1 has length 1"),
        ([[1, math.nan], [0, 1]], r"its entry \[0\]\[1\] is nan"),
        ([[1e-20, 2e-20], [2e-20, 1e-20]], "must be positive semidefinite"),
    ],
)
def test_refused_gram_matrices(gram, words):
    error = refusal(Positions, gram=gram)
    assert error.field == "positions.gram"
    assert re.search(words, str(error))


def test_gram_must_fit_the_length():
    for gram in ([[1.0]], [], np.eye(3)):
        error = refusal(Problem.from_dict, {"positions": {"gram": gram}})
        assert error.field == "positions.gram"
        assert "must be 2 by 2" in str(error)


def test_rounding_does_not_spoil_a_gram_matrix():
    vectors = np.random.default_rng(5).normal(size=(5, 2))
    gram = 1e6 * vectors @ vectors.T
    gram[0, 1] *= 1 + 1e-13
    problem = Problem.from_dict({"tokens": {"length": 5}, "positions": {"gram": gram}})
    np.testing.assert_array_equal(problem.positions_gram, problem.positions_gram.T)
    np.testing.assert_allclose(problem.positions_gram, gram, rtol=1e-12)


def test_kind_and_gram_must_agree():
    assert refusal(Positions, kind="gram").field == "positions.gram"
    error = refusal(Positions, kind="none", gram=[[1, 0], [0, 1]])
    assert error.field == "positions.gram"
    assert 'positions.kind = "none"' in str(error)


ATOM = {"weight": 0.5, "variances": [0.2, 0.3]}


@pytest.mark.parametrize(
    ("atoms", "words"),
    [
        ([ATOM], "weights that sum to 1, but they sum to 0.5"),
        ([], "weights that sum to 1, but they sum to 0"),
        ([ATOM, {"weight": 0.5, "variances": [0.2]}], "spectrum[1].variances has 1 numbers"),
        ([ATOM, {"weight": 0, "variances": [0.2, 0.3]}], "spectrum[1].weight must be a number"),
        ([ATOM, {"weight": 0.5, "variances": [0.2, -1]}], "but its entry [1] is -1."),
        ([ATOM, {"weight": 0.5}], "spectrum[1].variances is missing"),
        ([ATOM, {"wieght": 0.5, "variances": [1, 1]}], '[1].wieght": did you mean "weight"?'),
        ([ATOM, {**ATOM, "zzz": 1}], "it may have weight, variances, positions, means and teacher."),
        ([{"weight": 1, "variances": [0.2, 0]}], "gives token 1 no variance"),
        ([3], "but its entry [0] is 3."),
        (3, "but it is 3."),
        ("missing.csv", "missing.csv: there is no such file"),
    ],
)
def test_refused_spectra(atoms, words):
    error = refusal(Problem.from_dict, {"tokens": {"spectrum": atoms}})
    assert error.field == "tokens.spectrum"
    assert words in str(error)


def test_refused_atoms_made_in_python():
    assert refusal(SpectrumAtom, weight=2, variances=(1, 1)).field == "tokens.spectrum"
    assert refusal(SpectrumAtom, wieght=1).field == "tokens.spectrum"
    assert refusal(SpectrumLaw, kind="isotropc").field == "tokens.spectrum"
    assert refusal(Cluster, sigma=-1.0).field == "tokens.clusters"
    assert refusal(Law, kind="sane").field == "tokens.law"


def test_sigma_and_spectrum_exclude_each_other():
    error = refusal(Tokens, sigma=0.5, spectrum=[{"weight": 1, "variances": [1, 1]}])
    assert error.field == "tokens.spectrum"
    assert "exclude each other" in str(error)


@pytest.mark.parametrize(
    ("changes", "need"),
    [
        ({"tokens.length": 3}, "tokens.length = 2"),
        ({"teacher.rank": 2}, "teacher.rank = 1"),
        ({"student.rank": 2}, "student.rank = 1"),
        ({"student.tied": False}, "student.tied = true"),
    ],
)
def test_the_published_rule_is_for_the_papers_setting(changes, need):
    error = refusal(Problem().with_fields, {"integration.rule": "published", **changes})
    assert error.field == "integration.rule"
    assert f'"published" needs {need}' in str(error)
    assert Problem(integration=Integration(rule="published")).integration.rule == "published"


@pytest.mark.parametrize(
    ("rule", "nodes", "words"),
    [
        ("published", 12, "whose nodes are fixed"),
        ("auto", 12, 'does not go with integration.rule = "auto"'),
        ("gauss-hermite", 257, "at most 256"),
        ("sobol", 1000, "a power of two"),
        ("sobol", 0, "a whole number from 1"),
        ("gauss-hermite", 2.5, "a whole number from 1"),
        ("sobol", True, "a whole number from 1"),
    ],
)
def test_refused_nodes(rule, nodes, words):
    error = refusal(Integration, rule=rule, nodes=nodes)
    assert error.field == "integration.nodes"
    assert words in str(error)


def test_nodes():
    assert Integration(rule="gauss-hermite", nodes=31).nodes == 31
    assert Integration(rule="sobol", nodes=4096).nodes == 4096


# --- mixtures -------------------------------------------------------------------------------

TWO = [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}]


def mixture(clusters=TWO, length=2, **tokens):
    return {"tokens": {"kind": "mixture", "length": length, "clusters": clusters, **tokens}}


def law_of(law, counts):
    """Configurations as tuples of clusters, with their probabilities."""
    clusters, probabilities = Law(**law).configurations(counts)
    assert probabilities.min() > 0
    np.testing.assert_allclose(probabilities.sum(), 1, rtol=1e-14)
    return {tuple(row): p for row, p in zip(clusters.tolist(), probabilities, strict=True)}


def marginal(law, token, count):
    return [sum(p for row, p in law.items() if row[token] == cluster) for cluster in range(count)]


def test_gaussian_tokens_have_one_site_each_and_one_configuration():
    problem = Problem(tokens=Tokens(length=3, sigma=(0.4, 0.7, 1.1)))
    assert problem.sites == ((0, 0), (1, 0), (2, 0))
    configurations, probabilities = problem.cluster_law
    np.testing.assert_array_equal(configurations, [[0, 1, 2]])
    np.testing.assert_array_equal(probabilities, [1.0])
    np.testing.assert_array_equal(problem.site_variances, problem.token_variances)


def test_sites_go_token_by_token():
    clusters = [[{"sigma": 0.3}, {"sigma": 0.6, "mean": [0.7, -0.2]}, {}], [{"mean": [0.4, 0.1]}, {"sigma": 0.8}]]
    problem = Problem.from_dict(mixture(clusters, law={"weights": [[0.2, 0.3, 0.5], [0.6, 0.4]]}))
    assert problem.sites == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))
    np.testing.assert_allclose(problem.site_variances, [0.09, 0.36, 0.25, 0.25, 0.64])
    np.testing.assert_allclose(problem.token_variances, [0.251, 0.406])
    np.testing.assert_array_equal(problem.site_means, [[0, 0], [0.7, -0.2], [0, 0], [0.4, 0.1], [0, 0]])
    configurations, probabilities = problem.cluster_law
    np.testing.assert_array_equal(configurations, [[0, 3], [0, 4], [1, 3], [1, 4], [2, 3], [2, 4]])
    np.testing.assert_allclose(probabilities, [0.12, 0.08, 0.18, 0.12, 0.3, 0.2])


def test_a_mixture_without_a_law_is_independent_and_uniform():
    problem = Problem.from_dict(mixture())
    assert problem == Problem.from_dict(mixture(law={"kind": "independent"}))
    np.testing.assert_allclose(problem.cluster_law[1], np.full(4, 0.25))


@st.composite
def distributions(draw, count):
    parts = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any))
    return [part / sum(parts) for part in parts]


@settings(deadline=None)
@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_independent_laws_have_the_given_marginals(data, counts):
    weights = [data.draw(distributions(count)) for count in counts]
    law = law_of({"weights": weights}, counts)
    for token, row in enumerate(weights):
        np.testing.assert_allclose(marginal(law, token, counts[token]), row, atol=1e-14)
    for row, probability in law.items():
        np.testing.assert_allclose(probability, math.prod(w[c] for w, c in zip(weights, row, strict=True)), rtol=1e-12)


@settings(deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_markov_chains_are_products_of_transitions(data, count, length):
    first = data.draw(distributions(count))
    transition = [data.draw(distributions(count)) for _ in range(count)]
    law = law_of({"kind": "markov", "weights": first, "transition": transition}, [count] * length)
    total = 0.0
    for row in itertools.product(range(count), repeat=length):
        expected = first[row[0]] * math.prod(transition[a][b] for a, b in itertools.pairwise(row))
        np.testing.assert_allclose(law.get(row, 0.0), expected, rtol=1e-12, atol=1e-15)
        total += expected
    assert abs(total - 1) < 1e-12
    at_last = np.array(first) @ np.linalg.matrix_power(np.array(transition), length - 1)
    np.testing.assert_allclose(marginal(law, length - 1, count), at_last, atol=1e-14)


@settings(deadline=None)
@given(st.data(), st.floats(0.01, 0.99), st.integers(2, 3), st.integers(2, 4))
def test_equal_clusters_have_exactly_the_given_probability(data, probability, count, length):
    weights = data.draw(distributions(count).filter(lambda w: max(w) < 1))
    law = law_of({"kind": "same", "probability": probability, "weights": weights}, [count] * length)
    equal = [law.get((cluster,) * length, 0.0) for cluster in range(count)]
    np.testing.assert_allclose(equal, probability * np.array(weights), atol=1e-14)
    unequal = {row: p for row, p in law.items() if len(set(row)) > 1}
    ratios = [p / math.prod(weights[c] for c in row) for row, p in unequal.items()]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert set(unequal) == {
        row
        for row in itertools.product(range(count), repeat=length)
        if len(set(row)) > 1 and all(weights[c] > 0 for c in row)
    }


def test_clusters_that_are_always_or_never_equal():
    assert law_of({"kind": "same", "probability": 1, "weights": [0.3, 0.7]}, [2] * 16) == {
        (0,) * 16: 0.3,
        (1,) * 16: 0.7,
    }
    law = law_of({"kind": "same", "probability": 0, "weights": [0.3, 0.7]}, [2, 2])
    assert law == {(0, 1): 0.5, (1, 0): 0.5}


@settings(deadline=None)
@given(st.data(), st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_table_is_the_law(data, counts):
    flat = data.draw(distributions(math.prod(counts)))
    table = np.array(flat).reshape(counts)
    law = law_of({"kind": "table", "table": table}, counts)
    for row in itertools.product(*map(range, counts)):
        np.testing.assert_allclose(law.get(row, 0.0), table[row], rtol=1e-12)
    assert (0.0 in flat) == (len(law) < len(flat))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {(1, 0, 0): 1 / 3, (0, 1, 0): 1 / 3, (0, 0, 1): 1 / 3}),
        (
            {"probability": 0.3, "weights": [0.2, 0.7, 0.1]},
            {(0, 0, 0): 0.7, (1, 0, 0): 0.06, (0, 1, 0): 0.21, (0, 0, 1): 0.03},
        ),
        ({"probability": 0.3, "weights": [0.4, 0, 0.6]}, {(0, 0, 0): 0.7, (1, 0, 0): 0.12, (0, 0, 1): 0.18}),
        ({"probability": 0.0}, {(0, 0, 0): 1.0}),
    ],
)
def test_one_token_is_at_a_single_location(given, expected):
    assert law_of({"kind": "single-location", **given}, [2, 2, 2]) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("law", "weights"),
    [
        ({"kind": "independent"}, [0.5, 0.5]),
        ({"kind": "independent"}, [[0.5, 0.5]] * 3),
        ({"kind": "same", "probability": 0.7}, [0.5, 0.5]),
        ({"kind": "single-location", "probability": 0.7}, [1 / 3] * 3),
    ],
)
def test_equal_weights_are_left_out(law, weights):
    tokens = {"kind": "mixture", "length": 3, "clusters": [{"mean": [0.3]}, {"mean": [-1.1]}]}
    given, left_out = (
        Problem.from_dict({"tokens": {**tokens, "law": one}}) for one in (law | {"weights": weights}, law)
    )
    assert given == left_out
    assert given.hash == left_out.hash
    other = law | {"weights": [0.4, 0.6] if len(weights) == 2 else [0.2, 0.3, 0.5]}
    if weights != [[0.5, 0.5]] * 3:
        assert Problem.from_dict({"tokens": {**tokens, "law": other}}).hash != left_out.hash
        with pytest.raises(ProblemError, match="weights has 4 numbers"):
            Problem.from_dict({"tokens": {**tokens, "law": law | {"weights": [0.25] * 4}}})


def test_a_single_location_takes_two_clusters():
    with pytest.raises(ProblemError, match=r"needs two clusters for every token, .* but they have 2 and 3"):
        law_of({"kind": "single-location"}, [2, 3])


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"weights": [0.3, 0.6]}, "tokens.law.weights must sum to 1, but it sums to 0.9"),
        ({"weights": [0.3, -0.6]}, "but its entry [1] is -0.6."),
        ({"weights": [[0.3, 0.7]]}, "has 1 lists, but tokens.length is 2"),
        ({"weights": [[0.3, 0.7], [0.5, 0.4]]}, "tokens.law.weights[1] must sum to 1, but it sums to 0.9"),
        ({"weights": [0.3, 0.3, 0.4]}, "has 3 numbers, but there are 2 clusters"),
        ({"kind": "markov", "weights": [0.3, 0.7]}, "needs transition"),
        ({"kind": "markov", "weights": [[1, 0], [0, 1]], "transition": [[1, 0], [0, 1]]}, "must be a single list"),
        ({"kind": "markov", "transition": [[0.5, 0.5]]}, "tokens.law.transition has 1 rows, but must be 2 by 2"),
        ({"kind": "markov", "transition": [[0.5, 0.5], [1]]}, "its row 1 has length 1"),
        ({"kind": "markov", "transition": [[0.5, 0.5], [0.2, 0.9]]}, "tokens.law.transition[1] must sum to 1"),
        ({"kind": "same"}, "needs probability"),
        ({"kind": "same", "probability": 1.2}, "a number from 0 to 1, but it is 1.2."),
        ({"kind": "same", "probability": 0.5, "weights": [1, 0]}, "probability must be 1 where no configuration"),
        ({"kind": "table"}, "needs table"),
        ({"kind": "table", "table": [[0.5, 0.5], [0.1, 0]]}, "must sum to 1, but it sums to 1.1"),
        ({"kind": "table", "table": [[0.5, 0.5], [0]]}, "tokens.law.table[1] must be a list of length 2"),
        ({"kind": "table", "table": [0.5, 0.5]}, "tokens.law.table[0] must be a list of length 2"),
        ({"kind": "table", "table": [[0.5, 0.5], [0.1, -0.1]]}, "tokens.law.table[1][1] must be a number from 0 to 1"),
        ({"kind": "table", "table": [[0.5, 0.5], [0, False]]}, "but it is false."),
        ({"kind": "table", "table": [[0.5, 0.5], [0, math.nan]]}, "but it is nan."),
        ({"kind": "table", "table": [[[0.5], 0.5], [0, 0]]}, "tokens.law.table[0][0] must be a number"),
        (
            {"kind": "single-location", "weights": [0.2, 0.3, 0.5]},
            "tokens.law.weights has 3 numbers, but tokens.length is 2",
        ),
        ({"kind": "single-location", "weights": [0.2, 0.3]}, "tokens.law.weights must sum to 1, but it sums to 0.5."),
        ({"kind": "single-location", "probability": 1.2}, "a number from 0 to 1, but it is 1.2."),
        ({"kind": "single-location", "weights": [[0.5, 0.5]]}, "tokens.law.weights must be a single list"),
        ({"kind": "tabel"}, '"same" or "table", but it is "tabel": did you mean "table"?'),
        ({"knd": "same"}, 'unknown key "tokens.law.knd": did you mean "kind"?'),
        ({"probability": 0.5}, 'tokens.law.probability does not go with the law kind "independent"'),
        ({"kind": "same", "probability": 0.5, "table": [[1, 0], [0, 0]]}, "which has weights and probability"),
    ],
)
def test_refused_laws(law, words):
    error = refusal(Problem.from_dict, mixture(law=law))
    assert error.field == "tokens.law"
    assert words in str(error)


def test_a_law_of_equal_clusters_needs_as_many_for_every_token():
    error = refusal(Problem.from_dict, mixture([[{}], [{}, {}]], law={"kind": "same", "probability": 0.5}))
    assert error.field == "tokens.law"
    assert "but they have 1 and 2" in str(error)


def test_too_many_configurations_are_refused():
    error = refusal(Problem.from_dict, mixture(length=13))
    assert error.field == "tokens.law"
    assert "more than 4096 configurations" in str(error)
    assert len(Problem.from_dict(mixture(length=12)).cluster_law[1]) == 4096
    sparse = {"kind": "markov", "transition": [[0, 1], [1, 0]]}
    assert len(Problem.from_dict(mixture(length=16, law=sparse)).cluster_law[1]) == 2


@pytest.mark.parametrize(
    ("tokens", "field", "words"),
    [
        ({"clusters": None}, "tokens.clusters", "needs tokens.clusters"),
        ({"clusters": []}, "tokens.clusters", "but token 0 has 0"),
        ({"clusters": [[{}], []]}, "tokens.clusters", "but token 1 has 0"),
        ({"clusters": [[{}]]}, "tokens.clusters", "has 1 lists, but tokens.length is 2"),
        ({"clusters": [{}] * 65}, "tokens.clusters", "from 1 to 64 clusters"),
        ({"clusters": [{"mean": [1]}, {"mean": [1, 2]}]}, "tokens.clusters", "means of length 1 and 2"),
        ({"clusters": [{"mean": [0.1] * 65}]}, "tokens.clusters", "at most 64 numbers"),
        ({"clusters": [{"sgma": 0.5}]}, "tokens.clusters", 'unknown key "tokens.clusters[0].sgma": did you mean'),
        ({"clusters": [{"zzz": 0.5}]}, "tokens.clusters", "it may have sigma and mean."),
        ({"clusters": [[{}], [{"sigma": -1}]]}, "tokens.clusters", "tokens.clusters[1][0].sigma must be a positive"),
        ({"clusters": [{"mean": [0, "x"]}]}, "tokens.clusters", 'but its entry [1] is "x".'),
        ({"sigma": 0.5}, "tokens.sigma", "give it in tokens.clusters"),
        ({"mean_positions": [[0.1]]}, "tokens.mean_positions", "has 1 rows, but tokens.length is 2"),
        ({"mean_positions": [[0.1, 0], [0.1, 0]]}, "tokens.mean_positions", "must have 1 columns"),
        ({"mean_positions": [[0.1], [0.1]]}, "tokens.mean_positions", "has products that no cluster directions"),
        ({"mean_teacher": [[0.1], [0.2]]}, "tokens.mean_teacher", "must be 1 by 1: teacher.rank is 1"),
        ({"mean_teacher": [[1.1]]}, "tokens.mean_teacher", "has the eigenvalue -0.1;"),
        (
            {"mean_positions": [[0.8], [-0.8]], "mean_teacher": [[0.8]]},
            "tokens.mean_positions",
            "tokens.mean_positions and tokens.mean_teacher have products that no",
        ),
        ({"spectrum": {"kind": "isotropic"}}, "tokens.clusters", "keep one of them"),
    ],
)
def test_refused_mixtures(tokens, field, words):
    error = refusal(Problem.from_dict, mixture(**tokens))
    assert error.field == field
    assert words in str(error)


@pytest.mark.parametrize("key", ["clusters", "law", "mean_positions", "mean_teacher"])
def test_keys_of_mixtures_do_not_go_with_gaussian_tokens(key):
    value = {"clusters": TWO, "law": {"kind": "independent"}}.get(key, [[0.1], [0.2]])
    error = refusal(Tokens, **{key: value})
    assert error.field == f"tokens.{key}"
    assert 'does not go with tokens.kind = "gaussian"' in str(error)


# --- correlations with the teacher, points on atoms, ready-made spectra ---------------------------


def test_the_joint_gram_matrix_has_all_products():
    data = mixture(mean_positions=[[0.2], [-0.2]], mean_teacher=[[0.1], [0.3]])
    problem = Problem.from_dict(
        {**data, "positions": {"teacher": [[0.4, -0.3], [-0.4, 0.3]]}, "teacher": {"rank": 2}},
    )
    expected = [
        [1.0, 0.2, -0.2, 0.1, 0.3],
        [0.2, 1.0, -1.0, 0.4, -0.3],
        [-0.2, -1.0, 1.0, -0.4, 0.3],
        [0.1, 0.4, -0.4, 1.0, 0.0],
        [0.3, -0.3, 0.3, 0.0, 1.0],
    ]
    np.testing.assert_allclose(problem.joint_gram, expected)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ({"teacher": [[1.2], [-1.2]]}, "has products that no encodings p_l and the teacher's columns can have"),
        ({"teacher": [[0.3], [0.3]]}, "has the eigenvalue"),
        ({"kind": "none", "teacher": [[0.1], [0.1]]}, "a vector of norm 0 has none but 0"),
        ({"teacher": [[0.1, 0.2], [0.1, 0.2]]}, "its row 0 has length 2"),
        ({"teacher": [[0.1]]}, "has 1 rows, but must be 2 by 1: tokens.length is 2"),
    ],
)
def test_refused_products_with_the_teacher(positions, words):
    error = refusal(Problem.from_dict, {"positions": positions})
    assert error.field == "positions.teacher"
    assert words in str(error)


POINT = {"weight": 0.5, "variances": [0.2, 0.3], "positions": [1.1, -0.7], "teacher": [0.8]}
OTHER = {"weight": 0.5, "variances": [0.4, 0.1], "positions": [0.3, 0.9], "teacher": [-1.2]}


def test_encodings_on_atoms():
    problem = Problem.from_dict({"tokens": {"spectrum": [POINT, OTHER]}})
    assert problem.positions.kind == "spectrum"
    np.testing.assert_allclose(problem.positions_gram, [[0.65, -0.25], [-0.25, 0.65]])
    np.testing.assert_allclose(problem.joint_gram[:2, 2], [0.26, -0.82])
    assert Problem.from_toml(problem.to_toml()) == problem


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ([POINT, {**OTHER, "positions": [1]}], "tokens.spectrum", "[1].positions has 1 numbers"),
        ([POINT, {**OTHER, "teacher": [1, 2]}], "tokens.spectrum", "[1].teacher has 2 numbers"),
        ([{**POINT, "teacher": [1, 2]}, OTHER], "tokens.spectrum", "[1].teacher has 1 numbers"),
        ([{**POINT, "teacher": [1, 2]}, {**OTHER, "teacher": [2, 1]}], "tokens.spectrum", "the teacher has 1 columns"),
        ([POINT, {"weight": 0.5, "variances": [1, 1]}], "tokens.spectrum", "for all atoms or for none"),
        ([{**POINT, "means": [1, 1]}, {**OTHER, "means": [1, 1]}], "tokens.spectrum", "gives means, which do not go"),
        ([{**POINT, "teacher": [0]}, {**OTHER, "teacher": [0]}], "tokens.spectrum", "vanish or are not independent"),
        ([{**POINT, "teacher": [0]}, {**OTHER, "variances": [1, 0]}], "tokens.spectrum", "fields on token 1 vanish"),
    ],
)
def test_refused_points(data, field, words):
    error = refusal(Problem.from_dict, {"tokens": {"spectrum": data}})
    assert error.field == field
    assert words in str(error)


def test_points_exclude_other_positions():
    for positions, field in (
        ({"kind": "none"}, "positions.kind"),
        ({"gram": [[1, 0], [0, 1]]}, "positions.kind"),
        ({"teacher": [[0.1], [0.1]]}, "positions.teacher"),
    ):
        error = refusal(Problem.from_dict, {"tokens": {"spectrum": [POINT, OTHER]}, "positions": positions})
        assert error.field == field
    assert refusal(Problem, positions=Positions(kind="spectrum")).field == "positions.kind"


def test_means_on_atoms_exclude_means_of_clusters():
    atoms = [{"weight": 1, "variances": [0.1, 0.2, 0.3, 0.4], "means": [1, -1, 1, -1]}]
    problem = Problem.from_dict(mixture([{}, {}], spectrum=atoms))
    assert problem.site_means.shape == (4, 0)
    np.testing.assert_allclose(problem.site_variances, [0.1, 0.2, 0.3, 0.4])
    error = refusal(Problem.from_dict, mixture([{"mean": [1]}, {}], spectrum=atoms))
    assert error.field == "tokens.clusters"
    error = refusal(Problem.from_dict, mixture([{}, {}], spectrum=[{"weight": 1, "variances": [1, 1]}]))
    assert "has 2 numbers, but there are 4 clusters of all tokens together" in str(error)


def test_ready_made_spectra():
    def variances(**law):
        weights, values = Problem(tokens=Tokens(spectrum=SpectrumLaw(**law))).spectrum_atoms()
        np.testing.assert_allclose(weights.sum(), 1, rtol=1e-14)
        return weights, values

    _, values = variances(kind="isotropic", variance=(0.1, 0.4))
    np.testing.assert_allclose(values, [[0.1, 0.4]])
    weights, values = variances(kind="power-law", exponent=1.2, variance=0.3, atoms=5)
    np.testing.assert_allclose(weights, np.full(5, 0.2))
    np.testing.assert_allclose(values[:, 0] / values[0, 0], np.arange(1, 6) ** -1.2)
    np.testing.assert_allclose(weights @ values, [0.3, 0.3])
    weights, values = variances(kind="two-level", variances=(0.1, 0.4), fraction=0.3)
    np.testing.assert_allclose(weights, [0.3, 0.7])
    np.testing.assert_allclose(values, [[0.1, 0.1], [0.4, 0.4]])


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"kind": "powerlaw"}, '"power-law" or "two-level", but it is "powerlaw"'),
        ({"exponent": 1}, "tokens.spectrum.kind is missing"),
        ({"kind": "power-law"}, "needs exponent"),
        ({"kind": "power-law", "exponent": -1}, "a number from 0 to 20"),
        ({"kind": "power-law", "exponent": 1, "atoms": 0}, "a whole number from 1 to 4096"),
        ({"kind": "isotropic", "exponent": 1}, "which has variance: remove it"),
        ({"kind": "isotropic", "variance": [0.1]}, "has 1 numbers, but must have 2"),
        ({"kind": "isotropic", "variance": -1}, "a number from 1e-12 to 1e12"),
        ({"kind": "two-level", "variances": [0.1, 0.2]}, "needs fraction"),
        ({"kind": "two-level", "variances": [0.1], "fraction": 0.3}, "a list of two numbers"),
        ({"kind": "two-level", "variances": [0.1, 0.2], "fraction": 1.5}, "a number between 0 and 1"),
        ({"kind": "two-level", "variances": [0, 0], "fraction": 0.3}, "gives token 0 no variance"),
        ({"knd": "isotropic"}, 'unknown key "tokens.spectrum.knd": did you mean "kind"?'),
    ],
)
def test_refused_ready_made_spectra(law, words):
    error = refusal(Problem.from_dict, {"tokens": {"spectrum": law}})
    assert error.field == "tokens.spectrum"
    assert words in str(error)


# --- regularisers, losses, the user's own functions -----------------------------------------------


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"ridge": 0.1}, "regularizer.ridge", "use regularizer.strength instead"),
        ({"kind": "lasso", "ridge": 0.1}, "regularizer.ridge", 'use regularizer.kind = "elastic-net" instead'),
        ({"kind": "expression"}, "regularizer.expression", "needs regularizer.expression"),
        ({"expression": "w**2"}, "regularizer.expression", 'set regularizer.kind = "expression"'),
        ({"kind": "prox"}, "regularizer.prox", "needs regularizer.prox"),
        ({"kind": "prox", "prox": "abc"}, "regularizer.prox", 'as "module:function", but it is "abc"'),
        ({"kind": "lasso", "prox": "a:b"}, "regularizer.prox", 'set regularizer.kind = "prox"'),
        ({"kind": "prox", "prox": "a:b", "strength": 0.1}, "regularizer.strength", "remove it"),
    ],
)
def test_refused_regularizers(values, field, words):
    error = refusal(Regularizer, **values)
    assert error.field == field
    assert words in str(error)


def test_keys_at_inapplicable_defaults_stay_out_of_the_toml(monkeypatch):
    monkeypatch.setattr(own_functions, "check_regularizer", lambda *_: None)
    data = Problem(regularizer=Regularizer(kind="prox", prox="a:b"), loss=Loss(kind="values")).to_dict()["regularizer"]
    assert data == {"kind": "prox", "prox": "a:b"}
    data = Problem(regularizer=Regularizer(kind="elastic-net", ridge=0.002)).to_dict()
    assert data["regularizer"] == {"kind": "elastic-net", "strength": 0.01, "ridge": 0.002}
    assert "loss" not in data
    assert "temperature" not in data["student"]


def test_value_matrices_add_columns():
    problem = Problem(student=Student(rank=2, tied=False), teacher=Teacher(rank=3), loss=Loss(kind="values", width=2))
    assert (problem.columns, problem.teacher_columns) == (6, 5)
    assert Problem(loss=Loss(kind="values")).loss.width == 1
    assert Problem(teacher=Teacher(rank=3)).teacher_columns == 3


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({"loss": {"width": 2}}, "loss.width", 'set loss.kind = "values"'),
        ({"loss": {"kind": "expression"}}, "loss.expression", "needs loss.expression"),
        ({"loss": {"kind": "values", "expression": "h"}}, "loss.expression", 'set loss.kind = "expression"'),
        ({"loss": {"kind": "square"}}, "loss.kind", "needs tokens.length = 1"),
        ({"loss": {"kind": "hinge"}, "tokens": {"length": 1}, "student": {"rank": 2}}, "loss.kind", "student.rank = 1"),
        ({"loss": {"kind": "hinge"}, "tokens": {"length": 1}, "teacher": {"rank": 2}}, "loss.kind", "teacher.rank = 1"),
        (
            {"loss": {"kind": "logistic"}, "tokens": {"length": 1}, "student": {"tied": False}},
            "loss.kind",
            "needs student.tied = true",
        ),
        (
            {"loss": {"kind": "logistic"}, "tokens": {"length": 1}, "student": {"causal": True}},
            "student.causal",
            "which has no attention",
        ),
        ({"loss": {"knd": "values"}}, "loss.knd", 'did you mean "loss.kind"?'),
        ({"loss": {"kind": "values"}, "integration": {"rule": "published"}}, "integration.rule", "loss.kind"),
    ],
)
def test_refused_losses(data, field, words):
    error = refusal(Problem.from_dict, data)
    assert error.field == field
    assert words in str(error)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"teacher": {"score": "hardmax"}}, "teacher.score"),
        ({"student": {"score": "no_such_module:score"}}, "student.score"),
        ({"student": {"score": "z / (1 + y)"}}, "student.score"),
        ({"loss": {"kind": "expression", "expression": "(h0_0 - k0_7)**2"}}, "loss.expression"),
    ],
)
def test_refused_functions_of_the_user(data, field):
    error = refusal(Problem.from_dict, data)
    assert error.field == field
    assert str(error).startswith(field)


def test_own_functions_are_checked_where_there_are_any(monkeypatch):
    """The checks need SymPy, so that a problem of shipped parts must not reach them."""
    calls = []

    def recorder(name):
        return lambda *args, **named: calls.append((name, *args, *named.values())) or set()

    for what in ("score", "loss", "regularizer"):
        monkeypatch.setattr(own_functions, f"check_{what}", recorder(what))
    for score in ("softmax", "linear", "relu", "sigmoid", "softmax1"):
        Problem(teacher=Teacher(score=score), student=Student(score=score), regularizer=Regularizer(kind="lasso"))
    assert calls == []
    own = Regularizer(kind="expression", expression="w**4")
    Problem(tokens=Tokens(length=3), student=Student(score="z/(1 + z**2)", rank=2), regularizer=own)
    assert calls == [("score", "z/(1 + z**2)", 3, "student.score"), ("regularizer", own, 2)]
    calls.clear()
    Problem(student=Student(tied=False), teacher=Teacher(rank=2), loss=Loss(kind="expression", expression="h0_0*k0_1"))
    assert calls == [("loss", "h0_0*k0_1", 2, 2, 2, 0.0, (), {}, ())]


# --- changing fields ------------------------------------------------------------------------


def test_with_fields():
    problem = Problem().with_fields({"teacher.omega": 0.2, "student.rank": 2})
    assert problem.teacher.omega == 0.2
    assert problem.student.rank == 2
    assert problem == Problem().with_fields(**{"teacher.omega": 0.2, "student.rank": 2})
    assert Problem().with_fields() == Problem()


def test_defaults_follow_a_new_length_and_given_values_do_not():
    assert Problem().with_fields({"tokens.length": 3}) == Problem(tokens=Tokens(length=3))
    back = Problem().with_fields({"tokens.length": 3}).with_fields({"tokens.length": 2})
    assert back == Problem()
    given_mixing = Problem.from_toml("teacher.mixing = [[0.6, 0.4], [0.4, 0.6]]")
    assert given_mixing == Problem()
    assert refusal(given_mixing.with_fields, {"tokens.length": 3}).field == "teacher.mixing"


def test_a_new_field_displaces_the_one_it_excludes():
    spectrum = [{"weight": 1, "variances": [0.2, 0.3]}]
    problem = Problem().with_fields({"tokens.spectrum": spectrum})
    assert problem.tokens.sigma is None
    assert problem.with_fields({"tokens.sigma": 0.7}).tokens == Tokens(sigma=0.7)
    problem = Problem.from_toml('positions.kind = "none"')
    problem = problem.with_fields({"positions.gram": [[1, 0], [0, 1]]})
    assert problem.positions.kind == "gram"
    assert problem.with_fields({"positions.kind": "gram"}) == problem
    assert problem.with_fields({"positions.kind": "none"}).positions == Positions(kind="none")
    problem = Problem(integration=Integration(rule="sobol", nodes=64))
    assert problem.with_fields({"integration.rule": "sobol"}).integration.nodes == 64
    assert problem.with_fields({"integration.rule": "published"}).integration.nodes is None


def test_a_new_kind_displaces_what_belongs_to_the_old_one():
    mixed = Problem.from_dict(mixture(mean_teacher=[[0.2]], law={"kind": "same", "probability": 0.8}))
    assert mixed.with_fields({"tokens.kind": "gaussian"}) == Problem()
    assert mixed.with_fields({"tokens.kind": "mixture"}) == mixed
    assert Problem().with_fields({"tokens.kind": "mixture", "tokens.clusters": TWO}) == Problem.from_dict(mixture())
    spread = mixed.with_fields({"tokens.spectrum": {"kind": "isotropic", "variance": 0.3}})
    np.testing.assert_allclose(spread.site_variances, np.full(4, 0.3))
    np.testing.assert_array_equal(spread.site_means, mixed.site_means)
    net = Problem(regularizer=Regularizer(kind="elastic-net", ridge=0.3, strength=0.2))
    assert net.with_fields({"regularizer.kind": "lasso"}).regularizer == Regularizer(kind="lasso", strength=0.2)
    values = Problem(loss=Loss(kind="values", width=3))
    assert values.with_fields({"loss.kind": "attention"}) == Problem()
    assert Problem().with_fields({"loss.kind": "values", "loss.width": 3}) == values
    points = Problem.from_dict(Problem.from_dict({"tokens": {"spectrum": [POINT, OTHER]}}).to_dict())
    assert points.with_fields({"tokens.sigma": 0.5}) == Problem()


def test_an_entry_of_a_ready_made_law_can_be_set():
    mixed = Problem.from_dict(mixture(law={"kind": "same", "probability": 0.8}))
    assert mixed.with_fields({"tokens.law.probability": 0.3}).tokens.law == Law(kind="same", probability=0.3)
    name, value = parse_setting("tokens.spectrum.exponent=1.5")
    flat = Problem(tokens=Tokens(spectrum=SpectrumLaw(kind="power-law", exponent=0.5)))
    assert flat.with_fields({name: value}) == Problem(
        tokens=Tokens(spectrum=SpectrumLaw(kind="power-law", exponent=1.5))
    )
    assert mixed.with_fields({"tokens.law.kind": "independent"}).tokens.law == Law()
    changes = {"tokens.law.transition": [[0.1, 0.9], [0.6, 0.4]], "tokens.law.kind": "markov"}
    assert mixed.with_fields(changes).tokens.law == Law(kind="markov", transition=((0.1, 0.9), (0.6, 0.4)))
    assert refusal(mixed.with_fields, {"tokens.law.kind": "markov"}).field == "tokens.law"
    assert refusal(Problem().with_fields, {"tokens.law.kind": "markov"}).field == "tokens.law"
    assert refusal(Problem().with_fields, {"tokens.spectrum.exponent": 1.0}).field == "tokens.spectrum"
    error = refusal(mixed.with_fields, {"tokens.law.probabilty": 0.3})
    assert (error.field, str(error)[-27:]) == ("tokens.law", 'did you mean "probability"?')
    atoms = Problem.from_dict({"tokens": {"spectrum": [POINT, OTHER]}})
    assert "is no ready-made law" in str(refusal(atoms.with_fields, {"tokens.spectrum.exponent": 1.5}))


def test_none_takes_a_field_back_to_its_default():
    assert Problem.paper(omega=0.1).with_fields({"teacher.omega": None}) == Problem()
    assert Problem(positions=Positions(kind="none")).with_fields({"positions.kind": None}) == (Problem())


def test_with_fields_refuses_unknown_names():
    make = Problem().with_fields
    assert str(refusal(make, {"teacher.omga": 1})).endswith('did you mean "teacher.omega"?')
    assert str(refusal(make, {"omega": 1})).endswith('did you mean "teacher.omega"?')
    assert str(refusal(make, {"teacher.omega.x": 1})).endswith('did you mean "teacher.omega"?')
    assert '"teacher" is a section' in str(refusal(make, {"teacher": {"omega": 1}}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("teacher.omega=0.3", ("teacher.omega", 0.3)),
        ("teacher.omega=.25", ("teacher.omega", 0.25)),
        ("tokens.sigma=2.", ("tokens.sigma", 2.0)),
        (" tokens.length = 3 ", ("tokens.length", 3)),
        ("student.tied=false", ("student.tied", False)),
        ("integration.rule=gauss-hermite", ("integration.rule", "gauss-hermite")),
        ("student.score=some.module:function", ("student.score", "some.module:function")),
        ('integration.rule="sobol"', ("integration.rule", "sobol")),
        ("teacher.mixing=[[1, 0], [0, 1]]", ("teacher.mixing", [[1, 0], [0, 1]])),
        (
            "tokens.spectrum=[{weight=1, variances=[1, 2]}]",
            ("tokens.spectrum", [{"weight": 1, "variances": [1, 2]}]),
        ),
    ],
)
def test_parse_setting(text, expected):
    assert parse_setting(text) == expected
    if "length" not in text and "module" not in text:
        Problem().with_fields(dict([parse_setting(text)]))


@pytest.mark.parametrize("text", ["teacher.omega", "", "=3", "  = 3"])
def test_a_setting_needs_a_name_and_an_equals_sign(text):
    assert "must read field=value" in str(refusal(parse_setting, text))


@pytest.mark.parametrize("raw", ["", "[1", "0.3 0.4", "0.3\nother = 1", "two words", "[" * 9999])
def test_a_setting_needs_a_toml_value(raw):
    error = refusal(parse_setting, f"teacher.omega={raw}")
    assert error.field == "teacher.omega"
    assert "write the value as in TOML" in str(error)


# --- TOML and files -------------------------------------------------------------------------


def test_load_problem(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_bytes(b"\xef\xbb\xbf[teacher]\nomega = 0.2 # with a byte-order mark\n")
    assert load_problem(path) == load_problem(str(path)) == Problem.paper(omega=0.2)


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "missing.toml"
    error = refusal(load_problem, missing)
    assert error.field == str(missing)
    assert str(error) == f"{missing}: there is no such file; check its name."
    assert "is a folder" in str(refusal(load_problem, tmp_path))
    latin = tmp_path / "latin.toml"
    latin.write_bytes("# \xe9t\xe9".encode("latin-1"))
    error = refusal(load_problem, latin)
    assert error.field == str(latin)
    assert "not text in UTF-8 (byte 2)" in str(error)
    assert "must be the path of a file" in str(refusal(load_problem, "a\0b"))


def test_files_with_bad_contents(tmp_path):
    path = tmp_path / "problem.toml"
    path.write_text("[teacher]\nomega = = 3\n")
    error = refusal(load_problem, path)
    assert error.field == str(path)
    assert "not valid TOML" in str(error)
    assert "line 2" in str(error)
    path.write_text("[teacher]\nomga = 3\n")
    error = refusal(load_problem, path)
    assert error.field == "teacher.omga"
    assert str(error) == f'{path}: unknown key "teacher.omga": did you mean "teacher.omega"?'


@pytest.mark.parametrize("text", ["a = " + "[" * 9999, "a = " + "9" * 5000, "a = 1\na = 2"])
def test_hostile_toml(text):
    assert refusal(Problem.from_toml, text).field == "problem"


def test_to_dict_is_plain_and_complete():
    data = Problem().to_dict()
    assert data == tomllib.loads(Problem().to_toml())
    assert data["teacher"]["mixing"] == [[0.6, 0.4], [0.4, 0.6]]
    assert data["positions"] == {"kind": "opposite"}
    assert Problem.from_dict(data) == Problem()


def test_hash_tells_problems_apart():
    assert re.fullmatch("[0-9a-f]{16}", Problem().hash)
    assert Problem().hash == Problem.paper().hash
    assert Problem().hash != Problem.paper(omega=0.30000000000000004).hash
    assert Problem(teacher=Teacher(omega=-0.0)).hash == Problem(teacher=Teacher(omega=0.0)).hash
    assert hash(Problem()) == hash(Problem.paper())


def test_a_problem_is_frozen_and_travels():
    problem = Problem().with_fields({"tokens.length": 3})
    with pytest.raises(FrozenInstanceError):
        problem.teacher.omega = 0.5  # pyright: ignore[reportAttributeAccessIssue]
    for copied in (pickle.loads(pickle.dumps(problem)), copy.deepcopy(problem)):
        assert copied == problem
        assert copied.with_fields({"tokens.length": 2}) == Problem()
    changed = replace(problem, teacher=Teacher(omega=0.1))
    assert changed.teacher.omega == 0.1
    assert changed.tokens == problem.tokens
    error = pickle.loads(pickle.dumps(ProblemError("a.b", "a.b is wrong.")))
    assert (error.field, str(error)) == ("a.b", "a.b is wrong.")


finite = st.floats(-1e12, 1e12)
positive = st.floats(1e-6, 1e6)


def tokens_of_length(draw, length):
    row = st.lists(positive, min_size=length, max_size=length)
    kind = draw(st.sampled_from(["sigma", "atoms", "points", "law", "mixture"]))
    if kind == "sigma":
        return {"length": length, "sigma": draw(positive | row)}
    if kind in ("atoms", "points"):
        counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
        atoms = [{"weight": n / sum(counts), "variances": draw(row)} for n in counts]
        if kind == "points":
            atoms = [{**atom, "positions": draw(row)} for atom in atoms]
        return {"length": length, "spectrum": atoms}
    if kind == "law":
        laws = [
            {"kind": "isotropic", "variance": draw(positive | row)},
            {"kind": "power-law", "exponent": draw(st.floats(0, 5)), "atoms": draw(st.integers(1, 40))},
            {"kind": "two-level", "variances": [draw(positive), draw(positive)], "fraction": draw(st.floats(0.1, 0.9))},
        ]
        return {"length": length, "spectrum": draw(st.sampled_from(laws))}
    return mixture_of_length(draw, length)


def mixture_of_length(draw, length):
    count, directions = draw(st.integers(1, 3)), draw(st.integers(0, 2))
    mean = st.lists(st.floats(-9, 9), min_size=directions, max_size=directions) | st.just([])
    cluster = st.fixed_dictionaries({"mean": mean}, optional={"sigma": positive})
    clusters = st.lists(cluster, min_size=count, max_size=count)
    weights = draw(distributions(count))
    laws = [
        {"kind": "independent", "weights": weights},
        {"kind": "independent", "weights": [weights] * length},
        {"kind": "markov", "weights": weights, "transition": [draw(distributions(count)) for _ in range(count)]},
        {"kind": "same", "probability": 1.0, "weights": weights},
        {"kind": "table", "table": np.reshape(draw(distributions(count**length)), [count] * length)},
    ]
    return {
        "kind": "mixture",
        "length": length,
        "clusters": draw(clusters | st.lists(clusters, min_size=length, max_size=length)),
        "law": draw(st.sampled_from(laws)),
    }


@st.composite
def problems(draw):
    length = draw(st.integers(1, 5))
    square = st.lists(st.lists(finite, min_size=length, max_size=length), min_size=length,
                      max_size=length)  # fmt: skip
    tokens = tokens_of_length(draw, length)
    vectors = np.array(draw(square)) / 1e6
    positions = [{}, {"kind": "none"}, {"gram": vectors @ vectors.T}]
    if length == 2:
        positions.append({"kind": "opposite"})
        positions.append({"kind": "opposite", "teacher": [[0.3] + [0.0] * 15, [-0.3] + [0.0] * 15]})
    if "positions" in str(tokens.get("spectrum")):
        positions = [{}, {"kind": "spectrum"}]
    loss = draw(st.sampled_from([{}, {"kind": "values", "width": draw(st.integers(1, 8))}]))
    scores = st.sampled_from(["softmax", "linear", "relu", "sigmoid", "softmax1"])
    teacher = {"omega": draw(st.floats(0, 1)), "rank": draw(st.integers(1, 8)), "score": draw(scores)}
    if draw(st.booleans()):
        teacher["mixing"] = draw(square)
    encodings = draw(st.sampled_from(positions))
    if "teacher" in encodings:
        columns = teacher["rank"] + loss.get("width", 0)
        encodings = {**encodings, "teacher": [row[:columns] for row in encodings["teacher"]]}
    student = {"rank": draw(st.integers(1, 8)), "tied": draw(st.booleans()), "score": draw(scores)}
    for layer in (teacher, student):
        layer["temperature"] = draw(positive)
        layer["causal"] = draw(st.booleans())
    regularizer = {"kind": draw(st.sampled_from(["ridge", "lasso", "elastic-net", "group-lasso"]))}
    regularizer["strength"] = draw(st.floats(1e-8, 1e8))
    if regularizer["kind"] in ("elastic-net", "group-lasso"):
        regularizer["ridge"] = draw(st.floats(0, 1e8))
    return Problem.from_dict(
        {
            "tokens": tokens,
            "positions": encodings,
            "teacher": teacher,
            "student": student,
            "regularizer": regularizer,
            "loss": loss,
            "integration": {
                "rule": "sobol",
                "standard_error": draw(st.floats(0, 1, exclude_min=True, exclude_max=True)),
                "seed": draw(st.integers(0, 2**63 - 1)),
                "nodes": draw(st.none() | st.integers(0, 24).map(lambda n: 2**n)),
            },
        }
    )


@settings(deadline=None)
@given(problems())
def test_toml_round_trip_is_exact(problem):
    again = Problem.from_toml(problem.to_toml())
    assert again == problem
    assert again.to_toml() == problem.to_toml()
    assert again.hash == problem.hash
    length = problem.tokens.length
    assert problem.mixing_matrix.shape == problem.positions_gram.shape == (length, length)
    weights, variances = problem.spectrum_atoms()
    assert variances.shape == (len(weights), len(problem.sites))
    assert problem.token_variances.shape == (length,)
    configurations, probabilities = problem.cluster_law
    assert configurations.shape == (len(probabilities), length)
    assert probabilities.min() > 0
    assert abs(probabilities.sum() - 1) < 1e-12
    assert np.all(problem.token_variances > 0)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_any_text_is_a_problem_or_a_problem_error(text):
    for make in (
        Problem.from_toml,
        lambda line: Problem().with_fields(dict([parse_setting(line)])),
    ):
        try:
            make(text)
        except ProblemError as error:
            assert str(error)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([f"{s}.{k}" for s, keys in Problem().to_dict().items() for k in keys]
                    + ["tokens.spectrum", "tokens.clusters", "tokens.law", "tokens.mean_positions",
                       "tokens.mean_teacher", "positions.gram", "positions.teacher", "teacher.temperature",
                       "student.causal", "regularizer.ridge", "regularizer.prox", "loss.kind", "loss.width",
                       "integration.nodes"]),
    json_values,
)  # fmt: skip
def test_any_value_is_taken_or_refused_by_name(name, value):
    section, _, key = name.partition(".")
    try:
        problem = Problem.from_dict({section: {key: value}})
    except ProblemError as error:
        assert error.field.startswith(section) or error.field == "integration.rule"
        assert str(error)
    else:
        assert Problem.from_toml(problem.to_toml()) == problem


# --- the package's front door ---------------------------------------------------------------


def test_import_is_light():
    code = (
        "import sys, attnphase; assert 'numpy' not in sys.modules; attnphase.Problem();"
        "heavy = {'sympy', 'numba', 'xarray', 'torch', 'scipy', 'matplotlib'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    assert attnphase.Problem is Problem
    assert attnphase.load_problem is load_problem
    assert set(attnphase.__all__) <= set(dir(attnphase))
    assert re.match(r"\d+", attnphase.__version__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnphase.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_tables_are_any_mappings():
    """Those that mypy and pyright take: a mapping at every level."""

    def read_only(value: Any) -> Any:
        if isinstance(value, dict):
            return MappingProxyType({key: read_only(one) for key, one in value.items()})
        return [read_only(one) for one in value] if isinstance(value, list) else value

    clusters = [[{"mean": [0.2]}, {"mean": [1.5]}], [{"mean": [-0.3]}]]
    law = {"kind": "independent", "weights": [[0.4, 0.6], [1.0]]}
    tables: dict[str, Any] = {
        "tokens": {"kind": "mixture", "length": 2, "clusters": clusters, "law": law},
        "loss": {"kind": "values"},
    }
    assert Problem(**read_only(tables)) == Problem.from_dict(read_only(tables)) == Problem(**tables)
    assert Tokens(**read_only(tables["tokens"])) == Problem(**tables).tokens
