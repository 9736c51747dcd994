"""Symmetries of single samples: what they make of a configuration of clusters, and of its fields and noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnphase.arrays import Array
from attnphase.state_evolution.proximal import ProximalProblem
from attnphase.state_evolution.sector import Element
from attnphase.state_evolution.system import System

__all__ = ["Image", "images_in", "symmetries_of_samples"]

_SAMPLES, _SAME = 6, 1e-9  # random fields on which a symmetry is tried, and by what losses may differ


class Image(NamedTuple):
    """A symmetry that makes samples of one configuration of those of another, the source.

    Attributes
    ----------
    source : int
    order : tuple of int
        The token of the source that every token is made of.
    student, teacher : bytes
        By what its fields are multiplied: (r, r) and (t, t) entries.
    """

    source: int
    order: tuple[int, ...]
    student: bytes
    teacher: bytes

    def of(self, fields_of: Array, matrix: bytes) -> Array:
        """The image of fields (..., L, n)."""
        turned = fields_of[..., list(self.order), :]
        return turned @ np.frombuffer(matrix).reshape(2 * fields_of.shape[-1:]).T

    def of_noise(self, z: Array) -> Array:
        """The image of noise (..., L, L), whose entries belong to two tokens; of none if there is none."""
        return z[..., list(self.order), :][..., list(self.order)] if z.shape[-1] else z


def images_in(system: System, configuration: int, group: Sequence[Element]) -> tuple[Image, ...]:
    """The symmetries that make a configuration's samples of those of the first one that they can be made of."""
    every = [image for image in _images(system, configuration, _as_key(group)) if image is not None]
    first = min(image.source for image in every)  # of itself, by the identity, if by no other
    return tuple(image for image in every if image.source == first)


def symmetries_of_samples(system: System, group: Sequence[Element]) -> tuple[Image, ...]:
    """Those symmetries of overlaps that are ones of the samples of all configurations, as they are in the first."""
    places = range(len(system.sample_law.configurations))
    every = zip(*(_images(system, place, _as_key(group)) for place in places), strict=True)
    return tuple(images[0] for images in every if images[0] is not None and None not in images)


def _as_key(group: Sequence[Element]) -> tuple[tuple[tuple[int, ...], bytes, bytes], ...]:
    """The same as what tells it from others."""
    return tuple((tuple(order), A.astype(float).tobytes(), B.astype(float).tobytes()) for order, A, B in group)


@lru_cache(maxsize=4096)
def _images(
    system: System, configuration: int, group: tuple[tuple[tuple[int, ...], bytes, bytes], ...]
) -> tuple[Image | None, ...]:
    """What symmetries of overlaps make a configuration of; None of those that are none of single samples.

    With a causal mask there are some: tokens of the same law have the same overlaps, and other losses.
    """
    found: list[Image | None] = []
    for order, A, B in group:
        sources, tokens = system.sample_law.images(order, slice(configuration, configuration + 1))
        image = Image(sources[0], tuple(tokens[0].tolist()), A, B)
        found.append(image if _leaves_losses(system, configuration, image) else None)
    return tuple(found)


def _leaves_losses(system: System, configuration: int, image: Image) -> bool:
    """Whether random samples and their images have the same losses."""
    kernels, generator = system.kernels, np.random.default_rng(22)
    counts = kernels.columns, kernels.teacher_rank, kernels.noise_columns
    h, k, z = (generator.normal(0.1, 0.9, (_SAMPLES, kernels.length, count)) for count in counts)
    losses = np.empty((2, _SAMPLES))
    turned = configuration, image.of(h, image.student), image.of(k, image.teacher), image.of_noise(z)
    for found, (place, fields_of, *labels) in zip(losses, ((image.source, h, k, z), turned), strict=True):
        whole = system.sample_law.labels_of(*labels) + system.sample_law.means[place]
        found[:] = ProximalProblem(system).losses_of(place, np.ascontiguousarray(fields_of), whole)
    return bool(np.abs(losses[0] - losses[1]).max() <= _SAME * np.abs(losses).max())
