"""Every equation against a derivative of the free entropy, and the observables against other ways to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from attnphase.arrays import Array
from attnphase.checks.case import Case, Means
from attnphase.checks.report import Check
from attnphase.kernels.local.constants import Starts
from attnphase.processes.progress import Callback
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.norms import conjugates_of_norms
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.prior import Prior

__all__ = ["equations"]

_SIGMAS = 5.0  # standard errors within which sampled quantities must agree
_FALSE_ALARM = 1e-5  # probability with which a sampled check fails though all is right
_MARGIN = 3.0  # standard errors beyond the limit by which an error must stand out to be seen surely
_STEP = 1e-5  # of differences, relative
_ALLOWED = 1e-5  # relative error of a slope by differences
_PARTS = 16  # of the nodes, of which few have one that changes its minimum
SAMPLES, _BATCH = 2**21, 2**17  # of the test error's own sample


@dataclass(frozen=True, eq=False)
class _Generic:
    """Order parameters near a fixed point that no symmetry makes vanish, their conjugates, and the image of these.

    The equations state that minus the free entropy is stationary: in the overlaps wherever the conjugates are theirs,
    in the conjugates wherever the overlaps are theirs. Both hold away from the fixed point, where m and theta may be
    zero and a wrong factor in their equations would not show.
    """

    alpha: float
    prior: Prior
    at: Overlaps
    held: _Held
    image: Overlaps

    @classmethod
    def near(cls, case: Case) -> _Generic | None:
        """The furthest of a few points whose conjugates have an image; None if there is none."""
        alpha, prior = case.point.alpha, case.system.prior
        for size in (1.0, 0.5, 0.25, 0.1, 0.03, 0.01):
            at = _displaced(case.point.restart.overlaps, case.system.spectrum.rho, size)
            held = _Held.of(case.channel_at(at), alpha, at)
            image = prior.overlaps(held.conjugates)
            if image is not None:
                return cls(alpha, prior, at, held, image)
        return None

    @property
    def conjugates(self) -> Conjugates:
        """Those of the overlaps."""
        return self.held.conjugates

    @property
    def exactness(self) -> float:
        """How well equation (7) must hold: beyond the ridge the mean over a row of several weights is a quadrature."""
        if self.prior.rows is None or self.prior.kernels.columns == 1:
            return 1e-5
        return 1e-4 if self.prior.kernels.columns == 2 else 5e-3

    def minus_phi(
        self, at: Overlaps, envelope: Array, conjugates: Conjugates, of_prior: Mapping[str, Any] | None = None
    ) -> Array:
        """Minus the free entropy per replicate (S,); `of_prior`: the prior's arguments, if known already."""
        terms = self.prior.maps.free_entropy_terms(
            alpha=self.alpha,
            **(of_prior or self.prior.arguments(conjugates)),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            **at.beside(conjugates),
            **conjugates.by_name,
        )
        total = np.zeros(len(envelope))
        for term in terms.values():
            total = total + np.squeeze(term)
        return total

    def at_image(self, conjugates: Conjugates) -> float:
        """Minus the free entropy at the image, without the energy, which does not depend on the conjugates."""
        return float(self.minus_phi(self.image, np.zeros(1), conjugates)[0])


