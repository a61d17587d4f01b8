from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.utils import timezone

from portal.accounts.models import ApiToken, BrowserSession
from portal.accounts.sessions import SessionStore
from portal.teams.models import Membership
from portal.telemetry.hub import switchboard
from tests.portal.builders import World
from tests.telemetry.conftest import rows
from tests.telemetry.talk import Talk

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("live")]
HERE = "http://testserver"


def sign_in(world: World, name: str) -> dict[str, str]:
    """Return the headers that a signed-in browser sends from one of our pages."""
    user = world.user(name)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return {"cookie": f"theme=dark; sessionid={session.session_key}", "origin": HERE}


async def review(**later: float) -> None:
    await switchboard().review(now=timezone.now() + timedelta(**later))


async def test_a_signed_in_browser_and_a_token_are_both_let_in(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))
    token = await rows(lambda: world.token("bob", "read"))

    async with Talk(**headers) as browser, Talk(token=token) as program:
        heard = [*await browser.subscribe("me"), *await program.subscribe("me")]

    assert [message["type"] for message in heard] == ["snapshot", "snapshot"]


STRANGERS: list[dict[str, str]] = [
    {"origin": HERE},
    {"origin": HERE, "cookie": "sessionid=unknown"},
    {"origin": HERE, "cookie": "sessionid=" + "a" * 5000},
    {"origin": HERE, "cookie": "sessionid='; drop table x; --"},
    {"origin": HERE, "cookie": "\x80\xff=;;;==; sessionid"},
    {"authorization": "Bearer"},
    {"authorization": "Bearer bth_" + "x" * 40},
    {"authorization": "Basic Ym9iOmJvYg=="},
    {"authorization": "Bearer " + "\u00ff" * 300},
]
FOREIGN = [
    "http://evil.example",
    "null",
    "",
    "http://",
    "http://testserver.evil.example",
    "file://testserver",
    "http://[::1",
    "http://localhost",
    "http://testserver:81",
    "https//testserver",
]


async def test_whoever_shows_nothing_that_we_know_is_asked_to_sign_in() -> None:
    for headers in STRANGERS:
        async with Talk(**headers) as nobody:
            code = await nobody.ended()

        assert nobody.accepted, headers
        assert code == 4401, headers


async def test_a_page_of_another_origin_never_gets_a_socket(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))
    token = await rows(lambda: world.token("bob"))

    for origin in FOREIGN:
        async with Talk(**{**headers, "origin": origin}) as page, Talk(token=token, origin=origin) as program:
            assert not page.accepted, origin
            assert not program.accepted, origin


async def test_a_browser_without_origin_is_refused_although_it_is_signed_in(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))

    async with Talk(cookie=headers["cookie"]) as odd:
        assert not odd.accepted


async def test_a_trusted_origin_may_differ_from_the_host(world: World, settings: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://gpu.example"]
    headers = await rows(lambda: sign_in(world, "bob"))

    async with Talk(**{**headers, "origin": "https://gpu.example"}) as browser:
        (heard,) = await browser.subscribe("me")

    assert heard["type"] == "snapshot"


async def test_someone_without_any_role_is_not_seated(world: World) -> None:
    token = await rows(lambda: world.token("bob"))
    await rows(lambda: Membership.objects.filter(user=world.user("bob")).delete())

    async with Talk(token=token) as bob:
        assert await bob.ended() == 4403


async def test_losing_the_role_ends_the_socket_at_the_next_review(world: World) -> None:
    lease = await rows(world.active)
    headers = await rows(lambda: sign_in(world, "bob"))

    async with Talk(**headers) as bob:
        await bob.subscribe(f"lease:{lease.uid}", "me")
        await review()
        still = await bob.is_quiet()
        await rows(lambda: Membership.objects.filter(user=world.user("bob")).delete())
        await review()
        code = await bob.ended()

    assert still
    assert code == 4403
    assert switchboard().topics == {}


async def test_changing_the_team_ends_only_sockets_that_watched_the_old_one(world: World) -> None:
    lease = await rows(world.active)
    token = await rows(lambda: world.token("bob"))

    async with Talk(token=token) as watching, Talk(token=token) as elsewhere:
        await watching.subscribe(f"lease:{lease.uid}")
        await elsewhere.subscribe("me", "fleet")
        await rows(
            lambda: Membership.objects.filter(user=world.user("bob")).update(team=world.team("language"))
        )
        await review()
        code = await watching.ended()
        (refused,) = await elsewhere.subscribe(f"lease:{lease.uid}")

    assert code == 4403
    assert refused["code"] == "unknown_topic"


async def test_rights_are_read_afresh_when_a_lease_is_named(world: World) -> None:
    lease = await rows(world.active)
    token = await rows(lambda: world.token("bob"))

    async with Talk(token=token) as bob:
        await rows(
            lambda: Membership.objects.filter(user=world.user("bob")).update(team=world.team("language"))
        )
        (refused,) = await bob.subscribe(f"lease:{lease.uid}")

    assert refused["code"] == "unknown_topic"


async def test_signing_out_ends_the_socket(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))

    async with Talk(**headers) as bob:
        await bob.subscribe("me")
        await rows(BrowserSession.objects.all().delete)
        await review()

        assert await bob.ended() == 4401


