"""Where learning begins, jumps and ends: the sample complexity as a function of what is known.

The channel does not know how many samples there are, and the prior's overlap grows with their number.  At a given
overlap of all fields there is so one sample complexity of a fixed point, also of an unstable one, and none has to be
iterated to: ``alpha(s)`` for the share s of the fields' variance that is known.  It begins at the threshold of weak
recovery where the labels are even; where it falls, the uninformed fixed point jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attnphase.arrays import Array
from attnphase.processes.progress import Callback, silent
from attnphase.state_evolution.branches import ERRORS
from attnphase.theories.bayes_optimal.crossing import (
    PRECISION,
    AllKnown,
    PointAtShare,
    branches,
    crossing,
    remainder,
    root,
    scatter,
)
from attnphase.theories.bayes_optimal.evolution import Evolution, positive
from attnphase.theories.bayes_optimal.fibres import Fibres
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.model import PosteriorModel
from attnphase.theories.bayes_optimal.specialisation import KICK, Sector, first_instability, told_apart

__all__ = ["BayesOptimalThreshold", "bayes_optimal_thresholds"]

_POINTS = 4096  # nodes in a replicate
_ON_CURVE = {Fibres: 64, Labels: 128}  # nodes in a replicate, of channels whose nodes are dear
_FINER = 16  # times as many, or draws for each, for the point where symmetry breaks
_OF_LATTICES, _OF_ROUND = 64, 4  # times as many as the coarsest lattices have: spacings of 1.16, and 1.64 of rank 2
_SHARES = 36
_LOWEST = 1e-3  # least share known on a curve
_REST, _REST_WITH_NOISE = 1e-10, 1e-3  # least shares unknown, to which a curve has even steps
_STEP, _LEAST_REST = 0.85, 1e-20  # of the logarithm of odds beyond; where no field of unit size has a digit less
_LINEAR = 0.01  # share that labels tell of what is unknown, below which ever more labels are needed for less of it
_NEAR_NOTHING = 1e-12  # share known at the fixed point without labels
_EVEN = 1e-10  # mean square of E[k | Y] below which it is zero: places of jumps are known to rounding
_RESOLVED = 10.0  # times the least V that the channel resolves
_CONVERGED, _MAX_MAPS = 1e-6, 60
_SETTLED = 0.1  # of alpha's error, of points that no symmetry holds
_CERTAIN = 1e-6  # mean logarithm of the evidence where all is known, below which the fields determine the labels


@dataclass(frozen=True)
class BayesOptimalThreshold:
    """A threshold.

    Attributes
    ----------
    alpha, standard_error : float
        NaN where there is none.
    statement : str
        What it is, or why there is none.
    """

    alpha: float
    standard_error: float
    statement: str


def bayes_optimal_thresholds(
    model: PosteriorModel, *, callback: Callback = silent, max_nodes: int | None = None
) -> dict[str, BayesOptimalThreshold]:
    """Weak recovery, specialisation, algorithmic and information-theoretic thresholds, and that of perfect recovery.

    Parameters
    ----------
    model : PosteriorModel
    callback : callable, optional
    max_nodes : int, optional
        Of all replicates, unless a sample's means are sums. By default 4096 in each replicate, or fewer if nodes are
        dear; then the curve has fewer in any case, and the points next to a loss of stability have all.

    Returns
    -------
    dict
        ``weak_recovery``: above it the linear operator of the overlap has an eigenvalue above one. ``specialisation``:
        the uninformed fixed point becomes unstable in directions that its symmetry forbids. ``algorithmic``: the
        uninformed fixed point jumps. ``information_theoretic``: the free entropies of the informed and the uninformed
        fixed point cross. ``perfect_recovery``: above it the uninformed fixed point knows the weights.
    """
    callback("weak recovery")
    points = _POINTS if max_nodes is None else max(max_nodes // model.replicates, 1)
    evolution = model.evolution(points)
    weak = _weak_recovery(evolution)
    if model.channel.sums is not None:
        evolution = model.evolution(model.channel.coarsest * (_OF_ROUND if evolution.round else _OF_LATTICES))
    else:
        evolution = model.evolution(min(points, _ON_CURVE.get(type(model.channel), points)))
    times = max(points // evolution.points, 1)
    fine = _finer(model, evolution, min(times, _FINER) if max_nodes is None else times)
    callback(f"weak recovery at {weak.alpha:.4g}, the curve of fixed points")
    specialisation, curve = _specialisation(evolution, fine, callback)
    algorithmic, theoretic, perfect = _of_curve(evolution, curve, weak)
    return {
        "weak_recovery": weak,
        "specialisation": specialisation,
        "algorithmic": algorithmic,
        "information_theoretic": theoretic,
        "perfect_recovery": perfect,
    }


def _of_curve(
    evolution: Evolution, curve: list[PointAtShare], weak: BayesOptimalThreshold
) -> tuple[BayesOptimalThreshold, BayesOptimalThreshold, BayesOptimalThreshold]:
    """The algorithmic and the information-theoretic threshold, and that of perfect recovery."""

    def at(rest: float, V: Array) -> PointAtShare:
        return _point_at(evolution, rest, V)

    end, exact = curve[-1], evolution.channel.exact
    found = branches(at, curve, _origin(evolution))
    known = _all_known(evolution)
    if not found.summits:
        seen = f"up to a share of {end.share_text} at alpha = {end.alpha:.4g}"
        seen += "" if end.certain else "; a fall by less than a thousandth is not told from errors"
        none = BayesOptimalThreshold(
            float("nan"), float("nan"), f"no jump: what is known grows steadily with alpha, {seen}"
        )
        algorithmic = theoretic = none
    else:
        first = found.summits[0]
        falls_at_once = first is curve[0] and weak.alpha > 0
        alpha, error = (weak.alpha, weak.standard_error) if falls_at_once else (first.alpha, first.error)
        algorithmic = BayesOptimalThreshold(alpha, error, "the uninformed fixed point jumps")
        theoretic = BayesOptimalThreshold(*crossing(at, found, known, exact))
    if exact or (found.falls_to_the_end and known is not None and abs(known.slopes.mean()) < _CERTAIN):
        places = [(point.alpha, point.error) for point in found.summits] + [found.limit] * exact
        perfect = BayesOptimalThreshold(*max(places), "from here on everything is known")
    else:
        perfect = BayesOptimalThreshold(float("nan"), float("nan"), "no finite number of labels tells everything")
    return algorithmic, theoretic, perfect


def _finer(model: PosteriorModel, evolution: Evolution, times: int) -> Evolution:
    """As many times the nodes, or the draws that posteriors are means of, if nodes are dear.

    Few draws see too little of rare labels: an error that all replicates share.
    """
    if isinstance(model.channel, Labels):
        return replace(evolution, channel=replace(model.channel, draws=times * model.channel.draws))
    return model.evolution(times * evolution.points) if type(model.channel) in _ON_CURVE else evolution


def _specialisation(
    evolution: Evolution, fine: Evolution, callback: Callback
) -> tuple[BayesOptimalThreshold, list[PointAtShare]]:
    """Where the uninformed fixed point becomes unstable before it jumps, and the curve that it follows.

    A curve that keeps its symmetry goes on beyond that place, where no iteration follows it: from there on points begin
    without the symmetry.
    """

    def without(reason: str) -> tuple[BayesOptimalThreshold, list[PointAtShare]]:
        return BayesOptimalThreshold(float("nan"), float("nan"), reason), list(_points(evolution, callback))

    def rising() -> Iterator[PointAtShare]:
        for point in _points(evolution, callback, sector):
            if held and _falls(held[-1], point):
                return
            held.append(point)
            callback(f"stability of the curve, {point.share:.3g} known")
            yield point

    def at_share(which: Evolution, share: float, V: Array) -> PointAtShare:
        callback(f"the place where symmetry breaks, {share:.3g} known")
        return _point_at(which, 1 - share, V, sector)

    held = list[PointAtShare]()
    if evolution.rho.shape[1] == 1:
        return without("one column has no other to be told apart from")
    if evolution.round:
        return without("the sums know no direction of the columns")
    sector = Sector.of(evolution, _point_at(evolution, _rests(evolution)[0], evolution.rho).V)
    if sector.trivial:
        return without("the uninformed fixed point breaks all symmetries from the first")
    found = first_instability(evolution, fine, rising(), at_share, sector)
    if found is None:
        return without("no point of the curve separates stable from unstable ones")
    alpha, error, V = found
    rho = evolution.rho
    known = np.linalg.eigvalsh((rho - V)[0]) / np.trace(rho[0]) * len(rho[0])
    shares = ", ".join(f"{share:.4f}" for share in known)
    statement = f"the fixed point whose directions have the shares {shares} is unstable"
    below = [point for point in held if point.rest > _rest(evolution, V)]
    beyond = _points_beyond(evolution, callback, sector, V)
    return BayesOptimalThreshold(alpha, error, statement), [*below, *beyond]


def _weak_recovery(evolution: Evolution) -> BayesOptimalThreshold:
    """The inverse of the largest eigenvalue of the linear operator at ``q = 0``."""
    if evolution.prior.mean.any():
        return BayesOptimalThreshold(
            float("nan"), float("nan"), "encodings, means or teacher.prior tell of the weights before any label"
        )
    operators, first = evolution.growth()
    if first.mean() > _EVEN + ERRORS * scatter(first):
        return BayesOptimalThreshold(
            0.0, 0.0, "labels tell of the fields at first order: weights are learned at every alpha"
        )
    values, vectors = np.linalg.eig(operators.mean(axis=0))
    top = int(np.argmax(np.real(values)))
    largest = float(np.real(values[top]))
    if largest <= 0:
        return BayesOptimalThreshold(float("nan"), float("nan"), "labels tell nothing of the fields at second order")
    left = np.linalg.pinv(vectors)[top]
    each = np.real(np.einsum("i,sij,j->s", left, operators, vectors[:, top]))
    return BayesOptimalThreshold(1 / largest, scatter(each) / largest**2, "nothing known becomes unstable")


def _point_at(
    evolution: Evolution, rest: float, V: Array, sector: Sector | None = None, least: float = 0.0
) -> PointAtShare:
    """The fixed point with a share unknown, from a point near it.

    Maps may turn a point of no preferred direction without an end.  It is enough if all that are left would change
    alpha by less than a part of its error, each as much as the last.
    """
    rho = evolution.rho
    V, last = _scaled(rho, V if sector is None else sector.hold(V), rest), 0.0
    for maps in range(_MAX_MAPS):
        moments = evolution.moments(V)
        each = evolution.conjugates(1.0, V, moments)
        alpha = _alpha(evolution, each.mean(axis=0), rest)
        if not np.isfinite(alpha):  # more samples than any curve is followed to
            unknown = np.full(len(each), alpha)
            return PointAtShare(rest, alpha, unknown, unknown, unknown, V, alpha)
        image = evolution.overlaps(alpha * each.mean(axis=0))[1]
        image = image if sector is None else sector.hold(image)
        size = min(np.abs(rho - V).max(), np.abs(V).max())  # of the smaller one: either may nearly vanish
        moved = np.abs(image - V).max() > max(_CONVERGED, evolution.channel.tolerance) * size
        left = _MAX_MAPS - 1 - maps
        if not (moved and left) or alpha == last:
            break
        if least and left * abs(alpha - last) <= least * scatter(_alphas(evolution, each, rest)):
            break
        last, V = alpha, image
    alphas = _alphas(evolution, each, rest)  # pyright: ignore[reportPossiblyUnboundVariable]
    entropies = evolution.free_entropy(alpha, V, moments)  # pyright: ignore[reportPossiblyUnboundVariable]
    told = evolution.told(V)
    slopes = moments.log_evidence  # pyright: ignore[reportPossiblyUnboundVariable]
    certain = V.size == 1 and evolution.channel.sums is not None
    return PointAtShare(rest, alpha, alphas, entropies, slopes, V, told, _precision(evolution), certain)  # pyright: ignore[reportPossiblyUnboundVariable]


def _precision(evolution: Evolution) -> float:
    """Relative error that all replicates have in common: that of roots, or of the ends of lattices."""
    return PRECISION if evolution.channel.sums is None else max(PRECISION, evolution.channel.tolerance)


def _alpha(evolution: Evolution, q_hat: Array, rest: float) -> float:
    """The number of samples a dimension that leaves a share unknown, for the conjugate of one."""
    total = np.trace(evolution.rho, axis1=1, axis2=2).sum()

    def excess(log_alpha: float) -> float:
        V = evolution.overlaps(np.exp(log_alpha) * q_hat)[1]
        left = max(np.trace(V, axis1=1, axis2=2).sum() / total, 1e-300)  # of finitely many values it may vanish
        return float(np.log(left) - np.log(rest))

    q_hat = positive(q_hat)
    low, high = -12.0, 12.0
    if excess(low) < 0 or excess(high) > 0:
        return float("nan")
    return float(np.exp(root(excess, low, high)))


def _alphas(evolution: Evolution, q_hats: Array, rest: float) -> Array:
    """As above, of the replicates."""
    return np.array([_alpha(evolution, one, rest) for one in q_hats])


def _scaled(rho: Array, V: Array, rest: float) -> Array:
    """V with a given share unknown: q or V multiplied, whichever is smaller."""
    total = np.trace(rho, axis1=1, axis2=2).sum()
    left = np.trace(V, axis1=1, axis2=2).sum() / total
    if rest > 0.5 and left < 1:
        scaled = rho - (rho - V) * (1 - rest) / (1 - left)
        if np.linalg.eigvalsh(scaled).min() > 0:
            return scaled
    return V * min(rest / left, 1.0) if rest <= left else V + (rho - V) * (rest - left) / (1 - left)


def _rest(evolution: Evolution, V: Array) -> float:
    """Share of the fields' variance that is unknown."""
    return float(np.trace(V.sum(axis=0)) / np.trace(evolution.rho.sum(axis=0)))


