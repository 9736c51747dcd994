"""Symmetries of single samples: what they make of a configuration of clusters, and of its fields and noise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.losses import SampleLoss, exchanges_tokens, sample_points
from attnphase.facts.questions import Asked
from attnphase.state_evolution.sector import Element
from attnphase.state_evolution.system import System

__all__ = ["Image", "exchanges", "images_in", "merged", "sample_loss", "symmetries_of_samples"]

Key = tuple[tuple[tuple[int, ...], bytes, bytes], ...]
"""Symmetries of overlaps: orders of the sites, and the entries of the students' and the teachers' matrices."""


class Image(NamedTuple):
    """A symmetry that makes samples of one configuration of those of the source, another one or the same.

    Attributes
    ----------
    source : int
    order : tuple of int
        The token of the source that every token is made of.
    student, teacher : bytes
        By what its fields are multiplied: (r, r) and (t, t) entries.
    of_entries : bool
        Whether the noise of the labels goes with the tokens, to which its entries belong; else it stays.
    """

    source: int
    order: tuple[int, ...]
    student: bytes
    teacher: bytes
    of_entries: bool

    def of(self, fields_of: Array, matrix: bytes) -> Array:
        """The image of fields (..., L, n)."""
        turned = fields_of[..., list(self.order), :]
        return turned @ np.frombuffer(matrix).reshape(2 * fields_of.shape[-1:]).T

    def of_row(self, question: SampleLoss, points: Array) -> Array:
        """The image of samples' numbers in a row."""
        h, k, noise, trained = question.split(points)
        return question.joined(self.of(h, self.student), self.of(k, self.teacher), self.of_noise(noise), trained)

    def of_noise(self, z: Array) -> Array:
        """The image of noise (..., L, L); of none if there is none."""
        return z[..., list(self.order), :][..., list(self.order)] if self.of_entries and z.shape[-1] else z


def exchanges(system: System, group: Sequence[Element]) -> list[tuple[int, Image]]:
    """Configurations, and exchanges of tokens that are taken to make their samples of those of one, columns aside."""
    found = dict[tuple[int, Image], None]()
    one, other = (np.eye(n).tobytes() for n in (system.kernels.columns, system.kernels.teacher_rank))
    for order in dict.fromkeys(tuple(order) for order, *_ in group):
        sources, tokens = system.sample_law.images(order)
        for place, source in enumerate(sources):
            moved = source != place or (tokens[place] != np.arange(tokens.shape[1])).any()
            if (
                source >= 0
                and moved
                and (image := _image(system, place, source, tokens[place], one, other)) is not None
            ):
                found[place, image] = None
    return list(found)


def merged(system: System, group: Sequence[Element]) -> System:
    """The system with one of those configurations that symmetries make of each other, with the probability of all.

    What it gives must be averaged over the group.
    """
    law = system.sample_law
    if len(law.probabilities) == 1:
        return system
    places, shares = _merged(system, _as_key(group))
    if len(places) == len(shares):
        return system
    return system.of_configurations(places, shares[list(places)], [(tuple(order), A, B, C) for order, A, B, C in group])


@lru_cache(maxsize=64)
def _merged(system: System, group: Key) -> tuple[tuple[int, ...], Array]:
    """The configurations that stand for all, and the probability that every configuration stands for."""
    shares, stands_for = system.sample_law.probabilities.copy(), list(range(len(system.sample_law.probabilities)))
    images = [system.sample_law.images(order) for order, _, _ in group]
    for place in stands_for[1:]:
        for (sources, tokens), (_, A, B) in zip(images, group, strict=True):
            source = sources[place]
            if 0 <= source < place and _image(system, place, source, tokens[place], A, B) is not None:
                stands_for[place] = stands_for[source]
                shares[stands_for[place]] += shares[place]
                break
    return tuple(dict.fromkeys(stands_for)), shares


def images_in(system: System, configuration: int, group: Sequence[Element]) -> tuple[Image, ...]:
    """The symmetries that make a configuration's samples of each other."""
    every = _images(system, configuration, _as_key(group))
    return tuple(image for image in every if image is not None)


def symmetries_of_samples(system: System, group: Sequence[Element]) -> tuple[Image, ...]:
    """Those symmetries of overlaps that are ones of the samples within all configurations, as they are in the first."""
    places = range(len(system.sample_law.configurations))
    every = zip(*(_images(system, place, _as_key(group)) for place in places), strict=True)
    return tuple(images[0] for images in every if images[0] is not None and None not in images)


def _as_key(group: Sequence[Element]) -> Key:
    """The same as what tells it from others."""
    return tuple((tuple(order), A.astype(float).tobytes(), B.astype(float).tobytes()) for order, A, B, _ in group)


@lru_cache(maxsize=4096)
def _images(system: System, configuration: int, group: Key) -> tuple[Image | None, ...]:
    """What symmetries of overlaps make of a configuration's samples; None of those that are none of its samples.

    With a causal mask there are some: tokens of the same law have the same overlaps, and other losses.
    """
    found: list[Image | None] = []
    for order, A, B in group:
        sources, tokens = system.sample_law.images(order, slice(configuration, configuration + 1))
        own = sources[0] == configuration
        found.append(_image(system, configuration, configuration, tokens[0], A, B) if own else None)
    return tuple(found)


def _image(
    system: System, configuration: int, source: int, tokens: NDArray[np.int64], student: bytes, teacher: bytes
) -> Image | None:
    """The symmetry that makes a configuration's samples of the source's by these tokens; None if none does."""
    for of_entries in (True, False):
        image = Image(source, tuple(tokens.tolist()), student, teacher, of_entries)
        if _leaves_losses(system, configuration, image):
            return image
    return None


def _leaves_losses(system: System, configuration: int, image: Image) -> bool:
    """Whether samples and their images have the same losses.

    In many digits that is asked of the tokens' exchange: signs and exchanges of columns are the whole loss's.
    """
    clusters, kernels = system.sample_law.clusters_of, system.kernels
    signs = np.eye(kernels.columns).tobytes(), np.eye(kernels.teacher_rank).tobytes()
    if image[:4] == (configuration, tuple(range(kernels.length)), *signs):  # nothing is changed
        return True
    (question, asked), (images, _) = _asked(system, image.source), _asked(system, configuration)
    return bool(asked.possible([image], lambda one, points: one.of_row(question, points), images)) and exchanges_tokens(
        system.loss, clusters(image.source), clusters(configuration), image.order, image.of_entries
    )


@lru_cache(maxsize=64)
def _asked(system: System, configuration: int) -> tuple[SampleLoss, Asked]:
    """The loss of a configuration's samples, about the means of the teacher's fields, and where it is asked."""
    question = sample_loss(system, configuration, system.parameters, means=True)
    return question, Asked.of(question, sample_points(question, system.loss.sizes))


def sample_loss(
    system: System, configuration: int, parameters: tuple[Array, Array], *, means: bool = False
) -> SampleLoss:
    """The loss of a configuration's samples, with the numbers that the problem has for all else.

    Parameters
    ----------
    system : System
    configuration : int
    parameters : tuple of two arrays
        As the kernels take them.
    means : bool
        Whether the teacher's fields are given about their means; there is nothing trained in a sample then.
    """
    offsets, rank = system.sample_law.means[configuration], system.kernels.teacher_rank
    variance = system.token_variances[configuration]
    if means:
        return SampleLoss(system.kernels, *parameters, variance, offsets)
    offsets = np.concatenate([np.zeros((len(offsets), rank)), offsets[:, rank:]], axis=1)
    return SampleLoss(system.kernels, *parameters, variance, offsets, system.loss.trained)
