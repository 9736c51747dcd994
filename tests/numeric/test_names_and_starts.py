"""What a user may write by mistake: others' words, a file for a problem, a start from which training does not go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.problem.problem import Problem


def refusal(call: Any) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        call()
    assert str(caught.value).count("\n") == 0
    return caught.value


# --- others' words ---------------------------------------------------------------------------------------------------

MEANT = {
    "l1": 'regularizer.kind = "lasso"',
    "L1": 'regularizer.kind = "lasso"',
    "lasso": 'regularizer.kind = "lasso"',
    "elastic_net": 'regularizer.kind = "elastic-net"',
    "cross_entropy": 'loss.kind = "logistic"',
    "cross-entropy": 'loss.kind = "logistic"',
    "mse": 'loss.kind = "square"',
    "weight_decay": '"regularizer.strength"',
    "weightDecay": '"regularizer.strength"',
    "lambda": '"regularizer.strength"',
}


@pytest.mark.parametrize("section", ["", "loss.", "regularizer.", "student."])
@pytest.mark.parametrize("word", MEANT)
def test_another_word_for_a_key_is_understood(section: str, word: str):
    error = refusal(lambda: Problem().with_fields({section + word: 0.1}))
    assert str(error) == f'unknown key "{section}{word}": did you mean {MEANT[word]}?'
    if section:
        tables: Any = {section[:-1]: {word: 0.1}}
        assert str(refusal(lambda: Problem.from_dict(tables))) == str(error)


@pytest.mark.parametrize(
    ("place", "word", "meant"),
    [
        ("regularizer.kind", "l1", "lasso"),
        ("regularizer.kind", "L2", "ridge"),
        ("regularizer.kind", "weight_decay", "ridge"),
        ("regularizer.kind", "elastic_net", "elastic-net"),
        ("regularizer.kind", "rigde", "ridge"),
        ("loss.kind", "cross_entropy", "logistic"),
        ("loss.kind", "MSE", "square"),
        ("loss.kind", "svm", "hinge"),
        ("tokens.kind", "gausian", "gaussian"),
        ("regularizer.kind", "qqq", None),
    ],
)
def test_another_word_for_a_kind_is_understood(place: str, word: str, meant: str | None):
    said = str(refusal(lambda: Problem().with_fields({place: word})))
    assert said.endswith(f'but it is "{word}".' if meant is None else f'but it is "{word}": did you mean "{meant}"?')


def test_the_nearest_key_of_the_same_section_comes_first():
    assert str(refusal(lambda: Problem().with_fields({"regularizer.ridg": 1}))).endswith('"regularizer.ridge"?')


@pytest.mark.parametrize("given", ["file.toml", Path("file.toml"), {"tokens": {"length": 3}}])
def test_who_gives_a_file_for_a_problem_is_told_how_to_read_it(given: Any):
    for call in (ap.solve, ap.sweep, ap.simulate):
        said = str(refusal(lambda call=call: call(given, 2.0)))
        assert said.startswith("problem must be a Problem, not ")
        assert said.endswith(": load_problem reads one from a file, Problem.from_dict makes one of a mapping.")


# --- defaults that follow the length ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4])
def test_the_papers_problem_takes_another_length(length: int):
    other = Problem.paper(omega=0.2, sigma=0.7).with_fields({"tokens.length": length})
    assert other == Problem().with_fields({"teacher.omega": 0.2, "tokens.sigma": 0.7, "tokens.length": length})
    given = Problem.paper(mixing=((0.3, 0.7), (0.8, 0.2)))
    assert refusal(lambda: given.with_fields({"tokens.length": length})).field == "teacher.mixing"


# --- starts of trained parameters ------------------------------------------------------------------------------------


def trained(expression: str, columns: int = 1, **numbers: float) -> Problem:
    """One token, with a loss whose numbers are trained."""
    return Problem.from_dict(
        {
            "tokens": {"length": 1, "sigma": 1.0},
            "positions": {"kind": "none"},
            "student": {"rank": columns},
            "loss": {
                "kind": "expression",
                "expression": expression,
                "parameters": numbers,
                "trained": {name: f"0.1*{name}**2" for name in numbers},
            },
        }
    )


READ_OUTS = {
    "(A*h - k)**2/2": 1,
    "(A*tanh(h) - k)**2/2": 1,
    "log(1 + exp(-sign(k)*A*h))": 1,
    "(A*h[0, 0] + h[0, 1] - k[0, 0])**2/2": 2,
    "(tanh(h[0, 1]) + A*relu(h[0, 0]) - k[0, 0])**2/2": 2,
}
FACTORS = {"a": "a", "a - s": "(a - {s})", "a b": "(a*b)", "a + b": "(a + b - {s})"}


@settings(max_examples=20)
@given(st.sampled_from(list(READ_OUTS)), st.sampled_from(list(FACTORS)), st.integers(1, 3), st.floats(0.2, 2))
def test_a_read_out_that_begins_at_zero_names_its_number(read_out: str, factor: str, s: int, beside: float):
    """Every factor of h that vanishes at the start; a start beside it is taken."""
    text = read_out.replace("A", FACTORS[factor].format(s=s))
    starts = {
        "a": {"a": 0.0},
        "a - s": {"a": float(s)},
        "a b": {"a": 0.0, "b": 0.0},
        "a + b": {"a": 0.0, "b": float(s)},
    }
    numbers = starts[factor]
    error = refusal(lambda: trained(text, READ_OUTS[read_out], **numbers))
    field = "h" if READ_OUTS[read_out] == 1 else "h0_0"
    assert error.field == "loss.parameters.a"
    assert str(error).startswith(f"loss.parameters.a = {numbers['a']:g} ")
    assert f"without {field}, and training, which begins there, cannot tell how to leave it" in str(error)
    assert str(error).endswith("begin at another value.")
    trained(text, READ_OUTS[read_out], **{name: value + beside for name, value in numbers.items()})


def test_a_bias_may_begin_at_zero():
    assert trained("(h - k - b)**2/2", b=0.0).loss.trained
    fixed = {"kind": "expression", "expression": "(a*h - k)**2/2", "parameters": {"a": 0.0}}
    tables: Any = {"tokens": {"length": 1}, "positions": {"kind": "none"}, "loss": fixed}
    assert "does not depend on the student's fields" in str(refusal(lambda: Problem.from_dict(tables)))
