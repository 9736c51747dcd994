"""Kinds: what their classes say fits the sections, and a new one is one class."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import ClassVar, cast

import numpy as np
import pytest
from numpy.testing import assert_allclose

import attnphase as ap
from attnphase.errors import ProblemError
from attnphase.integration.kinds import RULES
from attnphase.integration.refinement import Refinement
from attnphase.kernels.key import ModelKey
from attnphase.kernels.reference import reference_backend
from attnphase.problem import Integration, Law, Loss, Problem, Regularizer, SpectrumLaw, Student, Tokens
from attnphase.problem.attention import SHIPPED_SCORES
from attnphase.problem.cluster_laws import CLUSTER_LAWS, ClusterLaw
from attnphase.problem.losses import LOSSES, Scalar
from attnphase.problem.schema import notes_of
from attnphase.problem.spectrum_laws import SPECTRUM_KINDS, SpectrumKind
from attnphase.problem.template import changes_for
from attnphase.problem.token_laws import TOKEN_LAWS
from attnphase.rows.kind import RegularizerKind
from attnphase.rows.kinds import REGULARIZERS
from attnphase.rows.regularizer import RowRegularizer
from attnphase.state_evolution.starts import initial_overlaps
from derivations.models.scalar import SCALAR_LOSSES, ScalarModel
from derivations.models.scores import SCORES

OF = {
    Regularizer: REGULARIZERS,
    Loss: LOSSES,
    Tokens: TOKEN_LAWS,
    Law: CLUSTER_LAWS,
    SpectrumLaw: SPECTRUM_KINDS,
}


@pytest.mark.parametrize("section", OF)
def test_keys_of_kinds_are_keys_of_their_section(section):
    """A misspelt key would be refused for every kind, or forgotten by none; help on a section names all its kinds."""
    known = {item.name for item in fields(section)}
    for name, kind in OF[section].items():
        assert kind.name == name
        assert {*kind.keys} <= known
        assert {*kind.needs} <= {*kind.keys}
        assert f'``"{name}"``' in str(section.__doc__)
    assert dict(notes_of(section).kinds)["kind"] is OF[section]


def test_names_of_rules():
    assert [rule.name for rule in RULES.values()] == [*RULES]
    with pytest.raises(ProblemError, match='"auto", "gauss-hermite", "sobol", "lines" or "published"'):
        Integration(rule="simpson")
    with pytest.raises(ProblemError, match=r'^integration\.rule = "split" is no more: write "lines"\.$'):
        Integration(rule="split")
    with pytest.raises(ProblemError, match=r'^integration\.rule = "nets" is no more: write "sobol" or "lines"\.$'):
        Integration(rule="nets")


def test_every_shipped_score_is_named_and_no_other():
    """A name too many would not be checked; one too few only costs time."""
    assert set(SHIPPED_SCORES) == set(SCORES)


def test_scalar_losses_have_models():
    assert {name for name, kind in LOSSES.items() if isinstance(kind, Scalar)} == set(SCALAR_LOSSES)


@pytest.mark.parametrize(
    "chosen",
    [
        *({"regularizer": name} for name, kind in REGULARIZERS.items() if kind.example is not None),
        *({"loss": name} for name in LOSSES),
        *({"spectrum": name} for name in SPECTRUM_KINDS),
    ],
    ids=str,
)
def test_examples_of_kinds_make_problems(chosen):
    problem = Problem().with_fields(changes_for(**chosen))
    (section, name) = next(iter(chosen.items()))
    found = problem.to_dict()
    assert (found["tokens"] if section == "spectrum" else found).get(section, {"kind": "attention"})["kind"] == name


# ------------------------------------------------------------------------------------------------- a new one is a class


class Huber(RegularizerKind):
    """(strength/2) w^2 up to a weight of 1, linear beyond."""

    name = "test-huber"
    keys = ("strength", "ridge")
    penalty = r"s \sum_c \mathrm{huber}(w_c)"
    example: ClassVar = {"strength": 0.01}

    def rows(self, given, columns):
        s = cast("float", given.strength)

        def value(w):
            return np.where(np.abs(w) <= 1, s / 2 * w**2, s * (np.abs(w) - 0.5))

        def prox(v, step):
            return np.where(np.abs(v) <= 1 + s * step, v / (1 + s * step), v - s * step * np.sign(v))

        return RowRegularizer(self.name, float(given.ridge), value, prox, panels=24)


class Hubers(Scalar):
    """sqrt(1 + (h - k)^2)."""

    name = "test-pseudo-huber"

    def model(self, of):
        from sympy import sqrt

        return ScalarModel(self.name, lambda h, k: sqrt(1 + (h[0][0] - k[0][0]) ** 2))


class Opposed(ClusterLaw):
    """Every token in the cluster that the one before is not in."""

    name = "test-opposed"
    keys = ()

    def configurations(self, law, counts):
        first = np.arange(2)
        return np.stack([(first + token) % 2 for token in range(len(counts))], axis=1), np.full(2, 0.5)

    def statements(self, law):
        yield "Neighbours are in different clusters."


class Linear(SpectrumKind):
    """Eigenvalues that fall linearly."""

    name = "test-linear"
    keys = ("variance", "atoms")
    defaults: ClassVar = {"variance": 0.25, "atoms": 4}
    example: ClassVar = {}

    def expand(self, law, count):
        assert law.atoms is not None
        shape = np.arange(law.atoms, 0.0, -1)
        return np.full(law.atoms, 1 / law.atoms), np.outer(shape / shape.mean(), np.full(count, law.variance))


class Coarse(Refinement):
    """Tensor rules of order 3, and then of order 5."""

    name = "test-coarse"
    requires: ClassVar = {"student.rank": 1}

    @classmethod
    def check_nodes(cls, nodes):
        raise ProblemError("integration.nodes", "integration.nodes does not go with test-coarse.")

    def first(self):
        return self.gauss_hermite(3)

    def next(self, rule, error, second_minima, parts=None):
        return self.gauss_hermite(5) if rule.order == 3 and error > self.asked.standard_error else None


@pytest.fixture
def added(monkeypatch):
    for kinds, kind in ((REGULARIZERS, Huber()), (LOSSES, Hubers()), (CLUSTER_LAWS, Opposed())):
        monkeypatch.setitem(kinds, kind.name, kind)
    monkeypatch.setitem(SPECTRUM_KINDS, Linear.name, Linear())
    monkeypatch.setitem(RULES, Coarse.name, Coarse)


def test_a_new_regularizer(added):
    """Up to a weight of 1 the ridge: where all weights are small the fixed points are the same."""
    problem = Problem(regularizer=Regularizer(kind="test-huber", strength=0.3))
    assert Problem.from_toml(problem.to_toml()) == problem
    assert problem.with_fields({"regularizer.kind": "lasso"}).regularizer == Regularizer(kind="lasso", strength=0.3)
    with pytest.raises(ProblemError, match=r'regularizer\.expression does not go with regularizer.kind = "test-huber"'):
        Regularizer(kind="test-huber", expression="w**2")
    assert r"s \sum_c \mathrm{huber}(w_c)" in problem._repr_markdown_()
    curvature, source = np.array([[[2.0, 0.3], [0.3, 1.5]]]), np.array([[0.4, -0.2]])
    ridge = Regularizer(strength=0.3)
    minimised = ridge.rows(2).minimise(curvature, source)
    assert_allclose(problem.regularizer.rows(2).minimise(curvature, source), minimised, rtol=1e-12)
    cold = problem.with_fields({"student.temperature": 0.07})  # the unit of the weights is its root
    start, plain = (initial_overlaps(one, "semantic") for one in (cold, replace(cold, regularizer=ridge)))
    assert_allclose(start.V, plain.V, rtol=1e-13)


def test_a_new_loss(added):
    problem = Problem(loss=Loss(kind="test-pseudo-huber"), tokens=Tokens(length=1))
    assert ModelKey.of(problem).model().name == "test-pseudo-huber"
    with pytest.raises(ProblemError, match=r'loss\.kind = "test-pseudo-huber" needs tokens\.length = 1'):
        Problem(loss=Loss(kind="test-pseudo-huber"))
    h, k = np.array([[[0.7]], [[-0.4]]]), np.array([[[0.1]], [[1.3]]])
    losses = reference_backend(problem, "numpy").losses(h, k, problem.mixing_matrix, np.ones(3), np.ones(1))
    assert_allclose(losses, np.sqrt(1 + (h - k)[:, 0, 0] ** 2), rtol=1e-14)


def test_a_new_law_of_clusters(added):
    clusters = [{"mean": [1.0]}, {"mean": [-1.0]}]
    problem = Problem.from_dict({"tokens": {"kind": "mixture", "clusters": clusters, "law": {"kind": "test-opposed"}}})
    assert problem.tokens.configurations[0].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(ProblemError, match=r'tokens\.law\.weights does not go with the law kind "test-opposed"'):
        problem.with_fields({"tokens.law.weights": [0.5, 0.5]})
    assert "Neighbours are in different clusters." in problem._repr_markdown_()


def test_a_new_spectrum(added):
    tokens = Tokens(spectrum=SpectrumLaw(kind="test-linear"))
    assert_allclose(tokens.spectrum_atoms()[1][:, 0], [0.4, 0.3, 0.2, 0.1])
    changed = Problem(tokens=tokens).with_fields({"tokens.spectrum.kind": "isotropic"})
    assert changed.tokens.spectrum == SpectrumLaw(kind="isotropic")


def test_a_new_rule(added):
    problem = Problem(integration=Integration(rule="test-coarse"))
    with pytest.raises(ProblemError, match=r'integration\.rule = "test-coarse" needs student\.rank = 1'):
        problem.with_fields({"student.rank": 2})
    with pytest.raises(ProblemError, match="does not go with test-coarse"):
        Integration(rule="test-coarse", nodes=4)
    rules = problem.integration.rules((4, 2), False, 2**18)
    finer = rules.next(rules.single(), 0.1, 0.0)
    assert finer is not None
    assert (rules.first().size, finer.size) == (3**4, 5**4)
    assert rules.next(finer, 0.1, 0.0) is None


@pytest.mark.usefixtures("own_scores")
def test_a_new_score():
    """A row function of one's own, registered or in a file, is a score: nothing else has to know it."""
    ap.register_score("halved_of_the_kinds_test", lambda logits: [z / 2 for z in logits])
    problem = Problem(student=Student(score="halved_of_the_kinds_test"))
    assert "halved_of_the_kinds_test" in problem._repr_markdown_()
