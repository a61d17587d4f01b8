from __future__ import annotations

from django.contrib.auth import SESSION_KEY

from portal.accounts.models import User
from portal.accounts.sessions import SessionStore, uid_of
from tests.cli.conftest import Berth
from tests.portal.builders import PASSWORD, World


def entered(world: World, name: str) -> str:
    store = SessionStore()
    store[SESSION_KEY] = str(world.user(name).pk)
    store.save()
    return uid_of(str(store.session_key))


def test_sessions_are_listed_and_ended(berth: Berth, world: World) -> None:
    first, second, alice = entered(world, "bob"), entered(world, "bob"), entered(world, "alice")

    assert first in berth("session", "list").stdout
    assert berth("session", "end", first).exit_code == 0
    assert first not in berth("session", "list").stdout
    assert berth("session", "end", alice).exit_code == 1
    assert berth("session", "end").exit_code == 2
    assert berth("session", "end", "--all").exit_code == 0
    assert second not in berth("session", "list").stdout
    assert alice in berth("session", "list", who="alice").stdout


def test_a_password_is_asked_for_and_changed(berth: Berth, world: World) -> None:
    refused = berth("password", typed="not it\na long walk home\na long walk home\n")
    done = berth("password", "--tokens", typed=f"{PASSWORD}\na long walk home\na long walk home\n")

    assert refused.exit_code == 1
    assert "not your password" in refused.stderr
    assert done.exit_code == 0
    assert "Tokens revoked" in done.stderr
    assert User.objects.get(username="bob").check_password("a long walk home")
