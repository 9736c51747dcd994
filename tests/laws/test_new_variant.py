"""docs/new-variant.md is executed as it stands."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "new-variant.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.long
@pytest.mark.usefixtures("own_scores")
def test_the_page_runs_and_its_variant_is_solved_and_consistent():
    definition, *rest = blocks("python")
    assert len([line for line in definition.splitlines() if line.strip()]) <= 10
    namespace: dict = {}
    for block in (definition, *rest):
        # fewer and smaller runs will do
        block = block.replace("dimension=[100, 200, 400], seeds=12", "dimension=[40, 80, 160], seeds=5")
        exec(compile(block, str(PAGE), "exec"), namespace)
    point, report = namespace["point"], namespace["report"]
    assert point.status.item() == 0
    assert float(point.theta[0, 0, 0]) > 0.05
    assert report.passed, report.text()
    assert any(one.name == "experiment at finite d" and one.passed for one in report.checks)
    assert namespace["comparison"].within(3)
