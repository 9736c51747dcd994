"""docs/sgd_flow.md is executed as it stands, and prints what it says; commands of pages of numbers are commands."""

import re
import shlex
from pathlib import Path

import pytest

from attnphase.cli.commands import main

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "sgd_flow.md"


def test_the_page_prints_what_it_says(capsys):
    text = PAGE.read_text(encoding="utf-8")
    pairs = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(pairs) == 3 == text.count("```python")
    namespace: dict = {}
    for source, expected in pairs:
        exec(compile(source, str(PAGE), "exec"), namespace)
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize("page", ["sgd_flow.md", "one_rsb_numbers.md"])
def test_commands_within_the_text_have_these_options(page):
    commands = re.findall(r"`attnphase (.+?)`", (DOCS / page).read_text(encoding="utf-8"))
    assert commands
    for command in commands:
        name, *arguments = shlex.split(command)
        parsed = main.commands[name]
        if arguments:
            with parsed.make_context(name, arguments):
                pass