def _displaced(x: Overlaps, rho: Array, size: float) -> Overlaps:
    """Overlaps moved by a share of their own size, in all entries; the teacher's fields stay well undetermined."""
    generator = np.random.default_rng(5)
    length, columns, rank = x.theta.shape
    natural = np.trace(rho, axis1=-2, axis2=-1).mean() / rank
    spread = np.maximum(np.trace(x.q, axis1=-2, axis2=-1).mean() / columns, 1e-3 * natural)

    def positive(scale: float) -> Array:
        factors = generator.normal(size=(length, columns, columns + 2))
        return scale * factors @ factors.mT / (columns + 2)

    q = x.q + size * positive(0.3 * spread)
    V = x.V + size * positive(0.3 * np.trace(x.V, axis1=-2, axis2=-1).mean() / columns)
    m = x.m + size * 0.5 * np.sqrt(spread) * generator.uniform(0.5, 1.0, x.m.shape)
    theta = x.theta + size * 0.3 * np.sqrt(spread * natural) * generator.uniform(-1.0, 1.0, x.theta.shape)
    margin = 0.3 * size * np.linalg.eigvalsh(rho).min()
    while np.linalg.eigvalsh(rho - theta.mT @ np.linalg.solve(q, theta)).min() < margin:
        theta = 0.9 * theta
    return replace(x, q=q, V=V, m=m, theta=theta)


def equations(case: Case, callback: Callback) -> Iterator[Check]:
    """Every equation against a derivative of the free entropy, and the observables against other ways to them."""
    generic = _Generic.near(case)
    if generic is None:
        why = "not tried: no conjugates near the fixed point have an image"
        yield Check.left_out("gradient of the free entropy", why)
        return
    callback("gradient of the free entropy in the conjugates")
    yield _in_conjugates(generic)
    callback("moments of the fields")
    means = case.means_at(generic.at)
    yield _law(case, generic, means)
    if case.problem.loss.fitted:
        callback("slopes of trained parameters")
        yield _trained(generic)
    callback("energies at the proximal points")
    yield _envelopes(generic)
    callback("gradient of the free entropy in the overlaps")
    yield _in_overlaps(generic, means)
    yield _weight_norm(generic)
    callback("sampling the test error")
    yield _test_error(case, generic, means)


def _in_conjugates(generic: _Generic) -> Check:
    """Equation (7): at the image of the conjugates the free entropy is stationary in them, exactly."""
    c, image = generic.conjugates, generic.image
    size = abs(generic.at_image(c))
    worst = 0.0
    couplings = [("q_hat", image.V), ("V_hat", image.q), ("m_hat", image.m), ("theta_hat", image.theta)]
    if c.Q_hat.size:
        couplings.append(("Q_hat", image.trained[-image.norms :]))
    for name, overlap in couplings:
        value = getattr(c, name)
        unit = np.abs(value).max()
        whole = max(unit * np.abs(overlap).max(), 1e-3 * size)  # what the two couple by
        for index in np.ndindex(value.shape):
            shift = np.zeros_like(value)
            shift[index] = _STEP * unit
            if name in ("q_hat", "V_hat", "Q_hat"):
                shift = (shift + shift.mT) / 2
            ends = [generic.at_image(replace(c, **{name: value + side * shift})) for side in (1, -1)]
            worst = max(worst, abs(ends[0] - ends[1]) / (2 * _STEP * whole))
    detail = "(7), by central differences, relative to the term of each"
    return Check.below("gradient of the free entropy, conjugates", worst, generic.exactness, detail)


