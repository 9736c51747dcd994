"""Problem to kernels: derive, generate, compile, and keep the result in the user's cache.

The way of a kernel, with who goes it:

    problem -> key                 `key`: what a kernel depends on, and no number of the problem
    key     -> model -> text       `derivations`, which alone knows SymPy: a model's functions as LLVM's text
    text    -> machine code        `machine`: by llvmlite, in a second
    local/  -> machine code        `shared`: the minimiser and what surrounds it, for all models, by Numba, once
    code    -> functions           by their addresses, in `local.model.Model`
    both    -> the user's cache    `cache`: files, verified on every load (`ownership`)

A model's declaration and our version lead to the hash of its text, and the text and the processor to its machine code:
what is written in another way, but is the same, is not compiled again.  The same functions in NumPy, mpmath and torch
are made in `reference`; the equations of the theory, which are the same for all models, in `equations`.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.cache import found, is_kept, kept, processor, version
from attnphase.kernels.equations import Maps, maps
from attnphase.kernels.key import ModelKey
from attnphase.kernels.local import constants
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.layouts import ENTRIES
from attnphase.kernels.local.model import FUNCTIONS, Model, model_of
from attnphase.kernels.local.values import Nodes, Solution, room_of, workspace_of
from attnphase.kernels.machine import Code, compiled, loaded, module_of, numbers_in_a_register
from attnphase.kernels.shared import (
    MINIMISERS,
    are_prepared,
    entry,
    handed,
    kept_part,
    key_of,
    linked,
    prepare,
    shared,
    without_compiler,
)
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.processes.progress import COMPILING, Callback, silent

with loaded_on_use(__name__):
    from derivations.codegen import local_problem

__all__ = ["Kernels", "are_intact", "kernels_for", "load_kernels", "sample_kernels_for", "tell_if_compiling"]

_RULES = {
    name: float(value) for name, value in vars(constants).items() if isinstance(value, (int, float)) and name.isupper()
}


@dataclass(frozen=True)
class Kernels:
    """Compiled functions of one model, in the limit of high dimension or of samples at finite d.

    Attributes
    ----------
    length, columns, teacher_rank : int
        L, r, t.
    noise_columns : int
        Entries of the labels' noise of a token, which stand behind its teacher's fields.
    cluster_columns : int
        1 if the number of its cluster stands behind these, else 0.
    parameters : int
        Numbers of the loss's own, which stand behind those that all losses are given.
    key : object
        What they were made of, see `load_kernels`; in another process they are loaded again by it.
    model : Model
        As the minimiser takes it.
    minimise : callable
        Of `Nodes`, `Starts` and a `Solution`: the local problem.
    targets_at, losses_at, slopes_at : callable
        Of samples at given fields, as `attnphase.kernels.local.derivatives` has them: the teacher's targets, losses,
        and minus their gradients, with Hessians if asked for.
    trained_slopes_at : callable
        Derivatives in the loss's trained parameters, as `attnphase.kernels.local.trained` has them.
    ridge, separable : Maps
        The derived equations for a ridge, and for any regulariser of the rows.
    """

    length: int
    columns: int
    teacher_rank: int
    noise_columns: int
    cluster_columns: int
    parameters: int
    key: Any
    model: Model = field(compare=False, repr=False)
    minimise: Callable[[Nodes, Starts, Solution], None] = field(repr=False)
    targets_at: Callable[..., None] = field(repr=False)
    losses_at: Callable[..., None] = field(repr=False)
    slopes_at: Callable[..., None] = field(repr=False)
    trained_slopes_at: Callable[..., None] = field(repr=False)
    ridge: Maps = field(repr=False)
    separable: Maps = field(repr=False)

    def __reduce__(self) -> Any:
        return load_kernels, (self.key,)

    @property
    def label_normals(self) -> int:
        """Numbers of a token that labels are made of and that have a variance: the teacher's fields, and the noise."""
        return self.teacher_rank + self.noise_columns

    @property
    def label_fields(self) -> int:
        """All numbers of a token that labels are made of."""
        return self.label_normals + self.cluster_columns

    @property
    def some_numbers(self) -> Array:
        """Numbers that a loss may be given as ``parameters``, none of them special."""
        own = 0.43 + 0.29 * np.arange(self.parameters)
        return np.array([0.37, 1.3, 0.8, *np.ones(1 + self.columns), *own])


_NONE = np.empty(0)


def _nodes(fields: Array, teacher_fields: Array, mixing: Array, parameters: Array, variance: Array) -> Nodes:
    return Nodes(fields, teacher_fields, _NONE, mixing, parameters, variance)


class _Own(threading.local):
    """A thread's own arrays for the functions of a model, as they are handed over."""

    def __init__(self, model: Model) -> None:
        own = model, room_of(model), workspace_of(model)
        self.model, self.room, self.work = own if without_compiler() else (handed((one,)) for one in own)


