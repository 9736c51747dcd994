"""docs/new-variant.md is executed as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import attnphase as ap
from attnphase.kernels.reference import reference_backend

PAGE = Path(__file__).parents[2] / "docs" / "new-variant.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.long
@pytest.mark.usefixtures("own_scores")
def test_the_page_runs_and_its_variant_is_solved_and_consistent(capsys):
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
    assert namespace["latex"].startswith(r"\documentclass")
    assert r"\mathrm{cosine}" in namespace["latex"]
    printed = capsys.readouterr().out
    assert "status = 0" in printed
    assert blocks("text")[0] in printed
    assert "all checks passed" in printed
    assert any(one.name == "experiment at finite d" and one.passed for one in report.checks)
    assert namespace["comparison"].within(3)
    assert "a of a + b/d" in printed
    # the formula of the page is the same score
    toml, *_ = blocks("toml")
    rng = np.random.default_rng(2)
    h, k, mixing = rng.normal(size=(50, 2, 1)), rng.normal(size=(50, 2, 1)), rng.uniform(0.1, 0.9, (2, 2))
    numbers = mixing, np.array([0.3, 1.2, 0.8]), np.array([0.25, 0.36])
    registered, formula = (
        reference_backend(problem, "numpy") for problem in (namespace["problem"], ap.Problem.from_toml(toml))
    )
    np.testing.assert_allclose(formula.losses(h, k, *numbers), registered.losses(h, k, *numbers), rtol=1e-12)
