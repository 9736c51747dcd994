"""Imports of the two packages run downwards and in no circles: contracts of import-linter in pyproject.toml."""

from pathlib import Path

from importlinter.cli import lint_imports


def test_imports_run_down_and_in_no_circles(capsys):
    code = lint_imports(config_filename=str(Path(__file__).parents[2] / "pyproject.toml"), no_cache=True)
    assert code == 0, capsys.readouterr().out
