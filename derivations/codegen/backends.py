"""What generated code finds around it: the imports and helpers of every back end, taken by the names that it reads."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from symtable import symtable

__all__ = ["BACKENDS", "completed"]


@dataclass(frozen=True)
class _Backend:
    """The names that a back end provides.

    Attributes
    ----------
    imports : mapping
        Name to the module it is imported from: ``"math"``, ``"numpy.maximum"`` for another name there, or ``"import
        numpy"`` for the module itself.
    definitions : mapping
        Name to source; they may use each other.  In the order in which they are written.
    """

    imports: Mapping[str, str]
    definitions: Mapping[str, str]


def _functions(source: str) -> dict[str, str]:
    """The functions and assignments of a text, by name."""
    tree = ast.parse(source)
    lines = source.splitlines()
    parts = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            name = node.name
        else:
            assert isinstance(node, ast.Assign)
            assert isinstance(node.targets[0], ast.Name)
            first, name = node.lineno, node.targets[0].id
        parts[name] = "\n".join(lines[first - 1 : node.end_lineno])
    return parts


_ELEMENTARY = ("cos", "cosh", "exp", "log", "sin", "sinh", "sqrt", "tanh")
_CONSTANTS = ("e", "pi")

_NUMBA = _Backend(
    dict.fromkeys((*_ELEMENTARY, *_CONSTANTS, "log1p"), "math") | {"njit": "numba", "np": "import numpy"},
    _functions("""
compiled = njit(cache=True, nogil=True, error_model="numpy", forceinline=True, no_cfunc_wrapper=True)

@compiled
def largest_of(a, b):
    return max(a, b)

@compiled
def ratio(p, q):
    return p / q

@compiled
def step(x):
    return 1.0 if x > 0.0 else 0.0

@compiled
def sign(x):
    return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else 0.0)

@compiled
def modulus(x):
    return abs(x)

@compiled
def relu(x):
    return max(x, 0.0)

@compiled
def sigmoid(x):
    small = exp(-abs(x))
    return 1.0 / (1.0 + small) if x > 0.0 else small / (1.0 + small)

@compiled
def softplus(x):
    return relu(x) + log1p(exp(-abs(x)))
"""),
)

_NUMPY = _Backend(
    dict.fromkeys((*_ELEMENTARY, *_CONSTANTS, "logaddexp", "sign"), "numpy")
    | {"modulus": "numpy.abs", "largest_of": "numpy.maximum"},
    _functions("""
def compiled(function):
    return function

def ratio(p, q):
    return p / q

def step(x):
    return (x > 0.0) * 1.0

def relu(x):
    return largest_of(x, 0.0)

def sigmoid(x):
    return (1.0 + tanh(x / 2.0)) / 2.0

def softplus(x):
    return logaddexp(0.0, x)
"""),
)

_TORCH = _Backend(
    dict.fromkeys(_CONSTANTS, "math") | {"math": "import math", "torch": "import torch"},
    _functions(
        """
def of_numbers_too(name):
    of_tensors, of_numbers = getattr(torch, name), getattr(math, name)
    return lambda x: of_tensors(x) if isinstance(x, torch.Tensor) else of_numbers(x)

"""
        + "\n".join(f'{name} = of_numbers_too("{name}")' for name in _ELEMENTARY)
        + """
modulus = abs
largest_of = torch.maximum

def compiled(function):
    return function

def ratio(p, q):
    return p / q

def step(x):
    return (x > 0.0).to(x.dtype)

def sign(x):
    return torch.sign(x)

def relu(x):
    return torch.relu(x)

def sigmoid(x):
    return torch.sigmoid(x)

def softplus(x):
    return torch.relu(x) + torch.log1p(torch.exp(-abs(x)))
"""
    ),
)

_MPMATH = _Backend(
    dict.fromkeys((*_ELEMENTARY, *_CONSTANTS, "mpf", "sign"), "mpmath"),
    _functions("""
largest_of = max
modulus = abs

def compiled(function):
    return function

def ratio(p, q):
    return mpf(p) / q

def step(x):
    return mpf(1) if x > 0 else mpf(0)

def relu(x):
    return largest_of(x, mpf(0))

def sigmoid(x):
    return 1 / (1 + exp(-x))

def softplus(x):
    return log(1 + exp(x))
"""),
)

BACKENDS: dict[str, _Backend] = {"numba": _NUMBA, "numpy": _NUMPY, "torch": _TORCH, "mpmath": _MPMATH}
_STANDARD = ("math",)  # modules of Python itself, which stand in front


def completed(title: str, body: str, backend: str) -> str:
    """A module: docstring, the imports and definitions that its functions use, and the functions.

    Parameters
    ----------
    title : str
        The module's docstring.
    body : str
        Source of functions.
    backend : str
        One of `BACKENDS`.
    """
    provided = BACKENDS[backend]
    used, unread = set[str](), [body]
    while unread:
        names = _names(unread.pop()) & (provided.imports.keys() | provided.definitions.keys()) - used
        used |= names
        unread += [provided.definitions[name] for name in names if name in provided.definitions]
    head = _imports({name: module for name, module in provided.imports.items() if name in used})
    definitions = [source for name, source in provided.definitions.items() if name in used]
    parts = [f'"""{title}"""', head]
    for is_function, group in groupby(definitions, _opens_function):
        parts.append(("\n\n\n" if is_function else "\n").join(group))
    return _separated([*parts, body.strip("\n")])


def _separated(parts: Sequence[str]) -> str:
    """The parts of a module with two blank lines around functions, one elsewhere."""
    text = parts[0]
    for before, part in pairwise(parts):
        text += ("\n\n\n" if _opens_function(part) or _opens_function(before) else "\n\n") + part
    return text + "\n"


def _opens_function(source: str) -> bool:
    return source.startswith(("@", "def "))


def _names(source: str) -> set[str]:
    """Names that a source reads and does not define itself: what is local to a function is its own."""
    module = symtable(source, "<generated>", "exec")
    own = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned()}
    read, scopes = set[str](), [module]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        outside = [s for s in scope.get_symbols() if s.is_referenced() and (s.is_global() or scope is module)]
        read |= {symbol.get_name() for symbol in outside}
    return read - own


def _imports(names: Mapping[str, str]) -> str:
    """Import statements, in the order of isort."""
    whole, single = [], dict[str, list[str]]()
    for name, module in names.items():
        if module.startswith("import "):
            root = module.removeprefix("import ")
            whole.append((root, module if name == root else f"{module} as {name}"))
        elif "." in module:
            root, _, original = module.partition(".")
            single.setdefault(root, []).append(f"{original} as {name}")
        else:
            single.setdefault(module, []).append(name)
    statements = sorted(whole)
    for root, entries in sorted(single.items()):
        renamed = [entry for entry in entries if " as " in entry]
        plain = sorted(set(entries).difference(renamed))
        lines = [*renamed, *([", ".join(plain)] if plain else [])]
        statements += [(root, f"from {root} import {line}") for line in sorted(lines)]
    standard = [text for root, text in statements if root in _STANDARD]
    others = [text for root, text in statements if root not in _STANDARD]
    return "\n\n".join("\n".join(part) for part in (standard, others) if part)
