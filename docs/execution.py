"""Run what pages show, commands and Python, in a folder of their own, and hold what they print against the page.

Notebooks run their cells themselves.  ``python docs/execution.py docs/commands.md`` runs a page without the site.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from click.testing import CliRunner

from attnphase.cli.commands import main

__all__ = ["TESTED", "Block", "Command", "agrees", "blocks_of", "check_options", "commands_of", "differences"]

TESTED = {
    "docs/histogram.md": "tests/experiments/test_histogram.py",
    "docs/new-variant.md": "tests/laws/test_new_variant.py",
}
"""Pages whose Python a test runs, for more than what it prints."""

_FENCED = re.compile(r"(?ms)^(```+)([^\n`]*)\n(.*?)^\1$")
# of a command that is not run: how long it takes stands behind it
_LONG = re.compile(r"\s+# takes .*$")
# no name has a number in it, but a name has one behind a bracket or an equals sign
_NUMBER = re.compile(r"(?<![\w.])([-+]?\d+(?:\.\d*)?)(?:\((\d+)\))?(e[-+]?\d+)?(?![\w(])")
# said every ten seconds where nothing can be live, and once where all of it takes long: by the machine's speed
_PROGRESS = re.compile(
    r"(?m)^attnphase: (?:.*\((?:\d+ min )?\d+ s\)|none of \d+ .* or more|(?:.* which takes?|this takes) .*about .*)\n"
)
# residuals and the like are rounding
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text and the line where it begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A command as a block shows it.

    Attributes
    ----------
    words : tuple of str
        What stands behind ``attnphase``.
    target : str or None
        The file that its output goes to.
    printed : str
        What the block shows below it; nothing where a page says no more than that it runs.
    long : bool
        It takes too long to be run here, as the block says behind it.
    """

    words: tuple[str, ...]
    target: str | None
    printed: str
    long: bool


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    return [Block(m[2].strip(), m[3], text.count("\n", 0, m.start()) + 1) for m in _FENCED.finditer(text)]


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block, each with what is shown below it."""
    found = []
    for part in re.split(r"(?m)^\$ ", block.text)[1:]:
        match = re.fullmatch(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL)
        assert match is not None
        line, printed = match[1].replace("\\\n", " ").rstrip("\n"), match[2]
        words = shlex.split(_LONG.sub("", line))
        target = words.pop() if len(words) > 2 and words[-2] == ">" else None
        if target is not None:
            words.pop()
        if words[0] != "attnphase":
            raise ValueError(f"a console block begins a line with {words[0]}, not with attnphase.")
        found.append(Command(tuple(words[1:]), target, printed, bool(_LONG.search(line))))
    return found


def check_options(words: Sequence[str]) -> None:
    """Read a command's options and arguments, as the program does before it begins; a wrong one raises."""
    command: click.Command = main
    context = click.Context(main)
    rest = list(words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(context.info_name, rest)


def differences(page: str, text: str) -> Iterator[tuple[int, str]]:
    """Run a page's blocks; the lines and the sentences of what is not as the page says.

    Parameters
    ----------
    page : str
        Its path below the repository.
    text : str
        The page.
    """
    blocks = blocks_of(text)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in blocks:
            if block.language == "console":
                for command in commands_of(block):
                    yield from ((block.line, said) for said in _command(command))
        if page not in TESTED:
            yield from _python(blocks)


def _command(command: Command) -> Iterator[str]:
    shown = shlex.join(("attnphase", *command.words))
    if command.long:
        check_options(command.words)
        return
    result = CliRunner().invoke(main, list(command.words), prog_name="attnphase")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        yield f"{shown} fails: {''.join(traceback.format_exception(result.exception))}"
        return
    if command.target is not None:
        Path(command.target).write_text(result.stdout, encoding="utf-8")
    output = _PROGRESS.sub("", result.stderr if command.target is not None else result.output)
    refusal = command.printed.startswith("attnphase: error")
    if (result.exit_code == 2) != refusal or result.exit_code not in (0, 1, 2):
        yield f"{shown} ends with {result.exit_code}:\n{output}"
    elif command.printed and not agrees(command.printed, output):
        yield f"{shown} prints\n{output}but the page says\n{command.printed}"


def _python(blocks: list[Block]) -> Iterator[tuple[int, str]]:
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=False):  # none after none
        if block.language != "python":
            continue
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(block.text, f"line {block.line}", "exec"), namespace)
        except Exception:  # whatever it is, it is said where the page is
            yield block.line, traceback.format_exc()
            return
        if after.language == "text" and not agrees(after.text, printed.getvalue()):
            yield block.line, f"this prints\n{printed.getvalue()}but the page says\n{after.text}"


def agrees(said: str, found: str) -> bool:
    """Whether a page shows what was found: its words, and its numbers up to rounding and a part of their errors.

    A line of three points stands for any lines.
    """
    lines, rest = found.splitlines(), said.splitlines()
    at, skipping = 0, False
    for line in rest:
        if line == "...":
            skipping = True
            continue
        while at < len(lines) and skipping and not _same_line(line, lines[at]):
            at += 1
        if at == len(lines) or not _same_line(line, lines[at]):
            return False
        at, skipping = at + 1, False
    return skipping or at == len(lines)


def _same_line(said: str, found: str) -> bool:
    here, there = _NUMBER.split(said), _NUMBER.split(found)
    if len(here) != len(there):
        return False
    words = zip(here[::4], there[::4], strict=True)
    numbers = zip(_NUMBER.finditer(said), _NUMBER.finditer(found), strict=True)
    counted = said.startswith("iterations")
    return all(" ".join(a.split()) == " ".join(b.split()) for a, b in words) and all(
        _same_number(a, b, counted) for a, b in numbers
    )


def _same_number(said: re.Match[str], found: re.Match[str], counted: bool) -> bool:
    if said[0] == found[0]:
        return True
    (a, unit, error), (b, other, its) = _parsed(said), _parsed(found)
    if unit == other == 1 and not error and not its:
        return counted and abs(a - b) <= 2
    if max(abs(a), abs(b)) < _ROUNDING:
        return True
    step = 1.01 * min(unit, other)
    return abs(a - b) <= max(step, 0.3 * max(error, its)) and abs(error - its) <= max(step, 0.4 * max(error, its))


def _parsed(number: re.Match[str]) -> tuple[float, float, float]:
    """Value, worth of its last digit, and error."""
    mantissa, error, exponent = number.groups()
    scale = float(f"1{exponent}") if exponent else 1.0
    unit = scale * 10.0 ** -len(mantissa.partition(".")[2])
    return float(mantissa) * scale, unit, unit * int(error or 0)


if __name__ == "__main__":
    root, failed = Path(__file__).parents[1], False
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        for line, said in differences(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")):
            failed = True
            print(f"{name}:{line}: {said}")
    sys.exit(failed)
