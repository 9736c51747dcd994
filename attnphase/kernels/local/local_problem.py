"""Local problem of one sample: the square loss of one field, in whose place a build puts a model's generated source.

A generated module has the same names, and what `derivations.codegen.local_problem` says of them.
"""

from __future__ import annotations

from attnphase.arrays import Array

from .compiled import compiled

LENGTH = 1
COLUMNS = 1
TEACHER_RANK = 1
NOISE = 0
LABEL_FIELDS = 1
PARAMETERS = 0
LIFT = (0,)
KINKS = 0


@compiled
def teacher_target(k: Array, mixing: Array, parameters: Array, target: Array) -> None:
    """What the teacher makes of its fields (L, t): here the fields themselves."""
    target[0, 0] = k[0, 0]


@compiled
def loss(h: Array, target: Array, variance: Array, parameters: Array) -> float:
    """Loss at the fields h (L, r)."""
    return 0.5 * (h[0, 0] - target[0, 0]) ** 2


@compiled
def loss_gradient(h: Array, target: Array, variance: Array, parameters: Array, gradient: Array) -> float:
    """Loss, with its gradient (L, r)."""
    gradient[0, 0] = h[0, 0] - target[0, 0]
    return 0.5 * (h[0, 0] - target[0, 0]) ** 2


@compiled
def loss_derivatives(
    h: Array, target: Array, variance: Array, parameters: Array, gradient: Array, hessian: Array, contracted: Array
) -> float:
    """Loss, with its gradient (L, r) and Hessian (L r, L r); ``contracted`` (L r,) is scratch."""
    gradient[0, 0] = h[0, 0] - target[0, 0]
    hessian[0, 0] = 1.0
    return 0.5 * (h[0, 0] - target[0, 0]) ** 2


@compiled
def trained_derivatives(
    h: Array,
    target: Array,
    variance: Array,
    parameters: Array,
    signs: Array,
    slopes: Array,
    curvatures: Array,
    crossed: Array,
) -> float:
    """Derivatives of the loss and of its kinks' arguments in trained parameters; here is none."""
    return 0.0


@compiled
def kinked_derivatives(
    h: Array,
    target: Array,
    variance: Array,
    parameters: Array,
    gradient: Array,
    hessian: Array,
    kinks: Array,
    normals: Array,
) -> float:
    """Loss with kinks, its derivatives and those of the kinks' arguments; here there is none."""
    return 0.0


@compiled
def weights_of(grams: Array, sample: int) -> Array:
    """What a sample at finite d hands to its loss as ``variance``: its Gram matrix, where the loss uses it."""
    return grams[sample, 0]


@compiled
def closed_form(center: Array, target: Array, factor: Array, h: Array) -> bool:
    """Fill in the proximal point where a model gives it; False where it must be searched for."""
    return False
