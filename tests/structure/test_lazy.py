"""Modules that are loaded on use."""

import sys
import threading

import pytest

from attnphase.lazy import loaded_on_use

FIRST = "first_of_two"
CODE = """
from attnphase.lazy import loaded_on_use

with loaded_on_use(__name__):
    from collections import abc as kinds
    import second_of_two

BEFORE = "second_of_two" in __import__("sys").modules
"""


@pytest.fixture
def first(tmp_path, monkeypatch):
    (tmp_path / f"{FIRST}.py").write_text(CODE)
    (tmp_path / "second_of_two.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__(FIRST)
    for name in (FIRST, "second_of_two"):
        sys.modules.pop(name, None)


def test_a_module_is_loaded_when_a_name_of_it_is_used(first):
    assert not first.BEFORE
    assert "second_of_two" not in sys.modules  # not even as one that is not loaded yet
    assert not hasattr(first.second_of_two, "__wrapped__")
    assert "second_of_two" not in sys.modules
    assert first.second_of_two.NUMBER == 7
    assert first.kinds.Mapping is sys.modules["collections.abc"].Mapping
    vars(sys.modules["second_of_two"])["NUMBER"] = 8
    assert first.second_of_two.NUMBER == 8


def test_what_is_missing_is_missed_on_use(first):
    with pytest.raises(AttributeError, match="module 'second_of_two' has no attribute 'word'"):
        _ = first.second_of_two.word
    with loaded_on_use(__name__):
        import no_such_module  # pyright: ignore[reportMissingImports]
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        _ = no_such_module.anything


def test_other_imports_are_as_ever_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "elsewhere_alone.py").write_text("import second_of_two\n")
    (tmp_path / "second_of_two.py").write_text("NUMBER = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    with loaded_on_use("another_module"):
        thread = threading.Thread(target=__import__, args=("elsewhere_alone",))
        thread.start()
        thread.join()
    try:
        assert sys.modules["elsewhere_alone"].second_of_two is sys.modules["second_of_two"]
    finally:
        for name in ("elsewhere_alone", "second_of_two"):
            del sys.modules[name]
