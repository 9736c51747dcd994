"""The description of a problem: defaults, TOML round trip, and one sentence for every refusal."""

import copy
import math
import pickle
import re
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnphase
from attnphase.problem import (
    Integration,
    Positions,
    Problem,
    ProblemError,
    Regularizer,
    SpectrumAtom,
    Student,
    Teacher,
    Tokens,
    load_problem,
    parse_setting,
)

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
    ("regularizer.strength", [0, -1, 1e-9, 1e9, math.nan, math.inf, False], "a number from 1e-8 to 1e8"),
    ("integration.standard_error", [0, 1, -0.1, math.nan, True], "a number between 0 and 1"),
    ("integration.seed", [-1, 1.5, True, 2**63], "a whole number from 0"),
    ("teacher.score", [1, "", True], "the name of a score, a formula in z"),
    ("student.score", [None, ["softmax"]], "the name of a score, a formula in z"),
    ("teacher.temperature", [0, -1, math.inf, "x", True], "a number from 1e-6 to 1e6"),
    ("student.temperature", [0, -1, math.nan], "a number from 1e-6 to 1e6"),
    ("teacher.causal", [1, "yes"], "true or false"),
    ("student.causal", [0], "true or false"),
    ("positions.kind", ["round", 3], '"opposite", "gram", "spectrum" or "none"'),
    ("positions.teacher", [3, "x", [0.1, 0.2]], "a table of finite numbers, a row for each token"),
    ("integration.rule", ["simpson", 3], '"auto", "gauss-hermite", "sobol" or "published"'),
    ("tokens.kind", ["mixtures", "gausian", 1], '"gaussian" or "mixture"'),
    ("tokens.clusters", [3, "x", [3], [[3]]], "a list of tables, each with sigma and mean"),
    ("tokens.law", [3, "same", [0.5, 0.5]], "a table with a kind"),
    ("tokens.mean_positions", [3, [1.0]], "a table of finite numbers"),
    ("tokens.mean_teacher", [3, [1.0], [[math.nan]]], "a table of finite numbers"),
    ("regularizer.kind", ["lassso", 1], '"ridge", "lasso", "elastic-net", "group-lasso", "expression" or "prox"'),
    ("regularizer.ridge", [-0.1, math.inf, "x", True], "a number from 0 to 1e8"),
    ("regularizer.expression", [3, ""], "a formula in one weight w"),
    ("regularizer.prox", [3, ""], "the name of a function"),
    ("loss.kind", ["squared", 3], '"attention", "values", "square", "logistic", "hinge" or "expression"'),
    ("loss.width", [0, 9, 1.5, True], "a whole number from 1 to 8"),
    ("loss.expression", [3, ""], "a formula in the local fields"),
    ("teacher.mixing", [3, "x", [1, 2], {"a": 1}], "a square table of finite numbers"),
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
    ],
)
def test_sections_made_in_python_raise_our_error(cls, section):
    error = refusal(cls, colour=1)
    assert error.field == f"{section}.colour"
    assert str(error).startswith(f'unknown key "{section}.colour": "{section}" has the keys ')
    assert refusal(cls, *range(9)).field == section


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
    assert str(error) == 'unknown key "student.zzz": "student" has the keys score, rank, tied.'
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
        ("missing.csv", "there is no file missing.csv"),
    ],
)
def test_refused_spectra(atoms, words):
    error = refusal(Problem.from_dict, {"tokens": {"spectrum": atoms}})
    assert error.field == "tokens.spectrum"
    assert words in str(error)


def test_refused_atoms_made_in_python():
    assert refusal(SpectrumAtom, weight=2, variances=(1, 1)).field == "tokens.spectrum"
    assert refusal(SpectrumAtom, wieght=1).field == "tokens.spectrum"


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
    Problem().with_fields(dict([parse_setting(text)])) if "length" not in text else None


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
    assert "cannot be read" in str(refusal(load_problem, "a\0b"))


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


@st.composite
def problems(draw):
    length = draw(st.integers(1, 5))
    square = st.lists(st.lists(finite, min_size=length, max_size=length), min_size=length,
                      max_size=length)  # fmt: skip
    if draw(st.booleans()):
        sigma = draw(positive | st.lists(positive, min_size=length, max_size=length))
        tokens = {"length": length, "sigma": sigma}
    else:
        counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
        row = st.lists(positive, min_size=length, max_size=length)
        tokens = {
            "length": length,
            "spectrum": [{"weight": n / sum(counts), "variances": draw(row)} for n in counts],
        }
    vectors = np.array(draw(square)) / 1e6
    positions = [{}, {"kind": "none"}, {"gram": vectors @ vectors.T}]
    if length == 2:
        positions.append({"kind": "opposite"})
    teacher = {"omega": draw(st.floats(0, 1)), "rank": draw(st.integers(1, 8))}
    teacher["score"] = draw(st.sampled_from(["softmax", "linear"]))
    if draw(st.booleans()):
        teacher["mixing"] = draw(square)
    return Problem.from_dict(
        {
            "tokens": tokens,
            "positions": draw(st.sampled_from(positions)),
            "teacher": teacher,
            "student": {"rank": draw(st.integers(1, 8)), "tied": draw(st.booleans())},
            "regularizer": {"strength": draw(st.floats(1e-8, 1e8))},
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
    assert variances.shape == (len(weights), length)
    assert problem.token_variances.shape == (length,)
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
                    + ["tokens.spectrum", "positions.gram", "integration.nodes"]),
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
