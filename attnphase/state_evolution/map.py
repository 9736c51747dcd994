"""The state-evolution map under one rule, what is measured at its fixed points, and how wrong that is.

Standard errors: a replicate (or a second rule) gives a slightly different map, whose fixed point is displaced by
``(I - J)^-1 dF``. The derivatives of everything measured carry the displacement on to every reported quantity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.fixed_points.iteration import finite_difference_jacobian
from attnphase.integration.rules import Rule
from attnphase.kernels.local.constants import Starts
from attnphase.state_evolution.channel import Channel, ChannelPass
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, Sector
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.proximal import Minima

__all__ = ["NEAR_DEGENERATE", "Response", "StateEvolution", "flatten", "response_at", "restore", "standard_errors"]

LOWER = 1e-9  # relative difference of energies by which one minimum counts as lower than another
NEAR_DEGENERATE = 1e-3  # energy gap below which a second minimum is counted


class StateEvolution:
    """``x -> F(x)`` under one rule; keeps the nodes' minima from one evaluation to the next.

    Points are coordinates (D,) in a `Sector`.

    Attributes
    ----------
    lift : bool
        Extend the map beyond its domain, see `prior.Prior.overlaps`.
    last : ChannelPass or None
        Of the last evaluation.
    minima : Minima or None
        Local minima of the nodes that are not mirror images, for the next evaluation.
    bottomless : int
        Nodes without a minimum, in the last search from all starts or since.
    """

    def __init__(self, channel: Channel, alpha: float, sector: Sector) -> None:
        self.channel, self.alpha, self.sector = channel, alpha, sector
        self.problem, self.kernels = channel.problem, channel.kernels
        self.prior = Prior.of(channel.problem, channel.kernels, channel.spectrum)
        self.lift = False
        self.at: Array | None = None  # where `last` was evaluated
        self.minima: Minima | None = None
        self.last: ChannelPass | None = None
        self.bottomless = 0

    def adopt(self, minima: Minima | None) -> None:
        """Start from minima of the same nodes at a neighbouring point; a refreshed pass must follow."""
        self.minima = minima

    def unpack(self, x: Array) -> Overlaps:
        """Overlaps at a point."""
        return self.sector.unpack(x)

    def pack(self, overlaps: Overlaps) -> Array:
        """Coordinates of overlaps."""
        return self.sector.pack(overlaps)

    def scales(self, x: Array) -> Array:
        """Size of every coordinate, for relative residuals."""
        return self.sector.scales(x, self.channel.spectrum.rho)

    def __call__(self, x: Array, *, refresh: bool = False) -> Array | None:
        """The image of a point; None outside the domain. With `refresh` all local problems are searched afresh."""
        self.at = None
        overlaps = self.unpack(x)
        if not overlaps.feasible(self.channel.spectrum.rho):
            return None
        orbit = self.channel.representatives(overlaps)
        representatives = len({source for source, _ in orbit}) * len(self.channel.probabilities)
        starts = Starts.COLD
        if self.channel.rule.name == "published":
            starts = Starts.FROM_ZERO
        elif self.minima is not None and len(self.minima.energies) == representatives * self.channel.rule.size:
            starts = Starts.REFRESH if refresh else Starts.WARM
        result = self.channel.evaluate(self.alpha, overlaps, starts, self.minima)
        result = replace(result, conjugates=self.sector.symmetrized(result.conjugates))
        self.minima, self.last = result.minima, result
        # a warm pass, from the known minima, need not see where others find no bottom
        self.bottomless = max(result.minima.bottomless, self.bottomless if starts is Starts.WARM else 0)
        image = self.image(result.conjugates.mean())
        if image is None:
            return None
        self.at = x.copy()
        return self.pack(image)

    @property
    def unsolved(self) -> int:
        """Nodes whose minimisation did not converge in the last evaluation, or has no minimum to converge to."""
        return max(0 if self.minima is None else self.minima.unsolved, self.bottomless)

    def spot_check(self, x: Array) -> bool:
        """Whether a fresh search on a quarter of the replicates finds no lower minimum, and a minimum everywhere."""
        rule = self.channel.rule
        if rule.replicates < 4 or self.bottomless:
            return False
        assert self.minima is not None
        some = rule.replicates // 4
        few = replace(rule, nodes=rule.nodes[:some])

        def part(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(-1, *rule.nodes.shape[:2], *values.shape[1:])[:, :some].reshape(-1, *values.shape[1:])

        known = Minima(part(self.minima.fields), part(self.minima.energies), part(self.minima.steps))
        fresh = replace(self.channel, rule=few).evaluate(self.alpha, self.unpack(x), Starts.REFRESH, known).minima
        if fresh.bottomless:
            return False
        return bool((fresh.energies[:, 0] > known.energies[:, 0] - LOWER * (1 + np.abs(known.energies[:, 0]))).all())

    def image(self, conjugates: Conjugates, *, lift: bool = False) -> Overlaps | None:
        """Overlaps from conjugates, equation (7)."""
        return self.prior.overlaps(conjugates, lift=lift or self.lift)

    def measure(self, x: Array, *, pooled: bool = False) -> dict[str, Array] | None:
        """Every quantity of the schema at ``x``, per replicate (S, ...) or for all replicates together (1, ...).

        The overlaps are those of the image.
        """
        known = self.at is not None and np.array_equal(x, self.at)
        return None if not known and self(x) is None else self.quantities(x, pooled=pooled)

    def quantities(self, x: Array, *, pooled: bool) -> dict[str, Array] | None:
        """What `measure` gives, of the evaluation just made at ``x``."""
        assert self.last is not None
        assert self.minima is not None
        overlaps, channel, hats = self.unpack(x), self.channel, self.last.conjugates
        means = [self.last.envelope, self.last.loss_at_prox, channel.loss_at_omega(overlaps)]
        means.append(self.second_minimum_share(NEAR_DEGENERATE))
        if pooled:
            hats, means = hats.mean(), [mean.mean(keepdims=True) for mean in means]
        envelope, loss_at_prox, loss_at_omega, second_minimum_share = means
        images = []
        for s in range(len(envelope)):
            # a single replicate may lie outside the domain where all together lie inside; it only serves the errors
            image = self.image(hats.replicate(s), lift=not pooled)
            if image is None:
                return None
            images.append(image)
        observables = self.prior.maps.observables(
            alpha=self.alpha,
            **self.prior.arguments(hats),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            loss_at_prox=loss_at_prox[:, None, None],
            loss_at_omega=loss_at_omega[:, None, None],
            length=self.problem.tokens.length,
            q=overlaps.q[:, None],
            V=overlaps.V[:, None],
            q_hat=hats.q_hat,
            V_hat=hats.V_hat,
            m_hat=hats.m_hat,
            theta_hat=hats.theta_hat,
        )
        return {
            "q": np.stack([o.q for o in images]),
            "V": np.stack([o.V for o in images]),
            "m": np.stack([o.m[..., 0] for o in images]),
            "theta": np.stack([o.theta for o in images]),
            "q_hat": np.moveaxis(hats.q_hat, 1, 0),
            "V_hat": np.moveaxis(hats.V_hat, 1, 0),
            "m_hat": np.moveaxis(hats.m_hat[..., 0], 1, 0),
            "theta_hat": np.moveaxis(hats.theta_hat, 1, 0),
            **observables,
            "density": self.prior.density(hats),
            "second_minimum_share": second_minimum_share,
        }

    def second_minimum_share(self, within: float) -> Array:
        """Share of nodes whose second minimum lies less than ``within`` above the lowest, per replicate (S,)."""
        assert self.minima is not None
        rule = self.channel.rule
        probabilities = self.channel.probabilities
        near = (self.minima.gap < within).reshape(len(probabilities), -1, *rule.nodes.shape[:2])
        return probabilities @ (near @ rule.weights).mean(axis=1)

    def free_entropy(self, x: Array) -> float:
        """``-Phi`` at ``x`` and its conjugates."""
        assert self.last is not None
        overlaps, hats = self.unpack(x), self.last.conjugates.mean()
        terms = self.prior.maps.free_entropy_terms(
            alpha=self.alpha,
            **self.prior.arguments(hats),
            field_mean=lambda values: values,
            envelope=self.last.envelope.mean().reshape(1, 1, 1),
            q=overlaps.q[:, None],
            V=overlaps.V[:, None],
            m=overlaps.m[:, None],
            theta=overlaps.theta[:, None],
            q_hat=hats.q_hat,
            V_hat=hats.V_hat,
            m_hat=hats.m_hat,
            theta_hat=hats.theta_hat,
        )
        return float(sum(np.sum(term) for term in terms.values()))


def flatten(measured: dict[str, Array]) -> Array:
    """(S, everything), in the order of the dictionary."""
    return np.concatenate([v.reshape(len(v), -1) for v in measured.values()], axis=1)


def restore(vector: Array, like: dict[str, Array]) -> dict[str, Any]:
    """The dictionary that `flatten` made a vector of, shaped like the replicates of ``like``."""
    result: dict[str, Any] = {}
    position = 0
    for name, values in like.items():
        size = values[0].size
        part = vector[position : position + size].reshape(values.shape[1:])
        result[name] = float(part) if part.ndim == 0 else part
        position += size
    return result


@dataclass(frozen=True, eq=False)
class Response:
    """Derivatives at a fixed point.

    Attributes
    ----------
    jacobian : (D, D) array
        Of the map.
    measured : (E, D) array
        Of every measured quantity.
    order : int
        Order of the rule they were taken under.
    """

    jacobian: Array
    measured: Array
    order: int


def response_at(map_: StateEvolution, x: Array, enough: Rule) -> Response:
    """Derivatives by finite differences, 2 D evaluations, under the map's rule or, if that is finer, `enough`."""
    rule = map_.channel.rule
    if rule.randomised and rule.order > enough.order:
        channel = replace(map_.channel, rule=enough)
        medium = StateEvolution(channel, map_.alpha, map_.sector)
        medium.lift = map_.lift
        return response_at(medium, x, enough)

    def both(point: Array) -> Array | None:
        measured = map_.measure(point, pooled=True)
        return None if measured is None else np.concatenate([packed_images(measured, map_)[0], flatten(measured)[0]])

    # a difference may reach over the edge of the domain, where the lifted map goes on
    lift, map_.lift = map_.lift, True
    joint = finite_difference_jacobian(both, x, map_.scales(x))
    map_.lift, map_.at = lift, None
    order = rule.order if rule.randomised else enough.order
    return Response(joint[: len(x)], joint[len(x) :], order)


