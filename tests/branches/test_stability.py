"""The replicon, the gap between two copies and the map's eigenvalues, against their definitions and published runs.

Not public: definitions are of nodes, whose residuals no dataset holds.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from models import model
from solving import in_units, solved

import attnphase as ap
from attnphase.data.trust import TRUSTED_GAP, untrusted
from attnphase.fixed_points.solver import solve_point
from attnphase.integration.refinement import REPLICATES
from attnphase.kernels.local.constants import Starts
from attnphase.reference import read_reference
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.copies import Copies
from attnphase.state_evolution.errors import Displaced
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.replicon import replicon
from attnphase.state_evolution.system import System

PAPER = ap.Problem.paper(omega=0.3).with_fields({"integration.rule": "sobol", "integration.nodes": 64})
PROBLEMS = {
    "paper": PAPER,
    "other units": PAPER.with_fields(in_units(1e-3)),
    "two variances": PAPER.with_fields({"tokens.sigma": [0.6, 0.45]}),
    "untied": PAPER.with_fields({"student.tied": False, "tokens.sigma": [0.52, 0.49]}),
    "mixture": PAPER.with_fields(
        {
            "tokens.kind": "mixture",
            "tokens.clusters": [{"sigma": 0.5, "mean": [1.5]}, {"sigma": 0.4, "mean": [-1.5]}],
            "tokens.law": {"kind": "same", "probability": 0.8},
        }
    ),
    "elastic net": PAPER.with_fields({"regularizer.kind": "elastic-net", "regularizer.ridge": 0.004}),
}

pytestmark = pytest.mark.filterwarnings("ignore::attnphase.errors.AttnphaseWarning")


@cache
def point_of(name, alpha=1.7):
    return solve_point(PROBLEMS[name], alpha, "semantic", settings=ap.SolverSettings(stability=False, threads=1))


def copies_of(point, points=256):
    conjugates = Conjugates.of_values(point.values)
    return Copies.of(System.of(point.problem), point.alpha, point.restart.overlaps, conjugates, points)


def residuals(channel, overlaps, omega, k):
    """Of all nodes, searched from all starts."""
    k = k + channel.system.spectrum.teacher_means[channel.configurations][:, None, None, None]
    one_by_one = tuple((s, 1) for s in range(omega.shape[1]))
    return channel.proximal.minimise(omega, k, overlaps.V, one_by_one, Starts.COLD, None)[0].residual


def radius_of(point):
    """The replicon at a point's nodes, and that of each replicate."""
    channel, overlaps = Channel(System.of(point.problem), point.restart.rule), point.restart.overlaps
    minima = channel.minima_at(overlaps, Starts.COLD, None)
    return channel, replicon(channel, point.alpha, overlaps, Conjugates.of_values(point.values), minima)


@pytest.mark.parametrize("name", ["two variances", "untied", "mixture"])
def test_the_replicon_is_the_growth_of_small_perturbations(name):
    """Section 8 of the theory by differences and loops; the largest growth by repeating it."""
    point = point_of(name)
    (channel, radii), spectrum, step = radius_of(point), System.of(point.problem).spectrum, 1e-6
    overlaps, (omega, k, *_) = point.restart.overlaps, channel.nodes_at(point.restart.overlaps)
    L, r = omega.shape[-2:]
    # dg_k/domega_(l, a) of all nodes, (L, r, C, signs, S, n, L, r)
    units = step * np.eye(L * r).reshape(L, r, L, r)

    def difference(unit):
        ends = (residuals(channel, overlaps, omega + side * unit, k) for side in (1, -1))
        return np.subtract(*ends) / (2 * step)

    slopes = np.array([[difference(unit) for unit in row] for row in units])
    # means over signs and nodes of dg_k/domega_(l, a) dg_k/domega_(l, b), (C, l, k, a, b, ., .)
    squares = np.einsum("lacxsnki,lbcxsnkj->clkabij", slopes, slopes) / np.prod(slopes.shape[3:6])
    P, growth = np.tile(np.eye(point.problem.columns), (spectrum.sites, 1, 1)), 0.0
    for _ in range(9):
        P = P / np.trace(P, axis1=1, axis2=2).sum()
        C, image = np.zeros_like(P), np.zeros_like(P)
        for c, sites in enumerate(channel.configurations):
            for l, k_ in np.ndindex(2, 2):
                share = point.alpha * channel.probabilities[c]
                C[sites[k_]] += share * np.einsum("abij,ab->ij", squares[c, l, k_], P[sites[l]])
        for a, weight in enumerate(spectrum.weights):
            gamma, ridge = spectrum.gamma[:, a], System.of(point.problem).prior.strength * np.eye(P.shape[1])
            R = np.linalg.inv(ridge + np.einsum("s,sab->ab", gamma, point.values["V_hat"]))
            for site in range(spectrum.sites):
                image[site] += weight * gamma[site] * R @ np.einsum("s,sab->ab", gamma, C) @ R
        P, growth = image, np.trace(image, axis1=1, axis2=2).sum()
    assert len(radii) == 1 + REPLICATES
    assert radii[0] == pytest.approx(growth, rel=1e-3)


