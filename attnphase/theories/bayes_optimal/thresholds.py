"""Where learning begins, jumps and ends: the sample complexity as a function of what is known.

The channel does not know how many samples there are, and the prior's overlap grows with their number.  At a given
overlap of all fields there is so one sample complexity of a fixed point, also of an unstable one, and none has to be
iterated to: ``alpha(s)`` for the share s of the fields' variance that is known.  It begins at the threshold of weak
recovery where the labels are even; where it falls, the uninformed fixed point jumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from attnphase.arrays import Array
from attnphase.processes.progress import Callback, silent
from attnphase.state_evolution.branches import ERRORS
from attnphase.theories.bayes_optimal.evolution import Evolution, positive
from attnphase.theories.bayes_optimal.fibres import Fibres
from attnphase.theories.bayes_optimal.labels import Labels
from attnphase.theories.bayes_optimal.model import PosteriorModel
from attnphase.theories.bayes_optimal.specialisation import KICK, PointAtShare, Sector, first_instability, told_apart

__all__ = ["BayesOptimalThreshold", "bayes_optimal_thresholds"]

_POINTS = 4096  # nodes in a replicate
_ON_CURVE = {Fibres: 64, Labels: 128}  # nodes in a replicate, of channels whose nodes are dear
_FINER = 16  # times as many, or draws for each, for the point where symmetry breaks
_OF_LATTICES, _OF_ROUND = 64, 4  # times as many as the coarsest lattices have: spacings of 1.16, and 1.64 of rank 2
_SHARES = 36
_LOWEST = 1e-3  # shares known, where the curve is followed
_HIGHEST, _HIGHEST_WITH_NOISE = 1 - 1e-10, 0.999
_EVEN = 1e-10  # mean square of E[k | Y] below which it is zero: places of jumps are known to rounding
_RESOLVED = 10.0  # times the least V that the channel resolves
_CONVERGED, _MAX_MAPS = 1e-6, 60
_SETTLED = 0.1  # of alpha's error, of points that no symmetry holds
_JUMP = 1e-3  # relative fall of alpha that counts
_KNOWN = 1e-12  # share of V where the fields count as known
_CERTAIN = 1e-6  # mean logarithm of the evidence there, below which the fields determine the labels


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
    highest = _summit(evolution, curve)
    end = curve[-1]
    if highest is None:
        none = BayesOptimalThreshold(float("nan"), float("nan"), "no jump: what is known grows steadily with alpha")
        algorithmic = theoretic = none
    else:
        algorithmic = BayesOptimalThreshold(highest.alpha, _error(highest.alphas), "the uninformed fixed point jumps")
        theoretic = _crossing(evolution, curve, highest)
    if highest is not None and _falls_to_all_known(evolution, curve) and abs(_known_slope(evolution)) < _CERTAIN:
        perfect = BayesOptimalThreshold(highest.alpha, algorithmic.standard_error, "from here on everything is known")
    elif model.channel.exact:
        last = end if highest is None or end.alpha > highest.alpha else highest
        perfect = BayesOptimalThreshold(last.alpha, _error(last.alphas), "from here on everything is known")
    else:
        perfect = BayesOptimalThreshold(float("nan"), float("nan"), "no finite number of labels tells everything")
    return {
        "weak_recovery": weak,
        "specialisation": specialisation,
        "algorithmic": algorithmic,
        "information_theoretic": theoretic,
        "perfect_recovery": perfect,
    }


def _finer(model: PosteriorModel, evolution: Evolution, times: int) -> Evolution:
    """As many times the nodes, or the draws that posteriors are means of, if nodes are dear.

    Few draws see too little of rare labels: an error that all replicates share.
    """
    if isinstance(model.channel, Labels):
        return replace(evolution, channel=replace(model.channel, draws=times * model.channel.draws))
    return model.evolution(times * evolution.points) if type(model.channel) in _ON_CURVE else evolution


def _error(values: Array) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


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
        return _point_at_share(which, share, V, sector)

    held = list[PointAtShare]()
    if evolution.rho.shape[1] == 1:
        return without("one column has no other to be told apart from")
    if evolution.round:
        return without("the sums know no direction of the columns")
    sector = Sector.of(evolution, _point_at_share(evolution, _shares(evolution)[0], evolution.rho).V)
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
    below = [point for point in held if point.share < _known(evolution, V)]
    beyond = _points_beyond(evolution, callback, sector, V)
    return BayesOptimalThreshold(alpha, error, statement), [*below, *beyond]


def _weak_recovery(evolution: Evolution) -> BayesOptimalThreshold:
    """The inverse of the largest eigenvalue of the linear operator at ``q = 0``."""
    if evolution.prior.mean.any():
        return BayesOptimalThreshold(
            float("nan"), float("nan"), "encodings, means or teacher.prior tell of the weights before any label"
        )
    operators, first = evolution.growth()
    if first.mean() > _EVEN + ERRORS * _error(first):
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
    return BayesOptimalThreshold(1 / largest, _error(each) / largest**2, "nothing known becomes unstable")


def _point_at_share(
    evolution: Evolution, share: float, V: Array, sector: Sector | None = None, least: float = 0.0
) -> PointAtShare:
    """The fixed point with a share known, from a point near it.

    Maps may turn a point of no preferred direction without an end.  It is enough if all that are left would change
    alpha by less than a part of its error, each as much as the last.
    """
    rho = evolution.rho
    V, last = _scaled(rho, V if sector is None else sector.hold(V), share), 0.0
    for maps in range(_MAX_MAPS):
        moments = evolution.moments(V)
        each = evolution.conjugates(1.0, V, moments)
        alpha = _alpha(evolution, each.mean(axis=0), share)
        if not np.isfinite(alpha):  # more samples than any curve is followed to
            unknown = np.full(len(each), alpha)
            return PointAtShare(share, alpha, unknown, unknown, alpha, V)
        image = evolution.overlaps(alpha * each.mean(axis=0))[1]
        image = image if sector is None else sector.hold(image)
        moved = np.abs(image - V).max() > max(_CONVERGED, evolution.channel.tolerance) * np.abs(rho - V).max()
        left = _MAX_MAPS - 1 - maps
        if not (moved and left) or alpha == last:
            break
        if least and left * abs(alpha - last) <= least * _error(_alphas(evolution, each, share)):
            break
        last, V = alpha, image
    alphas = _alphas(evolution, each, share)  # pyright: ignore[reportPossiblyUnboundVariable]
    entropies = evolution.free_entropy(alpha, V, moments)  # pyright: ignore[reportPossiblyUnboundVariable]
    slope = float(moments.log_evidence.mean())  # pyright: ignore[reportPossiblyUnboundVariable]
    return PointAtShare(share, alpha, alphas, entropies, slope, V)  # pyright: ignore[reportPossiblyUnboundVariable]


def _alpha(evolution: Evolution, q_hat: Array, share: float) -> float:
    """The number of samples a dimension that makes the share known, for the conjugate of one."""
    total = np.trace(evolution.rho, axis1=1, axis2=2).sum()

    def excess(log_alpha: float) -> float:
        V = evolution.overlaps(np.exp(log_alpha) * q_hat)[1]
        rest = max(np.trace(V, axis1=1, axis2=2).sum() / total, 1e-300)  # of finitely many values it may vanish
        return float(np.log(rest) - np.log1p(-share))

    q_hat = positive(q_hat)
    low, high = -12.0, 12.0
    if excess(low) < 0 or excess(high) > 0:
        return float("nan")
    return float(np.exp(_root(excess, low, high)))


def _alphas(evolution: Evolution, q_hats: Array, share: float) -> Array:
    """As above, of the replicates."""
    return np.array([_alpha(evolution, one, share) for one in q_hats])


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function is zero between two values at which its signs differ."""
    return float(brentq(function, low, high, xtol=1e-10))  # pyright: ignore[reportArgumentType]


