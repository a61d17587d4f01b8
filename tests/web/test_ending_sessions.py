"""A person sees where they are signed in, ends what they do not know, and changes their password."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.models import ApiToken, BrowserSession, User
from portal.accounts.sessions import browser_of, uid_of
from portal.accounts.sign_in_attempts import HERE
from portal.audit.models import AuditEntry
from portal.telemetry import viewers
from tests.portal.builders import PASSWORD, World

pytestmark = pytest.mark.django_db
NEW = "a long walk home"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def entered(name: str, password: str = PASSWORD, agent: str = FIREFOX) -> Client:
    client = Client(headers={"User-Agent": agent})
    answer = client.post("/sign-in/", {"username": name, "password": password})
    assert answer.status_code == 302, answer.text
    return client


def key(client: Client) -> str:
    return client.cookies["sessionid"].value


def change(client: Client, old: str = PASSWORD, new: str = NEW, **more: str) -> Any:
    return client.post("/password/", {"old": old, "new": new, "again": new, **more})


def is_in(client: Client) -> bool:
    return client.get("/notifications/").status_code == 200


def told(action: str) -> AuditEntry:
    return AuditEntry.objects.get(action=action)


def test_the_page_lists_ones_own_live_sessions_and_never_a_key(world: World) -> None:
    here, other, alice = entered("bob"), entered("bob", agent="curl/8"), entered("alice")

    text = here.get("/sessions/").text

    assert "Firefox · Linux" in text
    assert "127.0.0.1" in text
    assert uid_of(key(here)) in text
    assert uid_of(key(other)) in text
    assert uid_of(key(alice)) not in text
    assert not any(key(one) in text for one in (here, other, alice))
    assert "/sessions/" in here.get("/").text


def test_a_session_that_is_ended_opens_no_page_and_no_socket(world: World) -> None:
    here, other = entered("bob"), entered("bob")
    ended = uid_of(key(other))

    assert here.post(f"/sessions/{ended}/end/").status_code == 302

    assert viewers.admit({"cookie": f"sessionid={key(here)}"}, now=timezone.now())
    assert viewers.admit({"cookie": f"sessionid={key(other)}"}, now=timezone.now()) is None
    assert is_in(here)
    assert not is_in(other)
    assert told("session.ended").detail == {"session": ended}
    assert here.post(f"/sessions/{ended}/end/").status_code == 404


def test_charlie_meets_another_persons_session_like_a_missing_one(world: World) -> None:
    bob, charlie = entered("bob"), entered("charlie")
    token = world.token("charlie", "admin")
    api = Client(headers={"Authorization": f"Bearer {token}"})

    for name in (uid_of(key(bob)), "ses-0000000000000000"):
        assert charlie.post(f"/sessions/{name}/end/").status_code == 404
        assert api.delete(f"/api/v1/sessions/{name}/").status_code == 404

    charlie.post("/sessions/end-others/")
    assert api.delete("/api/v1/sessions/").status_code == 204
    assert is_in(bob)
    assert not is_in(charlie)


def test_all_others_end_and_this_one_goes_on(world: World) -> None:
    here, others = entered("bob"), [entered("bob") for _nth in range(2)]

    said = here.post("/sessions/end-others/", follow=True).text

    assert "2 other sessions are ended." in said
    assert is_in(here)
    assert not any(is_in(one) for one in others)
    assert told("session.others_ended").detail["n"] == 2
    assert "There was no other session." in here.post("/sessions/end-others/", follow=True).text


def test_another_password_ends_the_other_sessions_and_leaves_tokens(world: World) -> None:
    here, other, secret = entered("bob"), entered("bob"), world.token("bob")

    said = here.get(change(here).url).text

    assert "Your password is changed" in said
    assert is_in(here)
    assert not is_in(other)
    assert BrowserSession.objects.filter(user=world.user("bob")).count() == 1
    assert is_in(entered("bob", NEW))
    assert Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 422
    assert Client(headers={"Authorization": f"Bearer {secret}"}).get("/api/v1/me/").status_code == 200
    assert told("password.changed").detail == {"address": "127.0.0.1", "sessions": 1, "tokens": 0}


def test_tokens_go_with_the_old_password_where_that_is_asked(world: World) -> None:
    here, secret = entered("bob"), world.token("bob")

    change(here, revoke_tokens="on")

    assert Client(headers={"Authorization": f"Bearer {secret}"}).get("/api/v1/me/").status_code == 401
    assert not ApiToken.objects.filter(user=world.user("bob"), revoked_at=None).exists()
    assert told("password.changed").detail["tokens"] == 1


@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        ({"old": "not it"}, "That is not your password."),
        ({"new": "short"}, "too short"),
        ({"new": "password123"}, "too common"),
        ({"new": PASSWORD}, "Choose another one."),
        ({"new": NEW, "again": "a long walk hom"}, "not what you typed above"),
    ],
)
def test_what_cannot_be_a_password_is_refused(world: World, sent: dict[str, str], sentence: str) -> None:
    here = entered("bob")

    answer = change(here, **{"new": NEW, "again": sent.get("new", NEW), **sent})

    assert answer.status_code == 422
    assert sentence in answer.text
    assert User.objects.get(username="bob").check_password(PASSWORD)
    assert is_in(here)


def test_guesses_at_the_present_password_are_counted_like_tries_to_sign_in(world: World) -> None:
    here = entered("bob")

    answers = [change(here, old="not it") for _nth in range(HERE.most + 1)]
    right = change(here)

    assert [a.status_code for a in answers] == [422] * HERE.most + [429]
    assert right.status_code == 429
    assert User.objects.get(username="bob").check_password(PASSWORD)
    assert Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 429
    assert AuditEntry.objects.filter(action="password.refused").count() == HERE.most + 1


def test_a_password_that_may_not_be_costs_no_try(world: World) -> None:
    here = entered("bob")

    answers = {change(here, new="short").status_code for _nth in range(HERE.most + 2)}

    assert answers == {422}


def test_an_account_of_the_demo_keeps_its_password(world: World, settings: Any) -> None:
    settings.DEMO = True
    bob = world.user("bob")
    bob.is_demo = True
    bob.save()

    answer = change(entered("bob"))

    assert answer.status_code == 403
    assert "accounts of the demo keep" in answer.text
    assert User.objects.get(username="bob").check_password(PASSWORD)


def test_over_http_a_session_and_a_token_do_the_same(world: World) -> None:
    here, other = entered("bob"), entered("bob")
    asked = here.get("/api/v1/sessions/").json()["results"]
    assert {row["id"]: row["is_current"] for row in asked} == {
        uid_of(key(here)): True,
        uid_of(key(other)): False,
    }
    token = Client(headers={"Authorization": f"Bearer {world.token('bob', 'admin')}"})
    assert not any(row["is_current"] for row in token.get("/api/v1/sessions/").json()["results"])

    answer = here.put("/api/v1/password/", {"old": PASSWORD, "new": NEW}, "application/json")

    assert answer.json() == {"sessions_ended": 1, "tokens_revoked": 0}
    assert is_in(here)
    assert not is_in(other)
    assert token.delete("/api/v1/sessions/").status_code == 204
    assert not is_in(here)


def test_over_http_a_refusal_names_the_field_and_waiting(world: World) -> None:
    token = Client(headers={"Authorization": f"Bearer {world.token('bob', 'admin')}"})

    answers = [
        token.put("/api/v1/password/", {"old": "not it", "new": NEW}, "application/json")
        for _nth in range(HERE.most + 1)
    ]

    assert answers[0].status_code == 422
    assert answers[0].json()["errors"][0]["field"] == "old"
    assert answers[-1].status_code == 429
    assert 0 < int(answers[-1]["Retry-After"]) <= HERE.window_s


def test_a_browser_is_called_what_its_person_calls_it() -> None:
    edge = "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/130.0 Safari/537.36 Edg/130.0"

    assert browser_of(FIREFOX) == "Firefox · Linux"
    assert browser_of(edge) == "Edge · Windows"
    assert browser_of("<script>") == ""


def test_the_list_asks_few_questions(world: World, django_assert_max_num_queries: Any) -> None:
    here = entered("bob")
    for _nth in range(5):
        entered("bob")

    with django_assert_max_num_queries(12):
        assert here.get("/sessions/").status_code == 200