def test_the_replicon_of_the_paper_is_that_of_an_independent_estimate():
    """.24 on the semantic branch at alpha = 2, section 8 of the theory."""
    problem = PAPER.with_fields({"integration.nodes": 256})
    semantic, positional = (solved(problem, 2.0, branch, stability=True) for branch in ("semantic", "positional"))
    assert abs(float(semantic.replicon) - 0.24) < 0.006
    assert float(semantic.replicon_stderr) < 0.004
    assert float(semantic.overlap_gap) == 0.0
    assert 0.0 < float(positional.overlap_gap) < TRUSTED_GAP


def test_the_error_of_the_replicon_holds_the_points_own():
    """Seeds scatter by 2.5 times what the replicates do at a point that is held; 12 tell a scatter to a fifth."""
    points = [solved(PAPER.with_fields({"integration.seed": seed}), 2.0, stability=True) for seed in range(41, 53)]
    scatter = np.std([float(ds.replicon) for ds in points], ddof=1)
    assert 0.55 < scatter / np.sqrt(np.mean([float(ds.replicon_stderr) ** 2 for ds in points])) < 1.6


@pytest.mark.parametrize("name", ["two variances", "untied", "mixture", "elastic net"])
def test_copies_part_as_draws_of_their_fields_do(name):
    """Fields of two copies from what they share and what they do not, drawn one by one."""
    point, fraction = point_of(name), 0.4
    copies, overlaps, system = copies_of(point, 64), point.restart.overlaps, System.of(point.problem)
    theta, rho = overlaps.theta, system.spectrum.rho
    gap = fraction * (overlaps.q - theta @ np.linalg.inv(rho) @ theta.mT)
    found, channel = copies.images(gap), copies._channel
    rng, sites, count, r = np.random.default_rng(5), channel.configurations, 4000, theta.shape[1]
    # omega_0 and k jointly, then what each copy has for itself
    joint = np.block([[overlaps.q - gap, theta], [theta.mT, rho]])
    roots, own = matrix_root(joint)[sites], matrix_root(gap)[sites]
    draws = np.einsum("clij,xnlj->cxnli", roots, rng.normal(size=(1, count, sites.shape[1], joint.shape[1])))
    common, k = draws[..., :r] + overlaps.m[sites][:, None, None, :, :, 0], draws[..., r:]
    apart = [np.einsum("clij,xnlj->cxnli", own, rng.normal(size=(1, count, *common.shape[3:]))) for _ in range(2)]
    one, other = (residuals(channel, overlaps, (common + each)[:, :, None], k[:, :, None]) for each in apart)
    moments = np.einsum("cxsnla,cxsnlb->cxnlab", one - other, one - other)
    noise = point.alpha / 2 * channel.site_means(moments)  # of every draw: (P, n, r, r)
    expected = copies._spread.of_noise(noise.reshape(len(noise), 16, -1, r, r).mean(axis=2))
    error = np.hypot(*(x.std(axis=1, ddof=1) / 4 for x in (found, expected)))
    assert np.all(np.abs(found.mean(axis=1) - expected.mean(axis=1)) < 4.5 * error + 1e-12)
    assert np.all(error[:, 0, 0] < 0.25 * found.mean(axis=1)[:, 0, 0])


@pytest.mark.parametrize("name", ["paper", "other units"])
def test_a_gap_is_its_own_image_from_wherever_it_is_sought(name):
    """At alpha = .85 a wider gap comes closer, a narrower one parts; a neighbour's gap leads to the same end."""
    copies = copies_of(point_of(name, alpha=0.85))
    gap = copies.gap()
    assert 0.02 < gap.share < 0.9
    assert gap.error < 0.3 * gap.share
    found = solved(PROBLEMS[name], 0.85, stability=True)
    assert float(found.overlap_gap) == pytest.approx(
        gap.share, abs=2 * float(np.hypot(gap.error, found.overlap_gap_stderr))
    )
    assert copies.growth_of(gap.covariance).mean() == pytest.approx(1.0, abs=0.02)
    assert copies.growth_of(1.5 * gap.covariance).mean() < 1 < copies.growth_of(0.5 * gap.covariance).mean()
    for beside in (0.6 * gap.share, 0.0):
        assert copies.gap(None, beside).share == pytest.approx(gap.share, abs=0.4 * gap.error)