def _scaled(rho: Array, V: Array, share: float) -> Array:
    """V with a given share known: q or V multiplied, whichever is smaller."""
    total = np.trace(rho, axis1=1, axis2=2).sum()
    rest = np.trace(V, axis1=1, axis2=2).sum() / total
    if share < 0.5 and rest < 1:
        scaled = rho - (rho - V) * share / (1 - rest)
        if np.linalg.eigvalsh(scaled).min() > 0:
            return scaled
    return V * min((1 - share) / rest, 1.0) if share >= 1 - rest else V + (rho - V) * (1 - share - rest) / (1 - rest)


def _known(evolution: Evolution, V: Array) -> float:
    """Share of the fields' variance that is known."""
    return float(1 - np.trace(V.sum(axis=0)) / np.trace(evolution.rho.sum(axis=0)))


def _shares(evolution: Evolution) -> Array:
    """Shares of what can be known at which a curve has its points."""
    known = _known(evolution, evolution.overlaps(np.zeros_like(evolution.rho))[1])
    highest = _HIGHEST if evolution.channel.exact else _HIGHEST_WITH_NOISE
    if evolution.prior.is_discrete:  # what is all but known may lie beyond
        least = _RESOLVED * evolution.channel.resolution / float(evolution.rho.min(axis=0).diagonal().min())
        highest = max(min(_HIGHEST, 1 - least), highest)
    first, last = (float(np.log(share / (1 - share))) for share in (known + _LOWEST, highest))
    return 1 / (1 + np.exp(-np.linspace(first, last, _SHARES)))


