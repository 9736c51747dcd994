"""What a trained student is like: overlaps (6), test error, the linear baseline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnphase.arrays import Array
from attnphase.experiments.data import Geometry, Instance, Stream, draw_samples
from attnphase.experiments.risk import Risk
from attnphase.integration.rules import sobol
from attnphase.processes.threads import each
from attnphase.state_evolution.axes import matrix_root
from attnphase.state_evolution.metrics import metric_means
from attnphase.state_evolution.overlaps import Overlaps as StateOverlaps
from attnphase.state_evolution.sample_law import SampleLaw

__all__ = [
    "REPLICATES",
    "Overlaps",
    "conditional_nodes",
    "density",
    "exact_test_errors",
    "linear_errors",
    "measured_metrics",
    "noise_losses",
    "noisy_losses",
    "overlaps_of",
    "sampled_test_errors",
]

POINTS, REPLICATES = 2048, 8  # Sobol nodes of the mean over the fields


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Overlaps of one run's weights.

    Attributes
    ----------
    q : (P, r, r) array
        ``W^T Sigma_s W / d``.
    m : (P, r) array
        ``W^T (mu_s + p_l) / sqrt(d)``.
    theta : (P, r, t) array
        ``W^T Sigma_s Q_star / d``.
    rho : (P, t, t) array
        ``Q_star^T Sigma_s Q_star / d``.
    teacher_means : (P, t) array
        ``Q_star^T mu_s / sqrt(d)``.
    """

    q: Array
    m: Array
    theta: Array
    rho: Array
    teacher_means: Array


def overlaps_of(instance: Instance, run: int, weights: Array) -> Overlaps:
    """Overlaps of weights (d, r) with themselves, the encodings and the teacher of one run of the batch.

    Equation (P1) of the replica-symmetric page.
    """
    geometry, d = instance.geometries[run], instance.dimension
    tau = geometry.means + geometry.positions[_tokens(instance)]
    return Overlaps(
        q=np.einsum("sd,di,dj->sij", geometry.gamma, weights, weights, optimize=True) / d,
        m=tau @ weights / d,
        theta=np.einsum("sd,di,dj->sij", geometry.gamma, weights, geometry.teacher, optimize=True) / d,
        rho=np.einsum("sd,di,dj->sij", geometry.gamma, geometry.teacher, geometry.teacher, optimize=True) / d,
        teacher_means=geometry.means @ geometry.teacher / d,
    )


def _tokens(instance: Instance) -> NDArray[np.int64]:
    return np.array([token for token, _ in instance.problem.sites])


def density(weights: Array) -> float:
    """Share of the weights that are not exactly zero."""
    return float((weights != 0).mean())


def exact_test_errors(instance: Instance, weights: Tensor, trained: Array | None = None) -> tuple[Array, Array]:
    """Test error ``E |y - f|^2 / (d L)`` of every run, exact at finite d up to the quadrature over the local fields.

    Given a sample's fields its tokens are Gaussian with known mean and covariance, so that the mean of the loss over
    everything else is the loss at the mean Gram matrices.  For other losses than the attention's it is 2/L times the
    mean loss, as in the theory.

    Parameters
    ----------
    instance : Instance
    weights : (S, d, r) tensor
    trained : (S, p) array, optional
        Trained parameters of the loss, if it has some.

    Returns
    -------
    values, standard_errors : (S,) arrays
        The errors are those of the quadrature.
    """
    array = weights.detach().cpu().double().numpy()
    runs = range(len(array))

    def error(s: int) -> Array:
        return _test_error(_at(instance, s, trained), s, array[s])

    replicates = np.stack(each(instance.threads, error, runs))
    return replicates.mean(axis=1), replicates.std(axis=1, ddof=1) / math.sqrt(REPLICATES)