@dataclass(frozen=True, eq=False)
class _Held:
    """Proximal points of all nodes at some overlaps, held while the overlaps move.

    The energies are stationary in the proximal points, so that the mean envelope has the derivatives of the mean energy
    at points that are held: no node needs a second search.

    The mean is over the joint law of the centres omega and the teacher's fields k. As the overlaps move the teacher's
    fields stay, and the centres are carried along by the linear map that keeps the law right to first order: slopes of
    the mean envelope are then those of equation (8) on every sample, not in expectation alone, and need few nodes.
    """

    channel: Channel
    at: Overlaps
    conjugates: Conjugates
    sampled: Conjugates
    envelope: Array
    slopes: Array
    fields: Array

    @classmethod
    def of(cls, channel: Channel, alpha: float, at: Overlaps) -> _Held:
        channel = channel.at(at)
        passed = channel.evaluate(alpha, at, Starts.COLD)
        shape = channel.nodes_at(at)[0].shape
        fields = passed.minima.fields[:, 0].reshape(shape)
        hats, norms = passed.conjugates.mean(), channel.system.norms
        if norms:
            slopes = alpha * passed.slopes[:, -norms:].mean(axis=0, keepdims=True)
            hats = replace(hats, Q_hat=conjugates_of_norms(slopes, at.q.shape[-1]))
        return cls(channel, at, hats, passed.sampled, passed.envelope, passed.slopes, fields)

    def energy(self, moved: Overlaps) -> Array:
        """Mean energy of the held points at other overlaps, per replicate (S,)."""
        return self.channel.scalar_mean(self.energies(moved))

    def energies(self, moved: Overlaps) -> Array:
        """Energies of the held points at other overlaps, (C, signs, S, n), times the nodes' shares."""
        channel = self.channel
        omega, k, shares = self.carried(moved)
        away = self.fields - omega
        inverse = np.linalg.inv(moved.V)[channel.configurations]
        quadratic: Array = 0.5 * np.einsum("csnmli,clij,csnmlj->csnm", away, inverse, away, optimize=True)
        return (quadratic + channel.proximal.losses(self.fields, k)) * shares

    def searched(self, moved: Overlaps) -> Array:
        """The envelope at other overlaps by a new search of all nodes, likewise."""
        omega, k, shares = self.carried(moved)
        orbit = tuple((sign, 1) for sign in range(omega.shape[1]))
        solution, _ = self.channel.proximal.minimise(omega, k, moved.V, orbit, Starts.COLD, None)
        return solution.envelope * shares

    def means_of_parts(self, values: Array) -> Array:
        """Means (parts, S) of one number a node over each part of the nodes, which takes every `_PARTS`-th of them."""
        part = np.arange(values.shape[-1]) % _PARTS
        return np.array([_PARTS * self.channel.scalar_mean(values * (part == one)) for one in range(_PARTS)])

    def carried(self, moved: Overlaps) -> tuple[Array, Array, Array]:
        """Centres, teacher's fields with their mean, and the nodes' shares at other overlaps."""
        means = self.channel.system.sample_law.means[:, None, None, None]
        if self.channel.labelled:  # the labels' probabilities move too
            omega, k, _, _, shares = self.channel.nodes_at(moved)
            return omega, k + means, shares
        sites = self.channel.configurations
        omega, k, _, floored, shares = self.channel.nodes_at(self.at)
        # omega - m is theta rho^-1 k and a rest u that is independent of k, of covariance C
        rho = self.channel.system.sample_law.rho
        back = self.at.theta @ np.linalg.inv(rho)
        rest = floored.q - back @ self.at.theta.mT
        dq, dtheta = moved.q - self.at.q, moved.theta - self.at.theta
        on_rest = (dq / 2 - dtheta @ back.mT) @ np.linalg.inv(rest)
        on_k = dtheta @ np.linalg.inv(rho) - on_rest @ back
        dm = (moved.m - self.at.m)[sites, :, 0][:, None, None, None]
        centred = omega - self.at.m[sites, :, 0][:, None, None, None]
        change = np.einsum("clij,csnmlj->csnmli", on_rest[sites], centred)
        change = change + np.einsum("clij,csnmlj->csnmli", on_k[sites], k[..., : rho.shape[-1]])
        return omega + dm + change, k + means, shares