def _points(evolution: Evolution, callback: Callback, sector: Sector | None = None) -> Iterator[PointAtShare]:
    """Fixed points along the share that is known, all of a sector."""
    shares = _shares(evolution) * (1.0 if sector is None else sector.reach)
    first = (1 - shares[0]) * evolution.rho
    return _followed(shares, first, lambda share, V: _point_at_share(evolution, share, V, sector), callback)


def _points_beyond(evolution: Evolution, callback: Callback, sector: Sector, left: Array) -> Iterator[PointAtShare]:
    """Fixed points beyond the point V where they leave a sector.

    Columns of a point that is still in it are told apart before its maps, which lead away from it.
    """

    def point(share: float, V: Array) -> PointAtShare:
        if sector.has(V):
            V = V + KICK * (_scaled(evolution.rho, told_apart(evolution.rho), share) - V)
        return _point_at_share(evolution, share, V, least=_SETTLED)

    shares = _shares(evolution)
    return _followed(shares[shares > _known(evolution, left)], left, point, callback)


def _followed(
    shares: Array, V: Array, point: Callable[[float, Array], PointAtShare], callback: Callback
) -> Iterator[PointAtShare]:
    """The points at shares, each begun from the one before, as long as a finite alpha leads to them."""
    for number, share in enumerate(shares.tolist()):
        callback(f"the curve of fixed points, {share:.3g} known", number, len(shares))
        found = point(share, V)
        if not np.isfinite(found.alpha):
            return
        yield found
        V = found.V


def _falls(before: PointAtShare, after: PointAtShare) -> bool:
    """Whether alpha falls between two points by more than their error."""
    return after.alpha - before.alpha < -ERRORS * _error(after.alphas - before.alphas)


def _summit(evolution: Evolution, curve: list[PointAtShare]) -> PointAtShare | None:
    """Where alpha first falls along the curve by more than its error."""
    alphas = np.array([point.alpha for point in curve])
    for i in range(1, len(curve) - 1):
        lowest = curve[i + int(np.argmin(alphas[i:]))]
        rises = alphas[i] >= alphas[: i + 1].max() and alphas[i + 1] < alphas[i]
        if rises and lowest.alpha < alphas[i] * (1 - _JUMP) and _falls(curve[i], lowest):
            before, here, after = curve[i - 1 : i + 2]
            found: Any = minimize_scalar(
                lambda s, V=here.V: -_point_at_share(evolution, float(s), V).alpha,
                bounds=(before.share, after.share),
                method="bounded",
                options={"xatol": 1e-3, "maxiter": 12},
            )
            return _point_at_share(evolution, float(found.x), here.V)
    return None