async def test_a_changed_password_ends_the_socket(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))

    async with Talk(**headers) as bob:
        await rows(lambda: type(world.user("bob")).objects.filter(username="bob").update(password="!new"))
        await review()

        assert await bob.ended() == 4401


async def test_a_session_or_token_that_runs_out_ends_the_socket(world: World) -> None:
    headers = await rows(lambda: sign_in(world, "bob"))
    token = await rows(lambda: world.token("bob"))

    async with Talk(**headers) as browser, Talk(token=token) as program:
        await review(days=40)
        codes = [await browser.ended(), await program.ended()]

    assert codes == [4401, 4401]


async def test_a_revoked_token_and_a_suspended_person_are_sent_away(world: World) -> None:
    tokens = [await rows(lambda name=name: world.token(name)) for name in ("bob", "alice")]

    async with Talk(token=tokens[0]) as bob, Talk(token=tokens[1]) as alice:
        await rows(lambda: ApiToken.objects.filter(user=world.user("bob")).update(revoked_at=timezone.now()))
        await rows(lambda: type(world.user("alice")).objects.filter(username="alice").update(is_active=False))
        await review()
        codes = [await bob.ended(), await alice.ended()]

    assert codes == [4401, 4401]


async def test_a_review_costs_the_same_queries_for_one_socket_and_for_many(world: World) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    from portal.telemetry import viewers

    def count(n: int) -> int:
        cookies = [sign_in(world, name)["cookie"] for name in ("bob", "alice", "charlie")[:n]]
        tokens = [world.token(name) for name in ("bob", "alice", "charlie")[:n]]
        people = [viewers.admit({"cookie": cookie}, now=world.now) for cookie in cookies]
        people += [viewers.admit({"authorization": f"Bearer {t}"}, now=timezone.now()) for t in tokens]
        with CaptureQueriesContext(
            connection,
        ) as seen:
            alive = viewers.review([p for p in people if p], now=timezone.now())
        assert len(alive) == 2 * n
        return len(seen)

    assert await rows(lambda: count(1)) == await rows(lambda: count(3)) <= 4


async def test_when_rights_cannot_be_checked_three_times_everybody_must_come_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    from portal.telemetry import viewers

    def away(*_args: object, **_more: object) -> None:
        raise OperationalError("the database is away")

    async with Talk(token=await rows(lambda: world.token("bob"))) as bob:
        monkeypatch.setattr(viewers, "review", away)
        await review()
        await review()
        still = await bob.is_quiet()
        await review()
        code = await bob.ended()

    assert still
    assert code == 1013


async def test_a_reader_that_takes_nothing_loses_its_socket_with_its_rights(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portal.telemetry import consumers

    monkeypatch.setattr(consumers, "CLOSE_WITHIN_S", 0.05)
    async with Talk(token=await rows(lambda: world.token("bob"))) as bob:
        await bob.subscribe("me")
        bob.hold()
        await bob.say({"op": "ping"})
        await rows(lambda: Membership.objects.filter(user=world.user("bob")).delete())
        await review()
        assert bob._task is not None
        await bob._task

    assert switchboard().seats == set()
