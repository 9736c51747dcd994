"""The local problem in languages that are not compiled: NumPy and mpmath, to compare the kernel with, and torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from attnphase.kernels.key import ModelKey
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem

with loaded_on_use(__name__):
    import mpmath
    import numpy as np

    from derivations.codegen import local_problem

__all__ = ["ReferenceBackend", "reference_backend", "torch_module"]


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


def torch_module(problem: Problem) -> ModuleType:
    """The local problem of samples at finite d of a problem's model, printed for torch.

    Imports SymPy and torch.
    """
    return _printed(ModelKey.of(problem, finite=True), "torch")


@lru_cache(maxsize=32)
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
