"""What a solve has assumed of a loss, asked again of the samples at the fixed point, and of their images.

Symmetries and gauges are found before anybody knows which fields matter (`attnphase.facts`).  A solve averages over
them, leaves order parameters zero, and takes minima of reflected nodes from each other.  At its end the loss is looked
at where it counts: at the proximal points and labels of the rule's nodes.  A sample at which a fact fails is a witness:
the system with it does not have the fact, and the point is solved anew.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from attnphase.arrays import Array
from attnphase.facts.losses import Element
from attnphase.facts.points import Points
from attnphase.facts.questions import Asked
from attnphase.fixed_points.measuring import SolvedPoint
from attnphase.lazy import loaded_on_use
from attnphase.solvers.iteration import Status
from attnphase.state_evolution.map import StateEvolution
from attnphase.state_evolution.proximal import Part
from attnphase.state_evolution.sample_symmetries import exchanges, sample_loss

with loaded_on_use(__name__):
    from scipy import linalg

__all__ = ["witnesses_at"]

_NODES = 4096  # of every configuration: a share of 1e-3 of the samples is missed with a probability of 2 percent
_BINS = 8  # of nodes by their size: losses are compared with what they vary by among nodes of one size
_SEEN, _BESIDE = 8, 24  # samples that are kept where a fact fails, and others whose losses tell what it varies by


def witnesses_at(solved: SolvedPoint) -> tuple[Asked, ...]:
    """Samples at a point at which something fails that its system assumes of the loss; none where it has not converged.

    Parameters
    ----------
    solved : SolvedPoint
        At which its map was last evaluated.
    """
    map_, found, system = solved.map_, list[Asked](), solved.map_.system
    changes, exchanged = _changes(map_), exchanges(system, map_.sector.group)
    if solved.found.status is not Status.converged or not (changes or exchanged):
        return ()
    for configuration, asked in _samples(map_, solved.found.point):
        worst = np.zeros(len(asked.points.values))
        for change in changes:
            worst = np.maximum(worst, asked.differences(lambda points, one=change: system.loss.image(one, points)))
        for place, image in exchanged:
            if image.source == configuration:
                own = sample_loss(system, place, map_.channel.system.parameters)
                worst = np.maximum(worst, asked.differences(lambda p, one=image, to=own: one.of_row(to, p), own))
        if (worst > 1).any():
            seen = np.argsort(-worst, kind="stable")[:_SEEN]
            beside = np.linspace(0, len(worst) - 1, _BESIDE).astype(np.intp)
            found.append(asked.at(np.unique(np.concatenate([seen, beside]))))
    return tuple(found)


def _changes(map_: StateEvolution) -> list[Element]:
    """Changes of columns, and of what is trained with them, that the solve takes to leave the loss as it is."""
    system, found = map_.system, dict[bytes, Element]()
    one, other, same = (np.eye(n) for n in (system.kernels.columns, system.kernels.teacher_rank, system.trained))
    wanted = [(A, B, C) for _, A, B, C in map_.sector.group]
    if system.has_even_loss:
        wanted += [(-one, other, same), (one, -other, same)]
    wanted += [(linalg.expm(change), other, same) for change in (*system.gauge.changes, *system.gauge.free)]
    for A, B, C in wanted:
        found[b"".join((part + 0.0).tobytes() for part in (A, B, C))] = A, B, C
    found.pop(b"".join(part.tobytes() for part in (one, other, same)), None)
    return list(found.values())


def _samples(map_: StateEvolution, x: Array) -> Iterator[tuple[int, Asked]]:
    """Proximal points and labels of the rule's nodes in its configurations, which are numbered as the system's are."""
    channel, minima = map_.channel, map_.minima
    assert minima is not None
    system, overlaps = channel.system, map_.unpack(x)
    law, orbit = channel.law(overlaps), channel.representatives(overlaps)
    chosen = sorted({source for source, _ in orbit})
    size = channel.rule.size
    fields = minima.fields[:, 0].reshape(-1, len(chosen), size, *minima.fields.shape[2:])
    numbers = system.parameters[1]
    for configuration, sites in enumerate(system.sample_law.configurations.tolist()):
        place = map_.system.sample_law.configurations.tolist().index(sites)
        question = sample_loss(map_.system, place, system.parameters)
        rows = []
        for variant, h in zip(chosen, fields[configuration], strict=True):
            _, _, k = channel.nodes_of(law, Part(configuration, variant, slice(0, size)))
            kept = _few(h, k)
            labels = k[kept] + system.sample_law.means[configuration]
            own = np.broadcast_to(numbers[list(question.trained)], (len(kept), len(question.trained)))
            teacher, noise, _ = np.split(labels, [system.kernels.teacher_rank, system.kernels.label_normals], axis=2)
            rows.append(question.joined(h[kept], teacher, noise, own))
        points = np.concatenate(rows)
        size_of = np.abs(points / (np.abs(points).max(axis=0) + np.finfo(float).tiny)).max(axis=1)
        bins = np.searchsorted(np.quantile(size_of, np.arange(1, _BINS) / _BINS), size_of)
        yield place, Asked.of(question, Points(points, bins.astype(np.intp), np.empty(0, dtype=np.intp)))


def _few(h: Array, k: Array) -> NDArray[np.intp]:
    """Places of nodes: evenly spread ones, and those with the largest and smallest entries."""
    rows = np.concatenate([h.reshape(len(h), -1), k.reshape(len(k), -1)], axis=1)
    even = np.linspace(0, len(rows) - 1, min(_NODES, len(rows))).astype(np.intp)
    ends = np.concatenate([rows.argmax(axis=0), rows.argmin(axis=0)])
    return np.unique(np.concatenate([even, ends]))
