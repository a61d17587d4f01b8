"""Commands beside the stack: whom they meet, and what they say where nobody answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from portal import command_line
from portal.embedded.attach import attach
from portal.embedded.places import POSTGRES_SOCKET, StackPaths, socket_folder


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "data"


@pytest.fixture
def runs(data: Path) -> Iterator[StackPaths]:
    """The sockets of a stack that runs from this folder."""
    places = StackPaths(data, data, socket_folder(data, data.parent))
    places.postgres_sockets.mkdir(parents=True)
    data.mkdir()
    places.secret_key.touch()
    with ExitStack() as held:
        for path in (places.postgres_sockets / POSTGRES_SOCKET, places.valkey_socket):
            held.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        yield places


def test_commands_meet_the_stack_that_runs_from_their_folder(runs: StackPaths) -> None:
    env = {"BERTH_DATA": str(runs.data)}

    attach(env)

    assert env == {
        "BERTH_DATA": str(runs.data),
        "DATABASE_URL": runs.database_url(),
        "REDIS_URL": runs.redis_url(),
        "BERTH_SECRET_KEY_FILE": str(runs.secret_key),
    }


def test_what_somebody_named_is_what_is_meant(runs: StackPaths) -> None:
    named = {
        "BERTH_DATA": str(runs.data),
        "DATABASE_URL_FILE": "/run/secrets/database",
        "REDIS_URL": "redis://cache/0",
        "BERTH_SECRET_KEY": "x",
    }
    env = dict(named)

    attach(env)

    assert env == named


def test_a_stack_that_does_not_run_names_nothing(data: Path) -> None:
    env = {"BERTH_DATA": str(data)}

    attach(env)

    assert env == {"BERTH_DATA": str(data)}


def test_of_a_stack_with_a_database_of_somebody_else_only_its_own_stores_are_named(runs: StackPaths) -> None:
    (runs.postgres_sockets / POSTGRES_SOCKET).unlink()
    env = {"BERTH_DATA": str(runs.data)}

    attach(env)

    assert set(env) == {"BERTH_DATA", "REDIS_URL", "BERTH_SECRET_KEY_FILE"}


def test_sockets_that_somebody_else_made_are_no_stack_of_ours(
    runs: StackPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    env = {"BERTH_DATA": str(runs.data)}

    attach(env)

    assert env == {"BERTH_DATA": str(runs.data)}


def fails(monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    """Let every command fail with Django's error for this one of the driver."""

    def execute(argv: list[str]) -> None:
        raise OperationalError(str(cause)) from cause

    monkeypatch.setattr("django.core.management.execute_from_command_line", execute)
    monkeypatch.setattr(command_line, "attach", lambda env: None)


@pytest.mark.parametrize("cause", [PoolTimeout("after 10.00 sec"), psycopg.OperationalError("no socket")])
def test_a_command_without_a_database_says_how_to_start_one(
    cause: Exception, monkeypatch: pytest.MonkeyPatch
):
    fails(monkeypatch, cause)

    with pytest.raises(SystemExit) as ended:
        command_line.main(["manage.py", "check_invariants"])

    assert str(ended.value.code).startswith("The database ")
    assert "does not answer. Start Berth with `make up`" in str(ended.value.code)


def test_what_a_database_that_answers_refuses_is_told_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch, psycopg.errors.LockNotAvailable("canceling statement due to lock timeout"))

    with pytest.raises(OperationalError, match="lock timeout"):
        command_line.main(["manage.py", "check_invariants"])
