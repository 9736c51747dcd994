"""The state-evolution map under one rule, and what is measured at its fixed points."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.integration.lines import LineOrders
from attnphase.integration.rules import Rule
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Solution
from attnphase.problem.consistency import has_smooth_law
from attnphase.state_evolution.channel import Channel, ChannelPass
from attnphase.state_evolution.directions import directions_of
from attnphase.state_evolution.fields import FieldLaw
from attnphase.state_evolution.line_rules import rule_at
from attnphase.state_evolution.norms import conjugates_of_norms, held
from attnphase.state_evolution.overlaps import Conjugates, Overlaps, norm_matrix, whole_and_without
from attnphase.state_evolution.proximal import Minima
from attnphase.state_evolution.sample_symmetries import merged
from attnphase.state_evolution.sector import Element, Sector
from attnphase.state_evolution.system import System
from attnphase.state_evolution.trained import newton_step

__all__ = ["NEAR_DEGENERATE", "StateEvolution"]

LOWER = 1e-9  # difference of energies by which one minimum counts as lower, relative to their size and unit
NEAR_DEGENERATE = 1e-3  # energy gap below which a second minimum is counted, in the unit of energy
CHECKED = 2**14  # nodes of which a fresh search says enough about all


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
    thorough : bool
        Search every local problem afresh at every evaluation.
    bottomless : int
        Nodes without a minimum, in the last search that was not a warm pass, or since.
    """

    def __init__(self, channel: Channel, alpha: float, sector: Sector) -> None:
        system = merged(channel.system.whole, sector.group)
        if system is not channel.system:
            channel = replace(channel, system=system)
        self.channel, self.alpha, self.sector = channel, alpha, sector
        self.prior = channel.system.prior
        self.lift = False
        self.minima: Minima | None = None
        self.last: ChannelPass | None = None
        self._known: tuple[Array, bool, Array] | None = None  # where `last` was evaluated, whether lifted, its image
        self._loss_at_omega: Array | None = None  # there
        # there: whether lifted, `quantities` of all together and of the replicates
        self._quantities: tuple[bool, dict[str, Array] | None, dict[str, Array] | None] | None = None
        self.bottomless = 0
        self.thorough = False

    @property
    def system(self) -> System:
        """The system, with the trained parameters of the last evaluation."""
        return self.channel.system.whole

    def adopt(self, minima: Minima | None) -> None:
        """Start from minima of the same nodes at a neighbouring point; a refreshed pass must follow."""
        self.minima, self._known = minima, None

    def adopt_from(self, finer: StateEvolution) -> None:
        """Start from the minima of a map under more points of the same sequences, or under the same ones."""
        own, theirs = self.channel.rule, finer.channel.rule
        known = finer.minima if own is theirs else None
        if known is None and finer.minima is not None and np.array_equal(own.nodes, theirs.nodes[:, : own.order]):
            known = finer.minima.part(theirs.nodes.shape[:2], slice(own.order))
        self.adopt(known)

    def unpack(self, x: Array) -> Overlaps:
        """Overlaps at a point."""
        return self.sector.unpack(x)

    def pack(self, overlaps: Overlaps) -> Array:
        """Coordinates of overlaps."""
        return self.sector.pack(overlaps)

    def scales(self, x: Array) -> Array:
        """Size of every coordinate, for relative residuals."""
        return self.sector.scales(x, self.system.spectrum.rho)

    def steps(self, x: Array) -> Array:
        """What differences of a sampled map are relative to, with `untold`."""
        return self.sector.steps(x, self.system.spectrum.rho)

    def untold(self, x: Array) -> float:
        """See `Overlaps.untold`; differences of a sampled map are in proportion to it."""
        return self.unpack(x).untold(self.system.sample_law.rho)

    def __call__(self, x: Array, *, refresh: bool = False) -> Array | None:
        """The image of a point; None outside the domain, and where it is no finite number.

        With `refresh` all local problems are searched afresh.
        """
        if self._known is not None and not refresh and self._is_at(x):
            return self._known[2].copy()
        self._known = self._loss_at_omega = self._quantities = None
        overlaps = self.unpack(x)
        if not overlaps.feasible(self.system.spectrum.rho):
            return None
        self.channel = self.channel.at(overlaps)
        if self.channel.rule.lines is not None:
            return self._along_lines(x, overlaps, self.channel.rule.lines, thorough=refresh or self.thorough)
        orbit = self.channel.representatives(overlaps)
        representatives = len({source for source, _ in orbit}) * len(self.channel.probabilities)
        starts = Starts.COLD
        if self.channel.rule.from_zero:
            starts = Starts.FROM_ZERO
        elif self.minima is not None and len(self.minima.energies) == representatives * self.channel.rule.size:
            starts = Starts.REFRESH if refresh or self.thorough else Starts.WARM
        # minima of other representatives, at a point of other symmetry, are of other nodes
        known = self.minima if starts.follow else None
        result = self.channel.evaluate(self.alpha, overlaps, starts, known)
        # a warm pass, from the known minima, need not see where others find no bottom
        self.bottomless = max(result.minima.bottomless, self.bottomless if starts is Starts.WARM else 0)
        return self._image_of(x, result)

    def _along_lines(self, x: Array, overlaps: Overlaps, orders: LineOrders, *, thorough: bool) -> Array | None:
        """The image under a rule whose nodes are found here; once it has been thorough it stays so."""
        if thorough and not orders.thorough:
            rule = replace(self.channel.rule, lines=replace(orders, thorough=True))
            self.channel = replace(self.channel, rule=rule)
        law = self.channel.law(overlaps)
        self.channel, solved = self._at_lines(self.channel, overlaps, law, self.sector.group)
        result = self.channel.evaluate(self.alpha, overlaps, Starts.COLD, solved=solved, law=law)
        self.bottomless = result.minima.bottomless
        return self._image_of(x, result)

    def _at_lines(
        self,
        channel: Channel,
        overlaps: Overlaps,
        law: FieldLaw,
        group: Sequence[Element],
        *,
        jumps: bool = False,
    ) -> tuple[Channel, Solution]:
        """A channel under the nodes that its rule of lines has at given overlaps, and their minima; see `rule_at`."""
        system, count = channel.system, len(channel.configurations)
        directions = [directions_of(system, configuration) for configuration in range(count)]
        rule, solved = rule_at(system, channel.rule, law, overlaps.V, directions, group, jumps=jumps)
        return replace(channel, rule=rule), solved

    def all_nodes(self, x: Array) -> tuple[Channel, Minima]:
        """The channel, evaluated at ``x``, and its minima: with nodes that symmetries spare a rule, and jumps."""
        assert self.minima is not None
        if self.channel.rule.lines is None:
            return self.channel, self.minima
        channel, identity = replace(self.channel, system=self.system), self.sector.group[:1]
        overlaps = self.unpack(x)
        channel, solved = self._at_lines(channel, overlaps, channel.law(overlaps), identity, jumps=True)
        return channel, Minima(solved.minima, solved.energies, solved.flags)

    def _image_of(self, x: Array, result: ChannelPass) -> Array | None:
        """The image of a point by its conjugates, which are kept."""
        conjugates = self.sector.symmetrized(result.conjugates)
        if self.prior.at_rest:  # no sample pulls at the weights
            pulls = {name: 0 * getattr(conjugates, name) for name in ("q_hat", "m_hat", "theta_hat")}
            conjugates = replace(conjugates, **pulls)
        if self.sector.trained:
            slopes, curvatures = self.sector.symmetrized_trained(result.slopes, result.curvatures)
            result = replace(result, slopes=slopes, curvatures=curvatures)
            conjugates = self._with_trained(conjugates, x, self.alpha, result)
        result = replace(result, conjugates=conjugates)
        self.minima, self.last = result.minima, result
        image = self.image(result.conjugates.mean())
        packed = None if image is None else self.pack(image)
        if packed is None or not np.isfinite(packed).all():
            return None
        self._known = x.copy(), self.lift, packed
        return packed.copy()

    def _with_trained(self, conjugates: Conjugates, x: Array, alpha: float, at: ChannelPass) -> Conjugates:
        """Conjugates with the next trained parameters, by each replicate's slopes at ``x``, and with Q_hat."""
        trained, count = self.unpack(x).trained, self.sector.trained - self.system.norms
        slopes = alpha * at.slopes + self.system.penalties.slopes(trained)
        most = self._height(trained, alpha, at)
        found = trained[:count] + newton_step(slopes[:, :count], self._stiffness(x, alpha, at), most)
        conjugates = replace(conjugates, trained=found[None])
        if not self.system.norms:
            return conjugates
        Q_hat = conjugates_of_norms(slopes[:, count:], self.sector.columns)
        Q, bend = norm_matrix(trained[count:], self.sector.columns), alpha * at.curvatures.mean(axis=0)[count:, count:]
        return replace(conjugates, Q_hat=self.sector.symmetrized_norms(Q_hat), at=(Q, bend))

    def _stiffness(self, x: Array, alpha: float, at: ChannelPass) -> Array:
        """Second derivatives of the objective in the trained parameters, at fixed order parameters.

        The proximal points follow the parameters: those on a kink, which has no curvature, do so along it.
        """
        penalty, count = (
            self.system.penalties.curvatures(self.unpack(x).trained),
            self.sector.trained - self.system.norms,
        )
        curvature: Array = alpha * at.curvatures.mean(axis=0) + np.diag(penalty)
        return curvature[:count, :count]

    def _height(self, trained: Array, alpha: float, at: ChannelPass) -> float:
        """By how much a step in trained parameters may lower the objective: by its size if the loss has kinks.

        Far from kinks a loss may have no curvature, and nothing else says where its slopes end.
        """
        if not self.system.problem.loss.form.has_kink:
            return np.inf
        size = abs(float(at.envelope.mean())) + self.system.units.energy
        return alpha * size + float(np.abs(self.system.penalties.values(trained)))

    def curves_upwards(self, x: Array) -> bool:
        """Whether the objective does so in the trained parameters, at ``x``, where it was evaluated last."""
        if not self.sector.trained or self.last is None:
            return True
        return bool((np.linalg.eigvalsh(self._stiffness(x, self.alpha, self.last)) > 0).all())

    def _is_at(self, x: Array) -> bool:
        """Whether the last evaluation was made at ``x``, and inside the domain."""
        return self._known is not None and self._known[1] == self.lift and np.array_equal(x, self._known[0])

    @property
    def unsolved(self) -> int:
        """Nodes whose minimisation did not converge in the last evaluation, or has no minimum to converge to."""
        return max(0 if self.minima is None else self.minima.unsolved, self.bottomless)

    def spot_check(self, x: Array, share: float = 0.0) -> bool:
        """Whether a fresh search on a sample of the nodes finds nothing new that matters, and a minimum everywhere.

        What matters is a lower minimum, or a second one that is nearly as low; but along lines it is known where two
        are equally low.

        Parameters
        ----------
        share : float
            Of the sample's weight, where a lower minimum may be found all the same.
        """
        if self.bottomless:
            return False
        assert self.minima is not None
        few, known = self._sample()
        sample = replace(self.channel, rule=few)
        fresh = sample.evaluate(self.alpha, self.unpack(x), Starts.REFRESH, known).minima
        if fresh.bottomless:
            return False
        lower, lost = _news(fresh, known, self.system.units.energy)
        weight, of_all = (sample.scalar_mean(_by_node(sample, one)).mean() for one in (lower, np.ones(len(lower))))
        # of the nearly degenerate ones no more than the error of counting them
        few = self.channel.rule.lines is not None or lost.sum() ** 2 <= (fresh.gap < self._near_degenerate).sum()
        return bool(few and weight <= share * of_all)

    def _sample(self) -> tuple[Rule, Minima]:
        """Every fifth node, along lines all, or of a large rule as many as make `CHECKED`, and its minima."""
        assert self.minima is not None
        rule = self.channel.rule
        # odd, so that all coordinates of a tensor rule are met
        step = max(1 if rule.lines is not None else 5, rule.size // CHECKED | 1)
        points = slice(None, None, step)
        return rule.part(points), self.minima.part(rule.nodes.shape[:2], points)

    @property
    def _near_degenerate(self) -> float:
        return NEAR_DEGENERATE * self.system.units.energy

    def image(self, conjugates: Conjugates, *, lift: bool = False) -> Overlaps | None:
        """Overlaps from conjugates, equation (7)."""
        image = self.prior.overlaps(self._balanced(conjugates), lift=lift or self.lift)
        return None if image is None else self.sector.turned(image)

    def _balanced(self, conjugates: Conjugates) -> Conjugates:
        """Conjugates whose images have the least norm that the loss's gauge leaves them, see `gauge`."""
        return self.prior.balanced(held(self.prior, conjugates), self.system.gauge)

    def images(self) -> Array:
        """What every replicate makes of the image at the last evaluation, lifted into the domain, (S, D); NaN beyond.

        By what the image of all changes without it: the prior is far from linear over the scatter of single replicates.
        """
        assert self.last is not None
        rests = self._balanced(self.last.conjugates.whole_and_without())
        found = self._images_of(rests, lift=True)
        if found is None:
            return np.full((len(self.last.envelope), self.sector.basis.shape[1]), np.nan)
        return _pseudo_values(self.sector.pack_all(found))

    def _images_of(self, hats: Conjugates, *, lift: bool) -> Overlaps | None:
        """Of balanced conjugates, each by itself."""
        images = self.prior.of_replicates(hats, lift=lift)
        return None if images is None else self.sector.turned(images)

    def measure(self, x: Array, *, pooled: bool = False) -> dict[str, Array] | None:
        """Every quantity of the schema at ``x``, per replicate (S, ...) or for all replicates together (1, ...).

        The overlaps are those of the image. Replicates are as in `images`; only their differences mean something.
        """
        return None if self(x) is None else self.quantities(x, pooled=pooled)

    def quantities(self, x: Array, *, pooled: bool) -> dict[str, Array] | None:
        """What `measure` gives, of the evaluation just made at ``x``.

        The solver differentiates every entry, and refuses a rule that another contradicts in any: each must be finite
        and smooth at all points, those without weights among them.

        Equations (O1)-(O4) of the replica-symmetric page.
        """
        known = self._quantities
        if known is None or known[0] != self.lift or not (pooled or known[2] is not None):
            known = self._quantities = (self.lift, *self._measured_at(x, pooled=pooled))
        return known[1] if pooled else known[2]

    def _measured_at(self, x: Array, *, pooled: bool) -> tuple[dict[str, Array] | None, dict[str, Array] | None]:
        """`quantities` of all replicates together and, unless these alone are asked for, of each."""
        assert self.last is not None
        assert self.minima is not None
        overlaps, hats = self.unpack(x), self.last.conjugates
        if self._loss_at_omega is None:
            self._loss_at_omega = self.channel.loss_at_omega(overlaps)
        means = [self.last.envelope, self.last.loss_at_prox, self._loss_at_omega]
        means.append(self.nearly_degenerate_share())
        whole, alone = hats.mean(), len(self.last.envelope) == 1
        if not (pooled or alone) and (self.lift or self.prior.has_image(whole)):
            # a rest of the replicates may lie outside the domain where all lie inside; it only serves the errors
            rests = [whole_and_without(mean, 0) for mean in means]
            both = self._all_measured(overlaps, hats.whole_and_without(), rests, lift=True)
            if both is not None:
                return {name: x[:1] for name, x in both.items()}, {name: _pseudo_values(x) for name, x in both.items()}
        found = self._all_measured(overlaps, whole, [mean.mean(keepdims=True) for mean in means], lift=self.lift)
        return found, found if alone else None

    def _all_measured(
        self, overlaps: Overlaps, hats: Conjugates, means: Sequence[Array], *, lift: bool
    ) -> dict[str, Array] | None:
        """Everything measured at a point by conjugates and means per replicate, whatever these are."""
        envelope, loss_at_prox, loss_at_omega, second_minimum_share = means
        hats = self._balanced(hats)
        images = self._images_of(hats, lift=lift)
        if images is None:
            return None
        sites = overlaps.beside(hats)
        observables = self.prior.maps.observables(
            alpha=self.alpha,
            **self.prior.arguments(hats),
            field_mean=lambda values: values,
            envelope=envelope[:, None, None],
            loss_at_prox=loss_at_prox[:, None, None],
            loss_at_omega=loss_at_omega[:, None, None],
            length=self.system.problem.tokens.length,
            q=sites["q"],
            V=sites["V"],
            **hats.by_name,
        )
        paid = float(self.system.penalties.values(overlaps.trained))
        observables |= {name: observables[name] + paid for name in ("training_loss", "training_loss_direct")}
        trained = {"trained": images.trained} if self.sector.trained else {}
        trained |= {"Q_hat": hats.Q_hat[0]} if self.system.norms else {}
        return {
            "q": images.q,
            "V": images.V,
            "m": images.m[..., 0],
            "theta": images.theta,
            "q_hat": np.moveaxis(hats.q_hat, 1, 0),
            "V_hat": np.moveaxis(hats.V_hat, 1, 0),
            "m_hat": np.moveaxis(hats.m_hat[..., 0], 1, 0),
            "theta_hat": np.moveaxis(hats.theta_hat, 1, 0),
            **observables,
            "density": self.prior.density(hats),
            "second_minimum_share": second_minimum_share,
            **trained,
        }

    def beside(self, alpha: float, ridge: float | Array) -> StateEvolution:
        """The map at another alpha and ridge, evaluated where this one was: the local problems are the same.

        They know neither: the conjugates are proportional to alpha, and the ridge belongs to the rows' problems.
        """
        assert self.last is not None
        hats, factor = self.last.conjugates, alpha / self.alpha
        scaled = Conjugates(*(factor * one for one in (hats.q_hat, hats.V_hat, hats.m_hat, hats.theta_hat)))
        if self.sector.trained:
            assert self._known is not None
            scaled = self._with_trained(scaled, self._known[0], alpha, self.last)
        other = self.under(scaled)
        other.alpha, other.prior = alpha, replace(self.prior, strength=ridge)
        return other

    def under(self, conjugates: Conjugates) -> StateEvolution:
        """The map, evaluated where this one was, had its nodes given other conjugates."""
        assert self.last is not None
        other = copy(self)
        other.last, other._known, other._quantities = replace(self.last, conjugates=conjugates), None, None
        return other

    def second_minimum_share(self, within: float) -> Array:
        """Share of nodes whose second minimum lies less than ``within`` above the lowest, per replicate (S,)."""
        assert self.minima is not None
        return self.channel.scalar_mean(_by_node(self.channel, self.minima.has_second(within)))

    def nearly_degenerate_share(self) -> Array:
        """Share of nodes whose two lowest minima differ by less than `NEAR_DEGENERATE`, per replicate (S,)."""
        return self.second_minimum_share(self._near_degenerate)

    @property
    def rough_share(self) -> float:
        """Share of nodes near which something jumps or has a kink, which no tensor rule knows its error at."""
        problem = self.system.problem
        if problem.loss.form.is_rough or not has_smooth_law(problem):
            return 1.0
        return float(self.second_minimum_share(np.inf).mean())

    def free_entropy(self, x: Array) -> float:
        """``-Phi`` at ``x`` and its conjugates.

        Equation (F1) of the replica-symmetric page.
        """
        assert self.last is not None
        overlaps, hats = self.unpack(x), self.last.conjugates.mean()
        terms = self.prior.maps.free_entropy_terms(
            alpha=self.alpha,
            **self.prior.arguments(hats),
            field_mean=lambda values: values,
            envelope=self.last.envelope.mean().reshape(1, 1, 1),
            **overlaps.beside(hats),
            **hats.by_name,
        )
        paid = self.system.penalties.values(overlaps.trained)
        return float(sum(np.sum(term) for term in terms.values()) + paid)


def _pseudo_values(values: Array) -> Array:
    """Replicates (S, ...) whose mean and scatter are the jackknife's, of all together and all but each (1 + S, ...)."""
    whole, without = values[:1], values[1:]
    return whole + (len(without) - 1) * (whole - without)


def _by_node(channel: Channel, values: NDArray[Any]) -> Array:
    """One number of every node of a channel as (C, signs, S, n)."""
    return values.astype(float).reshape(len(channel.probabilities), -1, *channel.rule.nodes.shape[:2])


def _news(minima: Minima, beside: Minima, unit: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """At which nodes a minimum is lower than the lowest beside, and where a nearly degenerate one is missing there."""
    lowest = beside.energies[:, 0]
    lower = minima.energies[:, 0] <= lowest - LOWER * (unit + np.abs(lowest))
    return lower, (minima.gap < NEAR_DEGENERATE * unit) & (beside.gap > minima.gap + LOWER * unit)
