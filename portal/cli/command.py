"""What every command shares: the connection, the exit codes, the options."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from portal.cli import config, output

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

REFUSED, UNREACHABLE, STILL_WAITING = 1, 3, 4
Command = TypeVar("Command", bound=Callable[..., None])
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Team = Annotated[str, typer.Option("--team", "-t", help="Slug of the team.")]


@contextlib.contextmanager
def api(settings: config.Config | None = None) -> Iterator[ApiClient]:
    """Give a connection to the portal and close it. httpx is imported only now: help stays quick."""
    from portal.cli.client import ApiClient

    portal = ApiClient(settings or config.load(os.environ))
    with portal.http:
        yield portal


def guarded(command: Command) -> Command:
    """Turn what can go wrong into a message on stderr and an exit code: 1 refused, 3 cannot reach."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from portal.cli.client import RefusedError, UnreachableError

        try:
            command(*args, **kwargs)
        except RefusedError as error:
            output.refused(error.problem)
            raise typer.Exit(REFUSED) from error
        except UnreachableError as error:
            output.say(f"Cannot reach {config.load(os.environ).url}: {error}")
            output.say("Check the address (BERTH_URL or “berth login --url …”) and that the portal is up.")
            raise typer.Exit(UNREACHABLE) from error

    return wrapped  # type: ignore[return-value]
