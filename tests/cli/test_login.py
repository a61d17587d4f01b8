from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyotp
import pytest
from django.utils import timezone

from portal.accounts.models import ApiToken, DeviceCode
from portal.audit import device_codes
from portal.cli import client, config
from portal.second_factor.services import begin, confirm
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


def decided(world: World, *, is_approved: bool) -> None:
    """Decide what waits, as bob does it on the page."""
    now = timezone.now()
    row = device_codes.find(world.user("bob"), DeviceCode.objects.get().user_code, now=now)
    device_codes.decide(row, world.user("bob"), is_approved=is_approved, address="127.0.0.1", now=now)


def test_a_device_is_approved_in_the_browser(
    world: World, berth: Any, monkeypatch: pytest.MonkeyPatch, valkey_url: str
) -> None:
    waits: list[int] = []

    def approve(seconds: int) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            decided(world, is_approved=True)

    monkeypatch.setattr(client, "sleep", approve)
    done = berth("login", "--days", "3", who="")

    token = ApiToken.objects.get()
    assert done.exit_code == 0, done.stderr
    assert "as bob" in done.stderr
    assert "/device/?code=" in done.stderr
    assert (token.user, token.scopes) == (world.user("bob"), ["admin"])
    assert token.expires_at - token.created_at == timedelta(days=3)
    assert waits[0] == 5


def test_a_refused_device_gets_nothing(
    world: World, berth: Any, monkeypatch: pytest.MonkeyPatch, valkey_url: str
) -> None:
    monkeypatch.setattr(client, "sleep", lambda _seconds: decided(world, is_approved=False))
    done = berth("login", who="")

    assert done.exit_code == 1
    assert "refused in the browser" in done.stderr
    assert not ApiToken.objects.exists()


def test_an_account_with_a_second_factor_is_led_to_the_browser(
    world: World, berth: Any, valkey_url: str
) -> None:
    code = pyotp.TOTP(begin(world.user("bob"), now=world.now).secret).at(world.now)
    confirm(world.user("bob"), code, now=world.now)

    done = berth("login", "--user", "bob", who="", typed=f"{PASSWORD}\n")

    assert done.exit_code == 1
    assert "code beside the password" in done.stderr
