"""Ctrl-C that code between would lose, and Ctrl-C that children must not hear."""

import signal
import subprocess
import sys

import pytest

from attnphase.processes.interruption import (
    OrderedToEnd,
    exit_code,
    interruptions_deferred,
    interruptions_kept,
    interruptions_kept_from_children,
)

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.parametrize(
    ("number", "raised", "code"), [(signal.SIGINT, KeyboardInterrupt, 130), (signal.SIGTERM, OrderedToEnd, 143)]
)
def test_what_is_deferred_says_which_signal_it_was(number, raised, code):
    before = signal.getsignal(signal.SIGTERM)
    went_on = []

    def interrupted_by(*numbers):
        with interruptions_deferred() as interrupted:
            assert interrupted() is None
            for one in numbers:
                signal.raise_signal(one)
                went_on.append(interrupted())

    with pytest.raises(KeyboardInterrupt) as first:
        interrupted_by(number)  # raised in the end, though nobody asks again
    assert type(first.value) is raised
    assert exit_code(first.value) == code
    with pytest.raises(KeyboardInterrupt) as second:
        interrupted_by(signal.SIGINT, number)  # the second does not wait
    assert type(second.value) is raised
    assert went_on == [raised, KeyboardInterrupt]
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_interruption_that_a_callback_drops_is_raised_in_the_end():
    went_on = []

    @interruptions_kept()
    def callback():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            went_on.append(True)

    with pytest.raises(KeyboardInterrupt):
        callback()
    assert went_on == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_an_interruption_leaves_half_done_is_an_interruption():
    @interruptions_kept()
    def compiled():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("no compiled object yet") from None

    with pytest.raises(KeyboardInterrupt):
        compiled()


def test_other_errors_stay_what_they_are():
    with pytest.raises(RuntimeError, match="of its own"), interruptions_kept():
        raise RuntimeError("of its own")
    with interruptions_kept():
        pass


class Dropped:
    """Interrupted where exceptions are dropped: in a destructor."""

    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_nothing_is_printed_of_a_dropped_interruption(capfd):
    with pytest.raises(KeyboardInterrupt), interruptions_kept():
        Dropped()
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="Windows has no signal masks")
def test_children_do_not_hear_it_and_this_process_hears_it_after():
    child = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    said = []

    @interruptions_kept_from_children()
    def begin():
        signal.raise_signal(signal.SIGINT)
        said.append(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout)

    with pytest.raises(KeyboardInterrupt):
        begin()
    assert said == ["True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
