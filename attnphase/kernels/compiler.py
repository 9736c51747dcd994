"""Problem to kernels: derive, generate, compile, and keep the result in the user's cache.

The way of a kernel, with who goes it:

    problem -> key                 `key`: what a kernel depends on, and no number of the problem
    key     -> model -> sources    `derivations`, which alone knows SymPy: the local problem, the state-evolution maps
    sources -> package             `package`: the minimiser `local/` with the model's local problem in place of its own
    package -> machine code        Numba, as the package is imported for the first time
    folder  -> the user's cache    `cache`: built aside, moved into place whole, verified on every load (`ownership`)
    cache   -> functions           `Kernels` for the theory, `Slopes` for its dynamics, `SampleKernels` at finite d

The same local problem in NumPy, mpmath and torch is made in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from attnphase.arrays import Array
from attnphase.kernels.cache import filled_aside, fingerprint, intact_folder, is_intact, is_kept
from attnphase.kernels.key import ModelKey
from attnphase.kernels.local.constants import Starts
from attnphase.kernels.local.values import Draws, FieldLaw, Nodes, SampleNodes, Solution
from attnphase.kernels.package import compile_package, import_package, write_package
from attnphase.lazy import loaded_on_use
from attnphase.problem.problem import Problem
from attnphase.processes.progress import COMPILING, Callback, silent

with loaded_on_use(__name__):
    from derivations.codegen import arrays, local_problem, sgd_flow
    from derivations.models import symbolic
    from derivations.replica import chain, saddle_point

__all__ = [
    "Kernels",
    "Maps",
    "SampleKernels",
    "Slopes",
    "are_intact",
    "gains_for",
    "kernels_for",
    "load_kernels",
    "sample_kernels_for",
    "slopes_for",
    "tell_if_compiling",
    "trained_slopes_for",
]

_MAPS = ("ridge", "separable")
_PRINTS = ("numpy", "mpmath")  # beside the compiled local problem, to decide facts about the loss without SymPy
# Fields of a sample up to which samples are done side by side: above, compiling the step alone takes longer than all
# else.
SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class Maps:
    """The derived equations in NumPy; see the generated modules for their arguments.

    Attributes
    ----------
    overlaps_from_conjugates, conjugates_from_moments : callable
        The two halves of the state-evolution map, equations (7) and (8), the second by the fields' moments.
    free_entropy_terms, observables : callable
        Dicts of named terms of ``-Phi`` and of observables.
    linear_test_error : callable
        The linear baseline, equations (19)-(20).
    """

    overlaps_from_conjugates: Callable[..., Any]
    conjugates_from_moments: Callable[..., Any]
    free_entropy_terms: Callable[..., Any]
    observables: Callable[..., Any]
    linear_test_error: Callable[..., Any]


@dataclass(frozen=True)
class Kernels:
    """Compiled functions of one model; see the generated modules for their arguments.

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
    minimise : callable
        Of `Nodes`, `Starts` and a `Solution`: the local problem, in machine code.
    losses_at : callable
        Losses at given fields, as `attnphase.kernels.local.nodes` has them.
    squares_at : callable
        Squares of the residuals' derivatives at given fields, as `attnphase.kernels.local.curvature` has them.
    fields_at, moments_of, targets_at : callable
        Fields before the search, moments after it and the teacher's targets, as `attnphase.kernels.local.means` has
        them.
    ridge, separable : Maps
        The derived equations for a ridge, and for any regulariser of the rows.
    folder : Path
        Where the generated source lies.
    key : object
        What they were made of, see `load_kernels`.
    prints : dict of modules
        The local problem in NumPy and mpmath, by these names.
    """

    length: int
    columns: int
    teacher_rank: int
    noise_columns: int
    cluster_columns: int
    parameters: int
    minimise: Callable[[Nodes, Starts, Solution], None]
    fields_at: Callable[[Draws, FieldLaw, Array, Array], None]
    moments_of: Callable[..., None]
    losses_at: Callable[..., None]
    squares_at: Callable[..., None]
    targets_at: Callable[..., None]
    ridge: Maps
    separable: Maps
    folder: Path
    key: Any = field(compare=False)
    prints: dict[str, ModuleType] = field(compare=False)

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


@dataclass(frozen=True)
class Slopes:
    """What the dynamics of one model needs besides its `Kernels`.

    Attributes
    ----------
    slopes_at : callable
        Losses and minus their gradients at given fields, as `attnphase.kernels.local.slopes` has them.
    mean_rate, scatter_rate, overlaps : callable
        The derived equations of the rows of the weights in NumPy, as the generated module has them.
    """

    slopes_at: Callable[..., None]
    mean_rate: Callable[..., Any]
    scatter_rate: Callable[..., Any]
    overlaps: Callable[..., Any]


@dataclass(frozen=True)
class _SlopeKey:
    """The kernel of a model that holds one further entry point: whoever only minimises need not compile it."""

    of: ModelKey
    way_in: str = "slopes"

    def model(self) -> Any:
        """The model."""
        return self.of.model()


@dataclass(frozen=True)
class SampleKernels:
    """Compiled functions of one model for samples at finite d.

    Attributes
    ----------
    length, columns, teacher_rank : int
        L, r, t.
    minimise : callable
        Of `SampleNodes`, `Starts` and a `Solution`: the local problem, in machine code.
    folder : Path
        Where the generated source lies.
    """

    length: int
    columns: int
    teacher_rank: int
    minimise: Callable[[SampleNodes, Starts, Solution], None]
    folder: Path


def kernels_for(problem: Problem) -> Kernels:
    """Compiled kernels of a problem's model, from the cache if they are there and intact."""
    return load_kernels(ModelKey.of(problem))