def _law(case: Case, generic: _Generic, means: Means) -> Check:
    """Moments of all nodes' fields against the order parameters: means, q, theta and, but for labels, rho and noise."""
    name, law, at, noise = "law of the fields", case.system.sample_law, generic.at, case.system.kernels.noise_columns
    if not law.gaussian:
        return Check.left_out(name, "not tried: the moments are known of Gaussian fields alone")
    sites, columns = law.configurations, at.q.shape[-1]
    joint = np.block([[at.q, at.theta], [at.theta.mT, law.rho]])
    width = joint.shape[-1]
    joint = np.pad(joint, ((0, 0), (0, noise), (0, noise)))
    joint[:, range(width, width + noise), range(width, width + noise)] = case.problem.target_noise
    whole = 1 + sites.shape[1] * (width + noise)
    expected = np.zeros((len(sites), whole, whole))
    expected[:, 0, 0] = 1.0
    parts = [slice(1 + token * (width + noise), 1 + (token + 1) * (width + noise)) for token in range(sites.shape[1])]
    for token, part in enumerate(parts):
        expected[:, part, part] = joint[sites[:, token]]
    size = np.sqrt(np.diagonal(expected, axis1=-2, axis2=-1))

    def differences(channel: Channel) -> Array:
        omega, k, _, _, shares = channel.nodes_at(at)
        random = k[..., : case.system.kernels.label_normals]
        fields = np.concatenate([omega - at.m[sites, :, 0][:, None, None, None], random], axis=-1)
        flat = np.concatenate([np.ones((*fields.shape[:-2], 1)), fields.reshape(*fields.shape[:-2], -1)], axis=-1)
        weighted = flat * channel.rule.weights[:, None] * shares[..., None]
        moments = np.moveaxis((weighted.mT @ flat).mean(axis=1), 1, 0)
        # a node of a label has the mean of k under it; lines have no noise in directions of which omega does not know
        first = columns if channel.labelled else width if channel.rule.lines is not None else width + noise
        known = np.ones((whole, whole), dtype=bool)
        for part in parts:
            known[part.start + first : part.stop, part.start + first : part.stop] = False
        return ((moments - expected) / (size[:, :, None] * size[:, None, :]))[..., known]

    return _within(name, means, differences, "moments of the nodes")


def _within(name: str, means: Means, differences: Callable[[Channel], Array], detail: str) -> Check:
    """Whether means of relative differences (S, ...) vanish within their errors.

    By Student's t where the error is the scatter of S replicates. Distances to other rules contain the rule's own error
    and are seldom small by chance.
    """
    found, errors = (one.ravel() for one in means.of(differences))
    errors, limit, how = errors + 1e-6, _SIGMAS, "in standard errors"
    if not means.gauges:
        replicates = means.own.rule.replicates
        limit, how = float(stats.t.isf(_FALSE_ALARM / (2 * len(errors)), replicates - 1)), f"{how} (Student's t)"
    seen = 100 * (limit + _MARGIN) * float(errors.max())
    detail = f"{detail}, {how}; an error of {seen:.2g} % would be seen"
    return Check.below(name, float(np.max(np.abs(found) / errors)), limit, detail)


def _envelopes(generic: _Generic) -> Check:
    """The compiled envelope against the energy at its minimiser, and its slopes with a new search on either side."""
    held, at = generic.held, generic.at
    worst = np.abs(held.envelope - held.energy(at)).max()
    x, scales = at.pack(), at.scales(held.channel.system.spectrum.rho)
    signs = np.random.default_rng(6).choice([-1.0, 1.0], len(x))
    for block in _blocks(at):
        step = np.zeros(len(x))
        step[block] = _STEP * scales[block] * signs[block]
        ends = [Overlaps.unpack(x + side * step, *at.theta.shape) for side in (1, -1)]
        changes = [upper - lower for upper, lower in (map(way, ends) for way in (held.searched, held.energies))]
        # a node that changes its minimum between the ends spoils its part: the median one is compared
        spoilt = np.abs(held.means_of_parts(changes[0] - changes[1]))
        worst = max(worst, float(np.median(spoilt)) / (2 * _STEP))
    size = max(np.abs(held.envelope).max(), 1e-300)
    return Check.below(
        "mean envelope", float(worst / size), 1e-5, "energy at the proximal points, and its slopes, relative"
    )