def _origin(evolution: Evolution) -> PointAtShare:
    """The fixed point without labels, where the free entropy is zero; of even labels it stays one at any alpha."""
    V = evolution.overlaps(np.zeros_like(evolution.rho))[1] * (1 - _NEAR_NOTHING)
    slopes = evolution.moments(V).log_evidence
    return PointAtShare(_rest(evolution, V), 0.0, 0 * slopes, 0 * slopes, slopes, V, 1.0)


def _all_known(evolution: Evolution) -> AllKnown | None:
    """The point where all but an exponentially small rest is known, of finitely many values."""
    mixture = evolution.prior.mixture
    if mixture is None or not evolution.prior.is_discrete or evolution.channel.exact:
        return None
    return AllKnown(float(mixture.probabilities @ np.log(mixture.probabilities)), evolution.noise_entropies())


def _least(evolution: Evolution) -> float:
    """Least share unknown that the channel's integrals resolve."""
    resolved = _RESOLVED * evolution.channel.resolution / float(evolution.rho.min(axis=0).diagonal().min())
    return max(resolved, _LEAST_REST)


def _rests(evolution: Evolution) -> Array:
    """Shares unknown at which a curve has its first points, in even steps of the logarithm of the odds."""
    before = _rest(evolution, evolution.overlaps(np.zeros_like(evolution.rho))[1])
    last = _REST if evolution.channel.exact else _REST_WITH_NOISE
    if evolution.prior.is_discrete:  # what is all but known may lie beyond
        last = min(max(_REST, _least(evolution)), last)
    first, end = (float(np.log1p(-rest) - np.log(rest)) for rest in (before - _LOWEST, last))
    return 1 / (1 + np.exp(np.linspace(first, end, _SHARES)))


