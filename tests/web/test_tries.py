"""Guessing at doors: counted by account and by place in the database, and nobody shuts a colleague out."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from django.core.cache import cache
from django.core.management import call_command
from django.db import DatabaseError, OperationalError
from django.test import Client
from django.utils import timezone

from portal.accounts import sign_in_attempts
from portal.accounts.models import SignInPlace, Tries, User
from portal.accounts.sign_in_attempts import (
    ACCOUNT,
    ADDRESS,
    BAD_TOKEN,
    HERE,
    BadTokens,
    begin_attempt,
    forget_tries,
    succeed,
)
from portal.common.addresses import believed, group_of
from portal.common.live import redis_client
from tests.portal.builders import PASSWORD, World

PROXY, OTHER = "10.0.0.1", "10.0.0.2"


def enter(name: str, password: str = "not it", address: str = "198.51.100.7", **headers: str) -> Any:
    return Client(REMOTE_ADDR=address, headers=headers).post(
        "/sign-in/", {"username": name, "password": password}
    )


def test_thirty_names_from_one_place_are_stopped(world: World) -> None:
    answers = [enter(f"name{n}").status_code for n in range(30)]

    assert answers == [422] * ADDRESS.most + [429] * (30 - ADDRESS.most)
    assert enter("bob", PASSWORD).status_code == 429
    assert enter("bob", PASSWORD, address="203.0.113.5").status_code == 302


def test_a_made_up_x_forwarded_for_is_no_fresh_start(world: World) -> None:
    answers = [enter("bob", **{"X-Forwarded-For": f"192.0.2.{n}"}).status_code for n in range(8)]

    assert answers == [422] * HERE.most + [429] * 3


def test_behind_a_trusted_proxy_each_caller_counts_alone(world: World, settings: Any) -> None:
    settings.TRUSTED_PROXIES = [ip_network(PROXY)]
    guess = [enter("bob", address=PROXY, **{"X-Forwarded-For": "203.0.113.9"}) for _nth in range(6)]

    spoofed = enter("bob", address=PROXY, **{"X-Forwarded-For": "192.0.2.1, 203.0.113.9"})
    other = enter("bob", PASSWORD, address=PROXY, **{"X-Forwarded-For": "203.0.113.10"})

    assert guess[-1].status_code == 429
    assert spoofed.status_code == 429
    assert other.status_code == 302


@pytest.mark.parametrize(
    ("peer", "told", "is_meant"),
    [
        ("198.51.100.7", "", "198.51.100.7"),
        ("198.51.100.7", "192.0.2.1", "198.51.100.7"),
        (PROXY, "192.0.2.1", "192.0.2.1"),
        (PROXY, "192.0.2.66, 192.0.2.1", "192.0.2.1"),
        (PROXY, f"192.0.2.1, {OTHER}", "192.0.2.1"),
        (PROXY, "garbage", PROXY),
        (PROXY, "192.0.2.1, garbage", PROXY),
        ("::ffff:10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("", "192.0.2.1", "unknown"),
    ],
)
def test_who_is_believed(peer: str, told: str, is_meant: str) -> None:
    assert believed(peer, told, [ip_network("10.0.0.0/30")]) == is_meant


def test_an_ipv6_site_is_one_place() -> None:
    assert group_of("2001:db8:0:1::5") == group_of("2001:db8:0:1:ffff::") != group_of("2001:db8:0:2::5")


def test_a_scheme_told_by_strangers_is_not_believed(db: None, settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SECURE_SSL_REDIRECT = True
    settings.TRUSTED_PROXIES = [ip_network(PROXY)]
    told = {"X-Forwarded-Proto": "https"}

    assert Client(REMOTE_ADDR=PROXY).get("/healthz", headers=told).status_code == 200
    assert Client(REMOTE_ADDR=OTHER).get("/healthz", headers=told).status_code == 301


def test_emptying_redis_forgets_nothing(world: World) -> None:
    for _nth in range(HERE.most):
        enter("bob")
    cache.clear()
    redis_client().flushdb()

    assert enter("bob", PASSWORD).status_code == 429


def test_one_account_from_many_places_is_stopped_where_it_is_not_known(world: World) -> None:
    enter("bob", PASSWORD, address="203.0.113.5")
    answers = [enter("bob", address=f"198.51.100.{n}").status_code for n in range(ACCOUNT.most + 5)]

    assert answers == [422] * ACCOUNT.most + [429] * 5
    assert enter("bob", PASSWORD, address="198.51.100.99").status_code == 429
    # The colleague's own desk: strangers cannot shut them out of it.
    assert enter("bob", PASSWORD, address="203.0.113.5").status_code == 302


def test_a_window_ends_by_itself_and_refused_tries_do_not_make_it_longer(world: World) -> None:
    at = timezone.now()
    waits = [begin_attempt("bob", "198.51.100.7", now=at + timedelta(seconds=s)).wait_s for s in range(15)]

    assert waits == [0] * HERE.most + [60 - s for s in range(HERE.most, 15)]
    assert begin_attempt("bob", "198.51.100.7", now=at + timedelta(seconds=60)).wait_s == 0
    assert not Tries.objects.filter(scope=ACCOUNT.scope, count__gt=HERE.most + 1).exists()


def test_a_right_password_gives_back_what_it_was_counted_for(world: World) -> None:
    at = timezone.now()
    for _nth in range(3 * ADDRESS.most):
        attempt = begin_attempt("bob", "198.51.100.7", now=at)
        assert attempt.wait_s == 0
        succeed(attempt, world.user("bob"), "198.51.100.7", now=at)

    assert SignInPlace.objects.get().place == "198.51.100.7"


def test_an_operator_lets_somebody_try_again(world: World) -> None:
    for n in range(ACCOUNT.most + 1):
        enter("bob", address=f"198.51.100.{n}")
    assert enter("bob", PASSWORD, address="203.0.113.5").status_code == 429

    call_command("forget_tries", "bob", verbosity=0)

    assert enter("bob", PASSWORD, address="203.0.113.5").status_code == 302


def test_old_counts_and_places_are_swept(world: World) -> None:
    at = timezone.now()
    succeed(begin_attempt("bob", "198.51.100.7", now=at), world.user("bob"), "198.51.100.7", now=at)

    forget_tries(now=at + timedelta(hours=23))
    assert Tries.objects.exists()
    assert SignInPlace.objects.exists()
    forget_tries(now=at + timedelta(days=31))
    assert not Tries.objects.exists()
    assert not SignInPlace.objects.exists()


def test_nobody_signs_in_uncounted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: Any, **_given: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(sign_in_attempts, "fetch", away)

    answer = enter("bob", PASSWORD)

    assert answer.status_code == 503
    assert int(answer["Retry-After"]) > 0


def test_an_unknown_name_costs_as_much_work_as_a_wrong_password(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.contrib.auth.hashers import Argon2PasswordHasher

    User.objects.filter(username="alice").update(is_active=False)
    made: list[str] = []
    for name in ("encode", "verify"):
        real = getattr(Argon2PasswordHasher, name)

        def counted(self: Any, *args: Any, real: Any = real, **given: Any) -> Any:
            made.append(real.__name__)
            return real(self, *args, **given)

        monkeypatch.setattr(Argon2PasswordHasher, name, counted)
    work, seen = [], set()
    for who in ("bob", "nobody", "alice"):
        made.clear()
        answer = enter(who)
        work.append(len([name for name in made if name == "encode" or name == "verify"]))
        seen.add((answer.status_code, "do not fit together" in answer.text))

    assert len(set(work)) == 1
    assert seen == {(422, True)}


def test_bad_tokens_are_stopped_by_place_and_good_ones_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.api.authentication.bad_tokens", BadTokens())
    bad = Client(headers={"Authorization": "Bearer bth_wrong"})
    good = Client(headers={"Authorization": f"Bearer {world.token('bob')}"})

    answers = [bad.get("/api/v1/me/") for _nth in range(BAD_TOKEN.most + 3)]

    assert [a.status_code for a in answers] == [401] * BAD_TOKEN.most + [429] * 3
    assert answers[-1].json()["code"] == "too_many_calls"
    assert 0 < int(answers[-1]["Retry-After"]) <= BAD_TOKEN.window_s
    assert good.get("/api/v1/me/").status_code == 200
    elsewhere = Client(REMOTE_ADDR="203.0.113.5", headers={"Authorization": "Bearer bth_wrong"})
    assert elsewhere.get("/api/v1/me/").status_code == 401
    # Once refused, a place costs no more writing.
    assert Tries.objects.get(scope=BAD_TOKEN.scope, who="127.0.0.1").count == BAD_TOKEN.most + 1


@pytest.mark.django_db(transaction=True)
def test_a_bad_token_is_still_refused_when_it_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_args: Any, **_given: Any) -> None:
        raise DatabaseError("gone")

    monkeypatch.setattr(sign_in_attempts, "fetch", away)
    monkeypatch.setattr("portal.api.authentication.bad_tokens", BadTokens())

    assert Client(headers={"Authorization": "Bearer bth_wrong"}).get("/api/v1/me/").status_code == 401
