"""The law of a sample's latent variables: the clusters of its tokens, the teacher's fields, the labels' noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.errors import ProblemError
from attnphase.facts.expressions import Expressions, equivariant
from attnphase.facts.moments import same_arrays
from attnphase.integration.scrambling import scrambled_normals
from attnphase.lazy import loaded_on_use
from attnphase.problem.losses import LossKind
from attnphase.problem.problem import Problem
from attnphase.problem.tables import RELATIVE_TOLERANCE
from attnphase.problem.tokens import Tokens
from attnphase.spectrum.measure import Spectrum
from attnphase.state_evolution.axes import matrix_root

with loaded_on_use(__name__):
    import sympy

    from derivations.models import metrics, samplers, scalar

__all__ = ["DeclaredLaw", "SampleLaw"]

_POINTS, _UNLIKELY = 4096, 8.0  # in each of 16 replicates, and the standard errors by which a mean is wrong
_UNCERTAIN = 0.5  # relative error of the mean square: it is 1 if one of 16 replicates makes it up
_LEFT = 1e-6  # of a direction that those before span: less is rounding


@dataclass(frozen=True, eq=False)
class SampleLaw:
    """The law of a sample's clusters c, of the teacher's fields k given c and of the labels' noise: Gaussian in k.

    Given these the student's fields are Gaussian, ``omega ~ N(m + theta rho^-1 (k - kbar), q - theta rho^-1 theta^T)``,
    for any law of k.  Another law of k is a subclass that is not `gaussian`, with its own `drawn`, with its own
    `unchanged` where it has fewer symmetries, and with its own `split` where k is not linear in the normals and labels
    jump.  What needs more than these calls `check_gaussian`.

    Attributes
    ----------
    configurations, probabilities : (C, L) array of int and (C,) array
        Site of every token in every configuration of clusters.
    tokens : (P,) array of int
        Token of every site.
    means : (C, L, label fields) array
        Of all that labels are made of: kbar, zero for the noise, and where a loss takes it the number of the cluster.
    rho, clean_rho : (P, t, t) arrays
        Covariance of a Gaussian k, with noise where labels have it in their fields, and without.
    noise : float
        Standard deviation of the noise on what is made of the fields.
    labels : LossKind
        The loss, which knows where labels jump as k varies.
    """

    gaussian: ClassVar[bool] = True

    configurations: NDArray[np.int64]
    probabilities: Array
    tokens: NDArray[np.int64]
    means: Array
    rho: Array
    clean_rho: Array
    noise: float
    labels: LossKind

    def __post_init__(self) -> None:
        if not np.array_equal(self.rho, self.clean_rho):
            self.check_gaussian("noise that is added to k needs the law of the sum: set teacher.noise to 0.")

    def check_gaussian(self, reason: str) -> None:
        """Refuse a law of k that is not Gaussian, with what is missing and the remedy as the reason.

        Raises
        ------
        ProblemError
            Naming what gives the law.
        """
        if not self.gaussian:
            raise ProblemError(self.origin, f"{self._said} a law under which k is not Gaussian, but {reason}")

    @property
    def origin(self) -> str:
        """The field of a problem that gives the law."""
        return "tokens"

    @property
    def _said(self) -> str:
        return f"{self.origin} {'have' if self.origin == 'tokens' else 'gives'}"

    @classmethod
    def of(cls, problem: Problem, spectrum: Spectrum, *, noisy: bool = True) -> SampleLaw:
        """The law of a problem's samples; with the labels' noise unless its mean is taken in closed form."""
        configurations, probabilities = problem.cluster_law
        tokens = np.array([token for token, _ in problem.sites])
        variance = problem.target_noise if noisy else 0.0
        noise = problem.tokens.length if variance else 0
        numbers = np.array([[cluster] for _, cluster in problem.sites], dtype=float)
        numbers = numbers[:, : problem.loss.form.cluster_columns]
        of_sites = np.concatenate([spectrum.teacher_means, np.zeros((len(tokens), noise)), numbers], axis=1)
        means = np.ascontiguousarray(of_sites[configurations])
        clean, deviation = spectrum.rho, float(np.sqrt(variance))
        rho = clean + problem.field_noise * np.eye(clean.shape[-1]) if problem.field_noise else clean
        parts = configurations, probabilities, tokens, means, rho, clean, deviation, problem.loss.form
        law = cls(*parts).declared(problem)
        if isinstance(law, DeclaredLaw):
            law.check()
        return law

    def declared(self, problem: Problem) -> SampleLaw:
        """The law with the sampler and the density that a problem gives k, if it gives one."""
        tokens = problem.tokens
        if not tokens.own_laws:
            return self
        parts: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(SampleLaw)}
        numbers = tuple(float(cluster) for _, cluster in problem.sites)
        return DeclaredLaw(**parts, given=tokens, numbers=numbers)

    def labels_of(self, k: Array, noise: Array | None = None) -> Array:
        """What labels are made of, about its mean: k (..., L, t), noise (..., L, noise), and zero for the rest."""
        parts = np.zeros((*k.shape[:-1], self.means.shape[-1]))
        parts[..., : k.shape[-1]] = k
        if noise is not None:
            parts[..., k.shape[-1] : k.shape[-1] + noise.shape[-1]] = noise
        return parts

    @cached_property
    def clusters(self) -> tuple[tuple[float, ...], ...]:
        """The numbers of the tokens' clusters in every configuration, each once; none if no label has them."""
        return tuple(dict.fromkeys(map(self.clusters_of, range(len(self.means)))))

    def clusters_of(self, configuration: int) -> tuple[float, ...]:
        """The numbers of the tokens' clusters in a configuration; none if no label has them."""
        numbers = self.means[configuration, :, self.means.shape[-1] - self.labels.cluster_columns :]
        return tuple(numbers.ravel().tolist())

    def of_configurations(self, places: Sequence[int], probabilities: Array) -> SampleLaw:
        """The law of some configurations alone, with these probabilities."""
        chosen = list(places)
        means, configurations = self.means[chosen], self.configurations[chosen]
        return replace(self, configurations=configurations, probabilities=probabilities, means=means)

    def drawn(self, configuration: int, zeta: Array) -> tuple[Array, Array]:
        """``rho^-1/2 (k - kbar)`` of standard normals (N, L, t), and by what their weights are multiplied, (N,)."""
        return zeta, np.ones(len(zeta))

    def sampled(self, configuration: int, zeta: Array) -> tuple[Array, Array]:
        """As `drawn`, from other normals under another law, which reach its tails where these are wider."""
        return self.drawn(configuration, zeta)

    def of_gaussian(self, configuration: int, k: Array) -> tuple[Array, Array]:
        """The fields that are made of Gaussian k (N, L, t) in a configuration, and their density, (N,)."""
        return k, np.ones(len(k))

    @cached_property
    def is_even(self) -> bool:
        """Whether all fields may change their signs together."""
        return self.unchanged(range(len(self.tokens)), -np.eye(self.rho.shape[-1]))

    def unchanged(self, order: Sequence[int], turn: Array) -> bool:
        """Whether the law stays as it is under an order of the sites and ``k -> turn k``."""
        turned, (sources, tokens) = self.means.copy(), self.images(order)
        turned[..., : len(turn)] = self.means[..., : len(turn)] @ turn.T
        if -1 in sources or np.abs(self.probabilities[sources] - self.probabilities).max() > 1e-12:
            return False
        moved = np.take_along_axis(turned[sources], tokens[..., None], axis=1)
        size = np.abs(self.means).max(axis=(0, 1))
        size[: len(turn)] += self.field_sizes
        return same_arrays(moved, self.means, size)

    @property
    def field_sizes(self) -> Array:
        """Largest roots of the second moments of a Gaussian k, (t,)."""
        squares = np.diagonal(self.rho, axis1=1, axis2=2).max(axis=0)
        sizes: Array = np.sqrt(squares + (self.means[..., : len(squares)] ** 2).max(axis=(0, 1)))
        return sizes

    @cached_property
    def holding(self) -> NDArray[np.bool_]:
        """Which configurations hold a site, (P, C)."""
        return np.array([(self.configurations == site).any(axis=1) for site in range(len(self.tokens))])

    def images(self, order: Sequence[int], which: slice = slice(None)) -> tuple[list[int], NDArray[np.int64]]:
        """Of which configurations an order of the sites makes these, -1 if of none, and of which of their tokens."""
        sites = np.array(order)[self.configurations[which]]
        tokens = self.tokens[sites]
        keys = np.take_along_axis(sites, tokens.argsort(axis=1), axis=1).tolist()
        return [self._places.get(tuple(key), -1) for key in keys], tokens

    @cached_property
    def _places(self) -> dict[tuple[int, ...], int]:
        """The place of every configuration."""
        return {tuple(sites): place for place, sites in enumerate(self.configurations.tolist())}

    def split(self, configuration: int, basis: Array) -> tuple[Array, tuple[float, ...]]:
        """Directions of zeta that begin with the normal of the planes where labels jump, and where these lie.

        Noise in the fields is there for training and not for the test error: both are integrated between their planes.
        It belongs to losses of one field, of which there is one direction.  Without planes it is the basis.
        """
        planes = self.labels.label_planes
        assert planes is not None  # else the rule is refused
        slopes, offsets = planes
        if not slopes:
            return basis, ()
        sites, middle = self.configurations[configuration], self.means[configuration, :, : self.rho.shape[-1]]
        some = np.random.default_rng(24).normal(size=(4, *middle.shape))
        if not np.array_equal(self.drawn(configuration, some)[0], some):
            raise ProblemError(
                self.origin,
                f"{self._said} a law under which k is not linear in the normals, and labels jump at places which the"
                ' law does not tell: give it a method split, or set integration.rule = "sobol".',
            )
        normal = np.zeros(middle.shape)
        for place, slope in slopes.items():
            normal[place] = slope
        scaled, clean = (
            np.einsum("lij,li->lj", matrix_root(rho[sites]), normal).ravel() for rho in (self.rho, self.clean_rho)
        )
        sizes = [float(np.linalg.norm(one)) for one in (scaled, clean)]
        found = [scaled / sizes[0]]
        for one in basis.T:
            rest = one - sum(other * (other @ one) for other in found)
            if np.linalg.norm(rest) > _LEFT and len(found) < len(basis):
                found.append(rest / np.linalg.norm(rest))
        apart = [float(offset - (normal * middle).sum()) for offset in offsets]
        return np.stack(found, axis=1), tuple(sorted({distance / size for distance in apart for size in sizes}))


