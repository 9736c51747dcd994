"""The channel of the dynamics: means of the gradient of a sample's loss at its own fields.

It is the channel of state evolution for one sample a direction and V = 0, where the proximal point is the field itself.
Noise of the labels that a loss is quadratic in is integrated in closed form, and the fields are those without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.integration.refinement import FALLS, GAUSS_HERMITE_ORDERS, Refinement
from attnphase.integration.rules import Rule
from attnphase.kernels.compiler import Kernels, kernels_for
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Nodes, Solution
from attnphase.problem.problem import Problem
from attnphase.processes.progress import Callback, silent
from attnphase.processes.threads import available_cores
from attnphase.state_evolution.channel import Channel
from attnphase.state_evolution.overlaps import Conjugates, Overlaps
from attnphase.state_evolution.proximal import Part, ProximalProblem, for_all
from attnphase.state_evolution.system import System
from attnphase.theories.sgd_flow.noise import has_quadratic_noise, of_fields

__all__ = [
    "Gauge",
    "SlopeChannel",
    "first_rule",
    "gains",
    "gauges_of",
    "is_smooth",
    "next_rule",
    "replicates_of",
    "system_of",
]

_HOPEFUL = 16.0  # times the error asked for, above which tensor rules of low order are given up for Sobol points


def system_of(problem: Problem, callback: Callback = silent) -> System:
    """The system of a problem on all cores, with the kernels of `sgd_flow.noise.of_fields`, and so its samples."""
    system = System.of(of_fields(problem), threads=available_cores(), callback=callback)
    return replace(system, problem=problem)


@dataclass(frozen=True, eq=False)
class _SlopeProblem(ProximalProblem):
    """The local problem without a search: the residual is minus the gradient at the centre."""

    kernels: Kernels

    def search(
        self, configuration: int, omega: Array, k: Array, factors: Array, starts: Starts, solution: Solution
    ) -> None:
        """Loss and minus its gradient, where `ProximalProblem` has them at the minimum."""
        nodes = self._nodes(configuration, omega, k, factors)
        self.kernels.slopes_at(nodes, solution.losses, solution.residuals)
        solution.energies[:] = solution.losses[:, None]
        solution.minima[:] = 0.0
        solution.flags[:] = 0


@dataclass(frozen=True, eq=False)
class SlopeChannel(Channel):
    """The channel with gradients in place of minima."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "proximal", _SlopeProblem(self.system, kernels_for(of_fields(self.system.problem))))

    def of_samples(self, overlaps: Overlaps) -> tuple[Conjugates, Array]:
        """Conjugates of one sample a direction, and its mean loss (S,), of every replicate.

        Equations (F2)-(F5) of the dynamics page.
        """
        passed = self.evaluate(1.0, overlaps, Starts.COLD)
        return passed.conjugates, passed.loss_at_prox

    def participation(self, overlaps: Overlaps) -> float:
        """Share of the samples that the gradient's square comes from, ``E[a]^2 / E[a^2]`` of ``a = |g|^2``.

        It is one where all have the same, and zero where none has a gradient.
        """
        law = self.law(overlaps)
        variants = sorted({source for source, _ in self.representatives(overlaps)})
        factors: Array = np.linalg.cholesky(overlaps.V).astype(float, copy=False)

        def pass_over(part: Part) -> tuple[float, float]:
            draws, omega, k = self.nodes_of(law, part)
            count = len(omega)
            solution = Solution(
                np.empty((count, 2, *omega.shape[1:])),
                np.empty((count, 2)),
                np.empty(count),
                np.empty_like(omega),
                np.empty(count, dtype=np.int64),
            )
            labels = k + self.system.sample_law.means[part.configuration]
            self.proximal.search(part.configuration, omega, labels, factors, Starts.COLD, solution)
            square = (solution.residuals**2).sum(axis=(1, 2))
            place = np.arange(part.nodes.start, part.nodes.stop) % self.rule.nodes.shape[1]
            weights = self.probabilities[part.configuration] * self.rule.weights[place]
            weights = weights * (draws.shares if len(draws.shares) else 1.0)
            return float(weights @ square), float(weights @ square**2)

        parts = self.proximal.parts(len(self.configurations), variants, self.rule.size)
        found = np.array(for_all(parts, pass_over, self.system.threads)).sum(axis=0)
        mean, mean_square = found / (len(variants) * self.rule.replicates)
        return float(mean**2 / mean_square) if mean_square > 0 else 0.0

    def noise_gains(self, overlaps: Overlaps, *, of_loss: bool = False) -> tuple[Array, float]:
        """What the labels' noise adds to ``q_hat``, (P, S, r, r), and if asked for to the mean loss, which is else 0.

        Equations (N1)-(N2) of the dynamics page.

        Raises
        ------
        ValueError
            The loss is not quadratic in the noise, or there is none.
        """
        problem = self.system.problem
        if not has_quadratic_noise(problem):
            raise ValueError("the noise of the labels has gains where a loss is quadratic in it")
        if self.of_student is not None:
            return self.of_student.noise_gains(overlaps, of_loss=of_loss)
        kernels, law = kernels_for(problem), self.law(overlaps)
        orbit = self.representatives(overlaps)
        variants = sorted({source for source, _ in orbit})
        shape = len(self.configurations), len(variants), self.rule.replicates
        squares, losses = np.zeros((*shape, kernels.length, kernels.columns, kernels.columns)), np.zeros(shape)

        def pass_over(part: Part) -> tuple[Array, Array]:
            draws, omega, k = self.nodes_of(law, part)
            labels = k + self.system.sample_law.means[part.configuration]
            variance = self.system.token_variances[part.configuration]
            at = Nodes(omega, labels, np.empty(0), *self.system.parameters, variance)
            square, loss = gains(kernels, at, of_loss=of_loss)
            return self._summed(part, draws, square), self._summed(part, draws, loss)

        parts = self.proximal.parts(len(self.configurations), variants, self.rule.size)
        # in the order of the parts, whichever ends first
        for part, (square, loss) in zip(parts, for_all(parts, pass_over, self.system.threads), strict=True):
            at = part.configuration, variants.index(part.variant)
            squares[at] += square
            losses[at] += loss
        index = [variants.index(source) for source, _ in orbit]  # neither changes with a sign of all fields
        gained = self.site_means(squares[:, index])
        loss = float((self.probabilities @ losses[:, index].mean(axis=1)).mean())
        return problem.target_noise * gained, problem.target_noise * loss

    @cached_property
    def of_student(self) -> SlopeChannel | None:
        """The channel with every place of the student's normals once; None where each is there once.

        Noise is added to what the student should say.  A loss that is quadratic in it has a gradient that is affine in
        their sum, so that its derivative does not know the teacher's fields.
        """
        own = self.rule.student_dimensions
        if self.rule.randomised or own == self.rule.nodes.shape[-1] or not self.turned:
            return None
        places, index = np.unique(self.rule.nodes[0, :, :own], axis=0, return_inverse=True)
        if len(places) == self.rule.size:
            return None
        nodes = np.zeros((1, len(places), self.rule.nodes.shape[-1]))
        nodes[0, :, :own] = places
        weights = np.bincount(index.ravel(), self.rule.weights)
        return SlopeChannel(self.system, replace(self.rule, nodes=nodes, weights=weights))


