"""What is derived from a problem: built once, and handed down from the solver to the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.losses import Loss
from attnphase.facts.questions import Asked
from attnphase.integration.refinement import Refinement
from attnphase.kernels.compiler import Kernels, kernels_for, tell_if_compiling
from attnphase.kernels.key import model_numbers, trained_places
from attnphase.problem.consistency import has_rule
from attnphase.problem.integration import Integration
from attnphase.problem.problem import Problem
from attnphase.problem.units import Units
from attnphase.processes.progress import Callback, silent
from attnphase.spectrum.measure import Spectrum, measure_of
from attnphase.state_evolution.gauge import Gauge, gauge_of
from attnphase.state_evolution.noise import NoisyLabels
from attnphase.state_evolution.overlaps import Overlaps
from attnphase.state_evolution.prior import Prior
from attnphase.state_evolution.sample_law import SampleLaw
from attnphase.state_evolution.sector import Sector
from attnphase.state_evolution.symmetries import ProblemSymmetry, is_sign_symmetric, problem_symmetries
from attnphase.state_evolution.trained import TrainedPenalties

__all__ = ["System"]


@dataclass(frozen=True, eq=False)
class System:
    """A problem with its kernels and its measure, and what follows from these.

    Attributes
    ----------
    problem : Problem
    kernels : Kernels
        Of the problem's model.
    spectrum : Spectrum
    threads : int
        Parts that share the nodes of a pass.
    own_law : SampleLaw, optional
        Of the samples, instead of the problem's.
    witnesses : tuple of Asked
        Samples at which facts about the loss have been seen to fail.
    """

    problem: Problem
    kernels: Kernels
    spectrum: Spectrum
    threads: int = 1
    own_law: SampleLaw | None = None
    witnesses: tuple[Asked, ...] = ()

    @classmethod
    def of(cls, problem: Problem, threads: int = 1, callback: Callback = silent) -> System:
        """The system of a problem: the same one for the same problem and threads.

        Parameters
        ----------
        problem : Problem
        threads : int
            That it may use.
        callback : callable, optional
            Is called if the kernels have to be compiled.

        Raises
        ------
        ProblemError
            A score of the user's own is not known in this process.
        CacheError
            The kernel cache cannot be used.
        """
        tell_if_compiling(problem, callback)
        # a score of the user's own may have changed since: then so have the kernels, which are part of the key
        return _built(problem, kernels_for(problem), threads)

    def at(self, trained: Array) -> System:
        """The system with other values of the trained parameters of the loss, and of Q."""
        mixing, numbers = self.parameters[0], self.parameters[1].copy()
        numbers[self._places] = trained
        hash(self)  # it stays the same to what is cached
        other = copy(self)
        other.__dict__["parameters"] = mixing, numbers
        if self.whole is not self:
            other.__dict__["_whole"] = self.whole.at(trained)
        return other

    def at_rest(self) -> System:
        """The system with all weights held at zero, see `rest`."""
        hash(self)
        other = copy(self)
        at_rest = {"prior": replace(self.prior, at_rest=True), "_identity": (self._identity, "at rest")}
        other.__dict__.update({**at_rest, "_moving": self})
        return other

    @property
    def moving(self) -> System:
        """The system whose weights are not held at zero."""
        found: System = self.__dict__.get("_moving", self)
        return found

    @property
    def whole(self) -> System:
        """The system of all configurations of clusters, see `of_configurations`."""
        found: System = self.__dict__.get("_whole", self)
        return found

    @property
    def averaged_over(self) -> Sequence[ProblemSymmetry]:
        """Symmetries over which means over this system's samples must be averaged; none of a whole system."""
        found: Sequence[ProblemSymmetry] = self.__dict__.get("_averaged_over", ())
        return found

    def averaged(self, means: Array, *, by_teacher: bool = False) -> Array:
        """Means over this system's samples of what sites have, (P, ..., r, r) or by the teacher (P, ..., r, t), of all.

        That is, their mean over `averaged_over`.
        """
        if not self.averaged_over:
            return means
        turned = [A @ means[list(order)] @ (B if by_teacher else A).T for order, A, B, _ in self.averaged_over]
        return np.mean(turned, axis=0)

    def of_configurations(
        self, places: tuple[int, ...], probabilities: Array, group: Sequence[ProblemSymmetry]
    ) -> System:
        """The system with samples of some configurations of clusters alone, which have these probabilities.

        They stand for all, which a group makes of them.
        """
        hash(self)
        other, law = copy(self), self.sample_law.of_configurations(places, probabilities)
        other.__dict__.pop("token_variances", None)
        other.__dict__.update(
            {
                "_whole": self,
                "_averaged_over": group,
                "_identity": (self._identity, places),
                "sample_law": law,
                "symmetries": self.symmetries,
                "gauge": self.gauge,
                "noise_directions": tuple(self.noise_directions[place] for place in places),
            }
        )
        return other

    @cached_property
    def _identity(self) -> object:
        return object()

    def __eq__(self, other: object) -> bool:
        """Systems that differ in trained parameters alone are the same to what is found by trying random ones."""
        return isinstance(other, System) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def trained(self) -> int:
        """Number of the trained parameters of the loss, and of the entries of Q, which stand behind them."""
        return len(self._places)

    @cached_property
    def norms(self) -> int:
        """Number of the independent entries of ``Q = W^T W / d``, if the loss takes it."""
        return len(self.problem.loss.norms)

    @cached_property
    def _places(self) -> NDArray[np.intp]:
        """Where these stand among all numbers of the loss."""
        return np.array(trained_places(self.problem), dtype=np.intp)

    @cached_property
    def penalties(self) -> TrainedPenalties:
        """What their values add to the objective; those of Q nothing."""
        return TrainedPenalties.of(self.problem.loss)

    @cached_property
    def prior(self) -> Prior:
        """The rows' problems under the measure."""
        return Prior.of(self.problem, self.kernels, self.spectrum)

    @cached_property
    def symmetries(self) -> tuple[ProblemSymmetry, ...]:
        """What leaves the whole problem unchanged: loss, data and regulariser; the identity is the first."""
        return problem_symmetries(
            self.problem, self.loss, self.spectrum, self.sample_law, self.penalties, self.prior.unchanged
        )

    @cached_property
    def gauge(self) -> Gauge:
        """Linear changes of the student's columns that leave the loss unchanged, as far as the regulariser has them."""
        form = self.problem.regularizer.form
        ridges = self.problem.regularizer.strength
        unlike = ridges if isinstance(ridges, tuple) else None
        gauge = gauge_of(self.loss, self.sample_law.clusters, unlike)
        return gauge.of_regularizer(quadratic=form.quadratic, rotates=form.rotates)

    def in_gauge(self, overlaps: Overlaps, target: Overlaps) -> Overlaps:
        """Overlaps of weights with the same loss, of least norm and turned as others are.

        The norm is that of isotropic tokens. So a solve draws the same nodes however its start is turned.
        """
        if len(self.gauge.stretches):
            norms = (overlaps.q / self.spectrum.site_variances[:, None, None]).mean(axis=0)
            overlaps = overlaps.changed(self.gauge.balancing(norms))
        sites = tuple(range(self.spectrum.gamma.shape[0]))
        kept = [A for order, A, B, _ in self.symmetries if order == sites and np.array_equal(B, np.eye(len(B)))]
        # theta counts in the unit of m
        return self.gauge.turned(overlaps, replace(target, theta=target.theta / self.units.tokens**2), kept)

    @cached_property
    def units(self) -> Units:
        """The problem's own."""
        return Units.of(self.problem)

    def sector_of(self, start: Overlaps) -> Sector:
        """The order parameters that share a starting point's symmetries, in the problem's units."""
        return Sector.of(start, self.symmetries, self.units, self.gauge)

    @cached_property
    def loss(self) -> Loss:
        """The loss as facts about it are asked."""
        return Loss.of(self.problem, self.kernels, self.spectrum, self.witnesses)

    @cached_property
    def has_even_loss(self) -> bool:
        """Whether the loss is unchanged by the signs of the student's fields, and by those of the teacher's."""
        return is_sign_symmetric(self.loss, self.sample_law.clusters)

    @property
    def reflects(self) -> bool:
        """Whether fields may be averaged over the four sign changes of student and teacher."""
        return self.has_even_loss and self.sample_law.is_even

    @cached_property
    def sample_law(self) -> SampleLaw:
        """The law of the samples' latent variables."""
        if self.own_law is not None:
            return self.own_law
        return SampleLaw.of(self.problem, self.spectrum, noisy=self.kernels.noise_columns > 0)

    @cached_property
    def token_variances(self) -> tuple[Array, ...]:
        """The diagonal of D in every configuration."""
        return tuple(np.ascontiguousarray(self.spectrum.site_variances[self.sample_law.configurations]))

    @cached_property
    def noise_directions(self) -> tuple[Array, ...]:
        """Directions of the labels' noise that matter to the student, in every configuration of clusters."""
        law = self.sample_law
        if not self.kernels.noise_columns:
            return (np.empty((0, 0)),) * len(law.configurations)
        if self.trained:  # what the student does not see, a trained parameter may
            return (np.eye(self.kernels.length * self.kernels.noise_columns),) * len(law.configurations)
        images = [law.images(order) for order, *_ in self.symmetries]
        orders = ([t[c] for s, t in images if s[c] == c] for c in range(len(law.configurations)))
        return tuple(self.noisy_labels(c).seen(own) for c, own in enumerate(orders))

    def noisy_labels(self, configuration: int) -> NoisyLabels:
        """The losses of a configuration of clusters as the noise of their labels varies."""
        variance = self.token_variances[configuration]
        return NoisyLabels(self.problem, self.kernels, self.sample_law, configuration, variance, self.parameters)

    @cached_property
    def parameters(self) -> tuple[Array, Array]:
        """Mixing matrix and the other numbers that the loss depends on, as the kernels take them."""
        return np.ascontiguousarray(self.problem.mixing_matrix, dtype=float), model_numbers(self.problem)

    def refinement(self, max_nodes: int) -> Refinement:
        """The integration rules of all but solves, that may use so many nodes.

        Lines have their nodes at a fixed point, where a solve looks for them; all else takes those of "auto".
        """
        integration = self.problem.integration
        if integration.form.of_solves_alone:
            integration = replace(integration, rule="auto", nodes=None)
        return self._rules(integration, max_nodes)

    def _rules(self, integration: Integration, max_nodes: int) -> Refinement:
        kernels = self.kernels
        counts = kernels.columns, kernels.teacher_rank, kernels.noise_columns
        student, teacher, noise = (kernels.length * count for count in counts)
        seen = max(one.shape[1] for one in self.noise_directions)
        return integration.rules((student + teacher + noise, student), self.reflects, max_nodes, noise, seen)

    def refinement_of_solve(self, max_nodes: int) -> Refinement:
        """The rules of a solve: by lines where there are some."""
        rules = self._rules(self.problem.integration, max_nodes)
        # measured: where several tokens are in clusters, points in all fields together take a fifth of the time
        plain = len(self.sample_law.probabilities) == 1 or self.kernels.length == 1
        return rules.of_solve(has_lines=plain and has_rule(self.problem, "lines"))


@lru_cache(maxsize=32)
def _built(problem: Problem, kernels: Kernels, threads: int) -> System:
    return System(problem, kernels, measure_of(problem), threads)