@dataclass(frozen=True, eq=False)
class DeclaredLaw(SampleLaw):
    """The law of k that a problem declares: a function of Gaussian k, with a density that weighs these.

    Attributes
    ----------
    given : Tokens
        With a sampler, a density, or both, which hold k, the clusters' numbers and parameters.
    numbers : tuple of float
        Of the cluster of every site.
    """

    gaussian: ClassVar[bool] = False

    given: Tokens
    numbers: tuple[float, ...]

    @property
    def origin(self) -> str:
        """See `SampleLaw`."""
        return f"tokens.{self.given.own_laws[0]}"

    def drawn(self, configuration: int, zeta: Array) -> tuple[Array, Array]:
        """See `SampleLaw`."""
        roots = matrix_root(self.rho[self.configurations[configuration]])
        middle = self.means[configuration, :, : self.rho.shape[-1]]
        k, shares = self.of_gaussian(configuration, middle + np.einsum("lij,nlj->nli", roots, zeta))
        if self.given.sampler is None:
            return zeta, shares
        return np.einsum("lij,nlj->nli", np.linalg.inv(roots), k - middle), shares

    def sampled(self, configuration: int, zeta: Array) -> tuple[Array, Array]:
        """See `SampleLaw`: normals of variance two, of which the weights under a moved Gaussian are bounded.

        They are not wider under a density of one everywhere, so that it changes nothing, unless fields of a sampler
        lie farther out than they do.
        """
        normals = np.sqrt(2) * zeta
        wide, shares = self.drawn(configuration, normals)
        farther = np.abs(wide).max() > (1 + RELATIVE_TOLERANCE) * np.abs(normals).max()
        if np.ptp(shares) <= RELATIVE_TOLERANCE and not farther:
            return self.drawn(configuration, zeta)
        return wide, shares * np.exp((np.log(2) - zeta**2).sum(axis=(1, 2)) / 2)

    def unchanged(self, order: Sequence[int], turn: Array) -> bool:
        """See `SampleLaw`: of the sampler and the density at some k."""
        if not super().unchanged(order, turn):
            return False
        sources, tokens = self.images(order)
        length = self.means.shape[1]
        for place, (source, own) in enumerate(zip(sources, tokens, strict=True)):
            change: Array = np.kron(np.eye(length)[own], turn).astype(float)
            mine, its = self._made(source), self._made(place)
            outputs = np.block([[change, np.zeros((len(change), 1))], [np.zeros((1, len(change))), np.ones((1, 1))]])
            points = mine.points(np.zeros(len(change)), np.tile(self.field_sizes, length))
            if not equivariant(mine, its, points, change, outputs):
                return False
        return True

    def _made(self, configuration: int) -> Expressions:
        """Fields and their density as expressions of Gaussian k, in a configuration."""
        parameters = self.given.parameters or {}
        names, (length, rank) = tuple(parameters), (self.means.shape[1], self.rho.shape[-1])
        sizes = scalar.Sizes(length, 1, rank)
        entries, held = samplers.sampler_expressions(self.given.sampler or "k", sizes, names)
        density: Any = 1
        if self.given.density is not None:
            over, symbols = metrics.metric_expression(self.given.density, length, 1, rank, names)
            density = over.xreplace(dict(zip(symbols.teacher, entries, strict=True)))
        numbers = [int(self.numbers[site]) for site in self.configurations[configuration]]
        known = dict(zip(held.clusters, map(sympy.Integer, numbers), strict=True))
        known |= {one: sympy.Float(value) for one, value in zip(held.parameters, parameters.values(), strict=True)}
        made = tuple(sympy.sympify(one).xreplace(known) for one in (*entries, density))
        return Expressions(made, held.teacher)

    def check(self) -> None:
        """Refuse fields without a mean square, and a density that is negative or whose mean is not 1, for any clusters.

        Raises
        ------
        ProblemError
            Naming ``tokens.sampler`` or ``tokens.density``.
        """
        shape = self.means.shape[1], self.rho.shape[-1]
        for place, sites in enumerate(self.configurations):
            draws = [scrambled_normals(int(np.prod(shape)), _POINTS, np.random.default_rng((26, s))) for s in range(16)]
            drawn, shares = zip(*(self.drawn(place, one.reshape(-1, *shape)) for one in draws), strict=True)
            numbers = ", ".join(f"{self.numbers[site]:.0f}" for site in sites)
            where = f" for the clusters ({numbers})" if len(self.configurations) > 1 else ""
            if self.given.sampler is not None:
                _check_squares(np.stack(drawn), where)
            if self.given.density is not None:
                over = "Gaussian k" if self.given.sampler is None else "the k of tokens.sampler"
                _check_density(np.stack(shares), over, where)

    def of_gaussian(self, configuration: int, k: Array) -> tuple[Array, Array]:
        """See `SampleLaw`."""
        count, length, rank = k.shape
        sampler, density, parameters = self.given.sampler, self.given.density, self.given.parameters or {}
        numbers = np.array([self.numbers[site] for site in self.configurations[configuration]])
        names, own = tuple(parameters), np.array([*parameters.values()])
        if sampler is not None:
            k = samplers.sampler_function(sampler, scalar.Sizes(length, 1, rank), names)(k, numbers, own)
        if density is None:
            return k, np.ones(count)
        h, noise = np.zeros((length, 1, count)), np.zeros((length**2, count))
        function = metrics.metric_function((density,), length, 1, rank, names)
        return k, function(h, np.ascontiguousarray(k.transpose(1, 2, 0)), noise, numbers, own)[0][0]


