"""Lines of the student's fields: against scrambled points, against themselves in other directions, and every defect."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnphase.errors import ProblemError
from attnphase.integration.kinds import RULES
from attnphase.integration.lines import LineOrders, between, evenly_spaced, orbits, stretched
from attnphase.integration.rules import lines, sobol, tensor
from attnphase.kernels.local.constants import Starts
from attnphase.problem.problem import Problem
from attnphase.state_evolution import directions as home
from attnphase.state_evolution import lines as along
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.system import System

BANDED = [[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.1, 0.3, 0.6]]


def scalar(**fields):
    return Problem.from_dict({"tokens": {"length": 1, "sigma": 1.1}} | fields)


def formula(text, length):
    return Problem.from_dict(
        {"tokens": {"length": length, "sigma": 0.9}, "loss": {"kind": "expression", "expression": text}}
    )


MODELS = {
    "positional": (Problem.paper(omega=0.3), 1.24, ([0.047], [14.96], [0.2523], [0.0]), (20, 10)),
    "semantic": (Problem.paper(omega=0.3), 0.8, ([0.0567], [26.5], [0.0], [0.0593]), (24, 10)),
    "uneven": (Problem.paper(omega=0.2), 1.7, ([0.09, 0.07], [11.0, 13.0], [0.1, -0.15], [0.11, 0.08]), (20, 12)),
    "untied": (
        Problem.paper(omega=0.3).with_fields({"student.tied": False}),
        2.0,
        ([[[0.076, 0.07], [0.07, 0.08]]], [[[17.0, 2.0], [2.0, 18.0]]], [[0.1, 0.08]], [[[0.11], [0.09]]]),
        (14, 8),
    ),
    "three tokens": (
        Problem.paper(omega=0.5).with_fields({"tokens.length": 3, "teacher.mixing": BANDED, "positions.kind": "none"}),
        1.24,
        ([0.15], [19.0], [0.0], [0.133]),
        (12, 10, 8),
    ),
    "causal": (
        Problem.paper(omega=0.3).with_fields({"teacher.causal": True, "student.causal": True}),
        1.5,
        ([0.11], [13.0], [0.0], [0.15]),
        (16, 10),
    ),
    "logistic": (scalar(loss={"kind": "logistic"}), 8.0, ([40.0], [4.9], [0.0], [6.4]), (20,)),
    "hinge": (scalar(loss={"kind": "hinge"}), 3.0, ([9.0], [8.3], [0.0], [2.9]), (20,)),
    "sign of a sum": (
        formula("(h0_0 + h1_0 - sign(k0_0 + 0.7*k1_0 - 0.3))**2/2", 2),
        1.3,
        ([0.3], [0.6], [0.0], [0.4]),
        (20, 10),
    ),
}


def overlaps_of(problem, q, V, m, theta):
    """Of every token, by the first one's or both; numbers of a tied student of rank one, or matrices."""
    length, shape = problem.tokens.length, np.shape(q)[1:] or (1, 1)

    def whole(values, *sides):
        values = np.asarray(values, float).reshape(-1, *sides)
        return np.array([values[min(i, len(values) - 1)] for i in range(length)])

    r = shape[0]
    m = whole(m, r, 1)
    if len(m) == 2 and np.allclose(m[0], m[1]):
        m[1] *= -1
    return Overlaps(whole(q, r, r), whole(V, r, r), m, whole(theta, r, 1))


def at(name, *, defect=1e-7, **rule):
    problem, alpha, values, latent = MODELS[name]
    system = System.of(problem)
    overlaps = overlaps_of(problem, *values)
    orders = LineOrders(latent, (4,) * (system.kernels.length * system.kernels.columns - 1), defect=defect, **rule)
    return system, alpha, overlaps, orders


def map_of(system, alpha, overlaps, orders, sector=None):
    kernels = system.kernels
    dimensions = kernels.length * (kernels.columns + kernels.label_fields), kernels.length * kernels.columns
    channel = Channel(system, lines(*dimensions, orders))
    return StateEvolution(channel, alpha, system.sector_of(overlaps) if sector is None else sector)