def _blocks(x: Overlaps) -> list[slice]:
    """Where q, V, m and theta lie in the packed vector."""
    triangle = x.q.shape[0] * len(np.triu_indices(x.q.shape[-1])[0])
    edges = np.cumsum([0, triangle, triangle, x.m.size, x.theta.size]).tolist()
    return [slice(a, b) for a, b in pairwise(edges)]


def _in_overlaps(generic: _Generic, means: Means) -> Check:
    """Equation (8): at the conjugates of the overlaps the free entropy is stationary in these.

    Every replicate's slope of the mean envelope is held against its own conjugates. The two are equal on any nodes,
    except where each node stands for both labels: there they are so in expectation, and the mean of their differences
    is judged by its own scatter.
    """
    name, held = "gradient of the free entropy, overlaps", generic.held
    if held.channel.labelled:

        def differences(channel: Channel) -> Array:
            return _gradients(generic, _Held.of(channel, generic.alpha, generic.at))

        return _within(name, means, differences, "(8), by central differences")
    gradients = _gradients(generic, held)
    detail = f"(8), {gradients.shape[1]} entries on {held.channel.rule.size} nodes"
    worst = float(np.abs(gradients).max())
    return Check.below(name, worst, _ALLOWED, f"{detail}, by central differences, relative to the term of each")


def _gradients(generic: _Generic, held: _Held) -> Array:
    """Slopes of minus the free entropy in the overlaps, relative to the couplings to the conjugates, (S, P)."""
    at, hats = generic.at, held.sampled
    x, scales = at.pack(), at.scales(held.channel.system.spectrum.rho)
    of_prior = generic.prior.arguments(generic.conjugates)  # of a term that cancels
    changes, couplings, largest = *np.empty((2, len(x), len(held.envelope))), 0.0
    for i in range(len(x)):
        step = np.zeros(len(x))
        step[i] = _STEP * scales[i]
        ends = [Overlaps.unpack(x + side * step, *at.theta.shape) for side in (1, -1)]
        for result, way in ((changes, held.energy), (couplings, lambda _: 0 * held.envelope)):
            upper, lower = (generic.minus_phi(end, way(end), hats, of_prior) for end in ends)
            result[i], largest = upper - lower, max(largest, float(np.abs(upper).max()))
    terms = np.abs(couplings.mean(axis=1))
    rounding = 4 * np.finfo(float).eps * largest / _ALLOWED  # a smaller term is none that differences tell
    for block in _blocks(at):  # of a loss that knows no teacher the term of theta vanishes
        changes[block] /= max(terms[block].max(), 1e-3 * terms.max(), rounding)
    return changes.T


def _trained(generic: _Generic) -> Check:
    """The slopes of the mean envelope in trained parameters, by differences.

    At held proximal points, unless these may lie on kinks: the energy has one there at fields that do not follow.
    """
    held, start = generic.held, generic.at.trained
    slopes, worst = held.slopes, 0.0

    def energy(at: Overlaps) -> Array:
        there = replace(held, channel=held.channel.at(at))
        if not held.channel.system.problem.loss.form.has_kink:
            return there.energy(generic.at)
        return there.channel.scalar_mean(there.searched(generic.at))

    for place, step in enumerate(_STEP * np.eye(len(start))):
        upper, lower = (energy(replace(generic.at, trained=start + side * step)) for side in (1, -1))
        worst = max(worst, float(np.abs((upper - lower) / (2 * _STEP) - slopes[:, place]).max()))
    size = max(float(np.abs(slopes).max()), 1e-300)
    return Check.below("slopes of trained parameters", worst / size, 1e-5, "by central differences, relative")