def _check_squares(scaled: Array, where: str) -> None:
    """Refuse fields (16, N, L, t) of a sampler that are not finite, or of which the largest make up the mean square."""
    if not np.isfinite(scaled).all():
        raise ProblemError(
            "tokens.sampler", f"tokens.sampler must give finite numbers, but some are not{where}: let it grow slower."
        )
    squares = (scaled**2).sum(axis=(2, 3)).mean(axis=1)
    mean, error = squares.mean(), squares.std(ddof=1) / 4
    if not error <= _UNCERTAIN * mean:
        raise ProblemError(
            "tokens.sampler",
            f"tokens.sampler must give fields with a finite mean square, but that of {scaled[..., 0, 0].size} draws has"
            f" an error of {100 * error / mean:.0f} percent{where}: let it grow slower.",
        )


def _check_density(values: Array, over: str, where: str) -> None:
    """Refuse a density with values (16, N) of which some are negative, or whose mean is not 1."""
    if values.min() < 0:
        raise ProblemError(
            "tokens.density",
            f"tokens.density must be positive for all k, but takes the value {values.min():.4g}{where}: write it as a"
            " square or an exponential, for example.",
        )
    mean, error = values.mean(), values.mean(axis=1).std(ddof=1) / 4
    if not abs(mean - 1) <= _UNLIKELY * error + RELATIVE_TOLERANCE:
        raise ProblemError(
            "tokens.density",
            f"tokens.density must have the mean 1 over {over}, but has {mean:.6g}{where}: divide it by its mean.",
        )