def sample_kernels_for(problem: Problem) -> SampleKernels:
    """Compiled kernels for samples at finite d of a problem's model, from the cache if they are there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return load_sample_kernels(ModelKey.of(problem, finite=True))


def slopes_for(problem: Problem) -> Slopes:
    """The compiled gradient of a problem's model, from the cache if it is there and intact.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return load_slopes(_SlopeKey(ModelKey.of(problem)))


def gains_for(problem: Problem) -> Callable[..., None]:
    """Gains by the labels' noise, compiled, as `attnphase.kernels.local.gains` has them.

    Parameters
    ----------
    problem : Problem
        With noise.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return load_entry(_SlopeKey(ModelKey.of(problem), "gains"), "gains_at")


def trained_slopes_for(problem: Problem) -> Callable[..., None]:
    """Derivatives of the loss in its trained parameters, compiled, as `attnphase.kernels.local.trained` has them.

    Parameters
    ----------
    problem : Problem
        With trained parameters.

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    return load_entry(_SlopeKey(ModelKey.of(problem), "trained"), "trained_slopes_at")


def tell_if_compiling(problem: Problem, callback: Callback, *, finite: bool = False) -> None:
    """Tell that the kernels of a problem's model are not in the cache, before they are asked for.

    Parameters
    ----------
    problem : Problem
    callback : callable
    finite : bool
        Those for samples at finite d.
    """
    if callback is silent:
        return
    if not is_kept(fingerprint(ModelKey.of(problem, finite=finite))):
        callback(COMPILING)


def are_intact(problem: Problem) -> bool:
    """Whether the kernels of a problem's model are in the cache, and need not be built again."""
    return is_intact(fingerprint(ModelKey.of(problem)))


@lru_cache(maxsize=32)
def load_kernels(key: Any) -> Kernels:
    """Compiled kernels of a model key (anything hashable with a ``model()`` method and a stable ``repr``).

    Raises
    ------
    CacheError
        The cache folder is not the user's own.
    """
    with built_folder(key) as folder:
        nodes = _nodes_of(folder)
        prints = [f"in_{name}" for name in _PRINTS]
        modules = import_package(folder, folder.name, ("local_problem", nodes, "means", "curvature", *_MAPS, *prints))
    local, means = modules["local_problem"], modules["means"]
    return Kernels(
        length=local.LENGTH,
        columns=local.COLUMNS,
        teacher_rank=local.TEACHER_RANK,
        noise_columns=local.NOISE,
        cluster_columns=local.LABEL_FIELDS - local.TEACHER_RANK - local.NOISE,
        parameters=local.PARAMETERS,
        minimise=_minimiser(modules[nodes].minimise),
        fields_at=means.fields_at,
        moments_of=means.moments_of,
        losses_at=modules[nodes].losses_at,
        squares_at=modules["curvature"].squares_at,
        targets_at=means.targets_at,
        ridge=_maps_of(modules["ridge"]),
        separable=_maps_of(modules["separable"]),
        folder=folder,
        key=key,
        prints={name: modules[f"in_{name}"] for name in _PRINTS},
    )