def packed_images(measured: dict[str, Array], map_: StateEvolution) -> Array:
    """Images per replicate as packed vectors, (S, P)."""
    packed = [
        map_.pack(Overlaps(q, V, m[..., None], theta))
        for q, V, m, theta in zip(measured["q"], measured["V"], measured["m"], measured["theta"], strict=True)
    ]
    return np.stack(packed)


def _propagate(image_change: Array, measured_change: Array, response: Response) -> tuple[NDArray[Any], Array]:
    """Changes of the fixed point and of everything measured at it, when map and measurement change by so much.

    ``dx = (I - J)^-1 dF`` and ``dE = dE|_x + (dE/dx) dx``; rows are replicates.
    """
    system = np.eye(len(response.jacobian)) - response.jacobian
    if not (np.isfinite(system).all() and np.isfinite(image_change).all()):
        # far from any fixed point the differences may overflow: errors are then unknown
        return np.full(image_change.shape, np.nan), np.full(measured_change.shape, np.nan)
    dx = np.linalg.lstsq(system, image_change.T, rcond=1e-12)[0].T
    return dx, measured_change + dx @ response.measured.T


def standard_errors(
    map_: StateEvolution, measured: dict[str, Array], response: Response, gauge_rule: StateEvolution | None, x: Array
) -> dict[str, Any]:
    """Standard errors: scatter of independent replicates, or the distance to a second rule for deterministic ones.

    Where the second rule is itself randomised, its own scatter is added in quadrature: two rules may agree by chance.
    """
    values, images, energy = flatten(measured), packed_images(measured, map_), _energy(map_)
    if gauge_rule is None:
        squares = _scatter(images, values, energy, response)
    else:
        other = gauge_rule.measure(x)
        if other is None:
            raise ArithmeticError("the second rule leaves the domain at the fixed point of the first")
        others = packed_images(other, gauge_rule), flatten(other), _energy(gauge_rule)
        shifts = [b.mean(axis=0) - a.mean(axis=0) for a, b in zip((images, values, energy), others, strict=True)]
        dx, change = _propagate(shifts[0][None], shifts[1][None], response)
        squares = [dx[0] ** 2, change[0] ** 2, shifts[2] ** 2]
        if gauge_rule.channel.rule.randomised:
            squares = [a + b for a, b in zip(squares, _scatter(*others, response), strict=True)]
    error_x, error, error_energy = (np.sqrt(square) for square in squares)
    errors = restore(error, measured)
    point = map_.sector.errors(error_x)
    errors |= {"q": point.q, "V": point.V, "m": point.m[..., 0], "theta": point.theta}
    # -Phi is stationary, so that to first order only the explicit change of its energy term is left
    errors["training_loss"] = float(error_energy)
    return errors


def _scatter(images: Array, values: Array, energy: Array, response: Response) -> list[Array]:
    """Squared standard errors of fixed point, measured quantities and energy, from replicates (S, ...)."""
    dx, change = _propagate(images - images.mean(axis=0), values - values.mean(axis=0), response)
    pairs = len(values) * (len(values) - 1)
    return [(x**2).sum(axis=0) / pairs for x in (dx, change, energy - energy.mean())]


def _energy(map_: StateEvolution) -> Array:
    """``alpha E[M]`` of the last evaluation, per replicate for randomised rules, else pooled."""
    assert map_.last is not None
    energy = map_.alpha * map_.last.envelope
    return energy if map_.channel.rule.randomised else energy.mean(keepdims=True)
