"""Problems that stand on pages of docs/."""

import re
from pathlib import Path


def problems(page: str) -> list[str]:
    """Its blocks of TOML."""
    return re.findall(r"(?ms)^```toml\n(.*?)^```", (Path(__file__).parents[2] / page).read_text(encoding="utf-8"))