@lru_cache(maxsize=32)
def load_sample_kernels(key: ModelKey) -> SampleKernels:
    with built_folder(key) as folder:
        samples = _samples_of(folder)
        modules = import_package(folder, folder.name, ("local_problem", samples))
    local = modules["local_problem"]
    return SampleKernels(
        length=local.LENGTH,
        columns=local.COLUMNS,
        teacher_rank=local.TEACHER_RANK,
        minimise=_minimiser(modules[samples].minimise),
        folder=folder,
    )


@lru_cache(maxsize=32)
def load_slopes(key: _SlopeKey) -> Slopes:
    with built_folder(key) as folder:
        modules = import_package(folder, folder.name, ("slopes", "rows"))
    rows = modules["rows"]
    return Slopes(modules["slopes"].slopes_at, rows.mean_rate, rows.scatter_rate, rows.overlaps)


@lru_cache(maxsize=32)
def load_entry(key: _SlopeKey, name: str) -> Callable[..., None]:
    with built_folder(key) as folder:
        found: Callable[..., None] = getattr(import_package(folder, folder.name, (key.way_in,))[key.way_in], name)
    return found


def _minimiser(compiled: Callable[..., None]) -> Callable[[Any, Starts, Solution], None]:
    """A compiled minimiser, to which the starts are a number."""

    def minimise(nodes: Any, starts: Starts, solution: Solution) -> None:
        compiled(nodes, int(starts), solution)

    return minimise


def _maps_of(module: Any) -> Maps:
    return Maps(**{one.name: getattr(module, one.name) for one in fields(Maps)})


def built_folder(key: Any) -> AbstractContextManager[Path]:
    """The kernel's intact folder in the cache, which no other process changes meanwhile."""

    def build(folder: Path) -> None:
        build_kernel(key, folder)

    return intact_folder(fingerprint(key), build)


def build_kernel(key: Any, folder: Path) -> None:
    """Generate a kernel's package, and compile it by importing it: the machine code is written beside the sources."""
    entry, finite = getattr(key, "way_in", None), getattr(key, "finite", False)
    with filled_aside(folder) as aside:

        def write() -> tuple[str, ...]:
            model = key.model()
            if entry is not None:
                own = {"local_problem": local_problem.kernel_source(model), "rows": sgd_flow.flow_source()}
                write_package(aside, own)
                return (entry,)
            write_package(aside, _sources(model, finite=finite))
            return (_samples_of(aside),) if finite else (_nodes_of(aside), "means", "curvature")

        compile_package(aside, folder.name, write, 1 if entry or finite else 2)


def _sources(model: Any, *, finite: bool) -> dict[str, str]:
    """The generated modules of a model, for samples at finite d or for the theory."""
    sources = {"local_problem": local_problem.kernel_source(model)}
    if not finite:
        prints = {name: local_problem.local_problem_source(model, name) for name in _PRINTS}
        sources |= map_sources() | {f"in_{name}": source for name, source in prints.items()}
    smooth = model.prox is None and not model.has_kink
    if smooth and model.length * model.columns <= SIDE_BY_SIDE:
        sources["lanes"] = local_problem.lanes_source(model, own=finite)
        regular = local_problem.steps_source(model)
        if regular is not None and not finite:
            sources["steps"] = regular
    return sources


def _nodes_of(folder: Path) -> str:
    """The way into a kernel: nodes one after another, or side by side where the model has lanes, or steps too."""
    if (folder / "steps.py").exists():
        return "together"
    return "blocks" if (folder / "lanes.py").exists() else "nodes"


def _samples_of(folder: Path) -> str:
    """The way into a kernel for samples at finite d: one after another, or side by side where the model has lanes."""
    return "sample_blocks" if (folder / "lanes.py").exists() else "samples"


def map_sources() -> dict[str, str]:
    """The derived equations as NumPy source, for a ridge and for any regulariser of the rows."""
    sources = {}
    for name in _MAPS:
        free_entropy = chain.derive_free_entropy(symbolic.GENERIC, separable=name == "separable")
        sources[name] = arrays.state_evolution_source(saddle_point.derive_saddle_point(free_entropy), free_entropy)
    return sources
