"""What is generated is named after every source that it depends on, so that none is used that another source made.

Not public: the names of files in the cache.
"""

from pathlib import Path

import pytest

import derivations
from attnphase.kernels import cache


@pytest.mark.parametrize("part", ["derivations/codegen/local_problem.py", "kernels/compiler.py", "problem/losses.py"])
def test_what_is_generated_is_named_after_every_source_it_depends_on(monkeypatch, tmp_path, part):
    sources = dict(cache.program_sources())
    ours = {path for name, path in sources.items() if name.startswith("derivations/")}
    assert ours == set(Path(str(derivations.__file__)).parent.rglob("*.py"))
    # taken once in a process, whose modules do not change
    monkeypatch.setattr(cache, "version", cache.version.__wrapped__)
    before, changed = cache.version(), tmp_path / "changed.py"
    changed.write_text(sources[part].read_text(encoding="utf-8") + "\n", encoding="utf-8")
    monkeypatch.setattr(cache, "program_sources", lambda: iter((sources | {part: changed}).items()))
    assert cache.version() != before