def _at(instance: Instance, run: int, trained: Array | None) -> Instance:
    """The instance with the loss of a run's student."""
    if trained is None:
        return instance
    loss = instance.loss
    return replace(instance, loss=loss.at(torch.as_tensor(trained[run], dtype=loss.dtype, device=loss.device)))


def measured_metrics(instance: Instance, weights: Tensor, trained: Array | None = None) -> tuple[Array, Array]:
    """The problem's test metrics of every run, exact at finite d up to the quadrature over the local fields.

    With trained parameters (S, p) of the loss, if it has some.

    Returns
    -------
    values, standard_errors : (S, M) arrays
        The errors are those of the quadrature.
    """
    problem, array = instance.problem, weights.detach().cpu().double().numpy()
    if not problem.metrics:
        return np.empty((len(array), 0)), np.empty((len(array), 0))

    def metrics_of(s: int) -> Array:
        own = overlaps_of(instance, s, array[s])
        law = _law_of(instance, own)
        overlaps = StateOverlaps(
            own.q, 0 * own.q, own.m[..., None], own.theta, np.zeros(0) if trained is None else trained[s]
        )
        return metric_means(problem, law, overlaps, POINTS, instance.seed, instance.runs[s])

    replicates, _, jumps = np.stack(each(instance.threads, metrics_of, range(len(array)))).transpose(2, 0, 1, 3)
    variances = replicates.var(axis=1, ddof=1) + jumps.mean(axis=1)
    return replicates.mean(axis=1), np.sqrt(variances / replicates.shape[1])


def _law_of(instance: Instance, overlaps: Overlaps) -> SampleLaw:
    """The law of a run's samples, without the labels' noise."""
    problem, rho = instance.problem, overlaps.rho
    configurations, probabilities = problem.cluster_law
    means = overlaps.teacher_means[configurations]
    law = SampleLaw(configurations, probabilities, _tokens(instance), means, rho, rho, 0.0, problem.loss.form)
    return law.declared(problem)


def noise_losses(instance: Instance) -> Array:
    """What the labels' noise adds to the mean loss of any weights, (S,), where the loss is quadratic in it."""
    runs, form = range(len(instance.runs)), instance.problem.loss.form
    if not (instance.problem.teacher.noise and form.noise_is_quadratic):
        return np.zeros(len(runs))
    nothing = np.zeros((instance.dimension, instance.problem.columns))
    return np.array(each(instance.threads, lambda s: _mean_losses(instance, s, nothing, _noise_gain).mean(), runs))


def noisy_losses(instance: Instance, weights: Tensor) -> Array:
    """Mean loss (S,) of a fresh sample whose labels have noise that the loss is not quadratic in."""
    array = weights.detach().cpu().double().numpy()

    def loss_of(s: int) -> float:
        return float(_mean_losses(instance, s, array[s], _loss, noisy=True).mean())

    return np.array(each(instance.threads, loss_of, range(len(array))))


def _test_error(instance: Instance, run: int, weights: Array) -> Array:
    """Of one run, per replicate."""
    return 2 * _mean_losses(instance, run, weights, _loss) / instance.problem.tokens.length


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Fields (N, L, r) and (N, L, t), mean Gram matrices given them (N, L, L), sites (L,), labels' noise or None."""

    h: Tensor
    k: Tensor
    own: Tensor
    cross: Tensor
    grams: Tensor
    sites: Tensor
    noise: Tensor | None