def gains(kernels: Kernels, nodes: Nodes, *, of_loss: bool) -> tuple[Array, Array]:
    """By noise of variance one: the gain of ``g g^T`` of every token (N, L, r, r), and of the loss (N,) if asked for.

    Of the labels (N, L, t) of the nodes there are none of the noise.  For a loss that is quadratic in the noise the
    differences are its derivatives.
    """
    count, before = len(nodes.centers), kernels.teacher_rank
    labels = np.insert(nodes.teacher_fields, [before] * kernels.noise_columns, 0.0, axis=2)

    def at(token: int = 0, column: int = 0, noise: float = 0.0) -> tuple[Array, Array]:
        shifted, losses, residuals = labels.copy(), np.empty(count), np.empty_like(nodes.centers)
        shifted[:, token, before + column] += noise
        kernels.slopes_at(nodes._replace(teacher_fields=shifted), losses, residuals)
        return losses, residuals

    without, clean = at()
    squares, gained = np.zeros((*clean.shape, kernels.columns)), np.zeros(count)
    for place in product(range(kernels.length), range(kernels.noise_columns)):
        total, ahead = at(*place, 1.0)
        squares += (ahead - clean)[..., :, None] * (ahead - clean)[..., None, :]
        if of_loss:
            gained += (total + at(*place, -1.0)[0]) / 2 - without
    return squares, gained


