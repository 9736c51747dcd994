"""Modules that are loaded on use.

Not public: `attnphase.lazy`, by which a refusal is quick.
"""

import sys
import threading

import pytest

from attnphase.lazy import loaded_on_use


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "first_of_two.py").write_text(
        "from attnphase.lazy import loaded_on_use\nwith loaded_on_use(__name__):\n    import second_of_two\n"
    )
    (tmp_path / "second_of_two.py").write_text("NUMBER = 7\n")
    (tmp_path / "elsewhere_alone.py").write_text("import second_of_two\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("first_of_two", "second_of_two", "elsewhere_alone"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("folder")
def test_a_module_is_loaded_when_a_name_of_it_is_used_and_other_threads_import_as_ever():
    first = __import__("first_of_two")
    assert "second_of_two" not in sys.modules
    assert first.second_of_two.NUMBER == 7
    with pytest.raises(AttributeError, match="module 'second_of_two' has no attribute 'word'"):
        _ = first.second_of_two.word
    del sys.modules["second_of_two"]
    with loaded_on_use("another_module"):
        thread = threading.Thread(target=__import__, args=("elsewhere_alone",))
        thread.start()
        thread.join()
    assert sys.modules["elsewhere_alone"].second_of_two is sys.modules["second_of_two"]
