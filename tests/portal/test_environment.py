"""Starts that would be unsafe are refused with every reason and what to do; safe ones are let through."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from environ import Env

from portal.common.environment import key_fault, read_bool, read_networks, read_whole, refuse_unsafe

ROOT = Path(__file__).resolve().parents[2]
KEY = secrets.token_hex(48)
# The characters of Django's get_random_secret_key.
OF_DJANGO = "abcdefghijklmnopqrstuvwxyz0123456789!@#$%^&*(-_=+)"
SAFE: dict[str, Any] = {
    "debug": False,
    "demo": False,
    "behind_tls": False,
    "key": KEY,
    "hosts": ["berth.example.org"],
    "origins": ["https://berth.example.org"],
    "database": {"HOST": "db.example.org", "PASSWORD": secrets.token_hex(24)},
    "proxies": [],
}


def refused(**given: Any) -> str:
    with pytest.raises(ImproperlyConfigured) as no:
        refuse_unsafe(**(SAFE | given))
    return str(no.value)


def test_a_safe_start_is_let_through() -> None:
    refuse_unsafe(**SAFE)
    refuse_unsafe(**(SAFE | {"behind_tls": True, "proxies": ["10.0.0.1"]}))
    refuse_unsafe(**(SAFE | {"demo": True, "debug": True, "hosts": ["localhost", "127.0.0.1"]}))
    refuse_unsafe(**(SAFE | {"key": ""}))  # commands that serve nobody make one of the moment


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"hosts": ["*"]}, "BERTH_ALLOWED_HOSTS"),
        ({"hosts": ["a.example.org", "."]}, "BERTH_ALLOWED_HOSTS"),
        ({"debug": True}, "BERTH_DEBUG=1 shows settings"),
        ({"debug": True, "demo": True}, "for this machine alone"),
        ({"debug": True, "demo": True, "hosts": ["localhost"], "behind_tls": True}, "for this machine alone"),
        ({"key": "a" * 60}, "openssl rand -hex 48"),
        ({"origins": ["https://*.example.org"]}, "BERTH_CSRF_TRUSTED_ORIGINS"),
        ({"origins": ["berth.example.org"]}, "BERTH_CSRF_TRUSTED_ORIGINS"),
        ({"origins": ["http://berth.example.org"], "behind_tls": True}, "use https://"),
        ({"database": {"HOST": "db.example.org", "PASSWORD": "postgres"}}, "DATABASE_URL"),
        ({"behind_tls": True}, "BERTH_TRUSTED_PROXIES"),
    ],
)
def test_an_unsafe_start_says_why(given: dict[str, Any], reason: str) -> None:
    assert reason in refused(**given)


def test_every_reason_is_said_at_once() -> None:
    said = refused(hosts=["*"], debug=True, key="a" * 60)

    assert all(name in said for name in ("BERTH_ALLOWED_HOSTS", "BERTH_DEBUG", "BERTH_SECRET_KEY"))


@pytest.mark.parametrize(
    "key",
    [
        "a" * 60,
        "short",
        "abc" * 20,
        "0123456789" * 6,
        "abcdefghijklmnopqrstuvwxyz" * 2 + "0123456789",
        "correct-horse-battery-staple-" * 3,
        "django-insecure-Gwk8Tq13Ytc9DvGLn8eIStuHZyYSphJm9NCUzpCCpnXPbVRpm0_2UmiCkxEIH7ali8",
        "change-me" * 8,
        "only-for-this-measurement-" + "x" * 40,
        "x" * 30 + "98b7698cf67e858a512730e2742832",
        "e971134dbfec686c" * 4,
    ],
)
def test_a_key_that_can_be_guessed_is_refused(key: str) -> None:
    assert key_fault(key)


@pytest.mark.parametrize(
    "make",
    [
        lambda dice: dice.randbytes(48).hex(),
        lambda dice: dice.randbytes(32).hex(),
        lambda dice: base64.urlsafe_b64encode(dice.randbytes(64)).decode(),
        lambda dice: base64.urlsafe_b64encode(dice.randbytes(38)).decode(),
        lambda dice: "".join(dice.choices(OF_DJANGO, k=50)),
    ],
)
def test_a_random_key_of_any_source_passes(make: Callable[[Random], str]) -> None:
    dice = Random(7)
    assert {key_fault(make(dice)) for _nth in range(300)} == {""}


def test_a_random_key_in_which_one_digit_is_frequent_passes() -> None:
    dice = Random(7)
    digits = [*"0" * 17, *dice.choices("123456789abcdef", k=47)]
    dice.shuffle(digits)
    assert key_fault("".join(digits)) == ""


def env(**given: str) -> Env:
    found = Env()
    found.ENVIRON = given
    return found


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", True), ("Yes", True), ("off", False), ("0", False), ("", False)]
)
def test_a_switch_is_read(text: str, is_on: bool) -> None:
    assert read_bool(env(X=text), "X") is is_on


def test_what_is_no_value_is_refused_instead_of_guessed() -> None:
    with pytest.raises(ImproperlyConfigured, match="no switch"):
        read_bool(env(X="ture"), "X")
    with pytest.raises(ImproperlyConfigured, match="whole number"):
        read_whole(env(X="1.5"), "X", default=1, least=0, most=9)
    with pytest.raises(ImproperlyConfigured, match="between 0 and 9"):
        read_whole(env(X="-1"), "X", default=1, least=0, most=9)
    with pytest.raises(ImproperlyConfigured, match="neither an address nor a network"):
        read_networks(env(X="10.0.0.1,proxy"), "X")
    assert [str(n) for n in read_networks(env(X="10.0.0.1,fd00::/8"), "X")] == ["10.0.0.1/32", "fd00::/8"]


def manage(*arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a command with an environment of its own, as a process of production has."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "DATABASE_URL", "REDIS_URL") if name in os.environ
    }
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=kept | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.deep
def test_djangos_own_check_for_deployment_has_nothing_to_say() -> None:
    found = manage(
        "check", "--deploy", "--fail-level", "WARNING",
        BERTH_BEHIND_TLS="1", BERTH_TRUSTED_PROXIES="10.0.0.1", BERTH_SECRET_KEY=KEY,
        BERTH_ALLOWED_HOSTS="berth.example.org",
    )  # fmt: skip

    assert found.returncode == 0, found.stderr
    assert "no issues" in found.stdout + found.stderr


def test_a_process_with_an_unsafe_setting_ends_with_the_reason() -> None:
    found = manage("check", BERTH_ALLOWED_HOSTS="*", BERTH_SECRET_KEY="a" * 60)

    assert found.returncode != 0
    assert "BERTH_ALLOWED_HOSTS=*" in found.stderr
    assert "BERTH_SECRET_KEY can be guessed" in found.stderr