@pytest.mark.parametrize("name", ["mixture", "elastic net"])
def test_copies_of_every_replicate_have_the_law_of_its_own_point(name):
    """All of them in one pass, against one after another on nodes, point and minima of each alone."""
    point, rng = point_of(name), np.random.default_rng(7)
    copies, overlaps = copies_of(point, 32), point.restart.overlaps
    conjugates, gap = Conjugates.of_values(point.values), 0.3 * copies._free
    second = copies._images(gap)[1]
    points = [
        (
            replace(overlaps, q=a * overlaps.q, V=b * overlaps.V, theta=np.sqrt(a) * overlaps.theta),
            replace(conjugates, V_hat=c * conjugates.V_hat),
        )
        for a, b, c in rng.uniform(0.9, 1.1, (REPLICATES, 3))
    ]
    each = Overlaps.stacked([own for own, _ in points])
    hats = (np.concatenate(x, axis=1) for x in zip(*(one.by_name.values() for _, one in points), strict=True))
    together = copies._moved(Displaced(each, Conjugates(*hats)), second).growth_of(gap)
    nodes = (len(copies._channel.probabilities), REPLICATES, -1)

    def part(values, s):
        return np.ascontiguousarray(values.reshape(*nodes, *values.shape[1:])[:, s].reshape(-1, *values.shape[1:]))

    for s in (0, 5, 15):
        known = [Minima(part(m.fields, s), part(m.energies, s), part(m.steps, s)) for m in (copies._first[1], second)]
        rule = replace(copies.rule, nodes=copies.rule.nodes[s : s + 1])
        alone = Copies(copies.system, copies.alpha, *points[s], rule, (known[0], known[1]))
        assert together[s] == pytest.approx(alone.growth_of(gap).item(), rel=1e-9)
    assert np.ptp(together) > 0.02


STANDARD, SECOND = [[0.6, 0.4], [0.4, 0.6]], [[0.3, 0.7], [0.8, 0.2]]


@pytest.mark.parametrize(
    ("mixing", "sigma", "omega", "ridge", "branch", "alpha"),
    [
        ("second", 0.5, 0.14, 0.01, "semantic", 1.25375),
        ("second", 0.5, 0.14, 0.01, "positional", 0.839167),
        ("standard", 0.5, 0.3, 0.001, "semantic", 1.5025),
        ("standard", 0.5, 0.3, 0.001, "semantic", 0.5075),
        ("standard", 0.5, 0.3, 0.001, "positional", 1.005),
        ("standard", 0.7, 0.3, 0.01, "semantic", 1.41958),
        ("standard", 0.7, 0.3, 0.01, "positional", 1.005),
        ("standard", 0.5, 0.1, 0.01, "semantic", 1.25375),
        ("standard", 0.5, 0.1, 0.01, "semantic", 0.341667),
    ],
)
def test_the_gap_tells_where_training_departs(mixing, sigma, omega, ridge, branch, alpha):
    """Published gradient descent: overlaps differ from the theory by more than two s.d. and a tenth, or they do not."""
    runs = read_reference("gradient_descent_other")
    chosen = (runs["mixing"] == mixing) & (runs["sigma"] == sigma) & (runs["omega"] == omega)
    (run,) = runs[chosen & (runs["ridge"] == ridge) & (runs["start"] == branch) & (abs(runs["alpha"] - alpha) < 1e-9)]
    fields = {"tokens.sigma": sigma, "teacher.omega": omega, "regularizer.strength": ridge}
    mixed = {"teacher.mixing": SECOND if mixing == "second" else STANDARD}
    ds = solved(PAPER.with_fields(fields | mixed), alpha, branch, stability=True)
    name = "theta" if branch == "semantic" else "m"
    departs = abs(np.abs(ds[name]).mean().item() - run[name]) > 2 * run[f"{name}_sd"] + 0.1 * run[name]
    assert bool(untrusted(ds)) == departs


def test_a_loss_with_a_kink_has_no_replicon():
    """A hinge's second derivative is zero beside its kink, at which proximal points lie: no linear part to speak of."""
    fields = {"loss.parameters.hinge": 1.0, "loss.parameters.quantile": 0.0}
    ds = solved(model("kinks", fields | {"integration.rule": "sobol", "integration.nodes": 64}), 1.3, stability=True)
    assert np.isnan(float(ds.replicon))
    assert np.isfinite(float(ds.overlap_gap))
    unasked = solved(PAPER, 1.9)
    assert np.isnan([float(unasked.replicon), float(unasked.overlap_gap)]).all()
    assert not bool(untrusted(unasked))
