"""The local problem in languages that are not compiled: NumPy and mpmath, to compare the kernel with, and torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from attnphase.kernels.cache import kept, version
from attnphase.kernels.equations import module
from attnphase.kernels.key import ModelKey
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from derivations.codegen.languages import HEADS

with loaded_on_use(__name__):
    import numpy as np

    from derivations.algebra import digits
    from derivations.codegen import local_problem

__all__ = ["PrintedLoss", "printed_loss", "torch_module"]

_KINKED = ("modulus", "relu", "sign", "step")  # names in prints of functions with kinks or jumps


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
            target = digits.exact(np.zeros((length, self.exact.TARGET_COLUMNS)))
            self.exact.teacher_target(teacher, constants[0], constants[1], target)
            losses[sample] = self.exact.loss_gradient(fields, target, constants[2], constants[1], gradients[sample])
        return losses, gradients

    def losses(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Losses (N,) in double precision."""
        return self._in_numpy(h, k, mixing, parameters, variance)[0]

    def gradients(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> Any:
        """Gradients in double precision."""
        return self._in_numpy(h, k, mixing, parameters, variance)[1]

    def _in_numpy(self, h: Any, k: Any, mixing: Any, parameters: Any, variance: Any) -> tuple[Any, Any]:
        target, gradient = self._target(self.plain, k, mixing, parameters), np.zeros((*h.shape[1:], len(h)))
        losses = self.plain.loss_gradient(np.moveaxis(h, 0, -1), target, variance, parameters, gradient)
        return np.broadcast_to(losses, len(h)), np.moveaxis(gradient, -1, 0)

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
        target = np.zeros((module.LENGTH, module.TARGET_COLUMNS, len(k)))
        module.teacher_target(np.moveaxis(k, 0, -1), mixing, parameters, target)
        return target


def printed_loss(key: ModelKey) -> PrintedLoss:
    """The loss of some kernels, by the key of these."""
    return PrintedLoss(_printed(key, "numpy"), _printed(key, "mpmath"))


def torch_module(problem: Problem) -> ModuleType:
    """The local problem of samples at finite d of a problem's model, printed for torch."""
    return _printed(ModelKey.of(problem, finite=True), "torch")


@lru_cache(maxsize=128)  # a consistency report asks for dozens
def _printed(key: ModelKey, language: str) -> ModuleType:
    body = kept("body", (repr(key), version()), lambda: local_problem.printed_body(key.model()).encode()).decode()
    return module(f"local_problem_in_{language}", f"{HEADS[language]}\n\n{body}")