def _mean_losses(
    instance: Instance, run: int, weights: Array, of_nodes: Callable[..., Tensor], *, noisy: bool = False
) -> Array:
    """Mean over the fields of a number of every node, per replicate."""
    overlaps = overlaps_of(instance, run, weights)
    width = instance.loss.noise_shape[1] if noisy else 0
    law, total = _law_of(instance, overlaps), np.zeros(REPLICATES)
    for place, (sites, probability) in enumerate(zip(law.configurations, law.probabilities, strict=True)):
        own_law = partial(law.of_gaussian, place)
        *found, shares = conditional_nodes(
            instance, instance.geometries[run], overlaps, weights, sites, len(sites) * width, own_law
        )
        h, k, own, cross, grams, normals = (_tensor(instance, array) for array in found)
        deviation = math.sqrt(instance.problem.teacher.noise)
        noise = deviation * normals.reshape(-1, len(sites), width) if noisy else None
        values = of_nodes(instance, _Nodes(h, k, own, cross, grams, torch.as_tensor(sites), noise))
        weighed = values.double().cpu().numpy() * shares
        total += probability * weighed.reshape(REPLICATES, -1).mean(axis=1)
    return total


def _loss(instance: Instance, nodes: _Nodes) -> Tensor:
    """Losses of nodes."""
    loss = instance.loss
    targets = loss.targets(nodes.k, nodes.sites, nodes.noise)
    if not loss.has_grams:
        return loss.values(nodes.h, targets, nodes.grams)
    offsets = (targets @ nodes.own * targets).sum(dim=(1, 2)) / 2
    return loss.values(nodes.h, targets @ nodes.cross, nodes.grams) + offsets


def _noise_gain(instance: Instance, nodes: _Nodes) -> Tensor:
    """What noise adds to the losses of nodes, of its second derivatives, which are differences here."""
    rows, columns = instance.loss.noise_shape
    deviation = math.sqrt(instance.problem.teacher.noise)
    gain = -2 * rows * columns * _loss(instance, nodes)
    for a, b in np.ndindex(rows, columns):
        noise = nodes.k.new_zeros((len(nodes.k), rows, columns))
        for sign in (1.0, -1.0):
            noise[:, a, b] = sign * deviation
            gain = gain + _loss(instance, replace(nodes, noise=noise))
    return gain / 2


def _tensor(instance: Instance, array: Array) -> Tensor:
    return torch.as_tensor(array, dtype=instance.loss.dtype, device=instance.loss.device)


def conditional_nodes(
    instance: Instance,
    geometry: Geometry,
    overlaps: Overlaps,
    weights: Array,
    sites: NDArray[np.int64],
    more: int = 0,
    law: Callable[[Array], tuple[Array, Array]] = lambda k: (k, np.ones(len(k))),
) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    """Nodes of h and k, and the means given them of ``x x^T / d``, ``x (x+p)^T / d`` and ``(x+p)(x+p)^T / d``.

    With `more` normals for every node, which belong to nothing, and what multiplies its weight. The `law` makes fields
    and their density of Gaussian k; tokens move along the teacher.
    """
    d, length, columns = geometry.dimension, len(sites), weights.shape[1]
    t = geometry.teacher.shape[1]
    joint = np.concatenate([weights, geometry.teacher], axis=1)
    size = length * (columns + t)
    rule = sobol(size + more, length * columns, False, POINTS, REPLICATES, instance.seed)
    normal, rest = np.split(rule.nodes.reshape(-1, size + more), [size], axis=1)
    # the same nodes for every rank: the student's coordinates first
    normal_h = normal[:, : length * columns].reshape(-1, length, columns)
    normal = np.concatenate([normal_h, normal[:, length * columns :].reshape(-1, length, t)], axis=2)
    fields, responses, captured = np.empty_like(normal), [], np.empty(length)
    for l, site in enumerate(sites):
        theta = overlaps.theta[site]
        covariance = np.block([[overlaps.q[site], theta], [theta.T, overlaps.rho[site]]])
        fields[:, l] = normal[:, l] @ matrix_root(covariance)
        # E[x | fields] = mu + B F: coordinates of x in units of 1 / sqrt(d)
        spread = geometry.gamma[site][:, None] * joint
        response = spread @ np.linalg.pinv(covariance, rcond=1e-12, hermitian=True)
        responses.append(response)
        captured[l] = np.einsum("di,di->", response, spread) / d
    gaussian = fields[:, :, columns:] + overlaps.teacher_means[sites]
    k, shares = law(gaussian)
    if k is not gaussian:
        away = k - gaussian
        lifts = np.linalg.solve(overlaps.rho[sites], overlaps.theta[sites].mT)  # (theta rho^-1)^T
        fields = fields + np.concatenate([np.einsum("lij,nli->nlj", lifts, away), away], axis=2)
    # x_l / sqrt(d)-coordinates are combinations of mu_l, p_l and the columns of B_l; all products are taken once
    vectors = [
        np.concatenate([geometry.means[site][:, None], geometry.positions[l][:, None], responses[l]], axis=1) / d
        for l, site in enumerate(sites)
    ]
    flat = np.concatenate(vectors, axis=1)
    width = 2 + columns + t
    pairs = torch.as_tensor((flat.T @ flat).reshape(length, width, length * width))
    free = geometry.gamma[sites].mean(axis=1) - captured / d
    nodes = len(normal)
    x = np.concatenate([np.ones((nodes, length, 1)), np.zeros((nodes, length, 1)), fields], axis=2)
    student = x.copy()
    student[:, :, 1] = 1.0

    def gram(left: Array, right: Array) -> Array:
        # torch, since NumPy's BLAS would share out small products among threads of its own
        images = torch.bmm(torch.as_tensor(left).transpose(0, 1), pairs).numpy().reshape(length, nodes, length, width)
        return np.einsum("lnkb,nkb->nlk", images, right) + np.diag(free)

    h = fields[:, :, :columns] + overlaps.m[sites]
    # at finite d a density's mean is not quite one
    return h, k, gram(x, x), gram(x, student), gram(student, student), rest, shares / shares.mean()