def conjugates(map_, overlaps):
    map_.lift = True
    assert map_(map_.pack(overlaps)) is not None
    return map_.last.conjugates


def at_most_jump(map_, overlaps):
    """How far images of points 1e-6 apart lie from a parabola, relative to them."""
    x, steps = map_.pack(overlaps), np.arange(24.0)
    images = np.array([map_(x * (1 + 1e-6 * step)) for step in steps])
    trend = np.polynomial.polynomial.polyfit(steps, images, 2)
    rest = images - np.polynomial.polynomial.polyval(steps, trend).T
    return (np.abs(rest) / np.abs(images[0])).max()


def last_of(map_):
    """The last evaluation of a map, and the minima of its nodes."""
    assert map_.last is not None
    assert map_.minima is not None
    return map_.last, map_.minima


def orders_of(rule):
    assert rule is not None
    assert rule.lines is not None
    return rule.lines


def flat(hats):
    """Per replicate, (S, everything)."""
    every = (hats.q_hat, hats.V_hat, hats.m_hat, hats.theta_hat)
    return np.concatenate([np.moveaxis(x, 1, 0).reshape(x.shape[1], -1) for x in every], axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_conjugates_are_those_of_scrambled_points(name):
    """Every entry within the scatter of 16 replicates, which share no node, no start and no order of integration."""
    system, alpha, overlaps, orders = at(name)
    found = map_of(system, alpha, overlaps, orders)
    mine = flat(conjugates(found, overlaps))[0]
    kernels = system.kernels
    dimensions = kernels.length * (kernels.columns + kernels.label_fields), kernels.length * kernels.columns
    points = StateEvolution(Channel(system, sobol(*dimensions, False, 2048, 16, 3)), alpha, found.sector)
    others = flat(conjugates(points, overlaps))
    error = others.std(axis=0, ddof=1) / 4
    size = np.abs(mine).max()
    assert (np.abs(mine - others.mean(axis=0)) <= 4 * error + 2e-5 * size).all()
    assert (error <= 0.02 * size).all()
    envelopes = [last_of(one)[0].envelope.mean() for one in (found, points)]
    assert envelopes[0] == pytest.approx(envelopes[1], rel=0.01)


def weight_missed(map_, overlaps):
    """Of nodes at which a full search finds a lower minimum."""
    minima = last_of(map_)[1]
    fresh = map_.channel.evaluate(map_.alpha, overlaps, Starts.REFRESH, minima).minima
    return map_.channel.rule.weights[fresh.energies[:, 0] < minima.energies[:, 0] - 1e-9].sum()


@pytest.mark.parametrize("name", ["positional", "semantic", "uneven", "untied"])
def test_no_minimum_is_missed_and_no_slope_falls(name):
    """A full search of all nodes finds nothing lower; along a line Phi is convex, so that its slope only rises."""
    system, alpha, overlaps, orders = at(name)
    found = map_of(system, alpha, overlaps, orders)
    conjugates(found, overlaps)
    assert weight_missed(found, overlaps) <= 1e-7
    channel, minima = found.channel, last_of(found)[1]
    # nodes with the same teacher's fields, whose minimisers are trial points for each other
    omega, k, *_ = channel.nodes_at(overlaps)
    omega, k = (x.reshape(-1, *x.shape[-2:]) for x in (omega, k))
    _, alike = np.unique(np.round(k.reshape(len(k), -1), 9), axis=0, return_inverse=True)
    inverse = np.linalg.inv(overlaps.V)
    for one in range(0, alike.max() + 1, 7):
        here = np.flatnonzero(alike.ravel() == one)
        h, w = minima.fields[here, 0], omega[here]
        steps = h[:, None] - h[None]
        rise = np.einsum("abli,lij,ablj->ab", steps, inverse, w[:, None] - w[None])
        assert rise.min() >= -1e-9  # a monotone map, in any direction


@pytest.mark.parametrize(
    ("sigma", "values"),
    [
        pytest.param(0.6, ([0.2], [20.0], [0.1], [0.0]), id="at a node where a piece is cut"),
        pytest.param(0.68, ([0.74], [64.0], [0.0], [0.0]), id="where two others are equally low"),
    ],
)
def test_what_pieces_end_at_is_the_lowest_minimum(sigma, values):
    """Of many minima, whose energies are the same in all nodes of a piece that has a wrong one at an end."""
    system = System.of(Problem.paper(omega=0.3).with_fields({"tokens.sigma": sigma}))
    overlaps = overlaps_of(system.problem, *values)
    found = map_of(system, 1.5, overlaps, LineOrders((12, 12), (3,)))
    conjugates(found, overlaps)
    assert weight_missed(found, overlaps) <= 1e-6


@pytest.mark.parametrize("q", [0.0, 1e-9, 1e-5])
def test_weights_that_vanish_have_the_response_of_small_ones(q):
    """V_hat is a finite difference there, over a variance floor that counts once."""
    problem = MODELS["semantic"][0].with_fields({"tokens.sigma": 0.27})
    system = System.of(problem)
    orders = LineOrders((16, 10), (4,))
    hats = [
        conjugates(map_of(system, 1.4, here, orders), here).V_hat
        for here in (overlaps_of(problem, [size], [0.9], [0.0], [0.0]) for size in (q, 3e-5))
    ]
    np.testing.assert_allclose(hats[0], hats[1], rtol=1e-3)


def test_minimisers_of_other_ends_find_lower_minima(monkeypatch):
    """Where descents from zero alone have missed some."""
    found: list[np.ndarray] = []
    of_ends, trials = along.LocalProblems.ends, along.LocalProblems.trials

    def ends(self, edges):
        found.append(of_ends(self, edges).energies[:, 0].copy())
        return of_ends(self, edges)

    def none(self, omega, solution, alike):
        return np.zeros(len(omega), dtype=int), np.full(len(omega), np.inf)

    monkeypatch.setattr(along.LocalProblems, "ends", ends)
    for cold, tried in ((Starts.COLD, trials), (Starts.FROM_ZERO, none), (Starts.FROM_ZERO, trials)):
        monkeypatch.setattr(along, "Starts", SimpleNamespace(COLD=cold, WARM=Starts.WARM, REFRESH=Starts.REFRESH))
        monkeypatch.setattr(along.LocalProblems, "trials", tried)
        system, alpha, overlaps, orders = at("semantic")
        conjugates(map_of(system, alpha, overlaps, orders), overlaps)
    lowest, alone, with_others = found
    missed = [float((energies > lowest + 1e-9).mean()) for energies in (alone, with_others)]
    assert 0 < missed[1] < 0.5 * missed[0]


def a_line():
    """Local problems of a single line, and two fields of which Phi is steeper at the second."""
    system, _, overlaps, _ = at("uneven")
    generator = np.random.default_rng(3)
    center, direction, fields = (generator.normal(size=(n, 2, 1)) for n in (1, 1, 2))
    bundle = along.Bundle(center, np.zeros((1, 2, 1)), direction[0], np.ones(1), 1, 0)
    problems = along.LocalProblems(system, overlaps.V, bundle)
    rises = problems.slope @ (fields[1] - fields[0]).ravel() > 0
    return problems, fields if rises else fields[::-1]


def test_minimisers_of_two_ends_meet_where_they_are_equally_low():
    """Fields that stay as they are, with any losses."""
    problems, fields = a_line()
    losses, ends = np.array([0.7, 0.71]), np.array([-40.0, 37.0])

    def energies(places):
        away = fields - problems.bundle.at(np.zeros(1, int), np.array([places]))
        return np.einsum("nli,lij,nlj->n", away, problems.inverse, away) / 2 + losses

    of_ends = np.column_stack([ends, energies(ends), fields.reshape(2, -1)])
    (place,) = problems.meetings(along.Pieces(np.zeros(1, int), of_ends[None]))
    assert ends[0] < place < ends[1]
    np.testing.assert_allclose(*energies([place, place]), rtol=1e-12)


@pytest.mark.parametrize("bend", [-1.3, -0.999, 0.2, 1.4])
def test_pieces_become_shorter_wherever_phi_bends(bend):
    """Between -1.3 and 1.7, by a third at least, and by three quarters where it bends."""
    problems, fields = a_line()
    places = 0.2 + 1.5 * np.concatenate([[-1.0], np.polynomial.legendre.leggauss(12)[0], [1.0]])
    steep = np.sqrt(np.maximum(places - bend, 0))[:, None]
    rows = np.column_stack([places, 0 * places, fields[0].ravel() + steep * (fields[1] - fields[0]).ravel()])
    pieces = along.Pieces(np.zeros(1, int), rows[None, [0, -1]])
    cut = along._cut(problems, pieces, rows[None, 1:-1, None].repeat(2, axis=2)).ends[..., 0]
    lengths = np.diff(cut)[:, 0]
    assert lengths.sum() == pytest.approx(3.0)
    assert lengths.max() < 2.1
    (here,) = np.flatnonzero((cut[:, 0] <= bend) & (bend < cut[:, 1]))
    assert lengths[here] < 0.8


@pytest.mark.parametrize("name", ["positional", "semantic", "hinge"])
def test_few_local_problems_are_solved_in_vain(monkeypatch, name):
    """Jumps are located before there are nodes, and pieces are cut at jumps or where Phi bends."""
    solved: list[int] = []
    of_places = along.LocalProblems.solved

    def counted(self, lines, places, *others):
        solved.append(places.size)
        return of_places(self, lines, places, *others)

    monkeypatch.setattr(along.LocalProblems, "solved", counted)
    system, alpha, overlaps, orders = at(name)
    found = map_of(system, alpha, overlaps, orders)
    conjugates(found, overlaps)
    assert sum(solved) <= 1.55 * found.channel.rule.size
    assert len(solved) <= 36


def test_a_jump_in_the_middle_of_a_line_is_located():
    """Lines through omega = 0 where m and theta vanish: all is odd about the jump, which no defect tells of."""
    problem = Problem.paper(omega=0.5)
    system, overlaps = System.of(problem), overlaps_of(problem, [0.068], [26.0], [0.0], [0.0])
    orders = LineOrders((16, 10), (5,), defect=1e-7)
    gauge = RULES["lines"](problem.integration, (4, 2), True, 2**18).gauges(lines(4, 2, orders), 1.0)[-1]
    hats = [flat(conjugates(map_of(system, 1.1, overlaps, each), overlaps))[0] for each in (orders, orders_of(gauge))]
    assert orders_of(gauge).reach > orders.reach
    np.testing.assert_allclose(hats[0], hats[1], rtol=2e-6, atol=1e-12)


def test_a_solve_begins_with_the_nodes_of_its_neighbour():
    """Unless their number is chosen, or the neighbour had another rule."""
    rules = RULES["lines"](Problem.paper().integration, (4, 2), True, 2**18)
    other = lines(4, 2, LineOrders((26, 12), (5,)))
    assert rules.beside(other) is other
    assert orders_of(rules.beside(sobol(4, 2, True, 64, 2, 0))) == orders_of(rules.first())
    chosen = Problem.paper().with_fields({"integration.rule": "lines", "integration.nodes": 9}).integration
    assert orders_of(RULES["lines"](chosen, (4, 2), True, 2**18).beside(other)).latent == (9, 9)


@pytest.mark.parametrize("dropped", [0.0, 1e-3])
def test_values_are_those_of_nodes_without_symmetries(dropped):
    """Nodes that the point's symmetries spare, and the mean over these, change nothing."""
    system, alpha, overlaps, orders = at("semantic", dropped=dropped)
    spared = map_of(system, alpha, overlaps, orders)
    whole = map_of(system, alpha, overlaps, orders, Sector.of(overlaps, system.symmetries[:1], system.units))
    few, all_ = (flat(conjugates(one, overlaps))[0] for one in (spared, whole))
    assert spared.channel.rule.size < 0.3 * whole.channel.rule.size
    np.testing.assert_allclose(few, all_, rtol=1e-7, atol=1e-9 * np.abs(few).max())
    channel, minima = spared.all_nodes(spared.pack(overlaps))
    assert channel.rule.size == len(minima.steps) == whole.channel.rule.size


@pytest.mark.parametrize("name", ["positional", "semantic"])
def test_shifted_nodes_have_the_opposite_error(name):
    """In the direction that needs most nodes: the middle of both is several times nearer to the truth than either."""
    system, alpha, overlaps, _ = at(name)
    fine = flat(conjugates(map_of(system, alpha, overlaps, LineOrders((64, 14), (5,))), overlaps))[0]
    plain, shifted = (
        flat(conjugates(map_of(system, alpha, overlaps, LineOrders((16, 14), (5,), shifted=which)), overlaps))[0] - fine
        for which in (None, 0)
    )
    assert plain @ shifted < -0.8 * np.linalg.norm(plain) * np.linalg.norm(shifted)
    assert np.linalg.norm(plain + shifted) < 0.25 * np.linalg.norm(plain - shifted)


@pytest.mark.parametrize("name", ["positional", "semantic"])
def test_the_map_is_smooth(name):
    """Images of points 1e-6 apart lie on a parabola to a few parts in 1e-8, though nodes jump in between."""
    system, alpha, overlaps, orders = at(name)
    assert at_most_jump(map_of(system, alpha, overlaps, orders), overlaps) <= 5e-8


def test_no_piece_is_accepted_by_chance():
    """By M' alone a piece's defect vanishes beside this point, for V that is 1e-4 larger, and images jump by 7e-5."""
    problem = Problem.paper(omega=0.42)
    system, overlaps = System.of(problem), overlaps_of(problem, [0.07598721], [21.18547268], [0.0], [0.1037671])
    map_ = map_of(system, 1.26875, overlaps, LineOrders((12, 12), (3,), defect=1e-6, dropped=1e-3))
    x, steps = map_.pack(overlaps), np.linspace(0.0, 3e-4, 61)
    images = np.array([map_(x + step * x * np.array([0.0, 1.0, 0.0])) for step in steps])
    trend = np.polynomial.polynomial.polyfit(steps, images, 2)
    rest = images - np.polynomial.polynomial.polyval(steps, trend).T
    assert (np.abs(rest) / np.abs(images[0])).max() < 1e-7


@pytest.mark.parametrize("name", ["positional", "semantic", "untied"])
def test_a_solve_can_converge_under_the_first_rule(name):
    """Whatever error is asked for, its map jumps by less than what solves converge to."""
    problem = Problem.paper().with_fields({"integration.standard_error": 0.2})
    defect = orders_of(RULES["lines"](problem.integration, (4, 2), True, 2**18).first()).defect
    system, alpha, overlaps, orders = at(name, defect=defect)
    assert at_most_jump(map_of(system, alpha, overlaps, orders), overlaps) < 1e-7
    strong = problem.with_fields({"tokens.sigma": 1.2, "regularizer.strength": 0.017, "teacher.omega": 0.3})
    system, overlaps = System.of(strong), overlaps_of(strong, [1.29], [7.4], [0.0], [0.0])
    assert at_most_jump(map_of(system, 1.95, overlaps, LineOrders((12, 12), (3,), defect=defect)), overlaps) < 1e-7


def test_a_direction_is_the_problems_own():
    """Two tokens differ along (1, -1); of three in a band the outer ones; queries and keys move together."""
    two = home.directions_of(System.of(Problem.paper(omega=0.3)))
    np.testing.assert_allclose(np.abs(two.student[:, 0]), np.sqrt([0.5, 0.5]), atol=1e-12)
    assert two.student[:, 0].prod() < 0
    three = home.directions_of(at("three tokens")[0]).student[:, 0]
    np.testing.assert_allclose(three / three[0], [1, 0, -1], atol=1e-9)
    untied = home.directions_of(at("untied")[0]).student[:, 0].reshape(2, 2)
    assert (untied[0] * untied[0, 0] > 0).all()
    assert (untied[0] * untied[1] < 0).all()
    for one in (two.student, home.directions_of(at("untied")[0]).student):
        np.testing.assert_allclose(one.T @ one, np.eye(len(one)), atol=1e-12)


def test_labels_jump_where_the_nodes_are_split():
    """``sign(k0 + .7 k1 - .3)`` in standard deviations of the fields: no node lies on the wrong side."""
    found = home.directions_of(at("sign of a sum")[0])
    normal = found.latent[:, 0]
    np.testing.assert_allclose(normal, np.array([1, 0.7]) / np.hypot(1, 0.7), rtol=1e-12)
    assert found.breaks == pytest.approx((0.3 / np.hypot(1, 0.7) / 0.9,))
    assert home.directions_of(at("logistic")[0]).breaks == (0.0,)
    assert home.directions_of(at("positional")[0]).breaks == ()


@pytest.mark.parametrize("text", ["(h0_0 - sign(k0_0*k1_0))**2", "(h0_0 - sign(k0_0) - sign(k1_0))**2"])
def test_labels_that_jump_elsewhere_are_refused(text):
    problem = formula(text, 2)
    assert problem.loss.form.label_planes is None
    with pytest.raises(ProblemError, match=r'"lines" needs a label that jumps or bends on parallel planes') as caught:
        problem.with_fields({"integration.rule": "lines"})
    assert caught.value.field == "integration.rule"


@pytest.mark.parametrize(
    ("text", "normal", "offsets"),
    [
        ("(h - sign(2*k - 1))**2", {(0, 0): 1.0}, (0.5,)),
        ("(h - abs(k + 0.4) - sign(0.5 - k))**2", {(0, 0): 1.0}, (-0.4, 0.5)),
        ("(h0_0 - relu(k1_0 - 3*k0_0))**2", {(0, 0): 1.0, (1, 0): -1 / 3}, (0.0,)),
        ("abs(h0_0 - k0_0)", {}, ()),
        ("(h0_0 - sign(c0 - c1 + 0.5)*abs(k1_0 + 0.3) + sign(-k1_0))**2", {(1, 0): 1.0}, (-0.3, 0.0)),
        ("(h0_0 - sign(k0_0 - k1_0) - relu(k1_0 - k0_0 + 0.2))**2", {(0, 0): 1.0, (1, 0): -1.0}, (0.0, 0.2)),
    ],
)
def test_planes_of_a_label(text, normal, offsets):
    """Jumps and bends without a student's field, whose normals are parallel."""
    from derivations.models.scalar import formula_label_planes

    planes = formula_label_planes(text)
    assert planes is not None
    assert planes.normal == pytest.approx(normal)
    assert planes.offsets == pytest.approx(offsets)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("width", [0.01, 0.3])
def test_nodes_crowd_at_a_break(shifted, width):
    """Means of a function that jumps at -.6 and falls over any width beside it, by quadrature piece by piece."""
    from scipy.integrate import quad

    breaks = (-0.6, 0.35)

    def one(z):
        return (
            np.where(z < -0.6, 2.0, 0.0) + np.where(z > 0.35, np.exp(-np.maximum(z - 0.35, 0) / width), 0.3 * z) / width
        )

    places, weights = between(breaks, 40, shifted)
    right = sum(
        quad(lambda z: float(one(z)) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi), a, b, limit=500, points=points)[0]
        for a, b, points in ((-9, -0.6, None), (-0.6, 0.35, None), (0.35, 9, [0.35 + width, 0.35 + 20 * width]))
    )
    assert weights @ one(places) == pytest.approx(right, rel=1e-6)
    assert weights.sum() == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize(("spaced", "most"), [(evenly_spaced, 3e-6), (stretched, 1e-7)])
