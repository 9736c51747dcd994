"""What tests put in place of other things: public names alone, so that what is private may change."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]


def private_patches(source: str) -> list[int]:
    """Lines with a call of ``monkeypatch.setattr`` that names something private."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"):
            continue
        names = [part.value for part in node.args[:2] if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        names += [part.attr for part in ast.walk(node.args[0]) if isinstance(part, ast.Attribute)]
        pieces = [piece for name in names for piece in name.split(".")]
        if any(piece.startswith("_") and not piece.startswith("__") for piece in pieces):
            lines.append(node.lineno)
    return lines


def test_tests_patch_no_private_name():
    found = {str(path.relative_to(TESTS)): private_patches(path.read_text("utf-8")) for path in TESTS.rglob("*.py")}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_private_names_are_seen():
    calls = ['(thing, "_hidden", 1)', '("a._b.c", 2)', '(a._b, "c", 3)', '(thing, "__call__", 4)', '(thing, "open", 5)']
    assert private_patches("\n".join(f"monkeypatch.setattr{call}" for call in calls)) == [1, 2, 3]
