"""What labels tell of the teacher depends on no unit of fields and labels, and on no constant in labels.

Fields times c, with what labels take of them over c, noise times a^2 and labels times a, are the same problem: what is
known of the teacher is the same number, and for powers of two to the last bit. Expected numbers are those of labels of
one field that say in which of some cells it is, in closed form.

Not public: that labels are told apart at every field, and which fields leave a label unchanged, shows at few nodes.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learner import known_of_cells, learned, of_formula, of_hidden_location, weak_recovery_of_cells

from attnphase.errors import ProblemError
from attnphase.facts.labels import FieldLaws, LabelFacts
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.preimages import solved_fields
from attnphase.theories.bayes_optimal.symmetries import column_images
from derivations.models.labels import labels_of_formula


def rounded(power: float) -> float:
    return float(f"{10**power:.6g}")


UNITS, SCALES = st.floats(-9, 9).map(rounded), st.floats(-6, 6).map(rounded)  # of labels, and of tokens: all there are
EDGES = st.lists(st.integers(-9, 9), min_size=1, max_size=4, unique=True).map(
    lambda places: [0.263 * place + 0.0871 for place in places]
)


def facts(text: str, length: int = 1, rank: int = 1, c: float = 1.0) -> LabelFacts:
    laws = FieldLaws(np.zeros((1, length * rank)), np.full((1, length * rank), c))
    return LabelFacts([labels_of_formula(text, length, rank)], [1.0], laws)


def written(value: float) -> str:
    """A number in a formula, which may be negative."""
    return f"({value!r})"


def steps(edges: list[float], c: float, a: float, constant: float) -> str:
    """A label that rises by steps of about a at edges, in units of c."""
    terms = (f"{(1 + 0.3 * place) * a!r}*sign(k0_0 - {written(edge * c)})" for place, edge in enumerate(edges))
    return f"{written(constant * a)} + {' + '.join(terms)}"


@settings(max_examples=3)
@given(EDGES, SCALES, UNITS, st.sampled_from([0.0, -3e5, 1e7]), st.floats(0.6, 2.0))
def test_labels_of_finitely_many_values_are_learned_as_their_cells(edges, c, a, constant, alpha):
    point = learned(of_formula(sigma=c), alpha, steps(edges, c, a, constant), nodes=1024)
    assert abs(float(point.overlap) - known_of_cells(edges, alpha)) < 4 * float(point.overlap_stderr) + 1e-3
    assert float(point.overlap_stderr) < 0.02


@settings(max_examples=3)
@given(st.floats(0.0005, 0.02), SCALES, UNITS, st.booleans())
def test_rare_labels_of_near_jumps_are_not_missed(width, c, a, polynomial):
    """Two jumps nearer to each other than samples of the field are: what is learned, and from when on."""
    even = f"k0_0**2 - {(width * c) ** 2!r}" if polynomial else f"abs(k0_0) - {width * c!r}"
    problem, expected = of_formula(sigma=c), weak_recovery_of_cells([width])
    assert float(learned(problem, 0.5 * expected, f"{a!r}*sign({even})", "informed", 1024).overlap) < 1e-6
    edges = [0.9137, 0.9137 + width]
    text = f"{a!r}*(sign(k0_0 - {edges[0] * c!r}) - sign(k0_0 - {edges[1] * c!r}))"
    alpha = 0.3 / width  # of which about 7 percent have the rare label
    point = learned(problem, alpha, text, nodes=1024)
    assert abs(float(point.overlap) - known_of_cells(edges, alpha, [0, 1, 0])) < 4 * float(point.overlap_stderr) + 1e-4


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        pytest.param("(1e6 + 1e-12*sign(k0_0) + 1e-12*sign(k0_0 - 1))**2", [0, 1, 2], 3, id="1e-18 within a square"),
        pytest.param("sign(k0_0 - 1e-50) + sign(k0_0 - 1e50) + sign(3e-40*k0_0 - 3e-40)", [0, 1, 2], 4, id="any edge"),
        pytest.param("sqrt(2)*sqrt(3)*sign(k0_0) + sqrt(6)*sign(k0_0 - 1)", [0, 1, 2], 3, id="equal roots"),
        pytest.param("-sign(k0_0) - sign(k0_0 - 1)/2 - sign(k0_0) + 7", [3, 1, 0], 4, id="falling"),
        pytest.param("sign(k0_0)*sign(k0_0 - 1)", [1, 0, 1], 2, id="the same on both sides"),
    ],
)
def test_labels_are_told_apart_whatever_is_added_to_them(text, expected, count):
    """Of values that signs make, one may be that of no field."""
    certain: Any = facts(text).values()
    seen = certain(np.array([[-1.0], [0.5], [2.0]]))
    assert (seen.argmax(axis=-1).tolist(), seen.shape[1]) == (expected, count)


def test_only_labels_that_some_field_has_are_counted():
    """Seven signs of one field have 8 of 128 values."""
    certain: Any = facts(" + ".join(f"{2**place}*sign(k0_0 - {0.2 * place:.1f})" for place in range(7))).values()
    assert certain(np.zeros((1, 1))).shape == (1, 8)


@pytest.mark.parametrize("c", [1e-6, 1.0, 1e5])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("relu(k0_0 + {3})", r"teacher\.noise = 0"),
        ("max(min(k0_0, {1}), 0)", r"teacher\.noise = 0"),
        ("relu(k0_0 - {4}) + sign(k0_0)", r"teacher\.noise = 0"),
        ("1/(1 + exp(-y*k0_0/{1})) + 0.1*relu(k0_0/{1} - 5)", "must be from 0 to 1, and add up to 1"),
    ],
)
def test_flat_pieces_and_wrong_likelihoods_are_found_in_any_unit(text, words, c):
    """An atom beside a density, however rare the atom is, and probabilities that do not add up beyond some field."""
    for place in (1, 3, 4):
        text = text.replace(f"{{{place}}}", repr(place * c))
    with pytest.raises(ProblemError, match=words):
        learned(of_formula(sigma=c), 0.7, text)


@pytest.mark.parametrize("c", [1e-6, 1e6])
def test_likelihoods_add_up_to_one_at_the_fields_that_are_met(c):
    channel: Any = model_of(of_formula(sigma=c), f"1/(1 + exp(-y*k0_0/{c})) + 0.1*relu(k0_0/{c} - 20)").channel
    assert channel.probabilities(np.array([[3 * c]])).sum() == pytest.approx(1, abs=1e-12)
    with pytest.raises(ProblemError, match="at k = "):
        channel.probabilities(np.array([[25 * c]]))


@pytest.mark.parametrize("c", [1e-5, 0.3, 1e3])
def test_whether_tokens_tell_of_their_clusters_depends_on_no_unit(c):
    shares, noise = (0.65, 0.35), 0.2 * c * c
    for sigmas, means in (((c, 0.5 * c), ()), ((c, c + 1e-9 * c), ()), ((c, c), (0.0, 1e-4 * c))):
        with pytest.raises(ProblemError, match=r"tokens\.clusters gives token 0 clusters that differ"):
            learned(of_hidden_location(shares, sigmas, noise, means), 2.3, nodes=64)
    same = learned(of_hidden_location(shares, ((0.1 + 0.2) * c, 0.3 * c), noise), 2.3, nodes=64)
    plain = learned(of_hidden_location(shares, (0.3, 0.3), 0.2), 2.3, nodes=64)
    assert float(same.overlap) == pytest.approx(float(plain.overlap), rel=1e-6)


@settings(max_examples=4)
@given(SCALES, UNITS, st.sampled_from([0.0, 1e9, -1e20]), st.sampled_from([0.004, 1.0, 3.0, 25.0]))
def test_labels_have_no_symmetry_that_they_have_not(c, a, constant, place):
    """A kink on one side, at from .004 to 25 deviations; one on both is even."""
    even = f"{written(constant * a)} + {a!r}*sqrt(1 + (k0_0/{c!r})**2)"
    one, other = (f"{1e-3 * a!r}*relu({sign}k0_0/{c!r} - {place})" for sign in ("", "-"))
    two = f"{even} + {a!r}*sqrt(1 + (k0_1/{c!r})**2)"
    for text, rank, count in (
        (f"{even} + {one} + {other}", 1, 2),
        (f"{even} + {one}", 1, 1),
        (two, 2, 8),
        (f"{two} + {one}", 2, 2),
    ):
        assert len(column_images(facts(text, rank=rank, c=c), rank, 8)) == count


@settings(max_examples=4)
@given(width=st.floats(0.02, 0.3), c=UNITS, constant=st.floats(-2, 2).map(lambda number: round(number, 4)))
def test_labels_that_fold_on_a_short_stretch_tell_no_field(width, c, constant):
    """With u = k/c: ``u^3 - 3 w^2 u`` falls at w below zero and rises above, ``u^4 - 2 w^2 u^2`` has minima at w."""
    for sign in (-1, 1):
        s, w, u = written(sign * width**2), written(width), f"(k/{written(c)})"
        slow = f"{u} + {written(sign * width)}*tanh(2*{u}/{w})"
        for text in (f"{u}**3 + 3*{s}*{u}", f"{u}**4 + 2*{s}*{u}**2", slow, f"sinh({slow})"):
            assert (solved_fields(facts(f"{text} + {written(constant)}", c=c), 1, 1) is None) == (sign < 0)


CASES: dict[str, tuple[int, int, float, float, Any]] = {
    "steps": (1, 1, 0.0, 1.3, lambda c, a: f"{7 * a} + {a}*sign(k - {0.3 * c}) + {0.7 * a}*sign(k - {1.1 * c})"),
    "committee": (1, 2, 0.0, 2.3, lambda c, a: f"{a}*sign(k0_0 - {0.3 * c}) + {a}*sign(k0_1 - {0.3 * c})"),
    "kinks": (1, 1, 0.1, 1.2, lambda c, a: f"{a}*abs(k/{c} - 0.4) - {3 * a}"),
    "smooth": (1, 1, 0.1, 1.2, lambda c, a: f"{5 * a} + {a}*tanh(k/{c} - 0.4)"),
    "two tokens": (2, 1, 0.2, 1.5, lambda c, a: f"{a}*(k[0, 0]*k[1, 0]/{c * c} + relu(k[0, 0]/{c}))"),
    "fibres": (2, 1, 0.0, 0.4, lambda c, a: f"{a}*k[0, 0]/{c} - {0.6 * a}*sinh(k[1, 0]/{c})"),
    "one to one": (1, 1, 0.0, 0.6, lambda c, a: f"{a}*sinh(k/{c})"),
    "likelihood": (1, 1, 0.0, 1.6, lambda c, a: f"1/(1 + exp(-y*(k/{c} - 0.2)))"),
    "absolute": (1, 1, 0.1, 2.4, None),
    "linear": (1, 1, 0.1, 2.4, None),
    "sign": (1, 1, 0.0, 2.4, None),
}


@pytest.mark.parametrize("prior", ["gaussian", "rademacher"])
@pytest.mark.parametrize("name", CASES)
def test_powers_of_two_change_no_bit_of_what_is_learned(name, prior):
    """Overlaps, their errors, statuses, growth and what the channel resolves; test errors are squares of labels."""
    length, rank, noise, alpha, text = CASES[name]
    if prior == "rademacher" and text is not None:
        pytest.skip("a prior of finitely many values is asked of the named channels")

    def found(c: float, a: float) -> bytes:
        a = a if text else c  # labels of the named channels have the unit of the field
        channel = text(c, a) if text else name
        one = of_formula(length, rank, noise=noise * a * a, sigma=0.7 * c, prior=prior)
        point, resolved = learned(one, alpha, channel, nodes=128), model_of(one, channel).channel.resolution / c**2
        square = 1.0 if name in ("steps", "committee", "likelihood", "sign") else a * a
        values = [float(point[one]) for one in ("overlap", "overlap_stderr", "growth", "status")]
        return np.array([*values, float(point.test_error) / square, resolved]).tobytes()

    expected = found(1.0, 1.0)
    assert found(2.0**-10, 2.0**9) == expected
    assert found(2.0**7, 2.0**-12) == expected
