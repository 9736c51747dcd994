"""Facts about labels of the Bayes-optimal theory depend on no unit of fields and labels, and on no constant in labels.

Fields times c, with what labels take of them over c, noise times a^2 and labels times a, are the same problem: what is
known of the teacher is the same number, and for powers of two to the last bit. Expected numbers are those of state
evolutions in this file: labels of one field that say in which of some cells it is, in closed form.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from attnphase import Problem
from attnphase.errors import ProblemError
from attnphase.facts.labels import FieldLaws, LabelFacts
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.model import model_of
from attnphase.theories.bayes_optimal.preimages import solved_fields
from attnphase.theories.bayes_optimal.solving import Start, solve_bayes_optimal
from attnphase.theories.bayes_optimal.symmetries import column_images
from attnphase.theories.bayes_optimal.thresholds import _weak_recovery, bayes_optimal_thresholds
from derivations.models.labels import labels_of_formula

UNITS = st.floats(-9, 9).map(lambda power: float(f"{10**power:.6g}"))
SCALES = st.floats(-6, 6).map(
    lambda power: float(f"{10**power:.6g}")
)  # of tokens: the largest and least that there are
EDGES = st.lists(st.integers(-9, 9), min_size=1, max_size=4, unique=True).map(
    lambda places: [0.263 * place + 0.0871 for place in places]
)


def problem(c=1.0, *, length=1, rank=1, noise=0.0, prior="gaussian"):
    loss = "sum((h - k - noise[:, :1])**2)" if noise else "sum((h - k)**2)"
    return Problem.from_dict(
        {
            "tokens": {"length": length, "sigma": c},
            "teacher": {"rank": rank, "noise": noise, "prior": prior},
            "student": {"rank": rank},
            "positions": {"kind": "none"},
            "loss": {"kind": "expression", "expression": loss},
        }
    )


def facts(text, length=1, rank=1, c=1.0):
    laws = FieldLaws(np.zeros((1, length * rank)), np.full((1, length * rank), c))
    return LabelFacts([labels_of_formula(text, length, rank)], [1.0], laws)


def written(value):
    """A number in a formula, which may be negative."""
    return f"({value!r})"


def steps(edges, c, a, constant, sizes=None):
    """A label that rises by steps of about a at edges, in units of c."""
    sizes = [1 + 0.3 * place for place in range(len(edges))] if sizes is None else sizes
    terms = (f"{size * a!r}*sign(k0_0 - {written(edge * c)})" for size, edge in zip(sizes, edges, strict=True))
    return f"{written(constant * a)} + {' + '.join(terms)}"


def known_of_cells(edges, alpha, labels=None):
    """The overlap for one field of variance one, of which a label tells the cell between edges, or cells alike."""
    labels = np.arange(len(edges) + 1) if labels is None else np.array(labels)
    same = labels == np.unique(labels)[:, None]
    z, w = np.polynomial.hermite_e.hermegauss(80)
    w = w / w.sum()
    ends, q = np.array([-np.inf, *sorted(edges), np.inf])[:, None], 0.5
    for _ in range(400):
        u = (ends - math.sqrt(q) * z) / math.sqrt(1 - q)
        chances = np.where(u[:-1] > 0, -np.diff(norm.sf(u), axis=0), np.diff(norm.cdf(u), axis=0))
        chances, slopes = same @ chances, same @ np.diff(norm.pdf(u), axis=0)
        told = alpha * (w @ (slopes**2 / np.maximum(chances, 1e-300)).sum(axis=0)) / (1 - q)
        q = told / (1 + told)
    return q


def reached(one, alpha, text, nodes=512):
    return solve_bayes_optimal(model_of(one, text), alpha, Start.uninformed, max_nodes=nodes)


@settings(max_examples=4)
@given(EDGES, SCALES, UNITS, st.sampled_from([0.0, -3e5, 1e7]), st.floats(0.6, 2.0))
def test_labels_of_finitely_many_values_are_those_of_the_fields_own_size(edges, c, a, constant, alpha):
    expected = known_of_cells(edges, alpha)
    point = reached(problem(c), alpha, steps(edges, c, a, constant), nodes=1024)
    assert abs(point.overlap - expected) < 4 * point.errors["overlap"] + 1e-3
    assert point.errors["overlap"] < 0.02


def weak_recovery_of_cells(edges):
    """``1 / sum_y E[(k^2 - 1) 1_y]^2 / P_y`` where ``|k|`` is told to be in a cell."""
    ends = np.array([0.0, *sorted(edges), np.inf])
    chances = 2 * -np.diff(norm.sf(ends))
    moments = 2 * np.diff(np.append(ends[:-1] * norm.pdf(ends[:-1]), 0.0))
    return 1 / (moments**2 / chances).sum()


@settings(max_examples=4)
@given(EDGES, SCALES, UNITS)
def test_weak_recovery_of_even_labels_depends_on_no_unit(edges, c, a):
    edges = [1.7 * abs(edge) for edge in edges]
    text = f"{steps(edges, c, a, 0.0)} + {steps(edges, c, a, 0.0).replace('sign(k0_0', 'sign(-k0_0')}"
    model = model_of(problem(c), text)
    assert len(model.channel.images) == 2
    found = _weak_recovery(model.evolution(16))
    expected = weak_recovery_of_cells(edges)
    assert abs(found.alpha - expected) < 4 * found.standard_error + 1e-4 * expected


def test_weak_recovery_of_a_rare_label_is_not_missed():
    """``|k|`` beyond 1.2 and 3.5 deviations, at a deviation of 10: the second is beyond what random fields may show."""
    expected = weak_recovery_of_cells([1.2, 3.5])
    found = bayes_optimal_thresholds(
        model_of(problem(10.0), "sign(abs(k0_0) - 12) + 2*sign(abs(k0_0) - 35)"), max_nodes=64
    )["weak_recovery"]
    assert abs(found.alpha - expected) < 4 * found.standard_error + 1e-4 * expected


@pytest.mark.parametrize("c", [1.0, 2.3e-5])
def test_labels_of_many_values(c):
    edges = [0.193 * place - 1.91 for place in range(20)]
    point = reached(problem(c), 1.3, steps(edges, c, 1.0, 0.0), nodes=1024)
    assert abs(point.overlap - known_of_cells(edges, 1.3)) < 4 * point.errors["overlap"] + 1e-4
    assert point.errors["overlap"] < 0.001


def test_labels_of_too_many_values_are_refused_by_their_number():
    text = "+".join(f"{place + 1}*sign(k[0, 0] - {0.193 * place}) + sign(k[1, 0])" for place in range(17))
    with pytest.raises(ProblemError, match="jumps between values, of which it has more than 16"):
        model_of(problem(length=2), text)


@settings(max_examples=4)
@given(st.floats(0.0005, 0.02), SCALES, UNITS, st.booleans())
def test_rare_labels_of_near_jumps_are_not_missed(width, c, a, polynomial):
    """Two jumps nearer to each other than samples of the field are: what is learned, and from when on."""
    even = f"k0_0**2 - {(width * c) ** 2!r}" if polynomial else f"abs(k0_0) - {width * c!r}"
    model, expected = model_of(problem(c), f"{a!r}*sign({even})"), weak_recovery_of_cells([width])
    assert abs(_weak_recovery(model.evolution(16)).alpha - expected) < 1e-9 * expected
    below = solve_bayes_optimal(model, 0.5 * expected, Start.informed, max_nodes=1024)
    assert below.overlap < 1e-6
    edges = [0.9137, 0.9137 + width]
    text = f"{a!r}*(sign(k0_0 - {edges[0] * c!r}) - sign(k0_0 - {edges[1] * c!r}))"
    alpha = 0.3 / width  # of which about 7 percent have the rare label
    point = reached(problem(c), alpha, text, nodes=1024)
    assert abs(point.overlap - known_of_cells(edges, alpha, [0, 1, 0])) < 4 * point.errors["overlap"] + 1e-4


@settings(max_examples=8)
@given(EDGES, SCALES, UNITS, st.sampled_from([0.0, 1e9]), st.integers(0, 2**32))
def test_every_field_has_one_of_the_labels(edges, c, a, constant, seed):
    """At all scales and next to the jumps, of one field, of a product of two, and of the largest of three."""
    random = np.random.default_rng(seed)
    near = np.array(edges)[:, None] * (1 + np.array([-1e-15, 0, 1e-15, 1e-9]))
    k = c * np.concatenate([near.ravel(), *(scale * random.standard_normal(50) for scale in (0.01, 1, 30))])
    pairs, triples = random.permutation(np.stack([k, k[::-1]], axis=1)), random.choice(k, (len(k), 3))
    for text, length, fields in (
        (steps(edges, c, a, constant), 1, k[:, None]),
        (f"sign(k[0, 0]*k[1, 0] - {c * c!r}) + sign(k[0, 0])", 2, pairs),
        (f"{a!r}*argmax(k)", 3, np.array(triples, float)),
    ):
        certain = facts(text, length, c=c).values()
        assert certain is not None
        assert (certain(fields).sum(axis=-1) == 1).all()
        assert ((certain(fields) == 0) | (certain(fields) == 1)).all()
    # fields in one cell have one label, and in different cells different ones
    certain = facts(steps(edges, c, a, constant), c=c).values()
    assert certain is not None
    k = k[(k[:, None] != c * np.array(edges)).all(axis=1)]  # at a jump itself either will do
    labels = certain(k[:, None]).argmax(axis=-1)
    cells = (k[:, None] > c * np.array(edges)).sum(axis=1)
    assert (
        len({*zip(labels.tolist(), cells.tolist(), strict=True)}) == len({*cells.tolist()}) == len({*labels.tolist()})
    )


def test_labels_are_told_apart_whatever_is_added_to_them():
    """Differences of 1e-18 within a square, and seven signs of one field."""
    certain = facts("(1e6 + 1e-12*sign(k0_0) + 1e-12*sign(k0_0 - 1))**2").values()
    assert certain is not None
    assert certain(np.array([[-1.0], [0.5], [2.0]])).argmax(axis=-1).tolist() == [0, 1, 2]
    many = " + ".join(f"{2**place}*sign(k0_0 - {0.2 * place:.1f})" for place in range(7))  # 8 of 128
    certain = facts(many).values()
    assert certain is not None
    assert certain(np.zeros((1, 1))).shape == (1, 8)
    equal = facts("sqrt(2)*sqrt(3)*sign(k0_0) + sqrt(6)*sign(k0_0 - 1)").values()
    assert equal is not None
    assert equal(np.zeros((1, 1))).shape == (1, 3)


@pytest.mark.parametrize("c", [1e-6, 1.0, 1e5])
def test_labels_that_are_flat_and_slopes_are_refused(c):
    """An atom and a density, however rare the atom is."""
    for text in (f"relu(k0_0 + {3 * c})", f"max(min(k0_0, {c}), 0)", f"relu(k0_0 - {4 * c}) + sign(k0_0)"):
        with pytest.raises(ProblemError, match=r"teacher\.noise = 0"):
            model_of(problem(c), text)


@pytest.mark.parametrize("c", [1e-6, 1.0, 1e6])
def test_likelihoods_add_up_to_one_at_every_field(c):
    with pytest.raises(ProblemError, match="must be from 0 to 1, and add up to 1"):
        model_of(problem(c), f"1/(1 + exp(-y*k0_0/{c})) + 0.1*relu(k0_0/{c} - 5)")
    model = model_of(problem(c), f"1/(1 + exp(-y*k0_0/{c})) + 0.1*relu(k0_0/{c} - 20)")
    assert isinstance(model.channel, Labels)
    assert model.channel.probabilities(np.array([[3 * c]])).sum() == pytest.approx(1, abs=1e-12)
    with pytest.raises(ProblemError, match="at k = "):
        model.channel.probabilities(np.array([[25 * c]]))


@settings(max_examples=6)
@given(SCALES, UNITS, st.sampled_from([0.0, 1e9, -1e20]), st.sampled_from([0.004, 1.0, 3.0, 25.0]))
def test_labels_have_no_symmetry_that_they_have_not(c, a, constant, place):
    """A kink on one side, at from .004 to 25 deviations; one on both is even."""
    even = f"{written(constant * a)} + {a!r}*sqrt(1 + (k0_0/{c!r})**2)"
    one, other = (f"{1e-3 * a!r}*relu({sign}k0_0/{c!r} - {place})" for sign in ("", "-"))
    assert len(column_images(facts(f"{even} + {one} + {other}", c=c), 1, 8)) == 2
    assert len(column_images(facts(f"{even} + {one}", c=c), 1, 8)) == 1
    two = f"{even} + {a!r}*sqrt(1 + (k0_1/{c!r})**2)"
    assert len(column_images(facts(two, rank=2, c=c), 2, 8)) == 8
    assert len(column_images(facts(f"{two} + {one}", rank=2, c=c), 2, 8)) == 2


def known_of_kink(at, noise, alpha):
    """The overlap for the label ``|k - at|`` with noise, by sums over the field for every label of a grid."""
    t = np.linspace(-6.5, 6.5, 261)
    weights = norm.pdf(t) * (t[1] - t[0])
    z, w = np.polynomial.hermite_e.hermegauss(24)
    q, y = 0.6, np.linspace(-6 * noise**0.5, 9, 110)
    for _ in range(25):
        told = 0.0
        for omega, weight in zip(math.sqrt(q) * z, w / w.sum(), strict=True):
            likely = norm.pdf(y[:, None], np.abs(omega + math.sqrt(1 - q) * t - at), noise**0.5) * weights
            told += weight * ((likely @ t) ** 2 / np.maximum(likely.sum(axis=1), 1e-290)).sum() * (y[1] - y[0])
        told *= alpha / (1 - q)
        q = told / (1 + told)
    return q


def test_a_constant_and_a_unit_hide_no_symmetry():
    at, noise, alpha = 0.8, 0.12, 1.1
    expected = known_of_kink(at, noise, alpha)
    for c, a, constant in ((1.0, 1.0, 3e6), (1e-5, 1e-7, 0.0), (1e4, 30.0, 1e5)):
        text = f"{constant * a!r} + {a!r}*abs(k0_0 - {at * c!r})/{c!r}"
        point = reached(problem(c, noise=noise * a * a), alpha, text, nodes=1024)
        assert abs(point.overlap - expected) < 4 * point.errors["overlap"] < 0.06


def test_thresholds_of_any_size_are_kept():
    """One of 1e-50 deviations, one of 1e50, and one of a deviation, written in numbers of 1e-40.

    Of four values that signs make the largest is that of no field.
    """
    certain = facts("sign(k0_0 - 1e-50) + sign(k0_0 - 1e50) + sign(3e-40*k0_0 - 3e-40)").values()
    assert certain is not None
    assert certain(np.array([[-1.0], [0.5], [2.0]])).argmax(axis=-1).tolist() == [0, 1, 2]


def clusters(c, *sigmas, means=None):
    rows = [{"sigma": c * sigma} | ({"mean": [c * mean]} if mean else {}) for sigma, mean in
            zip(sigmas, means or [0.0] * len(sigmas), strict=True)]  # fmt: skip
    loss = "(h[0, 0] + h[1, 0] - c[0]*k[0, 0] - c[1]*k[1, 0] - noise[0, 0])**2"
    return Problem.from_dict(
        {
            "tokens": {
                "kind": "mixture",
                "length": 2,
                "clusters": rows,
                "law": {"kind": "single-location", "weights": [0.65, 0.35]},
            },
            "teacher": {"noise": 0.2 * c * c},
            "positions": {"kind": "none"},
            "loss": {"kind": "expression", "expression": loss},
        }
    )


@pytest.mark.parametrize("c", [1e-5, 1e-4, 0.3, 1.0, 1e3])
def test_whether_tokens_tell_of_their_clusters_depends_on_no_unit(c):
    for one in (
        clusters(c, 1.0, 0.5),
        clusters(c, 1.0, 1.0 + 1e-9),
        clusters(c, 1.0, 1.0, means=[0.0, 1e-4]),
    ):
        with pytest.raises(ProblemError, match=r"tokens\.clusters gives token 0 clusters that differ"):
            model_of(one)
    same = reached(clusters(c, 0.1 + 0.2, 0.3), 2.3, None, nodes=64)
    assert same.overlap == pytest.approx(reached(clusters(1.0, 0.3, 0.3), 2.3, None, nodes=64).overlap, rel=1e-6)


CASES = {
    "steps": (1, 1, 0.0, 1.3, lambda c, a: f"{7 * a} + {a}*sign(k - {0.3 * c}) + {0.7 * a}*sign(k - {1.1 * c})"),
    "committee": (1, 2, 0.0, 2.3, lambda c, a: f"{a}*sign(k0_0 - {0.3 * c}) + {a}*sign(k0_1 - {0.3 * c})"),
    "kinks": (1, 1, 0.1, 1.2, lambda c, a: f"{a}*abs(k/{c} - 0.4) - {3 * a}"),
    "even kinks": (1, 1, 0.1, 1.7, lambda c, a: f"{a}*abs(k)/{c}"),
    "smooth": (1, 1, 0.1, 1.2, lambda c, a: f"{5 * a} + {a}*tanh(k/{c} - 0.4)"),
    "two tokens": (2, 1, 0.2, 1.5, lambda c, a: f"{a}*(k[0, 0]*k[1, 0]/{c * c} + relu(k[0, 0]/{c}))"),
    "fibres": (2, 1, 0.0, 0.4, lambda c, a: f"{a}*k[0, 0]/{c} - {0.6 * a}*sinh(k[1, 0]/{c})"),
    "one to one": (1, 1, 0.0, 0.6, lambda c, a: f"{a}*sinh(k/{c})"),
    "likelihood": (1, 1, 0.0, 1.6, lambda c, a: f"1/(1 + exp(-y*(k/{c} - 0.2)))"),
}


@pytest.mark.parametrize("name", CASES)
def test_powers_of_two_change_no_bit(name):
    """Overlaps, their errors, statuses, growth and what the channel resolves; test errors are squares of labels."""
    length, rank, noise, alpha, text = CASES[name]

    def found(c, a):
        one = problem(0.7 * c, length=length, rank=rank, noise=noise * a * a)
        point, channel = reached(one, alpha, text(c, a), nodes=128), model_of(one, text(c, a)).channel
        square = 1.0 if isinstance(channel, Labels) else a * a
        values = (
            point.overlap,
            point.errors["overlap"],
            point.growth,
            point.test_error / square,
            channel.resolution / c**2,
        )
        return point.status, np.array(values).tobytes()

    expected = found(1.0, 1.0)
    assert found(2.0**-10, 2.0**9) == expected
    assert found(2.0**7, 2.0**-12) == expected


@pytest.mark.parametrize(("channel", "noise"), [("sign", 0.1), ("absolute", 0.1), ("linear", 0.1), ("sign", 0.0)])
def test_powers_of_two_change_no_bit_of_named_channels(channel, noise):
    """Of entries with finitely many values too, which are known but for less than a channel resolves."""
    for prior in ("gaussian", "rademacher"):
        expected = None
        for c in (1.0, 2.0**-11, 2.0**6):
            one = problem(0.7 * c, noise=noise * c * c, prior=prior)
            point = reached(one, 2.4, channel, nodes=128)
            resolved = model_of(one, channel).channel.resolution / c**2
            values = point.status, np.array([point.overlap, point.errors["overlap"], resolved]).tobytes()
            expected = expected or values
            assert values == expected


@pytest.mark.parametrize("name", ["even steps", "even kinks"])
def test_powers_of_two_change_no_bit_of_thresholds(name):
    if name == "even steps":
        noise, text = 0.0, lambda c, a: f"{a}*sign(abs(k) - {0.8 * c}) + {a}*sign(abs(k) - {2.1 * c})"
    else:
        noise, text = 0.1, CASES[name][-1]

    def found(c, a):
        model = model_of(problem(0.7 * c, noise=noise * a * a), text(c, a))
        thresholds = bayes_optimal_thresholds(model, max_nodes=64)
        return {key: (one.statement, repr(one.alpha), repr(one.standard_error)) for key, one in thresholds.items()}

    assert found(2.0**-10, 2.0**9) == found(1.0, 1.0)


@given(width=st.floats(0.02, 0.3), c=UNITS, constant=st.floats(-2, 2).map(lambda number: round(number, 4)))
@settings(max_examples=6)
def test_labels_that_fold_on_a_short_stretch_tell_no_field(width, c, constant):
    """With u = k/c: ``u^3 - 3 w^2 u`` falls at w below zero and rises above, ``u^4 - 2 w^2 u^2`` has minima at w."""
    for sign in (-1, 1):
        s, w, u = written(sign * width**2), written(width), f"(k/{written(c)})"
        slow = f"{u} + {written(sign * width)}*tanh(2*{u}/{w})"
        for text in (f"{u}**3 + 3*{s}*{u}", f"{u}**4 + 2*{s}*{u}**2", slow, f"sinh({slow})"):
            assert (solved_fields(facts(f"{text} + {written(constant)}", c=c), 1, 1) is None) == (sign < 0)
