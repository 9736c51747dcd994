"""The layers of the two packages, read from the source: imports run downwards, and nothing grows beyond a page.

Every import counts: those inside functions, which only start-up time excuses, and those for type checkers too.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from attnphase.data.schemas import THEORIES

ROOT = Path(__file__).parents[2]
# from the lowest to the highest; names on one line share a layer, and may not import each other
LAYERS = {
    "derivations": ["algebra", "models", "replica", "codegen", "printing"],
    "attnphase": [
        "errors arrays display lazy version",
        "arguments extras functions",
        "files processes solvers",
        "integration",
        "rows",
        "problem",
        "kernels",
        "spectrum",
        "facts",
        "state_evolution",
        "fixed_points",
        "data",
        "sweeps",
        "theories",
        "tracking testing reference",
        "experiments",
        "checks",
        "figures",
        "explorer pages",
        "interface",
        "paper",
        "cli",
        "__main__",
    ],
}
LONGEST_FILE, LONGEST_FUNCTION, MOST_ARGUMENTS, INNER_IMPORTS = 500, 80, 8, 60


@cache
def modules() -> dict[str, Path]:
    """Every module of both packages by its name."""
    found = {}
    for package in LAYERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


@cache
def imports(name: str) -> tuple[str, ...]:
    """The modules of both packages that a module imports, wherever in it."""
    return tuple(_imports(name))


def _imports(name: str) -> Iterator[str]:
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            climbed = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*climbed, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules() else base for alias in node.names]
        else:
            continue
        yield from (found for found in names if found in modules() and found != name)


def layer_of(name: str) -> tuple[str, int, str]:
    """Package, layer and subpackage of a module; the package itself is its highest layer."""
    package, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    if not part:
        return package, len(LAYERS[package]), ""
    (layer,) = (i for i, parts in enumerate(LAYERS[package]) if part in parts.split())
    return package, layer, part


def test_every_subpackage_has_a_layer():
    for name in modules():
        layer_of(name)
    parts = {layer_of(name)[2] for name in modules()}
    assert {part for names_of in LAYERS.values() for layer in names_of for part in layer.split()} <= parts


# all modules in one test, for a test of each costs more than what it does: what is wrong is named in the list


def test_imports_run_down():
    upwards = []
    for name in modules():
        package, layer, part = layer_of(name)
        for target in imports(name):
            other, below, its_part = layer_of(target)
            runs_down = below < layer or its_part == part
            if not runs_down if other == package else (package, other) != ("attnphase", "derivations"):
                upwards.append(f"{name} imports {target}")
    assert upwards == []


def test_the_tables_of_theories_lie_below_the_schema():
    """`attnphase.data.schemas` imports them by their names, which no statement of import shows."""
    folders = {name.split(".")[2] for name in modules() if name.startswith("attnphase.theories.")}
    assert folders == set(THEORIES)
    highest = layer_of("attnphase.data.schemas")[1]
    for theory in THEORIES:
        home, seen = f"attnphase.theories.{theory}", set[str]()
        waiting = [f"{home}.variables"]
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += imports(name)
        assert "attnphase.data.schemas" not in seen
        above = {name for name in seen if layer_of(name)[0] == "attnphase" and layer_of(name)[1] > highest}
        assert {name for name in above if not name.startswith(home)} == set()


def test_no_circles_within_a_subpackage():
    """Files of a subpackage may import each other, but never in a circle; its own name is what it shows to others."""
    graph = {name: {target for target in imports(name) if layer_of(target)[2]} for name in modules()}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for target in graph[name]:
                walk(target, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


def test_a_file_holds_one_idea():
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules().items()}
    assert {name: count for name, count in lines.items() if count > LONGEST_FILE} == {}


@cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All functions, with the modules that they stand in."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(name, node) for name in modules() for node in ast.walk(tree(name)) if isinstance(node, kinds)]


def test_functions_fit_on_a_page():
    lines = [(f"{name}.{f.name}", (f.end_lineno or 0) - f.lineno + 1) for name, f in functions()]
    assert [(name, count) for name, count in lines if count > LONGEST_FUNCTION] == []


# their keywords are the interface, and those of the plans that check exactly these
INTERFACE = {
    "attnphase.problem.problem": {"__init__"},
    "attnphase.sweeps.curves": {"follow"},
    "attnphase.sweeps.grid": {"sweep"},
    "attnphase.theories.bayes_optimal.run": {"bayes_optimal"},
    "attnphase.theories.sgd_flow.run": {"basins", "sgd_flow"},
    "attnphase.sweeps.blocks": {"plan_sweep"},
    "attnphase.theories.one_rsb.run": {"one_rsb"},
    "attnphase.experiments.simulate": {"simulate"},
    "attnphase.experiments.plan": {"of"},
    "attnphase.experiments.histogram.stages": {"train_histogram"},
    "attnphase.experiments.histogram.settings": {"of"},
}


def test_imports_stand_at_the_top():
    """What takes long to load is imported there too, by `attnphase.lazy`."""
    lines = {
        (name, n.lineno) for name, f in functions() for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom)
    }
    assert len(lines) < INNER_IMPORTS, sorted(lines)


def test_few_arguments():
    """A frozen value takes the place of many; options of commands apart."""
    many = []
    for name, function in functions():
        arguments = function.args
        count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
        exempt = name.startswith("attnphase.cli") or function.name in INTERFACE.get(name, ())
        if count > MOST_ARGUMENTS and not exempt:
            many.append(f"{name}.{function.name} takes {count} arguments")
    assert many == []