def is_smooth(system: System) -> bool:
    """Whether few nodes of a tensor rule integrate the gradient: nothing in it jumps."""
    form = system.problem.loss.form
    return not (form.has_labels or form.is_rough)


def first_rule(rules: Refinement, smooth: bool) -> Rule:
    """The rule a dynamics is followed under first: a tensor rule at once where one will do."""
    medium = rules.first()
    if not smooth or not medium.randomised:
        return medium
    low = rules.low_order()
    if low is not None:
        return low
    finer = rules.next(medium, 2 * rules.asked.standard_error, 0.0)
    return medium if finer is None or (finer.randomised and rules.asked.nodes is None) else finer


def next_rule(rules: Refinement, rule: Rule, error: float, smooth: bool) -> Rule | None:
    """The rule after one that left this relative error of q; None if it is good enough or cannot be refined."""
    asked = rules.asked.standard_error
    if rule.randomised:
        return rules.next(rule, error, 1.0)  # never back to a tensor rule
    if rules.low_order() is None:
        finer = rules.next(rule, error, 0.0 if smooth else 1.0)
        if finer is None or finer.randomised or _is_worth_it(rules, rule, error, finer):
            return finer
        return rules.next(rule, error, 1.0)
    if error <= asked:
        return None
    finer = rules.low_order(rule.order) if error <= _HOPEFUL * asked else None
    return finer or rules.first()


def _is_worth_it(rules: Refinement, rule: Rule, error: float, finer: Rule) -> bool:
    """Whether finer tensor rules are likely enough before they have more nodes than Sobol points that are.

    A steep function has a pole beside the real axis. Its error under order n is about ``exp(-c sqrt(n))``.
    """
    asked = rules.asked.standard_error
    points = max(rules.sobol(rules.medium_points).size, asked ** (-1 / FALLS))
    if points > rules.max_nodes:
        return True
    as_few = [order for order in GAUSS_HERMITE_ORDERS if order ** rules.dimensions[0] <= points]
    return error ** math.sqrt(max([finer.order, *as_few]) / rule.order) <= asked


class Gauge(NamedTuple):
    """A rule from which a deterministic one's distance, times ``share``, tells its error."""

    rule: Rule
    share: float


def gauges_of(rules: Refinement, rule: Rule, smooth: bool) -> list[Gauge]:
    """Gauges of a deterministic rule; none of a randomised one, which has replicates.

    One tensor rule may agree by chance, or because a steep function's errors have the sign of the order's parity: two
    are asked, of which one has the other parity. Of a low order, the rule of two less is four times as far from the
    limit, at least.
    """
    if not rule.randomised and rules.low_order() is not None:
        return [Gauge(rules.gauss_hermite(rule.order - 1), 1.0), Gauge(rules.gauss_hermite(rule.order - 2), 1 / 4)]
    return [Gauge(gauge, 1.0) for gauge in rules.gauges(rule, 0.0 if smooth else 1.0)]


def replicates_of(rule: Rule) -> Sequence[Rule]:
    """Every replicate as a rule of its own."""
    return [replace(rule, nodes=np.ascontiguousarray(nodes[None])) for nodes in rule.nodes]
