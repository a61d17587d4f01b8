from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import ApiToken
from portal.cli import config
from tests.portal.builders import PASSWORD, World


def test_token_is_tried_and_kept_for_its_owner_alone(
    world: World, berth: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = berth("login", "--url", "http://testserver/", "--token", world.token("bob"), who="")

    file = home / ".config" / "berth" / "config.json"
    assert done.exit_code == 0, done.stderr
    assert "as bob" in done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.delenv("BERTH_URL")
    assert berth("me", who="").stdout.startswith("name")
    assert berth("logout", who="").exit_code == 0
    assert not file.exists()


def test_dead_token_is_refused_and_not_kept(world: World, berth: Any, home: Path) -> None:
    done = berth("login", "--token", "-", who="", typed="bth_wrong\n")

    assert done.exit_code == 1
    assert not (home / ".config" / "berth" / "config.json").exists()


def test_name_and_password_make_a_token(world: World, berth: Any, home: Path, valkey_url: str) -> None:
    done = berth("login", "--user", "bob", "--days", "2", who="", typed=f"{PASSWORD}\n")

    assert done.exit_code == 0, done.stderr
    assert ApiToken.objects.get().name == "berth command line"
    assert PASSWORD not in done.stdout + done.stderr


def test_wrong_password_is_refused(world: World, berth: Any, valkey_url: str) -> None:
    done = berth("login", "--user", "bob", who="", typed="wrong\n")

    assert done.exit_code == 1
    assert "do not fit together" in done.stderr


def test_address_must_be_one(berth: Any) -> None:
    assert berth("login", "--url", "gpu.example", "--token", "x").exit_code == 2


def test_environment_wins_over_the_file_and_a_token_stays_with_its_address(home: Path) -> None:
    environ = {"HOME": str(home)}
    config.save(config.Config("http://a:1", "bth_a"), environ)

    assert config.load(environ) == config.Config("http://a:1", "bth_a")
    assert config.load({**environ, "BERTH_URL": "http://b:2/"}) == config.Config("http://b:2", "")
    assert config.load({**environ, "BERTH_TOKEN": "bth_b"}).token == "bth_b"


def test_broken_file_counts_as_empty(home: Path) -> None:
    environ = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "xdg")}
    place = config.path(environ)
    place.parent.mkdir(parents=True)
    place.write_text("[1, 2")

    assert config.load(environ) == config.Config(config.DEFAULT_URL, "")
    assert place == home / "xdg" / "berth" / "config.json"


def test_command_line_starts_without_django_and_without_httpx() -> None:
    code = (
        "import sys, portal.cli.main as _;"
        "print([m for m in ('django', 'httpx', 'rich.table', 'celery') if m in sys.modules])"
    )

    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )

    assert out.stdout.strip() == "[]"