def _goes_on(evolution: Evolution, curve: list[PointAtShare]) -> bool:
    """Whether a curve goes on to where still less is unknown.

    Labels that tell the fields exactly have a last number of samples, which it comes as near to as its error.  With
    noise, labels tell in the end little of the little that is unknown: from there on ever more of them are needed.
    Finitely many values are then known but for an exponentially small rest, which has a free entropy of its own.
    """
    end = curve[-1]
    if evolution.channel.exact:
        return len(curve) < 3 or remainder(curve) > max(PRECISION * end.alpha, _SETTLED * scatter(end.alphas))
    if evolution.prior.is_discrete:
        return False
    return end.told > _LINEAR or end.alpha < max(point.alpha for point in curve)


def _points(evolution: Evolution, callback: Callback, sector: Sector | None = None) -> Iterator[PointAtShare]:
    """Fixed points along the share that is known, all of a sector."""
    reach = 1.0 if sector is None else sector.reach
    rests = 1 - reach + reach * _rests(evolution)
    return _followed(
        evolution,
        rests,
        rests[0] * evolution.rho,
        lambda rest, V: _point_at(evolution, rest, V, sector),
        callback,
        reach,
    )


def _points_beyond(evolution: Evolution, callback: Callback, sector: Sector, left: Array) -> Iterator[PointAtShare]:
    """Fixed points beyond the point V where they leave a sector.

    Columns of a point that is still in it are told apart before its maps, which lead away from it.
    """

    def point(rest: float, V: Array) -> PointAtShare:
        if sector.has(V):
            V = V + KICK * (_scaled(evolution.rho, told_apart(evolution.rho), rest) - V)
        return _point_at(evolution, rest, V, least=_SETTLED)

    rests = _rests(evolution)
    return _followed(evolution, rests[rests < _rest(evolution, left)], left, point, callback)


def _followed(
    evolution: Evolution,
    rests: Array,
    V: Array,
    point: Callable[[float, Array], PointAtShare],
    callback: Callback,
    reach: float = 1.0,
) -> Iterator[PointAtShare]:
    """The points at shares, each begun from the one before, as long as a finite alpha leads to them.

    Further ones follow where the curve goes on; of a sector in which all cannot be known, there are none.
    """
    left, found, beyond = rests.tolist(), list[PointAtShare](), reach == 1
    while left:
        rest = left.pop(0)
        callback(f"the curve of fixed points, {1 - rest:.3g} known", len(found), len(found) + 1 + len(left))
        new = point(rest, V)
        if not np.isfinite(new.alpha):
            return
        yield new
        found.append(new)
        V = new.V
        further = rest * np.exp(-_STEP)
        if beyond and not left and further > _least(evolution) and _goes_on(evolution, found):
            left.append(further)


def _falls(before: PointAtShare, after: PointAtShare) -> bool:
    """Whether alpha falls between two points by more than their error."""
    return after.alpha - before.alpha < -ERRORS * scatter(after.alphas - before.alphas)
