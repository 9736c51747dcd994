"""The group of all commands: how an expected error becomes one sentence, and an exit code.

Exit codes: 0 done, 1 not converged, 2 bad input or a result that cannot be written, 70 a fault of the program,
130 interrupted, 143 told to end, 141 nobody reads standard output any more (`attnphase.cli.streams`).
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, NoReturn

import click

from attnphase.errors import AttnphaseError, AttnphaseWarning
from attnphase.lazy import loaded_on_use
from attnphase.processes.interruption import exit_code

with loaded_on_use(__name__):
    import traceback

    from attnphase import version

__all__ = ["main"]

_LONGEST = 600  # characters of a sentence
_FAULT = 70
_FIELDS = {"--omega": "teacher.omega", "--sigma": "tokens.sigma", "--lambda": "regularizer.strength"}


class _Program(click.Group):
    """A group whose every expected error is one sentence on standard error."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, which says by itself what functions warn of."""
        with warnings.catch_warnings():
            for category in AttnphaseWarning.__subclasses__():
                warnings.simplefilter("ignore", category)
            return super().invoke(ctx)

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and end the process unless `standalone_mode` is false."""
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        warnings.showwarning = _show_warning
        try:
            sys.exit(super().main(*args, standalone_mode=False, **extra) or 0)
        except click.ClickException as error:
            if not error.format_message() or type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(error.exit_code)
            _end(f"{_closed(error.format_message())}{_field_meant(error)}")
        except click.Abort as abort:  # what click makes of Ctrl-C, and of the end of a file
            if isinstance(abort.__cause__, EOFError):
                _end_by_fault(abort.__cause__)
            click.echo("attnphase: interrupted.", err=True)
            sys.exit(exit_code(abort.__cause__))
        except SystemExit:
            raise
        except OSError as error:
            _end(f"{error.filename}: {error.strerror}." if error.filename else str(error))
        except AttnphaseError as error:
            _end(str(error), error.exit_code)
        except MemoryError as error:
            reason = f" ({error})" if str(error) else ""
            _end(f"memory ran out{reason}: end other programs, or take fewer nodes, tokens or samples")
        except ImportError as error:
            first: BaseException = error  # the last has a page of advice
            while (before := first.__cause__ or first.__context__) is not None:
                first = before
            _end(f"{_described(first)}: a package cannot be loaded; is it installed whole, and is memory left?")
        except BaseException as error:
            _end_by_fault(error)


def _field_meant(error: click.ClickException) -> str:
    """How a field is set whose symbol was given as an option that the command has not."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    field = _FIELDS.get(error.option_name)
    settable = any("--set" in param.opts for param in error.ctx.command.params)
    return f" Give the field as --set {field}=VALUE." if field and settable else ""


def _closed(sentence: str) -> str:
    """A sentence with its last mark, which some versions of click leave out."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."


def _end(sentence: str, code: int = 2) -> NoReturn:
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(sentence.split()))
    if len(text) > _LONGEST:  # of somebody's input
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    click.echo(f"attnphase: error: {_closed(text)}", err=True)
    sys.exit(code)


def _end_by_fault(error: BaseException) -> NoReturn:
    traceback.print_exception(error)
    what = "this is a fault of attnphase, not of its input; please report it with the lines above"
    click.echo(f"attnphase: fault: {_described(error)}: {what}.", err=True)
    sys.exit(_FAULT)


def _described(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200].rstrip(":. ")


def _show_warning(message: Warning | str, *_: Any) -> None:
    click.echo(f"attnphase: warning: {message}", err=True)


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"attnphase {version.__version__}")
        ctx.exit()


@click.group(cls=_Program, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show it and exit."
)
def main() -> None:
    """Phase diagrams of solvable attention models.

    Without a PROBLEM.TOML the problem is the paper's (arXiv:2402.03902).
    """
