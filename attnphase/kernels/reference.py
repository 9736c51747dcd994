"""The local problem in languages that are not compiled: NumPy and mpmath, to compare the kernel with, and torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from attnphase.kernels.compiler import Kernels
from attnphase.kernels.key import ModelKey
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem

with loaded_on_use(__name__):
    import mpmath
    import numpy as np

    from derivations.algebra import digits
    from derivations.codegen import local_problem

__all__ = ["PrintedLoss", "ReferenceBackend", "printed_loss", "reference_backend", "torch_module"]

_KINKED = ("modulus", "relu", "sign", "step")  # names in prints of functions with kinks or jumps


@dataclass(frozen=True, eq=False)
class ReferenceBackend:
    """The local problem in NumPy or mpmath, to compare the compiled one with."""

    module: Any
    backend: str
    length: int
    columns: int

    def losses(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Loss of every sample: h (N, L, r), k (N, L, t) to (N,)."""
        return self._evaluate(h, k, mixing, parameters, variance)[0]

    def gradients(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Gradient of every sample's loss in the fields, (N, L, r)."""
        return self._evaluate(h, k, mixing, parameters, variance)[1]

    def _evaluate(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> tuple[Any, Any]:
        count, size = len(h), self.length * self.columns
        width = max(self.length, k.shape[2])
        if self.backend == "numpy":
            target, gradient = np.zeros((self.length, width, count)), np.zeros((self.length, self.columns, count))
            hessian, contracted = np.zeros((size, size, count)), np.zeros((size, count))
            fields, teacher = np.moveaxis(h, 0, -1), np.moveaxis(k, 0, -1)
            self.module.teacher_target(teacher, mixing, parameters, target)
            scratch = gradient, hessian, contracted
            losses = self.module.loss_derivatives(fields, target, variance, parameters, *scratch)
            return np.broadcast_to(losses, count), np.moveaxis(gradient, -1, 0)

        def exact(values: Any) -> Any:
            return np.vectorize(lambda x: mpmath.mpf(float(x)), otypes=[object])(values)

        losses, gradients = [], []
        for one, teacher in zip(exact(h), exact(k), strict=True):
            target, gradient = exact(np.zeros((self.length, width))), exact(np.zeros((self.length, self.columns)))
            hessian, contracted = exact(np.zeros((size, size))), exact(np.zeros(size))
            numbers = exact(parameters)
            self.module.teacher_target(teacher, exact(mixing), numbers, target)
            scratch = gradient, hessian, contracted
            losses.append(float(self.module.loss_derivatives(one, target, exact(variance), numbers, *scratch)))
            gradients.append(gradient.astype(float))
        return np.array(losses), np.stack(gradients)


@dataclass(frozen=True, eq=False)
class PrintedLoss:
    """The loss that compiled kernels are made of, in NumPy and in any number of digits.

    Fields are (N, L, r), labels (N, L, label fields), gradients (N, L, r).

    Attributes
    ----------
    plain, exact : ModuleType
        The prints for NumPy and mpmath.
    """

    plain: ModuleType
    exact: ModuleType

    def in_digits(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> tuple[Any, Any]:
        """Losses (N,) and gradients as numbers of mpmath, in the digits that it works in; of such numbers or floats."""
        length, columns = self.exact.LENGTH, self.exact.COLUMNS
        constants = [digits.exact(one) for one in (mixing, parameters, variance)]
        losses, gradients = np.empty(len(h), dtype=object), np.empty((len(h), length, columns), dtype=object)
        for sample, (fields, teacher) in enumerate(zip(digits.exact(h), digits.exact(k), strict=True)):
            target = digits.exact(np.zeros((length, max(length, k.shape[2]))))
            self.exact.teacher_target(teacher, constants[0], constants[1], target)
            losses[sample] = self.exact.loss_gradient(fields, target, constants[2], constants[1], gradients[sample])
        return losses, gradients

    def gradients(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Gradients in double precision."""
        target = self._target(self.plain, k, mixing, parameters)
        gradient = np.zeros((*h.shape[1:], len(h)))
        self.plain.loss_gradient(np.moveaxis(h, 0, -1), target, variance, parameters, gradient)
        return np.moveaxis(gradient, -1, 0)

    @property
    def has_kinks(self) -> bool:
        """Whether there are functions in it that have kinks or jumps."""
        used = {name for one in ("teacher_target", "loss") for name in getattr(self.plain, one).__code__.co_names}
        return bool(used & {*_KINKED})

    def kinks(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Arguments (N, K) of these functions."""
        found, module = list[Any](), ModuleType(self.plain.__name__)

        def recorded(function: Any) -> Any:
            def call(x: Any) -> Any:
                found.append(np.broadcast_to(np.asarray(x, dtype=float), len(h)))
                return function(x)

            return call

        names = {name: recorded(getattr(self.plain, name)) for name in _KINKED if hasattr(self.plain, name)}
        functions = {
            name: FunctionType(getattr(self.plain, name).__code__, vars(self.plain) | names)
            for name in ("teacher_target", "loss")
        }
        vars(module).update(vars(self.plain) | functions)
        module.loss(np.moveaxis(h, 0, -1), self._target(module, k, mixing, parameters), variance, parameters)
        return np.stack(found, axis=1) if found else np.empty((len(h), 0))

    @staticmethod
    def _target(module: Any, k: Any, mixing: Any, parameters: Any) -> Any:
        target = np.zeros((module.LENGTH, max(module.LENGTH, k.shape[2]), len(k)))
        module.teacher_target(np.moveaxis(k, 0, -1), mixing, parameters, target)
        return target


def printed_loss(kernels: Kernels) -> PrintedLoss:
    """The loss of some kernels, as it is printed beside them."""
    return PrintedLoss(kernels.prints["numpy"], kernels.prints["mpmath"])


def torch_module(problem: Problem) -> ModuleType:
    """The local problem of samples at finite d of a problem's model, printed for torch.

    Imports SymPy and torch.
    """
    return _printed(ModelKey.of(problem, finite=True), "torch")


@lru_cache(maxsize=128)  # printing a model takes a second, and a consistency report asks for dozens
def _printed(key: ModelKey, backend: str) -> ModuleType:
    module = ModuleType(f"attnphase_printed_{backend}")
    exec(compile(local_problem.local_problem_source(key.model(), backend), module.__name__, "exec"), module.__dict__)
    return module


@lru_cache(maxsize=8)
def reference_backend(problem: Problem, backend: str) -> ReferenceBackend:
    """The local problem of a problem's model printed for "numpy" or "mpmath" (imports SymPy)."""
    key = ModelKey.of(problem)
    module = _printed(key, backend)
    return ReferenceBackend(module, backend, module.LENGTH, module.COLUMNS)
