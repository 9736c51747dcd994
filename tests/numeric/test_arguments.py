"""Arguments of the public functions: one value or several, and a sentence for everything else."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnphase import arguments
from attnphase.errors import ProblemError


def positive(name, value):
    return arguments.number(name, value, lambda x: x > 0, "a positive number")


def several(name, value):
    return arguments.numbers(name, value, lambda x: x > 0, "a positive number")


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (0.3, (0.3,)),
        (np.float32(2.5), (2.5,)),
        (np.array(0.7), (0.7,)),
        (xr.DataArray(0.7), (0.7,)),
        ([0.2, 3], (0.2, 3.0)),
        ((0.2, np.int64(3)), (0.2, 3.0)),
        (range(1, 4), (1.0, 2.0, 3.0)),
        (np.linspace(0.5, 1.5, 3), (0.5, 1.0, 1.5)),
        (xr.DataArray([0.5, 0.25], dims="x"), (0.5, 0.25)),
    ],
)
def test_one_or_several_numbers(given, taken):
    found = several("alpha", given)
    assert found == taken
    assert all(type(value) is float for value in found)


@pytest.mark.parametrize(
    ("function", "given", "message"),
    [
        (several, [], "x must hold at least one value."),
        (several, None, "x must be a value or a list of values, not None."),
        (several, {1.0, 2.0}, "x must be a value or a list of values, not {1.0, 2.0}."),
        (several, {"a": 1}, "x must be a value or a list of values, not {'a': 1}."),
        (several, np.ones((2, 2)), "x must be a value or a list of values, not array([[1., 1.], [1., 1.]])."),
        (several, [0.3, 0.4, 0.3], "x has 0.3 twice: give every value once."),
        (several, [0.3, "b"], "x must be a positive number, not 'b'."),
        (several, [[0.3]], "x must be a positive number, not [0.3]."),
        (positive, True, "x must be a positive number, not True."),
        (positive, math.nan, "x must be a positive number, not nan."),
        (positive, math.inf, "x must be a positive number, not inf."),
        (positive, -0.1, "x must be a positive number, not -0.1."),
        (positive, 10**400, f"x must be a positive number, not 1{27 * '0'}...{29 * '0'}."),
        pytest.param(
            positive, 10**5000, "x must be a positive number, not a whole number of thousands of digits.", id="digits"
        ),
        (positive, range(10**9), "x must be a positive number, not range(0, 1000000000)."),
        (lambda n, v: arguments.whole(n, v, 2), 1, "x must be a whole number of at least 2, not 1."),
        (lambda n, v: arguments.whole(n, v, 2, 5), 6, "x must be a whole number from 2 to 5, not 6."),
        (lambda n, v: arguments.whole(n, v, 0), 1.5, "x must be a whole number of at least 0, not 1.5."),
        (lambda n, v: arguments.whole(n, v, 0), True, "x must be a whole number of at least 0, not True."),
        (lambda n, v: arguments.wholes(n, v, 0), [1, 1], "x has 1 twice: give every value once."),
        (lambda n, v: arguments.word(n, v, ("left", "right")), "lift", 'x must be one of left, right, not "lift": did'),
        (lambda n, v: arguments.word(n, v, ("left", "right")), 3, "x must be one of left, right, not 3."),
        (lambda n, v: arguments.words(n, v, ("left", "right")), ["left"] * 2, "x has 'left' twice"),
        (arguments.flag, 1, "x must be True or False, not 1."),
        (arguments.flag, "yes", "x must be True or False, not 'yes'."),
        (arguments.path, 5, "x must be the path of a file, not 5."),
        (arguments.path, "", "x must be the path of a file, not ''."),
        (arguments.path, "a\0b", r"x must be the path of a file, not 'a\x00b'."),
        (lambda n, v: arguments.instance(n, v, Path), 5, "x must be a Path, not 5."),
        (lambda n, v: arguments.mapping(n, v, "a mapping"), [1], "x must be a mapping, not [1]."),
        (lambda n, v: arguments.mapping(n, v, "a mapping"), {1: 2}, "x must be a mapping, not {1: 2}."),
    ],
)
def test_refused(function, given, message):
    with pytest.raises(ProblemError, match=re.escape(message)) as caught:
        function("x", given)
    assert caught.value.field == "x"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_taken_as_they_are():
    assert arguments.word("x", "left", ("left", "right")) == "left"
    assert arguments.words("x", "left", ("left", "right")) == ("left",)
    assert arguments.words("x", ["right", "left"], ("left", "right")) == ("right", "left")
    assert arguments.whole("x", np.int32(4), 2) == 4
    assert arguments.wholes("x", 4, 2) == (4,)
    assert arguments.flag("x", np.bool_(True)) is True
    assert arguments.path("x", Path("a/b")) == Path("a/b")
    assert arguments.mapping("x", {"a": 1}, "a mapping") == {"a": 1}
