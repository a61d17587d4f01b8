from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.testing
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from typer.testing import CliRunner

from portal.cli import client
from portal.cli.main import app
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401

Berth = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def one_tree_of_commands() -> Iterator[None]:
    """Build the commands once: Typer does so anew for every call, which takes longer than the call itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.testing._get_command))
        yield


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty home folder and no settings from outside."""
    for name in ("BERTH_URL", "BERTH_TOKEN", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Keep the test's own database connection open across calls, as Django's test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def berth(one_connection: None, home: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> Berth:  # noqa: F811
    """Run ``berth`` against the application itself: ``berth("list", who="bob")``."""
    monkeypatch.setattr(client, "transport", httpx.WSGITransport(get_wsgi_application()))
    monkeypatch.setenv("BERTH_URL", "http://testserver")

    def run(*words: str, who: str = "bob", typed: str = "") -> Any:
        if who:
            monkeypatch.setenv("BERTH_TOKEN", world.token(who))
        return CliRunner().invoke(app, list(words), input=typed)

    return run