def _crossing(evolution: Evolution, curve: list[PointAtShare], highest: PointAtShare) -> BayesOptimalThreshold:
    """Where the free entropies below and above the jump cross."""
    lower = [point for point in curve if point.share < highest.share] + [highest]
    above = [point for point in curve if point.share > highest.share]
    turn = int(np.argmin([point.alpha for point in above]))
    upper = above[turn:]
    if evolution.channel.exact and turn == len(above) - 1:
        end = above[-1]
        return BayesOptimalThreshold(
            end.alpha, _error(end.alphas), "from here on everything known has the higher free entropy"
        )
    if _falls_to_all_known(evolution, curve):
        return _crossing_with_all_known(evolution, lower)
    low, high = max(lower[0].alpha, upper[0].alpha), min(highest.alpha, upper[-1].alpha)

    def difference(alpha: float) -> float:
        return _entropy(lower, alpha) - _entropy(upper, alpha)

    if len(upper) < 2 or low >= high or difference(low) * difference(high) > 0:
        return BayesOptimalThreshold(float("nan"), float("nan"), "the free entropies do not cross")
    alpha = _root(difference, low, high)
    below, over = (min(points, key=lambda p: abs(p.alpha - alpha)) for points in (lower, upper))
    scatter = _error(below.free_entropies - over.free_entropies)
    return BayesOptimalThreshold(alpha, scatter / max(abs(below.slope - over.slope), 1e-12), "the free entropies cross")


def _falls_to_all_known(evolution: Evolution, curve: list[PointAtShare]) -> bool:
    """Whether ever fewer samples lead on to where all is known: of finitely many values, that is a fixed point."""
    alphas = [point.alpha for point in curve]
    return evolution.prior.is_discrete and not evolution.channel.exact and len(alphas) > 1 and alphas[-1] < alphas[-2]


def _known_slope(evolution: Evolution) -> float:
    """Derivative of the free entropy in alpha where all is known."""
    return float(evolution.moments(_KNOWN * evolution.rho).log_evidence.mean())


def _crossing_with_all_known(evolution: Evolution, lower: list[PointAtShare]) -> BayesOptimalThreshold:
    """Where the free entropy below the jump crosses that of what is known but for its exponentially small rest."""
    mixture, slope = evolution.prior.mixture, _known_slope(evolution)
    assert mixture is not None, "as it has finitely many values"
    known = float(mixture.probabilities @ np.log(mixture.probabilities))

    def difference(alpha: float) -> float:
        return _entropy(lower, alpha) - known - slope * alpha

    low, high = lower[0].alpha, lower[-1].alpha
    if difference(low) * difference(high) > 0:
        return BayesOptimalThreshold(float("nan"), float("nan"), "the free entropies do not cross")
    alpha = _root(difference, low, high)
    below = min(lower, key=lambda p: abs(p.alpha - alpha))
    scatter = _error(below.free_entropies) / max(abs(below.slope - slope), 1e-12)
    return BayesOptimalThreshold(alpha, scatter, "the free entropies cross")


def _entropy(points: list[PointAtShare], alpha: float) -> float:
    """Free entropy at a sample complexity, by cubic interpolation with its known slopes."""
    from scipy.interpolate import CubicHermiteSpline

    ordered = sorted(points, key=lambda point: point.alpha)
    x = np.array([point.alpha for point in ordered])
    keep = np.concatenate([[True], np.diff(x) > 1e-12])
    values = [float(point.free_entropies.mean()) for point in ordered]
    slopes = [point.slope for point in ordered]
    return float(CubicHermiteSpline(x[keep], np.array(values)[keep], np.array(slopes)[keep])(alpha))