def test_nodes_of_a_normal_law_converge_exponentially(spaced, most):
    """On ``cos(2 z)``, whose mean is exp(-2), and ``z^4``; shifted nodes that reach far have the opposite error."""
    for function, mean in ((lambda z: np.cos(2 * z), np.exp(-2)), (lambda z: z**4, 3.0)):
        rules = [[spaced(n, shifted) for shifted in (False, True)] for n in (10, 14, 18)]
        errors = np.array([[weights @ function(places) - mean for places, weights in pair] for pair in rules])
        sizes = np.abs(errors).max(axis=1)
        assert (sizes[1:] < 0.1 * sizes[:-1]).all()
        assert sizes[-1] < most
        if spaced is stretched:
            assert np.abs(errors.sum(axis=1)).max() < 0.1 * sizes[0]


def test_orbits_have_the_weight_of_all_their_nodes():
    """Under exchange and reflection; an element that does not map the grid on itself is left out."""
    nodes, _ = tensor([evenly_spaced(4, False)] * 2)
    turned = nodes @ np.array([[0.8, -0.6], [0.6, 0.8]]).T
    chosen, counts = orbits(nodes, [nodes, nodes[:, ::-1], -nodes, -nodes[:, ::-1], turned])
    assert counts.sum() == len(nodes)
    assert sorted(counts) == [2, 2, 2, 2, 4, 4]
    whole = np.concatenate([nodes[chosen], nodes[chosen][:, ::-1], -nodes[chosen], -nodes[chosen][:, ::-1]])
    assert len(np.unique(np.round(whole, 9), axis=0)) == len(nodes)