def _functions(model: Model, code: Code, part: str) -> dict[str, Callable[..., None]]:
    """What all models share, of one of them."""
    in_lanes, kinks, own = part == "lanes", int(model.numbers["kinks"][0]), _Own(model)

    def run(name: str, *arguments: Any, _held: Code = code) -> None:
        """Whoever calls holds the model's code, as long as its addresses are in use."""
        shared(name)(own.model, *arguments)

    name = MINIMISERS[part]
    search = partial(run, name) if without_compiler() else entry(code, "minimise", ENTRIES[name][1][1:])

    def minimise(nodes: Nodes, starts: Starts, solution: Solution) -> None:
        search(nodes, starts, solution, own.room if in_lanes else own.work)

    def targets_at(teacher_fields: Array, mixing: Array, parameters: Array, targets: Array) -> None:
        run("targets_at", _nodes(_NONE, teacher_fields, mixing, parameters, _NONE), targets)

    def losses_at(*at_and_losses: Array) -> None:
        *at, losses = at_and_losses
        if in_lanes:
            run("losses_in_lanes", _nodes(*at), losses, own.room)
        else:
            run("losses_one_by_one", _nodes(*at), losses, own.work)

    def slopes_at(nodes: Nodes, losses: Array, residuals: Array, curvatures: Array = _NONE) -> None:
        run("slopes_at", nodes, losses, residuals, curvatures, own.work)

    def trained_slopes_at(nodes: Nodes, fields: Array, followed: int, slopes: Array, curvatures: Array) -> None:
        size = math.prod(fields.shape[1:])
        crossed, scratch = np.empty((slopes.shape[1], size + kinks)), np.empty((3, followed, size))
        run("trained_slopes_at", nodes, fields, slopes, curvatures, crossed, scratch, own.work)

    local: list[Callable[..., None]] = [minimise, targets_at, losses_at, slopes_at, trained_slopes_at]
    return {one.__name__: one for one in local}


def kernels_for(problem: Problem) -> Kernels:
    """Compiled kernels of a problem's model, from the cache if they are there and intact."""
    return load_kernels(ModelKey.of(problem))


def sample_kernels_for(problem: Problem) -> Kernels:
    """Compiled kernels for samples at finite d of a problem's model, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return load_kernels(ModelKey.of(problem, finite=True))


def tell_if_compiling(problem: Problem, callback: Callback, *, finite: bool = False) -> None:
    """Tell that the kernels of a problem's model are not in the cache, before they are asked for.

    Parameters
    ----------
    problem : Problem
    callback : callable
    finite : bool
        Those for samples at finite d.
    """
    if callback is not silent and not _is_kept(ModelKey.of(problem, finite=finite)):
        callback(COMPILING)


def are_intact(problem: Problem) -> bool:
    """Whether the kernels of a problem's model are in the cache, and need not be built again."""
    return _is_kept(ModelKey.of(problem))


@lru_cache(maxsize=32)
def load_kernels(key: Any) -> Kernels:
    """Compiled kernels of a model key (anything hashable with a ``model()`` method and a stable ``repr``).

    Raises
    ------
    CacheError
        The cache folder is not the user's own, or there is no room in it.
    """
    described = json.loads(kept("model", _declared(key), lambda: json.dumps(_described(key)).encode()))
    sizes, part = described["constants"], _minimiser(described)
    content = found("code", _of_text(described))
    if content is None:
        prepare((part, "around"))
        minimiser = b"" if without_compiler() else kept_part(part)
        content = kept("code", _of_text(described), lambda: _machine_code(key, part, minimiser))
    code = loaded(content, [*FUNCTIONS, "minimise"])
    model = model_of(sizes, code.addresses)
    return Kernels(
        length=sizes["LENGTH"],
        columns=sizes["COLUMNS"],
        teacher_rank=sizes["TEACHER_RANK"],
        noise_columns=sizes["NOISE"],
        cluster_columns=sizes["LABEL_FIELDS"] - sizes["TEACHER_RANK"] - sizes["NOISE"],
        parameters=sizes["PARAMETERS"],
        key=key,
        model=model,
        ridge=maps(separable=False),
        separable=maps(separable=True),
        **_functions(model, code, part),
    )


def _declared(key: Any) -> Any:
    return repr(key), version(), numbers_in_a_register()


def _of_text(described: Any) -> Any:
    """What machine code depends on: the model's functions, the minimiser, the processor."""
    return described["text"], without_compiler() or key_of(_minimiser(described)), processor()


def _minimiser(described: Any) -> str:
    """Which minimiser a model has."""
    return "lanes" if "LANES" in described["constants"] else "search"


def _is_kept(key: Any) -> bool:
    """Whether nothing has to be compiled for a model."""
    content = found("model", _declared(key))
    return content is not None and is_kept("code", _of_text(json.loads(content))) and are_prepared(("around",))


def _described(key: Any) -> dict[str, Any]:
    """What is known of a model without SymPy: constants, and the hash of its text."""
    sizes, text = _source(key)
    return {"constants": sizes, "text": hashlib.sha256(text.encode()).hexdigest()}


def _machine_code(key: Any, part: str, minimiser: bytes) -> bytes:
    sizes, text = _source(key)
    if not minimiser:
        return compiled(module_of(text))
    return linked(part, minimiser, model_of(sizes, {name: 1 for name in FUNCTIONS if f"@{name}(" in text}), text)


@lru_cache(maxsize=1)  # for its description, and then for its code
def _source(key: Any) -> tuple[dict[str, Any], str]:
    own = getattr(key, "finite", False)
    return local_problem.machine_source(key.model(), _RULES, own=own, numbers=numbers_in_a_register())
