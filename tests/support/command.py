"""Commands as a user gives them, in the tests' own process."""

from typing import Any

from click.testing import CliRunner, Result

from attnphase.cli.commands import main


def run(*arguments: Any, code: int = 0) -> Result:
    """What ``attnphase ARGUMENTS`` says, and that it ends with this code; a fault of the program is raised."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="attnphase")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result