def sampled_test_errors(
    instance: Instance, weights: Tensor, count: int, trained: Array | None = None
) -> tuple[Array, Array]:
    """Test error of every run from so many fresh samples; with trained parameters (S, p) of the loss, if it has some.

    Returns
    -------
    values, standard_errors : (S,) arrays
    """
    length = instance.problem.tokens.length

    def losses(s: int) -> Array:
        samples = draw_samples(
            instance.problem,
            instance.geometries[s : s + 1],
            count,
            instance.seed,
            instance.runs[s : s + 1],
            instance.loss,
            (Stream.TEST_CLUSTERS, Stream.TEST_TOKENS),
        )
        return Risk(samples, _at(instance, s, trained).loss).sample_losses(weights[s : s + 1])[0].double().cpu().numpy()

    errors = 2 * np.stack(each(instance.threads, losses, range(len(instance.runs)))) / length
    return errors.mean(axis=1), errors.std(axis=1, ddof=1) / math.sqrt(count)


def linear_errors(instance: Instance) -> Array:
    """Test error (S,) of the linear predictor ``f(x) = W x`` fitted to the training samples; NaN for other losses."""
    if not instance.loss.has_grams:
        return np.full(len(instance.runs), np.nan)
    samples, length = instance.samples, instance.problem.tokens.length
    fits = torch.linalg.solve(samples.token_products, samples.label_products, left=False).double().cpu().numpy()

    def error(s: int) -> float:
        zero, total = np.zeros((instance.dimension, instance.problem.columns)), 0.0
        overlaps = overlaps_of(instance, s, zero)
        law = _law_of(instance, overlaps)
        for place, (sites, probability) in enumerate(zip(law.configurations, law.probabilities, strict=True)):
            _, k, own, *_, shares = conditional_nodes(
                instance, instance.geometries[s], overlaps, zero, sites, law=partial(law.of_gaussian, place)
            )
            rest = instance.loss.targets(_tensor(instance, k), torch.as_tensor(sites)).double().cpu().numpy() - fits[s]
            total += probability * float(((rest @ own * rest).sum(axis=(1, 2)) * shares).mean())
        return total / length

    return np.array(each(instance.threads, error, range(len(instance.runs))))