def _weight_norm(generic: _Generic) -> Check:
    """Half the squared norm is the derivative of minus the free entropy in the ridge."""
    prior, hats = generic.prior, generic.conjugates
    norm = float(np.squeeze(_observables(generic, np.ones((3, 1)))["weight_norm"]))
    ridge = prior.strength if prior.rows is None else prior.rows.ridge
    step = _STEP * (float(np.min(ridge)) or 1e-3)

    def moved(change: float) -> _Generic:
        if prior.rows is None:
            return replace(generic, prior=replace(prior, strength=ridge + change))
        return replace(generic, prior=replace(prior, rows=replace(prior.rows, ridge=ridge + change)))

    ends = [moved(side * step).at_image(hats) for side in (1, -1)]
    difference = abs((ends[0] - ends[1]) / step - norm) / max(abs(norm), 1e-300)
    detail = "derivative of minus the free entropy in the ridge, relative"
    return Check.below("norm of the weights", difference, generic.exactness, detail)


def _observables(generic: _Generic, means: Array) -> dict[str, Array]:
    """Observables at generic conjugates; `means` (3, S) are those of the envelope and of the two losses."""
    envelope, at_prox, at_omega = means[:, :, None, None]
    sites = generic.at.beside(generic.conjugates)
    return generic.prior.maps.observables(
        alpha=generic.alpha,
        **generic.prior.arguments(generic.conjugates),
        field_mean=lambda values: values,
        envelope=envelope,
        loss_at_prox=at_prox,
        loss_at_omega=at_omega,
        length=generic.prior.kernels.length,
        q=sites["q"],
        V=sites["V"],
        **generic.conjugates.by_name,
    )


def _test_error(case: Case, generic: _Generic, means: Means) -> Check:
    """The test error by quadrature against a sample of its own: fields of student and teacher drawn together."""
    system, at = case.system, generic.at

    def error_on(channel: Channel) -> Array:
        parts = np.ones((3, channel.rule.replicates))
        parts[2] = channel.loss_at_omega(at)
        return np.broadcast_to(np.squeeze(_observables(generic, parts)["test_error"]), channel.rule.replicates)

    value, own = (float(one) for one in means.of(error_on))
    losses = _sampled_losses(case, at)
    sampled, error = (2 * one / system.kernels.length for one in (losses.mean(), losses.std() / math.sqrt(SAMPLES)))
    total = math.hypot(error, own)
    z = abs(value - sampled) / max(total, 1e-9 * abs(sampled) + 1e-300)
    seen = (_SIGMAS + _MARGIN) * total / max(abs(sampled), 1e-300)
    detail = f"against {SAMPLES} samples, in standard errors; an error of {100 * seen:.2g} % would be seen"
    return Check.below("test error", z, _SIGMAS, detail)


def _sampled_losses(case: Case, at: Overlaps) -> Array:
    """Losses of samples without noise, with their weights, whose fields are drawn from the law at some overlaps."""
    system, law = case.system.at(at.trained), case.system.sample_law
    generator = np.random.default_rng([case.problem.integration.seed, 8])
    roots = matrix_root(law.clean_rho)
    given = np.linalg.solve(law.clean_rho, at.theta.mT).mT
    rest = np.linalg.cholesky(at.q - given @ at.theta.mT)
    mixing, parameters = system.parameters
    losses = np.empty(SAMPLES)
    edges = np.concatenate([[0], np.cumsum(generator.multinomial(SAMPLES, law.probabilities))])
    for c, (sites, means, (start, stop)) in enumerate(zip(law.configurations, law.means, pairwise(edges), strict=True)):
        variances = np.ascontiguousarray(system.spectrum.site_variances[sites])
        for begin in range(start, stop, _BATCH):
            part = losses[begin : min(begin + _BATCH, stop)]
            scaled, shares = law.drawn(c, generator.normal(size=(len(part), len(sites), roots.shape[-1])))
            k = np.einsum("lij,nlj->nli", roots[sites], scaled)
            h = at.m[sites, :, 0] + np.einsum("lij,nlj->nli", given[sites], k)
            h += np.einsum("lij,nlj->nli", rest[sites], generator.normal(size=h.shape))
            system.kernels.losses_at(h, law.labels_of(k) + means, mixing, parameters, variances, part)
            part *= shares
    return losses
