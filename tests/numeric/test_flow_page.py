"""docs/flow.md is executed as it stands, and prints what it says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "flow.md"


def test_the_page_prints_what_it_says(capsys):
    text = PAGE.read_text(encoding="utf-8")
    pairs = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)
    assert len(pairs) == 3 == text.count("```python")
    namespace: dict = {}
    for source, expected in pairs:
        exec(compile(source, str(PAGE), "exec"), namespace)
        assert capsys.readouterr().out == expected
