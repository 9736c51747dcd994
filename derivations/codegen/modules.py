"""Whole modules of generated code: what it finds around it in a language, taken by the names that it reads."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from symtable import symtable

from derivations.codegen.layout import WIDTH

__all__ = ["CONSTANTS", "ELEMENTARY", "Backend", "completed", "functions_of"]

ELEMENTARY = ("cos", "cosh", "exp", "log", "sin", "sinh", "sqrt", "tanh")
CONSTANTS = ("e", "pi")


@dataclass(frozen=True)
class Backend:
    """The names that a back end provides.

    Attributes
    ----------
    imports : mapping
        Name to the module it is imported from: ``"math"``, ``"numpy.maximum"`` for another name there, or ``"import
        numpy"`` for the module itself, ``".constants"`` for a module beside it.
    definitions : mapping
        Name to source; they may use each other.  In the order in which they are written.
    """

    imports: Mapping[str, str]
    definitions: Mapping[str, str]


def functions_of(source: str) -> dict[str, str]:
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


_STANDARD = ("math",)  # modules of Python itself, which stand in front


def completed(title: str, body: str, backend: Backend) -> str:
    """A module: docstring, the imports and definitions that its functions use, and the functions.

    Parameters
    ----------
    title : str
        The module's docstring.
    body : str
        Source of functions.
    backend : Backend
    """
    used, unread = set[str](), [body]
    while unread:
        names = _names(unread.pop()) & (backend.imports.keys() | backend.definitions.keys()) - used
        used |= names
        unread += [backend.definitions[name] for name in names if name in backend.definitions]
    head = _imports({name: module for name, module in backend.imports.items() if name in used})
    definitions = [source for name, source in backend.definitions.items() if name in used]
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
        elif (root := module.rpartition(".")[0]).strip("."):
            original = module.rpartition(".")[2]
            single.setdefault(root, []).append(f"{original} as {name}")
        else:
            single.setdefault(module, []).append(name)
    statements = sorted(whole)
    for root, entries in sorted(single.items()):
        renamed = [entry for entry in entries if " as " in entry]
        plain = sorted(set(entries).difference(renamed))
        lines = [*renamed, *([", ".join(plain)] if plain else [])]
        statements += [(root, _from(root, line)) for line in sorted(lines)]
    standard = [text for root, text in statements if root in _STANDARD]
    near = [text for root, text in statements if root.startswith(".")]
    others = [text for root, text in statements if root not in _STANDARD and not root.startswith(".")]
    return "\n\n".join("\n".join(part) for part in (standard, others, near) if part)


def _from(root: str, names: str) -> str:
    """An import statement, on several lines where it is long."""
    line = f"from {root} import {names}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"from {root} import (", *(f"    {name}," for name in names.split(", ")), ")"])