def test_the_next_rule_has_more_nodes_where_the_error_is():
    """And in no other direction; none is finer than what may be spent, and a chosen number stays."""
    rules = RULES["lines"](Problem.paper().integration, (4, 2), True, 2**18)
    first = rules.first()
    gauges = rules.gauges(first, 1.0)
    assert [orders_of(gauge).shifted for gauge in gauges] == [0, None, 1, None, None, None, None]
    assert [sum(orders_of(gauge).latent) for gauge in gauges] == [24, 25, 24, 25, 24, 24, 24]
    assert [orders_of(gauge).across[0] - orders_of(first).across[0] for gauge in gauges] == [0, 0, 0, 0, 1, 2, 0]
    assert orders_of(first).dropped == pytest.approx(1e-4)
    for less in ("defect", "dropped"):
        assert getattr(orders_of(gauges[6]), less) < getattr(orders_of(first), less)
    finer, coarse = (
        orders_of(rules.next(first, 0.1, 1.0, np.array([0.1, 0.1, 1e-5, 1e-5, 1e-5, 1e-5, 1e-5]))),
        orders_of(first),
    )
    assert finer.latent[0] > coarse.latent[0]
    assert finer.latent[1:] == coarse.latent[1:]
    assert (finer.across, finer.defect) == (coarse.across, coarse.defect)
    along = orders_of(rules.next(first, 0.1, 1.0, np.array([1e-5] * 6 + [0.1])))
    assert (along.latent, along.across) == (coarse.latent, coarse.across)
    assert along.defect < coarse.defect
    assert along.dropped < coarse.dropped
    assert along.nodes > coarse.nodes
    across = orders_of(rules.next(first, 0.1, 1.0, np.array([1e-5, 1e-5, 1e-5, 1e-5, 1e-5, 0.1, 1e-5])))
    assert (across.latent, across.across) == (coarse.latent, (coarse.across[0] + 1,))
    assert rules.next(first, 5e-4, 1.0, np.array([5e-4, 0, 0, 0, 0, 0, 0])) is None
    small = RULES["lines"](Problem.paper().integration, (4, 2), True, 2**6)
    assert small.next(first, 0.1, 1.0, np.full(7, 0.1)) is None


def test_auto_takes_lines_where_they_have_few_nodes():
    automatic = Problem.paper().integration
    chosen = [
        RULES["auto"](automatic, dimensions, True, 2**18).of_solve(has_lines=True).name
        for dimensions in ((4, 2), (6, 3), (8, 4), (12, 6))
    ]
    assert chosen == ["lines", "auto", "auto", "auto"]
    assert RULES["auto"](automatic, (4, 2), True, 2**18).of_solve(has_lines=False).name == "auto"
