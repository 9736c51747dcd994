"""Compiled code against other prints of the same expressions, on random fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnphase.arrays import Array
from attnphase.checks.case import Case
from attnphase.checks.report import Check
from attnphase.kernels.reference import printed_loss
from attnphase.state_evolution.symmetries import loss_symmetries

__all__ = ["backends", "symmetries"]

_STEP = 1e-6  # of central differences


def _constants(case: Case) -> tuple[Array, Array, Array]:
    """What the loss takes beside the fields: mixing, parameters, and the variances of the first sites."""
    mixing, parameters = case.system.parameters
    return mixing, parameters, np.ascontiguousarray(case.system.spectrum.site_variances[case.problem.cluster_law[0][0]])


def _fields(case: Case, seed: int, count: int, *laws: tuple[float, float]) -> list[Array]:
    """Fields of the student and what labels are made of, of given means and standard deviations."""
    generator = np.random.default_rng(seed)
    widths = (case.system.kernels.columns, case.system.kernels.label_fields)
    return [
        generator.normal(*law, (count, case.system.kernels.length, width))
        for law, width in zip(laws, widths, strict=True)
    ]


def _compiled(case: Case) -> Callable[[Array, Array], Array]:
    """The compiled loss."""
    constants = _constants(case)

    def losses(h: Array, k: Array) -> Array:
        values = np.empty(len(h))
        case.system.kernels.losses_at(np.ascontiguousarray(h), np.ascontiguousarray(k), *constants, values)
        return values

    return losses


def backends(case: Case) -> Iterator[Check]:
    """Compiled against NumPy and mpmath prints of the same expressions, and derivatives against differences."""
    h, k = _fields(case, 7, 40, (0.1, 0.9), (-0.1, 0.8))
    constants = _constants(case)
    compiled = _compiled(case)(h, k)
    size = np.abs(compiled).max()
    reference, worst = printed_loss(case.system.kernels.key), 0.0
    in_digits = reference.in_digits(h[:3], k[:3], *constants)[0].astype(float)
    for backend, losses in (("numpy", reference.losses(h, k, *constants)), ("mpmath", in_digits)):
        difference = np.abs(losses - compiled[: len(losses)]).max() / size
        yield Check.below(f"back ends: compiled and {backend}", difference, 1e-10, "loss on random fields, relative")
    gradient = reference.gradients(h, k, *constants)
    for token, column in np.ndindex(h.shape[1:]):
        shift = np.zeros(h.shape[1:])
        shift[token, column] = _STEP
        ends = [reference.losses(h + s * shift, k, *constants) for s in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * _STEP)
        # a kink between the two ends makes single differences wrong: the median sample is compared
        worst = max(worst, float(np.median(np.abs(slope - gradient[:, token, column]))))
    scale = max(np.abs(gradient).max(), 1e-300)
    yield Check.below("gradient of the loss", worst / scale, 1e-6, "against central differences, relative")


def symmetries(case: Case) -> Check:
    """The loss's symmetries on fields other than those they were found on, of the problem's own size."""
    system = case.system
    loss, clusters = system.loss, system.sample_law.clusters
    found, whole, worst = loss_symmetries(loss, clusters), system.symmetries, 0.0
    for numbers in clusters:
        asked = loss.asked(numbers, seed=91)
        worst = max(worst, *(asked.difference(lambda points, one=one: loss.image(one, points)) for one in found))
    orders = len({order for order, *_ in whole})
    detail = f"{len(found)} of the loss (signs and exchanges of columns), {orders} of the tokens, {len(whole)} in all"
    return Check.below("symmetries", worst, 1e-9, detail)
